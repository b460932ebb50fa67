/* SPDX-License-Identifier: Apache-2.0
 *
 * test_program.c - `infernix serve` as a process: ready line, SIGTERM in the middle of a stream, a device that is lost, exit statuses.
 */
#include "config.h"
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_term), cmocka_unit_test(test_second_signal), cmocka_unit_test(test_lost_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
