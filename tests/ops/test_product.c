/* SPDX-License-Identifier: Apache-2.0
 *
 * test_product.c - products with their surroundings, and the router with its grouping, in one operation, against the same one by one on the
 * oracle.  On a device without them this tests the steps that take their place.
 */
#include "optest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char what[200];
#define DESCRIBE(...) snprintf(what, sizeof what, __VA_ARGS__)

enum { PLAIN, NORM, GATED_NORM, SWIGLU, SIGMOID_GATE, INPUTS };
enum { END_PLAIN, END_GATE, END_COMBINE, ENDS };

/* All operands; those that are written twice over, for the device and for the oracle. */
struct problem {
    uint32_t n, cols, count, exact, input, end, heads, top_k;
    struct mat x, z, w, a_log, dt_bias, parts, weights, gate;
    struct ifx_weight matrix[IFX_LINEAR_MAX];
    uint32_t accumulate[IFX_LINEAR_MAX];
};
struct results {
    struct mat x, y[IFX_LINEAR_MAX], g, beta, routed, residual;
    uint16_t *rounded;
};

static struct problem problem_make(uint64_t *rng)
{
    struct problem p = {.n = 1 + rng_below(rng, 8), .input = rng_below(rng, INPUTS), .end = rng_below(rng, ENDS)};
    static const uint32_t widths[] = {4, 8, 64, 100, 128};
    uint32_t d = widths[rng_below(rng, 5)], pad = 4 * rng_below(rng, 3);
    p.heads = 2 * (1 + rng_below(rng, 8));
    p.cols = p.input == GATED_NORM || p.input == SIGMOID_GATE ? p.heads * d : rng_below(rng, 3) ? 8 * (1 + rng_below(rng, 130)) : 2048;
    p.count = p.end == END_COMBINE ? 1 : p.end == END_GATE ? 2 + rng_below(rng, 3) : 1 + rng_below(rng, 4);
    p.exact = rng_below(rng, 2) && p.end != END_COMBINE ? rng_below(rng, 1u << p.count) : 0;
    p.top_k = 1 + rng_below(rng, 9);
    p.x = mat_random(rng, p.n, p.cols, p.cols + pad, 1.0f);
    /* A head of the gate lies behind one of something else. */
    p.z = mat_random(rng, p.n, p.input == SIGMOID_GATE ? 2 * p.cols : p.cols, 2 * p.cols + pad, 1.0f);
    p.w = mat_random(rng, 1, p.cols, p.cols, 1.0f);
    for (uint32_t m = 0; m < p.count; m++) {
        uint32_t rows = 1 + rng_below(rng, rng_below(rng, 12) ? 100 : 2600);
        bool gates = p.end == END_GATE && m < 2;
        p.matrix[m] = weight_random(rng, IFX_BF16, gates ? 24 : rows, p.cols, 1.0f / sqrtf((float)p.cols));
        p.accumulate[m] = !gates && p.end != END_COMBINE && rng_below(rng, 2);
    }
    uint32_t rows = p.matrix[0].rows;
    p.a_log = mat_random(rng, 1, 24, 24, 0.5f), p.dt_bias = mat_random(rng, 1, 24, 24, 0.5f);
    p.parts = mat_random(rng, p.n * p.top_k, rows, rows + rng_below(rng, 3), 1.0f);
    p.weights = mat_random(rng, p.n, p.top_k, p.top_k, 0.5f);
    p.gate = mat_random(rng, p.n, 1, 1, 1.0f);
    return p;
}

static void problem_free(struct problem *p)
{
    struct mat *all[] = {&p->x, &p->z, &p->w, &p->a_log, &p->dt_bias, &p->parts, &p->weights, &p->gate};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mat_free(all[i]);
    for (uint32_t m = 0; m < p->count; m++)
        weight_free(&p->matrix[m]);
}

static struct results results_make(const struct problem *p, uint64_t seed)
{
    struct results r = {.x = mat_copy(&p->x)};
    uint32_t rows = p->matrix[0].rows;
    for (uint32_t m = 0; m < p->count; m++)
        r.y[m] = mat_random(&seed, p->n, p->matrix[m].rows, p->matrix[m].rows + m % 2 * 5, 1.0f);
    r.g = mat_new(p->n, 24, 24), r.beta = mat_new(p->n, 24, 24);
    r.routed = mat_new(p->n, rows, rows);
    r.residual = mat_random(&seed, p->n, rows, rows + 3, 1.0f);
    r.rounded = exact_alloc((uint64_t)p->n * p->cols * 2);
    return r;
}

