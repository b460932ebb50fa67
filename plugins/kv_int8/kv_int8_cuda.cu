/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_int8_cuda.cu - the KV format int8 on CUDA devices; format.h has the rules that store follows bit for bit.
 */
#include <infernix/kv_skeleton.cuh>

struct int8_rows {
    enum { DIRECT = 0, WARPS = 8, GROUP = 64 };

    static __device__ __forceinline__ void load(const uint8_t *row, uint32_t d, uint32_t i, uint32_t out[4])
    {
        const float scale = ifx_half_to_f32(*(const uint16_t *)(row + d + i / GROUP * 2u));
        uint2 codes;
        if (((uintptr_t)row & 7u) == 0) {
            codes = *(const uint2 *)(row + i);
        } else {
            const uint16_t *two = (const uint16_t *)(row + i);
            codes = make_uint2(two[0] | (uint32_t)two[1] << 16, two[2] | (uint32_t)two[3] << 16);
        }
        codes.x ^= 0x80808080u;
        codes.y ^= 0x80808080u;
        out[0] = ifx_i8_scaled<0>(codes.x, scale);
        out[1] = ifx_i8_scaled<2>(codes.x, scale);
        out[2] = ifx_i8_scaled<0>(codes.y, scale);
        out[3] = ifx_i8_scaled<2>(codes.y, scale);
    }

    /* Smallest binary16 >= x for finite x >= 0, at most 65504. */
    static __device__ __forceinline__ uint16_t scale_up(float x)
    {
        if (x >= 65504.0f)
            return 0x7bffu;
        const uint16_t h = ifx_f32_to_f16(x);
        return ifx_f16_to_f32(h) < x ? (uint16_t)(h + 1u) : h;
    }

    static __device__ __forceinline__ uint32_t code(float x, float scale)
    {
        float q = x / scale;
        q = q > 127.0f ? 127.0f : q;
        q = q < -127.0f ? -127.0f : q;
        return ifx_f32_bits(q + IFX_EXP_MAGIC) & 0xffu;
    }

    /* A lane has two values of a group. */
    static __device__ __forceinline__ void store(const float *x, uint32_t d, uint8_t *row, uint32_t lane)
    {
        for (uint32_t i = 0; i < d; i += GROUP) {
            const uint32_t at = i + 2u * lane;
            const float x0 = at < d ? x[at] : 0.0f, x1 = at < d ? x[at + 1u] : 0.0f;
            float amax = fmaxf(fabsf(x0), fabsf(x1));
            const bool odd = __any_sync(0xffffffffu, !(fabsf(x0) < INFINITY) || !(fabsf(x1) < INFINITY));
            for (int step = 16; step > 0; step /= 2)
                amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, step));
            const uint16_t scale = odd ? (uint16_t)0x7e00u : scale_up(amax / 127.0f);
            const float s = ifx_f16_to_f32(scale);
            const bool none = odd || scale == 0;
            const uint32_t codes = none ? 0u : code(x0, s) | code(x1, s) << 8;
            if (at < d)
                *(uint16_t *)(row + at) = (uint16_t)codes;
            if (lane == 0)
                *(uint16_t *)(row + d + i / GROUP * 2u) = scale;
        }
    }
};

IFX_KV_CUDA_KERNELS(int8_rows)
