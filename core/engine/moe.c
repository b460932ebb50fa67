/* SPDX-License-Identifier: Apache-2.0
 *
 * moe.c - the MoE service: router on the device, experts where they lie.
 */
#include "engine.h"

#include <math.h>
#include <string.h>

static struct ifx_router router_of(const struct step_buffers *b, const struct ifx_moe_layer *l, uint32_t n)
{
    return (struct ifx_router){.n = n, .experts = l->experts, .top_k = l->top_k, .renormalise = l->renormalise, .logits = b->router_logits,
                               .ldl = l->experts, .ids = b->router_ids, .weights = b->router_weights};
}

static int32_t route(struct ifx_model *m, const struct ifx_moe_layer *l, const float *x, uint64_t ldx, uint32_t n)
{
    struct step_buffers *b = &m->step;
    struct ifx_linear linear;
    memset(&linear, 0, sizeof linear);
    linear.n = n;
    linear.cols = l->hidden;
    linear.count = 1;
    linear.flags = IFX_LINEAR_F32;
    linear.x = x;
    linear.ldx = ldx;
    linear.out[0].w = m->weights[l->router];
    linear.out[0].y = b->router_logits;
    linear.out[0].ldy = l->experts;
    linear.ws = b->router_ws;
    int32_t st = m->dev->ops->linear(m->dev, m->stream, &linear);
    if (st)
        return st;
    struct ifx_router router = router_of(b, l, n);
    return m->dev->ops->router(m->dev, m->stream, &router);
}

/* A column whose weights are not numbers has no meaningful choice: it takes the first experts with NaN weights, so that it alone
 * ends as NaN and the columns beside it go on. */
static int32_t check_routes(struct engine_step *step, const struct ifx_moe_layer *l, uint32_t n)
{
    struct step_buffers *b = &step->model->step;
    for (uint32_t t = 0; t < n; t++) {
        int32_t *ids = b->router_ids + (uint64_t)t * l->top_k;
        float *w = b->router_weights + (uint64_t)t * l->top_k, sum = 0;
        for (uint32_t r = 0; r < l->top_k; r++)
            sum += w[r];
        if (!isfinite(sum)) {
            engine_bad_column(step, n, t, (int32_t)l->layer);
            for (uint32_t r = 0; r < l->top_k; r++) {
                ids[r] = (int32_t)r;
                w[r] = NAN;
            }
        }
        for (uint32_t r = 0; r < l->top_k; r++)
            if (ids[r] < 0 || (uint32_t)ids[r] >= l->experts)
                return base_error(IFX_EINTERNAL, "layer %u: the router chose expert %d of %u", l->layer, ids[r], l->experts);
    }
    return IFX_OK;
}

static int32_t observe_routes(const struct engine_step *step, const struct ifx_moe_layer *l, uint32_t n, const int32_t *ids,
                              const float *weights)
{
    const struct step_buffers *b = &step->model->step;
    for (uint32_t i = 0; i < step->count; i++) {
        const struct ifx_segment *seg = &b->segments[i];
        const struct ifx_sequence *s = seg->sequence;
        uint64_t at = (uint64_t)seg->column0 * l->top_k;
        if (!s->observed || !s->observer.router || seg->column0 + seg->n > n)
            continue;
        int32_t st = s->observer.router(s->observer.ctx, l->layer, seg->pos0, seg->n, l->top_k, ids + at, weights + at);
        if (st)
            return st;
    }
    return IFX_OK;
}

static int32_t moe_on_host(struct engine_step *step, uint32_t moe_layer, const float *x, uint64_t ldx, uint32_t n, float *y,
                           uint64_t ldy)
{
    struct ifx_model *m = step->model;
    struct step_buffers *b = &m->step;
    const struct ifx_moe_layer *l = &m->desc->moe[moe_layer];
    int32_t st = m->dev->ops->stream_sync(m->dev, m->stream);
    if (!st)
        st = check_routes(step, l, n);
    if (!st && step->watch)
        st = observe_routes(step, l, n, b->router_ids, b->router_weights);
    if (st)
        return st;
    struct offload_call call = {.layer = &m->moe_layers[moe_layer], .pool = m->ctx->pool, .dev = m->dev,
                                .stream = m->stream, .n = n, .ids = b->router_ids, .weights = b->router_weights, .y = y,
                                .ldy = ldy, .any_order = offload_any_order(n, m->deterministic)};
    if (m->oracle)
        return offload_ref_moe(&call, x, ldx);
    st = m->dev->ops->to_bf16(m->dev, m->stream, x, ldx, n, l->hidden, b->x_bf16, l->hidden);
    return st ? st : offload_cpu_moe(&call, b->x_bf16, l->hidden, b->moe_ws);
}

