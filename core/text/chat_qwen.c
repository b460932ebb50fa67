/* SPDX-License-Identifier: Apache-2.0
 *
 * chat_qwen.c - what the published templates print, said in C: Qwen3's, and the plain ChatML loop of the demo model.
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

static const char *const role_names[] = {"system", "user", "assistant", "tool"};

static int32_t open_turn(struct chat_prompt *p, enum chat_role role)
{
    TRY(chat_literal(p, "<|im_start|>"));
    TRY(chat_literal(p, role_names[role]));
    return chat_literal(p, "\n");
}

static int32_t whole_turn(struct chat_prompt *p, enum chat_role role, struct chat_text content)
{
    TRY(open_turn(p, role));
    TRY(chat_content(p, content));
    return chat_literal(p, "<|im_end|>\n");
}

int32_t chat_render_chatml(struct chat_prompt *p, const struct chat_messages *m, const struct text_chat_options *o)
{
    if (o->tools != NULL)
        return base_error(IFX_EUNSUPPORTED, "tools: this model's chat template has no place for them");
    for (uint64_t i = 0; i < m->n; i++) {
        if (m->list[i].tool_calls != NULL)
            return base_error(IFX_EUNSUPPORTED, "messages[%llu].tool_calls: this model's chat template has no place for them",
                              (unsigned long long)i);
        TRY(whole_turn(p, m->list[i].role, m->list[i].content));
    }
    return o->add_generation_prompt ? chat_literal(p, "<|im_start|>assistant\n") : IFX_OK;
}

/* Index of the last question: a user message that is not a tool's answer in disguise; the last message when there is none. */
static uint64_t last_query(const struct chat_messages *m)
{
    for (uint64_t i = m->n; i-- > 0;) {
        const struct chat_message *x = &m->list[i];
        if (x->role == CHAT_USER &&
            !(chat_starts(x->content, "<tool_response>") && chat_ends(x->content, "</tool_response>")))
            return i;
    }
    return m->n - 1;
}

void chat_split_thought(struct chat_text whole, struct chat_text *thought, struct chat_text *content)
{
    const char *first = chat_find(whole, "</think>"), *last = chat_find_last(whole, "</think>");
    if (first == NULL)
        return;
    last += strlen("</think>");
    *content = chat_lstrip((struct chat_text){.s = last, .n = whole.n - (uint64_t)(last - whole.s)}, '\n');
    struct chat_text t = chat_rstrip((struct chat_text){.s = whole.s, .n = (uint64_t)(first - whole.s)}, '\n');
    const char *open = chat_find_last(t, "<think>");
    if (open != NULL) {
        open += strlen("<think>");
        t.n -= (uint64_t)(open - t.s);
        t.s = open;
    }
    *thought = chat_lstrip(t, '\n');
}

static int32_t qwen3_calls(struct chat_prompt *p, const json_t *calls, uint64_t message, bool after_text)
{
    for (uint64_t i = 0; i < json_array_size(calls); i++) {
        struct chat_call call;
        TRY(chat_call_get(calls, i, message, &call));
        if (call.arguments == NULL)
            return base_error(IFX_EINVAL, "messages[%llu].tool_calls[%llu]: no arguments", (unsigned long long)message,
                              (unsigned long long)i);
        if (i > 0 || after_text)
            TRY(chat_literal(p, "\n"));
        TRY(chat_literal(p, "<tool_call>\n{\"name\": \""));
        TRY(chat_content(p, call.name));
        TRY(chat_literal(p, "\", \"arguments\": "));
        if (json_is_string(call.arguments))
            TRY(chat_content(p, (struct chat_text){json_string_value(call.arguments), json_string_length(call.arguments)}));
        else
            TRY(chat_tojson(p, call.arguments));
        TRY(chat_literal(p, "}\n</tool_call>"));
    }
    return IFX_OK;
}

static int32_t qwen3_assistant(struct chat_prompt *p, const struct chat_messages *m, uint64_t i, uint64_t query)
{
    const struct chat_message *x = &m->list[i];
    struct chat_text content = x->content, thought = {.s = "", .n = 0};
    if (x->reasoning.s != NULL)
        thought = x->reasoning;
    else
        chat_split_thought(x->content, &thought, &content);
    TRY(open_turn(p, CHAT_ASSISTANT));
    if (i > query && (i + 1 == m->n || thought.n > 0)) {
        TRY(chat_literal(p, "<think>\n"));
        TRY(chat_content(p, chat_rstrip(chat_lstrip(thought, '\n'), '\n')));
        TRY(chat_literal(p, "\n</think>\n\n"));
        TRY(chat_content(p, chat_lstrip(content, '\n')));
    } else {
        TRY(chat_content(p, content));
    }
    TRY(qwen3_calls(p, x->tool_calls, i, content.n > 0));
    return chat_literal(p, "<|im_end|>\n");
}

static int32_t qwen3_tool(struct chat_prompt *p, const struct chat_messages *m, uint64_t i)
{
    if (i == 0 || m->list[i - 1].role != CHAT_TOOL)
        TRY(chat_literal(p, "<|im_start|>user"));
    TRY(chat_literal(p, "\n<tool_response>\n"));
    TRY(chat_content(p, m->list[i].content));
    TRY(chat_literal(p, "\n</tool_response>"));
    return i + 1 == m->n || m->list[i + 1].role != CHAT_TOOL ? chat_literal(p, "<|im_end|>\n") : IFX_OK;
}

static int32_t qwen3_head(struct chat_prompt *p, const struct chat_messages *m, const json_t *tools)
{
    const struct chat_message *first = &m->list[0];
    if (tools == NULL)
        return first->role == CHAT_SYSTEM ? whole_turn(p, CHAT_SYSTEM, first->content) : IFX_OK;
    TRY(open_turn(p, CHAT_SYSTEM));
    if (first->role == CHAT_SYSTEM) {
        TRY(chat_content(p, first->content));
        TRY(chat_literal(p, "\n\n"));
    }
    TRY(chat_literal(p, "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided "
                        "with function signatures within <tools></tools> XML tags:\n<tools>"));
    for (uint64_t i = 0; i < json_array_size(tools); i++) {
        TRY(chat_literal(p, "\n"));
        TRY(chat_tojson(p, json_array_get(tools, i)));
    }
    return chat_literal(p, "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
                           "within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, "
                           "\"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n");
}

int32_t chat_render_qwen3(struct chat_prompt *p, const struct chat_messages *m, const struct text_chat_options *o)
{
    uint64_t query = last_query(m);
    TRY(qwen3_head(p, m, o->tools));
    for (uint64_t i = 0; i < m->n; i++) {
        switch (m->list[i].role) {
        case CHAT_SYSTEM:
            if (i > 0)
                TRY(whole_turn(p, CHAT_SYSTEM, m->list[i].content));
            break;
        case CHAT_USER:
            TRY(whole_turn(p, CHAT_USER, m->list[i].content));
            break;
        case CHAT_ASSISTANT:
            TRY(qwen3_assistant(p, m, i, query));
            break;
        case CHAT_TOOL:
            TRY(qwen3_tool(p, m, i));
            break;
        }
    }
    if (!o->add_generation_prompt)
        return IFX_OK;
    TRY(chat_literal(p, "<|im_start|>assistant\n"));
    return o->thinking == TEXT_THINK_OFF ? chat_literal(p, "<think>\n\n</think>\n\n") : IFX_OK;
}
