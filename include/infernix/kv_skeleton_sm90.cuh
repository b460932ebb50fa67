/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_skeleton_sm90.cuh - attention of prompts on Hopper (sm_90a) for formats whose rows are bf16 as they lie, heads of up to 256: 128
 * query rows a block, 64 a warpgroup, which share tiles of 64 tokens of K and V; wgmma makes the products.  Included by kv_skeleton.cuh, where
 * the rest is told; other architectures, formats and heads have the kernels there.
 */
#ifndef INFERNIX_KV_SKELETON_SM90_CUH
#define INFERNIX_KV_SKELETON_SM90_CUH

#include <infernix/cuda_wgmma.cuh>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

enum {
    IFX_KVC_HOPPER_TOKENS = 64,                                 /* of a tile */
    IFX_KVC_HOPPER_PIECE = IFX_KVC_HOPPER_TOKENS * 128,         /* bytes of 64 values of all tokens */
    IFX_KVC_HOPPER_TILE = 4 * IFX_KVC_HOPPER_PIECE,             /* K or V */
    IFX_KVC_HOPPER_Q = IFX_KVC_HOPPER_ROWS * 128 /* bytes of 64 values of all query rows */
};

struct ifx_kvc_hopper {
    const struct ifx_kvc_args &a;
    struct ifx_kvc_work w;
    uint8_t *q, *k, *v; /* q: [4][rows][128]; k, v: two tiles each, [4][tokens][128] */
    uint32_t *bad;      /* [8] */

    /* Row i of the warp's 8 tokens by all lanes, 16 bytes each. */
    __device__ __forceinline__ void request(uint32_t t, uint32_t slot) const
    {
        const uint32_t warp = threadIdx.x / 32u, lane = threadIdx.x % 32u;
        if (t < w.t1) {
            const uint64_t mine = ifx_kvc_address(a, w, t + 8u * warp + lane % 8u), none = (uint64_t)(uintptr_t)a.pages & ~15ull;
            const uint32_t to = slot * IFX_KVC_HOPPER_TILE + lane / 8u * IFX_KVC_HOPPER_PIECE + warp * 1024u;
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) {
                const uint64_t row = __shfl_sync(0xffffffffu, mine, i);
                const uint32_t bytes = row != 0 && lane * 8u < a.d ? 16u : 0u, at = to + i * 128u + ((lane % 8u ^ i) << 4);
                const uint64_t from = bytes ? row + lane * 16u : none;
                ifx_copy16(ifx_smem(k) + at, (const void *)(uintptr_t)from, bytes);
                ifx_copy16(ifx_smem(v) + at, (const void *)(uintptr_t)(bytes ? from + a.page_tokens * a.row_bytes : none), bytes);
            }
        }
        ifx_copy_commit();
    }

    __device__ __forceinline__ void load_q(void) const
    {
#pragma unroll 2
        for (uint32_t i = threadIdx.x; i < IFX_KVC_HOPPER_ROWS * 32u; i += IFX_KVC_HOPPER_THREADS) {
            const uint32_t row = i / 32u, c = i % 32u;
            uint32_t x[4] = {0, 0, 0, 0}, query, head;
            if (row < w.rows && c * 8u < a.d) {
                ifx_kvc_row(a, w, row, &query, &head);
                const float *from = a.q + query * a.ldq + head * a.ldq_head + c * 8u;
#pragma unroll
                for (int j = 0; j < 4; j++)
                    x[j] = ifx_pack_bf16(from[2 * j], from[2 * j + 1]);
            }
            *(uint4 *)(q + c / 8u * IFX_KVC_HOPPER_Q + row * 128u + ((c % 8u ^ row % 8u) << 4)) = make_uint4(x[0], x[1], x[2], x[3]);
        }
    }

    /* As ifx_kvc_disarm; a warp looks through 8 tokens. */
    __device__ __forceinline__ uint64_t disarm(uint8_t *values) const
    {
        const uint32_t warp = threadIdx.x / 32u, lane = threadIdx.x % 32u;
        uint32_t found = 0;
        for (uint32_t i = 0; i < 8; i++) {
            uint4 *piece = (uint4 *)(values + lane / 8u * IFX_KVC_HOPPER_PIECE + warp * 1024u + i * 128u + ((lane % 8u ^ i) << 4));
            const uint32_t x[4] = {piece->x, piece->y, piece->z, piece->w};
            uint32_t odd = 0;
#pragma unroll
            for (int j = 0; j < 4; j++)
                odd |= (uint32_t)((x[j] & 0x7f80u) == 0x7f80u) | (uint32_t)((x[j] & 0x7f800000u) == 0x7f800000u);
            if (odd) {
                *piece = make_uint4(0, 0, 0, 0);
                found |= 1u << i;
            }
        }
        found = __reduce_or_sync(0xffffffffu, found);
        if (lane == 0)
            bad[warp] = found;
        ifx_barrier_publish();
        __syncthreads();
        uint64_t all = 0;
        for (uint32_t i = 0; i < 8; i++)
            all |= (uint64_t)bad[i] << 8u * i;
        return all;
    }

    __device__ __forceinline__ void scores(uint32_t slot, float *s) const
    {
        const uint32_t from = ifx_smem(q) + threadIdx.x / 128u * (64u * 128u), to = ifx_smem(k) + slot * IFX_KVC_HOPPER_TILE;
#pragma unroll
        for (uint32_t i = 0; i < 32; i++)
            s[i] = 0.0f;
        ifx_wgmma_begin();
#pragma unroll
        for (uint32_t j = 0; j < 16; j++)
            ifx_wgmma_64(s, ifx_wgmma_rows(from + j / 4u * IFX_KVC_HOPPER_Q + j % 4u * 32u),
                         ifx_wgmma_rows(to + j / 4u * IFX_KVC_HOPPER_PIECE + j % 4u * 32u));
        ifx_wgmma_commit();
        ifx_wgmma_wait<0>();
    }

    __device__ __forceinline__ void values(uint32_t slot, const float (*p)[4], float *o) const
    {
        const uint32_t from = ifx_smem(v) + slot * IFX_KVC_HOPPER_TILE;
        uint32_t x[4][4];
#pragma unroll
        for (uint32_t t = 0; t < 4; t++) {
            x[t][0] = ifx_pack_bf16(p[2 * t][0], p[2 * t][1]);
            x[t][1] = ifx_pack_bf16(p[2 * t][2], p[2 * t][3]);
            x[t][2] = ifx_pack_bf16(p[2 * t + 1][0], p[2 * t + 1][1]);
            x[t][3] = ifx_pack_bf16(p[2 * t + 1][2], p[2 * t + 1][3]);
        }
        ifx_wgmma_begin();
#pragma unroll
        for (uint32_t t = 0; t < 4; t++)
            ifx_wgmma_columns_256(o, x[t], ifx_wgmma_columns(from + t * 2048u, IFX_KVC_HOPPER_PIECE));
        ifx_wgmma_commit();
        ifx_wgmma_wait<0>();
    }

    __device__ __forceinline__ void run(struct ifx_kvc_state<256> &x, uint32_t least) const
    {
        uint32_t slot = 0;
        request(w.t0, 0);
        load_q();
        for (uint32_t t = w.t0; t < w.t1; t += IFX_KVC_HOPPER_TOKENS, slot ^= 1u) {
            float s[8][4];
            ifx_copy_wait<0>();
            ifx_barrier_publish();
            __syncthreads(); /* the tile is there, and nobody reads the other any more */
            request(t + IFX_KVC_HOPPER_TOKENS, slot ^ 1u);
            scores(slot, s[0]);
            x.template soften<IFX_KVC_HOPPER_TOKENS>(s, t, a.scale);
            if (t + IFX_KVC_HOPPER_TOKENS > least) { /* some row of the block does not see all of it */
                const uint64_t found = disarm(v + slot * IFX_KVC_HOPPER_TILE);
                if (found)
                    x.template poison<IFX_KVC_HOPPER_TOKENS>(s, t, found);
            }
            values(slot, s, x.o[0]);
        }
        ifx_copy_wait<0>();
    }
};

