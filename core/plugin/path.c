/* SPDX-License-Identifier: Apache-2.0
 *
 * path.c - the folders where plugins are looked for.
 */
#include "config.h"
#include "registry_internal.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_FOLDERS 64u

struct folders {
    char **list;
    uint32_t count;
};

/* Takes `folder`.  One that is there already under any name is left out. */
static int32_t add(struct folders *f, char *folder)
{
    if (folder == NULL)
        return IFX_ENOMEM;
    char *real = realpath(folder, NULL);
    bool seen = f->count + 1 >= MAX_FOLDERS;
    for (uint32_t i = 0; i < f->count && !seen; i++) {
        char *other = realpath(f->list[i], NULL);
        seen = strcmp(f->list[i], folder) == 0 || (real != NULL && other != NULL && strcmp(real, other) == 0);
        free(other);
    }
    free(real);
    if (seen)
        base_free(folder);
    else
        f->list[f->count++] = folder;
    return IFX_OK;
}

static int32_t add_colon_list(struct folders *f, const char *text)
{
    int32_t status = IFX_OK;
    while (text != NULL && status == IFX_OK) {
        const char *colon = strchr(text, ':');
        int n = colon ? (int)(colon - text) : (int)strlen(text);
        if (n > 0) /* an empty part is not the working folder: nobody means that */
            status = add(f, base_format("%.*s", n, text));
        text = colon ? colon + 1 : NULL;
    }
    return status;
}

char *registry_relative(const char *from, const char *to)
{
    size_t common = 0, i = 0;
    for (; from[i] != 0 && from[i] == to[i]; i++)
        if (from[i] == '/')
            common = i;
    if ((from[i] == 0 || from[i] == '/') && (to[i] == 0 || to[i] == '/'))
        common = i;
    struct base_buf b = {0};
    for (const char *p = from + common; *p != 0; p++)
        if (*p == '/' && p[1] != '/' && p[1] != 0 && base_buf_addf(&b, "../") != IFX_OK)
            goto fail;
    while (to[common] == '/')
        common++;
    if (base_buf_addf(&b, "%s", to + common) != IFX_OK)
        goto fail;
    return b.data;
fail:
    base_buf_free(&b);
    return NULL;
}

/* Takes `path`; the folder it leads to, for people to read, or itself where there is none. */
static char *without_dots(char *path)
{
    char *real = path != NULL ? realpath(path, NULL) : NULL;
    if (real == NULL)
        return path;
    base_free(path);
    return real;
}

/* Beside the executable: where a moved or staged prefix has them, and the build tree. */
static int32_t add_beside_program(struct folders *f)
{
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0)
        return IFX_OK;
    exe[n] = 0;
    char *slash = strrchr(exe, '/');
    if (slash == NULL)
        return IFX_OK;
    *slash = 0;
    char *tail = registry_relative(IFX_BINDIR, IFX_PLUGINDIR);
    if (tail == NULL)
        return IFX_ENOMEM;
    int32_t status = add(f, without_dots(base_format("%s/%s", exe, tail)));
    if (status == IFX_OK)
        status = add(f, without_dots(base_format("%s/../lib/infernix", exe)));
    base_free(tail);
    return status;
}

int32_t registry_folders(const char *search_path, const char *config_path, char ***out, uint32_t *count)
{
    struct folders f = {base_calloc(MAX_FOLDERS, sizeof *f.list), 0};
    if (f.list == NULL)
        return IFX_ENOMEM;
    int32_t status = add_colon_list(&f, search_path);
    if (status == IFX_OK)
        status = add_colon_list(&f, secure_getenv("INFERNIX_PLUGIN_PATH"));
    if (status == IFX_OK)
        status = add_colon_list(&f, config_path);
    if (status == IFX_OK)
        status = add_beside_program(&f);
    if (status == IFX_OK)
        status = add(&f, base_strdup(IFX_PLUGINDIR));
    *out = f.list;
    *count = f.count;
    return status;
}
