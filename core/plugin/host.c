/* SPDX-License-Identifier: Apache-2.0
 *
 * host.c - the table of services handed to every plugin.
 */
#include "config.h"
#include "registry_internal.h"

const char registry_build_string[] = IFX_PLUGIN_BUILD;

static const struct registry *of(const struct ifx_host *host)
{
    return host->ctx;
}

static void host_log(const struct ifx_host *host, uint32_t level, const char *format, ...)
{
    va_list ap;
    (void)host;
    va_start(ap, format);
    base_vlog(level, format, ap);
    va_end(ap);
}

static int32_t host_error(const struct ifx_host *host, int32_t status, const char *format, ...)
{
    va_list ap;
    (void)host;
    va_start(ap, format);
    base_verror(status, format, ap);
    va_end(ap);
    return status;
}

static const char *host_error_text(const struct ifx_host *host)
{
    (void)host;
    return base_error_text();
}

static void *host_alloc(const struct ifx_host *host, uint64_t bytes, uint64_t align)
{
    (void)host;
    return base_alloc(bytes, align);
}

static void host_free(const struct ifx_host *host, void *memory)
{
    (void)host;
    base_free(memory);
}

static int32_t host_parallel_for(const struct ifx_host *host, uint64_t n_tasks, ifx_task_fn fn, void *ctx)
{
    struct base_pool *pool = of(host)->pool;
    if (pool != NULL)
        return base_pool_run(pool, n_tasks, fn, ctx);
    for (uint64_t t = 0; t < n_tasks; t++) {
        int32_t status = fn(ctx, t, 0);
        if (status != IFX_OK)
            return status;
    }
    return IFX_OK;
}

static uint32_t host_n_workers(const struct ifx_host *host)
{
    const struct base_pool *pool = of(host)->pool;
    return pool != NULL ? base_pool_threads(pool) : 1;
}

static uint32_t host_cpu_level(const struct ifx_host *host)
{
    return of(host)->cpu_level;
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

static const char *host_option_string(const struct ifx_host *host, const struct ifx_options *options,
                                      const char *name)
{
    (void)host;
    return registry_options_text(options, name);
}

void registry_host_init(struct registry *r)
{
    r->host = (struct ifx_host){
        .struct_size = sizeof r->host,
        .abi_minor = IFX_ABI_MINOR,
        .ctx = r,
        .build = registry_build_string,
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
        .error_text = host_error_text,
    };
}

const struct ifx_host *registry_host(struct registry *r)
{
    return &r->host;
}

void registry_set_cpu_level(struct registry *r, uint32_t level)
{
    r->cpu_level = level;
}
