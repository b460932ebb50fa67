/* SPDX-License-Identifier: Apache-2.0
 *
 * sample.cu - from logits to a token.
 *
 * Candidates stand in one order: larger logit first, of equals the lower id.  Every filter leaves a beginning of that order, so each
 * is a mass: that of the first k, that of the shortest beginning with p of what top-k leaves, that of the weights from min-p on.  The
 * least of them is kept, and the token is the first whose running mass passes u times it.  Masses are integers (2^-44 is one), so that
 * the order in which threads add them does not matter; a candidate below that is never picked.
 *
 * What is kept usually lies among the few largest.  Every warp of the first pass leaves the largest logit it saw: the k-th of those
 * bounds the k-th of all from below, so the candidates above it are collected and sorted.  Where that does not do, nothing is sorted:
 * the place where a count or a mass is reached is found digit by digit of the logit's bits.
 */
#include "common.cuh"

enum { THREADS = 1024, PARTS = 64, PART_WARPS = 8, MAXIMA = PARTS * PART_WARPS, FIRST = 2048 };

/* What sample_largest leaves a part of a row. */
struct part {
    float value;
    uint32_t id;
    uint32_t bad;
    uint32_t reserved;
    uint32_t keys[PART_WARPS]; /* of the largest logit of each warp */
};

/* A logit after penalties. */
__device__ __forceinline__ float penalised(const struct ifx_sample &op, float v, const uint32_t *history, uint32_t i)
{
    uint32_t h = history ? history[i] : 0, count = h & IFX_HISTORY_COUNT;
    if (h)
        v = v > 0.0f ? v / op.repetition_penalty : v * op.repetition_penalty;
    if (count)
        v -= op.presence_penalty + op.frequency_penalty * (float)count;
    return v;
}

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

