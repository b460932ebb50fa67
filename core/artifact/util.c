/* SPDX-License-Identifier: Apache-2.0
 *
 * util.c - fault lists, element types, JSON with everything dubious refused.
 */
#include "config.h"
#include "artifact_internal.h"
#include <stdio.h>
#include <string.h>

#define FAULT_BYTES 12000u

void art_fault(struct art_faults *f, const char *format, ...)
{
    char line[1024];
    va_list ap;
    f->count++;
    if (f->count > FAULTS_SHOWN || f->text.len > FAULT_BYTES)
        return;
    va_start(ap, format);
    vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    if (base_buf_addf(&f->text, "%s%s", f->text.len ? "\n  " : "", line) != IFX_OK)
        f->out_of_memory = true;
}

int32_t art_faults_end(struct art_faults *f, int32_t status, const char *what)
{
    uint64_t shown = 0;
    if (f->count == 0)
        return IFX_OK;
    for (uint64_t i = 0; i < f->text.len; i++)
        shown += f->text.data[i] == '\n';
    shown += f->text.len > 0;
    if (f->out_of_memory)
        status = base_error(IFX_ENOMEM, "%s: out of memory while listing %llu faults", what,
                            (unsigned long long)f->count);
    else if (f->count == 1)
        base_error(status, "%s", f->text.data);
    else if (shown < f->count)
        base_error(status, "%s: %llu faults:\n  %s\n  ... and %llu more", what, (unsigned long long)f->count,
                   f->text.data, (unsigned long long)(f->count - shown));
    else
        base_error(status, "%s: %llu faults:\n  %s", what, (unsigned long long)f->count, f->text.data);
    base_buf_free(&f->text);
    memset(f, 0, sizeof *f);
    return status;
}

static const struct {
    const char *text;
    uint32_t dtype, bytes;
} dtypes[] = {
    {"F32", IFX_F32, 4},         {"F16", IFX_F16, 2}, {"BF16", IFX_BF16, 2}, {"F8_E4M3", IFX_F8_E4M3, 1},
    {"U8", IFX_U8, 1},           {"I8", IFX_I8, 1},   {"I32", IFX_I32, 4},   {"I64", IFX_I64, 8},
    {"F64", IFX_F64, 8},         {"BOOL", IFX_BOOL, 1}, {"I16", IFX_I16, 2}, {"U16", IFX_U16, 2},
    {"U32", IFX_U32, 4},         {"U64", IFX_U64, 8}, {"F8_E5M2", IFX_F8_E5M2, 1}, {"W8G32", IFX_W8G32, 0},
};
#define N_DTYPES (sizeof dtypes / sizeof dtypes[0])

uint32_t art_dtype_parse(const char *text)
{
    for (size_t i = 0; i < N_DTYPES; i++)
        if (strcmp(text, dtypes[i].text) == 0)
            return dtypes[i].dtype;
    return 0;
}

const char *art_dtype_text(uint32_t dtype)
{
    for (size_t i = 0; i < N_DTYPES; i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].text;
    return "?";
}

uint32_t art_dtype_bytes(uint32_t dtype)
{
    for (size_t i = 0; i < N_DTYPES; i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].bytes;
    return 0;
}

bool art_count(const uint64_t *dims, uint32_t n_dims, uint64_t *count)
{
    uint64_t n = 1;
    bool zero = false;
    /* A zero makes the product zero, but must not hide that the others overflow. */
    for (uint32_t i = 0; i < n_dims; i++) {
        if (dims[i] == 0)
            zero = true;
        else if (!base_mul_u64(n, dims[i], &n))
            return false;
    }
    *count = zero ? 0 : n;
    return true;
}

void art_shape_text(char out[128], const uint64_t *dims, uint32_t n_dims)
{
    int at = snprintf(out, 128, "[");
    for (uint32_t i = 0; i < n_dims && at < 100; i++)
        at += snprintf(out + at, 128 - (size_t)at, "%s%llu", i ? ", " : "", (unsigned long long)dims[i]);
    snprintf(out + at, 128 - (size_t)at, "]");
}

int32_t art_json_parse(const char *text, uint64_t bytes, const char *what, uint64_t base_offset, bool *big,
                       json_t **out)
{
    json_error_t error;
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (*out == NULL && big != NULL && json_error_code(&error) == json_error_numeric_overflow) {
        /* Read once more with reals, so that the caller can name what holds the impossible number. */
        *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &error);
        *big = *out != NULL;
    }
    if (*out != NULL)
        return IFX_OK;
    return base_error(IFX_EFORMAT, "%s: broken JSON at byte offset %llu (line %d): %s", what,
                      (unsigned long long)(base_offset + (error.position > 0 ? (uint64_t)error.position : 0)),
                      error.line, error.text);
}

bool art_json_u64(const json_t *v, bool big, uint64_t *out)
{
    if (json_is_integer(v)) {
        json_int_t i = json_integer_value(v);
        *out = (uint64_t)i;
        return i >= 0;
    }
    if (big && json_is_real(v)) {
        double d = json_real_value(v);
        if (!(d >= 0 && d < 9007199254740992.0) || d != (double)(uint64_t)d)
            return false;
        *out = (uint64_t)d;
        return true;
    }
    return false;
}

const char *art_impostor(const void *data, uint64_t bytes)
{
    const char *p = data;
    uint64_t at = 0;
    if (bytes >= 23 && memcmp(p, "version https://git-lfs", 23) == 0)
        return "a git-lfs pointer, not the file itself: fetch it with `git lfs pull` or download it again";
    while (at < bytes && at < 64 && (p[at] == ' ' || p[at] == '\n' || p[at] == '\r' || p[at] == '\t'))
        at++;
    if (at < bytes && p[at] == '<')
        return "an HTML or XML page, not the file itself: the download answered with a page";
    if (bytes >= 4 && memcmp(p, "GGUF", 4) == 0)
        return "a GGUF file: infernix reads Hugging Face checkpoints and .infernix files";
    if (bytes >= 4 && memcmp(p, "PK\003\004", 4) == 0)
        return "a zip archive (a PyTorch .bin?): safetensors files are needed";
    return NULL;
}
