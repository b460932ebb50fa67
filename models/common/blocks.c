/* SPDX-License-Identifier: Apache-2.0
 *
 * blocks.c - the blocks that families share.
 */
#include "blocks.h"

#include <string.h>

/* ---- workspace ---- */

void *block_take(struct block_cursor *c, uint64_t bytes)
{
    void *p = c->base ? c->base + c->at : NULL;
    c->at += (bytes + 63) / 64 * 64;
    return p;
}

float *block_take_floats(struct block_cursor *c, uint64_t n, uint64_t width)
{
    return block_take(c, n * width * sizeof(float));
}

/* ---- parameters and products ---- */

const float *block_vector(const struct block_run *r, uint32_t param)
{
    return r->s->weights[param].data;
}

struct ifx_linear block_linear(const struct block_run *r, const float *x, uint32_t cols)
{
    struct ifx_linear op;
    memset(&op, 0, sizeof op);
    op.n = r->n;
    op.cols = cols;
    op.x = x;
    op.ldx = cols;
    op.ws = r->linear_ws;
    return op;
}

void block_linear_out(const struct block_run *r, struct ifx_linear *op, uint32_t param, float *y, uint32_t accumulate)
{
    op->out[op->count].w = r->s->weights[param];
    op->out[op->count].y = y;
    op->out[op->count].ldy = r->s->weights[param].rows;
    op->out[op->count].accumulate = accumulate;
    op->count++;
}

int32_t block_linear_run(const struct block_run *r, const struct ifx_linear *op)
{
    return r->op->linear(r->dev, r->s->stream, op);
}

int32_t block_product(const struct block_run *r, const float *x, uint32_t cols, uint32_t param, float *y, uint32_t accumulate)
{
    struct ifx_linear op = block_linear(r, x, cols);
    block_linear_out(r, &op, param, y, accumulate);
    return block_linear_run(r, &op);
}

int32_t block_surrounded(const struct block_run *r, const struct ifx_product *op)
{
    int32_t st = r->op->product ? r->op->product(r->dev, r->s->stream, op) : IFX_EUNSUPPORTED;
    return st == IFX_EUNSUPPORTED ? ifx_product_steps(r->dev, r->s->stream, op) : st;
}

int32_t block_each_wanted(const struct ifx_step *s, void *ctx,
                          int32_t (*fn)(void *ctx, uint32_t first, uint32_t count, uint32_t to))
{
    uint32_t count;
    for (uint32_t i = 0; i < s->n_logits; i += count) {
        for (count = 1; i + count < s->n_logits; count++)
            if (s->logit_columns[i + count] != s->logit_columns[i] + count)
                break;
        TRY(fn(ctx, s->logit_columns[i], count, i));
    }
    return IFX_OK;
}

struct keep {
    const struct block_run *r;
    const float *from;
    float *to;
    uint64_t width;
};

static int32_t keep_run(void *ctx, uint32_t first, uint32_t count, uint32_t to)
{
    const struct keep *k = ctx;
    return k->r->op->copy(k->r->dev, k->r->s->stream, k->to + to * k->width, k->from + first * k->width, count * k->width * sizeof(float),
                          IFX_COPY_ON_DEVICE);
}

int32_t block_keep_wanted(struct block_run *r, float **x, float **spare, uint64_t width)
{
    struct keep k = {r, *x, *spare, width};
    TRY(block_each_wanted(r->s, &k, keep_run));
    *spare = *x;
    *x = k.to;
    r->n = r->s->n_logits;
    return IFX_OK;
}

/* ---- gated delta net ---- */

static struct ifx_gated_delta delta_geometry(const struct delta_net *net, uint32_t n)
{
    struct ifx_gated_delta op = {.n = n, .k_heads = net->k_heads, .v_heads = net->v_heads, .dk = net->dk, .dv = net->dv};
    op.ldq = op.ldk = op.ldv = net->channels;
    op.ldo = net->value_width;
    return op;
}

