/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin.c - the operations struct of the family.
 */
#include "qwen3_5.h"

static const struct ifx_model_desc *qwen3_5_describe(void *model)
{
    return &((struct model *)model)->desc;
}

static const char *const qwen3_5_architectures[] = {
    "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    NULL,
};

static const struct ifx_model_ops qwen3_5_ops = {
    .struct_size = sizeof qwen3_5_ops,
    .architectures = qwen3_5_architectures,
    .description = "Qwen3.5, dense and mixture-of-experts (text)",
    .open = qwen3_5_open,
    .close = qwen3_5_close,
    .describe = qwen3_5_describe,
    .workspace_bytes = qwen3_5_workspace_bytes,
    .forward = qwen3_5_forward,
};

static const struct ifx_model_ops *qwen3_5_init(const struct ifx_host *host)
{
    (void)host;
    return &qwen3_5_ops;
}

IFX_MODEL_PLUGIN("model_qwen3_5", "1", qwen3_5_init)
