/* SPDX-License-Identifier: Apache-2.0
 *
 * The pretended GPU: its memory, streams, events, failures, graphs and both clocks.
 */
#include "registry.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct registry *registry;
static struct base_pool *pool;

static int set_up(void **state)
{
    (void)state;
    base_log_set_level(IFX_LOG_ERROR);
    return base_pool_create(2, false, &pool) || registry_create(getenv("IFX_PLUGINS"), NULL, pool, base_cpu_detect(), &registry);
}

static int tear_down(void **state)
{
    (void)state;
    registry_destroy(registry);
    base_pool_destroy(pool);
    return 0;
}

static int32_t try_open(const char *identity, const char *options, struct ifx_device **dev)
{
    const struct registry_plugin *p;
    struct ifx_options *o = NULL;
    int32_t st = registry_find(registry, IFX_KIND_DEVICE, identity, &p);
    if (!st)
        st = registry_options_parse(p->ops.device->options, p->name, options, &o);
    if (!st)
        st = p->ops.device->open(registry_host(registry), o, identity, 0, dev);
    registry_options_free(o);
    return st;
}

static struct ifx_device *open_sim(const char *options)
{
    struct ifx_device *d = NULL;
    int32_t st = try_open("sim", options, &d);
    if (st)
        fail_msg("%s: %s", options ? options : "", base_error_text());
    return d;
}

static void *device_memory(struct ifx_device *d, uint64_t bytes)
{
    void *p = NULL;
    assert_int_equal(d->ops->mem_alloc(d, bytes, &p), IFX_OK);
    return p;
}

static void *stream_of(struct ifx_device *d)
{
    void *s = NULL;
    assert_int_equal(d->ops->stream_create(d, &s), IFX_OK);
    return s;
}

static void *event_of(struct ifx_device *d)
{
    void *e = NULL;
    assert_int_equal(d->ops->event_create(d, &e), IFX_OK);
    return e;
}

static struct ifx_device_props props_of(struct ifx_device *d)
{
    struct ifx_device_props p = {.struct_size = sizeof p};
    assert_int_equal(d->ops->props(d, &p), IFX_OK);
    return p;
}

/* ---- memory ---- */

static void test_memory_limit(void **state)
{
    (void)state;
    struct ifx_device *d = open_sim("vram=1M");
    void *a = device_memory(d, 700000), *b = NULL, *zero;
    const uint8_t *bytes = a;
    assert_int_equal(props_of(d).memory_bytes, 1 << 20);
    assert_int_equal(props_of(d).free_bytes, (1 << 20) - 700160); /* counted in 256 bytes */
    assert_int_equal((uintptr_t)a % 256, 0);
    for (uint32_t i = 0; i < 700000; i += 777)
        assert_int_equal(bytes[i], 0xff);
    assert_int_equal(d->ops->mem_alloc(d, 400000, &b), IFX_EDEVMEM);
    assert_null(b);
    assert_non_null(strstr(base_error_text(), "700160 of 1048576"));
    assert_int_equal(d->ops->mem_alloc(d, UINT64_MAX - 4, &b), IFX_EDEVMEM);
    assert_int_equal(d->ops->mem_alloc(d, 0, &zero), IFX_OK);
    d->ops->mem_free(d, zero);
    d->ops->mem_free(d, a);
    d->ops->mem_free(d, NULL);
    a = device_memory(d, 1 << 20);
    assert_int_equal(props_of(d).free_bytes, 0);
    d->ops->mem_free(d, a);
    assert_int_equal(props_of(d).free_bytes, 1 << 20);
    d->ops->close(d);

    d = open_sim("pinned=64K");
    assert_int_equal(d->ops->host_alloc(d, 60000, &a), IFX_OK);
    assert_int_equal(d->ops->host_alloc(d, 60000, &b), IFX_ENOMEM);
    d->ops->host_free(d, a);
    assert_int_equal(d->ops->host_alloc(d, 60000, &b), IFX_OK);
    d->ops->host_free(d, b);
    d->ops->close(d);
}

