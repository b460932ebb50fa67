/* SPDX-License-Identifier: Apache-2.0
 *
 * banks.h - what the parts of the bank test program share.  The program needs libc, libm and dl alone, so that a
 * built tree can be carried to a machine with more instruction sets.
 */
#ifndef TEST_BANKS_H
#define TEST_BANKS_H

#include "mini_host.h"

#include <infernix/numerics.h>

#include <math.h>

struct suite {
    const struct ifx_expert_ops *ops; /* of the bank under test */
    uint32_t level;                   /* highest of this machine */
    unsigned checks, failures;
};

/* One open instance of a bank and a record of random weights. */
struct fixture {
    struct mini_host host;
    struct ifx_expert_shape shape;
    void *bank;
    uint8_t *record; /* the suite's, not the fixture's */
    uint32_t flags;  /* of calls */
};

int expect(struct suite *suite, int ok, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A small generator with the same numbers everywhere. */
uint32_t random_u32(uint64_t *state);
float random_normal(uint64_t *state);

/* 0 when the level cannot be opened. */
int fixture_open(struct suite *suite, struct fixture *f, uint32_t hidden, uint32_t inter, uint32_t level);
void fixture_close(struct suite *suite, struct fixture *f);
uint8_t *random_record(struct suite *suite, const struct fixture *f, uint64_t seed);

/* Runs a whole call with the rows cut at `cuts` places and canaries round everything written.  y[n][H]. */
int run_call(struct suite *suite, const struct fixture *f, const uint16_t *x, uint32_t n, uint32_t cuts,
             uint64_t seed, float *y);

void test_narrow(struct suite *suite);
void test_wide(struct suite *suite);
void test_pack(struct suite *suite);
void test_golden(struct suite *suite, const char *folder);

#endif
