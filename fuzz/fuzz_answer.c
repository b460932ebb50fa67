/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_answer.c - what a model may say, taken apart in pieces; and, where it is JSON, held against a grammar: what passes is JSON indeed.
 */
#include "config.h"
#include "fuzz.h"
#include "fuzz_text.h"
#include "grammar.h"

static int32_t on_text(void *ctx, const char *text, uint64_t n)
{
    *(uint64_t *)ctx += n;
    (void)text;
    return IFX_OK;
}

static int32_t on_call(void *ctx, uint32_t index, const char *name, const char *arguments)
{
    (void)ctx, (void)index;
    json_t *j = json_loads(arguments, JSON_ALLOW_NUL, NULL);
    if (!json_is_object(j) || name[0] == 0)
        abort();
    json_decref(j);
    return IFX_OK;
}

static void take_apart(const char *text, size_t n, size_t piece)
{
    static const char tools_text[] = "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":[\"array\",\"null\"]}}}}}]";
    uint64_t total = 0;
    struct text_answer_sink sink = {&total, on_text, on_text, on_call};
    json_t *tools = json_loads(tools_text, 0, NULL);
    struct text_answer_options o = {.thought = true, .in_thought = piece % 2, .calls = true, .tools = tools};
    struct text_answer *a;
    if (text_answer_create(&o, &sink, &a))
        abort();
    for (size_t i = 0; i < n; i += piece)
        if (text_answer_feed(a, text + i, n - i < piece ? n - i : piece))
            abort();
    if (text_answer_finish(a) || total > n)
        abort();
    text_answer_destroy(a);
    json_decref(tools);
}

static void hold(const char *text, size_t n)
{
    static struct text_lexicon *l;
    const struct text_tokenizer *t = fuzz_tokenizer();
    struct text_grammar *g;
    struct text_grammar_state *s;
    uint32_t vocab = text_vocab_size(t);
    uint64_t allowed[64];
    if (vocab > 64 * 64 || (l == NULL && text_lexicon_create(t, vocab, &l)) || text_grammar_json(l, NULL, "schema", 0, &g) || text_grammar_begin(g, &s))
        abort();
    size_t i = 0;
    while (i < n && text_grammar_accept(s, (int32_t)t->byte_id[(uint8_t)text[i]]) == IFX_OK)
        i++;
    if (i == n && text_grammar_mask(s, allowed)) {
        json_t *j = json_loadb(text, n, JSON_ALLOW_NUL, NULL);
        if (!json_is_object(j))
            abort();
        json_decref(j);
    }
    text_grammar_end(s);
    text_grammar_destroy(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    take_apart((const char *)data + 1, size - 1, 1 + data[0] % 16);
    hold((const char *)data + 1, size - 1);
    return 0;
}
