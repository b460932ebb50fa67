/* SPDX-License-Identifier: Apache-2.0
 *
 * quant.c - dense int8: groups of 32 along a row, one fp16 scale each, codes -127..127 to nearest even.
 *
 * The scale is amax / 127 rounded to fp16, and the next larger fp16 when rounding down would push the largest value past
 * code 127 (which happens among the subnormal fp16 only).
 */
#include "config.h"
#include "artifact_internal.h"
#include <infernix/numerics.h>
#include <math.h>

#define GROUP 32u

static int32_t quantise_group(const float *w, uint32_t n, int8_t *codes, uint16_t *scale)
{
    float amax = 0.0f;
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(w[i]))
            return IFX_EFORMAT;
        amax = fmaxf(amax, fabsf(w[i]));
    }
    uint16_t s = ifx_f32_to_f16(amax / 127.0f);
    if (amax > 0.0f && amax / ifx_f16_to_f32(s) >= 127.5f)
        s++; /* positive and finite: the next code is the next larger value */
    if (!isfinite(ifx_f16_to_f32(s)))
        return IFX_EFORMAT;
    *scale = s;
    float step = ifx_f16_to_f32(s);
    for (uint32_t i = 0; i < GROUP; i++)
        codes[i] = i < n && amax > 0.0f ? (int8_t)nearbyintf(w[i] / step) : 0;
    return IFX_OK;
}

int32_t art_w8g32_row(const float *w, uint64_t cols, int8_t *codes, uint16_t *scales)
{
    for (uint64_t c = 0; c < cols; c += GROUP) {
        uint32_t n = cols - c < GROUP ? (uint32_t)(cols - c) : GROUP;
        int32_t status = quantise_group(w + c, n, codes + c, scales + c / GROUP);
        if (status != IFX_OK)
            return status;
    }
    return IFX_OK;
}
