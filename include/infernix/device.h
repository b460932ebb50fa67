/* SPDX-License-Identifier: Apache-2.0
 *
 * device.h - a device: memory, streams, events, copies and the operations that model families are written in.
 *
 * Engine tier: exact build string.  One device plugin may serve several identities ("ref" and "cpu").
 *
 * Every operation enqueues on the stream given and returns; pointers are device memory unless said otherwise.
 * An operation never allocates; those that need workspace say so and take it from `ws` (ws_bytes from the query beside it).  All
 * activations are float32.  n is the number of columns; a row of a column-major-in-tokens matrix is written x[n, H] with H
 * contiguous.  Inputs and outputs may alias only where said.
 *
 * Matrix products (op linear): inputs rounded to bf16 (round to nearest even), exact weights,
 * float32 accumulation, except on a device with IFX_DEVICE_ORACLE, which rounds nothing and accumulates in
 * double, and except where IFX_LINEAR_F32 is set.
 */
#ifndef INFERNIX_DEVICE_H
#define INFERNIX_DEVICE_H

#include <infernix/compute.h>
#include <infernix/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Device properties. */
#define IFX_DEVICE_ORACLE   1u /* `ref`: exact float32/double arithmetic; experts and KV go through decode_row */
#define IFX_DEVICE_HOST_MEM 2u /* device memory is host memory: copies are memcpy, pointers can be read */
#define IFX_DEVICE_HOST_CALLS 4u /* a function given to host_call may touch device memory: formats run their CPU path on
                                    the stream (a pretended device) */
#define IFX_DEVICE_VIRTUAL_CLOCK 8u /* `now` is computed from a cost model; nothing sleeps */
struct ifx_device_props {
    uint32_t struct_size;
    uint32_t flags;
    char name[64];   /* "cpu (amx_bf16, 16 threads)" */
    char detail[128];
    uint64_t memory_bytes; /* 0: not limited by the device */
    uint64_t free_bytes;
    uint64_t pinned_bytes; /* what host_alloc may give in all; 0: unknown */
    double link_bytes_per_s;   /* host to device, 0: unknown (measure it) */
};

/* What a piece of work costs, for devices whose clock is computed.  Others ignore it. */
#define IFX_WORK_HOST_EXPERTS   1u /* CPU workers of the host: records read where they lie */
#define IFX_WORK_DEVICE_EXPERTS 2u /* the device's own: records read from its memory */
#define IFX_WORK_DEVICE_DENSE   3u
#define IFX_WORK_HOST_OTHER     4u
struct ifx_work {
    uint32_t kind;
    uint32_t experts; /* records worked on */
    uint64_t bytes;   /* bytes read: records or weights */
    double flops;     /* 2 * multiply-adds */
};

#define IFX_COPY_TO_DEVICE   1u
#define IFX_COPY_FROM_DEVICE 2u
#define IFX_COPY_ON_DEVICE   3u

/* y = W x (+ y), several matrices that share the input, so that it is rounded once and the rows of all are
 * split among the threads together. */
#define IFX_LINEAR_MAX 6
#define IFX_LINEAR_F32 1u /* do not round x: for the router */
struct ifx_linear {
    uint32_t n;        /* columns */
    uint32_t cols;     /* input width K */
    uint32_t count;    /* matrices, 1..IFX_LINEAR_MAX */
    uint32_t flags;
    const float *x;    /* [n, K], rows ldx apart */
    uint64_t ldx;
    struct {
        struct ifx_weight w; /* w.cols == cols */
        float *y;            /* [n, w.rows], rows ldy apart */
        uint64_t ldy;
        uint32_t accumulate; /* 1: y += W x */
        uint32_t reserved;
    } out[IFX_LINEAR_MAX];
    void *ws; /* linear_ws_bytes(n, cols) bytes */
};

/* y[r, :] = x[r, :] / sqrt(mean(x[r, :]^2) + eps) * (plus_one + w), for `rows` rows of `width`.
 * w has w_rows * width values; row r uses w row r % w_rows (grouped norms; w_rows = 1: one weight).  y may be x. */
