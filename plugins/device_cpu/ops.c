/* SPDX-License-Identifier: Apache-2.0
 *
 * ops.c - drivers of everything but the matrix products, and the table of device `cpu`.
 */
#include "cpu.h"
#include "ref.h"

/* Waking the threads costs a few microseconds; a task should be worth several times that of handing it out. */
#define SPLIT_FROM_PS 20000000u /* 20 us */
#define TASK_PS       5000000u

struct split {
    cpu_range_fn fn;
    const void *op;
    uint64_t items, each;
};

static int32_t split_task(void *ctx, uint64_t task, uint32_t worker)
{
    const struct split *s = ctx;
    (void)worker;
    uint64_t i0 = task * s->each, i1 = i0 + s->each < s->items ? i0 + s->each : s->items;
    s->fn(s->op, i0, i1);
    return IFX_OK;
}

int32_t cpu_split(struct cpu_device *d, cpu_range_fn fn, const void *op, uint64_t items, uint64_t picoseconds)
{
    uint64_t total = items * (picoseconds + 1);
    if (d->workers == 1 || total < SPLIT_FROM_PS || items == 1) {
        if (items)
            fn(op, 0, items);
        return IFX_OK;
    }
    uint64_t tasks = total / TASK_PS, most = (uint64_t)d->workers * 4;
    tasks = tasks < most ? tasks : most;
    struct split s = {fn, op, items, (items + tasks - 1) / tasks};
    return d->base.host->parallel_for(d->base.host, (items + s.each - 1) / s.each, split_task, &s);
}

int32_t cpu_run(struct cpu_device *d, uint64_t tasks, ifx_task_fn fn, void *ctx, uint64_t picoseconds)
{
    const struct ifx_host *host = d->base.host;
    if (d->workers > 1 && tasks > 1 && tasks * picoseconds >= SPLIT_FROM_PS / 2)
        return host->parallel_for(host, tasks, fn, ctx);
    int32_t status = IFX_OK;
    for (uint64_t t = 0; t < tasks && status == IFX_OK; t++)
        status = fn(ctx, t, 0);
    return status;
}

/* Picoseconds of one float32 value: a pass over memory in cache, and one with an exponential. */
enum { PASS = 150, EXP = 800 };

static int32_t embed(struct ifx_device *dev, void *stream, const struct ifx_weight *table, const int32_t *ids,
                     uint32_t n, float *y, uint64_t ldy)
{
    (void)stream;
    struct cpu_embed op = {table, ids, y, ldy};
    if (table->dtype != IFX_BF16 && table->dtype != IFX_F32 && table->dtype != IFX_W8G32)
        return dev->host->error(dev->host, IFX_EUNSUPPORTED, "device cpu: table of element type %u", table->dtype);
    return cpu_split(cpu_of(dev), cpu_of(dev)->kernels.embed, &op, n, (uint64_t)table->cols * PASS);
}

static int32_t rms_norm(struct ifx_device *dev, void *stream, const struct ifx_rms_norm *op)
{
    (void)stream;
    return cpu_split(cpu_of(dev), cpu_of(dev)->kernels.rms_norm, op, op->rows, (uint64_t)op->width * 2 * PASS);
}

static int32_t norm_rope(struct ifx_device *dev, void *stream, const struct ifx_norm_rope *op)
{
    if (op->rotary > CPU_ROTARY_MAX)
        return ref_norm_rope(dev, stream, op);
    uint64_t trig = (uint64_t)op->rotary * 10000;
    return cpu_split(cpu_of(dev), cpu_of(dev)->kernels.norm_rope, op, op->n,
                     trig + (uint64_t)op->heads * op->d * 2 * PASS);
}

static int32_t conv(struct ifx_device *dev, void *stream, const struct ifx_conv *op)
{
    (void)stream;
    if (op->kernel < 2 || op->kernel > 8 || op->dilation > 16)
        return dev->host->error(dev->host, IFX_EINVAL,
                                "device cpu: convolution of kernel %u and dilation %u; 2 to 8 and up to 16 are possible",
                                op->kernel, op->dilation);
    return cpu_split(cpu_of(dev), cpu_of(dev)->kernels.conv, op, op->channels, 3000 + (uint64_t)op->n * (EXP + 4 * PASS));
}

static int32_t gdn_gate(struct ifx_device *dev, void *stream, const struct ifx_gdn_gate *op)
{
    (void)stream;
    return cpu_split(cpu_of(dev), cpu_of(dev)->kernels.gdn_gate, op, op->n, (uint64_t)op->heads * 20000);
}

static int32_t gated_norm(struct ifx_device *dev, void *stream, const struct ifx_gated_norm *op)
{
    (void)stream;
    return cpu_split(cpu_of(dev), cpu_of(dev)->kernels.gated_norm, op, op->n, (uint64_t)op->heads * op->width * EXP);
}

static int32_t swiglu(struct ifx_device *dev, void *stream, const struct ifx_swiglu *op)
{
    (void)stream;
    return cpu_split(cpu_of(dev), cpu_of(dev)->kernels.swiglu, op, op->n, (uint64_t)op->width * EXP);
}

static int32_t sigmoid_gate(struct ifx_device *dev, void *stream, const struct ifx_sigmoid_gate *op)
{
    (void)stream;
    return cpu_split(cpu_of(dev), cpu_of(dev)->kernels.sigmoid_gate, op, op->n, (uint64_t)op->heads * op->d * EXP);
}

static int32_t add(struct ifx_device *dev, void *stream, const struct ifx_add *op)
{
    (void)stream;
    return cpu_split(cpu_of(dev), cpu_of(dev)->kernels.add, op, op->n, (uint64_t)op->width * PASS);
}

