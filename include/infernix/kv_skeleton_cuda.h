/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_skeleton_cuda.h - the device members of a KV format for CUDA devices, for formats that use kv_skeleton.h: loads the
 * kernels that kv_skeleton.cuh makes and launches them.  Read by both compilers: the arguments of the kernels are here.
 *
 * A format compiles one X.cu to a fat binary, embeds it and gives image and size to ifx_kvc_open:
 *   static int32_t open_device(void *kv, const struct ifx_compute *c, void **side)
 *   { return ifx_kvc_open(kv, c, image, image_bytes, FLAGS, side); }
 * The other members are ifx_kvc_close, ifx_kvc_ws_bytes, ifx_kvc_append and ifx_kvc_attend.
 */
#ifndef INFERNIX_KV_SKELETON_CUDA_H
#define INFERNIX_KV_SKELETON_CUDA_H

#include <stddef.h>
#include <stdint.h>

#define IFX_KVC_THREADS 128u /* of a block; decode has 256 where rows must be decoded */
#define IFX_KVC_DECODE_ROWS 16u /* query rows of a block, whose warps share the tokens */
#define IFX_KVC_PREFILL_ROWS 64u /* query rows of a block, 16 a warp */
#define IFX_KVC_HOPPER_ROWS 128u /* the same on Hopper for rows of bf16 of more than 128 values */
#define IFX_KVC_HOPPER_THREADS 256u
#define IFX_KVC_HOPPER_FROM 256u /* rows of a call: with fewer, smaller blocks are faster */
#define IFX_KVC_MAX_SPLITS 512u /* parts that kv_merge joins */
#define IFX_KVC_TILE 64u /* splits of the tokens begin at multiples of it */

struct ifx_kvc_args {
    const int32_t *positions;
    uint8_t *const *pages;
    const float *q;
    uint64_t ldq;
    uint64_t ldq_head;
    float *out;
    uint64_t ldo;
    const int32_t *rows;
    const uint32_t *n_rows;
    uint64_t ld_rows;
    float *part_acc; /* [query, head, split, d] */
    float *part_ml;  /* [query, head, split, 2] */
    const float *k;  /* append */
    const float *v;
    uint64_t ldk;
    uint64_t ldv;
    uint64_t row_bytes;
    float scale;         /* times log2(e) */
    uint32_t n;
    uint32_t n_q_heads;
    uint32_t n_kv_heads;
    uint32_t group;
    uint32_t d;
    uint32_t page_tokens;
    uint32_t page_shift;
    uint32_t splits;     /* the tokens are cut into at most so many parts */
    uint32_t direct;     /* one part: write out, not the part */
    uint32_t raw_stride; /* bytes of a stored row in shared memory */
    uint32_t stages;     /* decode: tiles in flight */
};

#ifndef __CUDACC__
#include <infernix/kv_skeleton.h>

#define IFX_KVC_DIRECT 1u /* DIRECT of the kernels is 1 */
#define IFX_KVC_EIGHT 2u  /* WARPS of the kernels is 8 */

struct ifx_kvc {
    const struct ifx_compute *compute;
    void *module;
    void *append, *decode, *prefill, *merge;
    uint32_t pad_dim; /* head_dim as the kernels see it: 64, 128 or 256 */
    uint32_t raw_stride;
    uint32_t stages;
    uint32_t decode_warps;
    uint32_t flags;
    uint32_t decode_shared, prefill_shared;
    void *hopper; /* kernel of long prompts, or NULL */
    uint32_t hopper_shared;
};

static inline void ifx_kvc_close(void *kv, void *opened)
{
    const struct ifx_kvs *s = (const struct ifx_kvs *)kv;
    struct ifx_kvc *c = (struct ifx_kvc *)opened;
    if (c == NULL)
        return;
    if (c->module != NULL)
        c->compute->module_unload(c->compute, c->module);
    s->host->free(s->host, c);
}

