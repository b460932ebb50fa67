/* SPDX-License-Identifier: Apache-2.0
 *
 * test_load.c - what published checkpoints differ in: types, prefixes, fused or single experts, FP8, heads, surplus tensors.
 * Each is made from scratch here, as small as the case allows.
 */
#include "config.h"
#include "helper.h"
#include <infernix/numerics.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TENSORS 64

/* A checkpoint in the making. */
struct making {
    char *folder;
    struct {
        char name[128], dtype[12];
        uint64_t dims[4], bytes;
        uint32_t n_dims;
        void *data;
    } t[MAX_TENSORS];
    uint32_t n;
};

static void add(struct making *m, const char *name, const char *dtype, uint64_t d0, uint64_t d1, uint64_t d2, const void *data,
                uint64_t bytes)
{
    uint64_t dims[3] = {d0, d1, d2};
    snprintf(m->t[m->n].name, sizeof m->t[m->n].name, "%s", name);
    snprintf(m->t[m->n].dtype, sizeof m->t[m->n].dtype, "%s", dtype);
    for (int i = 0; i < 3 && dims[i] != 0; i++)
        m->t[m->n].dims[m->t[m->n].n_dims++] = dims[i];
    m->t[m->n].data = malloc(bytes ? bytes : 1);
    assert_non_null(m->t[m->n].data);
    memcpy(m->t[m->n].data, data, bytes);
    m->t[m->n++].bytes = bytes;
    assert_true(m->n < MAX_TENSORS);
}

static void write_files(struct making *m, const char *config)
{
    struct base_buf header = {0}, file = {0};
    uint64_t at = 0;
    uint8_t length[8];
    base_buf_addf(&header, "{");
    for (uint32_t i = 0; i < m->n; i++) {
        base_buf_addf(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "", m->t[i].name, m->t[i].dtype);
        for (uint32_t d = 0; d < m->t[i].n_dims; d++)
            base_buf_addf(&header, "%s%llu", d ? "," : "", (unsigned long long)m->t[i].dims[d]);
        base_buf_addf(&header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                      (unsigned long long)(at + m->t[i].bytes));
        at += m->t[i].bytes;
    }
    base_buf_addf(&header, "}");
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(header.len >> (8 * i));
    base_buf_add(&file, length, 8);
    base_buf_add(&file, header.data, header.len);
    for (uint32_t i = 0; i < m->n; i++) {
        base_buf_add(&file, m->t[i].data, m->t[i].bytes);
        free(m->t[i].data);
    }
    m->folder = helper_folder();
    helper_write(m->folder, "model.safetensors", file.data, file.len);
    config = config ? config : "{\"architectures\": [\"A\"]}";
    helper_write(m->folder, "config.json", config, strlen(config));
    base_buf_free(&header);
    base_buf_free(&file);
}

static struct artifact *finish(struct making *m, const char *config)
{
    struct artifact *a = NULL;
    write_files(m, config);
    if (artifact_open(m->folder, &a) != IFX_OK)
        fail_msg("%s", base_error_text());
    return a;
}

static void done(struct making *m, struct artifact *a)
{
    artifact_close(a);
    helper_remove(m->folder);
}

static struct ifx_param param(const char *name, uint32_t kind, uint32_t rows, uint32_t cols)
{
    struct ifx_param p = {.kind = kind, .rows = rows, .cols = cols, .tied_to = -1};
    snprintf(p.name, sizeof p.name, "%s", name);
    return p;
}

