/* SPDX-License-Identifier: Apache-2.0
 *
 * test_bad.c - clients that send nonsense, too much, too slowly, or have no right to ask.  After each the server still answers.
 */
#include "config.h"
#include "harness.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHAT "/v1/chat/completions"
#define GOOD "{\"messages\":[{\"role\":\"user\",\"content\":\"What is 7 + 5?\"}],\"max_tokens\":2}"

static int setup(void **state)
{
    static struct rig r;
    rig_model(&r, 512, 0, 0);
    r.o.client_timeout = 1.5;
    r.o.max_body = 1 << 20;
    rig_serve(&r);
    *state = &r;
    return 0;
}

static int teardown(void **state)
{
    rig_close(*state);
    return 0;
}

static void still_alive(const struct rig *r)
{
    json_decref(post_json(r, CHAT, GOOD, 200));
}

static const char *const post_paths[] = {CHAT, "/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/detokenize"};

/* On one connection, to every endpoint: each body is refused in the API's words, and the connection goes on. */
static void test_no_json(void **state)
{
    struct rig *r = *state;
    static const struct {
        const char *bytes;
        size_t n;
    } bodies[] = {
#define B(text) {text, sizeof(text) - 1}
        B(""), B("{"), B("[]"), B("\"x\""), B("12"), B("null"), B("{\"messages\":5}x"), B("\xff\xfe{}"), B("\xEF\xBB\xBF{}"),
        B("{\"a\":\"\xff\"}"), B("{\"a\":\"\\ud800\"}"), B("{\"a\":\"\xed\xa0\x80\"}"), B("{\"a\":\"x\\u0000y\"}"), B("{\"a\":1,\"a\":2}"),
        B("{\"a\":1e999}"), B("{\"a\":99999999999999999999999999}"), B("{\"a\":0x10}"), B("{\"a\":NaN}"), B("{'a':1}"), B("{\"a\":\"\0\"}"),
        B("\x1f\x8b\x08\x00\x00"), B("GET / HTTP/1.1\r\n\r\n"),
#undef B
    };
    int fd = dial(r);
    for (size_t p = 0; p < sizeof post_paths / sizeof post_paths[0]; p++)
        for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
            send_post(fd, post_paths[p], NULL, bodies[i].bytes, bodies[i].n);
            struct answer a = receive(fd);
            if (a.status != 400 || a.json == NULL || at(a.json, "error.message") == NULL)
                FAIL("%s, body %zu: expected 400 with an error object, got %d %s", post_paths[p], i, a.status, a.body.data ? a.body.data : "");
            assert_string_equal(text_at(a.json, "error.type"), "invalid_request_error");
            answer_free(&a);
        }
    send_post(fd, CHAT, NULL, GOOD, strlen(GOOD));
    struct answer a = receive(fd);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    close(fd);
}

