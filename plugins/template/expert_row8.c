/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_row8 - the smallest useful expert bank: int8 codes with one binary16 scale a row.
 *
 * Copy this file, rename `row8` and change the five numbered places.  Build it with
 *     cc -O2 -fPIC -shared $(pkg-config --cflags infernix) -o expert_row8.so expert_row8.c -lm
 * and hold it against the rules with
 *     infernix plugins --check ./expert_row8.so
 * writing-a-bank.md explains every step; infernix-plugin(3) and infernix/expert.h have the rules.
 *
 * This bank brings no CPU kernels: the host computes from decode_row, which is right and slow.  The tutorial's second
 * part adds them.
 */
#include <infernix/expert.h>
#include <infernix/numerics.h>

/* ---- 1. What an open bank knows.  Written by open and never again, so that any thread may read it. ---- */
struct row8 {
    const struct ifx_host *host;
    uint32_t rows[3], cols[3]; /* by IFX_GATE, IFX_UP, IFX_DOWN */
};

/* ---- 2. The record: where everything lies.  The same bytes in the file, in host memory, on a device. ----
 *
 *   gate codes [I, H], up codes [I, H], down codes [H, I]   int8, one byte a weight
 *   gate scales [I], up scales [I], down scales [H]         binary16
 *   zeros up to a multiple of IFX_RECORD_ALIGN
 *
 * weight = code * scale of its row: exact in float32 (8 + 11 significant bits). */
static uint64_t codes_at(const struct row8 *b, uint32_t matrix)
{
    return matrix * (uint64_t)b->rows[IFX_GATE] * b->cols[IFX_GATE];
}

static uint64_t scales_at(const struct row8 *b, uint32_t matrix)
{
    return codes_at(b, 3) + matrix * (uint64_t)b->rows[IFX_GATE] * 2;
}

static uint64_t row8_record_bytes(const struct ifx_expert_shape *shape)
{
    const uint64_t H = shape->hidden, I = shape->inter;
    if (H == 0 || I == 0 || H > 65536 || I > 65536)
        return 0; /* not a shape this format holds; the limit also keeps the next line from overflowing */
    const uint64_t bytes = 3 * H * I + 2 * (2 * I + H);
    return (bytes + IFX_RECORD_ALIGN - 1) / IFX_RECORD_ALIGN * IFX_RECORD_ALIGN;
}

static int32_t row8_open(const struct ifx_host *host, const struct ifx_options *options,
                         const struct ifx_expert_shape *shape, void **bank)
{
    (void)options; /* values of the option table, had this bank one */
    if (row8_record_bytes(shape) == 0)
        return host->error(host, IFX_EUNSUPPORTED, "row8 cannot hold experts of H %u, I %u", shape->hidden, shape->inter);
    struct row8 *b = host->alloc(host, sizeof *b, 64);
    if (b == NULL)
        return IFX_ENOMEM; /* the host has recorded the text */
    b->host = host;
    for (uint32_t m = 0; m < 3; m++) {
        b->rows[m] = m == IFX_DOWN ? shape->hidden : shape->inter;
        b->cols[m] = m == IFX_DOWN ? shape->inter : shape->hidden;
    }
    *bank = b;
    return IFX_OK;
}

static void row8_close(void *bank)
{
    struct row8 *b = bank;
    b->host->free(b->host, b);
}

/* ---- 3. One row from float32 to the record. ---- */
static int32_t pack_row(const struct row8 *b, const float *w, uint32_t cols, int8_t *codes, uint16_t *scale)
{
    float amax = 0.0f;
    for (uint32_t k = 0; k < cols; k++) {
        if (!isfinite(w[k]))
            return b->host->error(b->host, IFX_EFORMAT, "row8: weight %u of a row is %g", k, (double)w[k]);
        amax = fabsf(w[k]) > amax ? fabsf(w[k]) : amax;
    }
    *scale = ifx_f32_to_f16(amax / 127.0f);
    const float s = ifx_f16_to_f32(*scale);
    if (isinf(s))
        return b->host->error(b->host, IFX_EFORMAT, "row8: a weight of %g is too large for a binary16 scale", (double)amax);
    for (uint32_t k = 0; k < cols; k++) {
        float q = s > 0.0f ? rintf(w[k] / s) : 0.0f; /* a row of zeros has scale 0 */
        q = q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q;
        codes[k] = (int8_t)q;
    }
    return IFX_OK;
}

static int32_t row8_pack(void *bank, const float *gate, const float *up, const float *down, void *record)
{
    const struct row8 *b = bank;
    const float *const w[3] = {gate, up, down};
    const struct ifx_expert_shape shape = {sizeof shape, b->cols[IFX_GATE], b->rows[IFX_GATE], 0};
    uint8_t *r = record;
    for (uint32_t m = 0; m < 3; m++)
        for (uint32_t i = 0; i < b->rows[m]; i++) {
            uint16_t scale = 0;
            int32_t status = pack_row(b, w[m] + (uint64_t)i * b->cols[m], b->cols[m],
                                      (int8_t *)r + codes_at(b, m) + (uint64_t)i * b->cols[m], &scale);
            if (status != IFX_OK)
                return status;
            memcpy(r + scales_at(b, m) + 2 * (uint64_t)i, &scale, 2);
        }
    /* Every byte of a record is written, the padding too: files must not depend on old memory. */
    const uint64_t used = scales_at(b, IFX_DOWN) + 2 * (uint64_t)b->rows[IFX_DOWN];
    memset(r + used, 0, row8_record_bytes(&shape) - used);
    return IFX_OK;
}

/* ---- 4. One row back, as exact values.  The host and the conformance suite believe this function. ---- */
static int32_t row8_decode_row(void *bank, const void *record, uint32_t matrix, uint32_t row, double *out)
{
    const struct row8 *b = bank;
    const uint8_t *r = record;
    const int8_t *codes = (const int8_t *)r + codes_at(b, matrix) + (uint64_t)row * b->cols[matrix];
    uint16_t scale;
    memcpy(&scale, r + scales_at(b, matrix) + 2 * (uint64_t)row, 2);
    for (uint32_t k = 0; k < b->cols[matrix]; k++)
        out[k] = (double)codes[k] * (double)ifx_f16_to_f32(scale);
    return IFX_OK;
}

/* ---- 5. The descriptor: members left out are NULL or 0 and mean the default documented in expert.h. ---- */
static const struct ifx_expert_ops row8_ops = {
    .struct_size = sizeof row8_ops,
    .format = "row8",
    .description = "int8 weights with one binary16 scale a row",
    .record_bytes = row8_record_bytes,
    .open = row8_open,
    .close = row8_close,
    .pack = row8_pack,
    .decode_row = row8_decode_row,
};

static const struct ifx_expert_ops *row8_init(const struct ifx_host *host)
{
    (void)host;
    return &row8_ops;
}

IFX_EXPERT_PLUGIN("expert_row8", "1.0", row8_init) /* the file must be called expert_row8.so */
