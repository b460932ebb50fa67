/* SPDX-License-Identifier: Apache-2.0
 *
 * test_tables.c - the n-gram table and what goes with it: row ids, checkpoints and containers, FP8 rows, caches of any size, files that are
 * not what they should be, failing reads; selections under KV formats; state of the family in copies and kept prefixes.
 */
#include "harness.h"
#include "ngram.h"
#include "row_reader.h"
#include "variant.h"

#include <infernix/numerics.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECKPOINT "checkpoints/qwen4_exp-tiny"
#define TABLE      "model.layers.1.ple.ple_embedding.ngram_embedding"
enum { N_PROMPT = 96, TABLE_ROWS = 896, TABLE_COLS = 16 };

static int32_t *prompt_ids(void)
{
    struct st_file *f;
    uint64_t n;
    OK(st_open(golden(3, "reference/qwen4_exp-tiny.safetensors"), &f));
    int32_t *ids = golden_ints(f, "len96.input_ids", &n);
    assert_non_null(ids);
    assert_int_equal(n, N_PROMPT);
    st_close(f);
    return ids;
}

/* Logits of every token of the prompt. */
static float *logits_of(const char *path, const struct options *o, uint64_t *count)
{
    struct rig r;
    struct ifx_sequence *s;
    int32_t *ids = prompt_ids();
    rig_open(&r, path, o);
    uint32_t vocab = r.info.desc->vocab;
    *count = (uint64_t)N_PROMPT * vocab;
    float *logits = base_calloc(*count, sizeof *logits);
    assert_non_null(logits);
    OK(ifx_sequence_create(r.model, &s));
    feed_cut(s, ids, N_PROMPT, 0, vocab, logits);
    ifx_sequence_destroy(s);
    rig_close(&r);
    base_free(ids);
    return logits;
}

static void expect_logits(const char *path, const struct options *o, const float *want, uint64_t count, const char *what)
{
    uint64_t n, at;
    float *got = logits_of(path, o, &n);
    assert_int_equal(n, count);
    if (largest_difference(got, want, n, &at) != 0)
        FAIL("%s: logit %llu is %.9g, expected %.9g", what, (unsigned long long)at, got[at], want[at]);
    base_free(got);
}

static void remove_folder(const char *folder)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command))
        FAIL("%s", command);
}

/* ---- row ids ---- */

static int64_t one(struct st_file *f, const char *name, const char *what)
{
    char key[64];
    uint64_t n;
    snprintf(key, sizeof key, "%s.%s", name, what);
    int32_t *v = golden_ints(f, key, &n);
    assert_non_null(v);
    int64_t value = v[0];
    base_free(v);
    return value;
}

static const int64_t *longs(struct st_file *f, const char *name, const char *what, uint64_t *count)
{
    char key[64];
    struct ifx_tensor t;
    snprintf(key, sizeof key, "%s.%s", name, what);
    OK(st_find(f, key, &t));
    *count = t.data_bytes / sizeof(int64_t);
    int64_t *copy = base_alloc(t.data_bytes, 64);
    assert_non_null(copy);
    memcpy(copy, t.data, t.data_bytes);
    return copy;
}

static void same_longs(struct st_file *f, const char *name, const char *what, const int64_t *got, uint64_t n)
{
    uint64_t count;
    const int64_t *want = longs(f, name, what, &count);
    assert_int_equal(count, n);
    for (uint64_t i = 0; i < n; i++)
        if (got[i] != want[i])
            FAIL("golden %s.%s[%u]: %lld, expected %lld", name, what, (unsigned)i, (long long)got[i], (long long)want[i]);
    base_free((void *)(uintptr_t)want);
}

