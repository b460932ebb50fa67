/* SPDX-License-Identifier: Apache-2.0
 *
 * The KV formats of the tree beyond what the conformance suite asks: bytes derived by hand, one result whatever else is
 * in the call, the error of int8 against bf16 over a long context, offsets past 2^31.
 *
 * Usage: test_kv [FOLDER]; the plugins are looked for in FOLDER or $IFX_PLUGINS.
 */
#include <infernix/kv_skeleton.h>

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static int failures;
#define CHECK(cond, ...)                                                                                               \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            failures++;                                                                                                \
            printf("FAILED %s:%d: ", __FILE__, __LINE__);                                                              \
            printf(__VA_ARGS__);                                                                                       \
            printf("\n");                                                                                              \
        }                                                                                                              \
    } while (0)

/* ---- a small host ---- */

static uint32_t level;

static int32_t host_error(const struct ifx_host *h, int32_t status, const char *format, ...)
{
    va_list ap;
    (void)h;
    va_start(ap, format);
    vprintf(format, ap);
    va_end(ap);
    printf("\n");
    return status;
}

static void *host_alloc(const struct ifx_host *h, uint64_t bytes, uint64_t align)
{
    (void)h;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void host_free(const struct ifx_host *h, void *p)
{
    (void)h;
    free(p);
}

static uint32_t host_level(const struct ifx_host *h)
{
    (void)h;
    return level;
}

static const struct ifx_host host = {.struct_size = sizeof host,
                                     .error = host_error,
                                     .alloc = host_alloc,
                                     .free = host_free,
                                     .cpu_level = host_level};

static const struct ifx_kv_ops *load(const char *folder, const char *name)
{
    char path[4096];
    void *so;
    ifx_plugin_init_fn init;
    snprintf(path, sizeof path, "%s/%s.so", folder, name);
    so = dlopen(path, RTLD_NOW);
    if (so == NULL) {
        printf("FAILED: %s\n", dlerror());
        exit(1);
    }
    *(void **)(&init) = dlsym(so, "ifx_plugin_init");
    return init(&host);
}

static uint32_t levels(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return IFX_CPU_AVX512 + 1;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return IFX_CPU_AVX2 + 1;
#endif
    return 1;
}

static uint64_t seed = 1;
static float rnd(void)
{
    float s = 0;
    for (int i = 0; i < 4; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        s += (float)(seed >> 40) / 16777216.0f - 0.5f;
    }
    return s * 1.73f;
}

/* ---- bytes by hand ---- */

/* head_dim 72 has a group of 64 and one of 8.  Scales: amax 127 -> 1 = 0x3c00; amax 254 -> 2 = 0x4000. */
static void int8_bytes(const struct ifx_kv_ops *o)
{
    const struct ifx_kv_shape sh = {sizeof sh, 72, 1, 16};
    float k[72] = {127, -127, 63.5f, 0.5f, 1.5f, -2.5f}, v[72] = {0};
    uint8_t want[76] = {0x7f, 0x81, 0x40, 0x00, 0x02, 0xfe};
    for (level = 0; level < levels(); level++) {
        void *kv, *page = aligned_alloc(64, 4096);
        const uint8_t *p = page;
        k[64] = 254, k[65] = -3, k[66] = 1, k[67] = 5;
        want[64] = 0x7f, want[65] = 0xfe, want[66] = 0x00, want[67] = 0x02;
        want[72] = 0x00, want[73] = 0x3c, want[74] = 0x00, want[75] = 0x40;
        CHECK(o->page_bytes(&sh) == 2432, "page_bytes of d 72, 16 tokens: expected 2432, got %llu",
              (unsigned long long)o->page_bytes(&sh));
        o->open(&host, NULL, &sh, &kv);
        memset(page, 0xee, 4096);
        o->append(kv, &(struct ifx_kv_append){sizeof(struct ifx_kv_append), 1, &page, 3, k, v, 72, 72});
        for (int i = 0; i < 76; i++) {
            CHECK(p[3 * 76 + i] == want[i], "level %u: K byte %d: expected 0x%02x, got 0x%02x", level, i, want[i],
                  p[3 * 76 + i]);
            CHECK(p[(16 + 3) * 76 + i] == 0, "level %u: V byte %d of a zero row: 0x%02x", level, i, p[(16 + 3) * 76 + i]);
        }
        CHECK(p[3 * 76 - 1] == 0xee && p[4 * 76] == 0xee, "level %u: a neighbouring slot was written", level);
        o->close(kv);
        free(page);
    }
}

/* One group of 8: first value, scale bits, code, value read back. */
static void int8_scales(const struct ifx_kv_ops *o)
{
    static const struct {
        float x;
        uint16_t scale;
        int code;
        double back;
    } cases[] = {
        {128.0f, 0x3c09, 127, 127 * 1.0087890625},     /* 128/127 lies between 0x3c08 and 0x3c09: up */
        {-0.0f, 0x0000, 0, 0.0},
        {1e30f, 0x7bff, 127, 127 * 65504.0},           /* too large for the scale: saturates, stays finite */
        {-1e30f, 0x7bff, -127, -127 * 65504.0},
        {1e-6f, 0x0001, 17, 17 * 5.9604644775390625e-8}, /* the smallest scale there is */
        {1e-9f, 0x0001, 0, 0.0},
        {NAN, 0x7e00, 0, NAN},
        {INFINITY, 0x7e00, 0, NAN},
        {-INFINITY, 0x7e00, 0, NAN},
    };
    const struct ifx_kv_shape sh = {sizeof sh, 8, 1, 16};
    for (level = 0; level < levels(); level++)
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
            void *kv, *page = aligned_alloc(64, 4096);
            const uint8_t *p = page;
            float k[8] = {cases[c].x}, v[8] = {0};
            double row[8];
            uint16_t scale;
            o->open(&host, NULL, &sh, &kv);
            o->append(kv, &(struct ifx_kv_append){sizeof(struct ifx_kv_append), 1, &page, 0, k, v, 8, 8});
            o->decode_row(kv, page, IFX_KV_K, 0, 0, row);
            memcpy(&scale, p + 8, 2);
            CHECK(scale == cases[c].scale && (int8_t)p[0] == cases[c].code,
                  "level %u: %g: expected scale 0x%04x code %d, got 0x%04x %d", level, (double)cases[c].x, cases[c].scale,
                  cases[c].code, scale, (int8_t)p[0]);
            CHECK(isnan(cases[c].back) ? isnan(row[0]) : row[0] == cases[c].back, "%g: expected %g back, got %g",
                  (double)cases[c].x, cases[c].back, row[0]);
            o->close(kv);
            free(page);
        }
}

