/* SPDX-License-Identifier: Apache-2.0
 *
 * convert_pack.c - the converter's work: dense rows in blocks, experts in batches, both on the pool.
 */
#include "config.h"
#include "convert.h"
#include <infernix/numerics.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef unsigned long long ull;

#define BLOCK_BYTES   (32u << 20)  /* of output, at a time */
#define BATCH_BYTES   (256u << 20) /* of records, at a time */
#define TMP_BYTES     (768u << 20) /* of all workers' float rows */
#define SAMPLED_ROWS  16u

/* ---- dense ---- */
struct dense_block {
    const struct plan_param *q;
    uint64_t row0, rows, per_task;
    uint8_t *out;
    uint16_t *scales; /* of the whole matrix */
    bool measure;
    struct {
        double error, power;
    } *sums; /* a worker each */
};

static int32_t not_finite(const struct plan_param *q, uint64_t row, uint64_t col)
{
    return base_error(IFX_EFORMAT, "%s: tensor %s: row %llu, column %llu is not finite%s: `infernix inspect --check` lists all "
                      "such tensors", q->t->pub.file, q->t->pub.stored_name, (ull)row, (ull)col,
                      q->t->pub.dtype == q->dtype ? "" : " in the new type");
}

/* A model with NaN or infinity in it must not get a new life under another name. */
static int32_t check_bf16(const struct plan_param *q, uint64_t first, const uint8_t *values, uint64_t n)
{
    uint16_t h, bad = 0;
    for (uint64_t i = 0; i < n; i++) {
        memcpy(&h, values + 2 * i, 2);
        bad |= (h & 0x7f80u) == 0x7f80u;
    }
    for (uint64_t i = 0; bad && i < n; i++) {
        memcpy(&h, values + 2 * i, 2);
        if ((h & 0x7f80u) == 0x7f80u)
            return not_finite(q, (first + i) / q->p->cols, (first + i) % q->p->cols);
    }
    return IFX_OK;
}

static void measure_row(struct dense_block *b, uint32_t worker, const float *source, const uint8_t *out,
                        const uint16_t *scales)
{
    const struct plan_param *q = b->q;
    for (uint64_t c = 0; c < q->p->cols; c++) {
        uint16_t h;
        double got;
        if (q->dtype == IFX_W8G32) {
            got = (double)(int8_t)out[c] * ifx_f16_to_f32(scales[c / 32]);
        } else {
            memcpy(&h, out + 2 * c, 2);
            got = ifx_bf16_to_f32(h);
        }
        b->sums[worker].error += (got - source[c]) * (got - source[c]);
        b->sums[worker].power += (double)source[c] * source[c];
    }
}

static int32_t dense_rows(void *ctx, uint64_t task, uint32_t worker)
{
    struct dense_block *b = ctx;
    const struct plan_param *q = b->q;
    uint64_t cols = q->p->cols, groups = (cols + 31) / 32;
    uint64_t ld = q->dtype == IFX_W8G32 ? groups * 32 : cols * 2;
    uint64_t first = task * b->per_task, last = b->rows - first < b->per_task ? b->rows : first + b->per_task;
    float *row = base_alloc(cols * sizeof *row, 64);
    int32_t status = row ? IFX_OK : IFX_ENOMEM;
    for (uint64_t r = first; status == IFX_OK && r < last; r++) {
        uint8_t *out = b->out + r * ld;
        uint16_t *scales = b->scales ? b->scales + (b->row0 + r) * groups : NULL;
        if (q->dtype == IFX_W8G32 || b->measure)
            art_source_row_f32(&q->s, b->row0 + r, row);
        if (q->dtype == IFX_BF16) {
            art_source_row_bf16(&q->s, b->row0 + r, (uint16_t *)out);
            status = check_bf16(q, (b->row0 + r) * cols, out, cols);
        } else if ((status = art_w8g32_row(row, cols, (int8_t *)out, scales)) != IFX_OK)
            base_error(status, "%s: tensor %s: row %llu has a value that int8 groups cannot hold (not finite, or too "
                       "large): leave it in bf16", q->t->pub.file, q->t->pub.stored_name, (ull)(b->row0 + r));
        if (status == IFX_OK && b->measure)
            measure_row(b, worker, row, out, scales);
    }
    base_free(row);
    return status;
}

static int32_t write_mapped(struct converting *v, const struct plan_param *q, const uint8_t *data, uint64_t bytes)
{
    int32_t status = IFX_OK;
    for (uint64_t at = 0; status == IFX_OK && at < bytes;) {
        uint64_t n = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;
        if (q->dtype == IFX_BF16)
            status = check_bf16(q, at / 2, data + at, n / 2);
        if (status == IFX_OK)
            status = convert_write(v, data + at, n);
        at += n;
        if (status == IFX_OK)
            status = convert_progress(v, "dense");
    }
    return status;
}

