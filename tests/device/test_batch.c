/* Mirrors (compute/mirror.h), micro-batches (model/batch.h) and the search for numbers that aren't
 * finite, on the CPU and on the deferred device. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compute/cpu/device.h"
#include "compute/cpu/layers.h"
#include "deferred.h"
#include "model/batch.h"

enum { SEEDS = 12 };

static lks__kernels kernels;
static lks__exec ex = {.k = &kernels};

static int open_kernels(void **state)
{
    assert_ok(lks__kernels_open(LKS__CPU_PLAIN, &kernels));
    return 0;
}

/* Seed -1: the CPU. */
static lks__device *open_device(int seed)
{
    static lks__device cpu;
    lks__device *device = &cpu;
    cpu = lks__device_cpu(&ex);
    if (seed >= 0)
        assert_ok(deferred_open(&ex, (unsigned)seed, &device));
    return device;
}

/* --- mirrors ---------------------------------------------------------------------------------- */

TEST(test_mirror)
{
    enum { N = 100, FROM = 10, PART = 30 };
    for (int seed = -1; seed < SEEDS; seed++) {
        lks__device *device = open_device(seed);
        lks__mirror a, b;
        static int32_t wrapped[N];
        assert_ok(lks__mirror_open(device, N * sizeof(int32_t), &a));
        assert_ok(lks__mirror_wrap(device, wrapped, sizeof wrapped, &b));
        assert_ptr_equal(b.host, wrapped);
        assert_true((a.host == a.dev) == (seed < 0) && (b.host == b.dev) == (seed < 0));
        int32_t *x = a.host;
        for (int i = 0; i < N; i++) {
            assert_int_equal(x[i], 0);
            x[i] = i + 1;
        }
        lks__mirror_to_device(&a, LKS__QUEUE_COPY, FROM * sizeof *x, PART * sizeof *x);
        assert_ok(lks__device_finish(device, LKS__QUEUE_COPY));
        memset(x, 0xff, N * sizeof *x);
        lks__mirror_to_host(&a, LKS__QUEUE_COPY, 0, N * sizeof *x);
        assert_ok(lks__device_finish(device, LKS__QUEUE_COPY));
        for (int i = 0; i < N; i++) /* on the CPU there is one array */
            assert_int_equal(x[i], seed < 0 ? -1 : i >= FROM && i < FROM + PART ? i + 1 : 0);
        lks__mirror_to_device(&b, LKS__QUEUE_COMPUTE, 0, sizeof wrapped);
        lks__mirror_close(&b); /* which waits for it */
        lks__mirror_close(&a);
        lks__mirror_close(&a);
        lks__device_close(device);
    }
}

/* A mirror that is closed gives back all of its memory. (The deferred device keeps what is
 * released, to find its use.) */
TEST(test_mirror_closed)
{
    enum { TIMES = 20, BYTES = 1 << 20 };
    lks__device *device = open_device(-1);
    const long before = lks_test_pages();
    for (int i = 0; i < TIMES; i++) {
        lks__mirror m;
        assert_ok(lks__mirror_open(device, BYTES, &m));
        lks__mirror_close(&m);
    }
    assert_true(lks_test_pages() - before < TIMES / 2 * (BYTES / 4096));
}

/* --- micro-batches ---------------------------------------------------------------------------- */

enum { B = 3, T = 5, ROWS = B * T, STEPS = 9, V = STEPS * ROWS + 2 };

/* What a device makes of micro-batches: each id as a float, in its place. */
struct reader {
    lks__device *device;
    lks__mirror table, zeros, seen; /* seen [STEPS][2][ROWS] */
};

static void open_reader(struct reader *r, lks__device *device)
{
    *r = (struct reader){.device = device};
    assert_ok(lks__mirror_open(device, V * sizeof(float), &r->table));
    assert_ok(lks__mirror_open(device, T * sizeof(float), &r->zeros));
    assert_ok(lks__mirror_open(device, STEPS * 2 * ROWS * sizeof(float), &r->seen));
    for (int v = 0; v < V; v++)
        ((float *)r->table.host)[v] = (float)v;
    lks__mirror_to_device(&r->table, LKS__QUEUE_COMPUTE, 0, r->table.bytes);
}

static void close_reader(struct reader *r)
{
    lks__mirror_close(&r->table);
    lks__mirror_close(&r->zeros);
    lks__mirror_close(&r->seen);
}

