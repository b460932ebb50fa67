/* SPDX-License-Identifier: Apache-2.0
 *
 * test_streams.c - residuals of several streams, and block selection: goldens, and random shapes against the oracle.
 */
#include "optest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char what[200];
#define DESCRIBE(...) snprintf(what, sizeof what, __VA_ARGS__)

static void finish(struct mat *got, struct mat *want, double absolute, double relative)
{
    mat_close(got, want, absolute, relative, what);
    mat_intact(got, what);
    mat_free(got);
    mat_free(want);
}

static struct mat view(const float *data, uint64_t rows, uint64_t width)
{
    struct mat m = mat_new(rows, width, width);
    memcpy(m.p, data, rows * width * sizeof(float));
    return m;
}

/* ---- streams ---- */

static void activate(const struct pair *t, uint64_t *rng)
{
    uint32_t n = 1 + rng_below(rng, 20), width = 1 + rng_below(rng, 300), act = rng_below(rng, 2), in_place = rng_below(rng, 2);
    struct mat x = mat_random(rng, n, width, width + 2, 5.0f), want = mat_new(n, width, width);
    struct mat got = in_place ? mat_copy(&x) : mat_new(n, width, width + 1);
    struct ifx_activate op = {.n = n, .width = width, .act = act, .scale = 0.25f, .x = x.p, .ldx = x.ld, .y = want.p,
                              .ldy = want.ld};
    t->ref->ops->activate(t->ref, NULL, &op);
    op.x = in_place ? got.p : x.p;
    op.y = got.p, op.ldy = got.ld;
    t->dev->ops->activate(t->dev, NULL, &op);
    DESCRIBE("%s activate n=%u width=%u act=%u in place=%u", t->name, n, width, act, in_place);
    finish(&got, &want, 1e-6, 2e-6);
    mat_free(&x);
}

static void mix(const struct pair *t, uint64_t *rng)
{
    uint32_t n = 1 + rng_below(rng, 9), streams = 1 + rng_below(rng, 8), width = 1 + rng_below(rng, 200), all = streams * width;
    struct mat x = mat_random(rng, n, all, all + 3, 2.0f), gate = mat_random(rng, n, all, all + 1, 4.0f);
    struct mat got = mat_new(n, width, width + 5), want = mat_new(n, width, width);
    struct ifx_stream_mix op = {.n = n, .streams = streams, .width = width, .x = x.p, .gate = gate.p, .ldx = x.ld,
                                .ldg = gate.ld, .y = want.p, .ldy = want.ld};
    t->ref->ops->stream_mix(t->ref, NULL, &op);
    op.y = got.p, op.ldy = got.ld;
    t->dev->ops->stream_mix(t->dev, NULL, &op);
    DESCRIBE("%s stream_mix n=%u streams=%u width=%u", t->name, n, streams, width);
    finish(&got, &want, 1e-6, 2e-6);
    mat_free(&x);
    mat_free(&gate);
}

static void inject(const struct pair *t, uint64_t *rng)
{
    uint32_t n = 1 + rng_below(rng, 9), streams = 1 + rng_below(rng, 8), width = 1 + rng_below(rng, 200), all = streams * width;
    struct mat x = mat_random(rng, n, width, width + 3, 2.0f), weight = mat_random(rng, n, streams, streams + 1, 4.0f);
    struct mat got = mat_random(rng, n, all, all + 1, 2.0f), want = mat_copy(&got);
    struct ifx_stream_inject op = {.n = n, .streams = streams, .width = width, .scale = 0.25f, .x = x.p, .ldx = x.ld,
                                   .inject = weight.p, .ldi = weight.ld, .y = want.p, .ldy = want.ld};
    t->ref->ops->stream_inject(t->ref, NULL, &op);
    op.y = got.p;
    t->dev->ops->stream_inject(t->dev, NULL, &op);
    DESCRIBE("%s stream_inject n=%u streams=%u width=%u", t->name, n, streams, width);
    finish(&got, &want, 2e-6, 2e-6);
    mat_free(&x);
    mat_free(&weight);
}

