/* SPDX-License-Identifier: Apache-2.0
 *
 * optest.c - see optest.h.
 */
#include "optest.h"

#include "mirror.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

uint64_t checks_done, checks_failed;

bool check(bool ok, const char *format, ...)
{
    checks_done++;
    if (ok)
        return true;
    if (++checks_failed <= 40) {
        va_list ap;
        va_start(ap, format);
        fputs("FAIL: ", stdout);
        vprintf(format, ap);
        putchar('\n');
        va_end(ap);
    }
    return false;
}

uint64_t rng_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u); /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t rng_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)((rng_next(state) >> 32) * n >> 32);
}

float rng_float(uint64_t *state, float low, float high)
{
    return low + (high - low) * (float)(rng_next(state) >> 40) * 0x1p-24f;
}

float rng_normal(uint64_t *state)
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += rng_float(state, -1, 1);
    return sum * 0.866f;
}

/* ---- matrices ---- */

enum { GUARD = 64 };
#define CANARY 0x7fc0beefu

void *exact_alloc(uint64_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 64, bytes ? bytes : 1) != 0)
        abort();
    mirror_note(memory, bytes);
    return memory;
}

struct mat mat_new(uint64_t rows, uint64_t width, uint64_t ld)
{
    struct mat m = {.rows = rows, .width = width, .ld = ld};
    m.total = rows * ld + 2 * GUARD;
    m.all = exact_alloc(m.total * sizeof(float));
    m.p = m.all + GUARD;
    for (uint64_t i = 0; i < m.total; i++)
        m.all[i] = ifx_bits_f32(CANARY);
    return m;
}

struct mat mat_random(uint64_t *rng, uint64_t rows, uint64_t width, uint64_t ld, float scale)
{
    struct mat m = mat_new(rows, width, ld);
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t i = 0; i < width; i++)
            m.p[r * ld + i] = rng_normal(rng) * scale;
    return m;
}

struct mat mat_copy(const struct mat *from)
{
    struct mat m = *from;
    m.all = exact_alloc(m.total * sizeof(float));
    m.p = m.all + GUARD;
    memcpy(m.all, from->all, m.total * sizeof(float));
    return m;
}

void mat_free(struct mat *m)
{
    free(m->all);
    m->all = m->p = NULL;
}

void mat_intact(const struct mat *m, const char *what)
{
    uint64_t first = m->total;
    for (uint64_t i = 0; i < m->total && first == m->total; i++) {
        uint64_t at = i - GUARD;
        bool inside = i >= GUARD && at / m->ld < m->rows && at % m->ld < m->width;
        if (!inside && ifx_f32_bits(m->all[i]) != CANARY)
            first = i;
    }
    check(first == m->total, "%s: wrote outside its output: value %lld (row %lld of %llu, width %llu, ld %llu)", what,
          (long long)first - GUARD, ((long long)first - GUARD) / (long long)m->ld, (unsigned long long)m->rows,
          (unsigned long long)m->width, (unsigned long long)m->ld);
}

void mat_bf16(struct mat *m)
{
    for (uint64_t r = 0; r < m->rows; r++)
        for (uint64_t i = 0; i < m->width; i++) {
            float *v = &m->p[r * m->ld + i];
            *v = ifx_bf16_to_f32(ifx_f32_to_bf16(*v));
        }
}

void mat_close(const struct mat *got, const struct mat *want, double absolute, double relative, const char *what)
{
    double worst = -1;
    uint64_t at_r = 0, at_i = 0;
    for (uint64_t r = 0; r < want->rows; r++)
        for (uint64_t i = 0; i < want->width; i++) {
            double g = got->p[r * got->ld + i], w = want->p[r * want->ld + i];
            double over = fabs(g - w) - relative * fabs(w);
            if (g != g || w != w)
                over = (g != g) == (w != w) ? -1 : INFINITY;
            else if (g == w)
                over = -1;
            if (over > worst) {
                worst = over;
                at_r = r;
                at_i = i;
            }
        }
    check(worst <= absolute, "%s: [%llu, %llu] expected %.9g, got %.9g (allowed %g + %g relative)", what,
          (unsigned long long)at_r, (unsigned long long)at_i, (double)want->p[at_r * want->ld + at_i],
          (double)got->p[at_r * got->ld + at_i], absolute, relative);
}

void mat_same_bits(const struct mat *got, const struct mat *want, const char *what)
{
    for (uint64_t r = 0; r < want->rows; r++)
        for (uint64_t i = 0; i < want->width; i++) {
            uint32_t g = ifx_f32_bits(got->p[r * got->ld + i]), w = ifx_f32_bits(want->p[r * want->ld + i]);
            if (g != w) {
                check(false, "%s: [%llu, %llu] expected the bits %08x, got %08x", what, (unsigned long long)r,
                      (unsigned long long)i, w, g);
                return;
            }
        }
    check(true, "%s", what);
}

