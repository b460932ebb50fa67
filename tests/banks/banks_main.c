/* SPDX-License-Identifier: Apache-2.0
 *
 * banks_main.c - tests of expert banks: test_banks PLUGIN.so ...
 *
 * Environment: IFX_GOLDEN is the folder of the golden data (tests on it are left out, with a line, when unset);
 * IFX_TEST_CPU limits the CPU level.
 */
#include "banks.h"

int expect(struct suite *suite, int ok, const char *format, ...)
{
    suite->checks++;
    if (ok)
        return 1;
    if (suite->failures++ < 40) {
        va_list args;
        va_start(args, format);
        printf("  FAIL %s: ", suite->ops->format);
        vprintf(format, args);
        printf("\n");
        va_end(args);
    }
    return 0;
}

uint32_t random_u32(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

/* Sum of four uniforms: near enough to a normal, and cheap. */
float random_normal(uint64_t *state)
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(random_u32(state) >> 8) * 0x1p-24f - 0.5f;
    return sum * 1.7320508f;
}

int fixture_open(struct suite *suite, struct fixture *f, uint32_t hidden, uint32_t inter, uint32_t level)
{
    memset(f, 0, sizeof *f);
    mini_host_init(&f->host, level);
    f->shape = (struct ifx_expert_shape){sizeof f->shape, hidden, inter, 0};
    int32_t status = suite->ops->open(&f->host.host, NULL, &f->shape, &f->bank);
    return expect(suite, status == 0, "open %ux%u at %s: expected 0, got %d (%s)", hidden, inter,
                  mini_level_name(level), status, f->host.error);
}

void fixture_close(struct suite *suite, struct fixture *f)
{
    if (f->bank)
        suite->ops->close(f->bank);
    f->bank = NULL;
}

uint8_t *random_record(struct suite *suite, const struct fixture *f, uint64_t seed)
{
    uint32_t h = f->shape.hidden, i = f->shape.inter;
    size_t count = (size_t)h * i;
    float *w = malloc(3 * count * sizeof *w);
    uint64_t bytes = suite->ops->record_bytes(&f->shape);
    uint8_t *record = NULL;
    if (!w || posix_memalign((void **)&record, 4096, bytes))
        exit(99);
    for (size_t k = 0; k < 3 * count; k++) {
        w[k] = random_normal(&seed) * (k < 2 * count ? 1.5f / sqrtf((float)h) : 1.5f / sqrtf((float)i));
        if (random_u32(&seed) % 61 == 0)
            w[k] *= 6.0f;
    }
    memset(record, 0xa5, bytes);
    int32_t status = suite->ops->pack(f->bank, w, w + count, w + 2 * count, record);
    expect(suite, status == 0, "pack %ux%u: expected 0, got %d (%s)", h, i, status, f->host.error);
    free(w);
    return record;
}

enum { CANARY = 256 };

static void *guarded(uint64_t bytes, uint8_t fill)
{
    uint8_t *p = NULL;
    if (posix_memalign((void **)&p, 64, bytes + 2 * CANARY))
        exit(99);
    memset(p, fill, bytes + 2 * CANARY);
    return p + CANARY;
}

static int guarded_free(void *memory, uint64_t bytes, uint8_t fill)
{
    uint8_t *p = (uint8_t *)memory - CANARY;
    int ok = 1;
    for (size_t i = 0; i < CANARY; i++)
        ok &= p[i] == fill && p[CANARY + bytes + i] == fill;
    free(p);
    return ok;
}

/* Cut points: multiples of the granule in [0, rows], ascending, the first 0 and the last rows. */
static uint32_t cut_rows(uint32_t rows, uint32_t granule, uint32_t cuts, uint64_t *seed, uint32_t *out)
{
    uint32_t count = 0, at = 0;
    out[count++] = 0;
    while (cuts-- && at < rows) {
        at += granule * (1 + random_u32(seed) % 3);
        if (at < rows)
            out[count++] = at;
    }
    out[count++] = rows;
    return count;
}

