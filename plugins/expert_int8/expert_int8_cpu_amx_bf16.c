/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_int8_cpu_amx_bf16.c - the wide route of the bank `int8` with AMX-BF16.
 */
#include "expert_int8_format.h"

#include "../common_expert/bank.h"
#include "expert_int8_tile.h"

#include "../common_expert/tile_amx.h"
#include "../common_expert/wide_bf16.h"

const struct expert_routes *bank_routes_amx_bf16(void)
{
    static const struct expert_routes routes = {NULL, &wide_route, 4};
    return &routes;
}
