/* SPDX-License-Identifier: Apache-2.0
 *
 * tile_amx.h - wide_product on AMX-BF16.  The object supplies
 *   BANK_TILE_DIRECT    1 when record lines are tile rows already
 *   bank_tile_open(scales, out)                 otherwise: the scales of a block as a struct bank_tile_scales
 *   bank_tile_line(tables, line, scales, row, out)   and the BANK_BLOCK_K weights of a line as tile rows, 2 KiB apart
 *   BANK_TILE_SCALED    1 when the rows of a tile are to be multiplied by their scales afterwards: then these are
 *                       bank_tile_scale(scales, row, tile of the block)
 *
 * 32 rows by 16 columns at a time: two accumulators (tiles 0, 1), one tile of activations (3) and one of weights (2), loaded
 * twice a step.  More accumulators would need fewer loads, but where the other thread of a core works too there are only about nine
 * tile registers for the eight names: each load and each product takes a new one until it retires, and with eight names in use they run
 * one after another at a quarter of the speed (Sapphire Rapids: 100 ns instead of 23 for four loads and four products on operands in the
 * first-level cache; 42 when two of the eight are zero).  So few names are used and the others are kept zero, which takes no register.
 * Alone on a core, three loads for two products keep the unit busy too.  Weights are decoded a chunk ahead, a few lines after each
 * step, so that the vector units work while the tile unit does; chunks are short, for two threads share the first-level cache.
 */
#ifndef COMMON_EXPERT_TILE_AMX_H
#define COMMON_EXPERT_TILE_AMX_H

#include "bank.h"

#include <immintrin.h>

enum {
    TILE_PER_BLOCK = BANK_BLOCK_K / 32,
    TILE_CHUNK = BANK_TILE_DIRECT ? 8 : 4, /* tiles (of 32 positions) at once */
    TILE_CHUNK_BLOCKS = TILE_CHUNK / TILE_PER_BLOCK,
    TILE_PAIR_BYTES = 2048, /* tile rows of 32 weight rows */
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
    struct bank_tile_scales *scales; /* of the block: one of the chunk's */
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
    if (!BANK_TILE_DIRECT) {
        if (row == 0)
            bank_tile_open(expert_scales(ahead->block, 0), ahead->scales);
        bank_tile_line(ahead->tables, expert_line(ahead->block, row), ahead->scales, row, ahead->out + row * 64);
    }
    ahead->lines--;
    if (++ahead->row == EXPERT_BLOCK_ROWS) {
        ahead->row = 0;
        ahead->block += BANK_BLOCK_BYTES;
        ahead->scales++;
        ahead->out += TILE_PER_BLOCK * TILE_PAIR_BYTES;
    }
}

static inline void tile_decode(struct tile_ahead *ahead, uint32_t lines)
{
    lines = lines < ahead->lines ? lines : ahead->lines;
    for (uint32_t i = 0; i < lines; i++)
        tile_decode_line(ahead);
}

/* A chunk of 32 weight rows times one tile of columns; `lines` of the next chunk are decoded after each step. */
static inline void tile_column(const uint8_t *a, uint32_t chunk_tiles, const uint32_t *b, float *c, int zero, int load,
                               int store, uint32_t lines, struct tile_ahead *ahead)
{
    _tile_zero(4); /* again and again: a switch to another program and back fills them */
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    if (zero) {
        _tile_zero(0);
        _tile_zero(1);
    } else if (load) {
        _tile_loadd(0, c, 64);
        _tile_loadd(1, c + 256, 64);
    }
    for (uint32_t t = 0; t < chunk_tiles; t++, a += TILE_PAIR_BYTES, b += TILE_WORDS) {
        TILE_FENCE();
        _tile_loadd(3, b, 64);
        _tile_loadd(2, a, 64);
        _tile_dpbf16ps(0, 2, 3);
        _tile_loadd(2, a + 1024, 64);
        _tile_dpbf16ps(1, 2, 3);
        TILE_FENCE();
        tile_decode(ahead, lines);
    }
    if (store) {
        _tile_stored(0, c, 64);
        _tile_stored(1, c + 256, 64);
    }
    TILE_FENCE();
}

