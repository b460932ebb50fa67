/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads the plugin under test into the process of one check, with a host table of the suite's own.
 */
#include "check_util.h"
#include "registry_internal.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- host table ---- */

static struct check_ctx *ctx_of(const struct ifx_host *host)
{
    return host->ctx;
}

static void host_log(const struct ifx_host *host, uint32_t level, const char *format, ...)
{
    (void)host, (void)level, (void)format;
}

static int32_t host_error(const struct ifx_host *host, int32_t status, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    base_verror(status, format, ap);
    va_end(ap);
    atomic_fetch_add(&ctx_of(host)->errors, 1);
    return status;
}

static void *host_alloc(const struct ifx_host *host, uint64_t bytes, uint64_t align)
{
    struct check_ctx *c = ctx_of(host);
    void *p;
    atomic_fetch_add(&c->allocs, 1);
    if (atomic_load(&c->refuse) != 0) {
        base_error(IFX_ENOMEM, "the suite refuses memory");
        return NULL;
    }
    p = base_alloc(bytes, align);
    if (p != NULL)
        atomic_fetch_add(&c->live, 1);
    return p;
}

static void host_free(const struct ifx_host *host, void *memory)
{
    if (memory != NULL)
        atomic_fetch_sub(&ctx_of(host)->live, 1);
    base_free(memory);
}

static int32_t host_parallel_for(const struct ifx_host *host, uint64_t n_tasks, ifx_task_fn fn, void *ctx)
{
    return base_pool_run(ctx_of(host)->pool, n_tasks, fn, ctx);
}

static uint32_t host_n_workers(const struct ifx_host *host)
{
    return base_pool_threads(ctx_of(host)->pool);
}

static uint32_t host_cpu_level(const struct ifx_host *host)
{
    return ctx_of(host)->level;
}

static const char *host_option_string(const struct ifx_host *host, const struct ifx_options *options, const char *name)
{
    (void)host;
    return registry_options_text(options, name);
}

static int64_t host_option_int(const struct ifx_host *host, const struct ifx_options *options, const char *name)
{
    (void)host;
    return registry_options_int(options, name);
}

static double host_option_float(const struct ifx_host *host, const struct ifx_options *options, const char *name)
{
    (void)host;
    return registry_options_float(options, name);
}

static void host_fill(struct check_ctx *c)
{
    c->host = (struct ifx_host){
        .struct_size = sizeof c->host,
        .abi_minor = IFX_ABI_MINOR,
        .ctx = c,
        .build = "",
        .log = host_log,
        .error = host_error,
        .alloc = host_alloc,
        .free = host_free,
        .parallel_for = host_parallel_for,
        .n_workers = host_n_workers,
        .cpu_level = host_cpu_level,
        .option_int = host_option_int,
        .option_float = host_option_float,
        .option_string = host_option_string,
    };
}

uint32_t check_levels(struct check_ctx *c)
{
    return c->scalar ? 1 : base_cpu_detect() + 1;
}

/* ---- magic, init, the operations struct ---- */

static uint32_t ops_size_of(uint32_t kind)
{
    switch (kind) {
    case IFX_KIND_EXPERT:
        return sizeof(struct ifx_expert_ops);
    case IFX_KIND_KV:
        return sizeof(struct ifx_kv_ops);
    case IFX_KIND_MODEL:
        return sizeof(struct ifx_model_ops);
    case IFX_KIND_DEVICE:
        return sizeof(struct ifx_device_plugin_ops);
    default:
        return 0;
    }
}

static bool text_ends(const char *text, size_t size)
{
    return memchr(text, 0, size) != NULL;
}

