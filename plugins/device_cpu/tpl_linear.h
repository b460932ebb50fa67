/* SPDX-License-Identifier: Apache-2.0
 *
 * tpl_linear.h - kernel template: matrix products in float32 registers, over the vector operations included before it.
 */
#include "tpl_store.h"

/* 16 weights from input k on, decoded. */
V_INLINE void decode16(const struct ifx_weight *w, const uint32_t dtype, uint64_t row, uint64_t k, vf out[VN])
{
    uint64_t groups = ((uint64_t)w->cols + 31) / 32;
    UNROLL for (int v = 0; v < VN; v++) {
        uint64_t at = k + (uint64_t)v * VW;
        if (dtype == IFX_BF16)
            out[v] = v_load_bf16((const uint16_t *)w->data + row * w->cols + at);
        else if (dtype == IFX_F32)
            out[v] = v_load((const float *)w->data + row * w->cols + at);
        else
            out[v] = v_mul(v_load_i8((const int8_t *)w->data + row * groups * 32 + at),
                           v_set1(v_f16(((const uint16_t *)w->scales)[row * groups + k / 32])));
    }
}

/* The same with `have` < 16 weights left in the row; the rest is zero. */
V_INLINE void decode16_tail(const struct ifx_weight *w, const uint32_t dtype, uint64_t row, uint64_t k, uint32_t have,
                            vf out[VN])
{
    float tail[16] = {0};
    uint64_t groups = ((uint64_t)w->cols + 31) / 32;
    for (uint32_t i = 0; i < have; i++) {
        if (dtype == IFX_BF16)
            tail[i] = ifx_bf16_to_f32(((const uint16_t *)w->data)[row * w->cols + k + i]);
        else if (dtype == IFX_F32)
            tail[i] = ((const float *)w->data)[row * w->cols + k + i];
        else
            tail[i] = (float)((const int8_t *)w->data)[row * groups * 32 + k + i] *
                      v_f16(((const uint16_t *)w->scales)[row * groups + k / 32]);
    }
    UNROLL for (int v = 0; v < VN; v++)
        out[v] = v_load(tail + v * VW);
}

/* The rows of a narrow tile lie one behind the other, and so does what the next tile needs: asked for in that order, whatever the
 * order of use, it is one stream that the hardware runs ahead of.  Tiles up to this size wait in the first cache, others in the second. */
#define NARROW_NEAR 8192u
/* Groups of int8 weights whose scales are widened at once. */
#define NARROW_SCALES 64u

/* As decode16, the scale of int8 weights being at hand. */
V_INLINE void narrow_decode(const struct ifx_weight *w, const uint32_t dtype, uint64_t row, uint64_t k, const float *scale,
                            vf out[VN])
{
    if (dtype != IFX_W8G32) {
        decode16(w, dtype, row, k, out);
        return;
    }
    const int8_t *codes = (const int8_t *)w->data + row * (((uint64_t)w->cols + 31) / 32 * 32) + k;
    UNROLL for (int v = 0; v < VN; v++)
        out[v] = v_mul(v_load_i8(codes + v * VW), v_set1(*scale));
}

V_INLINE void narrow_step(const struct cpu_narrow *t, const uint32_t dtype, uint64_t r, uint64_t k, const float *scale,
                          const float *x, const int R, const int C, vf acc[4][8][VN])
{
    UNROLL for (int i = 0; i < R; i++) {
        vf w[VN];
        narrow_decode(t->w, dtype, r + (uint64_t)i, k, scale + (uint64_t)i * NARROW_SCALES, w);
        UNROLL for (int c = 0; c < C; c++)
            UNROLL for (int v = 0; v < VN; v++)
                acc[i][c][v] = v_fma(w[v], v_load(x + (uint64_t)c * t->ldx + k + v * VW), acc[i][c][v]);
    }
}

/* What is left of a row after whole groups of 32. */
V_INLINE void narrow_rest(const struct cpu_narrow *t, const uint32_t dtype, uint64_t r, uint64_t k, const float *x, const int R,
                          const int C, vf acc[4][8][VN])
{
    for (; k < t->w->cols; k += 16)
        UNROLL for (int i = 0; i < R; i++) {
            vf w[VN];
            uint64_t left = t->w->cols - k;
            decode16_tail(t->w, dtype, r + (uint64_t)i, k, left < 16 ? (uint32_t)left : 16, w);
            UNROLL for (int c = 0; c < C; c++)
                UNROLL for (int v = 0; v < VN; v++)
                    acc[i][c][v] = v_fma(w[v], v_load(x + (uint64_t)c * t->ldx + k + v * VW), acc[i][c][v]);
        }
}

