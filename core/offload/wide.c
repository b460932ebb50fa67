/* SPDX-License-Identifier: Apache-2.0
 *
 * wide.c - the MoE call that is planned: assisted and streamed.
 *
 * The device groups the columns and starts on its residents; the host waits for the grouping, plans, and starts the link.  The
 * CPU's share is computed on this thread and its pool while records land and the device works on them.  Everything meets in one
 * combination.
 */
#include "moe_call.h"

#include <stdatomic.h>
#include <string.h>

/* Records that the device takes at once: fewer, larger pieces of work, but little left to do when the last ones land. */
#define BATCH_BYTES (16ull << 20)
#define BATCH_MOST  4u
#define AHEAD_TOUCHED 0.9         /* of a layer's experts: then the next layer's are fetched before its router has chosen */

/* A call under way. */
struct wide {
    struct offload *o;
    const struct offload_moe_call *c;
    const struct offload_layer *l;
    struct group_block device, host;
    struct offload_plan plan;
    uint32_t n_ahead;    /* of plan.link, in front: fetched before the call */
    uint32_t ahead_touched; /* of those: asked for */
    uint64_t first_slot; /* of plan.link[0] */
    uint32_t issued;     /* of plan.link: handed to the device */
    bool issued_all, landed;
    int32_t status; /* of what was issued between CPU tasks */
    double began, landed_at;
    uint64_t link_pairs, cpu_pairs, fetched;
};

/* ---- the routing ---- */

static int32_t group(struct wide *w)
{
    struct offload *o = w->o;
    const struct offload_moe_call *c = w->c;
    const struct offload_layer *l = w->l;
    uint32_t pairs = c->n * l->top_k;
    struct ifx_group op = {.n = c->n, .top_k = l->top_k, .experts = l->experts,
                           .n_entries = pairs < l->experts ? pairs : l->experts, .ids = c->ids, .offsets = w->device.offsets,
                           .rows = w->device.rows, .entries = w->device.entries, .table = o->table + o->key0[c->layer],
                           .records = w->device.records, .ws = o->group_ws};
    int32_t st = o->ops->group(o->dev, c->stream, &op);
    if (!st)
        st = o->ops->copy(o->dev, c->stream, o->host_group, o->group_memory, w->device.bytes, IFX_COPY_FROM_DEVICE);
    if (!st)
        st = o->ops->event_record(o->dev, o->grouped, c->stream);
    return st;
}

static struct ifx_expert_device_call device_call(const struct wide *w)
{
    return (struct ifx_expert_device_call){.struct_size = sizeof(struct ifx_expert_device_call), .n = w->c->n,
                                           .top_k = w->l->top_k, .offsets = w->device.offsets, .rows = w->device.rows,
                                           .widest = w->c->n, .pairs = w->c->n * w->l->top_k, .x = w->c->x, .ldx = w->c->ldx,
                                           .y = w->o->parts, .ldy = w->o->max_hidden, .ws = w->o->ws};
}

static int32_t start_residents(struct wide *w)
{
    struct offload *o = w->o;
    struct ifx_expert_device_call call = device_call(w);
    uint32_t pairs = w->c->n * w->l->top_k;
    if (!o->computes || !o->resident_count[w->c->layer])
        return IFX_OK;
    call.records = w->device.records;
    call.experts = w->device.entries;
    call.n_entries = pairs < w->l->experts ? pairs : w->l->experts;
    return offload_device_experts(o, w->c->layer, w->c->stream, &call, NULL);
}

/* The CPU's input, when it may be asked for anything. */
static int32_t fetch_columns(struct wide *w)
{
    struct offload *o = w->o;
    const struct offload_moe_call *c = w->c;
    uint64_t row = w->l->hidden * sizeof *c->x;
    int32_t st = IFX_OK;
    if (c->ldx == w->l->hidden)
        return o->ops->copy(o->dev, c->stream, o->host_x, c->x, c->n * row, IFX_COPY_FROM_DEVICE);
    for (uint32_t t = 0; t < c->n && !st; t++)
        st = o->ops->copy(o->dev, c->stream, o->host_x + (uint64_t)t * w->l->hidden, c->x + t * c->ldx, row,
                          IFX_COPY_FROM_DEVICE);
    return st;
}

