/* SPDX-License-Identifier: Apache-2.0
 *
 * internal.h - what the files of the server share.
 */
#ifndef INFERNIX_SERVE_INTERNAL_H
#define INFERNIX_SERVE_INTERNAL_H

#include "grammar.h"
#include "scheduler.h"
#include "serve.h"
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdatomic.h>

#define SERVE_CODES 16u

/* A client's connection, known from accept to close; under serve.lock. */
enum conn_phase { CONN_IDLE, CONN_HEADERS, CONN_BODY, CONN_BUSY };
struct conn {
    struct conn *next, **at;
    int fd;
    enum conn_phase phase;
    double since;
};

enum serve_api { API_OPENAI, API_ANTHROPIC };
struct exchange;
struct endpoint {
    const char *method, *path; /* a path that ends in a slash takes what follows */
    void (*answer)(struct exchange *x);
    enum serve_api api;
    bool open; /* without the key */
    const char *label; /* in metrics */
};

struct serve {
    struct serve_options o;
    struct ifx_model_info info;
    struct text_tokenizer *tokenizer;
    struct text_chat *chat;     /* NULL: the model cannot chat */
    struct text_chat *own_chat; /* of --chat-template */
    char *chat_error;           /* why there is none */
    pthread_mutex_t lexicon_lock;
    struct text_lexicon *lexicon; /* NULL until a grammar needs it */
    struct scheduler *scheduler;
    struct MHD_Daemon *daemon;
    uint16_t port;
    bool any_address; /* bound to all of them */
    pthread_t watchdog;
    bool watching;
    int log_fd;
    pthread_mutex_t lock;
    struct conn *conns;
    uint64_t n_conns;
    uint64_t n_exchanges; /* requests whose answer is not sent yet */
    bool draining, stopping;
    uint64_t counts[32][SERVE_CODES]; /* answers by endpoint and status */
    double started;    /* monotonic */
    int64_t started_at; /* of the calendar */
    atomic_uint_fast64_t next_id;
};

/* One request and its answer. */
struct exchange {
    struct serve *serve;
    struct MHD_Connection *mhd;
    struct conn *conn;
    const struct endpoint *endpoint; /* NULL: none */
    char *method, *url;
    struct base_buf body;
    bool begun, discard, too_big, queued;
    uint64_t received;
    unsigned status; /* of the answer */
    double started;
    struct reply *reply; /* a generation, or NULL */
    char address[INET6_ADDRSTRLEN];
    /* for the log */
    uint64_t n_prompt, n_cached, n_generated;
    const char *finish;
    char *log_prompt, *log_answer;
};

/* ---- http.c ---- */
enum MHD_Result http_handle(void *cls, struct MHD_Connection *c, const char *url, const char *method, const char *version,
                            const char *data, size_t *size, void **state);
void http_completed(void *cls, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode why);
void *http_uri(void *cls, const char *uri, struct MHD_Connection *c);
void http_connection(void *cls, struct MHD_Connection *c, void **state, enum MHD_ConnectionNotificationCode what);
void http_watch(struct serve *s);

/* ---- answers ---- */
/* Gives up the reference to `value`; NULL is answered as no memory. */
void answer_json(struct exchange *x, unsigned status, json_t *value);
void answer_text(struct exchange *x, unsigned status, const char *type, const char *text, uint64_t n);
/* The API's error object.  param: the field at fault or NULL; code: or NULL. */
void answer_error(struct exchange *x, unsigned status, const char *param, const char *code, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* From the error record: its text names the field first ("max_tokens: ..."). */
void answer_failure(struct exchange *x, int32_t status);
json_t *error_object(enum serve_api api, unsigned status, const char *param, const char *code, const char *text);
/* Length of the field's name that an error text begins with, or 0. */
uint64_t error_field(const char *text);
unsigned error_http_status(int32_t status);
/* Headers of every answer, then queue it. */
void answer_queue(struct exchange *x, unsigned status, struct MHD_Response *response);
bool client_gone(const struct exchange *x);

/* ---- guard.c ---- */
bool guard_key(const struct serve *s, struct MHD_Connection *c);
bool guard_host(const struct serve *s, struct MHD_Connection *c);
/* The value for Access-Control-Allow-Origin, or NULL. */
const char *guard_origin(const struct serve *s, struct MHD_Connection *c);
bool guard_same(const char *a, const char *b); /* in constant time */

/* ---- fields.c: members of a request; absent and null leave *out ---- */
int32_t field_number(const json_t *body, const char *name, double min, double max, double *out);
int32_t field_float(const json_t *body, const char *name, double min, double max, float *out);
int32_t field_int(const json_t *body, const char *name, int64_t min, int64_t max, int64_t *out);
int32_t field_bool(const json_t *body, const char *name, bool *out);
int32_t field_string(const json_t *body, const char *name, const char **out);
int32_t field_object(const json_t *body, const char *name, const json_t **out);
int32_t field_array(const json_t *body, const char *name, const json_t **out);
const char *json_kind(const json_t *v);
/* A string or a list of them, each not empty, into the spec's stops. */
int32_t field_stops(const json_t *body, const char *name, struct job_spec *spec);
/* temperature, top_p, top_k, min_p, penalties, seed. */
int32_t fields_sampling(const struct serve *s, const json_t *body, struct ifx_sampling *out);
/* The body as an object, or the error of what it is instead. */
int32_t body_parse(const char *data, uint64_t n, json_t **out);

/* ---- endpoints ---- */
extern const struct endpoint endpoints[];
extern const uint32_t n_endpoints;
void openai_chat(struct exchange *x);
void openai_completions(struct exchange *x);
void openai_models(struct exchange *x);
void openai_model(struct exchange *x);
void anthropic_messages(struct exchange *x);
void anthropic_count(struct exchange *x);
void tokens_tokenize(struct exchange *x);
void tokens_detokenize(struct exchange *x);
void status_health(struct exchange *x);
void status_metrics(struct exchange *x);
void page_root(struct exchange *x);

/* ---- log.c ---- */
int32_t log_open(struct serve *s);
void log_exchange(struct serve *s, const struct exchange *x, bool complete);

#endif