/* Whole, and in pieces that see only as much history as a sequence keeps. */
static void row_ids(const char *name)
{
    struct st_file *f;
    uint64_t n;
    OK(st_open(golden(0, "ops.safetensors"), &f));
    struct ngram_rule rule = {.ngram_size = (uint32_t)one(f, name, "ngram_size"), .vocab = one(f, name, "vocab_size"),
                              .heads_per_ngram = (uint32_t)one(f, name, "heads_per_ngram"), .base = one(f, name, "base"),
                              .seed = one(f, name, "seed"), .divisible_by = 1, .eos = (int32_t)one(f, name, "eos")};
    struct ngram g;
    char key[64];
    ngram_make(&rule, (uint32_t)one(f, name, "ple_index"), NULL, &g);
    same_longs(f, name, "multipliers", g.multipliers, g.size);
    same_longs(f, name, "head_vocab_sizes", g.sizes, g.heads);
    same_longs(f, name, "head_offsets", g.offsets, g.heads);
    snprintf(key, sizeof key, "%s.tokens", name);
    int32_t *tokens = golden_ints(f, key, &n);
    int64_t *ids = base_calloc(n * g.heads, sizeof *ids);
    assert_true(tokens && ids);
    ngram_ids(&g, tokens, 0, (uint32_t)n, ids);
    same_longs(f, name, "ids", ids, n * g.heads);
    for (uint64_t at = 0, piece = 1; at < n; at += piece, piece = piece % 5 + 1) {
        uint64_t take = n - at < piece ? n - at : piece, history = at < g.size - 1 ? at : g.size - 1;
        memset(ids + at * g.heads, 0, take * g.heads * sizeof *ids);
        ngram_ids(&g, tokens + at, (uint32_t)history, (uint32_t)take, ids + at * g.heads);
    }
    same_longs(f, name, "ids", ids, n * g.heads);
    base_free(tokens);
    base_free(ids);
    st_close(f);
}

static void test_row_ids(void **state)
{
    (void)state;
    row_ids("ngram");
    row_ids("ngram_published");
}

/* A second module's primes go on where the first's end. */
static void test_modules(void **state)
{
    struct ngram_rule rule = {.ngram_size = 3, .heads_per_ngram = 2, .vocab = 512, .base = 200, .seed = 1234, .divisible_by = 128, .eos = 5};
    struct ngram a, b;
    (void)state;
    ngram_make(&rule, 0, NULL, &a);
    ngram_make(&rule, 1, &a, &b);
    assert_int_equal(a.sizes[3], 229);
    assert_int_equal(b.sizes[0], 233);
    assert_int_equal(b.offsets[1], 233);
    assert_int_equal(a.rows, 896);
    assert_int_equal(b.rows % 128, 0);
    assert_true(a.multipliers[0] != b.multipliers[0]);
}

/* ---- caches ---- */

/* The result does not depend on the cache; what was read does. */
static void test_cache_sizes(void **state)
{
    static const uint64_t sizes[] = {IFX_NO_TABLE_CACHE, 1000, 5000, 0};
    uint64_t count, before = UINT64_MAX;
    float *want = logits_of(golden(0, CHECKPOINT), NULL, &count);
    int32_t *ids = prompt_ids();
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct options o = {.tables = sizes[i], .chunk = 7};
        struct ifx_table_stats stats;
        struct rig r;
        uint64_t at;
        float *got = base_calloc(count, sizeof *got);
        rig_open(&r, golden(0, CHECKPOINT), &o);
        for (int round = 0; round < 2; round++) {
            struct ifx_sequence *s;
            OK(ifx_sequence_create(r.model, &s));
            feed_cut(s, ids, N_PROMPT, 0, r.info.desc->vocab, got);
            ifx_sequence_destroy(s);
            if (!(largest_difference(got, want, count, &at) <= 5e-4))
                FAIL("cache of %llu bytes, round %d: logit %llu is %g, expected %g", (unsigned long long)sizes[i], round,
                     (unsigned long long)at, got[at], want[at]);
        }
        ifx_table_stats(r.model, &stats);
        assert_int_equal(stats.rows, 2 * N_PROMPT * 4);
        assert_true(stats.unique_rows <= stats.rows && stats.read_rows <= stats.unique_rows);
        if (stats.read_rows > before)
            FAIL("cache of %llu bytes: %llu rows read, more than the %llu of a smaller one", (unsigned long long)sizes[i],
                 (unsigned long long)stats.read_rows, (unsigned long long)before);
        if (i == 0)
            assert_int_equal(stats.read_rows, stats.unique_rows);
        before = stats.read_rows;
        rig_close(&r);
        base_free(got);
    }
    if (before > N_PROMPT * 4)
        FAIL("a cache that holds the whole table: %llu rows read of a prompt with %u", (unsigned long long)before, N_PROMPT * 4);
    base_free(want);
    base_free(ids);
}

