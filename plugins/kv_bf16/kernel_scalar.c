/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel_template.h"

const struct ifx_kvs_kernels kv_bf16_scalar = {IFX_CPU_SCALAR, kv_bf16_append, kv_bf16_attend};
