/* SPDX-License-Identifier: Apache-2.0
 *
 * Included by one file for each instruction set, which defines the kernel set from these two.
 */
#include "format.h"
#include "kernels.h"

IFX_KVS_INLINE void kv_int8_store(const struct ifx_kvs *s, const float *x, uint8_t *row)
{
    const uint32_t d = s->shape.head_dim;
    for (uint32_t i = 0; i < d; i += KV_INT8_GROUP) {
        uint16_t scale;
        kv_int8_store_group(x + i, d - i < KV_INT8_GROUP ? d - i : KV_INT8_GROUP, (int8_t *)row + i, &scale);
        memcpy(row + d + 2u * (i / KV_INT8_GROUP), &scale, sizeof scale);
    }
}

IFX_KVS_INLINE float kv_int8_load_scale(const uint8_t *row, uint32_t d, uint32_t group)
{
#ifdef __F16C__
    uint16_t h;
    memcpy(&h, row + d + 2u * (uint64_t)group, sizeof h);
    return _cvtsh_ss(h);
#else
    return kv_int8_scale(row, d, group);
#endif
}

IFX_KVS_INLINE void kv_int8_load(const struct ifx_kvs *s, const uint8_t *row, float *out)
{
    const uint32_t d = s->shape.head_dim;
    const int8_t *codes = (const int8_t *)row;
    for (uint32_t g = 0, i = 0; i < d; g++) {
        const uint32_t end = d - i < KV_INT8_GROUP ? d : i + KV_INT8_GROUP;
        const float scale = kv_int8_load_scale(row, d, g);
        for (; i + IFX_V_LANES <= end; i += IFX_V_LANES)
            ifx_v_store(out + i, ifx_v_mul(ifx_v_load_i8(codes + i), ifx_v_set1(scale)));
        for (; i < end; i++)
            out[i] = (float)codes[i] * scale;
    }
}

static int32_t kv_int8_append(const struct ifx_kvs *s, const struct ifx_kv_append *call)
{
    return ifx_kvs_append(s, call, kv_int8_store);
}

static int32_t kv_int8_attend(const struct ifx_kvs *s, const struct ifx_kv_attend *call)
{
    return ifx_kvs_attend(s, call, kv_int8_load);
}
