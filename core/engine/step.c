/* SPDX-License-Identifier: Apache-2.0
 *
 * step.c - one pass: columns of one or several sequences through the family.
 */
#include "engine.h"

#include <infernix/numerics.h>
#include <limits.h>
#include <string.h>

/* ---- buffers ---- */

struct want {
    void **at;
    uint64_t bytes;
};

static uint64_t moe_ws_bytes(const struct ifx_model *m, uint32_t n)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < m->desc->n_moe && !m->oracle; i++) {
        uint64_t bytes = offload_cpu_ws_bytes(&m->moe_layers[i], m->ctx->pool, n);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* All from the device: host memory today, and the sizes are final before "ready". */
int32_t step_buffers_create(struct ifx_model *m)
{
    struct step_buffers *b = &m->step;
    const struct ifx_model_desc *d = m->desc;
    uint64_t n = m->prefill_chunk > IFX_NARROW_COLUMNS ? m->prefill_chunk : IFX_NARROW_COLUMNS, experts = 0, top_k = 0, hidden = 0;
    for (uint32_t i = 0; i < d->n_moe; i++) {
        experts = d->moe[i].experts > experts ? d->moe[i].experts : experts;
        top_k = d->moe[i].top_k > top_k ? d->moe[i].top_k : top_k;
        hidden = d->moe[i].hidden > hidden ? d->moe[i].hidden : hidden;
    }
    uint64_t group = d->n_kv_heads ? d->n_q_heads / d->n_kv_heads : 0;
    uint64_t parts = d->n_kv_layers && !m->oracle ? attention_parts(m) : 0;
    b->max_columns = (uint32_t)n;
    b->max_logits = IFX_NARROW_COLUMNS;
    b->ws_bytes = m->family->workspace_bytes(m->family_model, m->dev, (uint32_t)n, (uint32_t)n);
    b->part_rows = group > ENGINE_ATTEND_ROWS ? group : ENGINE_ATTEND_ROWS;
    const struct want wants[] = {
        {&b->ws, b->ws_bytes},
        {(void **)&b->tokens, n * sizeof *b->tokens},
        {(void **)&b->positions, n * sizeof *b->positions},
        {(void **)&b->segments, ENGINE_PASS_ITEMS * sizeof *b->segments},
        {(void **)&b->logit_columns, n * sizeof *b->logit_columns},
        {(void **)&b->logits, (uint64_t)b->max_logits * d->vocab * sizeof *b->logits},
        {&b->router_ws, d->n_moe ? m->dev->ops->linear_ws_bytes(m->dev, (uint32_t)n, (uint32_t)hidden) : 0},
        {&b->moe_ws, moe_ws_bytes(m, (uint32_t)n)},
        {(void **)&b->router_logits, n * experts * sizeof *b->router_logits},
        {(void **)&b->router_weights, n * top_k * sizeof *b->router_weights},
        {(void **)&b->router_ids, n * top_k * sizeof *b->router_ids},
        {(void **)&b->x_bf16, n * hidden * sizeof *b->x_bf16},
        {(void **)&b->part_acc, parts * b->part_rows * d->head_dim * sizeof *b->part_acc},
        {(void **)&b->part_m, parts * b->part_rows * sizeof *b->part_m},
        {(void **)&b->part_l, parts * b->part_rows * sizeof *b->part_l},
    };
    for (size_t i = 0; i < sizeof wants / sizeof wants[0]; i++) {
        int32_t st = wants[i].bytes ? m->dev->ops->mem_alloc(m->dev, wants[i].bytes, wants[i].at) : IFX_OK;
        if (st)
            return base_error_prefix(st, "buffers for %u columns (lower --prefill-chunk)", (uint32_t)n);
    }
    return IFX_OK;
}

void step_buffers_destroy(struct ifx_model *m)
{
    struct step_buffers *b = &m->step;
    void *all[] = {b->ws,           b->tokens,         b->positions,  b->segments, b->logit_columns,
                   b->logits,       b->router_ws,      b->moe_ws,     b->router_logits, b->router_weights,
                   b->router_ids,   b->x_bf16,         b->part_acc,   b->part_m,   b->part_l};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i])
            m->dev->ops->mem_free(m->dev, all[i]);
    *b = (struct step_buffers){0};
}

/* ---- services ---- */

bool engine_finite(const float *x, uint64_t n)
{
    /* An exponent of all ones is an infinity or a NaN; lanes, so that the compiler can use vectors. */
    uint32_t bad[16] = {0}, any = 0;
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) {
            uint32_t u;
            memcpy(&u, x + i + j, sizeof u);
            bad[j] |= (u & 0x7f800000u) == 0x7f800000u;
        }
    for (; i < n; i++)
        any |= (ifx_f32_bits(x[i]) & 0x7f800000u) == 0x7f800000u;
    for (int j = 0; j < 16; j++)
        any |= bad[j];
    return !any;
}

void engine_bad_column(struct engine_step *step, uint32_t n, uint32_t t, int32_t layer)
{
    const struct step_buffers *b = &step->model->step;
    /* After the last mixer only the wanted columns are left. */
    uint32_t column = n == step->columns ? t : b->logit_columns[t];
    for (uint32_t i = 0; i < step->count; i++)
        if (column - b->segments[i].column0 < b->segments[i].n && step->bad_layer[i] == INT32_MIN)
            step->bad_layer[i] = layer;
}

