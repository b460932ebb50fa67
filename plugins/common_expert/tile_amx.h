/* SPDX-License-Identifier: Apache-2.0
 *
 * tile_amx.h - wide_product on AMX-BF16.  The object supplies
 *   BANK_TILE_DIRECT    1 when record lines are tile rows already
 *   bank_tile_line(tables, line, scales, out)   otherwise: the BANK_BLOCK_K weights of a line as tile rows,
 *                       BANK_TILE_PARTS * 2 KiB apart
 *   BANK_TILE_PARTS     2 when a weight has more bits than bf16 holds: then it is the sum of two, the second 2 KiB
 *                       behind the first
 *
 * 32 rows by 32 columns at a time are four accumulator tiles (0..3), two of weights (4, 5) and two of activations
 * (6, 7). Weights are decoded a chunk ahead, a few lines after each group of tile products, so that the vector
 * units work while the tile unit does; a decoded chunk stays in the first-level cache.
 */
#ifndef COMMON_EXPERT_TILE_AMX_H
#define COMMON_EXPERT_TILE_AMX_H

#include "bank.h"

#include <immintrin.h>

enum {
    TILE_PER_BLOCK = BANK_BLOCK_K / 32,
    TILE_CHUNK = 8 / BANK_TILE_PARTS,  /* most tiles (256 positions) decoded at once */
    TILE_PART_BYTES = 2048,            /* tile rows of 32 weight rows */
    TILE_PAIR_BYTES = BANK_TILE_PARTS * TILE_PART_BYTES,
    TILE_AHEAD = 4 * BANK_BLOCK_BYTES, /* prefetch distance */
    TILE_WORDS = 256
};

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t column_bytes[16];
    uint8_t rows[16];
};

/* The tile instructions read and write memory that the compiler does not know of. */
/* _tile_loadconfig names 8 bytes as its operand, and GCC 12 then drops the stores to the rest. */
#ifndef TILE_LOAD_CONFIG
#define TILE_LOAD_CONFIG(config) __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory")
#endif
#define TILE_FENCE() __asm__ volatile("" ::: "memory")

static void wide_begin(void)
{
    struct tile_config config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.column_bytes[i] = 64;
        config.rows[i] = 16;
    }
    TILE_LOAD_CONFIG(config);
}

static void wide_end(void)
{
    _tile_release();
}

/* Decoding of the next chunk, spread over the products of this one. */
struct tile_ahead {
    const void *tables;
    const uint8_t *block;
    uint8_t *out;
    uint32_t lines; /* left */
    uint32_t row;
    uint32_t credit;
};

/* always inline: GCC takes a function that only prefetches for one without effect */
static inline __attribute__((always_inline)) void tile_prefetch(const uint8_t *block, uint32_t row)
{
    _mm_prefetch((const char *)expert_line(block, row) + TILE_AHEAD, _MM_HINT_T0);
    if (BANK_ROW_SCALES > 0 && row * BANK_ROW_SCALES % EXPERT_LINE == 0)
        _mm_prefetch((const char *)expert_scales(block, row) + TILE_AHEAD, _MM_HINT_T0);
}

static inline void tile_decode_line(struct tile_ahead *ahead)
{
    uint32_t row = ahead->row;
    tile_prefetch(ahead->block, row);
    if (!BANK_TILE_DIRECT)
        bank_tile_line(ahead->tables, expert_line(ahead->block, row), expert_scales(ahead->block, row),
                       ahead->out + row * 64);
    ahead->lines--;
    if (++ahead->row == EXPERT_BLOCK_ROWS) {
        ahead->row = 0;
        ahead->block += BANK_BLOCK_BYTES;
        ahead->out += TILE_PER_BLOCK * TILE_PAIR_BYTES;
    }
}

/* Of `lines` in all, the share of one of `steps` equal steps. */
static inline void tile_step(struct tile_ahead *ahead, uint32_t lines, uint32_t steps)
{
    ahead->credit += lines;
    while (ahead->credit >= steps && ahead->lines) {
        ahead->credit -= steps;
        tile_decode_line(ahead);
    }
}

