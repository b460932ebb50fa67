/* SPDX-License-Identifier: Apache-2.0
 *
 * tile_avx512_bf16.h - wide_product with AVX-512-BF16: a chunk of weights decoded into tile rows, then each
 * pair of positions broadcast against 16 columns.  The object supplies BANK_TILE_DIRECT, bank_tile_open and bank_tile_line as in
 * tile_amx.h.
 */
#ifndef COMMON_EXPERT_TILE_AVX512_BF16_H
#define COMMON_EXPERT_TILE_AVX512_BF16_H

#include "bank.h"

#include <immintrin.h>

_Static_assert(!BANK_TILE_SCALED, "weights of more than 8 bits take the float32 route of AVX-512");

enum {
    TILE_PER_BLOCK = BANK_BLOCK_K / 32,
    TILE_CHUNK = 4,
    TILE_CHUNK_BLOCKS = TILE_CHUNK / TILE_PER_BLOCK,
    TILE_PAIR_BYTES = 2048,
    TILE_AHEAD = 4 * BANK_BLOCK_BYTES,
    TILE_WORDS = 256
};

static void wide_begin(void)
{
}

static void wide_end(void)
{
}

/* Records are asked for while others are multiplied, so many bytes a step of R rows: all at once they would fill the load queue and
 * stop everything else. */
#define TILE_STRIDE(R) (BANK_BLOCK_BYTES * (R) / EXPERT_BLOCK_ROWS / (16 * TILE_PER_BLOCK))

/* c[R][V tiles] += a[tiles][R rows] * b; a and c point at the first of the R rows. */
static inline __attribute__((always_inline)) void tile_rows(const uint8_t *a, uint32_t chunk_tiles,
                                                            const uint32_t *b, size_t b_next, float *c,
                                                            const uint8_t *ahead, uint32_t stride, const uint32_t R,
                                                            const uint32_t V)
{
    __m512 acc[16][2];
#pragma GCC unroll 16
    for (uint32_t r = 0; r < R; r++)
#pragma GCC unroll 2
        for (uint32_t v = 0; v < V; v++)
            acc[r][v] = _mm512_loadu_ps(c + (size_t)v * 512 + r * 16);
    for (uint32_t t = 0; t < chunk_tiles; t++, a += TILE_PAIR_BYTES, b += TILE_WORDS)
        for (uint32_t i = 0; i < 16; i++) {
            __m512bh x[2];
            _mm_prefetch((const char *)ahead, _MM_HINT_T0);
            ahead += stride;
#pragma GCC unroll 2
            for (uint32_t v = 0; v < V; v++)
                x[v] = (__m512bh)_mm512_loadu_si512(b + v * b_next + i * 16);
#pragma GCC unroll 16
            for (uint32_t r = 0; r < R; r++) {
                int32_t pair;
                memcpy(&pair, a + r * 64 + i * 4, sizeof pair);
                __m512bh w = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 2
                for (uint32_t v = 0; v < V; v++)
                    acc[r][v] = _mm512_dpbf16_ps(acc[r][v], w, x[v]);
            }
        }
#pragma GCC unroll 16
    for (uint32_t r = 0; r < R; r++)
#pragma GCC unroll 2
        for (uint32_t v = 0; v < V; v++)
            _mm512_storeu_ps(c + (size_t)v * 512 + r * 16, acc[r][v]);
}

/* The same for the first 8 columns of one tile, half as many vector operations: R rows. */
static inline __attribute__((always_inline)) void tile_rows_half(const uint8_t *a, uint32_t chunk_tiles, const uint32_t *b,
                                                                 float *c, const uint8_t *ahead, uint32_t stride, const uint32_t R)
{
    __m256 acc[16];
#pragma GCC unroll 16
    for (uint32_t r = 0; r < R; r++)
        acc[r] = _mm256_loadu_ps(c + r * 16);
    for (uint32_t t = 0; t < chunk_tiles; t++, a += TILE_PAIR_BYTES, b += TILE_WORDS)
        for (uint32_t i = 0; i < 16; i++) {
            __m256bh x = (__m256bh)_mm256_loadu_si256((const __m256i *)(b + i * 16));
            _mm_prefetch((const char *)ahead, _MM_HINT_T0);
            ahead += stride;
#pragma GCC unroll 16
            for (uint32_t r = 0; r < R; r++) {
                int32_t pair;
                memcpy(&pair, a + r * 64 + i * 4, sizeof pair);
                acc[r] = _mm256_dpbf16_ps(acc[r], (__m256bh)_mm256_set1_epi32(pair), x);
            }
        }
#pragma GCC unroll 16
    for (uint32_t r = 0; r < R; r++)
        _mm256_storeu_ps(c + r * 16, acc[r]);
}

