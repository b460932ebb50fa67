/* SPDX-License-Identifier: Apache-2.0
 *
 * values.c - the long check: everything artifact_check sees, the CRC of every section, and every value finite.
 */
#include "config.h"
#include "artifact_internal.h"
#include <math.h>
#include <string.h>

typedef unsigned long long ull;

struct scanning {
    struct artifact *a;
    const struct ifx_model_desc *desc;
    const struct ifx_expert_ops *ops; /* containers: the bank of the records, or NULL */
    void *bank;
    int32_t (*progress)(void *ctx, uint64_t done, uint64_t total, const char *what);
    void *ctx;
    uint64_t *first_expert; /* task number of each MoE layer's expert 0 */
    uint64_t n_tasks;
    char **faults; /* a task each */
};

static bool all_finite(const float *v, uint64_t n, uint64_t *bad, uint64_t *first)
{
    uint64_t before = *bad;
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(v[i]) && (*bad)++ == 0)
            *first = i;
    return *bad == before;
}

static char *describe(const struct art_tensor *t, uint64_t bad, uint64_t row, uint64_t col)
{
    return base_format("%s: tensor %s at byte offset %llu: %llu values are not finite, the first at row %llu, column %llu",
                       t->pub.file, t->pub.stored_name, (ull)t->pub.offset, (ull)bad, (ull)row, (ull)col);
}

/* Rows [row0, row0 + n) of a matrix; IFX_OK also when a fault was described. */
static int32_t scan_rows(const struct art_source *s, uint64_t row0, uint64_t n, char **fault)
{
    uint64_t bad = 0, first = 0, first_row = 0;
    if (art_source_check_scales(s, row0, n) != IFX_OK) {
        *fault = base_strdup(base_error_text());
        return *fault ? IFX_OK : IFX_ENOMEM;
    }
    float *row = base_alloc(s->cols * sizeof *row, 64);
    if (row == NULL)
        return IFX_ENOMEM;
    for (uint64_t r = 0; r < n; r++) {
        uint64_t before = bad;
        art_source_row_f32(s, row0 + r, row);
        all_finite(row, s->cols, &bad, &first);
        if (before == 0 && bad > 0)
            first_row = row0 + r;
    }
    base_free(row);
    if (bad > 0)
        *fault = describe(s->t, bad, first_row, first);
    return bad == 0 || *fault ? IFX_OK : IFX_ENOMEM;
}

static int32_t scan_param(struct scanning *s, const struct ifx_param *p, char **fault)
{
    struct art_faults quiet = {0};
    struct art_source source;
    const struct art_tensor *t = art_find(s->a, p->name);
    int32_t status = IFX_OK;
    uint64_t count, bad = 0, first = 0;
    if (t == NULL)
        return IFX_OK;
    if (art_section_verify(s->a, t->section) != IFX_OK)
        return IFX_OK; /* the section has its own fault */
    if (p->kind != IFX_PARAM_VECTOR) {
        if (art_source_open(s->a, t, 1, p->rows, p->cols, &source, &quiet)) /* shapes were told before */
            status = scan_rows(&source, 0, p->rows, fault);
        base_buf_free(&quiet.text);
        return status;
    }
    if (t->pub.dtype != IFX_F32 && t->pub.dtype != IFX_F16 && t->pub.dtype != IFX_BF16)
        return IFX_OK;
    if (!art_count(t->pub.dims, t->pub.n_dims, &count) || count == 0)
        return IFX_OK;
    float *v = base_alloc(count * sizeof *v, 64);
    if (v == NULL)
        return IFX_ENOMEM;
    art_to_f32(t->pub.dtype, t->data, count, v);
    if (!all_finite(v, count, &bad, &first))
        *fault = describe(t, bad, 0, first);
    base_free(v);
    return bad == 0 || *fault ? IFX_OK : IFX_ENOMEM;
}

static int32_t scan_record(struct scanning *s, uint32_t layer, uint32_t expert, char **fault)
{
    const void *record;
    uint64_t bytes;
    if (s->ops == NULL || s->ops->check_record == NULL || layer >= s->a->container->n_experts)
        return IFX_OK;
    struct art_expert_section *e = &s->a->container->experts[layer];
    const struct ifx_moe_layer *m = &s->desc->moe[layer];
    struct ifx_expert_shape shape = {.struct_size = sizeof shape, .hidden = m->hidden, .inter = m->inter};
    if (e->hidden != m->hidden || e->inter != m->inter || expert >= e->experts)
        return IFX_OK;
    if (e->record_bytes != s->ops->record_bytes(&shape)) {
        *fault = expert ? NULL : base_format("%s: layer %u: records of %llu bytes, this build of expert_%s makes %llu",
                                             s->a->path, m->layer, (ull)e->record_bytes, s->ops->format,
                                             (ull)s->ops->record_bytes(&shape));
        return IFX_OK;
    }
    if (artifact_expert_record(s->a, layer, expert, &record, &bytes) != IFX_OK)
        return IFX_OK; /* the section has its own fault */
    if (s->ops->check_record(s->bank, record) != IFX_OK) {
        *fault = base_format("%s: layer %u, expert %u: record at byte offset %llu: %s", s->a->path, m->layer, expert,
                             (ull)((const uint8_t *)record - s->a->container->map), base_error_text());
        return *fault ? IFX_OK : IFX_ENOMEM;
    }
    return IFX_OK;
}

