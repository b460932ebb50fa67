/* SPDX-License-Identifier: Apache-2.0
 *
 * vec_avx512.h - the vector of the AVX-512 objects: 16 float32 lanes.
 */
#ifndef COMMON_EXPERT_VEC_H
#define COMMON_EXPERT_VEC_H

#include <immintrin.h>
#include <stdint.h>

enum { VEC_LANES = 16, VEC_ROWS_SHARE_X = 1 };
typedef __m512 vec;

static inline vec vec_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

/* In a register: the compiler would rather load it again as the operand of each use, which costs as many loads as products. */
static inline vec vec_keep(vec v)
{
    __asm__("" : "+v"(v));
    return v;
}

static inline void vec_store(float *p, vec v)
{
    _mm512_storeu_ps(p, v);
}

static inline vec vec_zero(void)
{
    return _mm512_setzero_ps();
}

static inline vec vec_broadcast(const float *p)
{
    return _mm512_set1_ps(*p);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

#endif
