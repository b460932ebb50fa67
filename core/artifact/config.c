/* SPDX-License-Identifier: Apache-2.0
 *
 * config.c - config.json: typed getters, nested text_config before the outer level.
 */
#include "config.h"
#include "artifact_internal.h"
#include <string.h>

/* "a.b" descends; NULL when absent or null.  *broken: what stands where the path needs an object. */
static const json_t *descend(const json_t *from, const char *key, const json_t **broken)
{
    const char *at = key;
    while (from != NULL && !json_is_null(from)) {
        const char *dot = strchr(at, '.');
        char part[128];
        size_t n = dot ? (size_t)(dot - at) : strlen(at);
        if (!json_is_object(from))
            *broken = from;
        if (n >= sizeof part || *broken != NULL)
            return NULL;
        memcpy(part, at, n);
        part[n] = 0;
        from = json_object_get(from, part);
        if (dot == NULL)
            return json_is_null(from) ? NULL : from;
        at = dot + 1;
    }
    return NULL;
}

static const char *type_text(const json_t *v)
{
    static const char *const names[] = {"an object", "an array", "text", "a whole number", "a number with a fraction",
                                        "true", "false", "null"};
    return names[json_typeof(v)];
}

static int32_t wrong_type(const struct ifx_config *c, const char *key, const json_t *v, const char *wanted)
{
    const struct artifact *a = c->ctx;
    return base_error(IFX_EFORMAT, "%s: config.json: \"%s\" is %s, %s is needed", a->path, key, type_text(v), wanted);
}

static int32_t lookup(const struct ifx_config *c, const char *key, const json_t **out)
{
    const struct artifact *a = c->ctx;
    const json_t *broken = NULL, *v = a->text_config ? descend(a->text_config, key, &broken) : NULL;
    if (v == NULL && broken == NULL)
        v = descend(a->config, key, &broken);
    if (broken != NULL)
        return wrong_type(c, key, broken, "an object on the way to it");
    *out = v;
    return v != NULL ? IFX_OK : IFX_ENOTFOUND;
}

static int32_t get_int(const struct ifx_config *c, const char *key, int64_t *out)
{
    const json_t *v;
    int32_t status = lookup(c, key, &v);
    if (status != IFX_OK)
        return status;
    if (!json_is_integer(v))
        return wrong_type(c, key, v, "a whole number");
    *out = json_integer_value(v);
    return IFX_OK;
}

static int32_t get_float(const struct ifx_config *c, const char *key, double *out)
{
    const json_t *v;
    int32_t status = lookup(c, key, &v);
    if (status != IFX_OK)
        return status;
    if (!json_is_number(v))
        return wrong_type(c, key, v, "a number");
    *out = json_number_value(v);
    return IFX_OK;
}

static int32_t get_bool(const struct ifx_config *c, const char *key, uint32_t *out)
{
    const json_t *v;
    int32_t status = lookup(c, key, &v);
    if (status != IFX_OK)
        return status;
    if (!json_is_boolean(v))
        return wrong_type(c, key, v, "true or false");
    *out = json_is_true(v) ? 1 : 0;
    return IFX_OK;
}

static int32_t get_string(const struct ifx_config *c, const char *key, const char **out)
{
    const json_t *v;
    int32_t status = lookup(c, key, &v);
    if (status != IFX_OK)
        return status;
    if (!json_is_string(v))
        return wrong_type(c, key, v, "text");
    *out = json_string_value(v);
    return IFX_OK;
}

static int32_t get_array(const struct ifx_config *c, const char *key, const json_t **out)
{
    int32_t status = lookup(c, key, out);
    if (status != IFX_OK)
        return status;
    return json_is_array(*out) ? IFX_OK : wrong_type(c, key, *out, "an array");
}

static int32_t get_count(const struct ifx_config *c, const char *key, uint64_t *out)
{
    const json_t *v;
    int32_t status = get_array(c, key, &v);
    if (status == IFX_OK)
        *out = json_array_size(v);
    return status;
}

static int32_t get_at(const struct ifx_config *c, const char *key, uint64_t index, const json_t **out)
{
    const json_t *v;
    int32_t status = get_array(c, key, &v);
    if (status != IFX_OK)
        return status;
    *out = json_array_get(v, index);
    return *out == NULL || json_is_null(*out) ? IFX_ENOTFOUND : IFX_OK;
}

static int32_t get_string_at(const struct ifx_config *c, const char *key, uint64_t index, const char **out)
{
    const json_t *v;
    int32_t status = get_at(c, key, index, &v);
    if (status != IFX_OK)
        return status;
    if (!json_is_string(v))
        return wrong_type(c, key, v, "text in the array");
    *out = json_string_value(v);
    return IFX_OK;
}

static int32_t get_int_at(const struct ifx_config *c, const char *key, uint64_t index, int64_t *out)
{
    const json_t *v;
    int32_t status = get_at(c, key, index, &v);
    if (status != IFX_OK)
        return status;
    if (!json_is_integer(v))
        return wrong_type(c, key, v, "a whole number in the array");
    *out = json_integer_value(v);
    return IFX_OK;
}

/* The text model's class behind a multimodal name: XForConditionalGeneration holds XForCausalLM. */
static int32_t find_architecture(struct artifact *a, const char *what)
{
    static const char multimodal[] = "ForConditionalGeneration";
    const json_t *list = json_object_get(a->config, "architectures");
    if (list == NULL || json_is_null(list))
        list = a->text_config ? json_object_get(a->text_config, "architectures") : NULL;
    const char *name = json_is_array(list) ? json_string_value(json_array_get(list, 0)) : NULL;
    if (name == NULL)
        return base_error(IFX_EFORMAT, "%s: \"architectures\" is missing or no list of names: which model this is "
                          "cannot be told", what);
    size_t n = strlen(name), m = sizeof multimodal - 1;
    if (n > m && strcmp(name + n - m, multimodal) == 0)
        a->architecture = base_format("%.*sForCausalLM", (int)(n - m), name);
    else
        a->architecture = base_strdup(name);
    return a->architecture ? IFX_OK : IFX_ENOMEM;
}

int32_t art_config_open(struct artifact *a, const char *text, uint64_t bytes, const char *what)
{
    const char *impostor = art_impostor(text, bytes);
    if (impostor != NULL)
        return base_error(IFX_EFORMAT, "%s: is %s", what, impostor);
    int32_t status = art_json_parse(text, bytes, what, 0, NULL, &a->config);
    if (status != IFX_OK)
        return status;
    if (!json_is_object(a->config))
        return base_error(IFX_EFORMAT, "%s: must hold a JSON object", what);
    json_t *nested = json_object_get(a->config, "text_config");
    if (nested != NULL && !json_is_null(nested)) {
        if (!json_is_object(nested))
            return base_error(IFX_EFORMAT, "%s: \"text_config\" must be an object", what);
        a->text_config = nested;
    }
    a->config_ops = (struct ifx_config){
        .struct_size = sizeof(struct ifx_config), .ctx = a,
        .get_int = get_int, .get_float = get_float, .get_bool = get_bool, .get_string = get_string,
        .get_count = get_count, .get_string_at = get_string_at, .get_int_at = get_int_at,
    };
    return find_architecture(a, what);
}

void art_config_close(struct artifact *a)
{
    json_decref(a->config);
    a->config = a->text_config = NULL;
    base_free(a->architecture);
    a->architecture = NULL;
}
