/* SPDX-License-Identifier: Apache-2.0
 *
 * quant_config.c - what a checkpoint says of its own quantisation: hf_quant_config.json (ModelOpt) and config.json's
 * "quantization_config".
 *
 * Formats are decided tensor by tensor from what is stored; these files are held against it.  Where they disagree, weights and
 * description come from different exports, and one of the two is wrong: that is said before anything is read.
 */
#include "config.h"
#include "artifact_internal.h"
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define QUANT_CONFIG_MAX (64u << 20)

struct declared {
    const struct artifact *a;
    struct art_faults *f;
    char *file;           /* for messages */
    const char *algo;     /* of every module that is not left out; NULL: unknown or none */
    const json_t *out;    /* patterns of modules left out, or NULL */
    const json_t *layers; /* module -> {"quant_algo": ...}, or NULL: then `algo` says nothing of a module */
};

/* The stored form that an algorithm's name stands for; 0: not read. */
static uint32_t form_of(const char *algo)
{
    static const struct {
        const char *name;
        uint32_t form;
    } known[] = {{"NVFP4", ART_NVFP4}, {"W4A16_NVFP4", ART_NVFP4}, {"FP8", ART_FP8}, {"FP8_PB_WO", ART_FP8B},
                 {"FP8_PB_REAL", ART_FP8B}, {"FP8_BLOCK_SCALES", ART_FP8B}};
    for (size_t i = 0; algo != NULL && i < sizeof known / sizeof known[0]; i++)
        if (strcasecmp(algo, known[i].name) == 0)
            return known[i].form;
    return 0;
}

static const char *form_text(uint32_t form)
{
    return form == ART_NVFP4 ? "NVFP4" : form == ART_FP8 ? "FP8 with one scale" : form == ART_FP8B ? "FP8 with block scales"
                                                                                                 : "unquantised";
}

static uint32_t stored_form(const struct artifact *a, const struct art_tensor *t)
{
    if (t->pub.dtype == IFX_U8)
        return ART_NVFP4;
    if (t->pub.dtype == IFX_F8_E4M3)
        return art_findf(a, "%s_scale_inv", t->pub.logical_name) ? ART_FP8B : ART_FP8;
    return ART_PLAIN;
}

/* A pattern names a module, everything below a module, or has wildcards; with or without the prefix of the text model. */
static bool matches(const char *pattern, const char *module)
{
    size_t n = strcspn(pattern, "*?[");
    if (strncmp(pattern, module, n) != 0) /* most of them; a large model asks millions of times */
        return false;
    return pattern[n] ? fnmatch(pattern, module, 0) == 0 : module[n] == 0 || module[n] == '.';
}

static bool names(const char *pattern, const char *stored, const char *logical)
{
    const char *plain = art_logical_name(pattern); /* NULL: of a part that is ignored */
    return matches(pattern, stored) || (plain != NULL && matches(plain, logical));
}

static const char *left_out_by(const struct declared *d, const char *stored, const char *logical)
{
    size_t i;
    const json_t *v;
    json_array_foreach(d->out, i, v) {
        const char *pattern = json_string_value(v);
        if (pattern != NULL && *pattern && names(pattern, stored, logical))
            return pattern;
    }
    return NULL;
}

/* The entry of a module, or of one that it is part of ("...mlp.experts"); the text model's prefix differs between exports. */
static const json_t *layer_entry(const struct declared *d, const char *stored, const char *logical)
{
    static const char *const prefixes[] = {"", "model.", "model.language_model.", "language_model.model.", "language_model."};
    char part[1300];
    const json_t *v = json_object_get(d->layers, stored);
    snprintf(part, sizeof part, "%s", logical);
    while (v == NULL) {
        for (size_t i = 0; v == NULL && i < sizeof prefixes / sizeof prefixes[0]; i++) {
            char name[1400];
            snprintf(name, sizeof name, "%s%s", prefixes[i], part);
            v = json_object_get(d->layers, name);
        }
        char *dot = strrchr(part, '.');
        if (dot == NULL)
            break;
        *dot = 0;
    }
    return v;
}

static void check_module(const struct declared *d, const struct art_tensor *t, const char *stored, const char *logical)
{
    uint32_t form = stored_form(d->a, t);
    const json_t *entry = d->layers ? layer_entry(d, stored, logical) : NULL;
    const char *algo = d->layers ? json_string_value(json_object_get(entry, "quant_algo")) : d->algo;
    const char *pattern = left_out_by(d, stored, logical);
    if (pattern != NULL && form != ART_PLAIN) {
        art_fault(d->f, "%s: tensor %s is stored as %s, though %s leaves it out of the quantisation (\"%s\")", t->pub.file,
                  t->pub.stored_name, form_text(form), d->file, pattern);
        return;
    }
    if (pattern != NULL || algo == NULL || (form == ART_PLAIN && entry == NULL) || form == form_of(algo))
        return;
    art_fault(d->f, "%s: tensor %s is stored %s%s, though %s says \"%s\"", t->pub.file, t->pub.stored_name,
              form == ART_PLAIN ? "" : "as ", form_text(form), d->file, algo);
}

static void check_modules(const struct declared *d)
{
    static const char suffix[] = ".weight";
    char stored[1200], logical[1200];
    for (uint64_t i = 0; i < d->a->n_named; i++) {
        const struct art_tensor *t = d->a->by_name[i];
        size_t n = strlen(t->pub.stored_name), m = strlen(t->pub.logical_name), s = sizeof suffix - 1;
        if (m <= s || n >= sizeof stored || strcmp(t->pub.logical_name + m - s, suffix) != 0)
            continue;
        snprintf(stored, sizeof stored, "%.*s", (int)(n - s), t->pub.stored_name);
        snprintf(logical, sizeof logical, "%.*s", (int)(m - s), t->pub.logical_name);
        check_module(d, t, stored, logical);
    }
}