void mat_l2(const struct mat *got, const struct mat *want, double relative, const char *what)
{
    double error = 0, norm = 0;
    for (uint64_t r = 0; r < want->rows; r++)
        for (uint64_t i = 0; i < want->width; i++) {
            double g = got->p[r * got->ld + i], w = want->p[r * want->ld + i];
            error += (g - w) * (g - w);
            norm += w * w;
        }
    double e = norm > 0 ? sqrt(error / norm) : sqrt(error);
    check(e <= relative, "%s: relative L2 error %.3g, allowed %.3g", what, e, relative);
}

/* ---- weights ---- */

struct ifx_weight weight_random(uint64_t *rng, uint32_t dtype, uint32_t rows, uint32_t cols, float scale)
{
    struct ifx_weight w = {.dtype = dtype, .rows = rows, .cols = cols};
    uint64_t groups = ((uint64_t)cols + 31) / 32, padded = dtype == IFX_W8G32 ? groups * 32 : cols;
    uint64_t n = (uint64_t)rows * padded;
    void *data = exact_alloc(n * (dtype == IFX_F32 ? 4 : dtype == IFX_BF16 ? 2 : 1));
    for (uint64_t i = 0; i < n; i++) {
        float v = rng_normal(rng) * scale;
        if (dtype == IFX_F32)
            ((float *)data)[i] = v;
        else if (dtype == IFX_BF16)
            ((uint16_t *)data)[i] = ifx_f32_to_bf16(v);
        else
            ((int8_t *)data)[i] = i % padded < cols ? (int8_t)((int32_t)rng_below(rng, 255) - 127) : 0;
    }
    w.data = data;
    if (dtype == IFX_W8G32) {
        uint16_t *scales = exact_alloc(rows * groups * 2);
        for (uint64_t i = 0; i < rows * groups; i++)
            scales[i] = ifx_f32_to_f16(scale * rng_float(rng, 0.2f, 1.0f) / 64);
        w.scales = scales;
    }
    return w;
}

void weight_free(struct ifx_weight *w)
{
    free((void *)(uintptr_t)w->data);
    free((void *)(uintptr_t)w->scales);
}

/* ---- golden tensors: just enough of safetensors for a file of our own ---- */

struct golden {
    char *data;
    const char *header;
    char *base;
};

struct golden *golden_open(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    struct golden *g = calloc(1, sizeof *g);
    fseek(f, 0, SEEK_END);
    long bytes = ftell(f);
    rewind(f);
    if (!g || bytes < 8 || !(g->data = malloc((size_t)bytes + 1)) || fread(g->data, 1, (size_t)bytes, f) != (size_t)bytes)
        abort();
    fclose(f);
    uint64_t n;
    memcpy(&n, g->data, 8);
    g->header = g->data + 8;
    char *header = exact_alloc(n + 1);
    memcpy(header, g->header, n);
    header[n] = 0;
    g->base = g->data + 8 + n;
    g->header = header;
    return g;
}

void golden_close(struct golden *g)
{
    free((void *)(uintptr_t)g->header);
    free(g->data);
    free(g);
}

static const char *golden_entry(const struct golden *g, const char *name)
{
    char key[100];
    snprintf(key, sizeof key, "\"%s\"", name);
    const char *at = strstr(g->header, key);
    if (!at) {
        printf("golden tensor %s is missing\n", name);
        exit(1);
    }
    return at;
}

static const void *golden_data(const struct golden *g, const char *name, uint64_t *count)
{
    unsigned long long from, to;
    const char *at = strstr(golden_entry(g, name), "data_offsets");
    while (*at && *at != '[')
        at++;
    if (sscanf(at, "[%llu,%llu", &from, &to) != 2)
        exit(1);
    if (count)
        *count = (to - from) / 4;
    return g->base + from;
}

const float *golden_f32(const struct golden *g, const char *name, uint64_t *count)
{
    return golden_data(g, name, count);
}

const int32_t *golden_i32(const struct golden *g, const char *name, uint64_t *count)
{
    return golden_data(g, name, count);
}

uint64_t golden_dim(const struct golden *g, const char *name, uint32_t dim)
{
    const char *at = strstr(golden_entry(g, name), "shape");
    while (*at != '[')
        at++;
    for (; dim > 0; dim--) {
        at++;
        while (*at != ',' && *at != ']')
            at++;
    }
    return strtoull(at + 1, NULL, 10);
}
