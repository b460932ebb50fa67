/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_render.c - a conversation as JSON to the prompt that the model gets.
 */
#include "config.h"
#include "cli_internal.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct cli_option options[] = {
    {"-m, --model", "MODEL", "the model whose chat template is used, when it should not be the first argument", false},
    {"--tokenizer", "PATH", "a folder with tokenizer.json, or the file itself, instead of a model", false},
    {"-f, --file", "FILE", "read the messages from a file (- is standard input)", false},
    {"--tools", "FILE", "a JSON list of tools", false},
    {"--thinking", NULL, "ask for thinking (default: as the template has it)", false},
    {"--no-thinking", NULL, "ask for an answer without thinking", false},
    {"--no-generation-prompt", NULL, "leave out the head of the answer to come", false},
    {"--ids", NULL, "print token ids instead of the text", false},
    {NULL, NULL, NULL, false},
};

struct render {
    struct cli *cli;
    struct text_tokenizer *t;
    struct text_chat *chat;
    json_t *input, *tools;
    const json_t *messages; /* in input */
    struct text_chat_options o;
};

static int32_t load(const char *path, json_t **out)
{
    char *text = NULL;
    uint64_t bytes = 0;
    json_error_t e;
    int32_t st = cli_read_text(path, &text, &bytes);
    if (st != IFX_OK)
        return st;
    *out = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, &e);
    base_free(text);
    if (*out == NULL)
        st = base_error(IFX_EINVAL, "%s: not valid JSON at line %d, column %d: %s",
                        strcmp(path, "-") == 0 ? "standard input" : path, e.line, e.column, e.text);
    return st;
}

/* The input is a list of messages, or an object as the chat API takes it. */
static int32_t take_input(struct render *r)
{
    r->messages = r->input;
    if (!json_is_object(r->input))
        return IFX_OK;
    const json_t *generation = json_object_get(r->input, "add_generation_prompt");
    const json_t *think = json_object_get(r->input, "enable_thinking");
    r->messages = json_object_get(r->input, "messages");
    if (r->messages == NULL)
        return base_error(IFX_EINVAL, "the input is neither a list of messages nor an object with \"messages\"");
    if (generation != NULL && !json_is_boolean(generation))
        return base_error(IFX_EINVAL, "add_generation_prompt: true or false is expected");
    if (think != NULL && !json_is_boolean(think) && !json_is_null(think))
        return base_error(IFX_EINVAL, "enable_thinking: true or false is expected");
    if (json_is_false(generation))
        r->o.add_generation_prompt = false;
    if (json_is_boolean(think) && r->o.thinking == TEXT_THINK_DEFAULT)
        r->o.thinking = json_is_true(think) ? TEXT_THINK_ON : TEXT_THINK_OFF;
    if (r->tools == NULL)
        r->o.tools = json_object_get(r->input, "tools");
    return IFX_OK;
}

static int32_t print_ids(const int32_t *ids, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (printf("%s%d", i ? "," : "", ids[i]) < 0)
            return base_error(IFX_EIO, "standard output: cannot write");
    return puts("") < 0 ? base_error(IFX_EIO, "standard output: cannot write") : IFX_OK;
}

static int32_t show(struct render *r, int *status)
{
    struct base_buf text = {0};
    int32_t *ids = NULL;
    uint64_t n = 0;
    int32_t st = text_chat_render(r->chat, r->messages, &r->o, &text);
    if (st == IFX_OK)
        st = text_chat_ids(r->chat, r->messages, &r->o, &ids, &n);
    if (st == IFX_OK && cli_json(r->cli)) {
        json_t *list = json_array();
        for (uint64_t i = 0; i < n && list != NULL; i++)
            json_array_append_new(list, json_integer(ids[i]));
        *status = cli_print_json(r->cli, json_pack("{s:o, s:o, s:I}", "prompt", json_stringn(text.data ? text.data : "", text.len),
                                                   "ids", list, "count", (json_int_t)n));
    } else if (st == IFX_OK && cli_flag(r->cli, "--ids")) {
        st = print_ids(ids, n);
    } else if (st == IFX_OK && text.len > 0 && fwrite(text.data, 1, (size_t)text.len, stdout) != (size_t)text.len) {
        st = base_error(IFX_EIO, "standard output: cannot write");
    }
    if (st == IFX_OK && fflush(stdout) != 0)
        st = base_error(IFX_EIO, "standard output: cannot write");
    base_buf_free(&text);
    base_free(ids);
    return st;
}