V_INLINE void narrow_scales(const struct ifx_weight *w, uint64_t r, uint64_t group, uint64_t count, const int R, float *scale)
{
    uint64_t groups = ((uint64_t)w->cols + 31) / 32;
    for (uint64_t i = 0; i < (uint64_t)R; i++)
        v_widen_f16((const uint16_t *)w->scales + (r + i) * groups + group, count, scale + i * NARROW_SCALES);
}

V_INLINE void narrow_prefetch(const char *p, const uint64_t bytes, int near)
{
    UNROLL for (uint64_t i = 0; i < bytes; i += 64) {
        if (near)
            __builtin_prefetch(p + i, 0, 3);
        else
            __builtin_prefetch(p + i, 0, 2);
    }
}

/* R rows from r on against C columns from c0 on. */
V_INLINE void narrow_tile(const struct cpu_narrow *t, const uint32_t dtype, uint64_t r, uint32_t c0, const int R, const int C)
{
    vf acc[4][8][VN];
    float scale[4 * NARROW_SCALES];
    UNROLL for (int i = 0; i < R; i++)
        UNROLL for (int c = 0; c < C; c++)
            UNROLL for (int v = 0; v < VN; v++)
                acc[i][c][v] = v_zero();
    const float *x = t->x + (uint64_t)c0 * t->ldx;
    const uint64_t size = dtype == IFX_F32 ? 4 : dtype == IFX_BF16 ? 2 : 1, whole = t->w->cols / 32 * 32;
    const uint64_t row_bytes = (dtype == IFX_W8G32 ? ((uint64_t)t->w->cols + 31) / 32 * 32 : t->w->cols) * size;
    const uint64_t tile_bytes = row_bytes * (uint64_t)R;
    const char *first = (const char *)t->w->data + r * row_bytes;
    for (uint64_t k = 0; k < whole; k += 32) {
        if (dtype == IFX_W8G32 && k % (32 * NARROW_SCALES) == 0)
            narrow_scales(t->w, r, k / 32, (whole - k) / 32 < NARROW_SCALES ? (whole - k) / 32 : NARROW_SCALES, R, scale);
        narrow_prefetch(first + tile_bytes + k * size * (uint64_t)R, 32 * size * (uint64_t)R, tile_bytes <= NARROW_NEAR);
        const float *s = scale + k / 32 % NARROW_SCALES;
        narrow_step(t, dtype, r, k, s, x, R, C, acc);
        narrow_step(t, dtype, r, k + 16, s, x, R, C, acc);
    }
    narrow_rest(t, dtype, r, whole, x, R, C, acc);
    UNROLL for (int c = 0; c < C; c++) {
        float *y = t->y + (c0 + (uint64_t)c) * t->ldy + r;
        if (R == 4) {
            v_sum16_of4(acc[0][c], acc[1][c], acc[2][c], acc[3][c], y, t->accumulate);
            continue;
        }
        UNROLL for (int i = 0; i < R; i++) {
            float sum = v_sum16(acc[i][c]);
            y[i] = t->accumulate ? y[i] + sum : sum;
        }
    }
}

/* All rows against C columns: as many rows at once as there are registers for, then one by one. */
V_INLINE void narrow_columns(const struct cpu_narrow *t, const uint32_t dtype, uint64_t r0, uint64_t r1, uint32_t c0,
                             const int C)
{
    const int fit = V_NARROW / (C * VN), R = fit >= 4 ? 4 : fit >= 1 ? fit : 1;
    uint64_t r = r0;
    for (; r + (uint64_t)R <= r1; r += (uint64_t)R)
        narrow_tile(t, dtype, r, c0, R, C);
    for (; r < r1; r++)
        narrow_tile(t, dtype, r, c0, 1, C);
}

/* Columns in groups that leave registers for several rows; a few rows at a time, so that they are in the first cache for
 * all groups but the first. */
