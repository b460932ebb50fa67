/* SPDX-License-Identifier: Apache-2.0
 *
 * test_golden.c - the golden checkpoints on one device: `ref` (float32 tolerances) or `cpu` at each level (bf16 tolerances and
 * against ref), or with IFX_TEST_DEVICE=NAME another device (as cpu).  Tolerances: tests/data/golden/README.md, "How close is close".
 */
#include "harness.h"

#include <infernix/numerics.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATE_ALIGN 16u

struct checkpoint {
    const char *name, *reference;
    bool moe;
};
static const struct checkpoint checkpoints[] = {
    {"qwen3_5-tiny", "qwen3_5-tiny", false},
    {"qwen3_5-tied", "qwen3_5-tied", false},
    {"qwen3_5_moe-tiny", "qwen3_5_moe-tiny", true},
    {"qwen3_5_moe-tiny-vl", "qwen3_5_moe-tiny", true},
    {"qwen3_5_moe-tiny-nvfp4", "qwen3_5_moe-tiny-nvfp4", true},
    {"qwen3_5_moe-mid", "qwen3_5_moe-mid", true},
    {"qwen3_5_moe-mid-nvfp4", "qwen3_5_moe-mid-nvfp4", true},
    {"qwen4_exp-tiny", "qwen4_exp-tiny", true},
};
#define N_CHECKPOINTS (sizeof checkpoints / sizeof checkpoints[0])
static const uint32_t lengths[] = {1, 2, 7, 33, 96, 64, 255, 256, 450, 575, 576, 1023};
#define N_LENGTHS (sizeof lengths / sizeof lengths[0])

/* What is run: a device and, for cpu, a level. */
struct target {
    const char *device, *cpu;
    bool exact; /* float32 tolerances */
};

/* One prompt of one checkpoint. */
struct prompt {
    const char *where; /* for messages */
    const struct target *target;
    struct st_file *f;
    uint32_t length, vocab, width, layers, top_k;
    int32_t *ids;
    float *logits; /* [length, vocab] as computed */
    /* collected by observers */
    float *hidden;      /* [layers + 1, width], last position */
    int32_t *route_ids; /* [layers, length, top_k] */
    float *route_weights;
    const uint32_t *linear_layers; /* the layer of each linear attention */
    uint8_t *moved; /* [layers, length]: the choice of experts differs from the reference's in this layer or was moved by one that
                     * did: in an earlier layer, at this position or one before it */
    /* sparse attention: 0 where the family has none */
    const uint32_t *sparse_layers; /* the layer of each attention */
    uint32_t kv_layers, most_rows;
    int32_t *selected; /* [kv_layers, length, most_rows], -1 past the last */
    struct ifx_model *oracle; /* `ref`, when something else is tested */
    uint64_t window_values; /* of the state, behind the delta nets: convolution inputs of the n-gram embeddings */
};

static const char *tensor_name(const struct prompt *p, const char *what)
{
    static char name[128];
    snprintf(name, sizeof name, "len%u.%s", p->length, what);
    return name;
}

static int32_t on_hidden(void *ctx, int32_t layer, uint64_t pos0, uint32_t n, const float *x, uint32_t width)
{
    struct prompt *p = ctx;
    if (pos0 + n == p->length)
        memcpy(p->hidden + (uint64_t)(layer + 1) * width, x + (uint64_t)(n - 1) * width, width * sizeof(float));
    return IFX_OK;
}

static int32_t on_router(void *ctx, uint32_t layer, uint64_t pos0, uint32_t n, uint32_t top_k, const int32_t *ids,
                         const float *weights)
{
    struct prompt *p = ctx;
    uint64_t at = ((uint64_t)layer * p->length + pos0) * top_k;
    memcpy(p->route_ids + at, ids, (uint64_t)n * top_k * sizeof *ids);
    memcpy(p->route_weights + at, weights, (uint64_t)n * top_k * sizeof *weights);
    return IFX_OK;
}

