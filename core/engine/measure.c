/* SPDX-License-Identifier: Apache-2.0
 *
 * measure.c - what bench reads of a model: the device's clock, and counters of the experts' traffic.
 */
#include "engine.h"

double ifx_model_now(const struct ifx_model *m)
{
    return m->dev->ops->now ? m->dev->ops->now(m->dev) : base_now();
}

void ifx_offload_stats(struct ifx_model *m, struct ifx_offload_stats *out)
{
    (void)m;
    *out = (struct ifx_offload_stats){0};
}
