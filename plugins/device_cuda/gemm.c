/* SPDX-License-Identifier: Apache-2.0
 *
 * gemm.c - C = B A^T (+ C) through cuBLASLt.  The library is loaded when a device opens and not before.  What it advises for a
 * shape is kept, since asking takes longer than many a product.
 */
#include "cuda_device.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <string.h>

#define TEXT2(x) #x
#define TEXT(x)  TEXT2(x)
#define LIBRARY  "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

#define FUNCTIONS(F)                                                                                                     \
    F(cublasLtCreate)                                                                                                    \
    F(cublasLtDestroy)                                                                                                   \
    F(cublasLtMatmul)                                                                                                    \
    F(cublasLtMatmulDescCreate)                                                                                          \
    F(cublasLtMatmulDescDestroy)                                                                                         \
    F(cublasLtMatmulDescSetAttribute)                                                                                    \
    F(cublasLtMatrixLayoutCreate)                                                                                        \
    F(cublasLtMatrixLayoutDestroy)                                                                                       \
    F(cublasLtMatmulPreferenceCreate)                                                                                    \
    F(cublasLtMatmulPreferenceDestroy)                                                                                   \
    F(cublasLtMatmulPreferenceSetAttribute)                                                                              \
    F(cublasLtMatmulAlgoGetHeuristic)

enum { ENTRIES = 512 };

struct key {
    uint32_t type, rows, n, k;
    uint64_t lda, ldb, ldc;
    uint32_t align_a, align_b, align_c, accumulate;
};

struct entry {
    struct key key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    int valid;
};

struct gemm_cache {
    void *library;
    cublasLtHandle_t handle;
    pthread_mutex_t lock; /* guards the entries */
    struct entry entries[ENTRIES];
#define F(name) __typeof__(name) *name;
    FUNCTIONS(F)
#undef F
};

