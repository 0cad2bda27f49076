/* A third family (mlp.c) in the tool: it trains, keeps the laws, resumes, and every command that
 * takes a checkpoint works with it. */
#include "../laws/laws.h"

#include <stdlib.h>
#include <string.h>

static const char *alone; /* output of one rank */

static int train_alone(void **state)
{
    alone = law_output("random", "--family=mlp", "--threads=1");
    return 0;
}

TEST(test_trains)
{
    const char *metrics = lks_test_text("%s/metrics.jsonl", alone);
    const json_t *train = lks_test_metrics(metrics, "train");
    const json_t *config = json_array_get(lks_test_metrics(metrics, "config"), 0);
    assert_int_equal(json_array_size(train), LAW_STEPS);
    assert_true(lks_test_number(json_array_get(train, LAW_LAST_ITER), "loss") <
                lks_test_number(train, "0.loss") - 0.01);
    assert_string_equal(lks_test_string(config, "family"), "mlp");
    assert_null(json_object_get(config, "num_kv_heads")); /* golf's */
}

TEST(test_ranks)
{
    law_assert_same(law_output("random", "--family=mlp", "--nproc_per_node=2"), alone);
    law_assert_same(law_output("random", "--family=mlp", "--nproc_per_node=4"), alone);
    law_assert_same(
        law_output("random", "--family=mlp", "--nproc_per_node=2", "--replicas=private"), alone);
}

TEST(test_resumes)
{
    const char *out = law_output("random", "--family=mlp", "--max_iters=6");
    law_resume("random", out, "--nproc_per_node=2");
    law_assert_same_checkpoint(out, alone, lks_test_text("ckpt-%08d", LAW_STEPS));
}

static lks_test_result use(const char *command, const char *more)
{
    return lks_test_tool(command, lks_test_text("--out_dir=%s", alone), more);
}

TEST(test_commands)
{
    lks_test_result r = assert_exits(0, use("eval", lks_test_text("--dataset=%s", law_data())));
    assert_non_null(strstr(r.out, "val loss "));
    /* without a "\n", it begins with the first character */
    assert_exits(0, use("sample", "--max_new_tokens=20"));
    r = assert_exits(0,
                     lks_test_tool("sample", lks_test_text("--out_dir=%s", alone),
                                   "--start=\xc4\x80", "--max_new_tokens=20", "--num_samples=1"));
    assert_true(strlen(r.out) > 40);
    const char *artifact = lks_test_text("%s/artifact", lks_test_folder());
    assert_exits(0, use("export", lks_test_text("--out=%s", artifact)));
    assert_exits(0, lks_test_tool("eval", lks_test_text("--artifact=%s", artifact),
                                  lks_test_text("--dataset=%s", law_data())));
    assert_exits(0, lks_test_tool("bench", "step", "--family=mlp", "--n_layer=1", "--n_embd=16",
                                  "--vocab_size=64", "--block_size=8", "--iters=1"));
    r = lks_test_tool("train", "--help=model");
    assert_non_null(strstr(r.out, "mlp: layers"));
}

/* The tool without this family names the setting that it doesn't know. */
TEST(test_other_tool)
{
    char *with = strdup(getenv("LKS_TEST_PROGRAM"));
    assert_non_null(with);
    unsetenv("LKS_TEST_PROGRAM");
    lks_test_result r = use("eval", lks_test_text("--dataset=%s", law_data()));
    setenv("LKS_TEST_PROGRAM", with, 1);
    free(with);
    assert_int_equal(r.exit_code, 1);
    assert_non_null(strstr(r.err, "the setting family is not gpt2 or golf"));
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    setenv("LKS_TEST_PROGRAM", argv[1], 1);
    return lks_test_run_all(train_alone, NULL);
}