static void results_free(struct results *r)
{
    for (uint32_t m = 0; m < IFX_LINEAR_MAX; m++)
        mat_free(&r->y[m]);
    mat_free(&r->x), mat_free(&r->g), mat_free(&r->beta), mat_free(&r->routed), mat_free(&r->residual);
    free(r->rounded);
}

/* The operation over columns [c, c + n), and everything it points to. */
struct call {
    struct ifx_product op;
    struct ifx_rms_norm norm;
    struct ifx_gated_norm gated_norm;
    struct ifx_swiglu swiglu;
    struct ifx_sigmoid_gate sigmoid_gate;
    struct ifx_gdn_gate gate;
    struct ifx_combine combine;
    struct ifx_add shared, residual;
};

static void call_make(struct call *k, const struct problem *p, struct results *r, uint32_t c, uint32_t n)
{
    float *x = r->x.p + c * r->x.ld, *z = p->z.p + c * p->z.ld;
    uint32_t d = p->cols / p->heads, rows = p->matrix[0].rows;
    memset(k, 0, sizeof *k);
    k->norm = (struct ifx_rms_norm){.rows = n, .width = p->cols, .w_rows = 1, .x = x, .ldx = r->x.ld, .w = p->w.p, .plus_one = 1, .eps = 1e-6f,
                                    .y = x, .ldy = r->x.ld};
    k->gated_norm = (struct ifx_gated_norm){.n = n, .heads = p->heads, .width = d, .act = p->count % 2, .x = x, .ldx = r->x.ld, .z = z, .ldz = p->z.ld,
                                            .w = p->w.p, .eps = 1e-6f, .y = x, .ldy = r->x.ld};
    k->swiglu = (struct ifx_swiglu){.n = n, .width = p->cols, .gate = x, .ldg = r->x.ld, .up = z, .ldu = p->z.ld, .y = x, .ldy = r->x.ld};
    k->sigmoid_gate = (struct ifx_sigmoid_gate){.n = n, .heads = p->heads, .d = d, .x = x, .ldx = r->x.ld, .gate = z + d, .ldg = p->z.ld,
                                                .ldg_head = 2 * d};
    k->op.norm = p->input == NORM ? &k->norm : NULL;
    k->op.gated_norm = p->input == GATED_NORM ? &k->gated_norm : NULL;
    k->op.swiglu = p->input == SWIGLU ? &k->swiglu : NULL;
    k->op.sigmoid_gate = p->input == SIGMOID_GATE ? &k->sigmoid_gate : NULL;
    k->op.linear = (struct ifx_linear){.n = n, .cols = p->cols, .count = p->count, .x = x, .ldx = r->x.ld};
    for (uint32_t m = 0; m < p->count; m++) {
        k->op.linear.out[m].w = p->matrix[m];
        k->op.linear.out[m].y = r->y[m].p + c * r->y[m].ld, k->op.linear.out[m].ldy = r->y[m].ld;
        k->op.linear.out[m].accumulate = p->accumulate[m];
    }
    k->op.exact = p->exact;
    k->op.rounded = r->rounded + (uint64_t)c * p->cols, k->op.ldr = p->cols;
    k->gate = (struct ifx_gdn_gate){.n = n, .heads = 24, .a = k->op.linear.out[0].y, .lda = r->y[0].ld, .b = k->op.linear.out[1].y, .ldb = r->y[1].ld,
                                    .a_log = p->a_log.p, .dt_bias = p->dt_bias.p, .g = r->g.p + c * 24ull, .beta = r->beta.p + c * 24ull};
    k->op.gate = p->end == END_GATE ? &k->gate : NULL;
    if (p->end != END_COMBINE)
        return;
    k->combine = (struct ifx_combine){.n = n, .top_k = p->top_k, .width = rows, .parts = p->parts.p + (uint64_t)c * p->top_k * p->parts.ld,
                                      .ldp = p->parts.ld, .weights = p->weights.p + (uint64_t)c * p->top_k, .y = r->routed.p + c * r->routed.ld,
                                      .ldy = r->routed.ld};
    k->shared = (struct ifx_add){.n = n, .width = rows, .x = k->op.linear.out[0].y, .ldx = r->y[0].ld, .gate = p->gate.p + c, .ldg = 1,
                                 .y = k->combine.y, .ldy = r->routed.ld};
    k->residual = (struct ifx_add){.n = n, .width = rows, .x = k->combine.y, .ldx = r->routed.ld, .y = r->residual.p + c * r->residual.ld,
                                   .ldy = r->residual.ld};
    k->op.combine = &k->combine, k->op.shared = &k->shared, k->op.residual = &k->residual;
}

