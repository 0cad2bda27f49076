/* Zeros, sums, copies and searches: src/device/cuda/memory.cu. */
#include "support.h"

#include <math.h>

#include "host.h"

/* Less than four, whole fours and a rest, several blocks. */
static const size_t lengths[] = {0, 1, 3, 4, 31, 1024, 5003};
enum { LENGTHS = sizeof lengths / sizeof *lengths, LONGEST = 5003 };

/* Parts that begin at any element of an array. */
static void test_ranges(void **state)
{
    const float *x = host_randoms(LONGEST + 3, 1), *y = host_randoms(LONGEST + 3, 2);
    EACH_ORDER(seed)
    for (size_t l = 0; l < LENGTHS; l++)
        for (size_t at = 0; at < 4; at++) {
            const size_t n = lengths[l];
            float *cleared = host_floats(n), *copied = host_floats(n);
            float *got = host_copy(y, LONGEST + 3), *want = host_copy(y, LONGEST + 3);
            lks__cuda_clear(NULL, cleared, n);
            lks__cuda_copy(NULL, copied, x + at, n);
            for (size_t i = 0; i < n; i++)
                assert_true(cleared[i] == 0.0f && !signbit(cleared[i]));
            assert_bits(copied, x + at, n);
            lks__cuda_accumulate(NULL, got + 3 - at, x + at, n);
            lks__layers_cpu.accumulate(host_exec(), want + 3 - at, x + at, n);
            assert_bits(got, want, LONGEST + 3);
        }
}

/* y may be anything but what is added to. */
static void test_first_not_finite(void **state)
{
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    EACH_ORDER(seed)
    for (size_t l = 0; l < LENGTHS; l++) {
        const size_t n = lengths[l];
        uint64_t first = 12345;
        float *x = host_randoms(n, 3);
        lks__cuda_first_not_finite(NULL, &first, x, n);
        assert_int_equal(first, n);
        for (size_t i = n; i-- > 0; i -= i / 3) { /* the last first */
            x[i] = bad[i % 4];
            lks__cuda_first_not_finite(NULL, &first, x, n);
            assert_int_equal(first, i);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_first_not_finite),
    };
    return lks_test_exit(cmocka_run_group_tests(tests, NULL, NULL));
}
