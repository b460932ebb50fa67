/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_plan.c - what of a model would fit where on a machine, and how fast it would be: for people who decide on hardware.
 */
#include "config.h"
#include "chart.h"
#include "cli_internal.h"
#include "machine.h"
#include "synthetic.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define STAGING_BYTES (384.0 * 1048576) /* of records on their way */
#define OTHER_BYTES   (768.0 * 1048576) /* activations, kernels, the driver */
#define PROGRAM_BYTES (1024.0 * 1048576)
#define WIDTHS        128u
#define ARMS          4u

static const struct cli_option options[] = {
    {"--machine", "NAME[,K=V...]", "desktop, old or server, and keys that differ: vram, ram, link, latency, dram, cpu-flops, vram-bandwidth, flops, expert-flops, kernel", false},
    {"-p", "LIST", "prompt lengths in tokens (default 32 to 1100)", false},
    {"--dense", "FORMAT", "of all but the experts: bf16 or int8 (default bf16)", false},
    {"--zipf", "S", "routing: the expert of rank r is chosen in proportion to r^-S (default 0.7)", false},
    {"--plot", "FILE.svg", "draw the predicted curves", false},
    {"--csv", NULL, "report as CSV on standard output", false},
    {NULL, NULL, NULL, false},
};

struct arm {
    const char *name;
    uint32_t mode;
    const struct ifx_assist_policy *policy;
    struct predict_result results[WIDTHS];
    struct predict_result decode;
};
struct plan {
    struct cli *cli;
    struct synthetic s;
    struct geometry_sizes sizes;
    struct predict_machine machine;
    const char *machine_name;
    struct predict_model model;
    double dense_bytes, embed_bytes, kv_bytes, state_bytes, expert_bytes; /* in all */
    uint32_t ctx, resident, frames, n_widths, n_arms;
    uint32_t widths[WIDTHS];
    struct arm arms[ARMS];
    struct ifx_ramp_point points[PREDICT_POINTS];
    struct ifx_assist_policy own; /* that suits this machine */
    struct predict_routing routing;
};

/* ---- what fits ---- */

static void fill_model(struct plan *p, double value_bytes, double zipf)
{
    const struct geometry *g = &p->s.g;
    p->dense_bytes = (double)p->sizes.dense_values * value_bytes;
    p->embed_bytes = (double)p->sizes.embed_values * value_bytes;
    p->kv_bytes = (double)p->sizes.kv_layers * g->kv_heads * g->head_dim * 2 * 2 * p->ctx;
    p->state_bytes = (double)p->sizes.state_bytes;
    p->expert_bytes = (double)g->layers * g->experts * (double)p->sizes.record_bytes;
    p->model = (struct predict_model){.layers = g->layers, .experts = g->experts, .top_k = g->top_k, .hidden = g->hidden,
                                      .record_bytes = (double)p->sizes.record_bytes,
                                      .expert_flops = 2.0 * (double)p->sizes.expert_values, .dense_bytes = p->dense_bytes,
                                      .dense_flops = 2.0 * (double)p->sizes.dense_values, .head_bytes = p->embed_bytes / 2,
                                      .zipf = zipf};
}

static int fit(struct plan *p)
{
    const struct predict_machine *m = &p->machine;
    double fixed = p->dense_bytes + p->embed_bytes + p->kv_bytes + p->state_bytes + OTHER_BYTES;
    double room = m->vram - fixed - STAGING_BYTES;
    uint32_t all = p->s.g.layers * p->s.g.experts;
    if (room < 0) {
        base_error(IFX_ELIMIT, "%s does not fit: %.1f GiB of device memory are needed before any expert, there are %.1f; lower --ctx, take "
                   "--dense int8 or a larger card", p->s.g.description, (fixed + STAGING_BYTES) / 1073741824, m->vram / 1073741824);
        return cli_fail(p->cli);
    }
    if (p->expert_bytes + PROGRAM_BYTES > m->ram) {
        base_error(IFX_ELIMIT, "%s does not fit: its experts take %.1f GiB of RAM, there are %.1f", p->s.g.description,
                   (p->expert_bytes + PROGRAM_BYTES) / 1073741824, m->ram / 1073741824);
        return cli_fail(p->cli);
    }
    double frames = room / p->model.record_bytes;
    p->frames = frames < all ? (uint32_t)frames : all;
    p->resident = p->frames / p->s.g.layers;
    return 0;
}