static void test_sides_are_kept_apart(void **state)
{
    (void)state;
    struct ifx_device *d = open_sim(NULL);
    void *s = stream_of(d), *dev = device_memory(d, 4096);
    float host[64] = {0};
    struct ifx_swiglu op = {.n = 1, .width = 64, .gate = dev, .up = host, .y = dev, .ldg = 64, .ldu = 64, .ldy = 64};
    assert_int_equal(d->ops->swiglu(d, s, &op), IFX_EINTERNAL);
    assert_non_null(strstr(base_error_text(), "swiglu: pointer 2"));
    assert_int_equal(d->ops->copy(d, s, host, host, sizeof host, IFX_COPY_TO_DEVICE), IFX_EINTERNAL);
    assert_int_equal(d->ops->copy(d, s, dev, dev, 64, IFX_COPY_TO_DEVICE), IFX_EINTERNAL);
    assert_int_equal(d->ops->copy(d, s, dev, host, sizeof host, IFX_COPY_FROM_DEVICE), IFX_EINTERNAL);
    assert_int_equal(d->ops->copy(d, s, (char *)dev + 4000, host, 97, IFX_COPY_TO_DEVICE), IFX_EINTERNAL);
    assert_int_equal(d->ops->copy(d, s, (char *)dev + 4000, host, 96, IFX_COPY_TO_DEVICE), IFX_OK);
    assert_int_equal(d->ops->copy(d, s, host, (char *)dev + 4090, 7, IFX_COPY_FROM_DEVICE), IFX_EINTERNAL);
    assert_int_equal(d->ops->fill(d, s, host, 0, 4), IFX_EINTERNAL);
    assert_int_equal(d->ops->stream_sync(d, s), IFX_OK);
    d->ops->stream_destroy(d, s);
    d->ops->mem_free(d, dev);
    d->ops->close(d);
}

/* ---- arithmetic ---- */

enum { N = 13, K = 96, ROWS = 80 };

/* The same product on any device, through copies; y on the host. */
static void product(struct ifx_device *d, void *s, const float *x, const float *w, float *y)
{
    const struct ifx_device_ops *o = d->ops;
    float *dx = device_memory(d, N * K * 4), *dw = device_memory(d, ROWS * K * 4), *dy = device_memory(d, N * ROWS * 4);
    struct ifx_linear op = {.n = N, .cols = K, .count = 1, .x = dx, .ldx = K};
    op.out[0].w = (struct ifx_weight){.dtype = IFX_F32, .rows = ROWS, .cols = K, .data = dw};
    op.out[0].y = dy;
    op.out[0].ldy = ROWS;
    void *ws = op.ws = device_memory(d, o->linear_ws_bytes(d, N, K));
    assert_int_equal(o->copy(d, s, dx, x, N * K * 4, IFX_COPY_TO_DEVICE), IFX_OK);
    assert_int_equal(o->copy(d, s, dw, w, ROWS * K * 4, IFX_COPY_TO_DEVICE), IFX_OK);
    assert_int_equal(o->linear(d, s, &op), IFX_OK);
    assert_int_equal(o->copy(d, s, y, dy, N * ROWS * 4, IFX_COPY_FROM_DEVICE), IFX_OK);
    memset(&op, 0x55, sizeof op); /* what an operation needs of its struct it has taken */
    assert_int_equal(o->stream_sync(d, s), IFX_OK);
    o->mem_free(d, dx);
    o->mem_free(d, dw);
    o->mem_free(d, dy);
    o->mem_free(d, ws);
}

static void random_values(float *v, uint32_t n, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        v[i] = (float)((int32_t)(seed >> 8) - (1 << 23)) / (float)(1 << 23);
    }
}

static void test_same_bits_as_cpu(void **state)
{
    (void)state;
    static float x[N * K], w[ROWS * K], a[N * ROWS], b[N * ROWS];
    static const char *const options[] = {"threads=1", "threads=3", "threads=3,clock=virtual"};
    struct ifx_device *cpu = NULL;
    random_values(x, N * K, 1);
    random_values(w, ROWS * K, 2);
    assert_int_equal(try_open("cpu", NULL, &cpu), IFX_OK);
    void *s = stream_of(cpu);
    product(cpu, s, x, w, a);
    cpu->ops->close(cpu);
    for (uint32_t i = 0; i < 3; i++) {
        struct ifx_device *d = open_sim(options[i]);
        s = stream_of(d);
        memset(b, 0, sizeof b);
        product(d, s, x, w, b);
        assert_memory_equal(a, b, sizeof a);
        d->ops->stream_destroy(d, s);
        d->ops->close(d);
    }
}

/* ---- streams, events, failures ---- */

struct step {
    uint32_t *counter, expected;
    int32_t status;
};

