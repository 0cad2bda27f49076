/* compute/cpu/kernels.h - the table of single-thread kernels, float32.
 *
 * The scalar reference (tests/kernels/reference/ref_*.c) defines each operation; all levels agree
 * with it within the tolerance in the tests, and their row kernels with each other bit for bit. A
 * kernel's result depends only on its arguments: no threads, no global state. Rows are contiguous;
 * `n` counts elements. Pointers need only float alignment. In-place use is allowed only if the
 * comment of an operation says so. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/number/cpu.h"
#include "base/status.h"
#include "compute/dropout.h"

/* The tests compile the reference twice: in float, and in double for finite differences. */
#ifndef LKS_REAL
#define LKS_REAL float
#endif
typedef LKS_REAL lks__real;

/* C[m,n] = alpha * op(A) op(B) + beta * C, row-major; op is the transpose if ta/tb is 'T'. The same
 * bits at every level: tests/kernels/reference/ref_gemm.c defines the order of the sums, in blocks
 * of LKS__GEMM_DEPTH terms. */
enum { LKS__GEMM_DEPTH = 256 };
typedef void lks__gemm_fn(char ta, char tb, size_t m, size_t n, size_t k, lks__real alpha,
                          const lks__real *a, size_t lda, const lks__real *b, size_t ldb,
                          lks__real beta, lks__real *c, size_t ldc);

/* The same with A and B rounded to bfloat16 as by round_bf16; products and sums are float32. work:
 * LKS__GEMM_WORK_BYTES for this call only, 64-byte aligned. */
typedef void lks__gemm_bf16_fn(char ta, char tb, size_t m, size_t n, size_t k, lks__real alpha,
                               const lks__real *a, size_t lda, const lks__real *b, size_t ldb,
                               lks__real beta, lks__real *c, size_t ldc, void *work);
enum { LKS__GEMM_WORK_BYTES = 640 << 10 };

/* The sizes into which layers cut work for a product, measured to be fast. They are the same at all
 * levels whose products are: blocks of attention's scores decide which sums are made, and so bits.
 */
typedef struct lks__tiles {
    size_t rows, cols;           /* a tile of a product, at most */
    size_t tall_rows, tall_from; /* products of tall_from rows and more: rows of a tile */
    bool square;                 /* tiles are halved along their longer side if they are few */
    bool slow_columns;           /* copy operands that are read down their columns (matmul.c) */
    size_t panel;                /* rows of a symmetric product */
    size_t queries, far_queries; /* rows of a block of attention's scores; the same in sequences of
                                    more than 256 tokens. At most LKS__MAX_QUERIES. */
} lks__tiles;
enum { LKS__MAX_QUERIES = 128 };
enum { LKS__TILE_ROWS = 128 };           /* rows and tall_rows of lks__gemm_tiles */
extern const lks__tiles lks__gemm_tiles; /* of float32's products */

/* LayerNorm over rows of n: y = (x - mean) * rstd * gain + bias, variance biased, eps 1e-5 as in
 * torch.nn.functional.layer_norm. bias may be NULL. mean, rstd: [rows] out, may be NULL. */
typedef void lks__layernorm_fwd_fn(lks__real *y, lks__real *mean, lks__real *rstd,
                                   const lks__real *x, const lks__real *gain, const lks__real *bias,
                                   size_t rows, size_t n);
/* dx[rows,n] += gradient; dgain[n] += , dbias[n] += (NULL: none). dx and dy must not overlap. */
typedef void lks__layernorm_bwd_fn(lks__real *dx, lks__real *dgain, lks__real *dbias,
                                   const lks__real *dy, const lks__real *x, const lks__real *gain,
                                   const lks__real *mean, const lks__real *rstd, size_t rows,
                                   size_t n);

/* Activation functions: GELU, exact x*Phi(x) (erf form: nn.GELU()) or in the tanh form of GPT-2,
 * and the squared ReLU, max(x, 0)^2. y may be x. bwd: dx = dy * slope(x); dx may be dy. */
typedef void lks__activate_fwd_fn(lks__real *y, const lks__real *x, size_t n);
typedef void lks__activate_bwd_fn(lks__real *dx, const lks__real *dy, const lks__real *x, size_t n);

