/* SPDX-License-Identifier: Apache-2.0
 *
 * make.c - writes a .infernix file of a model that nobody trained: shapes from a config, values from a callback, row by row.
 */
#include "config.h"
#include "convert.h"
#include "registry.h"
#include <string.h>

#define ROWS_BYTES (4u << 20) /* of a matrix, at a time */

int32_t artifact_open_config(const char *text, struct artifact **out)
{
    *out = NULL;
    struct artifact *a = base_calloc(1, sizeof *a);
    if (a == NULL)
        return IFX_ENOMEM;
    for (uint32_t i = 0; i < ART_ASSETS; i++)
        a->assets[i] = (struct art_asset){.name = "", .section = -1};
    a->path = base_strdup("(made)");
    int32_t status = a->path ? art_config_open(a, text, strlen(text), "config.json") : IFX_ENOMEM;
    if (status != IFX_OK) {
        artifact_close(a);
        return status;
    }
    *out = a;
    return IFX_OK;
}

struct making {
    struct converting v;
    struct artifact_convert c;
    const struct artifact_make *m;
};

static int32_t write_config(struct making *k)
{
    struct converting *v = &k->v;
    uint64_t bytes = strlen(k->m->config);
    convert_section_begin(v);
    if (json_object_set_new(v->assets, "config.json", json_pack("{s:i, s:i, s:I}", "section", 0, "offset", 0, "bytes",
                                                                (json_int_t)bytes)) != 0)
        return base_error(IFX_ENOMEM, "out of memory for the index");
    int32_t status = convert_write(v, k->m->config, bytes + 1);
    return status == IFX_OK ? convert_section_end(v, "assets") : status;
}

static int32_t write_rows(struct making *k, uint32_t param, const struct plan_param *q)
{
    bool vector = q->p->kind == IFX_PARAM_VECTOR;
    uint64_t row_bytes = (uint64_t)q->p->cols * (vector ? 4 : 2), rows = vector ? 1 : q->p->rows;
    uint64_t each = row_bytes < ROWS_BYTES ? ROWS_BYTES / row_bytes : 1;
    uint8_t *buffer = base_alloc(row_bytes * (each < rows ? each : rows), 64);
    int32_t status = buffer ? IFX_OK : IFX_ENOMEM;
    for (uint64_t r = 0; r < rows && status == IFX_OK; r += each) {
        uint64_t n = rows - r < each ? rows - r : each;
        for (uint64_t i = 0; i < n; i++)
            k->m->row(k->m->ctx, param, r + i, buffer + i * row_bytes);
        status = convert_write(&k->v, buffer, n * row_bytes);
        if (status == IFX_OK)
            status = convert_progress(&k->v, "dense");
    }
    base_free(buffer);
    return status;
}

static int32_t write_dense(struct making *k)
{
    const struct ifx_model_desc *d = k->m->desc;
    int32_t status = IFX_OK;
    uint64_t at = 0;
    convert_section_begin(&k->v);
    for (uint32_t i = 0; i < d->n_params && status == IFX_OK; i++) {
        const struct ifx_param *p = &d->params[i];
        bool vector = p->kind == IFX_PARAM_VECTOR;
        struct plan_param q = {.p = p, .dtype = vector ? IFX_F32 : IFX_BF16, .offset = at};
        if ((p->flags & IFX_PARAM_HEAD) && p->tied_to >= 0)
            continue;
        q.bytes = vector ? (uint64_t)p->cols * 4 : (uint64_t)p->rows * p->cols * 2;
        status = convert_pad(&k->v, at);
        if (status == IFX_OK)
            status = write_rows(k, i, &q);
        if (status == IFX_OK && json_object_set_new(k->v.tensors, p->name, convert_describe_param(&q)) != 0)
            status = base_error(IFX_ENOMEM, "out of memory for the index");
        at = container_round(at + q.bytes, CONTAINER_ALIGN);
    }
    return status == IFX_OK ? convert_section_end(&k->v, "dense") : status;
}

static int32_t write_layer(struct making *k, uint32_t layer)
{
    const struct ifx_moe_layer *l = &k->m->desc->moe[layer];
    int32_t status = IFX_OK;
    convert_section_begin(&k->v);
    for (uint32_t e = 0; e < l->experts && status == IFX_OK; e++) {
        status = convert_write(&k->v, k->m->record(k->m->ctx, layer, e), k->v.record_bytes);
        if (status == IFX_OK)
            status = convert_progress(&k->v, "experts");
    }
    if (status == IFX_OK)
        status = convert_list_experts(&k->v, l, k->m->format);
    return status == IFX_OK ? convert_section_end(&k->v, "experts") : status;
}

static int32_t write_table(struct making *k, uint32_t table)
{
    const struct ifx_row_table *t = &k->m->desc->tables[table];
    uint64_t row_bytes = t->cols * 2ull, each = row_bytes < ROWS_BYTES ? ROWS_BYTES / row_bytes : 1;
    uint8_t *buffer = base_alloc(row_bytes * each, 64);
    int32_t status = buffer ? IFX_OK : IFX_ENOMEM;
    convert_section_begin(&k->v);
    for (uint64_t r = 0; r < t->rows && status == IFX_OK; r += each) {
        uint64_t n = t->rows - r < each ? t->rows - r : each;
        for (uint64_t i = 0; i < n; i++)
            k->m->table_row(k->m->ctx, table, r + i, buffer + i * row_bytes);
        status = convert_write(&k->v, buffer, n * row_bytes);
        if (status == IFX_OK)
            status = convert_progress(&k->v, "table");
    }
    base_free(buffer);
    if (status == IFX_OK)
        status = convert_list_table(&k->v, t, IFX_BF16, t->rows * row_bytes);
    return status == IFX_OK ? convert_section_end(&k->v, "table") : status;
}

static uint64_t total_bytes(const struct artifact_make *m)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < m->desc->n_params; i++)
        total += (uint64_t)m->desc->params[i].rows * m->desc->params[i].cols * 2;
    for (uint32_t i = 0; i < m->desc->n_moe; i++)
        total += m->desc->moe[i].experts * m->record_bytes;
    for (uint32_t i = 0; i < m->desc->n_tables; i++)
        total += m->desc->tables[i].rows * m->desc->tables[i].cols * 2;
    return total;
}

int32_t artifact_make(const struct artifact_make *m, int *fd)
{
    struct making k = {.m = m};
    k.c = (struct artifact_convert){.out_path = m->out_path ? m->out_path : "(in memory)", .progress = m->progress, .ctx = m->ctx};
    k.v.c = &k.c;
    k.v.record_bytes = m->record_bytes;
    k.v.total = total_bytes(m);
    int32_t status = m->out_path ? base_out_open(m->out_path, m->force, &k.v.out)
                                 : base_out_open_memory("infernix-model", &k.v.out);
    if (status == IFX_OK)
        status = convert_index_begin(&k.v, m->architecture);
    if (status == IFX_OK)
        status = write_config(&k);
    if (status == IFX_OK)
        status = write_dense(&k);
    for (uint32_t i = 0; i < m->desc->n_moe && status == IFX_OK; i++)
        status = write_layer(&k, i);
    for (uint32_t i = 0; i < m->desc->n_tables && status == IFX_OK; i++)
        status = write_table(&k, i);
    if (status == IFX_OK)
        status = convert_write_index(&k.v);
    if (status == IFX_OK)
        status = m->out_path ? base_out_commit(&k.v.out) : base_out_commit_memory(&k.v.out, fd);
    base_out_abort(&k.v.out);
    convert_index_end(&k.v);
    return status;
}