static int32_t count_up(void *ctx)
{
    struct step *s = ctx;
    if (s->status)
        return base_error(s->status, "the step said no");
    if (__atomic_load_n(s->counter, __ATOMIC_RELAXED) != s->expected)
        return base_error(IFX_EINTERNAL, "step %u came out of turn", s->expected);
    __atomic_fetch_add(s->counter, 1, __ATOMIC_RELAXED);
    return IFX_OK;
}

/* Two streams take turns through events; every order but the right one fails. */
static void test_events_order_streams(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < 2; v++) {
        struct ifx_device *d = open_sim(v ? "clock=virtual" : "clock=real");
        const struct ifx_device_ops *o = d->ops;
        void *s[2] = {stream_of(d), stream_of(d)}, *e[2] = {event_of(d), event_of(d)};
        uint32_t counter = 0, done = 0;
        struct step steps[40];
        for (uint32_t i = 0; i < 40; i++) {
            steps[i] = (struct step){&counter, i, IFX_OK};
            if (i)
                assert_int_equal(o->event_wait(d, e[(i + 1) % 2], s[i % 2]), IFX_OK);
            assert_int_equal(o->host_call(d, s[i % 2], count_up, &steps[i], NULL), IFX_OK);
            assert_int_equal(o->event_record(d, e[i % 2], s[i % 2]), IFX_OK);
        }
        assert_int_equal(o->event_sync(d, e[1]), IFX_OK);
        assert_int_equal(__atomic_load_n(&counter, __ATOMIC_RELAXED), 40);
        assert_int_equal(o->event_query(d, e[1], &done), IFX_OK);
        assert_int_equal(done, 1);
        void *never = event_of(d); /* nothing recorded: nothing to wait for */
        assert_int_equal(o->event_wait(d, never, s[0]), IFX_OK);
        assert_int_equal(o->event_sync(d, never), IFX_OK);
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(o->stream_sync(d, s[i]), IFX_OK);
            o->event_destroy(d, e[i]);
            o->stream_destroy(d, s[i]);
        }
        o->event_destroy(d, never);
        o->close(d);
    }
}

static void test_failure_goes_to_who_waits(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < 2; v++) {
        struct ifx_device *d = open_sim(v ? "clock=virtual" : "clock=real");
        const struct ifx_device_ops *o = d->ops;
        void *a = stream_of(d), *b = stream_of(d), *e = event_of(d);
        uint32_t counter = 0;
        struct step bad = {&counter, 0, IFX_ELIMIT}, good = {&counter, 0, IFX_OK};
        assert_int_equal(o->host_call(d, a, count_up, &bad, NULL), IFX_OK);
        assert_int_equal(o->host_call(d, a, count_up, &good, NULL), IFX_OK); /* not run */
        assert_int_equal(o->event_record(d, e, a), IFX_OK);
        assert_int_equal(o->event_wait(d, e, b), IFX_OK);
        assert_int_equal(o->host_call(d, b, count_up, &good, NULL), IFX_OK); /* nor this */
        base_error_clear();
        assert_int_equal(o->stream_sync(d, b), IFX_ELIMIT);
        assert_string_equal(base_error_text(), "the step said no");
        base_error_clear();
        assert_int_equal(o->stream_sync(d, a), IFX_ELIMIT);
        assert_string_equal(base_error_text(), "the step said no");
        assert_int_equal(counter, 0);
        /* Told once, both go on. */
        assert_int_equal(o->host_call(d, a, count_up, &good, NULL), IFX_OK);
        assert_int_equal(o->stream_sync(d, a), IFX_OK);
        assert_int_equal(o->stream_sync(d, b), IFX_OK);
        assert_int_equal(counter, 1);
        o->event_destroy(d, e);
        o->stream_destroy(d, a);
        o->stream_destroy(d, b);
        o->close(d);
    }
}

