/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c - device memory, pinned host memory, copies.
 */
#define _DEFAULT_SOURCE
#include "cuda_device.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static int32_t mem_alloc(struct ifx_device *dev, uint64_t bytes, void **out)
{
    struct cuda_device *d = cuda_of(dev);
    char what[80];
    int32_t status = cuda_enter(d);
    *out = NULL;
    if (status)
        return status;
    snprintf(what, sizeof what, "allocating %llu bytes", (unsigned long long)bytes);
    return cuda_check(d, cudaMalloc(out, bytes ? bytes : 64), what);
}

static void mem_free(struct ifx_device *dev, void *memory)
{
    struct cuda_device *d = cuda_of(dev);
    if (memory && !atomic_load(&d->lost) && cudaSetDevice(d->ordinal) == cudaSuccess)
        cuda_check(d, cudaFree(memory), "freeing device memory");
}

/* ---- large blocks of pinned memory ----
 *
 * The driver's own lie in small pages.  Both the copy engine and the CPU, which reads whole experts, are faster in huge ones; so large
 * blocks are mapped here, touched by all threads, and registered. */

#define HUGE_PAGE   (2ull << 20)
#define LARGE_BLOCK (32ull << 20)
#define TOUCH_BYTES (32ull << 20)

struct pinned_block {
    struct pinned_block *next;
    uint8_t *memory;
    uint64_t bytes;
};

static int32_t touch(void *ctx, uint64_t task, uint32_t worker)
{
    const struct pinned_block *b = ctx;
    uint64_t end = (task + 1) * TOUCH_BYTES < b->bytes ? (task + 1) * TOUCH_BYTES : b->bytes;
    (void)worker;
    for (uint64_t at = task * TOUCH_BYTES; at < end; at += 4096)
        b->memory[at] = 0;
    return IFX_OK;
}

/* Whole huge pages from a boundary of such, or small pages where the system has no huge ones. */
static uint8_t *map_huge(uint64_t bytes)
{
    uint8_t *p = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    uint64_t head = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    if (head)
        munmap(p, head);
    munmap(p + head + bytes, HUGE_PAGE - head);
    madvise(p + head, bytes, MADV_HUGEPAGE);
    return p + head;
}

static void note_small_pages(struct cuda_device *d)
{
    char line[64] = "";
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    if (f && fgets(line, sizeof line, f) && strstr(line, "[never]") && !d->told_small_pages) {
        d->told_small_pages = 1;
        d->base.host->log(d->base.host, IFX_LOG_INFO, "device cuda:%d: pinned memory lies in small pages: the system gives no huge ones "
                          "(/sys/kernel/mm/transparent_hugepage/enabled says never)", d->ordinal);
    }
    if (f)
        fclose(f);
}

static int32_t large_alloc(struct cuda_device *d, uint64_t bytes, void **out)
{
    const struct ifx_host *host = d->base.host;
    struct pinned_block *b = bytes <= UINT64_MAX - 2 * HUGE_PAGE ? host->alloc(host, sizeof *b, 16) : NULL;
    if (!b)
        return IFX_ENOMEM;
    b->bytes = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    b->memory = map_huge(b->bytes);
    cudaError_t error = cudaErrorMemoryAllocation;
    if (b->memory) {
        note_small_pages(d);
        (void)host->parallel_for(host, ceil_div(b->bytes, TOUCH_BYTES), touch, b);
        error = cudaHostRegister(b->memory, b->bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    }
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        if (b->memory)
            munmap(b->memory, b->bytes);
        host->free(host, b);
        return host->error(host, IFX_ENOMEM, "device cuda:%d: the system refuses %llu bytes of pinned host memory", d->ordinal,
                           (unsigned long long)bytes);
    }
    pthread_mutex_lock(&d->lock);
    b->next = d->pinned;
    d->pinned = b;
    pthread_mutex_unlock(&d->lock);
    *out = b->memory;
    return IFX_OK;
}

/* False: it is none of these. */
static int large_free(struct cuda_device *d, void *memory)
{
    struct pinned_block *found = NULL;
    pthread_mutex_lock(&d->lock);
    struct pinned_block **at = &d->pinned;
    while (*at && (*at)->memory != memory)
        at = &(*at)->next;
    if ((found = *at) != NULL)
        *at = found->next;
    pthread_mutex_unlock(&d->lock);
    if (!found)
        return 0;
    if (!atomic_load(&d->lost) && cudaSetDevice(d->ordinal) == cudaSuccess)
        cuda_check(d, cudaHostUnregister(found->memory), "freeing pinned host memory");
    munmap(found->memory, found->bytes);
    d->base.host->free(d->base.host, found);
    return 1;
}

static int32_t host_alloc(struct ifx_device *dev, uint64_t bytes, void **out)
{
    struct cuda_device *d = cuda_of(dev);
    int32_t status = cuda_enter(d);
    *out = NULL;
    if (status)
        return status;
    if (bytes >= LARGE_BLOCK)
        return large_alloc(d, bytes, out);
    cudaError_t error = cudaHostAlloc(out, bytes ? bytes : 64, cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return dev->host->error(dev->host, IFX_ENOMEM, "device cuda:%d: the system refuses %llu bytes of pinned host memory", d->ordinal,
                                (unsigned long long)bytes);
    }
    return cuda_check(d, error, "allocating pinned host memory");
}

static void host_free(struct ifx_device *dev, void *memory)
{
    struct cuda_device *d = cuda_of(dev);
    if (memory && large_free(d, memory))
        return;
    if (memory && !atomic_load(&d->lost) && cudaSetDevice(d->ordinal) == cudaSuccess)
        cuda_check(d, cudaFreeHost(memory), "freeing pinned host memory");
}

static int32_t copy(struct ifx_device *dev, void *stream, void *dst, const void *src, uint64_t bytes, uint32_t direction)
{
    struct cuda_device *d = cuda_of(dev);
    enum cudaMemcpyKind kind = direction == IFX_COPY_TO_DEVICE     ? cudaMemcpyHostToDevice
                               : direction == IFX_COPY_FROM_DEVICE ? cudaMemcpyDeviceToHost
                                                                   : cudaMemcpyDeviceToDevice;
    int32_t status = cuda_enter(d);
    if (status || bytes == 0)
        return status;
    return cuda_check(d, cudaMemcpyAsync(dst, src, bytes, kind, stream), "copy");
}

static int32_t fill(struct ifx_device *dev, void *stream, void *dst, uint8_t byte, uint64_t bytes)
{
    struct cuda_device *d = cuda_of(dev);
    int32_t status = cuda_enter(d);
    if (status || bytes == 0)
        return status;
    return cuda_check(d, cudaMemsetAsync(dst, byte, bytes, stream), "fill");
}

void cuda_fill_memory(struct ifx_device_ops *ops)
{
    ops->mem_alloc = mem_alloc;
    ops->mem_free = mem_free;
    ops->host_alloc = host_alloc;
    ops->host_free = host_free;
    ops->copy = copy;
    ops->fill = fill;
}
