/* SPDX-License-Identifier: Apache-2.0
 *
 * config.c - from config.json to sizes, parameters, state and tables.
 */
#include "qwen4_exp.h"
#include "reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_LAYERS        1024
#define MAX_WIDTH         (1 << 20)
#define PARAMS_EACH_LAYER 32
#define INTS_EACH_TABLE   3
#define DEFAULT_SEED      1234

struct reader {
    struct config_reader c;
    struct model *m;
};

/* Features that a config of this family may name and that this code does not have. */
static int32_t refuse_unsupported(const struct reader *r)
{
    uint64_t count = 0;
    uint32_t one = 1;
    TRY(config_only_string(&r->c, "hidden_act", "silu"));
    TRY(config_only_bool(&r->c, "attention_bias", false));
    TRY(config_only_bool(&r->c, "attn_output_gate", true));
    TRY(config_only_default_rope(&r->c));
    TRY(config_maybe_u32(&r->c, "indexer_kv_heads", 0, UINT32_MAX, &one));
    if (one != 1)
        return r->c.host->error(r->c.host, IFX_EUNSUPPORTED, "config.json: \"indexer_kv_heads\" is %u; only 1 is implemented", one);
    int32_t st = r->c.config->get_count(r->c.config, "mlp_only_layers", &count);
    if (st && st != IFX_ENOTFOUND)
        return st;
    if (count)
        return config_bad(&r->c, "mlp_only_layers", "is not empty; only models whose every layer has experts are implemented");
    return IFX_OK;
}