void delta_lay_out(const struct delta_net *net, struct ifx_device *dev, uint32_t n, struct block_cursor *c,
                   struct delta_buffers *b)
{
    struct ifx_gated_delta delta = delta_geometry(net, n);
    b->qkv = block_take_floats(c, n, net->channels);
    b->z = block_take_floats(c, n, net->value_width);
    b->b = block_take_floats(c, n, net->v_heads);
    b->a = block_take_floats(c, n, net->v_heads);
    b->conv = block_take_floats(c, n, net->channels);
    b->g = block_take_floats(c, n, net->v_heads);
    b->beta = block_take_floats(c, n, net->v_heads);
    b->ws = block_take(c, dev->ops->gated_delta_ws_bytes(dev, &delta));
}

/* The parts that run along a sequence: convolution and delta rule. */
static int32_t delta_segment(const struct block_run *r, const struct delta_net *net, const struct delta_layer *l,
                             const struct delta_buffers *b, const struct ifx_segment *seg)
{
    float *state = seg->state;
    uint64_t row = (uint64_t)seg->column0 * net->channels;
    struct ifx_conv conv = {.n = seg->n, .channels = net->channels, .kernel = net->kernel, .x = b->qkv + row,
                            .ldx = net->channels, .w = block_vector(r, l->conv), .state = state + l->state_conv,
                            .y = b->conv + row, .ldy = net->channels};
    TRY(r->op->conv(r->dev, r->s->stream, &conv));
    struct ifx_gated_delta delta = delta_geometry(net, seg->n);
    delta.q = b->conv + row;
    delta.k = delta.q + net->key_width;
    delta.v = delta.k + net->key_width;
    delta.g = b->g + (uint64_t)seg->column0 * net->v_heads;
    delta.beta = b->beta + (uint64_t)seg->column0 * net->v_heads;
    delta.state = state + l->state_s;
    /* The convolution's input is spent: its place holds the output. */
    delta.out = b->qkv + (uint64_t)seg->column0 * net->value_width;
    delta.ws = b->ws;
    return r->op->gated_delta(r->dev, r->s->stream, &delta);
}

int32_t delta_forward(const struct block_run *r, const struct delta_net *net, const struct delta_layer *l,
                      const struct delta_buffers *b, const struct ifx_rms_norm *norm, const float *in, float *out, uint32_t accumulate)
{
    struct ifx_gdn_gate gate = {.n = r->n, .heads = net->v_heads, .a = b->a, .b = b->b, .lda = net->v_heads,
                                .ldb = net->v_heads, .a_log = block_vector(r, l->a_log),
                                .dt_bias = block_vector(r, l->dt_bias), .g = b->g, .beta = b->beta};
    struct ifx_product first = {.norm = norm, .linear = block_linear(r, in, r->hidden), .gate = &gate};
    block_linear_out(r, &first.linear, l->in_qkv, b->qkv, 0);
    block_linear_out(r, &first.linear, l->in_z, b->z, 0);
    block_linear_out(r, &first.linear, l->in_b, b->b, 0);
    block_linear_out(r, &first.linear, l->in_a, b->a, 0);
    TRY(block_surrounded(r, &first));
    for (uint32_t i = 0; i < r->s->n_segments; i++)
        TRY(delta_segment(r, net, l, b, &r->s->segments[i]));
    float *o = b->qkv;
    struct ifx_gated_norm gn = {.n = r->n, .heads = net->v_heads, .width = net->dv, .act = net->act, .x = o, .z = b->z,
                                .w = block_vector(r, l->norm), .ldx = net->value_width, .ldz = net->value_width,
                                .eps = net->eps, .y = o, .ldy = net->value_width};
    struct ifx_product last = {.gated_norm = &gn, .linear = block_linear(r, o, net->value_width)};
    block_linear_out(r, &last.linear, l->out_proj, out, accumulate);
    return block_surrounded(r, &last);
}

/* ---- gated attention ---- */

