/* SPDX-License-Identifier: Apache-2.0
 *
 * registry.c - the plugins of a process: what lies in the search path, what the user asked for, and from identity to plugin.
 */
#include "config.h"
#include "registry_internal.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ENTRIES 4096u

/* ---- entries ---- */

static void entry_free(struct registry_entry *e)
{
    if (e == NULL)
        return;
    registry_options_free(e->pub.options);
    base_free(e->path);
    base_free(e->name);
    base_free(e->refusal);
    base_free(e->ops);
    base_free(e);
}

/* Makes an entry of a file and judges its magic block; a refusal is recorded in the entry. */
static int32_t entry_add(struct registry *r, const char *path, uint32_t rank, struct registry_entry **out)
{
    const char *file = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    size_t n = strlen(file);
    if (r->n_entries >= MAX_ENTRIES)
        return base_error(IFX_ELIMIT, "more than %u plugin files", MAX_ENTRIES);
    void *grown = base_realloc(r->entries, r->n_entries + 1, sizeof(void *));
    if (grown == NULL)
        return IFX_ENOMEM;
    r->entries = grown;
    struct registry_entry *e = base_calloc(1, sizeof *e);
    if (e == NULL)
        return IFX_ENOMEM;
    e->rank = rank;
    e->path = base_strdup(path);
    e->name = base_format("%.*s", (int)(n > 3 && strcmp(file + n - 3, ".so") == 0 ? n - 3 : n), file);
    if (e->path == NULL || e->name == NULL) {
        entry_free(e);
        return IFX_ENOMEM;
    }
    e->pub.path = e->path;
    e->pub.name = e->name;
    int32_t status = registry_read_magic(path, &e->pub.magic);
    if (status == IFX_OK)
        status = registry_judge_magic(&e->pub.magic, file);
    if (status != IFX_OK)
        registry_entry_refuse(e, status);
    r->entries[r->n_entries++] = e;
    if (out != NULL)
        *out = e;
    return IFX_OK;
}

static int is_plugin_file(const struct dirent *d)
{
    size_t n = strlen(d->d_name);
    return d->d_name[0] != '.' && n > 3 && strcmp(d->d_name + n - 3, ".so") == 0;
}

static bool same_file(const char *a, const char *b)
{
    char *ra = realpath(a, NULL), *rb = realpath(b, NULL);
    bool same = strcmp(a, b) == 0 || (ra != NULL && rb != NULL && strcmp(ra, rb) == 0);
    free(ra);
    free(rb);
    return same;
}

static struct registry_entry *entry_by_path(const struct registry *r, const char *path)
{
    for (uint32_t i = 0; i < r->n_entries; i++)
        if (same_file(r->entries[i]->path, path))
            return r->entries[i];
    return NULL;
}

static int32_t scan_folder(struct registry *r, uint32_t rank)
{
    struct dirent **files;
    const char *folder = r->folders[rank];
    int n = scandir(folder, &files, is_plugin_file, alphasort);
    if (n < 0) {
        base_log(IFX_LOG_DEBUG, "plugin folder %s: %s", folder, strerror(errno));
        return IFX_OK;
    }
    int32_t status = IFX_OK;
    for (int i = 0; i < n; i++) {
        char *path = status == IFX_OK ? base_format("%s/%s", folder, files[i]->d_name) : NULL;
        if (path != NULL && entry_by_path(r, path) == NULL)
            status = entry_add(r, path, rank, NULL);
        else if (path == NULL && status == IFX_OK)
            status = IFX_ENOMEM;
        base_free(path);
        free(files[i]);
    }
    free(files);
    return status;
}

static int32_t scan(struct registry *r)
{
    int32_t status = IFX_OK;
    if (r->scanned)
        return IFX_OK;
    for (uint32_t i = 0; i < r->n_folders && status == IFX_OK; i++)
        status = scan_folder(r, i);
    r->scanned = status == IFX_OK;
    return status;
}

