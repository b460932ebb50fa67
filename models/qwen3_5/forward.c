/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.c - one step: x = embed(t); each layer: x += mixer(norm1(x)); x += ffn(norm2(x)); logits = head(norm(x)).
 */
#include "qwen3_5.h"

#include <string.h>

/* The workspace of a step.  n columns; a layer's blocks share one region, since one is done before the next starts. */
struct buffers {
    float *x; /* residual [n, hidden] */
    float *h; /* a block's input [n, hidden] */
    struct delta_buffers delta;
    struct attention_buffers attention;
    struct ffn_buffers ffn;
};

/* One step being run. */
struct run {
    struct block_run block;
    const struct model *m;
    struct buffers buf;
};

static uint64_t largest_linear_ws(const struct model *m, struct ifx_device *dev, uint32_t n)
{
    const uint32_t widths[] = {m->hidden, m->attention.q_heads * m->attention.d, m->delta.value_width, m->inter};
    uint64_t most = 0;
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        uint64_t bytes = dev->ops->linear_ws_bytes(dev, n, widths[i]);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Lays the workspace out at base (NULL: only its size counts) and returns its size. */
static uint64_t lay_out(const struct model *m, struct ifx_device *dev, uint32_t n, void *base, struct run *r)
{
    struct block_cursor c = {base, 0};
    struct buffers *b = &r->buf;
    b->x = block_take_floats(&c, n, m->hidden);
    b->h = block_take_floats(&c, n, m->hidden);
    r->block.linear_ws = block_take(&c, largest_linear_ws(m, dev, n));
    struct block_cursor d = c, a = c, f = c;
    delta_lay_out(&m->delta, dev, n, &d, &b->delta);
    attention_lay_out(&m->attention, n, &a, &b->attention);
    ffn_lay_out(m->hidden, m->inter, m->experts != 0, n, &f, &b->ffn);
    uint64_t most = d.at > a.at ? d.at : a.at;
    return f.at > most ? f.at : most;
}

uint64_t qwen3_5_workspace_bytes(void *model, struct ifx_device *dev, uint32_t n, uint32_t n_logits)
{
    struct run r;
    (void)n_logits; /* the wanted columns are normed in h */
    return lay_out(model, dev, n, NULL, &r);
}

/* y = norm(x) (1 + w) over n columns */
static struct ifx_rms_norm norm_of(const struct run *r, uint32_t n, const float *x, uint32_t param, float *y)
{
    const struct model *m = r->m;
    return (struct ifx_rms_norm){.rows = n, .width = m->hidden, .w_rows = 1, .x = x, .ldx = m->hidden, .w = block_vector(&r->block, param),
                                 .plus_one = 1.0f, .eps = m->eps, .y = y, .ldy = m->hidden};
}

static int32_t norm(const struct run *r, uint32_t n, const float *x, uint32_t param, float *y)
{
    struct ifx_rms_norm op = norm_of(r, n, x, param, y);
    return r->block.op->rms_norm(r->block.dev, r->block.s->stream, &op);
}

static int32_t observe(const struct run *r, int32_t layer)
{
    const struct ifx_services *sv = r->block.s->services;
    return sv->observe ? sv->observe(sv, IFX_OBSERVE_HIDDEN, layer, r->buf.x, r->m->hidden, r->block.n) : IFX_OK;
}

static int32_t mixer(const struct run *r, const struct layer *l)
{
    const struct buffers *b = &r->buf;
    struct ifx_rms_norm norm1 = norm_of(r, r->block.n, b->x, l->norm1, b->h);
    if (l->linear_attention)
        return delta_forward(&r->block, &r->m->delta, &l->delta, &b->delta, &norm1, b->h, b->x, 1);
    return attention_forward(&r->block, &r->m->attention, &l->attention, &b->attention, &norm1, b->h, NULL, NULL, b->x, 1);
}

static int32_t feed_forward(const struct run *r, const struct layer *l, uint32_t index)
{
    const struct buffers *b = &r->buf;
    struct ifx_rms_norm norm2 = norm_of(r, r->block.n, b->x, l->norm2, b->h);
    if (r->m->experts)
        return mixture_block(&r->block, r->m->inter, &l->ffn, index, &b->ffn, &norm2, b->x);
    TRY(r->block.op->rms_norm(r->block.dev, r->block.s->stream, &norm2));
    return ffn_forward(&r->block, r->m->inter, &l->ffn, &b->ffn, b->h, b->x, 1);
}

static int32_t norm_run(void *ctx, uint32_t first, uint32_t count, uint32_t to)
{
    struct run *r = ctx;
    uint64_t h = r->m->hidden;
    return norm(r, count, r->buf.x + first * h, r->m->final_norm, r->buf.h + to * h);
}

static int32_t logits(struct run *r, bool kept)
{
    if (kept)
        TRY(norm(r, r->block.n, r->buf.x, r->m->final_norm, r->buf.h));
    else
        TRY(block_each_wanted(r->block.s, r, norm_run));
    r->block.n = r->block.s->n_logits;
    return block_product(&r->block, r->buf.h, r->m->hidden, r->m->head, r->block.s->logits, 0);
}

int32_t qwen3_5_forward(void *model, const struct ifx_step *step)
{
    const struct model *m = model;
    const struct ifx_services *sv = step->services;
    struct run r = {.block = {.s = step, .dev = step->dev, .op = step->dev->ops, .n = step->n, .hidden = m->hidden}, .m = m};
    const struct block_run *b = &r.block;
    bool keep = !(step->flags & IFX_STEP_ALL_COLUMNS) && step->n_logits < step->n;
    if (lay_out(m, step->dev, step->n, step->ws, &r) > step->ws_bytes)
        return m->host->error(m->host, IFX_EINTERNAL, "qwen3_5: workspace too small for %u columns", step->n);
    r.block.inv_freq = step->constants;
    TRY(b->op->embed(b->dev, step->stream, &step->weights[m->embed], step->tokens, step->n, r.buf.x, m->hidden));
    TRY(observe(&r, -1));
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const struct layer *l = &m->layers[i];
        if (sv->cancelled && sv->cancelled(sv))
            return IFX_ECANCELLED;
        TRY(mixer(&r, l));
        if (keep && i + 1 == m->n_layers) {
            /* after the last mixer only they matter */
            TRY(block_keep_wanted(&r.block, &r.buf.x, &r.buf.h, m->hidden));
            if (!b->n)
                return IFX_OK;
        }
        TRY(feed_forward(&r, l, i));
        TRY(observe(&r, (int32_t)i));
    }
    return step->n_logits ? logits(&r, keep) : IFX_OK;
}
