/* SPDX-License-Identifier: Apache-2.0
 *
 * test_goldens.c - every applicable case of golden/ops.safetensors on one device.
 */
#include "optest.h"

#include <stdio.h>
#include <stdlib.h>

/* Goldens were computed in float64 and stored as float32. */
struct tol {
    double absolute, relative;
};

static struct mat view(const float *data, uint64_t rows, uint64_t width)
{
    struct mat m = mat_new(rows, width, width);
    for (uint64_t i = 0; i < rows * width; i++)
        m.p[i] = data[i];
    return m;
}

static void expect(const struct pair *t, const struct golden *g, const char *name, struct mat *got, struct tol tol)
{
    char what[160];
    snprintf(what, sizeof what, "%s, golden %s", t->name, name);
    struct mat want = view(golden_f32(g, name, NULL), got->rows, got->width);
    mat_close(got, &want, tol.absolute, tol.relative, what);
    mat_intact(got, what);
    mat_free(&want);
    mat_free(got);
}

static void key(char out[64], const char *name, const char *part)
{
    snprintf(out, 64, "%s.%s", name, part);
}

static void delta(const struct pair *t, const struct golden *g, const char *name, bool initial, struct tol tol)
{
    char q[64], k[64], v[64], gate[64], beta[64], out[64], state[64], start[64];
    key(q, name, "q"), key(k, name, "k"), key(v, name, "v"), key(gate, name, "g"), key(beta, name, "beta");
    key(out, name, "out"), key(state, name, "final_state"), key(start, name, "initial_state");
    struct ifx_gated_delta op = {.n = (uint32_t)golden_dim(g, q, 0), .k_heads = (uint32_t)golden_dim(g, q, 1),
                                 .v_heads = (uint32_t)golden_dim(g, v, 1), .dk = (uint32_t)golden_dim(g, q, 2),
                                 .dv = (uint32_t)golden_dim(g, v, 2)};
    op.q = golden_f32(g, q, NULL), op.k = golden_f32(g, k, NULL), op.v = golden_f32(g, v, NULL);
    op.g = golden_f32(g, gate, NULL), op.beta = golden_f32(g, beta, NULL);
    op.ldq = op.ldk = (uint64_t)op.k_heads * op.dk;
    op.ldv = op.ldo = (uint64_t)op.v_heads * op.dv;
    struct mat S = mat_new(op.v_heads, (uint64_t)op.dk * op.dv, (uint64_t)op.dk * op.dv), o = mat_new(op.n, op.ldo, op.ldo);
    for (uint64_t i = 0; i < S.rows * S.width; i++)
        S.p[i] = initial ? golden_f32(g, start, NULL)[i] : 0.0f;
    op.state = S.p;
    op.out = o.p;
    op.ws = exact_alloc(t->dev->ops->gated_delta_ws_bytes(t->dev, &op));
    t->dev->ops->gated_delta(t->dev, NULL, &op);
    free(op.ws);
    expect(t, g, out, &o, tol);
    expect(t, g, state, &S, tol);
}

static void gate(const struct pair *t, const struct golden *g, struct tol tol)
{
    struct ifx_gdn_gate op = {.n = 9, .heads = 6, .lda = 6, .ldb = 6};
    op.a = golden_f32(g, "gdn_gate.a", NULL), op.b = golden_f32(g, "gdn_gate.b", NULL);
    op.a_log = golden_f32(g, "gdn_gate.A_log", NULL), op.dt_bias = golden_f32(g, "gdn_gate.dt_bias", NULL);
    struct mat out = mat_new(9, 6, 6), beta = mat_new(9, 6, 6);
    op.g = out.p, op.beta = beta.p;
    t->dev->ops->gdn_gate(t->dev, NULL, &op);
    expect(t, g, "gdn_gate.g", &out, tol);
    expect(t, g, "gdn_gate.beta", &beta, tol);
}

static void conv(const struct pair *t, const struct golden *g, const char *name, bool initial, struct tol tol)
{
    char out[64], state[64];
    key(out, name, "out"), key(state, name, "final_state");
    struct mat y = mat_new(11, 40, 40), S = mat_new(40, 3, 3);
    for (uint64_t i = 0; i < 120; i++)
        S.p[i] = initial ? golden_f32(g, "conv.initial_state", NULL)[i] : 0.0f;
    struct ifx_conv op = {.n = 11, .channels = 40, .kernel = 4, .x = golden_f32(g, "conv.x", NULL), .ldx = 40,
                          .w = golden_f32(g, "conv.weight", NULL), .state = S.p, .y = y.p, .ldy = 40};
    t->dev->ops->conv(t->dev, NULL, &op);
    expect(t, g, out, &y, tol);
    expect(t, g, state, &S, (struct tol){0, 0});
}

