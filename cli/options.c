/* SPDX-License-Identifier: Apache-2.0
 *
 * options.c - the global options, parsing of the command line, getters.
 */
#include "config.h"
#include "cli_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct cli_option cli_global_options[] = {
    {"--plugin", "NAME[,K=V...]", "load a plugin, by name or by a path with a slash; may be repeated", true},
    {"--plugin-path", "DIRS", "look for plugins in these folders first (separated by colons)", false},
    {"--config", "FILE", "options file (default: $INFERNIX_CONFIG, else ~/.config/infernix/infernix.ini if there)", false},
    {"--device", "NAME[,K=V...]", "auto, cpu, ref, cuda[:N] or sim, with options of its plugin (default auto)", false},
    {"--cpu", "LEVEL", "scalar, avx2, avx512, avx512_bf16 or amx_bf16 (default: the best that this machine has)", false},
    {"--threads", "N", "CPU threads, 0 for all usable CPUs (default 0)", false},
    {"--pin", NULL, "keep each thread on a CPU of its own (default when all usable CPUs are taken)", false},
    {"--no-pin", NULL, "let threads wander", false},
    {"--kv-dtype", "FORMAT", "KV-cache format: bf16, int8, f32 or a plugin's (default bf16; f32 on ref)", false},
    {"--experts", "FORMAT", "expert format, re-packed at load: bf16, int8, nvfp4 or a plugin's (default: as stored)", false},
    {"--ctx", "N", "context limit in tokens (default: the model's, at most 4096)", false},
    {"--prefill-chunk", "N", "prompt tokens a step (default 512; 2048 for a mixture on a GPU with room)", false},
    {"--vram-budget", "SIZE", "device memory the program may take: 8G, 512M (default: what is free)", false},
    {"--ram-budget", "SIZE", "host memory the program may take (default: what the machine and its limits allow)", false},
    {"--pin-experts", "SIZE", "host memory that may be pinned for experts, the rest crosses slower; 0 for none (default: all)", false},
    {"--expert-frames", "N", "most experts kept in device memory, over all layers; 0 for none (default: what fits)", false},
    {"--cpu-threads", "N", "CPU threads that compute experts beside a GPU (default: all of --threads)", false},
    {"--assist", "MODE", "how the CPU helps with experts that a GPU misses: ramp, balance or off (default ramp)", false},
    {"--assist-max-columns", "N", "widest prompt step with help, wider ones are streamed (default: the expert format's)", false},
    {"--assist-ramp", "POINTS", "share of the misses that crosses the link, in 1/256: 64:77,255:104 (default: the expert format's)", false},
    {"--deterministic", NULL, "a text never depends on what is cached: the CPU takes experts of at most 8 columns", false},
    {"--expert-state", "FILE", "ranking of the experts that warms the next start (default: MODEL.expert-state)", false},
    {"--no-expert-state", NULL, "neither read nor write it", false},
    {"--no-cuda-graph", NULL, "never capture decode steps as graphs", false},
    {"--ngram-cache-mib", "N", "memory for rows of an n-gram table, which stays on disk; 0 for none (default 64)", false},
    {"--json", NULL, "report as JSON on standard output", false},
    {"--log-level", "LEVEL", "error, warn, info or debug (default info)", false},
    {"-q, --quiet", NULL, "only warnings, errors and the result", false},
    {"--version", NULL, "print the version and what was built in", false},
    {"-h, --help", NULL, "print help; after a command, help for it", false},
    {NULL, NULL, NULL, false},
};

const struct cli_option cli_assist_columns = {"max-columns", "N", "widest prompt step with help", false};
const struct cli_option cli_assist_ramp = {"ramp", "POINTS", "share of the misses that crosses the link", false};

const char *cli_option_name(const struct cli_option *option)
{
    const char *comma = strstr(option->name, ", ");
    return comma != NULL ? comma + 2 : option->name;
}

static bool spelled(const struct cli_option *option, const char *name)
{
    const char *comma = strstr(option->name, ", ");
    size_t n = strlen(name);
    if (strcmp(cli_option_name(option), name) == 0)
        return true;
    return comma != NULL && (size_t)(comma - option->name) == n && strncmp(option->name, name, n) == 0;
}