/* The plugin a name means: the one loaded, else the first of the search path that loads, else the first refused; NULL: none. */
static struct registry_entry *entry_by_name(struct registry *r, const char *name)
{
    struct registry_entry *refused = NULL;
    for (uint32_t i = 0; i < r->n_entries; i++)
        if (r->entries[i]->pub.loaded && strcmp(r->entries[i]->name, name) == 0)
            return r->entries[i];
    for (uint32_t i = 0; i < r->n_entries; i++) {
        struct registry_entry *e = r->entries[i];
        if (strcmp(e->name, name) != 0)
            continue;
        if (registry_entry_load(r, e) == IFX_OK)
            return e;
        if (refused == NULL)
            refused = e;
    }
    return refused;
}

/* ---- the registry ---- */

int32_t registry_create(const char *search_path, const char *config_path, struct base_pool *pool,
                        uint32_t cpu_level, struct registry **out)
{
    *out = NULL;
    struct registry *r = base_calloc(1, sizeof *r);
    if (r == NULL)
        return IFX_ENOMEM;
    r->pool = pool;
    r->cpu_level = cpu_level;
    registry_host_init(r);
    int32_t status = registry_folders(search_path, config_path, &r->folders, &r->n_folders);
    if (status != IFX_OK) {
        registry_destroy(r);
        return status;
    }
    *out = r;
    return IFX_OK;
}

void registry_destroy(struct registry *r)
{
    if (r == NULL)
        return;
    for (uint32_t i = 0; i < r->n_entries; i++)
        entry_free(r->entries[i]);
    for (uint32_t i = 0; i < r->n_old_options; i++)
        registry_options_free(r->old_options[i]);
    for (uint32_t i = 0; r->folders != NULL && i < r->n_folders; i++)
        base_free(r->folders[i]);
    base_free(r->folders);
    base_free(r->entries);
    base_free(r->old_options);
    base_free(r->list);
    base_free(r);
}

const char *const *registry_search_path(struct registry *r)
{
    return (const char *const *)r->folders;
}

/* ---- loading what the user names ---- */

static int32_t describe_path(const struct registry *r, struct base_buf *b)
{
    int32_t status = base_buf_addf(b, "%s", "");
    for (uint32_t i = 0; i < r->n_folders && status == IFX_OK; i++)
        status = base_buf_addf(b, "%s%s", i ? ", " : "", r->folders[i]);
    return status;
}

static int32_t unknown_name(const struct registry *r, const char *name)
{
    struct base_buf path = {0};
    const char *near = NULL;
    size_t len = strlen(name);
    const char **names = base_calloc(r->n_entries + 1, sizeof *names);
    int32_t status = names == NULL ? IFX_ENOMEM : describe_path(r, &path);
    if (status == IFX_OK) {
        for (uint32_t i = 0; i < r->n_entries; i++)
            names[i] = r->entries[i]->name;
        near = base_nearest(name, names);
        status = base_error(IFX_ENOTFOUND, "plugin %s: not found%s%s%s%s; searched %s", name,
                            near ? ", did you mean " : "", near ? near : "", near ? "?" : "",
                            len > 3 && strcmp(name + len - 3, ".so") == 0 ? " (a file's path needs a slash: ./NAME.so)" : "",
                            path.data);
    }
    base_free(names);
    base_buf_free(&path);
    return status;
}

static int32_t load_by_path(struct registry *r, const char *path, struct registry_entry **out)
{
    struct registry_entry *e = entry_by_path(r, path);
    int32_t status = e != NULL ? IFX_OK : entry_add(r, path, UINT32_MAX, &e);
    if (status != IFX_OK)
        return status;
    for (uint32_t i = 0; i < r->n_entries; i++) {
        const struct registry_entry *other = r->entries[i];
        if (other != e && other->pub.loaded && strcmp(other->name, e->name) == 0)
            return base_error(IFX_EINVAL, "plugin %s is loaded from %s; %s has the same name: keep one of them", e->name,
                              other->path, path);
    }
    status = registry_entry_load(r, e);
    *out = e;
    return status == IFX_OK ? status : base_error_prefix(status, "plugin %s", path);
}

