/* SPDX-License-Identifier: Apache-2.0 */
#include "residency.h"

#include <math.h>
#include <string.h>
#include <zlib.h>

int32_t residency_create(uint32_t n_keys, uint32_t n_frames, struct residency **out)
{
    struct residency *r = base_calloc(1, sizeof *r);
    if (!r)
        return IFX_ENOMEM;
    r->n_keys = n_keys;
    r->n_frames = r->room = n_frames;
    r->frame_of = base_calloc(n_keys, sizeof *r->frame_of);
    r->uses = base_calloc(n_keys, sizeof *r->uses);
    r->coming = base_calloc(n_keys, 1);
    r->frames = base_calloc(n_frames, sizeof *r->frames);
    if (!r->frame_of || !r->uses || !r->coming || !r->frames) {
        residency_destroy(r);
        return IFX_ENOMEM;
    }
    for (uint32_t i = 0; i < n_keys; i++)
        r->frame_of[i] = RESIDENCY_NONE;
    for (uint32_t i = 0; i < n_frames; i++)
        r->frames[i].key = RESIDENCY_NONE;
    for (uint32_t i = 0; i < RESIDENCY_HALF_LIFE; i++)
        r->decay[i] = exp2f(-(float)i / (float)RESIDENCY_HALF_LIFE);
    *out = r;
    return IFX_OK;
}

void residency_destroy(struct residency *r)
{
    if (!r)
        return;
    base_free(r->frame_of);
    base_free(r->uses);
    base_free(r->coming);
    base_free(r->frames);
    base_free(r);
}

void residency_round(struct residency *r)
{
    r->round++;
    r->n_candidates = 0;
}

/* The count as it stands `age` rounds later. */
static float decayed(const struct residency *r, float count, uint32_t age)
{
    uint32_t halvings = age / RESIDENCY_HALF_LIFE;
    if (halvings)
        count = halvings > 60 ? 0.0f : ldexpf(count, -(int)halvings);
    return count * r->decay[age % RESIDENCY_HALF_LIFE];
}

float residency_score(const struct residency *r, uint32_t key)
{
    const struct residency_use *u = &r->uses[key];
    uint32_t age = r->round - u->last;
    return decayed(r, u->count, age) / ((float)age + 1.0f);
}

void residency_use(struct residency *r, uint32_t key, float weight, bool missed)
{
    struct residency_use *u = &r->uses[key];
    u->count = decayed(r, u->count, r->round - u->last) + weight;
    u->last = r->round;
    if (missed && r->n_candidates < RESIDENCY_CANDIDATES)
        r->candidates[r->n_candidates++] = key;
}

/* The candidate with the highest score is taken off the list. */
static uint32_t take_candidate(struct residency *r)
{
    while (r->n_candidates) {
        uint32_t best = 0;
        float score = -1;
        for (uint32_t i = 0; i < r->n_candidates; i++) {
            float s = residency_score(r, r->candidates[i]);
            if (s > score) {
                score = s;
                best = i;
            }
        }
        uint32_t key = r->candidates[best];
        r->candidates[best] = r->candidates[--r->n_candidates];
        if (r->frame_of[key] == RESIDENCY_NONE && !r->coming[key])
            return key;
    }
    return RESIDENCY_NONE;
}

/* A free frame, or the used one whose expert has the lowest score, when that is below `score`. */
static uint32_t find_frame(const struct residency *r, const uint8_t *protect, float score)
{
    uint32_t lowest = RESIDENCY_NONE;
    for (uint32_t f = 0; f < r->n_frames; f++) {
        const struct residency_frame *fr = &r->frames[f];
        if (fr->state == FRAME_FREE)
            return f;
        if (fr->state != FRAME_USED || (protect && protect[fr->key]))
            continue;
        float s = residency_score(r, fr->key);
        if (s < score) {
            score = s;
            lowest = f;
        }
    }
    return lowest;
}