static const struct cli_option *find_in(const struct cli_option *table, const char *name)
{
    for (; table != NULL && table->name != NULL; table++)
        if (spelled(table, name))
            return table;
    return NULL;
}

const struct cli_option *cli_find_option(const struct cli_command *command, const char *name)
{
    const struct cli_option *o = command != NULL ? find_in(command->options, name) : NULL;
    return o != NULL ? o : find_in(cli_global_options, name);
}

static uint32_t list_names(const struct cli_option *table, const char **names, uint32_t n, uint32_t max)
{
    for (; table != NULL && table->name != NULL && n < max; table++)
        names[n++] = cli_option_name(table);
    return n;
}

const char *cli_nearest_option(const struct cli_command *command, const char *name)
{
    const char *names[128];
    uint32_t n = list_names(command != NULL ? command->options : NULL, names, 0, 127);
    n = list_names(cli_global_options, names, n, 127);
    names[n] = NULL;
    return base_nearest(name, names);
}

int cli_add_value(struct cli *cli, const struct cli_option *option, const char *text, uint32_t source, uint32_t line)
{
    struct cli_value *values = base_realloc(cli->values, (uint64_t)cli->n_values + 1, sizeof *values);
    if (values == NULL)
        return cli_fail(cli);
    cli->values = values;
    char *copy = base_strdup(text != NULL ? text : "1");
    if (copy == NULL)
        return cli_fail(cli);
    values[cli->n_values++] = (struct cli_value){option, copy, source, line};
    return 0;
}

/* ---- command line ---- */

/* While the command is not known yet, an option may be any command's: it is only asked whether it takes a value. */
static const struct cli_option *find_anywhere(const char *name)
{
    const struct cli_option *o = cli_find_option(NULL, name);
    for (uint32_t i = 0; o == NULL && cli_commands[i] != NULL; i++)
        o = find_in(cli_commands[i]->options, name);
    return o;
}

/* "--name=value" -> name in `name`, value returned; NULL when there is no "=". */
static const char *split_option(const char *arg, char name[64])
{
    const char *eq = strchr(arg, '=');
    size_t n = eq != NULL ? (size_t)(eq - arg) : strlen(arg);
    if (n > 63)
        n = 63;
    memcpy(name, arg, n);
    name[n] = 0;
    return eq != NULL ? eq + 1 : NULL;
}

static bool is_option(const char *arg)
{
    return arg[0] == '-' && arg[1] != 0;
}

static int unknown_option(struct cli *cli, const char *name)
{
    const char *near = cli_nearest_option(cli->command, name);
    if (near != NULL)
        return cli_usage(cli, "unknown option %s; did you mean %s?", name, near);
    return cli_usage(cli, "unknown option %s; see infernix %s%s--help", name,
                     cli->command != NULL ? cli->command->name : "", cli->command != NULL ? " " : "");
}

static int find_command(struct cli *cli, int argc, char **argv, int *at)
{
    const char *names[32];
    uint32_t n = 0;
    char name[64];
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0)
            break;
        if (!is_option(argv[i])) {
            for (n = 0; cli_commands[n] != NULL && n < 31; n++) {
                names[n] = cli_commands[n]->name;
                if (strcmp(argv[i], names[n]) == 0) {
                    cli->command = cli_commands[n];
                    *at = i;
                    return 0;
                }
            }
            names[n] = NULL;
            const char *near = base_nearest(argv[i], names);
            if (near != NULL)
                return cli_usage(cli, "unknown command %s; did you mean %s?", argv[i], near);
            return cli_usage(cli, "unknown command %s; infernix --help lists the commands", argv[i]);
        }
        const char *value = split_option(argv[i], name);
        const struct cli_option *o = find_anywhere(name);
        if (o == NULL)
            return unknown_option(cli, name);
        if (o->value != NULL && value == NULL)
            i++;
    }
    return 0;
}

