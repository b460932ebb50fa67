/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_skeleton.cuh - builds the CUDA kernels of a KV-cache format from how a stored row is read and written; the page layout
 * is that of kv_skeleton.h, the host side is kv_skeleton_cuda.h.
 *
 *   struct my_rows {
 *       enum { DIRECT = 0,     1: a row is head_dim bf16 and is read as it lies (load is not called)
 *              WARPS = 4 };    of a decode block where there is shared memory enough: 8 for short rows that take work to load
 *       static __device__ void load(const uint8_t *row, uint32_t d, uint32_t i, uint32_t out[4]);
 *                              values i .. i + 7 (i a multiple of 8) as bf16, in pairs, the lower index in the lower half;
 *                              row may lie at any even address
 *       static __device__ void store(const float *x, uint32_t d, uint8_t *row, uint32_t lane);
 *                              one warp writes a row of d values
 *   };
 *   IFX_KV_CUDA_KERNELS(my_rows)
 *
 * Attention: products on tensor cores with bf16 inputs and float32 sums, the softmax online in float32 over tiles of tokens.
 *   decode (at most 16 query rows, columns times group, or a list of tokens for each column): the tokens are cut into parts,
 *     one a block; in a block four or eight warps take 16 tokens each in turn, every warp with a ring of its own in shared memory, and
 *     are merged at the end.  kv_merge joins the parts in ascending order.
 *   prefill: 64 query rows a block, 16 a warp; the warps share tiles of K and V.  Cut into parts only when there are few blocks.
 * Where it is cut depends on the position of the last column, read on the device, and on the shape of the call.
 * A row that a query may not see never touches its result: scores are replaced where it is not seen, and a stored value of V
 * that is not finite is taken as NaN of those queries that see its token.
 */
#ifndef INFERNIX_KV_SKELETON_CUH
#define INFERNIX_KV_SKELETON_CUH

#include <infernix/cuda_tools.cuh>
#include <infernix/kv_skeleton_cuda.h>

/* ---- fragments of one warp: 16 query rows against NT tokens in shared memory ----
 * Tiles in shared memory: rows of DP bf16; the 16-byte piece c of row r lies at piece c ^ (r % 8). */

template <int DP> IFX_DEV uint32_t ifx_kvc_at(uint32_t row, uint32_t piece)
{
    return row * (DP * 2u) + ((piece ^ (row % 8u)) << 4);
}

/* s[f] += Q K^T for the tokens 8 f .. 8 f + 7. */
template <int DP, int NT> IFX_DEV void ifx_kvc_scores(uint32_t q, uint32_t k, float (*s)[4])
{
    const uint32_t lane = threadIdx.x % 32u;
#pragma unroll
    for (uint32_t f = 0; f < NT / 8; f++)
        s[f][0] = s[f][1] = s[f][2] = s[f][3] = 0.0f;
#pragma unroll 4
    for (uint32_t j = 0; j < DP / 16; j++) {
        uint32_t a[4], b[4];
        ifx_load_matrix(a, q + ifx_kvc_at<DP>(lane % 16u, 2u * j + lane / 16u));
#pragma unroll
        for (uint32_t f = 0; f < NT / 8; f += 2) {
            ifx_load_matrix(b, k + ifx_kvc_at<DP>(8u * f + lane % 8u + lane / 16u * 8u, 2u * j + lane / 8u % 2u));
            ifx_mma(s[f], a, b[0], b[1]);
            ifx_mma(s[f + 1], a, b[2], b[3]);
        }
    }
}

/* o += P V. */
template <int DP, int NT> IFX_DEV void ifx_kvc_values(const float (*p)[4], uint32_t v, float (*o)[4])
{
    const uint32_t lane = threadIdx.x % 32u;
#pragma unroll
    for (uint32_t t = 0; t < NT / 16; t++) {
        const uint32_t a[4] = {ifx_pack_bf16(p[2 * t][0], p[2 * t][1]), ifx_pack_bf16(p[2 * t][2], p[2 * t][3]),
                               ifx_pack_bf16(p[2 * t + 1][0], p[2 * t + 1][1]), ifx_pack_bf16(p[2 * t + 1][2], p[2 * t + 1][3])};
#pragma unroll
        for (uint32_t f = 0; f < DP / 8; f += 2) {
            uint32_t b[4];
            ifx_load_matrix_transposed(b, v + ifx_kvc_at<DP>(16u * t + lane % 16u, f + lane / 16u));
            ifx_mma(o[f], a, b[0], b[1]);
            ifx_mma(o[f + 1], a, b[2], b[3]);
        }
    }
}

