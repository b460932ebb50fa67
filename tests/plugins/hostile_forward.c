/* SPDX-License-Identifier: Apache-2.0
 *
 * The template bank with a CPU path of its own and one fault in it, chosen by FAULT.
 */
#include <infernix/plugin.h>
#undef IFX_EXPERT_PLUGIN
#define IFX_EXPERT_PLUGIN(NAME, VERSION, INIT) typedef int hostile_unused;
#include "expert_row8.c"

#include <stdlib.h>

#define STR_(x) #x
#define STR(x) STR_(x)

#define F_NONE          0
#define F_ORDER         1  /* sums from left to right */
#define F_WIDE_ONLY     2  /* wrong from 256 columns on */
#define F_SPLIT         3  /* the first row of a range is computed another way */
#define F_WIDE_SPLIT    4  /* the same, in wide calls only */
#define F_Y_PAST        5  /* writes one value past the range */
#define F_Y_ACCUMULATES 6  /* adds to y */
#define F_X_ROWS        7  /* ignores x_rows */
#define F_Y_ROWS        8  /* ignores y_rows */
#define F_SCRATCH       9  /* scratch_bytes one column short */
#define F_SCRATCH_HUGE  10
#define F_NAN           11 /* clears NaN */
#define F_NAN_SPREADS   12 /* a NaN column poisons its neighbour */
#define F_STACK         13 /* 6 MiB of stack: more than a check under a sanitizer gets, less than the main thread has */
#define F_ALLOCATES     14
#define F_GLOBAL        15 /* hidden values in a global: two experts at once disturb each other */
#define F_LEVEL         16 /* says a level that the host forbids */
#define F_TRUNCATES     17 /* rounds the hidden value toward zero */
#define F_STATUS        18 /* fails without a text */
#define F_WRITES_X      19
#define F_WRITES_RECORD 20
#define F_MALLOC        21 /* allocates behind the host's back, and frees */
#define F_OWN_EXP       22 /* silu by the C library's expf */

static struct ifx_expert_ops bad;
static const struct ifx_expert_ops *(*const unused_init)(const struct ifx_host *) = row8_init;

static uint64_t bad_scratch_bytes(void *bank, uint32_t n)
{
    const struct row8 *b = bank;
#if FAULT == F_SCRATCH
    n -= 1;
#elif FAULT == F_SCRATCH_HUGE
    return (uint64_t)n << 50;
#endif
    return ((uint64_t)n * b->rows[IFX_UP] * 2 + 63) / 64 * 64;
}

static float product(const struct row8 *b, const void *record, uint32_t matrix, uint32_t row, const uint16_t *x)
{
    double exact[4096];
    float w[4096], sum = 0.0f;
    (void)sum;
    row8_decode_row((void *)(uintptr_t)b, record, matrix, row, exact);
    for (uint32_t k = 0; k < b->cols[matrix]; k++)
        w[k] = (float)exact[k];
#if FAULT == F_ORDER
    for (uint32_t k = 0; k < b->cols[matrix]; k++)
        sum = fmaf(w[k], ifx_bf16_to_f32(x[k]), sum);
    return sum;
#else
    return ifx_canonical_dot(w, x, b->cols[matrix]);
#endif
}

static int32_t bad_gate_up(void *bank, const struct ifx_expert_call *call, uint32_t row0, uint32_t row1)
{
    const struct row8 *b = bank;
#if FAULT == F_GLOBAL
    static uint16_t shared[1 << 20];
    uint16_t *h = shared;
    ((struct ifx_expert_call *)(uintptr_t)call)->scratch = shared;
#else
    uint16_t *h = call->scratch;
#endif
#if FAULT == F_STACK
    volatile char big[6 << 20];
    for (size_t i = 0; i < sizeof big; i += 512)
        big[i] = 1;
#elif FAULT == F_ALLOCATES
    b->host->free(b->host, b->host->alloc(b->host, 64, 64));
#elif FAULT == F_MALLOC
    volatile char *p = malloc(64);
    p[0] = 1;
    free((void *)(uintptr_t)p);
#elif FAULT == F_STATUS
    return IFX_EINTERNAL;
#elif FAULT == F_WRITES_X
    ((uint16_t *)(uintptr_t)call->x)[0] = 0;
#elif FAULT == F_WRITES_RECORD
    ((uint8_t *)(uintptr_t)call->record)[0] = 0;
#endif
    for (uint32_t i = 0; i < call->n; i++) {
        const uint16_t *x = call->x + (call->x_rows != NULL && FAULT != F_X_ROWS ? call->x_rows[i] : i) * call->ldx;
        for (uint32_t r = row0; r < row1; r++) {
            const float g = product(b, call->record, IFX_GATE, r, x), u = product(b, call->record, IFX_UP, r, x);
            const float v = (FAULT == F_OWN_EXP ? g / (1.0f + expf(-g)) : ifx_silu(g)) * u;
            uint16_t *out = &h[(uint64_t)i * b->rows[IFX_UP] + r];
            *out = FAULT == F_TRUNCATES ? (uint16_t)(ifx_f32_bits(v) >> 16) : ifx_f32_to_bf16(v);
#if FAULT == F_NAN
            if (v != v)
                *out = 0;
#elif FAULT == F_NAN_SPREADS
            if (v != v && i > 0)
                h[(uint64_t)(i - 1) * b->rows[IFX_UP] + r] = *out;
#endif
        }
    }
    return IFX_OK;
}

static int32_t bad_down(void *bank, const struct ifx_expert_call *call, uint32_t row0, uint32_t row1, float *y,
                        uint64_t ldy, const uint32_t *y_rows)
{
    const struct row8 *b = bank;
    const uint16_t *h = call->scratch;
    for (uint32_t i = 0; i < call->n; i++) {
        float *out = y + (y_rows != NULL && FAULT != F_Y_ROWS ? y_rows[i] : i) * ldy;
        for (uint32_t r = row0; r < row1; r++) {
            float v = product(b, call->record, IFX_DOWN, r, h + (uint64_t)i * b->rows[IFX_UP]);
            if (FAULT == F_WIDE_ONLY && call->n >= 256)
                v *= 1.01f;
            if (r == row0 && row0 > 0 && (FAULT == F_SPLIT || (FAULT == F_WIDE_SPLIT && call->n > 8)))
                v *= 1.0000002f;
            if (FAULT == F_Y_ACCUMULATES)
                out[r - row0] += v;
            else
                out[r - row0] = v;
        }
#if FAULT == F_Y_PAST
        out[row1 - row0] = 0.0f;
#endif
    }
    return IFX_OK;
}

static uint32_t bad_level(void *bank)
{
    (void)bank;
    return FAULT == F_LEVEL ? IFX_CPU_AMX_BF16 : IFX_CPU_SCALAR;
}

static const struct ifx_expert_ops *bad_init(const struct ifx_host *host)
{
    (void)host, (void)unused_init;
    bad = row8_ops;
    bad.format = "hostile";
    bad.scratch_bytes = bad_scratch_bytes;
    bad.gate_up = bad_gate_up;
    bad.down = bad_down;
    bad.level = bad_level;
    return &bad;
}

IFX_PLUGIN_DEFINE(IFX_KIND_EXPERT, struct ifx_expert_ops, STR(PLUGIN), "0", bad_init)
