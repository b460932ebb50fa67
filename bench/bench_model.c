/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_model.c - prompt and decode speed of a whole model through the engine, and where a step's time goes by prompt width.
 *
 *     bench_model MODEL [--experts FORMAT] [--threads N] [--cpu LEVEL] [--kv FORMAT] [--repeat N] [--decode N] [--chunk N] [--streams N]
 *                 [WIDTH...]
 *
 * Prompts are random tokens from an empty sequence with one logit row wanted; the first repetition is not counted.  The experts touched
 * are counted in an untimed pass.  --streams N decodes 1, 2, 4 .. N sequences together as well, each in its own text.
 */
#include "infernix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_WIDTHS  32
#define MAX_REPEATS 100
#define MAX_STREAMS 64

struct bench {
    struct ifx_context *ctx;
    struct ifx_model *model;
    struct ifx_sequence *sequence;
    struct ifx_model_info info;
    int32_t *tokens;
    float *logits;
    uint8_t *touched; /* [layers, experts] in the untimed pass */
    const char *path, *experts, *cpu, *kv;
    int64_t threads, repeat, decode, chunk, streams, widths[MAX_WIDTHS];
    uint32_t n_widths;
};

static int32_t read_arguments(int argc, char **argv, struct bench *b)
{
    const struct {
        const char *name;
        const char **text;
        int64_t *number, most;
    } options[] = {{"--experts", &b->experts, NULL, 0},        {"--cpu", &b->cpu, NULL, 0},
                   {"--kv", &b->kv, NULL, 0},                  {"--threads", NULL, &b->threads, 1024},
                   {"--repeat", NULL, &b->repeat, MAX_REPEATS}, {"--decode", NULL, &b->decode, 100000},
                   {"--chunk", NULL, &b->chunk, 1 << 20},       {"--streams", NULL, &b->streams, MAX_STREAMS}};
    b->path = argv[1];
    for (int i = 2; i < argc; i++) {
        int32_t st = IFX_OK;
        size_t o = 0;
        while (o < sizeof options / sizeof options[0] && strcmp(argv[i], options[o].name) != 0)
            o++;
        if (o < sizeof options / sizeof options[0] && i + 1 < argc) {
            i++;
            if (options[o].text)
                *options[o].text = argv[i];
            else
                st = base_parse_i64(argv[i], argv[i - 1], 0, options[o].most, options[o].number);
        } else if (b->n_widths < MAX_WIDTHS)
            st = base_parse_i64(argv[i], "WIDTH", 1, 1 << 20, &b->widths[b->n_widths++]);
        if (st)
            return st;
    }
    return IFX_OK;
}

static int32_t on_router(void *ctx, uint32_t layer, uint64_t pos0, uint32_t n, uint32_t top_k, const int32_t *ids, const float *weights)
{
    struct bench *b = ctx;
    (void)pos0;
    (void)weights;
    for (uint32_t i = 0; i < n * top_k; i++)
        b->touched[(uint64_t)layer * b->info.desc->moe[0].experts + (uint32_t)ids[i]] = 1;
    return IFX_OK;
}

/* CPU time of the process: with --threads 1 the least of many repetitions tells the cost of the work on a machine that others use
 * too. */
