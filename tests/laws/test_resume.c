/* A run that was killed at any moment and resumed on another number of ranks leaves the bytes of an
 * uninterrupted run. */
#include "laws.h"
#include "marked.h"

#include <signal.h>
#include <string.h>

static const char *whole[2]; /* outputs of uninterrupted runs */
static const char *const samplers[2] = {"random", "nanogpt"};

static int train_whole(void **state)
{
    for (int i = 0; i < 2; i++)
        whole[i] = law_output(samplers[i], LAW_REFERENCE);
    return 0;
}

/* A run whose rank `rank` gets SIGKILL by `fault` (base/system/sys.h). */
static const char *killed_run(const char *sampler, int W, int rank, const char *fault)
{
    const char *out, *mark = marked_variable();
    law_args args = law_train(sampler, &out);
    law_add_line(&args, "--nproc_per_node=%d --allow_uneven", W);
    const char *env[] = {lks_test_text("LOCKSTEP_FAULT=%s", fault),
                         lks_test_text("LOCKSTEP_FAULT_RANK=%d", rank), mark, NULL};
    assert_exits(128 + SIGKILL, lks_test_run(args.argv, env, 60), lks_test_text("rank %d", rank));
    marked_assert_gone(mark, 2);
    assert_true(law_count_checkpoints(out) > 0);
    assert_false(lks_test_exists(lks_test_text("%s/ckpt-%08d", out, LAW_STEPS)));
    return out;
}

static void resume_and_compare(int which, const char *out, int W)
{
    law_resume(samplers[which], out, lks_test_text("--nproc_per_node=%d", W), "--allow_uneven");
    law_assert_same(out, whole[which]);
}

/* Ranks die in the middle of a step, while they read one of its samples. */
TEST(test_killed_rank)
{
    const char *out = killed_run("random", 4, 2, "read:200:die");
    resume_and_compare(0, out, 1);
    out = killed_run("random", 2, 1, "read:300:die");
    resume_and_compare(0, out, 8);
    out = killed_run("nanogpt", 3, 0, "read:250:die");
    resume_and_compare(1, out, 2);
    out = killed_run("nanogpt", 8, 7, "read:100:die");
    resume_and_compare(1, out, 5);
}

TEST(test_killed_twice)
{
    const char *out = killed_run("random", 4, 3, "read:120:die");
    law_args args;
    const char *unused;
    args = law_train("random", &unused);
    law_add(&args, "--out_dir=%s", out);
    law_add_all(&args, "--init_from=resume", "--nproc_per_node=2");
    const char *env[] = {"LOCKSTEP_FAULT=read:150:die", "LOCKSTEP_FAULT_RANK=1", NULL};
    assert_exits(128 + SIGKILL, lks_test_run(args.argv, env, 60));
    resume_and_compare(0, out, 4);
}

/* Rank 0 dies in a save, or just after it, at each kind of call that only saves make. The first
 * save's folder is already in place, the second one's is in each possible state. The second is the
 * best, so that some die between saving it and naming it. */
TEST(test_killed_in_save)
{
    static const struct {
        const char *fault;
        int W; /* ranks of the resume */
    } deaths[] = {
        {"fsync:6:die", 1},        {"fsync:7:die", 4},         {"fsync:9:die", 2},
        {"fsync:10:die-after", 8}, {"fsync:11:die", 1},        {"rename:2:die", 4},
        {"rename:3:die", 3},       {"rename:3:die-after", 1},  {"rename:4:die", 2},
        {"rename:4:die-after", 8}, {"symlink:2:die-after", 4}, {"unlink:4:die", 1},
        {"unlink:5:die", 2},       {"symlink:4:die", 1},       {"symlink:4:die-after", 8},
        {"rename:5:die", 4},       {"rename:5:die-after", 1},
    };
    const size_t step = lks_test_on_device() ? 7 : 1; /* a save's calls are the host's */
    for (size_t i = 0; i < sizeof deaths / sizeof deaths[0]; i += step) {
        const char *out = killed_run(samplers[i % 2], 2, 0, deaths[i].fault);
        resume_and_compare((int)(i % 2), out, deaths[i].W);
    }
}

/* Resumed from checkpoint 6 with another learning rate, killed before its first save, and resumed:
 * neither loses anything nor mixes the two histories.
 * (shared/studies/resume-and-rollback/c3.) */
TEST(test_older_checkpoint)
{
    static const char rate[] = "--learning_rate=1e-4";
    const char *out = law_output("random", LAW_REFERENCE), *reference = lks_test_folder();
    const char *lines = law_lines(out), *log = lks_test_text("%s/train.log", out);
    const char *printed = lks_test_read(log, NULL);
    lks_test_do("cp", "-a", lks_test_text("%s/.", out), reference);
    law_resume("random", lks_test_text("%s/ckpt-00000006", reference), rate);

    const char *unused;
    law_args args = law_train("random", &unused);
    law_add(&args, "--out_dir=%s/ckpt-00000006", out);
    law_add(&args, "--init_from=resume");
    law_add(&args, "%s", rate);
    /* The first syncs are those of the move; then come those of the save. */
    const char *env[] = {"LOCKSTEP_FAULT=fsync:11:die", NULL};
    lks_test_result r = lks_test_run(args.argv, env, 60);
    assert_int_equal(r.signal, SIGKILL);
    const char *left = law_lines(out), *moved = lks_test_text("%s/earlier-1", out);
    assert_non_null(strstr(left, "\"train\",\"iter\":6,"));
    assert_null(strstr(left, "\"checkpoint\",\"iter\":8,"));
    law_assert_same_lines(law_lines(moved), lines);
    assert_string_equal(lks_test_read(lks_test_text("%s/train.log", moved), NULL), printed);
    law_resume("random", out, rate, "--nproc_per_node=2");
    law_assert_same(out, reference);
    assert_false(lks_test_exists(lks_test_text("%s/earlier-2", out)));
    law_assert_same_checkpoint(moved, whole[0], lks_test_text("ckpt-%08d", LAW_STEPS));
}

