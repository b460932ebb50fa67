/* SPDX-License-Identifier: Apache-2.0
 *
 * test_pool.c - the thread pool: every task once, in order of handing out, errors, nesting, many callers, sleep.  Made to be run
 * under the thread sanitizer too.
 */
#include "config.h"
#include "base.h"
#include "test.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define MANY 2000

struct job {
    uint32_t n_workers;
    atomic_uint done[MANY];
    uint32_t plain[MANY]; /* written without atomics: what tasks write the caller may read */
    atomic_uint wrong_worker;
};

static int32_t count_task(void *ctx, uint64_t task, uint32_t worker)
{
    struct job *j = ctx;
    atomic_fetch_add(&j->done[task], 1);
    j->plain[task] += (uint32_t)task + 1;
    if (worker >= j->n_workers)
        atomic_fetch_add(&j->wrong_worker, 1);
    return IFX_OK;
}

static void check_each_once(struct base_pool *pool, uint64_t n)
{
    static struct job j;
    memset(&j, 0, sizeof j);
    j.n_workers = base_pool_threads(pool);
    assert_int_equal(base_pool_run(pool, n, count_task, &j), IFX_OK);
    for (uint64_t i = 0; i < MANY; i++) {
        uint32_t want = i < n;
        if (atomic_load(&j.done[i]) != want || j.plain[i] != want * (i + 1))
            fail_msg("%llu tasks: task %llu ran %u times, expected %u", (unsigned long long)n, (unsigned long long)i,
                     atomic_load(&j.done[i]), want);
    }
    assert_int_equal(atomic_load(&j.wrong_worker), 0);
}

static void test_each_once(void **state)
{
    (void)state;
    static const uint32_t threads[] = {1, 2, 3, 8};
    static const uint64_t counts[] = {0, 1, 2, 3, 7, 8, 9, 100, MANY};
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        struct base_pool *pool;
        assert_int_equal(base_pool_create(threads[t], t == 1, &pool), IFX_OK);
        assert_int_equal(base_pool_threads(pool), threads[t]);
        for (int repeat = 0; repeat < 20; repeat++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                check_each_once(pool, counts[c]);
        base_pool_destroy(pool);
    }
}

struct order {
    atomic_uint backwards;
};

static int32_t order_task(void *ctx, uint64_t task, uint32_t worker)
{
    static _Thread_local uint64_t mine;
    struct order *o = ctx;
    (void)worker;
    if (task != 0 && task < mine)
        atomic_fetch_add(&o->backwards, 1);
    mine = task;
    if (task == 4095)
        mine = 0;
    return IFX_OK;
}

static void test_ascending(void **state)
{
    (void)state;
    struct base_pool *pool;
    struct order o = {0};
    assert_int_equal(base_pool_create(1, false, &pool), IFX_OK);
    assert_int_equal(base_pool_run(pool, 4096, order_task, &o), IFX_OK);
    assert_int_equal(atomic_load(&o.backwards), 0);
    base_pool_destroy(pool);
}

static int32_t failing_task(void *ctx, uint64_t task, uint32_t worker)
{
    atomic_uint *ran = ctx;
    (void)worker;
    atomic_fetch_add(ran, 1);
    if (task >= 5)
        return base_error(IFX_EFORMAT, "task %u is bad", (unsigned)task);
    return IFX_OK;
}

static void test_errors(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= 4; threads++) {
        struct base_pool *pool;
        assert_int_equal(base_pool_create(threads, false, &pool), IFX_OK);
        for (int i = 0; i < 50; i++) {
            atomic_uint ran = 0;
            base_error_clear();
            assert_int_equal(base_pool_run(pool, 100000, failing_task, &ran), IFX_EFORMAT);
            /* Tasks are handed out in order, so 5 is always among those that ran, and it is the first. */
            assert_string_equal(base_error_text(), "task 5 is bad");
            if (atomic_load(&ran) > 5 + 100 * threads)
                fail_msg("%u tasks ran after a failure", atomic_load(&ran));
            check_each_once(pool, 10);
        }
        base_pool_destroy(pool);
    }
}

static int32_t worker_error_task(void *ctx, uint64_t task, uint32_t worker)
{
    (void)ctx;
    (void)task;
    return worker == 0 ? (nanosleep(&(struct timespec){0, 2000000}, NULL), IFX_OK) : base_error(IFX_EIO, "on worker %u", worker);
}

/* The text recorded on another thread reaches the caller. */
static void test_error_text_travels(void **state)
{
    (void)state;
    struct base_pool *pool;
    assert_int_equal(base_pool_create(2, false, &pool), IFX_OK);
    int32_t status = IFX_OK;
    for (int i = 0; i < 100 && status == IFX_OK; i++) {
        base_error_clear();
        status = base_pool_run(pool, 50, worker_error_task, NULL);
    }
    assert_int_equal(status, IFX_EIO);
    assert_string_equal(base_error_text(), "on worker 1");
    base_pool_destroy(pool);
}

struct nested {
    struct base_pool *pool;
    atomic_uint inner;
};

static int32_t inner_task(void *ctx, uint64_t task, uint32_t worker)
{
    struct nested *n = ctx;
    (void)task;
    (void)worker;
    atomic_fetch_add(&n->inner, 1);
    return IFX_OK;
}

static int32_t outer_task(void *ctx, uint64_t task, uint32_t worker)
{
    struct nested *n = ctx;
    (void)task;
    (void)worker;
    return base_pool_run(n->pool, 10, inner_task, n);
}

