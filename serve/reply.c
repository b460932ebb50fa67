/* SPDX-License-Identifier: Apache-2.0
 *
 * reply.c - waits for a job's news and lets an API's format say it.
 */
#include "config.h"
#include "reply.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOOK_SECONDS 0.2  /* how often a waiting thread looks whether its client is still there */
#define BEAT_SECONDS 10.0 /* a stream says that it lives at least so often */

struct reply *reply_open(struct exchange *x, const struct reply_format *format, json_t *body, const char *id_prefix)
{
    struct reply *r = base_calloc(1, sizeof *r);
    if (r == NULL) {
        json_decref(body);
        return NULL;
    }
    r->x = x;
    r->format = format;
    r->body = body;
    r->block = -1;
    r->created = (int64_t)time(NULL);
    uint64_t n = atomic_fetch_add(&x->serve->next_id, 1);
    snprintf(r->id, sizeof r->id, "%s%llx%06llx", id_prefix, (unsigned long long)r->created, (unsigned long long)n);
    x->reply = r;
    return r;
}

void reply_close(struct reply *r)
{
    if (r->job != NULL)
        job_release(r->job);
    job_spec_free(&r->spec);
    text_answer_destroy(r->answer);
    base_buf_free(&r->content);
    base_buf_free(&r->thought);
    base_buf_free(&r->out);
    json_decref(r->calls);
    json_decref(r->logprobs);
    json_decref(r->tools);
    json_decref(r->body);
    base_free(r);
}

/* ---- helpers of the formats ---- */

int32_t reply_event(struct reply *r, const char *name, json_t *value)
{
    char *text = value != NULL ? json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    int32_t st = text != NULL ? IFX_OK : base_error(IFX_ENOMEM, "no memory for an event");
    if (!st && name != NULL)
        st = base_buf_addf(&r->out, "event: %s\n", name);
    if (!st)
        st = base_buf_add(&r->out, "data: ", 6);
    if (!st)
        st = base_buf_add(&r->out, text, strlen(text));
    if (!st)
        st = base_buf_add(&r->out, "\n\n", 2);
    free(text);
    json_decref(value);
    return st;
}

int32_t reply_thinking(const json_t *body, int *thinking)
{
    const json_t *kwargs = NULL;
    const char *effort = NULL;
    bool on = false;
    int32_t st = field_object(body, "chat_template_kwargs", &kwargs);
    if (!st && kwargs != NULL)
        st = field_bool(kwargs, "enable_thinking", &on);
    if (!st && json_is_boolean(json_object_get(kwargs, "enable_thinking")))
        *thinking = on ? TEXT_THINK_ON : TEXT_THINK_OFF;
    if (!st)
        st = field_bool(body, "enable_thinking", &on);
    if (!st && json_is_boolean(json_object_get(body, "enable_thinking")))
        *thinking = on ? TEXT_THINK_ON : TEXT_THINK_OFF;
    if (!st)
        st = field_string(body, "reasoning_effort", &effort);
    if (!st && effort != NULL)
        *thinking = strcmp(effort, "none") == 0 ? TEXT_THINK_OFF : TEXT_THINK_ON;
    return st;
}

int32_t reply_prompt(struct reply *r, const json_t *messages, const json_t *tools, int thinking)
{
    struct serve *s = r->x->serve;
    struct text_chat_options o = {.add_generation_prompt = true, .thinking = thinking, .tools = tools};
    if (s->chat == NULL)
        return base_error(IFX_EUNSUPPORTED, "%s", s->chat_error);
    int32_t st = text_chat_ids(s->chat, messages, &o, &r->spec.prompt, &r->spec.n_prompt);
    r->split.thought = s->o.show_reasoning;
    r->split.in_thought = text_chat_opens_thought(s->chat, &o);
    r->split.in_thought = text_chat_opens_thought(s->chat, &o);
    return st;
}

