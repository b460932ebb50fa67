/* SPDX-License-Identifier: Apache-2.0
 *
 * test_demo.c - the demo model against what the reference implementation computes from its checkpoint: greedy tokens and NLL.
 * IFX_DEMO_CHECKPOINT names the checkpoint's folder (it is not part of the tree); without it the test is skipped.  IFX_LONG adds
 * what takes minutes: a longer NLL on `ref` and a decode of 4096 steps.
 */
#include "harness.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REFERENCE_NLL 3.55822 /* mean over 8 windows of 1024 tokens, float32 */
#define WINDOW        1024u
#define SAFE_MARGIN   0.05

static const char *checkpoint(void)
{
    return getenv("IFX_DEMO_CHECKPOINT");
}

/* ---- greedy continuations ---- */

struct tally {
    uint32_t steps, other, unsafe;
};

static void run_golden(struct rig *r, const json_t *g, const char *where, struct tally *t)
{
    const json_t *prompt = json_object_get(g, "prompt_ids"), *ids = json_object_get(g, "ids"), *margins = json_object_get(g, "margins");
    uint32_t n = (uint32_t)json_array_size(prompt), vocab = r->info.desc->vocab;
    int32_t *tokens = base_calloc(n, sizeof *tokens);
    float *logits = base_calloc(vocab, sizeof *logits);
    struct ifx_sequence *s;
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)json_integer_value(json_array_get(prompt, i));
    OK(ifx_sequence_create(r->model, &s));
    OK(ifx_sequence_feed(s, tokens, n, 1, logits));
    for (uint32_t i = 0; i < json_array_size(ids); i++) {
        int32_t want = (int32_t)json_integer_value(json_array_get(ids, i)), got = argmax(logits, vocab);
        double margin = json_number_value(json_array_get(margins, i));
        t->steps++;
        t->unsafe += margin < SAFE_MARGIN;
        if (got != want) {
            t->other++;
            if (margin >= SAFE_MARGIN)
                FAIL("%s: \"%s\" step %u: token %d, expected %d (margin %g)", where,
                     json_string_value(json_object_get(g, "prompt")), i, got, want, margin);
        }
        OK(ifx_sequence_feed(s, &want, 1, 1, logits));
    }
    ifx_sequence_destroy(s);
    base_free(tokens);
    base_free(logits);
}

static void greedy_on(const char *device)
{
    struct options o = {.device = device};
    struct rig r;
    struct tally t = {0};
    json_t *root = json_load_file(golden(0, "demo-goldens.json"), 0, NULL);
    const json_t *goldens = json_object_get(root, "goldens");
    assert_non_null(goldens);
    rig_open(&r, checkpoint(), &o);
    for (size_t i = 0; i < json_array_size(goldens); i++)
        run_golden(&r, json_array_get(goldens, i), device, &t);
    print_message("%s: %u steps, %u of them with a margin below %g, %u of those with another token\n", device, t.steps, t.unsafe,
                  SAFE_MARGIN, t.other);
    assert_true(t.steps >= 12 * 64);
    rig_close(&r);
    json_decref(root);
}

static void test_greedy_ref(void **state)
{
    (void)state;
    greedy_on("ref");
}

static void test_greedy_cpu(void **state)
{
    (void)state;
    greedy_on("cpu");
}

/* ---- NLL ---- */

static int32_t *eval_tokens(struct rig *r, uint32_t windows)
{
    char *text;
    uint64_t bytes, n = 0;
    int32_t *ids = NULL;
    OK(base_read_file(golden(0, "demo-eval.txt"), 1 << 24, &text, &bytes));
    assert_non_null(ifx_model_tokenizer(r->model));
    OK(text_encode(ifx_model_tokenizer(r->model), text, bytes, 0, &ids, &n));
    assert_int_equal(n, 66787);
    assert_true(n >= (uint64_t)windows * WINDOW);
    base_free(text);
    return ids;
}

/* NLL of each of the first windows. */
static void nll_on(const char *path, const char *device, const char *kv, uint32_t windows, double *nll)
{
    struct options o = {.device = device, .kv = kv, .chunk = 256};
    struct rig r;
    struct ifx_sequence *s;
    rig_open(&r, path, &o);
    uint32_t vocab = r.info.desc->vocab;
    int32_t *ids = eval_tokens(&r, windows);
    float *logits = base_calloc((uint64_t)WINDOW * vocab, sizeof *logits);
    OK(ifx_sequence_create(r.model, &s));
    for (uint32_t w = 0; w < windows; w++) {
        const int32_t *t = ids + (uint64_t)w * WINDOW;
        nll[w] = 0;
        OK(ifx_sequence_reset(s));
        OK(ifx_sequence_feed(s, t, WINDOW, WINDOW, logits));
        for (uint32_t i = 1; i < WINDOW; i++)
            nll[w] -= log_probability(logits + (uint64_t)(i - 1) * vocab, vocab, t[i]) / (WINDOW - 1);
    }
    ifx_sequence_destroy(s);
    base_free(logits);
    base_free(ids);
    rig_close(&r);
}