/* Shared memory of the two attention kernels; the same sums are in kv_skeleton.cuh. */
static inline void ifx_kvc_shared(struct ifx_kvc *c)
{
    const uint32_t row = c->pad_dim * 2u, tile = c->compute->arch >= 100u ? 32u : 64u, direct = c->flags & IFX_KVC_DIRECT;
    const uint32_t warps = c->flags & IFX_KVC_EIGHT && c->compute->arch < 100u ? 8u : 4u;
    const uint32_t stage = warps * 2u * 16u * (direct ? row : c->raw_stride);
    const uint32_t tiles = direct ? 0u : warps * 16u * row, fixed = 2048u + IFX_KVC_DECODE_ROWS * row;
    const uint32_t merge = warps * 16u * c->pad_dim * 4u;
    uint32_t room = c->compute->max_shared < fixed + tiles + stage ? 0u : (c->compute->max_shared - fixed - tiles) / stage;
    c->decode_warps = warps;
    c->stages = room > 4u ? 4u : room < 1u ? 1u : room;
    /* The warps' sums take the place of tiles and ring in the end. */
    c->decode_shared = fixed + (tiles + c->stages * stage > merge ? tiles + c->stages * stage : merge);
    c->prefill_shared = 2048u + IFX_KVC_PREFILL_ROWS * row + tile * (direct ? 2u * row : row + 2u * c->raw_stride);
}

/* Prompts on Hopper: Q, two tiles of K and of V, 64 bytes, and the start at a multiple of 1024.  Images without its code go without. */
static inline void ifx_kvc_hopper(struct ifx_kvc *c)
{
    const uint32_t shared = 1024u + IFX_KVC_HOPPER_ROWS * 512u + 4u * 64u * 512u + 64u;
    if (c->compute->arch != 90u || !(c->flags & IFX_KVC_DIRECT) || c->pad_dim != 256u || c->compute->max_shared < shared)
        return;
    if (c->compute->kernel(c->compute, c->module, "kv_prefill_hopper", shared, &c->hopper) != IFX_OK)
        c->hopper = NULL;
    c->hopper_shared = shared;
}

static inline int32_t ifx_kvc_kernels(struct ifx_kvc *c)
{
    static const char *const decode[] = {"kv_decode_64", "kv_decode_128", "kv_decode_256"};
    static const char *const prefill[] = {"kv_prefill_64", "kv_prefill_128", "kv_prefill_256"};
    const uint32_t which = c->pad_dim == 64u ? 0u : c->pad_dim == 128u ? 1u : 2u;
    const struct ifx_compute *t = c->compute;
    int32_t status = t->kernel(t, c->module, "kv_append", 0, &c->append);
    if (!status)
        status = t->kernel(t, c->module, "kv_merge", 0, &c->merge);
    if (!status)
        status = t->kernel(t, c->module, decode[which], c->decode_shared, &c->decode);
    if (!status)
        status = t->kernel(t, c->module, prefill[which], c->prefill_shared, &c->prefill);
    if (!status)
        ifx_kvc_hopper(c);
    return status;
}

/* For ifx_kv_ops.device_open.  image: a fat binary of a file that says IFX_KV_CUDA_KERNELS. */
static inline int32_t ifx_kvc_open(void *kv, const struct ifx_compute *compute, const void *image, uint64_t image_bytes, uint32_t flags,
                                   void **side)
{
    const struct ifx_kvs *s = (const struct ifx_kvs *)kv;
    const uint32_t d = s->shape.head_dim;
    struct ifx_kvc *c;
    int32_t status;
    *side = NULL;
    if (compute->family != IFX_COMPUTE_CUDA || compute->arch < 90u || d > 256u)
        return s->host->error(s->host, IFX_EUNSUPPORTED,
                              "this KV format has no kernels for head_dim %u on this device (head_dim up to 256, compute capability 9.0 "
                              "or newer)",
                              d);
    c = (struct ifx_kvc *)s->host->alloc(s->host, sizeof *c, 64);
    if (c == NULL)
        return IFX_ENOMEM;
    memset(c, 0, sizeof *c);
    c->compute = compute;
    c->flags = flags;
    c->pad_dim = d <= 64u ? 64u : d <= 128u ? 128u : 256u;
    c->raw_stride = (uint32_t)((s->row_bytes + 14u + 15u) / 16u * 16u);
    ifx_kvc_shared(c);
    if (c->decode_shared > compute->max_shared || c->prefill_shared > compute->max_shared) {
        ifx_kvc_close(kv, c);
        return s->host->error(s->host, IFX_EUNSUPPORTED, "rows of %llu bytes do not fit in the device's shared memory",
                              (unsigned long long)s->row_bytes);
    }
    status = compute->module_load(compute, image, image_bytes, &c->module);
    if (!status)
        status = ifx_kvc_kernels(c);
    if (status) {
        ifx_kvc_close(kv, c);
        return status;
    }
    *side = c;
    return IFX_OK;
}