/* c += part, rows by their scales: what one tile of positions has given. */
static inline void tile_add_scaled(const float *part, const struct bank_tile_scales *scales, uint32_t t, float *c)
{
    for (uint32_t r = 0; r < EXPERT_BLOCK_ROWS; r++)
        _mm512_storeu_ps(c + r * 16, _mm512_fmadd_ps(_mm512_set1_ps(bank_tile_scale(scales, r, t)), _mm512_loadu_ps(part + r * 16),
                                                     _mm512_loadu_ps(c + r * 16)));
}

/* As tile_column, each step's product on its own; it is added while the next one is under way. */
static inline void tile_column_scaled(const uint8_t *a, uint32_t chunk_tiles, const struct bank_tile_scales *scales, const uint32_t *b,
                                      float *c, uint32_t lines, struct tile_ahead *ahead)
{
    _Alignas(64) float part[2][512];
    for (uint32_t t = 0; t < chunk_tiles; t++, a += TILE_PAIR_BYTES, b += TILE_WORDS) {
        TILE_FENCE();
        _tile_zero(0);
        _tile_zero(1);
        _tile_loadd(3, b, 64);
        _tile_loadd(2, a, 64);
        _tile_dpbf16ps(0, 2, 3);
        _tile_loadd(2, a + 1024, 64);
        _tile_dpbf16ps(1, 2, 3);
        _tile_stored(0, part[t % 2], 64);
        _tile_stored(1, part[t % 2] + 256, 64);
        TILE_FENCE();
        tile_decode(ahead, lines);
        if (t)
            tile_add_scaled(part[(t - 1) % 2], scales + (t - 1) / TILE_PER_BLOCK, (t - 1) % TILE_PER_BLOCK, c);
    }
    tile_add_scaled(part[(chunk_tiles - 1) % 2], scales + (chunk_tiles - 1) / TILE_PER_BLOCK, (chunk_tiles - 1) % TILE_PER_BLOCK, c);
}

static void wide_product(const struct expert_bank *bank, const uint8_t *panel, uint32_t blocks, const uint32_t *b,
                         uint32_t tiles, uint32_t n, float *c)
{
    const uint32_t n_tiles = expert_div_up(n, 16), most = TILE_CHUNK_BLOCKS;
    _Alignas(64) uint8_t a[2][BANK_TILE_DIRECT ? 64 : TILE_CHUNK * TILE_PAIR_BYTES];
    struct bank_tile_scales scales[2][TILE_CHUNK_BLOCKS];
    struct tile_ahead ahead = {.tables = bank->tables, .block = panel, .out = a[0], .scales = scales[0]};
    ahead.lines = EXPERT_BLOCK_ROWS * (blocks < most ? blocks : most);
    tile_decode(&ahead, ahead.lines);
    if (BANK_TILE_SCALED)
        memset(c, 0, (size_t)n_tiles * 512 * sizeof *c);
    for (uint32_t b0 = 0, turn = 0; b0 < blocks; b0 += most, turn ^= 1) {
        uint32_t count = blocks - b0 < most ? blocks - b0 : most, after = blocks - b0 - count;
        const uint8_t *weights = BANK_TILE_DIRECT ? panel + (size_t)b0 * BANK_BLOCK_BYTES : a[turn];
        const uint32_t *x = b + (size_t)b0 * TILE_PER_BLOCK * TILE_WORDS;
        const int last = after == 0, spill = n_tiles > 1;
        ahead.out = a[turn ^ 1];
        ahead.scales = scales[turn ^ 1];
        ahead.lines = (after < most ? after : most) * EXPERT_BLOCK_ROWS;
        uint32_t lines = expert_div_up(ahead.lines, n_tiles * count * TILE_PER_BLOCK);
        for (uint32_t j = 0; j < n_tiles; j++, x += (size_t)tiles * TILE_WORDS)
            if (BANK_TILE_SCALED)
                tile_column_scaled(weights, count * TILE_PER_BLOCK, scales[turn], x, c + (size_t)j * 512, lines, &ahead);
            else
                tile_column(weights, count * TILE_PER_BLOCK, x, c + (size_t)j * 512, b0 == 0, spill, spill || last, lines, &ahead);
        tile_decode(&ahead, ahead.lines);
    }
}

#endif
