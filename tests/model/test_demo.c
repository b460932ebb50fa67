/* SPDX-License-Identifier: Apache-2.0
 *
 * test_demo.c - the demo model against what the reference implementation computes from its checkpoint: greedy tokens and NLL.
 * IFX_DEMO_CHECKPOINT names the checkpoint's folder (it is not part of the tree); without it the test is skipped.  IFX_LONG adds
 * what takes minutes: a longer NLL on `ref` and a decode of 4096 steps.
 */
#include "engine.h"
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
#define NEAR_TIE      2e-3 /* of the router's probabilities; the golden README has 5e-3 for bf16 inputs */
#define SHIPPED_NLL   3.5655 /* of the NVFP4 file that ships; AVX2 to AVX-512-BF16 within 2e-4 of it */

static const char *checkpoint(void)
{
    return getenv("IFX_DEMO_CHECKPOINT");
}

/* ---- greedy continuations ---- */

#define MOST_CALLS   64u /* MoE layers */
#define MOST_COLUMNS 64u /* of a prompt */
#define MOST_TOP_K   32u

/* What the router chose in one step of `ref`, call by call, and how far the last expert chosen is from the first that was not. */
struct trace {
    uint32_t calls, n[MOST_CALLS], k[MOST_CALLS];
    int32_t ids[MOST_CALLS][MOST_COLUMNS * MOST_TOP_K];
    double gap[MOST_CALLS][MOST_COLUMNS];
};

/* Stands in for the router of a device: writes the trace down, or compares with it and, when told so, chooses as it says. */
struct watch {
    struct ifx_device_ops ops; /* first: what the device has then */
    int32_t (*real)(struct ifx_device *dev, void *stream, const struct ifx_router *op);
    enum { WRITES, COMPARES, IMPOSES } role;
    struct trace *trace;
    uint32_t call;     /* of this step */
    uint32_t others;   /* choices that differ from the trace, so far */
    double widest;     /* the largest gap among them */
};

static bool chosen(const int32_t *ids, uint32_t k, int32_t id)
{
    bool there = false;
    for (uint32_t i = 0; i < k; i++)
        there |= ids[i] == id;
    return there;
}

static double probability(const float *logits, uint32_t n, int32_t id)
{
    double most = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        most = logits[i] > most ? logits[i] : most;
    for (uint32_t i = 0; i < n; i++)
        sum += exp(logits[i] - most);
    return exp(logits[id] - most) / sum;
}

static void write_down(struct trace *t, uint32_t call, const struct ifx_router *op)
{
    assert_true(call < MOST_CALLS && op->n <= MOST_COLUMNS && op->top_k <= MOST_TOP_K);
    t->calls = call + 1;
    t->n[call] = op->n;
    t->k[call] = op->top_k;
    memcpy(t->ids[call], op->ids, (uint64_t)op->n * op->top_k * sizeof *op->ids);
    for (uint32_t c = 0; c < op->n; c++) {
        const int32_t *ids = op->ids + (uint64_t)c * op->top_k;
        const float *logits = op->logits + c * op->ldl;
        double out = 0;
        for (int32_t e = 0; e < (int32_t)op->experts; e++)
            if (!chosen(ids, op->top_k, e))
                out = fmax(out, probability(logits, op->experts, e));
        t->gap[call][c] = probability(logits, op->experts, ids[op->top_k - 1]) - out;
    }
}

static void impose(const struct ifx_router *op, uint32_t c, const int32_t *want)
{
    double sum = 0;
    for (uint32_t r = 0; r < op->top_k; r++)
        sum += probability(op->logits + c * op->ldl, op->experts, want[r]);
    for (uint32_t r = 0; r < op->top_k; r++) {
        op->ids[(uint64_t)c * op->top_k + r] = want[r];
        op->weights[(uint64_t)c * op->top_k + r] =
            (float)(probability(op->logits + c * op->ldl, op->experts, want[r]) / (op->renormalise ? sum : 1));
    }
}

