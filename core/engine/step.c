/* SPDX-License-Identifier: Apache-2.0
 *
 * step.c - one pass: columns of one or several sequences through the family.
 */
#include "engine.h"

#include <infernix/numerics.h>
#include <limits.h>
#include <string.h>

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

static int32_t observe_hidden(struct engine_step *step, int32_t layer, const float *x, uint64_t ldx, uint32_t n)
{
    uint32_t width = step->model->desc->residual_width;
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

/* On a device with its own memory the residual is looked at only when somebody watches: it costs a copy and a wait. */
static int32_t observe(const struct ifx_services *sv, uint32_t what, int32_t layer, const float *x, uint64_t ldx, uint32_t n)
{
    struct engine_step *step = sv->ctx;
    struct ifx_model *m = step->model;
    if (what != IFX_OBSERVE_HIDDEN || (!m->host_memory && !step->watch))
        return IFX_OK;
    if (m->host_memory)
        return observe_hidden(step, layer, x, ldx, n);
    uint64_t bytes = n * ldx * sizeof *x;
    float *copy = base_alloc(bytes, 64);
    int32_t st = copy ? m->dev->ops->copy(m->dev, m->stream, copy, x, bytes, IFX_COPY_FROM_DEVICE) : IFX_ENOMEM;
    if (!st)
        st = m->dev->ops->stream_sync(m->dev, m->stream);
    if (!st)
        st = observe_hidden(step, layer, copy, ldx, n);
    base_free(copy);
    return st;
}

static uint32_t cancelled(const struct ifx_services *sv)
{
    const struct engine_step *step = sv->ctx;
    return !step->narrow && base_cancelled();
}

/* ---- the pass ---- */

static int32_t upload(const struct engine_step *es)
{
    struct ifx_model *m = es->model;
    const struct step_buffers *b = &m->step;
    if (m->host_memory)
        return IFX_OK;
    uint64_t bytes = (2ull * es->columns + es->count) * sizeof *b->inputs;
    int32_t st = m->dev->ops->copy(m->dev, m->stream, b->inputs, b->host_inputs, bytes, IFX_COPY_TO_DEVICE);
    for (uint32_t i = 0; !st && i < es->count; i++)
        st = kv_upload_pages(es->items[i]->sequence);
    return st;
}

static int32_t fill(struct engine_step *es, struct ifx_step *step)
{
    struct ifx_model *m = es->model;
    struct step_buffers *b = &m->step;
    es->watch = false;
    es->columns = es->n_rows = 0;
    for (uint32_t i = 0; i < es->count; i++)
        es->columns += es->items[i]->n;
    uint32_t *host = m->host_memory ? b->inputs : b->host_inputs, column = 0;
    int32_t *tokens = (int32_t *)host, *positions = tokens + es->columns;
    for (uint32_t i = 0; i < es->count; i++) {
        const struct ifx_batch_item *it = es->items[i];
        struct ifx_sequence *s = it->sequence;
        es->bad_layer[i] = INT32_MIN;
        es->watch |= s->observed;
        es->rows[i] = it->sampler && !it->n_logits ? 1 : it->n_logits;
        host[2 * es->columns + i] = ifx_f32_bits(engine_pick_draw(es, i));
        b->segments[i] = (struct ifx_segment){.column0 = column, .n = it->n, .pos0 = s->length, .state = s->state, .sequence = s};
        for (uint32_t t = 0; t < it->n; t++) {
            if (t + es->rows[i] >= it->n)
                b->logit_columns[es->n_rows++] = column;
            tokens[column] = it->tokens[t];
            positions[column++] = (int32_t)(s->length + t);
        }
    }
    es->narrow = es->columns <= IFX_NARROW_COLUMNS;
    es->positions = (const int32_t *)b->inputs + es->columns;
    step->n = es->columns;
    step->tokens = (const int32_t *)b->inputs;
    step->positions = es->positions;
    step->n_segments = es->count;
    step->n_logits = es->n_rows;
    step->flags = es->watch ? IFX_STEP_ALL_COLUMNS : 0;
    /* Many rows of one item need no place of their own where the device writes to the host's memory. */
    bool direct = m->host_memory && es->count == 1 && es->items[0]->n_logits;
    step->logits = direct ? es->items[0]->logits : b->logits;
    return upload(es);
}

/* Half a pass is in the state of every sequence: none can go on. */
static int32_t break_all(struct engine_step *es, int32_t status)
{
    if (status == IFX_ECANCELLED)
        base_error(status, "cancelled");
    for (uint32_t i = 0; i < es->count; i++)
        engine_break_item(es->items[i], status);
    /* The stream tells of a failure once, and what was enqueued before it still runs. */
    if (es->model->offload)
        offload_recover(es->model->offload, es->model->stream);
    (void)es->model->dev->ops->stream_sync(es->model->dev, es->model->stream);
    return status;
}

static void advance(struct engine_step *es)
{
    for (uint32_t i = 0; i < es->count; i++) {
        const struct ifx_batch_item *it = es->items[i];
        struct ifx_sequence *s = it->sequence;
        memcpy(s->tokens + s->length, it->tokens, it->n * sizeof *it->tokens);
        s->on_grid &= s->length % engine_grid(es->model) == 0 && it->n == engine_grid(es->model);
        s->suspect |= es->bad_layer[i] != INT32_MIN;
        s->length += it->n;
    }
}

int32_t engine_run_step(struct engine_step *es)
{
    struct ifx_model *m = es->model;
    struct step_buffers *b = &m->step;
    struct ifx_step step = {.struct_size = sizeof step, .dev = m->dev, .stream = m->stream, .weights = m->weights,
                            .segments = b->segments, .logit_columns = b->logit_columns, .ws = b->ws, .ws_bytes = b->ws_bytes,
                            .constants = b->constants};
    struct ifx_services services = {.struct_size = sizeof services, .ctx = es, .attention = engine_attention,
                                    .moe = engine_moe, .moe_block = engine_moe_block, .observe = observe, .cancelled = cancelled,
                                    .index_plane = engine_index_plane, .table_rows = engine_table_rows};
    step.services = &services;
    es->jobs = b->jobs;
    int32_t st = fill(es, &step);
    if (!st)
        st = engine_tables_begin(es);
    if (!st)
        st = engine_moe_begin(es);
    if (!st)
        st = engine_forward(es, &step);
    if (!st)
        st = engine_results_enqueue(es, step.logits);
    if (!st)
        st = m->dev->ops->stream_sync(m->dev, m->stream);
    engine_tables_end(m);
    if (st)
        return break_all(es, st);
    advance(es);
    engine_results_finish(es, step.logits);
    return IFX_OK;
}
