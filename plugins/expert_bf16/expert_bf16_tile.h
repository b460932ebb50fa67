/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_bf16_tile.h - lines of the bank `bf16` as rows of matrix tiles; needs AVX-512-BF16.
 */
#ifndef EXPERT_BF16_TILE_H
#define EXPERT_BF16_TILE_H

#include <immintrin.h>

enum { BANK_TILE_DIRECT = 1, BANK_TILE_SCALED = 0 };

/* Lines are tile rows already. */
struct bank_tile_scales {
    uint32_t none;
};

static inline float bank_tile_scale(const struct bank_tile_scales *scales, uint32_t row, uint32_t tile)
{
    (void)scales;
    (void)row;
    (void)tile;
    return 1.0f;
}

static inline void bank_tile_open(const uint8_t *scales, struct bank_tile_scales *out)
{
    (void)scales;
    (void)out;
}

static inline void bank_tile_line(const void *tables, const uint8_t *line, const struct bank_tile_scales *scales, uint32_t row, uint8_t *out)
{
    (void)tables;
    (void)line;
    (void)scales;
    (void)row;
    (void)out;
}

#endif
