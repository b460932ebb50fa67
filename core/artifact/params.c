/* SPDX-License-Identifier: Apache-2.0
 *
 * params.c - the dense parameters a family declares: present, of the right shape, read in the form a device takes.
 */
#include "config.h"
#include "artifact_internal.h"
#include <math.h>
#include <string.h>

typedef unsigned long long ull;

void art_missing(const struct artifact *a, const char *logical_name, const char *why, struct art_faults *f)
{
    /* What other dialects store in place of NAME.weight. */
    static const struct {
        const char *suffix, *dialect;
    } others[] = {{"_packed", "compressed-tensors"}, {NULL, NULL}};
    for (int i = 0; others[i].suffix != NULL; i++) {
        const struct art_tensor *t = art_findf(a, "%s%s", logical_name, others[i].suffix);
        if (t != NULL) {
            art_fault(f, "%s: tensor %s: the %s dialect is not read; ModelOpt NVFP4, FP8 and plain checkpoints are",
                      t->pub.file, t->pub.stored_name, others[i].dialect);
            return;
        }
    }
    size_t n = strlen(logical_name), m = strlen("weight");
    if (n > m && strcmp(logical_name + n - m, "weight") == 0) {
        const struct art_tensor *t = art_findf(a, "%.*sqweight", (int)(n - m), logical_name);
        if (t != NULL) {
            art_fault(f, "%s: tensor %s: the GPTQ and AWQ dialects are not read", t->pub.file, t->pub.stored_name);
            return;
        }
    }
    art_fault(f, "%s: tensor %s is missing%s", a->path, logical_name, why);
}

static bool check_vector(const struct ifx_param *p, const struct art_tensor *t, struct art_faults *f)
{
    uint64_t count;
    if (t->pub.dtype != IFX_F32 && t->pub.dtype != IFX_F16 && t->pub.dtype != IFX_BF16) {
        art_fault(f, "%s: tensor %s at byte offset %llu: type %s, F32, F16 or BF16 is needed", t->pub.file,
                  t->pub.stored_name, (ull)t->pub.offset, t->pub.dtype_text);
        return false;
    }
    if (art_count(t->pub.dims, t->pub.n_dims, &count) && count == p->cols)
        return true;
    char shape[128];
    art_shape_text(shape, t->pub.dims, t->pub.n_dims);
    art_fault(f, "%s: tensor %s at byte offset %llu: %s %s, the model needs %u values", t->pub.file, t->pub.stored_name,
              (ull)t->pub.offset, t->pub.dtype_text, shape, p->cols);
    return false;
}

/* A tied head that is stored all the same must be the embedding. */
static void check_tied(const struct artifact *a, const struct ifx_model_desc *desc, const struct ifx_param *p,
                       const struct art_tensor *head, struct art_faults *f)
{
    if (!(p->flags & IFX_PARAM_HEAD) || p->tied_to < 0 || (uint32_t)p->tied_to >= desc->n_params)
        return;
    const struct art_tensor *e = art_find(a, desc->params[p->tied_to].name);
    if (e == NULL || head == NULL)
        return;
    if (e->pub.dtype != head->pub.dtype || e->pub.bytes != head->pub.bytes ||
        memcmp(e->data, head->data, e->pub.bytes) != 0)
        art_fault(f, "%s: tensor %s: the config ties it to %s, but the two differ: set tie_word_embeddings to what the "
                  "model was trained with, or remove one", head->pub.file, head->pub.stored_name, e->pub.stored_name);
}

static void check_param(const struct artifact *a, const struct ifx_model_desc *desc, const struct ifx_param *p,
                        struct art_faults *f)
{
    struct art_source s;
    const struct art_tensor *t = art_find(a, p->name);
    bool head = (p->flags & IFX_PARAM_HEAD) != 0;
    if (t == NULL && head) {
        if (p->tied_to < 0)
            art_missing(a, p->name, " and the config does not tie it to the embedding", f);
        return;
    }
    if (t == NULL) {
        if (!(p->flags & IFX_PARAM_OPTIONAL))
            art_missing(a, p->name, "", f);
        return;
    }
    if (p->kind == IFX_PARAM_VECTOR)
        check_vector(p, t, f);
    else if (art_source_open(a, t, 1, p->rows, p->cols, &s, f) && t->section < 0 &&
             art_source_check_scales(&s, 0, p->rows) != IFX_OK)
        art_fault(f, "%s", base_error_text());
    check_tied(a, desc, p, t, f);
}

