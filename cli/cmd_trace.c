/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_trace.c - token ids in; logits, hidden states and router choices out, as a safetensors file: for people who port or
 * check a model.
 */
#include "config.h"
#include "cli_internal.h"
#include <stdio.h>
#include <string.h>

static const struct cli_option options[] = {
    {"-m, --model", "MODEL", "the model, when it should not be the first argument", false},
    {"--ids", "LIST", "token ids: 1,2,3 or a JSON array", false},
    {"--text", "TEXT", "a text instead, encoded without special tokens", false},
    {"-f, --file", "FILE", "a text from a file (- is standard input)", false},
    {"-o, --out", "FILE", "the safetensors file to write", false},
    {"--force", NULL, "overwrite it", false},
    {NULL, NULL, NULL, false},
};

struct trace_router {
    uint32_t layer, top_k;
    int32_t *ids;
    float *weights;
};

struct trace {
    struct cli *cli;
    struct ifx_model *model;
    const struct ifx_model_desc *desc;
    struct ifx_sequence *sequence;
    int32_t *ids;
    uint64_t n;
    float *logits;
    float **hidden; /* [n_layers + 1]: the embedding, then after each layer */
    struct trace_router *routers;
    int32_t **selection; /* [n_kv_layers] of [n, index_rows], -1 past the last; NULL: every token sees all before it */
    struct st_writer *writer;
};

static int32_t on_hidden(void *ctx, int32_t layer, uint64_t pos0, uint32_t n, const float *x, uint32_t width)
{
    struct trace *t = ctx;
    if (layer < -1 || layer >= (int32_t)t->desc->n_layers || pos0 + n > t->n || width != t->desc->residual_width)
        return base_error(IFX_EINTERNAL, "hidden state of layer %d, positions %llu and %u more, width %u: not as declared", layer,
                          (unsigned long long)pos0, n, width);
    memcpy(t->hidden[layer + 1] + pos0 * width, x, (uint64_t)n * width * sizeof *x);
    return IFX_OK;
}

static int32_t on_router(void *ctx, uint32_t layer, uint64_t pos0, uint32_t n, uint32_t top_k, const int32_t *ids,
                         const float *weights)
{
    struct trace *t = ctx;
    for (uint32_t i = 0; i < t->desc->n_moe; i++) {
        struct trace_router *r = &t->routers[i];
        if (r->layer != layer || r->top_k != top_k || pos0 + n > t->n)
            continue;
        memcpy(r->ids + pos0 * top_k, ids, (uint64_t)n * top_k * sizeof *ids);
        memcpy(r->weights + pos0 * top_k, weights, (uint64_t)n * top_k * sizeof *weights);
        return IFX_OK;
    }
    return base_error(IFX_EINTERNAL, "router choices of layer %u, which is not a declared MoE layer", layer);
}

static int32_t on_selection(void *ctx, uint32_t kv_layer, uint64_t pos0, uint32_t n, const int32_t *rows, const uint32_t *n_rows,
                            uint64_t ld_rows)
{
    struct trace *t = ctx;
    uint32_t most = t->desc->index_rows;
    if (t->selection == NULL || kv_layer >= t->desc->n_kv_layers || pos0 + n > t->n)
        return base_error(IFX_EINTERNAL, "a selection of tokens in KV layer %u, which was not declared", kv_layer);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t r = 0; r < most; r++)
            t->selection[kv_layer][(pos0 + i) * most + r] = r < n_rows[i] ? rows[i * ld_rows + r] : -1;
    return IFX_OK;
}

static void *matrix(uint64_t rows, uint64_t cols)
{
    uint64_t count;
    if (!base_mul_u64(rows, cols, &count)) {
        base_error(IFX_ELIMIT, "%llu tokens are too many to trace", (unsigned long long)rows);
        return NULL;
    }
    return base_calloc(count, sizeof(float));
}