/* The evaluation of an end that isn't on golf's schedule leaves no trace in the run that continues
 * from there. */
TEST(test_extended_golf)
{
    const char *outs[] = {lks_test_folder(), lks_test_folder()};
    for (int i = 0; i < 2; i++) {
        law_args args = law_family(true, outs[i]);
        law_add_all(&args, "--always_save_checkpoint=true", "--checkpoint_interval=1");
        if (i == 1) {
            law_args first = args;
            law_add(&first, "--iterations=4");
            law_run(&first);
            law_add(&args, "--init_from=resume");
        }
        law_run(&args);
    }
    law_assert_same_checkpoint(outs[1], outs[0], "ckpt-00000005");
    law_assert_same_checkpoint(outs[1], outs[0], "ckpt-00000006");
}

/* A copied or renamed checkpoint belongs to no run, so a resume from it must not touch the files
 * around it. In a checkpoint's own folder `.` names it. */
TEST(test_outside)
{
    static const char *const names[] = {"good", "a_name_of_more_than_32_characters"};
    const char *out = law_output("random", LAW_REFERENCE), *lines = law_lines(out);
    for (int i = 0; i < 4; i++) {
        const char *copy = lks_test_text("%s/%s", out, names[i % 2]), *unused;
        if (i < 2)
            lks_test_do("cp", "-r", lks_test_text("%s/ckpt-00000006", out), copy);
        law_args args = law_train("random", &unused);
        law_add(&args, "--out_dir=%s", copy);
        law_add_all(&args, "--init_from=resume", "--max_iters=20");
        if (i < 2)
            law_add(&args, "--nproc_per_node=2");
        assert_exits(
            2, lks_test_run(args.argv, NULL, 60),
            lks_test_text("%s is a checkpoint outside a run: `--init_from=%s`", copy, copy));
        law_assert_same_lines(law_lines(out), lines);
        assert_false(lks_test_exists(lks_test_text("%s/earlier-1", out)));
    }
    const char *command = lks_test_text("cd '%s/ckpt-00000006' && '%s' resume . --max_iters=%d",
                                        out, lks_test_program(), LAW_LAST_ITER);
    assert_exits(0, lks_test_shell(command));
    assert_true(lks_test_exists(lks_test_text("%s/earlier-1/ckpt-%08d", out, LAW_STEPS)));
    law_assert_same_checkpoints(out, whole[0]);
}

/* Without a step to train nothing is moved or written: from an older checkpoint, beyond its limit,
 * and from the newest one with a lower limit. Settings that no step uses are named. */
TEST(test_nothing_to_train)
{
    static const char unused[] = "no effect on training: learning_rate\n";
    const char *out = law_output("random", NULL), *path = lks_test_text("%s/metrics.jsonl", out);
    const char *before = lks_test_read(path, NULL);
    static const struct {
        const char *from, *last, *ranks;
        int iter;
    } cases[] = {{"/ckpt-00000006", "--max_iters=5", "--nproc_per_node=2", 6},
                 {"/ckpt-00000006", "--max_iters=3", "--nproc_per_node=1", 6},
                 {"", "--max_iters=9", "--nproc_per_node=2", LAW_STEPS}};
    law_args args;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *ignored;
        args = law_train("random", &ignored);
        law_add(&args, "--out_dir=%s%s", out, cases[i].from);
        law_add_all(&args, "--init_from=resume", "--learning_rate=1e-4");
        law_add(&args, "%s", cases[i].ranks);
        law_add(&args, "%s", cases[i].last);
        assert_exits(0, lks_test_run(args.argv, NULL, 60),
                     lks_test_text("with %s there is no step to train after checkpoint "
                                   "%d, so %s stays unchanged; a larger max_iters",
                                   cases[i].last + 2, cases[i].iter, out),
                     unused);
        assert_string_equal(lks_test_read(path, NULL), before);
    }
    assert_false(lks_test_exists(lks_test_text("%s/earlier-1", out)));
    assert_true(lks_test_exists(lks_test_text("%s/latest/state.json", out)));
    law_add(&args, "--max_iters=%d", LAW_LAST_ITER); /* complete, and evaluated again */
    assert_contains(lks_test_run(args.argv, NULL, 60).err, unused);
    assert_string_not_equal(lks_test_read(path, NULL), before); /* a start and an end */
}

/* Its ranks die with it. */
TEST(test_killed_launcher)
{
    resume_and_compare(0, law_signalled("random", 4, SIGKILL, -1, NULL), 2);
    resume_and_compare(1, law_signalled("nanogpt", 2, SIGKILL, -1, NULL), 1);
}

TEST(test_killed_alone)
{
    resume_and_compare(0, law_signalled("random", 1, SIGKILL, -1, NULL), 4);
}

int main(void)
{
    return lks_test_run_all(train_whole, NULL);
}
