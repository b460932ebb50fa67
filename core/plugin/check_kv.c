/* SPDX-License-Identifier: Apache-2.0
 *
 * The conformance suite of KV formats.  The oracle is decode_row: what it says is stored, attention must use.
 */
#include "check_util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const struct ifx_kv_shape kv_shapes[] = {
    {sizeof(struct ifx_kv_shape), 256, 2, 64, }, {sizeof(struct ifx_kv_shape), 128, 4, 16},
    {sizeof(struct ifx_kv_shape), 64, 1, 32},   {sizeof(struct ifx_kv_shape), 72, 3, 16},
    {sizeof(struct ifx_kv_shape), 8, 1, 256},   {sizeof(struct ifx_kv_shape), 512, 1, 16},
};
#define KV_SHAPES (sizeof kv_shapes / sizeof kv_shapes[0])

/* ---- a cache of one sequence in guarded pages, and what decode_row says of it ---- */

struct cache {
    struct check_ctx *c;
    struct ifx_kv_shape shape;
    void *kv;
    uint32_t tokens, n_pages;
    struct guard *pages;
    void **list;
    float *k, *v; /* what was appended [tokens, heads, d] */
    double *row;  /* [d] */
};

static void cache_close(struct cache *s)
{
    for (uint32_t i = 0; s->pages != NULL && i < s->n_pages; i++)
        guard_free(&s->pages[i]);
    if (s->kv != NULL)
        s->c->ops.kv.close(s->kv);
    free(s->pages);
    free(s->list);
    free(s->k);
    free(s->v);
    free(s->row);
}

/* False (and nothing failed) when the format does not take the shape. */
static bool cache_open(struct check_ctx *c, struct cache *s, const struct ifx_kv_shape *shape, uint32_t tokens)
{
    const uint64_t bytes = c->ops.kv.page_bytes(shape), width = (uint64_t)shape->n_kv_heads * shape->head_dim;
    memset(s, 0, sizeof *s);
    s->c = c;
    s->shape = *shape;
    if (bytes == 0)
        return false;
    if (!check_status(c, c->ops.kv.open(&c->host, c->given, shape, &s->kv), "open"))
        return false;
    s->tokens = tokens;
    s->n_pages = (tokens + shape->page_tokens - 1) / shape->page_tokens;
    s->pages = calloc(s->n_pages, sizeof *s->pages);
    s->list = calloc(s->n_pages, sizeof *s->list);
    s->k = malloc(tokens * width * sizeof(float));
    s->v = malloc(tokens * width * sizeof(float));
    s->row = malloc(shape->head_dim * sizeof(double));
    if (s->pages == NULL || s->list == NULL || s->k == NULL || s->v == NULL || s->row == NULL)
        return check_fail(c, "the suite has no memory");
    for (uint32_t i = 0; i < s->n_pages; i++) {
        if (!guard_new(c, &s->pages[i], bytes, 64))
            return false;
        memset(s->pages[i].data, 0x7f, bytes); /* what a recycled page may hold: NaN in most formats */
        s->list[i] = s->pages[i].data;
    }
    return true;
}

static void cache_random(struct cache *s, uint64_t seed)
{
    struct rng r = {seed};
    const uint64_t n = (uint64_t)s->tokens * s->shape.n_kv_heads * s->shape.head_dim;
    for (uint64_t i = 0; i < n; i++) {
        s->k[i] = rng_normal(&r);
        s->v[i] = rng_normal(&r);
    }
}

static bool cache_append(struct cache *s, uint32_t t0, uint32_t t1)
{
    const uint64_t width = (uint64_t)s->shape.n_kv_heads * s->shape.head_dim;
    const struct ifx_kv_append call = {.struct_size = sizeof call,
                                       .n = t1 - t0,
                                       .pages = s->list,
                                       .pos0 = t0,
                                       .k = s->k + t0 * width,
                                       .v = s->v + t0 * width,
                                       .ldk = width,
                                       .ldv = width};
    if (!check_status(s->c, s->c->ops.kv.append(s->kv, &call), "append of tokens %u to %u", t0, t1))
        return false;
    for (uint32_t i = 0; i < s->n_pages; i++)
        if (!guard_intact(s->c, &s->pages[i], "append: page"))
            return false;
    return true;
}

