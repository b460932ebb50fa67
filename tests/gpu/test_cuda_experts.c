/* SPDX-License-Identifier: Apache-2.0
 *
 * test_cuda_experts.c - expert banks on a CUDA device: test_cuda_experts PLUGIN.so ...
 *
 * Narrow experts must have the bits of the CPU path, wide ones are held against decode_row in double; both in one call, on
 * records that lie scattered in device memory, with entries that are computed elsewhere or are none.
 */
#include "../banks/mini_host.h"

#include <infernix/numerics.h>

#include "mini_cuda.h"

#include <math.h>

struct bank {
    struct mini_cuda *cuda;
    struct mini_host host;
    const struct ifx_expert_ops *ops;
    struct ifx_expert_shape shape;
    void *bank, *side;
    uint64_t record_bytes;
};

static int failures, checks;

static int expect(int ok, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int expect(int ok, const char *format, ...)
{
    va_list args;
    checks++;
    if (ok)
        return 1;
    if (failures++ < 30) {
        va_start(args, format);
        printf("  FAIL ");
        vprintf(format, args);
        printf("\n");
        va_end(args);
    }
    return 0;
}

static uint32_t random_u32(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

static float random_normal(uint64_t *state)
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(random_u32(state) >> 8) * 0x1p-24f - 0.5f;
    return sum * 1.7320508f;
}

static void *need(size_t bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, 4096, bytes ? bytes : 1))
        exit(99);
    return p;
}

static void make_record(struct bank *b, uint64_t seed, uint8_t *record)
{
    const size_t count = (size_t)b->shape.hidden * b->shape.inter;
    float *w = need(3 * count * sizeof *w);
    for (size_t k = 0; k < 3 * count; k++) {
        w[k] = random_normal(&seed) * (k < 2 * count ? 1.5f / sqrtf((float)b->shape.hidden) : 1.5f / sqrtf((float)b->shape.inter));
        if (random_u32(&seed) % 61 == 0)
            w[k] *= 6.0f;
    }
    expect(b->ops->pack(b->bank, w, w + count, w + 2 * count, record) == 0, "pack: %s", b->host.error);
    free(w);
}

/* A layer's routing: expert e has counts[e] pairs; what is left over belongs to the last expert, which is no entry. */
struct routing {
    uint32_t experts, n, top_k, entries, widest, pairs;
    uint32_t *offsets, *rows, *entry;
};

static void route(struct routing *r, const uint32_t *counts, uint32_t experts, uint32_t top_k, uint64_t seed)
{
    uint32_t total = 0, at = 0;
    memset(r, 0, sizeof *r);
    for (uint32_t e = 0; e < experts; e++) {
        total += counts[e];
        r->widest = counts[e] > r->widest ? counts[e] : r->widest;
    }
    r->experts = experts + 1;
    r->top_k = top_k;
    r->pairs = total;
    r->n = (total + 5 + top_k - 1) / top_k;
    const uint32_t all = r->n * top_k;
    r->offsets = need((r->experts + 1) * sizeof(uint32_t));
    r->rows = need(all * sizeof(uint32_t));
    r->entry = need((experts + 2) * sizeof(uint32_t));
    for (uint32_t i = 0; i < all; i++)
        r->rows[i] = i;
    for (uint32_t i = all - 1; i > 0; i--) {
        const uint32_t j = random_u32(&seed) % (i + 1), t = r->rows[i];
        r->rows[i] = r->rows[j];
        r->rows[j] = t;
    }
    for (uint32_t e = 0; e < r->experts; e++) {
        const uint32_t n = e < experts ? counts[e] : all - at;
        r->offsets[e] = at;
        for (uint32_t i = 1; i < n; i++) /* ascending */
            for (uint32_t j = i; j > 0 && r->rows[at + j] < r->rows[at + j - 1]; j--) {
                const uint32_t t = r->rows[at + j];
                r->rows[at + j] = r->rows[at + j - 1];
                r->rows[at + j - 1] = t;
            }
        at += n;
    }
    r->offsets[r->experts] = at;
    for (uint32_t e = 0; e < experts; e++) /* entries in another order than the experts; two that are none */
        r->entry[r->entries++] = (e * 7 + 3) % experts;
    if (experts % 7 == 0)
        for (uint32_t e = 0; e < experts; e++)
            r->entry[e] = experts - 1 - e;
    r->entry[r->entries++] = UINT32_MAX;
    r->entry[r->entries++] = UINT32_MAX;
}

