/* SPDX-License-Identifier: Apache-2.0
 *
 * load.c - weights from an artifact to the device, experts to records in host memory; in parallel.
 */
#include "engine.h"

#include <stdatomic.h>
#include <string.h>

struct load {
    struct ifx_model *m;
    const struct ifx_model_options *o;
    uint64_t total;
    _Atomic uint64_t done;
    float *rows; /* a worker: gate, up and down of one expert as floats */
    uint64_t rows_values;
    _Atomic uint32_t repacked;
    pthread_mutex_t uploads;
};

/* Worker 0 is the calling thread: it alone reports. */
static int32_t advance(struct load *l, uint64_t bytes, uint32_t worker)
{
    uint64_t done = atomic_fetch_add(&l->done, bytes) + bytes;
    if (worker == 0 && l->o->progress)
        l->o->progress(l->o->progress_ctx, done, l->total);
    return base_cancelled() ? base_error(IFX_ECANCELLED, "cancelled while loading") : IFX_OK;
}

/* ---- dense weights ---- */

/* A head that is declared tied: an alias, unless the checkpoint stores one that differs. */
static int32_t tie(struct ifx_model *m, uint32_t index)
{
    const struct ifx_param *p = &m->desc->params[index], *to = &m->desc->params[p->tied_to];
    struct ifx_tensor own, other;
    int32_t st = artifact_tensor(m->artifact, p->name, &own);
    if (st == IFX_ENOTFOUND)
        return IFX_OK;
    if (!st)
        st = artifact_tensor(m->artifact, to->name, &other);
    if (st)
        return st;
    if (own.dtype != other.dtype || own.data_bytes != other.data_bytes || memcmp(own.data, other.data, own.data_bytes))
        return base_error(IFX_EFORMAT, "%s: \"tie_word_embeddings\" is true, but %s is stored and differs from %s",
                          artifact_path(m->artifact), p->name, to->name);
    return IFX_OK;
}

