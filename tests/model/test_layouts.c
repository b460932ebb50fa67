/* SPDX-License-Identifier: Apache-2.0
 *
 * test_layouts.c - the same weights in every published layout give the same logits, and what is missing or contradictory is named:
 * nested configs and prefixes, tied heads, fused and split experts, stored types, stop ids, router ties, non-finite weights.
 */
#include "harness.h"
#include "variant.h"

#include <infernix/numerics.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOE  "checkpoints/qwen3_5_moe-tiny"
#define TIED "checkpoints/qwen3_5-tied"

static const int32_t prompt[] = {17, 301, 4, 99, 250, 8, 77, 411, 5};
#define N_PROMPT (sizeof prompt / sizeof prompt[0])

/* Logits of the prompt's last token on `ref`. */
static float *logits_of(const char *folder, uint32_t *vocab)
{
    struct rig r;
    struct ifx_sequence *s;
    rig_open(&r, folder, NULL);
    *vocab = r.info.desc->vocab;
    float *logits = base_calloc(*vocab, sizeof *logits);
    OK(ifx_sequence_create(r.model, &s));
    OK(ifx_sequence_feed(s, prompt, N_PROMPT, 1, logits));
    ifx_sequence_destroy(s);
    rig_close(&r);
    return logits;
}

static void save_to(struct variant *v, char *folder, size_t size, const char *name)
{
    temp_folder(folder, size, name);
    variant_save(v, folder);
    variant_free(v);
}

static void remove_folder(const char *folder)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command))
        FAIL("%s", command);
}

/* The variant must give the logits of the checkpoint it came from, bit for bit, times `scale`. */
static void expect_same(struct variant *v, const char *base, const char *what, float scale)
{
    char folder[128];
    uint32_t n, m;
    uint64_t at;
    save_to(v, folder, sizeof folder, "layout");
    float *want = logits_of(golden(0, "%s", base), &n), *got = logits_of(folder, &m);
    assert_int_equal(n, m);
    for (uint32_t i = 0; i < n; i++)
        want[i] *= scale;
    if (largest_difference(got, want, n, &at) != 0)
        FAIL("%s: logit %u is %.9g, expected %.9g", what, (unsigned)at, got[at], want[at]);
    base_free(want);
    base_free(got);
    remove_folder(folder);
}

static void expect_refused(struct variant *v, const char *needle)
{
    char folder[128];
    save_to(v, folder, sizeof folder, "refused");
    rig_refused(folder, NULL, needle);
    remove_folder(folder);
}

/* ---- names and nesting ---- */

