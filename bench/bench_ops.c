/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_ops.c - operations of device `cpu` beside the ceilings of the machine, all measured in the same run.
 *
 *     bench_ops PLUGIN.so [-t THREADS] [-l LEVEL] [-m MIB] [-q] [-b]
 *
 * -m: weights to cycle through, so that a matrix comes from memory (default 1024); -q: fewer sizes; -b: best times, for a machine
 * that has other work.  Times are medians; with one thread, of its own processor time.  Needs nothing but the plugin: it runs on
 * another machine from a copied build tree.
 */
#define _GNU_SOURCE
#include "config.h"

#include "minihost.h"
#include "peak.h"

#include <infernix/numerics.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64 };

struct bench {
    struct ifx_host *host;
    struct ifx_device *dev;
    uint32_t threads, level, quick, best;
    char *pool; /* weights */
    uint64_t pool_bytes;
    double read_gbs, peak_gflops; /* ceilings of all threads: memory, and the unit that prompt products use */
    double peak_f32;
};

/* Wall time, or with one thread what the thread itself used: other programs then disturb only the caches. */
static double now(uint32_t threads)
{
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median (or best) seconds of a call: at least five, at most MOST, for about a third of a second. */
static double median(void (*fn)(void *), void *ctx, uint32_t threads, uint32_t use_best)
{
    double t[MOST], start = now(threads);
    int n = 0;
    fn(ctx);
    while (n < MOST && (n < 5 || now(threads) - start < 0.3)) {
        double from = now(threads);
        fn(ctx);
        t[n++] = now(threads) - from;
    }
    qsort(t, (size_t)n, sizeof *t, compare);
    return use_best ? t[0] : t[n / 2];
}

static void *memory(uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "no memory for %llu bytes\n", (unsigned long long)bytes);
        exit(1);
    }
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

/* ---- ceilings ---- */

struct reading {
    const char *data;
    uint64_t bytes, each;
    uint64_t sums[256];
};

typedef uint64_t lanes __attribute__((vector_size(32), aligned(8), may_alias));

static int32_t read_task(void *ctx, uint64_t task, uint32_t worker)
{
    struct reading *r = ctx;
    const char *p = r->data + task * r->each, *end = p + r->each;
    lanes a = {0}, b = {0}, c = {0}, d = {0};
    for (; p < end; p += 128) {
        a ^= *(const lanes *)(const void *)p;
        b ^= *(const lanes *)(const void *)(p + 32);
        c ^= *(const lanes *)(const void *)(p + 64);
        d ^= *(const lanes *)(const void *)(p + 96);
    }
    a ^= b ^ c ^ d;
    r->sums[worker] ^= a[0] ^ a[1] ^ a[2] ^ a[3];
    return IFX_OK;
}

struct reading_call {
    struct ifx_host *host;
    struct reading r;
};

static void read_all(void *ctx)
{
    struct reading_call *c = ctx;
    c->host->parallel_for(c->host, c->r.bytes / c->r.each, read_task, &c->r);
}

static double read_rate(struct ifx_host *host, const char *data, uint64_t bytes)
{
    struct reading_call c = {.host = host, .r = {.data = data, .bytes = bytes, .each = 1u << 20}};
    return (double)bytes / median(read_all, &c, host->n_workers(host), 0) * 1e-9;
}

struct peak_call {
    struct ifx_host *host;
    peak_fn fn;
    uint64_t rounds;
    double flops;
};

static int32_t peak_task(void *ctx, uint64_t task, uint32_t worker)
{
    struct peak_call *c = ctx;
    (void)worker;
    double flops = c->fn(c->rounds);
    if (task == 0)
        c->flops = flops;
    return IFX_OK;
}

static void peak_all(void *ctx)
{
    struct peak_call *c = ctx;
    c->host->parallel_for(c->host, c->host->n_workers(c->host) * 8ull, peak_task, c);
}

