/* SPDX-License-Identifier: Apache-2.0
 *
 * test_limits.c - heavy and broken requests beside good ones: megabytes to tokenise, 64 long prompts at once, numbers that are not
 * finite.
 */
#include "config.h"
#include "harness.h"
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define COMPLETIONS "/v1/completions"
#define MIB (1u << 20)

/* ---- tokenising ---- */

struct heavy {
    const struct rig *r;
    char *body; /* of a POST /tokenize with 4 MiB of text */
    uint64_t n, ids;
    double from, to;
};

static void *tokenise(void *ctx)
{
    struct heavy *h = ctx;
    h->from = base_now();
    json_t *a = post_json(h->r, "/tokenize", h->body, 200);
    h->to = base_now();
    h->ids = json_array_size(json_object_get(a, "tokens"));
    json_decref(a);
    return NULL;
}

/* The next part of a stream; false at its end. */
static bool part(int fd, double *when)
{
    char b[65536];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, 60000) <= 0)
        FAIL("a stream has stopped");
    ssize_t n = recv(fd, b, sizeof b, 0);
    *when = base_now();
    return n > 0 && memmem(b, (size_t)n, "[DONE]", 6) == NULL;
}

/* While two clients have 4 MiB tokenised, a stream goes on: what takes long is not done by the thread that runs the model, nor under its lock. */
static void test_stream_beside_tokenising(void **state)
{
    struct rig r;
    struct heavy h[2] = {{0}};
    pthread_t threads[2];
    double when, last = 0, gap = 0, longest = 1e9;
    uint64_t during = 0;
    (void)state;
    rig_model(&r, 4096, 0, 0);
    r.o.max_body = 5 * MIB;
    rig_serve(&r);
    for (int i = 0; i < 2; i++) {
        h[i].r = &r;
        h[i].body = base_calloc(4 * MIB + 64, 1);
        assert_non_null(h[i].body);
        h[i].n = (uint64_t)sprintf(h[i].body, "{\"content\":\"");
        memset(h[i].body + h[i].n, i ? ' ' : 'a', 4 * MIB);
        strcpy(h[i].body + h[i].n + 4 * MIB, "\"}");
    }
    const char *body = "{\"prompt\":\"Once\",\"max_tokens\":4000,\"ignore_eos\":true,\"stream\":true}";
    int fd = dial(&r);
    send_post(fd, COMPLETIONS, NULL, body, strlen(body));
    for (int i = 0; i < 20; i++)
        assert_true(part(fd, &last));
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, tokenise, &h[i]);
    double from = base_now();
    while (base_now() < from + 60 && (h[0].to == 0 || h[1].to == 0) && part(fd, &when)) {
        gap = when - last > gap ? when - last : gap;
        last = when;
        during++;
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        longest = h[i].to - h[i].from < longest ? h[i].to - h[i].from : longest;
        assert_true(h[i].ids > 1000);
        base_free(h[i].body);
    }
    close(fd);
    print_message("4 MiB tokenised twice in %.2f s; the stream had %llu parts meanwhile, at most %.2f s apart\n", longest, (unsigned long long)during, gap);
    if (gap > longest / 2 || during < 10)
        FAIL("the stream stopped for %.2f s while 4 MiB were tokenised in %.2f s (%llu parts)", gap, longest, (unsigned long long)during);
    assert_true(wait_metric(&r, "requests_running", 0, 3));
    rig_close(&r);
}

