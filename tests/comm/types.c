/* Collectives of every type, and the bits of reductions at the ends of a type's range. Expected
 * values come from a formula or another program, never from the code under test. (scatter.c:
 * reductions of every type and operation.) */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/suite.h"

enum { MOST = 140001 }; /* several bounce buffers */

static bool same(const void *a, const void *b, size_t bytes)
{
    return memcmp(a, b, bytes) == 0;
}

/* --- sum, minimum and maximum ------------------------------------------------------------- */

/* W times 0.1 in double, level by level: computed with Python. One after the other, 6 and 8 ranks
 * would give 0.6 and 0.7999999999999999. */
static bool order_of_doubles(lks_comm *comm)
{
    static const double sums[] = {
        0, 0.1, 0.2, 0.30000000000000004, 0.4, 0.5, 0.6000000000000001, 0.7000000000000001, 0.8};
    const int W = lks_comm_world_size(comm);
    if (W > 8)
        return true;
    double *x = malloc(MOST * sizeof *x);
    CHECK(x != NULL);
    for (size_t i = 0; i < MOST; i++)
        x[i] = 0.1;
    CHECK(lks_comm_all_reduce(comm, x, MOST, LKS_FLOAT64, LKS_SUM) == LKS_OK);
    for (size_t i = 0; i < MOST; i++)
        CHECK(x[i] == sums[W]);
    free(x);
    return true;
}

/* W * (2^31 - 1) modulo 2^32, and the same with 64 bits; also the other end of the range. */
static bool overflows(lks_comm *comm)
{
    const int W = lks_comm_world_size(comm);
    int32_t a[2] = {INT32_MAX, INT32_MIN};
    int64_t b[2] = {INT64_MAX, INT64_MIN};
    CHECK(lks_comm_all_reduce(comm, a, 2, LKS_INT32, LKS_SUM) == LKS_OK);
    CHECK(lks_comm_all_reduce(comm, b, 2, LKS_INT64, LKS_SUM) == LKS_OK);
    bool even = W % 2 == 0;
    CHECK(a[0] == (even ? -W : INT32_MAX - (W - 1)) && a[1] == (even ? 0 : INT32_MIN));
    CHECK(b[0] == (even ? -W : INT64_MAX - (W - 1)) && b[1] == (even ? 0 : INT64_MIN));
    return true;
}

/* Bits as defined in the header: one NaN, and -0 below +0. The special value is on the first or the
 * last rank. */
static bool special_floats(lks_comm *comm)
{
    const int W = lks_comm_world_size(comm), r = lks_comm_rank(comm);
    static const uint32_t odd_nan = 0xffc12345u, zero = 0, minus_zero = 0x80000000u;
    for (int special = 0; special<W; special += W> 1 ? W - 1 : 1)
        for (lks_op op = LKS_MIN; op <= LKS_MAX; op++) {
            uint32_t bits[3] = {r == special ? odd_nan : 0x3f800000u,
                                r == special ? minus_zero : zero, r == special ? zero : minus_zero};
            const uint32_t want[3] = {0x7fc00000u, op == LKS_MIN || W == 1 ? minus_zero : zero,
                                      op == LKS_MIN && W > 1 ? minus_zero : zero};
            float x[4];
            memcpy(x, bits, sizeof bits);
            x[3] = r == special ? -INFINITY : (float)r;
            CHECK(lks_comm_all_reduce(comm, x, 4, LKS_FLOAT32, op) == LKS_OK);
            CHECK(same(x, want, sizeof want));
            float greatest = (float)(special == W - 1 ? W - 2 : W - 1);
            CHECK(x[3] == (op == LKS_MIN || W == 1 ? -INFINITY : greatest));
        }
    return true;
}

static bool special_doubles(lks_comm *comm)
{
    const int W = lks_comm_world_size(comm), r = lks_comm_rank(comm);
    static const uint64_t odd_nan = 0xfff8000000012345u, zero = 0, minus_zero = 1ull << 63;
    for (lks_op op = LKS_MIN; op <= LKS_MAX; op++) {
        uint64_t bits[2] = {r == W - 1 ? odd_nan : 0x3ff0000000000000u,
                            r == W - 1 ? minus_zero : zero};
        const uint64_t want[2] = {0x7ff8000000000000u, op == LKS_MIN || W == 1 ? minus_zero : zero};
        double x[2];
        memcpy(x, bits, sizeof bits);
        CHECK(lks_comm_all_reduce(comm, x, 2, LKS_FLOAT64, op) == LKS_OK);
        CHECK(same(x, want, sizeof want));
    }
    return true;
}

/* --- broadcast and gather ----------------------------------------------------------------- */

static bool moves(lks_comm *comm, lks_dtype dtype, size_t n)
{
    const int W = lks_comm_world_size(comm), rank = lks_comm_rank(comm);
    const size_t bytes = n * lks_dtype_bytes(dtype);
    unsigned char *all = malloc(bytes * (size_t)W + 1), *mine = all + bytes * (size_t)rank;
    CHECK(all != NULL);
    memset(all, 0xee, bytes * (size_t)W + 1);
    for (size_t i = 0; i < bytes; i++)
        mine[i] = (unsigned char)(i * 5 + (size_t)rank * 37);
    CHECK(lks_comm_all_gather(comm, mine, all, n, dtype) == LKS_OK); /* in place */
    for (int r = 0; r < W; r++)
        for (size_t i = 0; i < bytes; i++)
            CHECK(all[bytes * (size_t)r + i] == (unsigned char)(i * 5 + (size_t)r * 37));
    memset(all, rank == W - 1 ? 7 : 8, bytes);
    CHECK(lks_comm_broadcast(comm, all, n, dtype, W - 1) == LKS_OK);
    for (size_t i = 0; i < bytes; i++)
        CHECK(all[i] == 7);
    CHECK(all[bytes * (size_t)W] == 0xee);
    free(all);
    return true;
}

bool suite_types(lks_comm *comm)
{
    static const lks_dtype dtypes[] = {
#define X(name, value, bytes, text) LKS_##name,
        LKS_DTYPE_MAP(X)
#undef X
    };
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++)
        if (!moves(comm, dtypes[d], 3) || !moves(comm, dtypes[d], 40001))
            return false;
    return order_of_doubles(comm) && overflows(comm) && special_floats(comm) &&
           special_doubles(comm);
}
