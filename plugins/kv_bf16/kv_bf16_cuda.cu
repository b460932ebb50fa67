/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_bf16_cuda.cu - the KV format bf16 on CUDA devices.
 */
#include <infernix/kv_skeleton.cuh>

struct bf16_rows {
    enum { DIRECT = 1, WARPS = 4 };

    static __device__ void load(const uint8_t *row, uint32_t d, uint32_t i, uint32_t out[4])
    {
        (void)d;
        for (uint32_t k = 0; k < 4; k++)
            out[k] = ((const uint32_t *)row)[i / 2u + k];
    }

    static __device__ __forceinline__ void store(const float *x, uint32_t d, uint8_t *row, uint32_t lane)
    {
        for (uint32_t i = lane; i < d; i += 32u)
            ((uint16_t *)row)[i] = ifx_f32_to_bf16(x[i]);
    }
};

IFX_KV_CUDA_KERNELS(bf16_rows)
