/* SPDX-License-Identifier: Apache-2.0
 *
 * banks_pack.c - packing: quality, what is refused, what the oracle says about special rows; the NVFP4 goldens.
 */
#include "banks.h"

enum { H = 64, I = 32, COUNT = H * I };

struct weights {
    float m[3][COUNT];
};

static void random_weights(struct weights *w, uint64_t seed)
{
    for (int m = 0; m < 3; m++)
        for (int i = 0; i < COUNT; i++)
            w->m[m][i] = random_normal(&seed) * 0.05f;
}

static int32_t pack(struct suite *suite, struct fixture *f, const struct weights *w)
{
    return suite->ops->pack(f->bank, w->m[0], w->m[1], w->m[2], f->record);
}

/* Squared error of a packed matrix. */
static double packed_error(struct suite *suite, const struct fixture *f, uint32_t m, const float *source)
{
    double row[H], error = 0;
    uint32_t k_count = m == IFX_DOWN ? I : H;
    for (uint32_t r = 0; r < COUNT / k_count; r++) {
        suite->ops->decode_row(f->bank, f->record, m, r, row);
        for (uint32_t k = 0; k < k_count; k++)
            error += pow(row[k] - (double)source[r * k_count + k], 2);
    }
    return error;
}

static float nearest_e2m1(float q)
{
    float best = 0, distance = INFINITY;
    for (uint8_t c = 0; c < 16; c++) {
        float v = ifx_e2m1_to_f32(c);
        if (fabsf(v - q) < distance) {
            distance = fabsf(v - q);
            best = v;
        }
    }
    return best;
}

static uint8_t nearest_e4m3(float x)
{
    uint8_t best = 0;
    for (uint8_t c = 0; c < 0x7f; c++)
        if (fabsf(ifx_e4m3_to_f32(c) - x) < fabsf(ifx_e4m3_to_f32(best) - x))
            best = c;
    return best;
}

/* The usual method: each group's scale puts its largest magnitude at 6. */
static double amax_error(const float *source)
{
    float amax = 0;
    for (int i = 0; i < COUNT; i++)
        amax = fmaxf(amax, fabsf(source[i]));
    float tensor = amax / (6.0f * 448.0f);
    double error = 0;
    for (int g = 0; g < COUNT; g += 16) {
        float most = 0;
        for (int k = g; k < g + 16; k++)
            most = fmaxf(most, fabsf(source[k]));
        float scale = ifx_e4m3_to_f32(nearest_e4m3(most / 6.0f / tensor)) * tensor;
        for (int k = g; k < g + 16; k++)
            error += pow((double)nearest_e2m1(source[k] / scale) * (double)scale - (double)source[k], 2);
    }
    return error;
}

static void test_quality(struct suite *suite, struct fixture *f)
{
    struct weights w;
    /* relative squared error of normal weights: 4 bits 1.2e-2, int8 groups of 32 6e-5, bf16 3e-6 */
    double bound = strcmp(suite->ops->format, "nvfp4") == 0  ? 1.2e-2
                   : strcmp(suite->ops->format, "int8") == 0 ? 6e-5
                                                             : 3e-6;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        random_weights(&w, seed);
        expect(suite, pack(suite, f, &w) == 0, "pack: %s", f->host.error);
        for (uint32_t m = 0; m < 3; m++) {
            double error = packed_error(suite, f, m, w.m[m]), norm = 0;
            for (int i = 0; i < COUNT; i++)
                norm += pow((double)w.m[m][i], 2);
            expect(suite, error <= bound * norm, "seed %d, matrix %u: relative squared error %.3e, bound %.3e",
                   (int)seed, m, error / norm, bound);
            if (strcmp(suite->ops->format, "nvfp4") == 0)
                expect(suite, error < 0.95 * amax_error(w.m[m]),
                       "seed %d, matrix %u: squared error %.4e is not below that of the amax method, %.4e",
                       (int)seed, m, error, amax_error(w.m[m]));
        }
    }
}

static void test_special_rows(struct suite *suite, struct fixture *f)
{
    struct weights w;
    double row[H];
    random_weights(&w, 9);
    memset(w.m[IFX_UP] + 3 * H, 0, H * sizeof(float)); /* a zero row */
    w.m[IFX_GATE][5 * H + 7] = 40.0f;                  /* one outlier */
    expect(suite, pack(suite, f, &w) == 0, "pack: %s", f->host.error);
    suite->ops->decode_row(f->bank, f->record, IFX_UP, 3, row);
    for (int k = 0; k < H; k++)
        expect(suite, row[k] == 0, "zero row, position %d: expected 0, got %g", k, row[k]);
    suite->ops->decode_row(f->bank, f->record, IFX_GATE, 5, row);
    expect(suite, fabs(row[7] - 40.0) < 40.0 * 0.05, "outlier: expected about 40, got %g", row[7]);
    if (strcmp(suite->ops->format, "int8") == 0) {
        expect(suite, fabs(row[7] - 40.0) < 40.0 * 1e-3, "outlier: expected 40 within 1e-3, got %g", row[7]);
        for (int k = 32; k < H; k++) /* the outlier costs only its own group */
            expect(suite, fabs(row[k] - (double)w.m[IFX_GATE][5 * H + k]) < 1.5e-3,
                   "position %d beside the outlier's group: expected %g, got %g", k,
                   (double)w.m[IFX_GATE][5 * H + k], row[k]);
    }
    memset(&w, 0, sizeof w);
    expect(suite, pack(suite, f, &w) == 0, "pack of zeros: %s", f->host.error);
    suite->ops->decode_row(f->bank, f->record, IFX_DOWN, 1, row);
    expect(suite, row[0] == 0 && row[I - 1] == 0, "zero matrix: got %g, %g", row[0], row[I - 1]);
    expect(suite, !suite->ops->check_record || suite->ops->check_record(f->bank, f->record) == 0,
           "check_record refuses zeros: %s", f->host.error);
}

static void test_refused(struct suite *suite, struct fixture *f)
{
    struct weights w;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int b = 0; b < 3; b++)
        for (uint32_t m = 0; m < 3; m++) {
            random_weights(&w, 11);
            w.m[m][17 * (m + 1)] = bad[b];
            f->host.error[0] = 0;
            int32_t status = pack(suite, f, &w);
            expect(suite, status == IFX_EFORMAT && f->host.error[0],
                   "a weight of %g in matrix %u: expected %d and a text, got %d (%s)", (double)bad[b], m,
                   IFX_EFORMAT, status, f->host.error);
        }
    double row[H];
    expect(suite, suite->ops->decode_row(f->bank, f->record, IFX_GATE, I, row) < 0,
           "decode_row took row %d of %d", I, I);
    expect(suite, suite->ops->decode_row(f->bank, f->record, 3, 0, row) < 0, "decode_row took matrix 3");
    expect(suite, suite->ops->gate_up(f->bank, &(struct ifx_expert_call){.n = 1}, 8, I) < 0,
           "gate_up took a range that starts at row 8");
}

void test_pack(struct suite *suite)
{
    struct fixture f;
    if (!fixture_open(suite, &f, H, I, suite->level))
        return;
    uint64_t bytes = suite->ops->record_bytes(&f.shape);
    expect(suite, bytes && bytes % IFX_RECORD_ALIGN == 0, "record of %llu bytes", (unsigned long long)bytes);
    if (!posix_memalign((void **)&f.record, 4096, bytes)) {
        test_quality(suite, &f);
        test_special_rows(suite, &f);
        test_refused(suite, &f);
    }
    free(f.record);
    fixture_close(suite, &f);
}
