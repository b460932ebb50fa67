/* SPDX-License-Identifier: Apache-2.0
 *
 * chat.c - conversations to prompts: templates known by their text, messages checked once for all of them, control tokens only where
 * the template puts them.
 */
#include "config.h"
#include "chat_internal.h"
#include <string.h>

/* A template is known by the length and the FNV-1a hash of its text without blanks around it: a renderer in C stands for exactly that
 * text, and one changed word makes it another template. */
struct known_template {
    uint64_t bytes, hash;
    chat_render_fn render;
    int opens; /* the prompt ends in an open <think>: NEVER, UNLESS_OFF or ONLY_ON */
};
enum { NEVER, UNLESS_OFF, ONLY_ON };
static const struct known_template known[] = {
    {4116, 0x2bfdb7aa9754484eull, chat_render_qwen3, NEVER},
    {202, 0x617b645676b4e52bull, chat_render_chatml, NEVER},
    /* Qwen3.5 and 3.6, as published and with the loop over a call's arguments in the form that other Jinja engines take */
    {7756, 0xf07c510f47fbaca0ull, chat_render_qwen3_5, UNLESS_OFF},
    {7817, 0x6092d7fdd32bf5d5ull, chat_render_qwen3_5, UNLESS_OFF},
    {7755, 0x407bbcdeb62737b7ull, chat_render_qwen3_5_small, ONLY_ON},
    {7816, 0xec78de75eacfb478ull, chat_render_qwen3_5_small, ONLY_ON},
    {7764, 0x8ae3a8bc6e68f114ull, chat_render_qwen3_6, UNLESS_OFF},
    {7825, 0xada88a8d0f6e333full, chat_render_qwen3_6, UNLESS_OFF},
    {7763, 0x3592573f68705c43ull, chat_render_qwen3_6_small, ONLY_ON},
    {7824, 0xc0a0e6a44a6864a2ull, chat_render_qwen3_6_small, ONLY_ON},
};

struct text_chat {
    const struct text_tokenizer *t;
    const struct known_template *known;
    int32_t end_id;
};

static bool blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static const struct known_template *recognise(const char *text)
{
    uint64_t n = strlen(text), hash = 0xcbf29ce484222325ull;
    while (n > 0 && blank(text[n - 1]))
        n--;
    while (n > 0 && blank(*text)) {
        text++;
        n--;
    }
    for (uint64_t i = 0; i < n; i++)
        hash = (hash ^ (uint8_t)text[i]) * 0x100000001b3ull;
    for (uint64_t k = 0; k < sizeof(known) / sizeof(known[0]); k++)
        if (known[k].bytes == n && known[k].hash == hash)
            return &known[k];
    base_log(IFX_LOG_DEBUG, "chat template: %llu bytes, hash %016llx", (unsigned long long)n, (unsigned long long)hash);
    return NULL;
}

static int32_t check_tokens(const struct text_tokenizer *t)
{
    static const char *const needed[] = {"<|im_start|>", "<|im_end|>"};
    for (uint32_t i = 0; i < 2; i++)
        if (text_token_id(t, needed[i]) < 0)
            return base_error(IFX_EFORMAT, "the chat template needs the token %s, which the tokenizer does not have", needed[i]);
    for (uint32_t i = 0; i < t->n_added; i++)
        if (t->added[i].lstrip || t->added[i].rstrip || t->added[i].single_word)
            return base_error(IFX_EUNSUPPORTED, "chat with an added token that takes in blanks or wants whole words (\"%.80s\") "
                                                "is not supported", t->added[i].content);
    return IFX_OK;
}

int32_t text_chat_create(const struct text_tokenizer *t, const char *chat_template, struct text_chat **out)
{
    *out = NULL;
    if (chat_template == NULL)
        chat_template = t->chat_template;
    if (chat_template == NULL)
        return base_error(IFX_EUNSUPPORTED, "the model has no chat template (tokenizer_config.json, chat_template.jinja): it can go "
                                            "on from a plain text, it cannot chat");
    const struct known_template *k = recognise(chat_template);
    if (k == NULL)
        return base_error(IFX_EUNSUPPORTED,
                          "the model's chat template is not one that this program knows, and guessing would feed the model "
                          "prompts it was not trained on; render prompts elsewhere and give them as plain text with control "
                          "tokens recognised (run --raw), or replace the template by the published one of its family");
    int32_t st = check_tokens(t);
    if (st != IFX_OK)
        return st;
    struct text_chat *c = base_calloc(1, sizeof(*c));
    if (c == NULL)
        return IFX_ENOMEM;
    c->t = t;
    c->known = k;
    c->end_id = text_token_id(t, "<|im_end|>");
    *out = c;
    return IFX_OK;
}