static const double *cache_row(struct cache *s, uint32_t which, uint32_t head, uint64_t t)
{
    const uint32_t pt = s->shape.page_tokens;
    check_status(s->c, s->c->ops.kv.decode_row(s->kv, s->list[t / pt], which, head, (uint32_t)(t % pt), s->row),
                 "decode_row");
    return s->row;
}

/* ---- descriptor, page_bytes, open ---- */

static void kv_descriptor(struct check_ctx *c)
{
    const struct ifx_kv_ops *o = &c->ops.kv;
    const struct {
        const char *name;
        bool missing;
    } need[] = {{"page_bytes", o->page_bytes == NULL}, {"open", o->open == NULL},     {"close", o->close == NULL},
                {"append", o->append == NULL},         {"attend", o->attend == NULL}, {"decode_row", o->decode_row == NULL}};
    for (size_t i = 0; i < sizeof need / sizeof need[0]; i++)
        if (need[i].missing) {
            check_fail(c, "the callback %s is NULL and has no default", need[i].name);
            return;
        }
    if (o->flags != 0)
        check_fail(c, "flags is 0x%x; no flag is defined", o->flags);
    else if (check_identity(c, "format", o->format) && check_line(c, "description", o->description) &&
             check_option_table(c, o->options))
        check_note(c, "KV format %s", o->format);
}

static bool page_size_ok(struct check_ctx *c, const struct ifx_kv_shape *sh)
{
    const uint64_t bytes = c->ops.kv.page_bytes(sh);
    const double values = 2.0 * sh->n_kv_heads * sh->page_tokens * sh->head_dim;
    if (bytes != c->ops.kv.page_bytes(sh))
        return check_fail(c, "page_bytes gives different answers for one shape: it must be pure");
    if (bytes == 0)
        return true;
    if (bytes % 64 != 0)
        return check_fail(c, "page_bytes(d %u, %u heads, %u tokens) is %llu, no multiple of 64", sh->head_dim,
                          sh->n_kv_heads, sh->page_tokens, (unsigned long long)bytes);
    if ((double)bytes < values / 16.0 || (double)bytes > values * 16.0 + 65536.0)
        return check_fail(c, "page_bytes(d %u, %u heads, %u tokens) is %llu: %s for %.0f values", sh->head_dim,
                          sh->n_kv_heads, sh->page_tokens, (unsigned long long)bytes,
                          (double)bytes < values / 16.0 ? "too few" : "too many", values);
    return true;
}

/* Pages beyond 4 GiB: bytes a value as for a usual page, which a size cut to 32 bits has not. */
static bool large_pages_ok(struct check_ctx *c)
{
    static const struct ifx_kv_shape large[] = {{sizeof *large, 256, 65536, 256}, {sizeof *large, 128, 98304, 512}};
    const double usual = (double)c->ops.kv.page_bytes(&kv_shapes[0]) / (2.0 * 2 * 64 * 256);
    for (size_t i = 0; usual > 0 && i < sizeof large / sizeof large[0]; i++) {
        const struct ifx_kv_shape *s = &large[i];
        const uint64_t bytes = c->ops.kv.page_bytes(s);
        const double each = (double)bytes / (2.0 * s->head_dim * s->n_kv_heads * s->page_tokens);
        if (bytes != 0 && !(each > 0.5 * usual && each < 2.0 * usual))
            return check_fail(c, "page_bytes(d %u, %u heads, %u tokens) is %llu: %.3g bytes a value, where d 256 has %.3g: is the size cut to 32 "
                              "bits?", s->head_dim, s->n_kv_heads, s->page_tokens, (unsigned long long)bytes, each, usual);
    }
    return true;
}

