/* SPDX-License-Identifier: Apache-2.0
 *
 * pattern.c - split patterns.  tokenizer.json means them for Oniguruma; PCRE2 runs them.  What both read alike goes through, \s is
 * spelled out (PCRE2 counts U+180E among the spaces, Oniguruma does not), and what would mean something else is refused by name.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "config.h"
#include "text_internal.h"
#include <pcre2.h>
#include <string.h>

#define WHITE_SPACE "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define MAX_NESTING 64
#define MATCH_LIMIT 10000000u
#define JIT_STACK_MIN (64u << 10)
#define JIT_STACK_MAX (16u << 20)

struct text_pattern {
    pcre2_code *code;
    bool jit;
};

struct text_matcher {
    const struct text_pattern *pattern;
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

struct translate {
    const char *regex, *p; /* p: what is read next */
    struct base_buf *out;
    uint32_t depth;
    bool caseless[MAX_NESTING + 1];
    char last; /* literal letter before p in a caseless group, or 0 */
};

static int32_t refuse(const struct translate *t, const char *what)
{
    return base_error(IFX_EUNSUPPORTED, "split pattern: %s at byte %llu is not supported", what,
                      (unsigned long long)(t->p - t->regex));
}

static int32_t put(struct translate *t, const char *text)
{
    return base_buf_add(t->out, text, strlen(text));
}

static int32_t copy(struct translate *t, uint64_t n)
{
    int32_t st = base_buf_add(t->out, t->p, n);
    t->p += n;
    return st;
}

/* \p{L}, \P{Lu}, \p{^M}: general categories alone mean the same to both (scripts do not: PCRE2 takes script extensions). */
static int32_t property(struct translate *t)
{
    static const char major[] = "CLMNPSZ", *const minor[] = {"ncosf", "ultmo", "nce", "dlo", "cdseifo", "mcko", "slp"};
    const char *q = t->p + 2;
    if (*q != '{')
        return refuse(t, "\\p without braces");
    q++;
    if (*q == '^')
        q++;
    const char *m = *q ? strchr(major, *q) : NULL;
    if (m == NULL)
        return refuse(t, "a property that is not a general category");
    q++;
    if (*q != '}' && (*q == 0 || strchr(minor[m - major], *q) == NULL || *++q != '}'))
        return refuse(t, "a property that is not a general category");
    return copy(t, (uint64_t)(q + 1 - t->p));
}

