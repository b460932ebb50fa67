/* SPDX-License-Identifier: Apache-2.0
 *
 * harness.c - see harness.h.
 */
#include "config.h"
#include "harness.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void open_model(struct rig *r, const char *device, uint64_t vram, uint32_t ctx, uint32_t chunk, uint64_t cache)
{
    /* Under valgrind threads take turns: one that spins keeps the others waiting. */
    struct ifx_context_options co = {.plugin_path = IFX_PLUGINS, .threads = getenv("SERVE_TEST_SLOW") ? 1 : 2};
    struct ifx_model_options mo = {.device = device, .ctx = ctx ? ctx : 2048, .prefill_chunk = chunk == EXACT ? 64 : chunk, .max_sequences = 8,
                                   .prefix_cache_bytes = cache, .offload = {.deterministic = chunk == EXACT, .vram_budget = vram, .no_expert_state = true}};
    char *path = NULL;
    *r = (struct rig){0};
    if (access(IFX_DEMO, R_OK) == 0)
        mo.path = IFX_DEMO;
    else
        mo.path = getenv("IFX_DEMO_CHECKPOINT");
    if (mo.path == NULL) {
        print_message("no demo model in the tree and IFX_DEMO_CHECKPOINT is not set\n");
        skip();
    }
    base_log_set_level(IFX_LOG_ERROR);
    OK(ifx_context_create(&co, &r->ctx));
    OK(ifx_model_open(r->ctx, &mo, &r->model));
    base_free(path);
    r->o = (struct serve_options){.model = r->model, .model_name = "demo", .host = "127.0.0.1", .show_reasoning = true, .max_concurrency = 8,
                                  .max_queue = 16, .max_connections = 128, .max_body = 1 << 20, .queue_timeout = 200, .client_timeout = 10,
                                  .drain_timeout = 5};
    ifx_sampling_default(r->model, &r->o.sampling);
}

void rig_model(struct rig *r, uint32_t ctx, uint32_t chunk, uint64_t cache)
{
    open_model(r, "cpu", 0, ctx, chunk, cache);
}

void rig_model_offloaded(struct rig *r, uint64_t vram)
{
    open_model(r, "sim,link=0,latency=0", vram, 1024, 128, 0);
}

void rig_serve(struct rig *r)
{
    OK(serve_start(&r->o, &r->serve));
    r->port = serve_port(r->serve);
    assert_int_not_equal(r->port, 0);
}

void rig_stop(struct rig *r)
{
    serve_stop(r->serve);
    r->serve = NULL;
}

void rig_close(struct rig *r)
{
    rig_stop(r);
    if (r->model)
        ifx_model_close(r->model);
    if (r->ctx)
        ifx_context_destroy(r->ctx);
}

int32_t rig_force(void *ctx, const json_t *body, int32_t **ids, uint64_t *n)
{
    struct rig *r = ctx;
    const json_t *messages = json_object_get(body, "messages");
    const json_t *content = json_object_get(json_array_get(messages, json_array_size(messages) - 1), "content");
    if (json_is_array(content))
        content = json_object_get(json_array_get(content, 0), "text");
    const char *text = json_string_value(content);
    if (text == NULL || strncmp(text, "FORCE:", 6) != 0)
        return IFX_OK;
    return text_encode(ifx_model_tokenizer(r->model), text + 6, strlen(text + 6), 0, ids, n);
}

/* ---- client ---- */

int dial(const struct rig *r)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(r->port)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0)
        FAIL("cannot connect to port %u", r->port);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

void send_bytes(int fd, const void *bytes, size_t n)
{
    const char *p = bytes;
    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k <= 0)
            return; /* the server may have had enough: what it says decides */
        p += k;
        n -= (size_t)k;
    }
}

void send_text(int fd, const char *text)
{
    send_bytes(fd, text, strlen(text));
}

static ssize_t more(int fd, struct base_buf *b)
{
    char part[65536];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int seconds = getenv("SERVE_TEST_SLOW") ? 200 : 20;
    if (poll(&p, 1, seconds * 1000) <= 0)
        FAIL("no answer within %d seconds", seconds);
    ssize_t n = recv(fd, part, sizeof part, 0);
    if (n > 0)
        assert_int_equal(base_buf_add(b, part, (uint64_t)n), 0);
    return n;
}

/* Takes the chunks out of b from `from` on; true when the last was there. */
static bool unchunk(const struct base_buf *b, uint64_t from, struct base_buf *out, uint64_t *end)
{
    out->len = 0;
    for (;;) {
        char *line = from < b->len ? memchr(b->data + from, '\n', b->len - from) : NULL;
        if (line == NULL)
            return false;
        unsigned long n = strtoul(b->data + from, NULL, 16);
        from = (uint64_t)(line - b->data) + 1;
        if (b->len < from + n + 2)
            return false;
        base_buf_add(out, b->data + from, n);
        from += n + 2;
        *end = from;
        if (n == 0)
            return true;
    }
}

static bool has_header(const char *head, const char *text)
{
    return strcasestr(head, text) != NULL;
}

