/* SPDX-License-Identifier: Apache-2.0
 *
 * elementwise.cu - embedding rows, norms, rotary embedding and everything that works value by value.  Contracts: device.h.
 */
#include "common.cuh"

/* Rows are blockIdx.y strided by the grid (its y is limited to 65535), values blockIdx.x. */
#define FOR_ROWS(t, n)  for (uint64_t t = blockIdx.y; t < (n); t += gridDim.y)
#define FOR_WIDTH(i, w) for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < (w); i += gridDim.x * blockDim.x)

KERNEL ifx_embed(struct ifx_weight table, const int32_t *ids, uint32_t n, float *y, uint64_t ldy)
{
    begin_kernel();
    FOR_ROWS(t, n)
    {
        uint64_t row = (uint64_t)(uint32_t)ids[t];
        FOR_WIDTH(i, table.cols)
            y[t * ldy + i] = weight_at(table, row, i);
    }
}

enum { NORM_EACH = 4 }; /* float4 that a thread keeps */

/* One block a row that it keeps in registers; the weights are there before the row is. */
__device__ __forceinline__ void norm_rows(const struct ifx_rms_norm &op, float *shared)
{
    float4 w[NORM_EACH], v[NORM_EACH];
    bool waited = false;
    for (uint64_t r = blockIdx.x; r < op.rows; r += gridDim.x) {
        const float4 *x = (const float4 *)(op.x + r * op.ldx), *rw = (const float4 *)(op.w + (r % op.w_rows) * op.width);
        float4 *y = (float4 *)(op.y + r * op.ldy);
        float sum = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < NORM_EACH; i++)
            if (threadIdx.x + i * blockDim.x < op.width / 4)
                w[i] = rw[threadIdx.x + i * blockDim.x];
        if (!waited)
            wait_for_last();
        waited = true;
#pragma unroll
        for (uint32_t i = 0; i < NORM_EACH; i++)
            if (threadIdx.x + i * blockDim.x < op.width / 4)
                v[i] = x[threadIdx.x + i * blockDim.x];
#pragma unroll
        for (uint32_t i = 0; i < NORM_EACH; i++)
            if (threadIdx.x + i * blockDim.x < op.width / 4) {
                sum = fmaf(v[i].x, v[i].x, sum);
                sum = fmaf(v[i].y, v[i].y, sum);
                sum = fmaf(v[i].z, v[i].z, sum);
                sum = fmaf(v[i].w, v[i].w, sum);
            }
        float scale = 1.0f / sqrtf(block_sum(sum, shared) / (float)op.width + op.eps);
#pragma unroll
        for (uint32_t i = 0; i < NORM_EACH; i++)
            if (threadIdx.x + i * blockDim.x < op.width / 4)
                y[threadIdx.x + i * blockDim.x] =
                    make_float4(v[i].x * scale * (op.plus_one + w[i].x), v[i].y * scale * (op.plus_one + w[i].y),
                                v[i].z * scale * (op.plus_one + w[i].z), v[i].w * scale * (op.plus_one + w[i].w));
    }
}

/* One block a row. */
KERNEL ifx_rms_norm(struct ifx_rms_norm op)
{
    __shared__ float shared[32];
    let_next_start();
    if (op.width % 4 == 0 && op.width <= 4 * NORM_EACH * blockDim.x && op.ldx % 4 == 0 && op.ldy % 4 == 0 &&
        (((uintptr_t)op.x | (uintptr_t)op.y | (uintptr_t)op.w) & 15) == 0) {
        norm_rows(op, shared);
        return;
    }
    wait_for_last();
    for (uint64_t r = blockIdx.x; r < op.rows; r += gridDim.x) {
        const float *x = op.x + r * op.ldx, *w = op.w + (r % op.w_rows) * op.width;
        float *y = op.y + r * op.ldy;
        float sum = 0.0f;
        for (uint32_t i = threadIdx.x; i < op.width; i += blockDim.x)
            sum = fmaf(x[i], x[i], sum);
        float scale = 1.0f / sqrtf(block_sum(sum, shared) / (float)op.width + op.eps);
        for (uint32_t i = threadIdx.x; i < op.width; i += blockDim.x)
            y[i] = x[i] * scale * (op.plus_one + w[i]);
    }
}

/* One warp a row. */
KERNEL ifx_rms_norm_small(struct ifx_rms_norm op)
{
    begin_kernel();
    uint32_t lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    for (uint64_t r = (uint64_t)blockIdx.x * warps + (threadIdx.x >> 5); r < op.rows; r += (uint64_t)gridDim.x * warps) {
        const float *x = op.x + r * op.ldx, *w = op.w + (r % op.w_rows) * op.width;
        float *y = op.y + r * op.ldy;
        float sum = 0.0f;
        for (uint32_t i = lane; i < op.width; i += 32)
            sum = fmaf(x[i], x[i], sum);
        float scale = 1.0f / sqrtf(warp_sum(sum) / (float)op.width + op.eps);
        for (uint32_t i = lane; i < op.width; i += 32)
            y[i] = x[i] * scale * (op.plus_one + w[i]);
    }
}

