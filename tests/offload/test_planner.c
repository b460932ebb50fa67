/* SPDX-License-Identifier: Apache-2.0
 *
 * Assist policy and planner as tables: every width from 1 to 1100 for the policies of the three banks, and the
 * inputs that break planners: nothing missing, one, all, one expert that gets everything.
 */
#include "planner.h"

#include <setjmp.h>
#include <string.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define MAX_E 600

static const struct ifx_ramp_point nvfp4_points[] = {{64, 77}, {255, 104}, {575, 149}};
static const struct ifx_ramp_point default_points[] = {{64, 77}, {255, 104}};
static const struct ifx_assist_policy nvfp4 = {sizeof nvfp4, 575, 3, 0, nvfp4_points};
static const struct ifx_assist_policy plain = {sizeof plain, 255, 2, 0, default_points};

/* The rule in floating point: exact halves do not occur between these points for integer columns
 * unless both roundings agree, which the test would show. */
static uint32_t expected_share(const struct ifx_assist_policy *p, uint32_t n)
{
    if (n > p->max_columns)
        return 0;
    if (n <= 64)
        return 77;
    double v = n <= 255 ? 77 + (n - 64) * 27.0 / 191 : 104 + (n - 255) * 45.0 / 320;
    return (uint32_t)(v + 0.5);
}

static void test_share_every_width(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 1100; n++) {
        assert_int_equal(offload_link_share(&nvfp4, n), expected_share(&nvfp4, n));
        assert_int_equal(offload_link_share(&plain, n), expected_share(&plain, n));
    }
    assert_int_equal(offload_link_share(&nvfp4, 64), 77);
    assert_int_equal(offload_link_share(&nvfp4, 255), 104);
    assert_int_equal(offload_link_share(&nvfp4, 575), 149);
    assert_int_equal(offload_link_share(&nvfp4, 576), 0);
    assert_int_equal(offload_link_share(&plain, 255), 104);
    assert_int_equal(offload_link_share(&plain, 256), 0);
}

static void test_share_odd_policies(void **state)
{
    (void)state;
    const struct ifx_ramp_point falling[] = {{10, 256}, {20, 0}};
    struct ifx_assist_policy p = {sizeof p, 100, 2, 0, falling};
    assert_int_equal(offload_link_share(&p, 1), 256);
    assert_int_equal(offload_link_share(&p, 15), 128);
    assert_int_equal(offload_link_share(&p, 20), 0);
    assert_int_equal(offload_link_share(&p, 100), 0); /* the last share goes on to the limit */
    const struct ifx_ramp_point one[] = {{50, 33}};
    p.points = one;
    p.n_points = 1;
    assert_int_equal(offload_link_share(&p, 1), 33);
    assert_int_equal(offload_link_share(&p, 100), 33);
    assert_int_equal(offload_link_share(&p, 101), 0);
    p.n_points = 0;
    assert_int_equal(offload_link_share(&p, 50), 0);
}

struct lists {
    uint32_t resident[MAX_E], link[MAX_E], cpu[MAX_E];
    struct offload_plan plan;
};

static void make(struct lists *l, const struct offload_plan_input *in)
{
    l->plan = (struct offload_plan){.resident = l->resident, .link = l->link, .cpu = l->cpu};
    offload_plan_make(in, &l->plan);
}

/* Every touched expert is on exactly one list; lists are ordered; no link expert is thinner than a CPU one. */
static void check_plan(const struct lists *l, const struct offload_plan_input *in)
{
    uint8_t seen[MAX_E] = {0};
    const struct offload_plan *p = &l->plan;

    for (uint32_t i = 0; i < p->n_resident; i++) {
        assert_true(in->resident && in->resident[p->resident[i]]);
        assert_true(i == 0 || p->resident[i - 1] < p->resident[i]);
        seen[p->resident[i]]++;
    }
    for (uint32_t pass = 0; pass < 2; pass++) {
        const uint32_t *ids = pass ? p->cpu : p->link;
        uint32_t n = pass ? p->n_cpu : p->n_link;
        for (uint32_t i = 0; i < n; i++) {
            assert_false(in->resident && in->resident[ids[i]]);
            if (i > 0) {
                uint32_t a = in->columns[ids[i - 1]], b = in->columns[ids[i]];
                assert_true(a > b || (a == b && ids[i - 1] < ids[i]));
            }
            seen[ids[i]]++;
        }
    }
    if (p->n_link && p->n_cpu)
        assert_true(in->columns[p->link[p->n_link - 1]] >= in->columns[p->cpu[0]]);
    for (uint32_t e = 0; e < in->experts; e++)
        assert_int_equal(seen[e], in->columns[e] ? 1 : 0);
}

