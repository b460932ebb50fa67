/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_convert.c - `infernix convert`: a checkpoint or a .infernix file to a .infernix file.
 */
#include "config.h"
#include "model_on_disk.h"
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* What the report of one layer adds up to. */
struct layer_sum {
    int32_t layer;
    uint64_t dense_bytes, int8_bytes, expert_bytes;
    uint32_t n_int8;
    double dense_worst, expert_rms;
    const char *expert_format;
};
struct conversion {
    struct cli *cli;
    struct layer_sum *layers; /* [0]: outside the layers */
    uint32_t n_layers;
    json_t *json; /* every report, or NULL */
    struct base_buf quantised;
    bool failed;
};

static int32_t on_progress(void *ctx, uint64_t done, uint64_t total, const char *what)
{
    struct conversion *v = ctx;
    char text[64];
    snprintf(text, sizeof text, "converting %s", what);
    cli_progress(v->cli, text, done, total);
    return base_cancelled();
}

static void on_report(void *ctx, int32_t layer, const char *what, const char *format, uint64_t bytes, double rel_rms)
{
    struct conversion *v = ctx;
    struct layer_sum *s = &v->layers[layer >= 0 && (uint32_t)layer < v->n_layers ? layer + 1 : 0];
    bool experts = strcmp(what, "experts") == 0, int8 = !experts && strcmp(format, "int8") == 0;
    s->layer = layer;
    if (experts) {
        s->expert_bytes += bytes;
        s->expert_rms = rel_rms;
        s->expert_format = format;
    } else {
        s->dense_bytes += bytes;
        s->int8_bytes += int8 ? bytes : 0;
        s->n_int8 += int8;
        if (rel_rms > s->dense_worst)
            s->dense_worst = rel_rms;
    }
    if (int8 && base_buf_addf(&v->quantised, "%s  %s", v->quantised.len ? "\n" : "", what) != IFX_OK)
        v->failed = true;
    if (v->json != NULL)
        json_array_append_new(v->json, json_pack("{s:i, s:s, s:s, s:I, s:f}", "layer", layer, "what", what, "format",
                                                 format, "bytes", (json_int_t)bytes, "rel_rms", rel_rms));
}

