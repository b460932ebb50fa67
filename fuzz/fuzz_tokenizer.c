/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_tokenizer.c - tokenizer.json, then (after a zero byte) tokenizer_config.json; what loads encodes and decodes a text.
 */
#include "config.h"
#include "fuzz.h"
#include "text.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "It's  caf\xc3\xa9 <|im_end|> 12\r\n\xff" "aab";
    const char *config = memchr(data, 0, size);
    uint64_t n = config ? (uint64_t)(config - (const char *)data) : size;
    struct text_tokenizer *t;
    if (text_tokenizer_create((const char *)data, n, config ? config + 1 : NULL, config ? size - n - 1 : 0, &t))
        return 0;
    for (uint32_t flags = 0; flags < 2; flags++) {
        int32_t *ids = NULL;
        uint64_t n_ids = 0;
        struct base_buf b = {0};
        if (text_encode(t, text, sizeof(text) - 1, flags, &ids, &n_ids) == IFX_OK)
            text_decode(t, ids, n_ids, flags, &b);
        base_buf_free(&b);
        base_free(ids);
    }
    text_tokenizer_destroy(t);
    return 0;
}
