/* SPDX-License-Identifier: Apache-2.0
 *
 * ledger.h - what a model will take of device, host and pinned memory, term by term, against what there is: known before weights are read.
 */
#ifndef INFERNIX_CORE_LEDGER_H
#define INFERNIX_CORE_LEDGER_H

#include "base.h"

#define LEDGER_TERMS 24u

/* Pinned memory is host memory too, and counts on both sides. */
enum ledger_side { LEDGER_DEVICE, LEDGER_HOST, LEDGER_PINNED, LEDGER_SIDES };
struct ledger_limit {
    uint64_t bytes; /* UINT64_MAX: none known */
    char source[160]; /* "--vram-budget", "/sys/fs/cgroup/x/memory.max" */
};
struct ledger {
    struct ledger_limit limit[LEDGER_SIDES];
    struct {
        const char *what, *lower; /* lower: what makes it smaller, or NULL */
        enum ledger_side side;
        uint64_t bytes;
    } terms[LEDGER_TERMS];
    uint32_t n;
};

/* Terms of 0 bytes are left out.  The texts are not copied. */
void ledger_add(struct ledger *l, enum ledger_side side, const char *what, uint64_t bytes, const char *lower);
void ledger_limit(struct ledger_limit *limit, uint64_t bytes, const char *source); /* takes the lower one */
uint64_t ledger_sum(const struct ledger *l, enum ledger_side side);
/* IFX_ELIMIT when a side does not fit: need, limit, where the limit comes from, the terms, what to lower. */
int32_t ledger_check(const struct ledger *l);
/* One line a side: "device memory: 5.1 of 31.0 GB: weights 3.2 GB, ...". */
void ledger_log(const struct ledger *l, uint32_t level);

/* ulimit -l in bytes; UINT64_MAX: none.  What drivers pin is rarely counted by it, so it bounds nothing here. */
uint64_t ledger_memlock(void);
/* Host memory that this process can still take: MemAvailable, RLIMIT_AS, and every cgroup above it (v2 and v1). */
void ledger_host_limit(struct ledger_limit *limit);
/* The cgroup part; the paths are parameters for tests. */
void ledger_cgroup_limit(const char *proc_cgroup, const char *mount, struct ledger_limit *limit);

#endif