bool residency_promote(struct residency *r, const uint8_t *protect, uint32_t *key, uint32_t *frame, uint32_t *victim)
{
    *key = take_candidate(r);
    if (*key == RESIDENCY_NONE)
        return false;
    *frame = find_frame(r, protect, residency_score(r, *key));
    if (*frame == RESIDENCY_NONE)
        return false;
    struct residency_frame *f = &r->frames[*frame];
    *victim = f->state == FRAME_USED ? f->key : RESIDENCY_NONE;
    if (*victim != RESIDENCY_NONE)
        r->frame_of[*victim] = RESIDENCY_NONE;
    else
        r->n_used++;
    *f = (struct residency_frame){.key = *key, .state = FRAME_FILLING};
    r->coming[*key] = 1;
    return true;
}

void residency_filled(struct residency *r, uint32_t frame)
{
    uint32_t key = r->frames[frame].key;
    r->frames[frame].state = FRAME_USED;
    r->frame_of[key] = frame;
    r->coming[key] = 0;
}

void residency_cancel(struct residency *r, uint32_t frame)
{
    r->coming[r->frames[frame].key] = 0;
    r->frames[frame] = (struct residency_frame){.key = RESIDENCY_NONE, .state = FRAME_FREE};
    r->n_used--;
}

uint32_t residency_place(struct residency *r, uint32_t key)
{
    if (r->frame_of[key] != RESIDENCY_NONE || r->n_used >= r->n_frames)
        return RESIDENCY_NONE;
    for (uint32_t f = 0; f < r->n_frames; f++) {
        if (r->frames[f].state != FRAME_FREE)
            continue;
        r->frames[f] = (struct residency_frame){.key = key, .state = FRAME_USED};
        r->frame_of[key] = f;
        r->n_used++;
        return f;
    }
    return RESIDENCY_NONE;
}

uint32_t residency_evict(struct residency *r, uint32_t key)
{
    uint32_t frame = r->frame_of[key];
    if (frame != RESIDENCY_NONE) {
        residency_cancel(r, frame);
        r->frame_of[key] = RESIDENCY_NONE;
    }
    return frame;
}

void residency_resize(struct residency *r, uint32_t n_frames, void (*gone)(void *ctx, uint32_t key), void *ctx)
{
    if (n_frames > r->room)
        n_frames = r->room;
    for (uint32_t f = n_frames; f < r->n_frames; f++) {
        uint32_t key = r->frames[f].key;
        if (r->frames[f].state != FRAME_USED)
            continue;
        residency_evict(r, key);
        if (gone)
            gone(ctx, key);
    }
    r->n_frames = n_frames;
}

/* ---- the ranking in a file ----
 * Little-endian throughout: magic, version, identity, n_keys floats of score, CRC-32 of all before. */

#define STATE_MAGIC   "IFXSTATE"
#define STATE_VERSION 1u

struct state_header {
    char magic[8];
    uint32_t version, n_layers, n_keys, reserved;
    uint64_t record_bytes, check;
};
_Static_assert(sizeof(struct state_header) == 40, "the header has no padding");

static struct state_header header_of(const struct residency_identity *id)
{
    struct state_header h = {.version = STATE_VERSION, .n_layers = id->n_layers, .n_keys = id->n_keys,
                             .record_bytes = id->record_bytes, .check = id->check};
    memcpy(h.magic, STATE_MAGIC, sizeof h.magic);
    return h;
}

