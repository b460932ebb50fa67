/* SPDX-License-Identifier: Apache-2.0
 *
 * policy.h - the assist policy in force: a bank's own, or what the user put in its place.
 */
#ifndef INFERNIX_CORE_POLICY_H
#define INFERNIX_CORE_POLICY_H

#include "base.h"
#include "planner.h"
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

/* How far a policy is from what measured costs ask for, in a layer whose routing is drawn. */
struct policy_fit {
    const struct ifx_assist_policy *policy;
    const struct offload_cost *cost;
    uint32_t experts, top_k, resident; /* of a layer; resident: in frames */
};
struct policy_misfit {
    double ratio;     /* the time predicted for the policy's split over that for the best one, at `columns`: of some widths the worst */
    uint32_t columns;
    double step;      /* time of a call one column past the policy's limit over that of one at it; 0: the limit is out of reach */
};
int32_t offload_policy_fit(const struct policy_fit *f, struct policy_misfit *out);
/* Whether that is worth a line: the figures are those of one moment and of a routing that is only likely. */
bool offload_policy_far(const struct policy_misfit *m);

#endif