static bool check_magic(struct check_ctx *c, const struct ifx_magic *m)
{
    if (m == NULL)
        return check_fail(c, "ifx_plugin_magic returned NULL");
    if (memcmp(m->magic, "INFERNIX", 8) != 0)
        return check_fail(c, "the magic block does not start with INFERNIX: use IFX_EXPERT_PLUGIN or IFX_KV_PLUGIN");
    if (m->block_size < sizeof *m || m->block_size > 4096)
        return check_fail(c, "magic.block_size is %u, the host has %u", m->block_size, (uint32_t)sizeof *m);
    if (m->abi_major != IFX_ABI_MAJOR)
        return check_fail(c, "magic.abi_major is %u, the host has %u: rebuild the plugin with this version's headers",
                          m->abi_major, IFX_ABI_MAJOR);
    if (m->numerics_revision != IFX_NUMERICS_REVISION)
        return check_fail(c, "magic.numerics_revision is %u, the host has %u", m->numerics_revision,
                          IFX_NUMERICS_REVISION);
    if (ops_size_of(m->kind) == 0)
        return check_fail(c, "magic.kind is %u, which is no kind of plugin", m->kind);
    if (!text_ends(m->name, sizeof m->name) || !text_ends(m->version, sizeof m->version) ||
        !text_ends(m->build, sizeof m->build))
        return check_fail(c, "a text of the magic block does not end");
    if (!check_identity(c, "magic.name", m->name))
        return false;
    if (m->ops_size < 2 * sizeof(uint32_t) || m->ops_size > sizeof c->ops)
        return check_fail(c, "magic.ops_size is %u, the host has %u", m->ops_size, ops_size_of(m->kind));
    return true;
}

/* The table may be faulty (its own check says how): then there are no options, unless the user gave some. */
static bool parse_options(struct check_ctx *c)
{
    struct ifx_options *given = NULL;
    const struct ifx_option *table = c->magic.kind == IFX_KIND_EXPERT ? c->ops.expert.options
                                     : c->magic.kind == IFX_KIND_KV   ? c->ops.kv.options
                                     : c->magic.kind == IFX_KIND_MODEL ? c->ops.model.options
                                                                       : c->ops.device.options;
    int32_t status = registry_options_check_table(table);
    if (status == IFX_OK)
        status = registry_options_parse(table, c->magic.name, c->spec, &given);
    c->given = given;
    return status == IFX_OK || c->spec == NULL || check_fail(c, "%s", base_error_text());
}

bool check_load(struct check_ctx *c)
{
    char *path = strchr(c->path, '/') != NULL ? base_strdup(c->path) : base_format("./%s", c->path);
    void *so;
    ifx_plugin_magic_fn magic;
    ifx_plugin_init_fn init;
    const uint32_t *ops;
    uint32_t copy;

    host_fill(c);
    c->level = IFX_CPU_SCALAR;
    if (path == NULL || base_pool_create(2, false, &c->pool) != IFX_OK)
        return check_fail(c, "the suite could not start: %s", base_error_text());
    so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (so == NULL) {
        const char *why = dlerror();
        return check_fail(c, "cannot be loaded: %s", why != NULL ? why : "no reason given");
    }
    base_free(path);
    *(void **)(&magic) = dlsym(so, "ifx_plugin_magic");
    *(void **)(&init) = dlsym(so, "ifx_plugin_init");
    if (magic == NULL || init == NULL)
        return check_fail(c, "exports no %s: IFX_EXPERT_PLUGIN or IFX_KV_PLUGIN makes both symbols",
                          magic == NULL ? "ifx_plugin_magic" : "ifx_plugin_init");
    if (!check_magic(c, magic()))
        return false;
    c->magic = *magic();
    ops = init(&c->host);
    if (ops == NULL)
        return check_fail(c, "ifx_plugin_init returned NULL: %s",
                          base_error_text()[0] ? base_error_text() : "and recorded no reason");
    if (*ops != c->magic.ops_size)
        return check_fail(c, "struct_size of the operations is %u, magic.ops_size says %u: set it to sizeof the struct",
                          *ops, c->magic.ops_size);
    copy = ops_size_of(c->magic.kind) < *ops ? ops_size_of(c->magic.kind) : *ops;
    memcpy(c->ops.bytes, ops, copy);
    check_malloc_watch(so);
    return parse_options(c);
}

/* ---- descriptor pieces shared by the kinds ---- */

bool check_identity(struct check_ctx *c, const char *what, const char *text)
{
    size_t n = 0;
    if (text == NULL)
        return check_fail(c, "%s is NULL", what);
    for (; n < 32 && text[n] != 0; n++)
        if (strchr("abcdefghijklmnopqrstuvwxyz0123456789_", text[n]) == NULL)
            return check_fail(c, "%s holds the character 0x%02x; allowed are a-z, 0-9 and _", what,
                              (unsigned)(unsigned char)text[n]);
    if (n == 0 || n == 32)
        return check_fail(c, "%s is %s", what, n == 0 ? "empty" : "longer than 31 characters");
    return true;
}

