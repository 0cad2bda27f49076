#include "compute/cpu/products/kinds.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Without padding, so that its bytes can be compared. */
struct kind {
    uint64_t m, n, k, lda, ldb, ldc;
    float alpha, beta;
    uint64_t ta, tb;
};

enum { UNKNOWN, LIBRARY, OWN };
struct slot {
    struct kind kind; /* set before `by` */
    atomic_int by;
};

/* A run has some hundred kinds. Those beyond MOST are computed by our own product. */
enum { SLOTS = 2048, MOST = SLOTS / 2 };

static struct {
    pthread_mutex_t mutex; /* guards all writes */
    struct slot slots[SLOTS];
    lks__gemm_kinds counts;
    lks__gemm_fn *library, *own;
} kinds = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void lks__kinds_open(lks__gemm_fn *library, lks__gemm_fn *own)
{
    pthread_mutex_lock(&kinds.mutex);
    if (kinds.library != library || kinds.own != own) {
        memset(kinds.slots, 0, sizeof kinds.slots);
        kinds.counts = (lks__gemm_kinds){0};
    }
    kinds.library = library;
    kinds.own = own;
    pthread_mutex_unlock(&kinds.mutex);
}

lks__gemm_kinds lks__kernels_gemm_kinds(void)
{
    pthread_mutex_lock(&kinds.mutex);
    const lks__gemm_kinds counts = kinds.counts;
    pthread_mutex_unlock(&kinds.mutex);
    return counts;
}

/* --- the comparison --------------------------------------------------------------------------- */

/* Operands of one comparison: their distances from a multiple of 64 bytes, in floats, and the role
 * of the first row of A. */
static const struct turn {
    size_t a, b, c, role;
} turns[] = {{0, 0, 0, 0}, {4, 8, 12, 3}, {1, 3, 2, 1}, {2, 1, 5, 7}};
enum { TURNS = sizeof turns / sizeof turns[0], MOST_SHIFTED = 16 };
enum { ROLES = 16, ZERO = 3, SUBNORMAL = 7 }; /* other rows have values of usual sizes */

/* Element (i, p) is x[i * row + p * step], for i < n and p < k. */
struct view {
    float *x;
    size_t row, step, n, k;
};

/* A value between 1/16 and 16, of either sign. */
static float next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    const uint32_t drawn = (uint32_t)(*state >> 32);
    const uint32_t bits = (drawn & 0x807fffff) | (123 + (drawn >> 23 & 7)) << 23;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The terms of a sum: those of the second half nearly cancel those of the first. So the result is
 * small compared with the roundings on the way, and another order gives other bits for nearly every
 * element. */
static void draw(struct view v, bool left, uint64_t state)
{
    const size_t half = v.k / 2;
    for (size_t i = 0; i < v.n; i++)
        for (size_t p = 0; p < v.k; p++) {
            float *x = v.x + i * v.row + p * v.step, drawn = next(&state);
            if (p < half)
                *x = drawn;
            else if (p == 2 * half)
                *x = drawn * 0x1p-10f;
            else if (left)
                *x = -x[-(ptrdiff_t)(half * v.step)];
            else
                *x = x[-(ptrdiff_t)(half * v.step)] * (1.0f + drawn * 0x1p-12f);
        }
}

static void scale_rows(struct view v, size_t first_role)
{
    for (size_t i = 0; i < v.n; i++) {
        const size_t role = (i + first_role) % ROLES;
        for (size_t p = 0; p < v.k && (role == ZERO || role == SUBNORMAL); p++)
            v.x[i * v.row + p * v.step] *= role == ZERO ? 0.0f : 0x1p-130f;
    }
}

/* C before the product: NaN if it must not be read, otherwise nearly the negative of the terms that
 * are added to it. */
static void draw_c(const struct kind *kind, float *c, uint64_t state)
{
    for (size_t i = 0; i < kind->m; i++)
        for (size_t j = 0; j < kind->n; j++) {
            float *x = c + i * kind->ldc + j;
            const float drawn = next(&state), scaled = drawn * 0x1p-12f;
            if (kind->beta == 0.0f)
                *x = NAN;
            else
                *x = *x == 0.0f ? drawn : -(*x + *x * scaled) / kind->beta;
        }
}

static void multiply(const struct kind *kind, lks__gemm_fn *gemm, const float *a, const float *b,
                     float beta, float *c)
{
    gemm((char)kind->ta, (char)kind->tb, kind->m, kind->n, kind->k, kind->alpha, a, kind->lda, b,
         kind->ldb, beta, c, kind->ldc);
}

/* Memory of the operands, and of both results. */
struct work {
    float *a, *b, *own, *library;
};

