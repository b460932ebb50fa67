/* SPDX-License-Identifier: Apache-2.0
 *
 * experts.c - the routed experts, however they are stored: fused, one by one, or as a bank's records.
 */
#include "config.h"
#include "artifact_internal.h"
#include <infernix/numerics.h>
#include <stdio.h>
#include <string.h>

typedef unsigned long long ull;

static const char *const proj_names[3] = {"gate_proj", "up_proj", "down_proj"};

static bool ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && strcmp(s + n - m, suffix) == 0;
}

int32_t art_detect_experts(struct artifact *a)
{
    const char *format = NULL;
    if (a->container != NULL && a->container->n_experts > 0)
        format = a->container->experts[0].format;
    for (uint64_t i = 0; a->container == NULL && i < a->n_named; i++) {
        const struct artifact_entry *e = &a->by_name[i]->pub;
        if (strstr(e->logical_name, ".experts.") == NULL)
            continue;
        if (format == NULL)
            format = "bf16";
        if (e->dtype == IFX_U8 && ends_with(e->logical_name, "_proj.weight"))
            format = "nvfp4";
    }
    if (format == NULL)
        return IFX_OK;
    a->expert_format = base_strdup(format);
    return a->expert_format ? IFX_OK : IFX_ENOMEM;
}

static bool open_fused(const struct artifact *a, const struct ifx_moe_layer *m, const struct art_tensor *gate_up,
                       uint32_t expert, struct art_expert_source *out, struct art_faults *f)
{
    uint64_t inter = m->inter;
    const struct art_tensor *down = art_findf(a, "%s.down_proj", m->prefix);
    if (down == NULL) {
        char name[160];
        snprintf(name, sizeof name, "%s.down_proj", m->prefix);
        art_missing(a, name, "", f);
        return false;
    }
    bool good = art_source_open(a, gate_up, m->experts, 2 * inter, m->hidden, &out->matrix[IFX_GATE], f);
    good = art_source_open(a, down, m->experts, m->hidden, inter, &out->matrix[IFX_DOWN], f) && good;
    out->matrix[IFX_UP] = out->matrix[IFX_GATE];
    out->row0[IFX_GATE] = expert * 2 * inter; /* gate rows first, then up rows */
    out->row0[IFX_UP] = expert * 2 * inter + inter;
    out->row0[IFX_DOWN] = (uint64_t)expert * m->hidden;
    return good;
}

bool art_expert_open(const struct artifact *a, const struct ifx_moe_layer *m, uint32_t expert,
                     struct art_expert_source *out, struct art_faults *f)
{
    bool good = true;
    const struct art_tensor *fused = art_findf(a, "%s.gate_up_proj", m->prefix);
    memset(out, 0, sizeof *out);
    if (fused != NULL)
        return open_fused(a, m, fused, expert, out, f);
    for (uint32_t i = 0; i < 3; i++) {
        char name[180];
        uint64_t rows = i == IFX_DOWN ? m->hidden : m->inter, cols = i == IFX_DOWN ? m->inter : m->hidden;
        snprintf(name, sizeof name, "%s.%u.%s.weight", m->prefix, expert, proj_names[i]);
        const struct art_tensor *t = art_find(a, name);
        if (t == NULL)
            art_missing(a, name, "", f);
        good = t != NULL && art_source_open(a, t, 1, rows, cols, &out->matrix[i], f) && good;
    }
    return good;
}

static void check_record_section(const struct artifact *a, const struct ifx_moe_layer *m, uint32_t moe_layer,
                                 struct art_faults *f)
{
    if (moe_layer >= a->container->n_experts)
        return; /* the counts have their own fault */
    const struct art_expert_section *s = &a->container->experts[moe_layer];
    if (strcmp(s->prefix, m->prefix) != 0 || s->experts != m->experts || s->hidden != m->hidden || s->inter != m->inter)
        art_fault(f, "%s: experts of MoE layer %u: %s, %llu of hidden %llu and width %llu; the config needs %s, %u of "
                  "hidden %u and width %u", a->path, moe_layer, s->prefix, (ull)s->experts, (ull)s->hidden,
                  (ull)s->inter, m->prefix, m->experts, m->hidden, m->inter);
}

void art_check_experts(const struct artifact *a, const struct ifx_moe_layer *m, uint32_t moe_layer,
                       struct art_faults *f)
{
    struct art_expert_source e;
    if (a->container != NULL) {
        check_record_section(a, m, moe_layer, f);
        return;
    }
    if (art_findf(a, "%s.gate_up_proj", m->prefix) != NULL) {
        art_expert_open(a, m, 0, &e, f);
        return;
    }
    for (uint32_t i = 0; i < m->experts; i++)
        art_expert_open(a, m, i, &e, f);
}

int32_t artifact_set_bank(struct artifact *a, const struct ifx_expert_ops *ops, void *bank)
{
    a->bank_ops = ops;
    a->bank = bank;
    return IFX_OK;
}

