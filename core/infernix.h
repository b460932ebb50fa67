/* SPDX-License-Identifier: Apache-2.0
 *
 * infernix.h - all that a front end may call: one process context, models, sequences, generation.
 */
#ifndef INFERNIX_CORE_H
#define INFERNIX_CORE_H

#include "artifact.h"
#include "base.h"
#include "registry.h"
#include "text.h"

/* ---- process context ---- */
struct ifx_context_options {
    const char *plugin_path;        /* --plugin-path or NULL */
    const char *config_plugin_path; /* from the config file or NULL */
    const char *const *plugins;     /* --plugin specs, NULL-terminated, or NULL */
    const char *cpu;                /* --cpu LEVEL or NULL */
    uint32_t threads;               /* 0: usable CPUs */
    bool pin;
};
struct ifx_context;
int32_t ifx_context_create(const struct ifx_context_options *o, struct ifx_context **out);
void ifx_context_destroy(struct ifx_context *c);
struct registry *ifx_context_registry(struct ifx_context *c);
struct base_pool *ifx_context_pool(struct ifx_context *c);
/* "auto", "cpu", "ref", "cuda", "cuda:1", "sim"; behind a comma options of its plugin: "sim,vram=8G,link=26G".  Closed by its own close, before
 * the context. */
int32_t ifx_device_open(struct ifx_context *c, const char *name, struct ifx_device **out);

/* ---- model ---- */

/* A config section [assist.FORMAT]: the policy of an expert format on this machine. */
struct ifx_assist_section {
    const char *format;
    uint32_t max_columns; /* 0: not given */
    const char *ramp;     /* NULL: not given */
};
/* Experts that do not fit the device (core/offload).  Zeroed: everything at its default. */
struct ifx_offload_options {
    const char *assist;          /* NULL or "ramp", "balance", "off" */
    uint32_t assist_max_columns; /* 0: the bank's policy (or the config section of this machine) */
    const char *assist_ramp;     /* "64:77,255:104" or NULL */
    const struct ifx_assist_section *sections; /* for what the two above leave open */
    uint32_t n_sections;
    uint64_t vram_budget;        /* bytes the program may take of the device; 0: what is free */
    uint64_t ram_budget;         /* bytes of host memory; 0: what the machine and its cgroup allow */
    bool limit_pinned;           /* to most_pinned: bytes of the experts that are pinned; the others lie in pageable memory */
    uint64_t most_pinned;
    bool limit_frames;           /* to most_frames: experts kept on the device */
    uint32_t most_frames;
    uint32_t cpu_threads;        /* workers for experts; 0: all of the pool */
    bool deterministic;          /* the CPU takes only experts of at most 8 columns */
    bool no_expert_state;        /* neither read nor write MODEL.expert-state */
    const char *expert_state;    /* another file for it, or NULL */
    uint64_t promote_bytes;      /* promotion budget a round; 0: a default from the link rate */
};

/* Counters since the model was opened; all only grow. */
struct ifx_offload_stats {
    uint64_t calls, streamed_calls, assisted_calls;
    uint64_t hits, misses;               /* experts touched that were / were not in a frame */
    uint64_t link_experts, cpu_experts;  /* misses that crossed the link / that the CPU computed */
    uint64_t link_bytes, promoted_bytes; /* experts' bytes over the link in calls / in the background */
    uint64_t promotions, evictions;
    double moe_seconds, link_busy_seconds, cpu_busy_seconds; /* on the device's clock */
    uint64_t frames, frames_used, frame_bytes;               /* now, not growing */
};

/* Rows of on-disk tables since the model was opened; all only grow. */
struct ifx_table_stats {
    uint64_t rows;        /* asked for by tokens */
    uint64_t unique_rows; /* after those that a step asks for twice */
    uint64_t read_rows, read_bytes; /* not in the cache */
    double wait_seconds;  /* that layers waited for reads */
};
#define IFX_NO_TABLE_CACHE UINT64_MAX

struct ifx_model_options {
    const char *path;      /* MODEL or NULL: the demo model (installed, or in the build tree) */
    const char *device;    /* as ifx_device_open takes it */
    const char *kv_dtype;  /* NULL: "bf16", and "f32" on `ref` */
    const char *experts;   /* re-pack experts to this format at load, or NULL: as stored */
    uint32_t ctx;          /* context limit in tokens; 0: min(max_positions, 4096) */
    uint32_t prefill_chunk; /* columns a prefill step; 0: 512 */
    uint32_t max_sequences; /* 0: 1 */
    uint64_t prefix_cache_bytes; /* what snapshots for ifx_sequence_attach may take; 0: none are kept */
    bool no_graph;               /* never capture device graphs */
    uint64_t table_cache_bytes;  /* rows of on-disk tables kept in memory (--ngram-cache-mib); 0: 64 MiB, IFX_NO_TABLE_CACHE: none */
    struct ifx_offload_options offload;
    /* Load progress; may be NULL. */
    void (*progress)(void *ctx, uint64_t done, uint64_t total);
    void *progress_ctx;
};
struct ifx_model;
int32_t ifx_model_open(struct ifx_context *c, const struct ifx_model_options *o, struct ifx_model **out);
void ifx_model_close(struct ifx_model *m);
/* Path of the demo model, or an error that says where it was looked for. */
int32_t ifx_demo_path(char **out);

