/* SPDX-License-Identifier: Apache-2.0
 *
 * reply.h - a generation on its way to a client, whole or as a stream of events, in the words of an API.
 */
#ifndef INFERNIX_SERVE_REPLY_H
#define INFERNIX_SERVE_REPLY_H

#include "internal.h"

struct reply;
/* How an API says it.  The parts are called in order; each adds events to r->out.  NULL: nothing to say. */
struct reply_format {
    int32_t (*begin)(struct reply *r);
    int32_t (*thought)(struct reply *r, const char *text, uint64_t n);
    int32_t (*content)(struct reply *r, const char *text, uint64_t n);
    int32_t (*call)(struct reply *r, uint32_t index, const char *name, const char *arguments);
    int32_t (*tokens)(struct reply *r); /* log probabilities came without text */
    int32_t (*end)(struct reply *r);
    int32_t (*error)(struct reply *r, unsigned status, const char *text);
    json_t *(*whole)(struct reply *r); /* not streamed */
};

struct reply {
    struct exchange *x;
    const struct reply_format *format;
    /* what was asked for */
    json_t *body;           /* owned */
    json_t *tools;          /* owned, or NULL */
    struct job_spec spec;   /* until it is submitted */
    struct text_answer_options split;
    bool stream, include_usage, chat;
    char id[40];
    int64_t created;
    /* what came */
    struct job *job;
    struct job_news news; /* the latest; its text, tokens and error are consumed */
    struct text_answer *answer;
    struct base_buf content, thought;
    json_t *calls;       /* as the API wants them */
    json_t *logprobs;    /* entries not yet said (streams), or all */
    uint32_t n_calls;
    /* stream */
    struct base_buf out;
    uint64_t sent;
    double last_sent;
    bool ended;
    /* Anthropic: the block that is open */
    int block;
    uint32_t n_blocks;
};

/* Takes body over.  NULL: no memory. */
struct reply *reply_open(struct exchange *x, const struct reply_format *format, json_t *body, const char *id_prefix);
/* Submits the spec and answers: the whole, or the head of a stream. */
void reply_run(struct reply *r);
void reply_close(struct reply *r);
/* Adds "data: JSON\n\n", after "event: NAME\n" when there is one; gives up the reference. */
int32_t reply_event(struct reply *r, const char *name, json_t *value);
/* A prompt from messages into spec.prompt; thinking: TEXT_THINK_*. */
int32_t reply_prompt(struct reply *r, const json_t *messages, const json_t *tools, int thinking);
/* 400 context_length_exceeded in the words of F48; true when the prompt fits. */
bool reply_fits(struct reply *r);
const char *reply_finish(const struct reply *r); /* "stop", "length", "tool_calls" */
json_t *reply_logprob(const struct reply *r, const struct job_token *t);
int32_t reply_token_text(const struct reply *r, int32_t id, struct base_buf *out); /* bytes, perhaps not valid UTF-8 */
int32_t reply_thinking(const json_t *body, int *thinking);

#endif
