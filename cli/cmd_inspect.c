/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_inspect.c - `infernix inspect`: what a model is; --check: everything that is wrong with it, in one list.
 *
 * One JSON object is built and either printed as such or turned into text, so that both always say the same.
 */
#include "config.h"
#include "model_on_disk.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define PAGE_TOKENS 64u

/* ---- what is stored ---- */

/* Adds count and bytes to the object `key` of `to`. */
static void add_to(json_t *to, const char *key, uint64_t count, uint64_t bytes)
{
    json_t *o = json_object_get(to, key);
    if (o == NULL) {
        o = json_pack("{s:I, s:I}", "tensors", (json_int_t)0, "bytes", (json_int_t)0);
        json_object_set_new(to, key, o);
    }
    count += (uint64_t)json_integer_value(json_object_get(o, "tensors"));
    bytes += (uint64_t)json_integer_value(json_object_get(o, "bytes"));
    json_object_set_new(o, "tensors", json_integer((json_int_t)count));
    json_object_set_new(o, "bytes", json_integer((json_int_t)bytes));
}

static bool declared(const struct ifx_model_desc *d, const char *name)
{
    size_t n = strlen(name);
    for (uint32_t i = 0; i < d->n_moe; i++) {
        size_t m = strlen(d->moe[i].prefix);
        if (n > m && strncmp(name, d->moe[i].prefix, m) == 0 && name[m] == '.')
            return true;
    }
    for (uint32_t i = 0; i < d->n_params; i++) { /* its scales belong to it */
        size_t m = strlen(d->params[i].name);
        if (n >= m && strncmp(name, d->params[i].name, m) == 0 && (n == m || strncmp(name + m, "_scale", 6) == 0))
            return true;
        if (m > 7 && n > m && strncmp(name, d->params[i].name, m - 6) == 0 && strcmp(name + m - 6, "input_scale") == 0)
            return true;
    }
    for (uint32_t i = 0; i < d->n_tables; i++) { /* its parts and its scale */
        size_t m = strlen(d->tables[i].name);
        if (n > m && strncmp(name, d->tables[i].name, m) == 0 && name[m] == '.')
            return true;
    }
    for (uint32_t i = 0; i < d->n_ints; i++)
        if (strcmp(name, d->ints[i].name) == 0)
            return true;
    return false;
}

static const char *class_of(const char *name)
{
    if (strstr(name, ".experts.") != NULL)
        return "experts";
    if (strstr(name, ".ngram_embedding.") != NULL)
        return "row tables";
    if (strncmp(name, "embed_tokens.", 13) == 0)
        return "embedding";
    if (strncmp(name, "lm_head.", 8) == 0)
        return "head";
    if (strstr(name, "shared_expert") != NULL)
        return "shared experts";
    if (strstr(name, "linear_attn.") != NULL)
        return "linear attention";
    if (strstr(name, "self_attn.") != NULL)
        return "attention";
    if (strstr(name, ".mlp.") != NULL)
        return strstr(name, ".mlp.gate.") ? "router" : "feed forward";
    return "norms and others";
}

static const char *ignored_class(const struct artifact_entry *e)
{
    return strncmp(e->stored_name, "mtp.", 4) == 0 || strstr(e->stored_name, ".mtp.") ? "mtp (draft layers)"
                                                                                     : "visual (image tower)";
}

static json_t *tensor_json(const struct artifact_entry *e, const char *format)
{
    json_t *shape = json_array();
    for (uint32_t i = 0; i < e->n_dims; i++)
        json_array_append_new(shape, json_integer((json_int_t)e->dims[i]));
    return json_pack("{s:s, s:s?, s:s, s:s, s:o, s:I, s:s, s:I}", "name", e->stored_name, "logical", e->logical_name,
                     "dtype", e->dtype_text, "format", format, "shape", shape, "bytes", (json_int_t)e->bytes, "file",
                     e->file, "offset", (json_int_t)e->offset);
}