bool reply_fits(struct reply *r)
{
    struct serve *s = r->x->serve;
    if (r->spec.n_prompt == 0) {
        answer_error(r->x, 400, NULL, NULL, "the prompt is empty: there is nothing to go on from");
        return false;
    }
    if (r->spec.n_prompt <= s->info.ctx)
        return true;
    answer_error(r->x, 400, r->chat ? "messages" : "prompt", "context_length_exceeded",
                 "the prompt has %llu tokens, the context holds %u; raise it with --ctx when starting the server",
                 (unsigned long long)r->spec.n_prompt, s->info.ctx);
    return false;
}

const char *reply_finish(const struct reply *r)
{
    if (r->news.finish == IFX_FINISH_LENGTH)
        return "length";
    return r->n_calls > 0 ? "tool_calls" : "stop";
}

int32_t reply_token_text(const struct reply *r, int32_t id, struct base_buf *out)
{
    return text_token_bytes(r->x->serve->tokenizer, id, out);
}

static json_t *logprob_object(const struct reply *r, int32_t id, float logprob)
{
    struct base_buf raw = {0}, text = {0};
    json_t *bytes = json_array(), *o = NULL;
    if (!reply_token_text(r, id, &raw) && !text_decode(r->x->serve->tokenizer, &id, 1, false, &text)) {
        for (uint64_t i = 0; i < raw.len; i++)
            json_array_append_new(bytes, json_integer((unsigned char)raw.data[i]));
        o = json_pack("{s:s%, s:f, s:O}", "token", text.data ? text.data : "", (size_t)text.len, "logprob", (double)logprob, "bytes", bytes);
    }
    json_decref(bytes);
    base_buf_free(&raw);
    base_buf_free(&text);
    return o;
}

json_t *reply_logprob(const struct reply *r, const struct job_token *t)
{
    json_t *o = logprob_object(r, t->id, t->logprob), *top = json_array();
    for (uint32_t i = 0; i < t->n_top; i++)
        json_array_append_new(top, logprob_object(r, t->top[i].token, t->top[i].logprob));
    if (o == NULL || json_object_set_new(o, "top_logprobs", top) != 0) {
        json_decref(o);
        return NULL;
    }
    return o;
}

/* ---- news ---- */

static int32_t on_thought(void *ctx, const char *text, uint64_t n)
{
    struct reply *r = ctx;
    if (r->stream && r->format->thought != NULL)
        return r->format->thought(r, text, n);
    return base_buf_add(&r->thought, text, n);
}

static int32_t on_content(void *ctx, const char *text, uint64_t n)
{
    struct reply *r = ctx;
    return r->stream ? r->format->content(r, text, n) : base_buf_add(&r->content, text, n);
}

static int32_t on_call(void *ctx, uint32_t index, const char *name, const char *arguments)
{
    struct reply *r = ctx;
    r->n_calls++;
    return r->format->call(r, index, name, arguments);
}

static int32_t keep_for_log(struct reply *r, const struct base_buf *text)
{
    struct exchange *x = r->x;
    if (!x->serve->o.log_text || text->len == 0)
        return IFX_OK;
    char *all = base_format("%s%s", x->log_answer != NULL ? x->log_answer : "", text->data);
    base_free(x->log_answer);
    x->log_answer = all;
    return all != NULL ? IFX_OK : IFX_ENOMEM;
}

static int32_t keep_logprob(struct reply *r, const struct job_token *t)
{
    json_t *o = reply_logprob(r, t);
    if (o == NULL || (!r->chat && json_object_set_new(o, "text_offset", json_integer((json_int_t)t->text_offset)) != 0)) {
        json_decref(o);
        return IFX_ENOMEM;
    }
    return json_array_append_new(r->logprobs, o) == 0 ? IFX_OK : IFX_ENOMEM;
}

