/* SPDX-License-Identifier: Apache-2.0
 *
 * context.c - the process context and the model that the global options ask for; messages; progress lines.
 */
#include "config.h"
#include "cli_internal.h"
#include "policy.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void print_error(struct cli *cli, const char *text)
{
    cli_progress_end(cli);
    fflush(stdout);
    if (cli->command != NULL)
        fprintf(stderr, "infernix: %s: %s\n", cli->command->name, text);
    else
        fprintf(stderr, "infernix: %s\n", text);
}

int cli_fail(struct cli *cli)
{
    const char *text = base_error_text();
    if (cli_interrupted()) {
        print_error(cli, "interrupted");
        return 130;
    }
    print_error(cli, text[0] != 0 ? text : "failed, and nothing said why");
    return 1;
}

int cli_usage(struct cli *cli, const char *format, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    print_error(cli, text);
    return 2;
}

/* What the user named wrongly is wrong usage; what went wrong with it is a failure. */
static int fail_named(struct cli *cli, int32_t status)
{
    if (status == IFX_EINVAL || status == IFX_ENOTFOUND)
        return cli_usage(cli, "%s", base_error_text());
    return cli_fail(cli);
}

/* One CPU a thread is right when this process is meant to have them all, and wrong when a quota or the user leaves room for
 * others: two such processes would sit on the same CPUs. */
static bool want_pin(const struct cli *cli, int64_t threads)
{
    if (cli_flag(cli, "--pin"))
        return true;
    if (cli_flag(cli, "--no-pin") || threads != 0)
        return false;
    return base_allowed_cpus() == base_usable_cpus();
}

int cli_context(struct cli *cli, struct ifx_context **out)
{
    struct ifx_context_options o = {.cpu = cli_text(cli, "--cpu", NULL), .plugins = cli_texts(cli, "--plugin")};
    const char *path = cli_text(cli, "--plugin-path", NULL);
    int64_t threads;
    *out = cli->context;
    if (cli->context != NULL)
        return 0;
    if (cli_int(cli, "--threads", 0, 1024, 0, &threads))
        return 2;
    if (cli_from_command_line(cli, "--plugin-path"))
        o.plugin_path = path;
    else
        o.config_plugin_path = path;
    o.threads = (uint32_t)threads;
    o.pin = want_pin(cli, threads);
    int32_t st = ifx_context_create(&o, &cli->context);
    if (st != IFX_OK) {
        cli->context = NULL;
        return fail_named(cli, st);
    }
    *out = cli->context;
    return 0;
}

static void load_progress(void *ctx, uint64_t done, uint64_t total)
{
    cli_progress(ctx, "loading", done, total);
}

int cli_check_formats(struct cli *cli)
{
    struct registry *r = ifx_context_registry(cli->context);
    const char *kv = cli_text(cli, "--kv-dtype", NULL), *experts = cli_text(cli, "--experts", NULL);
    const struct registry_plugin *found;
    int32_t st = kv != NULL ? registry_find(r, IFX_KIND_KV, kv, &found) : IFX_OK;
    if (st != IFX_OK)
        return fail_named(cli, base_error_prefix(st, "--kv-dtype"));
    st = experts != NULL ? registry_find(r, IFX_KIND_EXPERT, experts, &found) : IFX_OK;
    return st != IFX_OK ? fail_named(cli, base_error_prefix(st, "--experts")) : 0;
}

/* Only the name: number and options are the device's to judge. */
static int check_device(struct cli *cli, const char *text)
{
    static const char *const devices[] = {"auto", "cpu", "ref", "cuda", "sim", NULL};
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(text, ",:"), text);
    const char *near = base_nearest(name, devices);
    for (uint32_t i = 0; devices[i] != NULL; i++)
        if (strcmp(name, devices[i]) == 0)
            return 0;
    if (near != NULL)
        return cli_usage(cli, "--device: there is no device %s; did you mean %s?", name, near);
    return cli_usage(cli, "--device: there is no device %s; there are auto, cpu, ref, cuda and sim", name);
}

static int read_bytes(struct cli *cli, const char *name, uint64_t *out)
{
    const char *text = cli_text(cli, name, NULL);
    *out = 0;
    return text != NULL && base_parse_bytes(text, name, out) ? cli_usage(cli, "%s", base_error_text()) : 0;
}

/* Later values of a format stand before earlier ones: what counts most is found first. */
static int assist_sections(struct cli *cli, struct ifx_offload_options *o)
{
    uint64_t bytes = ((uint64_t)cli->n_values + 1) * sizeof *cli->assist_sections;
    for (uint32_t i = 0; i < cli->n_values; i++)
        bytes += strlen(cli->values[i].text) + 1;
    base_free(cli->assist_sections);
    cli->assist_sections = base_calloc(bytes, 1);
    if (cli->assist_sections == NULL)
        return cli_fail(cli);
    char *text = (char *)(cli->assist_sections + cli->n_values + 1);
    for (uint32_t i = cli->n_values; i > 0; i--) {
        const struct cli_value *v = &cli->values[i - 1];
        bool columns = v->option == &cli_assist_columns;
        int64_t n = 0;
        if (!columns && v->option != &cli_assist_ramp)
            continue;
        memcpy(text, v->text, strlen(v->text) + 1);
        char *value = strchr(text, '=');
        *value++ = 0;
        if (columns && base_parse_i64(value, "max-columns", 1, 1 << 16, &n))
            return cli_fail(cli);
        cli->assist_sections[o->n_sections++] =
            (struct ifx_assist_section){.format = text, .max_columns = (uint32_t)n, .ramp = columns ? NULL : value};
        text = value + strlen(value) + 1;
    }
    o->sections = cli->assist_sections;
    return 0;
}

