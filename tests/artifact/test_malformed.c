/* SPDX-License-Identifier: Apache-2.0
 *
 * test_malformed.c - broken safetensors, index, config and .infernix files: each must be refused with a message that says what
 * is wrong, by the library and by the program (exit status 1), and nothing may crash.
 */
#include "config.h"
#include "container.h"
#include "helper.h"
#include "registry.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

static const char good_config[] = "{\"architectures\": [\"Qwen3_5ForCausalLM\"]}";
static const char good_header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}";
static uint32_t cases; /* refused so far */

/* The program must say the same and exit with 1. */
static void program_fails(const char *path, const char *what)
{
    const char *program = getenv("IFX_PROGRAM");
    char command[9000];
    if (program == NULL)
        return;
    snprintf(command, sizeof command, "'%s' inspect '%s' >/dev/null 2>'%s.err'", program, path, path);
    int rc = system(command);
    if (!WIFEXITED(rc) || WEXITSTATUS(rc) != 1)
        fail_msg("%s: infernix inspect: expected exit status 1, got %d (signal %d)", what,
                 WIFEXITED(rc) ? WEXITSTATUS(rc) : -1, WIFSIGNALED(rc) ? WTERMSIG(rc) : 0);
    snprintf(command, sizeof command, "%s.err", path);
    unlink(command);
}

static void refused(const char *path, const char *what, const char *text)
{
    struct artifact *a = NULL;
    base_error_clear();
    if (artifact_open(path, &a) == IFX_OK) {
        artifact_close(a);
        fail_msg("%s: opened; a refusal with \"%s\" was expected", what, text);
    }
    if (strstr(base_error_text(), text) == NULL)
        fail_msg("%s: expected \"%s\" in the message, got: %s", what, text, base_error_text());
    program_fails(path, what);
    cases++;
}

static void le64(char *p, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        p[i] = (char)(v >> (8 * i));
}

/* A safetensors file; length UINT64_MAX - 1: the header's own. */
#define OWN_LENGTH (UINT64_MAX - 1)
static void write_st(const char *folder, const char *name, const char *header, uint64_t length, uint64_t data_bytes)
{
    size_t n = strlen(header);
    char *file = calloc(1, 8 + n + data_bytes + 1);
    assert_non_null(file);
    le64(file, length == OWN_LENGTH ? n : length);
    memcpy(file + 8, header, n);
    helper_write(folder, name, file, 8 + n + data_bytes);
    free(file);
}

