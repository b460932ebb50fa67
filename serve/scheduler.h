/* SPDX-License-Identifier: Apache-2.0
 *
 * scheduler.h - jobs from the connections' threads to the one thread that runs the model, and their tokens back.
 */
#ifndef INFERNIX_SERVE_SCHEDULER_H
#define INFERNIX_SERVE_SCHEDULER_H

#include "grammar.h"
#include "infernix.h"
#include <pthread.h>

#define SERVE_MAX_TOP_LOGPROBS 20u
#define SERVE_LATENCY_BUCKETS  10u

/* What is to be generated.  Owned by the job from job_create on. */
struct job_spec {
    int32_t *prompt;
    uint64_t n_prompt;
    uint64_t stable; /* this many of them a next turn will have too, as far as the template tells */
    uint64_t max_tokens; /* 0: up to the context limit */
    struct ifx_sampling sampling;
    char **stops;
    uint32_t n_stops;
    bool ignore_stop_ids, show_special;
    bool logprobs;
    bool whole; /* the consumer is told of the end alone */
    uint32_t top_logprobs;
    struct text_grammar *grammar; /* NULL: any text */
    int32_t *forced;              /* tests: instead of the model's choice */
    uint64_t n_forced;
};
void job_spec_free(struct job_spec *s);

struct job_token {
    int32_t id;
    float logprob;
    uint64_t text_offset; /* bytes of text that were out before it */
    uint32_t n_top;
    struct ifx_logprob top[SERVE_MAX_TOP_LOGPROBS];
};

enum job_state { JOB_QUEUED, JOB_RUNNING, JOB_DONE };

struct scheduler;
struct job;

/* What a consumer takes: text and tokens since the last time, and how the job stands. */
struct job_news {
    enum job_state state;
    struct base_buf text;
    struct job_token *tokens; /* only when logprobs were asked for */
    uint64_t n_tokens;
    /* JOB_DONE */
    int32_t status; /* 0, or why it failed */
    char *error;
    uint32_t finish;      /* IFX_FINISH_* */
    int32_t stop_id;      /* -1: none */
    const char *stop_text; /* the stop string found, owned by the job; NULL: none */
    /* always */
    uint64_t n_prompt, n_cached, n_generated;
    double queued_seconds, prompt_seconds, decode_seconds;
};
void job_news_free(struct job_news *n);

struct scheduler_stats {
    uint64_t queued, running, max_concurrency;
    uint64_t prompt_tokens, prompt_tokens_computed, cached_tokens, generated_tokens;
    uint64_t steps, decode_steps, prefill_steps;
    uint64_t finished, failed, cancelled, refused;
    uint64_t prefix_hits, prefix_misses;
    double prefill_seconds, decode_seconds; /* of the model's steps */
    double recent_generated, recent_prompt; /* tokens a second over the last ten seconds */
    uint64_t first_token_counts[SERVE_LATENCY_BUCKETS + 1], first_token_count;
    double first_token_sum;
    struct ifx_prefix_stats prefix;   /* as after the last step: asking the engine itself would wait for a step */
    struct ifx_offload_stats offload;
};
extern const double scheduler_buckets[SERVE_LATENCY_BUCKETS];

struct scheduler_options {
    struct ifx_model *model;
    struct base_pool *pool; /* may be NULL */
    uint32_t max_concurrency, max_queue;
};
int32_t scheduler_create(const struct scheduler_options *o, struct scheduler **out);
/* Fails what is queued and running, then ends the thread; the handles stay valid. */
void scheduler_end(struct scheduler *s);
/* After every job was released. */
void scheduler_destroy(struct scheduler *s);
/* Takes the spec over, whatever it returns.  IFX_ELIMIT: the queue is full. */
int32_t scheduler_submit(struct scheduler *s, struct job_spec *spec, struct job **out);
/* Waits until there is news or `seconds` are over; true when there is.  Tokens that come fast are told of in groups, every 10 ms.  `news` is filled in either case; what it owns is the caller's. */
bool job_wait(struct job *j, double seconds, struct job_news *news);
/* Ends the job if it has not ended, and gives the handle up. */
void job_release(struct job *j);
void scheduler_stats(struct scheduler *s, struct scheduler_stats *out);
bool scheduler_idle(struct scheduler *s);
/* Text of a sticky device error, or NULL. */
const char *scheduler_broken(struct scheduler *s);

#endif
