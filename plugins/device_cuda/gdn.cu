/* SPDX-License-Identifier: Apache-2.0
 *
 * gdn.cu - gated delta net: gates, causal convolution, the gated delta rule token by token and in chunks.
 *
 * Chunked form.  With G the running sum of g inside a chunk and S the state before it, the recurrence unrolls to
 *     (I + L) U = beta V - beta exp(G) K S       L[t, s] = beta[t] exp(G[t] - G[s]) (k[t] . k[s]),  s < t
 *     o[t] = exp(G[t]) q[t] S + sum over s <= t of A[t, s] U[s]       A[t, s] = exp(G[t] - G[s]) (q[t] . k[s])
 *     S' = exp(G_last) S + sum over s of exp(G_last - G[s]) k[s] U[s]^T
 * delta_chunks solves the triangular system for both right sides, chunk by chunk in parallel: U = Ubase - W S.  delta_scan then walks
 * through the chunks with the state, a slice of the values to a block.  Products run on the tensor cores in TF32, each operand split
 * into two parts, which keeps the accuracy of float32: the state must not drift.
 */
#include "common.cuh"
#include "gdn_args.h"

/* ---- gates ---- */

KERNEL ifx_gdn_gate(struct ifx_gdn_gate op)
{
    begin_kernel();
    uint64_t total = (uint64_t)op.n * op.heads;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += (uint64_t)gridDim.x * blockDim.x) {
        uint64_t t = i / op.heads;
        uint32_t h = (uint32_t)(i % op.heads);
        op.g[i] = -expf(op.a_log[h]) * softplus(op.a[t * op.lda + h] + op.dt_bias[h]);
        op.beta[i] = sigmoid(op.b[t * op.ldb + h]);
    }
}

/* ---- convolution ---- */

__device__ __forceinline__ float conv_input(const struct ifx_conv &op, int64_t t, uint32_t c, uint32_t kept)
{
    return t >= 0 ? op.x[t * (int64_t)op.ldx + c] : op.state[(uint64_t)c * kept + (uint64_t)(t + kept)];
}

__device__ __forceinline__ float conv_output(const struct ifx_conv &op, int64_t t, uint32_t c, uint32_t dilation, uint32_t kept)
{
    float sum = 0.0f;
    for (uint32_t j = 0; j < op.kernel; j++)
        sum = fmaf(op.w[(uint64_t)c * op.kernel + j], conv_input(op, t - (int64_t)(op.kernel - 1 - j) * dilation, c, kept), sum);
    return silu(sum);
}

/* Oldest first: each value comes from this place or a later one. */
__device__ __forceinline__ void conv_keep(const struct ifx_conv &op, uint32_t c, uint32_t kept)
{
    for (uint32_t j = 0; j < kept; j++)
        op.state[(uint64_t)c * kept + j] = conv_input(op, (int64_t)op.n + j - kept, c, kept);
}

/* Few tokens: one thread a channel does all of them and the state. */
KERNEL ifx_conv_few(struct ifx_conv op)
{
    begin_kernel();
    uint32_t c = blockIdx.x * blockDim.x + threadIdx.x, dilation = op.dilation ? op.dilation : 1, kept = (op.kernel - 1) * dilation;
    if (c >= op.channels)
        return;
    for (uint32_t t = 0; t < op.n; t++)
        op.y[t * op.ldy + c] = conv_output(op, t, c, dilation, kept);
    conv_keep(op, c, kept);
}

enum { CONV_TOKENS = 16 }; /* a thread */

/* Without dilation a window of the last inputs moves along the tokens, so each is read once. */
template <uint32_t TAPS> __device__ __forceinline__ void conv_window(const struct ifx_conv &op, uint32_t c, uint64_t t0)
{
    float w[TAPS], in[TAPS - 1 + CONV_TOKENS];
#pragma unroll
    for (uint32_t j = 0; j < TAPS; j++)
        w[j] = op.w[(uint64_t)c * TAPS + j];
#pragma unroll
    for (uint32_t i = 0; i < TAPS - 1 + CONV_TOKENS; i++) {
        int64_t t = (int64_t)(t0 + i) - (TAPS - 1);
        in[i] = t < (int64_t)op.n ? conv_input(op, t, c, TAPS - 1) : 0.0f;
    }
#pragma unroll
    for (uint32_t i = 0; i < CONV_TOKENS; i++) {
        float sum = 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < TAPS; j++)
            sum = fmaf(w[j], in[i + j], sum);
        if (t0 + i < op.n)
            op.y[(t0 + i) * op.ldy + c] = silu(sum);
    }
}

