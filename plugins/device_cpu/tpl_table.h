/* SPDX-License-Identifier: Apache-2.0
 *
 * tpl_table.h - kernel template: the table of all templates compiled for one instruction set.
 */
#include "tpl_linear.h"
#include "tpl_ops.h"
#include "tpl_gdn.h"
#include "tpl_streams.h"

static const struct cpu_kernels template_table = {
    .row_unit = V_MR * 4u,
    .round_row = round_row,
    .narrow = narrow,
    .pack_f32 = pack_f32,
    .wide_f32 = wide_f32,
    .embed = embed,
    .rms_norm = rms_norm,
    .norm_rope = norm_rope,
    .conv = conv,
    .gdn_gate = gdn_gate,
    .delta_step = delta_step,
    .delta_chunks = delta_chunks,
    .gated_norm = gated_norm,
    .swiglu = swiglu,
    .sigmoid_gate = sigmoid_gate,
    .add = add,
    .router = router,
    .combine = combine,
    .to_bf16 = to_bf16,
    .activate = activate,
    .stream_mix = stream_mix,
    .stream_inject = stream_inject,
    .stream_gate = stream_gate,
    .block_scores = block_scores,
};
