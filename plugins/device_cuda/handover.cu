/* SPDX-License-Identifier: Apache-2.0
 *
 * handover.cu - words and bytes between a stream and a host thread that looks on, through the host's pinned memory.
 */
#include "common.cuh"

#define PATIENCE_NS 3600000000000ull /* a stopped process may go on; one that has not by then never will: the kernel ends the context, which tells */

__device__ __forceinline__ uint64_t nanoseconds()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* One block.  4 bytes a thread: pieces are a few KB. */
KERNEL ifx_post(struct ifx_post op)
{
    begin_kernel();
    for (uint32_t p = 0; p < op.n; p++) {
        uint64_t words = op.pieces[p].row_bytes / 4;
        for (uint32_t r = 0; r < op.pieces[p].rows; r++) {
            const uint32_t *from = (const uint32_t *)((const uint8_t *)op.pieces[p].from + r * op.pieces[p].pitch);
            uint32_t *to = (uint32_t *)op.pieces[p].to + r * words;
            for (uint64_t i = threadIdx.x; i < words; i += blockDim.x)
                to[i] = from[i];
        }
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t count = *op.counter + 1;
        *op.counter = count;
        __threadfence_system();
        *(volatile uint64_t *)op.posted = (uint64_t)count << 32 | op.tag;
    }
}

/* Every block waits by itself, then takes its share.  16 bytes a thread, four in flight: what is asked for crosses the link. */
KERNEL ifx_await(struct ifx_await op)
{
    __shared__ uint32_t rows;
    begin_kernel();
    if (threadIdx.x == 0) {
        uint32_t count = *op.counter;
        uint64_t began = nanoseconds(), answer = *(const volatile uint64_t *)op.answer;
        while ((uint32_t)(answer >> 32) != count) {
            if (nanoseconds() - began > PATIENCE_NS)
                asm volatile("trap;");
            answer = *(const volatile uint64_t *)op.answer;
        }
        rows = (uint32_t)answer;
        __threadfence_system();
    }
    __syncthreads();
    uint64_t n = (op.fixed_bytes + rows * op.row_bytes) / 16, step = (uint64_t)gridDim.x * blockDim.x;
    const uint4 *from = (const uint4 *)op.from;
    uint4 *to = (uint4 *)op.to;
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 a = __ldcv(from + i), b = __ldcv(from + i + step), c = __ldcv(from + i + 2 * step), d = __ldcv(from + i + 3 * step);
        to[i] = a;
        to[i + step] = b;
        to[i + 2 * step] = c;
        to[i + 3 * step] = d;
    }
    for (; i < n; i += step)
        to[i] = __ldcv(from + i);
}
