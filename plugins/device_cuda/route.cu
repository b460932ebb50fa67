/* SPDX-License-Identifier: Apache-2.0
 *
 * route.cu - router with top-k, and the pairs of a routing sorted by expert.
 */
#include "common.cuh"

/* ---- router: a warp a column, logits in registers ---- */

/* Orders like the logits, with every NaN below everything else and -0 equal to +0. */
__device__ __forceinline__ uint32_t order_of(float v)
{
    if (v != v)
        return 0;
    uint32_t u = __float_as_uint(v + 0.0f);
    return (u & 0x80000000u ? ~u : u | 0x80000000u);
}

/* The logit of a place in that order. */
__device__ __forceinline__ float logit_of(uint32_t order)
{
    if (order == 0)
        return NAN;
    return __uint_as_float(order & 0x80000000u ? order ^ 0x80000000u : ~order);
}

/* Lane r ends with the id of rank r. */
template <uint32_t EACH> __device__ __forceinline__ int32_t route(const struct ifx_router &op, uint64_t t)
{
    uint32_t lane = threadIdx.x & 31;
    const float *logits = op.logits + t * op.ldl;
    float v[EACH], most = -INFINITY;
    uint32_t left[EACH]; /* 1 + order of those not chosen yet */
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        uint32_t e = lane + 32 * i;
        bool in = e < op.experts;
        v[i] = in ? logits[e] : 0.0f;
        left[i] = in ? order_of(v[i]) + 1 : 0;
        most = in && v[i] > most ? v[i] : most;
    }
#pragma unroll
    for (uint32_t offset = 16; offset > 0; offset >>= 1) {
        float other = __shfl_xor_sync(FULL, most, offset);
        most = other > most ? other : most;
    }
    float sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++)
        if (lane + 32 * i < op.experts)
            sum += expf(v[i] - most);
    sum = warp_sum(sum);
    float mine = 0.0f; /* lane r keeps rank r */
    int32_t mine_id = 0;
    for (uint32_t r = 0; r < op.top_k; r++) {
        uint32_t top = 0, id = UINT32_MAX;
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            id = left[i] > top ? lane + 32 * i : id; /* of equals the first */
            top = left[i] > top ? left[i] : top;
        }
        uint32_t best = __reduce_max_sync(FULL, top);
        id = __reduce_min_sync(FULL, top == best ? id : UINT32_MAX);
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++)
            left[i] = lane + 32 * i == id ? 0 : left[i];
        if (lane == r) {
            mine = logit_of(best - 1);
            mine_id = (int32_t)id;
        }
    }
    mine = lane < op.top_k ? expf(mine - most) / sum : 0.0f;
    float chosen = warp_sum(mine);
    if (lane < op.top_k) {
        op.ids[t * op.top_k + lane] = mine_id;
        op.weights[t * op.top_k + lane] = op.renormalise ? mine / chosen : mine;
    }
    return mine_id;
}

template <uint32_t EACH> __device__ __forceinline__ void route_all(const struct ifx_router &op)
{
    uint32_t warps = blockDim.x >> 5;
    for (uint64_t t = (uint64_t)blockIdx.x * warps + (threadIdx.x >> 5); t < op.n; t += (uint64_t)gridDim.x * warps)
        route<EACH>(op, t);
}

/* Up to 256 experts. */
KERNEL ifx_router_small(struct ifx_router op)
{
    begin_kernel();
    route_all<8>(op);
}

/* Up to 1024. */
KERNEL ifx_router_large(struct ifx_router op)
{
    begin_kernel();
    route_all<32>(op);
}

/* ---- grouping ---- */

__device__ __forceinline__ void place(const struct ifx_group &op, uint32_t entry, uint32_t e)
{
    if (entry < op.n_entries) {
        op.entries[entry] = e;
        if (op.records)
            op.records[entry] = op.table ? op.table[e] : NULL;
    }
}

__device__ __forceinline__ void pad_entries(const struct ifx_group &op, uint32_t from)
{
    for (uint32_t i = from + threadIdx.x; i < op.n_entries; i += blockDim.x) {
        op.entries[i] = UINT32_MAX;
        if (op.records)
            op.records[i] = NULL;
    }
}

enum { FEW_PAIRS = 1024, ROUTE_THREADS = 256, ROUTE_PAIRS = 256 };

/* A decode step: one block, a thread an expert, the pairs in shared memory. */
KERNEL __launch_bounds__(1024) ifx_group_few(struct ifx_group op)
{
    begin_kernel();
    __shared__ int32_t ids[FEW_PAIRS];
    uint32_t pairs = op.n * op.top_k, base = 0, entry0 = 0;
    for (uint32_t p = threadIdx.x; p < pairs; p += blockDim.x)
        ids[p] = op.ids[p];
    __syncthreads();
    for (uint32_t e0 = 0; e0 < op.experts; e0 += 1024) {
        uint32_t e = e0 + threadIdx.x, count = 0;
        bool in = e < op.experts;
        if (in)
            for (uint32_t p = 0; p < pairs; p++)
                count += ids[p] == (int32_t)e;
        uint2 total, before = block_before(make_uint2(count, count > 0), total);
        uint32_t at = base + before.x;
        if (in) {
            op.offsets[e] = at;
            if (count > 0) {
                place(op, entry0 + before.y, e);
                for (uint32_t p = 0; p < pairs; p++)
                    if (ids[p] == (int32_t)e)
                        op.rows[at++] = p;
            }
        }
        base += total.x;
        entry0 += total.y;
    }
    if (threadIdx.x == 0)
        op.offsets[op.experts] = base;
    pad_entries(op, entry0 < op.n_entries ? entry0 : op.n_entries);
}

