/* SPDX-License-Identifier: Apache-2.0
 *
 * peak.h - what the multiply-add units of a core can do out of registers: the ceiling of every matrix product.
 *
 * Each returns the floating-point operations that `rounds` rounds did (two a multiply-add); the caller takes the time.
 */
#ifndef BENCH_PEAK_H
#define BENCH_PEAK_H

#include <stdint.h>

typedef double (*peak_fn)(uint64_t rounds);

double peak_avx2(uint64_t rounds);
double peak_avx512(uint64_t rounds);
double peak_avx512_bf16(uint64_t rounds);
double peak_amx_bf16(uint64_t rounds);

#endif
