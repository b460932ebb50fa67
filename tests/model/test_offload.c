/* SPDX-License-Identifier: Apache-2.0
 *
 * test_offload.c - models on a device with memory of its own: whatever budget, state of the cache, assist mode and number of threads, the same
 * router choices, tokens and logits as with everything in one memory.  IFX_PLACEMENTS: how many configurations of the small models (default 200).
 */
#include "engine.h"
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A decode step's misses reach the host by hand-over or by host calls. */
static const char *const handed[] = {"sim,link=0,latency=0", "sim,link=0,latency=0,handover=no"};

enum { PROMPT = 290, DECODE = 16, CONFIGURATIONS = 30, PLACEMENTS = 200 };

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

/* One prompt and what follows it. */
static void read_and_write(struct ifx_sequence *s, uint32_t prompt, struct result *out)
{
    const struct ifx_observer observer = {.ctx = out, .router = on_router};
    int32_t tokens[PROMPT], next;
    for (uint32_t i = 0; i < prompt; i++)
        tokens[i] = (int32_t)(i * 2654435761u % out->vocab);
    out->n_ids = 0;
    ifx_sequence_observe(s, &observer);
    OK(ifx_sequence_feed(s, tokens, prompt, 1, out->logits));
    ifx_sequence_observe(s, NULL);
    for (uint32_t i = 0; i < DECODE; i++) {
        next = 0;
        for (uint32_t t = 1; t < out->vocab; t++)
            if (out->logits[t] > out->logits[next])
                next = (int32_t)t;
        out->tokens[i] = next;
        OK(ifx_sequence_feed(s, &next, 1, 1, out->logits));
    }
}

/* `rounds` times the same from an empty state; the last one counts: the experts then lie where those before have brought them. */
static void run(const struct ifx_model_options *o, uint32_t threads, uint32_t prompt, uint32_t rounds, struct result *out)
{
    struct ifx_context_options co = {.threads = threads};
    struct ifx_context *ctx;
    struct ifx_model *m;
    struct ifx_sequence *s;
    struct ifx_model_info info;
    OK(ifx_context_create(&co, &ctx));
    OK(ifx_model_open(ctx, o, &m));
    ifx_model_info(m, &info);
    out->vocab = info.desc->vocab;
    out->room = (uint64_t)prompt * info.desc->n_moe * info.desc->moe[0].top_k;
    out->ids = base_calloc(out->room, sizeof *out->ids);
    out->logits = base_calloc(out->vocab, sizeof *out->logits);
    assert_true(out->ids && out->logits);
    OK(ifx_sequence_create(m, &s));
    for (uint32_t i = 0; i < rounds; i++) {
        if (i)
            OK(ifx_sequence_reset(s));
        read_and_write(s, prompt, out);
    }
    ifx_offload_stats(m, &out->stats);
    ifx_sequence_destroy(s);
    ifx_model_close(m);
    ifx_context_destroy(ctx);
}

static void same(const char *what, const struct result *got, const struct result *want)
{
    if (got->n_ids != want->n_ids || memcmp(got->ids, want->ids, got->n_ids * sizeof *got->ids) != 0)
        FAIL("%s: the router chose other experts", what);
    if (memcmp(got->tokens, want->tokens, sizeof got->tokens) != 0)
        FAIL("%s: other tokens", what);
    if (memcmp(got->logits, want->logits, got->vocab * sizeof *got->logits) != 0)
        FAIL("%s: other logits", what);
}

static void add(struct ifx_offload_stats *sum, const struct ifx_offload_stats *s)
{
    sum->hits += s->hits;
    sum->link_experts += s->link_experts;
    sum->cpu_experts += s->cpu_experts;
    sum->streamed_calls += s->streamed_calls;
    sum->assisted_calls += s->assisted_calls;
    sum->promotions += s->promotions;
}

