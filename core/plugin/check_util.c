/* SPDX-License-Identifier: Apache-2.0 */
#include "check_util.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CANARY 0xC5u

bool check_fail(struct check_ctx *c, const char *format, ...)
{
    va_list ap;
    if (c->failed)
        return false;
    c->failed = true;
    va_start(ap, format);
    vsnprintf(c->text, sizeof c->text, format, ap);
    va_end(ap);
    return false;
}

void check_note(struct check_ctx *c, const char *format, ...)
{
    va_list ap;
    if (c->failed)
        return;
    va_start(ap, format);
    vsnprintf(c->text, sizeof c->text, format, ap);
    va_end(ap);
}

bool check_status(struct check_ctx *c, int32_t status, const char *format, ...)
{
    char what[200];
    va_list ap;
    if (status == IFX_OK)
        return true;
    va_start(ap, format);
    vsnprintf(what, sizeof what, format, ap);
    va_end(ap);
    return check_fail(c, "%s: status %d (%s)", what, (int)status,
                      base_error_text()[0] != 0 ? base_error_text() : "no text was recorded with host->error");
}

bool guard_new(struct check_ctx *c, struct guard *g, uint64_t bytes, uint64_t align)
{
    uint64_t span;
    memset(g, 0, sizeof *g);
    g->page = (uint64_t)sysconf(_SC_PAGESIZE);
    span = (bytes + align - 1) / align * align;
    span = (span + g->page - 1) / g->page * g->page;
    g->map_bytes = span + 2 * g->page;
    g->map = mmap(NULL, g->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g->map == MAP_FAILED) {
        g->map = NULL;
        return check_fail(c, "the suite has no memory for %llu bytes", (unsigned long long)bytes);
    }
    memset(g->map + g->page, (int)CANARY, span);
    mprotect(g->map, g->page, PROT_NONE);
    mprotect(g->map + g->page + span, g->page, PROT_NONE);
    g->bytes = bytes;
    g->data = g->map + g->page + (span - bytes) / align * align;
    return true;
}

bool guard_intact(struct check_ctx *c, const struct guard *g, const char *what)
{
    const uint8_t *first = g->map + g->page, *end = g->map + g->map_bytes - g->page;
    for (const uint8_t *p = first; p < g->data; p++)
        if (*p != CANARY)
            return check_fail(c, "%s: byte %lld before the buffer was written", what, (long long)(g->data - p));
    for (const uint8_t *p = g->data + g->bytes; p < end; p++)
        if (*p != CANARY)
            return check_fail(c, "%s: byte %lld past the end of %llu was written", what,
                              (long long)(p - g->data) - (long long)g->bytes, (unsigned long long)g->bytes);
    return true;
}

void guard_read_only(const struct guard *g, bool on)
{
    mprotect(g->map + g->page, g->map_bytes - 2 * g->page, on ? PROT_READ : PROT_READ | PROT_WRITE);
}

void guard_free(struct guard *g)
{
    if (g->map != NULL)
        munmap(g->map, g->map_bytes);
    memset(g, 0, sizeof *g);
}

uint32_t rng_u32(struct rng *r)
{
    r->s += 0x9e3779b97f4a7c15u; /* splitmix64 */
    uint64_t z = r->s;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}

uint32_t rng_below(struct rng *r, uint32_t n)
{
    return (uint32_t)(((uint64_t)rng_u32(r) * n) >> 32);
}

float rng_normal(struct rng *r)
{
    int64_t sum = 0;
    for (int i = 0; i < 12; i++)
        sum += rng_u32(r) >> 8;
    return (float)((double)sum / 16777216.0 - 6.0);
}

struct thread_arg {
    void (*fn)(void *arg, uint32_t i);
    void *arg;
    uint32_t i;
    pthread_barrier_t *start;
};

static void *thread_main(void *p)
{
    struct thread_arg *a = p;
    pthread_barrier_wait(a->start);
    a->fn(a->arg, a->i);
    return NULL;
}

bool check_threads(struct check_ctx *c, uint32_t n, void (*fn)(void *arg, uint32_t i), void *arg)
{
    /* 256 KiB for the plugin and something for the callers around it; sanitizers need much more. */
    const size_t stack = 256u * 1024u +
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
                         4096u * 1024u;
#else
                         48u * 1024u;
#endif
    pthread_t threads[16];
    struct thread_arg args[16];
    pthread_attr_t attr;
    pthread_barrier_t start;
    uint32_t started = 0;
    if (n == 0 || n > 16 || pthread_barrier_init(&start, NULL, n) != 0 || pthread_attr_init(&attr) != 0)
        return check_fail(c, "the suite could not start threads");
    pthread_attr_setstacksize(&attr, stack);
    for (; started < n; started++) {
        args[started] = (struct thread_arg){fn, arg, started, &start};
        /* The others wait at the barrier for one that does not come: the process of this check ends with them. */
        if (pthread_create(&threads[started], &attr, thread_main, &args[started]) != 0)
            return check_fail(c, "the suite could not start %u threads", n);
    }
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&start);
    pthread_attr_destroy(&attr);
    return true;
}