/* The choice is brought to the host only when somebody watches. */
static int32_t watch_routes(struct engine_step *step, const struct ifx_moe_layer *l, uint32_t n)
{
    struct ifx_model *m = step->model;
    const struct ifx_device_ops *op = m->dev->ops;
    uint64_t pairs = (uint64_t)n * l->top_k;
    int32_t *ids = base_alloc(pairs * sizeof *ids, 64);
    float *weights = base_alloc(pairs * sizeof *weights, 64);
    int32_t st = ids && weights ? IFX_OK : IFX_ENOMEM;
    if (!st)
        st = op->copy(m->dev, m->stream, ids, m->step.router_ids, pairs * sizeof *ids, IFX_COPY_FROM_DEVICE);
    if (!st)
        st = op->copy(m->dev, m->stream, weights, m->step.router_weights, pairs * sizeof *weights, IFX_COPY_FROM_DEVICE);
    if (!st)
        st = op->stream_sync(m->dev, m->stream);
    if (!st)
        st = observe_routes(step, l, n, ids, weights);
    base_free(ids);
    base_free(weights);
    return st;
}

/* A column whose weights are not numbers keeps them: the combination makes it NaN, whatever its experts give. */
static int32_t moe_on_device(struct engine_step *step, uint32_t moe_layer, const float *x, uint64_t ldx, uint32_t n, float *y,
                             uint64_t ldy)
{
    struct ifx_model *m = step->model;
    struct step_buffers *b = &m->step;
    const struct ifx_moe_layer *l = &m->desc->moe[moe_layer];
    int32_t st = step->watch ? watch_routes(step, l, n) : IFX_OK;
    if (!st)
        st = m->dev->ops->to_bf16(m->dev, m->stream, x, ldx, n, l->hidden, b->x_bf16, l->hidden);
    struct offload_moe_call call = {.layer = moe_layer, .n = n, .stream = m->stream, .x = b->x_bf16, .ldx = l->hidden,
                                    .ids = b->router_ids, .weights = b->router_weights, .y = y, .ldy = ldy,
                                    .capturing = step->capturing};
    return st ? st : offload_moe(m->offload, &call);
}

int32_t engine_moe(const struct ifx_services *sv, uint32_t moe_layer, const float *x, uint64_t ldx, uint32_t n, float *y,
                   uint64_t ldy)
{
    struct engine_step *step = sv->ctx;
    int32_t st = route(step->model, &step->model->desc->moe[moe_layer], x, ldx, n);
    if (st)
        return st;
    return step->model->offload ? moe_on_device(step, moe_layer, x, ldx, n, y, ldy)
                                : moe_on_host(step, moe_layer, x, ldx, n, y, ldy);
}

/* Only where nothing is asked of the host: then the parts of a block join into a few launches. */
int32_t engine_moe_block(const struct ifx_services *sv, uint32_t moe_layer, const struct ifx_product *in, const struct ifx_product *out)
{
    struct engine_step *step = sv->ctx;
    struct ifx_model *m = step->model;
    const struct ifx_device_ops *ops = m->dev->ops;
    struct step_buffers *b = &m->step;
    const struct ifx_moe_layer *l = &m->desc->moe[moe_layer];
    uint32_t n = in->linear.n, at = in->linear.count;
    if (!ops->product || !m->offload || step->watch || n > IFX_NARROW_COLUMNS || at == IFX_LINEAR_MAX || !offload_all_resident(m->offload))
        return IFX_EUNSUPPORTED;
    struct ifx_product first = *in, last = *out;
    first.linear.out[at].w = m->weights[l->router];
    first.linear.out[at].y = b->router_logits;
    first.linear.out[at].ldy = l->experts;
    first.linear.count++;
    first.exact = 1u << at;
    first.rounded = b->x_bf16;
    first.ldr = l->hidden;
    int32_t st = ops->product(m->dev, m->stream, &first);
    struct ifx_router router = router_of(b, l, n);
    struct ifx_combine combine;
    struct offload_moe_call call = {.layer = moe_layer, .n = n, .stream = m->stream, .x = b->x_bf16, .ldx = l->hidden, .ids = b->router_ids,
                                    .weights = b->router_weights, .capturing = step->capturing, .router = &router, .combine = &combine};
    if (!st)
        st = offload_moe(m->offload, &call);
    if (st)
        return st;
    combine.y = out->shared->y;
    combine.ldy = out->shared->ldy;
    last.combine = &combine;
    st = ops->product(m->dev, m->stream, &last);
    return st == IFX_EUNSUPPORTED ? ifx_product_steps(m->dev, m->stream, &last) : st;
}

int32_t engine_moe_begin(struct engine_step *step)
{
    struct ifx_model *m = step->model;
    return m->offload ? offload_begin_step(m->offload, m->stream) : IFX_OK;
}

bool engine_moe_capturable(const struct ifx_model *m)
{
    return m->offload && offload_capturable(m->offload);
}
