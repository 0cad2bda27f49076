/* Laws of reduce-scatter, all-gather of different sizes, and every type and operation of a
 * reduction. Expected values come from a formula. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/bf16.h"
#include "base/number/f16.h"
#include "comm/suite.h"

/* Within one descriptor, at its limit (960 bytes; on two ranks 60 numbers of each), beyond it, and
 * in several bounce buffers. */
static const size_t counts[] = {0, 1, 7, 60, 120, 121, 3001, 40001};
enum { N_COUNTS = sizeof counts / sizeof counts[0], FEW = 4 };

static const lks_dtype dtypes[] = {LKS_FLOAT32, LKS_FLOAT64, LKS_INT32,
                                   LKS_INT64,   LKS_FLOAT16, LKS_BFLOAT16};
enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0] };

static void store(lks_dtype dtype, void *at, size_t i, double x)
{
    switch (dtype) {
    case LKS_FLOAT32:
        ((float *)at)[i] = (float)x;
        break;
    case LKS_FLOAT64:
        ((double *)at)[i] = x;
        break;
    case LKS_INT32:
        ((int32_t *)at)[i] = (int32_t)x;
        break;
    case LKS_INT64:
        ((int64_t *)at)[i] = (int64_t)x;
        break;
    case LKS_FLOAT16:
        ((uint16_t *)at)[i] = lks__f16_from_float((float)x);
        break;
    default:
        ((uint16_t *)at)[i] = lks__bf16_from_float((float)x);
    }
}

/* Element i of rank r. Sums of up to 8 ranks and products are exact in bfloat16. */
static double term(lks_op op, int W, int r, size_t i)
{
    switch (op) {
    case LKS_SUM:
    case LKS_MEAN:
        return (r + 1) * (double)(i % 7 + 1);
    case LKS_PROD:
        return ((size_t)r + i) % 2 == 0 ? 2 : 1;
    default:
        return (double)(((size_t)r + i) % (size_t)W) - 3;
    }
}

static double result(lks_op op, lks_dtype dtype, int W, size_t i)
{
    double x = term(op, W, 0, i);
    for (int r = 1; r < W; r++) {
        const double y = term(op, W, r, i);
        x = op == LKS_PROD  ? x * y
            : op == LKS_MIN ? (y < x ? y : x)
            : op == LKS_MAX ? (y > x ? y : x)
                            : x + y;
    }
    if (op != LKS_MEAN)
        return x;
    return dtype == LKS_FLOAT64 ? x / W : (double)((float)x / (float)W);
}

static bool one_reduction(lks_comm *comm, lks_dtype dtype, lks_op op, size_t n, bool in_place)
{
    const int W = lks_comm_world_size(comm), rank = lks_comm_rank(comm);
    const size_t size = lks_dtype_bytes(dtype), total = n * (size_t)W, first = n * (size_t)rank;
    char *all = malloc(total * size + 8), *want = malloc(total * size + 8);
    char *mine = in_place ? all + first * size : malloc(n * size + 8);
    CHECK(all != NULL && want != NULL && mine != NULL);
    for (size_t i = 0; i < total; i++) {
        store(dtype, all, i, term(op, W, rank, i));
        store(dtype, want, i, result(op, dtype, W, i));
    }
    memset(all + total * size, 0x5a, 8);
    if (!in_place)
        memset(mine + n * size, 0x5a, 8);
    CHECK(lks_comm_reduce_scatter(comm, all, mine, n, dtype, op) == LKS_OK);
    CHECK(memcmp(mine, want + first * size, n * size) == 0);
    CHECK(in_place || mine[n * size] == 0x5a); /* no element beyond the end */
    for (size_t i = first; i < first + n; i++)
        store(dtype, all, i, term(op, W, rank, i));
    CHECK(lks_comm_all_reduce(comm, all, total, dtype, op) == LKS_OK);
    CHECK(memcmp(all, want, total * size) == 0 && all[total * size] == 0x5a);
    if (!in_place)
        free(mine);
    free(all);
    free(want);
    return true;
}

static bool reductions(lks_comm *comm)
{
    for (size_t d = 0; d < N_DTYPES; d++)
        for (lks_op op = LKS_SUM; op <= LKS_MEAN; op++) {
            const bool whole = dtypes[d] == LKS_INT32 || dtypes[d] == LKS_INT64;
            const size_t some = op <= LKS_MAX ? N_COUNTS : FEW;
            for (size_t i = 0; i < some && !(whole && op == LKS_MEAN); i++)
                if (!one_reduction(comm, dtypes[d], op, counts[i], i % 2 == 0))
                    return false;
        }
    return true;
}

/* One large term and small ones that are half its spacing: rounded after each addition, they would
 * be lost. */
static bool rounded_once(lks_comm *comm)
{
    const int W = lks_comm_world_size(comm), rank = lks_comm_rank(comm);
    static const struct {
        lks_dtype dtype;
        float large;
    } rows[] = {{LKS_BFLOAT16, 256}, {LKS_FLOAT16, 2048}};
    for (int i = 0; i < 2 && W >= 3; i++) {
        uint16_t x[3], want[3];
        for (size_t k = 0; k < 3; k++) {
            store(rows[i].dtype, x, k, rank == 0 ? rows[i].large : rank < 3);
            store(rows[i].dtype, want, k, rows[i].large + 2);
        }
        CHECK(lks_comm_all_reduce(comm, x, 3, rows[i].dtype, LKS_SUM) == LKS_OK);
        CHECK(memcmp(x, want, sizeof x) == 0);
    }
    return true;
}

