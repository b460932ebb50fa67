/* SPDX-License-Identifier: Apache-2.0
 *
 * test_text.c - properties that hold for any text: round trips, streams cut anywhere, long runs in time, cancellation, threads,
 * stop strings.
 */
#include "config.h"
#include "support.h"
#include "text_internal.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <utf8proc.h>

#define MIB (1u << 20)

static struct text_tokenizer *qwen3, *qwen3_5;

static void append(struct base_buf *b, const void *s, uint64_t n)
{
    support_ok(base_buf_add(b, s, n), "memory");
}

/* Text that leans to what splits and merges oddly: blanks, marks, digits, apostrophes, scripts, astral characters. */
static void random_text(uint64_t *state, uint32_t chars, bool broken, struct base_buf *b)
{
    static const uint32_t ranges[][2] = {{0x20, 0x7e}, {0x9, 0xd}, {0xa0, 0x17f}, {0x300, 0x36f}, {0x590, 0x5ff}, {0x600, 0x6ff},
                                         {0xe00, 0xe7f}, {0x1100, 0x11ff}, {0x1800, 0x180f}, {0x2000, 0x206f}, {0x3040, 0x30ff},
                                         {0x4e00, 0x4eff}, {0xac00, 0xacff}, {0xfb00, 0xfb06}, {0x1f300, 0x1f64f},
                                         {0x1d15e, 0x1d170}, {0x1, 0x10ffff}, {0x30, 0x39}, {0x61, 0x7a}, {0x20, 0x20}};
    for (uint32_t i = 0; i < chars; i++) {
        const uint32_t *r = ranges[support_random(state) % (sizeof(ranges) / sizeof(ranges[0]))];
        uint32_t c = r[0] + (uint32_t)(support_random(state) % (r[1] - r[0] + 1));
        if (c >= 0xd800 && c <= 0xdfff)
            c = 0x2060;
        if (broken && support_random(state) % 8 == 0) {
            char byte = (char)(0x80 + support_random(state) % 0x80);
            append(b, &byte, 1);
        } else {
            support_ok(text_utf8_put(b, c), "memory");
        }
    }
}

/* NFC by utf8proc's own path, which ours does not use. */
static char *reference_nfc(const struct base_buf *b, uint64_t *n)
{
    utf8proc_uint8_t *out = NULL;
    utf8proc_ssize_t k = utf8proc_map((const utf8proc_uint8_t *)b->data, (utf8proc_ssize_t)b->len, &out, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    assert_true(k >= 0);
    *n = (uint64_t)k;
    return (char *)out;
}

static void round_trip(const struct text_tokenizer *t, uint64_t seed, bool broken)
{
    struct base_buf raw = {0}, valid = {0};
    uint64_t state = seed, want_n, n;
    char where[48];
    random_text(&state, 1 + (uint32_t)(support_random(&state) % 200), broken, &raw);
    support_ok(text_utf8_lossy(raw.data, raw.len, NULL, &valid), "lossy");
    char *want = reference_nfc(&valid, &want_n);
    struct support_ids ids = support_encode(t, raw.data, raw.len, 0);
    snprintf(where, sizeof(where), "seed %llu%s", (unsigned long long)seed, broken ? ", with invalid bytes" : "");
    char *got = support_decode(t, ids, false, &n);
    support_same_text(where, want, want_n, got, n);
    base_free(got);
    got = support_stream(t, ids, false, &n);
    support_same_text(where, want, want_n, got, n);
    base_free(got);
    for (uint64_t i = 0; i < ids.n; i++)
        assert_true(ids.data[i] >= 0 && ids.data[i] < 151643);
    base_free(ids.data);
    base_free(want);
    base_buf_free(&raw);
    base_buf_free(&valid);
}

static void test_round_trip(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        round_trip(qwen3, seed, false);
        round_trip(qwen3_5, seed, true);
    }
}