static int32_t watched(struct ifx_device *dev, void *stream, const struct ifx_router *op)
{
    struct watch *w = (struct watch *)(uintptr_t)dev->ops;
    uint32_t call = w->call++;
    int32_t st = w->real(dev, stream, op);
    if (st || w->role == WRITES) {
        write_down(w->trace, call, op);
        return st;
    }
    assert_true(call < w->trace->calls && w->trace->n[call] == op->n && w->trace->k[call] == op->top_k);
    for (uint32_t c = 0; c < op->n; c++) {
        const int32_t *want = w->trace->ids[call] + (uint64_t)c * op->top_k;
        bool same = true;
        for (uint32_t r = 0; r < op->top_k; r++)
            same &= chosen(op->ids + (uint64_t)c * op->top_k, op->top_k, want[r]);
        if (!same) {
            w->others++;
            w->widest = fmax(w->widest, w->trace->gap[call][c]);
            if (w->role == IMPOSES)
                impose(op, c, want);
        }
    }
    return IFX_OK;
}

/* One run of the comparison. */
struct side {
    struct rig r;
    struct ifx_sequence *s;
    struct watch watch;
    const struct ifx_device_ops *real;
    float *logits;
};

static void side_open(struct side *d, const char *device, int role, struct trace *trace)
{
    struct options o = {.device = device};
    rig_open(&d->r, checkpoint(), &o);
    OK(ifx_sequence_create(d->r.model, &d->s));
    d->logits = base_calloc(d->r.info.desc->vocab, sizeof *d->logits);
    d->real = d->r.model->dev->ops;
    d->watch = (struct watch){.ops = *d->real, .real = d->real->router, .role = role, .trace = trace};
    d->watch.ops.router = watched;
    d->r.model->dev->ops = &d->watch.ops;
}

static int32_t side_feed(struct side *d, const int32_t *tokens, uint32_t n)
{
    d->watch.call = 0;
    OK(ifx_sequence_feed(d->s, tokens, n, 1, d->logits));
    return argmax(d->logits, d->r.info.desc->vocab);
}

static void side_close(struct side *d)
{
    d->r.model->dev->ops = d->real;
    ifx_sequence_destroy(d->s);
    base_free(d->logits);
    rig_close(&d->r);
}

struct tally {
    uint32_t steps, unsafe, ref_other, free_other, free_safe, imposed_other, imposed_safe;
    double error; /* sum of squares of the relative L2 of the logits of cpu, with ref's experts, to ref's */
};

/* The golden token is fed whatever was chosen.  sides: ref; cpu; cpu with the experts that ref chose. */
static void run_golden(struct side *sides, const json_t *g, struct tally *t)
{
    const json_t *prompt = json_object_get(g, "prompt_ids"), *ids = json_object_get(g, "ids"), *margins = json_object_get(g, "margins");
    uint32_t n = (uint32_t)json_array_size(prompt), vocab = sides[0].r.info.desc->vocab, others = sides[1].watch.others;
    int32_t *tokens = base_calloc(n, sizeof *tokens), got[3];
    const char *name = json_string_value(json_object_get(g, "prompt"));
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)json_integer_value(json_array_get(prompt, i));
    for (int d = 0; d < 3; d++) {
        OK(ifx_sequence_reset(sides[d].s));
        got[d] = side_feed(&sides[d], tokens, n);
    }
    for (uint32_t i = 0; i < json_array_size(ids); i++) {
        int32_t want = (int32_t)json_integer_value(json_array_get(ids, i));
        double margin = json_number_value(json_array_get(margins, i)), l2 = relative_l2(sides[2].logits, sides[0].logits, vocab);
        bool safe = margin >= SAFE_MARGIN;
        t->steps++;
        t->unsafe += !safe;
        t->ref_other += got[0] != want;
        t->free_other += got[1] != want;
        t->free_safe += safe && got[1] != want;
        t->imposed_other += got[2] != want;
        t->imposed_safe += safe && got[2] != want;
        t->error += l2 * l2;
        if (got[0] != want)
            FAIL("ref: \"%s\" step %u: token %d, expected %d (margin %g)", name, i, got[0], want, margin);
        if (safe && got[2] != want)
            FAIL("cpu with the experts of ref: \"%s\" step %u: token %d, expected %d, at a margin of %g", name, i, got[2], want, margin);
        if (safe && got[1] != want && sides[1].watch.others == others)
            FAIL("cpu: \"%s\" step %u: token %d, expected %d, at a margin of %g and with no other choice of experts before it", name, i,
                 got[1], want, margin);
        for (int d = 0; d < 3; d++)
            got[d] = side_feed(&sides[d], &want, 1);
    }
    base_free(tokens);
}