static void test_prefixes(void **state)
{
    static const struct {
        const char *prefix, *head;
        bool nested;
    } layouts[] = {
        {"model.", "lm_head.weight", false},
        {"model.language_model.", "lm_head.weight", true},
        {"language_model.model.", "language_model.lm_head.weight", true},
        {"model.language_model.", "lm_head.weight", false},
        {"model.", "lm_head.weight", true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct variant v;
        variant_load(&v, golden(0, MOE));
        variant_rename(&v, layouts[i].prefix, layouts[i].head);
        if (layouts[i].nested)
            variant_nest(&v, "Qwen3_5MoeForConditionalGeneration");
        expect_same(&v, MOE, layouts[i].prefix, 1);
    }
}

static void test_needed_fields(void **state)
{
    static const char *const moe[] = {"num_experts_per_tok", "num_experts", "moe_intermediate_size", "hidden_size", "vocab_size",
                                      "shared_expert_intermediate_size", "num_hidden_layers", "num_attention_heads",
                                      "num_key_value_heads", "head_dim", "rms_norm_eps", "linear_num_key_heads",
                                      "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
                                      "linear_conv_kernel_dim", "max_position_embeddings"};
    struct variant v;
    (void)state;
    for (size_t i = 0; i < sizeof moe / sizeof moe[0]; i++) {
        variant_load(&v, golden(0, MOE));
        json_object_del(v.config, moe[i]);
        expect_refused(&v, moe[i]);
        variant_load(&v, golden(0, MOE));
        json_object_del(v.config, moe[i]);
        variant_nest(&v, "Qwen3_5MoeForConditionalGeneration");
        expect_refused(&v, moe[i]);
    }
    variant_load(&v, golden(0, TIED));
    json_object_del(v.config, "intermediate_size");
    expect_refused(&v, "intermediate_size");
}

static void refuse_value(const char *key, json_t *value, const char *needle)
{
    struct variant v;
    variant_load(&v, golden(0, MOE));
    json_object_set_new(v.config, key, value);
    expect_refused(&v, needle);
}

static void test_unsupported_fields(void **state)
{
    (void)state;
    refuse_value("attention_bias", json_true(), "attention_bias");
    refuse_value("attn_output_gate", json_false(), "attn_output_gate");
    refuse_value("hidden_act", json_string("gelu"), "hidden_act");
    refuse_value("rope_parameters", json_pack("{s:s,s:f}", "rope_type", "yarn", "rope_theta", 10000.0), "rope_type");
    refuse_value("rope_scaling", json_pack("{s:s}", "type", "linear"), "rope_scaling");
    refuse_value("num_experts_per_tok", json_integer(17), "num_experts_per_tok");
    refuse_value("num_attention_heads", json_integer(3), "num_attention_heads");
    refuse_value("linear_num_value_heads", json_integer(3), "linear_num_value_heads");
    refuse_value("hidden_size", json_string("64"), "hidden_size");
    refuse_value("num_hidden_layers", json_integer(1 << 30), "num_hidden_layers");
    refuse_value("layer_types", json_pack("[s]", "full_attention"), "layer_types");
    refuse_value("layer_types", json_pack("[s,s,s,s,s,s,s,s]", "full_attention", "sliding_attention", "full_attention",
                                          "full_attention", "full_attention", "full_attention", "full_attention", "full_attention"),
                 "sliding_attention");
    refuse_value("rms_norm_eps", json_real(0), "rms_norm_eps");
    refuse_value("architectures", json_pack("[s]", "GPT2LMHeadModel"), "GPT2LMHeadModel");
}

/* ---- tied heads ---- */

static void add_head(struct variant *v, float scale)
{
    struct vt embed = *variant_find(v, "model.embed_tokens.weight");
    struct vt *head = variant_add(v, "lm_head.weight", "BF16", 2, embed.dims, embed.data, embed.bytes);
    for (uint64_t i = 0; i < embed.bytes / 2; i++)
        vt_set(head, i, vt_get(head, i) * scale);
}

static void test_tied_head(void **state)
{
    struct variant v;
    (void)state;
    variant_load(&v, golden(0, TIED));
    add_head(&v, 1);
    expect_same(&v, TIED, "tied, and the head stored with the same bytes", 1);
    variant_load(&v, golden(0, TIED));
    add_head(&v, 2);
    expect_refused(&v, "lm_head.weight");
    variant_load(&v, golden(0, TIED));
    add_head(&v, 2);
    json_object_set_new(v.config, "tie_word_embeddings", json_false());
    expect_same(&v, TIED, "untied", 2);
    variant_load(&v, golden(0, TIED));
    json_object_set_new(v.config, "tie_word_embeddings", json_false());
    expect_refused(&v, "lm_head.weight");
    /* the nested value wins */
    variant_load(&v, golden(0, TIED));
    add_head(&v, 2);
    json_object_set_new(v.config, "tie_word_embeddings", json_false());
    variant_nest(&v, "Qwen3_5ForConditionalGeneration");
    json_object_set_new(v.config, "tie_word_embeddings", json_true());
    expect_same(&v, TIED, "outer tied, nested untied", 2);
    variant_load(&v, golden(0, TIED));
    variant_nest(&v, "Qwen3_5ForConditionalGeneration");
    json_object_set_new(v.config, "tie_word_embeddings", json_false());
    expect_same(&v, TIED, "outer untied, nested tied", 1);
}

/* ---- experts and types ---- */

static void test_expert_layouts(void **state)
{
    struct variant v;
    (void)state;
    variant_load(&v, golden(0, MOE));
    variant_unfuse(&v, 0);
    expect_same(&v, MOE, "experts one by one", 1);
    variant_load(&v, golden(0, MOE));
    variant_unfuse(&v, 4);
    expect_same(&v, MOE, "experts of the upper layers one by one", 1);
    variant_load(&v, golden(0, MOE));
    variant_unfuse(&v, 0);
    variant_drop(&v, "model.layers.2.mlp.experts.5.up_proj.weight");
    expect_refused(&v, "layers.2.mlp.experts.5.up_proj");
    variant_load(&v, golden(0, MOE));
    variant_drop(&v, "model.layers.3.mlp.gate.weight");
    variant_drop(&v, "model.layers.0.linear_attn.dt_bias");
    expect_refused(&v, "layers.3.mlp.gate.weight");
    variant_load(&v, golden(0, MOE));
    variant_drop(&v, "model.layers.3.mlp.gate.weight");
    variant_drop(&v, "model.layers.0.linear_attn.dt_bias");
    expect_refused(&v, "layers.0.linear_attn.dt_bias");
}

static void retype_a_log(struct variant *v, uint32_t type)
{
    static const char *const names[] = {"F32", "BF16", "F16"};
    static const float exact[4] = {0.5f, -1.25f, 1.75f, 0.0625f};
    for (uint32_t layer = 0; layer < 8; layer++) {
        char name[128];
        if (layer % 4 == 3)
            continue;
        snprintf(name, sizeof name, "model.layers.%u.linear_attn.A_log", layer);
        struct vt *t = variant_find(v, name);
        snprintf(t->dtype, sizeof t->dtype, "%s", names[type]);
        t->bytes = 4u * (type ? 2 : 4);
        for (uint32_t i = 0; i < 4; i++) {
            uint16_t h = type == 1 ? ifx_f32_to_bf16(exact[i]) : ifx_f32_to_f16(exact[i]);
            if (type)
                memcpy(t->data + i * 2, &h, 2);
            else
                memcpy(t->data + i * 4, &exact[i], 4);
        }
    }
}

static void test_stored_types(void **state)
{
    struct variant v;
    char folder[128];
    float *first = NULL;
    uint32_t n;
    uint64_t at;
    (void)state;
    for (uint32_t type = 0; type < 3; type++) {
        variant_load(&v, golden(0, MOE));
        retype_a_log(&v, type);
        save_to(&v, folder, sizeof folder, "types");
        float *logits = logits_of(folder, &n);
        if (first && largest_difference(first, logits, n, &at) != 0)
            FAIL("A_log as type %u: logit %u is %g, as F32 %g", type, (unsigned)at, logits[at], first[at]);
        if (first)
            base_free(logits);
        else
            first = logits;
        remove_folder(folder);
    }
    base_free(first);
    variant_load(&v, golden(0, MOE));
    variant_add(&v, "mtp.odd", "F4", 1, (uint64_t[]){16}, "12345678", 8);
    expect_same(&v, MOE, "an ignored tensor of a type nobody knows", 1);
    variant_load(&v, golden(0, MOE));
    v.trailing = 16;
    expect_refused(&v, "16");
}

/* NVFP4: a scale that is missing is named, whichever it is; those of the activations count for nothing. */
static void test_scales(void **state)
{
    static const char *const needed[] = {"model.layers.2.mlp.experts.3.down_proj.weight_scale_2", "model.layers.0.mlp.experts.15.gate_proj.weight_scale",
                                         "model.layers.7.mlp.experts.0.up_proj.weight_scale_2"};
    struct variant v;
    (void)state;
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        variant_load(&v, golden(0, "checkpoints/qwen3_5_moe-tiny-nvfp4"));
        variant_drop(&v, needed[i]);
        expect_refused(&v, needed[i]);
    }
    variant_load(&v, golden(0, "checkpoints/qwen3_5_moe-tiny-nvfp4"));
    uint64_t dropped = 0;
    for (uint64_t i = v.n; i-- > 0;)
        if (strstr(v.t[i].name, ".input_scale")) {
            char name[sizeof v.t[i].name];
            memcpy(name, v.t[i].name, sizeof name);
            variant_drop(&v, name);
            dropped++;
        }
    assert_int_equal(dropped, 8 * 16 * 3);
    expect_same(&v, "checkpoints/qwen3_5_moe-tiny-nvfp4", "without the scales of activations", 1);
}

