/* SPDX-License-Identifier: Apache-2.0
 *
 * line_input.h - lines typed at a terminal (edited, with history, where libedit is there) or piped in.
 */
#ifndef INFERNIX_CLI_LINE_INPUT_H
#define INFERNIX_CLI_LINE_INPUT_H

#include "base.h"

struct line_input;
int32_t line_input_open(struct line_input **out);
void line_input_close(struct line_input *in);
/* One input, without its newline: a line, lines joined where each ends in a backslash, lines pasted together at a terminal, or what stands between lines of """.
 * Returns 1, 0 at the end, -1 when interrupted (nothing is kept). */
int line_input_read(struct line_input *in, const char *prompt, struct base_buf *text);

#endif
