/* SPDX-License-Identifier: Apache-2.0
 *
 * numerics.h - the numerics contract as code: conversions, one polynomial exp, and the canonical order of a
 * narrow expert product.  Header-only; C11, C++17 and CUDA.  Everything here is IEEE binary32 with explicit
 * fused multiply-adds, so that a vector form that performs the same operations gives the same bits.
 *
 * A translation unit that includes this file must be compiled with floating-point contraction off
 * (-ffp-contract=off; nvcc -fmad=false): a product and a sum that the compiler fuses would change bits.
 *
 * Canonical order of y = s * sum_k w[k] x[k] (n <= IFX_NARROW_COLUMNS):
 *   1. w[k] is the decoded weight without the tensor scale, a float32; x[k] is a bf16 widened to float32.
 *   2. 16 accumulators start at +0.  For k ascending: acc[k % 16] = fma(w[k], x[k], acc[k % 16]).  A K that is
 *      no multiple of 16 is continued with w = x = +0.
 *   3. Tree: t8[i] = acc[i] + acc[i + 8] (i < 8); t4[i] = t8[i] + t8[i + 4]; t2[i] = t4[i] + t4[i + 2];
 *      sum = t2[0] + t2[1].
 *   4. y = sum * s (formats without a tensor scale: s = 1, the product is not performed).
 * Hidden value: h = bf16( ifx_silu(g) * u ).
 */
#ifndef INFERNIX_NUMERICS_H
#define INFERNIX_NUMERICS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define IFX_FN static __host__ __device__ __forceinline__
#else
#define IFX_FN static inline
#endif

IFX_FN uint32_t ifx_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

