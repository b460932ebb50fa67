/* SPDX-License-Identifier: Apache-2.0
 *
 * make_large.c - a checkpoint with the shapes of another but more experts and a larger vocabulary.  All weights are zero, so its file is a hole
 * behind the header and takes no space on a disk.
 */
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void die(const char *what)
{
    fprintf(stderr, "make_large: %s\n", what);
    exit(1);
}

static json_t *read_header(const char *path)
{
    uint64_t n = 0;
    FILE *f = fopen(path, "rb");
    if (f == NULL || fread(&n, 1, 8, f) != 8 || n > 1 << 24)
        die("the checkpoint cannot be read");
    char *text = malloc(n);
    if (text == NULL || fread(text, 1, n, f) != n)
        die("the header cannot be read");
    json_t *h = json_loadb(text, n, 0, NULL);
    free(text);
    fclose(f);
    return h;
}

static uint64_t element_bytes(const char *dtype)
{
    return strcmp(dtype, "F32") == 0 ? 4 : strcmp(dtype, "BF16") == 0 ? 2 : 0;
}

/* The first dimension counts experts or words; returns the tensor's bytes. */
static uint64_t enlarge(const char *name, json_t *tensor, int experts, int vocab)
{
    json_t *shape = json_object_get(tensor, "shape");
    uint64_t bytes = element_bytes(json_string_value(json_object_get(tensor, "dtype")));
    if (strstr(name, ".mlp.experts.") != NULL || strstr(name, ".mlp.gate.") != NULL)
        json_array_set_new(shape, 0, json_integer(experts));
    if (strstr(name, "embed_tokens") != NULL || strstr(name, "lm_head") != NULL)
        json_array_set_new(shape, 0, json_integer(vocab));
    for (size_t i = 0; i < json_array_size(shape); i++)
        bytes *= (uint64_t)json_integer_value(json_array_get(shape, i));
    return bytes;
}

int main(int argc, char **argv)
{
    char path[4096];
    const char *name;
    json_t *tensor;
    uint64_t at = 0, n;
    if (argc != 5)
        die("usage: make_large CHECKPOINT FOLDER EXPERTS VOCABULARY");
    snprintf(path, sizeof path, "%s/config.json", argv[1]);
    json_t *config = json_load_file(path, 0, NULL);
    snprintf(path, sizeof path, "%s/model.safetensors", argv[1]);
    json_t *header = read_header(path);
    if (config == NULL || header == NULL)
        die("no JSON in the checkpoint");
    json_object_set_new(config, "num_experts", json_integer(atoi(argv[3])));
    json_object_set_new(config, "vocab_size", json_integer(atoi(argv[4])));
    json_object_del(header, "__metadata__");
    json_object_foreach(header, name, tensor) {
        uint64_t bytes = enlarge(name, tensor, atoi(argv[3]), atoi(argv[4]));
        json_object_set_new(tensor, "data_offsets", json_pack("[I, I]", (json_int_t)at, (json_int_t)(at + bytes)));
        at += bytes;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    n = strlen(text);
    snprintf(path, sizeof path, "%s/model.safetensors", argv[2]);
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(&n, 1, 8, f) != 8 || fwrite(text, 1, n, f) != n || fflush(f) != 0 || ftruncate(fileno(f), (off_t)(8 + n + at)) != 0
        || fclose(f) != 0)
        die("the file cannot be written");
    snprintf(path, sizeof path, "%s/config.json", argv[2]);
    if (json_dump_file(config, path, JSON_INDENT(1)) != 0)
        die("config.json cannot be written");
    printf("%llu\n", (unsigned long long)(at >> 20));
    free(text);
    json_decref(header);
    json_decref(config);
    return 0;
}
