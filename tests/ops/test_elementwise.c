/* SPDX-License-Identifier: Apache-2.0
 *
 * test_elementwise.c - norms, rotary embedding, convolution, gates and the element-wise operations against the oracle.
 */
#include "optest.h"

#include <stdio.h>
#include <stdlib.h>

static char what[200];
#define DESCRIBE(...) snprintf(what, sizeof what, __VA_ARGS__)

static uint32_t pick(uint64_t *rng, uint32_t limit)
{
    static const uint32_t nice[] = {1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 100, 257};
    uint32_t s = rng_below(rng, 2) ? nice[rng_below(rng, 15)] : 1 + rng_below(rng, limit);
    return s < limit ? s : limit;
}

static void finish(struct mat *got, struct mat *want, double absolute, double relative)
{
    mat_close(got, want, absolute, relative, what);
    mat_intact(got, what);
    mat_free(got);
    mat_free(want);
}

static void rms_norm(const struct pair *t, uint64_t *rng)
{
    uint32_t rows = pick(rng, 40), width = pick(rng, 700), w_rows = 1 + rng_below(rng, 4), in_place = rng_below(rng, 2);
    struct mat x = mat_random(rng, rows, width, width + rng_below(rng, 9), 3.0f), w = mat_random(rng, w_rows, width, width, 0.5f);
    struct mat got = in_place ? mat_copy(&x) : mat_new(rows, width, width + 3), want = mat_new(rows, width, width);
    struct ifx_rms_norm op = {.rows = rows, .width = width, .w_rows = w_rows, .x = x.p, .ldx = x.ld, .w = w.p,
                              .plus_one = (float)rng_below(rng, 2), .eps = 1e-6f, .y = want.p, .ldy = want.ld};
    t->ref->ops->rms_norm(t->ref, NULL, &op);
    op.x = in_place ? got.p : x.p;
    op.y = got.p, op.ldy = got.ld;
    t->dev->ops->rms_norm(t->dev, NULL, &op);
    DESCRIBE("%s rms_norm rows=%u width=%u w_rows=%u in place=%u", t->name, rows, width, w_rows, in_place);
    finish(&got, &want, 1e-6, 2e-6);
    mat_free(&x);
    mat_free(&w);
}

static void norm_rope(const struct pair *t, uint64_t *rng)
{
    uint32_t n = pick(rng, 20), heads = 1 + rng_below(rng, 5), d = 2 * pick(rng, 128), in_place = rng_below(rng, 2);
    uint32_t rotary = 2 * rng_below(rng, d / 2 + 1), gap = rng_below(rng, 2) * d; /* [query | gate] heads have a gap */
    uint64_t head = d + gap, width = heads * head;
    struct mat x = mat_random(rng, n, width, width + 5, 2.0f), w = mat_random(rng, 1, d, d, 0.4f);
    struct mat got = mat_copy(&x), want = mat_copy(&x), freq = mat_new(1, rotary / 2 + 1, rotary / 2 + 1);
    int32_t positions[300];
    for (uint32_t i = 0; i < n; i++)
        positions[i] = (int32_t)rng_below(rng, rng_below(rng, 2) ? 100 : 262144);
    for (uint32_t i = 0; i < rotary / 2; i++)
        freq.p[i] = 1.0f / powf(1e7f, (float)(2 * i) / (float)rotary);
    struct ifx_norm_rope op = {.n = n, .heads = heads, .d = d, .rotary = rotary, .x = x.p, .ldx = x.ld, .ldx_head = head,
                               .w = rng_below(rng, 4) ? w.p : NULL, .eps = 1e-6f, .inv_freq = freq.p,
                               .positions = positions, .y = want.p, .ldy = want.ld, .ldy_head = head};
    t->ref->ops->norm_rope(t->ref, NULL, &op);
    op.x = in_place ? got.p : x.p;
    op.y = got.p;
    t->dev->ops->norm_rope(t->dev, NULL, &op);
    DESCRIBE("%s norm_rope n=%u heads=%u d=%u rotary=%u norm=%d", t->name, n, heads, d, rotary, op.w != NULL);
    finish(&got, &want, 4e-6, 4e-6);
    mat_free(&x);
    mat_free(&w);
    mat_free(&freq);
}

static void conv(const struct pair *t, uint64_t *rng)
{
    uint32_t n = rng_below(rng, 2) ? 1 + rng_below(rng, 5) : pick(rng, 140), channels = pick(rng, 300), taps = 2 + rng_below(rng, 7);
    struct mat x = mat_random(rng, n, channels, channels + 3, 1.0f), w = mat_random(rng, channels, taps, taps, 0.5f);
    uint32_t dilation = rng_below(rng, 2) ? rng_below(rng, 2) : 1 + rng_below(rng, 16), kept = (taps - 1) * (dilation ? dilation : 1);
    struct mat state = mat_random(rng, channels, kept, kept, 1.0f), state2 = mat_copy(&state);
    struct mat got = mat_new(n, channels, channels + 1), want = mat_new(n, channels, channels);
    struct ifx_conv op = {.n = n, .channels = channels, .kernel = taps, .dilation = dilation, .x = x.p, .ldx = x.ld, .w = w.p, .state = state.p,
                          .y = want.p, .ldy = want.ld};
    t->ref->ops->conv(t->ref, NULL, &op);
    op.state = state2.p, op.y = got.p, op.ldy = got.ld;
    t->dev->ops->conv(t->dev, NULL, &op);
    DESCRIBE("%s conv n=%u channels=%u taps=%u dilation=%u", t->name, n, channels, taps, dilation);
    finish(&got, &want, 2e-6, 2e-6);
    finish(&state2, &state, 0, 0);
    mat_free(&x);
    mat_free(&w);
}

