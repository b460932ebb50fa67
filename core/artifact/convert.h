/* SPDX-License-Identifier: Apache-2.0
 *
 * convert.h - shared by the files of the converter.
 */
#ifndef INFERNIX_ARTIFACT_CONVERT_H
#define INFERNIX_ARTIFACT_CONVERT_H

#include "artifact_internal.h"
#include "container.h"

/* How one parameter will be stored. */
struct plan_param {
    const struct ifx_param *p;
    const struct art_tensor *t;
    struct art_source s; /* matrices */
    uint32_t dtype;
    uint64_t offset, bytes, scale_offset, scale_bytes; /* within the dense section */
};
struct converting {
    struct artifact *a;
    const struct artifact_convert *c;
    struct base_out *out;
    struct plan_param *params;
    uint32_t n_params;
    uint64_t assets_bytes, dense_bytes, record_bytes, tables_bytes;
    uint64_t done, total;
    json_t *index, *sections, *tensors, *experts, *assets;
    uint32_t crc; /* of the section being written */
    uint64_t section_offset;
};

int32_t convert_plan(struct converting *v);
/* The frame of a file: header page and index around sections.  begin wants v->out open. */
int32_t convert_index_begin(struct converting *v, const char *architecture);
int32_t convert_write_index(struct converting *v);
void convert_index_end(struct converting *v);
void convert_section_begin(struct converting *v);
int32_t convert_section_end(struct converting *v, const char *kind);
/* Lists the section about to be closed as the experts of a layer. */
int32_t convert_list_experts(struct converting *v, const struct ifx_moe_layer *m, const char *format);
json_t *convert_describe_param(const struct plan_param *q);
int32_t convert_write(struct converting *v, const void *data, uint64_t bytes);
int32_t convert_pad(struct converting *v, uint64_t to); /* zeros up to an offset within the section */
int32_t convert_progress(struct converting *v, const char *what);
int32_t convert_dense(struct converting *v);
int32_t convert_experts(struct converting *v, uint32_t moe_layer);
/* convert_table.c: a section a table, its rows as they are stored. */
int32_t convert_plan_tables(struct converting *v);
int32_t convert_table(struct converting *v, uint32_t table);
/* Lists the rows, at the start of the section at hand, in the index. */
int32_t convert_list_table(struct converting *v, const struct ifx_row_table *t, uint32_t dtype, uint64_t bytes);

#endif
