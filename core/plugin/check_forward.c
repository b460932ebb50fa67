/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU path of a bank: every level, every split, against the canonical order and against decode_row in double.  A bank
 * without callbacks is computed by the host's default path and held to the same.
 */
#include "check_expert.h"
#include "default_forward.h"

#include <infernix/numerics.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- one call ---- */

void forward_close(struct forward *f)
{
    guard_free(&f->x);
    guard_free(&f->y);
    guard_free(&f->scratch);
    free(f->x_rows);
    free(f->y_rows);
    memset(f, 0, sizeof *f);
}

static void shuffle(struct rng *r, uint32_t *list, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        list[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        const uint32_t k = rng_below(r, i), t = list[k];
        list[k] = list[i - 1];
        list[i - 1] = t;
    }
}

bool forward_open(struct expert *e, struct forward *f, uint32_t n, uint64_t seed, bool scatter)
{
    const struct ifx_expert_ops *o = &e->c->ops.expert;
    const uint32_t H = e->shape.hidden, rows = scatter ? n + 3 : n;
    const uint64_t ldx = scatter ? H + 8 : H;
    const uint64_t scratch =
        plugin_has_forward(o) ? o->scratch_bytes(e->bank, n) : plugin_default_scratch_bytes(&e->shape, n);
    struct rng r = {seed};
    uint16_t *x;

    memset(f, 0, sizeof *f);
    f->n = n;
    f->ldy = scatter ? H + 5 : H;
    if (scratch > (1u << 30))
        return check_fail(e->c, "scratch_bytes(%u) is %llu for H %u, I %u", n, (unsigned long long)scratch, H,
                          e->shape.inter);
    if (!guard_new(e->c, &f->x, ((rows - 1) * ldx + H) * 2, 2) ||
        !guard_new(e->c, &f->y, ((rows - 1) * f->ldy + H) * 4, 4) || !guard_new(e->c, &f->scratch, scratch, 64))
        return false;
    x = (uint16_t *)(void *)f->x.data;
    for (uint64_t i = 0; i < f->x.bytes / 2; i++)
        x[i] = 0x7fc1; /* NaN between the columns */
    if (scatter) {
        f->x_rows = malloc(rows * sizeof *f->x_rows);
        f->y_rows = malloc(rows * sizeof *f->y_rows);
        if (f->x_rows == NULL || f->y_rows == NULL)
            return check_fail(e->c, "the suite has no memory");
        shuffle(&r, f->x_rows, rows);
        shuffle(&r, f->y_rows, rows);
    }
    f->call = (struct ifx_expert_call){.struct_size = sizeof f->call, .n = n, .record = e->record.data, .x = x, .ldx = ldx,
                                       .x_rows = f->x_rows, .scratch = f->scratch.data};
    for (uint32_t i = 0; i < n; i++) {
        struct rng column = {seed * 1000003u + i}; /* column i is the same in calls of any width */
        for (uint32_t k = 0; k < H; k++)
            x[(scatter ? f->x_rows[i] : i) * ldx + k] = ifx_f32_to_bf16(rng_normal(&column));
    }
    return true;
}

const uint16_t *forward_x(const struct expert *e, const struct forward *f, uint32_t column)
{
    (void)e;
    return f->call.x + (f->x_rows != NULL ? f->x_rows[column] : column) * f->call.ldx;
}

const float *forward_y(const struct forward *f, uint32_t column)
{
    return (const float *)(const void *)f->y.data + (f->y_rows != NULL ? f->y_rows[column] : column) * f->ldy;
}

/* ---- running it in pieces ---- */

#define MAX_PIECES 16
struct pieces {
    struct expert *e;
    struct forward *f;
    bool down;
    uint32_t count, edge[MAX_PIECES + 1];
    int32_t status[MAX_PIECES];
    char text[MAX_PIECES][200];
};

