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
};

struct narrow_args {
    uint32_t n, cols, count, tiles;
    const float *x;
    uint64_t ldx;
    uint32_t x_aligned; /* rows of x are 16-byte aligned */
    uint32_t round_x;
    struct narrow_out out[IFX_LINEAR_MAX];
};

#endif
