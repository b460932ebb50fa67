/* SPDX-License-Identifier: Apache-2.0
 *
 * pool.c - the thread pool.
 *
 * A run is opened by one store to `state` and closed by the caller when the tasks are handed out.  A worker joins an
 * open run by counting itself into the same word, so the caller waits only for workers that joined: one that slept through a
 * short run costs nothing.  The fields of a run are written before it opens and stay until the last worker that joined has left.
 */
#include "config.h"
#include "base.h"
#include "base_internal.h"
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_THREADS  1024u
#define SPIN_SECONDS 40e-6
#define STACK_BYTES  (4u << 20)

/* state: generation << 32 | OPEN | workers inside */
#define OPEN           (UINT64_C(1) << 31)
#define INSIDE(s)      ((s) & (OPEN - 1))
#define GENERATION(s)  ((uint32_t)((s) >> 32))

struct worker {
    struct base_pool *pool;
    pthread_t thread;
    uint32_t index;
};

struct base_pool {
    uint32_t n_threads; /* with the caller */
    uint32_t n_started; /* created threads */
    bool spin;
    bool pinned;
    pthread_mutex_t callers;
    struct worker *workers;

    /* one run */
    ifx_task_fn fn;
    void *ctx;
    uint64_t n_tasks;
    pthread_mutex_t failure;
    uint64_t failed_task;
    int32_t failed_status;
    char failed_text[BASE_ERROR_BYTES];

    alignas(64) _Atomic uint64_t state;
    alignas(64) _Atomic uint64_t next; /* the next task to hand out */
    alignas(64) _Atomic uint32_t bell; /* futex: changes with each run and at the end */
    _Atomic uint32_t sleepers;
    _Atomic double awake_until;
    _Atomic uint32_t stop;
    alignas(64) _Atomic uint32_t done; /* futex: the caller sleeps here */
    _Atomic uint32_t caller_sleeps;
};

/* The task a thread is in: a run from inside it goes inline. */
static _Thread_local struct {
    const struct base_pool *pool;
    uint32_t worker;
} inside;

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("" ::: "memory");
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, uint32_t count)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static void record_failure(struct base_pool *pool, uint64_t task, int32_t status)
{
    pthread_mutex_lock(&pool->failure);
    if (pool->failed_status == IFX_OK || task < pool->failed_task) {
        pool->failed_status = status;
        pool->failed_task = task;
        snprintf(pool->failed_text, sizeof pool->failed_text, "%s", base_error_text());
    }
    pthread_mutex_unlock(&pool->failure);
    /* Tasks not yet started are skipped. */
    atomic_store(&pool->next, pool->n_tasks);
}

static void work(struct base_pool *pool, uint32_t index)
{
    inside.pool = pool;
    inside.worker = index;
    for (;;) {
        uint64_t task = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (task >= pool->n_tasks)
            break;
        int32_t status = pool->fn(pool->ctx, task, index);
        if (status != IFX_OK)
            record_failure(pool, task, status);
    }
    inside.pool = NULL;
}

/* Counts the worker into the run of the current generation; false when it has closed. */
static bool join_run(struct base_pool *pool, uint32_t *seen)
{
    uint64_t s = atomic_load_explicit(&pool->state, memory_order_acquire);
    while (GENERATION(s) != *seen && (s & OPEN))
        if (atomic_compare_exchange_weak_explicit(&pool->state, &s, s + 1, memory_order_acq_rel,
                                                  memory_order_acquire)) {
            *seen = GENERATION(s);
            return true;
        }
    *seen = GENERATION(s);
    return false;
}

static void leave_run(struct base_pool *pool)
{
    uint64_t s = atomic_fetch_sub(&pool->state, 1) - 1;
    if (INSIDE(s) == 0 && !(s & OPEN) && atomic_load(&pool->caller_sleeps)) {
        atomic_fetch_add(&pool->done, 1);
        futex_wake(&pool->done, 1);
    }
}

