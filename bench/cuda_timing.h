/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_timing.h - what the benches of CUDA kernels share: the time of a graph.
 */
#ifndef CUDA_TIMING_H
#define CUDA_TIMING_H

#include "../tests/gpu/mini_cuda.h"

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Seconds of one launch of a graph: the median of some, after a quarter of a second of the same work, since an idle GPU runs at
 * a lower clock. */
static double time_graph(struct mini_cuda *m, void *exec)
{
    enum { REPEATS = 15 };
    void *start, *end;
    float ms[REPEATS], warm = 0;
    mini_must(m->event_create(&start, 0), "event");
    mini_must(m->event_create(&end, 0), "event");
    while (warm < 250.0f) {
        float some = 0;
        mini_must(m->event_record(start, m->stream), "event");
        for (int i = 0; i < 20; i++)
            mini_must(m->graph_launch(exec, m->stream), "graph launch");
        mini_must(m->event_record(end, m->stream), "event");
        mini_sync(m, "graph launch");
        mini_must(m->event_elapsed(&some, start, end), "event");
        warm += some;
    }
    for (int i = 0; i < REPEATS; i++) {
        mini_must(m->event_record(start, m->stream), "event");
        mini_must(m->graph_launch(exec, m->stream), "graph launch");
        mini_must(m->event_record(end, m->stream), "event");
        mini_sync(m, "graph launch");
        mini_must(m->event_elapsed(ms + i, start, end), "event");
    }
    qsort(ms, REPEATS, sizeof *ms, by_value);
    return (double)ms[REPEATS / 2] * 1e-3;
}

#endif