static void test_headers(void **state)
{
    static const struct {
        const char *what, *header;
        uint64_t length, data_bytes;
        const char *text;
    } table[] = {
        {"header length 0", good_header, 0, 16, "header length 0"},
        {"header length 1", good_header, 1, 16, "header length 1"},
        {"header length 7", good_header, 7, 16, "broken JSON"},
        {"header length 2^63", good_header, 1ull << 63, 16, "header length 9223372036854775808"},
        {"header length 2^64-1", good_header, UINT64_MAX, 16, "header length 18446744073709551615"},
        {"header length size + 1", good_header, sizeof good_header - 1 + 17, 16, "cut short"},
        {"header length = rest of the file", good_header, sizeof good_header - 1 + 16, 16, "broken JSON"},
        {"no JSON", "hello, this is text, and not JSON", OWN_LENGTH, 16, "no safetensors header"},
        {"array header", "[1, 2, 3]", OWN_LENGTH, 16, "no safetensors header"},
        {"cut JSON", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],", OWN_LENGTH, 16, "broken JSON"},
        {"text after the JSON", "{} x", OWN_LENGTH, 0, "broken JSON"},
        {"duplicate tensor", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}", OWN_LENGTH, 16, "duplicate"},
        {"duplicate key in a tensor", "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}",
         OWN_LENGTH, 16, "duplicate"},
        {"NUL in a name", "{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", OWN_LENGTH, 16, "JSON"},
        {"invalid UTF-8 name", "{\"\xff\xfe\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", OWN_LENGTH, 16,
         "JSON"},
        {"empty name", "{\"\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", OWN_LENGTH, 16, "empty"},
        {"control characters in a name", "{\"a\\u001b[2J\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}",
         OWN_LENGTH, 16, "control characters"},
        {"tensor is a number", "{\"a\":7}", OWN_LENGTH, 0, "tensor a"},
        {"no dtype", "{\"a\":{\"shape\":[4],\"data_offsets\":[0,16]}}", OWN_LENGTH, 16, "\"dtype\""},
        {"dtype is a number", "{\"a\":{\"dtype\":3,\"shape\":[4],\"data_offsets\":[0,16]}}", OWN_LENGTH, 16, "\"dtype\""},
        {"long dtype", "{\"a\":{\"dtype\":\"F32F32F32F32F32F32F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", OWN_LENGTH, 16,
         "\"dtype\""},
        {"no shape", "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", OWN_LENGTH, 16, "\"shape\""},
        {"shape is a number", "{\"a\":{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,16]}}", OWN_LENGTH, 16, "\"shape\""},
        {"shape [2^32, 2^32]", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,16]}}",
         OWN_LENGTH, 16, "overflows"},
        {"shape [2^62, 4]", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", OWN_LENGTH,
         0, "overflows"},
        {"shape whose bytes overflow", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}",
         OWN_LENGTH, 0, "does not fit"},
        {"zero hides an overflow", "{\"a\":{\"dtype\":\"F32\",\"shape\":[0,4294967296,4294967296],\"data_offsets\":[0,0]}}",
         OWN_LENGTH, 0, "overflows"},
        {"shape [-1]", "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,16]}}", OWN_LENGTH, 16, "shape[0]"},
        {"shape [1.5]", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,16]}}", OWN_LENGTH, 16, "shape[0]"},
        {"shape [\"4\"]", "{\"a\":{\"dtype\":\"F32\",\"shape\":[\"4\"],\"data_offsets\":[0,16]}}", OWN_LENGTH, 16, "shape[0]"},
        {"shape [2^64]", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4,18446744073709551616],\"data_offsets\":[0,16]}}", OWN_LENGTH,
         16, "shape[1]"},
        {"nine dimensions", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,4],\"data_offsets\":[0,16]}}", OWN_LENGTH, 16,
         "at most 8"},
        {"shape [] with 16 bytes", "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,16]}}", OWN_LENGTH, 16,
         "does not fit"},
        {"no offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4]}}", OWN_LENGTH, 16, "\"data_offsets\""},
        {"one offset", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0]}}", OWN_LENGTH, 16, "\"data_offsets\""},
        {"three offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16,32]}}", OWN_LENGTH, 16,
         "\"data_offsets\""},
        {"offsets reversed", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,4]}}", OWN_LENGTH, 16,
         "before it begins"},
        {"offsets as text", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[\"0\",\"4\"]}}", OWN_LENGTH, 4,
         "\"data_offsets\""},
        {"negative offset", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[-16,0]}}", OWN_LENGTH, 16,
         "\"data_offsets\""},
        {"offsets [0, 2^64-1]", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,18446744073709551615]}}",
         OWN_LENGTH, 16, "tensor a"},
        {"offsets [0, 2^63-1]", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,9223372036854775807]}}", OWN_LENGTH,
         16, "cut short"},
        {"offset past the end", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[4,20]}}", OWN_LENGTH, 16, "cut short"},
        {"too few bytes for the shape", "{\"a\":{\"dtype\":\"F32\",\"shape\":[5],\"data_offsets\":[0,16]}}", OWN_LENGTH, 16,
         "does not fit"},
        {"wrong dtype for the bytes", "{\"a\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,16]}}", OWN_LENGTH, 16,
         "does not fit"},
        {"unknown dtype past the end", "{\"a\":{\"dtype\":\"F4\",\"shape\":[64],\"data_offsets\":[0,32]}}", OWN_LENGTH, 16,
         "cut short"},
        {"overlap", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[4,16]}}", OWN_LENGTH, 16, "overlaps"},
        {"same place twice", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", OWN_LENGTH, 16, "overlaps"},
        {"gap", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}", OWN_LENGTH, 16, "belong to no tensor"},
        {"16 trailing bytes", good_header, OWN_LENGTH, 32, "16 bytes after the last tensor"},
        {"metadata is a number", "{\"__metadata__\":3}", OWN_LENGTH, 0, "__metadata__"},
        {"metadata holds a list", "{\"__metadata__\":{\"a\":[1]}}", OWN_LENGTH, 0, "__metadata__"},
        {"same logical name twice", "{\"model.a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"model.language_model.a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}", OWN_LENGTH, 16,
         "stored twice"},
    };
    (void)state;
    char *folder = helper_folder();
    struct artifact *a;
    helper_write(folder, "config.json", good_config, sizeof good_config - 1);
    write_st(folder, "model.safetensors", good_header, OWN_LENGTH, 16);
    if (artifact_open(folder, &a) != IFX_OK) /* what the table breaks is right */
        fail_msg("%s", base_error_text());
    artifact_close(a);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        write_st(folder, "model.safetensors", table[i].header, table[i].length, table[i].data_bytes);
        refused(folder, table[i].what, table[i].text);
    }
    helper_remove(folder);
}

static void test_deep_json(void **state)
{
    (void)state;
    char *folder = helper_folder(), *deep = calloc(1, 400000);
    assert_non_null(deep);
    helper_write(folder, "config.json", good_config, sizeof good_config - 1);
    strcpy(deep, "{\"__metadata__\":");
    memset(deep + strlen(deep), '[', 300000);
    write_st(folder, "model.safetensors", deep, OWN_LENGTH, 0);
    refused(folder, "300,000 nested arrays in a header", "JSON");
    helper_write(folder, "config.json", deep, strlen(deep));
    write_st(folder, "model.safetensors", good_header, OWN_LENGTH, 16);
    refused(folder, "300,000 nested arrays in the config", "JSON");
    free(deep);
    helper_remove(folder);
}

/* Cut anywhere, a file is refused. */
static void test_cuts(void **state)
{
    (void)state;
    char *folder = helper_folder();
    const size_t n = 8 + sizeof good_header - 1 + 16;
    char *file = calloc(1, n);
    assert_non_null(file);
    le64(file, sizeof good_header - 1);
    memcpy(file + 8, good_header, sizeof good_header - 1);
    helper_write(folder, "config.json", good_config, sizeof good_config - 1);
    for (size_t cut = 0; cut < n; cut++) {
        struct artifact *a;
        helper_write(folder, "model.safetensors", file, cut);
        if (artifact_open(folder, &a) == IFX_OK)
            fail_msg("cut to %zu bytes: opened", cut);
        if (strstr(base_error_text(), "model.safetensors") == NULL)
            fail_msg("cut to %zu bytes: the message does not name the file: %s", cut, base_error_text());
        cases++;
    }
    free(file);
    helper_remove(folder);
}

