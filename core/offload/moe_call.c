/* SPDX-License-Identifier: Apache-2.0
 *
 * moe_call.c - the MoE call: which way it goes, what is left in order after an error, statistics, measured costs.
 */
#include "moe_call.h"

#include <stdio.h>
#include <string.h>

/* What it costs a narrow call to wait for the router's choice and a step not to be captured, a layer: measured on an H200, where a decode step of
 * the 122B geometry gains by it with no expert on the device (8 misses) and loses with 3.2. */
#define SYNC_SECONDS 120e-6

double offload_now(const struct offload *o)
{
    return o->ops->now ? o->ops->now(o->dev) : base_now();
}

uint32_t *offload_index(const struct offload *o, float *base, uint32_t pairs)
{
    uint32_t rows = (pairs + o->max_hidden - 1) / o->max_hidden;
    return (uint32_t *)(void *)(base + (uint64_t)(o->index_rows - rows) * o->max_hidden);
}

struct ifx_work offload_work(const struct offload_layer *l, uint32_t kind, uint32_t experts, uint64_t pairs)
{
    return (struct ifx_work){.kind = kind, .experts = experts, .bytes = experts * l->record_bytes,
                             .flops = 6.0 * (double)l->hidden * (double)l->inter * (double)pairs};
}

double offload_cpu_seconds(const struct offload *o, const struct offload_part *parts, uint32_t n_parts, uint32_t n_link)
{
    const struct offload_cost *k = &o->cost.base;
    uint64_t columns = 0;
    for (uint32_t i = 0; i < n_parts; i++)
        columns += parts[i].n;
    double shared = offload_cost_cpu(k, n_parts, columns, true), alone = offload_cost_cpu(k, n_parts, columns, false);
    return offload_cost_cpu_finish(shared, alone, n_link ? k->link_fixed + n_link * k->link_record : 0);
}

/* ---- the call ---- */

/* Whether a call of few columns is planned by the host: when the link has to take misses, or when it pays. */
static bool plan_narrow(const struct offload *o, const struct offload_moe_call *c)
{
    const struct offload_cost *k = &o->cost.base;
    if (c->capturing || !o->mover.n_slots)
        return false;
    if (o->config.mode != OFFLOAD_ASSIST_BALANCE)
        return o->config.mode == OFFLOAD_ASSIST_OFF;
    pthread_mutex_lock((pthread_mutex_t *)&o->lock);
    double all = (double)(o->stats.hits + o->stats.misses), missed = all > 0 ? (double)o->stats.misses / all : 1;
    pthread_mutex_unlock((pthread_mutex_t *)&o->lock);
    double misses = (double)c->n * o->config.layers[c->layer].top_k * missed;
    double shared = k->cpu_shared > k->cpu_record ? k->cpu_shared : k->cpu_record;
    if (k->link_record <= 0 || shared <= 0)
        return false;
    /* Both at once, at the speed that they leave each other. */
    double together = 1 / (1 / shared + 1 / k->link_record);
    return misses * (k->cpu_record - together) > SYNC_SECONDS;
}

bool offload_capturable(const struct offload *o)
{
    struct offload_moe_call one = {.n = 1};
    return offload_all_resident(o) || ((o->ops->host_call || o->posts) && !plan_narrow(o, &one));
}

static int32_t dispatch(struct offload *o, const struct offload_moe_call *c)
{
    bool narrow = c->n <= IFX_NARROW_COLUMNS;
    if (!o->allocated || c->layer >= o->n_layers || !c->n || c->n > o->max_columns)
        return base_error(IFX_EINTERNAL, "an MoE call of layer %u with %u columns where at most %u were announced", c->layer,
                          c->n, o->max_columns);
    if (!c->layer || c->n > o->step_columns)
        o->step_columns = c->n;
    if (o->step_columns > IFX_NARROW_COLUMNS)
        o->narrows[c->layer] = c->n < o->step_columns;
    if (offload_all_resident(o))
        return offload_moe_resident(o, c);
    if (narrow && !plan_narrow(o, c))
        return offload_moe_narrow(o, c);
    pthread_mutex_lock(&o->lock);
    o->last_columns = o->step_columns;
    o->stats.calls++;
    pthread_mutex_unlock(&o->lock);
    return offload_moe_wide(o, c);
}

