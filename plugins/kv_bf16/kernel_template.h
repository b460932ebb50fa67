/* SPDX-License-Identifier: Apache-2.0
 *
 * Included by one file for each instruction set, which defines the kernel set from these two.
 */
#include "kernels.h"

IFX_KVS_INLINE void kv_bf16_store(const struct ifx_kvs *s, const float *x, uint8_t *row)
{
    for (uint32_t i = 0; i < s->shape.head_dim; i++) {
        const uint16_t h = ifx_f32_to_bf16(x[i]);
        memcpy(row + 2u * (uint64_t)i, &h, sizeof h);
    }
}

IFX_KVS_INLINE void kv_bf16_load(const struct ifx_kvs *s, const uint8_t *row, float *out)
{
    const uint16_t *h = (const uint16_t *)(const void *)row; /* rows are 16-byte aligned: head_dim % 8 == 0 */
    uint32_t i = 0;
    for (; i + IFX_V_LANES <= s->shape.head_dim; i += IFX_V_LANES)
        ifx_v_store(out + i, ifx_v_load_bf16(h + i));
    for (; i < s->shape.head_dim; i++)
        out[i] = ifx_bf16_to_f32(h[i]);
}

static int32_t kv_bf16_append(const struct ifx_kvs *s, const struct ifx_kv_append *call)
{
    return ifx_kvs_append(s, call, kv_bf16_store);
}

static int32_t kv_bf16_attend(const struct ifx_kvs *s, const struct ifx_kv_attend *call)
{
    return ifx_kvs_attend(s, call, kv_bf16_load);
}
