/* SPDX-License-Identifier: Apache-2.0
 *
 * wide_f32.h - the wide route with float32 multiply-adds (AVX2, AVX-512): a chunk of weights is decoded to
 * float32 once, then each weight is broadcast against the columns.  Included after narrow.h, whose bank_row_*
 * functions decode.
 *
 * Scratch: x as float32 [column tile][position][16], then the hidden values likewise; positions padded to whole
 * blocks with zeros.
 */
#ifndef COMMON_EXPERT_WIDE_F32_H
#define COMMON_EXPERT_WIDE_F32_H

#include "bank.h"
#include "simd.h"

enum {
    WIDE_CHUNK = BANK_BLOCK_K > 128 ? BANK_BLOCK_K : 128, /* positions decoded at once: 16 KiB with 32 rows */
    WIDE_CHUNK_BLOCKS = WIDE_CHUNK / BANK_BLOCK_K,
    WIDE_AHEAD = 2 * WIDE_CHUNK_BLOCKS * BANK_BLOCK_BYTES,
    WIDE_PAIR_ROWS = VEC_LANES == 16 ? 8 : 4, /* rows of a register block two vectors wide */
    WIDE_SINGLE_ROWS = VEC_LANES == 16 ? 16 : 8
};

static uint64_t wide_x_positions(const struct expert_bank *bank)
{
    return (uint64_t)bank->gu_blocks * BANK_BLOCK_K;
}

static uint64_t wide_hidden_positions(const struct expert_bank *bank)
{
    return (uint64_t)bank->down_blocks * BANK_BLOCK_K;
}

static uint64_t wide_scratch_bytes(const struct expert_bank *bank, uint32_t n)
{
    return expert_div_up(n, 16) * (wide_x_positions(bank) + wide_hidden_positions(bank)) * 16 * sizeof(float);
}

static float *wide_hidden(const struct expert_bank *bank, const struct ifx_expert_call *call)
{
    return (float *)call->scratch + expert_div_up(call->n, 16) * wide_x_positions(bank) * 16;
}

static inline void wide_transpose8(__m256 v[8])
{
    __m256 a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        b[4 * i] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0x44);
        b[4 * i + 1] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0xee);
        b[4 * i + 2] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0x44);
        b[4 * i + 3] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}

/* Positions k .. k + 7 of 8 columns (n of them real) to out[8][16]. */
static void wide_pack8(const uint16_t *const *columns, uint32_t n, uint32_t k, uint32_t k_count, float *out)
{
    __m256 v[8];
    for (uint32_t c = 0; c < 8; c++) {
        v[c] = _mm256_setzero_ps();
        if (c < n && k + 8 <= k_count) {
            v[c] = simd_widen(_mm_loadu_si128((const __m128i *)(columns[c] + k)));
        } else if (c < n && k < k_count) {
            uint16_t part[8] = {0};
            memcpy(part, columns[c] + k, (k_count - k) * sizeof *part);
            v[c] = simd_widen(_mm_loadu_si128((const __m128i *)part));
        }
    }
    wide_transpose8(v);
    for (uint32_t i = 0; i < 8; i++)
        _mm256_storeu_ps(out + i * 16, v[i]);
}

static void wide_prepare(const struct expert_bank *bank, const struct ifx_expert_call *call)
{
    float *x = call->scratch, *hidden = wide_hidden(bank, call);
    const uint64_t positions = wide_x_positions(bank), hidden_positions = wide_hidden_positions(bank);
    const uint64_t made = (uint64_t)bank->gu_panels * 16;
    for (uint32_t c0 = 0; c0 < call->n; c0 += 8) {
        const uint16_t *columns[8];
        uint32_t n = call->n - c0 < 8 ? call->n - c0 : 8;
        float *out = x + c0 / 16 * positions * 16 + c0 % 16;
        for (uint32_t c = 0; c < n; c++)
            columns[c] = expert_column(call, c0 + c);
        for (uint32_t k = 0; k < positions; k += 8)
            wide_pack8(columns, n, k, bank->hidden, out + (size_t)k * 16);
    }
    if (call->n % 16 && call->n % 16 <= 8) { /* the half tile that no column is in */
        float *out = x + call->n / 16 * positions * 16 + 8;
        for (uint64_t k = 0; k < positions; k++)
            _mm256_storeu_ps(out + k * 16, _mm256_setzero_ps());
    }
    /* hidden values that no row makes, but padded weights multiply */
    for (uint32_t j = 0; made < hidden_positions && j < expert_div_up(call->n, 16); j++)
        memset(hidden + (j * hidden_positions + made) * 16, 0, (hidden_positions - made) * 16 * sizeof *hidden);
}

