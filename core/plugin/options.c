/* SPDX-License-Identifier: Apache-2.0
 *
 * options.c - option tables: checking one, parsing "key=value,..." against it, reading values.
 */
#include "config.h"
#include "registry_internal.h"
#include <float.h>
#include <stdio.h>
#include <string.h>

#define MAX_OPTIONS 64u

struct value {
    char *text; /* NULL: no value */
    int64_t i;
    double f;
};

struct ifx_options {
    const struct ifx_option *table;
    uint32_t count;
    struct value *values;
};

static uint32_t table_length(const struct ifx_option *table)
{
    uint32_t n = 0;
    if (table != NULL)
        while (n <= MAX_OPTIONS && table[n].name != NULL)
            n++;
    return n;
}

static int32_t parse_bool(const char *text, const char *what, int64_t *out)
{
    static const char *const yes[] = {"1", "true", "yes", "on"}, *const no[] = {"0", "false", "no", "off"};
    for (int i = 0; i < 4; i++)
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *out = strcmp(text, yes[i]) == 0;
            return IFX_OK;
        }
    return base_error(IFX_EINVAL, "%s: \"%s\" is neither yes nor no", what, text);
}

static int32_t parse_value(const struct ifx_option *o, const char *what, const char *text, struct value *v)
{
    switch (o->type) {
    case IFX_OPT_INT: {
        bool any = o->min_int == 0 && o->max_int == 0;
        return base_parse_i64(text, what, any ? INT64_MIN : o->min_int, any ? INT64_MAX : o->max_int, &v->i);
    }
    case IFX_OPT_FLOAT:
        return base_parse_f64(text, what, -DBL_MAX, DBL_MAX, &v->f);
    case IFX_OPT_BOOL:
        return parse_bool(text, what, &v->i);
    default:
        return IFX_OK;
    }
}

int32_t registry_options_check_table(const struct ifx_option *table)
{
    uint32_t n = table_length(table);
    if (n > MAX_OPTIONS)
        return base_error(IFX_EFORMAT, "options: the table does not end with a NULL name within %u", MAX_OPTIONS);
    for (uint32_t i = 0; i < n; i++) {
        const struct ifx_option *o = &table[i];
        size_t len = strspn(o->name, "abcdefghijklmnopqrstuvwxyz0123456789-");
        if (len == 0 || len > 40 || o->name[len] != 0)
            return base_error(IFX_EFORMAT, "options: name \"%.40s\" is not made of a-z, 0-9 and -", o->name);
        if (o->type < IFX_OPT_INT || o->type > IFX_OPT_STRING)
            return base_error(IFX_EFORMAT, "options: %s has type %u, 1..4 are known", o->name, o->type);
        if (o->min_int > o->max_int)
            return base_error(IFX_EFORMAT, "options: %s has the range %lld to %lld", o->name, (long long)o->min_int,
                              (long long)o->max_int);
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(table[j].name, o->name) == 0)
                return base_error(IFX_EFORMAT, "options: %s is listed twice", o->name);
        struct value v = {0};
        if (o->default_text != NULL && parse_value(o, o->name, o->default_text, &v) != IFX_OK)
            return base_error_prefix(IFX_EFORMAT, "options: bad default");
    }
    return IFX_OK;
}

static int32_t set_value(struct ifx_options *o, uint32_t index, const char *who, const char *text)
{
    char what[128];
    struct value v = {0};
    snprintf(what, sizeof what, "%s: %s", who, o->table[index].name);
    int32_t status = parse_value(&o->table[index], what, text, &v);
    if (status != IFX_OK)
        return status;
    v.text = base_strdup(text);
    if (v.text == NULL)
        return IFX_ENOMEM;
    base_free(o->values[index].text);
    o->values[index] = v;
    return IFX_OK;
}

