/* SPDX-License-Identifier: Apache-2.0
 *
 * wide.cuh - the wide route on the GPU: all experts of a call with more than IFX_NARROW_COLUMNS columns as one grouped
 * product on tensor cores (mma.sync, bf16).
 *
 * expert_plan cuts the columns of each expert into tiles of at most 128; a block of threads makes one tile of 4 panels.
 * A warp has one panel (32 rows) and all columns of the tile, so that a weight is decoded once, straight from the record's
 * bytes in shared memory into the registers of a fragment; only columns pass through ldmatrix.  Columns and bytes come by
 * cp.async, STAGES steps of KS positions deep.  A tile is run by the body that has just enough fragments for its columns.
 *
 * The format is a class F:
 *   KS, STAGES           positions of a step, a multiple of BLOCK_K; depth of the ring
 *   RAW_BYTES            a panel's bytes of one step in shared memory
 *   SCRATCH_BYTES        a warp's scratch
 *   ACC_SCALE            what a product of fragments must be multiplied by
 *   copy(to, panel, step, blocks, lane)     one warp: cp.async of a panel's step
 *   prepare(raw, lane, scratch)             one warp, once a step
 *   GROUP, struct group  of how many times 16 positions a thread reads the weights at once, and what it then holds
 *   take(raw, scratch, f, j, lane, group)   panel rows 8 f .. 8 f + 7, positions 16 j .. 16 (j + GROUP) - 1
 *   fragment(group, j, b)                   of these the fragment b[2] of positions 16 j ..
 *   tensor_scale(record, matrix)
 */
#ifndef COMMON_EXPERT_WIDE_CUH
#define COMMON_EXPERT_WIDE_CUH

#include <infernix/cuda_tools.cuh>
#include <infernix/expert.h>

#include "cuda_args.h"

/* One block of 1024 threads: the tiles of all wide entries, in order. */
IFX_DEV void wide_plan(const struct expert_cuda_args &a)
{
    __shared__ uint32_t sums[32];
    uint32_t base = 0;
    ifx_wait_for_last();
    ifx_let_next_start();
    for (uint32_t first = 0; first < a.n_entries; first += 1024u) {
        const uint32_t entry = first + threadIdx.x, lane = threadIdx.x % 32u;
        uint32_t count = 0, offset = 0, expert = UINT32_MAX;
        if (entry < a.n_entries && a.records[entry] != NULL)
            expert = a.experts ? a.experts[entry] : entry;
        if (expert != UINT32_MAX) {
            offset = a.offsets[expert];
            count = a.offsets[expert + 1] - offset;
        }
        const uint32_t tiles = count > IFX_NARROW_COLUMNS ? (count + EXPERT_WIDE_COLUMNS - 1u) / EXPERT_WIDE_COLUMNS : 0u;
        uint32_t sum = tiles;
        for (uint32_t d = 1; d < 32u; d *= 2u) {
            const uint32_t below = __shfl_up_sync(0xffffffffu, sum, d);
            sum += lane >= d ? below : 0u;
        }
        __syncthreads();
        if (lane == 31u)
            sums[threadIdx.x / 32u] = sum;
        __syncthreads();
        uint32_t before = base;
        for (uint32_t w = 0; w < 32u; w++) {
            before += w < threadIdx.x / 32u ? sums[w] : 0u;
            base += sums[w];
        }
        before += sum - tiles;
        /* tiles of one length, a multiple of 16: a short rest would cost as much decoding as a full tile */
        const uint32_t length = tiles ? ((count + 15u) / 16u + tiles - 1u) / tiles * 16u : 0u;
        for (uint32_t i = 0; i < tiles; i++) {
            const uint32_t from = i * length;
            const struct expert_tile tile = {entry, from, from >= count ? 0u : count - from < length ? count - from : length, offset};
            a.tiles[before + i] = tile;
        }
    }
    if (threadIdx.x == 0)
        *a.n_tiles = base;
}

/* ---- one tile ---- */