static void test_impostors(void **state)
{
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0123456789abcdef\nsize 5000\n";
    static const char html[] = "\n<!DOCTYPE html><html><body>404</body></html>";
    (void)state;
    char *folder = helper_folder(), path[4400];
    helper_write(folder, "config.json", good_config, sizeof good_config - 1);
    helper_write(folder, "model.safetensors", lfs, sizeof lfs - 1);
    refused(folder, "git-lfs pointer", "git-lfs pointer");
    helper_write(folder, "model.safetensors", html, sizeof html - 1);
    refused(folder, "HTML page", "HTML");
    write_st(folder, "model.safetensors", good_header, OWN_LENGTH, 16);
    helper_write(folder, "config.json", lfs, sizeof lfs - 1);
    refused(folder, "git-lfs pointer as config", "config.json: is a git-lfs pointer");
    helper_write(folder, "config.json", good_config, sizeof good_config - 1);
    helper_write(folder, "tokenizer.json", html, sizeof html - 1);
    refused(folder, "HTML as tokenizer", "tokenizer.json: is an HTML");
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    unlink(path);
    helper_write(folder, "x.bin", "GGUF\3\0\0\0", 8);
    snprintf(path, sizeof path, "%s/x.bin", folder);
    refused(path, "GGUF", "GGUF");
    helper_write(folder, "x.bin", "whatever", 8);
    refused(path, "some file", "neither");
    helper_remove(folder);
}

/* FIFOs, devices and directories in place of a file: refused, without hanging. */
static void test_special_files(void **state)
{
    (void)state;
    char *folder = helper_folder(), path[4400];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    helper_write(folder, "config.json", good_config, sizeof good_config - 1);
    assert_int_equal(mkfifo(path, 0600), 0);
    refused(folder, "FIFO", "not a regular file");
    refused(path, "FIFO named directly", "not a regular file");
    unlink(path);
    assert_int_equal(symlink("/dev/zero", path), 0);
    refused(folder, "device", "not a regular file");
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    refused(folder, "directory", "directory");
    rmdir(path);
    refused(folder, "no file", "No such file");
    assert_int_equal(symlink("nowhere", path), 0);
    refused(folder, "dangling link", "No such file");
    unlink(path);
    /* The layout of the Hugging Face cache: links into another folder. */
    char *blobs = helper_folder(), blob[4400];
    struct artifact *a;
    write_st(blobs, "0123456789abcdef", good_header, OWN_LENGTH, 16);
    snprintf(blob, sizeof blob, "%s/0123456789abcdef", blobs);
    assert_int_equal(symlink(blob, path), 0);
    if (artifact_open(folder, &a) != IFX_OK)
        fail_msg("cache layout: %s", base_error_text());
    artifact_close(a);
    helper_remove(blobs);
    helper_remove(folder);
}

static void test_configs(void **state)
{
    static const struct {
        const char *what, *config, *text;
    } table[] = {
        {"empty", "", "JSON"},
        {"cut", "{\"architectures\": [\"A\"", "JSON"},
        {"array", "[1]", "object"},
        {"number", "7", "config.json"},
        {"no architectures", "{\"hidden_size\": 3}", "architectures"},
        {"architectures is text", "{\"architectures\": \"A\"}", "architectures"},
        {"architectures is empty", "{\"architectures\": []}", "architectures"},
        {"architectures holds a number", "{\"architectures\": [5]}", "architectures"},
        {"text_config is a list", "{\"architectures\": [\"A\"], \"text_config\": [1]}", "text_config"},
        {"duplicate key", "{\"architectures\": [\"A\"], \"hidden_size\": 1, \"hidden_size\": 2}", "duplicate"},
        {"huge number", "{\"architectures\": [\"A\"], \"hidden_size\": 99999999999999999999999}", "JSON"},
        {"NUL", "{\"architectures\": [\"A\\u0000\"]}", "JSON"},
        {"BOM", "\xef\xbb\xbf{\"architectures\": [\"A\"]}", "JSON"},
    };
    (void)state;
    char *folder = helper_folder(), path[4400];
    write_st(folder, "model.safetensors", good_header, OWN_LENGTH, 16);
    refused(folder, "no config", "config.json");
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        helper_write(folder, "config.json", table[i].config, strlen(table[i].config));
        refused(folder, table[i].what, table[i].text);
    }
    /* Both kinds of fault in one message. */
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    unlink(path);
    refused(folder, "config and weights", "2 faults");
    helper_remove(folder);
}

/* ---- index ---- */
static void write_index(const char *folder, const char *text)
{
    helper_write(folder, "model.safetensors.index.json", text, strlen(text));
}

