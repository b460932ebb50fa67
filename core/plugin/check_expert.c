/* SPDX-License-Identifier: Apache-2.0
 *
 * The conformance suite of expert banks: descriptor, policy, records, packing.  check_forward.c has the CPU path.
 */
#include "check_expert.h"
#include "default_forward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SHAPE(h, i) {sizeof(struct ifx_expert_shape), (h), (i), 0}
const struct ifx_expert_shape expert_shapes[] = {SHAPE(256, 128), SHAPE(512, 64), SHAPE(128, 256), SHAPE(320, 96),
                                                 SHAPE(160, 32),  SHAPE(96, 48),  SHAPE(72, 40),   SHAPE(0, 0)};

uint32_t expert_rows(const struct expert *e, uint32_t matrix)
{
    return matrix == IFX_DOWN ? e->shape.hidden : e->shape.inter;
}

uint32_t expert_cols(const struct expert *e, uint32_t matrix)
{
    return matrix == IFX_DOWN ? e->shape.inter : e->shape.hidden;
}

void expert_close(struct expert *e)
{
    if (e->bank != NULL)
        e->c->ops.expert.close(e->bank);
    guard_free(&e->record);
    for (int m = 0; m < 3; m++) {
        free(e->w[m]);
        free(e->exact[m]);
    }
    memset(e, 0, sizeof *e);
}

bool expert_open(struct check_ctx *c, struct expert *e, const struct ifx_expert_shape *shape)
{
    const uint64_t values = (uint64_t)shape->hidden * shape->inter, bytes = c->ops.expert.record_bytes(shape);
    memset(e, 0, sizeof *e);
    e->c = c;
    e->shape = *shape;
    if (bytes == 0)
        return false;
    if (!check_status(c, c->ops.expert.open(&c->host, c->given, shape, &e->bank), "open (H %u, I %u)", shape->hidden,
                      shape->inter))
        return false;
    for (int m = 0; m < 3; m++)
        if ((e->w[m] = malloc(values * sizeof(float))) == NULL)
            return check_fail(c, "the suite has no memory");
    return guard_new(c, &e->record, bytes, IFX_RECORD_ALIGN);
}

bool expert_pack(struct expert *e, uint64_t seed)
{
    struct check_ctx *c = e->c;
    const uint64_t values = (uint64_t)e->shape.hidden * e->shape.inter;
    struct rng r = {seed};
    for (int m = 0; m < 3; m++)
        for (uint64_t i = 0; i < values; i++)
            e->w[m][i] = rng_normal(&r) * (rng_below(&r, 400) == 0 ? 0.2f : 0.05f);
    if (!check_status(c, c->ops.expert.pack(e->bank, e->w[0], e->w[1], e->w[2], e->record.data), "pack") ||
        !guard_intact(c, &e->record, "pack: record"))
        return false;
    guard_read_only(&e->record, true);
    return true;
}

bool expert_decode(struct expert *e)
{
    struct check_ctx *c = e->c;
    for (uint32_t m = 0; m < 3; m++) {
        const uint32_t rows = expert_rows(e, m), cols = expert_cols(e, m);
        struct guard out;
        if (e->exact[m] == NULL && (e->exact[m] = malloc((uint64_t)rows * cols * sizeof(double))) == NULL)
            return check_fail(c, "the suite has no memory");
        if (!guard_new(c, &out, cols * sizeof(double), 64))
            return false;
        for (uint32_t r = 0; r < rows; r++) {
            double *row = (double *)(void *)out.data;
            for (uint32_t k = 0; k < cols; k++)
                row[k] = 12345.678;
            if (!check_status(c, c->ops.expert.decode_row(e->bank, e->record.data, m, r, row), "decode_row"))
                return false;
            if (row[cols - 1] == 12345.678)
                return check_fail(c, "decode_row (matrix %u, row %u) writes fewer than %u values", m, r, cols);
            memcpy(e->exact[m] + (uint64_t)r * cols, row, cols * sizeof(double));
        }
        if (!guard_intact(c, &out, "decode_row: out"))
            return false;
        guard_free(&out);
    }
    return true;
}

/* ---- descriptor, policy, sizes, open ---- */

