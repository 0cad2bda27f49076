/* cuda/products.c - matrix products by cuBLASLt, in float32 without TF32.
 *
 * An algorithm is the heuristic's first for the shape, with a work space of one size. So a shape
 * has one algorithm on one kind of GPU with one version of the library, and its bits don't depend
 * on the run. Algorithms that add parts in an order of chance are excluded. */
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "device/cuda/device.h"

enum { WORK_BYTES = 32 << 20, BUCKETS = 64 };

/* What a plan depends on. Filled with zeros first, because it is compared as bytes. */
struct key {
    size_t m, n, k, lda, ldb, ldc;
    char ta, tb;
    bool aligned; /* rows of all three begin at multiples of 16 bytes */
};

struct plan {
    struct plan *next;
    struct key key;
    cublasLtMatmulDesc_t what;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
};

struct lks__cuda_products {
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t aligned, any; /* by key.aligned */
    void *work;
    struct plan *plans[BUCKETS];
};

/* --- plans ----------------------------------------------------------------------------------- */

static void close_plan(lks__cuda *c, struct plan *p)
{
    if (p->what != NULL)
        LKS__CUDA_PRODUCT(c, cublasLtMatmulDescDestroy, p->what);
    cublasLtMatrixLayout_t layouts[] = {p->a, p->b, p->c};
    for (int i = 0; i < 3; i++)
        if (layouts[i] != NULL)
            LKS__CUDA_PRODUCT(c, cublasLtMatrixLayoutDestroy, layouts[i]);
    free(p);
}

static bool open_layout(lks__cuda *c, cublasLtMatrixLayout_t *layout, size_t rows, size_t cols,
                        size_t ld)
{
    return LKS__CUDA_PRODUCT(c, cublasLtMatrixLayoutCreate, layout, CUDA_R_32F, rows, cols,
                             (int64_t)ld);
}

static bool set_transposed(lks__cuda *c, cublasLtMatmulDesc_t what,
                           cublasLtMatmulDescAttributes_t which, char t)
{
    const int32_t op = t == 'T' ? CUBLAS_OP_T : CUBLAS_OP_N;
    return LKS__CUDA_PRODUCT(c, cublasLtMatmulDescSetAttribute, what, which, &op, sizeof op);
}

static bool find_algorithm(lks__cuda *c, struct plan *p)
{
    lks__cuda_products *pr = c->products;
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;
    if (!LKS__CUDA_PRODUCT(c, cublasLtMatmulAlgoGetHeuristic, pr->handle, p->what, p->a, p->b, p->c,
                           p->c, p->key.aligned ? pr->aligned : pr->any, 1, &found, &n))
        return false;
    if (n != 1)
        return lks__cuda_check_product(c, CUBLAS_STATUS_NOT_SUPPORTED,
                                       "cublasLtMatmulAlgoGetHeuristic");
    p->algorithm = found.algo;
    return lks__cuda_check_product(c, found.state, "cublasLtMatmulAlgoGetHeuristic");
}

/* cuBLASLt's matrices are stored by columns. A matrix that is stored by rows is, to it, transposed:
 * so its first factor is our second one, and it computes the transposed result. */
static bool fill_plan(lks__cuda *c, struct plan *p)
{
    const struct key *k = &p->key;
    const bool ta = k->ta == 'T', tb = k->tb == 'T';
    return LKS__CUDA_PRODUCT(c, cublasLtMatmulDescCreate, &p->what, CUBLAS_COMPUTE_32F,
                             CUDA_R_32F) &&
           set_transposed(c, p->what, CUBLASLT_MATMUL_DESC_TRANSA, k->tb) &&
           set_transposed(c, p->what, CUBLASLT_MATMUL_DESC_TRANSB, k->ta) &&
           open_layout(c, &p->a, tb ? k->k : k->n, tb ? k->n : k->k, k->ldb) &&
           open_layout(c, &p->b, ta ? k->m : k->k, ta ? k->k : k->m, k->lda) &&
           open_layout(c, &p->c, k->n, k->m, k->ldc) && find_algorithm(c, p);
}

