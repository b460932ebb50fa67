/* SPDX-License-Identifier: Apache-2.0
 *
 * test_text.c - numbers, sizes, names, UTF-8, the error record, the growing buffer.
 */
#include "config.h"
#include "../comma_locale.h"
#include "base.h"
#include "base_internal.h"
#include "test.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static void test_whole_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t min, max, value;
        const char *error; /* NULL: accepted */
    } t[] = {
        {"0", 0, 10, 0, NULL},
        {"-5", -10, 10, -5, NULL},
        {"+7", -10, 10, 7, NULL},
        {"007", 0, 10, 7, NULL},
        {"9223372036854775807", INT64_MIN, INT64_MAX, INT64_MAX, NULL},
        {"-9223372036854775808", INT64_MIN, INT64_MAX, INT64_MIN, NULL},
        {"9223372036854775808", INT64_MIN, INT64_MAX, 0, "out of range"},
        {"99999999999999999999", 0, 4096, 0, "0 to 4096"},
        {"11", 0, 10, 0, "0 to 10"},
        {"-1", 0, 10, 0, "0 to 10"},
        {"12k", 0, 100, 0, "\"12k\" is not a whole number"},
        {"1.0", 0, 100, 0, "not a whole number"},
        {"", 0, 100, 0, "not a whole number"},
        {" 1", 0, 100, 0, "not a whole number"},
        {"1 ", 0, 100, 0, "not a whole number"},
        {"-", 0, 100, 0, "not a whole number"},
        {"0x10", 0, 100, 0, "not a whole number"},
        {"1e3", 0, 10000, 0, "not a whole number"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        int64_t v = -99;
        int32_t status = base_parse_i64(t[i].text, "--ctx", t[i].min, t[i].max, &v);
        if (t[i].error == NULL) {
            if (status != IFX_OK || v != t[i].value)
                fail_msg("\"%s\": expected %lld, got status %d value %lld", t[i].text, (long long)t[i].value, status,
                         (long long)v);
        } else {
            if (status != IFX_EINVAL || v != -99)
                fail_msg("\"%s\": expected a refusal, got status %d value %lld", t[i].text, status, (long long)v);
            ERROR_HAS(t[i].error);
            ERROR_HAS("--ctx");
        }
    }
}

static void check_floats(void)
{
    static const struct {
        const char *text;
        double value;
        const char *error;
    } t[] = {
        {"0.5", 0.5, NULL},   {"-1", -1, NULL},         {"1e2", 100, NULL},      {".5", .5, NULL},
        {"5.", 5, NULL},      {"1E-3", 1e-3, NULL},     {"", 0, "not a number"}, {"abc", 0, "not a number"},
        {"0,5", 0, "not a"},  {"1.5x", 0, "not a"},     {"nan", 0, "not a"},     {"inf", 0, "not a"},
        {"0x1p3", 0, "not a"}, {"1e", 0, "not a"},      {"e5", 0, "not a"},      {" 1", 0, "not a"},
        {"1e999", 0, "range"}, {"1001", 0, "-1 to 1000"}, {"1.2.3", 0, "not a"}, {"--1", 0, "not a"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        double v = -99;
        int32_t status = base_parse_f64(t[i].text, "--temperature", -1, 1000, &v);
        if (t[i].error == NULL) {
            if (status != IFX_OK || v != t[i].value)
                fail_msg("\"%s\": expected %g, got status %d value %g", t[i].text, t[i].value, status, v);
        } else {
            if (status != IFX_EINVAL || v != -99)
                fail_msg("\"%s\": expected a refusal, got status %d value %g", t[i].text, status, v);
            ERROR_HAS(t[i].error);
        }
    }
    static const double values[] = {0, 1, -1, 0.1, 1.0 / 3, 1e22, 1e-300, 5e-324, DBL_MAX, 123456789.125, 0.7};
    char out[32];
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        double back;
        base_format_f64(out, values[i]);
        assert_null(strchr(out, ','));
        assert_int_equal(base_parse_f64(out, "x", -DBL_MAX, DBL_MAX, &back), IFX_OK);
        if (back != values[i])
            fail_msg("%.17g was written as %s and read as %.17g", values[i], out, back);
    }
    base_format_f64(out, 0.1);
    assert_string_equal(out, "0.1");
    base_format_f64(out, 1000);
    assert_string_equal(out, "1000");
    base_format_f64(out, -1e-5);
    assert_string_equal(out, "-0.00001");
    base_format_f64(out, 1e22);
    assert_string_equal(out, "1e+22");
    base_format_f64(out, NAN);
    assert_string_equal(out, "null");
    base_format_f64(out, -INFINITY);
    assert_string_equal(out, "null");
}