static void expert_descriptor(struct check_ctx *c)
{
    const struct ifx_expert_ops *o = &c->ops.expert;
    const bool some = o->gate_up != NULL || o->down != NULL || o->scratch_bytes != NULL || o->prepare != NULL;
    const struct {
        const char *name;
        bool missing;
    } need[] = {{"record_bytes", o->record_bytes == NULL}, {"open", o->open == NULL}, {"close", o->close == NULL},
                {"pack", o->pack == NULL},                 {"decode_row", o->decode_row == NULL}};
    for (size_t i = 0; i < sizeof need / sizeof need[0]; i++)
        if (need[i].missing) {
            check_fail(c, "the callback %s is NULL and has no default", need[i].name);
            return;
        }
    if (some && !plugin_has_forward(o))
        check_fail(c, "the CPU path needs scratch_bytes, gate_up and down together (or all NULL); %s is NULL",
                   o->gate_up == NULL ? "gate_up" : o->down == NULL ? "down" : "scratch_bytes");
    else if (o->flags != 0)
        check_fail(c, "flags is 0x%x; no flag is defined", o->flags);
    else if (o->row_granule > 4096)
        check_fail(c, "row_granule is %u: ranges could hardly be split", o->row_granule);
    else if (check_identity(c, "format", o->format) && check_line(c, "description", o->description) &&
             check_option_table(c, o->options))
        check_note(c, "expert format %s, %s", o->format, some ? "own CPU path" : "computed by the host from decode_row");
}

static void expert_policy(struct check_ctx *c)
{
    const struct ifx_assist_policy *p = c->ops.expert.policy;
    if (p == NULL) {
        check_note(c, "the default: up to 255 columns, 64:77, 255:104");
        return;
    }
    if (p->struct_size < sizeof *p || p->struct_size > 4096)
        check_fail(c, "policy.struct_size is %u, expected %u", p->struct_size, (uint32_t)sizeof *p);
    else if (p->n_points == 0 || p->n_points > 64 || p->points == NULL)
        check_fail(c, "the ramp needs 1 to 64 points, it has %u%s", p->n_points, p->points == NULL ? " (points NULL)" : "");
    for (uint32_t i = 0; !c->failed && i < p->n_points; i++) {
        if (p->points[i].share > 256)
            check_fail(c, "point %u: a share of %u/256; at most 256", i, p->points[i].share);
        else if (i > 0 && p->points[i].columns <= p->points[i - 1].columns)
            check_fail(c, "point %u: %u columns after %u; they must ascend", i, p->points[i].columns,
                       p->points[i - 1].columns);
        else if (p->points[i].columns == 0 || p->points[i].columns > p->max_columns)
            check_fail(c, "point %u: %u columns; the range is 1 to max_columns %u", i, p->points[i].columns, p->max_columns);
    }
    check_note(c, "up to %u columns, %u points", p->max_columns, p->n_points);
}

static bool record_size_ok(struct check_ctx *c, const struct ifx_expert_shape *sh)
{
    const uint64_t bytes = c->ops.expert.record_bytes(sh);
    const double values = 3.0 * sh->hidden * sh->inter;
    if (bytes != c->ops.expert.record_bytes(sh))
        return check_fail(c, "record_bytes gives different answers for one shape: it must be pure");
    if (bytes == 0)
        return true;
    if (bytes % IFX_RECORD_ALIGN != 0)
        return check_fail(c, "record_bytes(H %u, I %u) is %llu, no multiple of %u", sh->hidden, sh->inter,
                          (unsigned long long)bytes, IFX_RECORD_ALIGN);
    if ((double)bytes < values / 16.0)
        return check_fail(c, "record_bytes(H %u, I %u) is %llu: too few for %.0f weights (an overflow?)", sh->hidden,
                          sh->inter, (unsigned long long)bytes, values);
    if ((double)bytes > values * 8.0 + 1048576.0)
        return check_fail(c, "record_bytes(H %u, I %u) is %llu: too many for %.0f weights", sh->hidden, sh->inter,
                          (unsigned long long)bytes, values);
    return true;
}

static double record_bits(const struct check_ctx *c)
{
    static const struct ifx_expert_shape real = SHAPE(2048, 768);
    return (double)c->ops.expert.record_bytes(&real) * 8.0 / (3.0 * 2048 * 768);
}

