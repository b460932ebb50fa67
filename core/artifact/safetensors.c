/* SPDX-License-Identifier: Apache-2.0
 *
 * safetensors.c - reader of one safetensors file.  Format: 8 bytes little-endian header length, JSON header, data;
 * offsets count from the start of the data, tensors cover it without gaps.
 * Source: the format description of the safetensors project (github.com/huggingface/safetensors, README).
 */
#include "config.h"
#include "artifact_internal.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define NAME_MAX_BYTES 1000u

typedef unsigned long long ull;

static uint64_t read_u64(const uint8_t *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static bool name_is_plain(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return false;
    return n > 0 && n <= NAME_MAX_BYTES;
}

/* Length word and header bounds; returns false after a fault. */
static bool check_frame(const char *path, const uint8_t *map, uint64_t bytes, uint64_t *header, struct art_faults *f)
{
    const char *impostor = art_impostor(map, bytes);
    if (impostor != NULL) {
        art_fault(f, "%s: is %s", path, impostor);
        return false;
    }
    if (bytes < 8) {
        art_fault(f, "%s: %llu bytes, too short for a safetensors file (the header length alone takes 8)", path,
                  (ull)bytes);
        return false;
    }
    *header = read_u64(map);
    if (*header > bytes - 8) {
        art_fault(f, "%s: byte offset 0: header length %llu, but only %llu bytes follow: cut short, or no safetensors "
                  "file", path, (ull)*header, (ull)(bytes - 8));
        return false;
    }
    if (*header > ST_MAX_HEADER || *header < 2 || map[8] != '{') {
        art_fault(f, "%s: byte offset 0: header length %llu (2 to %u are allowed) or first header byte 0x%02x: no "
                  "safetensors header", path, (ull)*header, ST_MAX_HEADER, bytes > 8 ? map[8] : 0);
        return false;
    }
    return true;
}

static bool parse_shape(const char *path, struct st_tensor *t, const json_t *shape, bool big, struct art_faults *f)
{
    size_t n = json_array_size(shape);
    if (!json_is_array(shape) || n > ARTIFACT_MAX_DIMS) {
        art_fault(f, "%s: tensor %s: \"shape\" must be an array of at most %d numbers", path, t->name,
                  ARTIFACT_MAX_DIMS);
        return false;
    }
    t->n_dims = (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        if (!art_json_u64(json_array_get(shape, i), big, &t->dims[i])) {
            art_fault(f, "%s: tensor %s: shape[%zu] is not a whole number from 0 to 2^63-1", path, t->name, i);
            return false;
        }
    return true;
}

static bool parse_offsets(const char *path, struct st_tensor *t, const json_t *o, bool big, uint64_t data_bytes,
                          uint64_t data_offset, struct art_faults *f)
{
    uint64_t count, size;
    if (!json_is_array(o) || json_array_size(o) != 2 || !art_json_u64(json_array_get(o, 0), big, &t->begin) ||
        !art_json_u64(json_array_get(o, 1), big, &t->end)) {
        art_fault(f, "%s: tensor %s: \"data_offsets\" must be two whole numbers from 0 to 2^63-1", path, t->name);
        return false;
    }
    if (t->begin > t->end) {
        art_fault(f, "%s: tensor %s: ends (%llu) before it begins (%llu)", path, t->name, (ull)t->end, (ull)t->begin);
        return false;
    }
    if (t->end > data_bytes) {
        art_fault(f, "%s: tensor %s: ends at byte offset %llu, but the file has %llu bytes: cut short", path, t->name,
                  t->end > UINT64_MAX - data_offset ? (ull)UINT64_MAX : (ull)(data_offset + t->end),
                  (ull)(data_offset + data_bytes));
        return false;
    }
    if (!art_count(t->dims, t->n_dims, &count)) {
        art_fault(f, "%s: tensor %s: the product of its shape overflows", path, t->name);
        return false;
    }
    if (t->dtype == 0)
        return true;
    if (!base_mul_u64(count, art_dtype_bytes(t->dtype), &size) || size != t->end - t->begin) {
        char shape[128];
        art_shape_text(shape, t->dims, t->n_dims);
        art_fault(f, "%s: tensor %s at byte offset %llu: %s %s does not fit its %llu bytes", path, t->name,
                  (ull)(data_offset + t->begin), t->dtype_text, shape, (ull)(t->end - t->begin));
        return false;
    }
    return true;
}

static bool parse_tensor(const char *path, struct st_tensor *t, const char *name, const json_t *v, bool big,
                         uint64_t data_bytes, uint64_t data_offset, struct art_faults *f)
{
    if (!name_is_plain(name)) {
        art_fault(f, "%s: a tensor name is empty, longer than %u bytes or has control characters", path,
                  NAME_MAX_BYTES);
        return false;
    }
    t->name = base_strdup(name);
    if (t->name == NULL) {
        f->count++;
        f->out_of_memory = true;
        return false;
    }
    const char *dtype = json_string_value(json_object_get(v, "dtype"));
    if (dtype == NULL || strlen(dtype) >= sizeof t->dtype_text || !name_is_plain(dtype)) {
        art_fault(f, "%s: tensor %s: \"dtype\" is missing or no short text", path, name);
        return false;
    }
    memcpy(t->dtype_text, dtype, strlen(dtype) + 1);
    t->dtype = art_dtype_parse(dtype);
    if (t->dtype == IFX_W8G32) /* ours, and not of this format */
        t->dtype = 0;
    return parse_shape(path, t, json_object_get(v, "shape"), big, f) &&
           parse_offsets(path, t, json_object_get(v, "data_offsets"), big, data_bytes, data_offset, f);
}

static int by_begin(const void *pa, const void *pb)
{
    const struct st_tensor *a = pa, *b = pb;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end)
        return a->end < b->end ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* The tensors must cover the data exactly: no overlap, no gap, nothing after the last. */
static void check_cover(const struct st_file *s, struct art_faults *f)
{
    uint64_t at = 0, data_bytes = s->bytes - s->data_offset;
    for (uint64_t i = 0; i < s->n; i++) {
        const struct st_tensor *t = &s->tensors[i];
        if (t->begin < at)
            art_fault(f, "%s: tensor %s at byte offset %llu overlaps %s", s->path, t->name,
                      (ull)(s->data_offset + t->begin), s->tensors[i - 1].name);
        else if (t->begin > at)
            art_fault(f, "%s: %llu bytes at byte offset %llu, before tensor %s, belong to no tensor", s->path,
                      (ull)(t->begin - at), (ull)(s->data_offset + at), t->name);
        if (t->end > at)
            at = t->end;
    }
    if (at != data_bytes)
        art_fault(f, "%s: %llu bytes after the last tensor (byte offset %llu)", s->path, (ull)(data_bytes - at),
                  (ull)(s->data_offset + at));
}

static bool check_metadata(const char *path, const json_t *meta, struct art_faults *f)
{
    const char *key;
    json_t *v;
    bool good = meta == NULL || json_is_object(meta);
    if (good && meta != NULL)
        json_object_foreach((json_t *)meta, key, v)
            good = good && json_is_string(v);
    if (!good)
        art_fault(f, "%s: \"__metadata__\" must map text to text", path);
    return good;
}

static void parse_header(struct st_file *s, const json_t *root, bool big, struct art_faults *f)
{
    const char *name;
    json_t *v;
    uint64_t before = f->count;
    s->tensors = base_calloc(json_object_size(root), sizeof *s->tensors);
    if (s->tensors == NULL) {
        f->count++;
        f->out_of_memory = true;
        return;
    }
    json_object_foreach((json_t *)root, name, v) {
        if (strcmp(name, "__metadata__") == 0)
            check_metadata(s->path, v, f);
        else
            parse_tensor(s->path, &s->tensors[s->n++], name, v, big, s->bytes - s->data_offset, s->data_offset, f);
    }
    if (f->count == before && big)
        art_fault(f, "%s: a number in the header is too large", s->path);
    if (f->count != before)
        return;
    qsort(s->tensors, s->n, sizeof *s->tensors, by_begin);
    check_cover(s, f);
}

void st_parse(const char *path, const uint8_t *map, uint64_t bytes, struct st_file **out, struct art_faults *f)
{
    uint64_t header, before = f->count;
    json_t *root = NULL;
    bool big = false;
    *out = NULL;
    if (!check_frame(path, map, bytes, &header, f))
        return;
    struct st_file *s = base_calloc(1, sizeof *s);
    char *copy = s ? base_strdup(path) : NULL;
    if (copy == NULL) {
        f->count++;
        f->out_of_memory = true;
        base_free(s);
        return;
    }
    s->path = copy;
    s->map = map;
    s->bytes = bytes;
    s->data_offset = 8 + header;
    if (art_json_parse((const char *)map + 8, header, path, 8, &big, &root) != IFX_OK)
        art_fault(f, "%s", base_error_text());
    else
        parse_header(s, root, big, f);
    json_decref(root);
    if (f->count != before) {
        st_close(s);
        return;
    }
    *out = s;
}

int32_t st_open(const char *path, struct st_file **out)
{
    const void *map;
    uint64_t bytes;
    struct art_faults f = {0};
    *out = NULL;
    int32_t status = base_map_file(path, &map, &bytes, NULL);
    if (status != IFX_OK)
        return status;
    st_parse(path, map, bytes, out, &f);
    if (*out == NULL)
        munmap((void *)(uintptr_t)map, bytes);
    else
        (*out)->owns_map = true;
    return art_faults_end(&f, IFX_EFORMAT, path);
}

void st_close(struct st_file *s)
{
    if (s == NULL)
        return;
    for (uint64_t i = 0; i < s->n; i++)
        base_free(s->tensors[i].name);
    base_free(s->tensors);
    if (s->owns_map)
        munmap((void *)(uintptr_t)s->map, s->bytes);
    base_free(s->path);
    base_free(s);
}

int32_t st_find(struct st_file *s, const char *name, struct ifx_tensor *view)
{
    for (uint64_t i = 0; i < s->n; i++) {
        const struct st_tensor *t = &s->tensors[i];
        if (strcmp(t->name, name) != 0)
            continue;
        if (t->n_dims > IFX_MAX_DIMS)
            return base_error(IFX_EUNSUPPORTED, "%s: tensor %s has %u dimensions", s->path, name, t->n_dims);
        memset(view, 0, sizeof *view);
        view->struct_size = sizeof *view;
        view->dtype = t->dtype;
        view->n_dims = t->n_dims;
        for (uint32_t d = 0; d < IFX_MAX_DIMS; d++)
            view->dims[d] = d < t->n_dims ? t->dims[d] : 1;
        view->data = s->map + s->data_offset + t->begin;
        view->data_bytes = t->end - t->begin;
        return IFX_OK;
    }
    return IFX_ENOTFOUND;
}
