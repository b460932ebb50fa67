/* SPDX-License-Identifier: Apache-2.0
 *
 * tpl_gdn.h - kernel template: causal convolution, gates and gated delta rule, the latter token by token and in chunks.
 */
#include "kernels.h"

/* ---- convolution: blocks of channels, weights and window transposed into rows of one tap each ---- */

enum { CONV_BLOCK = 256, CONV_TAPS = 8, CONV_PAST = CONV_TAPS * CONV_BLOCK };

/* Tap j reads the token `step` * (taps - 1 - j) back; `past` holds what came before the call, `kept` rows of `block`. */
static void conv_block(const struct ifx_conv *op, uint64_t c0, uint32_t width, uint32_t block, uint32_t step)
{
    uint32_t taps = op->kernel, kept = (taps - 1) * step;
    float w[CONV_TAPS][CONV_BLOCK], past[CONV_PAST];
    for (uint32_t c = 0; c < width; c++) {
        for (uint32_t j = 0; j < taps; j++)
            w[j][c] = op->w[(c0 + c) * taps + j];
        for (uint32_t j = 0; j < kept; j++)
            past[j * block + c] = op->state[(c0 + c) * kept + j];
    }
    for (uint64_t t = 0; t < op->n; t++) {
        const float *in[CONV_TAPS];
        for (uint32_t j = 0; j < taps; j++) {
            uint64_t at = t + j * step;
            in[j] = at < kept ? past + at * block : op->x + (at - kept) * op->ldx + c0;
        }
        float *y = op->y + t * op->ldy + c0;
        uint32_t i = 0;
        for (; taps == 4 && i + VW <= width; i += VW) {
            vf sum = v_mul(v_load(w[0] + i), v_load(in[0] + i));
            sum = v_fma(v_load(w[1] + i), v_load(in[1] + i), sum);
            sum = v_fma(v_load(w[2] + i), v_load(in[2] + i), sum);
            sum = v_fma(v_load(w[3] + i), v_load(in[3] + i), sum);
            v_store(y + i, v_silu(sum));
        }
        for (; i < width; i += VW) {
            uint32_t left = width - i;
            vf sum = v_mul(v_get(w[0] + i, left), v_get(in[0] + i, left));
            for (uint32_t j = 1; j < taps; j++)
                sum = v_fma(v_get(w[j] + i, left), v_get(in[j] + i, left), sum);
            v_put(y + i, v_silu(sum), left);
        }
    }
    for (uint32_t j = 0; j < kept; j++) {
        uint64_t at = op->n + (uint64_t)j;
        const float *in = at < kept ? past + at * block : op->x + (at - kept) * op->ldx + c0;
        for (uint32_t c = 0; c < width; c++)
            op->state[(c0 + c) * kept + j] = in[c];
    }
}

static void conv(const void *arg, uint64_t c0, uint64_t c1)
{
    const struct ifx_conv *op = arg;
    uint32_t step = op->dilation ? op->dilation : 1, kept = (op->kernel - 1) * step;
    uint32_t block = kept <= CONV_TAPS ? CONV_BLOCK : CONV_PAST / kept / VW * VW;
    for (uint64_t c = c0; c < c1; c += block)
        conv_block(op, c, c1 - c < block ? (uint32_t)(c1 - c) : block, block, step);
}

static void gdn_gate(const void *arg, uint64_t t0, uint64_t t1)
{
    const struct ifx_gdn_gate *op = arg;
    for (uint64_t t = t0; t < t1; t++) {
        float *g = op->g + t * op->heads, *beta = op->beta + t * op->heads;
        for (uint64_t h = 0; h < op->heads; h += VW) {
            uint64_t left = op->heads - h;
            v_put(beta + h, v_sigmoid(v_get(op->b + t * op->ldb + h, left)), left);
        }
        for (uint64_t h = 0; h < op->heads; h++) {
            float x = op->a[t * op->lda + h] + op->dt_bias[h];
            float softplus = x > 0 ? x + log1pf(expf(-x)) : log1pf(expf(x));
            g[h] = -expf(op->a_log[h]) * softplus;
        }
    }
}

