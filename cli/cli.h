/* SPDX-License-Identifier: Apache-2.0
 *
 * cli.h - the `infernix` program: global options, a table of commands, option parsing.
 */
#ifndef INFERNIX_CLI_H
#define INFERNIX_CLI_H

#include "infernix.h"

/* One option of a command.  Values are kept as text until a getter parses them whole. */
struct cli; /* opaque: parsed command line and config */
struct cli_option {
    const char *name;  /* "--ctx" */
    const char *value; /* "N"; NULL: a switch */
    const char *help;  /* one line; defaults said here */
    bool repeatable;   /* false: the last one wins */
};
struct cli_command {
    const char *name;
    const char *synopsis; /* "[MODEL] [PROMPT] [options]" */
    const char *summary;  /* one line */
    const struct cli_option *options; /* ends with NULL name */
    const char *examples;             /* text at the end of --help */
    int (*run)(struct cli *cli);      /* exit status */
};
struct cli; /* opaque: parsed command line and config */

/* Positional arguments of the command. */
uint32_t cli_argc(const struct cli *cli);
const char *cli_arg(const struct cli *cli, uint32_t index);
/* Options: command line, then config file section [command] and [global], then default. */
bool cli_flag(const struct cli *cli, const char *name);
const char *cli_text(const struct cli *cli, const char *name, const char *fallback);
const char *const *cli_texts(const struct cli *cli, const char *name); /* repeatable: NULL-terminated */
/* Parsed whole, with range; a bad value prints the message and exits the command with 2 (returns nonzero here). */
int cli_int(struct cli *cli, const char *name, int64_t min, int64_t max, int64_t fallback, int64_t *out);
int cli_float(struct cli *cli, const char *name, double min, double max, double fallback, double *out);
bool cli_json(const struct cli *cli); /* --json given */

/* Context and model from the global options (--device, --threads, --cpu, --kv-dtype, --ctx, --plugin, ...).  On failure the message
 * was printed; returns the exit status, 0 on success.  The cli owns both. */
int cli_context(struct cli *cli, struct ifx_context **out);
/* --kv-dtype and --experts name formats that there are (cli_model asks too): 0, or 2 with the message printed.  After cli_context. */
int cli_check_formats(struct cli *cli);
int cli_model(struct cli *cli, const char *path, struct ifx_model **out);
/* Prints "infernix: COMMAND: <error text>" to stderr; returns 1 (2 for usage). */
int cli_fail(struct cli *cli);
int cli_usage(struct cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Progress line on a terminal, plain lines elsewhere. */
void cli_progress(struct cli *cli, const char *what, uint64_t done, uint64_t total);

/* One file a command. */
extern const struct cli_command cmd_run, cmd_chat, cmd_serve, cmd_tokenize, cmd_render, cmd_perplexity, cmd_trace, cmd_inspect,
    cmd_convert, cmd_plugins, cmd_bench, cmd_plan, cmd_calibrate;

#endif
