/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_report.c - the results of `infernix bench`: table, JSON, CSV, chart.
 */
#include "config.h"
#include "bench.h"
#include "chart.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPREAD_WARNING 0.10

struct summary {
    double median, mean, min, max, spread; /* spread: (max - min) / median */
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct summary summarise(const double *rates, uint32_t n)
{
    double sorted[BENCH_REPEATS];
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
    double ratios[BENCH_REPEATS];
    *wins = 0;
    for (uint32_t r = 0; r < b->repeats; r++) {
        ratios[r] = b->arms[arm].rates[test][r] / b->arms[0].rates[test][r];
        *wins += ratios[r] > 1;
    }
    return summarise(ratios, b->repeats).median;
}

/* ---- experts on their way ---- */

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

static double hit_rate(const struct bench_traffic *t)
{
    return share((double)t->moved.hits, (double)(t->moved.hits + t->moved.misses));
}

static bool has_traffic(const struct bench *b)
{
    for (uint32_t i = 0; i < b->n_arms; i++)
        for (uint32_t t = 0; t < b->n_tests; t++)
            if (b->arms[i].traffic[t].moved.calls > 0)
                return true;
    return false;
}

/* Of one repetition, but for the shares. */
static json_t *traffic_json(const struct bench *b, const struct bench_traffic *t)
{
    double n = b->repeats;
    const struct ifx_offload_stats *m = &t->moved;
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I}", "calls",
                     (double)m->calls / n, "streamed_calls", (double)m->streamed_calls / n, "assisted_calls",
                     (double)m->assisted_calls / n, "hits", (double)m->hits / n, "misses", (double)m->misses / n, "hit_rate",
                     hit_rate(t), "link_experts", (double)m->link_experts / n, "cpu_experts", (double)m->cpu_experts / n,
                     "link_bytes", (double)m->link_bytes / n, "promoted_bytes", (double)m->promoted_bytes / n,
                     "link_bytes_per_second", share((double)m->link_bytes, t->seconds), "link_busy",
                     share(m->link_busy_seconds, t->seconds), "cpu_busy", share(m->cpu_busy_seconds, t->seconds), "frames",
                     (json_int_t)m->frames, "frames_used", (json_int_t)m->frames_used, "frame_bytes", (json_int_t)m->frame_bytes);
}

/* Rows of on-disk tables of one repetition; the share of its time that layers waited for them. */
static json_t *rows_json(const struct bench *b, const struct bench_traffic *t)
{
    double n = b->repeats;
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "asked", (double)t->rows.rows / n, "unique", (double)t->rows.unique_rows / n, "read",
                     (double)t->rows.read_rows / n, "read_bytes", (double)t->rows.read_bytes / n, "waiting",
                     share(t->rows.wait_seconds, t->seconds));
}

static void print_rows(const struct bench *b)
{
    char bytes[32];
    for (uint32_t t = 0; t < b->n_tests; t++)
        for (uint32_t i = 0; i < b->n_arms; i++) {
            const struct bench_traffic *m = &b->arms[i].traffic[t];
            if (!m->rows.rows)
                continue;
            text_bytes(bytes, m->rows.read_bytes / b->repeats);
            printf("table rows, %s %u%s%s: %.0f asked for, %.0f read (%s), waiting for them %.2f %% of the time\n",
                   b->tests[t].decode ? "decode" : "prompt", b->tests[t].n, *b->arms[i].text ? ", " : "", b->arms[i].text,
                   (double)m->rows.rows / b->repeats, (double)m->rows.read_rows / b->repeats, bytes,
                   100 * share(m->rows.wait_seconds, m->seconds));
        }
}

/* NULL: none is in force. */
static json_t *policy_json(struct bench_arm *a)
{
    const struct ifx_assist_policy *p = ifx_assist_policy(a->model);
    json_t *ramp = json_array();
    if (p == NULL) {
        json_decref(ramp);
        return json_null();
    }
    for (uint32_t i = 0; i < p->n_points; i++)
        json_array_append_new(ramp, json_pack("[I, I]", (json_int_t)p->points[i].columns, (json_int_t)p->points[i].share));
    return json_pack("{s:s, s:I, s:o}", "mode", cli_text(&a->cli, "--assist", "ramp"), "max_columns", (json_int_t)p->max_columns,
                     "ramp", ramp);
}

