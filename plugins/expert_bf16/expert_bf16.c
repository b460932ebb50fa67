/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_bf16.c - the bank `bf16`: packing and registration.
 */
#include "config.h"

#include "expert_bf16_format.h"

#include "../common_expert/bank.h"

static const char BANK_SHAPE_RULE[] = "both must be at least 1";
static const char BANK_ENCODE_ERROR[] = "a weight is too large for bf16";
static const char BANK_CHECK_ERROR[] = "an infinite or NaN weight";

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

static int32_t bank_encode_row(const float *w, float tensor_scale, uint8_t *line, uint8_t *scales)
{
    (void)tensor_scale;
    (void)scales;
    for (uint32_t k = 0; k < BANK_BLOCK_K; k++) {
        uint16_t h = ifx_f32_to_bf16(w[k]);
        if ((h & 0x7f80u) == 0x7f80u)
            return IFX_EFORMAT;
        uint8_t *half = line + 4 * (k % 16) + 2 * (k / 16);
        half[0] = (uint8_t)h;
        half[1] = (uint8_t)(h >> 8);
    }
    return IFX_OK;
}

static int bank_check_block(const uint8_t *block)
{
    for (uint32_t i = 1; i < 32 * 64; i += 2)
        if ((block[i] & 0x7f) == 0x7f && (block[i - 1] & 0x80))
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

#define BANK_CUDA_IMAGE       ifx_image_expert_bf16_cuda
#define BANK_CUDA_IMAGE_BYTES ifx_image_expert_bf16_cuda_bytes
#include "../common_expert/cuda_side.h"

static const struct ifx_expert_ops bf16_ops = {
    .struct_size = sizeof(struct ifx_expert_ops),
    .format = BANK_NAME,
    .description = "bf16 weights, 16 bits a weight",
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

static const struct ifx_expert_ops *bf16_init(const struct ifx_host *host)
{
    (void)host;
    return &bf16_ops;
}

IFX_EXPERT_PLUGIN("expert_bf16", "1.0", bf16_init)
