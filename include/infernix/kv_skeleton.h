/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_skeleton.h - builds a KV-cache format's append, attend and open from three small functions of the format:
 * how many bytes a stored row takes, how a row is written, and how a row is loaded as float32.
 *
 * Header-only.  Every function is static inline and takes the format's loader as an argument, so that the compiler
 * puts the loader inside the loops.  Compile the file that instantiates it once for each instruction set, with that
 * set's flags: with -mavx2 -mfma (-mf16c) it uses 8 lanes, with -mavx512f -mavx512bw -mavx512vl -mavx512dq 16,
 * otherwise 4 lanes of the compiler's generic vectors.  A format whose author does not care compiles one file
 * with the default flags and is done.
 *
 * Page layout made here: for each KV head the K rows of all slots, then the V rows of all slots; a page is
 * padded to a multiple of 64 bytes.
 *
 * attend: tokens are taken in tiles that end at multiples of IFX_KVS_TILE positions; a tile's rows are loaded once for all
 * queries and all query heads of the KV head (blocks of at most IFX_KVS_ROWS query rows).  The softmax runs online over
 * tiles in float32.  A query's result has the same bits whichever other queries are in the call; it depends on
 * where the token range is cut and, in the last bits, on the instruction set.  A row that a query may not see
 * never touches its result, whatever it holds.
 */
#ifndef INFERNIX_KV_SKELETON_H
#define INFERNIX_KV_SKELETON_H

#include <infernix/kv.h>
#include <infernix/numerics.h>

#define IFX_KVS_TILE    64u  /* tokens of one softmax step */
#define IFX_KVS_ROWS    128u /* query rows (queries x group) that share a loaded row */
#define IFX_KVS_SUB     16u  /* rows of K or V decoded at a time: they stay in the first-level cache */
#define IFX_KVS_MAX_DIM 512u
#define IFX_KVS_AHEAD   2048u /* bytes asked for ahead, at least */
#define IFX_KVS_PAD     16u /* floats between decoded rows: keeps them from sharing cache sets */

#define IFX_KVS_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define IFX_KVS_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__CUDACC__)
#define IFX_KVS_UNROLL
#else
#define IFX_KVS_UNROLL _Pragma("GCC unroll 8")
#endif