static void piece_run(void *arg, uint32_t i)
{
    struct pieces *p = arg;
    const struct ifx_expert_ops *o = &p->e->c->ops.expert;
    const struct ifx_expert_call *call = &p->f->call;
    const uint32_t r0 = p->edge[i], r1 = p->edge[i + 1];
    float *y = (float *)(void *)p->f->y.data + r0;
    const bool own = plugin_has_forward(o);
    if (r0 == r1)
        return;
    if (!p->down)
        p->status[i] = own ? o->gate_up(p->e->bank, call, r0, r1)
                           : plugin_default_gate_up(o, p->e->bank, &p->e->shape, call, r0, r1);
    else
        p->status[i] = own ? o->down(p->e->bank, call, r0, r1, y, p->f->ldy, p->f->y_rows)
                           : plugin_default_down(o, p->e->bank, &p->e->shape, call, r0, r1, y, p->f->ldy, p->f->y_rows);
    if (p->status[i] != IFX_OK)
        snprintf(p->text[i], sizeof p->text[i], "%.190s", base_error_text());
}

static bool stage_run(struct expert *e, struct forward *f, bool down, uint32_t pieces, struct rng *r)
{
    const uint32_t rows = down ? e->shape.hidden : e->shape.inter;
    const uint32_t granule = e->c->ops.expert.row_granule != 0 ? e->c->ops.expert.row_granule : 1;
    struct pieces p = {.e = e, .f = f, .down = down, .count = pieces < MAX_PIECES ? pieces : MAX_PIECES};
    for (uint32_t i = 1; i < p.count; i++)
        p.edge[i] = rng_below(r, rows / granule + 1) * granule;
    for (uint32_t i = 1; i < p.count; i++) /* sort */
        for (uint32_t k = i; k > 1 && p.edge[k] < p.edge[k - 1]; k--) {
            const uint32_t t = p.edge[k];
            p.edge[k] = p.edge[k - 1];
            p.edge[k - 1] = t;
        }
    p.edge[p.count] = rows;
    if (f->threads) {
        if (!check_threads(e->c, p.count, piece_run, &p))
            return false;
    } else {
        for (uint32_t i = p.count; i > 0; i--) /* any order */
            piece_run(&p, i - 1);
    }
    for (uint32_t i = 0; i < p.count; i++)
        if (p.status[i] != IFX_OK)
            return check_fail(e->c, "%s of rows %u to %u: status %d (%s)", down ? "down" : "gate_up", p.edge[i],
                              p.edge[i + 1], (int)p.status[i], p.text[i]);
    return true;
}

bool forward_untouched(struct expert *e, struct forward *f)
{
    const uint32_t H = e->shape.hidden, rows = f->y_rows != NULL ? f->n + 3 : f->n;
    const uint32_t *y = (const uint32_t *)(const void *)f->y.data;
    for (uint32_t row = 0; row < rows && f->y_rows != NULL; row++) {
        bool used = false;
        for (uint32_t i = 0; i < f->n; i++)
            used = used || f->y_rows[i] == row;
        for (uint64_t k = used ? H : 0; k < (row + 1 < rows ? f->ldy : H); k++)
            if (y[row * f->ldy + k] != FORWARD_POISON)
                return check_fail(e->c, "down writes y[%u, %llu], which is no output of this call (n %u)", row,
                                  (unsigned long long)k, f->n);
    }
    return guard_intact(e->c, &f->y, "down: y") && guard_intact(e->c, &f->scratch, "scratch");
}

bool forward_run(struct expert *e, struct forward *f, uint32_t pieces, uint64_t seed)
{
    const struct ifx_expert_ops *o = &e->c->ops.expert;
    const int allocs = atomic_load(&e->c->allocs);
    const unsigned mallocs = check_malloc_calls();
    struct rng r = {seed};
    uint32_t *y = (uint32_t *)(void *)f->y.data;
    for (uint64_t i = 0; i < f->y.bytes / 4; i++)
        y[i] = FORWARD_POISON;
    memset(f->scratch.data, 0x7f, f->scratch.bytes);
    guard_read_only(&f->x, true);
    if (plugin_has_forward(o) && o->prepare != NULL &&
        !check_status(e->c, o->prepare(e->bank, &f->call), "prepare, n %u", f->n))
        return false;
    if (!stage_run(e, f, false, pieces, &r) || !stage_run(e, f, true, pieces, &r))
        return false;
    guard_read_only(&f->x, false);
    if (atomic_load(&e->c->allocs) != allocs)
        return check_fail(e->c, "the CPU path calls host->alloc; it must not (scratch_bytes gives it room)");
    if (plugin_has_forward(o) && check_malloc_calls() != mallocs)
        return check_fail(e->c, "the CPU path allocates (malloc or one of its kin); it must not (scratch_bytes gives it room)");
    return forward_untouched(e, f);
}

