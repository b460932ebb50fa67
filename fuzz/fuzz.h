/* SPDX-License-Identifier: Apache-2.0 */
#ifndef INFERNIX_FUZZ_H
#define INFERNIX_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
