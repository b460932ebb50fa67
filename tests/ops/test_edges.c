/* SPDX-License-Identifier: Apache-2.0
 *
 * test_edges.c - router ties and NaN, rounding to bf16, infinities, offsets past 2^31, thread counts.
 */
#include "optest.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* ---- router ---- */

static void route(struct ifx_device *dev, uint32_t n, uint32_t experts, uint32_t k, uint32_t renormalise,
                  const float *logits, int32_t *ids, float *weights)
{
    struct ifx_router op = {.n = n, .experts = experts, .top_k = k, .renormalise = renormalise, .logits = logits,
                            .ldl = experts, .ids = ids, .weights = weights};
    check(dev->ops->router(dev, NULL, &op) == IFX_OK, "router fails");
}

static void router_random(const struct pair *t, uint64_t *rng)
{
    uint32_t n = 1 + rng_below(rng, 9), experts = 1 + rng_below(rng, 300), most = experts < 32 ? experts : 32;
    uint32_t k = 1 + rng_below(rng, most), norm = rng_below(rng, 2), levels = rng_below(rng, 2) ? 1000000 : 6;
    struct mat logits = mat_new(n, experts, experts), w1 = mat_new(n, k, k), w2 = mat_new(n, k, k);
    struct mat i1 = mat_new(n, k, k), i2 = mat_new(n, k, k);
    for (uint64_t i = 0; i < (uint64_t)n * experts; i++)
        logits.p[i] = (float)((int32_t)rng_below(rng, levels) - (int32_t)levels / 2) * 8.0f / (float)levels; /* often equal */
    route(t->ref, n, experts, k, norm, logits.p, (int32_t *)i1.p, w1.p);
    route(t->dev, n, experts, k, norm, logits.p, (int32_t *)i2.p, w2.p);
    char what[120];
    snprintf(what, sizeof what, "%s router n=%u experts=%u top_k=%u", t->name, n, experts, k);
    mat_same_bits(&i2, &i1, what);
    mat_close(&w2, &w1, 1e-7, 2e-6, what);
    mat_intact(&w2, what);
    mat_intact(&i2, what);
    mat_free(&logits), mat_free(&w1), mat_free(&w2), mat_free(&i1), mat_free(&i2);
}

static void router_ties(const struct pair *t)
{
    for (uint32_t round = 0; round < 3; round++) {
        uint32_t n = round == 0 ? 1 : round == 1 ? 8 : 300, experts = 64, k = 8;
        float *logits = exact_alloc(n * experts * sizeof *logits), *weights = exact_alloc(n * k * sizeof *weights);
        int32_t *ids = exact_alloc(n * k * sizeof *ids);
        for (uint32_t i = 0; i < n * experts; i++)
            logits[i] = i % experts == 3 || i % experts == 7 ? 5.0f : -(float)(i % experts);
        route(t->dev, n, experts, 1, 1, logits, ids, weights);
        for (uint32_t i = 0; i < n; i++)
            check(ids[i] == 3, "%s router: experts 3 and 7 equal, column %u expected 3, got %d", t->name, i, ids[i]);
        for (uint32_t i = 0; i < n * experts; i++)
            logits[i] = 0.25f;
        route(t->dev, n, experts, k, 0, logits, ids, weights);
        for (uint32_t i = 0; i < n * k; i++) {
            check(ids[i] == (int32_t)(i % k), "%s router: all equal, rank %u expected %u, got %d", t->name, i % k, i % k, ids[i]);
            check(fabsf(weights[i] - 1.0f / 64) < 1e-8f, "%s router: all equal, weight expected 1/64, got %g", t->name,
                  (double)weights[i]);
        }
        free(logits), free(weights), free(ids);
    }
}

/* A NaN or infinite logit must show in the weights, and ids must stay experts that exist, each once. */
static void router_nonfinite(const struct pair *t)
{
    static const float bad[] = {NAN, INFINITY};
    for (uint32_t b = 0; b < 2; b++)
        for (uint32_t at = 0; at < 40; at++) {
            float logits[40], weights[8];
            int32_t ids[8];
            for (uint32_t e = 0; e < 40; e++)
                logits[e] = (float)(e % 11);
            logits[at] = bad[b];
            route(t->dev, 1, 40, 8, 1, logits, ids, weights);
            uint64_t seen = 0;
            uint32_t nan = 0;
            for (uint32_t r = 0; r < 8; r++) {
                check(ids[r] >= 0 && ids[r] < 40 && !(seen >> ids[r] & 1), "%s router with %g: rank %u is %d", t->name,
                      (double)bad[b], r, ids[r]);
                seen |= 1ull << (ids[r] & 63);
                nan += weights[r] != weights[r];
            }
            check(nan > 0, "%s router with %g at %u: no weight is NaN", t->name, (double)bad[b], at);
        }
}

