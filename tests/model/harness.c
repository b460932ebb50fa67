/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include <infernix/numerics.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int32_t open_rig(struct rig *r, const char *path, const struct options *o)
{
    static const struct options none;
    o = o ? o : &none;
    struct ifx_context_options co = {.cpu = o->cpu, .threads = o->threads ? o->threads : 2};
    struct ifx_model_options mo = {.path = path, .device = o->device ? o->device : "ref", .kv_dtype = o->kv,
                                   .experts = o->experts, .ctx = o->ctx, .prefill_chunk = o->chunk,
                                   .max_sequences = o->sequences, .prefix_cache_bytes = o->prefix, .table_cache_bytes = o->tables, .no_graph = o->no_graph,
                                   .offload = {.deterministic = o->deterministic, .no_expert_state = true}};
    memset(r, 0, sizeof *r);
    OK(ifx_context_create(&co, &r->ctx));
    return ifx_model_open(r->ctx, &mo, &r->model);
}

void rig_open(struct rig *r, const char *path, const struct options *o)
{
    if (open_rig(r, path, o))
        FAIL("%s: %s", path, base_error_text());
    ifx_model_info(r->model, &r->info);
}

void rig_close(struct rig *r)
{
    ifx_model_close(r->model);
    ifx_context_destroy(r->ctx);
    memset(r, 0, sizeof *r);
}

int32_t rig_refused(const char *path, const struct options *o, const char *needle)
{
    struct rig r;
    int32_t st = open_rig(&r, path, o);
    if (!st)
        FAIL("%s was opened; expected an error about %s", path, needle);
    if (!strstr(base_error_text(), needle))
        FAIL("%s: expected an error that names %s, got: %s", path, needle, base_error_text());
    rig_close(&r);
    return st;
}

const char *golden(int slot, const char *format, ...)
{
    static char paths[4][1024];
    const char *root = getenv("IFX_GOLDEN");
    va_list ap;
    int n = snprintf(paths[slot], sizeof paths[slot], "%s/", root ? root : "../data/golden");
    va_start(ap, format);
    vsnprintf(paths[slot] + n, sizeof paths[slot] - (size_t)n, format, ap);
    va_end(ap);
    return paths[slot];
}

static void *golden_values(struct st_file *f, const char *name, uint32_t dtype, uint64_t *count)
{
    struct ifx_tensor t;
    if (st_find(f, name, &t))
        return NULL;
    if (t.dtype != dtype)
        FAIL("%s: dtype %u, expected %u", name, t.dtype, dtype);
    void *out = base_alloc(t.data_bytes ? t.data_bytes : 1, 64);
    memcpy(out, t.data, t.data_bytes);
    *count = t.data_bytes / 4;
    return out;
}

float *golden_floats(struct st_file *f, const char *name, uint64_t *count)
{
    return golden_values(f, name, IFX_F32, count);
}

int32_t *golden_ints(struct st_file *f, const char *name, uint64_t *count)
{
    return golden_values(f, name, IFX_I32, count);
}

double largest_difference(const float *a, const float *b, uint64_t n, uint64_t *at)
{
    double most = 0;
    *at = 0;
    for (uint64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (isnan(d))
            d = INFINITY;
        if (d > most) {
            most = d;
            *at = i;
        }
    }
    return most;
}

double relative_l2(const float *a, const float *b, uint64_t n)
{
    double d = 0, r = 0;
    for (uint64_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        r += (double)b[i] * b[i];
    }
    return r > 0 ? sqrt(d / r) : sqrt(d);
}

double rms_difference(const float *a, const float *b, uint64_t n)
{
    double d = 0;
    for (uint64_t i = 0; i < n; i++)
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sqrt(d / (double)n);
}

int32_t argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return (int32_t)best;
}

double log_probability(const float *logits, uint32_t n, int32_t token)
{
    double most = logits[argmax(logits, n)], sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp(logits[i] - most);
    return logits[token] - most - log(sum);
}

void feed_cut(struct ifx_sequence *s, const int32_t *tokens, uint64_t n, uint64_t cut, uint32_t vocab, float *logits)
{
    for (uint64_t i = 0; i < n;) {
        uint64_t take = cut && cut < n - i ? cut : n - i;
        OK(ifx_sequence_feed(s, tokens + i, take, take, logits + i * vocab));
        i += take;
    }
}

void temp_folder(char *out, size_t size, const char *name)
{
    snprintf(out, size, "tmp-%s-%d", name, (int)getpid());
    char *remove = base_format("rm -rf '%s'", out);
    if (system(remove))
        FAIL("%s", remove);
    base_free(remove);
    if (mkdir(out, 0755))
        FAIL("mkdir %s", out);
}