struct ifx_rms_norm {
    uint64_t rows;
    uint32_t width;
    uint32_t w_rows;
    const float *x;
    uint64_t ldx;
    const float *w;
    float plus_one; /* 1 or 0 */
    float eps;
    float *y;
    uint64_t ldy;
};

/* Per head: RMSNorm over d with (1 + w), then rotary embedding of the first `rotary` dims, half-split pairs
 * (i, i + rotary/2), angle = position * inv_freq[i].  x: head h of column t at x + t * ldx + h * ldx_head.  w NULL: no norm.
 * inv_freq: rotary/2 values, float32, theta^(-2i/rotary) computed in float32 as the reference does.  y may be x. */
struct ifx_norm_rope {
    uint32_t n;
    uint32_t heads;
    uint32_t d;
    uint32_t rotary;
    const float *x;
    uint64_t ldx, ldx_head;
    const float *w; /* [d] or NULL */
    float eps;
    const float *inv_freq;
    const int32_t *positions; /* [n] */
    float *y;
    uint64_t ldy, ldy_head;
};

/* Causal depthwise convolution over tokens with kernel `kernel` and a dilation, then silu, for one sequence:
 * y[t, c] = silu( sum_j w[c, j] * in[t - (kernel-1-j) * dilation, c] ), where in[t < 0] is the state.
 * state: [channels, (kernel-1) * dilation], the last inputs before the call, oldest first; replaced by those at the end.
 * Not in place. */
struct ifx_conv {
    uint32_t n;
    uint32_t channels;
    uint32_t kernel;   /* 2..8 */
    uint32_t dilation; /* 0 and 1: none; at most 16 */
    const float *x;
    uint64_t ldx;
    const float *w; /* [channels, kernel] float32 */
    float *state;
    float *y;
    uint64_t ldy;
};

/* Gates of the gated delta rule: beta = sigmoid(b); g = -exp(A_log) * softplus(a + dt_bias).  [n, heads] each. */
struct ifx_gdn_gate {
    uint32_t n;
    uint32_t heads;
    const float *a, *b;
    uint64_t lda, ldb;
    const float *a_log, *dt_bias; /* [heads] */
    float *g, *beta;              /* [n, heads] contiguous */
};

/* Gated delta rule for one sequence.  q, k: [n, k_heads, dk] not yet normalised; v: [n, v_heads, dv]; rows of a column
 * ldq / ldk / ldv apart.  Value head j uses key head j / (v_heads / k_heads).  Per head and token:
 *   q <- q / sqrt(sum q^2 + 1e-6) * dk^-0.5,  k <- k / sqrt(sum k^2 + 1e-6)
 *   S <- exp(g) S;  u = beta (v - S^T k);  S <- S + k u^T;  o = S^T q
 * state S: [v_heads, dk, dv] float32, read and replaced.  out: [n, v_heads, dv], ldo apart.  Any n >= 1 gives the same
 * state and output, to float32 rounding, as n calls of one token. */
struct ifx_gated_delta {
    uint32_t n;
    uint32_t k_heads, v_heads;
    uint32_t dk, dv; /* each at most 256 */
    uint32_t reserved;
    const float *q, *k, *v;
    uint64_t ldq, ldk, ldv;
    const float *g, *beta; /* [n, v_heads] */
    float *state;
    float *out;
    uint64_t ldo;
    void *ws; /* gated_delta_ws_bytes */
};

#define IFX_ACT_SILU    0u
#define IFX_ACT_SIGMOID 1u
/* y[r, :] = x[r, :] / sqrt(mean(x^2) + eps) * w * act(z[r, :]); w [width].  Row r = (t, h): x, z and y at
 * t * ld + h * width, h < heads.  y may be x. */
struct ifx_gated_norm {
    uint32_t n;
    uint32_t heads;
    uint32_t width;
    uint32_t act;
    const float *x, *z, *w;
    uint64_t ldx, ldz;
    float eps;
    float *y;
    uint64_t ldy;
};

/* y = silu(gate) * up, [n, width].  y may be gate or up. */
struct ifx_swiglu {
    uint32_t n;
    uint32_t width;
    const float *gate, *up;
    uint64_t ldg, ldu;
    float *y;
    uint64_t ldy;
};

