/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_perplexity.c - mean negative log likelihood of a text or of token ids, in windows that start from an empty state.
 */
#include "config.h"
#include "cli_internal.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define LOGITS_MAX_BYTES (256u << 20)

static const struct cli_option options[] = {
    {"-m, --model", "MODEL", "the model, when it should not be the first argument", false},
    {"-f, --file", "FILE", "the text, when it should not be an argument (- is standard input)", false},
    {"--ids", "FILE", "token ids instead of a text: numbers with commas or a JSON array", false},
    {"--window", "N", "tokens a window, each from an empty state (default 1024, at most the context)", false},
    {"--stride", "N", "distance from one window to the next; each token is scored once (default: the window)", false},
    {"-n, --max-tokens", "N", "use only the first N tokens, 0 for all (default 0)", false},
    {NULL, NULL, NULL, false},
};

struct score {
    uint64_t n;
    double mean, m2; /* Welford: the spread of single losses gives the error of their mean */
};

struct perplexity {
    struct cli *cli;
    struct ifx_model *model;
    struct ifx_sequence *sequence;
    const char *model_path, *source;
    int32_t *ids;
    uint64_t n_ids, window, stride, n_windows;
    uint32_t vocab, rows; /* logit rows a call */
    float *logits;
    struct score score;
    double seconds;
    uint64_t fed;
};

static int32_t parse_file_ids(const char *path, uint32_t vocab, int32_t **ids, uint64_t *n)
{
    char *text = NULL;
    uint64_t bytes;
    int32_t st = cli_read_text(path, &text, &bytes);
    if (st == IFX_OK && strlen(text) != bytes)
        st = base_error(IFX_EFORMAT, "%s: holds a NUL byte", path);
    if (st == IFX_OK)
        st = cli_parse_ids(text, path, vocab, ids, n);
    base_free(text);
    return st;
}

static int32_t encode_file(struct perplexity *p, const char *path)
{
    struct text_tokenizer *t = ifx_model_tokenizer(p->model);
    char *text = NULL;
    uint64_t bytes;
    if (t == NULL)
        return base_error(IFX_EUNSUPPORTED, "the model has no tokenizer.json; give token ids with --ids");
    int32_t st = cli_read_text(path, &text, &bytes);
    if (st == IFX_OK)
        st = text_encode(t, text, bytes, 0, &p->ids, &p->n_ids);
    base_free(text);
    return st;
}

/* What is scored, from the options and arguments; the model is open. */
static int32_t read_ids(struct perplexity *p, int64_t max_tokens)
{
    const char *ids = cli_text(p->cli, "--ids", NULL);
    int32_t st = ids != NULL ? parse_file_ids(ids, p->vocab, &p->ids, &p->n_ids) : encode_file(p, p->source);
    if (st == IFX_OK && max_tokens > 0 && p->n_ids > (uint64_t)max_tokens)
        p->n_ids = (uint64_t)max_tokens;
    if (st == IFX_OK && p->n_ids < 2)
        st = base_error(IFX_EINVAL, "%s: %llu tokens; at least 2 are needed to predict one", p->source,
                        (unsigned long long)p->n_ids);
    return st;
}

static double loss_of(const float *row, uint32_t vocab, int32_t target)
{
    float max = row[0];
    double sum = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (row[i] > max)
            max = row[i];
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)row[i] - (double)max);
    return log(sum) - ((double)row[target] - (double)max);
}

static void add_loss(struct score *s, double loss)
{
    double d = loss - s->mean;
    s->n++;
    s->mean += d / (double)s->n;
    s->m2 += d * (loss - s->mean);
}

/* One window: tokens from `start`; losses count for predicted tokens at `first` and later (absolute positions). */
static int32_t score_window(struct perplexity *p, uint64_t start, uint64_t end, uint64_t first)
{
    int32_t st = ifx_sequence_reset(p->sequence);
    for (uint64_t at = start; at < end && st == IFX_OK;) {
        uint64_t n = end - at < p->rows ? end - at : p->rows;
        double t0 = base_now();
        st = ifx_sequence_feed(p->sequence, p->ids + at, n, n, p->logits);
        p->seconds += base_now() - t0;
        for (uint64_t i = 0; i < n && st == IFX_OK; i++)
            if (at + i + 1 < end && at + i + 1 >= first)
                add_loss(&p->score, loss_of(p->logits + i * p->vocab, p->vocab, p->ids[at + i + 1]));
        at += n;
        p->fed += n;
    }
    return st;
}

static int32_t score_all(struct perplexity *p)
{
    uint64_t scored = 0; /* tokens before this position are done */
    int32_t st = IFX_OK;
    for (uint64_t start = 0; st == IFX_OK; start += p->stride) {
        uint64_t end = p->n_ids - start < p->window ? p->n_ids : start + p->window;
        if (end - start < 2)
            break;
        st = score_window(p, start, end, scored);
        scored = end;
        p->n_windows++;
        cli_progress(p->cli, "scoring", end, p->n_ids);
        if (end == p->n_ids)
            break;
    }
    cli_progress_end(p->cli);
    return st;
}

