/* SPDX-License-Identifier: Apache-2.0
 *
 * convert.c - writing .infernix: plan and check everything, then stream section by section.
 */
#include "config.h"
#include "convert.h"
#include "registry.h"
#include <string.h>
#include <sys/statvfs.h>
#include <zlib.h>

typedef unsigned long long ull;

int32_t convert_progress(struct converting *v, const char *what)
{
    bool stop = base_cancelled();
    if (v->c->progress != NULL && v->c->progress(v->c->ctx, v->done, v->total, what) != 0)
        stop = true;
    return stop ? base_error(IFX_ECANCELLED, "%s: cancelled; nothing was left behind", v->c->out_path) : IFX_OK;
}

int32_t convert_write(struct converting *v, const void *data, uint64_t bytes)
{
    int32_t status = base_out_write(v->out, data, bytes);
    v->crc = (uint32_t)crc32_z(v->crc, data, bytes);
    v->done += bytes;
    return status;
}

int32_t convert_pad(struct converting *v, uint64_t to)
{
    static const uint8_t zeros[CONTAINER_PAGE];
    int32_t status = IFX_OK;
    uint64_t at = base_out_offset(v->out) - v->section_offset;
    while (status == IFX_OK && at < to) {
        uint64_t n = to - at < sizeof zeros ? to - at : sizeof zeros;
        status = convert_write(v, zeros, n);
        at += n;
    }
    return status;
}

void convert_section_begin(struct converting *v)
{
    v->crc = (uint32_t)crc32_z(0, NULL, 0);
    v->section_offset = base_out_offset(v->out);
}

int32_t convert_section_end(struct converting *v, const char *kind)
{
    uint64_t bytes = base_out_offset(v->out) - v->section_offset;
    int32_t status = convert_pad(v, container_round(bytes, CONTAINER_PAGE));
    if (status != IFX_OK)
        return status;
    bytes = base_out_offset(v->out) - v->section_offset;
    json_t *s = json_pack("{s:s, s:I, s:I, s:I}", "kind", kind, "offset", (json_int_t)v->section_offset, "bytes",
                          (json_int_t)bytes, "crc32", (json_int_t)v->crc);
    return json_array_append_new(v->sections, s) == 0 ? IFX_OK : base_error(IFX_ENOMEM, "out of memory for the index");
}

/* ---- plan ---- */
static bool is_named(const struct artifact_convert *c, const char *name)
{
    for (const char *const *n = c->dense_named; n != NULL && *n != NULL; n++) {
        size_t len = strlen(*n);
        for (const char *at = strstr(name, *n); at != NULL && len > 0; at = strstr(at + 1, *n))
            if ((at == name || at[-1] == '.') && (at[len] == 0 || at[len] == '.'))
                return true;
    }
    return false;
}

/* An embedding that also serves as the head is multiplied, one that is only looked up is not. */
static bool only_looked_up(const struct converting *v, uint32_t index)
{
    const struct ifx_model_desc *d = v->c->desc;
    if (!(d->params[index].flags & IFX_PARAM_EMBED))
        return false;
    for (uint32_t i = 0; i < d->n_params; i++)
        if ((d->params[i].flags & IFX_PARAM_HEAD) && d->params[i].tied_to == (int32_t)index)
            return false;
    return true;
}

static uint32_t choose_dtype(const struct converting *v, uint32_t index, const struct art_source *s)
{
    const struct ifx_param *p = &v->c->desc->params[index];
    if (p->kind == IFX_PARAM_VECTOR)
        return IFX_F32;
    if (v->c->dense == NULL)
        return s->form == ART_W8G32 ? IFX_W8G32 : IFX_BF16;
    if (strcmp(v->c->dense, "int8") != 0)
        return IFX_BF16;
    if (s->form == ART_W8G32 || is_named(v->c, p->name))
        return IFX_W8G32;
    return (p->flags & IFX_PARAM_SENSITIVE) || only_looked_up(v, index) ? IFX_BF16 : IFX_W8G32;
}

