/* SPDX-License-Identifier: Apache-2.0
 *
 * wide_sm90.cuh - the wide route on Hopper: the same grouped product as wide.cuh with wgmma, whose peak mma.sync does not reach there.
 * Compiled for sm_90a only; every other architecture has wide.cuh.
 *
 * A block makes one tile of expert_plan for 4 panels, a warpgroup two of them.  The weights are the operand in registers, decoded
 * as for mma.sync: a fragment's first 8 rows are fragment f of the panel, its last 8 rows f + 2, so that a thread has gate and up of the
 * same hidden values.  The columns lie in shared memory, 64 positions a row, in the layout that the swizzle of 128 bytes expects.  While one step of
 * 16 positions is multiplied, the weights of the next are decoded.
 */
#ifndef COMMON_EXPERT_WIDE_SM90_CUH
#define COMMON_EXPERT_WIDE_SM90_CUH

#include <infernix/cuda_wgmma.cuh>
#include <infernix/expert.h>

#include "cuda_args.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

enum { GROUPED_THREADS = EXPERT_GROUPED_THREADS, GROUPED_SPAN = EXPERT_WIDE_COLUMNS * 128 /* bytes of 64 positions of all columns */ };

template <class F, bool DOWN> struct grouped_tile {
    const struct expert_cuda_args &a;
    struct expert_tile t;
    const uint8_t *record;
    const uint8_t *panel; /* this warp's, shared with the next or the last; NULL: past the end */
    uint32_t p, half;     /* panel; 0, 1: fragments 0 and 2, 1 and 3 of it */
    uint32_t blocks, steps, k_count;
    uint32_t x;           /* shared address of the ring of columns */
    uint8_t *raw;         /* ring of this warp's panel */
    uint8_t *scratch;
    const uint16_t *const *columns;
    bool aligned;

    static const uint32_t X_STAGE = F::KS / 64 * GROUPED_SPAN;
    static const uint32_t RAW_STAGE = EXPERT_WIDE_PANELS * F::RAW_BYTES;

    template <int N> __device__ __forceinline__ void load_columns(uint32_t step) const
    {
        const uint32_t chunks = F::KS / 8, per_pass = GROUPED_THREADS / chunks;
        const uint32_t chunk = threadIdx.x % chunks, row = threadIdx.x / chunks, k = step * F::KS + chunk * 8u;
        const uint32_t n = k < k_count ? (k_count - k < 8u ? k_count - k : 8u) : 0u;
        const uint64_t skip = n ? k : 0u;
        const uint32_t to = x + step % F::STAGES * X_STAGE + chunk / 8u * GROUPED_SPAN + row * 128u + ((chunk % 8u ^ row % 8u) * 16u);
#pragma unroll
        for (uint32_t i = 0; i < (N + per_pass - 1) / per_pass; i++) {
            const uint16_t *from = columns[row + i * per_pass] + skip;
            if (aligned)
                ifx_copy16(to + i * (per_pass * 128u), from, n * 2u);
            else
                wide_gather(to + i * (per_pass * 128u), from, n);
        }
    }

    template <int N> __device__ __forceinline__ void load(uint32_t step) const
    {
        if (step < steps) {
            load_columns<N>(step);
            if (panel != NULL && half == 0)
                F::copy(ifx_smem(raw) + step % F::STAGES * RAW_STAGE, panel, step, blocks, threadIdx.x % 32u);
        }
        ifx_copy_commit();
    }

    template <int N> __device__ __forceinline__ void multiply(uint32_t step, float *d) const
    {
        const uint32_t lane = threadIdx.x % 32u, from = x + step % F::STAGES * X_STAGE;
        const uint8_t *bytes = raw + step % F::STAGES * RAW_STAGE;
        uint32_t w[2][4];
        F::prepare(bytes, lane, scratch);
#pragma unroll
        for (uint32_t j0 = 0; j0 < F::KS / 16; j0 += F::GROUP) {
            typename F::group g[2];
            F::take(bytes, scratch, half, j0, lane, g[0]);
            F::take(bytes, scratch, half + 2u, j0, lane, g[1]);
#pragma unroll
            for (uint32_t j = j0; j < j0 + F::GROUP; j++) {
                uint32_t b[2][2], *now = w[j % 2u];
                F::fragment(g[0], j, b[0]);
                F::fragment(g[1], j, b[1]);
                if (j >= 2)
                    ifx_wgmma_wait<1>(); /* what used these registers last */
                now[0] = b[0][0], now[1] = b[1][0], now[2] = b[0][1], now[3] = b[1][1];
                ifx_wgmma_begin();
                ifx_wgmma<N>::run(d, now, ifx_wgmma_rows(from + j / 4u * GROUPED_SPAN + j % 4u * 32u));
                ifx_wgmma_commit();
            }
        }
        ifx_wgmma_wait<0>();
    }

    template <int N> __device__ __forceinline__ void store_hidden(const float *d) const
    {
        const uint32_t lane = threadIdx.x % 32u;
        const float gs = F::tensor_scale(record, IFX_GATE) * F::ACC_SCALE, us = F::tensor_scale(record, IFX_UP) * F::ACC_SCALE;
        uint16_t *to = a.hidden + (uint64_t)(t.offset + t.from) * a.ldh + p * 16u + half * 8u + lane / 4u;
#pragma unroll
        for (uint32_t i = 0; i < N / 8; i++)
#pragma unroll
            for (uint32_t e = 0; e < 2; e++) {
                const uint32_t c = 8u * i + 2u * (lane % 4u) + e;
                const float g = d[4 * i + e] * gs, u = d[4 * i + 2 + e] * us;
                if (c < t.count)
                    to[c * a.ldh] = ifx_f32_to_bf16(__fdividef(g, 1.0f + __expf(-g)) * u);
            }
    }

    template <int N> __device__ __forceinline__ void store_y(const float *d) const
    {
        const uint32_t lane = threadIdx.x % 32u, row = p * 32u + half * 8u + lane / 4u;
        const float scale = F::tensor_scale(record, IFX_DOWN) * F::ACC_SCALE;
#pragma unroll
        for (uint32_t i = 0; i < N / 8; i++)
#pragma unroll
            for (uint32_t e = 0; e < 2; e++) {
                const uint32_t c = 8u * i + 2u * (lane % 4u) + e;
                if (c >= t.count)
                    continue;
                float *to = a.y + (uint64_t)a.rows[t.offset + t.from + c] * a.ldy + row;
                if (row < a.hidden_size)
                    to[0] = d[4 * i + e] * scale;
                if (row + 16u < a.hidden_size)
                    to[16] = d[4 * i + 2 + e] * scale;
            }
    }

    template <int N> __device__ __forceinline__ void run(void) const
    {
        float d[N / 2];
#pragma unroll
        for (uint32_t i = 0; i < N / 2; i++)
            d[i] = 0.0f;
        for (uint32_t s = 0; s + 1u < F::STAGES; s++)
            load<N>(s);
        for (uint32_t s = 0; s < steps; s++) {
            ifx_copy_wait<F::STAGES - 2>();
            ifx_barrier_publish(); /* to the tensor cores, which read past the threads' view */
            __syncthreads();
            load<N>(s + F::STAGES - 1u);
            multiply<N>(s, d);
        }
        if (panel == NULL)
            return;
        if (DOWN)
            store_y<N>(d);
        else
            store_hidden<N>(d);
    }
};

