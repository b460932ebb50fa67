/* SPDX-License-Identifier: Apache-2.0
 *
 * Every allocation, copy and launch of a run fails once in turn, at once or when somebody waits: the call says so, everything is given
 * back (valgrind sees), and the next request has the right answer.
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

/* Steps of all kinds: decode with promotions, assisted, streamed, decode again. */
static int32_t run_steps(struct rig *r, uint64_t *seed)
{
    static const uint32_t widths[] = {1, 1, 2, 12, 20, 1, 1};
    int32_t st = IFX_OK;
    for (uint32_t s = 0; s < sizeof widths / sizeof *widths && !st; s++) {
        st = offload_begin_step(r->offload, r->stream);
        for (uint32_t l = 0; l < r->n_layers && !st; l++) {
            rig_draw(r, l, widths[s], 0, seed);
            st = rig_run(r, l, widths[s]);
            if (!st)
                rig_compare(r, l, widths[s], "before or after a failure elsewhere");
        }
    }
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

static void run_all(const char *kind, uint32_t first, bool late, uint32_t least)
{
    for (uint32_t mode = 0; mode <= OFFLOAD_ASSIST_BALANCE; mode++) {
        struct scenario s = {kind, late, mode};
        uint32_t nth = first, failed = 0, quiet = 0;
        const char *few = getenv("IFX_TEST_ROUNDS");
        uint32_t stride = few ? 7 : 1;
        /* Some that nobody waits for go unnoticed; the run is over when none of many is noticed. */
        for (; quiet < 40; nth += stride) {
            bool seen = fail_nth(&s, nth);
            failed += seen;
            quiet = seen ? 0 : quiet + stride;
        }
        print_message("%s%s, mode %u: %u failed\n", kind, late ? " late" : "", mode, failed);
        assert_true(failed * stride >= least);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocations),   cmocka_unit_test(test_copies),        cmocka_unit_test(test_copies_late),
        cmocka_unit_test(test_launches),      cmocka_unit_test(test_launches_late),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