/* A_log, norms and matrices as F32, F16 or BF16: the same numbers. */
static void test_float_types(void **state)
{
    static const float values[8] = {1, -2, 0.5f, 0.25f, 3, -0.125f, 96, 0};
    (void)state;
    uint16_t half[8], brain[8];
    struct making m = {0};
    for (int i = 0; i < 8; i++) {
        half[i] = ifx_f32_to_f16(values[i]);
        brain[i] = ifx_f32_to_bf16(values[i]);
    }
    add(&m, "model.odd", "U8", 1, 0, 0, "x", 1); /* everything after it is unaligned */
    add(&m, "model.a", "F32", 8, 0, 0, values, 32);
    add(&m, "model.b", "F16", 8, 1, 0, half, 16);
    add(&m, "model.c", "BF16", 2, 1, 4, brain, 16);
    add(&m, "model.w.a", "F32", 2, 4, 0, values, 32);
    add(&m, "model.w.b", "F16", 2, 4, 0, half, 16);
    add(&m, "model.w.c", "BF16", 2, 4, 0, brain, 16);
    struct artifact *a = finish(&m, NULL);
    static const char *const names[] = {"a", "b", "c"}, *const matrices[] = {"w.a", "w.b", "w.c"};
    for (int i = 0; i < 3; i++) {
        float got[8];
        uint16_t bits[8];
        struct ifx_weight w;
        bool in_place;
        struct ifx_param v = param(names[i], IFX_PARAM_VECTOR, 1, 8), x = param(matrices[i], IFX_PARAM_MATRIX, 2, 4);
        assert_int_equal(artifact_param_read(a, &v, got, NULL, &w, &in_place), IFX_OK);
        assert_memory_equal(w.data, values, 32);
        assert_int_equal(w.dtype, IFX_F32);
        assert_int_equal(artifact_param_read(a, &x, bits, NULL, &w, &in_place), IFX_OK);
        assert_memory_equal(w.data, brain, 16);
        assert_int_equal(w.dtype, IFX_BF16);
    }
    done(&m, a);
}

/* A value that is not finite in a vector (A_log, dt_bias, a norm) is refused at load, with its place. */
static void test_vector_finite(void **state)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    (void)state;
    for (int i = 0; i < 9; i++) {
        static const char *const types[] = {"F32", "BF16", "F16"};
        float values[5] = {1, 2, 3, 4, 5}, got[5];
        uint16_t half[5];
        char name[32], place[32];
        struct making m = {0};
        struct ifx_weight w;
        bool in_place;
        snprintf(name, sizeof name, "A_log.%d", i);
        snprintf(place, sizeof place, "value %d", i % 5);
        values[i % 5] = bad[i % 3];
        for (int k = 0; k < 5; k++)
            half[k] = i / 3 == 1 ? ifx_f32_to_bf16(values[k]) : ifx_f32_to_f16(values[k]);
        struct ifx_param v = param(name, IFX_PARAM_VECTOR, 1, 5);
        char stored[48];
        snprintf(stored, sizeof stored, "model.%s", name);
        add(&m, stored, types[i / 3], 5, 0, 0, i / 3 ? (const void *)half : values, i / 3 ? 10 : 20);
        struct artifact *a = finish(&m, NULL);
        assert_int_equal(artifact_param_read(a, &v, got, NULL, &w, &in_place), IFX_EFORMAT);
        assert_non_null(strstr(base_error_text(), stored));
        assert_non_null(strstr(base_error_text(), place));
        done(&m, a);
    }
}

