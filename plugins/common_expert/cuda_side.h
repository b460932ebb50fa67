/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_side.h - the device members of struct ifx_expert_ops for CUDA: loads the bank's kernels and launches them.  Included by
 * X.c after ops.h; without a CUDA compiler at build time the members are NULL.
 */
#ifndef COMMON_EXPERT_CUDA_SIDE_H
#define COMMON_EXPERT_CUDA_SIDE_H

#include "bank.h"

#ifdef IFX_HAVE_CUDA

#include "cuda_args.h"

extern const unsigned char BANK_CUDA_IMAGE[];
extern const uint64_t BANK_CUDA_IMAGE_BYTES;

enum {
    CUDA_NARROW_RING = 16, /* most blocks of a ring: what is under way at once */
    CUDA_NARROW_FLOATS = 8192,
    CUDA_NARROW_BLOCKS = 3, /* blocks of threads that a multiprocessor holds */
    CUDA_NARROW_EACH = 8,   /* most panels of a block */
    CUDA_NARROW_MIXED = 2,  /* the same where wide experts are in the call, so that few may be narrow */
    CUDA_NARROW_SHARED = EXPERT_NARROW_FIXED + CUDA_NARROW_RING * BANK_BLOCK_BYTES + CUDA_NARROW_FLOATS * 4,
    CUDA_WIDE_SHARED = 1024 + EXPERT_WIDE_PANELS * BANK_CUDA_SCRATCH +
                       BANK_CUDA_STAGES * (EXPERT_WIDE_COLUMNS * BANK_CUDA_STEP * 2 + EXPERT_WIDE_PANELS * BANK_CUDA_RAW),
    /* twice the scratch, and the start at a multiple of 1024 */
    CUDA_GROUPED_SHARED = CUDA_WIDE_SHARED + 1024 + EXPERT_WIDE_PANELS * BANK_CUDA_SCRATCH
};
_Static_assert(CUDA_NARROW_FLOATS >= IFX_NARROW_COLUMNS * EXPERT_NARROW_BLOCKS * BANK_BLOCK_K, "a stage of all columns fits");
_Static_assert(CUDA_NARROW_SHARED <= 99 * 1024 && CUDA_WIDE_SHARED <= 99 * 1024, "what a block of sm_120 may have");

enum { CUDA_NARROW_GATE_UP, CUDA_NARROW_DOWN, CUDA_PLAN, CUDA_WIDE_GATE_UP, CUDA_WIDE_DOWN, CUDA_KERNELS };


struct expert_side {
    const struct ifx_compute *compute;
    void *module;
    int early; /* compute has launch_early */
    uint32_t wide_threads, wide_shared;
    void *kernel[CUDA_KERNELS];
};

static void expert_device_close(void *instance, void *opened)
{
    const struct expert_bank *bank = instance;
    struct expert_side *side = opened;
    if (!side)
        return;
    if (side->module)
        side->compute->module_unload(side->compute, side->module);
    bank->host->free(bank->host, side);
}

static int32_t expert_device_open(void *instance, const struct ifx_compute *compute, void **out)
{
    static const struct {
        const char *name;
        uint32_t shared;
    } hopper[] = {{"expert_grouped_gate_up", CUDA_GROUPED_SHARED}, {"expert_grouped_down", CUDA_GROUPED_SHARED}},
      kernels[CUDA_KERNELS] = {{"expert_narrow_gate_up", CUDA_NARROW_SHARED},
                               {"expert_narrow_down", CUDA_NARROW_SHARED},
                               {"expert_plan", 0},
                               {"expert_wide_gate_up", CUDA_WIDE_SHARED},
                               {"expert_wide_down", CUDA_WIDE_SHARED}};
    const struct expert_bank *bank = instance;
    *out = NULL;
    if (compute->family != IFX_COMPUTE_CUDA || compute->arch < 90)
        return bank->host->error(bank->host, IFX_EUNSUPPORTED,
                                 "bank %s has no kernels for this device (compute capability %u.%u; 9.0 or newer is needed)", BANK_NAME,
                                 compute->arch / 10, compute->arch % 10);
    struct expert_side *side = bank->host->alloc(bank->host, sizeof *side, 64);
    if (!side)
        return IFX_ENOMEM;
    *side = (struct expert_side){.compute = compute};
    side->early = compute->struct_size > offsetof(struct ifx_compute, launch_early) && compute->launch_early;
    int32_t status = compute->module_load(compute, BANK_CUDA_IMAGE, BANK_CUDA_IMAGE_BYTES, &side->module);
    const int is_hopper = compute->arch == 90;
    for (uint32_t i = 0; i < CUDA_KERNELS && !status; i++) {
        const uint32_t which = is_hopper && i >= CUDA_WIDE_GATE_UP ? i - CUDA_WIDE_GATE_UP : UINT32_MAX;
        const char *name = which == UINT32_MAX ? kernels[i].name : hopper[which].name;
        status = compute->kernel(compute, side->module, name, which == UINT32_MAX ? kernels[i].shared : hopper[which].shared, &side->kernel[i]);
    }
    side->wide_threads = is_hopper ? EXPERT_GROUPED_THREADS : EXPERT_WIDE_THREADS;
    side->wide_shared = is_hopper ? CUDA_GROUPED_SHARED : CUDA_WIDE_SHARED;
    if (status) {
        expert_device_close(instance, side);
        return status;
    }
    *out = side;
    return IFX_OK;
}

