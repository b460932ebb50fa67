/* SPDX-License-Identifier: Apache-2.0
 *
 * decode.c - ids to text, whole and streamed.
 */
#include "config.h"
#include "text_internal.h"
#include <string.h>

/* Bytes of one id; nothing for ids outside the vocabulary and for special ones to be skipped. */
static int32_t add_bytes(const struct text_tokenizer *t, int32_t id, bool skip_special, struct base_buf *out)
{
    if (id < 0 || (uint32_t)id >= t->n_tokens || t->tokens[id].len == TEXT_NONE || t->tokens[id].len == 0)
        return IFX_OK;
    if (skip_special && t->tokens[id].special)
        return IFX_OK;
    return base_buf_add(out, t->arena.data + t->tokens[id].offset, t->tokens[id].len);
}

int32_t text_token_bytes(const struct text_tokenizer *t, int32_t id, struct base_buf *out)
{
    return add_bytes(t, id, false, out);
}

int32_t text_decode(const struct text_tokenizer *t, const int32_t *ids, uint64_t n, bool skip_special,
                    struct base_buf *out)
{
    struct base_buf bytes = {0};
    int32_t st = IFX_OK;
    for (uint64_t i = 0; i < n && st == IFX_OK; i++)
        st = add_bytes(t, ids[i], skip_special, &bytes);
    if (st == IFX_OK)
        st = text_utf8_lossy(bytes.data, bytes.len, NULL, out);
    base_buf_free(&bytes);
    return st;
}

struct text_stream {
    const struct text_tokenizer *t;
    bool skip_special;
    struct base_buf bytes; /* the incomplete sequence so far, then what is pushed */
};

int32_t text_stream_create(const struct text_tokenizer *t, bool skip_special, struct text_stream **out)
{
    *out = base_calloc(1, sizeof(**out));
    if (*out == NULL)
        return IFX_ENOMEM;
    (*out)->t = t;
    (*out)->skip_special = skip_special;
    return IFX_OK;
}

void text_stream_destroy(struct text_stream *s)
{
    if (s == NULL)
        return;
    base_buf_free(&s->bytes);
    base_free(s);
}

int32_t text_stream_push(struct text_stream *s, int32_t id, struct base_buf *out)
{
    uint64_t tail;
    int32_t st = add_bytes(s->t, id, s->skip_special, &s->bytes);
    if (st == IFX_OK)
        st = text_utf8_lossy(s->bytes.data, s->bytes.len, &tail, out);
    if (st != IFX_OK || s->bytes.len == 0)
        return st;
    memmove(s->bytes.data, s->bytes.data + s->bytes.len - tail, tail);
    s->bytes.len = tail;
    return IFX_OK;
}

int32_t text_stream_finish(struct text_stream *s, struct base_buf *out)
{
    int32_t st = text_utf8_lossy(s->bytes.data, s->bytes.len, NULL, out);
    s->bytes.len = 0;
    return st;
}