/* Rotary tables are allowed 1e-6 + 2.5e-7 * position: the last bit of a float32 frequency matters. */
static void rope_one(const struct pair *t, const struct golden *g, const char *name, const char *part)
{
    char in[64], out[64], part_out[16], pos[64], rot[64], theta[64], what[160];
    snprintf(part_out, sizeof part_out, "%s_out", part);
    key(in, name, part), key(out, name, part_out), key(pos, name, "positions"), key(rot, name, "rotary_dim");
    key(theta, name, "theta");
    uint32_t n = (uint32_t)golden_dim(g, in, 0), heads = (uint32_t)golden_dim(g, in, 1), d = (uint32_t)golden_dim(g, in, 2);
    struct ifx_norm_rope op = {.n = n, .heads = heads, .d = d, .rotary = (uint32_t)golden_i32(g, rot, NULL)[0],
                               .x = golden_f32(g, in, NULL), .ldx = (uint64_t)heads * d, .ldx_head = d,
                               .positions = golden_i32(g, pos, NULL)};
    float freq[64];
    for (uint32_t i = 0; i < op.rotary / 2; i++)
        freq[i] = 1.0f / powf(golden_f32(g, theta, NULL)[0], (float)(2 * i) / (float)op.rotary);
    op.inv_freq = freq;
    struct mat y = mat_new(n, (uint64_t)heads * d, (uint64_t)heads * d), want = view(golden_f32(g, out, NULL), n, y.width);
    op.y = y.p, op.ldy = op.ldx, op.ldy_head = d;
    t->dev->ops->norm_rope(t->dev, NULL, &op);
    for (uint32_t r = 0; r < n; r++) {
        struct mat a = y, b = want;
        a.p += r * y.ld, b.p += r * y.ld;
        a.rows = b.rows = 1;
        snprintf(what, sizeof what, "%s, golden %s, position %d", t->name, out, op.positions[r]);
        mat_close(&a, &b, 4.0 * (1e-6 + 2.5e-7 * op.positions[r]), 0, what);
    }
    mat_intact(&y, what);
    mat_free(&y);
    mat_free(&want);
}

static void norms(const struct pair *t, const struct golden *g, struct tol tol)
{
    struct mat y = mat_new(6, 64, 64);
    struct ifx_rms_norm op = {.rows = 6, .width = 64, .w_rows = 1, .x = golden_f32(g, "rms_norm.x", NULL), .ldx = 64,
                              .w = golden_f32(g, "rms_norm.weight", NULL), .plus_one = 1, .y = y.p, .ldy = 64,
                              .eps = golden_f32(g, "rms_norm.eps", NULL)[0]};
    t->dev->ops->rms_norm(t->dev, NULL, &op);
    expect(t, g, "rms_norm.out", &y, tol);
    y = mat_new(6, 64, 64);
    op.rows = 24, op.width = 16, op.w_rows = 4, op.ldx = op.ldy = 16, op.y = y.p;
    t->dev->ops->rms_norm(t->dev, NULL, &op);
    expect(t, g, "rms_norm.out_grouped", &y, tol);
    for (uint32_t act = 0; act < 2; act++) {
        y = mat_new(7, 32, 32);
        struct ifx_gated_norm gn = {.n = 7, .heads = 1, .width = 32, .act = act, .ldx = 32, .ldz = 32, .ldy = 32, .y = y.p,
                                    .eps = golden_f32(g, "gated_norm.eps", NULL)[0]};
        gn.x = golden_f32(g, "gated_norm.x", NULL), gn.z = golden_f32(g, "gated_norm.z", NULL);
        gn.w = golden_f32(g, "gated_norm.weight", NULL);
        t->dev->ops->gated_norm(t->dev, NULL, &gn);
        expect(t, g, act == IFX_ACT_SILU ? "gated_norm.out_silu" : "gated_norm.out_sigmoid", &y, tol);
    }
}

static void product(const struct pair *t, const float *w, uint32_t rows, uint32_t cols, const float *x, uint32_t n,
                    float *y)
{
    struct ifx_linear op = {.n = n, .cols = cols, .count = 1, .flags = IFX_LINEAR_F32, .x = x, .ldx = cols};
    op.out[0].w = (struct ifx_weight){.dtype = IFX_F32, .rows = rows, .cols = cols, .data = w};
    op.out[0].y = y, op.out[0].ldy = rows;
    op.ws = exact_alloc(t->dev->ops->linear_ws_bytes(t->dev, n, cols));
    t->dev->ops->linear(t->dev, NULL, &op);
    free(op.ws);
}

static void routed(const struct pair *t, const struct golden *g, const char *weight, const char *x, const char *ids,
                   const char *weights, struct tol tol)
{
    uint32_t n = (uint32_t)golden_dim(g, x, 0), cols = (uint32_t)golden_dim(g, x, 1), experts = (uint32_t)golden_dim(g, weight, 0);
    uint32_t k = (uint32_t)golden_dim(g, ids, 1);
    struct mat logits = mat_new(n, experts, experts), w = mat_new(n, k, k), id = mat_new(n, k, k);
    product(t, golden_f32(g, weight, NULL), experts, cols, golden_f32(g, x, NULL), n, logits.p);
    struct ifx_router op = {.n = n, .experts = experts, .top_k = k, .renormalise = 1, .logits = logits.p, .ldl = experts,
                            .ids = (int32_t *)id.p, .weights = w.p};
    t->dev->ops->router(t->dev, NULL, &op);
    for (uint32_t i = 0; i < n * k; i++)
        check(op.ids[i] == golden_i32(g, ids, NULL)[i], "%s, golden %s: row %u rank %u expected expert %d, got %d", t->name,
              ids, i / k, i % k, golden_i32(g, ids, NULL)[i], op.ids[i]);
    mat_intact(&id, ids);
    mat_free(&id);
    mat_free(&logits);
    expect(t, g, weights, &w, tol);
}

