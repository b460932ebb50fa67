/* SPDX-License-Identifier: Apache-2.0
 *
 * stream.c - streams (a thread and a queue each) and events (generations: a record makes one, a wait waits for the last one).
 *
 * A stream whose work fails does no more work until somebody waits for it and is told.  Events recorded meanwhile
 * carry the failure to the streams that wait for them, so nobody computes with what was never made.
 */
#include "sim.h"

#include <string.h>

static void copy_text(char *to, const char *from)
{
    size_t n = strlen(from);
    n = n < SIM_ERROR_BYTES - 1 ? n : SIM_ERROR_BYTES - 1;
    memcpy(to, from, n);
    to[n] = 0;
}

void sim_error_text(const struct sim_device *d, char *out)
{
    const struct ifx_host *host = d->outer;
    bool has = host->struct_size >= offsetof(struct ifx_host, error_text) + sizeof host->error_text && host->error_text;
    const char *text = has ? host->error_text(host) : "";
    copy_text(out, *text ? text : "device sim: work on a stream failed");
}

/* ---- events ---- */

static void event_drop(struct sim_device *d, struct sim_event *e)
{
    if (--e->references == 0 && e->dead)
        d->outer->free(d->outer, e);
}

static int32_t event_create(struct ifx_device *dev, void **event)
{
    struct sim_device *d = sim_of(dev);
    struct sim_event *e = dev->host->alloc(dev->host, sizeof *e, 64);
    *event = e;
    if (!e)
        return IFX_ENOMEM;
    memset(e, 0, sizeof *e);
    pthread_mutex_lock(&d->lock);
    d->n_events++;
    pthread_mutex_unlock(&d->lock);
    return IFX_OK;
}

static void event_destroy(struct ifx_device *dev, void *event)
{
    struct sim_device *d = sim_of(dev);
    struct sim_event *e = event;
    if (!e)
        return;
    pthread_mutex_lock(&d->lock);
    d->n_events--;
    e->dead = true;
    e->references++;
    event_drop(d, e);
    pthread_mutex_unlock(&d->lock);
}

/* Reports a failure once and forgets it. */
static int32_t report(struct sim_device *d, int32_t *status, const char *text)
{
    int32_t st = *status;
    *status = IFX_OK;
    return st ? d->outer->error(d->outer, st, "%s", text) : IFX_OK;
}

static int32_t event_query(struct ifx_device *dev, void *event, uint32_t *done)
{
    struct sim_device *d = sim_of(dev);
    struct sim_event *e = event;
    int32_t st = IFX_OK;
    pthread_mutex_lock(&d->lock);
    if (d->virtual_clock) {
        /* Asking takes time too, or a host that polls would wait for ever. */
        sim_settle(d);
        d->host_at += d->model.launch;
        *done = e->at <= d->host_at;
    } else {
        *done = e->done >= e->recorded;
    }
    if (*done)
        st = report(d, &e->status, e->text);
    pthread_mutex_unlock(&d->lock);
    return st;
}

static int32_t event_sync(struct ifx_device *dev, void *event)
{
    struct sim_device *d = sim_of(dev);
    struct sim_event *e = event;
    pthread_mutex_lock(&d->lock);
    uint64_t wanted = e->recorded;
    sim_settle(d);
    double at = e->at;
    while (e->done < wanted)
        pthread_cond_wait(&d->changed, &d->lock);
    d->host_at = at > d->host_at ? at : d->host_at;
    int32_t st = report(d, &e->status, e->text);
    pthread_mutex_unlock(&d->lock);
    return st;
}

/* ---- nodes ---- */

static struct sim_node *node_create(struct sim_device *d, uint64_t payload_bytes)
{
    struct sim_node *n = d->outer->alloc(d->outer, sizeof *n + payload_bytes, 64);
    if (!n)
        return NULL;
    memset(n, 0, sizeof *n);
    n->payload_bytes = payload_bytes;
    return n;
}

struct sim_node *sim_node_copy(struct sim_device *d, const struct sim_node *node)
{
    struct sim_node *n = node_create(d, node->payload_bytes);
    if (!n)
        return NULL;
    memcpy(n, node, sizeof *n + node->payload_bytes);
    n->next = n->later = NULL;
    if (n->event)
        n->event->references++;
    return n;
}

void sim_node_free(struct sim_device *d, struct sim_node *node)
{
    if (node->event)
        event_drop(d, node->event);
    d->outer->free(d->outer, node);
}

