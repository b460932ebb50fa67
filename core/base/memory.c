/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c - checked memory, large mapped blocks, strings, the growing buffer.
 */
#include "config.h"
#include "base.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGN      64u
#define HUGE_PAGE  (2u << 20)

static int32_t no_memory(uint64_t bytes)
{
    return base_error(IFX_ENOMEM, "out of memory: %llu bytes asked for", (unsigned long long)bytes);
}

void *base_alloc(uint64_t bytes, uint64_t align)
{
    void *p = NULL;
    if (align < sizeof(void *))
        align = sizeof(void *);
    if (bytes == 0)
        bytes = 1;
    if ((align & (align - 1)) != 0 || bytes > (uint64_t)PTRDIFF_MAX || posix_memalign(&p, align, bytes) != 0) {
        no_memory(bytes);
        return NULL;
    }
    return p;
}

void *base_calloc(uint64_t count, uint64_t size)
{
    uint64_t bytes;
    if (!base_mul_u64(count, size, &bytes)) {
        base_error(IFX_ENOMEM, "out of memory: %llu times %llu bytes asked for", (unsigned long long)count,
                   (unsigned long long)size);
        return NULL;
    }
    void *p = base_alloc(bytes, ALIGN);
    if (p != NULL)
        memset(p, 0, bytes ? bytes : 1);
    return p;
}

void *base_realloc(void *memory, uint64_t count, uint64_t size)
{
    uint64_t bytes;
    if (!base_mul_u64(count, size, &bytes) || bytes > (uint64_t)PTRDIFF_MAX) {
        base_error(IFX_ENOMEM, "out of memory: %llu times %llu bytes asked for", (unsigned long long)count,
                   (unsigned long long)size);
        return NULL;
    }
    void *p = realloc(memory, bytes ? bytes : 1);
    if (p == NULL)
        no_memory(bytes);
    return p;
}

void base_free(void *memory)
{
    free(memory);
}

static uint64_t page_round(uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

void *base_map_anon(uint64_t bytes)
{
    if (bytes == 0)
        bytes = 1;
    if (bytes > (uint64_t)PTRDIFF_MAX - 2 * HUGE_PAGE) {
        no_memory(bytes);
        return NULL;
    }
    uint64_t len = page_round(bytes), extra = len >= 2 * HUGE_PAGE ? HUGE_PAGE : 0;
    char *p = mmap(NULL, len + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        no_memory(bytes);
        return NULL;
    }
    if (extra) {
        uint64_t head = (HUGE_PAGE - ((uintptr_t)p & (HUGE_PAGE - 1))) & (HUGE_PAGE - 1);
        if (head)
            munmap(p, head);
        if (extra - head)
            munmap(p + head + len, extra - head);
        p += head;
        (void)madvise(p, len, MADV_HUGEPAGE); /* a wish: small pages work too */
    }
    return p;
}

void base_unmap(void *memory, uint64_t bytes)
{
    if (memory != NULL)
        munmap(memory, page_round(bytes ? bytes : 1));
}

char *base_strdup(const char *s)
{
    uint64_t n = strlen(s) + 1;
    char *p = base_alloc(n, 1);
    if (p != NULL)
        memcpy(p, s, n);
    return p;
}

char *base_format(const char *format, ...)
{
    struct base_buf b = {0};
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(NULL, 0, format, ap);
    va_end(ap);
    if (n < 0) {
        base_error(IFX_EINTERNAL, "cannot format \"%s\"", format);
        return NULL;
    }
    b.data = base_alloc((uint64_t)n + 1, 1);
    if (b.data == NULL)
        return NULL;
    va_start(ap, format);
    vsnprintf(b.data, (size_t)n + 1, format, ap);
    va_end(ap);
    return b.data;
}

static int32_t reserve(struct base_buf *b, uint64_t n)
{
    uint64_t need;
    if (!base_add_u64(b->len, n, &need) || !base_add_u64(need, 1, &need))
        return no_memory(n);
    if (need <= b->cap)
        return IFX_OK;
    uint64_t cap = b->cap > (uint64_t)PTRDIFF_MAX / 2 ? need : b->cap * 2;
    if (cap < need)
        cap = need;
    if (cap < 64)
        cap = 64;
    char *p = base_realloc(b->data, cap, 1);
    if (p == NULL)
        return IFX_ENOMEM;
    b->data = p;
    b->cap = cap;
    return IFX_OK;
}

int32_t base_buf_add(struct base_buf *b, const void *bytes, uint64_t n)
{
    int32_t s = reserve(b, n);
    if (s != IFX_OK)
        return s;
    if (n > 0)
        memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = 0;
    return IFX_OK;
}

int32_t base_buf_addf(struct base_buf *b, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(NULL, 0, format, ap);
    va_end(ap);
    if (n < 0)
        return base_error(IFX_EINTERNAL, "cannot format \"%s\"", format);
    int32_t s = reserve(b, (uint64_t)n);
    if (s != IFX_OK)
        return s;
    va_start(ap, format);
    vsnprintf(b->data + b->len, (size_t)n + 1, format, ap);
    va_end(ap);
    b->len += (uint64_t)n;
    return IFX_OK;
}

void base_buf_free(struct base_buf *b)
{
    base_free(b->data);
    *b = (struct base_buf){0};
}