static int32_t check_expert_index(const struct artifact *a, const struct ifx_moe_layer *m, uint32_t expert)
{
    if (expert < m->experts)
        return IFX_OK;
    return base_error(IFX_EINTERNAL, "%s: %s: expert %u of %u was asked for", a->path, m->prefix, expert, m->experts);
}

/* Rows of a container's record through the bank that wrote it. */
static int32_t record_rows(struct artifact *a, const struct ifx_moe_layer *m, uint32_t expert, float *gate, float *up,
                           float *down)
{
    const void *record;
    uint64_t bytes;
    uint32_t layer = 0;
    float *const dst[3] = {gate, up, down};
    while (layer < a->container->n_experts && strcmp(a->container->experts[layer].prefix, m->prefix) != 0)
        layer++;
    int32_t status = artifact_expert_record(a, layer, expert, &record, &bytes);
    if (status != IFX_OK)
        return status;
    if (a->bank_ops == NULL)
        return base_error(IFX_EUNSUPPORTED, "%s: its experts are \"%s\" records; turning them into another format needs "
                          "the bank expert_%s", a->path, a->expert_format, a->expert_format);
    double *row = base_alloc(sizeof(double) * (m->hidden > m->inter ? m->hidden : m->inter), 64);
    if (row == NULL)
        return IFX_ENOMEM;
    for (uint32_t i = 0; status == IFX_OK && i < 3; i++) {
        uint32_t rows = i == IFX_DOWN ? m->hidden : m->inter, cols = i == IFX_DOWN ? m->inter : m->hidden;
        for (uint32_t r = 0; status == IFX_OK && r < rows; r++) {
            status = a->bank_ops->decode_row(a->bank, record, i, r, row);
            for (uint32_t c = 0; status == IFX_OK && c < cols; c++)
                dst[i][(uint64_t)r * cols + c] = (float)row[c];
        }
    }
    base_free(row);
    return status;
}

int32_t artifact_expert_rows(struct artifact *a, const struct ifx_moe_layer *m, uint32_t expert, float *gate,
                             float *up, float *down)
{
    struct art_expert_source e;
    struct art_faults f = {0};
    float *const dst[3] = {gate, up, down};
    int32_t status = check_expert_index(a, m, expert);
    if (status != IFX_OK)
        return status;
    if (a->container != NULL)
        return record_rows(a, m, expert, gate, up, down);
    if (!art_expert_open(a, m, expert, &e, &f))
        return art_faults_end(&f, IFX_EFORMAT, a->path);
    for (uint32_t i = 0; i < 3; i++) {
        const struct art_source *s = &e.matrix[i];
        uint64_t rows = i == IFX_DOWN ? m->hidden : m->inter;
        status = art_source_check_scales(s, e.row0[i], rows);
        if (status != IFX_OK)
            return status;
        for (uint64_t r = 0; r < rows; r++)
            art_source_row_f32(s, e.row0[i] + r, dst[i] + r * s->cols);
    }
    return IFX_OK;
}

static void view_of(const struct art_tensor *t, struct ifx_tensor *v)
{
    *v = (struct ifx_tensor){.struct_size = sizeof *v, .dims = {1, 1, 1, 1}};
    if (t == NULL)
        return;
    v->dtype = t->pub.dtype;
    v->n_dims = t->pub.n_dims;
    for (uint32_t d = 0; d < t->pub.n_dims && d < IFX_MAX_DIMS; d++)
        v->dims[d] = t->pub.dims[d];
    v->data = t->data;
    v->data_bytes = t->pub.bytes;
}

static int32_t tensors_of(struct artifact *a, const struct ifx_moe_layer *m, const struct art_expert_source *e,
                          struct ifx_expert_tensors *out)
{
    *out = (struct ifx_expert_tensors){.struct_size = sizeof *out};
    for (uint32_t i = 0; i < 3; i++) {
        const struct art_source *s = &e->matrix[i];
        if (s->planes > 1 || art_findf(a, "%s.gate_up_proj", m->prefix) != NULL)
            return IFX_EUNSUPPORTED;
        view_of(s->t, &out->matrix[i].weight);
        view_of(s->scale_t, &out->matrix[i].weight_scale);
        view_of(s->scale2_t, &out->matrix[i].weight_scale_2);
    }
    return IFX_OK;
}

int32_t artifact_expert_tensors(struct artifact *a, const struct ifx_moe_layer *m, uint32_t expert,
                                struct ifx_expert_tensors *out)
{
    struct art_expert_source e;
    struct art_faults f = {0};
    if (a->container != NULL)
        return IFX_EUNSUPPORTED;
    int32_t status = check_expert_index(a, m, expert);
    if (status != IFX_OK)
        return status;
    if (!art_expert_open(a, m, expert, &e, &f))
        return art_faults_end(&f, IFX_EFORMAT, a->path);
    return tensors_of(a, m, &e, out);
}

