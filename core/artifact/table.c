/* SPDX-License-Identifier: Apache-2.0
 *
 * table.c - row tables: too large for memory, so rows are read where they lie by positioned reads.
 */
#include "config.h"
#include "artifact_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long ull;

#define MAX_PARTS 65536u

struct part {
    int fd;
    const char *file;
    uint64_t row0, rows, offset;
};

struct artifact_table {
    struct ifx_row_table desc;
    uint32_t dtype, row_bytes;
    float scale;
    struct part *parts;
    uint32_t n_parts;
};

/* The tensor that holds part i of a table, or NULL: one alone is NAME.weight. */
static const struct art_tensor *find_part(const struct artifact *a, const struct ifx_row_table *t, uint32_t i)
{
    const struct art_tensor *whole = i == 0 ? art_findf(a, "%s.weight", t->name) : NULL;
    return whole ? whole : art_findf(a, "%s.shard_%u.weight", t->name, i);
}

static bool row_dtype(uint32_t dtype)
{
    return dtype == IFX_BF16 || dtype == IFX_F16 || dtype == IFX_F32 || dtype == IFX_F8_E4M3;
}

static bool check_part(const struct ifx_row_table *t, const struct art_tensor *part, uint32_t dtype, struct art_faults *f)
{
    if (!row_dtype(part->pub.dtype) || (dtype && part->pub.dtype != dtype)) {
        art_fault(f, "%s: tensor %s at byte offset %llu: type %s; rows of a table are BF16, F16, F32 or F8_E4M3, all of one type",
                  part->pub.file, part->pub.stored_name, (ull)part->pub.offset, part->pub.dtype_text);
        return false;
    }
    if (part->pub.n_dims == 2 && part->pub.dims[1] == t->cols)
        return true;
    char shape[128];
    art_shape_text(shape, part->pub.dims, part->pub.n_dims);
    art_fault(f, "%s: tensor %s at byte offset %llu: %s, the model needs rows of %u values", part->pub.file,
              part->pub.stored_name, (ull)part->pub.offset, shape, t->cols);
    return false;
}

/* FP8 rows have one scale; the multiplier of others is 1. */
static bool read_scale(const struct artifact *a, const struct ifx_row_table *t, uint32_t dtype, float *scale,
                       struct art_faults *f)
{
    *scale = 1.0f;
    if (dtype != IFX_F8_E4M3)
        return true;
    const struct art_tensor *s = art_findf(a, "%s.weight_scale", t->name);
    uint64_t count;
    if (!s) {
        art_fault(f, "%s: tensor %s.weight_scale is missing: FP8 rows need it", a->path, t->name);
        return false;
    }
    if ((s->pub.dtype != IFX_F32 && s->pub.dtype != IFX_BF16) || !art_count(s->pub.dims, s->pub.n_dims, &count) || count != 1) {
        art_fault(f, "%s: tensor %s at byte offset %llu: one F32 or BF16 scale is needed", s->pub.file, s->pub.stored_name,
                  (ull)s->pub.offset);
        return false;
    }
    art_to_f32(s->pub.dtype, s->data, 1, scale);
    if (*scale > 0 && *scale <= 3.4e38f)
        return true;
    art_fault(f, "%s: tensor %s at byte offset %llu: the scale is %g", s->pub.file, s->pub.stored_name, (ull)s->pub.offset,
              (double)*scale);
    return false;
}

