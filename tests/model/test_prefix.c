/* SPDX-License-Identifier: Apache-2.0
 *
 * test_prefix.c - a prompt that begins with what was kept goes on exactly as the sequence that was kept; what is kept, shared, dropped,
 * and never kept.
 */
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define DENSE "checkpoints/qwen3_5-tiny"
#define MOE   "checkpoints/qwen3_5_moe-tiny"
#define VOCAB 512u
#define PAGE  64u
#define MIB   (1ull << 20)

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void make_tokens(int32_t *tokens, uint32_t n, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(next_random(&seed) % VOCAB);
}

static void same_bits(const char *what, uint32_t at, const float *got, const float *want)
{
    uint64_t i;
    if (largest_difference(got, want, VOCAB, &i) != 0)
        FAIL("%s %u: logit %u is %.9g, expected %.9g", what, at, (unsigned)i, got[i], want[i]);
}

static struct ifx_prefix_stats stats_of(struct rig *r)
{
    struct ifx_prefix_stats x;
    ifx_prefix_stats(r->model, &x);
    if (x.bytes > x.bytes_limit)
        FAIL("%llu bytes are kept, the limit is %llu", (unsigned long long)x.bytes, (unsigned long long)x.bytes_limit);
    return x;
}

static uint64_t attach(struct ifx_sequence *s, const int32_t *tokens, uint64_t n)
{
    uint64_t cached;
    OK(ifx_sequence_attach(s, tokens, n, &cached));
    assert_int_equal(ifx_sequence_length(s), cached);
    assert_true(cached < n);
    return cached;
}

/* ---- a conversation: a new sequence each turn, beside one that lives on and one that reads everything again ---- */

#define TURNS 20
struct talk {
    int32_t tokens[4096];
    uint64_t n;
};

static uint32_t answer(struct ifx_sequence *s, struct talk *t, uint64_t fed, uint32_t count, float *rows)
{
    float logits[VOCAB];
    OK(ifx_sequence_feed(s, t->tokens + fed, t->n - fed, 1, logits));
    for (uint32_t i = 0; i < count; i++) {
        memcpy(rows + (uint64_t)i * VOCAB, logits, sizeof logits);
        t->tokens[t->n++] = argmax(logits, VOCAB);
        if (i + 1 < count)
            OK(ifx_sequence_feed(s, &t->tokens[t->n - 1], 1, 1, logits));
    }
    return count;
}

/* Steps at which a run from scratch would have chosen another token although it had a margin. */
static uint32_t compare_fresh(struct rig *r, const struct talk *t, uint64_t prompt, const float *rows, uint32_t count, double tolerance,
                              uint32_t *ties)
{
    struct ifx_sequence *s;
    float logits[VOCAB];
    uint32_t others = 0;
    OK(ifx_sequence_create(r->model, &s));
    OK(ifx_sequence_feed(s, t->tokens, prompt, 1, logits));
    for (uint32_t i = 0; i < count; i++) {
        const float *row = rows + (uint64_t)i * VOCAB;
        int32_t token = t->tokens[prompt + i];
        double l2 = relative_l2(row, logits, VOCAB);
        if (!(l2 <= tolerance))
            FAIL("after %u tokens: relative L2 %g to a run from scratch, expected %g", (unsigned)(prompt + i), l2, tolerance);
        if (argmax(logits, VOCAB) != token) {
            double margin = logits[argmax(logits, VOCAB)] - logits[token];
            uint64_t at;
            double error = largest_difference(row, logits, VOCAB, &at);
            others += margin > 2 * error;
            (*ties)++;
        }
        OK(ifx_sequence_feed(s, &token, 1, 1, logits));
    }
    ifx_sequence_destroy(s);
    return others;
}

