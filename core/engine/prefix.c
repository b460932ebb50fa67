/* SPDX-License-Identifier: Apache-2.0
 *
 * prefix.c - beginnings of prompts that are kept for the next one.
 *
 * A snapshot holds the recurrent state in host memory, and shares the KV blocks with the sequence that wrote them.  Tokens are only ever appended,
 * so what a snapshot covers of a partly filled block stays as it is while that sequence goes on; a sequence that begins with a snapshot copies
 * such a block, because it will append to it too.
 */
#include "engine.h"

#include <string.h>

static uint64_t blocks_of(uint64_t tokens)
{
    return (tokens + ENGINE_PAGE_TOKENS - 1) / ENGINE_PAGE_TOKENS;
}

int32_t prefix_create(struct ifx_model *m, uint64_t bytes, bool grid_only)
{
    struct prefix_cache *c = &m->prefix;
    c->stats.bytes_limit = bytes;
    c->grid_only = grid_only;
    if (!bytes || !m->pool.n_blocks)
        return IFX_OK;
    c->holders = base_calloc(m->pool.n_blocks, sizeof *c->holders);
    return c->holders ? IFX_OK : IFX_ENOMEM;
}

/* ---- snapshots ---- */

static uint64_t own_bytes(const struct ifx_model *m, const struct snapshot *x)
{
    return m->desc->state_bytes + x->n * sizeof *x->tokens;
}

static void free_snapshot(struct snapshot *x)
{
    if (!x)
        return;
    base_free(x->tokens);
    base_free(x->blocks);
    base_free(x->state);
    base_free(x);
}

/* Takes what the sequence holds now; blocks are listed but not held yet. */
static struct snapshot *take_snapshot(struct ifx_sequence *s)
{
    struct ifx_model *m = s->model;
    uint64_t bytes = m->desc->state_bytes;
    struct snapshot *x = base_calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->n = s->length;
    x->on_grid = s->on_grid;
    x->n_blocks = s->n_blocks ? (uint32_t)blocks_of(x->n) : 0;
    x->tokens = base_calloc(x->n, sizeof *x->tokens);
    x->blocks = base_calloc(x->n_blocks + 1ull, sizeof *x->blocks);
    x->state = bytes ? base_alloc(bytes, 64) : NULL;
    int32_t st = x->tokens && x->blocks && (x->state || !bytes) ? IFX_OK : IFX_ENOMEM;
    if (!st && bytes)
        st = m->dev->ops->copy(m->dev, m->stream, x->state, s->state, bytes, IFX_COPY_FROM_DEVICE);
    if (!st && bytes)
        st = m->dev->ops->stream_sync(m->dev, m->stream);
    if (st) {
        free_snapshot(x);
        return NULL;
    }
    memcpy(x->tokens, s->tokens, x->n * sizeof *x->tokens);
    memcpy(x->blocks, s->blocks, x->n_blocks * sizeof *x->blocks);
    return x;
}

static bool begins_with(const int32_t *tokens, uint64_t n, const struct snapshot *x)
{
    return x->n <= n && memcmp(tokens, x->tokens, x->n * sizeof *tokens) == 0;
}

/* The longest snapshot, other than `but`, that the tokens begin with. */
static struct snapshot *longest(const struct prefix_cache *c, const int32_t *tokens, uint64_t n, const struct snapshot *but)
{
    struct snapshot *best = NULL;
    for (uint32_t i = 0; i < c->count; i++)
        if (c->list[i] != but && (!best || c->list[i]->n > best->n) && begins_with(tokens, n, c->list[i]))
            best = c->list[i];
    return best;
}

/* ---- room ---- */

static void drop(struct ifx_model *m, uint32_t index)
{
    struct prefix_cache *c = &m->prefix;
    struct snapshot *x = c->list[index];
    for (uint32_t i = 0; i < x->n_blocks; i++) {
        if (--c->holders[x->blocks[i]] == 0)
            c->stats.bytes -= m->pool.block_bytes;
        kv_block_drop(&m->pool, x->blocks[i]);
    }
    c->stats.bytes -= own_bytes(m, x);
    c->stats.snapshots--;
    c->list[index] = c->list[--c->count];
    free_snapshot(x);
}

/* Tokens that would have to be read again without it, against the bytes it frees and the time since anybody wanted it. */
static double value_of(const struct ifx_model *m, const struct snapshot *x)
{
    const struct prefix_cache *c = &m->prefix;
    const struct snapshot *shorter = x->n ? longest(c, x->tokens, x->n - 1, x) : NULL;
    uint64_t gain = x->n - (shorter ? shorter->n : 0), bytes = own_bytes(m, x);
    for (uint32_t i = 0; i < x->n_blocks; i++)
        bytes += c->holders[x->blocks[i]] == 1 ? m->pool.block_bytes : 0;
    double age = (double)(c->clock - x->used) + 1;
    return (double)gain * (double)(1 + x->hits) / (age * age) / (double)bytes;
}

