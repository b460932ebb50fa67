/* SPDX-License-Identifier: Apache-2.0
 *
 * tokens.c - /tokenize and /detokenize.
 */
#include "config.h"
#include "internal.h"
#include <string.h>

static int32_t read_text(const json_t *body, const json_t **out)
{
    *out = json_object_get(body, "content");
    if (*out == NULL)
        *out = json_object_get(body, "prompt");
    if (!json_is_string(*out))
        return base_error(IFX_EINVAL, "content: a string is expected, got %s", json_kind(*out));
    return IFX_OK;
}

static int32_t tokenize(struct serve *s, const json_t *body, int32_t **ids, uint64_t *n)
{
    const json_t *text, *messages = NULL;
    bool special = false;
    int32_t st = field_array(body, "messages", &messages);
    if (!st && messages != NULL) {
        struct text_chat_options o = {.add_generation_prompt = true, .thinking = s->o.thinking, .tools = json_object_get(body, "tools")};
        return s->chat != NULL ? text_chat_ids(s->chat, messages, &o, ids, n) : base_error(IFX_EUNSUPPORTED, "%s", s->chat_error);
    }
    if (!st)
        st = field_bool(body, "parse_special", &special);
    if (!st)
        st = read_text(body, &text);
    return st ? st : text_encode(s->tokenizer, json_string_value(text), json_string_length(text), special ? TEXT_SPECIALS : 0, ids, n);
}

void tokens_tokenize(struct exchange *x)
{
    struct serve *s = x->serve;
    json_t *body, *tokens;
    int32_t *ids = NULL;
    uint64_t n = 0;
    int32_t st = body_parse(x->body.data, x->body.len, &body);
    if (!st)
        st = tokenize(s, body, &ids, &n);
    json_decref(body);
    if (st) {
        base_free(ids);
        answer_failure(x, st);
        return;
    }
    tokens = json_array();
    for (uint64_t i = 0; i < n; i++)
        json_array_append_new(tokens, json_integer(ids[i]));
    base_free(ids);
    answer_json(x, 200, json_pack("{s:o, s:I, s:I}", "tokens", tokens, "count", (json_int_t)n, "max_model_len", (json_int_t)s->info.ctx));
}

static int32_t detokenize(struct serve *s, const json_t *body, struct base_buf *out)
{
    const json_t *tokens = NULL, *v;
    size_t i;
    int32_t st = field_array(body, "tokens", &tokens);
    if (!st && tokens == NULL)
        st = base_error(IFX_EINVAL, "tokens: a list of token ids is expected, got nothing");
    int32_t *ids = !st && json_array_size(tokens) > 0 ? base_calloc(json_array_size(tokens), sizeof *ids) : NULL;
    json_array_foreach(tokens, i, v) {
        if (st || ids == NULL)
            break;
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= s->info.desc->vocab)
            st = base_error(IFX_EINVAL, "tokens: [%llu] is no token id of this model", (unsigned long long)i);
        else
            ids[i] = (int32_t)json_integer_value(v);
    }
    if (!st && ids != NULL)
        st = text_decode(s->tokenizer, ids, json_array_size(tokens), false, out);
    base_free(ids);
    return st;
}

void tokens_detokenize(struct exchange *x)
{
    json_t *body;
    struct base_buf text = {0};
    int32_t st = body_parse(x->body.data, x->body.len, &body);
    if (!st)
        st = detokenize(x->serve, body, &text);
    json_decref(body);
    if (st)
        answer_failure(x, st);
    else
        answer_json(x, 200, json_pack("{s:s%, s:s%}", "content", text.data ? text.data : "", (size_t)text.len, "prompt",
                                      text.data ? text.data : "", (size_t)text.len));
    base_buf_free(&text);
}