static bool may_assist(const struct offload *o, const struct offload_moe_call *c)
{
    if (!o->mover.n_slots || o->config.mode == OFFLOAD_ASSIST_BALANCE)
        return true;
    return o->config.mode == OFFLOAD_ASSIST_RAMP && c->n <= o->policies[c->layer]->max_columns;
}

static void make_plan(struct wide *w)
{
    struct offload *o = w->o;
    const struct offload_layer *l = w->l;
    struct offload_cost cost;
    struct offload_plan_input in = {.experts = l->experts, .n = w->c->n, .columns = o->columns, .resident = o->resident,
                                    .policy = o->policies[w->c->layer], .mode = o->config.mode,
                                    .deterministic = o->config.deterministic, .cost = &cost};
    uint32_t pairs = w->c->n * l->top_k, entries = pairs < l->experts ? pairs : l->experts;
    cost_of(&o->cost, w->c->layer, w->c->n, &cost);
    memset(o->resident, 0, l->experts);
    for (uint32_t e = 0; e < l->experts; e++)
        o->columns[e] = w->host.offsets[e + 1] - w->host.offsets[e];
    for (uint32_t i = 0; i < entries && w->host.entries[i] != UINT32_MAX; i++)
        o->resident[w->host.entries[i]] = w->host.records[i] != NULL;
    /* What was fetched ahead is as good as there. */
    for (uint32_t i = 0; o->ahead.layer == w->c->layer && i < o->ahead.n; i++)
        if (o->columns[o->ahead.experts[i]]) {
            o->resident[o->ahead.experts[i]] = 1;
            w->ahead_touched++;
        }
    w->plan = (struct offload_plan){.resident = o->plan_ids, .link = o->plan_ids + o->max_experts,
                                    .cpu = o->plan_ids + 2ull * o->max_experts};
    offload_plan_make(&in, &w->plan);
    if (!o->mover.n_slots) {
        /* Nothing can cross: what the link was meant to take goes in front of the rest. */
        memmove(w->plan.cpu + w->plan.n_link, w->plan.cpu, w->plan.n_cpu * sizeof *w->plan.cpu);
        memcpy(w->plan.cpu, w->plan.link, w->plan.n_link * sizeof *w->plan.cpu);
        w->plan.n_cpu += w->plan.n_link;
        w->plan.n_link = 0;
    }
}

static void count(struct wide *w)
{
    struct offload *o = w->o;
    const struct offload_plan *p = &w->plan;
    pthread_mutex_lock(&o->lock);
    uint32_t linked = p->n_link + w->ahead_touched;
    bool narrow = w->c->n <= IFX_NARROW_COLUMNS;
    o->stats.hits += p->n_resident - w->ahead_touched;
    o->stats.misses += linked + p->n_cpu;
    o->stats.link_experts += linked;
    o->stats.cpu_experts += p->n_cpu;
    o->stats.streamed_calls += p->n_cpu == 0 && linked != 0;
    o->stats.assisted_calls += p->n_cpu != 0 && !narrow;
    /* A prompt that was computed with help weighs, in all, as much as one decode step; a streamed one nothing. */
    for (uint32_t e = 0; e < w->l->experts && o->residency && (narrow || p->n_cpu); e++)
        if (o->columns[e])
            residency_use(o->residency, o->key0[w->c->layer] + e, narrow ? 1.0f : (float)o->columns[e] / (float)w->c->n,
                          narrow && !o->resident[e]);
    pthread_mutex_unlock(&o->lock);
    for (uint32_t i = 0; i < p->n_link; i++)
        w->link_pairs += o->columns[p->link[i]];
    for (uint32_t i = 0; i < p->n_cpu; i++)
        w->cpu_pairs += o->columns[p->cpu[i]];
}

/* ---- the link ---- */

static uint32_t batch_size(const struct offload *o, const struct offload_layer *l)
{
    uint64_t n = BATCH_BYTES / l->record_bytes;
    uint32_t half = o->mover.n_slots / 2;
    half = half < BATCH_MOST ? half : BATCH_MOST;
    return n < 1 ? 1 : n > half ? (half ? half : 1) : (uint32_t)n;
}

/* What was fetched ahead for this layer comes first, in the order of its slots, whether the router chose it or not; what was fetched
 * for another layer is let go. */
