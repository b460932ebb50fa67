/* SPDX-License-Identifier: Apache-2.0
 *
 * kv.c - KV pages: one pool for all sequences and snapshots, a page table each.
 */
#include "engine.h"

static int32_t take_memory(struct ifx_model *m)
{
    struct kv_pool *p = &m->pool;
    void *memory = NULL;
    if (!m->host_memory) {
        int32_t st = m->dev->ops->mem_alloc(m->dev, p->bytes, &memory);
        p->memory = memory;
        return st;
    }
    /* The system gives the pages when they are first written: an unused context costs nothing. */
    p->memory = base_map_anon(p->bytes);
    return p->memory ? IFX_OK : IFX_ENOMEM;
}

int32_t kv_pool_create(struct ifx_model *m, uint64_t page_bytes, uint32_t n_blocks)
{
    struct kv_pool *p = &m->pool;
    uint32_t layers = m->desc->n_kv_layers;
    p->page_bytes = page_bytes;
    if (!layers)
        return IFX_OK;
    if (!base_mul_u64(page_bytes, layers, &p->block_bytes) || !base_mul_u64(p->block_bytes, n_blocks, &p->bytes))
        return base_error(IFX_ELIMIT, "the KV cache does not fit the address space; lower --ctx");
    p->free_blocks = base_calloc(n_blocks, sizeof *p->free_blocks);
    p->owners = base_calloc(n_blocks, sizeof *p->owners);
    int32_t st = p->free_blocks && p->owners ? take_memory(m) : IFX_ENOMEM;
    if (st)
        return base_error_prefix(st, "KV cache (lower --ctx)");
    p->n_blocks = p->n_free = n_blocks;
    for (uint32_t i = 0; i < n_blocks; i++)
        p->free_blocks[i] = n_blocks - 1 - i;
    return IFX_OK;
}

void kv_pool_destroy(struct ifx_model *m)
{
    struct kv_pool *p = &m->pool;
    if (p->memory && m->host_memory)
        base_unmap(p->memory, p->bytes);
    else if (p->memory)
        m->dev->ops->mem_free(m->dev, p->memory);
    base_free(p->free_blocks);
    base_free(p->owners);
    *p = (struct kv_pool){0};
}

int32_t kv_upload_pages(struct ifx_sequence *s)
{
    struct ifx_model *m = s->model;
    void **to = m->slots[s->slot].pages;
    uint32_t from = s->n_uploaded, count = s->n_blocks - from;
    int32_t st = IFX_OK;
    for (uint32_t l = 0; to && count && !st && l < m->desc->n_kv_layers; l++) {
        uint64_t at = (uint64_t)l * s->max_blocks + from;
        st = m->dev->ops->copy(m->dev, m->stream, to + at, s->pages + at, count * sizeof *to, IFX_COPY_TO_DEVICE);
    }
    if (!st)
        s->n_uploaded = s->n_blocks;
    return st;
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
    s->n_uploaded = 0;
}
