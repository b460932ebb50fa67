/* SPDX-License-Identifier: Apache-2.0
 *
 * absent.c - stand-ins for commands and core parts that are not built yet.  Rows are deleted as the real ones arrive.
 */
#include "config.h"
#include "cli.h"

static int not_there(struct cli *cli)
{
    return cli_usage(cli, "this build does not have the command yet");
}

#define ABSENT_COMMAND(NAME)                                                                                      \
    extern const struct cli_command cmd_##NAME __attribute__((weak));                                             \
    const struct cli_command cmd_##NAME = {#NAME, "", "not in this build", NULL, NULL, not_there};
ABSENT_COMMAND(chat)
ABSENT_COMMAND(bench)
ABSENT_COMMAND(tokenize)
ABSENT_COMMAND(render)

/* The tokenizer. */
#define WEAK __attribute__((weak))
#define NO_TEXT base_error(IFX_EUNSUPPORTED, "this build has no tokenizer yet")
WEAK int32_t text_tokenizer_create(const char *json, uint64_t bytes, const char *config_json, uint64_t config_bytes,
                                   struct text_tokenizer **out)
{
    (void)json, (void)bytes, (void)config_json, (void)config_bytes, (void)out;
    return NO_TEXT;
}
WEAK void text_tokenizer_destroy(struct text_tokenizer *t)
{
    (void)t;
}
WEAK int32_t text_encode(const struct text_tokenizer *t, const char *text, uint64_t bytes, uint32_t flags, int32_t **ids,
                         uint64_t *n_ids)
{
    (void)t, (void)text, (void)bytes, (void)flags, (void)ids, (void)n_ids;
    return NO_TEXT;
}
WEAK int32_t text_token_id(const struct text_tokenizer *t, const char *content)
{
    (void)t, (void)content;
    return -1;
}
WEAK int32_t text_stream_create(const struct text_tokenizer *t, bool skip_special, struct text_stream **out)
{
    (void)t, (void)skip_special, (void)out;
    return NO_TEXT;
}
WEAK void text_stream_destroy(struct text_stream *s)
{
    (void)s;
}
WEAK int32_t text_stream_push(struct text_stream *s, int32_t id, struct base_buf *out)
{
    (void)s, (void)id, (void)out;
    return NO_TEXT;
}
WEAK int32_t text_stream_finish(struct text_stream *s, struct base_buf *out)
{
    (void)s, (void)out;
    return NO_TEXT;
}
WEAK int32_t text_stop_create(const char *const *stops, uint32_t n, struct text_stop **out)
{
    (void)stops, (void)n, (void)out;
    return NO_TEXT;
}
WEAK void text_stop_destroy(struct text_stop *s)
{
    (void)s;
}
WEAK int32_t text_stop_feed(struct text_stop *s, const char *bytes, uint64_t n, struct base_buf *out, bool *stopped)
{
    (void)s, (void)bytes, (void)n, (void)out, (void)stopped;
    return NO_TEXT;
}
WEAK int32_t text_stop_finish(struct text_stop *s, struct base_buf *out)
{
    (void)s, (void)out;
    return NO_TEXT;
}
WEAK int32_t text_chat_create(const struct text_tokenizer *t, const char *chat_template, struct text_chat **out)
{
    (void)t, (void)chat_template, (void)out;
    return NO_TEXT;
}
WEAK void text_chat_destroy(struct text_chat *c)
{
    (void)c;
}
WEAK int32_t text_chat_ids(const struct text_chat *c, const json_t *messages, const struct text_chat_options *o, int32_t **ids,
                           uint64_t *n_ids)
{
    (void)c, (void)messages, (void)o, (void)ids, (void)n_ids;
    return NO_TEXT;
}
WEAK int32_t text_chat_end_id(const struct text_chat *c)
{
    (void)c;
    return -1;
}