/* 8 positions of a column that no 16-byte load can take. */
IFX_DEV void wide_gather(uint32_t to, const uint16_t *x, uint32_t n)
{
    uint32_t v[4] = {0, 0, 0, 0};
#pragma unroll
    for (uint32_t i = 0; i < 8u; i++)
        v[i / 2u] |= i < n ? (uint32_t)x[i] << 16u * (i % 2u) : 0u;
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

template <class F, bool DOWN> struct wide_tile {
    const struct expert_cuda_args &a;
    struct expert_tile t;
    const uint8_t *record;
    const uint8_t *panel; /* this warp's */
    uint32_t blocks, steps, k_count;
    uint8_t *x;           /* ring of column tiles */
    uint8_t *raw;         /* ring of this warp's panel */
    uint8_t *scratch;
    const uint16_t *const *columns; /* of the tile; past its end the first again */
    bool aligned;                   /* they are at 16-byte boundaries */

    static const uint32_t X_STAGE = EXPERT_WIDE_COLUMNS * F::KS * 2;
    static const uint32_t RAW_STAGE = EXPERT_WIDE_PANELS * F::RAW_BYTES;

    /* The addresses of a thread's pieces lie whole rows of 8 apart, so that their place in a row is one. */
    template <int MF> __device__ __forceinline__ void load_columns(uint32_t step) const
    {
        const uint32_t chunks = F::KS / 8, per_pass = EXPERT_WIDE_THREADS / chunks;
        const uint32_t chunk = threadIdx.x % chunks, row = threadIdx.x / chunks, k = step * F::KS + chunk * 8u;
        const uint32_t n = k < k_count ? (k_count - k < 8u ? k_count - k : 8u) : 0u;
        const uint64_t skip = n ? k : 0u;
        const uint32_t to = ifx_smem(x) + step % F::STAGES * X_STAGE + row * (F::KS * 2u) + ((chunk ^ (row % 8u)) * 16u);
#pragma unroll
        for (uint32_t i = 0; i < MF * 16u / per_pass; i++) {
            const uint16_t *from = columns[row + i * per_pass] + skip;
            if (aligned)
                ifx_copy16(to + i * (per_pass * F::KS * 2u), from, n * 2u);
            else
                wide_gather(to + i * (per_pass * F::KS * 2u), from, n);
        }
    }

    template <int MF> __device__ __forceinline__ void load(uint32_t step) const
    {
        if (step < steps) {
            load_columns<MF>(step);
            if (panel != NULL)
                F::copy(ifx_smem(raw) + step % F::STAGES * RAW_STAGE, panel, step, blocks, threadIdx.x % 32u);
        }
        ifx_copy_commit();
    }

    template <int MF> __device__ __forceinline__ void multiply(uint32_t step, float (*acc)[4][4]) const
    {
        const uint32_t lane = threadIdx.x % 32u;
        const uint8_t *bytes = raw + step % F::STAGES * RAW_STAGE;
        const uint32_t tile = ifx_smem(x) + step % F::STAGES * X_STAGE + (lane % 16u) * (F::KS * 2u);
        F::prepare(bytes, lane, scratch);
#pragma unroll
        for (uint32_t j0 = 0; j0 < F::KS / 16; j0 += F::GROUP) {
            typename F::group w[4];
#pragma unroll
            for (uint32_t f = 0; f < 4; f++)
                F::take(bytes, scratch, f, j0, lane, w[f]);
#pragma unroll
            for (uint32_t j = j0; j < j0 + F::GROUP; j++) {
                uint32_t b[4][2];
#pragma unroll
                for (uint32_t f = 0; f < 4; f++)
                    F::fragment(w[f], j, b[f]);
                const uint32_t chunk = ((2u * j + lane / 16u) ^ (lane % 8u)) * 16u;
#pragma unroll
                for (uint32_t m = 0; m < MF; m++) {
                    uint32_t v[4];
                    ifx_load_matrix(v, tile + m * (16u * F::KS * 2u) + chunk);
#pragma unroll
                    for (uint32_t f = 0; f < 4; f++)
                        ifx_mma(acc[m][f], v, b[f][0], b[f][1]);
                }
            }
        }
    }

    template <int MF> __device__ __forceinline__ void store_hidden(float (*acc)[4][4]) const
    {
        const uint32_t lane = threadIdx.x % 32u, p = blockIdx.x * EXPERT_WIDE_PANELS + threadIdx.x / 32u;
        const float gs = F::tensor_scale(record, IFX_GATE) * F::ACC_SCALE, us = F::tensor_scale(record, IFX_UP) * F::ACC_SCALE;
#pragma unroll
        for (uint32_t m = 0; m < MF; m++)
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                const uint32_t c = 16u * m + 8u * half + lane / 4u;
                if (c >= t.count)
                    continue;
                uint16_t *to = a.hidden + (uint64_t)(t.offset + t.from + c) * a.ldh + p * 16u + 2u * (lane % 4u);
#pragma unroll
                for (uint32_t f = 0; f < 2; f++) {
                    float h[2];
#pragma unroll
                    for (uint32_t i = 0; i < 2; i++) {
                        const float g = acc[m][f][2 * half + i] * gs, u = acc[m][f + 2][2 * half + i] * us;
                        h[i] = __fdividef(g, 1.0f + __expf(-g)) * u;
                    }
                    *(uint32_t *)(to + 8u * f) = ifx_pack_bf16(h[0], h[1]);
                }
            }
    }

    template <int MF> __device__ __forceinline__ void store_y(float (*acc)[4][4]) const
    {
        const uint32_t lane = threadIdx.x % 32u, p = blockIdx.x * EXPERT_WIDE_PANELS + threadIdx.x / 32u;
        const float scale = F::tensor_scale(record, IFX_DOWN) * F::ACC_SCALE;
        const bool pairs = a.ldy % 2u == 0 && (uintptr_t)a.y % 8u == 0;
#pragma unroll
        for (uint32_t m = 0; m < MF; m++)
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                const uint32_t c = 16u * m + 8u * half + lane / 4u;
                if (c >= t.count)
                    continue;
                float *to = a.y + (uint64_t)a.rows[t.offset + t.from + c] * a.ldy;
#pragma unroll
                for (uint32_t f = 0; f < 4; f++) {
                    const uint32_t row = p * 32u + 8u * f + 2u * (lane % 4u);
                    const float v0 = acc[m][f][2 * half] * scale, v1 = acc[m][f][2 * half + 1] * scale;
                    if (pairs && row + 1u < a.hidden_size) {
                        *(float2 *)(to + row) = make_float2(v0, v1);
                    } else {
                        if (row < a.hidden_size)
                            to[row] = v0;
                        if (row + 1u < a.hidden_size)
                            to[row + 1u] = v1;
                    }
                }
            }
    }

    template <int MF> __device__ __forceinline__ void run(void) const
    {
        float acc[MF][4][4];
#pragma unroll
        for (uint32_t m = 0; m < MF; m++)
#pragma unroll
            for (uint32_t f = 0; f < 4; f++)
#pragma unroll
                for (uint32_t i = 0; i < 4; i++)
                    acc[m][f][i] = 0.0f;
        for (uint32_t s = 0; s + 1u < F::STAGES; s++)
            load<MF>(s);
        for (uint32_t s = 0; s < steps; s++) {
            ifx_copy_wait<F::STAGES - 2>();
            __syncthreads();
            load<MF>(s + F::STAGES - 1u);
            if (panel != NULL)
                multiply<MF>(s, acc);
        }
        if (panel == NULL)
            return;
        if (DOWN)
            store_y<MF>(acc);
        else
            store_hidden<MF>(acc);
    }
};

