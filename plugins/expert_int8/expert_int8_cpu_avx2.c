/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_int8_cpu_avx2.c - the bank `int8` with AVX2, FMA and F16C.
 */
#include "expert_int8_format.h"

#include "../common_expert/bank.h"
#include "../common_expert/vec_avx2.h"

struct bank_row {
    const uint8_t *codes;
    __m256 scale[BANK_BLOCK_K / BANK_GROUP];
};

static inline struct bank_row bank_row_open(const void *tables, const uint8_t *line, const uint8_t *scales,
                                            uint32_t half)
{
    (void)tables;
    struct bank_row row;
    __m128 pair = _mm_cvtph_ps(_mm_loadu_si32(scales));
    row.codes = line + 8 * half;
    row.scale[0] = _mm256_broadcastss_ps(pair);
    row.scale[1] = _mm256_broadcastss_ps(_mm_movehdup_ps(pair));
    return row;
}

static inline vec bank_row_step(const struct bank_row *row, uint32_t step)
{
    __m256i codes = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(row->codes + 16 * step)));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(codes), row->scale[step / 2]);
}

#include "../common_expert/narrow.h"
#include "../common_expert/wide_f32.h"

const struct expert_routes *bank_routes_avx2(void)
{
    static const struct expert_routes routes = {&narrow_route, &wide_route, 0};
    return &routes;
}
