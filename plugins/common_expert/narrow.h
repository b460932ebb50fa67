/* SPDX-License-Identifier: Apache-2.0
 *
 * narrow.h - the narrow route (at most IFX_NARROW_COLUMNS columns): the canonical order of numerics.h with the 16
 * accumulators as one or two vectors.  An ISA object includes it after vec_<isa>.h, the format header and its own
 *   struct bank_row;                                                      what decoding a line needs
 *   bank_row_open(tables, line, scales, half) -> struct bank_row          half: which VEC_LANES of the 16
 *   bank_row_step(const struct bank_row *, step) -> vec                   weights of step 0..BANK_STEPS-1
 *
 * Scratch: x as float32 [position / 16][n][16], then the hidden values likewise, both padded to whole blocks. The
 * padding past the last 16 positions is -0, so that a padded step leaves an accumulator exactly as it was.
 */
#ifndef COMMON_EXPERT_NARROW_H
#define COMMON_EXPERT_NARROW_H

#include "bank.h"
#include "simd.h"

#define EXPERT_INLINE static inline __attribute__((always_inline))

/* A panel is walked in strips of blocks: small enough that x and the lines of a strip stay in the first-level cache while its rows
 * are done in groups, and the next strip is being fetched meanwhile.  A single column (of bf16 weights, up to four) waits for memory
 * alone, and a strip of about a page is what the hardware follows best. */
enum { NARROW_STRIP = 4, NARROW_STRIP_SINGLE = BANK_BLOCK_K > 32 ? 2 : 1 };

static uint64_t narrow_x_floats(const struct expert_bank *bank, uint32_t n)
{
    return (uint64_t)bank->gu_blocks * BANK_BLOCK_K * n;
}

static uint64_t narrow_scratch_bytes(const struct expert_bank *bank, uint32_t n)
{
    return (narrow_x_floats(bank, n) + (uint64_t)bank->down_blocks * BANK_BLOCK_K * n) * sizeof(float);
}

static void narrow_fill(float *x, uint32_t from, uint32_t to, uint32_t n, float value)
{
    for (uint64_t i = (uint64_t)from * n * 16; i < (uint64_t)to * n * 16; i++)
        x[i] = value;
}

static void narrow_prepare(const struct expert_bank *bank, const struct ifx_expert_call *call)
{
    float *x = call->scratch, *hidden = x + narrow_x_floats(bank, call->n);
    uint32_t n = call->n, whole = bank->hidden / 16, used = expert_div_up(bank->hidden, 16);
    for (uint32_t c = 0; c < n; c++) {
        const uint16_t *from = expert_column(call, c);
        float *to = x + c * 16;
        for (uint32_t s = 0; s < whole; s++, from += 16, to += n * 16) {
            _mm256_storeu_ps(to, simd_widen(_mm_loadu_si128((const __m128i *)from)));
            _mm256_storeu_ps(to + 8, simd_widen(_mm_loadu_si128((const __m128i *)(from + 8))));
        }
        for (uint32_t k = 0; used > whole && k < 16; k++)
            to[k] = k < bank->hidden % 16 ? ifx_bf16_to_f32(from[k]) : 0.0f;
    }
    narrow_fill(x, used, bank->gu_blocks * BANK_STEPS, n, -0.0f);
    narrow_fill(hidden, expert_div_up(bank->inter, 16), bank->down_blocks * BANK_STEPS, n, -0.0f);
}

/* acc[r][c] += row r of one block times column c, N columns, one line at a time. */
EXPERT_INLINE void narrow_block_by_row(const struct expert_bank *bank, const uint8_t *block, const float *x,
                                       uint32_t row0, uint32_t half, const uint32_t R, const uint32_t N,
                                       vec (*acc)[IFX_NARROW_COLUMNS])
{
#pragma GCC unroll 8
    for (uint32_t r = 0; r < R; r++) {
        struct bank_row row =
            bank_row_open(bank->tables, expert_line(block, row0 + r), expert_scales(block, row0 + r), half);
#pragma GCC unroll 8
        for (uint32_t s = 0; s < BANK_STEPS; s++) {
            vec w = bank_row_step(&row, s);
#pragma GCC unroll 8
            for (uint32_t c = 0; c < N; c++)
                acc[r][c] = vec_fma(w, vec_load(x + (s * N + c) * 16), acc[r][c]);
        }
    }
}

/* The same, a step of all rows at a time, so that the rows share the loads of x; for objects with registers
 * enough. */
EXPERT_INLINE void narrow_block_by_step(const struct expert_bank *bank, const uint8_t *block, const float *x,
                                        uint32_t row0, uint32_t half, const uint32_t R, const uint32_t N,
                                        vec (*acc)[IFX_NARROW_COLUMNS])
{
    struct bank_row row[8];
    vec xs[IFX_NARROW_COLUMNS];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < R; r++)
        row[r] = bank_row_open(bank->tables, expert_line(block, row0 + r), expert_scales(block, row0 + r), half);