static void kv_page_bytes(struct check_ctx *c)
{
    static const struct ifx_kv_shape odd[] = {{sizeof *odd, 0, 1, 16},     {sizeof *odd, 64, 0, 16},
                                              {sizeof *odd, 64, 1, 0},     {sizeof *odd, 4294967288u, 4294967295u, 256},
                                              {sizeof *odd, 512, 65536, 256}};
    uint32_t taken = 0;
    for (size_t i = 0; i < KV_SHAPES; i++) {
        if (!page_size_ok(c, &kv_shapes[i]))
            return;
        taken += c->ops.kv.page_bytes(&kv_shapes[i]) != 0;
    }
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        const uint64_t bytes = c->ops.kv.page_bytes(&odd[i]);
        if (bytes != 0 && (odd[i].head_dim == 0 || odd[i].n_kv_heads == 0 || odd[i].page_tokens == 0)) {
            check_fail(c, "page_bytes(d %u, %u heads, %u tokens) is %llu; 0 says that a shape is not supported",
                       odd[i].head_dim, odd[i].n_kv_heads, odd[i].page_tokens, (unsigned long long)bytes);
            return;
        }
        if (!page_size_ok(c, &odd[i]))
            return;
    }
    if (!large_pages_ok(c))
        return;
    if (c->ops.kv.page_bytes(&kv_shapes[0]) == 0 && c->ops.kv.page_bytes(&kv_shapes[1]) == 0)
        check_fail(c, "page_bytes is 0 for head_dim 256 and for 128: no model could use this format");
    else
        check_note(c, "%u of %u shapes supported; %.3f bytes a value", taken, (uint32_t)KV_SHAPES,
                   (double)c->ops.kv.page_bytes(&kv_shapes[0]) / (2.0 * 2 * 64 * 256));
}

static void kv_open(struct check_ctx *c)
{
    for (size_t i = 0; i < KV_SHAPES; i++) {
        const struct ifx_kv_shape *sh = &kv_shapes[i];
        void *a = NULL, *b = NULL;
        if (c->ops.kv.page_bytes(sh) == 0)
            continue;
        if (!check_status(c, c->ops.kv.open(&c->host, c->given, sh, &a), "open (d %u)", sh->head_dim) ||
            !check_status(c, c->ops.kv.open(&c->host, c->given, sh, &b), "a second open beside the first"))
            return;
        c->ops.kv.close(a);
        c->ops.kv.close(b);
        if (atomic_load(&c->live) != 0) {
            check_fail(c, "%d blocks from host->alloc are still held after close", atomic_load(&c->live));
            return;
        }
        a = NULL;
        atomic_store(&c->refuse, 1);
        if (c->ops.kv.open(&c->host, c->given, sh, &a) == IFX_OK)
            c->ops.kv.close(a);
        atomic_store(&c->refuse, 0);
        if (atomic_load(&c->live) != 0) {
            check_fail(c, "an open that got no memory leaks %d blocks", atomic_load(&c->live));
            return;
        }
    }
}

/* ---- append and decode_row ---- */

static bool rows_near(struct cache *s, double *worst)
{
    const uint32_t d = s->shape.head_dim, heads = s->shape.n_kv_heads;
    for (uint32_t which = 0; which < 2; which++) {
        double err = 0, sum = 0;
        for (uint32_t t = 0; t < s->tokens; t++)
            for (uint32_t h = 0; h < heads; h++) {
                const float *x = (which == IFX_KV_K ? s->k : s->v) + ((uint64_t)t * heads + h) * d;
                const double *y = cache_row(s, which, h, t);
                for (uint32_t i = 0; i < d; i++) {
                    if (!isfinite(y[i]))
                        return check_fail(s->c, "%s of token %u, head %u, value %u: stored %g, reads back %g",
                                          which ? "V" : "K", t, h, i, (double)x[i], y[i]);
                    err += (y[i] - x[i]) * (y[i] - x[i]);
                    sum += (double)x[i] * x[i];
                }
            }
        if (!(sqrt(err / sum) <= *worst))
            *worst = sqrt(err / sum);
    }
    return !s->c->failed;
}

static void kv_append(struct check_ctx *c)
{
    double worst = 0;
    for (size_t i = 0; i < KV_SHAPES; i++) {
        struct cache a, b;
        const uint32_t tokens = 2 * kv_shapes[i].page_tokens + 5;
        if (cache_open(c, &a, &kv_shapes[i], tokens) && cache_open(c, &b, &kv_shapes[i], tokens)) {
            cache_random(&a, 11 + i);
            cache_random(&b, 11 + i);
            cache_append(&a, 0, tokens);
            for (uint32_t t = 0, n = 1; t < tokens && !c->failed; t += n, n = n % 9 + 1)
                cache_append(&b, t, t + n < tokens ? t + n : tokens);
            if (!c->failed)
                rows_near(&a, &worst);
            for (uint32_t t = 0; t < tokens && !c->failed; t++)
                for (uint32_t h = 0; h < a.shape.n_kv_heads; h++)
                    for (uint32_t w = 0; w < 2; w++)
                        if (memcmp(cache_row(&a, w, h, t), cache_row(&b, w, h, t), a.shape.head_dim * sizeof(double)))
                            check_fail(c, "token %u head %u: appended in pieces it reads back otherwise than at once", t, h);
            cache_close(&b);
        }
        cache_close(&a);
        if (c->failed)
            return;
    }
    if (!(worst <= 0.5))
        check_fail(c, "relative RMS error of stored rows is %.3g: what comes back is not what was stored", worst);
    else
        check_note(c, "relative RMS error of normal rows %.3g", worst);
}

