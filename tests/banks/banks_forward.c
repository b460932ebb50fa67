/* SPDX-License-Identifier: Apache-2.0
 *
 * banks_forward.c - the CPU routes of a bank: narrow calls bit for bit against the canonical definition, wide
 * calls against decode_row in double.
 */
#include "banks.h"

static const uint32_t shapes[][2] = {{128, 128}, {64, 32},   {32, 16},  {16, 48},   {176, 80},
                                     {272, 144}, {512, 304}, {640, 96}, {1040, 128}};
/* what only a bank without a multiple to keep can hold */
static const uint32_t odd_shapes[][2] = {{1, 1}, {5, 3}, {33, 31}, {100, 65}, {257, 130}};

static void fill_columns(uint16_t *x, uint64_t count, uint64_t seed)
{
    for (uint64_t i = 0; i < count; i++) {
        float v = random_normal(&seed);
        if (random_u32(&seed) % 97 == 0)
            v *= 30.0f;
        if (random_u32(&seed) % 211 == 0)
            v = 0.0f;
        x[i] = ifx_f32_to_bf16(v);
    }
}

/* The definition in numerics.h, from decode_row and the tensor scales of the format. */
static float tensor_scale(const struct suite *suite, const struct fixture *f, uint32_t matrix)
{
    float scale = 1.0f;
    if (strcmp(suite->ops->format, "nvfp4") == 0)
        memcpy(&scale, f->record + 4 * matrix, sizeof scale);
    return scale;
}

static void canonical_product(struct suite *suite, const struct fixture *f, uint32_t matrix, const uint16_t *x,
                              uint32_t n, float *out)
{
    uint32_t rows = matrix == IFX_DOWN ? f->shape.hidden : f->shape.inter;
    uint32_t k_count = matrix == IFX_DOWN ? f->shape.inter : f->shape.hidden;
    double *exact = malloc(k_count * sizeof *exact);
    float *w = malloc(k_count * sizeof *w), scale = tensor_scale(suite, f, matrix);
    for (uint32_t r = 0; r < rows; r++) {
        suite->ops->decode_row(f->bank, f->record, matrix, r, exact);
        for (uint32_t k = 0; k < k_count; k++)
            w[k] = (float)(exact[k] / scale); /* exact: the decoded weight has few bits */
        for (uint32_t c = 0; c < n; c++)
            out[(uint64_t)c * rows + r] = ifx_canonical_dot(w, x + (uint64_t)c * k_count, k_count) * scale;
    }
    free(exact);
    free(w);
}

static void canonical_call(struct suite *suite, const struct fixture *f, const uint16_t *x, uint32_t n, float *y)
{
    uint64_t count = (uint64_t)n * f->shape.inter;
    float *gate = malloc(count * sizeof *gate), *up = malloc(count * sizeof *up);
    uint16_t *hidden = malloc(count * sizeof *hidden);
    canonical_product(suite, f, IFX_GATE, x, n, gate);
    canonical_product(suite, f, IFX_UP, x, n, up);
    for (uint64_t i = 0; i < count; i++)
        hidden[i] = ifx_f32_to_bf16(ifx_silu(gate[i]) * up[i]);
    canonical_product(suite, f, IFX_DOWN, hidden, n, y);
    free(gate);
    free(up);
    free(hidden);
}

static void narrow_shape(struct suite *suite, uint32_t h, uint32_t inter)
{
    struct fixture f;
    if (!fixture_open(suite, &f, h, inter, IFX_CPU_SCALAR))
        return;
    uint8_t *record = f.record = random_record(suite, &f, h * 1000003u + inter);
    uint16_t *x = malloc((size_t)8 * h * sizeof *x);
    float *want = malloc((size_t)8 * h * sizeof *want), *got = malloc((size_t)8 * h * sizeof *got);
    fill_columns(x, (uint64_t)8 * h, h + inter);
    canonical_call(suite, &f, x, 8, want);
    fixture_close(suite, &f);
    for (uint32_t level = 0; level <= suite->level; level++) {
        if (!fixture_open(suite, &f, h, inter, level))
            continue;
        f.record = record;
        for (uint32_t n = 1; n <= IFX_NARROW_COLUMNS; n++)
            for (uint32_t cuts = 0; cuts < 20; cuts += 7) {
                run_call(suite, &f, x, n, cuts, n * 31 + cuts, got);
                for (uint32_t i = 0; i < n * h; i++)
                    if (!expect(suite, ifx_f32_bits(got[i]) == ifx_f32_bits(want[i]),
                                "%ux%u, %u columns, %u cuts, %s: column %u row %u: expected %a, got %a", h, inter,
                                n, cuts, mini_level_name(level), i / h, i % h, (double)want[i], (double)got[i]))
                        break;
            }
        fixture_close(suite, &f);
    }
    free(record);
    free(x);
    free(want);
    free(got);
}

