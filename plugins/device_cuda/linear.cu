/* SPDX-License-Identifier: Apache-2.0
 *
 * linear.cu - products with 1 to 8 columns, and what wide products need around cuBLASLt.
 */
#include "narrow.cuh"

/* A product and nothing else. */
struct plain_job {
    const struct narrow_args &a;

    __device__ __forceinline__ void before_wait() {}
    __device__ __forceinline__ void begin() {}
    template <uint32_t PARTS> __device__ __forceinline__ inputs<PARTS> load(uint32_t column, uint32_t k) const
    {
        return load_inputs<PARTS>(a.x + column * a.ldx, k, column < a.n ? a.cols : 0, a.x_aligned);
    }
    __device__ __forceinline__ void finish(const struct narrow_out &o, uint32_t column, uint32_t row, float sum) const
    {
        float *y = &o.y[column * o.ldy + row];
        *y = o.accumulate ? *y + sum : sum;
    }
};

template <bool ANY, uint32_t PARTS, uint32_t WARPS, bool MANY> __device__ __forceinline__ void narrow(const struct narrow_args &a)
{
    plain_job job = {a};
    narrow_bf16<ANY, PARTS, WARPS, MANY>(a, job);
}

KERNEL __launch_bounds__(8 * 32, 2) ifx_linear_narrow(const __grid_constant__ struct narrow_args a)
{
    narrow<false, 1, 8, true>(a);
}

/* Few rows: more warps share them. */
KERNEL __launch_bounds__(16 * 32, 1) ifx_linear_narrow_few(const __grid_constant__ struct narrow_args a)
{
    narrow<false, 1, 16, false>(a);
}

/* Inputs are not rounded. */
KERNEL __launch_bounds__(16 * 32, 1) ifx_linear_narrow_exact(const __grid_constant__ struct narrow_args a)
{
    narrow<false, 3, 16, false>(a);
}

/* Rows that are not 16-byte aligned. */
KERNEL __launch_bounds__(8 * 32, 1) ifx_linear_narrow_any(const __grid_constant__ struct narrow_args a)
{
    narrow<true, 1, 8, false>(a);
}

KERNEL __launch_bounds__(8 * 32, 1) ifx_linear_narrow_exact_any(const __grid_constant__ struct narrow_args a)
{
    narrow<true, 3, 8, false>(a);
}

/* 4 codes as 4 bf16: a byte in the low mantissa bits of 2^23 is an integer of float32, which bf16 holds exactly. */
__device__ __forceinline__ void codes_to_bf16(uint32_t codes, uint32_t &low, uint32_t &high)
{
    codes ^= 0x80808080u;
    float v[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        v[i] = __uint_as_float(__byte_perm(codes, 0x4b000000u, 0x7440u + i)) - 8388736.0f;
    low = pack_bf16(v[0], v[1]);
    high = pack_bf16(v[2], v[3]);
}

/* One group of 32 codes at a time: its sum is of exact products, and the scale multiplies it once. */
KERNEL __launch_bounds__(NARROW_WARPS * 32, 2) ifx_linear_narrow_w8(const __grid_constant__ struct narrow_args a)
{
    bool waited = false;
    let_next_start();
    const struct narrow_out &o = find_out(a, blockIdx.x);
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    uint32_t row0 = (blockIdx.x - o.tile0) * NARROW_ROWS, last = o.w.rows - 1, groups = (a.cols + 31) / 32;
    uint64_t r0 = min(row0 + g, last), r1 = min(row0 + g + 8, last);
    const uint8_t *w0 = (const uint8_t *)o.w.data + r0 * groups * 32, *w1 = (const uint8_t *)o.w.data + r1 * groups * 32;
    const __half *s0 = (const __half *)o.w.scales + r0 * groups, *s1 = (const __half *)o.w.scales + r1 * groups;
    const float *x = a.x + g * a.ldx;
    float c[4] = {0, 0, 0, 0};
    for (uint32_t u0 = warp; u0 < groups; u0 += AHEAD * NARROW_WARPS) {
        uint2 p[AHEAD], q[AHEAD];
        uint4 v[AHEAD];
        float f0[AHEAD], f1[AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            uint32_t u = u0 + i * NARROW_WARPS;
            bool in = u < groups;
            p[i] = in ? __ldcs((const uint2 *)(w0 + u * 32ull + 8 * t)) : make_uint2(0, 0);
            q[i] = in ? __ldcs((const uint2 *)(w1 + u * 32ull + 8 * t)) : make_uint2(0, 0);
            f0[i] = in ? __half2float(s0[u]) : 0.0f;
            f1[i] = in ? __half2float(s1[u]) : 0.0f;
        }
        if (!waited)
            wait_for_last();
        waited = true;
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            uint32_t k = (u0 + i * NARROW_WARPS) * 32 + 8 * t;
            v[i] = load_inputs<1>(x, k, g < a.n ? a.cols : 0, a.x_aligned).part[0];
        }
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            uint32_t a0, a1, a2, a3;
            float part[4] = {0, 0, 0, 0};
            codes_to_bf16(p[i].x, a0, a2);
            codes_to_bf16(q[i].x, a1, a3);
            mma_bf16(part, a0, a1, a2, a3, v[i].x, v[i].y);
            codes_to_bf16(p[i].y, a0, a2);
            codes_to_bf16(q[i].y, a1, a3);
            mma_bf16(part, a0, a1, a2, a3, v[i].z, v[i].w);
            c[0] = fmaf(part[0], f0[i], c[0]);
            c[1] = fmaf(part[1], f0[i], c[1]);
            c[2] = fmaf(part[2], f1[i], c[2]);
            c[3] = fmaf(part[3], f1[i], c[3]);
        }
    }
    if (!waited) /* a warp without a group of its own */
        wait_for_last();
    finish_tile<NARROW_WARPS>(a, o, row0, c, 0, plain_job{a});
}

