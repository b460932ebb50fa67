/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_int8_cpu_avx512_bf16.c - with AVX-512-BF16 the bank `int8` has no routes of its own: a weight has more bits than bf16 holds, and two
 * products for each are no faster than one in float32.
 */
#include "expert_int8_format.h"

const struct expert_routes *bank_routes_avx512_bf16(void)
{
    return 0;
}