static void test_fp8(void **state)
{
    (void)state;
    enum { ROWS = 130, COLS = 260 };
    static uint8_t codes[ROWS * COLS];
    static uint16_t got[ROWS * COLS];
    static float blocks[2 * 3];
    const float scale = 0.0123456789f;
    struct making m = {0};
    for (int i = 0; i < ROWS * COLS; i++) {
        codes[i] = (uint8_t)(i * 37 + i / 251);
        if ((codes[i] & 0x7f) == 0x7f)
            codes[i] = 0;
    }
    for (int i = 0; i < 6; i++)
        blocks[i] = 0.01f * (float)(i + 1) + 1e-5f;
    add(&m, "model.x.weight", "F8_E4M3", ROWS, COLS, 0, codes, sizeof codes);
    add(&m, "model.x.weight_scale", "F32", 0, 0, 0, &scale, 4);
    add(&m, "model.y.weight", "F8_E4M3", ROWS, COLS, 0, codes, sizeof codes);
    add(&m, "model.y.weight_scale_inv", "F32", 2, 3, 0, blocks, sizeof blocks);
    add(&m, "model.z.weight", "F8_E4M3", ROWS, COLS, 0, codes, sizeof codes);
    struct artifact *a = finish(&m, NULL);
    struct ifx_weight w;
    bool in_place;
    struct ifx_param x = param("x.weight", IFX_PARAM_MATRIX, ROWS, COLS), y = param("y.weight", IFX_PARAM_MATRIX, ROWS, COLS);
    struct ifx_param z = param("z.weight", IFX_PARAM_MATRIX, ROWS, COLS);
    for (int which = 0; which < 2; which++) {
        assert_int_equal(artifact_param_read(a, which ? &y : &x, got, NULL, &w, &in_place), IFX_OK);
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < COLS; c++) {
                double want = (double)ifx_e4m3_to_f32(codes[r * COLS + c]) *
                              (which ? blocks[r / 128 * 3 + c / 128] : scale);
                double have = ifx_bf16_to_f32(got[r * COLS + c]);
                /* Half a unit of the 8th significant bit, to nearest. */
                int exponent;
                frexp(want, &exponent);
                double ulp = want != 0 ? ldexp(1.0, exponent - 8) : 0;
                if (fabs(have - want) > 0.5 * ulp)
                    fail_msg("%s [%d, %d]: expected %.9g within %g, got %.9g", which ? "blocks" : "one scale", r, c, want,
                             0.5 * ulp, have);
            }
    }
    assert_int_equal(artifact_param_read(a, &z, got, NULL, &w, &in_place), IFX_EFORMAT);
    assert_non_null(strstr(base_error_text(), "z.weight_scale"));
    done(&m, a);
}

/* A product so little above the tie of two bf16 that a float32 in between would lie on the tie, and go down to even. */
static void test_double_rounding(void **state)
{
    (void)state;
    const double tie = 1.0 + 0x1p-8;
    uint32_t found = 0;
    for (uint8_t code = 0x39; code < 0x40; code++) {
        double weight = ifx_e4m3_to_f32(code);
        float scale = (float)(tie / weight);
        if (weight * scale <= tie)
            scale = nextafterf(scale, 2.0f);
        if ((double)(float)(weight * scale) != tie || weight * scale <= tie)
            continue;
        struct making m = {0};
        struct ifx_weight w;
        bool in_place;
        uint16_t got;
        add(&m, "x.weight", "F8_E4M3", 1, 1, 0, &code, 1);
        add(&m, "x.weight_scale", "F32", 1, 0, 0, &scale, 4);
        struct artifact *a = finish(&m, NULL);
        struct ifx_param x = param("x.weight", IFX_PARAM_MATRIX, 1, 1);
        assert_int_equal(artifact_param_read(a, &x, &got, NULL, &w, &in_place), IFX_OK);
        assert_int_equal(got, 0x3f81);
        done(&m, a);
        found++;
    }
    assert_true(found > 0);
}

/* H = 2 I: the fused shapes are square, so only the names can tell.  Fused and single copies give the same rows, also when one
 * layer is stored in each way, and a draft layer in yet another. */