/* The sum that rounds has the tree's order, which all-reduce has, too. */
static bool tree_order(lks_comm *comm)
{
    enum { N = 501 };
    const int W = lks_comm_world_size(comm), rank = lks_comm_rank(comm);
    float *all = malloc((size_t)W * N * sizeof *all), mine[N], leaves[16];
    CHECK(all != NULL && W <= 16);
    for (size_t i = 0; i < (size_t)W * N; i++)
        all[i] = 1.0f / (float)(1 + i % 97 + (size_t)rank * 13);
    CHECK(lks_comm_reduce_scatter(comm, all, mine, N, LKS_FLOAT32, LKS_SUM) == LKS_OK);
    for (size_t i = 0; i < N; i++) {
        for (int r = 0; r < W; r++)
            leaves[r] = 1.0f / (float)(1 + ((size_t)rank * N + i) % 97 + (size_t)r * 13);
        CHECK(mine[i] == suite_tree_sum(leaves, W));
    }
    free(all);
    return true;
}

static bool one_gather(lks_comm *comm, lks_dtype dtype, size_t unit, bool in_place)
{
    const int W = lks_comm_world_size(comm), rank = lks_comm_rank(comm);
    size_t n[16], start[17] = {0};
    CHECK(W <= 16);
    for (int r = 0; r < W; r++) { /* some have none */
        n[r] = (size_t)((r * 2 + 1) % 4) * unit;
        start[r + 1] = start[r] + n[r] * lks_dtype_bytes(dtype);
    }
    unsigned char *all = malloc(start[W] + 1);
    unsigned char *mine = in_place ? all + start[rank] : malloc(start[rank + 1] - start[rank] + 1);
    CHECK(all != NULL && mine != NULL);
    all[start[W]] = 0x5a;
    for (size_t i = 0; i < start[rank + 1] - start[rank]; i++)
        mine[i] = (unsigned char)(i * 5 + (size_t)rank * 37);
    CHECK(lks_comm_all_gather_v(comm, mine, all, n, dtype) == LKS_OK);
    for (int r = 0; r < W; r++)
        for (size_t i = 0; i < start[r + 1] - start[r]; i++)
            CHECK(all[start[r] + i] == (unsigned char)(i * 5 + (size_t)r * 37));
    CHECK(all[start[W]] == 0x5a);
    if (!in_place)
        free(mine);
    free(all);
    return true;
}

static bool gathers(lks_comm *comm)
{
    static const lks_dtype moved[] = {
#define X(name, value, bytes, text) LKS_##name,
        LKS_DTYPE_MAP(X)
#undef X
    };
    for (size_t d = 0; d < sizeof moved / sizeof moved[0]; d++)
        if (!one_gather(comm, moved[d], 0, false) || !one_gather(comm, moved[d], 1, d % 2 == 0) ||
            !one_gather(comm, moved[d], 241, d % 2 != 0))
            return false;
    return one_gather(comm, LKS_UINT64, 50001, false);
}

/* Several in flight, of different types, with a blocking call between them. */
static bool started(lks_comm *comm)
{
    enum { N = 20011, WORKS = 3 };
    static const struct {
        lks_dtype dtype;
        lks_op op;
    } rows[WORKS] = {{LKS_FLOAT32, LKS_SUM}, {LKS_BFLOAT16, LKS_MEAN}, {LKS_INT64, LKS_MIN}};
    const int W = lks_comm_world_size(comm), rank = lks_comm_rank(comm);
    char *bufs = malloc((size_t)WORKS * 2 * N * 8);
    CHECK(bufs != NULL);
    for (int turn = 0; turn < 3; turn++) {
        lks_work *works[WORKS];
        float one = 1;
        bool done = false;
        for (int k = 0; k < WORKS; k++) {
            char *buf = bufs + (size_t)k * 2 * N * 8, *want = buf + (size_t)N * 8;
            for (size_t i = 0; i < N; i++) {
                store(rows[k].dtype, buf, i, term(rows[k].op, W, rank, i));
                store(rows[k].dtype, want, i, result(rows[k].op, rows[k].dtype, W, i));
            }
            CHECK(lks_comm_all_reduce_start(comm, buf, N, rows[k].dtype, rows[k].op, &works[k]) ==
                  LKS_OK);
            lks_comm_note(comm, (uint64_t)turn, "started");
        }
        if (turn == 0)
            CHECK(lks_comm_all_reduce(comm, &one, 1, LKS_FLOAT32, LKS_SUM) == LKS_OK &&
                  one == (float)W);
        while (turn == 1 && !done)
            CHECK(lks_work_test(works[1], &done) == LKS_OK);
        for (int k = WORKS; k-- > 0;) {
            const char *buf = bufs + (size_t)k * 2 * N * 8, *want = buf + (size_t)N * 8;
            CHECK(lks_work_wait(works[k]) == LKS_OK);
            CHECK(memcmp(buf, want, N * lks_dtype_bytes(rows[k].dtype)) == 0);
            CHECK(lks_work_wait(works[k]) == LKS_ERR_ARG &&
                  lks_work_test(works[k], &done) == LKS_ERR_ARG);
        }
    }
    free(bufs);
    return true;
}

bool suite_scatter(lks_comm *comm)
{
    return started(comm) && reductions(comm) && rounded_once(comm) && tree_order(comm) &&
           gathers(comm);
}
