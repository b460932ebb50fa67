/* SPDX-License-Identifier: Apache-2.0
 *
 * test_bad.c - a small tokenizer.json, and what becomes of it when something in it is wrong, unknown, or means more than it seems.
 */
#include "config.h"
#include "support.h"
#include "text_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false}"
#define SPLIT(regex) "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\",\"invert\":false}"

/* Whole vocabulary of bytes, then "ab" 256, "abc" 257, "bc" 258, <s> 259. */
static json_t *small(void)
{
    json_t *vocab = json_object(), *root;
    for (uint32_t b = 0; b < 256; b++) {
        struct base_buf name = {0};
        support_ok(text_utf8_put(&name, text_byte_to_char((uint8_t)b)), "memory");
        json_object_set_new(vocab, name.data, json_integer(b));
        base_buf_free(&name);
    }
    json_object_set_new(vocab, "ab", json_integer(256));
    json_object_set_new(vocab, "abc", json_integer(257));
    json_object_set_new(vocab, "bc", json_integer(258));
    root = json_pack("{s:s, s:n, s:n, s:[{s:i, s:s, s:b}], s:{s:s}, s:n, s:{s:s}, s:{s:s, s:o, s:[s, [s, s], s]}}", "version", "1.0",
                     "truncation", "padding", "added_tokens", "id", 259, "content", "<s>", "special", 1, "normalizer", "type", "NFC",
                     "post_processor", "decoder", "type", "ByteLevel", "model", "type", "BPE", "vocab", vocab, "merges", "a b", "ab",
                     "c", "b c");
    assert_non_null(root);
    json_error_t e;
    json_object_set_new(root, "pre_tokenizer", json_loads("{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT("\\\\p{L}+|\\\\s+") "," BYTE_LEVEL "]}", 0, &e));
    return root;
}

static int32_t create(const json_t *root, const char *config, struct text_tokenizer **t)
{
    char *text = json_dumps(root, JSON_COMPACT);
    assert_non_null(text);
    int32_t st = text_tokenizer_create(text, strlen(text), config, config ? strlen(config) : 0, t);
    free(text);
    return st;
}

/* Sets `path` ("model.type", "added_tokens.0") to the JSON text `value`; NULL deletes. */
static void change(json_t *root, const char *path, const char *value)
{
    char copy[128], *last, *word, *save;
    json_t *node = root;
    snprintf(copy, sizeof(copy), "%s", path);
    last = strrchr(copy, '.');
    if (last != NULL) {
        *last++ = 0;
        for (word = strtok_r(copy, ".", &save); word != NULL; word = strtok_r(NULL, ".", &save))
            node = json_is_array(node) ? json_array_get(node, (size_t)atoi(word)) : json_object_get(node, word);
    } else {
        last = copy;
    }
    json_t *v = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    if (node == NULL || (value != NULL && v == NULL))
        fail_msg("test table: %s = %s", path, value);
    if (value == NULL)
        json_object_del(node, last);
    else if (json_is_array(node))
        json_array_set_new(node, (size_t)atoi(last), v);
    else
        json_object_set_new(node, last, v);
}

