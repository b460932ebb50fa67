/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel_template.h"

const struct ifx_kvs_kernels kv_f32_avx512 = {IFX_CPU_AVX512, kv_f32_append, kv_f32_attend};