static void test_types(void **state)
{
    struct rig *r = *state;
#define M "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
    static const struct {
        const char *path, *body, *param, *word;
    } rows[] = {
        {CHAT, "{}", "messages", "missing"},
        {CHAT, "{\"messages\":5}", "messages", "list"},
        {CHAT, "{\"messages\":[]}", "messages", "empty"},
        {CHAT, "{\"messages\":[5]}", "messages[0]", "object"},
        {CHAT, "{\"messages\":[{\"content\":\"x\"}]}", "messages[0].role", "missing"},
        {CHAT, "{\"messages\":[{\"role\":\"king\",\"content\":\"x\"}]}", "messages[0].role", "king"},
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":{}}]}", "messages[0].content", "type"},
        {CHAT, "{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content", "missing"},
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}]}", "messages[0].content[0]", "image_url"},
        {CHAT, "{" M ",\"max_tokens\":\"ten\"}", "max_tokens", "string"},
        {CHAT, "{" M ",\"max_tokens\":-1}", "max_tokens", "from 1"},
        {CHAT, "{" M ",\"max_tokens\":1e99}", "max_tokens", "whole"},
        {CHAT, "{" M ",\"max_tokens\":1.5}", "max_tokens", "whole"},
        {CHAT, "{" M ",\"max_completion_tokens\":true}", "max_completion_tokens", "boolean"},
        {CHAT, "{" M ",\"temperature\":\"hot\"}", "temperature", "string"},
        {CHAT, "{" M ",\"temperature\":-1}", "temperature", "from 0"},
        {CHAT, "{" M ",\"top_p\":0}", "top_p", "no token"},
        {CHAT, "{" M ",\"top_p\":1.1}", "top_p", "to 1"},
        {CHAT, "{" M ",\"top_k\":1.5}", "top_k", "whole"},
        {CHAT, "{" M ",\"min_p\":[]}", "min_p", "list"},
        {CHAT, "{" M ",\"seed\":\"1\"}", "seed", "string"},
        {CHAT, "{" M ",\"presence_penalty\":{}}", "presence_penalty", "object"},
        {CHAT, "{" M ",\"frequency_penalty\":1e9}", "frequency_penalty", "to 100"},
        {CHAT, "{" M ",\"n\":2}", "n", "only 1"},
        {CHAT, "{" M ",\"stream\":\"yes\"}", "stream", "string"},
        {CHAT, "{" M ",\"stream_options\":3}", "stream_options", "number"},
        {CHAT, "{" M ",\"stop\":\"\"}", "stop", "empty"},
        {CHAT, "{" M ",\"stop\":[1]}", "stop", "number"},
        {CHAT, "{" M ",\"logprobs\":3}", "logprobs", "number"},
        {CHAT, "{" M ",\"top_logprobs\":3}", "top_logprobs", "needs"},
        {CHAT, "{" M ",\"logprobs\":true,\"top_logprobs\":21}", "top_logprobs", "20"},
        {CHAT, "{" M ",\"logit_bias\":{\"5\":1}}", "logit_bias", "not supported"},
        {CHAT, "{" M ",\"tools\":{}}", "tools", "object"},
        {CHAT, "{" M ",\"tools\":[5]}", "tools[0]", "number"},
        {CHAT, "{" M ",\"tools\":[{\"type\":\"function\"}]}", "tools[0].function", "nothing"},
        {CHAT, "{" M ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":7}}]}", "tools[0].function.name", "missing"},
        {CHAT, "{" M ",\"tool_choice\":\"sometimes\"}", "tool_choice", "auto"},
        {CHAT, "{" M ",\"tool_choice\":\"required\"}", "tool_choice", "no such tool"},
        {CHAT, "{" M ",\"response_format\":\"json\"}", "response_format", "string"},
        {CHAT, "{" M ",\"response_format\":{\"type\":\"yaml\"}}", "response_format.type", "yaml"},
        {CHAT, "{" M ",\"response_format\":{\"type\":\"json_schema\"}}", "response_format.json_schema.schema", "object"},
        {CHAT, "{" M ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"properties\":{\"a\":{\"pattern\":\"x\"}}}}}}",
         "response_format.json_schema.schema.properties.a.pattern", "not supported"},
        {CHAT, "{" M ",\"chat_template_kwargs\":{\"enable_thinking\":1}}", "enable_thinking", "number"},
        {"/v1/completions", "{}", "prompt", "nothing"},
        {"/v1/completions", "{\"prompt\":[\"a\",\"b\"]}", "prompt", "several"},
        {"/v1/completions", "{\"prompt\":[1,99999999]}", "prompt", "[1]"},
        {"/v1/completions", "{\"prompt\":[1,-1]}", "prompt", "[1]"},
        {"/v1/completions", "{\"prompt\":\"\"}", NULL, "empty"},
        {"/v1/completions", "{\"prompt\":\"x\",\"echo\":true}", "echo", "not supported"},
        {"/v1/completions", "{\"prompt\":\"x\",\"logprobs\":true}", "logprobs", "boolean"},
        {"/v1/completions", "{\"prompt\":\"x\",\"best_of\":3}", "best_of", "only 1"},
        {"/v1/completions", "{\"prompt\":\"x\",\"suffix\":\"y\"}", "suffix", "not supported"},
        {"/v1/messages", "{" M "}", NULL, "max_tokens: missing"},
        {"/v1/messages", "{\"max_tokens\":5}", NULL, "messages: "},
        {"/v1/messages", "{\"max_tokens\":5,\"messages\":[{\"role\":\"system\",\"content\":\"x\"}]}", NULL, "messages[0].role"},
        {"/v1/messages", "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]}", NULL, "messages[0].content[0]"},
        {"/v1/messages", "{\"max_tokens\":5,\"system\":7," M "}", NULL, "system: "},
        {"/v1/messages", "{\"max_tokens\":5,\"tools\":[{\"name\":\"a\"}]," M "}", NULL, "tools[0].input_schema"},
        {"/v1/messages", "{\"max_tokens\":5,\"tool_choice\":{\"type\":\"x\"}," M "}", NULL, "tool_choice.type"},
        {"/v1/messages", "{\"max_tokens\":5,\"stop_sequences\":[\"\"]," M "}", NULL, "stop_sequences: "},
        {"/tokenize", "{}", "content", "nothing"},
        {"/tokenize", "{\"content\":5}", "content", "number"},
        {"/detokenize", "{\"tokens\":\"x\"}", "tokens", "string"},
        {"/detokenize", "{\"tokens\":[1e3]}", "tokens", "[0]"},
        {"/detokenize", "{}", "tokens", "nothing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *e = post_json(r, rows[i].path, rows[i].body, 400);
        if (strstr(text_at(e, "error.message"), rows[i].word) == NULL)
            FAIL("%s: \"%s\" is not in \"%s\"", rows[i].body, rows[i].word, text_at(e, "error.message"));
        if (rows[i].param != NULL)
            assert_string_equal(text_at(e, "error.param"), rows[i].param);
        if (strncmp(rows[i].path, "/v1/messages", 12) == 0)
            assert_string_equal(text_at(e, "type"), "error");
        json_decref(e);
    }
    still_alive(r);
}