/* Found again by its shape; the first step makes all. NULL: the device has failed. */
static const struct plan *plan_for(lks__cuda *c, const struct key *key)
{
    struct plan **at = &c->products->plans[XXH3_64bits(key, sizeof *key) % BUCKETS];
    for (struct plan *p = *at; p != NULL; p = p->next)
        if (memcmp(&p->key, key, sizeof *key) == 0)
            return p;
    struct plan *p = calloc(1, sizeof *p);
    if (p == NULL) {
        lks__cuda_check(c, cudaErrorMemoryAllocation, "a plan for a product");
        return NULL;
    }
    memcpy(&p->key, key, sizeof *key);
    if (!fill_plan(c, p)) {
        close_plan(c, p);
        return NULL;
    }
    p->next = *at;
    *at = p;
    return p;
}

static bool on_16(const float *p, size_t ld)
{
    return (uintptr_t)p % 16 == 0 && ld % 4 == 0;
}

void lks__cuda_gemm(const lks__exec *ex, char ta, char tb, size_t m, size_t n, size_t k,
                    float alpha, const float *a, size_t lda, const float *b, size_t ldb, float beta,
                    float *out, size_t ldc)
{
    lks__cuda *c = lks__cuda_of(ex);
    struct key key;
    if (lks__cuda_failed(c))
        return;
    memset(&key, 0, sizeof key);
    key.m = m;
    key.n = n;
    key.k = k;
    key.lda = lda;
    key.ldb = ldb;
    key.ldc = ldc;
    key.ta = ta;
    key.tb = tb;
    key.aligned = on_16(a, lda) && on_16(b, ldb) && on_16(out, ldc);
    const struct plan *p = plan_for(c, &key);
    if (p != NULL)
        LKS__CUDA_PRODUCT(c, cublasLtMatmul, c->products->handle, p->what, &alpha, b, p->a, a, p->b,
                          &beta, out, p->c, out, p->c, &p->algorithm, c->products->work, WORK_BYTES,
                          lks__cuda_stream(ex));
}

/* --- open and close -------------------------------------------------------------------------- */

static bool prefer(lks__cuda *c, cublasLtMatmulPreference_t p,
                   cublasLtMatmulPreferenceAttributes_t which, const void *value, size_t bytes)
{
    return LKS__CUDA_PRODUCT(c, cublasLtMatmulPreferenceSetAttribute, p, which, value, bytes);
}

static bool open_preference(lks__cuda *c, cublasLtMatmulPreference_t *p, uint32_t alignment)
{
    /* Parts of a sum are added by one thread, or in work space in their order. */
    static const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    static const size_t work = WORK_BYTES;
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    if (!LKS__CUDA_PRODUCT(c, cublasLtMatmulPreferenceCreate, p) ||
        !prefer(c, *p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &work, sizeof work) ||
        !prefer(c, *p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions))
        return false;
    for (int i = 0; i < 4; i++)
        if (!prefer(c, *p, alignments[i], &alignment, sizeof alignment))
            return false;
    return true;
}

bool lks__cuda_products_open(lks__cuda *c)
{
    lks__cuda_products *pr = calloc(1, sizeof *pr);
    c->products = pr;
    if (pr == NULL)
        return lks__cuda_check(c, cudaErrorMemoryAllocation, "the table of products");
    return LKS__CUDA_PRODUCT(c, cublasLtCreate, &pr->handle) &&
           open_preference(c, &pr->aligned, 16) && open_preference(c, &pr->any, sizeof(float)) &&
           LKS__CUDA_CALL(c, cudaMalloc, &pr->work, WORK_BYTES);
}

