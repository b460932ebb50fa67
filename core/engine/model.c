/* SPDX-License-Identifier: Apache-2.0
 *
 * model.c - opening a model: artifact, family, device, formats, weights, buffers.
 */
#include "engine.h"

#include <string.h>

#define DEVICE_ROOMY (UINT64_C(6) << 30)

static int32_t open_family(struct ifx_model *m)
{
    const struct registry_plugin *plugin;
    int32_t st = registry_find(m->ctx->registry, IFX_KIND_MODEL, artifact_architecture(m->artifact), &plugin);
    if (st)
        return base_error_prefix(st, "%s", artifact_path(m->artifact));
    m->family = plugin->ops.model;
    m->family_name = plugin->name;
    st = m->family->open(registry_host(m->ctx->registry), plugin->options, artifact_config(m->artifact), &m->family_model);
    if (st)
        return base_error_prefix(st, "%s", artifact_path(m->artifact));
    m->desc = m->family->describe(m->family_model);
    return artifact_check(m->artifact, m->desc);
}

/* Where experts are streamed each step costs a pass of them over the link, so steps are long; a small device has no room for that. */
static void grow_chunk(struct ifx_model *m, const struct ifx_model_options *o)
{
    uint64_t room = o->offload.vram_budget && o->offload.vram_budget < m->device_free ? o->offload.vram_budget : m->device_free;
    if (o->prefill_chunk || m->host_memory || !m->desc->n_moe || room < DEVICE_ROOMY)
        return;
    m->prefill_chunk = m->n_ctx < ENGINE_STREAM_CHUNK ? m->n_ctx : ENGINE_STREAM_CHUNK;
}

static int32_t open_device(struct ifx_model *m, const struct ifx_model_options *o)
{
    const char *name = o->device;
    struct ifx_device_props props = {.struct_size = sizeof props};
    int32_t st = ifx_device_open(m->ctx, name, &m->dev);
    if (!st)
        st = m->dev->ops->props(m->dev, &props);
    if (!st)
        st = m->dev->ops->stream_create(m->dev, &m->stream);
    if (st)
        return st;
    m->device_flags = props.flags;
    m->device_free = props.free_bytes;
    m->host_memory = props.flags & IFX_DEVICE_HOST_MEM;
    m->oracle = props.flags & IFX_DEVICE_ORACLE;
    grow_chunk(m, o);
    m->device_name = base_strdup(props.name);
    return m->device_name ? IFX_OK : IFX_ENOMEM;
}

/* Who stores and attends: the device where the format has code for it, else the host from the device's stream. */
static int32_t open_kv_side(struct ifx_model *m)
{
    const struct ifx_device_ops *op = m->dev->ops;
    const struct ifx_compute *compute = op->compute ? op->compute(m->dev) : NULL;
    m->attend_where = ATTEND_ON_HOST;
    if (m->host_memory)
        return IFX_OK;
    int32_t st = IFX_EUNSUPPORTED;
    if (compute && m->kv_ops->device_open && m->kv_ops->device_append && m->kv_ops->device_attend && m->kv_ops->device_ws_bytes)
        st = m->kv_ops->device_open(m->kv, compute, &m->kv_side);
    if (!st) {
        m->attend_where = ATTEND_ON_DEVICE;
        return IFX_OK;
    }
    if (st != IFX_EUNSUPPORTED)
        return st;
    if (!(m->device_flags & IFX_DEVICE_HOST_CALLS) || !op->host_call)
        return base_error(IFX_EUNSUPPORTED, "KV format %s has no code for device %s; another --kv-dtype may", m->kv_ops->format, m->device_name);
    m->attend_where = ATTEND_BY_HOST_CALL;
    return IFX_OK;
}

/* Pages beyond those of the sequences, for what snapshots keep; not where device memory is taken from the start. */
static uint64_t extra_blocks(const struct ifx_model *m, uint64_t page_bytes, uint64_t prefix_bytes)
{
    return m->host_memory ? prefix_bytes / page_bytes / m->desc->n_kv_layers : 0;
}

