/* SPDX-License-Identifier: Apache-2.0
 *
 * stop.c - stop strings in streamed text.  Each string is followed by its own failure function (Knuth, Morris, Pratt), so what is
 * held back is exactly the longest end of the text that begins a stop.  The stop completed first wins; of those completed at one byte,
 * the longest.
 */
#include "config.h"
#include "text_internal.h"
#include <string.h>

struct needle {
    char *text;
    uint32_t *fail; /* [len]: longest border of each prefix */
    uint64_t len, matched;
};
struct text_stop {
    struct needle *needles;
    uint32_t n;
    struct base_buf held;
    bool stopped;
    const char *which;
};

static int32_t needle_init(struct needle *k, const char *text)
{
    k->len = strlen(text);
    if (k->len == 0)
        return base_error(IFX_EINVAL, "stop string: an empty one would stop at once");
    if (!base_utf8_valid(text, k->len) || k->len >= TEXT_MAX_BYTES)
        return base_error(IFX_EINVAL, "stop string: not valid UTF-8");
    k->text = base_strdup(text);
    k->fail = base_calloc(k->len, sizeof(*k->fail));
    if (k->text == NULL || k->fail == NULL)
        return IFX_ENOMEM;
    for (uint32_t i = 1, b = 0; i < k->len; i++) {
        while (b > 0 && text[i] != text[b])
            b = k->fail[b - 1];
        if (text[i] == text[b])
            b++;
        k->fail[i] = b;
    }
    return IFX_OK;
}

int32_t text_stop_create(const char *const *stops, uint32_t n, struct text_stop **out)
{
    struct text_stop *s = base_calloc(1, sizeof(*s));
    int32_t st = s == NULL ? IFX_ENOMEM : IFX_OK;
    if (st == IFX_OK && (s->needles = base_calloc(n ? n : 1, sizeof(*s->needles))) == NULL)
        st = IFX_ENOMEM;
    for (uint32_t i = 0; i < n && st == IFX_OK; i++) {
        s->n = i + 1;
        st = needle_init(&s->needles[i], stops[i]);
    }
    if (st != IFX_OK) {
        text_stop_destroy(s);
        s = NULL;
    }
    *out = s;
    return st;
}

void text_stop_destroy(struct text_stop *s)
{
    if (s == NULL)
        return;
    for (uint32_t i = 0; i < s->n; i++) {
        base_free(s->needles[i].text);
        base_free(s->needles[i].fail);
    }
    base_free(s->needles);
    base_buf_free(&s->held);
    base_free(s);
}

/* Takes one byte; *hold: bytes at the end of the text that begin some stop; *found: length of the longest stop just completed. */
static void step(struct text_stop *s, char c, uint64_t *hold, uint64_t *found)
{
    *hold = *found = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        struct needle *k = &s->needles[i];
        while (k->matched > 0 && k->text[k->matched] != c)
            k->matched = k->fail[k->matched - 1];
        if (k->text[k->matched] == c)
            k->matched++;
        if (k->matched > *hold)
            *hold = k->matched;
        if (k->matched == k->len && k->len > *found) {
            *found = k->len;
            s->which = k->text;
        }
    }
}

static int32_t release(struct text_stop *s, uint64_t keep, struct base_buf *out)
{
    uint64_t n = s->held.len - keep;
    if (n == 0)
        return IFX_OK;
    int32_t st = base_buf_add(out, s->held.data, n);
    memmove(s->held.data, s->held.data + n, keep);
    s->held.len = keep;
    return st;
}

int32_t text_stop_feed(struct text_stop *s, const char *bytes, uint64_t n, struct base_buf *out, bool *stopped)
{
    uint64_t hold = 0, found = 0;
    int32_t st = IFX_OK;
    *stopped = s->stopped;
    if (s->stopped || n == 0)
        return IFX_OK;
    if (s->n == 0)
        return base_buf_add(out, bytes, n);
    for (uint64_t i = 0; i < n; i++) {
        if ((st = base_buf_add(&s->held, bytes + i, 1)) != IFX_OK)
            return st;
        step(s, bytes[i], &hold, &found);
        if (found > 0) {
            st = release(s, found, out);
            s->held.len = 0;
            s->stopped = *stopped = true;
            return st;
        }
    }
    return release(s, hold, out);
}

const char *text_stop_found(const struct text_stop *s)
{
    return s->stopped ? s->which : NULL;
}

int32_t text_stop_finish(struct text_stop *s, struct base_buf *out)
{
    int32_t st = s->stopped ? IFX_OK : release(s, 0, out);
    s->held.len = 0;
    for (uint32_t i = 0; i < s->n; i++)
        s->needles[i].matched = 0;
    return st;
}