static int32_t on_selection(void *ctx, uint32_t kv_layer, uint64_t pos0, uint32_t n, const int32_t *rows, const uint32_t *n_rows,
                            uint64_t ld_rows)
{
    struct prompt *p = ctx;
    for (uint32_t i = 0; p->selected && i < n; i++) {
        int32_t *out = p->selected + (kv_layer * (uint64_t)p->length + pos0 + i) * p->most_rows;
        for (uint32_t r = 0; r < p->most_rows; r++)
            out[r] = r < n_rows[i] ? rows[i * ld_rows + r] : -1;
    }
    return IFX_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double l2_all(const struct prompt *p, const int32_t *positions, const float *want, uint64_t n)
{
    double d = 0, r = 0;
    for (uint64_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < p->vocab; j++) {
            double w = want[i * p->vocab + j], g = p->logits[(uint64_t)positions[i] * p->vocab + j];
            d += (g - w) * (g - w);
            r += w * w;
        }
    return sqrt(d / r);
}

static void check_logits(const struct prompt *p)
{
    uint64_t n, count, at;
    int32_t *positions = golden_ints(p->f, tensor_name(p, "logit_positions"), &n);
    float *want = golden_floats(p->f, tensor_name(p, "logits"), &count);
    double *rms = base_calloc(n, sizeof *rms);
    uint32_t wide = 0;
    assert_non_null(positions);
    assert_non_null(want);
    assert_int_equal(count, n * p->vocab);
    for (uint64_t i = 0; i < n; i++) {
        const float *got = p->logits + (uint64_t)positions[i] * p->vocab, *w = want + i * p->vocab;
        double most = largest_difference(got, w, p->vocab, &at);
        rms[i] = rms_difference(got, w, p->vocab);
        if (p->target->exact && !(most <= 2e-3))
            FAIL("%s length %u position %d: logit %u is %g, expected %g", p->where, p->length, positions[i], (unsigned)at,
                 got[at], w[at]);
        wide += !(rms[i] <= 0.6);
    }
    qsort(rms, n, sizeof *rms, by_value);
    if (!(rms[n / 2] <= 0.15))
        FAIL("%s length %u: median RMS of the logits %g, expected at most 0.15", p->where, p->length, rms[n / 2]);
    if (getenv("IFX_PRINT"))
        print_message("%s length %u: relative L2 %g median %g worst %g\n", p->where, p->length, l2_all(p, positions, want, n), rms[n / 2], rms[n - 1]);
    if (wide > 1 + n / 20)
        FAIL("%s length %u: RMS above 0.6 at %u of %u positions", p->where, p->length, wide, (unsigned)n);
    base_free(positions);
    base_free(want);
    base_free(rms);
}

static void check_hidden(const struct prompt *p)
{
    uint64_t count, at;
    float *want = golden_floats(p->f, tensor_name(p, "hidden"), &count);
    assert_non_null(want);
    assert_int_equal(count, (uint64_t)(p->layers + 1) * p->width);
    double most = largest_difference(p->hidden, want, count, &at);
    if (p->target->exact && !(most <= 2e-3))
        FAIL("%s length %u: hidden state after layer %d, value %u: %g, expected %g", p->where, p->length,
             (int)(at / p->width) - 1, (unsigned)(at % p->width), p->hidden[at], want[at]);
    base_free(want);
}

static bool in_set(const int32_t *set, uint32_t n, int32_t id, uint32_t *at)
{
    for (*at = 0; *at < n; ++*at)
        if (set[*at] == id)
            return true;
    return false;
}

/* What the reference says of the router; rows [layers, n]. */
struct routes {
    int32_t *positions, *ids;
    float *weights, *margins;
    uint64_t n;
};

static void routes_open(const struct prompt *p, struct routes *r)
{
    uint64_t count;
    r->positions = golden_ints(p->f, tensor_name(p, "router_positions"), &r->n);
    r->ids = golden_ints(p->f, tensor_name(p, "router_ids"), &count);
    r->weights = golden_floats(p->f, tensor_name(p, "router_weights"), &count);
    r->margins = golden_floats(p->f, tensor_name(p, "router_margin"), &count);
    assert_true(r->positions && r->ids && r->weights && r->margins);
}

static void routes_close(struct routes *r)
{
    base_free(r->positions);
    base_free(r->ids);
    base_free(r->weights);
    base_free(r->margins);
}

/* Whether the experts of a row differ; with float32 tolerances it fails where the margin does not explain it. */
static bool compare_route(const struct prompt *p, const struct routes *r, uint32_t layer, uint64_t i)
{
    uint64_t row = layer * r->n + i;
    const int32_t *got = p->route_ids + ((uint64_t)layer * p->length + (uint32_t)r->positions[i]) * p->top_k;
    const float *got_w = p->route_weights + (got - p->route_ids);
    bool differs = false, near_tie = r->margins[row] < 1e-4f;
    for (uint32_t k = 0; k < p->top_k; k++) {
        uint32_t at;
        int32_t id = r->ids[row * p->top_k + k];
        float weight = r->weights[row * p->top_k + k];
        bool there = in_set(got, p->top_k, id, &at);
        differs |= !there;
        if (p->target->exact && !near_tie && (!there || fabsf(got_w[at] - weight) > 1e-4f))
            FAIL("%s length %u layer %u position %d: expert %d of weight %g, got %s %g", p->where, p->length, layer, r->positions[i],
                 id, weight, there ? "weight" : "none", there ? got_w[at] : 0);
    }
    return differs;
}

/* Every other choice of experts is a near tie of the router, or follows from one: in an earlier layer at this position, or at an
 * earlier position that attention or the recurrent state carries here. */
static void check_routes(const struct prompt *p)
{
    struct routes r;
    uint32_t other = 0, ties = 0;
    routes_open(p, &r);
    for (uint32_t l = 0; l < p->layers; l++) {
        bool reached = false; /* an earlier position is moved in an earlier layer */
        for (uint64_t i = 0; i < r.n; i++) {
            uint8_t *moved = p->moved + (uint64_t)l * p->length + (uint32_t)r.positions[i];
            reached |= l > 0 && moved[-(int64_t)p->length];
            bool differs = compare_route(p, &r, l, i), near_tie = r.margins[l * r.n + i] < 5e-3f;
            /* Where the reference keeps the last positions alone, an earlier one may have moved unseen. */
            if (differs && !near_tie && !reached && r.n == p->length)
                FAIL("%s length %u layer %u position %d: other experts than the reference's, with a margin of %g and no other choice "
                     "before it", p->where, p->length, l, r.positions[i], r.margins[l * r.n + i]);
            other += differs && !near_tie;
            ties += differs && near_tie;
            *moved = reached || differs;
        }
    }
    if (getenv("IFX_PRINT"))
        print_message("%s length %u: other experts in %u rows of near ties and %u of %u that follow\n", p->where, p->length, ties, other,
                      (unsigned)(p->layers * r.n));
    if (other > p->layers * r.n / 50 + 1)
        FAIL("%s length %u: other experts in %u of %u rows", p->where, p->length, other, (unsigned)(p->layers * r.n));
    routes_close(&r);
}

static uint64_t aligned(uint64_t n)
{
    return (n + STATE_ALIGN - 1) / STATE_ALIGN * STATE_ALIGN;
}

/* A state is held to `limit`; where another choice of experts came before it (which check_routes has traced to a near tie), to what
 * such a choice was seen to move it by. */
#define STATE_LIMIT 0.02
#define MOVED_LIMIT 0.1

/* What comes into a layer at positions [first, last] was moved. */
static bool moved_into(const struct prompt *p, uint32_t layer, uint64_t first, uint64_t last)
{
    bool moved = false;
    for (uint64_t i = first; p->moved && layer > 0 && i <= last; i++)
        moved |= p->moved[(uint64_t)(layer - 1) * p->length + i];
    return moved;
}

static void check_recurrent(const struct prompt *p, uint64_t l, const float *got, const float *want, uint64_t values)
{
    uint64_t at;
    double most = largest_difference(got, want, values, &at), l2 = relative_l2(got, want, values);
    bool moved = moved_into(p, p->linear_layers[l], 0, p->length - 1);
    if (getenv("IFX_PRINT"))
        print_message("%s linear layer %u state relative L2 %g%s\n", p->where, (unsigned)l, l2, moved ? " after other experts" : "");
    if (p->target->exact && !(most <= 2e-3))
        FAIL("%s: recurrent state of linear layer %u, value %u: %g, expected %g", p->where, (unsigned)l, (unsigned)at, got[at], want[at]);
    if (!(l2 <= (moved ? MOVED_LIMIT : STATE_LIMIT)))
        FAIL("%s: recurrent state of linear layer %u: relative L2 %g, expected at most %g", p->where, (unsigned)l, l2,
             moved ? MOVED_LIMIT : STATE_LIMIT);
}

/* One of the three inputs kept: a column of all channels.  got [channels, 3], want [channels, 4]. */
static void check_conv_input(const struct prompt *p, uint64_t l, uint32_t place, const float *got, const float *want, uint64_t channels)
{
    double d = 0, sum = 0;
    uint64_t position = p->length - 3 + place;
    bool moved = moved_into(p, p->linear_layers[l], position, position);
    for (uint64_t i = 0; i < channels; i++) {
        double w = want[i * 4 + 1 + place], g = got[i * 3 + place];
        if (p->target->exact && !(fabs(g - w) <= 2e-3))
            FAIL("%s: convolution state of linear layer %u, channel %u, place %u: %g, expected %g", p->where, (unsigned)l, (unsigned)i, place,
                 g, w);
        d += (g - w) * (g - w);
        sum += w * w;
    }
    if (getenv("IFX_PRINT"))
        print_message("%s linear layer %u convolution input %u relative L2 %g%s\n", p->where, (unsigned)l, place, sqrt(d / sum),
                      moved ? " after other experts" : "");
    if (!(sqrt(d / sum) <= (moved ? MOVED_LIMIT : STATE_LIMIT)))
        FAIL("%s: convolution state of linear layer %u, place %u (position %u): relative L2 %g, expected at most %g", p->where, (unsigned)l,
             place, (unsigned)position, sqrt(d / sum), moved ? MOVED_LIMIT : STATE_LIMIT);
}

/* Recurrent and convolution state, where the reference stores them (length 33). */
static void check_state(const struct prompt *p, const struct ifx_sequence *s)
{
    struct ifx_tensor t, c;
    uint64_t count, conv_count, total;
    float *want = golden_floats(p->f, tensor_name(p, "recurrent_state"), &count);
    if (!want)
        return;
    float *conv = golden_floats(p->f, tensor_name(p, "conv_state"), &conv_count);
    assert_non_null(conv);
    OK(st_find(p->f, tensor_name(p, "recurrent_state"), &t));
    OK(st_find(p->f, tensor_name(p, "conv_state"), &c));
    const float *got = ifx_sequence_state(s, &total);
    uint64_t layers = t.dims[0], values = count / layers, channels = c.dims[1], offset = 0;
    for (uint64_t l = 0; l < layers; l++) {
        check_recurrent(p, l, got + offset, want + l * values, values);
        offset += aligned(values);
        for (uint32_t place = 0; place < 3; place++)
            check_conv_input(p, l, place, got + offset, conv + l * channels * 4, channels);
        offset += aligned(channels * 3);
    }
    assert_int_equal(offset + p->window_values, total);
    base_free(want);
    base_free(conv);
}

/* Tokens that sparse attention sees.  A row may differ where its last chosen block barely won, or where another choice of experts moved
 * what comes in; few do. */
static void check_selection(const struct prompt *p)
{
    uint64_t count, rows;
    int32_t *want = golden_ints(p->f, tensor_name(p, "qsa_tokens"), &count);
    float *margin = golden_floats(p->f, tensor_name(p, "qsa_margin"), &rows);
    float safe = p->target->exact ? 1e-3f : 5e-2f;
    uint32_t selected = 0, other = 0;
    assert_true(want && margin);
    assert_int_equal(count, rows * p->most_rows);
    for (uint64_t i = 0; i < rows; i++) {
        uint64_t layer = i / p->length, position = i % p->length;
        bool excused = (margin[i] >= 0 && margin[i] < safe) || moved_into(p, p->sparse_layers[layer], 0, position);
        bool same = memcmp(want + i * p->most_rows, p->selected + i * p->most_rows, p->most_rows * sizeof *want) == 0;
        selected += margin[i] >= 0;
        other += !same;
        if (!same && !excused)
            FAIL("%s length %u sparse layer %u position %u: other tokens are visible than the reference's (margin %g)", p->where, p->length,
                 (unsigned)layer, (unsigned)position, margin[i]);
    }
    if (getenv("IFX_PRINT"))
        print_message("%s length %u: other tokens visible in %u of %u rows that select\n", p->where, p->length, other, selected);
    if (other > selected / 10)
        FAIL("%s length %u: other tokens are visible in %u of %u rows that select", p->where, p->length, other, selected);
    if (p->length == 96 && selected < 100)
        FAIL("%s length %u: selection bites in %u rows only", p->where, p->length, selected);
    base_free(want);
    base_free(margin);
}

/* The tokens that each KV layer sees at one position. */
struct seen {
    uint32_t most, layers;
    int32_t *rows; /* [layers, most], -1 past the last */
};

static int32_t on_seen(void *ctx, uint32_t kv_layer, uint64_t pos0, uint32_t n, const int32_t *rows, const uint32_t *n_rows, uint64_t ld_rows)
{
    struct seen *s = ctx;
    (void)pos0;
    for (uint32_t r = 0; r < s->most; r++)
        s->rows[kv_layer * s->most + r] = r < n_rows[n - 1] ? rows[(n - 1) * ld_rows + r] : -1;
    return IFX_OK;
}

/* A sequence on the oracle that goes along with the one under test, to tell which tokens it sees. */
struct companion {
    struct ifx_sequence *s;
    struct seen here, there;
};

static void companion_open(struct companion *c, const struct prompt *p, struct ifx_sequence *s)
{
    *c = (struct companion){0};
    if (!p->oracle || !p->most_rows)
        return;
    c->here = c->there = (struct seen){p->most_rows, p->kv_layers, NULL};
    c->here.rows = base_calloc((uint64_t)p->kv_layers * p->most_rows, sizeof(int32_t));
    c->there.rows = base_calloc((uint64_t)p->kv_layers * p->most_rows, sizeof(int32_t));
    assert_true(c->here.rows && c->there.rows);
    struct ifx_observer here = {.ctx = &c->here, .selection = on_seen}, there = {.ctx = &c->there, .selection = on_seen};
    OK(ifx_sequence_create(p->oracle, &c->s));
    OK(ifx_sequence_feed(c->s, p->ids, p->length, 0, NULL));
    ifx_sequence_observe(c->s, &there);
    ifx_sequence_observe(s, &here);
}

/* Feeds what the other sequence was fed; true when one block more or less was seen there in some layer: a near tie of the selection. */
static bool companion_step(struct companion *c, int32_t token)
{
    bool other = false;
    if (!c->s)
        return false;
    OK(ifx_sequence_feed(c->s, &token, 1, 0, NULL));
    for (uint32_t l = 0; l < c->here.layers; l++) {
        uint32_t differ = 0, at;
        for (uint32_t r = 0; r < c->here.most; r++) {
            int32_t id = c->here.rows[l * c->here.most + r];
            differ += id >= 0 && !in_set(c->there.rows + l * c->here.most, c->here.most, id, &at);
        }
        if (differ > 4)
            FAIL("layer %u sees %u tokens that the oracle does not", l, differ);
        other |= differ > 0;
    }
    return other;
}

static void companion_close(struct companion *c, struct ifx_sequence *s)
{
    ifx_sequence_observe(s, NULL);
    if (c->s)
        ifx_sequence_destroy(c->s);
    base_free(c->here.rows);
    base_free(c->there.rows);
}

/* 32 greedy steps; the golden token is fed whatever was chosen, so that later steps stay comparable. */
static void check_greedy(const struct prompt *p, struct ifx_sequence *s)
{
    uint64_t n, count, at;
    int32_t *ids = golden_ints(p->f, tensor_name(p, "greedy_ids"), &n);
    int32_t *top_ids = golden_ints(p->f, tensor_name(p, "greedy_top5_ids"), &count);
    float *top = golden_floats(p->f, tensor_name(p, "greedy_top5_logits"), &count);
    float *margins = golden_floats(p->f, tensor_name(p, "greedy_margin"), &count);
    float *logits = base_calloc(p->vocab, sizeof *logits);
    float safe = p->target->exact ? 0.005f : 0.3f;
    struct companion with;
    bool tie = false; /* of the selection, at the last step */
    uint32_t ties = 0;
    assert_true(ids && top_ids && top && margins);
    companion_open(&with, p, s);
    memcpy(logits, p->logits + (uint64_t)(p->length - 1) * p->vocab, p->vocab * sizeof *logits);
    for (uint64_t i = 0; i < n; i++) {
        int32_t got = argmax(logits, p->vocab);
        bool listed = false;
        for (uint32_t j = 0; j < 5; j++)
            listed |= top_ids[i * 5 + j] == got;
        if (got != ids[i] && ((margins[i] >= safe && !tie) || !listed))
            FAIL("%s length %u greedy step %u: token %d, expected %d (margin %g)", p->where, p->length, (unsigned)i, got,
                 ids[i], margins[i]);
        for (uint32_t j = 0; j < 5; j++) {
            float l = logits[top_ids[i * 5 + j]];
            if (p->target->exact && !(fabsf(l - top[i * 5 + j]) <= 2e-3f))
                FAIL("%s length %u greedy step %u: logit of %d is %g, expected %g", p->where, p->length, (unsigned)i,
                     top_ids[i * 5 + j], l, top[i * 5 + j]);
        }
        OK(ifx_sequence_feed(s, &ids[i], 1, 1, logits));
        tie = companion_step(&with, ids[i]);
        ties += tie;
    }
    companion_close(&with, s);
    if (ties > n / 4)
        FAIL("%s length %u: %u of %u greedy steps see other tokens than the oracle", p->where, p->length, ties, (unsigned)n);
    if (ties && getenv("IFX_PRINT"))
        print_message("%s length %u: %u greedy steps see other tokens than the oracle\n", p->where, p->length, ties);
    (void)at;
    base_free(ids);
    base_free(top_ids);
    base_free(top);
    base_free(margins);
    base_free(logits);
}

/* The same prompt in pieces gives the same result. */
static void check_cuts(const struct prompt *p, struct ifx_sequence *s)
{
    static const uint64_t cuts[] = {1, 7, 64};
    uint64_t count = (uint64_t)p->length * p->vocab, at;
    float *logits = base_calloc(count, sizeof *logits);
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        if (cuts[i] >= p->length || (p->length > 300 && cuts[i] != 64))
            continue;
        OK(ifx_sequence_reset(s));
        feed_cut(s, p->ids, p->length, cuts[i], p->vocab, logits);
        if (p->target->exact) {
            double most = largest_difference(logits, p->logits, count, &at);
            if (!(most <= 5e-4))
                FAIL("%s length %u in pieces of %u: position %u logit %u is %g, whole %g", p->where, p->length,
                     (unsigned)cuts[i], (unsigned)(at / p->vocab), (unsigned)(at % p->vocab), logits[at], p->logits[at]);
        } else {
            double l2 = relative_l2(logits, p->logits, count);
            if (!(l2 <= 5e-2))
                FAIL("%s length %u in pieces of %u: relative L2 of the logits %g", p->where, p->length, (unsigned)cuts[i], l2);
        }
    }
    base_free(logits);
}

