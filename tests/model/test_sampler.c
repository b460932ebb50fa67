/* SPDX-License-Identifier: Apache-2.0
 *
 * test_sampler.c - choices, filters, penalties and the random sequence of a seed.
 */
#include "harness.h"

#include <math.h>
#include <string.h>

static struct ifx_sampler *make(const struct ifx_sampling *o, uint32_t vocab)
{
    struct ifx_sampler *s;
    OK(ifx_sampler_create(o, vocab, &s));
    return s;
}

static int32_t pick(struct ifx_sampler *s, const float *logits)
{
    int32_t token;
    OK(ifx_sampler_pick(s, logits, &token));
    return token;
}

static void test_greedy(void **state)
{
    const float logits[5] = {1, 3, 3, -2, 0};
    float bad[5] = {0, 1, 2, 3, 4};
    struct ifx_sampling o;
    int32_t token;
    (void)state;
    ifx_sampling_greedy(&o);
    struct ifx_sampler *s = make(&o, 5);
    assert_int_equal(pick(s, logits), 1); /* the first of equals */
    for (int i = 0; i < 3; i++) {
        bad[2] = i == 0 ? NAN : i == 1 ? INFINITY : -INFINITY;
        assert_int_equal(ifx_sampler_pick(s, bad, &token), IFX_ENONFINITE);
    }
    ifx_sampler_destroy(s);
}

static void test_filters(void **state)
{
    /* probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625 */
    const float logits[5] = {0, -0.6931472f, -1.3862944f, -2.0794415f, -2.0794415f};
    static const struct {
        struct ifx_sampling o;
        uint32_t left; /* ids below it may be drawn, and all of them are */
    } cases[] = {
        {{.temperature = 1, .top_p = 1, .repetition_penalty = 1}, 5},
        {{.temperature = 1, .top_k = 2, .top_p = 1, .repetition_penalty = 1}, 2},
        {{.temperature = 1, .top_k = 1, .top_p = 1, .repetition_penalty = 1}, 1},
        {{.temperature = 1, .top_p = 0.6f, .repetition_penalty = 1}, 2},
        {{.temperature = 1, .top_p = 0.01f, .repetition_penalty = 1}, 1},
        {{.temperature = 1, .top_p = 1, .min_p = 0.2f, .repetition_penalty = 1}, 3},
        {{.temperature = 1, .top_k = 4, .top_p = 0.9f, .min_p = 0.1f, .repetition_penalty = 1}, 3},
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        uint32_t drawn[5] = {0};
        struct ifx_sampler *s = make(&cases[c].o, 5);
        for (int i = 0; i < 2000; i++)
            drawn[pick(s, logits)]++;
        for (uint32_t i = 0; i < 5; i++)
            if ((drawn[i] > 0) != (i < cases[c].left))
                FAIL("case %u: id %u was drawn %u times, %u ids are allowed", (unsigned)c, i, drawn[i], cases[c].left);
        ifx_sampler_destroy(s);
    }
}

static void test_frequencies(void **state)
{
    const float logits[4] = {logf(0.1f), logf(0.2f), logf(0.3f), logf(0.4f)};
    struct ifx_sampling o = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 3};
    (void)state;
    for (uint32_t k = 0; k <= 3; k += 3) { /* unfiltered walk and sorted candidates */
        uint32_t drawn[4] = {0};
        o.min_p = k ? 1e-6f : 0;
        struct ifx_sampler *s = make(&o, 4);
        for (int i = 0; i < 40000; i++)
            drawn[pick(s, logits)]++;
        for (uint32_t i = 0; i < 4; i++)
            if (fabs(drawn[i] / 40000.0 - 0.1 * (i + 1)) > 0.01)
                FAIL("id %u: frequency %g, expected %g", i, drawn[i] / 40000.0, 0.1 * (i + 1));
        ifx_sampler_destroy(s);
    }
}

static void test_seed(void **state)
{
    enum { VOCAB = 3000 };
    static float logits[VOCAB];
    struct ifx_sampling o = {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .repetition_penalty = 1, .seed = 42};
    /* Fixed by the documented generator and ifx_exp; a change here is a change of what a seed means. */
    int32_t a[16], b[16], c[16];
    (void)state;
    for (uint32_t i = 0; i < VOCAB; i++)
        logits[i] = (float)((i * 2654435761u) >> 20) / 512.0f;
    for (int round = 0; round < 3; round++) {
        o.seed = round == 2 ? 43 : 42;
        struct ifx_sampler *s = make(&o, VOCAB);
        for (int i = 0; i < 16; i++)
            (round == 0 ? a : round == 1 ? b : c)[i] = pick(s, logits);
        ifx_sampler_destroy(s);
    }
    assert_memory_equal(a, b, sizeof a);
    assert_memory_not_equal(a, c, sizeof a);
}

static void test_top_p_of_a_large_vocabulary(void **state)
{
    /* Flat: top-p 0.9 needs nine tenths of the ids, far more than the first selection holds. */
    enum { VOCAB = 5000 };
    static float logits[VOCAB];
    struct ifx_sampling o = {.temperature = 1, .top_p = 0.9f, .repetition_penalty = 1, .seed = 1};
    int32_t most = 0;
    (void)state;
    struct ifx_sampler *s = make(&o, VOCAB);
    for (int i = 0; i < 3000; i++) {
        int32_t t = pick(s, logits);
        most = t > most ? t : most;
    }
    if (most >= 4501 || most < 4300)
        FAIL("the largest id drawn is %d, expected just below 4500", most);
    ifx_sampler_destroy(s);
}

static void test_penalties(void **state)
{
    const float logits[4] = {2, 1.9f, -1, -1.05f};
    struct ifx_sampling o;
    int32_t prompt[] = {0};
    (void)state;
    ifx_sampling_greedy(&o);
    o.repetition_penalty = 1.2f;
    struct ifx_sampler *s = make(&o, 4);
    assert_int_equal(pick(s, logits), 0);
    ifx_sampler_prompt(s, prompt, 1);
    assert_int_equal(pick(s, logits), 1); /* 2 / 1.2 < 1.9 */
    ifx_sampler_destroy(s);
    ifx_sampling_greedy(&o);
    o.presence_penalty = 0.2f;
    s = make(&o, 4);
    ifx_sampler_prompt(s, prompt, 1);
    assert_int_equal(pick(s, logits), 0); /* a prompt does not count for presence */
    ifx_sampler_accept(s, 0);
    assert_int_equal(pick(s, logits), 1);
    ifx_sampler_accept(s, 1);
    ifx_sampler_accept(s, 1);
    assert_int_equal(pick(s, logits), 0); /* presence counts once */
    ifx_sampler_destroy(s);
    ifx_sampling_greedy(&o);
    o.frequency_penalty = 0.06f;
    s = make(&o, 4);
    ifx_sampler_accept(s, 0);
    assert_int_equal(pick(s, logits), 0);
    ifx_sampler_accept(s, 0);
    assert_int_equal(pick(s, logits), 1);
    ifx_sampler_destroy(s);
}

static void test_refusals(void **state)
{
    struct ifx_sampler *s;
    const struct ifx_sampling bad[] = {
        {.temperature = -1, .top_p = 1, .repetition_penalty = 1},
        {.temperature = NAN, .top_p = 1, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 0, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 1.5f, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 1, .min_p = 2, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (ifx_sampler_create(&bad[i], 10, &s) != IFX_EINVAL)
            FAIL("settings %u were accepted", (unsigned)i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy), cmocka_unit_test(test_filters),   cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_seed),   cmocka_unit_test(test_penalties), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_top_p_of_a_large_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
