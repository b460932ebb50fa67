/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_pool.c - what one parallel region costs: microseconds a run of tasks that do next to nothing, hot (runs follow each other), warm
 * (10 us of the caller's own work between them) and cold (the workers sleep).  Not a test: run it by hand.
 */
#include "config.h"
#include "base.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define RUNS 2001

static int32_t small_task(void *ctx, uint64_t task, uint32_t worker)
{
    volatile uint32_t *sink = ctx;
    (void)worker;
    sink[16 * (task % 64)]++;
    return IFX_OK;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Median of the microseconds of one run. */
static double median_us(struct base_pool *pool, uint64_t n_tasks, double pause_us, int runs)
{
    static double t[RUNS];
    static uint32_t sink[16 * 64];
    for (int i = 0; i < runs; i++) {
        double until = base_now() + 1e-6 * pause_us;
        if (pause_us >= 1000)
            nanosleep(&(struct timespec){0, (long)(pause_us * 1000)}, NULL);
        while (base_now() < until)
            ;
        double start = base_now();
        if (base_pool_run(pool, n_tasks, small_task, sink) != IFX_OK)
            exit(1);
        t[i] = 1e6 * (base_now() - start);
    }
    qsort(t, (size_t)runs, sizeof *t, ascending);
    return t[runs / 2];
}

int main(int argc, char **argv)
{
    uint32_t max = argc > 1 ? (uint32_t)atoi(argv[1]) : base_usable_cpus();
    printf("threads  tasks   hot us  warm us  cold us\n");
    for (uint32_t n = 1; n <= max; n = n < max && n * 2 > max ? max : n * 2) {
        struct base_pool *pool;
        if (base_pool_create(n, false, &pool) != IFX_OK) {
            fprintf(stderr, "%s\n", base_error_text());
            return 1;
        }
        for (uint64_t tasks = n; tasks <= 4 * n; tasks *= 4)
            printf("%7u %6llu %8.2f %8.2f %8.2f\n", n, (unsigned long long)tasks, median_us(pool, tasks, 0, RUNS),
                   median_us(pool, tasks, 10, RUNS), median_us(pool, tasks, 1000, 201));
        base_pool_destroy(pool);
    }
    return 0;
}
