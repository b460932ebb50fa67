/* SPDX-License-Identifier: Apache-2.0
 *
 * bench.h - what the files of `infernix bench` share.
 */
#ifndef INFERNIX_CLI_BENCH_H
#define INFERNIX_CLI_BENCH_H

#include "cli_internal.h"
#include "synthetic.h"

#define BENCH_LENGTHS 64
#define BENCH_ARMS    8
#define BENCH_REPEATS 1000

struct bench_test {
    bool decode;
    uint32_t n;
};
/* Sums over the measured repetitions of one row. */
struct bench_traffic {
    struct ifx_offload_stats moved; /* differences; frames as they are at the end */
    struct ifx_table_stats rows;    /* differences too */
    double seconds;
};
struct bench_arm {
    struct cli cli;
    const char *text;
    struct ifx_model *model;
    struct ifx_sequence *sequence;
    float *logits;
    double *rates[2 * BENCH_LENGTHS];   /* [test][repeat]: tok/s */
    double experts[2 * BENCH_LENGTHS];  /* experts touched a layer and step, mean; 0 when dense */
    uint64_t computed[2 * BENCH_LENGTHS];
    struct bench_traffic traffic[2 * BENCH_LENGTHS];
};
struct bench {
    struct cli *cli;
    struct bench_test tests[2 * BENCH_LENGTHS];
    uint32_t n_tests, n_arms, repeats, depth, longest, longest_prompt; /* depth 0: not given */
    struct bench_arm arms[BENCH_ARMS];
    int32_t *ids;
    uint64_t n_ids;
    struct synthetic synthetic; /* g.name NULL: none */
    double byte_scale;          /* of its records, when shrunk; else 1 */
    char *made;                 /* its path in memory */
    int made_fd;
};

/* bench_report.c */
int bench_print_json(struct bench *b);
void bench_print_csv(struct bench *b);
void bench_print_table(struct bench *b);
int32_t bench_plot(struct bench *b, const char *path);
/* bench_make.c: --make */
int bench_make(struct cli *cli);

#endif
