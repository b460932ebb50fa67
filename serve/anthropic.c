/* SPDX-License-Identifier: Apache-2.0
 *
 * anthropic.c - /v1/messages and /v1/messages/count_tokens.  Messages are brought into the form that chat templates take; an answer goes out as
 * content blocks: a thought, text, calls.
 */
#include "config.h"
#include "constraint.h"
#include "reply.h"
#include <stdio.h>
#include <string.h>

enum block { NO_BLOCK = -1, THINKING, TEXT, TOOL };

/* ---- answers ---- */

static const char *stop_reason(const struct reply *r)
{
    if (r->news.finish == IFX_FINISH_LENGTH)
        return "max_tokens";
    return r->n_calls > 0 ? "tool_use" : r->news.stop_text != NULL ? "stop_sequence" : "end_turn";
}

static json_t *usage(const struct reply *r, bool head)
{
    const struct job_news *n = &r->news;
    return json_pack("{s:I, s:I, s:I, s:I}", "input_tokens", (json_int_t)(n->n_prompt - n->n_cached), "cache_creation_input_tokens",
                     (json_int_t)0, "cache_read_input_tokens", (json_int_t)n->n_cached, "output_tokens", (json_int_t)(head ? 0 : n->n_generated));
}

static json_t *message(const struct reply *r, json_t *content, bool head)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:s?, s:s?, s:o}", "id", r->id, "type", "message", "role", "assistant", "model",
                     r->x->serve->o.model_name, "content", content, "stop_reason", head ? NULL : stop_reason(r), "stop_sequence",
                     head ? NULL : r->news.stop_text, "usage", usage(r, head));
}

static int32_t begin(struct reply *r)
{
    int32_t st = reply_event(r, "message_start", json_pack("{s:s, s:o}", "type", "message_start", "message", message(r, json_array(), true)));
    return st ? st : reply_event(r, "ping", json_pack("{s:s}", "type", "ping"));
}

static int32_t close_block(struct reply *r)
{
    if (r->block == NO_BLOCK)
        return IFX_OK;
    r->block = NO_BLOCK;
    return reply_event(r, "content_block_stop", json_pack("{s:s, s:i}", "type", "content_block_stop", "index", (int)r->n_blocks++));
}

static int32_t open_block(struct reply *r, enum block kind, json_t *block)
{
    int32_t st = close_block(r);
    r->block = kind;
    json_t *e = json_pack("{s:s, s:i, s:o}", "type", "content_block_start", "index", (int)r->n_blocks, "content_block", block);
    return st ? st : reply_event(r, "content_block_start", e);
}

static int32_t delta(struct reply *r, const char *type, const char *key, const char *text, uint64_t n)
{
    return reply_event(r, "content_block_delta", json_pack("{s:s, s:i, s:{s:s, s:s%}}", "type", "content_block_delta", "index", (int)r->n_blocks,
                                                           "delta", "type", type, key, text, (size_t)n));
}

static int32_t on_thought(struct reply *r, const char *text, uint64_t n)
{
    int32_t st = r->block != THINKING ? open_block(r, THINKING, json_pack("{s:s, s:s, s:s}", "type", "thinking", "thinking", "", "signature", "")) : IFX_OK;
    return st ? st : delta(r, "thinking_delta", "thinking", text, n);
}

static int32_t on_content(struct reply *r, const char *text, uint64_t n)
{
    int32_t st = r->block != TEXT ? open_block(r, TEXT, json_pack("{s:s, s:s}", "type", "text", "text", "")) : IFX_OK;
    return st ? st : delta(r, "text_delta", "text", text, n);
}

static int32_t on_call(struct reply *r, uint32_t index, const char *name, const char *arguments)
{
    char id[64];
    snprintf(id, sizeof id, "toolu_%s_%u", r->id + strlen("msg_"), index);
    if (!r->stream) {
        json_t *call = json_pack("{s:s, s:s, s:s, s:o}", "type", "tool_use", "id", id, "name", name, "input", json_loads(arguments, JSON_ALLOW_NUL, NULL));
        if (r->calls == NULL)
            r->calls = json_array();
        return json_array_append_new(r->calls, call) == 0 ? IFX_OK : IFX_ENOMEM;
    }
    int32_t st = open_block(r, TOOL, json_pack("{s:s, s:s, s:s, s:{}}", "type", "tool_use", "id", id, "name", name, "input"));
    return st ? st : delta(r, "input_json_delta", "partial_json", arguments, strlen(arguments));
}