/* One warp a head and column. */
KERNEL ifx_norm_rope(struct ifx_norm_rope op)
{
    begin_kernel();
    uint32_t lane = threadIdx.x & 31, warps = blockDim.x >> 5, half = op.rotary / 2;
    uint64_t pairs = (uint64_t)op.n * op.heads;
    for (uint64_t p = (uint64_t)blockIdx.x * warps + (threadIdx.x >> 5); p < pairs; p += (uint64_t)gridDim.x * warps) {
        uint64_t t = p / op.heads, h = p % op.heads;
        const float *x = op.x + t * op.ldx + h * op.ldx_head;
        float *y = op.y + t * op.ldy + h * op.ldy_head;
        float scale = 1.0f;
        if (op.w) {
            float sum = 0.0f;
            for (uint32_t i = lane; i < op.d; i += 32)
                sum = fmaf(x[i], x[i], sum);
            scale = 1.0f / sqrtf(warp_sum(sum) / (float)op.d + op.eps);
        }
        float position = (float)op.positions[t];
        for (uint32_t i = lane; i < half; i += 32) {
            float s, c;
            sincosf(position * op.inv_freq[i], &s, &c);
            float a = x[i] * scale * (op.w ? 1.0f + op.w[i] : 1.0f);
            float b = x[i + half] * scale * (op.w ? 1.0f + op.w[i + half] : 1.0f);
            y[i] = fmaf(a, c, -(b * s));
            y[i + half] = fmaf(b, c, a * s);
        }
        for (uint32_t i = 2 * half + lane; i < op.d; i += 32)
            y[i] = x[i] * scale * (op.w ? 1.0f + op.w[i] : 1.0f);
    }
}

/* One warp a head and column. */
KERNEL ifx_gated_norm(struct ifx_gated_norm op)
{
    begin_kernel();
    uint32_t lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    uint64_t pairs = (uint64_t)op.n * op.heads;
    for (uint64_t p = (uint64_t)blockIdx.x * warps + (threadIdx.x >> 5); p < pairs; p += (uint64_t)gridDim.x * warps) {
        uint64_t t = p / op.heads, h = p % op.heads;
        const float *x = op.x + t * op.ldx + h * op.width, *z = op.z + t * op.ldz + h * op.width;
        float *y = op.y + t * op.ldy + h * op.width;
        float sum = 0.0f;
        for (uint32_t i = lane; i < op.width; i += 32)
            sum = fmaf(x[i], x[i], sum);
        float scale = 1.0f / sqrtf(warp_sum(sum) / (float)op.width + op.eps);
        for (uint32_t i = lane; i < op.width; i += 32)
            y[i] = x[i] * scale * op.w[i] * (op.act == IFX_ACT_SIGMOID ? sigmoid(z[i]) : silu(z[i]));
    }
}

KERNEL ifx_swiglu(struct ifx_swiglu op)
{
    begin_kernel();
    FOR_ROWS(t, op.n)
        FOR_WIDTH(i, op.width)
            op.y[t * op.ldy + i] = silu(op.gate[t * op.ldg + i]) * op.up[t * op.ldu + i];
}

KERNEL ifx_sigmoid_gate(struct ifx_sigmoid_gate op)
{
    begin_kernel();
    FOR_ROWS(t, op.n)
        FOR_WIDTH(i, op.heads * op.d)
            op.x[t * op.ldx + i] *= sigmoid(op.gate[t * op.ldg + (uint64_t)(i / op.d) * op.ldg_head + i % op.d]);
}

KERNEL ifx_add(struct ifx_add op)
{
    begin_kernel();
    FOR_ROWS(t, op.n)
    {
        float scale = op.gate ? sigmoid(op.gate[t * op.ldg]) : 1.0f;
        FOR_WIDTH(i, op.width)
            op.y[t * op.ldy + i] = fmaf(op.x[t * op.ldx + i], scale, op.y[t * op.ldy + i]);
    }
}

KERNEL ifx_combine(struct ifx_combine op)
{
    begin_kernel();
    FOR_ROWS(t, op.n)
        FOR_WIDTH(i, op.width)
        {
            float sum = 0.0f;
            for (uint32_t r = 0; r < op.top_k; r++)
                {
                uint64_t pair = t * op.top_k + r, row = op.index ? op.index[pair] : pair;
                sum = fmaf(op.weights[pair], op.parts[row * op.ldp + i], sum);
            }
            float *y = &op.y[t * op.ldy + i];
            *y = op.accumulate ? sum + *y : sum;
        }
}

KERNEL ifx_to_bf16(const float *x, uint64_t ldx, uint32_t n, uint32_t width, uint16_t *y, uint64_t ldy)
{
    begin_kernel();
    FOR_ROWS(t, n)
        FOR_WIDTH(i, width)
            y[t * ldy + i] = ifx_f32_to_bf16(x[t * ldx + i]);
}
