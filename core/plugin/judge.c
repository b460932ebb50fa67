/* SPDX-License-Identifier: Apache-2.0
 *
 * judge.c - what is wrong with a plugin: first its magic block, then its operations.  Every refusal names the field, both
 * values and what to do.
 */
#include "config.h"
#include "registry_internal.h"
#include <string.h>

#define MAX_BLOCK      4096u
#define MAX_OPS        65536u
#define MAX_COLUMNS    (1u << 20)
#define MAX_POINTS     64u
#define MAX_IDENTITIES 256u

static const char *const kind_names[] = {NULL, "expert", "kv", "model", "device"};

const char *registry_kind_name(uint32_t kind)
{
    return kind >= IFX_KIND_EXPERT && kind <= IFX_KIND_DEVICE ? kind_names[kind] : "unknown";
}

static bool identifier(const char *s, const char *extra, size_t max)
{
    size_t n = strlen(s);
    return n > 0 && n <= max && strspn(s, extra) == n;
}

#define LOWER "abcdefghijklmnopqrstuvwxyz0123456789"
#define UPPER "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

static bool ends(const char *field, size_t size)
{
    return memchr(field, 0, size) != NULL;
}

static int32_t judge_name(const struct ifx_magic *m, const char *file_name)
{
    if (!ends(m->name, sizeof m->name) || !identifier(m->name, LOWER "_", sizeof m->name - 1))
        return base_error(IFX_EFORMAT, "name \"%.31s\" is not made of a-z, 0-9 and _ (at most 31): rename the plugin",
                          m->name);
    if (!ends(m->version, sizeof m->version) || !ends(m->build, sizeof m->build) ||
        !base_utf8_valid(m->version, strlen(m->version)))
        return base_error(IFX_EFORMAT, "version or build string is not text that ends in its field: use the IFX_*_PLUGIN macros");
    size_t n = strlen(m->name);
    if (strncmp(file_name, m->name, n) != 0 || strcmp(file_name + n, ".so") != 0)
        return base_error(IFX_EFORMAT, "name \"%s\", but the file is %s: rename the file to %s.so", m->name,
                          file_name, m->name);
    return IFX_OK;
}

static int32_t judge_build(const struct ifx_magic *m)
{
    if (m->kind != IFX_KIND_MODEL && m->kind != IFX_KIND_DEVICE)
        return IFX_OK; /* format tier: the ABI numbers are enough */
    if (strcmp(m->build, registry_build_string) != 0)
        return base_error(IFX_EFORMAT,
                          "build \"%s\", this program needs \"%s\" (a %s plugin belongs to one build): build it together with "
                          "this program",
                          m->build, registry_build_string, registry_kind_name(m->kind));
    return IFX_OK;
}

int32_t registry_judge_magic(const struct ifx_magic *m, const char *file_name)
{
    if (m->block_size < sizeof *m || m->block_size > MAX_BLOCK)
        return base_error(IFX_EFORMAT, "magic block of %u bytes, this program expects %zu to %u: rebuild it with this program's headers",
                          m->block_size, sizeof *m, MAX_BLOCK);
    /* A newer minor number only appended things that may be ignored. */
    if (m->abi_major != IFX_ABI_MAJOR)
        return base_error(IFX_EFORMAT, "plugin ABI %u.%u, this program has %u.%u: %s", m->abi_major, m->abi_minor,
                          IFX_ABI_MAJOR, IFX_ABI_MINOR,
                          m->abi_major > IFX_ABI_MAJOR ? "use a newer program or rebuild the plugin with this program's headers"
                                                       : "rebuild the plugin with this program's headers");
    if (m->kind < IFX_KIND_EXPERT || m->kind > IFX_KIND_DEVICE)
        return base_error(IFX_EFORMAT, "kind %u, this program knows 1 (expert) to 4 (device): a newer program may know it",
                          m->kind);
    if (m->numerics_revision != IFX_NUMERICS_REVISION)
        return base_error(IFX_EFORMAT,
                          "numerics revision %u, this program has %u (results would depend on placement): rebuild it with "
                          "this program's headers",
                          m->numerics_revision, IFX_NUMERICS_REVISION);
    if (m->ops_size < 2 * sizeof(uint32_t) || m->ops_size > MAX_OPS)
        return base_error(IFX_EFORMAT, "operations struct of %u bytes, at most %u are possible: use the IFX_*_PLUGIN macros",
                          m->ops_size, MAX_OPS);
    if (m->cuda_runtime != 0 && (m->cuda_runtime < 1000 || m->cuda_runtime > 1000000))
        return base_error(IFX_EFORMAT, "CUDA runtime %u is no CUDART_VERSION: set IFX_PLUGIN_CUDA_RUNTIME to it or to 0",
                          m->cuda_runtime);
    int32_t status = judge_name(m, file_name);
    return status == IFX_OK ? judge_build(m) : status;
}