/* One option at argv[*i]; *i moves past its value. */
static int take_option(struct cli *cli, int argc, char **argv, int *i)
{
    char name[64];
    const char *value = split_option(argv[*i], name);
    const struct cli_option *o = cli_find_option(cli->command, name);
    if (o == NULL)
        return unknown_option(cli, name);
    if (o->value == NULL && value != NULL)
        return cli_usage(cli, "%s takes no value", name);
    if (o->value != NULL && value == NULL) {
        if (*i + 1 >= argc)
            return cli_usage(cli, "%s needs a value: %s %s", name, name, o->value);
        value = argv[++*i];
    }
    return cli_add_value(cli, o, value, CLI_FROM_COMMAND_LINE, 0);
}

int cli_parse(struct cli *cli, int argc, char **argv)
{
    int at = 0, failed = find_command(cli, argc, argv, &at);
    bool only_args = false;
    if (failed)
        return failed;
    cli->args = base_calloc((uint64_t)argc + 1, sizeof *cli->args);
    if (cli->args == NULL)
        return cli_fail(cli);
    for (int i = 1; i < argc && !failed; i++) {
        if (i == at)
            continue;
        if (!only_args && strcmp(argv[i], "--") == 0)
            only_args = true;
        else if (!only_args && is_option(argv[i]))
            failed = take_option(cli, argc, argv, &i);
        else
            cli->args[cli->n_args++] = argv[i];
    }
    return failed;
}

/* Next word of *p with quotes and backslashes taken away, in place; NULL at the end.  *bad: a quote is not closed. */
static char *next_word(char **p, bool *bad)
{
    char *s = *p, *out, *start, quote = 0;
    while (*s == ' ' || *s == '\t' || *s == '\n')
        s++;
    if (*s == 0)
        return NULL;
    start = out = s;
    for (; *s != 0 && (quote != 0 || (*s != ' ' && *s != '\t' && *s != '\n')); s++) {
        if (quote == 0 && (*s == '\'' || *s == '"'))
            quote = *s;
        else if (quote != 0 && *s == quote)
            quote = 0;
        else if (*s == '\\' && quote != '\'' && s[1] != 0)
            *out++ = *++s;
        else
            *out++ = *s;
    }
    *bad = quote != 0;
    *p = *s != 0 ? s + 1 : s;
    *out = 0;
    return start;
}

int cli_parse_text(struct cli *cli, const char *text)
{
    char *copy = base_strdup(text), *p = copy, *word, *argv[65] = {NULL};
    int argc = 0, failed = 0;
    bool bad = false;
    if (copy == NULL)
        return cli_fail(cli);
    while (argc < 64 && !bad && (word = next_word(&p, &bad)) != NULL)
        argv[argc++] = word;
    if (bad)
        failed = cli_usage(cli, "\"%s\": a quote is not closed", text);
    else if (argc == 64)
        failed = cli_usage(cli, "\"%s\": more than 63 words", text);
    for (int i = 0; i < argc && !failed; i++) {
        if (is_option(argv[i]))
            failed = take_option(cli, argc, argv, &i);
        else
            failed = cli_usage(cli, "\"%s\": %s is not an option", text, argv[i]);
    }
    base_free(copy);
    return failed;
}

/* ---- getters ---- */

uint32_t cli_argc(const struct cli *cli)
{
    return cli->n_args;
}

const char *cli_arg(const struct cli *cli, uint32_t index)
{
    return index < cli->n_args ? cli->args[index] : NULL;
}

/* "--no-pin" undoes "--pin" and the other way round. */
static bool opposite(const char *a, const char *b)
{
    return strncmp(a, "--no-", 5) == 0 && strncmp(b, "--", 2) == 0 && strcmp(a + 5, b + 2) == 0;
}

/* The value that counts: the last of the strongest source, since sources come in that order. */
static const struct cli_value *last_value(const struct cli *cli, const char *name)
{
    for (uint32_t i = cli->n_values; i > 0; i--) {
        const struct cli_value *v = &cli->values[i - 1];
        if (spelled(v->option, name))
            return v;
        const char *other = cli_option_name(v->option);
        if (v->option->value == NULL && strcmp(v->text, "1") == 0 && (opposite(other, name) || opposite(name, other)))
            return NULL;
    }
    return NULL;
}