static void run_prompt(struct prompt *p, struct ifx_model *m, bool moe)
{
    uint64_t n, rows = (uint64_t)p->layers * p->length * p->top_k;
    struct ifx_sequence *s;
    struct ifx_observer observer = {.ctx = p, .hidden = on_hidden, .router = moe ? on_router : NULL,
                                    .selection = on_selection};
    p->ids = golden_ints(p->f, tensor_name(p, "input_ids"), &n);
    if (!p->ids)
        return;
    assert_int_equal(n, p->length);
    p->logits = base_calloc((uint64_t)p->length * p->vocab, sizeof(float));
    p->hidden = base_calloc((uint64_t)(p->layers + 1) * p->width, sizeof(float));
    p->route_ids = base_calloc(rows ? rows : 1, sizeof(int32_t));
    p->route_weights = base_calloc(rows ? rows : 1, sizeof(float));
    p->moved = moe ? base_calloc((uint64_t)p->layers * p->length, 1) : NULL;
    p->selected = p->most_rows ? base_calloc(p->kv_layers * (uint64_t)p->length * p->most_rows, sizeof(int32_t)) : NULL;
    OK(ifx_sequence_create(m, &s));
    ifx_sequence_observe(s, &observer);
    OK(ifx_sequence_feed(s, p->ids, n, n, p->logits));
    ifx_sequence_observe(s, NULL);
    check_logits(p);
    check_hidden(p);
    if (moe)
        check_routes(p);
    if (p->selected)
        check_selection(p);
    check_state(p, s);
    check_greedy(p, s);
    check_cuts(p, s);
    ifx_sequence_destroy(s);
    base_free(p->ids);
    base_free(p->logits);
    base_free(p->hidden);
    base_free(p->route_ids);
    base_free(p->route_weights);
    base_free(p->moved);
    base_free(p->selected);
    p->selected = NULL;
}