int32_t artifact_expert_record(struct artifact *a, uint32_t moe_layer, uint32_t expert, const void **record,
                               uint64_t *bytes)
{
    if (a->container == NULL)
        return base_error(IFX_EUNSUPPORTED, "%s: a checkpoint has tensors, no expert records", a->path);
    if (moe_layer >= a->container->n_experts || expert >= a->container->experts[moe_layer].experts)
        return base_error(IFX_EINTERNAL, "%s: expert %u of MoE layer %u was asked for: there is none", a->path, expert,
                          moe_layer);
    const struct art_expert_section *s = &a->container->experts[moe_layer];
    int32_t status = art_section_verify(a, (int32_t)s->section);
    if (status != IFX_OK)
        return status;
    *record = a->container->map + a->container->sections[s->section].offset + expert * s->record_bytes;
    *bytes = s->record_bytes;
    return IFX_OK;
}

int32_t artifact_records_at(const struct artifact *a, uint32_t moe_layer, struct artifact_records *out)
{
    if (a->container == NULL || moe_layer >= a->container->n_experts)
        return IFX_ENOTFOUND;
    const struct art_expert_section *s = &a->container->experts[moe_layer];
    *out = (struct artifact_records){.format = s->format, .prefix = s->prefix, .layer = s->layer, .experts = s->experts,
                                     .record_bytes = s->record_bytes,
                                     .offset = a->container->sections[s->section].offset};
    return IFX_OK;
}

static uint64_t bank_record_bytes(const struct ifx_expert_ops *ops, const struct ifx_moe_layer *m)
{
    struct ifx_expert_shape shape = {.struct_size = sizeof shape, .hidden = m->hidden, .inter = m->inter};
    return ops->record_bytes(&shape);
}

static int32_t copy_record(struct artifact *a, const struct ifx_moe_layer *m, uint32_t moe_layer, uint32_t expert,
                           const struct ifx_expert_ops *ops, void *bank, void *record)
{
    const void *from;
    uint64_t bytes, want = bank_record_bytes(ops, m);
    int32_t status = artifact_expert_record(a, moe_layer, expert, &from, &bytes);
    if (status != IFX_OK)
        return status;
    if (bytes != want)
        return base_error(IFX_EFORMAT, "%s: records of %llu bytes, this build of expert_%s makes %llu: convert the model "
                          "again", a->path, (ull)bytes, ops->format, (ull)want);
    memcpy(record, from, bytes);
    return ops->check_record ? ops->check_record(bank, record) : IFX_OK;
}

/* Bit-exact import; IFX_EUNSUPPORTED when the bank does not know the stored layout. */
static int32_t pack_tensors(struct artifact *a, const struct ifx_moe_layer *m, uint32_t expert,
                            const struct ifx_expert_ops *ops, void *bank, void *record)
{
    struct art_expert_source e;
    struct ifx_expert_tensors tensors;
    struct art_faults f = {0};
    if (!art_expert_open(a, m, expert, &e, &f))
        return art_faults_end(&f, IFX_EFORMAT, a->path);
    int32_t status = tensors_of(a, m, &e, &tensors);
    for (uint32_t i = 0; status == IFX_OK && i < 3; i++)
        status = art_source_check_scales(&e.matrix[i], e.row0[i], e.matrix[i].rows);
    return status == IFX_OK ? ops->pack_tensors(bank, &tensors, record) : status;
}

int32_t artifact_expert_pack(struct artifact *a, const struct ifx_moe_layer *m, uint32_t moe_layer,
                             uint32_t expert, const struct ifx_expert_ops *ops, void *bank, float *tmp,
                             void *record, bool *exact)
{
    int32_t status = check_expert_index(a, m, expert);
    if (status != IFX_OK)
        return status;
    *exact = true;
    if (a->container != NULL && a->expert_format != NULL && strcmp(a->expert_format, ops->format) == 0) {
        status = copy_record(a, m, moe_layer, expert, ops, bank, record);
    } else {
        status = IFX_EUNSUPPORTED;
        if (a->container == NULL && ops->pack_tensors != NULL)
            status = pack_tensors(a, m, expert, ops, bank, record);
        if (status == IFX_EUNSUPPORTED) {
            uint64_t n = (uint64_t)m->hidden * m->inter;
            *exact = false;
            status = artifact_expert_rows(a, m, expert, tmp, tmp + n, tmp + 2 * n);
            if (status == IFX_OK)
                status = ops->pack(bank, tmp, tmp + n, tmp + 2 * n, record);
        }
    }
    if (status != IFX_OK && status != IFX_ECANCELLED)
        base_error_prefix(status, "layer %u, expert %u (%s.%u)", m->layer, expert, m->prefix, expert);
    return status;
}
