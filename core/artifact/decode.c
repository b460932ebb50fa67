/* SPDX-License-Identifier: Apache-2.0
 *
 * decode.c - from any stored form to float32 or bf16 rows.
 *
 * FP8: e4m3 codes times one float scale, or times a scale for each block of 128 x 128.  NVFP4 as in expert.h.  A negative
 * e4m3 block scale is a legal value of the type, though no exporter writes one: it is used as it stands.  A NaN scale is
 * refused.  Sources: OCP OFP8 1.0, OCP MX 1.0; tensor names as NVIDIA ModelOpt and the published FP8 checkpoints use them.
 */
#include "config.h"
#include "artifact_internal.h"
#include <infernix/numerics.h>
#include <math.h>
#include <string.h>

typedef unsigned long long ull;

/* Mapped files align nothing: every load goes through memcpy. */
static float load_f32(const uint8_t *p)
{
    float v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint16_t load_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

void art_to_f32(uint32_t dtype, const void *src, uint64_t n, float *out)
{
    const uint8_t *p = src;
    switch (dtype) {
    case IFX_F32:
        memcpy(out, p, n * sizeof *out);
        break;
    case IFX_F16:
        for (uint64_t i = 0; i < n; i++)
            out[i] = ifx_f16_to_f32(load_u16(p + 2 * i));
        break;
    case IFX_BF16:
        for (uint64_t i = 0; i < n; i++)
            out[i] = ifx_bf16_to_f32(load_u16(p + 2 * i));
        break;
    default: /* IFX_F8_E4M3 */
        for (uint64_t i = 0; i < n; i++)
            out[i] = ifx_e4m3_to_f32(p[i]);
    }
}

/* Through a float32 rounded to odd, so that the second rounding sees what the first dropped. */
uint16_t art_f64_to_bf16(double v)
{
    float f = (float)v;
    if ((double)f != v && v == v) {
        uint32_t u = ifx_f32_bits(f);
        if (fabs((double)f) > fabs(v))
            u--;
        f = ifx_bits_f32(u | 1u);
    }
    return ifx_f32_to_bf16(f);
}

static const char *weight_format(const struct artifact *a, const struct art_tensor *t)
{
    const char *name = t->pub.logical_name;
    if (t->pub.dtype == IFX_W8G32)
        return "int8, groups of 32";
    if (name != NULL && t->pub.dtype == IFX_F8_E4M3 && art_findf(a, "%s_scale_inv", name))
        return "FP8 e4m3, 128x128 scales";
    if (name != NULL && t->pub.dtype == IFX_F8_E4M3 && art_findf(a, "%s_scale", name))
        return "FP8 e4m3, one scale";
    if (name != NULL && t->pub.dtype == IFX_U8 && art_findf(a, "%s_scale_2", name))
        return "NVFP4 (ModelOpt)";
    return t->pub.dtype_text;
}

const char *artifact_entry_format(const struct artifact *a, uint64_t index, bool *scale)
{
    static const char *const suffixes[] = {"weight_scale_inv", "weight_scale_2", "weight_scale", "input_scale", NULL};
    const struct art_tensor *t = &a->tensors[index];
    const char *name = t->pub.logical_name;
    *scale = false;
    for (int i = 0; name != NULL && suffixes[i] != NULL; i++) {
        size_t n = strlen(name), m = strlen(suffixes[i]);
        if (n <= m || strcmp(name + n - m, suffixes[i]) != 0)
            continue;
        const struct art_tensor *weight = art_findf(a, "%.*sweight", (int)(n - m), name);
        *scale = weight != NULL;
        return weight ? weight_format(a, weight) : t->pub.dtype_text;
    }
    return weight_format(a, t);
}

static bool is_plain(uint32_t dtype)
{
    return dtype == IFX_F32 || dtype == IFX_F16 || dtype == IFX_BF16;
}

/* Dimensions of one are no difference: [1, 64] is [64]. */
static bool same_shape(const struct art_tensor *t, const uint64_t *want, uint32_t n)
{
    uint32_t i = 0, j = 0;
    for (;;) {
        while (i < t->pub.n_dims && t->pub.dims[i] == 1)
            i++;
        while (j < n && want[j] == 1)
            j++;
        if (i >= t->pub.n_dims || j >= n)
            return i >= t->pub.n_dims && j >= n;
        if (t->pub.dims[i++] != want[j++])
            return false;
    }
}

static bool expect_shape(const struct art_tensor *t, uint64_t planes, uint64_t rows, uint64_t cols, const char *why,
                         struct art_faults *f)
{
    uint64_t want[3] = {planes, rows, cols};
    uint32_t n = planes > 1 ? 3 : 2;
    /* Fused experts keep their three dimensions: which one is which comes from the name, never from the sizes. */
    bool good = planes > 1 ? t->pub.n_dims == 3 && memcmp(t->pub.dims, want, sizeof want) == 0
                           : same_shape(t, want + 1, 2);
    if (good)
        return true;
    char have[128], need[128];
    art_shape_text(have, t->pub.dims, t->pub.n_dims);
    art_shape_text(need, planes > 1 ? want : want + 1, n);
    art_fault(f, "%s: tensor %s at byte offset %llu: %s %s, the model needs %s%s", t->pub.file, t->pub.stored_name,
              (ull)t->pub.offset, t->pub.dtype_text, have, need, why);
    return false;
}

/* One number: 0-dimensional or [1]. */
static bool read_scalar(const struct art_tensor *t, float *out, struct art_faults *f)
{
    uint64_t count;
    if (!is_plain(t->pub.dtype) || !art_count(t->pub.dims, t->pub.n_dims, &count) || count != 1) {
        char shape[128];
        art_shape_text(shape, t->pub.dims, t->pub.n_dims);
        art_fault(f, "%s: tensor %s at byte offset %llu: %s %s, one F32, F16 or BF16 number is needed (a scale for "
                  "each channel is not read)", t->pub.file, t->pub.stored_name, (ull)t->pub.offset, t->pub.dtype_text,
                  shape);
        return false;
    }
    art_to_f32(t->pub.dtype, t->data, 1, out);
    return true;
}

static const struct art_tensor *need_scale(const struct artifact *a, const struct art_tensor *t, const char *suffix,
                                           struct art_faults *f)
{
    const struct art_tensor *s = art_findf(a, "%s%s", t->pub.logical_name, suffix);
    if (s == NULL)
        art_fault(f, "%s: tensor %s (%s) needs %s%s, which is missing", t->pub.file, t->pub.stored_name,
                  t->pub.dtype_text, t->pub.stored_name, suffix);
    return s;
}

static bool open_fp8(const struct artifact *a, struct art_source *s, struct art_faults *f)
{
    const struct art_tensor *t = s->t;
    uint64_t block_rows = (s->rows + ART_FP8_BLOCK - 1) / ART_FP8_BLOCK;
    if (!expect_shape(t, s->planes, s->rows, s->cols, "", f))
        return false;
    s->scale_ld = (s->cols + ART_FP8_BLOCK - 1) / ART_FP8_BLOCK;
    s->scale_t = art_findf(a, "%s_scale_inv", t->pub.logical_name);
    if (s->scale_t == NULL) {
        s->form = ART_FP8;
        s->scale_t = art_findf(a, "%s_scale", t->pub.logical_name);
        if (s->scale_t != NULL)
            return read_scalar(s->scale_t, &s->scale, f);
        art_fault(f, "%s: tensor %s is FP8 and needs %s_scale or %s_scale_inv; both are missing", t->pub.file,
                  t->pub.stored_name, t->pub.stored_name, t->pub.stored_name);
        return false;
    }
    s->form = ART_FP8B;
    if (!is_plain(s->scale_t->pub.dtype)) {
        art_fault(f, "%s: tensor %s at byte offset %llu: scales of type %s are not read", s->scale_t->pub.file,
                  s->scale_t->pub.stored_name, (ull)s->scale_t->pub.offset, s->scale_t->pub.dtype_text);
        return false;
    }
    return expect_shape(s->scale_t, s->planes, block_rows, s->scale_ld, " (a scale for each 128 x 128 block)", f);
}

static bool open_nvfp4(const struct artifact *a, struct art_source *s, struct art_faults *f)
{
    const struct art_tensor *t = s->t;
    s->form = ART_NVFP4;
    s->scale_t = need_scale(a, t, "_scale", f);
    s->scale2_t = need_scale(a, t, "_scale_2", f);
    if (s->scale_t == NULL || s->scale2_t == NULL)
        return false;
    if (s->cols % 16 != 0) {
        art_fault(f, "%s: tensor %s: NVFP4 needs an input dimension that is a multiple of 16, not %llu", t->pub.file,
                  t->pub.stored_name, (ull)s->cols);
        return false;
    }
    s->scale_ld = s->cols / 16;
    if (s->scale_t->pub.dtype != IFX_F8_E4M3) {
        art_fault(f, "%s: tensor %s at byte offset %llu: type %s, NVFP4 block scales are F8_E4M3", s->scale_t->pub.file,
                  s->scale_t->pub.stored_name, (ull)s->scale_t->pub.offset, s->scale_t->pub.dtype_text);
        return false;
    }
    return expect_shape(t, s->planes, s->rows, s->cols / 2, " (two NVFP4 codes a byte)", f) &&
           expect_shape(s->scale_t, s->planes, s->rows, s->scale_ld, " (a scale for each 16 values)", f) &&
           read_scalar(s->scale2_t, &s->scale, f);
}

bool art_source_open(const struct artifact *a, const struct art_tensor *t, uint64_t planes, uint64_t rows,
                     uint64_t cols, struct art_source *out, struct art_faults *f)
{
    *out = (struct art_source){.t = t, .planes = planes, .rows = rows, .cols = cols, .scale = 1.0f};
    switch (t->pub.dtype) {
    case IFX_F32:
    case IFX_F16:
    case IFX_BF16:
        out->form = ART_PLAIN;
        return expect_shape(t, planes, rows, cols, "", f);
    case IFX_F8_E4M3:
        return open_fp8(a, out, f);
    case IFX_U8:
        return open_nvfp4(a, out, f);
    case IFX_W8G32: /* containers only, whose reader has checked the sizes */
        out->form = ART_W8G32;
        out->scale_ld = (cols + 31) / 32;
        return expect_shape(t, planes, rows, cols, "", f);
    default:
        art_fault(f, "%s: tensor %s at byte offset %llu: weights of type %s are not read (BF16, F16, F32, F8_E4M3 with "
                  "scales and ModelOpt NVFP4 are)", t->pub.file, t->pub.stored_name, (ull)t->pub.offset,
                  t->pub.dtype_text);
        return false;
    }
}

static uint64_t fp8_scale_at(const struct art_source *s, uint64_t row)
{
    uint64_t block_rows = (s->rows + ART_FP8_BLOCK - 1) / ART_FP8_BLOCK;
    return (row / s->rows * block_rows + row % s->rows / ART_FP8_BLOCK) * s->scale_ld;
}

static void fp8_row(const struct art_source *s, uint64_t row, uint16_t *out)
{
    const uint8_t *codes = s->t->data + row * s->cols;
    uint32_t size = art_dtype_bytes(s->scale_t->pub.dtype);
    const uint8_t *scales = s->form == ART_FP8B ? s->scale_t->data + fp8_scale_at(s, row) * size : NULL;
    for (uint64_t c0 = 0; c0 < s->cols; c0 += ART_FP8_BLOCK) {
        uint64_t c1 = s->cols - c0 < ART_FP8_BLOCK ? s->cols : c0 + ART_FP8_BLOCK;
        float scale = s->scale;
        if (scales != NULL)
            art_to_f32(s->scale_t->pub.dtype, scales + c0 / ART_FP8_BLOCK * size, 1, &scale);
        for (uint64_t c = c0; c < c1; c++) /* 4 x 24 significand bits: the double product is exact */
            out[c] = art_f64_to_bf16((double)ifx_e4m3_to_f32(codes[c]) * scale);
    }
}

/* The code times its block scale: at most 6 significant bits, exact in float32. */
static float nvfp4_at(const struct art_source *s, uint64_t row, uint64_t c)
{
    uint8_t byte = s->t->data[row * (s->cols / 2) + c / 2];
    return ifx_e2m1_to_f32(c & 1 ? byte >> 4 : byte & 15) *
           ifx_e4m3_to_f32(s->scale_t->data[row * s->scale_ld + c / 16]);
}

static float w8g32_at(const struct art_source *s, uint64_t row, uint64_t c)
{
    int8_t code = (int8_t)s->t->data[row * s->scale_ld * 32 + c];
    return (float)code * ifx_f16_to_f32(load_u16(s->t->scales + 2 * (row * s->scale_ld + c / 32)));
}

void art_source_row_f32(const struct art_source *s, uint64_t row, float *out)
{
    switch (s->form) {
    case ART_FP8:
    case ART_FP8B: {
        /* The bf16 values are made in the upper half of the row and widened from its start: no value is
         * overwritten before it is read. */
        uint16_t *half = (uint16_t *)out + s->cols;
        fp8_row(s, row, half);
        for (uint64_t c = 0; c < s->cols; c++)
            out[c] = ifx_bf16_to_f32(half[c]);
        break;
    }
    case ART_NVFP4:
        for (uint64_t c = 0; c < s->cols; c++)
            out[c] = nvfp4_at(s, row, c) * s->scale;
        break;
    case ART_W8G32:
        for (uint64_t c = 0; c < s->cols; c++)
            out[c] = w8g32_at(s, row, c);
        break;
    default:
        art_to_f32(s->t->pub.dtype, s->t->data + row * s->cols * art_dtype_bytes(s->t->pub.dtype), s->cols, out);
    }
}

void art_source_row_bf16(const struct art_source *s, uint64_t row, uint16_t *out)
{
    switch (s->form) {
    case ART_FP8:
    case ART_FP8B:
        fp8_row(s, row, out);
        break;
    case ART_NVFP4:
        for (uint64_t c = 0; c < s->cols; c++)
            out[c] = art_f64_to_bf16((double)nvfp4_at(s, row, c) * s->scale);
        break;
    case ART_W8G32:
        for (uint64_t c = 0; c < s->cols; c++)
            out[c] = ifx_f32_to_bf16(w8g32_at(s, row, c));
        break;
    default: {
        uint32_t dtype = s->t->pub.dtype;
        const uint8_t *p = s->t->data + row * s->cols * art_dtype_bytes(dtype);
        if (dtype == IFX_BF16)
            memcpy(out, p, s->cols * 2);
        for (uint64_t c = 0; dtype != IFX_BF16 && c < s->cols; c++)
            out[c] = ifx_f32_to_bf16(dtype == IFX_F32 ? load_f32(p + 4 * c) : ifx_f16_to_f32(load_u16(p + 2 * c)));
    }
    }
}

static int32_t nan_scale(const struct art_tensor *t, uint64_t offset)
{
    return base_error(IFX_EFORMAT, "%s: tensor %s at byte offset %llu: the scale is NaN: the file is damaged or its "
                      "export failed", t->pub.file, t->pub.stored_name, (ull)(t->pub.offset + offset));
}

int32_t art_source_check_scales(const struct art_source *s, uint64_t row0, uint64_t n)
{
    const struct art_tensor *t = s->scale_t;
    if ((s->form == ART_FP8 || s->form == ART_NVFP4) && isnan(s->scale))
        return nan_scale(s->form == ART_FP8 ? s->scale_t : s->scale2_t, 0);
    if (s->form == ART_NVFP4)
        for (uint64_t i = row0 * s->scale_ld; i < (row0 + n) * s->scale_ld; i++)
            if ((t->data[i] & 0x7f) == 0x7f)
                return nan_scale(t, i);
    if (s->form == ART_FP8B) {
        uint32_t size = art_dtype_bytes(t->pub.dtype);
        uint64_t first = fp8_scale_at(s, row0), last = fp8_scale_at(s, row0 + (n ? n - 1 : 0)) + s->scale_ld;
        for (uint64_t i = first; i < last; i++) {
            float v;
            art_to_f32(t->pub.dtype, t->data + i * size, 1, &v);
            if (isnan(v))
                return nan_scale(t, i * size);
        }
    }
    for (uint64_t i = row0 * s->scale_ld; s->form == ART_W8G32 && i < (row0 + n) * s->scale_ld; i++)
        if ((load_u16(s->t->scales + 2 * i) & 0x7c00u) == 0x7c00u)
            return base_error(IFX_EFORMAT, "%s: tensor %s: the scale of row %llu, group %llu is not finite: the file is "
                              "damaged", s->t->pub.file, s->t->pub.stored_name, (ull)(i / s->scale_ld), (ull)(i % s->scale_ld));
    return IFX_OK;
}
