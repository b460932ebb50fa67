/* SPDX-License-Identifier: Apache-2.0
 *
 * mirror.c - see mirror.h.
 */
#include "mirror.h"

#include "optest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- allocations of the tests ---- */

struct note {
    const uint8_t *at;
    uint64_t bytes;
};
static struct note *notes;
static uint64_t n_notes, room;

/* What overlaps was freed meanwhile. */
void mirror_note(const void *memory, uint64_t bytes)
{
    const uint8_t *at = memory;
    uint64_t kept = 0;
    for (uint64_t i = 0; i < n_notes; i++)
        if (notes[i].at + notes[i].bytes <= at || at + bytes <= notes[i].at)
            notes[kept++] = notes[i];
    n_notes = kept;
    if (n_notes == room) {
        room = room ? 2 * room : 256;
        notes = realloc(notes, room * sizeof *notes);
        if (!notes)
            abort();
    }
    notes[n_notes++] = (struct note){at, bytes};
}

static struct note find(const void *p, uint64_t bytes)
{
    const uint8_t *at = p;
    for (uint64_t i = n_notes; i-- > 0;)
        if (notes[i].at <= at && at + bytes <= notes[i].at + notes[i].bytes)
            return notes[i];
    return (struct note){at, bytes}; /* on the stack, or constant */
}

/* ---- one operation ---- */

enum { MOST = 128 };

struct block {
    struct note host;
    uint8_t *device;
    int read_only;
};

struct mirror {
    struct ifx_device base;
    struct ifx_device_ops ops;
    struct ifx_device *real;
    void *stream;
    struct block blocks[MOST];
    uint32_t n_blocks;
    uint64_t calls;
    int32_t status;
};

static struct mirror *mirror_of(struct ifx_device *dev)
{
    return (struct mirror *)dev;
}

static void must(struct mirror *m, int32_t status)
{
    if (status && !m->status) {
        m->status = status;
        printf("the device fails: status %d: %s\n", status, minihost_error(m->real->host));
    }
}

static struct block *block_of(struct mirror *m, struct note host, int read_only)
{
    const struct ifx_device_ops *o = m->real->ops;
    for (uint32_t i = 0; i < m->n_blocks; i++)
        if (m->blocks[i].host.at == host.at && m->blocks[i].host.bytes == host.bytes)
            return &m->blocks[i];
    if (m->n_blocks == MOST)
        abort();
    struct block *b = &m->blocks[m->n_blocks++];
    *b = (struct block){.host = host, .read_only = read_only};
    must(m, o->mem_alloc(m->real, host.bytes, (void **)&b->device));
    must(m, o->copy(m->real, m->stream, b->device, host.at, host.bytes, IFX_COPY_TO_DEVICE));
    return b;
}

static void *map(struct mirror *m, const void *p, uint64_t bytes)
{
    if (!p || !bytes || m->status)
        return NULL;
    struct note host = find(p, bytes);
    struct block *b = block_of(m, host, 0);
    return b->device + ((const uint8_t *)p - host.at);
}

/* [n, width] values of `size` bytes, rows ld apart. */
static void *map2(struct mirror *m, const void *p, uint64_t n, uint64_t width, uint64_t ld, uint64_t size)
{
    return map(m, p, n ? ((n - 1) * ld + width) * size : 0);
}

static float *floats(struct mirror *m, const float *p, uint64_t n, uint64_t width, uint64_t ld)
{
    return map2(m, p, n, width, ld, 4);
}

/* The workspace need not be what the host gave: only its size is promised, and that it is 64-byte aligned, which is all it gets. */
static void *workspace(struct mirror *m, uint64_t bytes)
{
    struct block *b = &m->blocks[m->n_blocks++];
    *b = (struct block){.read_only = 1};
    if (m->status)
        return NULL;
    must(m, m->real->ops->mem_alloc(m->real, bytes + 64, (void **)&b->device));
    must(m, m->real->ops->fill(m->real, m->stream, b->device, 0xff, bytes + 64));
    return b->device + 64;
}