/* Records beyond 4 GiB: bits a weight as for a usual size, which a size cut to 32 bits has not. */
static bool large_records_ok(struct check_ctx *c)
{
    static const struct ifx_expert_shape large[] = {SHAPE(65536, 65536), SHAPE(65536, 49152), SHAPE(98304, 32768)};
    const double usual = record_bits(c);
    for (size_t i = 0; usual > 0 && i < sizeof large / sizeof large[0]; i++) {
        const uint64_t bytes = c->ops.expert.record_bytes(&large[i]);
        const double bits = (double)bytes * 8.0 / (3.0 * large[i].hidden * large[i].inter);
        if (bytes != 0 && !(bits > 0.5 * usual && bits < 2.0 * usual))
            return check_fail(c, "record_bytes(H %u, I %u) is %llu: %.3g bits a weight, where H 2048, I 768 has %.3g: is the size cut to 32 bits?",
                              large[i].hidden, large[i].inter, (unsigned long long)bytes, bits, usual);
    }
    return true;
}

static void expert_record_bytes(struct check_ctx *c)
{
    static const struct ifx_expert_shape odd[] = {SHAPE(0, 64), SHAPE(64, 0), SHAPE(1, 1), SHAPE(4294967264u, 4294967264u),
                                                  SHAPE(2147483648u, 2147483648u), SHAPE(65536, 65536)};
    static const struct ifx_expert_shape real = SHAPE(2048, 768);
    uint32_t taken = 0, all = 0;
    for (const struct ifx_expert_shape *s = expert_shapes; s->hidden != 0; s++, all++) {
        if (!record_size_ok(c, s))
            return;
        taken += c->ops.expert.record_bytes(s) != 0;
    }
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        if ((odd[i].hidden == 0 || odd[i].inter == 0) && c->ops.expert.record_bytes(&odd[i]) != 0) {
            check_fail(c, "record_bytes(H %u, I %u) is not 0: 0 says that the format cannot hold a shape", odd[i].hidden,
                       odd[i].inter);
            return;
        }
        if (!record_size_ok(c, &odd[i]))
            return;
    }
    if (!record_size_ok(c, &real) || !large_records_ok(c))
        return;
    if (taken == 0)
        check_fail(c, "record_bytes is 0 for every shape tried, H 256, I 128 among them");
    else if (c->ops.expert.record_bytes(&real) == 0)
        check_fail(c, "record_bytes is 0 for H 2048, I 768: no model could use this format");
    else
        check_note(c, "%u of %u small shapes; %.2f bits a weight at H 2048, I 768", taken, all, record_bits(c));
}

static void expert_open_close(struct check_ctx *c)
{
    for (const struct ifx_expert_shape *s = expert_shapes; s->hidden != 0; s++) {
        void *a = NULL, *b = NULL;
        if (c->ops.expert.record_bytes(s) == 0) {
            if (c->ops.expert.open(&c->host, c->given, s, &a) == IFX_OK) {
                check_fail(c, "open takes H %u, I %u, for which record_bytes is 0", s->hidden, s->inter);
                return;
            }
            continue;
        }
        if (!check_status(c, c->ops.expert.open(&c->host, c->given, s, &a), "open (H %u, I %u)", s->hidden, s->inter) ||
            !check_status(c, c->ops.expert.open(&c->host, c->given, s, &b), "a second open beside the first"))
            return;
        c->ops.expert.close(a);
        c->ops.expert.close(b);
        if (atomic_load(&c->live) != 0) {
            check_fail(c, "%d blocks from host->alloc are still held after close", atomic_load(&c->live));
            return;
        }
        a = NULL;
        atomic_store(&c->refuse, 1);
        if (c->ops.expert.open(&c->host, c->given, s, &a) == IFX_OK)
            c->ops.expert.close(a);
        atomic_store(&c->refuse, 0);
        if (atomic_load(&c->live) != 0) {
            check_fail(c, "an open that got no memory leaks %d blocks", atomic_load(&c->live));
            return;
        }
    }
}

/* ---- pack and decode_row ---- */

