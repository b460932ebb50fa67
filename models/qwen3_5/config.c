/* SPDX-License-Identifier: Apache-2.0
 *
 * config.c - from config.json to sizes, parameters and state.
 */
#include "qwen3_5.h"
#include "reader.h"

#include <inttypes.h>
#include <string.h>

/* What opening needs at hand. */
struct reader {
    struct config_reader c;
    struct model *m;
    bool moe;
};

#define MAX_LAYERS        1024
#define MAX_WIDTH         (1 << 20)
#define PARAMS_EACH_LAYER 16

/* Features that a config of this family may name and that this code does not have. */
static int32_t refuse_unsupported(const struct reader *r)
{
    int32_t st = config_only_string(&r->c, "hidden_act", "silu");
    if (!st)
        st = config_only_bool(&r->c, "attention_bias", false);
    if (!st)
        st = config_only_bool(&r->c, "attn_output_gate", true);
    if (!st)
        st = config_only_default_rope(&r->c);
    if (st || !r->moe)
        return st;
    uint64_t count = 0;
    st = r->c.config->get_count(r->c.config, "mlp_only_layers", &count);
    if (st && st != IFX_ENOTFOUND)
        return st;
    if (st == IFX_OK && count)
        return r->c.host->error(r->c.host, IFX_EUNSUPPORTED,
                              "config.json: \"mlp_only_layers\" is not empty; only models whose every layer has experts are implemented");
    int64_t step = 1;
    st = r->c.config->get_int(r->c.config, "decoder_sparse_step", &step);
    if (st && st != IFX_ENOTFOUND)
        return st;
    if (step != 1)
        return r->c.host->error(r->c.host, IFX_EUNSUPPORTED,
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
        {"intermediate_size", 1, MAX_WIDTH, &m->inter, -1},
        {"num_experts", 1, 65536, &m->experts, 1},
        {"num_experts_per_tok", 1, 32, &m->top_k, 1},
        {"moe_intermediate_size", 1, MAX_WIDTH, &m->expert_inter, 1},
        {"shared_expert_intermediate_size", 1, MAX_WIDTH, &m->inter, 1},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (fields[i].when && (fields[i].when > 0) != r->moe)
            continue;
        int32_t st = config_need_u32(&r->c, fields[i].key, fields[i].min, fields[i].max, fields[i].out);
        if (st)
            return st;
    }
    if (r->moe && m->top_k > m->experts)
        return config_bad(&r->c, "num_experts_per_tok", "is larger than \"num_experts\"");
    return config_read_heads(&r->c, &m->attention, &m->delta);
}

static void declare_mixture(const struct model *m, struct param_list *p, uint32_t i)
{
    struct ifx_moe_layer *e = &m->moe[i];
    e->experts = m->experts;
    e->top_k = m->top_k;
    e->hidden = m->hidden;
    e->inter = m->expert_inter;
    e->renormalise = 1;
    mixture_declare(p, m->inter, i, e, &m->layers[i].ffn);
}

static int32_t declare(const struct reader *r)
{
    struct model *m = r->m;
    struct param_list p = {m->params, 0};
    uint32_t tied = 0;
    uint64_t state = 0;
    m->embed = PARAM_MATRIX(&p, IFX_PARAM_EMBED, m->vocab, m->hidden, "embed_tokens.weight");
    for (uint32_t i = 0; i < m->n_layers; i++) {
        struct layer *l = &m->layers[i];
        l->norm1 = PARAM_VECTOR(&p, m->hidden, "layers.%u.input_layernorm.weight", i);
        if (l->linear_attention) {
            delta_declare(&p, &m->delta, m->hidden, i, &l->delta, &state);
        } else {
            l->attention.index = m->desc.n_kv_layers++;
            attention_declare(&p, &m->attention, m->hidden, i, &l->attention);
        }
        l->norm2 = PARAM_VECTOR(&p, m->hidden, "layers.%u.post_attention_layernorm.weight", i);
        if (m->experts)
            declare_mixture(m, &p, i);
        else
            ffn_declare(&p, m->hidden, m->inter, "mlp", i, &l->ffn);
    }
    m->final_norm = PARAM_VECTOR(&p, m->hidden, "norm.weight");
    int32_t st = r->c.config->get_bool(r->c.config, "tie_word_embeddings", &tied);
    if (st && st != IFX_ENOTFOUND)
        return st;
    m->head = PARAM_MATRIX(&p, IFX_PARAM_HEAD | (tied ? IFX_PARAM_OPTIONAL : 0), m->vocab, m->hidden, "lm_head.weight");
    if (tied)
        m->params[m->head].tied_to = (int32_t)m->embed;
    m->desc.n_params = p.n;
    m->desc.state_bytes = state * sizeof(float);
    return IFX_OK;
}

static int32_t allocate(const struct reader *r)
{
    struct model *m = r->m;
    uint64_t n_params = 3 + (uint64_t)m->n_layers * PARAMS_EACH_LAYER;
    m->layers = config_zeroed(&r->c, m->n_layers, sizeof *m->layers);
    m->params = config_zeroed(&r->c, n_params, sizeof *m->params);
    m->moe = config_zeroed(&r->c, m->n_layers, sizeof *m->moe);
    return m->layers && m->params && m->moe ? IFX_OK : IFX_ENOMEM;
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
    d->constants = m->inv_freq;
    d->constant_bytes = m->attention.rotary / 2 * (uint32_t)sizeof(float);
}

/* Dense or mixture of experts: by the architecture's name; a config without one goes by num_experts. */
static int32_t detect_moe(struct reader *r)
{
    const char *name;
    int64_t experts;
    int32_t st = r->c.config->get_string_at(r->c.config, "architectures", 0, &name);
    if (st == IFX_OK) {
        r->moe = strstr(name, "Moe") != NULL;
        return IFX_OK;
    }
    if (st != IFX_ENOTFOUND)
        return st;
    st = r->c.config->get_int(r->c.config, "num_experts", &experts);
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
    struct reader r = {{host, config}, m, false};
    m->delta.act = IFX_ACT_SILU;
    int32_t st = detect_moe(&r);
    if (!st)
        st = refuse_unsupported(&r);
    if (!st)
        st = read_sizes(&r);
    if (!st)
        st = config_read_reals(&r.c, 0.25, &m->attention, &m->delta, &m->eps, &m->inv_freq);
    if (!st)
        st = allocate(&r);
    if (!st)
        st = config_read_pattern(&r.c, m->n_layers, NULL, &m->layers[0].linear_attention, sizeof *m->layers);
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