static int32_t take_ahead(struct wide *w)
{
    struct offload *o = w->o;
    struct offload_plan *p = &w->plan;
    uint32_t n = o->ahead.n;
    o->ahead.n = 0;
    w->first_slot = o->mover.next;
    if (!n)
        return IFX_OK;
    if (o->ahead.layer != w->c->layer)
        return mover_release(&o->mover, n, w->c->stream);
    memmove(p->link + n, p->link, p->n_link * sizeof *p->link);
    memcpy(p->link, o->ahead.experts, n * sizeof *p->link);
    p->n_link += n;
    w->n_ahead = n;
    w->first_slot = o->ahead.first;
    return IFX_OK;
}

/* The table of the whole list: slots are handed out in its order.  On the stream beside: behind the residents it would hold up the
 * records, which cross on the same engine.  Its last users are done, for the grouping came after them. */
static int32_t upload_link_table(struct wide *w)
{
    struct offload *o = w->o;
    const struct offload_plan *p = &w->plan;
    const void **records = (const void **)(void *)o->host_link;
    uint32_t *experts = (uint32_t *)(void *)(records + o->max_experts);
    for (uint32_t i = 0; i < p->n_link; i++) {
        records[i] = mover_slot_memory(&o->mover, w->first_slot + i);
        experts[i] = p->link[i];
    }
    int32_t st = o->ops->copy(o->dev, o->beside, o->link_records, records, p->n_link * sizeof *records, IFX_COPY_TO_DEVICE);
    if (!st)
        st = o->ops->copy(o->dev, o->beside, o->link_experts, experts, p->n_link * sizeof *experts, IFX_COPY_TO_DEVICE);
    if (!st)
        st = o->ops->event_record(o->dev, o->joined, o->beside);
    return st ? st : o->ops->event_wait(o->dev, o->joined, w->c->stream);
}

/* Fetches plan.link[at .. at + n), unless it is there already, and lets the device compute it when it lands. */
static int32_t issue_batch(struct wide *w, uint32_t at, uint32_t n)
{
    struct offload *o = w->o;
    const struct offload_layer *l = w->l;
    struct ifx_expert_device_call call = device_call(w);
    uint64_t first = w->first_slot + at;
    int32_t st = IFX_OK;
    call.widest = 0;
    call.pairs = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t e = w->plan.link[at + i];
        o->sources[i] = l->records + e * l->record_bytes;
        call.pairs += o->columns[e];
        call.widest = o->columns[e] > call.widest ? o->columns[e] : call.widest;
    }
    if (at >= w->n_ahead) {
        st = mover_fetch(&o->mover, o->sources, n, l->record_bytes, &first);
        w->fetched += n;
    }
    if (!st)
        st = mover_await(&o->mover, first + n - 1, w->c->stream);
    call.records = o->link_records + at;
    call.experts = o->link_experts + at;
    call.n_entries = n;
    if (!st && call.pairs)
        st = offload_device_experts(o, w->c->layer, w->c->stream, &call, NULL);
    if (!st)
        st = mover_release(&o->mover, n, w->c->stream);
    w->issued = at + n;
    return st;
}

/* On a thread of the device's: the link is through with what this call asked for. */
static int32_t stamp(void *ctx)
{
    struct offload *o = ctx;
    double now = offload_now(o);
    uint64_t bits;
    memcpy(&bits, &now, sizeof bits);
    atomic_store(&o->landed_bits, bits);
    return IFX_OK;
}

/* The event that tells when all has landed.  The host, busy with its own part, would see it late: what balance learns from is stamped. */
static int32_t mark_landed(struct wide *w)
{
    struct offload *o = w->o;
    int32_t st = o->ops->event_record(o->dev, o->landed, o->mover.stream);
    if (st || !o->watch || o->config.mode != OFFLOAD_ASSIST_BALANCE)
        return st;
    atomic_store(&o->landed_bits, 0);
    st = o->ops->event_wait(o->dev, o->landed, o->watch);
    return st ? st : o->ops->host_call(o->dev, o->watch, stamp, o, NULL);
}

/* Up to `batches` more of them. */
static int32_t issue(struct wide *w, uint32_t batches)
{
    struct offload *o = w->o;
    uint32_t size = batch_size(o, w->l), total = w->plan.n_link;
    int32_t st = IFX_OK;
    while (w->issued < total && batches-- && !st) {
        uint32_t at = w->issued, end = at < w->n_ahead ? w->n_ahead : total;
        st = issue_batch(w, at, end - at < size ? end - at : size);
    }
    w->issued_all = w->issued == total;
    if (!st && w->issued_all && total && w->plan.n_cpu)
        st = mark_landed(w);
    return st;
}