KERNEL ifx_conv_many(struct ifx_conv op)
{
    begin_kernel();
    uint32_t c = blockIdx.x * blockDim.x + threadIdx.x, dilation = op.dilation ? op.dilation : 1, kept = (op.kernel - 1) * dilation;
    if (c >= op.channels)
        return;
    for (uint64_t t0 = (uint64_t)blockIdx.y * CONV_TOKENS; t0 < op.n; t0 += (uint64_t)gridDim.y * CONV_TOKENS)
        if (op.kernel == 4 && dilation == 1)
            conv_window<4>(op, c, t0);
        else
            for (uint64_t t = t0; t < t0 + CONV_TOKENS && t < op.n; t++)
                op.y[t * op.ldy + c] = conv_output(op, (int64_t)t, c, dilation, kept);
}

/* After conv_many has read the old state. */
KERNEL ifx_conv_state(struct ifx_conv op)
{
    begin_kernel();
    uint32_t c = blockIdx.x * blockDim.x + threadIdx.x, dilation = op.dilation ? op.dilation : 1;
    if (c < op.channels)
        conv_keep(op, c, (op.kernel - 1) * dilation);
}

/* ---- token by token ---- */

enum { STEP_COLUMNS = 16, STEP_GROUPS = 16, STEP_THREADS = STEP_COLUMNS * STEP_GROUPS };

/* q and k of a token, normalised, in shared memory; returns k . q. */
__device__ __forceinline__ float step_keys(const struct ifx_gated_delta &op, uint64_t t, uint32_t key_head, float *ks, float *qs,
                                           float (*sums)[3])
{
    uint32_t i = threadIdx.x, lane = i & 31, warp = i >> 5;
    float q = i < op.dk ? op.q[t * op.ldq + (uint64_t)key_head * op.dk + i] : 0.0f;
    float k = i < op.dk ? op.k[t * op.ldk + (uint64_t)key_head * op.dk + i] : 0.0f;
    float qq = warp_sum(q * q), kk = warp_sum(k * k), kq = warp_sum(k * q);
    if (lane == 0) {
        sums[warp][0] = qq;
        sums[warp][1] = kk;
        sums[warp][2] = kq;
    }
    __syncthreads();
    qq = kk = kq = 0.0f;
#pragma unroll
    for (uint32_t w = 0; w < STEP_THREADS / 32; w++) {
        qq += sums[w][0];
        kk += sums[w][1];
        kq += sums[w][2];
    }
    float q_scale = 1.0f / sqrtf(qq + 1e-6f) / sqrtf((float)op.dk), k_scale = 1.0f / sqrtf(kk + 1e-6f);
    ks[i] = k * k_scale;
    qs[i] = q * q_scale;
    return kq * k_scale * q_scale;
}

/* A block carries STEP_COLUMNS values of a head; a thread ROWS x 1 of the state. */
template <uint32_t ROWS> __device__ __forceinline__ void steps(const struct ifx_gated_delta &op)
{
    __shared__ float ks[STEP_THREADS], qs[STEP_THREADS], sums[STEP_THREADS / 32][3], parts[2][STEP_THREADS / 32][STEP_COLUMNS];
    uint32_t h = blockIdx.x, key_head = h / (op.v_heads / op.k_heads);
    uint32_t group = threadIdx.x / STEP_COLUMNS, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    uint32_t in_block = threadIdx.x % STEP_COLUMNS, column = blockIdx.y * STEP_COLUMNS + in_block;
    bool in = column < op.dv;
    float *state = op.state + (uint64_t)h * op.dk * op.dv + column;
    float S[ROWS];
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++) {
        uint32_t i = group + r * STEP_GROUPS;
        S[r] = in && i < op.dk ? state[(uint64_t)i * op.dv] : 0.0f;
    }
    for (uint64_t t = 0; t < op.n; t++) {
        float kq = step_keys(op, t, key_head, ks, qs, sums);
        float decay = expf(op.g[t * op.v_heads + h]), beta = op.beta[t * op.v_heads + h];
        float v = in ? op.v[t * op.ldv + (uint64_t)h * op.dv + column] : 0.0f;
        float sk = 0.0f, sq = 0.0f;
        __syncthreads();
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++) {
            uint32_t i = group + r * STEP_GROUPS;
            S[r] *= decay;
            sk = fmaf(S[r], ks[i], sk);
            sq = fmaf(S[r], qs[i], sq);
        }
        sk += __shfl_xor_sync(FULL, sk, 16);
        sq += __shfl_xor_sync(FULL, sq, 16);
        if (lane < STEP_COLUMNS) {
            parts[0][warp][lane] = sk;
            parts[1][warp][lane] = sq;
        }
        __syncthreads();
        sk = sq = 0.0f;
