/* SPDX-License-Identifier: Apache-2.0
 *
 * model.h - a model family: topology and call order, no kernels.
 *
 * Engine tier: exact build string.  A family recognises a config, declares its parameters, state and workspace, and
 * runs one step for a batch of columns by calling device operations and the engine's services.
 */
#ifndef INFERNIX_MODEL_H
#define INFERNIX_MODEL_H

#include <infernix/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- config ---- */

/* Read access to config.json.  Keys are looked up in the text config first (`text_config` where it exists), then at
 * the top level; "a.b" descends.  Each returns IFX_OK, IFX_ENOTFOUND (nothing recorded) when the key is absent or null, or
 * IFX_EFORMAT with the text recorded when the value has another type or does not fit. */
struct ifx_config {
    uint32_t struct_size;
    uint32_t reserved;
    void *ctx;
    int32_t (*get_int)(const struct ifx_config *c, const char *key, int64_t *out);
    int32_t (*get_float)(const struct ifx_config *c, const char *key, double *out);
    int32_t (*get_bool)(const struct ifx_config *c, const char *key, uint32_t *out);
    int32_t (*get_string)(const struct ifx_config *c, const char *key, const char **out);
    int32_t (*get_count)(const struct ifx_config *c, const char *key, uint64_t *out); /* array length */
    int32_t (*get_string_at)(const struct ifx_config *c, const char *key, uint64_t index, const char **out);
    int32_t (*get_int_at)(const struct ifx_config *c, const char *key, uint64_t index, int64_t *out);
};

/* ---- what a family declares ---- */

#define IFX_PARAM_MATRIX 1u /* weight of `linear` or `embed`: bf16, f32 or quantised */
#define IFX_PARAM_VECTOR 2u /* small tensor: float32 on the device whatever is stored */

#define IFX_PARAM_OPTIONAL  1u /* may be absent (tied lm_head) */
#define IFX_PARAM_SENSITIVE 2u /* never quantised by --dense unless named: router, gates, GDN a/b, conv */
#define IFX_PARAM_HEAD      4u /* output head: absent, it is tied to the parameter in `tied_to` */
#define IFX_PARAM_EMBED     8u /* rows are looked up, not multiplied */

/* A parameter.  Names are logical: without `model.` and `language_model.` prefixes ("layers.0.mlp.gate.weight"). */
struct ifx_param {
    char name[120];
    uint32_t kind;
    uint32_t flags;
    uint32_t rows; /* vectors: 1 */
    uint32_t cols; /* vectors: the number of values, whatever the stored shape ([c, 1, 4] is c * 4) */
    int32_t tied_to; /* index of a parameter, or -1 */
    uint32_t reserved;
};

/* The experts of one MoE layer: tensors under `prefix` ("layers.0.mlp.experts"), fused or one by one. */
struct ifx_moe_layer {
    char prefix[120];
    uint32_t layer; /* model layer, for messages and trace */
    uint32_t experts;
    uint32_t top_k;
    uint32_t hidden;
    uint32_t inter;
    uint32_t renormalise;
    uint32_t router; /* parameter index of the router matrix */
    uint32_t reserved;
};

/* A table too large for memory: rows are read from the checkpoint as tokens need them.  Stored as NAME.weight [rows, cols], or in
 * parts NAME.shard_0.weight, NAME.shard_1.weight, ... one after the other along the rows; bf16, f16, f32, or FP8 e4m3 with one scale
 * (NAME.weight_scale). */
struct ifx_row_table {
    char name[120]; /* logical */
    uint64_t rows;
    uint32_t cols;
    uint32_t per_token; /* rows that a token needs */
};

/* An I64 tensor that a checkpoint may store and whose values follow from the config: they must agree. */
struct ifx_int_tensor {
    char name[120]; /* logical */
    const int64_t *values;
    uint32_t count;
    uint32_t reserved;
};

struct ifx_model_desc {
    uint32_t struct_size;
    uint32_t vocab;
    uint32_t hidden;
    uint32_t n_layers;
    uint32_t max_positions;
    uint32_t n_params;
    const struct ifx_param *params;
    uint32_t n_moe;
    uint32_t n_kv_layers; /* layers that keep K and V; all of one geometry */
    const struct ifx_moe_layer *moe;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t n_q_heads;
    uint32_t residual_width; /* values of the residual stream a column: hidden * streams */
    uint64_t state_bytes; /* recurrent state of one sequence: float32, zero at the start */
    /* Block selection (device.h): an index plane beside each KV page.  index_dim 0: none. */
    uint32_t index_dim;
    uint32_t index_ratio;
    uint32_t index_rows; /* tokens that a query sees at most */
    /* Tables whose rows the host looks up by token n-grams, kept on disk (struct ifx_row_table). */
    const struct ifx_row_table *tables;
    const struct ifx_int_tensor *ints;
    uint32_t n_tables;
    uint32_t n_ints;
    uint32_t history; /* tokens before a segment that row_ids looks at */
    /* Small numbers that every step reads (rotary frequencies): the engine keeps a copy on the device.  NULL: none. */
    uint32_t constant_bytes;
    const void *constants;
};

/* ---- one step ---- */

