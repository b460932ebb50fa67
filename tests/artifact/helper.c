/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"
#include "helper.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t config_int(const struct artifact *a, const char *key, uint64_t fallback)
{
    const struct ifx_config *c = artifact_config(a);
    int64_t v;
    return c->get_int(c, key, &v) == IFX_OK ? (uint64_t)v : fallback;
}

static void add_param(struct ifx_param *p, const struct artifact_entry *e)
{
    uint64_t count = 1;
    bool matrix = e->n_dims == 2;
    for (uint32_t i = 0; i < e->n_dims; i++)
        count *= e->dims[i];
    snprintf(p->name, sizeof p->name, "%s", e->logical_name);
    p->kind = matrix ? IFX_PARAM_MATRIX : IFX_PARAM_VECTOR;
    p->rows = matrix ? (uint32_t)e->dims[0] : 1;
    p->cols = matrix ? (uint32_t)e->dims[1] : (uint32_t)count;
    p->tied_to = -1;
    if (strstr(p->name, "mlp.gate.") || strstr(p->name, "shared_expert_gate") || strstr(p->name, "in_proj_a") ||
        strstr(p->name, "in_proj_b") || strstr(p->name, "q_proj"))
        p->flags |= IFX_PARAM_SENSITIVE;
    if (strcmp(p->name, "embed_tokens.weight") == 0)
        p->flags |= IFX_PARAM_EMBED;
    if (strcmp(p->name, "lm_head.weight") == 0)
        p->flags |= IFX_PARAM_HEAD;
}

static void tie_head(struct ifx_model_desc *d, struct ifx_param *params)
{
    uint32_t embed = UINT32_MAX;
    for (uint32_t i = 0; i < d->n_params; i++) {
        if (params[i].flags & IFX_PARAM_HEAD)
            return;
        if (params[i].flags & IFX_PARAM_EMBED)
            embed = i;
    }
    if (embed == UINT32_MAX)
        return;
    params[d->n_params] = params[embed];
    snprintf(params[d->n_params].name, sizeof params->name, "lm_head.weight");
    params[d->n_params].flags = IFX_PARAM_HEAD | IFX_PARAM_OPTIONAL;
    params[d->n_params++].tied_to = (int32_t)embed;
}

struct ifx_model_desc *helper_desc(const struct artifact *a)
{
    struct ifx_model_desc *d = calloc(1, sizeof *d);
    struct ifx_param *params = calloc(artifact_entry_count(a) + 1, sizeof *params);
    assert_non_null(d);
    assert_non_null(params);
    d->struct_size = sizeof *d;
    d->n_layers = (uint32_t)config_int(a, "num_hidden_layers", 0);
    d->hidden = (uint32_t)config_int(a, "hidden_size", 0);
    for (uint64_t i = 0; i < artifact_entry_count(a); i++) {
        const struct artifact_entry *e = artifact_entry_at(a, i);
        if (e->logical_name && !strstr(e->logical_name, ".experts.") && e->n_dims > 0 && strlen(e->logical_name) < 120)
            add_param(&params[d->n_params++], e);
    }
    tie_head(d, params);
    d->params = params;
    if (artifact_expert_format(a) != NULL) {
        struct ifx_moe_layer *moe = calloc(d->n_layers, sizeof *moe);
        assert_non_null(moe);
        for (uint32_t l = 0; l < d->n_layers; l++) {
            snprintf(moe[l].prefix, sizeof moe[l].prefix, "layers.%u.mlp.experts", l);
            moe[l].layer = l;
            moe[l].experts = (uint32_t)config_int(a, "num_experts", 0);
            moe[l].top_k = (uint32_t)config_int(a, "num_experts_per_tok", 0);
            moe[l].hidden = d->hidden;
            moe[l].inter = (uint32_t)config_int(a, "moe_intermediate_size", 0);
        }
        d->moe = moe;
        d->n_moe = d->n_layers;
    }
    return d;
}

void helper_desc_free(struct ifx_model_desc *d)
{
    free((void *)(uintptr_t)d->params);
    free((void *)(uintptr_t)d->moe);
    free(d);
}

const char *helper_golden(const char *name)
{
    static char path[4096];
    const char *golden = getenv("IFX_GOLDEN");
    snprintf(path, sizeof path, "%s/checkpoints/%s", golden ? golden : "", name);
    if (golden == NULL || access(path, R_OK) != 0) {
        print_message("IFX_GOLDEN does not lead to the golden data (make -C tests/data check)\n");
        skip();
    }
    return path;
}

char *helper_folder(void)
{
    const char *tmp = getenv("TMPDIR");
    char *path = malloc(4096);
    assert_non_null(path);
    snprintf(path, 4096, "%s/ifx-artifact-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(path));
    return path;
}

void helper_remove(char *folder)
{
    char path[4400];
    DIR *dir = opendir(folder);
    for (struct dirent *e = dir ? readdir(dir) : NULL; e != NULL; e = readdir(dir)) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && unlink(path) != 0)
            rmdir(path);
    }
    if (dir)
        closedir(dir);
    rmdir(folder);
    free(folder);
}

void helper_write(const char *folder, const char *name, const void *data, uint64_t bytes)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

char *helper_read(const char *folder, const char *name, uint64_t *bytes)
{
    char path[4400], *data;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (base_read_file(path, 1u << 30, &data, bytes) != IFX_OK)
        fail_msg("%s", base_error_text());
    return data;
}

void helper_copy(const char *from_folder, const char *from_name, const char *folder, const char *name)
{
    uint64_t bytes;
    char *data = helper_read(from_folder, from_name, &bytes);
    helper_write(folder, name, data, bytes);
    free(data);
}

void helper_open_fails(const char *path, const char *const *texts)
{
    struct artifact *a = NULL;
    base_error_clear();
    int32_t status = artifact_open(path, &a);
    if (status == IFX_OK) {
        artifact_close(a);
        fail_msg("%s: opened, an error was expected", path);
    }
    for (int i = 0; texts[i] != NULL; i++)
        if (strstr(base_error_text(), texts[i]) == NULL)
            fail_msg("%s: expected \"%s\" in the message, got: %s", path, texts[i], base_error_text());
}
