/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_bf16_cpu_avx2.c - the bank `bf16` with AVX2, FMA and F16C.
 */
#include "expert_bf16_format.h"

#include "../common_expert/bank.h"
#include "../common_expert/vec_avx2.h"

struct bank_row {
    __m256i words;
};

static inline struct bank_row bank_row_open(const void *tables, const uint8_t *line, const uint8_t *scales,
                                            uint32_t half)
{
    (void)tables;
    (void)scales;
    return (struct bank_row){_mm256_loadu_si256((const __m256i *)(line + 32 * half))};
}

static inline vec bank_row_step(const struct bank_row *row, uint32_t step)
{
    if (step == 0)
        return _mm256_castsi256_ps(_mm256_slli_epi32(row->words, 16));
    return _mm256_castsi256_ps(_mm256_and_si256(row->words, _mm256_set1_epi32((int)0xffff0000u)));
}

#include "../common_expert/narrow.h"
#include "../common_expert/wide_f32.h"

const struct expert_routes *bank_routes_avx2(void)
{
    static const struct expert_routes routes = {&narrow_route, &wide_route, 0};
    return &routes;
}
