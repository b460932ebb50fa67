/* SPDX-License-Identifier: Apache-2.0
 *
 * ref_streams.c - a residual of several streams: mixing them, adding to them, gating by them; in the oracle.
 */
#include "ref.h"

int32_t ref_activate(struct ifx_device *dev, void *stream, const struct ifx_activate *op)
{
    (void)dev;
    (void)stream;
    for (uint64_t t = 0; t < op->n; t++)
        for (uint64_t i = 0; i < op->width; i++) {
            double x = (double)op->scale * op->x[t * op->ldx + i];
            op->y[t * op->ldy + i] = (float)(op->act == IFX_ACT_SILU ? ref_silu(x) : ref_sigmoid(x));
        }
    return IFX_OK;
}

int32_t ref_stream_mix(struct ifx_device *dev, void *stream, const struct ifx_stream_mix *op)
{
    (void)dev;
    (void)stream;
    for (uint64_t t = 0; t < op->n; t++)
        for (uint64_t i = 0; i < op->width; i++) {
            double sum = 0;
            for (uint64_t s = 0; s < op->streams; s++)
                sum += ref_sigmoid(op->gate[t * op->ldg + s * op->width + i]) * op->x[t * op->ldx + s * op->width + i];
            op->y[t * op->ldy + i] = (float)(sum / op->streams);
        }
    return IFX_OK;
}

int32_t ref_stream_inject(struct ifx_device *dev, void *stream, const struct ifx_stream_inject *op)
{
    (void)dev;
    (void)stream;
    for (uint64_t t = 0; t < op->n; t++)
        for (uint64_t s = 0; s < op->streams; s++) {
            double weight = 2.0 * ref_sigmoid((double)op->scale * op->inject[t * op->ldi + s]);
            float *y = op->y + t * op->ldy + s * op->width;
            for (uint64_t i = 0; i < op->width; i++)
                y[i] = (float)(y[i] + weight * op->x[t * op->ldx + i]);
        }
    return IFX_OK;
}

int32_t ref_stream_gate(struct ifx_device *dev, void *stream, const struct ifx_stream_gate *op)
{
    (void)dev;
    (void)stream;
    for (uint64_t t = 0; t < op->n; t++)
        for (uint64_t s = 0; s < op->streams; s++) {
            const float *key = op->key + t * op->ldk + s * op->width, *query = op->query + t * op->ldq + s * op->width;
            double g = 0;
            for (uint64_t i = 0; i < op->width; i++)
                g += (double)key[i] * query[i];
            g /= sqrt((double)op->width);
            double root = sqrt(fmax(fabs(g), 1e-6));
            double gate = ref_sigmoid(g > 0 ? root : g < 0 ? -root : 0.0);
            for (uint64_t i = 0; i < op->width; i++)
                op->y[t * op->ldy + s * op->width + i] = (float)(gate * op->value[t * op->ldv + i]);
        }
    return IFX_OK;
}
