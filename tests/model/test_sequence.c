/* SPDX-License-Identifier: Apache-2.0
 *
 * test_sequence.c - what a sequence holds does not depend on how it got there: cuts, copies, company in a batch, thread counts;
 * and where it ends: context limit, cancellation.
 */
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DENSE "checkpoints/qwen3_5-tiny"
#define MOE   "checkpoints/qwen3_5_moe-tiny"
#define NVFP4 "checkpoints/qwen3_5_moe-mid-nvfp4"

static void make_tokens(int32_t *tokens, uint32_t n, uint32_t vocab, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((seed >> 8) % vocab);
    }
}

/* ---- cuts ---- */

/* Last logits and state after each length of a token-by-token run. */
struct truth {
    uint32_t vocab;
    uint64_t state_values;
    float *logits, *states; /* row L - 1: after L tokens */
};

static void run_truth(struct truth *t, const char *path, const char *device, const int32_t *tokens, uint32_t n, bool states)
{
    struct rig r;
    struct ifx_sequence *s;
    struct options o = {.device = device};
    rig_open(&r, path, &o);
    OK(ifx_sequence_create(r.model, &s));
    t->vocab = r.info.desc->vocab;
    ifx_sequence_state(s, &t->state_values);
    t->logits = base_calloc((uint64_t)n * t->vocab, sizeof(float));
    t->states = states ? base_calloc(n * t->state_values, sizeof(float)) : NULL;
    for (uint32_t i = 0; i < n; i++) {
        OK(ifx_sequence_feed(s, tokens + i, 1, 1, t->logits + (uint64_t)i * t->vocab));
        if (states)
            memcpy(t->states + i * t->state_values, ifx_sequence_state(s, &t->state_values), t->state_values * sizeof(float));
    }
    ifx_sequence_destroy(s);
    rig_close(&r);
}

static void check_cut(struct ifx_sequence *s, const struct truth *t, const char *device, const int32_t *tokens, uint32_t length,
                      uint32_t cut, double tolerance)
{
    float logits[2048];
    uint64_t n, at;
    OK(ifx_sequence_reset(s));
    for (uint32_t i = 0; i < length; i += cut) {
        uint32_t take = cut < length - i ? cut : length - i;
        OK(ifx_sequence_feed(s, tokens + i, take, i + take == length, logits));
    }
    const float *want = t->logits + (uint64_t)(length - 1) * t->vocab;
    double l2 = relative_l2(logits, want, t->vocab), most = largest_difference(logits, want, t->vocab, &at);
    if (!(l2 <= tolerance))
        FAIL("%s: %u tokens in pieces of %u: relative L2 of the logits %g (logit %u: %g, one by one %g), expected %g", device,
             length, cut, l2, (unsigned)at, logits[at], want[at], tolerance);
    const float *state = ifx_sequence_state(s, &n), *want_state = t->states + (length - 1) * n;
    l2 = relative_l2(state, want_state, n);
    if (!(l2 <= tolerance))
        FAIL("%s: %u tokens in pieces of %u: relative L2 of the state %g, expected %g (%g)", device, length, cut, l2, tolerance, most);
}

static void check_cuts(const char *device, const struct truth *t, const int32_t *tokens, double tolerance)
{
    static const uint32_t far[] = {255, 256, 257, 575, 576, 577};
    static const uint32_t cuts[] = {2, 3, 4, 31, 32, 33, 63, 64, 65, 128, 1000};
    struct options o = {.device = device, .chunk = 600};
    struct rig r;
    struct ifx_sequence *s;
    rig_open(&r, golden(0, DENSE), &o);
    OK(ifx_sequence_create(r.model, &s));
    bool fast = strcmp(device, "cpu") == 0;
    for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
        /* The oracle is slow: every third length. */
        for (uint32_t length = 1; length <= 130; length += fast ? 1 : 3)
            if (length > cuts[c] || cuts[c] == 1000)
                check_cut(s, t, device, tokens, length, cuts[c], tolerance);
        for (size_t f = 0; f < sizeof far / sizeof far[0] && cuts[c] >= 63; f++)
            check_cut(s, t, device, tokens, far[f], cuts[c], tolerance);
    }
    ifx_sequence_destroy(s);
    rig_close(&r);
}

