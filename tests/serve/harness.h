/* SPDX-License-Identifier: Apache-2.0
 *
 * harness.h - what the server's tests share: a server in this process, and a client made of a socket, which can also misbehave.
 */
#ifndef INFERNIX_TESTS_SERVE_HARNESS_H
#define INFERNIX_TESTS_SERVE_HARNESS_H

#include "serve.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define FAIL(...)                     \
    do {                              \
        print_error(__VA_ARGS__);     \
        print_error("\n");            \
        fail();                       \
    } while (0)
#define OK(call)                                                            \
    do {                                                                    \
        int32_t ok_ = (call);                                               \
        if (ok_)                                                            \
            FAIL("%s: status %d: %s", #call, (int)ok_, base_error_text()); \
    } while (0)

struct rig {
    struct ifx_context *ctx;
    struct ifx_model *model;
    struct serve *serve;
    struct serve_options o;
    uint16_t port;
};
/* The demo model with a context of `ctx` tokens (0: 2048), steps of `chunk` (0: 512), prefix cache of `cache` bytes; skips the test without a demo.
 * chunk EXACT: steps of a page and --deterministic, so that what is taken over changes no token. */
#define EXACT UINT32_MAX
void rig_model(struct rig *r, uint32_t ctx, uint32_t chunk, uint64_t cache);
void rig_model_offloaded(struct rig *r, uint64_t vram); /* on a device with so much memory of its own */
/* Defaults in r->o, to be changed before rig_serve. */
void rig_serve(struct rig *r);
void rig_stop(struct rig *r);  /* the server */
void rig_close(struct rig *r); /* the server and the model */
/* serve_force_fn: the last user message "FORCE:text" makes the model say text. */
int32_t rig_force(void *ctx, const json_t *body, int32_t **ids, uint64_t *n);

struct answer {
    int status; /* 0: the connection ended without one */
    char *head; /* headers, 0-terminated */
    struct base_buf body;
    json_t *json; /* of the body, or NULL */
};
int dial(const struct rig *r);
void send_text(int fd, const char *text);
void send_bytes(int fd, const void *bytes, size_t n);
/* Reads one answer; 10 seconds at most. */
struct answer receive(int fd);
void answer_free(struct answer *a);
/* A request on a connection of its own.  body NULL: GET.  headers: "Name: value\r\n...", or NULL. */
struct answer ask(const struct rig *r, const char *method, const char *path, const char *headers, const char *body);
struct answer post(const struct rig *r, const char *path, const char *body);
/* post, expecting a status; the JSON of the answer, owned by the caller. */
json_t *post_json(const struct rig *r, const char *path, const char *body, int status);
void send_post(int fd, const char *path, const char *headers, const char *body, size_t n);
/* A value by path, "choices.0.message.content"; NULL when there is none. */
const json_t *at(const json_t *v, const char *path);
const char *text_at(const json_t *v, const char *path); /* fails when it is no string */
int64_t int_at(const json_t *v, const char *path);
/* The events of a stream: the JSON after each "data: ", names where there are any. */
json_t *events(const char *body);
double metric(const struct rig *r, const char *name);
/* The text of all "delta.content" (or choices.0.text) in an event list. */
char *stream_text(const json_t *events, const char *path);
bool wait_metric(const struct rig *r, const char *name, double value, double seconds);

#endif
