/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_args.h - what the host side of a bank hands to its CUDA kernels; read by both compilers.
 */
#ifndef COMMON_EXPERT_CUDA_ARGS_H
#define COMMON_EXPERT_CUDA_ARGS_H

#include <stdint.h>

enum {
    EXPERT_NARROW_THREADS = 256,
    EXPERT_NARROW_BLOCKS = 2,    /* of a stage */
    EXPERT_NARROW_FIXED = 3072,  /* shared memory: barriers, column addresses, scratch */
    EXPERT_WIDE_THREADS = 128,
    EXPERT_GROUPED_THREADS = 256, /* the same on Hopper: two warpgroups */
    EXPERT_WIDE_PANELS = 4,   /* panels of a wide block, one a warp */
    EXPERT_WIDE_COLUMNS = 128 /* most columns of a wide tile */
};

/* One tile of the wide route: columns [from, from + count) of an entry. */
struct expert_tile {
    uint32_t entry;
    uint32_t from;
    uint32_t count;
    uint32_t offset; /* of the entry's first pair in rows */
};

struct expert_cuda_args {
    const void *const *records;
    const uint32_t *experts;
    const uint32_t *offsets;
    const uint32_t *rows;
    const uint16_t *x;
    uint64_t ldx;
    float *y;
    uint64_t ldy;
    uint16_t *hidden; /* bf16 [pairs in the order of rows, ldh] */
    uint64_t ldh;
    struct expert_tile *tiles; /* made by expert_plan: [n_tiles] */
    uint32_t *n_tiles;
    uint64_t down_offset;
    uint32_t n_entries;
    uint32_t top_k;
    uint32_t hidden_size;
    uint32_t inter;
    uint32_t gu_panels;
    uint32_t gu_blocks;
    uint32_t down_panels;
    uint32_t down_blocks;
    uint32_t x_floats; /* narrow: floats of shared memory for columns */
    uint32_t stages;   /* narrow: stages of the ring */
    uint32_t each;     /* narrow: panels of a block */
};

#endif
