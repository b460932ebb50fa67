/* SPDX-License-Identifier: Apache-2.0
 *
 * test_schedule.c - many at once: the same tokens as alone, a bounded queue, clients that leave, time limits, what a conversation takes over
 * from its turns, shutting down; keys and origins.
 */
#include "config.h"
#include "harness.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHAT "/v1/chat/completions"

/* ---- the same answer in any company ---- */

struct worker {
    const struct rig *r;
    unsigned seed;
    char *text;
    pthread_t thread;
};

static char *story(const struct rig *r, unsigned seed, unsigned tokens)
{
    static const char *const about[] = {"a cat", "two dogs and a very long walk through the hills", "rain", "the old king", "a ship", "snow", "bread", "a mouse"};
    char *body = base_format("{\"messages\":[{\"role\":\"system\",\"content\":\"You tell stories.\"},{\"role\":\"user\",\"content\":\"Tell me a story about "
                             "%s.\"}],\"seed\":%u,\"temperature\":1,\"max_tokens\":%u,\"stream\":%s}", about[seed % 8], seed, tokens, seed % 2 ? "true" : "false");
    struct answer a = post(r, CHAT, body);
    base_free(body);
    if (a.status != 200)
        FAIL("seed %u: status %d: %s", seed, a.status, a.body.data);
    char *text;
    if (seed % 2) {
        json_t *list = events(a.body.data);
        text = stream_text(list, "choices.0.delta.content");
        json_decref(list);
    } else {
        text = base_strdup(text_at(a.json, "choices.0.message.content"));
    }
    answer_free(&a);
    return text;
}

static void *tell(void *ctx)
{
    struct worker *w = ctx;
    w->text = story(w->r, w->seed, 20 + w->seed * 5);
    return NULL;
}

static void test_same_in_company(void **state)
{
    struct rig r;
    (void)state;
    rig_model(&r, 1024, EXACT, 64 << 20);
    rig_serve(&r);
    struct worker w[12] = {0};
    for (unsigned i = 0; i < 12; i++) {
        w[i] = (struct worker){.r = &r, .seed = i};
        pthread_create(&w[i].thread, NULL, tell, &w[i]);
    }
    for (unsigned i = 0; i < 12; i++)
        pthread_join(w[i].thread, NULL);
    assert_true(metric(&r, "decode_steps_total") < metric(&r, "generated_tokens_total"));
    rig_stop(&r);
    ifx_model_close(r.model);
    ifx_context_destroy(r.ctx);
    /* Alone, one after the other, and nothing taken over from before. */
    rig_model(&r, 1024, EXACT, 0);
    r.o.max_concurrency = 1;
    rig_serve(&r);
    for (unsigned i = 0; i < 12; i++) {
        char *alone = story(&r, i, 20 + i * 5);
        assert_string_equal(w[i].text, alone);
        base_free(alone);
        base_free(w[i].text);
    }
    rig_close(&r);
}

/* ---- the same answer whoever picks: the device, by itself, or the host, for log probabilities and grammars ---- */

static const char *const settings[] = {
    "\"temperature\":0",
    "\"temperature\":0.9,\"top_p\":0.95",
    "\"temperature\":0.9,\"top_k\":20,\"presence_penalty\":0.5",
    "\"temperature\":0.9,\"top_k\":40,\"frequency_penalty\":0.6,\"repetition_penalty\":1.2",
    "\"temperature\":0.9,\"top_k\":20,\"presence_penalty\":0.5,\"logprobs\":true",
    "\"temperature\":0,\"repetition_penalty\":1.3",
    "\"temperature\":0.7,\"min_p\":0.05,\"response_format\":{\"type\":\"json_object\"}",
    "\"temperature\":1.2,\"min_p\":0.02",
};
enum { SETTINGS = sizeof settings / sizeof settings[0] };

