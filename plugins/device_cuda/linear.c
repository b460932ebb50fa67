/* SPDX-License-Identifier: Apache-2.0
 *
 * linear.c - matrix products: few columns in kernels of our own, many through cuBLASLt.
 *
 * Wide products of bf16 weights round the input once into the workspace.  Where the input must not be rounded, it is split into
 * three bf16 parts that make up its 24 bits, and the product runs three times: still several times as fast as without tensor
 * cores.  Weights of 8 bits, and rows that are not 16-byte aligned, are expanded in pieces that stay in the L2 cache.
 */
#include "cuda_device.h"
#include "linear_args.h"

#define PIECE_BYTES (32u << 20)
#define WS_ALIGN    256u /* of cuBLASLt's workspace; callers align to 64 */

static uint32_t padded(uint32_t cols)
{
    return (uint32_t)round_up(cols, 8);
}

static uint64_t linear_ws_bytes(struct ifx_device *dev, uint32_t n, uint32_t cols)
{
    (void)dev;
    if (n <= NARROW_COLUMNS)
        return 256;
    return round_up((uint64_t)n * padded(cols) * 2, WS_ALIGN) + GEMM_WS_BYTES + PIECE_BYTES + WS_ALIGN;
}

/* ---- few columns ---- */

static int is_aligned(const float *x, uint64_t ldx)
{
    return ((uintptr_t)x & 15) == 0 && ldx % 4 == 0;
}

/* The kernel of a matrix. */
static uint32_t narrow_kernel(const struct ifx_linear *op, const struct ifx_weight *w)
{
    uint32_t exact = op->flags & IFX_LINEAR_F32, aligned = op->cols % 8 == 0;
    if (w->dtype == IFX_F32 || (w->dtype == IFX_W8G32 && exact))
        return K_linear_narrow_f32;
    if (w->dtype == IFX_W8G32)
        return K_linear_narrow_w8;
    if (exact)
        return aligned ? K_linear_narrow_exact : K_linear_narrow_exact_any;
    return aligned ? K_linear_narrow : K_linear_narrow_any;
}

static uint32_t narrow_threads(uint32_t kernel)
{
    if (kernel == K_linear_narrow_f32)
        return F32_THREADS;
    return kernel == K_linear_narrow_few || kernel == K_linear_narrow_exact ? 2 * NARROW_WARPS * 32 : NARROW_WARPS * 32;
}

/* All matrices of one kernel in one launch. */
static int32_t narrow_launch(struct cuda_device *d, void *stream, const struct ifx_linear *op, uint32_t kernel)
{
    struct narrow_args a = {.n = op->n, .cols = op->cols, .x = op->x, .ldx = op->ldx, .x_aligned = (uint32_t)is_aligned(op->x, op->ldx),
                            .round_x = !(op->flags & IFX_LINEAR_F32)};
    for (uint32_t m = 0; m < op->count; m++) {
        const struct ifx_weight *w = &op->out[m].w;
        if (narrow_kernel(op, w) != kernel || w->rows == 0)
            continue;
        a.out[a.count++] = (struct narrow_out){.w = *w, .y = op->out[m].y, .ldy = op->out[m].ldy, .accumulate = op->out[m].accumulate,
                                               .tile0 = a.tiles};
        a.tiles += kernel == K_linear_narrow_f32 ? w->rows : (uint32_t)ceil_div(w->rows, NARROW_ROWS);
    }
    if (a.tiles == 0)
        return IFX_OK;
    /* One block a multiprocessor: it had better be a large one.  Rows alone decide, so a column's bits stay its own. */
    if (kernel == K_linear_narrow && a.tiles <= (uint32_t)d->prop.multiProcessorCount)
        kernel = K_linear_narrow_few;
    /* Blocks that make several tiles fetch without a pause. */
    uint32_t places = 2 * (uint32_t)d->prop.multiProcessorCount, blocks = kernel == K_linear_narrow && a.tiles > places ? places : a.tiles;
    void *args[] = {&a};
    return cuda_launch(d, stream, kernel, grid3(blocks, 1, 1), narrow_threads(kernel), 0, args);
}

