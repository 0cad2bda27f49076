/* --dtype=bfloat16 of gpt2: the same bytes on any ranks and threads, close to float32 and different
 * from it. */
#include "laws.h"

#include <stdlib.h>
#include <string.h>

static const char *alone, *full; /* outputs of one rank with one thread: bfloat16, float32 */

/* A setting of all runs: plain C takes 20 times as long as the other levels. */
static const char *batch = "--batch_size=6";

static int train_alone(void **state)
{
    alone = law_output("random", LAW_REFERENCE, "--dtype=bfloat16", batch);
    full = law_output("random", LAW_REFERENCE, batch);
    return 0;
}

TEST(test_near_float32)
{
    const json_t *a = lks_test_record(alone, "train");
    const json_t *b = lks_test_record(full, "train");
    int n_other = 0;
    assert_int_equal(json_array_size(a), LAW_STEPS);
    for (size_t i = 0; i < LAW_STEPS; i++) {
        double loss = lks_test_number(json_array_get(a, i), "loss");
        double want = lks_test_number(json_array_get(b, i), "loss");
        assert_near(loss, want, 3e-2);
        n_other += loss != want;
        double norm = lks_test_number(json_array_get(b, i), "grad_norm");
        assert_near(lks_test_number(json_array_get(a, i), "grad_norm"), norm, 3e-2 * norm);
    }
    assert_true(n_other > LAW_STEPS / 2);
}

TEST(test_ranks_and_threads)
{
    static const char bf16[] = "--dtype=bfloat16";
    if (lks_test_on_level()) {
        law_assert_same(law_output("random", bf16, batch, "--nproc_per_node=8", "--threads=3"),
                        alone);
        return;
    }
    law_assert_same(law_output("random", bf16, batch, "--nproc_per_node=8"), alone);
    law_assert_same(law_output("random", bf16, batch, "--threads=3"), alone);
    law_assert_same(law_output("random", bf16, batch, "--nproc_per_node=2"), alone);
    law_assert_same(law_output("random", bf16, batch, "--nproc_per_node=3", "--allow_uneven"),
                    alone);
}

TEST(test_private_replicas)
{
    law_assert_same(
        law_output("random", "--dtype=bfloat16", "--nproc_per_node=2", "--replicas=private"),
        alone);
}

/* Resuming from a checkpoint in another dtype than the run had: recorded, and the same bytes on any
 * ranks. */
TEST(test_resume_in_another)
{
    enum { BEFORE = 6 };
    static const char *outs[2];
    for (int W = 1; W <= 2; W++) {
        const char *out = law_output("random", "--threads=1", "--max_iters=5");
        law_resume("random", out, "--dtype=bfloat16", lks_test_text("--nproc_per_node=%d", W));
        outs[W - 1] = out;
    }
    law_assert_same(outs[1], outs[0]);

    const json_t *host = lks_test_record(outs[0], "host");
    /* The last one is of its end. */
    const json_t *went_on = json_array_get(host, json_array_size(host) - 2);
    const char *dtype =
        json_string_value(json_object_get(lks_test_member(went_on, "changed"), "dtype"));
    assert_non_null(dtype);
    assert_string_equal(dtype, "bfloat16");

    const json_t *a = lks_test_record(outs[0], "train");
    const json_t *b = lks_test_record(full, "train");
    int n_other = 0;
    assert_int_equal(json_array_size(a), LAW_STEPS);
    for (size_t i = 0; i < LAW_STEPS; i++) {
        double loss = lks_test_number(json_array_get(a, i), "loss");
        double want = lks_test_number(json_array_get(b, i), "loss");
        assert_near(loss, want, i < BEFORE ? 0 : 3e-2);
        n_other += loss != want;
    }
    assert_true(n_other > (LAW_STEPS - BEFORE) / 2);
}

static const char *eval_of(const char *dtype)
{
    const char *data = lks_test_text("--dataset=%s", law_data());
    const char *out = lks_test_text("--out_dir=%s", alone);
    return lks_test_do("lockstep", "eval", data, out, "--threads=1", dtype).out;
}

/* Its checkpoints hold float32 weights; they are used in the run's dtype unless another is
 * given. */
TEST(test_eval)
{
    const char *run = eval_of("--nproc_per_node=1");
    assert_string_equal(run, eval_of("--dtype=bfloat16"));
    assert_string_not_equal(run, eval_of("--dtype=float32"));
}

int main(void)
{
    lks_test_need_level(NULL);
    if (!lks_test_on_device())
        law_wide_model();
    if (lks_test_on_level() && strcmp(getenv("LOCKSTEP_CPU"), "plain") == 0)
        batch = "--batch_size=2";
    /* At a kernel level that was asked for, what the host does at every level is left out. */
    if (lks_test_on_level())
        lks_test_only("test_near_float32", "test_ranks_and_threads");
    return lks_test_run_all(train_alone, NULL);
}