#pragma unroll
        for (uint32_t w = 0; w < STEP_THREADS / 32; w++) {
            sk += parts[0][w][in_block];
            sq += parts[1][w][in_block];
        }
        float u = beta * (v - sk);
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++)
            S[r] = fmaf(ks[group + r * STEP_GROUPS], u, S[r]);
        if (in && group == 0)
            op.out[t * op.ldo + (uint64_t)h * op.dv + column] = fmaf(kq, u, sq);
        __syncthreads(); /* ks, qs and parts are free */
    }
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++) {
        uint32_t i = group + r * STEP_GROUPS;
        if (in && i < op.dk)
            state[(uint64_t)i * op.dv] = S[r];
    }
}

KERNEL __launch_bounds__(STEP_THREADS) ifx_delta_steps(struct ifx_gated_delta op)
{
    begin_kernel();
    if (op.dk <= 8 * STEP_GROUPS)
        steps<8>(op);
    else
        steps<16>(op);
}

/* ---- chunks ---- */

__device__ __forceinline__ void mma_tf32(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* x = high + low, each of 11 bits or nearly. */
__device__ __forceinline__ void split_tf32(float x, uint32_t &high, uint32_t &low)
{
    high = __float_as_uint(x) & 0xffffe000u;
    low = __float_as_uint(x - __uint_as_float(high));
}

struct frag_a {
    uint32_t high[4], low[4];
};

__device__ __forceinline__ frag_a make_a(float a0, float a1, float a2, float a3)
{
    frag_a f;
    split_tf32(a0, f.high[0], f.low[0]);
    split_tf32(a1, f.high[1], f.low[1]);
    split_tf32(a2, f.high[2], f.low[2]);
    split_tf32(a3, f.high[3], f.low[3]);
    return f;
}

/* c += a b, the small terms first. */
__device__ __forceinline__ void mma_f32(float c[4], const frag_a &a, float b0, float b1)
{
    uint32_t h0, l0, h1, l1;
    split_tf32(b0, h0, l0);
    split_tf32(b1, h1, l1);
    mma_tf32(c, a.low, h0, h1);
    mma_tf32(c, a.high, l0, l1);
    mma_tf32(c, a.high, h0, h1);
}

struct chunk_shared {
    float *k, *q, *L;                      /* [CHUNK, KEY_LD] twice, [CHUNK, L_LD] */
    float *g_high, *g_low, *beta, *decay; /* [CHUNK] each */
};

/* exp(G[t] - G[s]): the sums are kept in two parts, since total decays of hundreds leave a float32 sum no digits for a difference. */
__device__ __forceinline__ float decay_between(const chunk_shared &s, uint32_t t, uint32_t from)
{
    return expf((s.g_high[t] - s.g_high[from]) + (s.g_low[t] - s.g_low[from]));
}

__device__ __forceinline__ void load_keys(const struct ifx_gated_delta &op, const chunk_shared &s, uint64_t t0, uint32_t tokens, uint32_t key_head)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (uint32_t t = warp; t < CHUNK; t += 8) {
        const float *k = op.k + (t0 + t) * op.ldk + (uint64_t)key_head * op.dk, *q = op.q + (t0 + t) * op.ldq + (uint64_t)key_head * op.dk;
        float kv[4], qv[4], kk = 0.0f, qq = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t d = lane + 32 * i;
            bool in = t < tokens && d < op.dk;
            kv[i] = in ? k[d] : 0.0f;
            qv[i] = in ? q[d] : 0.0f;
            kk = fmaf(kv[i], kv[i], kk);
            qq = fmaf(qv[i], qv[i], qq);
        }
        float k_scale = 1.0f / sqrtf(warp_sum(kk) + 1e-6f), q_scale = 1.0f / sqrtf(warp_sum(qq) + 1e-6f) / sqrtf((float)op.dk);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            s.k[t * KEY_LD + lane + 32 * i] = kv[i] * k_scale;
            s.q[t * KEY_LD + lane + 32 * i] = qv[i] * q_scale;
        }
    }
}