static void int8_sizes(const struct ifx_kv_ops *o)
{
    const struct ifx_kv_shape a = {sizeof a, 256, 1, 16}, b = {sizeof b, 256, 2, 256}, c = {sizeof c, 12, 1, 16},
                              d = {sizeof d, 1024, 1, 16}, e = {sizeof e, 64, 1, 48};
    CHECK(o->page_bytes(&a) == 2 * 16 * 264, "264 bytes a row of 256");
    CHECK(o->page_bytes(&b) == 2 * 2 * 256 * 264, "pages of 256 tokens, 2 heads");
    CHECK(o->page_bytes(&c) == 0 && o->page_bytes(&d) == 0 && o->page_bytes(&e) == 0,
          "head_dim 12 and 1024 and pages of 48 tokens must not be supported");
}

/* No value is off by more than half a step. */
static void int8_error_bound(const struct ifx_kv_ops *o)
{
    const struct ifx_kv_shape sh = {sizeof sh, 256, 1, 64};
    void *kv, *page = aligned_alloc(64, o->page_bytes(&sh));
    float *k = malloc(64 * 256 * 4);
    double row[256];
    level = levels() - 1;
    o->open(&host, NULL, &sh, &kv);
    for (int i = 0; i < 64 * 256; i++)
        k[i] = rnd() * expf(2.5f * rnd()) * (i % 999 == 5 ? 100.0f : 1.0f);
    o->append(kv, &(struct ifx_kv_append){sizeof(struct ifx_kv_append), 64, &page, 0, k, k, 256, 256});
    for (uint32_t t = 0; t < 64; t++) {
        o->decode_row(kv, page, IFX_KV_V, 0, t, row);
        for (uint32_t g = 0; g < 256; g += 64) {
            double amax = 0;
            for (uint32_t i = g; i < g + 64; i++)
                amax = fmax(amax, fabs((double)k[t * 256 + i]));
            for (uint32_t i = g; i < g + 64; i++)
                CHECK(fabs(row[i] - k[t * 256 + i]) <= amax / 254 * (1 + 1.0 / 1024) + 3e-8,
                      "token %u value %u: %g stored, %g back, amax %g", t, i, (double)k[t * 256 + i], row[i], amax);
        }
    }
    o->close(kv);
    free(page);
    free(k);
}

