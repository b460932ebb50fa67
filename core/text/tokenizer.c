/* SPDX-License-Identifier: Apache-2.0
 *
 * tokenizer.c - creation, and text to ids.  A tokenizer never changes after creation: threads may share it.
 */
#include "config.h"
#include "text_internal.h"
#include <string.h>

static int32_t known_keys(const json_t *root)
{
    static const char *const known[] = {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                                        "post_processor", "decoder", "model", NULL};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value) {
        uint32_t k = 0;
        while (known[k] != NULL && strcmp(known[k], key) != 0)
            k++;
        if (known[k] == NULL || ((k == 1 || k == 2) && !json_is_null(value)))
            return base_error(IFX_EUNSUPPORTED, "tokenizer.json: \"%.80s\" is not supported", key);
    }
    return IFX_OK;
}

/* Settings of tokenizer_config.json that change ids or text beside what tokenizer.json says. */
static int32_t check_config(const json_t *config)
{
    static const char *const off[] = {"add_prefix_space", "add_bos_token", "add_eos_token", "split_special_tokens",
                                      "clean_up_tokenization_spaces", "do_lower_case", NULL};
    for (uint32_t k = 0; off[k] != NULL; k++)
        if (json_is_true(json_object_get(config, off[k])))
            return base_error(IFX_EUNSUPPORTED, "tokenizer_config.json: \"%s\": true is not supported", off[k]);
    return IFX_OK;
}

/* A template is text, or a list of named ones of which "default" counts. */
static int32_t load_template(struct text_tokenizer *t, const json_t *config)
{
    const json_t *node = json_object_get(config, "chat_template"), *member;
    size_t i;
    if (json_is_array(node)) {
        const json_t *found = NULL;
        json_array_foreach(node, i, member) {
            const char *name = json_string_value(json_object_get(member, "name"));
            if (name != NULL && strcmp(name, "default") == 0)
                found = json_object_get(member, "template");
        }
        node = found;
    }
    if (!json_is_string(node))
        return IFX_OK;
    t->chat_template = base_strdup(json_string_value(node));
    return t->chat_template == NULL ? IFX_ENOMEM : IFX_OK;
}

static int32_t load(struct text_tokenizer *t, const json_t *root, const json_t *config)
{
    const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    const json_t *config_added = json_object_get(config, "added_tokens_decoder");
    uint32_t n = 0;
    int32_t st = known_keys(root);
    if (st == IFX_OK)
        st = check_config(config);
    if (st == IFX_OK && !json_is_object(model))
        st = base_error(IFX_EFORMAT, "tokenizer.json: \"model\" is missing");
    if (st == IFX_OK)
        st = text_load_normalizer(t, json_object_get(root, "normalizer"));
    if (st == IFX_OK)
        st = text_load_pre_tokenizer(t, json_object_get(root, "pre_tokenizer"));
    if (st == IFX_OK)
        st = text_load_post_processor(json_object_get(root, "post_processor"));
    if (st == IFX_OK)
        st = text_load_decoder(json_object_get(root, "decoder"));
    if (st == IFX_OK)
        st = text_count_ids(model, added, config_added, &n);
    if (st == IFX_OK)
        st = text_load_model(t, model, n);
    if (st == IFX_OK)
        st = text_load_added(t, added, config_added);
    return st == IFX_OK ? load_template(t, config) : st;
}

int32_t text_tokenizer_create(const char *json, uint64_t bytes, const char *config_json, uint64_t config_bytes,
                              struct text_tokenizer **out)
{
    json_t *root = NULL, *config = NULL;
    struct text_tokenizer *t = base_calloc(1, sizeof(*t));
    int32_t st = t == NULL ? IFX_ENOMEM : text_json("tokenizer.json", json, bytes, &root);
    if (st == IFX_OK && config_json != NULL)
        st = text_json("tokenizer_config.json", config_json, config_bytes, &config);
    if (st == IFX_OK)
        st = load(t, root, config);
    json_decref(root);
    json_decref(config);
    if (st != IFX_OK) {
        text_tokenizer_destroy(t);
        t = NULL;
    }
    *out = t;
    return st;
}

void text_tokenizer_destroy(struct text_tokenizer *t)
{
    if (t == NULL)
        return;
    for (uint32_t i = 0; i < t->n_splits; i++)
        text_pattern_destroy(t->splits[i]);
    for (uint32_t i = 0; i < t->n_added; i++) {
        base_free(t->added[i].content);
        base_free(t->added[i].pattern);
    }
    base_free(t->added);
    base_free(t->raw.sorted);
    base_free(t->normalized.sorted);
    base_free(t->tokens);
    base_free(t->pairs.slots);
    base_buf_free(&t->arena);
    base_free(t->chat_template);
    base_free(t);
}

uint32_t text_vocab_size(const struct text_tokenizer *t)
{
    return t->n_tokens;
}

