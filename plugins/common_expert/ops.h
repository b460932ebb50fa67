/* SPDX-License-Identifier: Apache-2.0
 *
 * ops.h - the members of struct ifx_expert_ops that are the same in every bank.  Included once, by X.c, after the
 * format header.  X.c supplies bank_routes(level) and the registration.
 */
#ifndef COMMON_EXPERT_OPS_H
#define COMMON_EXPERT_OPS_H

#include "bank.h"

static uint64_t expert_record_bytes(const struct ifx_expert_shape *shape)
{
    struct expert_bank geometry = {0};
    return shape ? expert_geometry(&geometry, shape) : 0;
}

/* Highest level that this object file has and the host allows; a route missing there comes from below. */
static void expert_pick_routes(struct expert_bank *bank, uint32_t allowed)
{
    for (uint32_t level = IFX_CPU_SCALAR; level <= IFX_CPU_AMX_BF16 && level <= allowed; level++) {
        const struct expert_routes *routes = bank_routes(level);
        if (!routes)
            continue;
        bank->level = level;
        if (routes->narrow)
            bank->narrow = routes->narrow;
        if (routes->wide) {
            bank->wide = routes->wide;
            bank->wide_from = routes->wide_from ? routes->wide_from : IFX_NARROW_COLUMNS + 1;
        }
    }
}

static void expert_close(void *instance)
{
    struct expert_bank *bank = instance;
    if (!bank)
        return;
    const struct ifx_host *host = bank->host;
    if (bank->tables)
        host->free(host, (void *)(uintptr_t)bank->tables);
    host->free(host, bank);
}

static int32_t expert_open(const struct ifx_host *host, const struct ifx_options *options,
                           const struct ifx_expert_shape *shape, void **out)
{
    (void)options;
    *out = NULL;
    struct expert_bank geometry = {0};
    if (!expert_geometry(&geometry, shape))
        return host->error(host, IFX_EUNSUPPORTED,
                           "bank %s cannot hold experts of hidden size %u and width %u: %s", BANK_NAME,
                           shape->hidden, shape->inter, BANK_SHAPE_RULE);
    struct expert_bank *bank = host->alloc(host, sizeof *bank, 64);
    if (!bank)
        return IFX_ENOMEM;
    *bank = geometry;
    bank->host = host;
    expert_pick_routes(bank, host->cpu_level ? host->cpu_level(host) : IFX_CPU_SCALAR);
    int32_t status = bank_make_tables(host, &bank->tables);
    if (status) {
        expert_close(bank);
        return status;
    }
    *out = bank;
    return IFX_OK;
}

static int32_t expert_decode_row(void *instance, const void *record, uint32_t matrix, uint32_t row, double *out)
{
    const struct expert_bank *bank = instance;
    if (matrix > IFX_DOWN || row >= expert_rows(bank, matrix))
        return bank->host->error(bank->host, IFX_EINVAL, "bank %s: matrix %u has no row %u", BANK_NAME, matrix,
                                 row);
    float w[BANK_BLOCK_K];
    uint32_t block_row, k_count = expert_k(bank, matrix), blocks = expert_blocks(bank, matrix);
    const uint8_t *block = (const uint8_t *)record + expert_panel(bank, matrix, row, &block_row);
    double scale = bank_tensor_scale(record, matrix);
    for (uint32_t b = 0; b < blocks; b++, block += BANK_BLOCK_BYTES) {
        bank_decode_row(expert_line(block, block_row), expert_scales(block, block_row), w);
        for (uint32_t k = b * BANK_BLOCK_K; k < k_count && k < (b + 1) * BANK_BLOCK_K; k++)
            out[k] = (double)w[k - b * BANK_BLOCK_K] * scale;
    }
    return IFX_OK;
}

static uint64_t expert_scratch_bytes(void *instance, uint32_t n)
{
    const struct expert_bank *bank = instance;
    uint64_t narrow = n && n <= IFX_NARROW_COLUMNS ? bank->narrow->scratch_bytes(bank, n) : 0;
    uint64_t wide = n && n >= bank->wide_from ? bank->wide->scratch_bytes(bank, n) : 0;
    return narrow > wide ? narrow : wide;
}

static int32_t expert_check_call(const struct expert_bank *bank, const struct ifx_expert_call *call)
{
    if (!call || call->n == 0 || !call->record || !call->x || !call->scratch)
        return bank->host->error(bank->host, IFX_EINTERNAL, "bank %s: incomplete expert call", BANK_NAME);
    return IFX_OK;
}

static const struct expert_route *expert_route_of(const struct expert_bank *bank,
                                                  const struct ifx_expert_call *call)
{
    const int any_order =
        call->struct_size >= offsetof(struct ifx_expert_call, reserved) && (call->flags & IFX_EXPERT_ANY_ORDER);
    return call->n <= IFX_NARROW_COLUMNS && !(any_order && call->n >= bank->wide_from) ? bank->narrow : bank->wide;
}

