/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_nvfp4_tile.h - lines of the bank `nvfp4` as rows of matrix tiles; needs AVX-512-BF16.
 */
#ifndef EXPERT_NVFP4_TILE_H
#define EXPERT_NVFP4_TILE_H

#include <immintrin.h>

enum { BANK_TILE_DIRECT = 0, BANK_TILE_PARTS = 1 };

/* A word of a tile row is position l in its low and l + 16 in its high half: two look-ups in tables that hold the
 * product where it belongs, bf16 being exact for it.  Only bits 0..3 of an index count, so a load one byte
 * further is a shift by 8; the last lane then takes bits of the next line or the scales, which do not count. */
static inline void bank_tile_line(const void *tables, const uint8_t *line, const uint8_t *scales, uint8_t *out)
{
    const struct bank_tables *t = tables;
#pragma GCC unroll 4
    for (uint32_t i = 0; i < BANK_BLOCK_K / 32; i++) {
        const __m512i words = _mm512_loadu_si512(line + i);
        __m512i low = _mm512_permutexvar_epi32(words, _mm512_load_si512(t->product_low[scales[2 * i]]));
        __m512i high = _mm512_permutexvar_epi32(_mm512_srli_epi32(words, 4),
                                                _mm512_load_si512(t->product[scales[2 * i + 1]]));
        _mm512_store_si512(out + i * 2048, _mm512_or_si512(low, high));
    }
}

#endif
