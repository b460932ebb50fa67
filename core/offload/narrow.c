/* SPDX-License-Identifier: Apache-2.0
 *
 * narrow.c - the MoE call of few columns (decode): nothing waits on the host.
 *
 * The device resolves residency and computes the hits.  Meanwhile the host looks up what was missed, lets the CPU workers compute it,
 * and its results join the device's in the combination.  The host is told by a hand-over in the stream, which the engine's thread looks
 * out for, or where the device has none by a host call on a stream beside.  All of it can be captured.
 */
#include "moe_call.h"

#include <string.h>

/* The misses of one layer; on the thread of the stream beside, or on the engine's that serves hand-overs. */
static int32_t compute_misses(void *ctx)
{
    struct narrow_job *j = ctx;
    struct offload *o = j->o;
    const struct offload_layer *l = &o->config.layers[j->layer];
    uint32_t pairs = j->n * l->top_k, entries = pairs < l->experts ? pairs : l->experts, row = 0;
    struct group_block b = offload_group_block(l, j->n, o->host_group);
    uint32_t *index = offload_index(o, o->host_parts, pairs), base = o->max_pairs + o->index_rows;
    struct offload_cpu_call call = {.layer = l, .pool = o->pool, .x = o->host_x, .ldx = l->hidden, .parts = o->cpu_parts,
                                    .pairs = b.rows, .y_rows = o->cpu_rows, .ldy = o->max_hidden,
                                    .y = o->host_parts + (uint64_t)o->index_rows * o->max_hidden};
    for (uint32_t p = 0; p < pairs; p++)
        index[p] = p;
    pthread_mutex_lock(&o->lock);
    /* Counted here: a captured step runs without anybody calling.  After the last mixer of a prompt few columns are left: that is no
     * decode step, and what they need is not what the next one will. */
    bool tail = o->step_columns > IFX_NARROW_COLUMNS;
    o->stats.calls++;
    o->last_columns = tail ? o->step_columns : j->n;
    for (uint32_t i = 0; i < entries && b.entries[i] != UINT32_MAX; i++) {
        uint32_t e = b.entries[i], first = b.offsets[e], n = b.offsets[e + 1] - first;
        bool missed = !b.records[i];
        if (o->residency && !tail)
            residency_use(o->residency, o->key0[j->layer] + e, 1.0f, missed);
        o->stats.hits += !missed;
        o->stats.misses += missed;
        if (!missed)
            continue;
        o->cpu_parts[call.n_parts++] = (struct offload_part){.record = l->records + e * l->record_bytes, .expert = e, .n = n,
                                                             .first = first};
        for (uint32_t k = 0; k < n; k++) {
            index[b.rows[first + k]] = base + row;
            o->cpu_rows[first + k] = row++;
        }
    }
    o->stats.cpu_experts += call.n_parts;
    pthread_mutex_unlock(&o->lock);
    j->rows = row;
    j->work = offload_work(l, IFX_WORK_HOST_EXPERTS, call.n_parts, row);
    double began = base_now();
    int32_t st = offload_cpu_parts(&call, o->cpu_ws);
    if (!o->virtual_clock)
        base_pool_stay_awake(o->pool, OFFLOAD_AWAKE_SECONDS);
    double took = o->virtual_clock ? offload_cpu_seconds(o, call.parts, call.n_parts, 0) : base_now() - began;
    pthread_mutex_lock(&o->lock);
    o->stats.cpu_busy_seconds += call.n_parts ? took : 0;
    pthread_mutex_unlock(&o->lock);
    return st;
}

/* Where there are no host calls the host waits for the choice and does the same. */
static int32_t call_beside(struct offload *o, struct narrow_job *j)
{
    if (o->ops->host_call)
        return o->ops->host_call(o->dev, o->beside, compute_misses, j, &j->work);
    int32_t st = o->ops->stream_sync(o->dev, o->beside);
    if (!st)
        st = compute_misses(j);
    if (!st && o->ops->host_work)
        o->ops->host_work(o->dev, &j->work);
    return st;
}

