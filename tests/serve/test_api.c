/* SPDX-License-Identifier: Apache-2.0
 *
 * test_api.c - what the endpoints answer: chat and text completions whole and streamed, log probabilities, usage, stops, models, tokens.
 */
#include "config.h"
#include "harness.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int setup(void **state)
{
    static struct rig r;
    rig_model(&r, 0, 0, 0);
    r.o.force = rig_force;
    r.o.force_ctx = &r;
    rig_serve(&r);
    *state = &r;
    return 0;
}

static int teardown(void **state)
{
    rig_close(*state);
    return 0;
}

#define CHAT "/v1/chat/completions"

static void test_whole_and_stream(void **state)
{
    struct rig *r = *state;
    json_t *whole = post_json(r, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"What is 7 + 5?\"}],\"temperature\":0}", 200);
    const char *text = text_at(whole, "choices.0.message.content");
    assert_non_null(strstr(text, "12"));
    assert_string_equal(text_at(whole, "choices.0.finish_reason"), "stop");
    assert_string_equal(text_at(whole, "object"), "chat.completion");
    assert_int_equal(int_at(whole, "usage.prompt_tokens") + int_at(whole, "usage.completion_tokens"), int_at(whole, "usage.total_tokens"));
    struct answer a = post(r, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"What is \"},{\"type\":\"text\","
                                    "\"text\":\"7 + 5?\"}]}],\"temperature\":0,\"stream\":true,\"stream_options\":{\"include_usage\":true},"
                                    "\"unknown_field\":{\"a\":[1]}}");
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.head, "text/event-stream"));
    json_t *list = events(a.body.data);
    char *streamed = stream_text(list, "choices.0.delta.content");
    assert_string_equal(streamed, text);
    size_t n = json_array_size(list);
    assert_string_equal(text_at(list, "0.choices.0.delta.role"), "assistant");
    assert_string_equal(json_string_value(json_array_get(list, n - 1)), "[DONE]");
    assert_int_equal(int_at(json_array_get(list, n - 2), "usage.completion_tokens"), int_at(whole, "usage.completion_tokens"));
    assert_int_equal(json_array_size(at(json_array_get(list, n - 2), "choices")), 0);
    assert_string_equal(text_at(json_array_get(list, n - 3), "choices.0.finish_reason"), "stop");
    base_free(streamed);
    json_decref(list);
    json_decref(whole);
    answer_free(&a);
}

static void test_completions(void **state)
{
    struct rig *r = *state;
    json_t *a = post_json(r, "/v1/completions", "{\"prompt\":\"Once upon a time\",\"max_tokens\":8,\"seed\":5,\"logprobs\":2}", 200);
    json_t *b = post_json(r, "/v1/completions", "{\"prompt\":[\"Once upon a time\"],\"max_completion_tokens\":8,\"seed\":5}", 200);
    assert_string_equal(text_at(a, "choices.0.text"), text_at(b, "choices.0.text"));
    assert_string_equal(text_at(a, "choices.0.finish_reason"), "length");
    assert_int_equal(int_at(a, "usage.completion_tokens"), 8);
    assert_int_equal(json_array_size(at(a, "choices.0.logprobs.tokens")), 8);
    assert_int_equal(json_array_size(at(a, "choices.0.logprobs.text_offset")), 8);
    assert_int_equal(json_object_size(at(a, "choices.0.logprobs.top_logprobs.3")), 2);
    json_t *ids = post_json(r, "/tokenize", "{\"content\":\"Once upon a time\"}", 200);
    char *tokens = json_dumps(json_object_get(ids, "tokens"), 0), *body = base_format("{\"prompt\":%s,\"max_tokens\":8,\"seed\":5}", tokens);
    json_t *c = post_json(r, "/v1/completions", body, 200);
    assert_string_equal(text_at(a, "choices.0.text"), text_at(c, "choices.0.text"));
    char *back_body = base_format("{\"tokens\":%s}", tokens);
    json_t *back = post_json(r, "/detokenize", back_body, 200);
    assert_string_equal(text_at(back, "content"), "Once upon a time");
    base_free(body);
    base_free(back_body);
    free(tokens);
    json_decref(a);
    json_decref(b);
    json_decref(c);
    json_decref(ids);
    json_decref(back);
}

static void test_logprobs(void **state)
{
    json_t *a = post_json(*state, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"What is 2 + 2?\"}],\"temperature\":0,\"logprobs\":true,"
                                        "\"top_logprobs\":3}", 200);
    const json_t *list = at(a, "choices.0.logprobs.content"), *e;
    struct base_buf text = {0};
    size_t i;
    assert_int_equal(json_array_size(list), int_at(a, "usage.completion_tokens"));
    json_array_foreach(list, i, e) {
        const json_t *top = json_object_get(e, "top_logprobs");
        assert_int_equal(json_array_size(top), 3);
        /* Greedy: the token is the likeliest, and the order is falling. */
        assert_string_equal(text_at(e, "token"), text_at(top, "0.token"));
        for (size_t k = 0; k < 2; k++)
            assert_true(json_number_value(json_object_get(json_array_get(top, k), "logprob")) >=
                        json_number_value(json_object_get(json_array_get(top, k + 1), "logprob")));
        assert_true(json_number_value(json_object_get(e, "logprob")) <= 0);
        base_buf_add(&text, text_at(e, "token"), strlen(text_at(e, "token")));
    }
    assert_string_equal(text.data, text_at(a, "choices.0.message.content"));
    base_buf_free(&text);
    json_decref(a);
}

