/* SPDX-License-Identifier: Apache-2.0
 *
 * artifact.h - a model on disk: a Hugging Face checkpoint folder, or one .infernix file.  Named, typed,
 * bounds-checked tensors; the config; the text assets; readers that turn any stored dialect into what a device or a bank takes.
 */
#ifndef INFERNIX_CORE_ARTIFACT_H
#define INFERNIX_CORE_ARTIFACT_H

#include "base.h"
#include <infernix/expert.h>
#include <infernix/model.h>

struct artifact;

/* path: a folder with config.json and *.safetensors (index or single file), a .safetensors file beside a config.json, or a .infernix file.  Opening
 * checks every header, size and index before any weight is read; all faults of a checkpoint come in one message. */
int32_t artifact_open(const char *path, struct artifact **out);
void artifact_close(struct artifact *a);
bool artifact_is_container(const struct artifact *a);
const char *artifact_path(const struct artifact *a);
const struct ifx_config *artifact_config(const struct artifact *a);
const char *artifact_architecture(const struct artifact *a); /* "Qwen3_5MoeForCausalLM"; multimodal names map to the text one */

/* Text assets, byte-exact: "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
 * "chat_template.jinja".  NULL when absent. */
const char *artifact_asset(const struct artifact *a, const char *name, uint64_t *bytes);

/* How the experts of a checkpoint or container are stored: "bf16" (also f16, f32 and FP8 checkpoints, which decode to it), "nvfp4", "int8",
 * any third party's format; NULL for a dense model. */
const char *artifact_expert_format(const struct artifact *a);

/* ---- dense parameters (logical names, see model.h) ---- */
/* Checks that every declared parameter and expert is there with the right shape; lists all faults by name. */
int32_t artifact_check(struct artifact *a, const struct ifx_model_desc *desc);
/* Stored form: dtype as on disk, raw view; IFX_ENOTFOUND (nothing recorded) when absent. */
int32_t artifact_tensor(struct artifact *a, const char *logical_name, struct ifx_tensor *view);
/* Bytes and dtype a parameter takes on a device: matrices bf16 (IFX_W8G32 when stored so), vectors f32. */
int32_t artifact_param_plan(struct artifact *a, const struct ifx_param *p, uint32_t *dtype, uint64_t *data_bytes,
                            uint64_t *scale_bytes);
/* Writes a parameter into host memory in that form (FP8 scales applied, one rounding).  *in_place is set instead when the stored
 * bytes can be used where they are mapped (64-byte aligned, right dtype): then data/scales point there and dst is not touched.
 * dst_data NULL: only says whether it is in place.  IFX_ENOTFOUND (nothing recorded) when absent, as a tied head is. */
int32_t artifact_param_read(struct artifact *a, const struct ifx_param *p, void *dst_data, void *dst_scales,
                            struct ifx_weight *out, bool *in_place);

/* ---- experts ---- */
/* One expert as float32 rows: gate, up [I, H], down [H, I], whatever is stored (fused or not; bf16, f16, f32, FP8, ModelOpt NVFP4). */
int32_t artifact_expert_rows(struct artifact *a, const struct ifx_moe_layer *m, uint32_t expert, float *gate,
                             float *up, float *down);
/* Views for pack_tensors (per-expert checkpoints only), or IFX_EUNSUPPORTED. */
int32_t artifact_expert_tensors(struct artifact *a, const struct ifx_moe_layer *m, uint32_t expert,
                                struct ifx_expert_tensors *out);
/* Containers: the record of (moe layer index, expert), mapped; its CRC was or is verified on first use of the section. */
int32_t artifact_expert_record(struct artifact *a, uint32_t moe_layer, uint32_t expert, const void **record,
                               uint64_t *bytes);
/* Writes one expert's record in `bank`'s format from whatever is stored: copies a record, packs tensors bit-exactly, or re-packs rows. tmp:
 * 3*H*I floats of work space.  *exact tells which. */
int32_t artifact_expert_pack(struct artifact *a, const struct ifx_moe_layer *m, uint32_t moe_layer,
                             uint32_t expert, const struct ifx_expert_ops *ops, void *bank, float *tmp,
                             void *record, bool *exact);

