/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_nvfp4_ref.c - the plain route of the bank `nvfp4`.
 */
#include "expert_nvfp4_format.h"

#include "../common_expert/scalar.h"

const struct expert_routes *bank_routes_scalar(void)
{
    static const struct expert_routes routes = {&scalar_route, &scalar_route, 0};
    return &routes;
}