/* Row blocks through the pool; *rel_rms is the error against the stored values. */
static int32_t write_matrix(struct converting *v, const struct plan_param *q, double *rel_rms)
{
    uint64_t groups = ((uint64_t)q->p->cols + 31) / 32;
    uint64_t ld = q->dtype == IFX_W8G32 ? groups * 32 : (uint64_t)q->p->cols * 2;
    uint64_t block = ld ? BLOCK_BYTES / ld : 1;
    if (block == 0)
        block = 1;
    if (block > q->p->rows)
        block = q->p->rows;
    struct dense_block b = {.q = q, .per_task = 32, .measure = q->t->pub.dtype != IFX_BF16 || q->dtype != IFX_BF16};
    int32_t status = IFX_ENOMEM;
    double error = 0, power = 0;
    b.out = base_alloc(block * ld, 64);
    b.sums = base_calloc(base_pool_threads(v->c->pool), sizeof *b.sums);
    b.scales = q->scale_bytes ? base_alloc(q->scale_bytes, 64) : NULL;
    if (b.out == NULL || b.sums == NULL || (q->scale_bytes && b.scales == NULL))
        goto out;
    status = IFX_OK;
    for (b.row0 = 0; status == IFX_OK && b.row0 < q->p->rows; b.row0 += b.rows) {
        b.rows = q->p->rows - b.row0 < block ? q->p->rows - b.row0 : block;
        status = base_pool_run(v->c->pool, (b.rows + b.per_task - 1) / b.per_task, dense_rows, &b);
        if (status == IFX_OK)
            status = convert_write(v, b.out, b.rows * ld);
        if (status == IFX_OK)
            status = convert_progress(v, "dense");
    }
    if (status == IFX_OK && q->scale_bytes) {
        status = convert_pad(v, q->scale_offset);
        if (status == IFX_OK)
            status = convert_write(v, b.scales, q->scale_bytes);
    }
    for (uint32_t i = 0; i < base_pool_threads(v->c->pool); i++) {
        error += b.sums[i].error;
        power += b.sums[i].power;
    }
    *rel_rms = power > 0 ? sqrt(error / power) : 0;
out:
    base_free(b.out);
    base_free(b.sums);
    base_free(b.scales);
    return status;
}

static int32_t write_vector(struct converting *v, const struct plan_param *q)
{
    float *values = base_alloc(q->bytes, 64);
    if (values == NULL)
        return IFX_ENOMEM;
    int32_t status = IFX_OK;
    art_to_f32(q->t->pub.dtype, q->t->data, q->p->cols, values);
    for (uint64_t i = 0; status == IFX_OK && i < q->p->cols; i++)
        if (!isfinite(values[i]))
            status = not_finite(q, 0, i);
    if (status == IFX_OK)
        status = convert_write(v, values, q->bytes);
    base_free(values);
    return status;
}

static int32_t write_param(struct converting *v, const struct plan_param *q, double *rel_rms)
{
    *rel_rms = 0;
    if (q->p->kind == IFX_PARAM_VECTOR)
        return write_vector(v, q);
    int32_t status = art_source_check_scales(&q->s, 0, q->s.rows);
    if (status != IFX_OK)
        return status;
    if (q->t->pub.dtype == q->dtype) { /* bf16 or int8 as stored */
        status = write_mapped(v, q, q->t->data, q->bytes);
        if (status == IFX_OK && q->scale_bytes)
            status = convert_pad(v, q->scale_offset);
        return status == IFX_OK && q->scale_bytes ? convert_write(v, q->t->scales, q->scale_bytes) : status;
    }
    return write_matrix(v, q, rel_rms);
}

static int32_t layer_of(const char *name)
{
    int layer;
    return sscanf(name, "layers.%d.", &layer) == 1 ? layer : -1;
}

/* Pages of a mapped file that were read need not stay: they would count against a memory limit. */
static void drop_pages(const struct art_tensor *t)
{
    uintptr_t first, last;
    if (t == NULL)
        return;
    first = ((uintptr_t)t->data + 4095) & ~(uintptr_t)4095;
    last = ((uintptr_t)t->data + t->pub.bytes) & ~(uintptr_t)4095;
    if (last > first)
        (void)madvise((void *)first, last - first, MADV_DONTNEED);
}