static int32_t load_by_name(struct registry *r, const char *name, struct registry_entry **out)
{
    int32_t status = scan(r);
    if (status != IFX_OK)
        return status;
    struct registry_entry *e = entry_by_name(r, name);
    if (e == NULL)
        return unknown_name(r, name);
    if (e->pub.refusal != NULL)
        return base_error(IFX_EFORMAT, "plugin %s: %s", e->path, e->pub.refusal);
    *out = e;
    return IFX_OK;
}

/* Options given later replace earlier ones; the earlier are kept, since an open instance may hold them. */
static int32_t set_options(struct registry *r, struct registry_entry *e, const char *text)
{
    struct ifx_options *fresh;
    void *grown = base_realloc(r->old_options, r->n_old_options + 1, sizeof(void *));
    if (grown == NULL)
        return IFX_ENOMEM;
    r->old_options = grown;
    int32_t status = registry_options_parse(registry_option_table(&e->pub), e->name, text, &fresh);
    if (status != IFX_OK)
        return status;
    r->old_options[r->n_old_options++] = e->pub.options;
    e->pub.options = fresh;
    return IFX_OK;
}

/* Where the options of a spec begin: behind ".so" in a path, so that a comma in a folder's name is no harm. */
static const char *spec_options(const char *spec)
{
    if (strchr(spec, '/') != NULL)
        for (const char *p = strstr(spec, ".so"); p != NULL; p = strstr(p + 1, ".so"))
            if (p[3] == ',' || p[3] == 0)
                return p + 3;
    return spec + strcspn(spec, ",");
}

int32_t registry_load(struct registry *r, const char *spec, const struct registry_plugin **out)
{
    const char *options = spec_options(spec);
    struct registry_entry *e = NULL;
    if (out != NULL)
        *out = NULL;
    char *name = base_format("%.*s", (int)(options - spec), spec);
    if (name == NULL)
        return IFX_ENOMEM;
    int32_t status;
    if (name[0] == 0)
        status = base_error(IFX_EINVAL, "plugin \"%s\": a name or a path with a slash is needed", spec);
    else if (strchr(name, '/') != NULL)
        status = load_by_path(r, name, &e);
    else
        status = load_by_name(r, name, &e);
    if (status == IFX_OK && *options == ',')
        status = set_options(r, e, options + 1);
    if (status == IFX_OK) {
        e->given = true;
        if (out != NULL)
            *out = &e->pub;
    }
    base_free(name);
    return status;
}

/* ---- from identity to plugin ---- */

/* Loads what the naming convention says may serve the identity.  Refusals stay in the entries. */
static void load_candidates(struct registry *r, uint32_t kind, const char *identity)
{
    const char *prefix = registry_kind_name(kind);
    size_t n = strlen(prefix);
    for (uint32_t i = 0; i < r->n_entries; i++) {
        const char *name = r->entries[i]->name;
        if (strncmp(name, prefix, n) != 0 || name[n] != '_')
            continue;
        bool all = kind == IFX_KIND_MODEL || kind == IFX_KIND_DEVICE;
        if (all || strcmp(name + n + 1, identity) == 0)
            (void)entry_by_name(r, name);
    }
}

