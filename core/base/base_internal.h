/* SPDX-License-Identifier: Apache-2.0
 *
 * base_internal.h - between the files of core/base and the unit tests.
 */
#ifndef INFERNIX_CORE_BASE_INTERNAL_H
#define INFERNIX_CORE_BASE_INTERNAL_H

#include <stdint.h>

/* Room of the error record: a checkpoint may have many faults, told at once. */
#define BASE_ERROR_BYTES 16384

/* Numbers of the CPUs this thread may run on, at most max of them; returns how many there are, 0 when unknown. */
uint32_t base_affinity(int *cpus, uint32_t max);
/* The calling thread stays on one CPU until as many unpins; 0 or an errno. */
int base_pin_caller(int cpu);
void base_unpin_caller(void);
/* CPUs that the cgroup quota of the groups in `proc_cgroup` (v1 and v2, parents included) is worth; UINT32_MAX: no quota. */
uint32_t base_cgroup_cpus(const char *proc_cgroup, const char *mount);

#endif