void ifx_table_stats(struct ifx_model *m, struct ifx_table_stats *out);

struct ifx_model_info {
    const char *path, *architecture, *family, *device, *kv_dtype, *expert_format; /* expert_format NULL: dense */
    const struct ifx_model_desc *desc;
    uint32_t ctx, prefill_chunk;
    uint64_t dense_bytes, expert_bytes, kv_bytes, state_bytes;
};
void ifx_model_info(const struct ifx_model *m, struct ifx_model_info *out);
/* Seconds of the device's clock, which a pretended device computes instead of measuring. */
double ifx_model_now(const struct ifx_model *m);
/* All 0 where every expert is computed where it lies. */
void ifx_offload_stats(struct ifx_model *m, struct ifx_offload_stats *out);
/* The policy in force: the bank's, or what options and config say instead; NULL where every expert is computed where it lies. */
const struct ifx_assist_policy *ifx_assist_policy(const struct ifx_model *m);
struct text_tokenizer *ifx_model_tokenizer(struct ifx_model *m); /* NULL: the model has none */
int32_t ifx_model_chat(struct ifx_model *m, struct text_chat **out); /* made at first use; error when the template is unknown */
/* Ids that end a generation: config, nested config, generation_config and the chat end token together. */
const int32_t *ifx_model_stop_ids(const struct ifx_model *m, uint32_t *count);

/* ---- sequence: tokens so far, KV pages, recurrent state ---- */
struct ifx_sequence;
int32_t ifx_sequence_create(struct ifx_model *m, struct ifx_sequence **out);
void ifx_sequence_destroy(struct ifx_sequence *s);
int32_t ifx_sequence_reset(struct ifx_sequence *s);
uint64_t ifx_sequence_length(const struct ifx_sequence *s);
/* Copies state and KV. */
int32_t ifx_sequence_copy(const struct ifx_sequence *from, struct ifx_sequence **out);

/* Observers for trace and tests; each may be NULL.  Called on the calling thread with host memory. */
struct ifx_observer {
    void *ctx;
    int32_t (*hidden)(void *ctx, int32_t layer, uint64_t pos0, uint32_t n, const float *x, uint32_t width);
    int32_t (*router)(void *ctx, uint32_t layer, uint64_t pos0, uint32_t n, uint32_t top_k, const int32_t *ids,
                      const float *weights);
    /* Sparse attention of a KV layer: rows[i * ld_rows ...], n_rows[i] token positions that column i sees. */
    int32_t (*selection)(void *ctx, uint32_t kv_layer, uint64_t pos0, uint32_t n, const int32_t *rows, const uint32_t *n_rows,
                         uint64_t ld_rows);
};
void ifx_sequence_observe(struct ifx_sequence *s, const struct ifx_observer *o); /* NULL: off */

/* Feeds tokens in chunks of prefill_chunk.  logits: NULL, or n_logits * vocab floats for the LAST n_logits of the tokens.  IFX_ELIMIT past the context;
 * IFX_ENONFINITE when a logit row asked for is not finite (the sequence is then unusable until reset); IFX_ECANCELLED. */
int32_t ifx_sequence_feed(struct ifx_sequence *s, const int32_t *tokens, uint64_t n, uint64_t n_logits, float *logits);
/* One step for several sequences of one model together, each at most once and with at most prefill_chunk tokens of its own: decode columns of many
 * sequences beside the next piece of a prompt.  Company changes no bit: items of at most 8 tokens go through the model side by side, at most 8 columns
 * at a time, and a longer one goes by itself, so each gets what it would get alone.
 * An item that cannot be fed or that breaks has its status and its text and does not stop the others; nothing of a refused one (IFX_EINVAL,
 * IFX_ELIMIT) is fed.  The function's own status is for what ends everything: IFX_EDEVICE and below, IFX_EINVAL for items of two models; then look at no item. */
struct ifx_sampler;
struct ifx_batch_item {
    struct ifx_sequence *sequence;
    const int32_t *tokens;
    uint32_t n;
    uint32_t n_logits; /* logit rows wanted, of the last n_logits tokens */
    float *logits; /* n_logits * vocab; host memory */
    int32_t status;
    uint32_t reserved;
    const char *error; /* the text of status, or NULL; valid until the sequence's next call */
    /* NULL, or: picks a token from the last token's logits, as ifx_sampler_pick does; on a device that can, so that only the token comes back.
     * Logits may be wanted too.  The token does not count for penalties until it is accepted. */
    struct ifx_sampler *sampler;
    int32_t token;
    uint32_t reserved2;
};
int32_t ifx_batch_feed(struct ifx_batch_item *items, uint32_t count);
/* How many of the next `left` tokens of a prompt a step should take: at most prefill_chunk; steps end where the next prompt that begins in the
 * same way would cut too, and at the last whole KV page of a prompt when prefixes are kept. */