static void *tell_with(void *ctx)
{
    struct worker *w = ctx;
    char *body = base_format("{\"messages\":[{\"role\":\"user\",\"content\":\"Tell me about rain.\"}],\"seed\":%u,\"max_tokens\":60,%s}", w->seed,
                             settings[w->seed % SETTINGS]);
    json_t *a = post_json(w->r, CHAT, body, 200);
    w->text = base_strdup(text_at(a, "choices.0.message.content"));
    json_decref(a);
    base_free(body);
    return NULL;
}

static void test_same_on_devices(void **state)
{
    struct rig r;
    struct worker w[2 * SETTINGS] = {0};
    (void)state;
    rig_model_offloaded(&r, UINT64_C(40) << 20);
    rig_serve(&r);
    for (unsigned i = 0; i < 2 * SETTINGS; i++) {
        w[i] = (struct worker){.r = &r, .seed = i};
        pthread_create(&w[i].thread, NULL, tell_with, &w[i]);
    }
    for (unsigned i = 0; i < 2 * SETTINGS; i++)
        pthread_join(w[i].thread, NULL);
    rig_close(&r);
    rig_model(&r, 1024, 128, 0);
    r.o.max_concurrency = 1;
    rig_serve(&r);
    for (unsigned i = 0; i < 2 * SETTINGS; i++) {
        struct worker host = {.r = &r, .seed = i};
        tell_with(&host);
        if (strcmp(w[i].text, host.text) != 0)
            FAIL("seed %u (%s): \"%s\" on sim, \"%s\" on cpu", i, settings[i % SETTINGS], w[i].text, host.text);
        base_free(w[i].text);
        base_free(host.text);
    }
    rig_close(&r);
}

/* ---- conversations ---- */

static void add(json_t *messages, const char *role, const char *text)
{
    json_array_append_new(messages, json_pack("{s:s, s:s}", "role", role, "content", text));
}

static json_t *turn(const struct rig *r, json_t *messages, int64_t *computed)
{
    json_t *body = json_pack("{s:O, s:i, s:i, s:i}", "messages", messages, "temperature", 0, "max_tokens", 40, "seed", 1);
    char *text = json_dumps(body, 0);
    json_t *a = post_json(r, CHAT, text, 200);
    free(text);
    json_decref(body);
    *computed = int_at(a, "usage.prompt_tokens") - int_at(a, "usage.prompt_tokens_details.cached_tokens");
    add(messages, "assistant", text_at(a, "choices.0.message.content"));
    return a;
}

/* Runs a conversation; answers into `out`, what each turn computed and what was new in it are compared when there is a cache.  Where reuse is exact,
 * answers are read again as prompts are, so the last one is new too. */
static void converse(const struct rig *r, bool cache, bool exact, char *out[20])
{
    static const char *const questions[] = {"What is 7 + 5?", "Tell me a short story about a cat.", "What is 3 + 9?", "And the cat?", "Why?"};
    json_t *messages = json_array();
    int64_t held = 0, total = 0;
    add(messages, "system", "You are a kind helper who answers questions and tells stories to children, in short and simple words.");
    for (int i = 0; i < 20; i++) {
        int64_t computed;
        add(messages, "user", questions[i % 5]);
        json_t *a = turn(r, messages, &computed);
        int64_t prompt = int_at(a, "usage.prompt_tokens"), fresh = prompt - held;
        out[i] = base_strdup(text_at(a, "choices.0.message.content"));
        if (cache && computed >= fresh + 64)
            FAIL("turn %d: %lld tokens are new, %lld were computed", i, (long long)fresh, (long long)computed);
        if (!cache)
            assert_int_equal(computed, prompt);
        total += prompt - computed;
        held = prompt + (exact ? 0 : int_at(a, "usage.completion_tokens"));
        json_decref(a);
    }
    assert_int_equal((int64_t)metric(r, "prompt_tokens_cached_total"), total);
    assert_true((metric(r, "prefix_cache_hits_total") > 0) == cache);
    json_decref(messages);
}

