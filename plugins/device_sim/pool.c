/* SPDX-License-Identifier: Apache-2.0
 *
 * pool.c - the device's own threads: the host's belong to the CPU side, which computes at the same time.
 */
#include "sim.h"

#include <string.h>

struct sim_pool {
    const struct ifx_host *host;
    uint32_t threads, started;
    pthread_t *ids;
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    uint64_t round, next, tasks, running;
    bool stop;
    ifx_task_fn fn;
    void *ctx;
    int32_t status;
};

struct start {
    struct sim_pool *pool;
    uint32_t index;
};

/* Tasks until none is left; the lock is held on entry and on return. */
static void work(struct sim_pool *p, uint32_t worker)
{
    while (p->next < p->tasks) {
        uint64_t task = p->next++;
        pthread_mutex_unlock(&p->lock);
        int32_t status = p->fn(p->ctx, task, worker);
        pthread_mutex_lock(&p->lock);
        if (status && !p->status) {
            p->status = status;
            p->next = p->tasks;
        }
    }
}

static void *worker_main(void *arg)
{
    struct start s = *(struct start *)arg;
    struct sim_pool *p = s.pool;
    uint64_t seen = 0;
    p->host->free(p->host, arg);
    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        if (seen == p->round) {
            pthread_cond_wait(&p->wake, &p->lock);
            continue;
        }
        seen = p->round;
        p->running++;
        work(p, s.index);
        if (--p->running == 0)
            pthread_cond_signal(&p->idle);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

int32_t sim_pool_run(struct sim_pool *p, uint64_t tasks, ifx_task_fn fn, void *ctx)
{
    int32_t status = IFX_OK;
    if (p->started == 0 || tasks < 2) {
        for (uint64_t t = 0; t < tasks && status == IFX_OK; t++)
            status = fn(ctx, t, 0);
        return status;
    }
    pthread_mutex_lock(&p->lock);
    p->fn = fn;
    p->ctx = ctx;
    p->tasks = tasks;
    p->next = 0;
    p->status = IFX_OK;
    p->round++;
    pthread_cond_broadcast(&p->wake);
    work(p, 0);
    while (p->running)
        pthread_cond_wait(&p->idle, &p->lock);
    status = p->status;
    pthread_mutex_unlock(&p->lock);
    return status;
}

uint32_t sim_pool_threads(const struct sim_pool *p)
{
    return p->threads;
}

int32_t sim_pool_create(const struct ifx_host *host, uint32_t threads, struct sim_pool **out)
{
    struct sim_pool *p = host->alloc(host, sizeof *p, 64);
    *out = p;
    if (!p)
        return IFX_ENOMEM;
    memset(p, 0, sizeof *p);
    p->host = host;
    p->threads = threads;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->idle, NULL);
    p->ids = host->alloc(host, threads * sizeof *p->ids, 64);
    if (!p->ids)
        return IFX_ENOMEM;
    for (uint32_t i = 1; i < threads; i++) {
        struct start *s = host->alloc(host, sizeof *s, 64);
        if (!s)
            return IFX_ENOMEM;
        *s = (struct start){p, i};
        if (pthread_create(&p->ids[p->started], NULL, worker_main, s) != 0) {
            host->free(host, s);
            return host->error(host, IFX_ENOMEM, "device sim: thread %u of %u cannot be started", i + 1, threads);
        }
        p->started++;
    }
    return IFX_OK;
}

void sim_pool_destroy(struct sim_pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->started; i++)
        pthread_join(p->ids[i], NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->idle);
    if (p->ids)
        p->host->free(p->host, p->ids);
    p->host->free(p->host, p);
}
