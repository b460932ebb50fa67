/* SPDX-License-Identifier: Apache-2.0
 *
 * Included by one file for each instruction set, which defines the kernel set from these two.
 */
#include "kernels.h"

IFX_KVS_INLINE void kv_f32_store(const struct ifx_kvs *s, const float *x, uint8_t *row)
{
    memcpy(row, x, s->shape.head_dim * sizeof(float));
}

IFX_KVS_INLINE void kv_f32_load(const struct ifx_kvs *s, const uint8_t *row, float *out)
{
    for (uint32_t i = 0; i < s->shape.head_dim; i += 8) {
        float t[8];
        memcpy(t, row + 4u * (uint64_t)i, sizeof t);
        memcpy(out + i, t, sizeof t);
    }
}

static int32_t kv_f32_append(const struct ifx_kvs *s, const struct ifx_kv_append *call)
{
    return ifx_kvs_append(s, call, kv_f32_store);
}

static int32_t kv_f32_attend(const struct ifx_kvs *s, const struct ifx_kv_attend *call)
{
    return ifx_kvs_attend(s, call, kv_f32_load);
}