/* Two packs over different old bytes must agree: what differs was not written. */
static bool pack_complete(struct expert *e)
{
    struct check_ctx *c = e->c;
    uint8_t *first = malloc(e->record.bytes);
    bool ok = first != NULL || check_fail(c, "the suite has no memory");
    guard_read_only(&e->record, false);
    memset(e->record.data, 0x5a, e->record.bytes);
    ok = ok && expert_pack(e, 1);
    if (ok) {
        memcpy(first, e->record.data, e->record.bytes);
        guard_read_only(&e->record, false);
        memset(e->record.data, 0xa5, e->record.bytes);
        ok = expert_pack(e, 1);
    }
    for (uint64_t i = 0; ok && i < e->record.bytes; i++)
        if (first[i] != e->record.data[i])
            ok = check_fail(c, "pack (H %u, I %u): byte %llu of %llu is not written; every byte of a record must be",
                            e->shape.hidden, e->shape.inter, (unsigned long long)i, (unsigned long long)e->record.bytes);
    free(first);
    return ok;
}

static void expert_pack_decode(struct check_ctx *c)
{
    double worst = 0;
    for (const struct ifx_expert_shape *s = expert_shapes; s->hidden != 0 && !c->failed; s++) {
        struct expert e;
        if (expert_open(c, &e, s) && pack_complete(&e) && expert_decode(&e)) {
            const uint64_t values = (uint64_t)s->hidden * s->inter;
            if (c->ops.expert.check_record != NULL)
                check_status(c, c->ops.expert.check_record(e.bank, e.record.data), "check_record of a packed record");
            for (int m = 0; m < 3 && !c->failed; m++) {
                double err = 0, sum = 0;
                for (uint64_t i = 0; i < values; i++) {
                    err += (e.exact[m][i] - e.w[m][i]) * (e.exact[m][i] - e.w[m][i]);
                    sum += (double)e.w[m][i] * e.w[m][i];
                }
                if (!(sqrt(err / sum) <= 0.7))
                    check_fail(c, "H %u, I %u, %s: relative RMS error %.3g between what was packed and decode_row",
                               s->hidden, s->inter, m == 0 ? "gate" : m == 1 ? "up" : "down", sqrt(err / sum));
                else if (sqrt(err / sum) > worst)
                    worst = sqrt(err / sum);
            }
        }
        expert_close(&e);
    }
    const double bits = record_bits(c), step = exp2(-(bits < 8 ? bits : 8));
    if (worst > 16 * step && bits > 0)
        check_note(c, "relative RMS error of normal weights %.3g: much for %.2f bits a weight (usual is about %.2g); is a part of "
                   "each code lost or in another weight's place?", worst, bits, 2.5 * step);
    else
        check_note(c, "relative RMS error of normal weights %.3g", worst);
}

/* Zero, huge, tiny weights and an outlier: zeros stay zeros, nothing finite turns into NaN. */
static void expert_pack_edges(struct check_ctx *c)
{
    static const float fill[] = {0.0f, 1e30f, 1e-38f, 1.0f};
    const size_t shapes = sizeof expert_shapes / sizeof expert_shapes[0] - 1; /* the last one ends the list */
    for (size_t at = 0; at < shapes && !c->failed; at += 3)
        for (int k = 0; k < 4 && !c->failed; k++) {
            const struct ifx_expert_shape *s = &expert_shapes[at];
            struct expert e;
            const uint64_t values = (uint64_t)s->hidden * s->inter;
            if (expert_open(c, &e, s)) {
                int32_t status;
                for (int m = 0; m < 3; m++)
                    for (uint64_t i = 0; i < values; i++)
                        e.w[m][i] = fill[k] * (i % 3 == 1 ? -1.0f : 1.0f) * (k == 3 && i % 701 == 5 ? 1e4f : 1.0f);
                status = c->ops.expert.pack(e.bank, e.w[0], e.w[1], e.w[2], e.record.data);
                guard_intact(c, &e.record, "pack: record");
                if (status != IFX_EFORMAT || k != 1) /* a format may say that it cannot hold 1e30 */
                    check_status(c, status, "pack of weights %g", (double)fill[k]);
                if (status == IFX_OK && !c->failed && expert_decode(&e))
                    for (int m = 0; m < 3; m++)
                        for (uint64_t i = 0; i < values && !c->failed; i++)
                            if (!isfinite(e.exact[m][i]) || (k == 0 && e.exact[m][i] != 0.0))
                                check_fail(c, "matrix %d, value %llu: packed %g, decoded %g", m, (unsigned long long)i,
                                           (double)e.w[m][i], e.exact[m][i]);
            }
            expert_close(&e);
        }
}

