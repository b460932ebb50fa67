/* SPDX-License-Identifier: Apache-2.0
 *
 * streams.c - streams, events, host calls and graphs.
 */
#include "cuda_device.h"

#include <string.h>

/* ---- host calls ---- */

struct host_call {
    struct cuda_device *device;
    void *stream;
    int32_t (*fn)(void *ctx);
    void *ctx;
    int once;               /* not part of a graph: freed when it ran */
    struct host_call *next; /* of its graph */
};

struct graph {
    cudaGraphExec_t exec;
    struct host_call *calls;
};

static void record_failure(struct cuda_device *d, void *stream, int32_t status)
{
    struct host_failure *f = d->base.host->alloc(d->base.host, sizeof *f, 16);
    if (!f)
        return;
    f->stream = stream;
    f->status = status;
    pthread_mutex_lock(&d->lock);
    f->next = d->failures;
    d->failures = f;
    pthread_mutex_unlock(&d->lock);
}

/* Runs in a thread of the CUDA runtime, which must not call it. */
static void run_host_call(void *arg)
{
    struct host_call *c = arg;
    struct cuda_device *d = c->device;
    int32_t status = c->fn(c->ctx);
    if (status)
        record_failure(d, c->stream, status);
    if (c->once)
        d->base.host->free(d->base.host, c);
}

static int32_t host_call(struct ifx_device *dev, void *stream, int32_t (*fn)(void *ctx), void *ctx, const struct ifx_work *work)
{
    struct cuda_device *d = cuda_of(dev);
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    (void)work;
    int32_t status = cuda_enter(d);
    if (!status)
        status = cuda_check(d, cudaStreamIsCapturing(stream, &capture), "host call");
    if (status)
        return status;
    struct host_call *c = dev->host->alloc(dev->host, sizeof *c, 16);
    if (!c)
        return IFX_ENOMEM;
    *c = (struct host_call){.device = d, .stream = stream, .fn = fn, .ctx = ctx, .once = capture == cudaStreamCaptureStatusNone};
    status = cuda_check(d, cudaLaunchHostFunc(stream, run_host_call, c), "host call");
    if (status) {
        dev->host->free(dev->host, c);
        return status;
    }
    if (capture != cudaStreamCaptureStatusNone) {
        pthread_mutex_lock(&d->lock);
        c->next = d->captured;
        d->captured = c;
        pthread_mutex_unlock(&d->lock);
    }
    return IFX_OK;
}

/* The first failure of the stream's host calls, all of which are forgotten. */
static int32_t take_failure(struct cuda_device *d, void *stream)
{
    int32_t status = IFX_OK;
    pthread_mutex_lock(&d->lock);
    for (struct host_failure **at = &d->failures; *at;) {
        struct host_failure *f = *at;
        if (f->stream != stream) {
            at = &f->next;
            continue;
        }
        status = f->status; /* the newest comes first */
        *at = f->next;
        d->base.host->free(d->base.host, f);
    }
    pthread_mutex_unlock(&d->lock);
    if (status)
        return d->base.host->error(d->base.host, status, "work of the host that a stream of cuda:%d waited for failed (status %d)",
                                   d->ordinal, status);
    return IFX_OK;
}

void cuda_free_failures(struct cuda_device *d)
{
    while (d->failures) {
        struct host_failure *f = d->failures;
        d->failures = f->next;
        d->base.host->free(d->base.host, f);
    }
}

/* ---- streams and events ---- */

static int32_t stream_create(struct ifx_device *dev, void **stream)
{
    struct cuda_device *d = cuda_of(dev);
    cudaStream_t s = NULL;
    int32_t status = cuda_enter(d);
    if (!status)
        status = cuda_check(d, cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "making a stream");
    *stream = s;
    return status;
}

static void stream_destroy(struct ifx_device *dev, void *stream)
{
    struct cuda_device *d = cuda_of(dev);
    if (stream && !atomic_load(&d->lost) && cudaSetDevice(d->ordinal) == cudaSuccess)
        cuda_check(d, cudaStreamDestroy(stream), "destroying a stream");
}

static int32_t stream_sync(struct ifx_device *dev, void *stream)
{
    struct cuda_device *d = cuda_of(dev);
    int32_t status = cuda_enter(d);
    if (!status)
        status = cuda_check(d, cudaStreamSynchronize(stream), "waiting for a stream");
    int32_t failed = take_failure(d, stream);
    return status ? status : failed;
}

