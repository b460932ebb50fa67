/* SPDX-License-Identifier: Apache-2.0
 *
 * ngram.c - n-gram row ids.
 */
#include "ngram.h"

#include <stdbool.h>
#include <string.h>

#define GOLDEN_GAMMA 0x9e3779b97f4a7c15u /* splitmix64's increment */
#define MODULE_SEED  10007u              /* seeds of consecutive modules lie this far apart */

static uint64_t splitmix_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Odd, and small enough that its product with any token stays below 2^63. */
static void make_multipliers(const struct ngram_rule *rule, uint32_t index, struct ngram *out)
{
    uint64_t bound = (uint64_t)(INT64_MAX / rule->vocab) / 2;
    uint64_t state = (uint64_t)rule->seed + (uint64_t)MODULE_SEED * index + GOLDEN_GAMMA;
    for (uint32_t i = 0; i < rule->ngram_size; i++) {
        state += GOLDEN_GAMMA;
        out->multipliers[i] = (int64_t)(splitmix_mix(state) % (bound ? bound : 1) * 2 + 1);
    }
}

static bool is_prime(int64_t v)
{
    if (v < 4)
        return v > 1;
    if (v % 2 == 0)
        return false;
    for (int64_t d = 3; d * d <= v; d += 2)
        if (v % d == 0)
            return false;
    return true;
}

void ngram_make(const struct ngram_rule *rule, uint32_t index, const struct ngram *previous, struct ngram *out)
{
    memset(out, 0, sizeof *out);
    out->size = rule->ngram_size;
    out->per_length = rule->heads_per_ngram;
    out->heads = (rule->ngram_size - 1) * rule->heads_per_ngram;
    out->eos = rule->eos;
    make_multipliers(rule, index, out);
    int64_t prime = previous ? previous->sizes[previous->heads - 1] : rule->base - 1, total = 0;
    for (uint32_t h = 0; h < out->heads; h++) {
        do
            prime++;
        while (!is_prime(prime));
        out->sizes[h] = prime;
        out->offsets[h] = total;
        total += prime;
    }
    out->rows = (total + rule->divisible_by - 1) / rule->divisible_by * rule->divisible_by;
}

static int64_t floor_mod(int64_t a, int64_t b)
{
    int64_t r = a % b;
    return r < 0 ? r + b : r;
}

void ngram_ids(const struct ngram *g, const int32_t *tokens, uint32_t history, uint32_t n, int64_t *ids)
{
    for (uint32_t p = 0; p < n; p++) {
        uint64_t hash = (uint64_t)tokens[p] * (uint64_t)g->multipliers[0];
        bool ended = false;
        for (uint32_t back = 1; back < g->size; back++) {
            int64_t at = (int64_t)p - back;
            ended = ended || at < -(int64_t)history || tokens[at] == g->eos;
            hash ^= (uint64_t)(ended ? g->eos : tokens[at]) * (uint64_t)g->multipliers[back];
            for (uint32_t h = (back - 1) * g->per_length; h < back * g->per_length; h++)
                *ids++ = floor_mod((int64_t)hash, g->sizes[h]) + g->offsets[h];
        }
    }
}
