/* SPDX-License-Identifier: Apache-2.0
 *
 * synthetic.c - random models for measurements.
 *
 * They are made so that speed is that of a trained model of the same shape: nothing overflows, tokens differ, and experts are chosen
 * as often as a Zipf law says.  For that, dimension 0 of the residual stream is a constant (no layer writes to it) and column 0 of
 * each router holds a bias for each expert; the other columns are noise, and each layer adds little, so that the constant
 * stays what it was.  Records are a few dozen different ones, dealt out in turn: what a record holds changes no speed.
 */
#include "config.h"
#include "cli_internal.h"
#include "synthetic.h"
#include <infernix/numerics.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define QWEN3_5_MOE "Qwen3_5MoeForCausalLM"
#define QWEN4_EXP   "Qwen4ExpForCausalLM"

const struct geometry geometries[] = {
    {.name = "35b-a3b", .architecture = QWEN3_5_MOE, .description = "Qwen3.5/3.6-35B-A3B", .hidden = 2048, .layers = 40, .experts = 256,
     .top_k = 8, .inter = 512, .shared = 512, .q_heads = 16, .kv_heads = 2, .head_dim = 256, .rotary = 64, .k_heads = 16, .v_heads = 32,
     .dk = 128, .dv = 128, .vocab = 248320},
    {.name = "122b-a10b", .architecture = QWEN3_5_MOE, .description = "Qwen3.5-122B-A10B", .hidden = 3072, .layers = 48, .experts = 256,
     .top_k = 8, .inter = 1024, .shared = 1024, .q_heads = 32, .kv_heads = 2, .head_dim = 256, .rotary = 64, .k_heads = 16, .v_heads = 64,
     .dk = 128, .dv = 128, .vocab = 248320},
    /* The published table has 20,000,000 rows a head, 51 GB in FP8; ngram-base asks for as many. */
    {.name = "flash-next", .architecture = QWEN4_EXP, .description = "Qwen3.8-Flash-Next", .hidden = 2560, .layers = 48, .experts = 512,
     .top_k = 10, .inter = 640, .shared = 640, .q_heads = 24, .kv_heads = 2, .head_dim = 256, .rotary = 64, .k_heads = 16, .v_heads = 48,
     .dk = 128, .dv = 128, .vocab = 248320, .streams = 4, .lowrank = 320, .index_heads = 4, .index_d = 128, .budget = 2048, .ratio = 4,
     .ple_width = 2560, .ngram_base = 250000},
    {.name = NULL},
};

int32_t geometry_find(const char *name, struct geometry *out)
{
    const char *names[8];
    uint32_t n = 0;
    for (; geometries[n].name != NULL; n++) {
        names[n] = geometries[n].name;
        if (strcmp(name, names[n]) == 0) {
            *out = geometries[n];
            return IFX_OK;
        }
    }
    names[n] = NULL;
    const char *near = base_nearest(name, names);
    return base_error(IFX_EINVAL, "there is no geometry %s%s%s%s; there are 35b-a3b, 122b-a10b and flash-next", name,
                      near ? ", did you mean " : "", near ? near : "", near ? "?" : "");
}

/* ---- "NAME,key=value,..." ---- */

