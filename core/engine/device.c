/* SPDX-License-Identifier: Apache-2.0
 *
 * device.c - from the user's name of a device to an open one: "cpu", "cuda:1", "sim,vram=8G,clock=virtual".
 */
#include "engine.h"

#include <string.h>

/* "cuda:1": the number behind the colon. */
static int32_t read_ordinal(char *name, uint32_t *ordinal)
{
    char *colon = strchr(name, ':');
    int64_t n = 0;
    int32_t st = IFX_OK;
    if (colon) {
        *colon = 0;
        st = base_parse_i64(colon + 1, "--device: number", 0, 255, &n);
    }
    *ordinal = (uint32_t)n;
    return st;
}

static int32_t open_named(struct ifx_context *c, const char *name, struct ifx_device **out)
{
    const struct registry_plugin *plugin;
    struct ifx_options *own = NULL;
    char *identity = base_strdup(name);
    uint32_t ordinal = 0;
    *out = NULL;
    if (!identity)
        return IFX_ENOMEM;
    char *text = strchr(identity, ',');
    if (text)
        *text++ = 0;
    int32_t st = read_ordinal(identity, &ordinal);
    if (!st)
        st = registry_find(c->registry, IFX_KIND_DEVICE, identity, &plugin);
    /* Options given with the name replace those of --plugin. */
    if (!st && text)
        st = registry_options_parse(plugin->ops.device->options, plugin->name, text, &own);
    if (!st)
        st = plugin->ops.device->open(registry_host(c->registry), own ? own : plugin->options, identity, ordinal, out);
    registry_options_free(own);
    base_free(identity);
    return st;
}

/* The GPU if there is one, else the CPU, which says so once. */
/* A plugin that was not built is no fault; one that was refused is told as it is. */
static void name_missing_plugin(struct ifx_context *c)
{
    const struct registry_plugin *plugin;
    if (registry_find(c->registry, IFX_KIND_DEVICE, "cuda", &plugin) == IFX_ENOTFOUND && !strstr(base_error_text(), "refused"))
        base_error(IFX_ENOTFOUND, "this build has no device_cuda (configure says why)");
}

static int32_t open_auto(struct ifx_context *c, struct ifx_device **out)
{
    int32_t st = open_named(c, "cuda", out);
    if (!st)
        return IFX_OK;
    if (st == IFX_ENOTFOUND)
        name_missing_plugin(c);
    engine_cpu_instead();
    return open_named(c, "cpu", out);
}

void engine_cpu_instead(void)
{
    base_log(IFX_LOG_INFO, "no GPU is used: %s", base_error_text());
    base_error_clear();
}

int32_t ifx_device_open(struct ifx_context *c, const char *name, struct ifx_device **out)
{
    base_loosen_caller(true);
    int32_t st = engine_device_is_auto(name) ? open_auto(c, out) : open_named(c, name, out);
    base_loosen_caller(false);
    return st;
}

bool engine_device_is_auto(const char *name)
{
    return !name || strcmp(name, "auto") == 0;
}
