/* SPDX-License-Identifier: Apache-2.0
 *
 * route.c - launches of the router, the grouping of its pairs, and the sampler.
 */
#include "cuda_device.h"

#include <stddef.h>

#define FEW_PAIRS    1024u /* as in route.cu */
#define ROUTE_THREADS 256u /* as in route.cu, a warp a column */
#define SAMPLE_PARTS 64u   /* as in sample.cu, of 48 bytes each */

static int32_t router(struct ifx_device *dev, void *stream, const struct ifx_router *op)
{
    struct ifx_router o = *op;
    void *args[] = {&o};
    if (o.top_k == 0 || o.top_k > 32 || o.top_k > o.experts || o.experts > 1024)
        return dev->host->error(dev->host, IFX_EINVAL, "device cuda: router of %u experts asked for %u; up to 1024 and 32 are possible",
                                o.experts, o.top_k);
    if (o.n == 0)
        return IFX_OK;
    return cuda_launch(cuda_of(dev), stream, o.experts <= 256 ? K_router_small : K_router_large, grid3(ceil_div(o.n, 2), 1, 1), 64, 0, args);
}

static uint64_t group_ws_bytes(struct ifx_device *dev, uint32_t n, uint32_t top_k, uint32_t experts)
{
    (void)dev;
    (void)n;
    (void)top_k;
    return round_up((uint64_t)experts * 4, 256);
}

static int32_t group(struct ifx_device *dev, void *stream, const struct ifx_group *op)
{
    struct cuda_device *d = cuda_of(dev);
    struct ifx_group o = *op;
    void *args[] = {&o};
    if (o.experts == 0)
        return IFX_OK;
    if ((uint64_t)o.n * o.top_k <= FEW_PAIRS)
        return cuda_launch(d, stream, K_group_few, grid3(1, 1, 1), 1024, 0, args);
    int32_t status = cuda_launch(d, stream, K_group_count, grid3(o.experts, 1, 1), 256, 0, args);
    if (!status)
        status = cuda_launch(d, stream, K_group_offsets, grid3(1, 1, 1), 1024, 0, args);
    return status ? status : cuda_launch(d, stream, K_group_scatter, grid3(o.experts, 1, 1), 1024, 0, args);
}

static int32_t route(struct ifx_device *dev, void *stream, const struct ifx_router *router, const struct ifx_group *group)
{
    struct ifx_router r = *router;
    struct ifx_group g = *group;
    void *args[] = {&r, &g};
    if (r.n == 0 || r.n > ROUTE_THREADS / 32 || r.n != g.n || r.top_k != g.top_k || r.experts != g.experts || r.ids != g.ids || r.top_k == 0 ||
        r.top_k > 32 || r.top_k > r.experts || r.experts > 1024)
        return IFX_EUNSUPPORTED;
    return cuda_launch(cuda_of(dev), stream, K_route_few, grid3(1, 1, 1), ROUTE_THREADS, 0, args);
}

static uint64_t sample_ws_bytes(struct ifx_device *dev, uint32_t n, uint32_t vocab)
{
    (void)dev;
    (void)vocab;
    return (uint64_t)n * SAMPLE_PARTS * 48;
}

static int32_t sample(struct ifx_device *dev, void *stream, const struct ifx_sample *op)
{
    struct cuda_device *d = cuda_of(dev);
    struct ifx_sample o = *op;
    void *args[] = {&o};
    if (o.temperature != 0 && !o.u)
        return dev->host->error(dev->host, IFX_EINVAL, "sampling at a temperature without random numbers");
    if (o.n == 0 || o.vocab == 0)
        return IFX_OK;
    int32_t status = cuda_launch(d, stream, K_sample_largest, grid3(SAMPLE_PARTS, o.n, 1), 256, 0, args);
    return status ? status : cuda_launch(d, stream, K_sample_pick, grid3(o.n, 1, 1), 1024, 0, args);
}

void cuda_fill_route(struct ifx_device_ops *ops)
{
    ops->router = router;
    ops->group_ws_bytes = group_ws_bytes;
    ops->group = group;
    ops->route = route;
    ops->sample_ws_bytes = sample_ws_bytes;
    ops->sample = sample;
}