static int32_t set_key(const char *what, struct synthetic *s, const char *key, const char *value)
{
    const struct {
        const char *key;
        uint32_t *at;
        int64_t min, max;
    } numbers[] = {{"layers", &s->g.layers, 1, 1024}, {"vocab", &s->g.vocab, 16, 1 << 24},
                   {"hidden", &s->g.hidden, 32, 65536}, {"inter", &s->g.inter, 16, 65536},
                   {"n-experts", &s->g.experts, 1, 65536}, {"top-k", &s->g.top_k, 1, 32},
                   {"ngram-base", s->g.ngram_base ? &s->g.ngram_base : NULL, 16, 1 << 30}};
    char name[64];
    int64_t n;
    snprintf(name, sizeof name, "%s: %.30s", what, key);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(key, numbers[i].key) == 0 && numbers[i].at != NULL) {
            int32_t st = base_parse_i64(value, name, numbers[i].min, numbers[i].max, &n);
            *numbers[i].at = st == IFX_OK ? (uint32_t)n : 0;
            return st;
        }
    if (strcmp(key, "zipf") == 0)
        return base_parse_f64(value, name, 0, 4, &s->zipf);
    if (strcmp(key, "seed") == 0) {
        int32_t st = base_parse_i64(value, name, 0, INT64_MAX, &n);
        s->seed = (uint64_t)n;
        return st;
    }
    if (strcmp(key, "experts") == 0) {
        snprintf(s->format, sizeof s->format, "%.31s", value);
        return IFX_OK;
    }
    if (strcmp(key, "shrink") == 0) {
        s->shrink = strcmp(value, "no") != 0;
        return IFX_OK;
    }
    return base_error(IFX_EINVAL, "%s: there is no key %s; there are layers, experts (their format), n-experts, top-k, hidden, inter, "
                      "vocab, zipf, seed, shrink and, with a table of n-grams, ngram-base", what, key);
}

int32_t synthetic_parse(const char *what, const char *text, struct synthetic *out)
{
    char *copy = base_strdup(text), *next = NULL;
    memset(out, 0, sizeof *out);
    snprintf(out->format, sizeof out->format, "nvfp4");
    out->seed = 1;
    if (copy == NULL)
        return IFX_ENOMEM;
    next = strchr(copy, ',');
    if (next != NULL)
        *next++ = 0;
    int32_t st = geometry_find(copy, &out->g);
    if (st == IFX_OK)
        out->g.vocab = 32768; /* enough tokens to differ */
    for (char *item = next; item != NULL && st == IFX_OK; item = next) {
        next = strchr(item, ',');
        if (next != NULL)
            *next++ = 0;
        char *value = strchr(item, '=');
        if (value != NULL)
            *value++ = 0;
        st = value == NULL && strcmp(item, "shrink") != 0
                 ? base_error(IFX_EINVAL, "%s: %s needs a value: %s=...", what, item, item)
                 : set_key(what, out, item, value ? value : "yes");
    }
    if (st == IFX_OK && out->g.top_k > out->g.experts)
        st = base_error(IFX_EINVAL, "%s: top-k %u of %u experts", what, out->g.top_k, out->g.experts);
    base_free(copy);
    return st;
}

/* ---- config ---- */

/* Counts of layers, experts and choices stay, so that routing, residency and planning do the same; matrices become small. */
static struct geometry shrunk(const struct geometry *g)
{
    struct geometry s = *g;
    s.hidden = 64;
    s.inter = s.shared = 96; /* records of 12288 bytes: activations rarely come in such pieces */
    s.q_heads = 4;
    s.kv_heads = 2;
    s.head_dim = 16;
    s.rotary = 8;
    s.k_heads = 2;
    s.v_heads = 4;
    s.dk = s.dv = 16;
    s.vocab = 4096;
    if (s.streams) {
        s.lowrank = s.index_d = 16;
        s.ple_width = 64;
        s.ngram_base = 1000;
    }
    return s;
}

/* What only Qwen4Exp has. */
static char *qwen4_text(const struct geometry *g)
{
    if (!g->streams)
        return base_strdup("");
    return base_format(" \"hc_count\": %u, \"hc_lowrank\": %u, \"indexer_n_heads\": %u, \"indexer_kv_heads\": 1, \"indexer_head_dim\": %u,\n"
                       " \"indexer_budget\": %u, \"indexer_compress_ratio\": %u, \"output_gate_type\": \"sigmoid\", \"ple_layer_ids\": [2],\n"
                       " \"ple_embed_dim\": %u, \"ple_conv_kernel_size\": 4, \"ngram_size\": 3, \"heads_per_ngram\": 8,\n"
                       " \"ngram_vocab_size_base\": %u, \"make_ngram_vocab_size_divisible_by\": 128, \"seed\": 1234,\n",
                       g->streams, g->lowrank, g->index_heads, g->index_d, g->budget, g->ratio, g->ple_width, g->ngram_base);
}

