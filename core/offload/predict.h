/* SPDX-License-Identifier: Apache-2.0
 *
 * predict.h - how fast a model would run on a machine: the planner's choices on a timeline of rates.  Pure but for memory.
 *
 * The model of a step of n columns, layer by layer:
 *   dense part    the slower of its weights / device memory and its operations / device, and a fixed time for its kernels
 *   device        resident experts at once, those from the link as they land, one after another; an expert costs the slower of
 *                 its record / device memory and its operations / device
 *   link          records one after another; the CPU's results go back over it at the end
 *   CPU           its experts together cost the slower of their operations / CPU and their records through the DRAM, which the link uses first
 *   streamed      the link is never idle: a layer takes the longer of its missing records on the link and of everything else
 * A layer ends when all three have.  The first layer of a streamed step waits for its own records.
 */
#ifndef INFERNIX_CORE_PREDICT_H
#define INFERNIX_CORE_PREDICT_H

#include "planner.h"

/* Measured seconds of one expert at some column counts, ascending; between them linear, past the last in proportion.  n 0: from the
 * machine's rates. */
#define PREDICT_RATES 10u
struct predict_rates {
    uint32_t n, columns[PREDICT_RATES];
    double seconds[PREDICT_RATES];
};
struct predict_machine { /* bytes; bytes and operations a second; seconds */
    double vram, ram, link, latency, dram, cpu_flops, memory, flops, expert_flops, kernel;
    struct predict_rates cpu, device;
};
struct predict_model {
    uint32_t layers, experts, top_k, hidden;
    double record_bytes, expert_flops;           /* of one expert; of one column of one */
    double dense_bytes, dense_flops, head_bytes; /* of all layers together; operations a column */
    double zipf;                                 /* how uneven the routing is: 0 even */
};

/* Choices of experts for `columns` tokens in a few layers: the same for every width, so that a curve has no noise. */
struct predict_routing {
    uint32_t layers, columns, experts, top_k;
    uint16_t *chosen; /* [layers, columns, top_k]; expert 0 is the most popular */
};
int32_t predict_routing_create(const struct predict_model *m, uint32_t columns, struct predict_routing *r);
void predict_routing_destroy(struct predict_routing *r);

struct predict_call {
    const struct predict_model *model;
    const struct predict_machine *machine;
    const struct predict_routing *routing;
    const struct ifx_assist_policy *policy;
    uint32_t mode;     /* OFFLOAD_ASSIST_* */
    uint32_t resident; /* experts of each layer in frames: the most popular */
    uint32_t n;        /* columns, at most those of the routing */
};
struct predict_result {
    double seconds;          /* of the step */
    double link_bytes;
    double link_busy, cpu_busy; /* shares of the time */
    double cpu_experts, link_experts, hits; /* a layer */
};
int32_t predict_step(const struct predict_call *c, struct predict_result *out);
/* The costs that the planner balances with. */
void predict_cost(const struct predict_model *m, const struct predict_machine *h, struct offload_cost *out);
/* Limit and ramp that suit a machine: at each of some widths the share of the link that finishes first, and the widest call for which
 * any help of the CPU beats streaming.  points: room for PREDICT_POINTS. */
#define PREDICT_POINTS 8u
int32_t predict_policy(const struct predict_call *c, struct ifx_ramp_point *points, struct ifx_assist_policy *out);

#endif
