/* SPDX-License-Identifier: Apache-2.0
 *
 * row_reader.c - reads in the background: one thread that drives a ring, or several that read.
 */
#include "config.h"
#include "row_reader.h"

#include <pthread.h>
#include <string.h>
#include <time.h>
#ifdef HAVE_LIBURING
#include <liburing.h>
#endif

#define READERS    8u
#define RUN_READS  16u  /* a reader takes at a time */
#define RING_DEPTH 256u

struct row_reader {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    pthread_t threads[READERS];
    uint32_t n_threads;
    bool uring, stop;
    bool lost; /* the ring takes nothing more: rows are read the plain way */
    struct row_read *list;
    uint64_t n, next, left; /* of the list: all, first that nobody took, not done */
    int32_t status;
    char *error;
#ifdef HAVE_LIBURING
    struct io_uring ring;
#endif
};

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Books `count` reads, the first failure with its text; the caller does not hold the lock. */
static void book(struct row_reader *r, uint64_t count, int32_t status)
{
    pthread_mutex_lock(&r->lock);
    if (status && !r->status) {
        r->status = status;
        r->error = base_strdup(base_error_text());
    }
    r->left -= count;
    if (!r->left)
        pthread_cond_broadcast(&r->done);
    pthread_mutex_unlock(&r->lock);
}

static int32_t read_now(const struct row_read *w)
{
    return artifact_table_read(w->table, w->row, 1, w->to);
}

/* ---- threads ---- */

/* Few reads: one each, so that they overlap.  The caller holds the lock. */
static uint64_t take_run(struct row_reader *r, uint64_t *first)
{
    uint64_t count = r->n <= (uint64_t)READERS * RUN_READS ? 1 : RUN_READS;
    *first = r->next;
    count = r->n - r->next < count ? r->n - r->next : count;
    r->next += count;
    return count;
}