IFX_FN float ifx_bits_f32(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* bf16 of a float32, round to nearest even; a NaN stays a (quiet) NaN. */
IFX_FN uint16_t ifx_f32_to_bf16(float x)
{
    uint32_t u = ifx_f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

IFX_FN float ifx_bf16_to_f32(uint16_t h)
{
    return ifx_bits_f32((uint32_t)h << 16);
}

/* binary16 to float32, exact. */
IFX_FN float ifx_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
    if (exponent == 0x1fu)
        return ifx_bits_f32(sign | 0x7f800000u | (mantissa << 13));
    if (exponent == 0u) { /* zero or subnormal: mantissa * 2^-24, exact */
        float v = (float)mantissa * 5.9604644775390625e-8f;
        return ifx_bits_f32(sign | ifx_f32_bits(v));
    }
    return ifx_bits_f32(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

/* float32 to binary16, round to nearest even; overflow gives infinity. */
IFX_FN uint16_t ifx_f32_to_f16(float x)
{
    uint32_t u = ifx_f32_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (a >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) { /* below 2^-14: adding 0.5 aligns the last bit of a subnormal half */
        float v = ifx_bits_f32(a) + 0.5f;
        return (uint16_t)(sign | (ifx_f32_bits(v) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
}

/* OCP E4M3 (FN) to float32, exact; codes 0x7f and 0xff are NaN.
 * Source: OCP 8-bit Floating Point Specification (OFP8) rev. 1.0. */
IFX_FN float ifx_e4m3_to_f32(uint8_t c)
{
    uint32_t sign = (uint32_t)(c & 0x80u) << 24;
    uint32_t exponent = (c >> 3) & 0xfu, mantissa = c & 7u;
    if ((c & 0x7fu) == 0x7fu)
        return ifx_bits_f32(sign | 0x7fc00000u);
    if (exponent == 0u) /* mantissa * 2^-9 */
        return ifx_bits_f32(sign | ifx_f32_bits((float)mantissa * 0.001953125f));
    return ifx_bits_f32(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}

/* E2M1 (FP4) code, low four bits, to float32: 0 .5 1 1.5 2 3 4 6 and their negatives.
 * Source: OCP Microscaling Formats (MX) Specification v1.0. */
IFX_FN float ifx_e2m1_to_f32(uint8_t c)
{
    uint32_t exponent = (c >> 1) & 3u, mantissa = c & 1u;
    uint32_t sign = (uint32_t)(c & 8u) << 28;
    if (exponent == 0u)
        return ifx_bits_f32(sign | (mantissa ? 0x3f000000u : 0u));
    return ifx_bits_f32(sign | ((exponent + 126u) << 23) | (mantissa << 22));
}

/* Constants of ifx_exp, named so that vector forms share them.  Cody-Waite reduction by ln 2 in two parts, a
 * polynomial of degree 6 on [-ln2/2, ln2/2] (Taylor coefficients; relative error below 1.5e-7), scaling by
 * exponent bits. */
#define IFX_EXP_MIN   (-87.0f)
#define IFX_EXP_MAX   88.0f
#define IFX_EXP_LOG2E 1.44269504088896341f
#define IFX_EXP_MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer */
#define IFX_EXP_LN2HI 0.693145751953125f
#define IFX_EXP_LN2LO 1.42860682030941723e-6f
#define IFX_EXP_C6    1.38888888888888889e-3f
#define IFX_EXP_C5    8.33333333333333333e-3f
#define IFX_EXP_C4    4.16666666666666667e-2f
#define IFX_EXP_C3    1.66666666666666667e-1f
#define IFX_EXP_C2    0.5f

/* exp(x) with x clamped to [IFX_EXP_MIN, IFX_EXP_MAX]; NaN gives NaN.  The same bits everywhere.
 * (The clamps are written as the vector instructions min(x, MAX) and max(x, MIN) compute: the second operand
 * wins when a comparison is unordered, so the operands stand in this order.) */
IFX_FN float ifx_exp(float x)
{
    float c = IFX_EXP_MAX < x ? IFX_EXP_MAX : x; /* NaN stays */
    c = IFX_EXP_MIN > c ? IFX_EXP_MIN : c;
    float t = fmaf(c, IFX_EXP_LOG2E, IFX_EXP_MAGIC);
    float n = t - IFX_EXP_MAGIC;
    float r = fmaf(n, -IFX_EXP_LN2HI, c);
    r = fmaf(n, -IFX_EXP_LN2LO, r);
    float p = fmaf(IFX_EXP_C6, r, IFX_EXP_C5);
    p = fmaf(p, r, IFX_EXP_C4);
    p = fmaf(p, r, IFX_EXP_C3);
    p = fmaf(p, r, IFX_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    uint32_t scale = (ifx_f32_bits(t) - ifx_f32_bits(IFX_EXP_MAGIC) + 127u) << 23;
    return p * ifx_bits_f32(scale);
}

/* x * sigmoid(x) = x / (1 + exp(-x)). */
IFX_FN float ifx_silu(float x)
{
    return x / (1.0f + ifx_exp(-x));
}

IFX_FN float ifx_sigmoid(float x)
{
    return 1.0f / (1.0f + ifx_exp(-x));
}

/* Step 3 of the canonical order. */
IFX_FN float ifx_canonical_sum(const float acc[16])
{
    float t8[8], t4[4];
    for (int i = 0; i < 8; i++)
        t8[i] = acc[i] + acc[i + 8];
    for (int i = 0; i < 4; i++)
        t4[i] = t8[i] + t8[i + 4];
    return (t4[0] + t4[2]) + (t4[1] + t4[3]);
}

/* Steps 2 and 3 over K decoded weights and bf16 inputs. */
IFX_FN float ifx_canonical_dot(const float *w, const uint16_t *x, uint64_t k_count)
{
    float acc[16] = {0};
    for (uint64_t k = 0; k < k_count; k++)
        acc[k & 15u] = fmaf(w[k], ifx_bf16_to_f32(x[k]), acc[k & 15u]);
    return ifx_canonical_sum(acc);
}

#endif
