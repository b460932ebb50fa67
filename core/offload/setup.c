/* SPDX-License-Identifier: Apache-2.0
 *
 * setup.c - opening: what calls need, taking the memory, the end.
 */
#include "moe_call.h"

#include <string.h>

/* So much of staging keeps the link busy while the device does a layer's dense part. */
#define STAGING_BYTES (384ull << 20)
#define BATCH_SLOTS   4u

static uint64_t pad(uint64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static uint32_t most(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

struct group_block offload_group_block(const struct offload_layer *l, uint32_t n, uint8_t *memory)
{
    uint64_t pairs = (uint64_t)n * l->top_k, entries = pairs < l->experts ? pairs : l->experts;
    struct group_block b = {.records = (const void **)(void *)memory};
    uint64_t at = entries * sizeof *b.records;
    b.entries = (uint32_t *)(void *)(memory + at);
    b.offsets = b.entries + entries;
    b.rows = b.offsets + l->experts + 1;
    b.bytes = at + (entries + l->experts + 1 + pairs) * sizeof(uint32_t);
    return b;
}

/* ---- create ---- */

static int32_t take_geometry(struct offload *o)
{
    for (uint32_t i = 0; i < o->n_layers; i++) {
        const struct offload_layer *l = &o->config.layers[i];
        uint64_t pairs = (uint64_t)o->max_columns * l->top_k;
        if (pairs > INT32_MAX || o->n_keys > UINT32_MAX - l->experts)
            return base_error(IFX_ELIMIT, "%u columns of %u experts each are too many for one step", o->max_columns, l->top_k);
        o->key0[i] = o->n_keys;
        o->n_keys += l->experts;
        o->max_pairs = most(o->max_pairs, (uint32_t)pairs);
        o->max_experts = most(o->max_experts, l->experts);
        o->max_hidden = most(o->max_hidden, l->hidden);
        o->frame_bytes = l->record_bytes > o->frame_bytes ? l->record_bytes : o->frame_bytes;
        o->policies[i] = o->config.policies[i];
    }
    o->index_rows = (o->max_pairs + o->max_hidden - 1) / o->max_hidden;
    return IFX_OK;
}

static void take_ws(struct offload *o)
{
    for (uint32_t i = 0; i < o->n_layers; i++) {
        const struct offload_layer *l = &o->config.layers[i];
        uint64_t side = offload_side_ws_bytes(o, i, o->max_columns);
        uint64_t cpu = offload_cpu_parts_ws_bytes(l, o->max_columns);
        o->ws_bytes = side > o->ws_bytes ? side : o->ws_bytes;
        o->cpu_ws_bytes = cpu > o->cpu_ws_bytes ? cpu : o->cpu_ws_bytes;
    }
}

int32_t offload_create(const struct offload_config *config, struct offload **out)
{
    struct offload *o = base_calloc(1, sizeof *o);
    if (!o)
        return IFX_ENOMEM;
    pthread_mutex_init(&o->lock, NULL);
    o->dev = config->dev;
    o->ops = config->dev->ops;
    o->pool = config->pool;
    o->config = *config;
    o->n_layers = config->n_layers;
    o->max_columns = config->max_columns;
    o->key0 = base_calloc(o->n_layers, sizeof *o->key0);
    o->policies = base_calloc(o->n_layers, sizeof *o->policies);
    o->sides = base_calloc(o->n_layers, sizeof *o->sides);
    o->side_of = base_calloc(o->n_layers, sizeof *o->side_of);
    int32_t st = o->key0 && o->policies && o->sides && o->side_of ? take_geometry(o) : IFX_ENOMEM;
    /* Hand-overs move whole words of 4 and 16 bytes: rows of another width go by host calls. */
    o->posts = config->dev->ops->post && config->dev->ops->await && o->max_hidden % 8 == 0;
    if (!st)
        st = offload_sides_open(o);
    if (st) {
        offload_destroy(o);
        return st;
    }
    take_ws(o);
    *out = o;
    return IFX_OK;
}

/* ---- memory ---- */

enum where { ON_DEVICE, ON_HOST_PINNED, ON_HOST };
struct want {
    void **at;
    enum where where;
    uint64_t bytes;
};
#define N_WANTS 23
#define WANT(member, place, size) {(void **)(void *)&(member), place, size}

/* All buffers of fixed size, once for the ledger and once to take them. */
static void list_wants(struct offload *o, struct want w[N_WANTS])
{
    uint64_t e = o->max_experts, p = o->max_pairs, row = o->max_hidden * sizeof(float);
    uint64_t block = e * 8 + (e + e + 1 + p) * sizeof(uint32_t), group_ws = 0;
    for (uint32_t l = 0; l < o->n_layers; l++) {
        const struct offload_layer *layer = &o->config.layers[l];
        uint64_t bytes = o->ops->group_ws_bytes(o->dev, o->max_columns, layer->top_k, layer->experts);
        group_ws = bytes > group_ws ? bytes : group_ws;
    }
    bool jobs = false;
    for (uint32_t i = 0; i < o->n_sides; i++)
        jobs |= o->computes && !o->sides[i].opened;
    o->n_jobs = jobs ? 2 * (o->max_experts + 2) + o->n_layers : 0;
    const struct want all[N_WANTS] = {
        WANT(o->table, ON_DEVICE, o->n_keys * sizeof *o->table),
        WANT(o->group_memory, ON_DEVICE, block),
        WANT(o->group_ws, ON_DEVICE, group_ws),
        WANT(o->ws, ON_DEVICE, o->ws_bytes),
        WANT(o->link_experts, ON_DEVICE, e * sizeof *o->link_experts),
        WANT(o->link_records, ON_DEVICE, e * sizeof *o->link_records),
        WANT(o->parts, ON_DEVICE, (2 * p + o->index_rows) * row),
        WANT(o->table_mirror, ON_HOST_PINNED, o->n_keys * sizeof *o->table),
        WANT(o->host_group, ON_HOST_PINNED, block),
        WANT(o->host_x, ON_HOST_PINNED, (uint64_t)o->max_columns * o->max_hidden * sizeof *o->host_x),
        WANT(o->host_link, ON_HOST_PINNED, e * (sizeof *o->link_records + sizeof *o->link_experts)),
        WANT(o->host_parts, ON_HOST_PINNED, (p + o->index_rows) * row),
        WANT(o->post_counter, ON_DEVICE, o->posts ? sizeof *o->post_counter : 0),
        WANT(o->posted, ON_HOST_PINNED, o->posts ? sizeof *o->posted : 0),
        WANT(o->answer, ON_HOST_PINNED, o->posts ? sizeof *o->answer : 0),
        WANT(o->cpu_ws, ON_HOST, o->cpu_ws_bytes),
        WANT(o->job_ws, ON_HOST, jobs ? o->cpu_ws_bytes : 0),
        WANT(o->cpu_parts, ON_HOST, e * sizeof *o->cpu_parts),
        WANT(o->job_parts, ON_HOST, jobs ? e * sizeof *o->job_parts : 0),
        WANT(o->cpu_rows, ON_HOST, p * sizeof *o->cpu_rows),
        WANT(o->jobs, ON_HOST, o->n_jobs * sizeof *o->jobs),
        WANT(o->narrow, ON_HOST, (uint64_t)o->n_layers * IFX_NARROW_COLUMNS * sizeof *o->narrow),
        WANT(o->columns, ON_HOST, e * (4 * sizeof *o->columns + sizeof *o->ahead.experts + sizeof *o->sources + 1)),
    };
    memcpy(w, all, sizeof all);
}

void offload_memory(const struct offload *o, struct offload_memory *out)
{
    struct want w[N_WANTS];
    *out = (struct offload_memory){.frame_bytes = o->frame_bytes, .least_slots = MOVER_LEAST_SLOTS, .n_experts = o->n_keys};
    list_wants((struct offload *)o, w);
    for (uint32_t i = 0; i < N_WANTS; i++)
        *(w[i].where == ON_DEVICE        ? &out->device_fixed
          : w[i].where == ON_HOST_PINNED ? &out->host_pinned
                                         : &out->host_other) += pad(w[i].bytes);
    uint64_t useful = STAGING_BYTES / o->frame_bytes;
    out->useful_slots = useful < 2 * BATCH_SLOTS ? 2 * BATCH_SLOTS : useful > o->max_experts ? o->max_experts : (uint32_t)useful;
    if (out->useful_slots < MOVER_LEAST_SLOTS)
        out->useful_slots = MOVER_LEAST_SLOTS;
    if (!o->computes)
        out->least_slots = out->useful_slots = 0;
}

bool offload_divide(const struct offload_memory *m, uint64_t bytes, uint32_t *frames, uint32_t *slots)
{
    uint64_t n = bytes / m->frame_bytes;
    *frames = *slots = 0;
    if (n < m->least_slots)
        return false;
    if (!m->least_slots)
        return true;
    /* A quarter for staging at most: what is resident need not cross at all. */
    uint64_t s = n / 4 < m->useful_slots ? n / 4 : m->useful_slots;
    if (s < m->least_slots)
        s = m->least_slots;
    *slots = (uint32_t)s;
    *frames = n - s < m->n_experts ? (uint32_t)(n - s) : m->n_experts;
    return true;
}

static int32_t take_one(struct offload *o, const struct want *w)
{
    if (!w->bytes)
        return IFX_OK;
    if (w->where == ON_DEVICE)
        return o->ops->mem_alloc(o->dev, w->bytes, w->at);
    if (w->where == ON_HOST_PINNED)
        return o->ops->host_alloc(o->dev, w->bytes, w->at);
    *w->at = base_calloc(w->bytes, 1);
    return *w->at ? IFX_OK : IFX_ENOMEM;
}

/* Smaller arrays share one block with `columns`. */
static void cut_lists(struct offload *o)
{
    o->sources = (const uint8_t **)(void *)o->columns;
    o->columns = (uint32_t *)(void *)(o->sources + o->max_experts);
    o->plan_ids = o->columns + o->max_experts;
    o->ahead.experts = o->plan_ids + 3ull * o->max_experts;
    o->resident = (uint8_t *)(o->ahead.experts + o->max_experts);
    for (uint32_t i = 0; i < o->n_layers * IFX_NARROW_COLUMNS; i++)
        o->narrow[i] = (struct narrow_job){.o = o, .layer = i / IFX_NARROW_COLUMNS, .n = i % IFX_NARROW_COLUMNS + 1};
}

static int32_t take_frames(struct offload *o, uint32_t frames)
{
    int32_t st = residency_create(o->n_keys, frames, &o->residency);
    o->segment_frames = frames ? (frames + OFFLOAD_SEGMENTS - 1) / OFFLOAD_SEGMENTS : 1;
    for (uint32_t i = 0; i * (uint64_t)o->segment_frames < frames && !st; i++) {
        void *memory = NULL;
        uint64_t left = frames - i * (uint64_t)o->segment_frames;
        uint64_t n = left < o->segment_frames ? left : o->segment_frames;
        st = o->ops->mem_alloc(o->dev, n * o->frame_bytes, &memory);
        o->segments[i] = memory;
    }
    return st;
}

static int32_t take_events(struct offload *o)
{
    void **events[] = {&o->forked, &o->joined, &o->grouped, &o->landed, &o->table_done, &o->enqueued};
    int32_t st = o->ops->stream_create(o->dev, &o->beside);
    if (!st && o->ops->host_call && !o->virtual_clock)
        st = o->ops->stream_create(o->dev, &o->watch);
    for (size_t i = 0; i < sizeof events / sizeof *events && !st; i++)
        st = o->ops->event_create(o->dev, events[i]);
    for (uint32_t i = 0; i < OFFLOAD_PROMOTIONS && !st; i++)
        st = o->ops->event_create(o->dev, &o->promotions[i].landed);
    return st;
}

int32_t offload_allocate(struct offload *o, uint32_t frames, uint32_t slots)
{
    struct want w[N_WANTS];
    int32_t st = IFX_OK;
    list_wants(o, w);
    if (!slots || !o->computes)
        slots = frames = 0;
    for (uint32_t i = 0; i < N_WANTS && !st; i++)
        st = take_one(o, &w[i]);
    o->dirty = base_calloc(o->n_layers, 1);
    o->resident_count = base_calloc(o->n_layers, sizeof *o->resident_count);
    o->narrows = base_calloc(o->n_layers, 1);
    if (!st && (!o->dirty || !o->resident_count || !o->narrows))
        st = IFX_ENOMEM;
    if (!st)
        st = cost_create(o->n_layers, &o->cost);
    if (!st)
        st = take_events(o);
    if (!st)
        st = mover_create(o->dev, o->frame_bytes, slots, &o->mover);
    if (!st)
        st = take_frames(o, frames);
    if (st)
        return base_error_prefix(st, "memory for %u expert frames and %u staging slots of %llu bytes", frames, slots,
                                 (unsigned long long)o->frame_bytes);
    cut_lists(o);
    o->allocated = true;
    o->stats.frame_bytes = o->frame_bytes;
    memset(o->table_mirror, 0, o->n_keys * sizeof *o->table_mirror);
    if (o->posts) {
        *o->posted = *o->answer = 0;
        st = o->ops->fill(o->dev, o->mover.stream, o->post_counter, 0, sizeof *o->post_counter);
    }
    if (st)
        return st;
    memset(o->dirty, 1, o->n_layers);
    o->narrows[o->n_layers - 1] = 1; /* until it is seen otherwise */
    st = offload_upload_tables(o, o->mover.stream);
    return st ? st : o->ops->stream_sync(o->dev, o->mover.stream);
}

void offload_destroy(struct offload *o)
{
    if (!o)
        return;
    struct want w[N_WANTS];
    void *events[] = {o->forked, o->joined, o->grouped, o->landed, o->table_done, o->enqueued};
    if (o->mover.stream)
        o->ops->stream_sync(o->dev, o->mover.stream);
    mover_destroy(&o->mover);
    if (o->allocated)
        o->columns = (uint32_t *)(void *)o->sources;
    list_wants(o, w);
    for (uint32_t i = 0; i < N_WANTS; i++) {
        if (!*w[i].at)
            continue;
        if (w[i].where == ON_DEVICE)
            o->ops->mem_free(o->dev, *w[i].at);
        else if (w[i].where == ON_HOST_PINNED)
            o->ops->host_free(o->dev, *w[i].at);
        else
            base_free(*w[i].at);
    }
    for (uint32_t i = 0; i < OFFLOAD_SEGMENTS; i++)
        if (o->segments[i])
            o->ops->mem_free(o->dev, o->segments[i]);
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i])
            o->ops->event_destroy(o->dev, events[i]);
    for (uint32_t i = 0; i < OFFLOAD_PROMOTIONS; i++)
        if (o->promotions[i].landed)
            o->ops->event_destroy(o->dev, o->promotions[i].landed);
    if (o->beside)
        o->ops->stream_destroy(o->dev, o->beside);
    if (o->watch)
        o->ops->stream_destroy(o->dev, o->watch);
    offload_sides_close(o);
    residency_destroy(o->residency);
    cost_destroy(&o->cost);
    base_free(o->dirty);
    base_free(o->resident_count);
    base_free(o->narrows);
    base_free(o->key0);
    base_free(o->policies);
    base_free(o->sides);
    base_free(o->side_of);
    pthread_mutex_destroy(&o->lock);
    base_free(o);
}
