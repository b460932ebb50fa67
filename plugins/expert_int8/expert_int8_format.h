/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_int8_format.h - record layout of the bank `int8` (W8A16): symmetric int8 codes -127..127 and one fp16
 * scale a group of 32 input positions; weight = code * scale, exact in float32.
 *
 * A line (64 bytes) is one row's 64 input positions in order; the row's scales in the block are two fp16 values.
 * See common_expert/bank.h for the rest.
 */
#ifndef EXPERT_INT8_FORMAT_H
#define EXPERT_INT8_FORMAT_H

#include <infernix/expert.h>
#include <infernix/numerics.h>

enum {
    BANK_BLOCK_K = 64,
    BANK_GROUP = 32,
    BANK_ROW_SCALES = 4,
    BANK_HEADER = 0,
    BANK_MULTIPLE = 1 /* of hidden size and width */
};

/* Wide route on CUDA devices: positions of a step, steps in shared memory, bytes of a panel's step (lines 80 bytes apart, so that
 * eight rows lie in different banks) and of a warp's scratch. */
enum { BANK_CUDA_STEP = 64, BANK_CUDA_STAGES = 3, BANK_CUDA_RAW = 32 * (80 + BANK_ROW_SCALES), BANK_CUDA_SCRATCH = 32 * 8 };

static const char BANK_NAME[] = "int8";

static inline uint16_t bank_scale_code(const uint8_t *scales, uint32_t group)
{
    return (uint16_t)(scales[2 * group] | scales[2 * group + 1] << 8);
}

/* BANK_BLOCK_K weights of a line, exact. */
static inline void bank_decode_row(const uint8_t *line, const uint8_t *scales, float *w)
{
    for (uint32_t k = 0; k < BANK_BLOCK_K; k++)
        w[k] = (float)(int8_t)line[k] * ifx_f16_to_f32(bank_scale_code(scales, k / BANK_GROUP));
}

static inline float bank_tensor_scale(const void *record, uint32_t matrix)
{
    (void)record;
    (void)matrix;
    return 1.0f;
}

struct expert_routes;
const struct expert_routes *bank_routes_scalar(void);
const struct expert_routes *bank_routes_avx2(void);
const struct expert_routes *bank_routes_avx512(void);
const struct expert_routes *bank_routes_avx512_bf16(void);
const struct expert_routes *bank_routes_amx_bf16(void);

#endif
