/* SPDX-License-Identifier: Apache-2.0
 *
 * config.c - from config.json to sizes, parameters and state.
 */
#include "qwen3_5.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What opening needs at hand. */
struct reader {
    const struct ifx_host *host;
    const struct ifx_config *config;
    struct model *m;
    bool moe;
};

#define MAX_LAYERS        1024
#define MAX_WIDTH         (1 << 20)
#define PARAMS_EACH_LAYER 16
#define STATE_ALIGN       16u

static int32_t bad_field(const struct reader *r, const char *key, const char *why)
{
    return r->host->error(r->host, IFX_EFORMAT, "config.json: \"%s\" %s", key, why);
}

/* A field that must be there and lie in [min, max]. */
static int32_t need_u32(const struct reader *r, const char *key, int64_t min, int64_t max, uint32_t *out)
{
    int64_t v;
    int32_t st = r->config->get_int(r->config, key, &v);
    if (st == IFX_ENOTFOUND)
        return bad_field(r, key, "is missing; this architecture needs it");
    if (st)
        return st;
    if (v < min || v > max)
        return r->host->error(r->host, IFX_EFORMAT,
                              "config.json: \"%s\" is %" PRId64 "; it must lie between %" PRId64 " and %" PRId64, key, v,
                              min, max);
    *out = (uint32_t)v;
    return IFX_OK;
}

/* The first of the keys that is there; *out is left alone when none is. */
static int32_t first_float(const struct reader *r, const char *const *keys, double *out)
{
    for (; *keys; keys++) {
        int32_t st = r->config->get_float(r->config, *keys, out);
        if (st != IFX_ENOTFOUND)
            return st;
    }
    return IFX_OK;
}

/* A switch that only one value of is implemented. */
static int32_t only_bool(const struct reader *r, const char *key, bool implemented)
{
    uint32_t v;
    int32_t st = r->config->get_bool(r->config, key, &v);
    if (st == IFX_ENOTFOUND)
        return IFX_OK;
    if (st)
        return st;
    if ((v != 0) != implemented)
        return r->host->error(r->host, IFX_EUNSUPPORTED, "config.json: \"%s\" is %s; only %s is implemented", key,
                              v ? "true" : "false", implemented ? "true" : "false");
    return IFX_OK;
}

static int32_t only_string(const struct reader *r, const char *key, const char *implemented)
{
    const char *v;
    int32_t st = r->config->get_string(r->config, key, &v);
    if (st == IFX_ENOTFOUND)
        return IFX_OK;
    if (st)
        return st;
    if (strcmp(v, implemented) != 0)
        return r->host->error(r->host, IFX_EUNSUPPORTED,
                              "config.json: \"%s\" is \"%.64s\"; only \"%s\" is implemented", key, v, implemented);
    return IFX_OK;
}

/* Features that a config of this family may name and that this code does not have. */
static int32_t refuse_unsupported(const struct reader *r)
{
    static const char *const rope_types[] = {"rope_parameters.rope_type", "rope_parameters.type",
                                             "rope_scaling.rope_type", "rope_scaling.type", NULL};
    int32_t st = only_string(r, "hidden_act", "silu");
    if (!st)
        st = only_bool(r, "attention_bias", false);
    if (!st)
        st = only_bool(r, "attn_output_gate", true);
    for (const char *const *key = rope_types; !st && *key; key++)
        st = only_string(r, *key, "default");
    if (st || !r->moe)
        return st;
    uint64_t count = 0;
    st = r->config->get_count(r->config, "mlp_only_layers", &count);
    if (st && st != IFX_ENOTFOUND)
        return st;
    if (st == IFX_OK && count)
        return r->host->error(r->host, IFX_EUNSUPPORTED,
                              "config.json: \"mlp_only_layers\" is not empty; only models whose every layer has experts are implemented");
    int64_t step = 1;
    st = r->config->get_int(r->config, "decoder_sparse_step", &step);
    if (st && st != IFX_ENOTFOUND)
        return st;
    if (step != 1)
        return r->host->error(r->host, IFX_EUNSUPPORTED,
                              "config.json: \"decoder_sparse_step\" is %" PRId64 "; only 1 is implemented", step);
    return IFX_OK;
}

