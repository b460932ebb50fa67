/* SPDX-License-Identifier: Apache-2.0
 *
 * context.c - what a process has once: threads and plugins.
 */
#include "engine.h"

static int32_t pick_cpu_level(const char *text, uint32_t *level)
{
    uint32_t most = base_cpu_detect();
    *level = most;
    if (!text)
        return IFX_OK;
    int32_t st = base_cpu_parse(text, level);
    if (!st && *level > most)
        st = base_error(IFX_EINVAL, "--cpu %s: this machine goes up to %s", text, base_cpu_name(most));
    return st;
}

int32_t ifx_context_create(const struct ifx_context_options *o, struct ifx_context **out)
{
    static const struct ifx_context_options none;
    uint32_t level;
    o = o ? o : &none;
    struct ifx_context *c = base_calloc(1, sizeof *c);
    if (!c)
        return IFX_ENOMEM;
    int32_t st = pick_cpu_level(o->cpu, &level);
    if (!st)
        st = base_pool_create(o->threads, o->pin, &c->pool);
    if (!st)
        st = registry_create(o->plugin_path, o->config_plugin_path, c->pool, level, &c->registry);
    for (const char *const *spec = o->plugins; !st && spec && *spec; spec++) {
        const struct registry_plugin *loaded;
        st = registry_load(c->registry, *spec, &loaded);
    }
    if (st) {
        ifx_context_destroy(c);
        return st;
    }
    *out = c;
    return IFX_OK;
}

void ifx_context_destroy(struct ifx_context *c)
{
    if (!c)
        return;
    if (c->registry)
        registry_destroy(c->registry);
    if (c->pool)
        base_pool_destroy(c->pool);
    base_free(c);
}

struct registry *ifx_context_registry(struct ifx_context *c)
{
    return c->registry;
}

struct base_pool *ifx_context_pool(struct ifx_context *c)
{
    return c->pool;
}
