/* SPDX-License-Identifier: Apache-2.0
 *
 * product.cu - products of few columns with what comes before and after them (struct ifx_product of device.h).
 *
 * A decode step is a chain of kernels that each take as long as it takes to start, to fetch and to write, whatever they compute.  So each
 * block of a product makes the whole input itself, in shared memory, while its weights are under way; and what is done to a
 * result is done where it is made.  A column's input is made in the same way whatever the number of columns.
 */
#include "narrow.cuh"

extern __shared__ __align__(16) uint8_t input_memory[];

__device__ __forceinline__ float4 scaled(float4 v, float scale, float4 w)
{
    return make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
}

__device__ __forceinline__ float squares(float sum, float4 v)
{
    sum = fmaf(v.x, v.x, sum);
    sum = fmaf(v.y, v.y, sum);
    sum = fmaf(v.z, v.z, sum);
    return fmaf(v.w, v.w, sum);
}

/* FLOATS: the input stays float32, for matrices that take it exactly. */
template <bool FLOATS, uint32_t WARPS> struct product_job {
    enum { THREADS = WARPS * 32 };
    const struct product_args &p;
    float4 w[PRODUCT_EACH];
    float old, combined, gate;

    __device__ __forceinline__ uint32_t row_of_input() const
    {
        return p.a.cols + (FLOATS ? PRODUCT_PAD_F32 : PRODUCT_PAD_BF16);
    }

    __device__ __forceinline__ void put(uint32_t column, uint32_t k, float4 v) const
    {
        uint64_t at = (uint64_t)column * row_of_input() + k;
        uint2 h = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
        if (FLOATS)
            *(float4 *)((float *)input_memory + at) = v;
        else
            *(uint2 *)((uint16_t *)input_memory + at) = h;
        if (p.rounded && blockIdx.x == 0)
            *(uint2 *)&p.rounded[column * p.ldr + k] = h;
    }

    /* Weights of norms do not come from a kernel. */
    __device__ __forceinline__ void before_wait()
    {
        if (p.input == INPUT_NORM)
#pragma unroll
            for (uint32_t i = 0; i < PRODUCT_EACH; i++)
                if (4 * (threadIdx.x + i * THREADS) < p.a.cols) {
                    float4 v = *(const float4 *)&p.w[4 * (threadIdx.x + i * THREADS)];
                    w[i] = make_float4(p.plus_one + v.x, p.plus_one + v.y, p.plus_one + v.z, p.plus_one + v.w);
                }
    }

    __device__ __forceinline__ void norm()
    {
        __shared__ float parts[NARROW_COLUMNS][WARPS];
        uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        for (uint32_t c = 0; c < p.a.n; c++) {
            const float *x = p.a.x + c * p.a.ldx;
            float4 v[PRODUCT_EACH];
            float sum = 0.0f;
#pragma unroll
            for (uint32_t i = 0; i < PRODUCT_EACH; i++)
                if (4 * (threadIdx.x + i * THREADS) < p.a.cols)
                    v[i] = *(const float4 *)&x[4 * (threadIdx.x + i * THREADS)];
#pragma unroll
            for (uint32_t i = 0; i < PRODUCT_EACH; i++)
                if (4 * (threadIdx.x + i * THREADS) < p.a.cols)
                    sum = squares(sum, v[i]);
            sum = warp_sum(sum);
            if (lane == 0)
                parts[c][warp] = sum;
            __syncthreads();
            sum = warp_sum(lane < WARPS ? parts[c][lane] : 0.0f);
            float scale = 1.0f / sqrtf(sum / (float)p.a.cols + p.eps);
#pragma unroll
            for (uint32_t i = 0; i < PRODUCT_EACH; i++)
                if (4 * (threadIdx.x + i * THREADS) < p.a.cols)
                    put(c, 4 * (threadIdx.x + i * THREADS), scaled(v[i], scale, w[i]));
        }
    }

    /* A warp a head; those of PRODUCT_EACH turns are fetched together. */
    __device__ __forceinline__ void gated_norm()
    {
        uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, i0 = 4 * lane, heads = p.a.cols / p.head, all = heads * p.a.n;
        bool in = i0 < p.head;
        float4 zero = make_float4(0, 0, 0, 0), weight = in ? *(const float4 *)&p.w[i0] : zero;
        for (uint32_t h0 = warp; h0 < all; h0 += PRODUCT_EACH * WARPS) {
            float4 v[PRODUCT_EACH], z[PRODUCT_EACH];
#pragma unroll
            for (uint32_t i = 0; i < PRODUCT_EACH; i++) {
                uint32_t h = h0 + i * WARPS, c = h / heads, k = h % heads * p.head + i0;
                bool have = in && h < all;
                v[i] = have ? *(const float4 *)&p.a.x[c * p.a.ldx + k] : zero;
                z[i] = have ? *(const float4 *)&p.z[c * p.ldz + k] : zero;
            }
#pragma unroll
            for (uint32_t i = 0; i < PRODUCT_EACH; i++) {
                uint32_t h = h0 + i * WARPS, c = h / heads, k = h % heads * p.head + i0;
                float scale = 1.0f / sqrtf(warp_sum(squares(0.0f, v[i])) / (float)p.head + p.eps);
                float4 y = scaled(v[i], scale, weight);
                bool sig = p.act == IFX_ACT_SIGMOID;
                y.x *= sig ? sigmoid(z[i].x) : silu(z[i].x);
                y.y *= sig ? sigmoid(z[i].y) : silu(z[i].y);
                y.z *= sig ? sigmoid(z[i].z) : silu(z[i].z);
                y.w *= sig ? sigmoid(z[i].w) : silu(z[i].w);
                if (in && h < all)
                    put(c, k, y);
            }
        }
    }

    /* Two operands value by value: silu(x) z, x sigmoid(z), or x alone. */
    __device__ __forceinline__ void pairs()
    {
        for (uint32_t c = 0; c < p.a.n; c++)
#pragma unroll 4
            for (uint32_t k = 4 * threadIdx.x; k < p.a.cols; k += 4 * THREADS) {
                float4 x = *(const float4 *)&p.a.x[c * p.a.ldx + k], z = make_float4(0, 0, 0, 0);
                if (p.input == INPUT_SWIGLU) {
                    z = *(const float4 *)&p.z[c * p.ldz + k];
                    x = make_float4(silu(x.x) * z.x, silu(x.y) * z.y, silu(x.z) * z.z, silu(x.w) * z.w);
                } else if (p.input == INPUT_SIGMOID_GATE) {
                    z = *(const float4 *)&p.z[c * p.ldz + k / p.head * p.ldz_head + k % p.head];
                    x = make_float4(x.x * sigmoid(z.x), x.y * sigmoid(z.y), x.z * sigmoid(z.z), x.w * sigmoid(z.w));
                }
                put(c, k, x);
            }
    }

    /* What the thread's result will be added to is fetched early: there is one tile a block. */
    __device__ __forceinline__ void combine()
    {
        const struct ifx_combine &o = p.combine;
        uint32_t row = blockIdx.x * NARROW_ROWS + threadIdx.x % NARROW_ROWS, c = threadIdx.x / NARROW_ROWS;
        old = combined = gate = 0.0f;
        if (c >= p.a.n || row >= o.width)
            return;
        old = p.a.out[0].y[c * p.a.out[0].ldy + row];
        gate = p.shared_gate ? sigmoid(p.shared_gate[c * p.ld_gate]) : 1.0f;
#pragma unroll 8
        for (uint32_t r = 0; r < o.top_k; r++) {
            uint64_t pair = c * o.top_k + r, from = o.index ? o.index[pair] : pair;
            combined = fmaf(o.weights[pair], o.parts[from * o.ldp + row], combined);
        }
    }

    __device__ __forceinline__ void begin()
    {
        if (p.a.out[0].end == END_COMBINE)
            combine();
        if (p.input == INPUT_NORM)
            norm();
        else if (p.input == INPUT_GATED_NORM)
            gated_norm();
        else
            pairs();
        __syncthreads();
    }

    template <uint32_t PARTS> __device__ __forceinline__ inputs<PARTS> load(uint32_t column, uint32_t k) const
    {
        uint32_t cols = column < p.a.n ? p.a.cols : 0;
        uint64_t row = (uint64_t)column * row_of_input();
        if constexpr (FLOATS) {
            return load_inputs<PARTS>((const float *)input_memory + row, k, cols, true);
        } else {
            inputs<PARTS> in;
            in.part[0] = k < cols ? *(const uint4 *)((const uint16_t *)input_memory + row + k) : make_uint4(0, 0, 0, 0);
            return in;
        }
    }

    __device__ __forceinline__ void finish(const struct narrow_out &o, uint32_t column, uint32_t row, float sum) const
    {
        float *y = &o.y[column * o.ldy + row];
        if (o.end == END_COMBINE)
            *y = fmaf(sum, gate, combined) + old;
        else if (o.end == END_DECAY)
            *y = -expf(p.a_log[row]) * softplus(sum + p.dt_bias[row]);
        else if (o.end == END_BETA)
            *y = sigmoid(sum);
        else
            *y = o.accumulate ? *y + sum : sum;
    }
};

/* Many rows. */
KERNEL __launch_bounds__(8 * 32, 2) ifx_product_many(const __grid_constant__ struct product_args p)
{
    product_job<false, 8> job = {p};
    narrow_bf16<false, 1, 8, true>(p.a, job);
}

/* Few rows: a tile a block. */
KERNEL __launch_bounds__(16 * 32, 1) ifx_product_few(const __grid_constant__ struct product_args p)
{
    product_job<false, 16> job = {p};
    narrow_bf16<false, 1, 16, false>(p.a, job);
}

/* The same, with matrices that take the input exactly. */
KERNEL __launch_bounds__(16 * 32, 1) ifx_product_exact(const __grid_constant__ struct product_args p)
{
    product_job<true, 16> job = {p};
    if (find_out(p.a, blockIdx.x).exact)
        narrow_bf16<false, 3, 16, false>(p.a, job);
    else
        narrow_bf16<false, 1, 16, false>(p.a, job);
}