static void tell(const struct ifx_offload_stats *sum)
{
    print_message("%u hits, %u over the link, %u by the CPU, %u streamed, %u assisted, %u promoted\n", (unsigned)sum->hits,
                  (unsigned)sum->link_experts, (unsigned)sum->cpu_experts, (unsigned)sum->streamed_calls, (unsigned)sum->assisted_calls,
                  (unsigned)sum->promotions);
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
    struct result want[3][2], got; /* by whether experts of few columns keep the canonical order in wide calls */
    struct ifx_offload_stats sum = {0};
    uint64_t seed = 12345;
    char *path;
    (void)state;
    OK(ifx_demo_path(&path));
    for (uint32_t c = 0; c < 6; c++) {
        struct ifx_model_options o = {.path = path, .device = "cpu", .prefill_chunk = chunks[c / 2], .offload = {.deterministic = c % 2}};
        run(&o, 2, PROMPT, 1, &want[c / 2][c % 2]);
    }
    for (uint32_t i = 0; i < CONFIGURATIONS; i++) {
        char what[200];
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint32_t r = (uint32_t)(seed >> 33), c = r % 3, threads = 1 + r / 3 % 3;
        /* From hardly more than two staging slots to everything. */
        uint64_t vram = i % 5 == 4 ? UINT64_C(64) << 20 : (UINT64_C(30) << 20) + (i % 5 == 0 ? 0 : r / 9 % 16) * (UINT64_C(1) << 20);
        struct ifx_model_options o = {.path = path, .device = handed[i % 2], .prefill_chunk = chunks[c],
                                      .offload = {.assist = modes[r / 144 % 3], .deterministic = r / 432 % 4 == 0, .vram_budget = vram,
                                                  .no_expert_state = true, .cpu_threads = r / 1728 % 3,
                                                  .assist_max_columns = r / 5184 % 2 ? 100 : 0}};
        snprintf(what, sizeof what, "configuration %u: %u MB, assist %s, %u threads, chunks of %u", i, (unsigned)(vram >> 20), o.offload.assist,
                 threads, chunks[c]);
        run(&o, threads, PROMPT, 1, &got);
        same(what, &got, &want[c][o.offload.deterministic]);
        add(&sum, &got.stats);
        release(&got);
    }
    tell(&sum);
    assert_true(sum.hits > 1000 && sum.link_experts > 1000 && sum.cpu_experts > 1000 && sum.streamed_calls > 50 && sum.assisted_calls > 50);
    for (uint32_t c = 0; c < 6; c++)
        release(&want[c / 2][c % 2]);
    base_free(path);
}

/* ---- small models: from the least that they run with to everything ---- */

static const char *const small[] = {"qwen3_5_moe-tiny", "qwen3_5_moe-mid-nvfp4", "qwen4_exp-tiny"};
enum { SMALL = 3, CHUNKS = 4, SMALL_PROMPT = 80 };
static const uint32_t small_chunks[CHUNKS] = {5, 8, 33, SMALL_PROMPT};

static bool opens(const char *path, uint32_t chunk, uint64_t budget, struct ifx_offload_stats *stats)
{
    struct ifx_context_options co = {.threads = 1};
    struct ifx_model_options o = {.path = path, .device = "sim,link=0,latency=0", .ctx = 256, .prefill_chunk = chunk,
                                  .offload = {.vram_budget = budget, .no_expert_state = true}};
    struct ifx_context *ctx;
    struct ifx_model *m = NULL;
    OK(ifx_context_create(&co, &ctx));
    bool ok = !ifx_model_open(ctx, &o, &m);
    if (ok && stats)
        ifx_offload_stats(m, stats);
    ifx_model_close(m);
    ifx_context_destroy(ctx);
    return ok;
}

