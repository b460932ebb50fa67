/* SPDX-License-Identifier: Apache-2.0
 *
 * variant.h - a golden checkpoint, changed: tensors and config are read, edited and written as a new folder by code of its own.
 */
#ifndef INFERNIX_TESTS_VARIANT_H
#define INFERNIX_TESTS_VARIANT_H

#include "harness.h"
#include <jansson.h>

struct vt {
    char name[160];
    char dtype[16]; /* as safetensors writes it */
    uint32_t n_dims;
    uint64_t dims[IFX_MAX_DIMS];
    uint8_t *data;
    uint64_t bytes;
};
struct variant {
    struct vt *t;
    uint64_t n;
    json_t *config, *generation; /* generation NULL: not written */
    uint64_t trailing; /* bytes to add after the last tensor */
};

void variant_load(struct variant *v, const char *checkpoint);
void variant_free(struct variant *v);
/* Writes config.json, generation_config.json and model.safetensors into a folder. */
void variant_save(const struct variant *v, const char *folder);
struct vt *variant_find(struct variant *v, const char *name); /* fails the test when absent */
void variant_drop(struct variant *v, const char *name);
struct vt *variant_add(struct variant *v, const char *name, const char *dtype, uint32_t n_dims, const uint64_t *dims, const void *data,
                       uint64_t bytes);
/* Every "model.X" becomes prefix + X; lm_head.weight becomes head. */
void variant_rename(struct variant *v, const char *prefix, const char *head);
/* Moves the config's fields into text_config under an architecture name. */
void variant_nest(struct variant *v, const char *architecture);
/* Splits fused experts into one set of tensors per expert. */
void variant_unfuse(struct variant *v, uint32_t layer_from);
/* A BF16 tensor's values as floats and back. */
void vt_set(struct vt *t, uint64_t index, float value);
float vt_get(const struct vt *t, uint64_t index);
void vt_fill(struct vt *t, float value);

#endif
