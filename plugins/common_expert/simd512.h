/* SPDX-License-Identifier: Apache-2.0
 *
 * simd512.h - 16-lane pieces of the wide routes; needs AVX-512 F, BW, VL and DQ.
 */
#ifndef COMMON_EXPERT_SIMD512_H
#define COMMON_EXPERT_SIMD512_H

#include "bank.h"

#include <immintrin.h>

/* bf16(silu(g) * u), widened; as simd_hidden. */
static inline __m512i simd512_hidden(__m512 g, __m512 u)
{
    __m512 x = _mm512_xor_ps(g, _mm512_set1_ps(-0.0f));
    __m512 c = _mm512_min_ps(_mm512_set1_ps(IFX_EXP_MAX), x);
    c = _mm512_max_ps(_mm512_set1_ps(IFX_EXP_MIN), c);
    __m512 t = _mm512_fmadd_ps(c, _mm512_set1_ps(IFX_EXP_LOG2E), _mm512_set1_ps(IFX_EXP_MAGIC));
    __m512 n = _mm512_sub_ps(t, _mm512_set1_ps(IFX_EXP_MAGIC));
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-IFX_EXP_LN2HI), c);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-IFX_EXP_LN2LO), r);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(IFX_EXP_C6), r, _mm512_set1_ps(IFX_EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(IFX_EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(IFX_EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(IFX_EXP_C2));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    __m512i scale =
        _mm512_slli_epi32(_mm512_sub_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(0x4b400000 - 127)), 23);
    __m512 e = _mm512_mul_ps(p, _mm512_castsi512_ps(scale));
    __m512 h = _mm512_mul_ps(_mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1.0f), e)), u);
    __m512i bits = _mm512_castps_si512(h);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(h, h, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_and_si512(rounded, _mm512_set1_epi32((int)0xffff0000u));
}

/* Transposes 16 vectors of 16 words in place. */
static inline void simd512_transpose(__m512i v[16])
{
    __m512i a[16], b[16];
    for (int i = 0; i < 8; i++) {
        a[2 * i] = _mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) { /* b[4 i + j]: rows 4 i .. 4 i + 3, words j of each quarter */
        b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
    for (int j = 0; j < 4; j++) { /* gather quarter q of the four row groups */
        __m512i low02 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x88),
                high02 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x88);
        __m512i low13 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xdd),
                high13 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xdd);
        v[j] = _mm512_shuffle_i32x4(low02, high02, 0x88);
        v[8 + j] = _mm512_shuffle_i32x4(low02, high02, 0xdd);
        v[4 + j] = _mm512_shuffle_i32x4(low13, high13, 0x88);
        v[12 + j] = _mm512_shuffle_i32x4(low13, high13, 0xdd);
    }
}

#endif