static int32_t read_sizes(const struct reader *r)
{
    struct model *m = r->m;
    const struct {
        const char *key;
        int64_t min, max;
        uint32_t *out;
        int when; /* 0: always, 1: MoE, -1: dense */
    } fields[] = {
        {"vocab_size", 1, 1 << 24, &m->vocab, 0},
        {"hidden_size", 1, MAX_WIDTH, &m->hidden, 0},
        {"num_hidden_layers", 1, MAX_LAYERS, &m->n_layers, 0},
        {"max_position_embeddings", 1, INT32_MAX, &m->desc.max_positions, 0},
        {"num_attention_heads", 1, 4096, &m->attention.q_heads, 0},
        {"num_key_value_heads", 1, 4096, &m->attention.kv_heads, 0},
        {"head_dim", 8, 512, &m->attention.d, 0},
        {"linear_num_key_heads", 1, 4096, &m->delta.k_heads, 0},
        {"linear_num_value_heads", 1, 4096, &m->delta.v_heads, 0},
        {"linear_key_head_dim", 1, 256, &m->delta.dk, 0},
        {"linear_value_head_dim", 1, 256, &m->delta.dv, 0},
        {"linear_conv_kernel_dim", 2, 8, &m->delta.kernel, 0},
        {"intermediate_size", 1, MAX_WIDTH, &m->inter, -1},
        {"num_experts", 1, 65536, &m->experts, 1},
        {"num_experts_per_tok", 1, 32, &m->top_k, 1},
        {"moe_intermediate_size", 1, MAX_WIDTH, &m->expert_inter, 1},
        {"shared_expert_intermediate_size", 1, MAX_WIDTH, &m->inter, 1},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (fields[i].when && (fields[i].when > 0) != r->moe)
            continue;
        int32_t st = need_u32(r, fields[i].key, fields[i].min, fields[i].max, fields[i].out);
        if (st)
            return st;
    }
    if (m->attention.d % 8)
        return bad_field(r, "head_dim", "must be a multiple of 8");
    if (m->attention.q_heads % m->attention.kv_heads)
        return bad_field(r, "num_attention_heads", "must be a multiple of \"num_key_value_heads\"");
    if (m->delta.v_heads % m->delta.k_heads)
        return bad_field(r, "linear_num_value_heads", "must be a multiple of \"linear_num_key_heads\"");
    if (r->moe && m->top_k > m->experts)
        return bad_field(r, "num_experts_per_tok", "is larger than \"num_experts\"");
    m->delta.key_width = m->delta.k_heads * m->delta.dk;
    m->delta.value_width = m->delta.v_heads * m->delta.dv;
    m->delta.channels = 2 * m->delta.key_width + m->delta.value_width;
    return IFX_OK;
}

static int32_t read_reals(const struct reader *r)
{
    static const char *const theta_keys[] = {"rope_parameters.rope_theta", "rope_theta", NULL};
    static const char *const factor_keys[] = {"rope_parameters.partial_rotary_factor", "partial_rotary_factor", NULL};
    struct model *m = r->m;
    double eps = 0, theta = 10000, factor = 0.25;
    int32_t st = r->config->get_float(r->config, "rms_norm_eps", &eps);
    if (st == IFX_ENOTFOUND)
        return bad_field(r, "rms_norm_eps", "is missing; this architecture needs it");
    if (!st)
        st = first_float(r, theta_keys, &theta);
    if (!st)
        st = first_float(r, factor_keys, &factor);
    if (st)
        return st;
    if (!(eps > 0 && eps < 1))
        return bad_field(r, "rms_norm_eps", "must lie between 0 and 1");
    if (!(theta > 1 && theta < 1e30))
        return bad_field(r, "rope_theta", "must be larger than 1");
    if (!(factor > 0 && factor <= 1))
        return bad_field(r, "partial_rotary_factor", "must be larger than 0 and at most 1");
    m->delta.act = IFX_ACT_SILU;
    m->eps = m->delta.eps = m->attention.eps = (float)eps;
    m->attention.rotary = (uint32_t)(m->attention.d * factor);
    if (!m->attention.rotary || m->attention.rotary % 2)
        return bad_field(r, "partial_rotary_factor", "gives no even number of rotated dimensions");
    m->inv_freq = r->host->alloc(r->host, m->attention.rotary / 2 * sizeof(float), 64);
    if (!m->inv_freq)
        return IFX_ENOMEM;
    for (uint32_t i = 0; i < m->attention.rotary / 2; i++)
        m->inv_freq[i] = 1.0f / powf((float)theta, (float)(2 * i) / (float)m->attention.rotary);
    return IFX_OK;
}