static int32_t unknown_key(const struct ifx_options *o, const char *who, const char *key)
{
    const char *names[MAX_OPTIONS + 1];
    struct base_buf all = {0};
    int32_t status;
    if (o->count == 0)
        return base_error(IFX_EINVAL, "%s: unknown option \"%s\": it has no options", who, key);
    for (uint32_t i = 0; i < o->count; i++) {
        names[i] = o->table[i].name;
        if (base_buf_addf(&all, "%s%s", i ? ", " : "", names[i]) != IFX_OK)
            break;
    }
    names[o->count] = NULL;
    const char *near = base_nearest(key, names);
    if (near != NULL)
        status = base_error(IFX_EINVAL, "%s: unknown option \"%s\", did you mean \"%s\"? (options: %s)", who, key, near,
                            all.data ? all.data : "");
    else
        status = base_error(IFX_EINVAL, "%s: unknown option \"%s\" (options: %s)", who, key, all.data ? all.data : "");
    base_buf_free(&all);
    return status;
}

/* One "key=value", or "key" alone for a switch. */
static int32_t parse_item(struct ifx_options *o, const char *who, char *item)
{
    char *equals = strchr(item, '=');
    if (equals != NULL)
        *equals = 0;
    for (uint32_t i = 0; i < o->count; i++)
        if (strcmp(o->table[i].name, item) == 0) {
            if (equals != NULL)
                return set_value(o, i, who, equals + 1);
            if (o->table[i].type == IFX_OPT_BOOL)
                return set_value(o, i, who, "yes");
            return base_error(IFX_EINVAL, "%s: option \"%s\" needs a value: %s=...", who, item, item);
        }
    return unknown_key(o, who, item);
}

static int32_t parse_items(struct ifx_options *o, const char *who, const char *text)
{
    char *copy = base_strdup(text);
    if (copy == NULL)
        return IFX_ENOMEM;
    int32_t status = IFX_OK;
    for (char *p = copy; p != NULL && status == IFX_OK;) {
        char *comma = strchr(p, ',');
        if (comma != NULL)
            *comma++ = 0;
        status = *p == 0 ? base_error(IFX_EINVAL, "%s: empty option in \"%s\": key=value is expected", who, text)
                         : parse_item(o, who, p);
        p = comma;
    }
    base_free(copy);
    return status;
}

int32_t registry_options_parse(const struct ifx_option *table, const char *who, const char *text,
                               struct ifx_options **out)
{
    *out = NULL;
    struct ifx_options *o = base_calloc(1, sizeof *o);
    if (o == NULL)
        return IFX_ENOMEM;
    o->table = table;
    o->count = table_length(table);
    o->values = base_calloc(o->count, sizeof *o->values);
    int32_t status = o->values != NULL ? IFX_OK : IFX_ENOMEM;
    for (uint32_t i = 0; i < o->count && status == IFX_OK; i++)
        if (table[i].default_text != NULL)
            status = set_value(o, i, who, table[i].default_text);
    if (status == IFX_OK && text != NULL)
        status = parse_items(o, who, text);
    if (status != IFX_OK) {
        registry_options_free(o);
        return status;
    }
    *out = o;
    return IFX_OK;
}

void registry_options_free(struct ifx_options *o)
{
    if (o == NULL)
        return;
    for (uint32_t i = 0; o->values != NULL && i < o->count; i++)
        base_free(o->values[i].text);
    base_free(o->values);
    base_free(o);
}

static const struct value *find(const struct ifx_options *o, const char *name)
{
    for (uint32_t i = 0; o != NULL && i < o->count; i++)
        if (strcmp(o->table[i].name, name) == 0)
            return &o->values[i];
    return NULL;
}

const char *registry_options_text(const struct ifx_options *o, const char *name)
{
    const struct value *v = find(o, name);
    return v != NULL ? v->text : NULL;
}

int64_t registry_options_int(const struct ifx_options *o, const char *name)
{
    const struct value *v = find(o, name);
    return v != NULL ? v->i : 0;
}

double registry_options_float(const struct ifx_options *o, const char *name)
{
    const struct value *v = find(o, name);
    return v != NULL ? v->f : 0;
}