/* Larger logits have larger keys. */
__device__ __forceinline__ uint32_t key_of(float v)
{
    uint32_t u = __float_as_uint(v + 0.0f); /* -0 is 0 */
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

__device__ __forceinline__ float logit_of_key(uint32_t key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* Largest logit of a part (blockIdx.x) of a row (blockIdx.y), and whether one is not finite. */
KERNEL __launch_bounds__(256) ifx_sample_largest(struct ifx_sample op)
{
    begin_kernel();
    const float *logits = op.logits + blockIdx.y * op.ldl;
    const uint32_t *history = op.history ? op.history + (uint64_t)blockIdx.y * op.vocab : NULL;
    struct part *out = (struct part *)op.ws + blockIdx.y * PARTS + blockIdx.x;
    best b = {-INFINITY, UINT32_MAX, 0};
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < op.vocab; i += gridDim.x * blockDim.x) {
        float v = logits[i];
        b.bad |= (__float_as_uint(v) & 0x7f800000u) == 0x7f800000u;
        v = penalised(op, v, history, i);
        if (better(v, i, b.value, b.id)) {
            b.value = v;
            b.id = i;
        }
    }
    uint32_t key = b.id == UINT32_MAX ? 0 : key_of(b.value);
    for (uint32_t offset = 16; offset > 0; offset >>= 1)
        key = max(key, __shfl_xor_sync(FULL, key, offset));
    if ((threadIdx.x & 31) == 0)
        out->keys[threadIdx.x >> 5] = key;
    b = block_best(b);
    if (threadIdx.x == 0) {
        out->value = b.value;
        out->id = b.id;
        out->bad = b.bad;
    }
}

struct row {
    const struct ifx_sample *op;
    const float *logits;
    const uint32_t *history;
    uint32_t vocab;
    float most, temperature;
};

__device__ __forceinline__ float logit_of(const row &r, uint32_t i)
{
    return penalised(*r.op, r.logits[i], r.history, i);
}

__device__ __forceinline__ float weight_of(const row &r, float logit)
{
    return ifx_exp((logit - r.most) / r.temperature);
}

__device__ __forceinline__ uint64_t mass_of(const row &r, float logit)
{
    return (uint64_t)(weight_of(r, logit) * 0x1p44f);
}

/* The sum over a block, in every thread. */
__device__ uint64_t block_total(uint64_t sum, uint64_t *shared)
{
    for (uint32_t offset = 16; offset > 0; offset >>= 1)
        sum += __shfl_xor_sync(FULL, sum, offset);
    if (threadIdx.x == 0)
        *shared = 0;
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        atomicAdd((unsigned long long *)shared, (unsigned long long)sum);
    __syncthreads();
    sum = *shared;
    __syncthreads();
    return sum;
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
        for (uint32_t i0 = 0; i0 < r.vocab; i0 += THREADS) {
            uint32_t i = i0 + threadIdx.x;
            float v = i < r.vocab ? logit_of(r, i) : 0.0f;
            uint32_t key = key_of(v);
            uint64_t mass = mass_of(r, v);
            bool in = i < r.vocab && (BY_COUNT || mass) && (shift == 24 || key >> (shift + 8) == p.key >> (shift + 8));
            /* Most candidates of a warp share a digit: one of them adds for all. */
            uint32_t digit = in ? key >> shift & 255 : 256, peers = __match_any_sync(FULL, digit);
            uint64_t low = __reduce_add_sync(peers, (uint32_t)mass & 0x3fffff), high = __reduce_add_sync(peers, (uint32_t)(mass >> 22));
            if (in && (threadIdx.x & 31) == __ffs(peers) - 1) {
                atomicAdd(&s.count[digit], __popc(peers));
                atomicAdd((unsigned long long *)&s.mass[digit], (unsigned long long)(low + (high << 22)));
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
        float v = logit_of(r, i);
        sum += weight_of(r, v) >= min_weight ? mass_of(r, v) : 0;
    }
    return block_total(sum, &s.above);
}

/* The rank-th (from 0) candidate of that key, by id. */
__device__ int32_t nth_of_key(const row &r, uint32_t key, uint32_t rank, select_shared &s)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (threadIdx.x == 0)
        s.digit = UINT32_MAX;
    for (uint32_t i0 = 0; i0 < r.vocab; i0 += THREADS) {
        uint32_t i = i0 + threadIdx.x;
        bool match = i < r.vocab && key_of(logit_of(r, i)) == key;
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

/* ---- among the largest ---- */

struct first_shared {
    uint64_t sorted[FIRST]; /* key, then the lower id first; largest first */
    uint64_t running[FIRST];
    uint64_t total, warps[32];
    uint32_t n, found;
};

/* Descending; n a power of two. */
__device__ void sort(uint64_t *v, uint32_t n)
{
    for (uint32_t size = 2; size <= n; size <<= 1)
        for (uint32_t stride = size >> 1; stride > 0; stride >>= 1) {
            for (uint32_t i = threadIdx.x; i < n / 2; i += THREADS) {
                uint32_t a = 2 * i - (i & (stride - 1)), b = a + stride;
                bool descending = (a & size) == 0;
                uint64_t x = v[a], y = v[b];
                if ((x < y) == descending) {
                    v[a] = y;
                    v[b] = x;
                }
            }
            __syncthreads();
        }
}

/* The candidates from the k-th largest of the warps' on, sorted; the mass of all.  False: there are too many. */
__device__ bool collect(const row &r, const struct part *parts, uint32_t k, bool all_mass, first_shared &f)
{
    for (uint32_t i = threadIdx.x; i < MAXIMA; i += THREADS)
        f.sorted[i] = parts[i / PART_WARPS].keys[i % PART_WARPS];
    if (threadIdx.x == 0)
        f.n = 0;
    __syncthreads();
    sort(f.sorted, MAXIMA);
    uint32_t least = (uint32_t)f.sorted[k - 1];
    uint64_t mass = 0;
    __syncthreads();
    for (uint32_t i0 = 0; i0 < r.vocab; i0 += THREADS) {
        uint32_t i = i0 + threadIdx.x;
        float v = i < r.vocab ? logit_of(r, i) : 0.0f;
        uint32_t key = key_of(v);
        mass += all_mass && i < r.vocab ? mass_of(r, v) : 0;
        if (i < r.vocab && key >= least) {
            uint32_t at = atomicAdd(&f.n, 1u);
            if (at < FIRST)
                f.sorted[at] = (uint64_t)key << 32 | (uint32_t)~i;
        }
    }
    mass = block_total(mass, &f.total);
    if (threadIdx.x == 0)
        f.total = mass;
    for (uint32_t i = f.n + threadIdx.x; i < FIRST; i += THREADS)
        f.sorted[i] = 0;
    __syncthreads();
    if (f.n > FIRST)
        return false;
    sort(f.sorted, FIRST);
    return true;
}

/* Running masses of the first n candidates. */
__device__ void accumulate(const row &r, uint32_t n, first_shared &f)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, i = 2 * threadIdx.x;
    uint64_t a = i < n ? mass_of(r, logit_of_key((uint32_t)(f.sorted[i] >> 32))) : 0;
    uint64_t b = i + 1 < n ? mass_of(r, logit_of_key((uint32_t)(f.sorted[i + 1] >> 32))) : 0, sum = a + b;
    for (uint32_t offset = 1; offset < 32; offset <<= 1) {
        uint64_t other = __shfl_up_sync(FULL, sum, offset);
        sum += lane >= offset ? other : 0;
    }
    if (lane == 31)
        f.warps[warp] = sum;
    __syncthreads();
    for (uint32_t w = 0; w < warp; w++)
        sum += f.warps[w];
    f.running[i] = sum - b;
    f.running[i + 1] = sum;
    __syncthreads();
}

/* The first of n whose running mass is at least the target; n: none. */
__device__ uint32_t reach(uint64_t target, uint32_t n, first_shared &f)
{
    if (threadIdx.x == 0)
        f.found = n;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        if (f.running[i] >= target && (i == 0 || f.running[i - 1] < target))
            f.found = i;
    __syncthreads();
    uint32_t found = f.found;
    __syncthreads();
    return found;
}

/* How many of the sorted candidates have at least the weight. */
__device__ uint32_t heavy(const row &r, float weight, uint32_t n, first_shared &f)
{
    if (threadIdx.x == 0)
        f.found = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        if (weight_of(r, logit_of_key((uint32_t)(f.sorted[i] >> 32))) >= weight)
            atomicAdd(&f.found, 1u);
    __syncthreads();
    uint32_t found = f.found;
    __syncthreads();
    return found;
}

/* -1: what is kept does not lie among the largest. */
__device__ int32_t pick_first(const row &r, const struct part *parts, float u, first_shared &f)
{
    const struct ifx_sample &op = *r.op;
    bool limited = op.top_k && op.top_k < op.vocab;
    if (limited && op.top_k > MAXIMA / 2)
        return -1;
    if (!collect(r, parts, limited ? op.top_k : MAXIMA / 2, !limited, f))
        return -1;
    uint32_t n = limited ? op.top_k : f.n;
    accumulate(r, n, f);
    bool whole = limited || f.n == op.vocab, cut = limited; /* nothing follows; what is kept is known */
    uint64_t total = limited ? f.running[n - 1] : f.total, kept = total;
    if (op.top_p < 1.0f) {
        uint64_t target = (uint64_t)ceil((double)op.top_p * (double)total);
        uint32_t at = reach(target ? target : 1, n, f);
        if (at < n) {
            kept = f.running[at] < kept ? f.running[at] : kept;
            cut = true;
        }
    }
    if (op.min_p > 0.0f) {
        uint32_t count = heavy(r, op.min_p, n, f);
        if (count > 0 && (count < n || whole)) {
            kept = f.running[count - 1] < kept ? f.running[count - 1] : kept;
            cut = true;
        }
    }
    if (!cut && (op.top_p < 1.0f || op.min_p > 0.0f) && !whole)
        return -1;
    uint64_t target = (uint64_t)((double)u * (double)kept) + 1;
    uint32_t at = reach(target < kept ? target : kept, n, f);
    return at < n ? (int32_t)~(uint32_t)f.sorted[at] : -1;
}

/* ---- anywhere ---- */

__device__ int32_t pick_anywhere(const row &r, float u, select_shared &s)
{
    const struct ifx_sample &op = *r.op;
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
    uint64_t target = (uint64_t)((double)u * (double)kept) + 1;
    target = target < kept ? target : kept;
    place p = select<false>(r, target, s);
    uint32_t rank = p.each ? (uint32_t)((target - p.above - 1) / p.each) : 0;
    return nth_of_key(r, p.key, rank < p.ties ? rank : p.ties - 1, s);
}

/* One block a row, after sample_largest. */
KERNEL __launch_bounds__(THREADS) ifx_sample_pick(struct ifx_sample op)
{
    begin_kernel();
    __shared__ union {
        select_shared s;
        first_shared f;
    } shared;
    __shared__ best first;
    const struct part *parts = (const struct part *)op.ws + blockIdx.x * PARTS;
    uint32_t *history = op.history ? op.history + (uint64_t)blockIdx.x * op.vocab : NULL;
    best b = {-INFINITY, UINT32_MAX, 0};
    if (threadIdx.x < PARTS)
        b = {parts[threadIdx.x].value, parts[threadIdx.x].id, parts[threadIdx.x].bad};
    b = block_best(b);
    if (threadIdx.x == 0)
        first = b;
    __syncthreads();
    int32_t token = first.bad ? -1 : (int32_t)first.id;
    if (!first.bad && op.temperature != 0.0f) {
        row r = {&op, op.logits + blockIdx.x * op.ldl, history, op.vocab, first.value, op.temperature};
        token = pick_first(r, parts, op.u[blockIdx.x], shared.f);
        __syncthreads();
        if (token < 0)
            token = pick_anywhere(r, op.u[blockIdx.x], shared.s);
    }
    __syncthreads(); /* every logit was read */
    if (threadIdx.x == 0) {
        op.tokens[blockIdx.x] = token;
        if (history && token >= 0)
            history[token]++;
    }
}