/* A text that the model is made to say, whole and streamed; what both give must agree. */
static void forced(struct rig *r, const char *say, const char *more, const char *content, const char *reasoning, const char *finish)
{
    json_t *text = json_string(say);
    char *quoted = json_dumps(text, JSON_ENCODE_ANY);
    quoted[strlen(quoted) - 1] = 0; /* without its quotes it goes on behind FORCE: */
    char *streamed, *body = base_format("{\"messages\":[{\"role\":\"user\",\"content\":\"FORCE:%s\"}]%s}", quoted + 1, more);
    json_t *whole = post_json(r, CHAT, body, 200);
    assert_string_equal(text_at(whole, "choices.0.message.content"), content);
    if (reasoning != NULL)
        assert_string_equal(text_at(whole, "choices.0.message.reasoning_content"), reasoning);
    else
        assert_null(at(whole, "choices.0.message.reasoning_content"));
    assert_string_equal(text_at(whole, "choices.0.finish_reason"), finish);
    base_free(body);
    body = base_format("{\"messages\":[{\"role\":\"user\",\"content\":\"FORCE:%s\"}],\"stream\":true%s}", quoted + 1, more);
    struct answer a = post(r, CHAT, body);
    json_t *list = events(a.body.data);
    streamed = stream_text(list, "choices.0.delta.content");
    assert_string_equal(streamed, content);
    base_free(streamed);
    streamed = stream_text(list, "choices.0.delta.reasoning_content");
    assert_string_equal(streamed, reasoning ? reasoning : "");
    base_free(streamed);
    json_decref(list);
    answer_free(&a);
    base_free(body);
    free(quoted);
    json_decref(text);
    json_decref(whole);
}

static void test_stops(void **state)
{
    struct rig *r = *state;
    forced(r, "one two\n\nthree", ",\"stop\":\"\\n\\n\"", "one two", NULL, "stop");
    forced(r, "one E EN END two", ",\"stop\":[\"END\"]", "one E EN ", NULL, "stop");
    forced(r, "one E EN EN", ",\"stop\":[\"END\"]", "one E EN EN", NULL, "stop");
    forced(r, "smile \xF0\x9F\x99\x82 end", ",\"stop\":[\"\xF0\x9F\x99\x82\"]", "smile ", NULL, "stop");
    forced(r, "\xF0\x9F\x99\x82\xC3\xA9\xE6\xBC\xA2 stop here", ",\"stop\":[\"stop\",\"stop here\"]", "\xF0\x9F\x99\x82\xC3\xA9\xE6\xBC\xA2 ", NULL, "stop");
    forced(r, "<think>\nI END here", ",\"stop\":[\"END\"]", "", "I ", "stop");
}

static void test_reasoning(void **state)
{
    struct rig *r = *state;
    forced(r, "<think>\nfirst\n\nsecond\n</think>\n\nThe answer.", "", "The answer.", "first\n\nsecond", "stop");
    forced(r, "no <think>thought</think>", "", "no <think>thought</think>", NULL, "stop");
    forced(r, "<think>\nnever ends", "", "", "never ends", "stop");
    forced(r, "\xF0\x9F\x99\x82\xF0\x9F\x99\x82", ",\"max_tokens\":1", "\xEF\xBF\xBD", NULL, "length");
}

static void test_models(void **state)
{
    struct rig *r = *state;
    struct answer a = ask(r, "GET", "/v1/models", NULL, NULL);
    assert_string_equal(text_at(a.json, "data.0.id"), "demo");
    answer_free(&a);
    a = ask(r, "GET", "/v1/models/demo", NULL, NULL);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    a = ask(r, "GET", "/v1/models/other", NULL, NULL);
    assert_int_equal(a.status, 404);
    assert_string_equal(text_at(a.json, "error.code"), "model_not_found");
    answer_free(&a);
    a = ask(r, "GET", "/health", NULL, NULL);
    assert_string_equal(text_at(a.json, "status"), "ok");
    answer_free(&a);
    a = ask(r, "GET", "/", NULL, NULL);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.head, "text/html"));
    assert_non_null(strstr(a.head, "Content-Security-Policy"));
    answer_free(&a);
    a = ask(r, "HEAD", "/health", NULL, NULL);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    assert_true(metric(r, "generated_tokens_total") > 0);
    assert_true(metric(r, "requests_running") == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_and_stream), cmocka_unit_test(test_completions), cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_stops),            cmocka_unit_test(test_reasoning),   cmocka_unit_test(test_models),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
