/* Ranks that were started with different settings, data or kernels don't compute one run: they
 * report it, and make no step. */
#include "laws.h"
#include "marked.h"
#include "poison.h"

#include <string.h>
#include <unistd.h>

#include "base/number/cpu.h"

#define OTHER "9.9.9" LKS_VERSION_SUFFIX
_Static_assert(sizeof OTHER == sizeof LKS_VERSION_TEXT, "the copy keeps its offsets");

/* The run on two ranks, each started by a shell, which executes `each` first and adds `more` to the
 * settings. */
static lks_test_result started(const char *each, const char *more, const char **out_p)
{
    law_args run = law_train("random", out_p), args = {.n = 0};
    const char *mark = marked_variable();
    law_add(&args, "%s", lks_test_program());
    law_add_all(&args, "run", "--nproc-per-node=2");
    law_add_shell(&args, &run, "%s; exec \"$0\" \"$@\" %s", each, more);
    lks_test_result r = lks_test_run(args.argv, (const char *const[]){mark, NULL}, 60);
    marked_assert_gone(mark, 2);
    return r;
}

/* Both ranks end with one sentence that names what differs, and both values. */
static void expect_refused(const char *each, const char *more, const char *what, const char *first,
                           const char *second)
{
    const char *out;
    char host[65] = "";
    gethostname(host, sizeof host - 1);
    assert_exits(
        1, started(each, more, &out),
        lks_test_text("%s differs between ranks: rank 0 (host %s) has %s", what, host, first),
        lks_test_text(", rank 1 (host %s) has %s", host, second));
    assert_false(lks_test_exists(lks_test_text("%s/metrics.jsonl", out)));
}

TEST(test_settings)
{
    static const char *const different[][4] = {
        {"--seed=$((7 + RANK))", "seed", "7,", "8:"},
        {"--learning_rate=0.00$((1 + RANK))", "learning_rate", "0.001,", "0.002:"},
        {"--eval_interval=$((4 + RANK))", "eval_interval", "4,", "5:"},
        {"--check_interval=$((4 + RANK))", "check_interval", "4,", "5:"},
        {"--bucket_mb=$((4 + RANK)).1", "bucket_mb", "4.1,", "5.1:"},
        {"--zero=$RANK", "zero", "0,", "1:"},
        {"--n_layer=$((1 + RANK))", "n_layer", "1,", "2:"},
        {"--virtual_ranks=$((2 + RANK))", "virtual_ranks", "2,", "3:"},
        {"--freeze=w$([ $RANK = 0 ] && echo p || echo t)e", "freeze", "wpe,", "wte:"},
        {"--freeze=$([ $RANK = 0 ] || echo wte)", "freeze", "(none),", "wte:"},
        {"--dtype=$([ $RANK = 0 ] && echo float32 || echo bfloat16)", "dtype", "float32,",
         "bfloat16:"},
        {"--replicas=$([ $RANK = 0 ] && echo private || echo shared)", "replicas", "private,",
         "shared:"},
        {"$([ $RANK = 0 ] || echo --batch_size=auto)", "batch_size", "a number,", "auto"},
        {"$([ $RANK = 0 ] || echo --init_from=resume)", "init_from", "scratch,", "resume"},
        /* The first one in the order of the help is named. */
        {"--beta1=0.$((1 + RANK)) --dropout=0.$((1 + RANK)) --grad_clip=$RANK", "dropout", "0.1,",
         "0.2:"},
    };
    for (size_t i = 0; i < sizeof different / sizeof different[0]; i++)
        expect_refused(":", different[i][0], different[i][1], different[i][2], different[i][3]);
}

/* On one host the shared memory alone and an engine with one host give the same bits, and start
 * other operations. */
TEST(test_backend)
{
    lks_test_need_gloo();
    expect_refused(":", "--backend=$([ $RANK = 0 ] && echo auto || echo gloo)", "backend", "shm,",
                   "gloo:");
    expect_refused(":", "--backend=$([ $RANK = 1 ] && echo shm || echo gloo)", "backend", "gloo,",
                   "shm:");
}

/* Others may differ, also if they decide what ranks do on the way. */
TEST(test_free_settings)
{
    const char *out;
    assert_exits(0, started(":",
                            "--bind=$([ $RANK = 0 ] && echo none || echo auto) --max_iters=2 "
                            "--recompute=$([ $RANK = 0 ] && echo none || echo block) "
                            "--threads=$((1 + RANK)) --keep=$((1 + RANK)) "
                            "--timeout=$((50 + RANK)) --skip_fit_check=$RANK "
                            "--log_interval=$((1 + RANK))",
                            &out));
}

