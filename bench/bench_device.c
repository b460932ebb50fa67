/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_device.c - operations of a device with memory of its own, beside the floors that its bandwidth and its matrix units set.
 *
 *     bench_device PLUGIN.so [IDENTITY] [-f FILTER]        default: cuda
 *
 * An operation is captured in a graph many times over, so that launches from the host stay out of its time; operands rotate through
 * memory far larger than any cache.  The ceilings are measured in the same run: a copy on the device, counting bytes read and
 * written, and a large bf16 product.  The geometry is that of a model of hidden size 2048, as decode (1 and 8 columns) and prompt (64 to
 * 8192) use it.  Needs nothing but the plugin.
 */
#define _GNU_SOURCE
#include "minihost.h"

#include <infernix/numerics.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define POOL_BYTES (6ull << 30) /* weights and other inputs that rotate */
#define WORK_BYTES (3ull << 30) /* outputs, states, workspace */

enum { H = 2048, HEADS = 32, KEY_HEADS = 16, D = 128, CHANNELS = 2 * KEY_HEADS * D + HEADS * D, Q_HEADS = 16, HEAD_DIM = 256 };

struct bench {
    struct ifx_device *dev;
    const struct ifx_device_ops *o;
    void *stream;
    const char *filter;
    uint8_t *pool, *work;
    uint64_t at; /* of the pool */
    double bytes_per_s, flops_per_s, f32_per_s;
    uint32_t n;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(struct bench *b, int32_t status, const char *what)
{
    if (status == IFX_OK)
        return;
    fprintf(stderr, "%s: status %d: %s\n", what, status, minihost_error(b->dev->host));
    exit(1);
}

/* A place in the pool that was not used for as long as possible. */
static void *fresh(struct bench *b, uint64_t bytes)
{
    bytes = (bytes + 4095) / 4096 * 4096;
    if (b->at + bytes > POOL_BYTES)
        b->at = 0;
    void *p = b->pool + b->at;
    b->at += bytes;
    return p;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of one call: median of seven launches of a graph of `count` calls. */
static double seconds(struct bench *b, void (*fn)(struct bench *), uint32_t count)
{
    double t[7];
    void *graph = NULL;
    fn(b); /* choices that are made once */
    must(b, b->o->stream_sync(b->dev, b->stream), "warm-up");
    must(b, b->o->graph_begin(b->dev, b->stream), "capture");
    for (uint32_t i = 0; i < count; i++)
        fn(b);
    must(b, b->o->graph_end(b->dev, b->stream, &graph), "capture");
    for (uint32_t i = 0; i < 8; i++) {
        double from = now();
        must(b, b->o->graph_launch(b->dev, b->stream, graph), "launch");
        must(b, b->o->stream_sync(b->dev, b->stream), "launch");
        if (i > 0) /* the first uploads the graph */
            t[i - 1] = (now() - from) / count;
    }
    b->o->graph_destroy(b->dev, graph);
    qsort(t, 7, sizeof *t, compare);
    return t[3];
}

static void report(struct bench *b, const char *name, double s, double bytes, double flops, double flops_per_s)
{
    double by_bytes = bytes / b->bytes_per_s, by_flops = flops / flops_per_s, floor = by_bytes > by_flops ? by_bytes : by_flops;
    printf("| %-34s | %5u | %10.2f | %10.2f | %10.2f | %4.0f %% |\n", name, b->n, s * 1e6, by_bytes * 1e6, by_flops * 1e6, 100 * floor / s);
    fflush(stdout);
}

/* ---- ceilings ---- */

static void copy_call(struct bench *b)
{
    must(b, b->o->copy(b->dev, b->stream, b->pool, b->pool + (2ull << 30), 2ull << 30, IFX_COPY_ON_DEVICE), "copy");
}

/* Not from a graph, whose copies may take the slower copy engines. */
static double copy_rate(struct bench *b)
{
    double best = 0;
    for (uint32_t i = 0; i < 4; i++) {
        double from = now();
        for (uint32_t j = 0; j < 4; j++)
            copy_call(b);
        must(b, b->o->stream_sync(b->dev, b->stream), "copy");
        double rate = 4 * 2.0 * (double)(2ull << 30) / (now() - from);
        best = rate > best ? rate : best;
    }
    return best;
}

static uint32_t product_rows, product_cols, product_dtype, product_flags, product_count;

static void product_call(struct bench *b)
{
    struct ifx_linear op = {.n = b->n, .cols = product_cols, .count = product_count, .flags = product_flags, .ldx = product_cols};
    uint64_t size = (uint64_t)product_rows * product_cols * (product_dtype == IFX_F32 ? 4 : product_dtype == IFX_BF16 ? 2 : 1);
    op.x = (const float *)(void *)fresh(b, (uint64_t)b->n * product_cols * 4);
    for (uint32_t m = 0; m < product_count; m++) {
        op.out[m].w = (struct ifx_weight){.dtype = product_dtype, .rows = product_rows, .cols = product_cols};
        op.out[m].w.data = fresh(b, size);
        if (product_dtype == IFX_W8G32)
            op.out[m].w.scales = fresh(b, size / 16);
        op.out[m].y = (float *)(void *)(b->work + (1ull << 30)) + (uint64_t)m * product_rows * b->n;
        op.out[m].ldy = product_rows;
    }
    op.ws = b->work;
    must(b, b->o->linear(b->dev, b->stream, &op), "linear");
}

static void ceilings(struct bench *b)
{
    b->bytes_per_s = copy_rate(b);
    product_rows = product_cols = b->n = 8192;
    product_dtype = IFX_BF16;
    product_count = 1;
    b->flops_per_s = 2.0 * 8192.0 * 8192.0 * 8192.0 / seconds(b, product_call, 10);
    b->f32_per_s = 60e12;
    printf("copy on the device: %.2f TB/s read and written; bf16 product 8192 x 8192 x 8192: %.0f TFLOP/s (inputs rounded from float32 "
           "in it)\n\n", b->bytes_per_s * 1e-12, b->flops_per_s * 1e-12);
}

/* ---- products ---- */

static void products(struct bench *b, const char *name, uint32_t dtype, uint32_t rows, uint32_t cols, uint32_t count, uint32_t flags)
{
    static const uint32_t counts[] = {1, 2, 4, 8, 9, 64, 512, 2048, 8192};
    char text[80];
    double element = dtype == IFX_W8G32 ? 34.0 / 32 : dtype == IFX_F32 ? 4 : 2;
    product_rows = rows, product_cols = cols, product_dtype = dtype, product_count = count, product_flags = flags;
    snprintf(text, sizeof text, "%s %u x %u%s", name, rows, cols, count > 1 ? ", two" : "");
    if (b->filter && !strstr(text, b->filter))
        return;
    for (uint32_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (rows > 100000 && counts[i] > 64)
            break;
        b->n = counts[i];
        double size = (double)rows * cols * element * count, flops = 2.0 * rows * cols * count * b->n;
        uint32_t calls = size > 100e6 || counts[i] >= 2048 ? 10 : 100;
        double s = seconds(b, product_call, calls);
        report(b, text, s, size + 4.0 * b->n * (cols + (double)rows * count), flops, b->flops_per_s);
    }
}

/* ---- the other operations ---- */

static float *in(struct bench *b, uint64_t values)
{
    return (float *)fresh(b, values * 4);
}

static float *out(struct bench *b, uint64_t offset)
{
    return (float *)(void *)(b->work + offset);
}

static void call_rms_norm(struct bench *b)
{
    struct ifx_rms_norm op = {.rows = b->n, .width = H, .w_rows = 1, .x = in(b, (uint64_t)b->n * H), .ldx = H, .w = in(b, H), .eps = 1e-6f,
                              .plus_one = 1, .y = out(b, 0), .ldy = H};
    must(b, b->o->rms_norm(b->dev, b->stream, &op), "rms_norm");
}

static void call_norm_rope(struct bench *b)
{
    struct ifx_norm_rope op = {.n = b->n, .heads = Q_HEADS, .d = HEAD_DIM, .rotary = 64, .x = in(b, (uint64_t)b->n * Q_HEADS * HEAD_DIM * 2),
                               .ldx = Q_HEADS * HEAD_DIM * 2, .ldx_head = HEAD_DIM * 2, .w = in(b, HEAD_DIM), .eps = 1e-6f,
                               .inv_freq = in(b, 32), .positions = (const int32_t *)(void *)out(b, 2ull << 30), .y = out(b, 0),
                               .ldy = Q_HEADS * HEAD_DIM, .ldy_head = HEAD_DIM};
    must(b, b->o->norm_rope(b->dev, b->stream, &op), "norm_rope");
}

static void call_conv(struct bench *b)
{
    struct ifx_conv op = {.n = b->n, .channels = CHANNELS, .kernel = 4, .x = in(b, (uint64_t)b->n * CHANNELS), .ldx = CHANNELS,
                          .w = in(b, CHANNELS * 4), .state = out(b, 1ull << 30), .y = out(b, 0), .ldy = CHANNELS};
    must(b, b->o->conv(b->dev, b->stream, &op), "conv");
}

static void call_gdn_gate(struct bench *b)
{
    struct ifx_gdn_gate op = {.n = b->n, .heads = HEADS, .a = in(b, (uint64_t)b->n * HEADS), .b = in(b, (uint64_t)b->n * HEADS), .lda = HEADS,
                              .ldb = HEADS, .a_log = in(b, HEADS), .dt_bias = in(b, HEADS), .g = out(b, 0), .beta = out(b, 1u << 27)};
    must(b, b->o->gdn_gate(b->dev, b->stream, &op), "gdn_gate");
}

static void call_delta(struct bench *b)
{
    const float *x = in(b, (uint64_t)b->n * CHANNELS);
    struct ifx_gated_delta op = {.n = b->n, .k_heads = KEY_HEADS, .v_heads = HEADS, .dk = D, .dv = D, .q = x, .k = x + KEY_HEADS * D,
                                 .v = x + 2 * KEY_HEADS * D, .ldq = CHANNELS, .ldk = CHANNELS, .ldv = CHANNELS, .g = out(b, 3ull << 28),
                                 .beta = out(b, 3ull << 28), .state = out(b, (1ull << 30) + (b->at >> 12) % 64 * (HEADS * D * D * 4)),
                                 .out = out(b, 1u << 28), .ldo = HEADS * D, .ws = b->work};
    must(b, b->o->gated_delta(b->dev, b->stream, &op), "gated_delta");
}

static void call_gated_norm(struct bench *b)
{
    struct ifx_gated_norm op = {.n = b->n, .heads = HEADS, .width = D, .x = in(b, (uint64_t)b->n * HEADS * D),
                                .z = in(b, (uint64_t)b->n * HEADS * D), .w = in(b, D), .ldx = HEADS * D, .ldz = HEADS * D, .eps = 1e-6f,
                                .y = out(b, 0), .ldy = HEADS * D};
    must(b, b->o->gated_norm(b->dev, b->stream, &op), "gated_norm");
}

static void call_swiglu(struct bench *b)
{
    struct ifx_swiglu op = {.n = b->n, .width = 6144, .gate = in(b, (uint64_t)b->n * 6144), .up = in(b, (uint64_t)b->n * 6144), .ldg = 6144,
                            .ldu = 6144, .y = out(b, 0), .ldy = 6144};
    must(b, b->o->swiglu(b->dev, b->stream, &op), "swiglu");
}

static void call_sigmoid_gate(struct bench *b)
{
    struct ifx_sigmoid_gate op = {.n = b->n, .heads = Q_HEADS, .d = HEAD_DIM, .x = out(b, 0), .ldx = Q_HEADS * HEAD_DIM,
                                  .gate = in(b, (uint64_t)b->n * Q_HEADS * HEAD_DIM * 2) + HEAD_DIM, .ldg = Q_HEADS * HEAD_DIM * 2,
                                  .ldg_head = HEAD_DIM * 2};
    must(b, b->o->sigmoid_gate(b->dev, b->stream, &op), "sigmoid_gate");
}

static void call_add(struct bench *b)
{
    struct ifx_add op = {.n = b->n, .width = H, .x = in(b, (uint64_t)b->n * H), .ldx = H, .y = out(b, 0), .ldy = H};
    must(b, b->o->add(b->dev, b->stream, &op), "add");
}

static void call_router(struct bench *b)
{
    struct ifx_router op = {.n = b->n, .experts = 256, .top_k = 8, .renormalise = 1, .logits = in(b, (uint64_t)b->n * 256), .ldl = 256,
                            .ids = (int32_t *)(void *)out(b, 0), .weights = out(b, 1u << 24)};
    must(b, b->o->router(b->dev, b->stream, &op), "router");
}

static void call_group(struct bench *b)
{
    struct ifx_group op = {.n = b->n, .top_k = 8, .experts = 256, .n_entries = b->n * 8 < 256 ? b->n * 8 : 256,
                           .ids = (const int32_t *)(void *)out(b, 2ull << 30), .offsets = (uint32_t *)(void *)out(b, 0),
                           .rows = (uint32_t *)(void *)out(b, 1u << 20), .entries = (uint32_t *)(void *)out(b, 1u << 24),
                           .ws = out(b, 1u << 25)};
    must(b, b->o->group(b->dev, b->stream, &op), "group");
}

static void call_combine(struct bench *b)
{
    struct ifx_combine op = {.n = b->n, .top_k = 8, .width = H, .parts = in(b, (uint64_t)b->n * 8 * H), .ldp = H,
                             .weights = in(b, (uint64_t)b->n * 8), .y = out(b, 0), .ldy = H};
    must(b, b->o->combine(b->dev, b->stream, &op), "combine");
}

static void call_to_bf16(struct bench *b)
{
    must(b, b->o->to_bf16(b->dev, b->stream, in(b, (uint64_t)b->n * H), H, b->n, H, (uint16_t *)(void *)out(b, 0), H), "to_bf16");
}

enum { VOCAB = 248320 };

static void sample_call(struct bench *b, float temperature, float top_p, uint32_t top_k)
{
    struct ifx_sample op = {.n = b->n, .vocab = VOCAB, .logits = in(b, (uint64_t)b->n * VOCAB), .ldl = VOCAB, .temperature = temperature,
                            .top_p = top_p, .top_k = top_k, .u = out(b, 2ull << 30), .tokens = (int32_t *)(void *)out(b, 0), .ws = out(b, 4096)};
    must(b, b->o->sample(b->dev, b->stream, &op), "sample");
}

static void call_greedy(struct bench *b)
{
    sample_call(b, 0, 1, 0);
}

static void call_sample(struct bench *b)
{
    sample_call(b, 0.7f, 0.9f, 20);
}

/* values: float32 values read and written a column; fixed: values a call (state, weights); flops a column. */
static const struct {
    const char *name;
    void (*fn)(struct bench *);
    double values, fixed, flops;
    uint32_t most;
} others[] = {
    {"rms_norm 2048", call_rms_norm, 2 * H, H, 4 * H, 8192},
    {"norm_rope 16 x 256", call_norm_rope, 2 * Q_HEADS * HEAD_DIM, HEAD_DIM, 6 * Q_HEADS * HEAD_DIM, 8192},
    {"conv 8192, kernel 4", call_conv, 2 * CHANNELS, 10 * CHANNELS, 8 * CHANNELS, 8192},
    {"gdn_gate 32", call_gdn_gate, 4 * HEADS, 2 * HEADS, 40 * HEADS, 8192},
    {"gated_delta 32 x 128 x 128", call_delta, CHANNELS + HEADS * D, 2.0 * HEADS * D * D, 7.0 * HEADS * D * D, 8192},
    {"gated_norm 32 x 128", call_gated_norm, 3 * HEADS * D, D, 25 * HEADS * D, 8192},
    {"swiglu 6144", call_swiglu, 3 * 6144, 0, 22 * 6144, 8192},
    {"sigmoid_gate 16 x 256", call_sigmoid_gate, 3 * Q_HEADS * HEAD_DIM, 0, 22 * Q_HEADS * HEAD_DIM, 8192},
    {"add 2048", call_add, 3 * H, 0, H, 8192},
    {"router 256, top-8", call_router, 256 + 16, 0, 20 * 256, 8192},
    {"group 256, top-8", call_group, 16, 514, 0, 8192},
    {"combine 8 x 2048", call_combine, 9 * H, 0, 16 * H, 8192},
    {"to_bf16 2048", call_to_bf16, 1.5 * H, 0, H, 8192},
    {"sample greedy, 248320", call_greedy, VOCAB, 0, 0, 8},
    {"sample top-k 20, top-p 0.9", call_sample, VOCAB, 0, 0, 8},
};

static void other_ops(struct bench *b)
{
    static const uint32_t counts[] = {1, 8, 64, 512, 2048, 8192};
    for (uint32_t i = 0; i < sizeof others / sizeof *others; i++)
        for (uint32_t j = 0; j < 6; j++) {
            if (counts[j] > others[i].most || (b->filter && !strstr(others[i].name, b->filter)))
                break;
            b->n = counts[j];
            double s = seconds(b, others[i].fn, counts[j] >= 2048 ? 20 : 100);
            report(b, others[i].name, s, (others[i].values * b->n + others[i].fixed) * 4, others[i].flops * b->n, b->f32_per_s);
        }
}

/* ---- data ---- */

static void put(struct bench *b, void *to, const void *from, uint64_t bytes)
{
    must(b, b->o->copy(b->dev, b->stream, to, from, bytes, IFX_COPY_TO_DEVICE), "copy");
    must(b, b->o->stream_sync(b->dev, b->stream), "copy");
}

/* Floats of about one, whose halves are bf16 of about one and whose bytes are any int8. */
static void fill_memory(struct bench *b)
{
    const uint64_t bytes = 256u << 20;
    uint32_t *host = malloc(bytes);
    if (!host)
        exit(1);
    for (uint64_t i = 0; i < bytes / 4; i++) {
        uint32_t r = (uint32_t)(i * 2654435761u), s = r ^ r >> 15;
        host[i] = 0x3f003f00u | (s & 0x80ff80ffu);
    }
    for (uint64_t at = 0; at < POOL_BYTES; at += bytes)
        put(b, b->pool + at, host, bytes);
    must(b, b->o->fill(b->dev, b->stream, b->work, 0, WORK_BYTES), "fill");
    for (uint32_t i = 0; i < 8192 * 32; i++)
        ((float *)(void *)host)[i] = -0.01f;
    put(b, b->work + (3ull << 28), host, 8192 * 32 * 4);
    for (uint32_t i = 0; i < 65536; i++)
        host[i] = i * 2654435761u >> 24; /* positions, expert ids, numbers near zero */
    put(b, b->work + (2ull << 30), host, 65536 * 4);
    free(host);
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_device PLUGIN.so [IDENTITY] [-f FILTER]\n");
    return 2;
}

int main(int argc, char **argv)
{
    struct bench b = {.n = 1};
    int c;
    while ((c = getopt(argc, argv, "f:")) != -1)
        if (c == 'f')
            b.filter = optarg;
        else
            return usage();
    if (optind >= argc || optind + 2 < argc)
        return usage();
    struct ifx_host *host = minihost_create(1, minihost_detect());
    b.dev = minihost_open(argv[optind], host, optind + 1 < argc ? argv[optind + 1] : "cuda");
    if (!b.dev)
        return 1;
    b.o = b.dev->ops;
    struct ifx_device_props props = {.struct_size = sizeof props};
    must(&b, b.o->props(b.dev, &props), "properties");
    printf("%s: %s\n", props.name, props.detail);
    must(&b, b.o->stream_create(b.dev, &b.stream), "stream");
    must(&b, b.o->mem_alloc(b.dev, POOL_BYTES, (void **)&b.pool), "memory");
    must(&b, b.o->mem_alloc(b.dev, WORK_BYTES, (void **)&b.work), "memory");
    fill_memory(&b);
    ceilings(&b);
    printf("| operation                          |     n |         us |  bytes, us |  FLOPs, us | floor  |\n"
           "| ---------------------------------- | ----: | ---------: | ---------: | ---------: | -----: |\n");
    products(&b, "linear bf16", IFX_BF16, 12288, H, 1, 0);
    products(&b, "linear bf16", IFX_BF16, 4096, H, 1, 0);
    products(&b, "linear bf16", IFX_BF16, H, 4096, 1, 0);
    products(&b, "linear bf16", IFX_BF16, 512, H, 2, 0);
    products(&b, "linear bf16", IFX_BF16, VOCAB, H, 1, 0);
    products(&b, "linear int8", IFX_W8G32, 12288, H, 1, 0);
    products(&b, "router product", IFX_BF16, 256, H, 1, IFX_LINEAR_F32);
    other_ops(&b);
    b.o->mem_free(b.dev, b.pool);
    b.o->mem_free(b.dev, b.work);
    b.o->stream_destroy(b.dev, b.stream);
    b.o->close(b.dev);
    minihost_destroy(host);
    return 0;
}