static char *config_text(const struct geometry *g)
{
    char *own = qwen4_text(g), *text = NULL;
    if (own != NULL)
        text = base_format("{\"architectures\": [\"%s\"], \"hidden_act\": \"silu\",\n%s"
                           " \"hidden_size\": %u, \"num_hidden_layers\": %u, \"vocab_size\": %u, \"max_position_embeddings\": 262144,\n"
                           " \"num_attention_heads\": %u, \"num_key_value_heads\": %u, \"head_dim\": %u, \"full_attention_interval\": 4,\n"
                           " \"linear_num_key_heads\": %u, \"linear_num_value_heads\": %u, \"linear_key_head_dim\": %u,\n"
                           " \"linear_value_head_dim\": %u, \"linear_conv_kernel_dim\": 4, \"rms_norm_eps\": 1e-06,\n"
                           " \"num_experts\": %u, \"num_experts_per_tok\": %u, \"moe_intermediate_size\": %u,\n"
                           " \"shared_expert_intermediate_size\": %u, \"tie_word_embeddings\": false, \"eos_token_id\": %s,\n"
                           " \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0, \"partial_rotary_factor\": %u.%02u}}\n",
                           g->architecture, own, g->hidden, g->layers, g->vocab, g->q_heads, g->kv_heads, g->head_dim, g->k_heads, g->v_heads,
                           g->dk, g->dv, g->experts, g->top_k, g->inter, g->shared, g->streams ? "0" : "null", g->rotary / g->head_dim,
                           g->rotary * 100 / g->head_dim % 100);
    base_free(own);
    return text;
}

/* Family and parameters of a geometry, without a model. */
static int32_t describe(struct ifx_context *c, const struct geometry *g, char **config, struct model_on_disk *out)
{
    memset(out, 0, sizeof *out);
    *config = config_text(g);
    int32_t st = *config ? artifact_open_config(*config, &out->artifact) : IFX_ENOMEM;
    return st == IFX_OK ? model_on_disk_describe(c, out) : st;
}

/* ---- values ---- */

#define TABLE   (1u << 20)
#define RECORDS 32u /* different ones */

struct maker {
    struct cli *cli;
    const struct synthetic *s;
    struct geometry g;
    const struct ifx_model_desc *desc;
    float *normals;   /* [TABLE] of variance 1 */
    uint16_t *halves; /* the same in bf16 */
    double *bias;   /* [experts] by rank */
    uint32_t *rank; /* [experts] of the layer at hand */
    uint32_t rank_layer;
    uint8_t *records;
    uint64_t record_bytes, random;
};

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void fill_normals(struct maker *m)
{
    for (uint32_t i = 0; i < TABLE; i++) {
        uint64_t r = next_random(&m->random);
        int32_t sum = 0;
        for (int k = 0; k < 4; k++, r >>= 16)
            sum += (int32_t)(r & 0xffff) - 32768;
        m->normals[i] = (float)sum * (1.7320508f / 65536.0f);
        m->halves[i] = ifx_f32_to_bf16(m->normals[i]);
    }
}

/* A run of n numbers somewhere in the table. */
static const float *some_normals(struct maker *m, uint64_t n)
{
    return m->normals + (n < TABLE ? next_random(&m->random) % (TABLE - n) : 0);
}

/* Dimension 0 of the normalised residual stream, and the spread of the others. */
static double constant(uint32_t hidden)
{
    return sqrt(hidden) / 2;
}
static double after_norm(uint32_t hidden, double value)
{
    return value / sqrt(1 + constant(hidden) * constant(hidden) / hidden);
}