/* Multiplies attention output by its gate: x[t, h, :] *= sigmoid(gate[t, h, :]); gate head h at gate + t * ldg + h * ldg_head. */
struct ifx_sigmoid_gate {
    uint32_t n;
    uint32_t heads;
    uint32_t d;
    uint32_t reserved;
    float *x;
    uint64_t ldx;
    const float *gate;
    uint64_t ldg, ldg_head;
};

/* y[t, :] += x[t, :] * s(t), s = sigmoid(gate[t]) when gate is given, else 1. */
struct ifx_add {
    uint32_t n;
    uint32_t width;
    const float *x;
    uint64_t ldx;
    const float *gate; /* [n], ldg apart, or NULL */
    uint64_t ldg;
    float *y;
    uint64_t ldy;
};

/* p = softmax(logits[t, :]) over all experts in float32; the k largest, ties to the lower id, by falling weight;
 * weights are p, or p renormalised to sum 1. */
struct ifx_router {
    uint32_t n;
    uint32_t experts;
    uint32_t top_k; /* <= 32 */
    uint32_t renormalise;
    const float *logits;
    uint64_t ldl;
    int32_t *ids;   /* [n, top_k] */
    float *weights; /* [n, top_k] */
};

/* y[t, :] (+)= sum over r ascending of weights[t, r] * parts[row(t * top_k + r), :], in float32: the accumulator starts at +0 and
 * takes one fused multiply-add a rank; with accumulate the old y is added last.  row(p) = index ? index[p] : p: parts that were
 * computed in several places need not be moved together. */
struct ifx_combine {
    uint32_t n;
    uint32_t top_k;
    uint32_t width;
    uint32_t accumulate;
    const float *parts; /* rows ldp apart */
    uint64_t ldp;
    const float *weights; /* [n, top_k] */
    float *y;
    uint64_t ldy;
    const uint32_t *index; /* [n * top_k] or NULL */
};

/* Sorts the pairs of a routing by expert (expert.h): offsets, rows; and the touched experts ascending in `entries`, padded
 * with UINT32_MAX to n_entries = min(experts, n * top_k), with table[expert] (or NULL) of each in `records`.  An id outside
 * [0, experts) is left out.  table and records may be NULL together. */
struct ifx_group {
    uint32_t n;
    uint32_t top_k;
    uint32_t experts;
    uint32_t n_entries;
    const int32_t *ids;       /* [n, top_k] */
    uint32_t *offsets;        /* [experts + 1] */
    uint32_t *rows;           /* [n * top_k] */
    uint32_t *entries;        /* [n_entries] */
    const void *const *table; /* [experts] record addresses, NULL: not on the device */
    const void **records;     /* [n_entries] */
    void *ws;                 /* group_ws_bytes(n, top_k, experts) */
};

/* A product with what comes before and after it: the operations given, in the order of the members.  ifx_product_steps below does just
 * that; a device may do it in fewer launches for few columns.  What is only handed from one of them to the next need not be written: the
 * y of an input operation, of `combine` and `shared`, and, where `combine` or `gate` is given, those of the matrices that they read. */
struct ifx_product {
    /* At most one input operation; its y is the product's x. */
    const struct ifx_rms_norm *norm;
    const struct ifx_gated_norm *gated_norm;
    const struct ifx_swiglu *swiglu;
    const struct ifx_sigmoid_gate *sigmoid_gate;
    uint16_t *rounded; /* the product's x as to_bf16 has it, rows ldr apart, or NULL */
    uint64_t ldr;
    struct ifx_linear linear;     /* flags 0 */
    uint32_t exact;               /* bit m: matrix m takes x as IFX_LINEAR_F32 does */
    uint32_t reserved;
    const struct ifx_gdn_gate *gate; /* of two of the matrices' outputs, or NULL */
    /* All or none, with one matrix: y of `combine`; `shared` adds the matrix's output to it, and `residual` the sum to its own y. */
    const struct ifx_combine *combine;
    const struct ifx_add *shared, *residual;
};

/* Picks a token a row: tokens[i] from logits[i, vocab].  temperature 0: the largest logit, ties to the lower id.  Otherwise
 * temperature, then top-k (0: off), top-p (1: off), min-p (0: off), as the host's sampler does, with the uniform number u[i]
 * in [0, 1).  A row with a non-finite logit gives -1.
 * history [n, vocab], or NULL: how often each token was generated, plus IFX_HISTORY_SEEN if the prompt had it.  A logit v of a token
 * with history becomes v / repetition_penalty (v * it if v <= 0), and if it was generated c > 0 times that less presence_penalty +
 * frequency_penalty * c.  The token picked is counted. */
