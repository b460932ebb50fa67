/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_config.c - config.json and its getters.
 */
#include "config.h"
#include "artifact_internal.h"
#include "fuzz.h"
#include <stdlib.h>
#include <string.h>

static void ask(const struct ifx_config *c, const char *key)
{
    int64_t i;
    double d;
    uint32_t b;
    const char *s;
    uint64_t n = 0;
    c->get_int(c, key, &i);
    c->get_float(c, key, &d);
    c->get_bool(c, key, &b);
    if (c->get_string(c, key, &s) == IFX_OK && strlen(s) > SIZE_MAX / 2)
        abort();
    c->get_count(c, key, &n);
    for (uint64_t k = 0; k <= n && k < 8; k++) {
        c->get_int_at(c, key, k, &i);
        c->get_string_at(c, key, k, &s);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const keys[] = {"hidden_size", "rope_parameters.rope_theta", "layer_types", "eos_token_id", "a.b.c",
                                       "text_config", "architectures", "", ".", "a..b"};
    static char path[] = "fuzz";
    struct artifact a = {.path = path};
    char *text = malloc(size ? size : 1);
    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    if (art_config_open(&a, text, size, "config.json") == IFX_OK)
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
            ask(&a.config_ops, keys[i]);
    art_config_close(&a);
    free(text);
    return 0;
}
