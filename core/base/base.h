/* SPDX-License-Identifier: Apache-2.0
 *
 * base.h - what everything in the core stands on: error record, log, checked arithmetic, memory, threads, files.
 * Knows no model, no format, no device.
 */
#ifndef INFERNIX_CORE_BASE_H
#define INFERNIX_CORE_BASE_H

#include <infernix/plugin.h>
#include <stdarg.h>
#include <stdbool.h>

/* ---- error record: one text a thread, set where an error is first seen ---- */
int32_t base_error(int32_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));
int32_t base_verror(int32_t status, const char *format, va_list ap);
/* Puts "prefix: " before the text recorded (for callers that know the file or tensor); returns status. */
int32_t base_error_prefix(int32_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *base_error_text(void); /* "" when none; valid until the thread's next error */
void base_error_clear(void);

/* ---- log: lines on stderr ---- */
void base_log_set_level(uint32_t level); /* default IFX_LOG_INFO */
void base_log(uint32_t level, const char *format, ...) __attribute__((format(printf, 2, 3)));
void base_vlog(uint32_t level, const char *format, va_list ap);
/* Logs a line once for each distinct key: fallbacks.  The list can be read back for reports. */
void base_fallback(const char *key, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint32_t base_fallback_count(void);
const char *base_fallback_at(uint32_t index);

/* ---- checked arithmetic: false on overflow, *out then unset ---- */
static inline bool base_add_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline bool base_mul_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_mul_overflow(a, b, out); }

/* ---- memory ---- */
void *base_alloc(uint64_t bytes, uint64_t align);  /* uninitialised; NULL and error recorded; never for 0 bytes */
void *base_calloc(uint64_t count, uint64_t size);  /* zeroed, overflow-checked, 64-byte aligned */
void *base_realloc(void *memory, uint64_t count, uint64_t size); /* for base_calloc'ed or NULL; plain malloc family */
void base_free(void *memory);
/* Large zeroed block on its own pages, huge pages asked for; freed with base_unmap. */
void *base_map_anon(uint64_t bytes);
void base_unmap(void *memory, uint64_t bytes);
char *base_strdup(const char *s);
char *base_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- growing byte buffer ---- */
struct base_buf {
    char *data; /* always 0-terminated once non-NULL */
    uint64_t len, cap;
};
int32_t base_buf_add(struct base_buf *b, const void *bytes, uint64_t n);
int32_t base_buf_addf(struct base_buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
void base_buf_free(struct base_buf *b);

/* ---- CPU ---- */
uint32_t base_cpu_detect(void);                    /* highest IFX_CPU_* of CPUID and the OS state; asks for AMX permission */
const char *base_cpu_name(uint32_t level);         /* "avx2" */
int32_t base_cpu_parse(const char *text, uint32_t *level); /* error names the levels */

/* ---- threads ---- */
struct base_pool;
/* n_threads 0: the usable CPUs (affinity and cgroup quota).  The caller of run is one of them.  pin: one CPU a thread. */
int32_t base_pool_create(uint32_t n_threads, bool pin, struct base_pool **out);
void base_pool_destroy(struct base_pool *pool);
uint32_t base_pool_threads(const struct base_pool *pool);
/* Runs fn(ctx, task, worker) for each task, ascending, and waits.  The first failing task's status and error text become
 * the caller's; tasks not yet started are then skipped.  Workers spin briefly between runs, then sleep.  Not
 * reentrant from a task (runs inline then), one caller at a time (callers queue). */
int32_t base_pool_run(struct base_pool *pool, uint64_t n_tasks, ifx_task_fn fn, void *ctx);
/* For so long from now the workers look out for the next run without sleeping: the runs of a step follow each other closely, and waking
 * many takes as long as a short run.  They let others have their CPU meanwhile. */
void base_pool_stay_awake(struct base_pool *pool, double seconds);
uint32_t base_usable_cpus(void);
/* CPUs of the affinity alone, as it was before a pool pinned the calling thread; 0: unknown. */
uint32_t base_allowed_cpus(void);
/* One turn of a loop that waits for another thread; now and then it lets others have the CPU.  *spins: 0 at first. */
void base_spin(uint32_t *spins);
/* While a library starts threads of its own, which inherit the CPUs of the caller: true gives it back those that it had before pools
 * pinned it, false pins it again. */
void base_loosen_caller(bool loose);

/* ---- time, text ---- */
double base_now(void); /* seconds, monotonic */
/* The candidate nearest to `name` (edit distance), or NULL when none is near.  candidates: NULL-terminated. */
const char *base_nearest(const char *name, const char *const *candidates);
/* Whole-string numbers in the C locale, with range; error text says the range and `what` ("--ctx"). */
int32_t base_parse_i64(const char *text, const char *what, int64_t min, int64_t max, int64_t *out);
int32_t base_parse_f64(const char *text, const char *what, double min, double max, double *out);
/* "12G", "512M", "4096" -> bytes */
int32_t base_parse_bytes(const char *text, const char *what, uint64_t *out);
bool base_utf8_valid(const char *s, uint64_t n);
/* Locale-independent shortest text of a double that reads back the same, "NaN" etc. as null. */
void base_format_f64(char out[32], double v);

/* ---- cancellation: set from a signal handler, polled by long work ---- */
void base_cancel_request(void);
void base_cancel_reset(void);
bool base_cancelled(void);

/* ---- files ---- */
/* Whole regular file, at most max_bytes, 0-terminated.  Refuses devices, FIFOs and directories without blocking. */
int32_t base_read_file(const char *path, uint64_t max_bytes, char **data, uint64_t *bytes);
/* Read-only mapping of a regular file. */
int32_t base_map_file(const char *path, const void **data, uint64_t *bytes, int *fd);
/* A file written under a temporary name beside `path` and renamed at commit; abort (or process death) leaves nothing under `path`. */
struct base_out;
int32_t base_out_open(const char *path, bool force, struct base_out **out);
int32_t base_out_write(struct base_out *o, const void *data, uint64_t bytes);
int32_t base_out_pwrite(struct base_out *o, const void *data, uint64_t bytes, uint64_t offset);
uint64_t base_out_offset(const struct base_out *o);
int32_t base_out_commit(struct base_out **o); /* fsync, rename; on failure removes the temporary; *o becomes NULL */
void base_out_abort(struct base_out **o);
/* The same without a name, in memory: commit_memory hands out its descriptor (/proc/self/fd/N opens it again). */
int32_t base_out_open_memory(const char *name, struct base_out **out);
int32_t base_out_commit_memory(struct base_out **o, int *fd);

#endif