/* ---- a vector of floats: what append, attend and loaders are written in ---- */

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include <immintrin.h>
#define IFX_V_LANES 16
typedef __m512 ifx_v;
IFX_KVS_INLINE ifx_v ifx_v_zero(void) { return _mm512_setzero_ps(); }
IFX_KVS_INLINE ifx_v ifx_v_set1(float x) { return _mm512_set1_ps(x); }
IFX_KVS_INLINE ifx_v ifx_v_load(const float *p) { return _mm512_loadu_ps(p); }
IFX_KVS_INLINE void ifx_v_store(float *p, ifx_v x) { _mm512_storeu_ps(p, x); }
IFX_KVS_INLINE ifx_v ifx_v_fma(ifx_v a, ifx_v b, ifx_v c) { return _mm512_fmadd_ps(a, b, c); }
IFX_KVS_INLINE ifx_v ifx_v_add(ifx_v a, ifx_v b) { return _mm512_add_ps(a, b); }
IFX_KVS_INLINE ifx_v ifx_v_sub(ifx_v a, ifx_v b) { return _mm512_sub_ps(a, b); }
IFX_KVS_INLINE ifx_v ifx_v_mul(ifx_v a, ifx_v b) { return _mm512_mul_ps(a, b); }
IFX_KVS_INLINE ifx_v ifx_v_min(ifx_v a, ifx_v b) { return _mm512_min_ps(a, b); }
IFX_KVS_INLINE ifx_v ifx_v_max(ifx_v a, ifx_v b) { return _mm512_max_ps(a, b); }
/* 16 bf16, 16 int8 as floats. */
IFX_KVS_INLINE ifx_v ifx_v_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16));
}
IFX_KVS_INLINE ifx_v ifx_v_load_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
}
/* 2^k for t = IFX_EXP_MAGIC + k. */
IFX_KVS_INLINE ifx_v ifx_v_pow2(ifx_v t)
{
    __m512i k = _mm512_sub_epi32(_mm512_castps_si512(t), _mm512_castps_si512(_mm512_set1_ps(IFX_EXP_MAGIC)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(k, _mm512_set1_epi32(127)), 23));
}
/* Eight lanes, the others zero: the end of a row that is a multiple of 8 and not of 16. */
IFX_KVS_INLINE ifx_v ifx_v_load8(const float *p) { return _mm512_maskz_loadu_ps(0xff, p); }
IFX_KVS_INLINE void ifx_v_store8(float *p, ifx_v x) { _mm512_mask_storeu_ps(p, 0xff, x); }
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define IFX_V_LANES 8
typedef __m256 ifx_v;
IFX_KVS_INLINE ifx_v ifx_v_zero(void) { return _mm256_setzero_ps(); }
IFX_KVS_INLINE ifx_v ifx_v_set1(float x) { return _mm256_set1_ps(x); }
IFX_KVS_INLINE ifx_v ifx_v_load(const float *p) { return _mm256_loadu_ps(p); }
IFX_KVS_INLINE void ifx_v_store(float *p, ifx_v x) { _mm256_storeu_ps(p, x); }
IFX_KVS_INLINE ifx_v ifx_v_fma(ifx_v a, ifx_v b, ifx_v c) { return _mm256_fmadd_ps(a, b, c); }
IFX_KVS_INLINE ifx_v ifx_v_add(ifx_v a, ifx_v b) { return _mm256_add_ps(a, b); }
IFX_KVS_INLINE ifx_v ifx_v_sub(ifx_v a, ifx_v b) { return _mm256_sub_ps(a, b); }
IFX_KVS_INLINE ifx_v ifx_v_mul(ifx_v a, ifx_v b) { return _mm256_mul_ps(a, b); }
IFX_KVS_INLINE ifx_v ifx_v_min(ifx_v a, ifx_v b) { return _mm256_min_ps(a, b); }
IFX_KVS_INLINE ifx_v ifx_v_max(ifx_v a, ifx_v b) { return _mm256_max_ps(a, b); }
IFX_KVS_INLINE ifx_v ifx_v_load_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}
IFX_KVS_INLINE ifx_v ifx_v_load_i8(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
}
IFX_KVS_INLINE ifx_v ifx_v_pow2(ifx_v t)
{
    __m256i k = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(_mm256_set1_ps(IFX_EXP_MAGIC)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k, _mm256_set1_epi32(127)), 23));
}
IFX_KVS_INLINE ifx_v ifx_v_load8(const float *p) { return ifx_v_load(p); }
IFX_KVS_INLINE void ifx_v_store8(float *p, ifx_v x) { ifx_v_store(p, x); }
#else
#define IFX_V_LANES 4
typedef float ifx_v __attribute__((vector_size(16)));
typedef int32_t ifx_vi __attribute__((vector_size(16)));
IFX_KVS_INLINE ifx_v ifx_v_zero(void) { return (ifx_v){0.0f, 0.0f, 0.0f, 0.0f}; }
IFX_KVS_INLINE ifx_v ifx_v_set1(float x) { return (ifx_v){x, x, x, x}; }
IFX_KVS_INLINE ifx_v ifx_v_load(const float *p)
{
    ifx_v x;
    memcpy(&x, p, sizeof x);
    return x;
}
IFX_KVS_INLINE void ifx_v_store(float *p, ifx_v x) { memcpy(p, &x, sizeof x); }
/* Two roundings: a fused operation without hardware is a call to libm, and attention promises no bits across levels. */
IFX_KVS_INLINE ifx_v ifx_v_fma(ifx_v a, ifx_v b, ifx_v c) { return a * b + c; }
IFX_KVS_INLINE ifx_v ifx_v_add(ifx_v a, ifx_v b) { return a + b; }
IFX_KVS_INLINE ifx_v ifx_v_sub(ifx_v a, ifx_v b) { return a - b; }
IFX_KVS_INLINE ifx_v ifx_v_mul(ifx_v a, ifx_v b) { return a * b; }
IFX_KVS_INLINE ifx_v ifx_v_min(ifx_v a, ifx_v b)
{
    ifx_vi m = a < b;
    return (ifx_v)((m & (ifx_vi)a) | (~m & (ifx_vi)b));
}
IFX_KVS_INLINE ifx_v ifx_v_max(ifx_v a, ifx_v b)
{
    ifx_vi m = a > b;
    return (ifx_v)((m & (ifx_vi)a) | (~m & (ifx_vi)b));
}
IFX_KVS_INLINE ifx_v ifx_v_load_bf16(const uint16_t *p)
{
    return (ifx_v){ifx_bf16_to_f32(p[0]), ifx_bf16_to_f32(p[1]), ifx_bf16_to_f32(p[2]), ifx_bf16_to_f32(p[3])};
}
IFX_KVS_INLINE ifx_v ifx_v_load_i8(const int8_t *p)
{
    return (ifx_v){(float)p[0], (float)p[1], (float)p[2], (float)p[3]};
}
IFX_KVS_INLINE ifx_v ifx_v_pow2(ifx_v t)
{
    ifx_vi k = (ifx_vi)t - (ifx_vi)ifx_v_set1(IFX_EXP_MAGIC) + 127;
    return (ifx_v)(k << 23);
}
IFX_KVS_INLINE ifx_v ifx_v_load8(const float *p) { return ifx_v_load(p); }
IFX_KVS_INLINE void ifx_v_store8(float *p, ifx_v x) { ifx_v_store(p, x); }
#endif

