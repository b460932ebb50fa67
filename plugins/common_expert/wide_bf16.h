/* SPDX-License-Identifier: Apache-2.0
 *
 * wide_bf16.h - the wide route with a matrix unit that multiplies pairs of bf16 (AVX-512-BF16, AMX-BF16).  An ISA
 * object includes it after the format header and supplies
 *   wide_begin(), wide_end()                                    round each range of rows
 *   wide_product(bank, panel, blocks, b, tiles, n, c)           c[column tile][32][16] = panel times n packed columns
 *
 * A tile covers 32 input positions.  Activations are packed once a call, 16 columns by 32 positions in 1 KiB:
 * word i of column c holds positions i (low half) and i + 16 (high half) of the tile, at [i][c].  The weights of
 * a row are paired likewise, so a record line needs no shuffle.  Scratch: x as [column tile][tile][16][16] words,
 * then the hidden values.
 */
#ifndef COMMON_EXPERT_WIDE_BF16_H
#define COMMON_EXPERT_WIDE_BF16_H

#include "bank.h"
#include "simd512.h"

enum { WIDE_TILE_WORDS = 256 /* of packed activations */ };

static uint32_t wide_x_tiles(const struct expert_bank *bank)
{
    return bank->gu_blocks * (BANK_BLOCK_K / 32);
}

static uint32_t wide_hidden_tiles(const struct expert_bank *bank)
{
    return bank->down_blocks * (BANK_BLOCK_K / 32);
}

static uint64_t wide_scratch_bytes(const struct expert_bank *bank, uint32_t n)
{
    return (uint64_t)expert_div_up(n, 16) * (wide_x_tiles(bank) + wide_hidden_tiles(bank)) * WIDE_TILE_WORDS *
           sizeof(uint32_t);
}

static uint32_t *wide_hidden(const struct expert_bank *bank, const struct ifx_expert_call *call)
{
    return (uint32_t *)call->scratch +
           (uint64_t)expert_div_up(call->n, 16) * wide_x_tiles(bank) * WIDE_TILE_WORDS;
}

static inline __mmask16 wide_mask(uint32_t count)
{
    return (__mmask16)(count >= 16 ? 0xffffu : (1u << count) - 1);
}

/* One tile of x: up to 16 columns, positions k .. k + 31, zero where there are none. */
static void wide_pack_tile(const uint16_t *const *columns, uint32_t n, uint32_t k, uint32_t k_count,
                           uint32_t *out)
{
    __m512i v[16];
    uint32_t left = k < k_count ? k_count - k : 0;
    __mmask16 low = wide_mask(left), high = wide_mask(left > 16 ? left - 16 : 0);
    for (uint32_t c = 0; c < 16; c++) {
        v[c] = _mm512_setzero_si512();
        if (c < n) {
            __m512i a = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(low, columns[c] + k));
            __m512i b = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(high, columns[c] + k + 16));
            v[c] = _mm512_or_si512(a, _mm512_slli_epi32(b, 16));
        }
    }
    simd512_transpose(v);
    for (uint32_t i = 0; i < 16; i++)
        _mm512_storeu_si512(out + i * 16, v[i]);
}

static void wide_prepare(const struct expert_bank *bank, const struct ifx_expert_call *call)
{
    uint32_t *x = call->scratch, *hidden = wide_hidden(bank, call);
    const uint32_t tiles = wide_x_tiles(bank), hidden_tiles = wide_hidden_tiles(bank),
                   whole = bank->gu_panels / 2;
    for (uint32_t c0 = 0; c0 < call->n; c0 += 16) {
        const uint16_t *columns[16];
        uint32_t n = call->n - c0 < 16 ? call->n - c0 : 16;
        for (uint32_t c = 0; c < n; c++)
            columns[c] = expert_column(call, c0 + c);
        for (uint32_t t = 0; t < tiles; t++, x += WIDE_TILE_WORDS)
            wide_pack_tile(columns, n, t * 32, bank->hidden, x);
        /* hidden values that no row makes, but padded weights multiply */
        memset(hidden + ((uint64_t)c0 / 16 * hidden_tiles + whole) * WIDE_TILE_WORDS, 0,
               (size_t)(hidden_tiles - whole) * WIDE_TILE_WORDS * sizeof *hidden);
    }
}