json_t *convert_describe_param(const struct plan_param *q)
{
    json_t *shape = q->p->kind == IFX_PARAM_VECTOR ? json_pack("[I]", (json_int_t)q->p->cols)
                                                   : json_pack("[I,I]", (json_int_t)q->p->rows, (json_int_t)q->p->cols);
    json_t *t = json_pack("{s:s, s:o, s:i, s:I, s:I}", "dtype", art_dtype_text(q->dtype), "shape", shape, "section", 1,
                          "offset", (json_int_t)q->offset, "bytes", (json_int_t)q->bytes);
    if (t != NULL && q->scale_bytes) {
        json_object_set_new(t, "scale_offset", json_integer((json_int_t)q->scale_offset));
        json_object_set_new(t, "scale_bytes", json_integer((json_int_t)q->scale_bytes));
    }
    return t;
}

int32_t convert_dense(struct converting *v)
{
    int32_t status = IFX_OK;
    for (uint32_t i = 0; status == IFX_OK && i < v->n_params; i++) {
        const struct plan_param *q = &v->params[i];
        double rel_rms;
        status = art_section_verify(v->a, q->t->section);
        if (status == IFX_OK)
            status = convert_pad(v, q->offset);
        if (status == IFX_OK)
            status = write_param(v, q, &rel_rms);
        if (status != IFX_OK)
            return status;
        if (json_object_set_new(v->tensors, q->p->name, convert_describe_param(q)) != 0)
            return base_error(IFX_ENOMEM, "out of memory for the index");
        if (v->c->report != NULL)
            v->c->report(v->c->ctx, layer_of(q->p->name), q->p->name,
                         q->dtype == IFX_W8G32 ? "int8" : q->dtype == IFX_BF16 ? "bf16" : "f32",
                         q->bytes + q->scale_bytes, rel_rms);
        drop_pages(q->t);
        status = convert_progress(v, "dense");
    }
    return status;
}

/* ---- experts ---- */
struct batch {
    struct converting *v;
    const struct ifx_moe_layer *m;
    uint32_t moe_layer;
    uint32_t first, count;
    uint8_t *records; /* a canary, then each record with a canary behind it */
    float *tmp;  /* 3 H I floats a slot */
    double *row; /* a slot each */
    uint32_t next; /* atomic: experts handed out */
    double *error, *power; /* a slot each */
};

#define CANARY_BYTES IFX_RECORD_ALIGN
#define CANARY       0xC5u

static uint8_t *record_at(const struct batch *b, uint64_t i)
{
    return b->records + CANARY_BYTES + i * (b->v->record_bytes + CANARY_BYTES);
}

/* A plugin that writes past its record would damage its neighbours in the file without a word. */
static int32_t check_canaries(const struct batch *b, const uint8_t *record)
{
    const uint8_t *before = record - CANARY_BYTES, *after = record + b->v->record_bytes;
    for (uint32_t i = 0; i < CANARY_BYTES; i++)
        if (before[i] != CANARY || after[i] != CANARY)
            return base_error(IFX_EINTERNAL, "the plugin of expert format %s writes outside its records of %llu bytes: "
                              "`infernix plugins --check` tells more; without it nothing it made can be trusted",
                              b->v->c->bank_ops->format, (ull)b->v->record_bytes);
    return IFX_OK;
}

static int32_t write_records(struct batch *b)
{
    int32_t status = IFX_OK;
    for (uint32_t i = 0; status == IFX_OK && i < b->count; i++) {
        status = check_canaries(b, record_at(b, i));
        if (status == IFX_OK)
            status = convert_write(b->v, record_at(b, i), b->v->record_bytes);
    }
    return status;
}

/* Decodes some rows of a fresh record and compares them with what it was packed from. */
static int32_t measure_record(struct batch *b, uint64_t slot, const uint8_t *record, const float *tmp)
{
    const struct ifx_moe_layer *m = b->m;
    uint64_t n = (uint64_t)m->hidden * m->inter, widest = m->hidden > m->inter ? m->hidden : m->inter;
    double *got = b->row + slot * widest;
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t rows = i == IFX_DOWN ? m->hidden : m->inter, cols = i == IFX_DOWN ? m->inter : m->hidden;
        uint32_t step = rows > SAMPLED_ROWS ? rows / SAMPLED_ROWS : 1;
        for (uint32_t r = 0; r < rows; r += step) {
            const float *want = tmp + i * n + (uint64_t)r * cols;
            int32_t status = b->v->c->bank_ops->decode_row(b->v->c->bank, record, i, r, got);
            if (status != IFX_OK)
                return status;
            for (uint32_t c = 0; c < cols; c++) {
                b->error[slot] += (got[c] - want[c]) * (got[c] - want[c]);
                b->power[slot] += (double)want[c] * want[c];
            }
        }
    }
    return IFX_OK;
}

