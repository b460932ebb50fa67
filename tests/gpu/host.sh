#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The host sides of formats against a pretended compute table.
exec "${IFX_GPU_TESTS:-.}/test_cuda_host" "$IFX_PLUGINS"/expert_nvfp4.so "$IFX_PLUGINS"/expert_int8.so "$IFX_PLUGINS"/expert_bf16.so \
  "$IFX_PLUGINS"/kv_bf16.so "$IFX_PLUGINS"/kv_int8.so "$IFX_PLUGINS"/kv_f32.so