struct answer receive(int fd)
{
    struct answer a = {0};
    struct base_buf b = {0};
    char *end = NULL;
    while (end == NULL) {
        if (more(fd, &b) <= 0) {
            base_buf_free(&b);
            return a;
        }
        end = memmem(b.data, b.len, "\r\n\r\n", 4);
        if (end != NULL && strncmp(b.data, "HTTP/1.1 100", 12) == 0) {
            uint64_t rest = b.len - (uint64_t)(end + 4 - b.data);
            memmove(b.data, end + 4, rest);
            b.len = rest;
            b.data[rest] = 0;
            end = memmem(b.data, b.len, "\r\n\r\n", 4);
        }
    }
    uint64_t head = (uint64_t)(end + 4 - b.data), chunk_end = 0;
    a.head = base_format("%.*s", (int)head, b.data);
    a.status = atoi(b.data + 9);
    const char *length = strcasestr(a.head, "content-length:");
    base_buf_add(&a.body, "", 0);
    if (has_header(a.head, "transfer-encoding: chunked")) {
        while (!unchunk(&b, head, &a.body, &chunk_end))
            if (more(fd, &b) <= 0)
                break;
    } else {
        uint64_t n = length != NULL ? strtoull(length + 15, NULL, 10) : 0;
        while (b.len < head + n && more(fd, &b) > 0)
            ;
        base_buf_add(&a.body, b.data + head, b.len - head < n ? b.len - head : n);
    }
    base_buf_free(&b);
    if (a.body.data != NULL)
        a.json = json_loadb(a.body.data, a.body.len, JSON_DECODE_ANY, NULL);
    return a;
}

void answer_free(struct answer *a)
{
    base_free(a->head);
    base_buf_free(&a->body);
    json_decref(a->json);
    *a = (struct answer){0};
}

void send_post(int fd, const char *path, const char *headers, const char *body, size_t n)
{
    char head[2048];
    snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n%s\r\n", path, n,
             headers != NULL ? headers : "");
    send_text(fd, head);
    send_bytes(fd, body, n);
}

struct answer ask(const struct rig *r, const char *method, const char *path, const char *headers, const char *body)
{
    char *head = base_format("%s %s HTTP/1.1\r\n%s%s", method, path, headers != NULL && strcasestr(headers, "host:") ? "" : "Host: localhost\r\n",
                             headers != NULL ? headers : "");
    int fd = dial(r);
    send_text(fd, head);
    if (body != NULL) {
        char length[64];
        snprintf(length, sizeof length, "Content-Length: %zu\r\n\r\n", strlen(body));
        send_text(fd, length);
        send_text(fd, body);
    } else {
        send_text(fd, "\r\n");
    }
    base_free(head);
    struct answer a = receive(fd);
    close(fd);
    return a;
}

struct answer post(const struct rig *r, const char *path, const char *body)
{
    return ask(r, "POST", path, "Content-Type: application/json\r\n", body);
}

json_t *post_json(const struct rig *r, const char *path, const char *body, int status)
{
    struct answer a = post(r, path, body);
    if (a.status != status)
        FAIL("%s %s: expected status %d, got %d: %s", path, body, status, a.status, a.body.data ? a.body.data : "");
    if (a.json == NULL)
        FAIL("%s: the answer is not JSON: %s", path, a.body.data);
    json_t *v = json_incref(a.json);
    answer_free(&a);
    return v;
}

const json_t *at(const json_t *v, const char *path)
{
    char name[64];
    while (*path != 0 && v != NULL) {
        size_t n = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)n, path);
        v = json_is_array(v) ? json_array_get(v, (size_t)atoi(name)) : json_object_get(v, name);
        path += n + (path[n] == '.');
    }
    return v;
}

static void show(const json_t *v, const char *path, const char *what)
{
    char *text = json_dumps(v, JSON_ENCODE_ANY);
    FAIL("%s is no %s in %s", path, what, text);
}

const char *text_at(const json_t *v, const char *path)
{
    const json_t *s = at(v, path);
    if (!json_is_string(s))
        show(v, path, "string");
    return json_string_value(s);
}

int64_t int_at(const json_t *v, const char *path)
{
    const json_t *s = at(v, path);
    if (!json_is_integer(s))
        show(v, path, "number");
    return json_integer_value(s);
}

json_t *events(const char *body)
{
    json_t *list = json_array();
    for (const char *p = body; p != NULL && *p != 0;) {
        const char *end = strstr(p, "\n\n");
        size_t n = end != NULL ? (size_t)(end - p) : strlen(p);
        if (!base_utf8_valid(p, n))
            FAIL("an event is not valid UTF-8: %.*s", (int)n, p);
        const char *data = memmem(p, n, "data: ", 6);
        if (data != NULL) {
            size_t len = n - (size_t)(data + 6 - p);
            json_t *v = json_loadb(data + 6, len, JSON_DECODE_ANY, NULL);
            json_array_append_new(list, v != NULL ? v : json_stringn(data + 6, len));
        }
        p = end != NULL ? end + 2 : NULL;
    }
    return list;
}

char *stream_text(const json_t *list, const char *path)
{
    struct base_buf b = {0};
    const json_t *e;
    size_t i;
    base_buf_add(&b, "", 0);
    json_array_foreach(list, i, e) {
        const json_t *s = at(e, path);
        if (json_is_string(s))
            base_buf_add(&b, json_string_value(s), json_string_length(s));
    }
    return b.data != NULL ? b.data : base_strdup("");
}

double metric(const struct rig *r, const char *name)
{
    struct answer a = ask(r, "GET", "/metrics", NULL, NULL);
    char *line = base_format("\ninfernix_%s ", name);
    const char *found = a.body.data != NULL ? strstr(a.body.data, line) : NULL;
    if (found == NULL)
        FAIL("no metric %s", name);
    double v = strtod(found + strlen(line), NULL);
    base_free(line);
    answer_free(&a);
    return v;
}

bool wait_metric(const struct rig *r, const char *name, double value, double seconds)
{
    for (double until = base_now() + seconds; base_now() < until; usleep(20000))
        if (metric(r, name) == value)
            return true;
    return metric(r, name) == value;
}
