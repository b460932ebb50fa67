/* SPDX-License-Identifier: Apache-2.0
 *
 * names.c - from stored tensor names to logical ones, and finding tensors by them.
 */
#include "config.h"
#include "artifact_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

const char *art_logical_name(const char *stored)
{
    /* Longest first: "model.language_model.x" must not become "language_model.x". */
    static const char *const prefixes[] = {"model.language_model.", "language_model.model.", "language_model.",
                                           "model.", NULL};
    const char *name = stored;
    for (int i = 0; prefixes[i] != NULL; i++)
        if (starts(stored, prefixes[i])) {
            name = stored + strlen(prefixes[i]);
            break;
        }
    if (starts(name, "mtp.") || starts(name, "visual.") || *name == 0)
        return NULL;
    return name;
}

static int by_name(const void *pa, const void *pb)
{
    const struct art_tensor *a = *(struct art_tensor *const *)pa, *b = *(struct art_tensor *const *)pb;
    int order = strcmp(a->pub.logical_name, b->pub.logical_name);
    return order ? order : (a > b) - (a < b);
}

int32_t art_index_names(struct artifact *a, struct art_faults *f)
{
    a->by_name = base_calloc(a->n_tensors, sizeof(struct art_tensor *));
    if (a->by_name == NULL)
        return IFX_ENOMEM;
    for (uint64_t i = 0; i < a->n_tensors; i++)
        if (a->tensors[i].pub.logical_name != NULL)
            a->by_name[a->n_named++] = &a->tensors[i];
    qsort(a->by_name, a->n_named, sizeof(struct art_tensor *), by_name);
    for (uint64_t i = 1; i < a->n_named; i++) {
        const struct artifact_entry *x = &a->by_name[i - 1]->pub, *y = &a->by_name[i]->pub;
        if (strcmp(x->logical_name, y->logical_name) == 0)
            art_fault(f, "%s: tensor %s is stored twice: also as %s in %s", y->file, y->stored_name, x->stored_name,
                      x->file);
    }
    return IFX_OK;
}

struct art_tensor *art_find(const struct artifact *a, const char *logical_name)
{
    uint64_t lo = 0, hi = a->n_named;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        int order = strcmp(logical_name, a->by_name[mid]->pub.logical_name);
        if (order == 0)
            return a->by_name[mid];
        if (order < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

struct art_tensor *art_findf(const struct artifact *a, const char *format, ...)
{
    char name[1200];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(name, sizeof name, format, ap);
    va_end(ap);
    return n >= 0 && (size_t)n < sizeof name ? art_find(a, name) : NULL;
}
