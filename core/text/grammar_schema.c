/* SPDX-License-Identifier: Apache-2.0
 *
 * grammar_schema.c - from a JSON Schema to the nodes of a grammar.  What a grammar cannot hold an answer to is refused by name: a promise that is
 * not kept would be worse.
 */
#include "config.h"
#include "grammar_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SCHEMA_DEPTH 64u

struct compiler {
    struct text_grammar *g;
    const json_t *root;
    const char *where;
    uint32_t depth;
};

int32_t grammar_add_node(struct text_grammar *g, uint32_t types, uint32_t *node)
{
    if (g->n_nodes == GRAMMAR_MAX_NODES)
        return base_error(IFX_ELIMIT, "the schema has more than %u parts", GRAMMAR_MAX_NODES);
    if (g->n_nodes == g->room) {
        uint32_t room = g->room * 2 + 16;
        struct grammar_node *grown = base_realloc(g->nodes, room, sizeof *grown);
        if (grown == NULL)
            return IFX_ENOMEM;
        g->nodes = grown;
        g->room = room;
    }
    g->nodes[g->n_nodes] = (struct grammar_node){.types = types, .any_value = GRAMMAR_NONE, .items = GRAMMAR_NONE, .max_items = UINT64_MAX,
                                                 .max_length = UINT64_MAX};
    *node = g->n_nodes++;
    return IFX_OK;
}

int32_t grammar_add_text(struct grammar_node *n, const char *text, uint32_t value)
{
    if (n->n_texts == GRAMMAR_MAX_TEXTS)
        return base_error(IFX_ELIMIT, "more than %u properties, values of an enum or tools", GRAMMAR_MAX_TEXTS);
    if (n->texts == NULL) {
        n->texts = base_calloc(GRAMMAR_MAX_TEXTS, sizeof(char *));
        n->values = base_calloc(GRAMMAR_MAX_TEXTS, sizeof *n->values);
        if (n->texts == NULL || n->values == NULL)
            return IFX_ENOMEM;
    }
    n->values[n->n_texts] = value;
    n->texts[n->n_texts] = base_strdup(text);
    return n->texts[n->n_texts++] != NULL ? IFX_OK : IFX_ENOMEM;
}

static int32_t compile(struct compiler *c, const json_t *schema, const char *path, uint32_t node);

static int32_t add_literal(struct compiler *c, uint32_t node, const json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    int32_t st = text == NULL ? IFX_ENOMEM : grammar_add_text(&c->g->nodes[node], text, GRAMMAR_NONE);
    free(text);
    c->g->nodes[node].literal = true;
    return st;
}

static int32_t read_type(const json_t *type, const char *path, uint32_t *types)
{
    static const struct {
        const char *name;
        uint32_t bits;
    } names[] = {{"null", GRAMMAR_NULL}, {"boolean", GRAMMAR_BOOLEAN}, {"integer", GRAMMAR_INTEGER}, {"number", GRAMMAR_NUMBER},
                 {"string", GRAMMAR_STRING}, {"array", GRAMMAR_ARRAY}, {"object", GRAMMAR_OBJECT}};
    const json_t *one;
    size_t i;
    if (json_is_string(type)) {
        for (uint32_t k = 0; k < 7; k++)
            if (strcmp(names[k].name, json_string_value(type)) == 0) {
                *types |= names[k].bits;
                return IFX_OK;
            }
        return base_error(IFX_EINVAL, "%s.type: \"%.40s\" is no JSON type", path, json_string_value(type));
    }
    if (!json_is_array(type) || json_array_size(type) == 0)
        return base_error(IFX_EINVAL, "%s.type: a type or a list of types is expected", path);
    json_array_foreach(type, i, one) {
        int32_t st = json_is_string(one) ? read_type(one, path, types) : base_error(IFX_EINVAL, "%s.type: a list of names is expected", path);
        if (st)
            return st;
    }
    return IFX_OK;
}

/* A member schema's node, under its own path. */
static int32_t child(struct compiler *c, const json_t *schema, const char *path, const char *name, uint32_t *node)
{
    char *below = base_format("%s.%s", path, name);
    int32_t st = below == NULL ? IFX_ENOMEM : grammar_add_node(c->g, 0, node);
    if (!st)
        st = compile(c, schema, below, *node);
    base_free(below);
    return st;
}