/* ---- rows ---- */

static json_t *row_json(struct bench *b, uint32_t arm, uint32_t test)
{
    struct bench_arm *a = &b->arms[arm];
    struct summary s = summarise(a->rates[test], b->repeats);
    json_t *values = json_array();
    uint32_t wins;
    double r = ratio(b, arm, test, &wins);
    for (uint32_t i = 0; values != NULL && i < b->repeats; i++)
        json_array_append_new(values, json_real(a->rates[test][i]));
    return json_pack("{s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:b, s:f, s:f, s:I, s:I, s:o, s:o, s:o}", "arm", a->text, "test",
                     b->tests[test].decode ? "decode" : "prompt", "tokens", (json_int_t)b->tests[test].n, "computed",
                     (json_int_t)a->computed[test], "median", s.median, "mean", s.mean, "min", s.min, "max", s.max, "spread",
                     s.spread, "steady", s.spread <= SPREAD_WARNING, "experts_touched", a->experts[test], "ratio", r, "wins",
                     (json_int_t)wins, "repeats", (json_int_t)b->repeats, "tokens_per_second", values, "experts", traffic_json(b, &a->traffic[test]), "table_rows",
                     rows_json(b, &a->traffic[test]));
}

int bench_print_json(struct bench *b)
{
    json_t *rows = json_array(), *setups = json_array();
    for (uint32_t i = 0; i < b->n_arms; i++) {
        json_t *setup = cli_setup_json(&b->arms[i].cli, b->arms[i].model);
        json_object_set_new(setup, "assist", policy_json(&b->arms[i]));
        json_array_append_new(setups, setup);
    }
    for (uint32_t t = 0; t < b->n_tests; t++)
        for (uint32_t i = 0; i < b->n_arms; i++)
            json_array_append_new(rows, row_json(b, i, t));
    return cli_print_json(b->cli, json_pack("{s:o, s:o}", "results", rows, "setups", setups));
}

void bench_print_csv(struct bench *b)
{
    char n[11][32];
    printf("arm,test,tokens,computed,median,mean,min,max,spread,experts_touched,hits,misses,link_bytes,cpu_busy,link_busy,wins,"
           "repeats\n");
    for (uint32_t t = 0; t < b->n_tests; t++) {
        for (uint32_t i = 0; i < b->n_arms; i++) {
            struct bench_arm *a = &b->arms[i];
            struct summary s = summarise(a->rates[t], b->repeats);
            const struct bench_traffic *m = &a->traffic[t];
            double each = b->repeats;
            const double values[11] = {s.median, s.mean, s.min, s.max, s.spread, a->experts[t], (double)m->moved.hits / each,
                                       (double)m->moved.misses / each, (double)m->moved.link_bytes / each,
                                       share(m->moved.cpu_busy_seconds, m->seconds), share(m->moved.link_busy_seconds, m->seconds)};
            uint32_t wins;
            ratio(b, i, t, &wins);
            for (uint32_t k = 0; k < 11; k++)
                base_format_f64(n[k], values[k]);
            printf("\"%s\",%s,%u,%llu,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%u,%u\n", a->text, b->tests[t].decode ? "decode" : "prompt",
                   b->tests[t].n, (unsigned long long)a->computed[t], n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9],
                   n[10], wins, b->repeats);
        }
    }
}

static void print_traffic(const struct bench *b, const struct bench_traffic *t)
{
    char bytes[32];
    text_bytes(bytes, t->moved.link_bytes / b->repeats);
    printf(" %4.0f %% %10s %5.0f  %5.0f", 100 * hit_rate(t), bytes, 100 * share(t->moved.link_busy_seconds, t->seconds),
           100 * share(t->moved.cpu_busy_seconds, t->seconds));
}

