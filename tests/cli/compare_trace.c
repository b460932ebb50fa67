/* SPDX-License-Identifier: Apache-2.0
 *
 * compare_trace.c - compare_trace TRACE REFERENCE LENGTH TOLERANCE: the output of `infernix trace` against the reference of the prompt
 * of that length: logits, hidden states of the last position, router choices.  Exit 0 when they agree.
 */
#include "config.h"
#include "artifact.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct st_file *trace_file, *reference_file;
static uint32_t failures;

static struct ifx_tensor find(struct st_file *f, const char *name)
{
    struct ifx_tensor t = {.struct_size = sizeof t};
    if (st_find(f, name, &t)) {
        fprintf(stderr, "compare_trace: no tensor %s: %s\n", name, base_error_text());
        exit(1);
    }
    return t;
}

static float at_float(const struct ifx_tensor *t, uint64_t i)
{
    float v;
    memcpy(&v, (const char *)t->data + i * sizeof v, sizeof v);
    return v;
}

static int32_t at_int(const struct ifx_tensor *t, uint64_t i)
{
    int32_t v;
    memcpy(&v, (const char *)t->data + i * sizeof v, sizeof v);
    return v;
}

static void compare_rows(const char *what, uint64_t row, const struct ifx_tensor *got, uint64_t got_row,
                         const struct ifx_tensor *want, uint64_t want_row, uint64_t width, double limit)
{
    double worst = 0;
    uint64_t where = 0;
    for (uint64_t i = 0; i < width; i++) {
        double d = fabs((double)at_float(got, got_row * width + i) - (double)at_float(want, want_row * width + i));
        if (!(d <= worst)) {
            worst = d;
            where = i;
        }
    }
    if (worst <= limit)
        return;
    fprintf(stderr, "compare_trace: %s, row %llu, value %llu: expected %g, got %g, limit %g\n", what, (unsigned long long)row,
            (unsigned long long)where, (double)at_float(want, want_row * width + where),
            (double)at_float(got, got_row * width + where), limit);
    failures++;
}

static void expect_shape(const char *name, const struct ifx_tensor *t, uint32_t dtype, uint64_t rows, uint64_t cols)
{
    if (t->dtype == dtype && t->n_dims == 2 && t->dims[0] == rows && t->dims[1] == cols)
        return;
    fprintf(stderr, "compare_trace: %s: expected dtype %u [%llu, %llu], got %u [%llu, %llu]\n", name, dtype,
            (unsigned long long)rows, (unsigned long long)cols, t->dtype, (unsigned long long)t->dims[0],
            (unsigned long long)t->dims[1]);
    exit(1);
}

static void compare_logits(const char *prefix, uint64_t n, double limit)
{
    char name[80];
    struct ifx_tensor got = find(trace_file, "logits");
    snprintf(name, sizeof name, "%s.logits", prefix);
    struct ifx_tensor want = find(reference_file, name);
    snprintf(name, sizeof name, "%s.logit_positions", prefix);
    struct ifx_tensor positions = find(reference_file, name);
    expect_shape("logits", &got, IFX_F32, n, want.dims[1]);
    for (uint64_t i = 0; i < positions.dims[0]; i++)
        compare_rows("logits", i, &got, (uint64_t)at_int(&positions, i), &want, i, want.dims[1], limit);
}

static void compare_hidden(const char *prefix, uint64_t n, double limit)
{
    char name[80];
    snprintf(name, sizeof name, "%s.hidden", prefix);
    struct ifx_tensor want = find(reference_file, name);
    for (uint64_t l = 0; l < want.dims[0]; l++) {
        snprintf(name, sizeof name, "hidden.%d", (int)l - 1);
        struct ifx_tensor got = find(trace_file, l > 0 ? name : "hidden.embedding");
        expect_shape(name, &got, IFX_F32, n, want.dims[1]);
        compare_rows(name, l, &got, n - 1, &want, l, want.dims[1], limit);
    }
}

/* Chosen experts as sets, where the choice is not a near tie; the weight of each. */
static void compare_router(const char *prefix, uint64_t n)
{
    char name[80];
    snprintf(name, sizeof name, "%s.router_ids", prefix);
    struct ifx_tensor ids = find(reference_file, name);
    snprintf(name, sizeof name, "%s.router_weights", prefix);
    struct ifx_tensor weights = find(reference_file, name);
    snprintf(name, sizeof name, "%s.router_margin", prefix);
    struct ifx_tensor margin = find(reference_file, name);
    snprintf(name, sizeof name, "%s.router_positions", prefix);
    struct ifx_tensor positions = find(reference_file, name);
    uint64_t layers = ids.dims[0], rows = ids.dims[1], k = ids.dims[2], compared = 0;
    for (uint64_t lr = 0; lr < layers * rows; lr++) {
        snprintf(name, sizeof name, "router.%u.ids", (unsigned)(lr / rows));
        struct ifx_tensor got = find(trace_file, name);
        expect_shape(name, &got, IFX_I32, n, k);
        snprintf(name, sizeof name, "router.%u.weights", (unsigned)(lr / rows));
        struct ifx_tensor got_weights = find(trace_file, name);
        if (at_float(&margin, lr) < 1e-4f)
            continue;
        uint64_t row = (uint64_t)at_int(&positions, lr % rows);
        for (uint64_t i = 0; i < k; i++, compared++) {
            uint64_t j = 0;
            while (j < k && at_int(&got, row * k + j) != at_int(&ids, lr * k + i))
                j++;
            if (j < k && fabsf(at_float(&got_weights, row * k + j) - at_float(&weights, lr * k + i)) <= 1e-4f)
                continue;
            fprintf(stderr, "compare_trace: %s, position %llu: expert %d with weight %g is not there\n", name,
                    (unsigned long long)row, at_int(&ids, lr * k + i), (double)at_float(&weights, lr * k + i));
            failures++;
        }
    }
    if (compared == 0) {
        fprintf(stderr, "compare_trace: no router choice was compared\n");
        failures++;
    }
}

int main(int argc, char **argv)
{
    char prefix[32], name[64];
    if (argc == 4 && strcmp(argv[1], "ids") == 0) { /* ids REFERENCE LENGTH: prints the prompt */
        if (st_open(argv[2], &reference_file))
            return fprintf(stderr, "compare_trace: %s\n", base_error_text()), 1;
        snprintf(name, sizeof name, "len%s.input_ids", argv[3]);
        struct ifx_tensor ids = find(reference_file, name);
        for (uint64_t i = 0; i < ids.dims[0]; i++)
            printf("%s%d", i > 0 ? "," : "", at_int(&ids, i));
        st_close(reference_file);
        return putchar('\n') == EOF;
    }
    if (argc != 5)
        return fprintf(stderr, "usage: compare_trace TRACE REFERENCE LENGTH TOLERANCE | ids REFERENCE LENGTH\n"), 2;
    if (st_open(argv[1], &trace_file) || st_open(argv[2], &reference_file))
        return fprintf(stderr, "compare_trace: %s\n", base_error_text()), 1;
    uint64_t n = strtoull(argv[3], NULL, 10);
    double limit = strtod(argv[4], NULL);
    struct ifx_tensor moe = {.struct_size = sizeof moe};
    snprintf(prefix, sizeof prefix, "len%s", argv[3]);
    compare_logits(prefix, n, limit);
    compare_hidden(prefix, n, limit);
    snprintf(name, sizeof name, "%s.router_ids", prefix);
    if (st_find(reference_file, name, &moe) == IFX_OK)
        compare_router(prefix, n);
    st_close(trace_file);
    st_close(reference_file);
    return failures > 0;
}
