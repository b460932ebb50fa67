/* SPDX-License-Identifier: Apache-2.0
 *
 * artifact_internal.h - shared by the files of this folder: fault lists, safetensors headers, stored tensors, sections.
 */
#ifndef INFERNIX_ARTIFACT_INTERNAL_H
#define INFERNIX_ARTIFACT_INTERNAL_H

#include "artifact.h"
#include <jansson.h>
#include <pthread.h>

/* ---- faults: collected so that a user sees all of them at once ---- */
#define FAULTS_SHOWN 64u
struct art_faults {
    struct base_buf text; /* one line each */
    uint64_t count;
    bool out_of_memory;
};
void art_fault(struct art_faults *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Records them as one error ("WHAT: 3 faults:" and a line each), frees the list.  IFX_OK when there are none. */
int32_t art_faults_end(struct art_faults *f, int32_t status, const char *what);

/* ---- element types ---- */
uint32_t art_dtype_parse(const char *text);        /* "BF16" -> IFX_BF16, 0 when unknown */
const char *art_dtype_text(uint32_t dtype);        /* the safetensors name, "W8G32" */
uint32_t art_dtype_bytes(uint32_t dtype);          /* of one element; 0 for IFX_W8G32 and unknown ones */
bool art_count(const uint64_t *dims, uint32_t n_dims, uint64_t *count); /* false on overflow */
void art_shape_text(char out[128], const uint64_t *dims, uint32_t n_dims);

/* ---- JSON: duplicate keys, NUL and trailing text refused; depth bounded ---- */
/* `what` is the file, for messages.  big: NULL, or set when a number did not fit and all numbers became reals. */
int32_t art_json_parse(const char *text, uint64_t bytes, const char *what, uint64_t base_offset, bool *big,
                       json_t **out);
/* Whole and not negative. */
bool art_json_u64(const json_t *v, bool big, uint64_t *out);

/* ---- one safetensors file ---- */
#define ST_MAX_HEADER (100u * 1000u * 1000u)
struct st_tensor {
    char *name;
    char dtype_text[16];
    uint32_t dtype; /* 0: unknown */
    uint32_t n_dims;
    uint64_t dims[ARTIFACT_MAX_DIMS];
    uint64_t begin, end; /* within the data */
};
struct st_file {
    char *path;
    const uint8_t *map;
    uint64_t bytes;
    uint64_t data_offset; /* 8 + header */
    struct st_tensor *tensors; /* sorted by begin */
    uint64_t n;
    bool owns_map;
};
/* Header of a file whose bytes are in memory; faults name `path`.  The map is not taken over. */
void st_parse(const char *path, const uint8_t *map, uint64_t bytes, struct st_file **out, struct art_faults *f);
/* Names what a file that is no safetensors file is (git-lfs pointer, HTML page, ...), or NULL. */
const char *art_impostor(const void *data, uint64_t bytes);

/* ---- stored tensors, whatever they come from ---- */
struct art_tensor {
    struct artifact_entry pub;
    const uint8_t *data;
    const uint8_t *scales; /* IFX_W8G32 */
    uint64_t scale_bytes;
    int32_t section; /* containers: to be verified before use; -1 */
};

struct art_section {
    uint64_t offset, bytes;
    uint32_t crc;
    uint32_t state; /* atomic: 0 not looked at, 1 right, 2 wrong */
    bool left;      /* by artifact_verify, see artifact_leave_tables */
};
struct art_expert_section {
    uint32_t section;
    uint32_t layer;
    uint64_t experts, hidden, inter, record_bytes;
    char *prefix;
    char *format;
};
struct art_container {
    const uint8_t *map;
    uint64_t bytes;
    uint32_t version;
    struct art_section *sections;
    uint64_t n_sections;
    struct art_expert_section *experts; /* by MoE layer index */
    uint64_t n_experts;
    json_t *index;
    bool no_verify;
    pthread_mutex_t lock; /* verification */
};

struct art_asset {
    const char *name;
    char *owned;
    const char *data; /* NULL: absent */
    uint64_t bytes;
    int32_t section;
};
#define ART_ASSETS 5

struct artifact {
    char *path;
    char *folder;
    struct st_file **files;
    uint64_t n_files;
    struct art_container *container;
    struct art_tensor *tensors; /* stored order */
    uint64_t n_tensors;
    struct art_tensor **by_name; /* those with a logical name, sorted */
    uint64_t n_named;
    json_t *config, *text_config;
    struct ifx_config config_ops;
    char *architecture;
    struct art_asset assets[ART_ASSETS];
    char *expert_format;
    /* The bank that wrote the container's records, when somebody gave it. */
    const struct ifx_expert_ops *bank_ops;
    void *bank;
};

/* Logical name within a stored one, or NULL when it is ignored. */
const char *art_logical_name(const char *stored);
int32_t art_index_names(struct artifact *a, struct art_faults *f); /* fills by_name; faults duplicates */
struct art_tensor *art_find(const struct artifact *a, const char *logical_name);
struct art_tensor *art_findf(const struct artifact *a, const char *format, ...) __attribute__((format(printf, 2, 3)));

int32_t art_config_open(struct artifact *a, const char *text, uint64_t bytes, const char *what);
void art_config_close(struct artifact *a);
int32_t art_checkpoint_open(struct artifact *a, const char *single);
/* What the checkpoint's own description of its quantisation says must be what is stored. */
void art_check_quant_config(const struct artifact *a, struct art_faults *f);
int32_t art_container_open(struct artifact *a);
void art_container_close(struct art_container *c);
bool art_is_container(const void *data, uint64_t bytes);
int32_t art_section_verify(struct artifact *a, int32_t section);
uint32_t art_crc(const uint8_t *p, uint64_t bytes);
/* Records the outcome for a section whose pieces of `piece` bytes, the last one shorter, have these CRCs. */
int32_t art_section_judge(struct artifact *a, uint64_t section, const uint32_t *crcs, uint64_t piece);
int32_t art_detect_experts(struct artifact *a);

/* ---- decoding ---- */
#define ART_PLAIN 1u /* bf16, f16, f32 */
#define ART_FP8   2u /* e4m3 with one scale */
#define ART_FP8B  3u /* e4m3 with 128 x 128 block scales */
#define ART_NVFP4 4u
#define ART_W8G32 5u
#define ART_FP8_BLOCK 128u
/* A matrix [planes * rows, cols] and how to read it; planes is 1 but for fused experts. */
struct art_source {
    const struct art_tensor *t;
    const struct art_tensor *scale_t; /* block scales, or the one scale */
    const struct art_tensor *scale2_t;
    uint32_t form;
    uint64_t planes, rows, cols;
    uint64_t scale_ld; /* scales a row */
    float scale;       /* FP8, NVFP4: of the whole tensor */
};
/* How the matrix stored as `t` is read; scale tensors are looked up as NAME_scale...; what is missing or odd becomes a
 * fault.  planes > 1: stored with three dimensions. */
bool art_source_open(const struct artifact *a, const struct art_tensor *t, uint64_t planes, uint64_t rows,
                     uint64_t cols, struct art_source *out, struct art_faults *f);
/* FP8 products are rounded to bf16 once, NVFP4 ones to float32 once; everything else is exact. */
void art_source_row_f32(const struct art_source *s, uint64_t row, float *out);
/* One rounding to bf16. */
void art_source_row_bf16(const struct art_source *s, uint64_t row, uint16_t *out);
/* NaN scales are refused with tensor and byte offset; rows [row0, row0 + n). */
int32_t art_source_check_scales(const struct art_source *s, uint64_t row0, uint64_t n);
void art_to_f32(uint32_t dtype, const void *src, uint64_t n, float *out);
uint16_t art_f64_to_bf16(double v);

/* The three matrices of an expert: sources and the first row of it in each. */
struct art_expert_source {
    struct art_source matrix[3];
    uint64_t row0[3];
};
bool art_expert_open(const struct artifact *a, const struct ifx_moe_layer *m, uint32_t expert,
                     struct art_expert_source *out, struct art_faults *f);
void art_check_experts(const struct artifact *a, const struct ifx_moe_layer *m, uint32_t moe_layer,
                       struct art_faults *f);
void art_check(const struct artifact *a, const struct ifx_model_desc *desc, struct art_faults *f);
/* The CRC of every section that the table lies in, and that rows [row0, row0 + n), as stored, are finite. */
int32_t art_verify_table(struct artifact *a, const struct ifx_row_table *t);
int32_t art_check_rows(const struct artifact_table *t, uint64_t row0, uint64_t n, const void *rows);
/* A row table: all parts there, of one type and the right shape.  Integers that repeat the config: they agree where stored. */
void art_check_table(const struct artifact *a, const struct ifx_row_table *t, struct art_faults *f);
void art_check_ints(const struct artifact *a, const struct ifx_int_tensor *want, struct art_faults *f);
/* Says why a weight is missing when another dialect's tensor stands in its place. */
void art_missing(const struct artifact *a, const char *logical_name, const char *why, struct art_faults *f);

/* ---- quantising ---- */
/* One row to int8 groups of 32; codes [groups * 32], scales [groups].  Non-finite: IFX_EFORMAT (nothing recorded). */
int32_t art_w8g32_row(const float *w, uint64_t cols, int8_t *codes, uint16_t *scales);

#endif
