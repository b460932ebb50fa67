/* SPDX-License-Identifier: Apache-2.0
 *
 * model_on_disk.c - see model_on_disk.h.
 */
#include "config.h"
#include "model_on_disk.h"
#include <stdio.h>
#include <string.h>

int32_t model_on_disk_describe(struct ifx_context *c, struct model_on_disk *m)
{
    struct registry *r = ifx_context_registry(c);
    const char *path = artifact_path(m->artifact);
    int32_t status = registry_find(r, IFX_KIND_MODEL, artifact_architecture(m->artifact), &m->family_plugin);
    if (status != IFX_OK)
        return base_error_prefix(status, "%s", path);
    m->family = m->family_plugin->ops.model;
    status = m->family->open(registry_host(r), m->family_plugin->options, artifact_config(m->artifact), &m->model);
    if (status != IFX_OK) {
        m->model = NULL;
        return base_error_prefix(status, "%s", path);
    }
    m->desc = m->family->describe(m->model);
    return IFX_OK;
}

int32_t model_on_disk_open(struct ifx_context *c, const char *path, struct model_on_disk *out)
{
    char *demo = NULL;
    memset(out, 0, sizeof *out);
    int32_t status = path ? IFX_OK : ifx_demo_path(&demo);
    if (status == IFX_OK)
        status = artifact_open(path ? path : demo, &out->artifact);
    if (status == IFX_OK)
        status = model_on_disk_describe(c, out);
    base_free(demo);
    if (status != IFX_OK)
        model_on_disk_close(out);
    return status;
}

void model_on_disk_close(struct model_on_disk *m)
{
    if (m->model != NULL && m->family->close != NULL)
        m->family->close(m->model);
    artifact_close(m->artifact);
    memset(m, 0, sizeof *m);
}

int32_t model_bank_open(struct ifx_context *c, const struct ifx_model_desc *desc, const char *format,
                        struct model_bank *out)
{
    struct registry *r = ifx_context_registry(c);
    const struct ifx_moe_layer *m = &desc->moe[0];
    struct ifx_expert_shape shape = {.struct_size = sizeof shape, .hidden = m->hidden, .inter = m->inter};
    memset(out, 0, sizeof *out);
    int32_t status = registry_find(r, IFX_KIND_EXPERT, format, &out->plugin);
    if (status != IFX_OK)
        return status;
    out->ops = out->plugin->ops.expert;
    if (out->ops->record_bytes(&shape) == 0)
        return base_error(IFX_EUNSUPPORTED, "expert format \"%s\" cannot hold experts of hidden %u and width %u", format,
                          m->hidden, m->inter);
    status = out->ops->open(registry_host(r), out->plugin->options, &shape, &out->bank);
    if (status != IFX_OK)
        out->bank = NULL;
    return status;
}

void model_bank_close(struct model_bank *b)
{
    if (b->bank != NULL && b->ops->close != NULL)
        b->ops->close(b->bank);
    memset(b, 0, sizeof *b);
}

void text_bytes(char out[32], uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    int unit = 0;
    while (v >= 1000.0 && unit < 4) {
        v /= 1024.0;
        unit++;
    }
    snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", v, units[unit]);
}