static int32_t narrow(struct cuda_device *d, void *stream, const struct ifx_linear *op)
{
    static const uint32_t kernels[] = {K_linear_narrow,     K_linear_narrow_any, K_linear_narrow_exact, K_linear_narrow_exact_any,
                                       K_linear_narrow_w8, K_linear_narrow_f32};
    int32_t status = IFX_OK;
    for (uint32_t i = 0; status == IFX_OK && i < sizeof kernels / sizeof *kernels; i++)
        status = narrow_launch(d, stream, op, kernels[i]);
    return status;
}

/* ---- many columns ---- */

static dim3 rows_grid(uint64_t cols, uint32_t rows)
{
    return grid3(ceil_div(cols, 256), rows < 65535 ? rows : 65535, 1);
}

/* Columns [c0, c0 + n) of the input, as one or three bf16 parts or as float32, in the workspace. */
static int32_t take_input(struct cuda_device *d, void *stream, const struct ifx_linear *op, uint32_t type, uint32_t parts, uint32_t c0,
                          uint32_t n)
{
    const float *x = op->x + c0 * op->ldx;
    uint64_t ldx = op->ldx;
    uint32_t cols = op->cols, ld = padded(cols), round = !(op->flags & IFX_LINEAR_F32);
    void *y = op->ws;
    void *split[] = {&x, &ldx, &n, &cols, &parts, &y, &ld}, *plain[] = {&x, &ldx, &n, &cols, &round, &y, &ld};
    if (type == GEMM_BF16)
        return cuda_launch(d, stream, K_split_bf16, rows_grid(ceil_div(ld, 8), n), 256, 0, split);
    return cuda_launch(d, stream, K_round_f32, rows_grid(ld, n), 256, 0, plain);
}

static int32_t expand(struct cuda_device *d, void *stream, const struct ifx_weight *w, uint32_t type, uint32_t row0, uint32_t rows, void *y)
{
    struct ifx_weight weight = *w;
    uint32_t ld = padded(w->cols);
    void *args[] = {&weight, &row0, &rows, &y, &ld};
    return cuda_launch(d, stream, type == GEMM_BF16 ? K_expand_bf16 : K_expand_f32, rows_grid(ld, rows), 256, 0, args);
}

/* One piece of rows: the finest part of the input first, so that small sums come before large ones. */
static int32_t multiply(struct cuda_device *d, void *stream, struct gemm *g, const uint8_t *x, uint32_t parts, uint32_t accumulate)
{
    int32_t status = IFX_OK;
    for (uint32_t p = parts; status == IFX_OK && p-- > 0;) {
        g->b = x + (uint64_t)p * g->n * g->ldb * (g->type == GEMM_BF16 ? 2 : 4);
        g->accumulate = accumulate || p + 1 < parts;
        status = gemm_run(d, stream, g);
    }
    return status;
}

/* cuBLASLt takes the rows as they lie. */
static uint32_t is_direct(const struct ifx_linear *op, uint32_t m, uint32_t type)
{
    return op->out[m].w.dtype == (type == GEMM_BF16 ? IFX_BF16 : IFX_F32) && op->cols % 8 == 0;
}

