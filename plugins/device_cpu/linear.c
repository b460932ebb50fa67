/* SPDX-License-Identifier: Apache-2.0
 *
 * linear.c - driver of the matrix products: x is rounded once, then the rows of all matrices are dealt out together.
 *
 * Up to eight columns the weights are the cost: each is read once and used for all columns from registers.  With
 * more, x is packed into panels and blocks of weights are decoded into cache.  Every row is one task's alone, so the number of
 * threads changes nothing.
 */
#include "cpu.h"

#include <string.h>

enum { NARROW = 8 };

/* Picoseconds a task of each kind takes at least (cpu_run). */
enum { PACK_PS = 4000000, ROWS_PS = 1500000 };

/* Workspace: rounded rows (narrow) or packed panels in both element types (wide), then scratch of each worker. */
struct layout {
    uint64_t f32, bf16, scratch, bytes;
};

static uint64_t round_up(uint64_t x, uint64_t unit)
{
    return (x + unit - 1) / unit * unit;
}

static struct layout layout_of(const struct cpu_device *d, uint64_t n, uint64_t cols)
{
    struct layout l = {0};
    uint64_t padded = round_up(cols, 32), columns = n <= NARROW ? n : round_up(n, CPU_PANEL);
    l.bf16 = round_up(columns * padded * sizeof(float), 64);
    l.scratch = l.bf16;
    l.bytes = l.scratch;
    if (n > NARROW) {
        l.scratch += round_up(columns * padded * sizeof(uint16_t), 64);
        l.bytes = l.scratch + (uint64_t)d->workers * CPU_SCRATCH_BYTES;
    }
    l.bytes += 64; /* ws may be aligned to less than a cache line */
    return l;
}

uint64_t cpu_linear_ws_bytes(struct ifx_device *dev, uint32_t n, uint32_t cols)
{
    return layout_of(cpu_of(dev), n, cols).bytes;
}

/* One call: what the tasks need to know. */
struct call {
    const struct cpu_kernels *k;
    const struct ifx_linear *op;
    struct layout at;
    char *ws;
    uint64_t padded; /* cols rounded up to 32 */
    uint32_t wide, any_f32, any_bf16, k_tasks;
    uint32_t rows_per_task[IFX_LINEAR_MAX];
    uint64_t first_task[IFX_LINEAR_MAX + 1];
};

static uint32_t takes_bf16(const struct call *c, uint32_t m)
{
    return c->k->wide_bf16 && !(c->op->flags & IFX_LINEAR_F32) && c->op->out[m].w.dtype != IFX_F32;
}

static int32_t pack_task(void *ctx, uint64_t task, uint32_t worker)
{
    const struct call *c = ctx;
    (void)worker;
    uint32_t k0 = (uint32_t)(task % c->k_tasks) * CPU_KC16, left = c->op->cols - k0;
    struct cpu_pack p = {
        .x = c->op->x,
        .ldx = c->op->ldx,
        .p = task / c->k_tasks,
        .k0 = k0,
        .k1 = k0 + (left < CPU_KC16 ? left : CPU_KC16),
        .cols = c->op->cols,
        .n = c->op->n,
        .exact = c->op->flags & IFX_LINEAR_F32,
    };
    p.out = c->ws;
    if (c->any_f32)
        c->k->pack_f32(&p);
    p.out = c->ws + c->at.bf16;
    if (c->any_bf16)
        c->k->pack_bf16(&p);
    return IFX_OK;
}

static int32_t row_task(void *ctx, uint64_t task, uint32_t worker)
{
    const struct call *c = ctx;
    uint32_t m = 0;
    while (task >= c->first_task[m + 1])
        m++;
    const struct ifx_weight *w = &c->op->out[m].w;
    uint64_t r0 = (task - c->first_task[m]) * c->rows_per_task[m], r1 = r0 + c->rows_per_task[m];
    r1 = r1 < w->rows ? r1 : w->rows;
    if (!c->wide) {
        struct cpu_narrow t = {w, (const float *)c->ws, c->padded, c->op->out[m].y, c->op->out[m].ldy, r0, r1,
                               c->op->n, c->op->out[m].accumulate};
        c->k->narrow(&t);
        return IFX_OK;
    }
    struct cpu_wide t = {w, c->ws, c->op->out[m].y, c->op->out[m].ldy, r0, r1,
                         c->ws + c->at.scratch + (uint64_t)worker * CPU_SCRATCH_BYTES, c->op->n,
                         c->op->out[m].accumulate};
    if (takes_bf16(c, m)) {
        t.x = c->ws + c->at.bf16;
        c->k->wide_bf16(&t);
    } else {
        c->k->wide_f32(&t);
    }
    return IFX_OK;
}

