/* SPDX-License-Identifier: Apache-2.0
 *
 * Every allocation, copy and launch of a run fails once in turn, at once or when somebody waits: the call says so, everything is given
 * back (valgrind sees), and the next request has the right answer.  IFX_TEST_PART=k/n: every n-th fault from the k-th on, for valgrind in pieces.
 */
#include "rig.h"

#include <stdio.h>

static const struct ifx_ramp_point points[] = {{9, 128}};
static const struct ifx_assist_policy policy = {sizeof policy, 16, 1, 0, points};

struct scenario {
    const char *kind; /* fail-KIND */
    bool late;
    uint32_t mode;
};

static struct rig_options options_of(const char *device, uint32_t mode)
{
    return (struct rig_options){.device = device, .experts = 6, .top_k = 2, .layers = 2, .max_columns = 24, .policy = &policy,
                                .mode = mode, .frames = 5, .slots = 3, .no_offload = true};
}

static int32_t one_step(struct rig *r, uint32_t n, uint64_t *seed)
{
    int32_t st = offload_begin_step(r->offload, r->stream);
    for (uint32_t l = 0; l < r->n_layers && !st; l++) {
        rig_draw(r, l, n, 0, seed);
        st = rig_run(r, l, n);
        if (!st)
            rig_compare(r, l, n, "before or after a failure elsewhere");
    }
    return st;
}

/* Steps of all kinds: decode with promotions, assisted, streamed, decode again. */
static int32_t run_steps(struct rig *r, uint64_t *seed)
{
    static const uint32_t widths[] = {1, 1, 2, 12, 20, 1, 1};
    int32_t st = IFX_OK;
    for (uint32_t s = 0; s < sizeof widths / sizeof *widths && !st; s++)
        st = one_step(r, widths[s], seed);
    return st;
}

static int32_t open_offload(struct rig *r)
{
    int32_t st = offload_create(&r->config, &r->offload);
    if (!st)
        st = offload_allocate(r->offload, 5, 3);
    if (!st)
        st = offload_measure(r->offload);
    if (st) {
        offload_destroy(r->offload);
        r->offload = NULL;
    }
    return st;
}

/* False when nothing failed any more: the run has fewer of these. */
static bool fail_nth(const struct scenario *s, uint32_t nth)
{
    struct rig r;
    char device[160], text[512];
    uint64_t seed = 5;
    snprintf(device, sizeof device, "device_sim,link=0,latency=0,%s=%u%s", s->kind, nth, s->late ? ",fail-late=yes" : "");
    struct rig_options o = options_of(device, s->mode);
    rig_open(&r, &o);
    base_error_clear();
    int32_t st = open_offload(&r);
    bool opened = st == IFX_OK;
    if (opened)
        st = run_steps(&r, &seed);
    snprintf(text, sizeof text, "%s", base_error_text());
    if (st && !strstr(text, "asked for"))
        fail_msg("%s number %u%s: the error says \"%s\"", s->kind, nth, s->late ? " late" : "", text);
    if (st && !opened)
        OK(open_offload(&r));
    if (st) {
        /* What an engine does after an error: nothing is in flight when the next request comes. */
        offload_recover(r.offload, r.stream);
        int32_t again = run_steps(&r, &seed);
        if (again)
            fail_msg("%s number %u%s: the request after it: %d (%s)", s->kind, nth, s->late ? " late" : "", again, base_error_text());
    }
    rig_close(&r);
    return st != IFX_OK;
}

static void get_part(uint32_t *offset, uint32_t *stride)
{
    const char *part = getenv("IFX_TEST_PART");
    *offset = 0;
    *stride = 1;
    if (part && (sscanf(part, "%u/%u", offset, stride) != 2 || !*stride || *offset >= *stride))
        fail_msg("IFX_TEST_PART=%s: 2/7 is the third of seven parts", part);
}

static void run_all(const char *kind, uint32_t first, bool late, uint32_t least)
{
    for (uint32_t mode = 0; mode <= OFFLOAD_ASSIST_BALANCE; mode++) {
        struct scenario s = {kind, late, mode};
        uint32_t nth = first, failed = 0, quiet = 0;
        uint32_t offset, stride;
        get_part(&offset, &stride);
        /* Some that nobody waits for go unnoticed; the run is over when none of many is noticed. */
        for (nth += offset; quiet < 40; nth += stride) {
            bool seen = fail_nth(&s, nth);
            failed += seen;
            quiet = seen ? 0 : quiet + stride;
        }
        print_message("%s%s, mode %u: %u failed\n", kind, late ? " late" : "", mode, failed);
        assert_true((failed + 1) * stride >= least);
    }
}

static void test_allocations(void **state)
{
    (void)state;
    run_all("fail-alloc", 5, false, 10); /* the first four are the test's own */
}

static void test_copies(void **state)
{
    (void)state;
    run_all("fail-copy", 1, false, 30);
}

static void test_copies_late(void **state)
{
    (void)state;
    run_all("fail-copy", 1, true, 30);
}

static void test_launches(void **state)
{
    (void)state;
    run_all("fail-launch", 1, false, 30);
}

static void test_launches_late(void **state)
{
    (void)state;
    run_all("fail-launch", 1, true, 30);
}

/* An upload of the table that fails when nobody looks: after it frames change hands in many steps of decode, and an address that the device
 * should have forgotten gives another expert's result.  By the computed clock, so that promotions come at the same steps every time. */
static void test_stale_tables(void **state)
{
    static const struct scenario s = {"fail-copy", true, OFFLOAD_ASSIST_RAMP};
    uint32_t failed = 0, promoted = 0, offset, stride;
    (void)state;
    get_part(&offset, &stride);
    for (uint32_t nth = 1 + offset; nth <= 160; nth += stride) {
        struct rig r;
        struct offload_stats stats;
        char device[160];
        uint64_t seed = nth;
        snprintf(device, sizeof device, "device_sim,clock=virtual,%s=%u,fail-late=yes", s.kind, nth);
        struct rig_options o = options_of(device, s.mode);
        rig_open(&r, &o);
        int32_t st = open_offload(&r);
        for (uint32_t i = 0; i < 10 && !st; i++)
            st = one_step(&r, 1, &seed);
        failed += st != IFX_OK;
        if (!r.offload)
            OK(open_offload(&r));
        offload_recover(r.offload, r.stream);
        for (uint32_t i = 0; i < 16; i++)
            OK(one_step(&r, 1, &seed));
        offload_stats(r.offload, &stats);
        promoted += stats.promotions > 0;
        rig_close(&r);
    }
    assert_true(failed * stride > 100 && promoted * stride > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocations),   cmocka_unit_test(test_copies),        cmocka_unit_test(test_copies_late),
        cmocka_unit_test(test_launches),      cmocka_unit_test(test_launches_late),
        cmocka_unit_test(test_stale_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