/* The rows g and g + 8 of a thread. */
template <int DP> struct ifx_kvc_state {
    float m[2], l[2];  /* l: this thread's share of the sum */
    uint32_t limit[2]; /* tokens from here on are not seen */
    float o[DP / 8][4];

    __device__ __forceinline__ void clear(void)
    {
        m[0] = m[1] = -INFINITY;
        l[0] = l[1] = 0.0f;
#pragma unroll
        for (int f = 0; f < DP / 8; f++)
            o[f][0] = o[f][1] = o[f][2] = o[f][3] = 0.0f;
    }

    /* Scores of the tokens from t on become weights; what was summed up so far shrinks. */
    template <int NT> __device__ __forceinline__ void soften(float (*s)[4], uint32_t t, float scale)
    {
        const uint32_t at = t + 2u * (threadIdx.x % 4u);
        float shrink[2];
#pragma unroll
        for (uint32_t f = 0; f < NT / 8; f++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                s[f][i] = at + 8u * f + i % 2u < limit[i / 2u] ? s[f][i] * scale : -INFINITY;
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            float top = m[h];
#pragma unroll
            for (uint32_t f = 0; f < NT / 8; f++)
                top = fmaxf(top, fmaxf(s[f][2 * h], s[f][2 * h + 1])); /* a NaN loses here and reaches l below */
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            const float base = top == -INFINITY ? 0.0f : top;
            shrink[h] = top == m[h] ? 1.0f : exp2f(m[h] - base);
            m[h] = top;
            float sum = 0.0f;
#pragma unroll
            for (uint32_t f = 0; f < NT / 8; f++) {
                s[f][2 * h] = exp2f(s[f][2 * h] - base);
                s[f][2 * h + 1] = exp2f(s[f][2 * h + 1] - base);
                sum += s[f][2 * h] + s[f][2 * h + 1];
            }
            l[h] = fmaf(l[h], shrink[h], sum);
        }
        if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
            for (int f = 0; f < DP / 8; f++) {
                o[f][0] *= shrink[0], o[f][1] *= shrink[0];
                o[f][2] *= shrink[1], o[f][3] *= shrink[1];
            }
        }
    }

    /* Weights of tokens with a value that is not finite: NaN where they are seen. */
    template <int NT> __device__ __forceinline__ void poison(float (*p)[4], uint32_t t, uint64_t bad)
    {
        const uint32_t at = 2u * (threadIdx.x % 4u);
#pragma unroll
        for (uint32_t f = 0; f < NT / 8; f++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                if ((bad >> (at + 8u * f + i % 2u) & 1u) && t + at + 8u * f + i % 2u < limit[i / 2u])
                    p[f][i] = NAN;
    }

    /* The whole sums, in all threads of a row. */
    __device__ __forceinline__ void finish(void)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            l[h] += __shfl_xor_sync(0xffffffffu, l[h], 1);
            l[h] += __shfl_xor_sync(0xffffffffu, l[h], 2);
        }
    }
};

/* Takes pieces of V that hold something not finite out of a tile; bits of the tokens.  One warp, rows [first, first + 16). */
template <int DP> IFX_DEV uint32_t ifx_kvc_disarm(uint8_t *v, uint32_t first)
{
    uint32_t bad = 0;
    for (uint32_t i = threadIdx.x % 32u; i < 16u * (DP / 8); i += 32u) {
        const uint32_t row = first + i / (DP / 8);
        uint4 *piece = (uint4 *)(v + row * (DP * 2u) + i % (DP / 8) * 16u);
        const uint32_t w[4] = {piece->x, piece->y, piece->z, piece->w};
        uint32_t odd = 0;
#pragma unroll
        for (int k = 0; k < 4; k++)
            odd |= (uint32_t)((w[k] & 0x7f80u) == 0x7f80u) | (uint32_t)((w[k] & 0x7f800000u) == 0x7f800000u);
        if (odd) {
            *piece = make_uint4(0, 0, 0, 0);
            bad |= 1u << (row - first);
        }
    }
    return __reduce_or_sync(0xffffffffu, bad);
}

/* ---- a call ---- */

/* Tokens of a part, when `tokens` of them are cut into at most `splits`. */
IFX_DEV uint32_t ifx_kvc_part(uint32_t tokens, uint32_t splits)
{
    const uint32_t tiles = (tokens + IFX_KVC_TILE - 1u) / IFX_KVC_TILE;
    return (tiles + splits - 1u) / splits * IFX_KVC_TILE;
}

