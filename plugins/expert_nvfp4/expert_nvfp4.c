/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_nvfp4.c - the bank `nvfp4`: packing, import of ModelOpt tensors and registration.
 */
#include "config.h"

#include "expert_nvfp4_format.h"

#include "../common_expert/bank.h"

static const char BANK_SHAPE_RULE[] = "both must be multiples of 16";
static const char BANK_ENCODE_ERROR[] = "a weight cannot be encoded";
static const char BANK_CHECK_ERROR[] = "a NaN scale";

/* Largest product of an e2m1 and an e4m3 value. */
static const float NVFP4_MAX = 6.0f * 448.0f;

static float bank_choose_tensor_scale(float amax)
{
    float scale = amax / NVFP4_MAX;
    return scale >= 1.17549435e-38f ? scale : amax > 0 ? 1.17549435e-38f : 1.0f;
}

static void bank_set_tensor_scale(void *record, uint32_t matrix, float scale)
{
    memcpy((uint8_t *)record + matrix * sizeof scale, &scale, sizeof scale);
}

/* |q| rounded to the nearest e2m1 magnitude, ties to the even code; adding 1.5 * 2^23 steps rounds to a step. */
static inline float nvfp4_round(float q)
{
    float step = q < 2.0f ? 6291456.0f : q < 4.0f ? 12582912.0f : 25165824.0f;
    float r = (q + step) - step;
    return r > 6.0f ? 6.0f : r;
}

/* Index of a magnitude that nvfp4_round returned. */
static inline uint8_t nvfp4_index(float r)
{
    return (uint8_t)(r < 2.0f ? r * 2.0f : r < 4.0f ? r + 2.0f : r * 0.5f + 4.0f);
}

static float nvfp4_error(const float *magnitude, float scale)
{
    float inverse = 1.0f / scale, error = 0;
    for (uint32_t k = 0; k < BANK_GROUP; k++) {
        float d = magnitude[k] - nvfp4_round(magnitude[k] * inverse) * scale;
        error += d * d;
    }
    return error;
}

/* Smallest positive e4m3 code whose value is at least x. */
static uint8_t nvfp4_scale_at_least(float x)
{
    uint8_t low = 1, high = 0x7e;
    while (low < high) {
        uint8_t middle = (uint8_t)((low + high) / 2);
        if (ifx_e4m3_to_f32(middle) >= x)
            high = middle;
        else
            low = (uint8_t)(middle + 1);
    }
    return low;
}

/* The scale with the least squared error, from one that clips the largest magnitude a little to one that puts it
 * at 4, where the grid is finer; the choice by the largest magnitude alone is among them. */
static uint8_t nvfp4_choose_scale(const float *magnitude, float amax)
{
    int first = nvfp4_scale_at_least(amax / 6.0f) - 3, last = nvfp4_scale_at_least(amax / 4.0f);
    uint8_t best = (uint8_t)last;
    float best_error = INFINITY;
    for (int code = first > 1 ? first : 1; code <= last; code++) {
        float error = nvfp4_error(magnitude, ifx_e4m3_to_f32((uint8_t)code));
        if (error < best_error) {
            best_error = error;
            best = (uint8_t)code;
        }
    }
    return best;
}

static void nvfp4_put_code(uint8_t *line, uint32_t k, uint8_t code)
{
    uint32_t group = k / BANK_GROUP;
    line[4 * (k % 16) + group / 2] |= (uint8_t)(code << 4 * (group & 1));
}

static int32_t bank_encode_row(const float *w, float tensor_scale, uint8_t *line, uint8_t *scales)
{
    for (uint32_t g = 0; g < BANK_BLOCK_K / BANK_GROUP; g++, w += BANK_GROUP) {
        float magnitude[BANK_GROUP], amax = 0;
        for (uint32_t k = 0; k < BANK_GROUP; k++) {
            magnitude[k] = fabsf(w[k]) / tensor_scale;
            amax = magnitude[k] > amax ? magnitude[k] : amax;
        }
        if (amax == 0)
            continue;
        scales[g] = nvfp4_choose_scale(magnitude, amax);
        float inverse = 1.0f / ifx_e4m3_to_f32(scales[g]);
        for (uint32_t k = 0; k < BANK_GROUP; k++) {
            uint8_t code = nvfp4_index(nvfp4_round(magnitude[k] * inverse));
            nvfp4_put_code(line, g * BANK_GROUP + k, (uint8_t)(code | (signbit(w[k]) && code ? 8 : 0)));
        }
    }
    return IFX_OK;
}

static int bank_check_block(const uint8_t *block)
{
    for (uint32_t i = 32 * 64; i < 32 * (64 + BANK_ROW_SCALES); i++)
        if ((block[i] & 0x7f) == 0x7f)
            return 0;
    return 1;
}

