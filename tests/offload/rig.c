/* SPDX-License-Identifier: Apache-2.0 */
#include "rig.h"

#include <infernix/numerics.h>
#include <stdio.h>

uint64_t rig_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint32_t rig_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)(rig_random(state) % n);
}

static float rig_float(uint64_t *state)
{
    return (float)(rig_random(state) >> 40) * 0x1p-23f - 1.0f;
}

static uint32_t pick(uint32_t value, uint32_t fallback)
{
    return value ? value : fallback;
}

static void open_device(struct rig *r, const char *spec)
{
    const struct registry_plugin *plugin;
    char name[64];
    snprintf(name, sizeof name, "%s", spec);
    if (strchr(name, ','))
        *strchr(name, ',') = 0;
    const char *identity = strcmp(name, "device_sim") == 0 ? "sim" : "cpu";
    OK(registry_load(r->registry, spec, &plugin));
    OK(plugin->ops.device->open(registry_host(r->registry), plugin->options, identity, 0, &r->dev));
    OK(r->dev->ops->stream_create(r->dev, &r->stream));
}

/* What was packed last: most rigs of a test want the same, and under valgrind packing takes longer than all the rest. */
static struct {
    const char *format;
    uint64_t bytes, values;
    uint8_t *records;
} packed;

static void forget_packed(void)
{
    base_free(packed.records);
    packed.records = NULL;
}

static void keep_packed(const char *format, uint64_t bytes, uint64_t values, const uint8_t *records)
{
    if (!packed.format)
        atexit(forget_packed);
    forget_packed();
    packed.records = base_alloc(bytes, 64);
    assert_non_null(packed.records);
    memcpy(packed.records, records, bytes);
    packed.format = format;
    packed.bytes = bytes;
    packed.values = values;
}

static void pack_records(struct rig *r, const char *format)
{
    uint64_t seed = 7, values = (uint64_t)r->layers[0].hidden * r->layers[0].inter;
    uint64_t bytes = r->layers[0].record_bytes, total = bytes * r->layers[0].experts * r->n_layers;
    r->memory = base_alloc(total, 4096);
    assert_non_null(r->memory);
    for (uint32_t l = 0; l < r->n_layers; l++)
        r->layers[l].records = r->memory + l * bytes * r->layers[l].experts;
    if (packed.records && strcmp(packed.format, format) == 0 && packed.bytes == total && packed.values == values) {
        memcpy(r->memory, packed.records, total);
        return;
    }
    float *w = test_malloc(3 * values * sizeof *w);
    for (uint32_t l = 0; l < r->n_layers; l++)
        for (uint32_t e = 0; e < r->layers[l].experts; e++) {
            for (uint64_t i = 0; i < 3 * values; i++)
                w[i] = rig_float(&seed) * 0.3f;
            OK(r->ops->pack(r->bank, w, w + values, w + 2 * values, (uint8_t *)r->layers[l].records + e * bytes));
        }
    test_free(w);
    keep_packed(format, total, values, r->memory);
}

static void open_buffers(struct rig *r)
{
    const struct offload_layer *l = &r->layers[0];
    uint64_t n = r->max_columns, pairs = n * l->top_k, row = n * l->hidden;
    void *p;
    r->x = test_calloc(row, sizeof *r->x);
    r->ids = test_calloc(pairs, sizeof *r->ids);
    r->weights = test_calloc(pairs, sizeof *r->weights);
    r->y = test_calloc(row, sizeof *r->y);
    r->want = test_calloc(row, sizeof *r->want);
    OK(r->dev->ops->mem_alloc(r->dev, row * sizeof *r->x, &p));
    r->dev_x = p;
    OK(r->dev->ops->mem_alloc(r->dev, pairs * sizeof *r->ids, &p));
    r->dev_ids = p;
    OK(r->dev->ops->mem_alloc(r->dev, pairs * sizeof *r->weights, &p));
    r->dev_weights = p;
    OK(r->dev->ops->mem_alloc(r->dev, row * sizeof *r->y, &p));
    r->dev_y = p;
    r->ws = base_alloc(offload_cpu_ws_bytes(l, r->pool, r->max_columns), 64);
    assert_non_null(r->ws);
}

void rig_open(struct rig *r, const struct rig_options *o)
{
    const struct registry_plugin *bank, *cpu;
    struct ifx_expert_shape shape = {sizeof shape, pick(o->hidden, 64), pick(o->inter, 32), 0};
    memset(r, 0, sizeof *r);
    r->n_layers = pick(o->layers, 3);
    r->max_columns = pick(o->max_columns, 64);
    OK(base_pool_create(pick(o->threads, 2), false, &r->pool));
    OK(registry_create(NULL, NULL, r->pool, base_cpu_detect(), &r->registry));
    OK(registry_find(r->registry, IFX_KIND_DEVICE, "cpu", &cpu));
    OK(cpu->ops.device->open(registry_host(r->registry), cpu->options, "cpu", 0, &r->cpu));
    open_device(r, o->device);
    OK(registry_find(r->registry, IFX_KIND_EXPERT, o->format ? o->format : "nvfp4", &bank));
    r->ops = bank->ops.expert;
    OK(r->ops->open(registry_host(r->registry), bank->options, &shape, &r->bank));
    for (uint32_t l = 0; l < r->n_layers; l++) {
        r->layers[l] = (struct offload_layer){.ops = r->ops, .bank = r->bank, .record_bytes = r->ops->record_bytes(&shape),
                                              .experts = pick(o->experts, 16), .top_k = pick(o->top_k, 4),
                                              .hidden = shape.hidden, .inter = shape.inter};
        r->policies[l] = o->policy ? o->policy : registry_policy(r->ops);
    }
    pack_records(r, o->format ? o->format : "nvfp4");
    open_buffers(r);
    r->config = (struct offload_config){.dev = r->dev, .pool = r->pool, .layers = r->layers, .n_layers = r->n_layers,
                                        .max_columns = r->max_columns, .mode = o->mode, .deterministic = o->deterministic,
                                        .promote_bytes = o->promote_bytes, .policies = r->policies};
    if (o->no_offload)
        return;
    OK(offload_create(&r->config, &r->offload));
    OK(offload_allocate(r->offload, o->frames, o->slots));
}

