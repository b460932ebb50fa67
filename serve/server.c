/* SPDX-License-Identifier: Apache-2.0
 *
 * server.c - start, drain, stop; the table of endpoints.
 */
#include "config.h"
#include "internal.h"
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

const struct endpoint endpoints[] = {
    {"GET", "/", page_root, API_OPENAI, true, "page"},
    {"GET", "/health", status_health, API_OPENAI, true, "health"},
    {"GET", "/metrics", status_metrics, API_OPENAI, false, "metrics"},
    {"POST", "/v1/chat/completions", openai_chat, API_OPENAI, false, "chat_completions"},
    {"POST", "/v1/completions", openai_completions, API_OPENAI, false, "completions"},
    {"GET", "/v1/models", openai_models, API_OPENAI, false, "models"},
    {"GET", "/v1/models/", openai_model, API_OPENAI, false, "model"},
    {"POST", "/v1/messages", anthropic_messages, API_ANTHROPIC, false, "messages"},
    {"POST", "/v1/messages/count_tokens", anthropic_count, API_ANTHROPIC, false, "count_tokens"},
    {"POST", "/tokenize", tokens_tokenize, API_OPENAI, false, "tokenize"},
    {"POST", "/detokenize", tokens_detokenize, API_OPENAI, false, "detokenize"},
};
const uint32_t n_endpoints = sizeof endpoints / sizeof endpoints[0];

static void pause_for(double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

static void *watch(void *ctx)
{
    struct serve *s = ctx;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        bool stop = s->stopping;
        pthread_mutex_unlock(&s->lock);
        if (stop)
            return NULL;
        http_watch(s);
        pause_for(0.1);
    }
}

static int32_t open_chat(struct serve *s)
{
    int32_t st = IFX_OK;
    s->tokenizer = ifx_model_tokenizer(s->o.model);
    if (s->tokenizer == NULL)
        return base_error(IFX_ENOTFOUND, "%s has no tokenizer.json: it cannot be served", s->info.path);
    if (s->o.chat_template != NULL) {
        st = text_chat_create(s->tokenizer, s->o.chat_template, &s->own_chat);
        s->chat = s->own_chat;
        return st ? base_error_prefix(st, "--chat-template") : IFX_OK;
    }
    if (ifx_model_chat(s->o.model, &s->chat)) {
        s->chat = NULL;
        base_fallback("serve-chat", "chat is not served: %s", base_error_text());
        s->chat_error = base_strdup(base_error_text());
        st = s->chat_error != NULL ? IFX_OK : IFX_ENOMEM;
    }
    return st;
}

static void on_mhd_log(void *cls, const char *format, va_list ap)
{
    (void)cls;
    char text[512];
    vsnprintf(text, sizeof text, format, ap);
    text[strcspn(text, "\n")] = 0;
    base_log(IFX_LOG_DEBUG, "http: %s", text);
}

static int32_t resolve(const struct serve_options *o, struct addrinfo **out)
{
    char port[8];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV};
    bool local = strcmp(o->host, "localhost") == 0;
    snprintf(port, sizeof port, "%u", (unsigned)o->port);
    int e = getaddrinfo(local ? "127.0.0.1" : o->host, port, &hints, out);
    if (e != 0)
        return base_error(IFX_EINVAL, "--host: %s is no address of this machine (an IPv4 or IPv6 address, or localhost): %s", o->host, gai_strerror(e));
    return IFX_OK;
}

static bool is_any(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr == htonl(INADDR_ANY);
    return memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, &in6addr_any, sizeof in6addr_any) == 0;
}

