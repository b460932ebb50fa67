/* SPDX-License-Identifier: Apache-2.0
 *
 * results.c - what comes out of a pass: rows of logits, picked tokens, and which sequences must not go on.
 */
#include "engine.h"

#include <limits.h>
#include <string.h>

#define FINISH_TOGETHER 32768u /* logits from which it is worth waking other threads to sample */

/* ---- picks ---- */

static bool on_device(const struct engine_step *es, const struct ifx_batch_item *it)
{
    return !es->model->host_memory && it->sampler;
}

float engine_pick_draw(struct engine_step *es, uint32_t i)
{
    struct ifx_batch_item *it = es->items[i];
    if (!on_device(es, it) || sampler_settings(it->sampler)->temperature == 0)
        return 0;
    /* Rounded down: a fraction below 1 stays below 1. */
    return (float)((double)(uint32_t)(sampler_draw(it->sampler) * 0x1p24) * 0x1p-24);
}

/* The next item's pick can be part of the same operation: a history is of one row. */
static bool alike(const struct engine_step *es, uint32_t i, uint32_t next)
{
    const struct ifx_sampler *s = es->items[i]->sampler, *t = es->items[next]->sampler;
    if (es->rows[next] != 1 || !on_device(es, es->items[next]) || sampler_history(s) || sampler_history(t))
        return false;
    const struct ifx_sampling *a = sampler_settings(s), *b = sampler_settings(t);
    return a->temperature == b->temperature && a->top_k == b->top_k && a->top_p == b->top_p && a->min_p == b->min_p;
}

/* Brings the slot's copy of an item's history up to date; after a pick it counts the token picked by itself. */
static int32_t bring_history(struct ifx_model *m, const struct ifx_batch_item *it, struct ifx_sample *op)
{
    struct engine_slot *slot = &m->slots[it->sequence->slot];
    const struct ifx_sampling *o = sampler_settings(it->sampler);
    const uint32_t *history = sampler_history(it->sampler);
    bool copied = slot->history_of == it->sampler && sampler_copied(it->sampler, slot->history);
    op->history = slot->history;
    op->repetition_penalty = o->repetition_penalty;
    op->presence_penalty = o->presence_penalty;
    op->frequency_penalty = o->frequency_penalty;
    slot->history_of = it->sampler;
    sampler_counted(it->sampler, NULL, -1); /* until the step is known to have gone well */
    return copied ? IFX_OK
                  : m->dev->ops->copy(m->dev, m->stream, slot->history, history, m->desc->vocab * sizeof *history, IFX_COPY_TO_DEVICE);
}

/* Picks of neighbours with the same settings are one operation. */
static int32_t sample(struct engine_step *es, const float *logits)
{
    struct ifx_model *m = es->model;
    struct step_buffers *b = &m->step;
    const float *u = (const float *)(const void *)(b->inputs + 2ull * es->columns);
    uint32_t count, row = 0, picked = 0;
    int32_t st = IFX_OK;
    for (uint32_t i = 0; i < es->count && !st; i += count) {
        count = 1;
        row += es->rows[i];
        if (!on_device(es, es->items[i]))
            continue;
        const struct ifx_sampling *o = sampler_settings(es->items[i]->sampler);
        struct ifx_sample op = {.vocab = m->desc->vocab, .logits = logits + (uint64_t)(row - 1) * m->desc->vocab, .ldl = m->desc->vocab,
                                .temperature = o->temperature, .top_p = o->top_p, .min_p = o->min_p, .top_k = o->top_k,
                                .u = o->temperature == 0 ? NULL : u + i, .tokens = b->picks + i, .ws = b->sample_ws};
        while (i + count < es->count && alike(es, i, i + count)) {
            count++;
            row++;
        }
        op.n = count;
        picked += count;
        if (sampler_history(es->items[i]->sampler))
            st = bring_history(m, es->items[i], &op);
        if (!st)
            st = m->dev->ops->sample(m->dev, m->stream, &op);
    }
    if (!st && picked)
        st = m->dev->ops->copy(m->dev, m->stream, b->host_picks, b->picks, es->count * sizeof *b->picks, IFX_COPY_FROM_DEVICE);
    return st;
}

/* ---- rows ---- */

/* Where the host finds an item's rows, which begin at `row` of the pass, once they have come back; NULL: they stay on the device.  Few rows
 * come back to memory that the copy engine likes. */
