/* SPDX-License-Identifier: Apache-2.0
 *
 * bpe.c - the merge table and merging: always the pair of lowest rank, the leftmost of equals.  Linked symbols and a heap of candidate
 * pairs make it n log n in the length of a piece; a candidate that a merge has overtaken is recognised when it is taken out.
 */
#include "config.h"
#include "text_internal.h"

#define POLL_EVERY 65536u

static uint64_t mix(uint64_t key)
{
    key ^= key >> 32;
    key *= 0x9e3779b97f4a7c15ull;
    return key ^ key >> 29;
}

int32_t text_pairs_create(struct text_pairs *p, uint64_t n)
{
    uint64_t cap = 16;
    while (cap < 2 * n)
        cap *= 2;
    p->slots = base_calloc(cap, sizeof(*p->slots));
    if (p->slots == NULL)
        return IFX_ENOMEM;
    for (uint64_t i = 0; i < cap; i++)
        p->slots[i].rank = TEXT_NONE;
    p->mask = cap - 1;
    return IFX_OK;
}

void text_pairs_set(struct text_pairs *p, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    uint64_t key = (uint64_t)left << 32 | right, i = mix(key) & p->mask;
    while (p->slots[i].rank != TEXT_NONE && p->slots[i].key != key)
        i = (i + 1) & p->mask;
    p->slots[i] = (struct text_pair){.key = key, .rank = rank, .id = id};
}

const struct text_pair *text_pairs_get(const struct text_pairs *p, uint32_t left, uint32_t right)
{
    uint64_t key = (uint64_t)left << 32 | right, i = mix(key) & p->mask;
    while (p->slots[i].rank != TEXT_NONE) {
        if (p->slots[i].key == key)
            return &p->slots[i];
        i = (i + 1) & p->mask;
    }
    return NULL;
}

int32_t text_ids_add(struct text_ids *ids, int32_t id)
{
    if (ids->n == ids->cap) {
        uint64_t cap = ids->cap ? ids->cap * 2 : 64;
        int32_t *data = base_realloc(ids->data, cap, sizeof(*data));
        if (data == NULL)
            return IFX_ENOMEM;
        ids->data = data;
        ids->cap = cap;
    }
    ids->data[ids->n++] = id;
    return IFX_OK;
}

void text_bpe_free(struct text_bpe *b)
{
    base_free(b->symbols);
    base_free(b->heap);
}

static int32_t heap_push(struct text_bpe *b, uint64_t key)
{
    if (b->heap_n == b->heap_cap) {
        uint64_t cap = b->heap_cap ? b->heap_cap * 2 : 256;
        uint64_t *heap = base_realloc(b->heap, cap, sizeof(*heap));
        if (heap == NULL)
            return IFX_ENOMEM;
        b->heap = heap;
        b->heap_cap = cap;
    }
    uint64_t i = b->heap_n++;
    while (i > 0 && b->heap[(i - 1) / 2] > key) {
        b->heap[i] = b->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    b->heap[i] = key;
    return IFX_OK;
}

static uint64_t heap_pop(struct text_bpe *b)
{
    uint64_t top = b->heap[0], last = b->heap[--b->heap_n], i = 0, child;
    while ((child = 2 * i + 1) < b->heap_n) {
        if (child + 1 < b->heap_n && b->heap[child + 1] < b->heap[child])
            child++;
        if (b->heap[child] >= last)
            break;
        b->heap[i] = b->heap[child];
        i = child;
    }
    if (b->heap_n > 0)
        b->heap[i] = last;
    return top;
}

/* Offers the pair that starts at symbol i. */
static int32_t offer(struct text_bpe *b, const struct text_tokenizer *t, uint32_t i)
{
    if (i == TEXT_NONE || b->symbols[i].next == TEXT_NONE)
        return IFX_OK;
    const struct text_pair *p = text_pairs_get(&t->pairs, b->symbols[i].id, b->symbols[b->symbols[i].next].id);
    return p == NULL ? IFX_OK : heap_push(b, (uint64_t)p->rank << 32 | i);
}

static int32_t poll(struct text_bpe *b)
{
    if (++b->work % POLL_EVERY == 0 && base_cancelled())
        return base_error(IFX_ECANCELLED, "cancelled while tokenising");
    return IFX_OK;
}

static int32_t start(struct text_bpe *b, const struct text_tokenizer *t, const char *piece, uint32_t n)
{
    if (n > b->symbols_cap) {
        uint64_t cap = (uint64_t)n + n / 2 + 64;
        struct text_symbol *symbols = base_realloc(b->symbols, cap, sizeof(*symbols));
        if (symbols == NULL)
            return IFX_ENOMEM;
        b->symbols = symbols;
        b->symbols_cap = cap;
    }
    for (uint32_t i = 0; i < n; i++)
        b->symbols[i] = (struct text_symbol){.id = t->byte_id[(uint8_t)piece[i]],
                                             .prev = i == 0 ? TEXT_NONE : i - 1,
                                             .next = i + 1 == n ? TEXT_NONE : i + 1};
    b->heap_n = 0;
    int32_t st = IFX_OK;
    for (uint32_t i = 0; i + 1 < n && st == IFX_OK; i++)
        st = offer(b, t, i);
    return st;
}

int32_t text_bpe_encode(struct text_bpe *b, const struct text_tokenizer *t, const char *piece, uint32_t n,
                        struct text_ids *out)
{
    int32_t st = start(b, t, piece, n);
    while (st == IFX_OK && b->heap_n > 0) {
        uint64_t top = heap_pop(b);
        uint32_t i = (uint32_t)top, rank = (uint32_t)(top >> 32);
        struct text_symbol *s = &b->symbols[i];
        if ((st = poll(b)) != IFX_OK)
            break;
        if (s->id == TEXT_NONE || s->next == TEXT_NONE)
            continue;
        struct text_symbol *r = &b->symbols[s->next];
        const struct text_pair *p = text_pairs_get(&t->pairs, s->id, r->id);
        if (p == NULL || p->rank != rank)
            continue;
        s->id = p->id;
        r->id = TEXT_NONE;
        s->next = r->next;
        if (s->next != TEXT_NONE)
            b->symbols[s->next].prev = i;
        st = offer(b, t, s->prev);
        if (st == IFX_OK)
            st = offer(b, t, i);
    }
    for (uint32_t i = 0; st == IFX_OK && n > 0 && i != TEXT_NONE; i = b->symbols[i].next)
        st = text_ids_add(out, (int32_t)b->symbols[i].id);
    return st;
}
