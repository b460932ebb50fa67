/* SPDX-License-Identifier: Apache-2.0
 *
 * grammar.c - a machine that reads an answer byte by byte, and the mask of the tokens that it can read next.
 *
 * The machine is a stack of what is open: values, lists, objects.  Tokens are tried in the order of their bytes, so that what they begin with in common
 * is read once; inside a text, the tokens that only go on with it are known beforehand.
 */
#include "config.h"
#include "grammar_internal.h"
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH  32u  /* of open lists and objects */
#define MAX_BLANKS 32u  /* a newline and an indent: a model must not go on with them for ever */
#define MAX_DIGITS 32u
#define MAX_TOKEN  128u /* bytes; longer tokens are never allowed */

/* ---- lexicon ---- */

struct entry {
    const char *bytes;
    uint32_t len, common; /* bytes in common with the one before in its list */
    int32_t id;
};
struct text_lexicon {
    uint32_t vocab;
    char *arena;
    struct entry *all, *hard; /* hard: those that inside a text do not only go on with it */
    uint32_t n_all, n_hard;
    uint64_t *plain; /* bits of the others */
    const struct entry **by_id; /* NULL: special or empty */
};

static int by_bytes(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    uint32_t n = x->len < y->len ? x->len : y->len;
    int c = memcmp(x->bytes, y->bytes, n);
    return c != 0 ? c : (x->len > y->len) - (x->len < y->len);
}

static void set_common(struct entry *list, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        uint32_t k = 0;
        while (k < list[i].len && k < list[i - 1].len && list[i].bytes[k] == list[i - 1].bytes[k])
            k++;
        list[i].common = k;
    }
}

static bool only_text(const char *s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == '"' || s[i] == '\\')
            return false;
    return base_utf8_valid(s, n);
}

static int32_t collect(const struct text_tokenizer *t, struct text_lexicon *l)
{
    struct base_buf b = {0};
    uint64_t *at = base_calloc(l->vocab, sizeof *at);
    int32_t st = at != NULL ? IFX_OK : IFX_ENOMEM;
    for (uint32_t i = 0; i < l->vocab && !st; i++) {
        uint64_t from = b.len;
        st = text_is_special(t, (int32_t)i) ? IFX_OK : text_token_bytes(t, (int32_t)i, &b);
        if (b.len > from && b.len - from <= MAX_TOKEN) {
            at[l->n_all] = from;
            l->all[l->n_all++] = (struct entry){.len = (uint32_t)(b.len - from), .id = (int32_t)i};
        }
    }
    for (uint32_t i = 0; i < l->n_all && !st; i++)
        l->all[i].bytes = b.data + at[i];
    base_free(at);
    l->arena = b.data;
    return st;
}

int32_t text_lexicon_create(const struct text_tokenizer *t, uint32_t vocab, struct text_lexicon **out)
{
    struct text_lexicon *l = base_calloc(1, sizeof *l);
    *out = l;
    if (l == NULL)
        return IFX_ENOMEM;
    l->vocab = vocab;
    l->all = base_calloc(vocab, sizeof *l->all);
    l->hard = base_calloc(vocab, sizeof *l->hard);
    l->by_id = base_calloc(vocab, sizeof(struct entry *));
    l->plain = base_calloc((vocab + 63) / 64, sizeof *l->plain);
    int32_t st = l->all && l->hard && l->by_id && l->plain ? collect(t, l) : IFX_ENOMEM;
    if (st) {
        text_lexicon_destroy(l);
        *out = NULL;
        return st;
    }
    qsort(l->all, l->n_all, sizeof *l->all, by_bytes);
    set_common(l->all, l->n_all);
    for (uint32_t i = 0; i < l->n_all; i++) {
        l->by_id[l->all[i].id] = &l->all[i];
        if (only_text(l->all[i].bytes, l->all[i].len))
            l->plain[l->all[i].id / 64] |= 1ull << (l->all[i].id % 64);
        else
            l->hard[l->n_hard++] = l->all[i];
    }
    set_common(l->hard, l->n_hard);
    return IFX_OK;
}

