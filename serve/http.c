/* SPDX-License-Identifier: Apache-2.0
 *
 * http.c - a request from its first byte to its last: body, checks, endpoint, answer; and the clock that ends clients who are too slow.
 *
 * Every connection has a thread of its own, so an endpoint may wait for its tokens.  A client that goes away is noticed by looking at the
 * socket while waiting.
 */
#include "config.h"
#include "internal.h"
#include "reply.h"
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#define DRAIN_FACTOR 8u /* a body up to so many limits long is read to its end, so that its sender sees the answer */

/* ---- connections ---- */

void http_connection(void *cls, struct MHD_Connection *c, void **state, enum MHD_ConnectionNotificationCode what)
{
    struct serve *s = cls;
    struct conn *k = *state;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        k = base_calloc(1, sizeof *k);
        *state = k;
        if (k == NULL)
            return;
        k->fd = info != NULL ? info->connect_fd : -1;
        k->since = base_now();
        pthread_mutex_lock(&s->lock);
        k->next = s->conns;
        k->at = &s->conns;
        if (k->next != NULL)
            k->next->at = &k->next;
        s->conns = k;
        s->n_conns++;
        pthread_mutex_unlock(&s->lock);
    } else if (k != NULL) {
        pthread_mutex_lock(&s->lock);
        *k->at = k->next;
        if (k->next != NULL)
            k->next->at = k->at;
        s->n_conns--;
        pthread_mutex_unlock(&s->lock);
        base_free(k);
        *state = NULL;
    }
}

static struct conn *conn_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info != NULL ? info->socket_context : NULL;
}

static void enter(struct serve *s, struct conn *k, enum conn_phase phase)
{
    if (k == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    k->phase = phase;
    k->since = base_now();
    pthread_mutex_unlock(&s->lock);
}

void *http_uri(void *cls, const char *uri, struct MHD_Connection *c)
{
    (void)uri;
    enter(cls, conn_of(c), CONN_HEADERS);
    return NULL;
}

/* Cuts clients that let a request trickle in.  A connection that is only open gets twice the time. */
void http_watch(struct serve *s)
{
    double now = base_now();
    pthread_mutex_lock(&s->lock);
    for (struct conn *k = s->conns; k != NULL; k = k->next) {
        double limit = s->o.client_timeout * (k->phase == CONN_IDLE ? 2 : 1);
        if (k->phase != CONN_BUSY && k->fd >= 0 && now - k->since > limit) {
            shutdown(k->fd, SHUT_RDWR);
            k->since = now;
        }
    }
    pthread_mutex_unlock(&s->lock);
}

bool client_gone(const struct exchange *x)
{
    struct pollfd p = {.fd = x->conn != NULL ? x->conn->fd : -1, .events = POLLRDHUP};
    if (p.fd < 0)
        return false;
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

/* ---- answers ---- */

void answer_queue(struct exchange *x, unsigned status, struct MHD_Response *r)
{
    const char *origin = guard_origin(x->serve, x->mhd);
    if (r == NULL)
        return;
    MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    if (origin != NULL) {
        MHD_add_response_header(r, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        MHD_add_response_header(r, MHD_HTTP_HEADER_VARY, "Origin");
    }
    x->status = status;
    x->queued = MHD_queue_response(x->mhd, status, r) == MHD_YES;
    MHD_destroy_response(r);
}

static struct MHD_Response *response(const char *type, const char *text, uint64_t n)
{
    struct MHD_Response *r = MHD_create_response_from_buffer((size_t)n, (void *)text, MHD_RESPMEM_MUST_COPY);
    if (r != NULL)
        MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    return r;
}

void answer_text(struct exchange *x, unsigned status, const char *type, const char *text, uint64_t n)
{
    answer_queue(x, status, response(type, text, n));
}

static void answer_dumped(struct exchange *x, unsigned status, json_t *value)
{
    char *text = value != NULL ? json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    static const char none[] = "{\"error\":{\"message\":\"no memory\",\"type\":\"server_error\",\"param\":null,\"code\":null}}";
    struct MHD_Response *r = response("application/json", text ? text : none, text ? strlen(text) : sizeof none - 1);
    status = text != NULL ? status : MHD_HTTP_INTERNAL_SERVER_ERROR;
    if (r != NULL && (status == 429 || status == 503))
        MHD_add_response_header(r, MHD_HTTP_HEADER_RETRY_AFTER, status == 429 ? "1" : "5");
    if (r != NULL && status == 401)
        MHD_add_response_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    answer_queue(x, status, r);
    free(text);
    json_decref(value);
}

void answer_json(struct exchange *x, unsigned status, json_t *value)
{
    answer_dumped(x, status, value);
}

static const char *error_type(enum serve_api api, unsigned status)
{
    bool anthropic = api == API_ANTHROPIC;
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return anthropic ? "not_found_error" : "invalid_request_error";
    case 413: return anthropic ? "request_too_large" : "invalid_request_error";
    case 429: return "rate_limit_error";
    case 503: return anthropic ? "overloaded_error" : "server_error";
    case 504: return anthropic ? "timeout_error" : "server_error";
    default: return status < 500 ? "invalid_request_error" : anthropic ? "api_error" : "server_error";
    }
}

json_t *error_object(enum serve_api api, unsigned status, const char *param, const char *code, const char *text)
{
    char safe[1024];
    size_t n = strlen(text);
    n = n < sizeof safe - 1 ? n : sizeof safe - 1;
    memcpy(safe, text, n);
    safe[n] = 0;
    for (size_t i = 0; !base_utf8_valid(safe, n) && i < n; i++)
        safe[i] = (unsigned char)safe[i] < 0x80 ? safe[i] : '?'; /* cut inside a character */
    if (api == API_ANTHROPIC)
        return json_pack("{s:s, s:{s:s, s:s}}", "type", "error", "error", "type", error_type(api, status), "message", safe);
    return json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", safe, "type", error_type(api, status), "param", param, "code",
                     code);
}

void answer_error(struct exchange *x, unsigned status, const char *param, const char *code, const char *format, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    answer_dumped(x, status, error_object(x->endpoint != NULL ? x->endpoint->api : API_OPENAI, status, param, code, text));
}

uint64_t error_field(const char *text)
{
    uint64_t n = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_$.[]");
    return n > 0 && text[n] == ':' ? n : 0;
}

unsigned error_http_status(int32_t status)
{
    switch (status) {
    case IFX_EINVAL: case IFX_EUNSUPPORTED: case IFX_EFORMAT: case IFX_ELIMIT: case IFX_ENOTFOUND: return 400;
    case IFX_ECANCELLED: return 503;
    default: return 500;
    }
}

void answer_failure(struct exchange *x, int32_t status)
{
    const char *text = base_error_text();
    char field[128] = "";
    uint64_t n = error_field(text);
    if (n > 0 && n < sizeof field)
        snprintf(field, sizeof field, "%.*s", (int)n, text);
    answer_error(x, error_http_status(status), field[0] ? field : NULL, NULL, "%s", text[0] ? text : "failed");
}

/* ---- one request ---- */

static const struct endpoint *find_endpoint(const char *url, const char *method, bool *path_known)
{
    const struct endpoint *found = NULL;
    *path_known = false;
    for (uint32_t i = 0; i < n_endpoints; i++) {
        const struct endpoint *e = &endpoints[i];
        size_t n = strlen(e->path);
        bool prefix = n > 1 && e->path[n - 1] == '/';
        if (prefix ? strncmp(url, e->path, n) != 0 : strcmp(url, e->path) != 0)
            continue;
        *path_known = true;
        if (found == NULL || strcmp(method, e->method) == 0)
            found = e; /* its API shapes the error too */
    }
    return found;
}

static bool json_content(struct MHD_Connection *c)
{
    const char *type = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_TYPE);
    if (type == NULL)
        return true;
    size_t n = strcspn(type, "; ");
    return (n == 16 && strncasecmp(type, "application/json", n) == 0) || (n > 5 && strncasecmp(type + n - 5, "+json", 5) == 0);
}