static int32_t open_kv(struct ifx_model *m, const char *name, uint64_t prefix_bytes)
{
    const struct registry_plugin *plugin;
    struct ifx_kv_shape shape = {.struct_size = sizeof shape, .head_dim = m->desc->head_dim,
                                 .n_kv_heads = m->desc->n_kv_heads, .page_tokens = ENGINE_PAGE_TOKENS};
    const char *identity = name ? name : m->oracle ? "f32" : "bf16";
    int32_t st = registry_find(m->ctx->registry, IFX_KIND_KV, identity, &plugin);
    if (st)
        return st;
    m->kv_ops = plugin->ops.kv;
    uint64_t page_bytes;
    st = registry_page_bytes(m->kv_ops, &shape, &page_bytes);
    if (st)
        return st;
    m->plane_offset = page_bytes;
    if (m->desc->index_dim)
        page_bytes += ifx_index_plane_bytes(ENGINE_PAGE_TOKENS, m->desc->index_ratio, m->desc->index_dim, m->oracle ? 4 : 2);
    st = m->kv_ops->open(registry_host(m->ctx->registry), plugin->options, &shape, &m->kv);
    uint64_t blocks = ((uint64_t)m->n_ctx + ENGINE_PAGE_TOKENS - 1) / ENGINE_PAGE_TOKENS * m->max_sequences;
    m->kv_bytes = blocks * page_bytes * m->desc->n_kv_layers;
    blocks += extra_blocks(m, page_bytes, prefix_bytes);
    if (!st && blocks > UINT32_MAX)
        st = base_error(IFX_ELIMIT, "%u sequences of %u tokens are too many", m->max_sequences, m->n_ctx);
    if (!st)
        st = open_kv_side(m);
    return st ? st : kv_pool_create(m, page_bytes, (uint32_t)blocks);
}

static int32_t open_text(struct ifx_model *m)
{
    uint64_t bytes, config_bytes = 0;
    const char *json = artifact_asset(m->artifact, "tokenizer.json", &bytes);
    const char *config = artifact_asset(m->artifact, "tokenizer_config.json", &config_bytes);
    if (!json)
        return IFX_OK;
    int32_t st = text_tokenizer_create(json, bytes, config, config_bytes, &m->tokenizer);
    return st ? base_error_prefix(st, "%s: tokenizer.json", artifact_path(m->artifact)) : IFX_OK;
}

static int32_t set_limits(struct ifx_model *m, const struct ifx_model_options *o)
{
    uint32_t most = m->desc->max_positions;
    m->n_ctx = o->ctx ? o->ctx : most < ENGINE_DEFAULT_CTX ? most : ENGINE_DEFAULT_CTX;
    if (m->n_ctx > most)
        return base_error(IFX_ELIMIT, "--ctx %u: this model goes up to %u positions", m->n_ctx, most);
    m->prefill_chunk = o->prefill_chunk ? o->prefill_chunk : ENGINE_DEFAULT_CHUNK;
    if (m->prefill_chunk > m->n_ctx)
        m->prefill_chunk = m->n_ctx;
    m->no_graph = o->no_graph;
    m->deterministic = o->offload.deterministic;
    m->max_sequences = o->max_sequences ? o->max_sequences : 1;
    return IFX_OK;
}

static int32_t open_all(struct ifx_model *m, const struct ifx_model_options *o)
{
    char *demo = NULL;
    int32_t st = o->path ? IFX_OK : ifx_demo_path(&demo);
    if (!st)
        st = artifact_open(o->path ? o->path : demo, &m->artifact);
    base_free(demo);
    if (!st)
        st = open_family(m);
    if (!st)
        st = set_limits(m, o);
    if (!st)
        st = open_device(m, o);
    if (!st)
        st = open_text(m);
    if (!st)
        st = engine_read_stop_ids(m);
    if (!st && m->desc->n_kv_layers)
        st = open_kv(m, o->kv_dtype, o->prefix_cache_bytes);
    if (!st)
        st = prefix_create(m, o->prefix_cache_bytes, o->offload.deterministic);
    if (!st)
        st = engine_load_weights(m, o);
    if (!st)
        st = engine_load_experts(m, o);
    if (!st)
        st = step_buffers_create(m);
    if (!st)
        st = engine_tables_create(m, engine_table_cache(o));
    return st ? st : engine_open_offload(m, o);
}

