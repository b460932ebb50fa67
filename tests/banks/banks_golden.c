/* SPDX-License-Identifier: Apache-2.0
 *
 * banks_golden.c - import of published NVFP4 tensors against the golden data: every code with every finite scale,
 * one quantised matrix and its product.
 */
#include "banks.h"

struct file {
    uint8_t *bytes;
    uint64_t size;
};

static int read_file(const char *folder, struct file *file)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/ops.safetensors", folder);
    FILE *f = fopen(path, "rb");
    if (!f)
        return 0;
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    file->size = (uint64_t)size;
    file->bytes = malloc(file->size + 1);
    int ok = file->bytes && fread(file->bytes, 1, file->size, f) == file->size;
    fclose(f);
    return ok;
}

/* Bytes of a tensor; the header is plain JSON, and these names need no escapes. */
static const void *find(const struct file *file, const char *name)
{
    char key[128];
    uint64_t header = 0, from = 0;
    memcpy(&header, file->bytes, 8);
    snprintf(key, sizeof key, "\"%s\"", name);
    const char *at = memmem(file->bytes + 8, header, key, strlen(key));
    at = at ? strstr(at, "\"data_offsets\"") : NULL;
    at = at ? strchr(at, '[') : NULL;
    if (!at || sscanf(at + 1, "%llu", (unsigned long long *)&from) != 1)
        return NULL;
    return file->bytes + 8 + header + from;
}

static struct ifx_tensor tensor(uint32_t dtype, uint64_t rows, uint64_t cols, const void *data)
{
    struct ifx_tensor t = {sizeof t, dtype, rows ? 2 : 0, 0, {rows ? rows : 1, rows ? cols : 1, 1, 1}, data, 0};
    t.data_bytes = rows ? rows * cols : 4;
    return t;
}

static struct ifx_expert_tensors three(uint32_t h, uint32_t inter, const void *codes, const void *scales,
                                       const float *tensor_scales)
{
    struct ifx_expert_tensors t = {sizeof t, 0, {{{0}, {0}, {0}}, {{0}, {0}, {0}}, {{0}, {0}, {0}}}};
    for (int m = 0; m < 3; m++) {
        uint64_t rows = m == 2 ? h : inter, k = m == 2 ? inter : h;
        t.matrix[m].weight = tensor(IFX_U8, rows, k / 2, codes);
        t.matrix[m].weight_scale = tensor(IFX_F8_E4M3, rows, k / 16, scales);
        t.matrix[m].weight_scale_2 = tensor(IFX_F32, 0, 0, tensor_scales + m);
    }
    return t;
}

enum { TABLE_H = 256, TABLE_I = 16 };

static void check_table(struct suite *suite, struct fixture *f, const float *values, const uint8_t *scales,
                        const float *tensor_scales)
{
    double row[TABLE_H];
    for (uint32_t m = 0; m < 3; m++) {
        uint32_t k_count = m == IFX_DOWN ? TABLE_I : TABLE_H;
        for (uint32_t g = 0; g < 254; g++) {
            suite->ops->decode_row(f->bank, f->record, m, g * 16 / k_count, row);
            for (uint32_t c = 0; c < 16; c++) {
                double got = row[g * 16 % k_count + c],
                       want = (double)values[g * 16 + c] * (double)tensor_scales[m];
                if (!expect(suite, got == want && signbit(got) == signbit(want),
                            "matrix %u, scale code 0x%02x, code %u: expected %g, got %g", m, scales[g], c, want,
                            got))
                    return;
            }
        }
    }
}

