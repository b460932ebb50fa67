/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu_moe.c - the routed experts of one call on the CPU: a whole layer, or some experts of it whose parts go to memory.
 *
 * One parallel run with three kinds of task, in this order: prepare an expert; gate and up of some rows of an expert; down of a
 * block of output rows for all experts, followed, for a whole layer, by the combination of that block while its parts are in
 * cache.  A task that needs an earlier one waits for it by spinning: tasks are handed out in ascending order, so what it waits
 * for is already running on another thread.  How the work is cut depends on the call alone, never on the number of threads.
 */
#include "default_forward.h"
#include "offload.h"

#include <stdatomic.h>
#include <string.h>

#define TILE_BYTES (512u << 10) /* parts of one block of output rows: they should stay in the second-level cache */

/* An expert with work. */
struct active {
    struct ifx_expert_call call;
    uint32_t expert;
    uint32_t first; /* of its rows in x_rows and slots */
    _Atomic uint32_t prepared;
};

struct run {
    const struct offload_call *c;       /* a whole layer, or NULL */
    const struct offload_cpu_call *out; /* some experts: where their parts go, or NULL */
    const struct offload_layer *l;
    uint32_t n_active;
    struct active *active;
    const uint32_t *slots; /* row of a column of an expert among the parts: column * top_k + rank in a block's, or of `out` */
    uint32_t gate_rows, gate_chunks; /* rows of one gate_up task; tasks of an expert */
    uint32_t block; /* output rows of one down task */
    float *tiles;   /* a worker: parts [n * top_k, block] */
    uint64_t tile_values;
    _Atomic uint64_t gate_left;
    _Atomic int32_t failed;
};

/* ---- workspace ---- */

struct layout {
    uint32_t *counts;  /* [experts] */
    uint32_t *buckets; /* [n + 2] */
    uint32_t *x_rows, *slots;
    struct active *active;
    float *tiles;
    uint8_t *scratch;
};

static uint32_t round_up_to(uint32_t v, uint32_t m)
{
    return (v + m - 1) / m * m;
}

static uint32_t granule(const struct offload_layer *l)
{
    return l->ops->row_granule ? l->ops->row_granule : 1;
}

static uint32_t clamp(uint64_t v, uint32_t least, uint32_t most)
{
    return v < least ? least : v > most ? most : (uint32_t)v;
}

/* Output rows of a down task: parts of all slots fit the cache, and there is work for many threads. */
static uint32_t block_rows(const struct offload_layer *l, uint32_t n)
{
    uint64_t fit = TILE_BYTES / sizeof(float) / ((uint64_t)n * l->top_k);
    uint32_t spread = clamp(l->hidden / 32, 64, 128);
    uint32_t rows = round_up_to(clamp(fit, 32, spread), granule(l));
    return rows < l->hidden ? rows : l->hidden;
}

static struct ifx_expert_shape shape_of(const struct offload_layer *l)
{
    return (struct ifx_expert_shape){.struct_size = sizeof(struct ifx_expert_shape), .hidden = l->hidden, .inter = l->inter};
}

static uint64_t scratch_bytes(const struct offload_layer *l, uint32_t n)
{
    struct ifx_expert_shape shape = shape_of(l);
    uint64_t bytes = plugin_has_forward(l->ops) ? l->ops->scratch_bytes(l->bank, n)
                                                : plugin_default_scratch_bytes(&shape, n);
    return (bytes + 63) / 64 * 64;
}

/* Bound of the scratch of all experts: scratch_bytes(n) <= a + b n for every width up to n. */
static uint64_t scratch_bound(const struct offload_layer *l, uint32_t n, uint32_t n_active)
{
    uint64_t a = scratch_bytes(l, 1), b = 0;
    for (uint32_t i = 2; i <= n; i++) {
        uint64_t bytes = scratch_bytes(l, i);
        uint64_t slope = bytes > a ? (bytes - a + i - 1) / i : 0;
        b = slope > b ? slope : b;
    }
    return n_active * a + b * n * l->top_k;
}

static uint64_t take(uint64_t *at, uint64_t bytes)
{
    uint64_t here = *at;
    *at += (bytes + 63) / 64 * 64;
    return here;
}

