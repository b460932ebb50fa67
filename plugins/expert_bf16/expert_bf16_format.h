/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_bf16_format.h - record layout of the bank `bf16`: the weights as bf16.
 *
 * A line (64 bytes) is one row's 32 input positions k .. k + 31 as sixteen 32-bit words: word l holds position
 * k + l in its low and k + 16 + l in its high half.  So a shift or a mask gives 16 consecutive positions as
 * float32, and a line is a row of a matrix tile.  There are no scales.  See common_expert/bank.h for the rest.
 */
#ifndef EXPERT_BF16_FORMAT_H
#define EXPERT_BF16_FORMAT_H

#include <infernix/expert.h>
#include <infernix/numerics.h>

enum {
    BANK_BLOCK_K = 32,
    BANK_ROW_SCALES = 0,
    BANK_HEADER = 0,
    BANK_MULTIPLE = 1 /* of hidden size and width */
};

/* Wide route on CUDA devices: positions of a step, steps in shared memory, bytes of a panel's step and of a warp's scratch. */
enum { BANK_CUDA_STEP = 64, BANK_CUDA_STAGES = 3, BANK_CUDA_RAW = 2 * 32 * 64, BANK_CUDA_SCRATCH = 0 };

static const char BANK_NAME[] = "bf16";

/* BANK_BLOCK_K weights of a line, exact. */
static inline void bank_decode_row(const uint8_t *line, const uint8_t *scales, float *w)
{
    (void)scales;
    for (uint32_t k = 0; k < BANK_BLOCK_K; k++) {
        const uint8_t *half = line + 4 * (k % 16) + 2 * (k / 16);
        w[k] = ifx_bf16_to_f32((uint16_t)(half[0] | half[1] << 8));
    }
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