void rig_close(struct rig *r)
{
    offload_destroy(r->offload);
    r->dev->ops->mem_free(r->dev, r->dev_x);
    r->dev->ops->mem_free(r->dev, r->dev_ids);
    r->dev->ops->mem_free(r->dev, r->dev_weights);
    r->dev->ops->mem_free(r->dev, r->dev_y);
    r->dev->ops->stream_destroy(r->dev, r->stream);
    r->dev->ops->close(r->dev);
    r->cpu->ops->close(r->cpu);
    r->ops->close(r->bank);
    base_free(r->memory);
    base_free(r->ws);
    registry_destroy(r->registry);
    base_pool_destroy(r->pool);
    test_free(r->x);
    test_free(r->ids);
    test_free(r->weights);
    test_free(r->y);
    test_free(r->want);
}

static void draw_ids(struct rig *r, uint32_t layer, uint32_t n, uint32_t skew, uint64_t *seed)
{
    const struct offload_layer *l = &r->layers[layer];
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t k = 0; k < l->top_k; k++) {
            int32_t e;
            bool taken;
            do {
                e = (int32_t)rig_below(seed, l->experts);
                for (uint32_t s = 0; s < skew; s++) {
                    int32_t other = (int32_t)rig_below(seed, l->experts);
                    e = other < e ? other : e;
                }
                taken = false;
                for (uint32_t i = 0; i < k; i++)
                    taken |= r->ids[t * l->top_k + i] == e;
            } while (taken);
            r->ids[t * l->top_k + k] = e;
            r->weights[t * l->top_k + k] = 0.1f + (float)rig_below(seed, 100) * 0.01f;
        }
}

void rig_draw(struct rig *r, uint32_t layer, uint32_t n, uint32_t skew, uint64_t *seed)
{
    const struct offload_layer *l = &r->layers[layer];
    for (uint32_t i = 0; i < n * l->hidden; i++)
        r->x[i] = ifx_f32_to_bf16(rig_float(seed));
    draw_ids(r, layer, n, skew, seed);
    struct offload_call c = {.layer = l, .pool = r->pool, .dev = r->cpu, .n = n, .ids = r->ids, .weights = r->weights,
                             .y = r->want, .ldy = l->hidden, .any_order = offload_any_order(n, r->config.deterministic)};
    OK(offload_cpu_moe(&c, r->x, l->hidden, r->ws));
    memset(r->y, 0xee, (uint64_t)n * l->hidden * sizeof *r->y);
}

int32_t rig_run(struct rig *r, uint32_t layer, uint32_t n)
{
    const struct offload_layer *l = &r->layers[layer];
    const struct ifx_device_ops *op = r->dev->ops;
    uint64_t row = (uint64_t)n * l->hidden, pairs = (uint64_t)n * l->top_k;
    struct offload_moe_call c = {.layer = layer, .n = n, .stream = r->stream, .x = r->dev_x, .ldx = l->hidden,
                                 .ids = r->dev_ids, .weights = r->dev_weights, .y = r->dev_y, .ldy = l->hidden};
    int32_t st = op->copy(r->dev, r->stream, r->dev_x, r->x, row * sizeof *r->x, IFX_COPY_TO_DEVICE);
    if (!st)
        st = op->copy(r->dev, r->stream, r->dev_ids, r->ids, pairs * sizeof *r->ids, IFX_COPY_TO_DEVICE);
    if (!st)
        st = op->copy(r->dev, r->stream, r->dev_weights, r->weights, pairs * sizeof *r->weights, IFX_COPY_TO_DEVICE);
    if (!st)
        st = offload_moe(r->offload, &c);
    if (!st)
        st = op->copy(r->dev, r->stream, r->y, r->dev_y, row * sizeof *r->y, IFX_COPY_FROM_DEVICE);
    int32_t last = op->stream_sync(r->dev, r->stream);
    return st ? st : last;
}

void rig_compare(const struct rig *r, uint32_t layer, uint32_t n, const char *what)
{
    uint32_t h = r->layers[layer].hidden;
    for (uint32_t i = 0; i < n * h; i++)
        if (memcmp(&r->y[i], &r->want[i], sizeof *r->y) != 0)
            fail_msg("%s: layer %u, %u columns: column %u, value %u: %.9g instead of %.9g", what, layer, n, i / h, i % h,
                     (double)r->y[i], (double)r->want[i]);
}

void rig_step(struct rig *r, uint32_t n, uint32_t skew, uint64_t *seed, const char *what)
{
    OK(offload_begin_step(r->offload, r->stream));
    for (uint32_t l = 0; l < r->n_layers; l++) {
        rig_draw(r, l, n, skew, seed);
        OK(rig_run(r, l, n));
        rig_compare(r, l, n, what);
    }
}
