/* SPDX-License-Identifier: Apache-2.0
 *
 * test_program.c - `infernix serve` as a process: ready line, SIGTERM in the middle of a stream, a device that is lost, exit statuses,
 * a locale with a decimal comma.
 */
#include "config.h"
#include "../comma_locale.h"
#include "harness.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct program {
    pid_t pid;
    FILE *err;
    struct rig rig; /* its port */
    char last[1024];
};

static void start(struct program *p, const char *const *more)
{
    const char *argv[32] = {getenv("INFERNIX"), "serve", IFX_DEMO, "--port", "0", "--threads", "2"};
    int n = 7, fd[2];
    if (argv[0] == NULL || access(IFX_DEMO, R_OK) != 0) {
        print_message("no program or no demo model\n");
        skip();
    }
    while (*more != NULL && n < 31)
        argv[n++] = *more++;
    assert_int_equal(pipe(fd), 0);
    p->pid = fork();
    if (p->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nothing behind */
        dup2(fd[1], 2);
        close(fd[0]);
        close(fd[1]);
        execv(argv[0], (char *const *)argv);
        _exit(127);
    }
    close(fd[1]);
    p->err = fdopen(fd[0], "r");
    while (fgets(p->last, sizeof p->last, p->err) != NULL) {
        const char *at = strstr(p->last, "http://127.0.0.1:");
        if (at != NULL) {
            p->rig.port = (uint16_t)atoi(at + 17);
            return;
        }
    }
    FAIL("the server did not start: %s", p->last);
}