/* Running sums of g by one warp, in double. */
__device__ __forceinline__ void load_gates(const struct ifx_gated_delta &op, const chunk_shared &s, uint64_t t0, uint32_t tokens, uint32_t h)
{
    uint32_t lane = threadIdx.x;
    double sum[2], total = 0;
    if (lane >= 32)
        return;
#pragma unroll
    for (uint32_t part = 0; part < 2; part++) {
        uint32_t t = lane + 32 * part;
        double v = t < tokens ? (double)op.g[(t0 + t) * op.v_heads + h] : 0.0;
        for (uint32_t offset = 1; offset < 32; offset <<= 1) {
            double other = __shfl_up_sync(FULL, v, offset);
            v += lane >= offset ? other : 0.0;
        }
        sum[part] = v + total;
        total = __shfl_sync(FULL, sum[part], 31);
        s.g_high[t] = (float)sum[part];
        s.g_low[t] = (float)(sum[part] - (double)(float)sum[part]);
        s.beta[t] = t < tokens ? op.beta[(t0 + t) * op.v_heads + h] : 0.0f;
        s.decay[t] = expf((float)sum[part]);
    }
}

/* k . k and q . k of 16 rows and 32 columns a warp: L to shared memory, A to the workspace. */
__device__ __forceinline__ void scores(const chunk_shared &s, float *part)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    uint32_t row0 = warp / 2 * 16, column0 = warp % 2 * 32;
    float kk[4][4] = {}, qk[4][4] = {};
    for (uint32_t d = 0; d < DELTA_D; d += 16) {
        float4 k0 = *(const float4 *)&s.k[(row0 + g) * KEY_LD + d + 4 * t], k1 = *(const float4 *)&s.k[(row0 + g + 8) * KEY_LD + d + 4 * t];
        float4 q0 = *(const float4 *)&s.q[(row0 + g) * KEY_LD + d + 4 * t], q1 = *(const float4 *)&s.q[(row0 + g + 8) * KEY_LD + d + 4 * t];
        frag_a ka = make_a(k0.x, k1.x, k0.y, k1.y), kb = make_a(k0.z, k1.z, k0.w, k1.w);
        frag_a qa = make_a(q0.x, q1.x, q0.y, q1.y), qb = make_a(q0.z, q1.z, q0.w, q1.w);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            if (column0 + 8 * j > row0 + 15) /* above the diagonal */
                break;
            float4 b = *(const float4 *)&s.k[(column0 + 8 * j + g) * KEY_LD + d + 4 * t];
            mma_f32(kk[j], ka, b.x, b.y);
            mma_f32(kk[j], kb, b.z, b.w);
            mma_f32(qk[j], qa, b.x, b.y);
            mma_f32(qk[j], qb, b.z, b.w);
        }
    }
#pragma unroll
    for (uint32_t j = 0; j < 4; j++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t row = row0 + g + (i >= 2 ? 8 : 0), column = column0 + 8 * j + 2 * t + (i & 1);
            float decay = column <= row ? decay_between(s, row, column) : 0.0f;
            s.L[row * L_LD + column] = column < row ? s.beta[row] * decay * kk[j][i] : 0.0f;
            part[PART_A + row * CHUNK + column] = column <= row ? decay * qk[j][i] : 0.0f;
        }
}