bool prefix_evict(struct ifx_model *m)
{
    struct prefix_cache *c = &m->prefix;
    uint32_t worst = UINT32_MAX;
    double least = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        double v = value_of(m, c->list[i]);
        if (c->list[i] == c->in_use || (worst != UINT32_MAX && v >= least))
            continue;
        worst = i;
        least = v;
    }
    if (worst == UINT32_MAX)
        return false;
    drop(m, worst);
    c->stats.evicted++;
    return true;
}

/* Room for so many more bytes within the limit. */
static bool make_room(struct ifx_model *m, uint64_t bytes)
{
    struct prefix_cache *c = &m->prefix;
    if (bytes > c->stats.bytes_limit)
        return false;
    while (c->stats.bytes > c->stats.bytes_limit - bytes)
        if (!prefix_evict(m))
            return false;
    return true;
}

/* ---- keeping ---- */

static uint64_t new_block_bytes(const struct ifx_model *m, const struct snapshot *x)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < x->n_blocks; i++)
        bytes += m->prefix.holders[x->blocks[i]] ? 0 : m->pool.block_bytes;
    return bytes;
}

static bool make_block_room(struct ifx_model *m, const struct snapshot *x)
{
    struct prefix_cache *c = &m->prefix;
    /* Counted anew each time: what is dropped may have shared blocks with this one. */
    while (c->stats.bytes + new_block_bytes(m, x) > c->stats.bytes_limit)
        if (!prefix_evict(m))
            return false;
    return true;
}

static bool list(struct prefix_cache *c, struct snapshot *x)
{
    if (c->count == c->room) {
        struct snapshot **wider = base_realloc(c->list, c->room + 64ull, sizeof *wider);
        if (!wider)
            return false;
        c->list = wider;
        c->room += 64;
    }
    c->list[c->count++] = x;
    return true;
}

/* Takes a proved snapshot, whose own bytes are counted already. */
static void keep(struct ifx_model *m, struct snapshot *x)
{
    struct prefix_cache *c = &m->prefix;
    struct snapshot *same = longest(c, x->tokens, x->n, NULL);
    same = same && same->n == x->n ? same : NULL;
    if (same)
        same->used = c->clock;
    if (same || !make_block_room(m, x) || !list(c, x)) {
        c->stats.bytes -= own_bytes(m, x);
        free_snapshot(x);
        return;
    }
    for (uint32_t i = 0; i < x->n_blocks; i++) {
        if (c->holders[x->blocks[i]]++ == 0)
            c->stats.bytes += m->pool.block_bytes;
        m->pool.owners[x->blocks[i]]++;
    }
    c->stats.snapshots++;
    c->stats.kept++;
    x->used = c->clock;
}

static void unwait(struct ifx_sequence *s, uint32_t index)
{
    s->model->prefix.waiting_bytes -= own_bytes(s->model, s->waiting[index]);
    memmove(s->waiting + index, s->waiting + index + 1, (--s->n_waiting - index) * sizeof *s->waiting);
}

static void forget(struct ifx_sequence *s, uint32_t index)
{
    struct snapshot *x = s->waiting[index];
    unwait(s, index);
    s->model->prefix.stats.bytes -= own_bytes(s->model, x);
    free_snapshot(x);
}

void prefix_forget(struct ifx_sequence *s)
{
    while (s->n_waiting)
        forget(s, s->n_waiting - 1);
}

/* Of too many, the one goes whose neighbours lie closest together. */
static void thin_out(struct ifx_sequence *s)
{
    uint32_t at = 0;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i + 1 < s->n_waiting; i++) {
        uint64_t gap = s->waiting[i + 1]->n - (i ? s->waiting[i - 1]->n : 0);
        if (gap < least) {
            least = gap;
            at = i;
        }
    }
    forget(s, at);
}

static void add_waiting(struct ifx_sequence *s)
{
    struct ifx_model *m = s->model;
    struct prefix_cache *c = &m->prefix;
    uint64_t bytes = m->desc->state_bytes + s->length * sizeof *s->tokens;
    if (s->n_waiting && s->waiting[s->n_waiting - 1]->n == s->length)
        return;
    if (s->n_waiting == ENGINE_WAITING)
        thin_out(s);
    /* What waits may never be proved: it takes no more than half from what is. */
    if ((c->waiting_bytes && c->waiting_bytes + bytes > c->stats.bytes_limit / 2) || !make_room(m, bytes))
        return;
    struct snapshot *x = take_snapshot(s);
    if (!x) {
        base_error_clear(); /* memory is short: this one is not kept */
        return;
    }
    c->waiting_bytes += bytes;
    c->stats.bytes += bytes;
    s->waiting[s->n_waiting++] = x;
}

static void keep_waiting(struct ifx_sequence *s)
{
    while (s->n_waiting) {
        struct snapshot *x = s->waiting[0];
        unwait(s, 0);
        keep(s->model, x);
    }
}