/* A page's question whether it may ask. */
static void answer_preflight(struct exchange *x)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT);
    if (r != NULL && guard_origin(x->serve, x->mhd) != NULL) {
        MHD_add_response_header(r, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, OPTIONS");
        MHD_add_response_header(r, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_HEADERS,
                                "Authorization, Content-Type, x-api-key, anthropic-version, anthropic-beta");
        MHD_add_response_header(r, MHD_HTTP_HEADER_ACCESS_CONTROL_MAX_AGE, "600");
    }
    answer_queue(x, MHD_HTTP_NO_CONTENT, r);
}

static void dispatch(struct exchange *x, bool path_known)
{
    struct serve *s = x->serve;
    const char *coding = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_ENCODING);
    bool get = strcmp(x->method, "GET") == 0 || strcmp(x->method, "HEAD") == 0;
    bool method = x->endpoint != NULL && strcmp(x->endpoint->method, strcmp(x->method, "HEAD") == 0 ? "GET" : x->method) == 0;
    if (!guard_host(s, x->mhd))
        answer_error(x, 403, NULL, "host_not_allowed", "this Host is not served here; --allow-host adds one");
    else if (strcmp(x->method, "OPTIONS") == 0)
        answer_preflight(x);
    else if (!path_known)
        answer_error(x, 404, NULL, "not_found", "there is nothing at this path");
    else if (!method)
        answer_error(x, 405, NULL, "method_not_allowed", "%s is asked for with %s", x->endpoint->path, x->endpoint->method);
    else if (!x->endpoint->open && !guard_key(s, x->mhd))
        answer_error(x, 401, NULL, "invalid_api_key", "the API key is missing or wrong; send it as \"Authorization: Bearer KEY\"");
    else if (x->too_big)
        answer_error(x, 413, NULL, "request_too_large", "the body is longer than %llu bytes (--max-body)", (unsigned long long)s->o.max_body);
    else if (!get && coding != NULL && strcasecmp(coding, "identity") != 0)
        answer_error(x, 415, NULL, "unsupported_encoding", "Content-Encoding %.40s is not read here; send the body as it is", coding);
    else if (!get && !json_content(x->mhd))
        answer_error(x, 415, NULL, "unsupported_media_type", "Content-Type: application/json is expected");
    else
        x->endpoint->answer(x);
}

