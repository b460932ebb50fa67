/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_int8_tile.h - lines of the bank `int8` as rows of matrix tiles; needs AVX-512-BF16.  Two products for each weight: with AVX-512-BF16
 * alone that is no faster than the float32 form of AVX-512, which is used there.
 */
#ifndef EXPERT_INT8_TILE_H
#define EXPERT_INT8_TILE_H

#include <immintrin.h>

enum { BANK_TILE_DIRECT = 0, BANK_TILE_PARTS = 2 };

/* A weight has up to 18 significant bits (7 of the code, 11 of the scale): bf16 holds 8, and another 8 of what is left, which leaves 2^-17 of
 * it.  A word of a tile row is position l in its low and l + 16 in its high half. */
static inline __m512 bf16_half(__m512i v, int which)
{
    const __m256i half = which ? _mm512_extracti64x4_epi64(v, 1) : _mm512_castsi512_si256(v);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

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
        low = _mm512_mul_ps(low, scale);
        high = _mm512_mul_ps(high, scale);
        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(high, low);
        _mm512_store_si512(out + i * 4096, _mm512_permutexvar_epi16(order, both));
        low = _mm512_sub_ps(low, bf16_half(both, 0));
        high = _mm512_sub_ps(high, bf16_half(both, 1));
        const __m512i rest = (__m512i)_mm512_cvtne2ps_pbh(high, low);
        _mm512_store_si512(out + i * 4096 + 2048, _mm512_permutexvar_epi16(order, rest));
    }
}

#endif
