/* SPDX-License-Identifier: Apache-2.0 */
#include "policy.h"

#include "predict.h"

#include <stdlib.h>
#include <string.h>

static const char *const mode_names[] = {"off", "ramp", "balance", NULL};

int32_t offload_mode_parse(const char *text, uint32_t *mode)
{
    *mode = OFFLOAD_ASSIST_RAMP;
    if (!text)
        return IFX_OK;
    for (uint32_t i = 0; mode_names[i]; i++)
        if (strcmp(text, mode_names[i]) == 0) {
            *mode = i;
            return IFX_OK;
        }
    const char *near = base_nearest(text, mode_names);
    if (near)
        return base_error(IFX_EINVAL, "--assist %s: did you mean %s?", text, near);
    return base_error(IFX_EINVAL, "--assist %s: it is off, ramp or balance", text);
}

const char *offload_mode_name(uint32_t mode)
{
    return mode <= OFFLOAD_ASSIST_BALANCE ? mode_names[mode] : "?";
}

/* One "columns:share"; *at moves behind it. */
static bool parse_point(const char **at, struct ifx_ramp_point *p)
{
    char *end;
    if (**at < '0' || **at > '9')
        return false;
    unsigned long columns = strtoul(*at, &end, 10);
    if (*end != ':' || end[1] < '0' || end[1] > '9')
        return false;
    unsigned long share = strtoul(end + 1, &end, 10);
    *at = end;
    *p = (struct ifx_ramp_point){.columns = (uint32_t)columns, .share = (uint32_t)share};
    return columns > 0 && columns <= 1u << 24 && share <= 256;
}

static int32_t parse_ramp(const char *text, struct offload_policy *out)
{
    const char *at = text;
    uint32_t n = 0;
    for (;;) {
        struct ifx_ramp_point p;
        if (n == POLICY_POINTS)
            return base_error(IFX_EINVAL, "--assist-ramp %s: more than %u points", text, POLICY_POINTS);
        if (!parse_point(&at, &p))
            return base_error(IFX_EINVAL, "--assist-ramp %s: points are COLUMNS:SHARE with a share of 0 to 256, separated by commas", text);
        if (n && p.columns <= out->points[n - 1].columns)
            return base_error(IFX_EINVAL, "--assist-ramp %s: columns must ascend, and %u follows %u", text, p.columns,
                              out->points[n - 1].columns);
        out->points[n++] = p;
        if (!*at)
            break;
        if (*at++ != ',')
            return base_error(IFX_EINVAL, "--assist-ramp %s: points are COLUMNS:SHARE with a share of 0 to 256, separated by commas", text);
    }
    out->policy.n_points = n;
    return IFX_OK;
}

int32_t offload_policy_make(const struct ifx_assist_policy *bank, uint32_t max_columns, const char *ramp, struct offload_policy *out)
{
    uint32_t limit = max_columns ? max_columns : bank->max_columns;
    *out = (struct offload_policy){.policy = {.struct_size = sizeof out->policy, .points = out->points}};
    if (ramp) {
        int32_t st = parse_ramp(ramp, out);
        if (st)
            return st;
        uint32_t last = out->points[out->policy.n_points - 1].columns;
        if (!max_columns && last > limit)
            limit = last;
    } else {
        out->policy.n_points = bank->n_points < POLICY_POINTS ? bank->n_points : POLICY_POINTS;
        memcpy(out->points, bank->points, out->policy.n_points * sizeof *out->points);
    }
    struct ifx_assist_policy whole = out->policy;
    whole.max_columns = UINT32_MAX;
    uint32_t at_limit = offload_link_share(&whole, limit), n = out->policy.n_points;
    while (n && out->points[n - 1].columns > limit)
        n--;
    if (n < out->policy.n_points && (!n || out->points[n - 1].columns < limit))
        out->points[n++] = (struct ifx_ramp_point){.columns = limit, .share = at_limit};
    out->policy.n_points = n;
    out->policy.max_columns = limit;
    return IFX_OK;
}

/* ---- does it suit the machine? ---- */

#define FIT_WIDEST 1024u
#define FIT_ZIPF   0.4 /* with it the registered 575 is where assisting and streaming meet, at rates of a machine of its kind */
#define FAR_RATIO  2.0 /* a ramp of three points is never the best at every width */
#define FAR_STEP   1.4

/* The prediction for n columns of the drawn routing.  memory: four numbers and a byte an expert. */
static void fit_at(const struct policy_fit *f, const struct predict_routing *r, uint32_t n, uint32_t *memory, struct offload_plan *plan)
{
    uint8_t *resident = (uint8_t *)(memory + 4ull * f->experts);
    const struct offload_plan_input in = {.experts = f->experts, .n = n, .columns = memory, .resident = resident, .policy = f->policy,
                                          .mode = OFFLOAD_ASSIST_BALANCE, .cost = f->cost};
    *plan = (struct offload_plan){.resident = memory + f->experts, .link = memory + 2ull * f->experts, .cpu = memory + 3ull * f->experts};
    memset(memory, 0, f->experts * sizeof *memory);
    for (uint64_t i = 0; i < (uint64_t)n * f->top_k; i++)
        memory[r->chosen[i]]++;
    memset(resident, 0, f->experts);
    memset(resident, 1, f->resident < f->experts ? f->resident : f->experts); /* the most popular */
    offload_plan_make(&in, plan);
}

static void fit(const struct policy_fit *f, const struct predict_routing *r, uint32_t *memory, struct policy_misfit *out)
{
    uint32_t limit = f->policy->max_columns;
    const uint32_t widths[] = {32, 64, 128, 192, 256, 384, 512, 768, FIT_WIDEST, limit, limit + 1};
    struct offload_plan plan;
    double at_limit = 0, past = 0;
    for (uint32_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        if (widths[i] <= IFX_NARROW_COLUMNS || widths[i] > FIT_WIDEST)
            continue;
        fit_at(f, r, widths[i], memory, &plan);
        at_limit = widths[i] == limit ? plan.policy_seconds : at_limit;
        past = widths[i] == limit + 1 ? plan.policy_seconds : past;
        if (plan.best_seconds > 0 && plan.policy_seconds > plan.best_seconds * out->ratio) {
            out->ratio = plan.policy_seconds / plan.best_seconds;
            out->columns = widths[i];
        }
    }
    if (at_limit > 0 && past > 0)
        out->step = past / at_limit;
}

int32_t offload_policy_fit(const struct policy_fit *f, struct policy_misfit *out)
{
    const struct predict_model m = {.layers = 1, .experts = f->experts, .top_k = f->top_k, .zipf = FIT_ZIPF};
    struct predict_routing r;
    *out = (struct policy_misfit){.ratio = 1};
    int32_t st = predict_routing_create(&m, FIT_WIDEST, &r);
    if (st)
        return st;
    uint32_t *memory = base_calloc(5ull * f->experts, sizeof *memory);
    if (memory)
        fit(f, &r, memory, out);
    predict_routing_destroy(&r);
    if (!memory)
        return IFX_ENOMEM;
    base_free(memory);
    return IFX_OK;
}

bool offload_policy_far(const struct policy_misfit *m)
{
    return m->ratio > FAR_RATIO || (m->step > 0 && (m->step > FAR_STEP || m->step < 1 / FAR_STEP));
}