static int32_t escape(struct translate *t, bool in_class)
{
    char c = t->p[1];
    switch (c) {
    case 's':
        t->p += 2;
        return put(t, in_class ? WHITE_SPACE : "[" WHITE_SPACE "]");
    case 'S':
        if (in_class)
            return refuse(t, "\\S in a class");
        t->p += 2;
        return put(t, "[^" WHITE_SPACE "]");
    case 'p':
    case 'P':
        return property(t);
    case 'd':
    case 'D':
    case 'r':
    case 'n':
    case 't':
    case 'f':
        return copy(t, 2);
    default:
        if ((c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`' && c != '_') ||
            (c >= '{' && c <= '~'))
            return copy(t, 2);
        return refuse(t, "an escape other than \\s \\S \\d \\D \\p \\P \\r \\n \\t \\f or a quoted sign");
    }
}

static int32_t class_body(struct translate *t)
{
    int32_t st = copy(t, t->p[1] == '^' ? 2 : 1);
    bool empty = true;
    while (st == IFX_OK && (*t->p != ']' || empty)) {
        if (*t->p == 0)
            return refuse(t, "a class without end");
        if (*t->p == '[' || *t->p == ']')
            return refuse(t, "an unquoted bracket in a class");
        if (t->p[0] == '&' && t->p[1] == '&')
            return refuse(t, "an intersection of classes");
        st = *t->p == '\\' ? escape(t, true) : copy(t, 1);
        empty = false;
    }
    return st == IFX_OK ? copy(t, 1) : st;
}

static int32_t open_group(struct translate *t)
{
    static const char *const kinds[] = {"(?:", "(?=", "(?!", "(?>", "(?i:"};
    uint64_t len = 1;
    bool caseless = t->caseless[t->depth];
    if (t->depth == MAX_NESTING)
        return refuse(t, "nesting this deep");
    if (t->p[1] == '?') {
        len = 0;
        for (uint32_t i = 0; i < 5; i++)
            if (strncmp(t->p, kinds[i], strlen(kinds[i])) == 0)
                len = strlen(kinds[i]);
        if (len == 0)
            return refuse(t, "a group other than (?: (?= (?! (?> (?i:");
        caseless = caseless || len == 4;
    } else if (t->p[1] == '*') {
        return refuse(t, "a (* group");
    }
    t->caseless[++t->depth] = caseless;
    return copy(t, len);
}

/* {n} {n,} {n,m}; Oniguruma reads a sign after it in its own way. */
static int32_t counted(struct translate *t)
{
    const char *q = t->p + 1;
    if (*q < '0' || *q > '9')
        return refuse(t, "a brace that is not {n}, {n,} or {n,m}");
    while (*q >= '0' && *q <= '9')
        q++;
    if (*q == ',')
        for (q++; *q >= '0' && *q <= '9';)
            q++;
    if (*q != '}' || q[1] == '+' || q[1] == '?' || q[1] == '*')
        return refuse(t, "a brace that is not {n}, {n,} or {n,m}");
    return copy(t, (uint64_t)(q + 1 - t->p));
}

/* Without regard to case Oniguruma also matches ss with one sharp s, and so on; PCRE2 does not. */
static int32_t literal(struct translate *t)
{
    char c = *t->p, low = c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
    if (t->caseless[t->depth]) {
        if ((uint8_t)c >= 0x80)
            return refuse(t, "a non-ASCII letter without regard to case");
        if ((t->last == 's' && (low == 's' || low == 't')) || (t->last == 'f' && (low == 'f' || low == 'i' || low == 'l')))
            return refuse(t, "ss, st, ff, fi or fl without regard to case");
    }
    t->last = low;
    return copy(t, 1);
}

static int32_t translate_one(struct translate *t)
{
    char c = *t->p, last = t->last;
    t->last = 0;
    switch (c) {
    case '\\':
        return escape(t, false);
    case '[':
        return class_body(t);
    case '(':
        return open_group(t);
    case ')':
        if (t->depth == 0)
            return refuse(t, "a closing bracket without its opening one");
        t->depth--;
        return copy(t, 1);
    case '{':
        return counted(t);
    case '^':
    case '$':
        return refuse(t, "an anchor");
    case '*':
    case '+':
    case '?':
    case '|':
    case '.':
        return copy(t, 1);
    default:
        t->last = last;
        return literal(t);
    }
}

int32_t text_pattern_translate(const char *regex, struct base_buf *out)
{
    struct translate t = {.regex = regex, .p = regex, .out = out};
    int32_t st = put(&t, "");
    while (*t.p != 0 && st == IFX_OK)
        st = translate_one(&t);
    if (st == IFX_OK && t.depth != 0)
        st = refuse(&t, "a group without end");
    return st;
}

static int32_t pcre_error(const char *what, int code)
{
    PCRE2_UCHAR message[160];
    pcre2_get_error_message(code, message, sizeof(message));
    return base_error(code == PCRE2_ERROR_NOMEMORY ? IFX_ENOMEM : IFX_EFORMAT, "%s: %s (PCRE2 error %d)", what,
                      (const char *)message, code);
}

static int32_t compile(struct text_pattern *p, const char *regex, uint64_t n)
{
    int code;
    uint32_t empty = 0;
    PCRE2_SIZE at;
    pcre2_compile_context *c = pcre2_compile_context_create(NULL);
    if (c == NULL)
        return base_error(IFX_ENOMEM, "out of memory: pattern");
    pcre2_set_newline(c, PCRE2_NEWLINE_LF);
    p->code = pcre2_compile((PCRE2_SPTR)regex, n, PCRE2_UTF | PCRE2_UCP, &code, &at, c);
    pcre2_compile_context_free(c);
    if (p->code == NULL)
        return pcre_error("split pattern", code);
    pcre2_pattern_info(p->code, PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty)
        return base_error(IFX_EUNSUPPORTED, "split pattern: it may match nothing at all, which is not supported");
    /* Without JIT (not built in, or no executable memory) the interpreter gives the same matches, slower. */
    p->jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
    if (!p->jit)
        base_fallback("pcre2-jit", "tokenizer: PCRE2 has no JIT here; splitting text is slower");
    return IFX_OK;
}

int32_t text_pattern_create(const char *regex, struct text_pattern **out)
{
    struct base_buf translated = {0};
    struct text_pattern *p = base_calloc(1, sizeof(*p));
    int32_t st = p == NULL ? IFX_ENOMEM : text_pattern_translate(regex, &translated);
    if (st == IFX_OK)
        st = compile(p, translated.data, translated.len);
    base_buf_free(&translated);
    if (st != IFX_OK) {
        text_pattern_destroy(p);
        p = NULL;
    }
    *out = p;
    return st;
}

void text_pattern_destroy(struct text_pattern *p)
{
    if (p == NULL)
        return;
    pcre2_code_free(p->code);
    base_free(p);
}

int32_t text_matcher_create(const struct text_pattern *p, struct text_matcher **out)
{
    struct text_matcher *m = base_calloc(1, sizeof(*m));
    *out = NULL;
    if (m == NULL)
        return IFX_ENOMEM;
    m->pattern = p;
    m->data = pcre2_match_data_create_from_pattern(p->code, NULL);
    m->context = pcre2_match_context_create(NULL);
    if (m->data == NULL || m->context == NULL) {
        text_matcher_destroy(m);
        return base_error(IFX_ENOMEM, "out of memory: pattern matching");
    }
    /* Set again for each text: see text_matcher_next. */
    pcre2_set_depth_limit(m->context, UINT32_MAX);
    pcre2_set_heap_limit(m->context, 1u << 20); /* KiB */
    if (p->jit && (m->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, NULL)) != NULL)
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
    *out = m;
    return IFX_OK;
}

void text_matcher_destroy(struct text_matcher *m)
{
    if (m == NULL)
        return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    base_free(m);
}

int32_t text_matcher_next(struct text_matcher *m, const char *s, uint64_t n, uint64_t from, uint64_t *start, uint64_t *end)
{
    /* A long run of blanks alone passes the default limit; a pattern that backtracks without end must still meet one. */
    uint64_t limit = MATCH_LIMIT + 16 * n;
    pcre2_set_match_limit(m->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    /* The caller's text is valid UTF-8; checking it again at each match would be quadratic. */
    int rc = pcre2_match(m->pattern->code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK, m->data, m->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(m->pattern->code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->data,
                         m->context);
    if (rc == PCRE2_ERROR_NOMATCH) {
        *start = *end = n;
        return IFX_OK;
    }
    if (rc < 0)
        return pcre_error("splitting the text", rc);
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(m->data);
    *start = v[0];
    *end = v[1];
    return IFX_OK;
}
