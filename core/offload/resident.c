/* SPDX-License-Identifier: Apache-2.0
 *
 * resident.c - the MoE call when every expert lies on the device, for good: nothing is asked of the host.
 */
#include "moe_call.h"

bool offload_all_resident(const struct offload *o)
{
    /* With a frame for each expert none is ever evicted; only shrinking ends this. */
    return o->allocated && o->computes && o->residency && o->residency->n_frames >= o->n_keys && o->n_resident == o->n_keys;
}

/* At most one expert a pair is touched: which ones the device alone knows. */
void offload_count_resident(struct offload *o, uint32_t layer, uint32_t n)
{
    const struct offload_layer *l = &o->config.layers[layer];
    uint64_t pairs = (uint64_t)n * l->top_k;
    pthread_mutex_lock(&o->lock);
    o->last_columns = n;
    o->stats.calls++;
    o->stats.hits += pairs < l->experts ? pairs : l->experts;
    pthread_mutex_unlock(&o->lock);
}

/* The grouping, and the choice where it is still to be made. */
static int32_t choose(struct offload *o, const struct offload_moe_call *c, const struct ifx_group *group)
{
    int32_t st = c->router && o->ops->route ? o->ops->route(o->dev, c->stream, c->router, group) : IFX_EUNSUPPORTED;
    if (st != IFX_EUNSUPPORTED)
        return st;
    st = c->router ? o->ops->router(o->dev, c->stream, c->router) : IFX_OK;
    return st ? st : o->ops->group(o->dev, c->stream, group);
}

int32_t offload_moe_resident(struct offload *o, const struct offload_moe_call *c)
{
    const struct offload_layer *l = &o->config.layers[c->layer];
    uint32_t pairs = c->n * l->top_k, entries = pairs < l->experts ? pairs : l->experts;
    struct group_block b = offload_group_block(l, c->n, o->group_memory);
    struct ifx_group group = {.n = c->n, .top_k = l->top_k, .experts = l->experts, .n_entries = entries, .ids = c->ids,
                              .offsets = b.offsets, .rows = b.rows, .entries = b.entries, .table = o->table + o->key0[c->layer],
                              .records = b.records, .ws = o->group_ws};
    struct ifx_expert_device_call call = {.struct_size = sizeof call, .n = c->n, .top_k = l->top_k, .n_entries = entries,
                                          .records = b.records, .experts = b.entries, .offsets = b.offsets, .rows = b.rows,
                                          .widest = c->n, .pairs = pairs, .x = c->x, .ldx = c->ldx, .y = o->parts,
                                          .ldy = o->max_hidden, .ws = o->ws};
    struct ifx_combine combine = {.n = c->n, .top_k = l->top_k, .width = l->hidden, .parts = o->parts, .ldp = o->max_hidden,
                                  .weights = c->weights, .y = c->y, .ldy = c->ldy};
    struct offload_job *own = c->n <= IFX_NARROW_COLUMNS ? &o->narrow[c->layer * IFX_NARROW_COLUMNS + c->n - 1].hits : NULL;
    int32_t st = choose(o, c, &group);
    if (!st)
        st = offload_device_experts(o, c->layer, c->stream, &call, own);
    if (!st && !c->capturing)
        offload_count_resident(o, c->layer, c->n);
    if (c->combine) {
        *c->combine = combine;
        return st;
    }
    return st ? st : o->ops->combine(o->dev, c->stream, &combine);
}
