/* SPDX-License-Identifier: Apache-2.0
 *
 * ref_linear.c - embedding rows and matrix products of the oracle.
 */
#include "ref.h"

#include <infernix/numerics.h>

/* Weight (row, col) of any dense format, exact. */
static double weight_at(const struct ifx_weight *w, uint64_t row, uint64_t col)
{
    uint64_t groups = ((uint64_t)w->cols + 31) / 32;
    switch (w->dtype) {
    case IFX_F32:
        return ((const float *)w->data)[row * w->cols + col];
    case IFX_BF16:
        return ifx_bf16_to_f32(((const uint16_t *)w->data)[row * w->cols + col]);
    default: /* IFX_W8G32: rows padded to whole groups */
        return (double)((const int8_t *)w->data)[row * groups * 32 + col] *
               ifx_f16_to_f32(((const uint16_t *)w->scales)[row * groups + col / 32]);
    }
}

static int32_t check_dtype(struct ifx_device *dev, const struct ifx_weight *w)
{
    if (w->dtype == IFX_F32 || w->dtype == IFX_BF16 || w->dtype == IFX_W8G32)
        return IFX_OK;
    return dev->host->error(dev->host, IFX_EUNSUPPORTED, "device ref: matrix of element type %u", w->dtype);
}

int32_t ref_embed(struct ifx_device *dev, void *stream, const struct ifx_weight *table, const int32_t *ids,
                  uint32_t n, float *y, uint64_t ldy)
{
    (void)stream;
    int32_t status = check_dtype(dev, table);
    for (uint64_t t = 0; status == IFX_OK && t < n; t++)
        for (uint64_t c = 0; c < table->cols; c++)
            y[t * ldy + c] = (float)weight_at(table, (uint64_t)ids[t], c);
    return status;
}

uint64_t ref_linear_ws_bytes(struct ifx_device *dev, uint32_t n, uint32_t cols)
{
    (void)dev;
    (void)n;
    return (uint64_t)cols * sizeof(double); /* one decoded row */
}

/* One weight row against every column.  Four sums, so that the oracle does not wait for its own additions. */
static void row_times_columns(const double *w, const struct ifx_linear *op, uint64_t row, float *y, uint64_t ldy,
                              uint32_t accumulate)
{
    for (uint64_t t = 0; t < op->n; t++) {
        const float *x = op->x + t * op->ldx;
        double sum[4] = {0};
        for (uint64_t k = 0; k < op->cols; k++)
            sum[k % 4] += w[k] * (double)x[k];
        double total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        float *out = &y[t * ldy + row];
        *out = (float)(accumulate ? (double)*out + total : total);
    }
}

int32_t ref_linear(struct ifx_device *dev, void *stream, const struct ifx_linear *op)
{
    (void)stream;
    double *row = op->ws;
    for (uint32_t m = 0; m < op->count; m++) {
        const struct ifx_weight *w = &op->out[m].w;
        int32_t status = check_dtype(dev, w);
        if (status)
            return status;
        for (uint64_t r = 0; r < w->rows; r++) {
            for (uint64_t k = 0; k < op->cols; k++)
                row[k] = weight_at(w, r, k);
            row_times_columns(row, op, r, op->out[m].y, op->out[m].ldy, op->out[m].accumulate);
        }
    }
    return IFX_OK;
}
