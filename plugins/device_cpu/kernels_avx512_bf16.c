/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels_avx512_bf16.c - wide products with vdpbf16ps: lanes are columns, a pair of weights is broadcast from the row.
 */
#include "bf16.h"

enum { MR = 8, P_MAX = 3 };

/* Blocks of 32 inputs: 16 columns of 16 pairs are transposed into 16 pairs of 16 columns. */
static void pack_bf16(const struct cpu_pack *t)
{
    uint64_t ldk = ((uint64_t)t->cols + 31) / 32 * 32, first = t->p * CPU_PANEL;
    uint16_t *out = (uint16_t *)t->out + t->p * ldk * CPU_PANEL;
    uint32_t have = t->n - first < CPU_PANEL ? (uint32_t)(t->n - first) : CPU_PANEL;
    for (uint32_t k = t->k0; k < t->k1; k += 32) {
        vf block[16];
        for (uint32_t c = 0; c < CPU_PANEL; c++) {
            const float *x = t->x + (first + c) * t->ldx + k;
            uint32_t left = c < have ? t->k1 - k : 0, low = left < 16 ? left : 16, high = left < 32 ? left - low : 16;
            vf a = low == 16 ? v_load(x) : v_load_n(x, low), b = high == 16 ? v_load(x + 16) : v_load_n(x + 16, high);
            __m512i pairs = _mm512_inserti64x4(_mm512_castsi256_si512(v_to_bf16(a)), v_to_bf16(b), 1);
            block[c] = _mm512_castsi512_ps(pairs);
        }
        v_transpose(block);
        for (uint32_t i = 0; i < 16; i++)
            v_store((float *)(void *)(out + ((uint64_t)k / 2 + i) * CPU_PANEL * 2), block[i]);
    }
}

/* Rows [r, r + MR) of the task, inputs [k, k + kc), CPU_KC16 apart; zero past the last row. */
static void decode_rows16(const struct cpu_wide *t, uint32_t r, uint64_t k, uint32_t kc, uint16_t *out)
{
    uint32_t rows = (uint32_t)(t->r1 - t->r0);
    for (uint32_t i = 0; i < MR; i++, r++, out += CPU_KC16) {
        if (r >= rows) {
            memset(out, 0, CPU_KC16 * sizeof *out);
            continue;
        }
        for (uint32_t j = 0; j < kc; j += 32) {
            uint32_t left = kc - j < 32 ? kc - j : 32;
            _mm512_storeu_si512(out + j, bf16_weights(t->w, t->r0 + r, k + j, left));
        }
    }
}

/* Weights to ask for while others are multiplied: one row for every 32 pairs. */
struct ahead {
    const char *p;
    uint64_t row_bytes, pair_bytes;
};

enum { AHEAD_PAIRS = CPU_KC16 / 2 / MR };

/* MR rows x P panels over `pairs` pairs of inputs. */
V_INLINE void tile16(const uint16_t *w, const uint16_t *x, uint64_t panel, uint32_t pairs, float *c, uint32_t first,
                     const struct ahead *ahead, const int P)
{
    vf acc[MR][P_MAX];
    UNROLL for (int r = 0; r < MR; r++)
        UNROLL for (int p = 0; p < P; p++)
            acc[r][p] = first ? v_zero() : v_load(c + (uint64_t)r * CPU_LDC + p * 16);
    const char *next = ahead->p;
    for (uint32_t k = 0; k < pairs; k++) {
        __m512bh b[P_MAX];
        _mm_prefetch(next + k % AHEAD_PAIRS * MR * ahead->pair_bytes, _MM_HINT_T1);
        next += k % AHEAD_PAIRS == AHEAD_PAIRS - 1 ? ahead->row_bytes : 0;
        UNROLL for (int p = 0; p < P; p++)
            b[p] = (__m512bh)_mm512_loadu_si512(x + (uint64_t)p * panel + (uint64_t)k * CPU_PANEL * 2);
        UNROLL for (int r = 0; r < MR; r++) {
            int32_t pair;
            memcpy(&pair, w + (uint64_t)r * CPU_KC16 + 2 * k, sizeof pair);
            __m512bh a = (__m512bh)_mm512_set1_epi32(pair);
            UNROLL for (int p = 0; p < P; p++)
                acc[r][p] = _mm512_dpbf16_ps(acc[r][p], a, b[p]);
        }
    }
    UNROLL for (int r = 0; r < MR; r++)
        UNROLL for (int p = 0; p < P; p++)
            v_store(c + (uint64_t)r * CPU_LDC + p * 16, acc[r][p]);
}

/* MR rows against all panels of a block of columns. */
static void tiles16(const uint16_t *w, const uint16_t *x, uint64_t panel, uint32_t pairs, float *c, uint32_t first, uint32_t panels,
                    struct ahead ahead)
{
    uint32_t p = 0;
    for (; p + 3 <= panels; p += 3) {
        tile16(w, x + p * panel, panel, pairs, c + p * CPU_PANEL, first, &ahead, 3);
        ahead = (struct ahead){(const char *)w, 0, 0};
    }
    if (panels - p == 2)
        tile16(w, x + p * panel, panel, pairs, c + p * CPU_PANEL, first, &ahead, 2);
    else if (panels - p == 1)
        tile16(w, x + p * panel, panel, pairs, c + p * CPU_PANEL, first, &ahead, 1);
}

/* A few rows are decoded into the first-level cache and meet all columns before the next: so reading them from memory and
 * multiplying overlap. */
static void wide_bf16(const struct cpu_wide *t)
{
    float *c = t->scratch;
    uint16_t *w = (uint16_t *)(void *)((char *)t->scratch + CPU_C_BYTES);
    uint32_t rows = (uint32_t)(t->r1 - t->r0);
    struct ahead ahead = {.pair_bytes = t->w->dtype == IFX_BF16 ? 4 : 2};
    uint64_t cols = t->w->cols, ldk = (cols + 31) / 32 * 32, panel = ldk * CPU_PANEL;
    ahead.row_bytes = ahead.pair_bytes / 2 * (t->w->dtype == IFX_BF16 ? cols : ldk);
    for (uint32_t j0 = 0; j0 < t->n; j0 += CPU_NB) {
        uint32_t columns = t->n - j0 < CPU_NB ? t->n - j0 : CPU_NB;
        uint32_t panels = (columns + CPU_PANEL - 1) / CPU_PANEL;
        for (uint64_t k = 0; k < cols; k += CPU_KC16) {
            uint32_t kc = cols - k < CPU_KC16 ? (uint32_t)(cols - k) : CPU_KC16;
            const uint16_t *x = (const uint16_t *)t->x + j0 / CPU_PANEL * panel + k * CPU_PANEL;
            for (uint32_t r = 0; r < rows; r += MR) {
                decode_rows16(t, r, k, kc, w);
                ahead.p = (const char *)t->w->data + (t->r0 + r + MR) * ahead.row_bytes + k * ahead.pair_bytes / 2;
                tiles16(w, x, panel, (kc + 1) / 2, c + (uint64_t)r * CPU_LDC, k == 0, panels, ahead);
            }
        }
        store_block(t, c, j0, columns);
    }
}

void cpu_kernels_avx512_bf16(struct cpu_kernels *k)
{
    cpu_kernels_avx512(k);
    k->row_unit16 = 4 * MR;
    k->pack_bf16 = pack_bf16;
    k->wide_bf16 = wide_bf16;
}
