/* SPDX-License-Identifier: Apache-2.0
 *
 * sample.cu - from logits to a token.
 *
 * Candidates stand in one order: larger logit first, of equals the lower id.  Every filter leaves a beginning of that order, so each
 * is a mass: that of the first k, that of the shortest beginning with p of what top-k leaves, that of the weights from min-p on.  The
 * least of them is kept, and the token is the first whose running mass passes u times it.  Nothing is sorted: the place where a count
 * or a mass is reached is found digit by digit of the logit's bits.  Masses are integers (2^-44 is one), so that the order in which
 * threads add them does not matter; a candidate below that is never picked.
 */
#include "common.cuh"

enum { THREADS = 1024, PARTS = 64 };

/* What sample_largest leaves a part of a row. */
struct part {
    float value;
    uint32_t id;
    uint32_t bad;
    uint32_t reserved;
};

__device__ __forceinline__ bool better(float a, uint32_t ia, float b, uint32_t ib)
{
    return a > b || (a == b && ia < ib);
}

struct best {
    float value;
    uint32_t id, bad;
};

/* In thread 0. */
__device__ __forceinline__ best block_best(best b)
{
    __shared__ best warps[32];
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t offset = 16; offset > 0; offset >>= 1) {
            float v = __shfl_down_sync(FULL, b.value, offset);
            uint32_t id = __shfl_down_sync(FULL, b.id, offset), bad = __shfl_down_sync(FULL, b.bad, offset);
            if (better(v, id, b.value, b.id)) {
                b.value = v;
                b.id = id;
            }
            b.bad |= bad;
        }
        if (round == 1)
            return b;
        if (lane == 0)
            warps[warp] = b;
        __syncthreads();
        b = lane < (blockDim.x >> 5) ? warps[lane] : best{-INFINITY, UINT32_MAX, 0};
    }
    return b;
}

/* Largest logit of a part (blockIdx.x) of a row (blockIdx.y), and whether one is not finite. */
KERNEL __launch_bounds__(256) ifx_sample_largest(struct ifx_sample op)
{
    begin_kernel();
    const float *logits = op.logits + blockIdx.y * op.ldl;
    best b = {-INFINITY, UINT32_MAX, 0};
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < op.vocab; i += gridDim.x * blockDim.x) {
        float v = logits[i];
        b.bad |= (__float_as_uint(v) & 0x7f800000u) == 0x7f800000u;
        if (better(v, i, b.value, b.id)) {
            b.value = v;
            b.id = i;
        }
    }
    b = block_best(b);
    if (threadIdx.x == 0)
        ((struct part *)op.ws)[blockIdx.y * PARTS + blockIdx.x] = {b.value, b.id, b.bad, 0};
}

