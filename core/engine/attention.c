/* SPDX-License-Identifier: Apache-2.0
 *
 * attention.c - the attention service: a KV format's append and attend, cut into parts for the threads.
 *
 * A part is one KV head, a tile of queries and a range of tokens.  How it is cut depends on the call alone, and parts are merged in
 * ascending order of tokens by whichever thread finishes the last part of a tile: the same bits for any number of threads.
 */
#include "engine.h"

#include <infernix/numerics.h>
#include <stdatomic.h>
#include <string.h>

struct attend_run {
    const struct attention_call *c;
    uint32_t tile_queries, n_tiles, n_ranges;
    uint64_t range_tokens, rows; /* rows: query rows of a tile at most */
    _Atomic uint32_t *left; /* [n_kv_heads * n_tiles]: parts not yet done; NULL when there is one range */
};

/* Buffers of one part. */
struct part {
    float *m, *l, *acc;
};

uint64_t attention_parts(const struct ifx_model *m)
{
    uint64_t workers = base_pool_threads(m->ctx->pool);
    return workers > ENGINE_ATTEND_PARTS ? workers : ENGINE_ATTEND_PARTS;
}

static struct part part_at(const struct attend_run *r, uint64_t index)
{
    const struct step_buffers *b = &r->c->m->step;
    uint64_t row = index * b->part_rows;
    return (struct part){b->part_m + row, b->part_l + row, b->part_acc + row * r->c->m->desc->head_dim};
}

/* out row = sum over parts of exp(m_p - M) acc_p / sum over parts of exp(m_p - M) l_p */
static void merge_row(const struct attend_run *r, uint64_t first, uint64_t row, float *out)
{
    uint32_t d = r->c->m->desc->head_dim;
    float most = -INFINITY, sum = 0;
    for (uint32_t p = 0; p < r->n_ranges; p++) {
        float m = part_at(r, first + p).m[row];
        most = m > most ? m : most;
    }
    memset(out, 0, d * sizeof *out);
    for (uint32_t p = 0; p < r->n_ranges; p++) {
        struct part part = part_at(r, first + p);
        if (part.m[row] == -INFINITY)
            continue;
        float w = ifx_exp(part.m[row] - most);
        const float *acc = part.acc + row * d;
        sum += w * part.l[row];
        for (uint32_t j = 0; j < d; j++)
            out[j] += w * acc[j];
    }
    float scale = 1.0f / sum;
    for (uint32_t j = 0; j < d; j++)
        out[j] *= scale;
}

static float *out_row(const struct attention_call *c, uint32_t head, uint32_t q0, uint64_t row)
{
    return c->a->out + (q0 + row / c->group) * c->a->ldo +
           (head * (uint64_t)c->group + row % c->group) * c->m->desc->head_dim;
}

static void merge_tile(const struct attend_run *r, uint32_t head, uint32_t q0, uint32_t q1, uint64_t first)
{
    for (uint64_t row = 0; row < (uint64_t)(q1 - q0) * r->c->group; row++)
        merge_row(r, first, row, out_row(r->c, head, q0, row));
}

/* One range: no merge, only the division. */
static void finish_tile(const struct attend_run *r, uint32_t head, uint32_t q0, uint32_t q1, const struct part *part)
{
    uint32_t d = r->c->m->desc->head_dim;
    for (uint64_t row = 0; row < (uint64_t)(q1 - q0) * r->c->group; row++) {
        float *out = out_row(r->c, head, q0, row), scale = 1.0f / part->l[row];
        for (uint32_t j = 0; j < d; j++)
            out[j] = part->acc[row * d + j] * scale;
    }
}

static int32_t attend_part(const struct attend_run *r, uint32_t head, uint32_t q0, uint32_t q1, uint32_t range,
                           const struct part *part)
{
    const struct attention_call *c = r->c;
    uint64_t t0 = range * r->range_tokens, t1 = t0 + r->range_tokens, visible = c->pos0 + q1;
    t1 = r->n_ranges == 1 || t1 > visible ? visible : t1;
    if (t0 >= t1) {
        for (uint64_t row = 0; row < (uint64_t)(q1 - q0) * c->group; row++)
            part->m[row] = -INFINITY;
        return IFX_OK;
    }
    struct ifx_kv_attend call = {.struct_size = sizeof call, .kv_head = head, .pages = (const void *const *)c->pages,
                                 .pos0 = c->pos0, .t0 = t0, .t1 = t1, .q0 = q0, .q1 = q1, .group = c->group,
                                 .scale = c->a->scale, .q = c->a->q + head * (uint64_t)c->group * c->a->ldq_head,
                                 .ldq = c->a->ldq, .ldq_head = c->a->ldq_head, .rows = c->a->rows, .n_rows = c->a->n_rows,
                                 .ld_rows = c->a->ld_rows, .m = part->m, .l = part->l, .acc = part->acc};
    return c->m->kv_ops->attend(c->m->kv, &call);
}

static int32_t attend_task(void *ctx, uint64_t task, uint32_t worker)
{
    struct attend_run *r = ctx;
    const struct attention_call *c = r->c;
    uint32_t range = (uint32_t)(task % r->n_ranges);
    uint64_t rest = task / r->n_ranges;
    uint32_t head = (uint32_t)(rest % c->m->desc->n_kv_heads);
    /* The last queries see the most tokens: they start first. */
    uint32_t tile = r->n_tiles - 1 - (uint32_t)(rest / c->m->desc->n_kv_heads);
    uint32_t q0 = tile * r->tile_queries, q1 = q0 + r->tile_queries < c->n ? q0 + r->tile_queries : c->n;
    struct part part = part_at(r, r->left ? task : worker);
    int32_t st = attend_part(r, head, q0, q1, range, &part);
    if (st)
        return st;
    if (!r->left)
        finish_tile(r, head, q0, q1, &part);
    else if (atomic_fetch_sub_explicit(&r->left[rest], 1, memory_order_acq_rel) == 1)
        merge_tile(r, head, q0, q1, task - range);
    return IFX_OK;
}

