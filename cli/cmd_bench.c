/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_bench.c - how fast a model runs here: prompts of given lengths, each from an empty state, and decoding.
 *
 * Arms (--arm) run in turn in one process, A B A B ..., so that the day's drift falls on all of them alike.  The first round is a
 * warm-up and is thrown away.
 */
#include "config.h"
#include "cli_internal.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LENGTHS 32
#define MAX_ARMS    8
#define MAX_REPEATS 1000
#define DECODE_PROMPT 16 /* tokens before a decode measurement */
#define SPREAD_WARNING 0.10

static const struct cli_option options[] = {
    {"-m, --model", "MODEL", "the model, when it should not be the first argument", false},
    {"-p", "LIST", "prompt lengths in tokens: 64,512 (default 512; 0 leaves prompts out)", false},
    {"-n", "LIST", "tokens to decode after a prompt of 16 (default 64; 0 leaves decoding out)", false},
    {"-r", "REPEATS", "measured repetitions after one warm-up (default 3)", false},
    {"-f, --file", "FILE", "take prompts from this text (default: token ids from a fixed random sequence)", false},
    {"--arm", "OPTIONS", "options of one arm, as on a command line; given several times, arms take turns", true},
    {"--csv", NULL, "report as CSV on standard output", false},
    {NULL, NULL, NULL, false},
};

struct test {
    bool decode;
    uint32_t n;
};
struct arm {
    struct cli cli;
    const char *text;
    struct ifx_model *model;
    struct ifx_sequence *sequence;
    float *logits;
    double *rates[2 * MAX_LENGTHS]; /* [test][repeat]: tok/s */
    double experts[2 * MAX_LENGTHS]; /* experts touched a layer and step, mean; 0 when dense */
    uint64_t computed[2 * MAX_LENGTHS];
};
struct bench {
    struct cli *cli;
    struct test tests[2 * MAX_LENGTHS];
    uint32_t n_tests, n_arms, repeats, longest;
    struct arm arms[MAX_ARMS];
    int32_t *ids;
    uint64_t n_ids;
};
struct summary {
    double median, mean, min, max, spread; /* spread: (max - min) / median */
};

/* ---- experts touched ---- */

struct touched {
    uint64_t bits[16]; /* of 1024 experts */
    double sum;
    uint64_t calls;
};

static int32_t on_router(void *ctx, uint32_t layer, uint64_t pos0, uint32_t n, uint32_t top_k, const int32_t *ids,
                         const float *weights)
{
    struct touched *t = ctx;
    (void)layer, (void)pos0, (void)weights;
    memset(t->bits, 0, sizeof t->bits);
    for (uint64_t i = 0; i < (uint64_t)n * top_k; i++)
        t->bits[(uint32_t)ids[i] / 64 % 16] |= 1ull << (uint32_t)ids[i] % 64;
    for (uint32_t i = 0; i < 16; i++)
        t->sum += __builtin_popcountll(t->bits[i]);
    t->calls++;
    return IFX_OK;
}

/* ---- one measurement ---- */

static int32_t measure(struct bench *b, struct arm *a, uint32_t test, double *rate, bool watch)
{
    const struct test *t = &b->tests[test];
    struct touched touched = {0};
    struct ifx_observer observer = {&touched, NULL, on_router};
    uint64_t prompt = t->decode ? DECODE_PROMPT : t->n, before;
    int32_t st = ifx_sequence_reset(a->sequence);
    ifx_sequence_observe(a->sequence, watch && !t->decode ? &observer : NULL);
    double t0 = base_now();
    if (st == IFX_OK)
        st = ifx_sequence_feed(a->sequence, b->ids, prompt, 1, a->logits);
    if (t->decode)
        t0 = base_now();
    ifx_sequence_observe(a->sequence, watch ? &observer : NULL);
    before = ifx_sequence_length(a->sequence);
    for (uint32_t i = 0; t->decode && i < t->n && st == IFX_OK; i++)
        st = ifx_sequence_feed(a->sequence, b->ids + prompt + i, 1, 1, a->logits);
    *rate = cli_rate(t->n, base_now() - t0);
    a->computed[test] = ifx_sequence_length(a->sequence) - (t->decode ? before : 0);
    if (watch)
        a->experts[test] = touched.calls > 0 ? touched.sum / (double)touched.calls : 0;
    ifx_sequence_observe(a->sequence, NULL);
    return st;
}

