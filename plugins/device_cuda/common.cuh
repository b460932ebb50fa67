/* SPDX-License-Identifier: Apache-2.0
 *
 * common.cuh - what the kernels share: reductions in a fixed order, weights of every dense format.
 */
#ifndef DEVICE_CUDA_COMMON_CUH
#define DEVICE_CUDA_COMMON_CUH

#include <infernix/device.h>
#include <infernix/numerics.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define KERNEL extern "C" __global__ void
#define FULL   0xffffffffu

/* Kernels are launched before the one in front of them has ended (cuda_launch): what it wrote is there after the wait, and nothing of
 * it may be touched before.  Every kernel lets the next one start at once, and waits first thing, unless it has weights to fetch. */
__device__ __forceinline__ void let_next_start()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ void wait_for_last()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ void begin_kernel()
{
    let_next_start();
    wait_for_last();
}

/* The same sum in every lane.  A butterfly adds the same pairs everywhere, and a + b = b + a. */
__device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1)
        v += __shfl_xor_sync(FULL, v, offset);
    return v;
}

/* The same sum in every thread of a block of up to 1024; shared: 32 floats, free again after the call's last barrier. */
__device__ __forceinline__ float block_sum(float v, float *shared)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    v = warp_sum(v);
    if (lane == 0)
        shared[warp] = v;
    __syncthreads();
    v = warp_sum(lane < warps ? shared[lane] : 0.0f);
    __syncthreads();
    return v;
}

/* Sums over the threads before this one, of two counts; totals of all in `total`.  1024 threads. */
__device__ __forceinline__ uint2 block_before(uint2 v, uint2 &total)
{
    __shared__ uint2 warps[32];
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint2 sum = v;
#pragma unroll
    for (uint32_t offset = 1; offset < 32; offset <<= 1) {
        uint32_t x = __shfl_up_sync(FULL, sum.x, offset), y = __shfl_up_sync(FULL, sum.y, offset);
        if (lane >= offset) {
            sum.x += x;
            sum.y += y;
        }
    }
    __syncthreads(); /* an earlier call's reads */
    if (lane == 31)
        warps[warp] = sum;
    __syncthreads();
    uint2 before = {0, 0}, all = {0, 0};
    for (uint32_t w = 0; w < 32; w++) {
        if (w < warp) {
            before.x += warps[w].x;
            before.y += warps[w].y;
        }
        all.x += warps[w].x;
        all.y += warps[w].y;
    }
    total = all;
    return make_uint2(before.x + sum.x - v.x, before.y + sum.y - v.y);
}

/* Weight (row, col), exact in float32. */
__device__ __forceinline__ float weight_at(const struct ifx_weight &w, uint64_t row, uint32_t col)
{
    if (w.dtype == IFX_F32)
        return ((const float *)w.data)[row * w.cols + col];
    if (w.dtype == IFX_BF16)
        return ifx_bf16_to_f32(((const uint16_t *)w.data)[row * w.cols + col]);
    uint64_t groups = ((uint64_t)w.cols + 31) / 32;
    return (float)((const int8_t *)w.data)[row * groups * 32 + col] *
           __half2float(((const __half *)w.scales)[row * groups + col / 32]);
}

__device__ __forceinline__ float round_bf16(float x)
{
    return ifx_bf16_to_f32(ifx_f32_to_bf16(x));
}

/* x / (1 + exp(-x)) and 1 / (1 + exp(-x)), for every float. */
__device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

__device__ __forceinline__ float silu(float x)
{
    return x / (1.0f + expf(-x));
}

__device__ __forceinline__ float softplus(float x)
{
    return x > 0.0f ? x + log1pf(expf(-x)) : log1pf(expf(x));
}

#endif
