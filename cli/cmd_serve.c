/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_serve.c - the HTTP server as a command: options, signals, exit status.
 */
#include "config.h"
#include "cli_internal.h"
#include "serve.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct cli_option options[] = {
    {"-m, --model", "MODEL", "the model, when it should not be the argument", false},
    {"--host", "ADDRESS", "address to listen on (default 127.0.0.1: this machine only)", false},
    {"--port", "N", "port to listen on, 0 for any free one (default 8080)", false},
    {"--api-key", "KEY", "ask clients for this key (default: $INFERNIX_API_KEY, else none)", false},
    {"--api-key-file", "FILE", "read the key from the first line of a file: it then shows in no process list", false},
    {"--allow-host", "NAME", "also answer requests for this Host; may be repeated (default: localhost and the address listened on)", true},
    {"--cors-origin", "ORIGIN", "let web pages of this origin read answers, * for all; may be repeated (default: none)", true},
    {"--model-name", "NAME", "the model's name for clients (default: the file's or folder's)", false},
    {"--chat-template", "FILE", "another chat template (default: the model's)", false},
    {"--think", "on|off", "thinking where a request does not say (default: as the template has it)", false},
    {"--reasoning", "split|content", "thoughts as reasoning_content, or left in the content (default split)", false},
    {"--max-concurrency", "N", "answers generated together, 1 to 64; up to 8 do not change each other's tokens (default 8)", false},
    {"--max-queue", "N", "requests that may wait beyond them; more get 429 (default 16)", false},
    {"--max-connections", "N", "open connections (default 256)", false},
    {"--max-body", "BYTES", "longest request body, as 4194304 or 4M (default 4M)", false},
    {"-n, --max-tokens", "N", "tokens of an answer whose request does not say, 0 for up to the context limit (default 0)", false},
    {"--queue-timeout", "SECONDS", "longest wait for a turn; then 503 (default 120)", false},
    {"--request-timeout", "SECONDS", "longest time of a request in all, 0 for no limit; then 504 (default 0)", false},
    {"--client-timeout", "SECONDS", "longest time a client may take to send a request, or to take what is sent (default 30)", false},
    {"--drain-timeout", "SECONDS", "time that running answers get after SIGTERM (default 30)", false},
    {"--prefix-cache-mib", "N", "memory for what earlier prompts have in common with later ones, 0 for none (default 512)", false},
    {"--access-log", "FILE", "one JSON line a request; - is standard output (default: none)", false},
    {"--log-prompts", NULL, "prompts and answers in the access log (default: never)", false},
    {"--temperature", "T", "0 is greedy (default: the model's, else 0.7)", false},
    {"--top-k", "N", "sample among the N best tokens, 0 for all (default: the model's, else 40)", false},
    {"--top-p", "P", "sample among the best tokens that hold this share (default: the model's, else 0.9)", false},
    {"--min-p", "P", "leave out tokens below this share of the best one's (default 0)", false},
    {"--presence-penalty", "X", "taken from the logit of each token already generated (default 0)", false},
    {"--frequency-penalty", "X", "taken from it once for each time it was generated (default 0)", false},
    {"--repetition-penalty", "X", "divides the logits of tokens in prompt and answer (default 1)", false},
    {"--greedy", NULL, "always the best token, where a request does not say", false},
    {NULL, NULL, NULL, false},
};

struct setup {
    struct serve_options o;
    char *key, *template, *name;
    int64_t prefix_mib;
};

/* ---- options ---- */

static int read_key(struct cli *cli, struct setup *u)
{
    const char *key = cli_text(cli, "--api-key", NULL), *path = cli_text(cli, "--api-key-file", NULL);
    uint64_t n;
    if (key != NULL && path != NULL)
        return cli_usage(cli, "--api-key and --api-key-file exclude each other");
    if (path != NULL) {
        if (base_read_file(path, 1 << 16, &u->key, &n) != IFX_OK)
            return cli_fail(cli);
        u->key[strcspn(u->key, "\r\n")] = 0;
        key = u->key;
    } else if (key == NULL) {
        key = getenv("INFERNIX_API_KEY");
    }
    if (key != NULL && key[0] == 0)
        return cli_usage(cli, "--api-key: an empty key would let everybody in; leave it out for that");
    u->o.api_key = key;
    return 0;
}

