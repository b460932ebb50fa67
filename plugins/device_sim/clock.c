/* SPDX-License-Identifier: Apache-2.0
 *
 * clock.c - the virtual clock: when each piece of work would begin and end on the machine that the options describe.
 *
 * The model.  There is one timeline of the host and one of each stream.  Work enqueued begins when the host has enqueued it, what
 * stands before it on its stream is done, and its engine is free; engines take work in the order in which it is enqueued:
 *   compute      the slower of bytes / vram-bandwidth and operations / flops (experts: / expert-flops), at least `kernel`;
 *                all divided by `speed`
 *   two links    to and from the device at once: bytes / link each, and `latency` until the last byte is there
 *   host         expert work of the CPU: the slower of operations / cpu-flops and of bytes through the DRAM, whose rate is
 *                what the links leave: dram - link while one of them is busy.  The link itself is never slowed down.
 * Waiting for an event or stream moves the host to its time.  Enqueueing costs the host `launch`, once for a whole graph.
 *
 * Work is put on the timeline in the order in which it was enqueued, whenever the host waits or says what it did itself.  By then
 * all of it has run, so a host call may find out its cost while running, and neither threads nor the speed of this machine change
 * anything.  (One host thread is assumed: with several, the order is theirs to keep.)
 */
#define _GNU_SOURCE /* clock_gettime, nanosleep */
#include "sim.h"

#include <string.h>
#include <time.h>

double sim_real_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void sim_sleep_until(double at)
{
    double left = at - sim_real_now();
    while (left > 0) {
        struct timespec t = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
        nanosleep(&t, NULL);
        left = at - sim_real_now();
    }
}

