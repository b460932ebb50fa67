/* SPDX-License-Identifier: Apache-2.0
 *
 * sampling.c - the options that say how text is generated, for run and chat.
 */
#include "config.h"
#include "cli_internal.h"
#include <errno.h>
#include <sys/random.h>
#include <time.h>

static int read_number(struct cli *cli, const char *name, double min, double max, float *out)
{
    double v;
    int failed = cli_float(cli, name, min, max, (double)*out, &v);
    *out = (float)v;
    return failed;
}

static int read_sampling(struct cli *cli, uint32_t vocab, struct ifx_sampling *s)
{
    int64_t top_k, seed;
    int failed = read_number(cli, "--temperature", 0, 100, &s->temperature);
    failed = failed ? failed : cli_int(cli, "--top-k", 0, vocab, s->top_k, &top_k);
    failed = failed ? failed : read_number(cli, "--top-p", 0, 1, &s->top_p);
    failed = failed ? failed : read_number(cli, "--min-p", 0, 1, &s->min_p);
    failed = failed ? failed : read_number(cli, "--presence-penalty", -100, 100, &s->presence_penalty);
    failed = failed ? failed : read_number(cli, "--frequency-penalty", -100, 100, &s->frequency_penalty);
    failed = failed ? failed : read_number(cli, "--repetition-penalty", 0.01, 100, &s->repetition_penalty);
    failed = failed ? failed : cli_int(cli, "--seed", 0, INT64_MAX, (int64_t)s->seed, &seed);
    if (failed)
        return failed;
    if (!(s->top_p > 0))
        return cli_usage(cli, "--top-p: 0 leaves no token; --greedy takes the best one");
    s->top_k = (uint32_t)top_k;
    s->seed = (uint64_t)seed;
    if (cli_flag(cli, "--greedy"))
        s->temperature = 0;
    return 0;
}

/* 31 bits: short enough to be typed again. */
static uint64_t fresh_seed(void)
{
    uint32_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        seed = (uint32_t)time(NULL);
    return seed & 0x7fffffffu;
}

static int read_stop_ids(struct cli *cli, uint32_t vocab, struct cli_generation *out)
{
    const char *const *texts = cli_texts(cli, "--stop-id");
    uint32_t n = 0;
    while (texts[n] != NULL)
        n++;
    if (n == 0)
        return 0;
    out->stop_ids = base_calloc(n, sizeof *out->stop_ids);
    if (out->stop_ids == NULL)
        return cli_fail(cli);
    for (uint32_t i = 0; i < n; i++) {
        int64_t id;
        if (base_parse_i64(texts[i], "--stop-id", 0, (int64_t)vocab - 1, &id))
            return cli_usage(cli, "%s", base_error_text());
        out->stop_ids[i] = (int32_t)id;
    }
    out->g.stop_ids = out->stop_ids;
    out->g.n_stop_ids = n;
    return 0;
}

int cli_generation_options(struct cli *cli, const struct ifx_model *model, struct cli_generation *out)
{
    struct ifx_model_info info = {0};
    uint32_t vocab = INT32_MAX;
    int64_t max_tokens;
    *out = (struct cli_generation){0};
    if (model != NULL) {
        ifx_model_info(model, &info);
        vocab = info.desc->vocab;
        ifx_sampling_default(model, &out->g.sampling);
        out->g.sampling.seed = fresh_seed();
    } else {
        ifx_sampling_greedy(&out->g.sampling);
    }
    int failed = read_sampling(cli, vocab, &out->g.sampling);
    failed = failed ? failed : cli_int(cli, "--max-tokens", 0, INT32_MAX, 0, &max_tokens);
    failed = failed ? failed : read_stop_ids(cli, vocab, out);
    const char *const *stops = cli_texts(cli, "--stop");
    uint32_t n = 0;
    for (; stops[n] != NULL && !failed; n++)
        if (stops[n][0] == 0)
            failed = cli_usage(cli, "--stop: an empty text would stop at once; leave it out");
    if (failed) {
        cli_generation_free(out);
        return failed;
    }
    out->g.stops = stops;
    out->g.n_stops = n;
    out->g.max_tokens = (uint64_t)max_tokens;
    out->g.ignore_stop_ids = cli_flag(cli, "--ignore-eos");
    return 0;
}

void cli_generation_free(struct cli_generation *g)
{
    base_free(g->stop_ids);
    *g = (struct cli_generation){0};
}

const char *cli_finish_name(uint32_t finish)
{
    switch (finish) {
    case IFX_FINISH_STOP: return "stop";
    case IFX_FINISH_LENGTH: return "length";
    case IFX_FINISH_CANCELLED: return "cancelled";
    default: return "unknown";
    }
}

double cli_rate(uint64_t tokens, double seconds)
{
    return seconds > 0 ? (double)tokens / seconds : 0;
}