void test_router(const struct pair *t, uint32_t rounds)
{
    uint64_t rng = t->seed + 4;
    for (uint32_t round = 0; round < rounds; round++)
        router_random(t, &rng);
    router_ties(t);
    router_nonfinite(t);
}

/* ---- bf16 ---- */

/* What round-to-nearest-even means, from first principles: the nearer neighbour, or the even one. */
static uint16_t nearest_bf16(float x)
{
    uint16_t down = (uint16_t)(ifx_f32_bits(x) >> 16);
    double low = ifx_bits_f32((uint32_t)down << 16), high = ifx_bits_f32(((uint32_t)down + 1) << 16);
    if (isinf(high))
        high = ldexp(low < 0 ? -1.0 : 1.0, 128);
    double to_low = fabs((double)x - low), to_high = fabs(high - (double)x);
    return to_low < to_high || (to_low == to_high && (down & 1) == 0) ? down : (uint16_t)(down + 1);
}

static void bf16_rounding(const struct pair *t, uint64_t *rng)
{
    enum { N = 3, WIDTH = 1001, LDX = 1010, LDY = 1007 };
    struct mat x = mat_new(N, WIDTH, LDX);
    uint16_t *y = exact_alloc(N * LDY * sizeof *y);
    for (uint32_t i = 0; i < N * LDY; i++)
        y[i] = 0xbeef;
    for (uint32_t r = 0; r < N; r++)
        for (uint32_t i = 0; i < WIDTH; i++) {
            uint32_t u = (uint32_t)rng_next(rng);
            u = i % 3 == 0 ? (u & 0xffff0000u) | 0x8000u : i % 3 == 1 ? (u & 0xffff0000u) | (0x7fff + (i & 3)) : u;
            u = i < 4 ? 0x7f800000u | (uint32_t)(i & 1) << 31 | (i >= 2 ? 1 + (i & 1) : 0) : u; /* infinities, NaN */
            x.p[r * LDX + i] = ifx_bits_f32(i == 5 ? 0x7f7fffffu : u);
        }
    check(t->dev->ops->to_bf16(t->dev, NULL, x.p, LDX, N, WIDTH, y, LDY) == IFX_OK, "to_bf16 fails");
    for (uint32_t r = 0; r < N; r++) {
        for (uint32_t i = 0; i < WIDTH; i++) {
            float v = x.p[r * LDX + i];
            uint16_t got = y[r * LDY + i];
            if (v != v)
                check((got & 0x7fffu) > 0x7f80u, "%s to_bf16: NaN %08x became %04x", t->name, ifx_f32_bits(v), got);
            else
                check(got == (isinf(v) ? ifx_f32_bits(v) >> 16 : nearest_bf16(v)), "%s to_bf16: %08x expected %04x, got %04x",
                      t->name, ifx_f32_bits(v), nearest_bf16(v), got);
        }
        for (uint32_t i = WIDTH; i < LDY; i++)
            check(y[r * LDY + i] == 0xbeef, "%s to_bf16: wrote past its row", t->name);
    }
    free(y);
    mat_free(&x);
}

/* ---- NaN and infinity reach the output of the column that has them, and no other ---- */

