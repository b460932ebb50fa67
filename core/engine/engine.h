/* SPDX-License-Identifier: Apache-2.0
 *
 * engine.h - what the files of the engine share.
 */
#ifndef INFERNIX_CORE_ENGINE_H
#define INFERNIX_CORE_ENGINE_H

#include "infernix.h"
#include "mover.h"
#include "offload.h"
#include "policy.h"
#include <pthread.h>

#define ENGINE_PAGE_TOKENS   64u
#define ENGINE_DEFAULT_CTX   4096u
#define ENGINE_DEFAULT_CHUNK 512u
#define ENGINE_STREAM_CHUNK  2048u /* where experts are streamed */
#define ENGINE_DEFAULT_ROWS  (64ull << 20) /* bytes of table rows in memory */
#define ENGINE_PASS_ITEMS    IFX_NARROW_COLUMNS /* sequences of one pass */
#define ENGINE_BUFFERS       24u
#define ENGINE_GRAPHS        32u /* captured steps kept */
#define ENGINE_LOGIT_BYTES   (64u << 20) /* of a wide pass, on a device with its own memory */
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

/* Buffers of one pass, sized for the widest.  "device" is device memory; on a device that shares the host's memory there is no copy beside it. */
struct step_buffers {
    uint32_t max_columns, max_logits;
    void *ws; /* device */
    uint64_t ws_bytes;
    void *constants;       /* device */
    uint32_t *inputs;      /* device: tokens, positions, random numbers of a pass, one behind the other */
    uint32_t *host_inputs; /* the same, as the host fills them */
    struct ifx_segment *segments;
    uint32_t *logit_columns;
    float *logits;      /* device [max_logits, vocab] */
    float *host_logits; /* [ENGINE_PASS_ITEMS, vocab]: rows on their way to the host; NULL where logits are the host's */
    void *sample_ws;    /* device */
    int32_t *picks, *host_picks; /* device, host [ENGINE_PASS_ITEMS] */
    /* MoE: device */
    void *router_ws, *moe_ws;
    float *router_logits, *router_weights;
    int32_t *router_ids;
    uint16_t *x_bf16;
    /* attention of the host: parts of ENGINE_ATTEND_PARTS or of each worker */
    float *part_acc, *part_m, *part_l;
    uint64_t part_rows;
    /* attention of the device */
    void *kv_ws;
    struct attend_job *jobs; /* [ENGINE_PASS_ITEMS][n_kv_layers] host calls */
    struct {
        void **at;
        uint32_t place;
    } taken[ENGINE_BUFFERS];
    uint32_t n_taken;
};

/* What a sequence takes of the device: all of it is there before the first one. */
struct engine_slot {
    void *state;
    void **pages; /* device [n_kv_layers][max_blocks]; NULL where the host's table serves */
    bool taken;
    uint32_t *history; /* device [vocab]: of the sampler that penalises; NULL where the host samples */
    const struct ifx_sampler *history_of;
    float *state_copy; /* host: what ifx_sequence_state gave out, or NULL */
};

/* A captured decode step.  It serves the same sequences in the same order, until one passes its bound. */
struct engine_graph {
    uint32_t count;
    uint64_t posts; /* hand-overs that a launch must serve */
    bool resident; /* no expert is missing: captured without the host's part */
    uint32_t slots[ENGINE_PASS_ITEMS], bounds[ENGINE_PASS_ITEMS];
    void *graph; /* NULL: seen once */
    struct attend_job *jobs; /* its host calls: launches find them where they were */
    uint64_t used;
};

enum attend_where { ATTEND_ON_HOST, ATTEND_BY_HOST_CALL, ATTEND_ON_DEVICE };