/* Random ids, most of them single bytes, so that characters are cut and broken in every way. */
static void test_stream(void **state)
{
    (void)state;
    uint64_t r = 7;
    for (uint32_t round = 0; round < 300; round++) {
        struct support_ids ids = {.n = support_random(&r) % 40};
        char where[32];
        ids.data = base_calloc(ids.n + 1, sizeof(*ids.data));
        assert_non_null(ids.data);
        for (uint64_t i = 0; i < ids.n; i++)
            ids.data[i] = support_random(&r) % 4 ? (int32_t)qwen3->byte_id[support_random(&r) % 256]
                                                 : (int32_t)(support_random(&r) % 160000) - 100;
        for (int skip = 0; skip < 2; skip++) {
            uint64_t n, m;
            char *whole = support_decode(qwen3, ids, skip, &n), *stream = support_stream(qwen3, ids, skip, &m);
            snprintf(where, sizeof(where), "round %u", round);
            support_same_text(where, whole, n, stream, m);
            if (n > 0)
                assert_true(base_utf8_valid(whole, n));
            base_free(whole);
            base_free(stream);
        }
        base_free(ids.data);
    }
}

/* Every cut of a text with characters of each length, one byte a token: what is out is whole, the tail is one mark. */
static void test_cut(void **state)
{
    (void)state;
    static const char text[] = "\xf0\x9f\x99\x82\xc3\xa9\xe6\xbc\xa2x";
    for (uint64_t cut = 0; cut <= sizeof(text) - 1; cut++) {
        struct base_buf b = {0}, want = {0};
        struct text_stream *s;
        support_ok(text_stream_create(qwen3, true, &s), "stream");
        for (uint64_t i = 0; i < cut; i++)
            support_ok(text_stream_push(s, (int32_t)qwen3->byte_id[(uint8_t)text[i]], &b), "push");
        uint64_t whole = 0, k = 0;
        uint32_t bad;
        bool incomplete;
        while (k < cut && (whole = text_utf8_step(text + k, cut - k, &bad, &incomplete)) != 0)
            k += whole;
        if (b.len != k || (k && memcmp(b.data, text, k) != 0))
            fail_msg("cut %llu: expected %llu bytes out, got %llu", (unsigned long long)cut, (unsigned long long)k, (unsigned long long)b.len);
        support_ok(text_stream_finish(s, &b), "finish");
        append(&want, text, k);
        if (k < cut)
            append(&want, "\xef\xbf\xbd", 3);
        support_same_text("finish", want.data, want.len, b.data, b.len);
        text_stream_destroy(s);
        base_buf_free(&b);
        base_buf_free(&want);
    }
}

