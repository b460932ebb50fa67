/* SPDX-License-Identifier: Apache-2.0
 *
 * step.c - one step: columns of one or several sequences through the family.
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
    uint64_t n = m->prefill_chunk, experts = 0, top_k = 0, hidden = 0;
    for (uint32_t i = 0; i < d->n_moe; i++) {
        experts = d->moe[i].experts > experts ? d->moe[i].experts : experts;
        top_k = d->moe[i].top_k > top_k ? d->moe[i].top_k : top_k;
        hidden = d->moe[i].hidden > hidden ? d->moe[i].hidden : hidden;
    }
    uint64_t group = d->n_kv_heads ? d->n_q_heads / d->n_kv_heads : 0;
    uint64_t parts = d->n_kv_layers && !m->oracle ? attention_parts(m) : 0;
    b->max_columns = (uint32_t)n;
    b->max_logits = m->max_sequences > ENGINE_BATCH_LOGITS ? m->max_sequences : ENGINE_BATCH_LOGITS;
    b->ws_bytes = m->family->workspace_bytes(m->family_model, m->dev, (uint32_t)n, (uint32_t)n);
    b->part_rows = group > ENGINE_ATTEND_ROWS ? group : ENGINE_ATTEND_ROWS;
    const struct want wants[] = {
        {&b->ws, b->ws_bytes},
        {(void **)&b->tokens, n * sizeof *b->tokens},
        {(void **)&b->positions, n * sizeof *b->positions},
        {(void **)&b->segments, m->max_sequences * sizeof *b->segments},
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

static int32_t observe(const struct ifx_services *sv, uint32_t what, int32_t layer, const float *x, uint64_t ldx, uint32_t n)
{
    struct engine_step *step = sv->ctx;
    uint32_t width = step->model->desc->residual_width;
    if (what != IFX_OBSERVE_HIDDEN)
        return IFX_OK;
    for (uint32_t t = 0; t < n && step->bad_layer == INT32_MIN; t++)
        if (!engine_finite(x + t * ldx, width))
            step->bad_layer = layer;
    for (uint32_t i = 0; step->watch && i < step->count; i++) {
        const struct ifx_segment *seg = &step->model->step.segments[i];
        const struct ifx_sequence *s = step->items[i].sequence;
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

/* ---- the step ---- */

/* A sequence that cannot go on keeps the reason for whoever feeds it next. */
static void break_sequence(struct ifx_sequence *s, const char *why)
{
    if (!s->broken)
        s->broken = base_strdup(why);
}

static int32_t check_item(const struct ifx_model *m, const struct ifx_batch_item *it)
{
    const struct ifx_sequence *s = it->sequence;
    if (s->model != m)
        return base_error(IFX_EINVAL, "sequences of two models in one step");
    if (s->broken)
        return base_error(IFX_EINVAL, "the sequence cannot go on (%s); reset it first", s->broken);
    if (!it->n || it->n_logits > it->n)
        return base_error(IFX_EINVAL, "%u tokens and %u logit rows in one step", it->n, it->n_logits);
    if (s->length + it->n > m->n_ctx)
        return base_error(IFX_ELIMIT, "%llu tokens do not fit the context of %u tokens; raise it with --ctx",
                          (unsigned long long)(s->length + it->n), m->n_ctx);
    for (uint32_t i = 0; i < it->n; i++)
        if (it->tokens[i] < 0 || (uint32_t)it->tokens[i] >= m->desc->vocab)
            return base_error(IFX_EINVAL, "token id %d at position %llu is outside the vocabulary of %u", it->tokens[i],
                              (unsigned long long)(s->length + i), m->desc->vocab);
    return IFX_OK;
}

static int32_t fill(struct ifx_model *m, struct ifx_batch_item *items, uint32_t count, struct ifx_step *step)
{
    struct step_buffers *b = &m->step;
    for (uint32_t i = 0; i < count; i++) {
        const struct ifx_batch_item *it = &items[i];
        struct ifx_sequence *s = it->sequence;
        int32_t st = kv_reserve(s, s->length + it->n);
        if (st)
            return st;
        b->segments[i] = (struct ifx_segment){.column0 = step->n, .n = it->n, .pos0 = s->length, .state = s->state,
                                              .sequence = s};
        for (uint32_t t = 0; t < it->n; t++) {
            if (t + it->n_logits >= it->n)
                b->logit_columns[step->n_logits++] = step->n;
            b->tokens[step->n] = it->tokens[t];
            b->positions[step->n++] = (int32_t)(s->length + t);
        }
    }
    step->n_segments = count;
    return IFX_OK;
}