/* ---- a model whose greedy choice counts upwards: blocks give nothing, embedding and head are unit vectors ---- */

static void make_counter(struct variant *v)
{
    variant_load(v, golden(0, MOE));
    for (uint64_t i = 0; i < v->n; i++)
        if (strstr(v->t[i].name, "o_proj.weight") || strstr(v->t[i].name, "out_proj.weight") ||
            strstr(v->t[i].name, "down_proj"))
            vt_fill(&v->t[i], 0);
    struct vt *embed = variant_find(v, "model.embed_tokens.weight"), *head = variant_find(v, "lm_head.weight");
    vt_fill(embed, 0);
    vt_fill(head, 0);
    for (uint32_t t = 0; t < 64; t++) {
        vt_set(embed, t * 64 + t, 1);
        vt_set(head, (t + 1) % 64 * 64 + t, 1);
    }
    vt_fill(variant_find(v, "model.norm.weight"), 0);
}

static void test_stop_ids(void **state)
{
    struct variant v;
    struct rig r;
    struct ifx_sequence *s;
    char folder[128];
    uint32_t count;
    int32_t start = 4;
    (void)state;
    make_counter(&v);
    json_object_set_new(v.config, "eos_token_id", json_integer(60));
    variant_nest(&v, "Qwen3_5MoeForConditionalGeneration");
    json_object_set_new(v.config, "eos_token_id", json_integer(61));
    json_decref(v.generation);
    v.generation = json_pack("{s:[i,i]}", "eos_token_id", 7, 99);
    save_to(&v, folder, sizeof folder, "stop");
    rig_open(&r, folder, NULL);
    const int32_t *ids = ifx_model_stop_ids(r.model, &count);
    static const int32_t want[] = {61, 60, 7, 99};
    assert_int_equal(count, 4);
    for (uint32_t i = 0; i < 4; i++) {
        bool found = false;
        for (uint32_t j = 0; j < count; j++)
            found |= ids[j] == want[i];
        if (!found)
            FAIL("stop id %d is missing", want[i]);
    }
    OK(ifx_sequence_create(r.model, &s));
    struct ifx_generate g = {.prompt = &start, .n_prompt = 1, .max_tokens = 20};
    struct ifx_generate_result result;
    ifx_sampling_greedy(&g.sampling);
    OK(ifx_generate(s, &g, &result));
    assert_int_equal(result.finish, IFX_FINISH_STOP);
    assert_int_equal(result.stop_id, 7);
    assert_int_equal(result.n_generated, 2); /* 5 and 6 */
    OK(ifx_sequence_reset(s));
    g.ignore_stop_ids = true;
    OK(ifx_generate(s, &g, &result));
    assert_int_equal(result.finish, IFX_FINISH_LENGTH);
    assert_int_equal(result.n_generated, 20);
    ifx_sequence_destroy(s);
    rig_close(&r);
    remove_folder(folder);
}