/* Counts the parts and checks each; *dtype and *scale are set when all is right. */
static uint32_t judge_parts(const struct artifact *a, const struct ifx_row_table *t, uint32_t *dtype, float *scale,
                            struct art_faults *f)
{
    const struct art_tensor *part;
    uint64_t rows = 0;
    uint32_t n = 0;
    *dtype = 0;
    while (n < MAX_PARTS && (part = find_part(a, t, n)) != NULL) {
        if (!check_part(t, part, *dtype, f))
            return 0;
        *dtype = part->pub.dtype;
        rows += part->pub.dims[0];
        n++;
        if (strcmp(part->pub.logical_name + strlen(t->name), ".weight") == 0)
            break;
    }
    if (!n) {
        art_fault(f, "%s: tensor %s.weight (or %s.shard_0.weight, ...) is missing", a->path, t->name, t->name);
        return 0;
    }
    if (rows != t->rows) {
        art_fault(f, "%s: table %s: its %u parts have %llu rows, the config needs %llu%s%s.shard_%u.weight%s", a->path, t->name, n,
                  (ull)rows, (ull)t->rows, rows < t->rows ? "; is " : " (the next would be ", t->name, n,
                  rows < t->rows ? " missing?" : ")");
        return 0;
    }
    return read_scale(a, t, *dtype, scale, f) ? n : 0;
}

void art_check_table(const struct artifact *a, const struct ifx_row_table *t, struct art_faults *f)
{
    uint32_t dtype;
    float scale;
    judge_parts(a, t, &dtype, &scale, f);
}

void art_check_ints(const struct artifact *a, const struct ifx_int_tensor *want, struct art_faults *f)
{
    const struct art_tensor *t = art_find(a, want->name);
    uint64_t count;
    if (!t)
        return; /* it only repeats the config */
    if (t->pub.dtype != IFX_I64 || !art_count(t->pub.dims, t->pub.n_dims, &count) || count != want->count) {
        art_fault(f, "%s: tensor %s at byte offset %llu: %u values of type I64 are needed", t->pub.file, t->pub.stored_name,
                  (ull)t->pub.offset, want->count);
        return;
    }
    for (uint32_t i = 0; i < want->count; i++) {
        int64_t v;
        memcpy(&v, t->data + i * sizeof v, sizeof v);
        if (v == want->values[i])
            continue;
        art_fault(f, "%s: tensor %s: value %u is %lld, the config implies %lld: config.json and the weights are not of one model",
                  t->pub.file, t->pub.stored_name, i, (long long)v, (long long)want->values[i]);
        return;
    }
}

/* ---- containers: damage ---- */

void artifact_leave_tables(struct artifact *a, const struct ifx_model_desc *desc)
{
    for (uint32_t i = 0; i < desc->n_tables; i++) {
        const struct art_tensor *t = find_part(a, &desc->tables[i], 0);
        if (a->container && t && t->section >= 0)
            a->container->sections[t->section].left = true;
    }
}

int32_t art_verify_table(struct artifact *a, const struct ifx_row_table *t)
{
    const struct art_tensor *part;
    int32_t st = IFX_OK;
    for (uint32_t n = 0; !st && a->container && n < MAX_PARTS && (part = find_part(a, t, n)) != NULL; n++)
        st = art_section_verify(a, part->section);
    return st;
}

int32_t art_check_rows(const struct artifact_table *t, uint64_t row0, uint64_t n, const void *rows)
{
    float *v = base_alloc(t->desc.cols * sizeof *v, 64);
    int32_t st = v ? IFX_OK : IFX_ENOMEM;
    for (uint64_t r = 0; !st && r < n; r++) {
        artifact_table_decode(t, (const uint8_t *)rows + r * t->row_bytes, v);
        for (uint32_t i = 0; !st && i < t->desc.cols; i++)
            if (!isfinite(v[i]))
                st = base_error(IFX_EFORMAT, "%s: table %s: row %llu, column %u is not finite", t->parts[0].file, t->desc.name,
                                (ull)(row0 + r), i);
    }
    base_free(v);
    return st;
}

/* ---- reading ---- */

static uint32_t element_bytes(uint32_t dtype)
{
    return dtype == IFX_F32 ? 4 : dtype == IFX_F8_E4M3 ? 1 : 2;
}

