/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c - the table of commands, help, version, and what holds for every command.
 */
#include "config.h"
#include "cli_internal.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* A command is a row here and a file; the order is that of `infernix --help`. */
const struct cli_command *const cli_commands[] = {
    &cmd_run,     &cmd_chat,    &cmd_serve,   &cmd_bench,    &cmd_perplexity, &cmd_convert, &cmd_inspect,
    &cmd_plugins, &cmd_tokenize, &cmd_render, &cmd_trace,   &cmd_plan,   &cmd_calibrate,      NULL,
};

static void print_options(const struct cli_option *table)
{
    char left[64];
    for (; table != NULL && table->name != NULL; table++) {
        snprintf(left, sizeof left, "%s%s%s", table->name, table->value != NULL ? " " : "",
                 table->value != NULL ? table->value : "");
        if (strlen(left) > 24)
            printf("  %s\n  %-24s  %s\n", left, "", table->help);
        else
            printf("  %-24s  %s\n", left, table->help);
    }
}

static void print_help(const struct cli_command *c)
{
    if (c == NULL) {
        printf("infernix %s: runs Qwen3.5-family language models on one machine\n\n", PACKAGE_VERSION);
        printf("usage: infernix [options] COMMAND [MODEL] [arguments] [options]\n\n");
        printf("MODEL is a Hugging Face checkpoint folder or a .infernix file; without it the demo model is used.\n\ncommands:\n");
        for (uint32_t i = 0; cli_commands[i] != NULL; i++)
            printf("  %-12s  %s\n", cli_commands[i]->name, cli_commands[i]->summary);
        printf("\noptions of every command (before or after it; --name value or --name=value; the last one counts):\n");
        print_options(cli_global_options);
        printf("\nexamples:\n  infernix run \"Once upon a time\"\n  infernix chat\n  infernix run --help\n");
        return;
    }
    printf("usage: infernix %s %s\n\n%s\n", c->name, c->synopsis, c->summary);
    if (c->options != NULL && c->options->name != NULL) {
        printf("\noptions:\n");
        print_options(c->options);
    }
    printf("\noptions of every command:\n");
    print_options(cli_global_options);
    if (c->examples != NULL)
        printf("\nexamples:\n%s", c->examples);
}

static void print_version(void)
{
    printf("infernix %s\n", PACKAGE_VERSION);
    printf("plugin ABI: %u.%u, numerics revision %u\n", IFX_ABI_MAJOR, IFX_ABI_MINOR, IFX_NUMERICS_REVISION);
    printf("build: %s\n", registry_build_string);
    printf("compiler: %s\n", __VERSION__);
    printf("CPU levels built: %s\n", IFX_ISA_SUMMARY);
    printf("CPU level here: %s, %u usable CPUs\n", base_cpu_name(base_cpu_detect()), base_usable_cpus());
    printf("CUDA: %s\n", IFX_CUDA_SUMMARY);
#ifdef HAVE_LIBEDIT
    printf("line editing: libedit\n");
#else
    printf("line editing: no\n");
#endif
    printf("plugins: %s\n", IFX_PLUGINDIR);
}

static int set_log_level(struct cli *cli)
{
    static const char *const names[] = {"error", "warn", "info", "debug", NULL};
    const char *text = cli_text(cli, "--log-level", NULL);
    if (cli_flag(cli, "--quiet"))
        base_log_set_level(IFX_LOG_WARN);
    if (text == NULL)
        return 0;
    for (uint32_t i = 0; names[i] != NULL; i++) {
        if (strcmp(text, names[i]) == 0) {
            base_log_set_level(i);
            return 0;
        }
    }
    return cli_usage(cli, "--log-level: %s is not error, warn, info or debug", text);
}

static int dispatch(struct cli *cli, int argc, char **argv)
{
    int status = cli_parse(cli, argc, argv);
    if (status)
        return status;
    if (cli_flag(cli, "--version")) {
        print_version();
        return 0;
    }
    if (cli_flag(cli, "--help")) {
        print_help(cli->command);
        return 0;
    }
    if (cli->command == NULL)
        return cli_usage(cli, "no command; infernix --help lists them, infernix run \"Once upon a time\" tries the demo model");
    status = cli_read_config(cli);
    if (!status)
        status = set_log_level(cli);
    return status ? status : cli->command->run(cli);
}

/* A file opened under the number of a closed standard stream would get what is printed.  Opened the wrong way round, so
 * that reading and writing still fail. */
static bool hold_standard_streams(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            return false;
    return true;
}

int main(int argc, char **argv)
{
    struct cli cli = {0};
    if (!hold_standard_streams())
        return 1;
    cli_signals_init();
    int status = dispatch(&cli, argc, argv);
    bool unwritten = fflush(stdout) != 0 || ferror(stdout);
    if (unwritten && status == 0) {
        fprintf(stderr, "infernix: cannot write standard output: %m\n");
        status = 1;
    }
    cli_free(&cli);
    return status;
}