/* exp as numerics.h computes it; NaN stays. */
IFX_KVS_INLINE ifx_v ifx_v_exp(ifx_v x)
{
    ifx_v c = ifx_v_max(ifx_v_set1(IFX_EXP_MIN), ifx_v_min(ifx_v_set1(IFX_EXP_MAX), x));
    ifx_v t = ifx_v_fma(c, ifx_v_set1(IFX_EXP_LOG2E), ifx_v_set1(IFX_EXP_MAGIC));
    ifx_v n = ifx_v_sub(t, ifx_v_set1(IFX_EXP_MAGIC));
    ifx_v r = ifx_v_fma(n, ifx_v_set1(-IFX_EXP_LN2HI), c);
    r = ifx_v_fma(n, ifx_v_set1(-IFX_EXP_LN2LO), r);
    ifx_v p = ifx_v_fma(ifx_v_set1(IFX_EXP_C6), r, ifx_v_set1(IFX_EXP_C5));
    p = ifx_v_fma(p, r, ifx_v_set1(IFX_EXP_C4));
    p = ifx_v_fma(p, r, ifx_v_set1(IFX_EXP_C3));
    p = ifx_v_fma(p, r, ifx_v_set1(IFX_EXP_C2));
    p = ifx_v_fma(p, r, ifx_v_set1(1.0f));
    p = ifx_v_fma(p, r, ifx_v_set1(1.0f));
    return ifx_v_mul(p, ifx_v_pow2(t));
}

/* Sums of eight vectors, in one order whatever they hold. */
IFX_KVS_INLINE void ifx_v_sum8(const ifx_v a[8], float out[8])
{
#if IFX_V_LANES >= 8
    __m256 h[8];
    IFX_KVS_UNROLL
    for (int i = 0; i < 8; i++) {
#if IFX_V_LANES == 16
        h[i] = _mm256_add_ps(_mm512_castps512_ps256(a[i]), _mm512_extractf32x8_ps(a[i], 1));
#else
        h[i] = a[i];
#endif
    }
    __m256 lo = _mm256_hadd_ps(_mm256_hadd_ps(h[0], h[1]), _mm256_hadd_ps(h[2], h[3]));
    __m256 hi = _mm256_hadd_ps(_mm256_hadd_ps(h[4], h[5]), _mm256_hadd_ps(h[6], h[7]));
    _mm256_storeu_ps(out, _mm256_add_ps(_mm256_permute2f128_ps(lo, hi, 0x20), _mm256_permute2f128_ps(lo, hi, 0x31)));
#else
    for (int i = 0; i < 8; i++) {
        float t[4];
        ifx_v_store(t, a[i]);
        out[i] = (t[0] + t[1]) + (t[2] + t[3]);
    }
#endif
}

IFX_KVS_INLINE float ifx_v_sum(ifx_v a)
{
    float t[IFX_V_LANES];
    ifx_v_store(t, a);
    for (int w = IFX_V_LANES / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++)
            t[i] += t[i + w];
    return t[0];
}

/* Largest lane; a NaN lane is passed over. */
IFX_KVS_INLINE float ifx_v_hmax(ifx_v a)
{
    float t[IFX_V_LANES], m = -INFINITY;
    ifx_v_store(t, a);
    for (int i = 0; i < IFX_V_LANES; i++)
        m = t[i] > m ? t[i] : m;
    return m;
}

/* ---- an instance ---- */

struct ifx_kvs;
/* append and attend at one instruction set. */
struct ifx_kvs_kernels {
    uint32_t level; /* IFX_CPU_* that they need */
    int32_t (*append)(const struct ifx_kvs *s, const struct ifx_kv_append *call);
    int32_t (*attend)(const struct ifx_kvs *s, const struct ifx_kv_attend *call);
};
struct ifx_kvs {
    const struct ifx_host *host;
    struct ifx_kv_shape shape;
    uint64_t row_bytes;
    const struct ifx_kvs_kernels *kernels;
};
/* Writes one row of d floats. */
typedef void (*ifx_kvs_store_fn)(const struct ifx_kvs *s, const float *x, uint8_t *row);
/* Loads one row as d floats.  out has room for a whole vector past d. */
typedef void (*ifx_kvs_load_fn)(const struct ifx_kvs *s, const uint8_t *row, float *out);