/* Which layers are linear attention: layer_types, or every full_attention_interval-th is full attention. */
static int32_t read_pattern(const struct reader *r)
{
    struct model *m = r->m;
    uint64_t count;
    int32_t st = r->config->get_count(r->config, "layer_types", &count);
    if (st == IFX_ENOTFOUND) {
        uint32_t interval = 4;
        int64_t v;
        st = r->config->get_int(r->config, "full_attention_interval", &v);
        if (st != IFX_ENOTFOUND)
            st = need_u32(r, "full_attention_interval", 1, MAX_LAYERS, &interval);
        if (st && st != IFX_ENOTFOUND)
            return st;
        for (uint32_t i = 0; i < m->n_layers; i++)
            m->layers[i].linear_attention = (i + 1) % interval != 0;
        return IFX_OK;
    }
    if (st)
        return st;
    if (count != m->n_layers)
        return r->host->error(r->host, IFX_EFORMAT,
                              "config.json: \"layer_types\" has %" PRIu64 " entries for %u layers (\"num_hidden_layers\")",
                              count, m->n_layers);
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const char *type;
        st = r->config->get_string_at(r->config, "layer_types", i, &type);
        if (st)
            return st == IFX_ENOTFOUND ? bad_field(r, "layer_types", "has an entry that is not a string") : st;
        m->layers[i].linear_attention = strcmp(type, "linear_attention") == 0;
        if (!m->layers[i].linear_attention && strcmp(type, "full_attention") != 0)
            return r->host->error(r->host, IFX_EUNSUPPORTED,
                                  "config.json: \"layer_types\" names \"%.64s\" for layer %u; this architecture has "
                                  "\"linear_attention\" and \"full_attention\"",
                                  type, i);
    }
    return IFX_OK;
}

/* ---- parameters ---- */

