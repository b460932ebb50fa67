/* SPDX-License-Identifier: Apache-2.0
 *
 * test_read.c - the golden checkpoints as they are: names, config, parameters, experts.
 */
#include "config.h"
#include "helper.h"
#include <infernix/numerics.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct artifact *open_golden(const char *name)
{
    struct artifact *a;
    if (artifact_open(helper_golden(name), &a) != IFX_OK)
        fail_msg("%s", base_error_text());
    return a;
}

static void test_all_open_and_check(void **state)
{
    static const struct {
        const char *name, *architecture, *format;
    } all[] = {
        {"qwen3_5-tiny", "Qwen3_5ForCausalLM", NULL},
        {"qwen3_5-tied", "Qwen3_5ForCausalLM", NULL},
        {"qwen3_5_moe-tiny", "Qwen3_5MoeForCausalLM", "bf16"},
        {"qwen3_5_moe-mid", "Qwen3_5MoeForCausalLM", "bf16"},
        {"qwen3_5_moe-tiny-vl", "Qwen3_5MoeForCausalLM", "bf16"},
        {"qwen3_5_moe-tiny-nvfp4", "Qwen3_5MoeForCausalLM", "nvfp4"},
        {"qwen3_5_moe-mid-nvfp4", "Qwen3_5MoeForCausalLM", "nvfp4"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct artifact *a = open_golden(all[i].name);
        struct ifx_model_desc *d = helper_desc(a);
        assert_string_equal(artifact_architecture(a), all[i].architecture);
        if (all[i].format != NULL)
            assert_string_equal(artifact_expert_format(a), all[i].format);
        else
            assert_null(artifact_expert_format(a));
        assert_false(artifact_is_container(a));
        if (artifact_check(a, d) != IFX_OK)
            fail_msg("%s: %s", all[i].name, base_error_text());
        helper_desc_free(d);
        artifact_close(a);
    }
}

/* The multimodal copy has the same tensors under other names, in three shards, with a nested config. */
static void test_vl_is_the_same_model(void **state)
{
    (void)state;
    struct artifact *a = open_golden("qwen3_5_moe-tiny"), *b = open_golden("qwen3_5_moe-tiny-vl");
    uint64_t n = 0, ignored = 0;
    for (uint64_t i = 0; i < artifact_entry_count(a); i++) {
        const struct artifact_entry *e = artifact_entry_at(a, i);
        struct ifx_tensor x, y;
        assert_non_null(e->logical_name);
        assert_int_equal(artifact_tensor(a, e->logical_name, &x), IFX_OK);
        if (artifact_tensor(b, e->logical_name, &y) != IFX_OK)
            fail_msg("%s is not found in the multimodal layout", e->logical_name);
        assert_int_equal(x.data_bytes, y.data_bytes);
        assert_memory_equal(x.data, y.data, x.data_bytes);
        n++;
    }
    for (uint64_t i = 0; i < artifact_entry_count(b); i++)
        ignored += artifact_entry_at(b, i)->logical_name == NULL;
    assert_int_equal(n + ignored, artifact_entry_count(b));
    assert_true(ignored > 20);
    const struct ifx_config *c = artifact_config(b);
    int64_t v;
    uint64_t count;
    uint32_t flag;
    double theta;
    const char *text;
    assert_int_equal(c->get_int(c, "num_experts", &v), IFX_OK);
    assert_int_equal(v, 16);
    assert_int_equal(c->get_int(c, "image_token_id", &v), IFX_OK); /* outer level */
    assert_int_equal(v, 500);
    assert_int_equal(c->get_float(c, "rope_parameters.rope_theta", &theta), IFX_OK);
    assert_true(theta == 10000.0);
    assert_int_equal(c->get_bool(c, "tie_word_embeddings", &flag), IFX_OK);
    assert_int_equal(flag, 0);
    assert_int_equal(c->get_count(c, "eos_token_id", &count), IFX_OK);
    assert_int_equal(count, 2);
    assert_int_equal(c->get_int_at(c, "eos_token_id", 1, &v), IFX_OK);
    assert_int_equal(v, 508);
    assert_int_equal(c->get_int(c, "bos_token_id", &v), IFX_ENOTFOUND); /* null */
    assert_int_equal(c->get_int(c, "no_such_key", &v), IFX_ENOTFOUND);
    assert_int_equal(c->get_int(c, "eos_token_id", &v), IFX_EFORMAT);
    assert_non_null(strstr(base_error_text(), "eos_token_id"));
    assert_int_equal(c->get_int(c, "rms_norm_eps", &v), IFX_EFORMAT);
    assert_int_equal(c->get_string(c, "hidden_size", &text), IFX_EFORMAT);
    assert_int_equal(c->get_string(c, "hidden_act", &text), IFX_OK);
    assert_string_equal(text, "silu");
    artifact_close(a);
    artifact_close(b);
}

/* Gate rows first, then up rows; down as stored. */
static void test_fused_experts(void **state)
{
    (void)state;
    struct artifact *a = open_golden("qwen3_5_moe-tiny");
    struct ifx_model_desc *d = helper_desc(a);
    const struct ifx_moe_layer *m = &d->moe[3];
    struct ifx_tensor gate_up, down;
    uint64_t n = (uint64_t)m->hidden * m->inter;
    float *w = calloc(3 * n, sizeof *w);
    assert_non_null(w);
    assert_int_equal(artifact_tensor(a, "layers.3.mlp.experts.gate_up_proj", &gate_up), IFX_OK);
    assert_int_equal(artifact_tensor(a, "layers.3.mlp.experts.down_proj", &down), IFX_OK);
    assert_int_equal(artifact_expert_rows(a, m, 5, w, w + n, w + 2 * n), IFX_OK);
    for (uint64_t i = 0; i < 3 * n; i++) {
        uint16_t h;
        const char *from = i < 2 * n ? (const char *)gate_up.data + (5 * 2 * n + i) * 2
                                     : (const char *)down.data + (5 * n + (i - 2 * n)) * 2;
        memcpy(&h, from, 2);
        assert_true(ifx_bf16_to_f32(h) == w[i]);
    }
    struct ifx_expert_tensors t;
    assert_int_equal(artifact_expert_tensors(a, m, 5, &t), IFX_EUNSUPPORTED);
    free(w);
    helper_desc_free(d);
    artifact_close(a);
}

/* The NVFP4 rows are e2m1 * e4m3 * s2, each matrix with its own s2. */
static void test_nvfp4_experts(void **state)
{
    (void)state;
    static const char *const proj[3] = {"gate_proj", "up_proj", "down_proj"};
    struct artifact *a = open_golden("qwen3_5_moe-tiny-nvfp4");
    struct ifx_model_desc *d = helper_desc(a);
    const struct ifx_moe_layer *m = &d->moe[2];
    struct ifx_expert_tensors t;
    uint64_t n = (uint64_t)m->hidden * m->inter;
    float *w = calloc(3 * n, sizeof *w);
    assert_non_null(w);
    assert_int_equal(artifact_expert_rows(a, m, 7, w, w + n, w + 2 * n), IFX_OK);
    assert_int_equal(artifact_expert_tensors(a, m, 7, &t), IFX_OK);
    for (int i = 0; i < 3; i++) {
        char name[160];
        struct ifx_tensor codes, scales, s2;
        float s;
        uint64_t cols = i == 2 ? m->inter : m->hidden;
        snprintf(name, sizeof name, "layers.2.mlp.experts.7.%s.weight", proj[i]);
        assert_int_equal(artifact_tensor(a, name, &codes), IFX_OK);
        assert_ptr_equal(codes.data, t.matrix[i].weight.data);
        snprintf(name, sizeof name, "layers.2.mlp.experts.7.%s.weight_scale", proj[i]);
        assert_int_equal(artifact_tensor(a, name, &scales), IFX_OK);
        assert_ptr_equal(scales.data, t.matrix[i].weight_scale.data);
        snprintf(name, sizeof name, "layers.2.mlp.experts.7.%s.weight_scale_2", proj[i]);
        assert_int_equal(artifact_tensor(a, name, &s2), IFX_OK);
        assert_ptr_equal(s2.data, t.matrix[i].weight_scale_2.data);
        memcpy(&s, s2.data, 4);
        for (uint64_t k = 0; k < n; k++) {
            uint8_t byte = ((const uint8_t *)codes.data)[k / 2];
            float block = ifx_e4m3_to_f32(((const uint8_t *)scales.data)[k / cols * (cols / 16) + k % cols / 16]);
            float want = ifx_e2m1_to_f32(k & 1 ? byte >> 4 : byte & 15) * block * s;
            if (want != w[i * n + k])
                fail_msg("%s[%llu]: expected %g, got %g", proj[i], (unsigned long long)k, want, w[i * n + k]);
        }
    }
    free(w);
    helper_desc_free(d);
    artifact_close(a);
}

static void test_params(void **state)
{
    (void)state;
    struct artifact *a = open_golden("qwen3_5-tied");
    struct ifx_model_desc *d = helper_desc(a);
    uint32_t read = 0;
    for (uint32_t i = 0; i < d->n_params; i++) {
        const struct ifx_param *p = &d->params[i];
        uint32_t dtype;
        uint64_t bytes, scale_bytes;
        int32_t status = artifact_param_plan(a, p, &dtype, &bytes, &scale_bytes);
        if (p->flags & IFX_PARAM_HEAD) {
            assert_int_equal(status, IFX_ENOTFOUND);
            continue;
        }
        assert_int_equal(status, IFX_OK);
        assert_int_equal(scale_bytes, 0);
        assert_int_equal(dtype, p->kind == IFX_PARAM_VECTOR ? IFX_F32 : IFX_BF16);
        assert_int_equal(bytes, (uint64_t)p->rows * p->cols * (dtype == IFX_F32 ? 4 : 2));
        char *dst = calloc(1, bytes + 8);
        struct ifx_weight w;
        struct ifx_tensor t;
        bool in_place;
        assert_non_null(dst);
        memset(dst + bytes, 0x5a, 8);
        assert_int_equal(artifact_param_read(a, p, dst, NULL, &w, &in_place), IFX_OK);
        assert_int_equal(artifact_tensor(a, p->name, &t), IFX_OK);
        for (int k = 0; k < 8; k++)
            assert_int_equal(dst[bytes + k], 0x5a);
        if (in_place)
            assert_ptr_equal(w.data, t.data);
        for (uint64_t k = 0; t.dtype == IFX_BF16 && k < (uint64_t)p->rows * p->cols; k++) {
            uint16_t h;
            memcpy(&h, (const char *)t.data + 2 * k, 2);
            if (dtype == IFX_BF16)
                assert_int_equal(((const uint16_t *)w.data)[k], h);
            else
                assert_true(((const float *)w.data)[k] == ifx_bf16_to_f32(h));
        }
        free(dst);
        read++;
    }
    assert_int_equal(read + 1, d->n_params);
    helper_desc_free(d);
    artifact_close(a);
}

static void test_writer(void **state)
{
    (void)state;
    char *folder = helper_folder(), path[4400];
    const float x[6] = {1, 2, 3, 4, 5, 6};
    const int32_t ids[3] = {7, 8, 9};
    const uint64_t dims_x[2] = {2, 3}, dims_ids[1] = {3};
    struct st_writer *w;
    struct st_file *f;
    struct ifx_tensor t;
    snprintf(path, sizeof path, "%s/t.safetensors", folder);
    assert_int_equal(st_writer_open(path, false, &w), IFX_OK);
    assert_int_equal(st_writer_declare(w, "x", IFX_F32, 2, dims_x), IFX_OK);
    assert_int_equal(st_writer_declare(w, "ids", IFX_I32, 1, dims_ids), IFX_OK);
    assert_int_equal(st_writer_declare(w, "x", IFX_F32, 2, dims_x), IFX_EINTERNAL);
    assert_int_equal(st_writer_write(w, "x", x, sizeof x), IFX_OK);
    assert_int_equal(st_writer_write(w, "ids", ids, sizeof ids), IFX_OK);
    assert_int_equal(st_writer_close(&w, true), IFX_OK);
    assert_null(w);
    if (st_open(path, &f) != IFX_OK)
        fail_msg("%s", base_error_text());
    assert_int_equal(st_find(f, "x", &t), IFX_OK);
    assert_int_equal(t.dims[0] * 10 + t.dims[1], 23);
    assert_int_equal(t.data_bytes, sizeof x);
    assert_memory_equal(t.data, x, sizeof x);
    assert_int_equal(st_find(f, "ids", &t), IFX_OK);
    assert_memory_equal(t.data, ids, sizeof ids);
    assert_int_equal(st_find(f, "y", &t), IFX_ENOTFOUND);
    st_close(f);
    /* Not all written: nothing may appear; nor may an existing file be replaced unasked. */
    assert_int_not_equal(st_writer_open(path, false, &w), IFX_OK);
    assert_int_equal(st_writer_open(path, true, &w), IFX_OK);
    assert_int_equal(st_writer_declare(w, "y", IFX_F32, 2, dims_x), IFX_OK);
    assert_int_not_equal(st_writer_close(&w, true), IFX_OK);
    assert_int_equal(st_open(path, &f), IFX_OK);
    assert_int_equal(st_find(f, "x", &t), IFX_OK);
    st_close(f);
    helper_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_open_and_check), cmocka_unit_test(test_vl_is_the_same_model),
        cmocka_unit_test(test_fused_experts),      cmocka_unit_test(test_nvfp4_experts),
        cmocka_unit_test(test_params),             cmocka_unit_test(test_writer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
