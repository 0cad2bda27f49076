/* Whole runs in float32 have the same bytes at every kernel level, with oneDNN and without it, and
 * if ranks have different levels. The models are small, but wider than a block (LKS__GEMM_DEPTH):
 * differences between orders of sums show only in longer inner dimensions. */
#include "laws.h"

#include "base/number/cpu.h"

#define GPT2                                                                                       \
    "--n_layer=1", "--n_head=6", "--n_embd=288", "--block_size=20", "--batch_size=1",              \
        "--max_iters=1", "--eval_iters=1", "--checkpoint_interval=2", "--bucket_mb=1",             \
        "--gradient_accumulation_steps=2", "--virtual_ranks=2"
#define GOLF                                                                                       \
    "--n_layer=1", "--n_head=8", "--num_kv_heads=4", "--n_embd=320", "--block_size=20",            \
        "--train_batch_tokens=40", "--val_batch_size=40", "--gradient_accumulation_steps=2",       \
        "--virtual_ranks=2", "--iterations=1", "--eval_interval=0", "--bucket_mb=1",               \
        "--muon_backend_steps=2"

/* A run of one rank per level. `dtype`: one more setting. */
static const char *trained(bool golf, const lks__cpu_level levels[], int ranks, bool library,
                           const char *dtype)
{
    static const char *const more[2][15] = {{GPT2, NULL}, {GOLF, NULL}};
    const char *out = lks_test_folder();
    const law_args run = law_family(golf, out);
    law_args args = {.n = 0};
    law_add_line(&args, "lockstep run --nproc-per-node=%d", ranks);
    law_add_shell(&args, &run, "eval export LOCKSTEP_CPU=\\$LEVEL_$RANK; exec \"$0\" \"$@\"");
    law_add_words(&args, more[golf]);
    if (golf)
        law_add(&args, "--dataset=%s", law_golf_data(41));
    law_add(&args, "%s", dtype);
    const char *const env[] = {lks_test_text("LEVEL_0=%s", lks__cpu_level_name(levels[0])),
                               lks_test_text("LEVEL_1=%s", lks__cpu_level_name(levels[ranks - 1])),
                               library ? NULL : "LD_LIBRARY_PATH=" LKS_TEST_NO_DNNL, NULL};
    assert_exits(0, lks_test_run(args.argv, env, 300));
    return out;
}

static void check_family(bool golf)
{
    static const struct run {
        lks__cpu_level levels[2];
        int ranks;
        bool library;
    } runs[] = {{{LKS__CPU_PLAIN, LKS__CPU_AVX2}, 2, false}, /* plain C: the slowest by far */
                {{LKS__CPU_AVX2}, 1, true},
                {{LKS__CPU_AVX512, LKS__CPU_AVX2}, 2, true},
                {{LKS__CPU_AVX512}, 1, false}};
    static const char float32[] = "--dtype=float32";
    const char *reference = NULL;
    lks__cpu_level best;
    assert_ok(lks__cpu_level_get(&best));
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        if (runs[i].levels[0] > best || runs[i].levels[1] > best)
            continue;
        const char *out = trained(golf, runs[i].levels, runs[i].ranks, runs[i].library, float32);
        if (reference != NULL)
            law_assert_same(out, reference);
        reference = out;
    }
}

TEST(test_gpt2)
{
    check_family(false);
}

TEST(test_golf)
{
    check_family(true);
}

/* In bfloat16 ranks use one kind of products. */
TEST(test_bf16)
{
    static const char bf16[] = "--dtype=bfloat16";
    lks__cpu_level levels[] = {LKS__CPU_PLAIN, LKS__CPU_PLAIN};
    assert_ok(lks__cpu_level_get(&levels[1]));
    const char *reference = trained(false, levels, 1, false, bf16);
    law_assert_same(trained(false, levels, 2, true, bf16), reference);
}
