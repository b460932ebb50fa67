/* SPDX-License-Identifier: Apache-2.0
 *
 * registry_internal.h - shared by the files of core/plugin: the entry of one plugin file and the steps of judging it.
 */
#ifndef INFERNIX_CORE_REGISTRY_INTERNAL_H
#define INFERNIX_CORE_REGISTRY_INTERNAL_H

#include "registry.h"

struct registry_entry {
    struct registry_plugin pub;
    char *path;
    char *name;      /* of the file, without ".so" */
    char *refusal;   /* behind pub.refusal */
    void *ops;       /* our copy of the operations struct */
    struct ifx_assist_policy policy; /* our copy */
    uint32_t rank;   /* position of its folder in the search path; UINT32_MAX: loaded by path */
    bool given;      /* asked for by the user */
    bool tried;      /* load was attempted */
};

struct registry {
    struct ifx_host host;
    struct base_pool *pool;
    uint32_t cpu_level;
    uint32_t cuda_runtime; /* of the first plugin that has one */
    const struct registry_entry *cuda_owner;
    char **folders; /* NULL-terminated */
    uint32_t n_folders;
    struct registry_entry **entries;
    uint32_t n_entries;
    bool scanned;
    const struct registry_plugin **list;
    struct ifx_options **old_options; /* replaced ones: a plugin may hold them */
    uint32_t n_old_options;
};

/* elf.c: reads the block of section ".ifx_plugin".  On failure the error text is the reason, without the path. */
int32_t registry_read_magic(const char *path, struct ifx_magic *magic);

/* judge.c: the error text is the reason, without the path. */
int32_t registry_judge_magic(const struct ifx_magic *magic, const char *file_name);
/* Copies the operations struct at the smaller size, the rest zeroed, and holds it against the rules of its kind. */
int32_t registry_copy_ops(const struct ifx_magic *magic, const void *ops, void **copy,
                          struct ifx_assist_policy *policy);

/* options.c */
int32_t registry_options_check_table(const struct ifx_option *table);
int64_t registry_options_int(const struct ifx_options *o, const char *name);
double registry_options_float(const struct ifx_options *o, const char *name);

/* host.c */
void registry_host_init(struct registry *r);

/* path.c: the folders to search, in order, each once. */
int32_t registry_folders(const char *search_path, const char *config_path, char ***folders, uint32_t *count);
/* How to get from one absolute folder to another by name alone: "/usr/bin" to "/usr/lib/x" is "../lib/x". */
char *registry_relative(const char *from, const char *to);

/* load.c: dlopen, magic once more, init, operations, default options.  Refusal is recorded in the entry and as the error. */
int32_t registry_entry_load(struct registry *r, struct registry_entry *e);
int32_t registry_entry_refuse(struct registry_entry *e, int32_t status);
bool registry_claims(const struct registry_entry *e, uint32_t kind, const char *identity);
const struct ifx_option *registry_option_table(const struct registry_plugin *p);

#endif
