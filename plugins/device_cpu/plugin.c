/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin.c - the identities "ref" (the oracle) and "cpu" (the fast device): options and opening.
 */
#include "cpu_device.h"

#include <string.h>

static const char *const identities[] = {"ref", "cpu", NULL};

static const struct ifx_option options_table[] = {
    {.name = "cpu", .type = IFX_OPT_STRING,
     .help = "highest instruction set of device cpu: scalar, avx2, avx512, avx512_bf16 or amx_bf16"},
    {.name = NULL},
};

/* The lower of what the host allows and what this plugin's own option names. */
static int32_t pick_level(const struct ifx_host *host, const struct ifx_options *options, uint32_t *level)
{
    uint32_t most = host->cpu_level(host), n = CPU_LEVELS;
    const char *text = options && host->option_string ? host->option_string(host, options, "cpu") : NULL;
    *level = most < n ? most : n - 1;
    if (!text || !*text)
        return IFX_OK;
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(text, cpu_level_names[i]) == 0) {
            *level = i < *level ? i : *level;
            return IFX_OK;
        }
    return host->error(host, IFX_EINVAL,
                       "device_cpu: cpu=%s is no instruction set; it is one of scalar, avx2, avx512, avx512_bf16, "
                       "amx_bf16", text);
}

static int32_t open_device(const struct ifx_host *host, const struct ifx_options *options, const char *identity,
                           uint32_t ordinal, struct ifx_device **out)
{
    uint32_t oracle = strcmp(identity, "ref") == 0, level = IFX_CPU_SCALAR;
    if (!oracle && strcmp(identity, "cpu") != 0)
        return host->error(host, IFX_ENOTFOUND, "device_cpu has devices ref and cpu, not %s", identity);
    if (ordinal > 0)
        return host->error(host, IFX_ENOTFOUND, "there is one device %s, number 0, and no number %u", identity,
                           ordinal);
    int32_t status = oracle ? IFX_OK : pick_level(host, options, &level);
    if (status)
        return status;
    return cpu_device_create(host, oracle, level, out);
}

static const struct ifx_device_plugin_ops plugin_ops = {
    .struct_size = sizeof plugin_ops,
    .identities = identities,
    .description = "ref: the scalar oracle; cpu: vector and matrix units of this machine's processors",
    .options = options_table,
    .open = open_device,
};

static const struct ifx_device_plugin_ops *init(const struct ifx_host *host)
{
    (void)host;
    return &plugin_ops;
}

IFX_DEVICE_PLUGIN("device_cpu", "0.1.0", init)