/* ---- gated delta rule ---- */

/* x / |x| * scale into y. */
static void l2_normalise(const float *x, uint64_t d, float scale, float *y)
{
    vf factor = v_set1((float)((double)scale / sqrt((double)dot(x, x, d) + 1e-6)));
    for (uint64_t i = 0; i < d; i += VW)
        v_put(y + i, v_mul(v_get(x + i, d - i), factor), d - i);
}

/* One token, values [j, j + width) of the head.  S is read once for S^T k and S^T q together and once to be replaced:
 *   u = beta (v - decay S^T k),  o = decay S^T q + (q . k) u,  S <- decay S + k u^T. */
V_INLINE void delta_columns(float *S, uint64_t dk, uint64_t dv, const float *q, const float *k, float qk, const float *v,
                            float decay, float beta, float *out, uint64_t left, const int V)
{
    vf sk[4], sq[4], d = v_set1(decay);
    UNROLL for (int i = 0; i < V; i++)
        sk[i] = sq[i] = v_zero();
    for (uint64_t r = 0; r < dk; r++) {
        vf kr = v_set1(k[r]), qr = v_set1(q[r]);
        UNROLL for (int i = 0; i < V; i++) {
            vf s = v_get(S + r * dv + i * VW, left);
            sk[i] = v_fma(s, kr, sk[i]);
            sq[i] = v_fma(s, qr, sq[i]);
        }
    }
    UNROLL for (int i = 0; i < V; i++) {
        vf u = v_mul(v_set1(beta), v_fnma(d, sk[i], v_get(v + i * VW, left)));
        v_put(out + i * VW, v_fma(v_set1(qk), u, v_mul(d, sq[i])), left);
        sk[i] = u;
    }
    for (uint64_t r = 0; r < dk; r++) {
        vf kr = v_set1(k[r]);
        UNROLL for (int i = 0; i < V; i++) {
            float *s = S + r * dv + i * VW;
            v_put(s, v_fma(kr, sk[i], v_mul(d, v_get(s, left))), left);
        }
    }
}

/* All tokens, values [j0, j1) of the head. */
static void delta_step(const struct ifx_gated_delta *op, uint64_t head, uint64_t j0, uint64_t j1)
{
    float q[256], k[256];
    uint64_t dk = op->dk, dv = op->dv, key_head = head / (op->v_heads / op->k_heads);
    float *S = op->state + head * dk * dv;
    for (uint64_t t = 0; t < op->n; t++) {
        l2_normalise(op->q + t * op->ldq + key_head * dk, dk, (float)(1.0 / sqrt((double)dk)), q);
        l2_normalise(op->k + t * op->ldk + key_head * dk, dk, 1.0f, k);
        float qk = dot(q, k, dk), beta = op->beta[t * op->v_heads + head];
        float decay = expf(op->g[t * op->v_heads + head]);
        const float *v = op->v + t * op->ldv + head * dv;
        float *out = op->out + t * op->ldo + head * dv;
        uint64_t j = j0;
        for (; j + 4 * VW <= j1; j += 4 * VW)
            delta_columns(S + j, dk, dv, q, k, qk, v + j, decay, beta, out + j, VW, 4);
        for (; j + VW <= j1; j += VW)
            delta_columns(S + j, dk, dv, q, k, qk, v + j, decay, beta, out + j, VW, 1);
        if (j < j1)
            delta_columns(S + j, dk, dv, q, k, qk, v + j, decay, beta, out + j, j1 - j, 1);
    }
}

/* ---- small products: C[m, n] (+)= A[m, k] B[k, n], A by two strides, B and C by rows ---- */