/* x with P(normal > x) = p. */
static double upper_quantile(double p)
{
    double lo = -9, hi = 9;
    for (int i = 0; i < 80; i++) {
        double mid = (lo + hi) / 2;
        if (0.5 * erfc(mid / sqrt(2)) > p)
            lo = mid;
        else
            hi = mid;
    }
    return (lo + hi) / 2;
}

/* Biases under which the expert of rank r is among the chosen with a probability in proportion to (r + 1)^-zipf, at most 0.95. */
static void fill_biases(struct maker *m)
{
    uint32_t n = m->g.experts;
    double noise = after_norm(m->g.hidden, 1), lo = 0, hi = 1e9;
    for (int i = 0; i < 100; i++) { /* the factor under which all probabilities add up to top_k */
        double factor = (lo + hi) / 2, sum = 0;
        for (uint32_t r = 0; r < n; r++)
            sum += fmin(0.95, factor * pow(r + 1.0, -m->s->zipf));
        if (sum < m->g.top_k && m->g.top_k < 0.95 * n)
            lo = factor;
        else
            hi = factor;
    }
    for (uint32_t r = 0; r < n; r++)
        m->bias[r] = m->s->zipf > 0 ? -noise * upper_quantile(fmin(0.95, hi * pow(r + 1.0, -m->s->zipf))) : 0;
}

/* Another order of popularity in each layer. */
static void fill_ranks(struct maker *m, uint32_t layer)
{
    uint64_t random = m->s->seed * 1000003u + layer;
    for (uint32_t i = 0; i < m->g.experts; i++)
        m->rank[i] = i;
    for (uint32_t i = m->g.experts; i > 1; i--) {
        uint32_t j = (uint32_t)(next_random(&random) % i), t = m->rank[i - 1];
        m->rank[i - 1] = m->rank[j];
        m->rank[j] = t;
    }
    m->rank_layer = layer;
}

static bool ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), k = strlen(suffix);
    return n >= k && strcmp(s + n - k, suffix) == 0;
}

static void vector_row(struct maker *m, const struct ifx_param *p, float *out)
{
    const float *v = some_normals(m, p->cols);
    double spread = 0.05, centre = 0;
    if (ends_with(p->name, "A_log"))
        spread = 0.5, centre = 0.5;
    else if (ends_with(p->name, "dt_bias"))
        spread = 0.5, centre = -2;
    else if (ends_with(p->name, "linear_attn.norm.weight"))
        centre = 1;
    else if (strstr(p->name, "conv1d"))
        spread = 0.5;
    for (uint32_t i = 0; i < p->cols; i++)
        out[i] = (float)(centre + spread * (double)v[i % (TABLE / 2)]);
    if (ends_with(p->name, "layernorm.weight") || ends_with(p->name, "hc_norm.weight"))
        for (uint32_t i = 0; i < p->cols; i += m->g.hidden)
            out[i] = 0;
}

static double router_bias(struct maker *m, const struct ifx_param *p, uint64_t row)
{
    uint32_t layer = 0;
    (void)sscanf(p->name, "layers.%u.", &layer);
    if (m->rank_layer != layer)
        fill_ranks(m, layer);
    return m->bias[m->rank[row]] / after_norm(m->g.hidden, constant(m->g.hidden));
}

