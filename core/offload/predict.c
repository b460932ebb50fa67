/* SPDX-License-Identifier: Apache-2.0
 *
 * predict.c - see predict.h.
 */
#include "config.h"
#include "predict.h"
#include <math.h>
#include <string.h>

#define SAMPLE_LAYERS 4u
#define DENSE_KERNELS 20 /* of one layer */

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* ---- routing ---- */

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The top_k largest of log popularity plus Gumbel noise: a draw without replacement in proportion to popularity. */
static void draw(const struct predict_routing *r, const double *popularity, uint64_t *random, double *keys, uint16_t *out)
{
    for (uint32_t e = 0; e < r->experts; e++) {
        double u = ((double)(next_random(random) >> 11) + 0.5) / 9007199254740992.0;
        keys[e] = popularity[e] - log(-log(u));
    }
    for (uint32_t k = 0; k < r->top_k; k++) {
        uint32_t best = 0;
        for (uint32_t e = 1; e < r->experts; e++)
            if (keys[e] > keys[best])
                best = e;
        out[k] = (uint16_t)best;
        keys[best] = -INFINITY;
    }
}

int32_t predict_routing_create(const struct predict_model *m, uint32_t columns, struct predict_routing *r)
{
    uint64_t random = 20261105;
    double *popularity = base_calloc(m->experts, sizeof *popularity), *keys = base_calloc(m->experts, sizeof *keys);
    *r = (struct predict_routing){.layers = m->layers < SAMPLE_LAYERS ? m->layers : SAMPLE_LAYERS, .columns = columns,
                                  .experts = m->experts, .top_k = m->top_k};
    r->chosen = base_calloc((uint64_t)r->layers * columns * m->top_k, sizeof *r->chosen);
    int32_t st = popularity && keys && r->chosen ? IFX_OK : IFX_ENOMEM;
    for (uint32_t e = 0; e < m->experts && st == IFX_OK; e++)
        popularity[e] = -m->zipf * log(e + 1.0);
    for (uint64_t i = 0; i < (uint64_t)r->layers * columns && st == IFX_OK; i++)
        draw(r, popularity, &random, keys, r->chosen + i * m->top_k);
    base_free(popularity);
    base_free(keys);
    if (st != IFX_OK)
        predict_routing_destroy(r);
    return st;
}

void predict_routing_destroy(struct predict_routing *r)
{
    base_free(r->chosen);
    *r = (struct predict_routing){0};
}

/* ---- one layer ---- */

struct layer {
    const struct predict_call *c;
    uint32_t *columns;
    uint8_t *resident;
    struct offload_plan plan;
    double dense;
    double cpu_busy;
};

static double measured(const struct predict_rates *r, uint32_t n)
{
    uint32_t i = 0, last = r->n - 1;
    if (n >= r->columns[last])
        return r->seconds[last] * n / r->columns[last];
    while (n > r->columns[i])
        i++;
    if (i == 0)
        return r->seconds[0];
    double part = (double)(n - r->columns[i - 1]) / (r->columns[i] - r->columns[i - 1]);
    return r->seconds[i - 1] + part * (r->seconds[i] - r->seconds[i - 1]);
}

static double cpu_seconds(const struct predict_call *c, uint32_t n)
{
    return c->machine->cpu.n ? measured(&c->machine->cpu, n) : n * c->model->expert_flops / c->machine->cpu_flops;
}

static double device_seconds(const struct predict_call *c, uint32_t n)
{
    if (c->machine->device.n)
        return measured(&c->machine->device, n);
    return larger(c->model->record_bytes / c->machine->memory, n * c->model->expert_flops / c->machine->expert_flops);
}

/* When the CPU, which starts at `at`, is through with so many experts that take it `seconds` to compute: its threads are at several at
 * a time, some compute while others read.  The link takes its part of the DRAM until link_end. */
static double cpu_done(const struct predict_call *c, double at, uint32_t experts, double seconds, double link_end)
{
    const struct predict_machine *h = c->machine;
    double bytes = experts * c->model->record_bytes, rest = larger(h->dram - h->link, h->dram / 16);
    double computed = at + seconds, shared = (link_end - at) * rest;
    if (shared >= bytes)
        return larger(computed, at + bytes / rest);
    if (shared > 0)
        return larger(computed, link_end + (bytes - shared) / h->dram);
    return larger(computed, at + bytes / h->dram);
}

