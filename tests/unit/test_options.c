/* SPDX-License-Identifier: Apache-2.0
 *
 * test_options.c - option tables: values, ranges, unknown keys, bad tables.  The way from the program to its plugins.
 */
#include "config.h"
#include "registry_internal.h"
#include "test.h"

static const struct ifx_option table[] = {
    {"group", IFX_OPT_INT, 0, "64", "group size", 16, 256},
    {"seed", IFX_OPT_INT, 0, NULL, "any number", 0, 0},
    {"clip", IFX_OPT_FLOAT, 0, "0.5", "clip", 0, 0},
    {"exact", IFX_OPT_BOOL, 0, "no", "exact", 0, 0},
    {"mode", IFX_OPT_STRING, 0, NULL, "mode", 0, 0},
    {NULL, 0, 0, NULL, NULL, 0, 0},
};

static void test_values(void **state)
{
    (void)state;
    struct ifx_options *o;
    assert_int_equal(registry_options_parse(table, "kv_x", NULL, &o), IFX_OK);
    assert_int_equal(registry_options_int(o, "group"), 64);
    assert_int_equal(registry_options_int(o, "seed"), 0);
    assert_true(registry_options_float(o, "clip") == 0.5);
    assert_int_equal(registry_options_int(o, "exact"), 0);
    assert_null(registry_options_text(o, "mode"));
    assert_string_equal(registry_options_text(o, "group"), "64");
    registry_options_free(o);

    assert_int_equal(registry_options_parse(table, "kv_x", "group=128,seed=-5,clip=1e-3,exact,mode=a=b", &o), IFX_OK);
    assert_int_equal(registry_options_int(o, "group"), 128);
    assert_int_equal(registry_options_int(o, "seed"), -5);
    assert_true(registry_options_float(o, "clip") == 1e-3);
    assert_int_equal(registry_options_int(o, "exact"), 1);
    assert_string_equal(registry_options_text(o, "mode"), "a=b");
    registry_options_free(o);

    /* the last one wins; an empty string is a value */
    assert_int_equal(registry_options_parse(table, "kv_x", "group=16,mode=,group=32,exact=on,exact=off", &o), IFX_OK);
    assert_int_equal(registry_options_int(o, "group"), 32);
    assert_int_equal(registry_options_int(o, "exact"), 0);
    assert_string_equal(registry_options_text(o, "mode"), "");
    registry_options_free(o);
    assert_int_equal(registry_options_parse(NULL, "kv_x", NULL, &o), IFX_OK);
    assert_int_equal(registry_options_int(o, "group"), 0);
    registry_options_free(o);
    registry_options_free(NULL);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } t[] = {
        {"gruop=64", "did you mean \"group\""},
        {"gruop=64", "options: group, seed, clip, exact, mode"},
        {"zzzzzzzzz=1", "unknown option \"zzzzzzzzz\" (options"},
        {"group=8", "16 to 256"},
        {"group=257", "16 to 256"},
        {"group=12k", "not a whole number"},
        {"group=", "not a whole number"},
        {"group", "needs a value"},
        {"clip=0,5", "unknown option \"5\""},
        {"clip=x", "not a number"},
        {"exact=maybe", "neither yes nor no"},
        {"", "empty option"},
        {"group=64,", "empty option"},
        {",group=64", "empty option"},
        {"=5", "unknown option"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct ifx_options *o;
        int32_t status = registry_options_parse(table, "kv_x", t[i].text, &o);
        if (status != IFX_EINVAL || o != NULL)
            fail_msg("\"%s\": expected a refusal, got status %d", t[i].text, status);
        ERROR_HAS(t[i].error);
        ERROR_HAS("kv_x");
    }
    struct ifx_options *o;
    assert_int_equal(registry_options_parse(NULL, "kv_x", "a=1", &o), IFX_EINVAL);
    ERROR_HAS("has no options");
}

static void bad_table(const struct ifx_option *first, const char *error)
{
    struct ifx_option t[3] = {*first, {"group", IFX_OPT_INT, 0, "64", "", 0, 0}, {0}};
    assert_int_equal(registry_options_check_table(t), IFX_EFORMAT);
    ERROR_HAS(error);
}

static void test_tables(void **state)
{
    (void)state;
    assert_int_equal(registry_options_check_table(table), IFX_OK);
    assert_int_equal(registry_options_check_table(NULL), IFX_OK);
    bad_table(&(struct ifx_option){"Group", IFX_OPT_INT, 0, "1", "", 0, 0}, "not made of");
    bad_table(&(struct ifx_option){"", IFX_OPT_INT, 0, "1", "", 0, 0}, "not made of");
    bad_table(&(struct ifx_option){"a=b", IFX_OPT_INT, 0, "1", "", 0, 0}, "not made of");
    bad_table(&(struct ifx_option){"group", IFX_OPT_INT, 0, "1", "", 0, 0}, "listed twice");
    bad_table(&(struct ifx_option){"x", 9, 0, "1", "", 0, 0}, "type 9");
    bad_table(&(struct ifx_option){"x", 0, 0, "1", "", 0, 0}, "type 0");
    bad_table(&(struct ifx_option){"x", IFX_OPT_INT, 0, "1", "", 5, 2}, "range");
    bad_table(&(struct ifx_option){"x", IFX_OPT_INT, 0, "9", "", 1, 2}, "bad default");
    bad_table(&(struct ifx_option){"x", IFX_OPT_FLOAT, 0, "y", "", 0, 0}, "bad default");
    struct ifx_option endless[200];
    for (int i = 0; i < 200; i++)
        endless[i] = table[0];
    assert_int_equal(registry_options_check_table(endless), IFX_EFORMAT);
    ERROR_HAS("does not end");
}

static void test_relative(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *want;
    } t[] = {
        {"/usr/local/bin", "/usr/local/lib/infernix", "../lib/infernix"},
        {"/usr/bin", "/usr/lib/x86_64-linux-gnu/infernix", "../lib/x86_64-linux-gnu/infernix"},
        {"/usr/local/bin", "/x/lib64/infernix", "../../../x/lib64/infernix"},
        {"/opt/a", "/opt/ab/lib", "../ab/lib"},
        {"/opt/a b/bin/", "/opt/a b/lib", "../lib"},
        {"/opt/ix", "/opt/ix/lib", "lib"},
        {"/opt/ix/lib", "/opt/ix", "../"},
        {"/bin", "/lib/infernix", "../lib/infernix"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char *got = registry_relative(t[i].from, t[i].to);
        assert_non_null(got);
        if (strcmp(got, t[i].want) != 0)
            fail_msg("%s to %s: expected %s, got %s", t[i].from, t[i].to, t[i].want, got);
        base_free(got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_relative),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