IFX_KVS_INLINE int ifx_kvs_shape_ok(const struct ifx_kv_shape *sh)
{
    return sh->head_dim >= 8 && sh->head_dim <= IFX_KVS_MAX_DIM && sh->head_dim % 8 == 0 && sh->n_kv_heads >= 1 &&
           sh->n_kv_heads <= 65536 && sh->page_tokens >= 16 && sh->page_tokens <= 256 &&
           (sh->page_tokens & (sh->page_tokens - 1)) == 0;
}

/* For ifx_kv_ops.page_bytes: row_bytes is what a row of this shape takes, 0 when the format cannot store it. */
IFX_KVS_INLINE uint64_t ifx_kvs_page_bytes(const struct ifx_kv_shape *sh, uint64_t row_bytes)
{
    if (!ifx_kvs_shape_ok(sh) || row_bytes == 0 || row_bytes > 65536)
        return 0;
    return (2u * (uint64_t)sh->n_kv_heads * sh->page_tokens * row_bytes + 63u) / 64u * 64u;
}

IFX_KVS_INLINE uint64_t ifx_kvs_row_offset(const struct ifx_kvs *s, uint32_t which, uint32_t head, uint32_t slot)
{
    return (((uint64_t)head * 2u + which) * s->shape.page_tokens + slot) * s->row_bytes;
}

/* For ifx_kv_ops.open: picks the last of `n` kernel sets (ascending levels, the first IFX_CPU_SCALAR) that the host allows. */
static inline int32_t ifx_kvs_open(const struct ifx_host *host, const struct ifx_kv_shape *sh, uint64_t row_bytes,
                                   const struct ifx_kvs_kernels *const *table, uint32_t n, void **out)
{
    if (ifx_kvs_page_bytes(sh, row_bytes) == 0)
        return host->error(host, IFX_EUNSUPPORTED,
                           "this KV format cannot store head_dim %u, %u KV heads, pages of %u tokens "
                           "(head_dim: a multiple of 8 up to %u; pages: a power of two, 16 to 256)",
                           sh->head_dim, sh->n_kv_heads, sh->page_tokens, IFX_KVS_MAX_DIM);
    struct ifx_kvs *s = (struct ifx_kvs *)host->alloc(host, sizeof *s, 64);
    if (s == NULL)
        return IFX_ENOMEM;
    s->host = host;
    s->shape = *sh;
    s->row_bytes = row_bytes;
    s->kernels = table[0];
    for (uint32_t i = 1; i < n; i++)
        if (table[i]->level <= host->cpu_level(host))
            s->kernels = table[i];
    *out = s;
    return IFX_OK;
}

/* For ifx_kv_ops.close, .append, .attend, .level. */
static inline void ifx_kvs_close(void *kv)
{
    struct ifx_kvs *s = (struct ifx_kvs *)kv;
    if (s != NULL)
        s->host->free(s->host, s);
}
static inline int32_t ifx_kvs_call_append(void *kv, const struct ifx_kv_append *call)
{
    const struct ifx_kvs *s = (const struct ifx_kvs *)kv;
    return s->kernels->append(s, call);
}
static inline int32_t ifx_kvs_call_attend(void *kv, const struct ifx_kv_attend *call)
{
    const struct ifx_kvs *s = (const struct ifx_kvs *)kv;
    return s->kernels->attend(s, call);
}
static inline uint32_t ifx_kvs_level(void *kv)
{
    const struct ifx_kvs *s = (const struct ifx_kvs *)kv;
    return s->kernels->level;
}

/* ---- append ---- */

IFX_KVS_INLINE int32_t ifx_kvs_append(const struct ifx_kvs *s, const struct ifx_kv_append *c, ifx_kvs_store_fn store)
{
    const uint32_t d = s->shape.head_dim, pt = s->shape.page_tokens;
    for (uint32_t i = 0; i < c->n; i++) {
        const uint64_t t = c->pos0 + i;
        uint8_t *page = (uint8_t *)c->pages[t / pt];
        const uint32_t slot = (uint32_t)(t % pt);
        for (uint32_t h = 0; h < s->shape.n_kv_heads; h++) {
            store(s, c->k + i * c->ldk + (uint64_t)h * d, page + ifx_kvs_row_offset(s, IFX_KV_K, h, slot));
            store(s, c->v + i * c->ldv + (uint64_t)h * d, page + ifx_kvs_row_offset(s, IFX_KV_V, h, slot));
        }
    }
    return IFX_OK;
}

/* ---- attend ---- */

