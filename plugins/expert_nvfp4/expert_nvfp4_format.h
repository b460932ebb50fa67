/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_nvfp4_format.h - record layout of the bank `nvfp4` (NVFP4, W4A16): e2m1 codes, one e4m3 scale a group of
 * 16 input positions, one float32 scale a matrix; weight = e2m1 * e4m3 (exact in bf16), times the tensor scale.
 *
 * Header (64 bytes): the tensor scales of gate, up and down (float32), then zeros.
 * A line (64 bytes) is one row's 128 input positions as sixteen 32-bit words: bits 4 j .. 4 j + 3 of word l are
 * the code of position 16 j + l.  So a shift by 4 j puts the codes of group j, 16 consecutive positions, where a
 * table look-up of 16 lanes takes them.  The row's scales in the block are its 8 e4m3 codes in order. See
 * common_expert/bank.h for the rest.
 */
#ifndef EXPERT_NVFP4_FORMAT_H
#define EXPERT_NVFP4_FORMAT_H

#include <infernix/expert.h>
#include <infernix/numerics.h>

enum {
    BANK_BLOCK_K = 128,
    BANK_GROUP = 16,
    BANK_ROW_SCALES = 8,
    BANK_HEADER = 64,
    BANK_MULTIPLE = 16 /* of hidden size and width: a published scale covers 16 positions */
};

/* Wide route on CUDA devices: positions of a step, steps in shared memory, bytes of a panel's step and of a warp's scratch. */
enum { BANK_CUDA_STEP = 128, BANK_CUDA_STAGES = 2, BANK_CUDA_RAW = 32 * (64 + BANK_ROW_SCALES), BANK_CUDA_SCRATCH = 32 * 16 };

static const char BANK_NAME[] = "nvfp4";

static inline uint8_t bank_code(const uint8_t *line, uint32_t k)
{
    uint32_t group = k / BANK_GROUP;
    return (uint8_t)(line[4 * (k % 16) + group / 2] >> 4 * (group & 1) & 15);
}

/* BANK_BLOCK_K weights of a line without the tensor scale, exact. */
static inline void bank_decode_row(const uint8_t *line, const uint8_t *scales, float *w)
{
    for (uint32_t k = 0; k < BANK_BLOCK_K; k++)
        w[k] = ifx_e2m1_to_f32(bank_code(line, k)) * ifx_e4m3_to_f32(scales[k / BANK_GROUP]);
}

static inline float bank_tensor_scale(const void *record, uint32_t matrix)
{
    float scale;
    memcpy(&scale, (const uint8_t *)record + matrix * sizeof scale, sizeof scale);
    return scale;
}

/* What the vector objects look up: for each e4m3 code and each e2m1 code their product, as float32 and as a bf16 (the lower bytes
 * of the 16 products, then the upper ones); and the e4m3 codes alone. */
struct bank_tables {
    float product[256][16];
    uint8_t halves[256][2][16];
    float scale[256];
};

struct expert_routes;
const struct expert_routes *bank_routes_scalar(void);
const struct expert_routes *bank_routes_avx2(void);
const struct expert_routes *bank_routes_avx512(void);
const struct expert_routes *bank_routes_avx512_bf16(void);
const struct expert_routes *bank_routes_amx_bf16(void);

#endif