/* Larger logits have larger keys. */
__device__ __forceinline__ uint32_t key_of(float v)
{
    uint32_t u = __float_as_uint(v + 0.0f); /* -0 is 0 */
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

struct row {
    const float *logits;
    uint32_t vocab;
    float most, temperature;
};

__device__ __forceinline__ uint64_t mass_of(const row &r, float logit)
{
    return (uint64_t)(ifx_exp((logit - r.most) / r.temperature) * 0x1p44f);
}

/* Where the order reaches a target: `key` the logit there, `above` the mass and `count_above` the number of candidates before the first
 * of that logit, `each` the mass of one of them, `ties` their number. */
struct place {
    uint32_t key;
    uint64_t above, each;
    uint32_t count_above, ties;
};

struct select_shared {
    uint64_t mass[256];
    uint32_t count[256];
    uint32_t digit, count_above;
    uint64_t above;
};

/* BY_COUNT: the target-th candidate (from 1); else the first whose running mass is at least the target (>= 1). */
template <bool BY_COUNT> __device__ place select(const row &r, uint64_t target, select_shared &s)
{
    place p = {};
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (uint32_t i = threadIdx.x; i < 256; i += THREADS) {
            s.mass[i] = 0;
            s.count[i] = 0;
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < r.vocab; i += THREADS) {
            float v = r.logits[i];
            uint32_t key = key_of(v);
            if (shift < 24 && key >> (shift + 8) != p.key >> (shift + 8))
                continue;
            uint64_t mass = mass_of(r, v);
            uint32_t digit = key >> shift & 255;
            if (BY_COUNT || mass) {
                atomicAdd(&s.count[digit], 1u);
                atomicAdd((unsigned long long *)&s.mass[digit], (unsigned long long)mass);
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            uint64_t above = p.above, counted = p.count_above;
            uint32_t digit = 255;
            for (;; digit--) {
                uint64_t reached = BY_COUNT ? counted + s.count[digit] : above + s.mass[digit];
                if (reached >= target || digit == 0)
                    break;
                above += s.mass[digit];
                counted += s.count[digit];
            }
            s.digit = digit;
            s.above = above;
            s.count_above = (uint32_t)counted;
        }
        __syncthreads();
        p.key |= s.digit << shift;
        p.above = s.above;
        p.count_above = s.count_above;
        p.ties = s.count[s.digit];
        p.each = p.ties ? s.mass[s.digit] / p.ties : 0; /* in the last round they are equal */
        __syncthreads();
    }
    return p;
}

/* Mass of all candidates, or of those of at least min_weight. */
__device__ uint64_t total_mass(const row &r, float min_weight, select_shared &s)
{
    uint64_t sum = 0;
    for (uint32_t i = threadIdx.x; i < r.vocab; i += THREADS) {
        float w = ifx_exp((r.logits[i] - r.most) / r.temperature);
        sum += w >= min_weight ? mass_of(r, r.logits[i]) : 0;
    }
    for (uint32_t offset = 16; offset > 0; offset >>= 1)
        sum += __shfl_xor_sync(FULL, sum, offset);
    if (threadIdx.x == 0)
        s.above = 0;
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        atomicAdd((unsigned long long *)&s.above, (unsigned long long)sum);
    __syncthreads();
    sum = s.above;
    __syncthreads();
    return sum;
}

/* The rank-th (from 0) candidate of that key, by id. */
__device__ int32_t nth_of_key(const row &r, uint32_t key, uint32_t rank, select_shared &s)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (threadIdx.x == 0)
        s.digit = UINT32_MAX;
    for (uint32_t i0 = 0; i0 < r.vocab; i0 += THREADS) {
        uint32_t i = i0 + threadIdx.x;
        bool match = i < r.vocab && key_of(r.logits[i]) == key;
        uint32_t votes = __ballot_sync(FULL, match);
        if (lane == 0)
            s.count[warp] = __popc(votes);
        __syncthreads();
        uint32_t before = 0, all = 0;
        for (uint32_t w = 0; w < THREADS / 32; w++) {
            before += w < warp ? s.count[w] : 0;
            all += s.count[w];
        }
        if (match && before + __popc(votes & ((1u << lane) - 1)) == rank)
            s.digit = i;
        __syncthreads();
        if (all > rank)
            break;
        rank -= all;
    }
    return (int32_t)s.digit;
}

/* One block a row, after sample_largest. */
KERNEL __launch_bounds__(THREADS) ifx_sample_pick(struct ifx_sample op)
{
    begin_kernel();
    __shared__ select_shared s;
    __shared__ best first;
    const struct part *parts = (const struct part *)op.ws + blockIdx.x * PARTS;
    best b = {-INFINITY, UINT32_MAX, 0};
    if (threadIdx.x < PARTS)
        b = {parts[threadIdx.x].value, parts[threadIdx.x].id, parts[threadIdx.x].bad};
    b = block_best(b);
    if (threadIdx.x == 0) {
        first = b;
        if (b.bad || op.temperature == 0.0f)
            op.tokens[blockIdx.x] = b.bad ? -1 : (int32_t)b.id;
    }
    __syncthreads();
    if (first.bad || op.temperature == 0.0f)
        return;
    row r = {op.logits + blockIdx.x * op.ldl, op.vocab, first.value, op.temperature};
    uint64_t kept;
    if (op.top_k && op.top_k < op.vocab) {
        place p = select<true>(r, op.top_k, s);
        kept = p.above + (op.top_k - p.count_above) * p.each;
    } else {
        kept = total_mass(r, 0.0f, s);
    }
    if (op.top_p < 1.0f) {
        uint64_t target = (uint64_t)ceil((double)op.top_p * (double)kept);
        place p = select<false>(r, target ? target : 1, s);
        uint64_t need = target > p.above ? target - p.above : 1, each = p.each ? p.each : 1;
        uint64_t mass = p.above + (need + each - 1) / each * each;
        kept = mass < kept ? mass : kept;
    }
    if (op.min_p > 0.0f) {
        uint64_t mass = total_mass(r, op.min_p, s);
        kept = mass < kept ? mass : kept;
    }
    /* The first whose running mass is above u * kept. */
    uint64_t target = (uint64_t)((double)op.u[blockIdx.x] * (double)kept) + 1;
    place p = select<false>(r, target < kept ? target : kept, s);
    uint64_t into = (target < kept ? target : kept) - p.above - 1;
    uint32_t rank = p.each ? (uint32_t)(into / p.each) : 0;
    int32_t token = nth_of_key(r, p.key, rank < p.ties ? rank : p.ties - 1, s);
    if (threadIdx.x == 0)
        op.tokens[blockIdx.x] = token;
}