/* Nothing is left in flight, and what was under way is forgotten; the error stays the one that is told. */
void offload_recover(struct offload *o, void *stream)
{
    char *text = base_strdup(base_error_text());
    void *streams[] = {stream, o->beside, o->mover.stream, o->watch};
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
        if (streams[i])
            o->ops->stream_sync(o->dev, streams[i]);
    offload_jobs_reset(o);
    mover_reset(&o->mover);
    if (o->posts && o->posted)
        o->last_post = (uint32_t)(*o->posted >> 32);
    o->ahead.n = 0;
    pthread_mutex_lock(&o->lock);
    if (o->residency)
        offload_drop_promotions(o);
    pthread_mutex_unlock(&o->lock);
    if (text)
        base_error(IFX_EINTERNAL, "%s", text);
    base_free(text);
}

int32_t offload_moe(struct offload *o, const struct offload_moe_call *call)
{
    int32_t st = dispatch(o, call);
    if (st)
        offload_recover(o, call->stream);
    return st;
}

void offload_set_mode(struct offload *o, uint32_t mode, uint32_t deterministic)
{
    o->config.mode = mode;
    o->config.deterministic = deterministic;
}

void offload_set_policy(struct offload *o, const struct ifx_assist_policy *policy)
{
    for (uint32_t i = 0; i < o->n_layers; i++)
        o->policies[i] = policy ? policy : o->config.policies[i];
}

void offload_stats(struct offload *o, struct offload_stats *out)
{
    pthread_mutex_lock(&o->lock);
    *out = o->stats;
    out->frames = o->residency ? o->residency->n_frames : 0;
    out->frames_used = o->residency ? o->residency->n_used : 0;
    pthread_mutex_unlock(&o->lock);
}

/* ---- costs ---- */

void offload_cost_set(struct offload *o, const struct offload_cost *cost)
{
    o->cost.base = *cost;
}

