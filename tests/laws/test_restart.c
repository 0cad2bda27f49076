/* Ranks die, the launcher restarts all, and the run goes on from its newest good checkpoint: in the
 * end it has the bytes of an undisturbed run. */
#include "laws.h"
#include "marked.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "report/record/job.h"

static const char *whole; /* output of an undisturbed run */

static int train_whole(void **state)
{
    whole = law_output("random", LAW_REFERENCE);
    return 0;
}

/* The run on `W` ranks under `lockstep run`. `deaths` is shell text that each rank executes first:
 * faults (base/system/sys.h), by the number of the start. `more`: one more setting. */
static lks_test_result disturbed(int W, int restarts, const char *deaths, const char *more,
                                 const char **out_p)
{
    law_args run = law_train("random", out_p), args = {.n = 0};
    const char *mark = marked_variable();
    law_add(&args, "%s", lks_test_program());
    law_add_line(&args, "run --nproc-per-node=%d --max-restarts=%d", W, restarts);
    law_add_shell(&args, &run, "%s; exec \"$0\" \"$@\"", deaths);
    law_add(&args, "%s", more);
    lks_test_result r = lks_test_run(args.argv, (const char *const[]){mark, NULL}, 120);
    marked_assert_gone(mark, 2);
    return r;
}

/* The iteration at which the last start resumed, from its host line; 0: it didn't. */
static int resumed_at(const char *out)
{
    const json_t *lines = lks_test_record(out, "host");
    int iter = 0;
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *at = json_object_get(json_array_get(lines, i), "resumed_iter");
        iter = at != NULL ? (int)json_integer_value(at) : iter;
    }
    return iter;
}

/* The newest checkpoint before iteration `iter`; 0 if there is none. */
static int checkpoint_before(const char *out, int iter)
{
    while (--iter > 0 && !lks_test_exists(lks_test_text("%s/ckpt-%08d", out, iter)))
        continue;
    return iter > 0 ? iter : 0;
}

#define DIES(n, rank, fault)                                                                       \
    "[ $TORCHELASTIC_RESTART_COUNT = " #n " ] && "                                                 \
    "export LOCKSTEP_FAULT_RANK=" #rank " LOCKSTEP_FAULT=" fault "; "

/* Before the first checkpoint, in a step, in a save, and when a restart has just locked the folder:
 * each time another rank. */
TEST(test_four_deaths)
{
    const char *out;
    lks_test_result r =
        assert_exits(0, disturbed(4, 4,
                                  DIES(0, 1, "read:20:die") DIES(1, 2, "read:150:die")
                                      DIES(2, 0, "rename:2:die") DIES(3, 0, "truncate:2:die") ":",
                                  "--threads=1", &out));
    for (int i = 1; i <= 4; i++)
        assert_contains(r.err, lks_test_text("restart %d of 4", i));
    assert_true(resumed_at(out) > 0);                                  /* not from scratch */
    assert_false(lks_test_exists(lks_test_text("%s/earlier-1", out))); /* its own files stay */
    law_assert_same(out, whole);
}

/* The newest checkpoint is damaged, too: the one before it is used. */
TEST(test_torn_checkpoint)
{
    const char *out, *folder = lks_test_folder();
    const char *tear = lks_test_text(
        DIES(0, 1, "read:400:die") "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && for a; do "
                                   "case $a in --out_dir=*) d=${a#--out_dir=}; "
                                   "readlink \"$d/latest\" >'%s'/$RANK; "
                                   "truncate -s 1000 \"$d/latest/model.safetensors\";; esac; "
                                   "done; :",
        folder);
    assert_exits(0, disturbed(2, 1, tear, "--threads=1", &out));
    int torn = 0;
    assert_int_equal(sscanf(lks_test_read(lks_test_text("%s/1", folder), NULL), "ckpt-%d", &torn),
                     1);
    assert_true(checkpoint_before(out, torn) > 0);
    assert_int_equal(resumed_at(out), checkpoint_before(out, torn));
    law_assert_same(out, whole);
}

