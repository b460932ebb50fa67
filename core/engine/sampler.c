/* SPDX-License-Identifier: Apache-2.0
 *
 * sampler.c - from a row of logits to a token.
 *
 * Random numbers: the n-th pick of a seed takes the n-th output of splitmix64 started at the seed (Steele, Lea and Flood 2014), its upper
 * 53 bits as a fraction in [0, 1).  Probabilities use ifx_exp, so the same logits, seed and settings give the same token on every
 * machine.
 */
#include "engine.h"

#include <infernix/numerics.h>
#include <math.h>
#include <string.h>

struct candidate {
    float logit;
    int32_t id;
};

struct ifx_sampler {
    struct ifx_sampling o;
    uint32_t vocab;
    uint64_t random;
    uint32_t *history;   /* [vocab] as in struct ifx_sample; NULL when no penalty is on */
    const void *copy;    /* where a device has a copy of it, or NULL */
    int32_t uncounted;   /* the device's copy counts this token, the history does not yet; -1: they are the same */
    float *logits;       /* penalised copy */
    struct candidate *heap;
    double *p;
};

int32_t ifx_sampler_create(const struct ifx_sampling *o, uint32_t vocab, struct ifx_sampler **out)
{
    if (!(o->temperature >= 0 && o->temperature <= 1e3f) || !(o->top_p > 0 && o->top_p <= 1) ||
        !(o->min_p >= 0 && o->min_p <= 1) || !(o->repetition_penalty > 0) || !vocab)
        return base_error(IFX_EINVAL, "sampling: temperature >= 0, 0 < top-p <= 1, 0 <= min-p <= 1 and repetition penalty > 0");
    struct ifx_sampler *s = base_calloc(1, sizeof *s);
    if (!s)
        return IFX_ENOMEM;
    s->o = *o;
    s->vocab = vocab;
    s->random = o->seed;
    s->heap = base_calloc(vocab, sizeof *s->heap);
    s->p = base_calloc(vocab, sizeof *s->p);
    bool penalties = o->presence_penalty != 0 || o->frequency_penalty != 0 || o->repetition_penalty != 1;
    s->uncounted = -1;
    if (penalties) {
        s->history = base_calloc(vocab, sizeof *s->history);
        s->logits = base_calloc(vocab, sizeof *s->logits);
    }
    if (!s->heap || !s->p || (penalties && (!s->history || !s->logits))) {
        ifx_sampler_destroy(s);
        return IFX_ENOMEM;
    }
    *out = s;
    return IFX_OK;
}

void ifx_sampler_destroy(struct ifx_sampler *s)
{
    if (!s)
        return;
    base_free(s->history);
    base_free(s->logits);
    base_free(s->heap);
    base_free(s->p);
    base_free(s);
}

void ifx_sampler_accept(struct ifx_sampler *s, int32_t token)
{
    if (s->history && token >= 0 && (uint32_t)token < s->vocab)
        s->history[token]++;
    if (token != s->uncounted)
        s->copy = NULL;
    s->uncounted = -1;
}

void ifx_sampler_prompt(struct ifx_sampler *s, const int32_t *tokens, uint64_t n)
{
    for (uint64_t i = 0; s->history && i < n; i++)
        if (tokens[i] >= 0 && (uint32_t)tokens[i] < s->vocab)
            s->history[tokens[i]] |= IFX_HISTORY_SEEN;
    s->copy = NULL;
}

