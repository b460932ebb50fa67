/* SPDX-License-Identifier: Apache-2.0
 *
 * test_load.c - eight clients at once that ask, leave in the middle, send garbage and half requests, for SERVE_LOAD_SECONDS (default 8): every answer is the
 * one that its seed gives alone, no error but those meant, and no growth of memory after the start.  `make check` runs the short form; a minute:
 *
 *   SERVE_LOAD_SECONDS=60 tests/serve/test_load
 */
#include "config.h"
#include "harness.h"
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLIENTS 8
#define SEEDS   24

static const char *const about[] = {"a cat", "rain", "the old king and his two sons", "a ship", "snow", "bread"};
static struct rig rig;
static char *alone[SEEDS];
static atomic_int asked, left, garbage, halves, wrong;
static double until;

static char *request(unsigned seed, bool stream)
{
    return base_format("{\"messages\":[{\"role\":\"system\",\"content\":\"You are a kind old man who tells short stories to children, in simple words, and who never "
                       "tells the same story twice, because they would notice and they would not like it.\"},{\"role\":\"user\",\"content\":\"Tell me about %s.\"}],"
                       "\"seed\":%u,\"temperature\":0.9,\"max_tokens\":%u,\"stream\":%s}", about[seed % 6], seed, 10 + seed * 3, stream ? "true" : "false");
}

static char *answer_of(unsigned seed, bool stream, int *status)
{
    char *body = request(seed, stream), *text = NULL;
    struct answer a = post(&rig, "/v1/chat/completions", body);
    base_free(body);
    *status = a.status;
    if (a.status == 200 && stream) {
        json_t *list = events(a.body.data);
        text = stream_text(list, "choices.0.delta.content");
        json_decref(list);
    } else if (a.status == 200) {
        text = base_strdup(text_at(a.json, "choices.0.message.content"));
    }
    answer_free(&a);
    return text;
}

static void ask_one(unsigned seed, bool stream)
{
    int status;
    char *text = answer_of(seed, stream, &status);
    atomic_fetch_add(&asked, 1);
    if (status != 200 || strcmp(text, alone[seed]) != 0) {
        atomic_fetch_add(&wrong, 1);
        print_error("seed %u: status %d, expected \"%s\", got \"%s\"\n", seed, status, alone[seed], text ? text : "");
    }
    base_free(text);
}

/* Leaves after `bytes` bytes of the answer. */
static void leave(unsigned seed, size_t bytes)
{
    char *body = request(seed, true), part[512];
    int fd = dial(&rig);
    send_post(fd, "/v1/chat/completions", NULL, body, strlen(body));
    while (bytes > 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 5000) <= 0)
            break;
        ssize_t n = recv(fd, part, bytes < sizeof part ? bytes : sizeof part, 0);
        if (n <= 0)
            break;
        bytes -= (size_t)n;
    }
    close(fd);
    base_free(body);
    atomic_fetch_add(&left, 1);
}

static void send_garbage(unsigned x)
{
    static const char *const texts[] = {"\x16\x03\x01\x02garbage\r\n\r\n", "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n{{{{",
                                        "GET /%00%ff HTTP/1.1\r\nHost: localhost\r\n\r\n", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"};
    int fd = dial(&rig);
    send_text(fd, texts[x % 4]);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    poll(&p, 1, 200);
    close(fd);
    atomic_fetch_add(&garbage, 1);
}

static void send_half(unsigned seed)
{
    char *body = request(seed, seed % 2);
    int fd = dial(&rig);
    send_text(fd, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2000\r\n\r\n");
    send_bytes(fd, body, strlen(body) / 2);
    usleep(1000 * (seed % 50));
    close(fd);
    base_free(body);
    atomic_fetch_add(&halves, 1);
}

static void *client(void *ctx)
{
    uint64_t x = 0x9e3779b97f4a7c15u * (uint64_t)(1 + *(int *)ctx);
    while (base_now() < until) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        unsigned what = (unsigned)(x >> 33) % 10, seed = (unsigned)(x >> 40) % SEEDS;
        if (what < 6)
            ask_one(seed, what % 2);
        else if (what < 8)
            leave(seed, (size_t)(x >> 50) % 3000);
        else if (what == 8)
            send_garbage(seed);
        else
            send_half(seed);
    }
    return NULL;
}

static uint64_t resident_kib(void)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "VmRSS: %llu", &kib) == 1)
            break;
    if (f != NULL)
        fclose(f);
    return kib;
}

static void test_load(void **state)
{
    const char *text = getenv("SERVE_LOAD_SECONDS");
    double seconds = text != NULL ? atof(text) : 8, warm = seconds >= 20 ? 10 : seconds / 2;
    pthread_t threads[CLIENTS];
    int numbers[CLIENTS];
    (void)state;
    rig_model(&rig, 1024, EXACT, 8 << 20);
    rig_serve(&rig);
    for (unsigned i = 0; i < SEEDS; i++) {
        int status;
        alone[i] = answer_of(i, i % 2, &status);
        assert_int_equal(status, 200);
    }
    double start = base_now();
    until = start + seconds;
    for (int i = 0; i < CLIENTS; i++) {
        numbers[i] = i;
        pthread_create(&threads[i], NULL, client, &numbers[i]);
    }
    usleep((useconds_t)(warm * 1e6));
    uint64_t before = resident_kib();
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(threads[i], NULL);
    uint64_t after = resident_kib();
    print_message("%.0f s: %d asked, %d left, %d garbage, %d halves, %d wrong; resident %llu KiB after %.0f s, %llu KiB at the end; %.1f columns a step\n", seconds,
                  asked, left, garbage, halves, wrong, (unsigned long long)before, warm, (unsigned long long)after,
                  metric(&rig, "generated_tokens_total") / metric(&rig, "decode_steps_total"));
    assert_int_equal(wrong, 0);
    assert_true(asked > 4);
    assert_true(metric(&rig, "generations_failed_total") == 0);
    assert_true(wait_metric(&rig, "requests_running", 0, 3));
    assert_true(wait_metric(&rig, "connections", 1, 12));
#ifndef __SANITIZE_ADDRESS__
    /* Threads' stacks and the allocator's arenas come and go by some MiB. */
    if (after > before + 8192)
        FAIL("memory grew from %llu to %llu KiB", (unsigned long long)before, (unsigned long long)after);
#endif
    for (unsigned i = 0; i < SEEDS; i++)
        base_free(alone[i]);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_load)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
