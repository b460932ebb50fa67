/* SPDX-License-Identifier: Apache-2.0
 *
 * mini_cuda.h - the least CUDA that tests of format kernels need: the driver library, opened by name, and a compute table on
 * it.  Builds without a CUDA Toolkit; mini_cuda_open says why where there is no GPU.
 */
#ifndef MINI_CUDA_H
#define MINI_CUDA_H

#include <infernix/compute.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t mini_ptr; /* an address in device memory */

/* As the driver has them. */
struct mini_attribute {
    int id, pad;
    int value[16];
};
struct mini_config {
    unsigned grid[3], block[3], shared;
    void *stream;
    struct mini_attribute *attributes;
    unsigned n_attributes;
};

struct mini_cuda {
    struct ifx_compute compute;
    void *library, *context, *stream;
    char name[128];
    int (*init)(unsigned);
    int (*device_get)(int *, int);
    int (*device_name)(char *, int, int);
    int (*device_attribute)(int *, int, int);
    int (*context_retain)(void **, int);
    int (*context_current)(void *);
    int (*mem_alloc)(mini_ptr *, size_t);
    int (*mem_free)(mini_ptr);
    int (*to_device)(mini_ptr, const void *, size_t);
    int (*from_device)(void *, mini_ptr, size_t);
    int (*on_device)(mini_ptr, mini_ptr, size_t, void *);
    int (*fill)(mini_ptr, unsigned char, size_t);
    int (*module_load)(void **, const void *);
    int (*module_unload)(void *);
    int (*module_function)(void **, void *, const char *);
    int (*function_attribute)(void *, int, int);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    int (*launch_with)(const struct mini_config *, void *, void **, void **);
    int (*stream_create)(void **, unsigned);
    int (*stream_sync)(void *);
    int (*event_create)(void **, unsigned);
    int (*event_record)(void *, void *);
    int (*event_elapsed)(float *, void *, void *);
    int (*capture_begin)(void *, int);
    int (*capture_end)(void *, void **);
    int (*graph_make)(void **, void *, unsigned long long);
    int (*graph_launch)(void *, void *);
};

/* Ends the program: a test that cannot go on. */
static inline void mini_must(int status, const char *what)
{
    if (status) {
        printf("FAIL %s: CUDA error %d\n", what, status);
        exit(1);
    }
}

static inline int32_t mini_module_load(const struct ifx_compute *c, const void *image, uint64_t bytes, void **module)
{
    struct mini_cuda *m = c->ctx;
    (void)bytes;
    int status = m->module_load(module, image);
    if (status)
        printf("module_load: CUDA error %d\n", status);
    return status == 0 ? IFX_OK : status == 209 ? IFX_EUNSUPPORTED : IFX_EDEVICE;
}

static inline void mini_module_unload(const struct ifx_compute *c, void *module)
{
    struct mini_cuda *m = c->ctx;
    m->module_unload(module);
}

static inline int32_t mini_kernel(const struct ifx_compute *c, void *module, const char *name, uint32_t shared, void **kernel)
{
    struct mini_cuda *m = c->ctx;
    int status = m->module_function(kernel, module, name);
    if (!status && shared > 48u * 1024u)
        status = m->function_attribute(*kernel, 8, (int)shared);
    if (status)
        printf("kernel %s: CUDA error %d\n", name, status);
    return status ? IFX_EDEVICE : IFX_OK;
}

static inline int32_t mini_launch(const struct ifx_compute *c, void *stream, void *kernel, const uint32_t g[3], const uint32_t b[3],
                                  uint32_t shared, void *const *args)
{
    struct mini_cuda *m = c->ctx;
    int status = m->launch(kernel, g[0], g[1], g[2], b[0], b[1], b[2], shared, stream, (void **)(uintptr_t)args, NULL);
    if (status)
        printf("launch: CUDA error %d\n", status);
    return status ? IFX_EDEVICE : IFX_OK;
}

/* Programmatic stream serialisation. */
static inline int32_t mini_launch_early(const struct ifx_compute *c, void *stream, void *kernel, const uint32_t g[3], const uint32_t b[3],
                                        uint32_t shared, void *const *args)
{
    struct mini_cuda *m = c->ctx;
    struct mini_attribute early = {.id = 6, .value = {1}};
    struct mini_config config = {{g[0], g[1], g[2]}, {b[0], b[1], b[2]}, shared, stream, &early, 1};
    int status = m->launch_with(&config, kernel, (void **)(uintptr_t)args, NULL);
    if (status)
        printf("launch: CUDA error %d\n", status);
    return status ? IFX_EDEVICE : IFX_OK;
}

static inline int mini_symbol(struct mini_cuda *m, void *member, const char *name)
{
    void *symbol = dlsym(m->library, name);
    memcpy(member, &symbol, sizeof symbol);
    return symbol != NULL;
}

