/* SPDX-License-Identifier: Apache-2.0
 *
 * records.c - all records of a container's experts read into memory that the caller has: each byte of the file once, past the page
 * cache where it is not there already, by all threads, its checksum taken on the way.
 */
#define _GNU_SOURCE
#include "config.h"
#include "artifact_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long long ull;

#define PIECE (4u << 20) /* of a section, read by one task */
#define BLOCK 4096u      /* what direct reads keep to: offset, length, memory */

struct reading {
    struct artifact *a;
    uint8_t *const *to;
    uint64_t *first; /* [layers + 1] task of each layer's first piece */
    uint32_t *crcs;  /* by task */
    int cached, direct; /* direct: -1 when the system has none for this file */
    _Atomic uint32_t refused;
    int32_t (*progress)(void *ctx, uint64_t bytes, uint32_t worker);
    void *ctx;
};

static const struct art_section *section_of(const struct reading *r, uint64_t layer)
{
    return &r->a->container->sections[r->a->container->experts[layer].section];
}

/* Most of it lies in the page cache: then copying it from there is faster than the disk. */
static bool in_cache(const struct reading *r, uint64_t offset, uint64_t bytes)
{
    unsigned char pages[PIECE / BLOCK];
    uint64_t n = (bytes + BLOCK - 1) / BLOCK, there = 0;
    if (sysconf(_SC_PAGESIZE) != BLOCK || mincore((void *)(uintptr_t)(r->a->container->map + offset), bytes, pages))
        return true;
    for (uint64_t i = 0; i < n; i++)
        there += pages[i] & 1;
    return 2 * there >= n;
}

static int32_t read_all(struct reading *r, int fd, uint8_t *to, uint64_t offset, uint64_t bytes)
{
    while (bytes > 0) {
        ssize_t n = pread(fd, to, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EINVAL && fd == r->direct) {
            atomic_store(&r->refused, 1);
            fd = r->cached;
            continue;
        }
        if (n < 0)
            return base_error(IFX_EIO, "%s: reading %llu bytes at byte offset %llu: %s", r->a->path, (ull)bytes, (ull)offset,
                              strerror(errno));
        if (n == 0)
            return base_error(IFX_EFORMAT, "%s: was cut short at byte offset %llu while it was being read", r->a->path, (ull)offset);
        to += n;
        offset += (uint64_t)n;
        bytes -= (uint64_t)n;
        /* A direct read that stopped inside a block cannot go on from there. */
        if (fd == r->direct && (uint64_t)n % BLOCK)
            fd = r->cached;
    }
    return IFX_OK;
}

static int32_t read_piece(void *ctx, uint64_t task, uint32_t worker)
{
    struct reading *r = ctx;
    uint64_t layer = 0;
    while (task >= r->first[layer + 1])
        layer++;
    const struct art_section *s = section_of(r, layer);
    uint64_t at = (task - r->first[layer]) * PIECE, n = s->bytes - at < PIECE ? s->bytes - at : PIECE;
    uint8_t *to = r->to[layer] + at;
    bool direct = r->direct >= 0 && !atomic_load(&r->refused) && (uintptr_t)to % BLOCK == 0 && !in_cache(r, s->offset + at, n);
    uint64_t whole = direct ? n / BLOCK * BLOCK : 0;
    int32_t st = read_all(r, r->direct, to, s->offset + at, whole);
    if (st == IFX_OK)
        st = read_all(r, r->cached, to + whole, s->offset + at + whole, n - whole);
    if (st == IFX_OK && !r->a->container->no_verify)
        r->crcs[task] = art_crc(to, n);
    return st == IFX_OK && r->progress != NULL ? r->progress(r->ctx, n, worker) : st;
}

static int32_t lay_out(struct reading *r, uint64_t layers)
{
    for (uint64_t l = 0; l < layers; l++) {
        const struct art_expert_section *e = &r->a->container->experts[l];
        uint64_t bytes;
        if (!base_mul_u64(e->experts, e->record_bytes, &bytes) || bytes != section_of(r, l)->bytes)
            return base_error(IFX_EFORMAT, "%s: experts of MoE layer %llu: %llu records of %llu bytes do not make a section of %llu",
                              r->a->path, (ull)l, (ull)e->experts, (ull)e->record_bytes, (ull)section_of(r, l)->bytes);
        r->first[l + 1] = r->first[l] + (bytes + PIECE - 1) / PIECE;
    }
    r->crcs = base_calloc(r->first[layers] + 1, sizeof *r->crcs);
    return r->crcs == NULL ? IFX_ENOMEM : IFX_OK;
}

static int32_t judge_all(struct reading *r, uint64_t layers)
{
    struct art_faults f = {0};
    for (uint64_t l = 0; l < layers && !r->a->container->no_verify; l++)
        if (art_section_judge(r->a, r->a->container->experts[l].section, r->crcs + r->first[l], PIECE) != IFX_OK)
            art_fault(&f, "%s", base_error_text());
    return art_faults_end(&f, IFX_EFORMAT, r->a->path);
}

int32_t artifact_records_read(struct artifact *a, struct base_pool *pool, uint8_t *const *to,
                              int32_t (*progress)(void *ctx, uint64_t bytes, uint32_t worker), void *ctx)
{
    struct reading r = {.a = a, .to = to, .cached = -1, .direct = -1, .progress = progress, .ctx = ctx};
    uint64_t layers = a->container != NULL ? a->container->n_experts : 0;
    if (layers == 0)
        return IFX_OK;
    r.first = base_calloc(layers + 1, sizeof *r.first);
    int32_t st = r.first == NULL ? IFX_ENOMEM : lay_out(&r, layers);
    if (st == IFX_OK && (r.cached = open(a->path, O_RDONLY | O_CLOEXEC)) < 0)
        st = base_error(IFX_EIO, "%s: %s", a->path, strerror(errno));
    if (st == IFX_OK) {
        r.direct = open(a->path, O_RDONLY | O_CLOEXEC | O_DIRECT); /* or not: then through the cache */
        st = base_pool_run(pool, r.first[layers], read_piece, &r);
    }
    if (st == IFX_OK)
        st = judge_all(&r, layers);
    if (r.direct >= 0)
        close(r.direct);
    if (r.cached >= 0)
        close(r.cached);
    base_free(r.crcs);
    base_free(r.first);
    return st;
}

void artifact_leave_records(struct artifact *a)
{
    for (uint64_t l = 0; a->container != NULL && l < a->container->n_experts; l++)
        a->container->sections[a->container->experts[l].section].left = true;
}
