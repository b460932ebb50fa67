/* SPDX-License-Identifier: Apache-2.0
 *
 * kv.c - KV pages: one pool for all sequences, a page table each.
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
    /* The system gives the pages when they are first written: an unused context costs nothing. */
    p->memory = p->free_blocks ? base_map_anon(p->bytes) : NULL;
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
    *p = (struct kv_pool){0};
}

int32_t kv_reserve(struct ifx_sequence *s, uint64_t tokens)
{
    struct kv_pool *p = &s->model->pool;
    uint32_t layers = s->model->desc->n_kv_layers;
    if (!layers)
        return IFX_OK;
    while ((uint64_t)s->n_blocks * ENGINE_PAGE_TOKENS < tokens) {
        if (!p->n_free || s->n_blocks == s->max_blocks)
            return base_error(IFX_ELIMIT, "no free KV pages: %u sequences of %u tokens were planned (--ctx)",
                              s->model->max_sequences, s->model->n_ctx);
        uint32_t block = p->free_blocks[--p->n_free];
        uint8_t *memory = p->memory + block * p->block_bytes;
        for (uint32_t l = 0; l < layers; l++)
            s->pages[(uint64_t)l * s->max_blocks + s->n_blocks] = memory + l * p->page_bytes;
        s->blocks[s->n_blocks++] = block;
    }
    return IFX_OK;
}

void kv_release(struct ifx_sequence *s)
{
    struct kv_pool *p = &s->model->pool;
    while (s->n_blocks)
        p->free_blocks[p->n_free++] = s->blocks[--s->n_blocks];
}
