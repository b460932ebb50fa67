/* SPDX-License-Identifier: Apache-2.0
 *
 * ref_moe.c - the routed experts in double, from decoded rows: the oracle of the MoE call.
 */
#include "offload.h"

#include <math.h>
#include <string.h>

struct ref_run {
    const struct offload_call *c;
    const float *x;
    uint64_t ldx;
    double *parts;   /* [n * top_k, hidden] */
    double *scratch; /* a worker: one decoded gate and one up row, then the hidden values of n columns */
    uint64_t scratch_values;
};

static double dot(const double *w, const float *x, uint32_t k)
{
    double sum = 0;
    for (uint32_t i = 0; i < k; i++)
        sum += w[i] * (double)x[i];
    return sum;
}

/* The slots (column * top_k + rank) of an expert are found by looking: this is the plain form. */
static bool next_slot(const struct offload_call *c, uint32_t expert, uint64_t *slot)
{
    uint64_t end = (uint64_t)c->n * c->layer->top_k;
    while (*slot < end && c->ids[*slot] != (int32_t)expert)
        (*slot)++;
    return *slot < end;
}

static int32_t ref_gate_up(const struct ref_run *run, uint32_t expert, const void *record, double *row, double *hidden)
{
    const struct offload_layer *l = run->c->layer;
    double *up_row = row + l->hidden;
    for (uint32_t r = 0; r < l->inter; r++) {
        int32_t st = l->ops->decode_row(l->bank, record, IFX_GATE, r, row);
        if (!st)
            st = l->ops->decode_row(l->bank, record, IFX_UP, r, up_row);
        if (st)
            return st;
        uint64_t i = 0;
        for (uint64_t slot = 0; next_slot(run->c, expert, &slot); slot++, i++) {
            const float *x = run->x + slot / l->top_k * run->ldx;
            double g = dot(row, x, l->hidden), u = dot(up_row, x, l->hidden);
            hidden[i * l->inter + r] = g / (1.0 + exp(-g)) * u;
        }
    }
    return IFX_OK;
}

static int32_t ref_down(const struct ref_run *run, uint32_t expert, const void *record, double *row, const double *hidden)
{
    const struct offload_layer *l = run->c->layer;
    for (uint32_t r = 0; r < l->hidden; r++) {
        int32_t st = l->ops->decode_row(l->bank, record, IFX_DOWN, r, row);
        if (st)
            return st;
        uint64_t i = 0;
        for (uint64_t slot = 0; next_slot(run->c, expert, &slot); slot++, i++) {
            double sum = 0;
            for (uint32_t k = 0; k < l->inter; k++)
                sum += row[k] * hidden[i * l->inter + k];
            run->parts[slot * l->hidden + r] = sum;
        }
    }
    return IFX_OK;
}

static int32_t ref_expert(void *ctx, uint64_t task, uint32_t worker)
{
    const struct ref_run *run = ctx;
    const struct offload_layer *l = run->c->layer;
    uint32_t expert = (uint32_t)task;
    uint64_t slot = 0;
    if (!next_slot(run->c, expert, &slot))
        return IFX_OK;
    const void *record = l->records + expert * l->record_bytes;
    double *row = run->scratch + worker * run->scratch_values;
    double *hidden = row + 2ull * (l->hidden > l->inter ? l->hidden : l->inter);
    int32_t st = ref_gate_up(run, expert, record, row, hidden);
    return st ? st : ref_down(run, expert, record, row, hidden);
}

static void ref_combine(const struct ref_run *run)
{
    const struct offload_call *c = run->c;
    uint32_t h = c->layer->hidden, k = c->layer->top_k;
    for (uint32_t t = 0; t < c->n; t++)
        for (uint32_t i = 0; i < h; i++) {
            double sum = 0;
            for (uint32_t r = 0; r < k; r++)
                sum += (double)c->weights[(uint64_t)t * k + r] * run->parts[((uint64_t)t * k + r) * h + i];
            c->y[t * c->ldy + i] = (float)sum;
        }
}

int32_t offload_ref_moe(const struct offload_call *c, const float *x, uint64_t ldx)
{
    const struct offload_layer *l = c->layer;
    uint64_t longer = l->hidden > l->inter ? l->hidden : l->inter;
    struct ref_run run = {.c = c, .x = x, .ldx = ldx};
    run.scratch_values = 2 * longer + (uint64_t)c->n * l->inter;
    run.parts = base_calloc((uint64_t)c->n * l->top_k * l->hidden, sizeof(double));
    run.scratch = base_calloc(run.scratch_values * base_pool_threads(c->pool), sizeof(double));
    int32_t st = IFX_ENOMEM;
    if (run.parts && run.scratch)
        st = base_pool_run(c->pool, l->experts, ref_expert, &run);
    if (!st)
        ref_combine(&run);
    base_free(run.parts);
    base_free(run.scratch);
    return st;
}
