#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# KV formats on a GPU: append with the bytes of the CPU, attention against decode_row.
exec "${IFX_GPU_TESTS:-.}/test_cuda_kv" "$IFX_PLUGINS"/kv_bf16.so "$IFX_PLUGINS"/kv_int8.so "$IFX_PLUGINS"/kv_f32.so
