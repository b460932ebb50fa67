/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_int8_cpu_avx512.c - the bank `int8` with AVX-512 F, BW, VL and DQ.
 */
#include "expert_int8_format.h"

#include "../common_expert/bank.h"
#include "../common_expert/vec_avx512.h"

struct bank_row {
    const uint8_t *codes;
    __m512 scale[BANK_BLOCK_K / BANK_GROUP];
};

static inline struct bank_row bank_row_open(const void *tables, const uint8_t *line, const uint8_t *scales,
                                            uint32_t half)
{
    (void)tables;
    (void)half;
    struct bank_row row;
    __m128 pair = _mm_cvtph_ps(_mm_loadu_si32(scales));
    row.codes = line;
    row.scale[0] = _mm512_broadcastss_ps(pair);
    row.scale[1] = _mm512_broadcastss_ps(_mm_movehdup_ps(pair));
    return row;
}

static inline vec bank_row_step(const struct bank_row *row, uint32_t step)
{
    __m512i codes = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(row->codes + 16 * step)));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(codes), row->scale[step / 2]);
}

#include "../common_expert/narrow.h"
#include "../common_expert/wide_f32.h"

const struct expert_routes *bank_routes_avx512(void)
{
    static const struct expert_routes routes = {&narrow_route, &wide_route, 0};
    return &routes;
}