static void test_conversation(void **state)
{
    struct rig r;
    char *kept[20], *fresh[20];
    (void)state;
    rig_model(&r, 2048, 0, 64 << 20);
    rig_serve(&r);
    converse(&r, true, false, kept);
    rig_close(&r);
    for (int i = 0; i < 20; i++)
        base_free(kept[i]);
    rig_model(&r, 2048, EXACT, 64 << 20);
    rig_serve(&r);
    converse(&r, true, true, kept);
    rig_close(&r);
    rig_model(&r, 2048, EXACT, 0);
    rig_serve(&r);
    converse(&r, false, true, fresh);
    rig_close(&r);
    for (int i = 0; i < 20; i++) {
        assert_string_equal(kept[i], fresh[i]);
        base_free(kept[i]);
        base_free(fresh[i]);
    }
}

/* F41: a long and a short common beginning, and another request in between. */
static void test_shared_system(void **state)
{
    struct rig r;
    (void)state;
    rig_model(&r, 3072, 0, 64 << 20);
    rig_serve(&r);
    for (int words = 1800; words >= 90; words -= 1710) {
        struct base_buf system = {0};
        int64_t computed;
        for (int i = 0; i < words; i++)
            base_buf_addf(&system, "%s ", (const char *[]){"tree", "river", "stone", "house", "road"}[(i * 7 + words) % 5]);
        json_t *m = json_array(), *other = json_array();
        add(m, "system", system.data);
        add(m, "user", "What is 7 + 5?");
        json_decref(turn(&r, m, &computed));
        add(other, "user", "Tell me about snow.");
        json_decref(turn(&r, other, &computed));
        add(m, "user", "What is 2 + 2?");
        json_t *a = turn(&r, m, &computed);
        int64_t prompt = int_at(a, "usage.prompt_tokens");
        if (computed * 20 > prompt && computed >= 64)
            FAIL("system text of %d words: %lld of %lld tokens computed again", words, (long long)computed, (long long)prompt);
        json_decref(a);
        json_decref(m);
        json_decref(other);
        base_buf_free(&system);
    }
    rig_close(&r);
}

/* ---- limits ---- */

#define LONG "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story.\"}],\"max_tokens\":1900,\"ignore_eos\":true,\"stream\":%s}"

static int start_long(const struct rig *r, bool stream)
{
    char body[256];
    int fd = dial(r);
    snprintf(body, sizeof body, LONG, stream ? "true" : "false");
    send_post(fd, CHAT, NULL, body, strlen(body));
    return fd;
}

