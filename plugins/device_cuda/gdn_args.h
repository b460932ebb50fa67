/* SPDX-License-Identifier: Apache-2.0
 *
 * gdn_args.h - sizes of the chunked gated delta rule, for both sides.
 */
#ifndef DEVICE_CUDA_GDN_ARGS_H
#define DEVICE_CUDA_GDN_ARGS_H

enum {
    CHUNK = 64,      /* tokens */
    DELTA_D = 128,   /* the chunked form takes heads of up to this, padded with zeros */
    SLICE = 32,      /* values of a head that one block of the scan carries */
    SEGMENT = 8,     /* chunks between two scans: what they exchange stays in the L2 cache */
    CHUNKS_FROM = 24 /* tokens: fewer go one by one */
};

/* What delta_chunks leaves for delta_scan, a chunk and value head; floats. */
enum {
    PART_W = 0,                          /* [CHUNK, DELTA_D] */
    PART_Q = PART_W + CHUNK * DELTA_D,   /* [CHUNK, DELTA_D]: exp(G) q */
    PART_K = PART_Q + CHUNK * DELTA_D,   /* [CHUNK, DELTA_D]: exp(G_last - G) k */
    PART_U = PART_K + CHUNK * DELTA_D,   /* [CHUNK, DELTA_D] */
    PART_A = PART_U + CHUNK * DELTA_D,   /* [CHUNK, CHUNK] */
    PART_DECAY = PART_A + CHUNK * CHUNK, /* exp(G_last) */
    PART_FLOATS = PART_DECAY + 64
};

enum { KEY_LD = 144, L_LD = 68, S_LD = 34 }; /* strides in shared memory without bank conflicts */
enum {
    CHUNKS_SHARED = (2 * CHUNK * KEY_LD + CHUNK * L_LD + 4 * CHUNK) * 4,
    SCAN_SHARED = (DELTA_D * S_LD + CHUNK * S_LD) * 4
};

#endif