static void wait_for_bell(struct base_pool *pool, uint32_t rung)
{
    if (pool->spin) {
        double until = base_now() + SPIN_SECONDS;
        do {
            for (int i = 0; i < 64; i++) {
                if (atomic_load_explicit(&pool->bell, memory_order_acquire) != rung)
                    return;
                relax();
            }
        } while (base_now() < until);
        while (base_now() < atomic_load_explicit(&pool->awake_until, memory_order_relaxed)) {
            for (int i = 0; i < 16; i++) {
                if (atomic_load_explicit(&pool->bell, memory_order_acquire) != rung)
                    return;
                relax();
            }
            sched_yield();
        }
    }
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&pool->bell) == rung)
        futex_wait(&pool->bell, rung);
    atomic_fetch_sub(&pool->sleepers, 1);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct base_pool *pool = w->pool;
    uint32_t seen = 0, rung = 0;
    while (!atomic_load(&pool->stop)) {
        wait_for_bell(pool, rung);
        /* Read before joining: a run opened after this changes it again. */
        rung = atomic_load(&pool->bell);
        if (join_run(pool, &seen)) {
            base_error_clear();
            work(pool, w->index);
            leave_run(pool);
        }
    }
    return NULL;
}

static void wait_for_workers(struct base_pool *pool)
{
    uint64_t s = atomic_fetch_and(&pool->state, ~OPEN);
    if (INSIDE(s) == 0)
        return;
    if (pool->spin) {
        double until = base_now() + SPIN_SECONDS;
        do {
            for (int i = 0; i < 64; i++) {
                if (INSIDE(atomic_load_explicit(&pool->state, memory_order_acquire)) == 0)
                    return;
                relax();
            }
        } while (base_now() < until);
    }
    atomic_store(&pool->caller_sleeps, 1);
    for (;;) {
        uint32_t done = atomic_load(&pool->done);
        if (INSIDE(atomic_load(&pool->state)) == 0)
            break;
        futex_wait(&pool->done, done);
    }
    atomic_store(&pool->caller_sleeps, 0);
}

static int32_t run_inline(ifx_task_fn fn, void *ctx, uint64_t n_tasks, uint32_t worker)
{
    for (uint64_t t = 0; t < n_tasks; t++) {
        int32_t s = fn(ctx, t, worker);
        if (s != IFX_OK)
            return s;
    }
    return IFX_OK;
}

int32_t base_pool_run(struct base_pool *pool, uint64_t n_tasks, ifx_task_fn fn, void *ctx)
{
    if (inside.pool == pool)
        return run_inline(fn, ctx, n_tasks, inside.worker);
    pthread_mutex_lock(&pool->callers);
    pool->fn = fn;
    pool->ctx = ctx;
    pool->n_tasks = n_tasks;
    pool->failed_status = IFX_OK;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    bool shared = n_tasks > 1 && pool->n_threads > 1;
    if (shared) {
        uint64_t s = atomic_load_explicit(&pool->state, memory_order_relaxed);
        atomic_store(&pool->state, ((uint64_t)(GENERATION(s) + 1) << 32) | OPEN);
        atomic_fetch_add(&pool->bell, 1);
        uint32_t asleep = atomic_load(&pool->sleepers);
        if (asleep > 0)
            futex_wake(&pool->bell, n_tasks - 1 < asleep ? (uint32_t)(n_tasks - 1) : asleep);
    }
    /* A caller that is itself a task of another pool keeps its place there. */
    const struct base_pool *outer = inside.pool;
    uint32_t outer_worker = inside.worker;
    work(pool, 0);
    inside.pool = outer;
    inside.worker = outer_worker;
    if (shared)
        wait_for_workers(pool);
    int32_t status = pool->failed_status;
    if (status != IFX_OK)
        base_error(status, "%s", pool->failed_text);
    pthread_mutex_unlock(&pool->callers);
    return status;
}