static int offload_options(struct cli *cli, struct ifx_offload_options *o)
{
    int64_t columns, threads, frames;
    uint32_t mode;
    *o = (struct ifx_offload_options){.assist = cli_text(cli, "--assist", NULL),
                                      .assist_ramp = cli_text(cli, "--assist-ramp", NULL),
                                      .deterministic = cli_flag(cli, "--deterministic"),
                                      .expert_state = cli_text(cli, "--expert-state", NULL),
                                      .no_expert_state = cli_flag(cli, "--no-expert-state")};
    if (cli_int(cli, "--assist-max-columns", 1, 1 << 16, 0, &columns) || cli_int(cli, "--cpu-threads", 0, 1024, 0, &threads) ||
        cli_int(cli, "--expert-frames", 0, UINT32_MAX, 0, &frames) ||
        read_bytes(cli, "--vram-budget", &o->vram_budget) || read_bytes(cli, "--ram-budget", &o->ram_budget) ||
        read_bytes(cli, "--pin-experts", &o->most_pinned))
        return 2;
    o->assist_max_columns = (uint32_t)columns;
    o->cpu_threads = (uint32_t)threads;
    o->limit_pinned = cli_text(cli, "--pin-experts", NULL) != NULL;
    o->limit_frames = cli_text(cli, "--expert-frames", NULL) != NULL;
    o->most_frames = (uint32_t)frames;
    struct offload_policy policy;
    static const struct ifx_ramp_point point = {1, 0};
    static const struct ifx_assist_policy any = {.struct_size = sizeof any, .max_columns = 1, .n_points = 1, .points = &point};
    if (offload_mode_parse(o->assist, &mode) || (o->assist_ramp != NULL && offload_policy_make(&any, 0, o->assist_ramp, &policy)))
        return cli_usage(cli, "%s", base_error_text());
    return assist_sections(cli, o);
}

int cli_model(struct cli *cli, const char *path, struct ifx_model **out)
{
    struct ifx_context *context;
    int64_t ctx, chunk, rows;
    *out = cli->model;
    if (cli->model != NULL)
        return 0;
    if (cli_int(cli, "--ctx", 1, 1 << 24, 0, &ctx) || cli_int(cli, "--prefill-chunk", 1, 1 << 16, 0, &chunk) ||
        cli_int(cli, "--ngram-cache-mib", 0, 1 << 20, 64, &rows))
        return 2;
    int failed = cli_context(cli, &context);
    if (failed)
        return failed;
    struct ifx_model_options o = {.path = path,
                                  .device = cli_text(cli, "--device", "auto"),
                                  .kv_dtype = cli_text(cli, "--kv-dtype", NULL),
                                  .experts = cli_text(cli, "--experts", NULL),
                                  .ctx = (uint32_t)ctx,
                                  .prefill_chunk = (uint32_t)chunk,
                                  .max_sequences = cli->max_sequences,
                                  .prefix_cache_bytes = cli->prefix_cache_bytes,
                                  .no_graph = cli_flag(cli, "--no-cuda-graph"),
                                  .table_cache_bytes = rows ? (uint64_t)rows << 20 : IFX_NO_TABLE_CACHE,
                                  .progress = load_progress,
                                  .progress_ctx = cli};
    failed = check_device(cli, o.device);
    if (!failed)
        failed = offload_options(cli, &o.offload);
    if (!failed)
        failed = cli_check_formats(cli);
    if (failed)
        return failed;
    int32_t st = ifx_model_open(context, &o, &cli->model);
    cli_progress_end(cli);
    if (st != IFX_OK) {
        cli->model = NULL;
        return cli_fail(cli);
    }
    *out = cli->model;
    return 0;
}

/* ---- progress ---- */

#define PROGRESS_TTY_SECONDS  0.1
#define PROGRESS_LINE_SECONDS 5.0

void cli_progress_end(struct cli *cli)
{
    if (cli->progress_open)
        fputs("\r\033[K", stderr);
    cli->progress_open = false;
    cli->progress_last = 0;
}

void cli_progress(struct cli *cli, const char *what, uint64_t done, uint64_t total)
{
    double now = base_now();
    bool tty = isatty(STDERR_FILENO) == 1;
    double every = tty ? PROGRESS_TTY_SECONDS : PROGRESS_LINE_SECONDS;
    if (cli_flag(cli, "--quiet"))
        return;
    if (cli->progress_last == 0)
        cli->progress_last = now; /* short work shows no line at all */
    if (now - cli->progress_last < every)
        return;
    cli->progress_last = now;
    double percent = total > 0 ? 100.0 * (double)done / (double)total : 0;
    if (tty) {
        fprintf(stderr, "\r\033[Kinfernix: %s %.0f %%", what, percent);
        cli->progress_open = true;
    } else {
        fprintf(stderr, "infernix: %s %.0f %%\n", what, percent);
    }
}
