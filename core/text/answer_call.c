/* SPDX-License-Identifier: Apache-2.0
 *
 * answer_call.c - one call as Qwen models write it, in either of their forms:
 *
 *   <tool_call>                            <tool_call>
 *   {"name": "f", "arguments": {...}}      <function=f>
 *   </tool_call>                           <parameter=key>
 *                                          value
 *                                          </parameter>
 *                                          </function>
 *                                          </tool_call>
 *
 * In the second form a value is text: its type comes from the tool's schema, and only a closing tag that is followed by another tag of the
 * call ends it.
 */
#include "config.h"
#include "answer_internal.h"
#include <stdlib.h>
#include <string.h>

struct reader {
    const char *s;
    uint64_t n, at;
    bool last;
    const json_t *tools;
};

void answer_call_free(struct answer_call *c)
{
    base_free(c->name);
    base_free(c->arguments);
    *c = (struct answer_call){0};
}

static void skip_blanks(struct reader *r)
{
    while (r->at < r->n && strchr(" \n\r\t", r->s[r->at]) != NULL && r->s[r->at] != 0)
        r->at++;
}

/* ANSWER_CALL: the tag stands here and was taken. */
static enum answer_parse take(struct reader *r, const char *tag)
{
    uint64_t len = strlen(tag), rest = r->n - r->at, k = rest < len ? rest : len;
    if (memcmp(r->s + r->at, tag, k) != 0)
        return ANSWER_TEXT;
    if (k < len)
        return r->last ? ANSWER_TEXT : ANSWER_MORE;
    r->at += len;
    return ANSWER_CALL;
}

/* ---- types ---- */

static const json_t *schema_of(const json_t *tools, const char *name, const char *key)
{
    const json_t *tool;
    size_t i;
    json_array_foreach(tools, i, tool) {
        const json_t *f = json_object_get(tool, "function");
        f = f != NULL ? f : tool;
        const char *n = json_string_value(json_object_get(f, "name"));
        if (n != NULL && strcmp(n, name) == 0)
            return json_object_get(json_object_get(json_object_get(f, "parameters"), "properties"), key);
    }
    return NULL;
}

static bool has_type(const json_t *schema, const char *type)
{
    const json_t *t = json_object_get(schema, "type"), *one;
    size_t i;
    if (json_is_string(t))
        return strcmp(json_string_value(t), type) == 0;
    json_array_foreach(t, i, one)
        if (json_is_string(one) && strcmp(json_string_value(one), type) == 0)
            return true;
    return false;
}

static bool fits(const json_t *schema, const json_t *v)
{
    return (json_is_boolean(v) && has_type(schema, "boolean")) || (json_is_integer(v) && has_type(schema, "integer")) ||
           (json_is_number(v) && has_type(schema, "number")) || (json_is_object(v) && has_type(schema, "object")) ||
           (json_is_array(v) && has_type(schema, "array")) || (json_is_null(v) && has_type(schema, "null"));
}

/* The value that a text stands for where the schema wants another type than text; NULL: it stays text. */
static json_t *typed(const json_t *schema, const char *s, uint64_t n)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}, {"TRUE", "true"}, {"FALSE", "false"}};
    if (schema == NULL || has_type(schema, "string"))
        return NULL;
    while (n > 0 && strchr(" \n\r\t", s[n - 1]) != NULL && s[n - 1] != 0)
        n--;
    for (uint32_t i = 0; i < 5; i++)
        if (n == strlen(words[i][0]) && memcmp(s, words[i][0], n) == 0) {
            s = words[i][1];
            n = strlen(s);
        }
    json_t *v = json_loadb(s, n, JSON_DECODE_ANY, NULL);
    if (v != NULL && fits(schema, v))
        return v;
    json_decref(v);
    return NULL;
}

static char *dump(const json_t *object)
{
    struct base_buf b = {0};
    if (chat_json_text(object, &b) != IFX_OK)
        base_buf_free(&b);
    return b.data;
}

/* ---- JSON form ---- */