static void test_square_experts(void **state)
{
    (void)state;
    enum { H = 64, I = 32, E = 3 };
    static uint16_t gate_up[E][2 * I][H], down[E][H][I];
    struct making m = {0};
    char name[128];
    for (int e = 0; e < E; e++)
        for (int k = 0; k < 2 * I * H; k++) {
            (&gate_up[e][0][0])[k] = ifx_f32_to_bf16((float)(k % 251 + 7 * e) / 16);
            if (k < H * I)
                (&down[e][0][0])[k] = ifx_f32_to_bf16((float)(k % 241 - 3 * e) / 32);
        }
    add(&m, "model.layers.0.mlp.experts.gate_up_proj", "BF16", E, 2 * I, H, gate_up, sizeof gate_up);
    add(&m, "model.layers.0.mlp.experts.down_proj", "BF16", E, H, I, down, sizeof down);
    for (int e = 0; e < E; e++) {
        snprintf(name, sizeof name, "model.layers.1.mlp.experts.%d.gate_proj.weight", e);
        add(&m, name, "BF16", I, H, 0, gate_up[e], I * H * 2);
        snprintf(name, sizeof name, "model.layers.1.mlp.experts.%d.up_proj.weight", e);
        add(&m, name, "BF16", I, H, 0, gate_up[e][I], I * H * 2);
        snprintf(name, sizeof name, "model.layers.1.mlp.experts.%d.down_proj.weight", e);
        add(&m, name, "BF16", H, I, 0, down[e], H * I * 2);
        snprintf(name, sizeof name, "mtp.layers.0.mlp.experts.%d.down_proj.weight", e);
        add(&m, name, "U8", 1, 0, 0, "x", 1);
    }
    struct artifact *a = finish(&m, NULL);
    assert_string_equal(artifact_expert_format(a), "bf16");
    struct ifx_moe_layer layers[2] = {{.experts = E, .hidden = H, .inter = I, .layer = 0},
                                      {.experts = E, .hidden = H, .inter = I, .layer = 1}};
    static float x[3][2 * H * I], y[3][2 * H * I];
    struct ifx_model_desc d = {.struct_size = sizeof d, .n_moe = 2, .moe = layers};
    snprintf(layers[0].prefix, sizeof layers[0].prefix, "layers.0.mlp.experts");
    snprintf(layers[1].prefix, sizeof layers[1].prefix, "layers.1.mlp.experts");
    if (artifact_check(a, &d) != IFX_OK)
        fail_msg("%s", base_error_text());
    for (uint32_t e = 0; e < E; e++) {
        assert_int_equal(artifact_expert_rows(a, &layers[0], e, x[0], x[1], x[2]), IFX_OK);
        assert_int_equal(artifact_expert_rows(a, &layers[1], e, y[0], y[1], y[2]), IFX_OK);
        assert_memory_equal(x, y, sizeof x);
        for (int k = 0; k < I * H; k++) {
            assert_true(x[0][k] == ifx_bf16_to_f32((&gate_up[e][0][0])[k]));
            assert_true(x[1][k] == ifx_bf16_to_f32((&gate_up[e][I][0])[k]));
            assert_true(x[2][k] == ifx_bf16_to_f32((&down[e][0][0])[k]));
        }
    }
    done(&m, a);
}

/* The transposed orientation is refused even where the number of values fits. */
static void test_wrong_orientation(void **state)
{
    (void)state;
    static uint16_t zeros[2 * 32 * 64];
    struct making m = {0};
    add(&m, "layers.0.mlp.experts.gate_up_proj", "BF16", 2, 16, 32, zeros, 2 * 16 * 32 * 2);
    add(&m, "layers.0.mlp.experts.down_proj", "BF16", 2, 8, 32, zeros, 2 * 8 * 32 * 2);
    struct artifact *a = finish(&m, NULL);
    struct ifx_moe_layer layer = {.experts = 2, .hidden = 32, .inter = 8};
    struct ifx_model_desc d = {.struct_size = sizeof d, .n_moe = 1, .moe = &layer};
    snprintf(layer.prefix, sizeof layer.prefix, "layers.0.mlp.experts");
    assert_int_equal(artifact_check(a, &d), IFX_EFORMAT);
    assert_non_null(strstr(base_error_text(), "down_proj"));
    assert_null(strstr(base_error_text(), "gate_up_proj"));
    done(&m, a);
}

