/* SPDX-License-Identifier: Apache-2.0
 *
 * chat_internal.h - between chat.c, the templates and their tests: checked messages, and the prompt being written.
 */
#ifndef INFERNIX_CORE_CHAT_INTERNAL_H
#define INFERNIX_CORE_CHAT_INTERNAL_H

#include "text_internal.h"

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL };

struct chat_text {
    const char *s;
    uint64_t n;
};
struct chat_message {
    enum chat_role role;
    struct chat_text content;   /* "" for null */
    struct chat_text reasoning; /* s NULL: not given */
    const json_t *tool_calls;   /* NULL: none; else not empty */
    char *joined;               /* owned: content put together from parts */
};
struct chat_messages {
    struct chat_message *list;
    uint64_t n;
};

/* The prompt: text, and where the template (and nothing else) put control tokens. */
struct chat_mark {
    uint64_t offset, len;
    int32_t id;
};
struct chat_prompt {
    const struct text_tokenizer *t;
    struct base_buf text;
    struct chat_mark *marks;
    uint64_t n_marks, marks_cap;
};
int32_t chat_literal(struct chat_prompt *p, const char *literal);          /* the template's own words: control tokens count */
int32_t chat_content(struct chat_prompt *p, struct chat_text text);        /* anybody else's: they do not */
int32_t chat_tojson(struct chat_prompt *p, const json_t *value);           /* as Python's json.dumps, not ASCII-escaped */
int32_t chat_json_text(const json_t *value, struct base_buf *out);         /* json.c */

bool chat_starts(struct chat_text t, const char *with);
bool chat_ends(struct chat_text t, const char *with);
/* Start of the first / last occurrence in t, or NULL. */
const char *chat_find(struct chat_text t, const char *what);
const char *chat_find_last(struct chat_text t, const char *what);
struct chat_text chat_lstrip(struct chat_text t, char c);
struct chat_text chat_rstrip(struct chat_text t, char c);

struct chat_call {
    struct chat_text name;
    const json_t *arguments; /* string (as it stands), any JSON value, or NULL */
};
/* tool_calls[index] of messages[message], in its "function" or bare; arguments NULL: none. */
int32_t chat_call_get(const json_t *calls, uint64_t index, uint64_t message, struct chat_call *out);

/* Takes "<think>...</think>" at the head of an answer apart, as the templates do; leaves both alone when there is none. */
void chat_split_thought(struct chat_text whole, struct chat_text *thought, struct chat_text *content);

/* Templates. */
typedef int32_t (*chat_render_fn)(struct chat_prompt *p, const struct chat_messages *m, const struct text_chat_options *o);
int32_t chat_render_qwen3(struct chat_prompt *p, const struct chat_messages *m, const struct text_chat_options *o);
int32_t chat_render_qwen3_5(struct chat_prompt *p, const struct chat_messages *m, const struct text_chat_options *o);
int32_t chat_render_qwen3_5_small(struct chat_prompt *p, const struct chat_messages *m, const struct text_chat_options *o);
int32_t chat_render_qwen3_6(struct chat_prompt *p, const struct chat_messages *m, const struct text_chat_options *o);
int32_t chat_render_qwen3_6_small(struct chat_prompt *p, const struct chat_messages *m, const struct text_chat_options *o);
int32_t chat_render_chatml(struct chat_prompt *p, const struct chat_messages *m, const struct text_chat_options *o);

#endif
