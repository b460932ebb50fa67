/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels_amx_bf16.c - wide products with tdpbf16ps: a tile of weights is 16 rows of 32 inputs as they lie in memory, a tile of
 * columns 16 pairs of 16 columns as packed.
 *
 * One tile of weights against two of columns, or the other way round where there is one, with four tile names in all and the others kept
 * zero: more accumulators would be fewer loads, but where the other thread of a core works too the registers behind eight names are
 * too few for anything to overlap (common_expert/tile_amx.h has the measurement).
 *
 * Weights of a block are copied into whole tiles of their own first: rows of a matrix are often a multiple of 4 KiB apart, where 16 of
 * them would fight for one set of the cache.
 */
#include "bf16.h"

/* A tile: 16 rows of 64 bytes. */
enum {
    TILE = 512,
    TILE_K = 32,
    KC = 512, /* inputs a block: fewer, and the sums are loaded and stored too often */
    TILES_KC = KC / TILE_K
};

/* The compiler does not see what the tile instructions read. */
#define BARRIER() __asm__ volatile("" ::: "memory")

static void tiles_on(void)
{
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config __attribute__((aligned(64)));
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int i = 0; i < 8; i++) {
        config.bytes[i] = 64;
        config.rows[i] = 16;
    }
    BARRIER();
    _tile_loadconfig(&config);
}

/* Rows of the task as tiles: tile (i, kt) at (i * TILES_KC + kt) * TILE; zero past the last row and input.  The next block of
 * inputs is asked for on the way. */
static void pack_weights(const struct cpu_wide *t, uint64_t k, uint32_t kc, uint32_t padded, uint16_t *out)
{
    uint32_t rows = (uint32_t)(t->r1 - t->r0);
    uint64_t row_bytes = t->w->dtype == IFX_BF16 ? 2 * (uint64_t)t->w->cols : ((uint64_t)t->w->cols + 31) / 32 * 32;
    uint64_t ahead = t->w->dtype == IFX_BF16 ? 2 * (k + KC) : k + KC;
    for (uint32_t r = 0; r < padded; r++) {
        uint16_t *tile = out + (uint64_t)(r / 16) * TILES_KC * TILE + r % 16 * TILE_K;
        const char *next = (const char *)t->w->data + (t->r0 + r) * row_bytes + ahead;
        for (uint32_t i = 0; i < kc; i += TILE_K, tile += TILE) {
            uint32_t left = kc - i < TILE_K ? kc - i : TILE_K;
            __m512i w = r < rows ? bf16_weights(t->w, t->r0 + r, k + i, left) : _mm512_setzero_si512();
            _mm512_storeu_si512(tile, w);
            if (r < rows && ahead < row_bytes)
                _mm_prefetch(next + 2 * i, _MM_HINT_T1);
        }
    }
}

static void load_or_zero(const float *c0, const float *c1, uint32_t first)
{
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    if (first) {
        _tile_zero(0);
        _tile_zero(1);
    } else {
        _tile_loadd(0, c0, CPU_LDC * 4);
        _tile_loadd(1, c1, CPU_LDC * 4);
    }
}

/* 16 rows x 32 columns over `steps` tiles of inputs. */
static void tile_1x2(const uint16_t *w, const uint16_t *x, uint64_t panel, uint32_t steps, float *c, uint32_t first)
{
    load_or_zero(c, c + 16, first);
    for (uint32_t s = 0; s < steps; s++) {
        BARRIER();
        _tile_loadd(2, w + s * TILE, 64);
        _tile_loadd(3, x + s * TILE, 64);
        _tile_dpbf16ps(0, 2, 3);
        _tile_loadd(3, x + panel + s * TILE, 64);
        _tile_dpbf16ps(1, 2, 3);
    }
    _tile_stored(0, c, CPU_LDC * 4);
    _tile_stored(1, c + 16, CPU_LDC * 4);
    BARRIER();
}

/* 32 rows x 16 columns. */
static void tile_2x1(const uint16_t *w, const uint16_t *x, uint32_t steps, float *c, uint32_t first)
{
    const uint16_t *w1 = w + TILES_KC * TILE;
    load_or_zero(c, c + 16 * CPU_LDC, first);
    for (uint32_t s = 0; s < steps; s++) {
        BARRIER();
        _tile_loadd(3, x + s * TILE, 64);
        _tile_loadd(2, w + s * TILE, 64);
        _tile_dpbf16ps(0, 2, 3);
        _tile_loadd(2, w1 + s * TILE, 64);
        _tile_dpbf16ps(1, 2, 3);
    }
    _tile_stored(0, c, CPU_LDC * 4);
    _tile_stored(1, c + 16 * CPU_LDC, CPU_LDC * 4);
    BARRIER();
}

static void wide_amx(const struct cpu_wide *t)
{
    float *c = t->scratch;
    uint16_t *w = (uint16_t *)(void *)((char *)t->scratch + CPU_C_BYTES);
    uint32_t padded = ((uint32_t)(t->r1 - t->r0) + 31) / 32 * 32;
    uint64_t cols = t->w->cols, ldk = (cols + 31) / 32 * 32, panel = ldk * CPU_PANEL;
    tiles_on();
    for (uint32_t j0 = 0; j0 < t->n; j0 += CPU_NB) {
        uint32_t columns = t->n - j0 < CPU_NB ? t->n - j0 : CPU_NB;
        uint32_t panels = (columns + CPU_PANEL - 1) / CPU_PANEL;
        for (uint64_t k = 0; k < cols; k += KC) {
            uint32_t kc = cols - k < KC ? (uint32_t)(cols - k) : KC, steps = (kc + TILE_K - 1) / TILE_K;
            pack_weights(t, k, kc, padded, w);
            BARRIER();
            for (uint32_t p = 0; p < panels; p += 2) {
                const uint16_t *x = (const uint16_t *)t->x + (j0 / CPU_PANEL + p) * panel + k * CPU_PANEL;
                for (uint32_t r = 0; r < padded; r += 32) {
                    const uint16_t *wr = w + (uint64_t)(r / 16) * TILES_KC * TILE;
                    float *cr = c + (uint64_t)r * CPU_LDC + p * CPU_PANEL;
                    if (p + 1 < panels) {
                        tile_1x2(wr, x, panel, steps, cr, k == 0);
                        tile_1x2(wr + TILES_KC * TILE, x, panel, steps, cr + 16 * CPU_LDC, k == 0);
                    } else {
                        tile_2x1(wr, x, steps, cr, k == 0);
                    }
                }
            }
        }
        BARRIER();
        store_block(t, c, j0, columns);
    }
    _tile_release();
}

void cpu_kernels_amx_bf16(struct cpu_kernels *k)
{
    cpu_kernels_avx512_bf16(k);
    k->row_unit16 = 32;
    k->wide_bf16 = wide_amx;
}