/* ---- readers ---- */

/* Rows of all shards, many more than a ring holds, by both kinds of reader; then rows that are past the end of the file. */
static void read_with(struct artifact *a, const struct ifx_row_table *desc, bool uring)
{
    enum { MANY = 3000 };
    struct artifact_table *t;
    struct row_reader *r;
    double waited = 0;
    OK(artifact_table_open(a, desc, &t));
    OK(row_reader_create(uring, MANY, &r));
    uint32_t bytes = artifact_table_row_bytes(t);
    uint8_t *got = base_calloc(MANY, bytes), *want = base_calloc(1, bytes);
    for (uint32_t n = 1; n <= MANY; n = n * 3 + 1) {
        memset(got, 0, (uint64_t)MANY * bytes);
        for (uint32_t i = 0; i < n; i++)
            row_reader_list(r)[i] = (struct row_read){t, (i * 37ull + n) % desc->rows, got + (uint64_t)i * bytes};
        row_reader_begin(r, n);
        OK(row_reader_wait(r, &waited));
        for (uint32_t i = 0; i < n; i++) {
            OK(artifact_table_read(t, (i * 37ull + n) % desc->rows, 1, want));
            if (memcmp(want, got + (uint64_t)i * bytes, bytes) != 0)
                FAIL("%s: read %u of %u brings another row", row_reader_is_uring(r) ? "io_uring" : "threads", i, n);
        }
    }
    OK(row_reader_wait(r, &waited)); /* nothing under way */
    row_reader_destroy(r);
    artifact_table_close(t);
    base_free(got);
    base_free(want);
}

static void test_readers(void **state)
{
    struct rig r;
    struct artifact *a;
    (void)state;
    rig_open(&r, golden(0, CHECKPOINT), NULL);
    OK(artifact_open(golden(0, CHECKPOINT), &a));
    read_with(a, &r.info.desc->tables[0], false);
    read_with(a, &r.info.desc->tables[0], true);
    artifact_close(a);
    rig_close(&r);
}

/* ---- containers ---- */

static void to_container(const char *folder, const char *file)
{
    struct rig r;
    struct artifact *a;
    const struct registry_plugin *bank;
    void *open;
    rig_open(&r, folder, NULL);
    OK(artifact_open(folder, &a));
    OK(registry_find(ifx_context_registry(r.ctx), IFX_KIND_EXPERT, "bf16", &bank));
    struct ifx_expert_shape shape = {.struct_size = sizeof shape, .hidden = r.info.desc->moe[0].hidden, .inter = r.info.desc->moe[0].inter};
    OK(bank->ops.expert->open(registry_host(ifx_context_registry(r.ctx)), NULL, &shape, &open));
    struct artifact_convert c = {.out_path = file, .force = true, .desc = r.info.desc, .bank_ops = bank->ops.expert, .bank = open,
                                 .pool = ifx_context_pool(r.ctx)};
    OK(artifact_convert(a, &c));
    bank->ops.expert->close(open);
    artifact_close(a);
    rig_close(&r);
}

