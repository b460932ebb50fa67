/* SPDX-License-Identifier: Apache-2.0
 *
 * test_route.c - grouping of pairs by expert, against its definition; sampling against the oracle.
 */
#include "optest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char what[200];
#define DESCRIBE(...) snprintf(what, sizeof what, __VA_ARGS__)

/* ---- group ---- */

/* Every pair once, by expert, ascending; every touched expert an entry, ascending, with its record. */
static void check_group(const struct ifx_group *op)
{
    uint32_t at = 0, entry = 0, wrong = 0;
    for (uint32_t e = 0; e < op->experts; e++) {
        uint32_t first = at;
        wrong += op->offsets[e] != at;
        for (uint32_t p = 0; p < op->n * op->top_k; p++)
            if (op->ids[p] == (int32_t)e)
                wrong += op->rows[at++] != p;
        if (at > first && entry < op->n_entries) {
            wrong += op->entries[entry] != e;
            wrong += op->records && op->records[entry] != op->table[e];
            entry++;
        }
    }
    wrong += op->offsets[op->experts] != at;
    for (; entry < op->n_entries; entry++)
        wrong += op->entries[entry] != UINT32_MAX || (op->records && op->records[entry]);
    check(wrong == 0, "%s: %u values are wrong", what, wrong);
}

static void group(const struct pair *t, uint64_t *rng, uint32_t n)
{
    uint32_t experts = 1 + rng_below(rng, rng_below(rng, 8) ? 300 : 1500), k = 1 + rng_below(rng, experts < 10 ? experts : 10);
    uint32_t pairs = n * k, entries = experts < pairs ? experts : pairs, few = rng_below(rng, 2), odd = rng_below(rng, 4) == 0;
    struct ifx_group op = {.n = n, .top_k = k, .experts = experts, .n_entries = entries};
    int32_t *ids = exact_alloc(pairs * 4ull);
    const void **table = exact_alloc(experts * sizeof *table);
    for (uint32_t p = 0; p < pairs; p++)
        ids[p] = odd && rng_below(rng, 9) == 0 ? (rng_below(rng, 2) ? -1 : (int32_t)experts)
                                               : (int32_t)rng_below(rng, few ? (experts + 7) / 8 : experts);
    for (uint32_t e = 0; e < experts; e++)
        table[e] = rng_below(rng, 5) ? (const void *)(uintptr_t)(4096 * (e + 1)) : NULL;
    op.ids = ids;
    op.offsets = exact_alloc((experts + 1) * 4ull), op.rows = exact_alloc(pairs * 4ull), op.entries = exact_alloc(entries * 4ull);
    if (rng_below(rng, 3))
        op.table = table, op.records = exact_alloc(entries * sizeof *op.records);
    op.ws = exact_alloc(t->dev->ops->group_ws_bytes(t->dev, n, k, experts));
    DESCRIBE("%s group n=%u top_k=%u experts=%u", t->name, n, k, experts);
    check(t->dev->ops->group(t->dev, NULL, &op) == IFX_OK, "%s fails", what);
    check_group(&op);
    free(ids), free(table), free(op.offsets), free(op.rows), free(op.entries), free(op.records), free(op.ws);
}

/* ---- sample ---- */

static void fill_logits(uint64_t *rng, struct mat *logits)
{
    float scale = rng_below(rng, 2) ? 2.0f : 8.0f;
    uint32_t steps = rng_below(rng, 3) ? 0 : 12; /* often equal */
    for (uint64_t i = 0; i < logits->rows; i++)
        for (uint64_t j = 0; j < logits->width; j++) {
            float v = rng_normal(rng) * scale;
            logits->p[i * logits->ld + j] = steps ? floorf(v * 2) / 2 : v;
        }
}

/* Uniform numbers near a boundary between two tokens may fall to either side: masses are sums in another order.  A token is
 * therefore right when the oracle gives it for a number no further than that. */
