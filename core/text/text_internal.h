/* SPDX-License-Identifier: Apache-2.0
 *
 * text_internal.h - between the files of core/text and their unit tests.
 */
#ifndef INFERNIX_CORE_TEXT_INTERNAL_H
#define INFERNIX_CORE_TEXT_INTERNAL_H

#include "text.h"

/* Texts are indexed with 32 bits inside. */
#define TEXT_MAX_BYTES (1u << 30)
#define TEXT_MAX_SPLITS 8
#define TEXT_NONE UINT32_MAX

/* ---- unicode.c ---- */
/* Bytes of the UTF-8 sequence at s, or 0 when it is not one: then *bad is the length of the maximal invalid part (at least 1) and
 * *incomplete says that the text ended inside a sequence that more bytes could complete. */
uint32_t text_utf8_step(const char *s, uint64_t n, uint32_t *bad, bool *incomplete);
/* Appends s with one U+FFFD for each maximal invalid part.  tail NULL: an incomplete end is invalid too; else it is left out and
 * *tail is its length. */
int32_t text_utf8_lossy(const char *s, uint64_t n, uint64_t *tail, struct base_buf *out);
/* Code point of the valid sequence at s; *len its bytes. */
uint32_t text_utf8_get(const char *s, uint32_t *len);
int32_t text_utf8_put(struct base_buf *out, uint32_t c);
/* Appends the NFC form of valid UTF-8, in linear time whatever the run of combining marks. */
int32_t text_nfc(const char *s, uint64_t n, struct base_buf *out);
bool text_nfc_trivial(const char *s, uint64_t n); /* true: surely NFC already */
bool text_is_space(uint32_t c);                   /* White_Space */
bool text_is_word(uint32_t c);                    /* Alphabetic, M, Nd, Pc, join controls */
/* The byte-level alphabet: code point that stands for a byte, and back (-1: none). */
uint32_t text_byte_to_char(uint8_t byte);
int32_t text_char_to_byte(uint32_t c);

/* ---- pattern.c: one split pattern ---- */
struct text_pattern;
int32_t text_pattern_create(const char *regex, struct text_pattern **out);
void text_pattern_destroy(struct text_pattern *p);
/* What PCRE2 gets for a pattern written for Oniguruma, or IFX_EUNSUPPORTED naming what would mean something else. */
int32_t text_pattern_translate(const char *regex, struct base_buf *out);
struct text_matcher; /* match data and JIT stack: one a call */
int32_t text_matcher_create(const struct text_pattern *p, struct text_matcher **out);
void text_matcher_destroy(struct text_matcher *m);
/* Next match at or after `from` in valid UTF-8; *start = n when there is none. */
int32_t text_matcher_next(struct text_matcher *m, const char *s, uint64_t n, uint64_t from, uint64_t *start, uint64_t *end);

/* ---- added.c: tokens recognised in the text before anything else ---- */
struct text_added {
    int32_t id;
    bool special, normalized, lstrip, rstrip, single_word;
    char *content;
    uint32_t len;
    char *pattern; /* what is looked for: the content, normalised for `normalized` tokens */
    uint32_t pattern_len;
};
struct text_added_set {
    struct text_added **sorted; /* by pattern bytes */
    uint32_t n;
};
int32_t text_added_set_build(struct text_added_set *set, struct text_added *added, uint32_t n, bool normalized);
/* Next token in s at or after *pos: its stretch [start, end) and itself, or NULL.  `floor`: end of the stretch before.  *pos moves on. */
const struct text_added *text_added_next(const struct text_added_set *set, const char *s, uint32_t n, uint32_t floor,
                                         uint32_t *pos, uint32_t *start, uint32_t *end);

/* ---- bpe.c ---- */
struct text_pair {
    uint64_t key; /* left << 32 | right */
    uint32_t rank, id;
};
struct text_pairs {
    struct text_pair *slots; /* open addressing; rank TEXT_NONE: free */
    uint64_t mask;
};
int32_t text_pairs_create(struct text_pairs *p, uint64_t n);
void text_pairs_set(struct text_pairs *p, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
const struct text_pair *text_pairs_get(const struct text_pairs *p, uint32_t left, uint32_t right);

struct text_ids { /* growing output */
    int32_t *data;
    uint64_t n, cap;
};
int32_t text_ids_add(struct text_ids *ids, int32_t id);

struct text_symbol {
    uint32_t id, prev, next;
};
struct text_bpe { /* work space of one encode call */
    struct text_symbol *symbols;
    uint64_t *heap; /* rank << 32 | position */
    uint64_t symbols_cap, heap_cap, heap_n;
    uint64_t work; /* steps since base_cancelled was polled */
};
void text_bpe_free(struct text_bpe *b);
int32_t text_bpe_encode(struct text_bpe *b, const struct text_tokenizer *t, const char *piece, uint32_t n,
                        struct text_ids *out);

/* ---- the tokenizer ---- */
struct text_token {
    uint32_t offset, len; /* decoded bytes in the arena; len TEXT_NONE: no such id */
    bool special;
};
struct text_tokenizer {
    struct text_token *tokens; /* [n_tokens] by id */
    uint32_t n_tokens;
    struct base_buf arena;
    uint32_t byte_id[256];
    struct text_pairs pairs;
    bool nfc;
    struct text_pattern *splits[TEXT_MAX_SPLITS];
    uint32_t n_splits;
    struct text_added *added;
    uint32_t n_added;
    struct text_added_set raw, normalized;
    char *chat_template; /* or NULL */
};
/* file.c: the parts of tokenizer.json beside the model */
int32_t text_load_normalizer(struct text_tokenizer *t, const json_t *node);
int32_t text_load_pre_tokenizer(struct text_tokenizer *t, const json_t *node);
int32_t text_load_post_processor(const json_t *node);
int32_t text_load_decoder(const json_t *node);
/* vocab.c: model and added tokens */
int32_t text_load_model(struct text_tokenizer *t, const json_t *model, uint32_t n_ids);
int32_t text_load_added(struct text_tokenizer *t, const json_t *added, const json_t *config_added);
int32_t text_count_ids(const json_t *model, const json_t *added, const json_t *config_added, uint32_t *n);
/* Parses whole JSON text; error says line and column. */
int32_t text_json(const char *what, const char *bytes, uint64_t n, json_t **out);

#endif