static void test_container(void **state)
{
    char folder[128], file[160], again[160];
    uint64_t count;
    float *want = logits_of(golden(0, CHECKPOINT), NULL, &count);
    struct artifact *a;
    (void)state;
    temp_folder(folder, sizeof folder, "tables");
    snprintf(file, sizeof file, "%s/m.infernix", folder);
    snprintf(again, sizeof again, "%s/n.infernix", folder);
    to_container(golden(0, CHECKPOINT), file);
    expect_logits(file, NULL, want, count, "container");
    to_container(file, again);
    expect_logits(again, NULL, want, count, "container made from a container");
    OK(artifact_open(again, &a));
    OK(artifact_verify(a, NULL, NULL, NULL));
    artifact_close(a);
    base_free(want);
    remove_folder(folder);
}

/* The end of the file goes while the model is open: what needs those rows fails with a message, and works again when they are back. */
static void test_failing_reads(void **state)
{
    char folder[128], file[160], copy[160], command[400];
    struct rig r;
    struct ifx_sequence *s;
    struct stat st;
    struct options o = {.tables = IFX_NO_TABLE_CACHE, .device = "cpu"};
    int32_t *ids = prompt_ids();
    (void)state;
    temp_folder(folder, sizeof folder, "tables");
    snprintf(file, sizeof file, "%s/m.infernix", folder);
    snprintf(copy, sizeof copy, "%s/copy", folder);
    to_container(golden(0, CHECKPOINT), file);
    snprintf(command, sizeof command, "cp '%s' '%s'", file, copy);
    assert_int_equal(system(command), 0);
    assert_int_equal(stat(file, &st), 0);
    rig_open(&r, file, &o);
    float *logits = base_calloc(r.info.desc->vocab, sizeof *logits), *later = base_calloc(r.info.desc->vocab, sizeof *later);
    OK(ifx_sequence_create(r.model, &s));
    OK(ifx_sequence_feed(s, ids, N_PROMPT, 1, logits));
    OK(ifx_sequence_reset(s));
    assert_int_equal(truncate(file, st.st_size - 24 * 1024), 0);
    int32_t status = ifx_sequence_feed(s, ids, N_PROMPT, 1, later);
    if (status != IFX_EIO || !strstr(base_error_text(), "m.infernix") || !strstr(base_error_text(), "ngram_embedding"))
        FAIL("reading rows past the end of the file: status %d: %s", status, base_error_text());
    if (!ifx_sequence_feed(s, ids, 1, 1, later))
        FAIL("a sequence that lost a step goes on");
    snprintf(command, sizeof command, "cat '%s' > '%s'", copy, file);
    assert_int_equal(system(command), 0);
    OK(ifx_sequence_reset(s));
    OK(ifx_sequence_feed(s, ids, N_PROMPT, 1, later));
    assert_memory_equal(logits, later, r.info.desc->vocab * sizeof *logits);
    ifx_sequence_destroy(s);
    rig_close(&r);
    base_free(logits);
    base_free(later);
    base_free(ids);
    remove_folder(folder);
}

/* ---- stored forms ---- */

/* One tensor instead of shards, of FP8 codes and a scale or of the bf16 values that they stand for. */
static void store_table(struct variant *v, bool fp8)
{
    static const float scale = 0.0625f;
    uint8_t codes[TABLE_ROWS * TABLE_COLS];
    uint16_t values[TABLE_ROWS * TABLE_COLS];
    uint64_t dims[2] = {TABLE_ROWS, TABLE_COLS}, single[1] = {1};
    uint32_t seed = 7;
    for (uint32_t i = 0; i < TABLE_ROWS * TABLE_COLS; i++) {
        seed = seed * 1664525u + 1013904223u;
        codes[i] = (uint8_t)(seed >> 24);
        if ((codes[i] & 0x7f) == 0x7f) /* NaN */
            codes[i] ^= 1;
        values[i] = ifx_f32_to_bf16(ifx_e4m3_to_f32(codes[i]) * scale);
    }
    for (int i = 0; i < 4; i++) {
        char name[160];
        snprintf(name, sizeof name, TABLE ".shard_%d.weight", i);
        variant_drop(v, name);
    }
    if (!fp8) {
        variant_add(v, TABLE ".weight", "BF16", 2, dims, values, sizeof values);
        return;
    }
    variant_add(v, TABLE ".weight", "F8_E4M3", 2, dims, codes, sizeof codes);
    variant_add(v, TABLE ".weight_scale", "F32", 1, single, &scale, sizeof scale);
}