int32_t registry_judge_file(const char *path, struct ifx_magic *magic)
{
    const char *slash = strrchr(path, '/');
    int32_t status = registry_read_magic(path, magic);
    if (status == IFX_OK)
        status = registry_judge_magic(magic, slash ? slash + 1 : path);
    return status == IFX_OK ? status : base_error_prefix(status, "%s", path);
}

/* ---- operations ---- */

static int32_t missing(const char *callback, const char *kind)
{
    return base_error(IFX_EFORMAT, "callback %s is NULL; a plugin of kind %s must have it (see its header)", callback, kind);
}

#define NEED(ops, member, kind)                                                                               \
    do {                                                                                                      \
        if ((ops)->member == NULL)                                                                            \
            return missing(#member, kind);                                                                    \
    } while (0)

static int32_t judge_identity(const char *text, const char *field, const char *allowed)
{
    if (text == NULL)
        return base_error(IFX_EFORMAT, "%s is NULL: give the identity that models ask for", field);
    if (memchr(text, 0, 64) == NULL || !identifier(text, allowed, 63))
        return base_error(IFX_EFORMAT, "%s \"%.63s\" has letters that are not allowed or is empty", field, text);
    return IFX_OK;
}

static int32_t judge_identities(const char *const *list, const char *field, const char *allowed)
{
    if (list == NULL || list[0] == NULL)
        return base_error(IFX_EFORMAT, "%s is empty: list what the plugin serves", field);
    for (uint32_t i = 0; list[i] != NULL; i++) {
        int32_t status = judge_identity(list[i], field, allowed);
        if (status != IFX_OK)
            return status;
        if (i >= MAX_IDENTITIES)
            return base_error(IFX_EFORMAT, "%s does not end with NULL within %u", field, MAX_IDENTITIES);
    }
    return IFX_OK;
}

static int32_t judge_policy(const struct ifx_assist_policy *p)
{
    const struct ifx_ramp_point *q = p->points;
    if (p->max_columns == 0 || p->max_columns > MAX_COLUMNS)
        return base_error(IFX_EFORMAT, "assist policy: max_columns %u is not in 1..%u", p->max_columns, MAX_COLUMNS);
    if (p->n_points == 0 || p->n_points > MAX_POINTS || q == NULL)
        return base_error(IFX_EFORMAT, "assist policy: %u ramp points%s, 1..%u are needed", p->n_points,
                          q == NULL ? " (NULL)" : "", MAX_POINTS);
    for (uint32_t i = 0; i < p->n_points; i++) {
        if (q[i].share > 256)
            return base_error(IFX_EFORMAT, "assist policy: point %u has share %u, at most 256 is possible", i, q[i].share);
        if (i > 0 && q[i].columns <= q[i - 1].columns)
            return base_error(IFX_EFORMAT, "assist policy: points must ascend, but point %u is at %u columns after %u", i,
                              q[i].columns, q[i - 1].columns);
    }
    if (q[p->n_points - 1].columns > p->max_columns)
        return base_error(IFX_EFORMAT, "assist policy: last point at %u columns is past max_columns %u",
                          q[p->n_points - 1].columns, p->max_columns);
    return IFX_OK;
}

/* The plugin's policy struct may be shorter or longer than ours, like the operations. */
static int32_t copy_policy(struct ifx_expert_ops *ops, struct ifx_assist_policy *policy)
{
    if (ops->policy == NULL)
        return IFX_OK;
    uint32_t size = ops->policy->struct_size;
    if (size < sizeof *policy || size > MAX_OPS)
        return base_error(IFX_EFORMAT, "assist policy: struct_size %u, at least %zu is needed", size, sizeof *policy);
    memcpy(policy, ops->policy, sizeof *policy);
    policy->struct_size = sizeof *policy;
    ops->policy = policy;
    return judge_policy(policy);
}

static int32_t judge_expert(struct ifx_expert_ops *o, struct ifx_assist_policy *policy)
{
    const char *kind = "expert";
    NEED(o, record_bytes, kind);
    NEED(o, open, kind);
    NEED(o, close, kind);
    NEED(o, pack, kind);
    NEED(o, decode_row, kind);
    /* The CPU path is whole or absent. */
    if (o->scratch_bytes != NULL || o->prepare != NULL || o->gate_up != NULL || o->down != NULL) {
        NEED(o, scratch_bytes, "expert with a CPU path");
        NEED(o, gate_up, "expert with a CPU path");
        NEED(o, down, "expert with a CPU path");
    }
    int32_t status = judge_identity(o->format, "format", LOWER "_");
    if (status == IFX_OK)
        status = copy_policy(o, policy);
    return status == IFX_OK ? registry_options_check_table(o->options) : status;
}

static int32_t judge_kv(const struct ifx_kv_ops *o)
{
    const char *kind = "kv";
    NEED(o, page_bytes, kind);
    NEED(o, open, kind);
    NEED(o, close, kind);
    NEED(o, append, kind);
    NEED(o, attend, kind);
    NEED(o, decode_row, kind);
    int32_t status = judge_identity(o->format, "format", LOWER "_");
    return status == IFX_OK ? registry_options_check_table(o->options) : status;
}

static int32_t judge_model(const struct ifx_model_ops *o)
{
    const char *kind = "model";
    NEED(o, open, kind);
    NEED(o, close, kind);
    NEED(o, describe, kind);
    NEED(o, workspace_bytes, kind);
    NEED(o, forward, kind);
    int32_t status = judge_identities(o->architectures, "architectures", LOWER UPPER "_");
    return status == IFX_OK ? registry_options_check_table(o->options) : status;
}

static int32_t judge_device(const struct ifx_device_plugin_ops *o)
{
    NEED(o, open, "device");
    int32_t status = judge_identities(o->identities, "identities", LOWER "_");
    return status == IFX_OK ? registry_options_check_table(o->options) : status;
}

int32_t registry_copy_ops(const struct ifx_magic *magic, const void *ops, void **copy,
                          struct ifx_assist_policy *policy)
{
    static const uint32_t sizes[] = {0, sizeof(struct ifx_expert_ops), sizeof(struct ifx_kv_ops),
                                     sizeof(struct ifx_model_ops), sizeof(struct ifx_device_plugin_ops)};
    uint32_t size, ours = sizes[magic->kind];
    *copy = NULL;
    memcpy(&size, ops, sizeof size); /* every operations struct begins with its size */
    if (size != magic->ops_size)
        return base_error(IFX_EFORMAT,
                          "the operations say struct_size %u, the magic block %u: set struct_size to sizeof the struct", size,
                          magic->ops_size);
    void *mine = base_calloc(1, ours);
    if (mine == NULL)
        return IFX_ENOMEM;
    memcpy(mine, ops, size < ours ? size : ours);
    memcpy(mine, &ours, sizeof ours);
    int32_t status = magic->kind == IFX_KIND_EXPERT  ? judge_expert(mine, policy)
                     : magic->kind == IFX_KIND_KV    ? judge_kv(mine)
                     : magic->kind == IFX_KIND_MODEL ? judge_model(mine)
                                                     : judge_device(mine);
    if (status != IFX_OK) {
        base_free(mine);
        return status;
    }
    *copy = mine;
    return IFX_OK;
}

const struct ifx_assist_policy *registry_policy(const struct ifx_expert_ops *ops)
{
    static const struct ifx_ramp_point points[] = {{64, 77}, {255, 104}};
    static const struct ifx_assist_policy usual = {sizeof usual, 255, 2, 0, points};
    return ops->policy != NULL ? ops->policy : &usual;
}
