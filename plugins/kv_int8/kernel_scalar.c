/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel_template.h"

const struct ifx_kvs_kernels kv_int8_scalar = {IFX_CPU_SCALAR, kv_int8_append, kv_int8_attend};
