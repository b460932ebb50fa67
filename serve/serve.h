/* SPDX-License-Identifier: Apache-2.0
 *
 * serve.h - the HTTP front end: all that the `serve` command may call.
 */
#ifndef INFERNIX_SERVE_H
#define INFERNIX_SERVE_H

#include "infernix.h"

struct serve;

/* What a test may put in the place of the model's choice: ids to generate, then the end token.  *n 0: the model chooses. */
typedef int32_t (*serve_force_fn)(void *ctx, const json_t *body, int32_t **ids, uint64_t *n);

struct serve_options {
    struct ifx_model *model;  /* opened for max_concurrency sequences; outlives the server */
    struct base_pool *pool;   /* threads for sampling from large vocabularies, or NULL */
    const char *model_name;   /* as clients see it */
    const char *host;         /* address to bind: IPv4, IPv6 or "localhost" */
    uint16_t port;            /* 0: any free one */
    const char *api_key;      /* NULL: none asked for */
    const char *const *allowed_hosts; /* more Host names, NULL-terminated; may be NULL */
    const char *const *cors_origins;  /* origins that may read answers, "*" for all; NULL-terminated; may be NULL */
    const char *chat_template;        /* text of another template, or NULL: the model's */
    int thinking;                     /* TEXT_THINK_*, where a request does not say */
    bool show_reasoning;              /* split thoughts from content; false: they stay in it */
    uint32_t max_concurrency;         /* sequences decoded together */
    uint32_t max_queue;               /* requests that may wait beyond them */
    uint32_t max_connections;
    uint64_t max_body;                /* bytes */
    uint64_t max_tokens;              /* of an answer whose request does not say; 0: up to the context limit */
    double queue_timeout;             /* seconds a request may wait for its turn */
    double request_timeout;           /* seconds it may take in all; 0: no limit */
    double client_timeout;            /* seconds a client may take to send a request or to take what is sent */
    double drain_timeout;             /* seconds running answers get after serve_drain */
    struct ifx_sampling sampling;     /* where a request does not say */
    const char *access_log;           /* file for one JSON line a request, "-" for standard output, or NULL */
    bool log_text;                    /* prompts and answers in it */
    serve_force_fn force;             /* tests only */
    void *force_ctx;
};

/* Listens and answers from then on.  The options are copied, what they point to is not. */
int32_t serve_start(const struct serve_options *o, struct serve **out);
uint16_t serve_port(const struct serve *s);
/* No new work: requests get 503, running ones go on.  Safe to call twice. */
void serve_drain(struct serve *s);
/* Waits up to `seconds` for the server to be idle (after serve_drain) or broken; true when it is. */
bool serve_wait(struct serve *s, double seconds);
/* The device is lost: the text of what happened; NULL while all is well. */
const char *serve_broken(const struct serve *s);
/* Ends what still runs with an error for its client, closes, frees. */
void serve_stop(struct serve *s);

#endif
