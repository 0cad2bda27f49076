/* cuda/plans.c - a plan for each shape of matrix products: cuBLASLt's descriptions of the matrices,
 * and an algorithm.
 *
 * cuBLASLt's heuristic may choose another algorithm in another process, and then bits differ. So a
 * run with several ranks, or one that may be resumed, rehearses its products before the first step
 * (compute/device.h): rank 0's choices are written into a table, a line for each shape, and from
 * then on every product takes its algorithm from there.
 *
 * Algorithms that add parts in an order of chance are excluded. Products of one shape that are
 * computed at once have an algorithm that adds no parts at all, the heuristic's for ASKED of them:
 * so the bits of one don't depend on how many there are. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "compute/cuda/device.h"
#include "compute/cuda/plans.h"
#include "compute/cuda/questions.h"

#define NO_MEMORY "no memory on this host for the algorithms of matrix products"

enum { WORK_BYTES = LKS__CUDA_PRODUCT_BYTES, ASKED = 8 };
enum { NAME = 320, ATTRIBUTES = 256, N_ATTRIBUTES = 9 };

_Static_assert(sizeof(lks__cuda_key) == 10 * sizeof(size_t) + 8, "a key has no padding");

struct plan {
    struct plan *next; /* the plan made after it */
    lks__cuda_key key;
    cublasLtMatmulDesc_t what;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    uint32_t attributes[N_ATTRIBUTES]; /* of the algorithm */
    bool free;                         /* the table has no line for it */
};

struct lks__cuda_plans {
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preferences[2]; /* by key.count > 0 */
    void *work;
    struct plan *first, **end; /* in the order of their first use */
    char *table;               /* lines of algorithms to take; NULL: none */
    bool complete, free;       /* a shape that the table lacks is an error, unless `free` */
    char refused[600];         /* why the table can't be used; "": it can */
};

/* --- what an algorithm is -------------------------------------------------------------------- */

/* The name of a shape in the table. Products computed at once share it, whatever their number. */
static void name_of(const lks__cuda_key *k, char out[NAME])
{
    const int n = snprintf(out, NAME, "%c%c m=%zu n=%zu k=%zu ld=%zu,%zu,%zu %s aligned=%" PRIu32,
                           k->ta, k->tb, k->m, k->n, k->k, k->lda, k->ldb, k->ldc,
                           k->half   ? "bfloat16"
                           : k->bf16 ? "bfloat16-float32"
                                     : "float32",
                           k->alignment);
    if (k->bias)
        snprintf(out + n, NAME - (size_t)n, " bias");
    else if (k->count > 0)
        snprintf(out + n, NAME - (size_t)n, " strides=%zu,%zu,%zu", k->stride_a, k->stride_b,
                 k->stride_c);
}

/* Values of the attributes of an algorithm. They are all of it: the rest of cuBLASLt's struct is
 * unset, and differs between processes. */
static const struct {
    cublasLtMatmulAlgoConfigAttributes_t which;
    uint32_t bytes;
    const char *name;
} attributes[N_ATTRIBUTES] = {{CUBLASLT_ALGO_CONFIG_ID, 4, "id"},
                              {CUBLASLT_ALGO_CONFIG_TILE_ID, 4, "tile"},
                              {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4, "split_k"},
                              {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4, "reduction"},
                              {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4, "swizzling"},
                              {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4, "custom"},
                              {CUBLASLT_ALGO_CONFIG_STAGES_ID, 4, "stages"},
                              {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2, "inner"},
                              {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2, "cluster"}};

static bool read_attributes(lks__cuda *c, const cublasLtMatmulAlgo_t *algorithm,
                            uint32_t values[N_ATTRIBUTES])
{
    size_t written;
    bool ok = true;
    for (int i = 0; i < N_ATTRIBUTES && ok; i++) {
        values[i] = 0;
        ok = LKS__CUDA_PRODUCT(c, cublasLtMatmulAlgoConfigGetAttribute, algorithm,
                               attributes[i].which, &values[i], attributes[i].bytes, &written);
    }
    return ok;
}