static double assisted_seconds(struct layer *l)
{
    const struct predict_call *c = l->c;
    const struct predict_machine *h = c->machine;
    double record = c->model->record_bytes / h->link, start = l->dense, device = start, arrive = start + h->latency, cpu = start;
    double link_end = start + l->plan.n_link * record, computing = 0;
    uint64_t back = 0;
    for (uint32_t i = 0; i < l->plan.n_resident; i++)
        device += device_seconds(c, l->columns[l->plan.resident[i]]);
    for (uint32_t i = 0; i < l->plan.n_link; i++) {
        arrive += record;
        device = larger(device, arrive) + device_seconds(c, l->columns[l->plan.link[i]]);
    }
    for (uint32_t i = 0; i < l->plan.n_cpu; i++) {
        uint32_t n = l->columns[l->plan.cpu[i]];
        computing += cpu_seconds(c, n);
        back += n;
    }
    if (l->plan.n_cpu)
        cpu = cpu_done(c, start, l->plan.n_cpu, computing, link_end);
    l->cpu_busy = cpu - start;
    if (back)
        cpu = larger(cpu, link_end) + h->latency + (double)back * c->model->hidden * sizeof(float) / h->link;
    return larger(device, cpu);
}

/* *fill: what the first layer takes longer. */
static double streamed_seconds(struct layer *l, double *fill)
{
    const struct predict_call *c = l->c;
    double link = l->plan.n_link * c->model->record_bytes / c->machine->link, device = l->dense;
    for (uint32_t i = 0; i < l->plan.n_resident; i++)
        device += device_seconds(c, l->columns[l->plan.resident[i]]);
    for (uint32_t i = 0; i < l->plan.n_link; i++)
        device += device_seconds(c, l->columns[l->plan.link[i]]);
    *fill = link < device ? link : device;
    return larger(link, device);
}

static void count_columns(struct layer *l, uint32_t layer)
{
    const struct predict_call *c = l->c;
    const struct predict_routing *r = c->routing;
    const uint16_t *chosen = r->chosen + (uint64_t)layer * r->columns * r->top_k;
    memset(l->columns, 0, r->experts * sizeof *l->columns);
    for (uint64_t i = 0; i < (uint64_t)c->n * r->top_k; i++)
        l->columns[chosen[i]]++;
    for (uint32_t e = 0; e < r->experts; e++)
        l->resident[e] = e < c->resident;
}

void predict_cost(const struct predict_model *m, const struct predict_machine *h, struct offload_cost *out)
{
    double rest = larger(h->dram - h->link, h->dram / 16);
    *out = (struct offload_cost){.link_fixed = h->latency,
                                 .link_record = m->record_bytes / h->link,
                                 .link_row = m->hidden * sizeof(float) / h->link,
                                 .cpu_record = m->record_bytes / h->dram,
                                 .cpu_shared = m->record_bytes / rest,
                                 .cpu_column = m->expert_flops / h->cpu_flops,
                                 .device_record = m->record_bytes / h->memory,
                                 .device_column = m->expert_flops / h->expert_flops};
}

static void plan_layer(struct layer *l, uint32_t link_count)
{
    const struct predict_call *c = l->c;
    struct offload_cost cost;
    struct offload_plan_input in = {.experts = c->routing->experts, .n = c->n, .columns = l->columns, .resident = l->resident,
                                    .policy = c->policy, .mode = link_count == UINT32_MAX ? c->mode : OFFLOAD_ASSIST_OFF,
                                    .cost = &cost};
    predict_cost(c->model, c->machine, &cost);
    offload_plan_make(&in, &l->plan);
    if (link_count < l->plan.n_link) { /* a split that is being tried: widest first, like the planner's */
        l->plan.n_cpu = l->plan.n_link - link_count;
        memcpy(l->plan.cpu, l->plan.link + link_count, l->plan.n_cpu * sizeof *l->plan.cpu);
        l->plan.n_link = link_count;
    }
}

/* ---- a step ---- */

static int32_t layer_create(const struct predict_call *c, struct layer *l, uint32_t **ids)
{
    uint32_t n = c->routing->experts;
    *l = (struct layer){.c = c};
    l->columns = base_calloc(n, sizeof *l->columns);
    l->resident = base_calloc(n, 1);
    *ids = base_calloc(3ull * n, sizeof **ids);
    l->plan = (struct offload_plan){.resident = *ids, .link = *ids + n, .cpu = *ids + 2ull * n};
    l->dense = larger(c->model->dense_bytes / c->model->layers / c->machine->memory,
                      c->model->dense_flops / c->model->layers * c->n / c->machine->flops) +
               DENSE_KERNELS * c->machine->kernel;
    return l->columns && l->resident && *ids ? IFX_OK : IFX_ENOMEM;
}

