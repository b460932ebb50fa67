/* SPDX-License-Identifier: Apache-2.0
 *
 * test_device.c - a model on a device with memory of its own (`sim`): the bits of `cpu`, whatever is batched, captured, picked or reused there.
 */
#include "engine.h"
#include "harness.h"

#include <stdio.h>
#include <string.h>

#define DENSE "checkpoints/qwen3_5-tiny"
#define MOE   "checkpoints/qwen3_5_moe-tiny"
#define MIB   (1ull << 20)

static const char *const checkpoints[] = {DENSE, MOE, "checkpoints/qwen3_5_moe-mid-nvfp4", "checkpoints/qwen4_exp-tiny"};

static void make_tokens(int32_t *tokens, uint32_t n, uint32_t vocab, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((seed >> 8) % vocab);
    }
}

static void same_bits(const char *path, const char *what, uint32_t at, const float *got, const float *want, uint64_t n)
{
    uint64_t i;
    if (largest_difference(got, want, n, &i) != 0)
        FAIL("%s: %s %u: value %u is %.9g on sim, %.9g on cpu", path, what, at, (unsigned)i, got[i], want[i]);
}

/* ---- one sequence: prompt in chunks, all logits, decode long enough for graphs, state ---- */

enum { PROMPT = 150, DECODE = 140 };
static float *run_one(const char *path, const struct options *o, uint32_t *vocab, float **state, uint64_t *n_state)
{
    struct rig r;
    struct ifx_sequence *s;
    int32_t tokens[PROMPT + DECODE];
    rig_open(&r, path, o);
    *vocab = r.info.desc->vocab;
    make_tokens(tokens, PROMPT + DECODE, *vocab, 31);
    float *logits = base_calloc((uint64_t)(PROMPT + DECODE) * *vocab, sizeof *logits);
    OK(ifx_sequence_create(r.model, &s));
    OK(ifx_sequence_feed(s, tokens, PROMPT, PROMPT, logits));
    for (uint32_t i = PROMPT; i < PROMPT + DECODE; i++)
        OK(ifx_sequence_feed(s, tokens + i, 1, 1, logits + (uint64_t)i * *vocab));
    const float *x = ifx_sequence_state(s, n_state);
    assert_non_null(x);
    *state = base_calloc(*n_state, sizeof **state);
    memcpy(*state, x, *n_state * sizeof **state);
    ifx_sequence_destroy(s);
    rig_close(&r);
    return logits;
}

static void test_one(void **state)
{
    static const char *const kvs[] = {"bf16", "int8"};
    (void)state;
    for (size_t p = 0; p < sizeof checkpoints / sizeof checkpoints[0]; p++)
        for (size_t k = 0; k < 2; k++) {
            const char *path = golden(0, "%s", checkpoints[p]);
            struct options o = {.device = "cpu", .kv = kvs[k], .chunk = 60};
            float *want_state, *got_state;
            uint64_t n;
            uint32_t vocab;
            float *want = run_one(path, &o, &vocab, &want_state, &n);
            for (int graph = 0; graph < 2; graph++) {
                o = (struct options){.device = "sim", .kv = kvs[k], .chunk = 60, .no_graph = !graph};
                float *got = run_one(path, &o, &vocab, &got_state, &n);
                for (uint32_t i = 0; i < PROMPT + DECODE; i++)
                    same_bits(path, graph ? "token, with graphs," : "token", i, got + (uint64_t)i * vocab, want + (uint64_t)i * vocab, vocab);
                same_bits(path, "state", 0, got_state, want_state, n);
                base_free(got);
                base_free(got_state);
            }
            base_free(want);
            base_free(want_state);
        }
}

/* ---- several: every width, sequences that come and go, tokens picked where the logits are ---- */

#define STREAMS 8
enum { STEPS = 90, ROW = 1024 };

struct picks {
    int32_t tokens[STREAMS][STEPS];
    float last[STREAMS][ROW];
    uint64_t misses; /* experts that were not on the device */
};