static void expert_nonfinite(struct check_ctx *c)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    struct expert e;
    const struct ifx_expert_shape *s = expert_shapes;
    while (s->hidden != 0 && c->ops.expert.record_bytes(s) == 0)
        s++;
    if (s->hidden != 0 && expert_open(c, &e, s)) {
        const uint64_t values = (uint64_t)s->hidden * s->inter, at[] = {0, values / 2 + 1, values - 1};
        for (uint32_t i = 0; i < 27 && !c->failed; i++) {
            float *w = e.w[i % 3], keep;
            int32_t status;
            for (int m = 0; m < 3 && i == 0; m++)
                for (uint64_t k = 0; k < values; k++)
                    e.w[m][k] = (float)(k % 17) - 8.0f;
            keep = w[at[i / 9]];
            w[at[i / 9]] = bad[i / 3 % 3];
            status = c->ops.expert.pack(e.bank, e.w[0], e.w[1], e.w[2], e.record.data);
            if (status != IFX_EFORMAT)
                check_fail(c, "pack takes %g as weight %llu of %s with status %d; expected IFX_EFORMAT (%d)",
                           (double)bad[i / 3 % 3], (unsigned long long)at[i / 9],
                           i % 3 == 0   ? "gate"
                           : i % 3 == 1 ? "up"
                                        : "down",
                           (int)status, IFX_EFORMAT);
            guard_intact(c, &e.record, "pack: record");
            w[at[i / 9]] = keep;
        }
    }
    expert_close(&e);
}

/* Checkpoint tensors: those that are absent or odd are not this format's layout, and nothing else happens. */
static void expert_pack_tensors(struct check_ctx *c)
{
    struct expert e;
    struct ifx_expert_tensors t;
    static const uint8_t few[64];
    int32_t status;
    if (c->ops.expert.pack_tensors == NULL) {
        check_note(c, "none: the format has no published layout");
        return;
    }
    if (expert_open(c, &e, &expert_shapes[0])) {
        memset(&t, 0, sizeof t);
        t.struct_size = sizeof t;
        status = c->ops.expert.pack_tensors(e.bank, &t, e.record.data);
        if (status != IFX_EUNSUPPORTED)
            check_fail(c, "pack_tensors of absent tensors: status %d, expected IFX_EUNSUPPORTED (%d)", (int)status,
                       IFX_EUNSUPPORTED);
        for (int m = 0; m < 3; m++) {
            const struct ifx_tensor small = {sizeof small, IFX_U8, 2, 0, {4, 16, 1, 1}, few, sizeof few};
            t.matrix[m] = (struct ifx_expert_source){small, small, small};
        }
        status = c->ops.expert.pack_tensors(e.bank, &t, e.record.data);
        if (!c->failed && status == IFX_OK)
            check_fail(c, "pack_tensors takes tensors of 4 x 16 bytes for H %u, I %u", e.shape.hidden, e.shape.inter);
        guard_intact(c, &e.record, "pack_tensors: record");
    }
    expert_close(&e);
}

const struct check_entry check_expert_table[] = {
    {"descriptor", expert_descriptor, true, false},
    {"assist policy", expert_policy, false, false},
    {"record_bytes", expert_record_bytes, true, false},
    {"open and close", expert_open_close, true, false},
    {"pack and decode_row", expert_pack_decode, true, false},
    {"pack: zero, huge, tiny, outlying weights", expert_pack_edges, false, false},
    {"pack: NaN and infinity are refused", expert_nonfinite, false, false},
    {"pack_tensors", expert_pack_tensors, false, false},
    {"any bytes as a record", expert_any_bytes, false, false},
    {"forward, 1 to 8 columns: the canonical bits", expert_narrow, false, false},
    {"forward: silu by the exp of numerics.h", expert_silu, false, false},
    {"forward, 9 to 576 columns", expert_wide, false, false},
    {"forward: NaN stays in its column", expert_bad_column, false, false},
    {"threads, 256 KiB of stack", expert_parallel, false, false},
    {NULL, NULL, false, false},
};