int run_call(struct suite *suite, const struct fixture *f, const uint16_t *x, uint32_t n, uint32_t cuts,
             uint64_t seed, float *y)
{
    const struct ifx_expert_ops *ops = suite->ops;
    uint32_t h = f->shape.hidden, granule = ops->row_granule ? ops->row_granule : 1, at[70], count, ok = 1;
    uint64_t scratch_bytes = ops->scratch_bytes(f->bank, n), ldy = h + 5, y_bytes = n * ldy * sizeof *y;
    uint32_t *rows = malloc(n * sizeof *rows);
    if (!rows)
        exit(99);
    for (uint32_t c = 0; c < n; c++) /* the output goes to the rows in reverse order */
        rows[c] = n - 1 - c;
    struct ifx_expert_call call = {.struct_size = sizeof call, .n = n, .record = f->record, .x = x, .ldx = h,
                                   .scratch = guarded(scratch_bytes, 0xff), .flags = f->flags};
    float *out = guarded(y_bytes, 0xfe);
    int32_t status = ops->prepare ? ops->prepare(f->bank, &call) : 0;
    count = cut_rows(f->shape.inter, granule, cuts, &seed, at);
    for (uint32_t i = count - 1; i-- > 0;)
        status |= ops->gate_up(f->bank, &call, at[i], at[i + 1]);
    count = cut_rows(h, granule, cuts, &seed, at);
    for (uint32_t i = count - 1; i-- > 0;)
        status |= ops->down(f->bank, &call, at[i], at[i + 1], out + at[i], ldy, rows);
    ok &= expect(suite, status == 0, "a call of %u columns: expected 0, got %d (%s)", n, status, f->host.error);
    for (uint32_t c = 0; c < n; c++) {
        const float *row = out + (uint64_t)rows[c] * ldy;
        memcpy(y + (uint64_t)c * h, row, h * sizeof *y);
        for (uint32_t k = h; k < ldy; k++)
            if (ifx_f32_bits(row[k]) != 0xfefefefeu)
                ok &= expect(suite, 0, "%ux%u, %u columns, %s: column %u wrote past row %u", h, f->shape.inter, n,
                             mini_level_name(f->host.level), c, h);
    }
    ok &= expect(suite, guarded_free(call.scratch, scratch_bytes, 0xff),
                 "%ux%u, %u columns, %s: wrote outside scratch", h, f->shape.inter, n,
                 mini_level_name(f->host.level));
    ok &= expect(suite, guarded_free(out, y_bytes, 0xfe), "%ux%u, %u columns, %s: wrote outside y", h,
                 f->shape.inter, n, mini_level_name(f->host.level));
    free(rows);
    return (int)ok;
}

static uint32_t level_limit(uint32_t level)
{
    const char *text = getenv("IFX_TEST_CPU");
    for (uint32_t i = 0; text && i < level; i++)
        if (strcmp(text, mini_level_name(i)) == 0)
            return i;
    return level;
}

int main(int argc, char **argv)
{
    const char *golden = getenv("IFX_GOLDEN");
    unsigned failures = 0;
    for (int i = 1; i < argc; i++) {
        struct mini_host host;
        struct suite suite = {0};
        suite.level = level_limit(mini_detect_level());
        mini_host_init(&host, suite.level);
        suite.ops = mini_load(argv[i], &host);
        if (!suite.ops)
            return 1;
        test_narrow(&suite);
        test_wide(&suite);
        test_pack(&suite);
        if (golden && strcmp(suite.ops->format, "nvfp4") == 0)
            test_golden(&suite, golden);
        printf("%s: levels scalar to %s, golden data %s: %u checks, %u failures\n", suite.ops->format,
               mini_level_name(suite.level), golden ? "used" : "not used (IFX_GOLDEN is unset)", suite.checks,
               suite.failures);
        failures += suite.failures;
    }
    return failures != 0;
}
