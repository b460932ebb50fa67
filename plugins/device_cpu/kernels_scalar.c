/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels_scalar.c - the kernel templates for level scalar.
 */
#include "vec_generic.h"

#include "tpl_table.h"

void cpu_kernels_scalar(struct cpu_kernels *k)
{
    *k = template_table;
}
