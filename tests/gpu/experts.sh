#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Expert banks on a GPU: narrow calls with the bits of the CPU, wide ones against decode_row.
exec "${IFX_GPU_TESTS:-.}/test_cuda_experts" "$IFX_PLUGINS"/expert_nvfp4.so "$IFX_PLUGINS"/expert_int8.so "$IFX_PLUGINS"/expert_bf16.so
