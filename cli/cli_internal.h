/* SPDX-License-Identifier: Apache-2.0
 *
 * cli_internal.h - what the files of the program's frame share: the parsed command line and where each value came from.
 */
#ifndef INFERNIX_CLI_INTERNAL_H
#define INFERNIX_CLI_INTERNAL_H

#include "cli.h"

/* Where a value came from, weakest first. */
#define CLI_FROM_GLOBAL_SECTION  0u
#define CLI_FROM_COMMAND_SECTION 1u
#define CLI_FROM_COMMAND_LINE    2u

struct cli_value {
    const struct cli_option *option;
    char *text;      /* owned; switches: "1" or "0" */
    uint32_t source; /* CLI_FROM_* */
    uint32_t line;   /* of the config file, or 0 */
};

struct cli {
    const struct cli_command *command; /* NULL until it is known */
    struct cli_value *values;          /* in the order given, weakest source first */
    uint32_t n_values;
    const char **args; /* positional arguments of the command */
    uint32_t n_args;
    char *config_path; /* the file read, or NULL */
    const char ***lists; /* what cli_texts made */
    uint32_t n_lists;
    struct ifx_assist_section *assist_sections; /* made of values when a model is opened */
    struct ifx_context *context;
    struct ifx_model *model;
    uint32_t max_sequences;      /* for cli_model; 0: 1 */
    uint64_t prefix_cache_bytes; /* likewise; 0: no prefix is kept */
    /* progress line */
    double progress_last;
    bool progress_open;
    bool progress_shown;
};

extern const struct cli_command *const cli_commands[]; /* ends with NULL; main.c */
extern const struct cli_option cli_global_options[];   /* ends with a NULL name; options.c */
/* Keys of the config sections [assist.FORMAT]; their values are "FORMAT=TEXT".  options.c */
extern const struct cli_option cli_assist_columns, cli_assist_ramp;

/* The option of the command (may be NULL) or among the global ones that is spelled `name` ("--ctx", "-m"); NULL when there is none. */
const struct cli_option *cli_find_option(const struct cli_command *command, const char *name);
/* The long spelling: what follows ", " in "-m, --model". */
const char *cli_option_name(const struct cli_option *option);
/* Nearest option name for a message, or NULL. */
const char *cli_nearest_option(const struct cli_command *command, const char *name);

/* Adds a value; text NULL for a switch. */
int cli_add_value(struct cli *cli, const struct cli_option *option, const char *text, uint32_t source, uint32_t line);
/* Parses argv into cli: finds the command, takes options and positionals.  Returns the exit status, 0 when good. */
int cli_parse(struct cli *cli, int argc, char **argv);
/* Options in one text, as a shell would split it (quotes and backslashes), added as if given on the command line. */
int cli_parse_text(struct cli *cli, const char *text);
/* Reads the config file named by --config, INFERNIX_CONFIG or the user's folder, if any.  Returns the exit status. */
int cli_read_config(struct cli *cli);
/* Config file text; `path` is for messages. */
int cli_config_text(struct cli *cli, const char *path, const char *text, uint64_t bytes);

bool cli_from_command_line(const struct cli *cli, const char *name);

/* A copy of the parsed options (no context, no model, no positionals), for `bench --arm`. */
int cli_clone(const struct cli *from, struct cli *to);
void cli_free(struct cli *cli);

/* Ends a progress line on a terminal, so that other output starts on a line of its own. */
void cli_progress_end(struct cli *cli);

/* ---- sampling.c: what run and chat share ---- */
#define CLI_SAMPLING_OPTIONS                                                                                          \
    {"--temperature", "T", "0 is greedy (default: the model's, else 0.7)", false},                                    \
    {"--top-k", "N", "sample among the N best tokens, 0 for all (default: the model's, else 40)", false},             \
    {"--top-p", "P", "sample among the best tokens that hold this share (default: the model's, else 0.9)", false},    \
    {"--min-p", "P", "leave out tokens below this share of the best one's (default 0)", false},                       \
    {"--presence-penalty", "X", "taken from the logit of each token already generated (default 0)", false},           \
    {"--frequency-penalty", "X", "taken from it once for each time it was generated (default 0)", false},             \
    {"--repetition-penalty", "X", "divides the logits of tokens in prompt and answer (default 1)", false},            \
    {"--seed", "N", "seed of the random numbers (default: a new one, printed)", false},                               \
    {"--greedy", NULL, "always the best token", false},                                                               \
    {"--stop", "TEXT", "end before this text; may be repeated", true},                                                \
    {"--stop-id", "ID", "end at this token; may be repeated", true},                                                  \
    {"--ignore-eos", NULL, "go on past the model's own end tokens", false}

struct cli_generation {
    struct ifx_generate g;
    int32_t *stop_ids; /* owned */
};
/* Checks the sampling options; with a model, fills g from its defaults and them.  Returns the exit status. */
int cli_generation_options(struct cli *cli, const struct ifx_model *model, struct cli_generation *out);
void cli_generation_free(struct cli_generation *g);
const char *cli_finish_name(uint32_t finish);
double cli_rate(uint64_t tokens, double seconds); /* 0 when the time is 0 */

/* ---- report.c ---- */
/* One log line: the model, and what it runs on. */
void cli_log_setup(const struct ifx_model *model);
/* The same as an object: model, device, cpu, threads, formats, context, fallbacks.  NULL: no memory. */
json_t *cli_setup_json(struct cli *cli, const struct ifx_model *model);
/* Prints an object on standard output and gives up the reference; returns the exit status. */
int cli_print_json(struct cli *cli, json_t *object);

/* ---- input.c ---- */
/* A file of any kind, or standard input for "-"; 0-terminated, owned by the caller. */
int32_t cli_read_text(const char *path, char **text, uint64_t *bytes);
/* "1,2,3" (also with spaces), or a JSON array of numbers: ids from 0 to vocab - 1. */
int32_t cli_parse_ids(const char *text, const char *what, uint32_t vocab, int32_t **ids, uint64_t *n);
/* MODEL among the positionals by the rule of the manual: -m, or the first one when it names something that exists,
 * looks like a path (a slash and no space, or ends in .infernix or .safetensors), or has another one after it.  *next is the index of the first positional that is not MODEL. */
const char *cli_model_arg(const struct cli *cli, uint32_t *next);

/* cmd_tokenize.c: the tokenizer of --tokenizer, of `model`, or of the demo model. */
int32_t cli_open_tokenizer(struct cli *cli, const char *model, struct text_tokenizer **out);

/* signals.c: the first SIGINT asks long work to stop, the second ends the process at once. */
void cli_signals_init(void);
void cli_signals_reset(void);  /* chat: a new answer; forgets an interrupt */
bool cli_interrupted(void);

#endif