/* Zero rows, one outlier in a row, tiny and huge values: finite in, finite out. */
static void kv_append_edges(struct check_ctx *c)
{
    struct cache s;
    if (cache_open(c, &s, &kv_shapes[0], 70) || (!c->failed && cache_open(c, &s, &kv_shapes[1], 70))) {
        const uint32_t d = s.shape.head_dim, width = d * s.shape.n_kv_heads;
        cache_random(&s, 5);
        for (uint32_t i = 0; i < width; i++) {
            s.k[i] = 0.0f;                                /* token 0: zeros */
            s.k[width + i] *= 1e-30f;                     /* 1: tiny */
            s.k[2 * width + i] *= 1e5f;                   /* 2: large */
            s.v[i] = 0.0f;
            s.v[3 * width + i] = i % d == 7 ? 3e4f : 0.5f; /* 3: an outlier */
        }
        cache_append(&s, 0, 70);
        for (uint32_t t = 0; t < 4 && !c->failed; t++)
            for (uint32_t w = 0; w < 2 && !c->failed; w++) {
                const double *y = cache_row(&s, w, 0, t);
                for (uint32_t i = 0; i < d; i++)
                    if (!isfinite(y[i]) || (t == 0 && y[i] != 0.0))
                        check_fail(c, "%s of token %u, value %u: stored %g, reads back %g", w ? "V" : "K", t, i,
                                   (double)(w ? s.v : s.k)[(uint64_t)t * width + i], y[i]);
            }
        if (!c->failed) {
            const double y = cache_row(&s, IFX_KV_V, 0, 3)[7];
            if (fabs(y - 3e4) > 1e4)
                check_fail(c, "an outlier of 3e4 in a row of 0.5 reads back as %g", y);
        }
    }
    cache_close(&s);
}

static void kv_nonfinite_store(struct check_ctx *c)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (uint32_t b = 0; b < 3; b++)
        for (uint32_t w = 0; w < 2; w++) {
            struct cache s;
            if (cache_open(c, &s, &kv_shapes[0], 20) || (!c->failed && cache_open(c, &s, &kv_shapes[1], 20))) {
                const uint32_t d = s.shape.head_dim, at = d - 3;
                cache_random(&s, 8);
                (w ? s.v : s.k)[(uint64_t)9 * d * s.shape.n_kv_heads + at] = bad[b];
                if (cache_append(&s, 0, 20)) {
                    double y = cache_row(&s, w, 0, 9)[at], z = cache_row(&s, w, 0, 8)[at];
                    if (isfinite(y))
                        check_fail(c, "%g was stored and reads back as %g: it must stay non-finite", (double)bad[b], y);
                    else if (!isfinite(z))
                        check_fail(c, "a %g at token 9 makes token 8 non-finite", (double)bad[b]);
                }
            }
            cache_close(&s);
            if (c->failed)
                return;
        }
}

/* ---- attend ---- */

struct attention {
    struct cache *s;
    struct ifx_kv_attend call;
    uint32_t nq;
    float *q;
    struct guard m, l, acc;
    double *out; /* oracle [d] */
};

static void attention_close(struct attention *a)
{
    free(a->q);
    free(a->out);
    guard_free(&a->m);
    guard_free(&a->l);
    guard_free(&a->acc);
}

