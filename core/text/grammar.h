/* SPDX-License-Identifier: Apache-2.0
 *
 * grammar.h - which tokens may come next where an answer has to be JSON: any, of a schema, or a call of a tool.
 */
#ifndef INFERNIX_CORE_GRAMMAR_H
#define INFERNIX_CORE_GRAMMAR_H

#include "text.h"

/* The vocabulary in the order of its bytes; one a tokenizer, shared by all grammars, read only. */
struct text_lexicon;
int32_t text_lexicon_create(const struct text_tokenizer *t, uint32_t vocab, struct text_lexicon **out);
void text_lexicon_destroy(struct text_lexicon *l);

/* A grammar, read only once made; it must not outlive the lexicon. */
struct text_grammar;
#define TEXT_GRAMMAR_THOUGHT    1u /* a thought comes first */
#define TEXT_GRAMMAR_IN_THOUGHT 2u /* its opening tag was in the prompt */
/* schema NULL: any JSON object.  `where` names the schema in errors.
 *
 * Of JSON Schema: type (also a list), properties, required, additionalProperties, items, minItems, maxItems, enum, const, minLength, maxLength,
 * anyOf and oneOf whose members differ in type, allOf of one member, $ref into $defs or definitions; title, description, default,
 * examples, $schema, $id, $comment and deprecated say nothing.  Any other keyword is IFX_EUNSUPPORTED and named.  The answer has each of the listed
 * properties at most once, in any order, and no others where any are listed. */
int32_t text_grammar_json(const struct text_lexicon *l, const json_t *schema, const char *where, uint32_t flags, struct text_grammar **out);
/* One call, in the JSON form, of one of the tools (each {"function": {"name", "parameters"}}); parameters beyond the subset are any object. */
int32_t text_grammar_calls(const struct text_lexicon *l, const json_t *tools, uint32_t flags, struct text_grammar **out);
void text_grammar_destroy(struct text_grammar *g);

/* Where an answer stands in a grammar. */
struct text_grammar_state;
int32_t text_grammar_begin(const struct text_grammar *g, struct text_grammar_state **out);
void text_grammar_end(struct text_grammar_state *s);
/* Sets the bits of the tokens that may follow [(vocab + 63) / 64]; true when the answer may also end here (end tokens are not in the mask). */
bool text_grammar_mask(struct text_grammar_state *s, uint64_t *allowed);
/* IFX_EINVAL when the token may not follow. */
int32_t text_grammar_accept(struct text_grammar_state *s, int32_t token);

#endif
