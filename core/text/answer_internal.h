/* SPDX-License-Identifier: Apache-2.0
 *
 * answer_internal.h - between answer.c, answer_call.c and their tests.
 */
#ifndef INFERNIX_CORE_ANSWER_INTERNAL_H
#define INFERNIX_CORE_ANSWER_INTERNAL_H

#include "chat_internal.h"

enum answer_parse {
    ANSWER_MORE,   /* may become a call */
    ANSWER_CALL,   /* is one */
    ANSWER_TEXT,   /* cannot become one */
    ANSWER_FAILED, /* no memory */
};
struct answer_call {
    char *name, *arguments; /* owned; arguments: the text of a JSON object */
};
/* Reads the call that begins with "<tool_call>" at s; *used: its bytes.  last: nothing follows; a call that only lacks its closing tag is one then. */
enum answer_parse answer_parse_call(const char *s, uint64_t n, bool last, const json_t *tools, struct answer_call *out, uint64_t *used);
void answer_call_free(struct answer_call *c);

#endif