static void converse(const char *path, const char *device, double tolerance)
{
    struct options o = {.device = device, .sequences = 3, .prefix = 64 * MIB, .ctx = 4096};
    struct rig r, plain;
    struct ifx_sequence *live, *s;
    static struct talk t, twin;
    static float rows[40 * VOCAB], live_rows[40 * VOCAB];
    uint32_t seed = 5, others = 0, ties = 0;
    uint64_t before = 0, read = 0;
    rig_open(&r, path, &o);
    o.prefix = 0;
    rig_open(&plain, path, &o);
    OK(ifx_sequence_create(r.model, &live));
    t.n = twin.n = 0;
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        uint32_t said = 5 + next_random(&seed) % 120, count = 3 + next_random(&seed) % 30;
        make_tokens(t.tokens + t.n, said, 77 + turn);
        memcpy(twin.tokens + twin.n, t.tokens + t.n, said * sizeof *t.tokens);
        t.n += said;
        twin.n += said;
        uint64_t prompt = t.n;
        OK(ifx_sequence_create(r.model, &s));
        uint64_t cached = attach(s, t.tokens, t.n);
        if (prompt - cached > prompt - before + PAGE)
            FAIL("turn %u: %u of %u tokens were read, %u of them new", turn, (unsigned)(prompt - cached), (unsigned)prompt,
                 (unsigned)(prompt - before));
        read += prompt - cached;
        answer(s, &t, cached, count, rows);
        OK(ifx_sequence_publish(s));
        ifx_sequence_destroy(s);
        answer(live, &twin, ifx_sequence_length(live), count, live_rows);
        for (uint32_t i = 0; i < count; i++)
            same_bits("beside the sequence that lived on, token", (uint32_t)(prompt + i), rows + (uint64_t)i * VOCAB,
                      live_rows + (uint64_t)i * VOCAB);
        if (turn % 4 == 3 || strcmp(device, "cpu") == 0)
            others += compare_fresh(&plain, &t, prompt, rows, count, tolerance, &ties);
        before = t.n - 1;
    }
    struct ifx_prefix_stats x = stats_of(&r);
    assert_int_equal(x.lookups, TURNS);
    assert_int_equal(x.hits, TURNS - 1);
    print_message("%s on %s: %u tokens, %u read; another token than from scratch %u times\n", path, device, (unsigned)t.n, (unsigned)read, ties);
    if (others)
        FAIL("%s on %s: %u tokens differ from a run from scratch", path, device, others);
    ifx_sequence_destroy(live);
    rig_close(&plain);
    rig_close(&r);
}

static void test_conversation(void **state)
{
    (void)state;
    converse(golden(0, DENSE), "ref", 1e-3);
    converse(golden(0, DENSE), "cpu", 3e-2);
}

static void test_conversation_moe(void **state)
{
    (void)state;
    /* Another choice of experts moves a token's logits; the state that lived on has the same. */
    converse(golden(0, MOE), "cpu", 0.5);
}

/* ---- sharing ---- */

/* A common beginning, read once: what follows is as if each had read it, bit for bit, since both cut it in the same way. */
static void test_common_beginning(void **state)
{
    static const char *const devices[] = {"ref", "cpu"};
    int32_t a[300], b[300];
    float got[VOCAB], want[VOCAB];
    (void)state;
    for (size_t d = 0; d < 2; d++) {
        struct options o = {.device = devices[d], .sequences = 2, .prefix = 16 * MIB, .chunk = PAGE};
        struct rig r, fresh;
        struct ifx_sequence *s, *f;
        rig_open(&r, golden(0, MOE), &o);
        rig_open(&fresh, golden(0, MOE), &o);
        make_tokens(a, 300, 1);
        make_tokens(b, 300, 2);
        memcpy(b, a, 200 * sizeof *a);
        OK(ifx_sequence_create(r.model, &s));
        assert_int_equal(attach(s, a, 300), 0);
        OK(ifx_sequence_feed(s, a, 300, 1, got));
        OK(ifx_sequence_reset(s));
        assert_int_equal(attach(s, b, 300), 192);
        OK(ifx_sequence_feed(s, b + 192, 108, 1, got));
        OK(ifx_sequence_create(fresh.model, &f));
        OK(ifx_sequence_feed(f, b, 300, 1, want));
        same_bits(devices[d], 300, got, want);
        /* The whole prompt again: all but the last page. */
        OK(ifx_sequence_reset(s));
        assert_int_equal(attach(s, b, 300), 256);
        OK(ifx_sequence_feed(s, b + 256, 44, 1, got));
        same_bits("again", 300, got, want);
        /* A prompt that ends where a snapshot does still has to feed its last token. */
        OK(ifx_sequence_reset(s));
        assert_int_equal(attach(s, b, 256), 192);
        struct ifx_prefix_stats x = stats_of(&r);
        assert_int_equal(x.lookups, 4);
        assert_int_equal(x.hits, 3);
        assert_int_equal(x.tokens_reused, 192 + 256 + 192);
        assert_int_equal(x.snapshots, 5); /* 64, 128, 192, 256 of both texts */
        uint64_t cached;
        assert_int_equal(ifx_sequence_attach(s, b, 300, &cached), IFX_EINVAL); /* not empty */
        ifx_sequence_destroy(s);
        ifx_sequence_destroy(f);
        rig_close(&r);
        rig_close(&fresh);
    }
}

