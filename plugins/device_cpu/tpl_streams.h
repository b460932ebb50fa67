/* SPDX-License-Identifier: Apache-2.0
 *
 * tpl_streams.h - kernel template: residuals of several streams, and scores of index blocks.
 */
#include "kernels.h"

static void activate(const void *arg, uint64_t t0, uint64_t t1)
{
    const struct ifx_activate *op = arg;
    vf scale = v_set1(op->scale);
    for (uint64_t t = t0; t < t1; t++) {
        const float *x = op->x + t * op->ldx;
        float *y = op->y + t * op->ldy;
        for (uint64_t i = 0; i < op->width; i += VW) {
            uint64_t left = op->width - i;
            vf v = v_mul(v_get(x + i, left), scale);
            v_put(y + i, op->act == IFX_ACT_SILU ? v_silu(v) : v_sigmoid(v), left);
        }
    }
}

static void stream_mix(const void *arg, uint64_t t0, uint64_t t1)
{
    const struct ifx_stream_mix *op = arg;
    vf scale = v_set1(1.0f / (float)op->streams);
    for (uint64_t t = t0; t < t1; t++) {
        const float *x = op->x + t * op->ldx, *gate = op->gate + t * op->ldg;
        float *y = op->y + t * op->ldy;
        for (uint64_t i = 0; i < op->width; i += VW) {
            uint64_t left = op->width - i;
            vf sum = v_zero();
            for (uint64_t s = 0; s < op->streams; s++) {
                uint64_t at = s * op->width + i;
                sum = v_fma(v_sigmoid(v_get(gate + at, left)), v_get(x + at, left), sum);
            }
            v_put(y + i, v_mul(sum, scale), left);
        }
    }
}

static void stream_inject(const void *arg, uint64_t t0, uint64_t t1)
{
    const struct ifx_stream_inject *op = arg;
    for (uint64_t t = t0; t < t1; t++)
        for (uint64_t s = 0; s < op->streams; s++) {
            const float *x = op->x + t * op->ldx;
            float *y = op->y + t * op->ldy + s * op->width;
            vf weight = v_set1(2.0f * scalar_sigmoid(op->scale * op->inject[t * op->ldi + s]));
            for (uint64_t i = 0; i < op->width; i += VW) {
                uint64_t left = op->width - i;
                v_put(y + i, v_fma(weight, v_get(x + i, left), v_get(y + i, left)), left);
            }
        }
}

static void stream_gate(const void *arg, uint64_t t0, uint64_t t1)
{
    const struct ifx_stream_gate *op = arg;
    for (uint64_t t = t0; t < t1; t++)
        for (uint64_t s = 0; s < op->streams; s++) {
            const float *value = op->value + t * op->ldv;
            float *y = op->y + t * op->ldy + s * op->width;
            float g = dot(op->key + t * op->ldk + s * op->width, op->query + t * op->ldq + s * op->width, op->width);
            g /= sqrtf((float)op->width);
            float root = sqrtf(fmaxf(fabsf(g), 1e-6f));
            vf gate = v_set1(scalar_sigmoid(g > 0 ? root : g < 0 ? -root : g * 0.0f));
            for (uint64_t i = 0; i < op->width; i += VW) {
                uint64_t left = op->width - i;
                v_put(y + i, v_mul(gate, v_get(value + i, left)), left);
            }
        }
}

/* score[b] = sum over heads of max(0, q[h] . keys[b]) / sqrt(d) */
static void block_scores(const float *q, uint32_t heads, uint32_t d, const float *keys, uint64_t blocks, float *score)
{
    float scale = 1.0f / sqrtf((float)d);
    for (uint64_t b = 0; b < blocks; b++) {
        float sum = 0.0f;
        for (uint32_t h = 0; h < heads; h++) {
            float s = dot(q + (uint64_t)h * d, keys + b * d, d);
            sum += s > 0.0f ? s : 0.0f;
        }
        score[b] = sum * scale;
    }
}
