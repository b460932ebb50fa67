/* SPDX-License-Identifier: Apache-2.0
 *
 * helper.h - for the tests of this folder: a description made from what a checkpoint holds, scratch folders, files.
 */
#ifndef INFERNIX_TEST_ARTIFACT_HELPER_H
#define INFERNIX_TEST_ARTIFACT_HELPER_H

#include "artifact.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Every tensor that is no expert becomes a parameter of the shape it has; a missing lm_head is tied.  Lives until the
 * next call of helper_desc_free. */
struct ifx_model_desc *helper_desc(const struct artifact *a);
void helper_desc_free(struct ifx_model_desc *d);

/* $IFX_GOLDEN/checkpoints/NAME; skips the test when the golden data is not there. */
const char *helper_golden(const char *name);

/* A new folder under $TMPDIR or /tmp; removed with all files in it by helper_remove. */
char *helper_folder(void);
void helper_remove(char *folder);
void helper_write(const char *folder, const char *name, const void *data, uint64_t bytes);
void helper_copy(const char *from_folder, const char *from_name, const char *folder, const char *name);
/* Whole file, 0-terminated; freed with free. */
char *helper_read(const char *folder, const char *name, uint64_t *bytes);

/* The open must fail and the message hold every one of the texts (NULL-terminated list). */
void helper_open_fails(const char *path, const char *const *texts);

#endif
