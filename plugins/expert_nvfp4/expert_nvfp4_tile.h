/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_nvfp4_tile.h - lines of the bank `nvfp4` as rows of matrix tiles; needs AVX-512-BF16 and VBMI.
 */
#ifndef EXPERT_NVFP4_TILE_H
#define EXPERT_NVFP4_TILE_H

#include <immintrin.h>

enum { BANK_TILE_DIRECT = 0, BANK_TILE_SCALED = 0, NVFP4_SCALES = 32 * BANK_ROW_SCALES };

/* Of the scales of a block: where their products begin in the tables. */
struct bank_tile_scales {
    _Alignas(64) uint16_t offset[NVFP4_SCALES];
};

static inline void bank_tile_open(const uint8_t *scales, struct bank_tile_scales *out)
{
#pragma GCC unroll 8
    for (uint32_t i = 0; i < NVFP4_SCALES; i += 32) {
        __m512i wide = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(scales + i)));
        _mm512_store_si512(out->offset + i, _mm512_slli_epi16(wide, 5));
    }
}

static inline float bank_tile_scale(const struct bank_tile_scales *scales, uint32_t row, uint32_t tile)
{
    (void)scales;
    (void)row;
    (void)tile;
    return 1.0f;
}

/* A word of a tile row is position l in its low and l + 16 in its high half: the bytes of two bf16, looked up in one table of 64 that is
 * made of the halves of both groups' products.  An index is the code, bit 4 for the upper byte and bit 5 for the second group; each code is
 * brought to both of its bytes by a shift of its own. */
static inline void bank_tile_line(const void *tables, const uint8_t *line, const struct bank_tile_scales *scales, uint32_t row, uint8_t *out)
{
    const uint8_t *halves = ((const struct bank_tables *)tables)->halves[0][0];
    const uint16_t *offset = scales->offset + row * BANK_ROW_SCALES;
    const __m512i words = _mm512_loadu_si512(line);
    const __m512i code = _mm512_set1_epi8(15), place = _mm512_set1_epi32(0x30201000);
#pragma GCC unroll 4
    for (uint32_t i = 0; i < BANK_BLOCK_K / 32; i++) {
        const __m512i shift = _mm512_add_epi8(_mm512_set1_epi64(0x2424202004040000), _mm512_set1_epi8((char)(8 * i)));
        __m512i index = _mm512_multishift_epi64_epi8(shift, words);
        index = _mm512_ternarylogic_epi32(index, code, place, 0xea); /* index & code | place */
        const __m256i low = _mm256_load_si256((const __m256i *)(halves + offset[2 * i]));
        const __m256i high = _mm256_load_si256((const __m256i *)(halves + offset[2 * i + 1]));
        const __m512i table = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
        _mm512_store_si512(out + (size_t)i * 2048, _mm512_permutexvar_epi8(index, table));
    }
}

#endif
