/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu_device.h - what the files of this plugin share: the device struct and who fills its table.
 *
 * Both identities compute in the caller's thread and the host's worker threads and are done when a call returns, so streams and
 * events have nothing to do.
 */
#ifndef DEVICE_CPU_H
#define DEVICE_CPU_H

#include "kernels.h"

struct cpu_device {
    struct ifx_device base;    /* first member */
    struct ifx_device_ops ops; /* base.ops points here */
    uint32_t oracle;
    uint32_t level; /* IFX_CPU_*: of the kernels in use */
    uint32_t workers;
    uint32_t reserved;
    struct cpu_kernels kernels; /* `cpu`: of that level */
};

#define CPU_LEVELS 5u
extern const char *const cpu_level_names[CPU_LEVELS];

/* A device of the best kernels that were built, up to the level; or the oracle.  create.c */
int32_t cpu_device_create(const struct ifx_host *host, uint32_t oracle, uint32_t level, struct ifx_device **out);

/* Each sets its share of the table. */
void cpu_fill_common(struct ifx_device_ops *ops); /* memory.c */
void ref_fill(struct ifx_device_ops *ops);        /* ref.c */
void cpu_fill(struct ifx_device_ops *ops);        /* ops.c */

#endif
