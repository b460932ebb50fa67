/* SPDX-License-Identifier: Apache-2.0
 *
 * check_util.h - what the checks are written with: a host table that counts and can refuse, memory between guard
 * pages, random numbers.  Lives in the process of one check.
 */
#ifndef INFERNIX_CORE_CHECK_UTIL_H
#define INFERNIX_CORE_CHECK_UTIL_H

#include "base.h"
#include <infernix/device.h>
#include <infernix/expert.h>
#include <infernix/kv.h>
#include <infernix/model.h>
#include <stdatomic.h>

#define CHECK_TEXT 512

struct check_ctx {
    struct ifx_host host; /* what the plugin gets; first, so that callbacks find the rest */
    const char *path;
    struct ifx_magic magic;
    const struct ifx_option *options;
    const char *spec;                /* "key=value,..." as the user gave it, or NULL */
    const struct ifx_options *given; /* what stands in it, and the defaults */
    union {
        uint32_t struct_size;
        struct ifx_expert_ops expert;
        struct ifx_kv_ops kv;
        struct ifx_model_ops model;
        struct ifx_device_plugin_ops device;
        unsigned char bytes[1024];
    } ops;
    struct base_pool *pool;
    uint32_t level; /* what host->cpu_level says */
    atomic_int live, allocs, refuse, errors; /* blocks held, calls so far, whether alloc refuses, texts recorded */
    bool scalar; /* no level above it */
    bool failed;
    char text[CHECK_TEXT];
};

typedef void (*check_fn)(struct check_ctx *c);
struct check_entry {
    const char *name;
    check_fn fn;
    bool gate; /* the checks after it make no sense when it fails */
    bool bare; /* the check loads the plugin itself */
};
extern const struct check_entry check_expert_table[], check_kv_table[], check_engine_table[];

/* Records the first failure; always false, for `return check_fail(...)`. */
bool check_fail(struct check_ctx *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A remark shown beside "ok". */
void check_note(struct check_ctx *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A call's status: fails with the recorded text when it is not IFX_OK. */
bool check_status(struct check_ctx *c, int32_t status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---- loading (check_load.c) ---- */
bool check_load(struct check_ctx *c);
bool check_option_table(struct check_ctx *c, const struct ifx_option *table);
bool check_identity(struct check_ctx *c, const char *what, const char *text);
bool check_line(struct check_ctx *c, const char *what, const char *text);
/* CPU levels worth running here: SCALAR and what the machine has. */
uint32_t check_levels(struct check_ctx *c);

/* ---- malloc and its kin, called by the plugin itself (check_malloc.c) ---- */
void check_malloc_watch(void *so); /* of the loaded plugin */
unsigned check_malloc_calls(void);

/* ---- guarded memory: pages without access on both sides, the rest of the first and last page watched ---- */
struct guard {
    uint8_t *data; /* ends at a guard page as closely as the alignment allows */
    uint64_t bytes;
    uint8_t *map;
    uint64_t map_bytes, page;
};
bool guard_new(struct check_ctx *c, struct guard *g, uint64_t bytes, uint64_t align);
bool guard_intact(struct check_ctx *c, const struct guard *g, const char *what);
void guard_read_only(const struct guard *g, bool on);
void guard_free(struct guard *g);

/* ---- random ---- */
struct rng {
    uint64_t s;
};
uint32_t rng_u32(struct rng *r);
uint32_t rng_below(struct rng *r, uint32_t n);
float rng_normal(struct rng *r); /* mean 0, deviation 1, |x| < 6 */

/* Runs fn(arg, i) for i < n on threads of their own, started together, with the stack the ABI promises. */
#define CHECK_RACE_SECONDS 0.3 /* how long threads try to disturb each other */
bool check_threads(struct check_ctx *c, uint32_t n, void (*fn)(void *arg, uint32_t i), void *arg);

#endif