static bool attention_open(struct attention *a, struct cache *s, uint32_t nq, uint32_t group, uint32_t head, float gain)
{
    const uint32_t d = s->shape.head_dim;
    const uint64_t ldh = d + 8, ldq = group * ldh + 24, rows = (uint64_t)nq * group;
    struct rng r = {77 + nq + group};
    memset(a, 0, sizeof *a);
    a->s = s;
    a->nq = nq;
    a->q = malloc(nq * ldq * sizeof(float));
    a->out = malloc(d * sizeof(double));
    if (a->q == NULL || a->out == NULL)
        return check_fail(s->c, "the suite has no memory");
    for (uint64_t i = 0; i < nq * ldq; i++)
        a->q[i] = NAN; /* between the rows */
    for (uint32_t i = 0; i < nq; i++)
        for (uint32_t g = 0; g < group; g++)
            for (uint32_t k = 0; k < d; k++)
                a->q[i * ldq + g * ldh + k] = gain * rng_normal(&r);
    a->call = (struct ifx_kv_attend){.struct_size = sizeof a->call,
                                     .kv_head = head,
                                     .pages = (const void *const *)s->list,
                                     .pos0 = s->tokens - nq,
                                     .t1 = s->tokens,
                                     .q1 = nq,
                                     .group = group,
                                     .scale = 1.0f / sqrtf((float)d),
                                     .q = a->q,
                                     .ldq = ldq,
                                     .ldq_head = ldh};
    return guard_new(s->c, &a->m, rows * 4, 4) && guard_new(s->c, &a->l, rows * 4, 4) &&
           guard_new(s->c, &a->acc, rows * d * 4, 32);
}

/* Runs the call into fresh results. */
static bool attention_run(struct attention *a)
{
    struct check_ctx *c = a->s->c;
    const int allocs = atomic_load(&c->allocs);
    const unsigned mallocs = check_malloc_calls();
    a->call.m = (float *)(void *)a->m.data;
    a->call.l = (float *)(void *)a->l.data;
    a->call.acc = (float *)(void *)a->acc.data;
    memset(a->m.data, 0x7f, a->m.bytes);
    memset(a->l.data, 0x7f, a->l.bytes);
    memset(a->acc.data, 0x7f, a->acc.bytes);
    if (!check_status(c, c->ops.kv.attend(a->s->kv, &a->call), "attend"))
        return false;
    if (atomic_load(&c->allocs) != allocs || check_malloc_calls() != mallocs)
        return check_fail(c, "attend allocates; it must not");
    return guard_intact(c, &a->m, "attend: m") && guard_intact(c, &a->l, "attend: l") &&
           guard_intact(c, &a->acc, "attend: acc");
}

static bool token_seen(const struct ifx_kv_attend *k, uint32_t i, uint64_t t)
{
    if (t > k->pos0 + i || t < k->t0 || t >= k->t1)
        return false;
    if (k->rows == NULL)
        return true;
    for (uint32_t j = 0; j < k->n_rows[i]; j++)
        if ((uint64_t)k->rows[i * k->ld_rows + j] == t)
            return true;
    return false;
}

/* The oracle of one query row over the tokens it sees, in double.  Returns sum exp(s - max); max in *top (-inf: none). */
static double oracle_row(struct attention *a, uint32_t i, uint32_t g, double *top)
{
    const struct ifx_kv_attend *k = &a->call;
    const uint32_t d = a->s->shape.head_dim;
    const float *q = a->q + i * k->ldq + g * k->ldq_head;
    double z = 0;
    *top = -INFINITY;
    memset(a->out, 0, d * sizeof(double));
    for (uint64_t t = 0; t < a->s->tokens; t++) {
        double s = 0, shrink, w;
        if (!token_seen(k, i, t))
            continue;
        const double *row = cache_row(a->s, IFX_KV_K, k->kv_head, t);
        for (uint32_t x = 0; x < d; x++)
            s += (double)q[x] * row[x];
        s *= (double)k->scale;
        shrink = s > *top ? exp(*top - s) : 1.0;
        w = s > *top ? 1.0 : exp(s - *top);
        *top = s > *top ? s : *top;
        row = cache_row(a->s, IFX_KV_V, k->kv_head, t);
        z = z * shrink + w;
        for (uint32_t x = 0; x < d; x++)
            a->out[x] = a->out[x] * shrink + w * row[x];
    }
    return z;
}