static void *read_runs(void *arg)
{
    struct row_reader *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        uint64_t first, count = take_run(r, &first);
        if (!count) {
            pthread_cond_wait(&r->work, &r->lock);
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        int32_t st = IFX_OK;
        for (uint64_t i = first; !st && i < first + count; i++)
            st = read_now(&r->list[i]);
        book(r, count, st);
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* ---- io_uring ---- */

#ifdef HAVE_LIBURING
/* Fills the ring from the list; the lock is not held: what is listed does not change while reads are left. */
static uint64_t submit(struct row_reader *r, uint64_t next, uint64_t end)
{
    struct io_uring_sqe *sqe;
    for (; next < end && (sqe = io_uring_get_sqe(&r->ring)) != NULL; next++) {
        const struct row_read *w = &r->list[next];
        int fd;
        uint64_t offset;
        artifact_table_where(w->table, w->row, &fd, &offset);
        io_uring_prep_read(sqe, fd, w->to, artifact_table_row_bytes(w->table), offset);
        io_uring_sqe_set_data(sqe, (void *)(uintptr_t)w);
    }
    return next;
}

/* A read that came back short or failed is done again the plain way, which also words the error. */
static int32_t reap(struct row_reader *r, uint64_t *count)
{
    struct io_uring_cqe *cqe;
    int32_t st = IFX_OK;
    int err;
    *count = 0;
    do
        err = io_uring_wait_cqe(&r->ring, &cqe);
    while (err == -EINTR);
    if (err < 0)
        return base_error(IFX_EIO, "io_uring: %s", strerror(-err));
    do {
        const struct row_read *w = io_uring_cqe_get_data(cqe);
        bool whole = cqe->res >= 0 && (uint32_t)cqe->res == artifact_table_row_bytes(w->table);
        io_uring_cqe_seen(&r->ring, cqe);
        if (!whole && !st)
            st = read_now(w);
        ++*count;
    } while (io_uring_peek_cqe(&r->ring, &cqe) == 0);
    return st;
}

static void read_plainly(struct row_reader *r, uint64_t from, uint64_t n)
{
    for (; from < n; from++)
        book(r, 1, read_now(&r->list[from]));
}

static void drive_list(struct row_reader *r, uint64_t n)
{
    uint64_t submitted = 0, flying = 0, count;
    while (submitted < n || flying) {
        uint64_t upto = submit(r, submitted, submitted + (RING_DEPTH - flying) < n ? submitted + (RING_DEPTH - flying) : n);
        flying += upto - submitted;
        submitted = upto;
        /* What it did not take stays queued, the last of the list; with nothing in flight nobody would ever wake us. */
        if (io_uring_submit(&r->ring) < 0 && io_uring_sq_ready(&r->ring) == flying) {
            r->lost = true;
            base_fallback("table.ring", "rows of tables are read one by one from now on: io_uring takes no more reads");
            read_plainly(r, submitted - flying, n);
            return;
        }
        int32_t st = reap(r, &count);
        if (!count) { /* the ring is broken: nothing of the list can be trusted */
            book(r, flying + n - submitted, st);
            return;
        }
        flying -= count;
        book(r, count, st);
    }
}

static void *drive_ring(void *arg)
{
    struct row_reader *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        if (r->next == r->n) {
            pthread_cond_wait(&r->work, &r->lock);
            continue;
        }
        uint64_t n = r->next = r->n;
        pthread_mutex_unlock(&r->lock);
        if (r->lost)
            read_plainly(r, 0, n);
        else
            drive_list(r, n);
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static bool open_ring(struct row_reader *r)
{
    return io_uring_queue_init(RING_DEPTH, &r->ring, 0) == 0;
}

static void close_ring(struct row_reader *r)
{
    io_uring_queue_exit(&r->ring);
}
#else
static bool open_ring(struct row_reader *r)
{
    (void)r;
    return false;
}

static void close_ring(struct row_reader *r)
{
    (void)r;
}

static void *drive_ring(void *arg)
{
    return arg;
}
#endif

/* ---- life ---- */

int32_t row_reader_create(bool uring, uint64_t most, struct row_reader **out)
{
    struct row_reader *r = base_calloc(1, sizeof *r);
    if (!r)
        return IFX_ENOMEM;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work, NULL);
    pthread_cond_init(&r->done, NULL);
    r->uring = uring && open_ring(r);
    if (uring && !r->uring) /* not built in, or a kernel or a sandbox does not have it */
        base_fallback("table.uring", "rows of tables are read by %u threads: there is no io_uring here", READERS);
    r->list = base_calloc(most ? most : 1, sizeof *r->list);
    int32_t st = r->list ? IFX_OK : IFX_ENOMEM;
    while (!st && r->n_threads < (r->uring ? 1 : READERS)) {
        int err = pthread_create(&r->threads[r->n_threads], NULL, r->uring ? drive_ring : read_runs, r);
        if (err)
            st = base_error(IFX_ELIMIT, "a thread that reads table rows cannot be started: %s", strerror(err));
        else
            r->n_threads++;
    }
    if (st) {
        row_reader_destroy(r);
        return st;
    }
    *out = r;
    return IFX_OK;
}

void row_reader_destroy(struct row_reader *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
    for (uint32_t i = 0; i < r->n_threads; i++)
        pthread_join(r->threads[i], NULL);
    if (r->uring)
        close_ring(r);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->work);
    pthread_cond_destroy(&r->done);
    base_free(r->list);
    base_free(r->error);
    base_free(r);
}

bool row_reader_is_uring(const struct row_reader *r)
{
    return r->uring;
}

struct row_read *row_reader_list(struct row_reader *r)
{
    return r->list;
}

void row_reader_begin(struct row_reader *r, uint64_t n)
{
    if (!n)
        return;
    pthread_mutex_lock(&r->lock);
    r->n = r->left = n;
    r->next = 0;
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
}

int32_t row_reader_wait(struct row_reader *r, double *seconds)
{
    pthread_mutex_lock(&r->lock);
    if (r->left) {
        double from = seconds_now();
        while (r->left)
            pthread_cond_wait(&r->done, &r->lock);
        *seconds += seconds_now() - from;
    }
    int32_t st = r->status ? base_error(r->status, "%s", r->error ? r->error : "a table's rows could not be read") : IFX_OK;
    r->status = IFX_OK;
    base_free(r->error);
    r->error = NULL;
    pthread_mutex_unlock(&r->lock);
    return st;
}