/* The least budget, to a quarter of a frame, and the bytes from there to everything. */
static uint64_t least_budget(const char *path, uint32_t chunk, uint64_t *more)
{
    struct ifx_offload_stats all;
    uint64_t lo = 1, hi = UINT64_C(256) << 20;
    if (!opens(path, chunk, hi, &all))
        FAIL("%s: %s", path, base_error_text());
    while (hi - lo > all.frame_bytes / 4) {
        uint64_t mid = lo + (hi - lo) / 2;
        if (opens(path, chunk, mid, NULL))
            hi = mid;
        else
            lo = mid;
    }
    *more = all.frame_bytes * (all.frames * 4 / 3 + 8); /* a part of it is staging */
    return hi;
}

static uint32_t draw(uint64_t *seed, uint32_t below)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % below;
}

static void small_placements(const char *name, uint32_t count, uint64_t *seed, struct ifx_offload_stats *sum, uint32_t *least_frames,
                             uint64_t *most_frames)
{
    static const char *const modes[] = {"ramp", "balance", "off"};
    struct result want[CHUNKS][2], got; /* as above */
    char path[1100];
    uint64_t more, least[CHUNKS];
    snprintf(path, sizeof path, "%s", golden(0, "checkpoints/%s", name));
    for (uint32_t c = 0; c < CHUNKS; c++) {
        struct ifx_model_options o = {.path = path, .device = "cpu", .ctx = 256, .prefill_chunk = small_chunks[c]};
        run(&o, 2, SMALL_PROMPT, 1, &want[c][0]);
        o.offload.deterministic = true;
        run(&o, 2, SMALL_PROMPT, 1, &want[c][1]);
        least[c] = least_budget(path, small_chunks[c], &more);
    }
    for (uint32_t i = 0; i < count; i++) {
        char what[240];
        uint32_t c = draw(seed, CHUNKS), threads = 1 + draw(seed, 3), rounds = 1 + draw(seed, 2);
        /* Few frames are where most can go wrong: every third configuration has hardly any. */
        uint64_t extra = i == 0 ? 0 : i == 1 ? more : i % 3 ? more / 64 * draw(seed, 65) : more / 64 * draw(seed, 6);
        struct ifx_model_options o = {.path = path, .device = handed[i / 2 % 2], .ctx = 256, .prefill_chunk = small_chunks[c],
                                      .no_graph = draw(seed, 3) == 0,
                                      .offload = {.assist = modes[draw(seed, 3)], .deterministic = draw(seed, 4) == 0,
                                                  .vram_budget = least[c] + extra, .no_expert_state = true, .cpu_threads = draw(seed, 4),
                                                  .assist_max_columns = draw(seed, 2) ? 0 : 9 + draw(seed, 40),
                                                  .promote_bytes = draw(seed, 2) ? 0 : UINT64_C(1) << 20}};
        snprintf(what, sizeof what, "%s, configuration %u: %u KB, assist %s up to %u, %u + %u threads, chunks of %u, round %u%s%s", name, i,
                 (unsigned)(o.offload.vram_budget >> 10), o.offload.assist, o.offload.assist_max_columns, threads, o.offload.cpu_threads,
                 small_chunks[c], rounds, o.offload.deterministic ? ", deterministic" : "", o.no_graph ? ", no graphs" : "");
        run(&o, threads, SMALL_PROMPT, rounds, &got);
        same(what, &got, &want[c][o.offload.deterministic]);
        add(sum, &got.stats);
        *least_frames = got.stats.frames < *least_frames ? (uint32_t)got.stats.frames : *least_frames;
        *most_frames = got.stats.frames > *most_frames ? got.stats.frames : *most_frames;
        release(&got);
    }
    for (uint32_t c = 0; c < 2 * CHUNKS; c++)
        release(&want[c / 2][c % 2]);
}