void art_check(const struct artifact *a, const struct ifx_model_desc *desc, struct art_faults *f)
{
    if (a->container != NULL && a->container->n_experts != desc->n_moe)
        art_fault(f, "%s: has experts for %llu layers, the config needs %u", a->path,
                  (ull)a->container->n_experts, desc->n_moe);
    for (uint32_t i = 0; i < desc->n_params; i++)
        check_param(a, desc, &desc->params[i], f);
    for (uint32_t i = 0; i < desc->n_moe; i++)
        art_check_experts(a, &desc->moe[i], i, f);
    for (uint32_t i = 0; i < desc->n_tables; i++)
        art_check_table(a, &desc->tables[i], f);
    for (uint32_t i = 0; i < desc->n_ints; i++)
        art_check_ints(a, &desc->ints[i], f);
}

int32_t artifact_check(struct artifact *a, const struct ifx_model_desc *desc)
{
    struct art_faults f = {0};
    art_check(a, desc, &f);
    return art_faults_end(&f, IFX_EFORMAT, a->path);
}

/* The stored tensor of a parameter, checked; IFX_ENOTFOUND with nothing recorded when absent. */
static int32_t open_param(struct artifact *a, const struct ifx_param *p, const struct art_tensor **t,
                          struct art_source *s)
{
    struct art_faults f = {0};
    *t = art_find(a, p->name);
    if (*t == NULL)
        return IFX_ENOTFOUND;
    if (p->kind == IFX_PARAM_VECTOR)
        check_vector(p, *t, &f);
    else
        art_source_open(a, *t, 1, p->rows, p->cols, s, &f);
    return art_faults_end(&f, IFX_EFORMAT, a->path);
}

int32_t artifact_param_plan(struct artifact *a, const struct ifx_param *p, uint32_t *dtype, uint64_t *data_bytes,
                            uint64_t *scale_bytes)
{
    const struct art_tensor *t;
    struct art_source s = {0};
    int32_t status = open_param(a, p, &t, &s);
    if (status != IFX_OK)
        return status;
    *scale_bytes = 0;
    if (p->kind == IFX_PARAM_VECTOR) {
        *dtype = IFX_F32;
        *data_bytes = (uint64_t)p->cols * 4;
    } else if (s.form == ART_W8G32) {
        *dtype = IFX_W8G32;
        *data_bytes = s.rows * s.scale_ld * 32;
        *scale_bytes = s.rows * s.scale_ld * 2;
    } else {
        *dtype = IFX_BF16;
        *data_bytes = s.rows * s.cols * 2;
    }
    return IFX_OK;
}

/* A vector is small and each of its values works on every token: Inf in A_log, for one, would run without a word. */
static int32_t check_finite(const struct art_tensor *t, uint64_t n, const float *values)
{
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(values[i]))
            return base_error(IFX_EFORMAT, "%s: tensor %s at byte offset %llu: value %llu is %g: the file is damaged or its "
                              "export failed", t->pub.file, t->pub.stored_name, (ull)t->pub.offset, (ull)i,
                              (double)values[i]);
    return IFX_OK;
}

static bool aligned(const void *p)
{
    return ((uintptr_t)p & 63u) == 0;
}

int32_t artifact_param_read(struct artifact *a, const struct ifx_param *p, void *dst_data, void *dst_scales,
                            struct ifx_weight *out, bool *in_place)
{
    const struct art_tensor *t;
    struct art_source s = {0};
    bool vector = p->kind == IFX_PARAM_VECTOR;
    int32_t status = open_param(a, p, &t, &s);
    if (status == IFX_OK)
        status = art_section_verify(a, t->section);
    if (status == IFX_OK && !vector)
        status = art_source_check_scales(&s, 0, s.rows);
    if (status != IFX_OK)
        return status;
    uint32_t dtype = vector ? IFX_F32 : s.form == ART_W8G32 ? IFX_W8G32 : IFX_BF16;
    *in_place = t->pub.dtype == dtype && aligned(t->data) && (dtype != IFX_W8G32 || aligned(t->scales));
    *out = (struct ifx_weight){.dtype = dtype, .rows = vector ? 1 : p->rows, .cols = p->cols,
                               .data = *in_place ? (const void *)t->data : dst_data};
    if (dtype == IFX_W8G32)
        out->scales = *in_place ? (const void *)t->scales : dst_scales;
    if (*in_place || dst_data == NULL)
        return vector && *in_place ? check_finite(t, p->cols, out->data) : IFX_OK;
    if (vector) {
        art_to_f32(t->pub.dtype, t->data, p->cols, dst_data);
        return check_finite(t, p->cols, dst_data);
    }
    if (dtype == IFX_W8G32) {
        memcpy(dst_data, t->data, s.rows * s.scale_ld * 32);
        memcpy(dst_scales, t->scales, s.rows * s.scale_ld * 2);
    } else {
        for (uint64_t r = 0; r < s.rows; r++)
            art_source_row_bf16(&s, r, (uint16_t *)dst_data + r * s.cols);
    }
    return IFX_OK;
}
