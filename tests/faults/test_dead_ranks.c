/* Ranks that die, hang or get no memory, at any moment: the run ends within seconds, names the rank
 * and the place, and leaves only good checkpoints. */
#include "faults.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "laws/marked.h"

/* ---- no shared memory -------------------------------------------------------------------- */

TEST(test_no_shared_memory)
{
    static const struct {
        const char *fault, *says;
    } cases[] = {
        {"memfd:1:ENOMEM", "Cannot allocate memory"},
        {"memfd:1:EMFILE", "no file descriptor is left: this process may open"},
        {"fallocate:1:ENOSPC", "No space left on device"},
        {"fallocate:2:ENOMEM", "Cannot allocate memory"},
        {"fallocate:2:EPERM", "not permitted; the system, or a sandbox around this process, must"},
        {"mmap:1:ENOMEM", "memory"},
        {"mmap:2:ENOMEM", "memory"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int W = 1; W <= 2; W++) {
            fault_run run = fault_train(W);
            const char *env = lks_test_text("LOCKSTEP_FAULT=%s", cases[i].fault);
            fault_expect(&run, 1, FAULT_ENV(env), cases[i].says);
            assert_false(lks_test_exists(run.out));
        }
}

/* A real limit: no file may exceed some KiB, and shared memory is a file. */
TEST(test_file_size_limit)
{
#ifdef LKS_TEST_COVERAGE
    lks_test_lacks("plain-build", "counts of a run are written to files at its end");
#endif
    for (int W = 1; W <= 2; W++) {
        fault_run run = fault_train(W), limited = {.args.n = 0};
        law_add_shell(&limited.args, &run.args, "ulimit -f 8; exec \"$0\" \"$@\"");
        fault_expect(&limited, 1, NULL, "File too large", "ulimit -f");
        assert_false(lks_test_exists(run.out));
    }
}

/* Only some ranks get their memory. */
TEST(test_no_memory_on_one_rank)
{
    for (int n = 1; n <= 7; n++) {
        fault_run run = fault_train(2);
        const char *env = lks_test_text("LOCKSTEP_FAULT=mmap:%d:ENOMEM", n);
        fault_expect(&run, 1, FAULT_ENV(env, "LOCKSTEP_FAULT_RANK=1"), "rank 1", "memory");
        assert_false(lks_test_exists(lks_test_text("%s/latest", run.out)));
    }
}

/* ---- dead ranks -------------------------------------------------------------------------- */

static pid_t wait_for_rank(const char *mark, int rank)
{
    pid_t pid;
    lks_test_until((pid = marked_rank(mark, rank)) > 0);
    return pid;
}

/* A run that would take minutes. */
static fault_run endless(int W)
{
    fault_run run = fault_train(W);
    law_add_all(&run.args, "--max_iters=10000000", "--eval_interval=50", "--log_interval=1000");
    return run;
}

static void wait_for_checkpoint(const fault_run *run)
{
    lks_test_until(lks_test_exists(lks_test_text("%s/latest", run->out)));
}

/* The last line names the newest checkpoint and the command that continues from it. */
static void assert_continues(const fault_run *run, const char *err)
{
    const char *name = lks_test_link(lks_test_text("%s/latest", run->out));
    assert_true(strlen(name) > 5);
    assert_contains(
        err, lks_test_text("\nlockstep train: the newest checkpoint in %s is %s; to continue "
                           "from iteration %d: lockstep resume %s\n",
                           run->out, name, atoi(name + 5), run->out));
}

/* Send SIGKILL to a rank `ms` after it has started. */
static void check_killed(int W, int rank, double ms)
{
    fault_run run = endless(W);
    const char *mark = marked_variable(), *env[] = {mark, NULL};
    lks_test_child child = lks_test_start(run.args.argv, env);
    pid_t pid = wait_for_rank(mark, rank);
    usleep((useconds_t)(1e3 * ms));
    assert_int_equal(kill(pid, SIGKILL), 0);
    lks_test_result r = lks_test_wait(&child, 10);
    if (r.exit_code != 128 + SIGKILL || r.seconds > 2 * lks_test_patience())
        fail_msg("rank %d killed after %g ms: exit code %d after %.1f s: %s", rank, ms, r.exit_code,
                 r.seconds, r.err);
    marked_assert_gone(mark, 0.5);
    assert_contains(r.err, lks_test_text("rank %d (pid %d, host", rank, (int)pid),
                    ") was killed by signal 9");
    if (strstr(r.err, lks_test_text("rank %d:", rank == 0 ? 1 : 0)) != NULL)
        fail_msg("another rank complains: %s", r.err);
}

TEST(test_killed_at_any_moment)
{
    static const double moments[] = {0, 2, 5, 10, 15, 20, 30, 40, 60, 100, 200};
    for (size_t i = 0; i < sizeof moments / sizeof moments[0]; i++)
        check_killed(i % 2 == 0 ? 2 : 4, (int)(i % 3 == 0 ? 0 : 1), moments[i]);
}

/* The status table of two ranks: `rank` is in `state` and doesn't wait, the other waits for it. */
static void assert_table(const char *err, int rank, const char *state)
{
    const char *at = strstr(err, " rank       pid  state");
    if (at == NULL)
        fail_msg("there is no table: %s", err);
    at = strchr(at, '\n') + 1;
    for (int r = 0; r < 2; r++) {
        char word[32], line[256];
        int number, pid, waits = -1;
        size_t n = strcspn(at, "\n");
        assert_true(n < sizeof line);
        snprintf(line, sizeof line, "%.*s", (int)n, at);
        assert_int_equal(sscanf(line, "%d %d %31s", &number, &pid, word), 3);
        assert_int_equal(number, r);
        assert_string_equal(word, r == rank ? state : "waiting");
        sscanf(strrchr(line, ' '), "%d", &waits);
        assert_int_equal(waits, r == rank ? -1 : rank);
        at += n + 1;
    }
}

TEST(test_says_how_to_continue)
{
    for (int saved = 0; saved < 2; saved++) {
        fault_run run = endless(2);
        const char *mark = marked_variable(), *env[] = {mark, NULL};
        if (!saved)
            fault_add(&run, "--eval_interval=10000000");
        lks_test_child child = lks_test_start(run.args.argv, env);
        const pid_t pid = wait_for_rank(mark, 1);
        lks_test_until(
            lks_test_exists(lks_test_text("%s/%s", run.out, saved ? "latest" : "metrics.jsonl")));
        assert_int_equal(kill(pid, SIGKILL), 0);
        lks_test_result r = lks_test_wait(&child, 10);
        if (saved)
            assert_continues(&run, r.err);
        else
            assert_contains(r.err, lks_test_text("\nlockstep train: there is no checkpoint in %s "
                                                 "yet; the same command starts again\n",
                                                 run.out));
    }
}

/* Ranks must also start within their deadline. */
static fault_run endless_with_deadline(void)
{
    fault_run run = endless(2);
    fault_add(&run, "--timeout=%g", lks_test_patience());
    return run;
}

/* A rank that stands still is given up after --timeout, and named. */
static void check_hung(int rank)
{
    fault_run run = endless_with_deadline();
    const char *mark = marked_variable(), *env[] = {mark, NULL};
    lks_test_child child = lks_test_start(run.args.argv, env);
    pid_t pid = wait_for_rank(mark, rank);
    wait_for_checkpoint(&run);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    lks_test_result r = lks_test_wait(&child, 10);
    if (r.exit_code <= 0 || r.seconds > 4 * lks_test_patience())
        fail_msg("rank %d stopped: exit code %d after %.1f s: %s", rank, r.exit_code, r.seconds,
                 r.err);
    marked_assert_gone(mark, 0.5);
    assert_contains(r.err, lks_test_text("rank %d (pid %d, stopped by a signal", rank, (int)pid),
                    "at step ");
    assert_table(r.err, rank, "stopped");
    assert_continues(&run, r.err);
}

TEST(test_hung_rank)
{
    check_hung(1);
    check_hung(0);
}

/* All stand still: then the launcher notices. */
TEST(test_all_hung)
{
    fault_run run = endless_with_deadline();
    const char *mark = marked_variable(), *env[] = {mark, NULL};
    lks_test_child child = lks_test_start(run.args.argv, env);
    pid_t pids[2] = {wait_for_rank(mark, 0), wait_for_rank(mark, 1)};
    wait_for_checkpoint(&run);
    kill(pids[0], SIGSTOP);
    kill(pids[1], SIGSTOP);
    lks_test_result r = assert_exits(1, lks_test_wait(&child, 20));
    marked_assert_gone(mark, 0.5);
    assert_contains(r.err, lks_test_text("rank 0 (pid %d, ", (int)pids[0]),
                    "ended by lockstep train: none of the 2 running ranks has had a");
    const char *table = lks_test_find(r.err, " rank       pid  state");
    for (int i = 0; i < 2; i++)
        assert_contains(table, lks_test_text("%5d  %8d  stopped ", i, (int)pids[i]));
}

/* A rank that runs but makes no progress: inside a checkpoint, and before it has joined. */
TEST(test_stuck_rank)
{
    fault_run run = endless_with_deadline();
    const char *err = fault_expect(
        &run, 1, FAULT_ENV("LOCKSTEP_FAULT=fsync:7:hang", "LOCKSTEP_FAULT_RANK=0"), "rank 0",
        "phase checkpoint", lks_test_text("no answer for %g s", lks_test_patience()));
    assert_table(err, 0, "running");
    run = endless_with_deadline();
    err = fault_expect(&run, 1, FAULT_ENV("LOCKSTEP_FAULT=mmap:1:hang", "LOCKSTEP_FAULT_RANK=1"),
                       "rank 1 (never joined)");
    assert_table(err, 1, "absent");
}

/* A save or a load that takes longer than the deadline, but makes progress, is no hang. */
TEST(test_slow_checkpoint)
{
    static const char *const calls[] = {"write", "read"};
    for (int i = 0; i < 2; i++) {
        char rules[256] = "LOCKSTEP_FAULT=";
        for (int n = 0; n < 7; n++)
            snprintf(rules + strlen(rules), sizeof rules - strlen(rules), "%s%s:%d:slow",
                     n > 0 ? "," : "", calls[i], 20 + n);
        const char *env[] = {rules, "LOCKSTEP_FAULT_RANK=0", NULL};
        fault_run run = fault_train(2), again = fault_resume(&run, 2);
        fault_add(&run, "--timeout=1");
        fault_add(&again, "--timeout=1");
        if (i == 1)
            fault_succeeds(&run);
        lks_test_result r = lks_test_run((i == 0 ? run : again).args.argv, env, 30);
        if (r.exit_code != 0 || r.seconds < 2.5)
            fail_msg("%s: exit code %d after %.1f s: %s", rules, r.exit_code, r.seconds, r.err);
    }
}

/* ---- data that goes away ----------------------------------------------------------------- */

/* A token file that shrinks during a run ends it, with the file's name; when the file is back, the
 * run goes on from its last checkpoint. */
TEST(test_shrinking_data)
{
    for (int W = 1; W <= 2; W++) {
        fault_run run = endless(W);
        const char *path = lks_test_text("%s/train.bin", run.data);
        size_t bytes;
        const char *tokens = lks_test_read(path, &bytes);
        const char *mark = marked_variable(), *env[] = {mark, NULL};
        lks_test_child child = lks_test_start(run.args.argv, env);
        wait_for_checkpoint(&run);
        lks_test_write(path, tokens, 1000);
        lks_test_result r = lks_test_wait(&child, 10);
        marked_assert_gone(mark, 0.5);
        assert_exits(1, r, path);
        lks_test_write(path, tokens, bytes);
        fault_run again = fault_resume(&run, 2);
        fault_add(&again, "--max_iters=1");
        fault_succeeds(&again);
    }
}