static int32_t measure_all(struct bench *b)
{
    uint64_t done = 0, total = (uint64_t)b->n_tests * b->n_arms * (b->repeats + 1);
    for (uint32_t t = 0; t < b->n_tests; t++) {
        for (uint32_t r = 0; r <= b->repeats; r++) {
            for (uint32_t i = 0; i < b->n_arms; i++) {
                double rate;
                int32_t st = measure(b, &b->arms[i], t, &rate, r == 0); /* r 0: warm-up, watched and thrown away */
                if (st != IFX_OK)
                    return st;
                if (r > 0)
                    b->arms[i].rates[t][r - 1] = rate;
                cli_progress(b->cli, "measuring", ++done, total);
            }
        }
    }
    cli_progress_end(b->cli);
    return IFX_OK;
}

/* ---- report ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct summary summarise(const double *rates, uint32_t n)
{
    double sorted[MAX_REPEATS];
    struct summary s = {0};
    memcpy(sorted, rates, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_value);
    for (uint32_t i = 0; i < n; i++)
        s.mean += sorted[i] / n;
    s.min = sorted[0];
    s.max = sorted[n - 1];
    s.median = n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    s.spread = s.median > 0 ? (s.max - s.min) / s.median : 0;
    return s;
}

/* Against the first arm, repetition by repetition: the drift of the machine cancels. */
static double ratio(const struct bench *b, uint32_t arm, uint32_t test, uint32_t *wins)
{
    double ratios[MAX_REPEATS];
    *wins = 0;
    for (uint32_t r = 0; r < b->repeats; r++) {
        ratios[r] = b->arms[arm].rates[test][r] / b->arms[0].rates[test][r];
        *wins += ratios[r] > 1;
    }
    return summarise(ratios, b->repeats).median;
}

static json_t *row_json(struct bench *b, uint32_t arm, uint32_t test)
{
    struct arm *a = &b->arms[arm];
    struct summary s = summarise(a->rates[test], b->repeats);
    json_t *values = json_array();
    uint32_t wins;
    double r = ratio(b, arm, test, &wins);
    for (uint32_t i = 0; values != NULL && i < b->repeats; i++)
        json_array_append_new(values, json_real(a->rates[test][i]));
    return json_pack("{s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:b, s:f, s:f, s:I, s:I, s:o}", "arm", a->text, "test",
                     b->tests[test].decode ? "decode" : "prompt", "tokens", (json_int_t)b->tests[test].n, "computed",
                     (json_int_t)a->computed[test], "median", s.median, "mean", s.mean, "min", s.min, "max", s.max, "spread",
                     s.spread, "steady", s.spread <= SPREAD_WARNING, "experts_touched", a->experts[test], "ratio", r, "wins",
                     (json_int_t)wins, "repeats", (json_int_t)b->repeats, "tokens_per_second", values);
}

static int print_json(struct bench *b)
{
    json_t *rows = json_array(), *setups = json_array();
    for (uint32_t i = 0; i < b->n_arms; i++)
        json_array_append_new(setups, cli_setup_json(&b->arms[i].cli, b->arms[i].model));
    for (uint32_t t = 0; t < b->n_tests; t++)
        for (uint32_t i = 0; i < b->n_arms; i++)
            json_array_append_new(rows, row_json(b, i, t));
    return cli_print_json(b->cli, json_pack("{s:o, s:o}", "results", rows, "setups", setups));
}

static void print_csv(struct bench *b)
{
    char n[6][32];
    printf("arm,test,tokens,computed,median,mean,min,max,spread,experts_touched,wins,repeats\n");
    for (uint32_t t = 0; t < b->n_tests; t++) {
        for (uint32_t i = 0; i < b->n_arms; i++) {
            struct arm *a = &b->arms[i];
            struct summary s = summarise(a->rates[t], b->repeats);
            const double values[6] = {s.median, s.mean, s.min, s.max, s.spread, a->experts[t]};
            uint32_t wins;
            ratio(b, i, t, &wins);
            for (uint32_t k = 0; k < 6; k++)
                base_format_f64(n[k], values[k]);
            printf("\"%s\",%s,%u,%llu,%s,%s,%s,%s,%s,%s,%u,%u\n", a->text, b->tests[t].decode ? "decode" : "prompt",
                   b->tests[t].n, (unsigned long long)a->computed[t], n[0], n[1], n[2], n[3], n[4], n[5], wins, b->repeats);
        }
    }
}

