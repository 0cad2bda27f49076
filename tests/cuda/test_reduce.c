/* Sums and maxima of reduce.h, and with them the fibers' barriers, shuffles and shared memory. */
#include "support.h"

#include <math.h>
#include <string.h>

#include "host.h"

void reduce_launch(float *sums, float *maxima, double *wide, const float *x, unsigned blocks,
                   unsigned threads);
void rotate_launch(float *y, const float *x, unsigned threads);

enum { BLOCKS = 3, MOST = 1024 };
#ifdef LKS_TEST_THREAD
static const unsigned sizes[] = {32, 96, 256};
#else
static const unsigned sizes[] = {32, 64, 96, 256, 1024};
#endif
enum { SIZES = sizeof sizes / sizeof *sizes };

TEST(test_reduce)
{
    static float first[SIZES][BLOCKS * MOST];
    const float *x = host_randoms(BLOCKS * MOST, 1);
    EACH_ORDER(seed)
    for (size_t s = 0; s < SIZES; s++) {
        const unsigned n = sizes[s];
        float *sums = host_floats(BLOCKS * n), *maxima = host_floats(BLOCKS * n);
        double wide[BLOCKS * MOST];
        reduce_launch(sums, maxima, wide, x, BLOCKS, n);
        for (unsigned b = 0; b < BLOCKS; b++) {
            double sum = 0.0, max = -1.0;
            for (unsigned i = b * n; i < (b + 1) * n; i++) {
                sum += (double)x[i];
                max = fmax(max, (double)x[i]);
            }
            for (unsigned i = b * n; i < (b + 1) * n; i++) {
                assert_close(&sums[i], &sum, 1, 1e-5);
                assert_true((double)maxima[i] == max);
                assert_near(wide[i], sum, 1e-12);
                assert_bits(&sums[i], &sums[b * n], 1);
            }
        }
        if (seed == 0)
            memcpy(first[s], sums, BLOCKS * n * sizeof *sums);
        assert_bits(sums, first[s], BLOCKS * n);
    }
}

TEST(test_rotate)
{
    const float *x = host_randoms(MOST, 2);
    EACH_ORDER(seed)
    {
        float *y = host_floats(MOST);
        rotate_launch(y, x, MOST);
        for (size_t t = 0; t < MOST; t++)
            assert_bits(&y[t], &x[t / 32 * 32 + (t + 1) % 32], 1);
    }
}

/* A kernel whose threads wait for each other takes switches, and one without barriers none but
 * those of its blocks. */
TEST(test_switches)
{
    unsigned long long before = lks_fibers_switches();
    float *x = host_floats(4096);
    lks_fibers_order(0);
    lks__cuda_clear(NULL, x, 4096);
#ifndef LKS_TEST_THREAD /* to which each thread is a fiber */
    assert_int_equal(lks_fibers_switches() - before, 2 * 4);
#endif
    before = lks_fibers_switches();
    rotate_launch(host_floats(64), x, 64);
    assert_true(lks_fibers_switches() - before >= 64);
}

/* Launches that wait in a queue run later, with the arguments that they were given. */
static lks_fibers_launch *queued[2];
static int n_queued;

static void put(const void *stream, lks_fibers_launch *launch)
{
    assert_null(stream);
    queued[n_queued++] = launch;
}

TEST(test_queue)
{
    const float *x = host_randoms(64, 3);
    float *y = host_floats(64), *nobody = host_floats(64);
    lks_fibers_queue(put);
    rotate_launch(y, x, 64);
    rotate_launch(nobody, x, 64);
    lks_fibers_queue(NULL);
    assert_int_equal(n_queued, 2);
    assert_string_equal(lks_fibers_name(queued[0]), "rotate_warps");
    assert_true(isnan(y[0]));
    lks_fibers_run(queued[0]);
    lks_fibers_drop(queued[1]);
    assert_bits(&y[0], &x[1], 1);
    assert_true(isnan(nobody[0]));
}