/* How an attention call is cut.  Depends on the shape of the call and on the device, never on the number of tokens, so that a
 * token's result is the same whatever bound the host gives. */
struct ifx_kvc_plan {
    uint32_t prefill, hopper;
    uint32_t size;    /* rows of a block */
    uint32_t blocks;  /* of rows */
    uint32_t splits;  /* at most */
};

static inline struct ifx_kvc_plan ifx_kvc_plan(const struct ifx_kvs *s, const struct ifx_kvc *c, uint32_t n, uint32_t n_q_heads, int sparse)
{
    struct ifx_kvc_plan p;
    const uint32_t heads = s->shape.n_kv_heads, group = n_q_heads / heads, wide = c->compute->multiprocessors;
    const uint64_t rows = (uint64_t)n * group;
    p.prefill = !sparse && rows > IFX_KVC_DECODE_ROWS;
    p.hopper = p.prefill && c->hopper != NULL && rows >= IFX_KVC_HOPPER_FROM;
    p.size = p.hopper ? IFX_KVC_HOPPER_ROWS : p.prefill ? IFX_KVC_PREFILL_ROWS : IFX_KVC_DECODE_ROWS;
    if (sparse)
        p.blocks = n * ((group + IFX_KVC_DECODE_ROWS - 1u) / IFX_KVC_DECODE_ROWS);
    else
        p.blocks = (uint32_t)((rows + p.size - 1u) / p.size);
    p.splits = (p.prefill ? 2u * wide : wide) / (p.blocks * heads > 0 ? p.blocks * heads : 1u);
    if (p.prefill && p.blocks * heads >= wide)
        p.splits = 1;
    p.splits = p.splits < 1 ? 1 : p.splits > IFX_KVC_MAX_SPLITS ? IFX_KVC_MAX_SPLITS : p.splits;
    return p;
}

/* Parts of `rows` query rows: accumulators, then maxima and sums. */
static inline uint64_t ifx_kvc_parts(const struct ifx_kvs *s, uint32_t n, uint32_t n_q_heads, uint32_t splits)
{
    return (uint64_t)n * n_q_heads * splits * s->shape.head_dim * sizeof(float);
}

/* For ifx_kv_ops.device_ws_bytes; serves dense and sparse calls. */
static inline uint64_t ifx_kvc_ws_bytes(void *kv, void *side, uint32_t n, uint32_t n_q_heads, uint32_t max_tokens)
{
    const struct ifx_kvs *s = (const struct ifx_kvs *)kv;
    const struct ifx_kvc *c = (const struct ifx_kvc *)side;
    uint64_t most = 0;
    (void)max_tokens;
    for (int sparse = 0; sparse < 2; sparse++) {
        const struct ifx_kvc_plan p = ifx_kvc_plan(s, c, n, n_q_heads, sparse);
        const uint64_t bytes = p.splits == 1 ? 0 : ifx_kvc_parts(s, n, n_q_heads, p.splits) + (uint64_t)n * n_q_heads * p.splits * 8u;
        most = bytes > most ? bytes : most;
    }
    return (most + 255u) / 256u * 256u;
}

static inline struct ifx_kvc_args ifx_kvc_common(const struct ifx_kvs *s, const struct ifx_kvc *c)
{
    struct ifx_kvc_args a;
    memset(&a, 0, sizeof a);
    a.row_bytes = s->row_bytes;
    a.n_kv_heads = s->shape.n_kv_heads;
    a.d = s->shape.head_dim;
    a.page_tokens = s->shape.page_tokens;
    while ((1u << a.page_shift) < a.page_tokens)
        a.page_shift++;
    a.raw_stride = c->raw_stride;
    a.stages = c->stages;
    return a;
}

