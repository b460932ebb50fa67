/* SPDX-License-Identifier: Apache-2.0
 *
 * vocab.c - vocabulary, merges and added tokens of tokenizer.json and tokenizer_config.json.
 */
#include "config.h"
#include "text_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_IDS (4u << 20)

static int32_t check_id(const json_t *id, const char *of, uint32_t *n)
{
    if (!json_is_integer(id))
        return base_error(IFX_EFORMAT, "tokenizer.json: the id of \"%.80s\" is not a whole number", of);
    json_int_t v = json_integer_value(id);
    if (v < 0 || v >= MAX_IDS)
        return base_error(IFX_EFORMAT, "tokenizer.json: id %lld of \"%.80s\" is out of range: 0 to %u", (long long)v, of,
                          MAX_IDS - 1);
    if ((uint32_t)v >= *n)
        *n = (uint32_t)v + 1;
    return IFX_OK;
}

/* Keys of added_tokens_decoder are ids in decimal. */
static int32_t config_id(const char *key, int64_t *id)
{
    int32_t st = base_parse_i64(key, "added_tokens_decoder", 0, MAX_IDS - 1, id);
    return st == IFX_OK ? IFX_OK : base_error_prefix(IFX_EFORMAT, "tokenizer_config.json");
}

int32_t text_count_ids(const json_t *model, const json_t *added, const json_t *config_added, uint32_t *n)
{
    const json_t *vocab = json_object_get(model, "vocab");
    const char *key;
    json_t *value;
    size_t i;
    int32_t st = IFX_OK;
    *n = 0;
    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return base_error(IFX_EFORMAT, "tokenizer.json: model.vocab is missing or empty");
    json_object_foreach((json_t *)vocab, key, value)
        if ((st = check_id(value, key, n)) != IFX_OK)
            return st;
    json_array_foreach(added, i, value) {
        const char *content = json_string_value(json_object_get(value, "content"));
        if ((st = check_id(json_object_get(value, "id"), content ? content : "an added token", n)) != IFX_OK)
            return st;
    }
    json_object_foreach((json_t *)config_added, key, value) {
        int64_t id;
        if ((st = config_id(key, &id)) != IFX_OK)
            return st;
        if ((uint32_t)id >= *n)
            *n = (uint32_t)id + 1;
    }
    return IFX_OK;
}

/* The bytes a token stands for: through the byte-level alphabet, or as spelled when one of its characters is not in it. */
static int32_t store(struct text_tokenizer *t, uint32_t id, const char *s, uint64_t n)
{
    struct text_token *token = &t->tokens[id];
    uint64_t from = t->arena.len, i = 0;
    if (from + n >= TEXT_MAX_BYTES)
        return base_error(IFX_ELIMIT, "tokenizer.json: vocabulary of more than 1 GiB");
    int32_t st = base_buf_add(&t->arena, "", 0);
    while (i < n && st == IFX_OK) {
        uint32_t len;
        int32_t byte = text_char_to_byte(text_utf8_get(s + i, &len));
        if (byte < 0) {
            t->arena.len = from;
            st = base_buf_add(&t->arena, s, n);
            break;
        }
        char c = (char)byte;
        st = base_buf_add(&t->arena, &c, 1);
        i += len;
    }
    token->offset = (uint32_t)from;
    token->len = (uint32_t)(t->arena.len - from);
    return st;
}

static int32_t load_vocab(struct text_tokenizer *t, const json_t *vocab)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)vocab, key, value) {
        uint32_t id = (uint32_t)json_integer_value(value), len;
        if (t->tokens[id].len != TEXT_NONE)
            return base_error(IFX_EFORMAT, "tokenizer.json: id %u is given to two tokens, one of them \"%.80s\"", id, key);
        int32_t st = store(t, id, key, strlen(key));
        if (st != IFX_OK)
            return st;
        int32_t byte = *key ? text_char_to_byte(text_utf8_get(key, &len)) : -1;
        if (byte >= 0 && key[len] == 0)
            t->byte_id[byte] = id;
    }
    for (uint32_t b = 0; b < 256; b++)
        if (t->byte_id[b] == TEXT_NONE)
            return base_error(IFX_EUNSUPPORTED, "tokenizer.json: model.vocab has no token for the byte 0x%02x: not a "
                                                "byte-level vocabulary", b);
    return IFX_OK;
}

