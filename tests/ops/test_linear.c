/* SPDX-License-Identifier: Apache-2.0
 *
 * test_linear.c - matrix products of a device against the oracle: random and ragged shapes, every weight format, several
 * matrices at once, strides, accumulation, and the promise that a narrow column depends on itself alone.
 */
#include "optest.h"

#include <stdio.h>
#include <stdlib.h>

static const uint32_t counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 64, 65, 100, 257, 300};

/* What float32 sums of k products of about one may be off by: a rounding each, of a partial sum of up to some sqrt(k). */
static double sums(uint32_t k)
{
    return 2e-7 * k + 1e-5;
}

struct problem {
    uint32_t n, cols, count, flags;
    struct mat x, y[IFX_LINEAR_MAX];
    struct ifx_weight w[IFX_LINEAR_MAX];
    uint32_t accumulate[IFX_LINEAR_MAX];
};

static uint32_t pick_size(uint64_t *rng, uint32_t limit)
{
    static const uint32_t nice[] = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513};
    uint32_t s = rng_below(rng, 2) ? nice[rng_below(rng, 20)] : 1 + rng_below(rng, limit);
    return s < limit ? s : limit;
}

static void problem_make(struct problem *p, uint64_t *rng, uint32_t n, bool rounded)
{
    static const uint32_t dtypes[] = {IFX_BF16, IFX_BF16, IFX_BF16, IFX_F32, IFX_W8G32};
    p->n = n;
    p->cols = pick_size(rng, n > 64 ? 700 : 1300);
    p->count = rng_below(rng, 3) ? 1 : 1 + rng_below(rng, IFX_LINEAR_MAX);
    p->flags = rng_below(rng, 4) == 0 ? IFX_LINEAR_F32 : 0;
    p->x = mat_random(rng, n, p->cols, p->cols + rng_below(rng, 3) * 7, 1.0f);
    if (rounded)
        mat_bf16(&p->x);
    for (uint32_t m = 0; m < p->count; m++) {
        p->w[m] = weight_random(rng, dtypes[rng_below(rng, 5)], pick_size(rng, n > 64 ? 150 : 300), p->cols, 1.0f);
        p->accumulate[m] = rng_below(rng, 2);
        p->y[m] = mat_random(rng, n, p->w[m].rows, p->w[m].rows + rng_below(rng, 2) * 5, 1.0f);
    }
}

static void problem_free(struct problem *p)
{
    mat_free(&p->x);
    for (uint32_t m = 0; m < p->count; m++) {
        mat_free(&p->y[m]);
        weight_free(&p->w[m]);
    }
}

/* Runs columns [c0, c0 + n) into y. */
static void run(struct ifx_device *dev, const struct problem *p, uint32_t c0, uint32_t n, struct mat *y)
{
    struct ifx_linear op = {.n = n, .cols = p->cols, .count = p->count, .flags = p->flags};
    op.x = p->x.p + c0 * p->x.ld;
    op.ldx = p->x.ld;
    for (uint32_t m = 0; m < p->count; m++) {
        op.out[m].w = p->w[m];
        op.out[m].y = y[m].p + c0 * y[m].ld;
        op.out[m].ldy = y[m].ld;
        op.out[m].accumulate = p->accumulate[m];
    }
    op.ws = exact_alloc(dev->ops->linear_ws_bytes(dev, n, p->cols));
    int32_t status = dev->ops->linear(dev, NULL, &op);
    free(op.ws);
    check(status == IFX_OK, "linear of %u columns: status %d", n, status);
}

static void copies(const struct problem *p, struct mat *y)
{
    for (uint32_t m = 0; m < p->count; m++)
        y[m] = mat_copy(&p->y[m]);
}

/* Int8 weights may be rounded to bf16 for a bf16 unit: each product is then off by 2^-8 of itself at most. */
static void within_rounding(const struct pair *t, const struct problem *p, uint32_t m, struct mat *got,
                            const struct mat *want, const char *what)
{
    struct problem a = *p;
    a.count = 1;
    a.accumulate[0] = 0;
    a.x = mat_copy(&p->x);
    for (uint64_t i = 0; i < p->n * a.x.ld; i++)
        a.x.p[i] = fabsf(a.x.p[i]);
    a.w[0] = p->w[m];
    uint64_t codes = (uint64_t)a.w[0].rows * (((uint64_t)p->cols + 31) / 32) * 32;
    int8_t *data = exact_alloc(codes);
    for (uint64_t i = 0; i < codes; i++)
        data[i] = (int8_t)abs(((const int8_t *)p->w[m].data)[i]);
    a.w[0].data = data;
    struct mat bound = mat_new(p->n, a.w[0].rows, a.w[0].rows);
    run(t->ref, &a, 0, p->n, &bound);
    for (uint64_t c = 0; c < p->n; c++)
        for (uint64_t r = 0; r < bound.width; r++) {
            double g = got->p[c * got->ld + r], w = want->p[c * want->ld + r], b = bound.p[c * bound.ld + r] / 256;
            check(fabs(g - w) <= b + sums(p->cols), "%s: [%llu, %llu] expected %.9g, got %.9g (allowed %g)", what,
                  (unsigned long long)c, (unsigned long long)r, w, g, b);
        }
    free(data);
    mat_free(&bound);
    mat_free(&a.x);
}