static int32_t expert_prepare(void *instance, const struct ifx_expert_call *call)
{
    const struct expert_bank *bank = instance;
    int32_t status = expert_check_call(bank, call);
    if (!status)
        expert_route_of(bank, call)->prepare(bank, call);
    return status;
}

static int32_t expert_check_rows(const struct expert_bank *bank, uint32_t row0, uint32_t row1, uint32_t rows)
{
    if (row0 > row1 || row1 > rows || row0 % EXPERT_GRANULE || (row1 % EXPERT_GRANULE && row1 != rows))
        return bank->host->error(bank->host, IFX_EINTERNAL, "bank %s: rows %u to %u of %u are no multiple of %u",
                                 BANK_NAME, row0, row1, rows, EXPERT_GRANULE);
    return IFX_OK;
}

static int32_t expert_gate_up(void *instance, const struct ifx_expert_call *call, uint32_t row0, uint32_t row1)
{
    const struct expert_bank *bank = instance;
    int32_t status = expert_check_rows(bank, row0, row1, bank->inter);
    if (!status && row0 < row1)
        expert_route_of(bank, call)->gate_up(bank, call, row0, row1);
    return status;
}

static int32_t expert_down(void *instance, const struct ifx_expert_call *call, uint32_t row0, uint32_t row1,
                           float *y, uint64_t ldy, const uint32_t *y_rows)
{
    const struct expert_bank *bank = instance;
    int32_t status = expert_check_rows(bank, row0, row1, bank->hidden);
    if (!status && row0 < row1)
        expert_route_of(bank, call)->down(bank, call, row0, row1, y, ldy, y_rows);
    return status;
}

static uint32_t expert_level(void *instance)
{
    return ((const struct expert_bank *)instance)->level;
}

/* What a bank's pack and check_record share: walk over the rows of a matrix. */
static int32_t expert_pack_matrix(const struct expert_bank *bank, const float *rows, uint32_t matrix, float scale,
                                  uint8_t *record)
{
    uint32_t n_rows = expert_rows(bank, matrix), k_count = expert_k(bank, matrix);
    uint32_t blocks = expert_blocks(bank, matrix);
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t block_row;
        uint8_t *block = record + expert_panel(bank, matrix, r, &block_row);
        for (uint32_t b = 0; b < blocks; b++, block += BANK_BLOCK_BYTES) {
            uint32_t k0 = b * BANK_BLOCK_K, count = k_count - k0 < BANK_BLOCK_K ? k_count - k0 : BANK_BLOCK_K;
            float w[BANK_BLOCK_K] = {0};
            memcpy(w, rows + (uint64_t)r * k_count + k0, count * sizeof *w);
            uint8_t *scales = block + EXPERT_BLOCK_ROWS * EXPERT_LINE + (size_t)block_row * BANK_ROW_SCALES;
            int32_t status = bank_encode_row(w, scale, block + (size_t)block_row * EXPERT_LINE, scales);
            if (status)
                return bank->host->error(bank->host, status, "%s: row %u, input positions %u to %u of matrix %u",
                                         BANK_ENCODE_ERROR, r, k0, k0 + count - 1, matrix);
        }
    }
    return IFX_OK;
}

static int32_t expert_pack(void *instance, const float *gate, const float *up, const float *down, void *record)
{
    const struct expert_bank *bank = instance;
    const float *rows[3] = {gate, up, down};
    memset(record, 0, bank->record_bytes);
    for (uint32_t m = 0; m < 3; m++) {
        uint64_t count = (uint64_t)expert_rows(bank, m) * expert_k(bank, m);
        float amax = 0;
        for (uint64_t i = 0; i < count; i++) {
            float a = fabsf(rows[m][i]);
            if (!(a < INFINITY))
                return bank->host->error(bank->host, IFX_EFORMAT, "weight %u, %u of matrix %u is not finite",
                                         (unsigned)(i / expert_k(bank, m)), (unsigned)(i % expert_k(bank, m)), m);
            amax = a > amax ? a : amax;
        }
        float scale = bank_choose_tensor_scale(amax);
        bank_set_tensor_scale(record, m, scale);
        int32_t status = expert_pack_matrix(bank, rows[m], m, scale, record);
        if (status)
            return status;
    }
    return IFX_OK;
}

static int32_t expert_check_record(void *instance, const void *record)
{
    const struct expert_bank *bank = instance;
    const uint8_t *bytes = record;
    for (uint32_t m = 0; m < 3; m++)
        if (isnan(bank_tensor_scale(record, m)))
            return bank->host->error(bank->host, IFX_EFORMAT, "bank %s: the scale of matrix %u is NaN", BANK_NAME,
                                     m);
    for (uint64_t at = BANK_HEADER; at < bank->used_bytes; at += BANK_BLOCK_BYTES)
        if (!bank_check_block(bytes + at))
            return bank->host->error(bank->host, IFX_EFORMAT,
                                     "bank %s: %s in the block at byte %llu of the record", BANK_NAME,
                                     BANK_CHECK_ERROR, (unsigned long long)at);
    return IFX_OK;
}

#endif
