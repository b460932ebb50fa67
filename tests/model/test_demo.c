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

#define MOST_LAYERS 64
#define MOST_TOP_K  32

/* Experts chosen for the last column of a step. */
struct routes {
    uint32_t n, k;
    int32_t ids[MOST_LAYERS][MOST_TOP_K];
};

static int by_id(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

static int32_t on_router(void *ctx, uint32_t layer, uint64_t pos0, uint32_t n, uint32_t top_k, const int32_t *ids, const float *weights)
{
    struct routes *r = ctx;
    (void)pos0;
    (void)weights;
    r->n = layer + 1;
    r->k = top_k;
    memcpy(r->ids[layer], ids + (uint64_t)(n - 1) * top_k, top_k * sizeof *ids);
    qsort(r->ids[layer], top_k, sizeof(int32_t), by_id);
    return IFX_OK;
}

/* One device of the comparison. */
struct side {
    struct rig r;
    struct ifx_sequence *s;
    struct routes routes;
    float *logits;
};

static void side_open(struct side *d, const char *device)
{
    struct options o = {.device = device};
    rig_open(&d->r, checkpoint(), &o);
    OK(ifx_sequence_create(d->r.model, &d->s));
    d->logits = base_calloc(d->r.info.desc->vocab, sizeof *d->logits);
}

static void side_feed(struct side *d, const int32_t *tokens, uint32_t n)
{
    struct ifx_observer o = {.ctx = &d->routes, .router = on_router};
    ifx_sequence_observe(d->s, &o);
    OK(ifx_sequence_feed(d->s, tokens, n, 1, d->logits));
}

static void side_close(struct side *d)
{
    ifx_sequence_destroy(d->s);
    base_free(d->logits);
    rig_close(&d->r);
}

struct tally {
    uint32_t steps, unsafe, ref_other, cpu_other, cpu_routed, cpu_unexplained;
    double error; /* sum of squares of the relative L2 of cpu's logits to ref's where no choice of experts differed */
    uint32_t compared;
};

/* The golden token is fed whatever was chosen. */
static void run_golden(struct side *ref, struct side *cpu, const json_t *g, struct tally *t)
{
    const json_t *prompt = json_object_get(g, "prompt_ids"), *ids = json_object_get(g, "ids"), *margins = json_object_get(g, "margins");
    uint32_t n = (uint32_t)json_array_size(prompt), vocab = ref->r.info.desc->vocab;
    int32_t *tokens = base_calloc(n, sizeof *tokens);
    bool routed = false; /* some choice of experts has differed: state and keys differ from then on */
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)json_integer_value(json_array_get(prompt, i));
    OK(ifx_sequence_reset(ref->s));
    OK(ifx_sequence_reset(cpu->s));
    side_feed(ref, tokens, n);
    side_feed(cpu, tokens, n);
    for (uint32_t i = 0; i < json_array_size(ids); i++) {
        int32_t want = (int32_t)json_integer_value(json_array_get(ids, i));
        int32_t on_ref = argmax(ref->logits, vocab), on_cpu = argmax(cpu->logits, vocab);
        bool safe = json_number_value(json_array_get(margins, i)) >= SAFE_MARGIN;
        routed |= memcmp(&ref->routes, &cpu->routes, sizeof ref->routes) != 0;
        t->steps++;
        t->unsafe += !safe;
        t->ref_other += on_ref != want;
        t->cpu_other += on_cpu != want;
        t->cpu_routed += safe && on_cpu != want && routed;
        t->cpu_unexplained += safe && on_cpu != want && !routed;
        if (!routed) {
            double l2 = relative_l2(cpu->logits, ref->logits, vocab);
            t->error += l2 * l2;
            t->compared++;
        }
        if (safe && on_ref != want)
            FAIL("ref: \"%s\" step %u: token %d, expected %d", json_string_value(json_object_get(g, "prompt")), i, on_ref, want);
        side_feed(ref, &want, 1);
        side_feed(cpu, &want, 1);
    }
    base_free(tokens);
}

/* `ref` must give the golden tokens.  `cpu` rounds the inputs of its products to bf16: where two experts lie close together the router may
 * choose the other one, and this model's experts differ much; only then may it choose another token, and seldom. */
static void test_greedy(void **state)
{
    struct side ref = {0}, cpu = {0};
    struct tally t = {0};
    json_t *root = json_load_file(golden(0, "demo-goldens.json"), 0, NULL);
    const json_t *goldens = json_object_get(root, "goldens");
    (void)state;
    assert_non_null(goldens);
    side_open(&ref, "ref");
    side_open(&cpu, "cpu");
    for (size_t i = 0; i < json_array_size(goldens); i++)
        run_golden(&ref, &cpu, json_array_get(goldens, i), &t);
    print_message("%u steps, %u of them with a margin below %g; another token: ref %u, cpu %u (%u with a safe margin after another choice of "
                  "experts); relative L2 of the logits of cpu before any such choice: %g\n",
                  t.steps, t.unsafe, SAFE_MARGIN, t.ref_other, t.cpu_other, t.cpu_routed, sqrt(t.error / (t.compared ? t.compared : 1)));
    assert_true(t.steps >= 12 * 64 && t.compared > 20);
    if (t.cpu_unexplained)
        FAIL("cpu: another token at %u steps with a margin of %g or more, though it chose the same experts", t.cpu_unexplained, SAFE_MARGIN);
    if (t.cpu_routed > t.steps / 50)
        FAIL("cpu: another token at %u of %u steps", t.cpu_routed, t.steps);
    if (!(sqrt(t.error / t.compared) <= 1e-2))
        FAIL("cpu: relative L2 of the logits %g, expected at most 1e-2", sqrt(t.error / t.compared));
    side_close(&ref);
    side_close(&cpu);
    json_decref(root);
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

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
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
    double *l2s = base_calloc(steps, sizeof *l2s);
    for (uint32_t i = 0; i < steps; i++) {
        OK(ifx_sequence_feed(a, ids + i, 1, 1, la));
        OK(ifx_sequence_feed(b, ids + i, 1, 1, lb));
        l2s[i] = relative_l2(lb, la, vocab);
    }
    qsort(l2s, steps, sizeof *l2s, by_value);
    uint64_t n;
    const float *sa = ifx_sequence_state(a, &n), *sb = ifx_sequence_state(b, &n);
    double state_l2 = relative_l2(sb, sa, n);
    print_message("%u decode steps: relative L2 of the logits: median %g, worst %g; of the state at the end %g\n", steps, l2s[steps / 2],
                  l2s[steps - 1], state_l2);
    /* Single steps move further where the router chose another expert; the state forgets them. */
    if (!(l2s[steps / 2] <= 2e-2))
        FAIL("%u decode steps: median of the relative L2 of the logits %g, expected at most 2e-2", steps, l2s[steps / 2]);
    if (!(state_l2 <= 5e-2))
        FAIL("%u decode steps: relative L2 of the state %g", steps, state_l2);
    base_free(l2s);
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
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_nll),
        cmocka_unit_test(test_long_decode),
        cmocka_unit_test(test_shipped),
    };
    base_log_set_level(IFX_LOG_WARN);
    if (!checkpoint() || access(checkpoint(), R_OK)) {
        fprintf(stderr, "IFX_DEMO_CHECKPOINT names no folder: skipped\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