IFX_DEV void ifx_kvc_hopper_kernel(const struct ifx_kvc_args &a, uint8_t *shared)
{
    const uint32_t g = threadIdx.x / 32u * 16u + threadIdx.x % 32u / 4u;
    shared += (1024u - ifx_smem(shared) % 1024u) % 1024u;
    struct ifx_kvc_hopper p = {a, ifx_kvc_open_work<IFX_KVC_HOPPER_ROWS>(a)};
    p.q = shared;
    p.k = p.q + 4 * IFX_KVC_HOPPER_Q;
    p.v = p.k + 2 * IFX_KVC_HOPPER_TILE;
    p.bad = (uint32_t *)(p.v + 2 * IFX_KVC_HOPPER_TILE);
    struct ifx_kvc_state<256> x;
    x.clear();
    x.limit[0] = ifx_kvc_limit(a, p.w, g);
    x.limit[1] = ifx_kvc_limit(a, p.w, g + 8u);
    p.run(x, ifx_kvc_limit(a, p.w, 0));
    ifx_kvc_put_state<256>(a, p.w, x, g);
}

/* For a format that is not DIRECT there is none. */
template <class F, bool DIRECT> struct ifx_kvc_hopper_of {
    static __device__ __forceinline__ void run(const struct ifx_kvc_args &a, uint8_t *shared)
    {
        ifx_kvc_hopper_kernel(a, shared);
    }
};
template <class F> struct ifx_kvc_hopper_of<F, false> {
    static __device__ __forceinline__ void run(const struct ifx_kvc_args &a, uint8_t *shared)
    {
        (void)a;
        (void)shared;
    }
};

#define IFX_KVC_HOPPER_KERNELS(F)                                                                                 \
    extern "C" __global__ void __launch_bounds__(IFX_KVC_HOPPER_THREADS)                                          \
        kv_prefill_hopper(const __grid_constant__ struct ifx_kvc_args a)                                          \
    {                                                                                                             \
        ifx_let_next_start();                                                                                     \
        ifx_wait_for_last();                                                                                      \
        ifx_kvc_hopper_of<F, F::DIRECT != 0>::run(a, ifx_kvc_memory);                                             \
    }

#else
#define IFX_KVC_HOPPER_KERNELS(F)
#endif
#endif
