/* SPDX-License-Identifier: Apache-2.0
 *
 * test_cuda_kv.c - KV formats on a CUDA device: test_cuda_kv PLUGIN.so ...
 *
 * Append must leave the bytes that the CPU leaves; attention is held against decode_row in double, on pages that lie scattered
 * and hold NaN wherever nothing was stored: prompts, single tokens, parts, lists of tokens, captured calls.
 */
#include "../banks/mini_host.h"

#include <infernix/kv.h>
#include <infernix/numerics.h>

#include "mini_cuda.h"

#include <math.h>

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
    if (posix_memalign(&p, 64, bytes ? bytes : 1))
        exit(99);
    return p;
}

/* A cache of one layer, twice. */
struct cache {
    struct mini_cuda *cuda;
    struct mini_host host;
    const struct ifx_kv_ops *ops;
    struct ifx_kv_shape shape;
    uint32_t group, tokens, pages;
    uint64_t page_bytes, seed;
    void *kv, *side;
    uint8_t **host_pages;
    void **device_pages, *table;
    uint8_t *pool;  /* on the host */
    char *frames;   /* on the device */
};

static int cache_open(struct cache *c, uint32_t d, uint32_t heads, uint32_t group, uint32_t page_tokens, uint32_t tokens)
{
    c->shape = (struct ifx_kv_shape){sizeof c->shape, d, heads, page_tokens};
    c->group = group;
    c->tokens = tokens;
    c->pages = (tokens + page_tokens - 1) / page_tokens;
    c->page_bytes = c->ops->page_bytes(&c->shape);
    int32_t status = c->ops->open(&c->host.host, NULL, &c->shape, &c->kv);
    status = status ? status : c->ops->device_open(c->kv, &c->cuda->compute, &c->side);
    if (!expect(status == 0, "open d %u, %u heads: %s", d, heads, c->host.error))
        return 0;
    c->host_pages = need(c->pages * sizeof *c->host_pages);
    c->device_pages = need(c->pages * sizeof *c->device_pages);
    c->pool = need(c->pages * c->page_bytes);
    memset(c->pool, 0xff, c->pages * c->page_bytes);
    c->frames = mini_device(c->cuda, (2 * c->pages + 1) * c->page_bytes);
    mini_must(c->cuda->fill((mini_ptr)(uintptr_t)c->frames, 0xff, (2 * c->pages + 1) * c->page_bytes), "fill");
    for (uint32_t i = 0; i < c->pages; i++) {
        c->host_pages[i] = c->pool + i * c->page_bytes;
        c->device_pages[i] = c->frames + (2 * (c->pages - i) - i % 2) * c->page_bytes;
    }
    c->table = mini_copy(c->cuda, c->device_pages, c->pages * sizeof *c->device_pages);
    return 1;
}

static void cache_close(struct cache *c)
{
    mini_release(c->cuda, c->frames);
    mini_release(c->cuda, c->table);
    free(c->host_pages);
    free(c->device_pages);
    free(c->pool);
    c->ops->device_close(c->kv, c->side);
    c->ops->close(c->kv);
}

static int32_t *positions(uint32_t pos0, uint32_t n)
{
    int32_t *p = need(n * sizeof *p);
    for (uint32_t i = 0; i < n; i++)
        p[i] = (int32_t)(pos0 + i);
    return p;
}

/* Stores tokens [pos0, pos0 + n) on both sides and compares the pages.  odd: this token gets a NaN in V and an infinity in K, in the first
 * KV head. */
