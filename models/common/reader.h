/* SPDX-License-Identifier: Apache-2.0
 *
 * reader.h - reading a config.json with limits, and declaring parameters.
 */
#ifndef INFERNIX_MODELS_READER_H
#define INFERNIX_MODELS_READER_H

#include <infernix/model.h>
#include <stdbool.h>

struct config_reader {
    const struct ifx_host *host;
    const struct ifx_config *config;
};

int32_t config_bad(const struct config_reader *r, const char *key, const char *why);
/* A field that must be there and lie in [min, max]. */
int32_t config_need_u32(const struct config_reader *r, const char *key, int64_t min, int64_t max, uint32_t *out);
/* The same, but *out is left alone where the field is absent. */
int32_t config_maybe_u32(const struct config_reader *r, const char *key, int64_t min, int64_t max, uint32_t *out);
/* The first of the keys that is there (NULL-terminated); *out is left alone when none is. */
int32_t config_first_float(const struct config_reader *r, const char *const *keys, double *out);
/* Switches that only one value of is implemented. */
int32_t config_only_bool(const struct config_reader *r, const char *key, bool implemented);
int32_t config_only_string(const struct config_reader *r, const char *key, const char *implemented);
/* rope_parameters or rope_scaling: only the default type. */
int32_t config_only_default_rope(const struct config_reader *r);

/* Values of a list of sizes; the state of a sequence is laid out in runs that start at a multiple of 16 values. */
uint64_t config_place_state(uint64_t *end, uint64_t values);

#endif