static struct exchange *begin(struct serve *s, struct MHD_Connection *c, const char *url, const char *method)
{
    struct exchange *x = base_calloc(1, sizeof *x);
    if (x == NULL)
        return NULL;
    x->serve = s;
    x->mhd = c;
    x->conn = conn_of(c);
    x->started = base_now();
    x->method = base_strdup(method);
    x->url = base_strdup(url);
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *a = info != NULL ? info->client_addr : NULL;
    if (a != NULL && a->sa_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)a)->sin_addr, x->address, sizeof x->address);
    else if (a != NULL && a->sa_family == AF_INET6)
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, x->address, sizeof x->address);
    pthread_mutex_lock(&s->lock);
    s->n_exchanges++;
    pthread_mutex_unlock(&s->lock);
    if (x->method == NULL || x->url == NULL) {
        void *state = x;
        http_completed(s, c, &state, MHD_REQUEST_TERMINATED_WITH_ERROR);
        return NULL;
    }
    return x;
}

static bool expects_continue(struct MHD_Connection *c)
{
    return MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_EXPECT) != NULL;
}

/* Headers are here.  Answers before the body only where the body would be too much to read; the connection ends then. */
static enum MHD_Result head(struct exchange *x)
{
    struct serve *s = x->serve;
    bool known;
    const char *length = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    unsigned long long n = length != NULL ? strtoull(length, NULL, 10) : 0;
    x->endpoint = find_endpoint(x->url, x->method, &known);
    enter(s, x->conn, CONN_BODY);
    x->too_big = n > s->o.max_body;
    x->discard = x->too_big || (x->endpoint != NULL && !x->endpoint->open && !guard_key(s, x->mhd)) || !guard_host(s, x->mhd);
    if (n > DRAIN_FACTOR * s->o.max_body || (x->discard && expects_continue(x->mhd)))
        dispatch(x, known);
    return MHD_YES;
}

static enum MHD_Result take_body(struct exchange *x, const char *data, size_t n)
{
    uint64_t most = x->serve->o.max_body;
    x->received += n;
    if (x->received > most)
        x->too_big = x->discard = true;
    if (x->discard) {
        base_buf_free(&x->body);
        return x->received > DRAIN_FACTOR * most ? MHD_NO : MHD_YES;
    }
    return base_buf_add(&x->body, data, n) ? MHD_NO : MHD_YES;
}

enum MHD_Result http_handle(void *cls, struct MHD_Connection *c, const char *url, const char *method, const char *version,
                            const char *data, size_t *size, void **state)
{
    struct serve *s = cls;
    struct exchange *x = *state;
    (void)version;
    if (x == NULL) {
        x = begin(s, c, url, method);
        *state = x;
        return x != NULL ? head(x) : MHD_NO;
    }
    if (*size > 0) {
        enum MHD_Result r = x->queued ? MHD_YES : take_body(x, data, *size);
        *size = 0;
        return r;
    }
    if (x->queued)
        return MHD_YES;
    bool known;
    find_endpoint(x->url, x->method, &known);
    enter(s, x->conn, CONN_BUSY);
    MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, 0u); /* the time that an endpoint takes is not the client's */
    base_error_clear();
    dispatch(x, known);
    MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)s->o.client_timeout + 1u);
    return x->queued ? MHD_YES : MHD_NO;
}

void http_completed(void *cls, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode why)
{
    struct serve *s = cls;
    struct exchange *x = *state;
    (void)c;
    if (x == NULL)
        return;
    if (x->reply != NULL)
        reply_close(x->reply);
    log_exchange(s, x, why == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    enter(s, x->conn, CONN_IDLE);
    uint32_t e = x->endpoint != NULL ? (uint32_t)(x->endpoint - endpoints) : n_endpoints;
    static const unsigned codes[SERVE_CODES] = {200, 204, 400, 401, 403, 404, 405, 413, 415, 429, 499, 500, 503, 504, 0};
    unsigned code = why == MHD_REQUEST_TERMINATED_COMPLETED_OK ? x->status : 499;
    uint32_t k = 0;
    while (codes[k] != 0 && codes[k] != code)
        k++;
    pthread_mutex_lock(&s->lock);
    s->counts[e][k]++;
    s->n_exchanges--;
    pthread_mutex_unlock(&s->lock);
    base_buf_free(&x->body);
    base_free(x->method);
    base_free(x->url);
    base_free(x->log_prompt);
    base_free(x->log_answer);
    base_free(x);
    *state = NULL;
}