static void weight(struct mirror *m, struct ifx_weight *w)
{
    uint64_t groups = ((uint64_t)w->cols + 31) / 32, rows = w->rows;
    w->scales = w->dtype == IFX_W8G32 ? map(m, w->scales, rows * groups * 2) : NULL;
    w->data = map(m, w->data, w->dtype == IFX_W8G32 ? rows * groups * 32 : rows * w->cols * (w->dtype == IFX_F32 ? 4 : 2));
}

/* Before and after the operation: now and then it is captured and launched as a graph. */
static void begin(struct mirror *m)
{
    if (m->calls % 4 == 3 && !m->status)
        must(m, m->real->ops->graph_begin(m->real, m->stream));
}

static int32_t finish(struct mirror *m, int32_t status)
{
    const struct ifx_device_ops *o = m->real->ops;
    void *graph = NULL;
    if (m->calls++ % 4 == 3 && !m->status) {
        must(m, o->graph_end(m->real, m->stream, &graph));
        if (graph)
            must(m, o->graph_launch(m->real, m->stream, graph));
    }
    if (!status)
        must(m, o->stream_sync(m->real, m->stream));
    if (graph)
        o->graph_destroy(m->real, graph);
    for (uint32_t i = 0; i < m->n_blocks; i++) {
        struct block *b = &m->blocks[i];
        if (!b->read_only && !m->status)
            must(m, o->copy(m->real, m->stream, (void *)(uintptr_t)b->host.at, b->device, b->host.bytes, IFX_COPY_FROM_DEVICE));
    }
    must(m, o->stream_sync(m->real, m->stream));
    for (uint32_t i = 0; i < m->n_blocks; i++)
        o->mem_free(m->real, m->blocks[i].device);
    m->n_blocks = 0;
    if (m->status) {
        check(false, "the device fails: status %d", m->status);
        exit(1); /* a lost device fails everything after */
    }
    return status;
}

/* NAME: an operation whose struct ifx_NAME holds its operands; BODY maps them. */
#define OPERATION(NAME, BODY)                                                                                            \
    static int32_t mirror_##NAME(struct ifx_device *dev, void *stream, const struct ifx_##NAME *op)                      \
    {                                                                                                                    \
        struct mirror *m = mirror_of(dev);                                                                               \
        struct ifx_##NAME o = *op;                                                                                       \
        (void)stream;                                                                                                    \
        BODY;                                                                                                            \
        begin(m);                                                                                                        \
        return finish(m, m->real->ops->NAME(m->real, m->stream, &o));                                                    \
    }

static void map_linear(struct mirror *m, struct ifx_linear *o)
{
    o->x = floats(m, o->x, o->n, o->cols, o->ldx);
    for (uint32_t i = 0; i < o->count; i++) {
        weight(m, &o->out[i].w);
        o->out[i].y = floats(m, o->out[i].y, o->n, o->out[i].w.rows, o->out[i].ldy);
    }
    o->ws = workspace(m, m->real->ops->linear_ws_bytes(m->real, o->n, o->cols));
}
OPERATION(linear, map_linear(m, &o))
OPERATION(rms_norm, (o.x = floats(m, o.x, o.rows, o.width, o.ldx), o.w = floats(m, o.w, o.w_rows, o.width, o.width),
                     o.y = floats(m, o.y, o.rows, o.width, o.ldy)))
OPERATION(norm_rope, (o.x = floats(m, o.x, o.n, (o.heads - 1) * o.ldx_head + o.d, o.ldx), o.w = floats(m, o.w, 1, o.d, o.d),
                      o.inv_freq = floats(m, o.inv_freq, 1, o.rotary / 2, o.rotary / 2), o.positions = map(m, o.positions, o.n * 4ull),
                      o.y = floats(m, o.y, o.n, (o.heads - 1) * o.ldy_head + o.d, o.ldy)))
OPERATION(conv, (o.x = floats(m, o.x, o.n, o.channels, o.ldx), o.w = floats(m, o.w, o.channels, o.kernel, o.kernel),
                 o.state = floats(m, o.state, o.channels, (o.kernel - 1) * (o.dilation ? o.dilation : 1),
                                  (o.kernel - 1) * (o.dilation ? o.dilation : 1)),
                 o.y = floats(m, o.y, o.n, o.channels, o.ldy)))