/* Checks and hands out the logits of a step that went through. */
static void finish(struct ifx_model *m, const struct engine_step *es, const float *logits)
{
    uint64_t vocab = m->desc->vocab;
    for (uint32_t i = 0; i < es->count; i++) {
        struct ifx_batch_item *it = &es->items[i];
        it->sequence->length += it->n;
        it->status = IFX_OK;
        for (uint32_t t = 0; t < it->n_logits; t++, logits += vocab) {
            if (it->logits + t * vocab != logits)
                memcpy(it->logits + t * vocab, logits, vocab * sizeof(float));
            if (it->status || engine_finite(logits, vocab))
                continue;
            unsigned long long at = it->sequence->length - it->n_logits + t;
            if (es->bad_layer == INT32_MIN)
                it->status = base_error(IFX_ENONFINITE, "the logits at position %llu are not finite numbers", at);
            else if (es->bad_layer < 0)
                it->status = base_error(IFX_ENONFINITE, "the logits at position %llu are not finite numbers; the embedding is the first that is not", at);
            else
                it->status = base_error(IFX_ENONFINITE,
                                        "the logits at position %llu are not finite numbers; layer %d is the first whose output is not",
                                        at, (int)es->bad_layer);
            break_sequence(it->sequence, base_error_text());
        }
    }
}

static int32_t run_step(struct ifx_model *m, struct ifx_batch_item *items, uint32_t count)
{
    struct step_buffers *b = &m->step;
    struct engine_step es = {.model = m, .items = items, .count = count, .bad_layer = INT32_MIN};
    struct ifx_step step = {.struct_size = sizeof step, .dev = m->dev, .stream = m->stream, .weights = m->weights,
                            .tokens = b->tokens, .positions = b->positions, .segments = b->segments,
                            .logit_columns = b->logit_columns, .ws = b->ws, .ws_bytes = b->ws_bytes};
    for (uint32_t i = 0; i < count; i++)
        es.watch |= items[i].sequence->observed;
    int32_t st = fill(m, items, count, &step);
    if (st)
        return st;
    es.narrow = step.n <= IFX_NARROW_COLUMNS;
    struct ifx_services services = {.struct_size = sizeof services, .ctx = &es, .attention = engine_attention,
                                    .moe = engine_moe, .observe = observe, .cancelled = cancelled};
    step.services = &services;
    step.flags = es.watch ? IFX_STEP_ALL_COLUMNS : 0;
    step.logits = count == 1 ? items[0].logits : b->logits;
    st = m->family->forward(m->family_model, &step);
    if (!st)
        st = m->dev->ops->stream_sync(m->dev, m->stream);
    if (!st) {
        finish(m, &es, step.logits);
        return IFX_OK;
    }
    /* Half a step is in the state of every sequence: none can go on. */
    if (st == IFX_ECANCELLED)
        base_error(st, "cancelled");
    for (uint32_t i = 0; i < count; i++)
        break_sequence(items[i].sequence, base_error_text());
    return st;
}

int32_t ifx_batch_feed(struct ifx_batch_item *items, uint32_t count)
{
    if (!count)
        return IFX_OK;
    struct ifx_model *m = items[0].sequence->model;
    uint64_t columns = 0, logits = 0;
    for (uint32_t i = 0; i < count; i++) {
        int32_t st = check_item(m, &items[i]);
        if (st)
            return st;
        columns += items[i].n;
        logits += items[i].n_logits;
        items[i].status = IFX_OK;
    }
    if (columns > m->step.max_columns)
        return base_error(IFX_EINVAL, "%llu tokens in one step; at most %u (--prefill-chunk)", (unsigned long long)columns,
                          m->step.max_columns);
    if (count > m->max_sequences || (count > 1 && logits > m->step.max_logits))
        return base_error(IFX_EINVAL, "%u sequences and %llu logit rows in one step; at most %u and %u", count,
                          (unsigned long long)logits, m->max_sequences, m->step.max_logits);
    pthread_mutex_lock(&m->lock);
    int32_t st = run_step(m, items, count);
    pthread_mutex_unlock(&m->lock);
    return st;
}

int32_t ifx_sequence_feed(struct ifx_sequence *s, const int32_t *tokens, uint64_t n, uint64_t n_logits, float *logits)
{
    struct ifx_model *m = s->model;
    if (!logits)
        n_logits = 0;
    if (n_logits > n)
        return base_error(IFX_EINVAL, "%llu logit rows of %llu tokens", (unsigned long long)n_logits, (unsigned long long)n);
    if (n > m->n_ctx || s->length + n > m->n_ctx)
        return base_error(IFX_ELIMIT, "the prompt has %llu tokens%s, the context holds %u; raise it with --ctx",
                          (unsigned long long)(s->length + n), s->length ? " with what came before" : "", m->n_ctx);
    for (uint64_t i = 0; i < n;) {
        uint64_t rest = n - i, take = rest < m->prefill_chunk ? rest : m->prefill_chunk;
        uint64_t first_wanted = n - n_logits, end = i + take;
        struct ifx_batch_item it = {.sequence = s, .tokens = tokens + i, .n = (uint32_t)take};
        if (end > first_wanted) {
            uint64_t from = i > first_wanted ? i : first_wanted;
            it.n_logits = (uint32_t)(end - from);
            it.logits = logits + (from - first_wanted) * m->desc->vocab;
        }
        if (base_cancelled())
            return base_error(IFX_ECANCELLED, "cancelled");
        int32_t st = ifx_batch_feed(&it, 1);
        if (st || it.status)
            return st ? st : it.status;
        i = end;
    }
    return IFX_OK;
}
