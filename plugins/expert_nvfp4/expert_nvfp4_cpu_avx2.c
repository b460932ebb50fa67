/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_nvfp4_cpu_avx2.c - the bank `nvfp4` with AVX2, FMA and F16C.
 */
#include "expert_nvfp4_format.h"

#include "../common_expert/bank.h"
#include "../common_expert/vec_avx2.h"

/* A float32 e2m1 value has only its two upper bytes set, so two byte look-ups decode 32 codes at once.  pair[j]
 * holds the upper halves of steps j and j + 4. */
struct bank_row {
    __m256i pair[4];
    const uint8_t *scales;
    const struct bank_tables *tables;
};

/* Upper and lower byte of the upper half of the float32 of each e2m1 code. */
static const uint8_t nvfp4_upper[16] = {0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                        0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
static const uint8_t nvfp4_lower[16] = {0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0,
                                        0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0};

static inline struct bank_row bank_row_open(const void *tables, const uint8_t *line, const uint8_t *scales,
                                            uint32_t half)
{
    const __m256i upper = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)nvfp4_upper));
    const __m256i lower = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)nvfp4_lower));
    const __m256i nibble = _mm256_set1_epi8(15), odd_bytes = _mm256_set1_epi16((short)0xff00);
    __m256i words = _mm256_loadu_si256((const __m256i *)(line + 32 * half));
    __m256i codes[2] = {_mm256_and_si256(words, nibble), _mm256_and_si256(_mm256_srli_epi16(words, 4), nibble)};
    struct bank_row row;
    row.scales = scales;
    row.tables = tables;
    for (int i = 0; i < 2; i++) { /* bytes 0..3 of codes[i]: steps i, i + 2, i + 4, i + 6 */
        __m256i u = _mm256_shuffle_epi8(upper, codes[i]), l = _mm256_shuffle_epi8(lower, codes[i]);
        row.pair[i] = _mm256_blendv_epi8(l, _mm256_slli_epi16(u, 8), odd_bytes);
        row.pair[i + 2] = _mm256_blendv_epi8(_mm256_srli_epi16(l, 8), u, odd_bytes);
    }
    return row;
}

static inline vec bank_row_step(const struct bank_row *row, uint32_t step)
{
    __m256i pair = row->pair[step % 4];
    __m256i value =
        step < 4 ? _mm256_slli_epi32(pair, 16) : _mm256_and_si256(pair, _mm256_set1_epi32((int)0xffff0000u));
    return _mm256_mul_ps(_mm256_castsi256_ps(value), _mm256_broadcast_ss(&row->tables->scale[row->scales[step]]));
}

#include "../common_expert/narrow.h"
#include "../common_expert/wide_f32.h"

const struct expert_routes *bank_routes_avx2(void)
{
    static const struct expert_routes routes = {&narrow_route, &wide_route, 0};
    return &routes;
}