static void check_nll(const struct prompt *p, struct ifx_model *m, const struct checkpoint *c)
{
    uint64_t n, count;
    struct ifx_sequence *s;
    int32_t *ids = golden_ints(p->f, "nll.input_ids", &n);
    float *want = golden_floats(p->f, "nll.logprobs", &count);
    float *mean = golden_floats(p->f, "nll.mean", &count);
    assert_true(ids && want && mean);
    float *logits = base_calloc(n * p->vocab, sizeof *logits);
    double sum = 0;
    OK(ifx_sequence_create(m, &s));
    OK(ifx_sequence_feed(s, ids, n, n, logits));
    for (uint64_t i = 1; i < n; i++) {
        double got = log_probability(logits + (i - 1) * p->vocab, p->vocab, ids[i]);
        if (p->target->exact && !(fabs(got - want[i - 1]) <= 5e-3))
            FAIL("%s: log probability of token %u is %g, expected %g", p->where, (unsigned)i, got, want[i - 1]);
        sum -= got;
    }
    double tolerance = p->target->exact ? 1e-3 : c->moe ? 0.05 : 0.02;
    if (!(fabs(sum / (double)(n - 1) - mean[0]) <= tolerance))
        FAIL("%s: mean NLL %g, expected %g", p->where, sum / (double)(n - 1), mean[0]);
    ifx_sequence_destroy(s);
    base_free(ids);
    base_free(want);
    base_free(mean);
    base_free(logits);
}