/* a[32][WIDE_CHUNK] = the weights of some blocks. */
static void wide_decode(const struct expert_bank *bank, const uint8_t *block, uint32_t blocks, float *a)
{
    for (uint32_t b = 0; b < blocks; b++, block += BANK_BLOCK_BYTES, a += BANK_BLOCK_K)
        for (uint32_t r = 0; r < EXPERT_BLOCK_ROWS; r++) {
            _mm_prefetch((const char *)expert_line(block, r) + WIDE_AHEAD, _MM_HINT_T0);
            if (BANK_ROW_SCALES > 0 && r * BANK_ROW_SCALES % EXPERT_LINE == 0)
                _mm_prefetch((const char *)expert_scales(block, r) + WIDE_AHEAD, _MM_HINT_T0);
            for (uint32_t half = 0; half < 16 / VEC_LANES; half++) {
                struct bank_row row =
                    bank_row_open(bank->tables, expert_line(block, r), expert_scales(block, r), half);
#pragma GCC unroll 8
                for (uint32_t s = 0; s < BANK_STEPS; s++)
                    vec_store(a + (size_t)r * WIDE_CHUNK + s * 16 + half * VEC_LANES, bank_row_step(&row, s));
            }
        }
}

/* c[R rows][V vectors] += a[R rows][positions] * b; second vectors are b_next and c_next further. */
EXPERT_INLINE void wide_rows(const float *a, uint32_t positions, const float *b, size_t b_next, float *c,
                             size_t c_next, const uint32_t R, const uint32_t V)
{
    vec acc[16][2], x[2];
#pragma GCC unroll 16
    for (uint32_t r = 0; r < R; r++)
#pragma GCC unroll 2
        for (uint32_t v = 0; v < V; v++)
            acc[r][v] = vec_load(c + r * 16 + v * c_next);
#pragma GCC unroll 2
    for (uint32_t k = 0; k < positions; k++, b += 16) {
#pragma GCC unroll 2
        for (uint32_t v = 0; v < V; v++)
            x[v] = vec_load(b + v * b_next);
#pragma GCC unroll 16
        for (uint32_t r = 0; r < R; r++) {
            vec w = vec_broadcast(a + (size_t)r * WIDE_CHUNK + k);
#pragma GCC unroll 2
            for (uint32_t v = 0; v < V; v++)
                acc[r][v] = vec_fma(w, x[v], acc[r][v]);
        }
    }
#pragma GCC unroll 16
    for (uint32_t r = 0; r < R; r++)
#pragma GCC unroll 2
        for (uint32_t v = 0; v < V; v++)
            vec_store(c + r * 16 + v * c_next, acc[r][v]);
}

static __attribute__((noinline)) void wide_rows_pair(const float *a, uint32_t positions, const float *b,
                                                     size_t b_next, float *c, size_t c_next)
{
    for (uint32_t r = 0; r < EXPERT_BLOCK_ROWS; r += WIDE_PAIR_ROWS)
        wide_rows(a + (size_t)r * WIDE_CHUNK, positions, b, b_next, c + r * 16, c_next, WIDE_PAIR_ROWS, 2);
}

static __attribute__((noinline)) void wide_rows_single(const float *a, uint32_t positions, const float *b,
                                                       float *c)
{
    for (uint32_t r = 0; r < EXPERT_BLOCK_ROWS; r += WIDE_SINGLE_ROWS)
        wide_rows(a + (size_t)r * WIDE_CHUNK, positions, b, 0, c + r * 16, 0, WIDE_SINGLE_ROWS, 1);
}

/* c[column tile][32][16] = panel times n packed columns; tiles of b are b_tile floats apart. */
static void wide_product(const struct expert_bank *bank, const uint8_t *panel, uint32_t blocks, const float *b,
                         size_t b_tile, uint32_t n, float *c)
{
    _Alignas(64) float a[EXPERT_BLOCK_ROWS * WIDE_CHUNK];
    const size_t b_next = VEC_LANES == 16 ? b_tile : VEC_LANES, c_next = VEC_LANES == 16 ? 512 : VEC_LANES;
    memset(c, 0, (size_t)expert_div_up(n, 16) * 512 * sizeof *c);
    for (uint32_t b0 = 0; b0 < blocks; b0 += WIDE_CHUNK_BLOCKS) {
        uint32_t count = blocks - b0 < WIDE_CHUNK_BLOCKS ? blocks - b0 : WIDE_CHUNK_BLOCKS;
        const float *x = b + (size_t)b0 * BANK_BLOCK_K * 16;
        wide_decode(bank, panel + (size_t)b0 * BANK_BLOCK_BYTES, count, a);
        uint32_t j = 0;
        for (; j + VEC_LANES < n; j += 2 * VEC_LANES)
            wide_rows_pair(a, count * BANK_BLOCK_K, x + j / 16 * b_tile, b_next, c + j / 16 * 512, c_next);
        if (j < n)
            wide_rows_single(a, count * BANK_BLOCK_K, x + j / 16 * b_tile, c + j / 16 * 512);
    }
}