static void route_free(struct routing *r)
{
    free(r->offsets);
    free(r->rows);
    free(r->entry);
}

/* Device memory of one call. */
struct call {
    struct ifx_expert_device_call c;
    void *pool, *x, *offsets, *rows, *entry, *records, *y, *ws;
    uint64_t ws_bytes, ldy;
};

static void call_open(struct bank *b, struct call *k, const struct routing *r, const uint8_t *records, const uint16_t *x, uint32_t ldx,
                      const uint8_t *absent)
{
    const uint64_t frame = b->record_bytes + 8192; /* frames apart, as in a pool */
    void **address = need(r->entries * sizeof *address);
    k->pool = mini_device(b->cuda, frame * (r->experts + 1));
    for (uint32_t i = 0; i < r->entries; i++) {
        const uint32_t e = r->entry[i];
        address[i] = NULL;
        if (e == UINT32_MAX || absent[e])
            continue;
        address[i] = (char *)k->pool + ((r->experts - e) * frame + 4096 * (e % 3));
        mini_put(b->cuda, address[i], records + e * b->record_bytes, b->record_bytes);
    }
    k->ldy = b->shape.hidden + (r->n % 3); /* odd strides now and then */
    k->ws_bytes = b->ops->device_ws_bytes(b->bank, b->side, r->n, r->top_k);
    k->x = mini_copy(b->cuda, x, (size_t)r->n * ldx * 2);
    k->offsets = mini_copy(b->cuda, r->offsets, (r->experts + 1) * 4);
    k->rows = mini_copy(b->cuda, r->rows, (size_t)r->n * r->top_k * 4);
    k->entry = mini_copy(b->cuda, r->entry, r->entries * 4);
    k->records = mini_copy(b->cuda, address, r->entries * sizeof *address);
    k->y = mini_device(b->cuda, (size_t)r->n * r->top_k * k->ldy * 4);
    k->ws = mini_device(b->cuda, k->ws_bytes);
    mini_must(b->cuda->fill((mini_ptr)(uintptr_t)k->y, 0x7f, (size_t)r->n * r->top_k * k->ldy * 4), "fill");
    mini_must(b->cuda->fill((mini_ptr)(uintptr_t)k->ws, 0xff, k->ws_bytes), "fill");
    k->c = (struct ifx_expert_device_call){
        .struct_size = sizeof k->c,
        .n = r->n,
        .top_k = r->top_k,
        .n_entries = r->entries,
        .records = k->records,
        .experts = k->entry,
        .offsets = k->offsets,
        .rows = k->rows,
        .widest = r->widest,
        .pairs = r->pairs,
        .x = k->x,
        .ldx = ldx,
        .y = k->y,
        .ldy = k->ldy,
        .ws = k->ws,
    };
    free(address);
}

static void call_close(struct bank *b, struct call *k)
{
    void *all[] = {k->pool, k->x, k->offsets, k->rows, k->entry, k->records, k->y, k->ws};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mini_release(b->cuda, all[i]);
}

/* The CPU path of one expert into y rows of its pairs. */
static void cpu_expert(struct bank *b, const struct routing *r, uint32_t e, const uint8_t *record, const uint16_t *x, uint32_t ldx,
                       float *y, uint64_t ldy)
{
    const uint32_t n = r->offsets[e + 1] - r->offsets[e], *pairs = r->rows + r->offsets[e];
    uint32_t *columns = need(n * sizeof *columns);
    for (uint32_t i = 0; i < n; i++)
        columns[i] = pairs[i] / r->top_k;
    struct ifx_expert_call c = {.struct_size = sizeof c, .n = n, .record = record, .x = x, .ldx = ldx, .x_rows = columns,
                                .scratch = need(b->ops->scratch_bytes(b->bank, n))};
    int32_t status = b->ops->prepare(b->bank, &c);
    status = status ? status : b->ops->gate_up(b->bank, &c, 0, b->shape.inter);
    status = status ? status : b->ops->down(b->bank, &c, 0, b->shape.hidden, y, ldy, pairs);
    expect(status == 0, "CPU path: %s", b->host.error);
    free(c.scratch);
    free(columns);
}

