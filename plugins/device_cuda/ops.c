/* SPDX-License-Identifier: Apache-2.0
 *
 * ops.c - launches of everything but the products and the routing.
 */
#include "cuda_device.h"
#include "gdn_args.h"

#define THREADS 256u

int32_t cuda_allow_shared(struct cuda_device *d)
{
    int32_t status = cuda_check(d, cudaFuncSetAttribute((const void *)d->kernels[K_delta_chunks], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                        CHUNKS_SHARED), "shared memory of the delta rule");
    return status ? status : product_allow_shared(d);
}

/* Values of a row over x, rows over y, which has a limit. */
static dim3 rows_grid(uint64_t rows, uint64_t width)
{
    return grid3(ceil_div(width, THREADS), rows < 65535 ? rows : 65535, 1);
}

static uint64_t at_most(uint64_t blocks)
{
    return blocks < (1u << 30) ? blocks : 1u << 30;
}

static int32_t embed(struct ifx_device *dev, void *stream, const struct ifx_weight *table, const int32_t *ids, uint32_t n, float *y,
                     uint64_t ldy)
{
    struct ifx_weight w = *table;
    void *args[] = {&w, &ids, &n, &y, &ldy};
    if (w.dtype != IFX_BF16 && w.dtype != IFX_F32 && w.dtype != IFX_W8G32)
        return dev->host->error(dev->host, IFX_EUNSUPPORTED, "device cuda: table of element type %u", w.dtype);
    if (n == 0 || w.cols == 0)
        return IFX_OK;
    return cuda_launch(cuda_of(dev), stream, K_embed, rows_grid(n, w.cols), THREADS, 0, args);
}

static int32_t rms_norm(struct ifx_device *dev, void *stream, const struct ifx_rms_norm *op)
{
    struct ifx_rms_norm o = *op;
    void *args[] = {&o};
    if (o.rows == 0 || o.width == 0)
        return IFX_OK;
    if (o.width <= 256)
        return cuda_launch(cuda_of(dev), stream, K_rms_norm_small, grid3(at_most(ceil_div(o.rows, THREADS / 32)), 1, 1), THREADS, 0, args);
    return cuda_launch(cuda_of(dev), stream, K_rms_norm, grid3(at_most(o.rows), 1, 1), o.width >= 4096 ? 1024 : THREADS, 0, args);
}

static int32_t norm_rope(struct ifx_device *dev, void *stream, const struct ifx_norm_rope *op)
{
    struct ifx_norm_rope o = *op;
    void *args[] = {&o};
    uint64_t heads = (uint64_t)o.n * o.heads;
    if (heads == 0)
        return IFX_OK;
    return cuda_launch(cuda_of(dev), stream, K_norm_rope, grid3(at_most(ceil_div(heads, 4)), 1, 1), 128, 0, args);
}

static int32_t gated_norm(struct ifx_device *dev, void *stream, const struct ifx_gated_norm *op)
{
    struct ifx_gated_norm o = *op;
    void *args[] = {&o};
    uint64_t heads = (uint64_t)o.n * o.heads;
    if (heads == 0)
        return IFX_OK;
    return cuda_launch(cuda_of(dev), stream, K_gated_norm, grid3(at_most(ceil_div(heads, 4)), 1, 1), 128, 0, args);
}