void base_pool_stay_awake(struct base_pool *pool, double seconds)
{
    atomic_store_explicit(&pool->awake_until, base_now() + seconds, memory_order_relaxed);
}

static int pin_thread(pthread_t thread, int cpu)
{
    cpu_set_t set;
    if (cpu >= CPU_SETSIZE)
        return EINVAL;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return pthread_setaffinity_np(thread, sizeof set, &set);
}

static void pin_all(struct base_pool *pool)
{
    int cpus[MAX_THREADS];
    uint32_t n = base_affinity(cpus, MAX_THREADS);
    if (n < pool->n_threads) {
        base_fallback("pool.pin", "threads are not pinned: %u threads, %u CPUs allowed", pool->n_threads, n);
        return;
    }
    int failed = base_pin_caller(cpus[0]);
    pool->pinned = !failed;
    for (uint32_t i = 0; i < pool->n_started; i++)
        failed |= pin_thread(pool->workers[i].thread, cpus[i + 1]);
    if (failed)
        base_fallback("pool.pin", "threads are not pinned: the system refused it");
}

static int32_t start_workers(struct base_pool *pool)
{
    pthread_attr_t attr;
    sigset_t all, old;
    int error = pthread_attr_init(&attr);
    if (error)
        return base_error(IFX_ENOMEM, "cannot start threads: %s", strerror(error));
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    /* Signals are the caller's business. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    /* Not the one CPU that another pool has pinned this thread to. */
    base_loosen_caller(true);
    for (uint32_t i = 1; i < pool->n_threads && !error; i++) {
        struct worker *w = &pool->workers[i - 1];
        w->pool = pool;
        w->index = i;
        error = pthread_create(&w->thread, &attr, worker_main, w);
        if (!error)
            pool->n_started++;
    }
    base_loosen_caller(false);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    if (error)
        return base_error(IFX_ENOMEM, "cannot start thread %u of %u: %s; fewer threads (--threads) may work",
                          pool->n_started + 2, pool->n_threads, strerror(error));
    return IFX_OK;
}

int32_t base_pool_create(uint32_t n_threads, bool pin, struct base_pool **out)
{
    *out = NULL;
    uint32_t usable = base_usable_cpus();
    if (n_threads == 0)
        n_threads = usable > MAX_THREADS ? MAX_THREADS : usable;
    if (n_threads > MAX_THREADS)
        return base_error(IFX_EINVAL, "%u threads: at most %u", n_threads, MAX_THREADS);
    struct base_pool *pool = base_calloc(1, sizeof *pool);
    if (pool == NULL)
        return IFX_ENOMEM;
    pool->n_threads = n_threads;
    pool->spin = n_threads <= usable; /* a spinning thread must not take the CPU of one that works */
    pthread_mutex_init(&pool->callers, NULL);
    pthread_mutex_init(&pool->failure, NULL);
    int32_t status = IFX_ENOMEM;
    pool->workers = base_calloc(n_threads, sizeof *pool->workers);
    if (pool->workers != NULL)
        status = start_workers(pool);
    if (status != IFX_OK) {
        base_pool_destroy(pool);
        return status;
    }
    if (pin)
        pin_all(pool);
    *out = pool;
    return IFX_OK;
}

void base_pool_destroy(struct base_pool *pool)
{
    if (pool == NULL)
        return;
    atomic_store(&pool->stop, 1);
    atomic_fetch_add(&pool->bell, 1);
    futex_wake(&pool->bell, INT32_MAX);
    for (uint32_t i = 0; i < pool->n_started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    if (pool->pinned)
        base_unpin_caller();
    pthread_mutex_destroy(&pool->callers);
    pthread_mutex_destroy(&pool->failure);
    base_free(pool->workers);
    base_free(pool);
}

uint32_t base_pool_threads(const struct base_pool *pool)
{
    return pool->n_threads;
}