static inline int mini_symbols(struct mini_cuda *m)
{
    return mini_symbol(m, &m->init, "cuInit") && mini_symbol(m, &m->device_get, "cuDeviceGet") &&
           mini_symbol(m, &m->device_name, "cuDeviceGetName") && mini_symbol(m, &m->device_attribute, "cuDeviceGetAttribute") &&
           mini_symbol(m, &m->context_retain, "cuDevicePrimaryCtxRetain") && mini_symbol(m, &m->context_current, "cuCtxSetCurrent") &&
           mini_symbol(m, &m->mem_alloc, "cuMemAlloc_v2") && mini_symbol(m, &m->mem_free, "cuMemFree_v2") &&
           mini_symbol(m, &m->to_device, "cuMemcpyHtoD_v2") && mini_symbol(m, &m->from_device, "cuMemcpyDtoH_v2") &&
           mini_symbol(m, &m->on_device, "cuMemcpyDtoDAsync_v2") && mini_symbol(m, &m->fill, "cuMemsetD8_v2") &&
           mini_symbol(m, &m->module_load, "cuModuleLoadData") && mini_symbol(m, &m->module_unload, "cuModuleUnload") &&
           mini_symbol(m, &m->module_function, "cuModuleGetFunction") &&
           mini_symbol(m, &m->function_attribute, "cuFuncSetAttribute") && mini_symbol(m, &m->launch, "cuLaunchKernel") &&
           mini_symbol(m, &m->launch_with, "cuLaunchKernelEx") &&
           mini_symbol(m, &m->stream_create, "cuStreamCreate") && mini_symbol(m, &m->stream_sync, "cuStreamSynchronize") &&
           mini_symbol(m, &m->event_create, "cuEventCreate") && mini_symbol(m, &m->event_record, "cuEventRecord") &&
           mini_symbol(m, &m->event_elapsed, "cuEventElapsedTime") &&
           mini_symbol(m, &m->capture_begin, "cuStreamBeginCapture_v2") &&
           mini_symbol(m, &m->capture_end, "cuStreamEndCapture") &&
           mini_symbol(m, &m->graph_make, "cuGraphInstantiateWithFlags") && mini_symbol(m, &m->graph_launch, "cuGraphLaunch");
}

static inline uint32_t mini_property(struct mini_cuda *m, int which)
{
    int value = 0;
    mini_must(m->device_attribute(&value, which, 0), "cuDeviceGetAttribute");
    return (uint32_t)value;
}

/* 0: there is no GPU, and a line says why. */
static inline int mini_cuda_open(struct mini_cuda *m)
{
    int device = 0, status;
    memset(m, 0, sizeof *m);
    m->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!m->library) {
        printf("SKIP: no CUDA driver (%s)\n", dlerror());
        return 0;
    }
    if (!mini_symbols(m)) {
        printf("SKIP: the CUDA driver is too old\n");
        return 0;
    }
    status = m->init(0);
    if (!status)
        status = m->device_get(&device, 0);
    if (status) {
        printf("SKIP: no CUDA device (error %d)\n", status);
        return 0;
    }
    mini_must(m->context_retain(&m->context, device), "context");
    mini_must(m->context_current(m->context), "context");
    mini_must(m->stream_create(&m->stream, 0), "stream"); /* ordered with plain copies and fills */
    m->device_name(m->name, sizeof m->name, device);
    m->compute = (struct ifx_compute){
        .struct_size = sizeof m->compute,
        .family = IFX_COMPUTE_CUDA,
        .arch = 10 * mini_property(m, 75) + mini_property(m, 76),
        .multiprocessors = mini_property(m, 16),
        .max_shared = mini_property(m, 97),
        .warp = 32,
        .l2_bytes = mini_property(m, 38),
        .ctx = m,
        .module_load = mini_module_load,
        .module_unload = mini_module_unload,
        .kernel = mini_kernel,
        .launch = mini_launch,
        .launch_early = mini_launch_early,
    };
    if (m->compute.arch < 90) {
        printf("SKIP: %s has compute capability %u.%u, the kernels need 9.0\n", m->name, m->compute.arch / 10, m->compute.arch % 10);
        return 0;
    }
    printf("on %s, compute capability %u.%u\n", m->name, m->compute.arch / 10, m->compute.arch % 10);
    return 1;
}

static inline void *mini_device(struct mini_cuda *m, size_t bytes)
{
    mini_ptr p = 0;
    mini_must(m->mem_alloc(&p, bytes ? bytes : 1), "cuMemAlloc");
    return (void *)(uintptr_t)p;
}

static inline void mini_put(struct mini_cuda *m, void *to, const void *from, size_t bytes)
{
    mini_must(m->to_device((mini_ptr)(uintptr_t)to, from, bytes), "copy to the device");
}

static inline void *mini_copy(struct mini_cuda *m, const void *from, size_t bytes)
{
    void *p = mini_device(m, bytes);
    mini_put(m, p, from, bytes);
    return p;
}

static inline void mini_get(struct mini_cuda *m, void *to, const void *from, size_t bytes)
{
    mini_must(m->from_device(to, (mini_ptr)(uintptr_t)from, bytes), "copy from the device");
}

static inline void mini_release(struct mini_cuda *m, void *p)
{
    mini_must(m->mem_free((mini_ptr)(uintptr_t)p), "cuMemFree");
}

static inline void mini_sync(struct mini_cuda *m, const char *what)
{
    mini_must(m->stream_sync(m->stream), what);
}

#endif
