/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_int8_tile.h - lines of the bank `int8` as rows of matrix tiles; needs AVX-512-BF16.
 */
#ifndef EXPERT_INT8_TILE_H
#define EXPERT_INT8_TILE_H

#include <immintrin.h>

enum { BANK_TILE_DIRECT = 0 };

/* The weights are rounded to bf16 once; a word of a tile row is position l in its low and l + 16 in its high
 * half. */
static inline void bank_tile_line(const void *tables, const uint8_t *line, const uint8_t *scales, uint8_t *out)
{
    (void)tables;
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                           22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m128 pair = _mm_cvtph_ps(_mm_loadu_si32(scales));
#pragma GCC unroll 2
    for (uint32_t i = 0; i < BANK_BLOCK_K / 32; i++) {
        const __m512 scale = _mm512_broadcastss_ps(i ? _mm_movehdup_ps(pair) : pair);
        __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(line + 32 * i))));
        __m512 high =
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(line + 32 * i + 16))));
        __m512bh both = _mm512_cvtne2ps_pbh(_mm512_mul_ps(high, scale), _mm512_mul_ps(low, scale));
        _mm512_store_si512(out + i * 2048, _mm512_permutexvar_epi16(order, (__m512i)both));
    }
}

#endif
