/* Output that can't be written and checkpoints that can't be read: good files stay good. */
#include "faults.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/number/units.h"
#include "files/checkpoint/folder.h"

/* Failed runs leave only complete checkpoints: resumed on another number of ranks, they end with
 * the bytes of a run that never failed. */
static const char *whole_model(void)
{
    static const char *hash;
    if (hash == NULL) {
        fault_run run = fault_train(1);
        fault_succeeds(&run);
        hash = lks_test_sha256(lks_test_text("%s/latest/model.safetensors", run.out));
    }
    return hash;
}

static void assert_goes_on(const fault_run *run, int W)
{
    fault_run again = fault_resume(run, W);
    fault_succeeds(&again);
    assert_string_equal(lks_test_sha256(lks_test_text("%s/latest/model.safetensors", run->out)),
                        whole_model());
    const char *found = fault_snapshot(run->out);
    if (strstr(found, ".tmp") != NULL)
        fail_msg("something half-written is left: %s", found);
}

/* An output folder that can't be made or written to. */
TEST(test_unwritable)
{
    for (int W = 1; W <= 2; W++) {
        fault_run run = fault_train(W);
        const char *file = lks_test_text("%s/file", lks_test_folder());
        lks_test_write_text(file, "");
        fault_add(&run, "--out_dir=%s/out", file);
        fault_expect(&run, 1, NULL, file, "cannot make the folder");

        run = fault_train(W);
        int depth = 0; /* each part of the path is one call */
        for (const char *p = run.out; *p != '\0'; p++)
            depth += *p == '/';
        const char *denied = lks_test_text("LOCKSTEP_FAULT=mkdir:%d:EACCES", depth);
        fault_expect(&run, 1, FAULT_ENV(denied), run.out, "Permission denied");

        run = fault_train(W); /* the folder exists, but no file can be made in it */
        lks_test_do("mkdir", run.out);
        const char *metrics = lks_test_text("%s/metrics.jsonl", run.out);
        lks_test_do("mkdir", metrics);
        lks_test_do("mkdir", lks_test_text("%s/x", metrics));
        fault_expect(&run, 1, FAULT_ENV("LOCKSTEP_FAULT=rename:1:EACCES"), run.out,
                     "Permission denied");
    }
}

/* The disk is full, or fails, in a save that isn't the first. */
TEST(test_full)
{
    static const char *const faults[] = {
        "fsync:7:ENOSPC", "fsync:8:EIO",  "fsync:9:ENOSPC",   "fsync:10:EIO",
        "rename:3:EIO",   "rename:4:EIO", "symlink:3:ENOSPC",
    };
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        fault_run run = fault_train(2);
        const char *env = lks_test_text("LOCKSTEP_FAULT=%s", faults[i]);
        const char *cause =
            strstr(faults[i], "EIO") != NULL ? "Input/output error" : "No space left on device";
        fault_expect(&run, 1, FAULT_ENV(env, "LOCKSTEP_FAULT_RANK=0"), run.out, cause, "rank 0");
        assert_true(lks_test_exists(lks_test_text("%s/ckpt-00000002/state.json", run.out)));
        assert_goes_on(&run, i % 2 == 0 ? 4 : 1);
    }
}

/* The lock's text, or a line of metrics, can't be written. */
TEST(test_full_metrics)
{
    for (int W = 1; W <= 2; W++)
        for (int n = 1; n <= 32; n += n == 1 ? 1 : 6) {
            fault_run run = fault_train(W);
            const char *env = lks_test_text("LOCKSTEP_FAULT=write:%d:ENOSPC", n);
            fault_add(&run, "--tensorboard=false"); /* else these are writes of other files, too */
            fault_expect(&run, 1, FAULT_ENV(env), run.out, "No space left on device");
        }
    /* Both records are durable before the checkpoint that they lead to. */
    static const char *const records[] = {"leaves.bin", "metrics.jsonl"};
    for (int i = 0; i < 2; i++) {
        fault_run run = fault_train(1);
        const char *env = lks_test_text("LOCKSTEP_FAULT=fdatasync:%d:EIO", i + 1);
        fault_expect(&run, 1, FAULT_ENV(env), records[i], "Input/output error");
        assert_null(strstr(fault_snapshot(run.out), "ckpt-"));
    }
}

