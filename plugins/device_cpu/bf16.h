/* SPDX-License-Identifier: Apache-2.0
 *
 * bf16.h - what the products of the bf16 units share: rows of weights as bf16, and the store of a block.
 *
 * The units take weights as they lie in memory, two inputs a lane, and columns packed as [inputs / 2][16 columns][2].  Int8 weights
 * are decoded and rounded to bf16 here.
 */
#ifndef DEVICE_CPU_BF16_H
#define DEVICE_CPU_BF16_H

#include "vec_avx512.h"

#include "tpl_store.h"

/* 32 weights from input k on, of which `have` exist. */
V_INLINE __m512i bf16_weights(const struct ifx_weight *w, uint64_t row, uint64_t k, uint32_t have)
{
    if (w->dtype == IFX_BF16) {
        const uint16_t *p = (const uint16_t *)w->data + row * w->cols + k;
        return have == 32 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16((1u << have) - 1u, p);
    }
    uint64_t groups = ((uint64_t)w->cols + 31) / 32; /* rows of int8 are padded to whole groups, with zeros */
    const int8_t *codes = (const int8_t *)w->data + row * groups * 32 + k;
    vf scale = _mm512_cvtph_ps(_mm256_set1_epi16((short)((const uint16_t *)w->scales)[row * groups + k / 32]));
    vf low = v_mul(v_load_i8(codes), scale), high = v_mul(v_load_i8(codes + 16), scale);
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

#endif