static bool head_is_tied(const struct ifx_param *p)
{
    return (p->flags & IFX_PARAM_HEAD) && p->tied_to >= 0;
}

static int32_t plan_params(struct converting *v)
{
    const struct ifx_model_desc *d = v->c->desc;
    struct art_faults f = {0};
    uint64_t at = 0;
    v->params = base_calloc(d->n_params, sizeof *v->params);
    if (v->params == NULL)
        return IFX_ENOMEM;
    for (uint32_t i = 0; i < d->n_params; i++) {
        const struct ifx_param *p = &d->params[i];
        struct plan_param *q = &v->params[v->n_params];
        q->p = p;
        q->t = art_find(v->a, p->name);
        if (q->t == NULL || head_is_tied(p)) /* artifact_check has seen that this is right */
            continue;
        if (p->kind == IFX_PARAM_MATRIX && !art_source_open(v->a, q->t, 1, p->rows, p->cols, &q->s, &f))
            break;
        q->dtype = choose_dtype(v, i, &q->s);
        uint64_t groups = ((uint64_t)p->cols + 31) / 32, n = (uint64_t)p->rows * p->cols;
        q->offset = at;
        q->bytes = q->dtype == IFX_F32 ? n * 4 : q->dtype == IFX_BF16 ? n * 2 : p->rows * groups * 32;
        at = container_round(at + q->bytes, CONTAINER_ALIGN);
        if (q->dtype == IFX_W8G32) {
            q->scale_offset = at;
            q->scale_bytes = p->rows * groups * 2;
            at = container_round(at + q->scale_bytes, CONTAINER_ALIGN);
        }
        v->n_params++;
    }
    v->dense_bytes = container_round(at, CONTAINER_PAGE);
    return art_faults_end(&f, IFX_EFORMAT, v->a->path);
}

static int32_t plan_experts(struct converting *v)
{
    const struct ifx_model_desc *d = v->c->desc;
    uint64_t layer_bytes;
    if (d->n_moe == 0)
        return IFX_OK;
    if (v->c->bank_ops == NULL || v->c->bank == NULL)
        return base_error(IFX_EINTERNAL, "%s: a bank is needed for its experts", v->a->path);
    const struct ifx_moe_layer *first = &d->moe[0];
    struct ifx_expert_shape shape = {.struct_size = sizeof shape, .hidden = first->hidden, .inter = first->inter};
    int32_t status = registry_record_bytes(v->c->bank_ops, &shape, &v->record_bytes);
    if (status != IFX_OK)
        return base_error_prefix(status, "%s", v->a->path);
    for (uint32_t i = 0; i < d->n_moe; i++) {
        if (d->moe[i].hidden != first->hidden || d->moe[i].inter != first->inter)
            return base_error(IFX_EUNSUPPORTED, "%s: the experts of layers %u and %u have different sizes", v->a->path,
                              first->layer, d->moe[i].layer);
        if (!base_mul_u64(v->record_bytes, d->moe[i].experts, &layer_bytes) ||
            !base_add_u64(v->total, layer_bytes, &v->total))
            return base_error(IFX_ELIMIT, "%s: the experts' bytes overflow", v->a->path);
    }
    return IFX_OK;
}

/* Free space where the file will be, before any work. */
static int32_t check_space(const struct converting *v)
{
    struct statvfs fs;
    const char *path = v->c->out_path, *slash = strrchr(path, '/');
    char *folder = slash ? base_format("%.*s", slash > path ? (int)(slash - path) : 1, path) : base_strdup(".");
    if (folder == NULL)
        return IFX_ENOMEM;
    uint64_t need = v->total + CONTAINER_PAGE + (uint64_t)v->n_params * 256 + v->c->desc->n_moe * 256u + 65536;
    int32_t status = IFX_OK;
    if (statvfs(folder, &fs) == 0) { /* where it cannot be told, writing will tell */
        uint64_t available;
        if (base_mul_u64(fs.f_bavail, fs.f_frsize, &available) && available < need)
            status = base_error(IFX_EIO, "%s: %llu MiB are needed, %s has %llu MiB free", path, (ull)((need >> 20) + 1),
                                folder, (ull)(available >> 20));
    }
    base_free(folder);
    return status;
}