bool cli_flag(const struct cli *cli, const char *name)
{
    const struct cli_value *v = last_value(cli, name);
    return v != NULL && strcmp(v->text, "0") != 0;
}

const char *cli_text(const struct cli *cli, const char *name, const char *fallback)
{
    const struct cli_value *v = last_value(cli, name);
    return v != NULL ? v->text : fallback;
}

/* A list that lives as long as the cli, with room for every value. */
static const char **new_list(struct cli *cli)
{
    const char **list = base_calloc((uint64_t)cli->n_values + 1, sizeof *list);
    const char ***lists = base_realloc(cli->lists, (uint64_t)cli->n_lists + 1, sizeof *lists);
    if (lists != NULL)
        cli->lists = lists;
    if (list == NULL || lists == NULL) {
        base_free(list);
        return NULL;
    }
    lists[cli->n_lists++] = list;
    return list;
}

const char *const *cli_texts(const struct cli *cli, const char *name)
{
    static const char *const none[] = {NULL};
    const struct cli_value *last = last_value(cli, name);
    /* The lists are a cache, not part of what was parsed. */
    const char **list = last != NULL ? new_list((struct cli *)cli) : NULL;
    uint32_t n = 0;
    if (list == NULL)
        return none;
    for (uint32_t i = 0; i < cli->n_values; i++)
        if (cli->values[i].option == last->option && cli->values[i].source == last->source)
            list[n++] = cli->values[i].text;
    return list;
}

bool cli_from_command_line(const struct cli *cli, const char *name)
{
    const struct cli_value *v = last_value(cli, name);
    return v != NULL && v->source == CLI_FROM_COMMAND_LINE;
}

/* "--ctx", or "ctx (FILE, line N)" for a value of the config file. */
static void describe(const struct cli *cli, const struct cli_value *v, const char *name, char out[320])
{
    if (v->source == CLI_FROM_COMMAND_LINE)
        snprintf(out, 320, "%s", name);
    else
        snprintf(out, 320, "%s (%s, line %u)", name, cli->config_path != NULL ? cli->config_path : "config", v->line);
}

int cli_int(struct cli *cli, const char *name, int64_t min, int64_t max, int64_t fallback, int64_t *out)
{
    const struct cli_value *v = last_value(cli, name);
    char what[320];
    *out = fallback;
    if (v == NULL)
        return 0;
    describe(cli, v, name, what);
    return base_parse_i64(v->text, what, min, max, out) ? cli_usage(cli, "%s", base_error_text()) : 0;
}

int cli_float(struct cli *cli, const char *name, double min, double max, double fallback, double *out)
{
    const struct cli_value *v = last_value(cli, name);
    char what[320];
    *out = fallback;
    if (v == NULL)
        return 0;
    describe(cli, v, name, what);
    return base_parse_f64(v->text, what, min, max, out) ? cli_usage(cli, "%s", base_error_text()) : 0;
}

bool cli_json(const struct cli *cli)
{
    return cli_flag(cli, "--json");
}

int cli_clone(const struct cli *from, struct cli *to)
{
    *to = (struct cli){.command = from->command};
    for (uint32_t i = 0; i < from->n_values; i++) {
        const struct cli_value *v = &from->values[i];
        int failed = cli_add_value(to, v->option, v->text, v->source, v->line);
        if (failed)
            return failed;
    }
    return 0;
}

void cli_free(struct cli *cli)
{
    if (cli->model != NULL)
        ifx_model_close(cli->model);
    if (cli->context != NULL)
        ifx_context_destroy(cli->context);
    for (uint32_t i = 0; i < cli->n_values; i++)
        base_free(cli->values[i].text);
    base_free(cli->values);
    base_free(cli->args);
    for (uint32_t i = 0; i < cli->n_lists; i++)
        base_free(cli->lists[i]);
    base_free(cli->lists);
    base_free(cli->config_path);
    base_free(cli->assist_sections);
    *cli = (struct cli){0};
}