/* F25, F46: the longest body that is taken by default, all one piece; its client leaves at once. */
static void test_leaving_while_tokenising(void **state)
{
    struct rig r;
    char *body = base_calloc(4 * MIB, 1);
    (void)state;
    assert_non_null(body);
    rig_model(&r, 512, 0, 0);
    r.o.max_body = 4 * MIB;
    rig_serve(&r);
    for (int kind = 0; kind < 4; kind++) {
        uint64_t n = (uint64_t)sprintf(body, kind % 2 ? "{\"messages\":[{\"role\":\"user\",\"content\":\"" : "{\"prompt\":\"");
        memset(body + n, kind / 2 ? ' ' : 'a', 4 * MIB - n - 8);
        strcpy(body + 4 * MIB - 8, kind % 2 ? "\"}]}" : "\"}");
        /* one that waits, for how long it takes here: it is too long for the context */
        double start = base_now();
        json_decref(post_json(&r, kind % 2 ? "/v1/chat/completions" : COMPLETIONS, body, 400));
        double whole = base_now() - start;
        int fd = dial(&r);
        send_post(fd, kind % 2 ? "/v1/chat/completions" : COMPLETIONS, NULL, body, strlen(body));
        double left = base_now();
        close(fd);
        /* one connection is the one that asks */
        if (!wait_metric(&r, "connections", 1, 2 * whole + 1))
            FAIL("kind %d: its connection is still there %.1f s after the client left; one that waits is answered in %.1f s", kind,
                 base_now() - left, whole);
        assert_true(metric(&r, "requests_running") == 0 && metric(&r, "requests_queued") == 0);
        print_message("kind %d: an answer in %.2f s; gone after %.2f s\n", kind, whole, base_now() - left);
    }
    json_decref(post_json(&r, COMPLETIONS, "{\"prompt\":\"Once\",\"max_tokens\":2}", 200));
    base_free(body);
    rig_close(&r);
}

/* ---- overload ---- */

#define CLIENTS 64

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One client of the flood: its answer, or 0 while there is none. */
static int status_of(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, 0) <= 0)
        return 0;
    struct answer a = receive(fd);
    int status = a.status;
    if (status == 429)
        assert_non_null(strcasestr(a.head, "retry-after:"));
    if (status == 429)
        assert_string_equal(text_at(a.json, "error.type"), "rate_limit_error");
    if (status == 200)
        assert_true(int_at(a.json, "usage.prompt_tokens") > 3900);
    if (status == 503)
        assert_string_equal(text_at(a.json, "error.code"), "timeout");
    answer_free(&a);
    return status;
}

static uint32_t flood(const struct rig *r, int fd[CLIENTS])
{
    for (uint32_t i = 0; i < CLIENTS; i++) {
        struct base_buf b = {0};
        base_buf_addf(&b, "{\"max_tokens\":2,\"prompt\":[");
        for (uint32_t k = 0; k < 4000; k++)
            base_buf_addf(&b, "%s%u", k ? "," : "", 100 + (k * 7 + i * 31 + k / (i + 2)) % 4000);
        base_buf_addf(&b, "]}");
        fd[i] = dial(r);
        send_post(fd[i], COMPLETIONS, NULL, b.data, b.len);
        base_buf_free(&b);
    }
    return CLIENTS;
}

/* F51: 64 prompts of 4,000 tokens at once.  Some are served, the rest told at once or when their time is over; nobody is left hanging, and the
 * server answers about itself meanwhile. */
static void test_flood(void **state)
{
    struct rig r;
    int fd[CLIENTS];
    double health[4096], first_refusal = 0, start;
    uint32_t codes[3] = {0}, polls = 0;
    (void)state;
    rig_model(&r, 4096, 0, 0);
    r.o.max_concurrency = 4;
    r.o.queue_timeout = 4;
    rig_serve(&r);
    start = base_now();
    uint32_t open = flood(&r, fd);
    while (open > 0 && base_now() < start + 200) {
        for (uint32_t i = 0; i < CLIENTS; i++) {
            int status = fd[i] < 0 ? 0 : status_of(fd[i]);
            if (status == 0)
                continue;
            if (status != 200 && status != 429 && status != 503)
                FAIL("client %u: status %d", i, status);
            codes[status == 200 ? 0 : status == 429 ? 1 : 2]++;
            if (status == 429 && first_refusal == 0)
                first_refusal = base_now() - start;
            close(fd[i]);
            fd[i] = -1;
            open--;
        }
        double before = base_now();
        struct answer a = ask(&r, "GET", polls % 2 ? "/health" : "/metrics", NULL, NULL);
        assert_int_equal(a.status, 200);
        answer_free(&a);
        if (polls < 4096)
            health[polls++] = base_now() - before;
        usleep(50000);
    }
    qsort(health, polls, sizeof *health, by_value);
    print_message("%u served, %u refused, %u waited too long, in %.1f s; /health and /metrics: median %.1f ms, longest %.1f ms\n", codes[0],
                  codes[1], codes[2], base_now() - start, health[polls / 2] * 1e3, health[polls - 1] * 1e3);
    assert_int_equal(open, 0);
    assert_int_equal(codes[0] + codes[1] + codes[2], CLIENTS);
    /* 4 run and 16 wait at any time; the others cannot all have been let in. */
    if (codes[0] < 4 || codes[1] < CLIENTS / 4)
        FAIL("%u served and %u refused of %u", codes[0], codes[1], CLIENTS);
    if (health[polls / 2] > 0.05)
        FAIL("half of the answers of /health and /metrics took more than %.0f ms", health[polls / 2] * 1e3);
    assert_true(metric(&r, "generations_refused_total") == codes[1]);
    assert_true(wait_metric(&r, "requests_running", 0, 2) && metric(&r, "requests_queued") == 0);
    json_decref(post_json(&r, COMPLETIONS, "{\"prompt\":\"Once\",\"max_tokens\":2}", 200));
    rig_close(&r);
}

