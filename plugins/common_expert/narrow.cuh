/* SPDX-License-Identifier: Apache-2.0
 *
 * narrow.cuh - the narrow route on the GPU: experts of at most IFX_NARROW_COLUMNS columns in the canonical order of
 * numerics.h, each record read once for all columns of its expert.
 *
 * A block of threads makes some panels (32 rows) one after the other.  One thread asks the copy engine for them, stage by
 * stage, before anything else is known; a ring of stages in shared memory takes them, so that what is under way does not
 * depend on registers.  Columns that fit in shared memory are fetched once for all panels.  Half a warp is the 16 accumulators of a row: thread l of it has lane l of four rows, so that a value of x
 * is read once for four rows, and a record's line is read without bank conflicts.
 *
 * The format is a class F:
 *   BLOCK_K, BLOCK_BYTES, ROW_SCALES, HEADER        as in bank.h
 *   VECTOR                                          positions of a lane that lie together in shared memory: 2 or 4
 *   X_SCALE                                         a power of two by which x is multiplied, and decode divides by
 *   open(block, warp, lane, scratch)                once a block and warp, 32 threads: scales of the warp's rows
 *   decode(block, row, slot, l, scratch, w)         the BLOCK_K / 16 weights of lane l of a row; slot 0..7: which of the
 *                                                   warp's rows it is
 *   tensor_scale(record, matrix)
 */
#ifndef COMMON_EXPERT_NARROW_CUH
#define COMMON_EXPERT_NARROW_CUH

#include <infernix/cuda_tools.cuh>
#include <infernix/expert.h>

#include "cuda_args.h"

enum { NARROW_STAGE_BLOCKS = 2, NARROW_SCRATCH_WORDS = 32 };

/* Entry of a block of threads: how many columns, where its pairs begin. */
struct narrow_entry {
    const uint8_t *record;
    uint32_t n;
    uint32_t offset;
};

IFX_DEV struct narrow_entry narrow_open(const struct expert_cuda_args &a, uint32_t entry)
{
    struct narrow_entry e = {(const uint8_t *)a.records[entry], 0, 0};
    const uint32_t expert = a.experts ? a.experts[entry] : entry;
    if (e.record != NULL && expert != UINT32_MAX) {
        e.offset = a.offsets[expert];
        e.n = a.offsets[expert + 1] - e.offset;
    }
    return e;
}

/* Column c of the entry as k_count bf16 values. */
template <bool DOWN> IFX_DEV const uint16_t *narrow_column(const struct expert_cuda_args &a, const struct narrow_entry &e, uint32_t c)
{
    if (DOWN)
        return a.hidden + (uint64_t)(e.offset + c) * a.ldh;
    return a.x + (uint64_t)(a.rows[e.offset + c] / a.top_k) * a.ldx;
}

/* xs[position / (16 VECTOR)][column][lane][VECTOR] = x of positions [k0, k0 + count).  Positions past the last 16 become -0:
 * such a step leaves an accumulator as it is. */
template <class F, bool DOWN, int N>
IFX_DEV void narrow_fill(const struct expert_cuda_args &a, const struct narrow_entry &e, uint32_t k0, uint32_t count, float *xs)
{
    const uint32_t k_count = DOWN ? a.inter : a.hidden_size, end = (k_count + 15u) / 16u * 16u;
    const uint32_t lane = threadIdx.x % 16u, groups = count / (16u * F::VECTOR);
    for (uint32_t c = 0; c < N; c++) {
        const uint16_t *x = narrow_column<DOWN>(a, e, c);
#pragma unroll 4
        for (uint32_t g = threadIdx.x / 16u; g < groups; g += EXPERT_NARROW_THREADS / 16u) {
            float v[F::VECTOR];
#pragma unroll
            for (uint32_t s = 0; s < F::VECTOR; s++) {
                const uint32_t k = k0 + (g * F::VECTOR + s) * 16u + lane;
                v[s] = k < k_count ? ifx_bf16_to_f32(x[k]) * F::X_SCALE : k < end ? 0.0f : -0.0f;
            }
            float *to = xs + ((g * N + c) * 16u + lane) * F::VECTOR;
#pragma unroll
            for (uint32_t s = 0; s < F::VECTOR; s += 2)
                *(float2 *)(to + s) = make_float2(v[s], v[s + 1]);
        }
    }
}

