/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.c - one step.  The residual R is `streams` wide and starts as the embedding in each; every block reads a gated mixture of
 * the streams and its output is injected into each of them by a learned weight:
 *   n = norm(R);  m = sigmoid(W_up silu(W_down n / S));  in = mean over streams of m n;  c = 2 sigmoid(W_inj n / S)
 *   R += c (outer) block(in)
 */
#include "qwen4_exp.h"

#include <string.h>

struct buffers {
    float *x;         /* R [n, streams * hidden] */
    float *normed;    /* of R; also the place that R's wanted columns move to */
    float *low, *mix; /* [n, lowrank], [n, streams * hidden] */
    float *inject;    /* [n, streams] */
    float *h;         /* a block's input [n, hidden] */
    float *y;         /* a block's output */
    struct delta_buffers delta;
    struct attention_buffers attention;
    struct ffn_buffers ffn;
    /* block selection */
    float *index_qk; /* [n, heads * d queries | d key] */
    int32_t *rows;
    uint32_t *n_rows;
    void *select_ws;
    /* n-gram embedding */
    float *e, *key, *query, *value, *gated, *conv;
};

/* One step being run. */
struct run {
    struct block_run block;
    const struct model *m;
    const struct layer *layer;
    struct buffers buf;
};

/* ---- workspace ---- */

