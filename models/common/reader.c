/* SPDX-License-Identifier: Apache-2.0
 *
 * reader.c - reading a config.json with limits.
 */
#include "reader.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define STATE_ALIGN 16u
#define MAX_LAYERS  1024

int32_t config_bad(const struct config_reader *r, const char *key, const char *why)
{
    return r->host->error(r->host, IFX_EFORMAT, "config.json: \"%s\" %s", key, why);
}

int32_t config_maybe_u32(const struct config_reader *r, const char *key, int64_t min, int64_t max, uint32_t *out)
{
    int64_t v;
    int32_t st = r->config->get_int(r->config, key, &v);
    if (st)
        return st == IFX_ENOTFOUND ? IFX_OK : st;
    if (v < min || v > max)
        return r->host->error(r->host, IFX_EFORMAT,
                              "config.json: \"%s\" is %" PRId64 "; it must lie between %" PRId64 " and %" PRId64, key, v, min,
                              max);
    *out = (uint32_t)v;
    return IFX_OK;
}

int32_t config_need_u32(const struct config_reader *r, const char *key, int64_t min, int64_t max, uint32_t *out)
{
    int64_t v;
    if (r->config->get_int(r->config, key, &v) == IFX_ENOTFOUND)
        return config_bad(r, key, "is missing; this architecture needs it");
    return config_maybe_u32(r, key, min, max, out);
}

int32_t config_first_float(const struct config_reader *r, const char *const *keys, double *out)
{
    for (; *keys; keys++) {
        int32_t st = r->config->get_float(r->config, *keys, out);
        if (st != IFX_ENOTFOUND)
            return st;
    }
    return IFX_OK;
}

int32_t config_only_bool(const struct config_reader *r, const char *key, bool implemented)
{
    uint32_t v;
    int32_t st = r->config->get_bool(r->config, key, &v);
    if (st)
        return st == IFX_ENOTFOUND ? IFX_OK : st;
    if ((v != 0) != implemented)
        return r->host->error(r->host, IFX_EUNSUPPORTED, "config.json: \"%s\" is %s; only %s is implemented", key,
                              v ? "true" : "false", implemented ? "true" : "false");
    return IFX_OK;
}

int32_t config_only_string(const struct config_reader *r, const char *key, const char *implemented)
{
    const char *v;
    int32_t st = r->config->get_string(r->config, key, &v);
    if (st)
        return st == IFX_ENOTFOUND ? IFX_OK : st;
    if (strcmp(v, implemented) != 0)
        return r->host->error(r->host, IFX_EUNSUPPORTED, "config.json: \"%s\" is \"%.64s\"; only \"%s\" is implemented", key, v,
                              implemented);
    return IFX_OK;
}

int32_t config_only_default_rope(const struct config_reader *r)
{
    static const char *const keys[] = {"rope_parameters.rope_type", "rope_parameters.type", "rope_scaling.rope_type",
                                       "rope_scaling.type", NULL};
    int32_t st = IFX_OK;
    for (const char *const *key = keys; !st && *key; key++)
        st = config_only_string(r, *key, "default");
    return st;
}

