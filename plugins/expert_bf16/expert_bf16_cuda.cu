/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_bf16_cuda.cu - the bank `bf16` on CUDA devices: how its blocks are read; expert_bf16_format.h has the layout.
 */
#include "expert_bf16_format.h"

#include "../common_expert/narrow.cuh"
#include "../common_expert/wide.cuh"

struct bf16_bank {
    enum {
        BLOCK_K = BANK_BLOCK_K,
        BLOCK_BYTES = 32 * 64,
        HEADER = BANK_HEADER,
        VECTOR = 2,
        KS = BANK_CUDA_STEP,
        STAGES = BANK_CUDA_STAGES,
        RAW_BYTES = BANK_CUDA_RAW,
        SCRATCH_BYTES = BANK_CUDA_SCRATCH
    };
    static constexpr float X_SCALE = 1.0f;
    static constexpr float ACC_SCALE = 1.0f;

    static __device__ __forceinline__ float tensor_scale(const uint8_t *record, uint32_t matrix)
    {
        (void)record;
        (void)matrix;
        return 1.0f;
    }

    /* ---- narrow ---- */

    static __device__ __forceinline__ void open(const uint8_t *stage, uint32_t warp, uint32_t lane, uint32_t *scratch)
    {
        (void)stage;
        (void)warp;
        (void)lane;
        (void)scratch;
    }

    static __device__ __forceinline__ void decode(const uint8_t *block, uint32_t b, uint32_t row, uint32_t slot, uint32_t l,
                                                  const uint32_t *scratch, float *w)
    {
        (void)b;
        (void)slot;
        (void)scratch;
        const uint32_t word = *(const uint32_t *)(block + row * 64u + l * 4u);
        w[0] = ifx_bits_f32(word << 16);
        w[1] = ifx_bits_f32(word & 0xffff0000u);
    }

    /* ---- wide: a step is two blocks, of which the last panel step may lack one ---- */

    static __device__ __forceinline__ void copy(uint32_t to, const uint8_t *panel, uint32_t step, uint32_t blocks, uint32_t lane)
    {
        const uint32_t second = 2u * step + 1u < blocks ? 16u : 0u;
        const uint8_t *from = panel + (uint64_t)step * (2 * BLOCK_BYTES) + lane * 16u, *after = second ? from + BLOCK_BYTES : from;
#pragma unroll
        for (uint32_t i = 0; i < BLOCK_BYTES; i += 512u) {
            ifx_copy16(to + lane * 16u + i, from + i, 16u);
            ifx_copy16(to + BLOCK_BYTES + lane * 16u + i, after + i, second);
        }
    }

    static __device__ __forceinline__ void prepare(const uint8_t *raw, uint32_t lane, uint8_t *scratch)
    {
        (void)raw;
        (void)lane;
        (void)scratch;
        __syncwarp();
    }

    enum { GROUP = 2 };
    struct group {
        uint2 first, second;
    };

    static __device__ __forceinline__ void take(const uint8_t *raw, const uint8_t *scratch, uint32_t f, uint32_t j, uint32_t lane, group &g)
    {
        (void)scratch;
        const uint8_t *line = raw + j / 2u * BLOCK_BYTES + (8u * f + lane / 4u) * 64u + lane % 4u * 8u;
        g.first = *(const uint2 *)line;
        g.second = *(const uint2 *)(line + 32);
    }

    static __device__ __forceinline__ void fragment(const group &g, uint32_t j, uint32_t *b)
    {
        const uint32_t half = j % 2u ? 0x7632u : 0x5410u;
        b[0] = __byte_perm(g.first.x, g.first.y, half);
        b[1] = __byte_perm(g.second.x, g.second.y, half);
    }
};

EXPERT_CUDA_KERNELS(bf16_bank)