static int read_limits(struct cli *cli, struct setup *u)
{
    int64_t port, concurrency, queue, connections, tokens;
    uint64_t body = 4u << 20;
    const char *text = cli_text(cli, "--max-body", NULL);
    if (cli_int(cli, "--port", 0, 65535, 8080, &port) || cli_int(cli, "--max-concurrency", 1, 64, 8, &concurrency)
        || cli_int(cli, "--max-queue", 0, 65536, 16, &queue) || cli_int(cli, "--max-connections", 1, 65536, 256, &connections)
        || cli_int(cli, "--max-tokens", 0, INT32_MAX, 0, &tokens) || cli_int(cli, "--prefix-cache-mib", 0, 1 << 24, 512, &u->prefix_mib)
        || cli_float(cli, "--queue-timeout", 0.1, 1e6, 120, &u->o.queue_timeout)
        || cli_float(cli, "--request-timeout", 0, 1e6, 0, &u->o.request_timeout)
        || cli_float(cli, "--client-timeout", 0.1, 1e6, 30, &u->o.client_timeout)
        || cli_float(cli, "--drain-timeout", 0, 1e6, 30, &u->o.drain_timeout))
        return 2;
    if (text != NULL && base_parse_bytes(text, "--max-body", &body))
        return cli_usage(cli, "%s", base_error_text());
    if (body == 0 || body > 1u << 30)
        return cli_usage(cli, "--max-body: 1 byte to 1 GiB");
    u->o.port = (uint16_t)port;
    u->o.max_concurrency = (uint32_t)concurrency;
    u->o.max_queue = (uint32_t)queue;
    u->o.max_connections = (uint32_t)connections;
    u->o.max_tokens = (uint64_t)tokens;
    u->o.max_body = body;
    return 0;
}

static int read_texts(struct cli *cli, struct setup *u)
{
    const char *think = cli_text(cli, "--think", NULL), *reasoning = cli_text(cli, "--reasoning", "split");
    const char *template = cli_text(cli, "--chat-template", NULL);
    uint64_t n;
    if (think != NULL && strcmp(think, "on") != 0 && strcmp(think, "off") != 0)
        return cli_usage(cli, "--think: %s is neither on nor off", think);
    u->o.thinking = think == NULL ? TEXT_THINK_DEFAULT : strcmp(think, "on") == 0 ? TEXT_THINK_ON : TEXT_THINK_OFF;
    if (strcmp(reasoning, "split") != 0 && strcmp(reasoning, "content") != 0)
        return cli_usage(cli, "--reasoning: %s is neither split nor content", reasoning);
    u->o.show_reasoning = strcmp(reasoning, "split") == 0;
    if (template != NULL && base_read_file(template, 1 << 20, &u->template, &n) != IFX_OK)
        return cli_fail(cli);
    u->o.chat_template = u->template;
    u->o.host = cli_text(cli, "--host", "127.0.0.1");
    u->o.allowed_hosts = cli_texts(cli, "--allow-host");
    u->o.cors_origins = cli_texts(cli, "--cors-origin");
    u->o.access_log = cli_text(cli, "--access-log", NULL);
    u->o.log_text = cli_flag(cli, "--log-prompts");
    if (u->o.log_text && u->o.access_log == NULL)
        return cli_usage(cli, "--log-prompts needs --access-log");
    return 0;
}

/* The last part of the path, without ".infernix". */
static char *model_name(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    size_t from = n;
    while (from > 0 && path[from - 1] != '/')
        from--;
    if (n - from > 9 && memcmp(path + n - 9, ".infernix", 9) == 0)
        n -= 9;
    return base_format("%.*s", (int)(n - from), path + from);
}

/* ---- signals ---- */

static int wake_pipe[2] = {-1, -1};

static void on_signal(int signal)
{
    int saved = errno;
    unsigned char c = (unsigned char)signal;
    ssize_t n = write(wake_pipe[1], &c, 1);
    (void)n;
    errno = saved;
}

static int catch_signals(struct cli *cli)
{
    struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    if (pipe(wake_pipe) != 0) {
        base_error(IFX_EIO, "pipe: %s", strerror(errno));
        return cli_fail(cli);
    }
    sigemptyset(&act.sa_mask);
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGINT, &act, NULL);
    act.sa_handler = SIG_IGN; /* clients that leave are no reason to end */
    sigaction(SIGPIPE, &act, NULL);
    return 0;
}

