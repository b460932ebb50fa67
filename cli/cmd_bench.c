/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_bench.c - how fast a model runs here: prompts of given lengths, each from an empty state, and decoding.
 *
 * Arms (--arm) run in turn in one process, A B A B ..., so that the day's drift falls on all of them alike.  The first round is a
 * warm-up and is thrown away.
 */
#include "config.h"
#include "bench.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DECODE_PROMPT 16 /* tokens before a decode measurement */
#define WIDEST_CALL   2048 /* a prompt goes in one call up to here, unless --prefill-chunk says otherwise */

static const struct cli_option options[] = {
    {"-m, --model", "MODEL", "the model, when it should not be the first argument", false},
    {"-p", "LIST", "prompt lengths in tokens: 64,512 (default 512; 0 leaves prompts out)", false},
    {"-n", "LIST", "tokens to decode (default 64; 0 leaves decoding out)", false},
    {"-d, --depth", "N", "tokens that are there before each measurement (default: none before a prompt, 16 before decoding)", false},
    {"-r", "REPEATS", "measured repetitions after one warm-up (default 3)", false},
    {"--warm", "N", "tokens that each arm decodes first, so that hot experts are where they belong (default 0)", false},
    {"-f, --file", "FILE", "take prompts from this text (default: token ids from a fixed random sequence)", false},
    {"--arm", "OPTIONS", "options of one arm, as on a command line; given several times, arms take turns", true},
    {"--csv", NULL, "report as CSV on standard output", false},
    {"--plot", "FILE.svg", "draw tok/s over prompt length, one line an arm, the policy's limits marked", false},
    {"--synthetic", "GEOMETRY[,K=V...]", "a random model in memory: 122b-a10b,layers=8,experts=nvfp4,zipf=0.7 (shrink: small matrices, for sim's virtual clock)", false},
    {"--make", "GEOMETRY[,K=V...]", "write such a model to a file and stop: 35b-a3b, 122b-a10b, flash-next", false},
    {"--layers", "N", "with --make: how many (default: the geometry's)", false},
    {"--zipf", "S", "with --make: expert of rank r is chosen in proportion to r^-S (default 0: all alike)", false},
    {"--out", "FILE", "with --make: the file", false},
    {"--force", NULL, "with --make: overwrite it", false},
    {NULL, NULL, NULL, false},
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

static void count_traffic(struct ifx_model *m, const struct ifx_offload_stats *before, double seconds, struct bench_traffic *t)
{
    struct ifx_offload_stats now, *sum = &t->moved;
    ifx_offload_stats(m, &now);
    sum->calls += now.calls - before->calls;
    sum->streamed_calls += now.streamed_calls - before->streamed_calls;
    sum->assisted_calls += now.assisted_calls - before->assisted_calls;
    sum->hits += now.hits - before->hits;
    sum->misses += now.misses - before->misses;
    sum->link_experts += now.link_experts - before->link_experts;
    sum->cpu_experts += now.cpu_experts - before->cpu_experts;
    sum->link_bytes += now.link_bytes - before->link_bytes;
    sum->promoted_bytes += now.promoted_bytes - before->promoted_bytes;
    sum->promotions += now.promotions - before->promotions;
    sum->evictions += now.evictions - before->evictions;
    sum->moe_seconds += now.moe_seconds - before->moe_seconds;
    sum->link_busy_seconds += now.link_busy_seconds - before->link_busy_seconds;
    sum->cpu_busy_seconds += now.cpu_busy_seconds - before->cpu_busy_seconds;
    sum->frames = now.frames;
    sum->frames_used = now.frames_used;
    sum->frame_bytes = now.frame_bytes;
    t->seconds += seconds;
}

static void count_rows(struct ifx_model *m, const struct ifx_table_stats *before, struct ifx_table_stats *sum)
{
    struct ifx_table_stats now;
    ifx_table_stats(m, &now);
    sum->rows += now.rows - before->rows;
    sum->unique_rows += now.unique_rows - before->unique_rows;
    sum->read_rows += now.read_rows - before->read_rows;
    sum->read_bytes += now.read_bytes - before->read_bytes;
    sum->wait_seconds += now.wait_seconds - before->wait_seconds;
}

static uint32_t depth_of(const struct bench *b, bool decode)
{
    return b->depth ? b->depth : decode ? DECODE_PROMPT : 0;
}

static int32_t measure(struct bench *b, struct bench_arm *a, uint32_t test, double *rate, bool watch)
{
    const struct bench_test *t = &b->tests[test];
    struct touched touched = {0};
    struct ifx_observer observer = {.ctx = &touched, .router = on_router};
    struct ifx_offload_stats stats;
    struct ifx_table_stats rows;
    uint64_t depth = depth_of(b, t->decode), before;
    int32_t st = ifx_sequence_reset(a->sequence);
    if (depth && st == IFX_OK)
        st = ifx_sequence_feed(a->sequence, b->ids, depth, 1, a->logits);
    ifx_sequence_observe(a->sequence, watch ? &observer : NULL);
    before = ifx_sequence_length(a->sequence);
    double t0 = ifx_model_now(a->model);
    ifx_offload_stats(a->model, &stats);
    ifx_table_stats(a->model, &rows);
    if (!t->decode && st == IFX_OK)
        st = ifx_sequence_feed(a->sequence, b->ids + depth, t->n, 1, a->logits);
    for (uint32_t i = 0; t->decode && i < t->n && st == IFX_OK; i++)
        st = ifx_sequence_feed(a->sequence, b->ids + depth + i, 1, 1, a->logits);
    double seconds = ifx_model_now(a->model) - t0;
    *rate = cli_rate(t->n, seconds);
    if (!watch) {
        count_traffic(a->model, &stats, seconds, &a->traffic[test]);
        count_rows(a->model, &rows, &a->traffic[test].rows);
    }
    a->computed[test] = ifx_sequence_length(a->sequence) - before;
    if (watch)
        a->experts[test] = touched.calls > 0 ? touched.sum / (double)touched.calls : 0;
    ifx_sequence_observe(a->sequence, NULL);
    return st;
}

/* A shrunk model's records stand for larger ones. */
static void scale_traffic(struct bench *b)
{
    for (uint32_t i = 0; i < b->n_arms; i++)
        for (uint32_t t = 0; t < b->n_tests; t++) {
            struct ifx_offload_stats *m = &b->arms[i].traffic[t].moved;
            m->link_bytes = (uint64_t)((double)m->link_bytes * b->byte_scale);
            m->promoted_bytes = (uint64_t)((double)m->promoted_bytes * b->byte_scale);
            m->frame_bytes = (uint64_t)((double)m->frame_bytes * b->byte_scale);
        }
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
    scale_traffic(b);
    return IFX_OK;
}

/* ---- set-up ---- */

static int read_lengths(struct bench *b, const char *name, const char *fallback, bool decode)
{
    const char *text = cli_text(b->cli, name, fallback);
    int32_t *list = NULL;
    uint64_t n = 0;
    if (cli_parse_ids(text, name, 1u << 20, &list, &n))
        return cli_usage(b->cli, "%s", base_error_text());
    if (n > BENCH_LENGTHS) {
        base_free(list);
        return cli_usage(b->cli, "%s: more than %d lengths", name, BENCH_LENGTHS);
    }
    for (uint64_t i = 0; i < n; i++) {
        uint32_t tokens = (uint32_t)list[i], total = tokens + depth_of(b, decode);
        if (tokens == 0)
            continue;
        b->tests[b->n_tests++] = (struct bench_test){decode, tokens};
        b->longest = total > b->longest ? total : b->longest;
        if (!decode)
            b->longest_prompt = tokens > b->longest_prompt ? tokens : b->longest_prompt;
    }
    base_free(list);
    return 0;
}

static int give(struct cli *cli, const char *name, const char *text)
{
    return cli_add_value(cli, cli_find_option(cli->command, name), text, CLI_FROM_COMMAND_LINE, 0);
}

/* Options that follow from what is measured. */
static int prepare_arm(struct bench *b, struct bench_arm *a)
{
    char text[24], *device = NULL;
    int failed = 0;
    if (cli_text(&a->cli, "--prefill-chunk", NULL) == NULL && b->longest_prompt > 512 && b->longest_prompt <= WIDEST_CALL) {
        snprintf(text, sizeof text, "%u", b->longest_prompt);
        failed = give(&a->cli, "--prefill-chunk", text);
    }
    /* Nothing lies beside a file in memory. */
    if (!failed && b->made != NULL && cli_find_option(a->cli.command, "--no-expert-state") != NULL)
        failed = give(&a->cli, "--no-expert-state", NULL);
    if (failed || b->synthetic.g.name == NULL || !b->synthetic.shrink)
        return failed;
    struct ifx_context *context;
    failed = cli_context(&a->cli, &context);
    if (!failed && synthetic_device(context, &b->synthetic, cli_text(&a->cli, "--device", "auto"), &device, &b->byte_scale))
        failed = cli_usage(b->cli, "%s", base_error_text());
    if (!failed)
        failed = give(&a->cli, "--device", device);
    base_free(device);
    return failed;
}

static int open_arm(struct bench *b, struct bench_arm *a, const char *path, const char *text)
{
    struct ifx_model_info info;
    a->text = text != NULL ? text : "";
    int failed = cli_clone(b->cli, &a->cli);
    if (!failed && text != NULL)
        failed = cli_parse_text(&a->cli, text);
    if (!failed)
        failed = prepare_arm(b, a);
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

/* Every arm starts with what decoding has taught it. */
static int32_t warm_up(struct bench *b, uint32_t tokens)
{
    int32_t st = IFX_OK;
    for (uint32_t i = 0; i < b->n_arms && tokens > 0; i++) {
        struct bench_arm *a = &b->arms[i];
        uint64_t room = b->n_ids - DECODE_PROMPT;
        st = ifx_sequence_reset(a->sequence);
        if (st == IFX_OK)
            st = ifx_sequence_feed(a->sequence, b->ids, DECODE_PROMPT, 1, a->logits);
        for (uint32_t t = 0; t < tokens && st == IFX_OK; t++)
            st = ifx_sequence_feed(a->sequence, b->ids + DECODE_PROMPT + t % room, 1, 1, a->logits);
        if (st != IFX_OK)
            break;
    }
    return st;
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
    b->n_ids = b->longest;
    b->ids = base_calloc(b->longest, sizeof *b->ids);
    if (b->ids == NULL)
        return cli_fail(b->cli);
    for (uint32_t i = 0; i < b->longest; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        b->ids[i] = (int32_t)(x % info.desc->vocab);
    }
    return 0;
}

/* --synthetic: a model in memory that every arm opens. */
static int make_synthetic(struct bench *b, const char **path)
{
    const char *text = cli_text(b->cli, "--synthetic", NULL);
    struct ifx_context *context;
    if (text == NULL)
        return 0;
    if (*path != NULL)
        return cli_usage(b->cli, "--synthetic and a model: give one of them");
    if (synthetic_parse("--synthetic", text, &b->synthetic))
        return cli_usage(b->cli, "%s", base_error_text());
    int failed = cli_context(b->cli, &context);
    if (!failed && synthetic_make(b->cli, context, &b->synthetic, NULL, false, &b->made, &b->made_fd))
        failed = cli_fail(b->cli);
    *path = b->made;
    return failed;
}

static int set_up(struct bench *b)
{
    struct cli *cli = b->cli;
    const char *path = cli_text(cli, "--model", NULL);
    const char *const *arms = cli_texts(cli, "--arm");
    int64_t repeats = 1, warm = 0, depth = 0;
    if (cli_argc(cli) > (path == NULL))
        return cli_usage(cli, "too many arguments: %s", cli_arg(cli, cli_argc(cli) - 1));
    path = path != NULL ? path : cli_arg(cli, 0);
    int failed = cli_int(cli, "-r", 1, BENCH_REPEATS, 3, &repeats);
    b->repeats = (uint32_t)repeats;
    failed = failed ? failed : cli_int(cli, "--warm", 0, 1 << 20, 0, &warm);
    failed = failed ? failed : cli_int(cli, "--depth", 1, 1 << 24, 0, &depth);
    b->depth = (uint32_t)depth;
    b->longest = warm > 0 ? DECODE_PROMPT + 64 : 0;
    failed = failed ? failed : read_lengths(b, "-p", "512", false);
    failed = failed ? failed : read_lengths(b, "-n", "64", true);
    if (!failed && b->n_tests == 0)
        failed = cli_usage(cli, "-p 0 and -n 0: nothing to measure");
    if (!failed && cli_json(cli) && cli_flag(cli, "--csv"))
        failed = cli_usage(cli, "--json and --csv: give one of them");
    failed = failed ? failed : make_synthetic(b, &path);
    for (uint32_t i = 0; !failed && (i == 0 || arms[i - 1] != NULL) && (arms[i] != NULL || i == 0); i++) {
        if (i == BENCH_ARMS)
            return cli_usage(cli, "--arm: more than %d arms", BENCH_ARMS);
        b->n_arms = i + 1;
        failed = open_arm(b, &b->arms[i], path, arms[i]);
    }
    failed = failed ? failed : make_ids(b);
    return !failed && warm_up(b, (uint32_t)warm) ? cli_fail(cli) : failed;
}

static void tear_down(struct bench *b)
{
    for (uint32_t i = 0; i < b->n_arms; i++) {
        struct bench_arm *a = &b->arms[i];
        ifx_sequence_destroy(a->sequence);
        for (uint32_t t = 0; t < b->n_tests; t++)
            base_free(a->rates[t]);
        base_free(a->logits);
        cli_free(&a->cli);
    }
    if (b->made != NULL)
        close(b->made_fd);
    base_free(b->made);
    base_free(b->ids);
}

static int run(struct cli *cli)
{
    struct bench *b = base_calloc(1, sizeof *b);
    const char *plot = cli_text(cli, "--plot", NULL);
    if (b == NULL)
        return cli_fail(cli);
    b->cli = cli;
    b->byte_scale = 1;
    int status = cli_text(cli, "--make", NULL) != NULL ? bench_make(cli) : set_up(b);
    if (status || cli_text(cli, "--make", NULL) != NULL)
        goto out;
    if (measure_all(b))
        status = cli_fail(cli);
    else if (plot != NULL && bench_plot(b, plot))
        status = cli_fail(cli);
    else if (cli_json(cli))
        status = bench_print_json(b);
    else if (cli_flag(cli, "--csv"))
        bench_print_csv(b);
    else
        bench_print_table(b);
out:
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
    "  infernix bench --json > bench.json\n"
    "  infernix bench --synthetic 35b-a3b,layers=4 -p 128,256 -n 32\n"
    "  infernix bench --make 122b-a10b --layers 8 --experts nvfp4 --out big.infernix\n",
    run,
};
