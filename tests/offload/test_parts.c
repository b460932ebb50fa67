/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of core/offload: residency, its file, policies from text, streamed calls beside a policy, what divides memory.
 */
#include "rig.h"

#include "ledger.h"
#include "mover.h"
#include "policy.h"
#include "residency.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- residency ---- */

static void test_promotion(void **state)
{
    (void)state;
    struct residency *r;
    uint32_t key, frame, victim;
    OK(residency_create(10, 2, &r));
    residency_use(r, 3, 1, true);
    residency_use(r, 4, 1, true);
    residency_use(r, 4, 1, true);
    assert_true(residency_promote(r, NULL, &key, &frame, &victim));
    assert_int_equal(key, 4); /* used twice */
    assert_int_equal(victim, RESIDENCY_NONE);
    assert_int_equal(r->frame_of[4], RESIDENCY_NONE); /* not before its bytes are there */
    residency_filled(r, frame);
    assert_int_equal(r->frame_of[4], frame);
    assert_true(residency_promote(r, NULL, &key, &frame, &victim));
    assert_int_equal(key, 3);
    residency_filled(r, frame);
    assert_false(residency_promote(r, NULL, &key, &frame, &victim));
    /* One use now beats one long ago; not one that is as recent. */
    for (int i = 0; i < 20; i++)
        residency_round(r);
    residency_use(r, 4, 1, false);
    residency_use(r, 5, 1, true);
    assert_true(residency_promote(r, NULL, &key, &frame, &victim));
    assert_int_equal(key, 5);
    assert_int_equal(victim, 3);
    assert_int_equal(r->frame_of[3], RESIDENCY_NONE);
    residency_cancel(r, frame);
    assert_int_equal(r->n_used, 1);
    residency_round(r);
    residency_use(r, 4, 5, false);
    residency_use(r, 6, 1, true);
    residency_use(r, 7, 1, true);
    assert_true(residency_promote(r, NULL, &key, &frame, &victim)); /* the free one */
    residency_filled(r, frame);
    assert_false(residency_promote(r, NULL, &key, &frame, &victim)); /* both residents are worth as much or more */
    residency_destroy(r);
}

static void test_protection(void **state)
{
    (void)state;
    struct residency *r;
    uint32_t key, frame, victim;
    uint8_t protect[4] = {1, 0, 0, 0};
    OK(residency_create(4, 1, &r));
    assert_int_equal(residency_place(r, 0), 0);
    for (int i = 0; i < 100; i++)
        residency_round(r);
    residency_use(r, 1, 3, true);
    assert_false(residency_promote(r, protect, &key, &frame, &victim));
    residency_use(r, 1, 3, true);
    assert_true(residency_promote(r, NULL, &key, &frame, &victim));
    assert_int_equal(victim, 0);
    residency_destroy(r);
}

static void test_decay(void **state)
{
    (void)state;
    struct residency *r;
    OK(residency_create(1, 1, &r));
    residency_use(r, 0, 1024, false);
    float before = residency_score(r, 0);
    for (uint32_t i = 0; i < RESIDENCY_HALF_LIFE; i++)
        residency_round(r);
    float after = residency_score(r, 0) * (float)(RESIDENCY_HALF_LIFE + 1);
    assert_true(after > before * 0.499f && after < before * 0.501f);
    for (uint32_t i = 0; i < 100 * RESIDENCY_HALF_LIFE; i++)
        residency_round(r);
    assert_true(residency_score(r, 0) == 0);
    residency_destroy(r);
}

/* With a skewed choice the frames come to hold the popular: far more hits than their share. */
static void test_learning(void **state)
{
    (void)state;
    struct residency *r;
    uint64_t seed = 3;
    uint32_t hits = 0, asked = 0, key, frame, victim;
    OK(residency_create(256, 64, &r));
    for (uint32_t round = 0; round < 3000; round++) {
        residency_round(r);
        for (uint32_t i = 0; i < 8; i++) {
            uint32_t a = rig_below(&seed, 256), b = rig_below(&seed, 256), c = rig_below(&seed, 256);
            uint32_t e = a < b ? a : b;
            e = c < e ? c : e; /* P(e < 64) = 1 - 0.75^3 = 0.58 */
            bool missed = r->frame_of[e] == RESIDENCY_NONE;
            residency_use(r, e, 1, missed);
            hits += round >= 1000 && !missed;
            asked += round >= 1000;
        }
        for (uint32_t i = 0; i < 2 && residency_promote(r, NULL, &key, &frame, &victim); i++)
            residency_filled(r, frame);
    }
    print_message("hit rate %.3f with a quarter of the frames, 0.58 at best\n", (double)hits / asked);
    assert_true(hits > asked * 0.45);
    residency_destroy(r);
}