static void test_index(void **state)
{
    static const struct {
        const char *what, *index, *text;
    } table[] = {
        {"no JSON", "{", "JSON"},
        {"no weight_map", "{\"metadata\": {}}", "weight_map"},
        {"weight_map is a list", "{\"weight_map\": []}", "weight_map"},
        {"weight_map is empty", "{\"weight_map\": {}}", "weight_map"},
        {"duplicate tensor", "{\"weight_map\": {\"a\": \"1.safetensors\", \"a\": \"2.safetensors\"}}", "duplicate"},
        {"path upwards", "{\"weight_map\": {\"a\": \"../x.safetensors\"}}", "plain file name"},
        {"absolute path", "{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "plain file name"},
        {"sub-folder", "{\"weight_map\": {\"a\": \"b/x.safetensors\"}}", "plain file name"},
        {"two dots", "{\"weight_map\": {\"a\": \"..\"}}", "plain file name"},
        {"empty name", "{\"weight_map\": {\"a\": \"\"}}", "empty"},
        {"number", "{\"weight_map\": {\"a\": 5}}", "no text"},
        {"missing shard", "{\"weight_map\": {\"a\": \"1.safetensors\", \"b\": \"3.safetensors\"}}", "3.safetensors"},
        {"tensor in another shard", "{\"weight_map\": {\"a\": \"2.safetensors\", \"b\": \"1.safetensors\"}}",
         "it is in 1.safetensors"},
        {"tensor nowhere", "{\"weight_map\": {\"a\": \"1.safetensors\", \"c\": \"1.safetensors\"}}", "tensor c is not in it"},
    };
    static const char header_b[] = "{\"b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}";
    static const char good[] = "{\"weight_map\": {\"a\": \"1.safetensors\", \"b\": \"2.safetensors\"}}";
    (void)state;
    char *folder = helper_folder(), path[4400];
    struct artifact *a;
    helper_write(folder, "config.json", good_config, sizeof good_config - 1);
    write_st(folder, "1.safetensors", good_header, OWN_LENGTH, 16);
    write_st(folder, "2.safetensors", header_b, OWN_LENGTH, 16);
    write_index(folder, good);
    if (artifact_open(folder, &a) != IFX_OK)
        fail_msg("%s", base_error_text());
    artifact_close(a);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        write_index(folder, table[i].index);
        refused(folder, table[i].what, table[i].text);
    }
    /* One shard short, the other gone: both are named at once. */
    write_index(folder, good);
    snprintf(path, sizeof path, "%s/1.safetensors", folder);
    assert_int_equal(truncate(path, 8 + (off_t)sizeof good_header - 1 + 15), 0);
    snprintf(path, sizeof path, "%s/2.safetensors", folder);
    unlink(path);
    const char *both[] = {"2 faults", "1.safetensors", "2.safetensors", "cut short", NULL};
    helper_open_fails(folder, both);
    cases++;
    helper_remove(folder);
}

/* ---- checkpoints that open, and then do not hold what the model needs ---- */

/* Replaces the first `from` in the file (same length). */
static void patch_text(const char *folder, const char *from, const char *to)
{
    uint64_t bytes;
    char *file = helper_read(folder, "model.safetensors", &bytes);
    char *at = memmem(file, bytes, from, strlen(from));
    assert_int_equal(strlen(from), strlen(to));
    assert_non_null(at);
    memcpy(at, to, strlen(to));
    helper_write(folder, "model.safetensors", file, bytes);
    free(file);
}

static void patch_byte(const char *folder, uint64_t offset, const void *to, uint64_t n)
{
    uint64_t bytes;
    char *file = helper_read(folder, "model.safetensors", &bytes);
    assert_true(offset + n <= bytes);
    memcpy(file + offset, to, n);
    helper_write(folder, "model.safetensors", file, bytes);
    free(file);
}

static char *golden_copy(const char *name)
{
    char *folder = helper_folder();
    helper_copy(helper_golden(name), "config.json", folder, "config.json");
    helper_copy(helper_golden(name), "model.safetensors", folder, "model.safetensors");
    return folder;
}

static uint64_t offset_of(const struct artifact *a, const char *logical)
{
    for (uint64_t i = 0; i < artifact_entry_count(a); i++) {
        const struct artifact_entry *e = artifact_entry_at(a, i);
        if (e->logical_name && strcmp(e->logical_name, logical) == 0)
            return e->offset;
    }
    fail_msg("%s: not found", logical);
    return 0;
}

static void check_fails(const char *folder, const struct ifx_model_desc *d, bool values, struct base_pool *pool,
                        const char *what, const char *const *texts)
{
    struct artifact *a;
    if (artifact_open(folder, &a) != IFX_OK)
        fail_msg("%s: %s", what, base_error_text());
    int32_t status = values ? artifact_check_values(a, d, NULL, NULL, pool, NULL, NULL) : artifact_check(a, d);
    if (status == IFX_OK)
        fail_msg("%s: no fault was found", what);
    for (int i = 0; texts[i] != NULL; i++)
        if (strstr(base_error_text(), texts[i]) == NULL)
            fail_msg("%s: expected \"%s\" in the message, got: %s", what, texts[i], base_error_text());
    artifact_close(a);
    cases++;
}

