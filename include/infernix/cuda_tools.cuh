/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_tools.cuh - the instructions that the kernels of formats are made of, by their PTX names: asynchronous copies into
 * shared memory, barriers on their bytes, matrix fragments and products.  All of it exists from compute capability 9.0 on,
 * on sm_90 and sm_120 alike.
 *
 * Fragments of m16n8k16 (g = lane / 4, t = lane % 4), two bf16 a register, the lower index in the lower half:
 *   a[0]: row g, k 2t; a[1]: row g + 8, k 2t; a[2]: row g, k 2t + 8; a[3]: row g + 8, k 2t + 8
 *   b[0]: k 2t, column g; b[1]: k 2t + 8, column g
 *   c[0], c[1]: row g, columns 2t, 2t + 1; c[2], c[3]: row g + 8
 */
#ifndef INFERNIX_CUDA_TOOLS_CUH
#define INFERNIX_CUDA_TOOLS_CUH

#include <infernix/numerics.h>

#define IFX_DEV static __device__ __forceinline__

/* For kernels started by ifx_compute.launch_early.  The next such kernel of the stream may start, once all blocks have said so or ended. */
IFX_DEV void ifx_let_next_start(void)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* Returns when everything that was enqueued in front of this kernel has ended and what it wrote is there.  Every block calls it. */
IFX_DEV void ifx_wait_for_last(void)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

IFX_DEV uint32_t ifx_smem(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes from global to shared memory; only the first `bytes` are read, the rest become zero. */
IFX_DEV void ifx_copy16(uint32_t to, const void *from, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

IFX_DEV void ifx_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most N of this thread's committed groups are under way. */
template <int N> IFX_DEV void ifx_copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

IFX_DEV void ifx_barrier_init(uint32_t barrier)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}

/* Makes initialised barriers known to the copy engine; __syncthreads follows. */
IFX_DEV void ifx_barrier_publish(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* One thread: copies `bytes` (a multiple of 16, both addresses 16-byte aligned) and completes the barrier's phase. */
IFX_DEV void ifx_bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier)
                 : "memory");
}

IFX_DEV void ifx_barrier_wait(uint32_t barrier, uint32_t phase)
{
    uint32_t done = 0;
    while (!done)
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(barrier), "r"(phase)
                     : "memory");
}

/* Four 8 x 8 matrices of 16-bit values; lane i gives the address of row i % 8 of matrix i / 8. */
IFX_DEV void ifx_load_matrix(uint32_t r[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

IFX_DEV void ifx_load_matrix_transposed(uint32_t r[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* c += a b, bf16 with float32 accumulation. */
IFX_DEV void ifx_mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two floats as bf16, round to nearest even. */
IFX_DEV uint32_t ifx_pack_bf16(float low, float high)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/* Product of bf16 pairs. */
IFX_DEV uint32_t ifx_mul_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

/* (x & mask) | y in one instruction. */
IFX_DEV uint32_t ifx_and_or(uint32_t x, uint32_t mask, uint32_t y)
{
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(x), "r"(mask), "r"(y));
    return r;
}

/* Two int8 codes times their scale, each rounded to bf16 once.  flipped: four codes with their sign bits turned over, as which
 * a code c is the last byte of the float 2^23 + 128 + c; FIRST, FIRST + 1: the bytes taken. */
template <int FIRST> IFX_DEV uint32_t ifx_i8_scaled(uint32_t flipped, float scale)
{
    const float low = ifx_bits_f32(__byte_perm(flipped, 0x4b000000u, 0x7650u + FIRST)) - 8388736.0f;
    const float high = ifx_bits_f32(__byte_perm(flipped, 0x4b000000u, 0x7651u + FIRST)) - 8388736.0f;
    return ifx_pack_bf16(low * scale, high * scale);
}

IFX_DEV float ifx_half_to_f32(uint32_t half)
{
    float f;
    asm("{.reg .b16 h;\ncvt.u16.u32 h, %1;\ncvt.f32.f16 %0, h;\n}" : "=f"(f) : "r"(half));
    return f;
}

IFX_DEV void ifx_half2_to_f32(uint32_t pair, float *low, float *high)
{
    asm("{.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}"
        : "=f"(*low), "=f"(*high)
        : "r"(pair));
}

#endif
