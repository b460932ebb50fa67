/* SPDX-License-Identifier: Apache-2.0
 *
 * mirror.h - a device with memory of its own, driven by tests that pass host memory: every operand is copied to the device, with
 * the whole allocation around it (canaries included), and back after the operation.
 */
#ifndef TESTS_MIRROR_H
#define TESTS_MIRROR_H

#include <infernix/device.h>

/* Takes over `real`; closing the mirror closes it.  Every fourth operation runs from a captured graph. */
struct ifx_device *mirror_open(struct ifx_device *real);

/* Of exact_alloc: which bytes belong together. */
void mirror_note(const void *memory, uint64_t bytes);

#endif
