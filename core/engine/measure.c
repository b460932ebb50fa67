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
    struct offload_stats s;
    *out = (struct ifx_offload_stats){0};
    if (!m->offload)
        return;
    offload_stats(m->offload, &s);
    *out = (struct ifx_offload_stats){
        .calls = s.calls,
        .streamed_calls = s.streamed_calls,
        .assisted_calls = s.assisted_calls,
        .hits = s.hits,
        .misses = s.misses,
        .link_experts = s.link_experts,
        .cpu_experts = s.cpu_experts,
        .link_bytes = s.link_bytes,
        .promoted_bytes = s.promoted_bytes,
        .promotions = s.promotions,
        .evictions = s.evictions,
        .moe_seconds = s.moe_seconds,
        .link_busy_seconds = s.link_busy_seconds,
        .cpu_busy_seconds = s.cpu_busy_seconds,
        .frames = s.frames,
        .frames_used = s.frames_used,
        .frame_bytes = s.frame_bytes,
    };
}

const struct ifx_assist_policy *ifx_assist_policy(const struct ifx_model *m)
{
    return m->offload ? m->policies[0] : NULL;
}