/* What a block works on. */
struct ifx_kvc_work {
    uint32_t first_query, last_query; /* dense: of the block's rows; sparse: its one query */
    uint32_t row0, rows;              /* dense: rows of (query, member); sparse: members */
    uint32_t t0, t1;                  /* tokens, or places in the list */
    const int32_t *list;
};

/* SIZE: rows of a block. */
template <uint32_t SIZE> IFX_DEV struct ifx_kvc_work ifx_kvc_open_work(const struct ifx_kvc_args &a)
{
    const bool prefill = SIZE != IFX_KVC_DECODE_ROWS;
    const uint32_t size = SIZE;
    const uint32_t block = prefill ? gridDim.x - 1u - blockIdx.x : blockIdx.x; /* the longest first */
    struct ifx_kvc_work w;
    uint32_t tokens, end;
    w.list = NULL;
    if (!prefill && a.rows != NULL) {
        const uint32_t blocks = (a.group + size - 1u) / size;
        w.first_query = w.last_query = block / blocks;
        w.row0 = block % blocks * size;
        w.rows = a.group - w.row0 < size ? a.group - w.row0 : size;
        w.list = a.rows + w.first_query * a.ld_rows;
        tokens = end = a.n_rows[w.first_query];
    } else {
        w.row0 = block * size;
        w.rows = a.n * a.group - w.row0 < size ? a.n * a.group - w.row0 : size;
        w.first_query = w.row0 / a.group;
        w.last_query = (w.row0 + w.rows - 1u) / a.group;
        tokens = (uint32_t)a.positions[a.n - 1u] + 1u;
        end = (uint32_t)a.positions[w.last_query] + 1u;
    }
    const uint32_t part = ifx_kvc_part(tokens, a.splits);
    w.t0 = blockIdx.z * part;
    w.t1 = w.t0 + part < end ? w.t0 + part : end;
    return w;
}

/* Query and head of a row of the block. */
IFX_DEV void ifx_kvc_row(const struct ifx_kvc_args &a, const struct ifx_kvc_work &w, uint32_t row, uint32_t *query, uint32_t *head)
{
    const uint32_t r = w.row0 + row;
    *query = w.list != NULL ? w.first_query : r / a.group;
    *head = blockIdx.y * a.group + (w.list != NULL ? r : r % a.group);
}

/* Tokens that a row sees end here. */
IFX_DEV uint32_t ifx_kvc_limit(const struct ifx_kvc_args &a, const struct ifx_kvc_work &w, uint32_t row)
{
    if (row >= w.rows)
        return 0;
    if (w.list != NULL)
        return w.t1;
    const uint32_t seen = (uint32_t)a.positions[(w.row0 + row) / a.group] + 1u;
    return seen < w.t1 ? seen : w.t1;
}

/* Q of `size` rows as bf16; rows that are none become zero. */
template <int DP, int THREADS> IFX_DEV void ifx_kvc_load_q(const struct ifx_kvc_args &a, const struct ifx_kvc_work &w, uint32_t size, uint8_t *q)
{
#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < size * (DP / 8); i += THREADS) {
        const uint32_t row = i / (DP / 8), k = i % (DP / 8) * 8u;
        uint32_t v[4] = {0, 0, 0, 0}, query, head;
        if (row < w.rows && k < a.d) {
            ifx_kvc_row(a, w, row, &query, &head);
            const float *from = a.q + query * a.ldq + head * a.ldq_head + k;
#pragma unroll
            for (int j = 0; j < 4; j++)
                v[j] = ifx_pack_bf16(from[2 * j], from[2 * j + 1]);
        }
        *(uint4 *)(q + ifx_kvc_at<DP>(row, k / 8u)) = make_uint4(v[0], v[1], v[2], v[3]);
    }
}

/* Address of the K row of token or list place t; 0 past the end. */
IFX_DEV uint64_t ifx_kvc_address(const struct ifx_kvc_args &a, const struct ifx_kvc_work &w, uint32_t t)
{
    if (t >= w.t1)
        return 0;
    const uint32_t token = w.list != NULL ? (uint32_t)w.list[t] : t, slot = token & (a.page_tokens - 1u);
    return (uint64_t)(uintptr_t)a.pages[token >> a.page_shift] + ((uint64_t)blockIdx.y * 2u * a.page_tokens + slot) * a.row_bytes;
}

/* One warp asks for 16 rows whose addresses the lanes 0..15 have.  DIRECT: into a tile; else as stored, a row's first
 * 16-byte-aligned window from `to` + r * raw_stride on. */