static void test_nested(void **state)
{
    (void)state;
    struct nested n = {0};
    assert_int_equal(base_pool_create(3, false, &n.pool), IFX_OK);
    assert_int_equal(base_pool_run(n.pool, 100, outer_task, &n), IFX_OK);
    assert_int_equal(atomic_load(&n.inner), 1000);
    base_pool_destroy(n.pool);
}

static void *caller_main(void *arg)
{
    struct base_pool *pool = arg;
    for (int i = 0; i < 300; i++) {
        static _Thread_local struct job j;
        memset(&j, 0, sizeof j);
        j.n_workers = base_pool_threads(pool);
        if (base_pool_run(pool, 20, count_task, &j) != IFX_OK)
            return arg;
        for (int t = 0; t < 20; t++)
            if (atomic_load(&j.done[t]) != 1 || j.plain[t] != (uint32_t)t + 1)
                return arg;
        if (atomic_load(&j.wrong_worker) != 0)
            return arg;
    }
    return NULL;
}

static void test_many_callers(void **state)
{
    (void)state;
    struct base_pool *pool;
    pthread_t callers[4];
    assert_int_equal(base_pool_create(3, false, &pool), IFX_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&callers[i], NULL, caller_main, pool), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(callers[i], &failed);
        assert_null(failed);
    }
    base_pool_destroy(pool);
}

static int allowed(void)
{
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    return CPU_COUNT(&set);
}

static int32_t see_cpus(void *ctx, uint64_t task, uint32_t worker)
{
    _Atomic int *seen = ctx; /* of each worker; the caller is 0 */
    (void)task;
    nanosleep(&(struct timespec){0, 1000000}, NULL);
    atomic_store(&seen[worker], allowed());
    return IFX_OK;
}

/* Each of two pools of one thread has all its CPUs, pinned or not, whichever ends first, and so has the thread when both are gone. */
static void test_two_pinned(void **state)
{
    (void)state;
    struct base_pool *a, *b;
    int before = allowed();
    for (int order = 0; order < 2; order++) {
        _Atomic int seen[1024] = {0};
        assert_int_equal(base_pool_create(0, true, &a), IFX_OK);
        assert_int_equal(allowed(), 1);
        assert_int_equal(base_allowed_cpus(), before);
        assert_int_equal(base_pool_create(0, order == 0, &b), IFX_OK);
        assert_int_equal(base_pool_threads(b), base_pool_threads(a));
        assert_int_equal(base_pool_run(b, 64, see_cpus, seen), IFX_OK);
        for (uint32_t i = 1; i < base_pool_threads(b); i++)
            assert_true(seen[i] == 0 || seen[i] == (order == 0 ? 1 : before));
        base_loosen_caller(true);
        assert_int_equal(allowed(), before);
        base_loosen_caller(false);
        assert_int_equal(allowed(), 1);
        base_pool_destroy(order ? b : a);
        assert_int_equal(allowed(), 1);
        base_pool_destroy(order ? a : b);
        assert_int_equal(allowed(), before);
    }
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* Runs after pauses of many lengths, across the edge between spinning and sleeping; then idle for long at no cost. */
static void test_sleep(void **state)
{
    (void)state;
    struct base_pool *pool;
    assert_int_equal(base_pool_create(2, false, &pool), IFX_OK);
    for (long us = 0; us < 200; us += 2) {
        nanosleep(&(struct timespec){0, us * 1000}, NULL);
        check_each_once(pool, 8);
    }
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    double before = cpu_seconds();
    nanosleep(&(struct timespec){0, 300000000}, NULL);
    double used = cpu_seconds() - before;
    if (used > 0.03)
        fail_msg("an idle pool used %.3f s of CPU in 0.3 s, expected nothing", used);
    check_each_once(pool, 8);
    base_pool_destroy(pool);
}

static int32_t uneven_task(void *ctx, uint64_t task, uint32_t worker)
{
    (void)ctx;
    (void)worker;
    if (task % 7 == 3)
        nanosleep(&(struct timespec){0, 300000}, NULL); /* past the caller's spinning */
    return IFX_OK;
}

static void test_uneven(void **state)
{
    (void)state;
    struct base_pool *pool;
    assert_int_equal(base_pool_create(4, false, &pool), IFX_OK);
    for (int i = 0; i < 100; i++)
        assert_int_equal(base_pool_run(pool, 8, uneven_task, NULL), IFX_OK);
    base_pool_destroy(pool);
}

static void test_create(void **state)
{
    (void)state;
    struct base_pool *pool;
    assert_int_equal(base_pool_create(0, false, &pool), IFX_OK);
    assert_int_equal(base_pool_threads(pool), base_usable_cpus());
    base_pool_destroy(pool);
    assert_int_equal(base_pool_create(100000, false, &pool), IFX_EINVAL);
    assert_null(pool);
    base_pool_destroy(NULL);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(base_pool_create(4, false, &pool), IFX_OK);
        if (i % 2)
            check_each_once(pool, 5);
        base_pool_destroy(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create),  cmocka_unit_test(test_each_once), cmocka_unit_test(test_ascending),
        cmocka_unit_test(test_errors),  cmocka_unit_test(test_error_text_travels), cmocka_unit_test(test_nested),
        cmocka_unit_test(test_many_callers), cmocka_unit_test(test_sleep), cmocka_unit_test(test_uneven),
        cmocka_unit_test(test_two_pinned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
