/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin.c - options, opening and properties of device `sim`.
 */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const identities[] = {"sim", NULL};

static const struct ifx_option options_table[] = {
    {.name = "vram", .type = IFX_OPT_STRING, .default_text = "8G", .help = "device memory: a hard limit"},
    {.name = "link", .type = IFX_OPT_STRING, .default_text = "26G", .help = "bytes a second each way; 0: as fast as it goes"},
    {.name = "latency", .type = IFX_OPT_FLOAT, .default_text = "10", .help = "microseconds of a copy beside its bytes"},
    {.name = "pinned", .type = IFX_OPT_STRING, .default_text = "0", .help = "pinned host memory there is; 0: no limit"},
    {.name = "threads", .type = IFX_OPT_INT, .default_text = "1", .help = "threads that compute as the device", .min_int = 1,
     .max_int = 256},
    {.name = "speed", .type = IFX_OPT_FLOAT, .default_text = "1",
     .help = "factor on the device's speed; above 1 only with clock=virtual"},
    {.name = "clock", .type = IFX_OPT_STRING, .default_text = "real",
     .help = "real, or virtual: nothing sleeps, time is computed from the rates here"},
    {.name = "dram", .type = IFX_OPT_STRING, .default_text = "75G",
     .help = "virtual clock: bytes a second of host memory, shared by CPU and link"},
    {.name = "cpu-flops", .type = IFX_OPT_STRING, .default_text = "385G",
     .help = "virtual clock: operations a second of the CPU on experts"},
    {.name = "vram-bandwidth", .type = IFX_OPT_STRING, .default_text = "1.5T",
     .help = "virtual clock: bytes a second of device memory"},
    {.name = "flops", .type = IFX_OPT_STRING, .default_text = "146T",
     .help = "virtual clock: operations a second of the device on dense matrices"},
    {.name = "expert-flops", .type = IFX_OPT_STRING, .default_text = "100T", .help = "virtual clock: and on experts"},
    {.name = "launch", .type = IFX_OPT_FLOAT, .default_text = "2",
     .help = "virtual clock: microseconds of the host to enqueue one thing"},
    {.name = "kernel", .type = IFX_OPT_FLOAT, .default_text = "2",
     .help = "virtual clock: microseconds that an operation takes at least"},
    {.name = "small-record", .type = IFX_OPT_STRING, .default_text = "0",
     .help = "virtual clock: an expert record of so many bytes, in pinned memory that holds such alone, stands for one of large-record"},
    {.name = "large-record", .type = IFX_OPT_STRING, .default_text = "0", .help = "see small-record"},
    {.name = "expert-scale", .type = IFX_OPT_FLOAT, .default_text = "1",
     .help = "virtual clock: factor on the operations of experts"},
    {.name = "dense-scale", .type = IFX_OPT_FLOAT, .default_text = "1", .help = "virtual clock: factor on dense matrices"},
    {.name = "column-scale", .type = IFX_OPT_FLOAT, .default_text = "1",
     .help = "virtual clock: factor on activations, copied and worked on"},
    {.name = "check", .type = IFX_OPT_BOOL, .default_text = "yes", .help = "refuse operands that are not device memory"},
    {.name = "handover", .type = IFX_OPT_BOOL, .default_text = "yes",
     .help = "hand over to a host thread that looks on; no: by host calls (as with a virtual clock)"},
    {.name = "fail-alloc", .type = IFX_OPT_INT, .default_text = "0", .help = "the Nth allocation fails, once; 0: none",
     .max_int = INT64_MAX},
    {.name = "fail-copy", .type = IFX_OPT_INT, .default_text = "0", .help = "the Nth copy fails, once; 0: none",
     .max_int = INT64_MAX},
    {.name = "fail-launch", .type = IFX_OPT_INT, .default_text = "0",
     .help = "the Nth operation, host call or graph launch fails, once; 0: none", .max_int = INT64_MAX},
    {.name = "fail-late", .type = IFX_OPT_BOOL, .default_text = "no",
     .help = "failures of copies and launches show when somebody waits, not in the call"},
    {.name = NULL},
};

/* ---- the host table that the kernels see: ours, with the device's own threads ---- */

static struct sim_device *of_host(const struct ifx_host *host)
{
    return (struct sim_device *)(uintptr_t)((const char *)host - offsetof(struct sim_device, host));
}

static int32_t own_parallel_for(const struct ifx_host *host, uint64_t tasks, ifx_task_fn fn, void *ctx)
{
    return sim_pool_run(of_host(host)->pool, tasks, fn, ctx);
}

static uint32_t own_n_workers(const struct ifx_host *host)
{
    return sim_pool_threads(of_host(host)->pool);
}