static void against_ref(const struct pair *t, uint64_t *rng, uint32_t n)
{
    struct problem p;
    struct mat got[IFX_LINEAR_MAX], want[IFX_LINEAR_MAX];
    problem_make(&p, rng, n, true);
    copies(&p, got);
    copies(&p, want);
    run(t->dev, &p, 0, n, got);
    run(t->ref, &p, 0, n, want);
    for (uint32_t m = 0; m < p.count; m++) {
        char what[160];
        snprintf(what, sizeof what, "%s linear n=%u cols=%u rows=%u dtype=%u flags=%u acc=%u", t->name, n, p.cols,
                 p.w[m].rows, p.w[m].dtype, p.flags, p.accumulate[m]);
        /* Inputs are bf16 already: what differs is the order of the sums. */
        if (p.w[m].dtype == IFX_W8G32 && n > 8 && !(p.flags & IFX_LINEAR_F32))
            within_rounding(t, &p, m, &got[m], &want[m], what);
        else
            mat_close(&got[m], &want[m], sums(p.cols), 0, what);
        mat_intact(&got[m], what);
        mat_free(&got[m]);
        mat_free(&want[m]);
    }
    problem_free(&p);
}

/* Inputs are rounded to bf16, unless the flag says not to: the oracle sees inputs rounded by the test. */
static void rounding(const struct pair *t, uint64_t *rng, uint32_t n, uint32_t flags)
{
    struct problem p, rounded;
    problem_make(&p, rng, n, false);
    p.flags = flags;
    rounded = p;
    rounded.x = mat_copy(&p.x);
    if (!flags)
        mat_bf16(&rounded.x);
    struct mat got[IFX_LINEAR_MAX], want[IFX_LINEAR_MAX];
    copies(&p, got);
    copies(&p, want);
    run(t->dev, &p, 0, n, got);
    run(t->ref, &rounded, 0, n, want);
    for (uint32_t m = 0; m < p.count; m++) {
        char what[120];
        snprintf(what, sizeof what, "%s linear of %s inputs, n=%u cols=%u dtype=%u", t->name,
                 flags ? "unrounded" : "rounded", n, p.cols, p.w[m].dtype);
        if (p.w[m].dtype != IFX_W8G32 || n <= 8)
            mat_close(&got[m], &want[m], sums(p.cols), 0, what);
        mat_free(&got[m]);
        mat_free(&want[m]);
    }
    mat_free(&rounded.x);
    problem_free(&p);
}

/* n <= 8: together, alone, or in any part, a column has the same bits. */
static void narrow_columns(const struct pair *t, uint64_t *rng, uint32_t n)
{
    struct problem p;
    struct mat all[IFX_LINEAR_MAX], alone[IFX_LINEAR_MAX];
    problem_make(&p, rng, n, false);
    copies(&p, all);
    copies(&p, alone);
    run(t->dev, &p, 0, n, all);
    uint32_t cut = 1 + rng_below(rng, n);
    for (uint32_t c = 0; c < n; c += cut)
        run(t->dev, &p, c, n - c < cut ? n - c : cut, alone);
    for (uint32_t m = 0; m < p.count; m++) {
        char what[120];
        snprintf(what, sizeof what, "%s linear: %u columns at once and by %u, dtype=%u cols=%u", t->name, n, cut,
                 p.w[m].dtype, p.cols);
        mat_same_bits(&alone[m], &all[m], what);
        mat_free(&all[m]);
        mat_free(&alone[m]);
    }
    problem_free(&p);
}

/* n <= 8 and bf16 weights: the canonical order of numerics.h, so the bits of every instruction set. */
static void canonical(const struct pair *t, uint64_t *rng, uint32_t n)
{
    uint32_t cols = pick_size(rng, 1000), rows = pick_size(rng, 60);
    struct problem p = {.n = n, .cols = cols, .count = 1};
    p.x = mat_random(rng, n, cols, cols, 1.0f);
    p.w[0] = weight_random(rng, IFX_BF16, rows, cols, 1.0f);
    p.y[0] = mat_new(n, rows, rows);
    struct mat want = mat_new(n, rows, rows);
    float *w = exact_alloc(cols * sizeof *w);
    uint16_t *x = exact_alloc(cols * sizeof *x);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < n; c++) {
            for (uint32_t k = 0; k < cols; k++) {
                w[k] = ifx_bf16_to_f32(((const uint16_t *)p.w[0].data)[(uint64_t)r * cols + k]);
                x[k] = ifx_f32_to_bf16(p.x.p[c * p.x.ld + k]);
            }
            want.p[c * rows + r] = ifx_canonical_dot(w, x, cols);
        }
    run(t->dev, &p, 0, n, p.y);
    mat_same_bits(&p.y[0], &want, "linear in the canonical order");
    free(w);
    free(x);
    mat_free(&want);
    problem_free(&p);
}

void test_linear(const struct pair *t)
{
    uint64_t rng = t->seed + 1;
    uint32_t n_counts = sizeof counts / sizeof *counts;
    for (uint32_t round = 0; round < 12; round++)
        for (uint32_t i = 0; i < n_counts; i++)
            if (counts[i] <= 65 || round < 3)
                against_ref(t, &rng, counts[i]);
    for (uint32_t i = 0; i < n_counts; i++) {
        rounding(t, &rng, counts[i], 0);
        rounding(t, &rng, counts[i], IFX_LINEAR_F32);
    }
    for (uint32_t n = 1; n <= 8; n++)
        for (uint32_t round = 0; round < 8; round++) {
            narrow_columns(t, &rng, n);
            if (!t->any_order)
                canonical(t, &rng, n);
        }
}
