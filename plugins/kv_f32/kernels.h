/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KV_F32_KERNELS_H
#define KV_F32_KERNELS_H

#include <infernix/kv_skeleton.h>

extern const struct ifx_kvs_kernels kv_f32_scalar, kv_f32_avx2, kv_f32_avx512;

#endif
