/* SPDX-License-Identifier: Apache-2.0
 *
 * test_convert.c - golden checkpoint -> .infernix -> the same tensors; re-packing; refusals and clean-up.
 */
#include "config.h"
#include "helper.h"
#include "registry.h"
#include <fcntl.h>
#include <infernix/numerics.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct base_pool *pool;
static struct registry *registry;

struct bank {
    const struct ifx_expert_ops *ops;
    void *bank;
};

static struct bank open_bank(const char *format, const struct ifx_moe_layer *m)
{
    const struct registry_plugin *p;
    struct bank b = {0};
    struct ifx_expert_shape shape = {.struct_size = sizeof shape, .hidden = m->hidden, .inter = m->inter};
    if (registry_find(registry, IFX_KIND_EXPERT, format, &p) != IFX_OK)
        fail_msg("%s", base_error_text());
    b.ops = p->ops.expert;
    if (b.ops->open(registry_host(registry), p->options, &shape, &b.bank) != IFX_OK)
        fail_msg("%s", base_error_text());
    return b;
}

static void close_bank(struct bank *b)
{
    if (b->ops && b->ops->close)
        b->ops->close(b->bank);
}

struct seen {
    uint64_t reports, bytes, last_done, total;
    double worst_experts, worst_int8;
    uint64_t int8_params;
    uint64_t cancel_at; /* a progress call, 0: never */
    uint64_t calls;
};

static int32_t on_progress(void *ctx, uint64_t done, uint64_t total, const char *what)
{
    struct seen *s = ctx;
    assert_non_null(what);
    assert_true(done >= s->last_done && done <= total);
    s->last_done = done;
    s->total = total;
    return ++s->calls == s->cancel_at;
}

static void on_report(void *ctx, int32_t layer, const char *what, const char *format, uint64_t bytes, double rel_rms)
{
    struct seen *s = ctx;
    s->reports++;
    s->bytes += bytes;
    assert_true(layer >= -1 && layer < 100);
    if (strcmp(what, "experts") == 0)
        s->worst_experts = fmax(s->worst_experts, rel_rms);
    else if (strcmp(format, "int8") == 0) {
        s->int8_params++;
        s->worst_int8 = fmax(s->worst_int8, rel_rms);
    }
}

static int32_t convert(struct artifact *a, const struct ifx_model_desc *d, struct bank *b, const char *dense,
                       const char *out, bool force, struct seen *seen)
{
    struct artifact_convert c = {.out_path = out, .force = force, .desc = d, .bank_ops = b->ops, .bank = b->bank,
                                 .dense = dense, .pool = pool, .progress = on_progress, .report = on_report,
                                 .ctx = seen};
    memset(&seen->reports, 0, offsetof(struct seen, cancel_at));
    seen->calls = 0;
    return artifact_convert(a, &c);
}

static void must(int32_t status)
{
    if (status != IFX_OK)
        fail_msg("status %d: %s", status, base_error_text());
}

static struct artifact *must_open(const char *path)
{
    struct artifact *a;
    must(artifact_open(path, &a));
    return a;
}

/* Every parameter reads the same from both, in the form a device takes. */
static void same_params(struct artifact *a, struct artifact *b, const struct ifx_model_desc *d)
{
    for (uint32_t i = 0; i < d->n_params; i++) {
        const struct ifx_param *p = &d->params[i];
        uint32_t dtype[2] = {0};
        uint64_t bytes[2] = {0}, scales[2] = {0};
        int32_t status = artifact_param_plan(a, p, &dtype[0], &bytes[0], &scales[0]);
        assert_int_equal(artifact_param_plan(b, p, &dtype[1], &bytes[1], &scales[1]), status);
        if (status == IFX_ENOTFOUND && p->tied_to >= 0)
            continue;
        assert_int_equal(status, IFX_OK);
        if (dtype[0] != dtype[1] || bytes[0] != bytes[1])
            fail_msg("%s: dtype %u, %u and bytes %llu, %llu", p->name, dtype[0], dtype[1], (unsigned long long)bytes[0],
                     (unsigned long long)bytes[1]);
        void *x = malloc(bytes[0]), *y = malloc(bytes[1]);
        struct ifx_weight wx, wy;
        bool in_place;
        must(artifact_param_read(a, p, x, NULL, &wx, &in_place));
        must(artifact_param_read(b, p, y, NULL, &wy, &in_place));
        if (artifact_is_container(b))
            assert_true(in_place);
        assert_memory_equal(wx.data, wy.data, bytes[0]);
        free(x);
        free(y);
    }
}

