/* SPDX-License-Identifier: Apache-2.0
 *
 * The int8 KV row of d values: d int8 codes, then ceil(d / 64) binary16 scales (little-endian), one for each
 * group of 64 values in order; the last group is shorter when d is no multiple of 64.  A row of 256 takes 264 bytes.
 *
 *   value = code * scale, exact in float32 (8 + 11 significant bits)
 *   scale = the smallest binary16 >= amax / 127 (amax: the group's largest magnitude; the quotient in float32);
 *           at most 65504
 *   code  = x / scale in float32, clamped to [-127, 127], rounded to nearest even
 *
 * The scale is rounded up so that no value is clamped: |x - value| <= scale / 2 for amax <= 127 * 65504; beyond
 * that the value saturates and stays finite.  A group of zeros has scale 0 and codes 0.  A group with a NaN or an
 * infinity has the scale NaN (0x7e00) and codes 0, so that all of it reads back NaN: it can never pass for a number.
 */
#ifndef KV_INT8_FORMAT_H
#define KV_INT8_FORMAT_H

#include <infernix/numerics.h>

#define KV_INT8_GROUP 64u

static inline uint64_t kv_int8_bytes(uint32_t d)
{
    return d + 2u * (((uint64_t)d + KV_INT8_GROUP - 1u) / KV_INT8_GROUP);
}

static inline float kv_int8_scale(const uint8_t *row, uint32_t d, uint32_t group)
{
    uint16_t h;
    memcpy(&h, row + d + 2u * (uint64_t)group, sizeof h);
    return ifx_f16_to_f32(h);
}

/* Smallest binary16 >= x for finite x >= 0, at most 65504. */
static inline uint16_t kv_int8_scale_up(float x)
{
    uint16_t h;
    if (x >= 65504.0f)
        return 0x7bffu;
    h = ifx_f32_to_f16(x);
    return ifx_f16_to_f32(h) < x ? (uint16_t)(h + 1u) : h;
}

static inline void kv_int8_store_group(const float *x, uint32_t n, int8_t *codes, uint16_t *scale)
{
    float amax = 0.0f, odd = 0.0f, s;
    for (uint32_t i = 0; i < n; i++) {
        const float a = fabsf(x[i]);
        amax = a > amax ? a : amax;
        odd += x[i] * 0.0f; /* NaN if any value is not finite */
    }
    *scale = odd != odd ? 0x7e00u : kv_int8_scale_up(amax / 127.0f);
    if (odd != odd || *scale == 0) {
        memset(codes, 0, n);
        return;
    }
    s = ifx_f16_to_f32(*scale);
    for (uint32_t i = 0; i < n; i++) {
        float q = x[i] / s;
        q = q > 127.0f ? 127.0f : q;
        q = q < -127.0f ? -127.0f : q;
        /* Adding 1.5 * 2^23 rounds to nearest even and leaves the integer in the low bits. */
        codes[i] = (int8_t)(uint8_t)(ifx_f32_bits(q + IFX_EXP_MAGIC) & 0xffu);
    }
}

#endif