/* Waits for a signal; 0 when the server broke. */
static int wait_for_signal(struct serve *s)
{
    for (;;) {
        struct pollfd p = {.fd = wake_pipe[0], .events = POLLIN};
        unsigned char c;
        if (poll(&p, 1, 500) > 0 && read(wake_pipe[0], &c, 1) == 1)
            return c;
        if (serve_broken(s) != NULL)
            return 0;
    }
}

/* Lets running answers end; a second signal or the time limit ends the waiting. */
static void drain(struct serve *s, double limit)
{
    double until = base_now() + limit;
    serve_drain(s);
    while (base_now() < until && !serve_wait(s, 0.2)) {
        struct pollfd p = {.fd = wake_pipe[0], .events = POLLIN};
        if (poll(&p, 1, 0) > 0)
            return;
    }
}

static void say_ready(struct serve *s, const struct setup *u)
{
    bool v6 = strchr(u->o.host, ':') != NULL;
    bool local = strcmp(u->o.host, "localhost") == 0 || strncmp(u->o.host, "127.", 4) == 0 || strcmp(u->o.host, "::1") == 0;
    if (!local && u->o.api_key == NULL)
        base_log(IFX_LOG_WARN, "listening on %s without --api-key: everybody who reaches this address can use the model", u->o.host);
    base_log(IFX_LOG_INFO, "%u answers at once, %u requests may wait; chat page and API at http://%s%s%s:%u/", u->o.max_concurrency,
             u->o.max_queue, v6 ? "[" : "", u->o.host, v6 ? "]" : "", (unsigned)serve_port(s));
}

static int serve_until_told(struct cli *cli, struct setup *u)
{
    struct serve *s;
    if (serve_start(&u->o, &s) != IFX_OK)
        return cli_fail(cli);
    say_ready(s, u);
    int signal = wait_for_signal(s), status = 0;
    if (signal == 0) {
        serve_wait(s, 0);
        fprintf(stderr, "infernix: serve: %s\n", serve_broken(s));
        status = 1;
    } else {
        base_log(IFX_LOG_INFO, "shutting down: running answers get up to %.0f seconds", u->o.drain_timeout);
        drain(s, u->o.drain_timeout);
        status = serve_broken(s) != NULL;
    }
    serve_stop(s);
    return status;
}

static int set_up(struct cli *cli, struct setup *u)
{
    struct cli_generation gen;
    const char *path = cli_text(cli, "--model", NULL);
    struct ifx_model_info info;
    if (cli_argc(cli) > (path == NULL))
        return cli_usage(cli, "too many arguments: %s", cli_arg(cli, cli_argc(cli) - 1));
    int failed = cli_generation_options(cli, NULL, &gen);
    cli_generation_free(&gen);
    failed = failed ? failed : read_limits(cli, u);
    failed = failed ? failed : read_texts(cli, u);
    failed = failed ? failed : read_key(cli, u);
    cli->max_sequences = u->o.max_concurrency;
    cli->prefix_cache_bytes = (uint64_t)u->prefix_mib << 20;
    failed = failed ? failed : cli_model(cli, path != NULL ? path : cli_arg(cli, 0), &u->o.model);
    failed = failed ? failed : cli_generation_options(cli, u->o.model, &gen);
    if (failed)
        return failed;
    u->o.sampling = gen.g.sampling;
    u->o.pool = ifx_context_pool(cli->context);
    cli_generation_free(&gen);
    ifx_model_info(u->o.model, &info);
    u->name = model_name(info.path);
    u->o.model_name = cli_text(cli, "--model-name", u->name);
    cli_log_setup(u->o.model);
    return catch_signals(cli);
}

static int run(struct cli *cli)
{
    struct setup u = {0};
    int status = set_up(cli, &u);
    if (!status)
        status = serve_until_told(cli, &u);
    base_free(u.key);
    base_free(u.template);
    base_free(u.name);
    return status;
}

const struct cli_command cmd_serve = {
    "serve",
    "[MODEL] [options]",
    "an HTTP server: OpenAI and Anthropic API, chat page",
    options,
    "  infernix serve\n"
    "  infernix serve ./Qwen3.5-35B-A3B --port 8000 --api-key-file key.txt\n"
    "  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\\n"
    "    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is 7 + 5?\"}]}'\n",
    run,
};
