/* SPDX-License-Identifier: Apache-2.0
 *
 * scalar.h - the plain route of a bank, for any processor and as the reference of the vector ones: the canonical
 * order of numerics.h for every column count.  Included once, by X_ref.c.
 */
#ifndef COMMON_EXPERT_SCALAR_H
#define COMMON_EXPERT_SCALAR_H

#include "bank.h"

/* Scratch: the hidden values, bf16 [n, I]. */
static uint64_t scalar_scratch_bytes(const struct expert_bank *bank, uint32_t n)
{
    return (uint64_t)n * bank->inter * sizeof(uint16_t);
}

/* Nothing is repacked. */
static void scalar_prepare(const struct expert_bank *bank, const struct ifx_expert_call *call)
{
    (void)bank;
    (void)call;
}

/* sum[c] = dot(row, column c) for up to IFX_NARROW_COLUMNS columns. */
static void scalar_dot(const struct expert_bank *bank, const void *record, uint32_t matrix, uint32_t row,
                       const uint16_t *const *x, uint32_t n, float *sum)
{
    float acc[IFX_NARROW_COLUMNS][16] = {{0}}, w[BANK_BLOCK_K];
    uint32_t block_row, k_count = expert_k(bank, matrix), blocks = expert_blocks(bank, matrix);
    const uint8_t *block = (const uint8_t *)record + expert_panel(bank, matrix, row, &block_row);
    for (uint32_t b = 0; b < blocks; b++, block += BANK_BLOCK_BYTES) {
        uint32_t k0 = b * BANK_BLOCK_K;
        uint32_t count = k_count - k0 < BANK_BLOCK_K ? k_count - k0 : BANK_BLOCK_K;
        bank_decode_row(expert_line(block, block_row), expert_scales(block, block_row), w);
        for (uint32_t c = 0; c < n; c++) {
            for (uint32_t k = 0; k < count; k++)
                acc[c][k & 15u] = fmaf(w[k], ifx_bf16_to_f32(x[c][k0 + k]), acc[c][k & 15u]);
            for (uint32_t k = count; k & 15u; k++)
                acc[c][k & 15u] = fmaf(0.0f, 0.0f, acc[c][k & 15u]);
        }
    }
    for (uint32_t c = 0; c < n; c++)
        sum[c] = ifx_canonical_sum(acc[c]) * bank_tensor_scale(record, matrix);
}

static void scalar_gate_up(const struct expert_bank *bank, const struct ifx_expert_call *call, uint32_t row0,
                           uint32_t row1)
{
    uint16_t *hidden = call->scratch;
    const uint16_t *x[IFX_NARROW_COLUMNS];
    float gate[IFX_NARROW_COLUMNS], up[IFX_NARROW_COLUMNS];
    for (uint32_t c0 = 0; c0 < call->n; c0 += IFX_NARROW_COLUMNS) {
        uint32_t n = call->n - c0 < IFX_NARROW_COLUMNS ? call->n - c0 : IFX_NARROW_COLUMNS;
        for (uint32_t c = 0; c < n; c++)
            x[c] = expert_column(call, c0 + c);
        for (uint32_t r = row0; r < row1; r++) {
            scalar_dot(bank, call->record, IFX_GATE, r, x, n, gate);
            scalar_dot(bank, call->record, IFX_UP, r, x, n, up);
            for (uint32_t c = 0; c < n; c++)
                hidden[(uint64_t)(c0 + c) * bank->inter + r] = ifx_f32_to_bf16(ifx_silu(gate[c]) * up[c]);
        }
    }
}

static void scalar_down(const struct expert_bank *bank, const struct ifx_expert_call *call, uint32_t row0,
                        uint32_t row1, float *y, uint64_t ldy, const uint32_t *y_rows)
{
    const uint16_t *hidden = call->scratch;
    const uint16_t *x[IFX_NARROW_COLUMNS];
    float sum[IFX_NARROW_COLUMNS];
    for (uint32_t c0 = 0; c0 < call->n; c0 += IFX_NARROW_COLUMNS) {
        uint32_t n = call->n - c0 < IFX_NARROW_COLUMNS ? call->n - c0 : IFX_NARROW_COLUMNS;
        for (uint32_t c = 0; c < n; c++)
            x[c] = hidden + (uint64_t)(c0 + c) * bank->inter;
        for (uint32_t r = row0; r < row1; r++) {
            scalar_dot(bank, call->record, IFX_DOWN, r, x, n, sum);
            for (uint32_t c = 0; c < n; c++)
                y[(uint64_t)(y_rows ? y_rows[c0 + c] : c0 + c) * ldy + (r - row0)] = sum[c];
        }
    }
}

static const struct expert_route scalar_route = {scalar_scratch_bytes, scalar_prepare, scalar_gate_up,
                                                 scalar_down};

#endif