/* One tile of tokens against the query rows [q0, q1) x group. */
struct ifx_kvs_tile {
    const struct ifx_kvs *s;
    const struct ifx_kv_attend *c;
    uint32_t q0, q1;
    const int32_t *list; /* the tokens, or NULL: t, t + 1, ... */
    uint64_t t;
    uint32_t n;
    uint32_t sub;    /* rows decoded at a time, a multiple of 8 */
    uint64_t ld;     /* floats between decoded rows */
    float *rows;     /* [sub, ld] */
    float *p;        /* [query rows, IFX_KVS_TILE]: scores, then weights */
};

IFX_KVS_INLINE uint32_t ifx_kvs_visible(const struct ifx_kvs_tile *x, uint32_t q)
{
    const uint64_t end = x->c->pos0 + q + 1;
    if (x->list != NULL)
        return x->n;
    if (end <= x->t)
        return 0;
    return end - x->t < x->n ? (uint32_t)(end - x->t) : x->n;
}

/* Asks for what follows a row: a stored row is read once, and what decoding waits for is memory.  V follows K in a page. */
IFX_KVS_INLINE void ifx_kvs_prefetch(const uint8_t *p, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(p + i);
}

/* Decodes rows [j0, j0 + n) of the tile, zero rows up to a multiple of 8. */
IFX_KVS_INLINE void ifx_kvs_load(const struct ifx_kvs_tile *x, uint32_t which, uint32_t j0, uint32_t n,
                                 ifx_kvs_load_fn load)
{
    const uint32_t last = x->s->shape.page_tokens - 1; /* a power of two less one */
    const int shift = __builtin_ctz(x->s->shape.page_tokens);
    const uint64_t row_bytes = x->s->row_bytes, sub_bytes = x->sub * row_bytes;
    const uint64_t ahead = sub_bytes > IFX_KVS_AHEAD ? sub_bytes : IFX_KVS_AHEAD;
    uint32_t j = 0;
    for (; j < n; j++) {
        const uint64_t t = x->list != NULL ? (uint64_t)(uint32_t)x->list[j0 + j] : x->t + j0 + j;
        const uint8_t *row = (const uint8_t *)x->c->pages[t >> shift] +
                             ifx_kvs_row_offset(x->s, which, x->c->kv_head, (uint32_t)t & last);
        if (x->list == NULL)
            ifx_kvs_prefetch(row + ahead, row_bytes);
        load(x->s, row, x->rows + j * x->ld);
    }
    for (; j % 8u != 0; j++)
        memset(x->rows + j * x->ld, 0, x->s->shape.head_dim * sizeof(float));
}

/* Scores of nq query rows (q, ldq apart in floats given by pointers) and nt tokens; nq * nt = 8. */
IFX_KVS_INLINE void ifx_kvs_dots(const float *const *q, const float *k, uint64_t ldk, uint32_t d, float scale,
                                 float *out, const int nq, const int nt)
{
    ifx_v acc[8], kr[8];
    float sums[8];
    uint32_t i = 0;
    IFX_KVS_UNROLL
    for (int a = 0; a < 8; a++)
        acc[a] = ifx_v_zero();
    for (; i + IFX_V_LANES <= d; i += IFX_V_LANES) {
        IFX_KVS_UNROLL
        for (int b = 0; b < nt; b++)
            kr[b] = ifx_v_load(k + (uint64_t)b * ldk + i);
        IFX_KVS_UNROLL
        for (int a = 0; a < nq; a++) {
            const ifx_v qa = ifx_v_load(q[a] + i);
            IFX_KVS_UNROLL
            for (int b = 0; b < nt; b++)
                acc[a * nt + b] = ifx_v_fma(qa, kr[b], acc[a * nt + b]);
        }
    }
    if (IFX_V_LANES > 8 && i < d) {
        IFX_KVS_UNROLL
        for (int a = 0; a < 8; a++)
            acc[a] = ifx_v_fma(ifx_v_load8(q[a / nt] + i), ifx_v_load8(k + (uint64_t)(a % nt) * ldk + i), acc[a]);
    }
    ifx_v_sum8(acc, sums);
    IFX_KVS_UNROLL
    for (int a = 0; a < 8; a++)
        out[(a / nt) * (int)IFX_KVS_TILE + a % nt] = sums[a] * scale;
}