static void settings_of(uint32_t i, struct ifx_sampling *s)
{
    ifx_sampling_greedy(s);
    s->seed = 100 + i;
    if (i % 4 == 0)
        return;
    s->temperature = 0.9f;
    s->top_k = i % 4 == 1 ? 0 : 20;
    s->top_p = i % 4 == 1 ? 0.95f : 1;
    s->repetition_penalty = i % 4 == 3 ? 1.3f : 1;
    s->frequency_penalty = i % 4 == 2 ? 0.7f : 0;
    s->presence_penalty = i % 4 == 2 ? 0.4f : 0;
}

/* Sequence i lives in steps i * 5 .. STEPS - 3 i. */
static void run_streams(const char *path, const struct options *o, struct picks *out)
{
    struct rig r;
    struct ifx_sequence *s[STREAMS] = {NULL};
    struct ifx_sampler *samplers[STREAMS];
    int32_t next[STREAMS], prompt[40];
    rig_open(&r, path, o);
    uint32_t vocab = r.info.desc->vocab;
    assert_true(vocab <= ROW);
    struct ifx_offload_stats stats;
    memset(out, 0, sizeof *out);
    for (uint32_t step = 0; step < STEPS; step++) {
        struct ifx_batch_item items[STREAMS];
        uint32_t which[STREAMS], n = 0;
        for (uint32_t i = 0; i < STREAMS; i++) {
            bool first = step == i * 5;
            if (step < i * 5 || step >= STEPS - 3 * i)
                continue;
            if (first) {
                struct ifx_sampling x;
                settings_of(i, &x);
                OK(ifx_sampler_create(&x, vocab, &samplers[i]));
                OK(ifx_sequence_create(r.model, &s[i]));
                make_tokens(prompt, 40, vocab, 50 + i);
            }
            items[n] = (struct ifx_batch_item){.sequence = s[i], .tokens = first ? prompt : &next[i], .n = first ? 11 + 3 * i : 1,
                                               .sampler = samplers[i], .n_logits = step % 7 == 6, .logits = out->last[i]};
            which[n++] = i;
        }
        OK(ifx_batch_feed(items, n));
        for (uint32_t k = 0; k < n; k++) {
            uint32_t i = which[k];
            if (items[k].status)
                FAIL("%s: step %u: %s", path, step, items[k].error);
            next[i] = out->tokens[i][step] = items[k].token;
            if (step % 11 == 10) /* what is picked need not be what the text goes on with */
                next[i] = (next[i] + 7) % (int32_t)vocab;
            if (step % 13 == 12)
                ifx_sampler_prompt(samplers[i], prompt, 5);
            ifx_sampler_accept(samplers[i], next[i]);
            if (step + 1 < STEPS - 3 * i)
                continue;
            ifx_sampler_destroy(samplers[i]);
            ifx_sequence_destroy(s[i]);
        }
    }
    ifx_offload_stats(r.model, &stats);
    out->misses = stats.misses;
    rig_close(&r);
}

static void test_streams(void **state)
{
    static struct picks want, got;
    (void)state;
    for (size_t p = 0; p < sizeof checkpoints / sizeof checkpoints[0]; p++) {
        const char *path = golden(0, "%s", checkpoints[p]);
        struct options o = {.device = "cpu", .sequences = STREAMS};
        run_streams(path, &o, &want);
        for (int graph = 0; graph < 2; graph++) {
            o = (struct options){.device = "sim", .sequences = STREAMS, .no_graph = !graph};
            run_streams(path, &o, &got);
            for (uint32_t i = 0; i < STREAMS; i++) {
                for (uint32_t step = 0; step < STEPS; step++)
                    if (got.tokens[i][step] != want.tokens[i][step])
                        FAIL("%s: sequence %u, step %u: token %d on sim, %d on cpu (%s graphs)", path, i, step, got.tokens[i][step],
                             want.tokens[i][step], graph ? "with" : "without");
                same_bits(path, "logits of sequence", i, got.last[i], want.last[i], ROW);
            }
        }
    }
}

/* ---- sampling with a temperature on the device: repeats itself, follows the seed, stays within the filters ---- */