/* Between CPU tasks on the calling thread: the rest of the link's work, then a look at whether it is through. */
static void meanwhile(void *ctx)
{
    struct wide *w = ctx;
    uint32_t done = 0;
    if (w->status || w->landed)
        return;
    if (!w->issued_all) {
        w->status = issue(w, 2);
        return;
    }
    if (!w->o->virtual_clock && w->plan.n_link && !w->o->ops->event_query(w->o->dev, w->o->landed, &done) && done) {
        w->landed = true;
        w->landed_at = offload_now(w->o);
    }
}

/* ---- the CPU ---- */

static int32_t compute_share(struct wide *w)
{
    struct offload *o = w->o;
    const struct offload_layer *l = w->l;
    const struct offload_plan *p = &w->plan;
    uint32_t pairs = w->c->n * l->top_k, row = 0, base = o->max_pairs + o->index_rows;
    uint32_t *index = offload_index(o, o->host_parts, pairs);
    struct offload_cpu_call call = {.layer = l, .pool = o->pool, .x = o->host_x, .ldx = l->hidden, .n_parts = p->n_cpu,
                                    .parts = o->cpu_parts, .pairs = w->host.rows, .y_rows = o->cpu_rows, .ldy = o->max_hidden,
                                    .y = o->host_parts + (uint64_t)o->index_rows * o->max_hidden, .meanwhile = meanwhile,
                                    .meanwhile_ctx = w, .any_order = offload_any_order(w->c->n, o->config.deterministic)};
    for (uint32_t i = 0; i < pairs; i++)
        index[i] = i;
    for (uint32_t i = 0; i < p->n_cpu; i++) {
        uint32_t e = p->cpu[i], first = w->host.offsets[e];
        o->cpu_parts[i] = (struct offload_part){.record = l->records + e * l->record_bytes, .expert = e, .n = o->columns[e],
                                                .first = first};
        for (uint32_t k = 0; k < o->columns[e]; k++) {
            index[w->host.rows[first + k]] = base + row;
            o->cpu_rows[first + k] = row++;
        }
    }
    struct ifx_work work = offload_work(l, IFX_WORK_HOST_EXPERTS, p->n_cpu, w->cpu_pairs);
    double began = offload_now(o), predicted = offload_cpu_seconds(o, call.parts, call.n_parts, p->n_link - w->n_ahead);
    int32_t st = offload_cpu_parts(&call, o->cpu_ws);
    if (!o->virtual_clock)
        base_pool_stay_awake(o->pool, OFFLOAD_AWAKE_SECONDS);
    if (!st && o->ops->host_work)
        o->ops->host_work(o->dev, &work);
    double took = offload_now(o) - began;
    if (!st)
        cost_observe_cpu(&o->cost, w->c->layer, w->c->n, predicted, took);
    o->stats.cpu_busy_seconds += took;
    return st;
}

/* On the stream beside, so that it need not wait until the device is through with its own part. */
static int32_t return_share(struct wide *w)
{
    struct offload *o = w->o;
    uint32_t pairs = w->c->n * w->l->top_k, index_rows = (pairs + o->max_hidden - 1) / o->max_hidden;
    uint64_t at = (uint64_t)(o->index_rows - index_rows) * o->max_hidden;
    int32_t st = o->ops->copy(o->dev, o->beside, o->parts + (uint64_t)o->max_pairs * o->max_hidden + at, o->host_parts + at,
                              (index_rows + w->cpu_pairs) * o->max_hidden * sizeof *o->parts, IFX_COPY_TO_DEVICE);
    if (!st)
        st = o->ops->event_record(o->dev, o->joined, o->beside);
    return st ? st : o->ops->event_wait(o->dev, o->joined, w->c->stream);
}

/* ---- the next layer ---- */

/* How many experts of the next layer to fetch before its router has chosen. */
static uint32_t ahead_count(const struct wide *w)
{
    const struct offload *o = w->o;
    uint32_t next = w->c->layer + 1, touched = w->plan.n_resident + w->plan.n_link + w->plan.n_cpu;
    if (next >= o->n_layers || o->narrows[next] || !o->mover.n_slots || w->plan.n_cpu ||
        touched < AHEAD_TOUCHED * w->l->experts)
        return 0;
    bool streams = o->config.mode == OFFLOAD_ASSIST_OFF || w->c->n > o->policies[next]->max_columns;
    return streams ? mover_room(&o->mover) : 0;
}

