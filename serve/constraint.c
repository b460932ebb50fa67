/* SPDX-License-Identifier: Apache-2.0
 *
 * constraint.c - see constraint.h.
 */
#include "config.h"
#include "constraint.h"
#include <string.h>

/* Made when it is first needed: sorting a large vocabulary takes a moment. */
static int32_t lexicon(struct serve *s, const struct text_lexicon **out)
{
    int32_t st = IFX_OK;
    pthread_mutex_lock(&s->lexicon_lock);
    if (s->lexicon == NULL)
        st = text_lexicon_create(s->tokenizer, s->info.desc->vocab, &s->lexicon);
    *out = s->lexicon;
    pthread_mutex_unlock(&s->lexicon_lock);
    return st;
}

static int32_t read_format(const json_t *body, const json_t **schema, bool *json)
{
    const json_t *format = NULL, *wrapper = NULL;
    const char *type = NULL;
    int32_t st = field_object(body, "response_format", &format);
    if (st || format == NULL)
        return st;
    if (field_string(format, "type", &type) || type == NULL)
        return base_error(IFX_EINVAL, "response_format.type: \"text\", \"json_object\" or \"json_schema\" is expected");
    if (strcmp(type, "text") == 0)
        return IFX_OK;
    *json = true;
    if (strcmp(type, "json_object") == 0)
        return IFX_OK;
    if (strcmp(type, "json_schema") != 0)
        return base_error(IFX_EUNSUPPORTED, "response_format.type: \"%.40s\" is not supported", type);
    st = field_object(format, "json_schema", &wrapper);
    if (!st && wrapper != NULL)
        st = field_object(wrapper, "schema", schema);
    if (st || *schema == NULL)
        return base_error(IFX_EINVAL, "response_format.json_schema.schema: an object is expected");
    return IFX_OK;
}

int32_t constraint_read(struct reply *r, bool required, int *thinking)
{
    const json_t *schema = NULL;
    const struct text_lexicon *l;
    bool json = false;
    int32_t st = read_format(r->body, &schema, &json);
    if (st || (!json && !required))
        return st;
    if (json && r->tools != NULL)
        return base_error(IFX_EUNSUPPORTED, "response_format: is not supported together with tools");
    /* A thought before the answer only where it was asked for. */
    if (*thinking == TEXT_THINK_DEFAULT)
        *thinking = TEXT_THINK_OFF;
    const struct text_chat *chat = r->x->serve->chat;
    struct text_chat_options o = {.add_generation_prompt = true, .thinking = *thinking};
    uint32_t flags = *thinking == TEXT_THINK_ON && chat != NULL && text_chat_takes_tools(chat) ? TEXT_GRAMMAR_THOUGHT : 0;
    if (flags && text_chat_opens_thought(chat, &o))
        flags |= TEXT_GRAMMAR_IN_THOUGHT;
    st = lexicon(r->x->serve, &l);
    if (st)
        return st;
    return required ? text_grammar_calls(l, r->tools, flags, &r->spec.grammar)
                    : text_grammar_json(l, schema, "response_format.json_schema.schema", flags, &r->spec.grammar);
}