static void test_fused_fp8(void **state)
{
    (void)state;
    enum { H = 160, I = 96, E = 2 };
    static uint8_t gate_up[E * 2 * I * H], down[E * H * I];
    static float s_gate_up[E * 2 * 2], s_down[E * 2 * 1], x[3][H * I];
    struct making m = {0};
    for (size_t i = 0; i < sizeof gate_up; i++)
        gate_up[i] = (uint8_t)(i % 120);
    for (size_t i = 0; i < sizeof down; i++)
        down[i] = (uint8_t)(i % 113);
    for (int i = 0; i < E * 4; i++)
        s_gate_up[i] = ldexpf(1.0f, i - 3);
    for (int i = 0; i < E * 2; i++)
        s_down[i] = ldexpf(1.0f, -i);
    add(&m, "layers.0.mlp.experts.gate_up_proj", "F8_E4M3", E, 2 * I, H, gate_up, sizeof gate_up);
    add(&m, "layers.0.mlp.experts.gate_up_proj_scale_inv", "F32", E, 2, 2, s_gate_up, sizeof s_gate_up);
    add(&m, "layers.0.mlp.experts.down_proj", "F8_E4M3", E, H, I, down, sizeof down);
    add(&m, "layers.0.mlp.experts.down_proj_scale_inv", "F32", E, 2, 1, s_down, sizeof s_down);
    struct artifact *a = finish(&m, NULL);
    struct ifx_moe_layer layer = {.experts = E, .hidden = H, .inter = I};
    snprintf(layer.prefix, sizeof layer.prefix, "layers.0.mlp.experts");
    for (uint32_t e = 0; e < E; e++) {
        assert_int_equal(artifact_expert_rows(a, &layer, e, x[0], x[1], x[2]), IFX_OK);
        for (int r = 0; r < 2 * I; r++)
            for (int c = 0; c < H; c++)
                assert_true(x[r / I][r % I * H + c] == ifx_e4m3_to_f32(gate_up[(e * 2 * I + (unsigned)r) * H + (unsigned)c]) *
                                                           s_gate_up[e * 4 + (unsigned)(r / 128 * 2 + c / 128)]);
        for (int r = 0; r < H; r++)
            for (int c = 0; c < I; c++)
                assert_true(x[2][r * I + c] == ifx_e4m3_to_f32(down[(e * H + (unsigned)r) * I + (unsigned)c]) *
                                                   s_down[e * 2 + (unsigned)(r / 128)]);
    }
    done(&m, a);
}

/* Dense NVFP4 and a negative block scale, which is a legal value; gate and up keep scales of their own elsewhere. */
static void test_dense_nvfp4(void **state)
{
    (void)state;
    uint8_t codes[2 * 8], scales[2] = {0x38, 0xb8 /* -1 */};
    const float s2 = 0.5f, input = 3.0f;
    uint16_t got[32];
    struct making m = {0};
    struct ifx_weight w;
    bool in_place;
    for (int i = 0; i < 16; i++)
        codes[i] = (uint8_t)(i * 17 + 1);
    add(&m, "q.weight", "U8", 2, 8, 0, codes, 16);
    add(&m, "q.weight_scale", "F8_E4M3", 2, 1, 0, scales, 2);
    add(&m, "q.weight_scale_2", "F32", 1, 0, 0, &s2, 4);
    add(&m, "q.input_scale", "F32", 0, 0, 0, &input, 4);
    struct artifact *a = finish(&m, NULL);
    struct ifx_param q = param("q.weight", IFX_PARAM_MATRIX, 2, 16);
    struct ifx_model_desc d = {.struct_size = sizeof d, .n_params = 1, .params = &q};
    if (artifact_check(a, &d) != IFX_OK)
        fail_msg("%s", base_error_text());
    assert_int_equal(artifact_param_read(a, &q, got, NULL, &w, &in_place), IFX_OK);
    for (int i = 0; i < 32; i++) {
        uint8_t code = i & 1 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
        float want = ifx_e2m1_to_f32(code) * (i < 16 ? 1.0f : -1.0f) * s2;
        assert_true(ifx_bf16_to_f32(got[i]) == want);
    }
    done(&m, a);
}

