/* The same run on any number of ranks and threads, with shared and with private replicas. */
#include "laws.h"

#include <stdlib.h>
#include <string.h>

#include "base/number/cpu.h"

static const char *alone[2]; /* outputs of one rank with one thread: random, nanogpt */

/* What the host does at every level (samplers, replicas, buckets, the order of a sum over ranks)
 * doesn't depend on the kernels: those tests are run once, with the small model. */
static bool host;

static bool only_kernels(void)
{
    return !host && !lks_test_on_device();
}

static int train_alone(void **state)
{
    alone[0] = law_output("random", LAW_REFERENCE);
    if (!only_kernels())
        alone[1] = law_output("nanogpt", LAW_REFERENCE);
    return 0;
}

/* The last host line has the number of micro-batches of each rank: its own part exactly. */
static void assert_own_work(const char *out, int W)
{
    const json_t *hosts = lks_test_record(out, "host");
    assert_int_equal(json_array_size(hosts), 2);
    const json_t *last = json_array_get(hosts, 1);
    assert_int_equal(lks_test_number(last, "world_size"), W);
    const json_t *done = lks_test_member(last, "micro_batches");
    assert_int_equal(json_array_size(done), W);
    for (int r = 0; r < W; r++)
        assert_int_equal(json_integer_value(json_array_get(done, (size_t)r)),
                         ((r + 1) * LAW_V / W - r * LAW_V / W) * LAW_A * LAW_STEPS);
}

/* The reference run really trains, evaluates and saves as requested. */
TEST(test_alone)
{
    for (int i = 0; i < (only_kernels() ? 1 : 2); i++) {
        const json_t *train = lks_test_record(alone[i], "train");
        assert_int_equal(json_array_size(train), LAW_STEPS);
        assert_int_equal(json_array_size(lks_test_record(alone[i], "eval")), 4);
        assert_int_equal(json_array_size(lks_test_record(alone[i], "config")), 1);
        assert_int_equal(json_array_size(lks_test_record(alone[i], "checkpoint")), 7);
        assert_int_equal(law_count_checkpoints(alone[i]), 7);
        assert_true(lks_test_number(json_array_get(train, LAW_LAST_ITER), "loss") <
                    lks_test_number(train, "0.loss") - 0.02);
        for (size_t s = 0; s < LAW_STEPS; s++)
            assert_true(lks_test_number(json_array_get(train, s), "grad_norm") > 0.25);
        assert_own_work(alone[i], 1);
    }
    if (!only_kernels())
        assert_string_not_equal(law_lines(alone[0]), law_lines(alone[1]));
}

static const char *check(int W, const char *const more[])
{
    const char *all[5] = {lks_test_text("--nproc_per_node=%d", W)};
    for (int i = 1; *more != NULL; more++)
        all[i++] = *more;
    const char *out = law_trained("random", all);
    law_assert_same(out, alone[0]);
    assert_own_work(out, W);
    return out;
}
#define check_ranks(W, ...) check((W), (const char *const[]){__VA_ARGS__, NULL})

/* Without --threads the ranks of a host divide its cores. */
static void assert_threads(const char *out, int W)
{
    const json_t *hosts = lks_test_record(out, "host");
    int cores = lks__cpu_count();
    assert_int_equal(lks_test_number(hosts, "0.threads"), cores > W ? cores / W : 1);
}

TEST(test_even_ranks)
{
    for (int W = lks_test_on_level() ? 8 : 2; W <= 8; W *= only_kernels() ? 4 : 2)
        assert_threads(check_ranks(W, NULL), W);
}

TEST(test_uneven_ranks)
{
    check_ranks(3, "--allow_uneven");
    check_ranks(7, "--allow_uneven");
    if (lks_test_on_device())
        return;
    check_ranks(5, "--allow_uneven");
    check_ranks(6, "--allow_uneven");
}

TEST(test_private_replicas)
{
    if (lks_test_on_device())
        return; /* it has no others */
    check_ranks(1, "--replicas=private");
    check_ranks(2, "--replicas=private");
    check_ranks(8, "--replicas=private");
    check_ranks(3, "--replicas=private", "--allow_uneven");
}

