/* SPDX-License-Identifier: Apache-2.0
 *
 * simd.h - pieces that every x86 vector object uses: bf16 conversions, ifx_silu with the same bits, and the sum
 * of the canonical order.  8 lanes, needs AVX2 and FMA.
 */
#ifndef COMMON_EXPERT_SIMD_H
#define COMMON_EXPERT_SIMD_H

#include "bank.h"

#include <immintrin.h>

static inline __m256 simd_widen(__m128i bf16)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bf16), 16));
}

/* ifx_f32_to_bf16, the result in the upper half of each lane, the lower half zero. */
static inline __m256 simd_round_bf16(__m256 x)
{
    __m256i u = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    __m256 r = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan);
    return _mm256_and_ps(r, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000u)));
}

/* ifx_exp, step by step. */
static inline __m256 simd_exp(__m256 x)
{
    __m256 c = _mm256_min_ps(_mm256_set1_ps(IFX_EXP_MAX), x);
    c = _mm256_max_ps(_mm256_set1_ps(IFX_EXP_MIN), c);
    __m256 t = _mm256_fmadd_ps(c, _mm256_set1_ps(IFX_EXP_LOG2E), _mm256_set1_ps(IFX_EXP_MAGIC));
    __m256 n = _mm256_sub_ps(t, _mm256_set1_ps(IFX_EXP_MAGIC));
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-IFX_EXP_LN2HI), c);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-IFX_EXP_LN2LO), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(IFX_EXP_C6), r, _mm256_set1_ps(IFX_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(IFX_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(IFX_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(IFX_EXP_C2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    __m256i bias = _mm256_set1_epi32(0x4b400000 - 127); /* bits of IFX_EXP_MAGIC less the exponent bias */
    __m256i scale = _mm256_slli_epi32(_mm256_sub_epi32(_mm256_castps_si256(t), bias), 23);
    return _mm256_mul_ps(p, _mm256_castsi256_ps(scale));
}

/* bf16(ifx_silu(g) * u), widened. */
static inline __m256 simd_hidden(__m256 g, __m256 u)
{
    __m256 negative = _mm256_xor_ps(g, _mm256_set1_ps(-0.0f));
    __m256 silu = _mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0f), simd_exp(negative)));
    return simd_round_bf16(_mm256_mul_ps(silu, u));
}

/* Step 3 of the canonical order for 4 accumulators of 16 lanes, `stride` floats apart. */
static inline __m128 simd_canonical_sum4(const float *acc, size_t stride)
{
    __m128 t4[4];
    for (int i = 0; i < 4; i++) {
        __m256 t8 = _mm256_add_ps(_mm256_loadu_ps(acc + i * stride), _mm256_loadu_ps(acc + i * stride + 8));
        t4[i] = _mm_add_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
    }
    _MM_TRANSPOSE4_PS(t4[0], t4[1], t4[2], t4[3]);
    return _mm_add_ps(_mm_add_ps(t4[0], t4[2]), _mm_add_ps(t4[1], t4[3]));
}

#endif