/* Operations whose argument is their struct, over [rows, width] values. */
#define BY_VALUE(name, rows, width)                                                                                      \
    static int32_t name(struct ifx_device *dev, void *stream, const struct ifx_##name *op)                               \
    {                                                                                                                    \
        struct ifx_##name o = *op;                                                                                       \
        void *args[] = {&o};                                                                                             \
        if ((rows) == 0 || (width) == 0)                                                                                 \
            return IFX_OK;                                                                                               \
        return cuda_launch(cuda_of(dev), stream, K_##name, rows_grid(rows, width), THREADS, 0, args);                    \
    }
BY_VALUE(swiglu, o.n, o.width)
BY_VALUE(sigmoid_gate, o.n, (uint64_t)o.heads * o.d)
BY_VALUE(add, o.n, o.width)
BY_VALUE(combine, o.n, o.width)
BY_VALUE(activate, o.n, o.width)
BY_VALUE(stream_mix, o.n, o.width)
BY_VALUE(stream_inject, o.n, (uint64_t)o.streams * o.width)

static int32_t to_bf16(struct ifx_device *dev, void *stream, const float *x, uint64_t ldx, uint32_t n, uint32_t width, uint16_t *y,
                       uint64_t ldy)
{
    void *args[] = {&x, &ldx, &n, &width, &y, &ldy};
    if (n == 0 || width == 0)
        return IFX_OK;
    return cuda_launch(cuda_of(dev), stream, K_to_bf16, rows_grid(n, width), THREADS, 0, args);
}

static int32_t stream_gate(struct ifx_device *dev, void *stream, const struct ifx_stream_gate *op)
{
    struct ifx_stream_gate o = *op;
    void *args[] = {&o};
    if (o.n == 0 || o.streams == 0)
        return IFX_OK;
    return cuda_launch(cuda_of(dev), stream, K_stream_gate, grid3(at_most((uint64_t)o.n * o.streams), 1, 1), THREADS, 0, args);
}

/* ---- gated delta net ---- */

static int32_t gdn_gate(struct ifx_device *dev, void *stream, const struct ifx_gdn_gate *op)
{
    struct ifx_gdn_gate o = *op;
    void *args[] = {&o};
    uint64_t values = (uint64_t)o.n * o.heads;
    if (values == 0)
        return IFX_OK;
    return cuda_launch(cuda_of(dev), stream, K_gdn_gate, grid3(at_most(ceil_div(values, THREADS)), 1, 1), THREADS, 0, args);
}

static int32_t conv(struct ifx_device *dev, void *stream, const struct ifx_conv *op)
{
    struct cuda_device *d = cuda_of(dev);
    struct ifx_conv o = *op;
    void *args[] = {&o};
    dim3 channels = grid3(ceil_div(o.channels, 128), 1, 1), all = channels;
    all.y = (unsigned)ceil_div(o.n, 16) < 65535 ? (unsigned)ceil_div(o.n, 16) : 65535; /* CONV_TOKENS */
    if (o.kernel < 2 || o.kernel > 8 || o.dilation > 16)
        return dev->host->error(dev->host, IFX_EINVAL, "device cuda: convolution of kernel %u and dilation %u; 2 to 8 and up to 16 are possible",
                                o.kernel, o.dilation);
    if (o.n == 0 || o.channels == 0)
        return IFX_OK;
    if (o.n <= 8)
        return cuda_launch(d, stream, K_conv_few, channels, 128, 0, args);
    int32_t status = cuda_launch(d, stream, K_conv_many, all, 128, 0, args);
    return status ? status : cuda_launch(d, stream, K_conv_state, channels, 128, 0, args);
}

static uint32_t in_chunks(const struct ifx_gated_delta *op)
{
    return op->n >= CHUNKS_FROM && op->dk <= DELTA_D && op->dv <= DELTA_D;
}

static uint64_t gated_delta_ws_bytes(struct ifx_device *dev, const struct ifx_gated_delta *op)
{
    (void)dev;
    return in_chunks(op) ? (uint64_t)op->v_heads * SEGMENT * PART_FLOATS * sizeof(float) : 256;
}

static int32_t delta_chunks(struct cuda_device *d, void *stream, struct ifx_gated_delta *o)
{
    float *ws = o->ws;
    int32_t status = IFX_OK;
    for (uint64_t t0 = 0; status == IFX_OK && t0 < o->n; t0 += SEGMENT * CHUNK) {
        uint32_t chunks = (uint32_t)ceil_div(o->n - t0, CHUNK);
        chunks = chunks < SEGMENT ? chunks : SEGMENT;
        void *prepare[] = {o, &t0, &ws}, *scan[] = {o, &t0, &chunks, &ws};
        status = cuda_launch(d, stream, K_delta_chunks, grid3(chunks, o->v_heads, 1), 256, CHUNKS_SHARED, prepare);
        if (!status)
            status = cuda_launch(d, stream, K_delta_scan, grid3(o->v_heads, ceil_div(o->dv, SLICE), 1), 256, SCAN_SHARED, scan);
    }
    return status;
}

static int32_t gated_delta(struct ifx_device *dev, void *stream, const struct ifx_gated_delta *op)
{
    struct cuda_device *d = cuda_of(dev);
    struct ifx_gated_delta o = *op;
    void *args[] = {&o};
    if (o.dk > 256 || o.dv > 256 || !o.k_heads || o.v_heads % o.k_heads)
        return dev->host->error(dev->host, IFX_EINVAL, "device cuda: delta rule with %u key heads of %u and %u value heads of %u", o.k_heads,
                                o.dk, o.v_heads, o.dv);
    if (o.n == 0 || o.v_heads == 0)
        return IFX_OK;
    if (in_chunks(op))
        return delta_chunks(d, stream, &o);
    return cuda_launch(d, stream, K_delta_steps, grid3(o.v_heads, ceil_div(o.dv, 16), 1), 256, 0, args);
}

void cuda_fill_ops(struct ifx_device_ops *ops)
{
    ops->embed = embed;
    ops->rms_norm = rms_norm;
    ops->norm_rope = norm_rope;
    ops->conv = conv;
    ops->gdn_gate = gdn_gate;
    ops->gated_delta_ws_bytes = gated_delta_ws_bytes;
    ops->gated_delta = gated_delta;
    ops->gated_norm = gated_norm;
    ops->swiglu = swiglu;
    ops->sigmoid_gate = sigmoid_gate;
    ops->add = add;
    ops->combine = combine;
    ops->to_bf16 = to_bf16;
    ops->activate = activate;
    ops->stream_mix = stream_mix;
    ops->stream_inject = stream_inject;
    ops->stream_gate = stream_gate;
}