OPERATION(gdn_gate, (o.a = floats(m, o.a, o.n, o.heads, o.lda), o.b = floats(m, o.b, o.n, o.heads, o.ldb),
                     o.a_log = floats(m, o.a_log, 1, o.heads, o.heads), o.dt_bias = floats(m, o.dt_bias, 1, o.heads, o.heads),
                     o.g = floats(m, o.g, o.n, o.heads, o.heads), o.beta = floats(m, o.beta, o.n, o.heads, o.heads)))
OPERATION(gated_delta,
          (o.q = floats(m, o.q, o.n, o.k_heads * o.dk, o.ldq), o.k = floats(m, o.k, o.n, o.k_heads * o.dk, o.ldk),
           o.v = floats(m, o.v, o.n, o.v_heads * o.dv, o.ldv), o.g = floats(m, o.g, o.n, o.v_heads, o.v_heads),
           o.beta = floats(m, o.beta, o.n, o.v_heads, o.v_heads), o.state = floats(m, o.state, o.v_heads, o.dk * o.dv, o.dk * o.dv),
           o.out = floats(m, o.out, o.n, o.v_heads * o.dv, o.ldo), o.ws = workspace(m, m->real->ops->gated_delta_ws_bytes(m->real, op))))
OPERATION(gated_norm, (o.x = floats(m, o.x, o.n, o.heads * o.width, o.ldx), o.z = floats(m, o.z, o.n, o.heads * o.width, o.ldz),
                       o.w = floats(m, o.w, 1, o.width, o.width), o.y = floats(m, o.y, o.n, o.heads * o.width, o.ldy)))
OPERATION(swiglu, (o.gate = floats(m, o.gate, o.n, o.width, o.ldg), o.up = floats(m, o.up, o.n, o.width, o.ldu),
                   o.y = floats(m, o.y, o.n, o.width, o.ldy)))
OPERATION(sigmoid_gate, (o.x = floats(m, o.x, o.n, o.heads * o.d, o.ldx),
                         o.gate = floats(m, o.gate, o.n, (o.heads - 1) * o.ldg_head + o.d, o.ldg)))
OPERATION(add, (o.x = floats(m, o.x, o.n, o.width, o.ldx), o.gate = floats(m, o.gate, o.n, 1, o.ldg),
                o.y = floats(m, o.y, o.n, o.width, o.ldy)))
OPERATION(router, (o.logits = floats(m, o.logits, o.n, o.experts, o.ldl), o.ids = map(m, o.ids, (uint64_t)o.n * o.top_k * 4),
                   o.weights = floats(m, o.weights, o.n, o.top_k, o.top_k)))

static uint64_t part_rows(const struct ifx_combine *o)
{
    uint64_t pairs = (uint64_t)o->n * o->top_k, most = o->index ? 0 : pairs;
    for (uint64_t p = 0; o->index && p < pairs; p++)
        most = o->index[p] + 1u > most ? o->index[p] + 1u : most;
    return most;
}
OPERATION(combine, (o.parts = floats(m, o.parts, part_rows(op), o.width, o.ldp), o.weights = floats(m, o.weights, o.n, o.top_k, o.top_k),
                    o.index = map(m, o.index, (uint64_t)o.n * o.top_k * 4), o.y = floats(m, o.y, o.n, o.width, o.ldy)))
OPERATION(group, (o.ids = map(m, o.ids, (uint64_t)o.n * o.top_k * 4), o.offsets = map(m, o.offsets, (o.experts + 1) * 4ull),
                  o.rows = map(m, o.rows, (uint64_t)o.n * o.top_k * 4), o.entries = map(m, o.entries, o.n_entries * 4ull),
                  o.table = map(m, o.table, o.experts * 8ull), o.records = map(m, o.records, o.n_entries * 8ull),
                  o.ws = workspace(m, m->real->ops->group_ws_bytes(m->real, o.n, o.top_k, o.experts))))
OPERATION(sample, (o.logits = floats(m, o.logits, o.n, o.vocab, o.ldl), o.u = floats(m, o.u, 1, o.n, o.n), o.tokens = map(m, o.tokens, o.n * 4ull),
                   o.history = map(m, o.history, (uint64_t)o.n * o.vocab * 4),
                   o.ws = workspace(m, m->real->ops->sample_ws_bytes(m->real, o.n, o.vocab))))
