/* SPDX-License-Identifier: Apache-2.0
 *
 * linear.cu - products with 1 to 8 columns, and what wide products need around cuBLASLt.
 *
 * Few columns are bound by the bytes of the weights, so each is read once, 16 bytes a load, and the tensor cores do the arithmetic:
 * a tile of 16 rows by 8 columns costs them the same whatever part of the 8 is used.  The columns that are not there are zero, so a
 * column's bits depend on itself alone.  The order of a sum is a matter of taste as long as both operands keep to it: a lane loads 8
 * consecutive weights of a row and calls them columns 2t, 2t+1, 2t+8, 2t+9 of two tiles.
 */
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
template <uint32_t WARPS>
__device__ __forceinline__ void finish_tile(const struct narrow_args &a, const struct narrow_out &o, uint32_t row0, const float c[4], uint32_t turn)
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
        float *y = &o.y[column * o.ldy + row0 + r];
        *y = o.accumulate ? *y + sum : sum;
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

/* A block makes every gridDim.x-th tile; with MANY the weights of the next are under way while it ends one. */
template <bool ANY, uint32_t PARTS, uint32_t WARPS, bool MANY> __device__ __forceinline__ void narrow_bf16(const struct narrow_args &a)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3, turn = 0;
    const float *x = a.x + g * a.ldx;
    uint32_t units = (a.cols + 31) / 32;
    tile_rows rows = rows_of(a, blockIdx.x);
    weights now;
    let_next_start();
    load_weights<ANY, WARPS>(now, rows.w0, rows.w1, warp, t, a.cols);
    wait_for_last();
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
                v[i] = load_inputs<PARTS>(x, k, g < a.n ? a.cols : 0, a.x_aligned);
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
        finish_tile<WARPS>(a, o, (tile - o.tile0) * NARROW_ROWS, c, turn);
    }
}

KERNEL __launch_bounds__(8 * 32, 2) ifx_linear_narrow(const __grid_constant__ struct narrow_args a)
{
    narrow_bf16<false, 1, 8, true>(a);
}

/* Few rows: more warps share them. */
KERNEL __launch_bounds__(16 * 32, 1) ifx_linear_narrow_few(const __grid_constant__ struct narrow_args a)
{
    narrow_bf16<false, 1, 16, false>(a);
}

/* Inputs are not rounded. */
KERNEL __launch_bounds__(16 * 32, 1) ifx_linear_narrow_exact(const __grid_constant__ struct narrow_args a)
{
    narrow_bf16<false, 3, 16, false>(a);
}

/* Rows that are not 16-byte aligned. */
KERNEL __launch_bounds__(8 * 32, 1) ifx_linear_narrow_any(const __grid_constant__ struct narrow_args a)
{
    narrow_bf16<true, 1, 8, false>(a);
}

KERNEL __launch_bounds__(8 * 32, 1) ifx_linear_narrow_exact_any(const __grid_constant__ struct narrow_args a)
{
    narrow_bf16<true, 3, 8, false>(a);
}

/* 4 codes as 4 bf16: a byte in the low mantissa bits of 2^23 is an integer of float32, which bf16 holds exactly. */
__device__ __forceinline__ void codes_to_bf16(uint32_t codes, uint32_t &low, uint32_t &high)
{
    codes ^= 0x80808080u;
    float v[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        v[i] = __uint_as_float(__byte_perm(codes, 0x4b000000u, 0x7440u + i)) - 8388736.0f;
    low = pack_bf16(v[0], v[1]);
    high = pack_bf16(v[2], v[3]);
}

/* One group of 32 codes at a time: its sum is of exact products, and the scale multiplies it once. */
KERNEL __launch_bounds__(NARROW_WARPS * 32, 2) ifx_linear_narrow_w8(const __grid_constant__ struct narrow_args a)
{
    bool waited = false;
    let_next_start();
    const struct narrow_out &o = find_out(a, blockIdx.x);
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    uint32_t row0 = (blockIdx.x - o.tile0) * NARROW_ROWS, last = o.w.rows - 1, groups = (a.cols + 31) / 32;
    uint64_t r0 = min(row0 + g, last), r1 = min(row0 + g + 8, last);
    const uint8_t *w0 = (const uint8_t *)o.w.data + r0 * groups * 32, *w1 = (const uint8_t *)o.w.data + r1 * groups * 32;
    const __half *s0 = (const __half *)o.w.scales + r0 * groups, *s1 = (const __half *)o.w.scales + r1 * groups;
    const float *x = a.x + g * a.ldx;
    float c[4] = {0, 0, 0, 0};
    for (uint32_t u0 = warp; u0 < groups; u0 += AHEAD * NARROW_WARPS) {
        uint2 p[AHEAD], q[AHEAD];
        uint4 v[AHEAD];
        float f0[AHEAD], f1[AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            uint32_t u = u0 + i * NARROW_WARPS;
            bool in = u < groups;
            p[i] = in ? __ldcs((const uint2 *)(w0 + u * 32ull + 8 * t)) : make_uint2(0, 0);
            q[i] = in ? __ldcs((const uint2 *)(w1 + u * 32ull + 8 * t)) : make_uint2(0, 0);
            f0[i] = in ? __half2float(s0[u]) : 0.0f;
            f1[i] = in ? __half2float(s1[u]) : 0.0f;
        }
        if (!waited)
            wait_for_last();
        waited = true;
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            uint32_t k = (u0 + i * NARROW_WARPS) * 32 + 8 * t;
            v[i] = load_inputs<1>(x, k, g < a.n ? a.cols : 0, a.x_aligned).part[0];
        }
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            uint32_t a0, a1, a2, a3;
            float part[4] = {0, 0, 0, 0};
            codes_to_bf16(p[i].x, a0, a2);
            codes_to_bf16(q[i].x, a1, a3);
            mma_bf16(part, a0, a1, a2, a3, v[i].x, v[i].y);
            codes_to_bf16(p[i].y, a0, a2);
            codes_to_bf16(q[i].y, a1, a3);
            mma_bf16(part, a0, a1, a2, a3, v[i].z, v[i].w);
            c[0] = fmaf(part[0], f0[i], c[0]);
            c[1] = fmaf(part[1], f0[i], c[1]);
            c[2] = fmaf(part[2], f1[i], c[2]);
            c[3] = fmaf(part[3], f1[i], c[3]);
        }
    }
    if (!waited) /* a warp without a group of its own */
        wait_for_last();
    finish_tile<NARROW_WARPS>(a, o, row0, c, 0);
}