static void tile_decode(const void *tables, const uint8_t *block, uint8_t *out)
{
    struct bank_tile_scales scales;
    if (BANK_TILE_DIRECT)
        return;
    bank_tile_open(expert_scales(block, 0), &scales);
    for (uint32_t r = 0; r < EXPERT_BLOCK_ROWS; r++)
        bank_tile_line(tables, expert_line(block, r), &scales, r, out + r * 64);
}

static void wide_product(const struct expert_bank *bank, const uint8_t *panel, uint32_t blocks, const uint32_t *b,
                         uint32_t tiles, uint32_t n, float *c)
{
    /* the last tile counts as a half when no more than 8 columns are in it */
    const uint32_t n_tiles = expert_div_up(n, 16), whole = n % 16 && n % 16 <= 8 ? n_tiles - 1 : n_tiles;
    _Alignas(64) uint8_t buffer[BANK_TILE_DIRECT ? 64 : TILE_CHUNK * TILE_PAIR_BYTES];
    const size_t b_next = (size_t)tiles * TILE_WORDS;
    memset(c, 0, (size_t)n_tiles * 512 * sizeof *c);
    for (uint32_t b0 = 0; b0 < blocks; b0 += TILE_CHUNK_BLOCKS) {
        uint32_t count = blocks - b0 < TILE_CHUNK_BLOCKS ? blocks - b0 : TILE_CHUNK_BLOCKS;
        const uint8_t *block = panel + (size_t)b0 * BANK_BLOCK_BYTES;
        const uint8_t *a = BANK_TILE_DIRECT ? block : buffer;
        const uint32_t *x = b + (size_t)b0 * TILE_PER_BLOCK * TILE_WORDS;
        for (uint32_t i = 0; i < count; i++)
            tile_decode(bank->tables, block + (size_t)i * BANK_BLOCK_BYTES,
                        buffer + i * TILE_PER_BLOCK * TILE_PAIR_BYTES);
        uint32_t j = 0;
        const uint8_t *ahead = block + TILE_AHEAD;
        for (; j + 1 < whole; j += 2)
            for (uint32_t r = 0; r < EXPERT_BLOCK_ROWS; r += 8)
                tile_rows(a + r * 64, count * TILE_PER_BLOCK, x + j * b_next, b_next, c + (size_t)j * 512 + r * 16,
                          j ? a : ahead + count * BANK_BLOCK_BYTES / EXPERT_BLOCK_ROWS * r, j ? 0 : TILE_STRIDE(8), 8, 2);
        for (; j < whole; j++)
            for (uint32_t r = 0; r < EXPERT_BLOCK_ROWS; r += 16)
                tile_rows(a + r * 64, count * TILE_PER_BLOCK, x + j * b_next, b_next, c + (size_t)j * 512 + r * 16,
                          j ? a : ahead + count * BANK_BLOCK_BYTES / EXPERT_BLOCK_ROWS * r, j ? 0 : TILE_STRIDE(16), 16, 1);
        for (uint32_t r = 0; j < n_tiles && r < EXPERT_BLOCK_ROWS; r += 16)
            tile_rows_half(a + r * 64, count * TILE_PER_BLOCK, x + j * b_next, c + (size_t)j * 512 + r * 16,
                           j ? a : ahead + count * BANK_BLOCK_BYTES / EXPERT_BLOCK_ROWS * r, j ? 0 : TILE_STRIDE(16), 16);
    }
}

#endif
