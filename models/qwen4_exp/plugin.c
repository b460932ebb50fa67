/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin.c - the operations struct of the family.
 */
#include "qwen4_exp.h"

static const struct ifx_model_desc *qwen4_exp_describe(void *model)
{
    return &((struct model *)model)->desc;
}

static const char *const qwen4_exp_architectures[] = {
    "Qwen4ExpForCausalLM",
    "Qwen4ExpForConditionalGeneration",
    NULL,
};

static const struct ifx_model_ops qwen4_exp_ops = {
    .struct_size = sizeof qwen4_exp_ops,
    .architectures = qwen4_exp_architectures,
    .description = "Qwen3.8-Flash-Next: gated residual streams, n-gram embedding, sparse attention (text)",
    .open = qwen4_exp_open,
    .close = qwen4_exp_close,
    .describe = qwen4_exp_describe,
    .workspace_bytes = qwen4_exp_workspace_bytes,
    .forward = qwen4_exp_forward,
    .row_ids = qwen4_exp_row_ids,
};

static const struct ifx_model_ops *qwen4_exp_init(const struct ifx_host *host)
{
    (void)host;
    return &qwen4_exp_ops;
}

IFX_MODEL_PLUGIN("model_qwen4_exp", "1", qwen4_exp_init)