static void bf16_bytes(const struct ifx_kv_ops *o)
{
    static const float x[8] = {1.0f, 1.00390625f, 1.01171875f, -2.5f, 0.0f, 3.4e38f, 1e-40f, INFINITY};
    static const uint16_t want[8] = {0x3f80, 0x3f80, 0x3f82, 0xc020, 0x0000, 0x7f80, 0x0001, 0x7f80};
    const struct ifx_kv_shape sh = {sizeof sh, 8, 1, 16};
    for (level = 0; level < levels(); level++) {
        void *kv, *page = aligned_alloc(64, 4096);
        const uint16_t *p = page;
        o->open(&host, NULL, &sh, &kv);
        o->append(kv, &(struct ifx_kv_append){sizeof(struct ifx_kv_append), 1, &page, 15, x, x, 8, 8});
        for (int i = 0; i < 8; i++)
            CHECK(p[15 * 8 + i] == want[i] && p[31 * 8 + i] == want[i], "level %u value %d: expected 0x%04x, got 0x%04x",
                  level, i, want[i], p[15 * 8 + i]);
        o->close(kv);
        free(page);
    }
}

/* ---- a long context ---- */

struct context {
    const struct ifx_kv_ops *o;
    void *kv;
    uint32_t d, tokens, pt;
    void **pages;
    uint8_t *memory;
};

static void context_open(struct context *c, const struct ifx_kv_ops *o, uint32_t d, uint32_t tokens, const float *k,
                         const float *v)
{
    const struct ifx_kv_shape sh = {sizeof sh, d, 1, 64};
    const uint64_t bytes = o->page_bytes(&sh), n = tokens / 64 + 1;
    c->o = o;
    c->d = d;
    c->tokens = tokens;
    c->pages = malloc(n * sizeof *c->pages);
    c->memory = aligned_alloc(64, bytes * n);
    memset(c->memory, 0xff, bytes * n);
    o->open(&host, NULL, &sh, &c->kv);
    for (uint64_t i = 0; i < n; i++) /* pages of a pool come in any order */
        c->pages[i] = c->memory + i * bytes;
    for (uint64_t i = 0; i + 1 < n; i += 2) {
        void *t = c->pages[i];
        c->pages[i] = c->pages[i + 1];
        c->pages[i + 1] = t;
    }
    o->append(c->kv, &(struct ifx_kv_append){sizeof(struct ifx_kv_append), tokens, c->pages, 0, k, v, d, d});
}

static void context_close(struct context *c)
{
    c->o->close(c->kv);
    free(c->pages);
    free(c->memory);
}