void test_narrow(struct suite *suite)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        narrow_shape(suite, shapes[i][0], shapes[i][1]);
    struct ifx_expert_shape odd = {sizeof odd, 5, 3, 0};
    if (suite->ops->record_bytes(&odd))
        for (size_t i = 0; i < sizeof odd_shapes / sizeof *odd_shapes; i++)
            narrow_shape(suite, odd_shapes[i][0], odd_shapes[i][1]);
}

/* ---- wide ---- */

/* out[c][row] = dot in double; magnitude[c][row] = sum of |w x|, the scale of its rounding error. */
static void oracle_product(struct suite *suite, const struct fixture *f, uint32_t matrix, const double *x,
                           uint32_t n, double *out, double *magnitude)
{
    uint32_t rows = matrix == IFX_DOWN ? f->shape.hidden : f->shape.inter;
    uint32_t k_count = matrix == IFX_DOWN ? f->shape.inter : f->shape.hidden;
    double *w = malloc(k_count * sizeof *w);
    for (uint32_t r = 0; r < rows; r++) {
        suite->ops->decode_row(f->bank, f->record, matrix, r, w);
        for (uint32_t c = 0; c < n; c++) {
            double sum = 0, absolute = 0;
            for (uint32_t k = 0; k < k_count; k++) {
                sum += w[k] * x[(uint64_t)c * k_count + k];
                absolute += fabs(w[k] * x[(uint64_t)c * k_count + k]);
            }
            out[(uint64_t)c * rows + r] = sum;
            magnitude[(uint64_t)c * rows + r] = absolute;
        }
    }
    free(w);
}

struct oracle {
    double *y;     /* [n][H] */
    double *bound; /* [n][H]: largest error that a right wide route can have */
};

/* Rounds the hidden values as the contract says, and leaves in slack[i] how far value i may be off when g and u
 * carry a relative error of eps against the sum of their terms' magnitudes: nothing, or a step of bf16 where that
 * may fall on the other side of a rounding boundary. */
static void oracle_hidden(uint64_t count, double eps, double *g, const double *u, const double *g_mag,
                          const double *u_mag, double *slack)
{
    for (uint64_t i = 0; i < count; i++) {
        double silu = g[i] / (1.0 + exp(-g[i])), h = silu * u[i];
        double delta = 1.1 * fabs(u[i]) * eps * g_mag[i] + (fabs(silu) + 1.1 * eps * g_mag[i]) * eps * u_mag[i] +
                       1e-6 * fabs(h);
        double low = (double)ifx_bf16_to_f32(ifx_f32_to_bf16((float)(h - delta)));
        double high = (double)ifx_bf16_to_f32(ifx_f32_to_bf16((float)(h + delta)));
        g[i] = (double)ifx_bf16_to_f32(ifx_f32_to_bf16((float)h));
        slack[i] = high - low;
    }
}

/* eps: relative error that a product may have against the sum of its terms' magnitudes. */
static struct oracle oracle_call(struct suite *suite, const struct fixture *f, const uint16_t *x, uint32_t n,
                                 double eps)
{
    uint32_t h = f->shape.hidden, inter = f->shape.inter;
    uint64_t hidden_count = (uint64_t)n * inter, x_count = (uint64_t)n * h;
    double *xd = malloc(x_count * sizeof *xd), *slack_y = malloc(x_count * sizeof *slack_y);
    double *g = malloc(hidden_count * sizeof *g), *u = malloc(hidden_count * sizeof *u);
    double *g_mag = malloc(hidden_count * sizeof *g_mag), *u_mag = malloc(hidden_count * sizeof *u_mag);
    double *slack = malloc(hidden_count * sizeof *slack);
    struct oracle o = {malloc(x_count * sizeof *o.y), malloc(x_count * sizeof *o.bound)};
    for (uint64_t i = 0; i < x_count; i++)
        xd[i] = (double)ifx_bf16_to_f32(x[i]);
    oracle_product(suite, f, IFX_GATE, xd, n, g, g_mag);
    oracle_product(suite, f, IFX_UP, xd, n, u, u_mag);
    oracle_hidden(hidden_count, eps, g, u, g_mag, u_mag, slack);
    oracle_product(suite, f, IFX_DOWN, slack, n, xd, slack_y);
    oracle_product(suite, f, IFX_DOWN, g, n, o.y, o.bound);
    for (uint64_t i = 0; i < x_count; i++)
        o.bound[i] = (o.bound[i] + slack_y[i]) * eps + slack_y[i] + 1e-35;
    free(xd);
    free(slack_y);
    free(g);
    free(u);
    free(g_mag);
    free(u_mag);
    free(slack);
    return o;
}