void offload_cost_get(const struct offload *o, struct offload_cost *cost)
{
    *cost = o->cost.base;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Seconds for `count` experts of layer 0 with n columns each on the CPU. */
static int32_t time_cpu(struct offload *o, uint32_t count, uint32_t n, double *seconds)
{
    const struct offload_layer *l = &o->config.layers[0];
    struct offload_cpu_call call = {.layer = l, .pool = o->pool, .x = o->host_x, .ldx = l->hidden, .n_parts = count,
                                    .parts = o->cpu_parts, .pairs = o->cpu_rows, .y_rows = o->cpu_rows, .y = o->host_parts,
                                    .ldy = o->max_hidden, .any_order = !o->config.deterministic};
    struct ifx_work work = offload_work(l, IFX_WORK_HOST_EXPERTS, count, (uint64_t)count * n);
    for (uint32_t i = 0; i < count; i++)
        o->cpu_parts[i] = (struct offload_part){.record = l->records + i * l->record_bytes, .expert = i, .n = n, .first = i * n};
    for (uint32_t i = 0; i < count * n; i++)
        o->cpu_rows[i] = i;
    double began = offload_now(o);
    int32_t st = offload_cpu_parts(&call, o->cpu_ws);
    if (!st && o->ops->host_work)
        o->ops->host_work(o->dev, &work);
    *seconds = (offload_now(o) - began) / count;
    return st;
}

/* The same on the device, with whatever lies in the staging slots. */
static int32_t time_device(struct offload *o, uint32_t count, uint32_t n, double *seconds)
{
    const struct offload_layer *l = &o->config.layers[0];
    uint32_t columns = (count * n + l->top_k - 1) / l->top_k;
    struct group_block host = offload_group_block(l, columns, o->host_group), dev = offload_group_block(l, columns, o->group_memory);
    struct ifx_expert_device_call call = {.struct_size = sizeof call, .n = columns, .top_k = l->top_k, .n_entries = count,
                                          .records = dev.records, .experts = dev.entries, .offsets = dev.offsets,
                                          .rows = dev.rows, .widest = n, .pairs = count * n, .ldx = l->hidden, .y = o->parts,
                                          .ldy = o->max_hidden, .ws = o->ws};
    call.x = (const uint16_t *)(const void *)(o->parts + (uint64_t)o->max_pairs * o->max_hidden);
    for (uint32_t i = 0; i < count; i++) {
        host.records[i] = mover_slot_memory(&o->mover, i);
        host.entries[i] = i;
    }
    for (uint32_t e = 0; e <= l->experts; e++)
        host.offsets[e] = least(e, count) * n;
    for (uint32_t i = 0; i < count * n; i++)
        host.rows[i] = i;
    void *s = o->mover.stream;
    int32_t st = o->ops->copy(o->dev, s, o->group_memory, o->host_group, host.bytes, IFX_COPY_TO_DEVICE);
    if (!st)
        st = o->ops->fill(o->dev, s, (void *)(uintptr_t)call.x, 0, (uint64_t)columns * l->hidden * sizeof *call.x);
    if (!st)
        st = o->ops->stream_sync(o->dev, s);
    double began = offload_now(o);
    if (!st)
        st = offload_device_experts(o, 0, s, &call, NULL);
    if (!st)
        st = o->ops->stream_sync(o->dev, s);
    *seconds = (offload_now(o) - began) / count;
    return st;
}

/* One by one, as the widest experts of a call lie: not side by side. */
static int32_t start_link(struct offload *o, uint32_t count)
{
    const struct offload_layer *l = &o->config.layers[0];
    uint64_t first;
    for (uint32_t i = 0; i < count; i++)
        o->sources[i] = l->records + (count - 1 - i) * l->record_bytes;
    return mover_fetch(&o->mover, o->sources, count, l->record_bytes, &first);
}

static int32_t time_link(struct offload *o, uint32_t count, double *seconds)
{
    double began = offload_now(o);
    int32_t st = start_link(o, count);
    if (!st)
        st = o->ops->stream_sync(o->dev, o->mover.stream);
    mover_reset(&o->mover);
    *seconds = (offload_now(o) - began) / count;
    return st;
}

/* Results of the CPU on their way back, one of `rows`. */
static int32_t time_rows(struct offload *o, uint32_t rows, double *seconds)
{
    const struct offload_layer *l = &o->config.layers[0];
    double began = offload_now(o);
    int32_t st = o->ops->copy(o->dev, o->beside, o->parts, o->host_parts, (uint64_t)rows * l->hidden * sizeof *o->parts,
                              IFX_COPY_TO_DEVICE);
    int32_t end = o->ops->stream_sync(o->dev, o->beside);
    *seconds = (offload_now(o) - began) / rows;
    return st ? st : end;
}

/* The CPU at one column while the link is busy all the time. */
static int32_t time_shared(struct offload *o, uint32_t slots, uint32_t thin)
{
    struct offload_cost *k = &o->cost.base;
    double most = 0.7 * slots * k->link_record / (k->cpu_record > 0 ? k->cpu_record : 1), seconds;
    uint32_t count = most < 1 ? 1 : most < thin ? (uint32_t)most : thin;
    int32_t st = start_link(o, slots);
    if (!st)
        st = time_cpu(o, count, 1, &seconds);
    int32_t end = o->ops->stream_sync(o->dev, o->mover.stream);
    mover_reset(&o->mover);
    if (!st && !end)
        k->cpu_shared = seconds > k->cpu_record ? seconds : k->cpu_record;
    return st ? st : end;
}

/* The second of two runs counts: the first one meets cold caches and sleeping workers. */
int32_t offload_measure(struct offload *o)
{
    const struct offload_layer *l = &o->config.layers[0];
    struct offload_cost *k = &o->cost.base;
    uint32_t wide = least(64, o->max_pairs), thin = least(least(l->experts, o->max_pairs), 32);
    uint32_t thick = least(least(l->experts, o->max_pairs / wide), 8), slots = least(o->mover.n_slots, least(l->experts, 8));
    double seconds = 0;
    int32_t st = IFX_OK;
    for (uint32_t run = 0; run < 2 && !st; run++) {
        st = time_cpu(o, thin, 1, &k->cpu_record);
        if (!st)
            st = time_cpu(o, thick, wide, &seconds);
        k->cpu_column = seconds / wide;
        if (!st && slots)
            st = time_link(o, slots, &k->link_record);
        if (!st && slots)
            st = time_rows(o, least(o->max_pairs, 512), &k->link_row);
        if (!st && slots)
            st = time_shared(o, slots, thin);
        if (!st && slots)
            st = time_device(o, least(slots, o->max_pairs), 1, &k->device_record);
        if (!st && slots)
            st = time_device(o, least(slots, o->max_pairs / wide), wide, &seconds);
        k->device_column = seconds / wide;
    }
    if (!slots || k->link_record <= 0)
        return st;
    if (o->link_rate <= 0)
        o->link_rate = (double)l->record_bytes / k->link_record;
    return st;
}

int32_t offload_time(struct offload *o, uint32_t what, uint32_t count, uint32_t n, double *seconds)
{
    return what == OFFLOAD_TIME_CPU      ? time_cpu(o, count, n, seconds)
           : what == OFFLOAD_TIME_DEVICE ? time_device(o, count, n, seconds)
                                         : time_link(o, count, seconds);
}