static int32_t matrix(struct cuda_device *d, void *stream, const struct ifx_linear *op, uint32_t m, uint32_t type, uint32_t parts,
                      uint32_t c0, uint32_t n)
{
    const struct ifx_weight *w = &op->out[m].w;
    uint32_t ld = padded(op->cols), element = type == GEMM_BF16 ? 2 : 4;
    uint32_t direct = is_direct(op, m, type);
    uint32_t piece = direct ? w->rows : (uint32_t)(PIECE_BYTES / ((uint64_t)ld * element));
    uint8_t *expanded = (uint8_t *)op->ws + round_up((uint64_t)op->n * ld * 2, WS_ALIGN), *gemm_ws = expanded + PIECE_BYTES;
    int32_t status = IFX_OK;
    if (piece == 0)
        return d->base.host->error(d->base.host, IFX_EUNSUPPORTED, "device cuda:%d: matrix of %u columns is too wide", d->ordinal, op->cols);
    for (uint32_t r = 0; status == IFX_OK && r < w->rows; r += piece) {
        struct gemm g = {.type = type, .rows = w->rows - r < piece ? w->rows - r : piece, .n = n, .k = ld, .a = direct ? w->data : expanded,
                         .lda = ld, .ldb = ld, .c = op->out[m].y + c0 * op->out[m].ldy + r, .ldc = op->out[m].ldy, .ws = gemm_ws};
        if (!direct)
            status = expand(d, stream, w, type, r, g.rows, expanded);
        if (!status)
            status = multiply(d, stream, &g, op->ws, parts, op->out[m].accumulate);
    }
    return status;
}

/* How a matrix is multiplied. */
static uint32_t wide_type(const struct ifx_linear *op, const struct ifx_weight *w)
{
    if (w->dtype == IFX_F32 || (w->dtype == IFX_W8G32 && (op->flags & IFX_LINEAR_F32)))
        return GEMM_F32;
    return GEMM_BF16;
}

/* The matrices of one type; an input larger than the workspace goes in turns. */
static int32_t wide_pass(struct cuda_device *d, void *stream, const struct ifx_linear *op, uint32_t type)
{
    uint32_t parts = type == GEMM_BF16 && (op->flags & IFX_LINEAR_F32) ? 3 : 1, any = 0, expanded = 0;
    uint64_t column = (uint64_t)padded(op->cols) * (type == GEMM_F32 ? 4 : 2 * parts);
    int32_t status = IFX_OK;
    for (uint32_t m = 0; m < op->count; m++)
        if (op->out[m].w.rows && wide_type(op, &op->out[m].w) == type) {
            any = 1;
            expanded |= !is_direct(op, m, type);
        }
    /* Where no weights are expanded, their place serves the input. */
    uint64_t fit = ((uint64_t)op->n * padded(op->cols) * 2 + (expanded ? 0 : PIECE_BYTES)) / column;
    uint32_t turn = fit < op->n ? (uint32_t)fit : op->n;
    for (uint32_t c0 = 0; any && status == IFX_OK && c0 < op->n; c0 += turn) {
        uint32_t n = op->n - c0 < turn ? op->n - c0 : turn;
        status = take_input(d, stream, op, type, parts, c0, n);
        for (uint32_t m = 0; status == IFX_OK && m < op->count; m++)
            if (op->out[m].w.rows && wide_type(op, &op->out[m].w) == type)
                status = matrix(d, stream, op, m, type, parts, c0, n);
    }
    return status;
}

static int32_t linear(struct ifx_device *dev, void *stream, const struct ifx_linear *op)
{
    struct cuda_device *d = cuda_of(dev);
    for (uint32_t m = 0; m < op->count; m++)
        if (op->out[m].w.dtype != IFX_BF16 && op->out[m].w.dtype != IFX_F32 && op->out[m].w.dtype != IFX_W8G32)
            return dev->host->error(dev->host, IFX_EUNSUPPORTED, "device cuda: matrix of element type %u", op->out[m].w.dtype);
    if (op->n == 0 || op->cols == 0)
        return IFX_OK;
    if (op->n <= NARROW_COLUMNS)
        return narrow(d, stream, op);
    struct ifx_linear wide = *op;
    wide.ws = (void *)(((uintptr_t)op->ws + WS_ALIGN - 1) / WS_ALIGN * WS_ALIGN);
    int32_t status = wide_pass(d, stream, &wide, GEMM_BF16);
    return status ? status : wide_pass(d, stream, &wide, GEMM_F32);
}

void cuda_fill_linear(struct ifx_device_ops *ops)
{
    ops->linear_ws_bytes = linear_ws_bytes;
    ops->linear = linear;
}
