/* SPDX-License-Identifier: Apache-2.0
 *
 * tpl_ops.h - kernel template: norms, rotary embedding, gates, router and the element-wise operations.
 */
#include "kernels.h"

/* ifx_exp on a vector: the same operations in the same order. */
V_INLINE vf v_exp(vf x)
{
    vf c = v_max(v_set1(IFX_EXP_MIN), v_min(v_set1(IFX_EXP_MAX), x));
    vf magic = v_set1(IFX_EXP_MAGIC);
    vf t = v_fma(c, v_set1(IFX_EXP_LOG2E), magic);
    vf n = v_sub(t, magic);
    vf r = v_fma(n, v_set1(-IFX_EXP_LN2HI), c);
    r = v_fma(n, v_set1(-IFX_EXP_LN2LO), r);
    vf p = v_fma(v_set1(IFX_EXP_C6), r, v_set1(IFX_EXP_C5));
    p = v_fma(p, r, v_set1(IFX_EXP_C4));
    p = v_fma(p, r, v_set1(IFX_EXP_C3));
    p = v_fma(p, r, v_set1(IFX_EXP_C2));
    p = v_fma(p, r, v_set1(1.0f));
    p = v_fma(p, r, v_set1(1.0f));
    return v_mul(p, v_pow2(t));
}

V_INLINE vf v_sigmoid(vf x)
{
    return v_div(v_set1(1.0f), v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), x))));
}

V_INLINE vf v_silu(vf x)
{
    return v_div(x, v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), x))));
}

V_INLINE float scalar_sigmoid(float x)
{
    float out[VW];
    v_store(out, v_sigmoid(v_set1(x)));
    return out[0];
}

V_INLINE float v_sum(vf a)
{
    vf lanes[VN];
    lanes[0] = a;
    for (int v = 1; v < VN; v++)
        lanes[v] = v_zero();
    return v_sum16(lanes);
}

/* Loads and stores that take a whole vector or the `left` < VW last values of a row. */
V_INLINE vf v_get(const float *p, uint64_t left) { return left >= VW ? v_load(p) : v_load_n(p, (uint32_t)left); }
V_INLINE void v_put(float *p, vf v, uint64_t left)
{
    if (left >= VW)
        v_store(p, v);
    else
        v_store_n(p, v, (uint32_t)left);
}

static float dot(const float *a, const float *b, uint64_t width)
{
    vf sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    uint64_t i = 0;
    for (; i + 4 * VW <= width; i += 4 * VW)
        UNROLL for (int j = 0; j < 4; j++)
            sum[j] = v_fma(v_load(a + i + j * VW), v_load(b + i + j * VW), sum[j]);
    for (; i < width; i += VW) {
        vf x = v_get(a + i, width - i), y = v_get(b + i, width - i);
        sum[0] = v_fma(x, y, sum[0]);
    }
    return v_sum(v_add(v_add(sum[0], sum[1]), v_add(sum[2], sum[3])));
}

/* 1 / sqrt(mean square + eps).  The last steps are in double: they are few, and a mean that overflows float32 does not. */
static float inverse_rms(const float *x, uint64_t width, float eps)
{
    return (float)(1.0 / sqrt((double)dot(x, x, width) / (double)width + (double)eps));
}

static void embed(const void *arg, uint64_t t0, uint64_t t1)
{
    const struct cpu_embed *op = arg;
    const struct ifx_weight *table = op->table;
    for (uint64_t t = t0; t < t1; t++) {
        float *row = op->y + t * op->ldy;
        uint64_t id = (uint64_t)op->ids[t];
        if (table->dtype == IFX_BF16)
            decode_row(table, IFX_BF16, id, 0, table->cols, row);
        else if (table->dtype == IFX_F32)
            decode_row(table, IFX_F32, id, 0, table->cols, row);
        else
            decode_row(table, IFX_W8G32, id, 0, table->cols, row);
    }
}

static void rms_norm(const void *arg, uint64_t r0, uint64_t r1)
{
    const struct ifx_rms_norm *op = arg;
    vf one = v_set1(op->plus_one);
    for (uint64_t r = r0; r < r1; r++) {
        const float *x = op->x + r * op->ldx, *w = op->w + (r % op->w_rows) * op->width;
        float *y = op->y + r * op->ldy;
        vf scale = v_set1(inverse_rms(x, op->width, op->eps));
        for (uint64_t i = 0; i < op->width; i += VW) {
            uint64_t left = op->width - i;
            vf v = v_mul(v_get(x + i, left), scale);
            v_put(y + i, v_mul(v, v_add(one, v_get(w + i, left))), left);
        }
    }
}

