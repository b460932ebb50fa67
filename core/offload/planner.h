/* SPDX-License-Identifier: Apache-2.0
 *
 * planner.h - who computes which expert of one MoE call.  Pure functions: no device, no clock, no allocation.
 *
 * A call of n columns touches some experts; expert e is asked for by columns[e] of them.  Resident experts run on the
 * GPU at once.  A missing one either crosses the link and runs on the GPU, or is computed by the CPU where it lies.
 */
#ifndef INFERNIX_CORE_PLANNER_H
#define INFERNIX_CORE_PLANNER_H

#include "base.h"
#include <infernix/expert.h>

#define OFFLOAD_ASSIST_OFF     0u /* every missing expert crosses the link */
#define OFFLOAD_ASSIST_RAMP    1u /* the policy, exactly */
#define OFFLOAD_ASSIST_BALANCE 2u /* the split that the measured costs predict to finish first */

/* Measured or assumed costs of one expert, in seconds.  The CPU reads each record once and works through the columns; its threads
 * are at several experts at a time, so some compute while others read: whichever takes longer for all of its experts together is
 * what they cost it.  The GPU takes one after the other. */
struct offload_cost {
    double link_fixed;      /* latency of one transfer */
    double link_record;     /* time of a record on the link: bytes / bandwidth */
    double cpu_record;      /* time in which all CPU workers together read a record */
    double cpu_column;      /* their time for one column of one expert, when the columns are what takes long */
    double device_record;   /* the same two of the GPU */
    double device_column;
    double link_row;        /* time of one column's result of the CPU on its way back over the link */
    double cpu_shared;      /* cpu_record while the link reads the same memory; 0: as without it */
};
/* So many experts that have so many columns together, while the link is busy or not. */
double offload_cost_cpu(const struct offload_cost *c, uint32_t experts, uint64_t columns, bool shared);
double offload_cost_device(const struct offload_cost *c, uint32_t columns);

/* When the CPU is through with experts that take it `shared` while the link is busy and `alone` when not: the link stops at `link`. */
double offload_cost_cpu_finish(double shared, double alone, double link);

/* Which lists an expert landed on. */
struct offload_plan {
    uint32_t n_resident, n_link, n_cpu;
    uint32_t streamed; /* 1: no CPU share, and the next layer's missing experts may be prefetched */
    uint32_t *resident; /* ascending ids */
    uint32_t *link;     /* widest first: the order in which they cross */
    uint32_t *cpu;      /* widest first: the order in which workers should start them */
    double best_seconds, policy_seconds; /* balance with costs: predicted for the best split by width and for the policy's; otherwise 0 */
};

struct offload_plan_input {
    uint32_t experts;
    uint32_t n;               /* columns of the call: what the policy looks at */
    const uint32_t *columns;  /* [experts] columns of each; 0: not touched */
    const uint8_t *resident;  /* [experts] nonzero: in a frame; NULL: none */
    const struct ifx_assist_policy *policy;
    uint32_t mode;            /* OFFLOAD_ASSIST_* */
    uint32_t deterministic;   /* 1: the CPU gets only experts of at most IFX_NARROW_COLUMNS columns */
    const struct offload_cost *cost; /* used by balance; NULL: balance behaves like ramp */
};

/* Share of the link, in 1/256, of a call of n columns: linear between points in integer arithmetic, rounded to nearest; the
 * first share left of the first point, the last share from the last point to max_columns; 0 past max_columns. */
uint32_t offload_link_share(const struct ifx_assist_policy *p, uint32_t n);
/* Fills the three lists; each must have room for `experts` entries.  Calls of at most IFX_NARROW_COLUMNS columns leave every missing expert
 * to the CPU in ramp mode (decode: hits never wait for the link), and in balance mode unless the link finishes it earlier.
 * Wider ones in balance mode get the split that is predicted to finish first, or the policy's when that is within 1.5 % of it. */
void offload_plan_make(const struct offload_plan_input *in, struct offload_plan *out);

#endif