/* ---- workspace: hidden values, the list of wide tiles, its length ---- */

struct expert_ws {
    uint64_t ldh;
    uint64_t tiles; /* offsets */
    uint64_t n_tiles;
    uint64_t bytes;
};

/* A wide expert of c pairs makes at most c / 128 + 1 tiles and has at least 9 pairs, so p pairs make no more than p / 8 + 1. */
static uint64_t expert_tiles(uint64_t pairs)
{
    return pairs / 8 + 1;
}

static struct expert_ws expert_ws_layout(const struct expert_bank *bank, uint32_t n, uint32_t top_k)
{
    struct expert_ws ws;
    uint64_t pairs = (uint64_t)n * top_k;
    ws.ldh = (uint64_t)bank->gu_panels * 16;
    ws.tiles = (pairs * ws.ldh * sizeof(uint16_t) + 255) / 256 * 256;
    ws.n_tiles = ws.tiles + expert_tiles(pairs) * sizeof(struct expert_tile);
    ws.bytes = (ws.n_tiles + sizeof(uint32_t) + 255) / 256 * 256;
    return ws;
}

static uint64_t expert_device_ws_bytes(void *instance, void *side, uint32_t n, uint32_t top_k)
{
    (void)side;
    return expert_ws_layout(instance, n, top_k).bytes;
}

/* ---- launches ---- */

static int32_t expert_launch(const struct expert_side *side, void *stream, uint32_t kernel, uint32_t x, uint32_t y, uint32_t threads,
                             uint32_t shared, struct expert_cuda_args *args)
{
    const uint32_t grid[3] = {x, y, 1}, block[3] = {threads, 1, 1};
    void *list[1] = {args};
    const struct ifx_compute *c = side->compute;
    return (side->early ? c->launch_early : c->launch)(c, stream, side->kernel[kernel], grid, block, shared, list);
}

/* down: the second of the two products. */
static int32_t expert_launch_narrow(const struct expert_bank *bank, const struct expert_side *side, void *stream, int down,
                                    uint32_t columns, int mixed, struct expert_cuda_args *args)
{
    const uint32_t panels = down ? bank->down_panels : bank->gu_panels, blocks = down ? bank->down_blocks : bank->gu_blocks;
    const uint32_t stages = expert_div_up(blocks, EXPERT_NARROW_BLOCKS), ring = CUDA_NARROW_RING / EXPERT_NARROW_BLOCKS;
    const uint64_t floats = (uint64_t)stages * EXPERT_NARROW_BLOCKS * BANK_BLOCK_K * columns;
    const uint64_t places = CUDA_NARROW_BLOCKS * (uint64_t)side->compute->multiprocessors;
    const uint64_t each = ((uint64_t)panels * args->n_entries + places - 1) / places;
    const uint32_t most = mixed ? CUDA_NARROW_MIXED : CUDA_NARROW_EACH;
    args->each = each < 1 ? 1 : each < most ? (uint32_t)each : most;
    const uint64_t total = (uint64_t)stages * args->each;
    args->stages = total < ring ? (uint32_t)total : ring;
    args->x_floats = floats < CUDA_NARROW_FLOATS ? (uint32_t)floats : CUDA_NARROW_FLOATS;
    return expert_launch(side, stream, down ? CUDA_NARROW_DOWN : CUDA_NARROW_GATE_UP, expert_div_up(panels, args->each), args->n_entries,
                         EXPERT_NARROW_THREADS,
                         EXPERT_NARROW_FIXED + args->stages * EXPERT_NARROW_BLOCKS * BANK_BLOCK_BYTES + args->x_floats * 4, args);
}