static uint64_t rng_state = 88172645463325252u;
static uint32_t rng(uint32_t below)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)((rng_state >> 11) % below);
}

static const struct offload_cost desktop = {.link_fixed = 10e-6, .link_record = 200e-6, .cpu_record = 70e-6,
                                            .cpu_column = 12e-6, .device_record = 4e-6, .device_column = 0.1e-6};

static void test_ramp_every_width(void **state)
{
    (void)state;
    static struct lists l;
    static uint32_t columns[MAX_E];
    static uint8_t resident[MAX_E];
    const struct ifx_assist_policy *policies[] = {&nvfp4, &plain, &plain};

    for (uint32_t bank = 0; bank < 3; bank++)
        for (uint32_t n = 1; n <= 1100; n++) {
            uint32_t missing = 0;
            for (uint32_t e = 0; e < 256; e++) {
                columns[e] = rng(4) ? rng(n < 40 ? n + 1 : 40) : 0;
                resident[e] = rng(5) == 0;
                missing += columns[e] && !resident[e];
            }
            struct offload_plan_input in = {.experts = 256, .n = n, .columns = columns, .resident = resident,
                                            .policy = policies[bank], .mode = OFFLOAD_ASSIST_RAMP};
            make(&l, &in);
            check_plan(&l, &in);
            uint32_t share = expected_share(policies[bank], n);
            uint32_t link = n <= 8                             ? 0
                            : n > policies[bank]->max_columns ? missing
                                                               : (share * missing + 128) / 256;
            assert_int_equal(l.plan.n_link, link);
            assert_int_equal(l.plan.n_cpu, missing - link);
            assert_int_equal(l.plan.streamed, n > policies[bank]->max_columns);
            in.mode = OFFLOAD_ASSIST_OFF;
            make(&l, &in);
            check_plan(&l, &in);
            assert_int_equal(l.plan.n_cpu, 0);
            in.mode = OFFLOAD_ASSIST_BALANCE;
            in.cost = &desktop;
            make(&l, &in);
            check_plan(&l, &in);
            in.deterministic = 1;
            make(&l, &in);
            check_plan(&l, &in);
            for (uint32_t i = 0; i < l.plan.n_cpu; i++)
                assert_true(columns[l.cpu[i]] <= IFX_NARROW_COLUMNS);
        }
}

static void test_degenerate(void **state)
{
    (void)state;
    static struct lists l;
    uint32_t columns[4] = {0};
    uint8_t resident[4] = {0};
    struct offload_plan_input in = {.experts = 4, .n = 100, .columns = columns, .resident = resident,
                                    .policy = &nvfp4, .mode = OFFLOAD_ASSIST_RAMP, .cost = &desktop};

    for (uint32_t mode = 0; mode <= OFFLOAD_ASSIST_BALANCE; mode++) {
        in.mode = mode;
        memset(columns, 0, sizeof columns);
        make(&l, &in); /* nothing asked for */
        check_plan(&l, &in);
        assert_int_equal(l.plan.n_link + l.plan.n_cpu + l.plan.n_resident, 0);
        columns[2] = 100; /* one expert has everything */
        make(&l, &in);
        check_plan(&l, &in);
        assert_int_equal(l.plan.n_link + l.plan.n_cpu, 1);
        resident[2] = 1; /* nothing missing */
        make(&l, &in);
        check_plan(&l, &in);
        assert_int_equal(l.plan.n_resident, 1);
        assert_int_equal(l.plan.n_link + l.plan.n_cpu, 0);
        resident[2] = 0;
    }
    in.experts = 0;
    make(&l, &in);
    assert_int_equal(l.plan.n_link, 0);
}

