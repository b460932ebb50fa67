/* SPDX-License-Identifier: Apache-2.0
 *
 * added.c - tokens spelled in the text: leftmost, then longest; whole words only and swallowed spaces where the file says so.
 */
#include "config.h"
#include "text_internal.h"
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    const struct text_added *x = *(const struct text_added *const *)a, *y = *(const struct text_added *const *)b;
    uint32_t n = x->pattern_len < y->pattern_len ? x->pattern_len : y->pattern_len;
    int c = memcmp(x->pattern, y->pattern, n);
    if (c != 0)
        return c;
    if (x->pattern_len != y->pattern_len)
        return x->pattern_len < y->pattern_len ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

int32_t text_added_set_build(struct text_added_set *set, struct text_added *added, uint32_t n, bool normalized)
{
    set->n = 0;
    if (n == 0)
        return IFX_OK;
    set->sorted = base_calloc(n, sizeof(struct text_added *));
    if (set->sorted == NULL)
        return IFX_ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        if (added[i].normalized == normalized && added[i].pattern_len > 0)
            set->sorted[set->n++] = &added[i];
    qsort(set->sorted, set->n, sizeof(struct text_added *), compare);
    return IFX_OK;
}

/* First of [lo, hi) whose byte at `depth` is at least c. */
static uint32_t lower(const struct text_added_set *set, uint32_t lo, uint32_t hi, uint32_t depth, uint32_t c)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        const struct text_added *a = set->sorted[mid];
        if (a->pattern_len <= depth || (uint8_t)a->pattern[depth] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static const struct text_added *longest(const struct text_added_set *set, const char *s, uint32_t n)
{
    const struct text_added *best = NULL;
    uint32_t lo = 0, hi = set->n;
    for (uint32_t depth = 0; depth < n && lo < hi; depth++) {
        uint32_t c = (uint8_t)s[depth];
        lo = lower(set, lo, hi, depth, c);
        hi = lower(set, lo, hi, depth, c + 1);
        if (lo < hi && set->sorted[lo]->pattern_len == depth + 1)
            best = set->sorted[lo];
    }
    return best;
}

static uint32_t char_before(const char *s, uint32_t at, uint32_t *len)
{
    uint32_t from = at - 1;
    while (from > 0 && ((uint8_t)s[from] & 0xc0) == 0x80)
        from--;
    return text_utf8_get(s + from, len);
}

static bool whole_word(const char *s, uint32_t n, uint32_t start, uint32_t end)
{
    uint32_t len;
    if (start > 0 && text_is_word(char_before(s, start, &len)))
        return false;
    return end == n || !text_is_word(text_utf8_get(s + end, &len));
}

static void stretch(const struct text_added *a, const char *s, uint32_t n, uint32_t floor, uint32_t *start, uint32_t *end)
{
    uint32_t len;
    if (a->lstrip)
        while (*start > floor && text_is_space(char_before(s, *start, &len)))
            *start -= len;
    if (a->rstrip)
        while (*end < n && text_is_space(text_utf8_get(s + *end, &len)))
            *end += len;
}

const struct text_added *text_added_next(const struct text_added_set *set, const char *s, uint32_t n, uint32_t floor,
                                         uint32_t *pos, uint32_t *start, uint32_t *end)
{
    while (set->n > 0 && *pos < n) {
        const struct text_added *a = longest(set, s + *pos, n - *pos);
        if (a == NULL) {
            (*pos)++;
            continue;
        }
        *start = *pos;
        *pos = *end = *pos + a->pattern_len;
        if (a->single_word && !whole_word(s, n, *start, *end))
            continue;
        stretch(a, s, n, floor, start, end);
        return a;
    }
    return NULL;
}
