/* SPDX-License-Identifier: Apache-2.0
 *
 * reader.c - reading a config.json with limits.
 */
#include "reader.h"

#include <inttypes.h>
#include <string.h>

#define STATE_ALIGN 16u

int32_t config_bad(const struct config_reader *r, const char *key, const char *why)
{
    return r->host->error(r->host, IFX_EFORMAT, "config.json: \"%s\" %s", key, why);
}

int32_t config_maybe_u32(const struct config_reader *r, const char *key, int64_t min, int64_t max, uint32_t *out)
{
    int64_t v;
    int32_t st = r->config->get_int(r->config, key, &v);
    if (st)
        return st == IFX_ENOTFOUND ? IFX_OK : st;
    if (v < min || v > max)
        return r->host->error(r->host, IFX_EFORMAT,
                              "config.json: \"%s\" is %" PRId64 "; it must lie between %" PRId64 " and %" PRId64, key, v, min,
                              max);
    *out = (uint32_t)v;
    return IFX_OK;
}

int32_t config_need_u32(const struct config_reader *r, const char *key, int64_t min, int64_t max, uint32_t *out)
{
    int64_t v;
    if (r->config->get_int(r->config, key, &v) == IFX_ENOTFOUND)
        return config_bad(r, key, "is missing; this architecture needs it");
    return config_maybe_u32(r, key, min, max, out);
}

int32_t config_first_float(const struct config_reader *r, const char *const *keys, double *out)
{
    for (; *keys; keys++) {
        int32_t st = r->config->get_float(r->config, *keys, out);
        if (st != IFX_ENOTFOUND)
            return st;
    }
    return IFX_OK;
}

int32_t config_only_bool(const struct config_reader *r, const char *key, bool implemented)
{
    uint32_t v;
    int32_t st = r->config->get_bool(r->config, key, &v);
    if (st)
        return st == IFX_ENOTFOUND ? IFX_OK : st;
    if ((v != 0) != implemented)
        return r->host->error(r->host, IFX_EUNSUPPORTED, "config.json: \"%s\" is %s; only %s is implemented", key,
                              v ? "true" : "false", implemented ? "true" : "false");
    return IFX_OK;
}

int32_t config_only_string(const struct config_reader *r, const char *key, const char *implemented)
{
    const char *v;
    int32_t st = r->config->get_string(r->config, key, &v);
    if (st)
        return st == IFX_ENOTFOUND ? IFX_OK : st;
    if (strcmp(v, implemented) != 0)
        return r->host->error(r->host, IFX_EUNSUPPORTED, "config.json: \"%s\" is \"%.64s\"; only \"%s\" is implemented", key, v,
                              implemented);
    return IFX_OK;
}

int32_t config_only_default_rope(const struct config_reader *r)
{
    static const char *const keys[] = {"rope_parameters.rope_type", "rope_parameters.type", "rope_scaling.rope_type",
                                       "rope_scaling.type", NULL};
    int32_t st = IFX_OK;
    for (const char *const *key = keys; !st && *key; key++)
        st = config_only_string(r, *key, "default");
    return st;
}

uint64_t config_place_state(uint64_t *end, uint64_t values)
{
    uint64_t at = *end;
    *end += (values + STATE_ALIGN - 1) / STATE_ALIGN * STATE_ALIGN;
    return at;
}