static double next_fraction(struct ifx_sampler *s)
{
    uint64_t z = s->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

double sampler_draw(struct ifx_sampler *s)
{
    return next_fraction(s);
}

const struct ifx_sampling *sampler_settings(const struct ifx_sampler *s)
{
    return &s->o;
}

const uint32_t *sampler_history(const struct ifx_sampler *s)
{
    return s->history;
}

bool sampler_copied(const struct ifx_sampler *s, const void *copy)
{
    return s->copy == copy && s->uncounted < 0;
}

void sampler_counted(struct ifx_sampler *s, const void *copy, int32_t token)
{
    s->copy = copy;
    s->uncounted = token;
}

static const float *penalise(struct ifx_sampler *s, const float *logits)
{
    if (!s->history)
        return logits;
    for (uint32_t i = 0; i < s->vocab; i++) {
        uint32_t count = s->history[i] & IFX_HISTORY_COUNT;
        float v = logits[i];
        if (s->history[i])
            v = v > 0 ? v / s->o.repetition_penalty : v * s->o.repetition_penalty;
        if (count)
            v -= s->o.presence_penalty + s->o.frequency_penalty * (float)count;
        s->logits[i] = v;
    }
    return s->logits;
}

static int32_t first_largest(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

/* Larger logit first; of equals the lower id. */
static bool before(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/* The heap's root is the last in order. */
static void sift(struct candidate *h, uint32_t n, uint32_t at)
{
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n)
            return;
        if (child + 1 < n && before(h[child], h[child + 1]))
            child++;
        if (!before(h[at], h[child]))
            return;
        struct candidate t = h[at];
        h[at] = h[child];
        h[child] = t;
        at = child;
    }
}

/* The first k in order, sorted. */
static void select_first(struct ifx_sampler *s, const float *logits, uint32_t k)
{
    struct candidate *h = s->heap;
    for (uint32_t i = 0; i < k; i++)
        h[i] = (struct candidate){logits[i], (int32_t)i};
    for (uint32_t i = k / 2; i-- > 0;)
        sift(h, k, i);
    for (uint32_t i = k; i < s->vocab; i++) {
        struct candidate c = {logits[i], (int32_t)i};
        if (before(c, h[0])) {
            h[0] = c;
            sift(h, k, 0);
        }
    }
    for (uint32_t n = k; n > 1; n--) {
        struct candidate t = h[0];
        h[0] = h[n - 1];
        h[n - 1] = t;
        sift(h, n - 1, 0);
    }
}

/* ifx_exp ends at a small number, and what is forbidden must weigh nothing. */
static double weight(const struct ifx_sampler *s, float logit, float most)
{
    return logit == -INFINITY ? 0 : (double)ifx_exp((logit - most) / s->o.temperature);
}

/* Weight of each candidate relative to the first; returns their sum. */
static double weigh(struct ifx_sampler *s, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += s->p[i] = weight(s, s->heap[i].logit, s->heap[0].logit);
    return sum;
}

/* How many of the n sorted candidates top-p and min-p leave; total is the mass that top-p is a part of. */
static uint32_t cut(const struct ifx_sampler *s, uint32_t n, double total, bool *reached)
{
    double mass = 0;
    uint32_t keep = 0;
    *reached = false;
    while (keep < n && !*reached) {
        mass += s->p[keep++];
        *reached = s->o.top_p < 1 && mass >= (double)s->o.top_p * total;
    }
    uint32_t by_p = keep;
    while (keep > 1 && s->p[keep - 1] < (double)s->o.min_p)
        keep--;
    *reached |= keep < by_p;
    return keep;
}

/* Sorted candidates that the filters leave; their weights are in p. */
static uint32_t filter(struct ifx_sampler *s, const float *logits)
{
    bool reached;
    if (s->o.top_k && s->o.top_k < s->vocab) {
        select_first(s, logits, s->o.top_k);
        return cut(s, s->o.top_k, weigh(s, s->o.top_k), &reached);
    }
    double total = 0;
    float most = logits[first_largest(logits, s->vocab)];
    for (uint32_t i = 0; i < s->vocab; i++)
        total += weight(s, logits[i], most);
    /* Sorting the whole vocabulary is slow and hardly ever needed. */
    for (uint64_t k = 256;; k *= 8) {
        uint32_t n = k < s->vocab ? (uint32_t)k : s->vocab;
        select_first(s, logits, n);
        weigh(s, n);
        uint32_t keep = cut(s, n, total, &reached);
        if (reached || n == s->vocab)
            return keep;
    }
}

/* Without filters the ids are walked in order: no sorting. */
static int32_t pick_unfiltered(struct ifx_sampler *s, const float *logits)
{
    float most = logits[first_largest(logits, s->vocab)];
    double total = 0, mass = 0;
    for (uint32_t i = 0; i < s->vocab; i++)
        total += s->p[i] = weight(s, logits[i], most);
    double at = next_fraction(s) * total;
    uint32_t last = 0;
    for (uint32_t i = 0; i < s->vocab; i++) {
        mass += s->p[i];
        if (s->p[i] > 0)
            last = i;
        if (mass > at)
            return (int32_t)i;
    }
    return (int32_t)last;
}

/* Forbidden tokens at minus infinity, in the sampler's copy. */
static int32_t restrict_to(struct ifx_sampler *s, const uint64_t *allowed, const float **logits)
{
    bool any = false;
    if (!s->logits && (s->logits = base_calloc(s->vocab, sizeof *s->logits)) == NULL)
        return IFX_ENOMEM;
    for (uint32_t i = 0; i < s->vocab; i++) {
        bool may = allowed[i / 64] >> (i % 64) & 1;
        s->logits[i] = may ? (*logits)[i] : -INFINITY;
        any |= may;
    }
    *logits = s->logits;
    return any ? IFX_OK : base_error(IFX_EINVAL, "no token of the vocabulary is allowed here");
}

int32_t ifx_sampler_pick(struct ifx_sampler *s, const float *logits, int32_t *token)
{
    return ifx_sampler_pick_among(s, logits, NULL, token);
}

void ifx_logprobs(const float *logits, uint32_t vocab, int32_t token, uint32_t n, struct ifx_logprob *out)
{
    float most = logits[first_largest(logits, vocab)];
    double total = 0;
    uint32_t k = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        total += exp((double)(logits[i] - most));
        struct candidate c = {logits[i], (int32_t)i};
        uint32_t at = k;
        /* n is small: insertion into a sorted list. */
        while (at > 0 && before(c, (struct candidate){out[at].logprob, out[at].token}))
            at--;
        if (at >= n)
            continue;
        k += k < n;
        memmove(out + at + 2, out + at + 1, (k - at - 1) * sizeof *out);
        out[at + 1] = (struct ifx_logprob){c.id, c.logit};
    }
    double log_total = log(total) + (double)most;
    out[0] = (struct ifx_logprob){token, logits[token]};
    for (uint32_t i = 0; i <= k; i++)
        out[i].logprob = (float)((double)out[i].logprob - log_total);
}

int32_t ifx_sampler_pick_among(struct ifx_sampler *s, const float *logits, const uint64_t *allowed, int32_t *token)
{
    if (!engine_finite(logits, s->vocab))
        return base_error(IFX_ENONFINITE, "the logits are not finite numbers");
    logits = penalise(s, logits);
    int32_t st = allowed ? restrict_to(s, allowed, &logits) : IFX_OK;
    if (st)
        return st;
    if (s->o.temperature == 0) {
        *token = first_largest(logits, s->vocab);
        return IFX_OK;
    }
    if (!s->o.top_k && s->o.top_p >= 1 && s->o.min_p == 0) {
        *token = pick_unfiltered(s, logits);
        return IFX_OK;
    }
    uint32_t n = filter(s, logits);
    double total = 0, mass = 0;
    for (uint32_t i = 0; i < n; i++)
        total += s->p[i];
    double at = next_fraction(s) * total;
    *token = s->heap[0].id;
    for (uint32_t i = 0; i < n; i++) {
        mass += s->p[i];
        if (s->p[i] > 0)
            *token = s->heap[i].id;
        if (mass > at)
            break;
    }
    return IFX_OK;
}