static inline void tile_load_c(const float *c, int two)
{
    _tile_loadd(0, c, 64);
    _tile_loadd(2, c + 256, 64);
    if (two) {
        _tile_loadd(1, c + 512, 64);
        _tile_loadd(3, c + 768, 64);
    }
}

static inline void tile_store_c(float *c, int two)
{
    _tile_stored(0, c, 64);
    _tile_stored(2, c + 256, 64);
    if (two) {
        _tile_stored(1, c + 512, 64);
        _tile_stored(3, c + 768, 64);
    }
}

/* The products of one tile of 32 weight rows with one or two column tiles. */
static inline void tile_multiply(const uint8_t *a, const uint32_t *b, size_t b_next, int two)
{
    TILE_FENCE();
    _tile_loadd(6, b, 64);
    if (two)
        _tile_loadd(7, b + b_next, 64);
    for (uint32_t part = 0; part < BANK_TILE_PARTS; part++, a += TILE_PART_BYTES) {
        _tile_loadd(4, a, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, a + 1024, 64);
        _tile_dpbf16ps(2, 5, 6);
        if (two) {
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    TILE_FENCE();
}

static void tile_chunk(const uint8_t *a, uint32_t chunk_tiles, const uint32_t *b, uint32_t tiles,
                       uint32_t n_tiles, float *c, int first, int last, struct tile_ahead *ahead)
{
    const uint32_t pairs = expert_div_up(n_tiles, 2), steps = pairs * chunk_tiles, lines = ahead->lines;
    const size_t b_next = (size_t)tiles * TILE_WORDS;
    for (uint32_t j = 0; j < n_tiles; j += 2) {
        const uint32_t *bj = b + j * b_next;
        const int two = j + 1 < n_tiles;
        if (first) {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
        } else if (pairs > 1) {
            tile_load_c(c + (size_t)j * 512, two);
        }
        for (uint32_t t = 0; t < chunk_tiles; t++) {
            tile_multiply(a + (size_t)t * TILE_PAIR_BYTES, bj + (size_t)t * TILE_WORDS, b_next, two);
            tile_step(ahead, lines, steps);
        }
        if (last || pairs > 1)
            tile_store_c(c + (size_t)j * 512, two);
        TILE_FENCE();
    }
    while (ahead->lines)
        tile_decode_line(ahead);
}

static void wide_product(const struct expert_bank *bank, const uint8_t *panel, uint32_t blocks, const uint32_t *b,
                         uint32_t tiles, uint32_t n_tiles, float *c)
{
    _Alignas(64) uint8_t a[2][BANK_TILE_DIRECT ? 64 : TILE_CHUNK * TILE_PAIR_BYTES];
    struct tile_ahead ahead = {.tables = bank->tables, .block = panel, .out = a[0]};
    /* accumulators of two column tiles stay in registers: then a short chunk costs nothing and keeps the cache
     * free */
    const uint32_t most = (n_tiles <= 2 ? TILE_CHUNK / 2 : TILE_CHUNK) / TILE_PER_BLOCK;
    ahead.lines = EXPERT_BLOCK_ROWS * (blocks < most ? blocks : most);
    while (ahead.lines)
        tile_decode_line(&ahead);
    for (uint32_t b0 = 0, turn = 0; b0 < blocks; b0 += most, turn ^= 1) {
        uint32_t count = blocks - b0 < most ? blocks - b0 : most;
        uint32_t after = blocks - b0 - count;
        after = after < most ? after : most;
        ahead.out = a[turn ^ 1];
        ahead.lines = after * EXPERT_BLOCK_ROWS;
        ahead.credit = 0;
        const uint8_t *weights = BANK_TILE_DIRECT ? panel + (size_t)b0 * BANK_BLOCK_BYTES : a[turn];
        tile_chunk(weights, count * TILE_PER_BLOCK, b + (size_t)b0 * TILE_PER_BLOCK * TILE_WORDS, tiles, n_tiles,
                   c, b0 == 0, after == 0, &ahead);
    }
}

#endif
