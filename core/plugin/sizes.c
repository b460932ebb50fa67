/* SPDX-License-Identifier: Apache-2.0
 *
 * sizes.c - the sizes that a plugin states, held against sense before memory is allocated by them.
 */
#include "config.h"
#include "registry.h"

static int32_t judge_size(const char *what, const char *format, uint64_t bytes, uint64_t align, uint64_t values)
{
    unsigned __int128 most = (unsigned __int128)values * 16 + (1u << 20);
    if (bytes % align != 0)
        return base_error(IFX_EFORMAT, "format %s: %s of %llu bytes is not a multiple of %llu: a fault of the plugin", format,
                          what, (unsigned long long)bytes, (unsigned long long)align);
    if (bytes > most)
        return base_error(IFX_EFORMAT, "format %s: %s of %llu bytes for %llu values is past all sense: a fault of the plugin",
                          format, what, (unsigned long long)bytes, (unsigned long long)values);
    return IFX_OK;
}

int32_t registry_record_bytes(const struct ifx_expert_ops *ops, const struct ifx_expert_shape *shape, uint64_t *out)
{
    uint64_t bytes = ops->record_bytes(shape), values = (uint64_t)shape->hidden * shape->inter;
    *out = 0;
    if (bytes == 0)
        return base_error(IFX_EUNSUPPORTED, "expert format %s cannot hold experts of hidden size %u and width %u",
                          ops->format, shape->hidden, shape->inter);
    if (values > UINT64_MAX / 3)
        return base_error(IFX_ELIMIT, "experts of hidden size %u and width %u are too large", shape->hidden, shape->inter);
    int32_t status = judge_size("a record", ops->format, bytes, IFX_RECORD_ALIGN, 3 * values);
    if (status == IFX_OK)
        *out = bytes;
    return status;
}

int32_t registry_page_bytes(const struct ifx_kv_ops *ops, const struct ifx_kv_shape *shape, uint64_t *out)
{
    uint64_t bytes = ops->page_bytes(shape), values = 2;
    *out = 0;
    if (bytes == 0)
        return base_error(IFX_EUNSUPPORTED, "KV format %s does not support %u heads of %u", ops->format,
                          shape->n_kv_heads, shape->head_dim);
    if (!base_mul_u64(values, shape->head_dim, &values) || !base_mul_u64(values, shape->n_kv_heads, &values) ||
        !base_mul_u64(values, shape->page_tokens, &values))
        return base_error(IFX_ELIMIT, "%u KV heads of %u are too large", shape->n_kv_heads, shape->head_dim);
    int32_t status = judge_size("a page", ops->format, bytes, 64, values);
    if (status == IFX_OK)
        *out = bytes;
    return status;
}