IFX_KVS_INLINE void ifx_kvs_scores_block(const struct ifx_kvs_tile *x, uint32_t r, uint32_t j0, uint32_t n,
                                         const int nq, const int nt)
{
    const struct ifx_kv_attend *c = x->c;
    const float *q[4];
    for (int a = 0; a < nq; a++) {
        const uint32_t row = r + (uint32_t)a;
        q[a] = c->q + (uint64_t)(x->q0 + row / c->group) * c->ldq + (uint64_t)(row % c->group) * c->ldq_head;
    }
    for (uint32_t j = 0; j < n; j += (uint32_t)nt)
        ifx_kvs_dots(q, x->rows + j * x->ld, x->ld, x->s->shape.head_dim, c->scale,
                     x->p + (uint64_t)r * IFX_KVS_TILE + j0 + j, nq, nt);
}

/* p[r, j] = scale q_r k_j for all rows and tokens of the tile, seen or not. */
IFX_KVS_INLINE void ifx_kvs_scores(const struct ifx_kvs_tile *x, ifx_kvs_load_fn load)
{
    const uint32_t rows = (x->q1 - x->q0) * x->c->group;
    for (uint32_t j0 = 0; j0 < x->n; j0 += x->sub) {
        const uint32_t n = x->n - j0 < x->sub ? x->n - j0 : x->sub;
        uint32_t r = 0;
        ifx_kvs_load(x, IFX_KV_K, j0, n, load);
        for (; r + 4 <= rows; r += 4)
            ifx_kvs_scores_block(x, r, j0, n, 4, 2);
        if (r + 2 <= rows) {
            ifx_kvs_scores_block(x, r, j0, n, 2, 4);
            r += 2;
        }
        if (r < rows)
            ifx_kvs_scores_block(x, r, j0, n, 1, 8);
    }
}

/* One step of the online softmax of one query row over its `n` seen tokens: scores become weights, m and l and acc
 * follow.  Returns 0 when every score is -inf: the tile then weighs nothing. */
IFX_KVS_INLINE int ifx_kvs_softmax(float *p, uint32_t n, float *m, float *l, float *acc, uint32_t d)
{
    const uint32_t end = (n + IFX_V_LANES - 1) / IFX_V_LANES * IFX_V_LANES;
    ifx_v top = ifx_v_set1(*m), sum = ifx_v_zero();
    for (uint32_t j = n; j < end; j++)
        p[j] = -INFINITY;
    for (uint32_t j = 0; j < end; j += IFX_V_LANES)
        top = ifx_v_max(ifx_v_load(p + j), top); /* a NaN score loses here and reaches l below */
    const float m1 = ifx_v_hmax(top);
    if (m1 == -INFINITY) {
        int nan = 0;
        for (uint32_t j = 0; j < n; j++)
            nan |= p[j] != p[j];
        if (!nan)
            return 0;
    }
    for (uint32_t j = 0; j < end; j += IFX_V_LANES) {
        const ifx_v e = ifx_v_exp(ifx_v_sub(ifx_v_load(p + j), ifx_v_set1(m1)));
        ifx_v_store(p + j, e);
    }
    for (uint32_t j = n; j < end; j++)
        p[j] = 0.0f;
    for (uint32_t j = 0; j < end; j += IFX_V_LANES)
        sum = ifx_v_add(sum, ifx_v_load(p + j));
    if (*m != m1 && *l != 0.0f) {
        const float shrink = ifx_exp(*m - m1);
        *l *= shrink;
        for (uint32_t i = 0; i < d; i += 8) {
#if IFX_V_LANES == 4
            ifx_v_store(acc + i, ifx_v_mul(ifx_v_load(acc + i), ifx_v_set1(shrink)));
            ifx_v_store(acc + i + 4, ifx_v_mul(ifx_v_load(acc + i + 4), ifx_v_set1(shrink)));
#else
            ifx_v_store8(acc + i, ifx_v_mul(ifx_v_load8(acc + i), ifx_v_set1(shrink)));
#endif
        }
    }
    *l += ifx_v_sum(sum);
    *m = m1;
    return 1;
}

/* acc[nr rows, nv vectors] += p[nr, n] v[n, .] */
IFX_KVS_INLINE void ifx_kvs_mix(float *acc, uint32_t d, const float *p, const float *v, uint64_t ldv, uint32_t n,
                                const int nr, const int nv)
{
    ifx_v a[8];
    IFX_KVS_UNROLL
    for (int i = 0; i < nr * nv; i++)
        a[i] = ifx_v_load(acc + (uint64_t)(i / nv) * d + (uint64_t)(i % nv) * IFX_V_LANES);
    for (uint32_t t = 0; t < n; t++) {
        ifx_v w[8];
        IFX_KVS_UNROLL
        for (int i = 0; i < nv; i++)
            w[i] = ifx_v_load(v + t * ldv + (uint64_t)i * IFX_V_LANES);
        IFX_KVS_UNROLL
        for (int r = 0; r < nr; r++) {
            const ifx_v pr = ifx_v_set1(p[(uint64_t)r * IFX_KVS_TILE + t]);
            IFX_KVS_UNROLL
            for (int i = 0; i < nv; i++)
                a[r * nv + i] = ifx_v_fma(pr, w[i], a[r * nv + i]);
        }
    }
    IFX_KVS_UNROLL
    for (int i = 0; i < nr * nv; i++)
        ifx_v_store(acc + (uint64_t)(i / nv) * d + (uint64_t)(i % nv) * IFX_V_LANES, a[i]);
}