/* ---- router ---- */

struct routes {
    uint64_t rows, both, one;
    bool zero; /* all logits equal: experts 0 .. k-1 */
};

static int32_t on_router(void *ctx, uint32_t layer, uint64_t pos0, uint32_t n, uint32_t top_k, const int32_t *ids,
                         const float *weights)
{
    struct routes *c = ctx;
    (void)pos0;
    (void)weights;
    for (uint32_t t = 0; t < n; t++, ids += top_k) {
        int at3 = -1, at7 = -1;
        for (uint32_t r = 0; r < top_k; r++) {
            at3 = ids[r] == 3 ? (int)r : at3;
            at7 = ids[r] == 7 ? (int)r : at7;
            if (c->zero && ids[r] != (int32_t)r)
                FAIL("layer %u column %u: equal logits chose expert %d at rank %u", layer, t, ids[r], r);
        }
        c->rows++;
        if (at7 >= 0 && (at3 < 0 || at3 > at7))
            FAIL("layer %u column %u: expert 7 before its twin 3", layer, t);
        c->both += at3 >= 0 && at7 >= 0;
        c->one += at3 >= 0 && at7 < 0;
    }
    return IFX_OK;
}

static void route_all(const char *folder, const struct options *o, struct routes *c)
{
    static const uint32_t widths[] = {1, 8, 300};
    struct rig r;
    struct ifx_sequence *s;
    struct ifx_observer observer = {.ctx = c, .router = on_router};
    int32_t tokens[300];
    rig_open(&r, folder, o);
    OK(ifx_sequence_create(r.model, &s));
    ifx_sequence_observe(s, &observer);
    for (size_t i = 0; i < 3; i++) {
        for (uint32_t t = 0; t < widths[i]; t++)
            tokens[t] = (int32_t)(t * 37 % 512);
        OK(ifx_sequence_reset(s));
        OK(ifx_sequence_feed(s, tokens, widths[i], 0, NULL));
    }
    ifx_sequence_destroy(s);
    rig_close(&r);
}