static int32_t read_sizes(const struct reader *r)
{
    struct model *m = r->m;
    const struct {
        const char *key;
        int64_t min, max;
        uint32_t *out;
    } fields[] = {
        {"vocab_size", 1, 1 << 24, &m->vocab},
        {"hidden_size", 1, MAX_WIDTH, &m->hidden},
        {"num_hidden_layers", 1, MAX_LAYERS, &m->n_layers},
        {"max_position_embeddings", 1, INT32_MAX, &m->desc.max_positions},
        {"num_experts", 1, 65536, &m->experts},
        {"num_experts_per_tok", 1, 32, &m->top_k},
        {"moe_intermediate_size", 1, MAX_WIDTH, &m->expert_inter},
        {"shared_expert_intermediate_size", 1, MAX_WIDTH, &m->inter},
        {"hc_count", 1, 8, &m->streams},
        {"hc_lowrank", 1, MAX_WIDTH, &m->lowrank},
        {"indexer_n_heads", 1, 256, &m->index_heads},
        {"indexer_head_dim", 8, 512, &m->index_d},
        {"indexer_budget", 1, 1 << 20, &m->budget},
        {"indexer_compress_ratio", 1, 16, &m->ratio},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        TRY(config_need_u32(&r->c, fields[i].key, fields[i].min, fields[i].max, fields[i].out));
    if (m->top_k > m->experts)
        return config_bad(&r->c, "num_experts_per_tok", "is larger than \"num_experts\"");
    if ((uint64_t)m->streams * m->hidden > MAX_WIDTH)
        return config_bad(&r->c, "hc_count", "times \"hidden_size\" is more than 1048576");
    if (m->ratio & (m->ratio - 1))
        return config_bad(&r->c, "indexer_compress_ratio", "must be a power of two");
    if (m->budget % m->ratio)
        return config_bad(&r->c, "indexer_budget", "must be a multiple of \"indexer_compress_ratio\"");
    return config_read_heads(&r->c, &m->attention, &m->delta);
}

static int32_t read_switches(const struct reader *r)
{
    struct model *m = r->m;
    const char *gate;
    m->renormalise = 1;
    int32_t st = r->c.config->get_bool(r->c.config, "norm_topk_prob", &m->renormalise);
    if (st && st != IFX_ENOTFOUND)
        return st;
    st = r->c.config->get_string(r->c.config, "output_gate_type", &gate);
    if (st == IFX_ENOTFOUND)
        return config_bad(&r->c, "output_gate_type", "is missing; this architecture needs it");
    if (st)
        return st;
    if (strcmp(gate, "sigmoid") != 0 && strcmp(gate, "silu") != 0 && strcmp(gate, "swish") != 0)
        return r->c.host->error(r->c.host, IFX_EUNSUPPORTED,
                                "config.json: \"output_gate_type\" is \"%.64s\"; \"sigmoid\" and \"silu\" are implemented", gate);
    m->delta.act = strcmp(gate, "sigmoid") == 0 ? IFX_ACT_SIGMOID : IFX_ACT_SILU;
    return IFX_OK;
}

/* ---- layers ---- */

/* The first of eos_token_id, which is a number or a list. */
static int32_t read_eos(const struct reader *r)
{
    int64_t v;
    int32_t st = r->c.config->get_int_at(r->c.config, "eos_token_id", 0, &v);
    if (st)
        st = r->c.config->get_int(r->c.config, "eos_token_id", &v);
    if (st == IFX_ENOTFOUND)
        return config_bad(&r->c, "eos_token_id", "is missing; the n-gram embedding needs it");
    if (st)
        return st;
    if (v < 0 || v >= r->m->vocab)
        return config_bad(&r->c, "eos_token_id", "is outside the vocabulary");
    r->m->ngram.eos = (int32_t)v;
    return IFX_OK;
}

static int32_t read_ngram_rule(const struct reader *r)
{
    struct model *m = r->m;
    struct ngram_rule *g = &m->ngram;
    uint32_t base, divisible = 1, seed = DEFAULT_SEED;
    TRY(config_need_u32(&r->c, "ngram_size", 2, NGRAM_MAX_SIZE, &g->ngram_size));
    TRY(config_need_u32(&r->c, "heads_per_ngram", 1, NGRAM_MAX_HEADS / (g->ngram_size - 1), &g->heads_per_ngram));
    TRY(config_need_u32(&r->c, "ngram_vocab_size_base", 1, INT32_MAX, &base));
    TRY(config_maybe_u32(&r->c, "make_ngram_vocab_size_divisible_by", 1, 1 << 24, &divisible));
    TRY(config_maybe_u32(&r->c, "seed", 0, UINT32_MAX, &seed));
    TRY(config_need_u32(&r->c, "ple_embed_dim", 1, MAX_WIDTH, &m->ple_width));
    TRY(config_need_u32(&r->c, "ple_conv_kernel_size", 2, 8, &m->ple_kernel));
    TRY(read_eos(r));
    g->vocab = m->vocab;
    g->base = base;
    g->seed = seed;
    g->divisible_by = divisible;
    if (m->ple_width % ((g->ngram_size - 1) * g->heads_per_ngram))
        return config_bad(&r->c, "ple_embed_dim", "must be a multiple of (\"ngram_size\" - 1) * \"heads_per_ngram\"");
    return IFX_OK;
}

/* ple_layer_ids counts layers from 1. */
static int32_t read_ple_layers(const struct reader *r)
{
    struct model *m = r->m;
    uint64_t count = 0;
    int64_t id = 0, before = 0;
    int32_t st = r->c.config->get_count(r->c.config, "ple_layer_ids", &count);
    if (st)
        return st == IFX_ENOTFOUND ? IFX_OK : st;
    if (count > m->n_layers)
        return config_bad(&r->c, "ple_layer_ids", "names more layers than there are");
    for (uint64_t i = 0; i < count; i++, before = id) {
        st = r->c.config->get_int_at(r->c.config, "ple_layer_ids", i, &id);
        if (st == IFX_ENOTFOUND || (!st && (id <= before || id > m->n_layers)))
            return config_bad(&r->c, "ple_layer_ids", "must be layer numbers from 1 on, ascending");
        if (st)
            return st;
        m->layers[id - 1].ple.present = 1;
        m->layers[id - 1].ple.table = m->n_ple++;
    }
    return m->n_ple ? read_ngram_rule(r) : IFX_OK;
}

/* ---- declaring ---- */

static void declare_hyper(const struct model *m, struct param_list *p, const char *prefix, bool inject, struct hyper *h)
{
    uint32_t wide = m->streams * m->hidden;
    h->norm = PARAM_VECTOR(p, wide, "%s.hc_norm.weight", prefix);
    h->down = PARAM_MATRIX(p, IFX_PARAM_SENSITIVE, m->lowrank, wide, "%s.input_mix_weight_down.weight", prefix);
    h->up = PARAM_MATRIX(p, IFX_PARAM_SENSITIVE, wide, m->lowrank, "%s.input_mix_weight_up.weight", prefix);
    if (inject)
        h->inject = PARAM_MATRIX(p, IFX_PARAM_SENSITIVE, m->streams, wide, "%s.block_inject_weight.weight", prefix);
}

static void declare_ints(struct model *m, uint32_t table, uint32_t layer)
{
    const struct ngram *g = &m->ngrams[table];
    const struct {
        const char *name;
        const int64_t *values;
        uint32_t count;
    } all[INTS_EACH_TABLE] = {
        {"layer_multipliers", g->multipliers, g->size},
        {"ngram_heads_vocab_sizes", g->sizes, g->heads},
        {"ngram_heads_offsets", g->offsets, g->heads},
    };
    for (uint32_t i = 0; i < INTS_EACH_TABLE; i++) {
        struct ifx_int_tensor *t = &m->ints[m->desc.n_ints++];
        snprintf(t->name, sizeof t->name, "layers.%u.ple.ple_embedding.%s", layer, all[i].name);
        t->values = all[i].values;
        t->count = all[i].count;
    }
}

static void declare_ple(struct model *m, struct param_list *p, uint32_t i)
{
    struct ple *l = &m->layers[i].ple;
    struct ifx_row_table *t = &m->tables[l->table];
    struct ngram *g = &m->ngrams[l->table];
    uint32_t wide = m->streams * m->hidden;
    ngram_make(&m->ngram, l->table, l->table ? g - 1 : NULL, g);
    snprintf(t->name, sizeof t->name, "layers.%u.ple.ple_embedding.ngram_embedding", i);
    t->rows = (uint64_t)g->rows;
    t->cols = m->ple_width / g->heads;
    t->per_token = g->heads;
    declare_ints(m, l->table, i);
    l->key_proj = PARAM_MATRIX(p, 0, wide, m->ple_width, "layers.%u.ple.key_proj.weight", i);
    l->value_proj = PARAM_MATRIX(p, 0, m->hidden, m->ple_width, "layers.%u.ple.value_proj.weight", i);
    l->norm_key = PARAM_VECTOR(p, wide, "layers.%u.ple.norm_key.weight", i);
    l->norm_query = PARAM_VECTOR(p, wide, "layers.%u.ple.norm_query.weight", i);
    l->norm_conv = PARAM_VECTOR(p, wide, "layers.%u.ple.norm_conv.weight", i);
    l->conv = PARAM_VECTOR(p, wide * m->ple_kernel, "layers.%u.ple.conv1d.weight", i);
}

static void declare_indexer(const struct model *m, struct param_list *p, uint32_t i, struct indexer_layer *l)
{
    l->qk_proj = PARAM_MATRIX(p, IFX_PARAM_SENSITIVE, (m->index_heads + 1) * m->index_d, m->hidden,
                              "layers.%u.self_attn.indexer.index_qk_proj.weight", i);
    l->q_norm = PARAM_VECTOR(p, m->index_d, "layers.%u.self_attn.indexer.q_layernorm.weight", i);
    l->k_norm = PARAM_VECTOR(p, m->index_d, "layers.%u.self_attn.indexer.k_layernorm.weight", i);
}

static void declare_layer(struct model *m, struct param_list *p, uint32_t i, uint64_t *state)
{
    struct layer *l = &m->layers[i];
    struct ifx_moe_layer *e = &m->moe[i];
    char prefix[64];
    if (l->ple.present)
        declare_ple(m, p, i);
    snprintf(prefix, sizeof prefix, "layers.%u.attn_hyper_connection", i);
    declare_hyper(m, p, prefix, true, &l->attn_hyper);
    if (l->linear_attention) {
        delta_declare(p, &m->delta, m->hidden, i, &l->delta, state);
    } else {
        l->attention.index = m->desc.n_kv_layers++;
        attention_declare(p, &m->attention, m->hidden, i, &l->attention);
        declare_indexer(m, p, i, &l->indexer);
    }
    snprintf(prefix, sizeof prefix, "layers.%u.mlp_hyper_connection", i);
    declare_hyper(m, p, prefix, true, &l->mlp_hyper);
    e->experts = m->experts;
    e->top_k = m->top_k;
    e->hidden = m->hidden;
    e->inter = m->expert_inter;
    e->renormalise = m->renormalise;
    mixture_declare(p, m->inter, i, e, &l->ffn);
}

static int32_t declare(const struct reader *r)
{
    struct model *m = r->m;
    struct param_list p = {m->params, 0};
    uint32_t tied = 0;
    uint64_t state = 0;
    m->embed = PARAM_MATRIX(&p, IFX_PARAM_EMBED, m->vocab, m->hidden, "embed_tokens.weight");
    for (uint32_t i = 0; i < m->n_layers; i++)
        declare_layer(m, &p, i, &state);
    uint64_t window = (uint64_t)m->streams * m->hidden * (m->ple_kernel - 1) * m->ngram.ngram_size;
    for (uint32_t i = 0; i < m->n_layers; i++)
        if (m->layers[i].ple.present)
            m->layers[i].ple.state = config_place_state(&state, window);
    declare_hyper(m, &p, "hyper_connection_mixer", false, &m->last);
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

/* ---- opening ---- */

static int32_t allocate_layers(const struct reader *r)
{
    struct model *m = r->m;
    uint64_t n_params = 8 + (uint64_t)m->n_layers * PARAMS_EACH_LAYER;
    m->layers = config_zeroed(&r->c, m->n_layers, sizeof *m->layers);
    m->params = config_zeroed(&r->c, n_params, sizeof *m->params);
    m->moe = config_zeroed(&r->c, m->n_layers, sizeof *m->moe);
    return m->layers && m->params && m->moe ? IFX_OK : IFX_ENOMEM;
}

static int32_t allocate_tables(const struct reader *r)
{
    struct model *m = r->m;
    m->tables = config_zeroed(&r->c, m->n_ple, sizeof *m->tables);
    m->ints = config_zeroed(&r->c, (uint64_t)m->n_ple * INTS_EACH_TABLE, sizeof *m->ints);
    m->ngrams = config_zeroed(&r->c, m->n_ple, sizeof *m->ngrams);
    return m->tables && m->ints && m->ngrams ? IFX_OK : IFX_ENOMEM;
}

static int32_t check_indexer(const struct reader *r)
{
    const struct model *m = r->m;
    if (m->attention.rotary > m->index_d)
        return config_bad(&r->c, "indexer_head_dim", "is smaller than the rotated dimensions of a head");
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
    d->n_moe = m->n_layers;
    d->moe = m->moe;
    d->n_kv_heads = m->attention.kv_heads;
    d->head_dim = m->attention.d;
    d->n_q_heads = m->attention.q_heads;
    d->residual_width = m->streams * m->hidden;
    d->index_dim = d->n_kv_layers ? m->index_d : 0;
    d->index_ratio = m->ratio;
    d->index_rows = m->budget + m->ratio - 1;
    d->tables = m->tables;
    d->ints = m->ints;
    d->n_tables = m->n_ple;
    d->history = m->n_ple ? m->ngram.ngram_size - 1 : 0;
}

static int32_t read_all(const struct reader *r)
{
    struct model *m = r->m;
    TRY(refuse_unsupported(r));
    TRY(read_sizes(r));
    TRY(read_switches(r));
    TRY(config_read_reals(&r->c, 1.0, &m->attention, &m->delta, &m->eps, &m->inv_freq));
    TRY(check_indexer(r));
    TRY(allocate_layers(r));
    TRY(config_read_pattern(&r->c, m->n_layers, "qwen_sparse_attention", &m->layers[0].linear_attention, sizeof *m->layers));
    TRY(read_ple_layers(r));
    TRY(allocate_tables(r));
    return declare(r);
}

int32_t qwen4_exp_open(const struct ifx_host *host, const struct ifx_options *options, const struct ifx_config *config,
                       void **out)
{
    (void)options;
    struct model *m = host->alloc(host, sizeof *m, 64);
    if (!m)
        return IFX_ENOMEM;
    memset(m, 0, sizeof *m);
    m->host = host;
    struct reader r = {{host, config}, m};
    int32_t st = read_all(&r);
    if (st) {
        qwen4_exp_close(m);
        return st;
    }
    fill_desc(m);
    *out = m;
    return IFX_OK;
}

void qwen4_exp_close(void *model)
{
    struct model *m = model;
    if (!m)
        return;
    const struct ifx_host *host = m->host;
    void *const all[] = {m->inv_freq, m->layers, m->params, m->moe, m->tables, m->ints, m->ngrams};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        host->free(host, all[i]);
    host->free(host, m);
}