struct small {
    const float *a;
    uint64_t row, col; /* A[i, l] = a[i * row + l * col] */
    const float *b;
    uint64_t ldb;
    float *c;
    uint64_t ldc;
    uint64_t m, n, k;
    float sign; /* 0: C = A B; 1: C += A B; -1: C -= A B */
};

/* R rows x V vectors; b is the strip of B, rows V * VW apart. */
V_INLINE void small_tile(const struct small *s, const float *strip, uint64_t i, uint64_t j, uint64_t left, const int R, const int V)
{
    vf acc[V_MR][4];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < V; v++)
            acc[r][v] = v_zero();
    for (uint64_t l = 0; l < s->k; l++) {
        vf b[4];
        UNROLL for (int v = 0; v < V; v++)
            b[v] = v_load(strip + l * (uint64_t)(V * VW) + v * VW);
        UNROLL for (int r = 0; r < R; r++) {
            vf a = v_set1(s->a[(i + (uint64_t)r) * s->row + l * s->col]);
            UNROLL for (int v = 0; v < V; v++)
                acc[r][v] = v_fma(a, b[v], acc[r][v]);
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < V; v++) {
            float *c = s->c + (i + (uint64_t)r) * s->ldc + j + v * VW;
            vf sum = acc[r][v];
            if (s->sign != 0.0f)
                sum = v_fma(v_set1(s->sign), sum, v_get(c, left));
            v_put(c, sum, left);
        }
}

/* One strip of columns.  It is copied together first: its rows are often so far apart that they fight for a few sets of the
 * cache. */
V_INLINE void small_rows(const struct small *s, uint64_t j, uint64_t left, const int V)
{
    float strip[256 * 2 * VW];
    uint64_t i = 0;
    for (uint64_t l = 0; l < s->k; l++)
        UNROLL for (int v = 0; v < V; v++)
            v_store(strip + l * (uint64_t)(V * VW) + v * VW, v_get(s->b + l * s->ldb + j + v * VW, left));
    for (; i + V_MR <= s->m; i += V_MR)
        small_tile(s, strip, i, j, left, V_MR, V);
    for (; V_MR > 4 && i + 4 <= s->m; i += 4)
        small_tile(s, strip, i, j, left, V_MR > 4 ? 4 : 1, V);
    for (; i < s->m; i++)
        small_tile(s, strip, i, j, left, 1, V);
}

/* k is at most 256: a head's width or a chunk's length. */
static void small_product(const struct small *s)
{
    enum { V = V_MR <= 2 ? 1 : 2 };
    uint64_t j = 0;
    for (; j + V * VW <= s->n; j += V * VW)
        small_rows(s, j, VW, V);
    for (; j + VW <= s->n; j += VW)
        small_rows(s, j, VW, 1);
    if (j < s->n)
        small_rows(s, j, s->n - j, 1);
}

/* What one chunk of c tokens keeps in scratch. */
struct chunk {
    uint64_t c;
    float *q, *k;  /* [c, dk] normalised */
    float *kt;     /* [dk, CPU_CHUNK] */
    float *kd;     /* [dk, CPU_CHUNK]: k_s exp(G_c - G_s) */
    float *u;      /* [c, dv] */
    float *o;      /* [c, dv] */
    float *lower;  /* [c, CPU_CHUNK]: beta_t exp(G_t - G_s) k_t . k_s, s < t */
    float *scores; /* [c, CPU_CHUNK]: exp(G_t - G_s) q_t . k_s, s <= t */
    float *decay;  /* [c]: exp(G_t) */
    double G[CPU_CHUNK]; /* cumulative log decay: differences of it stay exact enough, and are never positive */
};

