/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel_template.h"

const struct ifx_kvs_kernels kv_int8_avx2 = {IFX_CPU_AVX2, kv_int8_append, kv_int8_attend};
