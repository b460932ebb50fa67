/* SPDX-License-Identifier: Apache-2.0
 *
 * open.c - a tokenizer from a path: a folder, a tokenizer.json, or a model that has one inside.
 */
#include "config.h"
#include "artifact.h"
#include "text_internal.h"
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_JSON_BYTES (256u << 20)

/* A file beside others; *data stays NULL when it may be missing and is. */
static int32_t read_beside(const char *folder, uint64_t folder_n, const char *name, bool needed, char **data, uint64_t *bytes)
{
    char *path = base_format("%.*s%s%s", (int)folder_n, folder, folder_n ? "/" : "", name);
    *data = NULL;
    *bytes = 0;
    if (path == NULL)
        return IFX_ENOMEM;
    int32_t st = !needed && access(path, F_OK) != 0 ? IFX_OK : base_read_file(path, MAX_JSON_BYTES, data, bytes);
    base_free(path);
    return st;
}

static int32_t use_template(struct text_tokenizer *t, const char *text, uint64_t bytes)
{
    if (text == NULL)
        return IFX_OK;
    char *copy = base_format("%.*s", (int)bytes, text);
    if (copy == NULL)
        return IFX_ENOMEM;
    base_free(t->chat_template);
    t->chat_template = copy;
    return IFX_OK;
}

static int32_t create(const char *const data[3], const uint64_t bytes[3], struct text_tokenizer **out)
{
    int32_t st = text_tokenizer_create(data[0], bytes[0], data[1], bytes[1], out);
    /* chat_template.jinja counts more than the copy in tokenizer_config.json, as in the reference library. */
    if (st == IFX_OK && (st = use_template(*out, data[2], bytes[2])) != IFX_OK) {
        text_tokenizer_destroy(*out);
        *out = NULL;
    }
    return st;
}

static int32_t open_folder(const char *path, uint64_t folder_n, const char *json_name, struct text_tokenizer **out)
{
    const char *const names[3] = {json_name, "tokenizer_config.json", "chat_template.jinja"};
    char *data[3] = {NULL, NULL, NULL};
    uint64_t bytes[3] = {0, 0, 0};
    int32_t st = IFX_OK;
    for (uint32_t i = 0; i < 3 && st == IFX_OK; i++)
        st = read_beside(path, folder_n, names[i], i == 0, &data[i], &bytes[i]);
    if (st == IFX_OK) {
        const char *const view[3] = {data[0], data[1], data[2]};
        st = create(view, bytes, out);
        if (st != IFX_OK)
            base_error_prefix(st, "%s", path);
    }
    for (uint32_t i = 0; i < 3; i++)
        base_free(data[i]);
    return st;
}

static int32_t open_model(const char *path, struct text_tokenizer **out)
{
    struct artifact *a = NULL;
    const char *data[3];
    uint64_t bytes[3] = {0, 0, 0};
    int32_t st = artifact_open(path, &a);
    if (st != IFX_OK)
        return st;
    data[0] = artifact_asset(a, "tokenizer.json", &bytes[0]);
    data[1] = artifact_asset(a, "tokenizer_config.json", &bytes[1]);
    data[2] = artifact_asset(a, "chat_template.jinja", &bytes[2]);
    if (data[0] == NULL)
        st = base_error(IFX_ENOTFOUND, "%s: the model has no tokenizer.json", path);
    else if ((st = create(data, bytes, out)) != IFX_OK)
        base_error_prefix(st, "%s", path);
    artifact_close(a);
    return st;
}

int32_t text_tokenizer_open(const char *path, struct text_tokenizer **out)
{
    struct stat info;
    uint64_t n = strlen(path);
    *out = NULL;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return open_folder(path, n, "tokenizer.json", out);
    if (n >= 5 && strcmp(path + n - 5, ".json") == 0) {
        const char *slash = strrchr(path, '/');
        return open_folder(path, slash ? (uint64_t)(slash - path) : 0, slash ? slash + 1 : path, out);
    }
    return open_model(path, out);
}