static void test_table(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value, *error;
    } cases[] = {
        {"model", NULL, "\"model\" is missing"},
        {"model", "[]", "\"model\" is missing"},
        {"model.type", "\"Unigram\"", "model type \"Unigram\""},
        {"model.type", NULL, "model type \"(none)\""},
        {"model.vocab", NULL, "model.vocab is missing"},
        {"model.vocab", "{}", "model.vocab is missing or empty"},
        {"model.vocab.ab", "-1", "id -1 of \"ab\" is out of range"},
        {"model.vocab.ab", "4000000000", "out of range"},
        {"model.vocab.ab", "1.5", "not a whole number"},
        {"model.vocab.ab", "\"7\"", "not a whole number"},
        {"model.vocab.ab", "97", "id 97 is given to two tokens"},
        {"model.vocab.a", NULL, "no token for the byte 0x61"},
        {"model.vocab.abc", NULL, "model.merges[1] needs the token \"abc\""},
        {"model.merges", NULL, "model.merges is missing"},
        {"model.merges", "{}", "model.merges is missing or not a list"},
        {"model.merges.0", "\"ab\"", "model.merges[0] is not a pair"},
        {"model.merges.0", "\"a b c\"", "model.merges[0] is not a pair"},
        {"model.merges.0", "\" ab\"", "model.merges[0] is not a pair"},
        {"model.merges.0", "[\"a\"]", "model.merges[0] is not a pair"},
        {"model.merges.0", "[\"a\",7]", "model.merges[0] is not a pair"},
        {"model.merges.0", "[\"a\",\"b\",\"c\"]", "model.merges[0] is not a pair"},
        {"model.merges.0", "\"a zz\"", "needs the token \"zz\""},
        {"model.dropout", "0.1", "model.dropout with this value"},
        {"model.byte_fallback", "true", "model.byte_fallback with this value"},
        {"model.ignore_merges", "true", "model.ignore_merges with this value"},
        {"model.end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix with this value"},
        {"model.surprise", "1", "model.surprise is not supported"},
        {"surprise", "1", "\"surprise\" is not supported"},
        {"truncation", "{\"max_length\":5}", "\"truncation\" is not supported"},
        {"padding", "{}", "\"padding\" is not supported"},
        {"normalizer", "{\"type\":\"Lowercase\"}", "normalizer \"Lowercase\""},
        {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"StripAccents\"}]}", "normalizer \"StripAccents\""},
        {"normalizer", "5", "normalizer \"(no type)\""},
        {"pre_tokenizer", "null", "pre_tokenizer \"(no type)\""},
        {"pre_tokenizer", "{\"type\":\"Whitespace\"}", "pre_tokenizer \"Whitespace\""},
        {"pre_tokenizer", SPLIT("a"), "without ByteLevel"},
        {"pre_tokenizer", "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", "add_prefix_space"},
        {"pre_tokenizer.pretokenizers.0", SPLIT("(a"), "a group without end"},
        {"pre_tokenizer.pretokenizers.0", SPLIT("a)"), "a closing bracket"},
        {"pre_tokenizer.pretokenizers.0", SPLIT("[a"), "a class without end"},
        {"pre_tokenizer.pretokenizers.0", SPLIT("+"), "split pattern"},
        {"pre_tokenizer.pretokenizers.0", SPLIT("a*"), "match nothing"},
        {"pre_tokenizer.pretokenizers.0", SPLIT("\\\\w+"), "an escape other than"},
        {"pre_tokenizer.pretokenizers.0", SPLIT("^a"), "an anchor"},
        {"pre_tokenizer.pretokenizers.0", SPLIT("\\\\p{Han}"), "general category"},
        {"pre_tokenizer.pretokenizers.0", SPLIT("\\\\pL"), "without braces"},
        {"pre_tokenizer.pretokenizers.0", SPLIT("(?i:straß|ss)"), "without regard to case"},
        {"pre_tokenizer.pretokenizers.0", SPLIT("(?i:ss)"), "ss, st"},
        {"pre_tokenizer.pretokenizers.0", SPLIT("(?<n>a)"), "a group other than"},
        {"pre_tokenizer.pretokenizers.0", SPLIT("a{,3}"), "a brace"},
        {"pre_tokenizer.pretokenizers.0", SPLIT("a{2}+"), "a brace"},
        {"pre_tokenizer.pretokenizers.0", SPLIT("[a&&b]"), "intersection"},
        {"pre_tokenizer.pretokenizers.0", SPLIT("[[:alpha:]]"), "bracket in a class"},
        {"pre_tokenizer.pretokenizers.0", SPLIT("[\\\\S]"), "in a class"},
        {"pre_tokenizer.pretokenizers.0", SPLIT("a\\\\"), "an escape other than"},
        {"pre_tokenizer.pretokenizers.0.behavior", "\"Removed\"", "behavior \"Removed\""},
        {"pre_tokenizer.pretokenizers.0.invert", "true", "\"invert\""},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"String\":\"a\"}", "a pattern other than"},
        {"pre_tokenizer.pretokenizers.1", "{\"type\":\"Digits\"}", "pre_tokenizer \"Digits\""},
        {"pre_tokenizer.pretokenizers.0", BYTE_LEVEL, "after ByteLevel"},
        {"post_processor", "{\"type\":\"BertProcessing\"}", "post_processor \"BertProcessing\""},
        {"post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{}},{\"Sequence\":{}}]}", "adds tokens"},
        {"decoder", "null", "decoder \"(no type)\""},
        {"decoder", "{\"type\":\"Metaspace\"}", "decoder \"Metaspace\""},
        {"added_tokens.0.id", "97", "id 97 is given to two tokens"},
        {"added_tokens.0.id", "\"x\"", "not a whole number"},
        {"added_tokens.0.id", "-5", "out of range"},
        {"added_tokens.0.content", "\"\"", "has no content"},
        {"added_tokens.0.content", NULL, "has no content"},
        {"added_tokens.0.special", "5", "neither true nor false"},
        {"added_tokens", "[{\"id\":259,\"content\":\"<s>\"},{\"id\":260,\"content\":\"<s>\"}]", "contradicts"},
        {"added_tokens", "[{\"id\":259,\"content\":\"<s>\"},{\"id\":259,\"content\":\"<t>\"}]", "contradicts"},
    };
    for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct text_tokenizer *t = (void *)1;
        json_t *root = small();
        change(root, cases[i].path, cases[i].value);
        base_error_clear();
        int32_t st = create(root, NULL, &t);
        if (st == IFX_OK || t != NULL || strstr(base_error_text(), cases[i].error) == NULL)
            fail_msg("%s = %s: expected an error with \"%s\", got %d: %s", cases[i].path, cases[i].value ? cases[i].value : "(gone)",
                     cases[i].error, st, base_error_text());
        json_decref(root);
    }
}

