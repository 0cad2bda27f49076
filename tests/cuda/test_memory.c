/* Zeros, sums, copies and searches: src/compute/cuda/kernels/memory.cu. */
#include "support.h"

#include <float.h>
#include <math.h>

#include "host.h"

/* Less than four, whole fours and a rest, several blocks. */
static const size_t lengths[] = {0, 1, 3, 4, 31, 1024, 5003};
enum { LENGTHS = sizeof lengths / sizeof *lengths, LONGEST = 5003 };

/* Parts that begin at any element of an array. */
TEST(test_ranges)
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

/* The same of activations, as floats and in bfloat16: a sum is rounded to nearest, ties to even. */
TEST(test_act_ranges)
{
    const float *x = host_randoms(LONGEST + 3, 1), *y = host_randoms(LONGEST + 3, 2);
    for (int halves = 0; halves < 2; halves++) {
        host_halves(halves == 1);
        const float *stored_x = host_as_stored(x, LONGEST + 3);
        const float *stored_y = host_as_stored(y, LONGEST + 3);
        EACH_ORDER(seed)
        for (size_t l = 0; l < LENGTHS; l++)
            for (size_t at = 0; at < 4; at++) {
                const size_t n = lengths[l];
                lks__act *acts = host_acts(x, LONGEST + 3), *sums = host_acts(y, LONGEST + 3);
                lks__act *cleared = host_empty_acts(n), *copied = host_empty_acts(n);
                float *want = host_copy(stored_y, LONGEST + 3);
                for (size_t i = 0; i < n; i++)
                    want[3 - at + i] += stored_x[at + i];
                want = host_as_stored(want, LONGEST + 3);
                lks__cuda_act_clear(NULL, cleared, n);
                lks__cuda_act_copy(NULL, copied, host_act_at(acts, at), n);
                lks__cuda_act_accumulate(NULL, host_act_at(sums, 3 - at), host_act_at(acts, at), n);
                const float *zeros = host_act_floats(cleared, n);
                for (size_t i = 0; i < n; i++)
                    assert_true(zeros[i] == 0.0f && !signbit(zeros[i]));
                assert_bits(host_act_floats(copied, n), stored_x + at, n);
                assert_bits(host_act_floats(sums, LONGEST + 3), want, LONGEST + 3);
            }
    }
    host_halves(false);
}

/* y may be anything but what is added to. */
TEST(test_first_not_finite)
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

/* Parts that begin at any element. Rounded to bfloat16, the largest float is infinite. */
TEST(test_act_first_not_finite)
{
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY, FLT_MAX};
    for (int halves = 0; halves < 2; halves++) {
        host_halves(halves == 1);
        EACH_ORDER(seed)
        for (size_t l = 0; l < LENGTHS; l++) {
            const size_t n = lengths[l];
            uint64_t first = 12345;
            lks__cuda_act_first_not_finite(NULL, &first, host_acts(host_randoms(n, 3), n), n);
            assert_int_equal(first, n);
            for (size_t i = n; i-- > 0; i -= i / 3) {
                const size_t at = i % 4;
                float *x = host_randoms(n + at, 3);
                x[at + n - 1] = NAN;
                x[at + i] = bad[i % (halves == 1 ? 5 : 4)];
                lks__act *acts = host_acts(x, n + at);
                lks__cuda_act_first_not_finite(NULL, &first, host_act_at(acts, at), n);
                assert_int_equal(first, i);
            }
        }
    }
    host_halves(false);
}
