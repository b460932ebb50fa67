/* SPDX-License-Identifier: Apache-2.0
 *
 * compute.h - how a format plugin runs its own kernels on a device, without being linked to that device's runtime.
 *
 * A format carries compiled device code as data (for CUDA: a fat binary made by `nvcc -fatbin`, embedded in the
 * plugin), so the plugin loads on a machine that has no GPU and no CUDA.  The device hands out this table; the format
 * loads its image once in device_open and launches kernels by handle from then on.
 *
 * Format tier: append-only.
 */
#ifndef INFERNIX_COMPUTE_H
#define INFERNIX_COMPUTE_H

#include <infernix/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IFX_COMPUTE_CUDA 1u /* images are CUDA fat binaries, cubins or PTX; streams are cudaStream_t */

struct ifx_compute {
    uint32_t struct_size;
    uint32_t family;          /* IFX_COMPUTE_* */
    uint32_t arch;            /* CUDA: 10 * major + minor of the compute capability: 90, 120 */
    uint32_t multiprocessors;
    uint32_t max_shared;      /* bytes of shared memory a block may ask for */
    uint32_t warp;            /* threads of a warp: 32 */
    uint64_t l2_bytes;
    void *ctx;
    /* Loads an image; it must stay in memory until module_unload.  IFX_EUNSUPPORTED when it holds no code for this
     * architecture.  Not while a graph is being captured. */
    int32_t (*module_load)(const struct ifx_compute *c, const void *image, uint64_t bytes, void **module);
    void (*module_unload)(const struct ifx_compute *c, void *module);
    /* A kernel by its unmangled name (extern "C").  dynamic_shared: the most bytes any launch will ask for. */
    int32_t (*kernel)(const struct ifx_compute *c, void *module, const char *name, uint32_t dynamic_shared, void **kernel);
    /* Enqueues on a stream; returns at once.  args: addresses of the kernel's parameters, in order.  May be captured. */
    int32_t (*launch)(const struct ifx_compute *c, void *stream, void *kernel, const uint32_t grid[3],
                      const uint32_t block[3], uint32_t dynamic_shared, void *const *args);
    /* The same, but the kernel may start while what is in front of it ends.  For kernels of which every block waits by itself
     * (CUDA: griddepcontrol.wait) before it touches what others write or read, and before it ends.  NULL: there is only launch. */
    int32_t (*launch_early)(const struct ifx_compute *c, void *stream, void *kernel, const uint32_t grid[3],
                            const uint32_t block[3], uint32_t dynamic_shared, void *const *args);
};

#ifdef __cplusplus
}
#endif
#endif
