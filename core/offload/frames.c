/* SPDX-License-Identifier: Apache-2.0
 *
 * frames.c - residents: tables on the device that name them, promotions between steps, the ranking that outlives a run.
 *
 * The device resolves residency from its table in the order of the stream, so what a call sees is what stood there when the
 * call was enqueued.  A frame is overwritten only when a table that no longer names it has been uploaded, and named only when
 * its bytes have landed.
 */
#include "moe_call.h"

#include <string.h>

uint8_t *offload_frame(const struct offload *o, uint32_t frame)
{
    return o->segments[frame / o->segment_frames] + (uint64_t)(frame % o->segment_frames) * o->frame_bytes;
}

static uint32_t layer_of(const struct offload *o, uint32_t key)
{
    uint32_t l = 0;
    while (l + 1 < o->n_layers && key >= o->key0[l + 1])
        l++;
    return l;
}

static void set_entry(struct offload *o, uint32_t key, const void *record)
{
    uint32_t l = layer_of(o, key);
    if (!o->table_mirror[key] && record) {
        o->resident_count[l]++;
        o->n_resident++;
    }
    if (o->table_mirror[key] && !record) {
        o->resident_count[l]--;
        o->n_resident--;
    }
    o->table_mirror[key] = record;
    o->dirty[l] = 1;
}

void offload_place(struct offload *o, uint32_t key, uint32_t frame)
{
    set_entry(o, key, offload_frame(o, frame));
}

void offload_unplace(struct offload *o, uint32_t key)
{
    set_entry(o, key, NULL);
}

int32_t offload_upload_tables(struct offload *o, void *stream)
{
    for (uint32_t l = 0; l < o->n_layers; l++) {
        if (!o->dirty[l])
            continue;
        uint32_t key = o->key0[l];
        int32_t st = o->ops->copy(o->dev, stream, o->table + key, o->table_mirror + key,
                                  o->config.layers[l].experts * sizeof *o->table, IFX_COPY_TO_DEVICE);
        if (st)
            return st;
        o->dirty[l] = 0;
    }
    return IFX_OK;
}

static const uint8_t *record_of(const struct offload *o, uint32_t key, uint64_t *bytes)
{
    uint32_t l = layer_of(o, key);
    const struct offload_layer *layer = &o->config.layers[l];
    *bytes = layer->record_bytes;
    return layer->records + (uint64_t)(key - o->key0[l]) * layer->record_bytes;
}

/* ---- promotions ---- */

void offload_drop_promotions(struct offload *o)
{
    for (uint32_t i = 0; i < OFFLOAD_PROMOTIONS; i++) {
        if (o->promotions[i].busy)
            residency_cancel(o->residency, o->promotions[i].frame);
        o->promotions[i].busy = false;
    }
    /* An upload may have failed after it was enqueued: then the device still has addresses of frames that were given to others. */
    memset(o->dirty, 1, o->n_layers);
}

static int32_t take_landed(struct offload *o)
{
    for (uint32_t i = 0; i < OFFLOAD_PROMOTIONS; i++) {
        uint32_t done = 0, frame = o->promotions[i].frame;
        if (!o->promotions[i].busy)
            continue;
        int32_t st = o->ops->event_query(o->dev, o->promotions[i].landed, &done);
        if (st)
            return st;
        if (!done)
            continue;
        o->promotions[i].busy = false;
        residency_filled(o->residency, frame);
        offload_place(o, o->residency->frames[frame].key, frame);
    }
    return IFX_OK;
}

static uint64_t promotion_budget(const struct offload *o)
{
    if (o->config.promote_bytes)
        return o->config.promote_bytes;
    double bytes = (o->link_rate > 0 ? o->link_rate : 16e9) * 2e-3;
    return bytes > (double)o->frame_bytes ? (uint64_t)bytes : o->frame_bytes;
}