static bool known(const struct ifx_sequence *s)
{
    const struct snapshot *x = longest(&s->model->prefix, s->tokens, s->length, NULL);
    return x && x->n == s->length;
}

static bool wanted(const struct ifx_sequence *s)
{
    const struct prefix_cache *c = &s->model->prefix;
    return c->stats.bytes_limit && !s->broken && !s->suspect && s->length && (!c->grid_only || s->on_grid) && !known(s);
}

void prefix_step(struct ifx_sequence *s, uint32_t n, bool finite)
{
    if (!s->model->prefix.stats.bytes_limit)
        return;
    if (s->broken || s->suspect) {
        prefix_forget(s);
        return;
    }
    if (n > 1 && s->length % ENGINE_PAGE_TOKENS == 0 && wanted(s))
        add_waiting(s);
    s->proved = finite;
    if (finite)
        keep_waiting(s);
}

int32_t ifx_sequence_publish(struct ifx_sequence *s)
{
    struct ifx_model *m = s->model;
    pthread_mutex_lock(&m->lock);
    if (wanted(s)) {
        add_waiting(s);
        if (s->proved)
            keep_waiting(s);
    }
    pthread_mutex_unlock(&m->lock);
    return IFX_OK;
}

/* ---- reuse ---- */

/* The sequence gets the snapshot's blocks: whole ones shared, a part of one copied. */
static int32_t adopt_blocks(struct ifx_sequence *s, const struct snapshot *x)
{
    struct ifx_model *m = s->model;
    struct kv_pool *p = &m->pool;
    uint32_t whole = (uint32_t)(x->n / ENGINE_PAGE_TOKENS), block;
    for (uint32_t i = 0; i < x->n_blocks && i < whole; i++) {
        p->owners[x->blocks[i]]++;
        kv_block_append(s, x->blocks[i]);
    }
    if (x->n_blocks <= whole)
        return IFX_OK;
    int32_t st = kv_block_take(m, &block);
    if (st)
        return st;
    kv_block_append(s, block);
    return m->dev->ops->copy(m->dev, m->stream, p->memory + block * p->block_bytes, p->memory + x->blocks[whole] * p->block_bytes,
                             p->block_bytes, IFX_COPY_ON_DEVICE);
}

static int32_t adopt(struct ifx_sequence *s, const struct snapshot *x)
{
    struct ifx_model *m = s->model;
    int32_t st = adopt_blocks(s, x);
    if (!st && x->state)
        st = m->dev->ops->copy(m->dev, m->stream, s->state, x->state, m->desc->state_bytes, IFX_COPY_TO_DEVICE);
    if (!st)
        st = m->dev->ops->stream_sync(m->dev, m->stream);
    if (st)
        return st;
    memcpy(s->tokens, x->tokens, x->n * sizeof *s->tokens);
    s->length = x->n;
    s->on_grid = x->on_grid;
    s->proved = true;
    return IFX_OK;
}

static int32_t attach(struct ifx_sequence *s, const int32_t *tokens, uint64_t n, uint64_t *cached)
{
    struct ifx_model *m = s->model;
    struct prefix_cache *c = &m->prefix;
    c->clock++;
    c->stats.lookups++;
    c->stats.tokens_asked += n;
    struct snapshot *x = n ? longest(c, tokens, n - 1, NULL) : NULL;
    if (!x)
        return IFX_OK;
    x->used = c->clock;
    c->in_use = x;
    int32_t st = adopt(s, x);
    c->in_use = NULL;
    if (st)
        return st;
    x->hits++;
    c->stats.hits++;
    c->stats.tokens_reused += x->n;
    *cached = x->n;
    return IFX_OK;
}

int32_t ifx_sequence_attach(struct ifx_sequence *s, const int32_t *tokens, uint64_t n, uint64_t *cached)
{
    struct ifx_model *m = s->model;
    *cached = 0;
    if (s->length || s->broken)
        return base_error(IFX_EINVAL, "only an empty sequence can begin with what was kept");
    if (!m->prefix.stats.bytes_limit)
        return IFX_OK;
    pthread_mutex_lock(&m->lock);
    int32_t st = attach(s, tokens, n, cached);
    pthread_mutex_unlock(&m->lock);
    if (st) {
        base_error_clear(); /* as if nothing had been kept */
        st = ifx_sequence_reset(s);
    }
    return st;
}

void ifx_prefix_stats(struct ifx_model *m, struct ifx_prefix_stats *out)
{
    pthread_mutex_lock(&m->lock);
    *out = m->prefix.stats;
    pthread_mutex_unlock(&m->lock);
}

void prefix_destroy(struct ifx_model *m)
{
    struct prefix_cache *c = &m->prefix;
    while (c->count)
        drop(m, c->count - 1);
    base_free(c->list);
    base_free(c->holders);
    *c = (struct prefix_cache){0};
}
