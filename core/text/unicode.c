/* SPDX-License-Identifier: Apache-2.0
 *
 * unicode.c - UTF-8 stepping and repair, NFC, character classes, the byte-level alphabet.
 */
#include "config.h"
#include "text_internal.h"
#include <string.h>
#include <utf8proc.h>

#define REPLACEMENT "\xef\xbf\xbd"

/* Table 3-7 of the Unicode standard: which second bytes a lead byte allows. */
static uint32_t lead(uint8_t c, uint8_t *low, uint8_t *high)
{
    *low = 0x80;
    *high = 0xbf;
    if (c >= 0xc2 && c <= 0xdf)
        return 2;
    if (c >= 0xe0 && c <= 0xef) {
        if (c == 0xe0)
            *low = 0xa0;
        if (c == 0xed)
            *high = 0x9f;
        return 3;
    }
    if (c >= 0xf0 && c <= 0xf4) {
        if (c == 0xf0)
            *low = 0x90;
        if (c == 0xf4)
            *high = 0x8f;
        return 4;
    }
    return 0;
}

uint32_t text_utf8_step(const char *s, uint64_t n, uint32_t *bad, bool *incomplete)
{
    const uint8_t *p = (const uint8_t *)s;
    uint8_t low, high;
    *incomplete = false;
    *bad = 1;
    if (p[0] < 0x80)
        return 1;
    uint32_t len = lead(p[0], &low, &high);
    for (uint32_t i = 1; i < len; i++) {
        *bad = i;
        if (i >= n) {
            *incomplete = true;
            return 0;
        }
        if (p[i] < low || p[i] > high)
            return 0;
        low = 0x80;
        high = 0xbf;
    }
    return len;
}

int32_t text_utf8_lossy(const char *s, uint64_t n, uint64_t *tail, struct base_buf *out)
{
    uint64_t from = 0, i = 0;
    int32_t st = IFX_OK;
    if (tail != NULL)
        *tail = 0;
    while (i < n && st == IFX_OK) {
        uint32_t bad;
        bool incomplete;
        uint32_t len = text_utf8_step(s + i, n - i, &bad, &incomplete);
        if (len != 0) {
            i += len;
            continue;
        }
        if (i > from)
            st = base_buf_add(out, s + from, i - from);
        if (incomplete && tail != NULL) {
            *tail = n - i;
            return st;
        }
        if (st == IFX_OK)
            st = base_buf_add(out, REPLACEMENT, 3);
        i += bad;
        from = i;
    }
    if (st == IFX_OK && i > from)
        st = base_buf_add(out, s + from, i - from);
    return st;
}

