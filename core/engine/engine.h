/* SPDX-License-Identifier: Apache-2.0
 *
 * engine.h - what the files of the engine share.
 */
#ifndef INFERNIX_CORE_ENGINE_H
#define INFERNIX_CORE_ENGINE_H

#include "infernix.h"
#include "offload.h"
#include <pthread.h>

#define ENGINE_PAGE_TOKENS   64u
#define ENGINE_DEFAULT_CTX   4096u
#define ENGINE_DEFAULT_CHUNK 512u
#define ENGINE_PASS_ITEMS    IFX_NARROW_COLUMNS /* sequences of one pass */
#define ENGINE_WAITING       8u  /* snapshots of a sequence that wait for proof */
#define ENGINE_ATTEND_ROWS   64u /* query rows (queries x group) of one attention tile */
#define ENGINE_ATTEND_PARTS  64u /* at most so many parts over token ranges */
#define ENGINE_ATTEND_RANGE  256u /* tokens below which a range is not cut */

struct ifx_context {
    struct base_pool *pool;
    struct registry *registry;
};

/* KV pages of all sequences.  A block holds the pages of ENGINE_PAGE_TOKENS tokens of all KV layers. */
struct kv_pool {
    uint8_t *memory;
    uint64_t bytes, page_bytes, block_bytes;
    uint32_t n_blocks, n_free;
    uint32_t *free_blocks; /* stack */
    uint32_t *owners;      /* [n_blocks] sequences and snapshots that hold it */
};

/* What a sequence held after `n` tokens. */
struct snapshot {
    uint64_t n;
    int32_t *tokens;
    uint32_t *blocks; /* of its tokens; the last may be partly filled */
    uint32_t n_blocks;
    bool on_grid; /* fed in whole chunks from the start, as any prompt that begins so would be */
    void *state;  /* host memory */
    uint64_t hits, used; /* used: the cache's clock at the last use */
};

/* Snapshots that prompts may begin with. */
struct prefix_cache {
    struct snapshot **list;
    uint32_t count, room;
    uint32_t *holders; /* [blocks of the pool] snapshots that hold it */
    uint64_t clock, waiting_bytes;
    const struct snapshot *in_use; /* not to be dropped now */
    bool grid_only;
    struct ifx_prefix_stats stats; /* bytes: kept ones and those that wait for proof */
};

/* Buffers of one step, sized for the widest. */
struct step_buffers {
    uint32_t max_columns, max_logits;
    void *ws;
    uint64_t ws_bytes;
    int32_t *tokens, *positions;
    struct ifx_segment *segments;
    uint32_t *logit_columns;
    float *logits; /* [max_logits, vocab]: passes of several sequences */
    /* MoE */
    void *router_ws, *moe_ws;
    float *router_logits, *router_weights;
    int32_t *router_ids;
    uint16_t *x_bf16;
    /* attention: parts of ENGINE_ATTEND_PARTS or of each worker */
    float *part_acc, *part_m, *part_l;
    uint64_t part_rows;
};

struct ifx_model {
    struct ifx_context *ctx;
    struct artifact *artifact;
    const struct ifx_model_ops *family;
    void *family_model;
    const char *family_name;
    const struct ifx_model_desc *desc;
    struct ifx_device *dev;
    bool oracle;
    bool host_memory; /* the device's memory is the host's */
    char *device_name;
    void *stream;
    /* weights */
    struct ifx_weight *weights;
    uint8_t *dense_memory; /* the parameters that are not used in place, at dense_at */
    uint64_t *dense_at, dense_bytes, dense_mapped;
    /* experts */
    const struct ifx_expert_ops *bank_ops;
    void *bank;
    const char *expert_format;
    struct offload_layer *moe_layers;
    uint8_t *expert_memory; /* NULL: in place */
    uint64_t expert_bytes;
    /* KV */
    const struct ifx_kv_ops *kv_ops;
    void *kv;
    struct kv_pool pool;
    uint64_t kv_bytes; /* of the pool: what the sequences need */
    struct prefix_cache prefix;
    /* text */
    struct text_tokenizer *tokenizer;
    struct text_chat *chat; /* made at first use */
    int32_t *stop_ids;
    uint32_t n_stop_ids;
    /* limits */
    uint32_t n_ctx, prefill_chunk, max_sequences, n_sequences;
    pthread_mutex_t lock; /* one step at a time; pool and sequence count */
    struct step_buffers step;
};