/* Fork, misses, their way back. */
static int32_t misses_beside(struct offload *o, const struct offload_moe_call *c, uint32_t pairs)
{
    const struct offload_layer *l = &o->config.layers[c->layer];
    struct narrow_job *j = &o->narrow[c->layer * IFX_NARROW_COLUMNS + c->n - 1];
    uint32_t index_rows = (pairs + o->max_hidden - 1) / o->max_hidden;
    uint64_t at = (uint64_t)(o->index_rows - index_rows) * o->max_hidden;
    struct group_block b = offload_group_block(l, c->n, o->group_memory);
    int32_t st = o->ops->copy(o->dev, c->stream, o->host_group, o->group_memory, b.bytes, IFX_COPY_FROM_DEVICE);
    for (uint32_t t = 0; t < c->n && !st && c->ldx != l->hidden; t++)
        st = o->ops->copy(o->dev, c->stream, o->host_x + (uint64_t)t * l->hidden, c->x + t * c->ldx,
                          l->hidden * sizeof *c->x, IFX_COPY_FROM_DEVICE);
    if (!st && c->ldx == l->hidden)
        st = o->ops->copy(o->dev, c->stream, o->host_x, c->x, (uint64_t)c->n * l->hidden * sizeof *c->x, IFX_COPY_FROM_DEVICE);
    if (!st)
        st = o->ops->event_record(o->dev, o->forked, c->stream);
    if (!st)
        st = o->ops->event_wait(o->dev, o->forked, o->beside);
    if (!st)
        st = call_beside(o, j);
    if (!st)
        st = o->ops->copy(o->dev, o->beside, o->parts + (uint64_t)o->max_pairs * o->max_hidden + at, o->host_parts + at,
                          (uint64_t)(index_rows + pairs) * o->max_hidden * sizeof *o->parts, IFX_COPY_TO_DEVICE);
    return st ? st : o->ops->event_record(o->dev, o->joined, o->beside);
}

/* ---- hand-over ---- */

#define LOOKS_BEFORE_ASKING 20000u /* some milliseconds: then whether the stream still runs */

static int32_t post(struct offload *o, const struct offload_moe_call *c)
{
    const struct offload_layer *l = &o->config.layers[c->layer];
    struct group_block b = offload_group_block(l, c->n, o->group_memory);
    struct ifx_post p = {.n = 2, .tag = c->layer * IFX_NARROW_COLUMNS + c->n - 1, .counter = o->post_counter, .posted = o->posted};
    p.pieces[0].to = o->host_group;
    p.pieces[0].from = o->group_memory;
    p.pieces[0].row_bytes = p.pieces[0].pitch = b.bytes;
    p.pieces[0].rows = 1;
    p.pieces[1].to = o->host_x;
    p.pieces[1].from = c->x;
    p.pieces[1].row_bytes = l->hidden * sizeof *c->x;
    p.pieces[1].pitch = c->ldx * sizeof *c->x;
    p.pieces[1].rows = c->n;
    o->n_posts++;
    return o->ops->post(o->dev, c->stream, &p);
}

static int32_t await(struct offload *o, const struct offload_moe_call *c)
{
    uint32_t pairs = c->n * o->config.layers[c->layer].top_k, index_rows = (pairs + o->max_hidden - 1) / o->max_hidden;
    uint64_t at = (uint64_t)(o->index_rows - index_rows) * o->max_hidden, row = o->max_hidden * sizeof *o->parts;
    struct ifx_await a = {.counter = o->post_counter, .answer = o->answer,
                          .to = o->parts + (uint64_t)o->max_pairs * o->max_hidden + at, .from = o->host_parts + at,
                          .fixed_bytes = index_rows * row, .row_bytes = row};
    return o->ops->await(o->dev, c->stream, &a);
}

/* Until the next post is there; a stream that ends or fails without one is told. */
static int32_t look_out(struct offload *o, uint32_t *tag)
{
    for (uint32_t looks = 0;;) {
        uint64_t word = __atomic_load_n(o->posted, __ATOMIC_ACQUIRE);
        uint32_t done = 0;
        if ((uint32_t)(word >> 32) != o->last_post) {
            o->last_post = (uint32_t)(word >> 32);
            *tag = (uint32_t)word;
            return IFX_OK;
        }
        base_spin(&looks);
        if (looks % LOOKS_BEFORE_ASKING)
            continue;
        int32_t st = o->ops->event_query(o->dev, o->enqueued, &done);
        if (!st && done && (uint32_t)(__atomic_load_n(o->posted, __ATOMIC_ACQUIRE) >> 32) == o->last_post)
            st = base_error(IFX_EINTERNAL, "a step ended without handing over what the CPU was to compute");
        if (st)
            return st;
    }
}

