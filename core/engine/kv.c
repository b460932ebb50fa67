/* SPDX-License-Identifier: Apache-2.0
 *
 * kv.c - KV pages: one pool for all sequences and snapshots, a page table each.
 */
#include "engine.h"

int32_t kv_pool_create(struct kv_pool *p, uint64_t page_bytes, uint32_t layers, uint32_t n_blocks)
{
    p->page_bytes = page_bytes;
    if (!layers)
        return IFX_OK;
    if (!base_mul_u64(page_bytes, layers, &p->block_bytes) || !base_mul_u64(p->block_bytes, n_blocks, &p->bytes))
        return base_error(IFX_ELIMIT, "the KV cache does not fit the address space; lower --ctx");
    p->free_blocks = base_calloc(n_blocks, sizeof *p->free_blocks);
    p->owners = base_calloc(n_blocks, sizeof *p->owners);
    /* The system gives the pages when they are first written: an unused context costs nothing. */
    p->memory = p->free_blocks && p->owners ? base_map_anon(p->bytes) : NULL;
    if (!p->memory)
        return base_error_prefix(IFX_ENOMEM, "KV cache (lower --ctx)");
    p->n_blocks = p->n_free = n_blocks;
    for (uint32_t i = 0; i < n_blocks; i++)
        p->free_blocks[i] = n_blocks - 1 - i;
    return IFX_OK;
}

void kv_pool_destroy(struct kv_pool *p)
{
    if (p->memory)
        base_unmap(p->memory, p->bytes);
    base_free(p->free_blocks);
    base_free(p->owners);
    *p = (struct kv_pool){0};
}

int32_t kv_block_take(struct ifx_model *m, uint32_t *block)
{
    struct kv_pool *p = &m->pool;
    while (!p->n_free)
        if (!prefix_evict(m))
            return base_error(IFX_ELIMIT, "no free KV pages: %u sequences of %u tokens were planned (--ctx)", m->max_sequences, m->n_ctx);
    *block = p->free_blocks[--p->n_free];
    p->owners[*block] = 1;
    return IFX_OK;
}

void kv_block_drop(struct kv_pool *p, uint32_t block)
{
    if (--p->owners[block] == 0)
        p->free_blocks[p->n_free++] = block;
}

void kv_block_append(struct ifx_sequence *s, uint32_t block)
{
    const struct kv_pool *p = &s->model->pool;
    uint8_t *memory = p->memory + block * p->block_bytes;
    for (uint32_t l = 0; l < s->model->desc->n_kv_layers; l++)
        s->pages[(uint64_t)l * s->max_blocks + s->n_blocks] = memory + l * p->page_bytes;
    s->blocks[s->n_blocks++] = block;
}

int32_t kv_reserve(struct ifx_sequence *s, uint64_t tokens)
{
    struct ifx_model *m = s->model;
    while (m->desc->n_kv_layers && (uint64_t)s->n_blocks * ENGINE_PAGE_TOKENS < tokens) {
        uint32_t block;
        int32_t st = kv_block_take(m, &block);
        if (st)
            return st;
        kv_block_append(s, block);
    }
    return IFX_OK;
}

void kv_release(struct ifx_sequence *s)
{
    while (s->n_blocks)
        kv_block_drop(&s->model->pool, s->blocks[--s->n_blocks]);
}
