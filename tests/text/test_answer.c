/* SPDX-License-Identifier: Apache-2.0
 *
 * test_answer.c - answers taken apart: thoughts, content, calls in both forms, fed whole and a byte at a time; grammars: what they let through.
 */
#include "config.h"
#include "grammar.h"
#include "support.h"
#include "text_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\"},"
    "\"n\":{\"type\":\"integer\"},\"x\":{\"type\":\"number\"},\"b\":{\"type\":\"boolean\"},\"l\":{\"type\":\"array\"},\"o\":{\"type\":[\"object\","
    "\"null\"]}}}}}]";

struct got {
    struct base_buf text; /* T[thought]C[content]F[name|arguments] */
    char last;
};

static int32_t add(struct got *g, char kind, const char *s, uint64_t n)
{
    if (g->last != kind || kind == 'F')
        base_buf_addf(&g->text, "%s%c[", g->last ? "]" : "", kind);
    g->last = kind;
    return base_buf_add(&g->text, s, n);
}

static int32_t on_thought(void *ctx, const char *s, uint64_t n)
{
    return add(ctx, 'T', s, n);
}

static int32_t on_content(void *ctx, const char *s, uint64_t n)
{
    return add(ctx, 'C', s, n);
}

static int32_t on_call(void *ctx, uint32_t index, const char *name, const char *arguments)
{
    (void)index;
    json_t *j = json_loads(arguments, 0, NULL);
    if (!json_is_object(j))
        fail_msg("arguments are no JSON object: %s", arguments);
    json_decref(j);
    add(ctx, 'F', name, strlen(name));
    base_buf_add(&((struct got *)ctx)->text, "|", 1);
    return base_buf_add(&((struct got *)ctx)->text, arguments, strlen(arguments));
}

static void check(const char *say, const char *want, uint64_t piece)
{
    struct got g = {0};
    struct text_answer_sink sink = {&g, on_thought, on_content, on_call};
    json_t *tools = json_loads(tools_text, 0, NULL);
    struct text_answer_options o = {.thought = true, .calls = true, .tools = tools};
    struct text_answer *a;
    support_ok(text_answer_create(&o, &sink, &a), "create");
    for (uint64_t i = 0, n = strlen(say); i < n; i += piece)
        support_ok(text_answer_feed(a, say + i, n - i < piece ? n - i : piece), say);
    support_ok(text_answer_finish(a), say);
    if (g.last)
        base_buf_add(&g.text, "]", 1);
    support_same_text(say, want, strlen(want), g.text.data ? g.text.data : "", g.text.len);
    text_answer_destroy(a);
    base_buf_free(&g.text);
    json_decref(tools);
}

#define CALL(args) "<tool_call>\n{\"name\": \"f\", \"arguments\": " args "}\n</tool_call>"
#define TAGS(params) "<tool_call>\n<function=f>\n" params "</function>\n</tool_call>"
#define P(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"

