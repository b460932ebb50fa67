/* SPDX-License-Identifier: Apache-2.0
 *
 * offload.h - the MoE call, and where experts live.
 *
 * Two worlds: on a device that shares the host's memory everything is computed where it lies (offload_cpu_moe, offload_ref_moe); on a
 * device with memory of its own `struct offload` keeps what fits in frames there and shares the rest between the link and the
 * CPU workers (offload_moe).
 */
#ifndef INFERNIX_CORE_OFFLOAD_H
#define INFERNIX_CORE_OFFLOAD_H

#include "artifact.h"
#include "base.h"
#include "cost.h"
#include "planner.h"
#include <infernix/device.h>
#include <infernix/expert.h>

/* All experts of one MoE layer: records at a fixed stride. */
struct offload_layer {
    const struct ifx_expert_ops *ops;
    void *bank;
    const uint8_t *records; /* [experts], record_bytes apart; host memory */
    uint64_t record_bytes;
    uint32_t experts, top_k, hidden, inter;
};

/* ---- everything in host memory ---- */

/* The routed part of an MoE layer: y[t, :] = sum_r weights[t, r] * expert(ids[t, r])(x[t]), host memory throughout.
 * ids lie in [0, experts) and differ within a row. */
struct offload_call {
    const struct offload_layer *layer;
    struct base_pool *pool;
    struct ifx_device *dev; /* its combine op is used; host memory */
    void *stream;
    uint32_t n;
    const int32_t *ids;   /* [n, top_k] */
    const float *weights; /* [n, top_k] */
    float *y;             /* [n, hidden], rows ldy apart */
    uint64_t ldy;
    uint32_t any_order;   /* 1: experts of few columns need no canonical order (IFX_EXPERT_ANY_ORDER) */
};

/* Whether a call of n columns of the layer leaves its experts free in the order, wherever they are computed. */
static inline uint32_t offload_any_order(uint32_t n, bool deterministic)
{
    return n > IFX_NARROW_COLUMNS && !deterministic;
}

/* x: bf16 [n, hidden].  Same bits for any pool size.  ws: offload_cpu_ws_bytes, 64-byte aligned, this call's alone; enough for
 * every call of at most n columns.  On an error y is undefined. */
uint64_t offload_cpu_ws_bytes(const struct offload_layer *l, const struct base_pool *pool, uint32_t n);
int32_t offload_cpu_moe(const struct offload_call *c, const uint16_t *x, uint64_t ldx, void *ws);
/* The oracle: float32 inputs unrounded, double accumulation, weights from decode_row, exact exp.  Allocates what it needs. */
int32_t offload_ref_moe(const struct offload_call *c, const float *x, uint64_t ldx);

/* Some experts of a layer; their parts go to y, uncombined.  The pairs (column * top_k + rank) of a part are
 * pairs[first .. first + n); pair pairs[i] is computed into row y_rows[i]. */
struct offload_part {
    const void *record;
    uint32_t expert, n, first;
};
struct offload_cpu_call {
    const struct offload_layer *layer;
    struct base_pool *pool;
    const uint16_t *x; /* bf16, rows ldx apart */
    uint64_t ldx;
    uint32_t n_parts;
    const struct offload_part *parts;
    const uint32_t *pairs, *y_rows;
    float *y;
    uint64_t ldy;
    uint32_t any_order; /* as in struct offload_call */
    void (*meanwhile)(void *ctx); /* called on the calling thread between its tasks, often; or NULL */
    void *meanwhile_ctx;
};
uint64_t offload_cpu_parts_ws_bytes(const struct offload_layer *l, uint32_t n);
int32_t offload_cpu_parts(const struct offload_cpu_call *c, void *ws);

/* ---- a device with memory of its own ---- */

struct offload;
struct offload_config {
    struct ifx_device *dev;
    struct base_pool *pool;      /* of the workers */
    const struct offload_layer *layers; /* stays as it is; `records` are looked at in calls only */
    uint32_t n_layers;
    uint32_t max_columns;        /* the widest call */
    uint32_t mode;               /* OFFLOAD_ASSIST_* */
    uint32_t deterministic;
    uint64_t promote_bytes;      /* a round; 0: what the link does in 2 ms */
    const struct ifx_assist_policy *const *policies; /* [n_layers] */
};
/* Opens the banks' device sides; takes no memory yet.  A format without code for the device runs on the CPU, said once. */
int32_t offload_create(const struct offload_config *config, struct offload **out);
void offload_destroy(struct offload *o); /* no call may be in flight */

