/* SPDX-License-Identifier: Apache-2.0
 *
 * sim.h - device `sim`: a pretended discrete GPU.
 *
 * Its memory is the process's, but apart from everything else, limited, and filled with NaNs before use.  Work is put on
 * streams, each a thread of its own, and computed by the kernels of device `cpu`.
 *
 * One lock guards all: queues, events, allocations and the clock.  Work itself runs outside it.
 */
#ifndef DEVICE_SIM_H
#define DEVICE_SIM_H

#include "cpu_device.h"

#include <pthread.h>
#include <stdalign.h>
#include <stdbool.h>

#define SIM_ERROR_BYTES 512u

/* Who does a piece of work, for the clock. */
enum sim_engine { SIM_NONE, SIM_COMPUTE, SIM_LINK_TO, SIM_LINK_FROM, SIM_HOST, SIM_ENGINES };

/* What a piece of work takes: the slower of its bytes and its multiply-adds. */
struct sim_cost {
    enum sim_engine engine;
    uint32_t experts; /* nonzero: expert work, at the rate of experts */
    uint32_t records; /* nonzero: a copy of so many small records that stand for large ones */
    double bytes, flops;
};

struct sim_model { /* rates: bytes or operations a second; times: seconds */
    double link, latency, dram, host_flops, memory, flops, expert_flops, launch, kernel, speed;
    uint64_t small_record; /* a record of small_record bytes costs as one of large_record */
    double large_record, expert_scale, dense_scale, column_scale;
};

struct sim_device;
struct sim_stream;

struct sim_event {
    uint64_t recorded, done; /* generations */
    double at;               /* virtual time of the last record */
    uint32_t references;     /* queued work and graphs */
    uint64_t capture;        /* the capture it was last recorded in, or 0 */
    bool dead;
    int32_t status; /* of the stream it was recorded on */
    char text[SIM_ERROR_BYTES];
};

enum sim_kind { SIM_WORK, SIM_RECORD, SIM_WAIT };
struct sim_node {
    struct sim_node *next;  /* on its stream or in its graph */
    struct sim_node *later; /* in the device's log */
    struct sim_stream *stream;
    enum sim_kind kind;
    int32_t (*run)(struct sim_device *d, const void *payload);
    const struct ifx_work *work; /* a host call's own word on its cost: read when it has run */
    double enqueued; /* virtual time of the host then */
    struct sim_event *event;
    uint64_t generation;
    struct sim_cost cost;
    bool copy; /* a throttled one, when time is real */
    int32_t fail; /* the fault injector's: reported instead of running */
    uint64_t payload_bytes;
    alignas(16) unsigned char payload[];
};

struct sim_graph {
    struct sim_node *first, *last;
    uint64_t nodes;
    uint64_t capture;          /* a number of its own, from 1 */
    struct sim_stream *origin; /* its work goes to the stream of the launch; that of streams that joined to those */
};

struct sim_stream {
    struct sim_device *d;
    struct sim_stream *next; /* of the device's list */
    pthread_t thread;
    pthread_cond_t wake;
    struct sim_node *first, *last;
    uint64_t submitted, completed;
    bool stop;
    struct sim_graph *recording;
    double at; /* virtual time at which the work enqueued so far is done */
    int32_t status;
    char text[SIM_ERROR_BYTES];
};

struct sim_memory {
    uintptr_t begin, end; /* what the user sees */
    void *map;
    uint64_t map_bytes, counted;
};

struct sim_span { /* the link is busy */
    double begin, end;
};

