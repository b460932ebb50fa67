/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_bf16 - K and V rows as bf16, round to nearest even; a NaN stays a NaN and an infinity an infinity.
 */
#include "kernels.h"

#ifdef IFX_HAVE_CUDA
#include <infernix/kv_skeleton_cuda.h>
#endif

static uint64_t kv_bf16_row_bytes(const struct ifx_kv_shape *shape)
{
    return (uint64_t)shape->head_dim * 2u;
}

static uint64_t kv_bf16_page_bytes(const struct ifx_kv_shape *shape)
{
    return ifx_kvs_page_bytes(shape, kv_bf16_row_bytes(shape));
}

static const struct ifx_kvs_kernels *const kv_bf16_table[] = {
    &kv_bf16_scalar,
#ifdef KV_AVX2
    &kv_bf16_avx2,
#endif
#ifdef KV_AVX512
    &kv_bf16_avx512,
#endif
};

static int32_t kv_bf16_open(const struct ifx_host *host, const struct ifx_options *options,
                           const struct ifx_kv_shape *shape, void **kv)
{
    (void)options;
    return ifx_kvs_open(host, shape, kv_bf16_row_bytes(shape), kv_bf16_table,
                        sizeof kv_bf16_table / sizeof kv_bf16_table[0], kv);
}

static int32_t kv_bf16_decode_row(void *kv, const void *page, uint32_t which, uint32_t head, uint32_t slot, double *out)
{
    const struct ifx_kvs *s = kv;
    const uint8_t *row = (const uint8_t *)page + ifx_kvs_row_offset(s, which, head, slot);
    for (uint32_t i = 0; i < s->shape.head_dim; i++) {
        uint16_t h;
        memcpy(&h, row + 2u * (uint64_t)i, sizeof h);
        out[i] = ifx_bf16_to_f32(h);
    }
    return IFX_OK;
}

#ifdef IFX_HAVE_CUDA
extern const unsigned char ifx_image_kv_bf16_cuda[];
extern const uint64_t ifx_image_kv_bf16_cuda_bytes;

static int32_t kv_bf16_device_open(void *kv, const struct ifx_compute *compute, void **side)
{
    return ifx_kvc_open(kv, compute, ifx_image_kv_bf16_cuda, ifx_image_kv_bf16_cuda_bytes, IFX_KVC_DIRECT, side);
}
#endif

static const struct ifx_kv_ops kv_bf16_ops = {
    .struct_size = sizeof kv_bf16_ops,
    .format = "bf16",
    .description = "bf16 rows, round to nearest even; 2 bytes a value",
    .page_bytes = kv_bf16_page_bytes,
    .open = kv_bf16_open,
    .close = ifx_kvs_close,
    .append = ifx_kvs_call_append,
    .attend = ifx_kvs_call_attend,
    .decode_row = kv_bf16_decode_row,
    .level = ifx_kvs_level,
#ifdef IFX_HAVE_CUDA
    .device_open = kv_bf16_device_open,
    .device_close = ifx_kvc_close,
    .device_ws_bytes = ifx_kvc_ws_bytes,
    .device_append = ifx_kvc_append,
    .device_attend = ifx_kvc_attend,
#endif
};

static const struct ifx_kv_ops *kv_bf16_init(const struct ifx_host *host)
{
    (void)host;
    return &kv_bf16_ops;
}

IFX_KV_PLUGIN("kv_bf16", "1.0", kv_bf16_init)