/* A decode step's router and grouping in one: a warp a column, then a thread an expert counts the pairs of lower ones. */
KERNEL __launch_bounds__(ROUTE_THREADS) ifx_route_few(struct ifx_router router, struct ifx_group op)
{
    __shared__ int32_t ids[ROUTE_PAIRS];
    __shared__ uint32_t first[ROUTE_PAIRS]; /* 1: no pair before has this expert */
    uint32_t pairs = op.n * op.top_k, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    begin_kernel();
    if (warp < router.n) {
        int32_t id = router.experts <= 256 ? route<8>(router, warp) : route<32>(router, warp);
        if (lane < op.top_k)
            ids[warp * op.top_k + lane] = id;
    }
    __syncthreads();
    if (threadIdx.x < pairs) {
        uint32_t before = 0;
        for (uint32_t p = 0; p < threadIdx.x; p++)
            before += ids[p] == ids[threadIdx.x];
        first[threadIdx.x] = before == 0;
    }
    __syncthreads();
    uint32_t touched = 0;
    for (uint32_t p = 0; p < pairs; p++)
        touched += first[p];
    for (uint32_t e = threadIdx.x; e <= op.experts; e += blockDim.x) {
        uint32_t at = 0, entry = 0, count = 0;
        for (uint32_t p = 0; p < pairs; p++) {
            bool lower = ids[p] < (int32_t)e;
            at += lower;
            entry += lower && first[p];
            count += ids[p] == (int32_t)e;
        }
        op.offsets[e] = at;
        if (count > 0 && e < op.experts) {
            place(op, entry, e);
            for (uint32_t p = 0; p < pairs; p++)
                if (ids[p] == (int32_t)e)
                    op.rows[at++] = p;
        }
    }
    pad_entries(op, touched < op.n_entries ? touched : op.n_entries);
}

/* A prompt: a block an expert looks through all pairs, once to count and once to place. */
KERNEL __launch_bounds__(256) ifx_group_count(struct ifx_group op)
{
    begin_kernel();
    __shared__ uint32_t total;
    uint64_t pairs = (uint64_t)op.n * op.top_k;
    int32_t e = (int32_t)blockIdx.x;
    uint32_t count = 0;
    if (threadIdx.x == 0)
        total = 0;
    __syncthreads();
    for (uint64_t p = threadIdx.x; p < pairs; p += 256)
        count += op.ids[p] == e;
    for (uint32_t offset = 16; offset > 0; offset >>= 1)
        count += __shfl_xor_sync(FULL, count, offset);
    if ((threadIdx.x & 31) == 0)
        atomicAdd(&total, count);
    __syncthreads();
    if (threadIdx.x == 0)
        ((uint32_t *)op.ws)[e] = total;
}

KERNEL __launch_bounds__(1024) ifx_group_offsets(struct ifx_group op)
{
    begin_kernel();
    const uint32_t *counts = (const uint32_t *)op.ws;
    uint32_t base = 0, entry0 = 0;
    for (uint32_t e0 = 0; e0 < op.experts; e0 += 1024) {
        uint32_t e = e0 + threadIdx.x, count = e < op.experts ? counts[e] : 0;
        uint2 total, before = block_before(make_uint2(count, count > 0), total);
        if (e < op.experts) {
            op.offsets[e] = base + before.x;
            if (count > 0)
                place(op, entry0 + before.y, e);
        }
        base += total.x;
        entry0 += total.y;
    }
    if (threadIdx.x == 0)
        op.offsets[op.experts] = base;
    pad_entries(op, entry0 < op.n_entries ? entry0 : op.n_entries);
}

KERNEL __launch_bounds__(1024) ifx_group_scatter(struct ifx_group op)
{
    begin_kernel();
    uint64_t pairs = (uint64_t)op.n * op.top_k;
    int32_t e = (int32_t)blockIdx.x;
    uint32_t at = op.offsets[e];
    if (op.offsets[e + 1] == at)
        return;
    for (uint64_t p0 = 0; p0 < pairs; p0 += 4096) {
        uint32_t match[4], count = 0; /* 4 pairs in a row a thread */
        uint64_t p = p0 + 4 * threadIdx.x;
        for (uint32_t i = 0; i < 4; i++) {
            match[i] = p + i < pairs && op.ids[p + i] == e;
            count += match[i];
        }
        uint2 total, before = block_before(make_uint2(count, 0), total);
        uint32_t to = at + before.x;
        for (uint32_t i = 0; i < 4; i++)
            if (match[i])
                op.rows[to++] = (uint32_t)(p + i);
        at += total.x;
    }
}
