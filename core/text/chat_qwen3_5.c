/* SPDX-License-Identifier: Apache-2.0
 *
 * chat_qwen3_5.c - what the templates of Qwen3.5 and Qwen3.6 print, said in C.
 *
 * Against Qwen3's: every content is trimmed, tool calls are <function=...> with <parameter=...> blocks, the thought of every answer after the
 * last question is written even when empty, and the prompt ends in an open <think> where thinking is on.  The two releases differ in how
 * an argument that is no text is written; the small models of Qwen3.5 think only when asked to.
 */
#include "config.h"
#include "chat_internal.h"
#include <string.h>

#define TRY(call)                                                                                                    \
    do {                                                                                                             \
        int32_t try_ = (call);                                                                                       \
        if (try_ != IFX_OK)                                                                                          \
            return try_;                                                                                             \
    } while (0)

struct flavour {
    bool python_values; /* true, false and null as True, False and None */
    bool thinks;        /* unless it is told not to; else only when it is told to */
};

/* ---- trimming as Python's str.strip() does it ---- */

/* Bytes of the white space that starts at s, 0: none does. */
static uint64_t space_at(const char *s, uint64_t n)
{
    static const char *const wide[] = {"\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81", "\xe2\x80\x82", "\xe2\x80\x83",
                                       "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86", "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a",
                                       "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};
    unsigned char c = n > 0 ? (unsigned char)*s : 0;
    if (c == ' ' || (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x1f))
        return 1;
    for (size_t i = 0; c >= 0x80 && i < sizeof(wide) / sizeof(wide[0]); i++)
        if (n >= strlen(wide[i]) && memcmp(s, wide[i], strlen(wide[i])) == 0)
            return strlen(wide[i]);
    return 0;
}

static struct chat_text trim(struct chat_text t)
{
    uint64_t k;
    while ((k = space_at(t.s, t.n)) > 0) {
        t.s += k;
        t.n -= k;
    }
    for (;;) {
        uint64_t back = 0;
        for (uint64_t b = 1; b <= 3 && b <= t.n && back == 0; b++)
            back = space_at(t.s + t.n - b, b) == b ? b : 0;
        if (back == 0)
            return t;
        t.n -= back;
    }
}

/* ---- pieces ---- */

static int32_t turn(struct chat_prompt *p, const char *head, struct chat_text content)
{
    TRY(chat_literal(p, head));
    TRY(chat_content(p, content));
    return chat_literal(p, "<|im_end|>\n");
}

static int32_t head(struct chat_prompt *p, const struct chat_messages *m, const json_t *tools)
{
    struct chat_text system = {.s = "", .n = 0};
    bool has_system = m->list[0].role == CHAT_SYSTEM;
    if (has_system)
        system = trim(m->list[0].content);
    if (tools == NULL)
        return has_system ? turn(p, "<|im_start|>system\n", system) : IFX_OK;
    TRY(chat_literal(p, "<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>"));
    for (uint64_t i = 0; i < json_array_size(tools); i++) {
        TRY(chat_literal(p, "\n"));
        TRY(chat_tojson(p, json_array_get(tools, i)));
    }
    TRY(chat_literal(p, "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n<tool_call>\n"
                        "<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
                        "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
                        "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
                        "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within "
                        "<tool_call></tool_call> XML tags\n- Required parameters MUST be specified\n"
                        "- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT "
                        "after\n- If there is no function call available, answer the question like normal with your current knowledge and do "
                        "not tell the user about function calls\n</IMPORTANT>"));
    if (system.n > 0)
        TRY(chat_literal(p, "\n\n"));
    return turn(p, "", system);
}

/* Index of the last question: a user message that is not a tool's answer in disguise. */
static int32_t find_query(const struct chat_messages *m, uint64_t *query)
{
    for (uint64_t i = m->n; i-- > 0;) {
        const struct chat_message *x = &m->list[i];
        struct chat_text content = trim(x->content);
        *query = i;
        if (x->role == CHAT_USER && !(chat_starts(content, "<tool_response>") && chat_ends(content, "</tool_response>")))
            return IFX_OK;
    }
    return base_error(IFX_EINVAL, "messages: no user query found: this model's template needs a message of role user");
}

static int32_t value(struct chat_prompt *p, const struct flavour *f, const json_t *v)
{
    if (json_is_string(v))
        return chat_content(p, (struct chat_text){json_string_value(v), json_string_length(v)});
    if (f->python_values && (json_is_boolean(v) || json_is_null(v)))
        return chat_literal(p, json_is_true(v) ? "True" : json_is_false(v) ? "False" : "None");
    return chat_tojson(p, v);
}

static int32_t parameters(struct chat_prompt *p, const struct flavour *f, const json_t *arguments)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)arguments, name, v) {
        TRY(chat_literal(p, "<parameter="));
        TRY(chat_content(p, (struct chat_text){name, strlen(name)}));
        TRY(chat_literal(p, ">\n"));
        TRY(value(p, f, v));
        TRY(chat_literal(p, "\n</parameter>\n"));
    }
    return IFX_OK;
}