static void test_cuts(void **state)
{
    enum { N = 577 };
    int32_t tokens[N];
    struct truth ref = {0};
    (void)state;
    make_tokens(tokens, N, 512, 7);
    run_truth(&ref, golden(0, DENSE), "ref", tokens, N, true);
    /* ref to float32 rounding; cpu rounds its products' inputs to bf16 */
    check_cuts("ref", &ref, tokens, 1e-3);
    check_cuts("cpu", &ref, tokens, 2e-2);
    base_free(ref.logits);
    base_free(ref.states);
}

/* ---- copies ---- */

static void test_copies(void **state)
{
    static const char *const devices[] = {"ref", "cpu"};
    int32_t tokens[100];
    float a[1024], b[1024];
    uint64_t at, n;
    (void)state;
    for (size_t d = 0; d < 2; d++) {
        struct options o = {.device = devices[d], .sequences = 2};
        struct rig r;
        struct ifx_sequence *s, *copy, *third;
        rig_open(&r, golden(0, MOE), &o);
        make_tokens(tokens, 100, r.info.desc->vocab, 3);
        OK(ifx_sequence_create(r.model, &s));
        OK(ifx_sequence_feed(s, tokens, 70, 0, NULL));
        OK(ifx_sequence_copy(s, &copy));
        assert_int_equal(ifx_sequence_length(copy), 70);
        assert_int_equal(ifx_sequence_create(r.model, &third), IFX_ELIMIT);
        /* The original goes elsewhere first: the copy must not notice. */
        OK(ifx_sequence_feed(s, tokens, 5, 0, NULL));
        OK(ifx_sequence_feed(copy, tokens + 70, 30, 1, a));
        OK(ifx_sequence_reset(s));
        OK(ifx_sequence_feed(s, tokens, 70, 0, NULL));
        OK(ifx_sequence_feed(s, tokens + 70, 30, 1, b));
        if (largest_difference(a, b, r.info.desc->vocab, &at) != 0)
            FAIL("%s: a copied sequence gives logit %u %g, the original %g", devices[d], (unsigned)at, a[at], b[at]);
        const float *x = ifx_sequence_state(s, &n), *y = ifx_sequence_state(copy, &n);
        if (largest_difference(x, y, n, &at) != 0)
            FAIL("%s: state value %u differs in the copy", devices[d], (unsigned)at);
        ifx_sequence_destroy(copy);
        OK(ifx_sequence_create(r.model, &third));
        ifx_sequence_destroy(third);
        ifx_sequence_destroy(s);
        rig_close(&r);
    }
}

/* ---- batches ---- */

#define MOST 8
struct batch {
    struct rig r;
    struct ifx_sequence *s[MOST];
    uint32_t vocab;
};

