/* SPDX-License-Identifier: Apache-2.0 */
#include "variant.h"

#include <infernix/numerics.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void variant_load(struct variant *v, const char *checkpoint)
{
    struct artifact *a;
    uint64_t bytes;
    memset(v, 0, sizeof *v);
    OK(artifact_open(checkpoint, &a));
    v->config = json_loads(artifact_asset(a, "config.json", &bytes), 0, NULL);
    const char *generation = artifact_asset(a, "generation_config.json", &bytes);
    v->generation = generation ? json_loads(generation, 0, NULL) : NULL;
    for (uint64_t i = 0; i < artifact_entry_count(a); i++) {
        const struct artifact_entry *e = artifact_entry_at(a, i);
        FILE *f = fopen(e->file, "rb");
        if (!f) {
            char path[2048];
            snprintf(path, sizeof path, "%s/%s", checkpoint, e->file);
            f = fopen(path, "rb");
        }
        assert_non_null(f);
        uint8_t *data = base_calloc(e->bytes + 1, 1);
        assert_int_equal(fseek(f, (long)e->offset, SEEK_SET), 0);
        assert_int_equal(fread(data, 1, e->bytes, f), e->bytes);
        fclose(f);
        variant_add(v, e->stored_name, e->dtype_text, e->n_dims, e->dims, data, e->bytes);
        base_free(data);
    }
    artifact_close(a);
}

void variant_free(struct variant *v)
{
    for (uint64_t i = 0; i < v->n; i++)
        base_free(v->t[i].data);
    base_free(v->t);
    json_decref(v->config);
    json_decref(v->generation);
    memset(v, 0, sizeof *v);
}

struct vt *variant_add(struct variant *v, const char *name, const char *dtype, uint32_t n_dims, const uint64_t *dims, const void *data,
                       uint64_t bytes)
{
    v->t = base_realloc(v->t, v->n + 1, sizeof *v->t);
    struct vt *t = &v->t[v->n++];
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    t->n_dims = n_dims;
    for (uint32_t i = 0; i < n_dims; i++)
        t->dims[i] = dims[i];
    t->data = base_calloc(bytes + 1, 1);
    memcpy(t->data, data, bytes);
    t->bytes = bytes;
    return t;
}

struct vt *variant_find(struct variant *v, const char *name)
{
    for (uint64_t i = 0; i < v->n; i++)
        if (strcmp(v->t[i].name, name) == 0)
            return &v->t[i];
    FAIL("no tensor %s in the variant", name);
    return NULL;
}

void variant_drop(struct variant *v, const char *name)
{
    struct vt *t = variant_find(v, name);
    base_free(t->data);
    *t = v->t[--v->n];
}

static void write_json(const json_t *json, const char *folder, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(json_dump_file(json, path, JSON_INDENT(1)), 0);
}

void variant_save(const struct variant *v, const char *folder)
{
    char path[1024];
    struct base_buf header = {0};
    uint64_t offset = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    OK(base_buf_addf(&header, "{"));
    for (uint64_t i = 0; i < v->n; i++) {
        const struct vt *t = &v->t[i];
        OK(base_buf_addf(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "", t->name, t->dtype));
        for (uint32_t d = 0; d < t->n_dims; d++)
            OK(base_buf_addf(&header, "%s%" PRIu64, d ? "," : "", t->dims[d]));
        OK(base_buf_addf(&header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset, offset + t->bytes));
        offset += t->bytes;
    }
    OK(base_buf_addf(&header, "}"));
    while (header.len % 8)
        OK(base_buf_addf(&header, " "));
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(&header.len, 8, 1, f);
    fwrite(header.data, 1, header.len, f);
    for (uint64_t i = 0; i < v->n; i++)
        fwrite(v->t[i].data, 1, v->t[i].bytes, f);
    for (uint64_t i = 0; i < v->trailing; i++)
        fputc(0, f);
    assert_int_equal(fclose(f), 0);
    base_buf_free(&header);
    write_json(v->config, folder, "config.json");
    if (v->generation)
        write_json(v->generation, folder, "generation_config.json");
}

void variant_rename(struct variant *v, const char *prefix, const char *head)
{
    for (uint64_t i = 0; i < v->n; i++) {
        char name[320];
        struct vt *t = &v->t[i];
        if (strncmp(t->name, "model.", 6) == 0)
            snprintf(name, sizeof name, "%s%s", prefix, t->name + 6);
        else if (strcmp(t->name, "lm_head.weight") == 0)
            snprintf(name, sizeof name, "%s", head);
        else
            continue;
        snprintf(t->name, sizeof t->name, "%.150s", name);
    }
}

void variant_nest(struct variant *v, const char *architecture)
{
    json_t *outer = json_object(), *names = json_array();
    json_array_append_new(names, json_string(architecture));
    json_object_set_new(outer, "architectures", names);
    json_object_del(v->config, "architectures");
    json_object_set(outer, "text_config", v->config);
    json_decref(v->config);
    v->config = outer;
}

static void split(struct variant *v, const struct vt *fused, const char *stem, const char *part, uint64_t row0, uint64_t rows)
{
    uint64_t dims[2] = {rows, fused->dims[2]}, row_bytes = fused->dims[2] * 2;
    struct vt from = *fused; /* adding moves the array */
    for (uint64_t e = 0; e < from.dims[0]; e++) {
        char name[256];
        snprintf(name, sizeof name, "%s.%" PRIu64 ".%s.weight", stem, e, part);
        variant_add(v, name, "BF16", 2, dims, from.data + (e * from.dims[1] + row0) * row_bytes, rows * row_bytes);
    }
}

void variant_unfuse(struct variant *v, uint32_t layer_from)
{
    for (uint32_t layer = layer_from;; layer++) {
        char stem[128], name[256];
        bool found = false;
        snprintf(stem, sizeof stem, "model.layers.%u.mlp.experts", layer);
        snprintf(name, sizeof name, "%s.gate_up_proj", stem);
        for (uint64_t i = 0; i < v->n; i++)
            found |= strcmp(v->t[i].name, name) == 0;
        if (!found)
            return;
        struct vt gate_up = *variant_find(v, name);
        split(v, &gate_up, stem, "gate_proj", 0, gate_up.dims[1] / 2);
        split(v, &gate_up, stem, "up_proj", gate_up.dims[1] / 2, gate_up.dims[1] / 2);
        variant_drop(v, name);
        snprintf(name, sizeof name, "%s.down_proj", stem);
        struct vt down = *variant_find(v, name);
        split(v, &down, stem, "down_proj", 0, down.dims[1]);
        variant_drop(v, name);
    }
}

void vt_set(struct vt *t, uint64_t index, float value)
{
    uint16_t h = ifx_f32_to_bf16(value);
    assert_string_equal(t->dtype, "BF16");
    memcpy(t->data + index * 2, &h, 2);
}

float vt_get(const struct vt *t, uint64_t index)
{
    uint16_t h;
    assert_string_equal(t->dtype, "BF16");
    memcpy(&h, t->data + index * 2, 2);
    return ifx_bf16_to_f32(h);
}

void vt_fill(struct vt *t, float value)
{
    for (uint64_t i = 0; i < t->bytes / 2; i++)
        vt_set(t, i, value);
}
