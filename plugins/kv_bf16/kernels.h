/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KV_BF16_KERNELS_H
#define KV_BF16_KERNELS_H

#include <infernix/kv_skeleton.h>

extern const struct ifx_kvs_kernels kv_bf16_scalar, kv_bf16_avx2, kv_bf16_avx512;

#endif