static void test_bytes(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "[]", "{", "null", "\"x\"", "{\"model\":1,\"model\":2}", "{\"a\":\"\\u0000\"}", "{\"a\":\"\xff\"}", "\xef\xbb\xbf{}"};
    for (uint32_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct text_tokenizer *t;
        if (text_tokenizer_create(texts[i], strlen(texts[i]), NULL, 0, &t) != IFX_EFORMAT || strstr(base_error_text(), "tokenizer.json") == NULL)
            fail_msg("%s: expected a format error, got: %s", texts[i], base_error_text());
    }
    /* Nesting as deep as it gets, and every truncation of a good file. */
    char *deep = base_calloc(200001, 1);
    struct text_tokenizer *t;
    assert_non_null(deep);
    memset(deep, '[', 200000);
    assert_int_equal(text_tokenizer_create(deep, 200000, NULL, 0, &t), IFX_EFORMAT);
    base_free(deep);
    json_t *root = small();
    char *good = json_dumps(root, JSON_COMPACT);
    for (uint64_t n = 0; n < strlen(good); n += 13)
        assert_int_equal(text_tokenizer_create(good, n, NULL, 0, &t), IFX_EFORMAT);
    free(good);
    json_decref(root);
}

static void test_config(void **state)
{
    (void)state;
    static const struct {
        const char *config, *error;
    } cases[] = {
        {"[]", "tokenizer_config.json: an object"},
        {"{\"add_bos_token\":true}", "\"add_bos_token\": true"},
        {"{\"clean_up_tokenization_spaces\":true}", "clean_up_tokenization_spaces"},
        {"{\"added_tokens_decoder\":{\"x\":{\"content\":\"<t>\"}}}", "added_tokens_decoder"},
        {"{\"added_tokens_decoder\":{\"99999999999\":{\"content\":\"<t>\"}}}", "out of range"},
        {"{\"added_tokens_decoder\":{\"259\":{\"content\":\"<t>\"}}}", "contradicts"},
        {"{\"added_tokens_decoder\":{\"98\":{\"content\":\"<t>\"}}}", "two tokens"},
    };
    struct text_tokenizer *t;
    json_t *root = small();
    for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (create(root, cases[i].config, &t) == IFX_OK || strstr(base_error_text(), cases[i].error) == NULL)
            fail_msg("%s: expected \"%s\", got: %s", cases[i].config, cases[i].error, base_error_text());
    support_ok(create(root, "{\"added_tokens_decoder\":{\"261\":{\"content\":\"<t>\",\"special\":true}},\"chat_template\":"
                            "[{\"name\":\"default\",\"template\":\"D\"},{\"name\":\"rag\",\"template\":\"R\"}]}", &t), "tokens of the config");
    assert_int_equal(text_token_id(t, "<t>"), 261);
    assert_int_equal(text_vocab_size(t), 262);
    assert_string_equal(text_tokenizer_template(t), "D");
    text_tokenizer_destroy(t);
    json_decref(root);
}

