/* SPDX-License-Identifier: Apache-2.0 */
#include "planner.h"

#include <string.h>

static double larger(double a, double b)
{
    return a > b ? a : b;
}

double offload_cost_cpu(const struct offload_cost *c, uint32_t experts, uint64_t columns, bool shared)
{
    double record = shared ? larger(c->cpu_shared, c->cpu_record) : c->cpu_record;
    return larger(record * experts, c->cpu_column * (double)columns);
}

double offload_cost_cpu_finish(double shared, double alone, double link)
{
    return shared <= link ? shared : link + (shared - link) * (alone / shared);
}

double offload_cost_device(const struct offload_cost *c, uint32_t columns)
{
    return larger(c->device_record, c->device_column * columns);
}

uint32_t offload_link_share(const struct ifx_assist_policy *p, uint32_t n)
{
    const struct ifx_ramp_point *at = p->points;

    if (n > p->max_columns || p->n_points == 0)
        return 0;
    if (n <= at[0].columns)
        return at[0].share;
    for (uint32_t i = 1; i < p->n_points; i++) {
        if (n > at[i].columns)
            continue;
        /* Round to nearest without signed division: the larger end carries the interpolation. */
        uint64_t width = at[i].columns - at[i - 1].columns;
        uint64_t right = n - at[i - 1].columns;
        uint64_t sum = (width - right) * at[i - 1].share + right * at[i].share;
        return (uint32_t)((2 * sum + width) / (2 * width));
    }
    return at[p->n_points - 1].share;
}

/* True when expert a goes before b: more columns first, then the lower id. */
static bool before(const uint32_t *columns, uint32_t a, uint32_t b)
{
    return columns[a] != columns[b] ? columns[a] > columns[b] : a < b;
}

static void sift(const uint32_t *columns, uint32_t *ids, uint32_t root, uint32_t n)
{
    uint32_t child;

    while ((child = 2 * root + 1) < n) {
        if (child + 1 < n && before(columns, ids[child], ids[child + 1]))
            child++;
        if (!before(columns, ids[root], ids[child]))
            return;
        uint32_t t = ids[root];
        ids[root] = ids[child];
        ids[child] = t;
        root = child;
    }
}

/* Heap sort: no allocation, and no worst case for a router that sends everything one way. */
static void sort_widest_first(const uint32_t *columns, uint32_t *ids, uint32_t n)
{
    for (uint32_t i = n / 2; i-- > 0;)
        sift(columns, ids, i, n);
    for (uint32_t end = n; end > 1;) {
        end--;
        uint32_t t = ids[0];
        ids[0] = ids[end];
        ids[end] = t;
        sift(columns, ids, 0, end);
    }
}

/* Splits by width that are predicted to finish as soon as the best one, as far as predictions go: among them the policy's is taken. */
#define SPLIT_NOISE 0.015

static uint32_t policy_link_count(const struct offload_plan_input *in, uint32_t n_missing)
{
    if (in->n <= IFX_NARROW_COLUMNS)
        return 0;
    if (in->n > in->policy->max_columns)
        return n_missing;
    return (uint32_t)(((uint64_t)offload_link_share(in->policy, in->n) * n_missing + 128) / 256);
}

/* How many of the missing experts (widest first) the link should take so that both sides finish soonest.  What the CPU has computed
 * crosses when both it and the link are through with the rest. */
static uint32_t balance_link_count(const struct offload_plan_input *in, const uint32_t *missing, uint32_t n_missing,
                                   double device_busy, struct offload_plan *out)
{
    const struct offload_cost *c = in->cost;
    double arrive = c->link_fixed, device = device_busy, best;
    uint32_t best_count = 0, policy_count = policy_link_count(in, n_missing);
    uint64_t left = 0; /* columns that stay with the CPU */

    for (uint32_t i = 0; i < n_missing; i++)
        left += in->columns[missing[i]];
    best = larger(offload_cost_cpu(c, n_missing, left, false) + c->link_row * (double)left, device_busy);
    out->policy_seconds = best;
    for (uint32_t i = 0; i < n_missing; i++) {
        uint32_t experts = n_missing - i - 1;
        left -= in->columns[missing[i]];
        arrive += c->link_record;
        device = larger(device, arrive) + offload_cost_device(c, in->columns[missing[i]]);
        double cpu = offload_cost_cpu_finish(offload_cost_cpu(c, experts, left, true), offload_cost_cpu(c, experts, left, false), arrive);
        double finish = experts ? larger(larger(cpu, arrive) + c->link_row * (double)left, device) : device;
        if (i + 1 == policy_count)
            out->policy_seconds = finish;
        if (finish < best) {
            best = finish;
            best_count = i + 1;
        }
    }
    out->best_seconds = best;
    if (in->n > IFX_NARROW_COLUMNS && out->policy_seconds <= best * (1 + SPLIT_NOISE))
        return policy_count;
    return best_count;
}

static uint32_t link_count(const struct offload_plan_input *in, const uint32_t *missing, uint32_t n_missing,
                           double device_busy, struct offload_plan *out)
{
    if (in->mode == OFFLOAD_ASSIST_OFF)
        return n_missing;
    if (in->mode == OFFLOAD_ASSIST_BALANCE && in->cost)
        return balance_link_count(in, missing, n_missing, device_busy, out);
    return policy_link_count(in, n_missing);
}

void offload_plan_make(const struct offload_plan_input *in, struct offload_plan *out)
{
    uint32_t n_missing = 0;
    double device_busy = 0;

    out->n_resident = 0;
    out->best_seconds = out->policy_seconds = 0;
    for (uint32_t e = 0; e < in->experts; e++) {
        if (in->columns[e] == 0)
            continue;
        if (in->resident && in->resident[e]) {
            out->resident[out->n_resident++] = e;
            if (in->cost)
                device_busy += offload_cost_device(in->cost, in->columns[e]);
        } else {
            out->link[n_missing++] = e;
        }
    }
    sort_widest_first(in->columns, out->link, n_missing);
    uint32_t n_link = link_count(in, out->link, n_missing, device_busy, out);
    /* The widest come first, so what the CPU must not touch is a prefix. */
    if (in->deterministic)
        while (n_link < n_missing && in->columns[out->link[n_link]] > IFX_NARROW_COLUMNS)
            n_link++;
    out->n_link = n_link;
    out->n_cpu = n_missing - n_link;
    memmove(out->cpu, out->link + n_link, (size_t)out->n_cpu * sizeof *out->cpu);
    out->streamed = in->n > in->policy->max_columns && out->n_cpu == 0;
}