static void make_host(struct sim_device *d, const struct ifx_host *outer)
{
    size_t n = outer->struct_size < sizeof d->host ? outer->struct_size : sizeof d->host;
    memcpy(&d->host, outer, n);
    d->host.parallel_for = own_parallel_for;
    d->host.n_workers = own_n_workers;
}

/* ---- reading options ---- */

struct reader {
    const struct ifx_host *host;
    const struct ifx_options *options;
    int32_t status;
};

static const char *default_of(const char *name)
{
    for (const struct ifx_option *o = options_table; o->name; o++)
        if (strcmp(o->name, name) == 0)
            return o->default_text;
    return NULL;
}

static const char *text_of(const struct reader *r, const char *name)
{
    const char *text = r->options && r->host->option_string ? r->host->option_string(r->host, r->options, name) : NULL;
    return text && *text ? text : default_of(name);
}

/* A number with K, M, G or T behind it: powers of 1024 for memory, of 1000 for rates. */
static double amount(struct reader *r, const char *name, double unit)
{
    static const char suffixes[] = "KMGT";
    const char *text = text_of(r, name), *at;
    char *end;
    double v = strtod(text, &end);
    bool good = end != text && v >= 0 && v < 1e18;
    if (good && *end && (at = strchr(suffixes, *end)) != NULL) {
        for (const char *s = suffixes; s <= at; s++)
            v *= unit;
        end++;
    }
    if (good && !*end && v < 9e18)
        return v;
    if (!r->status)
        r->status = r->host->error(r->host, IFX_EINVAL, "device_sim: %s=%s is no amount; 26G and 8192 are", name, text);
    return 0;
}

static uint64_t bytes_of(struct reader *r, const char *name)
{
    return (uint64_t)amount(r, name, 1024);
}

static double rate_of(struct reader *r, const char *name)
{
    return amount(r, name, 1000);
}

/* FLOAT options: the host has parsed the text. */
static double number(struct reader *r, const char *name, double least)
{
    const char *text = text_of(r, name);
    double v = strtod(text, NULL);
    if (v >= least && v < 1e15)
        return v;
    if (!r->status)
        r->status = r->host->error(r->host, IFX_EINVAL, "device_sim: %s=%s; at least %g is possible", name, text, least);
    return least;
}

static int64_t count(struct reader *r, const char *name)
{
    return strtoll(text_of(r, name), NULL, 10);
}

static bool yes(struct reader *r, const char *name)
{
    if (r->options && r->host->option_int)
        return r->host->option_int(r->host, r->options, name) != 0;
    return strcmp(default_of(name), "yes") == 0;
}

static int32_t read_options(struct sim_device *d, struct reader *r)
{
    struct sim_model *m = &d->model;
    const char *clock = text_of(r, "clock");
    d->limit = bytes_of(r, "vram");
    d->pinned_limit = bytes_of(r, "pinned");
    m->link = rate_of(r, "link");
    m->latency = number(r, "latency", 0) * 1e-6;
    m->dram = rate_of(r, "dram");
    m->host_flops = rate_of(r, "cpu-flops");
    m->memory = rate_of(r, "vram-bandwidth");
    m->flops = rate_of(r, "flops");
    m->expert_flops = rate_of(r, "expert-flops");
    m->launch = number(r, "launch", 0) * 1e-6;
    m->kernel = number(r, "kernel", 0) * 1e-6;
    m->speed = number(r, "speed", 1e-6);
    m->small_record = bytes_of(r, "small-record");
    m->large_record = (double)bytes_of(r, "large-record");
    m->expert_scale = number(r, "expert-scale", 0);
    m->dense_scale = number(r, "dense-scale", 0);
    m->column_scale = number(r, "column-scale", 0);
    d->check = yes(r, "check");
    d->handover = yes(r, "handover");
    d->fail_alloc = count(r, "fail-alloc");
    d->fail_copy = count(r, "fail-copy");
    d->fail_launch = count(r, "fail-launch");
    d->fail_late = yes(r, "fail-late");
    d->virtual_clock = strcmp(clock, "virtual") == 0;
    if (!r->status && !d->virtual_clock && strcmp(clock, "real") != 0)
        r->status = r->host->error(r->host, IFX_EINVAL, "device_sim: clock=%s; there are real and virtual", clock);
    if (!r->status && !d->virtual_clock && m->speed > 1)
        r->status = r->host->error(r->host, IFX_EINVAL,
                                   "device_sim: speed=%g: real arithmetic cannot be hurried; use clock=virtual or threads=",
                                   m->speed);
    if (!r->status && (m->small_record != 0) != (m->large_record > 0))
        r->status = r->host->error(r->host, IFX_EINVAL, "device_sim: small-record and large-record go together");
    return r->status;
}

