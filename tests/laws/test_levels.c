/* Whole runs in float32 have the same bytes at every kernel level, with oneDNN and without it. The
 * models are small, but as wide as those of users: differences between orders of sums show only
 * where an inner dimension is longer than a block (LKS__GEMM_DEPTH). */
#include "laws.h"

#include <stdlib.h>

#include "base/number/cpu.h"

#define GPT2                                                                                       \
    "--n_layer=1", "--n_head=6", "--n_embd=384", "--block_size=64", "--batch_size=3",              \
        "--max_iters=1", "--eval_iters=1", "--checkpoint_interval=2", "--bucket_mb=1",             \
        "--gradient_accumulation_steps=2", "--virtual_ranks=2"
#define GOLF                                                                                       \
    "--n_layer=1", "--n_head=8", "--num_kv_heads=4", "--n_embd=512", "--block_size=64",            \
        "--train_batch_tokens=512", "--gradient_accumulation_steps=2", "--virtual_ranks=2",        \
        "--iterations=1", "--eval_interval=0", "--bucket_mb=1"

static const char *trained(bool golf, const char *level, bool library, int ranks)
{
    static const char *const more[2][12] = {{GPT2, NULL}, {GOLF, NULL}};
    const char *out = lks_test_folder();
    law_args args = law_family(golf, out);
    for (int i = 0; more[golf][i] != NULL; i++)
        law_add(&args, "%s", more[golf][i]);
    law_add(&args, "--nproc_per_node=%d", ranks);
    const char *const env[] = {lks_test_text("LOCKSTEP_CPU=%s", level),
                               library ? NULL : "LD_LIBRARY_PATH=" LKS_TEST_NO_DNNL, NULL};
    const lks_test_result r = lks_test_run(args.argv, env, 300);
    if (r.exit_code != 0)
        fail_msg("%s: exit code %d: %s", level, r.exit_code, r.err);
    return out;
}

static void check_family(bool golf)
{
    static const struct run {
        lks__cpu_level level;
        bool library;
        int ranks;
    } runs[] = {{LKS__CPU_AVX2, true, 1},
                {LKS__CPU_AVX2, false, 2},
                {LKS__CPU_AVX512, true, 2},
                {LKS__CPU_AVX512, false, 1}};
    const char *reference = trained(golf, "plain", false, 1);
    lks__cpu_level best;
    assert_ok(lks__cpu_level_get(&best));
    for (size_t i = 0; i < sizeof runs / sizeof runs[0] && runs[i].level <= best; i++)
        law_assert_same(
            trained(golf, lks__cpu_level_name(runs[i].level), runs[i].library, runs[i].ranks),
            reference);
}

static void test_gpt2(void **state)
{
    check_family(false);
}

static void test_golf(void **state)
{
    check_family(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gpt2), cmocka_unit_test(test_golf)};
    return lks_test_exit(cmocka_run_group_tests(tests, NULL, NULL));
}
