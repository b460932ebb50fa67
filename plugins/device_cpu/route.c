/* SPDX-License-Identifier: Apache-2.0
 *
 * route.c - grouping of columns by expert, sampling and host calls: host code that both devices share.
 */
#include "cpu_device.h"
#include "ref.h"

#include <infernix/numerics.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ---- group ---- */

uint64_t common_group_ws_bytes(struct ifx_device *dev, uint32_t n, uint32_t top_k, uint32_t experts)
{
    (void)dev;
    (void)n;
    (void)top_k;
    return (uint64_t)experts * sizeof(uint32_t);
}

static bool routed(const struct ifx_group *op, uint64_t pair)
{
    return op->ids[pair] >= 0 && (uint32_t)op->ids[pair] < op->experts;
}

int32_t common_group(struct ifx_device *dev, void *stream, const struct ifx_group *op)
{
    (void)dev;
    (void)stream;
    uint64_t pairs = (uint64_t)op->n * op->top_k;
    uint32_t *next = op->ws, entries = 0;
    memset(op->offsets, 0, ((uint64_t)op->experts + 1) * sizeof *op->offsets);
    for (uint64_t p = 0; p < pairs; p++)
        if (routed(op, p))
            op->offsets[op->ids[p] + 1]++;
    for (uint32_t e = 0; e < op->experts; e++) {
        bool touched = op->offsets[e + 1] != 0;
        next[e] = op->offsets[e];
        op->offsets[e + 1] += op->offsets[e];
        if (touched && entries < op->n_entries) {
            if (op->records)
                op->records[entries] = op->table ? op->table[e] : NULL;
            op->entries[entries++] = e;
        }
    }
    for (uint64_t p = 0; p < pairs; p++)
        if (routed(op, p))
            op->rows[next[op->ids[p]]++] = (uint32_t)p;
    for (; entries < op->n_entries; entries++) {
        op->entries[entries] = UINT32_MAX;
        if (op->records)
            op->records[entries] = NULL;
    }
    return IFX_OK;
}

/* ---- sample ---- */

struct candidate {
    float logit;
    uint32_t id;
};

uint64_t common_sample_ws_bytes(struct ifx_device *dev, uint32_t n, uint32_t vocab)
{
    (void)dev;
    (void)n;
    return (uint64_t)vocab * (sizeof(struct candidate) + sizeof(double));
}

static int by_logit(const void *pa, const void *pb)
{
    const struct candidate *a = pa, *b = pb;
    if (a->logit != b->logit)
        return a->logit > b->logit ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* How many of the sorted candidates the filters leave. */
static uint32_t keep_count(const struct ifx_sample *op, const double *weight, double total)
{
    uint32_t n = op->top_k && op->top_k < op->vocab ? op->top_k : op->vocab, keep = 0;
    double mass = 0;
    if (n < op->vocab) {
        total = 0;
        for (uint32_t i = 0; i < n; i++)
            total += weight[i];
    }
    while (keep < n) {
        mass += weight[keep++];
        if (op->top_p < 1 && mass >= (double)op->top_p * total)
            break;
    }
    while (keep > 1 && weight[keep - 1] < (double)op->min_p)
        keep--;
    return keep;
}

static float penalise(const struct ifx_sample *op, float v, uint32_t history)
{
    uint32_t count = history & IFX_HISTORY_COUNT;
    if (history)
        v = v > 0 ? v / op->repetition_penalty : v * op->repetition_penalty;
    return count ? v - (op->presence_penalty + op->frequency_penalty * (float)count) : v;
}

static int32_t sample_row(const struct ifx_sample *op, const float *logits, const uint32_t *history, double u)
{
    struct candidate *c = op->ws;
    double *weight = (double *)(c + op->vocab), total = 0, mass = 0;
    for (uint32_t i = 0; i < op->vocab; i++) {
        if ((ifx_f32_bits(logits[i]) & 0x7f800000u) == 0x7f800000u)
            return -1;
        c[i] = (struct candidate){history ? penalise(op, logits[i], history[i]) : logits[i], i};
    }
    qsort(c, op->vocab, sizeof *c, by_logit);
    if (op->temperature == 0)
        return (int32_t)c[0].id;
    for (uint32_t i = 0; i < op->vocab; i++)
        total += weight[i] = (double)ifx_exp((c[i].logit - c[0].logit) / op->temperature);
    uint32_t keep = keep_count(op, weight, total), last = 0;
    total = 0;
    for (uint32_t i = 0; i < keep; i++)
        total += weight[i];
    for (uint32_t i = 0; i < keep; i++) {
        mass += weight[i];
        if (weight[i] > 0)
            last = i;
        if (mass > u * total)
            return (int32_t)c[i].id;
    }
    return (int32_t)c[last].id;
}

int32_t common_sample(struct ifx_device *dev, void *stream, const struct ifx_sample *op)
{
    (void)stream;
    if (op->temperature != 0 && !op->u)
        return dev->host->error(dev->host, IFX_EINVAL, "sampling at a temperature without random numbers");
    for (uint64_t i = 0; i < op->n; i++) {
        uint32_t *history = op->history ? op->history + i * op->vocab : NULL;
        op->tokens[i] = sample_row(op, op->logits + i * op->ldl, history, op->u ? (double)op->u[i] : 0);
        if (history && op->tokens[i] >= 0)
            history[op->tokens[i]]++;
    }
    return IFX_OK;
}

/* ---- host calls: the caller's thread is the stream ---- */

int32_t common_host_call(struct ifx_device *dev, void *stream, int32_t (*fn)(void *ctx), void *ctx,
                         const struct ifx_work *work)
{
    (void)dev;
    (void)stream;
    (void)work;
    return fn(ctx);
}
