/* SPDX-License-Identifier: Apache-2.0
 *
 * A float32 KV format made of the skeleton, with one fault, chosen by FAULT.
 */
#include <infernix/kv_skeleton.h>
#include <stdlib.h>

#define STR_(x) #x
#define STR(x) STR_(x)

#define F_NONE         0
#define F_PAGE_ZERO    1
#define F_PAGE_ODD     2  /* no multiple of 64 */
#define F_PAGE_HUGE    3
#define F_PAGE_SHORT   4  /* too small for what append writes */
#define F_NULL_ATTEND  5
#define F_NULL_DECODE  6
#define F_SCALE        7  /* ignores the scale */
#define F_CAUSAL       8  /* one token too many */
#define F_CAUSAL_SHORT 9  /* one too few */
#define F_T0           10 /* ignores t0 */
#define F_T1           11 /* ignores t1 */
#define F_ROWS         12 /* ignores the row selection */
#define F_HEAD         13 /* always KV head 0 */
#define F_GROUP        14 /* group members exchanged */
#define F_SWAP         15 /* K and V exchanged on load */
#define F_NAN_STORE    16 /* stores NaN as 0 */
#define F_NAN_MASK     17 /* hidden rows count with weight 0: 0 * NaN */
#define F_EMPTY        18 /* m 0 where nothing is seen */
#define F_PAST_ACC     19
#define F_STACK        20
#define F_ALLOCATES    21
#define F_GLOBAL       22
#define F_NORMALISED   23 /* acc already divided */
#define F_OVERFLOW     24 /* exp without subtracting the maximum */
#define F_PIECES       25 /* a call starts a page anew */
#define F_LEAK         26
#define F_NO_MEMORY    27
#define F_DECODE       28 /* decode_row says other values than attend uses */
#define F_Q0           29 /* results placed by query number */
#define F_PAGE_CUT     30 /* the size cut to 32 bits, where what is left is not too little */
#define F_POS32        31 /* append cuts positions to 32 bits */
#define F_ATTEND32     32 /* attend does */
#define F_MALLOC       33 /* allocates behind the host's back */

static uint64_t kv_page_bytes(const struct ifx_kv_shape *sh)
{
    const uint64_t right = ifx_kvs_page_bytes(sh, sh->head_dim * 4u);
    return FAULT == F_PAGE_ZERO                     ? 0
           : FAULT == F_PAGE_ODD                    ? right + (right != 0) * 8
           : FAULT == F_PAGE_HUGE                   ? (uint64_t)1 << 59
           : FAULT == F_PAGE_CUT && right > UINT32_MAX ? (right & UINT32_MAX) + 0xc0000000u
           : FAULT == F_PAGE_SHORT && right > 100000 ? right / 2
                                                    : right;
}

IFX_KVS_INLINE void kv_store(const struct ifx_kvs *s, const float *x, uint8_t *row)
{
    memcpy(row, x, s->shape.head_dim * sizeof(float));
#if FAULT == F_NAN_STORE
    float *y = (float *)(void *)row;
    for (uint32_t i = 0; i < s->shape.head_dim; i++)
        y[i] = y[i] - y[i] == 0.0f ? y[i] : 0.0f;
#endif
}

IFX_KVS_INLINE void kv_load(const struct ifx_kvs *s, const uint8_t *row, float *out)
{
    memcpy(out, row, s->shape.head_dim * sizeof(float));
#if FAULT == F_DECODE
    out[1] *= 1.05f;
#endif
}

static int32_t kv_append(const struct ifx_kvs *s, const struct ifx_kv_append *call)
{
#if FAULT == F_PIECES
    struct ifx_kv_append c = *call;
    c.pos0 = c.pos0 / 16 * 16;
    return ifx_kvs_append(s, &c, kv_store);
#elif FAULT == F_POS32
    struct ifx_kv_append c = *call;
    c.pos0 = (uint32_t)c.pos0;
    return ifx_kvs_append(s, &c, kv_store);
#else
    return ifx_kvs_append(s, call, kv_store);
#endif
}