/* Bound of one worker's tile for every call of at most n columns (see block_rows). */
static uint64_t tile_bound(const struct offload_layer *l, uint32_t n)
{
    uint64_t slots = (uint64_t)n * l->top_k, most = slots * 32;
    if (most < TILE_BYTES / sizeof(float))
        most = TILE_BYTES / sizeof(float);
    if (most > slots * 128)
        most = slots * 128;
    return (most + slots * granule(l)) * sizeof(float);
}

/* Lays a call of n columns out (ws NULL: only the size counts); the scratch comes last. */
static uint64_t lay_out(const struct offload_layer *l, uint32_t n, uint64_t tiles_bytes, uint8_t *ws, struct layout *out)
{
    uint64_t slots = (uint64_t)n * l->top_k, at = 0;
    uint64_t most_active = slots < l->experts ? slots : l->experts;
    uint64_t counts = take(&at, l->experts * sizeof(uint32_t));
    uint64_t buckets = take(&at, (n + 2ull) * sizeof(uint32_t));
    uint64_t x_rows = take(&at, slots * sizeof(uint32_t));
    uint64_t slot_rows = take(&at, slots * sizeof(uint32_t));
    uint64_t active = take(&at, most_active * sizeof(struct active));
    uint64_t tiles = take(&at, tiles_bytes);
    if (ws)
        *out = (struct layout){.counts = (void *)(ws + counts), .buckets = (void *)(ws + buckets),
                               .x_rows = (void *)(ws + x_rows), .slots = (void *)(ws + slot_rows),
                               .active = (void *)(ws + active), .tiles = (void *)(ws + tiles), .scratch = ws + at};
    return at;
}

uint64_t offload_cpu_ws_bytes(const struct offload_layer *l, const struct base_pool *pool, uint32_t n)
{
    uint64_t slots = (uint64_t)n * l->top_k;
    uint32_t n_active = slots < l->experts ? (uint32_t)slots : l->experts;
    uint64_t fixed = lay_out(l, n, base_pool_threads(pool) * tile_bound(l, n), NULL, NULL);
    return fixed + scratch_bound(l, n, n_active);
}

/* ---- grouping ---- */

/* Active experts with the most columns first, ids ascending among equals; x_rows and slots ascending within an expert. */
static void group(struct run *run, const struct layout *ly, const uint16_t *x, uint64_t ldx)
{
    const struct offload_call *c = run->c;
    const struct offload_layer *l = run->l;
    uint32_t slots = c->n * l->top_k, first = 0;
    memset(ly->counts, 0, l->experts * sizeof(uint32_t));
    memset(ly->buckets, 0, (c->n + 2ull) * sizeof(uint32_t));
    for (uint32_t s = 0; s < slots; s++)
        ly->counts[c->ids[s]]++;
    for (uint32_t e = 0; e < l->experts; e++)
        ly->buckets[c->n - ly->counts[e] + 1]++;
    for (uint32_t i = 1; i <= c->n; i++)
        ly->buckets[i] += ly->buckets[i - 1];
    run->n_active = ly->buckets[c->n];
    for (uint32_t e = 0; e < l->experts; e++) {
        if (!ly->counts[e])
            continue;
        struct active *a = &run->active[ly->buckets[c->n - ly->counts[e]]++];
        a->expert = e;
        a->call = (struct ifx_expert_call){.struct_size = sizeof a->call, .n = ly->counts[e],
                                           .record = l->records + e * l->record_bytes, .x = x, .ldx = ldx,
                                           .flags = c->any_order ? IFX_EXPERT_ANY_ORDER : 0};
        atomic_init(&a->prepared, 0);
    }
    uint8_t *scratch = ly->scratch;
    for (uint32_t i = 0; i < run->n_active; i++) {
        struct active *a = &run->active[i];
        a->first = first;
        a->call.x_rows = ly->x_rows + first;
        a->call.scratch = scratch;
        ly->counts[a->expert] = first; /* from here on: where its next column goes */
        first += a->call.n;
        scratch += scratch_bytes(l, a->call.n);
    }
    for (uint32_t s = 0; s < slots; s++) {
        uint32_t at = ly->counts[c->ids[s]]++;
        ly->x_rows[at] = s / l->top_k;
        ly->slots[at] = s;
    }
    run->slots = ly->slots;
}