static int32_t run(struct ifx_device *dev, struct ifx_product *op)
{
    op->linear.ws = exact_alloc(dev->ops->linear_ws_bytes(dev, op->linear.n, op->linear.cols));
    int32_t status = dev->ops->product ? dev->ops->product(dev, NULL, op) : ifx_product_steps(dev, NULL, op);
    free(op->linear.ws);
    return status;
}

/* On the oracle, which rounds nothing: so the input is rounded here, for the matrices that take it rounded. */
static void one_by_one(const struct pair *t, const struct problem *p, struct results *r)
{
    struct call k;
    call_make(&k, p, r, 0, p->n);
    struct ifx_product input = k.op, end = k.op;
    input.linear.count = end.linear.count = 0;
    input.rounded = end.rounded = NULL;
    input.gate = NULL, input.combine = NULL, input.shared = input.residual = NULL;
    end.norm = NULL, end.gated_norm = NULL, end.swiglu = NULL, end.sigmoid_gate = NULL;
    check(ifx_product_steps(t->ref, NULL, &input) == IFX_OK, "%s: input fails on the oracle", what);
    struct mat rounded = mat_copy(&r->x);
    if (!t->exact)
        mat_bf16(&rounded);
    for (uint32_t m = 0; m < p->count; m++) {
        struct ifx_linear one = k.op.linear;
        one.count = 1, one.out[0] = k.op.linear.out[m];
        one.x = p->exact >> m & 1 ? r->x.p : rounded.p;
        one.ws = exact_alloc(t->ref->ops->linear_ws_bytes(t->ref, one.n, one.cols));
        check(t->ref->ops->linear(t->ref, NULL, &one) == IFX_OK, "%s: product fails on the oracle", what);
        free(one.ws);
    }
    check(ifx_product_steps(t->ref, NULL, &end) == IFX_OK, "%s: end fails on the oracle", what);
    mat_free(&rounded);
}

/* Two input values of a column may be rounded to the other side, for their norm is a sum in another order: by 2^-8 of themselves each. */
static void compare(const struct problem *p, struct results *got, struct results *want)
{
    double flips = p->input == PLAIN ? 0 : 2.0 / 256 * 16 / sqrt((double)p->cols);
    bool gates = p->end == END_GATE;
    for (uint32_t m = gates ? 2 : 0; m < p->count && p->end != END_COMBINE; m++) {
        mat_close(&got->y[m], &want->y[m], 1e-4 + (p->exact >> m & 1 ? 0 : flips), 1e-5, what);
        mat_intact(&got->y[m], what);
    }
    if (gates) {
        mat_close(&got->g, &want->g, 1e-4 + 6 * flips, 1e-4, what);
        mat_close(&got->beta, &want->beta, 1e-4 + flips, 1e-4, what);
    }
    if (p->end == END_COMBINE) {
        mat_close(&got->residual, &want->residual, 1e-4 + flips, 1e-5, what);
        mat_intact(&got->residual, what);
    }
    uint32_t wrong = 0;
    for (uint64_t i = 0; i < (uint64_t)p->n * p->cols; i++) {
        float x = want->x.p[i / p->cols * want->x.ld + i % p->cols], g = ifx_bf16_to_f32(got->rounded[i]);
        wrong += !(fabsf(g - x) <= fabsf(x) / 256 + 1e-6f);
    }
    check(wrong == 0, "%s: %u of the rounded inputs are wrong", what, wrong);
}

static void same(const struct problem *p, const struct results *got, const struct results *want)
{
    for (uint32_t m = p->end == END_GATE ? 2 : 0; m < p->count && p->end != END_COMBINE; m++)
        mat_same_bits(&got->y[m], &want->y[m], what);
    if (p->end == END_GATE)
        mat_same_bits(&got->g, &want->g, what), mat_same_bits(&got->beta, &want->beta, what);
    if (p->end == END_COMBINE)
        mat_same_bits(&got->residual, &want->residual, what);
}

