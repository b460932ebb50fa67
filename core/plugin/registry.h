/* SPDX-License-Identifier: Apache-2.0
 *
 * registry.h - find, judge and load plugins; from identity to plugin; option tables.
 */
#ifndef INFERNIX_CORE_REGISTRY_H
#define INFERNIX_CORE_REGISTRY_H

#include "base.h"
#include <infernix/device.h>
#include <infernix/expert.h>
#include <infernix/kv.h>
#include <infernix/model.h>

extern const char registry_build_string[]; /* of this build: version and ABI hash; engine-tier plugins must match */

struct registry;
struct registry_plugin {
    const char *name;
    const char *path;
    struct ifx_magic magic;
    const char *refusal; /* NULL when loaded or loadable; otherwise why not */
    bool loaded;
    /* The operations struct, copied to our size and zero-filled; by kind. */
    union {
        const struct ifx_expert_ops *expert;
        const struct ifx_kv_ops *kv;
        const struct ifx_model_ops *model;
        const struct ifx_device_plugin_ops *device;
        const void *any;
    } ops;
    struct ifx_options *options; /* defaults overlaid with what the user gave */
};

/* search_path: colon-separated folders from --plugin-path; config_path: from the config file (either may be NULL).  Order:
 * search_path, INFERNIX_PLUGIN_PATH, config_path, beside the executable: the install directory as it lies from the program's own
 * (a moved or staged prefix), then ../lib/infernix (the build tree), and the install directory as configured: a program takes
 * the plugins made with it before those of another installation.  A name is served by the first file of that order that is
 * not refused.  pool serves host->parallel_for; cpu_level is the level host->cpu_level reports.
 * A registry is used by one thread at a time; what it hands out may be read by any. */
int32_t registry_create(const char *search_path, const char *config_path, struct base_pool *pool,
                        uint32_t cpu_level, struct registry **out);
void registry_destroy(struct registry *r); /* never dlcloses */
const struct ifx_host *registry_host(struct registry *r);
void registry_set_cpu_level(struct registry *r, uint32_t level);

/* --plugin NAME[,key=value...] or a path with a slash: loads it now, options checked against its table. */
int32_t registry_load(struct registry *r, const char *spec, const struct registry_plugin **out);
/* Finds by identity, loading what the name convention says (expert_<format>, kv_<format>, device_*, family by
 * architecture) and everything already loaded explicitly.  Two claimants: an error naming both files.  Not found: says what is there. */
int32_t registry_find(struct registry *r, uint32_t kind, const char *identity,
                      const struct registry_plugin **out);
/* Everything in the search path and what was loaded, sorted by name, refusals included. */
int32_t registry_list(struct registry *r, const struct registry_plugin *const **list, uint32_t *count);
/* The folders searched, in order. */
const char *const *registry_search_path(struct registry *r); /* NULL-terminated */

const char *registry_kind_name(uint32_t kind);
/* Effective policy of a bank: the registered one or the default; validated at load. */
const struct ifx_assist_policy *registry_policy(const struct ifx_expert_ops *ops);
/* The sizes that a plugin states, held against sense: positive, a multiple of IFX_RECORD_ALIGN (a page: of 64), and not more than
 * twice what float64 values would take. */
int32_t registry_record_bytes(const struct ifx_expert_ops *ops, const struct ifx_expert_shape *shape, uint64_t *out);
int32_t registry_page_bytes(const struct ifx_kv_ops *ops, const struct ifx_kv_shape *shape, uint64_t *out);
/* Judges magic + ops of a plugin without registering; used by plugins --check. */
int32_t registry_judge_file(const char *path, struct ifx_magic *magic);

/* Option tables, for anybody who has one. */
int32_t registry_options_parse(const struct ifx_option *table, const char *who, const char *text,
                               struct ifx_options **out); /* "k=v,k=v" or NULL */
void registry_options_free(struct ifx_options *o);
const char *registry_options_text(const struct ifx_options *o, const char *name); /* value as text or NULL */

#endif
