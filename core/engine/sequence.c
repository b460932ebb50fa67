/* SPDX-License-Identifier: Apache-2.0
 *
 * sequence.c - one sequence: its state, its pages, copies.
 */
#include "engine.h"

#include <string.h>

static int32_t allocate(struct ifx_sequence *s)
{
    struct ifx_model *m = s->model;
    uint64_t layers = m->desc->n_kv_layers;
    s->max_blocks = (m->n_ctx + ENGINE_PAGE_TOKENS - 1) / ENGINE_PAGE_TOKENS;
    s->tokens = base_calloc(m->n_ctx, sizeof *s->tokens);
    if (!s->tokens)
        return IFX_ENOMEM;
    if (layers) {
        s->blocks = base_calloc(s->max_blocks, sizeof *s->blocks);
        s->pages = base_calloc(layers * s->max_blocks, sizeof *s->pages);
        if (!s->blocks || !s->pages)
            return IFX_ENOMEM;
    }
    return ifx_sequence_reset(s);
}

int32_t ifx_sequence_create(struct ifx_model *m, struct ifx_sequence **out)
{
    struct ifx_sequence *s = base_calloc(1, sizeof *s);
    if (!s)
        return IFX_ENOMEM;
    s->model = m;
    pthread_mutex_lock(&m->lock);
    while (s->slot < m->max_sequences && m->slots[s->slot].taken)
        s->slot++;
    bool full = s->slot == m->max_sequences;
    if (!full) {
        m->slots[s->slot].taken = true;
        s->state = m->slots[s->slot].state;
    }
    pthread_mutex_unlock(&m->lock);
    if (full) {
        base_free(s);
        return base_error(IFX_ELIMIT, "%u sequences are open; the model was opened for that many", m->max_sequences);
    }
    int32_t st = allocate(s);
    if (st) {
        ifx_sequence_destroy(s);
        return st;
    }
    *out = s;
    return IFX_OK;
}

void ifx_sequence_destroy(struct ifx_sequence *s)
{
    if (!s)
        return;
    struct ifx_model *m = s->model;
    pthread_mutex_lock(&m->lock);
    prefix_forget(s);
    kv_release(s);
    m->slots[s->slot].taken = false;
    pthread_mutex_unlock(&m->lock);
    base_free(s->blocks);
    base_free(s->pages);
    base_free(s->tokens);
    base_free(s->broken);
    base_free(s->error);
    base_free(s);
}

int32_t ifx_sequence_reset(struct ifx_sequence *s)
{
    struct ifx_model *m = s->model;
    pthread_mutex_lock(&m->lock);
    prefix_forget(s);
    kv_release(s);
    s->suspect = s->proved = false;
    s->on_grid = true;
    s->length = 0;
    base_free(s->broken);
    s->broken = NULL;
    int32_t st = s->state ? m->dev->ops->fill(m->dev, m->stream, s->state, 0, m->desc->state_bytes) : IFX_OK;
    if (!st)
        st = m->dev->ops->stream_sync(m->dev, m->stream);
    pthread_mutex_unlock(&m->lock);
    return st;
}

uint64_t ifx_sequence_length(const struct ifx_sequence *s)
{
    return s->length;
}

static int32_t copy_into(const struct ifx_sequence *from, struct ifx_sequence *to)
{
    struct ifx_model *m = from->model;
    const struct ifx_device_ops *op = m->dev->ops;
    int32_t st = kv_reserve(to, from->length);
    for (uint32_t i = 0; !st && i < to->n_blocks; i++)
        st = op->copy(m->dev, m->stream, m->pool.memory + to->blocks[i] * m->pool.block_bytes,
                      m->pool.memory + from->blocks[i] * m->pool.block_bytes, m->pool.block_bytes, IFX_COPY_ON_DEVICE);
    if (!st && from->state)
        st = op->copy(m->dev, m->stream, to->state, from->state, m->desc->state_bytes, IFX_COPY_ON_DEVICE);
    if (!st)
        st = op->stream_sync(m->dev, m->stream);
    memcpy(to->tokens, from->tokens, from->length * sizeof *to->tokens);
    to->length = from->length;
    to->suspect = from->suspect;
    to->proved = from->proved;
    to->on_grid = from->on_grid;
    return st;
}

int32_t ifx_sequence_copy(const struct ifx_sequence *from, struct ifx_sequence **out)
{
    struct ifx_model *m = from->model;
    struct ifx_sequence *to;
    if (from->broken)
        return base_error(IFX_EINVAL, "the sequence cannot be copied (%s)", from->broken);
    int32_t st = ifx_sequence_create(m, &to);
    if (st)
        return st;
    pthread_mutex_lock(&m->lock);
    st = copy_into(from, to);
    pthread_mutex_unlock(&m->lock);
    if (st) {
        ifx_sequence_destroy(to);
        return st;
    }
    *out = to;
    return IFX_OK;
}

void ifx_sequence_observe(struct ifx_sequence *s, const struct ifx_observer *o)
{
    s->observed = o != NULL;
    s->observer = o ? *o : (struct ifx_observer){0};
}

const float *ifx_sequence_state(const struct ifx_sequence *s, uint64_t *count)
{
    struct ifx_model *m = s->model;
    uint64_t bytes = m->desc->state_bytes;
    *count = bytes / sizeof(float);
    if (m->host_memory || !bytes)
        return s->state;
    struct engine_slot *slot = &m->slots[s->slot];
    if (!slot->state_copy)
        slot->state_copy = base_alloc(bytes, 64);
    int32_t st = slot->state_copy ? m->dev->ops->copy(m->dev, m->stream, slot->state_copy, s->state, bytes, IFX_COPY_FROM_DEVICE) : IFX_ENOMEM;
    if (!st)
        st = m->dev->ops->stream_sync(m->dev, m->stream);
    return st ? NULL : slot->state_copy;
}