static void check_batch(const char *path, const char *device, uint32_t count, uint32_t each)
{
    struct options o = {.device = device, .sequences = MOST};
    struct batch b;
    int32_t tokens[MOST][40];
    uint64_t at;
    rig_open(&b.r, path, &o);
    b.vocab = b.r.info.desc->vocab;
    float *alone = base_calloc((uint64_t)MOST * b.vocab, sizeof(float)), *together = base_calloc((uint64_t)MOST * b.vocab, sizeof(float));
    for (uint32_t i = 0; i < count; i++) {
        make_tokens(tokens[i], 40, b.vocab, 100 + i);
        OK(ifx_sequence_create(b.r.model, &b.s[i]));
        OK(ifx_sequence_feed(b.s[i], tokens[i], 5 + 3 * i, 0, NULL)); /* histories of different lengths */
        OK(ifx_sequence_feed(b.s[i], tokens[i] + 5 + 3 * i, each, 1, alone + (uint64_t)i * b.vocab));
        OK(ifx_sequence_reset(b.s[i]));
        OK(ifx_sequence_feed(b.s[i], tokens[i], 5 + 3 * i, 0, NULL));
    }
    struct ifx_batch_item items[MOST];
    for (uint32_t i = 0; i < count; i++)
        items[i] = (struct ifx_batch_item){.sequence = b.s[i], .tokens = tokens[i] + 5 + 3 * i, .n = each, .n_logits = 1,
                                           .logits = together + (uint64_t)i * b.vocab};
    OK(ifx_batch_feed(items, count));
    for (uint32_t i = 0; i < count; i++) {
        OK(items[i].status);
        const float *a = alone + (uint64_t)i * b.vocab, *t = together + (uint64_t)i * b.vocab;
        if (largest_difference(t, a, b.vocab, &at) != 0)
            FAIL("%s %s: sequence %u of %u with %u columns each: logit %u is %.9g, alone %.9g", path, device, i, count, each,
                 (unsigned)at, t[at], a[at]);
        ifx_sequence_destroy(b.s[i]);
    }
    base_free(alone);
    base_free(together);
    rig_close(&b.r);
}

static void test_batches(void **state)
{
    static const char *const paths[] = {DENSE, MOE, NVFP4};
    (void)state;
    for (size_t p = 0; p < 3; p++) {
        check_batch(golden(0, "%s", paths[p]), "ref", 3, 2);
        check_batch(golden(0, "%s", paths[p]), "cpu", 2, 1);
        check_batch(golden(0, "%s", paths[p]), "cpu", 8, 1);
        check_batch(golden(0, "%s", paths[p]), "cpu", 4, 2);
        check_batch(golden(0, "%s", paths[p]), "cpu", 5, 6); /* five passes */
    }
}

/* Sequences come and go in a server's steps: prompts in pieces beside decode columns of any number.  Each gets the bits that it gets alone. */
#define STREAMS 11
struct stream {
    int32_t tokens[120];
    uint32_t prompt, length, at, joins;
    struct ifx_sequence *s;
};

static void make_streams(struct stream *t, uint32_t vocab)
{
    memset(t, 0, STREAMS * sizeof *t);
    for (uint32_t i = 0; i < STREAMS; i++) {
        make_tokens(t[i].tokens, 120, vocab, 900 + i);
        t[i].prompt = i % 3 == 0 ? 5 + i : 20 + 7 * i;
        t[i].length = t[i].prompt + 10 + i % 4;
        t[i].joins = i * 3 / 2;
    }
}

static uint32_t stream_take(const struct stream *t)
{
    return t->at < t->prompt ? ifx_sequence_take(t->s, t->prompt - t->at) : 1;
}

static void run_alone(struct ifx_model *m, const struct stream *t, uint32_t vocab, float *logits)
{
    struct stream x = *t;
    OK(ifx_sequence_create(m, &x.s));
    while (x.at < x.length) {
        uint32_t n = stream_take(&x);
        OK(ifx_sequence_feed(x.s, x.tokens + x.at, n, 1, logits + (uint64_t)(x.at + n - 1) * vocab));
        x.at += n;
    }
    ifx_sequence_destroy(x.s);
}