static int32_t merge_parts(const json_t *merge, uint64_t index, struct base_buf *left, struct base_buf *right)
{
    left->len = right->len = 0;
    const char *a = json_string_value(json_array_get(merge, 0)), *b = json_string_value(json_array_get(merge, 1));
    uint64_t a_len = a ? strlen(a) : 0;
    if (json_is_string(merge)) {
        a = json_string_value(merge);
        b = strchr(a, ' ');
        if (b != NULL) {
            a_len = (uint64_t)(b - a);
            b++;
        }
        if (b != NULL && strchr(b, ' ') != NULL)
            b = NULL;
    } else if (json_array_size(merge) != 2) {
        b = NULL;
    }
    if (a == NULL || b == NULL || a_len == 0 || *b == 0)
        return base_error(IFX_EFORMAT, "tokenizer.json: model.merges[%llu] is not a pair of tokens",
                          (unsigned long long)index);
    int32_t st = base_buf_add(left, a, a_len);
    return st == IFX_OK ? base_buf_add(right, b, strlen(b)) : st;
}

static int32_t vocab_id(const json_t *vocab, const char *token, uint64_t index, uint32_t *id)
{
    const json_t *v = json_object_get(vocab, token);
    if (v == NULL)
        return base_error(IFX_EFORMAT, "tokenizer.json: model.merges[%llu] needs the token \"%.80s\", which is not in the "
                                       "vocabulary", (unsigned long long)index, token);
    *id = (uint32_t)json_integer_value(v);
    return IFX_OK;
}

static int32_t load_merges(struct text_tokenizer *t, const json_t *vocab, const json_t *merges)
{
    struct base_buf left = {0}, right = {0};
    const json_t *merge;
    size_t i;
    int32_t st = text_pairs_create(&t->pairs, json_array_size(merges));
    if (st != IFX_OK)
        return st;
    json_array_foreach(merges, i, merge) {
        uint32_t a = 0, b = 0, joined = 0;
        st = merge_parts(merge, i, &left, &right);
        if (st == IFX_OK)
            st = vocab_id(vocab, left.data, i, &a);
        if (st == IFX_OK)
            st = vocab_id(vocab, right.data, i, &b);
        if (st == IFX_OK)
            st = base_buf_add(&left, right.data, right.len);
        if (st == IFX_OK)
            st = vocab_id(vocab, left.data, i, &joined);
        if (st != IFX_OK)
            break;
        text_pairs_set(&t->pairs, a, b, (uint32_t)i, joined);
    }
    base_buf_free(&left);
    base_buf_free(&right);
    return st;
}

/* Fields of the model whose other values would change ids. */
static int32_t check_model(const json_t *model)
{
    static const char *const known[] = {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                                        "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges", NULL};
    const char *type = json_string_value(json_object_get(model, "type")), *key;
    json_t *value;
    if (type == NULL || strcmp(type, "BPE") != 0)
        return base_error(IFX_EUNSUPPORTED, "tokenizer.json: model type \"%s\" is not supported, BPE is",
                          type ? type : "(none)");
    json_object_foreach((json_t *)model, key, value) {
        uint32_t k = 0;
        while (known[k] != NULL && strcmp(known[k], key) != 0)
            k++;
        /* All bytes are in the vocabulary, so nothing is ever unknown and unk_token and fuse_unk have no effect. */
        bool off = json_is_null(value) || json_is_false(value) ||
                   (json_is_string(value) && json_string_length(value) == 0) ||
                   (json_is_number(value) && json_number_value(value) == 0.0);
        bool any = k == 0 || k == 2 || k == 5 || k >= 8;
        if (known[k] == NULL || (!any && !off))
            return base_error(IFX_EUNSUPPORTED, "tokenizer.json: model.%.80s %s not supported", key,
                              known[k] == NULL ? "is" : "with this value is");
    }
    if (!json_is_array(json_object_get(model, "merges")))
        return base_error(IFX_EFORMAT, "tokenizer.json: model.merges is missing or not a list");
    return IFX_OK;
}

int32_t text_load_model(struct text_tokenizer *t, const json_t *model, uint32_t n_ids)
{
    const json_t *vocab = json_object_get(model, "vocab");
    int32_t st = check_model(model);
    if (st != IFX_OK)
        return st;
    t->tokens = base_calloc(n_ids, sizeof(*t->tokens));
    if (t->tokens == NULL)
        return IFX_ENOMEM;
    t->n_tokens = n_ids;
    for (uint32_t i = 0; i < n_ids; i++)
        t->tokens[i].len = TEXT_NONE;
    for (uint32_t b = 0; b < 256; b++)
        t->byte_id[b] = TEXT_NONE;
    st = load_vocab(t, vocab);
    return st == IFX_OK ? load_merges(t, vocab, json_object_get(model, "merges")) : st;
}