static uint64_t largest_linear_ws(const struct model *m, struct ifx_device *dev, uint32_t n)
{
    const uint32_t widths[] = {m->hidden, m->streams * m->hidden, m->lowrank, m->attention.q_heads * m->attention.d,
                               m->delta.value_width, m->inter, m->n_ple ? m->ple_width : 1};
    uint64_t most = 0;
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        uint64_t bytes = dev->ops->linear_ws_bytes(dev, n, widths[i]);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Nobody sees more tokens than there are. */
static uint32_t rows_each(const struct model *m)
{
    uint32_t most = m->budget + m->ratio - 1;
    return most < m->desc.max_positions ? most : m->desc.max_positions;
}

static void select_lay_out(const struct model *m, struct ifx_device *dev, uint32_t n, struct block_cursor *c, struct buffers *b)
{
    struct ifx_block_select op = {.n = n, .heads = m->index_heads, .budget = m->budget, .max_tokens = m->desc.max_positions,
                                  .plane = {.ratio = m->ratio, .d = m->index_d}};
    b->index_qk = block_take_floats(c, n, (uint64_t)(m->index_heads + 1) * m->index_d);
    b->rows = block_take(c, (uint64_t)n * rows_each(m) * sizeof *b->rows);
    b->n_rows = block_take(c, (uint64_t)n * sizeof *b->n_rows);
    b->select_ws = block_take(c, dev->ops->block_select_ws_bytes(dev, &op));
}

static void ple_lay_out(const struct model *m, uint32_t n, struct block_cursor *c, struct buffers *b)
{
    uint64_t wide = (uint64_t)m->streams * m->hidden;
    b->e = block_take_floats(c, n, m->ple_width);
    b->key = block_take_floats(c, n, wide);
    b->query = block_take_floats(c, n, wide);
    b->value = block_take_floats(c, n, m->hidden);
    b->gated = block_take_floats(c, n, wide);
    b->conv = block_take_floats(c, n, wide);
}

/* Lays the workspace out at base (NULL: only its size counts) and returns its size. */
static uint64_t lay_out(const struct model *m, struct ifx_device *dev, uint32_t n, void *base, struct run *r)
{
    struct block_cursor c = {base, 0};
    struct buffers *b = &r->buf;
    uint64_t wide = (uint64_t)m->streams * m->hidden, most = 0;
    b->x = block_take_floats(&c, n, wide);
    b->normed = block_take_floats(&c, n, wide);
    b->low = block_take_floats(&c, n, m->lowrank);
    b->mix = block_take_floats(&c, n, wide);
    b->inject = block_take_floats(&c, n, m->streams);
    b->h = block_take_floats(&c, n, m->hidden);
    b->y = block_take_floats(&c, n, m->hidden);
    r->block.inv_freq = block_take_floats(&c, 1, m->attention.rotary / 2);
    r->block.linear_ws = block_take(&c, largest_linear_ws(m, dev, n));
    /* A layer's blocks share one region, since one is done before the next starts. */
    struct block_cursor region[4] = {c, c, c, c};
    delta_lay_out(&m->delta, dev, n, &region[0], &b->delta);
    attention_lay_out(&m->attention, n, &region[1], &b->attention);
    select_lay_out(m, dev, n, &region[1], b);
    ffn_lay_out(m->hidden, m->inter, true, n, &region[2], &b->ffn);
    if (m->n_ple)
        ple_lay_out(m, n, &region[3], b);
    for (int i = 0; i < 4; i++)
        most = region[i].at > most ? region[i].at : most;
    return most;
}

uint64_t qwen4_exp_workspace_bytes(void *model, struct ifx_device *dev, uint32_t n, uint32_t n_logits)
{
    struct run r;
    (void)n_logits; /* the wanted columns move within the buffers */
    return lay_out(model, dev, n, NULL, &r);
}

/* ---- helpers ---- */

/* y = norm over each stream of x, times 1 + w */
static int32_t norm_streams(const struct run *r, const float *x, uint32_t param, float *y)
{
    const struct model *m = r->m;
    struct ifx_rms_norm op = {.rows = (uint64_t)r->block.n * m->streams, .width = m->hidden, .w_rows = m->streams, .x = x,
                              .ldx = m->hidden, .w = block_vector(&r->block, param), .plus_one = 1.0f, .eps = m->eps, .y = y,
                              .ldy = m->hidden};
    return r->block.op->rms_norm(r->block.dev, r->block.s->stream, &op);
}

static int32_t add_to_streams(const struct run *r, const float *y)
{
    uint32_t wide = r->m->streams * r->m->hidden;
    struct ifx_add op = {.n = r->block.n, .width = wide, .x = y, .ldx = wide, .y = r->buf.x, .ldy = wide};
    return r->block.op->add(r->block.dev, r->block.s->stream, &op);
}

static int32_t observe(const struct run *r, int32_t layer)
{
    const struct ifx_services *sv = r->block.s->services;
    uint32_t wide = r->m->streams * r->m->hidden;
    return sv->observe ? sv->observe(sv, IFX_OBSERVE_HIDDEN, layer, r->buf.x, wide, r->block.n) : IFX_OK;
}

static int32_t embed(const struct run *r)
{
    const struct model *m = r->m;
    const struct ifx_step *s = r->block.s;
    for (uint32_t i = 0; i < m->streams; i++)
        TRY(r->block.op->embed(r->block.dev, s->stream, &s->weights[m->embed], s->tokens, s->n,
                               r->buf.x + (uint64_t)i * m->hidden, (uint64_t)m->streams * m->hidden));
    return IFX_OK;
}

/* ---- gated residual ---- */

/* h = the block's input, inject = its weights before the sigmoid */
static int32_t hyper_mix(const struct run *r, const struct hyper *p)
{
    const struct model *m = r->m;
    const struct buffers *b = &r->buf;
    const struct block_run *k = &r->block;
    uint32_t wide = m->streams * m->hidden;
    TRY(norm_streams(r, b->x, p->norm, b->normed));
    struct ifx_linear in = block_linear(k, b->normed, wide);
    block_linear_out(k, &in, p->down, b->low, 0);
    if (p != &m->last)
        block_linear_out(k, &in, p->inject, b->inject, 0);
    TRY(block_linear_run(k, &in));
    struct ifx_activate act = {.n = k->n, .width = m->lowrank, .act = IFX_ACT_SILU, .scale = 1.0f / (float)m->streams,
                               .x = b->low, .ldx = m->lowrank, .y = b->low, .ldy = m->lowrank};
    TRY(k->op->activate(k->dev, k->s->stream, &act));
    TRY(block_product(k, b->low, m->lowrank, p->up, b->mix, 0));
    struct ifx_stream_mix mix = {.n = k->n, .streams = m->streams, .width = m->hidden, .x = b->normed, .gate = b->mix,
                                 .ldx = wide, .ldg = wide, .y = b->h, .ldy = m->hidden};
    return k->op->stream_mix(k->dev, k->s->stream, &mix);
}

static int32_t hyper_inject(const struct run *r, const float *y)
{
    const struct model *m = r->m;
    struct ifx_stream_inject op = {.n = r->block.n, .streams = m->streams, .width = m->hidden,
                                   .scale = 1.0f / (float)m->streams, .x = y, .ldx = m->hidden, .inject = r->buf.inject,
                                   .ldi = m->streams, .y = r->buf.x, .ldy = (uint64_t)m->streams * m->hidden};
    return r->block.op->stream_inject(r->block.dev, r->block.s->stream, &op);
}

/* ---- n-gram embedding ---- */

static int32_t ple_conv(const struct run *r, const struct ple *p)
{
    const struct model *m = r->m;
    uint32_t wide = m->streams * m->hidden;
    for (uint32_t i = 0; i < r->block.s->n_segments; i++) {
        const struct ifx_segment *seg = &r->block.s->segments[i];
        uint64_t at = (uint64_t)seg->column0 * wide;
        struct ifx_conv op = {.n = seg->n, .channels = wide, .kernel = m->ple_kernel, .dilation = m->ngram.ngram_size,
                              .x = r->buf.key + at, .ldx = wide, .w = block_vector(&r->block, p->conv),
                              .state = (float *)seg->state + p->state, .y = r->buf.conv + at, .ldy = wide};
        TRY(r->block.op->conv(r->block.dev, r->block.s->stream, &op));
    }
    return IFX_OK;
}

/* e = the tokens' rows; k = norm(W_k e), q = norm(R); v = sigmoid(root of k . q) W_v e;  R += v + silu(conv(norm(v))) */
static int32_t ple(const struct run *r, const struct ple *p)
{
    const struct model *m = r->m;
    const struct buffers *b = &r->buf;
    const struct block_run *k = &r->block;
    const struct ifx_services *sv = k->s->services;
    uint32_t wide = m->streams * m->hidden;
    TRY(sv->table_rows(sv, p->table, b->e));
    struct ifx_linear in = block_linear(k, b->e, m->ple_width);
    block_linear_out(k, &in, p->key_proj, b->key, 0);
    block_linear_out(k, &in, p->value_proj, b->value, 0);
    TRY(block_linear_run(k, &in));
    TRY(norm_streams(r, b->key, p->norm_key, b->key));
    TRY(norm_streams(r, b->x, p->norm_query, b->query));
    struct ifx_stream_gate gate = {.n = k->n, .streams = m->streams, .width = m->hidden, .key = b->key, .query = b->query,
                                   .ldk = wide, .ldq = wide, .value = b->value, .ldv = m->hidden, .y = b->gated, .ldy = wide};
    TRY(k->op->stream_gate(k->dev, k->s->stream, &gate));
    TRY(norm_streams(r, b->gated, p->norm_conv, b->key)); /* the keys are spent */
    TRY(ple_conv(r, p));
    TRY(add_to_streams(r, b->gated));
    return add_to_streams(r, b->conv);
}

/* ---- sparse attention: gated attention over the tokens that the indexer picks ---- */

static int32_t select_rows(void *ctx, const struct block_run *k, const struct ifx_segment *seg, struct ifx_attention *call)
{
    const struct run *r = ctx;
    const struct model *m = r->m;
    const struct buffers *b = &r->buf;
    const struct indexer_layer *l = &r->layer->indexer;
    const struct ifx_services *sv = k->s->services;
    uint32_t width = (m->index_heads + 1) * m->index_d, each = rows_each(m);
    const float *qk = b->index_qk + (uint64_t)seg->column0 * width;
    struct ifx_index_append append = {.n = seg->n, .rotary = m->attention.rotary, .positions = k->s->positions + seg->column0,
                                      .k = qk + m->index_heads * m->index_d, .ldk = width, .w = block_vector(k, l->k_norm),
                                      .inv_freq = k->inv_freq, .eps = m->eps};
    TRY(sv->index_plane(sv, seg, call->kv_layer, &append.plane));
    TRY(k->op->index_append(k->dev, k->s->stream, &append));
    struct ifx_block_select op = {.n = seg->n, .heads = m->index_heads, .budget = m->budget,
                                  .max_tokens = (uint32_t)(seg->pos0 + seg->n), .plane = append.plane,
                                  .positions = append.positions, .q = qk, .ldq = width,
                                  .rows = b->rows + (uint64_t)seg->column0 * each, .ld_rows = each,
                                  .n_rows = b->n_rows + seg->column0, .ws = b->select_ws};
    TRY(k->op->block_select(k->dev, k->s->stream, &op));
    call->rows = op.rows;
    call->n_rows = op.n_rows;
    call->ld_rows = each;
    return IFX_OK;
}

static int32_t sparse_attention(struct run *r, const struct layer *l)
{
    const struct model *m = r->m;
    const struct buffers *b = &r->buf;
    const struct block_run *k = &r->block;
    uint32_t width = (m->index_heads + 1) * m->index_d;
    TRY(block_product(k, b->h, m->hidden, l->indexer.qk_proj, b->index_qk, 0));
    struct ifx_norm_rope q = {.n = k->n, .heads = m->index_heads, .d = m->index_d, .rotary = m->attention.rotary,
                              .x = b->index_qk, .ldx = width, .ldx_head = m->index_d, .w = block_vector(k, l->indexer.q_norm),
                              .eps = m->eps, .inv_freq = k->inv_freq, .positions = k->s->positions, .y = b->index_qk,
                              .ldy = width, .ldy_head = m->index_d};
    TRY(k->op->norm_rope(k->dev, k->s->stream, &q));
    r->layer = l;
    return attention_forward(k, &m->attention, &l->attention, &b->attention, NULL, b->h, select_rows, r, b->y, 0);
}

/* ---- the step ---- */

static int32_t mixer(struct run *r, const struct layer *l)
{
    const struct buffers *b = &r->buf;
    TRY(hyper_mix(r, &l->attn_hyper));
    if (l->linear_attention)
        TRY(delta_forward(&r->block, &r->m->delta, &l->delta, &b->delta, NULL, b->h, b->y, 0));
    else
        TRY(sparse_attention(r, l));
    return hyper_inject(r, b->y);
}

static int32_t mixture(const struct run *r, const struct layer *l, uint32_t index)
{
    TRY(hyper_mix(r, &l->mlp_hyper));
    TRY(mixture_forward(&r->block, r->m->inter, &l->ffn, index, &r->buf.ffn, r->buf.h));
    return hyper_inject(r, r->buf.ffn.routed);
}

static int32_t logits(struct run *r)
{
    if (r->block.n != r->block.s->n_logits)
        TRY(block_keep_wanted(&r->block, &r->buf.x, &r->buf.normed, (uint64_t)r->m->streams * r->m->hidden));
    TRY(hyper_mix(r, &r->m->last));
    return block_product(&r->block, r->buf.h, r->m->hidden, r->m->head, r->block.s->logits, 0);
}

int32_t qwen4_exp_forward(void *model, const struct ifx_step *step)
{
    const struct model *m = model;
    const struct ifx_services *sv = step->services;
    struct run r = {.block = {.s = step, .dev = step->dev, .op = step->dev->ops, .n = step->n, .hidden = m->hidden}, .m = m};
    const struct block_run *b = &r.block;
    bool keep = !(step->flags & IFX_STEP_ALL_COLUMNS) && step->n_logits < step->n;
    if (lay_out(m, step->dev, step->n, step->ws, &r) > step->ws_bytes)
        return m->host->error(m->host, IFX_EINTERNAL, "qwen4_exp: workspace too small for %u columns", step->n);
    TRY(b->op->copy(b->dev, step->stream, b->inv_freq, m->inv_freq, m->attention.rotary / 2 * sizeof(float),
                    IFX_COPY_TO_DEVICE));
    TRY(embed(&r));
    TRY(observe(&r, -1));
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const struct layer *l = &m->layers[i];
        if (sv->cancelled && sv->cancelled(sv))
            return IFX_ECANCELLED;
        if (l->ple.present)
            TRY(ple(&r, &l->ple));
        TRY(mixer(&r, l));
        if (keep && i + 1 == m->n_layers) {
            if (!step->n_logits)
                return IFX_OK;
            TRY(block_keep_wanted(&r.block, &r.buf.x, &r.buf.normed, (uint64_t)m->streams * m->hidden));
        }
        TRY(mixture(&r, l, i));
        TRY(observe(&r, (int32_t)i));
    }
    return step->n_logits ? logits(&r) : IFX_OK;
}

void qwen4_exp_row_ids(void *model, uint32_t table, const int32_t *tokens, uint32_t history, uint32_t n, int64_t *ids)
{
    const struct model *m = model;
    ngram_ids(&m->ngrams[table], tokens, history, n, ids);
}