static int print_score(struct perplexity *p)
{
    const struct score *s = &p->score;
    double error = s->n > 1 ? sqrt(s->m2 / (double)(s->n - 1) / (double)s->n) : 0;
    double ppl = exp(s->mean);
    if (!cli_json(p->cli)) {
        printf("tokens      %llu in %llu windows of %llu, %llu predicted\n", (unsigned long long)p->n_ids,
               (unsigned long long)p->n_windows, (unsigned long long)p->window, (unsigned long long)s->n);
        printf("nll         %.5f +- %.5f\n", s->mean, error);
        printf("perplexity  %.4f +- %.4f\n", ppl, ppl * error);
        printf("speed       %.1f tok/s, %u tokens a step\n", cli_rate(p->fed, p->seconds), p->rows);
        return 0;
    }
    return cli_print_json(
        p->cli, json_pack("{s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:o}", "nll", s->mean, "nll_error",
                          error, "perplexity", ppl, "perplexity_error", ppl * error, "tokens", (json_int_t)p->n_ids,
                          "predicted", (json_int_t)s->n, "windows", (json_int_t)p->n_windows, "window",
                          (json_int_t)p->window, "stride", (json_int_t)p->stride, "chunk", (json_int_t)p->rows, "seconds",
                          p->seconds, "tokens_per_second", cli_rate(p->fed, p->seconds), "setup",
                          cli_setup_json(p->cli, p->model)));
}

static int read_arguments(struct perplexity *p, int64_t *max_tokens)
{
    struct cli *cli = p->cli;
    int64_t window = 0, stride = 0;
    const char *file = cli_text(cli, "--file", NULL), *ids = cli_text(cli, "--ids", NULL);
    const char *model = cli_text(cli, "--model", NULL);
    uint32_t n = cli_argc(cli), want = file == NULL && ids == NULL;
    if (file != NULL && ids != NULL)
        return cli_usage(cli, "--file and --ids: give one of them");
    if (n > want + (model == NULL))
        return cli_usage(cli, "too many arguments: %s", cli_arg(cli, n - 1));
    if (n < want)
        return cli_usage(cli, "no text: infernix perplexity [MODEL] FILE");
    p->source = ids != NULL ? ids : file != NULL ? file : cli_arg(cli, n - 1);
    p->model_path = model != NULL ? model : n > want ? cli_arg(cli, 0) : NULL;
    int failed = cli_int(cli, "--window", 2, 1 << 24, 1024, &window);
    failed = failed ? failed : cli_int(cli, "--stride", 1, window, window, &stride);
    failed = failed ? failed : cli_int(cli, "--max-tokens", 0, INT32_MAX, 0, max_tokens);
    p->window = (uint64_t)window;
    p->stride = (uint64_t)stride;
    return failed;
}

static int prepare(struct perplexity *p, int64_t max_tokens)
{
    struct ifx_model_info info;
    ifx_model_info(p->model, &info);
    p->vocab = info.desc->vocab;
    if (p->window > info.ctx)
        return cli_usage(p->cli, "--window %llu: the context holds %u tokens; raise --ctx or lower --window",
                         (unsigned long long)p->window, info.ctx);
    uint64_t row_bytes = (uint64_t)p->vocab * sizeof *p->logits, most = LOGITS_MAX_BYTES / row_bytes;
    uint64_t rows = info.prefill_chunk < p->window ? info.prefill_chunk : p->window;
    p->rows = (uint32_t)(rows < most ? rows : most > 0 ? most : 1);
    p->logits = base_alloc(p->rows * row_bytes, 64);
    if (p->logits == NULL || ifx_sequence_create(p->model, &p->sequence))
        return cli_fail(p->cli);
    return read_ids(p, max_tokens) ? cli_fail(p->cli) : 0;
}

static int run(struct cli *cli)
{
    struct perplexity p = {.cli = cli};
    int64_t max_tokens = 0;
    int status = read_arguments(&p, &max_tokens);
    if (!status)
        status = cli_model(cli, p.model_path, &p.model);
    if (!status)
        status = prepare(&p, max_tokens);
    if (!status) {
        cli_log_setup(p.model);
        status = score_all(&p) ? cli_fail(cli) : print_score(&p);
    }
    ifx_sequence_destroy(p.sequence);
    base_free(p.logits);
    base_free(p.ids);
    return status;
}

const struct cli_command cmd_perplexity = {
    "perplexity",
    "[MODEL] FILE [options]",
    "how well the model predicts a text: mean loss a token and its exponential",
    options,
    "  infernix perplexity eval.txt\n"
    "  infernix perplexity model.infernix eval.txt --max-tokens 8192 --json\n"
    "  infernix perplexity model.infernix --ids ids.json --window 512 --stride 256\n",
    run,
};