/* All checkpoints are damaged: the run begins again, but not a resume, which would lose them. */
TEST(test_all_torn)
{
    static const char tear[] =
        "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && for a; do case $a in --out_dir=*) "
        "truncate -s 1000 \"${a#--out_dir=}\"/ckpt-*/model.safetensors;; esac; done; :";
    const char *out, *unused;
    assert_exits(0, disturbed(2, 1, lks_test_text(DIES(0, 1, "read:400:die") "%s", tear),
                              "--threads=1", &out));
    assert_int_equal(resumed_at(out), 0);
    law_assert_same(out, whole);
    law_args args = law_train("random", &out);
    law_add_all(&args, "--max_iters=5", LAW_REFERENCE);
    law_run(&args);
    const char *resume = lks_test_text(
        DIES(0, 0, "rename:2:die") "set -- \"$@\" --init_from=resume --out_dir='%s'; %s", out,
        tear);
    assert_exits(1, disturbed(2, 1, resume, "--threads=1", &unused), "model.safetensors");
}

/* The first start resumes from an older checkpoint, the second one from the newest of this job.
 * (shared/studies/resume-and-rollback/c4.) */
static void from_older_checkpoint(const char *name)
{
    const char *out = law_output("random", LAW_REFERENCE), *unused;
    assert_int_equal(unlink(lks_test_text("%s/best", out)), 0);
    assert_int_equal(symlink("ckpt-00000003", lks_test_text("%s/best", out)), 0);
    const char *from =
        lks_test_text("set -- \"$@\" --init_from=resume --out_dir='%s/%s';", out, name);
    assert_exits(0,
                 disturbed(2, 1, lks_test_text(DIES(0, 0, "rename:14:die") "%s :", from),
                           "--threads=1", &unused),
                 "restart 1 of 1");
    assert_in_range(resumed_at(out), 4, LAW_STEPS - 1);
    law_assert_same(out, whole);
    assert_true(lks_test_exists(lks_test_text("%s/earlier-1/ckpt-%08d", out, LAW_STEPS)));
    assert_false(lks_test_exists(lks_test_text("%s/earlier-2", out)));
}

TEST(test_older_checkpoint)
{
    from_older_checkpoint("ckpt-00000003");
    from_older_checkpoint("best");
}

/* Too many deaths: the exit code is the last one's, and any number of ranks can go on from its
 * checkpoint. */
TEST(test_budget)
{
    const char *out;
    assert_exits(128 + SIGKILL,
                 disturbed(2, 1, DIES(0, 1, "read:250:die") DIES(1, 0, "read:100:die") ":",
                           "--threads=1", &out),
                 "restart 1 of 1", "rank 0 (pid ");
    law_resume("random", out, "--nproc_per_node=4");
    law_assert_same(out, whole);
}

/* Files of an earlier run in the folder don't belong to this job: its second start doesn't resume
 * them, but begins where the first did. */
TEST(test_not_an_earlier_run)
{
    const char *out = law_output("random", "--seed=7"), *unused;
    lks_test_result r = assert_exits(
        0,
        disturbed(2, 1, DIES(0, 0, "read:1:die") ":", lks_test_text("--out_dir=%s", out), &unused),
        "restart 1 of 1");
    assert_contains(r.out, "an earlier run was moved");
    law_assert_same(out, whole);
}

/* The second line of the lock names the job that files in a folder belong to: only exactly this
 * job, and no other whose name is as long, longer or a part of it. */
TEST(test_other_job)
{
    static const char *const names[] = {"job-a", "job-b", "ob-a", "job-aa", "b-a", "a"};
    const char *out = lks_test_folder(), *lock = lks_test_text("%s/.lock", out);
    setenv("TORCHELASTIC_MAX_RESTARTS", "1", 1);
    setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
    setenv("LOCKSTEP_JOB", names[0], 1);
    lks_test_write(lock, "pid 1 on x\n", 11);
    assert_false(lks__job_restarted(out));
    assert_ok(lks__job_mark(out));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        setenv("LOCKSTEP_JOB", names[i], 1);
        assert_int_equal(lks__job_restarted(out), i == 0);
    }
    setenv("LOCKSTEP_JOB", names[0], 1);
    setenv("TORCHELASTIC_RESTART_COUNT", "0", 1); /* a first start never resumes */
    assert_false(lks__job_restarted(out));
    setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
    /* A restart that wrote a shorter line died before it could remove the rest. */
    lks_test_write_text(lock, "pid 2 on x\njob-a\n-a\n");
    assert_true(lks__job_restarted(out));
    lks_test_write_text(lock, "pid 3 on x\n");
    /* torchrun's name counts if there is no other, but not the one that it gives every job */
    unsetenv("LOCKSTEP_JOB");
    static const char *const given[] = {"run-7", "none"};
    for (int i = 0; i < 2; i++) {
        setenv("TORCHELASTIC_RUN_ID", given[i], 1);
        assert_ok(lks__job_mark(out));
        assert_int_equal(lks__job_restarted(out), i == 0);
    }
    unsetenv("TORCHELASTIC_RUN_ID");
    unsetenv("TORCHELASTIC_MAX_RESTARTS");
    unsetenv("TORCHELASTIC_RESTART_COUNT");
}