static float *rows_on_host(const struct engine_step *es, uint32_t i, uint64_t row)
{
    struct ifx_batch_item *it = es->items[i];
    if (!it->n_logits)
        return NULL;
    return es->n_rows <= ENGINE_PASS_ITEMS ? es->model->step.host_logits + row * es->model->desc->vocab : it->logits;
}

int32_t engine_results_enqueue(struct engine_step *es, const float *logits)
{
    struct ifx_model *m = es->model;
    uint64_t vocab = m->desc->vocab, row = 0;
    if (m->host_memory)
        return IFX_OK;
    int32_t st = sample(es, logits);
    for (uint32_t i = 0; i < es->count && !st; row += es->rows[i++]) {
        float *to = rows_on_host(es, i, row);
        if (to)
            st = m->dev->ops->copy(m->dev, m->stream, to, logits + row * vocab, es->rows[i] * vocab * sizeof *to, IFX_COPY_FROM_DEVICE);
    }
    return st;
}

/* ---- the end ---- */

void engine_break_item(struct ifx_batch_item *it, int32_t status)
{
    if (!it->sequence->broken)
        it->sequence->broken = base_strdup(base_error_text());
    engine_fail_item(it, status);
}

static void not_finite(const struct engine_step *es, uint32_t i, uint32_t row)
{
    struct ifx_batch_item *it = es->items[i];
    unsigned long long at = it->sequence->length - es->rows[i] + row;
    int32_t layer = es->bad_layer[i];
    if (layer == INT32_MIN)
        base_error(IFX_ENONFINITE, "the logits at position %llu are not finite numbers", at);
    else if (layer < 0)
        base_error(IFX_ENONFINITE, "the logits at position %llu are not finite numbers; the embedding is the first that is not", at);
    else
        base_error(IFX_ENONFINITE, "the logits at position %llu are not finite numbers; layer %d is the first whose output is not", at,
                   (int)layer);
    engine_break_item(it, IFX_ENONFINITE);
}

static void finish_item(struct engine_step *es, uint32_t i, const float *rows)
{
    struct ifx_model *m = es->model;
    struct ifx_batch_item *it = es->items[i];
    uint64_t vocab = m->desc->vocab;
    bool picked = on_device(es, it);
    if (picked && m->step.host_picks[i] < 0)
        not_finite(es, i, es->rows[i] - 1);
    for (uint32_t t = 0; rows && t < es->rows[i]; t++) {
        if (it->n_logits && it->logits != rows)
            memcpy(it->logits + t * vocab, rows + t * vocab, vocab * sizeof *rows);
        if (!it->status && !engine_finite(rows + t * vocab, vocab))
            not_finite(es, i, t);
    }
    if (it->status || !it->sampler)
        return;
    int32_t st = IFX_OK;
    if (picked) {
        it->token = m->step.host_picks[i];
        sampler_counted(it->sampler, m->slots[it->sequence->slot].history, it->token);
    } else {
        st = ifx_sampler_pick(it->sampler, rows + (es->rows[i] - 1) * vocab, &it->token);
    }
    if (st)
        engine_fail_item(it, st);
}

struct finish_run {
    struct engine_step *es;
    const float *logits;
};

static int32_t finish_task(void *ctx, uint64_t i, uint32_t worker)
{
    const struct finish_run *r = ctx;
    const struct ifx_model *m = r->es->model;
    uint64_t row = 0;
    (void)worker;
    for (uint64_t k = 0; k < i; k++)
        row += r->es->rows[k];
    finish_item(r->es, (uint32_t)i, m->host_memory ? r->logits + row * m->desc->vocab : rows_on_host(r->es, (uint32_t)i, row));
    return IFX_OK;
}

void engine_results_finish(struct engine_step *es, const float *logits)
{
    const struct ifx_model *m = es->model;
    struct finish_run run = {es, logits};
    if (es->count > 1 && (uint64_t)es->count * m->desc->vocab >= FINISH_TOGETHER)
        base_pool_run(m->ctx->pool, es->count, finish_task, &run);
    else
        for (uint32_t i = 0; i < es->count; i++)
            finish_task(&run, i, 0);
    for (uint32_t i = 0; i < es->count; i++) {
        struct ifx_batch_item *it = es->items[i];
        prefix_step(it->sequence, it->n, es->rows[i] && !it->status);
    }
}
