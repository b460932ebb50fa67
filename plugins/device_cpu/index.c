/* SPDX-License-Identifier: Apache-2.0
 *
 * index.c - block selection for both devices: index keys beside the KV pages, scores of blocks, the best of them.
 *
 * The oracle stores and averages without rounding; everything else is shared.
 */
#include "cpu.h"
#include "ref.h"

#include <infernix/numerics.h>
#include <stdbool.h>
#include <string.h>

static uint32_t value_bytes(const struct cpu_device *d)
{
    return d->oracle ? 4 : 2;
}

static uint8_t *raw_key(const struct cpu_device *d, const struct ifx_index_plane *p, uint64_t token)
{
    uint8_t *page = (uint8_t *)p->pages[token / p->page_tokens] + p->offset;
    return page + token % p->page_tokens * p->d * value_bytes(d);
}

static float *block_key(const struct cpu_device *d, const struct ifx_index_plane *p, uint64_t block)
{
    uint32_t per_page = p->page_tokens / p->ratio;
    uint8_t *page = (uint8_t *)p->pages[block / per_page] + p->offset;
    return (float *)(void *)(page + ifx_index_raw_bytes(p->page_tokens, p->d, value_bytes(d))) + block % per_page * p->d;
}

static void store_raw(const struct cpu_device *d, const float *x, uint32_t width, uint8_t *out)
{
    if (d->oracle) {
        memcpy(out, x, width * sizeof *x);
        return;
    }
    for (uint32_t i = 0; i < width; i++) {
        uint16_t v = ifx_f32_to_bf16(x[i]);
        memcpy(out + i * sizeof v, &v, sizeof v);
    }
}

static double load_raw(const struct cpu_device *d, const uint8_t *row, uint32_t i)
{
    float f;
    uint16_t h;
    if (d->oracle) {
        memcpy(&f, row + i * sizeof f, sizeof f);
        return f;
    }
    memcpy(&h, row + i * sizeof h, sizeof h);
    return ifx_bf16_to_f32(h);
}

/* The mean goes to the block's place and is normed and rotated there. */
static int32_t make_block_key(struct cpu_device *d, const struct ifx_index_append *op, uint64_t block)
{
    const struct ifx_index_plane *p = &op->plane;
    float *key = block_key(d, p, block);
    for (uint32_t i = 0; i < p->d; i++) {
        double sum = 0;
        for (uint32_t t = 0; t < p->ratio; t++)
            sum += load_raw(d, raw_key(d, p, block * p->ratio + t), i);
        float mean = (float)(sum / p->ratio);
        key[i] = d->oracle ? mean : ifx_bf16_to_f32(ifx_f32_to_bf16(mean));
    }
    int32_t position = (int32_t)(block * p->ratio);
    struct ifx_norm_rope rope = {.n = 1, .heads = 1, .d = p->d, .rotary = op->rotary, .x = key, .ldx = p->d, .ldx_head = p->d,
                                 .w = op->w, .eps = op->eps, .inv_freq = op->inv_freq, .positions = &position, .y = key,
                                 .ldy = p->d, .ldy_head = p->d};
    return ref_norm_rope(&d->base, NULL, &rope);
}

static int32_t check_plane(struct ifx_device *dev, const struct ifx_index_plane *p)
{
    if (!p->ratio || !p->d || p->page_tokens % p->ratio)
        return dev->host->error(dev->host, IFX_EINVAL, "%s: index plane of %u tokens a page in blocks of %u, width %u",
                                "device cpu", p->page_tokens, p->ratio, p->d);
    return IFX_OK;
}

int32_t common_index_append(struct ifx_device *dev, void *stream, const struct ifx_index_append *op)
{
    struct cpu_device *d = (struct cpu_device *)dev;
    const struct ifx_index_plane *p = &op->plane;
    int32_t st = check_plane(dev, p);
    (void)stream;
    for (uint32_t i = 0; !st && i < op->n; i++) {
        uint64_t position = (uint64_t)op->positions[i];
        store_raw(d, op->k + i * op->ldk, p->d, raw_key(d, p, position));
        if ((position + 1) % p->ratio == 0)
            st = make_block_key(d, op, position / p->ratio);
    }
    return st;
}

/* ---- selection ---- */

/* Scores and a copy of them to be shuffled. */
static uint64_t floats_each(const struct ifx_block_select *op)
{
    return 2 * ((uint64_t)op->max_tokens / op->plane.ratio + 1);
}

uint64_t common_block_select_ws_bytes(struct ifx_device *dev, const struct ifx_block_select *op)
{
    const struct cpu_device *d = (const struct cpu_device *)dev;
    return floats_each(op) * sizeof(float) * (d->oracle || !d->workers ? 1 : d->workers);
}