/* Gives a container the bank of its stored format (open for its shape, kept by the caller until the artifact is closed): needed
 * before its records can be read as rows, and so before they can be re-packed in another format. */
int32_t artifact_set_bank(struct artifact *a, const struct ifx_expert_ops *ops, void *bank);

/* Containers: checks the CRC of every section now, on the pool (NULL: on this thread), rather than of each at its first use.
 * progress as in artifact_convert, or NULL. */
int32_t artifact_verify(struct artifact *a, struct base_pool *pool,
                        int32_t (*progress)(void *ctx, uint64_t done, uint64_t total, const char *what), void *ctx);
/* artifact_verify leaves out the sections of the model's row tables from now on: few rows of them are ever read. */
void artifact_leave_tables(struct artifact *a, const struct ifx_model_desc *desc);
/* false: sections are used without looking at their CRC (a large file that was verified before). */
void artifact_set_verify(struct artifact *a, bool verify);

/* ---- row tables (model.h): rows are read from the file when they are wanted ---- */
struct artifact_table;
/* Opens files of its own; the artifact must outlive it.  A container's CRC of a table is looked at by artifact_verify only. */
int32_t artifact_table_open(struct artifact *a, const struct ifx_row_table *desc, struct artifact_table **out);
void artifact_table_close(struct artifact_table *t);
uint32_t artifact_table_row_bytes(const struct artifact_table *t); /* as stored */
uint32_t artifact_table_dtype(const struct artifact_table *t);
float artifact_table_scale(const struct artifact_table *t); /* FP8: of the table; else 1 */
/* Where a row lies, for whoever reads it himself. */
void artifact_table_where(const struct artifact_table *t, uint64_t row, int *fd, uint64_t *offset);
/* Reads n rows from `row` on, as stored; any thread. */
int32_t artifact_table_read(const struct artifact_table *t, uint64_t row, uint64_t n, void *dst);
/* A stored row to float32 [cols]. */
void artifact_table_decode(const struct artifact_table *t, const void *row, float *out);

/* ---- conversion ---- */
struct artifact_convert {
    const char *out_path;
    bool force;
    const struct ifx_model_desc *desc;
    const struct ifx_expert_ops *bank_ops; /* NULL: dense model */
    void *bank;
    const char *dense; /* "bf16", "int8", or NULL: as stored (FP8 and other floats become bf16) */
    const char *const *dense_named; /* NULL-terminated: SENSITIVE params to quantise all the same, or NULL.  A name is a whole
                                       logical name or a part of it between dots: "q_proj". */
    struct base_pool *pool;
    /* Progress: done of total bytes; also polled for cancellation (nonzero return).  May be NULL. */
    int32_t (*progress)(void *ctx, uint64_t done, uint64_t total, const char *what);
    /* One call for each dense parameter (what: its name) and for the experts of each MoE layer (what: "experts"): stored format,
     * bytes, and relative RMS error against the source: every row of dense matrices, 16 rows of each expert matrix spread over it;
     * 0 when copied or imported bit-exactly.  layer -1: outside the layers.  May be NULL. */
    void (*report)(void *ctx, int32_t layer, const char *what, const char *format, uint64_t bytes, double rel_rms);
    void *ctx;
};
/* Writes a .infernix file.  Checks everything first (artifact_check, free space); memory stays below 2 GiB whatever the size; on any
 * failure or cancellation (base_cancel_request counts too) nothing is left under out_path. */
int32_t artifact_convert(struct artifact *a, const struct artifact_convert *c);