static uint64_t row_bytes(const struct ifx_weight *w)
{
    return (uint64_t)w->cols * (w->dtype == IFX_F32 ? 4 : w->dtype == IFX_BF16 ? 2 : 1);
}

/* Rows a task: narrow, some hundred KB of weights, so that handing out costs nothing, yet a few tasks a thread, so that none
 * waits long for the last; wide, as many as the cache blocks hold, under the same condition. */
static void cut_rows(struct call *c, uint32_t workers)
{
    uint64_t rows = 0, bytes = 0;
    for (uint32_t m = 0; m < c->op->count; m++) {
        rows += c->op->out[m].w.rows;
        bytes += c->op->out[m].w.rows * row_bytes(&c->op->out[m].w);
    }
    for (uint32_t m = 0; m < c->op->count; m++) {
        const struct ifx_weight *w = &c->op->out[m].w;
        uint64_t unit = 4, most, each;
        if (c->wide) {
            unit = takes_bf16(c, m) ? c->k->row_unit16 : c->k->row_unit;
            most = CPU_ROWS_MAX / unit * unit;
            each = rows / (workers * 3u);
        } else {
            uint64_t share = bytes / (workers * 4u), target = share < 131072 ? share : 131072;
            most = w->rows;
            each = (target < 16384 ? 16384 : target) / (row_bytes(w) ? row_bytes(w) : 1);
        }
        each = each > most ? most : each;
        each = round_up(each ? each : 1, unit);
        c->rows_per_task[m] = (uint32_t)each;
        c->first_task[m + 1] = c->first_task[m] + (w->rows + each - 1) / each;
    }
}

static int32_t check(struct cpu_device *d, const struct ifx_linear *op)
{
    const struct ifx_host *host = d->base.host;
    if (op->count == 0 || op->count > IFX_LINEAR_MAX)
        return host->error(host, IFX_EINVAL, "device cpu: a product of %u matrices; 1 to %d are possible", op->count,
                           IFX_LINEAR_MAX);
    for (uint32_t m = 0; m < op->count; m++) {
        const struct ifx_weight *w = &op->out[m].w;
        if (w->cols != op->cols)
            return host->error(host, IFX_EINVAL, "device cpu: a matrix of %u columns times an input of %u", w->cols,
                               op->cols);
        if (w->dtype != IFX_BF16 && w->dtype != IFX_F32 && w->dtype != IFX_W8G32)
            return host->error(host, IFX_EUNSUPPORTED, "device cpu: matrix of element type %u", w->dtype);
    }
    return IFX_OK;
}

int32_t cpu_linear(struct ifx_device *dev, void *stream, const struct ifx_linear *op)
{
    (void)stream;
    struct cpu_device *d = cpu_of(dev);
    int32_t status = check(d, op);
    if (status || op->n == 0)
        return status;
    struct call c = {.k = &d->kernels, .op = op, .at = layout_of(d, op->n, op->cols)};
    c.ws = (char *)op->ws + (64 - (uintptr_t)op->ws % 64) % 64;
    c.padded = round_up(op->cols, 32);
    c.wide = op->n > NARROW;
    for (uint32_t m = 0; m < op->count; m++) {
        c.any_bf16 |= takes_bf16(&c, m);
        c.any_f32 |= !takes_bf16(&c, m);
    }
    cut_rows(&c, d->workers);
    if (c.wide) {
        c.k_tasks = (op->cols + CPU_KC16 - 1) / CPU_KC16;
        status = cpu_run(d, (op->n + CPU_PANEL - 1) / CPU_PANEL * (uint64_t)c.k_tasks, pack_task, &c, PACK_PS);
    } else {
        for (uint64_t t = 0; t < op->n; t++)
            c.k->round_row(op->x + t * op->ldx, op->cols, (uint32_t)c.padded, op->flags & IFX_LINEAR_F32,
                           (float *)c.ws + t * c.padded);
    }
    if (status == IFX_OK)
        status = cpu_run(d, c.first_task[op->count], row_task, &c, ROWS_PS);
    return status;
}
