/* SPDX-License-Identifier: Apache-2.0
 *
 * test_delta.c - gated delta rule and convolution: any number of tokens, cut anyhow, gives what the oracle gives token by token.
 */
#include "optest.h"

#include <stdio.h>
#include <stdlib.h>

struct sequence {
    uint32_t n, k_heads, v_heads, dk, dv;
    struct mat q, k, v, g, beta, state;
};

static void sequence_make(struct sequence *s, uint64_t *rng, uint32_t n, uint32_t dk, uint32_t dv, float scale)
{
    s->n = n, s->dk = dk, s->dv = dv;
    s->k_heads = 1 + rng_below(rng, 3);
    s->v_heads = s->k_heads * (1 + rng_below(rng, 3));
    s->q = mat_random(rng, n, (uint64_t)s->k_heads * dk, (uint64_t)s->k_heads * dk + 3, scale);
    s->k = mat_random(rng, n, (uint64_t)s->k_heads * dk, (uint64_t)s->k_heads * dk + 5, scale);
    s->v = mat_random(rng, n, (uint64_t)s->v_heads * dv, (uint64_t)s->v_heads * dv + 1, scale);
    s->g = mat_new(n, s->v_heads, s->v_heads);
    s->beta = mat_new(n, s->v_heads, s->v_heads);
    /* Decays from none to all in one token: a third mild, a third strong, now and then total. */
    float strength[3] = {0.01f, 1.0f, 30.0f};
    for (uint64_t i = 0; i < (uint64_t)n * s->v_heads; i++) {
        s->g.p[i] = -strength[(i + i / 7) % 3] * rng_float(rng, 0, 1);
        if (rng_below(rng, 50) == 0)
            s->g.p[i] = rng_below(rng, 2) ? 0.0f : -500.0f;
        s->beta.p[i] = rng_float(rng, 0, 1);
    }
    s->state = mat_random(rng, s->v_heads, (uint64_t)dk * dv, (uint64_t)dk * dv, 0.3f * scale);
}

static void sequence_free(struct sequence *s)
{
    mat_free(&s->q), mat_free(&s->k), mat_free(&s->v), mat_free(&s->g), mat_free(&s->beta), mat_free(&s->state);
}

/* Runs tokens in calls of at most `cut`. */
static void run(struct ifx_device *dev, const struct sequence *s, uint32_t cut, struct mat *state, struct mat *out)
{
    for (uint32_t t = 0; t < s->n; t += cut) {
        struct ifx_gated_delta op = {.n = s->n - t < cut ? s->n - t : cut, .k_heads = s->k_heads, .v_heads = s->v_heads,
                                     .dk = s->dk, .dv = s->dv};
        op.q = s->q.p + t * s->q.ld, op.ldq = s->q.ld;
        op.k = s->k.p + t * s->k.ld, op.ldk = s->k.ld;
        op.v = s->v.p + t * s->v.ld, op.ldv = s->v.ld;
        op.g = s->g.p + t * s->v_heads, op.beta = s->beta.p + t * s->v_heads;
        op.state = state->p, op.out = out->p + t * out->ld, op.ldo = out->ld;
        op.ws = exact_alloc(dev->ops->gated_delta_ws_bytes(dev, &op));
        check(dev->ops->gated_delta(dev, NULL, &op) == IFX_OK, "gated_delta fails");
        free(op.ws);
    }
}

static void against_ref(const struct pair *t, const struct sequence *s, uint32_t cut)
{
    uint64_t width = (uint64_t)s->v_heads * s->dv;
    struct mat S1 = mat_copy(&s->state), S2 = mat_copy(&s->state), o1 = mat_new(s->n, width, width), o2 = mat_new(s->n, width, width + 2);
    char what[200];
    snprintf(what, sizeof what, "%s gated_delta n=%u cut=%u heads=%u/%u dk=%u dv=%u", t->name, s->n, cut, s->k_heads,
             s->v_heads, s->dk, s->dv);
    run(t->ref, s, s->n, &S1, &o1);
    run(t->dev, s, cut, &S2, &o2);
    mat_l2(&o2, &o1, 2e-5, what);
    mat_l2(&S2, &S1, 2e-5, what);
    mat_intact(&o2, what);
    mat_intact(&S2, what);
    mat_free(&S1), mat_free(&S2), mat_free(&o1), mat_free(&o2);
}

static void cuts(const struct pair *t, uint64_t *rng)
{
    static const uint32_t lengths[] = {1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 66, 127, 128, 129, 130, 257};
    static const uint32_t sizes[][2] = {{16, 16}, {16, 24}, {32, 16}, {128, 128}, {64, 40}, {5, 7}, {256, 33}, {17, 256}};
    static const uint32_t cut[] = {1, 2, 3, 4, 31, 32, 33, 63, 64, 65, 128};
    for (uint32_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (uint32_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
            struct sequence s;
            sequence_make(&s, rng, lengths[i], sizes[j][0], sizes[j][1], 1.0f);
            against_ref(t, &s, s.n);
            against_ref(t, &s, cut[rng_below(rng, 11)]);
            if (lengths[i] == 130 && j < 4)
                for (uint32_t c = 0; c < sizeof cut / sizeof *cut; c++)
                    against_ref(t, &s, cut[c]);
            sequence_free(&s);
        }
}

/* Few tokens: the token-by-token form, whatever the cut; the same bits, so that a speculation window costs nothing. */
static void small_windows(const struct pair *t, uint64_t *rng)
{
    struct sequence s;
    sequence_make(&s, rng, 8, 128, 128, 1.0f);
    uint64_t width = (uint64_t)s.v_heads * s.dv;
    struct mat S1 = mat_copy(&s.state), o1 = mat_new(8, width, width);
    run(t->dev, &s, 1, &S1, &o1);
    for (uint32_t cut = 2; cut <= 8; cut++) {
        struct mat S2 = mat_copy(&s.state), o2 = mat_new(8, width, width);
        run(t->dev, &s, cut, &S2, &o2);
        mat_same_bits(&S2, &S1, "gated_delta, state after windows of up to 8");
        mat_same_bits(&o2, &o1, "gated_delta, output of windows of up to 8");
        mat_free(&S2), mat_free(&o2);
    }
    mat_free(&S1), mat_free(&o1);
    sequence_free(&s);
}

/* Large activations stay finite, and thousands of single steps do not drift. */
static void large_and_long(const struct pair *t, uint64_t *rng)
{
    struct sequence s;
    sequence_make(&s, rng, 100, 64, 64, 1e3f);
    against_ref(t, &s, 100);
    against_ref(t, &s, 1);
    sequence_free(&s);
    sequence_make(&s, rng, 2048, 16, 16, 1.0f);
    against_ref(t, &s, 1);
    against_ref(t, &s, 2048);
    sequence_free(&s);
}

void test_delta(const struct pair *t)
{
    uint64_t rng = t->seed + 3;
    cuts(t, &rng);
    if (!t->exact)
        small_windows(t, &rng);
    large_and_long(t, &rng);
}