static int32_t try_open(struct ifx_context *c, const struct ifx_model_options *o, struct ifx_model **out, bool *own_memory)
{
    struct ifx_model *m = base_calloc(1, sizeof *m);
    if (!m)
        return IFX_ENOMEM;
    m->ctx = c;
    pthread_mutex_init(&m->lock, NULL);
    int32_t st = open_all(m, o);
    *own_memory = m->dev && !m->host_memory;
    if (st)
        ifx_model_close(m);
    else
        *out = m;
    return st;
}

int32_t ifx_model_open(struct ifx_context *c, const struct ifx_model_options *o, struct ifx_model **out)
{
    bool own_memory = false;
    int32_t st = try_open(c, o, out, &own_memory);
    if (st != IFX_EUNSUPPORTED || !own_memory || !engine_device_is_auto(o->device))
        return st;
    /* Nobody asked for the GPU, and a format or the family has no code for it. */
    engine_cpu_instead();
    struct ifx_model_options cpu = *o;
    cpu.device = "cpu";
    return try_open(c, &cpu, out, &own_memory);
}

void ifx_model_close(struct ifx_model *m)
{
    if (!m)
        return;
    prefix_destroy(m);
    if (m->dev) {
        engine_graphs_destroy(m);
        engine_close_offload(m);
        engine_tables_destroy(m);
        step_buffers_destroy(m);
        kv_pool_destroy(m);
        if (m->kv_side && m->kv_ops->device_close)
            m->kv_ops->device_close(m->kv, m->kv_side);
        engine_unload(m);
        if (m->stream)
            m->dev->ops->stream_destroy(m->dev, m->stream);
        m->dev->ops->close(m->dev);
    }
    if (m->kv)
        m->kv_ops->close(m->kv);
    text_chat_destroy(m->chat);
    text_tokenizer_destroy(m->tokenizer);
    base_free(m->stop_ids);
    base_free(m->device_name);
    if (m->family_model)
        m->family->close(m->family_model);
    artifact_close(m->artifact);
    pthread_mutex_destroy(&m->lock);
    base_free(m);
}

void ifx_model_info(const struct ifx_model *m, struct ifx_model_info *out)
{
    *out = (struct ifx_model_info){
        .path = artifact_path(m->artifact),
        .architecture = artifact_architecture(m->artifact),
        .family = m->family_name,
        .device = m->device_name,
        .kv_dtype = m->kv_ops ? m->kv_ops->format : NULL,
        .expert_format = m->expert_format,
        .desc = m->desc,
        .ctx = m->n_ctx,
        .prefill_chunk = m->prefill_chunk,
        .dense_bytes = m->dense_bytes,
        .expert_bytes = m->expert_bytes,
        .kv_bytes = m->kv_bytes,
        .state_bytes = m->desc->state_bytes,
    };
}

struct text_tokenizer *ifx_model_tokenizer(struct ifx_model *m)
{
    return m->tokenizer;
}

const int32_t *ifx_model_stop_ids(const struct ifx_model *m, uint32_t *count)
{
    *count = m->n_stop_ids;
    return m->stop_ids;
}

int32_t ifx_model_chat(struct ifx_model *m, struct text_chat **out)
{
    uint64_t bytes = 0;
    int32_t st = IFX_OK;
    if (!m->tokenizer)
        return base_error(IFX_ENOTFOUND, "%s has no tokenizer.json: text cannot be used with it", artifact_path(m->artifact));
    pthread_mutex_lock(&m->lock);
    if (!m->chat)
        st = text_chat_create(m->tokenizer, artifact_asset(m->artifact, "chat_template.jinja", &bytes), &m->chat);
    *out = m->chat;
    pthread_mutex_unlock(&m->lock);
    return st;
}