static void test_dialects_refused(void **state)
{
    (void)state;
    struct making m = {0};
    static uint8_t zeros[64];
    add(&m, "q.weight_packed", "U8", 2, 8, 0, zeros, 16);
    add(&m, "k.qweight", "I32", 2, 4, 0, zeros, 32);
    add(&m, "v.weight", "I8", 2, 16, 0, zeros, 32);
    add(&m, "o.weight", "F8_E4M3", 2, 16, 0, zeros, 32);
    add(&m, "o.weight_scale", "F32", 2, 1, 0, zeros, 8);
    struct artifact *a = finish(&m, NULL);
    struct ifx_param p[4] = {param("q.weight", IFX_PARAM_MATRIX, 2, 16), param("k.weight", IFX_PARAM_MATRIX, 2, 16),
                             param("v.weight", IFX_PARAM_MATRIX, 2, 16), param("o.weight", IFX_PARAM_MATRIX, 2, 16)};
    struct ifx_model_desc d = {.struct_size = sizeof d, .n_params = 4, .params = p};
    assert_int_equal(artifact_check(a, &d), IFX_EFORMAT);
    static const char *const texts[] = {"4 faults", "weight_packed", "compressed-tensors", "qweight", "GPTQ", "type I8",
                                        "each channel", NULL};
    for (int i = 0; texts[i]; i++)
        if (strstr(base_error_text(), texts[i]) == NULL)
            fail_msg("expected \"%s\" in the message, got: %s", texts[i], base_error_text());
    done(&m, a);
}