static void test_missing_and_odd(void **state)
{
    (void)state;
    struct artifact *a;
    struct base_pool *pool;
    assert_int_equal(base_pool_create(2, false, &pool), IFX_OK);
    char *folder = golden_copy("qwen3_5_moe-tiny-nvfp4");
    assert_int_equal(artifact_open(folder, &a), IFX_OK);
    struct ifx_model_desc *d = helper_desc(a);
    uint64_t scales = offset_of(a, "layers.0.mlp.experts.3.down_proj.weight_scale");
    uint64_t s2 = offset_of(a, "layers.0.mlp.experts.3.up_proj.weight_scale_2");
    artifact_close(a);

    patch_text(folder, "layers.0.mlp.experts.3.down_proj.weight_scale_2\"", "layers.0.mlp.experts.3.down_proj.weight_scale_X\"");
    patch_text(folder, "layers.1.mlp.experts.5.gate_proj.weight_scale\"", "layers.1.mlp.experts.5.gate_proj.weight_scalX\"");
    patch_text(folder, "layers.2.mlp.experts.0.up_proj.weight\"", "layers.2.mlp.experts.0.up_proj.weighX\"");
    patch_text(folder, "layers.0.input_layernorm.weight\"", "layers.0.input_layernorm.weighX\"");
    const char *missing[] = {"4 faults", "layers.0.mlp.experts.3.down_proj.weight_scale_2, which is missing",
                             "layers.1.mlp.experts.5.gate_proj.weight_scale, which is missing",
                             "layers.2.mlp.experts.0.up_proj.weight is missing",
                             "layers.0.input_layernorm.weight is missing", NULL};
    check_fails(folder, d, false, pool, "missing scales and weights", missing);
    helper_remove(folder);

    folder = golden_copy("qwen3_5_moe-tiny-nvfp4");
    static const uint8_t nan_scale = 0x7f;
    static const float nan_s2 = __builtin_nanf("");
    char offset[64];
    patch_byte(folder, scales + 5, &nan_scale, 1);
    snprintf(offset, sizeof offset, "byte offset %llu", (unsigned long long)(scales + 5));
    const char *nan_texts[] = {"layers.0.mlp.experts.3.down_proj.weight_scale", offset, "NaN", NULL};
    check_fails(folder, d, true, pool, "NaN block scale", nan_texts);
    float *w = calloc(3, d->moe[0].hidden * d->moe[0].inter * sizeof *w);
    uint64_t n = (uint64_t)d->moe[0].hidden * d->moe[0].inter;
    assert_int_equal(artifact_open(folder, &a), IFX_OK);
    assert_int_equal(artifact_expert_rows(a, &d->moe[0], 3, w, w + n, w + 2 * n), IFX_EFORMAT);
    assert_non_null(strstr(base_error_text(), offset));
    assert_int_equal(artifact_expert_rows(a, &d->moe[0], 4, w, w + n, w + 2 * n), IFX_OK);
    artifact_close(a);
    /* A negative block scale is a legal value, and is used as it stands. */
    static const uint8_t negative = 0xb8; /* -1 */
    patch_byte(folder, scales + 5, &negative, 1);
    patch_byte(folder, s2, &nan_s2, 4);
    const char *s2_texts[] = {"layers.0.mlp.experts.3.up_proj.weight_scale_2", "NaN", NULL};
    check_fails(folder, d, true, pool, "NaN tensor scale", s2_texts);
    free(w);
    helper_desc_free(d);
    helper_remove(folder);

    /* Dense values that are not finite, an expert too. */
    folder = golden_copy("qwen3_5_moe-tiny");
    assert_int_equal(artifact_open(folder, &a), IFX_OK);
    d = helper_desc(a);
    static const uint16_t inf = 0x7f80;
    patch_byte(folder, offset_of(a, "layers.1.linear_attn.out_proj.weight") + 2 * (64 * 3 + 7), &inf, 2);
    patch_byte(folder, offset_of(a, "layers.2.mlp.experts.gate_up_proj") + 2 * (64 * 64 * 5 + 64 * 40 + 1), &inf, 2);
    patch_byte(folder, offset_of(a, "norm.weight"), &inf, 2);
    artifact_close(a);
    const char *values[] = {"3 faults", "layers.1.linear_attn.out_proj.weight", "row 3, column 7",
                            "layers.2.mlp.experts.gate_up_proj", "row 360, column 1", "model.norm.weight", NULL};
    check_fails(folder, d, true, pool, "values that are not finite", values);
    /* Another shape than the config's. */
    struct ifx_param *p = (struct ifx_param *)(uintptr_t)&d->params[0];
    for (uint32_t i = 0; i < d->n_params; i++)
        if (strstr(d->params[i].name, "layers.0.linear_attn.in_proj_z"))
            p = (struct ifx_param *)(uintptr_t)&d->params[i];
    p->rows++;
    const char *shape[] = {"in_proj_z", "[64, 64]", "[65, 64]", "byte offset", NULL};
    check_fails(folder, d, false, pool, "shape", shape);
    p->rows--;
    struct ifx_moe_layer *m = (struct ifx_moe_layer *)(uintptr_t)&d->moe[1];
    m->experts = 17;
    const char *experts[] = {"layers.1.mlp.experts.gate_up_proj", "[16, 64, 64]", "[17, 64, 64]", NULL};
    check_fails(folder, d, false, pool, "expert count", experts);
    m->experts = 16;
    patch_text(folder, "layers.0.linear_attn.in_proj_z.weight\"", "layers.0.linear_attn.in_proj_z.weighX\"");
    const char *gone[] = {"layers.0.linear_attn.in_proj_z.weight is missing", NULL};
    check_fails(folder, d, false, pool, "missing matrix", gone);
    helper_desc_free(d);
    helper_remove(folder);
    base_pool_destroy(pool);
}

/* ---- .infernix ---- */
struct image {
    uint8_t *data;
    uint64_t bytes;
    json_t *index;
    uint64_t index_at;
};

