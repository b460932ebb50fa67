/* SPDX-License-Identifier: Apache-2.0
 *
 * rig.h - experts of some layers on a device, and what one MoE call should give.
 */
#ifndef TEST_OFFLOAD_RIG_H
#define TEST_OFFLOAD_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "offload.h"
#include "registry.h"

#define RIG_LAYERS 4u

struct rig_options {
    const char *device;  /* "device_sim,..." */
    const char *format;  /* NULL: nvfp4 */
    uint32_t experts, top_k, hidden, inter, layers, max_columns; /* 0: 16, 4, 64, 32, 3, 64 */
    uint32_t threads;    /* 0: 2 */
    uint32_t mode, deterministic, frames, slots;
    uint64_t promote_bytes;
    const struct ifx_assist_policy *policy; /* NULL: the bank's */
    bool no_offload; /* offload_create is the test's own */
};

struct rig {
    struct base_pool *pool;
    struct registry *registry;
    struct ifx_device *cpu, *dev;
    void *stream;
    const struct ifx_expert_ops *ops;
    void *bank;
    struct offload_layer layers[RIG_LAYERS];
    const struct ifx_assist_policy *policies[RIG_LAYERS];
    struct mover_records *records;
    uint8_t *memory;
    uint32_t n_layers, max_columns;
    struct offload_config config;
    struct offload *offload;
    /* one call, on the host and on the device */
    uint16_t *x, *dev_x;
    int32_t *ids, *dev_ids;
    float *weights, *dev_weights, *y, *dev_y, *want;
    void *ws;
};

#define OK(call)                                                                                                            \
    do {                                                                                                                    \
        int32_t st_ = (call);                                                                                               \
        if (st_)                                                                                                            \
            fail_msg("%s: %d (%s)", #call, (int)st_, base_error_text());                                                    \
    } while (0)

uint64_t rig_random(uint64_t *state);
uint32_t rig_below(uint64_t *state, uint32_t n);
void rig_open(struct rig *r, const struct rig_options *o);
void rig_close(struct rig *r);
/* Random activations and choices (skew 0: uniform; higher: the first experts more often), the reference computed on the host. */
void rig_draw(struct rig *r, uint32_t layer, uint32_t n, uint32_t skew, uint64_t *seed);
int32_t rig_run(struct rig *r, uint32_t layer, uint32_t n); /* upload, call, download, wait */
/* y against want: bits. */
void rig_compare(const struct rig *r, uint32_t layer, uint32_t n, const char *what);
void rig_step(struct rig *r, uint32_t n, uint32_t skew, uint64_t *seed, const char *what); /* all layers, checked */

#endif