/* Three sequences go on from one point inside a page, in three ways, and the fourth finds it as it was. */
static void test_copy_on_write(void **state)
{
    static const char *const kvs[] = {"bf16", "int8", "f32"};
    int32_t a[100], more[4][90];
    float got[4][VOCAB], want[4][VOCAB];
    (void)state;
    for (size_t k = 0; k < 3; k++) {
        struct options o = {.device = "cpu", .kv = kvs[k], .sequences = 4, .prefix = 16 * MIB, .ctx = 256};
        struct rig r;
        struct ifx_sequence *s[4];
        rig_open(&r, golden(0, MOE), &o);
        make_tokens(a, 100, 11);
        OK(ifx_sequence_create(r.model, &s[0]));
        OK(ifx_sequence_feed(s[0], a, 90, 1, got[0]));
        OK(ifx_sequence_publish(s[0]));
        for (int i = 0; i < 4; i++) {
            make_tokens(more[i], 90, 20 + (uint32_t)i);
            memcpy(&more[i][0], &a[89], sizeof a[0]);
        }
        for (int i = 1; i < 4; i++) {
            int32_t prompt[180];
            memcpy(prompt, a, 90 * sizeof *a);
            memcpy(prompt + 90, more[i] + 1, 89 * sizeof *a);
            OK(ifx_sequence_create(r.model, &s[i]));
            assert_int_equal(attach(s[i], prompt, 179), 90);
        }
        for (int i = 0; i < 4; i++) /* one token at a time, in turn: all write behind the same 90 tokens */
            for (int t = 1; t < 90; t++)
                if (i == 0)
                    for (int j = 0; j < 4; j++)
                        OK(ifx_sequence_feed(s[j], &more[j][t], 1, 1, got[j]));
        for (int i = 0; i < 4; i++) {
            OK(ifx_sequence_reset(s[3]));
            OK(ifx_sequence_feed(s[3], a, 90, 0, NULL));
            for (int t = 1; t < 90; t++)
                OK(ifx_sequence_feed(s[3], &more[i][t], 1, 1, want[i]));
            same_bits(kvs[k], (uint32_t)i, got[i], want[i]);
        }
        for (int i = 0; i < 4; i++)
            ifx_sequence_destroy(s[i]);
        rig_close(&r);
    }
}

/* ---- dropping ---- */

/* Many prompts and little room: the limit holds, the beginning that is asked for again and again stays, and every answer is right. */
static void test_eviction(void **state)
{
    enum { PROMPTS = 40, N = 200 };
    struct options o = {.device = "cpu", .sequences = 2, .ctx = 256, .chunk = PAGE};
    struct rig r, fresh;
    struct ifx_sequence *s, *f;
    int32_t tokens[N];
    float got[VOCAB], want[VOCAB];
    uint32_t found = 0;
    (void)state;
    rig_open(&fresh, golden(0, MOE), &o);
    uint64_t block = fresh.info.kv_bytes / (2 * 256 / PAGE), state_bytes = fresh.info.state_bytes + 1024;
    o.prefix = 6 * (block + state_bytes);
    rig_open(&r, golden(0, MOE), &o);
    OK(ifx_sequence_create(r.model, &s));
    OK(ifx_sequence_create(fresh.model, &f));
    for (uint32_t i = 0; i < PROMPTS; i++) {
        make_tokens(tokens, N, 1000 + i);
        make_tokens(tokens, 128, 7); /* common */
        OK(ifx_sequence_reset(s));
        uint64_t cached = attach(s, tokens, N);
        found += cached >= 128;
        OK(ifx_sequence_feed(s, tokens + cached, N - cached, 1, got));
        OK(ifx_sequence_publish(s));
        stats_of(&r);
        if (i % 8 == 7) {
            /* plain and unshared: cut like the other, on the grid */
            OK(ifx_sequence_reset(f));
            for (uint32_t at = 0, n; at < N; at += n) {
                n = at + PAGE < N ? PAGE : N - at;
                OK(ifx_sequence_feed(f, tokens + at, n, at + n == N, want));
            }
            same_bits("prompt", i, got, want);
        }
    }
    struct ifx_prefix_stats x = stats_of(&r);
    assert_true(x.evicted > PROMPTS / 2);
    assert_true(x.snapshots >= 1);
    if (found < PROMPTS - 2)
        FAIL("the common beginning was found by %u of %u prompts", found, PROMPTS);
    ifx_sequence_destroy(s);
    ifx_sequence_destroy(f);
    rig_close(&r);
    rig_close(&fresh);
    /* Room for nothing: nothing is kept, nothing fails. */
    o.prefix = 100;
    rig_open(&r, golden(0, MOE), &o);
    OK(ifx_sequence_create(r.model, &s));
    OK(ifx_sequence_feed(s, tokens, N, 1, got));
    OK(ifx_sequence_publish(s));
    x = stats_of(&r);
    assert_int_equal(x.snapshots + x.kept + x.evicted + x.bytes, 0);
    ifx_sequence_destroy(s);
    rig_close(&r);
}