/* Holds the last run's rows against the oracle. */
static bool attention_compare(struct attention *a, const char *what)
{
    struct check_ctx *c = a->s->c;
    const struct ifx_kv_attend *k = &a->call;
    const uint32_t d = a->s->shape.head_dim;
    for (uint32_t i = k->q0; i < k->q1; i++)
        for (uint32_t g = 0; g < k->group; g++) {
            const uint64_t r = (uint64_t)(i - k->q0) * k->group + g;
            double top, z = oracle_row(a, i, g, &top), err = 0, sum = 0;
            if (top == -INFINITY) {
                bool zero = k->m[r] == -INFINITY && k->l[r] == 0.0f;
                for (uint32_t x = 0; x < d; x++)
                    zero = zero && k->acc[r * d + x] == 0.0f;
                if (!zero)
                    return check_fail(c, "%s: query %u sees no token; expected m -inf, l 0, acc 0, got m %g, l %g", what, i,
                                      (double)k->m[r], (double)k->l[r]);
                continue;
            }
            /* m may be any value near the maximum: what counts is that m, l and acc belong together. */
            if (!(fabs(k->m[r] - top) <= 1e-3 * (1.0 + fabs(top))))
                return check_fail(c, "%s: query %u head %u: expected m %g, got %g", what, i, g, top, (double)k->m[r]);
            if (!(fabs(log((double)k->l[r] / z) + k->m[r] - top) <= 2e-3))
                return check_fail(c, "%s: query %u head %u: expected l %g at m %g, got l %g at m %g", what, i, g, z, top,
                                  (double)k->l[r], (double)k->m[r]);
            for (uint32_t x = 0; x < d; x++) {
                const double o = a->out[x] / z, e = (double)k->acc[r * d + x] / k->l[r] - o;
                err += e * e;
                sum += o * o;
            }
            if (!(err <= 1e-6 * sum))
                return check_fail(c, "%s: query %u head %u: relative L2 error %.3g (at most 1e-3)", what, i, g,
                                  sqrt(err / sum));
        }
    return !c->failed;
}

static void attend_shape(struct check_ctx *c, size_t index, uint32_t nq, uint32_t group, float gain)
{
    struct cache s;
    struct attention a = {0};
    const struct ifx_kv_shape *sh = &kv_shapes[index];
    const uint32_t tokens = sh->page_tokens * 2 + 3 > nq ? sh->page_tokens * 2 + 3 : nq;
    if (cache_open(c, &s, sh, tokens)) {
        cache_random(&s, 100 + index);
        if (cache_append(&s, 0, tokens) && attention_open(&a, &s, nq, group, sh->n_kv_heads - 1, gain)) {
            const uint64_t cuts[] = {0, 1, sh->page_tokens - 1, sh->page_tokens, sh->page_tokens + 1, tokens};
            if (attention_run(&a))
                attention_compare(&a, "all tokens");
            for (uint32_t i = 0; i + 1 < 6 && !c->failed; i++) {
                a.call.t0 = cuts[i];
                a.call.t1 = cuts[i + 1];
                a.call.q0 = nq > 2 ? nq / 3 : 0;
                a.call.q1 = nq > 2 ? nq - 1 : nq;
                if (attention_run(&a))
                    attention_compare(&a, "a part of the tokens");
            }
        }
    }
    attention_close(&a);
    cache_close(&s);
}

static void kv_attend(struct check_ctx *c)
{
    static const struct {
        uint32_t nq, group;
        float gain;
    } cases[] = {{1, 1, 1}, {1, 4, 1}, {2, 8, 1}, {3, 3, 1}, {7, 2, 4}, {33, 5, 1}, {64, 1, 1}, {1, 6, 40}};
    const uint32_t levels = check_levels(c);
    for (c->level = 0; c->level < levels && !c->failed; c->level++) {
        for (size_t i = 0; i < KV_SHAPES; i++)
            for (size_t k = 0; k < sizeof cases / sizeof cases[0] && !c->failed; k++)
                if (i < 2 || k % 3 == i % 3)
                    attend_shape(c, i, cases[k].nq, cases[k].group, cases[k].gain);
        if (c->failed) {
            char text[CHECK_TEXT];
            memcpy(text, c->text, sizeof text);
            c->failed = false;
            check_fail(c, "cpu=%s: %.450s", base_cpu_name(c->level), text);
            return;
        }
    }
    check_note(c, "cpu levels up to %s", base_cpu_name(levels - 1));
}

