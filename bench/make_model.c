/* SPDX-License-Identifier: Apache-2.0
 *
 * make_model.c - writes a random Qwen3_5MoeForCausalLM checkpoint for speed measurements.
 *
 *     make_model FOLDER [--hidden N] [--layers N] [--experts N] [--top-k N] [--inter N] [--vocab N] [--seed N]
 *
 * Weights have mean zero and variances under which every block matters and no expert is preferred: made-up weights with another mean
 * let the routing collapse on a few experts, and a benchmark then reads too little.  bench_model prints how many experts it touched.
 */
#include "artifact.h"

#include <errno.h>
#include <infernix/numerics.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct sizes {
    int64_t hidden, layers, experts, top_k, inter, vocab, seed;
    int64_t q_heads, kv_heads, head_dim, k_heads, v_heads, dk, dv;
};

/* One tensor to write: normal values of a spread round a centre. */
struct tensor {
    char name[160];
    uint32_t n_dims;
    uint64_t dims[IFX_MAX_DIMS];
    double spread, centre;
};

struct maker {
    struct sizes s;
    struct tensor *t;
    uint64_t n;
    uint64_t random;
};

static uint64_t next_random(struct maker *m)
{
    uint64_t z = m->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Sum of four uniform numbers, scaled to variance 1. */
static float next_normal(struct maker *m)
{
    uint64_t r = next_random(m);
    int32_t sum = 0;
    for (int i = 0; i < 4; i++, r >>= 16)
        sum += (int32_t)(r & 0xffff) - 32768;
    return (float)sum * (1.7320508f / 65536.0f);
}

static int32_t add(struct maker *m, double spread, double centre, uint32_t n_dims, const int64_t *dims, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

static int32_t add(struct maker *m, double spread, double centre, uint32_t n_dims, const int64_t *dims, const char *format, ...)
{
    struct tensor *grown = base_realloc(m->t, m->n + 1, sizeof *grown);
    if (!grown)
        return IFX_ENOMEM;
    m->t = grown;
    struct tensor *t = &m->t[m->n++];
    memset(t, 0, sizeof *t);
    va_list ap;
    va_start(ap, format);
    vsnprintf(t->name, sizeof t->name, format, ap);
    va_end(ap);
    t->n_dims = n_dims;
    for (uint32_t i = 0; i < n_dims; i++)
        t->dims[i] = (uint64_t)dims[i];
    t->spread = spread;
    t->centre = centre;
    return IFX_OK;
}

#define DIMS(...)              (const int64_t[]){__VA_ARGS__}
#define MATRIX(gain, r, c, ...) st = st ? st : add(m, (gain) / sqrt((double)(c)), 0, 2, DIMS(r, c), __VA_ARGS__)
#define VECTOR(spread, centre, n, ...) st = st ? st : add(m, spread, centre, 1, DIMS(n), __VA_ARGS__)

static int32_t declare_mixer(struct maker *m, int64_t i)
{
    const struct sizes *s = &m->s;
    int64_t h = s->hidden, key = s->k_heads * s->dk, value = s->v_heads * s->dv, channels = 2 * key + value;
    int l = (int)i;
    int32_t st = IFX_OK;
    if ((i + 1) % 4 == 0) {
        MATRIX(1, 2 * s->q_heads * s->head_dim, h, "model.layers.%d.self_attn.q_proj.weight", l);
        MATRIX(1, s->kv_heads * s->head_dim, h, "model.layers.%d.self_attn.k_proj.weight", l);
        MATRIX(1, s->kv_heads * s->head_dim, h, "model.layers.%d.self_attn.v_proj.weight", l);
        MATRIX(1, h, s->q_heads * s->head_dim, "model.layers.%d.self_attn.o_proj.weight", l);
        VECTOR(0.1, 0, s->head_dim, "model.layers.%d.self_attn.q_norm.weight", l);
        VECTOR(0.1, 0, s->head_dim, "model.layers.%d.self_attn.k_norm.weight", l);
        return st;
    }
    MATRIX(1, channels, h, "model.layers.%d.linear_attn.in_proj_qkv.weight", l);
    MATRIX(1, value, h, "model.layers.%d.linear_attn.in_proj_z.weight", l);
    MATRIX(1, s->v_heads, h, "model.layers.%d.linear_attn.in_proj_b.weight", l);
    MATRIX(1, s->v_heads, h, "model.layers.%d.linear_attn.in_proj_a.weight", l);
    st = st ? st : add(m, 0.5, 0, 3, DIMS(channels, 1, 4), "model.layers.%d.linear_attn.conv1d.weight", l);
    VECTOR(0.5, 0.5, s->v_heads, "model.layers.%d.linear_attn.A_log", l);
    VECTOR(0.5, -2, s->v_heads, "model.layers.%d.linear_attn.dt_bias", l);
    VECTOR(0.05, 1, s->dv, "model.layers.%d.linear_attn.norm.weight", l);
    MATRIX(0.5, h, value, "model.layers.%d.linear_attn.out_proj.weight", l);
    return st;
}

static int32_t declare(struct maker *m)
{
    const struct sizes *s = &m->s;
    int64_t h = s->hidden, w = s->inter;
    int32_t st = IFX_OK;
    st = add(m, 1, 0, 2, DIMS(s->vocab, h), "model.embed_tokens.weight");
    for (int64_t i = 0; i < s->layers; i++) {
        int l = (int)i;
        VECTOR(0.05, 0, h, "model.layers.%d.input_layernorm.weight", l);
        VECTOR(0.05, 0, h, "model.layers.%d.post_attention_layernorm.weight", l);
        st = st ? st : declare_mixer(m, i);
        MATRIX(1, s->experts, h, "model.layers.%d.mlp.gate.weight", l);
        st = st ? st : add(m, 1 / sqrt((double)h), 0, 3, DIMS(s->experts, 2 * w, h), "model.layers.%d.mlp.experts.gate_up_proj", l);
        st = st ? st : add(m, 2 / sqrt((double)w), 0, 3, DIMS(s->experts, h, w), "model.layers.%d.mlp.experts.down_proj", l);
        MATRIX(1, w, h, "model.layers.%d.mlp.shared_expert.gate_proj.weight", l);
        MATRIX(1, w, h, "model.layers.%d.mlp.shared_expert.up_proj.weight", l);
        MATRIX(2, h, w, "model.layers.%d.mlp.shared_expert.down_proj.weight", l);
        MATRIX(1, 1, h, "model.layers.%d.mlp.shared_expert_gate.weight", l);
    }
    VECTOR(0.05, 0, h, "model.norm.weight");
    MATRIX(1, s->vocab, h, "lm_head.weight");
    return st;
}

static int32_t write_weights(struct maker *m, const char *folder)
{
    struct st_writer *w = NULL;
    char *path = base_format("%s/model.safetensors", folder);
    uint64_t most = 0;
    int32_t st = path ? st_writer_open(path, true, &w) : IFX_ENOMEM;
    for (uint64_t i = 0; !st && i < m->n; i++) {
        uint64_t values = 1;
        for (uint32_t d = 0; d < m->t[i].n_dims; d++)
            values *= m->t[i].dims[d];
        most = values > most ? values : most;
        st = st_writer_declare(w, m->t[i].name, IFX_BF16, m->t[i].n_dims, m->t[i].dims);
    }
    uint16_t *data = st ? NULL : base_alloc(most * sizeof *data, 64);
    if (!st && !data)
        st = IFX_ENOMEM;
    for (uint64_t i = 0; !st && i < m->n; i++) {
        const struct tensor *t = &m->t[i];
        uint64_t values = 1;
        for (uint32_t d = 0; d < t->n_dims; d++)
            values *= t->dims[d];
        for (uint64_t v = 0; v < values; v++)
            data[v] = ifx_f32_to_bf16((float)t->centre + (float)t->spread * next_normal(m));
        st = st_writer_write(w, t->name, data, values * sizeof *data);
    }
    if (w) {
        int32_t closed = st_writer_close(&w, !st);
        st = st ? st : closed;
    }
    base_free(data);
    base_free(path);
    return st;
}

static int32_t write_config(const struct sizes *s, const char *folder)
{
    char *path = base_format("%s/config.json", folder);
    FILE *f = path ? fopen(path, "w") : NULL;
    base_free(path);
    if (!f)
        return base_error(IFX_EIO, "%s/config.json: %s", folder, strerror(errno));
    fprintf(f,
            "{\"architectures\": [\"Qwen3_5MoeForCausalLM\"], \"model_type\": \"qwen3_5_moe_text\", \"hidden_act\": \"silu\",\n"
            " \"hidden_size\": %d, \"num_hidden_layers\": %d, \"vocab_size\": %d, \"max_position_embeddings\": 32768,\n"
            " \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d, \"full_attention_interval\": 4,\n"
            " \"linear_num_key_heads\": %d, \"linear_num_value_heads\": %d, \"linear_key_head_dim\": %d,\n"
            " \"linear_value_head_dim\": %d, \"linear_conv_kernel_dim\": 4, \"rms_norm_eps\": 1e-06,\n"
            " \"num_experts\": %d, \"num_experts_per_tok\": %d, \"moe_intermediate_size\": %d,\n"
            " \"shared_expert_intermediate_size\": %d, \"tie_word_embeddings\": false, \"eos_token_id\": null,\n"
            " \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0, \"partial_rotary_factor\": 0.25}}\n",
            (int)s->hidden, (int)s->layers, (int)s->vocab, (int)s->q_heads, (int)s->kv_heads, (int)s->head_dim, (int)s->k_heads,
            (int)s->v_heads, (int)s->dk, (int)s->dv, (int)s->experts, (int)s->top_k, (int)s->inter, (int)s->inter);
    return fclose(f) ? base_error(IFX_EIO, "%s/config.json: %s", folder, strerror(errno)) : IFX_OK;
}

static int32_t read_arguments(int argc, char **argv, struct sizes *s)
{
    const struct {
        const char *name;
        int64_t *value;
        int64_t most;
    } options[] = {{"--hidden", &s->hidden, 16384}, {"--layers", &s->layers, 128}, {"--experts", &s->experts, 1024},
                   {"--top-k", &s->top_k, 32},     {"--inter", &s->inter, 16384}, {"--vocab", &s->vocab, 1 << 20},
                   {"--seed", &s->seed, INT32_MAX}};
    for (int i = 2; i < argc; i += 2) {
        size_t o = 0;
        while (o < sizeof options / sizeof options[0] && strcmp(argv[i], options[o].name) != 0)
            o++;
        if (o == sizeof options / sizeof options[0] || i + 1 == argc)
            return base_error(IFX_EINVAL, "unknown option or no value: %s", argv[i]);
        int32_t st = base_parse_i64(argv[i + 1], argv[i], 1, options[o].most, options[o].value);
        if (st)
            return st;
    }
    return IFX_OK;
}

int main(int argc, char **argv)
{
    struct maker m = {.s = {.hidden = 1024, .layers = 8, .experts = 64, .top_k = 8, .inter = 256, .vocab = 32768, .seed = 1}};
    if (argc < 2) {
        fprintf(stderr, "usage: make_model FOLDER [--hidden N] [--layers N] [--experts N] [--top-k N] [--inter N] [--vocab N] [--seed N]\n");
        return 2;
    }
    int32_t st = read_arguments(argc, argv, &m.s);
    /* Heads follow from the hidden size in the proportions of the published models. */
    struct sizes *s = &m.s;
    s->head_dim = 256;
    s->kv_heads = 2;
    s->q_heads = s->hidden >= 1024 ? s->hidden / 128 : 4;
    s->dk = s->dv = 128;
    s->k_heads = s->hidden >= 256 ? s->hidden / 128 : 2;
    s->v_heads = 2 * s->k_heads;
    m.random = (uint64_t)s->seed;
    if (!st && mkdir(argv[1], 0777) && errno != EEXIST)
        st = base_error(IFX_EIO, "%s: %s", argv[1], strerror(errno));
    if (!st)
        st = declare(&m);
    if (!st)
        st = write_config(s, argv[1]);
    if (!st)
        st = write_weights(&m, argv[1]);
    if (st)
        fprintf(stderr, "make_model: %s\n", base_error_text());
    base_free(m.t);
    return st ? 1 : 0;
}