/* Head present or not, tied or not: what the config says against what is stored. */
static void test_heads(void **state)
{
    (void)state;
    static const uint16_t embed[8] = {1, 2, 3, 4, 5, 6, 7, 8}, other[8] = {1, 2, 3, 4, 5, 6, 7, 9};
    static const struct {
        const uint16_t *head;
        bool tied, good;
        const char *text;
    } table[] = {
        {other, false, true, NULL}, {embed, false, true, NULL}, {NULL, true, true, NULL}, {embed, true, true, NULL},
        {other, true, false, "embed_tokens.weight"}, {NULL, false, false, "lm_head.weight"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct making m = {0};
        add(&m, "model.embed_tokens.weight", "BF16", 2, 4, 0, embed, 16);
        if (table[i].head != NULL)
            add(&m, i % 2 ? "lm_head.weight" : "language_model.lm_head.weight", "BF16", 2, 4, 0, table[i].head, 16);
        struct artifact *a = finish(&m, NULL);
        struct ifx_param p[2] = {param("embed_tokens.weight", IFX_PARAM_MATRIX, 2, 4),
                                 param("lm_head.weight", IFX_PARAM_MATRIX, 2, 4)};
        struct ifx_model_desc d = {.struct_size = sizeof d, .n_params = 2, .params = p};
        p[1].flags = IFX_PARAM_HEAD | (table[i].tied ? IFX_PARAM_OPTIONAL : 0);
        p[1].tied_to = table[i].tied ? 0 : -1;
        int32_t status = artifact_check(a, &d);
        if ((status == IFX_OK) != table[i].good)
            fail_msg("case %zu: status %d: %s", i, status, base_error_text());
        if (!table[i].good && (!strstr(base_error_text(), table[i].text) || !strstr(base_error_text(), "lm_head")))
            fail_msg("case %zu: %s", i, base_error_text());
        done(&m, a);
    }
}

/* What a checkpoint says of its quantisation must be what it stores: one weight in NVFP4, one in FP8, one plain. */
static void test_quant_config(void **state)
{
    (void)state;
#define Q(text) "{\"producer\": {}, \"quantization\": {" text "}}"
#define C(text) "{\"architectures\": [\"A\"], \"quantization_config\": {" text "}}"
    static const struct {
        const char *file, *config; /* NULL: not written; no quantization_config */
        const char *fault[3];      /* NULL: it opens */
    } cases[] = {
        {NULL, NULL, {NULL}},
        {Q("\"quant_algo\": null, \"kv_cache_quant_algo\": \"FP8\""), NULL, {NULL}},
        {Q("\"quant_algo\": \"MIXED_PRECISION\", \"quantized_layers\": {\"model.layers.0.mlp.experts\": {\"quant_algo\": \"NVFP4\"},"
           "\"language_model.model.layers.0.mlp.up_proj\": {\"quant_algo\": \"FP8\"}}"), NULL, {NULL}},
        /* a module and everything below it, a glob, another prefix, parts that are ignored */
        {Q("\"quant_algo\": \"MIXED_PRECISION\", \"quantized_layers\": {\"model.layers.0.mlp.experts\": {\"quant_algo\": \"FP8\"}}"), NULL,
         {"experts.3.up_proj.weight", "as NVFP4", "\"FP8\""}},
        {Q("\"quant_algo\": \"MIXED_PRECISION\", \"quantized_layers\": {\"model.layers.0.mlp.down_proj\": {\"quant_algo\": \"FP8\"}}"), NULL,
         {"down_proj.weight", "unquantised", "\"FP8\""}},
        {Q("\"quant_algo\": \"NVFP4\", \"group_size\": 16, \"exclude_modules\": [\"lm_head\"]"), NULL, {"mlp.up_proj.weight", "as FP8", "\"NVFP4\""}},
        {Q("\"quant_algo\": \"NVFP4\", \"exclude_modules\": [\"*.experts.*\"]"), NULL, {"experts.3.up_proj", "leaves it out", "*.experts.*"}},
        {Q("\"quant_algo\": \"NVFP4\", \"exclude_modules\": [\"model.layers.0.mlp\"]"), NULL, {"experts.3.up_proj", "mlp.up_proj", "leaves it out"}},
        {Q("\"quant_algo\": \"MIXED_PRECISION\", \"quantized_layers\": {}, \"exclude_modules\": [\"mtp*\", \"model.layers.0.mlp.up\", \"model.visual*\"]"), NULL, {NULL}},
        {Q("\"quant_algo\": \"NVFP4\", \"group_size\": 32, \"exclude_modules\": [\"*\"]"), NULL, {"group_size", "32", "hf_quant"}},
        {Q("\"quant_algo\": \"W4A8_AWQ\""), NULL, {"W4A8_AWQ", "hf_quant_config.json", "not read"}},
        {Q("\"quant_algo\": \"MIXED_PRECISION\""), NULL, {"quantized_layers", "hf_quant", "MIXED"}},
        {Q("\"quant_algo\": 4"), NULL, {"quant_algo", "no text", "hf_quant"}},
        {Q("\"quant_algo\": \"NVFP4\", \"exclude_modules\": \"lm_head\""), NULL, {"exclude_modules", "no list", "hf_quant"}},
        {"[]", NULL, {"\"quantization\"", "hf_quant_config.json", "object"}},
        {"{", NULL, {"hf_quant_config.json", "line", "1"}},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", NULL, {"git-lfs", "hf_quant_config.json", "is"}},
        {NULL, C("\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8\""), {"experts.3.up_proj", "config.json", "\"FP8\""}},
        {NULL, C("\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8\", \"ignore\": [\"*up_proj\"]"), {"experts.3.up_proj", "leaves it out", "*up_proj"}},
        {NULL, C("\"quant_method\": \"awq\", \"bits\": 4"), {"awq", "config.json", "not read"}},
        {NULL, C("\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]"), {NULL}},
    };
    static const uint8_t zeros[32];
    static const float one = 1;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct making m = {0};
        struct artifact *a;
        add(&m, "model.layers.0.mlp.experts.3.up_proj.weight", "U8", 1, 8, 0, zeros, 8);
        add(&m, "model.layers.0.mlp.experts.3.up_proj.weight_scale", "F8_E4M3", 1, 1, 0, zeros, 1);
        add(&m, "model.layers.0.mlp.experts.3.up_proj.weight_scale_2", "F32", 1, 0, 0, &one, 4);
        add(&m, "model.layers.0.mlp.up_proj.weight", "F8_E4M3", 1, 16, 0, zeros, 16);
        add(&m, "model.layers.0.mlp.up_proj.weight_scale", "F32", 1, 0, 0, &one, 4);
        add(&m, "model.layers.0.mlp.down_proj.weight", "BF16", 1, 16, 0, zeros, 32);
        artifact_close(finish(&m, NULL)); /* without any description it opens */
        if (cases[i].file)
            helper_write(m.folder, "hf_quant_config.json", cases[i].file, strlen(cases[i].file));
        if (cases[i].config)
            helper_write(m.folder, "config.json", cases[i].config, strlen(cases[i].config));
        int32_t status = artifact_open(m.folder, &a);
        if ((status == IFX_OK) != (cases[i].fault[0] == NULL))
            fail_msg("case %zu: status %d: %s", i, (int)status, status ? base_error_text() : "opened");
        for (int k = 0; status != IFX_OK && k < 3; k++)
            if (!strstr(base_error_text(), cases[i].fault[k]))
                fail_msg("case %zu: expected %s, got: %s", i, cases[i].fault[k], base_error_text());
        if (status == IFX_OK)
            artifact_close(a);
        helper_remove(m.folder);
    }
    struct making m = {0};
    struct artifact *a;
    add(&m, "model.layers.0.mlp.up_proj.weight", "BF16", 1, 16, 0, zeros, 32);
    add(&m, "model.layers.0.mlp.up_proj.pre_quant_scale", "BF16", 16, 0, 0, zeros, 32);
    write_files(&m, NULL);
    if (artifact_open(m.folder, &a) == IFX_OK)
        fail_msg("a pre_quant_scale was ignored");
    assert_non_null(strstr(base_error_text(), "pre_quant_scale"));
    helper_remove(m.folder);
#undef Q
#undef C
}

