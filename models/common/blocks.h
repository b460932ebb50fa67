/* SPDX-License-Identifier: Apache-2.0
 *
 * blocks.h - the blocks that families share: gated delta net, gated attention, mixture of experts with a shared expert.  Each takes
 * a normed input [n, hidden] (with `norm`, its y: the norm is then still to be made) and writes its output, or adds it; the mathematics is in the comments of blocks.c.
 */
#ifndef INFERNIX_MODELS_BLOCKS_H
#define INFERNIX_MODELS_BLOCKS_H

#include <infernix/model.h>
#include <stdbool.h>

#define TRY(call)           \
    do {                    \
        int32_t st_ = call; \
        if (st_)            \
            return st_;     \
    } while (0)

/* One step being run. */
struct block_run {
    const struct ifx_step *s;
    struct ifx_device *dev;
    const struct ifx_device_ops *op;
    uint32_t n;      /* columns still computed: all, and after the last mixer those whose logits are wanted */
    uint32_t hidden; /* width of a block's input and output */
    void *linear_ws;
    float *inv_freq; /* device */
};

/* ---- workspace: regions laid out one after the other; base NULL: only sizes count ---- */
struct block_cursor {
    uint8_t *base;
    uint64_t at;
};
void *block_take(struct block_cursor *c, uint64_t bytes);
float *block_take_floats(struct block_cursor *c, uint64_t n, uint64_t width);

/* ---- parameters and products ---- */
const float *block_vector(const struct block_run *r, uint32_t param);
struct ifx_linear block_linear(const struct block_run *r, const float *x, uint32_t cols);
/* Adds a matrix to the product; its output has rows of its own width. */
void block_linear_out(const struct block_run *r, struct ifx_linear *op, uint32_t param, float *y, uint32_t accumulate);
int32_t block_linear_run(const struct block_run *r, const struct ifx_linear *op);
/* A product with its surroundings, in one launch where the device can. */
int32_t block_surrounded(const struct block_run *r, const struct ifx_product *op);
/* y = W x (+ y) */
int32_t block_product(const struct block_run *r, const float *x, uint32_t cols, uint32_t param, float *y, uint32_t accumulate);

/* Calls fn for each run of consecutive wanted columns: columns [first, first + count) become rows from `to` on. */
int32_t block_each_wanted(const struct ifx_step *s, void *ctx,
                          int32_t (*fn)(void *ctx, uint32_t first, uint32_t count, uint32_t to));

/* Only the wanted columns go on: they move from *x to the front of *spare, the two change places, and r->n says how many there are.  Both are
 * [n, width]. */
int32_t block_keep_wanted(struct block_run *r, float **x, float **spare, uint64_t width);

/* ---- gated delta net ---- */
struct delta_net {
    uint32_t k_heads, v_heads, dk, dv, kernel;
    uint32_t act; /* IFX_ACT_*: of the output gate */
    float eps;
    uint32_t key_width, value_width, channels; /* k_heads * dk, v_heads * dv, 2 * key + value */
};
struct delta_layer {
    uint32_t in_qkv, in_z, in_b, in_a, conv, a_log, dt_bias, norm, out_proj; /* parameters */
    uint64_t state_s, state_conv; /* offsets in the sequence's state, in values: S [v_heads, dk, dv]; [channels, kernel - 1] */
};
struct delta_buffers {
    float *qkv, *z, *b, *a, *conv, *g, *beta;
    void *ws;
};
void delta_lay_out(const struct delta_net *net, struct ifx_device *dev, uint32_t n, struct block_cursor *c,
                   struct delta_buffers *b);
int32_t delta_forward(const struct block_run *r, const struct delta_net *net, const struct delta_layer *l,
                      const struct delta_buffers *b, const struct ifx_rms_norm *norm, const float *in, float *out, uint32_t accumulate);

/* ---- gated attention ---- */
struct attention_net {
    uint32_t q_heads, kv_heads, d, rotary;
    float eps;
};
struct attention_layer {
    uint32_t index; /* among the layers that keep K and V */
    uint32_t q_proj, k_proj, v_proj, o_proj, q_norm, k_norm;
};
struct attention_buffers {
    float *qg; /* per head [query | gate] */
    float *k, *v, *attn;
};
/* Called for each segment before its attention: may set which rows it sees. */
typedef int32_t (*attention_select)(void *ctx, const struct block_run *r, const struct ifx_segment *segment,
                                    struct ifx_attention *call);
void attention_lay_out(const struct attention_net *net, uint32_t n, struct block_cursor *c, struct attention_buffers *b);
int32_t attention_forward(const struct block_run *r, const struct attention_net *net, const struct attention_layer *l,
                          const struct attention_buffers *b, const struct ifx_rms_norm *norm, const float *in, attention_select select, void *select_ctx,
                          float *out, uint32_t accumulate);

/* ---- feed-forward: SwiGLU, alone or as the shared expert of a mixture ---- */
struct ffn_layer {
    uint32_t gate_proj, up_proj, down_proj;
    uint32_t shared_gate; /* mixture only */
};
struct ffn_buffers {
    float *gate, *up;
    float *shared, *shared_gate, *routed; /* mixture only */
};
void ffn_lay_out(uint32_t hidden, uint32_t inter, bool mixture, uint32_t n, struct block_cursor *c, struct ffn_buffers *b);
int32_t ffn_forward(const struct block_run *r, uint32_t inter, const struct ffn_layer *l, const struct ffn_buffers *b,
                    const float *in, float *out, uint32_t accumulate);
/* b->routed = sum of the chosen experts + sigmoid(in . shared_gate) * shared expert */
int32_t mixture_forward(const struct block_run *r, uint32_t inter, const struct ffn_layer *l, uint32_t moe_layer,
                        const struct ffn_buffers *b, const float *in);
/* x += all that, of the norm's y */
int32_t mixture_block(const struct block_run *r, uint32_t inter, const struct ffn_layer *l, uint32_t moe_layer, const struct ffn_buffers *b,
                      const struct ifx_rms_norm *norm, float *x);

#endif