/* out[i, t] = x[t, i], rows of out CPU_CHUNK apart; what lies past the last t of a row is zero up to a whole vector. */
static void transpose(const float *x, uint64_t n, uint64_t width, float *out)
{
    for (uint64_t t = 0; t < n; t += VW)
        for (uint64_t i = 0; i < width; i += VW) {
            vf block[VW];
            for (uint64_t r = 0; r < VW; r++)
                block[r] = t + r < n ? v_get(x + (t + r) * width + i, width - i) : v_zero();
            v_transpose(block);
            for (uint64_t r = 0; r < VW && i + r < width; r++)
                v_store(out + (i + r) * CPU_CHUNK + t, block[r]);
        }
}

/* A log decay after which nothing is left; lower ones count as this, so that no difference is infinity minus infinity. */
#define GONE (-1e4)

static void chunk_load(const struct ifx_gated_delta *op, uint64_t head, uint64_t t0, struct chunk *ch)
{
    uint64_t dk = op->dk, key_head = head / (op->v_heads / op->k_heads);
    double sum = 0;
    for (uint64_t t = 0; t < ch->c; t++) {
        float g = op->g[(t0 + t) * op->v_heads + head];
        sum += g > GONE ? (double)g : GONE;
        ch->G[t] = sum;
        l2_normalise(op->q + (t0 + t) * op->ldq + key_head * dk, dk, (float)(1.0 / sqrt((double)dk)), ch->q + t * dk);
        l2_normalise(op->k + (t0 + t) * op->ldk + key_head * dk, dk, 1.0f, ch->k + t * dk);
    }
    transpose(ch->k, ch->c, dk, ch->kt);
    float to_end[CPU_CHUNK] = {0};
    for (uint64_t t = 0; t < ch->c; t++) {
        to_end[t] = expf((float)(sum - ch->G[t]));
        ch->decay[t] = expf((float)ch->G[t]);
    }
    for (uint64_t i = 0; i < dk; i++)
        for (uint64_t t = 0; t < ch->c; t += VW) {
            vf k = v_get(ch->kt + i * CPU_CHUNK + t, ch->c - t);
            v_put(ch->kd + i * CPU_CHUNK + t, v_mul(k, v_load(to_end + t)), ch->c - t);
        }
}

/* Multiplies row t by the decays from s to t and clears what lies in the future. */
static void chunk_mask(struct chunk *ch, float *m, uint64_t past, const float *beta, uint64_t ldb)
{
    float e[CPU_CHUNK];
    for (uint64_t t = 0; t < ch->c; t++) {
        uint64_t n = t + past; /* entries that count */
        for (uint64_t s = 0; s < n; s++)
            e[s] = (float)(ch->G[t] - ch->G[s]);
        vf scale = v_set1(beta ? beta[t * ldb] : 1.0f);
        float *row = m + t * CPU_CHUNK;
        for (uint64_t s = 0; s < n; s += VW)
            v_put(row + s, v_mul(v_mul(v_get(row + s, n - s), scale), v_exp(v_get(e + s, n - s))), n - s);
        memset(row + n, 0, (CPU_CHUNK - n) * sizeof *row);
    }
}

/* U <- (I + L)^-1 U: blocks of eight rows, those before a block by one product, those inside it one after another. */
static void chunk_solve(struct chunk *ch, uint64_t dv)
{
    enum { BLOCK = 8 };
    for (uint64_t b = 0; b < ch->c; b += BLOCK) {
        uint64_t rows = ch->c - b < BLOCK ? ch->c - b : BLOCK;
        if (b) {
            struct small s = {ch->lower + b * CPU_CHUNK, CPU_CHUNK, 1, ch->u, dv, ch->u + b * dv, dv, rows, dv, b, -1.0f};
            small_product(&s);
        }
        for (uint64_t t = b + 1; t < b + rows; t++)
            for (uint64_t j = 0; j < dv; j += VW) {
                vf u = v_get(ch->u + t * dv + j, dv - j);
                for (uint64_t s = b; s < t; s++)
                    u = v_fnma(v_set1(ch->lower[t * CPU_CHUNK + s]), v_get(ch->u + s * dv + j, dv - j), u);
                v_put(ch->u + t * dv + j, u, dv - j);
            }
    }
}