static int32_t allocate(struct trace *t)
{
    const struct ifx_model_desc *d = t->desc;
    t->hidden = base_calloc((uint64_t)d->n_layers + 1, sizeof *t->hidden);
    t->routers = base_calloc((uint64_t)d->n_moe + 1, sizeof *t->routers);
    t->logits = matrix(t->n, d->vocab);
    if (t->hidden == NULL || t->routers == NULL || t->logits == NULL)
        return IFX_ENOMEM;
    for (uint32_t l = 0; l <= d->n_layers; l++)
        if ((t->hidden[l] = matrix(t->n, d->residual_width)) == NULL)
            return IFX_ENOMEM;
    if (d->index_dim && (t->selection = base_calloc((uint64_t)d->n_kv_layers + 1, sizeof *t->selection)) == NULL)
        return IFX_ENOMEM;
    for (uint32_t i = 0; t->selection != NULL && i < d->n_kv_layers; i++)
        if ((t->selection[i] = matrix(t->n, d->index_rows)) == NULL)
            return IFX_ENOMEM;
    for (uint32_t i = 0; i < d->n_moe; i++) {
        struct trace_router *r = &t->routers[i];
        *r = (struct trace_router){.layer = d->moe[i].layer, .top_k = d->moe[i].top_k};
        r->ids = matrix(t->n, r->top_k);
        r->weights = matrix(t->n, r->top_k);
        if (r->ids == NULL || r->weights == NULL)
            return IFX_ENOMEM;
    }
    return IFX_OK;
}

static void release(struct trace *t)
{
    for (uint32_t l = 0; t->hidden != NULL && l <= t->desc->n_layers; l++)
        base_free(t->hidden[l]);
    for (uint32_t i = 0; t->routers != NULL && i < t->desc->n_moe; i++) {
        base_free(t->routers[i].ids);
        base_free(t->routers[i].weights);
    }
    for (uint32_t i = 0; t->selection != NULL && i < t->desc->n_kv_layers; i++)
        base_free(t->selection[i]);
    base_free(t->selection);
    if (t->writer != NULL)
        st_writer_close(&t->writer, false);
    ifx_sequence_destroy(t->sequence);
    base_free(t->hidden);
    base_free(t->routers);
    base_free(t->logits);
    base_free(t->ids);
}

/* One tensor [n, cols]: declared in the first pass, written in the second. */
static int32_t put(struct trace *t, bool declare, const char *name, uint32_t dtype, uint64_t cols, const void *data)
{
    uint64_t dims[2] = {t->n, cols};
    if (declare)
        return st_writer_declare(t->writer, name, dtype, cols > 0 ? 2 : 1, dims);
    return st_writer_write(t->writer, name, data, t->n * (cols > 0 ? cols : 1) * 4);
}

static int32_t put_all(struct trace *t, bool declare)
{
    const struct ifx_model_desc *d = t->desc;
    char name[64];
    int32_t st = put(t, declare, "input_ids", IFX_I32, 0, t->ids);
    if (st == IFX_OK)
        st = put(t, declare, "logits", IFX_F32, d->vocab, t->logits);
    for (uint32_t l = 0; l <= d->n_layers && st == IFX_OK; l++) {
        snprintf(name, sizeof name, "hidden.%u", l - 1);
        st = put(t, declare, l > 0 ? name : "hidden.embedding", IFX_F32, d->residual_width, t->hidden[l]);
    }
    for (uint32_t i = 0; i < d->n_moe && st == IFX_OK; i++) {
        struct trace_router *r = &t->routers[i];
        snprintf(name, sizeof name, "router.%u.ids", r->layer);
        st = put(t, declare, name, IFX_I32, r->top_k, r->ids);
        snprintf(name, sizeof name, "router.%u.weights", r->layer);
        if (st == IFX_OK)
            st = put(t, declare, name, IFX_F32, r->top_k, r->weights);
    }
    for (uint32_t i = 0; t->selection != NULL && i < d->n_kv_layers && st == IFX_OK; i++) {
        snprintf(name, sizeof name, "selection.%u", i);
        st = put(t, declare, name, IFX_I32, d->index_rows, t->selection[i]);
    }
    return st;
}

static int32_t write_file(struct trace *t)
{
    int32_t st = put_all(t, true);
    if (st == IFX_OK)
        st = put_all(t, false);
    if (st == IFX_OK)
        st = st_writer_close(&t->writer, true);
    return st;
}