#pragma GCC unroll 8
    for (uint32_t s = 0; s < BANK_STEPS; s++) {
#pragma GCC unroll 8
        for (uint32_t c = 0; c < N; c++)
            xs[c] = vec_keep(vec_load(x + (s * N + c) * 16));
#pragma GCC unroll 8
        for (uint32_t r = 0; r < R; r++) {
            vec w = bank_row_step(&row[r], s);
#pragma GCC unroll 8
            for (uint32_t c = 0; c < N; c++)
                acc[r][c] = vec_fma(w, xs[c], acc[r][c]);
        }
    }
}

/* The next strip is asked for in the order it lies in memory, whatever the order of use: one stream, which the hardware runs ahead
 * of.  `unit` is what row group and block of this strip is about to be done. */
EXPERT_INLINE void narrow_prefetch(const uint8_t *next, uint32_t unit, const uint32_t R)
{
    const uint32_t bytes = BANK_BLOCK_BYTES * R / EXPERT_BLOCK_ROWS;
#pragma GCC unroll 16
    for (uint32_t i = 0; i < bytes; i += EXPERT_LINE)
        _mm_prefetch((const char *)next + (size_t)unit * bytes + i, _MM_HINT_T0);
}

/* R rows of a strip of blocks, PARTS parts of the 16 lanes from part0 on; sums[row][column][16] go on from what they hold. */
EXPERT_INLINE void narrow_rows_part(const struct expert_bank *bank, const uint8_t *strip, uint32_t blocks, const float *x,
                                    uint32_t row0, uint32_t part0, const uint32_t PARTS, const uint32_t R, const uint32_t N,
                                    float *sums)
{
    vec acc[2][8][IFX_NARROW_COLUMNS];
    float *at = sums + (size_t)row0 * N * 16 + part0 * VEC_LANES;
#pragma GCC unroll 2
    for (uint32_t p = 0; p < PARTS; p++)
#pragma GCC unroll 8
        for (uint32_t r = 0; r < R; r++)
#pragma GCC unroll 8
            for (uint32_t c = 0; c < N; c++)
                acc[p][r][c] = vec_load(at + (r * N + c) * 16 + p * VEC_LANES);
    for (uint32_t b = 0; b < blocks; b++) {
        const uint8_t *block = strip + (size_t)b * BANK_BLOCK_BYTES;
        const float *xb = x + (size_t)b * BANK_BLOCK_K * N + part0 * VEC_LANES;
        if (part0 == 0)
            narrow_prefetch(strip + (size_t)blocks * BANK_BLOCK_BYTES, row0 / R * blocks + b, R);
#pragma GCC unroll 2
        for (uint32_t p = 0; p < PARTS; p++) {
            if (VEC_ROWS_SHARE_X)
                narrow_block_by_step(bank, block, xb + p * VEC_LANES, row0, part0 + p, R, N, acc[p]);
            else
                narrow_block_by_row(bank, block, xb + p * VEC_LANES, row0, part0 + p, R, N, acc[p]);
        }
    }
#pragma GCC unroll 2
    for (uint32_t p = 0; p < PARTS; p++)
#pragma GCC unroll 8
        for (uint32_t r = 0; r < R; r++)
#pragma GCC unroll 8
            for (uint32_t c = 0; c < N; c++)
                vec_store(at + (r * N + c) * 16 + p * VEC_LANES, acc[p][r][c]);
}

/* A chain of products has the latency of each: with few columns both halves of the lanes are on their way at once. */
EXPERT_INLINE void narrow_rows(const struct expert_bank *bank, const uint8_t *strip, uint32_t blocks, const float *x,
                               uint32_t row0, const uint32_t R, const uint32_t N, float *sums)
{
    if (VEC_LANES == 16) {
        narrow_rows_part(bank, strip, blocks, x, row0, 0, 1, R, N, sums);
    } else if (N <= 2) {
        narrow_rows_part(bank, strip, blocks, x, row0, 0, 2, R, N, sums);
    } else {
        narrow_rows_part(bank, strip, blocks, x, row0, 0, 1, R, N, sums);
        narrow_rows_part(bank, strip, blocks, x, row0, 1, 1, R, N, sums);
    }
}