/* ---- the canonical order ---- */

/* w = w0 * s: the tensor scale s of a matrix, found from the decoded values: the one that leaves w0 the fewest significant
 * bits (any power of two beside it changes no bits).  0 when there is none with at most 12. */
static int significant_bits(double t)
{
    int exponent, bits = 53;
    uint64_t m;
    if (t == 0)
        return 0;
    m = (uint64_t)fabs(ldexp(frexp(t, &exponent), 53));
    for (; (m & 1u) == 0; m >>= 1)
        bits--;
    return bits;
}

static float find_scale(const double *w, uint64_t n)
{
    double least = 0;
    float best = 0;
    int best_bits = 13;
    for (uint64_t i = 0; i < n; i++)
        if (w[i] != 0 && (least == 0 || fabs(w[i]) < least))
            least = fabs(w[i]);
    for (int m = 1; m < 256 && least != 0; m += 2) {
        const float s = (float)(least / m);
        int bits = 0;
        if ((double)s * m != least)
            continue;
        for (uint64_t i = 0; i < n && bits < best_bits; i++) {
            const double t = w[i] / s;
            const int b = t * s == w[i] ? significant_bits(t) : 53;
            bits = b > bits ? b : bits;
        }
        if (bits < best_bits) {
            best_bits = bits;
            best = s;
        }
    }
    return best;
}

void expert_canonical_column(const struct expert *e, const uint16_t *x, const float *scale, float *y)
{
    const uint32_t H = e->shape.hidden, I = e->shape.inter, width = H > I ? H : I;
    uint16_t *h = malloc(I * sizeof *h);
    float *w = malloc(width * sizeof *w);
    for (uint32_t r = 0; h != NULL && w != NULL && r < I; r++) {
        float p[2];
        for (int m = 0; m < 2; m++) {
            for (uint32_t k = 0; k < H; k++)
                w[k] = (float)(scale != NULL ? e->exact[m][(uint64_t)r * H + k] / scale[m]
                                             : e->exact[m][(uint64_t)r * H + k]);
            p[m] = ifx_canonical_dot(w, x, H);
            if (scale != NULL)
                p[m] *= scale[m];
        }
        h[r] = ifx_f32_to_bf16(ifx_silu(p[0]) * p[1]);
    }
    for (uint32_t r = 0; h != NULL && w != NULL && r < H; r++) {
        for (uint32_t k = 0; k < I; k++)
            w[k] = (float)(scale != NULL ? e->exact[2][(uint64_t)r * I + k] / scale[2] : e->exact[2][(uint64_t)r * I + k]);
        y[r] = ifx_canonical_dot(w, h, I);
        if (scale != NULL)
            y[r] *= scale[2];
    }
    free(h);
    free(w);
}

bool expert_level_open(struct check_ctx *c, struct expert *e, const struct ifx_expert_shape *s, uint32_t level, uint64_t seed)
{
    c->level = level;
    if (!expert_open(c, e, s) || !expert_pack(e, seed))
        return false;
    if (c->ops.expert.level != NULL && c->ops.expert.level(e->bank) > level)
        return check_fail(c, "level() says %s, and the host allows %s", base_cpu_name(c->ops.expert.level(e->bank)),
                          base_cpu_name(level));
    return true;
}

void expert_say_level(struct check_ctx *c)
{
    char text[CHECK_TEXT];
    if (!c->failed)
        return;
    memcpy(text, c->text, sizeof text);
    c->failed = false;
    check_fail(c, "cpu=%s: %.450s", base_cpu_name(c->level), text);
}

/* A weight that is no float32 has no place in the order: what the bank multiplies is then not what decode_row says. */
static bool decodes_floats(const struct expert *e)
{
    const uint64_t values = (uint64_t)e->shape.hidden * e->shape.inter;
    for (uint32_t m = 0; m < 3; m++)
        for (uint64_t i = 0; i < values; i++)
            if ((double)(float)e->exact[m][i] != e->exact[m][i] && isfinite(e->exact[m][i]))
                return check_fail(e->c, "decode_row: matrix %u, row %u, value %u is %.17g, which is no float32: the exact weight is the "
                                        "float32 that is multiplied (or that times one scale for the whole matrix, which may have more bits)", m,
                                  (uint32_t)(i / expert_cols(e, m)), (uint32_t)(i % expert_cols(e, m)), e->exact[m][i]);
    return true;
}

