/* SPDX-License-Identifier: Apache-2.0
 *
 * bank.h - what the expert banks of this tree have in common: the geometry of a record, the instance, and the
 * functions behind struct ifx_expert_ops that do not depend on the format.  A format header (X_format.h) comes
 * before this one and supplies BANK_* constants and bank_* functions; so a diff of two bank folders shows the
 * format and nothing else.
 *
 * Record, all formats:  header of BANK_HEADER bytes | gate and up | down | zero bytes up to 4 KiB.
 *   Everything is made of blocks of 32 rows by BANK_BLOCK_K input positions.  A block is 32 lines of 64 bytes
 *   (one a row) and then the scales of the 32 rows, BANK_ROW_SCALES bytes each.
 *   gate and up: panel p = 0, 1, ... has rows 16 p .. 16 p + 15 of gate (block rows 0..15) and the same rows of
 * up (block rows 16..31); there is an even number of panels. down: panel q has rows 32 q .. 32 q + 31. A panel is
 * its blocks in ascending k, so that every kernel reads a record strictly forward. Rows and positions beyond the
 * matrix are zero weights.
 */
#ifndef COMMON_EXPERT_BANK_H
#define COMMON_EXPERT_BANK_H

#include <infernix/expert.h>
#include <infernix/numerics.h>

#define EXPERT_LINE       64u
#define EXPERT_BLOCK_ROWS 32u
#define EXPERT_GRANULE    32u /* two gate/up panels share the words of a hidden tile; a down panel is 32 rows */

enum {
    BANK_BLOCK_BYTES = EXPERT_BLOCK_ROWS * (EXPERT_LINE + BANK_ROW_SCALES),
    BANK_STEPS = BANK_BLOCK_K / 16 /* 16-position steps of a block */
};
enum { WIDE_COLUMNS = 512 /* columns a wide route does at once: bounds its accumulators on the stack */ };
_Static_assert(BANK_BLOCK_BYTES % EXPERT_LINE == 0, "blocks start at a cache line");
_Static_assert(BANK_BLOCK_K % 32 == 0, "a block is a whole number of matrix tiles");

struct expert_bank;

/* One way to compute a call.  row1 is cut to the matrix by the caller. */
struct expert_route {
    uint64_t (*scratch_bytes)(const struct expert_bank *bank, uint32_t n);
    void (*prepare)(const struct expert_bank *bank, const struct ifx_expert_call *call);
    void (*gate_up)(const struct expert_bank *bank, const struct ifx_expert_call *call, uint32_t row0,
                    uint32_t row1);
    void (*down)(const struct expert_bank *bank, const struct ifx_expert_call *call, uint32_t row0, uint32_t row1,
                 float *y, uint64_t ldy, const uint32_t *y_rows);
};

struct expert_bank {
    const struct ifx_host *host;
    const void *tables; /* look-up tables of the format, or NULL */
    const struct expert_route *narrow;
    const struct expert_route *wide;
    uint32_t wide_from; /* columns at which the wide route is the faster one, where any order will do */
    uint32_t hidden;
    uint32_t inter;
    uint32_t level;
    uint32_t gu_panels;
    uint32_t gu_blocks; /* blocks of a gate/up panel */
    uint32_t down_panels;
    uint32_t down_blocks;
    uint64_t down_offset;
    uint64_t used_bytes;
    uint64_t record_bytes;
};

/* The routes an ISA object offers; a NULL route is taken from the level below. */
struct expert_routes {
    const struct expert_route *narrow;
    const struct expert_route *wide;
    uint32_t wide_from; /* of `wide`; 0: as soon as the narrow route ends */
};

static inline uint32_t expert_div_up(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

/* 0 when the format cannot hold the shape. */
static inline uint64_t expert_geometry(struct expert_bank *bank, const struct ifx_expert_shape *shape)
{
    uint32_t h = shape->hidden, i = shape->inter;
    if (h == 0 || i == 0 || h % BANK_MULTIPLE || i % BANK_MULTIPLE || h > (1u << 24) || i > (1u << 24))
        return 0;
    bank->hidden = h;
    bank->inter = i;
    bank->gu_panels = 2 * expert_div_up(i, 32);
    bank->gu_blocks = expert_div_up(h, BANK_BLOCK_K);
    bank->down_panels = expert_div_up(h, 32);
    bank->down_blocks = expert_div_up(i, BANK_BLOCK_K);
    bank->down_offset = BANK_HEADER + (uint64_t)bank->gu_panels * bank->gu_blocks * BANK_BLOCK_BYTES;
    bank->used_bytes = bank->down_offset + (uint64_t)bank->down_panels * bank->down_blocks * BANK_BLOCK_BYTES;
    bank->record_bytes = (bank->used_bytes + IFX_RECORD_ALIGN - 1) / IFX_RECORD_ALIGN * IFX_RECORD_ALIGN;
    return bank->record_bytes;
}

static inline uint32_t expert_k(const struct expert_bank *bank, uint32_t matrix)
{
    return matrix == IFX_DOWN ? bank->inter : bank->hidden;
}

static inline uint32_t expert_rows(const struct expert_bank *bank, uint32_t matrix)
{
    return matrix == IFX_DOWN ? bank->hidden : bank->inter;
}

static inline uint32_t expert_blocks(const struct expert_bank *bank, uint32_t matrix)
{
    return matrix == IFX_DOWN ? bank->down_blocks : bank->gu_blocks;
}

/* First block of the panel that holds a row, and the row's place in its blocks. */
static inline uint64_t expert_panel(const struct expert_bank *bank, uint32_t matrix, uint32_t row,
                                    uint32_t *block_row)
{
    if (matrix == IFX_DOWN) {
        *block_row = row % 32;
        return bank->down_offset + (uint64_t)(row / 32) * bank->down_blocks * BANK_BLOCK_BYTES;
    }
    *block_row = row % 16 + (matrix == IFX_UP ? 16 : 0);
    return BANK_HEADER + (uint64_t)(row / 16) * bank->gu_blocks * BANK_BLOCK_BYTES;
}

static inline const uint8_t *expert_gu_panel(const struct expert_bank *bank, const void *record, uint32_t p)
{
    return (const uint8_t *)record + BANK_HEADER + (uint64_t)p * bank->gu_blocks * BANK_BLOCK_BYTES;
}

static inline const uint8_t *expert_down_panel(const struct expert_bank *bank, const void *record, uint32_t q)
{
    return (const uint8_t *)record + bank->down_offset + (uint64_t)q * bank->down_blocks * BANK_BLOCK_BYTES;
}

static inline const uint16_t *expert_column(const struct ifx_expert_call *call, uint32_t c)
{
    return call->x + (call->x_rows ? call->x_rows[c] : c) * call->ldx;
}

static inline const uint8_t *expert_line(const uint8_t *block, uint32_t row)
{
    return block + (size_t)row * EXPERT_LINE;
}

static inline const uint8_t *expert_scales(const uint8_t *block, uint32_t row)
{
    return block + EXPERT_BLOCK_ROWS * EXPERT_LINE + (size_t)row * BANK_ROW_SCALES;
}

#endif
