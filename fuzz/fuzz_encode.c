/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_encode.c - any bytes as text: decoding what encoding gave is the text, repaired and in NFC; streams, stops and specials too.
 */
#include "config.h"
#include "fuzz.h"
#include "fuzz_text.h"

static void same(const struct base_buf *a, const struct base_buf *b)
{
    if (a->len != b->len || (a->len && memcmp(a->data, b->data, a->len) != 0))
        abort();
}

static void check(const struct text_tokenizer *t, const char *text, uint64_t n, uint32_t flags)
{
    struct base_buf valid = {0}, want = {0}, got = {0}, stream = {0};
    int32_t *ids = NULL;
    uint64_t n_ids = 0;
    struct text_stream *s;
    if (text_utf8_lossy(text, n, NULL, &valid) || text_nfc(valid.data, valid.len, &want) || text_encode(t, text, n, flags, &ids, &n_ids) ||
        text_decode(t, ids, n_ids, false, &got) || text_stream_create(t, false, &s))
        abort();
    for (uint64_t i = 0; i < n_ids; i++)
        if (text_stream_push(s, ids[i], &stream) || (flags == 0 && ids[i] >= 300))
            abort();
    if (text_stream_finish(s, &stream))
        abort();
    same(&got, &stream);
    if (flags == 0)
        same(&want, &got);
    text_stream_destroy(s);
    base_buf_free(&valid);
    base_buf_free(&want);
    base_buf_free(&got);
    base_buf_free(&stream);
    base_free(ids);
}

static void stops(const char *text, uint64_t n)
{
    static const char *const words[] = {"END", "aab", "aa", "\n\n"};
    struct text_stop *s;
    struct base_buf whole = {0}, bytes = {0};
    bool a = false, b = false;
    if (text_stop_create(words, 4, &s) || text_stop_feed(s, text, n, &whole, &a) || text_stop_finish(s, &whole))
        abort();
    text_stop_destroy(s);
    if (text_stop_create(words, 4, &s))
        abort();
    for (uint64_t i = 0; i < n; i++)
        if (text_stop_feed(s, text + i, 1, &bytes, &b))
            abort();
    if (text_stop_finish(s, &bytes) || a != b)
        abort();
    text_stop_destroy(s);
    same(&whole, &bytes);
    base_buf_free(&whole);
    base_buf_free(&bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct text_tokenizer *t = fuzz_tokenizer();
    check(t, (const char *)data, size, 0);
    check(t, (const char *)data, size, TEXT_SPECIALS);
    stops((const char *)data, size);
    return 0;
}