/* out = W x in double; magnitude = |W| |x|, by which rounding errors are judged. */
static void product(struct bank *b, const uint8_t *record, uint32_t matrix, const double *x, uint32_t n, double *out, double *magnitude)
{
    const uint32_t rows = matrix == IFX_DOWN ? b->shape.hidden : b->shape.inter;
    const uint32_t k_count = matrix == IFX_DOWN ? b->shape.inter : b->shape.hidden;
    double *w = need(k_count * sizeof *w);
    for (uint32_t i = 0; i < rows; i++) {
        b->ops->decode_row(b->bank, record, matrix, i, w);
        for (uint32_t c = 0; c < n; c++) {
            double sum = 0, absolute = 0;
            for (uint32_t k = 0; k < k_count; k++) {
                sum += w[k] * x[(uint64_t)c * k_count + k];
                absolute += fabs(w[k] * x[(uint64_t)c * k_count + k]);
            }
            out[(uint64_t)c * rows + i] = sum;
            magnitude[(uint64_t)c * rows + i] = absolute;
        }
    }
    free(w);
}

/* The hidden value as the contract rounds it; *slack: how far another may be whose g and u are off by their share of eps. */
static double hidden(double g, double u, double g_mag, double u_mag, double eps, double *slack)
{
    const double silu = g / (1.0 + exp(-g)), h = silu * u;
    const double delta = 1.1 * fabs(u) * eps * g_mag + (fabs(silu) + 1.1 * eps * g_mag) * eps * u_mag + 2e-6 * fabs(h);
    *slack = (double)ifx_bf16_to_f32(ifx_f32_to_bf16((float)(h + delta))) - (double)ifx_bf16_to_f32(ifx_f32_to_bf16((float)(h - delta)));
    return (double)ifx_bf16_to_f32(ifx_f32_to_bf16((float)h));
}

/* A wide expert against double.  A tensor core adds 16 products at a time and cuts off what does not fit; int8 weights are
 * rounded to bf16 once. */
