/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_bf16_cpu_avx512.c - the bank `bf16` with AVX-512 F, BW, VL and DQ.
 */
#include "expert_bf16_format.h"

#include "../common_expert/bank.h"
#include "../common_expert/vec_avx512.h"

struct bank_row {
    __m512i words;
};

static inline struct bank_row bank_row_open(const void *tables, const uint8_t *line, const uint8_t *scales,
                                            uint32_t half)
{
    (void)tables;
    (void)scales;
    (void)half;
    return (struct bank_row){_mm512_loadu_si512(line)};
}

static inline vec bank_row_step(const struct bank_row *row, uint32_t step)
{
    if (step == 0)
        return _mm512_castsi512_ps(_mm512_slli_epi32(row->words, 16));
    return _mm512_castsi512_ps(_mm512_and_si512(row->words, _mm512_set1_epi32((int)0xffff0000u)));
}

#include "../common_expert/narrow.h"
#include "../common_expert/wide_f32.h"

const struct expert_routes *bank_routes_avx512(void)
{
    static const struct expert_routes routes = {&narrow_route, &wide_route, 0};
    return &routes;
}
