/* SPDX-License-Identifier: Apache-2.0
 *
 * test_main.c - runs the operation tests on device `ref` and on `cpu` at every level that this machine has; or on a device with
 * memory of its own.
 *
 *     test_ops [PLUGIN.so [GOLDEN-FOLDER]]                  defaults: $IFX_DEVICE_CPU, $IFX_GOLDEN
 *     test_ops PLUGIN.so GOLDEN-FOLDER OTHER.so IDENTITY [ROUNDS]
 *
 * The second form tests IDENTITY of OTHER.so on 1,000 random shapes an operation (ROUNDS hundreds of them, 10 if absent) and says 77 when the
 * machine has no such device.
 *
 * Needs nothing but the plugin: it runs on another machine from a copied build tree.
 */
#include "mirror.h"
#include "optest.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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

static void run_device(const struct pair *t, const struct golden *g, uint32_t rounds)
{
    uint64_t before = checks_done, failed = checks_failed;
    test_goldens(t, g);
    test_elementwise(t, rounds);
    test_router(t, rounds + rounds / 2);
    test_route(t, rounds);
    test_product(t, rounds);
    test_delta(t);
    test_edges(t);
    test_streams(t, g);
    if (!t->exact)
        test_linear(t);
    printf("%-18s %llu checks, %llu failed\n", t->name, (unsigned long long)(checks_done - before),
           (unsigned long long)(checks_failed - failed));
    fflush(stdout);
}

/* A device that is not this program's memory.  Some tests have fewer than a thousand shapes of their own: other seeds give more. */
static int other_device(char **argv, const struct golden *g, struct ifx_device *ref, uint32_t tenths)
{
    struct ifx_host *host = minihost_create(1, minihost_detect());
    struct ifx_device *real = minihost_open(argv[3], host, argv[4]);
    if (!real) {
        int expected = access("/dev/nvidiactl", F_OK) == 0;
        printf("%s: %s\n", expected ? "FAILED" : "skipped", minihost_error(host));
        return expected ? 1 : 77;
    }
    struct ifx_device_props props = {.struct_size = sizeof props};
    check(real->ops->props(real, &props) == IFX_OK, "%s has no properties", argv[4]);
    printf("%s: %s\n", props.name, props.detail);
    struct pair t = {.ref = ref, .dev = mirror_open(real), .name = argv[4], .any_order = 1};
    run_device(&t, g, 100 * tenths);
    for (uint32_t more = 1; more * 3 <= tenths; more++) {
        t.seed = more * 1000003ull;
        test_linear(&t);
        test_delta(&t);
        test_streams(&t, g);
    }
    t.dev->ops->close(t.dev);
    minihost_destroy(host);
    return 0;
}

static void cpu_levels(const char *plugin, const struct golden *g, struct ifx_device *ref)
{
    uint32_t most = minihost_detect();
    struct pair self = {.ref = ref, .dev = ref, .name = "ref", .exact = 1};
    run_device(&self, g, 120);
    printf("levels of this machine: up to %s\n", minihost_level_name(most));
    for (uint32_t level = 0; level <= most; level++) {
        struct ifx_host *host = minihost_create(3, level);
        struct ifx_device *dev = minihost_open(plugin, host, "cpu");
        if (!check(dev != NULL, "device cpu does not open"))
            return;
        struct ifx_device_props props = {.struct_size = sizeof props};
        dev->ops->props(dev, &props);
        struct pair t = {.ref = ref, .dev = dev, .name = props.name};
        run_device(&t, g, 120);
        test_wide_offsets(&t);
        dev->ops->close(dev);
        minihost_destroy(host);
        test_threads(plugin, level);
    }
}

int main(int argc, char **argv)
{
    const char *plugin = argc > 1 ? argv[1] : getenv("IFX_DEVICE_CPU");
    const char *folder = argc > 2 ? argv[2] : getenv("IFX_GOLDEN");
    uint32_t tenths = argc > 5 ? (uint32_t)atoi(argv[5]) : 10;
    if (!plugin || !folder || argc == 4 || tenths < 1 || tenths > 1000) {
        printf("usage: test_ops PLUGIN.so GOLDEN-FOLDER [OTHER.so IDENTITY [ROUNDS]]\n");
        return 2;
    }
    struct golden *g = goldens(folder);
    struct ifx_host *plain = minihost_create(1, minihost_detect());
    struct ifx_device *ref = minihost_open(plugin, plain, "ref");
    if (!ref)
        return 1;
    int status = 0;
    if (argc > 4)
        status = other_device(argv, g, ref, tenths);
    else
        cpu_levels(plugin, g, ref);
    ref->ops->close(ref);
    minihost_destroy(plain);
    golden_close(g);
    printf("%llu checks, %llu failed\n", (unsigned long long)checks_done, (unsigned long long)checks_failed);
    return checks_failed ? 1 : status;
}
