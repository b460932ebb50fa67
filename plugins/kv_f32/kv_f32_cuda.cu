/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_f32_cuda.cu - the KV format f32 on CUDA devices: stored exactly, rounded to bf16 where tensor cores multiply.
 */
#include <infernix/kv_skeleton.cuh>

struct f32_rows {
    enum { DIRECT = 0, WARPS = 4 };

    static __device__ __forceinline__ void load(const uint8_t *row, uint32_t d, uint32_t i, uint32_t out[4])
    {
        const float *x = (const float *)row + i;
        (void)d;
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            out[k] = ifx_pack_bf16(x[2u * k], x[2u * k + 1u]);
    }

    static __device__ __forceinline__ void store(const float *x, uint32_t d, uint8_t *row, uint32_t lane)
    {
        for (uint32_t i = lane; i < d; i += 32u)
            ((float *)row)[i] = x[i];
    }
};

IFX_KV_CUDA_KERNELS(f32_rows)
