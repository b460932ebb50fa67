/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_nvfp4_cpu_avx512_bf16.c - the wide route of the bank `nvfp4` with AVX-512-BF16.
 */
#include "expert_nvfp4_format.h"

#include "../common_expert/bank.h"
#include "expert_nvfp4_tile.h"

#include "../common_expert/tile_avx512_bf16.h"
#include "../common_expert/wide_bf16.h"

const struct expert_routes *bank_routes_avx512_bf16(void)
{
    static const struct expert_routes routes = {NULL, &wide_route, 6};
    return &routes;
}
