/* SPDX-License-Identifier: Apache-2.0
 *
 * buffers.c - what passes and sequences need of the device and beside it, taken once and sized for the widest pass.
 */
#include "engine.h"

enum place { ON_DEVICE, ON_PINNED, ON_HOST };
struct want {
    void **at;
    enum place place;
    uint64_t bytes;
};
#define MAX_WANTS ENGINE_BUFFERS
#define WIDTHS_TRIED 4096u /* one by one; of more columns every 64th */
#define WANT(member, where, size) {(void **)(void *)&(member), where, size}

static uint64_t moe_ws_bytes(const struct ifx_model *m, uint32_t n)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < m->desc->n_moe && !m->oracle && m->host_memory; i++) {
        uint64_t bytes = offload_cpu_ws_bytes(&m->moe_layers[i], m->ctx->pool, n);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* The most that any pass of up to n columns asks for: fewer may need more, since work is split by how many there are. */
static uint64_t widest(const struct ifx_model *m, uint32_t n, uint64_t (*bytes_of)(const struct ifx_model *m, uint32_t n))
{
    uint64_t most = 0;
    for (uint32_t w = n; w; w -= w > WIDTHS_TRIED && w % 64 == 0 ? 64 : 1) {
        uint64_t bytes = bytes_of(m, w);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static uint64_t family_bytes(const struct ifx_model *m, uint32_t n)
{
    return m->family->workspace_bytes(m->family_model, m->dev, n, n);
}

static uint64_t kv_bytes(const struct ifx_model *m, uint32_t n)
{
    if (m->attend_where != ATTEND_ON_DEVICE)
        return 0;
    return m->kv_ops->device_ws_bytes(m->kv, m->kv_side, n, m->desc->n_q_heads, m->n_ctx);
}

static uint32_t logit_rows(const struct ifx_model *m, uint32_t n)
{
    uint64_t rows = m->host_memory ? 0 : ENGINE_LOGIT_BYTES / sizeof(float) / m->desc->vocab;
    rows = rows < n ? rows : n;
    return rows > IFX_NARROW_COLUMNS ? (uint32_t)rows : IFX_NARROW_COLUMNS;
}

static uint32_t list_wants(struct ifx_model *m, struct want w[MAX_WANTS])
{
    struct step_buffers *b = &m->step;
    const struct ifx_model_desc *d = m->desc;
    const struct ifx_device_ops *op = m->dev->ops;
    uint32_t n = b->max_columns, count = 0, hidden = 0;
    uint64_t experts = 0, top_k = 0;
    for (uint32_t i = 0; i < d->n_moe; i++) {
        experts = d->moe[i].experts > experts ? d->moe[i].experts : experts;
        top_k = d->moe[i].top_k > top_k ? d->moe[i].top_k : top_k;
        hidden = d->moe[i].hidden > hidden ? d->moe[i].hidden : hidden;
    }
    bool own = !m->host_memory, host_attends = d->n_kv_layers && !m->oracle && m->attend_where != ATTEND_ON_DEVICE;
    uint64_t parts = host_attends ? attention_parts(m) : 0, inputs = (2ull * n + ENGINE_PASS_ITEMS) * sizeof *b->inputs;
    const struct want all[] = {
        WANT(b->ws, ON_DEVICE, b->ws_bytes),
        WANT(b->constants, ON_DEVICE, d->constant_bytes),
        WANT(b->inputs, ON_DEVICE, inputs),
        WANT(b->host_inputs, ON_PINNED, own ? inputs : 0),
        WANT(b->segments, ON_HOST, ENGINE_PASS_ITEMS * sizeof *b->segments),
        WANT(b->logit_columns, ON_HOST, n * sizeof *b->logit_columns),
        WANT(b->logits, ON_DEVICE, (uint64_t)b->max_logits * d->vocab * sizeof *b->logits),
        WANT(b->host_logits, ON_PINNED, own ? (uint64_t)ENGINE_PASS_ITEMS * d->vocab * sizeof *b->logits : 0),
        WANT(b->sample_ws, ON_DEVICE, own ? op->sample_ws_bytes(m->dev, ENGINE_PASS_ITEMS, d->vocab) : 0),
        WANT(b->picks, ON_DEVICE, own ? ENGINE_PASS_ITEMS * sizeof *b->picks : 0),
        WANT(b->host_picks, ON_PINNED, own ? ENGINE_PASS_ITEMS * sizeof *b->picks : 0),
        WANT(b->router_ws, ON_DEVICE, d->n_moe ? op->linear_ws_bytes(m->dev, n, hidden) : 0),
        WANT(b->moe_ws, ON_DEVICE, moe_ws_bytes(m, n)),
        WANT(b->router_logits, ON_DEVICE, n * experts * sizeof *b->router_logits),
        WANT(b->router_weights, ON_DEVICE, n * top_k * sizeof *b->router_weights),
        WANT(b->router_ids, ON_DEVICE, n * top_k * sizeof *b->router_ids),
        WANT(b->x_bf16, ON_DEVICE, (uint64_t)n * hidden * sizeof *b->x_bf16),
        WANT(b->part_acc, ON_HOST, parts * b->part_rows * d->head_dim * sizeof *b->part_acc),
        WANT(b->part_m, ON_HOST, parts * b->part_rows * sizeof *b->part_m),
        WANT(b->part_l, ON_HOST, parts * b->part_rows * sizeof *b->part_l),
        WANT(b->kv_ws, ON_DEVICE, widest(m, n, kv_bytes)),
        WANT(b->jobs, ON_HOST, m->attend_where == ATTEND_BY_HOST_CALL ? ENGINE_PASS_ITEMS * d->n_kv_layers * sizeof *b->jobs : 0),
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        w[count++] = all[i];
    return count;
}

static int32_t take(struct ifx_model *m, const struct want *w)
{
    struct step_buffers *b = &m->step;
    int32_t st = IFX_OK;
    if (!w->bytes)
        return IFX_OK;
    if (w->place == ON_DEVICE)
        st = m->dev->ops->mem_alloc(m->dev, w->bytes, w->at);
    else if (w->place == ON_PINNED)
        st = m->dev->ops->host_alloc(m->dev, w->bytes, w->at);
    else
        *w->at = base_alloc(w->bytes, 64);
    if (!st && !*w->at)
        st = IFX_ENOMEM;
    if (!st) {
        b->taken[b->n_taken].at = w->at;
        b->taken[b->n_taken++].place = w->place;
    }
    return st;
}

static void give(struct ifx_model *m, void *memory, uint32_t place)
{
    if (place == ON_DEVICE)
        m->dev->ops->mem_free(m->dev, memory);
    else if (place == ON_PINNED)
        m->dev->ops->host_free(m->dev, memory);
    else
        base_free(memory);
}

static int32_t take_slots(struct ifx_model *m)
{
    uint64_t blocks = (m->n_ctx + ENGINE_PAGE_TOKENS - 1) / ENGINE_PAGE_TOKENS, state_bytes = m->desc->state_bytes;
    bool wanted = m->attend_where == ATTEND_ON_DEVICE || (!m->host_memory && m->desc->index_dim);
    uint64_t pages = wanted ? m->desc->n_kv_layers * blocks * sizeof(void *) : 0;
    m->slots = base_calloc(m->max_sequences, sizeof *m->slots);
    int32_t st = m->slots ? IFX_OK : IFX_ENOMEM;
    for (uint32_t i = 0; !st && i < m->max_sequences; i++) {
        struct engine_slot *s = &m->slots[i];
        if (state_bytes)
            st = m->dev->ops->mem_alloc(m->dev, state_bytes, &s->state);
        if (!st && pages)
            st = m->dev->ops->mem_alloc(m->dev, pages, (void **)(void *)&s->pages);
        if (!st && !m->host_memory)
            st = m->dev->ops->mem_alloc(m->dev, m->desc->vocab * sizeof *s->history, (void **)(void *)&s->history);
    }
    return st ? base_error_prefix(st, "state of %u sequences", m->max_sequences) : IFX_OK;
}

int32_t step_buffers_create(struct ifx_model *m)
{
    struct step_buffers *b = &m->step;
    const struct ifx_model_desc *d = m->desc;
    struct want w[MAX_WANTS];
    uint64_t group = d->n_kv_heads ? d->n_q_heads / d->n_kv_heads : 0;
    uint32_t n = m->prefill_chunk > IFX_NARROW_COLUMNS ? m->prefill_chunk : IFX_NARROW_COLUMNS;
    b->max_columns = n;
    b->max_logits = logit_rows(m, n);
    b->ws_bytes = widest(m, n, family_bytes);
    b->part_rows = group > ENGINE_ATTEND_ROWS ? group : ENGINE_ATTEND_ROWS;
    uint32_t count = list_wants(m, w);
    int32_t st = IFX_OK;
    for (uint32_t i = 0; i < count && !st; i++)
        st = take(m, &w[i]);
    if (st)
        return base_error_prefix(st, "buffers for %u columns (lower --prefill-chunk)", n);
    if (d->constant_bytes)
        st = m->dev->ops->copy(m->dev, m->stream, b->constants, d->constants, d->constant_bytes, IFX_COPY_TO_DEVICE);
    if (!st)
        st = m->dev->ops->stream_sync(m->dev, m->stream);
    return st ? st : take_slots(m);
}

void step_buffers_destroy(struct ifx_model *m)
{
    struct step_buffers *b = &m->step;
    for (uint32_t i = 0; i < b->n_taken; i++)
        give(m, *b->taken[i].at, b->taken[i].place);
    for (uint32_t i = 0; m->slots && i < m->max_sequences; i++) {
        if (m->slots[i].state)
            m->dev->ops->mem_free(m->dev, m->slots[i].state);
        if (m->slots[i].history)
            m->dev->ops->mem_free(m->dev, m->slots[i].history);
        if (m->slots[i].pages)
            m->dev->ops->mem_free(m->dev, m->slots[i].pages);
        base_free(m->slots[i].state_copy);
    }
    base_free(m->slots);
    m->slots = NULL;
    m->step = (struct step_buffers){0};
}