/* Chooses what to promote and where; `chosen` are indices of promotions. */
static uint32_t choose(struct offload *o, uint32_t *chosen)
{
    uint64_t left = promotion_budget(o);
    uint32_t n = 0, key, frame, victim;
    for (uint32_t i = 0; i < OFFLOAD_PROMOTIONS && left >= o->frame_bytes; i++) {
        if (o->promotions[i].busy)
            continue;
        if (!residency_promote(o->residency, NULL, &key, &frame, &victim))
            break;
        if (victim != RESIDENCY_NONE) {
            offload_unplace(o, victim);
            o->stats.evictions++;
        }
        o->promotions[i].busy = true;
        o->promotions[i].frame = frame;
        chosen[n++] = i;
        left -= o->frame_bytes;
    }
    return n;
}

static int32_t start(struct offload *o, uint32_t promotion)
{
    uint64_t bytes;
    uint32_t frame = o->promotions[promotion].frame;
    const uint8_t *record = record_of(o, o->residency->frames[frame].key, &bytes);
    int32_t st = o->ops->copy(o->dev, o->mover.stream, offload_frame(o, frame), record, bytes, IFX_COPY_TO_DEVICE);
    if (!st)
        st = o->ops->event_record(o->dev, o->promotions[promotion].landed, o->mover.stream);
    o->stats.promotions++;
    o->stats.promoted_bytes += bytes;
    return st;
}

static int32_t begin(struct offload *o, void *stream)
{
    uint32_t chosen[OFFLOAD_PROMOTIONS], n = 0;
    int32_t st = take_landed(o);
    if (st)
        return st;
    /* After a wide call the link has better things to do, and its misses say little about the next tokens. */
    if (o->last_columns && o->last_columns <= IFX_NARROW_COLUMNS)
        n = choose(o, chosen);
    residency_round(o->residency);
    st = offload_upload_tables(o, stream);
    if (!st && n)
        st = o->ops->event_record(o->dev, o->table_done, stream);
    if (!st && n)
        st = o->ops->event_wait(o->dev, o->table_done, o->mover.stream);
    for (uint32_t i = 0; i < n && !st; i++)
        st = start(o, chosen[i]);
    return st;
}

int32_t offload_begin_step(struct offload *o, void *stream)
{
    if (!o->residency)
        return IFX_OK;
    pthread_mutex_lock(&o->lock);
    o->step_columns = 0; /* a captured step does not tell */
    int32_t st = begin(o, stream);
    pthread_mutex_unlock(&o->lock);
    if (!st)
        return IFX_OK;
    /* What was under way may or may not have landed: nothing in those frames is used. */
    o->ops->stream_sync(o->dev, o->mover.stream);
    pthread_mutex_lock(&o->lock);
    offload_drop_promotions(o);
    pthread_mutex_unlock(&o->lock);
    return st;
}

/* ---- size ---- */

static void unplace_gone(void *ctx, uint32_t key)
{
    struct offload *o = ctx;
    offload_unplace(o, key);
    o->stats.evictions++;
}

static int32_t quiesce(struct offload *o)
{
    int32_t st = o->ops->stream_sync(o->dev, o->mover.stream);
    if (!st)
        st = take_landed(o);
    offload_drop_promotions(o);
    return st;
}

int32_t offload_resize(struct offload *o, uint32_t frames)
{
    if (!o->residency)
        return frames ? base_error(IFX_EINVAL, "no frames were allocated at the start") : IFX_OK;
    if (frames > o->residency->room)
        return base_error(IFX_ELIMIT, "%u frames: room was made for %u at the start", frames, o->residency->room);
    uint32_t segments = (frames + o->segment_frames - 1) / o->segment_frames;
    int32_t st = quiesce(o);
    for (uint32_t i = 0; i < segments && !st; i++) {
        void *memory = NULL;
        if (o->segments[i])
            continue;
        st = o->ops->mem_alloc(o->dev, o->segment_frames * o->frame_bytes, &memory);
        o->segments[i] = memory;
    }
    if (st)
        return st; /* what is more than before is not used */
    residency_resize(o->residency, frames, unplace_gone, o);
    st = offload_upload_tables(o, o->mover.stream);
    if (!st)
        st = o->ops->stream_sync(o->dev, o->mover.stream);
    for (uint32_t i = segments; i < OFFLOAD_SEGMENTS && !st; i++) {
        if (o->segments[i])
            o->ops->mem_free(o->dev, o->segments[i]);
        o->segments[i] = NULL;
    }
    return st;
}