static double peak_rate(struct ifx_host *host, peak_fn fn)
{
    struct peak_call c = {.host = host, .fn = fn, .rounds = 20000};
    double seconds = median(peak_all, &c, host->n_workers(host), 0);
    return c.flops * host->n_workers(host) * 8 / seconds * 1e-9;
}

static peak_fn peak_of(uint32_t level)
{
#ifdef HAVE_ISA_AMX_BF16
    if (level == IFX_CPU_AMX_BF16)
        return peak_amx_bf16;
#endif
#ifdef HAVE_ISA_AVX512_BF16
    if (level == IFX_CPU_AVX512_BF16)
        return peak_avx512_bf16;
#endif
#ifdef HAVE_ISA_AVX512
    if (level == IFX_CPU_AVX512)
        return peak_avx512;
#endif
#ifdef HAVE_ISA_AVX2
    if (level == IFX_CPU_AVX2)
        return peak_avx2;
#endif
    return NULL;
}

static void ceilings(struct bench *b)
{
    struct ifx_host *one = minihost_create(1, b->level);
    uint64_t bytes = b->pool_bytes / (1u << 20) * (1u << 20);
    b->read_gbs = read_rate(b->host, b->pool, bytes);
    printf("read bandwidth       %8.1f GB/s with 1 thread, %8.1f with %u\n", read_rate(one, b->pool, bytes), b->read_gbs, b->threads);
    for (uint32_t level = IFX_CPU_AVX2; level <= minihost_detect(); level++) {
        if (!peak_of(level))
            continue;
        double all = peak_rate(b->host, peak_of(level));
        printf("peak %-15s %8.1f GFLOP/s with 1 thread, %8.1f with %u\n", minihost_level_name(level),
               peak_rate(one, peak_of(level)), all, b->threads);
        if (level <= b->level)
            b->peak_gflops = all;
        if (level <= b->level && level <= IFX_CPU_AVX512)
            b->peak_f32 = all;
    }
    minihost_destroy(one);
}

/* ---- products ---- */

struct product {
    struct bench *b;
    struct ifx_linear op;
    uint64_t matrix_bytes, at;
};

static void product_run(void *ctx)
{
    struct product *p = ctx;
    if (p->at + p->matrix_bytes > p->b->pool_bytes)
        p->at = 0;
    p->op.out[0].w.data = p->b->pool + p->at;
    p->op.out[0].w.scales = p->b->pool + (p->at ? 0 : p->matrix_bytes);
    p->at += (p->matrix_bytes + 4095) / 4096 * 4096;
    if (p->b->dev->ops->linear(p->b->dev, NULL, &p->op) != IFX_OK)
        exit(1);
}

static void products(struct bench *b, uint32_t dtype, uint32_t rows, uint32_t cols)
{
    static const uint32_t counts[] = {1, 2, 4, 8, 9, 16, 32, 64, 128, 256, 512};
    uint64_t element = dtype == IFX_W8G32 ? 1 : dtype == IFX_F32 ? 4 : 2;
    float *x = memory(512ull * cols * 4), *y = memory(512ull * rows * 4);
    for (uint64_t i = 0; i < 512ull * cols; i++)
        x[i] = (float)((int64_t)(i * 2654435761u % 2001) - 1000) * 1e-3f;
    for (uint32_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (b->quick && counts[i] != 1 && counts[i] != 16 && counts[i] != 512)
            continue;
        struct product p = {.b = b, .matrix_bytes = (uint64_t)rows * cols * element};
        p.op = (struct ifx_linear){.n = counts[i], .cols = cols, .count = 1, .x = x, .ldx = cols};
        p.op.out[0].w = (struct ifx_weight){.dtype = dtype, .rows = rows, .cols = cols};
        p.op.out[0].y = y;
        p.op.out[0].ldy = rows;
        p.op.ws = memory(b->dev->ops->linear_ws_bytes(b->dev, counts[i], cols));
        double s = median(product_run, &p, b->threads, b->best);
        double bytes = (double)p.matrix_bytes * (dtype == IFX_W8G32 ? 34.0 / 32 : 1), flops = 2.0 * rows * cols * counts[i];
        double peak = dtype == IFX_F32 ? b->peak_f32 : b->peak_gflops;
        printf("linear %-5s %5u x %5u n=%-3u %10.1f us %8.1f GB/s %4.0f %% %10.1f GFLOP/s %4.0f %%\n",
               dtype == IFX_W8G32 ? "w8g32" : dtype == IFX_F32 ? "f32" : "bf16", rows, cols, counts[i], s * 1e6,
               bytes / s * 1e-9, 100 * bytes / s * 1e-9 / b->read_gbs, flops / s * 1e-9,
               peak > 0 ? 100 * flops / s * 1e-9 / peak : 0.0);
        munmap(p.op.ws, b->dev->ops->linear_ws_bytes(b->dev, counts[i], cols));
    }
    munmap(x, 512ull * cols * 4);
    munmap(y, 512ull * rows * 4);
}