/* The 16 lanes of all 32 rows of a panel, for N columns: sums[row][column][16]. */
EXPERT_INLINE void narrow_panel_n(const struct expert_bank *bank, const uint8_t *panel, uint32_t blocks,
                                  const float *x, const uint32_t N, float *sums)
{
    /* accumulators, columns, lines and a few more in registers */
    const uint32_t R = VEC_ROWS_SHARE_X ? (N == 2 && BANK_BLOCK_K > 32 ? 8
                                           : N <= 5 ? 4
                                                    : 2)
                                        : (N <= 4 ? 2 : 1);
    const uint32_t most = N == 1 || (N <= 4 && BANK_BLOCK_K <= 32) ? NARROW_STRIP_SINGLE : NARROW_STRIP;
    memset(sums, 0, (size_t)EXPERT_BLOCK_ROWS * N * 16 * sizeof *sums);
    for (uint32_t b = 0; b < blocks; b += most) {
        uint32_t count = blocks - b < most ? blocks - b : most;
        for (uint32_t r = 0; r < EXPERT_BLOCK_ROWS; r += R)
            narrow_rows(bank, panel + (size_t)b * BANK_BLOCK_BYTES, count, x + (size_t)b * BANK_BLOCK_K * N, r, R,
                        N, sums);
    }
}

static void narrow_panel(const struct expert_bank *bank, const uint8_t *panel, uint32_t blocks, const float *x,
                         uint32_t n, float *sums)
{
    switch (n) {
    case 1:
        narrow_panel_n(bank, panel, blocks, x, 1, sums);
        break;
    case 2:
        narrow_panel_n(bank, panel, blocks, x, 2, sums);
        break;
    case 3:
        narrow_panel_n(bank, panel, blocks, x, 3, sums);
        break;
    case 4:
        narrow_panel_n(bank, panel, blocks, x, 4, sums);
        break;
    case 5:
        narrow_panel_n(bank, panel, blocks, x, 5, sums);
        break;
    case 6:
        narrow_panel_n(bank, panel, blocks, x, 6, sums);
        break;
    case 7:
        narrow_panel_n(bank, panel, blocks, x, 7, sums);
        break;
    default:
        narrow_panel_n(bank, panel, blocks, x, 8, sums);
        break;
    }
}

static void narrow_gate_up(const struct expert_bank *bank, const struct ifx_expert_call *call, uint32_t row0,
                           uint32_t row1)
{
    _Alignas(64) float sums[EXPERT_BLOCK_ROWS * IFX_NARROW_COLUMNS * 16];
    const float *x = call->scratch;
    float *hidden = (float *)call->scratch + narrow_x_floats(bank, call->n);
    const uint32_t n = call->n;
    const __m128 gate_scale = _mm_set1_ps(bank_tensor_scale(call->record, IFX_GATE));
    const __m128 up_scale = _mm_set1_ps(bank_tensor_scale(call->record, IFX_UP));
    for (uint32_t p = row0 / 16; p < expert_div_up(row1, 16); p++) {
        narrow_panel(bank, expert_gu_panel(bank, call->record, p), bank->gu_blocks, x, n, sums);
        for (uint32_t c = 0; c < n; c++)
            for (uint32_t r = 0; r < 16; r += 8) {
                const float *g = sums + (r * n + c) * 16, *u = g + 16 * n * 16;
                __m128 g0 = _mm_mul_ps(simd_canonical_sum4(g, n * 16), gate_scale);
                __m128 g1 = _mm_mul_ps(simd_canonical_sum4(g + 4 * n * 16, n * 16), gate_scale);
                __m128 u0 = _mm_mul_ps(simd_canonical_sum4(u, n * 16), up_scale);
                __m128 u1 = _mm_mul_ps(simd_canonical_sum4(u + 4 * n * 16, n * 16), up_scale);
                _mm256_storeu_ps(hidden + ((size_t)p * n + c) * 16 + r,
                                 simd_hidden(_mm256_set_m128(g1, g0), _mm256_set_m128(u1, u0)));
            }
    }
}

static void narrow_down(const struct expert_bank *bank, const struct ifx_expert_call *call, uint32_t row0,
                        uint32_t row1, float *y, uint64_t ldy, const uint32_t *y_rows)
{
    _Alignas(64) float sums[EXPERT_BLOCK_ROWS * IFX_NARROW_COLUMNS * 16], out[EXPERT_BLOCK_ROWS];
    const float *hidden = (const float *)call->scratch + narrow_x_floats(bank, call->n);
    const uint32_t n = call->n;
    const __m128 scale = _mm_set1_ps(bank_tensor_scale(call->record, IFX_DOWN));
    for (uint32_t r0 = row0; r0 < row1; r0 += 32) {
        uint32_t count = row1 - r0 < 32 ? row1 - r0 : 32;
        narrow_panel(bank, expert_down_panel(bank, call->record, r0 / 32), bank->down_blocks, hidden, n, sums);
        for (uint32_t c = 0; c < n; c++) {
            for (uint32_t r = 0; r < 32; r += 4)
                _mm_store_ps(out + r, _mm_mul_ps(simd_canonical_sum4(sums + (r * n + c) * 16, n * 16), scale));
            memcpy(y + (uint64_t)(y_rows ? y_rows[c] : c) * ldy + (r0 - row0), out, count * sizeof *out);
        }
    }
}

static const struct expert_route narrow_route = {narrow_scratch_bytes, narrow_prepare, narrow_gate_up,
                                                 narrow_down};

#endif
