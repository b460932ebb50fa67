/* SPDX-License-Identifier: Apache-2.0
 *
 * errors.c - from CUDA's errors to ours.
 */
#include "cuda_device.h"

/* After one of these every call of the process on this device fails: the context is gone. */
static int is_sticky(cudaError_t e)
{
    switch (e) {
    case cudaErrorECCUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorMisalignedAddress:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorAssert:
    case cudaErrorCudartUnloading:
    case cudaErrorContextIsDestroyed:
        return 1;
    default:
        return 0;
    }
}

int32_t cuda_check(struct cuda_device *d, cudaError_t error, const char *what)
{
    const struct ifx_host *host = d->base.host;
    if (error == cudaSuccess)
        return IFX_OK;
    (void)cudaGetLastError(); /* so that the next call does not report it again */
    if (error == cudaErrorMemoryAllocation)
        return host->error(host, IFX_EDEVMEM, "device cuda:%d: %s: out of memory; a smaller --vram-budget, context or batch needs less",
                           d->ordinal, what);
    if (is_sticky(error)) {
        int none = 0;
        atomic_compare_exchange_strong(&d->lost, &none, (int)error);
        return host->error(host, IFX_EDEVICE, "device cuda:%d is lost: %s: %s (%s); restart the program", d->ordinal, what,
                           cudaGetErrorString(error), cudaGetErrorName(error));
    }
    return host->error(host, IFX_EINTERNAL, "device cuda:%d: %s: %s (%s)", d->ordinal, what, cudaGetErrorString(error),
                       cudaGetErrorName(error));
}

int32_t cuda_enter(struct cuda_device *d)
{
    int lost = atomic_load_explicit(&d->lost, memory_order_relaxed);
    if (lost)
        return d->base.host->error(d->base.host, IFX_EDEVICE, "device cuda:%d was lost earlier: %s; restart the program", d->ordinal,
                                   cudaGetErrorString((cudaError_t)lost));
    return cuda_check(d, cudaSetDevice(d->ordinal), "making the device current");
}

int32_t cuda_launch(struct cuda_device *d, void *stream, uint32_t kernel, dim3 grid, uint32_t threads, uint32_t shared, void **args)
{
    int32_t status = cuda_enter(d);
    if (status)
        return status;
    /* The kernel may start while the one before it ends; it waits for its results itself (common.cuh). */
    cudaLaunchAttribute early = {.id = cudaLaunchAttributeProgrammaticStreamSerialization};
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {.gridDim = grid, .blockDim = {threads, 1, 1}, .dynamicSmemBytes = shared, .stream = stream, .attrs = &early,
                                 .numAttrs = 1};
    return cuda_check(d, cudaLaunchKernelExC(&config, (const void *)d->kernels[kernel], args), "kernel launch");
}
