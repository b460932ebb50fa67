/* SPDX-License-Identifier: Apache-2.0
 *
 * reader.h - reading a config.json with limits, and declaring parameters.
 */
#ifndef INFERNIX_MODELS_READER_H
#define INFERNIX_MODELS_READER_H

#include "blocks.h"

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

/* rms_norm_eps, rope_theta and partial_rotary_factor (factor: what it is where the config is silent) into a family's attention and
 * delta net; *inv_freq: [rotary / 2], made with the host's alloc. */
int32_t config_read_reals(const struct config_reader *r, double factor, struct attention_net *attention, struct delta_net *delta,
                          float *eps, float **inv_freq);
/* Head counts and widths of attention and delta net. */
int32_t config_read_heads(const struct config_reader *r, struct attention_net *attention, struct delta_net *delta);
/* layer_types, or every full_attention_interval-th is full attention: *linear, and the fields `stride` bytes after it, for n_layers layers.
 * other: a second name for attention, or NULL. */
int32_t config_read_pattern(const struct config_reader *r, uint32_t n_layers, const char *other, uint32_t *linear, size_t stride);
/* n zeroed elements of `size` bytes of the host's memory, or NULL. */
void *config_zeroed(const struct config_reader *r, uint64_t n, size_t size);

/* ---- declaring ---- */
struct param_list {
    struct ifx_param *params;
    uint32_t n;
};
uint32_t param_add(struct param_list *p, uint32_t kind, uint32_t flags, uint32_t rows, uint32_t cols, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
#define PARAM_MATRIX(list, flags, rows, cols, ...) param_add(list, IFX_PARAM_MATRIX, flags, rows, cols, __VA_ARGS__)
#define PARAM_VECTOR(list, values, ...)            param_add(list, IFX_PARAM_VECTOR, 0, 1, values, __VA_ARGS__)

/* Parameters of the shared blocks of layer i; a delta net's state is placed at *state_end, in values, in runs that start at a
 * multiple of 16. */
void delta_declare(struct param_list *p, const struct delta_net *net, uint32_t hidden, uint32_t i, struct delta_layer *l,
                   uint64_t *state_end);
void attention_declare(struct param_list *p, const struct attention_net *net, uint32_t hidden, uint32_t i,
                       struct attention_layer *l);
void ffn_declare(struct param_list *p, uint32_t hidden, uint32_t inter, const char *block, uint32_t i, struct ffn_layer *l);
/* Router, gate of the shared expert, shared expert; fills *moe (its experts, top_k, hidden, inter, renormalise are set). */
void mixture_declare(struct param_list *p, uint32_t inter, uint32_t i, struct ifx_moe_layer *moe, struct ffn_layer *l);

uint64_t config_place_state(uint64_t *end, uint64_t values);

#endif
