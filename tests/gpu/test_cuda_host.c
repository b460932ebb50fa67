/* SPDX-License-Identifier: Apache-2.0
 *
 * test_cuda_host.c - the host sides of formats against a pretended compute table: needs no GPU.  test_cuda_host PLUGIN.so ...
 *
 * What is launched must fit the architectures that the kernels are built for; a table that refuses must leave nothing behind.
 */
#include "../banks/mini_host.h"

#include <infernix/kv.h>

static int failures, checks;
static long live; /* allocations of the host that are not freed */

static void expect(int ok, const char *what, const char *format, long value)
{
    checks++;
    if (!ok && failures++ < 30)
        printf("  FAIL %s: %s (%ld)\n", format, what, value);
}

struct pretended {
    struct ifx_compute compute;
    int modules, fail_module, fail_kernel, launches, most_shared, most_threads;
    long zero_grids;
};

static void *counted_alloc(const struct ifx_host *host, uint64_t bytes, uint64_t align)
{
    void *p = mini_alloc(host, bytes, align);
    live += p != NULL;
    return p;
}

static void counted_free(const struct ifx_host *host, void *memory)
{
    live -= memory != NULL;
    mini_free(host, memory);
}

static int32_t module_load(const struct ifx_compute *c, const void *image, uint64_t bytes, void **module)
{
    struct pretended *p = c->ctx;
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    *module = NULL;
    if (p->fail_module || magic != 0xba55ed50u || bytes < 1000) /* of a fat binary */
        return IFX_EUNSUPPORTED;
    p->modules++;
    *module = p;
    return IFX_OK;
}

static void module_unload(const struct ifx_compute *c, void *module)
{
    struct pretended *p = c->ctx;
    p->modules -= module == p;
}

static int32_t kernel(const struct ifx_compute *c, void *module, const char *name, uint32_t shared, void **out)
{
    struct pretended *p = c->ctx;
    (void)module;
    if (p->fail_kernel > 0 && --p->fail_kernel == 0)
        return IFX_EDEVICE;
    if (shared > c->max_shared)
        return IFX_EDEVICE;
    *out = (void *)(uintptr_t)name;
    return IFX_OK;
}

static int32_t launch(const struct ifx_compute *c, void *stream, void *k, const uint32_t grid[3], const uint32_t block[3], uint32_t shared,
                      void *const *args)
{
    struct pretended *p = c->ctx;
    (void)stream;
    (void)k;
    (void)args;
    p->launches++;
    p->most_shared = (int)shared > p->most_shared ? (int)shared : p->most_shared;
    p->most_threads = (int)(block[0] * block[1] * block[2]) > p->most_threads ? (int)(block[0] * block[1] * block[2]) : p->most_threads;
    p->zero_grids += grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[1] > 65535 || grid[2] > 65535;
    return IFX_OK;
}

static void pretend(struct pretended *p, uint32_t arch)
{
    memset(p, 0, sizeof *p);
    p->compute = (struct ifx_compute){sizeof p->compute, IFX_COMPUTE_CUDA, arch, arch < 100 ? 132 : 170, arch < 100 ? 232448 : 101376, 32,
                                      1u << 25, p, module_load, module_unload, kernel, launch, launch};
}

/* After a launch or a refusal. */
static void judge(const struct pretended *p, const char *format)
{
    expect(p->most_shared <= (int)p->compute.max_shared, "a launch asks for more shared memory than there is", format, p->most_shared);
    expect(p->most_threads <= 1024, "a launch has too many threads", format, p->most_threads);
    expect(p->zero_grids == 0, "a grid is empty or too large", format, p->zero_grids);
    expect(p->modules == 0, "modules are left loaded", format, p->modules);
}

