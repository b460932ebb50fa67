/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen4_exp.h - the Qwen4Exp family (Qwen3.8-Flash-Next): what config.c and ngram.c read and forward.c runs.
 *
 * Recurrent state of a sequence (float32), each part at a multiple of 16 values: for each linear-attention layer in order S
 * [v_heads, dk, dv] and its convolution inputs [channels, kernel - 1]; then for each n-gram embedding in order its convolution inputs
 * [streams * hidden, (kernel - 1) * ngram_size].
 */
#ifndef INFERNIX_MODELS_QWEN4_EXP_H
#define INFERNIX_MODELS_QWEN4_EXP_H

#include "blocks.h"
#include "ngram.h"

/* A gated residual: how a block reads from the streams and where its output goes. */
struct hyper {
    uint32_t norm, down, up;
    uint32_t inject; /* not at the end of the model */
};

/* An n-gram embedding that a layer adds to its streams. */
struct ple {
    uint32_t present;
    uint32_t table; /* index among the model's tables */
    uint32_t key_proj, value_proj, norm_key, norm_query, norm_conv, conv;
    uint64_t state; /* offset, in values */
};

struct indexer_layer {
    uint32_t qk_proj, q_norm, k_norm;
};

struct layer {
    uint32_t linear_attention;
    struct ple ple;
    struct hyper attn_hyper, mlp_hyper;
    struct delta_layer delta;
    struct attention_layer attention;
    struct indexer_layer indexer;
    struct ffn_layer ffn; /* the shared expert */
};

struct model {
    const struct ifx_host *host;
    struct ifx_model_desc desc;
    struct ifx_param *params;
    struct ifx_moe_layer *moe;
    struct ifx_row_table *tables;
    struct ifx_int_tensor *ints;
    struct ngram *ngrams; /* of each table */
    struct layer *layers;
    float *inv_freq; /* [rotary / 2] */
    uint32_t embed, head;
    struct hyper last;
    uint32_t hidden, n_layers, vocab, streams, lowrank;
    float eps;
    struct attention_net attention;
    struct delta_net delta;
    uint32_t inter; /* of the shared expert */
    uint32_t experts, top_k, expert_inter, renormalise;
    /* block selection */
    uint32_t index_heads, index_d, budget, ratio;
    /* n-gram embedding */
    uint32_t n_ple, ple_width, ple_kernel;
    struct ngram_rule ngram;
};

int32_t qwen4_exp_open(const struct ifx_host *host, const struct ifx_options *options, const struct ifx_config *config,
                       void **out);
void qwen4_exp_close(void *model);
uint64_t qwen4_exp_workspace_bytes(void *model, struct ifx_device *dev, uint32_t n, uint32_t n_logits);
int32_t qwen4_exp_forward(void *model, const struct ifx_step *step);
void qwen4_exp_row_ids(void *model, uint32_t table, const int32_t *tokens, uint32_t history, uint32_t n, int64_t *ids);

#endif