/* Inputs as they are, or float32 weights: no tensor cores.  One block a row. */
KERNEL ifx_linear_narrow_f32(const __grid_constant__ struct narrow_args a)
{
    begin_kernel();
    __shared__ float parts[F32_THREADS / 32][NARROW_COLUMNS];
    const struct narrow_out &o = find_out(a, blockIdx.x);
    uint64_t row = blockIdx.x - o.tile0;
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float sum[NARROW_COLUMNS] = {0};
    for (uint32_t k0 = threadIdx.x * 4; k0 < a.cols; k0 += F32_THREADS * 4)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t k = k0 + i;
            if (k >= a.cols)
                break;
            float w = weight_at(o.w, row, k);
#pragma unroll
            for (uint32_t c = 0; c < NARROW_COLUMNS; c++)
                if (c < a.n) {
                    float x = a.x[c * a.ldx + k];
                    sum[c] = fmaf(w, a.round_x ? round_bf16(x) : x, sum[c]);
                }
        }
#pragma unroll
    for (uint32_t c = 0; c < NARROW_COLUMNS; c++) {
        float s = warp_sum(sum[c]);
        if (lane == 0)
            parts[warp][c] = s;
    }
    __syncthreads();
    if (threadIdx.x < a.n) {
        float s = 0.0f;
#pragma unroll
        for (uint32_t w = 0; w < F32_THREADS / 32; w++)
            s += parts[w][threadIdx.x];
        float *y = &o.y[threadIdx.x * o.ldy + row];
        *y = o.accumulate ? *y + s : s;
    }
}

/* ---- wide products ---- */

/* x as `parts` bf16 matrices [n, ld] whose sum it is (to 24 bits with three), the coarsest first. */
KERNEL ifx_split_bf16(const float *x, uint64_t ldx, uint32_t n, uint32_t cols, uint32_t parts, uint16_t *y, uint32_t ld)
{
    begin_kernel();
    bool aligned = ((uintptr_t)x & 15) == 0 && ldx % 4 == 0;
    for (uint64_t t = blockIdx.y; t < n; t += gridDim.y)
        for (uint32_t k = 8 * (blockIdx.x * blockDim.x + threadIdx.x); k < ld; k += 8 * gridDim.x * blockDim.x) {
            float v[8];
            load_8(v, x + t * ldx, k, cols, aligned);
            for (uint32_t p = 0; p < parts; p++) {
                uint4 h = make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
                *(uint4 *)&y[((uint64_t)p * n + t) * ld + k] = h;
                take_bf16(v, h);
            }
        }
}

KERNEL ifx_round_f32(const float *x, uint64_t ldx, uint32_t n, uint32_t cols, uint32_t round, float *y, uint32_t ld)
{
    begin_kernel();
    for (uint64_t t = blockIdx.y; t < n; t += gridDim.y)
        for (uint32_t k = blockIdx.x * blockDim.x + threadIdx.x; k < ld; k += gridDim.x * blockDim.x) {
            float v = k < cols ? x[t * ldx + k] : 0.0f;
            y[t * ld + k] = round ? round_bf16(v) : v;
        }
}

/* Rows [row0, row0 + rows) of a matrix, ld values apart, zero after the last column. */
KERNEL ifx_expand_bf16(struct ifx_weight w, uint32_t row0, uint32_t rows, uint16_t *y, uint32_t ld)
{
    begin_kernel();
    for (uint64_t r = blockIdx.y; r < rows; r += gridDim.y)
        for (uint32_t k = blockIdx.x * blockDim.x + threadIdx.x; k < ld; k += gridDim.x * blockDim.x)
            y[r * ld + k] = k < w.cols ? ifx_f32_to_bf16(weight_at(w, row0 + r, k)) : 0;
}

KERNEL ifx_expand_f32(struct ifx_weight w, uint32_t row0, uint32_t rows, float *y, uint32_t ld)
{
    begin_kernel();
    for (uint64_t r = blockIdx.y; r < rows; r += gridDim.y)
        for (uint32_t k = blockIdx.x * blockDim.x + threadIdx.x; k < ld; k += gridDim.x * blockDim.x)
            y[r * ld + k] = k < w.cols ? weight_at(w, row0 + r, k) : 0.0f;
}
