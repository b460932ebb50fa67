/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_f16 - a KV-cache format made of infernix/kv_skeleton.h: binary16 rows.
 *
 * Copy this file, rename `f16` and change the three numbered functions and the oracle.
 *     cc -O2 -fPIC -shared $(pkg-config --cflags infernix) -o kv_f16.so kv_f16.c -lm
 *     infernix plugins --check ./kv_f16.so
 */
#include <infernix/kv_skeleton.h>

/* ---- 1. Bytes of one stored row of head_dim values. ---- */
static uint64_t f16_row_bytes(const struct ifx_kv_shape *shape)
{
    return 2 * (uint64_t)shape->head_dim;
}

/* ---- 2. One row to its bytes.  Finite stays finite: beyond binary16 a value saturates.  NaN and infinity stay what they are. ---- */
IFX_KVS_INLINE void f16_store(const struct ifx_kvs *s, const float *x, uint8_t *row)
{
    for (uint32_t i = 0; i < s->shape.head_dim; i++) {
        float v = x[i];
        if (isfinite(v))
            v = v > 65504.0f ? 65504.0f : v < -65504.0f ? -65504.0f : v;
        const uint16_t h = ifx_f32_to_f16(v);
        memcpy(row + 2 * (uint64_t)i, &h, 2);
    }
}

/* ---- 3. One row back to float32. ---- */
IFX_KVS_INLINE void f16_load(const struct ifx_kvs *s, const uint8_t *row, float *out)
{
    for (uint32_t i = 0; i < s->shape.head_dim; i++) {
        uint16_t h;
        memcpy(&h, row + 2 * (uint64_t)i, 2);
        out[i] = ifx_f16_to_f32(h);
    }
}

/* ---- The oracle: exact values, written apart from the loader. ---- */
static int32_t f16_decode_row(void *kv, const void *page, uint32_t which, uint32_t kv_head, uint32_t slot, double *out)
{
    const struct ifx_kvs *s = kv;
    const uint8_t *row = (const uint8_t *)page + ifx_kvs_row_offset(s, which, kv_head, slot);
    for (uint32_t i = 0; i < s->shape.head_dim; i++)
        out[i] = ifx_f16_to_f32((uint16_t)(row[2 * i] | row[2 * i + 1] << 8));
    return IFX_OK;
}

/* ---- What the skeleton makes of them; compile this part once for each instruction set to have several. ---- */
static int32_t f16_append(const struct ifx_kvs *s, const struct ifx_kv_append *call)
{
    return ifx_kvs_append(s, call, f16_store);
}
static int32_t f16_attend(const struct ifx_kvs *s, const struct ifx_kv_attend *call)
{
    return ifx_kvs_attend(s, call, f16_load);
}
static const struct ifx_kvs_kernels f16_scalar = {IFX_CPU_SCALAR, f16_append, f16_attend};
static const struct ifx_kvs_kernels *const f16_table[] = {&f16_scalar};

static uint64_t f16_page_bytes(const struct ifx_kv_shape *shape)
{
    return ifx_kvs_page_bytes(shape, f16_row_bytes(shape));
}
static int32_t f16_open(const struct ifx_host *host, const struct ifx_options *options, const struct ifx_kv_shape *shape,
                        void **kv)
{
    (void)options;
    return ifx_kvs_open(host, shape, f16_row_bytes(shape), f16_table, 1, kv);
}

static const struct ifx_kv_ops f16_ops = {
    .struct_size = sizeof f16_ops,
    .format = "f16",
    .description = "binary16 rows; 2 bytes a value",
    .page_bytes = f16_page_bytes,
    .open = f16_open,
    .close = ifx_kvs_close,
    .append = ifx_kvs_call_append,
    .attend = ifx_kvs_call_attend,
    .decode_row = f16_decode_row,
    .level = ifx_kvs_level,
};

static const struct ifx_kv_ops *f16_init(const struct ifx_host *host)
{
    (void)host;
    return &f16_ops;
}

IFX_KV_PLUGIN("kv_f16", "1.0", f16_init) /* the file must be called kv_f16.so */
