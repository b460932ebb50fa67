/* SPDX-License-Identifier: Apache-2.0
 *
 * offload.h - the MoE call, and where experts live.  Now: everything in host memory, computed by the CPU.
 * Residency, planner, assist policy and mover join here.
 */
#ifndef INFERNIX_CORE_OFFLOAD_H
#define INFERNIX_CORE_OFFLOAD_H

#include "artifact.h"
#include "base.h"
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
};

/* x: bf16 [n, hidden].  Same bits for any pool size.  ws: offload_cpu_ws_bytes, 64-byte aligned, this call's alone; enough for
 * every call of at most n columns.  On an error y is undefined. */
uint64_t offload_cpu_ws_bytes(const struct offload_layer *l, const struct base_pool *pool, uint32_t n);
int32_t offload_cpu_moe(const struct offload_call *c, const uint16_t *x, uint64_t ldx, void *ws);
/* The oracle: float32 inputs unrounded, double accumulation, weights from decode_row, exact exp.  Allocates what it needs. */
int32_t offload_ref_moe(const struct offload_call *c, const float *x, uint64_t ldx);

#endif
