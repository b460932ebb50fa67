/* SPDX-License-Identifier: Apache-2.0
 *
 * select.cu - index keys beside the KV pages, scores of blocks, the tokens of the best of them.
 */
#include "common.cuh"

__device__ __forceinline__ uint16_t *raw_key(const struct ifx_index_plane &p, uint64_t token)
{
    uint8_t *page = (uint8_t *)p.pages[token / p.page_tokens] + p.offset;
    return (uint16_t *)page + token % p.page_tokens * p.d;
}

__device__ __forceinline__ float *block_key(const struct ifx_index_plane &p, uint64_t block)
{
    uint32_t per_page = p.page_tokens / p.ratio;
    uint8_t *page = (uint8_t *)p.pages[block / per_page] + p.offset;
    uint64_t raw = ((uint64_t)p.page_tokens * p.d * 2 + 63) / 64 * 64;
    return (float *)(page + raw) + block % per_page * p.d;
}

/* A block a token. */
KERNEL ifx_index_store(struct ifx_index_append op)
{
    begin_kernel();
    for (uint64_t i = blockIdx.x; i < op.n; i += gridDim.x) {
        uint16_t *to = raw_key(op.plane, (uint64_t)(uint32_t)op.positions[i]);
        for (uint32_t j = threadIdx.x; j < op.plane.d; j += blockDim.x)
            to[j] = ifx_f32_to_bf16(op.k[i * op.ldk + j]);
    }
}

/* A block of threads a token that completes a block of tokens; all raw keys are there. */
KERNEL ifx_index_blocks(struct ifx_index_append op)
{
    begin_kernel();
    __shared__ float shared[32];
    const struct ifx_index_plane &p = op.plane;
    for (uint64_t i = blockIdx.x; i < op.n; i += gridDim.x) {
        uint64_t position = (uint64_t)(uint32_t)op.positions[i];
        if ((position + 1) % p.ratio != 0)
            continue;
        uint64_t block = position / p.ratio;
        float *key = block_key(p, block), sum = 0.0f;
        for (uint32_t j = threadIdx.x; j < p.d; j += blockDim.x) {
            double total = 0;
            for (uint32_t t = 0; t < p.ratio; t++)
                total += ifx_bf16_to_f32(raw_key(p, block * p.ratio + t)[j]);
            float mean = round_bf16((float)(total / p.ratio));
            key[j] = mean;
            sum = fmaf(mean, mean, sum);
        }
        float scale = 1.0f / sqrtf(block_sum(sum, shared) / (float)p.d + op.eps);
        uint32_t half = op.rotary / 2;
        float first = (float)(block * p.ratio);
        for (uint32_t j = threadIdx.x; j < p.d - half; j += blockDim.x)
            if (j < half) {
                float s, c;
                sincosf(first * op.inv_freq[j], &s, &c);
                float a = key[j] * scale * (1.0f + op.w[j]), b = key[j + half] * scale * (1.0f + op.w[j + half]);
                key[j] = fmaf(a, c, -(b * s));
                key[j + half] = fmaf(b, c, a * s);
            } else {
                key[j + half] *= scale * (1.0f + op.w[j + half]);
            }
        __syncthreads();
    }
}

__device__ __forceinline__ uint32_t complete_blocks(const struct ifx_block_select &op, uint64_t query)
{
    int32_t position = op.positions[query];
    uint32_t visible = position < 0 ? 0 : (uint32_t)position < op.max_tokens ? (uint32_t)position + 1 : op.max_tokens;
    return visible / op.plane.ratio;
}

