/* SPDX-License-Identifier: Apache-2.0
 *
 * create.c - makes a device of this code: its table for an instruction set, and its properties.
 */
#include "config.h"

#include "cpu_device.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *const cpu_level_names[CPU_LEVELS] = {"scalar", "avx2", "avx512", "avx512_bf16", "amx_bf16"};

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
        snprintf(out->name, sizeof out->name, "cpu (%s, %u thread%s)", cpu_level_names[d->level], d->workers,
                 d->workers == 1 ? "" : "s");
    long pages = sysconf(_SC_PHYS_PAGES), available = sysconf(_SC_AVPHYS_PAGES), size_page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && available > 0 && size_page > 0) {
        out->memory_bytes = (uint64_t)pages * (uint64_t)size_page;
        out->free_bytes = (uint64_t)available * (uint64_t)size_page;
    }
    return IFX_OK;
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

int32_t cpu_device_create(const struct ifx_host *host, uint32_t oracle, uint32_t level, struct ifx_device **out)
{
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