/* Which layers are linear attention: layer_types, or all but every full_attention_interval-th.  The others follow behind them. */
static uint32_t *split_layers(const json_t *config, uint32_t layers)
{
    const json_t *types = json_object_get(config, "layer_types");
    uint32_t *out = base_calloc(layers, sizeof *out), n = 0, interval = 4;
    assert_non_null(out);
    if (json_object_get(config, "full_attention_interval"))
        interval = (uint32_t)json_integer_value(json_object_get(config, "full_attention_interval"));
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < layers; i++) {
            bool linear = types ? strcmp(json_string_value(json_array_get(types, i)), "linear_attention") == 0 : (i + 1) % interval != 0;
            if (linear == (pass == 0))
                out[n++] = i;
        }
    return out;
}

static uint64_t config_value(const json_t *config, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(config, key));
}

/* What the checkpoint's own config says beside what the model says of itself. */
static uint32_t *read_config(const struct checkpoint *c, const struct ifx_model_desc *d, struct prompt *p)
{
    json_t *root = json_load_file(golden(2, "checkpoints/%s/config.json", c->name), 0, NULL), *config = root;
    assert_non_null(root);
    if (json_object_get(root, "text_config"))
        config = json_object_get(root, "text_config");
    uint32_t *layers = split_layers(config, d->n_layers);
    p->linear_layers = layers;
    p->sparse_layers = layers + d->n_layers - d->n_kv_layers;
    p->kv_layers = d->n_kv_layers;
    if (json_object_get(config, "indexer_budget"))
        p->most_rows = (uint32_t)(config_value(config, "indexer_budget") + config_value(config, "indexer_compress_ratio") - 1);
    p->window_values = json_array_size(json_object_get(config, "ple_layer_ids")) *
                       aligned(d->residual_width * config_value(config, "ngram_size") * (config_value(config, "ple_conv_kernel_size") - 1));
    json_decref(root);
    return layers;
}