static void sample_text(const struct options *o, uint64_t seed, uint32_t top_k, int32_t *tokens, uint32_t n)
{
    struct rig r;
    struct ifx_sequence *s;
    int32_t prompt[20];
    struct ifx_generate g = {.prompt = prompt, .n_prompt = 20, .max_tokens = n, .ignore_stop_ids = true};
    struct ifx_generate_result result;
    struct ifx_sampler *sampler;
    rig_open(&r, golden(0, DENSE), o);
    make_tokens(prompt, 20, 512, 3);
    g.sampling = (struct ifx_sampling){.temperature = 1.0f, .top_k = top_k, .top_p = 0.95f, .repetition_penalty = 1.0f, .seed = seed};
    OK(ifx_sampler_create(&g.sampling, 512, &sampler));
    OK(ifx_sequence_create(r.model, &s));
    struct ifx_batch_item it = {.sequence = s, .tokens = prompt, .n = 20, .sampler = sampler};
    for (uint32_t i = 0; i < n; i++) {
        OK(ifx_batch_feed(&it, 1));
        OK(it.status);
        tokens[i] = it.token;
        it.tokens = &tokens[i];
        it.n = 1;
    }
    (void)result;
    ifx_sampler_destroy(sampler);
    ifx_sequence_destroy(s);
    rig_close(&r);
}

static void test_sampling(void **state)
{
    struct options o = {.device = "sim"};
    int32_t a[60], b[60], c[60], greedy[60];
    (void)state;
    sample_text(&o, 7, 30, a, 60);
    sample_text(&o, 7, 30, b, 60);
    sample_text(&o, 8, 30, c, 60);
    assert_memory_equal(a, b, sizeof a);
    assert_true(memcmp(a, c, sizeof a) != 0);
    sample_text(&o, 7, 1, greedy, 60); /* one candidate: what the host takes greedily */
    o.device = "cpu";
    sample_text(&o, 9, 1, b, 60);
    assert_memory_equal(greedy, b, sizeof b);
}

/* ---- observers, prefixes, many logit rows ---- */

struct seen {
    uint32_t hidden, routes;
    double sum;
    uint64_t ids; /* a checksum */
};

static int32_t on_hidden(void *ctx, int32_t layer, uint64_t pos0, uint32_t n, const float *x, uint32_t width)
{
    struct seen *s = ctx;
    s->hidden += n;
    for (uint64_t i = 0; i < (uint64_t)n * width; i++)
        s->sum += (double)x[i] * (double)(1 + (layer + (int32_t)pos0) % 5);
    return IFX_OK;
}

static int32_t on_router(void *ctx, uint32_t layer, uint64_t pos0, uint32_t n, uint32_t top_k, const int32_t *ids, const float *weights)
{
    struct seen *s = ctx;
    s->routes += n;
    for (uint64_t i = 0; i < (uint64_t)n * top_k; i++) {
        s->ids = s->ids * 31 + (uint64_t)ids[i] + layer + pos0;
        s->sum += weights[i];
    }
    return IFX_OK;
}

static void watch(const char *path, const char *device, struct seen *seen)
{
    struct options o = {.device = device, .chunk = 32};
    struct ifx_observer observer = {.ctx = seen, .hidden = on_hidden, .router = on_router};
    struct rig r;
    struct ifx_sequence *s;
    int32_t tokens[70];
    float logits[ROW];
    *seen = (struct seen){0};
    rig_open(&r, path, &o);
    make_tokens(tokens, 70, r.info.desc->vocab, 9);
    OK(ifx_sequence_create(r.model, &s));
    ifx_sequence_observe(s, &observer);
    OK(ifx_sequence_feed(s, tokens, 66, 1, logits));
    for (int i = 66; i < 70; i++)
        OK(ifx_sequence_feed(s, tokens + i, 1, 1, logits));
    ifx_sequence_destroy(s);
    rig_close(&r);
}