/* balance is never predicted to finish later than any other split by width, off and the ramp included, but for the 1.5 % within which it
 * keeps to the ramp. */
static void test_balance_is_best(void **state)
{
    (void)state;
    static struct lists l;
    static uint32_t columns[MAX_E];

    for (uint32_t round = 0; round < 300; round++) {
        uint32_t experts = 1 + rng(64), n = 1 + rng(1100);
        struct offload_cost c = {.link_fixed = rng(50) * 1e-6, .link_record = (1 + rng(400)) * 1e-6,
                                 .cpu_record = (1 + rng(200)) * 1e-6, .cpu_column = (1 + rng(40)) * 1e-6,
                                 .device_record = 5e-6, .device_column = 0.2e-6, .link_row = rng(3) * 1e-6};
        c.cpu_shared = c.cpu_record * (rng(3) ? 1 + rng(3) * 0.5 : 0);
        for (uint32_t e = 0; e < experts; e++)
            columns[e] = rng(60);
        struct offload_plan_input in = {.experts = experts, .n = n, .columns = columns, .policy = &nvfp4,
                                        .mode = OFFLOAD_ASSIST_OFF, .cost = &c};
        make(&l, &in); /* all missing, in order */
        uint32_t missing = l.plan.n_link;
        double best = 1e9, got = 1e9, ramp = 1e9;
        in.mode = OFFLOAD_ASSIST_BALANCE;
        static uint32_t order[MAX_E];
        memcpy(order, l.link, sizeof order);
        in.mode = OFFLOAD_ASSIST_RAMP;
        make(&l, &in);
        uint32_t by_ramp = l.plan.n_link;
        in.mode = OFFLOAD_ASSIST_BALANCE;
        make(&l, &in);
        for (uint32_t k = 0; k <= missing; k++) {
            double arrive = c.link_fixed, device = 0, bytes = 0, shared = 0, work = 0, back = 0;
            for (uint32_t i = 0; i < missing; i++) {
                if (i < k) {
                    arrive += c.link_record;
                    device = (device > arrive ? device : arrive) + offload_cost_device(&c, columns[order[i]]);
                } else {
                    bytes += c.cpu_record;
                    shared += c.cpu_shared > c.cpu_record ? c.cpu_shared : c.cpu_record;
                    work += c.cpu_column * columns[order[i]];
                    back += c.link_row * columns[order[i]];
                }
            }
            double alone = bytes > work ? bytes : work, cpu = k == missing ? 0 : alone + back;
            shared = shared > work ? shared : work;
            if (k && k < missing) {
                /* What is left when the link is through goes at the speed of the CPU alone. */
                double left = shared > arrive ? 1 - arrive / shared : 0;
                cpu = arrive + back + left * alone;
            }
            double finish = cpu > device ? cpu : device;
            if (finish < best)
                best = finish;
            if (k == l.plan.n_link)
                got = finish;
            if (k == by_ramp)
                ramp = finish;
        }
        bool near = n > IFX_NARROW_COLUMNS && ramp <= best * 1.015;
        if (got > best * (near ? 1.015001 : 1.000001) || got > ramp * 1.000001)
            fail_msg("round %u: balance gives %g s, %g s is possible, and the ramp gives %g s", round, got, best, ramp);
        if (near && l.plan.n_link != by_ramp && ramp < best * 1.0149)
            fail_msg("round %u: the ramp's split is as good, and %u cross instead of %u", round, l.plan.n_link, by_ramp);
        double d = l.plan.best_seconds - best, e = l.plan.policy_seconds - ramp;
        if (d > best * 1e-6 || -d > best * 1e-6 || e > ramp * 1e-6 || -e > ramp * 1e-6)
            fail_msg("round %u: predicted %g and %g s, expected %g and %g", round, l.plan.best_seconds, l.plan.policy_seconds, best, ramp);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_share_every_width), cmocka_unit_test(test_share_odd_policies),
        cmocka_unit_test(test_ramp_every_width),  cmocka_unit_test(test_degenerate),
        cmocka_unit_test(test_balance_is_best),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
