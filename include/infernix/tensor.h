/* SPDX-License-Identifier: Apache-2.0
 *
 * tensor.h - element types, tensor views and the units every other header uses.
 *
 * Conventions of the whole ABI:
 *   - A shape is written with the slowest index first: x[n, H] has H contiguous values a row.
 *   - "ld" (leading dimension) is the distance in elements from one row to the next.
 *   - A column is one token position of a call: x[n, H] holds n columns of H values.  (The name is that of
 *     the matrix product y = W x.)
 *   - Sizes in bytes end in _bytes; everything else counts elements.
 */
#ifndef INFERNIX_TENSOR_H
#define INFERNIX_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element types.  The numbers are part of the ABI and of the .infernix format. */
#define IFX_F32      1u /* IEEE binary32 */
#define IFX_F16      2u /* IEEE binary16 */
#define IFX_BF16     3u /* upper half of binary32 */
#define IFX_F8_E4M3  4u /* OCP E4M3 (FN): no infinity, 0x7f and 0xff are NaN */
#define IFX_U8       5u
#define IFX_I8       6u
#define IFX_I32      7u
#define IFX_I64      8u
#define IFX_F64      9u
#define IFX_BOOL    10u
#define IFX_I16     11u
#define IFX_U16     12u
#define IFX_U32     13u
#define IFX_U64     14u
#define IFX_F8_E5M2 15u
/* Dense weights of `--dense int8`: int8 codes [rows, cols] (cols a multiple of 32 after zero padding), and
 * beside them one fp16 scale for each group of 32 along cols: w = code * scale. */
#define IFX_W8G32   32u

#define IFX_MAX_DIMS 4

/* A view of a tensor that somebody else owns. */
struct ifx_tensor {
    uint32_t struct_size;
    uint32_t dtype;
    uint32_t n_dims;
    uint32_t reserved;
    uint64_t dims[IFX_MAX_DIMS]; /* slowest first; unused ones are 1 */
    const void *data;            /* may be unaligned when it points into a mapped file */
    uint64_t data_bytes;
};

/* A dense weight matrix on a device: W[rows, cols], cols (the input dimension) contiguous, no padding. */
struct ifx_weight {
    uint32_t dtype; /* IFX_BF16, IFX_F32 or IFX_W8G32 */
    uint32_t rows;
    uint32_t cols;
    uint32_t reserved;
    const void *data;   /* device memory, 64-byte aligned */
    const void *scales; /* IFX_W8G32: fp16 [rows, ceil(cols / 32)]; otherwise NULL */
};

#ifdef __cplusplus
}
#endif
#endif
