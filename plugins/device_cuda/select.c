/* SPDX-License-Identifier: Apache-2.0
 *
 * select.c - launches of block selection.
 */
#include "cuda_device.h"

static int32_t check_plane(struct ifx_device *dev, const struct ifx_index_plane *p)
{
    if (!p->ratio || !p->d || p->page_tokens % p->ratio || p->ratio > 1024)
        return dev->host->error(dev->host, IFX_EINVAL, "device cuda: index plane of %u tokens a page in blocks of %u, width %u",
                                p->page_tokens, p->ratio, p->d);
    return IFX_OK;
}

static int32_t index_append(struct ifx_device *dev, void *stream, const struct ifx_index_append *op)
{
    struct cuda_device *d = cuda_of(dev);
    struct ifx_index_append o = *op;
    void *args[] = {&o};
    int32_t status = check_plane(dev, &o.plane);
    if (status || o.n == 0)
        return status;
    status = cuda_launch(d, stream, K_index_store, grid3(o.n, 1, 1), 128, 0, args);
    return status ? status : cuda_launch(d, stream, K_index_blocks, grid3(o.n, 1, 1), 128, 0, args);
}

static uint64_t block_select_ws_bytes(struct ifx_device *dev, const struct ifx_block_select *op)
{
    (void)dev;
    return op->plane.ratio ? (uint64_t)op->n * (op->max_tokens / op->plane.ratio + 1) * sizeof(float) : 64;
}

static int32_t block_select(struct ifx_device *dev, void *stream, const struct ifx_block_select *op)
{
    struct cuda_device *d = cuda_of(dev);
    struct ifx_block_select o = *op;
    void *args[] = {&o};
    int32_t status = check_plane(dev, &o.plane);
    if (status || o.n == 0)
        return status;
    if (!o.budget || o.budget % o.plane.ratio)
        return dev->host->error(dev->host, IFX_EINVAL, "device cuda: %u tokens are no number of blocks of %u", o.budget, o.plane.ratio);
    uint64_t blocks = o.max_tokens / o.plane.ratio, wide = ceil_div(blocks ? blocks : 1, 8);
    status = cuda_launch(d, stream, K_block_scores, grid3(wide < 1024 ? wide : 1024, o.n < 65535 ? o.n : 65535, 1), 256, 0, args);
    return status ? status : cuda_launch(d, stream, K_block_rows, grid3(o.n, 1, 1), 1024, 0, args);
}

void cuda_fill_select(struct ifx_device_ops *ops)
{
    ops->index_append = index_append;
    ops->block_select_ws_bytes = block_select_ws_bytes;
    ops->block_select = block_select;
}