static void test_queue(void **state)
{
    struct rig r;
    int fd[5];
    (void)state;
    rig_model(&r, 2048, 0, 0);
    r.o.max_concurrency = 2;
    r.o.max_queue = 2;
    r.o.queue_timeout = 0.6;
    rig_serve(&r);
    for (int i = 0; i < 4; i++) {
        fd[i] = start_long(&r, i % 2 == 0);
        /* One after the other: who comes first is served first. */
        assert_true(wait_metric(&r, i < 2 ? "requests_running" : "requests_queued", 1 + i % 2, 5));
    }
    fd[4] = start_long(&r, true);
    struct answer a = receive(fd[4]);
    assert_int_equal(a.status, 429);
    assert_non_null(strcasestr(a.head, "retry-after:"));
    assert_string_equal(text_at(a.json, "error.type"), "rate_limit_error");
    answer_free(&a);
    double start = base_now();
    a = ask(&r, "GET", "/health", NULL, NULL);
    assert_int_equal(a.status, 200);
    if (base_now() - start > 0.5)
        FAIL("/health took %.0f ms under load", (base_now() - start) * 1e3);
    answer_free(&a);
    /* Those that wait are told so when their time is over. */
    for (int i = 2; i < 4; i++) {
        a = receive(fd[i]);
        assert_int_equal(a.status, 503);
        assert_string_equal(text_at(a.json, "error.code"), "timeout");
        answer_free(&a);
    }
    for (int i = 0; i < 5; i++)
        close(fd[i]);
    assert_true(wait_metric(&r, "requests_running", 0, 2));
    json_decref(post_json(&r, "/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":2}", 200));
    rig_close(&r);
}

/* A client that leaves ends its work: in a stream, in a whole answer, in a long prompt, in the queue. */
static void test_leaving(void **state)
{
    struct rig r;
    struct base_buf body = {0};
    (void)state;
    rig_model(&r, 4096, 32, 0);
    r.o.max_concurrency = 1;
    rig_serve(&r);
    for (int kind = 0; kind < 3; kind++) {
        int fd;
        if (kind < 2) {
            fd = start_long(&r, kind == 0);
        } else {
            base_buf_addf(&body, "{\"max_tokens\":900,\"ignore_eos\":true,\"prompt\":\"");
            for (int i = 0; i < 3000; i++)
                base_buf_addf(&body, "word ");
            base_buf_addf(&body, "\"}");
            fd = dial(&r);
            send_post(fd, "/v1/completions", NULL, body.data, body.len);
        }
        assert_true(wait_metric(&r, "requests_running", 1, 5));
        int waiting = start_long(&r, true);
        assert_true(wait_metric(&r, "requests_queued", 1, 5));
        close(waiting);
        close(fd);
        double start = base_now();
        if (!wait_metric(&r, "requests_running", 0, 2) || !wait_metric(&r, "requests_queued", 0, 2))
            FAIL("kind %d: still at work %.1f seconds after the client left", kind, base_now() - start);
    }
    assert_true(metric(&r, "generations_cancelled_total") == 6);
    base_buf_free(&body);
    rig_close(&r);
}

static void test_context(void **state)
{
    struct rig r;
    char *body = NULL;
    (void)state;
    rig_model(&r, 512, 0, 0);
    rig_serve(&r);
    for (int n = 511; n <= 513; n++) {
        struct base_buf b = {0};
        for (int i = 0; i < n; i++)
            base_buf_addf(&b, "%s%d", i ? "," : "", 100 + i % 50);
        body = base_format("{\"prompt\":[%s],\"max_tokens\":100,\"ignore_eos\":true}", b.data);
        json_t *a = post_json(&r, "/v1/completions", body, n <= 512 ? 200 : 400);
        if (n <= 512) {
            assert_string_equal(text_at(a, "choices.0.finish_reason"), "length");
            assert_int_equal(int_at(a, "usage.completion_tokens"), 513 - n);
        } else {
            assert_string_equal(text_at(a, "error.code"), "context_length_exceeded");
            assert_non_null(strstr(text_at(a, "error.message"), "513"));
        }
        json_decref(a);
        base_free(body);
        base_buf_free(&b);
    }
    rig_close(&r);
}

static void test_deadline(void **state)
{
    struct rig r;
    (void)state;
    rig_model(&r, 4096, 0, 0);
    r.o.request_timeout = 0.4;
    rig_serve(&r);
    int fd = start_long(&r, false);
    struct answer a = receive(fd);
    assert_int_equal(a.status, 504);
    answer_free(&a);
    close(fd);
    fd = start_long(&r, true);
    a = receive(fd);
    assert_int_equal(a.status, 200);
    json_t *list = events(a.body.data);
    assert_non_null(strstr(text_at(json_array_get(list, json_array_size(list) - 1), "error.message"), "--request-timeout"));
    json_decref(list);
    answer_free(&a);
    close(fd);
    rig_close(&r);
}

static void *stop_server(void *ctx)
{
    rig_stop(ctx);
    return NULL;
}

static void test_drain(void **state)
{
    struct rig r;
    pthread_t thread;
    (void)state;
    rig_model(&r, 2048, 0, 0);
    rig_serve(&r);
    int fd = dial(&r);
    const char *body = "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story.\"}],\"max_tokens\":200,\"ignore_eos\":true,\"stream\":true}";
    send_post(fd, CHAT, NULL, body, strlen(body));
    assert_true(wait_metric(&r, "requests_running", 1, 5));
    serve_drain(r.serve);
    struct answer a = post(&r, CHAT, body);
    assert_int_equal(a.status, 503);
    answer_free(&a);
    a = ask(&r, "GET", "/health", NULL, NULL);
    assert_int_equal(a.status, 503);
    assert_string_equal(text_at(a.json, "status"), "draining");
    answer_free(&a);
    a = receive(fd);
    json_t *list = events(a.body.data);
    assert_string_equal(json_string_value(json_array_get(list, json_array_size(list) - 1)), "[DONE]");
    json_decref(list);
    answer_free(&a);
    close(fd);
    assert_true(serve_wait(r.serve, 5));
    rig_stop(&r);
    /* What is cut off hears of it. */
    rig_serve(&r);
    fd = start_long(&r, true);
    assert_true(wait_metric(&r, "requests_running", 1, 5));
    pthread_create(&thread, NULL, stop_server, &r);
    a = receive(fd);
    list = events(a.body.data);
    assert_non_null(strstr(text_at(json_array_get(list, json_array_size(list) - 1), "error.message"), "shutting down"));
    json_decref(list);
    answer_free(&a);
    close(fd);
    pthread_join(thread, NULL);
    rig_close(&r);
}

static void test_guard(void **state)
{
    struct rig r;
    static const char *const origins[] = {"http://good.example", NULL}, *const hosts[] = {"box.example", NULL};
    (void)state;
    rig_model(&r, 512, 0, 0);
    r.o.api_key = "secret-key";
    r.o.cors_origins = origins;
    r.o.allowed_hosts = hosts;
    rig_serve(&r);
    static const struct {
        const char *path, *headers;
        int status;
    } rows[] = {{"/v1/models", NULL, 401}, {"/metrics", NULL, 401}, {"/health", NULL, 200}, {"/", NULL, 200},
                {"/v1/models", "Authorization: Bearer secret-key\r\n", 200}, {"/v1/models", "authorization: bearer secret-key\r\n", 200},
                {"/v1/models", "x-api-key: secret-key\r\n", 200}, {"/v1/models", "Authorization: Bearer secret-keyx\r\n", 401},
                {"/v1/models", "Authorization: Bearer secret-ke\r\n", 401}, {"/v1/models", "Authorization: Bearer \r\n", 401},
                {"/v1/models", "Authorization: secret-key\r\n", 401}, {"/v1/models", "x-api-key: secret-keysecret-key\r\n", 401},
                {"/health", "Host: box.example\r\n", 200}, {"/health", "Host: other.example\r\n", 403}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct answer a = ask(&r, "GET", rows[i].path, rows[i].headers, NULL);
        if (a.status != rows[i].status)
            FAIL("GET %s %s: expected %d, got %d", rows[i].path, rows[i].headers ? rows[i].headers : "", rows[i].status, a.status);
        answer_free(&a);
    }
    struct answer a = post(&r, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}");
    assert_int_equal(a.status, 401);
    assert_string_equal(text_at(a.json, "error.code"), "invalid_api_key");
    answer_free(&a);
    a = post(&r, "/v1/messages", "{}");
    assert_int_equal(a.status, 401);
    assert_string_equal(text_at(a.json, "error.type"), "authentication_error");
    answer_free(&a);
    a = ask(&r, "GET", "/health", "Origin: http://good.example\r\n", NULL);
    assert_non_null(strstr(a.head, "Access-Control-Allow-Origin: http://good.example"));
    answer_free(&a);
    a = ask(&r, "GET", "/health", "Origin: http://bad.example\r\n", NULL);
    assert_null(strcasestr(a.head, "access-control"));
    answer_free(&a);
    a = ask(&r, "OPTIONS", CHAT, "Origin: http://good.example\r\nAccess-Control-Request-Method: POST\r\n", NULL);
    assert_int_equal(a.status, 204);
    assert_non_null(strstr(a.head, "Access-Control-Allow-Methods"));
    answer_free(&a);
    rig_close(&r);
}

static int access_lines(void)
{
    char *text;
    uint64_t n;
    int lines = 0;
    OK(base_read_file("access.jsonl.tmp", 1 << 20, &text, &n));
    for (uint64_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    base_free(text);
    return lines;
}

static void test_log(void **state)
{
    struct rig r;
    char *text;
    uint64_t n;
    (void)state;
    for (int texts = 0; texts < 2; texts++) {
        rig_model(&r, 512, 0, 0);
        r.o.access_log = "access.jsonl.tmp";
        r.o.log_text = texts;
        unlink(r.o.access_log);
        rig_serve(&r);
        json_decref(post_json(&r, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"What is 7 + 5?\"}],\"temperature\":0}", 200));
        for (int i = 0; i < 100 && access_lines() < 1; i++)
            usleep(20000); /* a line is written when its answer has been sent */
        struct answer a = ask(&r, "GET", "/none", NULL, NULL);
        answer_free(&a);
        rig_close(&r);
        OK(base_read_file("access.jsonl.tmp", 1 << 20, &text, &n));
        char *end = strchr(text, '\n');
        assert_non_null(end);
        json_t *line = json_loadb(text, (size_t)(end - text), 0, NULL);
        assert_string_equal(text_at(line, "path"), CHAT);
        assert_int_equal(int_at(line, "status"), 200);
        assert_string_equal(text_at(line, "finish"), "stop");
        assert_int_equal(int_at(line, "completion_tokens"), 9);
        assert_true((strstr(text, "7 + 5") != NULL) == (texts == 1));
        json_decref(line);
        line = json_loadb(end + 1, strlen(end + 1), JSON_DISABLE_EOF_CHECK, NULL);
        assert_int_equal(int_at(line, "status"), 404);
        json_decref(line);
        base_free(text);
        unlink("access.jsonl.tmp");
    }
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Experts that do not fit are counted; and when nothing is asked for, nothing runs: less than 1 % of a core. */
static void test_experts_and_idle(void **state)
{
    static const char *const some[] = {"moe_calls_total", "expert_cache_hits_total", "expert_cache_misses_total", "expert_assist_total", "expert_frames",
                                       "expert_frames_used", "expert_promotions_total", "expert_promoted_bytes_total", "expert_assist_seconds_total"};
    struct rig r;
    (void)state;
    rig_model_offloaded(&r, UINT64_C(40) << 20);
    rig_serve(&r);
    json_decref(post_json(&r, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"What is 7 + 5?\"}],\"temperature\":0,\"max_tokens\":40}", 200));
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        if (metric(&r, some[i]) <= 0)
            FAIL("%s is 0", some[i]);
    assert_true(metric(&r, "expert_cache_misses_total") == metric(&r, "expert_assist_total") + metric(&r, "expert_link_total"));
    assert_true(metric(&r, "expert_frames_used") <= metric(&r, "expert_frames"));
    assert_true((metric(&r, "expert_link_bytes_total") > 0) == (metric(&r, "expert_link_total") > 0));
    usleep(500000);
    double began = cpu_seconds();
    sleep(2);
    double used = cpu_seconds() - began;
    print_message("an idle server used %.1f ms of CPU in 2 s\n", used * 1e3);
    if (used > 0.02)
        FAIL("an idle server used %.1f ms of CPU in 2 s", used * 1e3);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_in_company), cmocka_unit_test(test_same_on_devices), cmocka_unit_test(test_conversation),
        cmocka_unit_test(test_shared_system),
        cmocka_unit_test(test_queue), cmocka_unit_test(test_leaving), cmocka_unit_test(test_context), cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_drain), cmocka_unit_test(test_guard), cmocka_unit_test(test_log), cmocka_unit_test(test_experts_and_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
