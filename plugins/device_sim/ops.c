/* SPDX-License-Identifier: Apache-2.0
 *
 * ops.c - operations: each is checked, copied, put on the stream with its cost, and computed there by device `cpu`.
 */
#include "sim.h"

#include <sched.h>
#include <string.h>

/* ---- pointers: what an operation is given must be device memory ---- */

/* NULL is left to the operation. */
static int32_t check_device(struct ifx_device *dev, const char *what, const void *const *pointers, uint32_t n)
{
    struct sim_device *d = sim_of(dev);
    uint32_t bad = n;
    if (!d->check)
        return IFX_OK;
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < n && bad == n; i++)
        if (pointers[i] && !sim_owns(d, pointers[i], 1))
            bad = i;
    pthread_mutex_unlock(&d->lock);
    if (bad == n)
        return IFX_OK;
    return dev->host->error(dev->host, IFX_EINTERNAL, "device sim: %s: pointer %u of its operands is not device memory", what,
                            bad + 1);
}

static int32_t launch_work(struct ifx_device *dev, void *stream, struct sim_work *w)
{
    struct sim_device *d = sim_of(dev);
    pthread_mutex_lock(&d->lock);
    int32_t st = sim_inject(d, &d->launches, d->fail_launch, IFX_EDEVICE, "launch", &w->fail);
    pthread_mutex_unlock(&d->lock);
    return st ? st : sim_enqueue(dev, stream, w);
}

static int32_t launch(struct ifx_device *dev, void *stream, int32_t (*run)(struct sim_device *d, const void *payload),
                      const void *payload, uint64_t bytes, struct sim_cost cost)
{
    struct sim_work w = {.run = run, .payload = payload, .bytes = bytes, .cost = cost};
    return launch_work(dev, stream, &w);
}

/* ---- costs ---- */

static struct sim_cost pass(double values, double bytes_each)
{
    return (struct sim_cost){.engine = SIM_COMPUTE, .bytes = values * bytes_each};
}

static double weight_bytes(const struct ifx_weight *w)
{
    double each = w->dtype == IFX_F32 ? 4 : w->dtype == IFX_BF16 ? 2 : 1.0625;
    return (double)w->rows * w->cols * each;
}

static struct sim_cost cost_linear(const struct ifx_linear *op)
{
    struct sim_cost c = {.engine = SIM_COMPUTE};
    for (uint32_t m = 0; m < op->count && m < IFX_LINEAR_MAX; m++) {
        c.bytes += weight_bytes(&op->out[m].w);
        c.flops += 2.0 * op->n * op->out[m].w.rows * op->cols;
    }
    return c;
}

/* The state is read and written a token at worst, a chunk of 64 at best; what counts is that it is not free. */
static struct sim_cost cost_delta(const struct ifx_gated_delta *op)
{
    double state = (double)op->v_heads * op->dk * op->dv;
    return (struct sim_cost){.engine = SIM_COMPUTE, .bytes = 8 * state, .flops = 8 * state * op->n};
}

/* ---- operations of one struct: name, its struct, cost, pointers to check ---- */

