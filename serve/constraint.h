/* SPDX-License-Identifier: Apache-2.0
 *
 * constraint.h - what a request says about the form of its answer, as a grammar over tokens.
 */
#ifndef INFERNIX_SERVE_CONSTRAINT_H
#define INFERNIX_SERVE_CONSTRAINT_H

#include "reply.h"

/* Reads response_format (and, required: a call of one of r->tools) into r->spec.grammar.  Thinking is switched off where the request does not ask
 * for it. */
int32_t constraint_read(struct reply *r, bool required, int *thinking);

#endif
