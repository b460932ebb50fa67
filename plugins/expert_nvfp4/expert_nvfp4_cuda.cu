/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_nvfp4_cuda.cu - the bank `nvfp4` on CUDA devices: how its blocks are decoded; expert_nvfp4_format.h has the layout.
 */
#include "expert_nvfp4_format.h"

#include "../common_expert/narrow.cuh"
#include "../common_expert/wide.cuh"

struct nvfp4 {
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
    /* An e2m1 code whose bits are put where binary16 has the end of its exponent and the start of its mantissa is the code's
     * value times 2^-14; times the scale it is still exact, as a multiple of 2^-24. */
    static constexpr float X_SCALE = 16384.0f;

    static __device__ __forceinline__ float tensor_scale(const uint8_t *record, uint32_t matrix)
    {
        return ((const float *)record)[matrix];
    }

    /* scratch[block][slot][pair]: scales of the groups 1 3, 5 7, 0 2, 4 6 as binary16, as decode has the codes in pairs. */
    static __device__ __forceinline__ void open(const uint8_t *stage, uint32_t warp, uint32_t lane, uint32_t *scratch)
    {
        const uint32_t pair = lane % 4u, row = narrow_row(warp, lane / 4u % 4u);
        const uint8_t *scales = stage + lane / 16u * BLOCK_BYTES + 32 * 64 + row * BANK_ROW_SCALES;
        const uint32_t two = __byte_perm(*(const uint32_t *)(scales + 4u * (pair % 2u)), 0u, pair < 2u ? 0x4431u : 0x4420u);
        uint32_t halves;
        asm("{.reg .b16 e;\ncvt.u16.u32 e, %1;\ncvt.rn.f16x2.e4m3x2 %0, e;\n}" : "=r"(halves) : "r"(two));
        __syncwarp();
        scratch[lane] = halves;
        __syncwarp();
    }

    static __device__ __forceinline__ uint32_t product(uint32_t codes, uint32_t scales)
    {
        uint32_t r;
        asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(codes), "r"(scales));
        return r;
    }

    static __device__ __forceinline__ void decode(const uint8_t *block, uint32_t b, uint32_t row, uint32_t slot, uint32_t l,
                                                  const uint32_t *scratch, float *w)
    {
        const uint32_t word = *(const uint32_t *)(block + row * 64u + l * 4u);
        const uint4 scale = *(const uint4 *)(scratch + 16u * b + 4u * slot);
        /* upper bytes of binary16 */
        const uint32_t odd = ifx_and_or(word, 0x80808080u, word >> 3 & 0x0e0e0e0eu);
        const uint32_t even = ifx_and_or(word << 4, 0x80808080u, word << 1 & 0x0e0e0e0eu);
        ifx_half2_to_f32(product(__byte_perm(odd, 0u, 0x1404u), scale.x), w + 1, w + 3);
        ifx_half2_to_f32(product(__byte_perm(odd, 0u, 0x3424u), scale.y), w + 5, w + 7);
        ifx_half2_to_f32(product(__byte_perm(even, 0u, 0x1404u), scale.z), w + 0, w + 2);
        ifx_half2_to_f32(product(__byte_perm(even, 0u, 0x3424u), scale.w), w + 4, w + 6);
    }

    /* ---- wide ---- */

    /* A code at the end of a bf16 exponent and the start of its mantissa is its value times 2^-126.  The scales are taken
     * times 2^119, which the largest just bears: the product, exact in bf16, is the weight times 2^-7. */
    static constexpr float ACC_SCALE = 128.0f;

    static __device__ __forceinline__ void copy(uint32_t to, const uint8_t *panel, uint32_t step, uint32_t blocks, uint32_t lane)
    {
        (void)blocks;
        const uint8_t *from = panel + (uint64_t)step * BLOCK_BYTES + lane * 16u;
#pragma unroll
        for (uint32_t i = 0; i < BLOCK_BYTES / 16; i += 32u)
            if (i + lane < BLOCK_BYTES / 16)
                ifx_copy16(to + (i + lane) * 16u, from + i * 16u, 16u);
    }

    /* scratch[row][group]: the scales times 2^119 as bf16. */
    static __device__ __forceinline__ void prepare(const uint8_t *raw, uint32_t lane, uint8_t *scratch)
    {
        const uint2 eight = *(const uint2 *)(raw + 32 * 64 + lane * 8u);
        uint32_t out[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t pair = __byte_perm(i < 2 ? eight.x : eight.y, 0u, i % 2 ? 0x4342u : 0x4140u); /* bytes 0 and 2 */
            const uint32_t bits = (pair << 4 & 0x07f007f0u) | (pair << 8 & 0x80008000u);                 /* scale * 2^-120 */
            out[i] = ifx_mul_bf16x2(ifx_mul_bf16x2(bits, 0x7b807b80u), 0x7b007b00u);                     /* * 2^120 * 2^119 */
        }
        __syncwarp();
        *(uint4 *)(scratch + lane * 16u) = make_uint4(out[0], out[1], out[2], out[3]);
        __syncwarp();
    }

    /* Nibble i of both halves as bf16. */
    static __device__ __forceinline__ uint32_t codes(uint32_t halves, uint32_t i)
    {
        const uint32_t value = i == 0 ? halves << 6 : i == 1 ? halves << 2 : i == 2 ? halves >> 2 : halves >> 6;
        return ifx_and_or(halves << (12u - 4u * i), 0x80008000u, value & 0x01c001c0u);
    }

    enum { GROUP = 4 };
    struct group {
        uint32_t words[2]; /* the codes of the four steps: a half for each of two positions */
        uint2 scales;
    };

    static __device__ __forceinline__ void take(const uint8_t *raw, const uint8_t *scratch, uint32_t f, uint32_t j, uint32_t lane, group &g)
    {
        const uint32_t half = j < 4u ? 0x5410u : 0x7632u, row = 8u * f + lane / 4u;
        const uint8_t *line = raw + row * 64u + lane % 4u * 8u;
        const uint2 first = *(const uint2 *)line, second = *(const uint2 *)(line + 32);
        g.words[0] = __byte_perm(first.x, first.y, half);
        g.words[1] = __byte_perm(second.x, second.y, half);
        g.scales = *(const uint2 *)(scratch + row * 16u + j / 4u * 8u);
    }

    static __device__ __forceinline__ void fragment(const group &g, uint32_t j, uint32_t *b)
    {
        const uint32_t scale = __byte_perm(j % 4u < 2u ? g.scales.x : g.scales.y, 0u, j % 2u ? 0x3232u : 0x1010u);
        b[0] = ifx_mul_bf16x2(codes(g.words[0], j % 4u), scale);
        b[1] = ifx_mul_bf16x2(codes(g.words[1], j % 4u), scale);
    }
};

EXPERT_CUDA_KERNELS(nvfp4)
