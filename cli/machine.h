/* SPDX-License-Identifier: Apache-2.0
 *
 * machine.h - descriptions of machines: "desktop", "desktop,vram=24G,dram=60G".
 */
#ifndef INFERNIX_CLI_MACHINE_H
#define INFERNIX_CLI_MACHINE_H

#include "predict.h"

struct machine {
    const char *name, *description;
    struct predict_machine rates;
};
extern const struct machine machines[]; /* ends with a NULL name */
/* A preset, keys that change it, or both; the first preset is what is left out.  Errors name the key. */
int32_t machine_parse(const char *what, const char *text, struct predict_machine *out, const char **name);
/* The options that make device_sim such a machine.  Owned. */
char *machine_sim_options(const struct predict_machine *m);

#endif
