/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu_internal.h - between cpu.c, pool.c and the unit tests.
 */
#ifndef INFERNIX_CORE_CPU_INTERNAL_H
#define INFERNIX_CORE_CPU_INTERNAL_H

#include <stdint.h>

/* Numbers of the CPUs this thread may run on, at most max of them; returns how many there are, 0 when unknown. */
uint32_t base_affinity(int *cpus, uint32_t max);
/* CPUs that the cgroup quota of the groups in `proc_cgroup` (v1 and v2, parents included) is worth; UINT32_MAX: no quota. */
uint32_t base_cgroup_cpus(const char *proc_cgroup, const char *mount);

#endif
