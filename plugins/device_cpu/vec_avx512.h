/* SPDX-License-Identifier: Apache-2.0
 *
 * vec_avx512.h - the vector operations of the kernel templates for AVX-512 F, BW, VL and DQ: 16 floats.
 */
#ifndef DEVICE_CPU_VEC_H
#define DEVICE_CPU_VEC_H

#include <immintrin.h>
#include <infernix/numerics.h>

#define V_INLINE static inline __attribute__((always_inline))

typedef __m512 vf;

enum {
    VW = 16,
    V_MR = 8,
    V_P = 3,
    V_NARROW = 16,
    V_NC = 4,
    V_NARROW_ROWS = 8
};

V_INLINE vf v_set1(float x) { return _mm512_set1_ps(x); }
V_INLINE vf v_zero(void) { return _mm512_setzero_ps(); }
V_INLINE vf v_load(const float *p) { return _mm512_loadu_ps(p); }
V_INLINE void v_store(float *p, vf v) { _mm512_storeu_ps(p, v); }

V_INLINE __mmask16 v_mask(uint32_t n) { return (__mmask16)((1u << n) - 1u); }
V_INLINE vf v_load_n(const float *p, uint32_t n) { return _mm512_maskz_loadu_ps(v_mask(n), p); }
V_INLINE void v_store_n(float *p, vf v, uint32_t n) { _mm512_mask_storeu_ps(p, v_mask(n), v); }

V_INLINE vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
V_INLINE vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
V_INLINE vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
V_INLINE vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
V_INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
V_INLINE vf v_fma_exact(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
V_INLINE vf v_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
V_INLINE vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
V_INLINE vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }

V_INLINE vf v_pow2(vf t)
{
    __m512i magic = _mm512_castps_si512(_mm512_set1_ps(IFX_EXP_MAGIC));
    __m512i n = _mm512_sub_epi32(_mm512_castps_si512(t), magic);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}

V_INLINE vf v_load_bf16(const uint16_t *p)
{
    __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}

V_INLINE vf v_load_bf16_n(const uint16_t *p, uint32_t n)
{
    __m512i w = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(v_mask(n), p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}

V_INLINE __m512i v_bf16_bits(vf v)
{
    __m512i u = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    return _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), quiet);
}

V_INLINE vf v_round_bf16(vf v)
{
    return _mm512_castsi512_ps(_mm512_and_si512(v_bf16_bits(v), _mm512_set1_epi32((int)0xffff0000u)));
}

V_INLINE __m256i v_to_bf16(vf v) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(v_bf16_bits(v), 16)); }
V_INLINE void v_store_bf16(uint16_t *p, vf v) { _mm256_storeu_si256((__m256i *)p, v_to_bf16(v)); }

V_INLINE void v_store_bf16_n(uint16_t *p, vf v, uint32_t n)
{
    _mm256_mask_storeu_epi16(p, v_mask(n), v_to_bf16(v));
}

V_INLINE vf v_load_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

V_INLINE float v_f16(uint16_t h) { return _cvtsh_ss(h); }

V_INLINE void v_widen_f16(const uint16_t *h, uint64_t n, float *out)
{
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(h + i))));
    for (; i < n; i++)
        out[i] = v_f16(h[i]);
}

V_INLINE void v_transpose(vf r[16])
{
    __m512 a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    /* b[4 g + i] holds columns i, i + 4, i + 8, i + 12 of rows 4 g .. 4 g + 3, one 128-bit part each. */
    for (int i = 0; i < 4; i++) {
        __m512 low0 = _mm512_shuffle_f32x4(b[i], b[i + 4], 0x44), high0 = _mm512_shuffle_f32x4(b[i], b[i + 4], 0xee);
        __m512 low1 = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0x44);
        __m512 high1 = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0xee);
        r[i] = _mm512_shuffle_f32x4(low0, low1, 0x88);
        r[i + 4] = _mm512_shuffle_f32x4(low0, low1, 0xdd);
        r[i + 8] = _mm512_shuffle_f32x4(high0, high1, 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(high0, high1, 0xdd);
    }
}

V_INLINE float v_sum16(const vf acc[1])
{
    __m256 t8 = _mm256_add_ps(_mm512_castps512_ps256(acc[0]), _mm512_extractf32x8_ps(acc[0], 1));
    __m128 t4 = _mm_add_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
    __m128 t2 = _mm_add_ps(t4, _mm_movehl_ps(t4, t4));
    return _mm_cvtss_f32(_mm_add_ss(t2, _mm_movehdup_ps(t2)));
}

/* Four sums at once: the halves, quarters and so on of all four in one vector. */
V_INLINE void v_sum16_of4(const vf a[1], const vf b[1], const vf c[1], const vf d[1], float *y, uint32_t accumulate)
{
    __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a[0], b[0], 0x44), _mm512_shuffle_f32x4(a[0], b[0], 0xee));
    __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c[0], d[0], 0x44), _mm512_shuffle_f32x4(c[0], d[0], 0xee));
    __m512 t4 = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    __m512 t2 = _mm512_add_ps(t4, _mm512_permute_ps(t4, 0x4e));
    __m512 t1 = _mm512_add_ps(t2, _mm512_permute_ps(t2, 0xb1));
    __m128 sums = _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, t1));
    _mm_storeu_ps(y, accumulate ? _mm_add_ps(_mm_loadu_ps(y), sums) : sums);
}

#endif