OPERATION(activate, (o.x = floats(m, o.x, o.n, o.width, o.ldx), o.y = floats(m, o.y, o.n, o.width, o.ldy)))
OPERATION(stream_mix, (o.x = floats(m, o.x, o.n, o.streams * o.width, o.ldx), o.gate = floats(m, o.gate, o.n, o.streams * o.width, o.ldg),
                       o.y = floats(m, o.y, o.n, o.width, o.ldy)))
OPERATION(stream_inject, (o.x = floats(m, o.x, o.n, o.width, o.ldx), o.inject = floats(m, o.inject, o.n, o.streams, o.ldi),
                          o.y = floats(m, o.y, o.n, o.streams * o.width, o.ldy)))
OPERATION(stream_gate, (o.key = floats(m, o.key, o.n, o.streams * o.width, o.ldk), o.query = floats(m, o.query, o.n, o.streams * o.width, o.ldq),
                        o.value = floats(m, o.value, o.n, o.width, o.ldv), o.y = floats(m, o.y, o.n, o.streams * o.width, o.ldy)))

/* A table of pages becomes one of their copies. */
static void map_plane(struct mirror *m, struct ifx_index_plane *p, const int32_t *positions, uint32_t n)
{
    static void *pages[4096];
    uint64_t most = 0, bytes = p->offset + ifx_index_plane_bytes(p->page_tokens, p->ratio, p->d, 2);
    for (uint32_t i = 0; i < n; i++)
        most = (uint64_t)positions[i] >= most ? (uint64_t)positions[i] + 1 : most;
    uint64_t count = (most + p->page_tokens - 1) / p->page_tokens;
    if (count > 64)
        abort();
    for (uint64_t i = 0; i < count; i++)
        pages[i] = map(m, p->pages[i], bytes);
    struct block *b = block_of(m, (struct note){(const uint8_t *)pages, count * sizeof *pages}, 1);
    p->pages = (void *const *)(void *)b->device;
}

OPERATION(index_append, (map_plane(m, &o.plane, op->positions, op->n), o.positions = map(m, o.positions, o.n * 4ull),
                         o.k = floats(m, o.k, o.n, o.plane.d, o.ldk), o.w = floats(m, o.w, 1, o.plane.d, o.plane.d),
                         o.inv_freq = floats(m, o.inv_freq, 1, o.rotary / 2, o.rotary / 2)))
OPERATION(block_select,
          (map_plane(m, &o.plane, op->positions, op->n), o.positions = map(m, o.positions, o.n * 4ull),
           o.q = floats(m, o.q, o.n, o.heads * o.plane.d, o.ldq), o.rows = map2(m, o.rows, o.n, o.budget + o.plane.ratio - 1, o.ld_rows, 4),
           o.n_rows = map(m, o.n_rows, o.n * 4ull), o.ws = workspace(m, m->real->ops->block_select_ws_bytes(m->real, op))))

static int32_t mirror_embed(struct ifx_device *dev, void *stream, const struct ifx_weight *table, const int32_t *ids, uint32_t n, float *y,
                            uint64_t ldy)
{
    struct mirror *m = mirror_of(dev);
    struct ifx_weight w = *table;
    (void)stream;
    weight(m, &w);
    ids = map(m, ids, n * 4ull);
    y = floats(m, y, n, w.cols, ldy);
    begin(m);
    return finish(m, m->real->ops->embed(m->real, m->stream, &w, ids, n, y, ldy));
}

static int32_t mirror_to_bf16(struct ifx_device *dev, void *stream, const float *x, uint64_t ldx, uint32_t n, uint32_t width, uint16_t *y,
                              uint64_t ldy)
{
    struct mirror *m = mirror_of(dev);
    (void)stream;
    x = floats(m, x, n, width, ldx);
    y = map2(m, y, n, width, ldy, 2);
    begin(m);
    return finish(m, m->real->ops->to_bf16(m->real, m->stream, x, ldx, n, width, y, ldy));
}