static void gate(const struct pair *t, uint64_t *rng)
{
    uint32_t n = 1 + rng_below(rng, 9), streams = 1 + rng_below(rng, 8), width = 1 + rng_below(rng, 200), all = streams * width;
    float scale = rng_below(rng, 4) ? 1.0f : 1e-5f; /* small products meet the floor under the root */
    struct mat key = mat_random(rng, n, all, all + 3, scale), query = mat_random(rng, n, all, all + 1, 1.0f);
    struct mat value = mat_random(rng, n, width, width + 2, 2.0f), got = mat_new(n, all, all + 7), want = mat_new(n, all, all);
    if (rng_below(rng, 3) == 0)
        memset(key.p, 0, width * sizeof(float)); /* a product of exactly zero has no sign */
    struct ifx_stream_gate op = {.n = n, .streams = streams, .width = width, .key = key.p, .query = query.p, .ldk = key.ld,
                                 .ldq = query.ld, .value = value.p, .ldv = value.ld, .y = want.p, .ldy = want.ld};
    t->ref->ops->stream_gate(t->ref, NULL, &op);
    op.y = got.p, op.ldy = got.ld;
    t->dev->ops->stream_gate(t->dev, NULL, &op);
    DESCRIBE("%s stream_gate n=%u streams=%u width=%u scale=%g", t->name, n, streams, width, (double)scale);
    /* sign(g) sqrt|g| is steep at zero: an error of 1e-6 in g moves it by up to 1e-3, where |g| is above the floor */
    finish(&got, &want, scale < 1e-3f ? 2e-6 : 3e-4, 2e-6);
    mat_free(&key);
    mat_free(&query);
    mat_free(&value);
}

/* ---- the golden hyper-connection: mix, block, inject ---- */

static void product(const struct pair *t, const float *w, uint32_t rows, uint32_t cols, const float *x, uint32_t n, float *y)
{
    struct ifx_linear op = {.n = n, .cols = cols, .count = 1, .flags = IFX_LINEAR_F32, .x = x, .ldx = cols};
    op.out[0].w = (struct ifx_weight){.dtype = IFX_F32, .rows = rows, .cols = cols, .data = w};
    op.out[0].y = y, op.out[0].ldy = rows;
    op.ws = exact_alloc(t->dev->ops->linear_ws_bytes(t->dev, n, cols));
    t->dev->ops->linear(t->dev, NULL, &op);
    free(op.ws);
}

static void golden_hyper(const struct pair *t, const struct golden *g)
{
    enum { N = 5, S = 4, H = 16, A = S * H, R = 8 };
    double tol = t->exact ? 2e-6 : 1e-5;
    const struct ifx_device_ops *ops = t->dev->ops;
    struct mat normed = mat_new(N, A, A), low = mat_new(N, R, R), m = mat_new(N, A, A), in = mat_new(N, H, H), c = mat_new(N, S, S);
    struct ifx_rms_norm norm = {.rows = N * S, .width = H, .w_rows = S, .x = golden_f32(g, "hyper.x", NULL), .ldx = H,
                                .w = golden_f32(g, "hyper.hc_norm", NULL), .plus_one = 1,
                                .eps = golden_f32(g, "hyper.eps", NULL)[0], .y = normed.p, .ldy = H};
    ops->rms_norm(t->dev, NULL, &norm);
    product(t, golden_f32(g, "hyper.input_mix_weight_down", NULL), R, A, normed.p, N, low.p);
    struct ifx_activate act = {.n = N, .width = R, .act = IFX_ACT_SILU, .scale = 1.0f / S, .x = low.p, .ldx = R, .y = low.p,
                               .ldy = R};
    ops->activate(t->dev, NULL, &act);
    product(t, golden_f32(g, "hyper.input_mix_weight_up", NULL), A, R, low.p, N, m.p);
    struct ifx_stream_mix mixed = {.n = N, .streams = S, .width = H, .x = normed.p, .gate = m.p, .ldx = A, .ldg = A, .y = in.p,
                                   .ldy = H};
    ops->stream_mix(t->dev, NULL, &mixed);
    struct mat want = view(golden_f32(g, "hyper.mixed_input", NULL), N, H);
    DESCRIBE("%s, golden hyper.mixed_input", t->name);
    finish(&in, &want, tol, tol);
    product(t, golden_f32(g, "hyper.block_inject_weight", NULL), S, A, normed.p, N, c.p);
    struct mat r = view(golden_f32(g, "hyper.x", NULL), N, A);
    struct ifx_stream_inject add = {.n = N, .streams = S, .width = H, .scale = 1.0f / S, .inject = c.p, .ldi = S,
                                    .x = golden_f32(g, "hyper.block_out", NULL), .ldx = H, .y = r.p, .ldy = A};
    ops->stream_inject(t->dev, NULL, &add);
    want = view(golden_f32(g, "hyper.next", NULL), N, A);
    DESCRIBE("%s, golden hyper.next", t->name);
    finish(&r, &want, tol, tol);
    mat_free(&normed);
    mat_free(&low);
    mat_free(&m);
    mat_free(&c);
}

