/* SPDX-License-Identifier: Apache-2.0
 *
 * test_golden.c - every line of the reference tokenizer's encodings and decodings, both split patterns.
 */
#include "config.h"
#include "support.h"
#include <stdio.h>
#include <string.h>

struct setup {
    struct text_tokenizer *qwen3, *qwen3_5;
    uint32_t other; /* lines whose ids differ between the patterns */
};

static void check_decoded(const struct text_tokenizer *t, const char *where, struct support_ids ids, bool skip,
                          const char *want, uint64_t want_n)
{
    uint64_t n;
    char *got = support_decode(t, ids, skip, &n);
    support_same_text(where, want, want_n, got, n);
    base_free(got);
    got = support_stream(t, ids, skip, &n);
    support_same_text(where, want, want_n, got, n);
    base_free(got);
}

static const json_t *first_of(const json_t *a, const json_t *b, const json_t *c)
{
    return a ? a : b ? b : c;
}

static void encode_line(void *ctx, uint32_t line, const json_t *item)
{
    struct setup *s = ctx;
    char where[96];
    snprintf(where, sizeof(where), "encode.jsonl:%u (%s)", line, json_string_value(json_object_get(item, "category")));
    const json_t *text = json_object_get(item, "text"), *ids = json_object_get(item, "ids");
    const json_t *other = json_object_get(item, "ids_qwen3_5");
    struct support_ids want = support_json_ids(ids), want_other = support_json_ids(other ? other : ids);
    struct support_ids got =
        support_encode(s->qwen3, json_string_value(text), json_string_length(text), TEXT_SPECIALS);
    support_same_ids(where, want, got);
    base_free(got.data);
    s->other += other != NULL;
    got = support_encode(s->qwen3_5, json_string_value(text), json_string_length(text), TEXT_SPECIALS);
    support_same_ids(where, want_other, got);
    base_free(got.data);
    const json_t *decoded = first_of(json_object_get(item, "decoded"), text, NULL);
    check_decoded(s->qwen3, where, want, false, json_string_value(decoded), json_string_length(decoded));
    decoded = first_of(json_object_get(item, "decoded_skip_special"), decoded, NULL);
    check_decoded(s->qwen3, where, want, true, json_string_value(decoded), json_string_length(decoded));
    base_free(want.data);
    base_free(want_other.data);
}

static void decode_line(void *ctx, uint32_t line, const json_t *item)
{
    struct setup *s = ctx;
    char where[64];
    snprintf(where, sizeof(where), "decode.jsonl:%u", line);
    struct support_ids ids = support_json_ids(json_object_get(item, "ids"));
    const json_t *text = json_object_get(item, "text");
    check_decoded(s->qwen3, where, ids, false, json_string_value(text), json_string_length(text));
    text = first_of(json_object_get(item, "text_skip_special"), text, NULL);
    check_decoded(s->qwen3, where, ids, true, json_string_value(text), json_string_length(text));
    base_free(ids.data);
}

static int setup(void **state)
{
    static struct setup s;
    s.qwen3 = support_qwen3();
    s.qwen3_5 = support_with_pattern(support_qwen3_5);
    *state = &s;
    return 0;
}

static int teardown(void **state)
{
    struct setup *s = *state;
    text_tokenizer_destroy(s->qwen3);
    text_tokenizer_destroy(s->qwen3_5);
    return 0;
}

static void test_encode(void **state)
{
    struct setup *s = *state;
    s->other = 0;
    assert_int_equal(support_lines("tokenizer/encode.jsonl", encode_line, *state), 451);
    assert_true(s->other > 0);
}

static void test_decode(void **state)
{
    assert_int_equal(support_lines("tokenizer/decode.jsonl", decode_line, *state), 101);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_encode), cmocka_unit_test(test_decode)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