/* The same for TensorBoard's events: the head of the file, after the lock. */
TEST(test_full_events)
{
    for (int n = 2; n <= 4; n++) {
        fault_run run = fault_train(1);
        const char *env = lks_test_text("LOCKSTEP_FAULT=write:%d:ENOSPC", n);
        fault_expect(&run, 1, FAULT_ENV(env), lks_test_text("%s/events.out.tfevents", run.out),
                     "No space left on device");
    }
}

/* Altered, shortened, missing: refused by name, the newest good one is offered, nothing is written,
 * and the offer works. */
TEST(test_altered_checkpoint)
{
    static const struct {
        const char *file;
        int damage; /* 0: a byte at the end, 1: a byte in the middle, 2: cut, 3: gone */
    } cases[] = {
        {"model.safetensors", 0}, {"model.safetensors", 2},     {"optimizer.safetensors", 1},
        {"state.json", 1},        {"optimizer.safetensors", 3}, {"state.json", 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fault_run run = fault_train(1);
        fault_succeeds(&run);
        const char *path = lks_test_text("%s/ckpt-00000010/%s", run.out, cases[i].file);
        if (cases[i].damage == 2)
            assert_int_equal(truncate(path, 500), 0);
        else if (cases[i].damage == 3)
            assert_int_equal(unlink(path), 0);
        else
            lks_test_alter(path, cases[i].damage == 0 ? -3 : 400);
        const char *before = fault_snapshot(run.out);
        fault_run again = fault_resume(&run, i % 2 == 0 ? 1 : 2);
        fault_expect(&again, 1, NULL, lks_test_text("%s/ckpt-00000010", run.out), cases[i].file,
                     "newest good checkpoint is ckpt-00000008");
        assert_string_equal(fault_snapshot(run.out), before);

        lks_test_do("lockstep", "eval", lks_test_text("--dataset=%s", run.data),
                    lks_test_text("--out_dir=%s/ckpt-00000008", run.out));
    }
}

/* `sample` and `eval` refuse as well, and report if there is no checkpoint at all. */
TEST(test_readers)
{
    fault_run run = fault_train(1);
    const char *out = lks_test_text("--out_dir=%s", run.out);
    const char *data = lks_test_text("--dataset=%s", run.data);
    lks_test_result none[] = {lks_test_tool("sample", out), lks_test_tool("eval", data, out)};
    fault_succeeds(&run);
    lks_test_alter(lks_test_text("%s/ckpt-00000010/model.safetensors", run.out), -3);
    lks_test_result bad[] = {lks_test_tool("sample", out), lks_test_tool("eval", data, out)};
    for (int i = 0; i < 2; i++) {
        assert_exits(2, none[i], run.out);
        assert_exits(1, bad[i], "ckpt-00000010/model.safetensors");
        assert_string_equal(bad[i].out, "");
    }
}

/* Settings in state.json, with a right hash, ask for terabytes that the tensors beside them don't
 * have: this is refused before memory is allocated. */
TEST(test_lying_checkpoint)
{
    fault_run run = fault_train(1);
    fault_succeeds(&run);
    const char *path = lks_test_text("%s/ckpt-00000010/state.json", run.out);
    static const char was[] = "\"n_embd\": 16,", lie[] = "\"n_embd\": 65536,";
    size_t bytes;
    uint64_t hash;
    const char *text = lks_test_read(path, &bytes), *at = lks_test_find(text, was);
    char *forged = (char *)(uintptr_t)lks_test_text("%.*s%s%s", (int)(at - text), text, lie,
                                                    at + sizeof was - 1);
    char *stored = lks__state_hash(forged, strlen(forged), &hash);
    assert_non_null(stored);
    memcpy(stored, lks__hex(hash), 16);
    lks_test_write_text(path, forged);
    const char *out = lks_test_text("--out_dir=%s", run.out);
    const char *data = lks_test_text("--dataset=%s", run.data);
    lks_test_result all[] = {
        lks_test_tool("sample", out), lks_test_tool("eval", data, out),
        lks_test_tool("train", data, out, "--vocab_size=65", "--init_from=resume")};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_exits(1, all[i],
                     i == 2 ? "another type or shape than state.json's settings give"
                            : "is [65, 16], but a model of n_layer=1, n_embd=65536");
    }
}