/* out[n, group, d] normalised, in parts of `part` tokens merged in order; `chunk` queries a call. */
static void context_attend(const struct context *c, const float *q, uint32_t n, uint32_t group, uint32_t chunk,
                           uint64_t part, float *out)
{
    const uint64_t rows = (uint64_t)chunk * group;
    float *m = malloc(rows * 8), *l = m + rows, *m2 = malloc(rows * 8), *l2 = m2 + rows;
    float *acc = malloc(rows * c->d * 4), *acc2 = malloc(rows * c->d * 4);
    for (uint32_t q0 = 0; q0 < n; q0 += chunk) {
        const uint32_t q1 = q0 + chunk < n ? q0 + chunk : n;
        for (uint64_t t0 = 0; t0 < c->tokens; t0 += part) {
            struct ifx_kv_attend a = {.struct_size = sizeof a,
                                      .pages = (const void *const *)c->pages,
                                      .pos0 = c->tokens - n,
                                      .t0 = t0,
                                      .t1 = t0 + part < c->tokens ? t0 + part : c->tokens,
                                      .q0 = q0,
                                      .q1 = q1,
                                      .group = group,
                                      .scale = 1.0f / sqrtf((float)c->d),
                                      .q = q,
                                      .ldq = (uint64_t)group * c->d,
                                      .ldq_head = c->d,
                                      .m = t0 ? m2 : m,
                                      .l = t0 ? l2 : l,
                                      .acc = t0 ? acc2 : acc};
            CHECK(c->o->attend(c->kv, &a) == IFX_OK, "attend");
            if (t0 > 0)
                ifx_kvs_merge(m, l, acc, m2, l2, acc2, (uint64_t)(q1 - q0) * group, c->d);
        }
        for (uint64_t i = 0; i < (uint64_t)(q1 - q0) * group * c->d; i++)
            out[(uint64_t)q0 * group * c->d + i] = acc[i] / l[i / c->d];
    }
    free(m);
    free(m2);
    free(acc);
    free(acc2);
}

static double distance(const float *a, const float *b, uint64_t n)
{
    double e = 0, s = 0;
    for (uint64_t i = 0; i < n; i++) {
        e += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        s += (double)b[i] * b[i];
    }
    return sqrt(e / s);
}

/* Feeding a prompt whole, in chunks or token by token must not change a bit; cutting the tokens may change the last ones. */
static void one_result(const struct ifx_kv_ops *o)
{
    const uint32_t d = 64, tokens = 700, n = 200, group = 3;
    float *k = malloc(tokens * d * 4), *v = malloc(tokens * d * 4), *q = malloc(n * group * d * 4);
    float *a = malloc(n * group * d * 4), *b = malloc(n * group * d * 4);
    for (uint32_t i = 0; i < tokens * d; i++)
        k[i] = rnd(), v[i] = rnd();
    for (uint32_t i = 0; i < n * group * d; i++)
        q[i] = 3 * rnd();
    for (level = 0; level < levels(); level++) {
        static const uint32_t chunks[] = {1, 7, 64};
        struct context c;
        context_open(&c, o, d, tokens, k, v);
        context_attend(&c, q, n, group, n, tokens, a);
        for (int i = 0; i < 3; i++) {
            context_attend(&c, q, n, group, chunks[i], tokens, b);
            CHECK(memcmp(a, b, n * group * d * 4) == 0, "%s level %u: chunks of %u give other bits than %u queries at once",
                  o->format, level, chunks[i], n);
        }
        context_attend(&c, q, n, group, n, 97, b);
        CHECK(distance(b, a, n * group * d) < 1e-6, "%s level %u: merged parts of 97 tokens are off by %g", o->format, level,
              distance(b, a, n * group * d));
        context_close(&c);
    }
    free(k), free(v), free(q), free(a), free(b);
}

