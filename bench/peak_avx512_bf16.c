/* SPDX-License-Identifier: Apache-2.0 */
#include "peak.h"

#include <immintrin.h>

double peak_avx512_bf16(uint64_t rounds)
{
    __m512 acc[24];
    __m512i x = _mm512_set1_epi32(0x3f003f00), y = _mm512_set1_epi32(0x3e803e80);
    for (int i = 0; i < 24; i++)
        acc[i] = _mm512_setzero_ps();
    for (uint64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 24
        for (int i = 0; i < 24; i++)
            acc[i] = _mm512_dpbf16_ps(acc[i], (__m512bh)x, (__m512bh)y);
        __asm__ volatile("" : "+v"(x), "+v"(y));
    }
    for (int i = 0; i < 24; i++)
        __asm__ volatile("" : : "v"(acc[i]));
    return (double)rounds * 24 * 32 * 2;
}