/* ---- the device ---- */

static int32_t props(struct ifx_device *dev, struct ifx_device_props *out)
{
    struct sim_device *d = sim_of(dev);
    uint32_t size = out->struct_size;
    memset(out, 0, sizeof *out);
    out->struct_size = size;
    pthread_mutex_lock(&d->lock);
    out->flags = IFX_DEVICE_HOST_CALLS | (d->virtual_clock ? IFX_DEVICE_VIRTUAL_CLOCK : 0u);
    out->memory_bytes = d->limit;
    out->free_bytes = d->limit - d->used;
    out->pinned_bytes = d->pinned_limit;
    out->link_bytes_per_s = d->model.link;
    snprintf(out->name, sizeof out->name, "sim (%.1f GiB, %.1f GB/s link%s)", (double)d->limit / 1073741824.0,
             d->model.link * 1e-9, d->virtual_clock ? ", virtual clock" : "");
    snprintf(out->detail, sizeof out->detail, "allocations %lld, copies %lld, launches %lld, peak %llu bytes",
             (long long)d->allocs, (long long)d->copies, (long long)d->launches, (unsigned long long)d->peak);
    pthread_mutex_unlock(&d->lock);
    return IFX_OK;
}

static void close_device(struct ifx_device *dev)
{
    struct sim_device *d = sim_of(dev);
    const struct ifx_host *host = d->outer;
    uint32_t n_streams = 0;
    while (d->streams) { /* settles the clock too */
        n_streams++;
        d->ops.stream_destroy(dev, d->streams);
    }
    if (n_streams || d->n_events)
        host->log(host, IFX_LOG_WARN, "device sim: closed with %u streams and %u events", n_streams, d->n_events);
    sim_memory_close(d);
    if (d->cpu)
        d->cpu->ops->close(d->cpu);
    sim_pool_destroy(d->pool);
    if (d->spans)
        host->free(host, d->spans);
    pthread_mutex_destroy(&d->lock);
    pthread_mutex_destroy(&d->compute);
    pthread_mutex_destroy(&d->links[0]);
    pthread_mutex_destroy(&d->links[1]);
    pthread_cond_destroy(&d->changed);
    host->free(host, d);
}

static void fill_table(struct ifx_device_ops *ops)
{
    ops->struct_size = sizeof *ops;
    ops->close = close_device;
    ops->props = props;
    ops->mem_alloc = sim_mem_alloc;
    ops->mem_free = sim_mem_free;
    ops->host_alloc = sim_host_alloc;
    ops->host_free = sim_host_free;
    ops->now = sim_now;
    ops->host_work = sim_host_work;
    sim_fill_streams(ops);
    sim_fill_graphs(ops);
}

static int32_t open_device(const struct ifx_host *host, const struct ifx_options *options, const char *identity,
                           uint32_t ordinal, struct ifx_device **out)
{
    struct reader r = {.host = host, .options = options};
    if (strcmp(identity, "sim") != 0 || ordinal > 0)
        return host->error(host, IFX_ENOTFOUND, "device_sim has one device, sim, number 0");
    struct sim_device *d = host->alloc(host, sizeof *d, 64);
    if (!d)
        return IFX_ENOMEM;
    memset(d, 0, sizeof *d);
    d->base.ops = &d->ops;
    d->base.host = d->outer = host;
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->compute, NULL);
    pthread_mutex_init(&d->links[0], NULL);
    pthread_mutex_init(&d->links[1], NULL);
    pthread_cond_init(&d->changed, NULL);
    fill_table(&d->ops);
    make_host(d, host);
    int32_t st = read_options(d, &r);
    if (!st)
        st = sim_pool_create(host, (uint32_t)count(&r, "threads"), &d->pool);
    if (!st)
        st = cpu_device_create(&d->host, 0, host->cpu_level(host), &d->cpu);
    if (!st)
        sim_fill_ops(d->cpu->ops, &d->ops);
    if (!st)
        sim_fill_handover(d, &d->ops);
    if (st) {
        close_device(&d->base);
        return st;
    }
    *out = &d->base;
    return IFX_OK;
}

static const struct ifx_device_plugin_ops plugin_ops = {
    .struct_size = sizeof plugin_ops,
    .identities = identities,
    .description = "sim: a pretended GPU with memory of its own and a throttled link, for tests and planning",
    .options = options_table,
    .open = open_device,
};

static const struct ifx_device_plugin_ops *init(const struct ifx_host *host)
{
    (void)host;
    return &plugin_ops;
}

IFX_DEVICE_PLUGIN("device_sim", "0.1.0", init)