static void test_answers(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"", ""},
        {"plain text", "C[plain text]"},
        {"  blanks kept  ", "C[  blanks kept  ]"},
        {"<think>\na\n\nb\n</think>\n\nc", "T[a\n\nb]C[c]"},
        {"\n<think>a</think>c", "T[a]C[c]"},
        {"<think>\n\n</think>\n\nc", "C[c]"},
        {"<think>a</thin", "T[a</thin]"},
        {"<thin air", "C[<thin air]"},
        {"c <think>a</think>", "C[c <think>a</think>]"},
        {CALL("{\"s\": \"a\"}"), "F[f|{\"s\": \"a\"}]"},
        {"Sure.\n\n" CALL("{}") "\n" CALL("{\"n\":1}"), "C[Sure.]F[f|{}]F[f|{\"n\":1}]"},
        {CALL("{}") CALL("{}") "\nDone.", "F[f|{}]F[f|{}]C[Done.]"},
        {CALL("{\"s\": \"if (a) { b } ]\"}"), "F[f|{\"s\": \"if (a) { b } ]\"}]"},
        {CALL("{\"s\": \"</tool_call>\\\"}\"}"), "F[f|{\"s\": \"</tool_call>\\\"}\"}]"},
        {CALL("{\"s\": {\"arguments\": 1}}"), "F[f|{\"s\": {\"arguments\": 1}}]"},
        {CALL("{\"l\": \"[1, 2]\", \"b\": \"True\"}"), "F[f|{\"l\": [1, 2], \"b\": true}]"},
        {CALL("\"{\\\"n\\\": 3}\""), "F[f|{\"n\": 3}]"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", "F[f|{}]"},
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}", "F[f|{}]"},
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\":2}}\n</tool_call>", "F[f|{}]F[f|{\"n\":2}]"},
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"cut", "C[<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"cut]"},
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {oops}}\n</tool_call>", "C[<tool_call>\n{\"name\": \"f\", \"arguments\": {oops}}\n</tool_call>]"},
        {"<tool_call>\n{\"arguments\": {}}\n</tool_call> x", "C[<tool_call>\n{\"arguments\": {}}\n</tool_call> x]"},
        {"<tool_call> is how", "C[<tool_call> is how]"},
        {"a <tool", "C[a <tool]"},
        {"Like so:\n```\n" CALL("{}") "\n```\nok", "C[Like so:\n```\n" CALL("{}") "\n```\nok]"},
        {"in `" CALL("{}") "`", "C[in `" CALL("{}") "`]"},
        {"```\ncode\n```\n" CALL("{}"), "C[```\ncode\n```]F[f|{}]"},
        {TAGS(P("s", "hello")), "F[f|{\"s\": \"hello\"}]"},
        {TAGS(P("s", "a </parameter> b\n</tool_call>")), "F[f|{\"s\": \"a </parameter> b\\n</tool_call>\"}]"},
        {TAGS(P("s", "true") P("b", "True") P("n", "7") P("x", "1.5") P("l", "[1, {\"a\": 2}]") P("o", "{\"k\": null}")),
         "F[f|{\"s\": \"true\", \"b\": true, \"n\": 7, \"x\": 1.5, \"l\": [1, {\"a\": 2}], \"o\": {\"k\": null}}]"},
        {TAGS(P("o", "None") P("n", "many") P("u", "12")), "F[f|{\"o\": null, \"n\": \"many\", \"u\": \"12\"}]"},
        {TAGS(P("s", "line 1\nline 2\n")), "F[f|{\"s\": \"line 1\\nline 2\\n\"}]"},
        {TAGS(P("s", "")), "F[f|{\"s\": \"\"}]"},
        {TAGS(""), "F[f|{}]"},
        {TAGS(P("n", "1")) "\n" TAGS(P("n", "2")), "F[f|{\"n\": 1}]F[f|{\"n\": 2}]"},
        {"<tool_call>\n<function=f>\n<parameter=s>\nnever ends", "C[<tool_call>\n<function=f>\n<parameter=s>\nnever ends]"},
        {"<tool_call>\n<function=f>\n" P("n", "1") "</function>", "F[f|{\"n\": 1}]"},
        {"<think>\nuse f\n</think>\n\nNow:\n" CALL("{}"), "T[use f]C[Now:]F[f|{}]"},
    };
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (uint64_t piece = 1; piece <= 4096; piece = piece * 3 + (piece == 1))
            check(rows[i][0], rows[i][1], piece);
}

/* ---- grammars ---- */

struct lexicon {
    struct text_tokenizer *t;
    struct text_lexicon *l;
};

/* Feeds a text byte by byte as tokens; true when it is a whole answer. */
static bool fits(struct lexicon *x, const struct text_grammar *g, const char *text)
{
    struct text_grammar_state *s;
    uint32_t vocab = text_vocab_size(x->t);
    uint64_t *allowed = base_calloc((vocab + 63) / 64, sizeof *allowed);
    support_ok(text_grammar_begin(g, &s), "begin");
    bool whole = false, good = true;
    for (const char *p = text; good; p++) {
        whole = text_grammar_mask(s, allowed);
        if (*p == 0)
            break;
        int32_t id = (int32_t)x->t->byte_id[(unsigned char)*p];
        bool may = allowed[id / 64] >> (id % 64) & 1;
        good = text_grammar_accept(s, id) == IFX_OK;
        if (good != may)
            fail_msg("%s: at %d the mask says %d, the grammar %d", text, (int)(p - text), may, good);
    }
    text_grammar_end(s);
    base_free(allowed);
    return good && whole;
}

static void expect(struct lexicon *x, const char *schema, const char *text, bool want)
{
    struct text_grammar *g;
    json_t *j = schema ? json_loads(schema, JSON_DECODE_ANY, NULL) : NULL;
    if (schema && j == NULL)
        fail_msg("no JSON: %s", schema);
    support_ok(text_grammar_json(x->l, j, "schema", 0, &g), schema ? schema : "any");
    if (fits(x, g, text) != want)
        fail_msg("%s %s %s", schema ? schema : "any", want ? "should take" : "should refuse", text);
    text_grammar_destroy(g);
    json_decref(j);
}