int32_t text_token_id(const struct text_tokenizer *t, const char *content)
{
    for (uint32_t i = 0; i < t->n_added; i++)
        if (strcmp(t->added[i].content, content) == 0)
            return t->added[i].id;
    return -1;
}

bool text_is_special(const struct text_tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->n_tokens && t->tokens[id].special;
}

const char *text_tokenizer_template(const struct text_tokenizer *t)
{
    return t->chat_template;
}

/* ---- text to ids ---- */
struct encoder {
    const struct text_tokenizer *t;
    struct text_matcher *matchers[TEXT_MAX_SPLITS];
    struct text_bpe bpe;
    struct base_buf normal;
    struct text_ids ids;
    uint32_t pieces;
};

static int32_t encoder_open(struct encoder *e, const struct text_tokenizer *t)
{
    e->t = t;
    for (uint32_t i = 0; i < t->n_splits; i++) {
        int32_t st = text_matcher_create(t->splits[i], &e->matchers[i]);
        if (st != IFX_OK)
            return st;
    }
    return IFX_OK;
}

static void encoder_close(struct encoder *e)
{
    for (uint32_t i = 0; i < e->t->n_splits; i++)
        text_matcher_destroy(e->matchers[i]);
    text_bpe_free(&e->bpe);
    base_buf_free(&e->normal);
}

/* Cuts s with split `level` and hands each part to the next; the last level merges. */
static int32_t split(struct encoder *e, uint32_t level, const char *s, uint64_t n)
{
    uint64_t at = 0;
    int32_t st = IFX_OK;
    if (level == e->t->n_splits) {
        if (++e->pieces % 4096 == 0 && base_cancelled())
            return base_error(IFX_ECANCELLED, "cancelled while tokenising");
        return text_bpe_encode(&e->bpe, e->t, s, (uint32_t)n, &e->ids);
    }
    while (at < n && st == IFX_OK) {
        uint64_t start = 0, end = 0;
        st = text_matcher_next(e->matchers[level], s, n, at, &start, &end);
        if (st == IFX_OK && start > at)
            st = split(e, level + 1, s + at, start - at);
        if (st == IFX_OK && end > start)
            st = split(e, level + 1, s + start, end - start);
        at = end;
    }
    return st;
}

typedef int32_t (*part_fn)(struct encoder *e, bool specials, const char *s, uint64_t n);

/* Walks s: stretches of `set` become ids, what lies between goes to fn. */
static int32_t walk(struct encoder *e, const struct text_added_set *set, bool specials, const char *s, uint64_t n, part_fn fn)
{
    uint32_t pos = 0, floor = 0, start, end;
    const struct text_added *a;
    int32_t st = IFX_OK;
    while (specials && st == IFX_OK && (a = text_added_next(set, s, (uint32_t)n, floor, &pos, &start, &end)) != NULL) {
        if (start > floor)
            st = fn(e, specials, s + floor, start - floor);
        if (st == IFX_OK)
            st = text_ids_add(&e->ids, a->id);
        floor = end;
    }
    if (st == IFX_OK && n > floor)
        st = fn(e, specials, s + floor, n - floor);
    return st;
}

static int32_t plain_part(struct encoder *e, bool specials, const char *s, uint64_t n)
{
    (void)specials;
    return split(e, 0, s, n);
}

static int32_t raw_part(struct encoder *e, bool specials, const char *s, uint64_t n)
{
    if (e->t->nfc && !text_nfc_trivial(s, n)) {
        e->normal.len = 0;
        int32_t st = text_nfc(s, n, &e->normal);
        if (st != IFX_OK)
            return st;
        s = e->normal.data;
        n = e->normal.len;
        if (n >= TEXT_MAX_BYTES)
            return base_error(IFX_ELIMIT, "text of more than %u bytes cannot be tokenised at once", TEXT_MAX_BYTES);
    }
    return walk(e, &e->t->normalized, specials, s, n, plain_part);
}

int32_t text_encode(const struct text_tokenizer *t, const char *text, uint64_t bytes, uint32_t flags, int32_t **ids,
                    uint64_t *n_ids)
{
    struct encoder e = {.ids = {.data = *ids, .n = *n_ids, .cap = *n_ids}};
    struct base_buf valid = {0};
    bool specials = (flags & TEXT_SPECIALS) != 0;
    int32_t st = encoder_open(&e, t);
    if (st == IFX_OK && !base_utf8_valid(text, bytes)) {
        st = text_utf8_lossy(text, bytes, NULL, &valid);
        text = valid.data;
        bytes = valid.len;
    }
    if (st == IFX_OK && bytes >= TEXT_MAX_BYTES)
        st = base_error(IFX_ELIMIT, "text of more than %u bytes cannot be tokenised at once", TEXT_MAX_BYTES);
    if (st == IFX_OK)
        st = walk(&e, &t->raw, specials, text, bytes, raw_part);
    *ids = e.ids.data;
    if (st == IFX_OK)
        *n_ids = e.ids.n;
    base_buf_free(&valid);
    encoder_close(&e);
    return st;
}
