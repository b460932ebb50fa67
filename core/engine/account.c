/* SPDX-License-Identifier: Apache-2.0
 *
 * account.c - what a model will take of device and host, against what there is, before its weights are read.
 */
#include "engine.h"
#include "ledger.h"

#include <string.h>

#define PIN_QUOTA "the device's quota of pinned memory"

/* The experts' records, and how many of the bytes this process has to hold itself. */
static int32_t expert_bytes(const struct ifx_model *m, const char *wanted, uint64_t *record, uint64_t *all, bool *mapped)
{
    const struct ifx_moe_layer *first = &m->desc->moe[0];
    const struct registry_plugin *plugin;
    const char *stored = artifact_expert_format(m->artifact), *format = wanted ? wanted : stored;
    struct ifx_expert_shape shape = {.struct_size = sizeof shape, .hidden = first->hidden, .inter = first->inter};
    *record = *all = 0;
    *mapped = m->host_memory && artifact_is_container(m->artifact) && stored && format && strcmp(stored, format) == 0;
    if (!format)
        return IFX_OK; /* told when they are opened */
    int32_t st = registry_find(m->ctx->registry, IFX_KIND_EXPERT, format, &plugin);
    if (!st)
        st = registry_record_bytes(plugin->ops.expert, &shape, record);
    for (uint32_t i = 0; i < m->desc->n_moe && !st; i++) {
        uint64_t layer;
        if (!base_mul_u64(*record, m->desc->moe[i].experts, &layer) || !base_add_u64(*all, layer, all))
            return base_error(IFX_ELIMIT, "the experts do not fit the address space");
    }
    return st;
}

/* Whole layers, as far as the limit lets them beside what steps and calls need in any case. */
static void add_pinned_experts(struct ifx_model *m, const struct ifx_offload_options *o, uint64_t record, struct ledger *l)
{
    const struct ledger_limit *quota = &l->limit[LEDGER_PINNED];
    uint64_t most = UINT64_MAX, pinned = 0, fixed = ledger_sum(l, LEDGER_PINNED);
    m->pin_limit = NULL;
    if (quota->source[0]) {
        most = quota->bytes > fixed ? quota->bytes - fixed : 0;
        m->pin_limit = PIN_QUOTA;
    }
    if (o->limit_pinned && o->most_pinned < most) {
        most = o->most_pinned;
        m->pin_limit = NULL;
    }
    for (uint32_t i = 0; i < m->desc->n_moe && m->desc->moe[i].experts * record <= most - pinned; i++)
        pinned += m->desc->moe[i].experts * record;
    m->most_pinned = most;
    ledger_add(l, LEDGER_PINNED, "experts", pinned, "lower --pin-experts");
}

static int32_t add_experts(struct ifx_model *m, const struct ifx_model_options *o, uint32_t n, struct ledger *l)
{
    uint64_t record, all, rows = 0, index = 0, inputs = 0;
    bool mapped;
    if (!m->desc->n_moe)
        return IFX_OK;
    int32_t st = expert_bytes(m, o->experts, &record, &all, &mapped);
    for (uint32_t i = 0; i < m->desc->n_moe; i++) {
        uint64_t values = (uint64_t)n * m->desc->moe[i].top_k * m->desc->moe[i].hidden;
        uint64_t routed = (uint64_t)n * m->desc->moe[i].top_k + 6ull * m->desc->moe[i].experts, columns = (uint64_t)n * m->desc->moe[i].hidden;
        rows = values > rows ? values : rows;
        index = routed > index ? routed : index;
        inputs = columns > inputs ? columns : inputs;
    }
    ledger_add(l, LEDGER_HOST, "experts", mapped ? 0 : all, "take a smaller --experts format");
    if (m->host_memory)
        return st;
    ledger_add(l, LEDGER_DEVICE, "experts' results", 2 * rows * sizeof(float), "lower --prefill-chunk");
    ledger_add(l, LEDGER_DEVICE, "staging", MOVER_LEAST_SLOTS * record, NULL);
    ledger_add(l, LEDGER_HOST, "experts' results", rows * sizeof(float), "lower --prefill-chunk");
    ledger_add(l, LEDGER_PINNED, "experts' results", (rows + 2 * index) * sizeof(float) + inputs * sizeof(uint16_t), "lower --prefill-chunk");
    if (!st)
        add_pinned_experts(m, &o->offload, record, l);
    return st;
}

static void add_limits(const struct ifx_model *m, const struct ifx_offload_options *o, struct ledger *l)
{
    struct ifx_device_props props = {.struct_size = sizeof props};
    ledger_host_limit(&l->limit[LEDGER_HOST]);
    if (o->ram_budget)
        ledger_limit(&l->limit[LEDGER_HOST], o->ram_budget, "--ram-budget");
    if (m->host_memory)
        return;
    if (!m->dev->ops->props(m->dev, &props) && props.memory_bytes)
        ledger_limit(&l->limit[LEDGER_DEVICE], m->device_free, "what was free on the device");
    if (props.pinned_bytes)
        ledger_limit(&l->limit[LEDGER_PINNED], props.pinned_bytes, PIN_QUOTA);
    if (o->vram_budget)
        ledger_limit(&l->limit[LEDGER_DEVICE], o->vram_budget, "--vram-budget");
}

static void add_pinned_steps(const struct ifx_model *m, uint32_t n, struct ledger *l)
{
    uint64_t values = (2ull + m->desc->vocab) * ENGINE_PASS_ITEMS + 2ull * n;
    if (m->host_memory)
        return;
    for (uint32_t i = 0; i < m->desc->n_tables; i++)
        values += (uint64_t)n * m->desc->tables[i].per_token * m->desc->tables[i].cols;
    ledger_add(l, LEDGER_PINNED, "steps", values * sizeof(float), "lower --prefill-chunk");
}

int32_t engine_account(struct ifx_model *m, const struct ifx_model_options *o)
{
    enum ledger_side side = m->host_memory ? LEDGER_HOST : LEDGER_DEVICE;
    uint32_t n = m->prefill_chunk > IFX_NARROW_COLUMNS ? m->prefill_chunk : IFX_NARROW_COLUMNS;
    struct ledger l = {0};
    add_limits(m, &o->offload, &l);
    ledger_add(&l, side, "weights", m->dense_mapped, NULL);
    ledger_add(&l, side, "KV cache", m->kv_bytes, "lower --ctx, or take --kv-dtype int8");
    uint64_t history = m->host_memory ? 0 : m->desc->vocab * sizeof *m->slots->history;
    ledger_add(&l, side, "states", (m->desc->state_bytes + history) * m->max_sequences, NULL);
    ledger_add(&l, side, "steps", m->family->workspace_bytes(m->family_model, m->dev, n, n), "lower --prefill-chunk");
    ledger_add(&l, LEDGER_HOST, "kept prompts", o->prefix_cache_bytes, NULL);
    ledger_add(&l, LEDGER_HOST, "table rows", engine_tables_bytes(m, n, engine_table_cache(o)), "lower --ngram-cache-mib");
    add_pinned_steps(m, n, &l);
    int32_t st = add_experts(m, o, n, &l);
    if (!st)
        st = ledger_check(&l);
    if (!st)
        ledger_log(&l, m->host_memory ? IFX_LOG_DEBUG : IFX_LOG_INFO);
    return st ? base_error_prefix(st, "%s", artifact_path(m->artifact)) : IFX_OK;
}
