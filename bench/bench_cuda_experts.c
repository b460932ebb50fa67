/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_cuda_experts.c - speed of the experts of one layer on a CUDA device: bench_cuda_experts HIDDEN INTER EXPERTS TOP_K
 * TFLOPS COPY_GBS PLUGIN.so ...
 *
 * For each number of columns: the time of one device_forward with an even routing, from a graph of several calls on different
 * records (so that none is found in a cache), and beside it the floor: the bytes of the experts touched at COPY_GBS (read and
 * written by a copy on the device), or the operations at TFLOPS (of a large bf16 product), both as a library reaches them on
 * the same machine.
 */
#include "../tests/banks/mini_host.h"
#include "cuda_timing.h"

#include <math.h>

enum { KINDS = 4 /* records that differ; the addresses do in all */ };

struct bench {
    struct mini_cuda cuda;
    struct mini_host host;
    const struct ifx_expert_ops *ops;
    struct ifx_expert_shape shape;
    uint32_t experts, top_k;
    uint64_t record_bytes;
    double copy_rate, peak;
    void *bank, *side;
    char *records;
};

static uint32_t random_u32(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

static void *need(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p)
        exit(99);
    return p;
}

static void make_records(struct bench *b)
{
    const size_t count = (size_t)b->shape.hidden * b->shape.inter;
    float *w = need(3 * count * sizeof *w);
    void *record = NULL;
    uint64_t seed = 1;
    if (posix_memalign(&record, 4096, b->record_bytes))
        exit(99);
    b->records = mini_device(&b->cuda, b->record_bytes * b->experts);
    for (uint32_t k = 0; k < KINDS; k++) {
        for (size_t i = 0; i < 3 * count; i++)
            w[i] = ((float)(random_u32(&seed) >> 8) * 0x1p-24f - 0.5f) * 0.1f;
        if (b->ops->pack(b->bank, w, w + count, w + 2 * count, record))
            exit(99);
        for (uint32_t e = k; e < b->experts; e += KINDS)
            mini_put(&b->cuda, b->records + e * b->record_bytes, record, b->record_bytes);
    }
    free(w);
    free(record);
}

/* One call on the device: each column takes top_k different experts, starting anywhere. */
static double make_call(struct bench *b, uint32_t n, uint64_t seed, struct ifx_expert_device_call *c)
{
    const uint32_t e_count = b->experts, k = b->top_k, pairs = n * k;
    uint32_t *of = need(pairs * 4), *offsets = calloc(e_count + 2, 4), *rows = need(pairs * 4), *entry = need(e_count * 4), entries = 0;
    void **address = need(e_count * sizeof *address);
    uint32_t widest = 0;
    if (!offsets)
        exit(99);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t r = 0; r < k; r++) {
            int again = 1;
            while (again) {
                of[i * k + r] = random_u32(&seed) % e_count;
                again = 0;
                for (uint32_t s = 0; s < r; s++)
                    again |= of[i * k + s] == of[i * k + r];
            }
            offsets[of[i * k + r] + 2]++;
        }
    for (uint32_t e = 0; e < e_count; e++) {
        const uint32_t have = offsets[e + 2];
        widest = have > widest ? have : widest;
        if (have) {
            entry[entries] = e;
            address[entries++] = b->records + e * b->record_bytes;
        }
        offsets[e + 2] += offsets[e + 1];
    }
    for (uint32_t p = 0; p < pairs; p++)
        rows[offsets[of[p] + 1]++] = p;
    const uint64_t ws = b->ops->device_ws_bytes(b->bank, b->side, n, k), h = b->shape.hidden;
    uint16_t *x = need(n * h * 2);
    for (uint64_t i = 0; i < n * h; i++)
        x[i] = (uint16_t)(0x3f00u | (random_u32(&seed) & 0x80ffu));
    *c = (struct ifx_expert_device_call){sizeof *c, n, k, entries, mini_copy(&b->cuda, address, entries * sizeof *address),
                                         mini_copy(&b->cuda, entry, entries * 4), mini_copy(&b->cuda, offsets, (e_count + 1) * 4),
                                         mini_copy(&b->cuda, rows, pairs * 4), widest, pairs, mini_copy(&b->cuda, x, n * h * 2), h,
                                         mini_device(&b->cuda, pairs * h * 4), h, mini_device(&b->cuda, ws)};
    /* what a host knows of a decode step: no expert has more than n columns */
    c->widest = n <= IFX_NARROW_COLUMNS ? n : widest;
    free(of);
    free(offsets);
    free(rows);
    free(entry);
    free(address);
    free(x);
    return (double)entries * (double)b->record_bytes;
}

