/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c - device memory, pinned host memory, copies.
 */
#include "cuda_device.h"

#include <stdio.h>

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

static int32_t host_alloc(struct ifx_device *dev, uint64_t bytes, void **out)
{
    struct cuda_device *d = cuda_of(dev);
    int32_t status = cuda_enter(d);
    *out = NULL;
    if (status)
        return status;
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