/* End of the JSON value at `at` by brackets and quotes alone; 0: not there yet. */
static uint64_t value_end(const char *s, uint64_t n, uint64_t at)
{
    uint64_t depth = 0;
    bool text = false;
    for (uint64_t i = at; i < n; i++) {
        char c = s[i];
        if (text && c == '\\')
            i++;
        else if (text)
            text = c != '"';
        else if (c == '"')
            text = true;
        else if (c == '{' || c == '[')
            depth++;
        else if ((c == '}' || c == ']') && depth > 0)
            depth--;
        if (i < n && !text && depth == 0 && (c == '}' || c == ']' || c == '"'))
            return i + 1;
    }
    return 0;
}

/* The text of member `key` in the valid JSON object at s; the last one counts, as everywhere. */
static bool member_text(const char *s, uint64_t n, const char *key, const char **at, uint64_t *len)
{
    bool found = false;
    for (uint64_t i = 1; i + 1 < n;) {
        if (s[i] != '"') {
            i++;
            continue;
        }
        uint64_t key_end = value_end(s, n, i), v = key_end;
        bool same = key_end - i == strlen(key) + 2 && memcmp(s + i + 1, key, strlen(key)) == 0;
        while (v < n && (s[v] == ':' || strchr(" \n\r\t", s[v]) != NULL))
            v++;
        uint64_t end = s[v] == '{' || s[v] == '[' || s[v] == '"' ? value_end(s, n, v) : v + strcspn(s + v, ",} \n\r\t");
        if (same) {
            *at = s + v;
            *len = end - v;
            found = true;
        }
        i = end > i ? end : i + 1;
    }
    return found;
}

/* Texts among the arguments where the schema wants numbers, lists and so on; true when something changed. */
static bool retype(const json_t *tools, const char *name, json_t *arguments)
{
    const char *key;
    json_t *v;
    void *next;
    bool changed = false;
    json_object_foreach_safe(arguments, next, key, v) {
        json_t *better = json_is_string(v) ? typed(schema_of(tools, name, key), json_string_value(v), json_string_length(v)) : NULL;
        if (better != NULL)
            changed |= json_object_set_new(arguments, key, better) == 0;
    }
    return changed;
}

static enum answer_parse read_json(struct reader *r, struct answer_call *out)
{
    uint64_t from = r->at, end = value_end(r->s, r->n, r->at);
    enum answer_parse got = ANSWER_TEXT;
    const char *raw = NULL;
    uint64_t raw_len = 0;
    if (end == 0)
        return r->last ? ANSWER_TEXT : ANSWER_MORE;
    json_t *call = json_loadb(r->s + from, end - from, 0, NULL), *arguments = NULL;
    const json_t *name = json_object_get(call, "name"), *given = json_object_get(call, "arguments");
    const char *field = given != NULL ? "arguments" : "parameters";
    given = given != NULL ? given : json_object_get(call, field);
    if (json_is_string(given))
        arguments = json_loadb(json_string_value(given), json_string_length(given), 0, NULL);
    else if (json_is_object(given))
        arguments = json_deep_copy(given);
    if (json_is_string(name) && json_string_length(name) > 0 && json_is_object(arguments)) {
        /* The model's own spelling where it can be kept: the next turn then renders to the same tokens. */
        bool changed = retype(r->tools, json_string_value(name), arguments) || !json_is_object(given);
        if (!changed && member_text(r->s + from, end - from, field, &raw, &raw_len))
            out->arguments = base_format("%.*s", (int)raw_len, raw);
        else
            out->arguments = dump(arguments);
        out->name = base_strdup(json_string_value(name));
        got = out->name != NULL && out->arguments != NULL ? ANSWER_CALL : ANSWER_FAILED;
        r->at = end;
    }
    json_decref(call);
    json_decref(arguments);
    return got;
}

/* ---- tag form ---- */

/* Text up to '>' on this line. */
static enum answer_parse read_name(struct reader *r, char **out)
{
    uint64_t from = r->at;
    while (r->at < r->n && r->s[r->at] != '>' && r->s[r->at] != '\n' && r->s[r->at] != '<')
        r->at++;
    if (r->at == r->n)
        return r->last ? ANSWER_TEXT : ANSWER_MORE;
    if (r->s[r->at] != '>' || r->at == from)
        return ANSWER_TEXT;
    if (memchr(r->s + from, 0, r->at - from) != NULL)
        return ANSWER_TEXT;
    *out = base_format("%.*s", (int)(r->at - from), r->s + from);
    r->at++;
    return *out != NULL ? ANSWER_CALL : ANSWER_FAILED;
}