#define IFX_HISTORY_SEEN  0x80000000u
#define IFX_HISTORY_COUNT 0x7fffffffu
struct ifx_sample {
    uint32_t n;
    uint32_t vocab;
    const float *logits;
    uint64_t ldl;
    float temperature, top_p, min_p;
    uint32_t top_k;
    const float *u; /* [n]; NULL with temperature 0 */
    int32_t *tokens;
    void *ws; /* sample_ws_bytes(n, vocab) */
    uint32_t *history;
    float repetition_penalty, presence_penalty, frequency_penalty; /* read with history only */
};

/* ---- several residual streams ---- */

/* y = act(scale * x), [n, width].  y may be x. */
struct ifx_activate {
    uint32_t n;
    uint32_t width;
    uint32_t act; /* IFX_ACT_* */
    float scale;
    const float *x;
    uint64_t ldx;
    float *y;
    uint64_t ldy;
};

/* y[t, :] = mean over s of sigmoid(gate[t, s, :]) * x[t, s, :].  x, gate: [n, streams, width], rows ldx / ldg apart. */
struct ifx_stream_mix {
    uint32_t n;
    uint32_t streams; /* 1..8 */
    uint32_t width;
    uint32_t reserved;
    const float *x, *gate;
    uint64_t ldx, ldg;
    float *y;
    uint64_t ldy;
};

/* y[t, s, :] += 2 sigmoid(scale * inject[t, s]) * x[t, :].  y: [n, streams, width]; inject [n, streams], rows ldi apart. */
struct ifx_stream_inject {
    uint32_t n;
    uint32_t streams;
    uint32_t width;
    float scale;
    const float *x;
    uint64_t ldx;
    const float *inject;
    uint64_t ldi;
    float *y;
    uint64_t ldy;
};

/* y[t, s, :] = sigmoid(r(g)) * value[t, :], g = (key[t, s] . query[t, s]) / sqrt(width), r(g) = sign(g) sqrt(max(|g|, 1e-6)).
 * key, query, y: [n, streams, width]. */
struct ifx_stream_gate {
    uint32_t n;
    uint32_t streams;
    uint32_t width;
    uint32_t reserved;
    const float *key, *query;
    uint64_t ldk, ldq;
    const float *value;
    uint64_t ldv;
    float *y;
    uint64_t ldy;
};

/* ---- block selection ----
 * Beside each KV page lies an index plane: at pages[t / page_tokens] + offset, the raw keys [page_tokens, d] of the tokens (bf16;
 * float32 with IFX_DEVICE_ORACLE), then, 64-byte aligned, the block keys [page_tokens / ratio, d] in float32.
 * A block is `ratio` tokens, aligned at position 0; page_tokens is a multiple of ratio. */
struct ifx_index_plane {
    void *const *pages; /* device memory: page addresses, as in kv.h */
    uint64_t offset;
    uint32_t page_tokens;
    uint32_t ratio;
    uint32_t d;
    uint32_t reserved;
};
/* Bytes of the raw keys and of the whole plane; value_bytes: 4 with IFX_DEVICE_ORACLE, else 2. */
static inline uint64_t ifx_index_raw_bytes(uint32_t page_tokens, uint32_t d, uint32_t value_bytes)
{
    return ((uint64_t)page_tokens * d * value_bytes + 63) & ~(uint64_t)63;
}
static inline uint64_t ifx_index_plane_bytes(uint32_t page_tokens, uint32_t ratio, uint32_t d, uint32_t value_bytes)
{
    return ifx_index_raw_bytes(page_tokens, d, value_bytes) + (((uint64_t)(page_tokens / ratio) * d * 4 + 63) & ~(uint64_t)63);
}

/* Stores the raw keys of n tokens at consecutive positions and makes the keys of the blocks that they complete: the mean of the
 * stored keys (float32, then rounded to bf16; not on the oracle), RMSNorm with (1 + w), rotary embedding at the block's first
 * position. */