void text_chat_destroy(struct text_chat *c)
{
    base_free(c);
}

bool text_chat_takes_tools(const struct text_chat *c)
{
    return c->known->render != chat_render_chatml;
}

int32_t text_chat_end_id(const struct text_chat *c)
{
    return c->end_id;
}

bool text_chat_opens_thought(const struct text_chat *c, const struct text_chat_options *o)
{
    bool opens = c->known->opens == UNLESS_OFF ? o->thinking != TEXT_THINK_OFF : c->known->opens == ONLY_ON && o->thinking == TEXT_THINK_ON;
    return o->add_generation_prompt && opens;
}

/* ---- writing ---- */
int32_t chat_content(struct chat_prompt *p, struct chat_text text)
{
    return text.n == 0 ? IFX_OK : base_buf_add(&p->text, text.s, text.n);
}

static int32_t mark(struct chat_prompt *p, uint64_t offset, const struct text_added *a)
{
    if (p->n_marks == p->marks_cap) {
        uint64_t cap = p->marks_cap * 2 + 32;
        struct chat_mark *marks = base_realloc(p->marks, cap, sizeof(*marks));
        if (marks == NULL)
            return IFX_ENOMEM;
        p->marks = marks;
        p->marks_cap = cap;
    }
    p->marks[p->n_marks++] = (struct chat_mark){.offset = offset, .len = a->pattern_len, .id = a->id};
    return IFX_OK;
}

int32_t chat_literal(struct chat_prompt *p, const char *literal)
{
    uint32_t n = (uint32_t)strlen(literal), pos = 0, from = 0, start = 0, end = 0;
    uint64_t offset = p->text.len;
    int32_t st = base_buf_add(&p->text, literal, n);
    while (st == IFX_OK && from < n) {
        /* Both kinds of added tokens; ASCII is its own normal form. */
        uint32_t pos2 = pos, start2 = 0, end2 = 0;
        const struct text_added *a = text_added_next(&p->t->raw, literal, n, from, &pos, &start, &end);
        const struct text_added *b = text_added_next(&p->t->normalized, literal, n, from, &pos2, &start2, &end2);
        if (b != NULL && (a == NULL || start2 < start)) {
            a = b;
            start = start2;
            end = end2;
        }
        if (a == NULL)
            break;
        st = mark(p, offset + start, a);
        pos = from = end;
    }
    return st;
}

int32_t chat_tojson(struct chat_prompt *p, const json_t *value)
{
    return chat_json_text(value, &p->text);
}

/* ---- text helpers ---- */
bool chat_starts(struct chat_text t, const char *with)
{
    uint64_t n = strlen(with);
    return t.n >= n && memcmp(t.s, with, n) == 0;
}

bool chat_ends(struct chat_text t, const char *with)
{
    uint64_t n = strlen(with);
    return t.n >= n && memcmp(t.s + t.n - n, with, n) == 0;
}

const char *chat_find(struct chat_text t, const char *what)
{
    return t.n == 0 ? NULL : memmem(t.s, t.n, what, strlen(what));
}

const char *chat_find_last(struct chat_text t, const char *what)
{
    const char *last = NULL, *p;
    while ((p = chat_find(t, what)) != NULL) {
        last = p;
        t.n -= (uint64_t)(p + strlen(what) - t.s);
        t.s = p + strlen(what);
    }
    return last;
}

struct chat_text chat_lstrip(struct chat_text t, char c)
{
    while (t.n > 0 && *t.s == c) {
        t.s++;
        t.n--;
    }
    return t;
}

struct chat_text chat_rstrip(struct chat_text t, char c)
{
    while (t.n > 0 && t.s[t.n - 1] == c)
        t.n--;
    return t;
}