static void wide_gate_up(const struct expert_bank *bank, const struct ifx_expert_call *call, uint32_t row0,
                         uint32_t row1)
{
    _Alignas(64) float c[EXPERT_BLOCK_ROWS * WIDE_COLUMNS];
    const size_t x_tile = wide_x_positions(bank) * 16, hidden_tile = wide_hidden_positions(bank) * 16;
    const __m256 gate_scale = _mm256_set1_ps(bank_tensor_scale(call->record, IFX_GATE));
    const __m256 up_scale = _mm256_set1_ps(bank_tensor_scale(call->record, IFX_UP));
    for (uint32_t c0 = 0; c0 < call->n; c0 += WIDE_COLUMNS) {
        uint32_t n = call->n - c0 < WIDE_COLUMNS ? call->n - c0 : WIDE_COLUMNS;
        const float *x = (const float *)call->scratch + c0 / 16 * x_tile;
        float *hidden = wide_hidden(bank, call) + c0 / 16 * hidden_tile;
        for (uint32_t p = row0 / 16; p < 2 * expert_div_up(row1, 32); p++) {
            wide_product(bank, expert_gu_panel(bank, call->record, p), bank->gu_blocks, x, x_tile, n, c);
            for (uint32_t j = 0; j < n; j += 8)
                for (uint32_t i = 0; i < 16; i++) {
                    const float *at = c + j / 16 * 512 + i * 16 + j % 16;
                    __m256 g = _mm256_mul_ps(_mm256_loadu_ps(at), gate_scale);
                    __m256 u = _mm256_mul_ps(_mm256_loadu_ps(at + 256), up_scale);
                    _mm256_storeu_ps(hidden + j / 16 * hidden_tile + ((size_t)p * 16 + i) * 16 + j % 16,
                                     simd_hidden(g, u));
                }
        }
    }
}

/* 8 columns (n real) of the panel's rows to y. */
static void wide_store_y8(const float *c, uint32_t n, __m256 scale, uint32_t rows, float *y, uint64_t ldy,
                          const uint32_t *y_rows, uint32_t column)
{
    for (uint32_t r = 0; r < rows; r += 8) {
        __m256 v[8];
        uint32_t count = rows - r < 8 ? rows - r : 8;
        for (uint32_t i = 0; i < 8; i++)
            v[i] = _mm256_mul_ps(_mm256_loadu_ps(c + (r + i) * 16), scale);
        wide_transpose8(v);
        for (uint32_t i = 0; i < n; i++) {
            float *to = y + (uint64_t)(y_rows ? y_rows[column + i] : column + i) * ldy + r;
            if (count == 8) {
                _mm256_storeu_ps(to, v[i]);
            } else {
                float part[8];
                _mm256_storeu_ps(part, v[i]);
                memcpy(to, part, count * sizeof *part);
            }
        }
    }
}

static void wide_down(const struct expert_bank *bank, const struct ifx_expert_call *call, uint32_t row0,
                      uint32_t row1, float *y, uint64_t ldy, const uint32_t *y_rows)
{
    _Alignas(64) float c[EXPERT_BLOCK_ROWS * WIDE_COLUMNS];
    const size_t hidden_tile = wide_hidden_positions(bank) * 16;
    const __m256 scale = _mm256_set1_ps(bank_tensor_scale(call->record, IFX_DOWN));
    for (uint32_t c0 = 0; c0 < call->n; c0 += WIDE_COLUMNS) {
        uint32_t n = call->n - c0 < WIDE_COLUMNS ? call->n - c0 : WIDE_COLUMNS;
        const float *hidden = wide_hidden(bank, call) + c0 / 16 * hidden_tile;
        for (uint32_t r0 = row0; r0 < row1; r0 += 32) {
            uint32_t rows = row1 - r0 < 32 ? row1 - r0 : 32;
            wide_product(bank, expert_down_panel(bank, call->record, r0 / 32), bank->down_blocks, hidden,
                         hidden_tile, n, c);
            for (uint32_t j = 0; j < n; j += 8)
                wide_store_y8(c + j / 16 * 512 + j % 16, n - j < 8 ? n - j : 8, scale, rows, y + (r0 - row0), ldy,
                              y_rows, c0 + j);
        }
    }
}

static const struct expert_route wide_route = {wide_scratch_bytes, wide_prepare, wide_gate_up, wide_down};

#endif