static int32_t event_create(struct ifx_device *dev, void **event)
{
    struct cuda_device *d = cuda_of(dev);
    cudaEvent_t e = NULL;
    int32_t status = cuda_enter(d);
    if (!status)
        status = cuda_check(d, cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "making an event");
    *event = e;
    return status;
}

static void event_destroy(struct ifx_device *dev, void *event)
{
    struct cuda_device *d = cuda_of(dev);
    if (event && !atomic_load(&d->lost) && cudaSetDevice(d->ordinal) == cudaSuccess)
        cuda_check(d, cudaEventDestroy(event), "destroying an event");
}

static int32_t event_record(struct ifx_device *dev, void *event, void *stream)
{
    int32_t status = cuda_enter(cuda_of(dev));
    return status ? status : cuda_check(cuda_of(dev), cudaEventRecord(event, stream), "recording an event");
}

static int32_t event_wait(struct ifx_device *dev, void *event, void *stream)
{
    int32_t status = cuda_enter(cuda_of(dev));
    return status ? status : cuda_check(cuda_of(dev), cudaStreamWaitEvent(stream, event, 0), "a stream's wait for an event");
}

static int32_t event_query(struct ifx_device *dev, void *event, uint32_t *done)
{
    int32_t status = cuda_enter(cuda_of(dev));
    *done = 0;
    if (status)
        return status;
    cudaError_t error = cudaEventQuery(event);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return IFX_OK;
    }
    *done = error == cudaSuccess;
    return cuda_check(cuda_of(dev), error, "asking for an event");
}

static int32_t event_sync(struct ifx_device *dev, void *event)
{
    int32_t status = cuda_enter(cuda_of(dev));
    return status ? status : cuda_check(cuda_of(dev), cudaEventSynchronize(event), "waiting for an event");
}

/* ---- graphs ---- */

static void free_calls(struct cuda_device *d, struct host_call *c)
{
    while (c) {
        struct host_call *next = c->next;
        d->base.host->free(d->base.host, c);
        c = next;
    }
}

static struct host_call *take_captured(struct cuda_device *d)
{
    pthread_mutex_lock(&d->lock);
    struct host_call *calls = d->captured;
    d->captured = NULL;
    pthread_mutex_unlock(&d->lock);
    return calls;
}

static int32_t graph_begin(struct ifx_device *dev, void *stream)
{
    int32_t status = cuda_enter(cuda_of(dev));
    /* Thread-local: another thread may allocate or copy meanwhile. */
    return status ? status
                  : cuda_check(cuda_of(dev), cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a capture");
}

static int32_t graph_end(struct ifx_device *dev, void *stream, void **out)
{
    struct cuda_device *d = cuda_of(dev);
    cudaGraph_t captured = NULL;
    cudaGraphExec_t exec = NULL;
    *out = NULL;
    int32_t status = cuda_enter(d);
    if (!status)
        status = cuda_check(d, cudaStreamEndCapture(stream, &captured), "ending a capture");
    struct host_call *calls = take_captured(d);
    if (!status)
        status = cuda_check(d, cudaGraphInstantiate(&exec, captured, 0), "making a graph");
    if (captured)
        cuda_check(d, cudaGraphDestroy(captured), "freeing a captured graph");
    struct graph *g = status ? NULL : dev->host->alloc(dev->host, sizeof *g, 16);
    if (!g) {
        if (exec)
            cuda_check(d, cudaGraphExecDestroy(exec), "freeing a graph");
        free_calls(d, calls);
        return status ? status : IFX_ENOMEM;
    }
    *g = (struct graph){exec, calls};
    *out = g;
    return IFX_OK;
}

static int32_t graph_launch(struct ifx_device *dev, void *stream, void *graph)
{
    struct graph *g = graph;
    int32_t status = cuda_enter(cuda_of(dev));
    return status ? status : cuda_check(cuda_of(dev), cudaGraphLaunch(g->exec, stream), "launching a graph");
}

static void graph_destroy(struct ifx_device *dev, void *graph)
{
    struct cuda_device *d = cuda_of(dev);
    struct graph *g = graph;
    if (!g)
        return;
    if (!atomic_load(&d->lost) && cudaSetDevice(d->ordinal) == cudaSuccess)
        cuda_check(d, cudaGraphExecDestroy(g->exec), "freeing a graph");
    free_calls(d, g->calls);
    dev->host->free(dev->host, g);
}

void cuda_fill_streams(struct ifx_device_ops *ops)
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
    ops->host_call = host_call;
    ops->graph_begin = graph_begin;
    ops->graph_end = graph_end;
    ops->graph_launch = graph_launch;
    ops->graph_destroy = graph_destroy;
}