static void test_router_ties(void **state)
{
    struct variant v;
    char folder[128];
    (void)state;
    for (uint32_t zero = 0; zero < 2; zero++) {
        variant_load(&v, golden(0, MOE));
        for (uint32_t layer = 0; layer < 8; layer++) {
            char name[128];
            snprintf(name, sizeof name, "model.layers.%u.mlp.gate.weight", layer);
            struct vt *t = variant_find(&v, name);
            memcpy(t->data + 7 * 64 * 2, t->data + 3 * 64 * 2, 64 * 2);
            if (zero)
                vt_fill(t, 0);
        }
        save_to(&v, folder, sizeof folder, "router");
        struct routes c = {.zero = zero};
        struct options o = {.device = "ref"};
        route_all(folder, &o, &c);
        for (uint32_t level = 0; level <= base_cpu_detect(); level++) {
            o = (struct options){.device = "cpu", .cpu = base_cpu_name(level)};
            route_all(folder, &o, &c);
        }
        if (!zero && (!c.both || !c.one))
            FAIL("the twins were chosen together %u times and alone %u times: the test shows nothing", (unsigned)c.both, (unsigned)c.one);
        remove_folder(folder);
    }
}

/* ---- non-finite numbers ---- */

/* Which single tokens reach expert 3 of layer 2? */
struct hits {
    bool hit;
};

static int32_t on_hit(void *ctx, uint32_t layer, uint64_t pos0, uint32_t n, uint32_t top_k, const int32_t *ids,
                      const float *weights)
{
    struct hits *h = ctx;
    (void)pos0;
    (void)weights;
    for (uint32_t i = 0; layer == 2 && i < n * top_k; i++)
        h->hit |= ids[i] == 3;
    return IFX_OK;
}

static void find_tokens(int32_t *hitting, int32_t *missing, float *missing_logits)
{
    struct rig r;
    struct ifx_sequence *s;
    struct hits h;
    struct ifx_observer observer = {.ctx = &h, .router = on_hit};
    struct options o = {.device = "cpu"};
    rig_open(&r, golden(0, MOE), &o);
    OK(ifx_sequence_create(r.model, &s));
    *hitting = *missing = -1;
    for (int32_t t = 0; t < 256 && (*hitting < 0 || *missing < 0); t++) {
        float logits[512];
        h.hit = false;
        OK(ifx_sequence_reset(s));
        ifx_sequence_observe(s, &observer);
        OK(ifx_sequence_feed(s, &t, 1, 1, logits));
        if (h.hit && *hitting < 0)
            *hitting = t;
        if (!h.hit && *missing < 0) {
            *missing = t;
            memcpy(missing_logits, logits, sizeof logits);
        }
    }
    assert_true(*hitting >= 0 && *missing >= 0);
    ifx_sequence_destroy(s);
    rig_close(&r);
}

