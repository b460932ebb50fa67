/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_wgmma.cuh - products of a warpgroup on Hopper (sm_90a): four warps in a row, the first a multiple of 4, multiply 64 rows.  What is
 * not there on other architectures; mma.sync of cuda_tools.cuh is everywhere.
 *
 * d: of its warp's 16 rows a thread (g = lane / 4, t = lane % 4) has rows g and g + 8 (d[4 i], d[4 i + 1]; d[4 i + 2], d[4 i + 3]) and
 * columns 8 i + 2 t, 8 i + 2 t + 1.  a in registers is a fragment of mma.sync.  Tiles in shared memory are rows of 128 bytes (64 bf16), 8 of them
 * 1024 bytes, at a multiple of 1024; the 16-byte piece c of row r lies at piece c ^ (r % 8).
 */
#ifndef INFERNIX_CUDA_WGMMA_CUH
#define INFERNIX_CUDA_WGMMA_CUH

#include <infernix/cuda_tools.cuh>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Before a product reads registers that were written since the last one. */
IFX_DEV void ifx_wgmma_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

IFX_DEV void ifx_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most N of the groups are under way. */
template <int N> IFX_DEV void ifx_wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* A tile whose rows are rows of a, or columns of b: the inner dimension lies along them.  16 of it are 32 bytes further. */
IFX_DEV uint64_t ifx_wgmma_rows(uint32_t address)
{
    return (uint64_t)((address & 0x3ffffu) >> 4) | 1ull << 16 | (uint64_t)(1024u >> 4) << 32 | 1ull << 62;
}

/* Tiles of b whose rows are the inner dimension; the next 64 columns lie `next` bytes further, 16 of the inner dimension 2048. */
IFX_DEV uint64_t ifx_wgmma_columns(uint32_t address, uint32_t next)
{
    return (uint64_t)((address & 0x3ffffu) >> 4) | (uint64_t)(next >> 4) << 16 | (uint64_t)(1024u >> 4) << 32 | 1ull << 62;
}

#define IFX_WGMMA_8(d, i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define IFX_WGMMA_16(d, i) IFX_WGMMA_8(d, i), IFX_WGMMA_8(d, i + 8)
#define IFX_WGMMA_32(d, i) IFX_WGMMA_16(d, i), IFX_WGMMA_16(d, i + 16)

/* d[64, N] += a[64, 16] b[16, N], a in registers, b by ifx_wgmma_rows.  N: 32, 64, 96, 128. */
template <int N> struct ifx_wgmma;

template <> struct ifx_wgmma<32> {
    static __device__ __forceinline__ void run(float *d, const uint32_t *a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, "
                     "%8, %9, %10, %11, %12, %13, %14, %15"
                     "}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
                     : IFX_WGMMA_16(d, 0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    }
};

template <> struct ifx_wgmma<64> {
    static __device__ __forceinline__ void run(float *d, const uint32_t *a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, "
                     "%8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, "
                     "%24, %25, %26, %27, %28, %29, %30, %31"
                     "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
                     : IFX_WGMMA_16(d, 0),
                       IFX_WGMMA_16(d, 16)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    }
};

template <> struct ifx_wgmma<96> {
    static __device__ __forceinline__ void run(float *d, const uint32_t *a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, "
                     "%8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, "
                     "%24, %25, %26, %27, %28, %29, %30, %31, "
                     "%32, %33, %34, %35, %36, %37, %38, %39, "
                     "%40, %41, %42, %43, %44, %45, %46, %47"
                     "}, {%48, %49, %50, %51}, %52, 1, 1, 1, 0;"
                     : IFX_WGMMA_16(d, 0),
                       IFX_WGMMA_16(d, 16),
                       IFX_WGMMA_16(d, 32)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    }
};

template <> struct ifx_wgmma<128> {
    static __device__ __forceinline__ void run(float *d, const uint32_t *a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, "
                     "%8, %9, %10, %11, %12, %13, %14, %15, "
                     "%16, %17, %18, %19, %20, %21, %22, %23, "
                     "%24, %25, %26, %27, %28, %29, %30, %31, "
                     "%32, %33, %34, %35, %36, %37, %38, %39, "
                     "%40, %41, %42, %43, %44, %45, %46, %47, "
                     "%48, %49, %50, %51, %52, %53, %54, %55, "
                     "%56, %57, %58, %59, %60, %61, %62, %63"
                     "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
                     : IFX_WGMMA_16(d, 0),
                       IFX_WGMMA_16(d, 16),
                       IFX_WGMMA_16(d, 32),
                       IFX_WGMMA_16(d, 48)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    }
};

/* d[64, 64] += a[64, 16] b[16, 64], both by ifx_wgmma_rows. */
IFX_DEV void ifx_wgmma_64(float *d, uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, "
                 "%8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, "
                 "%24, %25, %26, %27, %28, %29, %30, %31"
                 "}, %32, %33, 1, 1, 1, 0, 0;"
                 : IFX_WGMMA_16(d, 0),
                   IFX_WGMMA_16(d, 16)
                 : "l"(a), "l"(b));
}

/* d[64, 256] += a[64, 16] b[16, 256], a in registers, b by ifx_wgmma_columns. */
IFX_DEV void ifx_wgmma_columns_256(float *d, const uint32_t *a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, "
                 "%8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, "
                 "%24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, "
                 "%40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, "
                 "%56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, "
                 "%72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, "
                 "%88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, "
                 "%104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, "
                 "%120, %121, %122, %123, %124, %125, %126, %127"
                 "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1;"
                 : IFX_WGMMA_32(d, 0),
                   IFX_WGMMA_32(d, 32),
                   IFX_WGMMA_32(d, 64),
                   IFX_WGMMA_32(d, 96)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#endif
#endif
