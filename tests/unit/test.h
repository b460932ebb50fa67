/* SPDX-License-Identifier: Apache-2.0
 *
 * test.h - what the cmocka programs of this folder share.
 */
#ifndef INFERNIX_TESTS_UNIT_TEST_H
#define INFERNIX_TESTS_UNIT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* The error record must hold `part`; the failure says what it holds. */
#define ERROR_HAS(part)                                                                                       \
    do {                                                                                                      \
        if (strstr(base_error_text(), part) == NULL)                                                          \
            fail_msg("expected an error with \"%s\", got \"%s\"", part, base_error_text());                   \
    } while (0)

#endif
