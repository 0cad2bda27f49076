/* compute/cpu/fingerprint.c - one number for the bits that a kernel table computes.
 *
 * Fixed inputs go through every kernel, and the results' bytes through XXH3-64. The GEMM shapes
 * have more than one block of terms, in the three orders that training uses, and odd sizes. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "compute/cpu/kernels.h"

enum { M = 128, N = 128, K = 384, ROWS = 3, COLS = 387 };

typedef struct work {
    float x[M * K], c[M * N]; /* x is used as both operands */
    _Alignas(64) char gemm[LKS__GEMM_WORK_BYTES];
} work;

/* Values in [-1, 1) from a fixed linear congruence (Knuth's MMIX constants). */
static void fill(float *x, size_t n, uint64_t state)
{
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(int32_t)(state >> 32) * 0x1p-31f;
    }
}

static uint64_t hash_gemms(const lks__kernels *k, work *w, uint64_t h)
{
    k->gemm('N', 'N', M, N, K, 1, w->x, K, w->x, N, 0, w->c, N);
    h = XXH3_64bits_withSeed(w->c, sizeof w->c, h);
    k->gemm('N', 'T', M, N, K, 1, w->x, K, w->x, K, 1, w->c, N);
    h = XXH3_64bits_withSeed(w->c, sizeof w->c, h);
    k->gemm('T', 'N', M, N, K, 0.5f, w->x, M, w->x, N, 1, w->c, N);
    h = XXH3_64bits_withSeed(w->c, sizeof w->c, h);
    k->gemm('N', 'T', 37, 65, 301, 0.7f, w->x, 301, w->x, 301, 0.3f, w->c, 65);
    return XXH3_64bits_withSeed(w->c, 37 * 65 * sizeof(float), h);
}

static uint64_t hash_gemms_bf16(const lks__kernels *k, work *w, uint64_t h)
{
    k->gemm_bf16('N', 'T', M, N, K, 1, w->x, K, w->x, K, 0, w->c, N, w->gemm);
    k->gemm_bf16('T', 'N', M, N, K, 0.5f, w->x, M, w->x, N, 1, w->c, N, w->gemm);
    k->gemm_bf16('N', 'N', M, N, K, 1, w->x, K, w->x, N, 1, w->c, N, w->gemm);
    return XXH3_64bits_withSeed(w->c, sizeof w->c, h);
}

static uint64_t hash_rows(const lks__kernels *k, work *w, uint64_t h)
{
    const float *x = w->x, *gain = w->x + ROWS * COLS, *bias = gain + COLS, *dy = bias + COLS;
    float *y = w->c, *dgain = y + ROWS * COLS, *dbias = dgain + COLS;
    float stats[3 * ROWS] = {0};
    const size_t n = ROWS * COLS, bytes = (size_t)(ROWS + 2) * COLS * sizeof(float);

    fill(y, n + 2 * COLS, 2);
    k->layernorm_fwd(y, stats, stats + ROWS, x, gain, bias, ROWS, COLS);
    h = XXH3_64bits_withSeed(y, bytes, h);
    k->layernorm_bwd(y, dgain, dbias, dy, x, gain, stats, stats + ROWS, ROWS, COLS);
    h = XXH3_64bits_withSeed(y, bytes, h);
    h = XXH3_64bits_withSeed(stats, sizeof stats, h);
    k->gelu_erf_fwd(y, x, n);
    h = XXH3_64bits_withSeed(y, bytes, h);
    k->gelu_erf_bwd(y, dy, x, n);
    h = XXH3_64bits_withSeed(y, bytes, h);
    k->gelu_tanh_fwd(y, x, n);
    h = XXH3_64bits_withSeed(y, bytes, h);
    k->gelu_tanh_bwd(y, dy, x, n);
    h = XXH3_64bits_withSeed(y, bytes, h);

    fill(y, n, 3);
    k->softmax_block(y, COLS, ROWS, COLS, COLS - 2, stats, stats + ROWS, stats + 2 * ROWS);
    h = XXH3_64bits_withSeed(y, bytes, h);
    h = XXH3_64bits_withSeed(stats, sizeof stats, h);
    k->softmax_again(y, COLS, ROWS, COLS, COLS - 2, stats);
    h = XXH3_64bits_withSeed(y, bytes, h);
    double loss = k->xent_row(y, x, COLS, 17, 0.25f);
    h = XXH3_64bits_withSeed(&loss, sizeof loss, h);
    h = XXH3_64bits_withSeed(y, bytes, h);
    return h;
}

