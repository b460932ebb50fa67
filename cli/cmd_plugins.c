/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_plugins.c - `infernix plugins`: what is found and where, one plugin in full, the conformance suite.
 */
#include "config.h"
#include "check.h"
#include "cli.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- report: "key=value" lines or one JSON object ---- */

struct report {
    json_t *json; /* NULL: lines on stdout */
};

static void report_text(struct report *r, const char *key, const char *value)
{
    if (r->json != NULL)
        json_object_set_new(r->json, key, json_string(value));
    else
        printf("%s=%s\n", key, value);
}

static void report_int(struct report *r, const char *key, int64_t value)
{
    if (r->json != NULL)
        json_object_set_new(r->json, key, json_integer(value));
    else
        printf("%s=%" PRId64 "\n", key, value);
}

static int print_json(json_t *json)
{
    int failed = json == NULL || json_dumpf(json, stdout, JSON_INDENT(2)) != 0 || printf("\n") < 0;
    json_decref(json);
    return failed ? base_error(IFX_ENOMEM, "cannot write the JSON text") : IFX_OK;
}

/* ---- the list ---- */

static void abi_text(const struct registry_plugin *p, char out[32])
{
    if (p->magic.block_size == 0)
        snprintf(out, 32, "-");
    else
        snprintf(out, 32, "%" PRIu32 ".%" PRIu32, p->magic.abi_major, p->magic.abi_minor);
}

/* The fields of a refused block may hold anything. */
static const char *version_text(const struct registry_plugin *p)
{
    const char *v = p->magic.version;
    bool text = memchr(v, 0, sizeof p->magic.version) != NULL && v[0] != 0 && base_utf8_valid(v, strlen(v));
    return text ? v : "-";
}

static const char *kind_text(const struct registry_plugin *p)
{
    return p->magic.kind != 0 ? registry_kind_name(p->magic.kind) : "-";
}

static json_t *plugin_json(const struct registry_plugin *p)
{
    char abi[32];
    abi_text(p, abi);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:s?}", "name", p->name, "kind", kind_text(p), "version",
                     version_text(p), "abi", abi, "path", p->path, "ok", p->refusal == NULL, "refusal", p->refusal);
}

static int list_json(struct registry *r, const struct registry_plugin *const *list, uint32_t count)
{
    json_t *plugins = json_array(), *folders = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(plugins, plugin_json(list[i]));
    const char *const *folder = registry_search_path(r);
    for (; *folder != NULL; folder++)
        json_array_append_new(folders,
                              json_pack("{s:s, s:b}", "path", *folder, "exists", access(*folder, F_OK) == 0));
    return print_json(json_pack("{s:o, s:o, s:s, s:s}", "plugins", plugins, "search_path", folders, "build",
                                registry_build_string, "cpu", base_cpu_name(registry_host(r)->cpu_level(registry_host(r)))));
}

static void list_text(struct registry *r, const struct registry_plugin *const *list, uint32_t count)
{
    char abi[32];
    int width = 4;
    for (uint32_t i = 0; i < count; i++)
        if ((int)strlen(list[i]->name) > width)
            width = (int)strlen(list[i]->name);
    printf("%-*s  %-7s  %-8s  %-4s  %s\n", width, "NAME", "KIND", "VERSION", "ABI", "PATH");
    for (uint32_t i = 0; i < count; i++) {
        const struct registry_plugin *p = list[i];
        abi_text(p, abi);
        printf("%-*s  %-7s  %-8s  %-4s  %s\n", width, p->name, kind_text(p), version_text(p), abi, p->path);
        if (p->refusal != NULL)
            printf("%*s  refused: %s\n", width, "", p->refusal);
    }
    if (count == 0)
        printf("no plugins found\n");
    printf("\nsearched, in this order:\n");
    const char *const *folder = registry_search_path(r);
    for (; *folder != NULL; folder++)
        printf("  %s%s\n", *folder, access(*folder, F_OK) == 0 ? "" : "  (does not exist)");
}

static int list_all(struct cli *cli, struct registry *r)
{
    const struct registry_plugin *const *list;
    uint32_t count;
    if (registry_list(r, &list, &count) != IFX_OK)
        return cli_fail(cli);
    if (cli_json(cli))
        return list_json(r, list, count) == IFX_OK ? 0 : cli_fail(cli);
    list_text(r, list, count);
    return 0;
}

