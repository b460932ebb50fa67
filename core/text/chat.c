/* SPDX-License-Identifier: Apache-2.0
 *
 * chat.c - conversations to prompts.
 */
#include "config.h"
#include "text_internal.h"

int32_t text_chat_create(const struct text_tokenizer *t, const char *chat_template, struct text_chat **out)
{
    (void)t;
    (void)chat_template;
    *out = NULL;
    return base_error(IFX_EUNSUPPORTED, "chat templates are not supported yet");
}

void text_chat_destroy(struct text_chat *c)
{
    (void)c;
}

int32_t text_chat_render(const struct text_chat *c, const json_t *messages, const struct text_chat_options *o,
                         struct base_buf *out)
{
    (void)c, (void)messages, (void)o, (void)out;
    return IFX_EUNSUPPORTED;
}

int32_t text_chat_ids(const struct text_chat *c, const json_t *messages, const struct text_chat_options *o, int32_t **ids,
                      uint64_t *n_ids)
{
    (void)c, (void)messages, (void)o, (void)ids, (void)n_ids;
    return IFX_EUNSUPPORTED;
}

int32_t text_chat_end_id(const struct text_chat *c)
{
    (void)c;
    return -1;
}
