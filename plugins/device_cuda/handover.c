/* SPDX-License-Identifier: Apache-2.0
 *
 * handover.c - launches of what passes between a stream and a host thread that looks on.
 */
#include "cuda_device.h"

#include <stdlib.h>

#define AWAIT_BLOCKS 16u

static int32_t post(struct ifx_device *dev, void *stream, const struct ifx_post *op)
{
    struct ifx_post o = *op;
    void *args[] = {&o};
    return cuda_launch(cuda_of(dev), stream, K_post, grid3(1, 1, 1), 1024, 0, args);
}

static int32_t await(struct ifx_device *dev, void *stream, const struct ifx_await *op)
{
    struct ifx_await o = *op;
    void *args[] = {&o};
    return cuda_launch(cuda_of(dev), stream, K_await, grid3(AWAIT_BLOCKS, 1, 1), 512, 0, args);
}

/* Debuggers and checkers run a graph's launch to its end before they let the host go on, which could then never answer. */
static int launches_block(void)
{
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    return (blocking && *blocking && *blocking != '0') || getenv("CUDA_INJECTION64_PATH") || getenv("NV_COMPUTE_SANITIZER_PATH");
}

void cuda_fill_handover(struct ifx_device_ops *ops)
{
    if (launches_block())
        return;
    ops->post = post;
    ops->await = await;
}