/* Grid: panels / 4, tiles at most.  Shared memory: EXPERT_GROUPED_SHARED. */
template <class F, bool DOWN> IFX_DEV void grouped_kernel(const struct expert_cuda_args &a, uint8_t *shared)
{
    ifx_wait_for_last();
    ifx_let_next_start();
    if (blockIdx.y >= *a.n_tiles)
        return;
    const uint32_t warp = threadIdx.x / 32u;
    grouped_tile<F, DOWN> w = {a, a.tiles[blockIdx.y]};
    if (w.t.count == 0)
        return;
    shared += (1024u - ifx_smem(shared) % 1024u) % 1024u;
    uint8_t *area = shared + F::STAGES * grouped_tile<F, DOWN>::X_STAGE;
    const uint16_t **columns = (const uint16_t **)area;
    w.p = blockIdx.x * EXPERT_WIDE_PANELS + warp / 2u;
    w.half = warp % 2u;
    w.record = (const uint8_t *)a.records[w.t.entry];
    w.blocks = DOWN ? a.down_blocks : a.gu_blocks;
    w.k_count = DOWN ? a.inter : a.hidden_size;
    w.steps = (w.k_count + F::KS - 1u) / F::KS;
    w.panel = NULL;
    if (w.p < (DOWN ? a.down_panels : a.gu_panels))
        w.panel = w.record + (DOWN ? a.down_offset : (uint64_t)F::HEADER) + (uint64_t)w.p * w.blocks * F::BLOCK_BYTES;
    w.columns = columns;
    w.aligned = (DOWN ? a.ldh % 8u == 0 && (uintptr_t)a.hidden % 16u == 0 : a.ldx % 8u == 0 && (uintptr_t)a.x % 16u == 0);
    w.x = ifx_smem(shared);
    w.scratch = area + 1024 + warp * F::SCRATCH_BYTES;
    w.raw = area + 1024 + 2 * EXPERT_WIDE_PANELS * F::SCRATCH_BYTES + warp / 2u * F::RAW_BYTES;
    if (threadIdx.x < EXPERT_WIDE_COLUMNS) {
        const uint32_t c = threadIdx.x < w.t.count ? threadIdx.x : 0u, at = w.t.offset + w.t.from + c;
        columns[threadIdx.x] = DOWN ? a.hidden + at * a.ldh : a.x + (uint64_t)(a.rows[at] / a.top_k) * a.ldx;
    }
    __syncthreads();
    switch ((w.t.count + 31u) / 32u) {
    case 1: w.template run<32>(); break;
    case 2: w.template run<64>(); break;
    case 3: w.template run<96>(); break;
    default: w.template run<128>(); break;
    }
}

#define EXPERT_GROUPED_KERNELS(F)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(EXPERT_GROUPED_THREADS, 2)                                                           \
        expert_grouped_gate_up(const __grid_constant__ struct expert_cuda_args a)                                                     \
    {                                                                                                                                 \
        grouped_kernel<F, false>(a, expert_shared);                                                                                   \
    }                                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(EXPERT_GROUPED_THREADS, 2)                                                           \
        expert_grouped_down(const __grid_constant__ struct expert_cuda_args a)                                                        \
    {                                                                                                                                 \
        grouped_kernel<F, true>(a, expert_shared);                                                                                    \
    }

#else
#define EXPERT_GROUPED_KERNELS(F)
#endif
#endif
