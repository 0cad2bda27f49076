/* Runs each row kernel once, to count its instructions (instructions.sh): count_kernels LEVEL. Each
 * call is in a function of its own, whose name identifies the count. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compute/cpu/kernels.h"

enum { N = 4096, ROWS = 16, COLS = N / ROWS, HEADS = 4, HS = 64 };

static float x[N], y[N], z[N], w[N], small[N];
static double sink, lanes[8];
static lks__kernels k;

static void fill(float *p, float scale)
{
    for (int i = 0; i < N; i++)
        p[i] = scale * (float)(i * 37 % 201 - 100) * 0.01f;
}

static const lks__dropout mask = {
    .key = {{1, 2}}, .step = 3, .vm = 4, .site = 5, .threshold = 429496729u, .scale = 1.0f / 0.9f};
static const lks__adamw adamw = {.decay = 0.999f,
                                 .one_m_b1 = 0.1f,
                                 .b2 = 0.95f,
                                 .one_m_b2 = 0.05f,
                                 .step_size = 1e-3f,
                                 .inv_sqrt_bc2 = 2.0f,
                                 .eps = 1e-8f,
                                 .clip = 1.0f};

/* name, call */
#define CALLS(X)                                                                                   \
    X(layernorm_fwd, k.layernorm_fwd(y, small, z, x, w, w, ROWS, COLS))                            \
    X(layernorm_bwd, k.layernorm_bwd(y, small, z, w, x, w, w, w, ROWS, COLS))                      \
    X(gelu_erf_fwd, k.gelu_erf_fwd(y, x, N))                                                       \
    X(gelu_erf_bwd, k.gelu_erf_bwd(y, w, x, N))                                                    \
    X(gelu_tanh_fwd, k.gelu_tanh_fwd(y, x, N))                                                     \
    X(gelu_tanh_bwd, k.gelu_tanh_bwd(y, w, x, N))                                                  \
    X(rmsnorm_fwd, k.rmsnorm_fwd(y, small, x, ROWS, COLS))                                         \
    X(rmsnorm_bwd, k.rmsnorm_bwd(y, w, x, w, ROWS, COLS))                                          \
    X(rope_fwd, k.rope_fwd(y, small, x, w, w, NULL, HEADS, HS))                                    \
    X(rope_bwd, k.rope_bwd(y, small, w, x, w, w, w, w, HEADS, HS))                                 \
    X(relu2_fwd, k.relu2_fwd(y, x, N))                                                             \
    X(relu2_bwd, k.relu2_bwd(y, w, x, N))                                                          \
    X(softmax_block, k.softmax_block(y, COLS, ROWS, COLS, COLS / 2, z, small, w))                  \
    X(softmax_again, k.softmax_again(y, COLS, ROWS, COLS, COLS / 2, w))                            \
    X(xent_row, sink += k.xent_row(y, x, N, 7, 0.5f))                                              \
    X(softcap, k.softcap(y, x, N, 30.0f))                                                          \
    X(xent_cap_row, sink += k.xent_cap_row(y, x, N, 7, 0.5f, 30.0f))                               \
    X(dropout, k.dropout(y, x, N, 0, &mask))                                                       \
    X(add, k.add(y, x, N))                                                                         \
    X(mul, k.mul(y, x, w, N))                                                                      \
    X(mul_add, k.mul_add(y, x, w, N))                                                              \
    X(scale, k.scale(y, 0.5f, N))                                                                  \
    X(add_bias, k.add_bias(y, COLS, w, ROWS, COLS))                                                \
    X(colsum, k.colsum(y, x, COLS, ROWS, COLS))                                                    \
    X(round_bf16, k.round_bf16(y, x, N))                                                           \
    X(dot, sink += (double)k.dot(x, w, N))                                                         \
    X(sumsq, sink += k.sumsq(x, N))                                                                \
    X(sum_scaled, k.sum_scaled(y, x, w, 0.5f, lanes, N))                                           \
    X(dot_rows, k.dot_rows(y, ROWS, x, COLS, w, COLS, ROWS, ROWS, COLS, false))                    \
    X(weighted_sum, k.weighted_sum(y, w, x, COLS, ROWS, COLS))                                     \
    X(adamw, k.adamw(y, z, small, x, N, &adamw))

#define X(name, call)                                                                              \
    void count_##name(void);                                                                       \
    __attribute__((noinline)) void count_##name(void)                                              \
    {                                                                                              \
        call;                                                                                      \
    }
CALLS(X)
#undef X

#define X(name, ...) +1
_Static_assert(0 CALLS(X) == 0 LKS__ROW_KERNEL_MAP(X), "every row kernel is counted");
#undef X

int main(int argc, char **argv)
{
    lks__cpu_level level =
        argc > 1 && strcmp(argv[1], "avx2") == 0 ? LKS__CPU_AVX2 : LKS__CPU_PLAIN;
    if (argc > 1 && strcmp(argv[1], "--compiler") == 0) {
#ifdef __clang__
        puts("clang " __VERSION__);
#else
        puts("gcc " __VERSION__);
#endif
        return 0;
    }
    setenv("LOCKSTEP_CPU", lks__cpu_level_name(level), 1);
    if (lks__cpu_level_get(&level) != LKS_OK || lks__kernels_open(level, &k) != LKS_OK) {
        fprintf(stderr, "%s\n", lks_last_error());
        return 1;
    }
#define X(name, call)                                                                              \
    fill(x, 1.0f), fill(y, 2.0f), fill(z, 1.5f), fill(w, 0.5f), memset(small, 0, sizeof small);    \
    count_##name();
    CALLS(X)
#undef X
    return sink != sink;
}