/* A warp a block of tokens; blockIdx.y: query. */
KERNEL ifx_block_scores(struct ifx_block_select op)
{
    begin_kernel();
    uint32_t lane = threadIdx.x & 31, warps = blockDim.x >> 5, most = op.max_tokens / op.plane.ratio + 1;
    for (uint64_t query = blockIdx.y; query < op.n; query += gridDim.y) {
        uint32_t blocks = complete_blocks(op, query);
        float *scores = (float *)op.ws + query * most;
        if ((uint64_t)blocks * op.plane.ratio <= op.budget)
            continue;
        for (uint32_t b = blockIdx.x * warps + (threadIdx.x >> 5); b < blocks; b += gridDim.x * warps) {
            const float *key = block_key(op.plane, b), *q = op.q + query * op.ldq;
            float score = 0.0f;
            for (uint32_t h = 0; h < op.heads; h++, q += op.plane.d) {
                float dot = 0.0f;
                for (uint32_t i = lane; i < op.plane.d; i += 32)
                    dot = fmaf(q[i], key[i], dot);
                dot = warp_sum(dot);
                score += dot > 0.0f ? dot : 0.0f;
            }
            if (lane == 0)
                scores[b] = score / sqrtf((float)op.plane.d);
        }
    }
}

enum { THREADS = 1024 };

/* Bits of the keep-th largest score, and how many of that score are chosen.  Scores are not negative: their bits order like them. */
__device__ uint32_t least_chosen(const float *scores, uint32_t blocks, uint32_t keep, uint32_t &ties)
{
    __shared__ uint32_t counts[256], digit, left;
    uint32_t bits = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256)
            counts[threadIdx.x] = 0;
        __syncthreads();
        for (uint32_t b = threadIdx.x; b < blocks; b += THREADS) {
            uint32_t v = __float_as_uint(scores[b]);
            if (shift == 24 || v >> (shift + 8) == bits >> (shift + 8))
                atomicAdd(&counts[v >> shift & 255], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t d = 255, k = keep;
            while (d > 0 && counts[d] < k)
                k -= counts[d--];
            digit = d;
            left = k;
        }
        __syncthreads();
        bits |= digit << shift;
        keep = left;
    }
    ties = keep;
    return bits;
}

/* A block a query: chosen blocks' tokens ascending, then the tail. */
KERNEL __launch_bounds__(THREADS) ifx_block_rows(struct ifx_block_select op)
{
    begin_kernel();
    uint64_t query = blockIdx.x;
    uint32_t ratio = op.plane.ratio, blocks = complete_blocks(op, query), keep = op.budget / ratio, ties = 0, least = 0;
    int32_t *rows = op.rows + query * op.ld_rows;
    const float *scores = (const float *)op.ws + query * (op.max_tokens / ratio + 1);
    bool all = blocks <= keep;
    if (!all)
        least = least_chosen(scores, blocks, keep, ties);
    uint32_t chosen = 0, tied = 0; /* before this round's blocks */
    for (uint32_t b0 = 0; b0 < blocks; b0 += THREADS) {
        uint32_t b = b0 + threadIdx.x, bits = all || b >= blocks ? 0 : __float_as_uint(scores[b]);
        bool above = b < blocks && (all || bits > least), tie = b < blocks && !all && bits == least;
        uint2 total, before = block_before(make_uint2(above, tie), total);
        uint32_t ties_before = min(tied + before.y, ties);
        uint32_t at = chosen + before.x + ties_before; /* chosen counts those above only */
        if (above || (tie && tied + before.y < ties))
            for (uint32_t i = 0; i < ratio; i++)
                rows[(uint64_t)at * ratio + i] = (int32_t)(b * ratio + i);
        chosen += total.x;
        tied += total.y;
    }
    uint32_t n = (chosen + min(tied, ties)) * ratio;
    int32_t position = op.positions[query];
    uint32_t visible = position < 0 ? 0 : (uint32_t)position + 1, tail = visible - blocks * ratio;
    if (threadIdx.x < tail && tail < ratio)
        rows[n + threadIdx.x] = (int32_t)(blocks * ratio + threadIdx.x);
    if (threadIdx.x == 0)
        op.n_rows[query] = n + (tail < ratio ? tail : 0);
}