static void test_floats(void **state)
{
    (void)state;
    check_floats();
}

static void test_floats_with_comma_locale(void **state)
{
    (void)state;
    char probe[16];
    const char *comma = comma_locale();
    if (comma == NULL) {
        print_message("no locale with a decimal comma and no localedef\n");
        skip();
    }
    assert_non_null(setlocale(LC_ALL, comma));
    snprintf(probe, sizeof probe, "%.1f", 0.5);
    assert_string_equal(probe, "0,5"); /* the test would prove nothing otherwise */
    check_floats();
    snprintf(probe, sizeof probe, "%.1f", 0.5);
    assert_string_equal(probe, "0,5"); /* and the program's locale is untouched */
    setlocale(LC_ALL, "C");
}

static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t value;
        const char *error;
    } t[] = {
        {"4096", 4096, NULL},
        {"0", 0, NULL},
        {"1K", 1024, NULL},
        {"12G", UINT64_C(12) << 30, NULL},
        {"512M", UINT64_C(512) << 20, NULL},
        {"2T", UINT64_C(2) << 40, NULL},
        {"1.5G", UINT64_C(3) << 29, NULL},
        {"3GiB", UINT64_C(3) << 30, NULL},
        {"3gb", 0, "not a size"},
        {"3g", UINT64_C(3) << 30, NULL},
        {"", 0, "not a size"},
        {"G", 0, "not a size"},
        {"-1", 0, "not a size"},
        {"1.5", 0, "not a size"},
        {"1.G", 0, "not a size"},
        {"1GG", 0, "not a size"},
        {"12 G", 0, "not a size"},
        {"16777216T", 0, "out of range"},
        {"18446744073709551616", 0, "out of range"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        uint64_t v = 77;
        int32_t status = base_parse_bytes(t[i].text, "--vram-budget", &v);
        if (t[i].error == NULL) {
            if (status != IFX_OK || v != t[i].value)
                fail_msg("\"%s\": expected %llu, got status %d value %llu", t[i].text, (unsigned long long)t[i].value,
                         status, (unsigned long long)v);
        } else {
            if (status != IFX_EINVAL || v != 77)
                fail_msg("\"%s\": expected a refusal, got status %d", t[i].text, status);
            ERROR_HAS(t[i].error);
        }
    }
}

static void test_nearest(void **state)
{
    (void)state;
    static const char *const words[] = {"run", "chat", "temperature", "top-k", "int8", "bf16", "group", NULL};
    static const struct {
        const char *name, *want;
    } t[] = {{"rum", "run"},     {"tempreature", "temperature"}, {"int9", "int8"}, {"gruop", "group"},
             {"top_k", "top-k"}, {"zzzzzz", NULL},               {"", NULL},       {"x", NULL}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        const char *got = base_nearest(t[i].name, words);
        if ((got == NULL) != (t[i].want == NULL) || (got != NULL && strcmp(got, t[i].want) != 0))
            fail_msg("\"%s\": expected %s, got %s", t[i].name, t[i].want ? t[i].want : "none", got ? got : "none");
    }
    char longest[300];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    const char *const with_long[] = {longest, "b", NULL};
    assert_null(base_nearest(longest, with_long));
    assert_null(base_nearest("aa", with_long));
}

