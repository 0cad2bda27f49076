/* The library's sums have the same bits whatever floating-point modes the callers have, on one host
 * (`shm`) and over each engine: subnormal numbers, rounding. And each call leaves the caller's mode
 * unchanged. */
#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/number/cpu.h"
#include "base/number/rng.h"
#include "comm/hosts.h"
#include "comm/ranks.h"
#include "compute/cpu/kernels.h"
#include "lockstep/ddp.h"
#include "support.h"

enum { V = 8, N_PARAMS = 2, COUNT = 5000, SMALL = 9, LARGE = 40000 };

/* --- modes -------------------------------------------------------------------------------- */

/* PLAIN is what processes begin with. TRAPS: every exception ends the process. */
enum mode { PLAIN, FLUSHES, TO_ZERO, TRAPS, N_MODES };

static const enum mode LIBRARY = PLAIN;

static void set_mode(enum mode mode)
{
#if defined(__x86_64__)
    static const unsigned modes[N_MODES] = {0x1f80, 0x9fc0, 0x7f80, 0x0000};
    _mm_setcsr(modes[mode]);
#else
    fesetround(mode == TO_ZERO ? FE_TOWARDZERO : FE_TONEAREST);
#endif
}

static bool in_mode(enum mode mode)
{
#if defined(__x86_64__)
    static const unsigned modes[N_MODES] = {0x1f80, 0x9fc0, 0x7f80, 0x0000};
    return (_mm_getcsr() & ~0x3fu) == modes[mode];
#else
    return fegetround() == (mode == TO_ZERO ? FE_TOWARDZERO : FE_TONEAREST);
#endif
}

/* --- numbers ------------------------------------------------------------------------------ */

/* Subnormals, numbers so small that their sums are subnormal, and others. Made of integers, so that
 * the mode doesn't change them. */