void lks__cuda_products_close(lks__cuda *c)
{
    lks__cuda_products *pr = c->products;
    if (pr == NULL)
        return;
    if (pr->work != NULL)
        LKS__CUDA_CALL(c, cudaFree, pr->work);
    for (int i = 0; i < BUCKETS; i++)
        for (struct plan *p = pr->plans[i], *next; p != NULL; p = next) {
            next = p->next;
            close_plan(c, p);
        }
    if (pr->aligned != NULL)
        LKS__CUDA_PRODUCT(c, cublasLtMatmulPreferenceDestroy, pr->aligned);
    if (pr->any != NULL)
        LKS__CUDA_PRODUCT(c, cublasLtMatmulPreferenceDestroy, pr->any);
    if (pr->handle != NULL)
        LKS__CUDA_PRODUCT(c, cublasLtDestroy, pr->handle);
    free(pr);
    c->products = NULL;
}

uint64_t lks__cuda_products_fingerprint(lks__cuda *c)
{
    /* A layer of GPT-2: forward, and both products of backward; and an odd shape. */
    static const struct {
        char ta, tb;
        size_t m, n, k;
    } shapes[] = {{'N', 'T', 12288, 3072, 768},
                  {'N', 'N', 12288, 768, 3072},
                  {'T', 'N', 3072, 768, 12288},
                  {'N', 'T', 37, 65, 101}};
    const size_t version = cublasLtGetVersion();
    uint64_t h = XXH3_64bits(&version, sizeof version);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct key key;
        memset(&key, 0, sizeof key);
        key.ta = shapes[i].ta;
        key.tb = shapes[i].tb;
        key.m = shapes[i].m;
        key.n = shapes[i].n;
        key.k = shapes[i].k;
        key.lda = key.ta == 'T' ? key.m : key.k;
        key.ldb = key.tb == 'T' ? key.k : key.n;
        key.ldc = key.n;
        key.aligned = key.lda % 4 == 0 && key.ldb % 4 == 0 && key.ldc % 4 == 0;
        const struct plan *p = plan_for(c, &key);
        if (p == NULL)
            return 0;
        h = XXH3_64bits_withSeed(&p->algorithm, sizeof p->algorithm, h);
    }
    return h;
}

/* --- the table's operations ------------------------------------------------------------------ */

void lks__cuda_linear_fwd(const lks__exec *ex, float *y, size_t ldy, const float *x, const float *w,
                          size_t rows, size_t out, size_t in, const lks__epilogue *epilogue)
{
    lks__cuda_gemm(ex, 'N', 'T', rows, out, in, 1, x, in, w, in, 0, y, ldy);
    if (epilogue != NULL)
        lks__cuda_epilogue(ex, y, ldy, rows, out, epilogue);
}

void lks__cuda_linear_bwd_x(const lks__exec *ex, float *dx, const float *dy, size_t lddy,
                            const float *w, size_t rows, size_t out, size_t in,
                            const lks__epilogue *epilogue)
{
    lks__cuda_gemm(ex, 'N', 'N', rows, in, out, 1, dy, lddy, w, in, 0, dx, in);
    if (epilogue != NULL)
        lks__cuda_epilogue(ex, dx, in, rows, in, epilogue);
}

void lks__cuda_linear_bwd_x_add(const lks__exec *ex, float *dx, const float *dy, size_t lddy,
                                const float *w, size_t rows, size_t out, size_t in)
{
    lks__cuda_gemm(ex, 'N', 'N', rows, in, out, 1, dy, lddy, w, in, 1, dx, in);
}

void lks__cuda_linear_bwd_w(const lks__exec *ex, float *dw, float *db, const float *dy, size_t lddy,
                            const float *x, size_t rows, size_t out, size_t in)
{
    if (dw != NULL)
        lks__cuda_gemm(ex, 'T', 'N', out, in, rows, 1, dy, lddy, x, in, 1, dw, in);
    if (db != NULL)
        lks__cuda_column_sums(ex, db, dy, lddy, rows, out);
}