static int32_t read_ids(struct trace *t)
{
    const char *ids = cli_text(t->cli, "--ids", NULL), *text = cli_text(t->cli, "--text", NULL);
    struct text_tokenizer *tokenizer = ifx_model_tokenizer(t->model);
    char *read = NULL;
    uint64_t bytes = text != NULL ? strlen(text) : 0;
    if (ids != NULL)
        return cli_parse_ids(ids, "--ids", t->desc->vocab, &t->ids, &t->n);
    if (tokenizer == NULL)
        return base_error(IFX_EUNSUPPORTED, "the model has no tokenizer.json; give token ids with --ids");
    int32_t st = text != NULL ? IFX_OK : cli_read_text(cli_text(t->cli, "--file", "-"), &read, &bytes);
    if (st == IFX_OK)
        st = text_encode(tokenizer, text != NULL ? text : read, bytes, 0, &t->ids, &t->n);
    if (st == IFX_OK && t->n == 0)
        st = base_error(IFX_EINVAL, "the text is empty: there is nothing to trace");
    base_free(read);
    return st;
}

static int trace(struct trace *t, const char *out)
{
    struct ifx_observer observer = {t, on_hidden, on_router, on_selection};
    struct ifx_model_info info;
    ifx_model_info(t->model, &info);
    t->desc = info.desc;
    int32_t st = read_ids(t);
    if (st == IFX_EINVAL && cli_text(t->cli, "--ids", NULL) != NULL)
        return cli_usage(t->cli, "%s", base_error_text());
    if (st == IFX_OK && t->n > info.ctx)
        st = base_error(IFX_ELIMIT, "%llu tokens, the context holds %u; raise it with --ctx", (unsigned long long)t->n, info.ctx);
    if (st == IFX_OK)
        st = allocate(t);
    if (st == IFX_OK) /* before the work: it may be refused */
        st = st_writer_open(out, cli_flag(t->cli, "--force"), &t->writer);
    if (st == IFX_OK)
        st = ifx_sequence_create(t->model, &t->sequence);
    if (st == IFX_OK) {
        cli_log_setup(t->model);
        ifx_sequence_observe(t->sequence, &observer);
        st = ifx_sequence_feed(t->sequence, t->ids, t->n, t->n, t->logits);
    }
    if (st == IFX_OK)
        st = write_file(t);
    if (st != IFX_OK)
        return cli_fail(t->cli);
    if (cli_json(t->cli))
        return cli_print_json(t->cli, json_pack("{s:s, s:I, s:o}", "out", out, "tokens", (json_int_t)t->n, "setup",
                                                cli_setup_json(t->cli, t->model)));
    base_log(IFX_LOG_INFO, "%s: %llu tokens, %u layers", out, (unsigned long long)t->n, t->desc->n_layers);
    return 0;
}

static int run(struct cli *cli)
{
    struct trace t = {.cli = cli};
    const char *out = cli_text(cli, "--out", NULL), *path = cli_text(cli, "--model", NULL);
    uint32_t sources = (cli_text(cli, "--ids", NULL) != NULL) + (cli_text(cli, "--text", NULL) != NULL)
                       + (cli_text(cli, "--file", NULL) != NULL);
    if (out == NULL)
        return cli_usage(cli, "no output: --out FILE.safetensors");
    if (sources != 1)
        return cli_usage(cli, "give one of --ids, --text and --file");
    if (cli_argc(cli) > (path == NULL))
        return cli_usage(cli, "too many arguments: %s", cli_arg(cli, cli_argc(cli) - 1));
    int status = cli_model(cli, path != NULL ? path : cli_arg(cli, 0), &t.model);
    if (!status)
        status = trace(&t, out);
    release(&t);
    return status;
}

const struct cli_command cmd_trace = {
    "trace",
    "[MODEL] --ids LIST --out FILE [options]",
    "token ids to logits, hidden states, router and token choices, as a safetensors file",
    options,
    "  infernix trace model.infernix --ids 1,2,3 --out trace.safetensors\n"
    "  infernix --device ref trace ./checkpoint --text \"Once upon a time\" -o trace.safetensors --force\n",
    run,
};
