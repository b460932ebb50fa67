/* SPDX-License-Identifier: Apache-2.0
 *
 * Is the hidden value that of ifx_silu, and no other exp's?  Two exps differ in the last bit, and the rounding to bf16 hides that 65,535 times
 * out of 65,536.  So the inputs are chosen: columns with one value that is not zero, for which the float32 value of some row lies at
 * a rounding boundary of bf16.  There a difference in the last bit shows in the output.
 */
#include "check_expert.h"
#include "default_forward.h"

#include <infernix/numerics.h>
#include <stdlib.h>

#define CALLS   32u
#define COLUMNS 8u

struct sparse {
    uint32_t k;
    uint16_t x;
};

/* The one product of a row, with the matrix' scale when the bank follows that form of the order. */
static float product(const struct expert *e, const float *scale, uint32_t m, uint32_t row, const struct sparse *s)
{
    const double w = e->exact[m][(uint64_t)row * e->shape.hidden + s->k];
    const float p = (float)(scale != NULL ? w / scale[m] : w) * ifx_bf16_to_f32(s->x);
    return scale != NULL ? p * scale[m] : p;
}

static bool at_boundary(const struct expert *e, const float *scale, const struct sparse *s)
{
    for (uint32_t r = 0; r < e->shape.inter; r++) {
        const float g = product(e, scale, IFX_GATE, r, s), v = ifx_silu(g) * product(e, scale, IFX_UP, r, s);
        const uint32_t low = ifx_f32_bits(v) & 0xffffu;
        if (low >= 0x7fffu && low <= 0x8001u && fabsf(g) > 0.25f && fabsf(g) < 12.0f)
            return true;
    }
    return false;
}

static void find_columns(const struct expert *e, const float *scale, struct sparse *out)
{
    struct rng r = {77};
    uint32_t found = 0;
    for (uint32_t tries = 0; found < CALLS * COLUMNS; tries++) {
        const struct sparse s = {rng_below(&r, e->shape.hidden),
                                 ifx_f32_to_bf16(ldexpf(1.0f + (float)rng_below(&r, 128) / 128.0f, (int)rng_below(&r, 7)) * (rng_below(&r, 2) ? 1 : -1))};
        if (tries > 200000 || at_boundary(e, scale, &s)) /* a format of few values may have fewer */
            out[found++] = s;
    }
}

static bool silu_call(struct expert *e, const float *scale, const struct sparse *columns, float *want)
{
    const uint32_t H = e->shape.hidden;
    struct forward f;
    bool ok = forward_open(e, &f, COLUMNS, 1, false);
    for (uint32_t i = 0; ok && i < COLUMNS; i++) {
        uint16_t *x = (uint16_t *)(void *)f.x.data + i * f.call.ldx;
        for (uint32_t k = 0; k < H; k++)
            x[k] = k == columns[i].k ? columns[i].x : 0;
    }
    ok = ok && forward_run(e, &f, 1, 0);
    for (uint32_t i = 0; ok && i < COLUMNS; i++) {
        expert_canonical_column(e, forward_x(e, &f, i), scale, want);
        if (memcmp(want, forward_y(&f, i), H * sizeof *want) != 0)
            ok = check_fail(e->c, "a hidden value at a rounding boundary of bf16 falls on the other side: silu is not computed with ifx_exp of "
                                  "numerics.h, operation by operation (x %g at input %u)", (double)ifx_bf16_to_f32(columns[i].x), columns[i].k);
    }
    forward_close(&f);
    return ok;
}

void expert_silu(struct check_ctx *c)
{
    const uint32_t levels = plugin_has_forward(&c->ops.expert) ? check_levels(c) : 1;
    const struct ifx_expert_shape *s = expert_shapes;
    struct sparse *columns = malloc(CALLS * COLUMNS * sizeof *columns);
    while (s->hidden != 0 && c->ops.expert.record_bytes(s) == 0)
        s++;
    float *want = malloc(s->hidden * sizeof *want + 1);
    for (uint32_t level = 0; level < levels && !c->failed && columns != NULL && want != NULL && s->hidden != 0; level++) {
        struct expert e;
        float scale[3];
        bool plain = false, ok = expert_level_open(c, &e, s, level, 23) && expert_decode(&e) && expert_order(&e, &plain, scale);
        if (ok && level == 0)
            find_columns(&e, plain ? NULL : scale, columns);
        for (uint32_t i = 0; ok && i < CALLS; i++)
            ok = silu_call(&e, plain ? NULL : scale, columns + i * COLUMNS, want);
        expert_say_level(c);
        expert_close(&e);
    }
    free(columns);
    free(want);
    check_note(c, "%u columns with a value at a rounding boundary", CALLS * COLUMNS);
}