static void test_grammar(void **state)
{
    struct lexicon *x = *state;
#define OBJECT "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"ab\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":3},\"c\":{\"enum\":[" \
               "1,12,\"x\",null]}},\"required\":[\"a\"]}"
    static const struct {
        const char *schema, *text;
        bool fits;
    } rows[] = {
        {NULL, "{}", true}, {NULL, "{\"a\": [1, -2.5e+3, true, null, {\"b\": \"\\u00e9\\n\"}]}", true}, {NULL, "[1]", false}, {NULL, "{\"a\":1,}", false},
        {NULL, "{\"a\" 1}", false}, {NULL, "{a:1}", false}, {NULL, "{\"a\":01}", false}, {NULL, "{\"a\":1.}", false}, {NULL, "{\"a\":\"\\ud800\"}", false},
        {NULL, "{\"a\":\"\\x\"}", false}, {NULL, "{\"a\":\"\xff\"}", false}, {NULL, "{\"a\":\"\xed\xa0\x80\"}", false}, {NULL, "{\"a\":\"\xF0\x9F\x99\x82\"}", true},
        {NULL, "{\"a\":\"tab\there\"}", false}, {NULL, "{\"a\":1}}", false}, {NULL, "{\n    \"a\": 1,\n    \"b\": {\n        \"c\": []\n    }\n}", true},
        {NULL, "{\n\n\"a\":1}", false}, {NULL, " {}", false}, {NULL, "{\"a\":1e1234}", false},
        {OBJECT, "{\"a\":1}", true}, {OBJECT, "{\"ab\":\"x\",\"a\":1}", true}, {OBJECT, "{}", false}, {OBJECT, "{\"a\":1.5}", false},
        {OBJECT, "{\"a\":1,\"a\":2}", false}, {OBJECT, "{\"a\":1,\"z\":2}", false}, {OBJECT, "{\"a\":1,\"ab\":\"\"}", false},
        {OBJECT, "{\"a\":1,\"ab\":\"\xC3\xA9\xC3\xA9\xC3\xA9\"}", true}, {OBJECT, "{\"a\":1,\"ab\":\"abcd\"}", false}, {OBJECT, "{\"a\":1,\"c\":12}", true},
        {OBJECT, "{\"c\":1,\"a\":1}", true}, {OBJECT, "{\"a\":1,\"c\":2}", false}, {OBJECT, "{\"a\":1,\"c\":null}", true}, {OBJECT, "{\"a\":1,\"c\":\"x\"}", true},
        {"{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":1,\"maxItems\":2}", "[true,false]", true},
        {"{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":1,\"maxItems\":2}", "[]", false},
        {"{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":1,\"maxItems\":2}", "[true,true,true]", false},
        {"{\"type\":[\"integer\",\"null\"]}", "null", true}, {"{\"type\":[\"integer\",\"null\"]}", "-7", true}, {"{\"type\":[\"integer\",\"null\"]}", "-", false},
        {"{\"type\":\"number\"}", "3.25e-2", true}, {"{\"const\":\"only\"}", "\"only\"", true}, {"{\"enum\":[1,12,123]}", "12", true}, {"{\"enum\":[1,12,123]}", "13", false},
        {"{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"null\"}},\"additionalProperties\":false}]}", "{\"k\":null}", true},
        {"{\"anyOf\":[{\"enum\":[\"a\"]},{\"type\":\"null\"}]}", "null", true},
        {"{\"$ref\":\"#/$defs/p\",\"$defs\":{\"p\":{\"type\":\"object\",\"properties\":{\"x\":{\"allOf\":[{\"$ref\":\"#/$defs/q\"}]}}},\"q\":{\"type\":\"integer\"}}}", "{\"x\": 5}", true},
        {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}", "{\"any\":1,\"key\":2}", true},
        {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}", "{\"any\":\"1\"}", false},
        {"{\"type\":\"object\",\"additionalProperties\":false}", "{}", true}, {"{\"type\":\"object\",\"additionalProperties\":false}", "{\"a\":1}", false},
        {"true", "[1,{\"a\":\"b\"}]", true},
    };
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        expect(x, rows[i].schema, rows[i].text, rows[i].fits);
}

