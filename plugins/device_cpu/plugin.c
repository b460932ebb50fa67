/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin.c - the identities "ref" (the oracle) and "cpu" (the fast device): options, opening, properties.
 */
#include "config.h"

#include "cpu_device.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *const identities[] = {"ref", "cpu", NULL};

static const struct ifx_option options_table[] = {
    {.name = "cpu", .type = IFX_OPT_STRING,
     .help = "highest instruction set of device cpu: scalar, avx2, avx512, avx512_bf16 or amx_bf16"},
    {.name = NULL},
};

static const char *const level_names[] = {"scalar", "avx2", "avx512", "avx512_bf16", "amx_bf16"};

static void device_close(struct ifx_device *dev)
{
    dev->host->free(dev->host, dev);
}

static int32_t props(struct ifx_device *dev, struct ifx_device_props *out)
{
    struct cpu_device *d = (struct cpu_device *)dev;
    uint32_t size = out->struct_size;
    memset(out, 0, sizeof *out);
    out->struct_size = size;
    out->flags = IFX_DEVICE_HOST_MEM | (d->oracle ? IFX_DEVICE_ORACLE : 0u);
    if (d->oracle)
        snprintf(out->name, sizeof out->name, "ref");
    else
        snprintf(out->name, sizeof out->name, "cpu (%s, %u thread%s)", level_names[d->level], d->workers,
                 d->workers == 1 ? "" : "s");
    long pages = sysconf(_SC_PHYS_PAGES), available = sysconf(_SC_AVPHYS_PAGES), size_page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && available > 0 && size_page > 0) {
        out->memory_bytes = (uint64_t)pages * (uint64_t)size_page;
        out->free_bytes = (uint64_t)available * (uint64_t)size_page;
    }
    return IFX_OK;
}

/* The lower of what the host allows and what this plugin's own option names. */
static int32_t pick_level(const struct ifx_host *host, const struct ifx_options *options, uint32_t *level)
{
    uint32_t most = host->cpu_level(host), n = sizeof level_names / sizeof *level_names;
    const char *text = options && host->option_string ? host->option_string(host, options, "cpu") : NULL;
    *level = most < n ? most : n - 1;
    if (!text || !*text)
        return IFX_OK;
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(text, level_names[i]) == 0) {
            *level = i < *level ? i : *level;
            return IFX_OK;
        }
    return host->error(host, IFX_EINVAL,
                       "device_cpu: cpu=%s is no instruction set; it is one of scalar, avx2, avx512, avx512_bf16, "
                       "amx_bf16", text);
}

/* The best kernels that were built, up to the level. */
static void fill_kernels(struct cpu_device *d, uint32_t level)
{
    cpu_fill(&d->ops);
    cpu_kernels_scalar(&d->kernels);
    d->level = IFX_CPU_SCALAR;
#ifdef HAVE_ISA_AVX2
    if (level >= IFX_CPU_AVX2) {
        cpu_kernels_avx2(&d->kernels);
        d->level = IFX_CPU_AVX2;
    }
#endif
#ifdef HAVE_ISA_AVX512
    if (level >= IFX_CPU_AVX512) {
        cpu_kernels_avx512(&d->kernels);
        d->level = IFX_CPU_AVX512;
    }
#endif
#ifdef HAVE_ISA_AVX512_BF16
    if (level >= IFX_CPU_AVX512_BF16) {
        cpu_kernels_avx512_bf16(&d->kernels);
        d->level = IFX_CPU_AVX512_BF16;
    }
#endif
#ifdef HAVE_ISA_AMX_BF16
    if (level >= IFX_CPU_AMX_BF16) {
        cpu_kernels_amx_bf16(&d->kernels);
        d->level = IFX_CPU_AMX_BF16;
    }
#endif
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
    struct cpu_device *d = host->alloc(host, sizeof *d, 64);
    if (!d)
        return IFX_ENOMEM;
    memset(d, 0, sizeof *d);
    d->base.ops = &d->ops;
    d->base.host = host;
    d->oracle = oracle;
    d->level = level;
    d->workers = host->n_workers(host);
    d->ops.close = device_close;
    d->ops.props = props;
    cpu_fill_common(&d->ops);
    if (oracle)
        ref_fill(&d->ops);
    else
        fill_kernels(d, level);
    *out = &d->base;
    return IFX_OK;
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
