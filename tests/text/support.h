/* SPDX-License-Identifier: Apache-2.0
 *
 * support.h - what the text tests share: golden files, tokenizers, comparisons that say where.
 */
#ifndef INFERNIX_TESTS_TEXT_SUPPORT_H
#define INFERNIX_TESTS_TEXT_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "text.h"

/* The pattern of Qwen3.5; Qwen3's is in the golden tokenizer.json. */
extern const char support_qwen3_5[];

void support_ok(int32_t status, const char *what);
char *support_golden(const char *name, uint64_t *bytes); /* base_free it */
struct text_tokenizer *support_qwen3(void);              /* with tokenizer_config.json */
/* The same vocabulary with another split pattern. */
struct text_tokenizer *support_with_pattern(const char *regex);
/* Calls fn for each line of a golden file of JSON lines; returns how many. */
uint32_t support_lines(const char *name, void (*fn)(void *ctx, uint32_t line, const json_t *item), void *ctx);

struct support_ids {
    int32_t *data;
    uint64_t n;
};
struct support_ids support_encode(const struct text_tokenizer *t, const char *text, uint64_t bytes, uint32_t flags);
struct support_ids support_json_ids(const json_t *list);
void support_same_ids(const char *where, struct support_ids want, struct support_ids got);
void support_same_text(const char *where, const char *want, uint64_t want_n, const char *got, uint64_t got_n);
char *support_decode(const struct text_tokenizer *t, struct support_ids ids, bool skip, uint64_t *n);
char *support_stream(const struct text_tokenizer *t, struct support_ids ids, bool skip, uint64_t *n);
uint64_t support_random(uint64_t *state);

#endif