/* While this layer computes, the next one's missing experts cross, as far as the ring has room. */
static int32_t fetch_ahead(struct wide *w)
{
    struct offload *o = w->o;
    uint32_t next = w->c->layer + 1, most = ahead_count(w), n = 0;
    if (!most)
        return IFX_OK;
    const struct offload_layer *l = &o->config.layers[next];
    for (uint32_t e = 0; e < l->experts && n < most; e++)
        if (!o->table_mirror[o->key0[next] + e])
            o->ahead.experts[n++] = e;
    uint32_t size = batch_size(o, l);
    o->ahead.layer = next;
    o->ahead.first = o->mover.next;
    for (uint32_t at = 0; at < n; at += size) {
        uint32_t take = n - at < size ? n - at : size;
        uint64_t first;
        for (uint32_t i = 0; i < take; i++)
            o->sources[i] = l->records + o->ahead.experts[at + i] * l->record_bytes;
        int32_t st = mover_fetch(&o->mover, o->sources, take, l->record_bytes, &first);
        if (st)
            return st;
        o->ahead.n += take;
    }
    w->fetched += n;
    return IFX_OK;
}

/* ---- the call ---- */

static int32_t link_and_cpu(struct wide *w)
{
    int32_t st = take_ahead(w);
    if (!st && w->plan.n_link)
        st = upload_link_table(w);
    /* The link starts before the CPU does. */
    if (!st)
        st = issue(w, w->plan.n_cpu && !w->o->virtual_clock ? 2 : UINT32_MAX);
    if (!st && w->plan.n_cpu)
        st = compute_share(w);
    if (!st)
        st = w->status;
    if (!st && !w->issued_all)
        st = issue(w, UINT32_MAX);
    return st;
}

static void observe_link(struct wide *w)
{
    struct offload *o = w->o;
    uint32_t n = w->plan.n_link - w->n_ahead;
    if (w->plan.n_cpu && n && !w->landed && !o->virtual_clock && o->config.mode == OFFLOAD_ASSIST_BALANCE &&
        !o->ops->event_sync(o->dev, o->landed)) {
        /* The host has nothing better to do: the device waits for the same records. */
        w->landed = true;
        w->landed_at = offload_now(o);
    }
    uint64_t bits = o->watch ? atomic_load(&o->landed_bits) : 0;
    double stamped = 0;
    memcpy(&stamped, &bits, sizeof bits);
    if (w->landed && stamped > w->began)
        w->landed_at = stamped;
    if (w->landed && n)
        cost_observe_link(&o->cost, w->c->layer, o->cost.base.link_fixed + n * o->cost.base.link_record,
                          w->landed_at - w->began);
    o->stats.link_bytes += w->fetched * w->l->record_bytes;
    o->stats.link_busy_seconds += (double)w->fetched * o->cost.base.link_record;
    o->stats.moe_seconds += offload_now(o) - w->began;
}

int32_t offload_moe_wide(struct offload *o, const struct offload_moe_call *c)
{
    const struct offload_layer *l = &o->config.layers[c->layer];
    struct wide w = {.o = o, .c = c, .l = l, .device = offload_group_block(l, c->n, o->group_memory),
                     .host = offload_group_block(l, c->n, o->host_group)};
    struct ifx_combine combine = {.n = c->n, .top_k = l->top_k, .width = l->hidden, .parts = o->parts, .ldp = o->max_hidden,
                                  .weights = c->weights, .y = c->y, .ldy = c->ldy};
    int32_t st = may_assist(o, c) ? fetch_columns(&w) : IFX_OK;
    if (!st)
        st = group(&w);
    if (!st)
        st = start_residents(&w);
    if (!st)
        st = o->ops->event_sync(o->dev, o->grouped);
    if (st)
        return st;
    w.began = offload_now(o);
    make_plan(&w);
    count(&w);
    st = link_and_cpu(&w);
    if (!st && w.plan.n_cpu) {
        st = return_share(&w);
        combine.index = offload_index(o, o->parts + (uint64_t)o->max_pairs * o->max_hidden, c->n * l->top_k);
    }
    if (!st)
        st = o->ops->combine(o->dev, c->stream, &combine);
    if (!st)
        st = fetch_ahead(&w);
    if (!st)
        observe_link(&w);
    return st;
}
