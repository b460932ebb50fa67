/* SPDX-License-Identifier: Apache-2.0
 *
 * openai.c - /v1/chat/completions, /v1/completions, /v1/models.
 */
#include "config.h"
#include "constraint.h"
#include "reply.h"
#include <stdio.h>
#include <string.h>

/* ---- answers ---- */

static json_t *usage(const struct reply *r)
{
    const struct job_news *n = &r->news;
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)n->n_prompt, "completion_tokens",
                     (json_int_t)n->n_generated, "total_tokens", (json_int_t)(n->n_prompt + n->n_generated),
                     "prompt_tokens_details", "cached_tokens", (json_int_t)n->n_cached);
}

/* Beside what the protocol has: where the time went. */
static json_t *timings(const struct reply *r)
{
    const struct job_news *n = &r->news;
    double prompt = n->prompt_seconds, decode = n->decode_seconds;
    uint64_t computed = n->n_prompt - n->n_cached;
    return json_pack("{s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:I}", "prompt_n", (json_int_t)computed, "cache_n", (json_int_t)n->n_cached,
                     "queued_ms", n->queued_seconds * 1e3, "prompt_ms", prompt * 1e3, "prompt_per_second",
                     prompt > 0 ? (double)computed / prompt : 0.0, "predicted_ms", decode * 1e3, "predicted_per_second",
                     decode > 0 && n->n_generated > 1 ? (double)(n->n_generated - 1) / decode : 0.0, "predicted_n", (json_int_t)n->n_generated);
}

static json_t *envelope(const struct reply *r, const char *object, json_t *choices)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", r->id, "object", object, "created", (json_int_t)r->created, "model",
                     r->x->serve->o.model_name, "choices", choices);
}

static json_t *take_logprobs(struct reply *r)
{
    json_t *l = r->spec.logprobs || json_array_size(r->logprobs) > 0 ? json_pack("{s:O, s:n}", "content", r->logprobs, "refusal") : NULL;
    json_decref(r->logprobs);
    r->logprobs = json_array();
    return l;
}

static int32_t chunk(struct reply *r, json_t *delta, const char *finish)
{
    bool some = json_array_size(r->logprobs) > 0;
    json_t *l = some ? take_logprobs(r) : json_null();
    json_t *o = envelope(r, "chat.completion.chunk", json_pack("[{s:i, s:o, s:o, s:s?}]", "index", 0, "delta", delta, "logprobs", l,
                                                                "finish_reason", finish));
    if (o != NULL && r->include_usage)
        json_object_set_new(o, "usage", json_null());
    return reply_event(r, NULL, o);
}

static int32_t chat_begin(struct reply *r)
{
    return chunk(r, json_pack("{s:s, s:s}", "role", "assistant", "content", ""), NULL);
}

static int32_t chat_content(struct reply *r, const char *text, uint64_t n)
{
    return chunk(r, json_pack("{s:s%}", "content", text, (size_t)n), NULL);
}

static int32_t chat_thought(struct reply *r, const char *text, uint64_t n)
{
    return chunk(r, json_pack("{s:s%}", "reasoning_content", text, (size_t)n), NULL);
}

static int32_t chat_tokens(struct reply *r)
{
    return chunk(r, json_object(), NULL);
}

static int32_t chat_call(struct reply *r, uint32_t index, const char *name, const char *arguments)
{
    char id[64];
    snprintf(id, sizeof id, "call_%s_%u", r->id + strlen("chatcmpl-"), index);
    if (!r->stream) {
        json_t *call = json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", id, "type", "function", "function", "name", name, "arguments", arguments);
        if (r->calls == NULL)
            r->calls = json_array();
        return json_array_append_new(r->calls, call) == 0 ? IFX_OK : IFX_ENOMEM;
    }
    int32_t st = chunk(r, json_pack("{s:[{s:i, s:s, s:s, s:{s:s, s:s}}]}", "tool_calls", "index", (int)index, "id", id, "type",
                                    "function", "function", "name", name, "arguments", ""), NULL);
    return st ? st : chunk(r, json_pack("{s:[{s:i, s:{s:s}}]}", "tool_calls", "index", (int)index, "function", "arguments", arguments), NULL);
}

static int32_t done(struct reply *r, const char *object)
{
    int32_t st = IFX_OK;
    if (r->include_usage) {
        json_t *o = envelope(r, object, json_array());
        if (o != NULL) {
            json_object_set_new(o, "usage", usage(r));
            json_object_set_new(o, "timings", timings(r));
        }
        st = reply_event(r, NULL, o);
    }
    return st ? st : base_buf_add(&r->out, "data: [DONE]\n\n", 14);
}

static int32_t chat_end(struct reply *r)
{
    int32_t st = chunk(r, json_object(), reply_finish(r));
    return st ? st : done(r, "chat.completion.chunk");
}

