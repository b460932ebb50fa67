/* SPDX-License-Identifier: Apache-2.0
 *
 * vec_generic.h - the vector operations that the kernel templates are written in, for any CPU: 16 floats in the compiler's own
 * vector type.  v_fma is a product and a sum here: of two bf16 values the product is exact, so the canonical order gives the bits
 * of the fused form.
 */
#ifndef DEVICE_CPU_VEC_H
#define DEVICE_CPU_VEC_H

#include <infernix/numerics.h>

#define V_INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(64), aligned(4), may_alias));

enum {
    VW = 16,      /* floats a vector */
    V_MR = 2,     /* rows of the product's register block */
    V_P = 1,      /* 16-column panels of it, at most */
    V_NARROW = 4, /* vectors of accumulators that a narrow block keeps */
    V_NC = 4,     /* columns of it, but for a group of three */
    V_NARROW_ROWS = 6 /* rows that meet all columns before the next, when these are more: a multiple of a block's */
};

V_INLINE vf v_set1(float x)
{
    return (vf){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

V_INLINE vf v_zero(void)
{
    return v_set1(0.0f);
}

V_INLINE vf v_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

V_INLINE void v_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

/* The first n < VW; the rest is zero. */
V_INLINE vf v_load_n(const float *p, uint32_t n)
{
    vf v = v_zero();
    memcpy(&v, p, n * sizeof(float));
    return v;
}

V_INLINE void v_store_n(float *p, vf v, uint32_t n)
{
    memcpy(p, &v, n * sizeof(float));
}

V_INLINE vf v_add(vf a, vf b) { return a + b; }
V_INLINE vf v_sub(vf a, vf b) { return a - b; }
V_INLINE vf v_mul(vf a, vf b) { return a * b; }
V_INLINE vf v_div(vf a, vf b) { return a / b; }
V_INLINE vf v_fma(vf a, vf b, vf c) { return a * b + c; }
V_INLINE vf v_fnma(vf a, vf b, vf c) { return c - a * b; }

/* Fused, whatever it costs: for the combination, whose bits are promised. */
V_INLINE vf v_fma_exact(vf a, vf b, vf c)
{
    for (int i = 0; i < VW; i++)
        c[i] = fmaf(a[i], b[i], c[i]);
    return c;
}

/* As the vector instructions do: the second operand where the comparison is unordered. */
V_INLINE vf v_max(vf a, vf b)
{
    for (int i = 0; i < VW; i++)
        b[i] = a[i] > b[i] ? a[i] : b[i];
    return b;
}

V_INLINE vf v_min(vf a, vf b)
{
    for (int i = 0; i < VW; i++)
        b[i] = a[i] < b[i] ? a[i] : b[i];
    return b;
}

/* 2^n for t = IFX_EXP_MAGIC + n. */
V_INLINE vf v_pow2(vf t)
{
    vf r;
    for (int i = 0; i < VW; i++)
        r[i] = ifx_bits_f32((ifx_f32_bits(t[i]) - ifx_f32_bits(IFX_EXP_MAGIC) + 127u) << 23);
    return r;
}

V_INLINE vf v_load_bf16(const uint16_t *p)
{
    vf v;
    for (int i = 0; i < VW; i++)
        v[i] = ifx_bf16_to_f32(p[i]);
    return v;
}

V_INLINE vf v_load_bf16_n(const uint16_t *p, uint32_t n)
{
    vf v = v_zero();
    for (uint32_t i = 0; i < n; i++)
        v[i] = ifx_bf16_to_f32(p[i]);
    return v;
}

V_INLINE void v_store_bf16(uint16_t *p, vf v)
{
    for (int i = 0; i < VW; i++)
        p[i] = ifx_f32_to_bf16(v[i]);
}

V_INLINE void v_store_bf16_n(uint16_t *p, vf v, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        p[i] = ifx_f32_to_bf16(v[i]);
}

/* Rounded to bf16 and back. */
V_INLINE vf v_round_bf16(vf v)
{
    for (int i = 0; i < VW; i++)
        v[i] = ifx_bf16_to_f32(ifx_f32_to_bf16(v[i]));
    return v;
}

V_INLINE vf v_load_i8(const int8_t *p)
{
    vf v;
    for (int i = 0; i < VW; i++)
        v[i] = (float)p[i];
    return v;
}

V_INLINE float v_f16(uint16_t h)
{
    return ifx_f16_to_f32(h);
}

V_INLINE void v_widen_f16(const uint16_t *h, uint64_t n, float *out)
{
    for (uint64_t i = 0; i < n; i++)
        out[i] = v_f16(h[i]);
}

/* Transposes VW rows of VW values. */
V_INLINE void v_transpose(vf r[VW])
{
    vf in[VW];
    memcpy(in, r, sizeof in);
    for (int i = 0; i < VW; i++)
        for (int j = 0; j < VW; j++)
            r[i][j] = in[j][i];
}

/* Step 3 of the canonical order over 16 lanes. */
V_INLINE float v_sum16(const vf acc[1])
{
    float lanes[16];
    v_store(lanes, acc[0]);
    return ifx_canonical_sum(lanes);
}

/* Four of them, set or added to y[0..3]. */
V_INLINE void v_sum16_of4(const vf a[1], const vf b[1], const vf c[1], const vf d[1], float *y, uint32_t accumulate)
{
    const float sums[4] = {v_sum16(a), v_sum16(b), v_sum16(c), v_sum16(d)};
    for (int i = 0; i < 4; i++)
        y[i] = accumulate ? y[i] + sums[i] : sums[i];
}

#endif