/* `train` restarts its own ranks, too. One of them is killed at some moment. */
TEST(test_train_itself)
{
    const char *out, *mark = marked_variable();
    for (int tries = 0; tries < 20; tries++) {
        law_args args = law_train("random", &out);
        law_add_all(&args, "--nproc_per_node=2", "--max_restarts=1");
        lks_test_child child = lks_test_start(args.argv, (const char *const[]){mark, NULL});
        while (law_count_checkpoints(out) < 1 && lks_test_is_running(&child))
            usleep(1000);
        const pid_t pid = marked_rank(mark, 1);
        if (pid > 0)
            lks_test_kill(pid, SIGKILL);
        lks_test_result r = assert_exits(0, lks_test_wait(&child, 120));
        if (strstr(r.err, "lockstep train: restart 1 of 1") == NULL)
            continue; /* the run ended first */
        assert_contains(r.err, "rank 1 (pid ");
        law_assert_same(out, whole);
        return;
    }
    fail_msg("no run could be killed before its end");
}

static const char lasting[] =
    "; not restarted, as it would fail again: put that right, then start it again";

/* The failure lasts, and comes before there is anything to resume: in the set-up, or at the first
 * save. */
TEST(test_full_disk_at_once)
{
    static const char *const faults[] = {"write:2:ENOSPC", "fsync:1:ENOSPC", "fsync:1:EACCES",
                                         "fsync:1:EPERM",  "fsync:1:EROFS",  "fsync:1:ENOSPC"};
    for (int i = 0; i < 6; i++) {
        const char *out,
            *env[] = {lks_test_text("LOCKSTEP_FAULT=%s", faults[i]), "LOCKSTEP_FAULT_RANK=0", NULL};
        law_args args = law_train("random", &out);
        law_add_all(&args, "--nproc_per_node=2", i < 5 ? "--max_restarts=2" : "--max_restarts=0");
        lks_test_result r = assert_exits(
            1, lks_test_run(args.argv, env, 60),
            i < 5 ? lasting : "No space left on device; put that right, then start it again",
            "again, with --init_from=resume if it has saved a checkpoint");
        assert_null(strstr(r.err, "restart 1 of 2"));
    }
}

/* A wrong setting doesn't get better either. */
TEST(test_wrong_settings)
{
    static const char *const wrong[] = {"--dataset=missing", "--dataset=/"};
    for (int i = 0; i < 3; i++) {
        const char *out;
        law_args args = law_train("random", &out);
        law_add_all(&args, "--nproc_per_node=2", i < 2 ? "--max_restarts=2" : "--max_restarts=0",
                    wrong[i % 2]);
        lks_test_result r = assert_exits(2, lks_test_run(args.argv, NULL, 60));
        assert_true((strstr(r.err, lasting) != NULL) == (i < 2));
        assert_true((strstr(r.err, "put that right") != NULL) == (i < 2));
        assert_true(strstr(r.err, "restart 1 of 2") == NULL);
    }
}

/* A restart would fail at the same save, so there is none: the message says what to do, and then
 * the run goes on. */
TEST(test_full_disk)
{
    static const char *const faults[][2] = {{"fsync:14:ENOSPC", "No space left on device"},
                                            {"fsync:14:EDQUOT", "Disk quota exceeded"},
                                            {"fsync:14:EIO", "Input/output error"}};
    for (int i = 0; i < 3; i++) {
        const char *out;
        lks_test_result r = assert_exits(
            1,
            disturbed(2, 2,
                      lks_test_text("export LOCKSTEP_FAULT_RANK=0 LOCKSTEP_FAULT=%s", faults[i][0]),
                      "--threads=1", &out),
            faults[i][1]);
        const char *advice = strstr(r.err, lasting);
        if (i == 2) { /* another start may have more luck */
            assert_null(advice);
            assert_contains(r.err, "restart 2 of 2");
            continue;
        }
        assert_non_null(advice);
        assert_null(strstr(r.err, "restart 1 of 2"));
        law_resume("random", out, "--threads=1");
        law_assert_same(out, whole);
    }
}

int main(void)
{
    return lks_test_run_all(train_whole, NULL);
}