static int32_t stream_error(struct reply *r, unsigned status, const char *text)
{
    return reply_event(r, NULL, error_object(API_OPENAI, status, NULL, NULL, text));
}

static json_t *chat_whole(struct reply *r)
{
    json_t *message = json_pack("{s:s}", "role", "assistant");
    const char *content = r->content.data != NULL ? r->content.data : "";
    json_object_set_new(message, "content", r->content.len == 0 && r->calls != NULL ? json_null() : json_stringn(content, r->content.len));
    if (r->thought.len > 0)
        json_object_set_new(message, "reasoning_content", json_stringn(r->thought.data, r->thought.len));
    if (r->calls != NULL)
        json_object_set(message, "tool_calls", r->calls);
    json_t *l = json_array_size(r->logprobs) > 0 ? take_logprobs(r) : json_null();
    json_t *o = envelope(r, "chat.completion", json_pack("[{s:i, s:o, s:o, s:s}]", "index", 0, "message", message, "logprobs", l,
                                                         "finish_reason", reply_finish(r)));
    if (o != NULL) {
        json_object_set_new(o, "usage", usage(r));
        json_object_set_new(o, "timings", timings(r));
    }
    return o;
}

static const struct reply_format chat_format = {chat_begin, chat_thought, chat_content, chat_call, chat_tokens, chat_end, stream_error, chat_whole};

/* ---- requests ---- */

static int32_t read_common(struct reply *r)
{
    const json_t *body = r->body, *options = NULL;
    int64_t n = 1, max = 0, newer = 0;
    int32_t st = fields_sampling(r->x->serve, body, &r->spec.sampling);
    if (!st)
        st = field_int(body, "n", INT32_MIN, INT32_MAX, &n);
    if (!st && n != 1)
        st = base_error(IFX_EUNSUPPORTED, "n: only 1 answer at a time is given; send the request %s", n > 1 ? "again for more" : "with n = 1");
    if (!st)
        st = field_int(body, "max_tokens", 1, INT32_MAX, &max);
    if (!st)
        st = field_int(body, "max_completion_tokens", 1, INT32_MAX, &newer);
    if (!st)
        st = field_bool(body, "stream", &r->stream);
    if (!st)
        st = field_object(body, "stream_options", &options);
    if (!st && options != NULL && field_bool(options, "include_usage", &r->include_usage))
        st = base_error_prefix(IFX_EINVAL, "stream_options");
    if (!st)
        st = field_stops(body, "stop", &r->spec);
    if (!st && json_object_size(json_object_get(body, "logit_bias")) > 0)
        st = base_error(IFX_EUNSUPPORTED, "logit_bias: is not supported here");
    if (!st)
        st = field_bool(body, "ignore_eos", &r->spec.ignore_stop_ids);
    r->spec.max_tokens = newer > 0 ? (uint64_t)newer : max > 0 ? (uint64_t)max : r->x->serve->o.max_tokens;
    return st;
}

static int32_t read_chat_logprobs(struct reply *r)
{
    int64_t top = 0;
    int32_t st = field_bool(r->body, "logprobs", &r->spec.logprobs);
    if (!st)
        st = field_int(r->body, "top_logprobs", 0, SERVE_MAX_TOP_LOGPROBS, &top);
    if (!st && top > 0 && !r->spec.logprobs)
        st = base_error(IFX_EINVAL, "top_logprobs: needs logprobs: true");
    r->spec.top_logprobs = (uint32_t)top;
    return st;
}

static int32_t check_tool(const json_t *tool, size_t i)
{
    const char *type = json_string_value(json_object_get(tool, "type"));
    const json_t *f = json_object_get(tool, "function"), *parameters = json_object_get(f, "parameters");
    unsigned long long k = (unsigned long long)i;
    if (!json_is_object(tool))
        return base_error(IFX_EINVAL, "tools[%llu]: an object is expected, got %s", k, json_kind(tool));
    if (type == NULL || strcmp(type, "function") != 0)
        return base_error(IFX_EINVAL, "tools[%llu].type: \"function\" is expected", k);
    if (!json_is_object(f))
        return base_error(IFX_EINVAL, "tools[%llu].function: an object is expected, got %s", k, json_kind(f));
    if (!json_is_string(json_object_get(f, "name")) || json_string_length(json_object_get(f, "name")) == 0)
        return base_error(IFX_EINVAL, "tools[%llu].function.name: missing or not a string", k);
    if (parameters != NULL && !json_is_null(parameters) && !json_is_object(parameters))
        return base_error(IFX_EINVAL, "tools[%llu].function.parameters: an object is expected, got %s", k, json_kind(parameters));
    return IFX_OK;
}