static int32_t not_found(const struct registry *r, uint32_t kind, const char *identity)
{
    const char *prefix = registry_kind_name(kind);
    size_t n = strlen(prefix);
    struct base_buf refused = {0}, present = {0}, path = {0};
    int32_t status = describe_path(r, &path);
    for (uint32_t i = 0; i < r->n_entries && status == IFX_OK; i++) {
        const struct registry_entry *e = r->entries[i];
        bool named = strncmp(e->name, prefix, n) == 0 && e->name[n] == '_';
        bool exact = named && strcmp(e->name + n + 1, identity) == 0;
        if (e->pub.refusal != NULL && named && (exact || kind == IFX_KIND_MODEL || kind == IFX_KIND_DEVICE))
            status = base_buf_addf(&refused, "; %s was refused: %s", e->path, e->pub.refusal);
        else if (e->pub.refusal == NULL && e->pub.magic.kind == kind &&
                 (present.data == NULL || strstr(present.data, e->name) == NULL))
            status = base_buf_addf(&present, "%s%s", present.len ? ", " : "", e->name);
    }
    if (status == IFX_OK)
        status = base_error(IFX_ENOTFOUND,
                            "no plugin for %s \"%s\"%s; there is: %s; searched %s; --plugin ./FILE.so loads one from elsewhere",
                            prefix, identity, refused.data ? refused.data : "", present.data ? present.data : "none",
                            path.data);
    base_buf_free(&refused);
    base_buf_free(&present);
    base_buf_free(&path);
    return status;
}

int32_t registry_find(struct registry *r, uint32_t kind, const char *identity, const struct registry_plugin **out)
{
    *out = NULL;
    int32_t status = scan(r);
    if (status != IFX_OK)
        return status;
    load_candidates(r, kind, identity);
    const struct registry_entry *found = NULL;
    for (uint32_t i = 0; i < r->n_entries; i++) {
        const struct registry_entry *e = r->entries[i];
        if (!registry_claims(e, kind, identity))
            continue;
        if (found != NULL)
            return base_error(IFX_EINVAL, "%s \"%s\" is claimed by two plugins, %s and %s: remove one or name only one",
                              registry_kind_name(kind), identity, found->path, e->path);
        found = e;
    }
    if (found == NULL)
        return not_found(r, kind, identity);
    *out = &found->pub;
    return IFX_OK;
}

/* ---- listing ---- */

static int by_name(const void *a, const void *b)
{
    const struct registry_entry *x = *(const struct registry_entry *const *)a;
    const struct registry_entry *y = *(const struct registry_entry *const *)b;
    int c = strcmp(x->name, y->name);
    return c != 0 ? c : x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* A later file of a name that is taken is not loaded; it is told why. */
static void load_for_list(struct registry *r, struct registry_entry *e)
{
    const struct registry_entry *used = entry_by_name(r, e->name);
    if (used != NULL && used != e && used->pub.loaded && e->pub.refusal == NULL) {
        base_error(IFX_EINVAL, "not used: %s has the same name and comes first", used->path);
        registry_entry_refuse(e, IFX_EINVAL);
    }
}

int32_t registry_list(struct registry *r, const struct registry_plugin *const **list, uint32_t *count)
{
    int32_t status = scan(r);
    if (status != IFX_OK)
        return status;
    /* Only loading tells whether libraries are missing or symbols undefined. */
    for (uint32_t i = 0; i < r->n_entries; i++)
        load_for_list(r, r->entries[i]);
    struct registry_entry **sorted = base_calloc(r->n_entries, sizeof *sorted);
    const struct registry_plugin **fresh = base_realloc(r->list, r->n_entries + 1, sizeof *fresh);
    if (fresh != NULL)
        r->list = fresh;
    if (sorted != NULL && fresh != NULL) {
        if (r->n_entries > 0)
            memcpy(sorted, r->entries, r->n_entries * sizeof *sorted);
        qsort(sorted, r->n_entries, sizeof *sorted, by_name);
        for (uint32_t i = 0; i < r->n_entries; i++)
            r->list[i] = &sorted[i]->pub;
        *list = r->list;
        *count = r->n_entries;
    } else {
        status = IFX_ENOMEM;
    }
    base_free(sorted);
    return status;
}
