/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_chat.c - a conversation in the terminal.
 *
 * A turn is rendered whole, as the server does it, and begins with the longest part of it that the engine still has from earlier turns; only
 * the rest is computed.  /stats tells how much that was.
 */
#include "config.h"
#include "cli_internal.h"
#include "line_input.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX_CACHE_BYTES (512ull << 20) /* what earlier turns may leave for later ones */

static const struct cli_option options[] = {
    {"-m, --model", "MODEL", "the model, when it should not be the first argument", false},
    {"--system", "TEXT", "system message", false},
    {"--think", "on|off", "thinking (default: as the template has it)", false},
    {"-n, --max-tokens", "N", "tokens an answer at most, 0 for up to the context limit (default 0)", false},
    CLI_SAMPLING_OPTIONS,
    {NULL, NULL, NULL, false},
};

static const char help_text[] = "/help          this list\n"
                                "/reset         forget the conversation\n"
                                "/system TEXT   set the system message and forget the conversation\n"
                                "/stats         tokens and speed so far\n"
                                "/save FILE     write the conversation as JSON (infernix render reads it)\n"
                                "/quit          leave (Ctrl-D too)\n"
                                "Several lines: paste them, end a line with \\, or put them between lines of \"\"\".\n"
                                "Ctrl-C stops an answer.\n";

struct chat {
    struct cli *cli;
    struct cli_generation gen;
    struct ifx_sequence *sequence;
    struct text_chat *template;
    struct line_input *input;
    json_t *messages;
    struct base_buf answer;
    int thinking;
    bool ended_line;
    /* /stats */
    uint64_t turns, computed, reused, generated;
    double prompt_seconds, decode_seconds;
};

static int32_t on_text(void *ctx, const char *text, uint64_t bytes)
{
    struct chat *c = ctx;
    c->ended_line = bytes > 0 && text[bytes - 1] == '\n';
    if (base_buf_add(&c->answer, text, bytes))
        return 1;
    return fwrite(text, 1, (size_t)bytes, stdout) != (size_t)bytes || fflush(stdout) != 0;
}

static int add_message(struct chat *c, const char *role, const char *text)
{
    json_t *m = json_pack("{s:s, s:s}", "role", role, "content", text);
    return m == NULL || json_array_append_new(c->messages, m) != 0;
}

static void start_over(struct chat *c, const char *system)
{
    json_array_clear(c->messages);
    if (system != NULL && system[0] != 0 && add_message(c, "system", system))
        base_log(IFX_LOG_ERROR, "the system message is not valid UTF-8");
}

static int32_t answer(struct chat *c, struct ifx_generate_result *r)
{
    struct text_chat_options o = {.add_generation_prompt = true, .thinking = c->thinking};
    struct ifx_generate g = c->gen.g;
    int32_t *ids = NULL;
    uint64_t n = 0, same = 0;
    int32_t st = text_chat_ids(c->template, c->messages, &o, &ids, &n);
    if (st == IFX_OK)
        st = ifx_sequence_reset(c->sequence);
    if (st == IFX_OK)
        st = ifx_sequence_attach(c->sequence, ids, n, &same);
    if (st == IFX_OK) {
        g.prompt = ids + same;
        g.n_prompt = n - same;
        g.on_text = on_text;
        g.ctx = c;
        c->answer.len = 0;
        c->ended_line = true;
        st = ifx_generate(c->sequence, &g, r);
        if (st == IFX_OK)
            ifx_sequence_publish(c->sequence); /* the next turn goes on from here */
        if (!c->ended_line)
            putchar('\n');
        fflush(stdout);
    }
    base_free(ids);
    if (st != IFX_OK)
        return st;
    c->turns++;
    c->computed += n - same;
    c->reused += same;
    c->generated += r->n_generated;
    c->prompt_seconds += r->prompt_seconds;
    c->decode_seconds += r->decode_seconds;
    return IFX_OK;
}

static void say(struct chat *c, const char *text)
{
    struct ifx_generate_result r;
    size_t before = json_array_size(c->messages);
    if (add_message(c, "user", text)) {
        base_log(IFX_LOG_ERROR, "that is not valid UTF-8; not sent");
        return;
    }
    cli_signals_reset();
    if (answer(c, &r) != IFX_OK) {
        /* Nothing of a failed turn stays, so that the next one starts clean. */
        cli_fail(c->cli);
        while (json_array_size(c->messages) > before)
            json_array_remove(c->messages, json_array_size(c->messages) - 1);
        cli_signals_reset();
        return;
    }
    cli_signals_reset();
    add_message(c, "assistant", c->answer.data != NULL ? c->answer.data : "");
    if (r.finish != IFX_FINISH_STOP)
        base_log(IFX_LOG_INFO, "%s", r.finish == IFX_FINISH_CANCELLED ? "stopped" : "cut: token limit reached");
}

static void print_stats(const struct chat *c)
{
    base_log(IFX_LOG_INFO, "%llu answers; prompt tokens computed %llu (%.1f tok/s), taken over %llu; generated %llu (%.1f tok/s)",
             (unsigned long long)c->turns, (unsigned long long)c->computed, cli_rate(c->computed, c->prompt_seconds),
             (unsigned long long)c->reused, (unsigned long long)c->generated, cli_rate(c->generated, c->decode_seconds));
    base_log(IFX_LOG_INFO, "context %llu tokens", (unsigned long long)ifx_sequence_length(c->sequence));
}

