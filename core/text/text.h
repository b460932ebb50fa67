/* SPDX-License-Identifier: Apache-2.0
 *
 * text.h - tokenizer, streaming detokenizer, chat rendering, stop strings.
 */
#ifndef INFERNIX_CORE_TEXT_H
#define INFERNIX_CORE_TEXT_H

#include "base.h"
#include <jansson.h>

struct text_tokenizer;
/* From the bytes of tokenizer.json (byte-level BPE; pattern, normalizer, added tokens read from it) and, if given, tokenizer_config.json. */
int32_t text_tokenizer_create(const char *json, uint64_t bytes, const char *config_json, uint64_t config_bytes,
                              struct text_tokenizer **out);
/* From a folder with tokenizer.json (tokenizer_config.json and chat_template.jinja beside it are read too), such a file itself, or a model. */
int32_t text_tokenizer_open(const char *path, struct text_tokenizer **out);
void text_tokenizer_destroy(struct text_tokenizer *t);
uint32_t text_vocab_size(const struct text_tokenizer *t); /* highest id + 1 */
const char *text_tokenizer_template(const struct text_tokenizer *t); /* chat template of tokenizer_config.json, or NULL */

#define TEXT_SPECIALS 1u /* recognise added/special tokens spelled in the text */
/* Appends ids.  *ids is grown with base_realloc.  Text need not be valid UTF-8: invalid bytes become U+FFFD as the reference does.  Polls
 * base_cancelled. */
int32_t text_encode(const struct text_tokenizer *t, const char *text, uint64_t bytes, uint32_t flags, int32_t **ids,
                    uint64_t *n_ids);
/* Id of a token spelled exactly so among the added tokens, or -1. */
int32_t text_token_id(const struct text_tokenizer *t, const char *content);
bool text_is_special(const struct text_tokenizer *t, int32_t id);

/* Whole decode; invalid UTF-8 becomes U+FFFD, one per maximal invalid part; ids outside the vocabulary give nothing. */
int32_t text_decode(const struct text_tokenizer *t, const int32_t *ids, uint64_t n, bool skip_special,
                    struct base_buf *out);

/* Bytes of one token, which need not be valid UTF-8; nothing for ids outside the vocabulary. */
int32_t text_token_bytes(const struct text_tokenizer *t, int32_t id, struct base_buf *out);

/* Streaming: push ids, take bytes that are complete UTF-8.  The concatenation of all outputs, finish included, equals text_decode. */
struct text_stream;
int32_t text_stream_create(const struct text_tokenizer *t, bool skip_special, struct text_stream **out);
void text_stream_destroy(struct text_stream *s);
int32_t text_stream_push(struct text_stream *s, int32_t id, struct base_buf *out);
int32_t text_stream_finish(struct text_stream *s, struct base_buf *out);

/* Stop strings over streamed text: feed bytes, get those that can no longer be part of a stop; *stopped when one was found (text before it
 * is delivered, it and what follows is not).  Holds back at most the longest stop - 1 bytes. */
struct text_stop;
int32_t text_stop_create(const char *const *stops, uint32_t n, struct text_stop **out); /* empty string: IFX_EINVAL */
void text_stop_destroy(struct text_stop *s);
int32_t text_stop_feed(struct text_stop *s, const char *bytes, uint64_t n, struct base_buf *out, bool *stopped);
int32_t text_stop_finish(struct text_stop *s, struct base_buf *out);
const char *text_stop_found(const struct text_stop *s); /* the one that was found, or NULL; lives as long as s */

/* ---- chat ---- */
#define TEXT_THINK_DEFAULT 0
#define TEXT_THINK_ON      1
#define TEXT_THINK_OFF     2
struct text_chat_options {
    bool add_generation_prompt;
    int thinking;
    const json_t *tools; /* array or NULL */
};
struct text_chat;
/* Knows the published Qwen templates by what they say; another template is IFX_EUNSUPPORTED with a message that says so.  template NULL: taken
 * from tokenizer_config.json of the tokenizer. */
int32_t text_chat_create(const struct text_tokenizer *t, const char *chat_template, struct text_chat **out);
void text_chat_destroy(struct text_chat *c);
/* The prompt as text (what the reference template renders), byte-exact. */
int32_t text_chat_render(const struct text_chat *c, const json_t *messages, const struct text_chat_options *o,
                         struct base_buf *out);
/* The prompt as ids: control tokens only where the template puts them; content that spells one stays text. */
int32_t text_chat_ids(const struct text_chat *c, const json_t *messages, const struct text_chat_options *o, int32_t **ids,
                      uint64_t *n_ids);
int32_t text_chat_end_id(const struct text_chat *c); /* <|im_end|> */
/* Whether a prompt with these options ends inside a thought: the answer then starts in it, without a <think> of its own. */
bool text_chat_opens_thought(const struct text_chat *c, const struct text_chat_options *o);
bool text_chat_takes_tools(const struct text_chat *c); /* the template has a place for tools and for thoughts */

/* ---- answers ---- */
/* Takes an answer apart while it is generated: "<think>...</think>" at its head, then content and "<tool_call>...</tool_call>" in the JSON and the
 * tag form of Qwen models.  What is handed out is final; texts are not 0-terminated; nonzero from a callback ends the feed and is returned. */
struct text_answer_sink {
    void *ctx;
    int32_t (*thought)(void *ctx, const char *text, uint64_t n);
    int32_t (*content)(void *ctx, const char *text, uint64_t n);
    /* A whole call; arguments is the text of a JSON object, typed by the tools' schemas. */
    int32_t (*call)(void *ctx, uint32_t index, const char *name, const char *arguments);
};
struct text_answer_options {
    bool thought;         /* look for a thought; otherwise its tags are content */
    bool in_thought;      /* the prompt ended inside one */
    bool calls;           /* look for calls; otherwise they are content */
    const json_t *tools;  /* borrowed; NULL: no schemas */
};
struct text_answer;
int32_t text_answer_create(const struct text_answer_options *o, const struct text_answer_sink *sink, struct text_answer **out);
void text_answer_destroy(struct text_answer *a);
int32_t text_answer_feed(struct text_answer *a, const char *text, uint64_t n);
int32_t text_answer_finish(struct text_answer *a); /* what was held back: a call cut before its end is content */
uint32_t text_answer_calls(const struct text_answer *a);

#endif