static void test_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        bool valid;
    } t[] = {{"abc", true},           {"\xc3\xa4", true},         {"\xe2\x82\xac", true},  {"\xf0\x9f\x98\x80", true},
             {"", true},              {"\x80", false},            {"\xc0\xaf", false},     {"\xc1\xbf", false},
             {"\xe0\x9f\xbf", false}, {"\xed\xa0\x80", false},    {"\xed\x9f\xbf", true},  {"\xf0\x8f\xbf\xbf", false},
             {"\xf4\x90\x80\x80", false}, {"\xf4\x8f\xbf\xbf", true}, {"\xf5\x80\x80\x80", false},
             {"\xe2\x82", false},     {"\xc3", false},            {"\xc3(", false},        {"\xff", false}};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        if (base_utf8_valid(t[i].bytes, strlen(t[i].bytes)) != t[i].valid)
            fail_msg("case %zu: expected %s", i, t[i].valid ? "valid" : "invalid");
    assert_true(base_utf8_valid("a\0b", 3));
}

static void test_errors(void **state)
{
    (void)state;
    base_error_clear();
    assert_string_equal(base_error_text(), "");
    assert_int_equal(base_error(IFX_EIO, "tensor %d", 5), IFX_EIO);
    assert_string_equal(base_error_text(), "tensor 5");
    assert_int_equal(base_error_prefix(IFX_EFORMAT, "file %s", "x"), IFX_EFORMAT);
    assert_string_equal(base_error_text(), "file x: tensor 5");
    base_error(IFX_EIO, "again: %s", base_error_text());
    assert_string_equal(base_error_text(), "again: file x: tensor 5");
    for (int i = 0; i < 5000; i++)
        base_error_prefix(IFX_EIO, "prefix %d", i);
    assert_int_equal(strlen(base_error_text()), BASE_ERROR_BYTES - 1);
    assert_true(strncmp(base_error_text(), "prefix 4999: prefix 4998", 24) == 0);
}

static void test_fallbacks(void **state)
{
    (void)state;
    base_log_set_level(IFX_LOG_ERROR);
    uint32_t before = base_fallback_count();
    base_fallback("k1", "first %d", 1);
    base_fallback("k1", "first %d", 2);
    base_fallback("k2", "second");
    assert_int_equal(base_fallback_count(), before + 2);
    assert_string_equal(base_fallback_at(before), "first 1");
    assert_string_equal(base_fallback_at(before + 1), "second");
    assert_null(base_fallback_at(before + 2));
    base_log_set_level(IFX_LOG_INFO);
}

static void test_memory(void **state)
{
    (void)state;
    struct base_buf b = {0};
    char want[2001] = "";
    for (int i = 0; i < 200; i++) {
        assert_int_equal(base_buf_addf(&b, "%010d", i), IFX_OK);
        char number[16];
        snprintf(number, sizeof number, "%010d", i);
        strcat(want, number);
        assert_int_equal(b.data[b.len], 0);
    }
    assert_string_equal(b.data, want);
    assert_int_equal(base_buf_add(&b, "\0x", 2), IFX_OK);
    assert_int_equal(b.len, 2002);
    base_buf_free(&b);
    assert_null(b.data);

    assert_null(base_calloc(UINT64_C(1) << 40, UINT64_C(1) << 40));
    ERROR_HAS("out of memory");
    assert_null(base_alloc(UINT64_MAX, 64));
    assert_null(base_realloc(NULL, UINT64_MAX, 2));
    assert_null(base_map_anon(UINT64_MAX));
    void *p = base_alloc(0, 64);
    assert_non_null(p);
    base_free(p);
    p = base_alloc(100, 4096);
    assert_int_equal((uintptr_t)p % 4096, 0);
    base_free(p);
    uint64_t *z = base_calloc(1000, 8);
    assert_int_equal((uintptr_t)z % 64, 0);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(z[i], 0);
    base_free(z);
    static const uint64_t sizes[] = {1, 4096, 4097, 6u << 20, (6u << 20) + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *m = base_map_anon(sizes[i]);
        assert_non_null(m);
        assert_int_equal(m[0] | m[sizes[i] - 1], 0);
        m[0] = m[sizes[i] - 1] = 1;
        base_unmap(m, sizes[i]);
    }
    char *s = base_format("%s-%d", "x", 7);
    assert_string_equal(s, "x-7");
    base_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_numbers), cmocka_unit_test(test_floats),
        cmocka_unit_test(test_floats_with_comma_locale), cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_nearest), cmocka_unit_test(test_utf8), cmocka_unit_test(test_errors),
        cmocka_unit_test(test_fallbacks), cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