/* ---- tasks ---- */

/* The bank's own path or the host's default one. */
static int32_t bank_gate_up(const struct offload_layer *l, const struct ifx_expert_call *call, uint32_t row0, uint32_t row1)
{
    struct ifx_expert_shape shape = shape_of(l);
    return plugin_has_forward(l->ops) ? l->ops->gate_up(l->bank, call, row0, row1)
                                      : plugin_default_gate_up(l->ops, l->bank, &shape, call, row0, row1);
}

static int32_t bank_down(const struct offload_layer *l, const struct ifx_expert_call *call, uint32_t row0, uint32_t row1,
                         float *y, uint64_t ldy, const uint32_t *y_rows)
{
    struct ifx_expert_shape shape = shape_of(l);
    return plugin_has_forward(l->ops)
               ? l->ops->down(l->bank, call, row0, row1, y, ldy, y_rows)
               : plugin_default_down(l->ops, l->bank, &shape, call, row0, row1, y, ldy, y_rows);
}

static int32_t prepare_task(struct run *run, uint64_t index)
{
    struct active *a = &run->active[index];
    int32_t st = run->l->ops->prepare ? run->l->ops->prepare(run->l->bank, &a->call) : IFX_OK;
    if (st)
        atomic_store(&run->failed, st);
    atomic_store_explicit(&a->prepared, 1, memory_order_release);
    return st;
}

static int32_t gate_up_task(struct run *run, uint64_t index)
{
    const struct offload_layer *l = run->l;
    struct active *a = &run->active[index / run->gate_chunks];
    uint32_t row0 = (uint32_t)(index % run->gate_chunks) * run->gate_rows;
    uint32_t row1 = row0 + run->gate_rows < l->inter ? row0 + run->gate_rows : l->inter, spins = 0;
    int32_t st = IFX_OK;
    while (!atomic_load_explicit(&a->prepared, memory_order_acquire))
        base_spin(&spins);
    if (!atomic_load_explicit(&run->failed, memory_order_relaxed))
        st = bank_gate_up(l, &a->call, row0, row1);
    if (st)
        atomic_store(&run->failed, st);
    /* Counted down whatever happened, or the others would wait for ever. */
    atomic_fetch_sub_explicit(&run->gate_left, 1, memory_order_release);
    return st;
}

static int32_t down_task(struct run *run, uint64_t index, uint32_t worker)
{
    const struct offload_layer *l = run->l;
    const struct offload_call *c = run->c;
    uint32_t row0 = (uint32_t)index * run->block, spins = 0;
    uint32_t row1 = row0 + run->block < l->hidden ? row0 + run->block : l->hidden;
    float *tile = run->out ? run->out->y + row0 : run->tiles + worker * run->tile_values;
    uint64_t ld = run->out ? run->out->ldy : run->block;
    while (atomic_load_explicit(&run->gate_left, memory_order_acquire))
        base_spin(&spins);
    for (uint32_t i = 0; i < run->n_active; i++) {
        const struct active *a = &run->active[i];
        if (atomic_load_explicit(&run->failed, memory_order_relaxed))
            return IFX_OK; /* the task that failed reports it */
        int32_t st = bank_down(l, &a->call, row0, row1, tile, ld, run->slots + a->first);
        if (st) {
            atomic_store(&run->failed, st);
            return st;
        }
    }
    if (!c)
        return IFX_OK;
    struct ifx_combine op = {.n = c->n, .top_k = l->top_k, .width = row1 - row0, .parts = tile, .ldp = ld,
                             .weights = c->weights, .y = c->y + row0, .ldy = c->ldy};
    return c->dev->ops->combine(c->dev, c->stream, &op);
}