/* ---- the other operations, in the geometry of a layer of hidden 3072 ---- */

struct other {
    struct bench *b;
    uint32_t n;
    float *a, *c, *d, *state;
    int32_t *ids;
    void *ws;
};

enum { HIDDEN = 3072, HEADS = 32, D = 128, KEY_HEADS = 16, CHANNELS = 2 * KEY_HEADS * D + HEADS * D };

static void op_rms_norm(void *ctx)
{
    struct other *o = ctx;
    struct ifx_rms_norm op = {.rows = o->n, .width = HIDDEN, .w_rows = 1, .x = o->a, .ldx = HIDDEN, .w = o->d, .eps = 1e-6f,
                              .plus_one = 1, .y = o->c, .ldy = HIDDEN};
    o->b->dev->ops->rms_norm(o->b->dev, NULL, &op);
}

static void op_norm_rope(void *ctx)
{
    struct other *o = ctx;
    struct ifx_norm_rope op = {.n = o->n, .heads = 32, .d = 256, .rotary = 64, .x = o->a, .ldx = 8192, .ldx_head = 256,
                               .w = o->d, .eps = 1e-6f, .inv_freq = o->d, .positions = o->ids, .y = o->c, .ldy = 8192,
                               .ldy_head = 256};
    o->b->dev->ops->norm_rope(o->b->dev, NULL, &op);
}

static void op_conv(void *ctx)
{
    struct other *o = ctx;
    struct ifx_conv op = {.n = o->n, .channels = CHANNELS, .kernel = 4, .x = o->a, .ldx = CHANNELS, .w = o->d,
                          .state = o->state, .y = o->c, .ldy = CHANNELS};
    o->b->dev->ops->conv(o->b->dev, NULL, &op);
}

static void op_gdn_gate(void *ctx)
{
    struct other *o = ctx;
    struct ifx_gdn_gate op = {.n = o->n, .heads = HEADS, .a = o->a, .b = o->a, .lda = HEADS, .ldb = HEADS, .a_log = o->d,
                              .dt_bias = o->d, .g = o->c, .beta = o->c + 512 * HEADS};
    o->b->dev->ops->gdn_gate(o->b->dev, NULL, &op);
}

static void op_delta(void *ctx)
{
    struct other *o = ctx;
    struct ifx_gated_delta op = {.n = o->n, .k_heads = KEY_HEADS, .v_heads = HEADS, .dk = D, .dv = D, .q = o->a,
                                 .k = o->a + KEY_HEADS * D, .v = o->a + 2 * KEY_HEADS * D, .ldq = CHANNELS, .ldk = CHANNELS,
                                 .ldv = CHANNELS, .g = o->d, .beta = o->d, .state = o->state, .out = o->c, .ldo = HEADS * D,
                                 .ws = o->ws};
    o->b->dev->ops->gated_delta(o->b->dev, NULL, &op);
}