/* Make the algorithm that has these values. *call: the last call's name. */
static cublasStatus_t make_algorithm(const lks__cuda *c, struct plan *p,
                                     const uint32_t values[N_ATTRIBUTES], size_t *work_bytes,
                                     const char **call)
{
    const cudaDataType in = p->key.bf16 ? CUDA_R_16BF : CUDA_R_32F,
                       out = p->key.half ? CUDA_R_16BF : CUDA_R_32F;
    cublasLtMatmulHeuristicResult_t result = {0};
    memset(&p->algorithm, 0, sizeof p->algorithm);
    memcpy(p->attributes, values, sizeof p->attributes);
    *call = "cublasLtMatmulAlgoInit";
    cublasStatus_t status = cublasLtMatmulAlgoInit(c->plans->handle, CUBLAS_COMPUTE_32F, CUDA_R_32F,
                                                   in, in, out, out, (int)values[0], &p->algorithm);
    for (int i = 1; i < N_ATTRIBUTES && status == CUBLAS_STATUS_SUCCESS; i++) {
        *call = "cublasLtMatmulAlgoConfigSetAttribute";
        status = cublasLtMatmulAlgoConfigSetAttribute(&p->algorithm, attributes[i].which,
                                                      &values[i], attributes[i].bytes);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        *call = "cublasLtMatmulAlgoCheck";
        status = cublasLtMatmulAlgoCheck(c->plans->handle, p->what, p->a, p->b, p->c, p->c,
                                         &p->algorithm, &result);
    }
    *work_bytes = result.workspaceSize;
    return status;
}

/* As "name=value name=value …". */
static void describe(const uint32_t values[N_ATTRIBUTES], char out[ATTRIBUTES])
{
    size_t used = 0;
    for (int i = 0; i < N_ATTRIBUTES; i++)
        used += (size_t)snprintf(out + used, ATTRIBUTES - used, "%s%s=%" PRIu32, i > 0 ? " " : "",
                                 attributes[i].name, values[i]);
}

