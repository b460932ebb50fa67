/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels_avx512.c - the kernel templates for level avx512.
 */
#include "vec_avx512.h"

#include "tpl_table.h"

void cpu_kernels_avx512(struct cpu_kernels *k)
{
    *k = template_table;
}
