/* SPDX-License-Identifier: Apache-2.0
 *
 * ref.c - the oracle's table.
 */
#include "ref.h"

void ref_fill(struct ifx_device_ops *ops)
{
    ops->embed = ref_embed;
    ops->linear_ws_bytes = ref_linear_ws_bytes;
    ops->linear = ref_linear;
    ops->rms_norm = ref_rms_norm;
    ops->norm_rope = ref_norm_rope;
    ops->conv = ref_conv;
    ops->gdn_gate = ref_gdn_gate;
    ops->gated_delta_ws_bytes = ref_gated_delta_ws_bytes;
    ops->gated_delta = ref_gated_delta;
    ops->gated_norm = ref_gated_norm;
    ops->swiglu = ref_swiglu;
    ops->sigmoid_gate = ref_sigmoid_gate;
    ops->add = ref_add;
    ops->router = ref_router;
    ops->combine = ref_combine;
    ops->to_bf16 = ref_to_bf16;
    ops->activate = ref_activate;
    ops->stream_mix = ref_stream_mix;
    ops->stream_inject = ref_stream_inject;
    ops->stream_gate = ref_stream_gate;
}