static void wide_compare(struct suite *suite, const struct fixture *f, const struct oracle *o, const float *got,
                         uint32_t n)
{
    uint32_t h = f->shape.hidden;
    for (uint64_t i = 0; i < (uint64_t)n * h; i++)
        if (!expect(suite, fabs((double)got[i] - o->y[i]) <= o->bound[i],
                    "%ux%u, %u columns, %s: column %u row %u: expected %.8g within %.2e, got %.8g", h,
                    f->shape.inter, n, mini_level_name(f->host.level), (unsigned)(i / h), (unsigned)(i % h),
                    o->y[i], o->bound[i], (double)got[i]))
            return;
}

/* Few columns of a wider call of the layer: any order, but the same one wherever the rows are cut. */
static void any_order(struct suite *suite, struct fixture *f, const struct oracle *o, const uint16_t *x, uint32_t n, float *got)
{
    uint64_t bytes = (uint64_t)n * f->shape.hidden * sizeof *got;
    float *whole = malloc(bytes);
    f->flags = IFX_EXPERT_ANY_ORDER;
    run_call(suite, f, x, n, 0, n, whole);
    wide_compare(suite, f, o, whole, n);
    run_call(suite, f, x, n, 7, n, got);
    f->flags = 0;
    expect(suite, memcmp(got, whole, bytes) == 0, "%ux%u, %u columns in any order, %s: the cuts of the rows change bits", f->shape.hidden,
           f->shape.inter, n, mini_level_name(f->host.level));
    free(whole);
}

static void wide_shape(struct suite *suite, uint32_t h, uint32_t inter, const uint32_t *widths)
{
    struct fixture f;
    uint32_t most = 0;
    for (const uint32_t *n = widths; *n; n++)
        most = *n > most ? *n : most;
    if (!fixture_open(suite, &f, h, inter, IFX_CPU_SCALAR))
        return;
    uint8_t *record = f.record = random_record(suite, &f, h * 7919u + inter);
    uint16_t *x = malloc((size_t)most * h * sizeof *x);
    float *got = malloc((size_t)most * h * sizeof *got);
    fill_columns(x, (uint64_t)most * h, inter);
    struct oracle o = oracle_call(suite, &f, x, most, 1e-6);
    fixture_close(suite, &f);
    for (uint32_t level = 0; level <= suite->level; level++) {
        if (!fixture_open(suite, &f, h, inter, level))
            continue;
        f.record = record;
        for (const uint32_t *n = widths; *n; n++) {
            run_call(suite, &f, x, *n, *n % 3 * 5, *n, got);
            wide_compare(suite, &f, &o, got, *n);
            if (*n <= IFX_NARROW_COLUMNS)
                any_order(suite, &f, &o, x, *n, got);
        }
        fixture_close(suite, &f);
    }
    free(record);
    free(x);
    free(got);
    free(o.y);
    free(o.bound);
}

void test_wide(struct suite *suite)
{
    static const uint32_t all[] = {1,  2,  3,  4,  5,  6,  7,   8,   9,   15,  16,
                                   17, 31, 33, 48, 49, 64, 255, 256, 575, 576, 0};
    static const uint32_t few[] = {9, 17, 33, 64, 0}, huge[] = {1100, 0};
    wide_shape(suite, 176, 80, all);
    wide_shape(suite, 64, 32, all);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        wide_shape(suite, shapes[i][0], shapes[i][1], few);
    wide_shape(suite, 48, 32, huge);
    struct ifx_expert_shape odd = {sizeof odd, 5, 3, 0};
    if (suite->ops->record_bytes(&odd))
        for (size_t i = 0; i < sizeof odd_shapes / sizeof *odd_shapes; i++)
            wide_shape(suite, odd_shapes[i][0], odd_shapes[i][1], few);
}
