/* SPDX-License-Identifier: Apache-2.0
 *
 * grammar_internal.h - between grammar.c and grammar_schema.c.
 */
#ifndef INFERNIX_CORE_GRAMMAR_INTERNAL_H
#define INFERNIX_CORE_GRAMMAR_INTERNAL_H

#include "chat_internal.h"
#include "grammar.h"

#define GRAMMAR_NULL    1u
#define GRAMMAR_BOOLEAN 2u
#define GRAMMAR_INTEGER 4u
#define GRAMMAR_NUMBER  8u
#define GRAMMAR_STRING  16u
#define GRAMMAR_ARRAY   32u
#define GRAMMAR_OBJECT  64u
#define GRAMMAR_ANY     127u

#define GRAMMAR_MAX_TEXTS 64u /* keys of an object, values of an enum, tools: bits of a word */
#define GRAMMAR_MAX_NODES 4096u
#define GRAMMAR_NONE      UINT32_MAX

/* One schema. */
struct grammar_node {
    uint32_t types;
    /* enum and const: values as JSON text; keys of an object as JSON text; calls: what stands before the arguments */
    char **texts;
    uint32_t *values; /* node of each key or call */
    uint32_t n_texts;
    bool literal;     /* texts are all there is */
    bool calls;
    uint64_t required; /* bits of texts */
    uint32_t any_value; /* object without listed keys: node of its values, GRAMMAR_NONE: it stays empty */
    uint32_t items;     /* node */
    uint64_t min_items, max_items, min_length, max_length;
};
struct text_grammar {
    const struct text_lexicon *lexicon;
    struct grammar_node *nodes;
    uint32_t n_nodes, room, root;
    bool thought, in_thought;
};
/* grammar_schema.c */
int32_t grammar_compile(struct text_grammar *g, const json_t *schema, const char *where, uint32_t *node);
int32_t grammar_add_node(struct text_grammar *g, uint32_t types, uint32_t *node);
int32_t grammar_add_text(struct grammar_node *n, const char *text, uint32_t value);

#endif