void attention_lay_out(const struct attention_net *net, uint32_t n, struct block_cursor *c, struct attention_buffers *b)
{
    b->qg = block_take_floats(c, n, 2ull * net->q_heads * net->d);
    b->k = block_take_floats(c, n, (uint64_t)net->kv_heads * net->d);
    b->v = block_take_floats(c, n, (uint64_t)net->kv_heads * net->d);
    b->attn = block_take_floats(c, n, (uint64_t)net->q_heads * net->d);
}

static int32_t norm_rope(const struct block_run *r, const struct attention_net *net, float *x, uint32_t heads, uint64_t ld,
                         uint64_t ld_head, uint32_t param)
{
    struct ifx_norm_rope op = {.n = r->n, .heads = heads, .d = net->d, .rotary = net->rotary, .x = x, .ldx = ld,
                               .ldx_head = ld_head, .w = block_vector(r, param), .eps = net->eps, .inv_freq = r->inv_freq,
                               .positions = r->s->positions, .y = x, .ldy = ld, .ldy_head = ld_head};
    return r->op->norm_rope(r->dev, r->s->stream, &op);
}

int32_t attention_forward(const struct block_run *r, const struct attention_net *net, const struct attention_layer *l,
                          const struct attention_buffers *b, const struct ifx_rms_norm *norm, const float *in, attention_select select, void *select_ctx,
                          float *out, uint32_t accumulate)
{
    const struct ifx_services *sv = r->s->services;
    uint32_t d = net->d, q_width = net->q_heads * d, kv_width = net->kv_heads * d;
    uint64_t ldq = 2ull * q_width, ldq_head = 2ull * d;
    struct ifx_product first = {.norm = norm, .linear = block_linear(r, in, r->hidden)};
    block_linear_out(r, &first.linear, l->q_proj, b->qg, 0);
    block_linear_out(r, &first.linear, l->k_proj, b->k, 0);
    block_linear_out(r, &first.linear, l->v_proj, b->v, 0);
    TRY(block_surrounded(r, &first));
    TRY(norm_rope(r, net, b->qg, net->q_heads, ldq, ldq_head, l->q_norm));
    TRY(norm_rope(r, net, b->k, net->kv_heads, kv_width, d, l->k_norm));
    for (uint32_t i = 0; i < r->s->n_segments; i++) {
        const struct ifx_segment *seg = &r->s->segments[i];
        uint64_t c = seg->column0;
        struct ifx_attention call = {.segment = seg, .kv_layer = l->index, .scale = (float)(1.0 / __builtin_sqrt((double)d)),
                                     .q = b->qg + c * ldq, .ldq = ldq, .ldq_head = ldq_head, .k = b->k + c * kv_width,
                                     .ldk = kv_width, .v = b->v + c * kv_width, .ldv = kv_width,
                                     .out = b->attn + c * q_width, .ldo = q_width};
        if (select)
            TRY(select(select_ctx, r, seg, &call));
        TRY(sv->attention(sv, &call));
    }
    struct ifx_sigmoid_gate gate = {.n = r->n, .heads = net->q_heads, .d = d, .x = b->attn, .ldx = q_width,
                                    .gate = b->qg + d, .ldg = ldq, .ldg_head = ldq_head};
    struct ifx_product last = {.sigmoid_gate = &gate, .linear = block_linear(r, b->attn, q_width)};
    block_linear_out(r, &last.linear, l->o_proj, out, accumulate);
    return block_surrounded(r, &last);
}

/* ---- feed-forward ---- */

void ffn_lay_out(uint32_t hidden, uint32_t inter, bool mixture, uint32_t n, struct block_cursor *c, struct ffn_buffers *b)
{
    b->gate = block_take_floats(c, n, inter);
    b->up = block_take_floats(c, n, inter);
    if (!mixture)
        return;
    b->shared = block_take_floats(c, n, hidden);
    b->shared_gate = block_take_floats(c, n, 1);
    b->routed = block_take_floats(c, n, hidden);
}

