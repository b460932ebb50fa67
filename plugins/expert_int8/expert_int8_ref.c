/* SPDX-License-Identifier: Apache-2.0
 *
 * expert_int8_ref.c - the plain route of the bank `int8`.
 */
#include "expert_int8_format.h"

#include "../common_expert/scalar.h"

const struct expert_routes *bank_routes_scalar(void)
{
    static const struct expert_routes routes = {&scalar_route, &scalar_route, 0};
    return &routes;
}
