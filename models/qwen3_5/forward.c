/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.c - one step: x = embed(t); each layer: x += mixer(norm1(x)); x += ffn(norm2(x)); logits = head(norm(x)).
 */
#include "qwen3_5.h"

#include <string.h>

#define TRY(call)           \
    do {                    \
        int32_t st_ = call; \
        if (st_)            \
            return st_;     \
    } while (0)

/* The workspace of a step.  n columns; a layer's blocks share one region, since one is done before the next starts. */
struct buffers {
    float *x; /* residual [n, hidden] */
    float *h; /* a block's input [n, hidden] */
    float *inv_freq;
    void *linear_ws;
    /* gated delta net */
    float *qkv, *z, *b, *a, *conv, *g, *beta;
    void *delta_ws;
    /* gated attention: per head [query | gate] */
    float *qg, *k, *v, *attn;
    /* feed-forward */
    float *gate, *up, *ffn, *routed, *shared_gate;
};

/* One step being run. */
struct run {
    const struct model *m;
    const struct ifx_step *s;
    struct ifx_device *dev;
    const struct ifx_device_ops *op;
    uint32_t n; /* columns still computed: all, and after the last mixer those whose logits are wanted */
    struct buffers buf;
};

/* ---- workspace ---- */

struct cursor {
    uint8_t *base;
    uint64_t at;
};

static void *take(struct cursor *c, uint64_t bytes)
{
    void *p = c->base ? c->base + c->at : NULL;
    c->at += (bytes + 63) / 64 * 64;
    return p;
}

static float *take_floats(struct cursor *c, uint64_t n, uint64_t width)
{
    return take(c, n * width * sizeof(float));
}

static struct ifx_gated_delta delta_geometry(const struct model *m, uint32_t n)
{
    struct ifx_gated_delta op = {.n = n, .k_heads = m->k_heads, .v_heads = m->v_heads, .dk = m->dk, .dv = m->dv};
    op.ldq = op.ldk = op.ldv = m->channels;
    op.ldo = m->value_width;
    return op;
}