/* `ref` must give the golden tokens, all of them.  `cpu` rounds the inputs of its products to bf16.  Where it gives another token, either the
 * two best lie within SAFE_MARGIN, or its router had chosen another expert before: and then it must have been a near tie of the router,
 * and with the experts of `ref` the token must be the golden one. */
static void test_greedy(void **state)
{
    static struct side sides[3];
    static struct trace trace;
    struct tally t = {0};
    json_t *root = json_load_file(golden(0, "demo-goldens.json"), 0, NULL);
    const json_t *goldens = json_object_get(root, "goldens");
    (void)state;
    assert_non_null(goldens);
    side_open(&sides[0], "ref", WRITES, &trace);
    side_open(&sides[1], "cpu", COMPARES, &trace);
    side_open(&sides[2], "cpu", IMPOSES, &trace);
    for (size_t i = 0; i < json_array_size(goldens); i++)
        run_golden(sides, json_array_get(goldens, i), &t);
    const struct watch *w = &sides[2].watch;
    print_message("%u steps, %u of them with a margin below %g; another token: ref %u; cpu %u (%u at a safe margin); cpu with the experts of ref "
                  "%u (%u); it would have chosen other experts %u times, at a gap of at most %g; relative L2 of its logits %g\n",
                  t.steps, t.unsafe, SAFE_MARGIN, t.ref_other, t.free_other, t.free_safe, t.imposed_other, t.imposed_safe, w->others,
                  w->widest, sqrt(t.error / t.steps));
    assert_int_equal(t.steps, 12 * 64);
    if (!(w->widest < NEAR_TIE))
        FAIL("cpu: another choice of experts at a gap of %g between the probabilities, expected below %g", w->widest, NEAR_TIE);
    if (t.free_safe > t.steps / 100)
        FAIL("cpu: another token at a safe margin at %u of %u steps", t.free_safe, t.steps);
    if (!(sqrt(t.error / t.steps) <= 1e-2))
        FAIL("cpu: relative L2 of the logits %g, expected at most 1e-2", sqrt(t.error / t.steps));
    for (int d = 0; d < 3; d++)
        side_close(&sides[d]);
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

/* The NVFP4 file that ships, when it is there: its NLL is reported, and is what it was when the file was made. */
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
    if (!(fabs(mean(nll, 8) / SHIPPED_NLL - 1) <= 1e-3))
        FAIL("%s: NLL %.5f, expected %.5f within 0.1 %%", path, mean(nll, 8), SHIPPED_NLL);
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
    /* Single steps move further where the router chose another expert; the state forgets them.  What is left is the rounding of the products'
     * inputs to bf16: test_state holds the state to 1e-3 with that taken out. */
    if (!(l2s[steps / 2] <= 1e-2))
        FAIL("%u decode steps: median of the relative L2 of the logits %g, expected at most 1e-2", steps, l2s[steps / 2]);
    if (!(state_l2 <= 1e-2))
        FAIL("%u decode steps: relative L2 of the state %g, expected at most 1e-2", steps, state_l2);
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