static void test_observers(void **state)
{
    (void)state;
    for (size_t p = 0; p < sizeof checkpoints / sizeof checkpoints[0]; p++) {
        struct seen cpu, sim;
        watch(golden(0, "%s", checkpoints[p]), "cpu", &cpu);
        watch(golden(0, "%s", checkpoints[p]), "sim", &sim);
        assert_true(cpu.hidden > 70);
        assert_int_equal(sim.hidden, cpu.hidden);
        assert_int_equal(sim.routes, cpu.routes);
        assert_int_equal(sim.ids, cpu.ids);
        assert_true(sim.sum == cpu.sum);
    }
}

static void test_prefixes(void **state)
{
    int32_t a[300];
    float got[ROW], want[ROW];
    (void)state;
    for (size_t p = 0; p < sizeof checkpoints / sizeof checkpoints[0]; p++) {
        struct options o = {.device = "sim", .sequences = 2, .prefix = 16 * MIB, .chunk = 64};
        struct rig r;
        struct ifx_sequence *s;
        uint64_t cached;
        rig_open(&r, golden(0, "%s", checkpoints[p]), &o);
        make_tokens(a, 300, r.info.desc->vocab, 1);
        OK(ifx_sequence_create(r.model, &s));
        OK(ifx_sequence_feed(s, a, 230, 1, got));
        OK(ifx_sequence_publish(s));
        for (int i = 230; i < 300; i++)
            OK(ifx_sequence_feed(s, a + i, 1, 1, want));
        for (uint64_t begin = 192; begin <= 230; begin += 38) {
            OK(ifx_sequence_reset(s));
            OK(ifx_sequence_attach(s, a, begin + 1, &cached));
            assert_int_equal(cached, begin);
            if (begin == 192)
                OK(ifx_sequence_feed(s, a + 192, 38, 0, NULL));
            for (int i = 230; i < 300; i++)
                OK(ifx_sequence_feed(s, a + i, 1, 1, got));
            same_bits(checkpoints[p], "from", (uint32_t)begin, got, want, r.info.desc->vocab);
        }
        ifx_sequence_destroy(s);
        rig_close(&r);
    }
}

/* ---- memory: nothing is taken after the model is open, too little is refused ---- */

static uint64_t free_bytes(struct rig *r)
{
    struct ifx_device_props props = {.struct_size = sizeof props};
    OK(r->model->dev->ops->props(r->model->dev, &props));
    return props.free_bytes;
}

static void test_memory(void **state)
{
    struct options o = {.device = "sim,vram=1M"};
    struct rig r;
    struct ifx_sequence *s;
    int32_t tokens[500];
    float logits[ROW];
    (void)state;
    rig_refused(golden(0, DENSE), &o, "of device memory are needed");
    for (size_t p = 0; p < sizeof checkpoints / sizeof checkpoints[0]; p++) {
        o = (struct options){.device = "sim", .sequences = 2, .prefix = 4 * MIB, .chunk = 100};
        rig_open(&r, golden(0, "%s", checkpoints[p]), &o);
        make_tokens(tokens, 500, r.info.desc->vocab, 4);
        uint64_t before = free_bytes(&r);
        OK(ifx_sequence_create(r.model, &s));
        OK(ifx_sequence_feed(s, tokens, 400, 1, logits));
        OK(ifx_sequence_publish(s));
        for (int i = 400; i < 500; i++)
            OK(ifx_sequence_feed(s, tokens + i, 1, 1, logits));
        assert_int_equal(free_bytes(&r), before);
        ifx_sequence_destroy(s);
        rig_close(&r);
    }
}

/* Few experts fit: the others are computed by the CPU, in captured steps too. */
static void test_little_memory(void **state)
{
    static struct picks want, got;
    (void)state;
    struct options o = {.device = "cpu", .sequences = STREAMS, .ctx = 256, .chunk = 64};
    run_streams(golden(0, MOE), &o, &want);
    static const char *const sizes[] = {"sim,vram=4352K", "sim,vram=4608K"};
    for (size_t i = 0; i < 2; i++) {
        o.device = sizes[i];
        run_streams(golden(0, MOE), &o, &got);
        if (got.misses < 200)
            FAIL("%s: %u experts were missing: the test shows nothing", sizes[i], (unsigned)got.misses);
        for (uint32_t k = 0; k < STREAMS; k++)
            same_bits(sizes[i], "logits of sequence", k, got.last[k], want.last[k], ROW);
        assert_memory_equal(got.tokens, want.tokens, sizeof want.tokens);
    }
}

