/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoint.c - a Hugging Face checkpoint folder: config, shards with or without an index, text assets.
 */
#include "config.h"
#include "artifact_internal.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define CONFIG_MAX (16u << 20)
#define ASSET_MAX  (256u << 20)
#define INDEX_MAX  (256u << 20)
#define SHARDS_MAX 10000u

struct shard {
    char *name; /* file name; NULL path part */
    struct st_file *file;
};
struct opening {
    struct artifact *a;
    struct art_faults *f;
    struct shard *shards;
    uint64_t n_shards;
    json_t *index; /* or NULL: one file */
};

static bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

/* A name from the index is text until it is proved to be a plain file name: no path leads out of the folder. */
static const char *bad_file_name(const char *name)
{
    if (name == NULL)
        return "is no text";
    if (*name == 0)
        return "is empty";
    if (strchr(name, '/') != NULL || strchr(name, '\\') != NULL || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return "is not a plain file name (no path is allowed there)";
    if (strlen(name) > 255)
        return "is longer than 255 bytes";
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return "has control characters";
    return NULL;
}

static int32_t add_shard(struct opening *o, const char *name)
{
    if (o->n_shards == SHARDS_MAX)
        return base_error(IFX_EFORMAT, "%s: the index names more than %u files", o->a->path, SHARDS_MAX);
    struct shard *grown = base_realloc(o->shards, o->n_shards + 1, sizeof *grown);
    if (grown == NULL)
        return IFX_ENOMEM;
    o->shards = grown;
    grown[o->n_shards] = (struct shard){.name = base_strdup(name)};
    return grown[o->n_shards++].name ? IFX_OK : IFX_ENOMEM;
}

static struct shard *find_shard(struct opening *o, const char *name)
{
    for (uint64_t i = 0; i < o->n_shards; i++)
        if (strcmp(o->shards[i].name, name) == 0)
            return &o->shards[i];
    return NULL;
}

static int32_t read_index(struct opening *o, const char *path)
{
    char *text;
    uint64_t bytes;
    const char *key;
    json_t *v;
    int32_t status = base_read_file(path, INDEX_MAX, &text, &bytes);
    if (status != IFX_OK)
        return status;
    const char *impostor = art_impostor(text, bytes);
    if (impostor != NULL)
        status = base_error(IFX_EFORMAT, "%s: is %s", path, impostor);
    else
        status = art_json_parse(text, bytes, path, 0, NULL, &o->index);
    base_free(text);
    if (status != IFX_OK)
        return status;
    json_t *map = json_object_get(o->index, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        return base_error(IFX_EFORMAT, "%s: \"weight_map\" is missing, empty or no object", path);
    json_object_foreach(map, key, v) {
        const char *name = json_string_value(v), *why = bad_file_name(name);
        if (why != NULL)
            art_fault(o->f, "%s: tensor %.200s: the file name \"%.100s\" %s", path, key, name ? name : "", why);
        else if (find_shard(o, name) == NULL && (status = add_shard(o, name)) != IFX_OK)
            return status;
    }
    return IFX_OK;
}

/* What the index says must be what the headers say. */
static void check_index(struct opening *o)
{
    const char *key;
    json_t *v, *map = json_object_get(o->index, "weight_map");
    json_t *have = json_object();
    for (uint64_t i = 0; have != NULL && i < o->n_shards; i++)
        for (uint64_t t = 0; o->shards[i].file != NULL && t < o->shards[i].file->n; t++)
            json_object_set_new(have, o->shards[i].file->tensors[t].name, json_integer((json_int_t)i));
    json_object_foreach(map, key, v) {
        const struct shard *s = find_shard(o, json_string_value(v));
        const json_t *in = json_object_get(have, key);
        if (s == NULL || s->file == NULL)
            continue; /* that file has its own fault */
        if (in == NULL)
            art_fault(o->f, "%s: tensor %s is not in it, though the index says so", s->file->path, key);
        else if (&o->shards[json_integer_value(in)] != s)
            art_fault(o->f, "%s: tensor %s is not in it, though the index says so: it is in %s", s->file->path, key,
                      o->shards[json_integer_value(in)].name);
    }
    json_decref(have);
}

static void open_shard(struct opening *o, struct shard *s)
{
    const void *map;
    uint64_t bytes;
    char *path = base_format("%s/%s", o->a->folder, s->name);
    if (path == NULL) {
        o->f->count++;
        o->f->out_of_memory = true;
        return;
    }
    if (base_map_file(path, &map, &bytes, NULL) != IFX_OK) {
        art_fault(o->f, "%s", base_error_text());
    } else {
        st_parse(path, map, bytes, &s->file, o->f);
        if (s->file == NULL)
            munmap((void *)(uintptr_t)map, bytes);
        else
            s->file->owns_map = true;
    }
    base_free(path);
}

static void fill_tensor(struct art_tensor *t, const struct st_file *file, const struct st_tensor *s)
{
    t->pub.stored_name = s->name;
    t->pub.logical_name = art_logical_name(s->name);
    t->pub.dtype = s->dtype;
    t->pub.dtype_text = s->dtype_text;
    t->pub.n_dims = s->n_dims;
    for (uint32_t d = 0; d < ARTIFACT_MAX_DIMS; d++)
        t->pub.dims[d] = d < s->n_dims ? s->dims[d] : 1;
    t->pub.bytes = s->end - s->begin;
    t->pub.file = file->path;
    t->pub.offset = file->data_offset + s->begin;
    t->data = file->map + t->pub.offset;
    t->section = -1;
}

/* Hands the opened files over to the artifact and lists their tensors. */
static int32_t take_files(struct opening *o)
{
    struct artifact *a = o->a;
    a->files = base_calloc(o->n_shards, sizeof *a->files);
    if (a->files == NULL)
        return IFX_ENOMEM;
    for (uint64_t i = 0; i < o->n_shards; i++) {
        a->files[a->n_files++] = o->shards[i].file;
        o->shards[i].file = NULL;
        a->n_tensors += a->files[i]->n;
    }
    a->tensors = base_calloc(a->n_tensors, sizeof *a->tensors);
    if (a->tensors == NULL)
        return IFX_ENOMEM;
    uint64_t at = 0;
    for (uint64_t i = 0; i < a->n_files; i++)
        for (uint64_t t = 0; t < a->files[i]->n; t++)
            fill_tensor(&a->tensors[at++], a->files[i], &a->files[i]->tensors[t]);
    return art_index_names(a, o->f);
}

static int32_t open_config(struct artifact *a)
{
    char *text, *path = base_format("%s/config.json", a->folder);
    uint64_t bytes;
    if (path == NULL)
        return IFX_ENOMEM;
    int32_t status = base_read_file(path, CONFIG_MAX, &text, &bytes);
    if (status == IFX_ENOTFOUND)
        status = base_error(status, "%s: no config.json in it: a checkpoint folder has config.json beside its "
                            "*.safetensors", a->folder);
    if (status == IFX_OK) {
        status = art_config_open(a, text, bytes, path);
        a->assets[0].owned = text;
        a->assets[0].data = text;
        a->assets[0].bytes = bytes;
    }
    base_free(path);
    return status;
}

static int32_t open_assets(struct artifact *a, struct art_faults *f)
{
    for (uint32_t i = 1; i < ART_ASSETS; i++) {
        struct art_asset *asset = &a->assets[i];
        char *path = base_format("%s/%s", a->folder, asset->name);
        if (path == NULL)
            return IFX_ENOMEM;
        if (exists(path)) {
            const char *impostor = NULL;
            if (base_read_file(path, ASSET_MAX, &asset->owned, &asset->bytes) != IFX_OK)
                art_fault(f, "%s", base_error_text());
            else if (strstr(asset->name, ".json") != NULL &&
                     (impostor = art_impostor(asset->owned, asset->bytes)) != NULL)
                art_fault(f, "%s: is %s", path, impostor);
            asset->data = asset->owned;
        }
        base_free(path);
    }
    return IFX_OK;
}

static int32_t find_shards(struct opening *o, const char *single)
{
    char *index = base_format("%s/model.safetensors.index.json", o->a->folder);
    int32_t status = index ? IFX_OK : IFX_ENOMEM;
    if (status != IFX_OK)
        return status;
    if (single != NULL)
        status = add_shard(o, single);
    else if (exists(index))
        status = read_index(o, index);
    else
        status = add_shard(o, "model.safetensors");
    base_free(index);
    return status;
}

/* single: the one file to read, in a->folder, or NULL. */
int32_t art_checkpoint_open(struct artifact *a, const char *single)
{
    struct art_faults f = {0};
    struct opening o = {.a = a, .f = &f};
    int32_t status = open_config(a);
    if (status != IFX_OK && status != IFX_ENOMEM) { /* the shards may have faults to tell as well */
        art_fault(&f, "%s", base_error_text());
        status = IFX_OK;
    }
    if (status == IFX_OK)
        status = find_shards(&o, single);
    if (status != IFX_OK && status != IFX_ENOMEM) {
        art_fault(&f, "%s", base_error_text());
        status = IFX_OK;
    }
    for (uint64_t i = 0; status == IFX_OK && i < o.n_shards; i++)
        open_shard(&o, &o.shards[i]);
    if (status == IFX_OK && o.index != NULL)
        check_index(&o);
    if (status == IFX_OK)
        status = open_assets(a, &f);
    if (status == IFX_OK && f.count == 0)
        status = take_files(&o);
    if (status == IFX_OK && f.count == 0)
        art_check_quant_config(a, &f);
    for (uint64_t i = 0; i < o.n_shards; i++) {
        st_close(o.shards[i].file);
        base_free(o.shards[i].name);
    }
    base_free(o.shards);
    json_decref(o.index);
    if (status != IFX_OK) {
        base_buf_free(&f.text);
        return status;
    }
    return art_faults_end(&f, IFX_EFORMAT, a->path);
}