static uint64_t largest_linear_ws(const struct model *m, struct ifx_device *dev, uint32_t n)
{
    const uint32_t widths[] = {m->hidden, m->q_heads * m->head_dim, m->value_width, m->inter};
    uint64_t most = 0;
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        uint64_t bytes = dev->ops->linear_ws_bytes(dev, n, widths[i]);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Lays the workspace out at base (NULL: only its size counts) and returns its size. */
static uint64_t lay_out(const struct model *m, struct ifx_device *dev, uint32_t n, void *base, struct buffers *b)
{
    struct ifx_gated_delta delta = delta_geometry(m, n);
    struct cursor c = {base, 0};
    b->x = take_floats(&c, n, m->hidden);
    b->h = take_floats(&c, n, m->hidden);
    b->inv_freq = take_floats(&c, 1, m->rotary / 2);
    b->linear_ws = take(&c, largest_linear_ws(m, dev, n));

    struct cursor d = c;
    b->qkv = take_floats(&d, n, m->channels);
    b->z = take_floats(&d, n, m->value_width);
    b->b = take_floats(&d, n, m->v_heads);
    b->a = take_floats(&d, n, m->v_heads);
    b->conv = take_floats(&d, n, m->channels);
    b->g = take_floats(&d, n, m->v_heads);
    b->beta = take_floats(&d, n, m->v_heads);
    b->delta_ws = take(&d, dev->ops->gated_delta_ws_bytes(dev, &delta));

    struct cursor a = c;
    b->qg = take_floats(&a, n, 2ull * m->q_heads * m->head_dim);
    b->k = take_floats(&a, n, (uint64_t)m->kv_heads * m->head_dim);
    b->v = take_floats(&a, n, (uint64_t)m->kv_heads * m->head_dim);
    b->attn = take_floats(&a, n, (uint64_t)m->q_heads * m->head_dim);

    struct cursor f = c;
    b->gate = take_floats(&f, n, m->inter);
    b->up = take_floats(&f, n, m->inter);
    if (m->experts) {
        b->ffn = take_floats(&f, n, m->hidden);
        b->routed = take_floats(&f, n, m->hidden);
        b->shared_gate = take_floats(&f, n, 1);
    }

    uint64_t most = d.at > a.at ? d.at : a.at;
    return f.at > most ? f.at : most;
}

uint64_t qwen3_5_workspace_bytes(void *model, struct ifx_device *dev, uint32_t n, uint32_t n_logits)
{
    struct buffers b;
    (void)n_logits; /* the wanted columns are normed in h */
    return lay_out(model, dev, n, NULL, &b);
}

/* ---- helpers ---- */

static const float *vector(const struct run *r, uint32_t param)
{
    return r->s->weights[param].data;
}

static struct ifx_linear linear_op(const struct run *r, const float *x, uint32_t cols)
{
    struct ifx_linear op;
    memset(&op, 0, sizeof op);
    op.n = r->n;
    op.cols = cols;
    op.x = x;
    op.ldx = cols;
    op.ws = r->buf.linear_ws;
    return op;
}

static void linear_out(const struct run *r, struct ifx_linear *op, uint32_t param, float *y, uint32_t accumulate)
{
    op->out[op->count].w = r->s->weights[param];
    op->out[op->count].y = y;
    op->out[op->count].ldy = r->s->weights[param].rows;
    op->out[op->count].accumulate = accumulate;
    op->count++;
}

static int32_t run_linear(const struct run *r, const struct ifx_linear *op)
{
    return r->op->linear(r->dev, r->s->stream, op);
}

/* y = norm(x) (1 + w) over n columns */
static int32_t norm(const struct run *r, uint32_t n, const float *x, uint32_t param, float *y)
{
    const struct model *m = r->m;
    struct ifx_rms_norm op = {.rows = n, .width = m->hidden, .w_rows = 1, .x = x, .ldx = m->hidden, .w = vector(r, param),
                              .plus_one = 1.0f, .eps = m->eps, .y = y, .ldy = m->hidden};
    return r->op->rms_norm(r->dev, r->s->stream, &op);
}

static int32_t observe(const struct run *r, int32_t layer)
{
    const struct ifx_services *sv = r->s->services;
    return sv->observe ? sv->observe(sv, IFX_OBSERVE_HIDDEN, layer, r->buf.x, r->m->hidden, r->n) : IFX_OK;
}

/* ---- gated delta net ---- */

/* The parts that run along a sequence: convolution and delta rule. */
static int32_t delta_segment(const struct run *r, const struct layer *l, const struct ifx_segment *seg)
{
    const struct model *m = r->m;
    const struct buffers *b = &r->buf;
    float *state = seg->state;
    uint64_t row = (uint64_t)seg->column0 * m->channels;
    struct ifx_conv conv = {.n = seg->n, .channels = m->channels, .kernel = m->kernel, .x = b->qkv + row,
                            .ldx = m->channels, .w = vector(r, l->conv), .state = state + l->state_conv,
                            .y = b->conv + row, .ldy = m->channels};
    TRY(r->op->conv(r->dev, r->s->stream, &conv));
    struct ifx_gated_delta delta = delta_geometry(m, seg->n);
    delta.q = b->conv + row;
    delta.k = delta.q + m->key_width;
    delta.v = delta.k + m->key_width;
    delta.g = b->g + (uint64_t)seg->column0 * m->v_heads;
    delta.beta = b->beta + (uint64_t)seg->column0 * m->v_heads;
    delta.state = state + l->state_s;
    /* The convolution's input is spent: its place holds the output. */
    delta.out = b->qkv + (uint64_t)seg->column0 * m->value_width;
    delta.ws = b->delta_ws;
    return r->op->gated_delta(r->dev, r->s->stream, &delta);
}

static int32_t delta_net(const struct run *r, const struct layer *l)
{
    const struct model *m = r->m;
    const struct buffers *b = &r->buf;
    struct ifx_linear in = linear_op(r, b->h, m->hidden);
    linear_out(r, &in, l->in_qkv, b->qkv, 0);
    linear_out(r, &in, l->in_z, b->z, 0);
    linear_out(r, &in, l->in_b, b->b, 0);
    linear_out(r, &in, l->in_a, b->a, 0);
    TRY(run_linear(r, &in));
    struct ifx_gdn_gate gate = {.n = r->n, .heads = m->v_heads, .a = b->a, .b = b->b, .lda = m->v_heads,
                                .ldb = m->v_heads, .a_log = vector(r, l->a_log), .dt_bias = vector(r, l->dt_bias),
                                .g = b->g, .beta = b->beta};
    TRY(r->op->gdn_gate(r->dev, r->s->stream, &gate));
    for (uint32_t i = 0; i < r->s->n_segments; i++)
        TRY(delta_segment(r, l, &r->s->segments[i]));
    float *o = b->qkv;
    struct ifx_gated_norm gn = {.n = r->n, .heads = m->v_heads, .width = m->dv, .act = IFX_ACT_SILU, .x = o, .z = b->z,
                                .w = vector(r, l->norm), .ldx = m->value_width, .ldz = m->value_width, .eps = m->eps,
                                .y = o, .ldy = m->value_width};
    TRY(r->op->gated_norm(r->dev, r->s->stream, &gn));
    struct ifx_linear out = linear_op(r, o, m->value_width);
    linear_out(r, &out, l->out_proj, b->x, 1);
    return run_linear(r, &out);
}

/* ---- gated attention ---- */

static int32_t norm_rope(const struct run *r, float *x, uint32_t heads, uint64_t ld, uint64_t ld_head, uint32_t param)
{
    const struct model *m = r->m;
    struct ifx_norm_rope op = {.n = r->n, .heads = heads, .d = m->head_dim, .rotary = m->rotary, .x = x, .ldx = ld,
                               .ldx_head = ld_head, .w = vector(r, param), .eps = m->eps, .inv_freq = r->buf.inv_freq,
                               .positions = r->s->positions, .y = x, .ldy = ld, .ldy_head = ld_head};
    return r->op->norm_rope(r->dev, r->s->stream, &op);
}

static int32_t attention(const struct run *r, const struct layer *l)
{
    const struct model *m = r->m;
    const struct buffers *b = &r->buf;
    const struct ifx_services *sv = r->s->services;
    uint32_t d = m->head_dim, q_width = m->q_heads * d, kv_width = m->kv_heads * d;
    struct ifx_linear in = linear_op(r, b->h, m->hidden);
    linear_out(r, &in, l->q_proj, b->qg, 0);
    linear_out(r, &in, l->k_proj, b->k, 0);
    linear_out(r, &in, l->v_proj, b->v, 0);
    TRY(run_linear(r, &in));
    uint64_t ldq = 2ull * q_width, ldq_head = 2ull * d;
    TRY(norm_rope(r, b->qg, m->q_heads, ldq, ldq_head, l->q_norm));
    TRY(norm_rope(r, b->k, m->kv_heads, kv_width, d, l->k_norm));
    float scale = (float)(1.0 / __builtin_sqrt((double)d));
    for (uint32_t i = 0; i < r->s->n_segments; i++) {
        const struct ifx_segment *seg = &r->s->segments[i];
        uint64_t c = seg->column0;
        struct ifx_attention call = {.segment = seg, .kv_layer = l->index, .scale = scale, .q = b->qg + c * ldq, .ldq = ldq,
                                     .ldq_head = ldq_head, .k = b->k + c * kv_width, .ldk = kv_width,
                                     .v = b->v + c * kv_width, .ldv = kv_width, .out = b->attn + c * q_width, .ldo = q_width};
        TRY(sv->attention(sv, &call));
    }
    struct ifx_sigmoid_gate gate = {.n = r->n, .heads = m->q_heads, .d = d, .x = b->attn, .ldx = q_width,
                                    .gate = b->qg + d, .ldg = ldq, .ldg_head = ldq_head};
    TRY(r->op->sigmoid_gate(r->dev, r->s->stream, &gate));
    struct ifx_linear out = linear_op(r, b->attn, q_width);
    linear_out(r, &out, l->o_proj, b->x, 1);
    return run_linear(r, &out);
}

/* ---- feed-forward ---- */

static int32_t swiglu(const struct run *r)
{
    const struct buffers *b = &r->buf;
    uint32_t w = r->m->inter;
    struct ifx_swiglu op = {.n = r->n, .width = w, .gate = b->gate, .up = b->up, .ldg = w, .ldu = w, .y = b->gate,
                            .ldy = w};
    return r->op->swiglu(r->dev, r->s->stream, &op);
}

static int32_t add_to_residual(const struct run *r, const float *y, const float *gate)
{
    uint32_t h = r->m->hidden;
    struct ifx_add op = {.n = r->n, .width = h, .x = y, .ldx = h, .gate = gate, .ldg = 1, .y = r->buf.x, .ldy = h};
    return r->op->add(r->dev, r->s->stream, &op);
}

static int32_t dense_ffn(const struct run *r, const struct layer *l)
{
    const struct buffers *b = &r->buf;
    struct ifx_linear in = linear_op(r, b->h, r->m->hidden);
    linear_out(r, &in, l->gate_proj, b->gate, 0);
    linear_out(r, &in, l->up_proj, b->up, 0);
    TRY(run_linear(r, &in));
    TRY(swiglu(r));
    struct ifx_linear out = linear_op(r, b->gate, r->m->inter);
    linear_out(r, &out, l->down_proj, b->x, 1);
    return run_linear(r, &out);
}

/* x += routed(h) + sigmoid(h . w_sg) * shared_expert(h) */
static int32_t moe(const struct run *r, const struct layer *l, uint32_t index)
{
    const struct buffers *b = &r->buf;
    const struct ifx_services *sv = r->s->services;
    uint32_t h = r->m->hidden;
    TRY(sv->moe(sv, index, b->h, h, r->n, b->routed, h));
    struct ifx_linear in = linear_op(r, b->h, h);
    linear_out(r, &in, l->gate_proj, b->gate, 0);
    linear_out(r, &in, l->up_proj, b->up, 0);
    linear_out(r, &in, l->shared_gate, b->shared_gate, 0);
    TRY(run_linear(r, &in));
    TRY(swiglu(r));
    struct ifx_linear out = linear_op(r, b->gate, r->m->inter);
    linear_out(r, &out, l->down_proj, b->ffn, 0);
    TRY(run_linear(r, &out));
    TRY(add_to_residual(r, b->routed, NULL));
    return add_to_residual(r, b->ffn, b->shared_gate);
}

/* ---- the step ---- */

/* Calls fn for each run of consecutive wanted columns: rows [first, first + count) become rows from `to` on. */
static int32_t each_wanted_run(struct run *r, int32_t (*fn)(struct run *r, uint32_t first, uint32_t count, uint32_t to))
{
    const struct ifx_step *s = r->s;
    uint32_t count;
    for (uint32_t i = 0; i < s->n_logits; i += count) {
        for (count = 1; i + count < s->n_logits; count++)
            if (s->logit_columns[i + count] != s->logit_columns[i] + count)
                break;
        TRY(fn(r, s->logit_columns[i], count, i));
    }
    return IFX_OK;
}

static int32_t keep_run(struct run *r, uint32_t first, uint32_t count, uint32_t to)
{
    uint64_t h = r->m->hidden;
    return r->op->copy(r->dev, r->s->stream, r->buf.h + to * h, r->buf.x + first * h, count * h * sizeof(float),
                       IFX_COPY_ON_DEVICE);
}

/* After the last mixer only the wanted columns matter: they move to the front of the other buffer. */
static int32_t keep_wanted(struct run *r)
{
    TRY(each_wanted_run(r, keep_run));
    float *x = r->buf.x;
    r->buf.x = r->buf.h;
    r->buf.h = x;
    r->n = r->s->n_logits;
    return IFX_OK;
}

static int32_t norm_run(struct run *r, uint32_t first, uint32_t count, uint32_t to)
{
    uint64_t h = r->m->hidden;
    return norm(r, count, r->buf.x + first * h, r->m->final_norm, r->buf.h + to * h);
}

static int32_t logits(struct run *r, bool kept)
{
    if (kept)
        TRY(norm(r, r->n, r->buf.x, r->m->final_norm, r->buf.h));
    else
        TRY(each_wanted_run(r, norm_run));
    r->n = r->s->n_logits;
    struct ifx_linear op = linear_op(r, r->buf.h, r->m->hidden);
    linear_out(r, &op, r->m->head, r->s->logits, 0);
    return run_linear(r, &op);
}

int32_t qwen3_5_forward(void *model, const struct ifx_step *step)
{
    const struct model *m = model;
    const struct ifx_services *sv = step->services;
    struct run r = {.m = m, .s = step, .dev = step->dev, .op = step->dev->ops, .n = step->n};
    bool keep = !(step->flags & IFX_STEP_ALL_COLUMNS) && step->n_logits < step->n;
    if (lay_out(m, step->dev, step->n, step->ws, &r.buf) > step->ws_bytes)
        return m->host->error(m->host, IFX_EINTERNAL, "qwen3_5: workspace too small for %u columns", step->n);
    TRY(r.op->copy(r.dev, step->stream, r.buf.inv_freq, m->inv_freq, m->rotary / 2 * sizeof(float), IFX_COPY_TO_DEVICE));
    TRY(r.op->embed(r.dev, step->stream, &step->weights[m->embed], step->tokens, step->n, r.buf.x, m->hidden));
    TRY(observe(&r, -1));
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const struct layer *l = &m->layers[i];
        if (sv->cancelled && sv->cancelled(sv))
            return IFX_ECANCELLED;
        TRY(norm(&r, r.n, r.buf.x, l->norm1, r.buf.h));
        TRY(l->linear_attention ? delta_net(&r, l) : attention(&r, l));
        if (keep && i + 1 == m->n_layers) {
            TRY(keep_wanted(&r));
            if (!r.n)
                return IFX_OK;
        }
        TRY(norm(&r, r.n, r.buf.x, l->norm2, r.buf.h));
        TRY(m->experts ? moe(&r, l, i) : dense_ffn(&r, l));
        TRY(observe(&r, (int32_t)i));
    }
    return step->n_logits ? logits(&r, keep) : IFX_OK;
}
