/* cuda/products.c - matrix products by cuBLASLt, in float32 without TF32, or of operands in
 * bfloat16 with sums in float32.
 *
 * An algorithm is the heuristic's first for the shape, with a work space of one size. So a shape
 * has one algorithm on one kind of GPU with one version of the library, and its bits don't depend
 * on the run. Algorithms that add parts in an order of chance are excluded.
 *
 * Products of one shape that are computed at once have an algorithm that adds no parts at all, the
 * heuristic's for ASKED of them: so the bits of one don't depend on how many there are. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "compute/cuda/device.h"
#include "compute/cuda/questions.h"

/* A part of the fingerprint. */
#define ALGORITHM "cuBLASLt's algorithm for "

enum { WORK_BYTES = LKS__CUDA_PRODUCT_BYTES, BUCKETS = 64, ASKED = 8 };

/* Everything that a plan depends on. Filled with zeros first, because it is compared as bytes. */
struct key {
    size_t m, n, k, lda, ldb, ldc;
    size_t count, stride_a, stride_b, stride_c; /* 0: one product, without strides */
    char ta, tb;
    bool bf16, half;    /* operands, and the result, are bfloat16, else float32 */
    uint32_t alignment; /* bytes of which the place of each row is a multiple: 16, or an element */
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
    cublasLtMatmulPreference_t preferences[2]; /* by key.count > 0 */
    void *work;
    lks__cuda_space rounded[2]; /* operands */
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

static bool open_layout(lks__cuda *c, cublasLtMatrixLayout_t *layout, bool bf16, size_t rows,
                        size_t cols, size_t ld)
{
    return LKS__CUDA_PRODUCT(c, cublasLtMatrixLayoutCreate, layout, bf16 ? CUDA_R_16BF : CUDA_R_32F,
                             rows, cols, (int64_t)ld);
}

/* Make it a layout of `count` matrices. */
static bool set_count(lks__cuda *c, cublasLtMatrixLayout_t layout, int32_t count, size_t stride)
{
    const int64_t offset = (int64_t)stride;
    return LKS__CUDA_PRODUCT(c, cublasLtMatrixLayoutSetAttribute, layout,
                             CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count) &&
           LKS__CUDA_PRODUCT(c, cublasLtMatrixLayoutSetAttribute, layout,
                             CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &offset, sizeof offset);
}

static bool set_counts(lks__cuda *c, const struct plan *p, size_t count)
{
    return p->key.count == 0 || (set_count(c, p->a, (int32_t)count, p->key.stride_b) &&
                                 set_count(c, p->b, (int32_t)count, p->key.stride_a) &&
                                 set_count(c, p->c, (int32_t)count, p->key.stride_c));
}

static bool set_transposed(lks__cuda *c, cublasLtMatmulDesc_t what,
                           cublasLtMatmulDescAttributes_t which, char t)
{
    const int32_t op = t == 'T' ? CUBLAS_OP_T : CUBLAS_OP_N;
    return LKS__CUDA_PRODUCT(c, cublasLtMatmulDescSetAttribute, what, which, &op, sizeof op);
}

static bool prefer(lks__cuda *c, cublasLtMatmulPreference_t p,
                   cublasLtMatmulPreferenceAttributes_t which, const void *value, size_t bytes)
{
    return LKS__CUDA_PRODUCT(c, cublasLtMatmulPreferenceSetAttribute, p, which, value, bytes);
}

static bool find_algorithm(lks__cuda *c, struct plan *p)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint32_t *alignment = &p->key.alignment;
    lks__cuda_products *pr = c->products;
    const cublasLtMatmulPreference_t wanted = pr->preferences[p->key.count > 0];
    /* Zeros, because the library leaves parts of it unset, and they are in the fingerprint. */
    cublasLtMatmulHeuristicResult_t found = {0};
    int n = 0;
    for (int i = 0; i < 4; i++)
        if (!prefer(c, wanted, alignments[i], alignment, sizeof *alignment))
            return false;
    if (!LKS__CUDA_PRODUCT(c, cublasLtMatmulAlgoGetHeuristic, pr->handle, p->what, p->a, p->b, p->c,
                           p->c, wanted, 1, &found, &n))
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
           open_layout(c, &p->a, k->bf16, tb ? k->k : k->n, tb ? k->n : k->k, k->ldb) &&
           open_layout(c, &p->b, k->bf16, ta ? k->m : k->k, ta ? k->k : k->m, k->lda) &&
           open_layout(c, &p->c, k->half, k->n, k->m, k->ldc) && set_counts(c, p, ASKED) &&
           find_algorithm(c, p) && set_counts(c, p, k->count);
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

/* Bytes that divide the places of rows: of the one at p, and of those `steps` elements from it on,
 * a set of bits. */
static uint32_t alignment_of(const void *p, size_t steps, bool half)
{
    const uint32_t size = half ? sizeof(uint16_t) : sizeof(float);
    return ((uintptr_t)p | steps * size) % 16 == 0 ? 16 : size;
}

static uint32_t lesser(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Matrices without gaps between rows. */
static void fill_key(struct key *key, char ta, char tb, size_t m, size_t n, size_t k)
{
    memset(key, 0, sizeof *key);
    key->ta = ta;
    key->tb = tb;
    key->m = m;
    key->n = n;
    key->k = k;
    key->lda = ta == 'T' ? m : k;
    key->ldb = tb == 'T' ? k : n;
    key->ldc = n;
}

/* The key is complete except for its alignment. */
static void multiply(lks__cuda *c, struct key *key, float alpha, const void *a, const void *b,
                     float beta, const void *add, void *out)
{
    key->alignment = lesser(lesser(alignment_of(a, key->lda | key->stride_a, key->bf16),
                                   alignment_of(b, key->ldb | key->stride_b, key->bf16)),
                            lesser(alignment_of(add, key->ldc | key->stride_c, key->half),
                                   alignment_of(out, key->ldc | key->stride_c, key->half)));
    const struct plan *p = plan_for(c, key);
    const double count = (double)(key->count > 0 ? key->count : 1), m = (double)key->m,
                 n = (double)key->n, k = (double)key->k;
    const double of_operands = (key->bf16 ? 2 : 4) * (m * k + k * n);
    const double of_result = (key->half ? 2 : 4) * (beta == 0.0f ? 1 : 2) * m * n;
    lks__cuda_count(c->device.ex, count * (of_operands + of_result), 2 * count * m * n * k);
    if (p != NULL)
        LKS__CUDA_PRODUCT(c, cublasLtMatmul, c->products->handle, p->what, &alpha, b, p->a, a, p->b,
                          &beta, add, p->c, out, p->c, &p->algorithm, c->products->work, WORK_BYTES,
                          c->queues[LKS__QUEUE_COMPUTE].stream);
}

/* --- operands in bfloat16 -------------------------------------------------------------------- */

/* The leading dimension of rows that are rounded. */
static size_t padded(size_t width)
{
    return (width + 7) / 8 * 8;
}

/* Operand 0 or 1, of which `count` matrices [rows, width] are stored, rounded; *ld and *stride
 * become those of the result. NULL: the device has failed. */
static const void *rounded(lks__cuda *c, int operand, const float *x, size_t rows, size_t width,
                           size_t *ld, size_t count, size_t *stride)
{
    lks__cuda_rounding r = {.x = x,
                            .rows = rows,
                            .width = width,
                            .ldy = padded(width),
                            .ldx = *ld,
                            .count = count,
                            .stride_x = *stride};
    r.stride_y = rows * r.ldy;
    r.y = lks__cuda_grow(c, &c->products->rounded[operand], count * r.stride_y * sizeof *r.y);
    if (r.y != NULL)
        lks__cuda_round(c->device.ex, &r);
    *ld = r.ldy;
    *stride = r.stride_y;
    return r.y;
}

/* A stored matrix that products can use unchanged, if there is one: activations are stored in
 * bfloat16, and parameters are rounded once for all products until they change. */
static const void *stored(lks__cuda *c, const struct lks__cuda_factor *x)
{
    if (x->kind == LKS__CUDA_ACTS)
        return x->at;
    return x->kind == LKS__CUDA_PARAMS ? lks__cuda_rounded(c, x->at) : NULL;
}

/* Both operands of a product, *x and *y; key->lda … are those of a and b, and become those of the
 * operands. */
static bool find_both(lks__cuda *c, struct key *key, const struct lks__cuda_factor *a,
                      const struct lks__cuda_factor *b, const void **x, const void **y)
{
    const bool ta = key->ta == 'T', tb = key->tb == 'T';
    const size_t rows_a = ta ? key->k : key->m, width_a = ta ? key->m : key->k;
    const size_t rows_b = tb ? key->n : key->k, width_b = tb ? key->k : key->n;
    const size_t count = key->count == 0 ? 1 : key->count;
    const bool same = a->at == b->at && rows_a == rows_b && width_a == width_b &&
                      key->lda == key->ldb && key->stride_a == key->stride_b;
    key->bf16 = true;
    *x = stored(c, a);
    *y = stored(c, b);
    if (*x == NULL)
        *x = rounded(c, 0, a->at, rows_a, width_a, &key->lda, count, &key->stride_a);
    if (*y == NULL && same) {
        *y = *x;
        key->ldb = key->lda;
        key->stride_b = key->stride_a;
    } else if (*y == NULL) {
        *y = rounded(c, 1, b->at, rows_b, width_b, &key->ldb, count, &key->stride_b);
    }
    if (key->count == 0)
        key->stride_a = key->stride_b = 0;
    return *x != NULL && *y != NULL;
}

/* --- products -------------------------------------------------------------------------------- */

void lks__cuda_gemm(const lks__exec *ex, const lks__cuda_product *s)
{
    lks__cuda *c = lks__cuda_of(ex);
    const void *a = s->a.at, *b = s->b.at;
    struct key key;
    if (lks__cuda_failed(c))
        return;
    fill_key(&key, s->ta, s->tb, s->m, s->n, s->k);
    key.lda = s->a.ld;
    key.ldb = s->b.ld;
    key.ldc = s->c.ld;
    key.half = s->c.kind == LKS__CUDA_ACTS && c->bf16;
    if (!c->bf16 || find_both(c, &key, &s->a, &s->b, &a, &b))
        multiply(c, &key, 1.0f, a, b, s->beta, s->c.at, s->c.at);
}

void lks__cuda_gemm_batch(const lks__exec *ex, const lks__cuda_batch *s)
{
    lks__cuda *c = lks__cuda_of(ex);
    const void *a = s->a, *b = s->b;
    struct key key;
    if (lks__cuda_failed(c))
        return;
    fill_key(&key, s->ta, s->tb, s->m, s->n, s->k);
    key.count = s->count;
    key.stride_a = s->stride_a;
    key.stride_b = s->stride_b;
    key.stride_c = s->stride_d;
    const struct lks__cuda_factor x = {a, key.lda, LKS__CUDA_FLOATS},
                                  y = {b, key.ldb, LKS__CUDA_FLOATS};
    if (!c->bf16 || find_both(c, &key, &x, &y, &a, &b))
        multiply(c, &key, s->alpha, a, b, s->beta, s->c, s->d);
}

/* --- open and close -------------------------------------------------------------------------- */

static bool open_preference(lks__cuda *c, bool batch)
{
    /* Parts of a sum are added by one thread, or, unless it is a batch, in work space in their
     * order. */
    const uint32_t reductions =
        batch ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulPreference_t *p = &c->products->preferences[batch];
    static const size_t work = WORK_BYTES;
    return LKS__CUDA_PRODUCT(c, cublasLtMatmulPreferenceCreate, p) &&
           prefer(c, *p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &work, sizeof work) &&
           prefer(c, *p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                  sizeof reductions);
}

bool lks__cuda_products_open(lks__cuda *c)
{
    lks__cuda_products *pr = calloc(1, sizeof *pr);
    c->products = pr;
    if (pr == NULL)
        return lks__cuda_check(c, cudaErrorMemoryAllocation, "the table of products");
    return LKS__CUDA_PRODUCT(c, cublasLtCreate, &pr->handle) && open_preference(c, false) &&
           open_preference(c, true) && LKS__CUDA_CALL(c, cudaMalloc, &pr->work, WORK_BYTES);
}

void lks__cuda_products_close(lks__cuda *c)
{
    lks__cuda_products *pr = c->products;
    if (pr == NULL)
        return;
    void *const spaces[] = {pr->work, pr->rounded[0].at, pr->rounded[1].at};
    for (int i = 0; i < 3; i++)
        if (spaces[i] != NULL)
            LKS__CUDA_CALL(c, cudaFree, spaces[i]);
    for (int i = 0; i < BUCKETS; i++)
        for (struct plan *p = pr->plans[i], *next; p != NULL; p = next) {
            next = p->next;
            close_plan(c, p);
        }
    for (int i = 0; i < 2; i++)
        if (pr->preferences[i] != NULL)
            LKS__CUDA_PRODUCT(c, cublasLtMatmulPreferenceDestroy, pr->preferences[i]);
    if (pr->handle != NULL)
        LKS__CUDA_PRODUCT(c, cublasLtDestroy, pr->handle);
    free(pr);
    c->products = NULL;
}

/* The attributes of an algorithm as "name=value name=value …". */
static bool describe(lks__cuda *c, const cublasLtMatmulAlgo_t *algorithm, lks__device_part *part)
{
    static const struct {
        cublasLtMatmulAlgoConfigAttributes_t which;
        uint32_t bytes;
        const char *name;
    } attributes[] = {{CUBLASLT_ALGO_CONFIG_ID, 4, "id"},
                      {CUBLASLT_ALGO_CONFIG_TILE_ID, 4, " tile"},
                      {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4, " split_k"},
                      {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4, " reduction"},
                      {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4, " swizzling"},
                      {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4, " custom"},
                      {CUBLASLT_ALGO_CONFIG_STAGES_ID, 4, " stages"},
                      {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2, " inner"},
                      {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2, " cluster"}};
    size_t used = 0, written;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        uint32_t value = 0;
        if (!LKS__CUDA_PRODUCT(c, cublasLtMatmulAlgoConfigGetAttribute, algorithm,
                               attributes[i].which, &value, attributes[i].bytes, &written))
            return false;
        used += (size_t)snprintf(part->text + used, sizeof part->text - used, "%s=%" PRIu32,
                                 attributes[i].name, value);
    }
    return true;
}

int lks__cuda_products_parts(lks__cuda *c, lks__device_part *parts)
{
    /* A layer of GPT-2: forward, and both products of backward; an odd shape; and a batch. acts:
     * the result is activations. */
    static const struct {
        char ta, tb;
        bool acts;
        size_t m, n, k, count;
        const char *name;
    } shapes[] = {
        {'N', 'T', true, 12288, 3072, 768, 0, ALGORITHM "[12288, 768] by [768, 3072]"},
        {'N', 'N', true, 12288, 768, 3072, 0, ALGORITHM "[12288, 3072] by [3072, 768]"},
        {'T', 'N', false, 3072, 768, 12288, 0, ALGORITHM "[3072, 12288] by [12288, 768]"},
        {'N', 'T', true, 37, 65, 101, 0, ALGORITHM "[37, 101] by [101, 65]"},
        {'N', 'T', false, 512, 512, 1024, 1, ALGORITHM "products [512, 1024] by [1024, 512]"}};
    enum { SHAPES = sizeof shapes / sizeof shapes[0] };
    for (int i = 0; i < SHAPES; i++) {
        struct key key;
        fill_key(&key, shapes[i].ta, shapes[i].tb, shapes[i].m, shapes[i].n, shapes[i].k);
        key.bf16 = c->bf16;
        key.half = shapes[i].acts && c->bf16;
        key.count = shapes[i].count;
        key.stride_a = key.count * key.m * key.k;
        key.stride_b = key.count * key.n * key.k;
        key.stride_c = key.count * key.m * key.n;
        key.alignment = lesser(
            lesser(alignment_of(NULL, key.lda, key.bf16), alignment_of(NULL, key.ldb, key.bf16)),
            alignment_of(NULL, key.ldc, key.half));
        const struct plan *p = plan_for(c, &key);
        if (p == NULL)
            return 0;
        parts[i].name = shapes[i].name;
        parts[i].value = XXH3_64bits(&p->algorithm, sizeof p->algorithm);
        if (!describe(c, &p->algorithm, &parts[i]))
            return 0;
    }
    return SHAPES;
}