static int32_t swiglu(const struct block_run *r, uint32_t inter, const struct ffn_buffers *b)
{
    struct ifx_swiglu op = {.n = r->n, .width = inter, .gate = b->gate, .up = b->up, .ldg = inter, .ldu = inter, .y = b->gate,
                            .ldy = inter};
    return r->op->swiglu(r->dev, r->s->stream, &op);
}

int32_t ffn_forward(const struct block_run *r, uint32_t inter, const struct ffn_layer *l, const struct ffn_buffers *b,
                    const float *in, float *out, uint32_t accumulate)
{
    struct ifx_linear op = block_linear(r, in, r->hidden);
    block_linear_out(r, &op, l->gate_proj, b->gate, 0);
    block_linear_out(r, &op, l->up_proj, b->up, 0);
    TRY(block_linear_run(r, &op));
    TRY(swiglu(r, inter, b));
    return block_product(r, b->gate, inter, l->down_proj, out, accumulate);
}

int32_t mixture_forward(const struct block_run *r, uint32_t inter, const struct ffn_layer *l, uint32_t moe_layer,
                        const struct ffn_buffers *b, const float *in)
{
    const struct ifx_services *sv = r->s->services;
    uint32_t h = r->hidden;
    TRY(sv->moe(sv, moe_layer, in, h, r->n, b->routed, h));
    struct ifx_linear op = block_linear(r, in, h);
    block_linear_out(r, &op, l->gate_proj, b->gate, 0);
    block_linear_out(r, &op, l->up_proj, b->up, 0);
    block_linear_out(r, &op, l->shared_gate, b->shared_gate, 0);
    TRY(block_linear_run(r, &op));
    TRY(swiglu(r, inter, b));
    TRY(block_product(r, b->gate, inter, l->down_proj, b->shared, 0));
    struct ifx_add add = {.n = r->n, .width = h, .x = b->shared, .ldx = h, .gate = b->shared_gate, .ldg = 1, .y = b->routed,
                          .ldy = h};
    return r->op->add(r->dev, r->s->stream, &add);
}

int32_t mixture_block(const struct block_run *r, uint32_t inter, const struct ffn_layer *l, uint32_t moe_layer, const struct ffn_buffers *b,
                      const struct ifx_rms_norm *norm, float *x)
{
    const struct ifx_services *sv = r->s->services;
    uint32_t h = r->hidden;
    struct ifx_swiglu act = {.n = r->n, .width = inter, .gate = b->gate, .up = b->up, .ldg = inter, .ldu = inter, .y = b->gate, .ldy = inter};
    struct ifx_add shared = {.n = r->n, .width = h, .x = b->shared, .ldx = h, .gate = b->shared_gate, .ldg = 1, .y = b->routed, .ldy = h};
    struct ifx_add residual = {.n = r->n, .width = h, .x = b->routed, .ldx = h, .y = x, .ldy = h};
    struct ifx_product in = {.norm = norm, .linear = block_linear(r, norm->y, h)};
    struct ifx_product out = {.swiglu = &act, .linear = block_linear(r, b->gate, inter), .shared = &shared, .residual = &residual};
    block_linear_out(r, &in.linear, l->gate_proj, b->gate, 0);
    block_linear_out(r, &in.linear, l->up_proj, b->up, 0);
    block_linear_out(r, &in.linear, l->shared_gate, b->shared_gate, 0);
    block_linear_out(r, &out.linear, l->down_proj, b->shared, 0);
    int32_t st = sv->moe_block ? sv->moe_block(sv, moe_layer, &in, &out) : IFX_EUNSUPPORTED;
    if (st != IFX_EUNSUPPORTED)
        return st;
    TRY(r->op->rms_norm(r->dev, r->s->stream, norm));
    TRY(mixture_forward(r, inter, l, moe_layer, b, norm->y));
    return r->op->add(r->dev, r->s->stream, &residual);
}
