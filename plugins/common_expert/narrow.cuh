/* SPDX-License-Identifier: Apache-2.0
 *
 * narrow.cuh - the narrow route on the GPU: experts of at most IFX_NARROW_COLUMNS columns in the canonical order of
 * numerics.h, each record read once for all columns of its expert.
 *
 * A block of threads makes some panels (32 rows) one after the other.  One thread asks the copy engine for them, stage by
 * stage, before anything else is known; a ring of stages in shared memory takes them, so that what is under way does not
 * depend on registers.  Columns that fit in shared memory are fetched once for all panels.  Half a warp is the 16
 * accumulators of a row: thread l of it has lane l of rows r and r + 16 of the panel (gate and up of one hidden value).
 *
 * A kernel starts while the one before it ends.  gate_up needs the routing first; down knows it by then (all blocks of gate_up have
 * waited before they let it start), so its weights are under way before the hidden values are there.
 *
 * The format is a class F:
 *   BLOCK_K, BLOCK_BYTES, HEADER            as in bank.h
 *   VECTOR                                  positions of a lane that lie together in shared memory: 2 or 4
 *   X_SCALE                                 a power of two by which x is multiplied, and decode divides by
 *   open(stage, warp, lane, scratch)        once a stage and warp: scales of the warp's rows, of all blocks of the stage
 *   decode(block, b, row, slot, l, scratch, w)   the BLOCK_K / 16 weights of lane l of a row in the stage's block b; slot
 *                                           0..3: which of the warp's rows (narrow_row) it is
 *   tensor_scale(record, matrix)
 */
#ifndef COMMON_EXPERT_NARROW_CUH
#define COMMON_EXPERT_NARROW_CUH

#include <infernix/cuda_tools.cuh>
#include <infernix/expert.h>

#include "cuda_args.h"

enum { NARROW_SCRATCH_WORDS = 32 };

/* Row of the panel in one of a warp's slots. */
IFX_DEV uint32_t narrow_row(uint32_t warp, uint32_t slot)
{
    return 16u * (slot / 2u) + 2u * warp + slot % 2u;
}

/* Entry of a block of threads: how many columns, where its pairs begin. */
struct narrow_entry {
    const uint8_t *record;
    uint32_t n;
    uint32_t offset;
};

/* Its record, or NULL: then there is nothing to do.  All that comes from the routing is read past the first-level cache: what lies there
 * may be older than this kernel's start. */
IFX_DEV const uint8_t *narrow_record(const struct expert_cuda_args &a, uint32_t entry, uint32_t *expert)
{
    const uint8_t *record = (const uint8_t *)__ldcg((const unsigned long long *)a.records + entry);
    *expert = a.experts ? __ldcg(a.experts + entry) : entry;
    return *expert != UINT32_MAX ? record : NULL;
}

IFX_DEV struct narrow_entry narrow_open(const struct expert_cuda_args &a, const uint8_t *record, uint32_t expert)
{
    const uint32_t offset = __ldcg(a.offsets + expert);
    const struct narrow_entry e = {record, __ldcg(a.offsets + expert + 1) - offset, offset};
    return e;
}

/* What the end of a panel needs, fetched at the beginning: tensor scales, and the row of y of a thread's column. */
struct narrow_ends {
    float first, second;
    uint32_t row;
};

/* VECTOR values of a lane, 16 positions apart from k on; past the last 16 positions -0: such a step leaves an accumulator as it
 * is. */
template <class F> IFX_DEV void narrow_gather(const uint16_t *x, uint32_t k, uint32_t k_count, float *v)
{
    if (k + 16u * (F::VECTOR - 1u) < k_count) {
#pragma unroll
        for (uint32_t s = 0; s < F::VECTOR; s++)
            v[s] = ifx_bf16_to_f32(x[k + 16u * s]) * F::X_SCALE;
    } else {
        const uint32_t end = (k_count + 15u) / 16u * 16u;
#pragma unroll
        for (uint32_t s = 0; s < F::VECTOR; s++)
            v[s] = k + 16u * s < k_count ? ifx_bf16_to_f32(x[k + 16u * s]) * F::X_SCALE : k + 16u * s < end ? 0.0f : -0.0f;
    }
}