static void norm_rope_head(const struct ifx_norm_rope *op, const float *c, const float *s, const float *x, float *y)
{
    uint32_t half = op->rotary / 2;
    vf scale = v_set1(op->w ? inverse_rms(x, op->d, op->eps) : 1.0f), one = v_set1(1.0f);
    for (uint32_t i = 0; i < half; i += VW) {
        uint32_t left = half - i;
        vf a = v_mul(v_get(x + i, left), scale), b = v_mul(v_get(x + half + i, left), scale);
        if (op->w) {
            a = v_mul(a, v_add(one, v_get(op->w + i, left)));
            b = v_mul(b, v_add(one, v_get(op->w + half + i, left)));
        }
        vf cv = v_get(c + i, left), sv = v_get(s + i, left);
        v_put(y + i, v_fnma(b, sv, v_mul(a, cv)), left);
        v_put(y + half + i, v_fma(a, sv, v_mul(b, cv)), left);
    }
    for (uint32_t i = 2 * half; i < op->d; i += VW) {
        uint32_t left = op->d - i;
        vf a = v_mul(v_get(x + i, left), scale);
        v_put(y + i, op->w ? v_mul(a, v_add(one, v_get(op->w + i, left))) : a, left);
    }
}

/* One table of angles serves all heads of a token.  Rotary dims beyond the local table go to the oracle (ops.c). */
static void norm_rope(const void *arg, uint64_t t0, uint64_t t1)
{
    const struct ifx_norm_rope *op = arg;
    float c[CPU_ROTARY_MAX / 2], s[CPU_ROTARY_MAX / 2];
    for (uint64_t t = t0; t < t1; t++) {
        for (uint32_t i = 0; i < op->rotary / 2; i++) {
            float angle = (float)op->positions[t] * op->inv_freq[i];
            c[i] = cosf(angle);
            s[i] = sinf(angle);
        }
        for (uint64_t h = 0; h < op->heads; h++)
            norm_rope_head(op, c, s, op->x + t * op->ldx + h * op->ldx_head, op->y + t * op->ldy + h * op->ldy_head);
    }
}

static void gated_norm(const void *arg, uint64_t t0, uint64_t t1)
{
    const struct ifx_gated_norm *op = arg;
    for (uint64_t r = t0 * op->heads; r < t1 * op->heads; r++) {
        uint64_t t = r / op->heads, h = r % op->heads;
        const float *x = op->x + t * op->ldx + h * op->width, *z = op->z + t * op->ldz + h * op->width;
        float *y = op->y + t * op->ldy + h * op->width;
        vf scale = v_set1(inverse_rms(x, op->width, op->eps));
        for (uint64_t i = 0; i < op->width; i += VW) {
            uint64_t left = op->width - i;
            vf gate = v_get(z + i, left);
            gate = op->act == IFX_ACT_SILU ? v_silu(gate) : v_sigmoid(gate);
            vf v = v_mul(v_mul(v_get(x + i, left), scale), v_get(op->w + i, left));
            v_put(y + i, v_mul(v, gate), left);
        }
    }
}

static void swiglu(const void *arg, uint64_t t0, uint64_t t1)
{
    const struct ifx_swiglu *op = arg;
    for (uint64_t t = t0; t < t1; t++) {
        const float *gate = op->gate + t * op->ldg, *up = op->up + t * op->ldu;
        float *y = op->y + t * op->ldy;
        for (uint64_t i = 0; i < op->width; i += VW) {
            uint64_t left = op->width - i;
            v_put(y + i, v_mul(v_silu(v_get(gate + i, left)), v_get(up + i, left)), left);
        }
    }
}

static void sigmoid_gate(const void *arg, uint64_t t0, uint64_t t1)
{
    const struct ifx_sigmoid_gate *op = arg;
    for (uint64_t r = t0 * op->heads; r < t1 * op->heads; r++) {
        uint64_t t = r / op->heads, h = r % op->heads;
        float *x = op->x + t * op->ldx + h * op->d;
        const float *gate = op->gate + t * op->ldg + h * op->ldg_head;
        for (uint64_t i = 0; i < op->d; i += VW) {
            uint64_t left = op->d - i;
            v_put(x + i, v_mul(v_get(x + i, left), v_sigmoid(v_get(gate + i, left))), left);
        }
    }
}