static void make_row(void *ctx, uint32_t param, uint64_t row, void *out)
{
    struct maker *m = ctx;
    const struct ifx_param *p = &m->desc->params[param];
    if (p->kind == IFX_PARAM_VECTOR) {
        vector_row(m, p, out);
        return;
    }
    bool embed = p->flags & IFX_PARAM_EMBED, router = ends_with(p->name, "mlp.gate.weight");
    bool writes = ends_with(p->name, "o_proj.weight") || ends_with(p->name, "out_proj.weight") ||
                  ends_with(p->name, "shared_expert.down_proj.weight") || ends_with(p->name, "ple.value_proj.weight");
    /* The gate of the constant is one half in every stream. */
    bool still = ends_with(p->name, "input_mix_weight_up.weight") && row % m->g.hidden == 0;
    float spread = embed ? 1 : (float)((writes ? 0.05 : 1) / sqrt(p->cols));
    const float *v = some_normals(m, p->cols);
    uint16_t *w = out;
    if ((writes && row == 0) || still)
        spread = 0;
    for (uint32_t i = 0; i < p->cols; i++)
        w[i] = ifx_f32_to_bf16(spread * v[i % (TABLE / 2)]);
    if (embed)
        w[0] = ifx_f32_to_bf16((float)constant(m->g.hidden));
    else if (router)
        w[0] = ifx_f32_to_bf16((float)router_bias(m, p, row));
    else if (p->cols == m->g.hidden)
        w[0] = 0;
}

static void make_table_row(void *ctx, uint32_t table, uint64_t row, void *out)
{
    struct maker *m = ctx;
    uint32_t cols = m->desc->tables[table].cols;
    const uint16_t *v = m->halves + (row * 2654435761u + table) % (TABLE - cols);
    memcpy(out, v, cols * sizeof *v);
}

static const void *make_record(void *ctx, uint32_t moe_layer, uint32_t expert)
{
    const struct maker *m = ctx;
    return m->records + (moe_layer * 7u + expert) % RECORDS * m->record_bytes;
}

static int32_t pack_records(struct maker *m, const struct model_bank *b)
{
    uint64_t h = m->g.hidden, w = m->g.inter, n = h * w;
    float *rows = base_alloc(3 * n * sizeof *rows, 64);
    m->records = base_alloc(RECORDS * m->record_bytes, IFX_RECORD_ALIGN);
    int32_t st = rows && m->records ? IFX_OK : IFX_ENOMEM;
    for (uint32_t r = 0; r < RECORDS && st == IFX_OK; r++) {
        for (uint64_t i = 0; i < 3 * n; i += w) {
            const float *v = some_normals(m, w);
            float spread = (float)(i < 2 * n ? 1 / sqrt((double)h) : 0.05 / sqrt((double)w));
            for (uint64_t k = 0; k < w; k++)
                rows[i + k] = i == 2 * n ? 0 : spread * v[k];
        }
        for (uint64_t i = 0; i < 2 * n; i += h) /* gate and up leave the constant out */
            rows[i] = 0;
        st = b->ops->pack(b->bank, rows, rows + n, rows + 2 * n, m->records + r * m->record_bytes);
    }
    base_free(rows);
    return st;
}

static int32_t on_progress(void *ctx, uint64_t done, uint64_t total, const char *what)
{
    struct maker *m = ctx;
    (void)what;
    cli_progress(m->cli, "making", done, total);
    return base_cancelled();
}

