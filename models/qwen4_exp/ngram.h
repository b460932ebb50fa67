/* SPDX-License-Identifier: Apache-2.0
 *
 * ngram.h - which rows of an n-gram table a token needs: exact integer arithmetic, a function of the last tokens alone.
 *
 * Heads come in groups, one for each length from 2 to ngram_size, heads_per_ngram each.  Head h of the group of length L looks at
 * id = (t[0] m[0] ^ t[1] m[1] ^ ... ^ t[L-1] m[L-1]) mod size[h] + offset[h], t[s] the token s back, products wrapping in
 * signed 64 bits, mod with the sign of its divisor.  A token counts as eos when it lies before the start or behind an eos that is
 * nearer than itself.  The multipliers come from splitmix64 (Steele, Lea and Flood, 2014), the sizes are consecutive primes.
 */
#ifndef INFERNIX_MODELS_NGRAM_H
#define INFERNIX_MODELS_NGRAM_H

#include <stdint.h>

#define NGRAM_MAX_SIZE  8u
#define NGRAM_MAX_HEADS 64u

struct ngram_rule {
    uint32_t ngram_size, heads_per_ngram;
    int64_t vocab, base, seed, divisible_by;
    int32_t eos;
};

struct ngram {
    uint32_t size, heads, per_length;
    int32_t eos;
    int64_t multipliers[NGRAM_MAX_SIZE];
    int64_t sizes[NGRAM_MAX_HEADS], offsets[NGRAM_MAX_HEADS];
    int64_t rows; /* of the table, padded */
};

/* The table of the index-th module; `previous`, the module before it or NULL, tells where the primes go on.  The rule's numbers were
 * checked. */
void ngram_make(const struct ngram_rule *rule, uint32_t index, const struct ngram *previous, struct ngram *out);

/* ids [n, heads]; tokens[-1] .. tokens[-history] are those before. */
void ngram_ids(const struct ngram *g, const int32_t *tokens, uint32_t history, uint32_t n, int64_t *ids);

#endif