static int32_t end(struct reply *r)
{
    int32_t st = close_block(r);
    if (!st)
        st = reply_event(r, "message_delta", json_pack("{s:s, s:{s:s, s:s?}, s:o}", "type", "message_delta", "delta", "stop_reason", stop_reason(r),
                                                       "stop_sequence", r->news.stop_text, "usage", usage(r, false)));
    return st ? st : reply_event(r, "message_stop", json_pack("{s:s}", "type", "message_stop"));
}

static int32_t on_error(struct reply *r, unsigned status, const char *text)
{
    return reply_event(r, "error", error_object(API_ANTHROPIC, status, NULL, NULL, text));
}

static json_t *whole(struct reply *r)
{
    json_t *content = json_array();
    if (r->thought.len > 0)
        json_array_append_new(content, json_pack("{s:s, s:s%, s:s}", "type", "thinking", "thinking", r->thought.data, (size_t)r->thought.len,
                                                 "signature", ""));
    if (r->content.len > 0 || r->calls == NULL)
        json_array_append_new(content, json_pack("{s:s, s:s%}", "type", "text", "text", r->content.data ? r->content.data : "",
                                                 (size_t)r->content.len));
    json_array_extend(content, r->calls);
    return message(r, content, false);
}

static const struct reply_format format = {begin, on_thought, on_content, on_call, NULL, end, on_error, whole};

/* ---- requests: into the form of the templates ---- */

/* The text of a string or of a list of text blocks, onto out. */
static int32_t add_text(const json_t *v, const char *where, struct base_buf *out)
{
    const json_t *block;
    size_t i;
    if (json_is_string(v))
        return base_buf_add(out, json_string_value(v), json_string_length(v));
    if (!json_is_array(v))
        return base_error(IFX_EINVAL, "%s: a string or a list of text blocks is expected, got %s", where, json_kind(v));
    json_array_foreach(v, i, block) {
        const char *type = json_string_value(json_object_get(block, "type"));
        const json_t *text = json_object_get(block, "text");
        if (type == NULL || strcmp(type, "text") != 0)
            return base_error(IFX_EUNSUPPORTED, "%s[%u]: only text blocks are supported", where, (unsigned)i);
        if (!json_is_string(text))
            return base_error(IFX_EINVAL, "%s[%u].text: missing or not a string", where, (unsigned)i);
        int32_t st = base_buf_add(out, json_string_value(text), json_string_length(text));
        if (st)
            return st;
    }
    return IFX_OK;
}

static int32_t add_message(json_t *list, json_t *m)
{
    return m != NULL && json_array_append_new(list, m) == 0 ? IFX_OK : base_error(IFX_ENOMEM, "no memory for the messages");
}

struct turn { /* a message being taken apart */
    json_t *list, *calls;
    struct base_buf text, thought;
    const char *role;
    char where[64];
};

/* What was collected so far as one message. */
static int32_t flush(struct turn *t)
{
    int32_t st = IFX_OK;
    if (t->text.len > 0 || t->calls != NULL || t->thought.len > 0) {
        json_t *m = json_pack("{s:s, s:s%}", "role", t->role, "content", t->text.data ? t->text.data : "", (size_t)t->text.len);
        if (m != NULL && t->calls != NULL)
            json_object_set(m, "tool_calls", t->calls);
        if (m != NULL && t->thought.len > 0)
            json_object_set_new(m, "reasoning_content", json_stringn(t->thought.data, t->thought.len));
        st = add_message(t->list, m);
    }
    t->text.len = t->thought.len = 0;
    json_decref(t->calls);
    t->calls = NULL;
    return st;
}

static int32_t add_tool_use(struct turn *t, const json_t *block)
{
    const json_t *name = json_object_get(block, "name"), *input = json_object_get(block, "input");
    if (!json_is_string(name))
        return base_error(IFX_EINVAL, "%s.name: missing or not a string", t->where);
    if (!json_is_object(input))
        return base_error(IFX_EINVAL, "%s.input: an object is expected, got %s", t->where, json_kind(input));
    if (t->calls == NULL)
        t->calls = json_array();
    json_t *call = json_pack("{s:s, s:{s:O, s:O}}", "type", "function", "function", "name", name, "arguments", input);
    return json_array_append_new(t->calls, call) == 0 ? IFX_OK : IFX_ENOMEM;
}

static int32_t add_tool_result(struct turn *t, const json_t *block)
{
    struct base_buf text = {0};
    const json_t *content = json_object_get(block, "content");
    int32_t st = flush(t);
    char where[96];
    snprintf(where, sizeof where, "%s.content", t->where);
    if (!st && content != NULL && !json_is_null(content))
        st = add_text(content, where, &text);
    if (!st)
        st = add_message(t->list, json_pack("{s:s, s:s%}", "role", "tool", "content", text.data ? text.data : "", (size_t)text.len));
    base_buf_free(&text);
    return st;
}

