/* SPDX-License-Identifier: Apache-2.0
 *
 * support.c - see support.h.
 */
#include "config.h"
#include "support.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char support_qwen3_5[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

void support_ok(int32_t status, const char *what)
{
    if (status != IFX_OK)
        fail_msg("%s: expected success, got %d: %s", what, status, base_error_text());
}

char *support_golden(const char *name, uint64_t *bytes)
{
    const char *folder = getenv("IFX_GOLDEN");
    char *data = NULL, *path = base_format("%s/%s", folder ? folder : "golden", name);
    support_ok(base_read_file(path, 64u << 20, &data, bytes), path);
    base_free(path);
    return data;
}

struct text_tokenizer *support_qwen3(void)
{
    struct text_tokenizer *t = NULL;
    uint64_t n, config_n;
    char *json = support_golden("tokenizer-qwen3/tokenizer.json", &n);
    char *config = support_golden("tokenizer-qwen3/tokenizer_config.json", &config_n);
    support_ok(text_tokenizer_create(json, n, config, config_n, &t), "tokenizer-qwen3");
    base_free(json);
    base_free(config);
    return t;
}

struct text_tokenizer *support_with_pattern(const char *regex)
{
    struct text_tokenizer *t = NULL;
    uint64_t n;
    char *json = support_golden("tokenizer-qwen3/tokenizer.json", &n);
    json_t *root = json_loadb(json, n, 0, NULL);
    assert_non_null(root);
    json_t *list = json_object_get(json_object_get(root, "pre_tokenizer"), "pretokenizers");
    json_t *pattern = json_object_get(json_array_get(list, 0), "pattern");
    assert_int_equal(json_object_set_new(pattern, "Regex", json_string(regex)), 0);
    char *text = json_dumps(root, JSON_COMPACT);
    assert_non_null(text);
    support_ok(text_tokenizer_create(text, strlen(text), NULL, 0, &t), "tokenizer-qwen3 with another pattern");
    free(text);
    json_decref(root);
    base_free(json);
    return t;
}

uint32_t support_lines(const char *name, void (*fn)(void *ctx, uint32_t line, const json_t *item), void *ctx)
{
    uint64_t n;
    char *data = support_golden(name, &n), *p = data;
    uint32_t line = 0;
    while (*p != 0) {
        json_error_t e;
        char *end = strchr(p, '\n');
        size_t len = end ? (size_t)(end - p) : strlen(p);
        json_t *item = json_loadb(p, len, JSON_ALLOW_NUL, &e);
        line++;
        if (item == NULL)
            fail_msg("%s:%u: %s", name, line, e.text);
        fn(ctx, line, item);
        json_decref(item);
        p += len + (end != NULL);
    }
    base_free(data);
    return line;
}

struct support_ids support_encode(const struct text_tokenizer *t, const char *text, uint64_t bytes, uint32_t flags)
{
    struct support_ids ids = {0};
    support_ok(text_encode(t, text, bytes, flags, &ids.data, &ids.n), "text_encode");
    return ids;
}

struct support_ids support_json_ids(const json_t *list)
{
    struct support_ids ids = {.n = json_array_size(list)};
    ids.data = base_calloc(ids.n + 1, sizeof(*ids.data));
    assert_non_null(ids.data);
    for (uint64_t i = 0; i < ids.n; i++)
        ids.data[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

void support_same_ids(const char *where, struct support_ids want, struct support_ids got)
{
    uint64_t i = 0;
    while (i < want.n && i < got.n && want.data[i] == got.data[i])
        i++;
    if (i < want.n || i < got.n)
        fail_msg("%s: expected %llu ids, got %llu; first difference at %llu: expected %d, got %d", where,
                 (unsigned long long)want.n, (unsigned long long)got.n, (unsigned long long)i,
                 i < want.n ? want.data[i] : -1, i < got.n ? got.data[i] : -1);
}

void support_same_text(const char *where, const char *want, uint64_t want_n, const char *got, uint64_t got_n)
{
    uint64_t i = 0;
    while (i < want_n && i < got_n && want[i] == got[i])
        i++;
    if (i < want_n || i < got_n)
        fail_msg("%s: expected %llu bytes, got %llu; first difference at byte %llu:\nexpected \"%.*s\"\ngot      \"%.*s\"",
                 where, (unsigned long long)want_n, (unsigned long long)got_n, (unsigned long long)i, (int)want_n, want,
                 (int)got_n, got ? got : "");
}

char *support_decode(const struct text_tokenizer *t, struct support_ids ids, bool skip, uint64_t *n)
{
    struct base_buf b = {0};
    support_ok(text_decode(t, ids.data, ids.n, skip, &b), "text_decode");
    *n = b.len;
    return b.data;
}

char *support_stream(const struct text_tokenizer *t, struct support_ids ids, bool skip, uint64_t *n)
{
    struct base_buf b = {0};
    struct text_stream *s = NULL;
    support_ok(text_stream_create(t, skip, &s), "text_stream_create");
    for (uint64_t i = 0; i < ids.n; i++) {
        uint64_t before = b.len;
        support_ok(text_stream_push(s, ids.data[i], &b), "text_stream_push");
        if (b.len > before && !base_utf8_valid(b.data + before, b.len - before))
            fail_msg("push of id %llu (%d): the chunk is not valid UTF-8", (unsigned long long)i, ids.data[i]);
    }
    support_ok(text_stream_finish(s, &b), "text_stream_finish");
    text_stream_destroy(s);
    *n = b.len;
    return b.data;
}

uint64_t support_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}
