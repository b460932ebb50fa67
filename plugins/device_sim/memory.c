/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c - the device's memory: a hard limit, every allocation on pages of its own with a wall behind it, filled with NaNs.
 */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIM_ALIGN  256u
#define POISON     0xff /* a NaN as float32, bf16 and fp16; an impossible id as int32 */
#define POISON_MAX (256u << 20) /* filling more would make the pretended memory real */

/* First index whose begin is above p. */
static uint32_t above(const struct sim_memory *list, uint32_t n, uintptr_t p)
{
    uint32_t lo = 0;
    while (lo < n) {
        uint32_t mid = lo + (n - lo) / 2;
        if (list[mid].begin <= p)
            lo = mid + 1;
        else
            n = mid;
    }
    return lo;
}

bool sim_owns(const struct sim_device *d, const void *p, uint64_t bytes)
{
    uintptr_t at = (uintptr_t)p;
    uint32_t i = above(d->memories, d->n_memories, at);
    return i > 0 && at < d->memories[i - 1].end && bytes <= d->memories[i - 1].end - at;
}

bool sim_touches(const struct sim_device *d, const void *p, uint64_t bytes)
{
    uintptr_t at = (uintptr_t)p;
    uint32_t i = above(d->memories, d->n_memories, at);
    return (i > 0 && at < d->memories[i - 1].end) || (i < d->n_memories && d->memories[i].begin - at < bytes);
}

uint32_t sim_records(const struct sim_device *d, const void *src, uint64_t bytes)
{
    uint64_t each = d->model.small_record;
    uintptr_t at = (uintptr_t)src;
    uint32_t i = above(d->pins, d->n_pins, at);
    if (!each || bytes % each)
        return 0;
    if (i == 0 || at >= d->pins[i - 1].end) /* only records are ever copied from pageable memory; the clock copies them as fast */
        return (uint32_t)(bytes / each);
    const struct sim_memory *m = &d->pins[i - 1];
    return (at - m->begin) % each || (m->end - m->begin) % each ? 0 : (uint32_t)(bytes / each);
}

static int32_t insert(const struct ifx_host *host, struct sim_memory **list, uint32_t *n, uint32_t *room,
                      const struct sim_memory *m)
{
    if (*n == *room) {
        uint32_t wider = *room ? *room * 2 : 64;
        struct sim_memory *grown = host->alloc(host, wider * sizeof *grown, 64);
        if (!grown)
            return IFX_ENOMEM;
        if (*n)
            memcpy(grown, *list, *n * sizeof *grown);
        if (*list)
            host->free(host, *list);
        *list = grown;
        *room = wider;
    }
    uint32_t i = above(*list, *n, m->begin);
    memmove(*list + i + 1, *list + i, (*n - i) * sizeof **list);
    (*list)[i] = *m;
    (*n)++;
    return IFX_OK;
}

/* Takes the entry that begins at p out of a list. */
static bool take(struct sim_memory *list, uint32_t *n, const void *p, struct sim_memory *out)
{
    uint32_t i = above(list, *n, (uintptr_t)p);
    if (i == 0 || list[i - 1].begin != (uintptr_t)p)
        return false;
    *out = list[i - 1];
    memmove(list + i - 1, list + i, (*n - i) * sizeof *list);
    (*n)--;
    return true;
}

/* Pages whose last ones cannot be touched; the memory ends right before them. */
static bool map(uint64_t bytes, struct sim_memory *m)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), body = (bytes + page - 1) / page * page;
    m->map_bytes = body + page;
    m->map = mmap(NULL, m->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m->map == MAP_FAILED)
        return false;
    (void)mprotect((char *)m->map + body, page, PROT_NONE);
    m->begin = (uintptr_t)m->map + body - bytes;
    m->end = m->begin + bytes;
    return true;
}