static void product_with(const struct pair *t, uint64_t *rng, uint32_t n, float bad)
{
    enum { ROWS = 37, COLS = 83 };
    struct mat x = mat_random(rng, n, COLS, COLS, 1.0f), y = mat_new(n, ROWS, ROWS);
    struct ifx_weight w = weight_random(rng, IFX_BF16, ROWS, COLS, 1.0f);
    uint32_t column = rng_below(rng, n);
    x.p[column * COLS + rng_below(rng, COLS)] = bad;
    struct ifx_linear op = {.n = n, .cols = COLS, .count = 1, .x = x.p, .ldx = COLS};
    op.out[0].w = w, op.out[0].y = y.p, op.out[0].ldy = ROWS;
    op.ws = exact_alloc(t->dev->ops->linear_ws_bytes(t->dev, n, COLS));
    t->dev->ops->linear(t->dev, NULL, &op);
    for (uint32_t c = 0; c < n; c++)
        for (uint32_t r = 0; r < ROWS; r++)
            check(!isfinite(y.p[c * ROWS + r]) == (c == column), "%s linear n=%u with %g in column %u: column %u row %u is %g",
                  t->name, n, (double)bad, column, c, r, (double)y.p[c * ROWS + r]);
    free(op.ws);
    weight_free(&w);
    mat_free(&x), mat_free(&y);
}

/* Activations a thousand times larger than usual stay finite in everything that has an exponential. */
static void large_values(const struct pair *t, uint64_t *rng)
{
    struct mat x = mat_random(rng, 4, 100, 100, 1e3f), z = mat_random(rng, 4, 100, 100, 1e3f), y = mat_new(4, 100, 100);
    struct mat w = mat_random(rng, 1, 100, 100, 1.0f);
    struct ifx_swiglu s = {.n = 4, .width = 100, .gate = x.p, .up = z.p, .ldg = 100, .ldu = 100, .y = y.p, .ldy = 100};
    t->dev->ops->swiglu(t->dev, NULL, &s);
    uint32_t finite = 0;
    for (uint32_t i = 0; i < 400; i++)
        finite += isfinite(y.p[i]) != 0;
    struct ifx_gated_norm g = {.n = 4, .heads = 1, .width = 100, .x = x.p, .z = z.p, .w = w.p, .ldx = 100, .ldz = 100,
                               .eps = 1e-6f, .y = y.p, .ldy = 100};
    t->dev->ops->gated_norm(t->dev, NULL, &g);
    for (uint32_t i = 0; i < 400; i++)
        finite += isfinite(y.p[i]) != 0;
    check(finite == 800, "%s: %u of 800 outputs of large inputs are finite", t->name, finite);
    mat_free(&x), mat_free(&z), mat_free(&y), mat_free(&w);
}

void test_edges(const struct pair *t)
{
    uint64_t rng = 5;
    static const uint32_t n[] = {1, 3, 8, 9, 40};
    for (uint32_t round = 0; round < 3; round++)
        bf16_rounding(t, &rng);
    for (uint32_t i = 0; i < 5; i++) {
        product_with(t, &rng, n[i], NAN);
        product_with(t, &rng, n[i], INFINITY);
    }
    large_values(t, &rng);
}

/* ---- offsets past 2^31 elements: address space is reserved, only the ends are touched ---- */