static void run_checkpoint(const struct checkpoint *c, const struct target *t)
{
    struct options o = {.device = t->device, .cpu = t->cpu, .chunk = 1024};
    struct rig r, oracle = {0};
    struct prompt p = {.target = t};
    char where[128];
    snprintf(where, sizeof where, "%s on %s%s%s", c->name, t->device, t->cpu ? " " : "", t->cpu ? t->cpu : "");
    p.where = where;
    rig_open(&r, golden(0, "checkpoints/%s", c->name), &o);
    if (!t->exact && r.info.desc->index_dim) {
        struct options exact = {.device = "ref", .chunk = 1024};
        rig_open(&oracle, golden(0, "checkpoints/%s", c->name), &exact);
        p.oracle = oracle.model;
    }
    OK(st_open(golden(1, "reference/%s.safetensors", c->reference), &p.f));
    p.vocab = r.info.desc->vocab;
    p.width = r.info.desc->residual_width;
    p.layers = r.info.desc->n_layers;
    p.top_k = c->moe ? r.info.desc->moe[0].top_k : 0;
    uint32_t *layers = read_config(c, r.info.desc, &p);
    for (size_t i = 0; i < N_LENGTHS; i++) {
        p.length = lengths[i];
        run_prompt(&p, r.model, c->moe);
    }
    check_nll(&p, r.model, c);
    base_free(layers);
    st_close(p.f);
    if (p.oracle)
        rig_close(&oracle);
    rig_close(&r);
}