/* One piece of news into the format; sets ended.  Gives the news' memory up. */
static int32_t take_news(struct reply *r, struct job_news *n)
{
    struct exchange *x = r->x;
    int32_t st = IFX_OK;
    r->news = *n;
    r->news.text = (struct base_buf){0};
    r->news.tokens = NULL;
    r->news.error = NULL;
    x->n_prompt = n->n_prompt;
    x->n_cached = n->n_cached;
    x->n_generated = n->n_generated;
    for (uint64_t i = 0; i < n->n_tokens && !st; i++)
        st = keep_logprob(r, &n->tokens[i]);
    if (!st)
        st = keep_for_log(r, &n->text);
    if (!st && n->text.len)
        st = text_answer_feed(r->answer, n->text.data, n->text.len);
    if (n->state == JOB_DONE && !n->status) {
        if (!st)
            st = text_answer_finish(r->answer);
        x->finish = reply_finish(r);
    }
    if (!st && r->stream && json_array_size(r->logprobs) > 0 && r->format->tokens != NULL)
        st = r->format->tokens(r);
    return st;
}

/* What a failed job means to its client. */
static void failure(struct reply *r, const struct job_news *n, unsigned *status, const char **text)
{
    *status = n->status == IFX_ECANCELLED ? 503 : 500;
    *text = n->error != NULL && n->error[0] ? n->error : n->status == IFX_ECANCELLED ? "cancelled" : "the generation failed";
    r->x->finish = "error";
}

/* Why the server itself ends the job now, or NULL. */
static const char *overdue(const struct reply *r, const struct job_news *n, unsigned *status)
{
    const struct serve_options *o = &r->x->serve->o;
    double age = base_now() - r->x->started;
    if (n->state == JOB_QUEUED && age > o->queue_timeout) {
        *status = 503;
        return "the request waited too long for its turn (--queue-timeout)";
    }
    if (n->state != JOB_DONE && o->request_timeout > 0 && age > o->request_timeout) {
        *status = 504;
        return "the request took too long (--request-timeout)";
    }
    return NULL;
}

static void answer_late(struct reply *r, unsigned status, const char *text)
{
    r->x->finish = "timeout";
    answer_error(r->x, status, NULL, "timeout", "%s", text);
}

/* Waits for the whole answer. */
static void run_whole(struct reply *r)
{
    for (;;) {
        struct job_news n;
        unsigned status = 500;
        const char *text;
        job_wait(r->job, LOOK_SECONDS, &n);
        int32_t st = take_news(r, &n);
        bool done = n.state == JOB_DONE;
        if (done && n.status)
            failure(r, &n, &status, &text);
        if (st)
            answer_failure(r->x, st);
        else if (done && n.status)
            answer_error(r->x, status, NULL, NULL, "%s", text);
        else if (done)
            answer_json(r->x, 200, r->format->whole(r));
        else if ((text = overdue(r, &n, &status)) != NULL)
            answer_late(r, status, text);
        job_news_free(&n);
        if (r->x->queued || done || client_gone(r->x))
            return;
    }
}

/* ---- stream ---- */

static void say_error(struct reply *r, unsigned status, const char *text)
{
    r->format->error(r, status, text);
    r->ended = true;
}

static void stream_news(struct reply *r)
{
    struct job_news n;
    unsigned status;
    const char *text;
    job_wait(r->job, LOOK_SECONDS, &n);
    int32_t st = take_news(r, &n);
    if (st) {
        say_error(r, 500, base_error_text());
    } else if (n.state == JOB_DONE && n.status) {
        failure(r, &n, &status, &text);
        say_error(r, status, text);
    } else if (n.state == JOB_DONE) {
        r->format->end(r);
        r->ended = true;
    } else if ((text = overdue(r, &n, &status)) != NULL) {
        r->x->finish = "timeout";
        say_error(r, status, text);
    }
    job_news_free(&n);
    /* The library takes a stream that says nothing for --client-timeout for a client that takes nothing. */
    double beat = r->x->serve->o.client_timeout / 3;
    if (r->out.len == 0 && base_now() - r->last_sent > (beat < BEAT_SECONDS ? beat : BEAT_SECONDS))
        base_buf_add(&r->out, ": still here\n\n", 14);
}