/* RMSNorm without weight over rows of n: y = x * rms, rms = 1 / sqrt(mean(x^2) + eps), eps
 * float32's machine epsilon as in torch.nn.functional.rms_norm. rms: [rows] out, may be NULL. */
typedef void lks__rmsnorm_fwd_fn(lks__real *y, lks__real *rms, const lks__real *x, size_t rows,
                                 size_t n);
/* dx[rows,n] += gradient; rms: forward's. dx and dy must not overlap. */
typedef void lks__rmsnorm_bwd_fn(lks__real *dx, const lks__real *dy, const lks__real *x,
                                 const lks__real *rms, size_t rows, size_t n);

/* One token's query or key heads, each of hs elements (even), side by side: RMSNorm, rotary
 * position, gain (formulas in ref_rmsnorm.c). cosine, sine: [hs / 2], for the token's position;
 * gain: [heads] or NULL for 1; rms: [heads] out, for backward. y must not overlap x. */
typedef void lks__rope_fwd_fn(lks__real *y, lks__real *rms, const lks__real *x,
                              const lks__real *cosine, const lks__real *sine, const lks__real *gain,
                              size_t heads, size_t hs);
/* dx = gradient, dgain[heads] += (NULL: none). dx may be dy. */
typedef void lks__rope_bwd_fn(lks__real *dx, lks__real *dgain, const lks__real *dy,
                              const lks__real *x, const lks__real *rms, const lks__real *cosine,
                              const lks__real *sine, const lks__real *gain, size_t heads,
                              size_t hs);

/* One block of causal attention's online softmax, rows i of S[rows, cols] (leading dimension lds,
 * already scaled). Columns > row + diag are masked (diag = first row's position - first column's
 * position; pass cols for no mask). max[rows], sum[rows] are the running maximum and sum:
 *   m' = max(m, max_j S_ij); S_ij <- exp(S_ij - m'), 0 where masked;
 *   sum <- sum * exp(m - m') + sum_j S_ij; factor[i] = exp(m - m'). */
typedef void lks__softmax_block_fn(lks__real *s, size_t lds, size_t rows, size_t cols,
                                   ptrdiff_t diag, lks__real *max, lks__real *sum,
                                   lks__real *factor);
/* Backward's recomputation: S_ij <- exp(S_ij - lse[i]), 0 where masked. */
typedef void lks__softmax_again_fn(lks__real *s, size_t lds, size_t rows, size_t cols,
                                   ptrdiff_t diag, const lks__real *lse);

/* One row of cross-entropy over n logits: returns -log softmax(x)[target]. With dx != NULL:
 * dx = (softmax(x) - onehot(target)) * scale; dx may be x. Sums in double for the loss. */
typedef double lks__xent_row_fn(lks__real *dx, const lks__real *x, size_t n, size_t target,
                                lks__real scale);

/* Capped logits: y = cap * tanh(x / cap); y may be x. */
typedef void lks__softcap_fn(lks__real *y, const lks__real *x, size_t n, lks__real cap);
/* xent_row of x's capped logits, with the gradient of x itself. */
typedef double lks__xent_cap_row_fn(lks__real *dx, const lks__real *x, size_t n, size_t target,
                                    lks__real scale, lks__real cap);

/* y = x with elements [first, first + n) of the mask applied; y may be x. */
typedef void lks__dropout_fn(lks__real *y, const lks__real *x, size_t n, uint64_t first,
                             const lks__dropout *d);

typedef void lks__add_fn(lks__real *y, const lks__real *x, size_t n); /* y += x */
typedef void lks__mul_fn(lks__real *y, const lks__real *a, const lks__real *b,
                         size_t n); /* y = a * b; y may be a or b */
typedef void lks__mul_add_fn(lks__real *y, const lks__real *a, const lks__real *b,
                             size_t n); /* y += a * b, with the product rounded */
typedef void lks__scale_fn(lks__real *y, lks__real a, size_t n); /* y *= a */
/* y[rows, n] (ld) += bias[n] on each row */
typedef void lks__add_bias_fn(lks__real *y, size_t ld, const lks__real *bias, size_t rows,
                              size_t n);
