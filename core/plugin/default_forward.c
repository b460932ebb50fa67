/* SPDX-License-Identifier: Apache-2.0 */
#include "default_forward.h"

#include <infernix/numerics.h>

/* One decoded row, as the oracle gives it and as the product takes it. */
struct row {
    double *exact;
    float *w;
};

static int32_t row_alloc(struct row *r, uint32_t width)
{
    r->exact = base_alloc((uint64_t)width * (sizeof(double) + sizeof(float)), 64);
    if (r->exact == NULL)
        return IFX_ENOMEM;
    r->w = (float *)(void *)(r->exact + width);
    return IFX_OK;
}

static int32_t row_decode(const struct row *r, const struct ifx_expert_ops *ops, void *bank, const void *record,
                          uint32_t matrix, uint32_t index, uint32_t width)
{
    int32_t status = ops->decode_row(bank, record, matrix, index, r->exact);
    if (status != IFX_OK)
        return status;
    for (uint32_t k = 0; k < width; k++)
        r->w[k] = (float)r->exact[k];
    return IFX_OK;
}

bool plugin_has_forward(const struct ifx_expert_ops *ops)
{
    return ops->gate_up != NULL && ops->down != NULL && ops->scratch_bytes != NULL;
}

uint64_t plugin_default_scratch_bytes(const struct ifx_expert_shape *shape, uint32_t n)
{
    uint64_t bytes;
    if (!base_mul_u64((uint64_t)n * 2u, shape->inter, &bytes) || !base_add_u64(bytes, 63, &bytes))
        return 0;
    return bytes / 64 * 64;
}

int32_t plugin_default_gate_up(const struct ifx_expert_ops *ops, void *bank, const struct ifx_expert_shape *shape,
                               const struct ifx_expert_call *call, uint32_t row0, uint32_t row1)
{
    const uint32_t H = shape->hidden, I = shape->inter;
    uint16_t *h = call->scratch;
    struct row gate = {0}, up = {0};
    int32_t status = row_alloc(&gate, H);
    if (status == IFX_OK)
        status = row_alloc(&up, H);
    for (uint32_t r = row0; r < row1 && status == IFX_OK; r++) {
        status = row_decode(&gate, ops, bank, call->record, IFX_GATE, r, H);
        if (status == IFX_OK)
            status = row_decode(&up, ops, bank, call->record, IFX_UP, r, H);
        for (uint32_t i = 0; i < call->n && status == IFX_OK; i++) {
            const uint16_t *x = call->x + (call->x_rows != NULL ? call->x_rows[i] : i) * call->ldx;
            const float g = ifx_canonical_dot(gate.w, x, H), u = ifx_canonical_dot(up.w, x, H);
            h[(uint64_t)i * I + r] = ifx_f32_to_bf16(ifx_silu(g) * u);
        }
    }
    base_free(gate.exact);
    base_free(up.exact);
    return status;
}

int32_t plugin_default_down(const struct ifx_expert_ops *ops, void *bank, const struct ifx_expert_shape *shape,
                            const struct ifx_expert_call *call, uint32_t row0, uint32_t row1, float *y, uint64_t ldy,
                            const uint32_t *y_rows)
{
    const uint32_t I = shape->inter;
    const uint16_t *h = call->scratch;
    struct row down = {0};
    int32_t status = row_alloc(&down, I);
    for (uint32_t r = row0; r < row1 && status == IFX_OK; r++) {
        status = row_decode(&down, ops, bank, call->record, IFX_DOWN, r, I);
        for (uint32_t i = 0; i < call->n && status == IFX_OK; i++)
            y[(y_rows != NULL ? y_rows[i] : i) * ldy + (r - row0)] =
                ifx_canonical_dot(down.w, h + (uint64_t)i * I, I);
    }
    base_free(down.exact);
    return status;
}