static void gates(const struct pair *t, uint64_t *rng)
{
    uint32_t n = pick(rng, 40), heads = pick(rng, 70);
    float scale = rng_below(rng, 3) ? 3.0f : 60.0f;
    struct mat a = mat_random(rng, n, heads, heads + 2, scale), b = mat_random(rng, n, heads, heads + 4, scale);
    struct mat log = mat_random(rng, 1, heads, heads, 1.0f), bias = mat_random(rng, 1, heads, heads, 1.0f);
    struct mat g = mat_new(n, heads, heads), beta = mat_new(n, heads, heads), g2 = mat_new(n, heads, heads),
               beta2 = mat_new(n, heads, heads);
    struct ifx_gdn_gate op = {.n = n, .heads = heads, .a = a.p, .b = b.p, .lda = a.ld, .ldb = b.ld, .a_log = log.p,
                              .dt_bias = bias.p, .g = g.p, .beta = beta.p};
    t->ref->ops->gdn_gate(t->ref, NULL, &op);
    op.g = g2.p, op.beta = beta2.p;
    t->dev->ops->gdn_gate(t->dev, NULL, &op);
    DESCRIBE("%s gdn_gate n=%u heads=%u", t->name, n, heads);
    finish(&g2, &g, 1e-30, 5e-6); /* a + bias in float32: 2^-24 of up to 70 in the exponent */
    finish(&beta2, &beta, 1e-30, 1e-6);
    mat_free(&a);
    mat_free(&b);
    mat_free(&log);
    mat_free(&bias);
}

static void gated_norm(const struct pair *t, uint64_t *rng)
{
    uint32_t n = pick(rng, 30), heads = 1 + rng_below(rng, 6), d = pick(rng, 256), act = rng_below(rng, 2), in_place = rng_below(rng, 2);
    uint64_t width = (uint64_t)heads * d;
    struct mat x = mat_random(rng, n, width, width + 1, 2.0f), z = mat_random(rng, n, width, width + 2, 4.0f),
               w = mat_random(rng, 1, d, d, 1.0f), got = mat_copy(&x), want = mat_copy(&x);
    struct ifx_gated_norm op = {.n = n, .heads = heads, .width = d, .act = act, .x = x.p, .z = z.p, .w = w.p, .ldx = x.ld,
                                .ldz = z.ld, .eps = 1e-5f, .y = want.p, .ldy = want.ld};
    t->ref->ops->gated_norm(t->ref, NULL, &op);
    op.x = in_place ? got.p : x.p;
    op.y = got.p;
    t->dev->ops->gated_norm(t->dev, NULL, &op);
    DESCRIBE("%s gated_norm n=%u heads=%u width=%u act=%u", t->name, n, heads, d, act);
    finish(&got, &want, 1e-6, 4e-6);
    mat_free(&x);
    mat_free(&z);
    mat_free(&w);
}

static void swiglu(const struct pair *t, uint64_t *rng)
{
    uint32_t n = pick(rng, 30), width = pick(rng, 500), where = rng_below(rng, 3);
    struct mat gate = mat_random(rng, n, width, width + 1, 5.0f), up = mat_random(rng, n, width, width + 2, 2.0f);
    struct mat got = where == 0 ? mat_copy(&gate) : where == 1 ? mat_copy(&up) : mat_new(n, width, width + 3),
               want = mat_new(n, width, width);
    struct ifx_swiglu op = {.n = n, .width = width, .gate = gate.p, .up = up.p, .ldg = gate.ld, .ldu = up.ld, .y = want.p,
                            .ldy = want.ld};
    t->ref->ops->swiglu(t->ref, NULL, &op);
    op.gate = where == 0 ? got.p : gate.p, op.up = where == 1 ? got.p : up.p;
    op.y = got.p, op.ldy = got.ld;
    t->dev->ops->swiglu(t->dev, NULL, &op);
    DESCRIBE("%s swiglu n=%u width=%u into %u", t->name, n, width, where);
    finish(&got, &want, 1e-7, 2e-6);
    mat_free(&gate);
    mat_free(&up);
}

