/* SPDX-License-Identifier: Apache-2.0
 *
 * The MoE call on a device with its own memory: whatever lies where, whoever computes what, however many threads and frames there
 * are, the result has the bits of the same call on the host.  (On `sim` the device computes with the CPU's kernels, so this holds
 * at every width; on others it is promised up to 8 columns.)
 */
#include "rig.h"

#include <stdio.h>

static const char *const formats[] = {"nvfp4", "int8", "bf16"};
static const char *const modes[] = {"off", "ramp", "balance"};

static void add_stats(struct offload_stats *sum, struct offload *o)
{
    struct offload_stats s;
    offload_stats(o, &s);
    sum->calls += s.calls;
    sum->streamed_calls += s.streamed_calls;
    sum->assisted_calls += s.assisted_calls;
    sum->hits += s.hits;
    sum->link_experts += s.link_experts;
    sum->cpu_experts += s.cpu_experts;
    sum->promotions += s.promotions;
    sum->evictions += s.evictions;
    assert_int_equal(s.misses, s.link_experts + s.cpu_experts);
    assert_true(s.frames_used <= s.frames);
}

static void test_random_placements(void **state)
{
    (void)state;
    static const struct ifx_ramp_point points[] = {{9, 77}, {30, 149}};
    static const struct ifx_assist_policy policy = {sizeof policy, 40, 2, 0, points};
    static const uint32_t widths[] = {1, 2, 8, 9, 17, 40, 41, 64};
    uint64_t seed = 1;
    struct offload_stats sum = {0};
    const char *few = getenv("IFX_TEST_ROUNDS"); /* under valgrind */
    uint32_t rounds = few ? (uint32_t)atoi(few) : 240;
    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t experts = 2 + rig_below(&seed, 20), layers = 1 + rig_below(&seed, RIG_LAYERS);
        uint32_t top_k = 1 + rig_below(&seed, experts < 6 ? experts : 6);
        /* From nothing at all and one frame to everything. */
        uint32_t frames = round % 6 == 0 ? round / 6 % 3 : rig_below(&seed, experts * layers + 1);
        struct rig_options o = {.device = "device_sim,link=0,latency=0", .format = formats[rig_below(&seed, 3)], .experts = experts,
                                .top_k = top_k, .layers = layers, .threads = 1 + rig_below(&seed, 3), .policy = &policy,
                                .mode = rig_below(&seed, 3), .deterministic = rig_below(&seed, 4) == 0, .frames = frames,
                                .slots = round % 17 == 16 ? 0 : 1 + rig_below(&seed, 2 * experts),
                                .promote_bytes = rig_below(&seed, 2) ? UINT64_C(1) << 30 : 4096};
        struct rig r;
        char what[200];
        rig_open(&r, &o);
        if (rig_below(&seed, 2))
            OK(offload_measure(r.offload));
        for (uint32_t s = 0; s < 6; s++) {
            uint32_t n = widths[rig_below(&seed, 8)];
            snprintf(what, sizeof what, "round %u step %u: %s, %s%s, %u layers of %u experts (%u), %u frames, %u slots, %u threads",
                     round, s, o.format, modes[o.mode], o.deterministic ? " deterministic" : "", layers, experts, top_k, frames,
                     o.slots, o.threads);
            rig_step(&r, n, rig_below(&seed, 3), &seed, what);
            if (rig_below(&seed, 4) == 0 && o.slots)
                OK(offload_resize(r.offload, rig_below(&seed, frames + 1)));
        }
        add_stats(&sum, r.offload);
        rig_close(&r);
    }
    print_message("%u calls, %u streamed, %u assisted; %u hits, %u over the link, %u by the CPU; %u promotions, %u evictions\n",
                  (unsigned)sum.calls, (unsigned)sum.streamed_calls, (unsigned)sum.assisted_calls, (unsigned)sum.hits,
                  (unsigned)sum.link_experts, (unsigned)sum.cpu_experts, (unsigned)sum.promotions, (unsigned)sum.evictions);
    /* The test means something only when all of it happened. */
    if (few)
        return;
    assert_true(sum.hits > 500 && sum.link_experts > 500 && sum.cpu_experts > 500);
    assert_true(sum.streamed_calls > 50 && sum.assisted_calls > 50 && sum.promotions > 50 && sum.evictions > 50);
}

/* Pools far smaller than what a call needs, at the widths around every edge. */
static void test_small_pools(void **state)
{
    (void)state;
    static const uint32_t frames[] = {1, 2, 4, 5, 48}, widths[] = {600, 1, 256, 8, 255, 9}; /* top-4; 3 layers of 16 */
    for (uint32_t f = 0; f < 5; f++)
        for (uint32_t slots = 1; slots <= 3; slots += 2) {
            struct rig_options o = {.device = "device_sim,link=0,latency=0", .max_columns = 600, .mode = OFFLOAD_ASSIST_RAMP, .frames = frames[f],
                                    .slots = slots};
            struct rig r;
            uint64_t seed = 100 + f;
            char what[80];
            rig_open(&r, &o);
            for (uint32_t round = 0; round < 2; round++)
                for (uint32_t w = 0; w < 6; w++) {
                    snprintf(what, sizeof what, "%u frames, %u slots, %u columns", frames[f], slots, widths[w]);
                    rig_step(&r, widths[w], round, &seed, what);
                }
            rig_close(&r);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_placements),
        cmocka_unit_test(test_small_pools),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