static void save(struct chat *c, const char *path)
{
    struct base_out *out = NULL;
    char *text = json_dumps(c->messages, JSON_INDENT(2));
    int32_t st = text == NULL ? base_error(IFX_ENOMEM, "no memory") : base_out_open(path, false, &out);
    if (st == IFX_OK)
        st = base_out_write(out, text, strlen(text));
    if (st == IFX_OK)
        st = base_out_write(out, "\n", 1);
    if (st == IFX_OK)
        st = base_out_commit(&out);
    else if (out != NULL)
        base_out_abort(&out);
    free(text);
    if (st != IFX_OK)
        base_log(IFX_LOG_ERROR, "%s", base_error_text());
    else
        base_log(IFX_LOG_INFO, "saved to %s", path);
}

/* A line that starts with "/".  False: leave. */
static bool command(struct chat *c, const char *line)
{
    static const char *const names[] = {"/help", "/reset", "/system", "/stats", "/save", "/quit", NULL};
    char word[16];
    size_t n = strcspn(line, " ");
    const char *rest = line + n + strspn(line + n, " "), *near;
    snprintf(word, sizeof word, "%.*s", (int)(n < 15 ? n : 15), line);
    if (strcmp(word, "/quit") == 0)
        return false;
    if (strcmp(word, "/help") == 0)
        fputs(help_text, stderr);
    else if (strcmp(word, "/reset") == 0)
        start_over(c, cli_text(c->cli, "--system", NULL));
    else if (strcmp(word, "/system") == 0)
        start_over(c, rest);
    else if (strcmp(word, "/stats") == 0)
        print_stats(c);
    else if (strcmp(word, "/save") == 0 && rest[0] != 0)
        save(c, rest);
    else if (strcmp(word, "/save") == 0)
        base_log(IFX_LOG_ERROR, "/save needs a file name");
    else if ((near = base_nearest(word, names)) != NULL)
        base_log(IFX_LOG_ERROR, "unknown command %s; did you mean %s?", word, near);
    else
        base_log(IFX_LOG_ERROR, "unknown command %s; /help lists them", word);
    return true;
}

static int talk(struct chat *c)
{
    struct base_buf text = {0};
    for (;;) {
        cli_signals_reset();
        int got = line_input_read(c->input, "> ", &text);
        if (got < 0)
            continue; /* Ctrl-C: the line is dropped */
        if (got == 0)
            break;
        if (text.data == NULL || strspn(text.data, " \t\n") == text.len)
            continue;
        if (text.data[0] == '/' && !command(c, text.data))
            break;
        if (text.data[0] != '/')
            say(c, text.data);
        if (ferror(stdout))
            break;
    }
    base_buf_free(&text);
    return 0;
}

static int set_up(struct chat *c, const char *path)
{
    struct ifx_model *model;
    const char *think = cli_text(c->cli, "--think", NULL);
    if (think != NULL && strcmp(think, "on") != 0 && strcmp(think, "off") != 0)
        return cli_usage(c->cli, "--think: %s is neither on nor off", think);
    if (think != NULL)
        c->thinking = strcmp(think, "on") == 0 ? TEXT_THINK_ON : TEXT_THINK_OFF;
    int failed = cli_generation_options(c->cli, NULL, &c->gen);
    cli_generation_free(&c->gen);
    c->cli->prefix_cache_bytes = PREFIX_CACHE_BYTES;
    failed = failed ? failed : cli_model(c->cli, path, &model);
    failed = failed ? failed : cli_generation_options(c->cli, model, &c->gen);
    if (failed)
        return failed;
    c->messages = json_array();
    if (c->messages == NULL || ifx_model_chat(model, &c->template) || ifx_sequence_create(model, &c->sequence)
        || line_input_open(&c->input))
        return cli_fail(c->cli);
    start_over(c, cli_text(c->cli, "--system", NULL));
    cli_log_setup(model);
    if (isatty(STDIN_FILENO))
        base_log(IFX_LOG_INFO, "/help lists the commands, Ctrl-D leaves");
    return 0;
}

static int run(struct cli *cli)
{
    struct chat c = {.cli = cli, .thinking = TEXT_THINK_DEFAULT};
    const char *path = cli_text(cli, "--model", NULL);
    if (cli_argc(cli) > (path == NULL))
        return cli_usage(cli, "too many arguments: %s", cli_arg(cli, cli_argc(cli) - 1));
    if (cli_json(cli))
        return cli_usage(cli, "--json: a conversation has no report; infernix run --chat --json answers once");
    int status = set_up(&c, path != NULL ? path : cli_arg(cli, 0));
    if (!status)
        status = talk(&c);
    line_input_close(c.input);
    ifx_sequence_destroy(c.sequence);
    cli_generation_free(&c.gen);
    json_decref(c.messages);
    base_buf_free(&c.answer);
    return status;
}

const struct cli_command cmd_chat = {
    "chat",
    "[MODEL] [options]",
    "a conversation in the terminal",
    options,
    "  infernix chat\n"
    "  infernix chat ./Qwen3.5-35B-A3B --think off --system \"Answer in one sentence.\"\n",
    run,
};