static double mean(const double *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] / n;
    return sum;
}

static void test_nll(void **state)
{
    double cpu[8], ref[8];
    uint32_t ref_windows = getenv("IFX_LONG") ? 8 : 1;
    (void)state;
    nll_on(checkpoint(), "cpu", NULL, 8, cpu);
    double m = mean(cpu, 8);
    print_message("cpu: NLL %.5f, reference %.5f\n", m, REFERENCE_NLL);
    if (!(fabs(m / REFERENCE_NLL - 1) <= 2e-3))
        FAIL("cpu: NLL %.5f, expected %.5f within 0.2 %%", m, REFERENCE_NLL);
    nll_on(checkpoint(), "ref", NULL, ref_windows, ref);
    if (ref_windows == 8 && !(fabs(mean(ref, 8) - REFERENCE_NLL) <= 1e-4))
        FAIL("ref: NLL %.6f, expected %.5f", mean(ref, 8), REFERENCE_NLL);
    for (uint32_t w = 0; w < ref_windows; w++)
        if (!(fabs(cpu[w] / ref[w] - 1) <= 4e-3))
            FAIL("window %u: NLL %.5f on cpu, %.5f on ref", w, cpu[w], ref[w]);
    print_message("ref: NLL %.5f over %u window%s; cpu over the same %.5f\n", mean(ref, ref_windows), ref_windows,
                  ref_windows > 1 ? "s" : "", mean(cpu, ref_windows));
}

/* The NVFP4 file that ships, when it is there: its NLL is reported, and must not be far off. */
static void test_shipped(void **state)
{
    char *path;
    double nll[8];
    (void)state;
    if (ifx_demo_path(&path)) {
        print_message("no demo.infernix: skipped\n");
        skip();
    }
    nll_on(path, "cpu", NULL, 8, nll);
    print_message("%s: NLL %.5f on cpu (bf16 checkpoint %.5f)\n", path, mean(nll, 8), REFERENCE_NLL);
    if (!(mean(nll, 8) <= REFERENCE_NLL * 1.05))
        FAIL("%s: NLL %.5f, more than 5 %% above %.5f", path, mean(nll, 8), REFERENCE_NLL);
    base_free(path);
}

/* ---- long decode: the state on cpu stays with ref's ---- */

static void test_long_decode(void **state)
{
    uint32_t steps = getenv("IFX_LONG") ? 4090 : 200;
    struct options o = {.device = "ref"};
    struct rig ref, cpu;
    struct ifx_sequence *a, *b;
    (void)state;
    rig_open(&ref, checkpoint(), &o);
    o = (struct options){.device = "cpu", .kv = "f32"};
    rig_open(&cpu, checkpoint(), &o);
    OK(ifx_sequence_create(ref.model, &a));
    OK(ifx_sequence_create(cpu.model, &b));
    int32_t *ids = eval_tokens(&cpu, steps / WINDOW + 1);
    uint32_t vocab = cpu.info.desc->vocab;
    float *la = base_calloc(vocab, sizeof *la), *lb = base_calloc(vocab, sizeof *lb);
    double d = 0, w = 0;
    for (uint32_t i = 0; i < steps; i++) {
        OK(ifx_sequence_feed(a, ids + i, 1, 1, la));
        OK(ifx_sequence_feed(b, ids + i, 1, 1, lb));
        double l2 = relative_l2(lb, la, vocab);
        d += l2 * l2;
        w = l2 > w ? l2 : w;
    }
    uint64_t n;
    const float *sa = ifx_sequence_state(a, &n), *sb = ifx_sequence_state(b, &n);
    double state_l2 = relative_l2(sb, sa, n);
    print_message("%u decode steps: relative L2 of the logits %g (worst %g), of the state at the end %g\n", steps, sqrt(d / steps), w,
                  state_l2);
    if (!(sqrt(d / steps) <= 1e-2))
        FAIL("%u decode steps: relative L2 of the logits %g, expected at most 1e-2", steps, sqrt(d / steps));
    if (!(state_l2 <= 1e-2))
        FAIL("%u decode steps: relative L2 of the state %g", steps, state_l2);
    base_free(la);
    base_free(lb);
    base_free(ids);
    ifx_sequence_destroy(a);
    ifx_sequence_destroy(b);
    rig_close(&ref);
    rig_close(&cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_cpu), cmocka_unit_test(test_nll), cmocka_unit_test(test_long_decode), cmocka_unit_test(test_greedy_ref),
        cmocka_unit_test(test_shipped),
    };
    base_log_set_level(IFX_LOG_WARN);
    if (!checkpoint() || access(checkpoint(), R_OK)) {
        fprintf(stderr, "IFX_DEMO_CHECKPOINT names no folder: skipped\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
