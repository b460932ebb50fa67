/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_f32 - K and V rows as they are: float32.  What the `ref` device keeps, and the yardstick of the other formats.
 */
#include "kernels.h"

#ifdef IFX_HAVE_CUDA
#include <infernix/kv_skeleton_cuda.h>
#endif

static uint64_t kv_f32_row_bytes(const struct ifx_kv_shape *shape)
{
    return (uint64_t)shape->head_dim * 4u;
}

static uint64_t kv_f32_page_bytes(const struct ifx_kv_shape *shape)
{
    return ifx_kvs_page_bytes(shape, kv_f32_row_bytes(shape));
}

static const struct ifx_kvs_kernels *const kv_f32_table[] = {
    &kv_f32_scalar,
#ifdef KV_AVX2
    &kv_f32_avx2,
#endif
#ifdef KV_AVX512
    &kv_f32_avx512,
#endif
};

static int32_t kv_f32_open(const struct ifx_host *host, const struct ifx_options *options,
                           const struct ifx_kv_shape *shape, void **kv)
{
    (void)options;
    return ifx_kvs_open(host, shape, kv_f32_row_bytes(shape), kv_f32_table,
                        sizeof kv_f32_table / sizeof kv_f32_table[0], kv);
}

static int32_t kv_f32_decode_row(void *kv, const void *page, uint32_t which, uint32_t head, uint32_t slot, double *out)
{
    const struct ifx_kvs *s = kv;
    const uint8_t *row = (const uint8_t *)page + ifx_kvs_row_offset(s, which, head, slot);
    for (uint32_t i = 0; i < s->shape.head_dim; i++) {
        float x;
        memcpy(&x, row + 4u * (uint64_t)i, sizeof x);
        out[i] = x;
    }
    return IFX_OK;
}

#ifdef IFX_HAVE_CUDA
extern const unsigned char ifx_image_kv_f32_cuda[];
extern const uint64_t ifx_image_kv_f32_cuda_bytes;

static int32_t kv_f32_device_open(void *kv, const struct ifx_compute *compute, void **side)
{
    return ifx_kvc_open(kv, compute, ifx_image_kv_f32_cuda, ifx_image_kv_f32_cuda_bytes, 0, side);
}
#endif

static const struct ifx_kv_ops kv_f32_ops = {
    .struct_size = sizeof kv_f32_ops,
    .format = "f32",
    .description = "float32 rows, exact; 4 bytes a value",
    .page_bytes = kv_f32_page_bytes,
    .open = kv_f32_open,
    .close = ifx_kvs_close,
    .append = ifx_kvs_call_append,
    .attend = ifx_kvs_call_attend,
    .decode_row = kv_f32_decode_row,
    .level = ifx_kvs_level,
#ifdef IFX_HAVE_CUDA
    .device_open = kv_f32_device_open,
    .device_close = ifx_kvc_close,
    .device_ws_bytes = ifx_kvc_ws_bytes,
    .device_append = ifx_kvc_append,
    .device_attend = ifx_kvc_attend,
#endif
};

static const struct ifx_kv_ops *kv_f32_init(const struct ifx_host *host)
{
    (void)host;
    return &kv_f32_ops;
}

IFX_KV_PLUGIN("kv_f32", "1.0", kv_f32_init)