/* Grid: panels / 4, tiles at most.  Shared memory: EXPERT_WIDE_SHARED. */
template <class F, bool DOWN> IFX_DEV void wide_kernel(const struct expert_cuda_args &a, uint8_t *shared)
{
    ifx_wait_for_last();
    ifx_let_next_start();
    if (blockIdx.y >= *a.n_tiles)
        return;
    const uint32_t warp = threadIdx.x / 32u, p = blockIdx.x * EXPERT_WIDE_PANELS + warp;
    wide_tile<F, DOWN> w = {a, a.tiles[blockIdx.y]};
    const uint16_t **columns = (const uint16_t **)shared;
    if (w.t.count == 0)
        return;
    w.record = (const uint8_t *)a.records[w.t.entry];
    w.blocks = DOWN ? a.down_blocks : a.gu_blocks;
    w.k_count = DOWN ? a.inter : a.hidden_size;
    w.steps = (w.k_count + F::KS - 1u) / F::KS;
    w.panel = NULL;
    if (p < (DOWN ? a.down_panels : a.gu_panels))
        w.panel = w.record + (DOWN ? a.down_offset : (uint64_t)F::HEADER) + (uint64_t)p * w.blocks * F::BLOCK_BYTES;
    w.columns = columns;
    w.aligned = (DOWN ? a.ldh % 8u == 0 && (uintptr_t)a.hidden % 16u == 0 : a.ldx % 8u == 0 && (uintptr_t)a.x % 16u == 0);
    w.scratch = shared + 1024 + warp * F::SCRATCH_BYTES;
    w.x = shared + 1024 + EXPERT_WIDE_PANELS * F::SCRATCH_BYTES;
    w.raw = w.x + F::STAGES * wide_tile<F, DOWN>::X_STAGE + warp * F::RAW_BYTES;
    if (threadIdx.x < EXPERT_WIDE_COLUMNS) {
        const uint32_t c = threadIdx.x < w.t.count ? threadIdx.x : 0u, at = w.t.offset + w.t.from + c;
        columns[threadIdx.x] = DOWN ? a.hidden + at * a.ldh : a.x + (uint64_t)(a.rows[at] / a.top_k) * a.ldx;
    }
    __syncthreads();
    switch ((w.t.count + 31u) / 32u) {
    case 1: w.template run<2>(); break;
    case 2: w.template run<4>(); break;
    case 3: w.template run<6>(); break;
    default: w.template run<8>(); break;
    }
}