V_INLINE void narrow_dtype(const struct cpu_narrow *t, const uint32_t dtype)
{
    uint64_t block = t->n <= V_NC ? t->r1 - t->r0 : V_NARROW_ROWS;
    for (uint64_t r = t->r0; r < t->r1; r += block) {
        uint64_t end = t->r1 - r < block ? t->r1 : r + block;
        for (uint32_t c = 0, step; c < t->n; c += step) {
            uint32_t left = t->n - c;
            step = left == 3 ? 3 : left < V_NC ? left : V_NC;
            if (step == 4)
                narrow_columns(t, dtype, r, end, c, 4);
            else if (step == 3)
                narrow_columns(t, dtype, r, end, c, 3);
            else if (step == 2)
                narrow_columns(t, dtype, r, end, c, 2);
            else
                narrow_columns(t, dtype, r, end, c, 1);
        }
    }
}

static void narrow(const struct cpu_narrow *t)
{
    if (t->w->dtype == IFX_BF16)
        narrow_dtype(t, IFX_BF16);
    else if (t->w->dtype == IFX_F32)
        narrow_dtype(t, IFX_F32);
    else
        narrow_dtype(t, IFX_W8G32);
}

static void round_row(const float *x, uint32_t k, uint32_t padded, uint32_t exact, float *out)
{
    uint32_t i = 0;
    for (; i + VW <= k; i += VW)
        v_store(out + i, exact ? v_load(x + i) : v_round_bf16(v_load(x + i)));
    if (i < k) {
        vf v = v_load_n(x + i, k - i);
        v_store_n(out + i, exact ? v : v_round_bf16(v), k - i);
    }
    for (i = k; i < padded; i++)
        out[i] = 0.0f;
}

/* ---- wide: weights decoded into a float32 block that stays in cache, columns packed into panels of 16 ---- */

static void pack_f32(const struct cpu_pack *t)
{
    float *out = (float *)t->out + t->p * t->cols * CPU_PANEL;
    uint64_t first = t->p * CPU_PANEL;
    uint32_t have = t->n - first < CPU_PANEL ? (uint32_t)(t->n - first) : CPU_PANEL;
    for (uint32_t k = t->k0; k < t->k1; k += VW) {
        uint32_t width = t->k1 - k < VW ? t->k1 - k : VW;
        for (uint32_t c0 = 0; c0 < CPU_PANEL; c0 += VW) {
            vf block[VW];
            for (uint32_t c = 0; c < VW; c++) {
                const float *x = t->x + (first + c0 + c) * t->ldx + k;
                block[c] = c0 + c >= have ? v_zero() : width == VW ? v_load(x) : v_load_n(x, width);
                block[c] = t->exact ? block[c] : v_round_bf16(block[c]);
            }
            v_transpose(block);
            for (uint32_t i = 0; i < width; i++)
                v_store(out + (uint64_t)(k + i) * CPU_PANEL + c0, block[i]);
        }
    }
}

/* Row `row`, inputs [k, k + kc), as float32. */
V_INLINE void decode_row(const struct ifx_weight *w, const uint32_t dtype, uint64_t row, uint64_t k, uint32_t kc, float *out)
{
    uint32_t i = 0;
    vf d[VN];
    for (; i + 16 <= kc; i += 16) {
        decode16(w, dtype, row, k + i, d);
        UNROLL for (int v = 0; v < VN; v++)
            v_store(out + i + v * VW, d[v]);
    }
    if (i < kc) {
        float tail[16];
        decode16_tail(w, dtype, row, k + i, kc - i, d);
        UNROLL for (int v = 0; v < VN; v++)
            v_store(tail + v * VW, d[v]);
        memcpy(out + i, tail, (kc - i) * sizeof *out);
    }
}

/* Rows [r, r + V_MR) of the task as float32, CPU_KC apart, zero past the last. */
static void decode_rows(const struct cpu_wide *t, uint32_t r, uint64_t k, uint32_t kc, float *out)
{
    uint32_t rows = (uint32_t)(t->r1 - t->r0);
    for (uint32_t i = 0; i < V_MR; i++, r++, out += CPU_KC) {
        if (r >= rows) {
            memset(out, 0, kc * sizeof *out);
            continue;
        }
        if (t->w->dtype == IFX_BF16)
            decode_row(t->w, IFX_BF16, t->r0 + r, k, kc, out);
        else if (t->w->dtype == IFX_F32)
            decode_row(t->w, IFX_F32, t->r0 + r, k, kc, out);
        else
            decode_row(t->w, IFX_W8G32, t->r0 + r, k, kc, out);
    }
}

/* Weights to ask for while others are multiplied, one row for every AHEAD_STEPS inputs: rows are too far apart for the hardware to
 * guess it, and asked for all at once they would stop everything else. */