/* Tokens that a query may not see hold NaN: they must not touch its result. */
static void kv_hidden(struct check_ctx *c)
{
    const uint32_t levels = check_levels(c), tokens = 90, nq = 40;
    for (c->level = 0; c->level < levels && !c->failed; c->level++) {
        struct cache s;
        struct attention a = {0};
        if (cache_open(c, &s, &kv_shapes[0], tokens) || (!c->failed && cache_open(c, &s, &kv_shapes[1], tokens))) {
            const uint64_t width = (uint64_t)s.shape.n_kv_heads * s.shape.head_dim;
            cache_random(&s, 3);
            for (uint64_t i = 0; i < 20 * width; i++) { /* the last 20 tokens, seen by the last 20 queries alone */
                s.k[(tokens - 20) * width + i] = NAN;
                s.v[(tokens - 20) * width + i] = i % 2 ? NAN : INFINITY;
            }
            if (cache_append(&s, 0, tokens) && attention_open(&a, &s, nq, 4, 0, 1.0f) && attention_run(&a)) {
                for (uint64_t r = 0; r < (uint64_t)nq * 4 && !c->failed; r++) {
                    bool finite = isfinite(a.call.l[r]) && isfinite(a.call.m[r]);
                    for (uint32_t x = 0; x < s.shape.head_dim; x++)
                        finite = finite && isfinite(a.call.acc[r * s.shape.head_dim + x]);
                    if (finite != (r / 4 < nq - 20))
                        check_fail(c, "cpu=%s: query %u sees %s token, its result is %s", base_cpu_name(c->level),
                                   (uint32_t)(r / 4), finite ? "a non-finite" : "no non-finite",
                                   finite ? "finite" : "not finite");
                }
                a.call.q1 = nq - 20;
                if (!c->failed && attention_run(&a))
                    attention_compare(&a, "beside hidden NaN rows");
            }
        }
        attention_close(&a);
        cache_close(&s);
    }
}

static void kv_rows(struct check_ctx *c)
{
    const uint32_t levels = check_levels(c), tokens = 150, nq = 6, ld = 160;
    int32_t rows[6 * 160];
    uint32_t n_rows[6];
    struct rng r = {42};
    memset(rows, 0x7f, sizeof rows);
    for (uint32_t i = 0; i < nq; i++) { /* query i: none, all, and random subsets */
        n_rows[i] = 0;
        for (uint32_t t = 0; t <= tokens - nq + i; t++)
            if (i == 1 || (i > 1 && rng_below(&r, i + 1) == 0))
                rows[i * ld + n_rows[i]++] = (int32_t)t;
    }
    for (c->level = 0; c->level < levels && !c->failed; c->level++)
        for (size_t k = 0; k < 4 && !c->failed; k++) {
            struct cache s;
            struct attention a = {0};
            if (cache_open(c, &s, &kv_shapes[k], tokens)) {
                cache_random(&s, 21 + k);
                if (cache_append(&s, 0, tokens) && attention_open(&a, &s, nq, k == 3 ? 3 : 4, 0, 1.0f)) {
                    a.call.rows = rows;
                    a.call.n_rows = n_rows;
                    a.call.ld_rows = ld;
                    if (attention_run(&a))
                        attention_compare(&a, "row selection");
                    a.call.t0 = 17;
                    a.call.t1 = 101;
                    a.call.q0 = 1;
                    if (!c->failed && attention_run(&a))
                        attention_compare(&a, "row selection, a part of the tokens");
                }
            }
            attention_close(&a);
            cache_close(&s);
        }
}

/* ---- positions beyond 32 bits ---- */

/* The pages of a sequence of more than 2^32 tokens, of which the last few exist; the list itself is address space. */
static void **far_list(const struct cache *s, uint64_t base, uint64_t *bytes)
{
    const uint64_t first = base / s->shape.page_tokens;
    *bytes = (first + s->n_pages) * sizeof(void *);
    void **list = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (list == MAP_FAILED)
        return NULL;
    memcpy(list + first, s->list, s->n_pages * sizeof *list);
    return list;
}