/* True if the library has our bits. */
static bool agree_in(const struct kind *kind, const struct work *w, const struct turn *turn)
{
    const bool ta = kind->ta == 'T', tb = kind->tb == 'T';
    const struct view a = {w->a + turn->a, ta ? 1 : kind->lda, ta ? kind->lda : 1, kind->m,
                           kind->k};
    const struct view b = {w->b + turn->b, tb ? kind->ldb : 1, tb ? 1 : kind->ldb, kind->n,
                           kind->k};
    float *own = w->own, *library = w->library + turn->c;
    draw(a, true, 1 + turn->role);
    draw(b, false, 101 + turn->role);
    scale_rows(a, turn->role);
    if (kind->beta != 0.0f)
        multiply(kind, kinds.own, a.x, b.x, 0.0f, own);
    draw_c(kind, own, 201 + turn->role);
    for (size_t i = 0; i < kind->m; i++)
        memcpy(library + i * kind->ldc, own + i * kind->ldc, kind->n * sizeof *own);
    multiply(kind, kinds.own, a.x, b.x, kind->beta, own);
    multiply(kind, kinds.library, a.x, b.x, kind->beta, library);
    bool same = true;
    for (size_t i = 0; i < kind->m && same; i++)
        same = memcmp(library + i * kind->ldc, own + i * kind->ldc, kind->n * sizeof *own) == 0;
    return same;
}

static float *allocate(size_t rows, size_t ld)
{
    return aligned_alloc(64, ((rows * ld + MOST_SHIFTED) * sizeof(float) + 63) / 64 * 64);
}

static bool agree(const struct kind *kind)
{
    const struct work w = {.a = allocate(kind->ta == 'T' ? kind->k : kind->m, kind->lda),
                           .b = allocate(kind->tb == 'T' ? kind->n : kind->k, kind->ldb),
                           .own = allocate(kind->m, kind->ldc),
                           .library = allocate(kind->m, kind->ldc)};
    bool same = w.a != NULL && w.b != NULL && w.own != NULL && w.library != NULL;
    for (size_t t = 0; t < TURNS && same; t++)
        same = agree_in(kind, &w, &turns[t]);
    free(w.a);
    free(w.b);
    free(w.own);
    free(w.library);
    return same;
}

/* --- the table -------------------------------------------------------------------------------- */

/* The slot of a kind, or the empty one that it would have. */
static struct slot *find(const struct kind *kind)
{
    struct slot *slot = &kinds.slots[XXH3_64bits(kind, sizeof *kind) % SLOTS];
    while (atomic_load_explicit(&slot->by, memory_order_acquire) != UNKNOWN &&
           memcmp(&slot->kind, kind, sizeof *kind) != 0)
        slot = slot + 1 == kinds.slots + SLOTS ? kinds.slots : slot + 1;
    return slot;
}

/* Another thread may have added the kind in the meantime. */
static int add(const struct kind *kind)
{
    pthread_mutex_lock(&kinds.mutex);
    struct slot *slot = find(kind);
    int by = atomic_load_explicit(&slot->by, memory_order_relaxed);
    if (by == UNKNOWN && kinds.counts.library + kinds.counts.own < MOST) {
        by = agree(kind) ? LIBRARY : OWN;
        *(by == LIBRARY ? &kinds.counts.library : &kinds.counts.own) += 1;
        slot->kind = *kind;
        atomic_store_explicit(&slot->by, by, memory_order_release);
    }
    pthread_mutex_unlock(&kinds.mutex);
    return by;
}

static lks__gemm_fn *gemm_of(const struct kind *kind)
{
    int by = atomic_load_explicit(&find(kind)->by, memory_order_acquire);
    if (by == UNKNOWN)
        by = add(kind);
    return by == LIBRARY ? kinds.library : kinds.own;
}

void lks__kinds_gemm(char ta, char tb, size_t m, size_t n, size_t k, float alpha, const float *a,
                     size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc)
{
    if (m == 0 || n == 0 || k == 0) {
        kinds.own(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
        return;
    }
    for (size_t p = 0; p < k; p += LKS__GEMM_DEPTH) {
        const struct kind kind = {.m = m,
                                  .n = n,
                                  .k = k - p < LKS__GEMM_DEPTH ? k - p : LKS__GEMM_DEPTH,
                                  .lda = lda,
                                  .ldb = ldb,
                                  .ldc = ldc,
                                  .alpha = alpha,
                                  .beta = p == 0 ? beta : 1.0f,
                                  .ta = (uint64_t)ta,
                                  .tb = (uint64_t)tb};
        gemm_of (&kind)(ta, tb, m, n, kind.k, alpha, ta == 'T' ? a + p * lda : a + p, lda,
                        tb == 'T' ? b + p : b + p * ldb, ldb, kind.beta, c, ldc);
    }
}