static void free_call(struct bench *b, struct ifx_expert_device_call *c)
{
    mini_release(&b->cuda, (void *)(uintptr_t)c->records);
    mini_release(&b->cuda, (void *)(uintptr_t)c->experts);
    mini_release(&b->cuda, (void *)(uintptr_t)c->offsets);
    mini_release(&b->cuda, (void *)(uintptr_t)c->rows);
    mini_release(&b->cuda, (void *)(uintptr_t)c->x);
    mini_release(&b->cuda, c->y);
    mini_release(&b->cuda, c->ws);
}

static void one_width(struct bench *b, uint32_t n)
{
    struct ifx_expert_device_call c[16];
    const uint32_t calls = n <= 16 ? 16 : n <= 256 ? 4 : 1;
    void *graph, *exec;
    double bytes = 0, flops = 6.0 * n * b->top_k * b->shape.hidden * b->shape.inter;
    for (uint32_t i = 0; i < calls; i++)
        bytes += make_call(b, n, 1000 + i, &c[i]) / calls;
    mini_must(b->cuda.capture_begin(b->cuda.stream, 1), "capture");
    for (uint32_t i = 0; i < calls; i++)
        if (b->ops->device_forward(b->bank, b->side, b->cuda.stream, &c[i]))
            exit(1);
    mini_must(b->cuda.capture_end(b->cuda.stream, &graph), "capture");
    mini_must(b->cuda.graph_make(&exec, graph, 0), "graph");
    const double s = time_graph(&b->cuda, exec) / calls, by = bytes / b->copy_rate, fl = flops / b->peak;
    printf("%-6s %5u columns, widest %4u: %9.2f us, floor %8.2f us (%s), %3.0f %% of it; %7.1f GB/s %6.1f TFLOP/s\n", b->ops->format, n,
           c[0].widest, s * 1e6, (by > fl ? by : fl) * 1e6, by > fl ? "bytes" : "flops", (by > fl ? by : fl) / s * 100, bytes / s * 1e-9,
           flops / s * 1e-12);
    for (uint32_t i = 0; i < calls; i++)
        free_call(b, &c[i]);
}

int main(int argc, char **argv)
{
    static const uint32_t widths[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
    const char *only = getenv("IFX_BENCH_COLUMNS"); /* for a profiler */
    struct bench b;
    if (argc < 8) {
        fprintf(stderr, "usage: bench_cuda_experts HIDDEN INTER EXPERTS TOP_K TFLOPS COPY_GBS PLUGIN.so ...\n");
        return 2;
    }
    memset(&b, 0, sizeof b);
    if (!mini_cuda_open(&b.cuda))
        return 77;
    b.shape = (struct ifx_expert_shape){sizeof b.shape, (uint32_t)atoi(argv[1]), (uint32_t)atoi(argv[2]), 0};
    b.experts = (uint32_t)atoi(argv[3]);
    b.top_k = (uint32_t)atoi(argv[4]);
    b.peak = atof(argv[5]) * 1e12;
    b.copy_rate = atof(argv[6]) * 1e9;
    printf("floors: %.0f GB/s, %s TFLOP/s; experts of %u x %u, %u of %u\n", b.copy_rate * 1e-9, argv[5], b.shape.hidden, b.shape.inter,
           b.top_k, b.experts);
    for (int i = 7; i < argc; i++) {
        mini_host_init(&b.host, 0);
        b.ops = mini_load(argv[i], &b.host);
        if (!b.ops || !b.ops->device_open)
            return 1;
        b.record_bytes = b.ops->record_bytes(&b.shape);
        if (b.ops->open(&b.host.host, NULL, &b.shape, &b.bank) || b.ops->device_open(b.bank, &b.cuda.compute, &b.side)) {
            fprintf(stderr, "%s: %s\n", argv[i], b.host.error);
            return 1;
        }
        make_records(&b);
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            if (!only || (uint32_t)atoi(only) == widths[w])
                one_width(&b, widths[w]);
        mini_release(&b.cuda, b.records);
        b.ops->device_close(b.bank, b.side);
        b.ops->close(b.bank);
    }
    return 0;
}
