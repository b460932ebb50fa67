/* SPDX-License-Identifier: Apache-2.0
 *
 * fields.c - members of a request's body, each checked for its type and range; an error's text begins with the member's name.
 */
#include "config.h"
#include "internal.h"
#include <math.h>
#include <string.h>

#define MAX_STOPS 16u

const char *json_kind(const json_t *v)
{
    static const char *const names[] = {[JSON_OBJECT] = "an object", [JSON_ARRAY] = "a list", [JSON_STRING] = "a string",
                                        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number", [JSON_TRUE] = "a boolean",
                                        [JSON_FALSE] = "a boolean", [JSON_NULL] = "null"};
    return v != NULL ? names[json_typeof(v)] : "nothing";
}

static const json_t *member(const json_t *body, const char *name)
{
    const json_t *v = json_object_get(body, name);
    return json_is_null(v) ? NULL : v;
}

int32_t field_number(const json_t *body, const char *name, double min, double max, double *out)
{
    char lo[32], hi[32];
    const json_t *v = member(body, name);
    double d = json_number_value(v);
    if (v == NULL)
        return IFX_OK;
    if (json_is_number(v) && d >= min && d <= max) {
        *out = d;
        return IFX_OK;
    }
    base_format_f64(lo, min);
    base_format_f64(hi, max);
    return base_error(IFX_EINVAL, "%s: a number from %s to %s is expected%s%s", name, lo, hi, json_is_number(v) ? "" : ", got ",
                      json_is_number(v) ? "" : json_kind(v));
}

int32_t field_float(const json_t *body, const char *name, double min, double max, float *out)
{
    double d = (double)*out;
    int32_t st = field_number(body, name, min, max, &d);
    *out = (float)d;
    return st;
}

int32_t field_int(const json_t *body, const char *name, int64_t min, int64_t max, int64_t *out)
{
    const json_t *v = member(body, name);
    if (v == NULL)
        return IFX_OK;
    int64_t i = json_integer_value(v);
    if (json_is_real(v) && json_real_value(v) == floor(json_real_value(v)) && fabs(json_real_value(v)) < 9e15)
        i = (int64_t)json_real_value(v); /* 16.0 is a whole number too */
    else if (!json_is_integer(v))
        return base_error(IFX_EINVAL, "%s: a whole number is expected, got %s", name, json_is_real(v) ? "another number" : json_kind(v));
    if (i < min || i > max)
        return base_error(IFX_EINVAL, "%s: a whole number from %lld to %lld is expected", name, (long long)min, (long long)max);
    *out = i;
    return IFX_OK;
}

int32_t field_bool(const json_t *body, const char *name, bool *out)
{
    const json_t *v = member(body, name);
    if (v == NULL)
        return IFX_OK;
    if (!json_is_boolean(v))
        return base_error(IFX_EINVAL, "%s: true or false is expected, got %s", name, json_kind(v));
    *out = json_is_true(v);
    return IFX_OK;
}

int32_t field_string(const json_t *body, const char *name, const char **out)
{
    const json_t *v = member(body, name);
    if (v == NULL)
        return IFX_OK;
    if (!json_is_string(v))
        return base_error(IFX_EINVAL, "%s: a string is expected, got %s", name, json_kind(v));
    *out = json_string_value(v);
    return IFX_OK;
}

int32_t field_object(const json_t *body, const char *name, const json_t **out)
{
    const json_t *v = member(body, name);
    if (v != NULL && !json_is_object(v))
        return base_error(IFX_EINVAL, "%s: an object is expected, got %s", name, json_kind(v));
    *out = v != NULL ? v : *out;
    return IFX_OK;
}

int32_t field_array(const json_t *body, const char *name, const json_t **out)
{
    const json_t *v = member(body, name);
    if (v != NULL && !json_is_array(v))
        return base_error(IFX_EINVAL, "%s: a list is expected, got %s", name, json_kind(v));
    *out = v != NULL ? v : *out;
    return IFX_OK;
}

