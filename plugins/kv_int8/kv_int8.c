/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_int8 - K and V rows as int8 codes with one binary16 scale for each group of 64 values; format.h has the rules.
 */
#include "format.h"
#include "kernels.h"

#ifdef IFX_HAVE_CUDA
#include <infernix/kv_skeleton_cuda.h>
#endif

static uint64_t kv_int8_row_bytes(const struct ifx_kv_shape *shape)
{
    return kv_int8_bytes(shape->head_dim);
}

static uint64_t kv_int8_page_bytes(const struct ifx_kv_shape *shape)
{
    return ifx_kvs_page_bytes(shape, kv_int8_row_bytes(shape));
}

static const struct ifx_kvs_kernels *const kv_int8_table[] = {
    &kv_int8_scalar,
#ifdef KV_AVX2
    &kv_int8_avx2,
#endif
#ifdef KV_AVX512
    &kv_int8_avx512,
#endif
};

static int32_t kv_int8_open(const struct ifx_host *host, const struct ifx_options *options,
                           const struct ifx_kv_shape *shape, void **kv)
{
    (void)options;
    return ifx_kvs_open(host, shape, kv_int8_row_bytes(shape), kv_int8_table,
                        sizeof kv_int8_table / sizeof kv_int8_table[0], kv);
}

static int32_t kv_int8_decode_row(void *kv, const void *page, uint32_t which, uint32_t head, uint32_t slot, double *out)
{
    const struct ifx_kvs *s = kv;
    const uint8_t *row = (const uint8_t *)page + ifx_kvs_row_offset(s, which, head, slot);
    const uint32_t d = s->shape.head_dim;
    for (uint32_t i = 0; i < d; i++)
        out[i] = (double)(int8_t)row[i] * (double)kv_int8_scale(row, d, i / KV_INT8_GROUP);
    return IFX_OK;
}

#ifdef IFX_HAVE_CUDA
extern const unsigned char ifx_image_kv_int8_cuda[];
extern const uint64_t ifx_image_kv_int8_cuda_bytes;

static int32_t kv_int8_device_open(void *kv, const struct ifx_compute *compute, void **side)
{
    return ifx_kvc_open(kv, compute, ifx_image_kv_int8_cuda, ifx_image_kv_int8_cuda_bytes, IFX_KVC_EIGHT, side);
}
#endif

static const struct ifx_kv_ops kv_int8_ops = {
    .struct_size = sizeof kv_int8_ops,
    .format = "int8",
    .description = "int8 codes with a binary16 scale for each 64 values; 264 bytes a row of 256",
    .page_bytes = kv_int8_page_bytes,
    .open = kv_int8_open,
    .close = ifx_kvs_close,
    .append = ifx_kvs_call_append,
    .attend = ifx_kvs_call_attend,
    .decode_row = kv_int8_decode_row,
    .level = ifx_kvs_level,
#ifdef IFX_HAVE_CUDA
    .device_open = kv_int8_device_open,
    .device_close = ifx_kvc_close,
    .device_ws_bytes = ifx_kvc_ws_bytes,
    .device_append = ifx_kvc_append,
    .device_attend = ifx_kvc_attend,
#endif
};

static const struct ifx_kv_ops *kv_int8_init(const struct ifx_host *host)
{
    (void)host;
    return &kv_int8_ops;
}

IFX_KV_PLUGIN("kv_int8", "1.0", kv_int8_init)
