/* SPDX-License-Identifier: Apache-2.0
 *
 * test_main.c - runs the operation tests on device `ref` and on `cpu` at every level that this machine has.
 *
 *     test_ops [PLUGIN.so [GOLDEN-FOLDER]]      defaults: $IFX_DEVICE_CPU, $IFX_GOLDEN
 *
 * Needs nothing but the plugin: it runs on another machine from a copied build tree.
 */
#include "optest.h"

#include <stdio.h>
#include <stdlib.h>

static struct golden *goldens(const char *folder)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/ops.safetensors", folder);
    struct golden *g = golden_open(path);
    if (!g) {
        printf("cannot read %s: give the folder of the golden data (make -C tests/data check unpacks it)\n", path);
        exit(1);
    }
    return g;
}

static void run_device(const struct pair *t, const struct golden *g)
{
    uint64_t before = checks_done, failed = checks_failed;
    test_goldens(t, g);
    test_elementwise(t);
    test_router(t);
    test_delta(t);
    test_edges(t);
    test_streams(t, g);
    if (!t->exact) {
        test_linear(t);
        test_wide_offsets(t);
    }
    printf("%-18s %llu checks, %llu failed\n", t->name, (unsigned long long)(checks_done - before),
           (unsigned long long)(checks_failed - failed));
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const char *plugin = argc > 1 ? argv[1] : getenv("IFX_DEVICE_CPU");
    const char *folder = argc > 2 ? argv[2] : getenv("IFX_GOLDEN");
    if (!plugin || !folder) {
        printf("usage: test_ops PLUGIN.so GOLDEN-FOLDER\n");
        return 2;
    }
    struct golden *g = goldens(folder);
    uint32_t most = minihost_detect();
    struct ifx_host *plain = minihost_create(1, most);
    struct ifx_device *ref = minihost_open(plugin, plain, "ref");
    if (!ref)
        return 1;
    struct pair self = {.ref = ref, .dev = ref, .name = "ref", .exact = 1};
    run_device(&self, g);
    printf("levels of this machine: up to %s\n", minihost_level_name(most));
    for (uint32_t level = 0; level <= most; level++) {
        struct ifx_host *host = minihost_create(3, level);
        struct ifx_device *dev = minihost_open(plugin, host, "cpu");
        if (!dev)
            return 1;
        struct ifx_device_props props = {.struct_size = sizeof props};
        dev->ops->props(dev, &props);
        struct pair t = {.ref = ref, .dev = dev, .name = props.name};
        run_device(&t, g);
        dev->ops->close(dev);
        minihost_destroy(host);
        test_threads(plugin, level);
    }
    ref->ops->close(ref);
    minihost_destroy(plain);
    golden_close(g);
    printf("%llu checks, %llu failed\n", (unsigned long long)checks_done, (unsigned long long)checks_failed);
    return checks_failed ? 1 : 0;
}
