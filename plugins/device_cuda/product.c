/* SPDX-License-Identifier: Apache-2.0
 *
 * product.c - which products of few columns go with their surroundings in one launch, and how.
 */
#include "cuda_device.h"
#include "linear_args.h"

#define PRODUCT_SHARED (96u << 10) /* what a block of sm_120 may have, with what it has anyway */

static const uint32_t kernels[] = {K_product_many, K_product_few, K_product_exact};

int32_t product_allow_shared(struct cuda_device *d)
{
    int32_t status = IFX_OK;
    for (uint32_t i = 0; status == IFX_OK && i < sizeof kernels / sizeof *kernels; i++)
        status = cuda_check(d, cudaFuncSetAttribute((const void *)d->kernels[kernels[i]], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                    (int)PRODUCT_SHARED), "shared memory of products");
    return status;
}

static int is_aligned(const void *p, uint64_t ld)
{
    return ((uintptr_t)p & 15) == 0 && ld % 4 == 0;
}

/* Each of these fills the arguments and says whether the kernels can do it. */
static int take_norm(struct product_args *p, const struct ifx_rms_norm *o)
{
    p->input = INPUT_NORM;
    p->a.x = o->x, p->a.ldx = o->ldx;
    p->w = o->w, p->plus_one = o->plus_one, p->eps = o->eps;
    return o->rows == p->a.n && o->width == p->a.cols && o->w_rows == 1 && is_aligned(o->w, 0) &&
           p->a.cols <= 4 * PRODUCT_EACH * NARROW_WARPS * 32;
}

static int take_gated_norm(struct product_args *p, const struct ifx_gated_norm *o)
{
    p->input = INPUT_GATED_NORM;
    p->a.x = o->x, p->a.ldx = o->ldx;
    p->z = o->z, p->ldz = o->ldz;
    p->w = o->w, p->eps = o->eps, p->act = o->act, p->head = o->width;
    return o->n == p->a.n && (uint64_t)o->heads * o->width == p->a.cols && o->width % 4 == 0 && o->width <= PRODUCT_HEAD &&
           is_aligned(o->z, o->ldz) && is_aligned(o->w, 0);
}

static int take_swiglu(struct product_args *p, const struct ifx_swiglu *o)
{
    p->input = INPUT_SWIGLU;
    p->a.x = o->gate, p->a.ldx = o->ldg;
    p->z = o->up, p->ldz = o->ldu;
    return o->n == p->a.n && o->width == p->a.cols && is_aligned(o->up, o->ldu);
}

static int take_sigmoid_gate(struct product_args *p, const struct ifx_sigmoid_gate *o)
{
    p->input = INPUT_SIGMOID_GATE;
    p->a.x = o->x, p->a.ldx = o->ldx;
    p->z = o->gate, p->ldz = o->ldg, p->ldz_head = o->ldg_head, p->head = o->d;
    return o->n == p->a.n && (uint64_t)o->heads * o->d == p->a.cols && o->d % 4 == 0 && is_aligned(o->gate, o->ldg) && o->ldg_head % 4 == 0;
}

static int take_input(struct product_args *p, const struct ifx_product *op)
{
    int fits;
    if (!!op->norm + !!op->gated_norm + !!op->swiglu + !!op->sigmoid_gate > 1)
        return 0;
    p->input = INPUT_PLAIN;
    p->a.x = op->linear.x, p->a.ldx = op->linear.ldx;
    fits = op->norm           ? take_norm(p, op->norm)
           : op->gated_norm   ? take_gated_norm(p, op->gated_norm)
           : op->swiglu       ? take_swiglu(p, op->swiglu)
           : op->sigmoid_gate ? take_sigmoid_gate(p, op->sigmoid_gate)
                              : 1;
    p->rounded = op->rounded, p->ldr = op->ldr;
    return fits && is_aligned(p->a.x, p->a.ldx) && ((uintptr_t)op->rounded & 7) == 0 && op->ldr % 4 == 0;
}

