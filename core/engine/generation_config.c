/* SPDX-License-Identifier: Apache-2.0
 *
 * generation_config.c - what the checkpoint says about generation: ids that end it, and sampling defaults.
 */
#include "engine.h"

#include <jansson.h>
#include <string.h>

#define CHAT_END_TOKEN "<|im_end|>"

/* An asset as JSON; NULL when absent (no error) or not an object (error recorded, *st set). */
static json_t *load_asset(const struct ifx_model *m, const char *name, int32_t *st)
{
    uint64_t bytes;
    json_error_t error;
    const char *text = artifact_asset(m->artifact, name, &bytes);
    if (!text)
        return NULL;
    json_t *root = json_loadb(text, bytes, 0, &error);
    if (!json_is_object(root)) {
        *st = base_error(IFX_EFORMAT, "%s: %s: %s (line %d)", artifact_path(m->artifact), name,
                         root ? "not a JSON object" : error.text, root ? 1 : error.line);
        json_decref(root);
        return NULL;
    }
    return root;
}

static int32_t add_id(struct ifx_model *m, int64_t id)
{
    for (uint32_t i = 0; i < m->n_stop_ids; i++)
        if (m->stop_ids[i] == id)
            return IFX_OK;
    int32_t *grown = base_realloc(m->stop_ids, m->n_stop_ids + 1, sizeof *grown);
    if (!grown)
        return IFX_ENOMEM;
    m->stop_ids = grown;
    m->stop_ids[m->n_stop_ids++] = (int32_t)id;
    return IFX_OK;
}

static bool is_id(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 && json_integer_value(value) <= INT32_MAX;
}

/* A number, a list of numbers or null. */
static int32_t add_ids(struct ifx_model *m, const char *file, const json_t *value)
{
    if (!value || json_is_null(value))
        return IFX_OK;
    if (is_id(value))
        return add_id(m, json_integer_value(value));
    int32_t st = IFX_OK;
    bool good = json_is_array(value);
    for (size_t i = 0; good && !st && i < json_array_size(value); i++) {
        const json_t *id = json_array_get(value, i);
        good = is_id(id);
        if (good)
            st = add_id(m, json_integer_value(id));
    }
    return good ? st
                : base_error(IFX_EFORMAT, "%s: %s: \"eos_token_id\" is neither a token id nor a list of them; null means none",
                             artifact_path(m->artifact), file);
}

int32_t engine_read_stop_ids(struct ifx_model *m)
{
    int32_t st = IFX_OK;
    json_t *config = load_asset(m, "config.json", &st);
    json_t *generation = st ? NULL : load_asset(m, "generation_config.json", &st);
    if (!st && config)
        st = add_ids(m, "config.json", json_object_get(config, "eos_token_id"));
    if (!st && config)
        st = add_ids(m, "config.json", json_object_get(json_object_get(config, "text_config"), "eos_token_id"));
    if (!st && generation)
        st = add_ids(m, "generation_config.json", json_object_get(generation, "eos_token_id"));
    if (!st && m->tokenizer && text_token_id(m->tokenizer, CHAT_END_TOKEN) >= 0)
        st = add_id(m, text_token_id(m->tokenizer, CHAT_END_TOKEN));
    json_decref(config);
    json_decref(generation);
    return st;
}

static void take_float(const json_t *from, const char *key, float least, float most, float *out)
{
    const json_t *v = json_object_get(from, key);
    double d = json_number_value(v);
    if (json_is_number(v) && d >= least && d <= most)
        *out = (float)d;
}

void ifx_sampling_greedy(struct ifx_sampling *s)
{
    *s = (struct ifx_sampling){.top_p = 1, .repetition_penalty = 1};
}

void ifx_sampling_default(const struct ifx_model *m, struct ifx_sampling *s)
{
    int32_t st = IFX_OK;
    json_t *g = load_asset(m, "generation_config.json", &st);
    *s = (struct ifx_sampling){.temperature = 0.7f, .top_k = 40, .top_p = 0.9f, .repetition_penalty = 1};
    const json_t *do_sample = json_object_get(g, "do_sample");
    bool says = json_object_get(g, "temperature") || json_object_get(g, "top_k") || json_object_get(g, "top_p");
    if (says) /* what such a file leaves out is off */
        *s = (struct ifx_sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    float top_k = (float)s->top_k;
    take_float(g, "temperature", 0, 100, &s->temperature);
    take_float(g, "top_k", 0, 1 << 24, &top_k);
    take_float(g, "top_p", 0, 1, &s->top_p);
    take_float(g, "min_p", 0, 1, &s->min_p);
    take_float(g, "repetition_penalty", 1e-3f, 1e3f, &s->repetition_penalty);
    take_float(g, "presence_penalty", -10, 10, &s->presence_penalty);
    take_float(g, "frequency_penalty", -10, 10, &s->frequency_penalty);
    s->top_k = (uint32_t)top_k;
    if (json_is_false(do_sample))
        s->temperature = 0;
    json_decref(g);
}