static bool is_messages_file(const char *name)
{
    size_t n = strlen(name), k = strlen("tokenizer.json");
    return n >= 5 && strcmp(name + n - 5, ".json") == 0 && !(n >= k && strcmp(name + n - k, "tokenizer.json") == 0);
}

/* MODEL and FILE among the positionals; a lone *.json is the messages. */
static int take_arguments(struct render *r, const char **model, const char **file)
{
    struct cli *cli = r->cli;
    uint32_t n = cli_argc(cli), next = 0;
    *file = cli_text(cli, "--file", NULL);
    *model = cli_text(cli, "--model", NULL);
    bool given = *model != NULL || cli_text(cli, "--tokenizer", NULL) != NULL;
    if (*model != NULL && cli_text(cli, "--tokenizer", NULL) != NULL)
        return cli_usage(cli, "--tokenizer and --model: give one of them");
    if (!given && n > 0 && (n > 1 || !is_messages_file(cli_arg(cli, 0)) || *file != NULL))
        *model = cli_arg(cli, next++);
    if (n > next + 1 || (n > next && *file != NULL))
        return cli_usage(cli, "too many arguments: %s", cli_arg(cli, n - 1));
    if (n > next)
        *file = cli_arg(cli, next);
    if (*file == NULL && isatty(STDIN_FILENO))
        return cli_usage(cli, "no messages: give --file FILE or standard input");
    if (cli_flag(cli, "--thinking") && cli_flag(cli, "--no-thinking"))
        return cli_usage(cli, "--thinking and --no-thinking: give one of them");
    return 0;
}

static int run(struct cli *cli)
{
    struct render r = {.cli = cli};
    const char *model, *file, *tools = cli_text(cli, "--tools", NULL);
    int status = take_arguments(&r, &model, &file);
    if (status != 0)
        return status;
    r.o.add_generation_prompt = !cli_flag(cli, "--no-generation-prompt");
    r.o.thinking = cli_flag(cli, "--thinking")      ? TEXT_THINK_ON
                   : cli_flag(cli, "--no-thinking") ? TEXT_THINK_OFF
                                                    : TEXT_THINK_DEFAULT;
    int32_t st = cli_open_tokenizer(cli, model, &r.t);
    if (st == IFX_OK)
        st = text_chat_create(r.t, NULL, &r.chat);
    if (st == IFX_OK && tools != NULL)
        st = load(tools, &r.tools);
    r.o.tools = r.tools;
    if (st == IFX_OK)
        st = load(file != NULL ? file : "-", &r.input);
    if (st == IFX_OK)
        st = take_input(&r);
    if (st == IFX_OK)
        st = show(&r, &status);
    json_decref(r.input);
    json_decref(r.tools);
    text_chat_destroy(r.chat);
    text_tokenizer_destroy(r.t);
    return st == IFX_OK ? status : cli_fail(cli);
}

const struct cli_command cmd_render = {
    .name = "render",
    .synopsis = "[MODEL] [FILE] [options]",
    .summary = "messages as JSON to the prompt that the model gets",
    .options = options,
    .examples = "  echo '[{\"role\": \"user\", \"content\": \"Hi\"}]' | infernix render\n"
                "  infernix render --tokenizer DIR messages.json --tools tools.json --no-thinking\n"
                "  infernix render MODEL request.json --ids\n"
                "The input is a list of messages, or an object with \"messages\" and, if wanted, \"tools\",\n"
                "\"enable_thinking\" and \"add_generation_prompt\".  In the ids, control tokens stand only where the\n"
                "template puts them; a message that spells one stays text.\n",
    .run = run,
};
