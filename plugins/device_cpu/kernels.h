/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels.h - the table of vector kernels of device `cpu`: one table an instruction set, chosen when the device is opened.
 *
 * Kernels work on a range of an operation's rows, columns or heads and know nothing of threads; the drivers (linear.c, ops.c)
 * cut the ranges.  No result depends on how they are cut.
 */
#ifndef DEVICE_CPU_KERNELS_H
#define DEVICE_CPU_KERNELS_H

#include <infernix/device.h>

/* Blocking of the wide product: rows and inputs of a weight block, columns of an output block. */
#define CPU_ROWS_MAX 128u /* a multiple of 32 */
#define CPU_KC       256u /* inputs a block of the float32 product; a multiple of 32 */
#define CPU_KC16     512u /* and of the bf16 product: as many bytes */
#define CPU_NB       256u /* columns: of the bf16 product */
#define CPU_NB32     128u /* and of the float32 product: all blocks in 512 KiB of cache */
#define CPU_LDC      (CPU_NB + 16u + 32u) /* row of the output block: an odd number of cache lines */
#define CPU_PANEL    16u /* columns a packed panel */
/* Per-worker scratch of the wide product: output block, decoded weight block. */
#define CPU_C_BYTES       ((CPU_ROWS_MAX + 16u) * CPU_LDC * 4u)
#define CPU_W_BYTES       ((CPU_ROWS_MAX + 16u) * CPU_KC * 4u)
#define CPU_SCRATCH_BYTES (CPU_C_BYTES + CPU_W_BYTES)

/* Rows [r0, r1) of one matrix against n <= 8 columns, in the canonical order of numerics.h: 16 lanes, k ascending, whatever n is. */
struct cpu_narrow {
    const struct ifx_weight *w;
    const float *x; /* [n, ldx], rounded, zero from cols up to ldx */
    uint64_t ldx;   /* a multiple of 32 */
    float *y;
    uint64_t ldy;
    uint64_t r0, r1;
    uint32_t n;
    uint32_t accumulate;
};

/* Rows [r0, r1) of one matrix, at most CPU_ROWS_MAX, against any number of columns. */
struct cpu_wide {
    const struct ifx_weight *w;
    const void *x; /* packed panels */
    float *y;
    uint64_t ldy;
    uint64_t r0, r1;
    void *scratch; /* CPU_SCRATCH_BYTES, 64-byte aligned */
    uint32_t n;
    uint32_t accumulate;
};

/* Packs columns [16 p, 16 p + 16) and inputs [k0, k1) of x; k0 is a multiple of 32, k1 too or the width.  Columns past n are zero.
 *   float32: panel p at p * cols * 16: [cols][16], rounded to bf16 unless exact;
 *   bf16:    panel p at p * ldk * 16, ldk = cols rounded up to 32: [ldk / 2][16][2], zero past cols. */
struct cpu_pack {
    const float *x;
    uint64_t ldx;
    void *out;
    uint64_t p;
    uint32_t k0, k1, cols, n;
    uint32_t exact;
};

struct cpu_embed {
    const struct ifx_weight *table;
    const int32_t *ids;
    float *y;
    uint64_t ldy;
};

struct cpu_to_bf16 {
    const float *x;
    uint64_t ldx, width;
    uint16_t *y;
    uint64_t ldy;
};

#define CPU_ROTARY_MAX 256u /* rotary dims that norm_rope has room for */

typedef void (*cpu_range_fn)(const void *op, uint64_t i0, uint64_t i1);

struct cpu_kernels {
    uint32_t row_unit; /* rows of a wide task: a multiple of it, so that no register block is half empty */
    uint32_t row_unit16;
    void (*round_row)(const float *x, uint32_t k, uint32_t padded, uint32_t exact, float *out);
    void (*narrow)(const struct cpu_narrow *t);
    void (*pack_f32)(const struct cpu_pack *t);
    void (*wide_f32)(const struct cpu_wide *t);
    /* NULL where the matrix unit takes float32 only. */
    void (*pack_bf16)(const struct cpu_pack *t);
    void (*wide_bf16)(const struct cpu_wide *t);

    /* Rows, tokens or channels [i0, i1) of an operation: op is its struct. */
    cpu_range_fn embed; /* struct cpu_embed: tokens */
    cpu_range_fn rms_norm, norm_rope, gdn_gate, gated_norm, swiglu, sigmoid_gate, add, router, combine; /* rows, tokens */
    cpu_range_fn conv;    /* channels */
    cpu_range_fn to_bf16; /* struct cpu_to_bf16: rows */
    cpu_range_fn activate, stream_mix, stream_inject, stream_gate; /* tokens */
    /* One query, heads of d contiguous, against block keys [blocks, d]. */
    void (*block_scores)(const float *q, uint32_t heads, uint32_t d, const float *keys, uint64_t blocks, float *score);
    /* One head token by token, values [j0, j1) of it; one head in chunks, with CPU_DELTA_FLOATS of scratch. */
    void (*delta_step)(const struct ifx_gated_delta *op, uint64_t head, uint64_t j0, uint64_t j1);
    void (*delta_chunks)(const struct ifx_gated_delta *op, uint64_t head, float *scratch);
};

/* Each fills the table, from the level below up. */
void cpu_kernels_scalar(struct cpu_kernels *k);
void cpu_kernels_avx2(struct cpu_kernels *k);
void cpu_kernels_avx512(struct cpu_kernels *k);
void cpu_kernels_avx512_bf16(struct cpu_kernels *k);
void cpu_kernels_amx_bf16(struct cpu_kernels *k);

/* Gated delta rule in chunks: tokens a chunk, and floats of scratch. */
#define CPU_CHUNK 64u
/* K, Q, K^T, decayed K, U: [chunk, <= 256] each; two score matrices; cumulative decays. */
#define CPU_DELTA_FLOATS(dk, dv) (CPU_CHUNK * (4u * (uint64_t)(dk) + 2u * (uint64_t)(dv) + 2u * CPU_CHUNK + 8u))

#endif