/* out[n] += sum over rows of x[rows, n] (ld), rows in order */
typedef void lks__colsum_fn(lks__real *out, const lks__real *x, size_t ld, size_t rows, size_t n);
/* y = x rounded to the nearest bfloat16 value, ties to even; NaN stays NaN; y may be x. The same
 * bits at every level. */
typedef void lks__round_bf16_fn(lks__real *y, const lks__real *x, size_t n);
/* y[rows, out] (ldy) = x[rows, in] (ldx) w[out, in]^T (ldw). The bits of an element depend only on
 * its row of x, its row of w and `in`. bf16: operands rounded as by round_bf16. */
typedef void lks__dot_rows_fn(lks__real *y, size_t ldy, const lks__real *x, size_t ldx,
                              const lks__real *w, size_t ldw, size_t rows, size_t out, size_t in,
                              bool bf16);
/* y[n] = the sum of a[i] times row i of x[rows, n] (ldx), rows in order */
typedef void lks__weighted_sum_fn(lks__real *y, const lks__real *a, const lks__real *x, size_t ldx,
                                  size_t rows, size_t n);
typedef lks__real lks__dot_fn(const lks__real *a, const lks__real *b, size_t n);

/* Sum of squares in double with 8 lanes: lane j adds elements i with i % 8 == j in order, each
 * square exactly; the sum of the lanes is ((0+4)+(2+6))+((1+5)+(3+7)). The same bits at every
 * level. */
typedef double lks__sumsq_fn(const lks__real *x, size_t n);

/* The last step of a sum over ranks: y = (a + b) * scale, or a * scale if b is NULL; y may be a or
 * b. With lanes != NULL, lane j also adds the squares of elements i of y with i % 8 == j, as in
 * sumsq: so a range may be cut at multiples of 8. The same bits at every level. */
typedef void lks__sum_scaled_fn(lks__real *y, const lks__real *a, const lks__real *b,
                                lks__real scale, double lanes[8], size_t n);

/* The result of sumsq from its lanes. */
static inline double lks__sumsq_of_lanes(const double lane[8])
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* AdamW on n elements, torch.optim.AdamW's formula (single-tensor, not amsgrad), gradients first
 * multiplied by `clip`, and moments below 2^-126 set to 0:
 *   p *= 1 - lr*wd; m += (g-m)*(1-b1); v = b2*v + (1-b2)*g*g;
 *   p -= (lr/(1-b1^t)) * m / (sqrt(v)/sqrt(1-b2^t) + eps) */
typedef struct lks__adamw {
    lks__real decay; /* 1 - lr*wd */
    lks__real one_m_b1, b2, one_m_b2;
    lks__real step_size;    /* lr / (1 - b1^t) */
    lks__real inv_sqrt_bc2; /* 1 / sqrt(1 - b2^t) */
    lks__real eps, clip;
} lks__adamw;
typedef void lks__adamw_fn(lks__real *p, lks__real *m, lks__real *v, const lks__real *g, size_t n,
                           const lks__adamw *a);

/* Some 100 microseconds of multiply-adds, as fast as this core can. Each adds 1 to a sum. Returns
 * the sums: the floating-point operations done, two per multiply-add. */
typedef double lks__peak_fn(void);
/* peak_bf16: an upper limit for the speed of gemm_bf16. */

/* Row kernels that the fingerprint must cover (name, type): those of training steps. round_bf16 is
 * not among them, because only one result of it is right. */
