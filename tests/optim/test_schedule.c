/* Rates and momentum against values computed with the text of parameter-golf's script. */
#include "support.h"

#include "lockstep/schedule.h"
#include "model/optim/optimizer.h"
#include "model/optim/schedule.h"

static double column(const json_t *row, size_t i)
{
    const json_t *value = json_array_get(row, i);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

TEST(test_lr_scale)
{
    const json_t *rows = lks_test_member(lks_test_figure("golf_optim.json"), "schedule.rows"), *row;
    size_t index, by_clock = 0, below_one = 0;
    json_array_foreach(rows, index, row)
    {
        int64_t iterations = (int64_t)column(row, 0), warmdown = (int64_t)column(row, 1);
        double max_ms = 1000.0 * column(row, 2), want = column(row, 5);
        int64_t iter = (int64_t)column(row, 3);
        double got = max_ms > 0.0 ? lks__golf_lr_scale_clock(max_ms, warmdown, iter, column(row, 4))
                                  : lks__golf_lr_scale(iterations, warmdown, iter);
        if (got != want)
            fail_msg("row %zu: %.17g, should be %.17g", index, got, want);
        if (max_ms <= 0.0 && iterations >= 0 && warmdown >= 0)
            assert_true(lks_lr_warmdown((uint64_t)iterations, (uint64_t)warmdown, (uint64_t)iter) ==
                        want);
        by_clock += max_ms > 0.0;
        below_one += want < 1.0;
    }
    assert_true(index > 200 && by_clock > 100 && below_one > 20);
}

TEST(test_momentum)
{
    const json_t *rows = lks_test_member(lks_test_figure("golf_optim.json"), "momentum.rows"), *row;
    size_t index;
    json_array_foreach(rows, index, row)
    {
        double got = lks__muon_momentum(column(row, 0), column(row, 1), (int64_t)column(row, 2),
                                        (int64_t)column(row, 3));
        if (got != column(row, 4))
            fail_msg("row %zu: %.17g, should be %.17g", index, got, column(row, 4));
    }
    assert_int_equal(index, 27);
}

/* nanoGPT's rate: up to the peak in iteration warmup_iters, then down to min_lr, at once if no
 * iterations are left for that. */
TEST(test_cosine)
{
    static const struct {
        uint64_t iter;
        double lr;
    } rows[] = {{0, 0.2}, {1, 0.4}, {3, 0.8}, {4, 1.0}, {7, 0.55}, {10, 0.1}, {11, 0.1}};
    const lks__cosine cosine = {1.0, 0.1, 4, 10};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const double lr = lks__cosine_lr(&cosine, rows[i].iter);
        assert_near(lr, rows[i].lr, 1e-15);
        assert_true(lks_lr_cosine(1.0, 0.1, 4, 10, rows[i].iter) == lr);
    }
    assert_true(lks__cosine_lr(&(lks__cosine){0.7, 0.1, 2, 10}, 2) == 0.7); /* not 0.7 * 3 / 3 */
    assert_true(lks__cosine_lr(&(lks__cosine){1.0, 0.1, 4, 4}, 4) == 1.0);
    assert_true(lks__cosine_lr(&(lks__cosine){1.0, 0.1, 4, 4}, 5) == 0.1);
}

/* A step: two products of a matrix with n x n, one of them symmetric, and a symmetric one of n x n,
 * n the shorter side. */
TEST(test_muon_flops)
{
    assert_true(lks__muon_flops(2, 3, 5) == 5 * (3 * 2 * 6 + 8));
    assert_true(lks__muon_flops(3, 2, 5) == lks__muon_flops(2, 3, 5));
}
