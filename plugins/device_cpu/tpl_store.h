/* SPDX-License-Identifier: Apache-2.0
 *
 * tpl_store.h - kernel template: from an output block of rows by columns to y, which has them the other way round.
 */
#include "kernels.h"

#define UNROLL _Pragma("GCC unroll 16")

enum { VN = 16 / VW }; /* vectors of 16 lanes */

/* y[t, r] from c[r, t] for columns and rows that are no whole vector. */
static void store_edge(const struct cpu_wide *t, const float *c, uint32_t column0, uint32_t j0, uint32_t j1, uint32_t r0,
                       uint32_t r1)
{
    for (uint32_t j = j0; j < j1; j++) {
        float *y = t->y + (uint64_t)(column0 + j) * t->ldy + t->r0;
        for (uint32_t r = r0; r < r1; r++)
            y[r] = t->accumulate ? y[r] + c[(uint64_t)r * CPU_LDC + j] : c[(uint64_t)r * CPU_LDC + j];
    }
}

/* y[t, r] from c[r, t], transposed in registers. */
static void store_block(const struct cpu_wide *t, const float *c, uint32_t column0, uint32_t columns)
{
    uint32_t rows = (uint32_t)(t->r1 - t->r0), whole = rows / VW * VW, j = 0;
    for (; j + VW <= columns; j += VW)
        for (uint32_t r = 0; r < whole; r += VW) {
            vf block[VW];
            for (uint32_t i = 0; i < VW; i++)
                block[i] = v_load(c + (uint64_t)(r + i) * CPU_LDC + j);
            v_transpose(block);
            for (uint32_t i = 0; i < VW; i++) {
                float *y = t->y + (uint64_t)(column0 + j + i) * t->ldy + t->r0 + r;
                v_store(y, t->accumulate ? v_add(v_load(y), block[i]) : block[i]);
            }
        }
    store_edge(t, c, column0, j, columns, 0, whole);
    store_edge(t, c, column0, 0, columns, whole, rows);
}