template <class F, int DP> IFX_DEV void ifx_kvc_request(const struct ifx_kvc_args &a, uint64_t address, uint32_t to, uint32_t row0)
{
    const uint32_t lane = threadIdx.x % 32u, pieces = F::DIRECT ? DP / 8u : a.raw_stride / 16u;
    for (uint32_t i = lane; i < (16u * pieces + 31u) / 32u * 32u; i += 32u) {
        const uint32_t r = i / pieces < 16u ? i / pieces : 15u, c = i % pieces;
        const uint64_t row = __shfl_sync(0xffffffffu, address, r);
        if (i >= 16u * pieces)
            continue;
        if (F::DIRECT) {
            const uint32_t bytes = row != 0 && c * 8u < a.d ? 16u : 0u;
            ifx_copy16(to + ifx_kvc_at<DP>(row0 + r, c), (const void *)(uintptr_t)(bytes ? row + c * 16u : (uint64_t)(uintptr_t)a.pages & ~15ull),
                       bytes);
        } else if (row != 0 && (row & ~15ull) + c * 16u < row + a.row_bytes) {
            ifx_copy16(to + (row0 + r) * a.raw_stride + c * 16u, (const void *)(uintptr_t)((row & ~15ull) + c * 16u), 16u);
        }
    }
}

/* Rows as stored become a tile, 16 rows by one warp; offset: where row i begins in its window, 255: there is none (lanes 0..15). */
template <class F, int DP>
IFX_DEV void ifx_kvc_decode(const struct ifx_kvc_args &a, const uint8_t *raw, uint32_t offset, uint8_t *tile, uint32_t row0)
{
#pragma unroll 4
    for (uint32_t i = threadIdx.x % 32u; i < 16u * (DP / 8); i += 32u) {
        const uint32_t r = i / (DP / 8), k = i % (DP / 8) * 8u;
        const uint32_t begin = __shfl_sync(0xffffffffu, offset, r);
        uint32_t v[4] = {0, 0, 0, 0};
        if (begin != 255u && k < a.d)
            F::load(raw + (row0 + r) * a.raw_stride + begin, a.d, k, v);
        *(uint4 *)(tile + ifx_kvc_at<DP>(row0 + r, k / 8u)) = make_uint4(v[0], v[1], v[2], v[3]);
    }
}

IFX_DEV uint32_t ifx_kvc_offset(uint64_t address)
{
    return address != 0 ? (uint32_t)(address & 15u) : 255u;
}

/* Writes sums of a row: the quotient, or a part. */
IFX_DEV void ifx_kvc_put(const struct ifx_kvc_args &a, uint32_t query, uint32_t head, uint32_t i, float acc, float l)
{
    if (a.direct)
        a.out[query * a.ldo + (uint64_t)head * a.d + i] = acc / l;
    else
        a.part_acc[(((uint64_t)query * a.n_q_heads + head) * a.splits + blockIdx.z) * a.d + i] = acc;
}

IFX_DEV void ifx_kvc_put_sums(const struct ifx_kvc_args &a, uint32_t query, uint32_t head, float m, float l)
{
    float *to = a.part_ml + (((uint64_t)query * a.n_q_heads + head) * a.splits + blockIdx.z) * 2u;
    to[0] = m;
    to[1] = l;
}

/* ---- decode ---- */