TEST(test_threads)
{
    check_ranks(1, "--threads=3");
    check_ranks(2, "--threads=2");
    if (!lks_test_on_level())
        check_ranks(1, "--threads=2");
}

/* The size of buckets changes nothing either. */
TEST(test_buckets)
{
    check_ranks(2, "--bucket_mb=0");
    check_ranks(4, "--bucket_mb=4");
}

/* Two virtual ranks with more micro-steps each are another run, the same on any number of ranks. */
TEST(test_virtual_ranks)
{
    const char *one = law_output("random", "--virtual_ranks=2");
    const char *two = law_output("random", "--virtual_ranks=2", "--nproc_per_node=2");
    law_assert_same(two, one);
    assert_string_not_equal(law_lines(one), law_lines(alone[0]));
}

TEST(test_nanogpt_sampler)
{
    law_assert_same(law_output("nanogpt", "--nproc_per_node=4"), alone[1]);
    law_assert_same(law_output("nanogpt", "--nproc_per_node=3", "--allow_uneven"), alone[1]);
}

TEST(test_epoch_sampler)
{
    const char *one = law_output("epoch", LAW_REFERENCE);
    law_assert_same(law_output("epoch", "--nproc_per_node=4"), one);
    law_assert_same(law_output("epoch", "--nproc_per_node=3", "--allow_uneven"), one);
    assert_string_not_equal(law_lines(one), law_lines(alone[0]));
}

static void assert_other_weights(const char *out)
{
    size_t a_bytes, b_bytes;
    const char *a = lks_test_read(lks_test_text("%s/latest/model.safetensors", out), &a_bytes);
    const char *b = lks_test_read(lks_test_text("%s/latest/model.safetensors", alone[0]), &b_bytes);
    assert_int_equal(a_bytes, b_bytes);
    assert_memory_not_equal(a, b, a_bytes);
}

/* Equal bytes would mean little if all runs had them. */
TEST(test_other_runs)
{
    assert_other_weights(law_output("random", "--seed=1338"));
    assert_other_weights(law_output("random", "--dropout=0"));
}

static const char *output_of(lks_test_result r)
{
    assert_exits(0, r);
    assert_true(strlen(r.out) > 0);
    return r.out;
}

/* The loss over a whole split, in all digits. */
TEST(test_eval)
{
    const char *data = lks_test_text("--dataset=%s", law_data());
    const char *out = lks_test_text("--out_dir=%s", alone[0]);
    const char *one = output_of(lks_test_tool("eval", data, out, "--threads=1"));
    for (int W = 2; W <= 5; W += 3)
        assert_string_equal(
            output_of(lks_test_tool("eval", data, out, lks_test_text("--nproc_per_node=%d", W))),
            one);
}

/* The same seed writes the same text on any number of threads, another seed another text. */
TEST(test_sample)
{
    const char *out = lks_test_text("--out_dir=%s", alone[0]);
    static const char start[] = "--start=\u0101\u0102", n[] = "--max_new_tokens=60";
    const char *one = output_of(
        lks_test_tool("sample", out, start, n, "--num_samples=2", "--seed=5", "--threads=1"));
    assert_string_equal(output_of(lks_test_tool("sample", out, start, n, "--num_samples=2",
                                                "--seed=5", "--threads=3")),
                        one);
    assert_string_not_equal(output_of(lks_test_tool("sample", out, start, n, "--num_samples=2",
                                                    "--seed=6", "--threads=1")),
                            one);
    /* and no two samples of a run are the same */
    static const char end[] = "\n---------------\n";
    const char *second = lks_test_find(one, end);
    second += strlen(end);
    assert_true(strncmp(one, second, (size_t)(second - one)) != 0);
}

/* `laws_ranks host`: what doesn't depend on the kernels. A device runs all. */
int main(int argc, char **argv)
{
    host = argc > 1 && strcmp(argv[1], "host") == 0;
    lks_test_need_level(NULL);
    if (only_kernels()) {
        law_wide_model();
        lks_test_only("test_alone", "test_even_ranks", "test_threads", "test_eval", "test_sample");
    }
    return lks_test_run_all(train_alone, NULL);
}
