/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin.c - the identity "cuda": opening, properties.
 */
#include "cuda_device.h"

#include <stdio.h>
#include <string.h>

static const char *const identities[] = {"cuda", NULL};

#define K(image, name) {#image, "ifx_" #name},
static const struct {
    const char *image, *name;
} kernel_names[K_COUNT] = {CUDA_KERNELS(K)};
#undef K

#define IMAGE(name)                                                                                                      \
    extern const unsigned char ifx_image_##name[];                                                                       \
    extern const uint64_t ifx_image_##name##_bytes;
IMAGE(elementwise)
IMAGE(linear)
IMAGE(product)
IMAGE(gdn)
IMAGE(route)
IMAGE(sample)
IMAGE(residual)
IMAGE(select)
IMAGE(handover)
static const struct {
    const char *name;
    const unsigned char *data;
} images[CUDA_IMAGES] = {
    {"elementwise", ifx_image_elementwise}, {"linear", ifx_image_linear}, {"gdn", ifx_image_gdn}, {"product", ifx_image_product},
    {"route", ifx_image_route}, {"sample", ifx_image_sample}, {"residual", ifx_image_residual},
    {"select", ifx_image_select}, {"handover", ifx_image_handover},
};

static void device_close(struct ifx_device *dev)
{
    struct cuda_device *d = cuda_of(dev);
    gemm_destroy(d);
    for (uint32_t i = 0; i < CUDA_IMAGES; i++)
        if (d->images[i] && !atomic_load(&d->lost))
            cuda_check(d, cudaLibraryUnload(d->images[i]), "unloading kernels");
    cuda_free_failures(d);
    pthread_mutex_destroy(&d->lock);
    dev->host->free(dev->host, d);
}

static int32_t props(struct ifx_device *dev, struct ifx_device_props *out)
{
    struct cuda_device *d = cuda_of(dev);
    uint32_t size = out->struct_size;
    size_t free_bytes = 0, total = 0;
    int driver = 0;
    int32_t status = cuda_enter(d);
    if (!status)
        status = cuda_check(d, cudaMemGetInfo(&free_bytes, &total), "asking for free memory");
    if (!status)
        status = cuda_check(d, cudaDriverGetVersion(&driver), "asking for the driver's version");
    memset(out, 0, sizeof *out);
    out->struct_size = size;
    snprintf(out->name, sizeof out->name, "cuda:%d (%.45s)", d->ordinal, d->prop.name);
    snprintf(out->detail, sizeof out->detail, "compute capability %d.%d, %d multiprocessors, %.1f GiB, CUDA %d.%d, driver for %d.%d",
             d->prop.major, d->prop.minor, d->prop.multiProcessorCount, (double)total / (1u << 30), CUDART_VERSION / 1000,
             CUDART_VERSION % 1000 / 10, driver / 1000, driver % 1000 / 10);
    out->memory_bytes = total;
    out->free_bytes = free_bytes;
    return status;
}

/* No driver, no device and an old driver are the ways of a machine that has no use for this plugin. */
static int32_t find_device(const struct ifx_host *host, uint32_t ordinal)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    (void)cudaGetLastError();
    if (error == cudaErrorInsufficientDriver)
        return host->error(host, IFX_ENOTFOUND,
                           "device cuda: there is no NVIDIA driver, or it is older than CUDA %d.%d, which this plugin was built with",
                           CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0))
        return host->error(host, IFX_ENOTFOUND, "device cuda: the driver sees no GPU (CUDA_VISIBLE_DEVICES may hide it)");
    if (error != cudaSuccess)
        return host->error(host, IFX_ENOTFOUND, "device cuda: the driver does not start: %s (%s)", cudaGetErrorString(error),
                           cudaGetErrorName(error));
    if (ordinal >= (uint32_t)count)
        return host->error(host, IFX_ENOTFOUND, "device cuda:%u: there %s %d CUDA device%s, numbered from 0", ordinal,
                           count == 1 ? "is" : "are", count, count == 1 ? "" : "s");
    return IFX_OK;
}