static void test_ranking_file(void **state)
{
    (void)state;
    struct residency *r, *other;
    struct residency_identity id = {.record_bytes = 4096, .check = 77, .n_layers = 2, .n_keys = 20};
    uint32_t keys[20], n;
    char path[] = "ranking-XXXXXX", byte;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    OK(residency_create(20, 4, &r));
    OK(residency_create(20, 4, &other));
    residency_use(r, 7, 3, false);
    residency_use(r, 2, 5, false);
    residency_use(r, 19, 5, false);
    OK(residency_save(r, &id, path));
    OK(residency_load(other, &id, path, keys, &n));
    assert_int_equal(n, 3);
    assert_int_equal(keys[0], 2);
    assert_int_equal(keys[1], 19);
    assert_int_equal(keys[2], 7);
    /* Another model's, a damaged, a short and a missing one. */
    struct residency_identity wrong = id;
    wrong.check++;
    assert_int_equal(residency_load(other, &wrong, path, keys, &n), IFX_EFORMAT);
    assert_non_null(strstr(base_error_text(), "another model"));
    close(fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, 60), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, 60), 1);
    assert_int_equal(residency_load(other, &id, path, keys, &n), IFX_EFORMAT);
    assert_non_null(strstr(base_error_text(), "checksum"));
    assert_int_equal(ftruncate(fd, 50), 0);
    assert_int_equal(residency_load(other, &id, path, keys, &n), IFX_EFORMAT);
    assert_int_equal(ftruncate(fd, 5), 0);
    assert_int_equal(residency_load(other, &id, path, keys, &n), IFX_EFORMAT);
    close(fd);
    unlink(path);
    assert_int_equal(residency_load(other, &id, path, keys, &n), IFX_ENOTFOUND);
    residency_destroy(r);
    residency_destroy(other);
}

/* The ranking that a run leaves warms the next one. */
static void test_warm_start(void **state)
{
    (void)state;
    struct rig r;
    struct offload_stats stats;
    uint64_t seed = 9;
    const char *path = "warm.expert-state";
    struct rig_options o = {.device = "device_sim,link=0,latency=0", .mode = OFFLOAD_ASSIST_RAMP, .frames = 12, .slots = 4};
    unlink(path);
    for (int run = 0; run < 2; run++) {
        rig_open(&r, &o);
        OK(offload_state_load(r.offload, path));
        offload_stats(r.offload, &stats);
        assert_int_equal(stats.frames_used, run ? 12 : 0);
        rig_step(&r, 1, 2, &seed, "warm start");
        for (int i = 0; i < 30 && !run; i++)
            rig_step(&r, 1, 2, &seed, "cold start");
        OK(offload_state_save(r.offload, path));
        rig_close(&r);
    }
    /* Other experts: a note, no frames, no error. */
    o.experts = 17;
    rig_open(&r, &o);
    OK(offload_state_load(r.offload, path));
    offload_stats(r.offload, &stats);
    assert_int_equal(stats.frames_used, 0);
    rig_close(&r);
    unlink(path);
}

/* ---- policies from text ---- */

static const struct ifx_ramp_point nvfp4_points[] = {{64, 77}, {255, 104}, {575, 149}};
static const struct ifx_assist_policy nvfp4 = {sizeof nvfp4, 575, 3, 0, nvfp4_points};