/* The text after "NAME: " in the table; NULL if it has no such line. */
static const char *find_line(const char *table, const char *name)
{
    const size_t n = strlen(name);
    const char *line = table;
    while (line != NULL && !(strncmp(line, name, n) == 0 && strncmp(line + n, ": ", 2) == 0)) {
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return line != NULL ? line + n + 2 : NULL;
}

/* Read what describe() writes, and the line's end. False: it isn't that. */
static bool read_line(const char *line, uint32_t values[N_ATTRIBUTES])
{
    char again[ATTRIBUTES];
    const char *at = line;
    for (int i = 0; i < N_ATTRIBUTES; i++) {
        at = strchr(at, '=');
        if (at == NULL)
            return false;
        values[i] = (uint32_t)strtoul(++at, NULL, 10);
    }
    describe(values, again);
    const size_t n = strlen(again);
    return strncmp(line, again, n) == 0 && line[n] == '\n';
}

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

static void close_plans(lks__cuda *c)
{
    lks__cuda_plans *all = c->plans;
    for (struct plan *p = all->first, *next; p != NULL; p = next) {
        next = p->next;
        close_plan(c, p);
    }
    all->first = NULL;
    all->end = &all->first;
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

static bool set_bias(lks__cuda *c, const struct plan *p, const uint16_t *bias)
{
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    return p->key.bias == 0 ||
           (LKS__CUDA_PRODUCT(c, cublasLtMatmulDescSetAttribute, p->what,
                              CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) &&
            LKS__CUDA_PRODUCT(c, cublasLtMatmulDescSetAttribute, p->what,
                              CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
}

static bool prefer(lks__cuda *c, cublasLtMatmulPreference_t p,
                   cublasLtMatmulPreferenceAttributes_t which, const void *value, size_t bytes)
{
    return LKS__CUDA_PRODUCT(c, cublasLtMatmulPreferenceSetAttribute, p, which, value, bytes);
}

/* Take the heuristic's first choice. */
static bool find_algorithm(lks__cuda *c, struct plan *p)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint32_t alignment = p->key.alignment;
    const cublasLtMatmulPreference_t wanted = c->plans->preferences[p->key.count > 0];
    cublasLtMatmulHeuristicResult_t found;
    uint32_t values[N_ATTRIBUTES];
    const char *call;
    size_t work_bytes;
    int n = 0;
    for (int i = 0; i < 4; i++)
        if (!prefer(c, wanted, alignments[i], &alignment, sizeof alignment))
            return false;
    if (!LKS__CUDA_PRODUCT(c, cublasLtMatmulAlgoGetHeuristic, c->plans->handle, p->what, p->a, p->b,
                           p->c, p->c, wanted, 1, &found, &n))
        return false;
    if (n != 1)
        return lks__cuda_check_product(c, CUBLAS_STATUS_NOT_SUPPORTED,
                                       "cublasLtMatmulAlgoGetHeuristic");
    if (!lks__cuda_check_product(c, found.state, "cublasLtMatmulAlgoGetHeuristic") ||
        !read_attributes(c, &found.algo, values))
        return false;
    const cublasStatus_t status = make_algorithm(c, p, values, &work_bytes, &call);
    return lks__cuda_check_product(c, status, call);
}

/* The table can't be used. In a rehearsal the caller learns why; later it is a failure. */
static bool refuse(lks__cuda *c, const char *name, const char *why)
{
    snprintf(c->plans->refused, sizeof c->plans->refused,
             "GPU %d (%.100s) can't use its algorithm for the matrix product %s: %s", c->gpu,
             c->about.name, name, why);
    if (!c->rehearses)
        lks__cuda_record(c, "the table of algorithms for matrix products: %s", c->plans->refused);
    return false;
}

/* Take the algorithm of the table's line. */
static bool take_algorithm(lks__cuda *c, struct plan *p, const char *name, const char *line)
{
    uint32_t values[N_ATTRIBUTES];
    size_t work_bytes;
    if (!read_line(line, values))
        return refuse(c, name, "its line in the table is damaged");
    const char *call;
    const cublasStatus_t status = make_algorithm(c, p, values, &work_bytes, &call);
    char why[160];
    snprintf(why, sizeof why, "%s: %s", call, cublasLtGetStatusString(status));
    if (status != CUBLAS_STATUS_SUCCESS)
        return refuse(c, name, why);
    return work_bytes <= WORK_BYTES || refuse(c, name, "it needs too much work space");
}

static bool choose_algorithm(lks__cuda *c, struct plan *p)
{
    char name[NAME];
    name_of(&p->key, name);
    const char *line = find_line(c->plans->table, name);
    if (line != NULL)
        return take_algorithm(c, p, name, line);
    if (c->plans->complete && !c->plans->free)
        return refuse(c, name, "the table has no line for it");
    p->free = c->plans->complete;
    return find_algorithm(c, p);
}

/* cuBLASLt's matrices are stored by columns. A matrix that is stored by rows is, to it, transposed:
 * so its first factor is our second one, and it computes the transposed result. */
static bool fill_plan(lks__cuda *c, struct plan *p)
{
    const lks__cuda_key *k = &p->key;
    const bool ta = k->ta == 'T', tb = k->tb == 'T';
    return LKS__CUDA_PRODUCT(c, cublasLtMatmulDescCreate, &p->what, CUBLAS_COMPUTE_32F,
                             CUDA_R_32F) &&
           set_transposed(c, p->what, CUBLASLT_MATMUL_DESC_TRANSA, k->tb) &&
           set_transposed(c, p->what, CUBLASLT_MATMUL_DESC_TRANSB, k->ta) &&
           open_layout(c, &p->a, k->bf16, tb ? k->k : k->n, tb ? k->n : k->k, k->ldb) &&
           open_layout(c, &p->b, k->bf16, ta ? k->m : k->k, ta ? k->k : k->m, k->lda) &&
           open_layout(c, &p->c, k->half, k->n, k->m, k->ldc) && set_bias(c, p, NULL) &&
           set_counts(c, p, ASKED) && choose_algorithm(c, p) && set_counts(c, p, k->count);
}

/* Found again by its shape. NULL: the device has failed, or the table is refused. */
static const struct plan *plan_for(lks__cuda *c, const lks__cuda_key *key)
{
    lks__cuda_plans *all = c->plans;
    for (struct plan *p = all->first; p != NULL; p = p->next)
        if (memcmp(&p->key, key, sizeof *key) == 0 && (!p->free || all->free))
            return p;
    if (all->refused[0] != '\0')
        return NULL;
    struct plan *p = calloc(1, sizeof *p);
    if (p == NULL) {
        lks__cuda_record(c, NO_MEMORY);
        return NULL;
    }
    p->key = *key;
    if (!fill_plan(c, p)) {
        close_plan(c, p);
        return NULL;
    }
    *all->end = p;
    all->end = &p->next;
    return p;
}

/* --- the table ------------------------------------------------------------------------------- */

/* Write the table of all plans into *text_p, to be freed: the GPU's kind, then the shapes in the
 * order of their first use. *hash: of the attributes of all shapes; *n_p: their number. */
static bool write_table(lks__cuda *c, char **text_p, uint64_t *hash, int *n_p)
{
    size_t bytes = sizeof c->kind + 2, used;
    for (const struct plan *p = c->plans->first; p != NULL; p = p->next)
        bytes += NAME + ATTRIBUTES + 4;
    char *text = *text_p = calloc(1, bytes), name[NAME], algorithm[ATTRIBUTES];
    if (text == NULL) {
        lks__cuda_record(c, NO_MEMORY);
        return false;
    }
    used = (size_t)sprintf(text, "%s\n", c->kind);
    *n_p = 0;
    for (const struct plan *p = c->plans->first; p != NULL; p = p->next) {
        name_of(&p->key, name);
        if (find_line(text, name) != NULL) /* another number of products at once */
            continue;
        describe(p->attributes, algorithm);
        const size_t from = used;
        used += (size_t)sprintf(text + used, "%s: %s\n", name, algorithm);
        *hash = XXH3_64bits_withSeed(text + from, used - from, *hash);
        ++*n_p;
    }
    return true;
}

static void drop_table(lks__cuda_plans *all)
{
    free(all->table);
    all->table = NULL;
    all->complete = false;
    all->refused[0] = '\0';
}

void lks__cuda_rehearse(lks__device *device, const char *table, bool complete)
{
    lks__cuda *c = (lks__cuda *)device;
    lks__cuda_plans *all = c->plans;
    const size_t n = strlen(c->kind);
    close_plans(c);
    drop_table(all);
    c->rehearses = true;
    device->parts[1].name = NULL;
    if (table == NULL)
        return;
    const size_t line = strcspn(table, "\n");
    all->complete = complete;
    all->table = strdup(table);
    if (all->table == NULL)
        lks__cuda_record(c, NO_MEMORY);
    else if (strncmp(table, c->kind, n) != 0 || table[n] != '\n')
        snprintf(all->refused, sizeof all->refused, "it is of %.*s, and GPU %d is %s",
                 line < sizeof c->kind ? (int)line : (int)sizeof c->kind, table, c->gpu, c->kind);
}

lks_status lks__cuda_perform(lks__device *device)
{
    lks__cuda *c = (lks__cuda *)device;
    lks__cuda_plans *all = c->plans;
    char *text = NULL;
    uint64_t hash = 0;
    int n = 0;
    c->rehearses = false;
    if (lks__cuda_failed(c) || all->refused[0] != '\0' || !write_table(c, &text, &hash, &n)) {
        const lks_status st =
            lks__cuda_failed(c)
                ? lks__cuda_failure(c)
                : c->fail(LKS_ERR_SUPPORT, "the table of algorithms for matrix products: %s",
                          all->refused);
        free(text);
        close_plans(c);
        drop_table(all);
        return lks__cuda_failed(c) || lks__cuda_find_fingerprint(c) ? st : lks__cuda_failure(c);
    }
    drop_table(all);
    all->table = text;
    all->complete = true;
    lks__device_part *part = &device->parts[1];
    *part = (lks__device_part){.name = "cuBLASLt's algorithms", .value = hash};
    snprintf(part->text, sizeof part->text, "for %d shapes of products", n);
    return lks__cuda_find_fingerprint(c) ? LKS_OK : lks__cuda_failure(c);
}

const char *lks__cuda_algorithms(lks__device *device)
{
    const lks__cuda_plans *all = ((lks__cuda *)device)->plans;
    return all->complete ? all->table : NULL;
}

void lks__cuda_choose_freely(lks__device *device, bool on)
{
    ((lks__cuda *)device)->plans->free = on;
}

/* --- products -------------------------------------------------------------------------------- */

/* Bytes that divide the addresses of rows: of the one at p, and of those `steps` elements from it
 * on, a set of bits. */
static uint32_t alignment_of(const void *p, size_t steps, bool half)
{
    const uint32_t size = half ? sizeof(uint16_t) : sizeof(float);
    return ((uintptr_t)p | steps * size) % 16 == 0 ? 16 : size;
}

static uint32_t lesser(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

void lks__cuda_multiply(const lks__exec *ex, lks__cuda_key *key, const lks__cuda_factors *of)
{
    lks__cuda *c = lks__cuda_of(ex);
    if (lks__cuda_failed(c))
        return;
    key->alignment =
        (uint16_t)lesser(lesser(alignment_of(of->a, key->lda | key->stride_a, key->bf16),
                                alignment_of(of->b, key->ldb | key->stride_b, key->bf16)),
                         lesser(alignment_of(of->add, key->ldc | key->stride_c, key->half),
                                alignment_of(of->out, key->ldc | key->stride_c, key->half)));
    const struct plan *p = plan_for(c, key);
    const double count = (double)(key->count > 0 ? key->count : 1), m = (double)key->m,
                 n = (double)key->n, k = (double)key->k;
    const double of_operands = (key->bf16 ? 2 : 4) * (m * k + k * n);
    const double of_result = (key->half ? 2 : 4) * (of->beta == 0.0f ? 1 : 2) * m * n;
    lks__cuda_count(ex, count * (of_operands + of_result), 2 * count * m * n * k);
    if (p != NULL && !c->rehearses && set_bias(c, p, of->bias))
        LKS__CUDA_PRODUCT(c, cublasLtMatmul, c->plans->handle, p->what, &of->alpha, of->b, p->a,
                          of->a, p->b, &of->beta, of->add, p->c, of->out, p->c, &p->algorithm,
                          c->plans->work, WORK_BYTES, c->queues[LKS__QUEUE_COMPUTE].stream);
}

/* --- open and close -------------------------------------------------------------------------- */

static bool open_preference(lks__cuda *c, bool batch)
{
    /* Parts of a sum are added by one thread, or, unless it is a batch, in work space in their
     * order. */
    const uint32_t reductions =
        batch ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulPreference_t *p = &c->plans->preferences[batch];
    static const size_t work = WORK_BYTES;
    return LKS__CUDA_PRODUCT(c, cublasLtMatmulPreferenceCreate, p) &&
           prefer(c, *p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &work, sizeof work) &&
           prefer(c, *p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                  sizeof reductions);
}

bool lks__cuda_plans_open(lks__cuda *c)
{
    lks__cuda_plans *all = calloc(1, sizeof *all);
    c->plans = all;
    if (all == NULL) {
        lks__cuda_record(c, NO_MEMORY);
        return false;
    }
    all->end = &all->first;
    return LKS__CUDA_PRODUCT(c, cublasLtCreate, &all->handle) && open_preference(c, false) &&
           open_preference(c, true) && LKS__CUDA_CALL(c, cudaMalloc, &all->work, WORK_BYTES);
}

void lks__cuda_plans_close(lks__cuda *c)
{
    lks__cuda_plans *all = c->plans;
    if (all == NULL)
        return;
    if (all->work != NULL)
        LKS__CUDA_CALL(c, cudaFree, all->work);
    close_plans(c);
    drop_table(all);
    for (int i = 0; i < 2; i++)
        if (all->preferences[i] != NULL)
            LKS__CUDA_PRODUCT(c, cublasLtMatmulPreferenceDestroy, all->preferences[i]);
    if (all->handle != NULL)
        LKS__CUDA_PRODUCT(c, cublasLtDestroy, all->handle);
    free(all);
    c->plans = NULL;
}
