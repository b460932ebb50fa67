/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_nvfp4_cpu_avx512.c - the bank `nvfp4` with AVX-512 F, BW, VL and DQ.
 */
#include "expert_nvfp4_format.h"

#include "../common_expert/bank.h"
#include "../common_expert/vec_avx512.h"

/* The table of an e4m3 code has all 16 products, so one look-up decodes and scales 16 positions. */
struct bank_row {
    __m512i words;
    const uint8_t *scales;
    const struct bank_tables *tables;
};

static inline struct bank_row bank_row_open(const void *tables, const uint8_t *line, const uint8_t *scales,
                                            uint32_t half)
{
    (void)half;
    __m512i words = _mm512_loadu_si512(line);
    __asm__("" : "+v"(words));
    return (struct bank_row){words, scales, tables};
}

static inline vec bank_row_step(const struct bank_row *row, uint32_t step)
{
    /* Only bits 0..3 of an index count. */
    __m512i index = step ? _mm512_srli_epi32(row->words, 4 * step) : row->words;
    return _mm512_permutexvar_ps(index, _mm512_load_ps(row->tables->product[row->scales[step]]));
}

#include "../common_expert/narrow.h"
#include "../common_expert/wide_f32.h"

const struct expert_routes *bank_routes_avx512(void)
{
    static const struct expert_routes routes = {&narrow_route, &wide_route, 0};
    return &routes;
}