void bench_print_table(struct bench *b)
{
    bool noisy = false, traffic = has_traffic(b);
    printf("%-8s %6s %8s %10s %10s %10s %10s %7s %8s%s%s\n", "TEST", "TOKENS", "COMPUTED", "MEDIAN", "MEAN", "MIN", "MAX", "SPREAD",
           "EXPERTS", traffic ? "   HITS       LINK LINK%   CPU%" : "", b->n_arms > 1 ? "  RATIO   WINS  ARM" : "");
    for (uint32_t t = 0; t < b->n_tests; t++) {
        for (uint32_t i = 0; i < b->n_arms; i++) {
            struct bench_arm *a = &b->arms[i];
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
            if (traffic)
                print_traffic(b, &a->traffic[t]);
            if (b->n_arms > 1)
                printf("  %5.3f  %2u:%-2u  %s", r, wins, b->repeats - wins, a->text);
            printf("\n");
        }
    }
    printf("tok/s over %u repetitions; SPREAD is (max - min) / median; EXPERTS: touched a layer and step, mean\n", b->repeats);
    if (traffic)
        printf("HITS: experts found on the device; LINK: bytes to it a repetition; LINK%%, CPU%%: of the time they were busy\n");
    if (b->n_arms > 1)
        printf("RATIO and WINS: repetition by repetition against the first arm\n");
    print_rows(b);
    if (noisy)
        base_log(IFX_LOG_WARN, "spread over 10 %%: something else was running, or more repetitions are needed (-r)");
}


/* ---- chart ---- */

static uint32_t mark_limits(struct bench *b, struct chart *c, char texts[BENCH_ARMS][64])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_arms; i++) {
        const struct ifx_assist_policy *p = ifx_assist_policy(b->arms[i].model);
        uint32_t k = 0;
        if (p == NULL || strcmp(cli_text(&b->arms[i].cli, "--assist", "ramp"), "ramp") != 0)
            continue;
        while (k < n && (uint32_t)c->marks[k].x != p->max_columns)
            k++;
        if (k < n)
            continue;
        snprintf(texts[n], 64, "assisted up to %u columns", p->max_columns);
        c->marks[n] = (struct chart_mark){p->max_columns, texts[n]};
        n++;
    }
    return n;
}

static int32_t fill_series(struct bench *b, uint32_t arm, bool decode, struct chart_series *s)
{
    s->points = base_calloc(b->n_tests, sizeof *s->points);
    if (s->points == NULL)
        return IFX_ENOMEM;
    for (uint32_t t = 0; t < b->n_tests; t++) {
        if (b->tests[t].decode != decode)
            continue;
        struct summary sum = summarise(b->arms[arm].rates[t], b->repeats);
        uint32_t at = s->n++;
        for (; at > 0 && s->points[at - 1].x > b->tests[t].n; at--)
            s->points[at] = s->points[at - 1];
        s->points[at] = (struct chart_point){b->tests[t].n, sum.mean, sum.min, sum.max};
    }
    return IFX_OK;
}

int32_t bench_plot(struct bench *b, const char *path)
{
    struct ifx_model_info info;
    struct chart c = {.y_label = "tokens a second"};
    char marks[BENCH_ARMS][64];
    bool decode = true;
    int32_t st = IFX_OK;
    for (uint32_t t = 0; t < b->n_tests; t++)
        decode = decode && b->tests[t].decode;
    ifx_model_info(b->arms[0].model, &info);
    c.title = decode ? "Decoding speed" : "Prompt speed over prompt length";
    c.x_label = decode ? "tokens decoded" : "prompt tokens";
    char *subtitle = b->synthetic.g.name
                         ? base_format("%s, %u layers, experts %s; %s; mean of %u, bars from least to most", b->synthetic.g.description,
                                       b->synthetic.g.layers, b->synthetic.format, info.device, b->repeats)
                         : base_format("%s; %s; mean of %u, bars from least to most", info.path, info.device, b->repeats);
    c.subtitle = subtitle;
    for (uint32_t i = 0; i < b->n_arms && st == IFX_OK; i++) {
        c.series[i].name = *b->arms[i].text ? b->arms[i].text : info.device;
        c.n_series++;
        st = fill_series(b, i, decode, &c.series[i]);
    }
    if (!decode)
        c.n_marks = mark_limits(b, &c, marks);
    if (st == IFX_OK)
        st = subtitle ? chart_write(&c, path) : IFX_ENOMEM;
    for (uint32_t i = 0; i < c.n_series; i++)
        base_free(c.series[i].points);
    base_free(subtitle);
    return st;
}