static void wide_check(struct bank *b, const struct routing *r, uint32_t e, const uint8_t *record, const uint16_t *x, uint32_t ldx,
                       const float *y, uint64_t ldy)
{
    const uint32_t n = r->offsets[e + 1] - r->offsets[e], *pairs = r->rows + r->offsets[e], h = b->shape.hidden, in = b->shape.inter;
    const double eps = strcmp(b->ops->format, "int8") == 0 ? 0x1.02p-9 : 4e-6;
    const size_t inner = (size_t)n * in, outer = (size_t)n * h;
    double *xd = need(outer * 8), *g = need(inner * 8), *u = need(inner * 8), *g_mag = need(inner * 8), *u_mag = need(inner * 8);
    double *want = need(outer * 8), *bound = need(outer * 8), *slack = need(inner * 8), *loose = need(outer * 8), *unused = need(outer * 8);
    for (uint32_t c = 0; c < n; c++)
        for (uint32_t k = 0; k < h; k++)
            xd[(size_t)c * h + k] = (double)ifx_bf16_to_f32(x[(size_t)(pairs[c] / r->top_k) * ldx + k]);
    product(b, record, IFX_GATE, xd, n, g, g_mag);
    product(b, record, IFX_UP, xd, n, u, u_mag);
    for (size_t i = 0; i < inner; i++)
        g[i] = hidden(g[i], u[i], g_mag[i], u_mag[i], eps, slack + i);
    product(b, record, IFX_DOWN, g, n, want, bound);
    product(b, record, IFX_DOWN, slack, n, unused, loose);
    for (size_t i = 0; i < outer; i++) {
        const double got = (double)y[(size_t)pairs[i / h] * ldy + i % h], most = (bound[i] + loose[i]) * eps + loose[i] + 1e-30;
        if (!expect(fabs(got - want[i]) <= most, "%s %ux%u, expert %u of %u columns, column %u row %u: expected %.8g within %.2g, got %.8g",
                    b->ops->format, h, in, e, n, (unsigned)(i / h), (unsigned)(i % h), want[i], most, got))
            break;
    }
    void *all[] = {xd, g, u, g_mag, u_mag, want, bound, slack, loose, unused};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void compare(struct bank *b, const struct routing *r, const uint8_t *records, const uint16_t *x, uint32_t ldx,
                    const uint8_t *absent, const float *y, uint64_t ldy)
{
    const uint32_t h = b->shape.hidden;
    float *want = need((size_t)r->n * r->top_k * ldy * 4);
    memset(want, 0x7f, (size_t)r->n * r->top_k * ldy * 4);
    for (uint32_t e = 0; e + 1 < r->experts; e++) {
        const uint32_t n = r->offsets[e + 1] - r->offsets[e];
        if (n == 0 || absent[e])
            continue;
        if (n <= IFX_NARROW_COLUMNS) {
            cpu_expert(b, r, e, records + e * b->record_bytes, x, ldx, want, ldy);
            continue;
        }
        wide_check(b, r, e, records + e * b->record_bytes, x, ldx, y, ldy);
        for (uint32_t c = 0; c < n; c++) /* checked: not again below */
            memcpy(want + r->rows[r->offsets[e] + c] * ldy, y + r->rows[r->offsets[e] + c] * ldy, h * 4);
    }
    for (uint64_t i = 0; i < (uint64_t)r->n * r->top_k * ldy; i++)
        if (!expect(ifx_f32_bits(want[i]) == ifx_f32_bits(y[i]), "%s %ux%u, widest %u: pair %u row %u: expected %a, got %a", b->ops->format,
                    h, b->shape.inter, r->widest, (unsigned)(i / ldy), (unsigned)(i % ldy), (double)want[i], (double)y[i]))
            break;
    free(want);
}

static int bank_open(struct bank *b, uint32_t h, uint32_t inter)
{
    b->shape = (struct ifx_expert_shape){sizeof b->shape, h, inter, 0};
    b->record_bytes = b->ops->record_bytes(&b->shape);
    if (b->record_bytes == 0)
        return 0;
    int32_t status = b->ops->open(&b->host.host, NULL, &b->shape, &b->bank);
    status = status ? status : b->ops->device_open(b->bank, &b->cuda->compute, &b->side);
    return expect(status == 0, "open %ux%u: %s", h, inter, b->host.error);
}

static void bank_close(struct bank *b)
{
    b->ops->device_close(b->bank, b->side);
    b->ops->close(b->bank);
}

static uint16_t *columns(uint32_t n, uint32_t ldx, uint64_t seed)
{
    uint16_t *x = need((size_t)n * ldx * 2);
    for (size_t i = 0; i < (size_t)n * ldx; i++) {
        float v = random_normal(&seed);
        v = random_u32(&seed) % 97 == 0 ? v * 30.0f : random_u32(&seed) % 211 == 0 ? 0.0f : v;
        x[i] = ifx_f32_to_bf16(v);
    }
    return x;
}

static void one_call(struct bank *b, uint32_t h, uint32_t inter, const uint32_t *counts, uint32_t experts, uint32_t top_k, uint64_t seed)
{
    struct routing r;
    struct call k;
    if (!bank_open(b, h, inter))
        return;
    uint8_t *records = need(b->record_bytes * experts), *absent = need(experts + 1);
    for (uint32_t e = 0; e < experts; e++) {
        make_record(b, seed * 131 + e, records + e * b->record_bytes);
        absent[e] = e % 5 == 4;
    }
    route(&r, counts, experts, top_k, seed);
    const uint32_t ldx = h + (seed % 2 ? 8 : 0);
    uint16_t *x = columns(r.n, ldx, seed + 5);
    call_open(b, &k, &r, records, x, ldx, absent);
    int32_t status = b->ops->device_forward(b->bank, b->side, b->cuda->stream, &k.c);
    expect(status == 0, "device_forward: %d %s", status, b->host.error);
    mini_sync(b->cuda, "device_forward");
    float *y = need((size_t)r.n * top_k * k.ldy * 4);
    mini_get(b->cuda, y, k.y, (size_t)r.n * top_k * k.ldy * 4);
    compare(b, &r, records, x, ldx, absent, y, k.ldy);
    call_close(b, &k);
    route_free(&r);
    free(records);
    free(absent);
    free(x);
    free(y);
    bank_close(b);
}

/* A captured call must serve another routing: the counts are read on the device. */
static void graph_call(struct bank *b, uint32_t h, uint32_t inter)
{
    static const uint32_t first[] = {1, 2, 3, 8, 5, 4}, second[] = {4, 0, 8, 3, 5, 3};
    struct routing r, s;
    struct call k;
    void *graph = NULL, *exec = NULL;
    uint8_t absent[8] = {0};
    if (!bank_open(b, h, inter))
        return;
    uint8_t *records = need(b->record_bytes * 6);
    for (uint32_t e = 0; e < 6; e++)
        make_record(b, 77 + e, records + e * b->record_bytes);
    route(&r, first, 6, 2, 1);
    route(&s, second, 6, 2, 2);
    uint16_t *x = columns(r.n, h, 3);
    call_open(b, &k, &r, records, x, h, absent);
    mini_must(b->cuda->capture_begin(b->cuda->stream, 1), "capture");
    expect(b->ops->device_forward(b->bank, b->side, b->cuda->stream, &k.c) == 0, "captured device_forward");
    mini_must(b->cuda->capture_end(b->cuda->stream, &graph), "capture");
    mini_must(b->cuda->graph_make(&exec, graph, 0), "graph");
    float *y = need((size_t)r.n * 2 * k.ldy * 4);
    for (int pass = 0; pass < 2; pass++) {
        const struct routing *now = pass ? &s : &r;
        expect(now->n == r.n, "both routings have as many columns");
        mini_put(b->cuda, k.offsets, now->offsets, (now->experts + 1) * 4);
        mini_put(b->cuda, k.rows, now->rows, (size_t)now->n * 2 * 4);
        mini_must(b->cuda->fill((mini_ptr)(uintptr_t)k.y, 0x7f, (size_t)r.n * 2 * k.ldy * 4), "fill");
        mini_must(b->cuda->graph_launch(exec, b->cuda->stream), "graph launch");
        mini_sync(b->cuda, "graph launch");
        mini_get(b->cuda, y, k.y, (size_t)r.n * 2 * k.ldy * 4);
        compare(b, now, records, x, h, absent, y, k.ldy);
    }
    call_close(b, &k);
    route_free(&r);
    route_free(&s);
    free(records);
    free(x);
    free(y);
    bank_close(b);
}

static void run_bank(struct bank *b, int small)
{
    static const uint32_t shapes[][2] = {{128, 128}, {64, 32},  {176, 80},  {272, 144}, {640, 96}, {1040, 128}, {2048, 512},
                                         {32, 16},   {1, 1},    {5, 3},     {33, 31},   {100, 65}, {257, 130},  {3072, 64}};
    static const uint32_t narrow[] = {1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 8, 2}, ones[] = {1, 1, 0, 1, 1, 1, 1, 1};
    static const uint32_t wide[] = {9, 16, 17, 3, 31, 33, 64, 8, 0, 127, 128, 129, 1}, big[] = {300, 2, 575};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const uint32_t h = shapes[i][0], in = shapes[i][1];
        if (small && (uint64_t)h * in > 40000)
            continue;
        for (uint32_t single = 1; single <= 8; single++)
            one_call(b, h, in, narrow + single - 1, 1, 1, 10 * i + single);
        one_call(b, h, in, narrow, 12, 4, i);
        one_call(b, h, in, ones, 8, 8, i + 50);
        if ((uint64_t)h * in <= 200000)
            one_call(b, h, in, wide, 13, 3, i + 100);
        if ((uint64_t)h * in <= 20000)
            one_call(b, h, in, big, 3, 2, i + 200);
    }
    graph_call(b, 272, 144);
}

int main(int argc, char **argv)
{
    static struct mini_cuda cuda;
    const int small = getenv("IFX_TEST_SMALL") != NULL; /* under compute-sanitizer */
    if (!mini_cuda_open(&cuda))
        return 77;
    for (int i = 1; i < argc; i++) {
        struct bank b;
        const int before = failures, done = checks;
        memset(&b, 0, sizeof b);
        b.cuda = &cuda;
        mini_host_init(&b.host, mini_detect_level());
        b.ops = mini_load(argv[i], &b.host);
        if (!expect(b.ops != NULL, "%s does not load", argv[i]))
            continue;
        if (!expect(b.ops->device_open != NULL, "%s was built without CUDA", argv[i]))
            continue;
        run_bank(&b, small);
        if (cuda.compute.arch == 90) { /* what newer devices run instead of Hopper's own */
            cuda.compute.arch = 120;
            run_bank(&b, 1);
            cuda.compute.arch = 90;
        }
        printf("%s: %d checks, %d failures\n", b.ops->format, checks - done, failures - before);
    }
    return failures ? 1 : 0;
}