/* A new run in a folder that has one moves the old one aside, complete. */
TEST(test_earlier_run)
{
    fault_run run = fault_train(1);
    fault_succeeds(&run);
    const char *hash = lks_test_sha256(lks_test_text("%s/latest/model.safetensors", run.out));
    fault_run second = run;
    fault_add(&second, "--seed=7");
    fault_succeeds(&second);
    assert_string_equal(
        lks_test_sha256(lks_test_text("%s/earlier-1/latest/model.safetensors", run.out)), hash);
    assert_string_not_equal(lks_test_sha256(lks_test_text("%s/latest/model.safetensors", run.out)),
                            hash);
    /* A run that fails before it begins moves nothing. */
    const char *before = fault_snapshot(run.out);
    fault_run third = run;
    fault_add(&third, "--vocab_size=3");
    fault_expect(&third, 1, NULL, "train.bin");
    assert_string_equal(fault_snapshot(run.out), before);
}

/* Only one run at a time writes into a folder; its end, however it comes, frees the folder. */
TEST(test_folder_in_use)
{
    for (int W = 1; W <= 2; W++) {
        fault_run first = fault_train(W), second;
        fault_add(&first, "--max_iters=100000000");
        lks_test_child child = lks_test_start(first.args.argv, NULL);
        lks_test_until(lks_test_exists(lks_test_text("%s/latest", first.out)));
        second = fault_train(1);
        fault_add(&second, "--out_dir=%s", first.out);
        fault_expect(&second, 2, NULL, first.out, "still in progress (pid ");
        second = fault_resume(&first, 2);
        const lks_test_result refused =
            assert_exits(2, lks_test_run(second.args.argv, NULL, 60), "still in progress (pid ");
        assert_null(strstr(refused.err, "to continue from iteration")); /* not the same again */
        assert_false(lks_test_exists(lks_test_text("%s/earlier-1", first.out)));
        assert_int_equal(kill(child.pid, SIGKILL), 0);
        assert_int_equal(lks_test_wait(&child, 10).signal, SIGKILL);
        second = fault_resume(&first, 1);
        fault_add(&second, "--max_iters=3"); /* it has made them already, so it ends at once */
        /* The ranks die with their launcher, but after it, and on a busy machine not at once. */
        lks_test_result r;
        lks_test_until((r = lks_test_run(second.args.argv, NULL, 30)).exit_code == 0 ||
                       strstr(r.err, "still in progress") == NULL);
        assert_int_equal(r.exit_code, 0);
    }
}

/* A file system without locks, where a second run would not be noticed. With --lock=off a run that
 * was killed there continues, too. (shared/studies/resume-and-rollback/c6.) */
TEST(test_no_locks)
{
    static const char no_locks[] = "LOCKSTEP_FAULT=lock:*:EOPNOTSUPP";
    fault_run run = fault_train(2);
    fault_expect(&run, 2, FAULT_ENV(no_locks), run.out,
                 "other run uses the folder, give --lock=off");
    fault_add(&run, "--lock=off");
    const char *const dies[] = {lks_test_text("%s,rename:5:die", no_locks), "LOCKSTEP_FAULT_RANK=0",
                                NULL};
    fault_expect(&run, 128 + SIGKILL, dies, "rank 0", "killed by signal 9");
    assert_true(lks_test_exists(lks_test_text("%s/latest", run.out)));
    fault_run again = fault_resume(&run, 1);
    fault_add(&again, "--lock=on");
    fault_expect(&again, 2, FAULT_ENV(no_locks), run.out, "give --lock=off");
    fault_add(&again, "--lock=off");
    assert_exits(0, lks_test_run(again.args.argv, FAULT_ENV(no_locks), 60));
    assert_string_equal(lks_test_sha256(lks_test_text("%s/latest/model.safetensors", run.out)),
                        whole_model());
}

/* A standard output that takes nothing is reported, and only at the end. */
TEST(test_full_standard_output)
{
    const fault_run run = fault_train(1);
    const char *command = lks_test_text("exec %s >/dev/full", law_words(&run.args));
    assert_exits(1, lks_test_shell(command),
                 "writing to the standard output failed: No space left on device; the "
                 "files are written");
    assert_string_equal(lks_test_sha256(lks_test_text("%s/latest/model.safetensors", run.out)),
                        whole_model());
}
