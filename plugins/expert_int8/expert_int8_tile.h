/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_int8_tile.h - lines of the bank `int8` as rows of matrix tiles; needs AVX-512-BF16.  A code has 7 bits and is exact in bf16; a weight
 * has up to 18 and is not, but the scales of a row's group are those of one tile of positions and can follow its product.  With
 * AVX-512-BF16 alone that is no faster than the float32 form of AVX-512, which is used there.
 */
#ifndef EXPERT_INT8_TILE_H
#define EXPERT_INT8_TILE_H

#include <immintrin.h>

enum { BANK_TILE_DIRECT = 0, BANK_TILE_SCALED = 1 };
_Static_assert(BANK_GROUP == 32, "a group is the positions of a tile");

/* Of the scales of a block: tile by tile. */
struct bank_tile_scales {
    _Alignas(64) float value[BANK_BLOCK_K / BANK_GROUP][32];
};

static inline float bank_tile_scale(const struct bank_tile_scales *scales, uint32_t row, uint32_t tile)
{
    return scales->value[tile][row];
}

static inline void bank_tile_open(const uint8_t *scales, struct bank_tile_scales *out)
{
#pragma GCC unroll 2
    for (uint32_t i = 0; i < 32; i += 16) { /* two fp16 scales a row: words of a low and a high half */
        __m512i pairs = _mm512_loadu_si512(scales + 4 * i);
        __m256i first = _mm512_cvtepi32_epi16(pairs), second = _mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16));
        _mm512_store_ps(out->value[0] + i, _mm512_cvtph_ps(first));
        _mm512_store_ps(out->value[1] + i, _mm512_cvtph_ps(second));
    }
}

/* A word of a tile row is the code of position l in its low and of l + 16 in its high half; the lower half of a float32 of a code is zero. */
static inline void bank_tile_line(const void *tables, const uint8_t *line, const struct bank_tile_scales *scales, uint32_t row, uint8_t *out)
{
    (void)tables;
    (void)scales;
    (void)row;
#pragma GCC unroll 2
    for (uint32_t i = 0; i < BANK_BLOCK_K / 32; i++) {
        const __m128i *codes = (const __m128i *)(line + 32 * i);
        __m512i low = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes))));
        __m512i high = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes + 1))));
        _mm512_store_si512(out + i * 2048, _mm512_or_si512(_mm512_srli_epi32(low, 16), high));
    }
}

#endif