/* The container's records decode to the checkpoint's rows, within `tolerance` of the largest value. */
static void same_experts(struct artifact *a, struct artifact *b, const struct ifx_model_desc *d, struct bank *bank,
                         double tolerance)
{
    for (uint32_t l = 0; l < d->n_moe; l++) {
        const struct ifx_moe_layer *m = &d->moe[l];
        uint64_t n = (uint64_t)m->hidden * m->inter;
        float *w = malloc(3 * n * sizeof *w);
        double *row = malloc((m->hidden + m->inter) * sizeof *row);
        for (uint32_t e = 0; e < m->experts; e += 1 + m->experts / 7) {
            const void *record;
            uint64_t bytes;
            must(artifact_expert_rows(a, m, e, w, w + n, w + 2 * n));
            must(artifact_expert_record(b, l, e, &record, &bytes));
            assert_int_equal((uintptr_t)record % 4096, 0);
            for (uint32_t i = 0; i < 3; i++) {
                uint32_t rows = i == IFX_DOWN ? m->hidden : m->inter, cols = i == IFX_DOWN ? m->inter : m->hidden;
                for (uint32_t r = 0; r < rows; r++) {
                    must(bank->ops->decode_row(bank->bank, record, i, r, row));
                    for (uint32_t c = 0; c < cols; c++) {
                        float want = w[i * n + (uint64_t)r * cols + c];
                        if (fabs(row[c] - want) > tolerance)
                            fail_msg("layer %u expert %u matrix %u row %u col %u: expected %g, got %g", l, e, i, r, c,
                                     want, row[c]);
                    }
                }
            }
        }
        free(w);
        free(row);
    }
}

