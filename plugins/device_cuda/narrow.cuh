/* SPDX-License-Identifier: Apache-2.0
 *
 * narrow.cuh - products with 1 to 8 columns.
 *
 * Few columns are bound by the bytes of the weights, so each is read once, 16 bytes a load, and the tensor cores do the arithmetic:
 * a tile of 16 rows by 8 columns costs them the same whatever part of the 8 is used.  The columns that are not there are zero, so a
 * column's bits depend on itself alone.  The order of a sum is a matter of taste as long as both operands keep to it: a lane loads 8
 * consecutive weights of a row and calls them columns 2t, 2t+1, 2t+8, 2t+9 of two tiles.
 */
#ifndef DEVICE_CUDA_NARROW_CUH
#define DEVICE_CUDA_NARROW_CUH

#include "common.cuh"
#include "linear_args.h"

__device__ __forceinline__ void mma_bf16(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    uint32_t u;
    memcpy(&u, &v, 4);
    return u;
}

/* Weights are read once and by nobody else. */
__device__ __forceinline__ uint4 load_stream(const void *p)
{
    return __ldcs((const uint4 *)p);
}

/* 8 values from k of a column; zero past the end. */
__device__ __forceinline__ void load_8(float v[8], const float *x, uint32_t k, uint32_t cols, bool aligned)
{
    if (aligned && k + 8 <= cols) {
        float4 a = *(const float4 *)(x + k), b = *(const float4 *)(x + k + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            v[i] = k + i < cols ? x[k + i] : 0.0f;
    }
}

template <bool ANY> __device__ __forceinline__ uint4 load_w(const uint16_t *row, uint32_t k, uint32_t cols)
{
    if constexpr (ANY) {
        uint32_t v[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t low = k + 2 * i < cols ? row[k + 2 * i] : 0, high = k + 2 * i + 1 < cols ? row[k + 2 * i + 1] : 0;
            v[i] = low | high << 16;
        }
        return make_uint4(v[0], v[1], v[2], v[3]);
    } else {
        return k < cols ? load_stream(row + k) : make_uint4(0, 0, 0, 0);
    }
}

__device__ __forceinline__ const struct narrow_out &find_out(const struct narrow_args &a, uint32_t tile)
{
    uint32_t m = 0;
    while (m + 1 < a.count && tile >= a.out[m + 1].tile0)
        m++;
    return a.out[m];
}

/* The warps' parts of a tile, added in order.  turn: 0 and 1 alternate, so that one barrier a tile is enough. */
template <uint32_t WARPS, class JOB>
__device__ __forceinline__ void finish_tile(const struct narrow_args &a, const struct narrow_out &o, uint32_t row0, const float c[4], uint32_t turn,
                                            const JOB &job)
{
    __shared__ float both[2][WARPS][NARROW_COLUMNS][NARROW_ROWS + 1];
    float (*parts)[NARROW_COLUMNS][NARROW_ROWS + 1] = both[turn];
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    parts[warp][2 * t][g] = c[0];
    parts[warp][2 * t + 1][g] = c[1];
    parts[warp][2 * t][g + 8] = c[2];
    parts[warp][2 * t + 1][g + 8] = c[3];
    __syncthreads();
    uint32_t r = threadIdx.x % NARROW_ROWS, column = threadIdx.x / NARROW_ROWS;
    if (column < a.n && row0 + r < o.w.rows) {
        float sum = 0.0f;
#pragma unroll
        for (uint32_t w = 0; w < WARPS; w++)
            sum += parts[w][column][r];
        job.finish(o, column, row0 + r, sum);
    }
}

enum { AHEAD = 4 }; /* units of 32 inputs that a warp has in flight, twice */

/* Weights of AHEAD units of two rows. */
struct weights {
    uint4 p[AHEAD], q[AHEAD];
};

template <bool ANY, uint32_t WARPS>
__device__ __forceinline__ void load_weights(weights &w, const uint16_t *w0, const uint16_t *w1, uint32_t u0, uint32_t t, uint32_t cols)
{
#pragma unroll
    for (uint32_t i = 0; i < AHEAD; i++) {
        uint32_t k = (u0 + i * WARPS) * 32 + 8 * t;
        w.p[i] = load_w<ANY>(w0, k, cols);
        w.q[i] = load_w<ANY>(w1, k, cols);
    }
}

/* What is left of 8 values without their bf16. */
__device__ __forceinline__ void take_bf16(float v[8], uint4 h)
{
    uint32_t words[4] = {h.x, h.y, h.z, h.w};
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        v[2 * i] -= __uint_as_float(words[i] << 16);
        v[2 * i + 1] -= __uint_as_float(words[i] & 0xffff0000u);
    }
}