static struct image load_container(const char *path)
{
    struct image im = {0};
    char *data;
    if (base_read_file(path, 1u << 30, &data, &im.bytes) != IFX_OK)
        fail_msg("%s", base_error_text());
    im.data = (uint8_t *)data;
    im.index_at = container_get(im.data + HEADER_INDEX_OFFSET, 8);
    uLongf n = container_get(im.data + HEADER_INDEX_BYTES, 8);
    char *text = malloc(n);
    assert_int_equal(uncompress((Bytef *)text, &n, im.data + im.index_at, im.bytes - im.index_at), Z_OK);
    im.index = json_loadb(text, n, 0, NULL);
    assert_non_null(im.index);
    free(text);
    return im;
}

static void fix_crc(uint8_t *data)
{
    container_put(data + HEADER_CRC, 4, crc32(0, data, HEADER_CRC));
}

/* Writes the container with the index text given, everything else consistent. */
static void write_with_index(const struct image *im, const char *path, const char *text, uint64_t text_bytes)
{
    uLongf n = compressBound(text_bytes);
    uint8_t *file = malloc(im->index_at + n);
    memcpy(file, im->data, im->index_at);
    assert_int_equal(compress2(file + im->index_at, &n, (const Bytef *)text, text_bytes, 6), Z_OK);
    container_put(file + HEADER_FILE_BYTES, 8, im->index_at + n);
    container_put(file + HEADER_INDEX_STORED, 8, n);
    container_put(file + HEADER_INDEX_BYTES, 8, text_bytes);
    container_put(file + HEADER_INDEX_CRC, 4, crc32(0, file + im->index_at, (uInt)n));
    fix_crc(file);
    char *slash = strrchr(path, '/');
    char folder[4400];
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    helper_write(folder, slash + 1, file, im->index_at + n);
    free(file);
}

/* One change of the index: the value at PATH (keys and numbers between slashes) becomes `value` (JSON), or is deleted (NULL). */
static void index_case(const struct image *im, const char *path, const char *at, const char *value, const char *text)
{
    json_t *index = json_deep_copy(im->index), *o = index;
    char keys[200], what[300], *key = keys, *slash;
    snprintf(keys, sizeof keys, "%s", at);
    while ((slash = strchr(key, '/')) != NULL) {
        *slash = 0;
        o = json_is_array(o) ? json_array_get(o, (size_t)atoi(key)) : json_object_get(o, key);
        assert_non_null(o);
        key = slash + 1;
    }
    if (value == NULL)
        json_object_del(o, key);
    else if (json_is_array(o))
        json_array_set_new(o, (size_t)atoi(key), json_loads(value, JSON_DECODE_ANY, NULL));
    else
        json_object_set_new(o, key, json_loads(value, JSON_DECODE_ANY, NULL));
    char *dump = json_dumps(index, 0);
    write_with_index(im, path, dump, strlen(dump));
    snprintf(what, sizeof what, "index %s = %s", at, value ? value : "(absent)");
    refused(path, what, text);
    free(dump);
    json_decref(index);
}

static void header_case(const struct image *im, const char *path, const char *what, uint32_t at, uint32_t bytes,
                        uint64_t value, bool crc, const char *text)
{
    uint8_t *file = malloc(im->bytes);
    char folder[4400], *slash = strrchr(path, '/');
    memcpy(file, im->data, im->bytes);
    container_put(file + at, bytes, value);
    if (crc)
        fix_crc(file);
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    helper_write(folder, slash + 1, file, im->bytes);
    refused(path, what, text);
    free(file);
}

static void test_container_header(const struct image *im, const char *path)
{
    header_case(im, path, "newer version", HEADER_VERSION, 4, 2, true, "needs infernix");
    header_case(im, path, "much newer version", HEADER_VERSION, 4, UINT32_MAX, false, "needs infernix");
    header_case(im, path, "version 0", HEADER_VERSION, 4, 0, true, "damaged");
    header_case(im, path, "header CRC", HEADER_FILE_BYTES, 1, 0xff, false, "CRC-32");
    header_case(im, path, "shorter than the file", HEADER_FILE_BYTES, 8, im->bytes - 1, true, "after its end");
    header_case(im, path, "longer than the file", HEADER_FILE_BYTES, 8, im->bytes + 1, true, "cut short");
    header_case(im, path, "index offset 0", HEADER_INDEX_OFFSET, 8, 0, true, "index");
    header_case(im, path, "index offset 2^63", HEADER_INDEX_OFFSET, 8, 1ull << 63, true, "index");
    header_case(im, path, "index offset unaligned", HEADER_INDEX_OFFSET, 8, im->index_at + 1, true, "index");
    header_case(im, path, "index length wraps", HEADER_INDEX_STORED, 8, UINT64_MAX - im->index_at + 2, true, "index");
    header_case(im, path, "index of 2^40 bytes declared", HEADER_INDEX_BYTES, 8, 1ull << 40, true, "not possible");
    header_case(im, path, "index one byte longer declared", HEADER_INDEX_BYTES, 8,
                container_get(im->data + HEADER_INDEX_BYTES, 8) + 1, true, "inflate");
    header_case(im, path, "index one byte shorter declared", HEADER_INDEX_BYTES, 8,
                container_get(im->data + HEADER_INDEX_BYTES, 8) - 1, true, "inflate");
    header_case(im, path, "index CRC", HEADER_INDEX_CRC, 4, 12345, true, "CRC-32");
    header_case(im, path, "header page padding", CONTAINER_HEADER + 7, 1, 1, true, "must be zero");
}