static void gib(const char *where, const char *what, double bytes)
{
    printf("%-6s %-36s %8.2f GiB\n", where, what, bytes / 1073741824);
}

static void print_fit(const struct plan *p)
{
    const struct geometry *g = &p->s.g;
    printf("%s, %u layers, %u experts a layer (top-%u), %s records of %.2f MB; on %s\n\n", g->description, g->layers, g->experts,
           g->top_k, p->s.format, p->model.record_bytes * 1e-6, p->machine_name);
    gib("VRAM", "layers without experts", p->dense_bytes);
    gib("", "embedding and head", p->embed_bytes);
    gib("", "KV cache (bf16) and state", p->kv_bytes + p->state_bytes);
    gib("", "activations, kernels, driver", OTHER_BYTES);
    gib("", "records on their way", STAGING_BYTES);
    gib("", "expert frames", p->frames * p->model.record_bytes);
    printf("       %u of %u experts (%.0f %%): %u of each layer's %u\n", p->frames, g->layers * g->experts,
           100.0 * p->frames / (g->layers * g->experts), p->resident, g->experts);
    gib("RAM", "all experts", p->expert_bytes);
    gib("", "the program", PROGRAM_BYTES);
    printf("\n");
}

/* ---- the curves ---- */

static int32_t predict(struct plan *p, struct arm *a, uint32_t n, struct predict_result *out)
{
    struct predict_call c = {.model = &p->model, .machine = &p->machine, .routing = &p->routing, .policy = a->policy,
                             .mode = a->mode, .resident = p->resident, .n = n};
    return predict_step(&c, out);
}

static int32_t predict_all(struct plan *p, const struct ifx_assist_policy *registered)
{
    struct predict_call c = {.model = &p->model, .machine = &p->machine, .routing = &p->routing, .policy = registered,
                             .mode = OFFLOAD_ASSIST_RAMP, .resident = p->resident, .n = 1};
    int32_t st = predict_policy(&c, p->points, &p->own);
    p->arms[0] = (struct arm){.name = "ramp of the bank", .mode = OFFLOAD_ASSIST_RAMP, .policy = registered};
    p->arms[1] = (struct arm){.name = "ramp for this machine", .mode = OFFLOAD_ASSIST_RAMP, .policy = &p->own};
    p->arms[2] = (struct arm){.name = "balance", .mode = OFFLOAD_ASSIST_BALANCE, .policy = registered};
    p->arms[3] = (struct arm){.name = "no help of the CPU", .mode = OFFLOAD_ASSIST_OFF, .policy = registered};
    p->n_arms = ARMS;
    for (uint32_t i = 0; i < p->n_arms; i++) {
        for (uint32_t w = 0; w < p->n_widths && st == IFX_OK; w++)
            st = predict(p, &p->arms[i], p->widths[w], &p->arms[i].results[w]);
        if (st == IFX_OK)
            st = predict(p, &p->arms[i], 1, &p->arms[i].decode);
    }
    return st;
}

static double rate(const struct plan *p, uint32_t arm, uint32_t width)
{
    return p->widths[width] / p->arms[arm].results[width].seconds;
}

static void print_table(const struct plan *p)
{
    printf("predicted prompt speed in tok/s (one call of so many columns), and where the missing experts of a layer go with the bank's ramp\n");
    printf("%7s", "COLUMNS");
    for (uint32_t i = 0; i < p->n_arms; i++)
        printf(" %22s", p->arms[i].name);
    printf(" %6s %6s %6s\n", "HITS", "LINK", "CPU");
    for (uint32_t w = 0; w < p->n_widths; w++) {
        const struct predict_result *r = &p->arms[0].results[w];
        printf("%7u", p->widths[w]);
        for (uint32_t i = 0; i < p->n_arms; i++)
            printf(" %22.1f", rate(p, i, w));
        printf(" %6.1f %6.1f %6.1f\n", r->hits, r->link_experts, r->cpu_experts);
    }
    printf("\ndecode: %.1f tok/s, %.1f of %u experts of a layer found on the device\n", 1 / p->arms[0].decode.seconds,
           p->arms[0].decode.hits, p->s.g.top_k);
    if (!p->own.n_points)
        printf("for this machine: --assist off%s", p->frames == p->s.g.layers * p->s.g.experts ? ": every expert is on the device" : "");
    else
        printf("for this machine: --assist-max-columns %u --assist-ramp ", p->own.max_columns);
    for (uint32_t i = 0; i < p->own.n_points; i++)
        printf("%s%u:%u", i ? "," : "", p->points[i].columns, p->points[i].share);
    char *device = machine_sim_options(&p->machine);
    printf("\nas a pretended device: --device sim,%s\n", device ? device : "");
    base_free(device);
}