template <class F, int DP, int W> IFX_DEV void ifx_kvc_decode_kernel(const struct ifx_kvc_args &a, uint8_t *shared)
{
    const uint32_t warp = threadIdx.x / 32u, lane = threadIdx.x % 32u, g = lane / 4u;
    const struct ifx_kvc_work w = ifx_kvc_open_work<IFX_KVC_DECODE_ROWS>(a);
    const uint32_t row = F::DIRECT ? DP * 2u : a.raw_stride, stage = 2u * 16u * row;
    uint8_t *q = shared + 2048, *tile = q + IFX_KVC_DECODE_ROWS * DP * 2u + warp * (16u * DP * 2u);
    uint8_t *area = q + IFX_KVC_DECODE_ROWS * DP * 2u + (F::DIRECT ? 0u : W * 16u * DP * 2u), *ring = area + warp * a.stages * stage;
    uint8_t *offsets = shared + warp * (4u * 32u); /* [stage][K, V][16] */
    const uint32_t tiles = w.t1 > w.t0 + 16u * warp ? (w.t1 - w.t0 - 16u * warp + 16u * W - 1u) / (16u * W) : 0u; /* this warp's */
    struct ifx_kvc_state<DP> x;
    x.clear();
    x.limit[0] = ifx_kvc_limit(a, w, g);
    x.limit[1] = ifx_kvc_limit(a, w, g + 8u);
    const uint32_t least = w.list != NULL ? w.t1 : ifx_kvc_limit(a, w, 0);

    for (uint32_t i = 0, asked = 0; i < tiles + a.stages; i++) {
        if (i >= a.stages) { /* the tile asked for `stages` turns ago */
            const uint32_t now = i - a.stages, slot = now % a.stages, t = w.t0 + (now * W + warp) * 16u;
            uint8_t *k = ring + slot * stage, *v = k + 16u * row;
            float s[2][4];
            switch (a.stages) {
            case 1: ifx_copy_wait<0>(); break;
            case 2: ifx_copy_wait<1>(); break;
            case 3: ifx_copy_wait<2>(); break;
            default: ifx_copy_wait<3>(); break;
            }
            if (now == 0)
                __syncthreads(); /* Q */
            __syncwarp();
            if (!F::DIRECT) {
                ifx_kvc_decode<F, DP>(a, k, offsets[slot * 32u + lane % 16u], tile, 0);
                __syncwarp();
            }
            ifx_kvc_scores<DP, 16>(ifx_smem(q), ifx_smem(F::DIRECT ? k : tile), s);
            x.template soften<16>(s, t, a.scale);
            if (!F::DIRECT) {
                __syncwarp();
                ifx_kvc_decode<F, DP>(a, v, offsets[slot * 32u + 16u + lane % 16u], tile, 0);
                __syncwarp();
            }
            if (t + 16u > least && t < w.t1) { /* some row does not see all of it */
                const uint32_t bad = ifx_kvc_disarm<DP>(F::DIRECT ? v : tile, 0);
                __syncwarp();
                if (bad)
                    x.template poison<16>(s, t, bad);
            }
            ifx_kvc_values<DP, 16>(s, ifx_smem(F::DIRECT ? v : tile), x.o);
            __syncwarp();
        }
        if (asked < tiles) {
            const uint32_t slot = asked % a.stages;
            const uint64_t k = ifx_kvc_address(a, w, w.t0 + (asked * W + warp) * 16u + lane % 16u);
            const uint64_t v = k != 0 ? k + a.page_tokens * a.row_bytes : 0;
            if (!F::DIRECT && lane < 16u) {
                offsets[slot * 32u + lane] = (uint8_t)ifx_kvc_offset(k);
                offsets[slot * 32u + 16u + lane] = (uint8_t)ifx_kvc_offset(v);
            }
            ifx_kvc_request<F, DP>(a, k, ifx_smem(ring + slot * stage), 0);
            ifx_kvc_request<F, DP>(a, v, ifx_smem(ring + slot * stage + 16u * row), 0);
            asked++;
        }
        ifx_copy_commit();
        if (i == 0) {
            ifx_kvc_load_q<DP, 32 * W>(a, w, IFX_KVC_DECODE_ROWS, q);
            if (tiles == 0)
                __syncthreads();
        }
    }
    x.finish();
    ifx_copy_wait<0>();
    __syncthreads();

    /* The warps' sums meet in shared memory. */
    float *sums = (float *)shared, *acc = (float *)(q + IFX_KVC_DECODE_ROWS * DP * 2u); /* [warp][16][2], [warp][16][DP] */
    if (lane % 4u == 0) {
        sums[(warp * 16u + g) * 2u] = x.m[0], sums[(warp * 16u + g) * 2u + 1u] = x.l[0];
        sums[(warp * 16u + g + 8u) * 2u] = x.m[1], sums[(warp * 16u + g + 8u) * 2u + 1u] = x.l[1];
    }
#pragma unroll
    for (uint32_t f = 0; f < DP / 8; f++) {
        float *to = acc + (warp * 16u + g) * DP + 8u * f + 2u * (lane % 4u);
        *(float2 *)to = make_float2(x.o[f][0], x.o[f][1]);
        *(float2 *)(to + 8u * DP) = make_float2(x.o[f][2], x.o[f][3]);
    }
    __syncthreads();
    for (uint32_t r = threadIdx.x / (DP / 4); r < w.rows; r += 32u * W / (DP / 4)) {
        const uint32_t k = threadIdx.x % (DP / 4) * 4u;
        float top = -INFINITY, l = 0.0f, o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        uint32_t query, head;
#pragma unroll
        for (uint32_t p = 0; p < W; p++)
            top = fmaxf(top, sums[(p * 16u + r) * 2u]);
#pragma unroll
        for (uint32_t p = 0; p < W; p++) {
            const float m = sums[(p * 16u + r) * 2u], share = sums[(p * 16u + r) * 2u + 1u];
            const float f = m == -INFINITY && share == 0.0f ? 0.0f : exp2f(m - top);
            const float4 v = *(const float4 *)(acc + (p * 16u + r) * DP + k);
            l += share * f;
            o[0] += v.x * f, o[1] += v.y * f, o[2] += v.z * f, o[3] += v.w * f;
        }
        ifx_kvc_row(a, w, r, &query, &head);
#pragma unroll
        for (uint32_t i = 0; i < 4u; i++)
            if (k + i < a.d)
                ifx_kvc_put(a, query, head, k + i, o[i], l);
        if (k == 0 && !a.direct)
            ifx_kvc_put_sums(a, query, head, top, l);
    }
}