/* What int8 costs, per level of context: the distance to exact rows beside that of bf16. */
static void int8_against_bf16(const struct ifx_kv_ops *f32, const struct ifx_kv_ops *bf16, const struct ifx_kv_ops *int8)
{
    static const uint32_t lengths[] = {256, 4096, 16384};
    const uint32_t d = 128, n = 4, group = 4, size = n * group * d;
    float *q = malloc(size * 4), *a = malloc(size * 4), *b = malloc(size * 4), *e = malloc(size * 4);
    level = levels() - 1;
    for (uint32_t i = 0; i < size; i++)
        q[i] = 3 * rnd();
    for (int i = 0; i < 3; i++) {
        const uint32_t t = lengths[i];
        float *k = malloc((uint64_t)t * d * 4), *v = malloc((uint64_t)t * d * 4);
        struct context c;
        for (uint64_t j = 0; j < (uint64_t)t * d; j++) {
            k[j] = rnd() * (j % d == 11 ? 6.0f : 1.0f); /* keys have channels that stand out */
            v[j] = rnd();
        }
        const struct ifx_kv_ops *ops[3] = {f32, bf16, int8};
        float *out[3] = {e, a, b};
        for (int f = 0; f < 3; f++) {
            context_open(&c, ops[f], d, t, k, v);
            context_attend(&c, q, n, group, n, 4096, out[f]);
            context_close(&c);
        }
        printf("%u tokens: relative L2 to f32: bf16 %.4f, int8 %.4f\n", t, distance(a, e, size), distance(b, e, size));
        CHECK(distance(a, e, size) < 0.01, "bf16 at %u tokens: %g", t, distance(a, e, size));
        CHECK(distance(b, e, size) < 0.05, "int8 at %u tokens: %g", t, distance(b, e, size));
        free(k), free(v);
    }
    free(q), free(a), free(b), free(e);
}

/* Row offsets inside pages beyond 2^31 bytes: many heads, touched at the ends only. */
static void far_offsets(const struct ifx_kv_ops *o)
{
    const struct ifx_kv_shape sh = {sizeof sh, 512, 40000, 256};
    const uint64_t bytes = o->page_bytes(&sh);
    const uint32_t d = 512, head = 39999;
    float *k = calloc((uint64_t)d * 40000, 4), q[512];
    float m, l, acc[512];
    double row[512];
    void *kv, *page = bytes == 0 || k == NULL ? MAP_FAILED
                                              : mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(bytes > (uint64_t)1 << 31, "page of %llu bytes", (unsigned long long)bytes);
    if (page == MAP_FAILED) {
        printf("no address space for %llu bytes: offsets past 2^31 left out\n", (unsigned long long)bytes);
        free(k);
        return;
    }
    level = levels() - 1;
    for (uint32_t i = 0; i < d; i++) {
        k[(uint64_t)head * d + i] = (float)(i % 13) - 6.0f;
        q[i] = 1.0f;
    }
    o->open(&host, NULL, &sh, &kv);
    o->append(kv, &(struct ifx_kv_append){sizeof(struct ifx_kv_append), 1, &page, 255, k, k, (uint64_t)d * 40000,
                                          (uint64_t)d * 40000});
    o->decode_row(kv, page, IFX_KV_V, head, 255, row);
    CHECK(fabs(row[5] + 1.0) < 0.03 && fabs(row[12] - 6.0) < 0.03, "read back %g %g, expected -1 6", row[5], row[12]);
    const void *pages[1] = {page};
    struct ifx_kv_attend a = {.struct_size = sizeof a, .kv_head = head, .pages = pages, .pos0 = 255, .t0 = 255, .t1 = 256,
                              .q1 = 1, .group = 1, .scale = 0.1f, .q = q, .ldq = d, .ldq_head = d, .m = &m, .l = &l,
                              .acc = acc};
    CHECK(o->attend(kv, &a) == IFX_OK && l == 1.0f && fabsf(acc[12] - 6.0f) < 0.03f, "attend: l %g acc %g, expected 1 6",
          (double)l, (double)acc[12]);
    o->close(kv);
    munmap(page, bytes);
    free(k);
}

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : getenv("IFX_PLUGINS");
    const struct ifx_kv_ops *f32, *bf16, *int8;
    if (folder == NULL) {
        printf("usage: test_kv FOLDER\n");
        return 2;
    }
    f32 = load(folder, "kv_f32");
    bf16 = load(folder, "kv_bf16");
    int8 = load(folder, "kv_int8");
    int8_bytes(int8);
    int8_scales(int8);
    int8_sizes(int8);
    int8_error_bound(int8);
    bf16_bytes(bf16);
    one_result(f32);
    one_result(bf16);
    one_result(int8);
    int8_against_bf16(f32, bf16, int8);
    far_offsets(int8);
    printf("cpu levels up to %u: %s\n", levels() - 1, failures ? "FAILED" : "ok");
    return failures != 0;
}
