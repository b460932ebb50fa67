/* SPDX-License-Identifier: Apache-2.0
 *
 * answer.c - an answer taken apart while it is generated: thought, content, calls.
 *
 * Text is held back only while it may still turn out to be something else: the beginning of a tag, blanks before a call or before the end of the
 * thought, and a call until it is whole.  A call is handed out only when it parses, so its arguments are always valid JSON; what does not parse
 * is content, never lost.
 */
#include "config.h"
#include "answer_internal.h"
#include <string.h>

enum mode { START, THOUGHT, CONTENT, CALL };

struct text_answer {
    struct text_answer_options o;
    struct text_answer_sink sink;
    enum mode mode;
    struct base_buf held;
    uint64_t scanned;  /* bytes of held that the fence has seen */
    bool strip;        /* blanks at this point belong to a tag before them */
    bool trim_thought; /* newlines at this point are the tag's */
    uint32_t n_calls;
    /* Code fences: calls inside them are quotations. */
    bool fenced, line_head;
    uint32_t ticks;
    char last;
};

static const char think_open[] = "<think>", think_close[] = "</think>", call_open[] = "<tool_call>";

int32_t text_answer_create(const struct text_answer_options *o, const struct text_answer_sink *sink, struct text_answer **out)
{
    struct text_answer *a = base_calloc(1, sizeof(*a));
    *out = a;
    if (a == NULL)
        return IFX_ENOMEM;
    a->o = *o;
    a->sink = *sink;
    a->mode = !o->thought ? CONTENT : o->in_thought ? THOUGHT : START;
    a->trim_thought = true;
    a->line_head = true;
    return IFX_OK;
}

void text_answer_destroy(struct text_answer *a)
{
    if (a == NULL)
        return;
    base_buf_free(&a->held);
    base_free(a);
}

uint32_t text_answer_calls(const struct text_answer *a)
{
    return a->n_calls;
}

static bool blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static void drop(struct text_answer *a, uint64_t n)
{
    memmove(a->held.data, a->held.data + n, a->held.len - n);
    a->held.len -= n;
    a->scanned = a->scanned > n ? a->scanned - n : 0;
}

static int32_t give(struct text_answer *a, bool thought, uint64_t n)
{
    int32_t st = n == 0 ? IFX_OK : (thought ? a->sink.thought : a->sink.content)(a->sink.ctx, a->held.data, n);
    drop(a, n);
    return st;
}

/* How much of `tag` the n bytes at s begin with: all of it, or all of s (then more may come); 0 otherwise. */
static uint64_t begins(const char *s, uint64_t n, const char *tag)
{
    uint64_t len = strlen(tag), k = n < len ? n : len;
    return memcmp(s, tag, k) == 0 ? k : 0;
}

static void watch_fence(struct text_answer *a, char c)
{
    a->last = c;
    if (c == '\n') {
        a->line_head = true;
        a->ticks = 0;
    } else if (a->line_head && c == '`') {
        if (++a->ticks == 3)
            a->fenced = !a->fenced;
    } else if (!(a->line_head && c == ' ' && a->ticks == 0)) {
        a->line_head = false;
    }
}

static int32_t at_start(struct text_answer *a, bool last, bool *more)
{
    uint64_t k = 0;
    while (k < a->held.len && blank(a->held.data[k]))
        k++;
    uint64_t got = begins(a->held.data + k, a->held.len - k, think_open);
    *more = true;
    if (got == strlen(think_open)) {
        drop(a, k + got);
        a->mode = THOUGHT;
    } else if (!last && k + got == a->held.len) {
        *more = false;
    } else {
        a->mode = CONTENT;
    }
    return IFX_OK;
}

static int32_t in_thought(struct text_answer *a, bool last, bool *more)
{
    uint64_t n = 0;
    while (a->trim_thought && n < a->held.len && a->held.data[n] == '\n')
        n++;
    drop(a, n);
    *more = false;
    if (a->held.len == 0)
        return IFX_OK;
    a->trim_thought = false;
    char *end = memmem(a->held.data, a->held.len, think_close, strlen(think_close));
    uint64_t keep = a->held.len;
    if (end != NULL) {
        keep = (uint64_t)(end - a->held.data);
    } else {
        for (uint64_t k = a->held.len > strlen(think_close) ? a->held.len - strlen(think_close) : 0; k < a->held.len; k++)
            if (begins(a->held.data + k, a->held.len - k, think_close) == a->held.len - k) {
                keep = k;
                break;
            }
    }
    uint64_t tag = keep;
    while (keep > 0 && a->held.data[keep - 1] == '\n')
        keep--;
    if (end == NULL)
        return give(a, true, last ? a->held.len : keep);
    int32_t st = give(a, true, keep);
    drop(a, tag - keep + strlen(think_close));
    a->mode = CONTENT;
    a->strip = true;
    *more = true;
    return st;
}

static int32_t in_content(struct text_answer *a, bool last, bool *more)
{
    uint64_t n = 0;
    *more = false;
    while (a->strip && n < a->held.len && blank(a->held.data[n]))
        n++;
    drop(a, n);
    if (a->held.len == 0)
        return IFX_OK;
    a->strip = false;
    if (!a->o.calls)
        return give(a, false, a->held.len);
    uint64_t at = a->scanned;
    for (; at < a->held.len; at++) {
        uint64_t rest = a->held.len - at, got = begins(a->held.data + at, rest, call_open);
        bool quoted = a->fenced || a->last == '`';
        if (got == strlen(call_open) && !quoted) {
            a->mode = CALL;
            break;
        }
        if (got == rest && rest < strlen(call_open) && !quoted && !last)
            break;
        watch_fence(a, a->held.data[at]);
    }
    a->scanned = at;
    uint64_t keep = at;
    while (keep > 0 && blank(a->held.data[keep - 1]))
        keep--;
    if (a->mode != CALL)
        return give(a, false, last ? at : keep);
    int32_t st = give(a, false, keep);
    drop(a, at - keep);
    *more = true;
    return st;
}

static int32_t in_call(struct text_answer *a, bool last, bool *more)
{
    struct answer_call call = {0};
    uint64_t used = 0;
    *more = true;
    enum answer_parse got = answer_parse_call(a->held.data, a->held.len, last, a->o.tools, &call, &used);
    int32_t st = IFX_OK;
    if (got == ANSWER_MORE) {
        *more = false;
    } else if (got == ANSWER_CALL) {
        st = a->sink.call(a->sink.ctx, a->n_calls++, call.name, call.arguments);
        drop(a, used);
        a->mode = CONTENT;
        a->strip = true;
    } else if (got == ANSWER_TEXT) {
        for (uint64_t i = 0; i < strlen(call_open); i++)
            watch_fence(a, call_open[i]);
        a->scanned = strlen(call_open);
        a->mode = CONTENT;
    } else {
        st = IFX_ENOMEM;
    }
    answer_call_free(&call);
    return st;
}

static int32_t run(struct text_answer *a, bool last)
{
    static int32_t (*const steps[])(struct text_answer *, bool, bool *) = {at_start, in_thought, in_content, in_call};
    int32_t st = IFX_OK;
    for (bool more = true; more && st == IFX_OK && a->held.len > 0;)
        st = steps[a->mode](a, last, &more);
    return st;
}

int32_t text_answer_feed(struct text_answer *a, const char *text, uint64_t n)
{
    int32_t st = n == 0 ? IFX_OK : base_buf_add(&a->held, text, n);
    return st == IFX_OK ? run(a, false) : st;
}

int32_t text_answer_finish(struct text_answer *a)
{
    return run(a, true);
}
