/* SPDX-License-Identifier: Apache-2.0 */
#include "peak.h"

#include <immintrin.h>

double peak_avx2(uint64_t rounds)
{
    __m256 acc[12], x = _mm256_set1_ps(0.5f), y = _mm256_set1_ps(0.25f);
    for (int i = 0; i < 12; i++)
        acc[i] = _mm256_setzero_ps();
    for (uint64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            acc[i] = _mm256_fmadd_ps(acc[i], x, y);
        __asm__ volatile("" : "+x"(x), "+x"(y));
    }
    for (int i = 0; i < 12; i++)
        __asm__ volatile("" : : "x"(acc[i]));
    return (double)rounds * 12 * 8 * 2;
}