/* ---- one plugin ---- */

static const struct ifx_option *options_of(const struct registry_plugin *p)
{
    switch (p->magic.kind) {
    case IFX_KIND_EXPERT:
        return p->ops.expert->options;
    case IFX_KIND_KV:
        return p->ops.kv->options;
    case IFX_KIND_MODEL:
        return p->ops.model->options;
    default:
        return p->ops.device->options;
    }
}

static void report_options(struct report *r, const struct registry_plugin *p)
{
    static const char *const types[] = {"", "int", "float", "bool", "string"};
    char key[96], range[64];
    for (const struct ifx_option *o = options_of(p); o != NULL && o->name != NULL; o++) {
        snprintf(key, sizeof key, "option.%s.type", o->name);
        report_text(r, key, types[o->type]);
        if (o->type == IFX_OPT_INT && (o->min_int != 0 || o->max_int != 0)) {
            snprintf(key, sizeof key, "option.%s.range", o->name);
            snprintf(range, sizeof range, "%" PRId64 "..%" PRId64, o->min_int, o->max_int);
            report_text(r, key, range);
        }
        snprintf(key, sizeof key, "option.%s.default", o->name);
        report_text(r, key, o->default_text ? o->default_text : "");
        const char *value = registry_options_text(p->options, o->name);
        snprintf(key, sizeof key, "option.%s.value", o->name);
        report_text(r, key, value ? value : "");
        snprintf(key, sizeof key, "option.%s.help", o->name);
        report_text(r, key, o->help ? o->help : "");
    }
}

static void report_list(struct report *r, const char *key, const char *const *list)
{
    struct base_buf b = {0};
    for (uint32_t i = 0; list[i] != NULL; i++)
        if (base_buf_addf(&b, "%s%s", i ? "," : "", list[i]) != IFX_OK)
            break;
    report_text(r, key, b.data ? b.data : "");
    base_buf_free(&b);
}

static void report_policy(struct report *r, const struct ifx_expert_ops *ops)
{
    const struct ifx_assist_policy *policy = registry_policy(ops);
    struct base_buf b = {0};
    for (uint32_t i = 0; i < policy->n_points; i++)
        if (base_buf_addf(&b, "%s%" PRIu32 ":%" PRIu32, i ? "," : "", policy->points[i].columns,
                          policy->points[i].share) != IFX_OK)
            break;
    report_text(r, "assist.source", ops->policy != NULL ? "plugin" : "default");
    report_int(r, "assist.max_columns", policy->max_columns);
    report_text(r, "assist.ramp", b.data ? b.data : "");
    base_buf_free(&b);
}

/* An instance of a small shape tells which CPU level it took. */
static void report_expert(struct report *r, struct registry *reg, const struct registry_plugin *p)
{
    const struct ifx_expert_ops *ops = p->ops.expert;
    const struct ifx_expert_shape shape = {sizeof shape, 256, 128, 0};
    void *bank = NULL;
    report_text(r, "identity", ops->format);
    report_text(r, "description", ops->description ? ops->description : "");
    report_policy(r, ops);
    report_text(r, "cpu.path", ops->gate_up != NULL ? "plugin" : "host, from decode_row");
    if (ops->open(registry_host(reg), p->options, &shape, &bank) != IFX_OK) {
        report_text(r, "cpu.in_use", "unknown");
        return;
    }
    report_text(r, "cpu.in_use", base_cpu_name(ops->level != NULL ? ops->level(bank) : IFX_CPU_SCALAR));
    ops->close(bank);
}

static void report_kv(struct report *r, struct registry *reg, const struct registry_plugin *p)
{
    const struct ifx_kv_ops *ops = p->ops.kv;
    const struct ifx_kv_shape shape = {sizeof shape, 256, 1, 16};
    void *kv = NULL;
    report_text(r, "identity", ops->format);
    report_text(r, "description", ops->description ? ops->description : "");
    if (ops->open(registry_host(reg), p->options, &shape, &kv) != IFX_OK) {
        report_text(r, "cpu.in_use", "unknown");
        return;
    }
    report_text(r, "cpu.in_use", base_cpu_name(ops->level != NULL ? ops->level(kv) : IFX_CPU_SCALAR));
    ops->close(kv);
}