bool expert_order(struct expert *e, bool *plain, float scale[3])
{
    const uint32_t H = e->shape.hidden;
    struct forward f;
    float *want = malloc(H * sizeof *want);
    bool ok = want != NULL && forward_open(e, &f, 1, 5, false) && forward_run(e, &f, 1, 0);
    *plain = false;
    if (ok) {
        uint32_t r = 0;
        float plain_r;
        expert_canonical_column(e, forward_x(e, &f, 0), NULL, want);
        *plain = memcmp(want, forward_y(&f, 0), H * sizeof(float)) == 0;
        while (r < H && want[r] == forward_y(&f, 0)[r])
            r++;
        plain_r = want[r < H ? r : 0];
        bool scaled = !*plain;
        for (int m = 0; m < 3 && !*plain; m++)
            scaled = (scale[m] = find_scale(e->exact[m], (uint64_t)H * e->shape.inter)) != 0 && scaled;
        if (scaled)
            expert_canonical_column(e, forward_x(e, &f, 0), scale, want);
        if (*plain)
            ok = decodes_floats(e);
        else if (!scaled || memcmp(want, forward_y(&f, 0), H * sizeof(float)) != 0)
            ok = check_fail(e->c,
                            "H %u, I %u, n 1: not the canonical order of numerics.h; the first difference is row %u: expected "
                            "%.9g, got %.9g%s",
                            H, e->shape.inter, r, (double)plain_r, (double)forward_y(&f, 0)[r < H ? r : 0],
                            scaled ? "; with the matrix' scale taken out of the weights it differs too" : "");
    }
    if (want != NULL)
        forward_close(&f);
    free(want);
    return ok;
}

/* Expected bits of column 0..7 of a shape; `kind` says which form of the order the bank follows. */
static bool narrow_expected(struct expert *e, float *want, const char **kind)
{
    struct forward f;
    float scale[3];
    bool plain, ok = expert_order(e, &plain, scale) && forward_open(e, &f, 8, 5, false);
    if (!ok)
        return false;
    *kind = plain ? "the decoded weights" : "the decoded weights and a tensor scale";
    for (uint32_t i = 0; i < 8; i++)
        expert_canonical_column(e, forward_x(e, &f, i), plain ? NULL : scale, want + (uint64_t)i * e->shape.hidden);
    forward_close(&f);
    return true;
}

static bool narrow_compare(struct expert *e, const float *want, uint32_t n, uint32_t pieces, bool scatter)
{
    const uint32_t H = e->shape.hidden;
    struct forward f;
    bool ok = forward_open(e, &f, n, 5, scatter);
    f.threads = pieces > 4;
    ok = ok && forward_run(e, &f, pieces, n * 31u + pieces);
    for (uint32_t i = 0; ok && i < n; i++)
        for (uint32_t r = 0; ok && r < H; r++)
            if (memcmp(&want[(uint64_t)i * H + r], &forward_y(&f, i)[r], 4) != 0)
                ok = check_fail(e->c, "H %u, I %u, n %u, %u pieces%s: column %u row %u: expected %.9g (0x%08x), got %.9g (0x%08x)",
                                H, e->shape.inter, n, pieces, scatter ? ", scattered rows" : "", i, r,
                                (double)want[(uint64_t)i * H + r], ifx_f32_bits(want[(uint64_t)i * H + r]),
                                (double)forward_y(&f, i)[r], ifx_f32_bits(forward_y(&f, i)[r]));
    forward_close(&f);
    return ok;
}

