/* SPDX-License-Identifier: Apache-2.0
 *
 * vec_avx2.h - the vector operations of the kernel templates for AVX2, FMA and F16C: 8 floats.
 */
#ifndef DEVICE_CPU_VEC_H
#define DEVICE_CPU_VEC_H

#include <immintrin.h>
#include <infernix/numerics.h>

#define V_INLINE static inline __attribute__((always_inline))

typedef __m256 vf;

enum {
    VW = 8,
    V_MR = 6,
    V_P = 1,
    V_NARROW = 4,
    V_NC = 4,
    V_NARROW_ROWS = 6
};

V_INLINE vf v_set1(float x) { return _mm256_set1_ps(x); }
V_INLINE vf v_zero(void) { return _mm256_setzero_ps(); }
V_INLINE vf v_load(const float *p) { return _mm256_loadu_ps(p); }
V_INLINE void v_store(float *p, vf v) { _mm256_storeu_ps(p, v); }

/* All ones in the first n lanes. */
V_INLINE __m256i v_mask(uint32_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

V_INLINE vf v_load_n(const float *p, uint32_t n) { return _mm256_maskload_ps(p, v_mask(n)); }
V_INLINE void v_store_n(float *p, vf v, uint32_t n) { _mm256_maskstore_ps(p, v_mask(n), v); }

V_INLINE vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
V_INLINE vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
V_INLINE vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
V_INLINE vf v_div(vf a, vf b) { return _mm256_div_ps(a, b); }
V_INLINE vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
V_INLINE vf v_fma_exact(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
V_INLINE vf v_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
V_INLINE vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }
V_INLINE vf v_min(vf a, vf b) { return _mm256_min_ps(a, b); }

V_INLINE vf v_pow2(vf t)
{
    __m256i magic = _mm256_castps_si256(_mm256_set1_ps(IFX_EXP_MAGIC));
    __m256i n = _mm256_sub_epi32(_mm256_castps_si256(t), magic);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

V_INLINE vf v_load_bf16(const uint16_t *p)
{
    __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}

V_INLINE vf v_load_bf16_n(const uint16_t *p, uint32_t n)
{
    uint16_t tail[8] = {0};
    memcpy(tail, p, n * sizeof *tail);
    return v_load_bf16(tail);
}

/* Rounded to nearest even in the upper half of each lane; a NaN stays a quiet NaN. */
V_INLINE __m256i v_bf16_bits(vf v)
{
    __m256i u = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan));
}

V_INLINE vf v_round_bf16(vf v)
{
    return _mm256_castsi256_ps(_mm256_and_si256(v_bf16_bits(v), _mm256_set1_epi32((int)0xffff0000u)));
}

V_INLINE void v_store_bf16(uint16_t *p, vf v)
{
    __m256i high = _mm256_srli_epi32(v_bf16_bits(v), 16);
    __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    _mm_storeu_si128((__m128i *)p, packed);
}

V_INLINE void v_store_bf16_n(uint16_t *p, vf v, uint32_t n)
{
    uint16_t tail[8];
    v_store_bf16(tail, v);
    memcpy(p, tail, n * sizeof *tail);
}

V_INLINE vf v_load_i8(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

V_INLINE float v_f16(uint16_t h) { return _cvtsh_ss(h); }

V_INLINE void v_widen_f16(const uint16_t *h, uint64_t n, float *out)
{
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(h + i))));
    for (; i < n; i++)
        out[i] = v_f16(h[i]);
}

V_INLINE void v_transpose(vf r[8])
{
    __m256 a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}

V_INLINE float v_sum16(const vf acc[2])
{
    __m256 t8 = _mm256_add_ps(acc[0], acc[1]);
    __m128 t4 = _mm_add_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
    __m128 t2 = _mm_add_ps(t4, _mm_movehl_ps(t4, t4));
    return _mm_cvtss_f32(_mm_add_ss(t2, _mm_movehdup_ps(t2)));
}

/* Four of them, set or added to y[0..3]. */
V_INLINE void v_sum16_of4(const vf a[2], const vf b[2], const vf c[2], const vf d[2], float *y, uint32_t accumulate)
{
    const float sums[4] = {v_sum16(a), v_sum16(b), v_sum16(c), v_sum16(d)};
    for (int i = 0; i < 4; i++)
        y[i] = accumulate ? y[i] + sums[i] : sums[i];
}

#endif