static void test_table(struct suite *suite, const struct file *file)
{
    struct fixture f;
    const float *values = find(file, "nvfp4_table.values");
    const uint8_t *scale_codes = find(file, "nvfp4_table.scale_codes");
    if (!expect(suite, values && scale_codes, "the golden data has no nvfp4_table") ||
        !fixture_open(suite, &f, TABLE_H, TABLE_I, suite->level))
        return;
    uint8_t codes[256 * 8], scales[256];
    for (int i = 0; i < 256 * 8; i++)
        codes[i] = (uint8_t)(2 * (i % 8) | (2 * (i % 8) + 1) << 4);
    memcpy(scales, scale_codes, 254);
    scales[254] = scales[255] = 0x38;
    const float tensor_scales[3] = {1.0f, 0.125f, -2.0f};
    struct ifx_expert_tensors t = three(TABLE_H, TABLE_I, codes, scales, tensor_scales);
    f.record = malloc(suite->ops->record_bytes(&f.shape));
    int32_t status = suite->ops->pack_tensors(f.bank, &t, f.record);
    expect(suite, status == 0, "import of the table: expected 0, got %d (%s)", status, f.host.error);
    check_table(suite, &f, values, scales, tensor_scales);
    for (int i = 0; i < 2; i++) {
        scales[77] = i ? 0xff : 0x7f;
        status = suite->ops->pack_tensors(f.bank, &t, f.record);
        expect(suite, status == IFX_EFORMAT, "import of a NaN scale: expected %d, got %d", IFX_EFORMAT, status);
        scales[77] = 0x38;
    }
    t.matrix[1].weight_scale.dtype = IFX_F32;
    status = suite->ops->pack_tensors(f.bank, &t, f.record);
    expect(suite, status == IFX_EUNSUPPORTED, "another layout: expected %d, got %d", IFX_EUNSUPPORTED, status);
    t = three(TABLE_H, TABLE_I, codes, scales, tensor_scales);
    t.matrix[2].weight_scale_2.dtype = 0;
    status = suite->ops->pack_tensors(f.bank, &t, f.record);
    expect(suite, status == IFX_EUNSUPPORTED, "no weight_scale_2: expected %d, got %d", IFX_EUNSUPPORTED, status);
    free(f.record);
    fixture_close(suite, &f);
}

/* nvfp4.weight is [8, 64]; eight zero rows make a matrix that a bank can hold. */
static void test_matrix(struct suite *suite, const struct file *file)
{
    struct fixture f;
    const uint8_t *weight = find(file, "nvfp4.weight"), *scale = find(file, "nvfp4.weight_scale");
    const float *tensor_scale = find(file, "nvfp4.weight_scale_2"),
                *dequantized = find(file, "nvfp4.dequantized");
    const float *x = find(file, "nvfp4.x"), *y = find(file, "nvfp4.y");
    if (!expect(suite, weight && scale && tensor_scale && dequantized && x && y,
                "the golden data has no nvfp4") ||
        !fixture_open(suite, &f, 64, 16, suite->level))
        return;
    uint8_t codes[16 * 32] = {0}, scales[16 * 4] = {0};
    memcpy(codes, weight, 8 * 32);
    memcpy(scales, scale, 8 * 4);
    const float tensor_scales[3] = {*tensor_scale, 1.0f, 1.0f};
    struct ifx_expert_tensors t = three(64, 16, codes, scales, tensor_scales);
    f.record = malloc(suite->ops->record_bytes(&f.shape));
    int32_t status = suite->ops->pack_tensors(f.bank, &t, f.record);
    expect(suite, status == 0, "import: expected 0, got %d (%s)", status, f.host.error);
    for (uint32_t r = 0; r < 8; r++) {
        double row[64];
        suite->ops->decode_row(f.bank, f.record, IFX_GATE, r, row);
        for (uint32_t k = 0; k < 64; k++)
            expect(suite, (float)row[k] == dequantized[r * 64 + k], "row %u, position %u: expected %a, got %a", r,
                   k, (double)dequantized[r * 64 + k], row[k]);
        for (uint32_t c = 0; c < 3; c++) {
            double sum = 0, absolute = 0;
            for (uint32_t k = 0; k < 64; k++) {
                sum += row[k] * (double)x[c * 64 + k];
                absolute += fabs(row[k] * (double)x[c * 64 + k]);
            }
            expect(suite, fabs(sum - (double)y[c * 8 + r]) <= 1e-6 * absolute,
                   "y[%u][%u]: expected %.9g, got %.9g", c, r, (double)y[c * 8 + r], sum);
        }
    }
    free(f.record);
    fixture_close(suite, &f);
}

void test_golden(struct suite *suite, const char *folder)
{
    struct file file = {0};
    if (expect(suite, read_file(folder, &file), "cannot read %s/ops.safetensors", folder)) {
        test_table(suite, &file);
        test_matrix(suite, &file);
    }
    free(file.bytes);
}
