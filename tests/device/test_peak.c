/* The peak of a device with memory of its own (peak/peak_device.h), over a product that takes a
 * known time at least. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "compute/cpu/device.h"
#include "compute/cpu/layers.h"
#include "compute/peak/peak_device.h"

enum { GUARD = 64, MOST = 64 };

static lks__kernels kernels;
static lks__exec ex = {.k = &kernels};
static const char *memory;
static size_t bytes; /* of it */
static size_t sizes[MOST];
static int calls;
static long wait_ns;

/* Looks at what it gets, and takes wait_ns. */
static void product(const lks__exec *on, float *dw, float *db, const lks__act *dy, size_t lddy,
                    const lks__act *x, size_t rows, size_t out, size_t in, bool fresh)
{
    const size_t n = rows;
    assert_ptr_equal(on, &ex);
    assert_null(db);
    assert_true(n > 0 && lddy == n && out == n && in == n);
    const char *const ends[3] = {(const char *)dy + n * n * sizeof(float),
                                 (const char *)x + n * n * sizeof(float),
                                 (const char *)(dw + n * n)};
    const char *const begins[3] = {(const char *)dy, (const char *)x, (const char *)dw};
    for (int i = 0; i < 3; i++)
        assert_true(begins[i] == (i == 0 ? memory : ends[i - 1]) && ends[i] <= memory + bytes);
    const bool first = calls == 0 || sizes[calls - 1] != n;
    for (size_t i = 0; first && i < 2 * n * n; i++) {
        const float v = ((const float *)(const void *)memory)[i];
        assert_true(v >= 0.5f && v < 2.0f);
    }
    assert_true(!first || dw[n * n - 1] == 0.0f);
    assert_true(calls < MOST);
    sizes[calls++] = n;
    if (wait_ns > 0)
        nanosleep(&(struct timespec){.tv_nsec = wait_ns}, NULL);
}

/* The peak with that much memory, behind which nothing is touched. */
static double peak_of(size_t room, long ns)
{
    lks__device device = lks__device_cpu(&ex);
    lks__layers layers = *device.layers;
    layers.linear_bwd_w = product;
    device.layers = &layers;
    unsigned char *p = NULL;
    double flops = NAN;
    assert_int_equal(posix_memalign((void **)&p, 64, room + GUARD), 0);
    memset(p, 0xff, room + GUARD);
    memory = (const char *)p;
    bytes = room;
    wait_ns = ns;
    calls = 0;
    assert_ok(lks__peak_of_device(&device, true, p, room, &flops));
    for (size_t i = room; i < room + GUARD; i++)
        assert_int_equal(p[i], 0xff);
    free(p);
    return flops;
}

TEST(test_sizes)
{
    enum { LEAST = 3 * 64 * 64 * sizeof(float) };
    assert_true(peak_of(0, 0) == 0.0);
    assert_true(peak_of(LEAST - 1, 0) == 0.0);
    assert_int_equal(calls, 0);
    assert_true(peak_of(LEAST, 0) > 0.0);
    assert_true(calls > 1);
    assert_int_equal(sizes[calls - 1], 64);
    assert_true(peak_of(4 * LEAST, 0) > 0.0); /* room for 128, and that is fast */
    assert_int_equal(sizes[0], 64);
    assert_int_equal(sizes[calls - 1], 128);
    /* A size that takes long is the last one. The rate is at most what the product's time allows.
     */
    const double rate = peak_of(16 * LEAST, 1000000);
    assert_int_equal(sizes[calls - 1], 64);
    assert_true(rate > 0.0 && rate <= 2.0 * 64 * 64 * 64 / 1e-3);
}

int main(void)
{
    lks__kernels_open_own(LKS__CPU_PLAIN, &kernels);
    assert_ok(lks__pool_open(1, LKS__EXEC_SCRATCH_BYTES, lks__kernels_thread_init, &ex.pool));
    const int code = lks_test_run_all(NULL, NULL);
    lks__pool_close(ex.pool);
    return code;
}
