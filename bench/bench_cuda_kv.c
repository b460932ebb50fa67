/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_cuda_kv.c - speed of attention over a KV format on a CUDA device: bench_cuda_kv HEAD_DIM KV_HEADS GROUP TFLOPS COPY_GBS
 * PLUGIN.so ...
 *
 * Decode: one column at some contexts; prompts: some columns at the end of a context.  Beside each time the floor: the stored
 * bytes of the context at COPY_GBS, or the operations of what is seen at TFLOPS (as in bench_cuda_experts).
 */
#include "../tests/banks/mini_host.h"

#include <infernix/kv.h>

#include "cuda_timing.h"

#include <math.h>

struct bench {
    struct mini_cuda cuda;
    struct mini_host host;
    const struct ifx_kv_ops *ops;
    struct ifx_kv_shape shape;
    uint32_t group;
    double copy_rate, peak;
    void *kv, *side;
};

static void *filled(struct bench *b, uint64_t floats)
{
    float *x = malloc(floats * 4);
    uint64_t z = floats;
    if (!x)
        exit(99);
    for (uint64_t i = 0; i < floats; i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(z >> 40) * 0x1p-23f - 1.0f;
    }
    void *p = mini_copy(&b->cuda, x, floats * 4);
    free(x);
    return p;
}

/* `caches` caches of `tokens` tokens, so that together they exceed what a cache memory holds. */
static void one(struct bench *b, uint32_t tokens, uint32_t n)
{
    const uint32_t heads = b->shape.n_kv_heads, d = b->shape.head_dim, pt = b->shape.page_tokens, pages = tokens / pt;
    const uint64_t page_bytes = b->ops->page_bytes(&b->shape), cache = pages * page_bytes, row = (uint64_t)heads * d;
    uint32_t caches = n > 8 ? 1 : (uint32_t)(200000000 / cache) + 1;
    caches = caches > 64 ? 64 : caches;
    char *frames = mini_device(&b->cuda, cache * caches);
    void **address = malloc(pages * sizeof *address), *tables[64], *graph, *exec;
    int32_t *position = malloc(tokens * 4);
    void *k = filled(b, tokens * row), *q = filled(b, n * row * b->group);
    void *out = mini_device(&b->cuda, n * row * b->group * 4);
    void *ws = mini_device(&b->cuda, b->ops->device_ws_bytes(b->kv, b->side, n, heads * b->group, tokens) + 1);
    if (!address || !position)
        exit(99);
    for (uint32_t i = 0; i < tokens; i++)
        position[i] = (int32_t)i;
    void *positions = mini_copy(&b->cuda, position, tokens * 4);
    for (uint32_t c = 0; c < caches; c++) {
        for (uint32_t p = 0; p < pages; p++)
            address[p] = frames + c * cache + (uint64_t)(p * 7919u % pages) * page_bytes;
        if (pages % 7919u == 0)
            exit(99);
        tables[c] = mini_copy(&b->cuda, address, pages * sizeof *address);
        struct ifx_kv_device_append a = {sizeof a, tokens, positions, tables[c], k, k, row, row};
        if (b->ops->device_append(b->kv, b->side, b->cuda.stream, &a))
            exit(1);
    }
    mini_sync(&b->cuda, "append");
    mini_must(b->cuda.capture_begin(b->cuda.stream, 1), "capture");
    for (uint32_t c = 0; c < caches; c++) {
        struct ifx_kv_device_attend a = {sizeof a, n, heads * b->group, tokens, (int32_t *)positions + (tokens - n), tables[c], q,
                                         row * b->group, d, 1.0f / sqrtf((float)d), 0, out, row * b->group, NULL, NULL, 0, ws};
        if (b->ops->device_attend(b->kv, b->side, b->cuda.stream, &a))
            exit(1);
    }
    mini_must(b->cuda.capture_end(b->cuda.stream, &graph), "capture");
    mini_must(b->cuda.graph_make(&exec, graph, 0), "graph");
    const double s = time_graph(&b->cuda, exec) / caches, seen = (double)n * tokens - 0.5 * (double)n * (n - 1);
    const double flops = 4.0 * seen * heads * b->group * d, by = (double)cache / b->copy_rate, fl = flops / b->peak;
    printf("kv %-5s %6u tokens, %5u columns: %9.2f us, floor %8.2f us (%s), %3.0f %% of it; %7.1f GB/s %6.1f TFLOP/s\n", b->ops->format,
           tokens, n, s * 1e6, (by > fl ? by : fl) * 1e6, by > fl ? "bytes" : "flops", (by > fl ? by : fl) / s * 100,
           (double)cache / s * 1e-9, flops / s * 1e-12);
    for (uint32_t c = 0; c < caches; c++)
        mini_release(&b->cuda, tables[c]);
    mini_release(&b->cuda, frames);
    mini_release(&b->cuda, k);
    mini_release(&b->cuda, q);
    mini_release(&b->cuda, out);
    mini_release(&b->cuda, ws);
    mini_release(&b->cuda, positions);
    free(address);
    free(position);
}

int main(int argc, char **argv)
{
    static const uint32_t cases[][2] = {{1024, 1}, {8192, 1}, {32768, 1}, {131072, 1}, {8192, 4}, {32768, 8}, {1024, 1024}, {8192, 8192}, {32768, 512}};
    const char *only = getenv("IFX_BENCH_TOKENS"); /* for a profiler */
    struct bench b;
    if (argc < 7) {
        fprintf(stderr, "usage: bench_cuda_kv HEAD_DIM KV_HEADS GROUP TFLOPS COPY_GBS PLUGIN.so ...\n");
        return 2;
    }
    memset(&b, 0, sizeof b);
    if (!mini_cuda_open(&b.cuda))
        return 77;
    b.shape = (struct ifx_kv_shape){sizeof b.shape, (uint32_t)atoi(argv[1]), (uint32_t)atoi(argv[2]), 64};
    b.group = (uint32_t)atoi(argv[3]);
    b.peak = atof(argv[4]) * 1e12;
    b.copy_rate = atof(argv[5]) * 1e9;
    printf("floors: %.0f GB/s, %s TFLOP/s; %u KV heads of %u, %u query heads each\n", b.copy_rate * 1e-9, argv[4], b.shape.n_kv_heads,
           b.shape.head_dim, b.group);
    for (int i = 6; i < argc; i++) {
        mini_host_init(&b.host, 0);
        b.ops = (const struct ifx_kv_ops *)(const void *)mini_load(argv[i], &b.host);
        if (!b.ops || !b.ops->device_open)
            return 1;
        if (b.ops->open(&b.host.host, NULL, &b.shape, &b.kv) || b.ops->device_open(b.kv, &b.cuda.compute, &b.side)) {
            fprintf(stderr, "%s: %s\n", argv[i], b.host.error);
            return 1;
        }
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
            if (!only || (uint32_t)atoi(only) == cases[c][0])
                one(&b, cases[c][0], cases[c][1]);
        b.ops->device_close(b.kv, b.side);
        b.ops->close(b.kv);
    }
    return 0;
}