static int take_matrices(struct product_args *p, const struct ifx_product *op)
{
    for (uint32_t m = 0; m < op->linear.count; m++) {
        const struct ifx_weight *w = &op->linear.out[m].w;
        struct narrow_out *o = &p->a.out[p->a.count];
        if (w->dtype != IFX_BF16)
            return 0;
        if (w->rows == 0)
            continue;
        *o = (struct narrow_out){.w = *w, .y = op->linear.out[m].y, .ldy = op->linear.out[m].ldy, .accumulate = op->linear.out[m].accumulate,
                                 .tile0 = p->a.tiles, .exact = op->exact >> m & 1, .end = END_PLAIN};
        if (op->gate && o->y == op->gate->a)
            o->end = END_DECAY, o->y = op->gate->g, o->ldy = op->gate->heads;
        else if (op->gate && o->y == op->gate->b)
            o->end = END_BETA, o->y = op->gate->beta, o->ldy = op->gate->heads;
        if (o->end != END_PLAIN && (w->rows != op->gate->heads || o->accumulate))
            return 0;
        p->a.count++;
        p->a.tiles += (uint32_t)ceil_div(w->rows, NARROW_ROWS);
    }
    return p->a.count != 0;
}

static uint32_t with_end(const struct product_args *p, uint32_t end)
{
    uint32_t count = 0;
    for (uint32_t m = 0; m < p->a.count; m++)
        count += p->a.out[m].end == end;
    return count;
}

static int take_end(struct product_args *p, const struct ifx_product *op)
{
    const struct ifx_combine *c = op->combine;
    const struct ifx_add *shared = op->shared, *residual = op->residual;
    if (op->gate) {
        p->a_log = op->gate->a_log, p->dt_bias = op->gate->dt_bias;
        return !c && !shared && !residual && op->gate->n == p->a.n && with_end(p, END_DECAY) == 1 && with_end(p, END_BETA) == 1;
    }
    if (!c)
        return !shared && !residual;
    if (!shared || !residual || p->a.count != 1 || p->a.out[0].accumulate || shared->x != p->a.out[0].y || shared->y != c->y ||
        residual->x != c->y || residual->gate || c->accumulate || c->n != p->a.n || c->width != p->a.out[0].w.rows)
        return 0;
    p->combine = *c;
    p->shared_gate = shared->gate, p->ld_gate = shared->ldg;
    p->a.out[0].end = END_COMBINE, p->a.out[0].y = residual->y, p->a.out[0].ldy = residual->ldy;
    return 1;
}

/* Most columns decide whether the input fits, so that what a column gives is the same beside any others. */
static int32_t product(struct ifx_device *dev, void *stream, const struct ifx_product *op)
{
    struct cuda_device *d = cuda_of(dev);
    struct product_args p = {.a = {.n = op->linear.n, .cols = op->linear.cols, .x_aligned = 1, .round_x = 1}};
    uint32_t exact = op->exact & ((1u << op->linear.count) - 1), multiprocessors = (uint32_t)d->prop.multiProcessorCount;
    uint64_t row = exact ? (uint64_t)(p.a.cols + PRODUCT_PAD_F32) * 4 : (uint64_t)(p.a.cols + PRODUCT_PAD_BF16) * 2;
    if (p.a.n == 0 || p.a.n > NARROW_COLUMNS || p.a.cols == 0 || p.a.cols % 8 || op->linear.flags || NARROW_COLUMNS * row > PRODUCT_SHARED ||
        !take_input(&p, op) || !take_matrices(&p, op) || !take_end(&p, op))
        return IFX_EUNSUPPORTED;
    uint32_t many = !exact && !op->combine && p.a.tiles > multiprocessors, blocks = p.a.tiles;
    if (many && blocks > 2 * multiprocessors)
        blocks = 2 * multiprocessors;
    void *args[] = {&p};
    return cuda_launch(d, stream, exact ? K_product_exact : many ? K_product_many : K_product_few, grid3(blocks, 1, 1),
                       (many ? NARROW_WARPS : 2 * NARROW_WARPS) * 32, (uint32_t)(p.a.n * row), args);
}

void cuda_fill_product(struct ifx_device_ops *ops)
{
    ops->product = product;
}
