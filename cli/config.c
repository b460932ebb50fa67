/* SPDX-License-Identifier: Apache-2.0
 *
 * config.c - the options file: INI through inih, with what inih would let pass refused before it sees it.
 *
 * inih cuts lines at its buffer size (200 bytes as most distributions build it), takes an indented line for a continuation
 * of the value before it, and goes on after an error.  So each line is looked at first: one that is too long,
 * indented, or has a NUL is refused with its number; and the first error found in the handler stays the one told.
 */
#include "config.h"
#include "cli_internal.h"
#include "policy.h"
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONFIG_MAX_BYTES (1u << 20)

struct config_parse {
    struct cli *cli;
    const char *path;
    uint32_t source_wanted; /* this pass takes only [global] or only the command's section */
    int failed;
    uint32_t line; /* the line that the handler was last called for */
    char message[512];
};

/* inih does not tell the handler the line, so the reader given to it counts. */
struct line_reader {
    const char *at, *end;
    uint32_t line;
};

static char *read_line(char *out, int size, void *ctx)
{
    struct line_reader *r = ctx;
    if (r->at >= r->end || size < 2)
        return NULL;
    const char *nl = memchr(r->at, '\n', (size_t)(r->end - r->at));
    size_t n = (size_t)((nl != NULL ? nl : r->end) - r->at);
    size_t take = n < (size_t)size - 1 ? n : (size_t)size - 1;
    memcpy(out, r->at, take);
    out[take] = 0;
    r->at += n + (nl != NULL);
    r->line++;
    return out;
}

static const struct cli_command *command_named(const char *name)
{
    for (uint32_t i = 0; cli_commands[i] != NULL; i++)
        if (strcmp(cli_commands[i]->name, name) == 0)
            return cli_commands[i];
    return NULL;
}

/* "assist.nvfp4": the policy of an expert format on this machine, as calibrate writes it. */
static bool is_assist(const char *section)
{
    const char *format = section + strlen("assist.");
    return strncmp(section, "assist.", strlen("assist.")) == 0 && *format &&
           strspn(format, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(format);
}

/* inih tells sections only with their first key, so an unknown one is found here. */
static int check_section(struct cli *cli, const char *path, uint32_t line, const char *text, size_t n)
{
    const char *names[34], *end = memchr(text, ']', n);
    char name[64];
    uint32_t k = 0;
    if (end == NULL)
        return cli_usage(cli, "%s, line %u: a section without its ]", path, line);
    snprintf(name, sizeof name, "%.*s", (int)(end - text - 1 < 63 ? end - text - 1 : 63), text + 1);
    if (strcmp(name, "global") == 0 || command_named(name) != NULL || is_assist(name))
        return 0;
    names[k++] = "global";
    for (uint32_t i = 0; cli_commands[i] != NULL && k < 33; i++)
        names[k++] = cli_commands[i]->name;
    names[k] = NULL;
    const char *near = base_nearest(name, names);
    if (near != NULL)
        return cli_usage(cli, "%s, line %u: unknown section [%s]; did you mean [%s]?", path, line, name, near);
    return cli_usage(cli, "%s, line %u: unknown section [%s]; sections are [global], [COMMAND] and [assist.FORMAT]", path, line, name);
}

static int check_lines(struct cli *cli, const char *path, const char *text, uint64_t bytes)
{
    const char *end = text + bytes;
    uint32_t line = 1;
    for (const char *p = text; p < end; line++) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((nl != NULL ? nl : end) - p);
        size_t blank = strspn(p, " \t\r");
        if (n > 0 && memchr(p, 0, n) != NULL)
            return cli_usage(cli, "%s, line %u: holds a NUL byte; is this a text file?", path, line);
        if (n > INI_MAX_LINE - 2)
            return cli_usage(cli, "%s, line %u: longer than %d bytes; shorten it", path, line, INI_MAX_LINE - 2);
        if (blank > 0 && blank < n && p[blank] != '#' && p[blank] != ';')
            return cli_usage(cli, "%s, line %u: starts with a space; keys and [sections] start in the first column", path,
                             line);
        int failed = n > 0 && p[0] == '[' ? check_section(cli, path, line, p, n) : 0;
        if (failed)
            return failed;
        p += n + (nl != NULL);
    }
    return 0;
}