static void append(struct cache *c, uint32_t pos0, uint32_t n, uint32_t odd)
{
    const uint32_t d = c->shape.head_dim, row = c->shape.n_kv_heads * d, ld = row + 4;
    float *k = need((size_t)n * ld * 4), *v = need((size_t)n * ld * 4);
    for (size_t i = 0; i < (size_t)n * ld; i++) {
        k[i] = random_normal(&c->seed) * (random_u32(&c->seed) % 53 ? 1.0f : 4.0f);
        v[i] = random_normal(&c->seed) * (random_u32(&c->seed) % 71 ? 1.0f : 0.0f);
    }
    if (odd >= pos0 && odd < pos0 + n) {
        v[(size_t)(odd - pos0) * ld + d / 2] = NAN;
        k[(size_t)(odd - pos0) * ld + 1] = INFINITY;
    }
    struct ifx_kv_append h = {sizeof h, n, (void *const *)c->host_pages, pos0, k, v, ld, ld};
    expect(c->ops->append(c->kv, &h) == 0, "append on the CPU");
    int32_t *p = positions(pos0, n);
    void *dp = mini_copy(c->cuda, p, n * 4), *dk = mini_copy(c->cuda, k, (size_t)n * ld * 4), *dv = mini_copy(c->cuda, v, (size_t)n * ld * 4);
    struct ifx_kv_device_append a = {sizeof a, n, dp, c->table, dk, dv, ld, ld};
    expect(c->ops->device_append(c->kv, c->side, c->cuda->stream, &a) == 0, "device_append: %s", c->host.error);
    mini_sync(c->cuda, "device_append");
    uint8_t *page = need(c->page_bytes);
    for (uint32_t i = 0; i < c->pages; i++) {
        mini_get(c->cuda, page, c->device_pages[i], c->page_bytes);
        if (!expect(memcmp(page, c->host_pages[i], c->page_bytes) == 0, "%s d %u: page %u differs after append of %u at %u",
                    c->ops->format, d, i, n, pos0)) {
            for (uint64_t b = 0; b < c->page_bytes; b++)
                if (page[b] != c->host_pages[i][b]) {
                    printf("    byte %llu: cpu %02x, cuda %02x\n", (unsigned long long)b, c->host_pages[i][b], page[b]);
                    break;
                }
            break;
        }
    }
    mini_release(c->cuda, dp);
    mini_release(c->cuda, dk);
    mini_release(c->cuda, dv);
    free(page);
    free(p);
    free(k);
    free(v);
}

static double rounded(double x)
{
    return (double)ifx_bf16_to_f32(ifx_f32_to_bf16((float)x));
}

/* One attention call. */
struct attend {
    uint32_t n, pos0, ldq, ldo;
    float *q, *out;
    int32_t *rows;
    uint32_t *n_rows, ld_rows;
    void *dq, *dout, *dpos, *drows, *dn, *ws;
    struct ifx_kv_device_attend a;
};

static void attend_open(struct cache *c, struct attend *t, uint32_t pos0, uint32_t n, uint32_t listed, uint32_t max_tokens)
{
    const uint32_t d = c->shape.head_dim, heads = c->shape.n_kv_heads * c->group;
    memset(t, 0, sizeof *t);
    t->n = n;
    t->pos0 = pos0;
    t->ldq = heads * d + 4;
    t->ldo = heads * d + 8;
    t->q = need((size_t)n * t->ldq * 4);
    t->out = need((size_t)n * t->ldo * 4);
    for (size_t i = 0; i < (size_t)n * t->ldq; i++)
        t->q[i] = random_normal(&c->seed) * 2.0f;
    int32_t *p = positions(pos0, n);
    t->dpos = mini_copy(c->cuda, p, n * 4);
    free(p);
    t->dq = mini_copy(c->cuda, t->q, (size_t)n * t->ldq * 4);
    t->dout = mini_device(c->cuda, (size_t)n * t->ldo * 4);
    mini_must(c->cuda->fill((mini_ptr)(uintptr_t)t->dout, 0x7f, (size_t)n * t->ldo * 4), "fill");
    if (listed) {
        t->ld_rows = listed + 3;
        t->rows = need((size_t)n * t->ld_rows * 4);
        t->n_rows = need(n * 4);
        for (uint32_t i = 0; i < n; i++) { /* about `listed` of the tokens seen, ascending, the last among them */
            uint32_t count = 0;
            for (uint32_t k = 0; k <= pos0 + i && count < listed; k++)
                if (k == pos0 + i || random_u32(&c->seed) % (pos0 + n) < listed)
                    t->rows[(size_t)i * t->ld_rows + count++] = (int32_t)k;
            t->n_rows[i] = count;
        }
        t->drows = mini_copy(c->cuda, t->rows, (size_t)n * t->ld_rows * 4);
        t->dn = mini_copy(c->cuda, t->n_rows, n * 4);
    }
    const uint64_t ws = c->ops->device_ws_bytes(c->kv, c->side, n, heads, max_tokens);
    t->ws = mini_device(c->cuda, ws + 256);
    mini_must(c->cuda->fill((mini_ptr)(uintptr_t)t->ws, 0xff, ws + 256), "fill");
    t->a = (struct ifx_kv_device_attend){sizeof t->a, n, heads, max_tokens, t->dpos, c->table, t->dq, t->ldq, d, 1.0f / sqrtf((float)d), 0,
                                         t->dout, t->ldo, t->drows, t->dn, t->ld_rows, t->ws};
}

static void attend_close(struct cache *c, struct attend *t)
{
    mini_release(c->cuda, t->dq);
    mini_release(c->cuda, t->dout);
    mini_release(c->cuda, t->dpos);
    mini_release(c->cuda, t->ws);
    if (t->rows) {
        mini_release(c->cuda, t->drows);
        mini_release(c->cuda, t->dn);
    }
    free(t->q);
    free(t->out);
    free(t->rows);
    free(t->n_rows);
}