/* All sequences at their longest need every page: snapshots give theirs up. */
static void test_pages_for_sequences(void **state)
{
    struct options o = {.device = "cpu", .sequences = 3, .ctx = 256, .prefix = 16 * MIB};
    struct rig r;
    struct ifx_sequence *s[3];
    int32_t tokens[256];
    float logits[VOCAB];
    (void)state;
    rig_open(&r, golden(0, DENSE), &o);
    for (uint32_t i = 0; i < 3; i++)
        OK(ifx_sequence_create(r.model, &s[i]));
    for (uint32_t round = 0; round < 60; round++)
        for (uint32_t i = 0; i < 3; i++) {
            make_tokens(tokens, 256, round * 3 + i);
            OK(ifx_sequence_reset(s[i]));
            uint64_t cached = attach(s[i], tokens, 256);
            OK(ifx_sequence_feed(s[i], tokens + cached, 256 - cached, 1, logits));
            OK(ifx_sequence_publish(s[i]));
            stats_of(&r);
        }
    for (uint32_t i = 0; i < 3; i++)
        ifx_sequence_destroy(s[i]);
    rig_close(&r);
}

/* ---- only what was cut like any prompt ---- */

static void test_deterministic(void **state)
{
    struct options o = {.device = "cpu", .sequences = 2, .prefix = 16 * MIB, .chunk = 128, .deterministic = true};
    struct rig r, fresh;
    struct ifx_sequence *s, *f;
    static struct talk t;
    static float rows[12 * VOCAB], want[VOCAB];
    uint64_t reused = 0;
    (void)state;
    rig_open(&r, golden(0, MOE), &o);
    rig_open(&fresh, golden(0, MOE), &o);
    OK(ifx_sequence_create(r.model, &s));
    OK(ifx_sequence_create(fresh.model, &f));
    t.n = 0;
    for (uint32_t turn = 0; turn < 8; turn++) {
        make_tokens(t.tokens + t.n, 90, 3 + turn);
        t.n += 90;
        uint64_t prompt = t.n, cached;
        OK(ifx_sequence_reset(s));
        cached = attach(s, t.tokens, t.n);
        reused += cached;
        assert_int_equal(cached % 128, 0);
        answer(s, &t, cached, 12, rows);
        OK(ifx_sequence_publish(s));
        OK(ifx_sequence_reset(f));
        OK(ifx_sequence_feed(f, t.tokens, prompt, 1, want));
        for (uint32_t i = 0; i < 12; i++) {
            same_bits("from scratch, token", (uint32_t)(prompt + i), rows + (uint64_t)i * VOCAB, want);
            OK(ifx_sequence_feed(f, &t.tokens[prompt + i], 1, 1, want));
        }
    }
    assert_true(reused > 1000);
    ifx_sequence_destroy(s);
    ifx_sequence_destroy(f);
    rig_close(&r);
    rig_close(&fresh);
}

/* ---- what never enters ---- */

struct poison {
    uint64_t at;
};