struct ifx_model {
    struct ifx_context *ctx;
    struct artifact *artifact;
    const struct ifx_model_ops *family;
    void *family_model;
    const char *family_name;
    const struct ifx_model_desc *desc;
    struct ifx_device *dev;
    bool deterministic; /* --deterministic */
    bool oracle;
    bool host_memory; /* the device's memory is the host's */
    uint32_t device_flags;
    char *device_name;
    void *stream;
    struct engine_slot *slots; /* [max_sequences] */
    struct engine_graph graphs[ENGINE_GRAPHS];
    bool no_graph;
    uint64_t graph_clock;
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
    struct mover_records records; /* on a device with memory of its own: what the copy engine reads */
    struct offload *offload;      /* the same: NULL elsewhere */
    struct offload_policy policy;
    const struct ifx_assist_policy **policies; /* [n_moe] */
    struct base_pool *expert_pool; /* NULL: the context's */
    char *expert_state;            /* file of the experts' ranking, or NULL */
    uint64_t most_pinned;          /* bytes of records that may be pinned, and what it is that limits them (NULL: nothing, or the user) */
    const char *pin_limit;
    uint64_t device_free;          /* before anything was taken */
    uint64_t expert_bytes;
    /* KV */
    const struct ifx_kv_ops *kv_ops;
    void *kv, *kv_side;
    enum attend_where attend_where;
    struct kv_pool pool;
    uint64_t kv_bytes; /* of the pool: what the sequences need */
    uint64_t plane_offset; /* of the index keys in a page (desc->index_dim) */
    struct prefix_cache prefix;
    struct engine_tables *tables; /* NULL: the family has none */
    /* text */
    struct text_tokenizer *tokenizer;
    struct text_chat *chat; /* made at first use */
    int32_t *stop_ids;
    uint32_t n_stop_ids;
    /* limits */
    uint32_t n_ctx, prefill_chunk, max_sequences;
    pthread_mutex_t lock; /* one step at a time; pool, slots and snapshots */
    struct step_buffers step;
};

struct ifx_sequence {
    struct ifx_model *model;
    uint64_t length;
    uint32_t slot;
    float *state; /* device */
    uint32_t n_uploaded; /* blocks that the device's page table has */
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
    uint32_t rows[ENGINE_PASS_ITEMS]; /* logit rows of an item */
    uint32_t columns, n_rows;
    const int32_t *positions; /* device [columns] */
    struct attend_job *jobs;  /* where host calls of attention go */
    bool watch;     /* observers want every column */
    bool capturing; /* what is enqueued now will be launched again with other tokens, positions and pages */
    bool narrow; /* too short to be worth a cancellation in its middle */
    int32_t bad_layer[ENGINE_PASS_ITEMS]; /* first layer with a non-finite column of the item, INT32_MIN: none */
};

/* device.c */
bool engine_device_is_auto(const char *name);
/* Says that there is no GPU to be used, for the reason recorded. */
void engine_cpu_instead(void);

/* load.c */
int32_t engine_load_weights(struct ifx_model *m, const struct ifx_model_options *o);
int32_t engine_load_experts(struct ifx_model *m, const struct ifx_model_options *o);
void engine_unload(struct ifx_model *m);

/* kv.c */
int32_t kv_pool_create(struct ifx_model *m, uint64_t page_bytes, uint32_t n_blocks);
void kv_pool_destroy(struct ifx_model *m);
/* Brings the device's page table of a sequence up to date: enqueues. */
int32_t kv_upload_pages(struct ifx_sequence *s);
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

/* attention.c, attention_ref.c, attention_device.c: the service of model.h */
uint64_t attention_parts(const struct ifx_model *m);
int32_t engine_attention(const struct ifx_services *sv, const struct ifx_attention *a);
struct attention_call {
    const struct ifx_model *m;
    const struct ifx_attention *a;
    void *const *pages;
    uint64_t pos0;
    uint32_t n, group;
};
/* Stores and attends with the format's CPU side. */
int32_t attention_host(struct ifx_model *m, const struct ifx_attention *a);
int32_t attention_ref(const struct attention_call *c);
/* One attention call that waits on the stream. */
struct attend_job {
    struct ifx_model *m;
    struct ifx_attention a;
    struct ifx_segment segment;
    struct ifx_work work;
};
int32_t attention_device(const struct engine_step *step, const struct ifx_attention *a);
/* A bound on the tokens of a sequence that holds for many steps: what device_attend is told. */
uint32_t attention_bound(const struct ifx_model *m, uint64_t tokens);
/* The host calls of captured attention read where the sequences stand now. */
void attention_refresh_jobs(const struct engine_step *step);

int32_t engine_index_plane(const struct ifx_services *sv, const struct ifx_segment *segment, uint32_t kv_layer,
                           struct ifx_index_plane *out);

