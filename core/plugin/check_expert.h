/* SPDX-License-Identifier: Apache-2.0
 *
 * check_expert.h - a bank under test: one packed record, its oracle, one forward call in guarded memory.
 */
#ifndef INFERNIX_CORE_CHECK_EXPERT_H
#define INFERNIX_CORE_CHECK_EXPERT_H

#include "check_util.h"

extern const struct ifx_expert_shape expert_shapes[]; /* end with hidden 0; small ones, even and ragged */

struct expert {
    struct check_ctx *c;
    struct ifx_expert_shape shape;
    void *bank;
    struct guard record;
    float *w[3];      /* what was packed */
    double *exact[3]; /* decode_row; NULL until expert_decode */
};

/* False, and nothing failed, when the format does not take the shape. */
bool expert_open(struct check_ctx *c, struct expert *e, const struct ifx_expert_shape *shape);
void expert_close(struct expert *e);
uint32_t expert_rows(const struct expert *e, uint32_t matrix);
uint32_t expert_cols(const struct expert *e, uint32_t matrix);
/* Normal weights; packs them; the record is read-only afterwards. */
bool expert_pack(struct expert *e, uint64_t seed);
bool expert_decode(struct expert *e);

/* One call: x and y in scattered rows with gaps between them. */
struct forward {
    uint32_t n;
    struct ifx_expert_call call;
    struct guard x, y, scratch;
    uint32_t *x_rows, *y_rows;
    uint64_t ldy;
    bool threads; /* pieces run on threads of their own */
};
#define FORWARD_POISON 0x7fa5a5a5u

bool forward_open(struct expert *e, struct forward *f, uint32_t n, uint64_t seed, bool scatter);
void forward_close(struct forward *f);
/* pieces 1: whole ranges; otherwise cut into about that many pieces at random multiples of row_granule. */
bool forward_run(struct expert *e, struct forward *f, uint32_t pieces, uint64_t seed);
const uint16_t *forward_x(const struct expert *e, const struct forward *f, uint32_t column);
const float *forward_y(const struct forward *f, uint32_t column);
/* Everything that the call must not touch is as it was. */
bool forward_untouched(struct expert *e, struct forward *f);

/* Opens a shape at a level of the host, packs it, and holds level() against it. */
bool expert_level_open(struct check_ctx *c, struct expert *e, const struct ifx_expert_shape *s, uint32_t level, uint64_t seed);
void expert_say_level(struct check_ctx *c); /* names the level in a failure */
/* One column in the canonical order.  scale NULL: no tensor scales. */
void expert_canonical_column(const struct expert *e, const uint16_t *x, const float *scale, float *y);
/* Which form of the canonical order the bank follows: *plain, or with these tensor scales.  Fails when it is neither. */
bool expert_order(struct expert *e, bool *plain, float scale[3]);

void expert_silu(struct check_ctx *c);
void expert_narrow(struct check_ctx *c);
void expert_wide(struct check_ctx *c);
void expert_bad_column(struct check_ctx *c);
void expert_parallel(struct check_ctx *c);
void expert_any_bytes(struct check_ctx *c);

#endif