static int32_t listen_on(struct serve *s)
{
    struct addrinfo *a = NULL;
    int32_t st = resolve(&s->o, &a);
    if (st)
        return st;
    s->any_address = is_any(a->ai_addr);
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL | MHD_USE_ERROR_LOG;
    if (a->ai_family == AF_INET6)
        flags |= MHD_USE_IPv6;
    errno = 0;
    s->daemon = MHD_start_daemon(flags, s->o.port, NULL, NULL, http_handle, s,
                                 MHD_OPTION_EXTERNAL_LOGGER, on_mhd_log, NULL,
                                 MHD_OPTION_SOCK_ADDR, a->ai_addr,
                                 MHD_OPTION_NOTIFY_COMPLETED, http_completed, s,
                                 MHD_OPTION_NOTIFY_CONNECTION, http_connection, s,
                                 MHD_OPTION_URI_LOG_CALLBACK, http_uri, s,
                                 MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->o.max_connections,
                                 MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)s->o.client_timeout + 1u,
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)32768,
                                 MHD_OPTION_THREAD_STACK_SIZE, (size_t)2 << 20,
                                 MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u,
                                 MHD_OPTION_END);
    int e = errno;
    freeaddrinfo(a);
    if (s->daemon == NULL)
        return base_error(IFX_EIO, "cannot listen on %s port %u: %s", s->o.host, (unsigned)s->o.port, e ? strerror(e) : "the HTTP library refused");
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    s->port = info != NULL && info->port != 0 ? info->port : s->o.port;
    return IFX_OK;
}

int32_t serve_start(const struct serve_options *o, struct serve **out)
{
    struct serve *s = base_calloc(1, sizeof *s);
    *out = NULL;
    if (s == NULL)
        return IFX_ENOMEM;
    s->o = *o;
    s->log_fd = -1;
    s->started = base_now();
    s->started_at = (int64_t)time(NULL);
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->lexicon_lock, NULL);
    ifx_model_info(o->model, &s->info);
    int32_t st = open_chat(s);
    if (!st)
        st = log_open(s);
    struct scheduler_options so = {.model = o->model, .pool = o->pool, .max_concurrency = o->max_concurrency, .max_queue = o->max_queue};
    if (!st)
        st = scheduler_create(&so, &s->scheduler);
    if (!st)
        st = listen_on(s);
    if (!st && pthread_create(&s->watchdog, NULL, watch, s) != 0)
        st = base_error(IFX_ELIMIT, "cannot start a thread");
    else
        s->watching = !st;
    if (st) {
        serve_stop(s);
        return st;
    }
    *out = s;
    return IFX_OK;
}

uint16_t serve_port(const struct serve *s)
{
    return s->port;
}

void serve_drain(struct serve *s)
{
    pthread_mutex_lock(&s->lock);
    s->draining = true;
    pthread_mutex_unlock(&s->lock);
}

const char *serve_broken(const struct serve *s)
{
    return scheduler_broken(s->scheduler);
}

bool serve_wait(struct serve *s, double seconds)
{
    double until = base_now() + seconds;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        bool idle = s->draining && s->n_exchanges == 0;
        pthread_mutex_unlock(&s->lock);
        if ((idle && scheduler_idle(s->scheduler)) || serve_broken(s) != NULL)
            return true;
        if (base_now() >= until)
            return false;
        pause_for(0.05);
    }
}

void serve_stop(struct serve *s)
{
    if (s == NULL)
        return;
    serve_drain(s);
    scheduler_end(s->scheduler);
    /* What was failed just now still has to reach its client. */
    for (double until = base_now() + 2; s->daemon != NULL && base_now() < until; pause_for(0.02)) {
        pthread_mutex_lock(&s->lock);
        bool idle = s->n_exchanges == 0;
        pthread_mutex_unlock(&s->lock);
        if (idle)
            break;
    }
    if (s->watching) {
        pthread_mutex_lock(&s->lock);
        s->stopping = true;
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->watchdog, NULL);
    }
    if (s->daemon != NULL)
        MHD_stop_daemon(s->daemon);
    scheduler_destroy(s->scheduler);
    text_chat_destroy(s->own_chat);
    text_lexicon_destroy(s->lexicon);
    base_free(s->chat_error);
    if (s->log_fd >= 0)
        close(s->log_fd);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->lexicon_lock);
    base_free(s);
}