/* ---- a device that fails: requests end with its words, nothing hangs, the end is clean ---- */

static void test_failures(void **state)
{
    static const char *const faults[] = {"fail-copy", "fail-launch"};
    (void)state;
    for (size_t f = 0; f < 2; f++)
        for (uint32_t nth = 30; nth < 3000; nth = nth * 3 / 2) {
            char device[64];
            struct options o = {.device = device, .ctx = 256, .chunk = 64};
            struct ifx_context_options co = {.threads = 2};
            struct ifx_model_options mo = {.path = golden(0, MOE), .device = device, .ctx = 256, .prefill_chunk = 64,
                                           .offload = {.no_expert_state = true}};
            struct ifx_context *ctx;
            struct ifx_model *m = NULL;
            struct ifx_sequence *s = NULL;
            int32_t tokens[128];
            float logits[ROW];
            (void)o;
            snprintf(device, sizeof device, "sim,%s=%u", faults[f], nth);
            make_tokens(tokens, 128, 512, 5);
            OK(ifx_context_create(&co, &ctx));
            int32_t st = ifx_model_open(ctx, &mo, &m);
            if (!st)
                st = ifx_sequence_create(m, &s);
            if (!st)
                st = ifx_sequence_feed(s, tokens, 100, 1, logits);
            for (int i = 100; !st && i < 128; i++)
                st = ifx_sequence_feed(s, tokens + i, 1, 1, logits);
            if (st && !base_error_text()[0])
                FAIL("%s: status %d without a text", device, (int)st);
            ifx_sequence_destroy(s);
            ifx_model_close(m);
            ifx_context_destroy(ctx);
        }
}

/* ---- the demo: the text of cpu ---- */

static void demo_text(const char *path, const char *device, const char *prompt, int32_t *out, uint32_t n)
{
    struct options o = {.device = device, .ctx = 512};
    struct rig r;
    struct ifx_sequence *s;
    struct ifx_sampler *sampler;
    struct ifx_sampling greedy;
    int32_t *ids = NULL;
    uint64_t count = 0;
    rig_open(&r, path, &o);
    OK(text_encode(ifx_model_tokenizer(r.model), prompt, strlen(prompt), 0, &ids, &count));
    ifx_sampling_greedy(&greedy);
    OK(ifx_sampler_create(&greedy, r.info.desc->vocab, &sampler));
    OK(ifx_sequence_create(r.model, &s));
    struct ifx_batch_item it = {.sequence = s, .tokens = ids, .n = (uint32_t)count, .sampler = sampler};
    for (uint32_t i = 0; i < n; i++) {
        OK(ifx_batch_feed(&it, 1));
        OK(it.status);
        out[i] = it.token;
        it.tokens = &out[i];
        it.n = 1;
    }
    base_free(ids);
    ifx_sampler_destroy(sampler);
    ifx_sequence_destroy(s);
    rig_close(&r);
}

static void test_demo_text(void **state)
{
    static const char *const prompts[] = {"Once upon a time", "The little dog was very hungry, and so", "Tom"};
    int32_t want[200], got[200];
    char *path;
    (void)state;
    if (ifx_demo_path(&path)) {
        print_message("no demo.infernix: skipped\n");
        skip();
    }
    for (size_t i = 0; i < 3; i++) {
        demo_text(path, "cpu", prompts[i], want, 200);
        demo_text(path, i == 1 ? "sim,vram=44M" : "sim", prompts[i], got, 200);
        for (uint32_t t = 0; t < 200; t++)
            if (got[t] != want[t])
                FAIL("\"%s\": token %u is %d on sim, %d on cpu", prompts[i], t, got[t], want[t]);
    }
    base_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one),       cmocka_unit_test(test_streams),  cmocka_unit_test(test_sampling),
        cmocka_unit_test(test_observers), cmocka_unit_test(test_prefixes), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_little_memory), cmocka_unit_test(test_failures), cmocka_unit_test(test_demo_text),
    };
    base_log_set_level(IFX_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
