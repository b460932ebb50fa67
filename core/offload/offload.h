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

/* The routed part of an MoE layer on the CPU: y[t, :] = sum_r weights[t, r] * expert(ids[t, r])(x[t]).
 * x: bf16 [n, H].  ws: offload_cpu_ws_bytes.  The same bits for any pool size. */
uint64_t offload_cpu_ws_bytes(const struct offload_layer *l, uint32_t n);
int32_t offload_cpu_moe(const struct offload_layer *l, struct base_pool *pool, const uint16_t *x, uint64_t ldx, uint32_t n,
                        const int32_t *ids, const float *weights, float *y, uint64_t ldy, void *ws);
/* The oracle: float32 inputs unrounded, double accumulation, weights from decode_row. */
int32_t offload_ref_moe(const struct offload_layer *l, struct base_pool *pool, const float *x, uint64_t ldx, uint32_t n,
                        const int32_t *ids, const float *weights, float *y, uint64_t ldy);
/* One expert through the host default path (decode_row in canonical order), for banks without CPU callbacks. */
int32_t offload_default_gate_up(const struct offload_layer *l, const struct ifx_expert_call *call, uint32_t row0, uint32_t row1);
int32_t offload_default_down(const struct offload_layer *l, const struct ifx_expert_call *call, uint32_t row0, uint32_t row1,
                             float *y, uint64_t ldy, const uint32_t *y_rows);

#endif
