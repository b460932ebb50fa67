/* SPDX-License-Identifier: Apache-2.0
 *
 * default_forward.h - the CPU path of a bank that gives none: the canonical order of numerics.h over the rows that
 * decode_row gives, for every number of columns.  Right and slow.
 *
 * The weights are decode_row's values rounded to float32 and there is no tensor scale step: a format whose values
 * need more than float32 holds must bring its own path.
 */
#ifndef INFERNIX_CORE_DEFAULT_FORWARD_H
#define INFERNIX_CORE_DEFAULT_FORWARD_H

#include "base.h"
#include <infernix/expert.h>

/* What a call's scratch must hold: the hidden values, bf16 [n, I].  0 on overflow. */
uint64_t plugin_default_scratch_bytes(const struct ifx_expert_shape *shape, uint32_t n);
/* As ifx_expert_ops.gate_up and .down, any row range, several threads at once.  Each call allocates two rows. */
int32_t plugin_default_gate_up(const struct ifx_expert_ops *ops, void *bank, const struct ifx_expert_shape *shape,
                               const struct ifx_expert_call *call, uint32_t row0, uint32_t row1);
int32_t plugin_default_down(const struct ifx_expert_ops *ops, void *bank, const struct ifx_expert_shape *shape,
                            const struct ifx_expert_call *call, uint32_t row0, uint32_t row1, float *y, uint64_t ldy,
                            const uint32_t *y_rows);
/* True when the bank brings its own CPU path (gate_up, down and scratch_bytes; prepare may be NULL). */
bool plugin_has_forward(const struct ifx_expert_ops *ops);

#endif