/* Clients send the arguments as the JSON text that they got: the template takes the object that it stands for. */
static int32_t arguments(struct chat_prompt *p, const struct flavour *f, const struct chat_call *call, uint64_t message, uint64_t index)
{
    const json_t *a = call->arguments;
    json_t *parsed = NULL;
    if (a == NULL || json_is_null(a) || (json_is_string(a) && json_string_length(a) == 0))
        return IFX_OK;
    if (json_is_string(a))
        a = parsed = json_loadb(json_string_value(a), json_string_length(a), JSON_REJECT_DUPLICATES, NULL);
    int32_t st = IFX_OK;
    if (!json_is_object(a))
        st = base_error(IFX_EINVAL, "messages[%llu].tool_calls[%llu].arguments: an object, or the JSON text of one, is expected",
                        (unsigned long long)message, (unsigned long long)index);
    else
        st = parameters(p, f, a);
    json_decref(parsed);
    return st;
}

static int32_t calls(struct chat_prompt *p, const struct flavour *f, const json_t *list, uint64_t message, bool after_text)
{
    for (uint64_t i = 0; i < json_array_size(list); i++) {
        struct chat_call call;
        TRY(chat_call_get(list, i, message, &call));
        TRY(chat_literal(p, i > 0 ? "\n<tool_call>\n<function=" : after_text ? "\n\n<tool_call>\n<function=" : "<tool_call>\n<function="));
        TRY(chat_content(p, call.name));
        TRY(chat_literal(p, ">\n"));
        TRY(arguments(p, f, &call, message, i));
        TRY(chat_literal(p, "</function>\n</tool_call>"));
    }
    return IFX_OK;
}

static int32_t assistant(struct chat_prompt *p, const struct flavour *f, const struct chat_messages *m, uint64_t i, uint64_t query)
{
    const struct chat_message *x = &m->list[i];
    struct chat_text content = trim(x->content), thought = {.s = "", .n = 0};
    if (x->reasoning.s != NULL)
        thought = x->reasoning;
    else
        chat_split_thought(content, &thought, &content);
    TRY(chat_literal(p, "<|im_start|>assistant\n"));
    if (i > query) {
        TRY(chat_literal(p, "<think>\n"));
        TRY(chat_content(p, trim(thought)));
        TRY(chat_literal(p, "\n</think>\n\n"));
    }
    TRY(chat_content(p, content));
    TRY(calls(p, f, x->tool_calls, i, trim(content).n > 0));
    return chat_literal(p, "<|im_end|>\n");
}

static int32_t tool(struct chat_prompt *p, const struct chat_messages *m, uint64_t i)
{
    if (i > 0 && m->list[i - 1].role != CHAT_TOOL)
        TRY(chat_literal(p, "<|im_start|>user"));
    TRY(chat_literal(p, "\n<tool_response>\n"));
    TRY(chat_content(p, trim(m->list[i].content)));
    TRY(chat_literal(p, "\n</tool_response>"));
    return i + 1 == m->n || m->list[i + 1].role != CHAT_TOOL ? chat_literal(p, "<|im_end|>\n") : IFX_OK;
}

static int32_t message(struct chat_prompt *p, const struct flavour *f, const struct chat_messages *m, uint64_t i, uint64_t query)
{
    switch (m->list[i].role) {
    case CHAT_SYSTEM: /* the first one was written with the head */
        return i == 0 ? IFX_OK
                      : base_error(IFX_EINVAL, "messages[%llu]: a system message must be at the beginning", (unsigned long long)i);
    case CHAT_USER:
        return turn(p, "<|im_start|>user\n", trim(m->list[i].content));
    case CHAT_ASSISTANT:
        return assistant(p, f, m, i, query);
    default:
        return tool(p, m, i);
    }
}

static int32_t render(struct chat_prompt *p, const struct flavour *f, const struct chat_messages *m, const struct text_chat_options *o)
{
    uint64_t query;
    TRY(find_query(m, &query));
    TRY(head(p, m, o->tools));
    for (uint64_t i = 0; i < m->n; i++)
        TRY(message(p, f, m, i, query));
    if (!o->add_generation_prompt)
        return IFX_OK;
    bool think = o->thinking == TEXT_THINK_ON || (o->thinking == TEXT_THINK_DEFAULT && f->thinks);
    return chat_literal(p, think ? "<|im_start|>assistant\n<think>\n" : "<|im_start|>assistant\n<think>\n\n</think>\n\n");
}

int32_t chat_render_qwen3_5(struct chat_prompt *p, const struct chat_messages *m, const struct text_chat_options *o)
{
    return render(p, &(struct flavour){.python_values = true, .thinks = true}, m, o);
}

int32_t chat_render_qwen3_5_small(struct chat_prompt *p, const struct chat_messages *m, const struct text_chat_options *o)
{
    return render(p, &(struct flavour){.python_values = true, .thinks = false}, m, o);
}

int32_t chat_render_qwen3_6(struct chat_prompt *p, const struct chat_messages *m, const struct text_chat_options *o)
{
    return render(p, &(struct flavour){.python_values = false, .thinks = true}, m, o);
}

int32_t chat_render_qwen3_6_small(struct chat_prompt *p, const struct chat_messages *m, const struct text_chat_options *o)
{
    return render(p, &(struct flavour){.python_values = false, .thinks = false}, m, o);
}