static void test_policy(void **state)
{
    (void)state;
    struct offload_policy p;
    OK(offload_policy_make(&nvfp4, 0, NULL, &p));
    for (uint32_t n = 1; n <= 1100; n++)
        assert_int_equal(offload_link_share(&p.policy, n), offload_link_share(&nvfp4, n));
    /* Cut in the middle of a line: the same shares up to the limit, and 0 past it. */
    static const uint32_t limits[] = {20, 64, 65, 255, 400, 575};
    for (uint32_t i = 0; i < 6; i++) {
        OK(offload_policy_make(&nvfp4, limits[i], NULL, &p));
        assert_int_equal(p.policy.max_columns, limits[i]);
        for (uint32_t n = 1; n <= 1100; n++) {
            int want = n > limits[i] ? 0 : (int)offload_link_share(&nvfp4, n), got = (int)offload_link_share(&p.policy, n);
            if (got - want > 1 || want - got > 1) /* the new end is rounded once more */
                fail_msg("limit %u: share %d at %u columns, %d expected", limits[i], got, n, want);
        }
    }
    OK(offload_policy_make(&nvfp4, 255, "64:77", &p));
    assert_int_equal(offload_link_share(&p.policy, 255), 77);
    assert_int_equal(offload_link_share(&p.policy, 256), 0);
    OK(offload_policy_make(&nvfp4, 0, "10:0,900:256", &p));
    assert_int_equal(p.policy.max_columns, 900);
    assert_int_equal(offload_link_share(&p.policy, 900), 256);
    static const char *const bad[] = {"", "64", "64:", ":7", "64:257", "0:5", "64:7,", "64:7;80:9", "80:9,64:7", "64:7,64:8", "64:-1", "x:1",
                                      "64:7 ", "99999999999:1"};
    for (uint32_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (offload_policy_make(&nvfp4, 0, bad[i], &p) != IFX_EINVAL)
            fail_msg("\"%s\" was taken for a ramp", bad[i]);
    uint32_t mode;
    assert_int_equal(offload_mode_parse("blance", &mode), IFX_EINVAL);
    assert_non_null(strstr(base_error_text(), "balance"));
    OK(offload_mode_parse("off", &mode));
    assert_int_equal(mode, OFFLOAD_ASSIST_OFF);
}

/* Nothing to say where the rates are those that the policy was made for; a CPU half or twice as fast is far off; nothing missing, nothing wrong. */
static void test_policy_fit(void **state)
{
    (void)state;
    static const struct { double cpu; bool far; } rows[] = {{0.5, true}, {1, false}, {2, true}, {10, true}};
    for (uint32_t i = 0; i < 4; i++) {
        /* Records of 5.3 MB at 26 and 75 GB/s, 18.9 MFLOP a column at 385 GFLOP/s. */
        struct offload_cost k = {.link_record = 204e-6, .cpu_record = 71e-6, .cpu_shared = 108e-6, .cpu_column = 49e-6 / rows[i].cpu,
                                 .device_record = 3.5e-6, .device_column = 0.19e-6, .link_row = 0.47e-6};
        struct policy_fit f = {.policy = &nvfp4, .cost = &k, .experts = 256, .top_k = 8, .resident = 67};
        struct policy_misfit m;
        OK(offload_policy_fit(&f, &m));
        print_message("a CPU of %.1f: %.2f at %u columns, %.2f past the limit\n", rows[i].cpu, m.ratio, m.columns, m.step);
        assert_int_equal(offload_policy_far(&m), rows[i].far);
        f.resident = 256;
        OK(offload_policy_fit(&f, &m));
        assert_true(m.ratio == 1 && !offload_policy_far(&m));
    }
}

/* ---- memory ---- */

static void test_divide(void **state)
{
    (void)state;
    struct offload_memory m = {.frame_bytes = 1000, .least_slots = 2, .useful_slots = 8, .n_experts = 40};
    uint32_t frames, slots;
    assert_false(offload_divide(&m, 1999, &frames, &slots));
    for (uint64_t bytes = 2000; bytes < 100000; bytes += 700) {
        assert_true(offload_divide(&m, bytes, &frames, &slots));
        assert_true((frames + slots) * m.frame_bytes <= bytes);
        assert_true(slots >= 2 && slots <= 8 && frames <= 40);
    }
    assert_int_equal(frames, 40);
    assert_int_equal(slots, 8);
}

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* The tightest of a group and its parents counts, less what is held, of which pages of files can go. */
static void test_cgroups(void **state)
{
    (void)state;
    struct ledger_limit limit = {0};
    char root[] = "cgroup-XXXXXX", path[200];
    static const char *const folders[] = {"/a", "/a/b", "/memory", "/memory/c"};
    assert_non_null(mkdtemp(root));
    for (uint32_t i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s%s", root, folders[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    static const char *const files[][2] = {{"/a/memory.max", "4294967296"}, {"/a/memory.high", "max"}, {"/a/memory.current", "1073741824"},
                                           {"/a/memory.stat", "anon 7\ninactive_file 73741824\nactive_file 0\n"},
                                           {"/a/b/memory.max", "max"}, {"/a/b/memory.high", "5000000000"},
                                           {"/memory/c/memory.limit_in_bytes", "2000000000"}, {"/memory/c/memory.usage_in_bytes", "500000000"},
                                           {"/memory/memory.limit_in_bytes", "9223372036854771712"}, {"/one", "0::/a/b\n"},
                                           {"/two", "0::/a/b\n5:memory,hugetlb:/c\n"}, {"/three", "0::/\n"}};
    for (uint32_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s%s", root, files[i][0]);
        put(path, files[i][1]);
    }
    snprintf(path, sizeof path, "%s/one", root);
    ledger_cgroup_limit(path, root, &limit);
    assert_int_equal(limit.bytes, 4294967296 - 1000000000);
    assert_non_null(strstr(limit.source, "/a/memory.max"));
    snprintf(path, sizeof path, "%s/two", root);
    ledger_cgroup_limit(path, root, &limit);
    assert_int_equal(limit.bytes, 1500000000);
    assert_non_null(strstr(limit.source, "limit_in_bytes"));
    struct ledger_limit none = {0};
    snprintf(path, sizeof path, "%s/three", root);
    ledger_cgroup_limit(path, root, &none);
    assert_int_equal(none.source[0], 0);
    snprintf(path, sizeof path, "rm -r %s", root);
    assert_int_equal(system(path), 0);
}

static void test_ledger(void **state)
{
    (void)state;
    struct ledger l = {0};
    ledger_host_limit(&l.limit[LEDGER_HOST]);
    assert_true(l.limit[LEDGER_HOST].source[0] && l.limit[LEDGER_HOST].bytes > 1 << 20);
    ledger_add(&l, LEDGER_DEVICE, "weights", 600000000, NULL);
    ledger_add(&l, LEDGER_DEVICE, "KV cache", 300000000, "lower --ctx");
    ledger_add(&l, LEDGER_DEVICE, "steps", 200000000, "lower --prefill-chunk");
    ledger_add(&l, LEDGER_DEVICE, "nothing", 0, "do nothing");
    OK(ledger_check(&l)); /* no limit is known */
    ledger_limit(&l.limit[LEDGER_DEVICE], 1100000000, "--vram-budget");
    OK(ledger_check(&l));
    ledger_limit(&l.limit[LEDGER_DEVICE], 1099999999, "free");
    assert_int_equal(ledger_check(&l), IFX_ELIMIT);
    const char *text = base_error_text();
    assert_non_null(strstr(text, "1.10 GB of device memory"));
    assert_non_null(strstr(text, "(free)"));
    assert_non_null(strstr(text, "weights 0.60 GB, KV cache 0.30 GB, steps 0.20 GB; lower --ctx, or lower --prefill-chunk"));
    assert_null(strstr(text, "nothing"));
    ledger_add(&l, LEDGER_HOST, "experts", UINT64_MAX - 5, NULL);
    ledger_add(&l, LEDGER_HOST, "more", 100, NULL);
    l.limit[LEDGER_DEVICE].bytes = UINT64_MAX;
    assert_int_equal(ledger_check(&l), IFX_ELIMIT); /* the sum does not wrap */
    struct ledger pinned = {0};
    ledger_add(&pinned, LEDGER_PINNED, "steps", 300000000, "lower --prefill-chunk");
    OK(ledger_check(&pinned));
    ledger_limit(&pinned.limit[LEDGER_PINNED], 200000000, "the device's quota");
    assert_int_equal(ledger_check(&pinned), IFX_ELIMIT);
    assert_non_null(strstr(base_error_text(), "0.30 GB of pinned host memory are needed and 0.20 GB are there (the device's quota): steps 0.30 GB"));
}

/* Pinned memory runs out: the rest is pageable, and that is told. */
static void test_pinning(void **state)
{
    (void)state;
    struct rig r;
    struct mover_records records;
    struct rig_options o = {.device = "device_sim,link=0,latency=0", .no_offload = true};
    const uint64_t bytes[3] = {8192, 8192, 8192};
    rig_open(&r, &o);
    uint32_t told = base_fallback_count();
    OK(mover_records_create(r.dev, 3, bytes, 20000, "--pin-experts", &records));
    assert_int_equal(records.pinned_bytes, 16384);
    assert_int_equal(records.pageable_bytes, 8192);
    assert_int_equal(base_fallback_count(), told + 1);
    memset(records.layers[2].memory, 1, 8192);
    mover_records_destroy(&records);
    rig_close(&r);
}

/* ---- the streamed pass ---- */

/* Virtual seconds of two streamed steps over all layers, and what they moved. */
static double streamed_seconds(uint32_t n, uint32_t mode, const struct ifx_assist_policy *policy, struct offload_stats *stats)
{
    struct rig r;
    uint64_t seed = 21;
    struct rig_options o = {.device = "device_sim,clock=virtual", .experts = 64, .top_k = 8, .layers = 4, .max_columns = 1023,
                            .mode = OFFLOAD_ASSIST_RAMP, .policy = policy, .frames = 30, .slots = 40};
    rig_open(&r, &o);
    OK(offload_measure(r.offload));
    for (int i = 0; i < 3; i++)
        rig_step(&r, 1, 1, &seed, "decode");
    offload_set_mode(r.offload, mode, 0);
    struct offload_stats before;
    offload_stats(r.offload, &before);
    double began = r.dev->ops->now(r.dev);
    for (int i = 0; i < 2; i++)
        rig_step(&r, n, 0, &seed, "streamed");
    double took = r.dev->ops->now(r.dev) - began;
    offload_stats(r.offload, stats);
    assert_int_equal(stats->streamed_calls - before.streamed_calls, 8);
    stats->link_bytes -= before.link_bytes;
    rig_close(&r);
    return took;
}

static void test_streamed_time(void **state)
{
    (void)state;
    static const struct ifx_ramp_point narrow_points[] = {{9, 256}};
    static const struct ifx_assist_policy none = {sizeof none, 9, 1, 0, narrow_points};
    static const uint32_t widths[] = {576, 768, 1023};
    for (uint32_t i = 0; i < 3; i++) {
        struct offload_stats with, without, off;
        double a = streamed_seconds(widths[i], OFFLOAD_ASSIST_RAMP, &nvfp4, &with);
        double b = streamed_seconds(widths[i], OFFLOAD_ASSIST_RAMP, &none, &without);
        double c = streamed_seconds(widths[i], OFFLOAD_ASSIST_OFF, &nvfp4, &off);
        print_message("%u columns: %.9f s with a policy, %.9f without, %.9f with assist off\n", widths[i], a, b, c);
        assert_true(a == b);
        assert_true(a < c * 1.000001 && c < a * 1.000001);
        assert_int_equal(with.link_bytes, without.link_bytes);
        assert_int_equal(with.link_bytes, off.link_bytes);
    }
}

/* A streamed pass leaves the residents and their ranking as they are. */
static void test_streamed_leaves_residents(void **state)
{
    (void)state;
    struct rig r;
    uint64_t seed = 2;
    struct offload_stats before, after;
    struct rig_options o = {.device = "device_sim,link=0,latency=0", .mode = OFFLOAD_ASSIST_RAMP, .frames = 20, .slots = 4,
                            .max_columns = 600};
    rig_open(&r, &o);
    for (int i = 0; i < 20; i++)
        rig_step(&r, 1, 2, &seed, "decode");
    OK(offload_begin_step(r.offload, r.stream));
    OK(r.dev->ops->stream_sync(r.dev, r.stream));
    offload_stats(r.offload, &before);
    for (int i = 0; i < 5; i++)
        rig_step(&r, 600, 0, &seed, "streamed");
    offload_stats(r.offload, &after);
    assert_int_equal(after.evictions, before.evictions);
    assert_int_equal(after.promotions, before.promotions);
    assert_int_equal(after.frames_used, before.frames_used);
    assert_int_equal(after.streamed_calls - before.streamed_calls, 15);
    rig_close(&r);
}

/* Virtual seconds of 64 decode steps, and the share of their experts that were resident. */
static double decode_seconds(struct rig *r, uint64_t *seed, double *hit_rate)
{
    struct offload_stats a, b;
    offload_stats(r->offload, &a);
    double began = r->dev->ops->now(r->dev);
    for (int i = 0; i < 64; i++)
        rig_step(r, 1, 3, seed, "decode");
    double took = r->dev->ops->now(r->dev) - began;
    offload_stats(r->offload, &b);
    *hit_rate = (double)(b.hits - a.hits) / (double)(b.hits - a.hits + b.misses - a.misses);
    return took;
}

/* Decode is as fast after a prompt of 8,192 columns as before it. */
static void test_decode_after_long_prompt(void **state)
{
    (void)state;
    static const uint32_t modes[] = {OFFLOAD_ASSIST_RAMP, OFFLOAD_ASSIST_BALANCE, OFFLOAD_ASSIST_OFF};
    for (uint32_t m = 0; m < 3; m++) {
        struct rig r;
        uint64_t seed = 31;
        double hits[2];
        struct rig_options o = {.device = "device_sim,clock=virtual", .experts = 64, .top_k = 4, .layers = 3, .max_columns = 1024,
                                .mode = OFFLOAD_ASSIST_RAMP, .frames = 60, .slots = 16};
        rig_open(&r, &o);
        OK(offload_measure(r.offload));
        for (int i = 0; i < 300; i++)
            rig_step(&r, 1, 3, &seed, "warming");
        uint64_t same = seed;
        double before = decode_seconds(&r, &seed, &hits[0]);
        offload_set_mode(r.offload, modes[m], 0);
        for (int i = 0; i < 8; i++)
            rig_step(&r, 1024, 0, &seed, "prompt");
        offload_set_mode(r.offload, OFFLOAD_ASSIST_RAMP, 0);
        double after = decode_seconds(&r, &same, &hits[1]);
        print_message("%s: 64 steps take %.3f ms with %.1f %% hits before the prompt, %.3f ms with %.1f %% after it\n", offload_mode_name(modes[m]),
                      before * 1e3, hits[0] * 100, after * 1e3, hits[1] * 100);
        assert_true(after <= before / 0.95);
        assert_true(hits[1] >= hits[0] * 0.95);
        rig_close(&r);
    }
}

/* The ramp's share is what crosses, to the byte. */
static void test_ramp_bytes(void **state)
{
    (void)state;
    struct rig r;
    uint64_t seed = 4;
    struct rig_options o = {.device = "device_sim,link=0,latency=0", .experts = 32, .layers = 1, .mode = OFFLOAD_ASSIST_RAMP, .slots = 5,
                            .max_columns = 600};
    static const uint32_t widths[] = {9, 64, 100, 255, 256, 400, 575, 576};
    rig_open(&r, &o);
    for (uint32_t i = 0; i < 8; i++) {
        struct offload_stats a, b;
        offload_stats(r.offload, &a);
        rig_step(&r, widths[i], 0, &seed, "ramp");
        offload_stats(r.offload, &b);
        uint64_t missing = b.misses - a.misses, share = widths[i] > 575 ? 256 : offload_link_share(&nvfp4, widths[i]);
        uint64_t want = (missing * share + 128) / 256;
        assert_int_equal(b.link_experts - a.link_experts, want);
        assert_int_equal(b.link_bytes - a.link_bytes, want * r.layers[0].record_bytes);
        assert_int_equal(b.cpu_experts - a.cpu_experts, missing - want);
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_promotion),
        cmocka_unit_test(test_protection),
        cmocka_unit_test(test_decay),
        cmocka_unit_test(test_learning),
        cmocka_unit_test(test_ranking_file),
        cmocka_unit_test(test_warm_start),
        cmocka_unit_test(test_policy),
        cmocka_unit_test(test_policy_fit),
        cmocka_unit_test(test_divide),
        cmocka_unit_test(test_pinning),
        cmocka_unit_test(test_cgroups),
        cmocka_unit_test(test_ledger),
        cmocka_unit_test(test_streamed_time),
        cmocka_unit_test(test_streamed_leaves_residents),
        cmocka_unit_test(test_decode_after_long_prompt),
        cmocka_unit_test(test_ramp_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