struct ahead {
    const char *p;
    uint64_t row_bytes, size;
};

enum { AHEAD_STEPS = 32 };

/* V_MR rows x P panels over kc inputs; c is set at the first block of inputs, then added to. */
V_INLINE void wide_tile(const float *w, const float *x, uint64_t panel, uint32_t kc, float *c, uint32_t first,
                        const struct ahead *ahead, const int P)
{
    vf acc[V_MR][3 * VN];
    UNROLL for (int r = 0; r < V_MR; r++)
        UNROLL for (int v = 0; v < P * VN; v++)
            acc[r][v] = first ? v_zero() : v_load(c + (uint64_t)r * CPU_LDC + v * VW);
    const char *next = ahead->p;
    for (uint32_t k = 0; k < kc; k++) {
        vf b[3 * VN];
        __builtin_prefetch(next + k % AHEAD_STEPS * (CPU_KC / AHEAD_STEPS) * ahead->size, 0, 2);
        next += k % AHEAD_STEPS == AHEAD_STEPS - 1 ? ahead->row_bytes : 0;
        UNROLL for (int p = 0; p < P; p++)
            UNROLL for (int v = 0; v < VN; v++)
                b[p * VN + v] = v_load(x + (uint64_t)p * panel + (uint64_t)k * CPU_PANEL + v * VW);
        UNROLL for (int r = 0; r < V_MR; r++) {
            vf a = v_set1(w[(uint64_t)r * CPU_KC + k]);
            UNROLL for (int v = 0; v < P * VN; v++)
                acc[r][v] = v_fma(a, b[v], acc[r][v]);
        }
    }
    UNROLL for (int r = 0; r < V_MR; r++)
        UNROLL for (int v = 0; v < P * VN; v++)
            v_store(c + (uint64_t)r * CPU_LDC + v * VW, acc[r][v]);
}

/* V_MR rows against all panels of a block of columns. */
static void wide_tiles(const float *w, const float *x, uint64_t panel, uint32_t kc, float *c, uint32_t first, uint32_t panels,
                       struct ahead ahead)
{
    uint32_t p = 0;
    for (; p + V_P <= panels; p += V_P) {
        wide_tile(w, x + p * panel, panel, kc, c + p * CPU_PANEL, first, &ahead, V_P);
        ahead = (struct ahead){(const char *)w, 0, 0};
    }
    if (V_P >= 3 && panels - p == 2)
        wide_tile(w, x + p * panel, panel, kc, c + p * CPU_PANEL, first, &ahead, V_P >= 3 ? 2 : 1);
    else if (panels > p)
        wide_tile(w, x + p * panel, panel, kc, c + p * CPU_PANEL, first, &ahead, 1);
}

/* A few rows are decoded into the first-level cache and meet all columns before the next: so reading them from memory and
 * multiplying overlap. */
static void wide_f32(const struct cpu_wide *t)
{
    float *c = t->scratch, *w = (float *)((char *)t->scratch + CPU_C_BYTES);
    uint32_t rows = (uint32_t)(t->r1 - t->r0);
    uint64_t cols = t->w->cols, panel = cols * CPU_PANEL;
    struct ahead ahead = {.size = t->w->dtype == IFX_F32 ? 4 : t->w->dtype == IFX_BF16 ? 2 : 1};
    ahead.row_bytes = ahead.size * (t->w->dtype == IFX_W8G32 ? (cols + 31) / 32 * 32 : cols);
    for (uint32_t j0 = 0; j0 < t->n; j0 += CPU_NB32) {
        uint32_t columns = t->n - j0 < CPU_NB32 ? t->n - j0 : CPU_NB32;
        uint32_t panels = (columns + CPU_PANEL - 1) / CPU_PANEL;
        for (uint64_t k = 0; k < cols; k += CPU_KC) {
            uint32_t kc = cols - k < CPU_KC ? (uint32_t)(cols - k) : CPU_KC;
            const float *x = (const float *)t->x + j0 / CPU_PANEL * panel + k * CPU_PANEL;
            for (uint32_t r = 0; r < rows; r += V_MR) {
                decode_rows(t, r, k, kc, w);
                ahead.p = (const char *)t->w->data + (t->r0 + r + V_MR) * ahead.row_bytes + k * ahead.size;
                wide_tiles(w, x, panel, kc, c + (uint64_t)r * CPU_LDC, k == 0, panels, ahead);
            }
        }
        store_block(t, c, j0, columns);
    }
}
