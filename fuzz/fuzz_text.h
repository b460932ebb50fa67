/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_text.h - a small tokenizer made once: bytes, a few merges, added tokens of every kind, the pattern of Qwen3.5.
 */
#ifndef INFERNIX_FUZZ_TEXT_H
#define INFERNIX_FUZZ_TEXT_H

#include "text_internal.h"
#include <stdlib.h>
#include <string.h>

static inline struct text_tokenizer *fuzz_tokenizer(void)
{
    static struct text_tokenizer *t;
    struct base_buf b = {0};
    if (t != NULL)
        return t;
    base_buf_addf(&b, "{\"added_tokens\":[{\"id\":300,\"content\":\"<|im_start|>\",\"special\":true},"
                      "{\"id\":301,\"content\":\"<|im_end|>\",\"special\":true},{\"id\":302,\"content\":\"<think>\"},"
                      "{\"id\":303,\"content\":\"</think>\"},{\"id\":304,\"content\":\"<tool_call>\"},{\"id\":305,\"content\":\"\xc3\xa9\","
                      "\"normalized\":true}],\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\","
                      "\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"");
    base_buf_addf(&b, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|\\\\p{N}| ?"
                      "[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},"
                      "\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                      "\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = text_byte_to_char((uint8_t)i);
        base_buf_addf(&b, c == '"' || c == '\\' ? "\"\\" : "\"");
        text_utf8_put(&b, c);
        base_buf_addf(&b, "\":%u,", i);
    }
    base_buf_addf(&b, "\"ab\":256,\"abc\":257,\"bc\":258,\"aa\":259,\"aaaa\":260,\"\xc4\xa0\xc4\xa0\":261},"
                      "\"merges\":[\"a b\",\"ab c\",\"b c\",\"a a\",\"aa aa\",\"\xc4\xa0 \xc4\xa0\"]}}");
    if (text_tokenizer_create(b.data, b.len, NULL, 0, &t) != IFX_OK)
        abort();
    base_buf_free(&b);
    return t;
}

#endif