static void test_refused(void **state)
{
    struct lexicon *x = *state;
    static const char *const rows[][2] = {
        {"{\"type\":\"string\",\"pattern\":\"x\"}", "schema.pattern"},
        {"{\"properties\":{\"a\":{\"properties\":{\"b\":{\"format\":\"date\"}}}}}", "schema.properties.a.properties.b.format"},
        {"{\"type\":\"integer\",\"minimum\":3}", "schema.minimum"},
        {"{\"type\":\"text\"}", "no JSON type"},
        {"{\"anyOf\":[{\"type\":\"object\"},{\"type\":\"object\"}]}", "schema.anyOf"},
        {"{\"anyOf\":[{\"enum\":[1]},{\"type\":\"string\"}]}", "schema.anyOf"},
        {"{\"allOf\":[{},{}]}", "schema.allOf"},
        {"{\"$ref\":\"http://x\"}", "schema.$ref"},
        {"{\"$ref\":\"#\"}", "containing themselves"},
        {"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"properties\":{\"l\":{\"$ref\":\"#/$defs/a\"},\"r\":{\"$ref\":\"#/$defs/a\"}}}}}", "schema"},
        {"{\"required\":[\"a\"]}", "schema.required"},
        {"{\"type\":\"array\",\"items\":[{}]}", "schema.items"},
        {"{\"type\":\"array\",\"minItems\":-1}", "schema.minItems"},
        {"{\"enum\":[]}", "schema.enum"},
        {"5", "schema"},
    };
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct text_grammar *g;
        json_t *j = json_loads(rows[i][0], JSON_DECODE_ANY, NULL);
        if (text_grammar_json(x->l, j, "schema", 0, &g) == IFX_OK)
            fail_msg("%s: taken", rows[i][0]);
        if (strstr(base_error_text(), rows[i][1]) == NULL)
            fail_msg("%s: \"%s\" is not in \"%s\"", rows[i][0], rows[i][1], base_error_text());
        json_decref(j);
    }
}

static void test_call_grammar(void **state)
{
    struct lexicon *x = *state;
    struct text_grammar *g;
    json_t *tools = json_loads("[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"n\":{\"type\":\"integer\"}},\"required\":[\"n\"]}}},"
                               "{\"function\":{\"name\":\"fly\",\"parameters\":{\"properties\":{\"x\":{\"pattern\":\"p\"}}}}}]", 0, NULL);
    support_ok(text_grammar_calls(x->l, tools, 0, &g), "calls");
    assert_true(fits(x, g, CALL("{\"n\": 5}")));
    assert_false(fits(x, g, CALL("{\"n\": \"5\"}")));
    assert_false(fits(x, g, CALL("{}")));
    assert_true(fits(x, g, "<tool_call>\n{\"name\": \"fly\", \"arguments\": {\"anything\": [1]}}\n</tool_call>"));
    assert_false(fits(x, g, "Hello"));
    text_grammar_destroy(g);
    support_ok(text_grammar_calls(x->l, tools, TEXT_GRAMMAR_THOUGHT, &g), "calls");
    assert_true(fits(x, g, "<think>\nwhat < now </thin\n</think>\n\n" CALL("{\"n\": 5}")));
    assert_false(fits(x, g, CALL("{\"n\": 5}")));
    text_grammar_destroy(g);
    json_decref(tools);
}

/* The mask against every token tried alone, along an answer. */
static void test_mask(void **state)
{
    struct lexicon *x = *state;
    struct text_grammar *g;
    struct text_grammar_state *s;
    uint32_t vocab = text_vocab_size(x->t);
    uint64_t *allowed = base_calloc((vocab + 63) / 64, sizeof *allowed);
    const char *text = "{\"a\":\"b\xC3\xA9 c\",\"d\":[1";
    support_ok(text_grammar_json(x->l, NULL, "schema", 0, &g), "any");
    for (size_t upto = 0; upto <= strlen(text); upto++) {
        support_ok(text_grammar_begin(g, &s), "begin");
        for (size_t i = 0; i < upto; i++)
            support_ok(text_grammar_accept(s, (int32_t)x->t->byte_id[(unsigned char)text[i]]), "byte");
        text_grammar_mask(s, allowed);
        for (uint32_t id = 0; id < vocab; id += id < 600 ? 1 : 149) {
            struct text_grammar_state *alone;
            support_ok(text_grammar_begin(g, &alone), "begin");
            for (size_t i = 0; i < upto; i++)
                text_grammar_accept(alone, (int32_t)x->t->byte_id[(unsigned char)text[i]]);
            bool may = text_grammar_accept(alone, (int32_t)id) == IFX_OK;
            if (may != (allowed[id / 64] >> (id % 64) & 1))
                fail_msg("after %zu bytes token %u: mask %d, alone %d", upto, id, !may, may);
            text_grammar_end(alone);
        }
        text_grammar_end(s);
    }
    text_grammar_destroy(g);
    base_free(allowed);
}

static int setup(void **state)
{
    static struct lexicon x;
    x.t = support_qwen3();
    *state = &x;
    return text_lexicon_create(x.t, text_vocab_size(x.t), &x.l) != IFX_OK;
}

static int teardown(void **state)
{
    struct lexicon *x = *state;
    text_lexicon_destroy(x->l);
    text_tokenizer_destroy(x->t);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_answers), cmocka_unit_test(test_grammar), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_call_grammar), cmocka_unit_test(test_mask)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