void expert_narrow(struct check_ctx *c)
{
    const char *kind = "";
    const uint32_t levels = plugin_has_forward(&c->ops.expert) ? check_levels(c) : 1;
    for (const struct ifx_expert_shape *s = expert_shapes; s->hidden != 0 && !c->failed; s++) {
        float *want = malloc(8u * s->hidden * sizeof *want);
        for (uint32_t level = 0; level < levels && !c->failed && want != NULL; level++) {
            struct expert e;
            bool ok = expert_level_open(c, &e, s, level, 17) && expert_decode(&e);
            if (ok && level == 0)
                ok = narrow_expected(&e, want, &kind);
            for (uint32_t n = 1; n <= 8 && ok; n++)
                ok = narrow_compare(&e, want, n, 1, false) && narrow_compare(&e, want, n, 4, true) &&
                     (n % 4 != 0 || narrow_compare(&e, want, n, 8, true));
            expert_say_level(c);
            expert_close(&e);
        }
        free(want);
    }
    check_note(c, "the bits of %s, cpu levels up to %s", kind, base_cpu_name(levels - 1));
}

/* ---- wide calls ---- */

/* One column in double, the hidden value rounded to bf16 once. */
static void oracle_column(const struct expert *e, const uint16_t *x, uint16_t *h, double *y)
{
    const uint32_t H = e->shape.hidden, I = e->shape.inter;
    for (uint32_t r = 0; r < I; r++) {
        double g = 0, u = 0;
        for (uint32_t k = 0; k < H; k++) {
            const double v = ifx_bf16_to_f32(x[k]);
            g += e->exact[0][(uint64_t)r * H + k] * v;
            u += e->exact[1][(uint64_t)r * H + k] * v;
        }
        h[r] = ifx_f32_to_bf16((float)(g / (1.0 + exp(-g)) * u));
    }
    for (uint32_t r = 0; r < H; r++) {
        double sum = 0;
        for (uint32_t k = 0; k < I; k++)
            sum += e->exact[2][(uint64_t)r * I + k] * ifx_bf16_to_f32(h[k]);
        y[r] = sum;
    }
}

/* A hidden value next to a rounding boundary falls either way: one column may show it (1e-2), a call may not (5e-4). */
static bool wide_compare(struct expert *e, uint32_t n, double *worst)
{
    const uint32_t H = e->shape.hidden;
    struct forward f, g;
    uint16_t *h = malloc(e->shape.inter * sizeof *h);
    double *want = malloc(H * sizeof *want), all_err = 0, all_sum = 0;
    bool ok = h != NULL && want != NULL;
    memset(&g, 0, sizeof g);
    ok = forward_open(e, &f, n, 5, true) && ok && forward_run(e, &f, 1, 0);
    for (uint32_t i = 0; ok && i < n; i += n > 64 ? 7 : 1) {
        double err = 0, sum = 0;
        oracle_column(e, forward_x(e, &f, i), h, want);
        for (uint32_t r = 0; r < H; r++) {
            const double d = forward_y(&f, i)[r] - want[r];
            err += d * d;
            sum += want[r] * want[r];
        }
        all_err += err;
        all_sum += sum;
        if (!(sqrt(err / sum) <= 1e-2))
            ok = check_fail(e->c, "H %u, I %u, n %u: column %u is off by a relative L2 of %.3g (at most 1e-2)", H,
                            e->shape.inter, n, i, sqrt(err / sum));
    }
    if (ok && !(sqrt(all_err / all_sum) <= 5e-4))
        ok = check_fail(e->c, "H %u, I %u, n %u: relative L2 of all columns %.3g (at most 5e-4)", H, e->shape.inter, n,
                        sqrt(all_err / all_sum));
    if (ok && sqrt(all_err / all_sum) > *worst)
        *worst = sqrt(all_err / all_sum);
    /* Where the ranges are cut must not show: the number of threads would. */
    ok = ok && forward_open(e, &g, n, 5, true) && forward_run(e, &g, 5, n);
    for (uint32_t i = 0; ok && i < n; i++)
        if (memcmp(forward_y(&f, i), forward_y(&g, i), H * sizeof(float)) != 0)
            ok = check_fail(e->c, "H %u, I %u, n %u: column %u has other bits when the rows are cut into 5 pieces", H,
                            e->shape.inter, n, i);
    forward_close(&f);
    forward_close(&g);
    free(h);
    free(want);
    return ok;
}