/* ---- the ranking ---- */

static struct residency_identity identity(const struct offload *o)
{
    struct residency_identity id = {.record_bytes = o->frame_bytes, .n_layers = o->n_layers, .n_keys = o->n_keys};
    /* FNV-1a over geometry and format: what another model or bank has differently. */
    id.check = 0xcbf29ce484222325u;
    for (uint32_t l = 0; l < o->n_layers; l++) {
        const struct offload_layer *layer = &o->config.layers[l];
        const uint32_t words[] = {layer->experts, layer->top_k, layer->hidden, layer->inter};
        for (size_t i = 0; i < sizeof words; i++)
            id.check = (id.check ^ ((const uint8_t *)words)[i]) * 0x100000001b3u;
        for (const char *p = layer->ops->format; *p; p++)
            id.check = (id.check ^ (uint8_t)*p) * 0x100000001b3u;
    }
    return id;
}

static int32_t fill_by_rank(struct offload *o, const uint32_t *keys, uint32_t n)
{
    int32_t st = IFX_OK;
    for (uint32_t i = 0; i < n && !st; i++) {
        uint64_t bytes;
        uint32_t frame = residency_place(o->residency, keys[i]);
        if (frame == RESIDENCY_NONE)
            break;
        const uint8_t *record = record_of(o, keys[i], &bytes);
        st = o->ops->copy(o->dev, o->mover.stream, offload_frame(o, frame), record, bytes, IFX_COPY_TO_DEVICE);
        if (!st)
            offload_place(o, keys[i], frame);
        o->stats.promoted_bytes += st ? 0 : bytes;
    }
    if (!st)
        st = offload_upload_tables(o, o->mover.stream);
    return st ? st : o->ops->stream_sync(o->dev, o->mover.stream);
}

/* What no ranking names is taken as it comes, the same share of each layer: better than a frame that waits for its first miss. */
int32_t offload_fill(struct offload *o)
{
    int32_t st = IFX_OK;
    uint32_t n = 0, *keys;
    if (!o->residency || o->residency->n_used >= o->residency->n_frames)
        return IFX_OK;
    keys = base_calloc(o->n_keys, sizeof *keys);
    if (!keys)
        return IFX_ENOMEM;
    for (uint32_t e = 0; e < o->max_experts; e++)
        for (uint32_t l = 0; l < o->n_layers; l++)
            if (e < o->config.layers[l].experts && !o->table_mirror[o->key0[l] + e])
                keys[n++] = o->key0[l] + e;
    st = fill_by_rank(o, keys, n);
    base_free(keys);
    return st;
}

int32_t offload_state_load(struct offload *o, const char *path)
{
    uint32_t n = 0;
    if (!o->residency)
        return IFX_OK;
    struct residency_identity id = identity(o);
    uint32_t *keys = base_calloc(o->n_keys, sizeof *keys);
    if (!keys)
        return IFX_ENOMEM;
    int32_t st = residency_load(o->residency, &id, path, keys, &n);
    if (st == IFX_EFORMAT)
        base_log(IFX_LOG_INFO, "the experts' ranking is not used: %s", base_error_text());
    if (st == IFX_EFORMAT || st == IFX_ENOTFOUND) {
        base_error_clear();
        st = IFX_OK;
    } else if (!st) {
        st = fill_by_rank(o, keys, n);
    }
    base_free(keys);
    return st;
}

int32_t offload_state_save(struct offload *o, const char *path)
{
    if (!o->residency || !o->stats.calls)
        return IFX_OK;
    struct residency_identity id = identity(o);
    return residency_save(o->residency, &id, path);
}
