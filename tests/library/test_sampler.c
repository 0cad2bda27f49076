/* The sampler against PyTorch's DistributedSampler, index by index. */
#include "support.h"

#include "lockstep/sampler.h"

static void compare(const json_t *c)
{
    lks_sampler_options o = {
        .dataset_size = (uint64_t)lks_test_number(c, "n"),
        .replicas = (int)lks_test_number(c, "replicas"),
        .in_order = !json_is_true(lks_test_member(c, "shuffle")),
        .drop_last = json_is_true(lks_test_member(c, "drop_last")),
        .seed = (uint64_t)lks_test_number(c, "seed"),
    };
    lks_sampler *s;
    assert_ok(lks_sampler_open(&o, &s));
    lks_sampler_set_epoch(s, (uint64_t)lks_test_number(c, "epoch"));
    for (int r = 0; r < o.replicas; r++) {
        const json_t *want = json_array_get(lks_test_member(c, "indices"), (size_t)r);
        assert_int_equal(lks_sampler_count(s), json_array_size(want));
        for (size_t i = 0; i < json_array_size(want); i++)
            assert_int_equal(lks_sampler_index(s, r, i),
                             json_integer_value(json_array_get(want, i)));
    }
    lks_sampler_close(s);
}

TEST(test_as_pytorch)
{
    const json_t *cases = lks_test_member(lks_test_figure("distributed_sampler.json"), "cases");
    assert_true(json_array_size(cases) >= 10);
    for (size_t i = 0; i < json_array_size(cases); i++)
        compare(json_array_get(cases, i));
}

/* DistributedSampler's shares from its definition: ceil(n / R) samples each, or floor with
 * drop_last, dealt one by one; the first ones are repeated if there are too few. */
TEST(test_shares)
{
    for (uint64_t n = 1; n <= 24; n++)
        for (int R = 1; R <= 8; R++)
            for (int drop = 0; drop < 2; drop++) {
                lks_sampler_options o = {
                    .dataset_size = n, .replicas = R, .in_order = true, .drop_last = drop == 1};
                lks_sampler *s;
                if (drop && n < (uint64_t)R)
                    continue;
                assert_ok(lks_sampler_open(&o, &s));
                uint64_t count = 0;
                while (drop ? (count + 1) * (uint64_t)R <= n : count * (uint64_t)R < n)
                    count++;
                assert_int_equal(lks_sampler_count(s), count);
                for (int r = 0; r < R; r++)
                    for (uint64_t i = 0; i < count; i++)
                        assert_int_equal(lks_sampler_index(s, r, i),
                                         (i * (uint64_t)R + (uint64_t)r) % n);
                lks_sampler_close(s);
            }
}