double sim_now(struct ifx_device *dev)
{
    struct sim_device *d = sim_of(dev);
    if (!d->virtual_clock)
        return sim_real_now();
    pthread_mutex_lock(&d->lock);
    double at = d->host_at;
    pthread_mutex_unlock(&d->lock);
    return at;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* ---- sizes as those of a larger geometry ---- */

static double copy_bytes(const struct sim_model *m, const struct sim_cost *c)
{
    return c->records ? c->records * m->large_record : c->bytes * m->column_scale;
}

static void work_size(const struct sim_model *m, const struct sim_cost *c, double *bytes, double *flops)
{
    if (c->experts) {
        *bytes = m->small_record ? c->bytes / (double)m->small_record * m->large_record : c->bytes;
        *flops = c->flops * m->expert_scale;
    } else {
        *bytes = c->bytes * (c->flops > 0 ? m->dense_scale : m->column_scale);
        *flops = c->flops * m->dense_scale;
    }
}

double sim_copy_seconds(const struct sim_device *d, const struct sim_cost *cost)
{
    return d->model.latency + (d->model.link > 0 ? copy_bytes(&d->model, cost) / d->model.link : 0);
}

/* ---- the links' busy times ---- */

static void forget_spans(struct sim_device *d)
{
    uint32_t gone = 0;
    while (gone < d->n_spans && d->spans[gone].end <= d->host_at)
        gone++;
    memmove(d->spans, d->spans + gone, (d->n_spans - gone) * sizeof *d->spans);
    d->n_spans -= gone;
}

/* Adds [begin, end); what overlaps or touches becomes one. */
static void add_span(struct sim_device *d, double begin, double end)
{
    uint32_t from = 0, to;
    forget_spans(d);
    while (from < d->n_spans && d->spans[from].end < begin)
        from++;
    for (to = from; to < d->n_spans && d->spans[to].begin <= end; to++) {
        begin = d->spans[to].begin < begin ? d->spans[to].begin : begin;
        end = larger(end, d->spans[to].end);
    }
    if (to == from && d->n_spans == d->span_room) {
        uint32_t wider = d->span_room ? d->span_room * 2 : 64;
        struct sim_span *grown = d->outer->alloc(d->outer, wider * sizeof *grown, 64);
        if (!grown)
            return; /* the CPU then runs a little too fast; no result depends on it */
        if (d->n_spans)
            memcpy(grown, d->spans, d->n_spans * sizeof *grown);
        if (d->spans)
            d->outer->free(d->outer, d->spans);
        d->spans = grown;
        d->span_room = wider;
    }
    memmove(d->spans + from + 1, d->spans + to, (d->n_spans - to) * sizeof *d->spans);
    d->n_spans = d->n_spans - (to - from) + 1;
    d->spans[from] = (struct sim_span){begin, end};
}

/* When `bytes` have come through the DRAM, beginning at `at`, with what the links leave. */
static double dram_done(const struct sim_device *d, double at, double bytes)
{
    double whole = d->model.dram, rest = whole - d->model.link;
    if (whole <= 0)
        return at;
    rest = larger(rest, whole / 16);
    for (uint32_t i = 0; i < d->n_spans; i++) {
        const struct sim_span *s = &d->spans[i];
        if (s->end <= at)
            continue;
        double clear = larger(s->begin - at, 0) * whole;
        if (bytes <= clear)
            return at + bytes / whole;
        bytes -= clear;
        at = larger(at, s->begin);
        double busy = (s->end - at) * rest;
        if (bytes <= busy)
            return at + bytes / rest;
        bytes -= busy;
        at = s->end;
    }
    return at + bytes / whole;
}

/* ---- placing work ---- */

static double host_done(const struct sim_device *d, double at, const struct sim_cost *c)
{
    double bytes, flops;
    work_size(&d->model, c, &bytes, &flops);
    return larger(dram_done(d, at, bytes), d->model.host_flops > 0 ? at + flops / d->model.host_flops : at);
}

static double compute_seconds(const struct sim_device *d, const struct sim_cost *c)
{
    const struct sim_model *m = &d->model;
    double bytes, flops, rate = c->experts ? m->expert_flops : m->flops;
    work_size(m, c, &bytes, &flops);
    double t = larger(m->memory > 0 ? bytes / m->memory : 0, rate > 0 ? flops / rate : 0);
    return larger(t, m->kernel) / m->speed;
}

void sim_clock_launch(struct sim_device *d)
{
    if (d->virtual_clock)
        d->host_at += d->model.launch;
}

static void place(struct sim_device *d, const struct sim_node *n)
{
    struct sim_stream *s = n->stream;
    if (n->kind == SIM_RECORD) {
        n->event->at = larger(s->at, n->enqueued);
        return;
    }
    if (n->kind == SIM_WAIT) {
        s->at = larger(s->at, n->event->at);
        return;
    }
    double *engine = &d->engine_at[n->cost.engine];
    double start = larger(s->at, n->enqueued);
    if (n->cost.engine == SIM_NONE) {
        s->at = start;
        return;
    }
    start = larger(start, *engine);
    if (n->cost.engine == SIM_COMPUTE) {
        s->at = *engine = start + compute_seconds(d, &n->cost);
    } else if (n->cost.engine == SIM_HOST) {
        s->at = *engine = host_done(d, start, &n->cost);
    } else {
        s->at = start + sim_copy_seconds(d, &n->cost);
        *engine = s->at - d->model.latency;
        add_span(d, start, *engine);
    }
}

void sim_settle(struct sim_device *d)
{
    if (!d->virtual_clock)
        return;
    for (struct sim_stream *s = d->streams; s;) {
        bool idle = s->completed == s->submitted;
        if (!idle)
            pthread_cond_wait(&d->changed, &d->lock);
        s = idle ? s->next : d->streams;
    }
    while (d->log) {
        struct sim_node *n = d->log;
        d->log = n->later;
        place(d, n);
        sim_node_free(d, n);
    }
    d->log_last = NULL;
}

struct sim_cost sim_work_cost(const struct ifx_work *w)
{
    if (!w)
        return (struct sim_cost){.engine = SIM_NONE};
    bool host = w->kind == IFX_WORK_HOST_EXPERTS || w->kind == IFX_WORK_HOST_OTHER;
    bool experts = w->kind == IFX_WORK_HOST_EXPERTS || w->kind == IFX_WORK_DEVICE_EXPERTS;
    return (struct sim_cost){.engine = host ? SIM_HOST : SIM_COMPUTE,
                             .experts = experts ? (w->experts ? w->experts : 1) : 0,
                             .bytes = (double)w->bytes,
                             .flops = w->flops};
}

void sim_host_work(struct ifx_device *dev, const struct ifx_work *work)
{
    struct sim_device *d = sim_of(dev);
    struct sim_cost c = sim_work_cost(work);
    if (!d->virtual_clock)
        return;
    pthread_mutex_lock(&d->lock);
    sim_settle(d);
    d->host_at = host_done(d, larger(d->host_at, d->engine_at[SIM_HOST]), &c);
    pthread_mutex_unlock(&d->lock);
}