/* Forward substitution, one column of one right side a thread. */
__device__ __forceinline__ void solve(const struct ifx_gated_delta &op, const chunk_shared &s, uint64_t t0, uint32_t tokens, uint32_t h, float *part)
{
    uint32_t column = threadIdx.x % DELTA_D;
    bool values = threadIdx.x < DELTA_D;
    const float *v = op.v + t0 * op.ldv + (uint64_t)h * op.dv + column;
    float *out = part + (values ? PART_U : PART_W) + column;
    float u[CHUNK]; /* the right side, then the solution */
#pragma unroll
    for (uint32_t t = 0; t < CHUNK; t++)
        if (values)
            u[t] = t < tokens && column < op.dv ? v[t * op.ldv] : 0.0f;
        else
            u[t] = s.decay[t] * s.k[t * KEY_LD + column];
#pragma unroll
    for (uint32_t t = 0; t < CHUNK; t++) {
        float sum[4] = {s.beta[t] * u[t], 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (uint32_t j = 0; j < t; j += 4) {
            float4 L = *(const float4 *)&s.L[t * L_LD + j]; /* zero from t on */
            sum[0] = fmaf(-L.x, u[j], sum[0]);
            if (j + 1 < t)
                sum[1] = fmaf(-L.y, u[j + 1], sum[1]);
            if (j + 2 < t)
                sum[2] = fmaf(-L.z, u[j + 2], sum[2]);
            if (j + 3 < t)
                sum[3] = fmaf(-L.w, u[j + 3], sum[3]);
        }
        u[t] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        out[t * DELTA_D] = u[t];
    }
}

/* Block (chunk of the segment, value head).  t0: first token of the segment. */
KERNEL __launch_bounds__(256) ifx_delta_chunks(struct ifx_gated_delta op, uint64_t segment0, float *ws)
{
    begin_kernel();
    extern __shared__ float4 memory[];
    float *m = (float *)memory;
    chunk_shared s;
    s.k = m, s.q = s.k + CHUNK * KEY_LD, s.L = s.q + CHUNK * KEY_LD;
    s.g_high = s.L + CHUNK * L_LD, s.g_low = s.g_high + CHUNK, s.beta = s.g_low + CHUNK, s.decay = s.beta + CHUNK;
    uint32_t h = blockIdx.y;
    uint64_t t0 = segment0 + (uint64_t)blockIdx.x * CHUNK;
    uint32_t tokens = op.n - t0 < CHUNK ? (uint32_t)(op.n - t0) : CHUNK;
    float *part = ws + ((uint64_t)h * SEGMENT + blockIdx.x) * PART_FLOATS;
    load_gates(op, s, t0, tokens, h);
    load_keys(op, s, t0, tokens, h / (op.v_heads / op.k_heads));
    __syncthreads();
    scores(s, part);
    for (uint32_t i = threadIdx.x; i < CHUNK * DELTA_D; i += 256) {
        uint32_t t = i / DELTA_D, d = i % DELTA_D;
        part[PART_Q + i] = s.decay[t] * s.q[t * KEY_LD + d];
        part[PART_K + i] = decay_between(s, CHUNK - 1, t) * s.k[t * KEY_LD + d];
    }
    if (threadIdx.x == 0)
        part[PART_DECAY] = s.decay[CHUNK - 1];
    __syncthreads();
    solve(op, s, t0, tokens, h, part);
}

/* 16 rows of W or exp(G) q, as fragments of a warp: 16 of the inner dimension a float4 of each of two rows. */
struct rows16 {
    float4 a[DELTA_D / 16], b[DELTA_D / 16];
};

__device__ __forceinline__ void load_rows(rows16 &r, const float *rows, uint32_t g, uint32_t t)
{
#pragma unroll
    for (uint32_t i = 0; i < DELTA_D / 16; i++) {
        r.a[i] = *(const float4 *)&rows[g * DELTA_D + 16 * i + 4 * t];
        r.b[i] = *(const float4 *)&rows[(g + 8) * DELTA_D + 16 * i + 4 * t];
    }
}

/* Block (value head, slice).  Warps 0 to 3 make W S and so U, 4 to 7 the outputs; all of them the next state. */
KERNEL __launch_bounds__(256, 1) ifx_delta_scan(struct ifx_gated_delta op, uint64_t segment0, uint32_t chunks, const float *ws)
{
    begin_kernel();
    extern __shared__ float4 memory[];
    float *S = (float *)memory, *U = S + DELTA_D * S_LD; /* [DELTA_D, S_LD], [CHUNK, S_LD] */
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    uint32_t h = blockIdx.x, slice0 = blockIdx.y * SLICE, row0 = warp % 4 * 16;
    float *state = op.state + (uint64_t)h * op.dk * op.dv;
    for (uint32_t i = threadIdx.x; i < DELTA_D * SLICE; i += 256) {
        uint32_t d = i / SLICE, j = i % SLICE;
        S[d * S_LD + j] = d < op.dk && slice0 + j < op.dv ? state[(uint64_t)d * op.dv + slice0 + j] : 0.0f;
    }
    const float *part = ws + (uint64_t)h * SEGMENT * PART_FLOATS;
    rows16 r;
    load_rows(r, part + (warp < 4 ? PART_W : PART_Q) + row0 * DELTA_D, g, t);
    __syncthreads();
    for (uint32_t c = 0; c < chunks; c++, part += PART_FLOATS) {
        float keys[CHUNK / 8][4]; /* exp(G_last - G) k, transposed: rows of the state */
#pragma unroll
        for (uint32_t i = 0; i < CHUNK / 8; i++) {
            const float *k = part + PART_K + 16 * warp + g + (i / 2 * 16 + 4 * t + i % 2 * 2) * DELTA_D;
            keys[i][0] = k[0];
            keys[i][1] = k[8];
            keys[i][2] = k[DELTA_D];
            keys[i][3] = k[DELTA_D + 8];
        }
        float decay = part[PART_DECAY];
        float4 right[8]; /* warps 0 to 3: Ubase; 4 to 7: A */
        if (warp < 4) {
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) {
                const float *u = &part[PART_U + (row0 + g) * DELTA_D + slice0 + 8 * j + 2 * t];
                float2 u0 = *(const float2 *)u, u1 = *(const float2 *)(u + 8 * DELTA_D);
                right[j] = make_float4(u0.x, u0.y, u1.x, u1.y);
            }
        } else {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                if (16 * i <= row0) {
                    right[2 * i] = *(const float4 *)&part[PART_A + (row0 + g) * CHUNK + 16 * i + 4 * t];
                    right[2 * i + 1] = *(const float4 *)&part[PART_A + (row0 + g + 8) * CHUNK + 16 * i + 4 * t];
                }
        }
        float acc[4][4] = {};
#pragma unroll
        for (uint32_t i = 0; i < DELTA_D / 16; i++) {
            frag_a fa = make_a(r.a[i].x, r.b[i].x, r.a[i].y, r.b[i].y), fb = make_a(r.a[i].z, r.b[i].z, r.a[i].w, r.b[i].w);
            const float *s = &S[(16 * i + 4 * t) * S_LD + g];
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) {
                mma_f32(acc[j], fa, s[8 * j], s[S_LD + 8 * j]);
                mma_f32(acc[j], fb, s[2 * S_LD + 8 * j], s[3 * S_LD + 8 * j]);
            }
        }
        if (c + 1 < chunks)
            load_rows(r, part + PART_FLOATS + (warp < 4 ? PART_W : PART_Q) + row0 * DELTA_D, g, t);
        if (warp < 4)
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) {
                float *u = &U[(row0 + g) * S_LD + 8 * j + 2 * t];
                u[0] = right[j].x - acc[j][0];
                u[1] = right[j].y - acc[j][1];
                u[8 * S_LD] = right[j].z - acc[j][2];
                u[8 * S_LD + 1] = right[j].w - acc[j][3];
            }
        __syncthreads();
        if (warp >= 4) {
#pragma unroll
            for (uint32_t s0 = 0; s0 < CHUNK; s0 += 16) {
                if (s0 > row0)
                    break;
                float4 a0 = right[s0 / 8], a1 = right[s0 / 8 + 1];
                frag_a fa = make_a(a0.x, a1.x, a0.y, a1.y), fb = make_a(a0.z, a1.z, a0.w, a1.w);
                const float *u = &U[(s0 + 4 * t) * S_LD + g];
#pragma unroll
                for (uint32_t j = 0; j < 4; j++) {
                    mma_f32(acc[j], fa, u[8 * j], u[S_LD + 8 * j]);
                    mma_f32(acc[j], fb, u[2 * S_LD + 8 * j], u[3 * S_LD + 8 * j]);
                }
            }
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    uint64_t token = segment0 + c * CHUNK + row0 + g + (i >= 2 ? 8 : 0);
                    uint32_t column = slice0 + 8 * j + 2 * t + (i & 1);
                    if (token < op.n && column < op.dv)
                        op.out[token * op.ldo + (uint64_t)h * op.dv + column] = acc[j][i];
                }
        }
        float next[4][4];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                next[j][i] = decay * S[(16 * warp + g + (i >= 2 ? 8 : 0)) * S_LD + 8 * j + 2 * t + (i & 1)];
#pragma unroll
        for (uint32_t i = 0; i < CHUNK / 8; i++) {
            frag_a fa = make_a(keys[i][0], keys[i][1], keys[i][2], keys[i][3]);
            const float *u = &U[(i / 2 * 16 + 4 * t + i % 2 * 2) * S_LD + g];
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
                mma_f32(next[j], fa, u[8 * j], u[S_LD + 8 * j]);
        }
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                S[(16 * warp + g + (i >= 2 ? 8 : 0)) * S_LD + 8 * j + 2 * t + (i & 1)] = next[j][i];
        __syncthreads();
    }
    for (uint32_t i = threadIdx.x; i < DELTA_D * SLICE; i += 256) {
        uint32_t d = i / SLICE, j = i % SLICE;
        if (d < op.dk && slice0 + j < op.dv)
            state[(uint64_t)d * op.dv + slice0 + j] = S[d * S_LD + j];
    }
}