static char *filled(const char *before, size_t n, const char *what, const char *after)
{
    size_t a = strlen(before), w = strlen(what), z = strlen(after);
    char *s = base_alloc(a + n * w + z + 1, 16);
    memcpy(s, before, a);
    for (size_t i = 0; i < n; i++)
        memcpy(s + a + i * w, what, w);
    memcpy(s + a + n * w, after, z + 1);
    return s;
}

static void test_large(void **state)
{
    struct rig *r = *state;
    char *bodies[] = {filled("", 100000, "[", ""), filled("{\"a\":", 100000, "[", ""), filled("{\"messages\":", 2000, "[", "x"),
                      filled("{\"", 1000000, "k", "\":1}"), filled("{\"messages\":", 30000, "{\"a\":", "1"),
                      filled("{\"messages\":[{\"role\":\"user\",\"content\":\"", 100000, "word ", "\"}]}"),
                      filled("{\"messages\":[{\"role\":\"user\",\"content\":\"", 900000, "a", "\"}]}")};
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        double start = base_now();
        json_t *e = post_json(r, CHAT, bodies[i], 400);
        if (base_now() - start > 5)
            FAIL("body %zu took %.1f seconds", i, base_now() - start);
        if (i >= 5) {
            assert_string_equal(text_at(e, "error.code"), "context_length_exceeded");
            assert_non_null(strstr(text_at(e, "error.message"), "512"));
            assert_non_null(strstr(text_at(e, "error.message"), "--ctx"));
        }
        json_decref(e);
        base_free(bodies[i]);
    }
    /* Just above the limit: read to its end, told, and the connection goes on. */
    char *big = filled("{\"a\":\"", (1 << 20) + 5, "x", "\"}");
    int fd = dial(r);
    send_post(fd, CHAT, NULL, big, strlen(big));
    struct answer a = receive(fd);
    assert_int_equal(a.status, 413);
    assert_string_equal(text_at(a.json, "error.code"), "request_too_large");
    answer_free(&a);
    send_post(fd, CHAT, NULL, GOOD, strlen(GOOD));
    a = receive(fd);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    close(fd);
    base_free(big);
    /* Far above it: told before the body. */
    fd = dial(r);
    send_text(fd, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n");
    a = receive(fd);
    assert_int_equal(a.status, 413);
    answer_free(&a);
    close(fd);
    /* 413 instead of 100. */
    fd = dial(r);
    send_text(fd, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 2000000\r\n\r\n");
    a = receive(fd);
    assert_int_equal(a.status, 413);
    answer_free(&a);
    close(fd);
    still_alive(r);
}

static void test_headers(void **state)
{
    struct rig *r = *state;
    static const struct {
        const char *method, *path, *headers;
        int status;
    } rows[] = {
        {"GET", CHAT, NULL, 405}, {"DELETE", "/health", NULL, 405}, {"GET", "/nothing", NULL, 404}, {"GET", "/../../etc/passwd", NULL, 404},
        {"GET", "/%2e%2e/%2e%2e/etc/passwd", NULL, 404}, {"GET", "/v1/models/../../etc/passwd", NULL, 404}, {"GET", "//health", NULL, 404},
        {"POST", CHAT, "Content-Type: text/plain\r\n", 415}, {"POST", CHAT, "Content-Type: application/x-www-form-urlencoded\r\n", 415},
        {"POST", CHAT, "Content-Type: application/json\r\nContent-Encoding: gzip\r\n", 415},
        {"GET", "/health", "Host: evil.example\r\n", 403}, {"GET", "/health", "Host: localhost:99\r\n", 200},
        {"GET", "/health", "Host: 127.0.0.1:8080\r\n", 200}, {"GET", "/health", "Host: localhost.evil.example\r\n", 403},
        {"GET", "/", "Host: 10.0.0.7\r\n", 403}, {"POST", CHAT, "Content-Type: application/json; charset=utf-8\r\n", 200},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct answer a = ask(r, rows[i].method, rows[i].path, rows[i].headers, strcmp(rows[i].method, "POST") == 0 ? GOOD : NULL);
        if (a.status != rows[i].status)
            FAIL("%s %s %s: expected %d, got %d", rows[i].method, rows[i].path, rows[i].headers ? rows[i].headers : "", rows[i].status, a.status);
        if (a.status != 200 && at(a.json, "error.message") == NULL)
            FAIL("%s %s: no error object", rows[i].method, rows[i].path);
        if (strcasestr(a.head, "access-control") != NULL)
            FAIL("%s %s: CORS headers that nobody asked for", rows[i].method, rows[i].path);
        answer_free(&a);
    }
    struct answer a = ask(r, "GET", "/health", "Origin: http://evil.example\r\n", NULL);
    assert_null(strcasestr(a.head, "access-control"));
    answer_free(&a);
    /* A header that does not end. */
    char *long_header = filled("X-Long: ", 100000, "x", "\r\n");
    a = ask(r, "GET", "/health", long_header, NULL);
    assert_true(a.status == 431 || a.status == 413 || a.status == 0);
    answer_free(&a);
    base_free(long_header);
    still_alive(r);
}

static void test_chunked_and_pipelined(void **state)
{
    struct rig *r = *state;
    int fd = dial(r);
    const char *body = GOOD;
    send_text(fd, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (size_t i = 0; i < strlen(body); i += 7) {
        char part[32];
        snprintf(part, sizeof part, "%zx\r\n%.7s\r\n", strlen(body + i) < 7 ? strlen(body + i) : (size_t)7, body + i);
        send_text(fd, part);
    }
    send_text(fd, "0\r\n\r\n");
    struct answer a = receive(fd);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    /* A chunked body without end. */
    char *part = filled("10000\r\n", 65536, "y", "\r\n");
    int endless = dial(r);
    send_text(endless, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 400; i++)
        send_bytes(endless, part, strlen(part));
    struct pollfd p = {.fd = endless, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 10000), 1);
    close(endless);
    base_free(part);
    send_text(fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\nGET /none HTTP/1.1\r\nHost: localhost\r\n\r\n");
    struct base_buf all = {0};
    char piece[4096];
    while (all.data == NULL || strstr(all.data, "there is nothing at this path") == NULL) {
        p = (struct pollfd){.fd = fd, .events = POLLIN};
        assert_int_equal(poll(&p, 1, 5000), 1);
        ssize_t n = recv(fd, piece, sizeof piece, 0);
        assert_true(n > 0);
        base_buf_add(&all, piece, (uint64_t)n);
    }
    assert_non_null(strstr(all.data, "\"status\":\"ok\""));
    assert_non_null(strstr(all.data, "\"object\":\"list\""));
    base_buf_free(&all);
    close(fd);
    still_alive(r);
}

/* Sends a byte of `text` each 0.2 seconds until the server ends the connection; seconds that took. */
static double trickle(const struct rig *r, const char *text)
{
    int fd = dial(r);
    double start = base_now();
    for (size_t i = 0; base_now() - start < 8; i++) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (send(fd, text + i % strlen(text), 1, MSG_NOSIGNAL) != 1 || poll(&p, 1, 200) > 0)
            break;
    }
    close(fd);
    return base_now() - start;
}

static void test_slow(void **state)
{
    struct rig *r = *state;
    double line = trickle(r, "GET /aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    if (line > 5)
        FAIL("a request line that trickles in was let in for %.1f seconds", line);
    int fd = dial(r);
    double start = base_now();
    send_text(fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n");
    while (base_now() - start < 8) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        send_text(fd, "X: 1\r\n");
        if (poll(&p, 1, 200) > 0)
            break;
    }
    if (base_now() - start > 5)
        FAIL("headers without end were let in for %.1f seconds", base_now() - start);
    close(fd);
    fd = dial(r);
    start = base_now();
    send_text(fd, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n");
    while (base_now() - start < 8) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        send_text(fd, "x");
        if (poll(&p, 1, 200) > 0)
            break;
    }
    if (base_now() - start > 5)
        FAIL("a body without end was let in for %.1f seconds", base_now() - start);
    close(fd);
    still_alive(r);
}

static void test_half(void **state)
{
    struct rig *r = *state;
    static const char *const halves[] = {"", "G", "POST ", "POST /v1/chat/completions HTTP/1.1\r\n", "\r\n\r\n", "GARBAGE\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
                                         "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{\"mess",
                                         "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n{}",
                                         "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n",
                                         "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"};
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; i < sizeof halves / sizeof halves[0]; i++) {
            int fd = dial(r);
            send_text(fd, halves[i]);
            close(fd);
        }
    still_alive(r);
    assert_true(wait_metric(r, "connections", 1, 5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_json), cmocka_unit_test(test_types), cmocka_unit_test(test_large), cmocka_unit_test(test_headers),
        cmocka_unit_test(test_chunked_and_pipelined), cmocka_unit_test(test_slow), cmocka_unit_test(test_half),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