int32_t sim_mem_alloc(struct ifx_device *dev, uint64_t bytes, void **out)
{
    struct sim_device *d = sim_of(dev);
    struct sim_memory m = {0};
    *out = NULL;
    pthread_mutex_lock(&d->lock);
    int32_t status = sim_inject(d, &d->allocs, d->fail_alloc, IFX_EDEVMEM, "allocation", NULL);
    if (!status && (bytes > d->limit || (bytes + SIM_ALIGN - 1) / SIM_ALIGN * SIM_ALIGN > d->limit - d->used))
        status = dev->host->error(dev->host, IFX_EDEVMEM,
                                  "device sim: %llu bytes of device memory are refused: %llu of %llu are in use (vram=)",
                                  (unsigned long long)bytes, (unsigned long long)d->used, (unsigned long long)d->limit);
    m.counted = bytes ? (bytes + SIM_ALIGN - 1) / SIM_ALIGN * SIM_ALIGN : SIM_ALIGN;
    if (!status && !map(m.counted, &m))
        status = dev->host->error(dev->host, IFX_EDEVMEM, "device sim: the system has no %llu bytes for device memory",
                                  (unsigned long long)bytes);
    if (!status) {
        status = insert(dev->host, &d->memories, &d->n_memories, &d->room, &m);
        if (status)
            munmap(m.map, m.map_bytes);
    }
    if (!status) {
        d->used += m.counted;
        d->peak = d->used > d->peak ? d->used : d->peak;
        *out = (void *)m.begin;
    }
    pthread_mutex_unlock(&d->lock);
    if (!status)
        memset(*out, POISON, m.counted < POISON_MAX ? m.counted : POISON_MAX);
    return status;
}

void sim_mem_free(struct ifx_device *dev, void *memory)
{
    struct sim_device *d = sim_of(dev);
    struct sim_memory m;
    if (!memory)
        return;
    pthread_mutex_lock(&d->lock);
    /* As on a real device: what is still enqueued may be using it. */
    for (struct sim_stream *s = d->streams; s; s = s->next)
        while (s->completed < s->submitted)
            pthread_cond_wait(&d->changed, &d->lock);
    bool found = take(d->memories, &d->n_memories, memory, &m);
    if (found)
        d->used -= m.counted;
    pthread_mutex_unlock(&d->lock);
    if (found)
        munmap(m.map, m.map_bytes);
    else
        dev->host->log(dev->host, IFX_LOG_ERROR, "device sim: memory is freed that was not allocated");
}

int32_t sim_host_alloc(struct ifx_device *dev, uint64_t bytes, void **out)
{
    struct sim_device *d = sim_of(dev);
    struct sim_memory m = {0};
    *out = NULL;
    pthread_mutex_lock(&d->lock);
    int32_t status = sim_inject(d, &d->allocs, d->fail_alloc, IFX_ENOMEM, "host allocation", NULL);
    if (!status && d->pinned_limit && (bytes > d->pinned_limit || bytes > d->pinned_limit - d->pinned))
        status = dev->host->error(dev->host, IFX_ENOMEM,
                                  "device sim: %llu bytes of pinned host memory are refused: %llu of %llu are in use (pinned=)",
                                  (unsigned long long)bytes, (unsigned long long)d->pinned,
                                  (unsigned long long)d->pinned_limit);
    if (!status) {
        m.map = dev->host->alloc(dev->host, bytes ? bytes : 1, 4096);
        status = m.map ? IFX_OK : IFX_ENOMEM;
    }
    if (!status) {
        m.begin = (uintptr_t)m.map;
        m.end = m.begin + bytes;
        m.counted = bytes;
        status = insert(dev->host, &d->pins, &d->n_pins, &d->pin_room, &m);
        if (status)
            dev->host->free(dev->host, m.map);
    }
    if (!status) {
        d->pinned += bytes;
        *out = m.map;
    }
    pthread_mutex_unlock(&d->lock);
    return status;
}

void sim_host_free(struct ifx_device *dev, void *memory)
{
    struct sim_device *d = sim_of(dev);
    struct sim_memory m;
    if (!memory)
        return;
    pthread_mutex_lock(&d->lock);
    bool found = take(d->pins, &d->n_pins, memory, &m);
    if (found)
        d->pinned -= m.counted;
    pthread_mutex_unlock(&d->lock);
    if (found)
        dev->host->free(dev->host, m.map);
    else
        dev->host->log(dev->host, IFX_LOG_ERROR, "device sim: pinned memory is freed that was not allocated");
}

void sim_memory_close(struct sim_device *d)
{
    const struct ifx_host *host = d->outer;
    if (d->n_memories || d->n_pins)
        host->log(host, IFX_LOG_WARN, "device sim: closed with %u allocations (%llu bytes) and %u of pinned host memory",
                  d->n_memories, (unsigned long long)d->used, d->n_pins);
    for (uint32_t i = 0; i < d->n_memories; i++)
        munmap(d->memories[i].map, d->memories[i].map_bytes);
    for (uint32_t i = 0; i < d->n_pins; i++)
        host->free(host, d->pins[i].map);
    if (d->memories)
        host->free(host, d->memories);
    if (d->pins)
        host->free(host, d->pins);
}
