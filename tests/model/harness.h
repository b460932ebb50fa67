/* SPDX-License-Identifier: Apache-2.0
 *
 * harness.h - what the model tests share: models, golden tensors, comparisons that say where.
 */
#ifndef INFERNIX_TESTS_HARNESS_H
#define INFERNIX_TESTS_HARNESS_H

#include "infernix.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* Fails the test with a text. */
#define FAIL(...)                     \
    do {                              \
        print_error(__VA_ARGS__);     \
        print_error("\n");            \
        fail();                       \
    } while (0)
/* The call must succeed; otherwise its error text is the failure. */
#define OK(call)                                                            \
    do {                                                                    \
        int32_t ok_ = (call);                                               \
        if (ok_)                                                            \
            FAIL("%s: status %d: %s", #call, (int)ok_, base_error_text()); \
    } while (0)

struct options {
    const char *cpu, *device, *kv, *experts;
    uint32_t threads, chunk, ctx, sequences;
    uint64_t prefix; /* bytes for kept prefixes */
    uint64_t tables; /* bytes for rows of tables */
    bool deterministic, no_graph;
};
/* A context and a model in it. */
struct rig {
    struct ifx_context *ctx;
    struct ifx_model *model;
    struct ifx_model_info info;
};
void rig_open(struct rig *r, const char *path, const struct options *o);
void rig_close(struct rig *r);
/* As rig_open, but the open must fail with a text that holds `needle`; returns the status. */
int32_t rig_refused(const char *path, const struct options *o, const char *needle);
/* Path of a golden checkpoint or file; kept until the next call with the same slot (0..3). */
const char *golden(int slot, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A golden tensor as floats or ints; owned by the caller (free with base_free).  NULL when absent. */
float *golden_floats(struct st_file *f, const char *name, uint64_t *count);
int32_t *golden_ints(struct st_file *f, const char *name, uint64_t *count);

/* Largest |a - b| with its index; NaN counts as infinite. */
double largest_difference(const float *a, const float *b, uint64_t n, uint64_t *at);
double relative_l2(const float *a, const float *b, uint64_t n);
double rms_difference(const float *a, const float *b, uint64_t n);
int32_t argmax(const float *x, uint32_t n);
double log_probability(const float *logits, uint32_t n, int32_t token);

/* Feeds n tokens in pieces of `cut` (0: whole); logits of all of them. */
void feed_cut(struct ifx_sequence *s, const int32_t *tokens, uint64_t n, uint64_t cut, uint32_t vocab, float *logits);

/* A fresh folder under the test's working directory. */
void temp_folder(char *out, size_t size, const char *name);

#endif
