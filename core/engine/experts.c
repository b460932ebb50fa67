/* SPDX-License-Identifier: Apache-2.0
 *
 * experts.c - experts of a model on a device with memory of its own: what there is room for, and how they are shared.
 */
#include "engine.h"

#include <string.h>

/* Left to the driver and its allocator, of a device whose free memory is known. */
#define DEVICE_MARGIN (256ull << 20)

int32_t engine_take_records(struct ifx_model *m)
{
    uint32_t n = m->desc->n_moe;
    uint64_t *bytes = base_calloc(n, sizeof *bytes);
    int32_t st = bytes ? IFX_OK : IFX_ENOMEM;
    for (uint32_t i = 0; i < n && !st; i++)
        bytes[i] = m->moe_layers[i].experts * m->moe_layers[i].record_bytes;
    if (!st)
        st = mover_records_create(m->dev, n, bytes, m->most_pinned, m->pin_limit, &m->records);
    for (uint32_t i = 0; i < n && !st; i++)
        m->moe_layers[i].records = m->records.layers[i].memory;
    base_free(bytes);
    return st;
}

/* What frames and staging may take of the device. */
static int32_t room_left(const struct ifx_model *m, uint64_t budget, const struct offload_memory *need, uint64_t *out)
{
    struct ifx_device_props props = {.struct_size = sizeof props};
    int32_t st = m->dev->ops->props(m->dev, &props);
    if (st)
        return st;
    uint64_t most = (uint64_t)need->n_experts + need->useful_slots, left = most * need->frame_bytes + need->device_fixed;
    if (props.memory_bytes && props.free_bytes < left + DEVICE_MARGIN) {
        uint64_t margin = props.memory_bytes / 32 < DEVICE_MARGIN ? props.memory_bytes / 32 : DEVICE_MARGIN;
        left = props.free_bytes > margin ? props.free_bytes - margin : 0;
    }
    uint64_t used = m->device_free > props.free_bytes ? m->device_free - props.free_bytes : 0;
    uint64_t under = budget > used ? budget - used : 0;
    if (budget && under < left)
        left = under;
    uint64_t least = need->device_fixed + need->least_slots * need->frame_bytes;
    if (left < least)
        return base_error(IFX_ELIMIT,
                          "%llu MB of device memory are left for experts (%llu MB are taken), and at least %llu MB are needed: %llu MB for steps of "
                          "%u columns and %u staging slots of %llu KB; lower --ctx or --prefill-chunk%s",
                          (unsigned long long)(left >> 20), (unsigned long long)(used >> 20),
                          (unsigned long long)((least + 0xfffff) >> 20), (unsigned long long)((need->device_fixed + 0xfffff) >> 20),
                          m->step.max_columns, need->least_slots, (unsigned long long)(need->frame_bytes >> 10),
                          budget ? ", or raise --vram-budget" : "");
    *out = left - need->device_fixed;
    return IFX_OK;
}

/* Beside the model; the demo lies where nothing is to be written. */
static char *state_path(const struct ifx_model *m, const struct ifx_offload_options *o, bool demo)
{
    const char *path = artifact_path(m->artifact);
    size_t n = strlen(path);
    if (o->no_expert_state || (demo && !o->expert_state))
        return NULL;
    if (o->expert_state)
        return base_strdup(o->expert_state);
    while (n > 1 && path[n - 1] == '/')
        n--;
    return base_format("%.*s.expert-state", (int)n, path);
}

static void say(const struct ifx_model *m, uint32_t mode, uint32_t frames, uint32_t slots, const struct offload_memory *need)
{
    struct offload_cost k;
    offload_cost_get(m->offload, &k);
    base_log(IFX_LOG_INFO, "experts: %u of %u fit the device (%.1f GB), staging %u; assist %s, up to %u columns", frames,
             need->n_experts, (double)frames * (double)need->frame_bytes / 1e9, slots, offload_mode_name(mode),
             m->policies[0]->max_columns);
    if (k.link_record > 0 && k.cpu_record > 0)
        base_log(IFX_LOG_INFO, "experts: link %.1f GB/s, CPU %.1f GB/s at one column, %.2f TFLOP/s at many",
                 (double)need->frame_bytes / k.link_record / 1e9, (double)need->frame_bytes / k.cpu_record / 1e9,
                 6e-12 * (double)m->moe_layers[0].hidden * (double)m->moe_layers[0].inter / k.cpu_column);
}

