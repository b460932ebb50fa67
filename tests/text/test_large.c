/* SPDX-License-Identifier: Apache-2.0
 *
 * test_large.c - a mebibyte of text in one call, against the ids of the reference tokenizer: one long run, random letters, characters of
 * many scripts, and the texts of encode.jsonl in random order, with both split patterns.  The texts are made here and by large.mjs alike.
 */
#include "config.h"
#include "support.h"
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <zlib.h>

#define MIB (1u << 20)
#define BLOCK 8192u

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW 20.0
#else
#define SLOW 1.0
#endif

struct setup {
    struct text_tokenizer *qwen3, *qwen3_5;
    json_t *corpus; /* texts of encode.jsonl */
};

static void append(struct base_buf *b, const void *s, uint64_t n)
{
    support_ok(base_buf_add(b, s, n), "memory");
}

static void put(struct base_buf *b, uint32_t c)
{
    char s[4];
    uint32_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (uint32_t i = n; i-- > 1; c >>= 6)
        s[i] = (char)(0x80 | (c & 0x3f));
    s[0] = (char)(lead[n] | c);
    append(b, s, n);
}

static void make_characters(uint64_t *r, struct base_buf *b)
{
    static const uint32_t ranges[][2] = {{0x20, 0x7e}, {0x9, 0xd}, {0xa0, 0x17f}, {0x300, 0x36f}, {0x5d0, 0x5ea}, {0x620, 0x64a},
                                         {0x64b, 0x652}, {0xe01, 0xe3a}, {0x1100, 0x11ff}, {0x2000, 0x206f}, {0x3041, 0x3096},
                                         {0x4e00, 0x4eff}, {0xac00, 0xacff}, {0x1f300, 0x1f64f}, {0x30, 0x39}, {0x61, 0x7a}, {0x20, 0x20}};
    const uint32_t *x = ranges[support_random(r) % (sizeof(ranges) / sizeof(ranges[0]))];
    put(b, x[0] + (uint32_t)(support_random(r) % (x[1] - x[0] + 1)));
}

static void make(const struct setup *s, const char *name, struct base_buf *b)
{
    static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static const struct { const char *name; uint32_t c; } runs[] = {{"a", 'a'}, {"blanks", ' '}, {"newlines", '\n'}, {"<", '<'}, {"e acute", 0xe9}};
    bool blanks_x = strcmp(name, "blanks, then x") == 0;
    uint32_t run = blanks_x ? ' ' : 0;
    for (uint32_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++)
        if (strcmp(name, runs[i].name) == 0)
            run = runs[i].c;
    uint64_t r = strcmp(name, "letters") == 0 ? 1 : strcmp(name, "base64") == 0 ? 2 : strcmp(name, "characters") == 0 ? 3 : 4;
    while (b->len < MIB - blanks_x) {
        if (run != 0) {
            put(b, run);
        } else if (strcmp(name, "letters") == 0) {
            put(b, 'a' + (uint32_t)(support_random(&r) % 26));
        } else if (strcmp(name, "base64") == 0) {
            put(b, (uint8_t)base64[support_random(&r) % 64]);
        } else if (strcmp(name, "characters") == 0) {
            make_characters(&r, b);
        } else {
            assert_string_equal(name, "corpus");
            const json_t *line = json_array_get(s->corpus, support_random(&r) % json_array_size(s->corpus));
            append(b, json_string_value(line), json_string_length(line));
        }
    }
    if (blanks_x)
        put(b, 'x');
}

static uint32_t crc_of(const void *p, uint64_t bytes)
{
    return (uint32_t)crc32(0, p, (uInt)bytes);
}

static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void check(const struct text_tokenizer *t, const char *name, const char *pattern, const struct base_buf *text, const json_t *want)
{
    double before = cpu_now();
    struct support_ids got = support_encode(t, text->data, text->len, TEXT_SPECIALS);
    double seconds = cpu_now() - before;
    const json_t *sums = json_object_get(want, "crc");
    uint64_t n = (uint64_t)json_integer_value(json_object_get(want, "n"));
    print_message("%s, %s: %llu ids, %.3f s\n", name, pattern, (unsigned long long)got.n, seconds);
    for (uint64_t i = 0; i * BLOCK < got.n; i++) {
        uint64_t in_block = got.n - i * BLOCK < BLOCK ? got.n - i * BLOCK : BLOCK;
        if (crc_of(got.data + i * BLOCK, in_block * sizeof(int32_t)) != (uint32_t)json_integer_value(json_array_get(sums, i)))
            fail_msg("%s, %s: ids %llu to %llu are not the reference's (%llu ids expected in all, got %llu)", name, pattern,
                     (unsigned long long)(i * BLOCK), (unsigned long long)(i * BLOCK + in_block), (unsigned long long)n, (unsigned long long)got.n);
    }
    assert_int_equal(got.n, n);
    if (seconds > SLOW)
        fail_msg("%s, %s: expected at most %.1f s, took %.2f s", name, pattern, SLOW, seconds);
    base_free(got.data);
}

static void collect(void *ctx, uint32_t line, const json_t *item)
{
    struct setup *s = ctx;
    (void)line;
    assert_int_equal(json_array_append(s->corpus, json_object_get(item, "text")), 0);
}

static void test_large(void **state)
{
    struct setup *s = *state;
    uint64_t n;
    char *golden = support_golden("tokenizer/large.json", &n);
    json_t *list = json_loadb(golden, n, 0, NULL), *item;
    size_t i;
    assert_non_null(list);
    json_array_foreach(list, i, item) {
        const char *name = json_string_value(json_object_get(item, "name"));
        struct base_buf text = {0};
        make(s, name, &text);
        /* the text is the one that the reference saw */
        assert_int_equal(text.len, json_integer_value(json_object_get(item, "bytes")));
        assert_int_equal(crc_of(text.data, text.len), json_integer_value(json_object_get(item, "crc")));
        check(s->qwen3, name, "Qwen3", &text, json_object_get(item, "qwen3"));
        check(s->qwen3_5, name, "Qwen3.5", &text, json_object_get(item, "qwen3_5"));
        base_buf_free(&text);
    }
    assert_int_equal(i, 10);
    json_decref(list);
    base_free(golden);
}

static int setup(void **state)
{
    static struct setup s;
    s.qwen3 = support_qwen3();
    s.qwen3_5 = support_with_pattern(support_qwen3_5);
    s.corpus = json_array();
    assert_int_equal(support_lines("tokenizer/encode.jsonl", collect, &s), 451);
    *state = &s;
    return 0;
}

static int teardown(void **state)
{
    struct setup *s = *state;
    text_tokenizer_destroy(s->qwen3);
    text_tokenizer_destroy(s->qwen3_5);
    json_decref(s->corpus);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_large)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