int32_t convert_plan(struct converting *v)
{
    int32_t status = artifact_check(v->a, v->c->desc);
    if (status == IFX_OK && v->c->dense != NULL && strcmp(v->c->dense, "bf16") != 0 && strcmp(v->c->dense, "int8") != 0)
        status = base_error(IFX_EINVAL, "dense format \"%s\": bf16 and int8 are known", v->c->dense);
    if (status == IFX_OK)
        status = plan_params(v);
    if (status == IFX_OK)
        status = plan_experts(v);
    if (status == IFX_OK)
        status = convert_plan_tables(v);
    uint64_t at = 0; /* every asset is followed by at least one zero */
    for (uint32_t i = 0; i < ART_ASSETS; i++)
        if (v->a->assets[i].data != NULL)
            at = container_round(at + v->a->assets[i].bytes + 1, CONTAINER_ALIGN);
    v->assets_bytes = container_round(at, CONTAINER_PAGE);
    if (status == IFX_OK && (!base_add_u64(v->total, v->assets_bytes, &v->total) ||
                             !base_add_u64(v->total, v->dense_bytes, &v->total)))
        status = base_error(IFX_ELIMIT, "%s: the size overflows", v->a->path);
    return status == IFX_OK ? check_space(v) : status;
}

/* ---- sections ---- */
static int32_t write_assets(struct converting *v)
{
    uint64_t at = 0;
    int32_t status = IFX_OK;
    convert_section_begin(v);
    for (uint32_t i = 0; status == IFX_OK && i < ART_ASSETS; i++) {
        const struct art_asset *asset = &v->a->assets[i];
        if (asset->data == NULL)
            continue;
        json_object_set_new(v->assets, asset->name, json_pack("{s:i, s:I, s:I}", "section", 0, "offset", (json_int_t)at,
                                                              "bytes", (json_int_t)asset->bytes));
        status = convert_write(v, asset->data, asset->bytes);
        at = container_round(at + asset->bytes + 1, CONTAINER_ALIGN);
        if (status == IFX_OK)
            status = convert_pad(v, at);
    }
    return status == IFX_OK ? convert_section_end(v, "assets") : status;
}

int32_t convert_list_experts(struct converting *v, const struct ifx_moe_layer *m, const char *format)
{
    json_t *e = json_pack("{s:s, s:i, s:s, s:i, s:i, s:i, s:I, s:i}", "prefix", m->prefix, "layer", (int)m->layer, "format",
                          format, "experts", (int)m->experts, "hidden", (int)m->hidden, "inter", (int)m->inter,
                          "record_bytes", (json_int_t)v->record_bytes, "section", (int)json_array_size(v->sections));
    return json_array_append_new(v->experts, e) == 0 ? IFX_OK : base_error(IFX_ENOMEM, "out of memory for the index");
}

static int32_t write_experts(struct converting *v)
{
    const struct ifx_model_desc *d = v->c->desc;
    int32_t status = IFX_OK;
    for (uint32_t i = 0; status == IFX_OK && i < d->n_moe; i++) {
        const struct ifx_moe_layer *m = &d->moe[i];
        convert_section_begin(v);
        status = convert_experts(v, i);
        if (status != IFX_OK)
            break;
        status = convert_list_experts(v, m, v->c->bank_ops->format);
        if (status != IFX_OK)
            break;
        status = convert_section_end(v, "experts");
    }
    return status;
}

static int32_t write_tables(struct converting *v)
{
    int32_t status = IFX_OK;
    for (uint32_t i = 0; status == IFX_OK && i < v->c->desc->n_tables; i++) {
        convert_section_begin(v);
        status = convert_table(v, i);
        if (status == IFX_OK)
            status = convert_section_end(v, "table");
    }
    return status;
}

