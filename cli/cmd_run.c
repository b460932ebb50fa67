/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_run.c - one prompt, one text: text on standard output, everything else on standard error.
 */
#include "config.h"
#include "cli_internal.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RUN_MAX_TOKENS 256

static const struct cli_option options[] = {
    {"-m, --model", "MODEL", "the model, when it should not be the first argument", false},
    {"--prompt", "TEXT", "the prompt, when it should not be an argument", false},
    {"-f, --file", "FILE", "read the prompt from a file (- is standard input)", false},
    {"-n, --max-tokens", "N", "tokens to generate at most, 0 for up to the context limit (default 256)", false},
    {"--chat", NULL, "wrap the prompt in the model's chat template (default: go on from the text as it is)", false},
    {"--system", "TEXT", "system message, with --chat", false},
    {"--think", "on|off", "thinking, with --chat (default: as the template has it)", false},
    {"--raw", NULL, "control tokens spelled in the prompt are control tokens (default: text)", false},
    {"--echo", NULL, "print the prompt before the text", false},
    {"--show-special", NULL, "print control tokens of the answer too", false},
    CLI_SAMPLING_OPTIONS,
    {NULL, NULL, NULL, false},
};

struct run {
    struct cli *cli;
    struct cli_generation gen;
    const char *model_path;
    char *prompt;
    uint64_t prompt_bytes;
    int32_t *ids;
    uint64_t n_ids;
    struct ifx_sequence *sequence;
    struct base_buf text; /* --json: kept instead of printed */
    json_t *out_ids;
    bool unwritten, ended_line;
};

/* Prompt: argument, --prompt, --file, or what is piped in. */
static int get_prompt(struct run *r)
{
    struct cli *cli = r->cli;
    uint32_t next;
    const char *file = cli_text(cli, "--file", NULL), *text = cli_text(cli, "--prompt", NULL);
    r->model_path = cli_model_arg(cli, &next);
    if (cli_argc(cli) > next + 1)
        return cli_usage(cli, "too many arguments: %s; a prompt with spaces needs quotes", cli_arg(cli, next + 1));
    const char *arg = cli_arg(cli, next);
    if ((arg != NULL) + (file != NULL) + (text != NULL) > 1)
        return cli_usage(cli, "more than one prompt: give one of an argument, --prompt and --file");
    if (arg != NULL)
        text = arg;
    if (text != NULL) {
        r->prompt = base_strdup(text);
        r->prompt_bytes = strlen(text);
        return r->prompt != NULL ? 0 : cli_fail(cli);
    }
    if (file == NULL && isatty(STDIN_FILENO))
        return cli_usage(cli, "no prompt: infernix run %s\"Once upon a time\"", next ? "MODEL " : "");
    return cli_read_text(file != NULL ? file : "-", &r->prompt, &r->prompt_bytes) ? cli_fail(cli) : 0;
}

static int check_options(struct run *r)
{
    struct cli *cli = r->cli;
    const char *think = cli_text(cli, "--think", NULL);
    bool chat = cli_flag(cli, "--chat");
    if (think != NULL && strcmp(think, "on") != 0 && strcmp(think, "off") != 0)
        return cli_usage(cli, "--think: %s is neither on nor off", think);
    if (!chat && (think != NULL || cli_text(cli, "--system", NULL) != NULL))
        return cli_usage(cli, "%s needs --chat", think != NULL ? "--think" : "--system");
    if (chat && (cli_flag(cli, "--raw") || cli_flag(cli, "--echo")))
        return cli_usage(cli, "%s does not go with --chat", cli_flag(cli, "--raw") ? "--raw" : "--echo");
    int failed = cli_generation_options(cli, NULL, &r->gen);
    cli_generation_free(&r->gen);
    return failed;
}

static int32_t encode_chat(struct run *r, struct ifx_model *model)
{
    const char *system = cli_text(r->cli, "--system", NULL), *think = cli_text(r->cli, "--think", NULL);
    struct text_chat_options o = {.add_generation_prompt = true, .thinking = TEXT_THINK_DEFAULT};
    struct text_chat *chat;
    json_t *user = json_stringn(r->prompt, (size_t)r->prompt_bytes);
    json_t *messages = json_array();
    int32_t st = ifx_model_chat(model, &chat);
    if (think != NULL)
        o.thinking = strcmp(think, "on") == 0 ? TEXT_THINK_ON : TEXT_THINK_OFF;
    if (st == IFX_OK && user == NULL)
        st = base_error(IFX_EINVAL, "--chat: the prompt is not valid UTF-8");
    if (st == IFX_OK && system != NULL
        && json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content", system)) != 0)
        st = base_error(IFX_EINVAL, "--system: not valid UTF-8");
    if (st == IFX_OK && json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "user", "content", user)) != 0)
        st = base_error(IFX_ENOMEM, "no memory");
    if (st == IFX_OK)
        st = text_chat_ids(chat, messages, &o, &r->ids, &r->n_ids);
    json_decref(user);
    json_decref(messages);
    return st;
}

static int32_t encode(struct run *r, struct ifx_model *model)
{
    struct text_tokenizer *t = ifx_model_tokenizer(model);
    if (t == NULL)
        return base_error(IFX_EUNSUPPORTED, "the model has no tokenizer.json, so it takes no text; infernix trace takes ids");
    if (cli_flag(r->cli, "--chat"))
        return encode_chat(r, model);
    return text_encode(t, r->prompt, r->prompt_bytes, cli_flag(r->cli, "--raw") ? TEXT_SPECIALS : 0, &r->ids, &r->n_ids);
}