template <class F, int N>
IFX_DEV void narrow_block(const uint8_t *block, const float *xs, uint32_t *scratch, float (*acc)[N])
{
    const uint32_t warp = threadIdx.x / 32u, lane = threadIdx.x % 32u, l = lane % 16u, half = lane / 16u;
    float w[4][F::BLOCK_K / 16];
    F::open(block, warp, lane, scratch);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        F::decode(block, 8u * i + 2u * warp + half, 2u * i + half, l, scratch, w[i]);
#pragma unroll
    for (uint32_t g = 0; g < F::BLOCK_K / 16 / F::VECTOR; g++)
#pragma unroll
        for (uint32_t c = 0; c < N; c++) {
            float x[F::VECTOR];
            const float *from = xs + ((g * N + c) * 16u + l) * F::VECTOR;
#pragma unroll
            for (uint32_t s = 0; s < F::VECTOR; s += 2) {
                const float2 pair = *(const float2 *)(from + s);
                x[s] = pair.x, x[s + 1] = pair.y;
            }
#pragma unroll
            for (uint32_t s = 0; s < F::VECTOR; s++)
#pragma unroll
                for (uint32_t i = 0; i < 4; i++)
                    acc[i][c] = fmaf(w[i][g * F::VECTOR + s], x[s], acc[i][c]);
        }
}

/* Step 3 of the canonical order over the 16 threads of a half warp; every thread gets the sum. */
IFX_DEV float narrow_sum(float v)
{
    v = v + __shfl_xor_sync(0xffffffffu, v, 8);
    v = v + __shfl_xor_sync(0xffffffffu, v, 4);
    v = v + __shfl_xor_sync(0xffffffffu, v, 2);
    return v + __shfl_xor_sync(0xffffffffu, v, 1);
}

/* A thread of a half warp finishes column l % 8: rows 2 w + half (l < 8) or that + 8. */
template <class F, int N>
IFX_DEV void narrow_store_hidden(const struct expert_cuda_args &a, const struct narrow_entry &e, uint32_t p, float (*acc)[N])
{
    const uint32_t warp = threadIdx.x / 32u, l = threadIdx.x % 16u, half = threadIdx.x / 16u % 2u, second = l / 8u;
    float g = 0.0f, u = 0.0f;
#pragma unroll
    for (uint32_t c = 0; c < N; c++)
        g = l == c ? acc[0][c] : l == c + 8u ? acc[1][c] : g, u = l == c ? acc[2][c] : l == c + 8u ? acc[3][c] : u;
    const uint32_t row = p * 16u + 2u * warp + half + 8u * second;
    if (l % 8u < N && row < a.inter) {
        const float gate = g * F::tensor_scale(e.record, IFX_GATE), up = u * F::tensor_scale(e.record, IFX_UP);
        a.hidden[(uint64_t)(e.offset + l % 8u) * a.ldh + row] = ifx_f32_to_bf16(ifx_silu(gate) * up);
    }
}

template <class F, int N>
IFX_DEV void narrow_store_y(const struct expert_cuda_args &a, const struct narrow_entry &e, uint32_t p, float (*acc)[N])
{
    const uint32_t warp = threadIdx.x / 32u, l = threadIdx.x % 16u, half = threadIdx.x / 16u % 2u, second = l / 8u;
    float v[2] = {0.0f, 0.0f};
#pragma unroll
    for (uint32_t c = 0; c < N; c++) {
        v[0] = l == c ? acc[0][c] : l == c + 8u ? acc[1][c] : v[0];
        v[1] = l == c ? acc[2][c] : l == c + 8u ? acc[3][c] : v[1];
    }
    if (l % 8u >= N)
        return;
    const float scale = F::tensor_scale(e.record, IFX_DOWN);
    float *y = a.y + (uint64_t)a.rows[e.offset + l % 8u] * a.ldy;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t row = p * 32u + 2u * warp + half + 8u * second + 16u * i;
        if (row < a.hidden_size)
            y[row] = v[i] * scale;
    }
}

/* What is under way of the panels. */
template <class F> struct narrow_ring {
    static const uint32_t STAGE = NARROW_STAGE_BLOCKS * F::BLOCK_BYTES;
    const uint8_t *panel;
    uint32_t blocks, count; /* blocks and stages of a panel */
    uint32_t total, stages; /* stages of all panels, of the ring */
    uint32_t barriers;      /* shared address */
    uint8_t *ring;

    __device__ __forceinline__ void request(uint32_t stage) const
    {
        const uint32_t first = stage % count * NARROW_STAGE_BLOCKS, slot = stage % stages;
        const uint32_t n = blocks - first < NARROW_STAGE_BLOCKS ? blocks - first : NARROW_STAGE_BLOCKS;
        ifx_bulk_copy(ifx_smem(ring + slot * STAGE), panel + ((uint64_t)(stage / count) * blocks + first) * F::BLOCK_BYTES,
                      n * F::BLOCK_BYTES, barriers + 8u * slot);
    }
};