static void test_fp8_rows(void **state)
{
    char folder[128], file[160];
    uint64_t count;
    struct variant v;
    (void)state;
    temp_folder(folder, sizeof folder, "tables");
    variant_load(&v, golden(0, CHECKPOINT));
    store_table(&v, false);
    variant_save(&v, folder);
    variant_free(&v);
    float *want = logits_of(folder, NULL, &count);
    variant_load(&v, golden(0, CHECKPOINT));
    store_table(&v, true);
    variant_save(&v, folder);
    variant_free(&v);
    expect_logits(folder, NULL, want, count, "FP8 rows");
    snprintf(file, sizeof file, "%s/m.infernix", folder);
    to_container(folder, file);
    expect_logits(file, NULL, want, count, "FP8 rows in a container");
    base_free(want);
    remove_folder(folder);
}

/* The multimodal layout: names and nesting. */
static void test_multimodal(void **state)
{
    char folder[128];
    uint64_t count;
    struct variant v;
    float *want = logits_of(golden(0, CHECKPOINT), NULL, &count);
    (void)state;
    temp_folder(folder, sizeof folder, "tables");
    variant_load(&v, golden(0, CHECKPOINT));
    variant_rename(&v, "model.language_model.", "lm_head.weight");
    variant_nest(&v, "Qwen4ExpForConditionalGeneration");
    variant_save(&v, folder);
    variant_free(&v);
    expect_logits(folder, NULL, want, count, "multimodal layout");
    base_free(want);
    remove_folder(folder);
}

/* ---- what is refused ---- */

static void expect_refused(struct variant *v, const char *needle)
{
    char folder[128];
    temp_folder(folder, sizeof folder, "refused");
    variant_save(v, folder);
    variant_free(v);
    rig_refused(folder, NULL, needle);
    remove_folder(folder);
}

static void test_broken_tables(void **state)
{
    struct variant v;
    struct vt *t;
    (void)state;
    variant_load(&v, golden(0, CHECKPOINT));
    variant_drop(&v, TABLE ".shard_2.weight");
    expect_refused(&v, "ngram_embedding");
    variant_load(&v, golden(0, CHECKPOINT));
    t = variant_find(&v, TABLE ".shard_1.weight");
    t->dims[0] = 448;
    t->dims[1] = 8;
    expect_refused(&v, "shard_1");
    variant_load(&v, golden(0, CHECKPOINT));
    t = variant_find(&v, TABLE ".shard_3.weight");
    strcpy(t->dtype, "F16");
    expect_refused(&v, "shard_3");
    variant_load(&v, golden(0, CHECKPOINT));
    t = variant_find(&v, "model.layers.1.ple.ple_embedding.layer_multipliers");
    t->data[3] ^= 1;
    expect_refused(&v, "layer_multipliers");
    variant_load(&v, golden(0, CHECKPOINT));
    json_object_set_new(v.config, "ngram_vocab_size_base", json_integer(300));
    expect_refused(&v, "ngram_heads_vocab_sizes");
    variant_load(&v, golden(0, CHECKPOINT));
    store_table(&v, true);
    variant_drop(&v, TABLE ".weight_scale");
    expect_refused(&v, "weight_scale");
    variant_load(&v, golden(0, CHECKPOINT));
    variant_drop(&v, "model.layers.1.ple.ple_embedding.layer_multipliers"); /* it only repeats the config */
    variant_drop(&v, "model.layers.1.ple.norm_query.weight");
    expect_refused(&v, "norm_query");
}