static int32_t flag(const json_t *node, const char *name, bool fallback, bool *out)
{
    const json_t *v = json_object_get(node, name);
    if (v != NULL && !json_is_boolean(v))
        return base_error(IFX_EFORMAT, "tokenizer.json: added token: \"%s\" is neither true nor false", name);
    *out = v == NULL ? fallback : json_is_true(v);
    return IFX_OK;
}

static int32_t copy_text(const char *s, uint64_t n, char **out)
{
    *out = base_alloc(n + 1, 1);
    if (*out == NULL)
        return IFX_ENOMEM;
    memcpy(*out, s, n);
    (*out)[n] = 0;
    return IFX_OK;
}

static int32_t set_pattern(const struct text_tokenizer *t, struct text_added *a)
{
    struct base_buf b = {0};
    int32_t st = a->normalized && t->nfc ? text_nfc(a->content, a->len, &b) : base_buf_add(&b, a->content, a->len);
    if (st == IFX_OK)
        st = copy_text(b.data ? b.data : "", b.len, &a->pattern);
    a->pattern_len = (uint32_t)b.len;
    base_buf_free(&b);
    return st;
}

/* Several entries may name one token (both files list them): the first one's flags stay, special if any says so. */
static int32_t known_already(struct text_tokenizer *t, int32_t id, const char *content, bool special, bool *known)
{
    *known = false;
    for (uint32_t i = 0; i < t->n_added; i++) {
        struct text_added *a = &t->added[i];
        bool same = strcmp(a->content, content) == 0;
        if (same != (a->id == id))
            return base_error(IFX_EFORMAT, "added token \"%.80s\" (id %d) contradicts \"%.80s\" (id %d)", content, id,
                              a->content, a->id);
        if (same) {
            *known = true;
            a->special = a->special || special;
            t->tokens[id].special = a->special;
        }
    }
    return IFX_OK;
}

static int32_t add_one(struct text_tokenizer *t, int32_t id, const json_t *node)
{
    const char *content = json_string_value(json_object_get(node, "content"));
    bool special = false, known = false;
    if (content == NULL || *content == 0)
        return base_error(IFX_EFORMAT, "added token %d has no content", id);
    int32_t st = flag(node, "special", false, &special);
    if (st == IFX_OK)
        st = known_already(t, id, content, special, &known);
    if (st != IFX_OK || known)
        return st;
    struct text_added *a = &t->added[t->n_added++];
    a->id = id;
    a->special = special;
    a->len = (uint32_t)strlen(content);
    if ((st = flag(node, "normalized", !special, &a->normalized)) != IFX_OK ||
        (st = flag(node, "lstrip", false, &a->lstrip)) != IFX_OK ||
        (st = flag(node, "rstrip", false, &a->rstrip)) != IFX_OK ||
        (st = flag(node, "single_word", false, &a->single_word)) != IFX_OK ||
        (st = copy_text(content, a->len, &a->content)) != IFX_OK || (st = set_pattern(t, a)) != IFX_OK)
        return st;
    struct text_token *token = &t->tokens[id];
    uint64_t arena = t->arena.len;
    struct text_token before = *token;
    if ((st = store(t, (uint32_t)id, content, a->len)) != IFX_OK)
        return st;
    if (before.len != TEXT_NONE &&
        (before.len != token->len || memcmp(t->arena.data + before.offset, t->arena.data + arena, before.len) != 0))
        return base_error(IFX_EFORMAT, "id %d is given to two tokens, one of them \"%.80s\"", id, content);
    token->special = special;
    return IFX_OK;
}

int32_t text_load_added(struct text_tokenizer *t, const json_t *added, const json_t *config_added)
{
    uint64_t n = json_array_size(added) + json_object_size(config_added);
    const char *key;
    json_t *node;
    size_t i;
    int32_t st = IFX_OK;
    t->added = base_calloc(n ? n : 1, sizeof(*t->added));
    if (t->added == NULL)
        return IFX_ENOMEM;
    json_array_foreach(added, i, node) {
        st = add_one(t, (int32_t)json_integer_value(json_object_get(node, "id")), node);
        if (st != IFX_OK)
            return base_error_prefix(st, "tokenizer.json");
    }
    json_object_foreach((json_t *)config_added, key, node) {
        int64_t id = 0;
        st = config_id(key, &id);
        if (st != IFX_OK)
            return st;
        st = add_one(t, (int32_t)id, node);
        if (st != IFX_OK)
            return base_error_prefix(st, "tokenizer_config.json");
    }
    st = text_added_set_build(&t->raw, t->added, t->n_added, false);
    return st == IFX_OK ? text_added_set_build(&t->normalized, t->added, t->n_added, true) : st;
}