static void check_group(const struct declared *d, const json_t *from)
{
    const json_t *group = json_object_get(from, "group_size");
    if (form_of(d->algo) == ART_NVFP4 && json_is_integer(group) && json_integer_value(group) != 16)
        art_fault(d->f, "%s: \"group_size\" is %lld; NVFP4 has groups of 16", d->file, (long long)json_integer_value(group));
}

static void check_algos(const struct declared *d)
{
    const char *key;
    json_t *v;
    bool mixed = d->algo != NULL && strcasecmp(d->algo, "MIXED_PRECISION") == 0;
    if (mixed && d->layers == NULL)
        art_fault(d->f, "%s: \"quant_algo\" is \"%s\", but there are no \"quantized_layers\"", d->file, d->algo);
    if (d->algo != NULL && !mixed && form_of(d->algo) == 0)
        art_fault(d->f, "%s: \"quant_algo\" \"%.64s\" is not read (NVFP4, FP8, FP8_PB_WO and MIXED_PRECISION of them are)", d->file,
                  d->algo);
    json_object_foreach((json_t *)d->layers, key, v) {
        const char *algo = json_string_value(json_object_get(v, "quant_algo"));
        if (algo != NULL && form_of(algo) == 0 && art_logical_name(key) != NULL)
            art_fault(d->f, "%s: %.200s: \"quant_algo\" \"%.64s\" is not read", d->file, key, algo);
    }
}

/* The object that names the algorithm, in either file.  left_out: the key of its list. */
static void check_object(const struct artifact *a, const char *where, const json_t *q, const char *left_out, struct art_faults *f)
{
    struct declared d = {.a = a, .f = f, .file = base_strdup(where)};
    uint64_t before = f->count;
    if (d.file == NULL) {
        f->out_of_memory = true;
        f->count++;
        return;
    }
    const json_t *algo = json_object_get(q, "quant_algo");
    d.algo = json_string_value(algo);
    d.out = json_object_get(q, left_out);
    d.layers = json_object_get(q, "quantized_layers");
    if (algo != NULL && !json_is_null(algo) && d.algo == NULL)
        art_fault(f, "%s: \"quant_algo\" is no text", where);
    if (d.out != NULL && !json_is_null(d.out) && !json_is_array(d.out))
        art_fault(f, "%s: \"%s\" is no list", where, left_out);
    if (d.layers != NULL && !json_is_null(d.layers) && !json_is_object(d.layers))
        art_fault(f, "%s: \"quantized_layers\" is no object", where);
    if (!json_is_array(d.out))
        d.out = NULL;
    if (!json_is_object(d.layers))
        d.layers = NULL;
    check_algos(&d);
    check_group(&d, q);
    if (f->count == before && d.algo != NULL)
        check_modules(&d);
    base_free(d.file);
}

static void check_config(const struct artifact *a, struct art_faults *f)
{
    const json_t *q = json_object_get(a->config, "quantization_config");
    if (q == NULL || json_is_null(q))
        q = json_object_get(a->text_config, "quantization_config");
    if (q == NULL || json_is_null(q))
        return;
    char *where = base_format("%s/config.json: quantization_config", a->folder);
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    if (where == NULL) {
        f->out_of_memory = true;
        f->count++;
    } else if (!json_is_object(q)) {
        art_fault(f, "%s is no object", where);
    } else if (method != NULL && strncmp(method, "modelopt", 8) == 0) {
        check_object(a, where, q, "ignore", f);
    } else if (method != NULL && strcmp(method, "fp8") != 0 && strcmp(method, "compressed-tensors") != 0) {
        /* What compressed-tensors stores is told by the names of its tensors, one by one. */
        art_fault(f, "%s: \"quant_method\" \"%.64s\" is not read (modelopt and fp8 are)", where, method);
    }
    base_free(where);
}

static void check_file(const struct artifact *a, const char *path, struct art_faults *f)
{
    char *text;
    uint64_t bytes;
    json_t *root = NULL;
    int32_t status = base_read_file(path, QUANT_CONFIG_MAX, &text, &bytes);
    if (status == IFX_ENOTFOUND)
        return;
    if (status == IFX_OK) {
        const char *impostor = art_impostor(text, bytes);
        status = impostor ? base_error(IFX_EFORMAT, "%s: is %s", path, impostor) : art_json_parse(text, bytes, path, 0, NULL, &root);
        base_free(text);
    }
    const json_t *q = json_object_get(root, "quantization");
    if (status != IFX_OK)
        art_fault(f, "%s", base_error_text());
    else if (!json_is_object(q))
        art_fault(f, "%s: \"quantization\" is missing or no object", path);
    else
        check_object(a, path, q, "exclude_modules", f);
    json_decref(root);
}

void art_check_quant_config(const struct artifact *a, struct art_faults *f)
{
    char *path = base_format("%s/hf_quant_config.json", a->folder);
    if (path == NULL) {
        f->out_of_memory = true;
        f->count++;
        return;
    }
    check_config(a, f);
    check_file(a, path, f);
    for (uint64_t i = 0; i < a->n_named; i++) {
        const struct artifact_entry *e = &a->by_name[i]->pub;
        size_t n = strlen(e->logical_name), m = strlen(".pre_quant_scale");
        if (n > m && strcmp(e->logical_name + n - m, ".pre_quant_scale") == 0)
            art_fault(f, "%s: tensor %s: activations would have to be scaled by it (an AWQ export): not read", e->file,
                      e->stored_name);
    }
    base_free(path);
}
