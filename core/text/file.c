/* SPDX-License-Identifier: Apache-2.0
 *
 * file.c - tokenizer.json beside its model: normalizer, pre-tokenizer, post-processor, decoder.  What would change ids or text and is
 * not implemented is refused by its name.
 */
#include "config.h"
#include "text_internal.h"
#include <stdio.h>
#include <string.h>

#define GPT2_SPLIT "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define MAX_DEPTH 8

int32_t text_json(const char *what, const char *bytes, uint64_t n, json_t **out)
{
    json_error_t e;
    *out = json_loadb(bytes, n, JSON_REJECT_DUPLICATES, &e);
    if (*out == NULL)
        return base_error(IFX_EFORMAT, "%s: not valid JSON at line %d, column %d: %s", what, e.line, e.column, e.text);
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return base_error(IFX_EFORMAT, "%s: an object is expected", what);
    }
    return IFX_OK;
}

static const char *type_of(const json_t *node)
{
    const char *type = json_string_value(json_object_get(node, "type"));
    return type == NULL ? "(no type)" : type;
}

static int32_t refuse(const char *part, const json_t *node)
{
    return base_error(IFX_EUNSUPPORTED, "tokenizer.json: %s \"%s\" is not supported", part, type_of(node));
}

/* Members of a Sequence, or NULL when node is none. */
static const json_t *sequence(const json_t *node, const char *members)
{
    const json_t *list = json_object_get(node, members);
    return strcmp(type_of(node), "Sequence") == 0 && json_is_array(list) ? list : NULL;
}

static int32_t normalizer(struct text_tokenizer *t, const json_t *node, uint32_t depth)
{
    const json_t *list = sequence(node, "normalizers"), *member;
    size_t i;
    if (node == NULL || json_is_null(node))
        return IFX_OK;
    if (strcmp(type_of(node), "NFC") == 0) {
        t->nfc = true;
        return IFX_OK;
    }
    if (list == NULL || depth == MAX_DEPTH)
        return refuse("normalizer", node);
    json_array_foreach(list, i, member) {
        int32_t st = normalizer(t, member, depth + 1);
        if (st != IFX_OK)
            return st;
    }
    return IFX_OK;
}

int32_t text_load_normalizer(struct text_tokenizer *t, const json_t *node)
{
    return normalizer(t, node, 0);
}

static int32_t add_split(struct text_tokenizer *t, const char *regex)
{
    if (t->n_splits == TEXT_MAX_SPLITS)
        return base_error(IFX_EUNSUPPORTED, "tokenizer.json: more than %d splits in pre_tokenizer", TEXT_MAX_SPLITS);
    int32_t st = text_pattern_create(regex, &t->splits[t->n_splits]);
    if (st != IFX_OK)
        return base_error_prefix(st, "tokenizer.json: pre_tokenizer");
    t->n_splits++;
    return IFX_OK;
}

static int32_t split(struct text_tokenizer *t, const json_t *node)
{
    const json_t *pattern = json_object_get(node, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *behavior = json_string_value(json_object_get(node, "behavior"));
    const json_t *invert = json_object_get(node, "invert");
    if (regex == NULL || *regex == 0)
        return base_error(IFX_EUNSUPPORTED, "tokenizer.json: pre_tokenizer Split: a pattern other than {\"Regex\": text}");
    if (behavior == NULL || strcmp(behavior, "Isolated") != 0)
        return base_error(IFX_EUNSUPPORTED, "tokenizer.json: pre_tokenizer Split: behavior \"%s\" is not supported",
                          behavior == NULL ? "(none)" : behavior);
    if (invert != NULL && !json_is_false(invert))
        return base_error(IFX_EUNSUPPORTED, "tokenizer.json: pre_tokenizer Split: \"invert\" is not supported");
    return add_split(t, regex);
}

static int32_t byte_level(struct text_tokenizer *t, const json_t *node)
{
    const json_t *use_regex = json_object_get(node, "use_regex");
    if (!json_is_false(json_object_get(node, "add_prefix_space")))
        return base_error(IFX_EUNSUPPORTED,
                          "tokenizer.json: pre_tokenizer ByteLevel: \"add_prefix_space\" other than false is not supported");
    if (use_regex != NULL && !json_is_boolean(use_regex))
        return base_error(IFX_EFORMAT, "tokenizer.json: pre_tokenizer ByteLevel: \"use_regex\" is neither true nor false");
    return json_is_false(use_regex) ? IFX_OK : add_split(t, GPT2_SPLIT);
}

/* *bytes: a ByteLevel was seen; what comes after it would see another alphabet. */
static int32_t pre_tokenizer(struct text_tokenizer *t, const json_t *node, uint32_t depth, bool *bytes)
{
    const json_t *list = sequence(node, "pretokenizers"), *member;
    size_t i;
    if (list == NULL && *bytes)
        return base_error(IFX_EUNSUPPORTED, "tokenizer.json: pre_tokenizer \"%s\" after ByteLevel is not supported",
                          type_of(node));
    if (strcmp(type_of(node), "Split") == 0)
        return split(t, node);
    if (strcmp(type_of(node), "ByteLevel") == 0) {
        *bytes = true;
        return byte_level(t, node);
    }
    if (list == NULL || depth == MAX_DEPTH)
        return refuse("pre_tokenizer", node);
    json_array_foreach(list, i, member) {
        int32_t st = pre_tokenizer(t, member, depth + 1, bytes);
        if (st != IFX_OK)
            return st;
    }
    return IFX_OK;
}

int32_t text_load_pre_tokenizer(struct text_tokenizer *t, const json_t *node)
{
    bool bytes = false;
    int32_t st = pre_tokenizer(t, node, 0, &bytes);
    if (st == IFX_OK && !bytes)
        st = base_error(IFX_EUNSUPPORTED, "tokenizer.json: a pre_tokenizer without ByteLevel is not supported");
    return st;
}

/* ByteLevel there moves offsets only; a template that adds tokens around the text would change ids. */
static int32_t post_processor(const json_t *node, uint32_t depth)
{
    const json_t *list = sequence(node, "processors"), *member;
    size_t i;
    if (node == NULL || json_is_null(node) || strcmp(type_of(node), "ByteLevel") == 0)
        return IFX_OK;
    if (strcmp(type_of(node), "TemplateProcessing") == 0) {
        const json_t *single = json_object_get(node, "single");
        if (json_array_size(single) == 1 && json_object_get(json_array_get(single, 0), "Sequence") != NULL)
            return IFX_OK;
        return base_error(IFX_EUNSUPPORTED,
                          "tokenizer.json: post_processor \"TemplateProcessing\" that adds tokens is not supported");
    }
    if (list == NULL || depth == MAX_DEPTH)
        return refuse("post_processor", node);
    json_array_foreach(list, i, member) {
        int32_t st = post_processor(member, depth + 1);
        if (st != IFX_OK)
            return st;
    }
    return IFX_OK;
}

int32_t text_load_post_processor(const json_t *node)
{
    return post_processor(node, 0);
}

int32_t text_load_decoder(const json_t *node)
{
    const json_t *list = sequence(node, "decoders");
    if (list != NULL && json_array_size(list) == 1)
        node = json_array_get(list, 0);
    return strcmp(type_of(node), "ByteLevel") == 0 ? IFX_OK : refuse("decoder", node);
}