struct sim_pool;
struct sim_device {
    struct ifx_device base; /* first member */
    struct ifx_device_ops ops;
    const struct ifx_host *outer;
    struct ifx_host host; /* the outer one with threads of our own: what the kernels see */
    struct ifx_device *cpu;
    struct sim_pool *pool;
    pthread_mutex_t lock;
    pthread_mutex_t compute; /* the device computes one thing at a time */
    pthread_mutex_t links[2];
    double link_free[2]; /* real time at which a link is free again; under its mutex */
    pthread_cond_t changed;
    struct sim_stream *streams;
    uint32_t n_events;
    /* memory */
    struct sim_memory *memories; /* by address */
    uint32_t n_memories, room;
    uint64_t limit, used, peak;
    uint64_t pinned_limit, pinned;
    struct sim_memory *pins;
    uint32_t n_pins, pin_room;
    /* clock */
    bool virtual_clock, check, handover;
    struct sim_model model;
    double host_at, engine_at[SIM_ENGINES];
    struct sim_node *log, *log_last; /* enqueued, not yet on the timeline */
    uint64_t captures;
    struct sim_span *spans; /* ascending, apart; those that still matter */
    uint32_t n_spans, span_room;
    /* faults */
    int64_t fail_alloc, fail_copy, fail_launch;
    bool fail_late;
    int64_t allocs, copies, launches;
};

static inline struct sim_device *sim_of(struct ifx_device *dev)
{
    return (struct sim_device *)dev;
}

/* pool.c: the device's own threads, a host table that uses them */
int32_t sim_pool_create(const struct ifx_host *host, uint32_t threads, struct sim_pool **out);
void sim_pool_destroy(struct sim_pool *pool);
int32_t sim_pool_run(struct sim_pool *pool, uint64_t tasks, ifx_task_fn fn, void *ctx);
uint32_t sim_pool_threads(const struct sim_pool *pool);

/* memory.c */
int32_t sim_mem_alloc(struct ifx_device *dev, uint64_t bytes, void **out);
void sim_mem_free(struct ifx_device *dev, void *memory);
int32_t sim_host_alloc(struct ifx_device *dev, uint64_t bytes, void **out);
void sim_host_free(struct ifx_device *dev, void *memory);
/* How many small records a copy from host memory holds: whole ones of a piece of pinned memory that
 * holds nothing else, or of pageable memory; 0: other bytes. */
uint32_t sim_records(const struct sim_device *d, const void *src, uint64_t bytes);
void sim_memory_close(struct sim_device *d);
/* True when [p, p + bytes) lies in one allocation; the caller holds the lock. */
bool sim_owns(const struct sim_device *d, const void *p, uint64_t bytes);
bool sim_touches(const struct sim_device *d, const void *p, uint64_t bytes);

/* stream.c */
void sim_fill_streams(struct ifx_device_ops *ops);
/* Puts work on a stream, or into the graph being recorded.  payload is copied.  what: for messages. */
struct sim_work {
    int32_t (*run)(struct sim_device *d, const void *payload);
    const void *payload;
    uint64_t bytes;
    struct sim_cost cost;
    const struct ifx_work *work;
    bool copy;
    int32_t fail;
};
int32_t sim_enqueue(struct ifx_device *dev, void *stream, const struct sim_work *work);
/* The same for a node that is made already; the caller holds the lock.  Takes the node. */
void sim_submit(struct sim_stream *s, struct sim_node *node);
struct sim_node *sim_node_copy(struct sim_device *d, const struct sim_node *node);
void sim_node_free(struct sim_device *d, struct sim_node *node);
/* Copies the calling thread's error text. */
void sim_error_text(const struct sim_device *d, char *out);
/* The Nth call of a kind that shall fail: IFX_EDEVMEM or IFX_EDEVICE with the text recorded.  *late: the node's own failure instead. */
int32_t sim_inject(struct sim_device *d, int64_t *count, int64_t nth, int32_t status, const char *what, int32_t *late);

/* graph.c */
void sim_fill_graphs(struct ifx_device_ops *ops);

/* clock.c: all under the lock */
double sim_now(struct ifx_device *dev);
void sim_host_work(struct ifx_device *dev, const struct ifx_work *work);
struct sim_cost sim_work_cost(const struct ifx_work *work);
/* Waits until all that is enqueued has run and puts it on the timeline. */
void sim_settle(struct sim_device *d);
void sim_clock_launch(struct sim_device *d);
double sim_real_now(void);
void sim_sleep_until(double at);
/* Real time: the seconds that a copy should take. */
double sim_copy_seconds(const struct sim_device *d, const struct sim_cost *cost);

/* ops.c */
void sim_fill_ops(const struct ifx_device_ops *cpu, struct ifx_device_ops *ops);
void sim_fill_handover(const struct sim_device *d, struct ifx_device_ops *ops);

#endif