static void add_entries(json_t *out, const struct model_on_disk *m, bool list)
{
    json_t *formats = json_object(), *classes = json_object(), *ignored = json_object(), *tensors = json_array();
    for (uint64_t i = 0; i < artifact_entry_count(m->artifact); i++) {
        const struct artifact_entry *e = artifact_entry_at(m->artifact, i);
        bool scale;
        const char *format = artifact_entry_format(m->artifact, i, &scale);
        if (list)
            json_array_append_new(tensors, tensor_json(e, format));
        if (e->logical_name == NULL)
            add_to(ignored, ignored_class(e), 1, e->bytes);
        else if (m->desc != NULL && !declared(m->desc, e->logical_name))
            add_to(ignored, e->dtype ? "not of this model" : "not of this model, unknown type", 1, e->bytes);
        else {
            add_to(formats, format, scale ? 0 : 1, e->bytes + e->scale_bytes);
            add_to(classes, class_of(e->logical_name), scale ? 0 : 1, e->bytes + e->scale_bytes);
        }
    }
    struct artifact_records r;
    for (uint32_t i = 0; artifact_records_at(m->artifact, i, &r) == IFX_OK; i++) {
        char name[96];
        snprintf(name, sizeof name, "%s records", r.format);
        add_to(formats, name, r.experts, r.experts * r.record_bytes);
        add_to(classes, "experts", r.experts, r.experts * r.record_bytes);
    }
    json_object_set_new(out, "formats", formats);
    json_object_set_new(out, "classes", classes);
    json_object_set_new(out, "ignored", ignored);
    if (list)
        json_object_set(out, "tensors", tensors);
    json_decref(tensors);
}

/* ---- what it needs ---- */

static json_t *policy_json(const struct ifx_expert_ops *ops)
{
    const struct ifx_assist_policy *p = registry_policy(ops);
    json_t *ramp = json_array();
    for (uint32_t i = 0; i < p->n_points; i++)
        json_array_append_new(ramp, json_pack("[I,I]", (json_int_t)p->points[i].columns, (json_int_t)p->points[i].share));
    return json_pack("{s:s, s:I, s:o, s:b}", "bank", ops->format, "max_columns", (json_int_t)p->max_columns, "ramp", ramp,
                     "registered", ops->policy != NULL);
}

static uint64_t kv_bytes_token(struct registry *r, const struct ifx_model_desc *d, const char *format)
{
    const struct registry_plugin *p;
    struct ifx_kv_shape shape = {.struct_size = sizeof shape, .head_dim = d->head_dim, .n_kv_heads = d->n_kv_heads,
                                 .page_tokens = PAGE_TOKENS};
    if (d->n_kv_layers == 0 || registry_find(r, IFX_KIND_KV, format, &p) != IFX_OK)
        return 0;
    return p->ops.kv->page_bytes(&shape) / PAGE_TOKENS * d->n_kv_layers;
}

static void add_geometry(json_t *out, const struct model_on_disk *m, struct registry *r)
{
    static const char *const kv_formats[] = {"bf16", "int8", "f32", NULL};
    const struct ifx_model_desc *d = m->desc;
    json_t *kv = json_object();
    for (int i = 0; kv_formats[i] != NULL; i++) {
        uint64_t bytes = kv_bytes_token(r, d, kv_formats[i]);
        if (bytes > 0)
            json_object_set_new(kv, kv_formats[i], json_integer((json_int_t)bytes));
    }
    json_object_set_new(out, "family", json_string(m->family_plugin->name));
    json_object_set_new(out, "geometry",
                        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "layers", (json_int_t)d->n_layers,
                                  "attention_layers", (json_int_t)d->n_kv_layers, "hidden", (json_int_t)d->hidden, "vocab",
                                  (json_int_t)d->vocab, "q_heads", (json_int_t)d->n_q_heads, "kv_heads",
                                  (json_int_t)d->n_kv_heads, "head_dim", (json_int_t)d->head_dim, "max_positions",
                                  (json_int_t)d->max_positions));
    json_object_set_new(out, "kv_bytes_per_token", kv);
    json_object_set_new(out, "state_bytes_per_sequence", json_integer((json_int_t)d->state_bytes));
}

static void add_experts(json_t *out, const struct model_on_disk *m, struct registry *r, const char *format)
{
    const struct registry_plugin *p;
    const struct ifx_moe_layer *l = m->desc->n_moe ? &m->desc->moe[0] : NULL;
    if (l == NULL || format == NULL)
        return;
    json_t *e = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "format", format, "moe_layers", (json_int_t)m->desc->n_moe,
                          "per_layer", (json_int_t)l->experts, "top_k", (json_int_t)l->top_k, "width",
                          (json_int_t)l->inter, "hidden", (json_int_t)l->hidden);
    if (registry_find(r, IFX_KIND_EXPERT, format, &p) == IFX_OK) {
        struct ifx_expert_shape shape = {.struct_size = sizeof shape, .hidden = l->hidden, .inter = l->inter};
        uint64_t bytes = p->ops.expert->record_bytes(&shape);
        json_object_set_new(e, "record_bytes", json_integer((json_int_t)bytes));
        json_object_set_new(out, "policy", policy_json(p->ops.expert));
    } else {
        json_object_set_new(e, "bank", json_string(base_error_text()));
    }
    json_object_set_new(out, "experts", e);
}