static void expect_ids(const char *name, json_t *root, const char *text, const int32_t *want, uint64_t n)
{
    struct text_tokenizer *t;
    support_ok(create(root, NULL, &t), name);
    struct support_ids got = support_encode(t, text, strlen(text), TEXT_SPECIALS), expected = {(int32_t *)want, n};
    support_same_ids(name, expected, got);
    base_free(got.data);
    text_tokenizer_destroy(t);
}

/* Merges by rank, and the flags of added tokens as the reference library means them. */
static void test_meaning(void **state)
{
    (void)state;
    json_t *root = small();
    expect_ids("abc", root, "abc", (const int32_t[]){257}, 1);
    expect_ids("bcabc", root, "bcabc", (const int32_t[]){258, 257}, 2);
    expect_ids("<s>", root, "ab<s>c", (const int32_t[]){256, 259, 'c'}, 3);
    change(root, "added_tokens.0.lstrip", "true");
    expect_ids("lstrip", root, "a  <s> c", (const int32_t[]){'a', 259, ' ', 'c'}, 4);
    change(root, "added_tokens.0.rstrip", "true");
    expect_ids("both", root, "a \t<s> \n<s>c", (const int32_t[]){'a', 259, 259, 'c'}, 4);
    json_decref(root);
    root = small();
    change(root, "added_tokens.0", "{\"id\":259,\"content\":\"ab\",\"single_word\":true}");
    change(root, "model.vocab.ab", NULL);
    change(root, "model.merges", "[]");
    expect_ids("single_word", root, "ab abc", (const int32_t[]){259, ' ', 'a', 'b', 'c'}, 5);
    json_decref(root);
    root = small();
    change(root, "added_tokens", "[{\"id\":259,\"content\":\"<s>\"},{\"id\":260,\"content\":\"<s><s>\"},{\"id\":262,\"content\":\"s><\"}]");
    expect_ids("longest, leftmost", root, "<s><s><s>", (const int32_t[]){260, 259}, 2);
    /* A normalised token is found in the normalised text, one that is not only as spelled. */
    change(root, "added_tokens", "[{\"id\":259,\"content\":\"\xc3\xa9\",\"normalized\":true},{\"id\":260,\"content\":\"\xc3\xa8\",\"normalized\":false}]");
    expect_ids("normalized", root, "e\xcc\x81" "e\xcc\x80" "\xc3\xa8", (const int32_t[]){259, 0xc3, 0xa8, 260}, 4);
    json_decref(root);
}

static void test_translate(void **state)
{
    (void)state;
    struct base_buf b = {0};
    support_ok(text_pattern_translate("a\\s", &b), "\\s");
    assert_null(strstr(b.data, "\\s"));
    base_buf_free(&b);
    /* U+180E is no blank: PCRE2's own \s would take it. */
    json_t *root = small();
    change(root, "pre_tokenizer.pretokenizers.0", SPLIT("\\\\s+"));
    change(root, "model.merges", "[[\"b\",\"c\"]]");
    expect_ids("U+180E", root, "b\xe1\xa0\x8e", (const int32_t[]){'b', 0xe1, 0xa0, 0x8e}, 4);
    json_decref(root);
    assert_true(text_is_word('a') && text_is_word('_') && text_is_word(0x24b6) && text_is_word(0x301) && !text_is_word(' ') && !text_is_word('-'));
    assert_true(text_is_space(0x2003) && text_is_space(0x85) && !text_is_space(0x180e) && !text_is_space(0x200b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table),   cmocka_unit_test(test_bytes),     cmocka_unit_test(test_config),
                                       cmocka_unit_test(test_meaning), cmocka_unit_test(test_translate)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