/* nr rows over the whole head: blocks of vectors, single vectors, the half vector at the end. */
IFX_KVS_INLINE void ifx_kvs_mix_rows(float *acc, uint32_t d, const float *p, const float *v, uint64_t ldv, uint32_t n,
                                     const int nr, const int nv)
{
    uint32_t i = 0;
    for (; i + (uint32_t)nv * IFX_V_LANES <= d; i += (uint32_t)nv * IFX_V_LANES)
        ifx_kvs_mix(acc + i, d, p, v + i, ldv, n, nr, nv);
    for (; i + IFX_V_LANES <= d; i += IFX_V_LANES)
        ifx_kvs_mix(acc + i, d, p, v + i, ldv, n, nr, 1);
    for (int r = 0; r < nr && i < d; r++) {
        float *ar = acc + (uint64_t)r * d + i;
        ifx_v a = ifx_v_load8(ar);
        for (uint32_t t = 0; t < n; t++)
            a = ifx_v_fma(ifx_v_set1(p[(uint64_t)r * IFX_KVS_TILE + t]), ifx_v_load8(v + t * ldv + i), a);
        ifx_v_store8(ar, a);
    }
}

/* acc += p v for the query rows that see exactly n decoded rows. */
IFX_KVS_INLINE void ifx_kvs_mix_run(const struct ifx_kvs_tile *x, uint32_t r, uint32_t r1, uint32_t j0, uint32_t n)
{
    const uint32_t d = x->s->shape.head_dim;
    float *acc = x->c->acc + ((uint64_t)(x->q0 - x->c->q0) * x->c->group + r) * d;
    const float *p = x->p + (uint64_t)r * IFX_KVS_TILE + j0;
    for (; r + 4 <= r1; r += 4, acc += 4 * (uint64_t)d, p += 4 * IFX_KVS_TILE)
        ifx_kvs_mix_rows(acc, d, p, x->rows, x->ld, n, 4, 2);
    if (r + 2 <= r1) {
        ifx_kvs_mix_rows(acc, d, p, x->rows, x->ld, n, 2, 4);
        r += 2, acc += 2 * (uint64_t)d, p += 2 * IFX_KVS_TILE;
    }
    if (r < r1)
        ifx_kvs_mix_rows(acc, d, p, x->rows, x->ld, n, 1, 8);
}

IFX_KVS_INLINE uint32_t ifx_kvs_seen(const struct ifx_kvs_tile *x, uint32_t q, uint32_t j0, uint32_t n)
{
    const uint32_t v = ifx_kvs_visible(x, q);
    return v <= j0 ? 0 : v - j0 < n ? v - j0 : n;
}

IFX_KVS_INLINE void ifx_kvs_values(const struct ifx_kvs_tile *x, ifx_kvs_load_fn load)
{
    const uint32_t group = x->c->group;
    for (uint32_t j0 = 0; j0 < x->n; j0 += x->sub) {
        const uint32_t n = x->n - j0 < x->sub ? x->n - j0 : x->sub;
        ifx_kvs_load(x, IFX_KV_V, j0, n, load);
        for (uint32_t q = x->q0, end; q < x->q1; q = end) {
            const uint32_t seen = ifx_kvs_seen(x, q, j0, n);
            for (end = q + 1; end < x->q1 && ifx_kvs_seen(x, end, j0, n) == seen; end++)
                ;
            if (seen > 0)
                ifx_kvs_mix_run(x, (q - x->q0) * group, (end - x->q0) * group, j0, seen);
        }
    }
}

IFX_KVS_INLINE void ifx_kvs_run_tile(const struct ifx_kvs_tile *x, ifx_kvs_load_fn load)
{
    const struct ifx_kv_attend *c = x->c;
    const uint32_t d = x->s->shape.head_dim, rows = (x->q1 - x->q0) * c->group;
    const uint64_t out = (uint64_t)(x->q0 - c->q0) * c->group;
    ifx_kvs_scores(x, load);
    for (uint32_t r = 0; r < rows; r++) {
        const uint32_t n = ifx_kvs_visible(x, x->q0 + r / c->group);
        float *p = x->p + (uint64_t)r * IFX_KVS_TILE;
        if (n > 0 && !ifx_kvs_softmax(p, n, c->m + out + r, c->l + out + r, c->acc + (out + r) * d, d))
            for (uint32_t j = 0; j < n; j++)
                p[j] = 0.0f;
    }
    ifx_kvs_values(x, load);
}