void expert_wide(struct check_ctx *c)
{
    static const uint32_t widths[] = {9, 17, 64, 255, 256, 575, 576};
    const uint32_t levels = plugin_has_forward(&c->ops.expert) ? check_levels(c) : 1;
    double worst = 0;
    for (uint32_t level = 0; level < levels && !c->failed; level++) {
        bool whole = true; /* the widest calls on the first shape alone: they take long at the scalar level */
        for (const struct ifx_expert_shape *s = expert_shapes; s->hidden != 0 && !c->failed; s++) {
            struct expert e;
            bool ok = expert_level_open(c, &e, s, level, 18) && expert_decode(&e);
            for (size_t i = 0; i < 7 && ok; i++)
                if (whole || i < 3)
                    ok = wide_compare(&e, widths[i], &worst);
            whole = whole && !ok;
            expert_say_level(c);
            expert_close(&e);
        }
    }
    check_note(c, "largest relative L2 error %.2g, cpu levels up to %s", worst, base_cpu_name(levels - 1));
}

/* ---- odd data ---- */

void expert_bad_column(struct check_ctx *c)
{
    static const uint32_t widths[] = {2, 8, 9, 33};
    const uint32_t levels = plugin_has_forward(&c->ops.expert) ? check_levels(c) : 1;
    for (uint32_t level = 0; level < levels && !c->failed; level++) {
        struct expert e;
        const struct ifx_expert_shape *s = expert_shapes;
        while (s->hidden != 0 && c->ops.expert.record_bytes(s) == 0)
            s++;
        bool ok = expert_level_open(c, &e, s, level, 19);
        for (size_t i = 0; i < 4 && ok; i++) {
            const uint32_t n = widths[i], bad = n / 2;
            struct forward f, g;
            bool finite = true;
            ok = forward_open(&e, &f, n, 6, false) && forward_run(&e, &f, 1, 0);
            ok = forward_open(&e, &g, n, 6, false) && ok;
            if (ok)
                ((uint16_t *)(void *)g.x.data)[bad * g.call.ldx + 3] = i % 2 ? 0x7f80 : 0x7fc0;
            ok = ok && forward_run(&e, &g, 1, 0);
            for (uint32_t k = 0; ok && k < n; k++) {
                if (k != bad && memcmp(forward_y(&f, k), forward_y(&g, k), s->hidden * sizeof(float)) != 0)
                    ok = check_fail(c, "n %u: a non-finite input in column %u changes column %u", n, bad, k);
                for (uint32_t r = 0; k == bad && r < s->hidden; r++)
                    finite = finite && isfinite(forward_y(&g, k)[r]);
            }
            if (ok && finite)
                ok = check_fail(c, "n %u: a non-finite input gives a finite output", n);
            forward_close(&f);
            forward_close(&g);
        }
        expert_say_level(c);
        expert_close(&e);
    }
}

/* Whatever bytes check_record lets through must be computed without a crash. */
void expert_any_bytes(struct check_ctx *c)
{
    uint32_t taken = 0;
    for (uint32_t k = 0; k < 24 && !c->failed; k++) {
        struct expert e;
        struct rng r = {k};
        struct forward f;
        if (!expert_open(c, &e, &expert_shapes[0]) && (c->failed || !expert_open(c, &e, &expert_shapes[k % 7])))
            continue;
        c->level = check_levels(c) - 1;
        for (uint64_t i = 0; i < e.record.bytes; i++)
            e.record.data[i] = k == 0 ? 0x00 : k == 1 ? 0xff : k == 2 ? 0x7f : (uint8_t)rng_u32(&r);
        if (c->ops.expert.check_record == NULL || c->ops.expert.check_record(e.bank, e.record.data) == IFX_OK) {
            taken++;
            memset(&f, 0, sizeof f);
            if (expert_decode(&e) && forward_open(&e, &f, k % 2 ? 3 : 20, k, false))
                forward_run(&e, &f, 2, k);
            forward_close(&f);
        }
        expert_close(&e);
    }
    check_note(c, c->ops.expert.check_record == NULL ? "check_record NULL: any bytes are a record"
                                                     : "%u of 24 random records pass check_record", taken);
}

/* ---- several experts at once, through one instance: the odd ones have gate and up exchanged ---- */

struct parallel {
    struct expert *e;
    struct guard record[4], want[2]; /* each thread's record; what packing gives alone */
    struct forward f[4], one[4];     /* each thread's call; the same call done alone */
    int32_t status[4];
    bool other_bytes[4], other_bits[4];
};