/* ---- numbers that are not finite ---- */

static void copy_file(const char *from, const char *to, char **data, uint64_t *n)
{
    OK(base_read_file(from, 64u << 20, data, n));
    FILE *f = fopen(to, "wb");
    if (f == NULL || fwrite(*data, 1, *n, f) != *n || fclose(f) != 0)
        FAIL("%s cannot be written", to);
}

/* A copy of a small checkpoint in which expert 3 of layer 2 has weights so large that its products are not finite. */
static void break_expert(const char *golden, const char *folder)
{
    static const char tensor[] = "model.layers.2.mlp.experts.down_proj";
    static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors"};
    char from[4096], to[4096], *data = NULL;
    uint64_t n = 0, header;
    for (int i = 0; i < 3; i++) {
        base_free(data);
        data = NULL;
        snprintf(from, sizeof from, "%s/checkpoints/qwen3_5_moe-tiny/%s", golden, files[i]);
        snprintf(to, sizeof to, "%s/%s", folder, files[i]);
        copy_file(from, to, &data, &n);
    }
    memcpy(&header, data, 8);
    json_t *h = json_loadb(data + 8, header, 0, NULL);
    uint64_t begin = 8 + header + (uint64_t)int_at(json_object_get(h, tensor), "data_offsets.0");
    uint64_t expert = 64 * 32 * 2; /* [hidden, width] in bf16 */
    for (uint64_t i = 0; i < expert; i += 2)
        memcpy(data + begin + 3 * expert + i, "\x62\x7f", 2); /* 3e38 */
    FILE *f = fopen(to, "wb");
    if (f == NULL || fwrite(data, 1, n, f) != n || fclose(f) != 0)
        FAIL("%s cannot be written", to);
    json_decref(h);
    base_free(data);
    snprintf(from, sizeof from, "%s/tokenizer-qwen3/tokenizer.json", golden);
    snprintf(to, sizeof to, "%s/tokenizer.json", folder);
    assert_int_equal(symlink(from, to), 0);
}

static void open_broken(struct rig *r, const char *folder, uint64_t cache)
{
    struct ifx_context_options co = {.plugin_path = IFX_PLUGINS, .threads = 1};
    struct ifx_model_options mo = {.path = folder, .device = "cpu", .ctx = 512, .prefill_chunk = 64, .max_sequences = 4, .prefix_cache_bytes = cache,
                                   .offload = {.no_expert_state = true}};
    *r = (struct rig){0};
    base_log_set_level(IFX_LOG_ERROR);
    OK(ifx_context_create(&co, &r->ctx));
    OK(ifx_model_open(r->ctx, &mo, &r->model));
    r->o = (struct serve_options){.model = r->model, .model_name = "broken", .host = "127.0.0.1", .max_concurrency = 4, .max_queue = 16,
                                  .max_connections = 32, .max_body = MIB, .queue_timeout = 60, .client_timeout = 10, .drain_timeout = 5};
    ifx_sampling_default(r->model, &r->o.sampling);
    rig_serve(r);
}

