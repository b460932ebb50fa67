/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_int8.c - the bank `int8`: packing and registration.
 */
#include "config.h"

#include "expert_int8_format.h"

#include "../common_expert/bank.h"

static const char BANK_SHAPE_RULE[] = "both must be at least 1";
static const char BANK_ENCODE_ERROR[] = "a weight is too large for int8 codes with an fp16 scale";
static const char BANK_CHECK_ERROR[] = "an infinite or NaN scale or a code of -128";

static float bank_choose_tensor_scale(float amax)
{
    (void)amax;
    return 1.0f;
}

static void bank_set_tensor_scale(void *record, uint32_t matrix, float scale)
{
    (void)record;
    (void)matrix;
    (void)scale;
}

static int32_t bank_encode_group(const float *w, uint8_t *codes, uint8_t *scale_bytes)
{
    float amax = 0;
    for (uint32_t k = 0; k < BANK_GROUP; k++)
        amax = fabsf(w[k]) > amax ? fabsf(w[k]) : amax;
    uint16_t code = ifx_f32_to_f16(amax / 127.0f);
    float scale = ifx_f16_to_f32(code);
    if (scale == INFINITY)
        return IFX_EFORMAT;
    scale_bytes[0] = (uint8_t)code;
    scale_bytes[1] = (uint8_t)(code >> 8);
    for (uint32_t k = 0; k < BANK_GROUP; k++) {
        /* a group too small for any fp16 scale is zero */
        float q = scale > 0 ? rintf(w[k] / scale) : 0;
        q = q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q;
        codes[k] = (uint8_t)(int8_t)q;
    }
    return IFX_OK;
}

static int32_t bank_encode_row(const float *w, float tensor_scale, uint8_t *line, uint8_t *scales)
{
    (void)tensor_scale;
    int32_t status = IFX_OK;
    for (uint32_t g = 0; g < BANK_BLOCK_K / BANK_GROUP && !status; g++)
        status = bank_encode_group(w + g * BANK_GROUP, line + g * BANK_GROUP, scales + 2 * g);
    return status;
}

static int bank_check_block(const uint8_t *block)
{
    for (uint32_t i = 0; i < 32 * 64; i++)
        if (block[i] == 0x80)
            return 0;
    for (uint32_t i = 32 * 64 + 1; i < 32 * (64 + BANK_ROW_SCALES); i += 2)
        if ((block[i] & 0x7c) == 0x7c)
            return 0;
    return 1;
}

static int32_t bank_make_tables(const struct ifx_host *host, const void **tables)
{
    (void)host;
    *tables = NULL;
    return IFX_OK;
}

static const struct expert_routes *bank_routes(uint32_t level)
{
    switch (level) {
    case IFX_CPU_SCALAR:
        return bank_routes_scalar();
#ifdef HAVE_ISA_AVX2
    case IFX_CPU_AVX2:
        return bank_routes_avx2();
#endif
#ifdef HAVE_ISA_AVX512
    case IFX_CPU_AVX512:
        return bank_routes_avx512();
#endif
#ifdef HAVE_ISA_AVX512_BF16
    case IFX_CPU_AVX512_BF16:
        return bank_routes_avx512_bf16();
#endif
#ifdef HAVE_ISA_AMX_BF16
    case IFX_CPU_AMX_BF16:
        return bank_routes_amx_bf16();
#endif
    default:
        return NULL;
    }
}

#include "../common_expert/ops.h"

#define BANK_CUDA_IMAGE       ifx_image_expert_int8_cuda
#define BANK_CUDA_IMAGE_BYTES ifx_image_expert_int8_cuda_bytes
#include "../common_expert/cuda_side.h"

static const struct ifx_expert_ops int8_ops = {
    .struct_size = sizeof(struct ifx_expert_ops),
    .format = BANK_NAME,
    .description = "W8A16: int8 weights, one fp16 scale a group of 32, 8.5 bits a weight",
    .record_bytes = expert_record_bytes,
    .open = expert_open,
    .close = expert_close,
    .pack = expert_pack,
    .decode_row = expert_decode_row,
    .check_record = expert_check_record,
    .row_granule = EXPERT_GRANULE,
    .scratch_bytes = expert_scratch_bytes,
    .prepare = expert_prepare,
    .gate_up = expert_gate_up,
    .down = expert_down,
    .level = expert_level,
    EXPERT_DEVICE_OPS,
};

static const struct ifx_expert_ops *int8_init(const struct ifx_host *host)
{
    (void)host;
    return &int8_ops;
}

IFX_EXPERT_PLUGIN("expert_int8", "1.0", int8_init)