static void read_ids(const struct reader *r, int step, const lks__micro_batch *mb)
{
    const lks__dropout none = {0};
    float *seen = (float *)r->seen.dev + step * 2 * ROWS;
    const size_t rows = (size_t)mb->B * T;
    const int32_t *ids[2] = {mb->tokens, mb->targets};
    for (int i = 0; i < 2; i++)
        r->device->layers->embedding_fwd(r->device->ex, lks__acts(seen + i * ROWS), ids[i],
                                         r->table.dev, r->zeros.dev, rows, T, 1, &none);
}

/* Every micro-batch is seen as it was written, however late it is read; the last has fewer rows. */
TEST(test_batches)
{
    for (int seed = -1; seed < SEEDS; seed++) {
        lks__device *device = open_device(seed);
        struct reader r;
        lks__batch batch;
        open_reader(&r, device);
        assert_ok(lks__batch_open(device, ROWS, &batch));
        for (int step = 0; step < STEPS; step++) {
            int32_t *tokens, *targets;
            assert_ok(lks__batch_next(&batch, &tokens, &targets));
            for (int i = 0; i < ROWS; i++) {
                tokens[i] = step * ROWS + i;
                targets[i] = tokens[i] + 1;
            }
            tokens[ROWS] = -1; /* there is room for it, and it is not sent */
            const lks__micro_batch mb = lks__batch_send(&batch, step < STEPS - 1 ? B : 1, T);
            assert_int_equal(mb.B, step < STEPS - 1 ? B : 1);
            assert_int_equal(mb.T, T);
            assert_true((mb.tokens == tokens && mb.targets == targets) == (seed < 0));
            read_ids(&r, step, &mb);
        }
        lks__mirror_to_host(&r.seen, LKS__QUEUE_COMPUTE, 0, r.seen.bytes);
        assert_ok(lks__device_finish(device, LKS__QUEUE_COMPUTE));
        const float *seen = r.seen.host;
        for (int step = 0; step < STEPS; step++)
            for (int i = 0; i < (step < STEPS - 1 ? ROWS : T); i++) {
                assert_true(seen[step * 2 * ROWS + i] == (float)(step * ROWS + i));
                assert_true(seen[(step * 2 + 1) * ROWS + i] == (float)(step * ROWS + i + 1));
            }
        lks__batch_close(&batch);
        close_reader(&r);
        lks__device_close(device);
    }
}

static lks_status group_failed(void *ctx, bool others)
{
    return lks__fail(LKS_ERR_PEER, "rank 7 is gone");
}

/* Whoever waits for a micro-batch's memory learns that the group has failed. */
TEST(test_failure)
{
    int n_failed = 0;
    for (int seed = 0; seed < SEEDS; seed++) {
        lks__device *device = open_device(seed);
        lks__batch batch;
        assert_ok(lks__batch_open(device, ROWS, &batch));
        device->waiter.failure = group_failed;
        for (int step = 0; step < STEPS; step++) {
            int32_t *tokens, *targets;
            lks_status st = lks__batch_next(&batch, &tokens, &targets);
            if (st != LKS_OK) {
                n_failed++;
                assert_fails(LKS_ERR_PEER, st, "rank 7");
                break;
            }
            lks__batch_send(&batch, B, T);
        }
        device->waiter.failure = NULL;
        lks__batch_close(&batch);
        lks__device_close(device);
    }
    assert_true(n_failed > SEEDS / 3);
}

/* --- first_not_finite ------------------------------------------------------------------------- */

TEST(test_first_not_finite)
{
    enum { N = 300000 };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static const int places[][2] = {
        {0, 5}, {N - 1, N - 1}, {65536, 65537}, {70000, 299998}, {65535, 65536}};
    float *x = lks_test_calloc(N, sizeof *x);
    for (int threads = 1; threads <= 3; threads++) {
        uint64_t first = 1;
        lks__exec pool = ex;
        assert_ok(lks__pool_open(threads, 64, NULL, &pool.pool));
        lks__layers_cpu.first_not_finite(&pool, &first, x, N);
        assert_int_equal(first, N);
        lks__layers_cpu.first_not_finite(&pool, &first, x, 0);
        assert_int_equal(first, 0);
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
            x[places[i][0]] = bad[i % 3];
            x[places[i][1]] = bad[(i + 1) % 3];
            lks__layers_cpu.first_not_finite(&pool, &first, x, N);
            assert_int_equal(first, places[i][0]);
            lks__layers_cpu.first_not_finite(&pool, &first, x, (size_t)places[i][0]);
            assert_int_equal(first, places[i][0]); /* what lies behind isn't looked at */
            x[places[i][0]] = x[places[i][1]] = 0.0f;
        }
        lks__pool_close(pool.pool);
    }
    free(x);
}

int main(void)
{
    return lks_test_run_all(open_kernels, NULL);
}