static uint64_t align64(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* To its place on the device, one parameter at a time: the copy engine is not faster for several. */
static int32_t upload_param(struct load *l, uint32_t index, uint64_t data_bytes, uint64_t scale_bytes)
{
    struct ifx_model *m = l->m;
    const struct ifx_device_ops *op = m->dev->ops;
    struct ifx_weight *w = &m->weights[index];
    uint8_t *at = m->dense_memory + m->dense_at[index];
    pthread_mutex_lock(&l->uploads);
    int32_t st = op->copy(m->dev, m->stream, at, w->data, data_bytes, IFX_COPY_TO_DEVICE);
    if (!st && scale_bytes)
        st = op->copy(m->dev, m->stream, at + align64(data_bytes), w->scales, scale_bytes, IFX_COPY_TO_DEVICE);
    if (!st)
        st = op->stream_sync(m->dev, m->stream);
    pthread_mutex_unlock(&l->uploads);
    w->data = at;
    w->scales = scale_bytes ? at + align64(data_bytes) : NULL;
    return st;
}

static int32_t read_param(void *ctx, uint64_t task, uint32_t worker)
{
    struct load *l = ctx;
    struct ifx_model *m = l->m;
    const struct ifx_param *p = &m->desc->params[task];
    uint8_t *at = m->dense_memory + m->dense_at[task], *staging = NULL;
    uint32_t dtype;
    uint64_t data_bytes, scale_bytes;
    bool in_place = false; /* then the bytes kept for it are never touched */
    if (p->tied_to >= 0)
        return tie(m, (uint32_t)task);
    int32_t st = artifact_param_plan(m->artifact, p, &dtype, &data_bytes, &scale_bytes);
    if (!st && !m->host_memory) {
        at = staging = base_alloc(align64(data_bytes) + align64(scale_bytes), 64);
        st = staging ? IFX_OK : IFX_ENOMEM;
    }
    if (!st)
        st = artifact_param_read(m->artifact, p, at, scale_bytes ? at + align64(data_bytes) : NULL, &m->weights[task], &in_place);
    if (!st && !m->host_memory)
        st = upload_param(l, (uint32_t)task, data_bytes, scale_bytes);
    base_free(staging);
    if (st)
        return st;
    return advance(l, data_bytes + scale_bytes, worker);
}

/* One block.  On the host huge pages spare the decode, which reads all of it for each token, most of its address translation. */
static int32_t take_dense_memory(struct ifx_model *m)
{
    void *memory = NULL;
    int32_t st = IFX_OK;
    if (m->host_memory)
        memory = base_map_anon(m->dense_mapped);
    else
        st = m->dev->ops->mem_alloc(m->dev, m->dense_mapped, &memory);
    m->dense_memory = memory;
    return st ? st : memory ? IFX_OK : IFX_ENOMEM;
}

/* The experts go to memory of their own as they are stored. */
static bool reads_records(const struct ifx_model *m, const struct ifx_model_options *o)
{
    const char *stored = artifact_expert_format(m->artifact);
    return !m->host_memory && artifact_is_container(m->artifact) && stored && (!o->experts || strcmp(o->experts, stored) == 0);
}

int32_t engine_load_weights(struct ifx_model *m, const struct ifx_model_options *o)
{
    const struct ifx_model_desc *d = m->desc;
    struct load l = {.m = m, .o = o};
    m->weights = base_calloc(d->n_params, sizeof *m->weights);
    m->dense_at = base_calloc(d->n_params, sizeof *m->dense_at);
    if (!m->weights || !m->dense_at)
        return IFX_ENOMEM;
    for (uint32_t i = 0; i < d->n_params; i++) {
        uint32_t dtype;
        uint64_t data_bytes, scale_bytes;
        if (d->params[i].tied_to >= 0)
            continue;
        int32_t st = artifact_param_plan(m->artifact, &d->params[i], &dtype, &data_bytes, &scale_bytes);
        if (st)
            return st;
        m->dense_bytes += data_bytes + scale_bytes;
        m->dense_at[i] = m->dense_mapped;
        m->dense_mapped += align64(data_bytes) + align64(scale_bytes);
    }
    int32_t st = engine_account(m, o);
    if (st)
        return st;
    st = take_dense_memory(m);
    if (st)
        return base_error_prefix(st, "memory for the dense weights");
    l.total = m->dense_bytes;
    /* On all threads at once; else each section would be verified by the one thread that meets it first. */
    artifact_leave_tables(m->artifact, d);
    if (reads_records(m, o))
        artifact_leave_records(m->artifact);
    st = artifact_verify(m->artifact, m->ctx->pool, NULL, NULL);
    pthread_mutex_init(&l.uploads, NULL);
    if (!st)
        st = base_pool_run(m->ctx->pool, d->n_params, read_param, &l);
    pthread_mutex_destroy(&l.uploads);
    for (uint32_t i = 0; !st && i < d->n_params; i++)
        if (d->params[i].tied_to >= 0)
            m->weights[i] = m->weights[d->params[i].tied_to];
    return st;
}

/* ---- experts ---- */

static int32_t open_bank(struct ifx_model *m, const char *wanted)
{
    const struct ifx_model_desc *d = m->desc;
    const struct registry_plugin *plugin;
    struct ifx_expert_shape shape = {.struct_size = sizeof shape, .hidden = d->moe[0].hidden, .inter = d->moe[0].inter};
    const char *format = wanted ? wanted : artifact_expert_format(m->artifact);
    if (!format)
        return base_error(IFX_EFORMAT, "%s: the config declares experts, but none are stored", artifact_path(m->artifact));
    for (uint32_t i = 1; i < d->n_moe; i++)
        if (d->moe[i].hidden != shape.hidden || d->moe[i].inter != shape.inter)
            return base_error(IFX_EUNSUPPORTED, "layer %u: experts of another shape than layer %u", d->moe[i].layer, d->moe[0].layer);
    int32_t st = registry_find(m->ctx->registry, IFX_KIND_EXPERT, format, &plugin);
    if (st)
        return st;
    m->bank_ops = plugin->ops.expert;
    m->expert_format = m->bank_ops->format;
    uint64_t record_bytes;
    st = registry_record_bytes(m->bank_ops, &shape, &record_bytes);
    if (st)
        return st;
    return m->bank_ops->open(registry_host(m->ctx->registry), plugin->options, &shape, &m->bank);
}

#define SAMPLED_RECORDS 4u

/* Every record was checked when it was packed, and the checksum says that its bytes are the same since: a few, other ones in
 * each layer, show that this build of the bank reads them alike.  `inspect --check` looks at all. */
static int32_t check_some_records(const struct ifx_model *m, uint32_t layer)
{
    const struct offload_layer *l = &m->moe_layers[layer];
    for (uint32_t i = 0; m->bank_ops->check_record && i < SAMPLED_RECORDS && i < l->experts; i++) {
        uint32_t e = (layer + (uint32_t)((uint64_t)i * l->experts / SAMPLED_RECORDS)) % l->experts;
        int32_t st = m->bank_ops->check_record(m->bank, l->records + e * l->record_bytes);
        if (st)
            return base_error_prefix(st, "%s: layer %u expert %u", artifact_path(m->artifact), m->desc->moe[layer].layer, e);
    }
    return IFX_OK;
}

static int32_t check_record_size(const struct ifx_model *m, uint32_t layer, uint64_t bytes)
{
    if (bytes == m->moe_layers[layer].record_bytes)
        return IFX_OK;
    return base_error(IFX_EFORMAT,
                      "%s: a record of %llu bytes where the plugin for %s has %llu; it was written by another version of it",
                      artifact_path(m->artifact), (unsigned long long)bytes, m->expert_format,
                      (unsigned long long)m->moe_layers[layer].record_bytes);
}

/* True when the artifact's records of this layer can be used where they are mapped. */
static int32_t records_in_place(struct ifx_model *m, uint32_t layer, bool *usable)
{
    struct offload_layer *l = &m->moe_layers[layer];
    const char *stored = artifact_expert_format(m->artifact);
    *usable = false;
    if (!artifact_is_container(m->artifact) || !stored || strcmp(stored, m->expert_format) != 0)
        return IFX_OK;
    for (uint32_t e = 0; e < l->experts; e++) {
        const void *record;
        uint64_t bytes;
        int32_t st = artifact_expert_record(m->artifact, layer, e, &record, &bytes);
        if (st)
            return st;
        st = check_record_size(m, layer, bytes);
        if (st)
            return st;
        if (e == 0)
            l->records = record;
        if (record != l->records + e * l->record_bytes)
            return IFX_OK;
    }
    *usable = true;
    return check_some_records(m, layer);
}

static int32_t pack_expert(void *ctx, uint64_t task, uint32_t worker)
{
    struct load *l = ctx;
    struct ifx_model *m = l->m;
    uint32_t layer = 0;
    while (task >= m->moe_layers[layer].experts)
        task -= m->moe_layers[layer++].experts;
    const struct offload_layer *ol = &m->moe_layers[layer];
    uint8_t *record = (uint8_t *)ol->records + task * ol->record_bytes;
    bool exact = false;
    int32_t st = artifact_expert_pack(m->artifact, &m->desc->moe[layer], layer, (uint32_t)task, m->bank_ops, m->bank,
                                      l->rows + worker * l->rows_values, record, &exact);
    if (!st && m->bank_ops->check_record)
        st = m->bank_ops->check_record(m->bank, record);
    if (st)
        return base_error_prefix(st, "layer %u expert %u", m->desc->moe[layer].layer, (uint32_t)task);
    if (!exact)
        atomic_store(&l->repacked, 1);
    return advance(l, ol->record_bytes, worker);
}

static int32_t take_expert_memory(struct ifx_model *m)
{
    uint64_t at = 0;
    if (!m->host_memory)
        return engine_take_records(m);
    m->expert_memory = base_map_anon(m->expert_bytes);
    if (!m->expert_memory)
        return base_error_prefix(IFX_ENOMEM, "memory for the experts");
    for (uint32_t i = 0; i < m->desc->n_moe; i++) {
        m->moe_layers[i].records = m->expert_memory + at;
        at += m->moe_layers[i].experts * m->moe_layers[i].record_bytes;
    }
    return IFX_OK;
}

static int32_t pack_all(struct ifx_model *m, const struct ifx_model_options *o, uint64_t n_experts)
{
    const struct ifx_moe_layer *first = &m->desc->moe[0];
    struct load l = {.m = m, .o = o, .total = m->dense_bytes + m->expert_bytes, .done = m->dense_bytes};
    l.rows_values = 3ull * first->hidden * first->inter;
    l.rows = base_alloc(l.rows_values * sizeof(float) * base_pool_threads(m->ctx->pool), 64);
    int32_t st = l.rows ? take_expert_memory(m) : IFX_ENOMEM;
    if (!st)
        st = base_pool_run(m->ctx->pool, n_experts, pack_expert, &l);
    base_free(l.rows);
    return st;
}

/* Records of another format are read through the bank that wrote them, which is needed until all are packed. */
static int32_t repack_all(struct ifx_model *m, const struct ifx_model_options *o, uint64_t n_experts)
{
    const struct ifx_moe_layer *first = &m->desc->moe[0];
    const struct registry_plugin *plugin;
    struct ifx_expert_shape shape = {.struct_size = sizeof shape, .hidden = first->hidden, .inter = first->inter};
    const char *stored = artifact_expert_format(m->artifact);
    void *bank = NULL;
    if (!artifact_is_container(m->artifact) || !stored || strcmp(stored, m->expert_format) == 0)
        return pack_all(m, o, n_experts);
    int32_t st = registry_find(m->ctx->registry, IFX_KIND_EXPERT, stored, &plugin);
    if (st)
        return base_error_prefix(st, "%s: reading its experts", artifact_path(m->artifact));
    st = plugin->ops.expert->open(registry_host(m->ctx->registry), plugin->options, &shape, &bank);
    if (st)
        return st;
    st = artifact_set_bank(m->artifact, plugin->ops.expert, bank);
    if (!st)
        st = pack_all(m, o, n_experts);
    artifact_set_bank(m->artifact, NULL, NULL);
    plugin->ops.expert->close(bank);
    return st;
}

static int32_t count_piece(void *ctx, uint64_t bytes, uint32_t worker)
{
    return advance(ctx, bytes, worker);
}

static int32_t read_all_records(struct ifx_model *m, const struct ifx_model_options *o)
{
    struct load l = {.m = m, .o = o, .total = m->dense_bytes + m->expert_bytes, .done = m->dense_bytes};
    uint32_t n = m->desc->n_moe;
    int32_t st = IFX_OK;
    for (uint32_t i = 0; i < n && !st; i++) {
        struct artifact_records at;
        st = artifact_records_at(m->artifact, i, &at);
        if (!st)
            st = check_record_size(m, i, at.record_bytes);
        if (!st && at.experts != m->moe_layers[i].experts)
            st = base_error(IFX_EFORMAT, "%s: layer %u: %llu experts are stored, the config declares %u", artifact_path(m->artifact),
                            m->desc->moe[i].layer, (unsigned long long)at.experts, m->moe_layers[i].experts);
    }
    uint8_t **to = base_calloc(n, sizeof *to);
    if (!st)
        st = to ? engine_take_records(m) : IFX_ENOMEM;
    for (uint32_t i = 0; i < n && !st; i++)
        to[i] = m->records.layers[i].memory;
    if (!st)
        st = artifact_records_read(m->artifact, m->ctx->pool, to, count_piece, &l);
    for (uint32_t i = 0; i < n && !st; i++)
        st = check_some_records(m, i);
    base_free(to);
    return st;
}

int32_t engine_load_experts(struct ifx_model *m, const struct ifx_model_options *o)
{
    const struct ifx_model_desc *d = m->desc;
    if (!d->n_moe)
        return IFX_OK;
    int32_t st = open_bank(m, o->experts);
    if (st)
        return st;
    m->moe_layers = base_calloc(d->n_moe, sizeof *m->moe_layers);
    if (!m->moe_layers)
        return IFX_ENOMEM;
    uint64_t n_experts = 0;
    bool in_place = true;
    for (uint32_t i = 0; i < d->n_moe; i++) {
        struct ifx_expert_shape shape = {.struct_size = sizeof shape, .hidden = d->moe[i].hidden, .inter = d->moe[i].inter};
        struct offload_layer *l = &m->moe_layers[i];
        *l = (struct offload_layer){.ops = m->bank_ops, .bank = m->bank, .experts = d->moe[i].experts,
                                    .top_k = d->moe[i].top_k, .hidden = d->moe[i].hidden, .inter = d->moe[i].inter};
        st = registry_record_bytes(m->bank_ops, &shape, &l->record_bytes);
        if (st)
            return st;
        uint64_t layer_bytes;
        if (!base_mul_u64(l->record_bytes, l->experts, &layer_bytes) ||
            !base_add_u64(m->expert_bytes, layer_bytes, &m->expert_bytes))
            return base_error(IFX_ELIMIT, "the experts do not fit the address space");
        n_experts += l->experts;
        bool usable = false;
        st = in_place && m->host_memory ? records_in_place(m, i, &usable) : IFX_OK;
        if (st)
            return st;
        in_place &= usable;
    }
    if (reads_records(m, o))
        return read_all_records(m, o);
    return in_place ? IFX_OK : repack_all(m, o, n_experts);
}

void engine_unload(struct ifx_model *m)
{
    if (m->expert_memory)
        base_unmap(m->expert_memory, m->expert_bytes);
    mover_records_destroy(&m->records);
    if (m->bank)
        m->bank_ops->close(m->bank);
    base_free(m->moe_layers);
    if (m->dense_memory && m->host_memory)
        base_unmap(m->dense_memory, m->dense_mapped);
    else if (m->dense_memory)
        m->dev->ops->mem_free(m->dev, m->dense_memory);
    base_free(m->dense_at);
    base_free(m->weights);
}