static void check_mixture(const char *path, const char *device)
{
    struct options o = {.device = device, .sequences = STREAMS, .chunk = 32};
    static struct stream t[STREAMS];
    struct rig r;
    uint64_t at;
    rig_open(&r, path, &o);
    uint32_t vocab = r.info.desc->vocab, left = STREAMS, mixed = 0;
    float *want[STREAMS], *got = base_calloc((uint64_t)STREAMS * vocab, sizeof *got);
    make_streams(t, vocab);
    for (uint32_t i = 0; i < STREAMS; i++) {
        want[i] = base_calloc(120ull * vocab, sizeof(float));
        run_alone(r.model, &t[i], vocab, want[i]);
    }
    for (uint32_t step = 0; left; step++) {
        struct ifx_batch_item items[STREAMS];
        uint32_t which[STREAMS], n = 0, columns = 0;
        for (uint32_t i = 0; i < STREAMS; i++) {
            if (t[i].joins > step || t[i].at == t[i].length)
                continue;
            if (!t[i].s)
                OK(ifx_sequence_create(r.model, &t[i].s));
            items[n] = (struct ifx_batch_item){.sequence = t[i].s, .tokens = t[i].tokens + t[i].at, .n = stream_take(&t[i]),
                                               .n_logits = 1, .logits = got + (uint64_t)n * vocab};
            columns += items[n].n;
            which[n++] = i;
        }
        mixed += columns > IFX_NARROW_COLUMNS;
        OK(ifx_batch_feed(items, n));
        for (uint32_t k = 0; k < n; k++) {
            struct stream *x = &t[which[k]];
            if (items[k].status)
                FAIL("%s %s: step %u: %s", path, device, step, items[k].error);
            x->at += items[k].n;
            const float *w = want[which[k]] + (uint64_t)(x->at - 1) * vocab;
            if (largest_difference(items[k].logits, w, vocab, &at) != 0)
                FAIL("%s %s: step %u of %u columns: sequence %u after %u tokens: logit %u is %.9g, alone %.9g", path, device, step, columns,
                     which[k], x->at, (unsigned)at, items[k].logits[at], w[at]);
            if (x->at < x->length)
                continue;
            ifx_sequence_destroy(x->s);
            left--;
        }
    }
    assert_true(mixed > 5);
    for (uint32_t i = 0; i < STREAMS; i++)
        base_free(want[i]);
    base_free(got);
    rig_close(&r);
}

static void test_mixtures(void **state)
{
    (void)state;
    check_mixture(golden(0, MOE), "ref");
    check_mixture(golden(0, DENSE), "cpu");
    check_mixture(golden(0, MOE), "cpu");
    check_mixture(golden(0, NVFP4), "cpu");
}

/* What cannot be fed says so and leaves the others alone. */
static void test_refused_items(void **state)
{
    struct options o = {.device = "cpu", .sequences = 5, .ctx = 64, .chunk = 16};
    struct rig r;
    struct ifx_sequence *s[5];
    int32_t tokens[64], bad = 512;
    static float logits[5][512], want[512];
    uint64_t at;
    (void)state;
    rig_open(&r, golden(0, MOE), &o);
    make_tokens(tokens, 64, 512, 77);
    for (int i = 0; i < 5; i++)
        OK(ifx_sequence_create(r.model, &s[i]));
    OK(ifx_sequence_feed(s[0], tokens, 10, 1, want));
    OK(ifx_sequence_reset(s[0]));
    OK(ifx_sequence_feed(s[0], tokens, 9, 0, NULL));
    OK(ifx_sequence_feed(s[1], tokens, 64, 0, NULL));
    struct ifx_batch_item items[6] = {
        {.sequence = s[1], .tokens = tokens, .n = 1, .n_logits = 1, .logits = logits[1]},   /* past the context */
        {.sequence = s[2], .tokens = &bad, .n = 1, .n_logits = 1, .logits = logits[2]},     /* no such token */
        {.sequence = s[0], .tokens = tokens + 9, .n = 1, .n_logits = 1, .logits = logits[0]},
        {.sequence = s[3], .tokens = tokens, .n = 17, .n_logits = 1, .logits = logits[3]},  /* longer than a chunk */
        {.sequence = s[4], .tokens = tokens, .n = 0},
        {.sequence = s[0], .tokens = tokens, .n = 1},                                        /* twice */
    };
    static const int32_t statuses[6] = {IFX_ELIMIT, IFX_EINVAL, IFX_OK, IFX_EINVAL, IFX_EINVAL, IFX_EINVAL};
    static const char *const texts[5] = {"64", "512", NULL, "17 tokens", "0 tokens"};
    OK(ifx_batch_feed(items, 6));
    for (int i = 0; i < 6; i++) {
        assert_int_equal(items[i].status, statuses[i]);
        if (i < 5 && texts[i] && !strstr(items[i].error, texts[i]))
            FAIL("item %d: the text must name \"%s\": %s", i, texts[i], items[i].error);
    }
    if (largest_difference(logits[0], want, 512, &at) != 0)
        FAIL("beside refused ones: logit %u is %g, expected %g", (unsigned)at, logits[0][at], want[at]);
    static const uint64_t lengths[5] = {10, 64, 0, 0, 0};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(ifx_sequence_length(s[i]), lengths[i]);
        if (i != 1)
            OK(ifx_sequence_feed(s[i], tokens, 1, 1, want)); /* still usable */
        ifx_sequence_destroy(s[i]);
    }
    rig_close(&r);
}

