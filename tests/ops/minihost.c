/* SPDX-License-Identifier: Apache-2.0
 *
 * minihost.c - see minihost.h.
 */
#define _GNU_SOURCE
#include "minihost.h"

#include <cpuid.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *const level_names[] = {"scalar", "avx2", "avx512", "avx512_bf16", "amx_bf16"};

static int amx_usable(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & (1u << 24)) || !(d & (1u << 22)))
        return 0;
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
}

uint32_t minihost_detect(void)
{
    unsigned a, b, c, d;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__get_cpuid(1, &a, &b, &c, &d) ||
        !(c & (1u << 29)))
        return IFX_CPU_SCALAR;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512dq"))
        return IFX_CPU_AVX2;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & (1u << 5)) || !__builtin_cpu_supports("avx512vbmi"))
        return IFX_CPU_AVX512;
    return amx_usable() ? IFX_CPU_AMX_BF16 : IFX_CPU_AVX512_BF16;
}

const char *minihost_level_name(uint32_t level)
{
    return level < 5 ? level_names[level] : "?";
}

int minihost_parse_level(const char *text, uint32_t *level)
{
    for (uint32_t i = 0; i < 5; i++)
        if (strcmp(text, level_names[i]) == 0) {
            *level = i;
            return 0;
        }
    return -1;
}

uint32_t minihost_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    return (uint32_t)CPU_COUNT(&set);
}

struct worker {
    struct pool *pool;
    uint32_t index;
    pthread_t thread;
};

struct pool {
    struct ifx_host host;
    uint32_t threads, level;
    struct worker *workers;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_uint round, running;
    atomic_ullong next;
    atomic_int status;
    atomic_bool stop;
    uint64_t tasks;
    ifx_task_fn fn;
    void *ctx;
    char error[512];
};

static struct pool *pool_of(const struct ifx_host *host)
{
    return host->ctx;
}

static void work(struct pool *p, uint32_t worker)
{
    for (;;) {
        uint64_t task = atomic_fetch_add(&p->next, 1);
        if (task >= p->tasks)
            return;
        int32_t status = p->fn(p->ctx, task, worker);
        if (status)
            atomic_store(&p->status, status);
    }
}

/* Waits for a round other than `seen`: spins a little, then sleeps. */
static unsigned wait_round(struct pool *p, unsigned seen)
{
    for (int i = 0; i < 20000; i++) {
        unsigned now = atomic_load(&p->round);
        if (now != seen || atomic_load(&p->stop))
            return now;
        __builtin_ia32_pause();
    }
    pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->round) == seen && !atomic_load(&p->stop))
        pthread_cond_wait(&p->wake, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return atomic_load(&p->round);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    unsigned seen = 0;
    for (;;) {
        seen = wait_round(w->pool, seen);
        if (atomic_load(&w->pool->stop))
            return NULL;
        work(w->pool, w->index);
        atomic_fetch_sub(&w->pool->running, 1);
    }
}

static int32_t parallel_for(const struct ifx_host *host, uint64_t n_tasks, ifx_task_fn fn, void *ctx)
{
    struct pool *p = pool_of(host);
    p->tasks = n_tasks;
    p->fn = fn;
    p->ctx = ctx;
    atomic_store(&p->status, 0);
    atomic_store(&p->next, 0);
    atomic_store(&p->running, p->threads - 1);
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->round, 1);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    work(p, 0);
    for (unsigned spins = 0; atomic_load(&p->running) > 0; spins++)
        if (spins < 20000)
            __builtin_ia32_pause();
        else
            sched_yield();
    return atomic_load(&p->status);
}

static void host_log(const struct ifx_host *host, uint32_t level, const char *format, ...)
{
    va_list ap;
    (void)host;
    (void)level;
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fputc('\n', stderr);
}

static int32_t host_error(const struct ifx_host *host, int32_t status, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    vsnprintf(pool_of(host)->error, sizeof pool_of(host)->error, format, ap);
    va_end(ap);
    return status;
}

static void *host_alloc(const struct ifx_host *host, uint64_t bytes, uint64_t align)
{
    void *memory = NULL;
    (void)host;
    return posix_memalign(&memory, align < sizeof(void *) ? sizeof(void *) : align, bytes) == 0 ? memory : NULL;
}

static void host_free(const struct ifx_host *host, void *memory)
{
    (void)host;
    free(memory);
}

static uint32_t n_workers(const struct ifx_host *host)
{
    return pool_of(host)->threads;
}

static uint32_t cpu_level(const struct ifx_host *host)
{
    return pool_of(host)->level;
}

static const char *option_string(const struct ifx_host *host, const struct ifx_options *options, const char *name)
{
    (void)host;
    (void)options;
    (void)name;
    return NULL;
}

struct ifx_host *minihost_create(uint32_t threads, uint32_t level)
{
    struct pool *p = calloc(1, sizeof *p);
    if (!p || !(p->workers = calloc(threads, sizeof *p->workers)))
        abort();
    p->threads = threads;
    p->level = level;
    p->host = (struct ifx_host){.struct_size = sizeof p->host, .ctx = p, .build = "", .log = host_log,
                                .error = host_error, .alloc = host_alloc, .free = host_free,
                                .parallel_for = parallel_for, .n_workers = n_workers, .cpu_level = cpu_level,
                                .option_string = option_string};
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    for (uint32_t i = 1; i < threads; i++) {
        p->workers[i] = (struct worker){.pool = p, .index = i};
        if (pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]) != 0)
            abort();
    }
    return &p->host;
}

void minihost_destroy(struct ifx_host *host)
{
    struct pool *p = pool_of(host);
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 1; i < p->threads; i++)
        pthread_join(p->workers[i].thread, NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    free(p->workers);
    free(p);
}

const char *minihost_error(const struct ifx_host *host)
{
    return pool_of(host)->error;
}

struct ifx_device *minihost_open(const char *path, struct ifx_host *host, const char *identity)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    struct ifx_device *dev = NULL;
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        return NULL;
    }
    ifx_plugin_init_fn init = (ifx_plugin_init_fn)(uintptr_t)dlsym(handle, "ifx_plugin_init");
    const struct ifx_device_plugin_ops *ops = init ? init(host) : NULL;
    if (!ops || ops->open(host, NULL, identity, 0, &dev) != IFX_OK) {
        fprintf(stderr, "%s: device %s does not open: %s\n", path, identity, minihost_error(host));
        return NULL;
    }
    return dev;
}