static void run_expert(const struct ifx_expert_ops *ops, const struct ifx_host *host, uint32_t arch)
{
    static const uint32_t shapes[][2] = {{2048, 512}, {64, 32}, {3072, 1024}, {16, 4096}};
    static const struct { uint32_t n, top_k, entries, widest; } calls[] = {{1, 8, 8, 1}, {8, 8, 64, 8}, {8192, 8, 256, 400}, {1, 1, 1, 1}, {65536, 8, 256, 65536}};
    struct pretended p;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        struct ifx_expert_shape shape = {sizeof shape, shapes[s][0], shapes[s][1], 0};
        void *bank, *side = NULL;
        pretend(&p, arch);
        expect(ops->open(host, NULL, &shape, &bank) == 0, "open", ops->format, 0);
        const long before = live;
        for (int fail = 1; fail <= 6; fail++) {
            p.fail_module = fail == 6;
            p.fail_kernel = fail == 6 ? 0 : fail;
            expect(ops->device_open(bank, &p.compute, &side) != 0 && side == NULL && live == before, "a refusal is passed on and leaves nothing",
                   ops->format, fail);
        }
        p.fail_module = p.fail_kernel = 0;
        p.compute.arch = 80;
        expect(ops->device_open(bank, &p.compute, &side) == IFX_EUNSUPPORTED, "an older device is refused", ops->format, 80);
        p.compute.arch = arch;
        int32_t status = ops->device_open(bank, &p.compute, &side);
        expect(status == 0, "device_open", ops->format, status);
        for (size_t i = 0; i < sizeof calls / sizeof *calls && status == 0; i++) {
            struct ifx_expert_device_call c = {.struct_size = sizeof c, .n = calls[i].n, .top_k = calls[i].top_k,
                                               .n_entries = calls[i].entries, .widest = calls[i].widest, .pairs = calls[i].n * calls[i].top_k};
            const uint64_t ws = ops->device_ws_bytes(bank, side, c.n, c.top_k);
            expect(ws >= (uint64_t)c.pairs * shape.inter * 2, "the workspace holds the hidden values", ops->format, (long)ws);
            p.launches = 0;
            expect(ops->device_forward(bank, side, NULL, &c) == 0, "device_forward", ops->format, (long)i);
            expect(p.launches == (c.widest > 8 ? 5 : 2), "launches of a call", ops->format, p.launches);
        }
        if (status == 0)
            ops->device_close(bank, side);
        expect(live == before, "device_close gives everything back", ops->format, live - before);
        judge(&p, ops->format);
        ops->close(bank);
    }
}

static void run_kv(const struct ifx_kv_ops *ops, const struct ifx_host *host, uint32_t arch)
{
    static const uint32_t shapes[][2] = {{128, 2}, {64, 8}, {72, 1}, {8, 4}, {256, 2}};
    struct pretended p;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        struct ifx_kv_shape shape = {sizeof shape, shapes[s][0], shapes[s][1], 64};
        void *kv, *side = NULL;
        pretend(&p, arch);
        expect(ops->open(host, NULL, &shape, &kv) == 0, "open", ops->format, 0);
        const long before = live;
        for (int fail = 1; fail <= 5; fail++) {
            p.fail_module = fail == 5;
            p.fail_kernel = fail == 5 ? 0 : fail;
            expect(ops->device_open(kv, &p.compute, &side) != 0 && side == NULL && live == before, "a refusal is passed on and leaves nothing",
                   ops->format, fail);
        }
        p.fail_module = p.fail_kernel = 0;
        int32_t status = ops->device_open(kv, &p.compute, &side);
        /* float32 rows of 256 do not fit in what a block of sm_120 has */
        expect(status == 0 || (arch == 120 && shape.head_dim == 256 && strcmp(ops->format, "f32") == 0 && status == IFX_EUNSUPPORTED),
               "device_open", ops->format, status);
        for (uint32_t n = 1; n <= 8192 && status == 0; n = n * 3 + 1) {
            const int32_t any = 0;
            struct ifx_kv_device_append a = {.struct_size = sizeof a, .n = n};
            struct ifx_kv_device_attend c = {.struct_size = sizeof c, .n = n, .n_q_heads = 8 * shape.n_kv_heads, .max_tokens = 40000};
            p.launches = 0;
            expect(ops->device_append(kv, side, NULL, &a) == 0 && p.launches == 1, "device_append", ops->format, n);
            expect(ops->device_attend(kv, side, NULL, &c) == 0 && p.launches >= 2, "device_attend", ops->format, n);
            c.rows = &any;
            expect(ops->device_attend(kv, side, NULL, &c) == 0 && p.launches >= 3, "device_attend of lists", ops->format, n);
            c.n_q_heads = 8 * shape.n_kv_heads + 1;
            expect(shape.n_kv_heads == 1 || ops->device_attend(kv, side, NULL, &c) == IFX_EINVAL, "heads that do not divide", ops->format, n);
        }
        if (status == 0)
            ops->device_close(kv, side);
        expect(live == before, "device_close gives everything back", ops->format, live - before);
        judge(&p, ops->format);
        ops->close(kv);
    }
}

int main(int argc, char **argv)
{
    struct mini_host mini;
    int tried = 0;
    mini_host_init(&mini, 0);
    mini.host.alloc = counted_alloc;
    mini.host.free = counted_free;
    for (int i = 1; i < argc; i++) {
        const void *ops = mini_load(argv[i], &mini);
        const int bank = strstr(argv[i], "expert_") != NULL;
        if (!ops) {
            expect(0, "does not load", argv[i], 0);
            continue;
        }
        if (bank ? ((const struct ifx_expert_ops *)ops)->device_open == NULL : ((const struct ifx_kv_ops *)ops)->device_open == NULL)
            continue;
        tried++;
        for (uint32_t arch = 90; arch <= 120; arch += 30) {
            if (bank)
                run_expert(ops, &mini.host, arch);
            else
                run_kv(ops, &mini.host, arch);
        }
    }
    if (!tried && !failures) {
        printf("SKIP: built without a CUDA compiler\n");
        return 77;
    }
    printf("%d formats, %d checks, %d failures\n", tried, checks, failures);
    return failures != 0;
}