/* ---- several operations in one ---- */

/* What points to other operations has copies of them. */
struct product_call {
    struct ifx_product op;
    struct ifx_rms_norm norm;
    struct ifx_gated_norm gated_norm;
    struct ifx_swiglu swiglu;
    struct ifx_sigmoid_gate sigmoid_gate;
    struct ifx_gdn_gate gate;
    struct ifx_combine combine;
    struct ifx_add shared, residual;
};

#define TAKE(member)                                                                                                     \
    if (op->member) {                                                                                                    \
        k->member = *op->member;                                                                                         \
        k->op.member = &k->member;                                                                                       \
    }

static void map_add(struct mirror *m, struct ifx_add *o)
{
    o->x = floats(m, o->x, o->n, o->width, o->ldx), o->gate = floats(m, o->gate, o->n, 1, o->ldg);
    o->y = floats(m, o->y, o->n, o->width, o->ldy);
}

static void map_product(struct mirror *m, struct product_call *k, const struct ifx_product *op)
{
    *k = (struct product_call){.op = *op};
    TAKE(norm) TAKE(gated_norm) TAKE(swiglu) TAKE(sigmoid_gate) TAKE(gate) TAKE(combine) TAKE(shared) TAKE(residual)
    uint32_t n = op->linear.n, cols = op->linear.cols;
    struct ifx_rms_norm *a = &k->norm;
    struct ifx_gated_norm *b = &k->gated_norm;
    struct ifx_swiglu *c = &k->swiglu;
    struct ifx_sigmoid_gate *d = &k->sigmoid_gate;
    struct ifx_gdn_gate *g = &k->gate;
    struct ifx_combine *o = &k->combine;
    map_linear(m, &k->op.linear);
    k->op.rounded = map2(m, op->rounded, n, cols, op->ldr, 2);
    a->x = floats(m, a->x, n, a->width, a->ldx), a->w = floats(m, a->w, a->w_rows, a->width, a->width), a->y = floats(m, a->y, n, a->width, a->ldy);
    b->x = floats(m, b->x, n, cols, b->ldx), b->z = floats(m, b->z, n, cols, b->ldz), b->w = floats(m, b->w, 1, b->width, b->width);
    b->y = floats(m, b->y, n, cols, b->ldy);
    c->gate = floats(m, c->gate, n, cols, c->ldg), c->up = floats(m, c->up, n, cols, c->ldu), c->y = floats(m, c->y, n, cols, c->ldy);
    d->x = floats(m, d->x, n, cols, d->ldx), d->gate = floats(m, d->gate, n, (d->heads - 1) * d->ldg_head + d->d, d->ldg);
    g->a = floats(m, g->a, n, g->heads, g->lda), g->b = floats(m, g->b, n, g->heads, g->ldb);
    g->a_log = floats(m, g->a_log, 1, g->heads, g->heads), g->dt_bias = floats(m, g->dt_bias, 1, g->heads, g->heads);
    g->g = floats(m, g->g, n, g->heads, g->heads), g->beta = floats(m, g->beta, n, g->heads, g->heads);
    if (op->combine) {
        o->parts = floats(m, o->parts, part_rows(op->combine), o->width, o->ldp), o->weights = floats(m, o->weights, n, o->top_k, o->top_k);
        o->index = map(m, o->index, (uint64_t)n * o->top_k * 4), o->y = floats(m, o->y, n, o->width, o->ldy);
        map_add(m, &k->shared), map_add(m, &k->residual);
    }
}

static int32_t mirror_product(struct ifx_device *dev, void *stream, const struct ifx_product *op)
{
    struct mirror *m = mirror_of(dev);
    struct product_call k;
    (void)stream;
    map_product(m, &k, op);
    begin(m);
    return finish(m, m->real->ops->product(m->real, m->stream, &k.op));
}