static void op_gated_norm(void *ctx)
{
    struct other *o = ctx;
    struct ifx_gated_norm op = {.n = o->n, .heads = HEADS, .width = D, .x = o->a, .z = o->a, .w = o->d, .ldx = HEADS * D,
                                .ldz = HEADS * D, .eps = 1e-6f, .y = o->c, .ldy = HEADS * D};
    o->b->dev->ops->gated_norm(o->b->dev, NULL, &op);
}

static void op_swiglu(void *ctx)
{
    struct other *o = ctx;
    struct ifx_swiglu op = {.n = o->n, .width = 8192, .gate = o->a, .up = o->a, .ldg = 8192, .ldu = 8192, .y = o->c, .ldy = 8192};
    o->b->dev->ops->swiglu(o->b->dev, NULL, &op);
}

static void op_sigmoid_gate(void *ctx)
{
    struct other *o = ctx;
    struct ifx_sigmoid_gate op = {.n = o->n, .heads = 32, .d = 256, .x = o->c, .ldx = 8192, .gate = o->a, .ldg = 8192,
                                  .ldg_head = 256};
    o->b->dev->ops->sigmoid_gate(o->b->dev, NULL, &op);
}

static void op_add(void *ctx)
{
    struct other *o = ctx;
    struct ifx_add op = {.n = o->n, .width = HIDDEN, .x = o->a, .ldx = HIDDEN, .y = o->c, .ldy = HIDDEN};
    o->b->dev->ops->add(o->b->dev, NULL, &op);
}

static void op_router(void *ctx)
{
    struct other *o = ctx;
    struct ifx_router op = {.n = o->n, .experts = 256, .top_k = 8, .renormalise = 1, .logits = o->a, .ldl = 256,
                            .ids = o->ids + 512, .weights = o->c};
    o->b->dev->ops->router(o->b->dev, NULL, &op);
}

static void op_combine(void *ctx)
{
    struct other *o = ctx;
    struct ifx_combine op = {.n = o->n, .top_k = 2, .width = HIDDEN, .parts = o->a, .ldp = HIDDEN, .weights = o->d, .y = o->c,
                             .ldy = HIDDEN};
    o->b->dev->ops->combine(o->b->dev, NULL, &op);
}

static void op_to_bf16(void *ctx)
{
    struct other *o = ctx;
    o->b->dev->ops->to_bf16(o->b->dev, NULL, o->a, HIDDEN, o->n, HIDDEN, (uint16_t *)(void *)o->c, HIDDEN);
}

/* values: float32 values read and written a column; fixed: values a call (state, weights); flops a column. */
static const struct {
    const char *name;
    void (*fn)(void *);
    double values, fixed, flops;
} others[] = {
    {"rms_norm 3072", op_rms_norm, 2 * HIDDEN, HIDDEN, 4 * HIDDEN},
    {"norm_rope 32 x 256", op_norm_rope, 2 * 8192, 256, 6 * 8192},
    {"conv 8192", op_conv, 2 * CHANNELS, 10 * CHANNELS, 8 * CHANNELS},
    {"gdn_gate 32", op_gdn_gate, 4 * HEADS, 2 * HEADS, 40 * HEADS},
    {"gated_delta 32 x 128 x 128", op_delta, CHANNELS + HEADS * D, 2.0 * HEADS * D * D, 7.0 * HEADS * D * D},
    {"gated_norm 32 x 128", op_gated_norm, 3 * HEADS * D, D, 25 * HEADS * D},
    {"swiglu 8192", op_swiglu, 3 * 8192, 0, 22 * 8192},
    {"sigmoid_gate 32 x 256", op_sigmoid_gate, 3 * 8192, 0, 22 * 8192},
    {"add 3072", op_add, 3 * HIDDEN, 0, HIDDEN},
    {"router 256 top-8", op_router, 256, 0, 20 * 256},
    {"combine 2 x 3072", op_combine, 3 * HIDDEN, 0, 4 * HIDDEN},
    {"to_bf16 3072", op_to_bf16, 1.5 * HIDDEN, 0, HIDDEN},
};