static void test_non_finite(void **state)
{
    struct variant v;
    struct rig r;
    struct ifx_sequence *a, *b;
    char folder[128];
    int32_t hitting, missing;
    float want[512], logits[2][512];
    uint64_t at;
    (void)state;
    find_tokens(&hitting, &missing, want);
    variant_load(&v, golden(0, MOE));
    struct vt *down = variant_find(&v, "model.layers.2.mlp.experts.down_proj");
    for (uint64_t i = 0; i < 64 * 32; i++)
        vt_set(down, 3 * 64 * 32 + i, 3e38f); /* finite, but its products are not */
    save_to(&v, folder, sizeof folder, "nan");
    struct options o = {.device = "cpu", .sequences = 2};
    rig_open(&r, folder, &o);
    OK(ifx_sequence_create(r.model, &a));
    OK(ifx_sequence_create(r.model, &b));
    for (int round = 0; round < 3; round++) {
        OK(ifx_sequence_reset(a));
        OK(ifx_sequence_feed(a, &missing, 1, 1, logits[0]));
        if (largest_difference(logits[0], want, 512, &at) != 0)
            FAIL("round %d: logit %u is %g, expected %g", round, (unsigned)at, logits[0][at], want[at]);
        OK(ifx_sequence_reset(a));
        assert_int_equal(ifx_sequence_feed(a, &hitting, 1, 1, logits[0]), IFX_ENONFINITE);
        if (!strstr(base_error_text(), "layer 2"))
            FAIL("the error does not name layer 2: %s", base_error_text());
        assert_int_equal(ifx_sequence_feed(a, &missing, 1, 1, logits[0]), IFX_EINVAL); /* until it is reset */
        /* in a batch only the broken sequence ends */
        OK(ifx_sequence_reset(a));
        OK(ifx_sequence_reset(b));
        struct ifx_batch_item items[2] = {{.sequence = a, .tokens = &hitting, .n = 1, .n_logits = 1, .logits = logits[0]},
                                          {.sequence = b, .tokens = &missing, .n = 1, .n_logits = 1, .logits = logits[1]}};
        OK(ifx_batch_feed(items, 2));
        assert_int_equal(items[0].status, IFX_ENONFINITE);
        assert_int_equal(items[1].status, IFX_OK);
        if (largest_difference(logits[1], want, 512, &at) != 0)
            FAIL("beside a broken sequence: logit %u is %g, expected %g", (unsigned)at, logits[1][at], want[at]);
    }
    struct ifx_generate g = {.prompt = &hitting, .n_prompt = 1, .max_tokens = 4};
    struct ifx_generate_result result;
    ifx_sampling_greedy(&g.sampling);
    OK(ifx_sequence_reset(a));
    assert_int_equal(ifx_generate(a, &g, &result), IFX_ENONFINITE);
    assert_int_equal(result.n_generated, 0);
    ifx_sequence_destroy(a);
    ifx_sequence_destroy(b);
    rig_close(&r);
    remove_folder(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefixes),       cmocka_unit_test(test_needed_fields), cmocka_unit_test(test_unsupported_fields),
        cmocka_unit_test(test_tied_head),      cmocka_unit_test(test_expert_layouts), cmocka_unit_test(test_stored_types),
        cmocka_unit_test(test_scales),
        cmocka_unit_test(test_stop_ids),       cmocka_unit_test(test_router_ties),    cmocka_unit_test(test_non_finite),
    };
    base_log_set_level(IFX_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
