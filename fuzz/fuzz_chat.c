/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_chat.c - messages as JSON through a chat template: what the ids decode to is the text rendered, control tokens are the template's own.
 */
#include "config.h"
#include "fuzz.h"
#include "fuzz_text.h"

static const char chatml[] =
    "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

static uint64_t count(const int32_t *ids, uint64_t n, int32_t id)
{
    uint64_t k = 0;
    for (uint64_t i = 0; i < n; i++)
        k += ids[i] == id;
    return k;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct text_tokenizer *t = fuzz_tokenizer();
    struct text_chat *c;
    struct text_chat_options o = {.add_generation_prompt = true};
    struct base_buf text = {0}, back = {0}, want = {0};
    int32_t *ids = NULL;
    uint64_t n = 0;
    json_t *input = json_loadb((const char *)data, size, JSON_ALLOW_NUL, NULL);
    const json_t *messages = json_is_object(input) ? json_object_get(input, "messages") : input;
    o.tools = json_object_get(input, "tools");
    if (text_chat_create(t, chatml, &c))
        abort();
    if (text_chat_render(c, messages, &o, &text) == IFX_OK) {
        if (text_chat_ids(c, messages, &o, &ids, &n) || text_decode(t, ids, n, false, &back))
            abort();
        if (count(ids, n, 300) != json_array_size(messages) + 1 || count(ids, n, 301) != json_array_size(messages))
            abort();
        if (text_nfc(text.data, text.len, &want) || want.len != back.len || memcmp(want.data, back.data, want.len) != 0)
            abort();
    }
    base_buf_free(&text);
    base_buf_free(&back);
    base_buf_free(&want);
    base_free(ids);
    text_chat_destroy(c);
    json_decref(input);
    return 0;
}
