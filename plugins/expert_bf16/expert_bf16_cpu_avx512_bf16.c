/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_bf16_cpu_avx512_bf16.c - the wide route of the bank `bf16` with AVX-512-BF16.
 */
#include "expert_bf16_format.h"

#include "../common_expert/bank.h"
#include "expert_bf16_tile.h"

#include "../common_expert/tile_avx512_bf16.h"
#include "../common_expert/wide_bf16.h"

const struct expert_routes *bank_routes_avx512_bf16(void)
{
    static const struct expert_routes routes = {NULL, &wide_route, 8};
    return &routes;
}