int32_t residency_save(const struct residency *r, const struct residency_identity *id, const char *path)
{
    struct state_header h = header_of(id);
    uint64_t bytes = sizeof h + (uint64_t)r->n_keys * sizeof(float);
    uint8_t *data = base_calloc(bytes + sizeof(uint32_t), 1);
    struct base_out *out = NULL;
    if (!data)
        return IFX_ENOMEM;
    memcpy(data, &h, sizeof h);
    for (uint32_t k = 0; k < r->n_keys; k++) {
        /* Age matters less in the next run than how often: what is resident keeps its place. */
        float score = decayed(r, r->uses[k].count, r->round - r->uses[k].last);
        memcpy(data + sizeof h + k * sizeof score, &score, sizeof score);
    }
    uint32_t crc = (uint32_t)crc32_z(0, data, bytes);
    memcpy(data + bytes, &crc, sizeof crc);
    int32_t st = base_out_open(path, true, &out);
    if (!st)
        st = base_out_write(out, data, bytes + sizeof crc);
    if (!st)
        st = base_out_commit(&out);
    else
        base_out_abort(&out);
    base_free(data);
    return st;
}

static int32_t check_state(const struct residency_identity *id, const char *path, const char *data, uint64_t bytes)
{
    struct state_header want = header_of(id), have;
    uint64_t full = sizeof have + (uint64_t)id->n_keys * sizeof(float) + sizeof(uint32_t);
    uint32_t crc;
    if (bytes < sizeof have || memcmp(data, STATE_MAGIC, 8) != 0)
        return base_error(IFX_EFORMAT, "%s: no expert ranking", path);
    memcpy(&have, data, sizeof have);
    if (have.version != want.version)
        return base_error(IFX_EFORMAT, "%s: version %u where %u is read", path, have.version, want.version);
    if (memcmp(&have, &want, sizeof have) != 0)
        return base_error(IFX_EFORMAT, "%s: of another model", path);
    if (bytes != full)
        return base_error(IFX_EFORMAT, "%s: %llu bytes where %llu are expected", path, (unsigned long long)bytes,
                          (unsigned long long)full);
    memcpy(&crc, data + full - sizeof crc, sizeof crc);
    if (crc != (uint32_t)crc32_z(0, (const uint8_t *)data, full - sizeof crc))
        return base_error(IFX_EFORMAT, "%s: damaged (the checksum is wrong)", path);
    return IFX_OK;
}

/* Keys with a score, the highest first; lower keys first among equals.  Merge sort in steps, `spare` as long as keys. */
static void sort_keys(const float *score, uint32_t *keys, uint32_t *spare, uint32_t n)
{
    for (uint64_t width = 1; width < n; width *= 2) {
        for (uint64_t at = 0; at < n; at += 2 * width) {
            uint64_t a = at, mid = at + width < n ? at + width : n, b = mid, end = at + 2 * width < n ? at + 2 * width : n;
            for (uint64_t i = at; i < end; i++)
                spare[i] = b >= end || (a < mid && score[keys[a]] >= score[keys[b]]) ? keys[a++] : keys[b++];
        }
        memcpy(keys, spare, n * sizeof *keys);
    }
}

int32_t residency_load(struct residency *r, const struct residency_identity *id, const char *path, uint32_t *keys, uint32_t *n)
{
    char *data = NULL;
    uint64_t bytes = 0;
    *n = 0;
    if (base_read_file(path, 64u << 20, &data, &bytes)) {
        base_error_clear();
        return IFX_ENOTFOUND;
    }
    int32_t st = check_state(id, path, data, bytes);
    float *score = st ? NULL : base_calloc(id->n_keys, sizeof *score);
    uint32_t *spare = st ? NULL : base_calloc(id->n_keys, sizeof *spare);
    if (!st && (!score || !spare))
        st = IFX_ENOMEM;
    for (uint32_t k = 0; !st && k < id->n_keys; k++) {
        memcpy(&score[k], data + sizeof(struct state_header) + k * sizeof *score, sizeof *score);
        if (!isfinite(score[k]) || score[k] < 0)
            score[k] = 0;
        r->uses[k] = (struct residency_use){.count = score[k], .last = r->round};
        if (score[k] > 0)
            keys[(*n)++] = k;
    }
    if (!st)
        sort_keys(score, keys, spare, *n);
    base_free(spare);
    base_free(score);
    base_free(data);
    return st;
}