template <class F, bool DOWN, int N>
IFX_DEV void narrow_panels(const struct expert_cuda_args &a, const struct narrow_entry &e, const struct narrow_ring<F> &r, uint32_t p,
                           float *xs, uint32_t *scratch)
{
    const uint32_t stage_k = NARROW_STAGE_BLOCKS * F::BLOCK_K, span = a.x_floats / (N * stage_k); /* stages xs has room for */
    float acc[4][N];
    for (uint32_t g = 0, s = 0; g < r.total; g++) {
        if (s == 0) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
#pragma unroll
                for (uint32_t c = 0; c < N; c++)
                    acc[i][c] = 0.0f;
        }
        if (s % span == 0 && (g == 0 || r.count > span)) {
            const uint32_t left = r.count - s < span ? r.count - s : span;
            if (g > 0)
                __syncthreads();
            narrow_fill<F, DOWN, N>(a, e, s * stage_k, left * stage_k, xs);
            __syncthreads();
        }
        const uint8_t *stage = r.ring + g % r.stages * narrow_ring<F>::STAGE;
        const float *x = xs + s % span * stage_k * N;
        ifx_barrier_wait(r.barriers + 8u * (g % r.stages), g / r.stages % 2u);
        narrow_block<F, N>(stage, x, scratch, acc);
        if (s * NARROW_STAGE_BLOCKS + 1u < r.blocks)
            narrow_block<F, N>(stage + F::BLOCK_BYTES, x + F::BLOCK_K * N, scratch + NARROW_SCRATCH_WORDS, acc);
        if (g + r.stages < r.total) {
            __syncthreads();
            if (threadIdx.x == 0)
                r.request(g + r.stages);
        }
        if (++s < r.count)
            continue;
        s = 0;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
#pragma unroll
            for (uint32_t c = 0; c < N; c++)
                acc[i][c] = narrow_sum(acc[i][c]);
        if (DOWN)
            narrow_store_y<F, N>(a, e, p, acc);
        else
            narrow_store_hidden<F, N>(a, e, p, acc);
        p++;
    }
}

/* Grid: panels / panels of a block, entries.  Shared memory: barriers and scratch (1 KiB), the ring, then x_floats floats. */
template <class F, bool DOWN> IFX_DEV void narrow_kernel(const struct expert_cuda_args &a, uint8_t *shared)
{
    const struct narrow_entry e = narrow_open(a, blockIdx.y);
    if (e.n == 0 || e.n > IFX_NARROW_COLUMNS)
        return;
    const uint32_t panels = DOWN ? a.down_panels : a.gu_panels, p = blockIdx.x * a.each;
    narrow_ring<F> r;
    r.blocks = DOWN ? a.down_blocks : a.gu_blocks;
    r.panel = e.record + (DOWN ? a.down_offset : (uint64_t)F::HEADER) + (uint64_t)p * r.blocks * F::BLOCK_BYTES;
    r.count = (r.blocks + NARROW_STAGE_BLOCKS - 1u) / NARROW_STAGE_BLOCKS;
    r.total = r.count * (panels - p < a.each ? panels - p : a.each);
    r.stages = a.stages;
    r.barriers = ifx_smem(shared);
    r.ring = shared + 2048;
    uint32_t *scratch = (uint32_t *)(shared + 1024) + threadIdx.x / 32u * (2u * NARROW_SCRATCH_WORDS);
    float *xs = (float *)(r.ring + r.stages * narrow_ring<F>::STAGE);
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < r.stages; i++)
            ifx_barrier_init(r.barriers + 8u * i);
        ifx_barrier_publish();
        for (uint32_t i = 0; i < r.stages && i < r.total; i++)
            r.request(i);
    }
    switch (e.n) { /* the first barrier is in narrow_panels, before the first wait */
    case 1: narrow_panels<F, DOWN, 1>(a, e, r, p, xs, scratch); break;
    case 2: narrow_panels<F, DOWN, 2>(a, e, r, p, xs, scratch); break;
    case 3: narrow_panels<F, DOWN, 3>(a, e, r, p, xs, scratch); break;
    case 4: narrow_panels<F, DOWN, 4>(a, e, r, p, xs, scratch); break;
    case 5: narrow_panels<F, DOWN, 5>(a, e, r, p, xs, scratch); break;
    case 6: narrow_panels<F, DOWN, 6>(a, e, r, p, xs, scratch); break;
    case 7: narrow_panels<F, DOWN, 7>(a, e, r, p, xs, scratch); break;
    default: narrow_panels<F, DOWN, 8>(a, e, r, p, xs, scratch); break;
    }
}

#endif