/* The same rows at token 0 and beyond token 2^32: the same bits stored and, as positions are in the rows already, the same attention. */
static void kv_far(struct check_ctx *c)
{
    const uint64_t base = (UINT64_C(1) << 32) + (UINT64_C(1) << 20);
    const uint32_t tokens = 70;
    struct cache near, far;
    struct attention a = {0}, b = {0};
    uint64_t bytes = 0;
    void **list = NULL;
    if (!cache_open(c, &near, &kv_shapes[0], tokens) || !cache_open(c, &far, &kv_shapes[0], tokens))
        return;
    cache_random(&near, 4);
    cache_random(&far, 4);
    list = far_list(&far, base, &bytes);
    if (list == NULL) {
        check_note(c, "no address space for a list of 2^32 tokens");
    } else {
        const uint64_t width = (uint64_t)far.shape.n_kv_heads * far.shape.head_dim;
        const struct ifx_kv_append call = {.struct_size = sizeof call, .n = tokens, .pages = list, .pos0 = base, .k = far.k, .v = far.v,
                                           .ldk = width, .ldv = width};
        bool ok = cache_append(&near, 0, tokens) && check_status(c, c->ops.kv.append(far.kv, &call), "append at token 2^32 + 2^20");
        for (uint32_t i = 0; ok && i < far.n_pages; i++)
            if (memcmp(near.pages[i].data, far.pages[i].data, near.pages[i].bytes) != 0)
                ok = check_fail(c, "append at token 2^32 + 2^20 stores other bytes than at token 0: 64-bit positions cut to 32?");
        ok = ok && attention_open(&a, &near, 5, 2, 0, 1.0f) && attention_open(&b, &far, 5, 2, 0, 1.0f) && attention_run(&a);
        b.call.pages = (const void *const *)list;
        b.call.pos0 += base;
        b.call.t0 = base;
        b.call.t1 += base;
        ok = ok && attention_run(&b);
        if (ok && (memcmp(a.m.data, b.m.data, a.m.bytes) != 0 || memcmp(a.l.data, b.l.data, a.l.bytes) != 0 ||
                   memcmp(a.acc.data, b.acc.data, a.acc.bytes) != 0))
            check_fail(c, "attend over tokens from 2^32 + 2^20 on gives other bits than over the same rows at token 0: 64-bit positions cut to 32?");
        munmap(list, bytes);
    }
    attention_close(&a);
    attention_close(&b);
    cache_close(&near);
    cache_close(&far);
}

/* ---- threads ---- */

struct kv_thread {
    struct attention a[8], one[8]; /* each thread's call; the same call done alone */
    int32_t status[8];
    bool other[8];
};

static void kv_thread_main(void *arg, uint32_t i)
{
    struct kv_thread *t = arg;
    struct attention *a = &t->a[i], *one = &t->one[i];
    const double end = base_now() + CHECK_RACE_SECONDS;
    do {
        t->status[i] = a->s->c->ops.kv.attend(a->s->kv, &a->call);
        t->other[i] |= memcmp(one->acc.data, a->acc.data, one->acc.bytes) || memcmp(one->m.data, a->m.data, one->m.bytes) ||
                       memcmp(one->l.data, a->l.data, one->l.bytes);
    } while (t->status[i] == IFX_OK && !t->other[i] && base_now() < end);
}

static void kv_threads(struct check_ctx *c)
{
    struct cache s;
    struct kv_thread t;
    memset(&t, 0, sizeof t);
    c->level = check_levels(c) - 1;
    if (cache_open(c, &s, &kv_shapes[0], 200) || (!c->failed && cache_open(c, &s, &kv_shapes[1], 200))) {
        bool ok;
        cache_random(&s, 9);
        ok = cache_append(&s, 0, 200);
        for (uint32_t i = 0; i < 8 && ok; i++) {
            ok = attention_open(&t.a[i], &s, 9 + i, 4, i % s.shape.n_kv_heads, 1.0f) &&
                 attention_open(&t.one[i], &s, 9 + i, 4, i % s.shape.n_kv_heads, 1.0f) && attention_run(&t.one[i]) &&
                 attention_run(&t.a[i]);
        }
        ok = ok && check_threads(c, 8, kv_thread_main, &t);
        for (uint32_t i = 0; i < 8 && ok; i++) {
            ok = check_status(c, t.status[i], "attend on a thread");
            if (ok && t.other[i])
                ok = check_fail(c, "the same call gives other bits when eight threads run attend at once");
        }
        for (uint32_t i = 0; i < 8; i++) {
            attention_close(&t.a[i]);
            attention_close(&t.one[i]);
        }
    }
    cache_close(&s);
}

const struct check_entry check_kv_table[] = {
    {"descriptor", kv_descriptor, true, false},
    {"page_bytes", kv_page_bytes, true, false},
    {"open and close", kv_open, true, false},
    {"append and decode_row", kv_append, true, false},
    {"append: zeros, outliers, tiny and large values", kv_append_edges, false, false},
    {"append: NaN and infinity stay non-finite", kv_nonfinite_store, false, false},
    {"attend against decode_row", kv_attend, false, false},
    {"attend: tokens that a query may not see", kv_hidden, false, false},
    {"attend: row selection", kv_rows, false, false},
    {"tokens beyond 2^32", kv_far, false, false},
    {"attend: threads, 256 KiB of stack", kv_threads, false, false},
    {NULL, NULL, false, false},
};
