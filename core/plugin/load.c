/* SPDX-License-Identifier: Apache-2.0
 *
 * load.c - one plugin from judged file to usable operations.  Once dlopen has succeeded the file stays loaded, whatever comes
 * after: its constructors may have started threads or registered exit handlers.
 */
#include "config.h"
#include "registry_internal.h"
#include <dlfcn.h>
#include <string.h>

int32_t registry_entry_refuse(struct registry_entry *e, int32_t status)
{
    base_free(e->refusal);
    e->refusal = base_strdup(base_error_text());
    e->pub.refusal = e->refusal != NULL ? e->refusal : "out of memory while it was judged";
    e->pub.loaded = false;
    return status;
}

static int32_t open_file(const struct registry_entry *e, ifx_plugin_magic_fn *magic, ifx_plugin_init_fn *init)
{
    dlerror();
    void *dl = dlopen(e->path, RTLD_NOW | RTLD_LOCAL);
    if (dl == NULL) {
        const char *why = dlerror(); /* read once: the second call says nothing */
        return base_error(IFX_EIO, "cannot load: %s", why ? why : "no reason given");
    }
    /* POSIX's way to get a function out of a void pointer. */
    *(void **)magic = dlsym(dl, "ifx_plugin_magic");
    if (*magic == NULL)
        return base_error(IFX_EFORMAT, "symbol ifx_plugin_magic is missing: use the IFX_*_PLUGIN macros and export it");
    *(void **)init = dlsym(dl, "ifx_plugin_init");
    if (*init == NULL)
        return base_error(IFX_EFORMAT, "symbol ifx_plugin_init is missing: use the IFX_*_PLUGIN macros and export it");
    return IFX_OK;
}

/* Two CUDA runtimes of different majors in one process do not share contexts, streams or errors. */
static int32_t judge_cuda(const struct registry *r, const struct registry_entry *e)
{
    uint32_t mine = e->pub.magic.cuda_runtime;
    if (mine != 0 && r->cuda_runtime != 0 && mine / 1000 != r->cuda_runtime / 1000)
        return base_error(IFX_EFORMAT, "CUDA runtime %u.%u, but %s (loaded) has %u.%u: build both with one CUDA Toolkit",
                          mine / 1000, mine % 1000 / 10, r->cuda_owner->path, r->cuda_runtime / 1000,
                          r->cuda_runtime % 1000 / 10);
    return IFX_OK;
}

static int32_t initialise(struct registry *r, struct registry_entry *e)
{
    ifx_plugin_magic_fn magic = NULL;
    ifx_plugin_init_fn init = NULL;
    int32_t status = judge_cuda(r, e);
    if (status == IFX_OK)
        status = open_file(e, &magic, &init);
    if (status != IFX_OK)
        return status;
    const struct ifx_magic *again = magic();
    if (again == NULL || memcmp(again, &e->pub.magic, sizeof *again) != 0)
        return base_error(IFX_EFORMAT, "ifx_plugin_magic returns another block than section .ifx_plugin holds: use the "
                                       "IFX_*_PLUGIN macros, one plugin a file");
    base_error_clear();
    const void *ops = init(&r->host);
    if (ops == NULL) {
        if (base_error_text()[0] == 0)
            return base_error(IFX_EUNSUPPORTED, "ifx_plugin_init returned NULL and recorded no error");
        return base_error_prefix(IFX_EUNSUPPORTED, "ifx_plugin_init failed");
    }
    return registry_copy_ops(&e->pub.magic, ops, &e->ops, &e->policy);
}

const struct ifx_option *registry_option_table(const struct registry_plugin *p)
{
    if (p->ops.any == NULL)
        return NULL;
    switch (p->magic.kind) {
    case IFX_KIND_EXPERT:
        return p->ops.expert->options;
    case IFX_KIND_KV:
        return p->ops.kv->options;
    case IFX_KIND_MODEL:
        return p->ops.model->options;
    case IFX_KIND_DEVICE:
        return p->ops.device->options;
    default:
        return NULL;
    }
}

int32_t registry_entry_load(struct registry *r, struct registry_entry *e)
{
    if (e->pub.refusal != NULL)
        return base_error(IFX_EFORMAT, "%s", e->pub.refusal);
    if (e->tried)
        return IFX_OK;
    e->tried = true;
    int32_t status = initialise(r, e);
    if (status != IFX_OK)
        return registry_entry_refuse(e, status);
    e->pub.ops.any = e->ops;
    status = registry_options_parse(registry_option_table(&e->pub), e->name, NULL, &e->pub.options);
    if (status != IFX_OK) {
        e->pub.ops.any = NULL;
        return registry_entry_refuse(e, status);
    }
    if (e->pub.magic.cuda_runtime != 0 && r->cuda_runtime == 0) {
        r->cuda_runtime = e->pub.magic.cuda_runtime;
        r->cuda_owner = e;
    }
    e->pub.loaded = true;
    base_log(IFX_LOG_DEBUG, "loaded %s", e->path);
    return IFX_OK;
}

static bool in_list(const char *const *list, const char *identity)
{
    for (; *list != NULL; list++)
        if (strcmp(*list, identity) == 0)
            return true;
    return false;
}

bool registry_claims(const struct registry_entry *e, uint32_t kind, const char *identity)
{
    if (!e->pub.loaded || e->pub.magic.kind != kind)
        return false;
    switch (kind) {
    case IFX_KIND_EXPERT:
        return strcmp(e->pub.ops.expert->format, identity) == 0;
    case IFX_KIND_KV:
        return strcmp(e->pub.ops.kv->format, identity) == 0;
    case IFX_KIND_MODEL:
        return in_list(e->pub.ops.model->architectures, identity);
    case IFX_KIND_DEVICE:
        return in_list(e->pub.ops.device->identities, identity);
    default:
        return false;
    }
}