static int32_t read_count(const json_t *schema, const char *path, const char *name, uint64_t *out)
{
    const json_t *v = json_object_get(schema, name);
    if (v == NULL)
        return IFX_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return base_error(IFX_EINVAL, "%s.%s: a whole number from 0 on is expected", path, name);
    *out = (uint64_t)json_integer_value(v);
    return IFX_OK;
}

static int32_t read_required(struct compiler *c, const json_t *schema, const char *path, uint32_t node)
{
    const json_t *required = json_object_get(schema, "required"), *name;
    struct grammar_node *n = &c->g->nodes[node];
    size_t i;
    if (required != NULL && !json_is_array(required))
        return base_error(IFX_EINVAL, "%s.required: a list of names is expected", path);
    json_array_foreach(required, i, name) {
        char *text = json_is_string(name) ? json_dumps(name, JSON_ENCODE_ANY) : NULL;
        uint32_t k = 0;
        while (text != NULL && k < n->n_texts && strcmp(n->texts[k], text) != 0)
            k++;
        free(text);
        if (text == NULL || k == n->n_texts)
            return base_error(IFX_EUNSUPPORTED, "%s.required: \"%.40s\" is not among the properties", path,
                              json_is_string(name) ? json_string_value(name) : "?");
        n->required |= 1ull << k;
    }
    return IFX_OK;
}

static int32_t read_object(struct compiler *c, const json_t *schema, const char *path, uint32_t node)
{
    const json_t *properties = json_object_get(schema, "properties"), *extra = json_object_get(schema, "additionalProperties");
    const char *key;
    json_t *value;
    int32_t st = IFX_OK;
    if (properties != NULL && !json_is_object(properties))
        return base_error(IFX_EINVAL, "%s.properties: an object is expected", path);
    if (extra != NULL && !json_is_object(extra) && !json_is_boolean(extra))
        return base_error(IFX_EINVAL, "%s.additionalProperties: true, false or a schema is expected", path);
    json_object_foreach((json_t *)properties, key, value) {
        uint32_t below;
        char *name = base_format("properties.%s", key);
        json_t *text = json_string(key);
        char *quoted = json_dumps(text, JSON_ENCODE_ANY);
        st = name == NULL || quoted == NULL ? IFX_ENOMEM : child(c, value, path, name, &below);
        if (!st)
            st = grammar_add_text(&c->g->nodes[node], quoted, below);
        base_free(name);
        free(quoted);
        json_decref(text);
        if (st)
            return st;
    }
    if (json_object_size(properties) == 0 && !json_is_false(extra)) {
        uint32_t any;
        st = json_is_object(extra) ? child(c, extra, path, "additionalProperties", &any) : grammar_add_node(c->g, GRAMMAR_ANY, &any);
        c->g->nodes[node].any_value = any;
        if (!st && !json_is_object(extra)) { /* anything, all the way down */
            c->g->nodes[any].any_value = any;
            c->g->nodes[any].items = any;
        }
    } else if (json_object_size(properties) > 0 && json_is_object(extra)) {
        uint32_t unused;
        st = child(c, extra, path, "additionalProperties", &unused); /* checked all the same */
    }
    return st ? st : read_required(c, schema, path, node);
}

static int32_t read_array(struct compiler *c, const json_t *schema, const char *path, uint32_t node)
{
    const json_t *items = json_object_get(schema, "items");
    uint32_t below;
    int32_t st = items != NULL ? child(c, items, path, "items", &below) : grammar_add_node(c->g, GRAMMAR_ANY, &below);
    if (st)
        return st;
    if (items == NULL)
        c->g->nodes[below].any_value = c->g->nodes[below].items = below;
    c->g->nodes[node].items = below;
    st = read_count(schema, path, "minItems", &c->g->nodes[node].min_items);
    if (!st)
        st = read_count(schema, path, "maxItems", &c->g->nodes[node].max_items);
    if (!st && c->g->nodes[node].min_items > c->g->nodes[node].max_items)
        st = base_error(IFX_EINVAL, "%s.minItems: above maxItems", path);
    return st;
}