/* Inputs as they are, or float32 weights: no tensor cores.  One block a row. */
KERNEL ifx_linear_narrow_f32(const __grid_constant__ struct narrow_args a)
{
    begin_kernel();
    __shared__ float parts[F32_THREADS / 32][NARROW_COLUMNS];
    const struct narrow_out &o = find_out(a, blockIdx.x);
    uint64_t row = blockIdx.x - o.tile0;
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float sum[NARROW_COLUMNS] = {0};
    for (uint32_t k0 = threadIdx.x * 4; k0 < a.cols; k0 += F32_THREADS * 4)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t k = k0 + i;
            if (k >= a.cols)
                break;
            float w = weight_at(o.w, row, k);
#pragma unroll
            for (uint32_t c = 0; c < NARROW_COLUMNS; c++)
                if (c < a.n) {
                    float x = a.x[c * a.ldx + k];
                    sum[c] = fmaf(w, a.round_x ? round_bf16(x) : x, sum[c]);
                }
        }
#pragma unroll
    for (uint32_t c = 0; c < NARROW_COLUMNS; c++) {
        float s = warp_sum(sum[c]);
        if (lane == 0)
            parts[warp][c] = s;
    }
    __syncthreads();
    if (threadIdx.x < a.n) {
        float s = 0.0f;
#pragma unroll
        for (uint32_t w = 0; w < F32_THREADS / 32; w++)
            s += parts[w][threadIdx.x];
        float *y = &o.y[threadIdx.x * o.ldy + row];
        *y = o.accumulate ? *y + s : s;
    }
}

/* ---- wide products ---- */

/* x as `parts` bf16 matrices [n, ld] whose sum it is (to 24 bits with three), the coarsest first. */
KERNEL ifx_split_bf16(const float *x, uint64_t ldx, uint32_t n, uint32_t cols, uint32_t parts, uint16_t *y, uint32_t ld)
{
    begin_kernel();
    bool aligned = ((uintptr_t)x & 15) == 0 && ldx % 4 == 0;
    for (uint64_t t = blockIdx.y; t < n; t += gridDim.y)
        for (uint32_t k = 8 * (blockIdx.x * blockDim.x + threadIdx.x); k < ld; k += 8 * gridDim.x * blockDim.x) {
            float v[8];
            load_8(v, x + t * ldx, k, cols, aligned);
            for (uint32_t p = 0; p < parts; p++) {
                uint4 h = make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
                *(uint4 *)&y[((uint64_t)p * n + t) * ld + k] = h;
                take_bf16(v, h);
            }
        }
}

KERNEL ifx_round_f32(const float *x, uint64_t ldx, uint32_t n, uint32_t cols, uint32_t round, float *y, uint32_t ld)
{
    begin_kernel();
    for (uint64_t t = blockIdx.y; t < n; t += gridDim.y)
        for (uint32_t k = blockIdx.x * blockDim.x + threadIdx.x; k < ld; k += gridDim.x * blockDim.x) {
            float v = k < cols ? x[t * ldx + k] : 0.0f;
            y[t * ld + k] = round ? round_bf16(v) : v;
        }
}

/* Rows [row0, row0 + rows) of a matrix, ld values apart, zero after the last column. */
KERNEL ifx_expand_bf16(struct ifx_weight w, uint32_t row0, uint32_t rows, uint16_t *y, uint32_t ld)
{
    begin_kernel();
    for (uint64_t r = blockIdx.y; r < rows; r += gridDim.y)
        for (uint32_t k = blockIdx.x * blockDim.x + threadIdx.x; k < ld; k += gridDim.x * blockDim.x)
            y[r * ld + k] = k < w.cols ? ifx_f32_to_bf16(weight_at(w, row0 + r, k)) : 0;
}

KERNEL ifx_expand_f32(struct ifx_weight w, uint32_t row0, uint32_t rows, float *y, uint32_t ld)
{
    begin_kernel();
    for (uint64_t r = blockIdx.y; r < rows; r += gridDim.y)
        for (uint32_t k = blockIdx.x * blockDim.x + threadIdx.x; k < ld; k += gridDim.x * blockDim.x)
            y[r * ld + k] = k < w.cols ? weight_at(w, row0 + r, k) : 0.0f;
}