/* The whole sparse block from the operations: experts by linear and swiglu, combine, shared expert by gated add. */
static void moe(const struct pair *t, const struct golden *g, struct tol tol)
{
    enum { N = 5, H = 32, I = 32, K = 3, S = 16 };
    const float *x = golden_f32(g, "moe.x", NULL), *gate_up = golden_f32(g, "moe.gate_up_proj", NULL);
    const int32_t *ids = golden_i32(g, "moe.top_ids", NULL);
    struct mat parts = mat_new(N * K, H, H), y = mat_new(N, H, H), shared = mat_new(N, H, H), y2;
    float gu[2 * I], h[I], sg[N * S], su[N * S], gate_logit[N];
    for (uint32_t p = 0; p < N * K; p++) {
        product(t, gate_up + (uint64_t)ids[p] * 2 * I * H, 2 * I, H, x + p / K * H, 1, gu);
        struct ifx_swiglu act = {.n = 1, .width = I, .gate = gu, .up = gu + I, .ldg = I, .ldu = I, .y = h, .ldy = I};
        t->dev->ops->swiglu(t->dev, NULL, &act);
        product(t, golden_f32(g, "moe.down_proj", NULL) + (uint64_t)ids[p] * H * I, H, I, h, 1, parts.p + p * H);
    }
    struct ifx_combine comb = {.n = N, .top_k = K, .width = H, .parts = parts.p, .ldp = H,
                               .weights = golden_f32(g, "moe.top_weights", NULL), .y = y.p, .ldy = H};
    t->dev->ops->combine(t->dev, NULL, &comb);
    y2 = mat_copy(&y);
    expect(t, g, "moe.routed", &y, tol);
    product(t, golden_f32(g, "moe.shared_gate_proj", NULL), S, H, x, N, sg);
    product(t, golden_f32(g, "moe.shared_up_proj", NULL), S, H, x, N, su);
    struct ifx_swiglu act = {.n = N, .width = S, .gate = sg, .up = su, .ldg = S, .ldu = S, .y = sg, .ldy = S};
    t->dev->ops->swiglu(t->dev, NULL, &act);
    product(t, golden_f32(g, "moe.shared_down_proj", NULL), H, S, sg, N, shared.p);
    product(t, golden_f32(g, "moe.shared_expert_gate", NULL), 1, H, x, N, gate_logit);
    struct ifx_add add = {.n = N, .width = H, .x = shared.p, .ldx = H, .gate = gate_logit, .ldg = 1, .y = y2.p, .ldy = H};
    t->dev->ops->add(t->dev, NULL, &add);
    expect(t, g, "moe.out", &y2, tol);
    mat_free(&parts);
    mat_free(&shared);
}

static void output_gate(const struct pair *t, const struct golden *g, struct tol tol)
{
    const float *raw = golden_f32(g, "attn.q_proj_out", NULL); /* per head [query | gate] */
    struct mat x = view(golden_f32(g, "attn.out_ungated", NULL), 13, 192);
    struct ifx_sigmoid_gate op = {.n = 13, .heads = 6, .d = 32, .x = x.p, .ldx = 192, .gate = raw + 32, .ldg = 384,
                                  .ldg_head = 64};
    t->dev->ops->sigmoid_gate(t->dev, NULL, &op);
    expect(t, g, "attn.out", &x, tol);
}

void test_goldens(const struct pair *t, const struct golden *g)
{
    struct tol tight = t->exact ? (struct tol){1e-7, 3e-7} : (struct tol){2e-6, 2e-6};
    struct tol sums = t->exact ? (struct tol){1e-6, 1e-6} : (struct tol){5e-6, 5e-6};
    delta(t, g, "gdn", true, sums);
    delta(t, g, "gdn_long", false, sums);
    delta(t, g, "gdn_128", false, sums);
    gate(t, g, tight);
    conv(t, g, "conv", true, tight);
    conv(t, g, "conv_zero", false, tight);
    rope_one(t, g, "rope", "q");
    rope_one(t, g, "rope", "k");
    rope_one(t, g, "rope_256", "q");
    rope_one(t, g, "rope_256", "k");
    norms(t, g, tight);
    routed(t, g, "router.weight", "router.x", "router.top_ids", "router.top_weights", sums);
    routed(t, g, "moe.gate", "moe.x", "moe.top_ids", "moe.top_weights", sums);
    moe(t, g, sums);
    output_gate(t, g, tight);
}