static void print_table(struct bench *b)
{
    bool noisy = false;
    printf("%-8s %6s %8s %10s %10s %10s %10s %7s %8s%s\n", "TEST", "TOKENS", "COMPUTED", "MEDIAN", "MEAN", "MIN", "MAX", "SPREAD",
           "EXPERTS", b->n_arms > 1 ? "  RATIO   WINS  ARM" : "");
    for (uint32_t t = 0; t < b->n_tests; t++) {
        for (uint32_t i = 0; i < b->n_arms; i++) {
            struct arm *a = &b->arms[i];
            struct summary s = summarise(a->rates[t], b->repeats);
            uint32_t wins;
            double r = ratio(b, i, t, &wins);
            noisy = noisy || s.spread > SPREAD_WARNING;
            printf("%-8s %6u %8llu %10.2f %10.2f %10.2f %10.2f %5.1f %%", b->tests[t].decode ? "decode" : "prompt", b->tests[t].n,
                   (unsigned long long)a->computed[t], s.median, s.mean, s.min, s.max, 100 * s.spread);
            if (a->experts[t] > 0)
                printf(" %8.1f", a->experts[t]);
            else
                printf(" %8s", "-");
            if (b->n_arms > 1)
                printf("  %5.3f  %2u:%-2u  %s", r, wins, b->repeats - wins, a->text);
            printf("\n");
        }
    }
    printf("tok/s over %u repetitions; SPREAD is (max - min) / median; EXPERTS: touched a layer and step, mean\n", b->repeats);
    if (b->n_arms > 1)
        printf("RATIO and WINS: repetition by repetition against the first arm\n");
    if (noisy)
        base_log(IFX_LOG_WARN, "spread over 10 %%: something else was running, or more repetitions are needed (-r)");
}

/* ---- set-up ---- */

static int read_lengths(struct bench *b, const char *name, const char *fallback, bool decode)
{
    const char *text = cli_text(b->cli, name, fallback);
    int32_t *list = NULL;
    uint64_t n = 0;
    if (cli_parse_ids(text, name, 1u << 20, &list, &n))
        return cli_usage(b->cli, "%s", base_error_text());
    if (n > MAX_LENGTHS) {
        base_free(list);
        return cli_usage(b->cli, "%s: more than %d lengths", name, MAX_LENGTHS);
    }
    for (uint64_t i = 0; i < n; i++) {
        uint32_t tokens = (uint32_t)list[i], total = tokens + (decode ? DECODE_PROMPT : 0);
        if (tokens == 0)
            continue;
        b->tests[b->n_tests++] = (struct test){decode, tokens};
        b->longest = total > b->longest ? total : b->longest;
    }
    base_free(list);
    return 0;
}

static int open_arm(struct bench *b, struct arm *a, const char *path, const char *text)
{
    struct ifx_model_info info;
    a->text = text != NULL ? text : "";
    int failed = cli_clone(b->cli, &a->cli);
    if (!failed && text != NULL)
        failed = cli_parse_text(&a->cli, text);
    if (!failed)
        failed = cli_model(&a->cli, path, &a->model);
    if (failed)
        return failed;
    ifx_model_info(a->model, &info);
    if (b->longest > info.ctx)
        return cli_usage(b->cli, "%u tokens do not fit the context of %u; raise --ctx or lower -p and -n", b->longest, info.ctx);
    cli_log_setup(a->model);
    a->logits = base_calloc(info.desc->vocab, sizeof *a->logits);
    for (uint32_t t = 0; t < b->n_tests; t++)
        if ((a->rates[t] = base_calloc(b->repeats, sizeof *a->rates[t])) == NULL)
            return cli_fail(b->cli);
    if (a->logits == NULL || ifx_sequence_create(a->model, &a->sequence))
        return cli_fail(b->cli);
    return 0;
}