static uint64_t file_bytes(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

static void print_rms(double rms)
{
    if (rms > 0)
        printf("  %8.5f", rms);
    else
        printf("  %8s", "exact");
}

static void print_layers(const struct conversion *v)
{
    printf("%-6s  %10s  %8s  %4s  %10s  %8s  %s\n", "LAYER", "DENSE", "ERROR", "INT8", "EXPERTS", "ERROR", "FORMAT");
    for (uint32_t i = 0; i <= v->n_layers; i++) {
        const struct layer_sum *s = &v->layers[i];
        char dense[32], experts[32], name[16];
        text_bytes(dense, s->dense_bytes);
        text_bytes(experts, s->expert_bytes);
        snprintf(name, sizeof name, "%u", i - 1);
        printf("%-6s  %10s", i ? name : "-", dense);
        print_rms(s->dense_worst);
        printf("  %4u", s->n_int8);
        if (s->expert_bytes) {
            printf("  %10s", experts);
            print_rms(s->expert_rms);
            printf("  %s", s->expert_format);
        }
        printf("\n");
    }
    printf("ERROR: relative RMS against the source; of the worst dense matrix (all its rows), of 16 rows of each expert "
           "matrix; exact: copied or imported bit for bit.\n");
    if (v->quantised.len > 0)
        printf("quantised to int8:\n%s\n", v->quantised.data);
}

static int print_result(const struct conversion *v, const struct model_on_disk *m, const char *out, double seconds)
{
    char bytes[32];
    if (v->json != NULL) {
        json_t *all = json_pack("{s:s, s:s, s:I, s:f, s:O}", "from", artifact_path(m->artifact), "to", out, "bytes",
                                (json_int_t)file_bytes(out), "seconds", seconds, "parts", v->json);
        int bad = all == NULL || json_dumpf(all, stdout, JSON_INDENT(2)) != 0 || printf("\n") < 0;
        json_decref(all);
        return bad ? base_error(IFX_EIO, "cannot write the JSON text") : 0;
    }
    if (!cli_flag(v->cli, "--quiet"))
        print_layers(v);
    text_bytes(bytes, file_bytes(out));
    printf("%s: %s in %.1f s\n", out, bytes, seconds);
    return 0;
}

/* Format of the experts to write; NULL for a dense model. */
static int pick_experts(struct cli *cli, const struct model_on_disk *m, const char **format)
{
    const char *wanted = cli_text(cli, "--experts", NULL), *stored = artifact_expert_format(m->artifact);
    *format = NULL;
    if (m->desc->n_moe == 0) {
        if (wanted != NULL)
            return cli_usage(cli, "--experts %s: %s has no experts", wanted, artifact_path(m->artifact));
        return 0;
    }
    *format = wanted ? wanted : stored;
    if (*format == NULL)
        return cli_usage(cli, "%s: the config declares experts, but none are stored", artifact_path(m->artifact));
    return 0;
}

static int convert_with(struct cli *cli, struct ifx_context *context, struct model_on_disk *m, const char *out)
{
    struct model_bank bank = {0}, source = {0};
    struct conversion v = {.cli = cli, .n_layers = m->desc->n_layers};
    const char *format, *stored = artifact_expert_format(m->artifact);
    double start = base_now();
    int rc = pick_experts(cli, m, &format);
    if (rc)
        return rc;
    int32_t status = format ? model_bank_open(context, m->desc, format, &bank) : IFX_OK;
    /* Records in another format are read through the bank that wrote them. */
    if (status == IFX_OK && format && artifact_is_container(m->artifact) && stored && strcmp(stored, format) != 0) {
        status = model_bank_open(context, m->desc, stored, &source);
        if (status == IFX_OK)
            status = artifact_set_bank(m->artifact, source.ops, source.bank);
    }
    v.layers = base_calloc((uint64_t)v.n_layers + 1, sizeof *v.layers);
    v.json = cli_json(cli) ? json_array() : NULL;
    if (v.layers == NULL)
        status = IFX_ENOMEM;
    struct artifact_convert c = {
        .out_path = out, .force = cli_flag(cli, "--force"), .desc = m->desc, .bank_ops = bank.ops, .bank = bank.bank,
        .dense = cli_text(cli, "--dense", NULL), .dense_named = cli_texts(cli, "--dense-named"),
        .pool = ifx_context_pool(context), .progress = on_progress, .report = on_report, .ctx = &v,
    };
    if (status == IFX_OK)
        status = artifact_convert(m->artifact, &c);
    if (status == IFX_OK && v.failed)
        status = IFX_ENOMEM;
    if (status == IFX_OK)
        status = print_result(&v, m, out, base_now() - start);
    rc = status == IFX_OK ? 0 : cli_fail(cli);
    base_free(v.layers);
    base_buf_free(&v.quantised);
    json_decref(v.json);
    model_bank_close(&bank);
    model_bank_close(&source);
    return rc;
}

static int run_convert(struct cli *cli)
{
    struct ifx_context *context;
    struct model_on_disk m;
    const char *dense = cli_text(cli, "--dense", NULL);
    if (cli_argc(cli) != 2)
        return cli_usage(cli, "MODEL and OUT.infernix are needed, %u arguments were given", cli_argc(cli));
    if (dense != NULL && strcmp(dense, "bf16") != 0 && strcmp(dense, "int8") != 0)
        return cli_usage(cli, "--dense %s: bf16 and int8 are known", dense);
    const char *const *named = cli_texts(cli, "--dense-named");
    if (named != NULL && *named != NULL && (dense == NULL || strcmp(dense, "int8") != 0))
        return cli_usage(cli, "--dense-named needs --dense int8");
    int rc = cli_context(cli, &context);
    if (!rc)
        rc = cli_check_formats(cli);
    if (rc)
        return rc;
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is a failed write, which is cleaned up */
    if (model_on_disk_open(context, cli_arg(cli, 0), &m) != IFX_OK)
        return cli_fail(cli);
    rc = convert_with(cli, context, &m, cli_arg(cli, 1));
    model_on_disk_close(&m);
    return rc;
}

static const struct cli_option convert_options[] = {
    {"--dense", "FORMAT", "dense matrices and head: bf16 or int8 (default: as stored, FP8 and other floats as bf16)", false},
    {"--dense-named", "NAME", "with --dense int8: quantise these as well, which are kept otherwise (router, gates, "
                              "q_proj with its gate half, in_proj_a, in_proj_b); a name or a part between dots; may be "
                              "repeated", true},
    {"--force", NULL, "overwrite OUT.infernix", false},
    {NULL, NULL, NULL, false},
};

const struct cli_command cmd_convert = {
    .name = "convert",
    .synopsis = "MODEL OUT.infernix [--experts FORMAT] [--dense bf16|int8] [--force] [--json]",
    .summary = "write a model as one .infernix file",
    .options = convert_options,
    .examples = "  infernix convert Qwen3.5-35B-A3B q35.infernix --experts nvfp4\n"
                "  infernix convert Qwen3.5-27B q27.infernix --dense int8\n"
                "  infernix convert q35.infernix q35-int8.infernix --experts int8\n",
    .run = run_convert,
};