static int32_t observe(const struct ifx_services *sv, uint32_t what, int32_t layer, const float *x, uint64_t ldx, uint32_t n)
{
    struct engine_step *step = sv->ctx;
    uint32_t width = step->model->desc->residual_width;
    if (what != IFX_OBSERVE_HIDDEN)
        return IFX_OK;
    for (uint32_t t = 0; t < n; t++)
        if (!engine_finite(x + t * ldx, width))
            engine_bad_column(step, n, t, layer);
    for (uint32_t i = 0; step->watch && i < step->count; i++) {
        const struct ifx_segment *seg = &step->model->step.segments[i];
        const struct ifx_sequence *s = seg->sequence;
        if (!s->observed || !s->observer.hidden)
            continue;
        int32_t st = s->observer.hidden(s->observer.ctx, layer, seg->pos0, seg->n, x + seg->column0 * ldx, width);
        if (st)
            return st;
    }
    return IFX_OK;
}

static uint32_t cancelled(const struct ifx_services *sv)
{
    const struct engine_step *step = sv->ctx;
    return !step->narrow && base_cancelled();
}

/* ---- the pass ---- */

static void fill(struct engine_step *es, struct ifx_step *step)
{
    struct step_buffers *b = &es->model->step;
    es->watch = false;
    for (uint32_t i = 0; i < es->count; i++) {
        const struct ifx_batch_item *it = es->items[i];
        struct ifx_sequence *s = it->sequence;
        es->bad_layer[i] = INT32_MIN;
        es->watch |= s->observed;
        b->segments[i] = (struct ifx_segment){.column0 = step->n, .n = it->n, .pos0 = s->length, .state = s->state,
                                              .sequence = s};
        for (uint32_t t = 0; t < it->n; t++) {
            if (t + it->n_logits >= it->n)
                b->logit_columns[step->n_logits++] = step->n;
            b->tokens[step->n] = it->tokens[t];
            b->positions[step->n++] = (int32_t)(s->length + t);
        }
    }
    step->n_segments = es->count;
    es->columns = step->n;
}

/* A sequence that cannot go on keeps the reason for whoever feeds it next. */
static void break_item(struct ifx_batch_item *it, int32_t status)
{
    if (!it->sequence->broken)
        it->sequence->broken = base_strdup(base_error_text());
    engine_fail_item(it, status);
}

static int32_t not_finite(const struct engine_step *es, uint32_t i, unsigned long long at)
{
    int32_t layer = es->bad_layer[i];
    if (layer == INT32_MIN)
        return base_error(IFX_ENONFINITE, "the logits at position %llu are not finite numbers", at);
    if (layer < 0)
        return base_error(IFX_ENONFINITE, "the logits at position %llu are not finite numbers; the embedding is the first that is not", at);
    return base_error(IFX_ENONFINITE, "the logits at position %llu are not finite numbers; layer %d is the first whose output is not", at,
                      (int)layer);
}

/* Checks and hands out the logits of a pass that went through. */
static void finish(struct engine_step *es, const float *logits)
{
    uint64_t vocab = es->model->desc->vocab;
    for (uint32_t i = 0; i < es->count; i++) {
        struct ifx_batch_item *it = es->items[i];
        struct ifx_sequence *s = it->sequence;
        memcpy(s->tokens + s->length, it->tokens, it->n * sizeof *it->tokens);
        s->on_grid &= s->length % engine_grid(es->model) == 0 && it->n == engine_grid(es->model);
        s->suspect |= es->bad_layer[i] != INT32_MIN;
        s->length += it->n;
        for (uint32_t t = 0; t < it->n_logits; t++, logits += vocab) {
            if (it->logits + t * vocab != logits)
                memcpy(it->logits + t * vocab, logits, vocab * sizeof(float));
            if (!it->status && !engine_finite(logits, vocab))
                break_item(it, not_finite(es, i, s->length - it->n_logits + t));
        }
        prefix_step(s, it->n, it->n_logits && !it->status);
    }
}

int32_t engine_run_step(struct engine_step *es)
{
    struct ifx_model *m = es->model;
    struct step_buffers *b = &m->step;
    struct ifx_step step = {.struct_size = sizeof step, .dev = m->dev, .stream = m->stream, .weights = m->weights,
                            .tokens = b->tokens, .positions = b->positions, .segments = b->segments,
                            .logit_columns = b->logit_columns, .ws = b->ws, .ws_bytes = b->ws_bytes};
    struct ifx_services services = {.struct_size = sizeof services, .ctx = es, .attention = engine_attention,
                                    .moe = engine_moe, .observe = observe, .cancelled = cancelled};
    fill(es, &step);
    es->narrow = step.n <= IFX_NARROW_COLUMNS;
    step.services = &services;
    step.flags = es->watch ? IFX_STEP_ALL_COLUMNS : 0;
    step.logits = es->count == 1 ? es->items[0]->logits : b->logits;
    int32_t st = m->family->forward(m->family_model, &step);
    if (!st)
        st = m->dev->ops->stream_sync(m->dev, m->stream);
    if (!st) {
        finish(es, step.logits);
        return IFX_OK;
    }
    /* Half a pass is in the state of every sequence: none can go on. */
    if (st == IFX_ECANCELLED)
        base_error(st, "cancelled");
    for (uint32_t i = 0; i < es->count; i++)
        break_item(es->items[i], st);
    return st;
}