/* ---- block selection ---- */

enum { PAGE = 16, MAX_PAGES = 40 };

struct plane {
    struct ifx_index_plane p;
    void *pages[MAX_PAGES];
};

static void plane_open(struct plane *pl, const struct pair *t, uint32_t tokens, uint32_t ratio, uint32_t d, uint64_t offset)
{
    uint64_t bytes = offset + ifx_index_plane_bytes(PAGE, ratio, d, t->exact ? 4 : 2);
    for (uint32_t i = 0; i < MAX_PAGES; i++)
        pl->pages[i] = i * PAGE < tokens ? exact_alloc(bytes) : NULL;
    pl->p = (struct ifx_index_plane){.pages = pl->pages, .offset = offset, .page_tokens = PAGE, .ratio = ratio, .d = d};
}

static void plane_close(struct plane *pl)
{
    for (uint32_t i = 0; i < MAX_PAGES; i++)
        free(pl->pages[i]);
}

static const float *stored_block(const struct plane *pl, const struct pair *t, uint32_t block)
{
    uint32_t each = PAGE / pl->p.ratio;
    const uint8_t *at = (const uint8_t *)pl->pages[block / each] + pl->p.offset;
    return (const float *)(const void *)(at + ifx_index_raw_bytes(PAGE, pl->p.d, t->exact ? 4 : 2)) + block % each * pl->p.d;
}

/* Appends in pieces of random size, so that blocks and pages are cut everywhere. */
static void append(const struct pair *t, uint64_t *rng, struct ifx_index_append op, uint32_t tokens)
{
    const float *k = op.k;
    for (uint32_t at = 0; at < tokens; at += op.n) {
        int32_t positions[16];
        op.n = 1 + rng_below(rng, 16);
        op.n = op.n < tokens - at ? op.n : tokens - at;
        for (uint32_t i = 0; i < op.n; i++)
            positions[i] = (int32_t)(at + i);
        op.positions = positions;
        op.k = k + at * op.ldk;
        check(t->dev->ops->index_append(t->dev, NULL, &op) == 0, "%s index_append fails", t->name);
    }
}

struct ranked {
    double score;
    int32_t block;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->score != y->score)
        return x->score < y->score ? 1 : -1;
    return x->block - y->block;
}

static int by_block(const void *a, const void *b)
{
    return ((const struct ranked *)a)->block - ((const struct ranked *)b)->block;
}

/* Selection from the keys that are stored, by sorting; *margin: between the last chosen and the first not. */
static uint32_t naive(const struct plane *pl, const struct pair *t, const struct ifx_block_select *op, uint32_t query, int32_t *rows,
                      double *margin)
{
    struct ranked r[MAX_PAGES * PAGE];
    uint32_t visible = (uint32_t)op->positions[query] + 1, ratio = pl->p.ratio, blocks = visible / ratio, n = 0;
    uint32_t keep = op->budget / ratio < blocks ? op->budget / ratio : blocks;
    for (uint32_t b = 0; b < blocks; b++) {
        double s = 0;
        for (uint32_t h = 0; h < op->heads; h++) {
            double dot = 0;
            for (uint32_t i = 0; i < pl->p.d; i++)
                dot += (double)op->q[query * op->ldq + h * pl->p.d + i] * stored_block(pl, t, b)[i];
            s += dot > 0 ? dot : 0;
        }
        r[b] = (struct ranked){s / sqrt(pl->p.d), (int32_t)b};
    }
    qsort(r, blocks, sizeof *r, by_rank);
    *margin = keep < blocks ? r[keep - 1].score - r[keep].score : 1e9;
    if (keep < blocks && r[keep].score == 0 && r[keep - 1].score == 0)
        *margin = 1e9; /* an exact tie, by the rule */
    qsort(r, keep, sizeof *r, by_block);
    for (uint32_t b = 0; b < keep; b++)
        for (uint32_t i = 0; i < ratio; i++)
            rows[n++] = r[b].block * (int32_t)ratio + (int32_t)i;
    for (uint32_t i = blocks * ratio; i < visible; i++)
        rows[n++] = (int32_t)i;
    return n;
}

