/* SPDX-License-Identifier: Apache-2.0 */
#include "mover.h"

#include "ledger.h"

#include <stdio.h>
#include <string.h>

int32_t mover_create(struct ifx_device *dev, uint64_t slot_bytes, uint32_t n_slots, struct mover *m)
{
    uint64_t bytes;
    *m = (struct mover){.dev = dev, .slot_bytes = slot_bytes, .n_slots = n_slots};
    if (!base_mul_u64(slot_bytes, n_slots, &bytes))
        return base_error(IFX_ELIMIT, "a staging ring of %u records does not fit the address space", n_slots);
    m->slots = base_calloc(n_slots, sizeof *m->slots);
    int32_t st = m->slots ? dev->ops->stream_create(dev, &m->stream) : IFX_ENOMEM;
    void *ring = NULL;
    if (!st && n_slots)
        st = dev->ops->mem_alloc(dev, bytes, &ring);
    m->ring = ring;
    for (uint32_t i = 0; i < n_slots && !st; i++) {
        m->slots[i].freed_by = UINT32_MAX;
        st = dev->ops->event_create(dev, &m->slots[i].landed);
        if (!st)
            st = dev->ops->event_create(dev, &m->slots[i].freed);
    }
    return st;
}

void mover_destroy(struct mover *m)
{
    if (!m->dev)
        return;
    for (uint32_t i = 0; m->slots && i < m->n_slots; i++) {
        if (m->slots[i].landed)
            m->dev->ops->event_destroy(m->dev, m->slots[i].landed);
        if (m->slots[i].freed)
            m->dev->ops->event_destroy(m->dev, m->slots[i].freed);
    }
    if (m->ring)
        m->dev->ops->mem_free(m->dev, m->ring);
    if (m->stream)
        m->dev->ops->stream_destroy(m->dev, m->stream);
    base_free(m->slots);
    *m = (struct mover){0};
}

uint32_t mover_room(const struct mover *m)
{
    return m->n_slots - (uint32_t)(m->next - m->released);
}

uint8_t *mover_slot_memory(const struct mover *m, uint64_t slot)
{
    return m->ring + slot % m->n_slots * m->slot_bytes;
}

/* The copy stream waits for the users of the n slots from `first`; neighbours mostly share one event. */
static int32_t await_users(struct mover *m, uint64_t first, uint32_t n)
{
    uint32_t waited = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        struct mover_slot *s = &m->slots[(first + i) % m->n_slots];
        uint32_t by = s->freed_by;
        s->freed_by = UINT32_MAX;
        if (by == UINT32_MAX || by == waited)
            continue;
        int32_t st = m->dev->ops->event_wait(m->dev, m->slots[by].freed, m->stream);
        if (st)
            return st;
        waited = by;
    }
    return IFX_OK;
}

/* Records that lie side by side on both ends go in one copy: short copies leave the link idle between them. */
static uint32_t run_length(const struct mover *m, const uint8_t *const *records, uint32_t n, uint64_t bytes, uint64_t slot)
{
    uint32_t run = 1;
    uint64_t to_end = m->n_slots - slot % m->n_slots;
    while (bytes == m->slot_bytes && run < n && run < to_end && records[run] == records[0] + run * bytes)
        run++;
    return run;
}

int32_t mover_fetch(struct mover *m, const uint8_t *const *records, uint32_t n, uint64_t bytes, uint64_t *first)
{
    if (!n || n > mover_room(m) || bytes > m->slot_bytes)
        return base_error(IFX_EINTERNAL, "%u records of %llu bytes do not fit the staging ring", n, (unsigned long long)bytes);
    *first = m->next;
    int32_t st = await_users(m, *first, n);
    for (uint32_t i = 0; i < n && !st;) {
        uint32_t run = run_length(m, records + i, n - i, bytes, *first + i);
        st = m->dev->ops->copy(m->dev, m->stream, mover_slot_memory(m, *first + i), records[i], run * bytes,
                               IFX_COPY_TO_DEVICE);
        i += run;
    }
    if (st)
        return st;
    m->next += n;
    m->copied += n * bytes;
    return m->dev->ops->event_record(m->dev, m->slots[(m->next - 1) % m->n_slots].landed, m->stream);
}

int32_t mover_await(struct mover *m, uint64_t last, void *stream)
{
    return m->dev->ops->event_wait(m->dev, m->slots[last % m->n_slots].landed, stream);
}

int32_t mover_release(struct mover *m, uint32_t n, void *stream)
{
    if (!n)
        return IFX_OK;
    uint32_t last = (uint32_t)((m->released + n - 1) % m->n_slots);
    for (uint32_t i = 0; i < n; i++)
        m->slots[(m->released + i) % m->n_slots].freed_by = last;
    m->released += n;
    return m->dev->ops->event_record(m->dev, m->slots[last].freed, stream);
}

void mover_reset(struct mover *m)
{
    m->released = m->next;
    for (uint32_t i = 0; m->slots && i < m->n_slots; i++)
        m->slots[i].freed_by = UINT32_MAX;
}

/* ---- host memory ---- */

int32_t mover_records_create(struct ifx_device *dev, uint32_t n_layers, const uint64_t *layer_bytes, uint64_t most_pinned,
                             const char *limit, struct mover_records *r)
{
    *r = (struct mover_records){.dev = dev, .n_layers = n_layers};
    r->layers = base_calloc(n_layers, sizeof *r->layers);
    if (!r->layers)
        return IFX_ENOMEM;
    const char *why = limit;
    char quota[64] = "";
    bool pin = true;
    for (uint32_t i = 0; i < n_layers; i++) {
        void *memory = NULL;
        r->layers[i].bytes = layer_bytes[i];
        if (pin && layer_bytes[i] > most_pinned - r->pinned_bytes)
            pin = false;
        if (pin && dev->ops->host_alloc(dev, layer_bytes[i], &memory) != IFX_OK) {
            pin = false;
            why = base_error_text();
            if (ledger_memlock() != UINT64_MAX)
                snprintf(quota, sizeof quota, " (ulimit -l is %llu KB)", (unsigned long long)ledger_memlock() / 1024);
        }
        if (!pin && !why && r->pageable_bytes == 0)
            base_log(IFX_LOG_INFO, "experts: %llu of %u layers lie in pageable host memory, as asked", (unsigned long long)(n_layers - i), n_layers);
        if (!pin && why)
            base_fallback("offload.pin", "%llu of the experts' layers lie in pageable host memory, which copies to the device slower: %s%s",
                          (unsigned long long)(n_layers - i), why, quota);
        r->layers[i].pinned = pin;
        r->layers[i].memory = pin ? memory : base_map_anon(layer_bytes[i]);
        if (!r->layers[i].memory)
            return base_error_prefix(IFX_ENOMEM, "host memory for the experts");
        *(pin ? &r->pinned_bytes : &r->pageable_bytes) += layer_bytes[i];
    }
    return IFX_OK;
}

void mover_records_destroy(struct mover_records *r)
{
    for (uint32_t i = 0; r->layers && i < r->n_layers; i++) {
        if (!r->layers[i].memory)
            continue;
        if (r->layers[i].pinned)
            r->dev->ops->host_free(r->dev, r->layers[i].memory);
        else
            base_unmap(r->layers[i].memory, r->layers[i].bytes);
    }
    base_free(r->layers);
    *r = (struct mover_records){0};
}