/* xs[position / (16 VECTOR)][column][lane][VECTOR] = x of positions [k0, k0 + count). */
template <class F, int N>
IFX_DEV void narrow_fill(const uint16_t *const *columns, uint32_t k_count, uint32_t k0, uint32_t count, float *xs)
{
    const uint32_t lane = threadIdx.x % 16u, all = count / (16u * F::VECTOR) * N;
#pragma unroll 4
    for (uint32_t i = threadIdx.x / 16u; i < all; i += EXPERT_NARROW_THREADS / 16u) {
        float v[F::VECTOR];
        narrow_gather<F>(columns[i % N], k0 + i / N * (16u * F::VECTOR) + lane, k_count, v);
#pragma unroll
        for (uint32_t s = 0; s < F::VECTOR; s += 2)
            *(float2 *)(xs + (i * 16u + lane) * F::VECTOR + s) = make_float2(v[s], v[s + 1]);
    }
}

/* Block b of a stage. */
template <class F, int N>
IFX_DEV void narrow_block(const uint8_t *block, uint32_t b, const float *xs, const uint32_t *scratch, float (*acc)[N])
{
    const uint32_t warp = threadIdx.x / 32u, half = threadIdx.x / 16u % 2u, l = threadIdx.x % 16u;
    float w[2][F::BLOCK_K / 16];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
        F::decode(block, b, narrow_row(warp, 2u * i + half), 2u * i + half, l, scratch, w[i]);
#pragma unroll
    for (uint32_t g = 0; g < F::BLOCK_K / 16 / F::VECTOR; g++)
#pragma unroll
        for (uint32_t c = 0; c < N; c++) {
            float x[F::VECTOR];
            const float *from = xs + ((g * N + c) * 16u + l) * F::VECTOR;
            if (F::VECTOR == 4) {
                const float4 four = *(const float4 *)from;
                x[0] = four.x, x[1] = four.y, x[F::VECTOR - 2] = four.z, x[F::VECTOR - 1] = four.w;
            } else {
                const float2 two = *(const float2 *)from;
                x[0] = two.x, x[1] = two.y;
            }
#pragma unroll
            for (uint32_t s = 0; s < F::VECTOR; s++)
#pragma unroll
                for (uint32_t i = 0; i < 2; i++)
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

/* Thread l of a half warp finishes column l. */
template <class F, int N>
IFX_DEV void narrow_store_hidden(const struct expert_cuda_args &a, const struct narrow_entry &e, const struct narrow_ends &ends, uint32_t p,
                                 float (*acc)[N])
{
    const uint32_t l = threadIdx.x % 16u, row = p * 16u + narrow_row(threadIdx.x / 32u, threadIdx.x / 16u % 2u);
    float g = 0.0f, u = 0.0f;
#pragma unroll
    for (uint32_t c = 0; c < N; c++)
        g = l == c ? acc[0][c] : g, u = l == c ? acc[1][c] : u;
    if (l < N && row < a.inter) {
        const float gate = g * ends.first, up = u * ends.second;
        a.hidden[(uint64_t)(e.offset + l) * a.ldh + row] = ifx_f32_to_bf16(ifx_silu(gate) * up);
    }
}

/* Thread l: column l % 8, the first or the second of the rows. */
template <class F, int N>
IFX_DEV void narrow_store_y(const struct expert_cuda_args &a, const struct narrow_ends &ends, uint32_t p, float (*acc)[N])
{
    const uint32_t l = threadIdx.x % 16u, half = threadIdx.x / 16u % 2u;
    const uint32_t row = p * 32u + narrow_row(threadIdx.x / 32u, l / 8u * 2u + half);
    float v = 0.0f;
#pragma unroll
    for (uint32_t c = 0; c < N; c++)
        v = l == c ? acc[0][c] : l == c + 8u ? acc[1][c] : v;
    if (l % 8u < N && row < a.hidden_size)
        a.y[(uint64_t)ends.row * a.ldy + row] = v * ends.first;
}

/* What is under way of the panels, and what is asked for next. */
template <class F> struct narrow_ring {
    static const uint32_t BLOCKS = EXPERT_NARROW_BLOCKS;
    static const uint32_t STAGE = BLOCKS * F::BLOCK_BYTES;
    uint32_t total, count; /* stages of all panels, of one */
    uint32_t stages;       /* of the ring */
    uint32_t barriers;     /* shared address */
    uint8_t *ring;
    uint32_t rest;         /* blocks of a panel's last stage */
    const uint8_t *next;
    uint32_t asked, next_slot, next_stage;

    __device__ __forceinline__ void request(void)
    {
        const uint32_t bytes = next_stage + 1u == count ? rest * F::BLOCK_BYTES : STAGE;
        if (threadIdx.x == 0)
            ifx_bulk_copy(ifx_smem(ring + next_slot * STAGE), next, bytes, barriers + 8u * next_slot);
        next += bytes;
        asked++;
        next_slot = next_slot + 1u == stages ? 0u : next_slot + 1u;
        next_stage = next_stage + 1u == count ? 0u : next_stage + 1u;
    }
};

template <class F, bool DOWN, int N>
IFX_DEV void narrow_panels(const struct expert_cuda_args &a, const struct narrow_entry &e, struct narrow_ring<F> &r, uint32_t p,
                           const uint16_t *const *columns, float *xs, uint32_t *scratch)
{
    const uint32_t blocks = narrow_ring<F>::BLOCKS, stage_k = blocks * F::BLOCK_K;
    const uint32_t span = a.x_floats / (N * stage_k); /* stages xs has room for */
    const uint32_t k_count = DOWN ? a.inter : a.hidden_size;
    uint32_t slot = 0, phase = 0, s = 0, in_span = 0;
    const struct narrow_ends ends = {F::tensor_scale(e.record, DOWN ? IFX_DOWN : IFX_GATE), DOWN ? 0.0f : F::tensor_scale(e.record, IFX_UP),
                                     DOWN && threadIdx.x % 8u < N ? __ldcg(a.rows + e.offset + threadIdx.x % 8u) : 0u};
    float acc[2][N];
    for (uint32_t g = 0; g < r.total; g++) {
        if (s == 0) {
#pragma unroll
            for (uint32_t c = 0; c < N; c++)
                acc[0][c] = acc[1][c] = 0.0f;
        }
        if (in_span == 0 && (g == 0 || r.count > span)) {
            const uint32_t left = r.count - s < span ? r.count - s : span;
            __syncthreads();
            narrow_fill<F, N>(columns, k_count, s * stage_k, left * stage_k, xs);
            __syncthreads();
        }
        const uint8_t *stage = r.ring + slot * narrow_ring<F>::STAGE;
        const float *x = xs + in_span * (stage_k * N);
        const uint32_t have = s + 1u < r.count ? blocks : r.rest;
        ifx_barrier_wait(r.barriers + 8u * slot, phase);
        F::open(stage, threadIdx.x / 32u, threadIdx.x % 32u, scratch);
#pragma unroll
        for (uint32_t b = 0; b < blocks; b++)
            if (b < have)
                narrow_block<F, N>(stage + b * F::BLOCK_BYTES, b, x + b * (F::BLOCK_K * N), scratch, acc);
        if (r.asked < r.total) {
            __syncthreads();
            r.request();
        }
        if (++slot == r.stages)
            slot = 0, phase ^= 1u;
        in_span = in_span + 1u == span ? 0u : in_span + 1u;
        if (++s < r.count)
            continue;
        s = in_span = 0;
#pragma unroll
        for (uint32_t c = 0; c < N; c++)
#pragma unroll
            for (uint32_t i = 0; i < 2; i++)
                acc[i][c] = narrow_sum(acc[i][c]);
        if (DOWN)
            narrow_store_y<F, N>(a, ends, p, acc);
        else
            narrow_store_hidden<F, N>(a, e, ends, p, acc);
        p++;
    }
}

/* Grid: panels / panels of a block, entries.  Shared memory: barriers, column addresses and scratch (EXPERT_NARROW_FIXED), the ring,
 * then x_floats floats. */
template <class F, bool DOWN> IFX_DEV void narrow_kernel(const struct expert_cuda_args &a, uint8_t *shared)
{
    narrow_ring<F> r;
    r.stages = a.stages;
    r.barriers = ifx_smem(shared);
    r.ring = shared + EXPERT_NARROW_FIXED;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < r.stages; i++)
            ifx_barrier_init(r.barriers + 8u * i);
        ifx_barrier_publish();
    }
    if (!DOWN)
        ifx_wait_for_last();
    ifx_let_next_start();
    uint32_t expert;
    const uint8_t *record = narrow_record(a, blockIdx.y, &expert);
    if (record == NULL) {
        if (DOWN)
            ifx_wait_for_last();
        return;
    }
    const uint32_t panels = DOWN ? a.down_panels : a.gu_panels, blocks = DOWN ? a.down_blocks : a.gu_blocks, p = blockIdx.x * a.each;
    const uint16_t **columns = (const uint16_t **)(shared + 512);
    uint32_t *scratch = (uint32_t *)(shared + 1024) + threadIdx.x / 32u * NARROW_SCRATCH_WORDS;
    float *xs = (float *)(r.ring + r.stages * narrow_ring<F>::STAGE);
    r.count = (blocks + r.BLOCKS - 1u) / r.BLOCKS;
    r.rest = blocks - (r.count - 1u) * r.BLOCKS;
    r.total = r.count * (panels - p < a.each ? panels - p : a.each);
    r.next = record + (DOWN ? a.down_offset : (uint64_t)F::HEADER) + (uint64_t)p * blocks * F::BLOCK_BYTES;
    r.asked = r.next_slot = r.next_stage = 0;
    const struct narrow_entry e = narrow_open(a, record, expert);
    if (e.n == 0 || e.n > IFX_NARROW_COLUMNS) {
        if (DOWN)
            ifx_wait_for_last();
        return;
    }
    while (r.asked < r.stages && r.asked < r.total)
        r.request();
    if (DOWN)
        ifx_wait_for_last();
    if (threadIdx.x >= 32u && threadIdx.x < 32u + e.n) {
        const uint32_t at = e.offset + threadIdx.x - 32u;
        columns[threadIdx.x - 32u] = DOWN ? a.hidden + (uint64_t)at * a.ldh : a.x + (uint64_t)(a.rows[at] / a.top_k) * a.ldx;
    }
    switch (e.n) { /* narrow_panels begins with a barrier */
    case 1: narrow_panels<F, DOWN, 1>(a, e, r, p, columns, xs, scratch); break;
    case 2: narrow_panels<F, DOWN, 2>(a, e, r, p, columns, xs, scratch); break;
    case 3: narrow_panels<F, DOWN, 3>(a, e, r, p, columns, xs, scratch); break;
    case 4: narrow_panels<F, DOWN, 4>(a, e, r, p, columns, xs, scratch); break;
    case 5: narrow_panels<F, DOWN, 5>(a, e, r, p, columns, xs, scratch); break;
    case 6: narrow_panels<F, DOWN, 6>(a, e, r, p, columns, xs, scratch); break;
    case 7: narrow_panels<F, DOWN, 7>(a, e, r, p, columns, xs, scratch); break;
    default: narrow_panels<F, DOWN, 8>(a, e, r, p, columns, xs, scratch); break;
    }
}

#endif
