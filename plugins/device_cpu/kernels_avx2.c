/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels_avx2.c - the kernel templates for level avx2.
 */
#include "vec_avx2.h"

#include "tpl_table.h"

void cpu_kernels_avx2(struct cpu_kernels *k)
{
    *k = template_table;
}