/* ---- thread counts ---- */

static void test_threads(void **state)
{
    static const char *const paths[] = {DENSE, MOE, NVFP4};
    int32_t tokens[120];
    (void)state;
    for (size_t p = 0; p < 3; p++) {
        float *first = NULL;
        for (uint32_t threads = 1; threads <= 4; threads++) {
            struct options o = {.device = "cpu", .threads = threads};
            struct rig r;
            struct ifx_sequence *s;
            uint64_t at;
            rig_open(&r, golden(0, "%s", paths[p]), &o);
            uint32_t vocab = r.info.desc->vocab, count = 20 * vocab;
            float *logits = base_calloc(count, sizeof *logits);
            make_tokens(tokens, 120, vocab, 11);
            OK(ifx_sequence_create(r.model, &s));
            OK(ifx_sequence_feed(s, tokens, 100, 0, NULL));
            feed_cut(s, tokens + 100, 20, 1, vocab, logits);
            if (first && largest_difference(first, logits, count, &at) != 0)
                FAIL("%s: %u threads: logit %u is %.9g, with 1 thread %.9g", paths[p], threads, (unsigned)at, logits[at], first[at]);
            if (first)
                base_free(logits);
            else
                first = logits;
            ifx_sequence_destroy(s);
            rig_close(&r);
        }
        base_free(first);
    }
}

/* ---- limits ---- */

static void test_context_limit(void **state)
{
    struct options o = {.device = "cpu", .ctx = 128};
    struct rig r;
    struct ifx_sequence *s;
    int32_t tokens[1000];
    static float logits[512];
    (void)state;
    make_tokens(tokens, 1000, 512, 5);
    rig_open(&r, golden(0, DENSE), &o);
    OK(ifx_sequence_create(r.model, &s));
    OK(ifx_sequence_feed(s, tokens, 127, 1, logits));
    OK(ifx_sequence_feed(s, tokens, 1, 1, logits));
    assert_int_equal(ifx_sequence_feed(s, tokens, 1, 1, logits), IFX_ELIMIT);
    OK(ifx_sequence_reset(s));
    OK(ifx_sequence_feed(s, tokens, 128, 1, logits));
    OK(ifx_sequence_reset(s));
    static const uint32_t too_long[] = {129, 1000};
    for (size_t i = 0; i < 2; i++) {
        char count[16];
        snprintf(count, sizeof count, "%u", too_long[i]);
        assert_int_equal(ifx_sequence_feed(s, tokens, too_long[i], 1, logits), IFX_ELIMIT);
        if (!strstr(base_error_text(), count) || !strstr(base_error_text(), "128") || !strstr(base_error_text(), "--ctx"))
            FAIL("the error must name %s, 128 and --ctx: %s", count, base_error_text());
        assert_int_equal(ifx_sequence_length(s), 0); /* nothing was cut off and fed */
    }
    OK(ifx_sequence_feed(s, tokens, 10, 1, logits)); /* still usable */
    OK(ifx_sequence_reset(s));
    /* The prompt fits, the answer does not: it ends by length. */
    struct ifx_generate g = {.prompt = tokens, .n_prompt = 120, .max_tokens = 50, .ignore_stop_ids = true};
    struct ifx_generate_result result;
    ifx_sampling_greedy(&g.sampling);
    OK(ifx_generate(s, &g, &result));
    assert_int_equal(result.finish, IFX_FINISH_LENGTH);
    assert_int_equal(result.n_generated, 9); /* 8 fed back, the last one has no room */
    assert_int_equal(ifx_sequence_length(s), 128);
    ifx_sequence_destroy(s);
    rig_close(&r);
    o.ctx = 1000000;
    rig_refused(golden(0, DENSE), &o, "4096");
}