static uint64_t hash_golf(const lks__kernels *k, work *w, uint64_t h)
{
    enum { HEADS = 3, HS = 124 }; /* they fit in a row of COLS */
    const float *x = w->x, *dy = x + ROWS * COLS, *cosine = dy + ROWS * COLS;
    const float *sine = cosine + HS / 2, *gain = sine + HS / 2;
    float *y = w->c, *dgain = y + ROWS * COLS, rms[ROWS + HEADS] = {0};
    const size_t n = ROWS * COLS, bytes = (size_t)(ROWS + 1) * COLS * sizeof(float);

    fill(y, n + COLS, 5);
    k->rmsnorm_fwd(y, rms, x, ROWS, COLS);
    h = XXH3_64bits_withSeed(y, bytes, h);
    k->rmsnorm_bwd(y, dy, x, rms, ROWS, COLS);
    k->rope_fwd(y, rms + ROWS, x, cosine, sine, gain, HEADS, HS);
    h = XXH3_64bits_withSeed(y, bytes, h);
    k->rope_bwd(y, dgain, dy, x, rms + ROWS, cosine, sine, gain, HEADS, HS);
    h = XXH3_64bits_withSeed(y, bytes, h);
    h = XXH3_64bits_withSeed(rms, sizeof rms, h);
    k->relu2_fwd(y, x, n);
    h = XXH3_64bits_withSeed(y, bytes, h);
    k->relu2_bwd(y, dy, x, n);
    k->mul_add(y, x, dy, n);
    h = XXH3_64bits_withSeed(y, bytes, h);
    k->softcap(y, x, n, 0.7f);
    k->mul(y, y, dy, n);
    h = XXH3_64bits_withSeed(y, bytes, h);
    double loss = k->xent_cap_row(y, x, COLS, 17, 0.25f, 0.7f);
    h = XXH3_64bits_withSeed(&loss, sizeof loss, h);
    return XXH3_64bits_withSeed(y, bytes, h);
}

static uint64_t hash_elements(const lks__kernels *k, work *w, uint64_t h)
{
    const float *x = w->x, *bias = x + ROWS * COLS, *g = bias + COLS;
    float *y = w->c, *m = y + COLS, *v = m + COLS, *p = v + COLS;
    const size_t n = ROWS * COLS, bytes = (size_t)(ROWS + 4) * COLS * sizeof(float);
    const lks__dropout drop = {{{1, 2}}, 3, 4, 5, 1u << 30, 4.0f / 3};
    const lks__adamw adamw = {0.99f, 0.1f, 0.95f, 0.05f, 1e-3f, 2, 1e-8f, 0.75f};

    fill(y, n + 4 * COLS, 4);
    k->dropout(y, x, n, 7, &drop);
    k->add(y, g, n);
    k->scale(y, 1.0f / 3, n);
    k->add_bias(y, COLS, bias, ROWS, COLS);
    h = XXH3_64bits_withSeed(y, bytes, h);
    k->colsum(y, x, COLS, ROWS, COLS);
    double sums[2] = {k->dot(x, g, n), k->sumsq(x, n)};
    h = XXH3_64bits_withSeed(sums, sizeof sums, h);
    double lanes[8] = {0};
    k->sum_scaled(y, y, x, 0.7f, lanes, n);
    h = XXH3_64bits_withSeed(lanes, sizeof lanes, h);
    for (size_t i = 0; i < COLS; i++)
        v[i] *= v[i]; /* for kernels whose input must not be negative */
    k->adamw(p, m, v, g, COLS, &adamw);
    return XXH3_64bits_withSeed(y, bytes, h);
}

uint64_t lks__kernels_fingerprint(const lks__kernels *k, bool bf16)
{
    static work w; /* 1 MiB: too much for a small stack (ulimit -s) */
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

    pthread_mutex_lock(&mutex);
    fill(w.x, M * K, 1);
    uint64_t h = bf16 ? hash_gemms_bf16(k, &w, 0) : hash_gemms(k, &w, 0);
    h = hash_rows(k, &w, h);
    h = hash_golf(k, &w, h);
    h = hash_elements(k, &w, h);
    pthread_mutex_unlock(&mutex);
    return h;
}

/* Each kernel is tried among those in C, whose results are right unless the compiler changes
 * floating-point arithmetic. */
lks_status lks__kernels_verify(const lks__kernels *k)
{
    if (lks__kernels_fingerprint(k, false) == LKS__FINGERPRINT)
        return LKS_OK;
    char names[512] = "";
    lks__kernels plain, one;
    lks__kernels_open_own(LKS__CPU_PLAIN, &plain);
    if (lks__kernels_fingerprint(&plain, false) != LKS__FINGERPRINT)
        return lks__fail(LKS_ERR_SUPPORT, "this build's kernels compute other bits than lockstep "
                                          "defines, even in plain C: the compiler or its options "
                                          "change floating-point arithmetic");
#define X(name, type)                                                                              \
    one = plain;                                                                                   \
    one.name = k->name;                                                                            \
    if (lks__kernels_fingerprint(&one, false) != LKS__FINGERPRINT)                                 \
        snprintf(names + strlen(names), sizeof names - strlen(names), " " #name);
    X(gemm, )
    LKS__ROW_KERNEL_MAP(X)
#undef X
    return lks__fail(LKS_ERR_SUPPORT,
                     "kernels compute other bits here than lockstep defines:%s (level %s, products "
                     "by %s, %s); LOCKSTEP_CPU=plain may work",
                     names, lks__cpu_level_name(k->level), lks__kernels_gemm_library(k),
                     lks__cpu_model());
}