/* The nested value wins, and its absence lets the outer one through. */
static void test_nested_config(void **state)
{
    (void)state;
    struct making m = {0};
    uint32_t flag;
    int64_t v;
    add(&m, "x", "F4", 3, 0, 0, "abcd", 4); /* an unknown type on a tensor nobody needs */
    add(&m, "y", "F32", 1, 0, 0, "abcd", 4);
    struct artifact *a = finish(&m, "{\"architectures\": [\"XForConditionalGeneration\"], \"tie_word_embeddings\": true, \"n\": 1,"
                                    "\"k\": 5, \"text_config\": {\"tie_word_embeddings\": false, \"n\": 2, \"k\": null}}");
    const struct ifx_config *c = artifact_config(a);
    assert_string_equal(artifact_architecture(a), "XForCausalLM");
    assert_int_equal(c->get_bool(c, "tie_word_embeddings", &flag), IFX_OK);
    assert_int_equal(flag, 0);
    assert_int_equal(c->get_int(c, "n", &v), IFX_OK);
    assert_int_equal(v, 2);
    assert_int_equal(c->get_int(c, "k", &v), IFX_OK);
    assert_int_equal(v, 5);
    assert_int_equal(artifact_entry_at(a, 0)->dtype, 0);
    assert_string_equal(artifact_entry_at(a, 0)->dtype_text, "F4");
    done(&m, a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_float_types), cmocka_unit_test(test_vector_finite),      cmocka_unit_test(test_fp8),
        cmocka_unit_test(test_double_rounding),  cmocka_unit_test(test_square_experts),
        cmocka_unit_test(test_wrong_orientation), cmocka_unit_test(test_fused_fp8),
        cmocka_unit_test(test_dense_nvfp4),      cmocka_unit_test(test_dialects_refused),
        cmocka_unit_test(test_heads),            cmocka_unit_test(test_nested_config),
        cmocka_unit_test(test_quant_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
