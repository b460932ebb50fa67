/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_device.h - what the files of this plugin share: the device struct, error mapping, and who fills its table.
 *
 * The host side is C against the CUDA runtime; kernels are compiled into fat binaries (X.cu) that open loads as libraries, the
 * same way a format plugin's are.  A stream handle is a cudaStream_t, an event handle a cudaEvent_t.
 */
#ifndef DEVICE_CUDA_H
#define DEVICE_CUDA_H

#include <cuda_runtime_api.h>

#include <infernix/device.h>
#include <pthread.h>
#include <stdatomic.h>

/* Every kernel, by its name in the .cu file and the image that holds it. */
#define CUDA_KERNELS(K)                                                                                                  \
    K(elementwise, embed)                                                                                                \
    K(elementwise, rms_norm)                                                                                             \
    K(elementwise, rms_norm_small)                                                                                       \
    K(elementwise, norm_rope)                                                                                            \
    K(elementwise, gated_norm)                                                                                           \
    K(elementwise, swiglu)                                                                                               \
    K(elementwise, sigmoid_gate)                                                                                         \
    K(elementwise, add)                                                                                                  \
    K(elementwise, combine)                                                                                              \
    K(elementwise, to_bf16)                                                                                              \
    K(linear, linear_narrow)                                                                                             \
    K(linear, linear_narrow_few)                                                                                         \
    K(linear, linear_narrow_any)                                                                                         \
    K(linear, linear_narrow_exact)                                                                                       \
    K(linear, linear_narrow_exact_any)                                                                                   \
    K(linear, linear_narrow_w8)                                                                                          \
    K(linear, linear_narrow_f32)                                                                                         \
    K(linear, split_bf16)                                                                                                \
    K(linear, round_f32)                                                                                                 \
    K(linear, expand_bf16)                                                                                            \
    K(linear, expand_f32)                                                                                                \
    K(product, product_many)                                                                                             \
    K(product, product_few)                                                                                              \
    K(product, product_exact)                                                                                            \
    K(gdn, gdn_gate)                                                                                                     \
    K(gdn, conv_few)                                                                                                     \
    K(gdn, conv_many)                                                                                                    \
    K(gdn, conv_state)                                                                                                   \
    K(gdn, delta_steps)                                                                                                  \
    K(gdn, delta_chunks)                                                                                                 \
    K(gdn, delta_scan)                                                                                                   \
    K(route, router_small)                                                                                               \
    K(route, router_large)                                                                                               \
    K(route, route_few)                                                                                                  \
    K(route, group_few)                                                                                                  \
    K(route, group_count)                                                                                                \
    K(route, group_offsets)                                                                                              \
    K(route, group_scatter)                                                                                              \
    K(sample, sample_largest)                                                                                            \
    K(sample, sample_pick)                                                                                               \
    K(residual, activate)                                                                                                \
    K(residual, stream_mix)                                                                                              \
    K(residual, stream_inject)                                                                                           \
    K(residual, stream_gate)                                                                                             \
    K(select, index_store)                                                                                               \
    K(select, index_blocks)                                                                                              \
    K(select, block_scores)                                                                                              \
    K(select, block_rows)                                                                                                \
    K(handover, post)                                                                                                    \
    K(handover, await)

enum {
#define K(image, name) K_##name,
    CUDA_KERNELS(K)
#undef K
    K_COUNT
};

enum { CUDA_IMAGES = 9 };

struct gemm_cache; /* gemm.c */

/* A failed host call waits here for the next sync of its stream. */
struct host_failure {
    struct host_failure *next;
    void *stream;
    int32_t status;
};

struct cuda_device {
    struct ifx_device base;    /* first member */
    struct ifx_device_ops ops; /* base.ops points here */
    struct ifx_compute compute;
    int ordinal;
    atomic_int lost; /* the cudaError_t of a sticky error */
    struct cudaDeviceProp prop;
    cudaLibrary_t images[CUDA_IMAGES];
    cudaKernel_t kernels[K_COUNT];
    struct gemm_cache *gemm;
    pthread_mutex_t lock; /* guards what follows */
    struct host_failure *failures;
    struct pinned_block *pinned; /* memory.c */
    int told_small_pages;
    struct host_call *captured; /* of the graph being captured */
};

static inline struct cuda_device *cuda_of(struct ifx_device *dev)
{
    return (struct cuda_device *)dev;
}

/* errors.c.  Status of a CUDA error, its text recorded as "device cuda:N: WHAT: ...".  A sticky error loses the device. */
int32_t cuda_check(struct cuda_device *d, cudaError_t error, const char *what);
/* Makes the device current in this thread; fails when it is lost. */
int32_t cuda_enter(struct cuda_device *d);
/* ops.c: lets kernels have the dynamic shared memory they will ask for. */
int32_t cuda_allow_shared(struct cuda_device *d);

/* Launches a kernel with `args`, the addresses of its parameters. */
int32_t cuda_launch(struct cuda_device *d, void *stream, uint32_t kernel, dim3 grid, uint32_t threads, uint32_t shared,
                    void **args);

static inline dim3 grid3(uint64_t x, uint64_t y, uint64_t z)
{
    dim3 g = {(unsigned)x, (unsigned)y, (unsigned)z};
    return g;
}

static inline uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

static inline uint64_t round_up(uint64_t a, uint64_t b)
{
    return ceil_div(a, b) * b;
}

/* Each sets its share of the table. */
void cuda_fill_memory(struct ifx_device_ops *ops);  /* memory.c */
void cuda_fill_streams(struct ifx_device_ops *ops); /* streams.c */
void cuda_fill_ops(struct ifx_device_ops *ops);     /* ops.c */
void cuda_fill_linear(struct ifx_device_ops *ops);  /* linear.c */
void cuda_fill_product(struct ifx_device_ops *ops); /* product.c */
int32_t product_allow_shared(struct cuda_device *d);
void cuda_fill_route(struct ifx_device_ops *ops);   /* route.c */
void cuda_fill_select(struct ifx_device_ops *ops);  /* select.c */
void cuda_fill_handover(struct ifx_device_ops *ops); /* handover.c */
void cuda_fill_compute(struct cuda_device *d);      /* compute.c */
void cuda_free_failures(struct cuda_device *d);     /* streams.c */

/* gemm.c: products on the tensor cores through cuBLASLt, which is loaded here: a machine without a GPU never reads it. */
int32_t gemm_create(struct cuda_device *d);
void gemm_destroy(struct cuda_device *d);
#define GEMM_BF16 1u /* A and B bf16 */
#define GEMM_F32  2u /* A and B float32, no tensor cores */
struct gemm {
    uint32_t type;
    uint32_t rows, n, k;
    uint32_t accumulate;
    const void *a; /* [rows, k], rows lda apart */
    uint64_t lda;
    const void *b; /* [n, k], rows ldb apart */
    uint64_t ldb;
    float *c; /* [n, rows], rows ldc apart */
    uint64_t ldc;
    void *ws;
};
#define GEMM_WS_BYTES (32u << 20)
int32_t gemm_run(struct cuda_device *d, void *stream, const struct gemm *g);

#endif