#define LKS__TRAINING_KERNEL_MAP(X)                                                                \
    X(layernorm_fwd, lks__layernorm_fwd_fn)                                                        \
    X(layernorm_bwd, lks__layernorm_bwd_fn)                                                        \
    X(gelu_erf_fwd, lks__activate_fwd_fn)                                                          \
    X(gelu_erf_bwd, lks__activate_bwd_fn)                                                          \
    X(gelu_tanh_fwd, lks__activate_fwd_fn)                                                         \
    X(gelu_tanh_bwd, lks__activate_bwd_fn)                                                         \
    X(rmsnorm_fwd, lks__rmsnorm_fwd_fn)                                                            \
    X(rmsnorm_bwd, lks__rmsnorm_bwd_fn)                                                            \
    X(rope_fwd, lks__rope_fwd_fn)                                                                  \
    X(rope_bwd, lks__rope_bwd_fn)                                                                  \
    X(relu2_fwd, lks__activate_fwd_fn)                                                             \
    X(relu2_bwd, lks__activate_bwd_fn)                                                             \
    X(softmax_block, lks__softmax_block_fn)                                                        \
    X(softmax_again, lks__softmax_again_fn)                                                        \
    X(xent_row, lks__xent_row_fn)                                                                  \
    X(softcap, lks__softcap_fn)                                                                    \
    X(xent_cap_row, lks__xent_cap_row_fn)                                                          \
    X(dropout, lks__dropout_fn)                                                                    \
    X(add, lks__add_fn)                                                                            \
    X(mul, lks__mul_fn)                                                                            \
    X(mul_add, lks__mul_add_fn)                                                                    \
    X(scale, lks__scale_fn)                                                                        \
    X(add_bias, lks__add_bias_fn)                                                                  \
    X(colsum, lks__colsum_fn)                                                                      \
    X(dot, lks__dot_fn)                                                                            \
    X(sumsq, lks__sumsq_fn)                                                                        \
    X(sum_scaled, lks__sum_scaled_fn)                                                              \
    X(adamw, lks__adamw_fn)

/* All that handle rows. */
#define LKS__ROW_KERNEL_MAP(X)                                                                     \
    LKS__TRAINING_KERNEL_MAP(X)                                                                    \
    X(round_bf16, lks__round_bf16_fn)                                                              \
    X(dot_rows, lks__dot_rows_fn)                                                                  \
    X(weighted_sum, lks__weighted_sum_fn)

#define LKS__KERNEL_MAP(X)                                                                         \
    X(gemm, lks__gemm_fn)                                                                          \
    X(gemm_bf16, lks__gemm_bf16_fn)                                                                \
    X(peak, lks__peak_fn)                                                                          \
    X(peak_bf16, lks__peak_fn)                                                                     \
    LKS__ROW_KERNEL_MAP(X)

typedef struct lks__kernels {
#define X(name, type) type *name;
    LKS__KERNEL_MAP(X)
#undef X
    lks__cpu_level level;
    const lks__tiles *gemm_bf16_tiles;
} lks__kernels;

#define X(name, type) type lks__##name##_plain;
LKS__KERNEL_MAP(X)
#undef X

/* Fill the table for `level`. AVX2 and levels above it load the GEMM library (oneDNN), capped at
 * that level's instructions, for the kinds of products that it computes with our bits
 * (products/kinds.h). ERR_SUPPORT if it is installed but can't be used. Call it once per process.
 */
lks_status lks__kernels_open(lks__cpu_level level, lks__kernels *k);
/* The same with our own products even if the library is installed. */
void lks__kernels_open_own(lks__cpu_level level, lks__kernels *k);
bool lks__kernels_have_library(void); /* true if it is installed */
/* The packages that contain it, for messages. */
#define LKS__ONEDNN_PACKAGES "Debian 12: libdnnl2, Debian 13: libdnnl3.6"
/* Turns off the GEMM library's own threads. Call it once in each thread that calls kernels. */
void lks__kernels_thread_init(void);

/* XXH3-64 over fixed GEMM and row-kernel results, with the products of float32 or bfloat16: equal
 * on machines that compute equal bits. That of float32 is the same for all levels and machines. */
uint64_t lks__kernels_fingerprint(const lks__kernels *k, bool bf16);
#define LKS__FINGERPRINT UINT64_C(0x42fcbf5e10ad1fb4)

/* ERR_SUPPORT, with the names of the kernels, if some compute other bits in float32. */
lks_status lks__kernels_verify(const lks__kernels *k);

/* Check the GEMM library. Kernels return no status: if the library runs out of memory, the output
 * becomes NaN, and from then on this function returns ERR_NOMEM or ERR_SUPPORT on every thread. */
lks_status lks__kernels_check(void);

const char *lks__kernels_gemm_library(const lks__kernels *k); /* "oneDNN 2.6.3", "own" */

/* How many kinds of products (products/kinds.h) the library has computed so far in this process,
 * and how many our own product in its place. */
typedef struct lks__gemm_kinds {
    size_t library, own;
} lks__gemm_kinds;
lks__gemm_kinds lks__kernels_gemm_kinds(void);
