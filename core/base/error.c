/* SPDX-License-Identifier: Apache-2.0
 *
 * error.c - the thread's error record, log lines on stderr, the list of fallbacks, the cancellation flag.
 */
#include "config.h"
#include "base.h"
#include "base_internal.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES     2048
#define FALLBACKS_MAX  64u
#define FALLBACK_BYTES 512

static _Thread_local char error_text[BASE_ERROR_BYTES];

static atomic_uint log_level = IFX_LOG_INFO;
static atomic_int cancelled;

static struct {
    pthread_mutex_t lock;
    uint32_t count;
    struct {
        char key[96];
        char text[FALLBACK_BYTES];
    } list[FALLBACKS_MAX];
} fallbacks = {.lock = PTHREAD_MUTEX_INITIALIZER};

int32_t base_verror(int32_t status, const char *format, va_list ap)
{
    /* The arguments may point into the record itself, so it is written only when they have been used. */
    char text[BASE_ERROR_BYTES];
    vsnprintf(text, sizeof text, format, ap);
    memcpy(error_text, text, sizeof text);
    return status;
}

int32_t base_error(int32_t status, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    base_verror(status, format, ap);
    va_end(ap);
    return status;
}

int32_t base_error_prefix(int32_t status, const char *format, ...)
{
    char text[2 * BASE_ERROR_BYTES + 2], prefix[BASE_ERROR_BYTES];
    va_list ap;
    va_start(ap, format);
    vsnprintf(prefix, sizeof prefix, format, ap);
    va_end(ap);
    snprintf(text, sizeof text, "%s: %s", prefix, error_text);
    text[BASE_ERROR_BYTES - 1] = 0;
    memcpy(error_text, text, BASE_ERROR_BYTES);
    return status;
}

const char *base_error_text(void)
{
    return error_text;
}

void base_error_clear(void)
{
    error_text[0] = 0;
}

void base_log_set_level(uint32_t level)
{
    atomic_store_explicit(&log_level, level, memory_order_relaxed);
}

/* One write a line, so that lines of several threads never mix. */
static void write_line(const char *line, size_t n)
{
    while (n > 0) {
        ssize_t w = write(STDERR_FILENO, line, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return; /* nobody to tell */
        line += w;
        n -= (size_t)w;
    }
}

void base_vlog(uint32_t level, const char *format, va_list ap)
{
    if (level > atomic_load_explicit(&log_level, memory_order_relaxed))
        return;
    static const char *const prefix[] = {"error: ", "warning: ", "", "debug: "};
    char line[LINE_BYTES];
    int saved = errno;
    int n = snprintf(line, sizeof line, "infernix: %s", prefix[level <= IFX_LOG_DEBUG ? level : IFX_LOG_DEBUG]);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, format, ap);
    size_t len = (size_t)n + (m < 0 ? 0 : (size_t)m);
    if (len > sizeof line - 2)
        len = sizeof line - 2;
    line[len++] = '\n';
    write_line(line, len);
    errno = saved;
}

void base_log(uint32_t level, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    base_vlog(level, format, ap);
    va_end(ap);
}

void base_fallback(const char *key, const char *format, ...)
{
    bool fresh = true;
    char text[FALLBACK_BYTES];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);

    pthread_mutex_lock(&fallbacks.lock);
    for (uint32_t i = 0; i < fallbacks.count && fresh; i++)
        fresh = strncmp(fallbacks.list[i].key, key, sizeof fallbacks.list[i].key - 1) != 0;
    if (fresh && fallbacks.count < FALLBACKS_MAX) {
        snprintf(fallbacks.list[fallbacks.count].key, sizeof fallbacks.list[0].key, "%s", key);
        memcpy(fallbacks.list[fallbacks.count].text, text, sizeof text);
        fallbacks.count++;
    } else {
        fresh = false;
    }
    pthread_mutex_unlock(&fallbacks.lock);
    if (fresh)
        base_log(IFX_LOG_WARN, "%s", text);
}

uint32_t base_fallback_count(void)
{
    pthread_mutex_lock(&fallbacks.lock);
    uint32_t n = fallbacks.count;
    pthread_mutex_unlock(&fallbacks.lock);
    return n;
}

/* Entries are never changed once counted, so the text may be read without the lock. */
const char *base_fallback_at(uint32_t index)
{
    return index < base_fallback_count() ? fallbacks.list[index].text : NULL;
}

void base_cancel_request(void)
{
    atomic_store(&cancelled, 1);
}

void base_cancel_reset(void)
{
    atomic_store(&cancelled, 0);
}

bool base_cancelled(void)
{
    return atomic_load_explicit(&cancelled, memory_order_relaxed) != 0;
}