static int32_t add_block(struct turn *t, const json_t *block)
{
    const char *type = json_string_value(json_object_get(block, "type"));
    const json_t *text = json_object_get(block, "text"), *thought = json_object_get(block, "thinking");
    bool assistant = strcmp(t->role, "assistant") == 0;
    if (type == NULL)
        return base_error(IFX_EINVAL, "%s.type: missing or not a string", t->where);
    if (strcmp(type, "text") == 0)
        return json_is_string(text) ? base_buf_add(&t->text, json_string_value(text), json_string_length(text))
                                    : base_error(IFX_EINVAL, "%s.text: missing or not a string", t->where);
    if (strcmp(type, "thinking") == 0 && assistant)
        return json_is_string(thought) ? base_buf_add(&t->thought, json_string_value(thought), json_string_length(thought))
                                       : base_error(IFX_EINVAL, "%s.thinking: missing or not a string", t->where);
    if (strcmp(type, "redacted_thinking") == 0 && assistant)
        return IFX_OK;
    if (strcmp(type, "tool_use") == 0 && assistant)
        return add_tool_use(t, block);
    if (strcmp(type, "tool_result") == 0 && !assistant)
        return add_tool_result(t, block);
    return base_error(IFX_EUNSUPPORTED, "%s: a block of type \"%.40s\" is not supported here", t->where, type);
}

static int32_t convert_message(const json_t *m, unsigned i, json_t *list)
{
    const json_t *content = json_object_get(m, "content"), *block;
    const char *role = json_string_value(json_object_get(m, "role"));
    size_t k;
    if (!json_is_object(m))
        return base_error(IFX_EINVAL, "messages[%u]: an object is expected, got %s", i, json_kind(m));
    if (role == NULL || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0))
        return base_error(IFX_EINVAL, "messages[%u].role: \"user\" or \"assistant\" is expected", i);
    if (json_is_string(content))
        return add_message(list, json_pack("{s:s, s:O}", "role", role, "content", content));
    if (!json_is_array(content))
        return base_error(IFX_EINVAL, "messages[%u].content: a string or a list of blocks is expected, got %s", i, json_kind(content));
    struct turn t = {.list = list, .role = role};
    size_t before = json_array_size(list);
    int32_t st = IFX_OK;
    json_array_foreach(content, k, block) {
        snprintf(t.where, sizeof t.where, "messages[%u].content[%u]", i, (unsigned)k);
        st = st ? st : add_block(&t, block);
    }
    if (!st)
        st = flush(&t);
    if (!st && json_array_size(list) == before)
        st = add_message(list, json_pack("{s:s, s:s}", "role", role, "content", ""));
    json_decref(t.calls);
    base_buf_free(&t.text);
    base_buf_free(&t.thought);
    return st;
}

static int32_t convert_messages(const json_t *body, json_t *list)
{
    const json_t *system = json_object_get(body, "system"), *messages = json_object_get(body, "messages"), *m;
    struct base_buf text = {0};
    size_t i;
    int32_t st = IFX_OK;
    if (system != NULL && !json_is_null(system)) {
        st = add_text(system, "system", &text);
        if (!st && text.len > 0)
            st = add_message(list, json_pack("{s:s, s:s%}", "role", "system", "content", text.data, (size_t)text.len));
        base_buf_free(&text);
    }
    if (!st && (!json_is_array(messages) || json_array_size(messages) == 0))
        st = base_error(IFX_EINVAL, "messages: a list of at least one message is expected, got %s", json_is_array(messages) ? "none" : json_kind(messages));
    json_array_foreach(messages, i, m)
        st = st ? st : convert_message(m, (unsigned)i, list);
    return st;
}

static int32_t convert_tools(const json_t *body, json_t **out)
{
    const json_t *tools = NULL, *tool;
    size_t i;
    int32_t st = field_array(body, "tools", &tools);
    if (st || json_array_size(tools) == 0)
        return st;
    *out = json_array();
    json_array_foreach(tools, i, tool) {
        const json_t *name = json_object_get(tool, "name"), *schema = json_object_get(tool, "input_schema");
        const json_t *about = json_object_get(tool, "description");
        if (!json_is_string(name) || json_string_length(name) == 0)
            return base_error(IFX_EINVAL, "tools[%u].name: missing or not a string", (unsigned)i);
        if (!json_is_object(schema))
            return base_error(IFX_EINVAL, "tools[%u].input_schema: an object is expected, got %s", (unsigned)i, json_kind(schema));
        json_t *f = json_pack("{s:O}", "name", name);
        if (json_is_string(about))
            json_object_set(f, "description", (json_t *)about);
        json_object_set(f, "parameters", (json_t *)schema);
        json_array_append_new(*out, json_pack("{s:s, s:o}", "type", "function", "function", f));
    }
    return IFX_OK;
}