static void test_placements(void **state)
{
    const char *text = getenv("IFX_PLACEMENTS");
    uint32_t count = text ? (uint32_t)strtoul(text, NULL, 10) : PLACEMENTS;
    uint64_t seed = 7;
    (void)state;
    for (uint32_t i = 0; i < SMALL; i++) {
        struct ifx_offload_stats sum = {0};
        uint32_t least = UINT32_MAX;
        uint64_t most = 0;
        small_placements(small[i], (count + SMALL - 1) / SMALL, &seed, &sum, &least, &most);
        print_message("%s: %u to %u frames; ", small[i], least, (unsigned)most);
        tell(&sum);
        assert_true(least <= 1 && most > 8);
        assert_true(count < 100 || (sum.hits > 1000 && sum.link_experts > 200 && sum.cpu_experts > 1000 && sum.streamed_calls > 20 &&
                                    sum.assisted_calls > 20 && sum.promotions > 20));
    }
}

/* Pinned memory that the device or the user keeps short: what the ledger accepts opens, and the experts that lie in pageable memory give
 * the same bits. */
static void test_pinned(void **state)
{
    struct ifx_context_options co = {.threads = 2};
    struct result want, got;
    char *path, device[64], what[64];
    uint32_t refused = 0, opened = 0, fallbacks = base_fallback_count();
    (void)state;
    OK(ifx_demo_path(&path));
    struct ifx_model_options o = {.path = path, .device = "sim,link=0,latency=0", .prefill_chunk = 300,
                                  .offload = {.assist = "off", .vram_budget = UINT64_C(33) << 20, .no_expert_state = true}};
    run(&o, 2, PROMPT, 1, &want);
    assert_true(want.stats.link_experts > 500);
    for (uint64_t quota = 64 << 10; quota <= (24u << 20); quota = quota * 5 / 4) {
        struct ifx_context *ctx;
        struct ifx_model *m;
        OK(ifx_context_create(&co, &ctx));
        snprintf(device, sizeof device, "sim,link=0,latency=0,pinned=%u", (unsigned)quota);
        o.device = device;
        int32_t st = ifx_model_open(ctx, &o, &m);
        if (st) {
            if (st != IFX_ELIMIT || opened || !strstr(base_error_text(), "of pinned host memory are needed") ||
                !strstr(base_error_text(), "; lower --prefill-chunk"))
                FAIL("a quota of %u bytes: %s", (unsigned)quota, base_error_text());
            refused++;
        } else {
            ifx_model_close(m);
            opened++;
        }
        ifx_context_destroy(ctx);
        if (st || (opened != 1 && opened != 4))
            continue;
        run(&o, 2, PROMPT, 1, &got);
        same(device, &got, &want);
        release(&got);
    }
    assert_true(refused > 3 && opened > 4);
    assert_true(base_fallback_count() == fallbacks + 1); /* a quota is one; what the user asks for is not */
    o.device = "sim,link=0,latency=0";
    o.offload.limit_pinned = true;
    for (uint32_t mib = 0; mib <= 8; mib += 4) {
        snprintf(what, sizeof what, "%u MiB pinned", mib);
        o.offload.most_pinned = (uint64_t)mib << 20;
        o.offload.assist = mib == 4 ? "ramp" : "off";
        run(&o, 2, PROMPT, 1, &got);
        same(what, &got, &want);
        release(&got);
    }
    release(&want);
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
    /* Experts of a container are used where they lie in the file; its other weights are not. */
    o = (struct ifx_model_options){.path = path, .device = "cpu", .ctx = 64, .prefill_chunk = 16, .offload = {.ram_budget = 8 << 20}};
    assert_int_equal(ifx_model_open(ctx, &o, &m), IFX_ELIMIT);
    assert_non_null(strstr(base_error_text(), "--ram-budget"));
    assert_non_null(strstr(base_error_text(), "weights"));
    assert_null(strstr(base_error_text(), "experts 1"));
    o.offload.ram_budget = 16 << 20;
    OK(ifx_model_open(ctx, &o, &m));
    ifx_model_close(m);
    o.device = "sim";
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
        cmocka_unit_test(test_placements),
        cmocka_unit_test(test_pinned),
        cmocka_unit_test(test_refused),
    };
    base_log_set_level(IFX_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