static int32_t parallel_pack(struct parallel *p, uint32_t i)
{
    const struct expert *e = p->e;
    const int32_t status =
        e->c->ops.expert.pack(e->bank, e->w[i % 2], e->w[1 - i % 2], e->w[2], p->record[i].data);
    p->other_bytes[i] = memcmp(p->record[i].data, p->want[i % 2].data, p->record[i].bytes) != 0;
    return status;
}

static int32_t parallel_forward(struct parallel *p, uint32_t i)
{
    struct expert *e = p->e;
    struct pieces all = {.e = e, .f = &p->f[i], .count = 1};
    const struct ifx_expert_ops *o = &e->c->ops.expert;
    int32_t status = IFX_OK;
    if (plugin_has_forward(o) && o->prepare != NULL)
        status = o->prepare(e->bank, &p->f[i].call);
    for (int down = 0; down < 2 && status == IFX_OK; down++) {
        all.down = down;
        all.edge[1] = down ? e->shape.hidden : e->shape.inter;
        piece_run(&all, 0);
        status = all.status[0];
    }
    for (uint32_t k = 0; k < p->f[i].n; k++)
        p->other_bits[i] |=
            memcmp(forward_y(&p->f[i], k), forward_y(&p->one[i], k), e->shape.hidden * sizeof(float)) != 0;
    return status;
}

static void parallel_main(void *arg, uint32_t i)
{
    struct parallel *p = arg;
    double end = base_now() + CHECK_RACE_SECONDS;
    do
        p->status[i] = parallel_pack(p, i);
    while (p->status[i] == IFX_OK && !p->other_bytes[i] && base_now() < end);
    if (p->status[i] != IFX_OK || p->other_bytes[i])
        return;
    end = base_now() + CHECK_RACE_SECONDS;
    do
        p->status[i] = parallel_forward(p, i);
    while (p->status[i] == IFX_OK && !p->other_bits[i] && base_now() < end);
}

static bool parallel_open(struct parallel *p)
{
    static const uint32_t widths[4] = {1, 5, 8, 40};
    struct expert *e = p->e;
    struct check_ctx *c = e->c;
    bool ok = true;
    for (uint32_t k = 0; k < 2 && ok; k++)
        ok = guard_new(c, &p->want[k], e->record.bytes, IFX_RECORD_ALIGN) &&
             check_status(c, c->ops.expert.pack(e->bank, e->w[k], e->w[1 - k], e->w[2], p->want[k].data), "pack");
    for (uint32_t i = 0; i < 4 && ok; i++) {
        ok = forward_open(e, &p->f[i], widths[i], i, true) && forward_open(e, &p->one[i], widths[i], i, true) &&
             guard_new(c, &p->record[i], e->record.bytes, IFX_RECORD_ALIGN);
        p->f[i].call.record = p->record[i].data;
        p->one[i].call.record = p->want[i % 2].data;
        ok = ok && forward_run(e, &p->one[i], 1, 0);
    }
    return ok;
}

void expert_parallel(struct check_ctx *c)
{
    const struct ifx_expert_shape *s = expert_shapes;
    struct expert e;
    struct parallel p;
    memset(&p, 0, sizeof p);
    while (s->hidden != 0 && c->ops.expert.record_bytes(s) == 0)
        s++;
    p.e = &e;
    bool ok = expert_level_open(c, &e, s, check_levels(c) - 1, 20) && parallel_open(&p) && check_threads(c, 4, parallel_main, &p);
    for (uint32_t i = 0; i < 4 && ok; i++) {
        ok = check_status(c, p.status[i], "pack or forward on a thread");
        if (ok && p.other_bytes[i])
            ok = check_fail(c, "pack on four threads at once gives other bytes than alone");
        if (ok && p.other_bits[i])
            ok = check_fail(c, "n %u: four experts computed at once give other bits than one alone", p.f[i].n);
    }
    for (uint32_t i = 0; i < 4; i++) {
        forward_close(&p.f[i]);
        forward_close(&p.one[i]);
        guard_free(&p.record[i]);
        guard_free(&p.want[i / 2]);
    }
    expert_close(&e);
}