/* tables.c */
uint64_t engine_table_cache(const struct ifx_model_options *o);
/* Host memory that tables take for steps of n columns, at most. */
uint64_t engine_tables_bytes(const struct ifx_model *m, uint32_t n, uint64_t cache_bytes);
int32_t engine_tables_create(struct ifx_model *m, uint64_t cache_bytes);
void engine_tables_destroy(struct ifx_model *m);
/* Asks for the rows of a pass; each begin has its end, which waits for what is still being read. */
int32_t engine_tables_begin(struct engine_step *step);
void engine_tables_end(struct ifx_model *m);
int32_t engine_table_rows(const struct ifx_services *sv, uint32_t table, float *y);

/* account.c: refuses what does not fit, before weights are read; m->dense_mapped and m->kv_bytes are known */
int32_t engine_account(struct ifx_model *m, const struct ifx_model_options *o);

/* experts.c: experts on a device with memory of its own */
/* Host memory for all records, where m->moe_layers says how many and how large. */
int32_t engine_take_records(struct ifx_model *m);
/* Frames, staging and buffers out of what the device has left; after everything else has been taken. */
int32_t engine_open_offload(struct ifx_model *m, const struct ifx_model_options *o);
void engine_close_offload(struct ifx_model *m);

/* moe.c: the service of model.h */
int32_t engine_moe(const struct ifx_services *sv, uint32_t moe_layer, const float *x, uint64_t ldx, uint32_t n, float *y,
                   uint64_t ldy);

int32_t engine_moe_block(const struct ifx_services *sv, uint32_t moe_layer, const struct ifx_product *in, const struct ifx_product *out);

/* Before a pass, outside of any capture. */
int32_t engine_moe_begin(struct engine_step *step);
/* Whether a pass of at most IFX_NARROW_COLUMNS columns can be captured: no call of the service waits or asks the host then. */
bool engine_moe_capturable(const struct ifx_model *m);

/* buffers.c: all memory of the device but weights, experts and KV pages */
int32_t step_buffers_create(struct ifx_model *m);
void step_buffers_destroy(struct ifx_model *m);

/* graph.c */
/* Runs the family, or launches what was captured of it. */
int32_t engine_forward(struct engine_step *es, const struct ifx_step *step);
void engine_graphs_destroy(struct ifx_model *m);

/* sampler.c */
const struct ifx_sampling *sampler_settings(const struct ifx_sampler *s);
/* What penalties look at, [vocab] as in struct ifx_sample; NULL: there are none. */
const uint32_t *sampler_history(const struct ifx_sampler *s);
/* Whether a device's copy of the history is what the history is. */
bool sampler_copied(const struct ifx_sampler *s, const void *copy);
/* A device has picked a token, by a copy of the history which counts it by now.  copy NULL: there is no copy any more. */
void sampler_counted(struct ifx_sampler *s, const void *copy, int32_t token);
double sampler_draw(struct ifx_sampler *s);

/* step.c */
/* Runs one pass and gives each item its status; the caller holds the lock and has checked the items and reserved their pages. */
int32_t engine_run_step(struct engine_step *step);

/* results.c */
/* The random number of item i's pick, when it is the device that picks. */
float engine_pick_draw(struct engine_step *es, uint32_t i);
/* Picks on the device, and what the host wants to see on its way back. */
int32_t engine_results_enqueue(struct engine_step *es, const float *logits);
/* After the stream has been waited for: checks and hands out rows and tokens. */
void engine_results_finish(struct engine_step *es, const float *logits);
/* The item's sequence cannot go on; the reason is in the error record. */
void engine_break_item(struct ifx_batch_item *it, int32_t status);

/* step.c */
/* Column t of the n that a service sees is not finite after (or in) a layer. */
void engine_bad_column(struct engine_step *step, uint32_t n, uint32_t t, int32_t layer);
/* True when all values are finite. */
bool engine_finite(const float *x, uint64_t n);

/* batch.c */
/* Gives an item its status and, from the error record, its text. */
void engine_fail_item(struct ifx_batch_item *it, int32_t status);
/* Feeds tokens and picks the next one; the rows stay where they are. */
int32_t engine_feed_pick(struct ifx_sequence *s, const int32_t *tokens, uint64_t n, struct ifx_sampler *sampler, int32_t *token);

/* generation_config.c */
int32_t engine_read_stop_ids(struct ifx_model *m);

#endif