static void test_config_rules(void **state)
{
    static const struct {
        const char *key, *value, *needle; /* value NULL: absent; needle NULL: the key */
    } rules[] = {
        {"hc_count", NULL, NULL}, {"hc_count", "9", NULL}, {"hc_count", "0", NULL}, {"hc_lowrank", NULL, NULL},
        {"indexer_n_heads", NULL, NULL}, {"indexer_head_dim", "4", NULL}, {"indexer_head_dim", "\"x\"", NULL},
        {"indexer_budget", "18", NULL}, {"indexer_budget", NULL, NULL}, {"indexer_compress_ratio", "3", NULL},
        {"indexer_kv_heads", "2", NULL}, {"ple_layer_ids", "[6]", NULL}, {"ple_layer_ids", "[0]", NULL},
        {"ple_layer_ids", "[2, 2]", NULL}, {"ple_layer_ids", "[\"2\"]", NULL}, {"ngram_size", "1", NULL}, {"ngram_size", "9", NULL},
        {"heads_per_ngram", "33", NULL}, {"ngram_vocab_size_base", NULL, NULL}, {"ple_embed_dim", "66", NULL},
        {"ple_conv_kernel_size", "9", NULL}, {"eos_token_id", NULL, NULL}, {"eos_token_id", "[512]", NULL},
        {"output_gate_type", "\"tanh\"", NULL}, {"output_gate_type", NULL, NULL}, {"norm_topk_prob", "\"yes\"", NULL},
        {"num_experts_per_tok", "17", NULL}, {"hidden_act", "\"gelu\"", NULL}, {"attention_bias", "true", NULL},
        {"layer_types", "[\"linear_attention\"]", NULL}, {"seed", "-1", NULL},
        {"make_ngram_vocab_size_divisible_by", "0", NULL}, {"make_ngram_vocab_size_divisible_by", "1", "ngram_embedding"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        struct variant v;
        variant_load(&v, golden(0, CHECKPOINT));
        if (rules[i].value)
            json_object_set_new(v.config, rules[i].key, json_loads(rules[i].value, JSON_DECODE_ANY, NULL));
        else
            json_object_del(v.config, rules[i].key);
        expect_refused(&v, rules[i].needle ? rules[i].needle : rules[i].key);
    }
}

/* ---- selections and KV formats ---- */

struct selections {
    uint32_t most;
    int32_t *rows; /* [2, N_PROMPT, most] */
};

static int32_t on_selection(void *ctx, uint32_t kv_layer, uint64_t pos0, uint32_t n, const int32_t *rows, const uint32_t *n_rows,
                            uint64_t ld_rows)
{
    struct selections *s = ctx;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t r = 0; r < s->most; r++)
            s->rows[(kv_layer * N_PROMPT + pos0 + i) * s->most + r] = r < n_rows[i] ? rows[i * ld_rows + r] : -1;
    return IFX_OK;
}

static struct selections selections_of(const char *device, const char *kv)
{
    struct options o = {.device = device, .kv = kv};
    struct selections out;
    struct ifx_observer observer = {.ctx = &out, .selection = on_selection};
    struct ifx_sequence *s;
    struct rig r;
    int32_t *ids = prompt_ids();
    rig_open(&r, golden(0, CHECKPOINT), &o);
    assert_int_equal(r.info.desc->n_kv_layers, 2);
    out.most = r.info.desc->index_rows;
    out.rows = base_calloc(2ull * N_PROMPT * out.most, sizeof *out.rows);
    assert_non_null(out.rows);
    OK(ifx_sequence_create(r.model, &s));
    ifx_sequence_observe(s, &observer);
    OK(ifx_sequence_feed(s, ids, N_PROMPT, 0, NULL));
    ifx_sequence_destroy(s);
    rig_close(&r);
    base_free(ids);
    return out;
}