static void sample(const struct pair *t, uint64_t *rng, uint32_t greedy)
{
    uint32_t n = 1 + rng_below(rng, 5), vocab = 1 + rng_below(rng, rng_below(rng, 3) ? 700 : 20000);
    struct mat logits = mat_new(n, vocab, vocab + rng_below(rng, 3));
    float *u = exact_alloc(n * 4ull), *v = exact_alloc(n * 4ull);
    int32_t *got = exact_alloc(n * 4ull), *want = exact_alloc(n * 4ull);
    fill_logits(rng, &logits);
    for (uint32_t i = 0; i < n; i++)
        u[i] = rng_float(rng, 0, 1);
    uint32_t bad = rng_below(rng, 5) ? n : rng_below(rng, n);
    if (bad < n)
        logits.p[bad * logits.ld + rng_below(rng, vocab)] = rng_below(rng, 2) ? NAN : rng_below(rng, 2) ? INFINITY : -INFINITY;
    struct ifx_sample op = {.n = n, .vocab = vocab, .logits = logits.p, .ldl = logits.ld, .top_p = 1, .u = u};
    if (!greedy) {
        op.temperature = rng_float(rng, 0.1f, 2.0f);
        op.top_k = rng_below(rng, 2) ? rng_below(rng, 60) : 0;
        op.top_p = rng_below(rng, 2) ? rng_float(rng, 0.05f, 1.0f) : 1.0f;
        op.min_p = rng_below(rng, 3) ? 0.0f : rng_float(rng, 0.0f, 0.3f);
    }
    uint64_t all = (uint64_t)n * vocab;
    uint32_t *history = exact_alloc(all * 4), *before = exact_alloc(all * 4);
    for (uint64_t i = 0; i < all; i++)
        before[i] = history[i] = (rng_below(rng, 4) ? 0 : rng_below(rng, 4)) | (rng_below(rng, 3) ? 0 : IFX_HISTORY_SEEN);
    if (rng_below(rng, 3) == 0) {
        op.history = history;
        op.repetition_penalty = rng_float(rng, 0.7f, 1.5f);
        op.presence_penalty = rng_float(rng, -1, 1), op.frequency_penalty = rng_float(rng, -0.3f, 0.3f);
    }
    DESCRIBE("%s sample n=%u vocab=%u temperature=%g top_k=%u top_p=%g min_p=%g%s", t->name, n, vocab, (double)op.temperature, op.top_k,
             (double)op.top_p, (double)op.min_p, op.history ? " with penalties" : "");
    op.tokens = got, op.ws = exact_alloc(t->dev->ops->sample_ws_bytes(t->dev, n, vocab));
    check(t->dev->ops->sample(t->dev, NULL, &op) == IFX_OK, "%s fails", what);
    free(op.ws);
    op.ws = exact_alloc(t->ref->ops->sample_ws_bytes(t->ref, n, vocab));
    op.tokens = want;
    for (uint32_t i = 0; op.history && i < n; i++) {
        uint32_t *row = history + (uint64_t)i * vocab;
        if (got[i] >= 0 && got[i] < (int32_t)vocab)
            check(row[got[i]]-- == before[(uint64_t)i * vocab + got[i]] + 1, "%s: token %d was not counted", what, got[i]);
    }
    check(memcmp(history, before, all * 4) == 0, "%s: counted other tokens", what);
    t->ref->ops->sample(t->ref, NULL, &op);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t fits = got[i] == want[i];
        for (uint32_t side = 0; !fits && !greedy && side < 2; side++) {
            for (uint32_t j = 0; j < n; j++)
                v[j] = u[j] + (side ? 1e-6f : -1e-6f) < 0 ? 0 : u[j] + (side ? 1e-6f : -1e-6f);
            op.u = v;
            memcpy(history, before, all * 4);
            int32_t *near = exact_alloc(n * 4ull);
            op.tokens = near;
            t->ref->ops->sample(t->ref, NULL, &op);
            fits = near[i] == got[i];
            free(near);
        }
        check(fits, "%s: row %u with u=%g: expected token %d, got %d", what, i, (double)u[i], want[i], got[i]);
        check((got[i] == -1) == (i == bad), "%s: row %u %s a value that is not finite, token %d", what, i, i == bad ? "has" : "has not", got[i]);
    }
    free(op.ws), free(u), free(v), free(got), free(want), free(history), free(before);
    mat_free(&logits);
}

/* The largest twice: the lower id, wherever they stand. */
static void greedy_ties(const struct pair *t)
{
    enum { VOCAB = 5000 };
    static const uint32_t places[][2] = {{0, 4999}, {31, 32}, {255, 256}, {1023, 1024}, {3, 4000}, {4998, 4999}};
    for (uint32_t i = 0; i < 6; i++) {
        struct mat logits = mat_new(1, VOCAB, VOCAB);
        for (uint32_t j = 0; j < VOCAB; j++)
            logits.p[j] = j % 2 ? -0.0f : 0.0f;
        logits.p[places[i][0]] = logits.p[places[i][1]] = 1.5f;
        int32_t *token = exact_alloc(4);
        struct ifx_sample op = {.n = 1, .vocab = VOCAB, .logits = logits.p, .ldl = VOCAB, .top_p = 1, .tokens = token};
        op.ws = exact_alloc(t->dev->ops->sample_ws_bytes(t->dev, 1, VOCAB));
        t->dev->ops->sample(t->dev, NULL, &op);
        check(*token == (int32_t)places[i][0], "%s: greedy, tokens %u and %u equal: got %d", t->name, places[i][0], places[i][1], *token);
        free(op.ws), free(token);
        mat_free(&logits);
    }
}

void test_route(const struct pair *t, uint32_t rounds)
{
    static const uint32_t counts[] = {1, 2, 3, 8, 31, 100, 103, 500, 1000};
    uint64_t rng = t->seed + 7;
    for (uint32_t round = 0; round < rounds; round++) {
        group(t, &rng, counts[round % 9]);
        sample(t, &rng, round % 3 == 0);
    }
    greedy_ties(t);
}