/* tools and tool_choice: r->tools are those that the model is told of. */
static int32_t read_tools(struct reply *r, bool *required)
{
    const json_t *tools = NULL, *choice = json_object_get(r->body, "tool_choice"), *tool;
    size_t i;
    int32_t st = field_array(r->body, "tools", &tools);
    json_array_foreach(tools, i, tool)
        if (!st)
            st = check_tool(tool, i);
    const char *word = json_string_value(choice), *name = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
    if (st)
        return st;
    if (choice == NULL || json_is_null(choice) || (word != NULL && strcmp(word, "auto") == 0)) {
        r->tools = json_array_size(tools) > 0 ? json_incref((json_t *)tools) : NULL;
    } else if (word != NULL && strcmp(word, "none") == 0) {
        r->tools = NULL;
    } else if ((word != NULL && strcmp(word, "required") == 0) || (json_is_object(choice) && name != NULL)) {
        r->tools = json_array();
        json_array_foreach(tools, i, tool)
            if (name == NULL || strcmp(name, json_string_value(json_object_get(json_object_get(tool, "function"), "name"))) == 0)
                json_array_append(r->tools, (json_t *)tool);
        *required = true;
        if (json_array_size(r->tools) == 0)
            return base_error(IFX_EINVAL, "tool_choice: there is no such tool in tools");
    } else {
        return base_error(IFX_EINVAL, "tool_choice: \"auto\", \"none\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}} is expected");
    }
    r->split.calls = r->tools != NULL;
    return IFX_OK;
}

static int32_t read_chat(struct reply *r)
{
    const json_t *messages = json_object_get(r->body, "messages");
    int thinking = r->x->serve->o.thinking;
    bool required = false;
    int32_t st = read_common(r);
    if (!st)
        st = read_chat_logprobs(r);
    if (!st)
        st = reply_thinking(r->body, &thinking);
    if (!st)
        st = read_tools(r, &required);
    if (!st)
        st = constraint_read(r, required, &thinking);
    if (!st && messages == NULL)
        st = base_error(IFX_EINVAL, "messages: missing");
    return st ? st : reply_prompt(r, messages, r->tools, thinking);
}

void openai_chat(struct exchange *x)
{
    json_t *body;
    int32_t st = body_parse(x->body.data, x->body.len, &body);
    struct reply *r = st ? NULL : reply_open(x, &chat_format, body, "chatcmpl-");
    if (!st && r == NULL)
        st = IFX_ENOMEM;
    if (!st) {
        r->chat = true;
        st = read_chat(r);
    }
    if (st)
        answer_failure(x, st);
    else if (reply_fits(r))
        reply_run(r);
}

/* ---- text completions ---- */

static json_t *text_logprobs(struct reply *r)
{
    json_t *tokens = json_array(), *values = json_array(), *tops = json_array(), *offsets = json_array(), *entry;
    size_t i;
    json_array_foreach(r->logprobs, i, entry) {
        json_t *top = json_object(), *one;
        size_t k;
        json_array_append(tokens, json_object_get(entry, "token"));
        json_array_append(values, json_object_get(entry, "logprob"));
        json_array_append(offsets, json_object_get(entry, "text_offset"));
        json_array_foreach(json_object_get(entry, "top_logprobs"), k, one)
            json_object_set(top, json_string_value(json_object_get(one, "token")), json_object_get(one, "logprob"));
        json_array_append_new(tops, top);
    }
    json_array_clear(r->logprobs);
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", values, "top_logprobs", tops, "text_offset", offsets);
}

static json_t *text_choice(struct reply *r, const char *text, uint64_t n, const char *finish)
{
    json_t *l = r->logprobs != NULL && json_array_size(r->logprobs) > 0 ? text_logprobs(r) : json_null();
    return json_pack("[{s:i, s:s%, s:o, s:s?}]", "index", 0, "text", text, (size_t)n, "logprobs", l, "finish_reason", finish);
}

static int32_t text_content(struct reply *r, const char *text, uint64_t n)
{
    return reply_event(r, NULL, envelope(r, "text_completion", text_choice(r, text, n, NULL)));
}

static int32_t text_tokens(struct reply *r)
{
    return text_content(r, "", 0);
}

static int32_t text_end(struct reply *r)
{
    int32_t st = reply_event(r, NULL, envelope(r, "text_completion", text_choice(r, "", 0, reply_finish(r))));
    return st ? st : done(r, "text_completion");
}

static json_t *text_whole(struct reply *r)
{
    json_t *o = envelope(r, "text_completion", text_choice(r, r->content.data ? r->content.data : "", r->content.len, reply_finish(r)));
    if (o != NULL) {
        json_object_set_new(o, "usage", usage(r));
        json_object_set_new(o, "timings", timings(r));
    }
    return o;
}