struct ifx_sequence {
    struct ifx_model *model;
    uint64_t length;
    float *state;
    uint32_t *blocks; /* block of each ENGINE_PAGE_TOKENS tokens */
    uint32_t n_blocks, max_blocks;
    void **pages; /* [n_kv_layers][max_blocks] */
    int32_t *tokens; /* [n_ctx]: what was fed */
    char *broken; /* why no further token can be fed, or NULL */
    char *error;  /* text of the last item that failed, or NULL */
    /* prefix reuse */
    struct snapshot *waiting[ENGINE_WAITING]; /* ascending; kept once a finite logit row proves them */
    uint32_t n_waiting;
    bool suspect; /* a column was not finite somewhere: nothing is kept */
    bool proved;  /* the last token's logits were looked at */
    bool on_grid;
    struct ifx_observer observer;
    bool observed;
};

/* One pass being run: what services find behind their ctx. */
struct engine_step {
    struct ifx_model *model;
    struct ifx_batch_item *items[ENGINE_PASS_ITEMS]; /* item i has segment i */
    uint32_t count;
    uint32_t columns;
    bool watch;  /* observers want every column */
    bool narrow; /* too short to be worth a cancellation in its middle */
    int32_t bad_layer[ENGINE_PASS_ITEMS]; /* first layer with a non-finite column of the item, INT32_MIN: none */
};

/* load.c */
int32_t engine_load_weights(struct ifx_model *m, const struct ifx_model_options *o);
int32_t engine_load_experts(struct ifx_model *m, const struct ifx_model_options *o);
void engine_unload(struct ifx_model *m);

/* kv.c */
int32_t kv_pool_create(struct kv_pool *p, uint64_t page_bytes, uint32_t layers, uint32_t n_blocks);
void kv_pool_destroy(struct kv_pool *p);
/* Makes room for `tokens` tokens of a sequence; the caller holds the lock. */
int32_t kv_reserve(struct ifx_sequence *s, uint64_t tokens);
void kv_release(struct ifx_sequence *s);
/* A free block with one owner, taken from the snapshots when there is no other. */
int32_t kv_block_take(struct ifx_model *m, uint32_t *block);
void kv_block_drop(struct kv_pool *p, uint32_t block);
/* Appends a block to the sequence's pages; its owner's count is the caller's affair. */
void kv_block_append(struct ifx_sequence *s, uint32_t block);

/* Tokens of a whole step of a prompt: steps end at its multiples. */
uint32_t engine_grid(const struct ifx_model *m);

/* prefix.c: the caller holds the lock */
int32_t prefix_create(struct ifx_model *m, uint64_t bytes, bool grid_only);
void prefix_destroy(struct ifx_model *m);
/* A step of n tokens went through; finite: it ended with a logit row of finite numbers.  What the sequence holds now may be kept. */
void prefix_step(struct ifx_sequence *s, uint32_t n, bool finite);
/* Forgets what waits for proof. */
void prefix_forget(struct ifx_sequence *s);
/* Drops the least valuable snapshot; false when there is none. */
bool prefix_evict(struct ifx_model *m);

/* attention.c, attention_ref.c: the service of model.h */
uint64_t attention_parts(const struct ifx_model *m);
int32_t engine_attention(const struct ifx_services *sv, const struct ifx_attention *call);
struct attention_call {
    const struct ifx_model *m;
    const struct ifx_attention *a;
    void *const *pages;
    uint64_t pos0;
    uint32_t n, group;
};
int32_t attention_ref(const struct attention_call *c);

/* moe.c: the service of model.h */
int32_t engine_moe(const struct ifx_services *sv, uint32_t moe_layer, const float *x, uint64_t ldx, uint32_t n, float *y,
                   uint64_t ldy);

/* step.c */
int32_t step_buffers_create(struct ifx_model *m);
void step_buffers_destroy(struct ifx_model *m);
/* Runs one pass and gives each item its status; the caller holds the lock and has checked the items and reserved their pages. */
int32_t engine_run_step(struct engine_step *step);
/* Column t of the n that a service sees is not finite after (or in) a layer. */
void engine_bad_column(struct engine_step *step, uint32_t n, uint32_t t, int32_t layer);
/* True when all values are finite. */
bool engine_finite(const float *x, uint64_t n);

/* batch.c */
/* Gives an item its status and, from the error record, its text. */
void engine_fail_item(struct ifx_batch_item *it, int32_t status);

/* generation_config.c */
int32_t engine_read_stop_ids(struct ifx_model *m);

#endif