static inline int32_t ifx_kvc_launch(const struct ifx_kvc *c, void *stream, void *kernel, uint32_t x, uint32_t y, uint32_t z,
                                     uint32_t threads, uint32_t shared, struct ifx_kvc_args *args)
{
    const uint32_t grid[3] = {x, y, z}, block[3] = {threads, 1, 1};
    void *list[1] = {args};
    const struct ifx_compute *t = c->compute;
    const int early = t->struct_size > offsetof(struct ifx_compute, launch_early) && t->launch_early != NULL;
    return (early ? t->launch_early : t->launch)(t, stream, kernel, grid, block, shared, list);
}

/* For ifx_kv_ops.device_append. */
static inline int32_t ifx_kvc_append(void *kv, void *side, void *stream, const struct ifx_kv_device_append *call)
{
    const struct ifx_kvs *s = (const struct ifx_kvs *)kv;
    const struct ifx_kvc *c = (const struct ifx_kvc *)side;
    struct ifx_kvc_args a = ifx_kvc_common(s, c);
    if (call->n == 0)
        return IFX_OK;
    a.n = call->n;
    a.positions = call->positions;
    a.pages = (uint8_t *const *)call->pages;
    a.k = call->k;
    a.v = call->v;
    a.ldk = call->ldk;
    a.ldv = call->ldv;
    return ifx_kvc_launch(c, stream, c->append, (uint32_t)(((uint64_t)call->n * a.n_kv_heads * 2u + 3u) / 4u), 1, 1,
                          IFX_KVC_THREADS, 0, &a);
}

/* For ifx_kv_ops.device_attend. */
static inline int32_t ifx_kvc_attend(void *kv, void *side, void *stream, const struct ifx_kv_device_attend *call)
{
    const struct ifx_kvs *s = (const struct ifx_kvs *)kv;
    const struct ifx_kvc *c = (const struct ifx_kvc *)side;
    const uint32_t heads = s->shape.n_kv_heads;
    struct ifx_kvc_args a = ifx_kvc_common(s, c);
    struct ifx_kvc_plan p;
    uint32_t parts;
    int32_t status;
    if (call->n == 0)
        return IFX_OK;
    if (call->n_q_heads == 0 || call->n_q_heads % heads != 0 || call->max_tokens == 0)
        return s->host->error(s->host, IFX_EINVAL, "attend: %u query heads for %u KV heads, at most %u tokens", call->n_q_heads, heads,
                              call->max_tokens);
    p = ifx_kvc_plan(s, c, call->n, call->n_q_heads, call->rows != NULL);
    parts = (uint32_t)(((uint64_t)call->max_tokens + IFX_KVC_TILE - 1u) / IFX_KVC_TILE);
    parts = parts < p.splits ? parts : p.splits;
    a.positions = call->positions;
    a.pages = (uint8_t *const *)call->pages;
    a.q = call->q;
    a.ldq = call->ldq;
    a.ldq_head = call->ldq_head;
    a.out = call->out;
    a.ldo = call->ldo;
    a.rows = call->rows;
    a.n_rows = call->n_rows;
    a.ld_rows = call->ld_rows;
    a.part_acc = (float *)call->ws;
    a.part_ml = (float *)((char *)call->ws + ifx_kvc_parts(s, call->n, call->n_q_heads, p.splits));
    a.scale = call->scale * IFX_EXP_LOG2E;
    a.n = call->n;
    a.n_q_heads = call->n_q_heads;
    a.group = call->n_q_heads / heads;
    a.splits = p.splits;
    a.direct = parts == 1;
    if (p.hopper)
        status = ifx_kvc_launch(c, stream, c->hopper, p.blocks, heads, parts, IFX_KVC_HOPPER_THREADS, c->hopper_shared, &a);
    else
        status = ifx_kvc_launch(c, stream, p.prefill ? c->prefill : c->decode, p.blocks, heads, parts,
                                p.prefill ? IFX_KVC_THREADS : 32u * c->decode_warps, p.prefill ? c->prefill_shared : c->decode_shared, &a);
    if (!status && !a.direct)
        status = ifx_kvc_launch(c, stream, c->merge, call->n, call->n_q_heads, 1, IFX_KVC_THREADS, 0, &a);
    return status;
}

#endif
#endif