static int32_t pack_slot(void *ctx, uint64_t slot, uint32_t worker)
{
    struct batch *b = ctx;
    struct converting *v = b->v;
    float *tmp = b->tmp + slot * 3 * b->m->hidden * b->m->inter;
    (void)worker;
    for (;;) {
        uint32_t i = __atomic_fetch_add(&b->next, 1, __ATOMIC_RELAXED);
        bool exact;
        if (i >= b->count)
            return IFX_OK;
        uint8_t *record = record_at(b, i);
        int32_t status = base_cancelled() ? base_error(IFX_ECANCELLED, "%s: cancelled", v->c->out_path)
                                          : artifact_expert_pack(v->a, b->m, b->moe_layer, b->first + i, v->c->bank_ops,
                                                                 v->c->bank, tmp, record, &exact);
        if (status == IFX_OK && !exact && v->c->report != NULL)
            status = measure_record(b, slot, record, tmp);
        if (status != IFX_OK)
            return status;
    }
}

static void drop_expert_pages(const struct artifact *a, const struct ifx_moe_layer *m, uint32_t moe_layer)
{
    static const char *const each[3] = {"gate_proj", "up_proj", "down_proj"};
    if (a->container != NULL) {
        const struct art_section *s = &a->container->sections[a->container->experts[moe_layer].section];
        (void)madvise((void *)(uintptr_t)(a->container->map + s->offset), s->bytes, MADV_DONTNEED);
        return;
    }
    drop_pages(art_findf(a, "%s.gate_up_proj", m->prefix));
    drop_pages(art_findf(a, "%s.down_proj", m->prefix));
    for (uint32_t e = 0; e < m->experts; e++)
        for (uint32_t i = 0; i < 3; i++)
            drop_pages(art_findf(a, "%s.%u.%s.weight", m->prefix, e, each[i]));
}

int32_t convert_experts(struct converting *v, uint32_t moe_layer)
{
    const struct ifx_moe_layer *m = &v->c->desc->moe[moe_layer];
    uint64_t tmp = 3ull * m->hidden * m->inter * sizeof(float), widest = m->hidden > m->inter ? m->hidden : m->inter;
    uint64_t slots = base_pool_threads(v->c->pool), batch = 4 * slots;
    double error = 0, power = 0;
    int32_t status = IFX_ENOMEM;
    if (slots * tmp > TMP_BYTES)
        slots = tmp < TMP_BYTES ? TMP_BYTES / tmp : 1;
    if (batch * v->record_bytes > BATCH_BYTES)
        batch = v->record_bytes < BATCH_BYTES ? BATCH_BYTES / v->record_bytes : 1;
    if (batch > m->experts)
        batch = m->experts;
    struct batch b = {.v = v, .m = m, .moe_layer = moe_layer};
    uint64_t records_bytes = CANARY_BYTES + batch * (v->record_bytes + CANARY_BYTES);
    b.records = base_alloc(records_bytes, IFX_RECORD_ALIGN);
    b.tmp = base_alloc(slots * tmp, 64);
    b.row = base_alloc(slots * widest * sizeof *b.row, 64);
    b.error = base_calloc(slots, sizeof *b.error);
    b.power = base_calloc(slots, sizeof *b.power);
    if (!b.records || !b.tmp || !b.row || !b.error || !b.power)
        goto out;
    memset(b.records, CANARY, records_bytes);
    status = IFX_OK;
    for (b.first = 0; status == IFX_OK && b.first < m->experts; b.first += b.count) {
        b.count = m->experts - b.first < batch ? m->experts - b.first : (uint32_t)batch;
        b.next = 0;
        status = base_pool_run(v->c->pool, slots, pack_slot, &b);
        if (status == IFX_OK)
            status = write_records(&b);
        if (status == IFX_OK)
            status = convert_progress(v, "experts");
    }
    drop_expert_pages(v->a, m, moe_layer);
    for (uint64_t i = 0; i < slots; i++) {
        error += b.error[i];
        power += b.power[i];
    }
    if (status == IFX_OK && v->c->report != NULL)
        v->c->report(v->c->ctx, (int32_t)m->layer, "experts", v->c->bank_ops->format, m->experts * v->record_bytes,
                     power > 0 ? sqrt(error / power) : 0);
out:
    base_free(b.records);
    base_free(b.tmp);
    base_free(b.row);
    base_free(b.error);
    base_free(b.power);
    return status;
}
