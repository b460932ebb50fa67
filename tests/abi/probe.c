/* SPDX-License-Identifier: Apache-2.0
 *
 * probe.c - drives the registry for the shell tests.
 *
 *   probe [-p FOLDERS] [load SPEC | find KIND IDENTITY | list | repeat N SPEC SPEC | nulls SPEC | build]...
 *
 * One line for each step; the exit status is that of the last step.
 */
#include "config.h"
#include "registry.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int step_load(struct registry *r, const char *spec)
{
    const struct registry_plugin *p;
    if (registry_load(r, spec, &p) != IFX_OK) {
        printf("refused: %s\n", base_error_text());
        return 1;
    }
    printf("loaded %s %s %s\n", p->name, registry_kind_name(p->magic.kind), p->path);
    return 0;
}

static int step_find(struct registry *r, const char *kind, const char *identity)
{
    const struct registry_plugin *p;
    uint32_t k = IFX_KIND_EXPERT;
    while (k < IFX_KIND_DEVICE && strcmp(registry_kind_name(k), kind) != 0)
        k++;
    if (registry_find(r, k, identity, &p) != IFX_OK) {
        printf("not found: %s\n", base_error_text());
        return 1;
    }
    printf("found %s %s\n", p->name, p->path);
    return 0;
}

static int step_list(struct registry *r)
{
    const struct registry_plugin *const *list;
    uint32_t n;
    if (registry_list(r, &list, &n) != IFX_OK) {
        printf("failed: %s\n", base_error_text());
        return 1;
    }
    for (uint32_t i = 0; i < n; i++)
        printf("%s: %s\n", list[i]->name, list[i]->refusal ? list[i]->refusal : "ok");
    const char *const *f = registry_search_path(r);
    for (; *f != NULL; f++)
        printf("searched %s\n", *f);
    return 0;
}

static int step_repeat(struct registry *r, int n, const char *a, const char *b)
{
    for (int i = 0; i < n; i++) {
        const struct registry_plugin *p;
        if (registry_load(r, a, &p) != IFX_OK || p->ops.any == NULL) {
            printf("round %d: %s was refused: %s\n", i, a, base_error_text());
            return 1;
        }
        if (registry_load(r, b, &p) == IFX_OK) {
            printf("round %d: %s was accepted\n", i, b);
            return 1;
        }
    }
    printf("%d rounds\n", n);
    return 0;
}

/* What a short operations struct leaves out. */
static int step_nulls(struct registry *r, const char *spec)
{
    const struct registry_plugin *p;
    if (step_load(r, spec) != 0 || registry_load(r, spec, &p) != IFX_OK)
        return 1;
    const struct ifx_expert_ops *o = p->ops.expert;
    printf("struct_size %u of %zu, check_record %s, gate_up %s, down %s, level %s, row_granule %u\n", o->struct_size,
           sizeof *o, o->check_record ? "set" : "NULL", o->gate_up ? "set" : "NULL", o->down ? "set" : "NULL",
           o->level ? "set" : "NULL", o->row_granule);
    const struct ifx_expert_shape shape = {sizeof shape, 32, 16, 0};
    void *bank;
    if (o->open(registry_host(r), p->options, &shape, &bank) != IFX_OK) {
        printf("open failed: %s\n", base_error_text());
        return 1;
    }
    o->close(bank);
    const struct ifx_assist_policy *policy = registry_policy(o);
    printf("policy %u columns, %u points, first %u:%u\n", policy->max_columns, policy->n_points, policy->points[0].columns,
           policy->points[0].share);
    return 0;
}

int main(int argc, char **argv)
{
    struct registry *r;
    struct base_pool *pool;
    const char *folders = NULL;
    int i = 1, failed = 0;
    if (argc > 2 && strcmp(argv[1], "-p") == 0) {
        folders = argv[2];
        i = 3;
    }
    if (base_pool_create(2, false, &pool) != IFX_OK || registry_create(folders, NULL, pool, IFX_CPU_SCALAR, &r) != IFX_OK)
        return 3;
    for (; i < argc; i++) {
        if (strcmp(argv[i], "load") == 0 && i + 1 < argc) {
            failed = step_load(r, argv[++i]);
        } else if (strcmp(argv[i], "find") == 0 && i + 2 < argc) {
            failed = step_find(r, argv[i + 1], argv[i + 2]);
            i += 2;
        } else if (strcmp(argv[i], "repeat") == 0 && i + 3 < argc) {
            failed = step_repeat(r, atoi(argv[i + 1]), argv[i + 2], argv[i + 3]);
            i += 3;
        } else if (strcmp(argv[i], "nulls") == 0 && i + 1 < argc) {
            failed = step_nulls(r, argv[++i]);
        } else if (strcmp(argv[i], "list") == 0) {
            failed = step_list(r);
        } else if (strcmp(argv[i], "build") == 0) {
            printf("%s\n", registry_build_string);
        } else {
            printf("usage: see probe.c\n");
            return 2;
        }
        fflush(stdout);
    }
    registry_destroy(r);
    base_pool_destroy(pool);
    return failed;
}
