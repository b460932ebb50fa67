/* SPDX-License-Identifier: Apache-2.0
 *
 * model_on_disk.h - for commands that look at a model without running it: artifact, family, banks.
 */
#ifndef INFERNIX_CLI_MODEL_ON_DISK_H
#define INFERNIX_CLI_MODEL_ON_DISK_H

#include "cli.h"

struct model_bank {
    const struct registry_plugin *plugin;
    const struct ifx_expert_ops *ops;
    void *bank;
};
struct model_on_disk {
    struct artifact *artifact;
    const struct ifx_model_ops *family;
    const struct registry_plugin *family_plugin;
    void *model;
    const struct ifx_model_desc *desc;
};

/* path NULL: the demo model. */
int32_t model_on_disk_open(struct ifx_context *c, const char *path, struct model_on_disk *out);
/* Only the second half: a family for an artifact that is open already. */
int32_t model_on_disk_describe(struct ifx_context *c, struct model_on_disk *m);
void model_on_disk_close(struct model_on_disk *m);

/* Bank `format` for the experts of the model (all layers must have one shape). */
int32_t model_bank_open(struct ifx_context *c, const struct ifx_model_desc *desc, const char *format,
                        struct model_bank *out);
void model_bank_close(struct model_bank *b);

/* "12.3 MiB" */
void text_bytes(char out[32], uint64_t bytes);

#endif