static int32_t kv_attend(const struct ifx_kvs *s, const struct ifx_kv_attend *call)
{
    struct ifx_kv_attend c = *call;
    const uint64_t rows = (uint64_t)(c.q1 - c.q0) * c.group;
    const uint32_t d = s->shape.head_dim;
    int32_t status;
    (void)rows, (void)d;
#if FAULT == F_SCALE
    c.scale = 1.0f;
#elif FAULT == F_CAUSAL
    c.pos0 += c.pos0 + c.q1 < c.t1 ? 1 : 0;
#elif FAULT == F_CAUSAL_SHORT
    c.pos0 -= c.pos0 > 0;
#elif FAULT == F_T0
    c.t0 = 0;
#elif FAULT == F_T1
    c.t1 = c.pos0 + c.q1;
#elif FAULT == F_ROWS
    c.rows = NULL;
#elif FAULT == F_HEAD
    c.kv_head = 0;
#elif FAULT == F_GROUP
    c.q += (c.group - 1) * c.ldq_head;
    c.ldq_head = (uint64_t)0 - c.ldq_head;
#elif FAULT == F_STACK
    volatile char big[6 << 20];
    for (size_t i = 0; i < sizeof big; i += 512)
        big[i] = 1;
#elif FAULT == F_ATTEND32
    c.pos0 = (uint32_t)c.pos0;
    c.t0 = (uint32_t)c.t0;
    c.t1 = (uint32_t)c.t1;
#elif FAULT == F_MALLOC
    volatile char *p = malloc(64);
    p[0] = 1;
    free((void *)(uintptr_t)p);
#elif FAULT == F_ALLOCATES
    s->host->free(s->host, s->host->alloc(s->host, 64, 64));
#elif FAULT == F_GLOBAL
    static float acc[1 << 20];
    c.acc = acc;
#elif FAULT == F_Q0
    c.m += c.q0 * c.group;
    c.l += c.q0 * c.group;
    c.acc += (uint64_t)c.q0 * c.group * d;
#endif
    status = ifx_kvs_attend(s, &c, kv_load);
#if FAULT == F_GLOBAL
    memcpy(call->acc, acc, rows * d * sizeof(float));
#elif FAULT == F_EMPTY
    for (uint64_t r = 0; r < rows; r++)
        c.m[r] = c.l[r] == 0.0f ? 0.0f : c.m[r];
#elif FAULT == F_PAST_ACC
    c.acc[rows * d] = 0.0f;
#elif FAULT == F_NORMALISED
    for (uint64_t i = 0; i < rows * d; i++)
        c.acc[i] /= c.l[i / d];
#elif FAULT == F_OVERFLOW
    for (uint64_t r = 0; r < rows; r++) {
        const float e = expf(c.m[r]);
        c.m[r] = c.l[r] > 0 ? 0.0f : c.m[r];
        c.l[r] *= e;
        for (uint32_t k = 0; k < d; k++)
            c.acc[r * d + k] *= e;
    }
#elif FAULT == F_NAN_MASK
    for (uint32_t q = c.q0; q < c.q1 && c.rows == NULL; q++)
        for (uint64_t t = c.pos0 + q + 1; t < c.t1; t++) {
            float row[IFX_KVS_MAX_DIM];
            kv_load(s, (const uint8_t *)c.pages[t / s->shape.page_tokens] +
                           ifx_kvs_row_offset(s, IFX_KV_V, c.kv_head, (uint32_t)(t % s->shape.page_tokens)), row);
            c.acc[(uint64_t)(q - c.q0) * c.group * d] += 0.0f * row[0];
        }
#endif
    return status;
}

static const struct ifx_kvs_kernels kernels = {IFX_CPU_SCALAR, kv_append, kv_attend};
static const struct ifx_kvs_kernels *const table[] = {&kernels};

static int32_t kv_open(const struct ifx_host *host, const struct ifx_options *options, const struct ifx_kv_shape *shape,
                       void **kv)
{
    (void)options;
#if FAULT == F_LEAK
    (void)host->alloc(host, 100, 64);
#elif FAULT == F_NO_MEMORY
    volatile char *p = host->alloc(host, 100, 64);
    *p = 1;
    host->free(host, (void *)(uintptr_t)p);
#endif
    return ifx_kvs_open(host, shape, shape->head_dim * 4u, table, 1, kv);
}

static int32_t kv_decode_row(void *kv, const void *page, uint32_t which, uint32_t head, uint32_t slot, double *out)
{
    const struct ifx_kvs *s = kv;
    float row[IFX_KVS_MAX_DIM];
    memcpy(row, (const uint8_t *)page + ifx_kvs_row_offset(s, FAULT == F_SWAP ? 1 - which : which, head, slot),
           s->shape.head_dim * 4u);
    for (uint32_t i = 0; i < s->shape.head_dim; i++)
        out[i] = row[i];
    return IFX_OK;
}

static const struct ifx_kv_ops ops = {
    .struct_size = sizeof ops,
    .format = "hostile",
    .description = "float32 with a fault",
    .page_bytes = kv_page_bytes,
    .open = kv_open,
    .close = ifx_kvs_close,
    .append = ifx_kvs_call_append,
    .attend = FAULT == F_NULL_ATTEND ? NULL : ifx_kvs_call_attend,
    .decode_row = FAULT == F_NULL_DECODE ? NULL : kv_decode_row,
    .level = ifx_kvs_level,
};

static const struct ifx_kv_ops *init(const struct ifx_host *host)
{
    (void)host;
    return &ops;
}

IFX_PLUGIN_DEFINE(IFX_KIND_KV, struct ifx_kv_ops, STR(PLUGIN), "0", init)