static void gates_and_adds(const struct pair *t, uint64_t *rng)
{
    uint32_t n = pick(rng, 30), heads = 1 + rng_below(rng, 5), d = pick(rng, 130);
    uint64_t width = (uint64_t)heads * d;
    struct mat gate = mat_random(rng, n, 2 * width, 2 * width + 3, 4.0f), x = mat_random(rng, n, width, width + 1, 2.0f);
    struct mat got = mat_copy(&x), want = mat_copy(&x);
    struct ifx_sigmoid_gate op = {.n = n, .heads = heads, .d = d, .x = want.p, .ldx = want.ld, .gate = gate.p + d,
                                  .ldg = gate.ld, .ldg_head = 2 * (uint64_t)d};
    t->ref->ops->sigmoid_gate(t->ref, NULL, &op);
    op.x = got.p;
    t->dev->ops->sigmoid_gate(t->dev, NULL, &op);
    DESCRIBE("%s sigmoid_gate n=%u heads=%u d=%u", t->name, n, heads, d);
    finish(&got, &want, 1e-7, 2e-6);
    got = mat_copy(&x), want = mat_copy(&x);
    struct ifx_add add = {.n = n, .width = (uint32_t)width, .x = gate.p, .ldx = gate.ld,
                          .gate = rng_below(rng, 2) ? gate.p + 1 : NULL, .ldg = gate.ld, .y = want.p, .ldy = want.ld};
    t->ref->ops->add(t->ref, NULL, &add);
    add.y = got.p;
    t->dev->ops->add(t->dev, NULL, &add);
    DESCRIBE("%s add n=%u width=%llu gated=%d", t->name, n, (unsigned long long)width, add.gate != NULL);
    finish(&got, &want, 1e-6, 2e-6);
    mat_free(&gate);
    mat_free(&x);
}

/* Exact: every step is fixed by the contract.  Half the time the parts lie anywhere and an index says where. */
static void combine(const struct pair *t, uint64_t *rng)
{
    uint32_t n = pick(rng, 20), k = 1 + rng_below(rng, 10), width = pick(rng, 300);
    struct mat parts = mat_random(rng, (uint64_t)n * k, width, width + 1, 1.0f), weights = mat_random(rng, n, k, k, 0.3f);
    struct mat got = mat_random(rng, n, width, width + 2, 1.0f), want = mat_copy(&got);
    struct ifx_combine op = {.n = n, .top_k = k, .width = width, .accumulate = rng_below(rng, 2), .parts = parts.p,
                             .ldp = parts.ld, .weights = weights.p, .y = want.p, .ldy = want.ld};
    uint32_t index[200];
    struct mat scattered = mat_copy(&parts);
    t->ref->ops->combine(t->ref, NULL, &op);
    if (rng_below(rng, 2)) {
        for (uint32_t p = 0; p < n * k; p++)
            index[p] = p;
        for (uint32_t p = n * k; p > 1; p--) {
            uint32_t other = rng_below(rng, p), moved = index[p - 1];
            index[p - 1] = index[other];
            index[other] = moved;
        }
        for (uint32_t p = 0; p < n * k; p++)
            memcpy(scattered.p + index[p] * scattered.ld, parts.p + p * parts.ld, width * sizeof(float));
        op.parts = scattered.p;
        op.index = index;
        struct mat ref = mat_copy(&got);
        op.y = ref.p;
        t->ref->ops->combine(t->ref, NULL, &op);
        DESCRIBE("ref combine by index n=%u top_k=%u width=%u", n, k, width);
        mat_same_bits(&ref, &want, what);
        mat_free(&ref);
    }
    op.y = got.p;
    t->dev->ops->combine(t->dev, NULL, &op);
    DESCRIBE("%s combine n=%u top_k=%u width=%u%s", t->name, n, k, width, op.index ? " by index" : "");
    mat_same_bits(&got, &want, what);
    mat_free(&scattered);
    mat_intact(&got, what);
    mat_free(&got);
    mat_free(&want);
    mat_free(&parts);
    mat_free(&weights);
}

static void embed(const struct pair *t, uint64_t *rng)
{
    static const uint32_t dtypes[] = {IFX_BF16, IFX_F32, IFX_W8G32};
    uint32_t n = pick(rng, 30), width = pick(rng, 300), rows = pick(rng, 60);
    int32_t ids[300];
    struct ifx_weight w = weight_random(rng, dtypes[rng_below(rng, 3)], rows, width, 1.0f);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = i == 0 ? (int32_t)rows - 1 : (int32_t)rng_below(rng, rows);
    struct mat got = mat_new(n, width, width + 1), want = mat_new(n, width, width);
    t->ref->ops->embed(t->ref, NULL, &w, ids, n, want.p, want.ld);
    t->dev->ops->embed(t->dev, NULL, &w, ids, n, got.p, got.ld);
    DESCRIBE("%s embed n=%u width=%u dtype=%u", t->name, n, width, w.dtype);
    mat_same_bits(&got, &want, what);
    finish(&got, &want, 0, 0);
    weight_free(&w);
}

void test_elementwise(const struct pair *t, uint32_t rounds)
{
    uint64_t rng = t->seed + 2;
    for (uint32_t round = 0; round < rounds; round++) {
        rms_norm(t, &rng);
        norm_rope(t, &rng);
        conv(t, &rng);
        gates(t, &rng);
        gated_norm(t, &rng);
        swiglu(t, &rng);
        gates_and_adds(t, &rng);
        combine(t, &rng);
        embed(t, &rng);
    }
}