static void test_fault_injector(void **state)
{
    (void)state;
    struct ifx_device *d = open_sim("fail-alloc=2,fail-copy=2,fail-launch=3");
    const struct ifx_device_ops *o = d->ops;
    void *p, *q = NULL, *s = stream_of(d);
    uint32_t x = 7;
    p = device_memory(d, 64);
    assert_int_equal(o->mem_alloc(d, 64, &q), IFX_EDEVMEM);
    assert_non_null(strstr(base_error_text(), "allocation number 2 fails"));
    q = device_memory(d, 64);
    assert_int_equal(o->copy(d, s, p, &x, 4, IFX_COPY_TO_DEVICE), IFX_OK);
    assert_int_equal(o->copy(d, s, p, &x, 4, IFX_COPY_TO_DEVICE), IFX_EDEVICE);
    assert_int_equal(o->copy(d, s, p, &x, 4, IFX_COPY_TO_DEVICE), IFX_OK);
    assert_int_equal(o->fill(d, s, p, 0, 4), IFX_OK);
    assert_int_equal(o->fill(d, s, p, 0, 4), IFX_OK);
    assert_int_equal(o->fill(d, s, p, 0, 4), IFX_EDEVICE);
    assert_int_equal(o->stream_sync(d, s), IFX_OK);
    o->stream_destroy(d, s);
    o->mem_free(d, p);
    o->mem_free(d, q);
    o->close(d);

    d = open_sim("fail-copy=1,fail-late=yes");
    s = stream_of(d);
    p = device_memory(d, 64);
    assert_int_equal(d->ops->copy(d, s, p, &x, 4, IFX_COPY_TO_DEVICE), IFX_OK);
    assert_int_equal(d->ops->stream_sync(d, s), IFX_EDEVICE);
    assert_int_equal(d->ops->copy(d, s, p, &x, 4, IFX_COPY_TO_DEVICE), IFX_OK);
    x = 0;
    assert_int_equal(d->ops->stream_sync(d, s), IFX_OK);
    assert_int_equal(d->ops->copy(d, s, &x, p, 4, IFX_COPY_FROM_DEVICE), IFX_OK);
    assert_int_equal(d->ops->stream_sync(d, s), IFX_OK);
    d->ops->stream_destroy(d, s);
    d->ops->mem_free(d, p);
    d->ops->close(d);
}

static void test_graph_is_replayed(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < 2; v++) {
        struct ifx_device *d = open_sim(v ? "clock=virtual" : "clock=real");
        const struct ifx_device_ops *o = d->ops;
        void *s = stream_of(d), *g = NULL, *e = event_of(d);
        float one = 1, y = 0, *dx = device_memory(d, 4), *dy = device_memory(d, 4);
        struct ifx_add op = {.n = 1, .width = 1, .x = dx, .ldx = 1, .y = dy, .ldy = 1};
        assert_int_equal(o->copy(d, s, dx, &one, 4, IFX_COPY_TO_DEVICE), IFX_OK);
        assert_int_equal(o->fill(d, s, dy, 0, 4), IFX_OK);
        assert_int_equal(o->graph_begin(d, s), IFX_OK);
        assert_int_equal(o->graph_begin(d, s), IFX_EINVAL);
        assert_int_equal(o->stream_sync(d, s), IFX_EINVAL);
        assert_int_equal(o->add(d, s, &op), IFX_OK);
        assert_int_equal(o->add(d, s, &op), IFX_OK);
        assert_int_equal(o->event_record(d, e, s), IFX_OK);
        assert_int_equal(o->graph_end(d, s, &g), IFX_OK);
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(o->graph_launch(d, s, g), IFX_OK);
        assert_int_equal(o->event_sync(d, e), IFX_OK);
        assert_int_equal(o->copy(d, s, &y, dy, 4, IFX_COPY_FROM_DEVICE), IFX_OK);
        assert_int_equal(o->stream_sync(d, s), IFX_OK);
        assert_true(y == 6); /* recorded, not run at once: 3 launches of 2 */
        o->graph_destroy(d, g);
        o->event_destroy(d, e);
        o->stream_destroy(d, s);
        o->mem_free(d, dx);
        o->mem_free(d, dy);
        o->close(d);
    }
}

/* ---- time ---- */

static void assert_near(double got, double want)
{
    if (fabs(got - want) > 1e-12 + 1e-9 * fabs(want))
        fail_msg("%.12g instead of %.12g seconds", got, want);
}

#define VIRTUAL "clock=virtual,vram=64M,link=1G,latency=100,dram=4G,cpu-flops=1G,vram-bandwidth=10G,flops=1T,expert-flops=10G,launch=0,kernel=0"

static int32_t nothing(void *ctx)
{
    (void)ctx;
    return IFX_OK;
}