/* A closing tag ends the value when the call goes on behind it. */
static enum answer_parse read_value(struct reader *r, const char **value, uint64_t *len)
{
    uint64_t from = r->at;
    for (;;) {
        const char *close = memmem(r->s + r->at, r->n - r->at, "</parameter>", 12);
        if (close == NULL)
            return r->last ? ANSWER_TEXT : ANSWER_MORE;
        uint64_t end = (uint64_t)(close - r->s);
        r->at = end + 12;
        struct reader ahead = *r;
        skip_blanks(&ahead);
        uint64_t here = ahead.at;
        enum answer_parse a = take(&ahead, "<parameter=");
        ahead.at = here;
        enum answer_parse b = take(&ahead, "</function>");
        if (a == ANSWER_CALL || b == ANSWER_CALL) {
            from += from < end && r->s[from] == '\n';
            end -= end > from && r->s[end - 1] == '\n';
            *value = r->s + from;
            *len = end - from;
            return ANSWER_CALL;
        }
        if (a == ANSWER_MORE || b == ANSWER_MORE)
            return ANSWER_MORE;
    }
}

static enum answer_parse read_parameters(struct reader *r, const char *name, json_t *arguments)
{
    for (;;) {
        skip_blanks(r);
        enum answer_parse got = take(r, "</function>");
        if (got == ANSWER_CALL)
            return ANSWER_CALL;
        enum answer_parse open = take(r, "<parameter=");
        if (open != ANSWER_CALL)
            return open == ANSWER_MORE || got == ANSWER_MORE ? ANSWER_MORE : ANSWER_TEXT;
        char *key = NULL;
        const char *text = NULL;
        uint64_t len = 0;
        got = read_name(r, &key);
        if (got == ANSWER_CALL)
            got = read_value(r, &text, &len);
        if (got == ANSWER_CALL) {
            json_t *v = typed(schema_of(r->tools, name, key), text, len);
            v = v != NULL ? v : json_stringn(text, len);
            got = json_object_set_new(arguments, key, v) == 0 ? ANSWER_CALL : ANSWER_TEXT;
        }
        base_free(key);
        if (got != ANSWER_CALL)
            return got;
    }
}

static enum answer_parse read_tags(struct reader *r, struct answer_call *out)
{
    enum answer_parse got = take(r, "<function=");
    if (got == ANSWER_CALL)
        got = read_name(r, &out->name);
    if (got != ANSWER_CALL)
        return got;
    json_t *arguments = json_object();
    got = arguments != NULL ? read_parameters(r, out->name, arguments) : ANSWER_FAILED;
    if (got == ANSWER_CALL && (out->arguments = dump(arguments)) == NULL)
        got = ANSWER_FAILED;
    json_decref(arguments);
    return got;
}

enum answer_parse answer_parse_call(const char *s, uint64_t n, bool last, const json_t *tools, struct answer_call *out, uint64_t *used)
{
    struct reader r = {.s = s, .n = n, .at = strlen("<tool_call>"), .last = last, .tools = tools};
    skip_blanks(&r);
    if (r.at == n)
        return last ? ANSWER_TEXT : ANSWER_MORE;
    enum answer_parse got = s[r.at] == '{' ? read_json(&r, out) : read_tags(&r, out);
    if (got != ANSWER_CALL) {
        answer_call_free(out);
        return got;
    }
    /* A call that is whole counts without its closing tag too: the next one may follow at once. */
    uint64_t end = r.at;
    skip_blanks(&r);
    if (r.at == n && !last)
        return answer_call_free(out), ANSWER_MORE;
    got = take(&r, "</tool_call>");
    if (got == ANSWER_MORE)
        return answer_call_free(out), ANSWER_MORE;
    *used = got == ANSWER_CALL ? r.at : end;
    return ANSWER_CALL;
}