static int32_t read_enum(struct compiler *c, const json_t *schema, const char *path, uint32_t node)
{
    const json_t *values = json_object_get(schema, "enum"), *only = json_object_get(schema, "const"), *v;
    size_t i;
    if (only != NULL)
        return add_literal(c, node, only);
    if (!json_is_array(values) || json_array_size(values) == 0)
        return base_error(IFX_EINVAL, "%s.enum: a list of values is expected", path);
    json_array_foreach(values, i, v) {
        int32_t st = add_literal(c, node, v);
        if (st)
            return base_error_prefix(st, "%s.enum", path);
    }
    return IFX_OK;
}

/* Takes a member of anyOf into the node that stands for all of them. */
static int32_t merge(struct compiler *c, uint32_t node, uint32_t member, const char *path)
{
    struct grammar_node *n = &c->g->nodes[node], *m = &c->g->nodes[member];
    uint32_t both = n->types & m->types;
    if (both & (GRAMMAR_STRING | GRAMMAR_ARRAY | GRAMMAR_OBJECT))
        return base_error(IFX_EUNSUPPORTED, "%s: two members of one type are not supported", path);
    if (m->types & GRAMMAR_STRING) {
        n->min_length = m->min_length;
        n->max_length = m->max_length;
    }
    if (m->types & GRAMMAR_ARRAY) {
        n->items = m->items;
        n->min_items = m->min_items;
        n->max_items = m->max_items;
    }
    n->types |= m->types;
    n->literal |= m->literal;
    if (m->types & GRAMMAR_OBJECT) {
        n->any_value = m->any_value;
        n->required = m->required;
    }
    for (uint32_t i = 0; i < m->n_texts; i++) {
        int32_t st = grammar_add_text(n, m->texts[i], m->values[i]);
        if (st)
            return base_error_prefix(st, "%s", path);
    }
    return IFX_OK;
}

/* Beside values of an enum, null and the booleans are values too. */
static int32_t as_literals(struct compiler *c, uint32_t node)
{
    uint32_t types = c->g->nodes[node].types;
    int32_t st = IFX_OK;
    if (c->g->nodes[node].literal || types == 0 || (types & ~(GRAMMAR_NULL | GRAMMAR_BOOLEAN)))
        return IFX_OK;
    c->g->nodes[node].types = 0;
    c->g->nodes[node].literal = true;
    if (types & GRAMMAR_NULL)
        st = grammar_add_text(&c->g->nodes[node], "null", GRAMMAR_NONE);
    if (!st && types & GRAMMAR_BOOLEAN)
        st = grammar_add_text(&c->g->nodes[node], "true", GRAMMAR_NONE);
    return !st && types & GRAMMAR_BOOLEAN ? grammar_add_text(&c->g->nodes[node], "false", GRAMMAR_NONE) : st;
}

static int32_t read_any_of(struct compiler *c, const json_t *list, const char *path, const char *name, uint32_t node)
{
    const json_t *one;
    size_t i;
    uint32_t member;
    bool literal = false;
    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > GRAMMAR_MAX_TEXTS)
        return base_error(IFX_EINVAL, "%s.%s: a list of 1 to %u schemas is expected", path, name, GRAMMAR_MAX_TEXTS);
    uint32_t members[GRAMMAR_MAX_TEXTS], n = 0;
    json_array_foreach(list, i, one) {
        char below[32];
        snprintf(below, sizeof below, "%s[%u]", name, (unsigned)i);
        int32_t st = child(c, one, path, below, &member);
        if (st)
            return st;
        members[n++] = member;
        literal |= c->g->nodes[member].literal;
    }
    for (uint32_t k = 0; k < n; k++) {
        int32_t st = literal ? as_literals(c, members[k]) : IFX_OK;
        char *where = base_format("%s.%s", path, name);
        if (!st)
            st = where == NULL ? IFX_ENOMEM
                 : literal && !c->g->nodes[members[k]].literal
                     ? base_error(IFX_EUNSUPPORTED, "%s: values of an enum beside other types are not supported", where)
                     : merge(c, node, members[k], where);
        base_free(where);
        if (st)
            return st;
    }
    return IFX_OK;
}

static int32_t read_ref(struct compiler *c, const json_t *ref, const char *path, uint32_t node)
{
    const char *text = json_string_value(ref);
    const json_t *target = NULL;
    if (text != NULL && strcmp(text, "#") == 0)
        target = c->root;
    else if (text != NULL && strncmp(text, "#/$defs/", 8) == 0)
        target = json_object_get(json_object_get(c->root, "$defs"), text + 8);
    else if (text != NULL && strncmp(text, "#/definitions/", 14) == 0)
        target = json_object_get(json_object_get(c->root, "definitions"), text + 14);
    if (target == NULL)
        return base_error(IFX_EUNSUPPORTED, "%s.$ref: \"%.60s\" does not lead into $defs or definitions of this schema", path, text ? text : "?");
    return compile(c, target, path, node);
}

