/* SPDX-License-Identifier: Apache-2.0
 *
 * qwen3_5.h - the Qwen3.5 family: what config.c reads and forward.c runs.
 *
 * Recurrent state of a sequence (float32): for each linear-attention layer in order, S [v_heads, dk, dv], then the
 * convolution inputs [channels, kernel - 1], oldest first; each of the two starts at a multiple of 16 values.
 */
#ifndef INFERNIX_MODELS_QWEN3_5_H
#define INFERNIX_MODELS_QWEN3_5_H

#include "blocks.h"

struct layer {
    uint32_t linear_attention; /* 1: gated delta net, 0: gated attention */
    uint32_t norm1, norm2;
    struct delta_layer delta;
    struct attention_layer attention;
    struct ffn_layer ffn; /* dense, or the shared expert of an MoE layer */
};

struct model {
    const struct ifx_host *host;
    struct ifx_model_desc desc;
    struct ifx_param *params;
    struct ifx_moe_layer *moe;
    struct layer *layers;
    float *inv_freq; /* [rotary / 2] */
    uint32_t embed, final_norm, head;
    uint32_t hidden, n_layers, vocab;
    float eps;
    struct attention_net attention;
    struct delta_net delta;
    uint32_t inter; /* width of the dense FFN or of the shared expert */
    uint32_t experts, top_k, expert_inter; /* 0: dense */
};

int32_t qwen3_5_open(const struct ifx_host *host, const struct ifx_options *options, const struct ifx_config *config,
                     void **out);
void qwen3_5_close(void *model);
uint64_t qwen3_5_workspace_bytes(void *model, struct ifx_device *dev, uint32_t n, uint32_t n_logits);
int32_t qwen3_5_forward(void *model, const struct ifx_step *step);

#endif
