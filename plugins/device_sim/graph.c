/* SPDX-License-Identifier: Apache-2.0
 *
 * graph.c - graphs: the list of what was enqueued between begin and end, put on a stream again at each launch.  A stream that waits
 * for an event recorded in a capture joins it.
 */
#include "sim.h"

#include <string.h>

static void graph_free(struct sim_device *d, struct sim_graph *g)
{
    for (struct sim_node *n = g->first, *next; n; n = next) {
        next = n->next;
        sim_node_free(d, n);
    }
    d->outer->free(d->outer, g);
}

static int32_t graph_begin(struct ifx_device *dev, void *stream)
{
    struct sim_device *d = sim_of(dev);
    struct sim_stream *s = stream;
    struct sim_graph *g = dev->host->alloc(dev->host, sizeof *g, 64);
    if (!g)
        return IFX_ENOMEM;
    memset(g, 0, sizeof *g);
    pthread_mutex_lock(&d->lock);
    bool busy = s->recording != NULL;
    if (!busy)
        s->recording = g;
    g->origin = s;
    g->capture = ++d->captures;
    pthread_mutex_unlock(&d->lock);
    if (!busy)
        return IFX_OK;
    dev->host->free(dev->host, g);
    return dev->host->error(dev->host, IFX_EINVAL, "device sim: the stream is being captured already");
}

static int32_t graph_end(struct ifx_device *dev, void *stream, void **graph)
{
    struct sim_device *d = sim_of(dev);
    struct sim_stream *s = stream;
    pthread_mutex_lock(&d->lock);
    *graph = s->recording;
    for (struct sim_stream *joined = d->streams; joined; joined = joined->next)
        if (joined->recording == *graph)
            joined->recording = NULL;
    pthread_mutex_unlock(&d->lock);
    return *graph ? IFX_OK : dev->host->error(dev->host, IFX_EINVAL, "device sim: the stream is not being captured");
}

/* All nodes or none: a launch that finds no memory enqueues nothing. */
static int32_t graph_launch(struct ifx_device *dev, void *stream, void *graph)
{
    struct sim_device *d = sim_of(dev);
    struct sim_stream *s = stream;
    const struct sim_graph *g = graph;
    struct sim_graph copy = {0};
    int32_t late = IFX_OK;
    pthread_mutex_lock(&d->lock);
    int32_t st = sim_inject(d, &d->launches, d->fail_launch, IFX_EDEVICE, "launch", &late);
    for (const struct sim_node *n = g->first; n && !st; n = n->next) {
        struct sim_node *c = sim_node_copy(d, n);
        if (!c) {
            st = IFX_ENOMEM;
            break;
        }
        if (c->kind == SIM_WORK && late) {
            c->fail = late;
            late = IFX_OK;
        }
        if (copy.last)
            copy.last->next = c;
        else
            copy.first = c;
        copy.last = c;
    }
    if (!st)
        sim_clock_launch(d);
    for (struct sim_node *n = copy.first, *next; n; n = next) {
        next = n->next;
        n->next = NULL;
        if (st)
            sim_node_free(d, n);
        else
            sim_submit(n->stream == g->origin ? s : n->stream, n);
    }
    pthread_mutex_unlock(&d->lock);
    return st;
}

static void graph_destroy(struct ifx_device *dev, void *graph)
{
    struct sim_device *d = sim_of(dev);
    if (!graph)
        return;
    pthread_mutex_lock(&d->lock);
    graph_free(d, graph);
    pthread_mutex_unlock(&d->lock);
}

void sim_fill_graphs(struct ifx_device_ops *ops)
{
    ops->graph_begin = graph_begin;
    ops->graph_end = graph_end;
    ops->graph_launch = graph_launch;
    ops->graph_destroy = graph_destroy;
}