/* The oracle's: in double, rounded once. */
static void scores_exact(const struct cpu_device *d, const struct ifx_block_select *op, uint32_t query, uint64_t blocks, float *out)
{
    for (uint64_t b = 0; b < blocks; b++) {
        const float *key = block_key(d, &op->plane, b), *q = op->q + query * op->ldq;
        double score = 0;
        for (uint32_t h = 0; h < op->heads; h++, q += op->plane.d) {
            double dot = 0;
            for (uint32_t i = 0; i < op->plane.d; i++)
                dot += (double)q[i] * key[i];
            score += dot > 0 ? dot : 0;
        }
        out[b] = (float)(score / sqrt((double)op->plane.d));
    }
}

static void scores_fast(const struct cpu_device *d, const struct ifx_block_select *op, uint32_t query, uint64_t blocks, float *out)
{
    uint64_t per_page = op->plane.page_tokens / op->plane.ratio;
    for (uint64_t b = 0; b < blocks; b += per_page)
        d->kernels.block_scores(op->q + query * op->ldq, op->heads, op->plane.d, block_key(d, &op->plane, b),
                                blocks - b < per_page ? blocks - b : per_page, out + b);
}

/* The k-th largest of n values, 1 <= k <= n; shuffles them.  None is a NaN: a score is a sum of what was larger than zero. */
static float kth_largest(float *v, uint64_t n, uint64_t k)
{
    uint64_t low = 0, high = n - 1, want = k - 1;
    while (low < high) {
        float pivot = v[low + (high - low) / 2];
        uint64_t i = low, j = high;
        while (i <= j) {
            while (v[i] > pivot)
                i++;
            while (v[j] < pivot)
                j--;
            if (i > j)
                break;
            float t = v[i];
            v[i++] = v[j];
            v[j] = t;
            if (!j--)
                break;
        }
        if (want <= j && j != UINT64_MAX)
            high = j;
        else if (want >= i)
            low = i;
        else
            break;
    }
    return v[want];
}

/* Token positions of the chosen blocks, then of the tail. */
static void select_rows(const struct ifx_block_select *op, uint32_t query, float *scores, uint64_t blocks)
{
    uint32_t ratio = op->plane.ratio, n = 0;
    uint64_t keep = op->budget / ratio, visible = (uint64_t)op->positions[query] + 1, ties = 0;
    int32_t *rows = op->rows + query * op->ld_rows;
    float least = -1.0f;
    if (blocks > keep && keep) {
        float *copy = scores + blocks;
        memcpy(copy, scores, blocks * sizeof *copy);
        least = kth_largest(copy, blocks, keep);
        ties = keep;
        for (uint64_t b = 0; b < blocks; b++)
            ties -= scores[b] > least;
    }
    for (uint64_t b = 0; b < blocks && keep; b++) {
        bool tie = blocks > keep && scores[b] == least;
        if (blocks > keep && (scores[b] < least || (tie && !ties)))
            continue;
        ties -= tie;
        for (uint32_t i = 0; i < ratio; i++)
            rows[n++] = (int32_t)(b * ratio + i);
    }
    for (uint64_t t = blocks * ratio; t < visible; t++)
        rows[n++] = (int32_t)t;
    op->n_rows[query] = n;
}

struct select_run {
    struct cpu_device *d;
    const struct ifx_block_select *op;
};

static int32_t select_task(void *ctx, uint64_t task, uint32_t worker)
{
    const struct select_run *r = ctx;
    const struct ifx_block_select *op = r->op;
    float *scores = (float *)op->ws + worker * floats_each(op);
    uint64_t blocks = ((uint64_t)op->positions[task] + 1) / op->plane.ratio;
    if (blocks * op->plane.ratio > op->budget)
        (r->d->oracle ? scores_exact : scores_fast)(r->d, op, (uint32_t)task, blocks, scores);
    select_rows(op, (uint32_t)task, scores, blocks);
    return IFX_OK;
}

int32_t common_block_select(struct ifx_device *dev, void *stream, const struct ifx_block_select *op)
{
    struct select_run r = {(struct cpu_device *)dev, op};
    int32_t st = check_plane(dev, &op->plane);
    (void)stream;
    if (st)
        return st;
    if (!op->budget || op->budget % op->plane.ratio)
        return dev->host->error(dev->host, IFX_EINVAL, "device cpu: %u tokens are no number of blocks of %u", op->budget,
                                op->plane.ratio);
    for (uint32_t i = 0; i < op->n; i++)
        if (op->positions[i] < 0 || (uint32_t)op->positions[i] >= op->max_tokens)
            return dev->host->error(dev->host, IFX_EINVAL, "device cpu: position %d of at most %u tokens", op->positions[i],
                                    op->max_tokens);
    if (r.d->oracle) {
        for (uint32_t i = 0; i < op->n; i++)
            select_task(&r, i, 0);
        return IFX_OK;
    }
    uint64_t work = op->max_tokens / op->plane.ratio * (uint64_t)op->heads * op->plane.d * 100;
    return cpu_run(r.d, op->n, select_task, &r, work);
}