uint32_t text_utf8_get(const char *s, uint32_t *len)
{
    const uint8_t *p = (const uint8_t *)s;
    if (p[0] < 0x80) {
        *len = 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *len = 2;
        return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
    }
    if (p[0] < 0xf0) {
        *len = 3;
        return (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    }
    *len = 4;
    return (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
}

int32_t text_utf8_put(struct base_buf *out, uint32_t c)
{
    utf8proc_uint8_t b[4];
    utf8proc_ssize_t n = utf8proc_encode_char((utf8proc_int32_t)c, b);
    return base_buf_add(out, b, (uint64_t)n);
}

bool text_nfc_trivial(const char *s, uint64_t n)
{
    /* Below U+0300 every character is its own NFC form and composes with nothing before it. */
    for (uint64_t i = 0; i < n; i++)
        if ((uint8_t)s[i] >= 0xcc)
            return false;
    return true;
}

struct points {
    int32_t *data;
    uint64_t n, cap;
};

static int32_t points_room(struct points *p, uint64_t more)
{
    if (p->cap - p->n >= more)
        return IFX_OK;
    uint64_t cap = p->cap + p->cap / 2 + more + 256;
    int32_t *data = base_realloc(p->data, cap, sizeof(*data));
    if (data == NULL)
        return IFX_ENOMEM;
    p->data = data;
    p->cap = cap;
    return IFX_OK;
}

/* Canonical ordering of one run of combining marks by counting: utf8proc's own ordering swaps neighbours, which is quadratic in the
 * length of a hostile run. */
static int32_t order_run(int32_t *run, uint64_t n)
{
    uint64_t start[256] = {0}, sum = 0;
    uint8_t before = 0;
    bool ordered = true;
    for (uint64_t i = 0; i < n; i++) {
        uint8_t ccc = (uint8_t)utf8proc_get_property(run[i])->combining_class;
        ordered = ordered && ccc >= before;
        before = ccc;
        start[ccc]++;
    }
    if (ordered)
        return IFX_OK;
    int32_t *copy = base_alloc(n * sizeof(*copy), 16);
    if (copy == NULL)
        return IFX_ENOMEM;
    memcpy(copy, run, n * sizeof(*copy));
    for (uint32_t c = 0; c < 256; c++) {
        uint64_t count = start[c];
        start[c] = sum;
        sum += count;
    }
    for (uint64_t i = 0; i < n; i++)
        run[start[(uint8_t)utf8proc_get_property(copy[i])->combining_class]++] = copy[i];
    base_free(copy);
    return IFX_OK;
}

static int32_t order_all(struct points *p)
{
    uint64_t i = 0;
    while (i < p->n) {
        uint64_t from = i;
        while (i < p->n && utf8proc_get_property(p->data[i])->combining_class != 0)
            i++;
        if (i - from > 1 && order_run(p->data + from, i - from) != IFX_OK)
            return IFX_ENOMEM;
        if (i == from)
            i++;
    }
    return IFX_OK;
}

static int32_t decompose(const char *s, uint64_t n, struct points *p)
{
    uint64_t i = 0;
    while (i < n) {
        uint32_t len;
        int32_t c = (int32_t)text_utf8_get(s + i, &len), class = UTF8PROC_BOUNDCLASS_START;
        if (points_room(p, 32) != IFX_OK)
            return IFX_ENOMEM;
        utf8proc_ssize_t k = utf8proc_decompose_char(c, p->data + p->n, (utf8proc_ssize_t)(p->cap - p->n),
                                                     UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &class);
        if (k < 0 || (uint64_t)k > p->cap - p->n)
            return base_error(IFX_EINTERNAL, "utf8proc: cannot decompose U+%04X", (unsigned)c);
        p->n += (uint64_t)k;
        i += len;
    }
    return IFX_OK;
}

int32_t text_nfc(const char *s, uint64_t n, struct base_buf *out)
{
    struct points p = {0};
    if (text_nfc_trivial(s, n))
        return base_buf_add(out, s, n);
    int32_t st = decompose(s, n, &p);
    if (st == IFX_OK)
        st = order_all(&p);
    if (st == IFX_OK) {
        utf8proc_ssize_t k =
            utf8proc_normalize_utf32(p.data, (utf8proc_ssize_t)p.n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (k < 0)
            st = base_error(IFX_EINTERNAL, "utf8proc: %s", utf8proc_errmsg(k));
        for (utf8proc_ssize_t i = 0; i < k && st == IFX_OK; i++)
            st = text_utf8_put(out, (uint32_t)p.data[i]);
    }
    base_free(p.data);
    return st;
}

bool text_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool text_is_word(uint32_t c)
{
    /* Circled and squared letters are Alphabetic by Other_Alphabetic alone. */
    if ((c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
        (c >= 0x1f170 && c <= 0x1f189) || c == 0x200c || c == 0x200d)
        return true;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return false;
    }
}

/* GPT-2's alphabet: printable Latin-1 stands for itself, the 68 others for U+0100 on, in order. */
static bool own_char(uint32_t b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

uint32_t text_byte_to_char(uint8_t byte)
{
    if (own_char(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    if (byte <= 0xa0) /* 0x7f .. 0xa0 */
        return 0x100u + 33u + (byte - 0x7fu);
    return 0x143; /* 0xad */
}

int32_t text_char_to_byte(uint32_t c)
{
    if (c <= 0xff)
        return own_char(c) ? (int32_t)c : -1;
    if (c <= 0x120)
        return (int32_t)(c - 0x100);
    if (c <= 0x142)
        return (int32_t)(c - 0x121 + 0x7f);
    return c == 0x143 ? 0xad : -1;
}
