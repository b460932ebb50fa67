/* SPDX-License-Identifier: Apache-2.0
 *
 * machine.c - see machine.h.
 *
 * Rates are what programs reach, not what data sheets say: 85 % of the memory's, 70 % of the matrix units'.  CPUs: 48 GFLOP/s a core on
 * experts of about 8 columns with AVX2 (bench/RESULTS.md has 50 at 8 and 71 at 16 for Zen 3), four times that a core with AMX.
 */
#include "config.h"
#include "machine.h"
#include <stdio.h>
#include <string.h>

#define G 1e9
#define T 1e12
#define GIB 1073741824.0

#define RATES(VRAM, RAM, LINK, LATENCY, DRAM, CPU, MEMORY, DENSE, EXPERT, KERNEL)                                   \
    {.vram = (VRAM) * GIB, .ram = (RAM) * GIB, .link = (LINK) * G, .latency = LATENCY, .dram = (DRAM) * G,            \
     .cpu_flops = (CPU) * T, .memory = (MEMORY) * G, .flops = (DENSE) * T, .expert_flops = (EXPERT) * T, .kernel = KERNEL}

const struct machine machines[] = {
    {"desktop", "8 cores, two channels of DDR5, RTX 5090 on PCIe 5 x8", RATES(32, 96, 26, 10e-6, 75, 0.385, 1500, 146, 100, 2e-6)},
    {"old", "6 cores, two channels of DDR4, RTX 3090 on PCIe 3 x16", RATES(24, 64, 12, 12e-6, 40, 0.29, 800, 50, 35, 3e-6)},
    {"server", "64 cores with AMX, twelve channels of DDR5, L40S on PCIe 4 x16",
     RATES(48, 512, 25, 10e-6, 400, 13, 730, 180, 120, 2e-6)},
    {.name = NULL},
};

struct key {
    const char *name;
    double *at;
    double unit, scale; /* of K, M, G, T; of the number itself */
    bool none;          /* may be 0 */
};

static double suffix(const char *text, double unit, size_t *digits)
{
    static const char suffixes[] = "KMGT";
    size_t n = strlen(text);
    const char *s = n > 1 ? strchr(suffixes, text[n - 1]) : NULL;
    double factor = 1;
    *digits = s != NULL && *s ? n - 1 : n;
    for (const char *p = suffixes; s != NULL && *s && p <= s; p++)
        factor *= unit;
    return factor;
}

static int32_t set_key(const char *what, struct predict_machine *m, const char *name, const char *value)
{
    const struct key keys[] = {{"vram", &m->vram, 1024, 1, false},
                               {"ram", &m->ram, 1024, 1, false},
                               {"link", &m->link, 1000, 1, false},
                               {"latency", &m->latency, 1000, 1e-6, true},
                               {"dram", &m->dram, 1000, 1, false},
                               {"cpu-flops", &m->cpu_flops, 1000, 1, false},
                               {"vram-bandwidth", &m->memory, 1000, 1, false},
                               {"flops", &m->flops, 1000, 1, false},
                               {"expert-flops", &m->expert_flops, 1000, 1, false},
                               {"kernel", &m->kernel, 1000, 1e-6, true}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char number[64], label[96];
        size_t digits;
        double v, factor;
        if (strcmp(name, keys[i].name) != 0)
            continue;
        factor = suffix(value, keys[i].unit, &digits);
        snprintf(number, sizeof number, "%.*s", (int)(digits < 63 ? digits : 63), value);
        snprintf(label, sizeof label, "%s: %s", what, name);
        int32_t st = base_parse_f64(number, label, keys[i].none ? 0 : 1e-9, 1e18, &v);
        *keys[i].at = v * factor * keys[i].scale;
        return st;
    }
    return base_error(IFX_EINVAL, "%s: there is no key %s; there are vram, ram, link, latency, dram, cpu-flops, vram-bandwidth, flops, "
                      "expert-flops and kernel", what, name);
}

int32_t machine_parse(const char *what, const char *text, struct predict_machine *out, const char **name)
{
    char *copy = base_strdup(text), *next = copy;
    int32_t st = copy ? IFX_OK : IFX_ENOMEM;
    *out = machines[0].rates;
    *name = machines[0].name;
    for (char *item = next; st == IFX_OK && item != NULL; item = next) {
        uint32_t i = 0;
        char *value;
        next = strchr(item, ',');
        if (next != NULL)
            *next++ = 0;
        value = strchr(item, '=');
        if (value != NULL) {
            *value++ = 0;
            st = set_key(what, out, item, value);
            continue;
        }
        while (machines[i].name != NULL && strcmp(item, machines[i].name) != 0)
            i++;
        if (!*item)
            st = base_error(IFX_EINVAL, "%s: \"%s\" has an empty item; it is a name (desktop, old or server) with key=value behind it, separated by commas", what, text);
        else if (machines[i].name == NULL || item != copy)
            st = base_error(IFX_EINVAL, "%s: %s is no machine; there are desktop, old and server, with key=value behind them", what, item);
        else
            *out = machines[i].rates, *name = machines[i].name;
    }
    base_free(copy);
    return st;
}

char *machine_sim_options(const struct predict_machine *m)
{
    return base_format("clock=virtual,vram=%.0f,link=%.0f,latency=%g,dram=%.0f,cpu-flops=%.0f,vram-bandwidth=%.0f,flops=%.0f,"
                       "expert-flops=%.0f,kernel=%g", m->vram, m->link, m->latency * 1e6, m->dram, m->cpu_flops, m->memory, m->flops,
                       m->expert_flops, m->kernel * 1e6);
}