static int make_ids(struct bench *b)
{
    struct ifx_model *m = b->arms[0].model;
    struct ifx_model_info info;
    const char *file = cli_text(b->cli, "--file", NULL);
    char *text = NULL;
    uint64_t bytes, x = 88172645463325252ull;
    ifx_model_info(m, &info);
    if (file != NULL) {
        int32_t st = ifx_model_tokenizer(m) != NULL ? cli_read_text(file, &text, &bytes)
                                                    : base_error(IFX_EUNSUPPORTED, "--file: the model has no tokenizer");
        if (st == IFX_OK)
            st = text_encode(ifx_model_tokenizer(m), text, bytes, 0, &b->ids, &b->n_ids);
        base_free(text);
        if (st == IFX_OK && b->n_ids < b->longest)
            st = base_error(IFX_EINVAL, "%s: %llu tokens, %u are needed", file, (unsigned long long)b->n_ids, b->longest);
        return st == IFX_OK ? 0 : cli_fail(b->cli);
    }
    b->ids = base_calloc(b->longest, sizeof *b->ids);
    if (b->ids == NULL)
        return cli_fail(b->cli);
    for (uint32_t i = 0; i < b->longest; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        b->ids[i] = (int32_t)(x % info.desc->vocab);
    }
    return 0;
}

static int set_up(struct bench *b)
{
    struct cli *cli = b->cli;
    const char *path = cli_text(cli, "--model", NULL);
    const char *const *arms = cli_texts(cli, "--arm");
    int64_t repeats;
    if (cli_argc(cli) > (path == NULL))
        return cli_usage(cli, "too many arguments: %s", cli_arg(cli, cli_argc(cli) - 1));
    path = path != NULL ? path : cli_arg(cli, 0);
    int failed = cli_int(cli, "-r", 1, MAX_REPEATS, 3, &repeats);
    b->repeats = (uint32_t)repeats;
    failed = failed ? failed : read_lengths(b, "-p", "512", false);
    failed = failed ? failed : read_lengths(b, "-n", "64", true);
    if (!failed && b->n_tests == 0)
        failed = cli_usage(cli, "-p 0 and -n 0: nothing to measure");
    if (!failed && cli_json(cli) && cli_flag(cli, "--csv"))
        failed = cli_usage(cli, "--json and --csv: give one of them");
    for (uint32_t i = 0; !failed && (i == 0 || arms[i - 1] != NULL) && (arms[i] != NULL || i == 0); i++) {
        if (i == MAX_ARMS)
            return cli_usage(cli, "--arm: more than %d arms", MAX_ARMS);
        b->n_arms = i + 1;
        failed = open_arm(b, &b->arms[i], path, arms[i]);
    }
    return failed ? failed : make_ids(b);
}

static void tear_down(struct bench *b)
{
    for (uint32_t i = 0; i < b->n_arms; i++) {
        struct arm *a = &b->arms[i];
        ifx_sequence_destroy(a->sequence);
        for (uint32_t t = 0; t < b->n_tests; t++)
            base_free(a->rates[t]);
        base_free(a->logits);
        cli_free(&a->cli);
    }
    base_free(b->ids);
}

static int run(struct cli *cli)
{
    struct bench *b = base_calloc(1, sizeof *b);
    if (b == NULL)
        return cli_fail(cli);
    b->cli = cli;
    int status = set_up(b);
    if (!status && measure_all(b))
        status = cli_fail(cli);
    if (!status && cli_json(cli))
        status = print_json(b);
    else if (!status && cli_flag(cli, "--csv"))
        print_csv(b);
    else if (!status)
        print_table(b);
    tear_down(b);
    base_free(b);
    return status;
}

const struct cli_command cmd_bench = {
    "bench",
    "[MODEL] [-p LIST] [-n LIST] [-r REPEATS] [options]",
    "how fast a model runs here: prompts and decoding, arms in turn",
    options,
    "  infernix bench -p 64,512 -n 64 -r 5\n"
    "  infernix bench model.infernix -p 512 -n 0 --arm '--threads 1' --arm '--threads 2'\n"
    "  infernix bench --json > bench.json\n",
    run,
};