/* One line where the policy was made for another machine than this one. */
static int32_t judge_policy(const struct ifx_model *m, uint32_t mode, uint32_t frames, uint32_t slots, const struct offload_memory *need)
{
    struct offload_cost k;
    const struct offload_layer *l = &m->moe_layers[0];
    offload_cost_get(m->offload, &k);
    if (mode != OFFLOAD_ASSIST_RAMP || !slots || frames >= need->n_experts || k.link_record <= 0 || k.cpu_record <= 0)
        return IFX_OK;
    const struct policy_fit fit = {.policy = m->policies[0], .cost = &k, .experts = l->experts, .top_k = l->top_k,
                                   .resident = frames / m->desc->n_moe};
    struct policy_misfit misfit;
    int32_t st = offload_policy_fit(&fit, &misfit);
    if (st)
        return st;
    base_log(IFX_LOG_DEBUG, "experts: by the rates measured the policy takes %.2f times as long as the best split at %u columns, and %.2f times from "
             "its limit to the next column", misfit.ratio, misfit.columns, misfit.step);
    if (offload_policy_far(&misfit))
        base_log(IFX_LOG_INFO, "experts: the assist policy (up to %u columns) is far off on this machine: up to %.1f times the time of the best split "
                 "(at %u columns); infernix calibrate measures one that suits it, --assist balance finds the split while it runs",
                 m->policies[0]->max_columns, misfit.ratio, misfit.columns);
    return IFX_OK;
}

static int32_t make_policies(struct ifx_model *m, const struct ifx_offload_options *o, uint32_t *mode)
{
    const struct ifx_assist_policy *bank = registry_policy(m->bank_ops);
    uint32_t columns = o->assist_max_columns;
    const char *ramp = o->assist_ramp;
    int32_t st = offload_mode_parse(o->assist, mode);
    for (uint32_t i = 0; i < o->n_sections; i++) {
        if (strcmp(o->sections[i].format, m->expert_format) != 0)
            continue;
        columns = columns ? columns : o->sections[i].max_columns;
        ramp = ramp ? ramp : o->sections[i].ramp;
    }
    if (!st)
        st = offload_policy_make(bank, columns, ramp, &m->policy);
    m->policies = st ? NULL : base_calloc(m->desc->n_moe, sizeof *m->policies);
    for (uint32_t i = 0; m->policies && i < m->desc->n_moe; i++)
        m->policies[i] = &m->policy.policy;
    return st ? st : m->policies ? IFX_OK : IFX_ENOMEM;
}

int32_t engine_open_offload(struct ifx_model *m, const struct ifx_model_options *options)
{
    const struct ifx_offload_options *o = &options->offload;
    struct offload_memory need;
    uint32_t mode, frames = 0, slots = 0;
    uint64_t bytes = 0;
    if (!m->desc->n_moe || m->host_memory)
        return IFX_OK;
    int32_t st = make_policies(m, o, &mode);
    if (!st && o->cpu_threads && o->cpu_threads != base_pool_threads(m->ctx->pool))
        st = base_pool_create(o->cpu_threads, false, &m->expert_pool);
    if (st)
        return st;
    struct offload_config config = {.dev = m->dev, .pool = m->expert_pool ? m->expert_pool : m->ctx->pool,
                                    .layers = m->moe_layers, .n_layers = m->desc->n_moe,
                                    .max_columns = m->step.max_columns, .mode = mode, .deterministic = o->deterministic,
                                    .promote_bytes = o->promote_bytes, .policies = m->policies};
    st = offload_create(&config, &m->offload);
    if (st)
        return st;
    offload_memory(m->offload, &need);
    st = room_left(m, o->vram_budget, &need, &bytes);
    if (st)
        return st;
    (void)offload_divide(&need, bytes, &frames, &slots);
    if (o->limit_frames && frames > o->most_frames)
        frames = o->most_frames;
    st = offload_allocate(m->offload, frames, slots);
    if (!st)
        st = offload_measure(m->offload);
    m->expert_state = st ? NULL : state_path(m, o, !options->path);
    if (!st && m->expert_state)
        st = offload_state_load(m->offload, m->expert_state);
    if (!st)
        st = offload_fill(m->offload);
    if (!st)
        say(m, mode, frames, slots, &need);
    return st ? st : judge_policy(m, mode, frames, slots, &need);
}

void engine_close_offload(struct ifx_model *m)
{
    /* A ranking that cannot be kept is no reason to fail: the folder may not be ours. */
    if (m->offload && m->expert_state && offload_state_save(m->offload, m->expert_state))
        base_log(IFX_LOG_INFO, "the experts' ranking is not kept: %s", base_error_text());
    offload_destroy(m->offload);
    m->offload = NULL;
    base_pool_destroy(m->expert_pool);
    base_free(m->expert_state);
    base_free(m->policies);
}