static void test_bad_tokens(void **state)
{
    struct rig r;
    struct ifx_sequence *s;
    const int32_t bad[][2] = {{3, -1}, {3, 512}, {INT32_MAX, 3}};
    static float logits[512];
    (void)state;
    rig_open(&r, golden(0, DENSE), NULL);
    OK(ifx_sequence_create(r.model, &s));
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(ifx_sequence_feed(s, bad[i], 2, 1, logits), IFX_EINVAL);
    assert_int_equal(ifx_sequence_length(s), 0);
    struct ifx_generate g = {.prompt = bad[0], .n_prompt = 0};
    struct ifx_generate_result result;
    ifx_sampling_greedy(&g.sampling);
    assert_int_equal(ifx_generate(s, &g, &result), IFX_EINVAL);
    ifx_sequence_destroy(s);
    rig_close(&r);
}

static int32_t cancel_at_layer(void *ctx, int32_t layer, uint64_t pos0, uint32_t n, const float *x, uint32_t width)
{
    (void)pos0;
    (void)n;
    (void)x;
    (void)width;
    if (layer == *(int32_t *)ctx)
        base_cancel_request();
    return IFX_OK;
}

static void test_cancellation(void **state)
{
    struct rig r;
    struct ifx_sequence *s;
    int32_t tokens[300], layer = 1;
    static float logits[512];
    struct ifx_observer observer = {.ctx = &layer, .hidden = cancel_at_layer};
    struct options o = {.device = "cpu", .chunk = 300};
    (void)state;
    make_tokens(tokens, 300, 512, 5);
    rig_open(&r, golden(0, DENSE), &o);
    OK(ifx_sequence_create(r.model, &s));
    ifx_sequence_observe(s, &observer);
    /* In the middle of a wide step: the sequence is then lost. */
    assert_int_equal(ifx_sequence_feed(s, tokens, 300, 1, logits), IFX_ECANCELLED);
    base_cancel_reset();
    assert_int_equal(ifx_sequence_feed(s, tokens, 1, 1, logits), IFX_EINVAL);
    /* A step of one token runs to its end, and the sequence can go on afterwards. */
    OK(ifx_sequence_reset(s));
    OK(ifx_sequence_feed(s, tokens, 1, 1, logits));
    assert_int_equal(ifx_sequence_feed(s, tokens, 1, 1, logits), IFX_ECANCELLED);
    base_cancel_reset();
    ifx_sequence_observe(s, NULL);
    OK(ifx_sequence_feed(s, tokens, 1, 1, logits));
    assert_int_equal(ifx_sequence_length(s), 2);
    ifx_sequence_destroy(s);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts),          cmocka_unit_test(test_copies),     cmocka_unit_test(test_batches),
        cmocka_unit_test(test_mixtures),      cmocka_unit_test(test_refused_items),
        cmocka_unit_test(test_threads),       cmocka_unit_test(test_bad_tokens), cmocka_unit_test(test_cancellation),
        cmocka_unit_test(test_context_limit),
    };
    base_log_set_level(IFX_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