/* ---- prefill ---- */

/* Rows g and g + 8 of the block, by their warp. */
template <int DP> IFX_DEV void ifx_kvc_put_state(const struct ifx_kvc_args &a, const struct ifx_kvc_work &w, struct ifx_kvc_state<DP> &x, uint32_t g)
{
    const uint32_t lane = threadIdx.x % 32u;
    x.finish();
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t query, head;
        if (g + 8u * h >= w.rows)
            continue;
        ifx_kvc_row(a, w, g + 8u * h, &query, &head);
        if (!a.direct && lane % 4u == 0)
            ifx_kvc_put_sums(a, query, head, x.m[h], x.l[h]);
#pragma unroll
        for (uint32_t f = 0; f < DP / 8; f++)
#pragma unroll
            for (uint32_t i = 0; i < 2; i++)
                if (8u * f + 2u * (lane % 4u) + i < a.d)
                    ifx_kvc_put(a, query, head, 8u * f + 2u * (lane % 4u) + i, x.o[f][2 * h + i], x.l[h]);
    }
}

template <class F, int DP, int TT> struct ifx_kvc_prefill {
    const struct ifx_kvc_args &a;
    struct ifx_kvc_work w;
    uint8_t *q, *k, *v, *tile; /* k, v: what is copied; tile: what is multiplied when that differs */
    uint8_t *offsets;          /* [K, V][TT] */
    uint32_t *bad;             /* [TT / 16] */

    /* The warps share the rows of a tile, 16 at a time. */
    __device__ __forceinline__ void request(uint32_t t, uint32_t which) const
    {
        const uint32_t warp = threadIdx.x / 32u, lane = threadIdx.x % 32u;
        if (t < w.t1) {
            for (uint32_t r = warp * 16u; r < TT; r += 64u) {
                uint64_t at = ifx_kvc_address(a, w, t + r + lane % 16u);
                at = at != 0 && which == 1u ? at + a.page_tokens * a.row_bytes : at;
                if (!F::DIRECT && lane < 16u)
                    offsets[which * TT + r + lane] = (uint8_t)ifx_kvc_offset(at);
                ifx_kvc_request<F, DP>(a, at, ifx_smem(which ? v : k), r);
            }
        }
        ifx_copy_commit();
    }

    __device__ __forceinline__ void decode(uint32_t which) const
    {
        const uint32_t warp = threadIdx.x / 32u, lane = threadIdx.x % 32u;
        for (uint32_t r = warp * 16u; r < TT; r += 64u)
            ifx_kvc_decode<F, DP>(a, which ? v : k, offsets[which * TT + r + lane % 16u], tile, r);
    }

    /* Where some row of the block does not see all tokens of the tile. */
    __device__ __forceinline__ uint64_t disarm(void) const
    {
        uint8_t *values = F::DIRECT ? v : tile;
        const uint32_t warp = threadIdx.x / 32u;
        for (uint32_t r = warp * 16u; r < TT; r += 64u) {
            const uint32_t found = ifx_kvc_disarm<DP>(values, r);
            if (threadIdx.x % 32u == 0)
                bad[r / 16u] = found;
        }
        __syncthreads();
        uint64_t all = 0;
        for (uint32_t i = 0; i < TT / 16u; i++)
            all |= (uint64_t)bad[i] << 16u * i;
        return all;
    }

    __device__ __forceinline__ void run(struct ifx_kvc_state<DP> &x, uint32_t least) const
    {
        const uint32_t warp = threadIdx.x / 32u;
        request(w.t0, 0);
        for (uint32_t t = w.t0; t < w.t1; t += TT) {
            float s[TT / 8][4];
            request(t, 1);
            ifx_copy_wait<1>();
            __syncthreads();
            if (!F::DIRECT) {
                decode(0);
                __syncthreads();
                request(t + TT, 0);
            }
            ifx_kvc_scores<DP, TT>(ifx_smem(q) + warp * 16u * DP * 2u, ifx_smem(F::DIRECT ? k : tile), s);
            x.template soften<TT>(s, t, a.scale);
            if (F::DIRECT) {
                __syncthreads();
                request(t + TT, 0);
            }
            ifx_copy_wait<1>();
            __syncthreads();
            if (!F::DIRECT) {
                decode(1);
                __syncthreads();
            }
            if (t + TT > least) {
                const uint64_t found = disarm();
                if (found)
                    x.template poison<TT>(s, t, found);
            }
            ifx_kvc_values<DP, TT>(s, ifx_smem(F::DIRECT ? v : tile), x.o);
            __syncthreads();
        }
        ifx_copy_wait<0>();
    }
};

