/* SPDX-License-Identifier: Apache-2.0
 *
 * policy.h - the assist policy in force: a bank's own, or what the user put in its place.
 */
#ifndef INFERNIX_CORE_POLICY_H
#define INFERNIX_CORE_POLICY_H

#include "base.h"
#include <infernix/expert.h>

#define POLICY_POINTS 32u

struct offload_policy {
    struct ifx_assist_policy policy; /* points to `points`: not to be copied */
    struct ifx_ramp_point points[POLICY_POINTS];
};
/* max_columns 0: the bank's own limit, or the last column of a ramp that goes further.  ramp: "64:77,255:104" (columns ascending, shares 0 to 256) or
 * NULL: the bank's own.  A ramp that goes past the limit is cut there, on its line. */
int32_t offload_policy_make(const struct ifx_assist_policy *bank, uint32_t max_columns, const char *ramp, struct offload_policy *out);
/* "ramp", "balance", "off" (NULL: ramp). */
int32_t offload_mode_parse(const char *text, uint32_t *mode);
const char *offload_mode_name(uint32_t mode);

#endif