static void print_csv(const struct plan *p)
{
    char n[4][32];
    printf("columns,ramp,machine_ramp,balance,off,hits,link_experts,cpu_experts\n");
    for (uint32_t w = 0; w < p->n_widths; w++) {
        const struct predict_result *r = &p->arms[0].results[w];
        for (uint32_t i = 0; i < ARMS; i++)
            base_format_f64(n[i], rate(p, i, w));
        printf("%u,%s,%s,%s,%s,%.2f,%.2f,%.2f\n", p->widths[w], n[0], n[1], n[2], n[3], r->hits, r->link_experts, r->cpu_experts);
    }
}

static int print_json(const struct plan *p)
{
    static const char *const keys[ARMS] = {"ramp", "machine_ramp", "balance", "off"};
    json_t *rows = json_array(), *ramp = json_array();
    for (uint32_t w = 0; w < p->n_widths; w++) {
        const struct predict_result *r = &p->arms[0].results[w];
        json_t *row = json_pack("{s:I, s:f, s:f, s:f, s:f, s:f}", "columns", (json_int_t)p->widths[w], "hits", r->hits, "link_experts",
                                r->link_experts, "cpu_experts", r->cpu_experts, "link_busy", r->link_busy, "cpu_busy", r->cpu_busy);
        for (uint32_t i = 0; i < ARMS; i++)
            json_object_set_new(row, keys[i], json_real(rate(p, i, w)));
        json_array_append_new(rows, row);
    }
    for (uint32_t i = 0; i < p->own.n_points; i++)
        json_array_append_new(ramp, json_pack("[I, I]", (json_int_t)p->points[i].columns, (json_int_t)p->points[i].share));
    return cli_print_json(p->cli, json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:f, s:f, s:I, s:o, s:o}", "geometry",
                                            p->s.g.name, "machine", p->machine_name, "dense_bytes", p->dense_bytes, "embed_bytes",
                                            p->embed_bytes, "kv_bytes", p->kv_bytes, "state_bytes", p->state_bytes, "expert_bytes",
                                            p->expert_bytes, "frames", (json_int_t)p->frames, "experts",
                                            (json_int_t)p->s.g.layers * p->s.g.experts, "decode_tokens_per_second",
                                            1 / p->arms[0].decode.seconds, "decode_hits", p->arms[0].decode.hits, "max_columns",
                                            (json_int_t)p->own.max_columns, "ramp", ramp, "curve", rows));
}

static int32_t plot(struct plan *p, const char *path)
{
    struct chart c = {.title = "Predicted prompt speed", .x_label = "columns of one call", .y_label = "tokens a second"};
    char limits[2][64];
    char *subtitle = base_format("%s, experts %s, %.0f %% of them on the device; machine: %s", p->s.g.description, p->s.format,
                                 100.0 * p->frames / (p->s.g.layers * p->s.g.experts), p->machine_name);
    int32_t st = subtitle ? IFX_OK : IFX_ENOMEM;
    c.subtitle = subtitle;
    for (uint32_t i = 0; i < p->n_arms && st == IFX_OK; i++) {
        struct chart_series *s = &c.series[c.n_series++];
        *s = (struct chart_series){.name = p->arms[i].name, .n = p->n_widths, .dashed = i == 3};
        s->points = base_calloc(p->n_widths, sizeof *s->points);
        st = s->points ? IFX_OK : IFX_ENOMEM;
        for (uint32_t w = 0; w < p->n_widths && st == IFX_OK; w++)
            s->points[w] = (struct chart_point){p->widths[w], rate(p, i, w), rate(p, i, w), rate(p, i, w)};
    }
    for (uint32_t i = 0; i < 2; i++) {
        snprintf(limits[i], sizeof limits[i], "%s: up to %u", p->arms[i].name, p->arms[i].policy->max_columns);
        c.marks[c.n_marks++] = (struct chart_mark){p->arms[i].policy->max_columns, limits[i]};
    }
    if (st == IFX_OK)
        st = chart_write(&c, path);
    for (uint32_t i = 0; i < c.n_series; i++)
        base_free(c.series[i].points);
    base_free(subtitle);
    return st;
}