template <class F, int DP, int TT> IFX_DEV void ifx_kvc_prefill_kernel(const struct ifx_kvc_args &a, uint8_t *shared)
{
    const uint32_t warp = threadIdx.x / 32u, lane = threadIdx.x % 32u, g = warp * 16u + lane / 4u;
    const uint32_t row = F::DIRECT ? DP * 2u : a.raw_stride;
    struct ifx_kvc_prefill<F, DP, TT> p = {a, ifx_kvc_open_work<IFX_KVC_PREFILL_ROWS>(a)};
    p.q = shared + 2048;
    p.k = p.q + IFX_KVC_PREFILL_ROWS * DP * 2u;
    p.v = p.k + TT * row;
    p.tile = p.v + TT * row;
    p.offsets = shared;
    p.bad = (uint32_t *)(shared + 1024);
    struct ifx_kvc_state<DP> x;
    x.clear();
    x.limit[0] = ifx_kvc_limit(a, p.w, g);
    x.limit[1] = ifx_kvc_limit(a, p.w, g + 8u);
    ifx_kvc_load_q<DP, IFX_KVC_THREADS>(a, p.w, IFX_KVC_PREFILL_ROWS, p.q);
    p.run(x, ifx_kvc_limit(a, p.w, 0));
    ifx_kvc_put_state<DP>(a, p.w, x, g);
}

/* ---- joining parts, and append ---- */

enum { IFX_KVC_MERGE_AHEAD = 16 }; /* parts whose sums are fetched before their weights are known */

/* Grid: columns, heads.  The parts are added in ascending order; a thread has values i and i + 128 of the row. */
IFX_DEV void ifx_kvc_merge_kernel(const struct ifx_kvc_args &a)
{
    const uint32_t query = blockIdx.x, head = blockIdx.y, warp = threadIdx.x / 32u, lane = threadIdx.x % 32u;
    const uint32_t tokens = a.rows != NULL ? a.n_rows[query] : (uint32_t)a.positions[a.n - 1u] + 1u;
    const uint32_t part = ifx_kvc_part(tokens, a.splits), parts = part ? (tokens + part - 1u) / part : 0u;
    const uint64_t at = ((uint64_t)query * a.n_q_heads + head) * a.splits;
    const float *ml = a.part_ml + at * 2u, *acc = a.part_acc + at * a.d;
    __shared__ float weight[IFX_KVC_MAX_SPLITS], sum[IFX_KVC_MAX_SPLITS], tops[IFX_KVC_THREADS / 32u];
    float ahead[2][IFX_KVC_MERGE_AHEAD], top = -INFINITY, l = 0.0f;
#pragma unroll
    for (uint32_t p = 0; p < IFX_KVC_MERGE_AHEAD; p++)
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            const uint32_t i = threadIdx.x + h * IFX_KVC_THREADS;
            ahead[h][p] = p < parts && i < a.d ? acc[(uint64_t)p * a.d + i] : 0.0f;
        }
    for (uint32_t p = threadIdx.x; p < parts; p += IFX_KVC_THREADS)
        top = fmaxf(top, ml[2u * p]);
#pragma unroll
    for (uint32_t step = 16; step > 0; step /= 2)
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    if (lane == 0)
        tops[warp] = top;
    __syncthreads();
