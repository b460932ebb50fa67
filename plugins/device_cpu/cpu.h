/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu.h - device `cpu`: drivers that cut an operation into ranges, give them to threads and call the kernels.
 */
#ifndef DEVICE_CPU_CPU_H
#define DEVICE_CPU_CPU_H

#include "cpu_device.h"
#include "kernels.h"

static inline struct cpu_device *cpu_of(struct ifx_device *dev)
{
    return (struct cpu_device *)dev;
}

/* Calls fn on ranges of [0, items): in the caller's thread when the whole takes no longer than waking the others would, which
 * picoseconds an item tells. */
int32_t cpu_split(struct cpu_device *d, cpu_range_fn fn, const void *op, uint64_t items, uint64_t picoseconds);

/* Runs tasks, each of about that many picoseconds, under the same rule. */
int32_t cpu_run(struct cpu_device *d, uint64_t tasks, ifx_task_fn fn, void *ctx, uint64_t picoseconds);

/* linear.c */
uint64_t cpu_linear_ws_bytes(struct ifx_device *dev, uint32_t n, uint32_t cols);
int32_t cpu_linear(struct ifx_device *dev, void *stream, const struct ifx_linear *op);

#endif