static void report_magic(struct report *r, struct registry *reg, const struct registry_plugin *p)
{
    char abi[32];
    uint32_t ops_size;
    abi_text(p, abi);
    memcpy(&ops_size, p->ops.any, sizeof ops_size);
    report_text(r, "name", p->name);
    report_text(r, "path", p->path);
    report_text(r, "kind", registry_kind_name(p->magic.kind));
    report_text(r, "version", p->magic.version);
    report_text(r, "abi", abi);
    report_int(r, "abi.program_major", IFX_ABI_MAJOR);
    report_int(r, "abi.program_minor", IFX_ABI_MINOR);
    report_int(r, "struct.magic_bytes", p->magic.block_size);
    report_int(r, "struct.ops_bytes", p->magic.ops_size);
    report_int(r, "struct.program_ops_bytes", ops_size);
    report_int(r, "numerics_revision", p->magic.numerics_revision);
    report_int(r, "cuda_runtime", p->magic.cuda_runtime);
    report_text(r, "build", p->magic.build);
    report_text(r, "cpu.available", base_cpu_name(base_cpu_detect()));
    report_text(r, "cpu.allowed", base_cpu_name(registry_host(reg)->cpu_level(registry_host(reg))));
}

static int show_one(struct cli *cli, struct registry *reg, const char *name)
{
    const struct registry_plugin *p;
    struct report r = {NULL};
    if (registry_load(reg, name, &p) != IFX_OK)
        return cli_fail(cli);
    if (cli_json(cli) && (r.json = json_object()) == NULL) {
        base_error(IFX_ENOMEM, "out of memory");
        return cli_fail(cli);
    }
    report_magic(&r, reg, p);
    if (p->magic.kind == IFX_KIND_EXPERT) {
        report_expert(&r, reg, p);
    } else if (p->magic.kind == IFX_KIND_KV) {
        report_kv(&r, reg, p);
    } else if (p->magic.kind == IFX_KIND_MODEL) {
        report_list(&r, "identities", p->ops.model->architectures);
        report_text(&r, "description", p->ops.model->description ? p->ops.model->description : "");
    } else {
        report_list(&r, "identities", p->ops.device->identities);
        report_text(&r, "description", p->ops.device->description ? p->ops.device->description : "");
    }
    report_options(&r, p);
    if (r.json != NULL && print_json(r.json) != IFX_OK)
        return cli_fail(cli);
    return 0;
}

static int run_plugins(struct cli *cli)
{
    struct ifx_context *context;
    const char *check = cli_text(cli, "--check", NULL);
    if (cli_argc(cli) > 1)
        return cli_usage(cli, "one NAME at most, got \"%s\" as well", cli_arg(cli, 1));
    if (check != NULL && cli_argc(cli) > 0)
        return cli_usage(cli, "--check takes one FILE.so and no NAME");
    /* Each check forks: no thread may exist yet, so no context either. */
    if (check != NULL)
        return plugin_check_main(check, 0, cli_json(cli), stdout);
    int failed = cli_context(cli, &context);
    if (failed)
        return failed;
    struct registry *r = ifx_context_registry(context);
    return cli_argc(cli) == 1 ? show_one(cli, r, cli_arg(cli, 0)) : list_all(cli, r);
}

static const struct cli_option plugins_options[] = {
    {"--check", "FILE.so[,OPTIONS]", "run the conformance suite of the plugin's kind on a file", false},
    {NULL, NULL, NULL, false},
};

const struct cli_command cmd_plugins = {
    .name = "plugins",
    .synopsis = "[NAME | FILE.so] [--check FILE.so[,key=value...]] [--json]",
    .summary = "list the plugins, show one, or check one",
    .options = plugins_options,
    .examples = "  infernix plugins                      what is found, and why something was refused\n"
                "  infernix plugins expert_nvfp4         everything about one plugin\n"
                "  infernix plugins --check ./mybank.so  hold a plugin against the rules of its kind\n",
    .run = run_plugins,
};