/* A copy of the program that has another version. */
TEST(test_version)
{
    const char *other = lks_test_text("%s/lockstep", lks_test_folder());
    lks_test_do("sh", "-ec",
                lks_test_text("v=$(echo " LKS_VERSION_TEXT " | sed 's/[.]/[.]/g'); LC_ALL=C sed "
                              "\"s/$v/" OTHER "/g\" '%s' >'%s'; chmod +x '%s'",
                              lks_test_program(), other, other));
    expect_refused(lks_test_text("[ $RANK = 0 ] || exec '%s' \"$@\"", other), "",
                   "the version of lockstep", LKS_VERSION_TEXT ",", OTHER);
}

/* One token differs, in the middle of the training data or of the validation data. */
TEST(test_data)
{
    static const char *const files[] = {"train.bin", "val.bin"};
    for (int i = 0; i < 2; i++) {
        const char *two = lks_test_folder();
        for (int rank = 0; rank < 2; rank++)
            lks_test_do("cp", "-r", law_data(), lks_test_text("%s/%d", two, rank));
        lks_test_alter(lks_test_text("%s/1/%s", two, files[i]), 2 * 10001);
        expect_refused(":", lks_test_text("--dataset=%s/$RANK", two), "the data",
                       lks_test_text("%s/0 (digest ", two), lks_test_text("%s/1 (digest ", two));
    }
    /* Equal data in two folders are one run. */
    const char *both = lks_test_folder(), *out;
    assert_exits(0, started(lks_test_text("cp -r '%s' '%s'/$RANK", law_data(), both),
                            lks_test_text("--dataset='%s'/$RANK --max_iters=2", both), &out));
}

static const char *final_hash(const char *out)
{
    const json_t *lines = lks_test_record(out, "checkpoint");
    assert_true(json_array_size(lines) > 0);
    return lks_test_string(lines, "-1.params_hash");
}

/* Each rank uses its own level, and the bytes are the same. A resume at another level has the same
 * bits; one of a checkpoint with another fingerprint says that its bytes differ from here on. */
TEST(test_kernels)
{
    lks__cpu_level level;
    assert_ok(lks__cpu_level_get(&level));
    /* The highest level without its own products of bfloat16, on which ranks must agree. */
    const char *best = lks__cpu_level_name(level < LKS__CPU_AVX512 ? level : LKS__CPU_AVX512);
    const char *hash = NULL;
    for (int other = 1; other >= 0; other--) {
        const char *out;
        assert_exits(0, started(lks_test_text("[ $RANK = %d ] && export LOCKSTEP_CPU=plain", other),
                                "--max_iters=2", &out));
        const json_t *line = json_array_get(lks_test_record(out, "host"), 0);
        assert_string_equal(lks_test_string(line, "kernels"), other == 0 ? "plain" : best);
        if (hash != NULL)
            assert_string_equal(final_hash(out), hash);
        hash = final_hash(out);
        if (other == 1 || level == LKS__CPU_PLAIN)
            continue;
        /* A resume at another level has the same bits. */
        const char *const resume[] = {"lockstep",
                                      "train",
                                      lks_test_text("--dataset=%s", law_data()),
                                      lks_test_text("--out_dir=%s", out),
                                      "--init_from=resume",
                                      "--max_iters=2",
                                      NULL};
        static const char warning[] = "from here on its bytes differ";
        lks_test_result r = assert_exits(0, lks_test_run(resume, NULL, 60));
        assert_null(strstr(r.err, warning));
        poison_fingerprint(out);
        assert_exits(0, lks_test_run(resume, NULL, 60), warning);
    }
}

/* Products are the same with oneDNN and without it, so ranks may differ in it. */
TEST(test_own_products)
{
    static const char *const lacks[] = {"[ $RANK = 0 ]", "[ $RANK = 1 ]", "true", "false"};
    const char *first = NULL;
    for (int i = 0; i < 4; i++) {
        const char *out;
        if (i != 2 && !lks__kernels_have_library())
            lks_test_lacks("onednn", "there are no products but lockstep's own");
        assert_exits(
            0, started(lks_test_text("%s && export LD_LIBRARY_PATH=%s", lacks[i], LKS_TEST_NO_DNNL),
                       "--max_iters=2", &out));
        const char *hash = final_hash(out);
        first = first == NULL ? hash : first;
        assert_string_equal(hash, first);
    }
}