/* Index keys do not go through the KV format: what comes into the first sparse layer is the same bits, and so is what it selects; the
 * second sees K and V that were rounded, and differs at near ties only. */
static void test_formats_select_alike(void **state)
{
    static const char *const formats[] = {"int8", "f32"};
    struct selections want = selections_of("cpu", "bf16");
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        struct selections got = selections_of("cpu", formats[f]);
        uint32_t other = 0;
        for (uint32_t i = 0; i < 2 * N_PROMPT; i++) {
            bool same = memcmp(want.rows + (uint64_t)i * want.most, got.rows + (uint64_t)i * want.most, want.most * sizeof(int32_t)) == 0;
            if (!same && i < N_PROMPT)
                FAIL("KV %s: position %u sees other tokens than with bf16", formats[f], i);
            other += !same;
        }
        if (other > N_PROMPT / 20)
            FAIL("KV %s: the second layer sees other tokens at %u of %u positions", formats[f], other, N_PROMPT);
        base_free(got.rows);
    }
    base_free(want.rows);
}

/* With no more visible tokens than the budget, all are seen. */
static void test_dense_below_budget(void **state)
{
    struct selections s = selections_of("ref", NULL);
    (void)state;
    for (uint32_t l = 0; l < 2; l++)
        for (uint32_t i = 0; i < s.most; i++)
            for (uint32_t r = 0; r < s.most; r++)
                assert_int_equal(s.rows[(l * N_PROMPT + i) * s.most + r], r <= i ? (int32_t)r : -1);
    base_free(s.rows);
}

/* ---- state ---- */

/* A copy at any column, and a kept beginning, go on as the sequence itself does. */
static void test_state_travels(void **state)
{
    static const uint32_t cuts[] = {1, 2, 3, 5, 33, 64, 70};
    struct options o = {.prefix = 64u << 20, .sequences = 3, .device = "cpu"};
    struct rig r;
    int32_t *ids = prompt_ids();
    (void)state;
    rig_open(&r, golden(0, CHECKPOINT), &o);
    uint32_t vocab = r.info.desc->vocab;
    float *want = base_calloc(vocab, sizeof *want), *got = base_calloc(vocab, sizeof *got);
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        struct ifx_sequence *s, *copy, *begun;
        uint64_t cached;
        OK(ifx_sequence_create(r.model, &s));
        OK(ifx_sequence_feed(s, ids, cuts[i], 1, want));
        OK(ifx_sequence_publish(s));
        OK(ifx_sequence_copy(s, &copy));
        OK(ifx_sequence_create(r.model, &begun));
        OK(ifx_sequence_attach(begun, ids, cuts[i] + 8, &cached));
        assert_int_equal(cached, cuts[i]);
        for (uint32_t t = cuts[i]; t < cuts[i] + 8; t++) {
            OK(ifx_sequence_feed(s, &ids[t], 1, 1, want));
            OK(ifx_sequence_feed(copy, &ids[t], 1, 1, got));
            assert_memory_equal(want, got, vocab * sizeof *want);
            OK(ifx_sequence_feed(begun, &ids[t], 1, 1, got));
            assert_memory_equal(want, got, vocab * sizeof *want);
        }
        ifx_sequence_destroy(s);
        ifx_sequence_destroy(copy);
        ifx_sequence_destroy(begun);
    }
    base_free(want);
    base_free(got);
    base_free(ids);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_ids),      cmocka_unit_test(test_modules),       cmocka_unit_test(test_cache_sizes),
        cmocka_unit_test(test_readers),
        cmocka_unit_test(test_container),    cmocka_unit_test(test_failing_reads), cmocka_unit_test(test_fp8_rows),
        cmocka_unit_test(test_multimodal),   cmocka_unit_test(test_broken_tables), cmocka_unit_test(test_config_rules),
        cmocka_unit_test(test_formats_select_alike), cmocka_unit_test(test_dense_below_budget), cmocka_unit_test(test_state_travels),
    };
    base_log_set_level(IFX_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