static void test_ref(void **state)
{
    static const struct target ref = {"ref", NULL, true};
    run_checkpoint(*state, &ref);
}

static void test_cpu(void **state)
{
    for (uint32_t level = 0; level <= base_cpu_detect(); level++) {
        struct target cpu = {"cpu", base_cpu_name(level), false};
        run_checkpoint(*state, &cpu);
    }
}

/* IFX_TEST_DEVICE: that device and no other. */
static void test_other(void **state)
{
    struct target other = {getenv("IFX_TEST_DEVICE"), NULL, false};
    run_checkpoint(*state, &other);
}

int main(int argc, char **argv)
{
    const char *other = getenv("IFX_TEST_DEVICE");
    const struct CMUnitTest cases[] = {cmocka_unit_test(test_ref), cmocka_unit_test(test_cpu), cmocka_unit_test(test_other)};
    const char *devices[] = {"ref", "cpu", other};
    struct CMUnitTest tests[3 * N_CHECKPOINTS];
    char names[3 * N_CHECKPOINTS][64];
    size_t n = 0;
    for (size_t d = other ? 2 : 0; d < (other ? 3 : 2); d++)
        for (size_t i = 0; i < N_CHECKPOINTS; i++) {
            snprintf(names[n], sizeof names[n], "%.20s %s", devices[d], checkpoints[i].name);
            if (argc > 1 && !strstr(names[n], argv[1]))
                continue;
            tests[n] = cases[d];
            tests[n].name = names[n];
            tests[n].initial_state = (void *)&checkpoints[i];
            n++;
        }
    base_log_set_level(IFX_LOG_WARN);
    return _cmocka_run_group_tests("golden", tests, n, NULL, NULL);
}
