/* SPDX-License-Identifier: Apache-2.0
 *
 * synthetic.h - geometries of published models, and random models of them.
 */
#ifndef INFERNIX_CLI_SYNTHETIC_H
#define INFERNIX_CLI_SYNTHETIC_H

#include "model_on_disk.h"

struct geometry {
    const char *name, *architecture, *description;
    uint32_t hidden, layers, experts, top_k, inter, shared; /* shared: width of the shared expert */
    uint32_t q_heads, kv_heads, head_dim, rotary;
    uint32_t k_heads, v_heads, dk, dv; /* linear attention: 3 of 4 layers */
    uint32_t vocab;
    /* Qwen4Exp; 0 in others */
    uint32_t streams, lowrank, index_heads, index_d, budget, ratio, ple_width;
    uint32_t ngram_base; /* rows of a head of the n-gram table, about */
};

/* "122b-a10b,layers=8,experts=nvfp4,zipf=0.7,vocab=32768,seed=1,shrink=yes" */
struct synthetic {
    struct geometry g;
    char format[32];
    double zipf;
    uint64_t seed;
    bool shrink; /* small matrices, all counts kept: see synthetic_device */
};
/* NULL-terminated by name NULL. */
extern const struct geometry geometries[];
int32_t geometry_find(const char *name, struct geometry *out);
/* Errors name the key and what there is. */
int32_t synthetic_parse(const char *what, const char *text, struct synthetic *out);
/* Writes the model to a file, or with path NULL to memory: *path_out ("/proc/self/fd/N", owned) then opens it, while *fd is open. */
int32_t synthetic_make(struct cli *cli, struct ifx_context *c, const struct synthetic *s, const char *path, bool force,
                       char **path_out, int *fd);
/* For a shrunk model: the device's name with options of device_sim behind it that make its clock count the sizes of the real one.
 * Owned by the caller.  *byte_scale: bytes of a real record over those of a small one.  IFX_EUNSUPPORTED for another device. */
int32_t synthetic_device(struct ifx_context *c, const struct synthetic *s, const char *device, char **out, double *byte_scale);
/* Sizes of a geometry that a cost depends on. */
struct geometry_sizes {
    uint64_t record_bytes, dense_values, expert_values; /* dense: matrices of the layers; expert: of one record */
    uint64_t embed_values;                              /* embedding and head */
    uint64_t kv_layers, state_bytes;
};
int32_t geometry_sizes(struct ifx_context *c, const struct geometry *g, const char *format, struct geometry_sizes *out);

#endif