static int32_t mirror_route(struct ifx_device *dev, void *stream, const struct ifx_router *router, const struct ifx_group *group)
{
    struct mirror *m = mirror_of(dev);
    struct ifx_router r = *router;
    struct ifx_group o = *group;
    uint64_t pairs = (uint64_t)r.n * r.top_k;
    (void)stream;
    r.logits = floats(m, r.logits, r.n, r.experts, r.ldl), r.ids = map(m, r.ids, pairs * 4), r.weights = floats(m, r.weights, r.n, r.top_k, r.top_k);
    o.ids = map(m, o.ids, pairs * 4), o.offsets = map(m, o.offsets, (o.experts + 1) * 4ull), o.rows = map(m, o.rows, pairs * 4);
    o.entries = map(m, o.entries, o.n_entries * 4ull), o.table = map(m, o.table, o.experts * 8ull), o.records = map(m, o.records, o.n_entries * 8ull);
    o.ws = workspace(m, m->real->ops->group_ws_bytes(m->real, o.n, o.top_k, o.experts));
    begin(m);
    return finish(m, m->real->ops->route(m->real, m->stream, &r, &o));
}

/* ---- what passes through ---- */

static uint64_t linear_ws_bytes(struct ifx_device *dev, uint32_t n, uint32_t cols)
{
    return mirror_of(dev)->real->ops->linear_ws_bytes(mirror_of(dev)->real, n, cols);
}

static uint64_t gated_delta_ws_bytes(struct ifx_device *dev, const struct ifx_gated_delta *op)
{
    return mirror_of(dev)->real->ops->gated_delta_ws_bytes(mirror_of(dev)->real, op);
}

static uint64_t group_ws_bytes(struct ifx_device *dev, uint32_t n, uint32_t top_k, uint32_t experts)
{
    return mirror_of(dev)->real->ops->group_ws_bytes(mirror_of(dev)->real, n, top_k, experts);
}

static uint64_t sample_ws_bytes(struct ifx_device *dev, uint32_t n, uint32_t vocab)
{
    return mirror_of(dev)->real->ops->sample_ws_bytes(mirror_of(dev)->real, n, vocab);
}

static uint64_t block_select_ws_bytes(struct ifx_device *dev, const struct ifx_block_select *op)
{
    return mirror_of(dev)->real->ops->block_select_ws_bytes(mirror_of(dev)->real, op);
}

static int32_t props(struct ifx_device *dev, struct ifx_device_props *out)
{
    return mirror_of(dev)->real->ops->props(mirror_of(dev)->real, out);
}

static void mirror_close(struct ifx_device *dev)
{
    struct mirror *m = mirror_of(dev);
    m->real->ops->stream_destroy(m->real, m->stream);
    m->real->ops->close(m->real);
    free(m);
    free(notes);
    notes = NULL;
    n_notes = room = 0;
}

struct ifx_device *mirror_open(struct ifx_device *real)
{
    struct mirror *m = calloc(1, sizeof *m);
    if (!m || real->ops->stream_create(real, &m->stream))
        abort();
    m->real = real;
    m->base = (struct ifx_device){.ops = &m->ops, .host = real->host};
    m->ops = (struct ifx_device_ops){
        .struct_size = sizeof m->ops, .close = mirror_close, .props = props, .embed = mirror_embed, .linear_ws_bytes = linear_ws_bytes,
        .linear = mirror_linear, .rms_norm = mirror_rms_norm, .norm_rope = mirror_norm_rope, .conv = mirror_conv,
        .gdn_gate = mirror_gdn_gate, .gated_delta_ws_bytes = gated_delta_ws_bytes, .gated_delta = mirror_gated_delta,
        .gated_norm = mirror_gated_norm, .swiglu = mirror_swiglu, .sigmoid_gate = mirror_sigmoid_gate, .add = mirror_add,
        .router = mirror_router, .combine = mirror_combine, .to_bf16 = mirror_to_bf16, .group_ws_bytes = group_ws_bytes,
        .group = mirror_group, .sample_ws_bytes = sample_ws_bytes, .sample = mirror_sample, .activate = mirror_activate,
        .stream_mix = mirror_stream_mix, .stream_inject = mirror_stream_inject, .stream_gate = mirror_stream_gate,
        .index_append = mirror_index_append, .block_select_ws_bytes = block_select_ws_bytes, .block_select = mirror_block_select};
    if (real->ops->product)
        m->ops.product = mirror_product;
    if (real->ops->route)
        m->ops.route = mirror_route;
    return &m->base;
}
