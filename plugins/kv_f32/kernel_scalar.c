/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel_template.h"

const struct ifx_kvs_kernels kv_f32_scalar = {IFX_CPU_SCALAR, kv_f32_append, kv_f32_attend};