/* A run of columns of one sequence. */
struct ifx_segment {
    uint32_t column0; /* first column in the batch */
    uint32_t n;
    uint64_t pos0;    /* position of the first column */
    void *state;      /* device: state_bytes */
    void *sequence;   /* the engine's handle, for kv services */
};

/* What the core does for a family.  `layer` counts KV layers or MoE layers, each from 0. */
/* K, V [n, n_kv_heads, d] of a segment (rows ldk / ldv apart) are stored, then q [n, n_q_heads, d], at q + t * ldq + h * ldq_head,
 * attends: out [n, n_q_heads, d] (ldo apart) = softmax(scale q k^T, causal) v. */
struct ifx_attention {
    const struct ifx_segment *segment;
    uint32_t kv_layer;
    float scale;
    const float *q, *k, *v;
    uint64_t ldq, ldq_head, ldk, ldv;
    float *out;
    uint64_t ldo;
    /* Which tokens each column of the segment sees, as block_select writes them; NULL: all up to its own. */
    const int32_t *rows;
    const uint32_t *n_rows;
    uint64_t ld_rows;
};

#define IFX_OBSERVE_HIDDEN 1u /* residual after layer `layer` (-1: embedding): float32 [n, residual_width] */
struct ifx_services {
    uint32_t struct_size;
    uint32_t reserved;
    void *ctx;
    int32_t (*attention)(const struct ifx_services *s, const struct ifx_attention *call);
    /* y[n, H] = sum over the top-k experts of weight * expert(x), router included.  x [n, H]. */
    int32_t (*moe)(const struct ifx_services *s, uint32_t moe_layer, const float *x, uint64_t ldx, uint32_t n,
                   float *y, uint64_t ldy);
    /* A whole block of experts with a shared one, for few columns: the product `in` (a norm, and matrices that take its result), to which
     * the router is added; the experts; the product `out` with its `shared` and `residual`, to which their combination is added, in
     * shared->y.  IFX_EUNSUPPORTED with nothing done: the family does it in parts.  NULL: likewise. */
    int32_t (*moe_block)(const struct ifx_services *s, uint32_t moe_layer, const struct ifx_product *in, const struct ifx_product *out);
    /* Called after the embedding and after each layer with the columns that were computed (all of them up to the last mixer; after
     * the last layer only those whose logits are wanted, unless IFX_STEP_ALL_COLUMNS is set).  NULL: nobody watches. */
    int32_t (*observe)(const struct ifx_services *s, uint32_t what, int32_t layer, const float *x, uint64_t ldx,
                       uint32_t n);
    /* Polled by a family between layers: nonzero ends the step with IFX_ECANCELLED.  NULL: never. */
    uint32_t (*cancelled)(const struct ifx_services *s);
    /* Where the index keys of a segment's sequence lie for one KV layer; the pages of the segment's own tokens are there. */
    int32_t (*index_plane)(const struct ifx_services *s, const struct ifx_segment *segment, uint32_t kv_layer,
                           struct ifx_index_plane *out);
    /* Enqueues y [n, per_token * cols] = the rows of a table for the step's columns, float32 (see row_ids): they were asked for when
     * the step began. */
    int32_t (*table_rows)(const struct ifx_services *s, uint32_t table, float *y);
};

#define IFX_STEP_ALL_COLUMNS 1u /* somebody looks at every column after the last layer too */
struct ifx_step {
    uint32_t struct_size;
    uint32_t n; /* columns */
    struct ifx_device *dev;
    void *stream;
    const struct ifx_services *services;
    const struct ifx_weight *weights; /* [n_params]; vectors: dtype F32, rows 1 */
    const int32_t *tokens;            /* device [n] */
    const int32_t *positions;         /* device [n] */
    const struct ifx_segment *segments;
    uint32_t n_segments;
    uint32_t n_logits;
    const uint32_t *logit_columns; /* host, ascending: columns whose logits are wanted */
    float *logits;                 /* device [n_logits, vocab] */
    void *ws;                      /* device: workspace_bytes(n, n_logits) */
    uint64_t ws_bytes;
    uint32_t flags; /* IFX_STEP_* */
    uint32_t reserved;
    void *constants; /* device: those of the description; not to be changed */
};

struct ifx_model_ops {
    uint32_t struct_size;
    uint32_t flags;
    const char *const *architectures; /* NULL-terminated: {"Qwen3_5ForCausalLM", ...} */
    const char *description;
    const struct ifx_option *options;
    /* Builds a model from a config; every field that is needed and absent, odd or unsupported is an error that names it. */
    int32_t (*open)(const struct ifx_host *host, const struct ifx_options *options,
                    const struct ifx_config *config, void **model);
    void (*close)(void *model);
    const struct ifx_model_desc *(*describe)(void *model); /* lives as long as the model */
    uint64_t (*workspace_bytes)(void *model, struct ifx_device *dev, uint32_t n, uint32_t n_logits);
    int32_t (*forward)(void *model, const struct ifx_step *step);
    /* Rows of a table for n tokens of one sequence: ids[t, per_token].  tokens[-1] .. tokens[-history] are those before,
     * history <= desc.history, fewer only at the start of the sequence.  Pure, any thread.  NULL without tables. */
    void (*row_ids)(void *model, uint32_t table, const int32_t *tokens, uint32_t history, uint32_t n, int64_t *ids);
};

#ifdef __cplusplus
}
#endif
#endif
