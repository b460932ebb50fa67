/* SPDX-License-Identifier: Apache-2.0
 *
 * The template bank with one fault, chosen by FAULT.  Each must be refused with a message and harm nobody.
 */
#include <infernix/plugin.h>
#undef IFX_EXPERT_PLUGIN
#define IFX_EXPERT_PLUGIN(NAME, VERSION, INIT) typedef int hostile_unused;
#include "expert_row8.c"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define STR_(x) #x
#define STR(x) STR_(x)

#define F_NONE                0
#define F_RECORD_ZERO         1 /* record_bytes always 0 */
#define F_RECORD_HUGE         2 /* 2^60 bytes */
#define F_RECORD_ODD          3 /* no multiple of 4096 */
#define F_RECORD_WRAP         4 /* 32-bit product */
#define F_RECORD_IMPURE       5 /* another answer each time */
#define F_NULL_PACK           6
#define F_NULL_DECODE         7
#define F_NULL_OPEN           8
#define F_HALF_FORWARD        9 /* gate_up without down */
#define F_POLICY_UNSORTED    10
#define F_POLICY_SHARE       11
#define F_POLICY_NULL_POINTS 12
#define F_POLICY_BEYOND      13 /* a point past max_columns */
#define F_PACK_PAST          14 /* writes past the record */
#define F_PACK_BEFORE        15
#define F_PACK_GAP           16 /* leaves a byte unwritten */
#define F_PACK_NAN           17 /* packs NaN without a word */
#define F_PACK_SWAPPED       18 /* gate and up exchanged */
#define F_DECODE_SHORT       19
#define F_DECODE_PAST        20
#define F_DECODE_CRASH       21
#define F_LEAK               22
#define F_NO_MEMORY          23 /* uses what alloc returned without looking */
#define F_INIT_NULL          24
#define F_INIT_EXIT          25
#define F_INIT_CRASH         26
#define F_PRINTS             27
#define F_FORMAT_NAME        28
#define F_NO_DESCRIPTION     29
#define F_STRUCT_SIZE        30
#define F_OPTION_DEFAULT     31
#define F_STATEFUL           32 /* pack keeps state: threads disturb each other */
#define F_BAD_RECORD_READ    33 /* follows an offset found in the record */
#define F_HANG               34
#define F_RECORD_CUT         35 /* the size cut to 32 bits, where what is left is not too little */
#define F_DECODE_DOUBLE      36 /* decode_row gives more bits than a float32 has */
#define F_PACK_FAR           37 /* writes a page past the record: found by the converter too */

static struct ifx_expert_ops bad;
static const struct ifx_expert_ops *(*const unused_init)(const struct ifx_host *) = row8_init;

static uint64_t bad_record_bytes(const struct ifx_expert_shape *s)
{
    static uint64_t impure;
    const uint64_t right = row8_record_bytes(s);
    (void)impure, (void)right, (void)unused_init;
#if FAULT == F_RECORD_ZERO
    return right * 0;
#elif FAULT == F_RECORD_HUGE
    return right != 0 ? (uint64_t)1 << 60 : 0;
#elif FAULT == F_RECORD_ODD
    return right != 0 ? right + 17 : 0;
#elif FAULT == F_RECORD_WRAP
    return ((uint64_t)(uint32_t)(3u * s->hidden * s->inter) + 4095u + 4 * (s->hidden + s->inter)) / 4096u * 4096u;
#elif FAULT == F_RECORD_CUT
    return right > UINT32_MAX ? (right & UINT32_MAX) + 0x40000000u : right;
#elif FAULT == F_RECORD_IMPURE
    return right + 4096 * (impure++ & 1);
#else
    return right;
#endif
}

static int32_t bad_open(const struct ifx_host *host, const struct ifx_options *options, const struct ifx_expert_shape *shape,
                        void **bank)
{
#if FAULT == F_LEAK
    (void)host->alloc(host, 100, 64);
#elif FAULT == F_NO_MEMORY
    volatile char *p = host->alloc(host, 100, 64);
    *p = 1;
    host->free(host, (void *)p);
#elif FAULT == F_HANG
    for (;;)
        pause();
#endif
    return row8_open(host, options, shape, bank);
}

