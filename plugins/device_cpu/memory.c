/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.c - memory, copies, streams and events of a device whose memory is the host's.
 */
#include "cpu_device.h"
#include "ref.h"

#include <string.h>

#define CPU_ALIGN 64u

static int32_t mem_alloc(struct ifx_device *dev, uint64_t bytes, void **out)
{
    *out = dev->host->alloc(dev->host, bytes ? bytes : CPU_ALIGN, CPU_ALIGN);
    return *out ? IFX_OK : IFX_ENOMEM;
}

static void mem_free(struct ifx_device *dev, void *memory)
{
    if (memory)
        dev->host->free(dev->host, memory);
}

/* Streams and events only have to be distinguishable from NULL. */
static const char stream_token, event_token;

static int32_t stream_create(struct ifx_device *dev, void **stream)
{
    (void)dev;
    *stream = (void *)&stream_token;
    return IFX_OK;
}

static void handle_destroy(struct ifx_device *dev, void *handle)
{
    (void)dev;
    (void)handle;
}

static int32_t handle_sync(struct ifx_device *dev, void *handle)
{
    (void)dev;
    (void)handle;
    return IFX_OK;
}

static int32_t event_create(struct ifx_device *dev, void **event)
{
    (void)dev;
    *event = (void *)&event_token;
    return IFX_OK;
}

static int32_t event_and_stream(struct ifx_device *dev, void *event, void *stream)
{
    (void)dev;
    (void)event;
    (void)stream;
    return IFX_OK;
}

static int32_t event_query(struct ifx_device *dev, void *event, uint32_t *done)
{
    (void)dev;
    (void)event;
    *done = 1;
    return IFX_OK;
}

static int32_t copy(struct ifx_device *dev, void *stream, void *dst, const void *src, uint64_t bytes,
                    uint32_t direction)
{
    (void)dev;
    (void)stream;
    (void)direction;
    if (bytes)
        memmove(dst, src, bytes);
    return IFX_OK;
}

static int32_t fill(struct ifx_device *dev, void *stream, void *dst, uint8_t byte, uint64_t bytes)
{
    (void)dev;
    (void)stream;
    if (bytes)
        memset(dst, byte, bytes);
    return IFX_OK;
}

void cpu_fill_common(struct ifx_device_ops *ops)
{
    ops->struct_size = sizeof *ops;
    ops->mem_alloc = mem_alloc;
    ops->mem_free = mem_free;
    ops->host_alloc = mem_alloc;
    ops->host_free = mem_free;
    ops->stream_create = stream_create;
    ops->stream_destroy = handle_destroy;
    ops->stream_sync = handle_sync;
    ops->event_create = event_create;
    ops->event_destroy = handle_destroy;
    ops->event_record = event_and_stream;
    ops->event_wait = event_and_stream;
    ops->event_query = event_query;
    ops->event_sync = handle_sync;
    ops->copy = copy;
    ops->fill = fill;
    ops->group_ws_bytes = common_group_ws_bytes;
    ops->group = common_group;
    ops->sample_ws_bytes = common_sample_ws_bytes;
    ops->sample = common_sample;
    ops->host_call = common_host_call;
    ops->index_append = common_index_append;
    ops->block_select_ws_bytes = common_block_select_ws_bytes;
    ops->block_select = common_block_select;
}
