/* SPDX-License-Identifier: Apache-2.0
 *
 * ref_norm.c - norms and the rotary embedding of the oracle.
 */
#include "ref.h"

#include <string.h>

/* 1 / sqrt(mean of squares + eps) */
static double inverse_rms(const float *x, uint64_t width, float eps)
{
    double sum = 0;
    for (uint64_t i = 0; i < width; i++)
        sum += (double)x[i] * x[i];
    return 1.0 / sqrt(sum / (double)width + (double)eps);
}

int32_t ref_rms_norm(struct ifx_device *dev, void *stream, const struct ifx_rms_norm *op)
{
    (void)dev;
    (void)stream;
    for (uint64_t r = 0; r < op->rows; r++) {
        const float *x = op->x + r * op->ldx;
        const float *w = op->w + (r % op->w_rows) * op->width;
        float *y = op->y + r * op->ldy;
        double scale = inverse_rms(x, op->width, op->eps);
        for (uint64_t i = 0; i < op->width; i++)
            y[i] = (float)(x[i] * scale * ((double)op->plus_one + w[i]));
    }
    return IFX_OK;
}

static void norm_rope_head(const struct ifx_norm_rope *op, int32_t position, const float *x, float *y)
{
    double scale = op->w ? inverse_rms(x, op->d, op->eps) : 1.0;
    uint32_t half = op->rotary / 2;
    for (uint32_t i = 0; i < half; i++) {
        /* The reference forms the angle in float32; its rounding is part of the model. */
        float angle = (float)position * op->inv_freq[i];
        double c = cos((double)angle), s = sin((double)angle);
        double a = x[i] * scale * (op->w ? 1.0 + op->w[i] : 1.0);
        double b = x[i + half] * scale * (op->w ? 1.0 + op->w[i + half] : 1.0);
        y[i] = (float)(a * c - b * s);
        y[i + half] = (float)(b * c + a * s);
    }
    for (uint32_t i = 2 * half; i < op->d; i++)
        y[i] = (float)(x[i] * scale * (op->w ? 1.0 + op->w[i] : 1.0));
}

int32_t ref_norm_rope(struct ifx_device *dev, void *stream, const struct ifx_norm_rope *op)
{
    (void)dev;
    (void)stream;
    for (uint64_t t = 0; t < op->n; t++)
        for (uint64_t h = 0; h < op->heads; h++)
            norm_rope_head(op, op->positions[t], op->x + t * op->ldx + h * op->ldx_head,
                           op->y + t * op->ldy + h * op->ldy_head);
    return IFX_OK;
}

int32_t ref_gated_norm(struct ifx_device *dev, void *stream, const struct ifx_gated_norm *op)
{
    (void)dev;
    (void)stream;
    for (uint64_t t = 0; t < op->n; t++)
        for (uint64_t h = 0; h < op->heads; h++) {
            const float *x = op->x + t * op->ldx + h * op->width;
            const float *z = op->z + t * op->ldz + h * op->width;
            float *y = op->y + t * op->ldy + h * op->width;
            double scale = inverse_rms(x, op->width, op->eps);
            for (uint64_t i = 0; i < op->width; i++) {
                double gate = op->act == IFX_ACT_SILU ? ref_silu(z[i]) : ref_sigmoid(z[i]);
                y[i] = (float)(x[i] * scale * op->w[i] * gate);
            }
        }
    return IFX_OK;
}