int32_t config_read_heads(const struct config_reader *r, struct attention_net *attention, struct delta_net *delta)
{
    const struct {
        const char *key;
        int64_t min, max;
        uint32_t *out;
    } fields[] = {
        {"num_attention_heads", 1, 4096, &attention->q_heads},
        {"num_key_value_heads", 1, 4096, &attention->kv_heads},
        {"head_dim", 8, 512, &attention->d},
        {"linear_num_key_heads", 1, 4096, &delta->k_heads},
        {"linear_num_value_heads", 1, 4096, &delta->v_heads},
        {"linear_key_head_dim", 1, 256, &delta->dk},
        {"linear_value_head_dim", 1, 256, &delta->dv},
        {"linear_conv_kernel_dim", 2, 8, &delta->kernel},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        TRY(config_need_u32(r, fields[i].key, fields[i].min, fields[i].max, fields[i].out));
    if (attention->d % 8)
        return config_bad(r, "head_dim", "must be a multiple of 8");
    if (attention->q_heads % attention->kv_heads)
        return config_bad(r, "num_attention_heads", "must be a multiple of \"num_key_value_heads\"");
    if (delta->v_heads % delta->k_heads)
        return config_bad(r, "linear_num_value_heads", "must be a multiple of \"linear_num_key_heads\"");
    delta->key_width = delta->k_heads * delta->dk;
    delta->value_width = delta->v_heads * delta->dv;
    delta->channels = 2 * delta->key_width + delta->value_width;
    return IFX_OK;
}

int32_t config_read_reals(const struct config_reader *r, double factor, struct attention_net *attention, struct delta_net *delta,
                          float *eps_out, float **inv_freq)
{
    static const char *const theta_keys[] = {"rope_parameters.rope_theta", "rope_theta", NULL};
    static const char *const factor_keys[] = {"rope_parameters.partial_rotary_factor", "partial_rotary_factor", NULL};
    double eps = 0, theta = 10000;
    int32_t st = r->config->get_float(r->config, "rms_norm_eps", &eps);
    if (st == IFX_ENOTFOUND)
        return config_bad(r, "rms_norm_eps", "is missing; this architecture needs it");
    if (!st)
        st = config_first_float(r, theta_keys, &theta);
    if (!st)
        st = config_first_float(r, factor_keys, &factor);
    if (st)
        return st;
    if (!(eps > 0 && eps < 1))
        return config_bad(r, "rms_norm_eps", "must lie between 0 and 1");
    if (!(theta > 1 && theta < 1e30))
        return config_bad(r, "rope_theta", "must be larger than 1");
    if (!(factor > 0 && factor <= 1))
        return config_bad(r, "partial_rotary_factor", "must be larger than 0 and at most 1");
    *eps_out = delta->eps = attention->eps = (float)eps;
    attention->rotary = (uint32_t)(attention->d * factor);
    if (!attention->rotary || attention->rotary % 2)
        return config_bad(r, "partial_rotary_factor", "gives no even number of rotated dimensions");
    (*inv_freq) = r->host->alloc(r->host, attention->rotary / 2 * sizeof(float), 64);
    if (!(*inv_freq))
        return IFX_ENOMEM;
    for (uint32_t i = 0; i < attention->rotary / 2; i++)
        (*inv_freq)[i] = 1.0f / powf((float)theta, (float)(2 * i) / (float)attention->rotary);
    return IFX_OK;
}

void *config_zeroed(const struct config_reader *r, uint64_t n, size_t size)
{
    void *p = n <= UINT64_MAX / size ? r->host->alloc(r->host, n ? n * size : size, 64) : NULL;
    return p ? memset(p, 0, n * size) : NULL;
}

static uint32_t *field(uint32_t *first, size_t stride, uint32_t i)
{
    return (uint32_t *)(void *)((char *)first + i * stride);
}

/* Which layers are linear attention. */
int32_t config_read_pattern(const struct config_reader *r, uint32_t n_layers, const char *other, uint32_t *linear, size_t stride)
{
    uint64_t count;
    int32_t st = r->config->get_count(r->config, "layer_types", &count);
    if (st == IFX_ENOTFOUND) {
        uint32_t interval = 4;
        int64_t v;
        st = r->config->get_int(r->config, "full_attention_interval", &v);
        if (st != IFX_ENOTFOUND)
            st = config_need_u32(r, "full_attention_interval", 1, MAX_LAYERS, &interval);
        if (st && st != IFX_ENOTFOUND)
            return st;
        for (uint32_t i = 0; i < n_layers; i++)
            *field(linear, stride, i) = (i + 1) % interval != 0;
        return IFX_OK;
    }
    if (st)
        return st;
    if (count != n_layers)
        return r->host->error(r->host, IFX_EFORMAT,
                              "config.json: \"layer_types\" has %" PRIu64 " entries for %u layers (\"num_hidden_layers\")",
                              count, n_layers);
    for (uint32_t i = 0; i < n_layers; i++) {
        const char *type;
        st = r->config->get_string_at(r->config, "layer_types", i, &type);
        if (st)
            return st == IFX_ENOTFOUND ? config_bad(r, "layer_types", "has an entry that is not a string") : st;
        bool is_linear = strcmp(type, "linear_attention") == 0;
        *field(linear, stride, i) = is_linear;
        if (!is_linear && strcmp(type, "full_attention") != 0 && (!other || strcmp(type, other) != 0))
            return r->host->error(r->host, IFX_EUNSUPPORTED,
                                  "config.json: \"layer_types\" names \"%.64s\" for layer %u; this architecture has "
                                  "\"linear_attention\" and \"full_attention\"",
                                  type, i);
    }
    return IFX_OK;
}

/* ---- declaring ---- */

uint32_t param_add(struct param_list *list, uint32_t kind, uint32_t flags, uint32_t rows, uint32_t cols, const char *format, ...)
{
    struct ifx_param *p = &list->params[list->n];
    va_list ap;
    va_start(ap, format);
    vsnprintf(p->name, sizeof p->name, format, ap);
    va_end(ap);
    p->kind = kind;
    p->flags = flags;
    p->rows = rows;
    p->cols = cols;
    p->tied_to = -1;
    return list->n++;
}

void attention_declare(struct param_list *p, const struct attention_net *net, uint32_t hidden, uint32_t i,
                       struct attention_layer *l)
{
    uint32_t q = net->q_heads * net->d, kv = net->kv_heads * net->d;
    /* Half of q_proj is the output gate. */
    l->q_proj = PARAM_MATRIX(p, IFX_PARAM_SENSITIVE, 2 * q, hidden, "layers.%u.self_attn.q_proj.weight", i);
    l->k_proj = PARAM_MATRIX(p, 0, kv, hidden, "layers.%u.self_attn.k_proj.weight", i);
    l->v_proj = PARAM_MATRIX(p, 0, kv, hidden, "layers.%u.self_attn.v_proj.weight", i);
    l->o_proj = PARAM_MATRIX(p, 0, hidden, q, "layers.%u.self_attn.o_proj.weight", i);
    l->q_norm = PARAM_VECTOR(p, net->d, "layers.%u.self_attn.q_norm.weight", i);
    l->k_norm = PARAM_VECTOR(p, net->d, "layers.%u.self_attn.k_norm.weight", i);
}

void delta_declare(struct param_list *p, const struct delta_net *net, uint32_t hidden, uint32_t i, struct delta_layer *l,
                   uint64_t *state_end)
{
    l->state_s = config_place_state(state_end, (uint64_t)net->v_heads * net->dk * net->dv);
    l->state_conv = config_place_state(state_end, (uint64_t)net->channels * (net->kernel - 1));
    l->in_qkv = PARAM_MATRIX(p, 0, net->channels, hidden, "layers.%u.linear_attn.in_proj_qkv.weight", i);
    l->in_z = PARAM_MATRIX(p, 0, net->value_width, hidden, "layers.%u.linear_attn.in_proj_z.weight", i);
    l->in_b = PARAM_MATRIX(p, IFX_PARAM_SENSITIVE, net->v_heads, hidden, "layers.%u.linear_attn.in_proj_b.weight", i);
    l->in_a = PARAM_MATRIX(p, IFX_PARAM_SENSITIVE, net->v_heads, hidden, "layers.%u.linear_attn.in_proj_a.weight", i);
    l->conv = PARAM_VECTOR(p, net->channels * net->kernel, "layers.%u.linear_attn.conv1d.weight", i);
    l->a_log = PARAM_VECTOR(p, net->v_heads, "layers.%u.linear_attn.A_log", i);
    l->dt_bias = PARAM_VECTOR(p, net->v_heads, "layers.%u.linear_attn.dt_bias", i);
    l->norm = PARAM_VECTOR(p, net->dv, "layers.%u.linear_attn.norm.weight", i);
    l->out_proj = PARAM_MATRIX(p, 0, hidden, net->value_width, "layers.%u.linear_attn.out_proj.weight", i);
}

void ffn_declare(struct param_list *p, uint32_t hidden, uint32_t inter, const char *block, uint32_t i, struct ffn_layer *l)
{
    l->gate_proj = PARAM_MATRIX(p, 0, inter, hidden, "layers.%u.%s.gate_proj.weight", i, block);
    l->up_proj = PARAM_MATRIX(p, 0, inter, hidden, "layers.%u.%s.up_proj.weight", i, block);
    l->down_proj = PARAM_MATRIX(p, 0, hidden, inter, "layers.%u.%s.down_proj.weight", i, block);
}

void mixture_declare(struct param_list *p, uint32_t inter, uint32_t i, struct ifx_moe_layer *moe, struct ffn_layer *l)
{
    snprintf(moe->prefix, sizeof moe->prefix, "layers.%u.mlp.experts", i);
    moe->layer = i;
    moe->router = PARAM_MATRIX(p, IFX_PARAM_SENSITIVE, moe->experts, moe->hidden, "layers.%u.mlp.gate.weight", i);
    l->shared_gate = PARAM_MATRIX(p, IFX_PARAM_SENSITIVE, 1, moe->hidden, "layers.%u.mlp.shared_expert_gate.weight", i);
    ffn_declare(p, moe->hidden, inter, "mlp.shared_expert", i, l);
}

uint64_t config_place_state(uint64_t *end, uint64_t values)
{
    uint64_t at = *end;
    *end += (values + STATE_ALIGN - 1) / STATE_ALIGN * STATE_ALIGN;
    return at;
}