/* Whether the device did it. */
static bool product(const struct pair *t, uint64_t *rng)
{
    struct problem p = problem_make(rng);
    uint64_t seed = rng_next(rng);
    struct results got = results_make(&p, seed), want = results_make(&p, seed), alone = results_make(&p, seed);
    struct call k;
    DESCRIBE("%s product n=%u cols=%u count=%u rows=%u exact=%x input=%u end=%u heads=%u", t->name, p.n, p.cols, p.count, p.matrix[0].rows, p.exact,
             p.input, p.end, p.heads);
    call_make(&k, &p, &got, 0, p.n);
    int32_t status = run(t->dev, &k.op);
    check(status == IFX_OK || status == IFX_EUNSUPPORTED, "%s fails: status %d", what, status);
    if (status == IFX_OK) {
        one_by_one(t, &p, &want);
        compare(&p, &got, &want);
        for (uint32_t c = 0; c < p.n && t->dev->ops->product; c++) {
            call_make(&k, &p, &alone, c, 1);
            check(run(t->dev, &k.op) == IFX_OK, "%s fails for one column", what);
        }
        if (t->dev->ops->product)
            same(&p, &alone, &got);
    }
    results_free(&got), results_free(&want), results_free(&alone);
    problem_free(&p);
    return status == IFX_OK;
}

/* ---- router and grouping ---- */

static void route(const struct pair *t, uint64_t *rng)
{
    uint32_t n = 1 + rng_below(rng, 8), experts = 1 + rng_below(rng, rng_below(rng, 4) ? 256 : 1024);
    uint32_t k = 1 + rng_below(rng, experts < 16 ? experts : 16), pairs = n * k, entries = experts < pairs ? experts : pairs, wrong = 0;
    struct mat logits = mat_random(rng, n, experts, experts + rng_below(rng, 3), 2.0f), got = mat_new(n, k, k), want = mat_new(n, k, k);
    int32_t *ids[2] = {exact_alloc(pairs * 4ull), exact_alloc(pairs * 4ull)};
    uint32_t *made[2][3];
    const void **table = exact_alloc(experts * sizeof *table), **records[2];
    struct ifx_router r = {.n = n, .experts = experts, .top_k = k, .renormalise = rng_below(rng, 2), .logits = logits.p, .ldl = logits.ld};
    struct ifx_group g = {.n = n, .top_k = k, .experts = experts, .n_entries = entries, .table = table};
    for (uint32_t e = 0; e < experts; e++)
        table[e] = rng_below(rng, 5) ? (const void *)(uintptr_t)(4096 * (e + 1)) : NULL;
    DESCRIBE("%s route n=%u top_k=%u experts=%u", t->name, n, k, experts);
    for (uint32_t i = 0; i < 2; i++) {
        const uint64_t sizes[3] = {experts + 1, pairs, entries};
        struct ifx_device *dev = i ? t->ref : t->dev;
        for (uint32_t j = 0; j < 3; j++)
            made[i][j] = exact_alloc(sizes[j] * 4);
        records[i] = exact_alloc(entries * sizeof **records);
        r.ids = ids[i], r.weights = i ? want.p : got.p;
        g.ids = r.ids, g.offsets = made[i][0], g.rows = made[i][1], g.entries = made[i][2], g.records = records[i];
        g.ws = exact_alloc(dev->ops->group_ws_bytes(dev, n, k, experts));
        int32_t status = i ? dev->ops->router(dev, NULL, &r) : dev->ops->route(dev, NULL, &r, &g);
        if (i && !status)
            status = dev->ops->group(dev, NULL, &g);
        check(status == IFX_OK, "%s fails: status %d", what, status);
        free(g.ws);
    }
    wrong += memcmp(ids[0], ids[1], pairs * 4ull) != 0;
    wrong += memcmp(made[0][0], made[1][0], (experts + 1) * 4ull) != 0;
    wrong += memcmp(made[0][1], made[1][1], pairs * 4ull) != 0;
    wrong += memcmp(made[0][2], made[1][2], entries * 4ull) != 0;
    wrong += memcmp(records[0], records[1], entries * sizeof **records) != 0;
    check(wrong == 0, "%s: %u arrays are wrong", what, wrong);
    mat_close(&got, &want, 1e-6, 1e-5, what);
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t j = 0; j < 3; j++)
            free(made[i][j]);
        free(records[i]), free(ids[i]);
    }
    free(table);
    mat_free(&logits), mat_free(&got), mat_free(&want);
}

void test_product(const struct pair *t, uint32_t rounds)
{
    uint64_t rng = 77 + t->seed;
    uint32_t done = 0;
    for (uint32_t i = 0; i < rounds; i++)
        done += product(t, &rng);
    check(done > rounds / 2, "%s did %u of %u products in one", t->name, done, rounds);
    for (uint32_t i = 0; i < rounds && t->dev->ops->route; i++)
        route(t, &rng);
}