static const struct reply_format text_format = {NULL, NULL, text_content, NULL, text_tokens, text_end, stream_error, text_whole};

static int32_t read_ids(struct reply *r, const json_t *list)
{
    const json_t *v;
    size_t i;
    r->spec.prompt = base_calloc(json_array_size(list), sizeof *r->spec.prompt);
    if (r->spec.prompt == NULL)
        return IFX_ENOMEM;
    json_array_foreach(list, i, v) {
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= r->x->serve->info.desc->vocab)
            return base_error(IFX_EINVAL, "prompt: [%llu] is no token id of this model", (unsigned long long)i);
        r->spec.prompt[i] = (int32_t)json_integer_value(v);
    }
    r->spec.n_prompt = json_array_size(list);
    return IFX_OK;
}

/* A string, a list of ids, or a list with one of either. */
static int32_t read_text_prompt(struct reply *r)
{
    const json_t *p = json_object_get(r->body, "prompt");
    bool special = false;
    int32_t st = field_bool(r->body, "parse_special", &special);
    if (st)
        return st;
    if (json_array_size(p) == 1 && !json_is_integer(json_array_get(p, 0)))
        p = json_array_get(p, 0);
    if (json_is_array(p) && json_array_size(p) > 0 && json_is_integer(json_array_get(p, 0)))
        return read_ids(r, p);
    if (json_array_size(p) > 1)
        return base_error(IFX_EUNSUPPORTED, "prompt: several prompts at once are not supported; send one request for each");
    if (!json_is_string(p))
        return base_error(IFX_EINVAL, "prompt: a string or a list of token ids is expected, got %s", json_kind(p));
    return text_encode(r->x->serve->tokenizer, json_string_value(p), json_string_length(p), special ? TEXT_SPECIALS : 0, &r->spec.prompt,
                       &r->spec.n_prompt);
}

static int32_t read_text(struct reply *r)
{
    const json_t *logprobs = json_object_get(r->body, "logprobs");
    bool echo = false;
    int64_t best = 1, top = -1;
    const char *suffix = NULL;
    int32_t st = read_common(r);
    if (!st)
        st = field_bool(r->body, "echo", &echo);
    if (!st && echo)
        st = base_error(IFX_EUNSUPPORTED, "echo: is not supported here");
    if (!st)
        st = field_int(r->body, "best_of", INT32_MIN, INT32_MAX, &best);
    if (!st && best != 1)
        st = base_error(IFX_EUNSUPPORTED, "best_of: only 1 is supported");
    if (!st)
        st = field_string(r->body, "suffix", &suffix);
    if (!st && suffix != NULL && suffix[0] != 0)
        st = base_error(IFX_EUNSUPPORTED, "suffix: is not supported: the model goes on from a prompt, it does not fill in");
    if (!st && json_is_boolean(logprobs))
        st = base_error(IFX_EINVAL, "logprobs: a whole number is expected here, got a boolean");
    if (!st)
        st = field_int(r->body, "logprobs", 0, SERVE_MAX_TOP_LOGPROBS, &top);
    r->spec.logprobs = top >= 0;
    r->spec.top_logprobs = top > 0 ? (uint32_t)top : 0;
    if (!st)
        st = constraint_read(r, false, &(int){TEXT_THINK_OFF});
    if (!st && r->spec.max_tokens == 0)
        r->spec.max_tokens = 16; /* the protocol's default */
    return st ? st : read_text_prompt(r);
}

void openai_completions(struct exchange *x)
{
    json_t *body;
    int32_t st = body_parse(x->body.data, x->body.len, &body);
    struct reply *r = st ? NULL : reply_open(x, &text_format, body, "cmpl-");
    if (!st && r == NULL)
        st = IFX_ENOMEM;
    if (!st)
        st = read_text(r);
    if (st)
        answer_failure(x, st);
    else if (reply_fits(r))
        reply_run(r);
}

/* ---- models ---- */

static json_t *model_object(const struct serve *s)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:{s:I, s:I, s:s, s:s?}}", "id", s->o.model_name, "object", "model", "created",
                     (json_int_t)s->started_at, "owned_by", "infernix", "meta", "n_ctx", (json_int_t)s->info.ctx, "n_vocab",
                     (json_int_t)s->info.desc->vocab, "architecture", s->info.architecture, "experts", s->info.expert_format);
}

void openai_models(struct exchange *x)
{
    answer_json(x, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", model_object(x->serve)));
}

void openai_model(struct exchange *x)
{
    const char *id = x->url + strlen("/v1/models/");
    if (strcmp(id, x->serve->o.model_name) == 0)
        answer_json(x, 200, model_object(x->serve));
    else
        answer_error(x, 404, "model", "model_not_found", "the model served here is %s", x->serve->o.model_name);
}