static void selection(const struct pair *t, uint64_t *rng)
{
    static const uint32_t ratios[] = {1, 2, 4, 8, 16};
    uint32_t tokens = 1 + rng_below(rng, MAX_PAGES * PAGE), ratio = ratios[rng_below(rng, 5)], d = 4 * (1 + rng_below(rng, 40));
    uint32_t heads = 1 + rng_below(rng, 5), budget = ratio * (1 + rng_below(rng, 12)), n = 1 + rng_below(rng, 20);
    n = n < tokens ? n : tokens;
    struct plane pl;
    plane_open(&pl, t, tokens, ratio, d, 64 * rng_below(rng, 3));
    struct mat k = mat_random(rng, tokens, d, d + 3, 1.0f), w = mat_random(rng, 1, d, d, 0.3f), q = mat_random(rng, n, heads * d, heads * d + 5, 1.0f);
    struct mat freq = mat_random(rng, 1, d / 2, d / 2, 0.3f);
    if (rng_below(rng, 3) == 0) /* the block's mean points away from every query: scores of zero, ties everywhere */
        for (uint64_t i = 0; i < n * q.ld; i++)
            q.p[i] = q.p[i] == q.p[i] ? 0.0f : q.p[i];
    append(t, rng, (struct ifx_index_append){.rotary = d / 2 / 2 * 2, .plane = pl.p, .k = k.p, .ldk = k.ld, .w = w.p,
                                             .inv_freq = freq.p, .eps = 1e-6f}, tokens);
    int32_t positions[20], want[MAX_PAGES * PAGE];
    for (uint32_t i = 0; i < n; i++)
        positions[i] = (int32_t)(tokens - n + i);
    uint32_t ld = budget + ratio, n_rows[20];
    int32_t *rows = exact_alloc(n * (uint64_t)ld * sizeof *rows);
    struct ifx_block_select op = {.n = n, .heads = heads, .budget = budget, .max_tokens = tokens, .plane = pl.p,
                                  .positions = positions, .q = q.p, .ldq = q.ld, .rows = rows, .ld_rows = ld, .n_rows = n_rows};
    op.ws = exact_alloc(t->dev->ops->block_select_ws_bytes(t->dev, &op));
    DESCRIBE("%s block_select tokens=%u ratio=%u d=%u heads=%u budget=%u n=%u", t->name, tokens, ratio, d, heads, budget, n);
    check(t->dev->ops->block_select(t->dev, NULL, &op) == 0, "%s fails", what);
    for (uint32_t i = 0; i < n; i++) {
        double margin;
        uint32_t count = naive(&pl, t, &op, i, want, &margin);
        if (margin > 1e-5)
            check(n_rows[i] == count && memcmp(want, rows + i * (uint64_t)ld, count * sizeof *want) == 0,
                  "%s: query %u does not see the tokens of the best blocks (%u rows, expected %u)", what, i, n_rows[i], count);
        check(n_rows[i] == count, "%s: query %u has %u rows, expected %u", what, i, n_rows[i], count);
    }
    free(op.ws);
    free(rows);
    mat_free(&k);
    mat_free(&w);
    mat_free(&q);
    mat_free(&freq);
    plane_close(&pl);
}