/* ---- text ---- */

static void print_table(const json_t *out, const char *key, const char *title)
{
    const char *name;
    json_t *v, *table = json_object_get(out, key);
    if (json_object_size(table) == 0)
        return;
    printf("%s\n", title);
    json_object_foreach(table, name, v) {
        char bytes[32];
        text_bytes(bytes, (uint64_t)json_integer_value(json_object_get(v, "bytes")));
        printf("  %-28s %8" JSON_INTEGER_FORMAT "  %12s\n", name, json_integer_value(json_object_get(v, "tensors")), bytes);
    }
}

static int64_t number(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

static const char *text(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "-";
}

static void print_geometry(const json_t *out)
{
    const json_t *g = json_object_get(out, "geometry"), *kv = json_object_get(out, "kv_bytes_per_token");
    const char *format;
    json_t *v;
    char bytes[32];
    if (g == NULL) {
        printf("family        %s\n", text(out, "family_error"));
        return;
    }
    printf("family        %s\n", text(out, "family"));
    printf("layers        %" PRId64 " (%" PRId64 " with attention), hidden %" PRId64 ", vocabulary %" PRId64 "\n",
           number(g, "layers"), number(g, "attention_layers"), number(g, "hidden"), number(g, "vocab"));
    printf("attention     %" PRId64 " query heads, %" PRId64 " KV heads of %" PRId64 "; at most %" PRId64 " positions\n",
           number(g, "q_heads"), number(g, "kv_heads"), number(g, "head_dim"), number(g, "max_positions"));
    printf("KV cache     ");
    json_object_foreach((json_t *)kv, format, v) {
        text_bytes(bytes, (uint64_t)json_integer_value(v));
        printf(" %s %s", format, bytes);
    }
    text_bytes(bytes, (uint64_t)number(out, "state_bytes_per_sequence"));
    printf(" a token; recurrent state %s a sequence\n", bytes);
}

static void print_experts(const json_t *out)
{
    const json_t *e = json_object_get(out, "experts"), *p = json_object_get(out, "policy");
    char bytes[32];
    size_t i;
    json_t *point;
    if (e == NULL)
        return;
    text_bytes(bytes, (uint64_t)number(e, "record_bytes"));
    printf("experts       %" PRId64 " a layer in %" PRId64 " layers, top-%" PRId64 ", width %" PRId64 ", %s",
           number(e, "per_layer"), number(e, "moe_layers"), number(e, "top_k"), number(e, "width"), text(e, "format"));
    if (number(e, "record_bytes") > 0) /* without the bank nobody knows */
        printf(", %s each", bytes);
    putchar('\n');
    if (p == NULL) {
        printf("bank          %s\n", text(e, "bank"));
        return;
    }
    printf("assist        prompts up to %" PRId64 " columns (%s), link share", number(p, "max_columns"),
           json_is_true(json_object_get(p, "registered")) ? "registered by the bank" : "default");
    json_array_foreach(json_object_get(p, "ramp"), i, point)
        printf(" %" JSON_INTEGER_FORMAT ":%" JSON_INTEGER_FORMAT, json_integer_value(json_array_get(point, 0)),
               json_integer_value(json_array_get(point, 1)));
    printf(" of 256; wider ones are streamed\n");
}

static void print_tensors(const json_t *out)
{
    size_t i, d;
    json_t *t, *dim, *list = json_object_get(out, "tensors");
    if (list == NULL)
        return;
    printf("tensors\n");
    json_array_foreach(list, i, t) {
        printf("  %-72s %-8s [", text(t, "name"), text(t, "dtype"));
        json_array_foreach(json_object_get(t, "shape"), d, dim)
            printf("%s%" JSON_INTEGER_FORMAT, d ? ", " : "", json_integer_value(dim));
        printf("] %" PRId64 " bytes at %" PRId64 "%s\n", number(t, "bytes"), number(t, "offset"),
               json_is_null(json_object_get(t, "logical")) ? " (ignored)" : "");
    }
}

static void print_text(const json_t *out)
{
    printf("model         %s\n", text(out, "path"));
    printf("stored as     %s\n", text(out, "kind"));
    printf("architecture  %s\n", text(out, "architecture"));
    print_geometry(out);
    print_experts(out);
    print_table(out, "formats", "stored formats (tensors, bytes)");
    print_table(out, "classes", "parts (tensors, bytes)");
    print_table(out, "ignored", "ignored (tensors, bytes)");
    print_tensors(out);
    if (json_object_get(out, "check") != NULL)
        printf("check         %s\n", text(out, "check"));
}

/* ---- the command ---- */

static int32_t check_progress(void *ctx, uint64_t done, uint64_t total, const char *what)
{
    char text_what[64];
    snprintf(text_what, sizeof text_what, "checking %s", what);
    cli_progress(ctx, text_what, done, total);
    return base_cancelled();
}

static int32_t check_model(struct cli *cli, struct ifx_context *context, const struct model_on_disk *m)
{
    struct model_bank bank = {0};
    const char *format = artifact_expert_format(m->artifact);
    int32_t status = IFX_OK;
    if (artifact_is_container(m->artifact) && m->desc->n_moe > 0 && format != NULL)
        status = model_bank_open(context, m->desc, format, &bank);
    if (status == IFX_OK)
        status = artifact_check_values(m->artifact, m->desc, bank.ops, bank.bank, ifx_context_pool(context),
                                       check_progress, cli);
    model_bank_close(&bank);
    return status;
}

static json_t *build(struct cli *cli, struct ifx_context *context, struct model_on_disk *m, int32_t family)
{
    struct registry *r = ifx_context_registry(context);
    json_t *out = json_object();
    const char *wanted = cli_text(cli, "--experts", NULL), *stored = artifact_expert_format(m->artifact);
    json_object_set_new(out, "path", json_string(artifact_path(m->artifact)));
    json_object_set_new(out, "kind", json_string(artifact_is_container(m->artifact) ? ".infernix file" : "checkpoint"));
    json_object_set_new(out, "architecture", json_string(artifact_architecture(m->artifact)));
    if (family != IFX_OK) {
        json_object_set_new(out, "family_error", json_string(base_error_text()));
    } else {
        add_geometry(out, m, r);
        add_experts(out, m, r, wanted ? wanted : stored);
    }
    add_entries(out, m, cli_flag(cli, "--tensors"));
    return out;
}

/* Failures print their whole list on stderr, after what could be told. */
static int finish(struct cli *cli, json_t *out, int32_t status)
{
    int bad = 0;
    if (cli_flag(cli, "--check"))
        json_object_set_new(out, "check", json_string(status == IFX_OK ? "everything is in order" : base_error_text()));
    if (cli_json(cli))
        bad = json_dumpf(out, stdout, JSON_INDENT(2)) != 0 || printf("\n") < 0;
    else if (status == IFX_OK || !cli_flag(cli, "--check"))
        print_text(out);
    json_decref(out);
    if (status == IFX_OK && bad)
        status = base_error(IFX_EIO, "cannot write the JSON text");
    return status == IFX_OK ? 0 : cli_fail(cli);
}

static int run_inspect(struct cli *cli)
{
    struct ifx_context *context;
    struct model_on_disk m = {0};
    char *demo = NULL;
    const char *path = cli_argc(cli) > 0 ? cli_arg(cli, 0) : NULL;
    if (cli_argc(cli) > 1)
        return cli_usage(cli, "one MODEL at most, got \"%s\" as well", cli_arg(cli, 1));
    int rc = cli_context(cli, &context);
    if (rc)
        return rc;
    int32_t status = path ? IFX_OK : ifx_demo_path(&demo);
    if (status == IFX_OK)
        status = artifact_open(path ? path : demo, &m.artifact);
    base_free(demo);
    if (status != IFX_OK)
        return cli_fail(cli);
    int32_t family = model_on_disk_describe(context, &m);
    json_t *out = build(cli, context, &m, family);
    if (cli_flag(cli, "--check"))
        status = family == IFX_OK ? check_model(cli, context, &m)
                                  : base_error(family, "%s", text(out, "family_error"));
    rc = finish(cli, out, status);
    model_on_disk_close(&m);
    return rc;
}

static const struct cli_option inspect_options[] = {
    {"--check", NULL, "read everything: every missing, odd, damaged or non-finite tensor in one list", false},
    {"--tensors", NULL, "list every tensor", false},
    {NULL, NULL, NULL, false},
};

const struct cli_command cmd_inspect = {
    .name = "inspect",
    .synopsis = "[MODEL] [--check] [--tensors] [--json]",
    .summary = "what a model is made of; --check: what is wrong with it",
    .options = inspect_options,
    .examples = "  infernix inspect                    the demo model\n"
                "  infernix inspect Qwen3.5-35B-A3B --check\n"
                "  infernix inspect q35.infernix --tensors --json\n",
    .run = run_inspect,
};