/* ---- messages ---- */
static struct chat_text text_of(const json_t *string)
{
    return (struct chat_text){.s = json_string_value(string), .n = json_string_length(string)};
}

static int32_t get_role(const json_t *node, uint64_t i, enum chat_role *role)
{
    static const struct {
        const char *name;
        enum chat_role role;
    } roles[] = {{"system", CHAT_SYSTEM}, {"developer", CHAT_SYSTEM}, {"user", CHAT_USER}, {"assistant", CHAT_ASSISTANT}, {"tool", CHAT_TOOL}};
    const char *name = json_string_value(json_object_get(node, "role"));
    if (name == NULL)
        return base_error(IFX_EINVAL, "messages[%llu].role: missing or not a string", (unsigned long long)i);
    for (uint32_t k = 0; k < 5; k++)
        if (strcmp(name, roles[k].name) == 0) {
            *role = roles[k].role;
            return IFX_OK;
        }
    return base_error(IFX_EINVAL, "messages[%llu].role: unknown role \"%.80s\"; known are system, developer, user, assistant, tool",
                      (unsigned long long)i, name);
}

static int32_t join_parts(const json_t *parts, uint64_t i, struct chat_message *m)
{
    struct base_buf b = {0};
    const json_t *part;
    size_t k;
    int32_t st = base_buf_add(&b, "", 0);
    json_array_foreach(parts, k, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");
        if (type == NULL)
            st = base_error(IFX_EINVAL, "messages[%llu].content[%llu].type: missing or not a string", (unsigned long long)i,
                            (unsigned long long)k);
        else if (strcmp(type, "text") != 0)
            st = base_error(IFX_EUNSUPPORTED, "messages[%llu].content[%llu]: a part of type \"%.80s\": only text is supported",
                            (unsigned long long)i, (unsigned long long)k, type);
        else if (!json_is_string(text))
            st = base_error(IFX_EINVAL, "messages[%llu].content[%llu].text: missing or not a string", (unsigned long long)i,
                            (unsigned long long)k);
        if (st == IFX_OK)
            st = base_buf_add(&b, json_string_value(text), json_string_length(text));
        if (st != IFX_OK)
            break;
    }
    if (st != IFX_OK) {
        base_buf_free(&b);
        return st;
    }
    m->joined = b.data;
    m->content = (struct chat_text){.s = b.data, .n = b.len};
    return IFX_OK;
}

static int32_t get_content(const json_t *node, uint64_t i, struct chat_message *m)
{
    const json_t *content = json_object_get(node, "content");
    m->content = (struct chat_text){.s = "", .n = 0};
    if (json_is_string(content)) {
        m->content = text_of(content);
        return IFX_OK;
    }
    if (json_is_array(content))
        return join_parts(content, i, m);
    if ((content == NULL || json_is_null(content)) && m->role == CHAT_ASSISTANT)
        return IFX_OK;
    return base_error(IFX_EINVAL, "messages[%llu].content: %s; a string or a list of text parts is expected",
                      (unsigned long long)i, content == NULL || json_is_null(content) ? "missing" : "wrong type");
}

static int32_t get_message(const json_t *node, uint64_t i, struct chat_message *m)
{
    if (!json_is_object(node))
        return base_error(IFX_EINVAL, "messages[%llu]: an object is expected", (unsigned long long)i);
    int32_t st = get_role(node, i, &m->role);
    if (st == IFX_OK)
        st = get_content(node, i, m);
    if (st != IFX_OK)
        return st;
    const json_t *calls = json_object_get(node, "tool_calls"), *reasoning = json_object_get(node, "reasoning_content");
    if (calls != NULL && !json_is_null(calls) && !json_is_array(calls))
        return base_error(IFX_EINVAL, "messages[%llu].tool_calls: a list is expected", (unsigned long long)i);
    if (json_array_size(calls) > 0 && m->role != CHAT_ASSISTANT)
        return base_error(IFX_EINVAL, "messages[%llu].tool_calls: only an assistant message has them", (unsigned long long)i);
    m->tool_calls = json_array_size(calls) > 0 ? calls : NULL;
    if (reasoning != NULL && !json_is_null(reasoning) && !json_is_string(reasoning))
        return base_error(IFX_EINVAL, "messages[%llu].reasoning_content: a string is expected", (unsigned long long)i);
    if (json_is_string(reasoning))
        m->reasoning = text_of(reasoning);
    return IFX_OK;
}

