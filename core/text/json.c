/* SPDX-License-Identifier: Apache-2.0
 *
 * json.c - JSON text as Python's json.dumps(ensure_ascii=False) writes it: templates print tools and arguments so.
 */
#include "config.h"
#include "chat_internal.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int32_t put(struct base_buf *out, const char *s)
{
    return base_buf_add(out, s, strlen(s));
}

static int32_t string(const char *s, uint64_t n, struct base_buf *out)
{
    static const char plain[] = "\"\\\n\r\t\f\b", letter[] = "\"\\nrtfb";
    uint64_t from = 0;
    int32_t st = put(out, "\"");
    for (uint64_t i = 0; i < n && st == IFX_OK; i++) {
        uint8_t c = (uint8_t)s[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        const char *known = c ? strchr(plain, (int)c) : NULL;
        char escape[8];
        if (known != NULL)
            snprintf(escape, sizeof(escape), "\\%c", letter[known - plain]);
        else
            snprintf(escape, sizeof(escape), "\\u%04x", (unsigned)c);
        st = base_buf_add(out, s + from, i - from);
        if (st == IFX_OK)
            st = put(out, escape);
        from = i + 1;
    }
    if (st == IFX_OK)
        st = base_buf_add(out, s + from, n - from);
    return st == IFX_OK ? put(out, "\"") : st;
}

/* repr() of a float: the fewest digits that read back the same; exponents below -4 and from 16 on. */
static int32_t real(double v, struct base_buf *out)
{
    char text[40], digits[24];
    uint32_t n = 0;
    for (int precision = 0; precision <= 16; precision++) {
        snprintf(text, sizeof(text), "%.*e", precision, v);
        if (strtod(text, NULL) == v)
            break;
    }
    /* The locale's decimal sign, whatever it is, is neither a digit nor an e. */
    const char *e = strchr(text, 'e');
    if (e == NULL)
        return base_error(IFX_EINVAL, "a number that is not finite has no JSON form");
    for (const char *p = text; p < e && n < 20; p++)
        if (*p >= '0' && *p <= '9')
            digits[n++] = *p;
    int exponent = atoi(e + 1);
    while (n > 1 && digits[n - 1] == '0')
        n--;
    int32_t st = signbit(v) ? put(out, "-") : IFX_OK;
    if (st != IFX_OK)
        return st;
    if (exponent < -4 || exponent >= 16)
        return base_buf_addf(out, "%c%s%.*se%c%02d", digits[0], n > 1 ? "." : "", (int)n - 1, digits + 1,
                             exponent < 0 ? '-' : '+', abs(exponent));
    if (exponent < 0)
        return base_buf_addf(out, "0.%.*s%.*s", -exponent - 1, "0000", (int)n, digits);
    for (int i = 0; i <= exponent && st == IFX_OK; i++)
        st = base_buf_add(out, (uint32_t)i < n ? &digits[i] : "0", 1);
    if (st != IFX_OK)
        return st;
    return (uint32_t)exponent + 1 < n ? base_buf_addf(out, ".%.*s", (int)n - exponent - 1, digits + exponent + 1)
                                      : put(out, ".0");
}

static int32_t array(const json_t *value, struct base_buf *out)
{
    const json_t *member;
    size_t i;
    int32_t st = put(out, "[");
    json_array_foreach(value, i, member) {
        if (st == IFX_OK && i > 0)
            st = put(out, ", ");
        if (st == IFX_OK)
            st = chat_json_text(member, out);
    }
    return st == IFX_OK ? put(out, "]") : st;
}

static int32_t object(const json_t *value, struct base_buf *out)
{
    const char *key;
    size_t n;
    json_t *member;
    bool first = true;
    int32_t st = put(out, "{");
    json_object_keylen_foreach((json_t *)value, key, n, member) {
        if (st == IFX_OK && !first)
            st = put(out, ", ");
        if (st == IFX_OK)
            st = string(key, n, out);
        if (st == IFX_OK)
            st = put(out, ": ");
        if (st == IFX_OK)
            st = chat_json_text(member, out);
        first = false;
    }
    return st == IFX_OK ? put(out, "}") : st;
}

int32_t chat_json_text(const json_t *value, struct base_buf *out)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return object(value, out);
    case JSON_ARRAY:
        return array(value, out);
    case JSON_STRING:
        return string(json_string_value(value), json_string_length(value), out);
    case JSON_INTEGER:
        return base_buf_addf(out, "%lld", (long long)json_integer_value(value));
    case JSON_REAL:
        return real(json_real_value(value), out);
    case JSON_TRUE:
        return put(out, "true");
    case JSON_FALSE:
        return put(out, "false");
    case JSON_NULL:
        return put(out, "null");
    }
    return base_error(IFX_EINTERNAL, "unknown JSON type");
}