static int32_t bad_pack(void *bank, const float *gate, const float *up, const float *down, void *record)
{
    const struct row8 *b = bank;
    const struct ifx_expert_shape shape = {sizeof shape, b->cols[0], b->rows[0], 0};
    const uint64_t bytes = row8_record_bytes(&shape);
    int32_t status;
    (void)bytes;
#if FAULT == F_PACK_NAN
    for (uint64_t i = 0; i < (uint64_t)b->rows[0] * b->cols[0]; i++)
        if (!isfinite(gate[i]) || !isfinite(up[i]) || !isfinite(down[i])) {
            memset(record, 0, bytes);
            return IFX_OK;
        }
#endif
#if FAULT == F_PACK_SWAPPED
    status = row8_pack(bank, up, gate, down, record);
#elif FAULT == F_PACK_GAP
    uint8_t keep = ((uint8_t *)record)[bytes - 1];
    status = row8_pack(bank, gate, up, down, record);
    ((uint8_t *)record)[bytes - 1] = keep;
#elif FAULT == F_STATEFUL
    static float *copy;
    copy = realloc(copy, (uint64_t)b->rows[0] * b->cols[0] * 4);
    for (uint64_t i = 0; i < (uint64_t)b->rows[0] * b->cols[0]; i++)
        copy[i] = gate[i] * 0.0f;
    for (uint64_t i = 0; i < (uint64_t)b->rows[0] * b->cols[0]; i++)
        copy[i] += gate[i];
    status = row8_pack(bank, copy, up, down, record);
#else
    status = row8_pack(bank, gate, up, down, record);
#endif
#if FAULT == F_PACK_PAST || FAULT == F_PACK_FAR
    ((uint8_t *)record)[bytes + (FAULT == F_PACK_FAR ? 4000 : 0)] = 1;
#elif FAULT == F_PACK_BEFORE
    ((uint8_t *)record)[-1] = 1;
#endif
    return status;
}

static int32_t bad_decode_row(void *bank, const void *record, uint32_t matrix, uint32_t row, double *out)
{
    const struct row8 *b = bank;
    const uint32_t cols = b->cols[matrix];
    (void)cols;
#if FAULT == F_DECODE_SHORT
    double keep = out[cols - 1];
    int32_t status = row8_decode_row(bank, record, matrix, row, out);
    out[cols - 1] = keep;
    return status;
#elif FAULT == F_DECODE_PAST
    out[cols] = 0.0;
#elif FAULT == F_DECODE_CRASH
    *(volatile int *)8 = 1;
#elif FAULT == F_BAD_RECORD_READ
    uint32_t offset;
    memcpy(&offset, (const uint8_t *)record + codes_at(b, matrix), 4);
    if (offset > 0x40000000u) /* "an offset table" that is believed */
        out[0] = ((const volatile uint8_t *)record)[(uint64_t)offset << 12];
#endif
    int32_t result = row8_decode_row(bank, record, matrix, row, out);
    for (uint32_t k = 0; FAULT == F_DECODE_DOUBLE && k < cols; k++)
        out[k] *= 1.0 + 0x1p-30;
    return result;
}

static const struct ifx_ramp_point points[] = {
#if FAULT == F_POLICY_UNSORTED
    {255, 104}, {64, 77},
#elif FAULT == F_POLICY_SHARE
    {64, 77}, {255, 300},
#else
    {64, 77}, {255, 104},
#endif
};
static const struct ifx_assist_policy policy = {sizeof policy, FAULT == F_POLICY_BEYOND ? 100 : 255, 2, 0,
                                                FAULT == F_POLICY_NULL_POINTS ? NULL : points};

static const struct ifx_option options[] = {
    {"level", IFX_OPT_INT, 0, FAULT == F_OPTION_DEFAULT ? "99" : "3", "effort of the search", 1, 9},
    {NULL, 0, 0, NULL, NULL, 0, 0},
};

static const struct ifx_expert_ops *bad_init(const struct ifx_host *host)
{
    (void)host;
    bad = row8_ops;
    bad.format = "hostile";
    bad.record_bytes = bad_record_bytes;
    bad.open = FAULT == F_NULL_OPEN ? NULL : bad_open;
    bad.pack = FAULT == F_NULL_PACK ? NULL : bad_pack;
    bad.decode_row = FAULT == F_NULL_DECODE ? NULL : bad_decode_row;
    bad.policy = &policy;
    bad.options = options;
#if FAULT == F_HALF_FORWARD
    bad.gate_up = (int32_t(*)(void *, const struct ifx_expert_call *, uint32_t, uint32_t))(void (*)(void))bad_pack;
#elif FAULT == F_INIT_NULL
    return NULL;
#elif FAULT == F_INIT_EXIT
    exit(0);
#elif FAULT == F_INIT_CRASH
    *(volatile int *)8 = 1;
#elif FAULT == F_PRINTS
    puts("hello from the plugin");
#elif FAULT == F_FORMAT_NAME
    bad.format = "My Format!";
#elif FAULT == F_NO_DESCRIPTION
    bad.description = NULL;
#elif FAULT == F_STRUCT_SIZE
    bad.struct_size = 4000000;
#endif
    return &bad;
}

IFX_PLUGIN_DEFINE(IFX_KIND_EXPERT, struct ifx_expert_ops, STR(PLUGIN), "0", bad_init)