static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Mean number of experts a layer touches for a prompt of n tokens. */
static int32_t count_touched(struct bench *b, uint32_t n, double *mean)
{
    const struct ifx_model_desc *d = b->info.desc;
    struct ifx_observer observer = {.ctx = b, .router = on_router};
    uint64_t cells = d->n_moe ? (uint64_t)d->n_layers * d->moe[0].experts : 0, sum = 0;
    *mean = 0;
    if (!cells)
        return IFX_OK;
    b->touched = base_calloc(cells, 1);
    if (!b->touched)
        return IFX_ENOMEM;
    ifx_sequence_observe(b->sequence, &observer);
    int32_t st = ifx_sequence_feed(b->sequence, b->tokens, n, 0, NULL);
    ifx_sequence_observe(b->sequence, NULL);
    for (uint64_t i = 0; i < cells; i++)
        sum += b->touched[i];
    *mean = (double)sum / d->n_moe;
    base_free(b->touched);
    return st ? st : ifx_sequence_reset(b->sequence);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void print_row(const char *what, uint32_t n, double *seconds, double *cpu, uint32_t count, double touched)
{
    qsort(seconds, count, sizeof *seconds, by_value);
    qsort(cpu, count, sizeof *cpu, by_value);
    printf("%-8s %6u %10.1f %10.1f %10.1f %10.3f %10.3f %8.1f\n", what, n, n / seconds[count / 2], n / seconds[count - 1],
           n / seconds[0], seconds[count / 2] * 1e3, cpu[0] * 1e3, touched);
    fflush(stdout);
}

static int32_t bench_prompt(struct bench *b, uint32_t n)
{
    double seconds[MAX_REPEATS], cpu[MAX_REPEATS], touched;
    int32_t st = count_touched(b, n, &touched);
    for (int64_t r = -1; !st && r < b->repeat; r++) {
        st = ifx_sequence_reset(b->sequence);
        double start = base_now(), cpu_start = cpu_now();
        if (!st)
            st = ifx_sequence_feed(b->sequence, b->tokens, n, 1, b->logits);
        if (r >= 0) {
            seconds[r] = base_now() - start;
            cpu[r] = cpu_now() - cpu_start;
        }
    }
    if (!st)
        print_row("prompt", n, seconds, cpu, (uint32_t)b->repeat, touched);
    return st ? st : ifx_sequence_reset(b->sequence);
}

static int32_t bench_decode(struct bench *b)
{
    double seconds[MAX_REPEATS], cpu[MAX_REPEATS];
    int32_t st = ifx_sequence_feed(b->sequence, b->tokens, 32, 0, NULL);
    for (int64_t r = -1; !st && r < b->repeat; r++) {
        double start = base_now(), cpu_start = cpu_now();
        for (int64_t i = 0; !st && i < b->decode; i++)
            st = ifx_sequence_feed(b->sequence, &b->tokens[(uint64_t)(r * b->decode + i + 64) % 1024], 1, 1, b->logits);
        if (r >= 0) {
            seconds[r] = base_now() - start;
            cpu[r] = cpu_now() - cpu_start;
        }
    }
    if (!st)
        print_row("decode", (uint32_t)b->decode, seconds, cpu, (uint32_t)b->repeat, 0);
    return st;
}

/* n sequences, a token each a step; the rate is that of all together. */
static int32_t bench_streams(struct bench *b, uint32_t n)
{
    double seconds[MAX_REPEATS], cpu[MAX_REPEATS];
    struct ifx_batch_item items[MAX_STREAMS];
    struct ifx_sequence *s[MAX_STREAMS] = {NULL};
    float *logits = base_calloc((uint64_t)n * b->info.desc->vocab, sizeof *logits);
    int32_t st = logits ? IFX_OK : IFX_ENOMEM;
    for (uint32_t i = 0; !st && i < n; i++) {
        st = ifx_sequence_create(b->model, &s[i]);
        if (!st)
            st = ifx_sequence_feed(s[i], b->tokens + 37 * i % 512, 32 + i, 0, NULL);
    }
    for (int64_t r = -1; !st && r < b->repeat; r++) {
        double start = base_now(), cpu_start = cpu_now();
        for (int64_t i = 0; !st && i < b->decode; i++) {
            for (uint32_t k = 0; k < n; k++)
                items[k] = (struct ifx_batch_item){.sequence = s[k], .n = 1, .n_logits = 1, .logits = logits + (uint64_t)k * b->info.desc->vocab,
                                                   .tokens = &b->tokens[((uint64_t)(r * b->decode + i + 64) + 101 * k) % 1024]};
            st = ifx_batch_feed(items, n);
            for (uint32_t k = 0; !st && k < n; k++)
                st = items[k].status;
        }
        if (r >= 0) {
            seconds[r] = base_now() - start;
            cpu[r] = cpu_now() - cpu_start;
        }
    }
    if (!st) {
        char what[16];
        snprintf(what, sizeof what, "x%u", n);
        print_row(what, (uint32_t)b->decode * n, seconds, cpu, (uint32_t)b->repeat, 0);
    }
    for (uint32_t i = 0; i < n; i++)
        ifx_sequence_destroy(s[i]);
    base_free(logits);
    return st;
}

static int32_t run(struct bench *b)
{
    uint32_t widest = 1024;
    for (uint32_t i = 0; i < b->n_widths; i++)
        widest = b->widths[i] > widest ? (uint32_t)b->widths[i] : widest;
    struct ifx_context_options co = {.cpu = b->cpu, .threads = (uint32_t)b->threads};
    struct ifx_model_options mo = {.path = b->path, .device = "cpu", .kv_dtype = b->kv, .experts = b->experts,
                                   .prefill_chunk = b->chunk ? (uint32_t)b->chunk : widest,
                                   .max_sequences = (uint32_t)b->streams + 1};
    uint64_t need = 64 + (uint64_t)(b->repeat + 1) * (uint64_t)b->decode;
    mo.ctx = (uint32_t)(need > widest ? need : widest);
    int32_t st = ifx_context_create(&co, &b->ctx);
    double start = base_now();
    if (!st)
        st = ifx_model_open(b->ctx, &mo, &b->model);
    if (!st)
        st = ifx_sequence_create(b->model, &b->sequence);
    if (st)
        return st;
    ifx_model_info(b->model, &b->info);
    b->tokens = base_calloc(widest, sizeof *b->tokens);
    b->logits = base_calloc(b->info.desc->vocab, sizeof *b->logits);
    if (!b->tokens || !b->logits)
        return IFX_ENOMEM;
    uint32_t random = 1;
    for (uint32_t i = 0; i < widest; i++) {
        random = random * 1664525u + 1013904223u;
        b->tokens[i] = (int32_t)((random >> 8) % b->info.desc->vocab);
    }
    printf("%s on %s, %u threads, experts %s, KV %s; loaded in %.1f s\n", b->path, b->info.device, base_pool_threads(ifx_context_pool(b->ctx)),
           b->info.expert_format ? b->info.expert_format : "none", b->info.kv_dtype, base_now() - start);
    printf("%-8s %6s %10s %10s %10s %10s %10s %8s\n", "", "tokens", "tok/s", "worst", "best", "ms", "CPU best", "experts");
    for (uint32_t i = 0; !st && i < b->n_widths; i++)
        st = bench_prompt(b, (uint32_t)b->widths[i]);
    if (!st && b->decode)
        st = bench_decode(b);
    for (uint32_t n = 1; !st && b->streams && n <= b->streams; n = n < b->streams && 2 * n > b->streams ? (uint32_t)b->streams : 2 * n)
        st = bench_streams(b, n);
    return st;
}

int main(int argc, char **argv)
{
    struct bench b = {.repeat = 5, .decode = 64};
    if (argc < 2) {
        fprintf(stderr, "usage: bench_model MODEL [--experts FORMAT] [--threads N] [--cpu LEVEL] [--kv FORMAT] [--repeat N] [--decode N] "
                        "[--chunk N] [--streams N] [WIDTH...]\n");
        return 2;
    }
    int32_t st = read_arguments(argc, argv, &b);
    if (!st && b.repeat < 1)
        st = base_error(IFX_EINVAL, "--repeat must be at least 1");
    if (!st)
        st = run(&b);
    if (st)
        fprintf(stderr, "bench_model: %s\n", base_error_text());
    ifx_sequence_destroy(b.sequence);
    ifx_model_close(b.model);
    ifx_context_destroy(b.ctx);
    base_free(b.tokens);
    base_free(b.logits);
    return st ? 1 : 0;
}