static int32_t expert_launch_wide(const struct expert_bank *bank, const struct expert_side *side, void *stream, uint32_t tiles,
                                  struct expert_cuda_args *args)
{
    int32_t status = expert_launch(side, stream, CUDA_PLAN, 1, 1, 1024, 0, args);
    if (!status)
        status = expert_launch(side, stream, CUDA_WIDE_GATE_UP, expert_div_up(bank->gu_panels, EXPERT_WIDE_PANELS), tiles,
                               side->wide_threads, side->wide_shared, args);
    if (!status)
        status = expert_launch(side, stream, CUDA_WIDE_DOWN, expert_div_up(bank->down_panels, EXPERT_WIDE_PANELS), tiles,
                               side->wide_threads, side->wide_shared, args);
    return status;
}

/* Tiles that the host's bounds allow. */
static uint64_t expert_tile_bound(const struct ifx_expert_device_call *call)
{
    const uint64_t each = ((uint64_t)call->widest + EXPERT_WIDE_COLUMNS - 1) / EXPERT_WIDE_COLUMNS;
    uint64_t bound = expert_tiles(call->pairs);
    if (each * call->n_entries < bound)
        bound = each * call->n_entries;
    if (call->pairs / EXPERT_WIDE_COLUMNS + (uint64_t)call->n_entries < bound)
        bound = call->pairs / EXPERT_WIDE_COLUMNS + (uint64_t)call->n_entries;
    return bound;
}

static int32_t expert_device_forward(void *instance, void *opened, void *stream, const struct ifx_expert_device_call *call)
{
    const struct expert_bank *bank = instance;
    const struct expert_side *side = opened;
    const struct expert_ws ws = expert_ws_layout(bank, call->n, call->top_k);
    const uint64_t tiles = expert_tile_bound(call);
    const int mixed = call->widest > IFX_NARROW_COLUMNS;
    const uint32_t narrow = call->widest < IFX_NARROW_COLUMNS ? call->widest : IFX_NARROW_COLUMNS;
    if (call->n_entries == 0 || call->widest == 0 || call->pairs == 0)
        return IFX_OK;
    if (call->top_k == 0 || call->n_entries > 65535 || tiles > 65535)
        return bank->host->error(bank->host, IFX_EINVAL, "bank %s: %u entries of %u pairs in one device call are too many", BANK_NAME,
                                 call->n_entries, call->pairs);
    struct expert_cuda_args args = {
        .records = call->records,
        .experts = call->experts,
        .offsets = call->offsets,
        .rows = call->rows,
        .x = call->x,
        .ldx = call->ldx,
        .y = call->y,
        .ldy = call->ldy,
        .hidden = call->ws,
        .ldh = ws.ldh,
        .tiles = (struct expert_tile *)((char *)call->ws + ws.tiles),
        .n_tiles = (uint32_t *)((char *)call->ws + ws.n_tiles),
        .down_offset = bank->down_offset,
        .n_entries = call->n_entries,
        .top_k = call->top_k,
        .hidden_size = bank->hidden,
        .inter = bank->inter,
        .gu_panels = bank->gu_panels,
        .gu_blocks = bank->gu_blocks,
        .down_panels = bank->down_panels,
        .down_blocks = bank->down_blocks,
    };
    int32_t status = IFX_OK;
    if (mixed)
        status = expert_launch_wide(bank, side, stream, (uint32_t)tiles, &args);
    if (!status)
        status = expert_launch_narrow(bank, side, stream, 0, narrow, mixed, &args);
    if (!status)
        status = expert_launch_narrow(bank, side, stream, 1, narrow, mixed, &args);
    return status;
}

#define EXPERT_DEVICE_OPS                                                                                              \
    .device_open = expert_device_open, .device_close = expert_device_close, .device_ws_bytes = expert_device_ws_bytes, \
    .device_forward = expert_device_forward

#else

#define EXPERT_DEVICE_OPS .device_open = NULL

#endif
#endif