static void attend_run(struct cache *c, struct attend *t)
{
    expect(c->ops->device_attend(c->kv, c->side, c->cuda->stream, &t->a) == 0, "device_attend: %s", c->host.error);
    mini_sync(c->cuda, "device_attend");
    mini_get(c->cuda, t->out, t->dout, (size_t)t->n * t->ldo * 4);
}

/* Products take bf16: q, K and V are rounded as the contract says, and what is left is the rounding of the weights, 2^-8 of each
 * at most (8 significant bits, to nearest): by value that share of the sum of |p v| where one weight makes all of it, as with two tokens of
 * which the other has a value near zero, and a sixteenth of it for what float32 loses in scores of some tens. */
static void attend_check(struct cache *c, struct attend *t, uint32_t odd, const char *what)
{
    const uint32_t d = c->shape.head_dim, heads = c->shape.n_kv_heads * c->group, pt = c->shape.page_tokens, all = t->pos0 + t->n;
    double *k = need((size_t)all * d * 8), *v = need((size_t)all * d * 8), *s = need(all * 8), *o = need(d * 8), *mag = need(d * 8);
    for (uint32_t h = 0; h < heads; h++) {
        for (uint32_t j = 0; j < all && h % c->group == 0; j++) {
            c->ops->decode_row(c->kv, c->host_pages[j / pt], IFX_KV_K, h / c->group, j % pt, k + (size_t)j * d);
            c->ops->decode_row(c->kv, c->host_pages[j / pt], IFX_KV_V, h / c->group, j % pt, v + (size_t)j * d);
        }
        for (uint32_t i = 0; i < t->n; i++) {
            const float *q = t->q + (size_t)i * t->ldq + (size_t)h * d, *got = t->out + (size_t)i * t->ldo + (size_t)h * d;
            const int32_t *list = t->rows ? t->rows + (size_t)i * t->ld_rows : NULL;
            const uint32_t count = list ? t->n_rows[i] : t->pos0 + i + 1;
            double top = -INFINITY, l = 0, worst = 0;
            int spoiled = 0;
            for (uint32_t j = 0; j < count; j++) {
                const uint32_t token = list ? (uint32_t)list[j] : j;
                double sum = 0;
                for (uint32_t x = 0; x < d; x++)
                    sum += rounded((double)q[x]) * rounded(k[(size_t)token * d + x]);
                s[j] = sum / sqrt((double)d);
                top = s[j] > top ? s[j] : top;
                spoiled |= token == odd && h / c->group == 0;
            }
            memset(o, 0, d * 8);
            memset(mag, 0, d * 8);
            for (uint32_t j = 0; j < count && !spoiled; j++) {
                const double p = exp(s[j] - top), *row = v + (size_t)(list ? (uint32_t)list[j] : j) * d;
                l += p;
                for (uint32_t x = 0; x < d; x++) {
                    o[x] += p * rounded(row[x]);
                    mag[x] += p * fabs(rounded(row[x]));
                }
            }
            for (uint32_t x = 0; x < d && !spoiled; x++) {
                const double off = fabs(got[x] - o[x] / l) / (mag[x] / l + 1e-30);
                worst = off > worst || off != off ? off : worst;
            }
            if (spoiled) {
                if (!expect(got[0] != got[0] || isinf(got[0]), "%s %s: column %u head %u sees a value that is not finite and gives %g",
                            c->ops->format, what, i, h, (double)got[0]))
                    goto out;
            } else if (!expect(worst <= 0x1.1p-8, "%s %s: d %u, group %u, %u tokens, column %u of %u, head %u: off by %.3g of the sum of |p v|",
                               c->ops->format, what, d, c->group, count, i, t->n, h, worst)) {
                goto out;
            }
        }
    }
    for (uint32_t i = 0; i < t->n; i++)
        for (uint32_t x = heads * d; x < t->ldo; x++)
            expect(ifx_f32_bits(t->out[(size_t)i * t->ldo + x]) == 0x7f7f7f7fu, "%s %s: wrote past a row of out", c->ops->format, what);
out:
    free(k);
    free(v);
    free(s);
    free(o);
    free(mag);
}

