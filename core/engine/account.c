/* SPDX-License-Identifier: Apache-2.0
 *
 * account.c - what a model will take of device and host, against what there is, before its weights are read.
 */
#include "engine.h"
#include "ledger.h"

#include <string.h>

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

static int32_t add_experts(const struct ifx_model *m, const struct ifx_model_options *o, uint32_t n, struct ledger *l)
{
    uint64_t record, all, rows = 0;
    bool mapped;
    if (!m->desc->n_moe)
        return IFX_OK;
    int32_t st = expert_bytes(m, o->experts, &record, &all, &mapped);
    for (uint32_t i = 0; i < m->desc->n_moe; i++) {
        uint64_t values = (uint64_t)n * m->desc->moe[i].top_k * m->desc->moe[i].hidden;
        rows = values > rows ? values : rows;
    }
    ledger_add(l, LEDGER_HOST, "experts", mapped ? 0 : all, "take a smaller --experts format");
    if (m->host_memory)
        return st;
    ledger_add(l, LEDGER_DEVICE, "experts' results", 2 * rows * sizeof(float), "lower --prefill-chunk");
    ledger_add(l, LEDGER_DEVICE, "staging", MOVER_LEAST_SLOTS * record, NULL);
    ledger_add(l, LEDGER_HOST, "experts' results", rows * sizeof(float), "lower --prefill-chunk");
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
    if (o->vram_budget)
        ledger_limit(&l->limit[LEDGER_DEVICE], o->vram_budget, "--vram-budget");
}

int32_t engine_account(const struct ifx_model *m, const struct ifx_model_options *o)
{
    enum ledger_side side = m->host_memory ? LEDGER_HOST : LEDGER_DEVICE;
    uint32_t n = m->prefill_chunk > IFX_NARROW_COLUMNS ? m->prefill_chunk : IFX_NARROW_COLUMNS;
    struct ledger l = {0};
    add_limits(m, &o->offload, &l);
    ledger_add(&l, side, "weights", m->dense_mapped, NULL);
    ledger_add(&l, side, "KV cache", m->kv_bytes, "lower --ctx, or take --kv-dtype int8");
    ledger_add(&l, side, "states", m->desc->state_bytes * m->max_sequences, NULL);
    ledger_add(&l, side, "steps", m->family->workspace_bytes(m->family_model, m->dev, n, n), "lower --prefill-chunk");
    ledger_add(&l, LEDGER_HOST, "kept prompts", o->prefix_cache_bytes, NULL);
    ledger_add(&l, LEDGER_HOST, "table rows", engine_tables_bytes(m, n, engine_table_cache(o)), "lower --ngram-cache-mib");
    int32_t st = add_experts(m, o, n, &l);
    if (!st)
        st = ledger_check(&l);
    if (!st)
        ledger_log(&l, m->host_memory ? IFX_LOG_DEBUG : IFX_LOG_INFO);
    return st ? base_error_prefix(st, "%s", artifact_path(m->artifact)) : IFX_OK;
}