/* A prompt of `n` times `token`, then `last` if that is one. */
static char *prompt_of(int token, int n, int last, const char *more)
{
    struct base_buf b = {0};
    base_buf_addf(&b, "{\"temperature\":0,\"max_tokens\":1%s,\"prompt\":[%d", more, token);
    for (int i = 1; i < n; i++)
        base_buf_addf(&b, ",%d", token);
    if (last >= 0)
        base_buf_addf(&b, ",%d", last);
    base_buf_addf(&b, "]}");
    return b.data;
}

static int status_for(const struct rig *r, char *body, struct answer *out)
{
    *out = post(r, COMPLETIONS, body);
    base_free(body);
    return out->status;
}

static void expect_broken(const struct rig *r, char *body)
{
    struct answer a;
    if (status_for(r, body, &a) != 500)
        FAIL("a prompt for the broken expert: status %d: %s", a.status, a.body.data ? a.body.data : "");
    if (strstr(text_at(a.json, "error.message"), "layer 2") == NULL)
        FAIL("the error does not name layer 2: %s", a.body.data);
    answer_free(&a);
}

/* The text of a good prompt, after which nothing of a broken one may show; cached: at least so many tokens were taken over. */
static char *expect_good(const struct rig *r, char *body, int64_t cached)
{
    struct answer a;
    if (status_for(r, body, &a) != 200)
        FAIL("a good prompt: status %d: %s", a.status, a.body.data ? a.body.data : "");
    if (int_at(a.json, "usage.prompt_tokens_details.cached_tokens") < cached)
        FAIL("%lld tokens expected from the cache: %s", (long long)cached, a.body.data);
    char *text = base_strdup(text_at(a.json, "choices.0.text"));
    answer_free(&a);
    return text;
}

/* The first token with which a prompt passes (ok) or fails: `n` times itself (head -1), or after `n` times head. */
static int find_token(const struct rig *r, int head, int n, bool ok)
{
    for (int t = 1; t < 512; t++) {
        struct answer a;
        int status = status_for(r, head < 0 ? prompt_of(t, n, -1, "") : prompt_of(head, n, t, ""), &a);
        answer_free(&a);
        if (status != 200 && status != 500)
            FAIL("token %d: status %d", t, status);
        if ((status == 200) == ok)
            return t;
    }
    FAIL("all prompts of %d tokens %s", n, ok ? "fail" : "pass");
    return -1;
}

/* F39: an answer to whoever asked for it, as the protocol says it; the next request, one beside it and what is kept of prompts stay right. */
static void test_non_finite(void **state)
{
    struct rig r;
    const char *golden = getenv("IFX_GOLDEN");
    char folder[] = "non-finite.XXXXXX", command[64];
    (void)state;
    assert_non_null(golden);
    assert_non_null(mkdtemp(folder));
    break_expert(golden, folder);
    open_broken(&r, folder, 0);
    int alone = find_token(&r, -1, 1, false), miss = find_token(&r, -1, 130, true), hit = find_token(&r, miss, 130, false);
    char *want = expect_good(&r, prompt_of(miss, 130, -1, ""), 0);
    rig_close(&r);
    open_broken(&r, folder, 16 << 20);

    for (int round = 0; round < 3; round++) {
        expect_broken(&r, prompt_of(miss, 130, hit, ""));
        expect_broken(&r, prompt_of(alone, 1, -1, ""));
        char *got = expect_good(&r, prompt_of(miss, 130, -1, ""), round ? 64 : 0);
        assert_string_equal(got, want);
        base_free(got);
        /* a stream: its status is out before the model runs, so an event tells it */
        struct answer a;
        status_for(&r, prompt_of(miss, 130, hit, ",\"stream\":true"), &a);
        if (a.status != 500) {
            assert_int_equal(a.status, 200);
            json_t *list = events(a.body.data);
            const json_t *last = json_array_get(list, json_array_size(list) - 1);
            assert_non_null(strstr(text_at(last, "error.message"), "layer 2"));
            json_decref(list);
        }
        answer_free(&a);
        struct answer m = ask(&r, "GET", "/health", NULL, NULL);
        assert_int_equal(m.status, 200);
        answer_free(&m);
    }

    assert_true(metric(&r, "generations_failed_total") == 9);
    rig_close(&r);
    base_free(want);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stream_beside_tokenising), cmocka_unit_test(test_leaving_while_tokenising),
                                       cmocka_unit_test(test_flood), cmocka_unit_test(test_non_finite)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
