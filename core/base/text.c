/* SPDX-License-Identifier: Apache-2.0
 *
 * text.c - numbers in the C locale whatever setlocale says, the nearest name, UTF-8.
 */
#include "config.h"
#include "base.h"
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES 64

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Edit distance with swaps of neighbours counted as one; both at most NAME_MAX_BYTES long. */
static size_t distance(const char *a, const char *b)
{
    size_t la = strlen(a), lb = strlen(b);
    size_t row[3][NAME_MAX_BYTES + 1];
    size_t *before = row[0], *last = row[1], *now = row[2];
    for (size_t j = 0; j <= lb; j++)
        last[j] = j;
    for (size_t i = 1; i <= la; i++) {
        now[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            size_t d = last[j - 1] + (a[i - 1] != b[j - 1]);
            d = least(d, least(last[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d = least(d, before[j - 2] + 1);
            now[j] = d;
        }
        size_t *t = before;
        before = last;
        last = now;
        now = t;
    }
    return last[lb];
}

const char *base_nearest(const char *name, const char *const *candidates)
{
    const char *best = NULL;
    size_t len = strlen(name), best_d = 1 + len / 4;
    if (len == 0 || len > NAME_MAX_BYTES)
        return NULL;
    for (; *candidates != NULL; candidates++) {
        if (strlen(*candidates) > NAME_MAX_BYTES)
            continue;
        size_t d = distance(name, *candidates);
        if (d < len && (d < best_d || (d == best_d && best == NULL))) {
            best = *candidates;
            best_d = d;
        }
    }
    return best;
}

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

int32_t base_parse_i64(const char *text, const char *what, int64_t min, int64_t max, int64_t *out)
{
    const char *p = text;
    bool negative = *p == '-', overflow = false;
    int64_t v = 0;
    if (*p == '-' || *p == '+')
        p++;
    if (!digit(*p))
        return base_error(IFX_EINVAL, "%s: \"%s\" is not a whole number", what, text);
    for (; digit(*p); p++) {
        int64_t step = negative ? -(*p - '0') : *p - '0';
        overflow = overflow || __builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, step, &v);
    }
    if (*p != 0)
        return base_error(IFX_EINVAL, "%s: \"%s\" is not a whole number", what, text);
    if (overflow || v < min || v > max)
        return base_error(IFX_EINVAL, "%s: %s is out of range: %lld to %lld", what, text, (long long)min,
                          (long long)max);
    *out = v;
    return IFX_OK;
}

/* [+-]digits[.digits][e[+-]digits], at least one digit before the exponent: no hex, inf, nan, spaces. */
static bool looks_decimal(const char *p)
{
    size_t digits = 0;
    if (*p == '-' || *p == '+')
        p++;
    for (; digit(*p); p++)
        digits++;
    if (*p == '.')
        for (p++; digit(*p); p++)
            digits++;
    if (digits == 0)
        return false;
    if (*p == 'e' || *p == 'E') {
        p++;
        if (*p == '-' || *p == '+')
            p++;
        if (!digit(*p))
            return false;
        while (digit(*p))
            p++;
    }
    return *p == 0;
}

static int32_t enter_c_locale(locale_t *c, locale_t *old)
{
    *c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (*c == (locale_t)0)
        return base_error(IFX_ENOMEM, "cannot make the C locale");
    *old = uselocale(*c);
    return IFX_OK;
}

static void leave_c_locale(locale_t c, locale_t old)
{
    uselocale(old);
    freelocale(c);
}

int32_t base_parse_f64(const char *text, const char *what, double min, double max, double *out)
{
    char lo[32], hi[32];
    locale_t c, old = (locale_t)0;
    if (!looks_decimal(text))
        return base_error(IFX_EINVAL, "%s: \"%s\" is not a number", what, text);
    if (enter_c_locale(&c, &old) != IFX_OK)
        return IFX_ENOMEM;
    double v = strtod(text, NULL);
    leave_c_locale(c, old);
    if (!(v >= min && v <= max) || !isfinite(v)) {
        base_format_f64(lo, min);
        base_format_f64(hi, max);
        return base_error(IFX_EINVAL, "%s: %s is out of range: %s to %s", what, text, lo, hi);
    }
    *out = v;
    return IFX_OK;
}

void base_format_f64(char out[32], double v)
{
    locale_t c, old = (locale_t)0;
    if (!isfinite(v)) {
        strcpy(out, "null");
        return;
    }
    bool entered = enter_c_locale(&c, &old) == IFX_OK;
    int digits = 0;
    do {
        snprintf(out, 32, "%.*e", digits, v);
    } while (strtod(out, NULL) != v && ++digits < 17);
    /* people read 1000 rather than 1e+03 */
    int exponent = atoi(strchr(out, 'e') + 1);
    if (exponent >= -5 && exponent <= 15)
        snprintf(out, 32, "%.*f", digits > exponent ? digits - exponent : 0, v);
    if (entered)
        leave_c_locale(c, old);
}

/* Bytes of one unit of a suffix: "", "K", "KB", "KiB", ... all powers of 1024; 0: no such suffix. */
static uint64_t unit_bytes(const char *suffix)
{
    static const char letters[] = "KMGT";
    if (*suffix == 0 || strcmp(suffix, "B") == 0)
        return 1;
    char upper = *suffix >= 'a' && *suffix <= 'z' ? (char)(*suffix - 'a' + 'A') : *suffix;
    const char *at = strchr(letters, upper);
    if (at == NULL)
        return 0;
    suffix++;
    if (*suffix != 0 && strcmp(suffix, "B") != 0 && strcmp(suffix, "iB") != 0)
        return 0;
    return UINT64_C(1) << (10 * (at - letters + 1));
}

int32_t base_parse_bytes(const char *text, const char *what, uint64_t *out)
{
    const char *p = text;
    uint64_t whole = 0, scaled = 0;
    bool overflow = false;
    double fraction = 0, place = 0.1;
    if (!digit(*p))
        goto wrong;
    for (; digit(*p); p++)
        overflow = overflow || !base_mul_u64(whole, 10, &whole) || !base_add_u64(whole, (uint64_t)(*p - '0'), &whole);
    if (*p == '.') {
        p++;
        if (!digit(*p))
            goto wrong;
        for (; digit(*p); p++, place /= 10)
            fraction += place * (*p - '0');
    }
    uint64_t unit = unit_bytes(p);
    if (unit == 0 || (unit == 1 && fraction > 0))
        goto wrong;
    if (overflow || !base_mul_u64(whole, unit, &scaled) ||
        !base_add_u64(scaled, (uint64_t)(fraction * (double)unit), &scaled))
        return base_error(IFX_EINVAL, "%s: %s is out of range", what, text);
    *out = scaled;
    return IFX_OK;
wrong:
    return base_error(IFX_EINVAL, "%s: \"%s\" is not a size: bytes, or a number with K, M, G or T", what, text);
}

/* Unicode 15, table 3-7: shortest forms only, no surrogates, at most U+10FFFF. */
bool base_utf8_valid(const char *s, uint64_t n)
{
    const uint8_t *p = (const uint8_t *)s, *end = p + n;
    while (p < end) {
        if (*p < 0x80) {
            p++;
            continue;
        }
        unsigned more = *p >= 0xC2 && *p <= 0xDF ? 1 : (*p & 0xF0) == 0xE0 ? 2 : *p >= 0xF0 && *p <= 0xF4 ? 3 : 0;
        if (more == 0 || (uint64_t)(end - p) <= more)
            return false;
        if ((*p == 0xE0 && p[1] < 0xA0) || (*p == 0xED && p[1] > 0x9F) || (*p == 0xF0 && p[1] < 0x90) ||
            (*p == 0xF4 && p[1] > 0x8F))
            return false;
        for (unsigned i = 1; i <= more; i++)
            if ((p[i] & 0xC0) != 0x80)
                return false;
        p += more + 1;
    }
    return true;
}
