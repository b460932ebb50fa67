/* SPDX-License-Identifier: Apache-2.0
 *
 * ref.h - the oracle's operations, one file a group.  Scalar, one thread, float32 in and out, double in between: written to be
 * read beside device.h.
 */
#ifndef DEVICE_CPU_REF_H
#define DEVICE_CPU_REF_H

#include "cpu_device.h"

#include <math.h>

static inline double ref_sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static inline double ref_silu(double x)
{
    return x / (1.0 + exp(-x));
}

/* ref_linear.c */
int32_t ref_embed(struct ifx_device *dev, void *stream, const struct ifx_weight *table, const int32_t *ids,
                  uint32_t n, float *y, uint64_t ldy);
uint64_t ref_linear_ws_bytes(struct ifx_device *dev, uint32_t n, uint32_t cols);
int32_t ref_linear(struct ifx_device *dev, void *stream, const struct ifx_linear *op);
/* ref_norm.c */
int32_t ref_rms_norm(struct ifx_device *dev, void *stream, const struct ifx_rms_norm *op);
int32_t ref_norm_rope(struct ifx_device *dev, void *stream, const struct ifx_norm_rope *op);
int32_t ref_gated_norm(struct ifx_device *dev, void *stream, const struct ifx_gated_norm *op);
/* ref_gdn.c */
int32_t ref_conv(struct ifx_device *dev, void *stream, const struct ifx_conv *op);
int32_t ref_gdn_gate(struct ifx_device *dev, void *stream, const struct ifx_gdn_gate *op);
uint64_t ref_gated_delta_ws_bytes(struct ifx_device *dev, const struct ifx_gated_delta *op);
int32_t ref_gated_delta(struct ifx_device *dev, void *stream, const struct ifx_gated_delta *op);
/* ref_mix.c */
int32_t ref_swiglu(struct ifx_device *dev, void *stream, const struct ifx_swiglu *op);
int32_t ref_sigmoid_gate(struct ifx_device *dev, void *stream, const struct ifx_sigmoid_gate *op);
int32_t ref_add(struct ifx_device *dev, void *stream, const struct ifx_add *op);
int32_t ref_router(struct ifx_device *dev, void *stream, const struct ifx_router *op);
int32_t ref_combine(struct ifx_device *dev, void *stream, const struct ifx_combine *op);
int32_t ref_to_bf16(struct ifx_device *dev, void *stream, const float *x, uint64_t ldx, uint32_t n,
                    uint32_t width, uint16_t *y, uint64_t ldy);

/* ref_streams.c */
int32_t ref_activate(struct ifx_device *dev, void *stream, const struct ifx_activate *op);
int32_t ref_stream_mix(struct ifx_device *dev, void *stream, const struct ifx_stream_mix *op);
int32_t ref_stream_inject(struct ifx_device *dev, void *stream, const struct ifx_stream_inject *op);
int32_t ref_stream_gate(struct ifx_device *dev, void *stream, const struct ifx_stream_gate *op);

/* index.c: both devices */
int32_t common_index_append(struct ifx_device *dev, void *stream, const struct ifx_index_append *op);
uint64_t common_block_select_ws_bytes(struct ifx_device *dev, const struct ifx_block_select *op);
int32_t common_block_select(struct ifx_device *dev, void *stream, const struct ifx_block_select *op);

/* route.c: both devices */
uint64_t common_group_ws_bytes(struct ifx_device *dev, uint32_t n, uint32_t top_k, uint32_t experts);
int32_t common_group(struct ifx_device *dev, void *stream, const struct ifx_group *op);
uint64_t common_sample_ws_bytes(struct ifx_device *dev, uint32_t n, uint32_t vocab);
int32_t common_sample(struct ifx_device *dev, void *stream, const struct ifx_sample *op);
int32_t common_host_call(struct ifx_device *dev, void *stream, int32_t (*fn)(void *ctx), void *ctx,
                         const struct ifx_work *work);

#endif