int32_t convert_write_index(struct converting *v)
{
    uint8_t header[CONTAINER_PAGE] = {0};
    uint64_t at = base_out_offset(v->out);
    int32_t status = IFX_ENOMEM;
    uint8_t *packed = NULL;
    char *text = json_dumps(v->index, JSON_COMPACT | JSON_SORT_KEYS);
    uLongf stored = text ? compressBound(strlen(text)) : 0;
    if (text != NULL && strlen(text) <= CONTAINER_INDEX_MAX)
        packed = base_alloc(stored, 64);
    if (packed == NULL || compress2(packed, &stored, (const Bytef *)text, strlen(text), 9) != Z_OK) {
        base_error(status, "out of memory for the index");
        goto out;
    }
    memcpy(header, CONTAINER_MAGIC, 8);
    container_put(header + HEADER_VERSION, 4, CONTAINER_VERSION);
    container_put(header + HEADER_BYTES, 4, CONTAINER_HEADER);
    container_put(header + HEADER_FILE_BYTES, 8, at + stored);
    container_put(header + HEADER_INDEX_OFFSET, 8, at);
    container_put(header + HEADER_INDEX_STORED, 8, stored);
    container_put(header + HEADER_INDEX_BYTES, 8, strlen(text));
    container_put(header + HEADER_INDEX_CRC, 4, (uint32_t)crc32_z(0, packed, stored));
    memcpy(header + HEADER_WRITER, PACKAGE_STRING, sizeof PACKAGE_STRING);
    container_put(header + HEADER_CRC, 4, (uint32_t)crc32_z(0, header, HEADER_CRC));
    status = base_out_write(v->out, packed, stored);
    if (status == IFX_OK)
        status = base_out_pwrite(v->out, header, sizeof header, 0);
out:
    base_free(packed);
    base_free(text); /* jansson's allocator is malloc's */
    return status;
}

int32_t convert_index_begin(struct converting *v, const char *architecture)
{
    static const uint8_t page[CONTAINER_PAGE]; /* the header comes last */
    v->index = json_object();
    v->sections = json_array();
    v->tensors = json_object();
    v->experts = json_array();
    v->assets = json_object();
    int bad = json_object_set_new(v->index, "writer", json_string(PACKAGE_STRING));
    bad |= json_object_set_new(v->index, "architecture", json_string(architecture));
    bad |= json_object_set(v->index, "sections", v->sections);
    bad |= json_object_set(v->index, "tensors", v->tensors);
    bad |= json_object_set(v->index, "experts", v->experts);
    bad |= json_object_set(v->index, "assets", v->assets);
    return bad ? base_error(IFX_ENOMEM, "out of memory for the index") : base_out_write(v->out, page, sizeof page);
}

void convert_index_end(struct converting *v)
{
    json_decref(v->sections);
    json_decref(v->tensors);
    json_decref(v->experts);
    json_decref(v->assets);
    json_decref(v->index);
}

int32_t artifact_convert(struct artifact *a, const struct artifact_convert *c)
{
    struct converting v = {.a = a, .c = c};
    int32_t status = convert_plan(&v);
    if (status == IFX_OK)
        status = base_out_open(c->out_path, c->force, &v.out);
    if (status == IFX_OK)
        status = convert_index_begin(&v, a->architecture);
    if (status == IFX_OK)
        status = write_assets(&v);
    if (status == IFX_OK) {
        convert_section_begin(&v);
        status = convert_dense(&v);
    }
    if (status == IFX_OK)
        status = convert_section_end(&v, "dense");
    if (status == IFX_OK)
        status = write_experts(&v);
    if (status == IFX_OK)
        status = write_tables(&v);
    if (status == IFX_OK)
        status = convert_write_index(&v);
    if (status == IFX_OK)
        status = convert_progress(&v, "done");
    if (status == IFX_OK)
        status = base_out_commit(&v.out);
    base_out_abort(&v.out);
    base_free(v.params);
    convert_index_end(&v);
    return status;
}
