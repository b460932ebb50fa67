/* SPDX-License-Identifier: Apache-2.0
 *
 * job.h - a job from inside: between scheduler.c and decode.c.
 */
#ifndef INFERNIX_SERVE_JOB_H
#define INFERNIX_SERVE_JOB_H

#include "scheduler.h"

struct job {
    struct scheduler *scheduler;
    struct job_spec spec;
    /* under the scheduler's lock */
    enum job_state state;
    bool released; /* the consumer has gone */
    bool fresh;    /* there is news to be told */
    bool untold;   /* there is news that can wait */
    double told;
    pthread_cond_t changed;
    struct job *next; /* in the queue */
    struct job_news news;
    double submitted, started, first_token;
    /* the model thread's own */
    struct ifx_sequence *sequence;
    struct ifx_sampler *sampler;
    struct text_stream *stream;
    struct text_stop *stop;
    struct text_grammar_state *grammar_state;
    uint64_t *allowed; /* [(vocab + 63) / 64] with a grammar */
    float *logits;     /* the slot's, [vocab] */
    bool wants_row;    /* the choice needs the logits; else the engine makes it, on the device where that can */
    int32_t chosen;    /* the engine's choice */
    struct base_buf decoded, ready; /* this step's text before and after the stop strings */
    uint64_t fed;       /* tokens of the prompt that the sequence holds */
    uint64_t text_bytes;
    int32_t *tokens; /* prompt and answer so far: what the sequence holds, plus the token to feed next */
    uint64_t n_tokens, token_room;
    bool has_next;
    struct job_token picked;
    /* what decode_pick found */
    int32_t status;
    char *error;
    bool ended;
    uint32_t finish;
    int32_t stop_id;
    const char *stop_text;
};

/* decode.c: from logits to text, for one job, without the scheduler's lock; may run on any thread. */
int32_t decode_open(struct job *j, const struct ifx_model *m);
void decode_close(struct job *j);
/* Takes the next token from j->logits: sets ended and finish, or has_next; text that is final goes to j->ready. */
void decode_pick(struct job *j, struct ifx_model *m);

#endif
