/* SPDX-License-Identifier: Apache-2.0
 *
 * kv.h - the KV-cache format: how one token's K and V rows are stored, and attention over stored rows.
 *
 * The cache of one layer is a set of equal pages of page_tokens tokens; a sequence lists its pages in order, so
 * token t lies in pages[t / page_tokens] at slot t % page_tokens.  What a page looks like inside is the
 * format's affair (page_bytes tells its size).  Attention is grouped-query: query head h reads KV head
 * h / (n_q_heads / n_kv_heads).
 *
 * Format tier: append-only, NULL means the documented default.  kv_skeleton.h builds attend for a format
 * from a loader of one row.
 */
#ifndef INFERNIX_KV_H
#define INFERNIX_KV_H

#include <infernix/compute.h>
#include <infernix/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IFX_KV_K 0u
#define IFX_KV_V 1u

struct ifx_kv_shape {
    uint32_t struct_size;
    uint32_t head_dim;    /* d; a multiple of 8, at most 512 */
    uint32_t n_kv_heads;
    uint32_t page_tokens; /* a power of two, 16..256 */
};

/* Rows to store: token i of the call gets position pos0 + i. */
struct ifx_kv_append {
    uint32_t struct_size;
    uint32_t n;
    void *const *pages; /* host addresses (CPU call) of the sequence's pages, at least up to pos0 + n - 1 */
    uint64_t pos0;
    const float *k; /* [n, n_kv_heads, d], rows of one token ldk apart; d contiguous, heads d apart */
    const float *v;
    uint64_t ldk;
    uint64_t ldv;
};

/* One part of an attention call: the queries [q0, q1) of the heads that read KV head `kv_head`, against the
 * stored tokens [t0, t1).  Query i stands at position pos0 + i and sees tokens 0 .. pos0 + i; with `rows` it
 * sees only those listed for it.  The part's result is left unnormalised so that parts over different
 * token ranges can be merged:  m = max of the scaled scores (-inf if none is visible), l = sum exp(s - m),
 * acc = sum exp(s - m) v.   Final output = merge(acc) / merge(l). */
struct ifx_kv_attend {
    uint32_t struct_size;
    uint32_t kv_head;
    const void *const *pages;
    uint64_t pos0;
    uint64_t t0, t1;
    uint32_t q0, q1;
    uint32_t group; /* query heads per KV head */
    float scale;
    const float *q; /* q of query i, group member g: q + i * ldq + g * ldq_head, d contiguous (the base already
                       points to this KV head's first query head) */
    uint64_t ldq;
    uint64_t ldq_head;
    /* Sparse attention: ascending token positions query i may see: rows[i * ld_rows ...], n_rows[i] of them
     * (all <= pos0 + i); NULL: dense.  Tokens outside [t0, t1) are another part's. */
    const int32_t *rows;
    const uint32_t *n_rows;
    uint64_t ld_rows;
    /* Results, index (i - q0) * group + g: */
    float *m;   /* [(q1 - q0) * group] */
    float *l;   /* [(q1 - q0) * group] */
    float *acc; /* [(q1 - q0) * group, d] */
};

/* Device calls for one sequence and one layer.  All pointers are device memory; column i stands at positions[i], and the
 * positions of a call are consecutive.  pages: the sequence's page addresses, token t in pages[t / page_tokens]. */
struct ifx_kv_device_append {
    uint32_t struct_size;
    uint32_t n;
    const int32_t *positions; /* [n] */
    void *const *pages;
    const float *k; /* [n, n_kv_heads, d], rows ldk apart */
    const float *v;
    uint64_t ldk;
    uint64_t ldv;
};
/* out[i, h, :] = softmax(scale q[i, h] K^T) V over the tokens 0 .. positions[i] (or those of them in `rows`), stored before
 * the call.  max_tokens is a bound that the host knows (positions[n - 1] < max_tokens); the kernel stops at the real
 * position, so a captured call serves until the bound is passed. */
struct ifx_kv_device_attend {
    uint32_t struct_size;
    uint32_t n;
    uint32_t n_q_heads;
    uint32_t max_tokens;
    const int32_t *positions; /* [n] */
    void *const *pages;
    const float *q; /* head h of column i at q + i * ldq + h * ldq_head */
    uint64_t ldq;
    uint64_t ldq_head;
    float scale;
    uint32_t reserved;
    float *out; /* [n, n_q_heads, d], rows ldo apart */
    uint64_t ldo;
    const int32_t *rows; /* sparse: as in ifx_kv_attend; NULL: dense */
    const uint32_t *n_rows;
    uint64_t ld_rows;
    void *ws; /* device_ws_bytes, 256-byte aligned */
};

struct ifx_kv_ops {
    uint32_t struct_size;
    uint32_t flags;
    const char *format; /* identity: "bf16" */
    const char *description;
    const struct ifx_option *options; /* NULL: none */

    /* Bytes of one page (K and V of all KV heads), a multiple of 64; 0 when the shape is not supported.  Pure. */
    uint64_t (*page_bytes)(const struct ifx_kv_shape *shape);
    int32_t (*open)(const struct ifx_host *host, const struct ifx_options *options,
                    const struct ifx_kv_shape *shape, void **kv);
    void (*close)(void *kv);
    /* Stores rows.  A non-finite value is stored so that it reads back non-finite. Called by one thread for a
     * sequence; different sequences at once. */
    int32_t (*append)(void *kv, const struct ifx_kv_append *call);
    /* Computes one part; any number of parts at once.  Stack use at most 256 KiB, no allocation. */
    int32_t (*attend)(void *kv, const struct ifx_kv_attend *call);
    /* The oracle: the stored K or V row of a head at a slot of a page, as exact values. */
    int32_t (*decode_row)(void *kv, const void *page, uint32_t which, uint32_t kv_head, uint32_t slot,
                          double *out);
    uint32_t (*level)(void *kv); /* CPU level in use; NULL: scalar */

    /* ---- the device side; device_open NULL: this format works on the CPU only ---- (as in expert.h) */
    int32_t (*device_open)(void *kv, const struct ifx_compute *compute, void **side);
    void (*device_close)(void *kv, void *side);
    uint64_t (*device_ws_bytes)(void *kv, void *side, uint32_t n, uint32_t n_q_heads, uint32_t max_tokens);
    int32_t (*device_append)(void *kv, void *side, void *stream, const struct ifx_kv_device_append *call);
    int32_t (*device_attend)(void *kv, void *side, void *stream, const struct ifx_kv_device_attend *call);

    /* Further members are appended here. */
};

#ifdef __cplusplus
}
#endif
#endif