static void test_virtual_timeline(void **state)
{
    (void)state;
    struct ifx_device *d = open_sim(VIRTUAL);
    const struct ifx_device_ops *o = d->ops;
    void *copies = stream_of(d), *work = stream_of(d), *landed = event_of(d), *p = device_memory(d, 10000000), *h = NULL;
    struct ifx_work expert = {.kind = IFX_WORK_DEVICE_EXPERTS, .experts = 1, .bytes = 10000000, .flops = 2e7};
    struct ifx_work cpu = {.kind = IFX_WORK_HOST_EXPERTS, .experts = 1, .bytes = 10000000, .flops = 1e6};
    assert_int_equal(o->host_alloc(d, 10000000, &h), IFX_OK);
    memset(h, 1, 10000000);
    assert_true(props_of(d).flags & IFX_DEVICE_VIRTUAL_CLOCK);
    assert_near(o->now(d), 0);
    /* 10 MB at 1 GB/s, and 100 us until they are there; then 2e7 operations at 1e10. */
    assert_int_equal(o->copy(d, copies, p, h, 10000000, IFX_COPY_TO_DEVICE), IFX_OK);
    assert_int_equal(o->event_record(d, landed, copies), IFX_OK);
    assert_int_equal(o->event_wait(d, landed, work), IFX_OK);
    assert_int_equal(o->host_call(d, work, nothing, NULL, &expert), IFX_OK);
    assert_near(o->now(d), 0);
    /* Meanwhile the CPU: the link leaves 3 of 4 GB/s: 10 MB in 3.33 ms. */
    o->host_work(d, &cpu);
    assert_near(o->now(d), 0.01 / 3);
    cpu.flops = 5e6; /* computing is slower now */
    o->host_work(d, &cpu);
    assert_near(o->now(d), 0.01 / 3 + 5e-3);
    cpu.bytes = 40000000; /* 1.667 ms beside the link, 5 MB of it; 35 MB alone */
    o->host_work(d, &cpu);
    assert_near(o->now(d), 10e-3 + 35e6 / 4e9);
    assert_int_equal(o->stream_sync(d, work), IFX_OK);
    assert_near(o->now(d), 10e-3 + 35e6 / 4e9);
    /* Links of both directions at once; one direction in turn, whatever the stream. */
    double t0 = o->now(d);
    assert_int_equal(o->copy(d, copies, p, h, 1000000, IFX_COPY_TO_DEVICE), IFX_OK);
    assert_int_equal(o->copy(d, work, h, p, 1000000, IFX_COPY_FROM_DEVICE), IFX_OK);
    assert_int_equal(o->stream_sync(d, work), IFX_OK);
    assert_near(o->now(d), t0 + 1.1e-3);
    t0 = o->now(d);
    assert_int_equal(o->copy(d, copies, p, h, 1000000, IFX_COPY_TO_DEVICE), IFX_OK);
    assert_int_equal(o->copy(d, work, p, h, 1000000, IFX_COPY_TO_DEVICE), IFX_OK);
    assert_int_equal(o->stream_sync(d, work), IFX_OK);
    assert_near(o->now(d), t0 + 2.1e-3);
    o->stream_destroy(d, copies);
    o->stream_destroy(d, work);
    o->event_destroy(d, landed);
    o->mem_free(d, p);
    o->host_free(d, h);
    o->close(d);
}

static int32_t find_out(void *ctx)
{
    struct ifx_work *w = ctx;
    w->kind = IFX_WORK_DEVICE_DENSE;
    w->flops = 3e9;
    return IFX_OK;
}