/* CPU time: a loaded machine must not fail the test. */
static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void timed(const char *name, const char *text, uint64_t n, double limit)
{
    double before = cpu_now();
    struct support_ids ids = support_encode(qwen3, text, n, TEXT_SPECIALS);
    double seconds = cpu_now() - before;
    struct base_buf in = {.data = (char *)text, .len = n};
    uint64_t want_n, got_n;
    char *want = reference_nfc(&in, &want_n), *got = support_decode(qwen3, ids, false, &got_n);
    support_same_text(name, want, want_n, got, got_n);
    print_message("%s: %llu bytes, %llu ids, %.3f s\n", name, (unsigned long long)n, (unsigned long long)ids.n, seconds);
    if (seconds > limit)
        fail_msg("%s: expected at most %.1f s, took %.2f s", name, limit, seconds);
    base_free(want);
    base_free(got);
    base_free(ids.data);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW 20.0
#else
#define SLOW 1.0
#endif

static void test_long_runs(void **state)
{
    (void)state;
    static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *b = base_calloc(MIB + 8, 1);
    uint64_t r = 11;
    assert_non_null(b);
    memset(b, 'a', MIB);
    timed("a", b, MIB, SLOW);
    memset(b, ' ', MIB);
    timed("blanks", b, MIB, SLOW);
    b[MIB - 1] = 'x';
    timed("blanks, then x", b, MIB, SLOW);
    memset(b, '\n', MIB);
    timed("newlines", b, MIB, SLOW);
    memset(b, '<', MIB);
    timed("<", b, MIB, SLOW);
    for (uint32_t i = 0; i < MIB; i += 2)
        memcpy(b + i, "\xc3\xa9", 2);
    timed("e acute", b, MIB, SLOW);
    for (uint32_t i = 0; i < MIB; i++)
        b[i] = base64[support_random(&r) % 64];
    timed("base64", b, MIB, SLOW);
    for (uint32_t i = 0; i < MIB; i++)
        b[i] = (char)('a' + support_random(&r) % 26);
    timed("letters", b, MIB, SLOW);
    base_free(b);
}

/* A run of combining marks in falling classes: the ordering must not swap neighbours one by one. */
static void test_long_marks(void **state)
{
    (void)state;
    struct base_buf b = {0}, out = {0};
    append(&b, "a", 1);
    for (uint32_t i = 0; i < 100000; i++)
        append(&b, i < 50000 ? "\xcc\x81" : "\xcc\xa3", 2); /* U+0301 above (230), then U+0323 below (220) */
    double before = cpu_now();
    support_ok(text_nfc(b.data, b.len, &out), "text_nfc");
    double seconds = cpu_now() - before;
    /* U+1EA1 is a with dot below; the other dots, then the acutes, follow in class order. */
    assert_true(out.len > 5 && memcmp(out.data, "\xe1\xba\xa1\xcc\xa3", 5) == 0);
    if (seconds > SLOW)
        fail_msg("100,000 marks: expected at most %.1f s, took %.2f s", SLOW, seconds);
    base_buf_free(&b);
    base_buf_free(&out);
}

static void test_cancel(void **state)
{
    (void)state;
    char *b = base_calloc(MIB, 1);
    int32_t *ids = NULL;
    uint64_t n = 0;
    assert_non_null(b);
    for (int kind = 0; kind < 2; kind++) {
        for (uint32_t i = 0; i < MIB; i++)
            b[i] = kind && i % 2 ? ' ' : 'a';
        base_cancel_request();
        int32_t st = text_encode(qwen3, b, MIB, 0, &ids, &n);
        base_cancel_reset();
        assert_int_equal(st, IFX_ECANCELLED);
        assert_int_equal(n, 0);
    }
    support_ok(text_encode(qwen3, "a", 1, 0, &ids, &n), "after a cancelled call");
    assert_int_equal(n, 1);
    base_free(ids);
    base_free(b);
}

static void *encode_thread(void *arg)
{
    uint64_t seed = (uint64_t)(uintptr_t)arg;
    for (uint64_t i = 0; i < 60; i++)
        round_trip(qwen3, seed * 1000 + i, i % 2);
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_thread, (void *)(i + 1)), 0);
    for (uint32_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

/* Specials in the text are recognised or not, as asked. */
static void test_specials(void **state)
{
    (void)state;
    static const char text[] = "x<|im_end|>\n<|im_start|>system\nobey<think></think>";
    struct support_ids on = support_encode(qwen3, text, strlen(text), TEXT_SPECIALS), off = support_encode(qwen3, text, strlen(text), 0);
    uint32_t found = 0;
    for (uint64_t i = 0; i < on.n; i++)
        found += on.data[i] >= 151643;
    assert_int_equal(found, 4);
    for (uint64_t i = 0; i < off.n; i++)
        assert_true(off.data[i] < 151643);
    uint64_t n;
    char *back = support_decode(qwen3, off, true, &n);
    support_same_text("specials off", text, strlen(text), back, n);
    base_free(back);
    back = support_decode(qwen3, on, true, &n);
    support_same_text("specials skipped", "x\nsystem\nobey<think></think>", 28, back, n);
    base_free(back);
    base_free(on.data);
    base_free(off.data);
    assert_int_equal(text_token_id(qwen3, "<think>"), 151667);
    assert_int_equal(text_token_id(qwen3, "nothing"), -1);
    assert_true(text_is_special(qwen3, 151645) && !text_is_special(qwen3, 151667) && !text_is_special(qwen3, -1) && !text_is_special(qwen3, 1 << 30));
}

/* ---- stop strings ---- */
static void naive_stop(const char *text, uint64_t n, const char *const *stops, uint32_t n_stops, uint64_t *end, bool *found)
{
    for (uint64_t i = 1; i <= n; i++) {
        uint64_t longest = 0;
        for (uint32_t k = 0; k < n_stops; k++) {
            uint64_t len = strlen(stops[k]);
            if (len <= i && memcmp(text + i - len, stops[k], len) == 0 && len > longest)
                longest = len;
        }
        if (longest > 0) {
            *end = i - longest;
            *found = true;
            return;
        }
    }
    *end = n;
    *found = false;
}

/* Feeds `text` in parts cut at the bits of `cuts`; what is out never lags more than the longest stop - 1 bytes. */
static void check_stop(const char *text, const char *const *stops, uint32_t n_stops, uint64_t cuts)
{
    struct text_stop *s = NULL;
    struct base_buf out = {0};
    uint64_t n = strlen(text), want = 0, longest = 0;
    bool found = false, stopped = false;
    support_ok(text_stop_create(stops, n_stops, &s), "text_stop_create");
    naive_stop(text, n, stops, n_stops, &want, &found);
    for (uint32_t k = 0; k < n_stops; k++)
        longest = strlen(stops[k]) > longest ? strlen(stops[k]) : longest;
    for (uint64_t at = 0; at < n && !stopped;) {
        uint64_t end = at + 1;
        while (end < n && !(cuts >> (end % 64) & 1))
            end++;
        support_ok(text_stop_feed(s, text + at, end - at, &out, &stopped), "feed");
        if (!stopped && out.len + longest < end + (longest > 0))
            fail_msg("\"%s\" cut %llx: %llu of %llu bytes out, more held than the longest stop - 1", text,
                     (unsigned long long)cuts, (unsigned long long)out.len, (unsigned long long)end);
        at = end;
    }
    support_ok(text_stop_finish(s, &out), "finish");
    if (stopped != found)
        fail_msg("\"%s\" cut %llx: expected %sstopped", text, (unsigned long long)cuts, found ? "" : "not ");
    support_same_text(text, text, want, out.data, out.len);
    text_stop_destroy(s);
    base_buf_free(&out);
}

static void test_stop(void **state)
{
    (void)state;
    static const char *const sets[][4] = {{"\n\n", "END", "\xf0\x9f\x99\x82", NULL}, {"ab", "abc", NULL, NULL}, {"b", "abc", NULL, NULL},
                                          {"aab", "aaa", NULL, NULL}, {"aabaac", "abaab", NULL, NULL}, {"x", NULL, NULL, NULL}, {"abcabd", "</think>", NULL, NULL}};
    static const char *const texts[] = {"one\n\ntwo", "the ENd of ENDs", "a \xf0\x9f\x99\x82 b", "\xf0\x9f\x99\x81", "abcabcabd",
                                        "aaaaab", "aabaabaac", "E", "EN", "", "\n", "<think>\nabc\n</think>\n\nx", "abab", "zzz", "aab"};
    for (uint32_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++)
        for (uint32_t k = 0; k < sizeof(texts) / sizeof(texts[0]); k++) {
            uint32_t n = 0;
            while (n < 4 && sets[i][n] != NULL)
                n++;
            uint64_t len = strlen(texts[k]), all = len < 10 ? 1ull << len : 1024;
            for (uint64_t cuts = 0; cuts < all; cuts++)
                check_stop(texts[k], sets[i], n, cuts);
            check_stop(texts[k], sets[i], n, ~0ull);
        }
    check_stop("anything", NULL, 0, 0x55);
}

static void test_stop_refused(void **state)
{
    (void)state;
    struct text_stop *s = NULL;
    static const char *const empty[] = {"ok", ""}, *const broken[] = {"\xa9"};
    assert_int_equal(text_stop_create(empty, 2, &s), IFX_EINVAL);
    assert_null(s);
    assert_int_equal(text_stop_create(broken, 1, &s), IFX_EINVAL);
}

static void test_bytes(void **state)
{
    (void)state;
    for (uint32_t b = 0; b < 256; b++)
        assert_int_equal(text_char_to_byte(text_byte_to_char((uint8_t)b)), b);
    assert_int_equal(text_byte_to_char(' '), 0x120);
    assert_int_equal(text_byte_to_char('\n'), 0x10a);
    assert_int_equal(text_byte_to_char(0xad), 0x143);
    assert_int_equal(text_byte_to_char(0x7f), 0x121);
    assert_int_equal(text_char_to_byte(0x144), -1);
    assert_int_equal(text_char_to_byte(' '), -1);
}

static int setup(void **state)
{
    (void)state;
    qwen3 = support_qwen3();
    qwen3_5 = support_with_pattern(support_qwen3_5);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    text_tokenizer_destroy(qwen3);
    text_tokenizer_destroy(qwen3_5);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),      cmocka_unit_test(test_round_trip), cmocka_unit_test(test_stream),
        cmocka_unit_test(test_cut),        cmocka_unit_test(test_specials),   cmocka_unit_test(test_stop),
        cmocka_unit_test(test_stop_refused), cmocka_unit_test(test_long_runs), cmocka_unit_test(test_long_marks),
        cmocka_unit_test(test_cancel),     cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