static int32_t load_library(struct cuda_device *d, struct gemm_cache *c)
{
    const struct ifx_host *host = d->base.host;
    c->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!c->library) {
        const char *why = dlerror();
        return host->error(host, IFX_ENOTFOUND, "device cuda:%d: cuBLASLt does not load (%s); it is part of the CUDA Toolkit %d.%d",
                           d->ordinal, why ? why : "no reason given", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    }
#define F(name)                                                                                                          \
    *(void **)&c->name = dlsym(c->library, #name);                                                                       \
    if (!c->name)                                                                                                        \
        return host->error(host, IFX_ENOTFOUND, "device cuda:%d: " LIBRARY " has no " #name, d->ordinal);
    FUNCTIONS(F)
#undef F
    return IFX_OK;
}

static int32_t failed(struct cuda_device *d, const char *what, cublasStatus_t status, const struct gemm *g)
{
    return d->base.host->error(d->base.host, IFX_EINTERNAL, "device cuda:%d: %s: cuBLASLt status %d (%u x %u, %u columns, type %u)",
                               d->ordinal, what, (int)status, g->rows, g->k, g->n, g->type);
}

int32_t gemm_create(struct cuda_device *d)
{
    const struct ifx_host *host = d->base.host;
    struct gemm_cache *c = host->alloc(host, sizeof *c, 64);
    if (!c)
        return IFX_ENOMEM;
    memset(c, 0, sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    d->gemm = c;
    int32_t status = load_library(d, c);
    if (!status && c->cublasLtCreate(&c->handle) != CUBLAS_STATUS_SUCCESS)
        status = host->error(host, IFX_ENOTFOUND, "device cuda:%d: cuBLASLt does not start", d->ordinal);
    return status;
}

static void entry_clear(struct gemm_cache *c, struct entry *e)
{
    if (e->desc)
        c->cublasLtMatmulDescDestroy(e->desc);
    if (e->a)
        c->cublasLtMatrixLayoutDestroy(e->a);
    if (e->b)
        c->cublasLtMatrixLayoutDestroy(e->b);
    if (e->c)
        c->cublasLtMatrixLayoutDestroy(e->c);
    memset(e, 0, sizeof *e);
}

void gemm_destroy(struct cuda_device *d)
{
    struct gemm_cache *c = d->gemm;
    if (!c)
        return;
    for (uint32_t i = 0; i < ENTRIES; i++)
        entry_clear(c, &c->entries[i]);
    if (c->handle && !atomic_load(&d->lost))
        c->cublasLtDestroy(c->handle);
    /* The library stays: it has registered itself with the runtime. */
    pthread_mutex_destroy(&c->lock);
    d->base.host->free(d->base.host, c);
    d->gemm = NULL;
}

static uint32_t alignment(const void *p)
{
    uintptr_t a = (uintptr_t)p & -(uintptr_t)p;
    return a > 256 || a == 0 ? 256 : (uint32_t)a;
}

/* Column-major, as cuBLASLt has it: C[rows, n] = A[k, rows]^T B[k, n]. */
static cublasStatus_t describe(struct gemm_cache *c, struct entry *e)
{
    const struct key *k = &e->key;
    cudaDataType_t type = k->type == GEMM_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    cublasOperation_t transpose = CUBLAS_OP_T;
    cublasStatus_t s = c->cublasLtMatmulDescCreate(&e->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!s)
        s = c->cublasLtMatmulDescSetAttribute(e->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose);
    if (!s)
        s = c->cublasLtMatrixLayoutCreate(&e->a, type, k->k, k->rows, (int64_t)k->lda);
    if (!s)
        s = c->cublasLtMatrixLayoutCreate(&e->b, type, k->k, k->n, (int64_t)k->ldb);
    if (!s)
        s = c->cublasLtMatrixLayoutCreate(&e->c, CUDA_R_32F, k->rows, k->n, (int64_t)k->ldc);
    return s;
}

static cublasStatus_t choose(struct gemm_cache *c, struct entry *e)
{
    cublasLtMatmulPreference_t p = NULL;
    cublasLtMatmulHeuristicResult_t result;
    uint64_t ws = GEMM_WS_BYTES;
    int found = 0;
    cublasStatus_t s = c->cublasLtMatmulPreferenceCreate(&p);
#define SET(name, value)                                                                                                 \
    if (!s)                                                                                                              \
        s = c->cublasLtMatmulPreferenceSetAttribute(p, name, &(value), sizeof(value));
    SET(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, ws)
    SET(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, e->key.align_a)
    SET(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, e->key.align_b)
    SET(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, e->key.align_c)
    SET(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, e->key.align_c)
#undef SET
    if (!s)
        s = c->cublasLtMatmulAlgoGetHeuristic(c->handle, e->desc, e->a, e->b, e->c, e->c, p, 1, &result, &found);
    if (!s && found == 0)
        s = CUBLAS_STATUS_NOT_SUPPORTED;
    if (!s)
        e->algo = result.algo;
    if (p)
        c->cublasLtMatmulPreferenceDestroy(p);
    return s;
}

static uint32_t slot_of(const struct key *k)
{
    const uint32_t *words = (const uint32_t *)(const void *)k;
    uint32_t h = 2166136261u;
    for (uint32_t i = 0; i < sizeof *k / 4; i++)
        h = (h ^ words[i]) * 16777619u;
    return (h ^ h >> 15) % ENTRIES;
}

int32_t gemm_run(struct cuda_device *d, void *stream, const struct gemm *g)
{
    struct gemm_cache *c = d->gemm;
    struct key key;
    float one = 1.0f, beta = g->accumulate ? 1.0f : 0.0f;
    memset(&key, 0, sizeof key); /* it is compared whole */
    key.type = g->type, key.rows = g->rows, key.n = g->n, key.k = g->k;
    key.lda = g->lda, key.ldb = g->ldb, key.ldc = g->ldc, key.accumulate = g->accumulate;
    key.align_a = alignment(g->a), key.align_b = alignment(g->b), key.align_c = alignment(g->c);
    int32_t status = cuda_enter(d);
    if (status)
        return status;
    pthread_mutex_lock(&c->lock);
    struct entry *e = &c->entries[slot_of(&key)];
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
    if (!e->valid || memcmp(&e->key, &key, sizeof key) != 0) {
        entry_clear(c, e);
        e->key = key;
        s = describe(c, e);
        if (!s)
            s = choose(c, e);
        e->valid = s == CUBLAS_STATUS_SUCCESS;
    }
    if (!s)
        s = c->cublasLtMatmul(c->handle, e->desc, &one, g->a, e->a, g->b, e->b, &beta, g->c, e->c, g->c, e->c, &e->algo, g->ws,
                              GEMM_WS_BYTES, stream);
    pthread_mutex_unlock(&c->lock);
    return s ? failed(d, "matrix product", s, g) : cuda_check(d, cudaPeekAtLastError(), "matrix product");
}
