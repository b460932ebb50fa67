/* SPDX-License-Identifier: Apache-2.0
 *
 * test_state.c - the recurrent state over 4,096 tokens of the demo model: what `cpu` keeps must be what `ref` keeps when both are given the same
 * projections.  Bf16 inputs of the products, which move every later value, thereby stay out of the comparison: what is left is the precision
 * of the state itself.  Then inputs a thousand times too large: nothing overflows.
 */
#include "engine.h"
#include "harness.h"
#include "variant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS      4096u
#define MOST_LAYERS 64u

/* Stands in for the device's gated_delta; for each state a second one, which `ref` keeps. */
static struct shadow {
    struct ifx_device_ops ops; /* what the device has then */
    int32_t (*real)(struct ifx_device *dev, void *stream, const struct ifx_gated_delta *op);
    struct ifx_device *ref;
    const float *state[MOST_LAYERS];
    float *kept[MOST_LAYERS];
    uint64_t values, calls;
    uint32_t n;
    float *out;
    void *ws;
    uint64_t out_values, ws_bytes;
} shadow;

static uint32_t find_state(const struct ifx_gated_delta *op)
{
    uint32_t i = 0;
    while (i < shadow.n && shadow.state[i] != op->state)
        i++;
    if (i < shadow.n)
        return i;
    assert_true(i < MOST_LAYERS);
    shadow.values = (uint64_t)op->v_heads * op->dk * op->dv;
    shadow.state[i] = op->state;
    shadow.kept[i] = base_calloc(shadow.values, sizeof(float));
    for (uint64_t k = 0; k < shadow.values; k++)
        if (op->state[k] != 0)
            FAIL("state %u does not start from zero", i);
    shadow.n++;
    return i;
}

static int32_t shadowed(struct ifx_device *dev, void *stream, const struct ifx_gated_delta *op)
{
    struct ifx_gated_delta copy = *op;
    uint64_t values = (uint64_t)op->n * op->v_heads * op->dv, ws = shadow.ref->ops->gated_delta_ws_bytes(shadow.ref, op);
    if (values > shadow.out_values || ws > shadow.ws_bytes) {
        base_free(shadow.out);
        base_free(shadow.ws);
        shadow.out = base_alloc(values * sizeof(float), 64);
        shadow.ws = base_alloc(ws + 64, 64);
        shadow.out_values = values;
        shadow.ws_bytes = ws;
    }
    copy.state = shadow.kept[find_state(op)];
    copy.out = shadow.out;
    copy.ldo = (uint64_t)op->v_heads * op->dv;
    copy.ws = shadow.ws;
    shadow.calls++;
    int32_t st = shadow.ref->ops->gated_delta(shadow.ref, NULL, &copy);
    return st ? st : shadow.real(dev, stream, op);
}

static void shadow_begin(struct ifx_model *m, struct ifx_device *ref)
{
    memset(&shadow, 0, sizeof shadow);
    shadow.ops = *m->dev->ops;
    shadow.real = m->dev->ops->gated_delta;
    shadow.ops.gated_delta = shadowed;
    shadow.ref = ref;
    m->dev->ops = &shadow.ops;
}

static double shadow_end(struct ifx_model *m, const struct ifx_device_ops *real)
{
    double worst = 0;
    m->dev->ops = real;
    for (uint32_t i = 0; i < shadow.n; i++) {
        double l2 = relative_l2(shadow.state[i], shadow.kept[i], shadow.values);
        worst = l2 > worst || isnan(l2) ? l2 : worst;
        base_free(shadow.kept[i]);
    }
    base_free(shadow.out);
    base_free(shadow.ws);
    return worst;
}