static int32_t add_stop(const json_t *v, const char *name, struct job_spec *spec)
{
    if (!json_is_string(v))
        return base_error(IFX_EINVAL, "%s: strings are expected, got %s", name, json_kind(v));
    if (json_string_length(v) == 0)
        return base_error(IFX_EINVAL, "%s: an empty string would stop at once", name);
    if (spec->stops == NULL && (spec->stops = base_calloc(MAX_STOPS, sizeof(char *))) == NULL)
        return IFX_ENOMEM;
    if (spec->n_stops == MAX_STOPS)
        return base_error(IFX_EINVAL, "%s: more than %u strings", name, MAX_STOPS);
    spec->stops[spec->n_stops] = base_strdup(json_string_value(v));
    return spec->stops[spec->n_stops++] != NULL ? IFX_OK : IFX_ENOMEM;
}

int32_t field_stops(const json_t *body, const char *name, struct job_spec *spec)
{
    const json_t *v = member(body, name), *one;
    size_t i;
    if (v == NULL)
        return IFX_OK;
    if (json_is_string(v))
        return add_stop(v, name, spec);
    if (!json_is_array(v))
        return base_error(IFX_EINVAL, "%s: a string or a list of strings is expected, got %s", name, json_kind(v));
    json_array_foreach(v, i, one) {
        int32_t st = add_stop(one, name, spec);
        if (st)
            return st;
    }
    return IFX_OK;
}

/* 53 bits at most: every client's numbers hold them exactly. */
static uint64_t fresh_seed(const struct serve *s)
{
    static const uint64_t odd = 0x9e3779b97f4a7c15u;
    uint64_t n = atomic_load(&((struct serve *)s)->next_id) * odd + (uint64_t)(base_now() * 1e6);
    n ^= n >> 29;
    return (n * odd) >> 11;
}

int32_t fields_sampling(const struct serve *s, const json_t *body, struct ifx_sampling *out)
{
    int64_t top_k, seed;
    *out = s->o.sampling;
    top_k = out->top_k;
    seed = (int64_t)fresh_seed(s);
    int32_t st = field_float(body, "temperature", 0, 100, &out->temperature);
    if (!st)
        st = field_float(body, "top_p", 0, 1, &out->top_p);
    if (!st && !(out->top_p > 0))
        st = base_error(IFX_EINVAL, "top_p: 0 leaves no token; temperature 0 takes the best one");
    if (!st)
        st = field_int(body, "top_k", -1, INT32_MAX, &top_k);
    if (!st)
        st = field_float(body, "min_p", 0, 1, &out->min_p);
    if (!st)
        st = field_float(body, "presence_penalty", -100, 100, &out->presence_penalty);
    if (!st)
        st = field_float(body, "frequency_penalty", -100, 100, &out->frequency_penalty);
    if (!st)
        st = field_float(body, "repetition_penalty", 0.01, 100, &out->repetition_penalty);
    if (!st)
        st = field_int(body, "seed", INT64_MIN, INT64_MAX, &seed);
    out->top_k = top_k > 0 ? (uint32_t)top_k : 0;
    out->seed = (uint64_t)seed;
    return st;
}

int32_t body_parse(const char *data, uint64_t n, json_t **out)
{
    json_error_t e;
    *out = NULL;
    if (n == 0)
        return base_error(IFX_EINVAL, "the body is empty; a JSON object is expected");
    if (!base_utf8_valid(data, n))
        return base_error(IFX_EINVAL, "the body is not valid UTF-8");
    json_t *v = json_loadb(data, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (v == NULL)
        return base_error(IFX_EINVAL, "the body is not valid JSON (line %d, column %d): %s", e.line, e.column, e.text);
    if (!json_is_object(v)) {
        base_error(IFX_EINVAL, "the body is %s; a JSON object is expected", json_kind(v));
        json_decref(v);
        return IFX_EINVAL;
    }
    *out = v;
    return IFX_OK;
}
