/* SPDX-License-Identifier: Apache-2.0
 *
 * test_agreement.c - where `cpu` leaves `ref`, and that it is nowhere else.  `cpu` rounds the inputs of its products to bf16.  A `ref` whose products
 * are given rounded inputs too must have the same logits, position by position, until the last bits of two float32 sums lie on either side of a
 * rounding for the first time: from there on the two differ by what such a step makes of itself (instructions that sum pairs of bf16 products
 * come to it sooner).  How far the rounding moves the logits from ref's depends on the checkpoint, and is printed.
 */
#include "engine.h"
#include "harness.h"

#include <stdio.h>
#include <string.h>

static const struct ifx_device_ops *real;

static float rounded(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &bits, 4);
    return x;
}

static int32_t linear_of_rounded(struct ifx_device *dev, void *stream, const struct ifx_linear *op)
{
    struct ifx_linear copy = *op;
    if (op->flags & IFX_LINEAR_F32)
        return real->linear(dev, stream, op);
    float *x = base_alloc((uint64_t)op->n * op->cols * sizeof *x, 64);
    assert_non_null(x);
    for (uint64_t i = 0; i < op->n; i++)
        for (uint64_t k = 0; k < op->cols; k++)
            x[i * op->cols + k] = rounded(op->x[i * op->ldx + k]);
    copy.x = x;
    copy.ldx = op->cols;
    int32_t st = real->linear(dev, stream, &copy);
    base_free(x);
    return st;
}

/* Logits of all n tokens, fed in pieces of `cut`. */
static float *logits_of(const char *path, const char *device, const char *level, bool round, const int32_t *ids, uint32_t n, uint64_t cut, uint32_t *vocab)
{
    struct options o = {.device = device, .cpu = level, .kv = "f32"};
    struct ifx_device_ops ops;
    struct ifx_sequence *s;
    struct rig r;
    rig_open(&r, path, &o);
    real = r.model->dev->ops;
    ops = *real;
    ops.linear = linear_of_rounded;
    if (round)
        r.model->dev->ops = &ops;
    *vocab = r.info.desc->vocab;
    float *logits = base_calloc((uint64_t)n * *vocab, sizeof *logits);
    OK(ifx_sequence_create(r.model, &s));
    feed_cut(s, ids, n, cut, *vocab, logits);
    ifx_sequence_destroy(s);
    r.model->dev->ops = real;
    rig_close(&r);
    return logits;
}

static void check(const char *name, const char *level, uint64_t cut)
{
    struct st_file *f;
    char path[512];
    uint64_t n;
    uint32_t vocab;
    snprintf(path, sizeof path, "%s", golden(0, "checkpoints/%s", name));
    OK(st_open(golden(1, "reference/%s.safetensors", name), &f));
    int32_t *ids = golden_ints(f, "len96.input_ids", &n);
    assert_non_null(ids);
    float *cpu = logits_of(path, "cpu", level, false, ids, (uint32_t)n, cut, &vocab);
    float *ref = logits_of(path, "ref", NULL, false, ids, (uint32_t)n, cut, &vocab);
    float *same = logits_of(path, "ref", NULL, true, ids, (uint32_t)n, cut, &vocab);
    uint32_t equal = 0, least = cut > 8 && strstr(level, "bf16") ? 4 : 16;
    while (equal < n && relative_l2(cpu + (uint64_t)equal * vocab, same + (uint64_t)equal * vocab, vocab) <= 1e-5)
        equal++;
    print_message("%s, cpu=%s, pieces of %u: relative L2 of the logits to ref %.2g; to ref with rounded inputs %.2g, the first %u of %u positions "
                  "at most 1e-5\n", name, level, (unsigned)cut, relative_l2(cpu, ref, n * vocab), relative_l2(cpu, same, n * vocab), equal, (unsigned)n);
    if (equal < least)
        FAIL("%s, cpu=%s, pieces of %u: position %u is not what ref gives for the same inputs of products: relative L2 %g", name, level, (unsigned)cut,
             equal, relative_l2(cpu + (uint64_t)equal * vocab, same + (uint64_t)equal * vocab, vocab));
    base_free(ids);
    base_free(cpu);
    base_free(ref);
    base_free(same);
    st_close(f);
}

static void test_dense(void **state)
{
    static const char *const names[] = {"qwen3_5-tiny", "qwen3_5-tied"};
    static const uint64_t cuts[] = {1, 8, 96};
    (void)state;
    for (int i = 0; i < 2; i++)
        for (uint32_t level = 0; level <= base_cpu_detect(); level++)
            for (int k = 0; k < 3; k++)
                check(names[i], base_cpu_name(level), cuts[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dense)};
    base_log_set_level(IFX_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