static int32_t spoil(void *ctx, int32_t layer, uint64_t pos0, uint32_t n, const float *x, uint32_t width)
{
    const struct poison *p = ctx;
    if (layer == 0 && p->at >= pos0 && p->at < pos0 + n)
        ((float *)(uintptr_t)x)[(p->at - pos0) * width] = NAN; /* memory of the step, not constant */
    return IFX_OK;
}

static void test_non_finite(void **state)
{
    static const char *const devices[] = {"ref", "cpu"};
    int32_t tokens[300];
    float logits[VOCAB];
    (void)state;
    make_tokens(tokens, 300, 9);
    for (size_t d = 0; d < 2; d++)
        for (uint64_t at = 5; at < 256; at += 83) {
            struct options o = {.device = devices[d], .sequences = 2, .prefix = 16 * MIB, .chunk = PAGE};
            struct poison p = {at};
            struct ifx_observer observer = {.ctx = &p, .hidden = spoil};
            struct rig r;
            struct ifx_sequence *s, *other;
            rig_open(&r, golden(0, DENSE), &o);
            OK(ifx_sequence_create(r.model, &s));
            OK(ifx_sequence_create(r.model, &other));
            ifx_sequence_observe(s, &observer);
            assert_int_equal(ifx_sequence_feed(s, tokens, 300, 1, logits), IFX_ENONFINITE);
            OK(ifx_sequence_publish(s)); /* keeps nothing */
            struct ifx_prefix_stats x = stats_of(&r);
            assert_int_equal(x.kept + x.snapshots + x.bytes, 0);
            assert_int_equal(attach(other, tokens, 300), 0);
            /* What was proved before stays; what comes after is not taken. */
            p.at = UINT64_MAX;
            OK(ifx_sequence_reset(s));
            OK(ifx_sequence_feed(s, tokens, 64, 1, logits));
            p.at = 64 + at % 60;
            OK(ifx_sequence_feed(s, tokens + 64, 64, 0, NULL));
            OK(ifx_sequence_publish(s));
            assert_int_equal(ifx_sequence_feed(s, tokens + 128, 1, 1, logits), IFX_ENONFINITE);
            OK(ifx_sequence_publish(s));
            x = stats_of(&r);
            assert_int_equal(x.snapshots, 1);
            assert_int_equal(attach(other, tokens, 300), 64);
            OK(ifx_sequence_feed(other, tokens + 64, 236, 1, logits));
            ifx_sequence_destroy(other);
            ifx_sequence_destroy(s);
            rig_close(&r);
        }
}

/* A long prompt without a logit row on the way: what waits for proof is thinned out, not let grow. */
static void test_waiting(void **state)
{
    static int32_t tokens[4000];
    struct options o = {.device = "cpu", .prefix = 64 * MIB, .chunk = PAGE, .ctx = 4096};
    struct rig r;
    struct ifx_sequence *s;
    float logits[VOCAB];
    (void)state;
    make_tokens(tokens, 4000, 21);
    rig_open(&r, golden(0, DENSE), &o);
    OK(ifx_sequence_create(r.model, &s));
    OK(ifx_sequence_feed(s, tokens, 4000, 1, logits));
    struct ifx_prefix_stats x = stats_of(&r);
    assert_int_equal(x.snapshots, 8);
    OK(ifx_sequence_reset(s));
    assert_int_equal(attach(s, tokens, 4000), 3968);
    OK(ifx_sequence_reset(s));
    tokens[2000]++;
    if (attach(s, tokens, 4000) < 900)
        FAIL("a prompt that differs after 2000 tokens begins with %u", (unsigned)ifx_sequence_length(s));
    /* Nothing is left behind by a sequence that ends before its proof. */
    OK(ifx_sequence_reset(s));
    uint64_t bytes = stats_of(&r).bytes;
    make_tokens(tokens, 1000, 22);
    OK(ifx_sequence_feed(s, tokens, 1000, 0, NULL));
    assert_true(stats_of(&r).bytes > bytes);
    ifx_sequence_destroy(s);
    assert_int_equal(stats_of(&r).bytes, bytes);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversation), cmocka_unit_test(test_conversation_moe),    cmocka_unit_test(test_common_beginning),
        cmocka_unit_test(test_copy_on_write), cmocka_unit_test(test_eviction),           cmocka_unit_test(test_pages_for_sequences),
        cmocka_unit_test(test_deterministic), cmocka_unit_test(test_non_finite),         cmocka_unit_test(test_waiting),
    };
    base_log_set_level(IFX_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