struct ifx_index_append {
    uint32_t n;
    uint32_t rotary;
    struct ifx_index_plane plane;
    const int32_t *positions; /* [n] */
    const float *k;           /* [n, d], rows ldk apart */
    uint64_t ldk;
    const float *w;        /* [d] */
    const float *inv_freq; /* [rotary / 2] */
    float eps;
    uint32_t reserved;
};

/* Which tokens each query sees: of the complete blocks among tokens 0..positions[i] those budget / ratio with the highest
 * scores, score(b) = sum over heads of max(0, q[i, h] . key[b]) / sqrt(d), ties to the lower block; and the tail of fewer than ratio
 * tokens.  rows[i]: token positions ascending, n_rows[i] of them. */
struct ifx_block_select {
    uint32_t n;
    uint32_t heads;
    uint32_t budget;     /* tokens, a multiple of ratio */
    uint32_t max_tokens; /* a bound that the host knows: every position is below it */
    struct ifx_index_plane plane;
    const int32_t *positions; /* [n] */
    const float *q;           /* after norm and rotary embedding: head h of query i at q + i * ldq + h * d */
    uint64_t ldq;
    int32_t *rows; /* budget + ratio - 1 each, rows ld_rows apart */
    uint64_t ld_rows;
    uint32_t *n_rows; /* [n] */
    void *ws;         /* block_select_ws_bytes */
};

/* Device attention over a KV format is the engine's service (it joins a format's attend with a device); see model.h. */

/* Hand-over between a stream and the host.  Host pointers are host_alloc's, addresses and sizes multiples of 4 (pieces) and 16 (await). */
#define IFX_POST_PIECES 3u
struct ifx_post {
    uint32_t n;
    uint32_t tag; /* told with the count */
    struct {
        void *to; /* host: rows without gaps */
        const void *from;
        uint64_t row_bytes, pitch;
        uint32_t rows;
    } pieces[IFX_POST_PIECES];
    uint32_t *counter; /* device, one word, 0 at first: how many posts there were */
    uint64_t *posted;  /* host: takes count << 32 | tag, after the pieces */
};
struct ifx_await {
    const uint32_t *counter; /* device: of the post that is answered */
    const uint64_t *answer;  /* host: count << 32 | rows */
    void *to;                /* device: takes fixed_bytes + rows * row_bytes */
    const void *from;        /* host */
    uint64_t fixed_bytes, row_bytes;
};

struct ifx_device;
struct ifx_device_ops {
    uint32_t struct_size;
    uint32_t reserved;
    void (*close)(struct ifx_device *dev);
    int32_t (*props)(struct ifx_device *dev, struct ifx_device_props *out);

    /* Memory.  64-byte aligned at least.  IFX_EDEVMEM when the device refuses. */
    int32_t (*mem_alloc)(struct ifx_device *dev, uint64_t bytes, void **out);
    void (*mem_free)(struct ifx_device *dev, void *memory);
    /* Host memory that the copy engine reads at full speed. */
    int32_t (*host_alloc)(struct ifx_device *dev, uint64_t bytes, void **out);
    void (*host_free)(struct ifx_device *dev, void *memory);

    int32_t (*stream_create)(struct ifx_device *dev, void **stream);
    void (*stream_destroy)(struct ifx_device *dev, void *stream);
    int32_t (*stream_sync)(struct ifx_device *dev, void *stream);
    int32_t (*event_create)(struct ifx_device *dev, void **event);
    void (*event_destroy)(struct ifx_device *dev, void *event);
    int32_t (*event_record)(struct ifx_device *dev, void *event, void *stream);
    int32_t (*event_wait)(struct ifx_device *dev, void *event, void *stream); /* the stream waits */
    int32_t (*event_query)(struct ifx_device *dev, void *event, uint32_t *done);
    int32_t (*event_sync)(struct ifx_device *dev, void *event); /* the host waits */
    int32_t (*copy)(struct ifx_device *dev, void *stream, void *dst, const void *src, uint64_t bytes,
                    uint32_t direction);
    int32_t (*fill)(struct ifx_device *dev, void *stream, void *dst, uint8_t byte, uint64_t bytes);

