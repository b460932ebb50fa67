/* SPDX-License-Identifier: Apache-2.0
 *
 * cost.h - what experts cost here: rates measured at the start, and moving averages, a layer and a range of widths, of how far
 * what happened was from what they predicted.
 */
#ifndef INFERNIX_CORE_COST_H
#define INFERNIX_CORE_COST_H

#include "planner.h"

#define COST_WIDTHS 12u /* ranges of call widths: a power of two each */

struct cost {
    struct offload_cost base;
    uint32_t n_layers;
    struct cost_layer {
        float cpu[COST_WIDTHS], link; /* measured / predicted; 0: not yet */
    } *layers;
};

int32_t cost_create(uint32_t n_layers, struct cost *c);
void cost_destroy(struct cost *c);
/* The costs to plan a call of n columns with. */
void cost_of(const struct cost *c, uint32_t layer, uint32_t n, struct offload_cost *out);
/* A call took `seconds` where `base` predicted `predicted`.  Measurements more than a factor of 8 off do not count: something
 * else took the time. */
void cost_observe_cpu(struct cost *c, uint32_t layer, uint32_t n, double predicted, double seconds);
void cost_observe_link(struct cost *c, uint32_t layer, double predicted, double seconds);

#endif