static int32_t router(struct ifx_device *dev, void *stream, const struct ifx_router *op)
{
    (void)stream;
    if (op->top_k == 0 || op->top_k > 32 || op->top_k > op->experts)
        return dev->host->error(dev->host, IFX_EINVAL, "device cpu: router of %u experts asked for %u", op->experts,
                                op->top_k);
    return cpu_split(cpu_of(dev), cpu_of(dev)->kernels.router, op, op->n, (uint64_t)op->experts * 2000);
}

static int32_t combine(struct ifx_device *dev, void *stream, const struct ifx_combine *op)
{
    (void)stream;
    return cpu_split(cpu_of(dev), cpu_of(dev)->kernels.combine, op, op->n, (uint64_t)op->top_k * op->width * PASS);
}

static int32_t to_bf16(struct ifx_device *dev, void *stream, const float *x, uint64_t ldx, uint32_t n,
                       uint32_t width, uint16_t *y, uint64_t ldy)
{
    (void)stream;
    struct cpu_to_bf16 op = {x, ldx, width, y, ldy};
    return cpu_split(cpu_of(dev), cpu_of(dev)->kernels.to_bf16, &op, n, (uint64_t)width * PASS);
}

/* ---- residuals of several streams ---- */

static int32_t activate(struct ifx_device *dev, void *stream, const struct ifx_activate *op)
{
    (void)stream;
    return cpu_split(cpu_of(dev), cpu_of(dev)->kernels.activate, op, op->n, (uint64_t)op->width * EXP);
}

static int32_t stream_mix(struct ifx_device *dev, void *stream, const struct ifx_stream_mix *op)
{
    (void)stream;
    return cpu_split(cpu_of(dev), cpu_of(dev)->kernels.stream_mix, op, op->n, (uint64_t)op->streams * op->width * EXP);
}

static int32_t stream_inject(struct ifx_device *dev, void *stream, const struct ifx_stream_inject *op)
{
    (void)stream;
    return cpu_split(cpu_of(dev), cpu_of(dev)->kernels.stream_inject, op, op->n, (uint64_t)op->streams * op->width * PASS);
}

static int32_t stream_gate(struct ifx_device *dev, void *stream, const struct ifx_stream_gate *op)
{
    (void)stream;
    return cpu_split(cpu_of(dev), cpu_of(dev)->kernels.stream_gate, op, op->n, (uint64_t)op->streams * op->width * 2 * PASS);
}

/* ---- gated delta rule: few tokens one by one, split over heads and values; a prompt in chunks, split over heads ---- */

#define CHUNKS_FROM 16u /* tokens */
#define STEP_VALUES 64u /* values a task of the token-by-token form */

struct delta {
    const struct cpu_kernels *k;
    const struct ifx_gated_delta *op;
    uint64_t parts; /* tasks a head */
    uint64_t floats;
};

static int32_t delta_task(void *ctx, uint64_t task, uint32_t worker)
{
    const struct delta *d = ctx;
    if (d->op->n >= CHUNKS_FROM) {
        d->k->delta_chunks(d->op, task, (float *)d->op->ws + worker * d->floats);
        return IFX_OK;
    }
    uint64_t j0 = task % d->parts * STEP_VALUES, j1 = j0 + STEP_VALUES;
    d->k->delta_step(d->op, task / d->parts, j0, j1 < d->op->dv ? j1 : d->op->dv);
    return IFX_OK;
}

static uint64_t gated_delta_ws_bytes(struct ifx_device *dev, const struct ifx_gated_delta *op)
{
    return cpu_of(dev)->workers * CPU_DELTA_FLOATS(op->dk, op->dv) * sizeof(float);
}

static int32_t gated_delta(struct ifx_device *dev, void *stream, const struct ifx_gated_delta *op)
{
    (void)stream;
    struct cpu_device *c = cpu_of(dev);
    if (op->dk > 256 || op->dv > 256 || !op->k_heads || op->v_heads % op->k_heads)
        return dev->host->error(dev->host, IFX_EINVAL,
                                "device cpu: delta rule with %u key heads of %u and %u value heads of %u", op->k_heads,
                                op->dk, op->v_heads, op->dv);
    struct delta d = {&c->kernels, op, (op->dv + STEP_VALUES - 1) / STEP_VALUES, CPU_DELTA_FLOATS(op->dk, op->dv)};
    if (op->n == 0)
        return IFX_OK;
    if (op->n >= CHUNKS_FROM)
        d.parts = 1;
    return cpu_run(c, op->v_heads * d.parts, delta_task, &d, (uint64_t)op->n * op->dk * op->dv / d.parts * PASS);
}

void cpu_fill(struct ifx_device_ops *ops)
{
    ops->embed = embed;
    ops->linear_ws_bytes = cpu_linear_ws_bytes;
    ops->linear = cpu_linear;
    ops->rms_norm = rms_norm;
    ops->norm_rope = norm_rope;
    ops->conv = conv;
    ops->gdn_gate = gdn_gate;
    ops->gated_delta_ws_bytes = gated_delta_ws_bytes;
    ops->gated_delta = gated_delta;
    ops->gated_norm = gated_norm;
    ops->swiglu = swiglu;
    ops->sigmoid_gate = sigmoid_gate;
    ops->add = add;
    ops->router = router;
    ops->combine = combine;
    ops->to_bf16 = to_bf16;
    ops->activate = activate;
    ops->stream_mix = stream_mix;
    ops->stream_inject = stream_inject;
    ops->stream_gate = stream_gate;
}