    /* Operations.  embed: y[t, :] = table[ids[t], :] as float32; ids were checked by the host. */
    int32_t (*embed)(struct ifx_device *dev, void *stream, const struct ifx_weight *table, const int32_t *ids,
                     uint32_t n, float *y, uint64_t ldy);
    uint64_t (*linear_ws_bytes)(struct ifx_device *dev, uint32_t n, uint32_t cols);
    int32_t (*linear)(struct ifx_device *dev, void *stream, const struct ifx_linear *op);
    int32_t (*rms_norm)(struct ifx_device *dev, void *stream, const struct ifx_rms_norm *op);
    int32_t (*norm_rope)(struct ifx_device *dev, void *stream, const struct ifx_norm_rope *op);
    int32_t (*conv)(struct ifx_device *dev, void *stream, const struct ifx_conv *op);
    int32_t (*gdn_gate)(struct ifx_device *dev, void *stream, const struct ifx_gdn_gate *op);
    uint64_t (*gated_delta_ws_bytes)(struct ifx_device *dev, const struct ifx_gated_delta *op);
    int32_t (*gated_delta)(struct ifx_device *dev, void *stream, const struct ifx_gated_delta *op);
    int32_t (*gated_norm)(struct ifx_device *dev, void *stream, const struct ifx_gated_norm *op);
    int32_t (*swiglu)(struct ifx_device *dev, void *stream, const struct ifx_swiglu *op);
    int32_t (*sigmoid_gate)(struct ifx_device *dev, void *stream, const struct ifx_sigmoid_gate *op);
    int32_t (*add)(struct ifx_device *dev, void *stream, const struct ifx_add *op);
    int32_t (*router)(struct ifx_device *dev, void *stream, const struct ifx_router *op);
    int32_t (*combine)(struct ifx_device *dev, void *stream, const struct ifx_combine *op);
    /* bf16[n, width] = x[n, width], round to nearest even: what expert banks take. */
    int32_t (*to_bf16)(struct ifx_device *dev, void *stream, const float *x, uint64_t ldx, uint32_t n,
                       uint32_t width, uint16_t *y, uint64_t ldy);
    uint64_t (*group_ws_bytes)(struct ifx_device *dev, uint32_t n, uint32_t top_k, uint32_t experts);
    int32_t (*group)(struct ifx_device *dev, void *stream, const struct ifx_group *op);
    uint64_t (*sample_ws_bytes)(struct ifx_device *dev, uint32_t n, uint32_t vocab);
    int32_t (*sample)(struct ifx_device *dev, void *stream, const struct ifx_sample *op);
    int32_t (*activate)(struct ifx_device *dev, void *stream, const struct ifx_activate *op);
    int32_t (*stream_mix)(struct ifx_device *dev, void *stream, const struct ifx_stream_mix *op);
    int32_t (*stream_inject)(struct ifx_device *dev, void *stream, const struct ifx_stream_inject *op);
    int32_t (*stream_gate)(struct ifx_device *dev, void *stream, const struct ifx_stream_gate *op);
    int32_t (*index_append)(struct ifx_device *dev, void *stream, const struct ifx_index_append *op);
    uint64_t (*block_select_ws_bytes)(struct ifx_device *dev, const struct ifx_block_select *op);
    int32_t (*block_select)(struct ifx_device *dev, void *stream, const struct ifx_block_select *op);

    /* Several operations in one.  NULL, or IFX_EUNSUPPORTED with nothing done and no error recorded: they go one by one.  Which of the
     * two does not depend on the number of columns as long as it is at most IFX_NARROW_COLUMNS. */
    int32_t (*product)(struct ifx_device *dev, void *stream, const struct ifx_product *op);
    /* The router, then the grouping of its ids. */
    int32_t (*route)(struct ifx_device *dev, void *stream, const struct ifx_router *router, const struct ifx_group *group);