static void add(const void *arg, uint64_t t0, uint64_t t1)
{
    const struct ifx_add *op = arg;
    for (uint64_t t = t0; t < t1; t++) {
        const float *x = op->x + t * op->ldx;
        float *y = op->y + t * op->ldy;
        vf scale = v_set1(op->gate ? scalar_sigmoid(op->gate[t * op->ldg]) : 1.0f);
        for (uint64_t i = 0; i < op->width; i += VW) {
            uint64_t left = op->width - i;
            v_put(y + i, v_fma(v_get(x + i, left), scale, v_get(y + i, left)), left);
        }
    }
}

static void combine(const void *arg, uint64_t t0, uint64_t t1)
{
    const struct ifx_combine *op = arg;
    for (uint64_t t = t0; t < t1; t++) {
        const float *weights = op->weights + t * op->top_k;
        float *y = op->y + t * op->ldy;
        for (uint64_t i = 0; i < op->width; i += VW) {
            uint64_t left = op->width - i;
            vf sum = v_zero();
            for (uint64_t r = 0; r < op->top_k; r++) {
                uint64_t row = op->index ? op->index[t * op->top_k + r] : t * op->top_k + r;
                sum = v_fma_exact(v_set1(weights[r]), v_get(op->parts + row * op->ldp + i, left), sum);
            }
            v_put(y + i, op->accumulate ? v_add(sum, v_get(y + i, left)) : sum, left);
        }
    }
}

static void to_bf16(const void *arg, uint64_t t0, uint64_t t1)
{
    const struct cpu_to_bf16 *op = arg;
    uint64_t width = op->width;
    for (uint64_t t = t0; t < t1; t++) {
        const float *row = op->x + t * op->ldx;
        uint16_t *out = op->y + t * op->ldy;
        uint64_t i = 0;
        for (; i + VW <= width; i += VW)
            v_store_bf16(out + i, v_load(row + i));
        if (i < width)
            v_store_bf16_n(out + i, v_load_n(row + i, (uint32_t)(width - i)), (uint32_t)(width - i));
    }
}

/* ---- router ---- */

/* Whether logit a outranks b, which has the lower id: only by being larger; a NaN is below every number. */
V_INLINE uint32_t outranks(float a, float b)
{
    return a > b || (b != b && a == a);
}

/* Keeps the best k of those seen, by falling logit; ids come in ascending, so an equal one stays behind. */
static void top_k(const float *logits, uint32_t experts, uint32_t k, int32_t *ids)
{
    uint32_t have = 0;
    for (uint32_t e = 0; e < experts; e++) {
        if (have == k && !outranks(logits[e], logits[ids[k - 1]]))
            continue;
        uint32_t at = have < k ? have++ : k - 1;
        for (; at > 0 && outranks(logits[e], logits[ids[at - 1]]); at--)
            ids[at] = ids[at - 1];
        ids[at] = (int32_t)e;
    }
}

static void router(const void *arg, uint64_t t0, uint64_t t1)
{
    const struct ifx_router *op = arg;
    for (uint64_t t = t0; t < t1; t++) {
        const float *logits = op->logits + t * op->ldl;
        int32_t *ids = op->ids + t * op->top_k;
        float *weights = op->weights + t * op->top_k, chosen = 0.0f;
        top_k(logits, op->experts, op->top_k, ids);
        vf max = v_set1(logits[ids[0]]), total = v_zero();
        for (uint64_t e = 0; e < op->experts; e += VW) {
            uint64_t left = op->experts - e;
            vf p = v_exp(v_sub(v_get(logits + e, left), max));
            if (left < VW) {
                float lanes[VW] = {0};
                v_store_n(lanes, p, (uint32_t)left);
                p = v_load(lanes);
            }
            total = v_add(total, p);
        }
        float sum = v_sum(total), lanes[VW];
        for (uint32_t r = 0; r < op->top_k; r++) {
            v_store(lanes, v_exp(v_sub(v_set1(logits[ids[r]]), max)));
            weights[r] = lanes[0] / sum;
            chosen += weights[r];
        }
        for (uint32_t r = 0; op->renormalise && r < op->top_k; r++)
            weights[r] /= chosen;
    }
}