static void other_ops(struct bench *b)
{
    static const uint32_t counts[] = {1, 8, 64, 512};
    uint64_t most = 512ull * CHANNELS;
    struct other o = {.b = b, .a = memory(most * 4), .c = memory(most * 4), .d = memory(most * 4), .state = memory(most * 4),
                      .ids = memory(1u << 20)};
    struct ifx_gated_delta size = {.n = 512, .k_heads = KEY_HEADS, .v_heads = HEADS, .dk = D, .dv = D};
    o.ws = memory(b->dev->ops->gated_delta_ws_bytes(b->dev, &size));
    for (uint64_t i = 0; i < most; i++) {
        o.a[i] = (float)((int64_t)(i * 2654435761u % 2001) - 1000) * 2e-3f;
        o.d[i] = -0.01f;
    }
    for (int32_t i = 0; i < 512; i++)
        o.ids[i] = i + 1000;
    for (uint32_t i = 0; i < sizeof others / sizeof *others; i++)
        for (uint32_t j = 0; j < 4; j++) {
            if (b->quick && counts[j] != 1 && counts[j] != 512)
                continue;
            o.n = counts[j];
            double s = median(others[i].fn, &o, b->threads, b->best);
            double bytes = (others[i].values * o.n + others[i].fixed) * 4, flops = others[i].flops * o.n;
            printf("%-28s n=%-3u %10.2f us %8.1f GB/s %4.0f %% %10.1f GFLOP/s %4.0f %%\n", others[i].name, o.n, s * 1e6,
                   bytes / s * 1e-9, 100 * bytes / s * 1e-9 / b->read_gbs, flops / s * 1e-9,
                   b->peak_f32 > 0 ? 100 * flops / s * 1e-9 / b->peak_f32 : 0.0);
        }
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_ops PLUGIN.so [-t THREADS] [-l LEVEL] [-m MIB] [-q] [-b]\n");
    return 2;
}

int main(int argc, char **argv)
{
    struct bench b = {.threads = minihost_cpus(), .level = minihost_detect(), .pool_bytes = 1024ull << 20};
    uint32_t level = b.level;
    int c;
    while ((c = getopt(argc, argv, "t:l:m:qb")) != -1)
        if (c == 't' && atoi(optarg) > 0 && atoi(optarg) <= 256)
            b.threads = (uint32_t)atoi(optarg);
        else if (c == 'l' && minihost_parse_level(optarg, &level) == 0 && level <= b.level)
            b.level = level;
        else if (c == 'm' && atoi(optarg) >= 256)
            b.pool_bytes = (uint64_t)atoi(optarg) << 20;
        else if (c == 'q')
            b.quick = 1;
        else if (c == 'b')
            b.best = 1;
        else
            return usage();
    if (optind + 1 != argc)
        return usage();
    b.host = minihost_create(b.threads, b.level);
    b.dev = minihost_open(argv[optind], b.host, "cpu");
    if (!b.dev)
        return 1;
    b.pool = memory(b.pool_bytes);
    uint16_t *w = (uint16_t *)(void *)b.pool; /* small bf16 values, which are small int8 and fp16 values too */
    for (uint64_t i = 0; i < b.pool_bytes / 2; i++)
        w[i] = (uint16_t)(0x3c00u | (i * 40503u & 0x80ffu));
    struct ifx_device_props props = {.struct_size = sizeof props};
    b.dev->ops->props(b.dev, &props);
    printf("%s\n", props.name);
    ceilings(&b);
    products(&b, IFX_BF16, 4096, 3072);
    products(&b, IFX_BF16, 12288, 3072);
    products(&b, IFX_BF16, 1024, 1024);
    products(&b, IFX_BF16, 3072, 8192);
    products(&b, IFX_W8G32, 4096, 3072);
    products(&b, IFX_F32, 256, 3072);
    other_ops(&b);
    b.dev->ops->close(b.dev);
    minihost_destroy(b.host);
    return 0;
}