/* ---- a model that nobody trained: for speed measurements ---- */
/* An artifact of a config.json alone: artifact_config and artifact_architecture work, nothing else does. */
int32_t artifact_open_config(const char *text, struct artifact **out);
struct artifact_make {
    const char *out_path; /* NULL: in memory, *fd then is the file (/proc/self/fd/N opens it) */
    bool force;
    const char *config;
    const char *architecture;
    const struct ifx_model_desc *desc;
    const char *format;    /* of the records */
    uint64_t record_bytes;
    void (*row)(void *ctx, uint32_t param, uint64_t row, void *out); /* matrices: bf16 [cols]; vectors: float32, row 0 */
    const void *(*record)(void *ctx, uint32_t moe_layer, uint32_t expert); /* valid until the next call */
    void (*table_row)(void *ctx, uint32_t table, uint64_t row, void *out); /* bf16 [cols]; models with row tables */
    int32_t (*progress)(void *ctx, uint64_t done, uint64_t total, const char *what); /* or NULL; nonzero cancels */
    void *ctx;
};
/* Streams; on failure nothing is left under out_path. */
int32_t artifact_make(const struct artifact_make *m, int *fd);

/* ---- inspection ---- */
/* Everything artifact_check looks at, the CRC of every section, and every value: all faults in one message.  ops, bank: of a
 * container's records, or NULL (their values are then not looked at). */
int32_t artifact_check_values(struct artifact *a, const struct ifx_model_desc *desc, const struct ifx_expert_ops *ops,
                              void *bank, struct base_pool *pool,
                              int32_t (*progress)(void *ctx, uint64_t done, uint64_t total, const char *what), void *ctx);
/* Containers: what the records of a MoE layer are.  IFX_ENOTFOUND (nothing recorded) past the last. */
struct artifact_records {
    const char *format;
    const char *prefix;
    uint32_t layer;
    uint64_t experts, record_bytes, offset; /* offset: of the first record in the file */
};
int32_t artifact_records_at(const struct artifact *a, uint32_t moe_layer, struct artifact_records *out);
/* Reads the records of every MoE layer, in order, to to[layer] (experts * record_bytes bytes; direct reads need it aligned to 4096), in pieces
 * by all threads of the pool.  Checks each section's CRC unless artifact_set_verify says no.  progress is called on any thread after a piece; a
 * status other than IFX_OK ends the reading with it. */
int32_t artifact_records_read(struct artifact *a, struct base_pool *pool, uint8_t *const *to,
                              int32_t (*progress)(void *ctx, uint64_t bytes, uint32_t worker), void *ctx);
/* artifact_verify leaves out the sections of the experts from now on: artifact_records_read looks at them. */
void artifact_leave_records(struct artifact *a);
#define ARTIFACT_MAX_DIMS 8
struct artifact_entry {
    const char *stored_name;
    const char *logical_name; /* NULL: ignored (mtp, visual) */
    uint32_t dtype;           /* 0: a dtype we do not know */
    const char *dtype_text;
    uint32_t n_dims;
    uint64_t dims[ARTIFACT_MAX_DIMS];
    uint64_t bytes;
    uint64_t scale_bytes; /* IFX_W8G32: of the scales beside it */
    const char *file;
    uint64_t offset; /* in the file */
};
uint64_t artifact_entry_count(const struct artifact *a);
/* How an entry is stored: "BF16", "FP8 e4m3, one scale", "FP8 e4m3, 128x128 scales", "NVFP4 (ModelOpt)", "int8, groups of 32"; a
 * scale tensor counts to the format of its weight, *scale is then set. */
const char *artifact_entry_format(const struct artifact *a, uint64_t index, bool *scale);
const struct artifact_entry *artifact_entry_at(const struct artifact *a, uint64_t index);

/* ---- writing safetensors (trace) ---- */
struct st_writer;
int32_t st_writer_open(const char *path, bool force, struct st_writer **out);
/* Declare all first, then write each whole in order of declaration, then close. */
int32_t st_writer_declare(struct st_writer *w, const char *name, uint32_t dtype, uint32_t n_dims, const uint64_t *dims);
int32_t st_writer_write(struct st_writer *w, const char *name, const void *data, uint64_t bytes);
int32_t st_writer_close(struct st_writer **w, bool commit);

/* Reader of one safetensors file, for tests and tools. */
struct st_file;
int32_t st_open(const char *path, struct st_file **out);
void st_close(struct st_file *f);
int32_t st_find(struct st_file *f, const char *name, struct ifx_tensor *view);

#endif
