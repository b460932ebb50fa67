/* SPDX-License-Identifier: Apache-2.0
 *
 * minihost.h - a host table for tests and benchmarks of plugins that need no core library: libc and threads are all.
 */
#ifndef TESTS_MINIHOST_H
#define TESTS_MINIHOST_H

#include <infernix/device.h>

/* Highest IFX_CPU_* of this machine; asks the kernel for the tile registers. */
uint32_t minihost_detect(void);
const char *minihost_level_name(uint32_t level);
int minihost_parse_level(const char *text, uint32_t *level); /* 0 when known */
uint32_t minihost_cpus(void);

/* A host of that many threads that reports that level.  Errors are printed only when asked for. */
struct ifx_host *minihost_create(uint32_t threads, uint32_t level);
void minihost_destroy(struct ifx_host *host);
const char *minihost_error(const struct ifx_host *host); /* the last text, "" when none */

/* Loads PATH (a device plugin) and opens an identity on the host; prints why and returns NULL when it cannot. */
struct ifx_device *minihost_open(const char *path, struct ifx_host *host, const char *identity);

#endif
