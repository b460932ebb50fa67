/* SPDX-License-Identifier: Apache-2.0
 *
 * ref_mix.c - element-wise operations, router and combination of the oracle.
 */
#include "ref.h"

#include <infernix/numerics.h>

int32_t ref_swiglu(struct ifx_device *dev, void *stream, const struct ifx_swiglu *op)
{
    (void)dev;
    (void)stream;
    for (uint64_t t = 0; t < op->n; t++)
        for (uint64_t i = 0; i < op->width; i++)
            op->y[t * op->ldy + i] = (float)(ref_silu(op->gate[t * op->ldg + i]) * op->up[t * op->ldu + i]);
    return IFX_OK;
}

int32_t ref_sigmoid_gate(struct ifx_device *dev, void *stream, const struct ifx_sigmoid_gate *op)
{
    (void)dev;
    (void)stream;
    for (uint64_t t = 0; t < op->n; t++)
        for (uint64_t h = 0; h < op->heads; h++) {
            float *x = op->x + t * op->ldx + h * op->d;
            const float *gate = op->gate + t * op->ldg + h * op->ldg_head;
            for (uint64_t i = 0; i < op->d; i++)
                x[i] = (float)(x[i] * ref_sigmoid(gate[i]));
        }
    return IFX_OK;
}

int32_t ref_add(struct ifx_device *dev, void *stream, const struct ifx_add *op)
{
    (void)dev;
    (void)stream;
    for (uint64_t t = 0; t < op->n; t++) {
        double scale = op->gate ? ref_sigmoid(op->gate[t * op->ldg]) : 1.0;
        for (uint64_t i = 0; i < op->width; i++)
            op->y[t * op->ldy + i] = (float)(op->y[t * op->ldy + i] + op->x[t * op->ldx + i] * scale);
    }
    return IFX_OK;
}

/* Experts are ranked by logit: softmax keeps the order, and equal logits go to the lower id.  A NaN is never larger, so ids stay
 * valid; it makes every weight NaN, which is found downstream. */
static void route(const struct ifx_router *op, const float *logits, int32_t *ids, float *weights)
{
    double max = -INFINITY, sum = 0, chosen = 0;
    for (uint32_t e = 0; e < op->experts; e++)
        max = logits[e] > max ? logits[e] : max;
    for (uint32_t e = 0; e < op->experts; e++)
        sum += exp(logits[e] - max);
    for (uint32_t r = 0; r < op->top_k; r++) {
        int32_t best = -1;
        for (int32_t e = 0; e < (int32_t)op->experts; e++) {
            uint32_t taken = 0;
            for (uint32_t s = 0; s < r; s++)
                taken |= ids[s] == e;
            if (!taken && (best < 0 || logits[e] > logits[best] || (isnan(logits[best]) && !isnan(logits[e]))))
                best = e;
        }
        ids[r] = best;
        weights[r] = (float)(exp(logits[best] - max) / sum);
        chosen += exp(logits[best] - max) / sum;
    }
    if (op->renormalise)
        for (uint32_t r = 0; r < op->top_k; r++)
            weights[r] = (float)(exp(logits[ids[r]] - max) / sum / chosen);
}

int32_t ref_router(struct ifx_device *dev, void *stream, const struct ifx_router *op)
{
    (void)stream;
    if (op->top_k > 32 || op->top_k > op->experts)
        return dev->host->error(dev->host, IFX_EINVAL, "device ref: router of %u experts asked for %u", op->experts,
                                op->top_k);
    for (uint64_t t = 0; t < op->n; t++)
        route(op, op->logits + t * op->ldl, op->ids + t * op->top_k, op->weights + t * op->top_k);
    return IFX_OK;
}

/* In float32, as the contract fixes the order and rounding of every step. */
int32_t ref_combine(struct ifx_device *dev, void *stream, const struct ifx_combine *op)
{
    (void)dev;
    (void)stream;
    for (uint64_t t = 0; t < op->n; t++)
        for (uint64_t i = 0; i < op->width; i++) {
            float sum = 0.0f;
            for (uint64_t r = 0; r < op->top_k; r++) {
                uint64_t pair = t * op->top_k + r, row = op->index ? op->index[pair] : pair;
                sum = fmaf(op->weights[pair], op->parts[row * op->ldp + i], sum);
            }
            float *y = &op->y[t * op->ldy + i];
            *y = op->accumulate ? sum + *y : sum;
        }
    return IFX_OK;
}

int32_t ref_to_bf16(struct ifx_device *dev, void *stream, const float *x, uint64_t ldx, uint32_t n,
                    uint32_t width, uint16_t *y, uint64_t ldy)
{
    (void)dev;
    (void)stream;
    for (uint64_t t = 0; t < n; t++)
        for (uint64_t i = 0; i < width; i++)
            y[t * ldy + i] = ifx_f32_to_bf16(x[t * ldx + i]);
    return IFX_OK;
}