int32_t synthetic_make(struct cli *cli, struct ifx_context *c, const struct synthetic *s, const char *path, bool force,
                       char **path_out, int *fd)
{
    struct maker m = {.cli = cli, .s = s, .g = s->shrink ? shrunk(&s->g) : s->g, .rank_layer = UINT32_MAX, .random = s->seed};
    struct model_on_disk d;
    struct model_bank b = {0};
    char *config = NULL;
    int32_t st = describe(c, &m.g, &config, &d);
    if (st == IFX_OK)
        st = model_bank_open(c, d.desc, s->format, &b);
    m.desc = d.desc;
    m.normals = base_alloc(TABLE * sizeof *m.normals, 64);
    m.halves = base_alloc(TABLE * sizeof *m.halves, 64);
    m.bias = base_calloc(m.g.experts, sizeof *m.bias);
    m.rank = base_calloc(m.g.experts, sizeof *m.rank);
    if (st == IFX_OK && (!m.normals || !m.halves || !m.bias || !m.rank))
        st = IFX_ENOMEM;
    if (st == IFX_OK) {
        struct ifx_expert_shape shape = {.struct_size = sizeof shape, .hidden = m.g.hidden, .inter = m.g.inter};
        fill_normals(&m);
        fill_biases(&m);
        st = registry_record_bytes(b.ops, &shape, &m.record_bytes);
    }
    if (st == IFX_OK)
        st = pack_records(&m, &b);
    if (st == IFX_OK) {
        struct artifact_make make = {.out_path = path, .force = force, .config = config, .architecture = m.g.architecture,
                                     .desc = d.desc, .format = s->format, .record_bytes = m.record_bytes, .row = make_row,
                                     .table_row = make_table_row, .record = make_record, .progress = on_progress, .ctx = &m};
        st = artifact_make(&make, fd);
        cli_progress_end(cli);
    }
    if (st == IFX_OK && path == NULL) {
        *path_out = base_format("/proc/self/fd/%d", *fd);
        st = *path_out ? IFX_OK : IFX_ENOMEM;
    }
    base_free(m.records);
    base_free(m.normals);
    base_free(m.halves);
    base_free(m.bias);
    base_free(m.rank);
    model_bank_close(&b);
    model_on_disk_close(&d);
    base_free(config);
    return st;
}

/* ---- sizes ---- */

int32_t geometry_sizes(struct ifx_context *c, const struct geometry *g, const char *format, struct geometry_sizes *out)
{
    const struct registry_plugin *bank;
    struct ifx_expert_shape shape = {.struct_size = sizeof shape, .hidden = g->hidden, .inter = g->inter};
    struct model_on_disk d;
    char *config = NULL;
    memset(out, 0, sizeof *out);
    int32_t st = describe(c, g, &config, &d);
    if (st == IFX_OK)
        st = registry_find(ifx_context_registry(c), IFX_KIND_EXPERT, format, &bank);
    if (st == IFX_OK)
        st = registry_record_bytes(bank->ops.expert, &shape, &out->record_bytes);
    for (uint32_t i = 0; st == IFX_OK && i < d.desc->n_params; i++) {
        const struct ifx_param *p = &d.desc->params[i];
        bool ends = p->flags & (IFX_PARAM_EMBED | IFX_PARAM_HEAD);
        if (p->kind == IFX_PARAM_MATRIX)
            *(ends ? &out->embed_values : &out->dense_values) += (uint64_t)p->rows * p->cols;
    }
    if (st == IFX_OK) {
        out->expert_values = 3ull * g->hidden * g->inter;
        out->kv_layers = d.desc->n_kv_layers;
        out->state_bytes = d.desc->state_bytes;
    }
    model_on_disk_close(&d);
    base_free(config);
    return st;
}

int32_t synthetic_device(struct ifx_context *c, const struct synthetic *s, const char *device, char **out, double *byte_scale)
{
    struct geometry small = shrunk(&s->g);
    struct geometry_sizes real, less;
    if (strncmp(device, "sim", 3) != 0 || (device[3] && device[3] != ','))
        return base_error(IFX_EUNSUPPORTED, "--synthetic with shrink: only --device sim,clock=virtual,... can count the sizes of the real "
                          "model");
    int32_t st = geometry_sizes(c, &s->g, s->format, &real);
    if (st == IFX_OK)
        st = geometry_sizes(c, &small, s->format, &less);
    if (st != IFX_OK)
        return st;
    *out = base_format("%s,small-record=%llu,large-record=%llu,expert-scale=%.6g,dense-scale=%.6g,column-scale=%.6g", device,
                       (unsigned long long)less.record_bytes, (unsigned long long)real.record_bytes,
                       (double)real.expert_values / (double)less.expert_values, (double)real.dense_values / (double)less.dense_values,
                       (double)s->g.hidden / small.hidden);
    *byte_scale = (double)real.record_bytes / (double)less.record_bytes;
    return *out ? IFX_OK : IFX_ENOMEM;
}