/* x as PARTS bf16 whose sum it is: one rounds it, three hold all of it. */
template <uint32_t PARTS> struct inputs {
    uint4 part[PARTS];
};

template <uint32_t PARTS> __device__ __forceinline__ inputs<PARTS> load_inputs(const float *x, uint32_t k, uint32_t cols, bool aligned)
{
    float v[8];
    inputs<PARTS> in;
    load_8(v, x, k, cols, aligned);
#pragma unroll
    for (uint32_t p = 0; p < PARTS; p++) {
        in.part[p] = make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
        if (p + 1 < PARTS)
            take_bf16(v, in.part[p]);
    }
    return in;
}

/* The two rows of a thread in a tile. */
struct tile_rows {
    const uint16_t *w0, *w1;
};

__device__ __forceinline__ tile_rows rows_of(const struct narrow_args &a, uint32_t tile)
{
    const struct narrow_out &o = find_out(a, tile);
    uint32_t row = (tile - o.tile0) * NARROW_ROWS + (threadIdx.x & 31) / 4, last = o.w.rows - 1;
    const uint16_t *w = (const uint16_t *)o.w.data;
    return {w + (uint64_t)min(row, last) * a.cols, w + (uint64_t)min(row + 8, last) * a.cols};
}

/* A block makes every gridDim.x-th tile; with MANY the weights of the next are under way while it ends one.  The job is what its input is
 * and where its results go: before_wait() and begin() around the wait, load(column, k) of 8 values, finish(matrix, column, row, sum). */
template <bool ANY, uint32_t PARTS, uint32_t WARPS, bool MANY, class JOB> __device__ __forceinline__ void narrow_bf16(const struct narrow_args &a, JOB &job)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3, turn = 0;
    uint32_t units = (a.cols + 31) / 32;
    tile_rows rows = rows_of(a, blockIdx.x);
    weights now;
    let_next_start();
    load_weights<ANY, WARPS>(now, rows.w0, rows.w1, warp, t, a.cols);
    job.before_wait();
    wait_for_last();
    job.begin();
    for (uint32_t tile = blockIdx.x; tile < a.tiles; tile += gridDim.x, turn ^= 1) {
        const struct narrow_out &o = find_out(a, tile);
        float c[4] = {0, 0, 0, 0}, d[4] = {0, 0, 0, 0};
        for (uint32_t u0 = warp; u0 < units; u0 += AHEAD * WARPS) {
            weights next;
            inputs<PARTS> v[AHEAD];
            uint32_t ahead = u0 + AHEAD * WARPS;
            if (MANY && ahead >= units && tile + gridDim.x < a.tiles) {
                rows = rows_of(a, tile + gridDim.x);
                ahead = warp;
            }
            load_weights<ANY, WARPS>(next, rows.w0, rows.w1, ahead, t, a.cols);
#pragma unroll
            for (uint32_t i = 0; i < AHEAD; i++) {
                uint32_t k = (u0 + i * WARPS) * 32 + 8 * t;
                v[i] = job.template load<PARTS>(g, k);
            }
#pragma unroll
            for (uint32_t i = 0; i < AHEAD; i++)
#pragma unroll
                for (uint32_t p = PARTS; p-- > 0;) {
                    uint4 in = v[i].part[p];
                    mma_bf16(c, now.p[i].x, now.q[i].x, now.p[i].y, now.q[i].y, in.x, in.y);
                    mma_bf16(d, now.p[i].z, now.q[i].z, now.p[i].w, now.q[i].w, in.z, in.w);
                }
            now = next;
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            c[i] += d[i];
        finish_tile<WARPS>(a, o, (tile - o.tile0) * NARROW_ROWS, c, turn, job);
    }
}

#endif