static uint32_t add(struct model *m, uint32_t kind, uint32_t flags, uint32_t rows, uint32_t cols, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

static uint32_t add(struct model *m, uint32_t kind, uint32_t flags, uint32_t rows, uint32_t cols, const char *format, ...)
{
    struct ifx_param *p = &m->params[m->desc.n_params];
    va_list ap;
    va_start(ap, format);
    vsnprintf(p->name, sizeof p->name, format, ap);
    va_end(ap);
    p->kind = kind;
    p->flags = flags;
    p->rows = rows;
    p->cols = cols;
    p->tied_to = -1;
    return m->desc.n_params++;
}

#define MATRIX(flags, rows, cols, ...) add(m, IFX_PARAM_MATRIX, flags, rows, cols, __VA_ARGS__)
#define VECTOR(values, ...)            add(m, IFX_PARAM_VECTOR, 0, 1, values, __VA_ARGS__)

static void declare_attention(struct model *m, struct layer *l, uint32_t i)
{
    uint32_t q = m->attention.q_heads * m->attention.d, kv = m->attention.kv_heads * m->attention.d;
    /* Half of q_proj is the output gate. */
    l->attention.q_proj = MATRIX(IFX_PARAM_SENSITIVE, 2 * q, m->hidden, "layers.%u.self_attn.q_proj.weight", i);
    l->attention.k_proj = MATRIX(0, kv, m->hidden, "layers.%u.self_attn.k_proj.weight", i);
    l->attention.v_proj = MATRIX(0, kv, m->hidden, "layers.%u.self_attn.v_proj.weight", i);
    l->attention.o_proj = MATRIX(0, m->hidden, q, "layers.%u.self_attn.o_proj.weight", i);
    l->attention.q_norm = VECTOR(m->attention.d, "layers.%u.self_attn.q_norm.weight", i);
    l->attention.k_norm = VECTOR(m->attention.d, "layers.%u.self_attn.k_norm.weight", i);
}

static void declare_delta_net(struct model *m, struct layer *l, uint32_t i)
{
    l->delta.in_qkv = MATRIX(0, m->delta.channels, m->hidden, "layers.%u.linear_attn.in_proj_qkv.weight", i);
    l->delta.in_z = MATRIX(0, m->delta.value_width, m->hidden, "layers.%u.linear_attn.in_proj_z.weight", i);
    l->delta.in_b = MATRIX(IFX_PARAM_SENSITIVE, m->delta.v_heads, m->hidden, "layers.%u.linear_attn.in_proj_b.weight", i);
    l->delta.in_a = MATRIX(IFX_PARAM_SENSITIVE, m->delta.v_heads, m->hidden, "layers.%u.linear_attn.in_proj_a.weight", i);
    l->delta.conv = VECTOR(m->delta.channels * m->delta.kernel, "layers.%u.linear_attn.conv1d.weight", i);
    l->delta.a_log = VECTOR(m->delta.v_heads, "layers.%u.linear_attn.A_log", i);
    l->delta.dt_bias = VECTOR(m->delta.v_heads, "layers.%u.linear_attn.dt_bias", i);
    l->delta.norm = VECTOR(m->delta.dv, "layers.%u.linear_attn.norm.weight", i);
    l->delta.out_proj = MATRIX(0, m->hidden, m->delta.value_width, "layers.%u.linear_attn.out_proj.weight", i);
}

static void declare_ffn(struct model *m, struct layer *l, uint32_t i)
{
    const char *block = m->experts ? "mlp.shared_expert" : "mlp";
    if (m->experts) {
        struct ifx_moe_layer *e = &m->moe[i];
        snprintf(e->prefix, sizeof e->prefix, "layers.%u.mlp.experts", i);
        e->layer = i;
        e->experts = m->experts;
        e->top_k = m->top_k;
        e->hidden = m->hidden;
        e->inter = m->expert_inter;
        e->renormalise = 1;
        e->router = MATRIX(IFX_PARAM_SENSITIVE, m->experts, m->hidden, "layers.%u.mlp.gate.weight", i);
        l->ffn.shared_gate = MATRIX(IFX_PARAM_SENSITIVE, 1, m->hidden, "layers.%u.mlp.shared_expert_gate.weight", i);
    }
    l->ffn.gate_proj = MATRIX(0, m->inter, m->hidden, "layers.%u.%s.gate_proj.weight", i, block);
    l->ffn.up_proj = MATRIX(0, m->inter, m->hidden, "layers.%u.%s.up_proj.weight", i, block);
    l->ffn.down_proj = MATRIX(0, m->hidden, m->inter, "layers.%u.%s.down_proj.weight", i, block);
}

static uint64_t place(uint64_t *end, uint64_t values)
{
    uint64_t at = *end;
    *end += (values + STATE_ALIGN - 1) / STATE_ALIGN * STATE_ALIGN;
    return at;
}

static int32_t declare(const struct reader *r)
{
    struct model *m = r->m;
    uint32_t tied = 0;
    uint64_t state = 0;
    m->embed = MATRIX(IFX_PARAM_EMBED, m->vocab, m->hidden, "embed_tokens.weight");
    for (uint32_t i = 0; i < m->n_layers; i++) {
        struct layer *l = &m->layers[i];
        l->norm1 = VECTOR(m->hidden, "layers.%u.input_layernorm.weight", i);
        if (l->linear_attention) {
            l->delta.state_s = place(&state, (uint64_t)m->delta.v_heads * m->delta.dk * m->delta.dv);
            l->delta.state_conv = place(&state, (uint64_t)m->delta.channels * (m->delta.kernel - 1));
            declare_delta_net(m, l, i);
        } else {
            l->attention.index = m->desc.n_kv_layers++;
            declare_attention(m, l, i);
        }
        l->norm2 = VECTOR(m->hidden, "layers.%u.post_attention_layernorm.weight", i);
        declare_ffn(m, l, i);
    }
    m->final_norm = VECTOR(m->hidden, "norm.weight");
    int32_t st = r->config->get_bool(r->config, "tie_word_embeddings", &tied);
    if (st && st != IFX_ENOTFOUND)
        return st;
    m->head = MATRIX(IFX_PARAM_HEAD | (tied ? IFX_PARAM_OPTIONAL : 0), m->vocab, m->hidden, "lm_head.weight");
    if (tied)
        m->params[m->head].tied_to = (int32_t)m->embed;
    m->desc.state_bytes = state * sizeof(float);
    return IFX_OK;
}

static int32_t allocate(const struct reader *r)
{
    struct model *m = r->m;
    uint64_t n_params = 3 + (uint64_t)m->n_layers * PARAMS_EACH_LAYER;
    uint64_t layers_bytes = m->n_layers * sizeof *m->layers, params_bytes = n_params * sizeof *m->params;
    uint64_t moe_bytes = m->n_layers * sizeof *m->moe;
    m->layers = r->host->alloc(r->host, layers_bytes, 64);
    m->params = r->host->alloc(r->host, params_bytes, 64);
    m->moe = r->host->alloc(r->host, moe_bytes, 64);
    if (!m->layers || !m->params || !m->moe)
        return IFX_ENOMEM;
    memset(m->layers, 0, layers_bytes);
    memset(m->params, 0, params_bytes);
    memset(m->moe, 0, moe_bytes);
    return IFX_OK;
}

static void fill_desc(struct model *m)
{
    struct ifx_model_desc *d = &m->desc;
    d->struct_size = sizeof *d;
    d->vocab = m->vocab;
    d->hidden = m->hidden;
    d->n_layers = m->n_layers;
    d->params = m->params;
    d->n_moe = m->experts ? m->n_layers : 0;
    d->moe = m->moe;
    d->n_kv_heads = m->attention.kv_heads;
    d->head_dim = m->attention.d;
    d->n_q_heads = m->attention.q_heads;
    d->residual_width = m->hidden;
}

/* Dense or mixture of experts: by the architecture's name; a config without one goes by num_experts. */
static int32_t detect_moe(struct reader *r)
{
    const char *name;
    int64_t experts;
    int32_t st = r->config->get_string_at(r->config, "architectures", 0, &name);
    if (st == IFX_OK) {
        r->moe = strstr(name, "Moe") != NULL;
        return IFX_OK;
    }
    if (st != IFX_ENOTFOUND)
        return st;
    st = r->config->get_int(r->config, "num_experts", &experts);
    r->moe = st == IFX_OK;
    return st == IFX_ENOTFOUND ? IFX_OK : st;
}

int32_t qwen3_5_open(const struct ifx_host *host, const struct ifx_options *options, const struct ifx_config *config,
                     void **out)
{
    (void)options;
    struct model *m = host->alloc(host, sizeof *m, 64);
    if (!m)
        return IFX_ENOMEM;
    memset(m, 0, sizeof *m);
    m->host = host;
    struct reader r = {host, config, m, false};
    int32_t st = detect_moe(&r);
    if (!st)
        st = refuse_unsupported(&r);
    if (!st)
        st = read_sizes(&r);
    if (!st)
        st = read_reals(&r);
    if (!st)
        st = allocate(&r);
    if (!st)
        st = read_pattern(&r);
    if (!st)
        st = declare(&r);
    if (st) {
        qwen3_5_close(m);
        return st;
    }
    fill_desc(m);
    *out = m;
    return IFX_OK;
}

void qwen3_5_close(void *model)
{
    struct model *m = model;
    if (!m)
        return;
    const struct ifx_host *host = m->host;
    host->free(host, m->inv_freq);
    host->free(host, m->layers);
    host->free(host, m->params);
    host->free(host, m->moe);
    host->free(host, m);
}
