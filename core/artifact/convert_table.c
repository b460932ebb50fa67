/* SPDX-License-Identifier: Apache-2.0
 *
 * convert_table.c - row tables: copied as they are stored, part after part, into a section of their own.
 */
#include "config.h"
#include "convert.h"
#include <stdio.h>

#define CHUNK (4u << 20)

static uint64_t table_bytes(const struct artifact_table *t, const struct ifx_row_table *desc)
{
    return container_round(desc->rows * artifact_table_row_bytes(t), CONTAINER_ALIGN) + CONTAINER_ALIGN; /* and a scale */
}

int32_t convert_plan_tables(struct converting *v)
{
    for (uint32_t i = 0; i < v->c->desc->n_tables; i++) {
        const struct ifx_row_table *desc = &v->c->desc->tables[i];
        struct artifact_table *t;
        int32_t st = artifact_table_open(v->a, desc, &t);
        if (st)
            return st;
        bool fits = base_add_u64(v->total, container_round(table_bytes(t, desc), CONTAINER_PAGE), &v->total);
        artifact_table_close(t);
        if (!fits)
            return base_error(IFX_ELIMIT, "%s: the tables' bytes overflow", v->a->path);
    }
    return IFX_OK;
}

static int32_t copy_rows(struct converting *v, const struct artifact_table *t, const struct ifx_row_table *desc)
{
    uint64_t each = artifact_table_row_bytes(t), step = CHUNK / each ? CHUNK / each : 1;
    uint8_t *buffer = base_alloc(step * each, 64);
    int32_t st = buffer ? IFX_OK : IFX_ENOMEM;
    for (uint64_t row = 0; !st && row < desc->rows; row += step) {
        uint64_t n = desc->rows - row < step ? desc->rows - row : step;
        st = artifact_table_read(t, row, n, buffer);
        if (!st)
            st = art_check_rows(t, row, n, buffer);
        if (!st)
            st = convert_write(v, buffer, n * each);
        if (!st)
            st = convert_progress(v, "table");
    }
    base_free(buffer);
    return st;
}

static int32_t index_tensor(struct converting *v, const char *name, const char *dtype, json_t *shape, uint64_t offset, uint64_t bytes)
{
    json_t *e = json_pack("{s:s, s:o, s:i, s:I, s:I}", "dtype", dtype, "shape", shape, "section",
                          (int)json_array_size(v->sections), "offset", (json_int_t)offset, "bytes", (json_int_t)bytes);
    return json_object_set_new(v->tensors, name, e) ? base_error(IFX_ENOMEM, "out of memory for the index") : IFX_OK;
}

int32_t convert_list_table(struct converting *v, const struct ifx_row_table *t, uint32_t dtype, uint64_t bytes)
{
    char name[160];
    snprintf(name, sizeof name, "%s.weight", t->name);
    return index_tensor(v, name, art_dtype_text(dtype), json_pack("[I, I]", (json_int_t)t->rows, (json_int_t)t->cols), 0, bytes);
}

int32_t convert_table(struct converting *v, uint32_t table)
{
    const struct ifx_row_table *desc = &v->c->desc->tables[table];
    struct artifact_table *t;
    char name[160];
    int32_t st = artifact_table_open(v->a, desc, &t);
    if (st)
        return st;
    uint32_t dtype = artifact_table_dtype(t);
    uint64_t bytes = desc->rows * artifact_table_row_bytes(t), at = container_round(bytes, CONTAINER_ALIGN);
    float scale = artifact_table_scale(t);
    st = art_verify_table(v->a, desc);
    if (!st)
        st = convert_list_table(v, desc, dtype, bytes);
    if (!st)
        st = copy_rows(v, t, desc);
    if (!st && dtype == IFX_F8_E4M3) {
        snprintf(name, sizeof name, "%s.weight_scale", desc->name);
        st = index_tensor(v, name, "F32", json_pack("[i]", 1), at, sizeof scale);
        if (!st)
            st = convert_pad(v, at);
        if (!st)
            st = convert_write(v, &scale, sizeof scale);
    }
    if (!st && v->c->report)
        v->c->report(v->c->ctx, -1, desc->name, art_dtype_text(dtype), bytes, 0);
    artifact_table_close(t);
    return st;
}
