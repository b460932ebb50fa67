/* SPDX-License-Identifier: Apache-2.0
 *
 * optest.h - what the operation tests share: checks that say where, random numbers, matrices with canaries, golden tensors.
 */
#ifndef TESTS_OPTEST_H
#define TESTS_OPTEST_H

#include "minihost.h"

#include <infernix/numerics.h>
#include <stdbool.h>

/* ---- checks ---- */
extern uint64_t checks_done, checks_failed;
bool check(bool ok, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- random numbers: the same on every machine ---- */
uint64_t rng_next(uint64_t *state);
uint32_t rng_below(uint64_t *state, uint32_t n);
float rng_float(uint64_t *state, float low, float high);
float rng_normal(uint64_t *state);

/* ---- matrices: rows of `width`, `ld` apart, NaN canaries in all gaps, before and after ---- */
struct mat {
    float *all, *p;
    uint64_t rows, width, ld, total;
};
struct mat mat_new(uint64_t rows, uint64_t width, uint64_t ld); /* every value is a canary */
struct mat mat_random(uint64_t *rng, uint64_t rows, uint64_t width, uint64_t ld, float scale);
struct mat mat_copy(const struct mat *m);
void mat_free(struct mat *m);
void mat_intact(const struct mat *m, const char *what); /* checks the canaries */
void mat_bf16(struct mat *m);                           /* rounds every value to bf16 */
/* Largest |got - want| against the bound; NaN counts as infinite unless both are. */
void mat_close(const struct mat *got, const struct mat *want, double absolute, double relative, const char *what);
void mat_same_bits(const struct mat *got, const struct mat *want, const char *what);
void mat_l2(const struct mat *got, const struct mat *want, double relative, const char *what);

/* Memory of exactly that size, so that a sanitizer sees a step too far. */
void *exact_alloc(uint64_t bytes);

/* ---- weights ---- */
struct ifx_weight weight_random(uint64_t *rng, uint32_t dtype, uint32_t rows, uint32_t cols, float scale);
void weight_free(struct ifx_weight *w);

/* ---- golden tensors ---- */
struct golden;
struct golden *golden_open(const char *path); /* NULL: no such file */
void golden_close(struct golden *g);
/* Values of a tensor; ends the program when it is absent.  count may be NULL. */
const float *golden_f32(const struct golden *g, const char *name, uint64_t *count);
const int32_t *golden_i32(const struct golden *g, const char *name, uint64_t *count);
uint64_t golden_dim(const struct golden *g, const char *name, uint32_t dim);

/* ---- the groups of tests, each on one device ---- */
struct pair {
    struct ifx_device *ref, *dev;
    const char *name; /* of dev */
    uint32_t exact;   /* dev is the oracle too */
    uint32_t any_order; /* narrow products promise no order of sums, only that a column depends on itself alone */
    uint64_t seed;      /* of everything random */
};
void test_goldens(const struct pair *t, const struct golden *g);
void test_streams(const struct pair *t, const struct golden *g);
void test_linear(const struct pair *t);
void test_elementwise(const struct pair *t, uint32_t rounds);
void test_delta(const struct pair *t);
void test_router(const struct pair *t, uint32_t rounds);
void test_route(const struct pair *t, uint32_t rounds);
/* rounds: of each */
void test_product(const struct pair *t, uint32_t rounds);
void test_edges(const struct pair *t);
void test_wide_offsets(const struct pair *t);
void test_threads(const char *plugin, uint32_t level);

#endif