/* The golden's keys and queries are float32: `cpu` rounds the keys to bf16, so its rows are compared where the margin is clear. */
static void golden_selection(const struct pair *t, const struct golden *g)
{
    enum { N = 45, D = 16, HEADS = 8, BLOCKS = 11, LD = 19 };
    const float *k = golden_f32(g, "qsa.k", NULL), *margin = golden_f32(g, "qsa.margin", NULL);
    const int32_t *want = golden_i32(g, "qsa.tokens", NULL);
    uint32_t rotary = (uint32_t)golden_i32(g, "qsa.rotary_dim", NULL)[0], ratio = (uint32_t)golden_i32(g, "qsa.ratio", NULL)[0];
    float freq[D], eps = golden_f32(g, "qsa.eps", NULL)[0];
    int32_t positions[N], rows[N * LD];
    uint32_t n_rows[N];
    uint64_t rng = t->seed + 5;
    for (uint32_t i = 0; i < rotary / 2; i++)
        freq[i] = 1.0f / powf(golden_f32(g, "qsa.theta", NULL)[0], (float)(2 * i) / (float)rotary);
    for (int32_t i = 0; i < N; i++)
        positions[i] = i;
    struct plane pl;
    plane_open(&pl, t, N, ratio, D, 64);
    append(t, &rng, (struct ifx_index_append){.rotary = rotary, .plane = pl.p, .k = k, .ldk = D, .eps = eps, .inv_freq = freq,
                                              .w = golden_f32(g, "qsa.k_layernorm", NULL)}, N);
    double tol = t->exact ? 1e-5 : 2e-2;
    for (uint32_t b = 0; b < BLOCKS; b++) {
        struct mat got = view(stored_block(&pl, t, b), 1, D), keys = view(golden_f32(g, "qsa.block_keys", NULL) + b * D, 1, D);
        DESCRIBE("%s, golden qsa.block_keys, block %u", t->name, b);
        finish(&got, &keys, tol, tol);
    }
    struct mat q = view(golden_f32(g, "qsa.q", NULL), N, HEADS * D);
    struct ifx_norm_rope rope = {.n = N, .heads = HEADS, .d = D, .rotary = rotary, .x = q.p, .ldx = q.ld, .ldx_head = D, .eps = eps,
                                 .w = golden_f32(g, "qsa.q_layernorm", NULL), .inv_freq = freq, .positions = positions, .y = q.p,
                                 .ldy = q.ld, .ldy_head = D};
    t->dev->ops->norm_rope(t->dev, NULL, &rope);
    struct ifx_block_select op = {.n = N, .heads = HEADS, .budget = (uint32_t)golden_i32(g, "qsa.budget", NULL)[0], .max_tokens = N,
                                  .plane = pl.p, .positions = positions, .q = q.p, .ldq = q.ld, .rows = rows, .ld_rows = LD,
                                  .n_rows = n_rows};
    op.ws = exact_alloc(t->dev->ops->block_select_ws_bytes(t->dev, &op));
    check(t->dev->ops->block_select(t->dev, NULL, &op) == 0, "%s, golden qsa: block_select fails", t->name);
    uint32_t compared = 0;
    for (uint32_t i = 0; i < N; i++) {
        uint32_t count = 0;
        while (count < LD && want[i * LD + count] >= 0)
            count++;
        if (margin[i] >= 0 && margin[i] < (t->exact ? 1e-3f : 5e-2f))
            continue;
        compared++;
        check(n_rows[i] == count && memcmp(rows + i * LD, want + i * LD, count * sizeof *rows) == 0,
              "%s, golden qsa.tokens: query %u sees other tokens (%u, expected %u)", t->name, i, n_rows[i], count);
    }
    check(compared > N / 2, "%s, golden qsa.tokens: only %u queries have a clear margin", t->name, compared);
    free(op.ws);
    mat_free(&q);
    plane_close(&pl);
}

void test_streams(const struct pair *t, const struct golden *g)
{
    uint64_t rng = t->seed + 77;
    golden_hyper(t, g);
    golden_selection(t, g);
    for (uint32_t i = 0; i < 60; i++)
        selection(t, &rng);
    for (uint32_t i = 0; i < 100 && !t->exact; i++) {
        activate(t, &rng);
        mix(t, &rng);
        inject(t, &rng);
        gate(t, &rng);
    }
}