/* All records read at once are those that are mapped, whether the file lies in the page cache or not. */
static void same_records(struct artifact *b, const char *path, const struct ifx_model_desc *d)
{
    const void *record;
    uint64_t bytes;
    uint8_t **to = calloc(d->n_moe, sizeof *to);
    must(artifact_expert_record(b, 0, 0, &record, &bytes));
    for (int cold = 0; cold < 2; cold++) {
        int fd = open(path, O_RDONLY);
        assert_true(fd >= 0);
        if (cold) {
            assert_int_equal(fsync(fd), 0);
            (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        }
        close(fd);
        for (uint32_t l = 0; l < d->n_moe; l++) {
            to[l] = base_alloc(d->moe[l].experts * bytes, 4096);
            memset(to[l], 0xa5, d->moe[l].experts * bytes);
        }
        must(artifact_records_read(b, pool, to, NULL, NULL));
        for (uint32_t l = 0; l < d->n_moe; l++) {
            for (uint32_t e = 0; e < d->moe[l].experts; e++) {
                must(artifact_expert_record(b, l, e, &record, &bytes));
                assert_memory_equal(to[l] + e * bytes, record, bytes);
            }
            base_free(to[l]);
        }
    }
    free(to);
}

static void round_trip(const char *name, const char *format, double tolerance)
{
    char *folder = helper_folder(), out[4400];
    struct artifact *a = must_open(helper_golden(name));
    struct ifx_model_desc *d = helper_desc(a);
    struct bank bank = {0};
    struct seen seen = {0};
    uint64_t n, m;
    if (d->n_moe)
        bank = open_bank(format, &d->moe[0]);
    snprintf(out, sizeof out, "%s/m.infernix", folder);
    must(convert(a, d, &bank, "bf16", out, false, &seen));
    assert_int_equal(seen.last_done, seen.total);
    assert_true(seen.reports > d->n_moe);
    struct artifact *b = must_open(out);
    assert_true(artifact_is_container(b));
    assert_string_equal(artifact_architecture(a), artifact_architecture(b));
    const char *x = artifact_asset(a, "config.json", &n), *y = artifact_asset(b, "config.json", &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    assert_int_equal(y[m], 0);
    must(artifact_check(b, d));
    must(artifact_verify(b, pool, NULL, NULL));
    same_params(a, b, d);
    if (d->n_moe) {
        assert_string_equal(artifact_expert_format(b), format);
        same_experts(a, b, d, &bank, tolerance);
        same_records(b, out, d);
    }
    artifact_close(b);
    artifact_close(a);
    close_bank(&bank);
    helper_desc_free(d);
    helper_remove(folder);
}

static void test_round_trips(void **state)
{
    (void)state;
    round_trip("qwen3_5-tiny", NULL, 0);
    round_trip("qwen3_5-tied", NULL, 0);
    round_trip("qwen3_5_moe-tiny", "bf16", 0);
    round_trip("qwen3_5_moe-mid", "bf16", 0);
    round_trip("qwen3_5_moe-tiny-vl", "bf16", 0);
    /* The float32 rows are e2m1 * e4m3 * s2 rounded once, decode_row is exact. */
    round_trip("qwen3_5_moe-tiny-nvfp4", "nvfp4", 1e-7);
    round_trip("qwen3_5_moe-mid-nvfp4", "nvfp4", 1e-7);
}

static void test_dense_int8(void **state)
{
    (void)state;
    char *folder = helper_folder(), out[4400];
    struct artifact *a = must_open(helper_golden("qwen3_5-tied"));
    struct ifx_model_desc *d = helper_desc(a);
    struct bank none = {0};
    struct seen seen = {0};
    uint64_t kept = 0, quantised = 0;
    snprintf(out, sizeof out, "%s/m.infernix", folder);
    must(convert(a, d, &none, "int8", out, false, &seen));
    assert_true(seen.int8_params > 10);
    assert_true(seen.worst_int8 > 1e-4 && seen.worst_int8 < 0.01);
    struct artifact *b = must_open(out);
    must(artifact_check(b, d));
    for (uint32_t i = 0; i < d->n_params; i++) {
        const struct ifx_param *p = &d->params[i];
        uint32_t dtype;
        uint64_t bytes, scale_bytes, plain_bytes, none_bytes;
        uint32_t plain_dtype;
        if (artifact_param_plan(b, p, &dtype, &bytes, &scale_bytes) == IFX_ENOTFOUND)
            continue;
        if (p->kind == IFX_PARAM_VECTOR || (p->flags & IFX_PARAM_SENSITIVE)) {
            kept++;
            assert_int_not_equal(dtype, IFX_W8G32);
            continue;
        }
        quantised++;
        assert_int_equal(dtype, IFX_W8G32);
        uint64_t groups = (p->cols + 31) / 32;
        assert_int_equal(bytes, p->rows * groups * 32);
        assert_int_equal(scale_bytes, p->rows * groups * 2);
        must(artifact_param_plan(a, p, &plain_dtype, &plain_bytes, &none_bytes));
        uint16_t *w = malloc(plain_bytes);
        struct ifx_weight x, y;
        bool in_place;
        must(artifact_param_read(a, p, w, NULL, &x, &in_place));
        must(artifact_param_read(b, p, NULL, NULL, &y, &in_place));
        assert_true(in_place);
        for (uint64_t r = 0; r < p->rows; r++)
            for (uint64_t c = 0; c < p->cols; c++) {
                float want = ifx_bf16_to_f32(((const uint16_t *)x.data)[r * p->cols + c]);
                int8_t code = ((const int8_t *)y.data)[r * groups * 32 + c];
                float scale = ifx_f16_to_f32(((const uint16_t *)y.scales)[r * groups + c / 32]);
                assert_true(code >= -127);
                /* To the nearest step; the largest value may lie a rounding of the scale beyond code 127. */
                if (fabsf((float)code * scale - want) > 0.5001f * scale)
                    fail_msg("%s[%llu,%llu]: expected %g, got %g", p->name, (unsigned long long)r,
                             (unsigned long long)c, want, (float)code * scale);
            }
        free(w);
    }
    assert_true(kept > 10 && quantised > 10);
    /* int8 again: copied; bf16 asked for: decoded. */
    char again[4400];
    snprintf(again, sizeof again, "%s/n.infernix", folder);
    must(convert(b, d, &none, NULL, again, false, &seen));
    struct artifact *c = must_open(again);
    for (uint64_t i = 0; i < artifact_entry_count(b); i++) {
        struct ifx_tensor p, q;
        must(artifact_tensor(b, artifact_entry_at(b, i)->logical_name, &p));
        must(artifact_tensor(c, artifact_entry_at(b, i)->logical_name, &q));
        assert_int_equal(p.dtype, q.dtype);
        assert_memory_equal(p.data, q.data, p.data_bytes);
    }
    artifact_close(c);
    must(convert(b, d, &none, "bf16", again, true, &seen));
    assert_int_equal(seen.int8_params, 0);
    artifact_close(b);
    artifact_close(a);
    helper_desc_free(d);
    helper_remove(folder);
}

static void test_named_sensitive(void **state)
{
    (void)state;
    static const char *const names[] = {"q_proj", NULL};
    char *folder = helper_folder(), out[4400];
    struct artifact *a = must_open(helper_golden("qwen3_5-tied"));
    struct ifx_model_desc *d = helper_desc(a);
    uint64_t q = 0;
    snprintf(out, sizeof out, "%s/m.infernix", folder);
    struct artifact_convert c = {.out_path = out, .desc = d, .dense = "int8", .dense_named = names, .pool = pool};
    must(artifact_convert(a, &c));
    struct artifact *b = must_open(out);
    for (uint64_t i = 0; i < artifact_entry_count(b); i++) {
        const struct artifact_entry *e = artifact_entry_at(b, i);
        if (strstr(e->logical_name, "q_proj")) {
            assert_int_equal(e->dtype, IFX_W8G32);
            q++;
        }
        if (strstr(e->logical_name, "in_proj_a") || strstr(e->logical_name, "in_proj_b"))
            assert_int_equal(e->dtype, IFX_BF16);
    }
    assert_int_equal(q, 2);
    artifact_close(b);
    artifact_close(a);
    helper_desc_free(d);
    helper_remove(folder);
}

/* bf16 -> int8 -> nvfp4 -> bf16 through the banks' oracles. */
static void test_repack(void **state)
{
    (void)state;
    static const char *const chain[] = {"bf16", "int8", "nvfp4", "bf16", NULL};
    static const double error[] = {0, 0.02, 0.2, 1e-2};
    char *folder = helper_folder(), out[4400];
    struct artifact *a = must_open(helper_golden("qwen3_5_moe-tiny"));
    struct ifx_model_desc *d = helper_desc(a);
    struct bank source = {0};
    struct seen seen = {0};
    for (int i = 0; chain[i] != NULL; i++) {
        struct bank bank = open_bank(chain[i], &d->moe[0]);
        snprintf(out, sizeof out, "%s/%d.infernix", folder, i);
        if (artifact_is_container(a)) { /* first without the bank that wrote it: a clear refusal */
            assert_int_equal(convert(a, d, &bank, NULL, out, false, &seen), IFX_EUNSUPPORTED);
            assert_non_null(strstr(base_error_text(), chain[i - 1]));
            assert_int_not_equal(access(out, F_OK), 0);
            must(artifact_set_bank(a, source.ops, source.bank));
        }
        must(convert(a, d, &bank, NULL, out, false, &seen));
        if (seen.worst_experts > error[i] || (error[i] > 0 && seen.worst_experts <= 0))
            fail_msg("%s: relative RMS %g, at most %g expected", chain[i], seen.worst_experts, error[i]);
        artifact_close(a);
        close_bank(&source);
        source = bank;
        a = must_open(out);
        assert_string_equal(artifact_expert_format(a), chain[i]);
        must(artifact_check(a, d));
    }
    artifact_close(a);
    close_bank(&source);
    helper_desc_free(d);
    helper_remove(folder);
}

static uint64_t files_in(const char *folder)
{
    char command[4400];
    unsigned n = 99;
    snprintf(command, sizeof command, "ls -A '%s' | wc -l", folder);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    assert_int_equal(fscanf(p, "%u", &n), 1);
    pclose(p);
    return n;
}

static void test_leaves_nothing(void **state)
{
    (void)state;
    char *folder = helper_folder(), out[4400], missing[4500];
    struct artifact *a = must_open(helper_golden("qwen3_5_moe-tiny"));
    struct ifx_model_desc *d = helper_desc(a);
    struct bank bank = open_bank("bf16", &d->moe[0]);
    snprintf(out, sizeof out, "%s/m.infernix", folder);
    for (uint64_t at = 1; at < 200; at += 13) {
        struct seen seen = {.cancel_at = at};
        assert_int_equal(convert(a, d, &bank, "bf16", out, false, &seen), IFX_ECANCELLED);
        assert_int_equal(files_in(folder), 0);
    }
    struct seen seen = {0};
    base_cancel_request();
    assert_int_equal(convert(a, d, &bank, "bf16", out, false, &seen), IFX_ECANCELLED);
    base_cancel_reset();
    assert_int_equal(files_in(folder), 0);
    snprintf(missing, sizeof missing, "%s/no/m.infernix", folder);
    assert_int_not_equal(convert(a, d, &bank, "bf16", missing, false, &seen), IFX_OK);
    must(convert(a, d, &bank, "bf16", out, false, &seen));
    assert_int_equal(convert(a, d, &bank, "bf16", out, false, &seen), IFX_EINVAL);
    assert_non_null(strstr(base_error_text(), "--force"));
    must(convert(a, d, &bank, "bf16", out, true, &seen));
    assert_int_equal(files_in(folder), 1);
    artifact_close(a);
    close_bank(&bank);
    helper_desc_free(d);
    helper_remove(folder);
}

/* One value of one tensor is made non-finite in a copy: convert refuses it by name and leaves nothing. */
static void test_non_finite(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t value;  /* which one */
        const char *dense, *place;
    } cases[] = {
        {"embed_tokens.weight", 64 * 3 + 5, NULL, "row 3, column 5"},
        {"layers.0.linear_attn.in_proj_qkv.weight", 7, NULL, "row 0, column 7"},
        {"layers.3.self_attn.k_proj.weight", 64 * 2, "int8", "row 2"},
        {"layers.1.linear_attn.dt_bias", 2, NULL, "column 2"},
        {"norm.weight", 63, "int8", "column 63"},
    };
    char *folder = helper_folder(), *from = helper_folder(), out[4400];
    snprintf(out, sizeof out, "%s/m.infernix", folder);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t bytes;
        static const uint8_t inf[2] = {0x80, 0x7f}, nan[2] = {0xc0, 0x7f};
        helper_copy(helper_golden("qwen3_5-tiny"), "config.json", from, "config.json");
        char *file = helper_read(helper_golden("qwen3_5-tiny"), "model.safetensors", &bytes);
        struct artifact *clean = must_open(helper_golden("qwen3_5-tiny"));
        for (uint64_t k = 0; k < artifact_entry_count(clean); k++) {
            const struct artifact_entry *e = artifact_entry_at(clean, k);
            if (strcmp(e->logical_name, cases[i].name) == 0) {
                assert_int_equal(e->dtype, IFX_BF16);
                memcpy(file + e->offset + 2 * cases[i].value, i % 2 ? nan : inf, 2);
            }
        }
        artifact_close(clean);
        helper_write(from, "model.safetensors", file, bytes);
        free(file);
        struct artifact *a = must_open(from);
        struct ifx_model_desc *d = helper_desc(a);
        struct bank none = {0};
        struct seen seen = {0};
        assert_int_equal(convert(a, d, &none, cases[i].dense, out, false, &seen), IFX_EFORMAT);
        if (!strstr(base_error_text(), cases[i].name) || !strstr(base_error_text(), cases[i].place))
            fail_msg("expected %s and %s, got: %s", cases[i].name, cases[i].place, base_error_text());
        assert_int_equal(files_in(folder), 0);
        artifact_close(a);
        helper_desc_free(d);
    }
    helper_remove(from);
    helper_remove(folder);
}

static int set_up(void **state)
{
    (void)state;
    if (base_pool_create(2, false, &pool) != IFX_OK || registry_create(NULL, NULL, pool, IFX_CPU_SCALAR, &registry) != IFX_OK) {
        print_message("%s\n", base_error_text());
        return -1;
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    registry_destroy(registry);
    base_pool_destroy(pool);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips), cmocka_unit_test(test_dense_int8), cmocka_unit_test(test_named_sensitive),
        cmocka_unit_test(test_repack),      cmocka_unit_test(test_leaves_nothing), cmocka_unit_test(test_non_finite),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