/* ---- the stream's thread ---- */

/* Work of one node, without the lock. */
static int32_t run_node(struct sim_device *d, const struct sim_node *n)
{
    if (n->fail)
        return d->outer->error(d->outer, n->fail, "device sim: a failure was asked for (fail-late)");
    if (!n->copy) {
        pthread_mutex_lock(&d->compute);
        double t0 = sim_real_now();
        int32_t st = n->run(d, n->payload);
        if (!d->virtual_clock && d->model.speed < 1)
            sim_sleep_until(t0 + (sim_real_now() - t0) / d->model.speed);
        pthread_mutex_unlock(&d->compute);
        return st;
    }
    uint32_t link = n->cost.engine == SIM_LINK_FROM;
    pthread_mutex_lock(&d->links[link]);
    double t0 = sim_real_now();
    double start = d->link_free[link] > t0 ? d->link_free[link] : t0;
    int32_t st = n->run(d, n->payload);
    if (!d->virtual_clock)
        sim_sleep_until(d->link_free[link] = start + sim_copy_seconds(d, &n->cost));
    pthread_mutex_unlock(&d->links[link]);
    return st;
}

static void fail_stream(struct sim_stream *s, int32_t status, const char *text)
{
    if (s->status)
        return;
    s->status = status;
    copy_text(s->text, text);
}

/* One node; the lock is held on entry and on return. */
static void execute(struct sim_stream *s, struct sim_node *n)
{
    struct sim_device *d = s->d;
    struct sim_event *e = n->event;
    if (n->kind == SIM_RECORD) {
        e->status = s->status;
        if (s->status)
            copy_text(e->text, s->text);
        e->done = n->generation > e->done ? n->generation : e->done;
    } else if (n->kind == SIM_WAIT) {
        while (e->done < n->generation)
            pthread_cond_wait(&d->changed, &d->lock);
        if (e->status)
            fail_stream(s, e->status, e->text);
    } else if (!s->status) {
        char text[SIM_ERROR_BYTES];
        pthread_mutex_unlock(&d->lock);
        int32_t st = run_node(d, n);
        if (st)
            sim_error_text(d, text);
        pthread_mutex_lock(&d->lock);
        if (n->work)
            n->cost = sim_work_cost(n->work);
        if (st)
            fail_stream(s, st, text);
    }
}