void text_lexicon_destroy(struct text_lexicon *l)
{
    if (l == NULL)
        return;
    base_free(l->all);
    base_free(l->hard);
    base_free(l->by_id);
    base_free(l->plain);
    base_free(l->arena);
    base_free(l);
}

/* ---- grammars ---- */

static int32_t begin_grammar(const struct text_lexicon *l, uint32_t flags, struct text_grammar **out)
{
    struct text_grammar *g = base_calloc(1, sizeof *g);
    *out = g;
    if (g == NULL)
        return IFX_ENOMEM;
    g->lexicon = l;
    g->in_thought = flags & TEXT_GRAMMAR_IN_THOUGHT;
    g->thought = g->in_thought || flags & TEXT_GRAMMAR_THOUGHT;
    return IFX_OK;
}

int32_t text_grammar_json(const struct text_lexicon *l, const json_t *schema, const char *where, uint32_t flags, struct text_grammar **out)
{
    json_t *any = schema == NULL ? json_pack("{s:s}", "type", "object") : NULL;
    int32_t st = begin_grammar(l, flags, out);
    if (!st)
        st = grammar_compile(*out, schema != NULL ? schema : any, where, &(*out)->root);
    json_decref(any);
    if (st) {
        text_grammar_destroy(*out);
        *out = NULL;
    }
    return st;
}

static int32_t add_call(struct text_grammar *g, const json_t *tool)
{
    const json_t *f = json_object_get(tool, "function"), *parameters = json_object_get(f, "parameters");
    json_t *any = json_pack("{s:s}", "type", "object");
    uint32_t node;
    char *name = json_dumps(json_object_get(f, "name"), JSON_ENCODE_ANY);
    char *text = name != NULL ? base_format("<tool_call>\n{\"name\": %s, \"arguments\": ", name) : NULL;
    int32_t st = text == NULL || any == NULL ? IFX_ENOMEM : json_is_object(parameters) ? grammar_compile(g, parameters, "parameters", &node) : IFX_EUNSUPPORTED;
    if (st == IFX_EUNSUPPORTED || (!st && (g->nodes[node].types != GRAMMAR_OBJECT || g->nodes[node].literal))) {
        /* Nodes of the attempt stay unused until the grammar goes. */
        st = grammar_compile(g, any, "parameters", &node);
    }
    if (!st)
        st = grammar_add_text(&g->nodes[g->root], text, node);
    free(name);
    base_free(text);
    json_decref(any);
    return st;
}

int32_t text_grammar_calls(const struct text_lexicon *l, const json_t *tools, uint32_t flags, struct text_grammar **out)
{
    const json_t *tool;
    size_t i;
    int32_t st = begin_grammar(l, flags, out);
    if (!st)
        st = grammar_add_node(*out, 0, &(*out)->root);
    if (!st)
        (*out)->nodes[(*out)->root].calls = true;
    json_array_foreach(tools, i, tool)
        if (!st)
            st = add_call(*out, tool);
    if (st) {
        text_grammar_destroy(*out);
        *out = NULL;
    }
    return st;
}

void text_grammar_destroy(struct text_grammar *g)
{
    if (g == NULL)
        return;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        for (uint32_t k = 0; k < g->nodes[i].n_texts; k++)
            base_free(g->nodes[i].texts[k]);
        base_free(g->nodes[i].texts);
        base_free(g->nodes[i].values);
    }
    base_free(g->nodes);
    base_free(g);
}

/* ---- the machine ---- */

enum phase {
    VALUE,      /* its first byte is next */
    TEXTS,      /* inside one of the node's texts that `live` names, `count` bytes of it read */
    WORD,       /* inside null, true or false: `live` is which */
    STRING, ESCAPE, HEX1, HEX2, HEX3, HEX4, /* `count` characters read */
    MINUS, ZERO, WHOLE, DOT, FRACTION, EXP, EXP_SIGN, EXP_DIGITS, /* `count` digits read */
    OBJECT_FIRST, OBJECT_KEY, OBJECT_COLON, OBJECT_NEXT, OBJECT_AFTER, /* `live`: keys that may come; `seen`: those that were there */
    ARRAY_FIRST, ARRAY_AFTER, /* `count` items read */
    CALL_CLOSE, /* `count` bytes of what ends a call read */
    THINK_OPEN, THINK, /* `count` bytes of the tag read */
};

