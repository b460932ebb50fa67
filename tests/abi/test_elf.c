/* SPDX-License-Identifier: Apache-2.0
 *
 * test_elf.c - the ELF reader on damaged files: a good plugin with bytes changed and ends cut, thousands of times.  Whatever comes, it
 * is a verdict; the sanitizers see the rest.
 */
#include "config.h"
#include "registry.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *good;
static uint64_t good_bytes;
static uint64_t random_state = 88172645463325252u;

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static int32_t judge(const char *bytes, uint64_t n)
{
    struct ifx_magic magic;
    FILE *f = fopen("kv_bf16.so", "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    int32_t status = registry_judge_file("kv_bf16.so", &magic);
    if (status != IFX_OK && base_error_text()[0] == 0)
        fail_msg("refused without a reason");
    return status;
}

static void test_good(void **state)
{
    (void)state;
    assert_int_equal(judge(good, good_bytes), IFX_OK);
}

static void test_cut(void **state)
{
    (void)state;
    /* The section headers end the file, so every cut is seen. */
    for (uint64_t n = 0; n < good_bytes; n += n < 256 ? 1 : good_bytes / 97)
        if (judge(good, n) == IFX_OK)
            fail_msg("the first %llu of %llu bytes were accepted", (unsigned long long)n, (unsigned long long)good_bytes);
}

/* Bytes that the reader looks at: the ELF header, the section headers. */
static void test_changed(void **state)
{
    (void)state;
    char *copy = malloc(good_bytes);
    uint64_t table;
    int refused = 0;
    assert_non_null(copy);
    memcpy(&table, good + 40, 8);
    assert_in_range(table, 64, good_bytes - 64);
    for (int i = 0; i < 3000; i++) {
        memcpy(copy, good, good_bytes);
        for (uint64_t k = 1 + next_random() % 3; k > 0; k--) {
            uint64_t r = next_random(), at = r % 2 ? r / 2 % 64 : table + r / 2 % (good_bytes - table);
            copy[at] = (char)(next_random() % 4 == 0 ? 0xff : next_random());
        }
        refused += judge(copy, good_bytes) != IFX_OK;
    }
    print_message("%d of 3000 refused\n", refused);
    if (refused < 300)
        fail_msg("only %d of 3000 damaged files were refused: the reader does not look", refused);
    free(copy);
}

static int setup(void **state)
{
    (void)state;
    char path[4200];
    const char *build = getenv("IFX_BUILDDIR");
    snprintf(path, sizeof path, "%s/lib/infernix/kv_bf16.so", build ? build : "../..");
    return base_read_file(path, 64 << 20, &good, &good_bytes);
}

static int teardown(void **state)
{
    (void)state;
    base_free(good);
    return remove("kv_bf16.so");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_changed),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
