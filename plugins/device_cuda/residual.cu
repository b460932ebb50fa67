/* SPDX-License-Identifier: Apache-2.0
 *
 * residual.cu - a residual of several streams: mixing them, adding to them, gating by them.
 */
#include "common.cuh"

#define FOR_ROWS(t, n)  for (uint64_t t = blockIdx.y; t < (n); t += gridDim.y)
#define FOR_WIDTH(i, w) for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < (w); i += gridDim.x * blockDim.x)

KERNEL ifx_activate(struct ifx_activate op)
{
    begin_kernel();
    FOR_ROWS(t, op.n)
        FOR_WIDTH(i, op.width)
        {
            float x = op.scale * op.x[t * op.ldx + i];
            op.y[t * op.ldy + i] = op.act == IFX_ACT_SILU ? silu(x) : sigmoid(x);
        }
}

KERNEL ifx_stream_mix(struct ifx_stream_mix op)
{
    begin_kernel();
    FOR_ROWS(t, op.n)
        FOR_WIDTH(i, op.width)
        {
            float sum = 0.0f;
            for (uint32_t s = 0; s < op.streams; s++) {
                uint64_t at = (uint64_t)s * op.width + i;
                sum = fmaf(sigmoid(op.gate[t * op.ldg + at]), op.x[t * op.ldx + at], sum);
            }
            op.y[t * op.ldy + i] = sum / (float)op.streams;
        }
}

KERNEL ifx_stream_inject(struct ifx_stream_inject op)
{
    begin_kernel();
    FOR_ROWS(t, op.n)
        FOR_WIDTH(i, op.streams * op.width)
        {
            float weight = 2.0f * sigmoid(op.scale * op.inject[t * op.ldi + i / op.width]);
            op.y[t * op.ldy + i] = fmaf(weight, op.x[t * op.ldx + i % op.width], op.y[t * op.ldy + i]);
        }
}

/* A block a column and stream. */
KERNEL ifx_stream_gate(struct ifx_stream_gate op)
{
    begin_kernel();
    __shared__ float shared[32];
    uint64_t all = (uint64_t)op.n * op.streams;
    for (uint64_t p = blockIdx.x; p < all; p += gridDim.x) {
        uint64_t t = p / op.streams, s = p % op.streams;
        const float *key = op.key + t * op.ldk + s * op.width, *query = op.query + t * op.ldq + s * op.width;
        float dot = 0.0f;
        for (uint32_t i = threadIdx.x; i < op.width; i += blockDim.x)
            dot = fmaf(key[i], query[i], dot);
        float g = block_sum(dot, shared) / sqrtf((float)op.width);
        float root = sqrtf(fmaxf(fabsf(g), 1e-6f)), weight = sigmoid(g > 0.0f ? root : g < 0.0f ? -root : g == g ? 0.0f : g);
        for (uint32_t i = threadIdx.x; i < op.width; i += blockDim.x)
            op.y[t * op.ldy + s * op.width + i] = weight * op.value[t * op.ldv + i];
    }
}