static void *stream_main(void *arg)
{
    struct sim_stream *s = arg;
    struct sim_device *d = s->d;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        struct sim_node *n = s->first;
        if (!n) {
            if (s->stop)
                break;
            pthread_cond_wait(&s->wake, &d->lock);
            continue;
        }
        execute(s, n);
        s->first = n->next;
        if (!s->first)
            s->last = NULL;
        if (!d->virtual_clock) /* else it is in the log */
            sim_node_free(d, n);
        s->completed++;
        pthread_cond_broadcast(&d->changed);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- streams ---- */

static int32_t stream_create(struct ifx_device *dev, void **stream)
{
    struct sim_device *d = sim_of(dev);
    struct sim_stream *s = dev->host->alloc(dev->host, sizeof *s, 64);
    *stream = NULL;
    if (!s)
        return IFX_ENOMEM;
    memset(s, 0, sizeof *s);
    s->d = d;
    pthread_cond_init(&s->wake, NULL);
    if (pthread_create(&s->thread, NULL, stream_main, s) != 0) {
        pthread_cond_destroy(&s->wake);
        dev->host->free(dev->host, s);
        return dev->host->error(dev->host, IFX_ENOMEM, "device sim: the thread of a stream cannot be started");
    }
    pthread_mutex_lock(&d->lock);
    s->at = d->host_at;
    s->next = d->streams;
    d->streams = s;
    pthread_mutex_unlock(&d->lock);
    *stream = s;
    return IFX_OK;
}

static void stream_destroy(struct ifx_device *dev, void *stream)
{
    struct sim_device *d = sim_of(dev);
    struct sim_stream *s = stream;
    if (!s)
        return;
    pthread_mutex_lock(&d->lock);
    sim_settle(d);
    for (struct sim_stream **at = &d->streams; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    s->stop = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&d->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->wake);
    dev->host->free(dev->host, s);
}

static int32_t stream_sync(struct ifx_device *dev, void *stream)
{
    struct sim_device *d = sim_of(dev);
    struct sim_stream *s = stream;
    pthread_mutex_lock(&d->lock);
    if (s->recording) {
        pthread_mutex_unlock(&d->lock);
        return dev->host->error(dev->host, IFX_EINVAL, "device sim: nobody can wait for a stream that is being captured");
    }
    uint64_t wanted = s->submitted;
    sim_settle(d);
    double at = s->at;
    while (s->completed < wanted)
        pthread_cond_wait(&d->changed, &d->lock);
    d->host_at = at > d->host_at ? at : d->host_at;
    int32_t st = report(d, &s->status, s->text);
    pthread_mutex_unlock(&d->lock);
    return st;
}

static void add_to_log(struct sim_stream *s, struct sim_node *node)
{
    struct sim_device *d = s->d;
    node->stream = s;
    node->enqueued = d->host_at;
    if (d->log_last)
        d->log_last->later = node;
    else
        d->log = node;
    d->log_last = node;
}

void sim_submit(struct sim_stream *s, struct sim_node *node)
{
    if (node->kind == SIM_RECORD)
        node->generation = ++node->event->recorded;
    else if (node->kind == SIM_WAIT)
        node->generation = node->event->recorded;
    if (s->d->virtual_clock)
        add_to_log(s, node);
    if (s->last)
        s->last->next = node;
    else
        s->first = node;
    s->last = node;
    s->submitted++;
    pthread_cond_signal(&s->wake);
}

/* To the stream, or to the graph being recorded. */
static void place(struct sim_stream *s, struct sim_node *n)
{
    struct sim_graph *g = s->recording;
    n->stream = s;
    if (!g) {
        sim_submit(s, n);
        return;
    }
    if (g->last)
        g->last->next = n;
    else
        g->first = n;
    g->last = n;
    g->nodes++;
}

int32_t sim_enqueue(struct ifx_device *dev, void *stream, const struct sim_work *work)
{
    struct sim_device *d = sim_of(dev);
    struct sim_stream *s = stream;
    struct sim_node *n = node_create(d, work->bytes);
    if (!n)
        return IFX_ENOMEM;
    n->kind = SIM_WORK;
    n->run = work->run;
    n->cost = work->cost;
    n->work = work->work;
    n->copy = work->copy;
    n->fail = work->fail;
    memcpy(n->payload, work->payload, work->bytes);
    pthread_mutex_lock(&d->lock);
    if (!s->recording)
        sim_clock_launch(d);
    place(s, n);
    pthread_mutex_unlock(&d->lock);
    return IFX_OK;
}

/* As on a real device, a capture spreads along events. */
static void join_capture(struct sim_device *d, struct sim_stream *s, struct sim_event *e, enum sim_kind kind)
{
    if (kind == SIM_RECORD)
        e->capture = s->recording ? s->recording->capture : 0;
    for (struct sim_stream *other = d->streams; other && kind == SIM_WAIT && e->capture && !s->recording; other = other->next)
        if (other->recording && other->recording->capture == e->capture)
            s->recording = other->recording;
}

static int32_t event_node(struct ifx_device *dev, void *event, void *stream, enum sim_kind kind)
{
    struct sim_device *d = sim_of(dev);
    struct sim_node *n = node_create(d, 0);
    if (!n)
        return IFX_ENOMEM;
    n->kind = kind;
    n->event = event;
    pthread_mutex_lock(&d->lock);
    n->event->references++;
    join_capture(d, stream, n->event, kind);
    place(stream, n);
    pthread_mutex_unlock(&d->lock);
    return IFX_OK;
}

static int32_t event_record(struct ifx_device *dev, void *event, void *stream)
{
    return event_node(dev, event, stream, SIM_RECORD);
}

static int32_t event_wait(struct ifx_device *dev, void *event, void *stream)
{
    return event_node(dev, event, stream, SIM_WAIT);
}

int32_t sim_inject(struct sim_device *d, int64_t *count, int64_t nth, int32_t status, const char *what, int32_t *late)
{
    if (++*count != nth)
        return IFX_OK;
    if (d->fail_late && late) {
        *late = status;
        return IFX_OK;
    }
    return d->outer->error(d->outer, status, "device sim: %s number %lld fails, as asked for", what, (long long)nth);
}

void sim_fill_streams(struct ifx_device_ops *ops)
{
    ops->stream_create = stream_create;
    ops->stream_destroy = stream_destroy;
    ops->stream_sync = stream_sync;
    ops->event_create = event_create;
    ops->event_destroy = event_destroy;
    ops->event_record = event_record;
    ops->event_wait = event_wait;
    ops->event_query = event_query;
    ops->event_sync = event_sync;
}