bool check_line(struct check_ctx *c, const char *what, const char *text)
{
    if (text == NULL || text[0] == 0)
        return check_fail(c, "%s is %s: people read it in `infernix plugins`", what, text == NULL ? "NULL" : "empty");
    if (strlen(text) > 200 || strpbrk(text, "\n\r\t") != NULL || !base_utf8_valid(text, strlen(text)))
        return check_fail(c, "%s must be one line of at most 200 bytes of UTF-8", what);
    return true;
}

static bool check_default(struct check_ctx *c, const struct ifx_option *o)
{
    int64_t i;
    double f;
    if (o->default_text == NULL)
        return true;
    if (o->type == IFX_OPT_INT) {
        const bool any = o->min_int == 0 && o->max_int == 0;
        if (base_parse_i64(o->default_text, o->name, any ? INT64_MIN : o->min_int, any ? INT64_MAX : o->max_int, &i) !=
            IFX_OK)
            return check_fail(c, "option %s: the default \"%s\" is refused by its own range", o->name, o->default_text);
    } else if (o->type == IFX_OPT_FLOAT) {
        if (base_parse_f64(o->default_text, o->name, -INFINITY, INFINITY, &f) != IFX_OK)
            return check_fail(c, "option %s: the default \"%s\" is no number", o->name, o->default_text);
    } else if (o->type == IFX_OPT_BOOL) {
        static const char *const words[] = {"true", "false", "yes", "no", "on", "off", "1", "0"};
        bool known = false;
        for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
            known = known || strcmp(o->default_text, words[i]) == 0;
        if (!known)
            return check_fail(c, "option %s: the default \"%s\" is neither yes nor no", o->name, o->default_text);
    }
    return true;
}

bool check_option_table(struct check_ctx *c, const struct ifx_option *table)
{
    c->options = table;
    for (uint32_t n = 0; table != NULL && table[n].name != NULL; n++) {
        const struct ifx_option *o = &table[n];
        if (n >= 64)
            return check_fail(c, "the option table does not end: its last entry has a NULL name");
        if (o->name[0] == 0 || strlen(o->name) > 40 ||
            strspn(o->name, "abcdefghijklmnopqrstuvwxyz0123456789-") != strlen(o->name))
            return check_fail(c, "option %u: the name \"%.40s\" must be of a-z, 0-9 and -", n, o->name);
        if (o->type < IFX_OPT_INT || o->type > IFX_OPT_STRING)
            return check_fail(c, "option %s: type %u is none of IFX_OPT_*", o->name, o->type);
        if (o->type == IFX_OPT_INT && o->min_int > o->max_int)
            return check_fail(c, "option %s: its range is empty", o->name);
        if (!check_line(c, "an option's help", o->help) || !check_default(c, o))
            return false;
        for (uint32_t i = 0; i < n; i++)
            if (strcmp(table[i].name, o->name) == 0)
                return check_fail(c, "option %s stands in the table twice", o->name);
    }
    return true;
}

/* ---- engine tier ---- */

static void engine_descriptor(struct check_ctx *c)
{
    const char *const *names;
    const struct ifx_option *options;
    const char *description;
    if (c->magic.kind == IFX_KIND_MODEL) {
        names = c->ops.model.architectures;
        options = c->ops.model.options;
        description = c->ops.model.description;
        if (c->ops.model.open == NULL || c->ops.model.close == NULL || c->ops.model.describe == NULL ||
            c->ops.model.workspace_bytes == NULL || c->ops.model.forward == NULL) {
            check_fail(c, "a model family needs open, close, describe, workspace_bytes and forward; one is NULL");
            return;
        }
    } else {
        names = c->ops.device.identities;
        options = c->ops.device.options;
        description = c->ops.device.description;
        if (c->ops.device.open == NULL) {
            check_fail(c, "open is NULL");
            return;
        }
    }
    if (names == NULL || names[0] == NULL)
        check_fail(c, "the list of %s is empty", c->magic.kind == IFX_KIND_MODEL ? "architectures" : "identities");
    else if (check_line(c, "description", description) && check_option_table(c, options))
        check_note(c, "engine tier: the descriptor alone is checked");
}

const struct check_entry check_engine_table[] = {
    {"descriptor", engine_descriptor, true, false},
    {NULL, NULL, false, false},
};