static void test_container_index(const struct image *im, const char *path)
{
    static const char tensor[] = "tensors/embed_tokens.weight/";
    char key[200];
    index_case(im, path, "sections", "[]", "belong to no section");
    index_case(im, path, "sections", NULL, "sections");
    index_case(im, path, "sections/1/offset", "8192.5", "section 1");
    index_case(im, path, "sections/1/offset", "-4096", "section 1");
    index_case(im, path, "sections/1/offset", "4096", "overlaps");
    index_case(im, path, "sections/1/offset", "4097", "not aligned");
    index_case(im, path, "sections/1/bytes", "9223372036854771712", "ends past");
    index_case(im, path, "sections/2/bytes", "4096", "gap");
    index_case(im, path, "sections/1/crc32", "4294967296", "odd");
    index_case(im, path, "tensors", NULL, "tensors");
    index_case(im, path, "assets", NULL, "config.json");
    index_case(im, path, "assets/config.json/bytes", "1099511627776", "past its end");
    index_case(im, path, "assets/config.json/section", "99", "odd");
    static const struct {
        const char *field, *value, *text;
    } fields[] = {
        {"section", "4294967296", "odd"}, {"section", "-1", "odd"},       {"offset", "1", "misaligned"},
        {"offset", "1099511627776", "past"}, {"offset", "9223372036854775744", "past"}, {"bytes", "1", "do not fit"},
        {"bytes", "1099511627776", "past"},  {"dtype", "\"F99\"", "unknown"}, {"dtype", "\"W8G32\"", "do not fit"},
        {"dtype", "7", "unknown"}, {"shape", "[4294967296, 4294967296]", "do not fit"}, {"shape", "[-1, 64]", "no count"},
        {"shape", "5", "shape"}, {"shape", "[1,1,1,1,1,1,1]", "shape"}, {"offset", NULL, "odd"},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        snprintf(key, sizeof key, "%s%s", tensor, fields[i].field);
        index_case(im, path, key, fields[i].value, fields[i].text);
    }
    index_case(im, path, "experts/0/experts", "1099511627776", "do not fill");
    index_case(im, path, "experts/0/experts", "4503599627370497", "do not fill"); /* wraps at this stride */
    index_case(im, path, "experts/0/experts", "0", "do not fill");
    index_case(im, path, "experts/0/record_bytes", "0", "do not fill");
    index_case(im, path, "experts/0/record_bytes", "100", "do not fill");
    index_case(im, path, "experts/0/section", "77", "experts[0]");
    index_case(im, path, "experts/0/section", "3", "used twice");
    index_case(im, path, "experts/0/section", "1", "do not fill");
    index_case(im, path, "experts/0/hidden", "0", "impossible");
    index_case(im, path, "experts/0/hidden", "1099511627776", "impossible");
    index_case(im, path, "experts/0/format", "\"../x\"", "experts[0]");
    index_case(im, path, "experts/1/format", "\"other\"", "one format");
    index_case(im, path, "experts/0/prefix", "7", "experts[0]");
    index_case(im, path, "experts", "{}", "array");
    write_with_index(im, path, "[", 1);
    refused(path, "index is no JSON", "JSON");
    write_with_index(im, path, "{\"sections\":1,\"sections\":2}", 27);
    refused(path, "index has a key twice", "duplicate");
    /* A stream of zeros that inflates to 512 MiB, honestly declared and not. */
    uint64_t zeros = 512u << 20;
    char *big = calloc(1, zeros);
    assert_non_null(big);
    write_with_index(im, path, big, zeros);
    refused(path, "bomb, declared", "not possible");
    struct image bomb = {0};
    char *data;
    assert_int_equal(base_read_file(path, 1u << 30, &data, &bomb.bytes), IFX_OK);
    bomb.data = (uint8_t *)data;
    bomb.index_at = im->index_at;
    header_case(&bomb, path, "bomb, 1 MiB declared", HEADER_INDEX_BYTES, 8, 1u << 20, true, "inflate");
    free(data);
    free(big);
}

/* Reading all records at once finds the damage too, and a file that shrinks under it. */
static void records_damaged(struct artifact *a, const char *path, const char *number, const struct ifx_model_desc *d, struct base_pool *pool)
{
    struct artifact_records at;
    uint8_t *to[64];
    struct stat st;
    assert_true(d->n_moe < 64);
    for (uint32_t l = 0; l < d->n_moe; l++) {
        assert_int_equal(artifact_records_at(a, l, &at), IFX_OK);
        to[l] = base_alloc(at.experts * at.record_bytes, 4096);
        assert_non_null(to[l]);
    }
    int32_t status = artifact_records_read(a, pool, to, NULL, NULL);
    if (status != IFX_EFORMAT || !strstr(base_error_text(), number) || !strstr(base_error_text(), "CRC-32"))
        fail_msg("reading the records of %s: status %d: %s", number, status, base_error_text());
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, (off_t)at.offset + 100), 0);
    status = artifact_records_read(a, pool, to, NULL, NULL);
    if (status != IFX_EFORMAT || !strstr(base_error_text(), "cut short"))
        fail_msg("reading the records of a file that shrank: status %d: %s", status, base_error_text());
    assert_int_equal(truncate(path, st.st_size), 0);
    for (uint32_t l = 0; l < d->n_moe; l++)
        base_free(to[l]);
}