/* The whole of ifx_kv_ops.attend. */
IFX_KVS_INLINE int32_t ifx_kvs_attend(const struct ifx_kvs *s, const struct ifx_kv_attend *c, ifx_kvs_load_fn load)
{
    const uint32_t d = s->shape.head_dim;
    const uint64_t rows = (uint64_t)(c->q1 - c->q0) * c->group;
    float decoded[IFX_KVS_SUB * (IFX_KVS_MAX_DIM + IFX_KVS_PAD)] __attribute__((aligned(64)));
    float p[IFX_KVS_ROWS * IFX_KVS_TILE] __attribute__((aligned(64)));
    struct ifx_kvs_tile x;
    memset(&x, 0, sizeof x);
    x.s = s;
    x.c = c;
    x.ld = (d + 15u) / 16u * 16u + IFX_KVS_PAD;
    x.rows = decoded;
    x.p = p;

    if (c->group == 0 || c->group > IFX_KVS_ROWS || c->kv_head >= s->shape.n_kv_heads)
        return s->host->error(s->host, IFX_EINVAL, "attend: KV head %u of %u, %u query heads a KV head (at most %u)",
                              c->kv_head, s->shape.n_kv_heads, c->group, IFX_KVS_ROWS);
    for (uint64_t r = 0; r < rows; r++) {
        c->m[r] = -INFINITY;
        c->l[r] = 0.0f;
    }
    memset(c->acc, 0, rows * d * sizeof(float));

    const uint32_t step = c->rows != NULL ? 1 : IFX_KVS_ROWS / c->group;
    for (x.q0 = c->q0; x.q0 < c->q1; x.q0 = x.q1) {
        x.q1 = c->q1 - x.q0 < step ? c->q1 : x.q0 + step;
        x.sub = (x.q1 - x.q0) * c->group <= 16 ? 8 : IFX_KVS_SUB;
        if (c->rows == NULL) {
            const uint64_t end = c->t1 < c->pos0 + x.q1 ? c->t1 : c->pos0 + x.q1;
            for (x.t = c->t0; x.t < end; x.t += x.n) {
                const uint64_t edge = (x.t / IFX_KVS_TILE + 1) * IFX_KVS_TILE;
                x.n = (uint32_t)((edge < end ? edge : end) - x.t);
                ifx_kvs_run_tile(&x, load);
            }
        } else {
            const int32_t *list = c->rows + x.q0 * c->ld_rows;
            uint32_t a = 0, b = c->n_rows[x.q0];
            while (a < b && (uint64_t)(uint32_t)list[a] < c->t0)
                a++;
            while (a < b && (uint64_t)(uint32_t)list[b - 1] >= c->t1)
                b--;
            for (; a < b; a += x.n) {
                x.list = list + a;
                x.n = b - a < IFX_KVS_TILE ? b - a : IFX_KVS_TILE;
                ifx_kvs_run_tile(&x, load);
            }
        }
    }
    for (uint64_t r = 0; r < rows; r++) /* a NaN score: say it in m too, so that no merge overlooks the part */
        if (c->l[r] != c->l[r])
            c->m[r] = c->l[r];
    return IFX_OK;
}

/* ---- putting parts together ---- */

/* Merges part 2 into part 1: `rows` results of d values each.  Merge in ascending token order for one result
 * whatever the number of threads. */
static inline void ifx_kvs_merge(float *m1, float *l1, float *acc1, const float *m2, const float *l2, const float *acc2,
                                 uint64_t rows, uint32_t d)
{
    for (uint64_t r = 0; r < rows; r++) {
        float a1 = 1.0f, a2 = 1.0f, m = m1[r];
        if (l2[r] == 0.0f && m2[r] == -INFINITY)
            continue;
        if (m2[r] > m1[r]) {
            m = m2[r];
            a1 = l1[r] == 0.0f ? 0.0f : ifx_exp(m1[r] - m2[r]);
        } else {
            a2 = ifx_exp(m2[r] - m1[r]); /* NaN in either makes everything NaN */
        }
        m1[r] = a2 == a2 ? m : a2;
        l1[r] = l1[r] * a1 + l2[r] * a2;
        for (uint32_t i = 0; i < d; i++)
            acc1[r * d + i] = acc1[r * d + i] * a1 + acc2[r * d + i] * a2;
    }
}

#endif