static int refuse(struct config_parse *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int refuse(struct config_parse *c, const char *format, ...)
{
    va_list ap;
    if (!c->failed) {
        va_start(ap, format);
        vsnprintf(c->message, sizeof c->message, format, ap);
        va_end(ap);
        c->failed = 1;
    }
    return 0;
}

/* Text of a switch as "1" or "0", or NULL. */
static const char *switch_value(const char *text)
{
    static const char *const on[] = {"1", "true", "yes", "on", NULL}, *const off[] = {"0", "false", "no", "off", NULL};
    for (uint32_t i = 0; on[i] != NULL; i++) {
        if (strcmp(text, on[i]) == 0)
            return "1";
        if (strcmp(text, off[i]) == 0)
            return "0";
    }
    return NULL;
}

static int on_assist_key(struct config_parse *c, const char *format, const char *key, const char *value)
{
    static const char *const keys[] = {"max-columns", "ramp", NULL};
    static const struct ifx_ramp_point point = {1, 0};
    static const struct ifx_assist_policy any = {.struct_size = sizeof any, .max_columns = 1, .n_points = 1, .points = &point};
    struct offload_policy policy;
    bool columns = strcmp(key, keys[0]) == 0;
    int64_t n;
    if (!columns && strcmp(key, keys[1]) != 0) {
        const char *near = base_nearest(key, keys);
        return near != NULL ? refuse(c, "unknown key %s in [assist.%s]; did you mean %s?", key, format, near)
                            : refuse(c, "unknown key %s in [assist.%s]; keys are max-columns and ramp", key, format);
    }
    if (columns ? base_parse_i64(value, key, 1, 1 << 16, &n) : offload_policy_make(&any, 0, value, &policy))
        return refuse(c, "[assist.%s] %s", format, base_error_text());
    if (c->source_wanted != CLI_FROM_GLOBAL_SECTION)
        return 1;
    char *text = base_format("%s=%s", format, value);
    int failed = text == NULL || cli_add_value(c->cli, columns ? &cli_assist_columns : &cli_assist_ramp, text, CLI_FROM_GLOBAL_SECTION, c->line);
    base_free(text);
    return failed ? refuse(c, "no memory") : 1;
}

static int on_key(void *user, const char *section, const char *key, const char *value)
{
    struct config_parse *c = user;
    char name[72];
    if (c->failed)
        return 0;
    if (is_assist(section))
        return on_assist_key(c, section + strlen("assist."), key, value);
    const struct cli_command *command = command_named(section);
    if (command == NULL && strcmp(section, "global") != 0)
        return refuse(c, "a key before the first section; start with [global]");
    snprintf(name, sizeof name, "%s%.60s", strlen(key) == 1 ? "-" : "--", key);
    const struct cli_option *o = cli_find_option(command, name);
    static const char *const not_here[] = {"--config", "--help", "--version", NULL};
    for (uint32_t i = 0; o != NULL && not_here[i] != NULL; i++)
        if (strcmp(cli_option_name(o), not_here[i]) == 0)
            return refuse(c, "%s belongs on the command line", key);
    if (o == NULL) {
        const char *near = cli_nearest_option(command, name);
        if (near != NULL)
            return refuse(c, "unknown key %s in [%s]; did you mean %s?", key, section, near + 2);
        return refuse(c, "unknown key %s in [%s]; keys are option names without the dashes", key, section);
    }
    if (o->value == NULL && (value = switch_value(value)) == NULL)
        return refuse(c, "%s is a switch: true or false", key);
    uint32_t source = command != NULL ? CLI_FROM_COMMAND_SECTION : CLI_FROM_GLOBAL_SECTION;
    if (source != c->source_wanted || (command != NULL && command != c->cli->command))
        return 1;
    if (cli_add_value(c->cli, o, value, source, c->line))
        return refuse(c, "no memory");
    return 1;
}

struct counted {
    struct config_parse *parse;
    struct line_reader reader;
};

static int on_key_counted(void *user, const char *section, const char *key, const char *value)
{
    struct counted *k = user;
    k->parse->line = k->reader.line;
    return on_key(k->parse, section, key, value);
}

static char *read_counted(char *out, int size, void *ctx)
{
    struct counted *k = ctx;
    return read_line(out, size, &k->reader);
}

int cli_config_text(struct cli *cli, const char *path, const char *text, uint64_t bytes)
{
    int failed = check_lines(cli, path, text, bytes);
    /* Two passes, so that values stand in order of strength: [global], then the command's section. */
    for (uint32_t source = CLI_FROM_GLOBAL_SECTION; source <= CLI_FROM_COMMAND_SECTION && !failed; source++) {
        struct config_parse c = {.cli = cli, .path = path, .source_wanted = source};
        struct counted k = {.parse = &c, .reader = {.at = text, .end = text + bytes}};
        int line = ini_parse_stream(read_counted, &k, on_key_counted, &k);
        if (c.failed)
            failed = cli_usage(cli, "%s, line %u: %s", path, c.line, c.message);
        else if (line > 0)
            failed = cli_usage(cli, "%s, line %d: neither [section] nor key = value", path, line);
        else if (line < 0)
            failed = cli_usage(cli, "%s: cannot be parsed (no memory)", path);
    }
    return failed;
}

/* The file to read, or NULL; *must: it was named, so it has to be there. */
static char *config_path(const struct cli *cli, bool *must)
{
    const char *named = cli_text(cli, "--config", NULL), *home = getenv("HOME"), *xdg = getenv("XDG_CONFIG_HOME");
    if (named == NULL)
        named = getenv("INFERNIX_CONFIG");
    *must = named != NULL && named[0] != 0;
    if (named != NULL)
        return named[0] != 0 ? base_strdup(named) : NULL; /* INFERNIX_CONFIG= : none */
    if (xdg != NULL && xdg[0] == '/')
        return base_format("%s/infernix/infernix.ini", xdg);
    return home != NULL && home[0] == '/' ? base_format("%s/.config/infernix/infernix.ini", home) : NULL;
}

int cli_read_config(struct cli *cli)
{
    bool must = false;
    char *path = config_path(cli, &must), *text = NULL;
    uint64_t bytes = 0;
    struct cli_value *given = cli->values;
    uint32_t n_given = cli->n_values;
    if (path == NULL)
        return 0;
    if (!must && access(path, R_OK) != 0) {
        base_free(path);
        return 0;
    }
    cli->config_path = path;
    if (base_read_file(path, CONFIG_MAX_BYTES, &text, &bytes))
        return cli_usage(cli, "%s", base_error_text());
    /* The file's values go before those of the command line. */
    cli->values = NULL;
    cli->n_values = 0;
    int failed = cli_config_text(cli, path, text, bytes);
    base_free(text);
    uint32_t n = 0;
    for (; n < n_given && !failed; n++)
        failed = cli_add_value(cli, given[n].option, given[n].text, given[n].source, 0);
    for (n = 0; n < n_given; n++)
        base_free(given[n].text);
    base_free(given);
    return failed;
}