static void one(struct cache *c, uint32_t pos0, uint32_t n, uint32_t listed, uint32_t odd, const char *what)
{
    struct attend t, u;
    const uint64_t seed = c->seed;
    attend_open(c, &t, pos0, n, listed, pos0 + n);
    attend_run(c, &t);
    attend_check(c, &t, odd, what);
    c->seed = seed; /* the same again under a looser bound */
    attend_open(c, &u, pos0, n, listed, 4 * (pos0 + n) + 300);
    attend_run(c, &u);
    expect(odd != UINT32_MAX || memcmp(t.out, u.out, (size_t)n * t.ldo * 4) == 0, "%s %s: %u columns at %u depend on max_tokens", c->ops->format,
           what, n, pos0);
    attend_close(c, &t);
    attend_close(c, &u);
}

/* A captured step serves later positions. */
static void graph(struct cache *c, uint32_t last)
{
    struct attend t;
    void *captured = NULL, *exec = NULL;
    attend_open(c, &t, last, 1, 0, 4096);
    mini_must(c->cuda->capture_begin(c->cuda->stream, 1), "capture");
    expect(c->ops->device_attend(c->kv, c->side, c->cuda->stream, &t.a) == 0, "captured device_attend");
    mini_must(c->cuda->capture_end(c->cuda->stream, &captured), "capture");
    mini_must(c->cuda->graph_make(&exec, captured, 0), "graph");
    for (uint32_t pos = 0; pos <= last; pos = pos * 3 + 1) {
        const int32_t p = (int32_t)pos;
        mini_put(c->cuda, t.dpos, &p, sizeof p);
        mini_must(c->cuda->graph_launch(exec, c->cuda->stream), "graph launch");
        mini_sync(c->cuda, "graph launch");
        mini_get(c->cuda, t.out, t.dout, (size_t)t.ldo * 4);
        t.pos0 = pos;
        attend_check(c, &t, UINT32_MAX, "graph");
    }
    attend_close(c, &t);
}

static void run_shape(struct cache *c, uint32_t d, uint32_t heads, uint32_t group, uint32_t pt, uint32_t tokens)
{
    static const uint32_t columns[] = {1, 2, 3, 5, 8, 16, 17, 33, 100};
    c->seed = d * 1000 + heads * 100 + group;
    if (!cache_open(c, d, heads, group, pt, tokens))
        return;
    for (uint32_t at = 0, n = 1; at < tokens; at += n, n = n * 2 + 1)
        append(c, at, n < tokens - at ? n : tokens - at, UINT32_MAX);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        if (columns[i] <= tokens) {
            const uint32_t n = columns[i];
            one(c, tokens - n, n, 0, UINT32_MAX, "dense");
            one(c, 0, n, 0, UINT32_MAX, "from the start");
            one(c, (tokens - n) / 2, n, 0, UINT32_MAX, "middle");
            if (n <= 17)
                one(c, tokens - n, n, 40, UINT32_MAX, "listed");
        }
    one(c, tokens - 1, 1, tokens / 2, UINT32_MAX, "long list");
    graph(c, tokens - 1);
    append(c, tokens - 2, 2, tokens - 2); /* not finite: only who sees it may know */
    one(c, tokens - 3, 2, 0, tokens - 2, "not finite");
    if (tokens >= 40)
        one(c, tokens - 40, 40, 0, tokens - 2, "not finite, prompt");
    cache_close(c);
}

int main(int argc, char **argv)
{
    static const uint32_t shapes[][5] = {{256, 2, 8, 64, 700}, {256, 1, 4, 16, 90},  {128, 2, 4, 16, 333}, {64, 1, 7, 32, 130}, {72, 2, 2, 16, 100},
                                         {16, 2, 1, 256, 300}, {8, 1, 3, 16, 50},    {248, 1, 5, 128, 140}, {128, 1, 24, 64, 150}, {32, 4, 2, 16, 1500}};
    static struct mini_cuda cuda;
    const int small = getenv("IFX_TEST_SMALL") != NULL; /* under compute-sanitizer */
    if (!mini_cuda_open(&cuda))
        return 77;
    for (int i = 1; i < argc; i++) {
        struct cache c;
        const int before = failures, done = checks;
        memset(&c, 0, sizeof c);
        c.cuda = &cuda;
        mini_host_init(&c.host, mini_detect_level());
        c.ops = (const struct ifx_kv_ops *)(const void *)mini_load(argv[i], &c.host);
        if (!expect(c.ops != NULL, "%s does not load", argv[i]))
            continue;
        if (!expect(c.ops->device_open != NULL, "%s was built without CUDA", argv[i]))
            continue;
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            if (!small || shapes[s][4] <= 150)
                run_shape(&c, shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], shapes[s][4]);
        printf("kv %s: %d checks, %d failures\n", c.ops->format, checks - done, failures - before);
    }
    return failures ? 1 : 0;
}