/* With G_t the decay logs summed from the chunk's start, S_0 the state before it:
 *   (I + L) U = beta (V - exp(G) K S_0),  O = exp(G) Q S_0 + scores U,  S <- exp(G_c) S_0 + (decayed K)^T U. */
static void delta_chunk(const struct ifx_gated_delta *op, uint64_t head, uint64_t t0, struct chunk *ch)
{
    uint64_t dk = op->dk, dv = op->dv, c = ch->c;
    float *S = op->state + head * dk * dv;
    const float *beta = op->beta + t0 * op->v_heads + head;
    chunk_load(op, head, t0, ch);
    struct small s = {ch->k, dk, 1, ch->kt, CPU_CHUNK, ch->lower, CPU_CHUNK, c, c, dk, 0.0f};
    small_product(&s);
    s = (struct small){ch->q, dk, 1, ch->kt, CPU_CHUNK, ch->scores, CPU_CHUNK, c, c, dk, 0.0f};
    small_product(&s);
    chunk_mask(ch, ch->lower, 0, beta, op->v_heads);
    chunk_mask(ch, ch->scores, 1, NULL, 0);
    s = (struct small){ch->k, dk, 1, S, dv, ch->u, dv, c, dv, dk, 0.0f};
    small_product(&s);
    s = (struct small){ch->q, dk, 1, S, dv, ch->o, dv, c, dv, dk, 0.0f};
    small_product(&s);
    for (uint64_t t = 0; t < c; t++) {
        const float *v = op->v + (t0 + t) * op->ldv + head * dv;
        vf d = v_set1(ch->decay[t]), b = v_set1(beta[t * op->v_heads]);
        for (uint64_t j = 0; j < dv; j += VW) {
            float *u = ch->u + t * dv + j, *o = ch->o + t * dv + j;
            v_put(u, v_mul(b, v_fnma(d, v_get(u, dv - j), v_get(v + j, dv - j))), dv - j);
            v_put(o, v_mul(d, v_get(o, dv - j)), dv - j);
        }
    }
    chunk_solve(ch, dv);
    s = (struct small){ch->scores, CPU_CHUNK, 1, ch->u, dv, ch->o, dv, c, dv, c, 1.0f};
    small_product(&s);
    for (uint64_t t = 0; t < c; t++)
        memcpy(op->out + (t0 + t) * op->ldo + head * dv, ch->o + t * dv, dv * sizeof(float));
    vf end = v_set1(ch->decay[c - 1]);
    for (uint64_t i = 0; i < dk * dv; i += VW)
        v_put(S + i, v_mul(end, v_get(S + i, dk * dv - i)), dk * dv - i);
    s = (struct small){ch->kd, CPU_CHUNK, 1, ch->u, dv, S, dv, dk, dv, c, 1.0f};
    small_product(&s);
}

static void delta_chunks(const struct ifx_gated_delta *op, uint64_t head, float *scratch)
{
    uint64_t dk = op->dk, dv = op->dv;
    struct chunk ch;
    ch.q = scratch;
    ch.k = ch.q + CPU_CHUNK * dk;
    ch.kt = ch.k + CPU_CHUNK * dk;
    ch.kd = ch.kt + CPU_CHUNK * dk;
    ch.u = ch.kd + CPU_CHUNK * dk;
    ch.o = ch.u + CPU_CHUNK * dv;
    ch.lower = ch.o + CPU_CHUNK * dv;
    ch.scores = ch.lower + CPU_CHUNK * CPU_CHUNK;
    ch.decay = ch.scores + CPU_CHUNK * CPU_CHUNK;
    for (uint64_t t = 0; t < op->n; t += ch.c) {
        ch.c = op->n - t < CPU_CHUNK ? op->n - t : CPU_CHUNK;
        delta_chunk(op, head, t, &ch);
    }
}