static int32_t read_tools(struct reply *r, bool *required)
{
    const json_t *choice = NULL;
    const char *type = NULL, *name = NULL;
    int32_t st = convert_tools(r->body, &r->tools);
    if (!st)
        st = field_object(r->body, "tool_choice", &choice);
    if (!st && choice != NULL && (field_string(choice, "type", &type) || type == NULL))
        st = base_error(IFX_EINVAL, "tool_choice.type: \"auto\", \"any\", \"tool\" or \"none\" is expected");
    if (!st && type != NULL && strcmp(type, "tool") == 0) {
        size_t i = 0;
        st = field_string(choice, "name", &name);
        while (!st && name != NULL && i < json_array_size(r->tools)) {
            const char *has = json_string_value(json_object_get(json_object_get(json_array_get(r->tools, i), "function"), "name"));
            if (strcmp(has, name) == 0)
                i++;
            else
                json_array_remove(r->tools, i);
        }
    } else if (!st && type != NULL && strcmp(type, "auto") != 0 && strcmp(type, "any") != 0 && strcmp(type, "none") != 0) {
        st = base_error(IFX_EINVAL, "tool_choice.type: \"%.40s\" is unknown", type);
    }
    if (st)
        return st;
    *required = type != NULL && (strcmp(type, "any") == 0 || strcmp(type, "tool") == 0);
    if (*required && json_array_size(r->tools) == 0)
        return base_error(IFX_EINVAL, "tool_choice: there is no such tool in tools");
    if (type != NULL && strcmp(type, "none") == 0) {
        json_decref(r->tools);
        r->tools = NULL;
    }
    r->split.calls = r->tools != NULL;
    return IFX_OK;
}

static int32_t read_thinking(const json_t *body, int *thinking)
{
    const json_t *t = NULL;
    const char *type = NULL;
    int32_t st = field_object(body, "thinking", &t);
    if (!st && t != NULL)
        st = field_string(t, "type", &type);
    if (!st && type != NULL)
        *thinking = strcmp(type, "disabled") == 0 ? TEXT_THINK_OFF : TEXT_THINK_ON;
    return st;
}

static int32_t read_prompt(struct reply *r, bool *required)
{
    int thinking = r->x->serve->o.thinking;
    int32_t st = read_thinking(r->body, &thinking);
    if (!st)
        st = read_tools(r, required);
    if (!st)
        st = constraint_read(r, *required, &thinking);
    json_t *messages = json_array();
    if (!st)
        st = messages != NULL ? convert_messages(r->body, messages) : IFX_ENOMEM;
    if (!st)
        st = reply_prompt(r, messages, r->tools, thinking);
    json_decref(messages);
    return st;
}

static int32_t read_request(struct reply *r)
{
    int64_t max = 0;
    bool required = false;
    int32_t st = fields_sampling(r->x->serve, r->body, &r->spec.sampling);
    if (!st)
        st = field_int(r->body, "max_tokens", 1, INT32_MAX, &max);
    if (!st && max == 0)
        st = base_error(IFX_EINVAL, "max_tokens: missing; a whole number from 1 on is expected");
    if (!st)
        st = field_bool(r->body, "stream", &r->stream);
    if (!st)
        st = field_stops(r->body, "stop_sequences", &r->spec);
    r->spec.max_tokens = (uint64_t)max;
    return st ? st : read_prompt(r, &required);
}

static struct reply *open_reply(struct exchange *x, int32_t *st)
{
    json_t *body;
    *st = body_parse(x->body.data, x->body.len, &body);
    struct reply *r = *st ? NULL : reply_open(x, &format, body, "msg_");
    if (!*st && r == NULL)
        *st = IFX_ENOMEM;
    if (r != NULL)
        r->chat = true;
    return r;
}

void anthropic_messages(struct exchange *x)
{
    int32_t st;
    struct reply *r = open_reply(x, &st);
    if (!st)
        st = read_request(r);
    if (st)
        answer_failure(x, st);
    else if (reply_fits(r))
        reply_run(r);
}

void anthropic_count(struct exchange *x)
{
    int32_t st;
    bool required = false;
    struct reply *r = open_reply(x, &st);
    if (!st)
        st = read_prompt(r, &required);
    if (st)
        answer_failure(x, st);
    else
        answer_json(x, 200, json_pack("{s:I}", "input_tokens", (json_int_t)r->spec.n_prompt));
}