#include "wide_sm90.cuh"

/* The kernels of a bank, all of them; F in an unnamed namespace of the file that says this. */
#define EXPERT_CUDA_KERNELS(F)                                                                                                        \
    extern __shared__ __align__(128) uint8_t expert_shared[];                                                                         \
    extern "C" __global__ void __launch_bounds__(EXPERT_NARROW_THREADS, 3)                                                            \
        expert_narrow_gate_up(const __grid_constant__ struct expert_cuda_args a)                                                      \
    {                                                                                                                                 \
        narrow_kernel<F, false>(a, expert_shared);                                                                                    \
    }                                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(EXPERT_NARROW_THREADS, 3)                                                            \
        expert_narrow_down(const __grid_constant__ struct expert_cuda_args a)                                                         \
    {                                                                                                                                 \
        narrow_kernel<F, true>(a, expert_shared);                                                                                     \
    }                                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(1024) expert_plan(const __grid_constant__ struct expert_cuda_args a)                 \
    {                                                                                                                                 \
        wide_plan(a);                                                                                                                 \
    }                                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(EXPERT_WIDE_THREADS)                                                                 \
        expert_wide_gate_up(const __grid_constant__ struct expert_cuda_args a)                                                        \
    {                                                                                                                                 \
        wide_kernel<F, false>(a, expert_shared);                                                                                      \
    }                                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(EXPERT_WIDE_THREADS)                                                                 \
        expert_wide_down(const __grid_constant__ struct expert_cuda_args a)                                                           \
    {                                                                                                                                 \
        wide_kernel<F, true>(a, expert_shared);                                                                                       \
    }                                                                                                                                 \
    EXPERT_GROUPED_KERNELS(F)

#endif