static int32_t attend(const struct attention_call *c)
{
    uint32_t kv_heads = c->m->desc->n_kv_heads;
    uint64_t tokens = c->pos0 + c->n;
    struct attend_run r = {.c = c};
    r.tile_queries = c->group < ENGINE_ATTEND_ROWS ? ENGINE_ATTEND_ROWS / c->group : 1;
    r.n_tiles = (c->n + r.tile_queries - 1) / r.tile_queries;
    uint64_t most = ENGINE_ATTEND_PARTS / ((uint64_t)kv_heads * r.n_tiles);
    uint64_t ranges = (tokens + ENGINE_ATTEND_RANGE - 1) / ENGINE_ATTEND_RANGE;
    ranges = ranges < most ? ranges : most;
    r.n_ranges = ranges ? (uint32_t)ranges : 1;
    r.range_tokens = (tokens + r.n_ranges - 1) / r.n_ranges;
    r.range_tokens = (r.range_tokens + ENGINE_PAGE_TOKENS - 1) / ENGINE_PAGE_TOKENS * ENGINE_PAGE_TOKENS;
    _Atomic uint32_t left[ENGINE_ATTEND_PARTS];
    if (r.n_ranges > 1) {
        r.left = left;
        for (uint32_t i = 0; i < kv_heads * r.n_tiles; i++)
            atomic_init(&left[i], r.n_ranges);
    }
    return base_pool_run(c->m->ctx->pool, (uint64_t)kv_heads * r.n_tiles * r.n_ranges, attend_task, &r);
}

int32_t attention_host(struct ifx_model *m, const struct ifx_attention *a)
{
    const struct ifx_segment *segment = a->segment;
    struct ifx_sequence *s = segment->sequence;
    void **pages = s->pages + (uint64_t)a->kv_layer * s->max_blocks;
    struct ifx_kv_append append = {.struct_size = sizeof append, .n = segment->n, .pages = pages, .pos0 = segment->pos0,
                                   .k = a->k, .v = a->v, .ldk = a->ldk, .ldv = a->ldv};
    int32_t st = m->kv_ops->append(m->kv, &append);
    if (st)
        return st;
    struct attention_call c = {.m = m, .a = a, .pages = pages, .pos0 = segment->pos0, .n = segment->n,
                               .group = m->desc->n_q_heads / m->desc->n_kv_heads};
    return m->oracle ? attention_ref(&c) : attend(&c);
}

/* What an observer is shown of a selection: on a device with its own memory, a copy. */
static int32_t show_selection(const struct engine_step *step, const struct ifx_attention *a)
{
    struct ifx_model *m = step->model;
    const struct ifx_observer *o = &((struct ifx_sequence *)a->segment->sequence)->observer;
    uint64_t n = a->segment->n, bytes = n * a->ld_rows * sizeof *a->rows;
    if (m->host_memory)
        return o->selection(o->ctx, a->kv_layer, a->segment->pos0, (uint32_t)n, a->rows, a->n_rows, a->ld_rows);
    int32_t *rows = base_alloc(bytes + n * sizeof *a->n_rows, 64);
    uint32_t *n_rows = (uint32_t *)(rows + n * a->ld_rows);
    int32_t st = rows ? m->dev->ops->copy(m->dev, m->stream, rows, a->rows, bytes, IFX_COPY_FROM_DEVICE) : IFX_ENOMEM;
    if (!st)
        st = m->dev->ops->copy(m->dev, m->stream, n_rows, a->n_rows, n * sizeof *n_rows, IFX_COPY_FROM_DEVICE);
    if (!st)
        st = m->dev->ops->stream_sync(m->dev, m->stream);
    if (!st)
        st = o->selection(o->ctx, a->kv_layer, a->segment->pos0, (uint32_t)n, rows, n_rows, a->ld_rows);
    base_free(rows);
    return st;
}

int32_t engine_attention(const struct ifx_services *sv, const struct ifx_attention *a)
{
    const struct engine_step *step = sv->ctx;
    const struct ifx_sequence *s = a->segment->sequence;
    int32_t st = a->rows && s->observed && s->observer.selection ? show_selection(step, a) : IFX_OK;
    if (st)
        return st;
    return step->model->attend_where == ATTEND_ON_HOST ? attention_host(step->model, a) : attention_device(step, a);
}

int32_t engine_index_plane(const struct ifx_services *sv, const struct ifx_segment *segment, uint32_t kv_layer,
                           struct ifx_index_plane *out)
{
    const struct engine_step *step = sv->ctx;
    const struct ifx_model *m = step->model;
    const struct ifx_sequence *s = segment->sequence;
    void *const *pages = m->host_memory ? s->pages : m->slots[s->slot].pages;
    *out = (struct ifx_index_plane){.pages = pages + (uint64_t)kv_layer * s->max_blocks, .offset = m->plane_offset,
                                    .page_tokens = ENGINE_PAGE_TOKENS, .ratio = m->desc->index_ratio, .d = m->desc->index_dim};
    return IFX_OK;
}
