/* SPDX-License-Identifier: Apache-2.0
 *
 * artifact.c - opening by what the path is; everything that both kinds of artifact share.
 */
#include "config.h"
#include "artifact_internal.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

static const char *const asset_names[ART_ASSETS] = {"config.json", "tokenizer.json", "tokenizer_config.json",
                                                    "generation_config.json", "chat_template.jinja"};

static bool ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && strcmp(s + n - m, suffix) == 0;
}

static int32_t open_file(struct artifact *a)
{
    const void *map;
    uint64_t bytes;
    const char *slash = strrchr(a->path, '/');
    int32_t status = base_map_file(a->path, &map, &bytes, NULL);
    if (status != IFX_OK)
        return status;
    if (art_is_container(map, bytes)) {
        a->container = base_calloc(1, sizeof *a->container);
        if (a->container != NULL) {
            a->container->map = map;
            a->container->bytes = bytes;
            return art_container_open(a);
        }
        status = IFX_ENOMEM;
    } else if (ends_with(a->path, ".safetensors")) {
        a->folder = slash ? base_format("%.*s", slash > a->path ? (int)(slash - a->path) : 1, a->path)
                          : base_strdup(".");
        status = a->folder ? art_checkpoint_open(a, slash ? slash + 1 : a->path) : IFX_ENOMEM;
    } else {
        const char *impostor = art_impostor(map, bytes);
        status = impostor ? base_error(IFX_EFORMAT, "%s: is %s", a->path, impostor)
                          : base_error(IFX_EFORMAT, "%s: is neither a .infernix file (its first bytes say so) nor a "
                                       ".safetensors file nor a checkpoint folder", a->path);
    }
    munmap((void *)(uintptr_t)map, bytes);
    return status;
}

int32_t artifact_open(const char *path, struct artifact **out)
{
    struct stat st;
    *out = NULL;
    if (*path == 0)
        return base_error(IFX_EINVAL, "the model's path is empty");
    if (stat(path, &st) != 0)
        return base_error(IFX_ENOTFOUND, "%s: %s: a checkpoint folder or a .infernix file is needed", path,
                          strerror(errno));
    struct artifact *a = base_calloc(1, sizeof *a);
    if (a == NULL)
        return IFX_ENOMEM;
    int32_t status = IFX_ENOMEM;
    for (uint32_t i = 0; i < ART_ASSETS; i++)
        a->assets[i] = (struct art_asset){.name = asset_names[i], .section = -1};
    a->path = base_strdup(path);
    if (a->path == NULL)
        goto out;
    for (size_t n = strlen(a->path); n > 1 && a->path[n - 1] == '/'; n--)
        a->path[n - 1] = 0;
    if (S_ISDIR(st.st_mode)) {
        a->folder = base_strdup(a->path);
        status = a->folder ? art_checkpoint_open(a, NULL) : IFX_ENOMEM;
    } else {
        status = open_file(a);
    }
    if (status == IFX_OK)
        status = art_detect_experts(a);
out:
    if (status != IFX_OK) {
        artifact_close(a);
        return status;
    }
    *out = a;
    return IFX_OK;
}

void artifact_close(struct artifact *a)
{
    if (a == NULL)
        return;
    for (uint64_t i = 0; i < a->n_files; i++)
        st_close(a->files[i]);
    art_container_close(a->container);
    for (uint32_t i = 0; i < ART_ASSETS; i++)
        base_free(a->assets[i].owned);
    art_config_close(a);
    base_free(a->files);
    base_free(a->tensors);
    base_free(a->by_name);
    base_free(a->expert_format);
    base_free(a->folder);
    base_free(a->path);
    base_free(a);
}

bool artifact_is_container(const struct artifact *a)
{
    return a->container != NULL;
}

const char *artifact_path(const struct artifact *a)
{
    return a->path;
}

const struct ifx_config *artifact_config(const struct artifact *a)
{
    return &a->config_ops;
}

const char *artifact_architecture(const struct artifact *a)
{
    return a->architecture;
}

const char *artifact_asset(const struct artifact *a, const char *name, uint64_t *bytes)
{
    for (uint32_t i = 0; i < ART_ASSETS; i++)
        if (strcmp(a->assets[i].name, name) == 0) {
            if (bytes != NULL)
                *bytes = a->assets[i].bytes;
            return a->assets[i].data;
        }
    if (bytes != NULL)
        *bytes = 0;
    return NULL;
}

const char *artifact_expert_format(const struct artifact *a)
{
    return a->expert_format;
}

uint64_t artifact_entry_count(const struct artifact *a)
{
    return a->n_tensors;
}

const struct artifact_entry *artifact_entry_at(const struct artifact *a, uint64_t index)
{
    return index < a->n_tensors ? &a->tensors[index].pub : NULL;
}

int32_t artifact_tensor(struct artifact *a, const char *logical_name, struct ifx_tensor *view)
{
    const struct art_tensor *t = art_find(a, logical_name);
    if (t == NULL)
        return IFX_ENOTFOUND;
    if (t->pub.n_dims > IFX_MAX_DIMS)
        return base_error(IFX_EUNSUPPORTED, "%s: tensor %s has %u dimensions, %d are the most", t->pub.file,
                          t->pub.stored_name, t->pub.n_dims, IFX_MAX_DIMS);
    int32_t status = art_section_verify(a, t->section);
    if (status != IFX_OK)
        return status;
    memset(view, 0, sizeof *view);
    view->struct_size = sizeof *view;
    view->dtype = t->pub.dtype;
    view->n_dims = t->pub.n_dims;
    for (uint32_t d = 0; d < IFX_MAX_DIMS; d++)
        view->dims[d] = d < t->pub.n_dims ? t->pub.dims[d] : 1;
    view->data = t->data;
    view->data_bytes = t->pub.bytes;
    return IFX_OK;
}