void test_wide_offsets(const struct pair *t)
{
    uint64_t bytes = 20ull << 30, ld = 2200000000ull; /* 2 rows, 8.8 GB apart */
    float *x = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (x == MAP_FAILED) {
        printf("offsets past 2^31: skipped, no address space\n");
        return;
    }
    static const float w[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    float *y = x + 64;
    for (uint32_t i = 0; i < 8; i++)
        x[i] = x[ld + i] = (float)(i + 1);
    struct ifx_rms_norm norm = {.rows = 2, .width = 8, .w_rows = 1, .x = x, .ldx = ld, .w = w, .y = y, .ldy = ld};
    t->dev->ops->rms_norm(t->dev, NULL, &norm);
    check(y[0] > 0 && y[ld] == y[0] && y[ld + 7] == y[7], "%s rms_norm, rows 2^31 apart: expected %g, got %g", t->name,
          (double)y[0], (double)y[ld]);
    struct ifx_linear op = {.n = 2, .cols = 8, .count = 1, .x = x, .ldx = ld};
    op.out[0].w = (struct ifx_weight){.dtype = IFX_F32, .rows = 1, .cols = 8, .data = w};
    op.out[0].y = y, op.out[0].ldy = ld;
    op.ws = exact_alloc(t->dev->ops->linear_ws_bytes(t->dev, 2, 8));
    t->dev->ops->linear(t->dev, NULL, &op);
    free(op.ws);
    check(y[0] == 36.0f && y[ld] == 36.0f, "%s linear, columns 2^31 apart: expected 36, got %g and %g", t->name, (double)y[0],
          (double)y[ld]);
    /* Row 2^20 + 1 of a matrix of 4096 columns begins past element 2^32. */
    uint16_t *table = (uint16_t *)(void *)x;
    const uint64_t row = (1u << 20) + 1, cols = 4096;
    table[row * cols + 5] = 0x4040; /* 3 */
    struct ifx_weight big = {.dtype = IFX_BF16, .rows = (uint32_t)row + 1, .cols = (uint32_t)cols, .data = table};
    int32_t id = (int32_t)row;
    float *out = exact_alloc(cols * sizeof *out);
    t->dev->ops->embed(t->dev, NULL, &big, &id, 1, out, cols);
    check(out[5] == 3.0f && out[4] == 0.0f, "%s embed of row %d: expected 3, got %g", t->name, id, (double)out[5]);
    free(out);
    munmap(x, bytes);
}

/* ---- thread counts ---- */

struct outputs {
    struct mat y[5];
};

static void compute(struct ifx_device *dev, struct outputs *o)
{
    static const uint32_t n[3] = {1, 7, 150};
    uint64_t rng = 6;
    struct ifx_weight w[2] = {weight_random(&rng, IFX_BF16, 700, 333, 1.0f), weight_random(&rng, IFX_W8G32, 129, 333, 1.0f)};
    for (uint32_t i = 0; i < 3; i++) {
        struct mat x = mat_random(&rng, n[i], 333, 333, 1.0f);
        o->y[i] = mat_new(n[i], 829, 829);
        struct ifx_linear op = {.n = n[i], .cols = 333, .count = 2, .x = x.p, .ldx = 333};
        for (uint32_t m = 0; m < 2; m++)
            op.out[m].w = w[m], op.out[m].y = o->y[i].p + m * 700, op.out[m].ldy = 829;
        op.ws = exact_alloc(dev->ops->linear_ws_bytes(dev, n[i], 333));
        dev->ops->linear(dev, NULL, &op);
        free(op.ws);
        mat_free(&x);
    }
    struct mat q = mat_random(&rng, 200, 256, 256, 1.0f), g = mat_random(&rng, 200, 4, 4, 0.1f);
    for (uint64_t i = 0; i < 800; i++)
        g.p[i] = -fabsf(g.p[i]);
    for (uint32_t i = 3; i < 5; i++) {
        struct mat S = mat_random(&rng, 4, 64 * 64, 64 * 64, 0.1f);
        o->y[i] = mat_new(200, 256, 256);
        struct ifx_gated_delta op = {.n = i == 3 ? 9 : 200, .k_heads = 4, .v_heads = 4, .dk = 64, .dv = 64, .q = q.p,
                                     .k = q.p + 7, .v = q.p, .ldq = 256, .ldk = 248, .ldv = 256, .g = g.p, .beta = g.p,
                                     .state = S.p, .out = o->y[i].p, .ldo = 256};
        op.ws = exact_alloc(dev->ops->gated_delta_ws_bytes(dev, &op));
        dev->ops->gated_delta(dev, NULL, &op);
        free(op.ws);
        mat_free(&S);
    }
    mat_free(&q), mat_free(&g);
    weight_free(&w[0]), weight_free(&w[1]);
}

void test_threads(const char *plugin, uint32_t level)
{
    static const uint32_t counts[] = {1, 2, 3, 7};
    struct outputs first, other;
    for (uint32_t i = 0; i < 4; i++) {
        struct ifx_host *host = minihost_create(counts[i], level);
        struct ifx_device *dev = minihost_open(plugin, host, "cpu");
        if (!check(dev != NULL, "device cpu does not open with %u threads", counts[i]))
            return;
        compute(dev, i == 0 ? &first : &other);
        for (uint32_t j = 0; i > 0 && j < 5; j++) {
            char what[100];
            snprintf(what, sizeof what, "%s, output %u with %u threads and with 1", minihost_level_name(level), j, counts[i]);
            mat_same_bits(&other.y[j], &first.y[j], what);
            mat_free(&other.y[j]);
        }
        dev->ops->close(dev);
        minihost_destroy(host);
    }
    for (uint32_t j = 0; j < 5; j++)
        mat_free(&first.y[j]);
}
