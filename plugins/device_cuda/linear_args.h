/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_args.h - parameters of the product kernels, for both sides.
 */
#ifndef DEVICE_CUDA_LINEAR_ARGS_H
#define DEVICE_CUDA_LINEAR_ARGS_H

#include <infernix/device.h>

enum {
    NARROW_COLUMNS = 8, /* one tile of the tensor cores wide */
    NARROW_ROWS = 16,   /* rows a block */
    NARROW_WARPS = 8,   /* they share the input width */
    F32_THREADS = 128   /* a block of these makes one row */
};

struct narrow_out {
    struct ifx_weight w;
    float *y;
    uint64_t ldy;
    uint32_t accumulate;
    uint32_t tile0; /* first block of this matrix */
    uint32_t exact; /* products: the input is not rounded */
    uint32_t end;   /* products: END_* */
};

struct narrow_args {
    uint32_t n, cols, count, tiles;
    const float *x;
    uint64_t ldx;
    uint32_t x_aligned; /* rows of x are 16-byte aligned */
    uint32_t round_x;
    struct narrow_out out[IFX_LINEAR_MAX];
};

/* ---- products with what surrounds them ---- */

enum { INPUT_NORM, INPUT_GATED_NORM, INPUT_SWIGLU, INPUT_SIGMOID_GATE, INPUT_PLAIN };
enum { END_PLAIN, END_DECAY, END_BETA, END_COMBINE };
enum {
    PRODUCT_EACH = 4,       /* groups of 4 values, or heads, that a thread keeps */
    PRODUCT_HEAD = 128,     /* widest head of a gated norm */
    PRODUCT_PAD_BF16 = 32,  /* between the rows of the input in shared memory */
    PRODUCT_PAD_F32 = 4
};

struct product_args {
    struct narrow_args a;
    uint32_t input; /* INPUT_* of a.x and of: */
    uint32_t act, head;
    float eps, plus_one;
    const float *w, *z;
    uint64_t ldz, ldz_head;
    uint16_t *rounded;
    uint64_t ldr;
    const float *a_log, *dt_bias;
    struct ifx_combine combine;
    const float *shared_gate;
    uint64_t ld_gate;
};

#endif