/* Hidden values of panel p from gate (rows 0..15 of c) and up (rows 16..31). */
static void wide_store_hidden(const float *c, uint32_t n_tiles, uint32_t tiles, __m512 gate_scale,
                              __m512 up_scale, uint32_t p, uint32_t *hidden)
{
    for (uint32_t j = 0; j < n_tiles; j++) {
        uint32_t *out = hidden + ((uint64_t)j * tiles + p / 2) * WIDE_TILE_WORDS;
        for (uint32_t i = 0; i < 16; i++) {
            const float *at = c + (size_t)j * 512 + i * 16;
            __m512 g = _mm512_mul_ps(_mm512_loadu_ps(at), gate_scale);
            __m512 u = _mm512_mul_ps(_mm512_loadu_ps(at + 256), up_scale);
            __m512i h = simd512_hidden(g, u);
            if (p % 2)
                _mm512_mask_storeu_epi16(out + i * 16, 0xaaaaaaaau, h);
            else
                _mm512_mask_storeu_epi16(out + i * 16, 0x55555555u, _mm512_srli_epi32(h, 16));
        }
    }
}

static void wide_gate_up(const struct expert_bank *bank, const struct ifx_expert_call *call, uint32_t row0,
                         uint32_t row1)
{
    _Alignas(64) float c[EXPERT_BLOCK_ROWS * WIDE_COLUMNS];
    const uint32_t tiles = wide_x_tiles(bank), hidden_tiles = wide_hidden_tiles(bank);
    const __m512 gate_scale = _mm512_set1_ps(bank_tensor_scale(call->record, IFX_GATE));
    const __m512 up_scale = _mm512_set1_ps(bank_tensor_scale(call->record, IFX_UP));
    wide_begin();
    for (uint32_t c0 = 0; c0 < call->n; c0 += WIDE_COLUMNS) {
        uint32_t n = call->n - c0 < WIDE_COLUMNS ? call->n - c0 : WIDE_COLUMNS;
        const uint32_t *x = (const uint32_t *)call->scratch + (uint64_t)c0 / 16 * tiles * WIDE_TILE_WORDS;
        uint32_t *hidden = wide_hidden(bank, call) + (uint64_t)c0 / 16 * hidden_tiles * WIDE_TILE_WORDS;
        for (uint32_t p = row0 / 16; p < 2 * expert_div_up(row1, 32); p++) {
            wide_product(bank, expert_gu_panel(bank, call->record, p), bank->gu_blocks, x, tiles, n, c);
            wide_store_hidden(c, expert_div_up(n, 16), hidden_tiles, gate_scale, up_scale, p, hidden);
        }
    }
    wide_end();
}

static void wide_store_y(const float *c, uint32_t n, __m512 scale, uint32_t rows, float *y, uint64_t ldy,
                         const uint32_t *y_rows, uint32_t c0)
{
    for (uint32_t j = 0; j < n; j += 16)
        for (uint32_t r = 0; r < rows; r += 16) {
            __m512i v[16];
            for (uint32_t i = 0; i < 16; i++)
                v[i] =
                    _mm512_castps_si512(_mm512_mul_ps(_mm512_loadu_ps(c + (size_t)j * 32 + (r + i) * 16), scale));
            simd512_transpose(v);
            for (uint32_t i = 0; i < 16 && j + i < n; i++) {
                uint64_t row = y_rows ? y_rows[c0 + j + i] : c0 + j + i;
                _mm512_mask_storeu_ps(y + row * ldy + r, wide_mask(rows - r), _mm512_castsi512_ps(v[i]));
            }
        }
}

static void wide_down(const struct expert_bank *bank, const struct ifx_expert_call *call, uint32_t row0,
                      uint32_t row1, float *y, uint64_t ldy, const uint32_t *y_rows)
{
    _Alignas(64) float c[EXPERT_BLOCK_ROWS * WIDE_COLUMNS];
    const uint32_t tiles = wide_hidden_tiles(bank);
    const __m512 scale = _mm512_set1_ps(bank_tensor_scale(call->record, IFX_DOWN));
    wide_begin();
    for (uint32_t c0 = 0; c0 < call->n; c0 += WIDE_COLUMNS) {
        uint32_t n = call->n - c0 < WIDE_COLUMNS ? call->n - c0 : WIDE_COLUMNS;
        const uint32_t *hidden = wide_hidden(bank, call) + (uint64_t)c0 / 16 * tiles * WIDE_TILE_WORDS;
        for (uint32_t r0 = row0; r0 < row1; r0 += 32) {
            uint32_t rows = row1 - r0 < 32 ? row1 - r0 : 32;
            wide_product(bank, expert_down_panel(bank, call->record, r0 / 32), bank->down_blocks, hidden, tiles, n, c);
            wide_store_y(c, n, scale, rows, y + (r0 - row0), ldy, y_rows, c0);
        }
    }
    wide_end();
}

static const struct expert_route wide_route = {wide_scratch_bytes, wide_prepare, wide_gate_up, wide_down};

#endif