static int end(struct program *p)
{
    int status = 0;
    double start = base_now();
    while (waitpid(p->pid, &status, WNOHANG) == 0) {
        if (base_now() - start > 15) {
            kill(p->pid, SIGKILL);
            waitpid(p->pid, &status, 0);
            FAIL("the server did not end");
        }
        usleep(20000);
    }
    fclose(p->err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static void test_term(void **state)
{
    struct program p = {0};
    (void)state;
    start(&p, (const char *const[]){NULL});
    int fd = dial(&p.rig);
    const char *body = "{\"prompt\":\"Once\",\"max_tokens\":300,\"ignore_eos\":true,\"stream\":true}";
    send_post(fd, "/v1/completions", NULL, body, strlen(body));
    assert_true(wait_metric(&p.rig, "requests_running", 1, 5));
    kill(p.pid, SIGTERM);
    struct answer a = receive(fd);
    json_t *list = events(a.body.data);
    assert_string_equal(json_string_value(json_array_get(list, json_array_size(list) - 1)), "[DONE]");
    json_decref(list);
    answer_free(&a);
    close(fd);
    assert_int_equal(end(&p), 0);
}

static void test_second_signal(void **state)
{
    struct program p = {0};
    (void)state;
    start(&p, (const char *const[]){NULL});
    int fd = dial(&p.rig);
    const char *body = "{\"prompt\":\"Once\",\"max_tokens\":4000,\"ignore_eos\":true,\"stream\":true}";
    send_post(fd, "/v1/completions", NULL, body, strlen(body));
    assert_true(wait_metric(&p.rig, "requests_running", 1, 5));
    kill(p.pid, SIGINT);
    usleep(100000);
    kill(p.pid, SIGINT);
    struct answer a = receive(fd);
    json_t *list = events(a.body.data);
    assert_non_null(strstr(text_at(json_array_get(list, json_array_size(list) - 1), "error.message"), "shutting down"));
    json_decref(list);
    answer_free(&a);
    close(fd);
    assert_int_equal(end(&p), 0);
}

/* F50: everybody is told once, health says so at once, and the process ends with a failure. */
static void test_lost_device(void **state)
{
    static const char *const faults[] = {"device_sim,fail-launch=300", "device_sim,fail-launch=700", "device_sim,fail-launch=700,fail-late=yes"};
    (void)state;
    for (int k = 0; k < 3; k++) {
        struct program p = {0};
        bool lost = false;
        start(&p, (const char *const[]){"--device", "sim", "--plugin", faults[k], NULL});
        for (int i = 0; i < 100 && !lost; i++) {
            struct answer a = post(&p.rig, "/v1/completions", "{\"prompt\":\"Once upon a time\",\"max_tokens\":20,\"ignore_eos\":true}");
            lost = a.status != 200;
            if (lost && a.status != 500)
                FAIL("%s: status %d: %s", faults[k], a.status, a.body.data ? a.body.data : "");
            answer_free(&a);
        }
        if (!lost)
            FAIL("%s: nothing failed", faults[k]);
        assert_int_equal(end(&p), 1);
    }
}

/* A digit, a comma, a digit: no number of ours looks so. */
static void no_comma(const char *what, const char *text)
{
    for (const char *p = text; (p = strchr(p, ',')) != NULL; p++)
        if (p > text && p[-1] >= '0' && p[-1] <= '9' && p[1] >= '0' && p[1] <= '9')
            FAIL("%s: a number with a comma in %s", what, text);
}

/* The answer to a request with a temperature, and what it says in numbers. */
static char *answer_with_numbers(const struct program *p)
{
    json_t *a = post_json(&p->rig, "/v1/completions", "{\"prompt\":\"Once upon a time\",\"max_tokens\":24,\"temperature\":0.7,\"top_p\":0.95,"
                          "\"seed\":3,\"logprobs\":2}", 200);
    char *choices = json_dumps(json_object_get(a, "choices"), JSON_SORT_KEYS), *all = json_dumps(a, 0);
    if (!json_is_real(at(a, "choices.0.logprobs.token_logprobs.3")) || !json_is_real(at(a, "timings.prompt_ms")))
        FAIL("no numbers where some are expected: %s", all);
    free(all);
    json_decref(a);
    return choices;
}

/* F54: the same answers, and numbers with a point, in a locale whose numbers have a comma: options, bodies, metrics, log. */
static void test_comma_locale(void **state)
{
    char *log = NULL, *said[2];
    uint64_t n;
    (void)state;
    for (int comma = 0; comma < 2; comma++) {
        struct program p = {0};
        const char *name = comma ? comma_locale() : NULL;
        if (comma && name == NULL) {
            print_message("no locale with a decimal comma, and none could be made\n");
            skip();
        }
        if (comma)
            assert_int_equal(setenv("LC_ALL", name, 1), 0);
        unlink("comma.log");
        start(&p, (const char *const[]){"--access-log", "comma.log", "--queue-timeout", "7.5", "--temperature", "0.25", "--assist-ramp", "64:77", NULL});
        said[comma] = answer_with_numbers(&p);
        json_decref(post_json(&p.rig, "/v1/completions", "{\"prompt\":\"x\",\"temperature\":\"0,7\"}", 400));
        struct answer a = ask(&p.rig, "GET", "/metrics", NULL, NULL);
        no_comma("/metrics", a.body.data);
        assert_true(metric(&p.rig, "decode_seconds_total") > 0 && metric(&p.rig, "decode_seconds_total") < 60);
        answer_free(&a);
        kill(p.pid, SIGTERM);
        assert_int_equal(end(&p), 0);
    }
    unsetenv("LC_ALL");
    assert_string_equal(said[0], said[1]);
    OK(base_read_file("comma.log", 1 << 20, &log, &n));
    for (char *line = strtok(log, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        json_t *v = json_loads(line, 0, NULL);
        if (v == NULL)
            FAIL("a line of the log is not JSON: %s", line);
        json_decref(v);
    }
    unlink("comma.log");
    base_free(log);
    free(said[0]);
    free(said[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_term), cmocka_unit_test(test_second_signal), cmocka_unit_test(test_lost_device),
                                       cmocka_unit_test(test_comma_locale)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
