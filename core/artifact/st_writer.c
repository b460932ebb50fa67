/* SPDX-License-Identifier: Apache-2.0
 *
 * st_writer.c - safetensors out: the header is known once all tensors are declared, the data follows in that order.
 */
#include "config.h"
#include "artifact_internal.h"
#include <string.h>

typedef unsigned long long ull;

struct st_writer {
    struct base_out *out;
    char *path;
    json_t *header;
    struct declared {
        char *name;
        uint64_t bytes;
    } *list;
    uint64_t n, next;    /* declared, written */
    uint64_t data_bytes; /* declared */
    bool failed;
};

static void writer_free(struct st_writer *w)
{
    for (uint64_t i = 0; i < w->n; i++)
        base_free(w->list[i].name);
    base_free(w->list);
    json_decref(w->header);
    base_free(w->path);
    base_free(w);
}

int32_t st_writer_open(const char *path, bool force, struct st_writer **out)
{
    *out = NULL;
    struct st_writer *w = base_calloc(1, sizeof *w);
    if (w == NULL)
        return IFX_ENOMEM;
    w->path = base_strdup(path);
    w->header = json_object();
    int32_t status = w->path && w->header ? base_out_open(path, force, &w->out) : base_error(IFX_ENOMEM, "out of memory");
    if (status != IFX_OK) {
        writer_free(w);
        return status;
    }
    *out = w;
    return IFX_OK;
}

int32_t st_writer_declare(struct st_writer *w, const char *name, uint32_t dtype, uint32_t n_dims, const uint64_t *dims)
{
    uint64_t count, bytes, end;
    if (w->next > 0)
        return base_error(IFX_EINTERNAL, "%s: tensor %s declared after data was written", w->path, name);
    if (art_dtype_bytes(dtype) == 0 || n_dims > ARTIFACT_MAX_DIMS || json_object_get(w->header, name) != NULL ||
        strcmp(name, "__metadata__") == 0 || !art_count(dims, n_dims, &count) ||
        !base_mul_u64(count, art_dtype_bytes(dtype), &bytes) || !base_add_u64(w->data_bytes, bytes, &end) ||
        end > INT64_MAX)
        return base_error(IFX_EINTERNAL, "%s: tensor %s: declared twice, or of impossible type or shape", w->path, name);
    struct declared *grown = base_realloc(w->list, w->n + 1, sizeof *grown);
    if (grown == NULL)
        return IFX_ENOMEM;
    w->list = grown;
    grown[w->n] = (struct declared){.name = base_strdup(name), .bytes = bytes};
    if (grown[w->n].name == NULL)
        return IFX_ENOMEM;
    w->n++;
    json_t *shape = json_array();
    for (uint32_t i = 0; i < n_dims; i++)
        json_array_append_new(shape, json_integer((json_int_t)dims[i]));
    json_t *t = json_pack("{s:s, s:o, s:[I,I]}", "dtype", art_dtype_text(dtype), "shape", shape, "data_offsets",
                          (json_int_t)w->data_bytes, (json_int_t)end);
    w->data_bytes = end;
    return json_object_set_new(w->header, name, t) == 0 ? IFX_OK : base_error(IFX_ENOMEM, "out of memory");
}

/* Padded with spaces, so that the data starts at a multiple of 8. */
static int32_t write_header(struct st_writer *w)
{
    uint8_t length[8];
    int32_t status = IFX_ENOMEM;
    char *text = json_dumps(w->header, JSON_COMPACT);
    if (text == NULL)
        return base_error(IFX_ENOMEM, "out of memory");
    uint64_t n = strlen(text), padded = (n + 7) / 8 * 8;
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(padded >> (8 * i));
    status = base_out_write(w->out, length, 8);
    if (status == IFX_OK)
        status = base_out_write(w->out, text, n);
    if (status == IFX_OK)
        status = base_out_write(w->out, "        ", padded - n);
    base_free(text); /* jansson's allocator is malloc's */
    return status;
}

int32_t st_writer_write(struct st_writer *w, const char *name, const void *data, uint64_t bytes)
{
    int32_t status = IFX_OK;
    if (w->next >= w->n || strcmp(w->list[w->next].name, name) != 0 || w->list[w->next].bytes != bytes) {
        w->failed = true;
        return base_error(IFX_EINTERNAL, "%s: tensor %s (%llu bytes) is not what was declared next", w->path, name,
                          (ull)bytes);
    }
    if (w->next == 0)
        status = write_header(w);
    if (status == IFX_OK)
        status = base_out_write(w->out, data, bytes);
    w->next++;
    w->failed = w->failed || status != IFX_OK;
    return status;
}

int32_t st_writer_close(struct st_writer **pw, bool commit)
{
    struct st_writer *w = *pw;
    int32_t status = IFX_OK;
    *pw = NULL;
    if (w == NULL)
        return IFX_OK;
    if (commit && w->n == 0)
        status = write_header(w);
    if (commit && (w->failed || w->next != w->n))
        status = base_error(IFX_EINTERNAL, "%s: %llu of %llu tensors were written", w->path, (ull)w->next, (ull)w->n);
    if (commit && status == IFX_OK)
        status = base_out_commit(&w->out);
    base_out_abort(&w->out);
    writer_free(w);
    return status;
}