/* What calls of max_columns need, for the ledger. */
struct offload_memory {
    uint64_t device_fixed;  /* buffers and workspace */
    uint64_t frame_bytes;   /* one frame or staging slot */
    uint64_t host_pinned, host_other;
    uint32_t least_slots;   /* of staging: with fewer nothing can cross the link */
    uint32_t useful_slots;  /* more would change nothing */
    uint32_t n_experts;     /* over all layers */
};
void offload_memory(const struct offload *o, struct offload_memory *out);
/* Takes the memory: frames, of those `room` may ever be in use, and staging slots.  With neither, the CPU computes everything. */
int32_t offload_allocate(struct offload *o, uint32_t frames, uint32_t slots);
/* Frames and slots out of what the device may give to both together; false: not even the least. */
bool offload_divide(const struct offload_memory *m, uint64_t bytes, uint32_t *frames, uint32_t *slots);
/* Measures link, CPU and device with the records that are there; needs offload_allocate.  Milliseconds. */
int32_t offload_measure(struct offload *o);
/* Seconds of one of `count` experts of layer 0 with n columns each: on the CPU, on the device, or their way over the link (n is
 * ignored).  Needs offload_allocate; count * n at most max_columns * top_k, count at most the slots and the layer's experts. */
#define OFFLOAD_TIME_CPU    1u
#define OFFLOAD_TIME_DEVICE 2u
#define OFFLOAD_TIME_LINK   3u
int32_t offload_time(struct offload *o, uint32_t what, uint32_t count, uint32_t n, double *seconds);
void offload_cost_set(struct offload *o, const struct offload_cost *cost);
void offload_cost_get(const struct offload *o, struct offload_cost *cost);

/* Warm start: fills frames by the ranking in a file, if it is one for these experts (a note says why not).  And writes it. */
int32_t offload_state_load(struct offload *o, const char *path);
int32_t offload_state_save(struct offload *o, const char *path);
/* Fills the frames that are still free with experts of no rank. */
int32_t offload_fill(struct offload *o);
/* True when every expert lies on the device and stays there: calls then need nothing of the host.  A step captured while this holds is
 * good only as long as it does. */
bool offload_all_resident(const struct offload *o);
/* Counts a call of such a step that was launched as a graph. */
void offload_count_resident(struct offload *o, uint32_t layer, uint32_t n);
/* Another number of frames, up to those allocated at first.  No call may be in flight. */
int32_t offload_resize(struct offload *o, uint32_t frames);
/* Another mode or policy from the next call on (bench arms). */
void offload_set_mode(struct offload *o, uint32_t mode, uint32_t deterministic);
void offload_set_policy(struct offload *o, const struct ifx_assist_policy *policy); /* for all layers; NULL: their own again */

/* Before the first MoE layer of a step, when the step before it has been waited for.  Never waits: takes over promotions that
 * have landed, starts new ones after calls of at most IFX_NARROW_COLUMNS columns.  Not while a graph is captured. */
int32_t offload_begin_step(struct offload *o, void *stream);
/* Everything but the struct is device memory; y is overwritten.  Enqueues on the stream.  A call of at most IFX_NARROW_COLUMNS columns
 * waits on the host only for what its experts' misses take, and not while it is captured, unless `off` or `balance` send missing experts over the link; a wider one waits for the router's choice.
 * After an error no work is left in flight and the next call finds everything in order. */
struct offload_moe_call {
    uint32_t layer;
    uint32_t n;
    void *stream;
    const uint16_t *x; /* bf16 [n, hidden] */
    uint64_t ldx;
    const int32_t *ids;   /* [n, top_k] */
    const float *weights; /* [n, top_k] */
    float *y;
    uint64_t ldy;
    uint32_t capturing; /* 1: only what can be captured may be enqueued */
    /* Only where offload_all_resident: the choice is still to be made, and the combination is left to the caller, filled in here but for
     * y, ldy.  Both or neither. */
    const struct ifx_router *router;
    struct ifx_combine *combine;
};
int32_t offload_moe(struct offload *o, const struct offload_moe_call *call);
/* After an error that showed elsewhere, such as in waiting for the stream: waits for all streams, so that each has told its failure,
 * and forgets what was under way.  The error record stays. */
void offload_recover(struct offload *o, void *stream);
/* Whether steps of few columns can be captured, and lose nothing by it. */
bool offload_capturable(const struct offload *o);

/* Hand-overs to the host that calls have enqueued or captured so far: what a captured step adds is what its launch must serve.  0: the
 * device has none, and calls bring their host part along. */
uint64_t offload_posts(const struct offload *o);
/* After the launch of a captured step: computes what each of its `posts` hand-overs asks for, in their order, while the stream runs.  Comes
 * back when the last one is answered. */
int32_t offload_serve(struct offload *o, void *stream, uint64_t posts);

/* Counters; the fields of struct ifx_offload_stats. */
struct offload_stats {
    uint64_t calls, streamed_calls, assisted_calls, hits, misses, link_experts, cpu_experts, link_bytes, promoted_bytes;
    uint64_t promotions, evictions;
    double moe_seconds, link_busy_seconds, cpu_busy_seconds;
    uint64_t frames, frames_used, frame_bytes;
};
void offload_stats(struct offload *o, struct offload_stats *out);

#endif