uint32_t ifx_sequence_take(const struct ifx_sequence *s, uint64_t left);

/* ---- prefix reuse: what sequences have read is kept within prefix_cache_bytes, and a prompt that begins like it starts from there ----
 * A snapshot is the recurrent state after some tokens and the KV pages of those tokens, which it shares with the sequences that read them.
 * Prompts fed in steps of ifx_sequence_take are kept at the end of each step and at their last whole page of 64 tokens.  Nothing is kept
 * before a finite logit row proves it; nothing of a broken sequence is. */
/* Lets an empty sequence begin with the longest kept beginning of tokens[0 .. n), at most n - 1 of them: the last one has to be fed to get logits.
 * *cached: how many; the sequence then has that length, and holds exactly what the sequence had that was kept.  0 when nothing fits. */
int32_t ifx_sequence_attach(struct ifx_sequence *s, const int32_t *tokens, uint64_t n, uint64_t *cached);
/* Keeps what the sequence holds now (at the end of a turn).  Not an error when there is no room or no cache. */
int32_t ifx_sequence_publish(struct ifx_sequence *s);
struct ifx_prefix_stats {
    uint64_t lookups, hits, tokens_asked, tokens_reused; /* all of these only grow */
    uint64_t kept, evicted;
    uint64_t snapshots, bytes, bytes_limit; /* now */
};
void ifx_prefix_stats(struct ifx_model *m, struct ifx_prefix_stats *out);

/* The recurrent state of a sequence as it is now (tests); NULL when it cannot be read from the device.  Valid until the next call. */
const float *ifx_sequence_state(const struct ifx_sequence *s, uint64_t *count);

/* ---- sampling ---- */
struct ifx_sampling {
    float temperature; /* 0: greedy */
    uint32_t top_k;    /* 0: off */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    float presence_penalty, frequency_penalty; /* 0: off */
    float repetition_penalty;                  /* 1: off */
    uint64_t seed;
};
void ifx_sampling_greedy(struct ifx_sampling *s);
void ifx_sampling_default(const struct ifx_model *m, struct ifx_sampling *s); /* generation_config, else 0.7 / 0.9 / 40 */
struct ifx_sampler;
int32_t ifx_sampler_create(const struct ifx_sampling *s, uint32_t vocab, struct ifx_sampler **out);
void ifx_sampler_destroy(struct ifx_sampler *s);
/* Tokens that count for the penalties: generated ones for all three, those of a prompt for repetition only. */
void ifx_sampler_accept(struct ifx_sampler *s, int32_t token);
void ifx_sampler_prompt(struct ifx_sampler *s, const int32_t *tokens, uint64_t n);
/* Order: penalties, temperature, top-k, top-p, min-p.  The n-th pick of a seed draws the same number on every machine. */
int32_t ifx_sampler_pick(struct ifx_sampler *s, const float *logits, int32_t *token); /* logits [vocab], not changed */
/* The same among the tokens whose bit is set in allowed [(vocab + 63) / 64], bit t % 64 of word t / 64.  IFX_EINVAL when none is. */
int32_t ifx_sampler_pick_among(struct ifx_sampler *s, const float *logits, const uint64_t *allowed, int32_t *token);
/* Natural logarithms of the softmax of the logits as the model gave them: out[0] for `token`, then the n likeliest, in order. */
struct ifx_logprob {
    int32_t token;
    float logprob;
};
void ifx_logprobs(const float *logits, uint32_t vocab, int32_t token, uint32_t n, struct ifx_logprob *out);

/* ---- generation of text ---- */
#define IFX_FINISH_LENGTH    1u /* max_tokens or the context limit */
#define IFX_FINISH_STOP      2u /* stop id or stop string */
#define IFX_FINISH_CANCELLED 3u
struct ifx_generate {
    const int32_t *prompt; /* ids to feed */
    uint64_t n_prompt;
    uint64_t max_tokens; /* 0: up to the context limit */
    struct ifx_sampling sampling;
    bool ignore_stop_ids;    /* the model's own */
    const int32_t *stop_ids; /* more ids that end it; may be NULL */
    uint32_t n_stop_ids;
    bool show_special;
    const char *const *stops; /* stop strings */
    uint32_t n_stops;
    /* Text as it becomes final (valid UTF-8) and each token; nonzero cancels.  Either may be NULL. */
    int32_t (*on_text)(void *ctx, const char *text, uint64_t bytes);
    int32_t (*on_token)(void *ctx, int32_t token);
    void *ctx;
};
struct ifx_generate_result {
    uint32_t finish;
    int32_t stop_id; /* -1 when none */
    uint64_t n_prompt, n_generated;
    double prompt_seconds, decode_seconds;
};
int32_t ifx_generate(struct ifx_sequence *s, const struct ifx_generate *g, struct ifx_generate_result *r);

#endif