static void free_messages(struct chat_messages *m)
{
    for (uint64_t i = 0; i < m->n; i++)
        base_free(m->list[i].joined);
    base_free(m->list);
}

static int32_t get_messages(const json_t *messages, struct chat_messages *m)
{
    const json_t *node;
    size_t i;
    if (!json_is_array(messages))
        return base_error(IFX_EINVAL, "messages: a list is expected");
    if (json_array_size(messages) == 0)
        return base_error(IFX_EINVAL, "messages: the list is empty; at least one message is needed");
    m->list = base_calloc(json_array_size(messages), sizeof(*m->list));
    if (m->list == NULL)
        return IFX_ENOMEM;
    m->n = json_array_size(messages);
    json_array_foreach(messages, i, node) {
        int32_t st = get_message(node, i, &m->list[i]);
        if (st != IFX_OK)
            return st;
    }
    return IFX_OK;
}

int32_t chat_call_get(const json_t *calls, uint64_t index, uint64_t message, struct chat_call *out)
{
    const json_t *call = json_array_get(calls, index), *function = json_object_get(call, "function");
    if (json_object_size(function) > 0)
        call = function;
    const json_t *name = json_object_get(call, "name");
    out->arguments = json_object_get(call, "arguments");
    if (!json_is_string(name))
        return base_error(IFX_EINVAL, "messages[%llu].tool_calls[%llu]: no function name", (unsigned long long)message,
                          (unsigned long long)index);
    out->name = text_of(name);
    return IFX_OK;
}

static int32_t check_tools(const json_t *tools)
{
    const json_t *tool;
    size_t i;
    if (tools != NULL && !json_is_null(tools) && !json_is_array(tools))
        return base_error(IFX_EINVAL, "tools: a list is expected");
    json_array_foreach(tools, i, tool)
        if (!json_is_object(tool))
            return base_error(IFX_EINVAL, "tools[%llu]: an object is expected", (unsigned long long)i);
    return IFX_OK;
}

static int32_t render(const struct text_chat *c, const json_t *messages, const struct text_chat_options *o,
                      struct chat_prompt *p)
{
    struct chat_messages m = {0};
    struct text_chat_options checked = *o;
    if (json_array_size(o->tools) == 0)
        checked.tools = NULL;
    p->t = c->t;
    int32_t st = check_tools(o->tools);
    if (st == IFX_OK)
        st = get_messages(messages, &m);
    if (st == IFX_OK)
        st = c->known->render(p, &m, &checked);
    free_messages(&m);
    return st;
}

static void free_prompt(struct chat_prompt *p)
{
    base_buf_free(&p->text);
    base_free(p->marks);
}

int32_t text_chat_render(const struct text_chat *c, const json_t *messages, const struct text_chat_options *o,
                         struct base_buf *out)
{
    struct chat_prompt p = {0};
    int32_t st = render(c, messages, o, &p);
    if (st == IFX_OK)
        st = base_buf_add(out, p.text.data ? p.text.data : "", p.text.len);
    free_prompt(&p);
    return st;
}

int32_t text_chat_ids(const struct text_chat *c, const json_t *messages, const struct text_chat_options *o, int32_t **ids,
                      uint64_t *n_ids)
{
    struct chat_prompt p = {0};
    struct text_ids out = {.data = *ids, .n = *n_ids, .cap = *n_ids};
    uint64_t from = 0;
    int32_t st = render(c, messages, o, &p);
    for (uint64_t i = 0; i <= p.n_marks && st == IFX_OK; i++) {
        uint64_t to = i < p.n_marks ? p.marks[i].offset : p.text.len;
        if (to > from) {
            st = text_encode(c->t, p.text.data + from, to - from, 0, &out.data, &out.n);
            out.cap = out.n;
        }
        if (st == IFX_OK && i < p.n_marks) {
            st = text_ids_add(&out, p.marks[i].id);
            from = to + p.marks[i].len;
        }
    }
    *ids = out.data;
    if (st == IFX_OK)
        *n_ids = out.n;
    free_prompt(&p);
    return st;
}