/* ---- set-up ---- */

static int read_widths(struct plan *p)
{
    const char *text = cli_text(p->cli, "-p", "32,48,64,96,128,160,192,224,255,256,288,320,384,448,512,575,576,640,704,768,896,1023,1100");
    int32_t *list = NULL;
    uint64_t n = 0;
    if (cli_parse_ids(text, "-p", 8193, &list, &n))
        return cli_usage(p->cli, "%s", base_error_text());
    bool none = false;
    for (uint64_t i = 0; i < n && p->n_widths < WIDTHS; i++) {
        none |= list[i] < 1;
        p->widths[p->n_widths++] = (uint32_t)list[i];
    }
    base_free(list);
    if (none)
        return cli_usage(p->cli, "-p: lengths are 1 to 8192 tokens");
    return n > WIDTHS || !n ? cli_usage(p->cli, "-p: 1 to %u lengths", WIDTHS) : 0;
}

static int set_up(struct plan *p, const struct ifx_assist_policy **registered)
{
    struct cli *cli = p->cli;
    const char *dense = cli_text(cli, "--dense", "bf16"), *format = cli_text(cli, "--experts", NULL);
    const struct registry_plugin *bank;
    struct ifx_context *context;
    int64_t ctx;
    double zipf;
    if (cli_argc(cli) != 1)
        return cli_usage(cli, "%s geometry is needed: 35b-a3b, 122b-a10b or flash-next", cli_argc(cli) ? "one" : "a");
    if (synthetic_parse("geometry", cli_arg(cli, 0), &p->s) ||
        machine_parse("--machine", cli_text(cli, "--machine", "desktop"), &p->machine, &p->machine_name))
        return cli_usage(cli, "%s", base_error_text());
    if (strcmp(dense, "bf16") != 0 && strcmp(dense, "int8") != 0)
        return cli_usage(cli, "--dense: %s is neither bf16 nor int8", dense);
    if (cli_int(cli, "--ctx", 1, 1 << 24, 32768, &ctx) || cli_float(cli, "--zipf", 0, 4, p->s.zipf > 0 ? p->s.zipf : 0.7, &zipf))
        return 2;
    p->ctx = (uint32_t)ctx;
    p->s.g.vocab = 248320;
    if (format != NULL)
        snprintf(p->s.format, sizeof p->s.format, "%.31s", format);
    int failed = read_widths(p);
    if (!failed)
        failed = cli_context(cli, &context);
    if (failed)
        return failed;
    if (registry_find(ifx_context_registry(context), IFX_KIND_EXPERT, p->s.format, &bank) ||
        geometry_sizes(context, &p->s.g, p->s.format, &p->sizes))
        return cli_usage(cli, "%s", base_error_text());
    *registered = registry_policy(bank->ops.expert);
    fill_model(p, strcmp(dense, "int8") == 0 ? 1.0625 : 2, zipf);
    return fit(p);
}

static int run(struct cli *cli)
{
    struct plan *p = base_calloc(1, sizeof *p);
    const struct ifx_assist_policy *registered = NULL;
    const char *path = cli_text(cli, "--plot", NULL);
    uint32_t widest = 1100;
    if (p == NULL)
        return cli_fail(cli);
    p->cli = cli;
    int status = set_up(p, &registered);
    for (uint32_t w = 0; w < p->n_widths; w++)
        widest = p->widths[w] > widest ? p->widths[w] : widest;
    if (!status && (predict_routing_create(&p->model, widest, &p->routing) || predict_all(p, registered) ||
                    (path != NULL && plot(p, path))))
        status = cli_fail(cli);
    if (!status && cli_json(cli))
        status = print_json(p);
    else if (!status && cli_flag(cli, "--csv"))
        print_csv(p);
    else if (!status) {
        print_fit(p);
        print_table(p);
    }
    predict_routing_destroy(&p->routing);
    base_free(p);
    return status;
}

const struct cli_command cmd_plan = {
    "plan",
    "GEOMETRY [--machine NAME,K=V...] [options]",
    "what of a model would fit where on a machine, and how fast it would be",
    options,
    "  infernix plan 122b-a10b\n"
    "  infernix plan 122b-a10b --machine desktop,vram=24G,link=12G --plot curve.svg\n"
    "  infernix plan 35b-a3b --experts int8 --machine old --json\n",
    run,
};
