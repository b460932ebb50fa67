/* SPDX-License-Identifier: Apache-2.0 */
#include "cost.h"

#define COST_WEIGHT 0.25f /* of the newest measurement */
#define COST_FAR    8.0

int32_t cost_create(uint32_t n_layers, struct cost *c)
{
    *c = (struct cost){.n_layers = n_layers};
    c->layers = base_calloc(n_layers, sizeof *c->layers);
    return c->layers ? IFX_OK : IFX_ENOMEM;
}

void cost_destroy(struct cost *c)
{
    base_free(c->layers);
    *c = (struct cost){0};
}

static uint32_t width_of(uint32_t n)
{
    uint32_t w = 0;
    while (n > 1 && w + 1 < COST_WIDTHS) {
        n /= 2;
        w++;
    }
    return w;
}

/* Between the middles of two ranges the ratio goes over from one to the other: a step there would be a step in the plan. */
static double cpu_ratio(const struct cost_layer *l, uint32_t n)
{
    uint32_t w = width_of(n);
    double start = (double)(1u << w), at = ((double)n - start) / start - 0.5;
    uint32_t other = at < 0 ? (w ? w - 1 : w) : w + 1 < COST_WIDTHS ? w + 1 : w;
    double part = at < 0 ? -at : at, here = (double)l->cpu[w], there = (double)l->cpu[other];
    if (here <= 0 && there <= 0)
        return 1;
    if (here <= 0 || there <= 0)
        return here > 0 ? here : there;
    if (part > 0.5)
        part = 0.5;
    return here * (1 - part) + there * part;
}

void cost_of(const struct cost *c, uint32_t layer, uint32_t n, struct offload_cost *out)
{
    const struct cost_layer *l = &c->layers[layer];
    double cpu = cpu_ratio(l, n), link = l->link > 0 ? (double)l->link : 1;
    *out = c->base;
    out->cpu_record *= cpu;
    out->cpu_column *= cpu;
    out->cpu_shared *= cpu;
    out->link_record *= link;
}

static void observe(float *average, double predicted, double seconds)
{
    double ratio = seconds / predicted;
    if (!(predicted > 0) || !(ratio > 1 / COST_FAR) || !(ratio < COST_FAR))
        return;
    *average = *average > 0 ? *average + COST_WEIGHT * ((float)ratio - *average) : (float)ratio;
}

void cost_observe_cpu(struct cost *c, uint32_t layer, uint32_t n, double predicted, double seconds)
{
    observe(&c->layers[layer].cpu[width_of(n)], predicted, seconds);
}

void cost_observe_link(struct cost *c, uint32_t layer, double predicted, double seconds)
{
    observe(&c->layers[layer].link, predicted, seconds);
}
