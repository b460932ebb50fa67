/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_bf16_ref.c - the plain route of the bank `bf16`.
 */
#include "expert_bf16_format.h"

#include "../common_expert/scalar.h"

const struct expert_routes *bank_routes_scalar(void)
{
    static const struct expert_routes routes = {&scalar_route, &scalar_route, 0};
    return &routes;
}
