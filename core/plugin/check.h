/* SPDX-License-Identifier: Apache-2.0
 *
 * check.h - the conformance suite behind `infernix plugins --check FILE.so`.
 *
 * Format-tier plugins (expert banks, KV formats) are held against what expert.h, kv.h and numerics.h promise; of
 * engine-tier plugins the descriptor alone is looked at.  Every check loads the plugin in a process of its own, so that a
 * plugin that crashes, exits, prints or never returns fails that check and nothing else.
 */
#ifndef INFERNIX_CORE_CHECK_H
#define INFERNIX_CORE_CHECK_H

#include "base.h"
#include <stdio.h>

struct plugin_check_item {
    char name[64];
    bool ok;
    char *detail; /* what went wrong, or a remark; NULL: none */
};

struct plugin_check_report {
    char *path;
    char *spec;      /* options "key=value,..." that it was checked with, or NULL */
    char plugin[40]; /* name from the magic block; "" when it could not be read */
    uint32_t flags;  /* PLUGIN_CHECK_* */
    uint32_t kind;   /* IFX_KIND_*, 0 when it could not be read */
    uint32_t count, failed;
    struct plugin_check_item *items;
};

/* Runs the suite on FILE.so or FILE.so,key=value,...  A plugin that fails is IFX_OK with failed > 0; an error status means that the suite itself could not
 * run.  Call it before any thread exists, or accept that fork copies the calling thread only. */
#define PLUGIN_CHECK_FIRST  1u /* stop at the first failure */
#define PLUGIN_CHECK_SCALAR 2u /* at the scalar level alone: quicker, for plugins that have no other */
int32_t plugin_check_run(const char *path, uint32_t flags, struct plugin_check_report *report);
void plugin_check_free(struct plugin_check_report *report);
/* A line a check ("ok" or "FAIL"), or one JSON object. */
void plugin_check_print(const struct plugin_check_report *report, bool json, FILE *out);
/* All of it: runs, prints to `out`, returns the exit status (0: conforms, 1: does not).  For the command line. */
int plugin_check_main(const char *path, uint32_t flags, bool json, FILE *out);

#endif
