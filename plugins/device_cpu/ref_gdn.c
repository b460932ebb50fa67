/* SPDX-License-Identifier: Apache-2.0
 *
 * ref_gdn.c - gated delta net of the oracle: causal convolution, gates, and the recurrence itself, token by token.
 */
#include "ref.h"

#include <string.h>

static uint64_t conv_step(const struct ifx_conv *op)
{
    return op->dilation ? op->dilation : 1;
}

/* Input of channel c at token t; before the call it comes from the state. */
static float conv_input(const struct ifx_conv *op, int64_t t, uint64_t c)
{
    uint64_t kept = (op->kernel - 1) * conv_step(op);
    if (t >= 0)
        return op->x[(uint64_t)t * op->ldx + c];
    return op->state[c * kept + (uint64_t)((int64_t)kept + t)];
}

int32_t ref_conv(struct ifx_device *dev, void *stream, const struct ifx_conv *op)
{
    (void)dev;
    (void)stream;
    uint64_t step = conv_step(op), kept = (op->kernel - 1) * step;
    for (uint64_t c = 0; c < op->channels; c++) {
        for (uint64_t t = 0; t < op->n; t++) {
            double sum = 0;
            for (uint64_t j = 0; j < op->kernel; j++)
                sum += (double)op->w[c * op->kernel + j] * conv_input(op, (int64_t)(t + j * step) - (int64_t)kept, c);
            op->y[t * op->ldy + c] = (float)ref_silu(sum);
        }
        /* Oldest first: each value comes from this place or a later one. */
        for (uint64_t j = 0; j < kept; j++)
            op->state[c * kept + j] = conv_input(op, (int64_t)(op->n + j) - (int64_t)kept, c);
    }
    return IFX_OK;
}

static double softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

int32_t ref_gdn_gate(struct ifx_device *dev, void *stream, const struct ifx_gdn_gate *op)
{
    (void)dev;
    (void)stream;
    for (uint64_t t = 0; t < op->n; t++)
        for (uint64_t h = 0; h < op->heads; h++) {
            double a = op->a[t * op->lda + h], b = op->b[t * op->ldb + h];
            op->g[t * op->heads + h] = (float)(-exp((double)op->a_log[h]) * softplus(a + op->dt_bias[h]));
            op->beta[t * op->heads + h] = (float)ref_sigmoid(b);
        }
    return IFX_OK;
}

uint64_t ref_gated_delta_ws_bytes(struct ifx_device *dev, const struct ifx_gated_delta *op)
{
    (void)dev;
    /* The state of one head in double, q and k normalised, u. */
    return ((uint64_t)op->dk * op->dv + 2 * (uint64_t)op->dk + op->dv) * sizeof(double);
}

static void l2_normalise(const float *x, uint64_t d, double scale, double *y)
{
    double sum = 0;
    for (uint64_t i = 0; i < d; i++)
        sum += (double)x[i] * x[i];
    for (uint64_t i = 0; i < d; i++)
        y[i] = x[i] / sqrt(sum + 1e-6) * scale;
}

/* One token of one head. S: [dk, dv]. */
static void delta_step(double *S, const double *q, const double *k, const float *v, double g, double beta,
                       uint64_t dk, uint64_t dv, double *u, float *out)
{
    double decay = exp(g);
    for (uint64_t i = 0; i < dk * dv; i++)
        S[i] *= decay;
    for (uint64_t j = 0; j < dv; j++)
        u[j] = 0;
    for (uint64_t i = 0; i < dk; i++)
        for (uint64_t j = 0; j < dv; j++)
            u[j] += S[i * dv + j] * k[i];
    for (uint64_t j = 0; j < dv; j++)
        u[j] = beta * (v[j] - u[j]);
    for (uint64_t i = 0; i < dk; i++)
        for (uint64_t j = 0; j < dv; j++)
            S[i * dv + j] += k[i] * u[j];
    for (uint64_t j = 0; j < dv; j++)
        u[j] = 0;
    for (uint64_t i = 0; i < dk; i++)
        for (uint64_t j = 0; j < dv; j++)
            u[j] += S[i * dv + j] * q[i];
    for (uint64_t j = 0; j < dv; j++)
        out[j] = (float)u[j];
}

int32_t ref_gated_delta(struct ifx_device *dev, void *stream, const struct ifx_gated_delta *op)
{
    (void)dev;
    (void)stream;
    uint64_t dk = op->dk, dv = op->dv;
    double *S = op->ws, *q = S + dk * dv, *k = q + dk, *u = k + dk;
    for (uint64_t h = 0; h < op->v_heads; h++) {
        uint64_t key_head = h / (op->v_heads / op->k_heads);
        float *state = op->state + h * dk * dv;
        for (uint64_t i = 0; i < dk * dv; i++)
            S[i] = state[i];
        for (uint64_t t = 0; t < op->n; t++) {
            l2_normalise(op->q + t * op->ldq + key_head * dk, dk, 1.0 / sqrt((double)dk), q);
            l2_normalise(op->k + t * op->ldk + key_head * dk, dk, 1.0, k);
            delta_step(S, q, k, op->v + t * op->ldv + h * dv, op->g[t * op->v_heads + h],
                       op->beta[t * op->v_heads + h], dk, dv, u, op->out + t * op->ldo + h * dv);
        }
        for (uint64_t i = 0; i < dk * dv; i++)
            state[i] = (float)S[i];
    }
    return IFX_OK;
}