/* A flipped byte in each section: found when the section is used, and by the check. */
static void test_container_flips(const struct image *im, const char *folder, const char *path, const struct ifx_model_desc *d,
                                 struct base_pool *pool)
{
    const json_t *sections = json_object_get(im->index, "sections");
    for (size_t i = 0; i < json_array_size(sections); i++) {
        const json_t *s = json_array_get(sections, i);
        uint64_t at = (uint64_t)json_integer_value(json_object_get(s, "offset"));
        uint64_t n = (uint64_t)json_integer_value(json_object_get(s, "bytes"));
        struct artifact *a;
        char number[32];
        snprintf(number, sizeof number, "section %zu", i);
        im->data[at + n / 2 + i] ^= 0x10;
        helper_write(folder, "m.infernix", im->data, im->bytes);
        im->data[at + n / 2 + i] ^= 0x10;
        if (i == 0) {
            refused(path, "flip in the assets", "section 0");
            continue;
        }
        assert_int_equal(artifact_open(path, &a), IFX_OK);
        int32_t status = artifact_check_values(a, d, NULL, NULL, pool, NULL, NULL);
        if (status == IFX_OK || strstr(base_error_text(), number) == NULL || strstr(base_error_text(), "CRC-32") == NULL)
            fail_msg("flip in %s: status %d: %s", number, status, base_error_text());
        const void *record;
        uint64_t bytes;
        if (i >= 2) {
            records_damaged(a, path, number, d, pool);
            assert_int_equal(artifact_expert_record(a, (uint32_t)i - 2, 0, &record, &bytes), IFX_EFORMAT);
            artifact_set_verify(a, false);
            assert_int_equal(artifact_expert_record(a, (uint32_t)i - 2, 0, &record, &bytes), IFX_OK);
        }
        artifact_close(a);
        cases++;
    }
}

static void test_container(void **state)
{
    (void)state;
    struct base_pool *pool;
    struct registry *registry;
    const struct registry_plugin *p;
    struct artifact *a;
    void *bank = NULL;
    char *folder = helper_folder(), path[4400];
    snprintf(path, sizeof path, "%s/m.infernix", folder);
    assert_int_equal(base_pool_create(2, false, &pool), IFX_OK);
    assert_int_equal(registry_create(NULL, NULL, pool, IFX_CPU_SCALAR, &registry), IFX_OK);
    assert_int_equal(artifact_open(helper_golden("qwen3_5_moe-tiny"), &a), IFX_OK);
    struct ifx_model_desc *d = helper_desc(a);
    struct ifx_expert_shape shape = {.struct_size = sizeof shape, .hidden = d->moe[0].hidden, .inter = d->moe[0].inter};
    if (registry_find(registry, IFX_KIND_EXPERT, "bf16", &p) != IFX_OK ||
        p->ops.expert->open(registry_host(registry), p->options, &shape, &bank) != IFX_OK)
        fail_msg("%s", base_error_text());
    struct artifact_convert c = {.out_path = path, .desc = d, .bank_ops = p->ops.expert, .bank = bank, .pool = pool};
    if (artifact_convert(a, &c) != IFX_OK)
        fail_msg("%s", base_error_text());
    artifact_close(a);
    p->ops.expert->close(bank);
    struct image im = load_container(path);
    test_container_header(&im, path);
    test_container_index(&im, path);
    test_container_flips(&im, folder, path, d, pool);
    /* Cut at each page, and one byte short. */
    for (uint64_t cut = 0; cut < im.bytes; cut += CONTAINER_PAGE) {
        helper_write(folder, "m.infernix", im.data, cut);
        if (artifact_open(path, &a) == IFX_OK)
            fail_msg("cut to %llu bytes: opened", (unsigned long long)cut);
        assert_true(cut == 0 || strstr(base_error_text(), "cut short") != NULL);
        cases++;
    }
    helper_write(folder, "m.infernix", im.data, im.bytes - 1);
    refused(path, "one byte short", "cut short");
    /* A flipped byte anywhere in the header page or the index. */
    for (uint64_t at = 8; at < im.bytes; at = at + 1 == CONTAINER_PAGE ? im.index_at : at + 1) {
        if (at > 200 && at < CONTAINER_PAGE - 1)
            at = CONTAINER_PAGE - 1;
        im.data[at] ^= 1;
        helper_write(folder, "m.infernix", im.data, im.bytes);
        if (artifact_open(path, &a) == IFX_OK)
            fail_msg("bit flipped at byte %llu: opened", (unsigned long long)at);
        im.data[at] ^= 1;
        cases++;
        if (at >= im.index_at)
            at += 97;
    }
    json_decref(im.index);
    free(im.data);
    helper_desc_free(d);
    registry_destroy(registry);
    base_pool_destroy(pool);
    helper_remove(folder);
}

static void test_count(void **state)
{
    (void)state;
    print_message("%u broken files were refused\n", cases);
    assert_true(cases >= 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_headers),       cmocka_unit_test(test_deep_json), cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_impostors),     cmocka_unit_test(test_special_files), cmocka_unit_test(test_configs),
        cmocka_unit_test(test_index),         cmocka_unit_test(test_missing_and_odd),
        cmocka_unit_test(test_container),     cmocka_unit_test(test_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