static float number(int leaf, size_t i)
{
    const uint32_t counter[4] = {(uint32_t)leaf, (uint32_t)i, 0, 0};
    static const uint32_t exponents[4] = {0, 1, 2, 120};
    uint32_t words[4];
    float x;
    lks__philox4x32(lks__philox_key_of(7), counter, words);
    uint32_t bits = (words[0] & 0x807fffff) | exponents[words[1] % 4] << 23;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static double number64(int leaf, size_t i)
{
    const uint32_t counter[4] = {(uint32_t)leaf, (uint32_t)i, 1, 0};
    static const uint64_t exponents[4] = {0, 1, 2, 1020};
    uint32_t words[4];
    double x;
    lks__philox4x32(lks__philox_key_of(7), counter, words);
    uint64_t bits =
        (uint64_t)(words[0] & 0x800fffff) << 32 | words[2] | exponents[words[1] % 4] << 52;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A variable, because compilers leave out a multiplication by a constant 1. */
static volatile float one = 1;

#define TREE(number, n_leaves, i, node)                                                            \
    do {                                                                                           \
        for (int v_ = 0; v_ < (n_leaves); v_++)                                                    \
            (node)[v_] = number(v_, (i));                                                          \
        for (int n_ = (n_leaves); n_ > 1; n_ = (n_ + 1) / 2)                                       \
            for (int k_ = 0; k_ < (n_ + 1) / 2; k_++)                                              \
                (node)[k_] =                                                                       \
                    2 * k_ + 1 < n_ ? (node)[2 * k_] + (node)[2 * k_ + 1] : (node)[2 * k_];        \
    } while (0)

/* The definition; computed in the library's mode. */
static float sum_of(int leaves, size_t i)
{
    float node[HOSTS_MAX_RANKS] = {0};
    TREE(number, leaves, i, node);
    return node[0] * one;
}

static double sum64_of(int leaves, size_t i)
{
    double node[HOSTS_MAX_RANKS] = {0};
    TREE(number64, leaves, i, node);
    return node[0] * (double)one;
}

/* --- ranks -------------------------------------------------------------------------------- */

/* A call as a rank makes it: in its mode, which stays. The mode is PLAIN while the test computes.
 */
#define CALL(mode, call)                                                                           \
    do {                                                                                           \
        set_mode(mode);                                                                            \
        lks_status st_ = (call);                                                                   \
        bool kept_ = in_mode(mode);                                                                \
        set_mode(PLAIN);                                                                           \
        EXPECT(st_ == LKS_OK);                                                                     \
        if (!kept_) {                                                                              \
            fprintf(stderr, "rank %s: %s leaves another mode than %d\n", getenv("RANK"), #call,    \
                    mode);                                                                         \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

#define EXPECT_BITS(what, mode, got, want, n)                                                      \
    do {                                                                                           \
        for (size_t i_ = 0; i_ < (n); i_++)                                                        \
            if (memcmp(&(got)[i_], &(want)[i_], sizeof *(got)) != 0) {                             \
                fprintf(stderr, "rank %s of %s, mode %d: %s, element %zu: %a, not %a\n",           \
                        getenv("RANK"), getenv("WORLD_SIZE"), mode, what, i_, (double)(got)[i_],   \
                        (double)(want)[i_]);                                                       \
                return 1;                                                                          \
            }                                                                                      \
    } while (0)

static float x32[LARGE], sum32[LARGE], least32[LARGE], most32[LARGE];
static double x64[LARGE], sum64[LARGE], least64[LARGE], most64[LARGE];

static void define_all_reduce(int W)
{
    set_mode(LIBRARY);
    for (size_t i = 0; i < LARGE; i++) {
        sum32[i] = sum_of(W, i);
        sum64[i] = sum64_of(W, i);
    }
    set_mode(PLAIN);
    for (size_t i = 0; i < LARGE; i++) {
        least32[i] = most32[i] = number(0, i);
        least64[i] = most64[i] = number64(0, i);
        for (int r = 1; r < W; r++) {
            least32[i] = number(r, i) < least32[i] ? number(r, i) : least32[i];
            most32[i] = number(r, i) > most32[i] ? number(r, i) : most32[i];
            least64[i] = number64(r, i) < least64[i] ? number64(r, i) : least64[i];
            most64[i] = number64(r, i) > most64[i] ? number64(r, i) : most64[i];
        }
    }
}

static int all_reduce(lks_comm *comm, enum mode mode)
{
    static const lks_op ops[] = {LKS_SUM, LKS_MIN, LKS_MAX};
    static const char *const names[] = {"sum", "minimum", "maximum"};
    const float *want32[] = {sum32, least32, most32};
    const double *want64[] = {sum64, least64, most64};
    const int rank = lks_comm_rank(comm);
    for (int large = 0; large < 2; large++)
        for (int o = 0; o < 3; o++) {
            size_t n = large ? LARGE : SMALL;
            for (size_t i = 0; i < n; i++) {
                x32[i] = number(rank, i);
                x64[i] = number64(rank, i);
            }
            CALL(mode, lks_comm_all_reduce(comm, x32, n, LKS_FLOAT32, ops[o]));
            EXPECT_BITS(names[o], mode, x32, want32[o], n);
            CALL(mode, lks_comm_all_reduce(comm, x64, n, LKS_FLOAT64, ops[o]));
            EXPECT_BITS(names[o], mode, x64, want64[o], n);
        }
    return 0;
}

/* A step of V virtual ranks, half of whose parameters are marked. */
struct step {
    double loss, norm;
    float mean[N_PARAMS][COUNT];
};

static const double weight = 3;

static void define_step(struct step *want)
{
    double squares = 0, lanes[8];
    set_mode(LIBRARY);
    const float scale = (float)(1.0 / (V * weight));
    for (int p = 0; p < N_PARAMS; p++)
        for (size_t at = 0; at < COUNT; at += 4096) {
            memset(lanes, 0, sizeof lanes);
            for (size_t i = at; i < COUNT && i < at + 4096; i++) {
                float sum = sum_of(V, p * COUNT + i);
                want->mean[p][i] = sum * scale;
                lanes[(i - at) % 8] += (double)sum * sum;
            }
            squares += lks__sumsq_of_lanes(lanes);
        }
    want->norm = sqrt(squares) * scale;
    want->loss = 0;
    for (int v = 0; v < V; v++)
        want->loss += number64(v, 0) + number64(v, 1);
    want->loss /= V * weight;
    set_mode(PLAIN);
}

static int ddp_step(lks_comm *comm, enum mode mode, const struct step *want)
{
    static float value[N_PARAMS][COUNT], grad[N_PARAMS][COUNT];
    const lks_param params[N_PARAMS] = {{"a", value[0], grad[0], COUNT},
                                        {"b", value[1], grad[1], COUNT}};
    lks_ddp *ddp = NULL;
    lks_ddp_result r;
    CALL(mode, lks_ddp_open(comm, params, N_PARAMS,
                            &(lks_ddp_options){.virtual_ranks = V, .bucket_mb = 0.01}, &ddp));
    CALL(mode, lks_ddp_broadcast(ddp));
    for (int v = lks_ddp_first(ddp); v < lks_ddp_end(ddp); v++) {
        CALL(mode, lks_ddp_begin(ddp, v));
        for (size_t p = 0; p < N_PARAMS; p++)
            for (size_t i = 0; i < COUNT; i++)
                grad[p][i] = number(v, p * COUNT + i);
        CALL(mode, lks_ddp_mark_ready(ddp, 1));
        CALL(mode, lks_ddp_add_loss(ddp, number64(v, 0)));
        CALL(mode, lks_ddp_add_loss(ddp, number64(v, 1)));
        CALL(mode, lks_ddp_accumulate(ddp, weight));
    }
    CALL(mode, lks_ddp_step(ddp, &r));
    CALL(mode, lks_ddp_verify(ddp));
    for (int p = 0; p < N_PARAMS; p++)
        EXPECT_BITS("mean gradient", mode, grad[p], want->mean[p], COUNT);
    EXPECT_BITS("loss", mode, &r.loss, &want->loss, 1);
    EXPECT_BITS("norm", mode, &r.norm, &want->norm, 1);
    CALL(mode, (lks_ddp_close(ddp), LKS_OK));
    return 0;
}

/* All ranks in each mode, then each in another one. The group's own thread begins in the mode of
 * the call that opens the group. */
RANK(in_all_modes)
{
    static struct step want;
    lks_comm *comm = NULL;
    lks_world world;
    lks_comm_options options = {getenv("ENGINE"), 60};
    EXPECT(lks_world_from_env(&world) == LKS_OK);
    CALL(TRAPS, lks_comm_open(&world, &options, &comm));
    define_all_reduce(world.world_size);
    define_step(&want);
    for (int m = 0; m <= N_MODES; m++) {
        enum mode mode = m < N_MODES ? (enum mode)m : (enum mode)(world.rank % N_MODES);
        CALL(mode, lks_comm_barrier(comm));
        if (all_reduce(comm, mode) != 0 || ddp_step(comm, mode, &want) != 0)
            return 1;
    }
    CALL(TRAPS, (lks_comm_close(comm), LKS_OK));
    return 0;
}

/* --- tests -------------------------------------------------------------------------------- */

static const char *engine; /* "shm", "mpi", "gloo" */

static void check_hosts(const char *hosts)
{
    const char *const argv[] = {"/proc/self/exe", "--rank", "in_all_modes", NULL};
    int code = hosts_run(engine, hosts, argv);
    if (code != 0)
        fail_msg("%s over %s: exit code %d", hosts, engine, code);
}

TEST(test_one_host)
{
    check_hosts("1");
    check_hosts("2");
    check_hosts("8");
}

TEST(test_hosts)
{
    check_hosts("11");
    check_hosts("21");
    check_hosts("22");
}

int main(int argc, char **argv)
{
    hosts_main(argc, argv);
    ranks_main(argc, argv);
    engine = argc == 2 ? argv[1] : "";
    bool one_host = strcmp(engine, "shm") == 0;
    if (!one_host)
        hosts_need(engine);
    setenv("ENGINE", one_host ? "shm" : hosts_backend(engine), 1);
    lks_test_only(one_host ? "test_one_host" : "test_hosts");
    return lks_test_run_all(NULL, NULL);
}
