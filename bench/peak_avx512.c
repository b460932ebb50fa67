/* SPDX-License-Identifier: Apache-2.0 */
#include "peak.h"

#include <immintrin.h>

double peak_avx512(uint64_t rounds)
{
    __m512 acc[24], x = _mm512_set1_ps(0.5f), y = _mm512_set1_ps(0.25f);
    for (int i = 0; i < 24; i++)
        acc[i] = _mm512_setzero_ps();
    for (uint64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 24
        for (int i = 0; i < 24; i++)
            acc[i] = _mm512_fmadd_ps(acc[i], x, y);
        __asm__ volatile("" : "+v"(x), "+v"(y));
    }
    for (int i = 0; i < 24; i++)
        __asm__ volatile("" : : "v"(acc[i]));
    return (double)rounds * 24 * 16 * 2;
}