static int32_t check_keywords(const json_t *schema, const char *path)
{
    static const char *const known[] = {"type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "enum",
                                        "const", "minLength", "maxLength", "anyOf", "oneOf", "allOf", "$ref", "$defs", "definitions", "title",
                                        "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", NULL};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key, value) {
        uint32_t k = 0;
        while (known[k] != NULL && strcmp(known[k], key) != 0)
            k++;
        if (known[k] == NULL)
            return base_error(IFX_EUNSUPPORTED, "%s.%.60s: this keyword is not supported", path, key);
    }
    return IFX_OK;
}

static int32_t compile_types(struct compiler *c, const json_t *schema, const char *path, uint32_t node)
{
    const json_t *type = json_object_get(schema, "type");
    uint32_t types = 0;
    int32_t st = type != NULL ? read_type(type, path, &types) : IFX_OK;
    if (st)
        return st;
    if (type == NULL && (json_object_get(schema, "properties") || json_object_get(schema, "required")))
        types = GRAMMAR_OBJECT;
    else if (type == NULL && json_object_get(schema, "items"))
        types = GRAMMAR_ARRAY;
    else if (type == NULL)
        types = GRAMMAR_ANY;
    c->g->nodes[node].types = types;
    if (types & GRAMMAR_OBJECT)
        st = read_object(c, schema, path, node);
    if (!st && types & GRAMMAR_ARRAY)
        st = read_array(c, schema, path, node);
    if (!st && types & GRAMMAR_STRING) {
        st = read_count(schema, path, "minLength", &c->g->nodes[node].min_length);
        if (!st)
            st = read_count(schema, path, "maxLength", &c->g->nodes[node].max_length);
        if (!st && c->g->nodes[node].min_length > c->g->nodes[node].max_length)
            st = base_error(IFX_EINVAL, "%s.minLength: above maxLength", path);
    }
    return st;
}

static int32_t compile_schema(struct compiler *c, const json_t *schema, const char *path, uint32_t node)
{
    const json_t *any = json_object_get(schema, "anyOf"), *one = json_object_get(schema, "oneOf"), *all = json_object_get(schema, "allOf");
    const json_t *ref = json_object_get(schema, "$ref");
    int32_t st = check_keywords(schema, path);
    if (st)
        return st;
    if (ref != NULL)
        return read_ref(c, ref, path, node);
    if (all != NULL && json_array_size(all) != 1)
        return base_error(IFX_EUNSUPPORTED, "%s.allOf: only one member is supported", path);
    if (all != NULL)
        return compile(c, json_array_get(all, 0), path, node);
    if (any != NULL || one != NULL)
        return read_any_of(c, any != NULL ? any : one, path, any != NULL ? "anyOf" : "oneOf", node);
    if (json_object_get(schema, "enum") != NULL || json_object_get(schema, "const") != NULL)
        return read_enum(c, schema, path, node);
    return compile_types(c, schema, path, node);
}

static int32_t compile(struct compiler *c, const json_t *schema, const char *path, uint32_t node)
{
    if (json_is_true(schema)) {
        c->g->nodes[node].types = GRAMMAR_ANY;
        c->g->nodes[node].any_value = c->g->nodes[node].items = node;
        return IFX_OK;
    }
    if (!json_is_object(schema))
        return base_error(IFX_EINVAL, "%s: a schema is an object", path);
    if (++c->depth > MAX_SCHEMA_DEPTH)
        return base_error(IFX_EUNSUPPORTED, "%s: schemas nested deeper than %u, or containing themselves, are not supported", c->where, MAX_SCHEMA_DEPTH);
    int32_t st = compile_schema(c, schema, path, node);
    c->depth--;
    return st;
}

int32_t grammar_compile(struct text_grammar *g, const json_t *schema, const char *where, uint32_t *node)
{
    struct compiler c = {.g = g, .root = schema, .where = where};
    int32_t st = grammar_add_node(g, 0, node);
    return st ? st : compile(&c, schema, where, *node);
}