static int32_t load_images(struct cuda_device *d)
{
    const struct ifx_host *host = d->base.host;
    for (uint32_t i = 0; i < CUDA_IMAGES; i++) {
        cudaError_t error = cudaLibraryLoadData(&d->images[i], images[i].data, NULL, NULL, 0, NULL, NULL, 0);
        if (error != cudaSuccess) {
            (void)cudaGetLastError();
            return host->error(host, IFX_ENOTFOUND, "device cuda:%d: %s (compute capability %d.%d) does not take the kernels: %s; this build has those of sm " IFX_CUDA_ARCH
                               " (--with-cuda-arch of configure)",
                               d->ordinal, d->prop.name, d->prop.major, d->prop.minor, cudaGetErrorString(error));
        }
    }
    for (uint32_t k = 0; k < K_COUNT; k++) {
        uint32_t i = 0;
        while (strcmp(images[i].name, kernel_names[k].image) != 0)
            i++;
        cudaError_t error = cudaLibraryGetKernel(&d->kernels[k], d->images[i], kernel_names[k].name);
        if (error != cudaSuccess) { /* the driver finds out only now that no image fits */
            (void)cudaGetLastError();
            return host->error(host, IFX_ENOTFOUND,
                               "device cuda:%d: %s (compute capability %d.%d) cannot run kernel %s: %s; this build has code for sm " IFX_CUDA_ARCH
                               " and what is newer than the first of them (--with-cuda-arch of configure)",
                               d->ordinal, d->prop.name, d->prop.major, d->prop.minor, kernel_names[k].name,
                               cudaGetErrorString(error));
        }
    }
    return cuda_allow_shared(d);
}

static int32_t start(struct cuda_device *d)
{
    int32_t status = cuda_enter(d);
    if (!status)
        status = cuda_check(d, cudaGetDeviceProperties(&d->prop, d->ordinal), "asking for properties");
    if (!status)
        status = load_images(d);
    if (!status)
        status = gemm_create(d);
    return status;
}

static int32_t open_device(const struct ifx_host *host, const struct ifx_options *options, const char *identity, uint32_t ordinal,
                           struct ifx_device **out)
{
    (void)options;
    if (strcmp(identity, "cuda") != 0)
        return host->error(host, IFX_ENOTFOUND, "device_cuda has device cuda, not %s", identity);
    int32_t status = find_device(host, ordinal);
    if (status)
        return status;
    struct cuda_device *d = host->alloc(host, sizeof *d, 64);
    if (!d)
        return IFX_ENOMEM;
    memset(d, 0, sizeof *d);
    d->base.ops = &d->ops;
    d->base.host = host;
    d->ordinal = (int)ordinal;
    d->ops.struct_size = sizeof d->ops;
    d->ops.close = device_close;
    d->ops.props = props;
    pthread_mutex_init(&d->lock, NULL);
    cuda_fill_memory(&d->ops);
    cuda_fill_streams(&d->ops);
    cuda_fill_ops(&d->ops);
    cuda_fill_linear(&d->ops);
    cuda_fill_product(&d->ops);
    cuda_fill_route(&d->ops);
    cuda_fill_select(&d->ops);
    cuda_fill_handover(&d->ops);
    status = start(d);
    if (status) {
        device_close(&d->base);
        return status;
    }
    cuda_fill_compute(d);
    *out = &d->base;
    return IFX_OK;
}

static const struct ifx_device_plugin_ops plugin_ops = {
    .struct_size = sizeof plugin_ops,
    .identities = identities,
    .description = "NVIDIA GPUs of compute capability 9.0 or newer",
    .open = open_device,
};

static const struct ifx_device_plugin_ops *init(const struct ifx_host *host)
{
    (void)host;
    return &plugin_ops;
}

#undef IFX_PLUGIN_CUDA_RUNTIME
#define IFX_PLUGIN_CUDA_RUNTIME ((uint32_t)CUDART_VERSION)
IFX_DEVICE_PLUGIN("device_cuda", "0.1.0", init)
