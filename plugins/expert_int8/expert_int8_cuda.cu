/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_int8_cuda.cu - the bank `int8` on CUDA devices: how its blocks are decoded; expert_int8_format.h has the layout.
 */
#include "expert_int8_format.h"

#include "../common_expert/narrow.cuh"
#include "../common_expert/wide.cuh"

struct int8_bank {
    enum {
        BLOCK_K = BANK_BLOCK_K,
        BLOCK_BYTES = 32 * (64 + BANK_ROW_SCALES),
        HEADER = BANK_HEADER,
        VECTOR = 4,
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

    /* A code whose sign bit is turned over is the code plus 128: the last byte of 2^23 + 128 + code. */
    static __device__ __forceinline__ void decode(const uint8_t *block, uint32_t b, uint32_t row, uint32_t slot, uint32_t l,
                                                  const uint32_t *scratch, float *w)
    {
        (void)b;
        (void)slot;
        (void)scratch;
        const uint8_t *line = block + row * 64u + l;
        const uint32_t scales = *(const uint32_t *)(block + 32 * 64 + row * BANK_ROW_SCALES);
        float scale[2];
        ifx_half2_to_f32(scales, scale, scale + 1);
#pragma unroll
        for (uint32_t s = 0; s < 4; s++)
            w[s] = (ifx_bits_f32(0x4b000080u ^ line[16u * s]) - 8388736.0f) * scale[s / 2u];
    }

    /* ---- wide ---- */

    static __device__ __forceinline__ void copy(uint32_t to, const uint8_t *panel, uint32_t step, uint32_t blocks, uint32_t lane)
    {
        (void)blocks;
        const uint8_t *from = panel + (uint64_t)step * BLOCK_BYTES + lane * 16u;
        const uint32_t line = to + lane / 4u * 80u + lane % 4u * 16u;
#pragma unroll
        for (uint32_t i = 0; i < 4u; i++) /* 8 lines each */
            ifx_copy16(line + i * (8u * 80u), from + i * 512u, 16u);
        if (lane < 32u * BANK_ROW_SCALES / 16u)
            ifx_copy16(to + 32u * 80u + lane * 16u, from + 2048, 16u);
    }

    /* scratch[row][group]: the scale as float32. */
    static __device__ __forceinline__ void prepare(const uint8_t *raw, uint32_t lane, uint8_t *scratch)
    {
        float scale[2];
        ifx_half2_to_f32(*(const uint32_t *)(raw + 32 * 80 + lane * 4u), scale, scale + 1);
        __syncwarp();
        *(float2 *)(scratch + lane * 8u) = make_float2(scale[0], scale[1]);
        __syncwarp();
    }

    enum { GROUP = 1 };
    struct group {
        uint32_t b[2];
    };

    static __device__ __forceinline__ void take(const uint8_t *raw, const uint8_t *scratch, uint32_t f, uint32_t j, uint32_t lane, group &g)
    {
        const uint32_t row = 8u * f + lane / 4u;
        const uint8_t *line = raw + row * 80u + 16u * j + lane % 4u * 2u;
        const float scale = *(const float *)(scratch + row * 8u + j / 2u * 4u);
        g.b[0] = ifx_i8_scaled<0>(*(const uint16_t *)line ^ 0x8080u, scale);
        g.b[1] = ifx_i8_scaled<0>(*(const uint16_t *)(line + 8) ^ 0x8080u, scale);
    }

    static __device__ __forceinline__ void fragment(const group &g, uint32_t j, uint32_t *b)
    {
        (void)j;
        b[0] = g.b[0];
        b[1] = g.b[1];
    }
};

EXPERT_CUDA_KERNELS(int8_bank)