#define PTRS(...) ((const void *const[]){__VA_ARGS__})
#define OPERATION(NAME, TYPE, COST, ...)                                                                                   \
    static int32_t run_##NAME(struct sim_device *d, const void *payload)                                                   \
    {                                                                                                                      \
        return d->cpu->ops->NAME(d->cpu, NULL, payload);                                                                   \
    }                                                                                                                      \
    static int32_t sim_##NAME(struct ifx_device *dev, void *stream, const TYPE *op)                                        \
    {                                                                                                                      \
        int32_t st = check_device(dev, #NAME, PTRS(__VA_ARGS__), sizeof PTRS(__VA_ARGS__) / sizeof(void *));               \
        return st ? st : launch(dev, stream, run_##NAME, op, sizeof *op, COST);                                            \
    }

OPERATION(rms_norm, struct ifx_rms_norm, pass((double)op->rows * op->width, 8), op->x, op->w, op->y)
OPERATION(norm_rope, struct ifx_norm_rope, pass((double)op->n * op->heads * op->d, 8), op->x, op->w, op->inv_freq,
          op->positions, op->y)
OPERATION(conv, struct ifx_conv, pass((double)op->n * op->channels, 8), op->x, op->w, op->state, op->y)
OPERATION(gdn_gate, struct ifx_gdn_gate, pass((double)op->n * op->heads, 16), op->a, op->b, op->a_log, op->dt_bias, op->g,
          op->beta)
OPERATION(gated_delta, struct ifx_gated_delta, cost_delta(op), op->q, op->k, op->v, op->g, op->beta, op->state, op->out,
          op->ws)
OPERATION(gated_norm, struct ifx_gated_norm, pass((double)op->n * op->heads * op->width, 12), op->x, op->z, op->w, op->y)
OPERATION(swiglu, struct ifx_swiglu, pass((double)op->n * op->width, 12), op->gate, op->up, op->y)
OPERATION(sigmoid_gate, struct ifx_sigmoid_gate, pass((double)op->n * op->heads * op->d, 12), op->x, op->gate)
OPERATION(add, struct ifx_add, pass((double)op->n * op->width, 12), op->x, op->gate, op->y)
OPERATION(router, struct ifx_router, pass((double)op->n * op->experts, 4), op->logits, op->ids, op->weights)
OPERATION(combine, struct ifx_combine, pass((double)op->n * op->width, 4.0 * op->top_k + 4), op->parts, op->weights, op->index,
          op->y)
OPERATION(group, struct ifx_group, pass((double)op->n * op->top_k, 16), op->ids, op->offsets, op->rows, op->entries,
          op->table, op->records, op->ws)
OPERATION(sample, struct ifx_sample, pass((double)op->n * op->vocab, 4), op->logits, op->u, op->tokens, op->ws)

OPERATION(activate, struct ifx_activate, pass((double)op->n * op->width, 8), op->x, op->y)
OPERATION(stream_mix, struct ifx_stream_mix, pass((double)op->n * op->streams * op->width, 8), op->x, op->gate, op->y)
OPERATION(stream_inject, struct ifx_stream_inject, pass((double)op->n * op->streams * op->width, 8), op->x, op->inject, op->y)
OPERATION(stream_gate, struct ifx_stream_gate, pass((double)op->n * op->streams * op->width, 12), op->key, op->query, op->value,
          op->y)
OPERATION(index_append, struct ifx_index_append, pass((double)op->n * op->plane.d, 8), op->plane.pages, op->positions, op->k,
          op->w, op->inv_freq)
OPERATION(block_select, struct ifx_block_select,
          pass((double)op->max_tokens / (op->plane.ratio ? op->plane.ratio : 1) * op->plane.d, 4), op->plane.pages, op->positions,
          op->q, op->rows, op->n_rows, op->ws)

/* ---- operations of another form ---- */

static int32_t run_linear(struct sim_device *d, const void *payload)
{
    return d->cpu->ops->linear(d->cpu, NULL, payload);
}

static int32_t sim_linear(struct ifx_device *dev, void *stream, const struct ifx_linear *op)
{
    int32_t st = check_device(dev, "linear", PTRS(op->x, op->ws), 2);
    for (uint32_t m = 0; m < op->count && m < IFX_LINEAR_MAX && !st; m++)
        st = check_device(dev, "linear, a matrix", PTRS(op->out[m].w.data, op->out[m].w.scales, op->out[m].y), 3);
    return st ? st : launch(dev, stream, run_linear, op, sizeof *op, cost_linear(op));
}

struct embed {
    struct ifx_weight table;
    const int32_t *ids;
    uint32_t n;
    float *y;
    uint64_t ldy;
};

static int32_t run_embed(struct sim_device *d, const void *payload)
{
    const struct embed *e = payload;
    return d->cpu->ops->embed(d->cpu, NULL, &e->table, e->ids, e->n, e->y, e->ldy);
}

static int32_t sim_embed(struct ifx_device *dev, void *stream, const struct ifx_weight *table, const int32_t *ids, uint32_t n,
                         float *y, uint64_t ldy)
{
    struct embed e = {*table, ids, n, y, ldy};
    int32_t st = check_device(dev, "embed", PTRS(table->data, table->scales, ids, y), 4);
    return st ? st : launch(dev, stream, run_embed, &e, sizeof e, pass((double)n * table->cols, 6));
}

struct to_bf16 {
    const float *x;
    uint64_t ldx;
    uint32_t n, width;
    uint16_t *y;
    uint64_t ldy;
};

static int32_t run_to_bf16(struct sim_device *d, const void *payload)
{
    const struct to_bf16 *t = payload;
    return d->cpu->ops->to_bf16(d->cpu, NULL, t->x, t->ldx, t->n, t->width, t->y, t->ldy);
}

static int32_t sim_to_bf16(struct ifx_device *dev, void *stream, const float *x, uint64_t ldx, uint32_t n, uint32_t width,
                           uint16_t *y, uint64_t ldy)
{
    struct to_bf16 t = {x, ldx, n, width, y, ldy};
    int32_t st = check_device(dev, "to_bf16", PTRS(x, y), 2);
    return st ? st : launch(dev, stream, run_to_bf16, &t, sizeof t, pass((double)n * width, 6));
}

struct host_call {
    int32_t (*fn)(void *ctx);
    void *ctx;
};

static int32_t run_host_call(struct sim_device *d, const void *payload)
{
    const struct host_call *c = payload;
    (void)d;
    return c->fn(c->ctx);
}

static int32_t sim_host_call(struct ifx_device *dev, void *stream, int32_t (*fn)(void *ctx), void *ctx,
                             const struct ifx_work *work)
{
    struct host_call c = {fn, ctx};
    struct sim_work w = {.run = run_host_call, .payload = &c, .bytes = sizeof c, .work = work};
    return launch_work(dev, stream, &w);
}

/* ---- hand-over: the host's threads are the device's here ---- */

static int32_t run_post(struct sim_device *d, const void *payload)
{
    const struct ifx_post *p = payload;
    (void)d;
    for (uint32_t i = 0; i < p->n; i++)
        for (uint32_t r = 0; r < p->pieces[i].rows; r++)
            memcpy((uint8_t *)p->pieces[i].to + r * p->pieces[i].row_bytes,
                   (const uint8_t *)p->pieces[i].from + r * p->pieces[i].pitch, p->pieces[i].row_bytes);
    __atomic_store_n(p->posted, (uint64_t)++*p->counter << 32 | p->tag, __ATOMIC_RELEASE);
    return IFX_OK;
}

static int32_t sim_post(struct ifx_device *dev, void *stream, const struct ifx_post *op)
{
    return launch(dev, stream, run_post, op, sizeof *op, pass(0, 0));
}

static int32_t run_await(struct sim_device *d, const void *payload)
{
    const struct ifx_await *a = payload;
    uint64_t answer;
    (void)d;
    while ((answer = __atomic_load_n(a->answer, __ATOMIC_ACQUIRE)) >> 32 != *a->counter)
        sched_yield();
    memcpy(a->to, a->from, a->fixed_bytes + (uint32_t)answer * a->row_bytes);
    return IFX_OK;
}

static int32_t sim_await(struct ifx_device *dev, void *stream, const struct ifx_await *op)
{
    return launch(dev, stream, run_await, op, sizeof *op, pass(0, 0));
}

/* A virtual clock cannot tell what a host does that nobody asked. */
void sim_fill_handover(const struct sim_device *d, struct ifx_device_ops *ops)
{
    if (d->virtual_clock || !d->handover)
        return;
    ops->post = sim_post;
    ops->await = sim_await;
}

/* ---- copies ---- */

struct copy {
    void *dst;
    const void *src;
    uint64_t bytes;
};

static int32_t run_copy(struct sim_device *d, const void *payload)
{
    const struct copy *c = payload;
    (void)d;
    memmove(c->dst, c->src, c->bytes);
    return IFX_OK;
}

/* What is said of the direction must be so. */
static int32_t check_copy(struct ifx_device *dev, const struct copy *c, uint32_t direction)
{
    struct sim_device *d = sim_of(dev);
    bool to = direction != IFX_COPY_FROM_DEVICE, from = direction != IFX_COPY_TO_DEVICE, ok;
    pthread_mutex_lock(&d->lock);
    ok = to ? sim_owns(d, c->dst, c->bytes) : !sim_touches(d, c->dst, c->bytes);
    ok = ok && (from ? sim_owns(d, c->src, c->bytes) : !sim_touches(d, c->src, c->bytes));
    pthread_mutex_unlock(&d->lock);
    if (ok)
        return IFX_OK;
    return dev->host->error(dev->host, IFX_EINTERNAL, "device sim: a copy of %llu bytes %s leaves the memory of its side",
                            (unsigned long long)c->bytes,
                            direction == IFX_COPY_TO_DEVICE     ? "to the device"
                            : direction == IFX_COPY_FROM_DEVICE ? "from the device"
                                                                : "on the device");
}

static int32_t sim_copy(struct ifx_device *dev, void *stream, void *dst, const void *src, uint64_t bytes, uint32_t direction)
{
    struct sim_device *d = sim_of(dev);
    struct copy c = {dst, src, bytes};
    struct sim_work w = {.run = run_copy, .payload = &c, .bytes = sizeof c};
    if (!bytes)
        return IFX_OK;
    if (direction < IFX_COPY_TO_DEVICE || direction > IFX_COPY_ON_DEVICE)
        return dev->host->error(dev->host, IFX_EINVAL, "device sim: copy in direction %u", direction);
    int32_t st = check_copy(dev, &c, direction);
    if (st)
        return st;
    w.copy = direction != IFX_COPY_ON_DEVICE;
    w.cost.engine = direction == IFX_COPY_ON_DEVICE ? SIM_COMPUTE
                    : direction == IFX_COPY_TO_DEVICE ? SIM_LINK_TO : SIM_LINK_FROM;
    w.cost.bytes = (double)bytes * (w.copy ? 1 : 2);
    pthread_mutex_lock(&d->lock);
    w.cost.records = direction == IFX_COPY_TO_DEVICE ? sim_records(d, src, bytes) : 0;
    st = sim_inject(d, &d->copies, d->fail_copy, IFX_EDEVICE, "copy", &w.fail);
    pthread_mutex_unlock(&d->lock);
    return st ? st : sim_enqueue(dev, stream, &w);
}

struct fill {
    void *dst;
    uint64_t bytes;
    uint8_t byte;
};

static int32_t run_fill(struct sim_device *d, const void *payload)
{
    const struct fill *f = payload;
    (void)d;
    memset(f->dst, f->byte, f->bytes);
    return IFX_OK;
}

static int32_t sim_fill(struct ifx_device *dev, void *stream, void *dst, uint8_t byte, uint64_t bytes)
{
    struct fill f = {dst, bytes, byte};
    if (!bytes)
        return IFX_OK;
    int32_t st = check_device(dev, "fill", PTRS(dst), 1);
    return st ? st : launch(dev, stream, run_fill, &f, sizeof f, pass((double)bytes, 1));
}

/* ---- workspace: what the kernels of device cpu ask for ---- */

static uint64_t linear_ws_bytes(struct ifx_device *dev, uint32_t n, uint32_t cols)
{
    struct ifx_device *cpu = sim_of(dev)->cpu;
    return cpu->ops->linear_ws_bytes(cpu, n, cols);
}

static uint64_t gated_delta_ws_bytes(struct ifx_device *dev, const struct ifx_gated_delta *op)
{
    struct ifx_device *cpu = sim_of(dev)->cpu;
    return cpu->ops->gated_delta_ws_bytes(cpu, op);
}

static uint64_t group_ws_bytes(struct ifx_device *dev, uint32_t n, uint32_t top_k, uint32_t experts)
{
    struct ifx_device *cpu = sim_of(dev)->cpu;
    return cpu->ops->group_ws_bytes(cpu, n, top_k, experts);
}

static uint64_t sample_ws_bytes(struct ifx_device *dev, uint32_t n, uint32_t vocab)
{
    struct ifx_device *cpu = sim_of(dev)->cpu;
    return cpu->ops->sample_ws_bytes(cpu, n, vocab);
}

static uint64_t block_select_ws_bytes(struct ifx_device *dev, const struct ifx_block_select *op)
{
    struct ifx_device *cpu = sim_of(dev)->cpu;
    return cpu->ops->block_select_ws_bytes ? cpu->ops->block_select_ws_bytes(cpu, op) : 0;
}

/* Those that device cpu lacks stay NULL here too. */
static void fill_later_ops(const struct ifx_device_ops *cpu, struct ifx_device_ops *ops)
{
    ops->activate = cpu->activate ? sim_activate : NULL;
    ops->stream_mix = cpu->stream_mix ? sim_stream_mix : NULL;
    ops->stream_inject = cpu->stream_inject ? sim_stream_inject : NULL;
    ops->stream_gate = cpu->stream_gate ? sim_stream_gate : NULL;
    ops->index_append = cpu->index_append ? sim_index_append : NULL;
    ops->block_select_ws_bytes = cpu->block_select_ws_bytes ? block_select_ws_bytes : NULL;
    ops->block_select = cpu->block_select ? sim_block_select : NULL;
}

void sim_fill_ops(const struct ifx_device_ops *cpu, struct ifx_device_ops *ops)
{
    fill_later_ops(cpu, ops);
    ops->copy = sim_copy;
    ops->fill = sim_fill;
    ops->embed = sim_embed;
    ops->linear_ws_bytes = linear_ws_bytes;
    ops->linear = sim_linear;
    ops->rms_norm = sim_rms_norm;
    ops->norm_rope = sim_norm_rope;
    ops->conv = sim_conv;
    ops->gdn_gate = sim_gdn_gate;
    ops->gated_delta_ws_bytes = gated_delta_ws_bytes;
    ops->gated_delta = sim_gated_delta;
    ops->gated_norm = sim_gated_norm;
    ops->swiglu = sim_swiglu;
    ops->sigmoid_gate = sim_sigmoid_gate;
    ops->add = sim_add;
    ops->router = sim_router;
    ops->combine = sim_combine;
    ops->to_bf16 = sim_to_bf16;
    ops->group_ws_bytes = group_ws_bytes;
    ops->group = sim_group;
    ops->sample_ws_bytes = sample_ws_bytes;
    ops->sample = sim_sample;
    ops->host_call = sim_host_call;
}
