/* SPDX-License-Identifier: Apache-2.0
 *
 * compute.c - the table through which format plugins run their own kernels.
 */
#include "cuda_device.h"

#include <string.h>

static int32_t module_load(const struct ifx_compute *c, const void *image, uint64_t bytes, void **module)
{
    struct cuda_device *d = c->ctx;
    cudaLibrary_t library = NULL;
    (void)bytes; /* a fat binary knows its length */
    *module = NULL;
    int32_t status = cuda_enter(d);
    if (status)
        return status;
    cudaError_t error = cudaLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0);
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorUnsupportedPtxVersion || error == cudaErrorInvalidKernelImage) {
        (void)cudaGetLastError();
        return d->base.host->error(d->base.host, IFX_EUNSUPPORTED, "no code for cuda:%d (compute capability %d.%d) in the image: %s",
                                   d->ordinal, d->prop.major, d->prop.minor, cudaGetErrorString(error));
    }
    *module = library;
    return cuda_check(d, error, "loading kernels");
}

static void module_unload(const struct ifx_compute *c, void *module)
{
    struct cuda_device *d = c->ctx;
    if (module && !atomic_load(&d->lost) && cudaSetDevice(d->ordinal) == cudaSuccess)
        cuda_check(d, cudaLibraryUnload(module), "unloading kernels");
}

static int32_t kernel(const struct ifx_compute *c, void *module, const char *name, uint32_t dynamic_shared, void **out)
{
    struct cuda_device *d = c->ctx;
    cudaKernel_t k = NULL;
    *out = NULL;
    int32_t status = cuda_enter(d);
    if (!status)
        status = cuda_check(d, cudaLibraryGetKernel(&k, module, name), name);
    if (!status && dynamic_shared > 48u * 1024)
        status = cuda_check(d, cudaFuncSetAttribute((const void *)k, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)dynamic_shared), name);
    *out = k;
    return status;
}

static int32_t launch(const struct ifx_compute *c, void *stream, void *kernel, const uint32_t grid[3], const uint32_t block[3],
                      uint32_t dynamic_shared, void *const *args)
{
    struct cuda_device *d = c->ctx;
    dim3 g = {grid[0], grid[1], grid[2]}, b = {block[0], block[1], block[2]};
    int32_t status = cuda_enter(d);
    if (status)
        return status;
    return cuda_check(d, cudaLaunchKernel(kernel, g, b, (void **)(uintptr_t)args, dynamic_shared, stream), "kernel launch of a format");
}

static int32_t launch_early(const struct ifx_compute *c, void *stream, void *kernel, const uint32_t grid[3], const uint32_t block[3],
                            uint32_t dynamic_shared, void *const *args)
{
    struct cuda_device *d = c->ctx;
    int32_t status = cuda_enter(d);
    if (status)
        return status;
    cudaLaunchAttribute early = {.id = cudaLaunchAttributeProgrammaticStreamSerialization};
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {.gridDim = {grid[0], grid[1], grid[2]}, .blockDim = {block[0], block[1], block[2]},
                                 .dynamicSmemBytes = dynamic_shared, .stream = stream, .attrs = &early, .numAttrs = 1};
    return cuda_check(d, cudaLaunchKernelExC(&config, kernel, (void **)(uintptr_t)args), "kernel launch of a format");
}

static const struct ifx_compute *compute(struct ifx_device *dev)
{
    return &cuda_of(dev)->compute;
}

void cuda_fill_compute(struct cuda_device *d)
{
    d->compute = (struct ifx_compute){
        .struct_size = sizeof d->compute,
        .family = IFX_COMPUTE_CUDA,
        .arch = (uint32_t)(10 * d->prop.major + d->prop.minor),
        .multiprocessors = (uint32_t)d->prop.multiProcessorCount,
        .max_shared = (uint32_t)d->prop.sharedMemPerBlockOptin,
        .warp = (uint32_t)d->prop.warpSize,
        .l2_bytes = (uint64_t)d->prop.l2CacheSize,
        .ctx = d,
        .module_load = module_load,
        .module_unload = module_unload,
        .kernel = kernel,
        .launch = launch,
        .launch_early = launch_early,
    };
    d->ops.compute = compute;
}