static void layer_destroy(struct layer *l, uint32_t *ids)
{
    base_free(l->columns);
    base_free(l->resident);
    base_free(ids);
}

/* Streaming overlaps with everything; a split that leaves the CPU nothing streams. */
static double layer_seconds(struct layer *l, double *fill)
{
    *fill = 0;
    return l->plan.n_cpu == 0 && l->plan.n_link ? streamed_seconds(l, fill) : assisted_seconds(l);
}

int32_t predict_step(const struct predict_call *c, struct predict_result *out)
{
    struct layer l;
    uint32_t *ids;
    double fill = 0, each = (double)c->model->layers / c->routing->layers;
    int32_t st = layer_create(c, &l, &ids);
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < c->routing->layers && st == IFX_OK; i++) {
        double first;
        count_columns(&l, i);
        plan_layer(&l, UINT32_MAX);
        l.cpu_busy = 0;
        out->seconds += each * layer_seconds(&l, &first);
        fill = i == 0 ? first : fill;
        out->link_bytes += each * l.plan.n_link * c->model->record_bytes;
        out->cpu_busy += each * l.cpu_busy;
        out->cpu_experts += (double)l.plan.n_cpu / c->routing->layers;
        out->link_experts += (double)l.plan.n_link / c->routing->layers;
        out->hits += (double)l.plan.n_resident / c->routing->layers;
    }
    layer_destroy(&l, ids);
    if (st != IFX_OK)
        return st;
    out->seconds += fill + c->model->head_bytes / c->machine->memory;
    out->link_busy = out->link_bytes / c->machine->link / out->seconds;
    out->cpu_busy /= out->seconds;
    return IFX_OK;
}

/* ---- a policy for a machine ---- */

/* The best split at a width: *share of the missing in 1/256, *gain: time of streaming over its time. */
static int32_t best_share(const struct predict_call *c, uint32_t *share, double *gain)
{
    struct layer l;
    uint32_t *ids;
    double best = INFINITY, streamed = 0;
    int32_t st = layer_create(c, &l, &ids);
    for (uint32_t s = 0; s <= 256 && st == IFX_OK; s += 2) {
        double sum = 0, fill;
        for (uint32_t i = 0; i < c->routing->layers; i++) {
            uint32_t missing = 0;
            count_columns(&l, i);
            for (uint32_t e = c->resident; e < c->routing->experts; e++)
                missing += l.columns[e] != 0;
            plan_layer(&l, (s * missing + 128) / 256);
            sum += layer_seconds(&l, &fill);
        }
        if (s == 256)
            streamed = sum;
        else if (sum < best) {
            best = sum;
            *share = s;
        }
    }
    *gain = streamed / best;
    layer_destroy(&l, ids);
    return st;
}

int32_t predict_policy(const struct predict_call *given, struct ifx_ramp_point *points, struct ifx_assist_policy *out)
{
    struct predict_call c = *given;
    uint32_t share = 0, limit = 0, most = c.routing->columns;
    double gain;
    int32_t st = IFX_OK;
    *out = (struct ifx_assist_policy){.struct_size = sizeof *out, .points = points};
    /* The gain falls with the width: the last width with one, found by halving. */
    for (uint32_t lo = IFX_NARROW_COLUMNS + 1, hi = most; lo <= hi && st == IFX_OK;) {
        c.n = lo + (hi - lo) / 2;
        st = best_share(&c, &share, &gain);
        if (gain > 1) {
            limit = c.n;
            lo = c.n + 1;
        } else {
            hi = c.n - 1;
        }
    }
    out->max_columns = limit ? limit : IFX_NARROW_COLUMNS;
    uint32_t from = limit < 64 ? limit / 2 + 1 : 32;
    for (uint32_t i = 0; i < PREDICT_POINTS && limit && st == IFX_OK; i++) {
        double at = from * pow((double)limit / from, (double)i / (PREDICT_POINTS - 1));
        c.n = i == PREDICT_POINTS - 1 ? limit : (uint32_t)at;
        if (i && c.n <= points[out->n_points - 1].columns)
            continue;
        st = best_share(&c, &share, &gain);
        points[out->n_points++] = (struct ifx_ramp_point){c.n, share};
    }
    return st;
}