static void test_virtual_costs(void **state)
{
    (void)state;
    struct ifx_device *d = open_sim(VIRTUAL ",speed=2");
    const struct ifx_device_ops *o = d->ops;
    void *s = stream_of(d), *e = event_of(d);
    struct ifx_work w = {0};
    uint32_t done = 0, polls = 0;
    /* A host call may find out its cost while it runs: 3e9 operations at 2e12. */
    assert_int_equal(o->host_call(d, s, find_out, &w, &w), IFX_OK);
    assert_int_equal(o->stream_sync(d, s), IFX_OK);
    assert_near(o->now(d), 1.5e-3);
    o->stream_destroy(d, s);
    o->event_destroy(d, e);
    o->close(d);

    /* Polling takes time, so it ends: 1.5 ms at 500 us a look. */
    d = open_sim(VIRTUAL ",launch=500");
    s = stream_of(d);
    e = event_of(d);
    w = (struct ifx_work){.kind = IFX_WORK_DEVICE_DENSE, .bytes = 10000000, .flops = 1.25e9};
    assert_int_equal(d->ops->host_call(d, s, nothing, NULL, &w), IFX_OK);
    assert_int_equal(d->ops->event_record(d, e, s), IFX_OK);
    for (; !done; polls++)
        assert_int_equal(d->ops->event_query(d, e, &done), IFX_OK);
    assert_int_equal(polls, 3);
    assert_near(d->ops->now(d), 2e-3);
    d->ops->stream_destroy(d, s);
    d->ops->event_destroy(d, e);
    d->ops->close(d);

    /* Small records that stand for large ones: those of pinned memory that holds such alone, however many a copy takes; other bytes count
     * eightfold. */
    d = open_sim(VIRTUAL ",small-record=4096,large-record=1024K,expert-scale=100,column-scale=8");
    s = stream_of(d);
    uint8_t *p = device_memory(d, 16384);
    void *records, *other;
    assert_int_equal(d->ops->host_alloc(d, 12288, &records), IFX_OK);
    assert_int_equal(d->ops->host_alloc(d, 8292, &other), IFX_OK);
    memset(records, 0, 12288);
    memset(other, 0, 8292);
    assert_int_equal(d->ops->copy(d, s, p, (char *)records + 4096, 8192, IFX_COPY_TO_DEVICE), IFX_OK);
    assert_int_equal(d->ops->copy(d, s, p, other, 8192, IFX_COPY_TO_DEVICE), IFX_OK);
    assert_int_equal(d->ops->copy(d, s, p, (char *)records + 96, 4096, IFX_COPY_TO_DEVICE), IFX_OK);
    assert_int_equal(d->ops->copy(d, s, records, p, 8192, IFX_COPY_FROM_DEVICE), IFX_OK);
    assert_int_equal(d->ops->stream_sync(d, s), IFX_OK);
    assert_near(d->ops->now(d), (2 * 1048576 + 8 * (8192 + 4096 + 8192)) / 1e9 + 400e-6);
    w = (struct ifx_work){.kind = IFX_WORK_HOST_EXPERTS, .experts = 2, .bytes = 8192, .flops = 1000};
    double t0 = d->ops->now(d);
    d->ops->host_work(d, &w);
    assert_near(d->ops->now(d), t0 + 2 * 1048576 / 4e9);
    d->ops->stream_destroy(d, s);
    d->ops->mem_free(d, p);
    d->ops->host_free(d, records);
    d->ops->host_free(d, other);
    d->ops->close(d);
}

static void test_real_clock_throttles(void **state)
{
    (void)state;
    struct ifx_device *d = open_sim("link=5M,latency=1000");
    void *s = stream_of(d), *p = device_memory(d, 2000000), *h = calloc(1, 2000000);
    double t0 = d->ops->now(d);
    assert_non_null(h);
    assert_int_equal(d->ops->copy(d, s, p, h, 2000000, IFX_COPY_TO_DEVICE), IFX_OK);
    double enqueued = d->ops->now(d);
    assert_int_equal(d->ops->stream_sync(d, s), IFX_OK);
    assert_true(d->ops->now(d) - t0 >= 0.401);
    assert_true(enqueued - t0 < 0.3); /* the call does not wait */
    d->ops->stream_destroy(d, s);
    d->ops->mem_free(d, p);
    d->ops->close(d);
    free(h);
}

static void test_options_are_checked(void **state)
{
    (void)state;
    static const char *const bad[] = {"vram=lots", "link=-1", "clock=maybe", "speed=2", "small-record=4096", "latency=-1",
                                      "vram=1GG", "threads=0"};
    struct ifx_device *d = NULL;
    for (uint32_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        base_error_clear();
        if (try_open("sim", bad[i], &d) != IFX_EINVAL)
            fail_msg("%s is accepted", bad[i]);
        char name[16] = "";
        memcpy(name, bad[i], strcspn(bad[i], "="));
        assert_non_null(strstr(base_error_text(), name));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_limit),       cmocka_unit_test(test_sides_are_kept_apart),
        cmocka_unit_test(test_same_bits_as_cpu),   cmocka_unit_test(test_events_order_streams),
        cmocka_unit_test(test_failure_goes_to_who_waits), cmocka_unit_test(test_fault_injector),
        cmocka_unit_test(test_graph_is_replayed),  cmocka_unit_test(test_virtual_timeline),
        cmocka_unit_test(test_virtual_costs),      cmocka_unit_test(test_real_clock_throttles),
        cmocka_unit_test(test_options_are_checked),
    };
    return cmocka_run_group_tests_name("sim", tests, set_up, tear_down);
}