static int32_t on_text(void *ctx, const char *text, uint64_t bytes)
{
    struct run *r = ctx;
    if (cli_json(r->cli))
        return base_buf_add(&r->text, text, bytes);
    r->ended_line = bytes > 0 && text[bytes - 1] == '\n';
    r->unwritten = fwrite(text, 1, (size_t)bytes, stdout) != (size_t)bytes || fflush(stdout) != 0;
    return r->unwritten; /* nobody reads: stop */
}

static int32_t on_token(void *ctx, int32_t token)
{
    struct run *r = ctx;
    return r->out_ids != NULL && json_array_append_new(r->out_ids, json_integer(token)) != 0;
}

static void log_sampling(const struct ifx_sampling *s)
{
    char t[32], p[32];
    if (s->temperature == 0) {
        base_log(IFX_LOG_INFO, "greedy");
        return;
    }
    base_format_f64(t, (double)(int)(s->temperature * 1000 + 0.5f) / 1000);
    base_format_f64(p, (double)(int)(s->top_p * 1000 + 0.5f) / 1000);
    base_log(IFX_LOG_INFO, "temperature %s, top-k %u, top-p %s, seed %llu", t, s->top_k, p, (unsigned long long)s->seed);
}

static int print_result(struct run *r, struct ifx_model *model, const struct ifx_generate_result *x)
{
    json_t *o = json_pack("{s:s#, s:o, s:s, s:i, s:I, s:I, s:f, s:f, s:f, s:f, s:I, s:o}", "text",
                          r->text.data != NULL ? r->text.data : "", (int)r->text.len, "ids", json_incref(r->out_ids),
                          "finish", cli_finish_name(x->finish), "stop_id", (int)x->stop_id, "prompt_tokens",
                          (json_int_t)x->n_prompt, "generated_tokens", (json_int_t)x->n_generated, "prompt_seconds",
                          x->prompt_seconds, "decode_seconds", x->decode_seconds, "prompt_tokens_per_second",
                          cli_rate(x->n_prompt, x->prompt_seconds), "decode_tokens_per_second",
                          cli_rate(x->n_generated, x->decode_seconds), "seed", (json_int_t)r->gen.g.sampling.seed,
                          "setup", cli_setup_json(r->cli, model));
    return cli_print_json(r->cli, o);
}

static int generate(struct run *r, struct ifx_model *model)
{
    struct ifx_generate_result x;
    struct cli *cli = r->cli;
    struct ifx_generate *g = &r->gen.g;
    g->prompt = r->ids;
    g->n_prompt = r->n_ids;
    g->show_special = cli_flag(cli, "--show-special");
    g->on_text = on_text;
    g->on_token = on_token;
    g->ctx = r;
    if (cli_text(cli, "--max-tokens", NULL) == NULL)
        g->max_tokens = RUN_MAX_TOKENS;
    if (cli_json(cli) && cli_flag(cli, "--echo") && !base_utf8_valid(r->prompt, r->prompt_bytes)) {
        base_error(IFX_EINVAL, "--json --echo: the prompt is not valid UTF-8, JSON cannot hold it");
        return cli_fail(cli);
    }
    if (ifx_sequence_create(model, &r->sequence))
        return cli_fail(cli);
    if (cli_json(cli) && (r->out_ids = json_array()) == NULL)
        return cli_fail(cli);
    if (cli_flag(cli, "--echo") && on_text(r, r->prompt, r->prompt_bytes))
        return 1;
    int32_t st = ifx_generate(r->sequence, g, &x);
    if (!cli_json(cli) && !r->ended_line && !r->unwritten && x.n_generated > 0)
        r->unwritten = putchar('\n') == EOF || fflush(stdout) != 0;
    if (st != IFX_OK)
        return cli_fail(cli);
    base_log(IFX_LOG_INFO, "prompt %llu tokens, %.1f tok/s; generated %llu, %.1f tok/s; %s", (unsigned long long)x.n_prompt,
             cli_rate(x.n_prompt, x.prompt_seconds), (unsigned long long)x.n_generated,
             cli_rate(x.n_generated, x.decode_seconds), cli_finish_name(x.finish));
    if (cli_json(cli) && print_result(r, model, &x))
        return 1;
    return cli_interrupted() ? 130 : 0;
}

static int run(struct cli *cli)
{
    struct run r = {.cli = cli};
    struct ifx_model *model;
    int status = check_options(&r);
    if (!status)
        status = get_prompt(&r);
    if (!status)
        status = cli_model(cli, r.model_path, &model);
    if (!status)
        status = cli_generation_options(cli, model, &r.gen);
    if (!status && encode(&r, model))
        status = cli_fail(cli);
    if (!status) {
        cli_log_setup(model);
        log_sampling(&r.gen.g.sampling);
        status = generate(&r, model);
    }
    ifx_sequence_destroy(r.sequence);
    cli_generation_free(&r.gen);
    base_buf_free(&r.text);
    json_decref(r.out_ids);
    base_free(r.ids);
    base_free(r.prompt);
    return status;
}

const struct cli_command cmd_run = {
    "run",
    "[MODEL] [PROMPT] [options]",
    "one prompt: the text that follows it, on standard output",
    options,
    "  infernix run \"Once upon a time\"\n"
    "  infernix run --chat --greedy \"What does brave mean?\"\n"
    "  infernix run ./Qwen3.5-35B-A3B -n 100 --temperature 0.7 --seed 1 \"The sea was\"\n"
    "  infernix run --file story.txt --json | jq -r .text\n",
    run,
};
