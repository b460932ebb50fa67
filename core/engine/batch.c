/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.c - feeding tokens: checks, and how a step is cut into passes.
 *
 * Up to IFX_NARROW_COLUMNS columns every product takes the canonical order, whose bits do not depend on the other columns.  So short items
 * share passes of that many columns, a longer one has a pass of its own, and no sequence can tell whether it was alone.
 */
#include "engine.h"

void engine_fail_item(struct ifx_batch_item *it, int32_t status)
{
    struct ifx_sequence *s = it->sequence;
    base_free(s->error);
    s->error = base_strdup(base_error_text());
    it->status = status;
    it->error = s->error ? s->error : "no memory";
}

static int32_t check_item(const struct ifx_model *m, const struct ifx_batch_item *it)
{
    const struct ifx_sequence *s = it->sequence;
    if (s->broken)
        return base_error(IFX_EINVAL, "the sequence cannot go on (%s); reset it first", s->broken);
    if (!it->n || it->n_logits > it->n || (it->n_logits && !it->logits))
        return base_error(IFX_EINVAL, "%u tokens and %u logit rows in one step", it->n, it->n_logits);
    if (!m->host_memory && it->n_logits > m->step.max_logits)
        return base_error(IFX_EINVAL, "%u logit rows in one step; at most %u on this device", it->n_logits, m->step.max_logits);
    if (it->n > m->prefill_chunk)
        return base_error(IFX_EINVAL, "%u tokens in one step; at most %u (--prefill-chunk)", it->n, m->prefill_chunk);
    if (s->length + it->n > m->n_ctx)
        return base_error(IFX_ELIMIT, "%llu tokens do not fit the context of %u tokens; raise it with --ctx",
                          (unsigned long long)(s->length + it->n), m->n_ctx);
    for (uint32_t i = 0; i < it->n; i++)
        if (it->tokens[i] < 0 || (uint32_t)it->tokens[i] >= m->desc->vocab)
            return base_error(IFX_EINVAL, "token id %d at position %llu is outside the vocabulary of %u", it->tokens[i],
                              (unsigned long long)(s->length + i), m->desc->vocab);
    return IFX_OK;
}

/* What ends everything: the rest of the step has no sense. */
static bool fatal(int32_t status)
{
    return status <= IFX_EDEVICE;
}

static int32_t run_pass(struct engine_step *pass)
{
    if (!pass->count)
        return IFX_OK;
    int32_t st = engine_run_step(pass);
    pass->count = 0;
    pass->columns = 0;
    return fatal(st) ? st : IFX_OK;
}

static int32_t run_passes(struct ifx_model *m, struct ifx_batch_item *items, uint32_t count)
{
    struct engine_step shared = {.model = m};
    for (uint32_t i = 0; i < count; i++) {
        struct ifx_batch_item *it = &items[i];
        if (it->status)
            continue;
        int32_t st = kv_reserve(it->sequence, it->sequence->length + it->n);
        if (st) {
            engine_fail_item(it, st);
            continue;
        }
        if (it->n > IFX_NARROW_COLUMNS) {
            struct engine_step own = {.model = m, .items = {it}, .count = 1};
            st = run_pass(&own);
        } else {
            if (shared.columns + it->n > IFX_NARROW_COLUMNS)
                st = run_pass(&shared);
            shared.items[shared.count++] = it;
            shared.columns += it->n;
        }
        if (st)
            return st;
    }
    return run_pass(&shared);
}

int32_t ifx_batch_feed(struct ifx_batch_item *items, uint32_t count)
{
    if (!count)
        return IFX_OK;
    struct ifx_model *m = items[0].sequence->model;
    for (uint32_t i = 0; i < count; i++)
        if (items[i].sequence->model != m)
            return base_error(IFX_EINVAL, "sequences of two models in one step");
    for (uint32_t i = 0; i < count; i++) {
        items[i].status = IFX_OK;
        items[i].error = NULL;
        int32_t st = check_item(m, &items[i]);
        for (uint32_t j = 0; !st && j < i; j++)
            if (items[j].sequence == items[i].sequence)
                st = base_error(IFX_EINVAL, "a sequence stands twice in one step");
        if (st)
            engine_fail_item(&items[i], st);
    }
    pthread_mutex_lock(&m->lock);
    int32_t st = run_passes(m, items, count);
    pthread_mutex_unlock(&m->lock);
    return st;
}

uint32_t engine_grid(const struct ifx_model *m)
{
    return m->prefill_chunk < ENGINE_PAGE_TOKENS ? m->prefill_chunk : m->prefill_chunk / ENGINE_PAGE_TOKENS * ENGINE_PAGE_TOKENS;
}

uint32_t ifx_sequence_take(const struct ifx_sequence *s, uint64_t left)
{
    const struct ifx_model *m = s->model;
    uint64_t take = left < m->prefill_chunk ? left : m->prefill_chunk;
    if (!m->prefix.stats.bytes_limit || !left)
        return (uint32_t)take;
    uint64_t grid = engine_grid(m), to_grid = grid - s->length % grid;
    uint64_t last_page = (s->length + left - 1) / ENGINE_PAGE_TOKENS * ENGINE_PAGE_TOKENS; /* it leaves a token */
    take = take < to_grid ? take : to_grid;
    if (s->length < last_page && s->length + take > last_page)
        take = last_page - s->length;
    return (uint32_t)take;
}

/* Steps of one sequence; the last one picks when there is a sampler. */
static int32_t feed(struct ifx_sequence *s, const int32_t *tokens, uint64_t n, uint64_t n_logits, float *logits, struct ifx_sampler *sampler,
                    int32_t *token)
{
    struct ifx_model *m = s->model;
    if (n_logits > n)
        return base_error(IFX_EINVAL, "%llu logit rows of %llu tokens", (unsigned long long)n_logits, (unsigned long long)n);
    if (n > m->n_ctx || s->length + n > m->n_ctx)
        return base_error(IFX_ELIMIT, "the prompt has %llu tokens%s, the context holds %u; raise it with --ctx",
                          (unsigned long long)(s->length + n), s->length ? " with what came before" : "", m->n_ctx);
    for (uint64_t i = 0; i < n;) {
        uint64_t first_wanted = n - n_logits, end = i + ifx_sequence_take(s, n - i), wanted_from = i > first_wanted ? i : first_wanted;
        if (!m->host_memory && end > wanted_from + m->step.max_logits)
            end = wanted_from + m->step.max_logits;
        struct ifx_batch_item it = {.sequence = s, .tokens = tokens + i, .n = (uint32_t)(end - i), .sampler = end == n ? sampler : NULL};
        if (end > first_wanted) {
            it.n_logits = (uint32_t)(end - wanted_from);
            it.logits = logits + (wanted_from - first_wanted) * m->desc->vocab;
        }
        if (base_cancelled())
            return base_error(IFX_ECANCELLED, "cancelled");
        int32_t st = ifx_batch_feed(&it, 1);
        if (st || it.status)
            return st ? st : it.status;
        if (it.sampler)
            *token = it.token;
        i = end;
    }
    return IFX_OK;
}

int32_t ifx_sequence_feed(struct ifx_sequence *s, const int32_t *tokens, uint64_t n, uint64_t n_logits, float *logits)
{
    return feed(s, tokens, n, logits ? n_logits : 0, logits, NULL, NULL);
}

int32_t engine_feed_pick(struct ifx_sequence *s, const int32_t *tokens, uint64_t n, struct ifx_sampler *sampler, int32_t *token)
{
    return feed(s, tokens, n, 0, NULL, sampler, token);
}