/* One post.  Answered whatever happens, or the stream would wait for ever. */
static int32_t answer_post(struct offload *o, uint32_t tag)
{
    struct narrow_job *j = tag < o->n_layers * IFX_NARROW_COLUMNS ? &o->narrow[tag] : NULL;
    int32_t st = j ? compute_misses(j) : base_error(IFX_EINTERNAL, "a hand-over of no layer");
    __atomic_store_n(o->answer, (uint64_t)o->last_post << 32 | (st ? 0 : j->rows), __ATOMIC_RELEASE);
    return st;
}

uint64_t offload_posts(const struct offload *o)
{
    return o->n_posts;
}

int32_t offload_serve(struct offload *o, void *stream, uint64_t posts)
{
    int32_t st = posts ? o->ops->event_record(o->dev, o->enqueued, stream) : IFX_OK, failed = IFX_OK;
    char *text = NULL;
    for (uint64_t i = 0; i < posts && !st; i++) {
        uint32_t tag = 0;
        st = look_out(o, &tag);
        int32_t one = st ? st : answer_post(o, tag);
        if (!one || failed)
            continue;
        failed = one;
        text = base_strdup(base_error_text());
    }
    if (failed)
        st = base_error(failed, "%s", text ? text : "experts on the CPU");
    base_free(text);
    return st;
}

/* ---- the call ---- */

/* The host's part in front of the hits; after it, what the combination has to wait for. */
static int32_t ask_host(struct offload *o, const struct offload_moe_call *c)
{
    return o->posts ? post(o, c) : misses_beside(o, c, c->n * o->config.layers[c->layer].top_k);
}

static int32_t take_answer(struct offload *o, const struct offload_moe_call *c)
{
    int32_t st = IFX_OK;
    if (!o->posts)
        return o->ops->event_wait(o->dev, o->joined, c->stream);
    if (!c->capturing)
        st = offload_serve(o, c->stream, 1);
    return st ? st : await(o, c);
}

int32_t offload_moe_narrow(struct offload *o, const struct offload_moe_call *c)
{
    const struct offload_layer *l = &o->config.layers[c->layer];
    uint32_t pairs = c->n * l->top_k;
    struct group_block b = offload_group_block(l, c->n, o->group_memory);
    struct ifx_group group = {.n = c->n, .top_k = l->top_k, .experts = l->experts,
                              .n_entries = pairs < l->experts ? pairs : l->experts, .ids = c->ids, .offsets = b.offsets,
                              .rows = b.rows, .entries = b.entries, .table = o->table + o->key0[c->layer],
                              .records = b.records, .ws = o->group_ws};
    struct ifx_expert_device_call hits = {.struct_size = sizeof hits, .n = c->n, .top_k = l->top_k, .n_entries = group.n_entries,
                                          .records = b.records, .experts = b.entries, .offsets = b.offsets, .rows = b.rows,
                                          .widest = c->n, .pairs = pairs, .x = c->x, .ldx = c->ldx, .y = o->parts,
                                          .ldy = o->max_hidden, .ws = o->ws};
    struct ifx_combine combine = {.n = c->n, .top_k = l->top_k, .width = l->hidden, .parts = o->parts, .ldp = o->max_hidden,
                                  .weights = c->weights, .y = c->y, .ldy = c->ldy,
                                  .index = offload_index(o, o->parts + (uint64_t)o->max_pairs * o->max_hidden, pairs)};
    int32_t st = o->ops->group(o->dev, c->stream, &group);
    if (!st)
        st = ask_host(o, c);
    /* A captured step must find the frames of later. */
    if (!st && o->computes && (c->capturing || o->resident_count[c->layer]))
        st = offload_device_experts(o, c->layer, c->stream, &hits,
                                    &o->narrow[c->layer * IFX_NARROW_COLUMNS + c->n - 1].hits);
    if (!st)
        st = take_answer(o, c);
    return st ? st : o->ops->combine(o->dev, c->stream, &combine);
}
