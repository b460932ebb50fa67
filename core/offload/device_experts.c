/* SPDX-License-Identifier: Apache-2.0
 *
 * device_experts.c - experts on the device: by the format's own code for it, or, on a device whose memory the host can read, by the
 * format's CPU path in a host call on the stream.
 */
#include "moe_call.h"
#include "registry.h"

#include <string.h>

static int32_t open_side(struct offload *o, struct offload_side *s, const struct ifx_compute *compute, bool host_calls)
{
    int32_t st = IFX_EUNSUPPORTED;
    if (compute && s->ops->device_open && s->ops->device_forward && s->ops->device_ws_bytes)
        st = s->ops->device_open(s->bank, compute, &s->side);
    s->opened = st == IFX_OK;
    if (st == IFX_EUNSUPPORTED) {
        base_error_clear();
        o->computes &= host_calls;
        if (!host_calls)
            base_fallback("offload.side", "expert format %s has no code for this device: the CPU computes all experts",
                          s->ops->format);
        return IFX_OK;
    }
    return st;
}

int32_t offload_sides_open(struct offload *o)
{
    const struct ifx_compute *compute = o->ops->compute ? o->ops->compute(o->dev) : NULL;
    struct ifx_device_props props = {.struct_size = sizeof props};
    int32_t st = o->ops->props(o->dev, &props);
    if (st)
        return st;
    bool host_calls = (props.flags & IFX_DEVICE_HOST_CALLS) && o->ops->host_call;
    o->virtual_clock = props.flags & IFX_DEVICE_VIRTUAL_CLOCK;
    o->link_rate = props.link_bytes_per_s;
    o->computes = true;
    for (uint32_t l = 0; l < o->n_layers; l++) {
        const struct offload_layer *layer = &o->config.layers[l];
        uint32_t i = 0;
        while (i < o->n_sides && o->sides[i].bank != layer->bank)
            i++;
        o->side_of[l] = i;
        if (i < o->n_sides)
            continue;
        o->sides[i] = (struct offload_side){.ops = layer->ops, .bank = layer->bank};
        o->n_sides++;
        st = open_side(o, &o->sides[i], compute, host_calls);
        if (st)
            return st;
    }
    return IFX_OK;
}

void offload_sides_close(struct offload *o)
{
    for (uint32_t i = 0; o->sides && i < o->n_sides; i++)
        if (o->sides[i].opened && o->sides[i].ops->device_close)
            o->sides[i].ops->device_close(o->sides[i].bank, o->sides[i].side);
    o->n_sides = 0;
}

uint64_t offload_side_ws_bytes(const struct offload *o, uint32_t layer, uint32_t n)
{
    const struct offload_side *s = &o->sides[o->side_of[layer]];
    return s->opened ? s->ops->device_ws_bytes(s->bank, s->side, n, o->config.layers[layer].top_k) : 0;
}

/* On the stream's thread; the call's arrays are device memory that the host can read here. */
static int32_t run_job(void *ctx)
{
    struct offload_job *j = ctx;
    struct offload *o = j->o;
    const struct ifx_expert_device_call *c = &j->call;
    struct offload_cpu_call call = {.layer = &o->config.layers[j->layer], .pool = o->pool, .x = c->x, .ldx = c->ldx,
                                    .parts = o->job_parts, .pairs = c->rows, .y_rows = c->rows, .y = c->y, .ldy = c->ldy,
                                    .any_order = offload_any_order(c->n, o->config.deterministic)};
    uint64_t pairs = 0;
    for (uint32_t i = 0; i < c->n_entries; i++) {
        uint32_t e = c->experts ? c->experts[i] : i;
        if (e == UINT32_MAX || !c->records[i])
            continue;
        uint32_t first = c->offsets[e], n = c->offsets[e + 1] - first;
        if (!n)
            continue;
        o->job_parts[call.n_parts++] = (struct offload_part){.record = c->records[i], .expert = e, .n = n, .first = first};
        pairs += n;
    }
    j->work = offload_work(call.layer, IFX_WORK_DEVICE_EXPERTS, call.n_parts, pairs);
    int32_t st = offload_cpu_parts(&call, o->job_ws);
    atomic_store(&j->busy, 0);
    return st;
}

/* The next of those that run once, when it is free. */
static int32_t take_job(struct offload *o, void *stream, struct offload_job **out)
{
    struct offload_job *j = *out = &o->jobs[o->next_job];
    o->next_job = (o->next_job + 1) % o->n_jobs;
    return atomic_load(&j->busy) ? o->ops->stream_sync(o->dev, stream) : IFX_OK;
}

int32_t offload_device_experts(struct offload *o, uint32_t layer, void *stream, const struct ifx_expert_device_call *call,
                               struct offload_job *own)
{
    const struct offload_side *s = &o->sides[o->side_of[layer]];
    struct offload_job *j = own;
    if (s->opened)
        return s->ops->device_forward(s->bank, s->side, stream, call);
    int32_t st = own ? IFX_OK : take_job(o, stream, &j);
    if (st)
        return st;
    j->o = o;
    j->layer = layer;
    j->call = *call;
    atomic_store(&j->busy, 1);
    st = o->ops->host_call(o->dev, stream, run_job, j, &j->work);
    if (st)
        atomic_store(&j->busy, 0);
    return st;
}

void offload_jobs_reset(struct offload *o)
{
    for (uint32_t i = 0; o->jobs && i < o->n_jobs; i++)
        atomic_store(&o->jobs[i].busy, 0);
}