static int32_t bank_make_tables(const struct ifx_host *host, const void **tables)
{
    struct bank_tables *t = host->alloc(host, sizeof *t, 64);
    if (!t)
        return IFX_ENOMEM;
    for (uint32_t s = 0; s < 256; s++) {
        t->scale[s] = ifx_e4m3_to_f32((uint8_t)s);
        for (uint32_t c = 0; c < 16; c++) {
            t->product[s][c] = ifx_e2m1_to_f32((uint8_t)c) * t->scale[s];
            t->halves[s][0][c] = (uint8_t)(ifx_f32_bits(t->product[s][c]) >> 16);
            t->halves[s][1][c] = (uint8_t)(ifx_f32_bits(t->product[s][c]) >> 24);
        }
    }
    *tables = t;
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

#define BANK_CUDA_IMAGE       ifx_image_expert_nvfp4_cuda
#define BANK_CUDA_IMAGE_BYTES ifx_image_expert_nvfp4_cuda_bytes
#include "../common_expert/cuda_side.h"

static int nvfp4_is_matrix(const struct ifx_tensor *t, uint32_t dtype, uint64_t rows, uint64_t cols)
{
    return t->dtype == dtype && t->n_dims == 2 && t->dims[0] == rows && t->dims[1] == cols && t->data &&
           t->data_bytes == rows * cols;
}

static int nvfp4_is_published(const struct expert_bank *bank, const struct ifx_expert_tensors *tensors)
{
    for (uint32_t m = 0; m < 3; m++) {
        const struct ifx_expert_source *s = &tensors->matrix[m];
        uint64_t rows = expert_rows(bank, m), k_count = expert_k(bank, m);
        if (!nvfp4_is_matrix(&s->weight, IFX_U8, rows, k_count / 2) ||
            !nvfp4_is_matrix(&s->weight_scale, IFX_F8_E4M3, rows, k_count / BANK_GROUP))
            return 0;
        const struct ifx_tensor *scale = &s->weight_scale_2;
        if (scale->dtype != IFX_F32 || !scale->data || scale->data_bytes != sizeof(float))
            return 0;
    }
    return 1;
}

static void nvfp4_import_row(const struct expert_bank *bank, const struct ifx_expert_source *source, uint32_t m,
                             uint32_t row, uint8_t *record)
{
    uint32_t block_row, k_count = expert_k(bank, m);
    uint8_t *block = record + expert_panel(bank, m, row, &block_row);
    const uint8_t *codes = (const uint8_t *)source->weight.data + (uint64_t)row * (k_count / 2);
    const uint8_t *scales = (const uint8_t *)source->weight_scale.data + (uint64_t)row * (k_count / BANK_GROUP);
    for (uint32_t k0 = 0; k0 < k_count; k0 += BANK_BLOCK_K, block += BANK_BLOCK_BYTES) {
        uint32_t count = k_count - k0 < BANK_BLOCK_K ? k_count - k0 : BANK_BLOCK_K;
        uint8_t *line = block + (size_t)block_row * EXPERT_LINE;
        for (uint32_t k = 0; k < count; k++)
            nvfp4_put_code(line, k, (uint8_t)(codes[(k0 + k) / 2] >> 4 * (k & 1) & 15));
        memcpy(block + EXPERT_BLOCK_ROWS * EXPERT_LINE + (size_t)block_row * BANK_ROW_SCALES,
               scales + k0 / BANK_GROUP, count / BANK_GROUP);
    }
}

static int32_t nvfp4_pack_tensors(void *instance, const struct ifx_expert_tensors *tensors, void *record)
{
    const struct expert_bank *bank = instance;
    if (!nvfp4_is_published(bank, tensors))
        return IFX_EUNSUPPORTED;
    memset(record, 0, bank->record_bytes);
    for (uint32_t m = 0; m < 3; m++) {
        const struct ifx_expert_source *source = &tensors->matrix[m];
        float scale;
        memcpy(&scale, source->weight_scale_2.data, sizeof scale);
        bank_set_tensor_scale(record, m, scale);
        for (uint32_t r = 0; r < expert_rows(bank, m); r++)
            nvfp4_import_row(bank, source, m, r, record);
    }
    return expert_check_record(instance, record);
}

/* The widths at which the CPU assists a prompt, of 256 shares; measured with NVFP4 records. */
static const struct ifx_ramp_point nvfp4_ramp[] = {{64, 77}, {255, 104}, {575, 149}};
static const struct ifx_assist_policy nvfp4_policy = {
    .struct_size = sizeof(struct ifx_assist_policy),
    .max_columns = 575,
    .n_points = 3,
    .points = nvfp4_ramp,
};

static const struct ifx_expert_ops nvfp4_ops = {
    .struct_size = sizeof(struct ifx_expert_ops),
    .format = BANK_NAME,
    .description =
        "NVFP4 W4A16: e2m1 weights, one e4m3 scale a group of 16, one float32 scale a matrix, 4.5 bits a weight",
    .policy = &nvfp4_policy,
    .record_bytes = expert_record_bytes,
    .open = expert_open,
    .close = expert_close,
    .pack = expert_pack,
    .pack_tensors = nvfp4_pack_tensors,
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

static const struct ifx_expert_ops *nvfp4_init(const struct ifx_host *host)
{
    (void)host;
    return &nvfp4_ops;
}

IFX_EXPERT_PLUGIN("expert_nvfp4", "1.0", nvfp4_init)