    /* Kernels of format plugins.  NULL, or returns NULL: the device runs none. */
    const struct ifx_compute *(*compute)(struct ifx_device *dev);
    /* Runs fn(ctx) on the host when the stream gets there; it must not call the device, and may touch device memory only with
     * IFX_DEVICE_HOST_CALLS.  A failing fn fails the stream's next sync with its status and error text.  work: its cost,
     * or NULL; it stays until fn has returned and is read then, for fn may find out and fill in what there was to do.
     * NULL op: not available.
     * A stream that failed does no work until its sync has told; who gives up because of an error syncs each of its streams once. */
    int32_t (*host_call)(struct ifx_device *dev, void *stream, int32_t (*fn)(void *ctx), void *ctx,
                         const struct ifx_work *work);
    /* A hand-over to a host thread that looks on and its answer: what host_call does in tens of microseconds, in a few.  post copies the pieces
     * to the host and then stores the next count there; await holds the stream until the host has answered that count and fetches what the
     * answer says.  Both may be captured.  At most one post may be unanswered.  Who gives up answers all the same.  NULL ops: not available. */
    int32_t (*post)(struct ifx_device *dev, void *stream, const struct ifx_post *op);
    int32_t (*await)(struct ifx_device *dev, void *stream, const struct ifx_await *op);
    /* Seconds of the device's clock, the one that bench and balance read: monotonic.  NULL: the host's. */
    double (*now)(struct ifx_device *dev);
    /* The calling host thread has done (or will not be charged otherwise for) this work: moves a virtual clock.  NULL: ignored. */
    void (*host_work)(struct ifx_device *dev, const struct ifx_work *work);
    /* Capture of everything enqueued on a stream between begin and end; NULL ops: not available.  The addresses and counts
     * captured must stay right at every launch. */
    int32_t (*graph_begin)(struct ifx_device *dev, void *stream);
    int32_t (*graph_end)(struct ifx_device *dev, void *stream, void **graph);
    int32_t (*graph_launch)(struct ifx_device *dev, void *stream, void *graph);
    void (*graph_destroy)(struct ifx_device *dev, void *graph);
};

/* An open device.  The plugin embeds this as the first member of its own struct. */
struct ifx_device {
    const struct ifx_device_ops *ops;
    const struct ifx_host *host;
};

/* The operations of a product one by one. */
static inline int32_t ifx_product_steps(struct ifx_device *dev, void *stream, const struct ifx_product *p)
{
    const struct ifx_device_ops *ops = dev->ops;
    struct ifx_linear plain = p->linear, exact = p->linear;
    int32_t st = p->norm           ? ops->rms_norm(dev, stream, p->norm)
                 : p->gated_norm   ? ops->gated_norm(dev, stream, p->gated_norm)
                 : p->swiglu       ? ops->swiglu(dev, stream, p->swiglu)
                 : p->sigmoid_gate ? ops->sigmoid_gate(dev, stream, p->sigmoid_gate)
                                   : IFX_OK;
    plain.count = exact.count = 0;
    exact.flags |= IFX_LINEAR_F32;
    for (uint32_t m = 0; m < p->linear.count; m++) {
        struct ifx_linear *to = p->exact >> m & 1 ? &exact : &plain;
        to->out[to->count++] = p->linear.out[m];
    }
    if (!st && p->rounded)
        st = ops->to_bf16(dev, stream, p->linear.x, p->linear.ldx, p->linear.n, p->linear.cols, p->rounded, p->ldr);
    if (!st && exact.count)
        st = ops->linear(dev, stream, &exact);
    if (!st && plain.count)
        st = ops->linear(dev, stream, &plain);
    if (!st && p->gate)
        st = ops->gdn_gate(dev, stream, p->gate);
    if (!st && p->combine)
        st = ops->combine(dev, stream, p->combine);
    if (!st && p->shared)
        st = ops->add(dev, stream, p->shared);
    if (!st && p->residual)
        st = ops->add(dev, stream, p->residual);
    return st;
}

struct ifx_device_plugin_ops {
    uint32_t struct_size;
    uint32_t flags;
    const char *const *identities; /* NULL-terminated: {"ref", "cpu", NULL} */
    const char *description;
    const struct ifx_option *options;
    /* Opens one identity; ordinal counts devices of one kind.  options are read during the call and not kept.  IFX_ENOTFOUND with the reason recorded when the machine has
     * no such device. */
    int32_t (*open)(const struct ifx_host *host, const struct ifx_options *options, const char *identity,
                    uint32_t ordinal, struct ifx_device **dev);
};

#ifdef __cplusplus
}
#endif
#endif
