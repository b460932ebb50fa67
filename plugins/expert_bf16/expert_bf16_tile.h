/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_bf16_tile.h - lines of the bank `bf16` as rows of matrix tiles; needs AVX-512-BF16.
 */
#ifndef EXPERT_BF16_TILE_H
#define EXPERT_BF16_TILE_H

#include <immintrin.h>

enum { BANK_TILE_DIRECT = 1, BANK_TILE_PARTS = 1 };

/* Lines are tile rows already. */
static inline void bank_tile_line(const void *tables, const uint8_t *line, const uint8_t *scales, uint8_t *out)
{
    (void)tables;
    (void)line;
    (void)scales;
    (void)out;
}

#endif