#pragma unroll
    for (uint32_t w = 0; w < IFX_KVC_THREADS / 32u; w++)
        top = fmaxf(top, tops[w]);
    for (uint32_t p = threadIdx.x; p < parts; p += IFX_KVC_THREADS) {
        const bool none = ml[2u * p] == -INFINITY && ml[2u * p + 1u] == 0.0f;
        weight[p] = none ? 0.0f : exp2f(ml[2u * p] - top);
        sum[p] = none ? 0.0f : ml[2u * p + 1u] * weight[p];
    }
    __syncthreads();
    for (uint32_t p = 0; p < parts; p++)
        l += sum[p];
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t i = threadIdx.x + h * IFX_KVC_THREADS;
        float o = 0.0f;
        if (i >= a.d)
            continue;
#pragma unroll
        for (uint32_t p = 0; p < IFX_KVC_MERGE_AHEAD; p++)
            if (p < parts)
                o += ahead[h][p] * weight[p];
#pragma unroll 16
        for (uint32_t p = IFX_KVC_MERGE_AHEAD; p < parts; p++)
            o += acc[(uint64_t)p * a.d + i] * weight[p];
        a.out[query * a.ldo + (uint64_t)head * a.d + i] = o / l;
    }
}

/* A warp stores one row. */
template <class F> IFX_DEV void ifx_kvc_append_kernel(const struct ifx_kvc_args &a)
{
    const uint32_t row = blockIdx.x * 4u + threadIdx.x / 32u, per = a.n_kv_heads * 2u, i = row / per;
    if (i >= a.n)
        return;
    const uint32_t head = row % per / 2u, which = row % 2u, token = (uint32_t)a.positions[i];
    uint8_t *page = a.pages[token >> a.page_shift];
    const uint64_t at = (((uint64_t)head * 2u + which) * a.page_tokens + (token & (a.page_tokens - 1u))) * a.row_bytes;
    const float *x = (which ? a.v + i * a.ldv : a.k + i * a.ldk) + (uint64_t)head * a.d;
    F::store(x, a.d, page + at, threadIdx.x % 32u);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define IFX_KVC_PREFILL_TOKENS 32 /* a block has at most 99 KiB of shared memory */
#define IFX_KVC_DECODE_WARPS(F) 4
#else
#define IFX_KVC_PREFILL_TOKENS 64
#define IFX_KVC_DECODE_WARPS(F) F::WARPS
#endif

#define IFX_KVC_KERNELS_OF(F, DP)                                                                                 \
    extern "C" __global__ void __launch_bounds__(32 * IFX_KVC_DECODE_WARPS(F))                                    \
        kv_decode_##DP(const __grid_constant__ struct ifx_kvc_args a)                                             \
    {                                                                                                             \
        ifx_let_next_start();                                                                                     \
        ifx_wait_for_last();                                                                                      \
        ifx_kvc_decode_kernel<F, DP, IFX_KVC_DECODE_WARPS(F)>(a, ifx_kvc_memory);                                 \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(IFX_KVC_THREADS)                                                 \
        kv_prefill_##DP(const __grid_constant__ struct ifx_kvc_args a)                                            \
    {                                                                                                             \
        ifx_let_next_start();                                                                                     \
        ifx_wait_for_last();                                                                                      \
        ifx_kvc_prefill_kernel<F, DP, IFX_KVC_PREFILL_TOKENS>(a, ifx_kvc_memory);                                 \
    }

#include <infernix/kv_skeleton_sm90.cuh>

/* All kernels of a format. */
#define IFX_KV_CUDA_KERNELS(F)                                                                                    \
    extern __shared__ __align__(128) uint8_t ifx_kvc_memory[];                                                    \
    IFX_KVC_KERNELS_OF(F, 64)                                                                                     \
    IFX_KVC_KERNELS_OF(F, 128)                                                                                    \
    IFX_KVC_KERNELS_OF(F, 256)                                                                                    \
    IFX_KVC_HOPPER_KERNELS(F)                                                                                     \
    extern "C" __global__ void __launch_bounds__(IFX_KVC_THREADS) kv_merge(const __grid_constant__ struct ifx_kvc_args a) \
    {                                                                                                             \
        ifx_let_next_start();                                                                                     \
        ifx_wait_for_last();                                                                                      \
        ifx_kvc_merge_kernel(a);                                                                                  \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(IFX_KVC_THREADS) kv_append(const __grid_constant__ struct ifx_kvc_args a) \
    {                                                                                                             \
        ifx_let_next_start();                                                                                     \
        ifx_wait_for_last();                                                                                      \
        ifx_kvc_append_kernel<F>(a);                                                                              \
    }

#endif