static ssize_t read_stream(void *ctx, uint64_t pos, char *to, size_t most)
{
    struct reply *r = ctx;
    (void)pos;
    while (r->sent == r->out.len) {
        r->sent = r->out.len = 0;
        if (r->ended)
            return MHD_CONTENT_READER_END_OF_STREAM;
        if (client_gone(r->x))
            return MHD_CONTENT_READER_END_WITH_ERROR;
        stream_news(r);
    }
    uint64_t n = r->out.len - r->sent;
    n = n < most ? n : most;
    memcpy(to, r->out.data + r->sent, (size_t)n);
    r->sent += n;
    r->last_sent = base_now();
    return (ssize_t)n;
}

/* A stream has begun once its job runs: what is refused before that gets a status of its own. */
static void run_stream(struct reply *r)
{
    struct job_news n = {.state = JOB_QUEUED};
    unsigned status;
    const char *text;
    while (n.state == JOB_QUEUED) {
        job_wait(r->job, LOOK_SECONDS, &n);
        if (n.state != JOB_QUEUED)
            break;
        if ((text = overdue(r, &n, &status)) != NULL) {
            answer_late(r, status, text);
            return;
        }
        if (client_gone(r->x))
            return;
    }
    if (n.state == JOB_DONE && n.status) {
        failure(r, &n, &status, &text);
        answer_error(r->x, status, NULL, NULL, "%s", text);
        job_news_free(&n);
        return;
    }
    r->news.n_prompt = n.n_prompt;
    r->news.n_cached = n.n_cached;
    int32_t st = r->format->begin != NULL ? r->format->begin(r) : IFX_OK;
    if (!st)
        st = take_news(r, &n);
    if (!st && n.state == JOB_DONE) {
        st = r->format->end(r);
        r->ended = true;
    }
    job_news_free(&n);
    if (st) {
        answer_failure(r->x, st);
        return;
    }
    r->last_sent = base_now();
    struct MHD_Response *response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_stream, r, NULL);
    if (response != NULL) {
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream; charset=utf-8");
        MHD_add_response_header(response, "X-Accel-Buffering", "no");
    }
    answer_queue(r->x, 200, response);
}

void reply_run(struct reply *r)
{
    struct exchange *x = r->x;
    struct serve *s = x->serve;
    struct text_answer_sink sink = {.ctx = r, .thought = on_thought, .content = on_content, .call = on_call};
    pthread_mutex_lock(&s->lock);
    bool draining = s->draining;
    pthread_mutex_unlock(&s->lock);
    if (draining) {
        answer_error(x, 503, NULL, "shutting_down", "the server is shutting down");
        return;
    }
    x->n_prompt = r->spec.n_prompt;
    if (s->o.log_text) {
        struct base_buf text = {0};
        if (!text_decode(s->tokenizer, r->spec.prompt, r->spec.n_prompt, false, &text))
            x->log_prompt = base_strdup(text.data ? text.data : "");
        base_buf_free(&text);
    }
    r->split.tools = r->tools;
    r->spec.whole = !r->stream;
    r->logprobs = json_array();
    int32_t st = r->logprobs != NULL ? text_answer_create(&r->split, &sink, &r->answer) : IFX_ENOMEM;
    if (!st && s->o.force != NULL)
        st = s->o.force(s->o.force_ctx, r->body, &r->spec.forced, &r->spec.n_forced);
    if (!st) {
        st = scheduler_submit(s->scheduler, &r->spec, &r->job);
        if (st == IFX_ELIMIT) {
            answer_error(x, 429, NULL, "queue_full", "%s", base_error_text());
            return;
        }
        if (st == IFX_EDEVICE) {
            answer_error(x, 503, NULL, "unavailable", "%s", base_error_text());
            return;
        }
    }
    if (st)
        answer_failure(x, st);
    else if (r->stream)
        run_stream(r);
    else
        run_whole(r);
}