static int32_t task(void *ctx, uint64_t index, uint32_t worker)
{
    struct run *run = ctx;
    if (index < run->n_active)
        return prepare_task(run, index);
    index -= run->n_active;
    /* Not before the preparations are handed out: others would spin for one. */
    if (worker == 0 && run->out && run->out->meanwhile)
        run->out->meanwhile(run->out->meanwhile_ctx);
    uint64_t gate_tasks = (uint64_t)run->n_active * run->gate_chunks;
    return index < gate_tasks ? gate_up_task(run, index) : down_task(run, index - gate_tasks, worker);
}

static int32_t run_tasks(struct run *run, struct base_pool *pool)
{
    const struct offload_layer *l = run->l;
    run->gate_rows = round_up_to(clamp(l->inter / 8, 32, 128), granule(l));
    run->gate_chunks = (l->inter + run->gate_rows - 1) / run->gate_rows;
    uint64_t gate_tasks = (uint64_t)run->n_active * run->gate_chunks;
    atomic_init(&run->gate_left, gate_tasks);
    atomic_init(&run->failed, IFX_OK);
    uint64_t down_tasks = (l->hidden + run->block - 1) / run->block;
    return base_pool_run(pool, run->n_active + gate_tasks + down_tasks, task, run);
}

int32_t offload_cpu_moe(const struct offload_call *c, const uint16_t *x, uint64_t ldx, void *ws)
{
    const struct offload_layer *l = c->layer;
    struct layout ly;
    struct run run = {.c = c, .l = l, .block = block_rows(l, c->n)};
    run.tile_values = (uint64_t)c->n * l->top_k * run.block;
    lay_out(l, c->n, base_pool_threads(c->pool) * run.tile_values * sizeof(float), ws, &ly);
    run.active = ly.active;
    run.tiles = ly.tiles;
    group(&run, &ly, x, ldx);
    return run_tasks(&run, c->pool);
}

/* ---- some experts ---- */

/* Layout: the active experts, the columns of all, the scratch. */
static uint64_t lay_out_parts(uint64_t n_active, uint64_t rows, uint64_t *columns_at)
{
    uint64_t at = 0;
    take(&at, n_active * sizeof(struct active));
    *columns_at = take(&at, rows * sizeof(uint32_t));
    return at;
}

uint64_t offload_cpu_parts_ws_bytes(const struct offload_layer *l, uint32_t n)
{
    uint64_t slots = (uint64_t)n * l->top_k, columns_at;
    uint32_t n_active = slots < l->experts ? (uint32_t)slots : l->experts;
    return lay_out_parts(n_active, slots, &columns_at) + scratch_bound(l, n, n_active);
}

int32_t offload_cpu_parts(const struct offload_cpu_call *c, void *ws)
{
    const struct offload_layer *l = c->layer;
    struct run run = {.out = c, .l = l, .n_active = c->n_parts, .active = ws, .slots = c->y_rows};
    uint64_t rows = 0, columns_at, at = 0;
    if (!c->n_parts)
        return IFX_OK;
    for (uint32_t i = 0; i < c->n_parts; i++)
        rows += c->parts[i].n;
    uint8_t *scratch = (uint8_t *)ws + lay_out_parts(c->n_parts, rows, &columns_at);
    uint32_t *columns = (uint32_t *)(void *)((uint8_t *)ws + columns_at);
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const struct offload_part *p = &c->parts[i];
        struct active *a = &run.active[i];
        for (uint32_t k = 0; k < p->n; k++)
            columns[at + k] = c->pairs[p->first + k] / l->top_k;
        *a = (struct active){.expert = p->expert, .first = p->first};
        a->call = (struct ifx_expert_call){.struct_size = sizeof a->call, .n = p->n, .record = p->record, .x = c->x,
                                           .ldx = c->ldx, .x_rows = columns + at, .scratch = scratch,
                                           .flags = c->any_order ? IFX_EXPERT_ANY_ORDER : 0};
        atomic_init(&a->prepared, 0);
        at += p->n;
        scratch += scratch_bytes(l, p->n);
    }
    run.block = round_up_to(clamp(l->hidden / 32, 64, 128), granule(l));
    if (run.block > l->hidden)
        run.block = l->hidden;
    return run_tasks(&run, c->pool);
}