struct frame {
    uint32_t node;
    uint8_t phase;
    uint8_t utf8_left, utf8_low, utf8_high; /* bytes of a character still to come, range of the next */
    bool surrogate;                         /* an escape began with d: 0 to 7 must follow */
    uint64_t live, seen, count;
};
struct machine {
    uint32_t n, blanks;
    struct frame stack[MAX_DEPTH];
};

static const char *const words[] = {"null", "true", "false"};
static const char call_close[] = "}\n</tool_call>", think_open[] = "<think>", think_close[] = "</think>";

struct text_grammar_state {
    const struct text_grammar *g;
    struct machine now;
    struct machine path[MAX_TOKEN + 1]; /* after each byte of the token being tried */
};

static void copy(struct machine *to, const struct machine *from)
{
    to->n = from->n;
    to->blanks = from->blanks;
    memcpy(to->stack, from->stack, from->n * sizeof(struct frame));
}

static bool push(struct machine *m, uint32_t node, uint8_t phase)
{
    if (m->n == MAX_DEPTH || node == GRAMMAR_NONE)
        return false;
    m->stack[m->n++] = (struct frame){.node = node, .phase = phase};
    return true;
}

static bool blank(unsigned char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool digit(unsigned char c)
{
    return c >= '0' && c <= '9';
}

static uint64_t all_texts(const struct grammar_node *n)
{
    return n->n_texts == 64 ? UINT64_MAX : (1ull << n->n_texts) - 1;
}

/* The live texts whose next byte is c. */
static uint64_t following(const struct grammar_node *n, uint64_t live, uint64_t at, unsigned char c)
{
    uint64_t next = 0;
    for (uint32_t i = 0; i < n->n_texts; i++)
        if (live >> i & 1 && strlen(n->texts[i]) > at && (unsigned char)n->texts[i][at] == c)
            next |= 1ull << i;
    return next;
}

/* The live text that ends here, or -1. */
static int ended(const struct grammar_node *n, uint64_t live, uint64_t at)
{
    for (uint32_t i = 0; i < n->n_texts; i++)
        if (live >> i & 1 && strlen(n->texts[i]) == at)
            return (int)i;
    return -1;
}

static bool step(const struct text_grammar *g, struct machine *m, unsigned char c);

static bool pop(struct machine *m)
{
    m->n--;
    return true;
}

/* Ends the value in hand at a byte that is not its own. */
static bool pop_before(const struct text_grammar *g, struct machine *m, unsigned char c)
{
    pop(m);
    return m->n > 0 && step(g, m, c);
}

static bool begin_value(const struct grammar_node *n, struct frame *f, unsigned char c)
{
    static const uint32_t word_types[] = {GRAMMAR_NULL, GRAMMAR_BOOLEAN, GRAMMAR_BOOLEAN};
    if (n->literal || n->calls) {
        f->live = following(n, all_texts(n), 0, c);
        f->count = 1;
        f->phase = TEXTS;
        return f->live != 0;
    }
    for (uint32_t i = 0; i < 3; i++)
        if (c == (unsigned char)words[i][0] && n->types & word_types[i]) {
            f->phase = WORD;
            f->live = i;
            f->count = 1;
            return true;
        }
    f->count = 0;
    if (c == '"' && n->types & GRAMMAR_STRING)
        f->phase = STRING;
    else if (c == '{' && n->types & GRAMMAR_OBJECT)
        f->phase = OBJECT_FIRST;
    else if (c == '[' && n->types & GRAMMAR_ARRAY)
        f->phase = ARRAY_FIRST;
    else if (n->types & (GRAMMAR_INTEGER | GRAMMAR_NUMBER) && (c == '-' || digit(c)))
        f->phase = c == '-' ? MINUS : c == '0' ? ZERO : WHOLE;
    else
        return false;
    return true;
}

static bool step_texts(const struct text_grammar *g, const struct grammar_node *n, struct machine *m, struct frame *f, unsigned char c)
{
    uint64_t next = following(n, f->live, f->count, c);
    int whole = ended(n, f->live, f->count);
    if (next == 0)
        return whole >= 0 && !n->calls && pop_before(g, m, c);
    f->live = next;
    f->count++;
    whole = ended(n, f->live, f->count);
    if (n->calls && whole >= 0) {
        uint32_t value = n->values[whole];
        f->phase = CALL_CLOSE;
        f->count = 0;
        return push(m, value, VALUE);
    }
    /* At its end, unless a longer one goes on from here. */
    for (uint32_t i = 0; whole >= 0 && i < n->n_texts; i++)
        if ((int)i != whole && f->live >> i & 1 && strlen(n->texts[i]) > f->count)
            return true;
    return whole < 0 || pop(m);
}

/* One byte of a character of a text. */
static bool step_utf8(struct frame *f, unsigned char c)
{
    if (f->utf8_left > 0) {
        if (c < f->utf8_low || c > f->utf8_high)
            return false;
        f->utf8_low = 0x80;
        f->utf8_high = 0xbf;
        f->utf8_left--;
        return true;
    }
    f->utf8_low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    f->utf8_high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    f->utf8_left = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : c >= 0xc2 ? 1 : 0;
    f->count++;
    return c < 0x80 || (c >= 0xc2 && c <= 0xf4);
}

static bool step_string(const struct grammar_node *n, bool key, struct machine *m, struct frame *f, unsigned char c)
{
    uint64_t most = key ? UINT64_MAX : n->max_length, least = key ? 0 : n->min_length;
    if (c == '"' && f->utf8_left == 0)
        return f->count >= least && pop(m);
    if (c < 0x20 || (f->utf8_left == 0 && f->count >= most))
        return false;
    if (c == '\\' && f->utf8_left == 0) {
        f->phase = ESCAPE;
        f->count++;
        return true;
    }
    return step_utf8(f, c);
}

static bool step_escape(struct frame *f, unsigned char c)
{
    bool hex = digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    if (f->phase == ESCAPE) {
        if (c == 'u')
            f->phase = HEX1;
        else if (strchr("\"\\/bfnrt", c) != NULL && c != 0)
            f->phase = STRING;
        else
            return false;
        return true;
    }
    /* No surrogates: the characters they stand for are written as they are. */
    if (!hex || (f->phase == HEX2 && f->surrogate && !(c >= '0' && c <= '7')))
        return false;
    f->surrogate = f->phase == HEX1 && (c == 'd' || c == 'D');
    f->phase = f->phase == HEX4 ? STRING : f->phase + 1;
    return true;
}

static bool number_may_end(uint8_t phase)
{
    return phase == ZERO || phase == WHOLE || phase == FRACTION || phase == EXP_DIGITS;
}

static bool step_number(const struct text_grammar *g, const struct grammar_node *n, struct machine *m, struct frame *f, unsigned char c)
{
    bool real = n->types & GRAMMAR_NUMBER;
    uint8_t next = VALUE;
    if (digit(c) && f->phase == MINUS)
        next = c == '0' ? ZERO : WHOLE;
    else if (digit(c) && (f->phase == WHOLE || f->phase == FRACTION || f->phase == EXP_DIGITS))
        next = f->phase;
    else if (digit(c) && f->phase == DOT)
        next = FRACTION;
    else if (digit(c) && (f->phase == EXP || f->phase == EXP_SIGN))
        next = EXP_DIGITS;
    else if (c == '.' && real && (f->phase == ZERO || f->phase == WHOLE))
        next = DOT;
    else if ((c == 'e' || c == 'E') && real && (f->phase == ZERO || f->phase == WHOLE || f->phase == FRACTION))
        next = EXP;
    else if ((c == '+' || c == '-') && f->phase == EXP)
        next = EXP_SIGN;
    if (next == VALUE)
        return number_may_end(f->phase) && pop_before(g, m, c);
    /* Exponents of three digits overflow what reads them. */
    if (++f->count > MAX_DIGITS || (next == EXP_DIGITS && f->phase == EXP_DIGITS && f->seen++ > 0))
        return false;
    f->phase = next;
    return true;
}

static bool begin_key(const struct grammar_node *n, struct machine *m, struct frame *f)
{
    if (n->n_texts == 0) {
        f->phase = OBJECT_COLON;
        return n->any_value != GRAMMAR_NONE && push(m, f->node, STRING);
    }
    f->phase = OBJECT_KEY;
    f->live = all_texts(n) & ~f->seen;
    f->count = 1;
    return f->live != 0;
}

static bool step_object(const struct grammar_node *n, struct machine *m, struct frame *f, unsigned char c)
{
    int whole;
    switch (f->phase) {
    case OBJECT_FIRST:
    case OBJECT_NEXT:
        if (c == '}' && f->phase == OBJECT_FIRST)
            return n->required == 0 && pop(m);
        return c == '"' && begin_key(n, m, f);
    case OBJECT_KEY:
        f->live = following(n, f->live, f->count++, c);
        whole = ended(n, f->live, f->count);
        if (whole >= 0) {
            f->seen |= 1ull << whole;
            f->live = (uint64_t)whole;
            f->phase = OBJECT_COLON;
            return true;
        }
        return f->live != 0;
    case OBJECT_COLON:
        f->phase = OBJECT_AFTER;
        return c == ':' && push(m, n->n_texts ? n->values[f->live] : n->any_value, VALUE);
    default:
        if (c == '}')
            return (n->required & ~f->seen) == 0 && pop(m);
        f->phase = OBJECT_NEXT;
        return c == ',' && (n->n_texts == 0 || (all_texts(n) & ~f->seen) != 0);
    }
}

static bool step_array(const struct text_grammar *g, const struct grammar_node *n, struct machine *m, struct frame *f, unsigned char c)
{
    if (c == ']')
        return f->count >= n->min_items && pop(m);
    if (f->phase == ARRAY_AFTER && c != ',')
        return false;
    if (f->count >= n->max_items)
        return false;
    bool first = f->phase == ARRAY_FIRST;
    f->phase = ARRAY_AFTER;
    f->count++;
    return push(m, n->items, VALUE) && (!first || step(g, m, c));
}

/* A fixed text, at whose end the frame is done. */
static bool step_fixed(struct machine *m, struct frame *f, const char *text, unsigned char c)
{
    if ((unsigned char)text[f->count] != c)
        return false;
    f->count++;
    return text[f->count] != 0 || pop(m);
}

static bool step_thought(struct machine *m, struct frame *f, unsigned char c)
{
    if (f->phase == THINK_OPEN) {
        if ((unsigned char)think_open[f->count] != c)
            return false;
        if (think_open[++f->count] == 0) {
            f->phase = THINK;
            f->count = 0;
        }
        return true;
    }
    /* The tag's bytes are all different from its first, so a mismatch can only begin it again. */
    f->count = (unsigned char)think_close[f->count] == c ? f->count + 1 : c == '<';
    return think_close[f->count] != 0 || pop(m);
}

static bool blanks_here(uint8_t phase)
{
    return phase == VALUE || phase == OBJECT_FIRST || phase == OBJECT_COLON || phase == OBJECT_NEXT || phase == OBJECT_AFTER ||
           phase == ARRAY_FIRST || phase == ARRAY_AFTER;
}

/* Between parts one space, or a newline and an indent; before the answer, what separates it from a thought. */
static bool step_blank(const struct text_grammar *g, struct machine *m, unsigned char c)
{
    bool root = m->n == 1 && m->stack[0].phase == VALUE;
    if (root || c == '\n')
        return c == '\n' && (root ? g->thought && m->blanks++ < 2 : m->blanks++ == 0);
    m->blanks += m->blanks == 0 ? MAX_BLANKS : 1;
    return (c == ' ' || c == '\t') && m->blanks <= MAX_BLANKS;
}

static bool step(const struct text_grammar *g, struct machine *m, unsigned char c)
{
    if (m->n == 0)
        return false;
    struct frame *f = &m->stack[m->n - 1];
    const struct grammar_node *n = &g->nodes[f->node];
    if (blank(c) && blanks_here(f->phase))
        return step_blank(g, m, c);
    m->blanks = 0;
    switch (f->phase) {
    case VALUE: return begin_value(n, f, c);
    case TEXTS: return step_texts(g, n, m, f, c);
    case WORD: return step_fixed(m, f, words[f->live], c);
    case STRING: return step_string(n, m->n > 1 && m->stack[m->n - 2].node == f->node && m->stack[m->n - 2].phase == OBJECT_COLON, m, f, c);
    case ESCAPE: case HEX1: case HEX2: case HEX3: case HEX4: return step_escape(f, c);
    case MINUS: case ZERO: case WHOLE: case DOT: case FRACTION: case EXP: case EXP_SIGN: case EXP_DIGITS: return step_number(g, n, m, f, c);
    case OBJECT_FIRST: case OBJECT_KEY: case OBJECT_COLON: case OBJECT_NEXT: case OBJECT_AFTER: return step_object(n, m, f, c);
    case ARRAY_FIRST: case ARRAY_AFTER: return step_array(g, n, m, f, c);
    case CALL_CLOSE: return step_fixed(m, f, call_close, c);
    default: return step_thought(m, f, c);
    }
}

/* ---- states ---- */

int32_t text_grammar_begin(const struct text_grammar *g, struct text_grammar_state **out)
{
    struct text_grammar_state *s = base_calloc(1, sizeof *s);
    *out = s;
    if (s == NULL)
        return IFX_ENOMEM;
    s->g = g;
    push(&s->now, g->root, VALUE);
    if (g->thought)
        push(&s->now, g->root, g->in_thought ? THINK : THINK_OPEN);
    return IFX_OK;
}

void text_grammar_end(struct text_grammar_state *s)
{
    base_free(s);
}

static void try_all(struct text_grammar_state *s, const struct entry *list, uint32_t n, uint64_t *allowed)
{
    uint32_t depth = 0; /* bytes of the token before that could be read */
    copy(&s->path[0], &s->now);
    for (uint32_t i = 0; i < n; i++) {
        const struct entry *e = &list[i];
        if (e->common > depth)
            continue; /* it goes on from where that one failed */
        depth = e->common;
        while (depth < e->len) {
            copy(&s->path[depth + 1], &s->path[depth]);
            if (!step(s->g, &s->path[depth + 1], (unsigned char)e->bytes[depth]))
                break;
            depth++;
        }
        if (depth == e->len)
            allowed[e->id / 64] |= 1ull << (e->id % 64);
    }
}

/* Inside a text that may go on for longer than any token. */
static bool in_text(const struct text_grammar_state *s)
{
    const struct frame *f = &s->now.stack[s->now.n - 1];
    const struct grammar_node *n = &s->g->nodes[f->node];
    return f->phase == STRING && f->utf8_left == 0 && (n->max_length == UINT64_MAX || n->max_length > f->count + MAX_TOKEN);
}

bool text_grammar_mask(struct text_grammar_state *s, uint64_t *allowed)
{
    const struct text_lexicon *l = s->g->lexicon;
    memset(allowed, 0, (l->vocab + 63) / 64 * sizeof *allowed);
    if (s->now.n == 0)
        return true;
    if (in_text(s)) {
        memcpy(allowed, l->plain, (l->vocab + 63) / 64 * sizeof *allowed);
        try_all(s, l->hard, l->n_hard, allowed);
    } else {
        try_all(s, l->all, l->n_all, allowed);
    }
    const struct frame *f = &s->now.stack[0];
    return s->now.n == 1 && (number_may_end(f->phase) || (f->phase == TEXTS && ended(&s->g->nodes[f->node], f->live, f->count) >= 0 &&
                                                          !s->g->nodes[f->node].calls));
}

int32_t text_grammar_accept(struct text_grammar_state *s, int32_t token)
{
    const struct text_lexicon *l = s->g->lexicon;
    const struct entry *e = token >= 0 && (uint32_t)token < l->vocab ? l->by_id[token] : NULL;
    bool good = e != NULL;
    for (uint32_t i = 0; good && i < e->len; i++)
        good = step(s->g, &s->now, (unsigned char)e->bytes[i]);
    return good ? IFX_OK : base_error(IFX_EINVAL, "token %d does not fit the grammar here", token);
}
