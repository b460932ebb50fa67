/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KV_INT8_KERNELS_H
#define KV_INT8_KERNELS_H

#include <infernix/kv_skeleton.h>

extern const struct ifx_kvs_kernels kv_int8_scalar, kv_int8_avx2, kv_int8_avx512;

#endif
