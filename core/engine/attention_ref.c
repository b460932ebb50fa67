/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_ref.c - attention in double from decoded rows: the oracle.
 */
#include "engine.h"

#include <math.h>

struct ref_attention {
    const struct attention_call *c;
    uint64_t tokens;
    double *k, *v; /* [n_kv_heads, tokens, d] */
    double *scores; /* a worker: [tokens] */
};

/* Task: one page of one KV head. */
static int32_t decode_page(void *ctx, uint64_t task, uint32_t worker)
{
    struct ref_attention *r = ctx;
    const struct ifx_model *m = r->c->m;
    uint32_t d = m->desc->head_dim, head = (uint32_t)(task % m->desc->n_kv_heads);
    uint64_t page = task / m->desc->n_kv_heads, t = page * ENGINE_PAGE_TOKENS;
    (void)worker;
    for (uint32_t slot = 0; slot < ENGINE_PAGE_TOKENS && t < r->tokens; slot++, t++) {
        uint64_t at = (head * r->tokens + t) * d;
        int32_t st = m->kv_ops->decode_row(m->kv, r->c->pages[page], IFX_KV_K, head, slot, r->k + at);
        if (!st)
            st = m->kv_ops->decode_row(m->kv, r->c->pages[page], IFX_KV_V, head, slot, r->v + at);
        if (st)
            return st;
    }
    return IFX_OK;
}

/* Task: one query head of one query. */
static int32_t attend_one(void *ctx, uint64_t task, uint32_t worker)
{
    struct ref_attention *r = ctx;
    const struct attention_call *c = r->c;
    const struct ifx_attention *a = c->a;
    uint32_t heads = c->m->desc->n_q_heads, d = c->m->desc->head_dim, head = (uint32_t)(task % heads);
    uint64_t i = task / heads, visible = a->rows ? a->n_rows[i] : c->pos0 + i + 1;
    const int32_t *rows = a->rows ? a->rows + i * a->ld_rows : NULL;
    const float *q = a->q + i * a->ldq + head * a->ldq_head;
    const double *k = r->k + head / c->group * r->tokens * d, *v = r->v + head / c->group * r->tokens * d;
    double *p = r->scores + worker * r->tokens, most = -INFINITY, sum = 0;
    for (uint64_t t = 0; t < visible; t++) {
        const double *row = k + (rows ? (uint64_t)rows[t] : t) * d;
        double s = 0;
        for (uint32_t j = 0; j < d; j++)
            s += (double)q[j] * row[j];
        p[t] = s * a->scale;
        most = p[t] > most ? p[t] : most;
    }
    for (uint64_t t = 0; t < visible; t++)
        sum += p[t] = exp(p[t] - most);
    for (uint32_t j = 0; j < d; j++) {
        double o = 0;
        for (uint64_t t = 0; t < visible; t++)
            o += p[t] * v[(rows ? (uint64_t)rows[t] : t) * d + j];
        a->out[i * a->ldo + (uint64_t)head * d + j] = (float)(o / sum);
    }
    return IFX_OK;
}

int32_t attention_ref(const struct attention_call *c)
{
    struct base_pool *pool = c->m->ctx->pool;
    uint32_t kv_heads = c->m->desc->n_kv_heads;
    struct ref_attention r = {.c = c, .tokens = c->pos0 + c->n};
    uint64_t rows = r.tokens * kv_heads, pages = (r.tokens + ENGINE_PAGE_TOKENS - 1) / ENGINE_PAGE_TOKENS;
    r.k = base_calloc(rows * c->m->desc->head_dim, sizeof(double));
    r.v = base_calloc(rows * c->m->desc->head_dim, sizeof(double));
    r.scores = base_calloc(r.tokens * base_pool_threads(pool), sizeof(double));
    int32_t st = IFX_ENOMEM;
    if (r.k && r.v && r.scores)
        st = base_pool_run(pool, pages * kv_heads, decode_page, &r);
    if (!st)
        st = base_pool_run(pool, (uint64_t)c->n * c->m->desc->n_q_heads, attend_one, &r);
    base_free(r.k);
    base_free(r.v);
    base_free(r.scores);
    return st;
}
