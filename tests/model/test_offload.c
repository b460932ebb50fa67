/* SPDX-License-Identifier: Apache-2.0
 *
 * test_offload.c - the demo on a device with memory of its own: whatever budget, assist mode and number of threads, the same router
 * choices, tokens and logits as with everything in one memory.
 */
#include "engine.h"
#include "harness.h"

#include <stdio.h>
#include <string.h>

enum { PROMPT = 290, DECODE = 16, CONFIGURATIONS = 30 };

struct result {
    int32_t tokens[DECODE];
    int32_t *ids; /* of the prompt, all layers */
    uint64_t n_ids, room;
    float *logits; /* of the last token */
    uint32_t vocab;
    struct ifx_offload_stats stats;
};

static int32_t on_router(void *ctx, uint32_t layer, uint64_t pos0, uint32_t n, uint32_t top_k, const int32_t *ids, const float *weights)
{
    struct result *r = ctx;
    uint64_t count = (uint64_t)n * top_k;
    (void)layer;
    (void)pos0;
    (void)weights;
    if (r->n_ids + count > r->room)
        FAIL("more choices than expected (%u)", (unsigned)r->room);
    memcpy(r->ids + r->n_ids, ids, count * sizeof *ids);
    r->n_ids += count;
    return IFX_OK;
}

static void run(const struct ifx_model_options *o, uint32_t threads, struct result *out)
{
    struct ifx_context_options co = {.threads = threads};
    struct ifx_context *ctx;
    struct ifx_model *m;
    struct ifx_sequence *s;
    struct ifx_model_info info;
    int32_t tokens[PROMPT], next;
    OK(ifx_context_create(&co, &ctx));
    OK(ifx_model_open(ctx, o, &m));
    ifx_model_info(m, &info);
    out->vocab = info.desc->vocab;
    out->room = (uint64_t)PROMPT * info.desc->n_moe * info.desc->moe[0].top_k;
    out->n_ids = 0;
    out->ids = base_calloc(out->room, sizeof *out->ids);
    out->logits = base_calloc(out->vocab, sizeof *out->logits);
    assert_true(out->ids && out->logits);
    for (uint32_t i = 0; i < PROMPT; i++)
        tokens[i] = (int32_t)(i * 2654435761u % out->vocab);
    const struct ifx_observer observer = {.ctx = out, .router = on_router};
    OK(ifx_sequence_create(m, &s));
    ifx_sequence_observe(s, &observer);
    OK(ifx_sequence_feed(s, tokens, PROMPT, 1, out->logits));
    ifx_sequence_observe(s, NULL);
    for (uint32_t i = 0; i < DECODE; i++) {
        next = 0;
        for (uint32_t t = 1; t < out->vocab; t++)
            if (out->logits[t] > out->logits[next])
                next = (int32_t)t;
        out->tokens[i] = next;
        OK(ifx_sequence_feed(s, &next, 1, 1, out->logits));
    }
    ifx_offload_stats(m, &out->stats);
    ifx_sequence_destroy(s);
    ifx_model_close(m);
    ifx_context_destroy(ctx);
}

static void release(struct result *r)
{
    base_free(r->ids);
    base_free(r->logits);
}

static void test_any_budget(void **state)
{
    static const char *const modes[] = {"ramp", "balance", "off"};
    static const uint32_t chunks[] = {64, 128, 300};
    struct result want[3], got;
    struct ifx_offload_stats sum = {0};
    uint64_t seed = 12345;
    char *path;
    (void)state;
    OK(ifx_demo_path(&path));
    for (uint32_t c = 0; c < 3; c++) {
        struct ifx_model_options o = {.path = path, .device = "cpu", .prefill_chunk = chunks[c]};
        run(&o, 2, &want[c]);
    }
    for (uint32_t i = 0; i < CONFIGURATIONS; i++) {
        char what[200];
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint32_t r = (uint32_t)(seed >> 33), c = r % 3, threads = 1 + r / 3 % 3;
        /* From hardly more than two staging slots to everything. */
        uint64_t vram = i % 5 == 4 ? UINT64_C(64) << 20 : (UINT64_C(30) << 20) + (i % 5 == 0 ? 0 : r / 9 % 16) * (UINT64_C(1) << 20);
        struct ifx_model_options o = {.path = path, .device = "sim,link=0,latency=0", .prefill_chunk = chunks[c],
                                      .offload = {.assist = modes[r / 144 % 3], .deterministic = r / 432 % 4 == 0, .vram_budget = vram,
                                                  .no_expert_state = true, .cpu_threads = r / 1728 % 3,
                                                  .assist_max_columns = r / 5184 % 2 ? 100 : 0}};
        snprintf(what, sizeof what, "configuration %u: %u MB, assist %s, %u threads, chunks of %u", i, (unsigned)(vram >> 20), o.offload.assist,
                 threads, chunks[c]);
        run(&o, threads, &got);
        if (got.n_ids != want[c].n_ids || memcmp(got.ids, want[c].ids, got.n_ids * sizeof *got.ids) != 0)
            FAIL("%s: the router chose other experts", what);
        if (memcmp(got.tokens, want[c].tokens, sizeof got.tokens) != 0)
            FAIL("%s: other tokens", what);
        if (memcmp(got.logits, want[c].logits, got.vocab * sizeof *got.logits) != 0)
            FAIL("%s: other logits", what);
        sum.hits += got.stats.hits;
        sum.link_experts += got.stats.link_experts;
        sum.cpu_experts += got.stats.cpu_experts;
        sum.streamed_calls += got.stats.streamed_calls;
        sum.assisted_calls += got.stats.assisted_calls;
        release(&got);
    }
    print_message("%u hits, %u over the link, %u by the CPU, %u streamed, %u assisted\n", (unsigned)sum.hits, (unsigned)sum.link_experts,
                  (unsigned)sum.cpu_experts, (unsigned)sum.streamed_calls, (unsigned)sum.assisted_calls);
    assert_true(sum.hits > 1000 && sum.link_experts > 1000 && sum.cpu_experts > 1000 && sum.streamed_calls > 50 && sum.assisted_calls > 50);
    for (uint32_t c = 0; c < 3; c++)
        release(&want[c]);
    base_free(path);
}

/* What does not fit is refused before weights are read, with its terms and what to lower. */
static void test_refused(void **state)
{
    struct ifx_context_options co = {.threads = 1};
    struct ifx_context *ctx;
    struct ifx_model *m;
    char *path;
    (void)state;
    OK(ifx_demo_path(&path));
    OK(ifx_context_create(&co, &ctx));
    struct ifx_model_options o = {.path = path, .device = "sim", .offload = {.vram_budget = 1 << 20}};
    assert_int_equal(ifx_model_open(ctx, &o, &m), IFX_ELIMIT);
    assert_non_null(strstr(base_error_text(), "--vram-budget"));
    assert_non_null(strstr(base_error_text(), "weights"));
    assert_non_null(strstr(base_error_text(), "lower --ctx"));
    o.offload = (struct ifx_offload_options){.ram_budget = 1 << 20};
    assert_int_equal(ifx_model_open(ctx, &o, &m), IFX_ELIMIT);
    assert_non_null(strstr(base_error_text(), "--ram-budget"));
    assert_non_null(strstr(base_error_text(), "experts"));
    o.offload = (struct ifx_offload_options){.assist = "blance"};
    assert_int_equal(ifx_model_open(ctx, &o, &m), IFX_EINVAL);
    assert_non_null(strstr(base_error_text(), "balance"));
    ifx_context_destroy(ctx);
    base_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_budget),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