static int32_t open_parts(struct artifact *a, struct artifact_table *t, uint32_t n)
{
    uint64_t row = 0;
    t->parts = base_calloc(n, sizeof *t->parts);
    if (!t->parts)
        return IFX_ENOMEM;
    for (; t->n_parts < n; t->n_parts++) {
        const struct art_tensor *s = find_part(a, &t->desc, t->n_parts);
        struct part *p = &t->parts[t->n_parts];
        *p = (struct part){.file = s->pub.file, .row0 = row, .rows = s->pub.dims[0], .offset = s->pub.offset};
        /* Parts of one file share its descriptor: the first of them opened it. */
        const struct part *before = t->n_parts ? p - 1 : NULL;
        p->fd = before && strcmp(before->file, p->file) == 0 ? before->fd : open(p->file, O_RDONLY | O_CLOEXEC);
        if (p->fd < 0)
            return base_error(IFX_EIO, "%s: %s", p->file, strerror(errno));
        (void)posix_fadvise(p->fd, (off_t)p->offset, (off_t)(p->rows * t->row_bytes), POSIX_FADV_RANDOM);
        row += p->rows;
    }
    return IFX_OK;
}

int32_t artifact_table_open(struct artifact *a, const struct ifx_row_table *desc, struct artifact_table **out)
{
    struct art_faults f = {0};
    struct artifact_table *t = base_calloc(1, sizeof *t);
    if (!t)
        return IFX_ENOMEM;
    t->desc = *desc;
    uint32_t n = judge_parts(a, desc, &t->dtype, &t->scale, &f);
    int32_t st = art_faults_end(&f, IFX_EFORMAT, a->path);
    t->row_bytes = desc->cols * element_bytes(t->dtype);
    if (!st)
        st = open_parts(a, t, n);
    if (st) {
        artifact_table_close(t);
        return st;
    }
    *out = t;
    return IFX_OK;
}

void artifact_table_close(struct artifact_table *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; i < t->n_parts; i++)
        if (t->parts[i].fd >= 0 && (i == 0 || t->parts[i].fd != t->parts[i - 1].fd))
            close(t->parts[i].fd);
    base_free(t->parts);
    base_free(t);
}

uint32_t artifact_table_row_bytes(const struct artifact_table *t)
{
    return t->row_bytes;
}

uint32_t artifact_table_dtype(const struct artifact_table *t)
{
    return t->dtype;
}

float artifact_table_scale(const struct artifact_table *t)
{
    return t->scale;
}

static const struct part *part_of(const struct artifact_table *t, uint64_t row)
{
    uint32_t lo = 0, hi = t->n_parts;
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (t->parts[mid].row0 <= row)
            lo = mid;
        else
            hi = mid;
    }
    return &t->parts[lo];
}

void artifact_table_where(const struct artifact_table *t, uint64_t row, int *fd, uint64_t *offset)
{
    const struct part *p = part_of(t, row);
    *fd = p->fd;
    *offset = p->offset + (row - p->row0) * t->row_bytes;
}

int32_t artifact_table_read(const struct artifact_table *t, uint64_t row, uint64_t n, void *dst)
{
    uint8_t *at = dst;
    while (n) {
        const struct part *p = part_of(t, row);
        uint64_t here = p->row0 + p->rows - row < n ? p->row0 + p->rows - row : n;
        uint64_t offset = p->offset + (row - p->row0) * t->row_bytes, left = here * t->row_bytes;
        row += here;
        n -= here;
        while (left) {
            ssize_t got = pread(p->fd, at, left, (off_t)offset);
            if (got < 0 && errno == EINTR)
                continue;
            if (got <= 0)
                return base_error(IFX_EIO, "%s: reading %llu bytes of table %s at byte offset %llu: %s", p->file, (ull)left,
                                  t->desc.name, (ull)offset, got ? strerror(errno) : "the file ends there");
            at += got;
            offset += (uint64_t)got;
            left -= (uint64_t)got;
        }
    }
    return IFX_OK;
}

void artifact_table_decode(const struct artifact_table *t, const void *row, float *out)
{
    art_to_f32(t->dtype, row, t->desc.cols, out);
    for (uint32_t i = 0; t->dtype == IFX_F8_E4M3 && i < t->desc.cols; i++)
        out[i] *= t->scale;
}