static void long_run(struct rig *cpu, struct rig *ref, const int32_t *ids, uint32_t cut)
{
    const struct ifx_device_ops *real = cpu->model->dev->ops;
    struct ifx_sequence *s;
    float *logits = base_calloc(cpu->info.desc->vocab, sizeof *logits);
    OK(ifx_sequence_create(cpu->model, &s));
    shadow_begin(cpu->model, ref->model->dev);
    for (uint32_t i = 0; i < TOKENS; i += cut)
        OK(ifx_sequence_feed(s, ids + i, TOKENS - i < cut ? TOKENS - i : cut, 1, logits));
    assert_true(shadow.n >= 3 && shadow.calls >= (uint64_t)shadow.n * (TOKENS / cut));
    double l2 = shadow_end(cpu->model, real);
    print_message("%u tokens in pieces of %u: relative L2 of the states %g\n", TOKENS, cut, l2);
    if (!(l2 <= 1e-3))
        FAIL("after %u tokens in pieces of %u the state of cpu is off by a relative L2 of %g, expected at most 1e-3", TOKENS, cut, l2);
    ifx_sequence_destroy(s);
    base_free(logits);
}

static void test_long(void **state)
{
    char *path, *text;
    uint64_t bytes, n = 0;
    int32_t *ids = NULL;
    struct rig cpu, ref;
    struct options o = {.device = "cpu", .ctx = TOKENS, .chunk = 128};
    (void)state;
    if (ifx_demo_path(&path)) {
        print_message("no demo.infernix: skipped\n");
        skip();
    }
    rig_open(&cpu, path, &o);
    rig_open(&ref, golden(0, "checkpoints/qwen3_5-tiny"), NULL); /* for its device */
    OK(base_read_file(golden(0, "demo-eval.txt"), 1 << 24, &text, &bytes));
    OK(text_encode(ifx_model_tokenizer(cpu.model), text, bytes, 0, &ids, &n));
    assert_true(n >= TOKENS);
    long_run(&cpu, &ref, ids, 1);
    long_run(&cpu, &ref, ids, 97); /* chunked form, with a short last chunk */
    base_free(ids);
    base_free(text);
    base_free(path);
    rig_close(&ref);
    rig_close(&cpu);
}

/* Projections a thousand times too large: the state grows with them, and stays a number. */
static void test_large(void **state)
{
    static const char *const devices[] = {"ref", "cpu"};
    struct variant v;
    char folder[128];
    (void)state;
    variant_load(&v, golden(0, "checkpoints/qwen3_5_moe-tiny"));
    for (uint32_t layer = 0; layer < 8; layer++) {
        char name[128];
        snprintf(name, sizeof name, "model.layers.%u.linear_attn.in_proj_qkv.weight", layer);
        if (layer % 4 == 3)
            continue;
        struct vt *t = variant_find(&v, name);
        for (uint64_t i = 0; i < t->bytes / 2; i++)
            vt_set(t, i, vt_get(t, i) * 1e3f);
    }
    temp_folder(folder, sizeof folder, "large");
    variant_save(&v, folder);
    variant_free(&v);
    for (int d = 0; d < 2; d++) {
        struct options o = {.device = devices[d]};
        struct rig r;
        struct ifx_sequence *s;
        int32_t ids[200];
        uint64_t n;
        double sum = 0;
        rig_open(&r, folder, &o);
        float *logits = base_calloc(200ull * r.info.desc->vocab, sizeof *logits);
        for (int i = 0; i < 200; i++)
            ids[i] = i * 37 % (int32_t)r.info.desc->vocab;
        OK(ifx_sequence_create(r.model, &s));
        OK(ifx_sequence_feed(s, ids, 150, 150, logits));
        for (int i = 150; i < 200; i++)
            OK(ifx_sequence_feed(s, ids + i, 1, 1, logits));
        const float *kept = ifx_sequence_state(s, &n);
        for (uint64_t i = 0; i < n; i++) {
            if (!isfinite(kept[i]))
                FAIL("%s: value %u of the state is %g", devices[d], (unsigned)i, kept[i]);
            sum += fabs(kept[i]);
        }
        for (uint64_t i = 0; i < 150ull * r.info.desc->vocab; i++)
            if (!isfinite(logits[i]))
                FAIL("%s: logit %u is %g", devices[d], (unsigned)i, logits[i]);
        assert_true(sum / (double)n > 10); /* it is large indeed */
        ifx_sequence_destroy(s);
        base_free(logits);
        rig_close(&r);
    }
    char *command = base_format("rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
    base_free(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_long), cmocka_unit_test(test_large)};
    base_log_set_level(IFX_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