static int32_t scan_expert(struct scanning *s, uint32_t layer, uint32_t expert, char **fault)
{
    const struct ifx_moe_layer *m = &s->desc->moe[layer];
    struct art_faults quiet = {0};
    struct art_expert_source e;
    int32_t status = IFX_OK;
    if (s->a->container != NULL)
        return scan_record(s, layer, expert, fault);
    if (art_expert_open(s->a, m, expert, &e, &quiet))
        for (uint32_t i = 0; status == IFX_OK && *fault == NULL && i < 3; i++)
            status = scan_rows(&e.matrix[i], e.row0[i], i == IFX_DOWN ? m->hidden : m->inter, fault);
    base_buf_free(&quiet.text);
    return status;
}

static int32_t scan_task(void *ctx, uint64_t task, uint32_t worker)
{
    struct scanning *s = ctx;
    const struct ifx_model_desc *d = s->desc;
    uint32_t layer = 0;
    if (base_cancelled())
        return base_error(IFX_ECANCELLED, "%s: cancelled", s->a->path);
    if (worker == 0 && s->progress != NULL && s->progress(s->ctx, task, s->n_tasks, "values") != 0)
        return base_error(IFX_ECANCELLED, "%s: cancelled", s->a->path);
    if (task < d->n_params)
        return scan_param(s, &d->params[task], &s->faults[task]);
    while (layer + 1 < d->n_moe && task >= s->first_expert[layer + 1])
        layer++;
    return scan_expert(s, layer, (uint32_t)(task - s->first_expert[layer]), &s->faults[task]);
}

static int32_t scan_all(struct scanning *s, struct base_pool *pool, struct art_faults *f)
{
    const struct ifx_model_desc *d = s->desc;
    int32_t status = IFX_ENOMEM;
    s->n_tasks = d->n_params;
    s->first_expert = base_calloc(d->n_moe, sizeof *s->first_expert);
    for (uint32_t i = 0; s->first_expert != NULL && i < d->n_moe; i++) {
        s->first_expert[i] = s->n_tasks;
        s->n_tasks += d->moe[i].experts;
    }
    s->faults = base_calloc(s->n_tasks, sizeof *s->faults);
    if (s->first_expert != NULL && s->faults != NULL)
        status = base_pool_run(pool, s->n_tasks, scan_task, s);
    for (uint64_t i = 0; s->faults != NULL && i < s->n_tasks; i++) {
        if (s->faults[i] != NULL)
            art_fault(f, "%s", s->faults[i]);
        base_free(s->faults[i]);
    }
    base_free(s->faults);
    base_free(s->first_expert);
    return status;
}

/* Rows of a table, up to the first that is not finite. */
static int32_t scan_table(const struct scanning *s, const struct ifx_row_table *desc, struct art_faults *f)
{
    struct artifact_table *t;
    if (art_verify_table(s->a, desc) || artifact_table_open(s->a, desc, &t))
        return IFX_OK; /* told before */
    uint64_t each = artifact_table_row_bytes(t), step = (4u << 20) / each + 1, done = 0, n;
    uint8_t *rows = base_alloc(step * each, 64);
    int32_t st = rows ? IFX_OK : IFX_ENOMEM;
    for (; !st && done < desc->rows; done += n) {
        n = desc->rows - done < step ? desc->rows - done : step;
        if (base_cancelled() || (s->progress && s->progress(s->ctx, done, desc->rows, "table")))
            st = base_error(IFX_ECANCELLED, "%s: cancelled", s->a->path);
        else if ((st = artifact_table_read(t, done, n, rows)) == IFX_OK)
            st = art_check_rows(t, done, n, rows);
    }
    if (st == IFX_EFORMAT || st == IFX_EIO) {
        art_fault(f, "%s", base_error_text());
        st = IFX_OK;
    }
    base_free(rows);
    artifact_table_close(t);
    return st;
}

int32_t artifact_check_values(struct artifact *a, const struct ifx_model_desc *desc, const struct ifx_expert_ops *ops,
                              void *bank, struct base_pool *pool,
                              int32_t (*progress)(void *ctx, uint64_t done, uint64_t total, const char *what),
                              void *ctx)
{
    struct art_faults f = {0};
    struct scanning s = {.a = a, .desc = desc, .ops = ops, .bank = bank, .progress = progress, .ctx = ctx};
    int32_t status = artifact_verify(a, pool, progress, ctx);
    if (status == IFX_EFORMAT) {
        art_fault(&f, "%s", base_error_text());
        status = IFX_OK;
    }
    if (status == IFX_OK) {
        art_check(a, desc, &f);
        status = scan_all(&s, pool, &f);
        for (uint32_t i = 0; status == IFX_OK && i < desc->n_tables; i++)
            status = scan_table(&s, &desc->tables[i], &f);
    }
    if (status != IFX_OK) {
        base_buf_free(&f.text);
        return status;
    }
    return art_faults_end(&f, IFX_EFORMAT, a->path);
}
