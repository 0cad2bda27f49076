/* Signals that come early wait, and those ignored at the start stay ignored: for lockstep's ranks,
 * other programs, and a run without a launcher. */
#include "laws/laws.h"
#include "laws/marked.h"
#include "support.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void pause_ms(double ms)
{
    nanosleep(
        &(struct timespec){.tv_sec = (time_t)(ms / 1e3), .tv_nsec = (long)(ms * 1e6) % 1000000000},
        NULL);
}

static const char *own_path(void)
{
    static char path[PATH_MAX];
    assert_true(readlink("/proc/self/exe", path, sizeof path - 1) > 0);
    return path;
}

/* True for the child of a fork() that hasn't begun its program. glibc 2.41 blocks all signals in it
 * for a moment. */
static bool is_copy(pid_t pid)
{
    char its[PATH_MAX] = "";
    const ssize_t n = readlink(lks_test_text("/proc/%d/exe", (int)pid), its, sizeof its - 1);
    return n > 0 && strcmp(own_path(), its) == 0;
}

/* Wait until main() has begun: the signal is blocked, or has its handler already. */
static void wait_for_main(pid_t pid, int sig)
{
    for (int i = 0; i < lks_test_tries(100000); i++) {
        if (!is_copy(pid) &&
            (marked_has_signal(pid, "SigBlk", sig) || marked_has_signal(pid, "SigCgt", sig)))
            return;
        pause_ms(0.1);
    }
    fail_msg("signal %d is neither blocked nor caught", sig);
}

/* --- early ones --------------------------------------------------------------------------- */

enum { MOMENTS = 6 };

/* A run that only the signal ends; it is sent `ms` after main() has begun. */
static void check_early(int W, int sig, double ms, const char *setting)
{
    const char *out, *mark = marked_variable(), *env[] = {mark, NULL};
    law_args args = law_train("random", &out);
    law_add_line(&args, "--nproc_per_node=%d --max_iters=1000000 --checkpoint_interval=1000000", W);
    if (setting != NULL)
        law_add(&args, "%s", setting);
    lks_test_child run = lks_test_start(args.argv, env);
    wait_for_main(run.pid, sig);
    pause_ms(ms);
    assert_int_equal(kill(run.pid, sig), 0);
    lks_test_result r = assert_exits(128 + sig, lks_test_wait(&run, 60));
    if (law_count_checkpoints(out) == 0) /* an orderly stop saves, or reports what is left */
        assert_contains(r.err, "nothing was trained");
    marked_assert_gone(mark, 2);
}

TEST(test_early_stops)
{
    for (int i = 0; i < MOMENTS; i++) {
        check_early(2, SIGUSR1, 2.7 * i, "--stop_signal=USR1");
        check_early(1, SIGUSR2, 0.4 * i, "--stop_signal=USR2");
        check_early(2, SIGTERM, 3.1 * i, NULL);
        check_early(1, SIGINT, 0.6 * i, NULL);
    }
}

/* After SIGUSR1, the run writes a checkpoint and continues until it is stopped. */
static void check_early_save(int W, double ms)
{
    const char *out;
    law_args args = law_train("random", &out);
    law_add(&args, "--nproc_per_node=%d", W);
    law_add_all(&args, "--max_iters=1000000", "--checkpoint_interval=1000000", "--eval_interval=0");
    lks_test_child run = lks_test_start(args.argv, NULL);
    wait_for_main(run.pid, SIGUSR1);
    pause_ms(ms);
    assert_int_equal(kill(run.pid, SIGUSR1), 0);
    lks_test_until(law_count_checkpoints(out) > 0);
    const int n = law_count_checkpoints(out);
    assert_int_equal(kill(run.pid, SIGTERM), 0);
    lks_test_result r = lks_test_wait(&run, 60);
    if (n != 1 || r.exit_code != 128 + SIGTERM)
        fail_msg("after %g ms: %d checkpoints, exit code %d: %s", ms, n, r.exit_code, r.err);
}

TEST(test_early_saves)
{
    for (int i = 0; i < 4; i++) {
        check_early_save(2, 2.0 * i);
        check_early_save(1, 0.5 * i);
    }
}

static void exit_5(int sig)
{
    _exit(5);
}

/* In a rank of test_programs_of_others: as a shell that starts a command on a busy machine, block
 * all signals until the child of vfork() begins its program. Only then handle SIGUSR1. */
__attribute__((constructor)) static void start_slowly(void)
{
    sigset_t all, before;
    if (getenv("LKS_TEST_SLOW_START") == NULL)
        return;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    if (vfork() == 0) {
        (void)!write(STDOUT_FILENO, "begun\n", 6);
        usleep(600000);
        _exit(0);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    signal(SIGUSR1, exit_5);
    sleep(60);
    _exit(1);
}

/* Another program that handles the signal only after some time; one that never does is ended by
 * SIGTERM but not by SIGUSR2. */
TEST(test_programs_of_others)
{
    static const char slow[] = "sleep 0.3; trap 'echo got; exit 5' USR1; echo armed; "
                               "for i in 1 2 3 4 5 6 7 8 9; do sleep 0.5; done";
    const char *const argv[] = {"lockstep", "run", "--nproc-per-node=2", "sh", "-c", slow, NULL};
    lks_test_child run = lks_test_start(argv, NULL);
    wait_for_main(run.pid, SIGUSR1);
    assert_int_equal(kill(run.pid, SIGUSR1), 0);
    lks_test_result r = assert_exits(5, lks_test_wait(&run, 60));
    assert_contains(r.out, "got\n");

    const char *const busy[] = {"lockstep", "run", own_path(), NULL};
    const char *env[] = {"LKS_TEST_SLOW_START=1", NULL};
    run = lks_test_start(busy, env);
    lks_test_wait_for_text(run.out_path, "begun");
    assert_int_equal(kill(run.pid, SIGUSR1), 0);
    assert_exits(5, lks_test_wait(&run, 60));

    const char *const plain[] = {"lockstep", "run", "sh", "-c", "echo begun; exec sleep 50", NULL};
    run = lks_test_start(plain, NULL);
    lks_test_wait_for_text(run.out_path, "begun");
    assert_int_equal(kill(run.pid, SIGUSR2), 0);
    pause_ms(100);
    assert_int_equal(kill(run.pid, SIGTERM), 0);
    r = assert_exits(128 + SIGTERM, lks_test_wait(&run, 60));
    assert_true(r.seconds < 4 * lks_test_patience());
    assert_null(strstr(r.err, " waits: rank ")); /* said only after some seconds */
}

/* A program that keeps a signal blocked has it wait, and the launcher sends it. */
TEST(test_blocked)
{
    const char *mark = marked_variable(), *env[] = {mark, NULL};
    const char *const argv[] = {"lockstep", "run", "env", "--block-signal=USR2",
                                "sleep",    "50",  NULL};
    lks_test_child run = lks_test_start(argv, env);
    pid_t rank;
    lks_test_until((rank = marked_rank(mark, 0)) > 0 && marked_has_signal(rank, "SigBlk", SIGUSR2));
    assert_int_equal(kill(run.pid, SIGUSR2), 0);
    lks_test_until(marked_has_signal(rank, "ShdPnd", SIGUSR2));
    assert_int_equal(kill(run.pid, SIGTERM), 0);
    assert_int_equal(lks_test_wait(&run, 60).exit_code, 128 + SIGTERM);
}

/* `before` a run in a shell, and `after` it; wait for its first step, and stop it. It must end with
 * `code`. */
static void check_stop(const char *before, int W, const char *after, int code)
{
    const char *out;
    law_args args = law_train("random", &out);
    law_add_line(&args, "--nproc_per_node=%d --max_iters=1000000 --checkpoint_interval=1000000", W);
    law_add(&args, "--eval_interval=0"); /* otherwise improvements would be saved, too */
    const char *script = lks_test_text("exec %s %s %s", before, law_words(&args), after);
    lks_test_child run = lks_test_start((const char *const[]){"sh", "-c", script, NULL}, NULL);
    lks_test_wait_for_text(lks_test_text("%s/metrics.jsonl", out), "\"iter\":1,");
    assert_int_equal(kill(run.pid, SIGTERM), 0);
    assert_exits(code, lks_test_wait(&run, 20));
    assert_int_equal(law_count_checkpoints(out), 1);
}

/* The program that starts a run has blocked the signal, maybe without knowing it. */
TEST(test_blocked_before)
{
    check_stop("env --block-signal=TERM", 1, "", 128 + SIGTERM);
    check_stop("env --block-signal=TERM", 2, "", 128 + SIGTERM);
}

/* The lines of a stopped run may have no reader any more: Ctrl-C ends `tee` as well. A full disk is
 * reported. */
TEST(test_stop_without_reader)
{
    const char *pipe = lks_test_text("%s/pipe", lks_test_folder());
    const char *broken = lks_test_text("3<>'%s' >'%s' 3>&-", pipe, pipe);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    check_stop("", 1, broken, 128 + SIGTERM);
    check_stop("", 2, broken, 128 + SIGTERM);
    check_stop("", 1, ">/dev/full", 1);
}

/* The blocked and ignored signals of a rank, and of the same program without us, if a shell starts
 * both with `before`. */
static void check_inherited(const char *before, unsigned long long mask[4])
{
    static const char script[] = "grep '^Sig[BI]' /proc/self/status"; /* a shell clears the mask */
    lks_test_result plain = lks_test_run(
        (const char *const[]){"sh", "-c", lks_test_text("%s %s", before, script), NULL}, NULL, 20);
    lks_test_result r =
        assert_exits(0, lks_test_run((const char *const[]){"sh", "-c",
                                                           lks_test_text("%s '%s' run %s", before,
                                                                         LKS_TEST_TOOL, script),
                                                           NULL},
                                     NULL, 20));
    assert_int_equal(sscanf(plain.out, "SigBlk: %llx SigIgn: %llx", &mask[0], &mask[1]), 2);
    assert_int_equal(sscanf(r.out, "SigBlk: %llx SigIgn: %llx", &mask[2], &mask[3]), 2);
    assert_true(mask[2] == mask[0]);
    /* SIGTTOU is ignored: ranks may write to the terminal from the background. */
    assert_true(mask[3] == (mask[1] | 1ull << (SIGTTOU - 1)));
}

/* Other programs inherit the signal actions and the mask that the launcher was started with. */
TEST(test_inherited)
{
    unsigned long long mask[4];
    check_inherited("exec", mask);
    check_inherited("exec env --block-signal=USR1", mask);
    assert_true(mask[0] >> (SIGUSR1 - 1) & 1);
    check_inherited("exec env --ignore-signal=CHLD", mask);
    assert_true(mask[1] >> (SIGCHLD - 1) & 1);
}

/* --- ignored ones ------------------------------------------------------------------------- */

/* Start argv as nohup does, or as a shell without job control. */
static lks_test_child start_ignoring(int sig, const char *const argv[], const char *mark)
{
    const char *env[] = {mark, NULL}, *words[64] = {"sh", "-c", NULL, "sh"};
    int n = 4;
    words[2] = lks_test_text("trap '' %s; exec \"$@\"", sigabbrev_np(sig));
    words[n++] = LKS_TEST_TOOL;
    for (int i = 1; argv[i] != NULL && n < 63; i++)
        words[n++] = argv[i];
    words[n] = NULL;
    return lks_test_start(words, env);
}

static void check_ignored(int sig, int W)
{
    const char *out, *mark = marked_variable();
    law_args args = law_train("random", &out);
    law_add_line(&args, "--nproc_per_node=%d --max_iters=1000000 --checkpoint_interval=1000000", W);
    lks_test_child run = start_ignoring(sig, args.argv, mark);
    const char *metrics = lks_test_text("%s/metrics.jsonl", out);
    lks_test_wait_for_text(metrics, "\"train\"");
    kill(run.pid, sig);
    for (int r = 0; r < W && W > 1; r++)
        lks_test_kill(marked_rank(mark, r), sig);
    pause_ms(100);
    struct stat before, after;
    assert_int_equal(stat(metrics, &before), 0);
    pause_ms(100);
    lks_test_until(stat(metrics, &after) == 0 && after.st_size > before.st_size); /* it continues */
    kill(run.pid, SIGTERM);
    lks_test_result r = assert_exits(128 + SIGTERM, lks_test_wait(&run, 60));
    assert_null(strstr(r.err, lks_test_text("SIG%s", sigabbrev_np(sig))));
    marked_assert_gone(mark, 2);
}

TEST(test_ignored)
{
    check_ignored(SIGHUP, 2);
    check_ignored(SIGHUP, 1);
    check_ignored(SIGINT, 2);
    check_ignored(SIGINT, 1);
    check_ignored(SIGUSR1, 2);
}

/* SIGQUIT (Ctrl-\) ends ranks of `lockstep train`, which don't catch it, like any others. */
TEST(test_quit)
{
    const char *out, *mark = marked_variable();
    law_args args = law_train("random", &out);
    law_add_all(&args, "--nproc_per_node=2", "--max_iters=1000000",
                "--checkpoint_interval=1000000");
    lks_test_child run = lks_test_start(args.argv, (const char *const[]){mark, NULL});
    lks_test_wait_for_text(lks_test_text("%s/metrics.jsonl", out), "\"train\"");
    assert_int_equal(kill(run.pid, SIGQUIT), 0);
    assert_exits(128 + SIGQUIT, lks_test_wait(&run, 10));
    marked_assert_gone(mark, 2);
}

/* The launcher of other programs, also if it is told to handle the signal. */
TEST(test_ignored_by_launcher)
{
    static const int sigs[] = {SIGHUP, SIGINT, SIGQUIT};
    for (int i = 0; i < 6; i++) {
        int sig = sigs[i % 3];
        const char *argv[] = {"lockstep",
                              "run",
                              "--nproc-per-node=2",
                              i < 3 ? "--max-restarts=0"
                                    : "--signals-to-handle=SIGHUP,SIGINT,SIGQUIT,SIGTERM",
                              "sh",
                              "-c",
                              "echo begun; sleep 0.4; exit 3",
                              NULL};
        lks_test_child run = start_ignoring(sig, argv, marked_variable());
        lks_test_wait_for_text(run.out_path, "begun");
        assert_int_equal(kill(run.pid, sig), 0);
        lks_test_result r = assert_exits(3, lks_test_wait(&run, 60));
        assert_null(strstr(r.err, "passing signal"));
        assert_contains(r.err, "exited with code 3"); /* by itself, not because of a signal */
    }
}

/* A signal to stop while the ranks are ended after a failure. Rank 1 sends it to the launcher. */
TEST(test_stop_after_failure)
{
    const char *armed = lks_test_text("%s/armed", lks_test_folder());
    const char *script = lks_test_text("trap 'kill -TERM $PPID; exec sleep 9' TERM; f='%s'; "
                                       "[ $RANK = 0 ] || : >\"$f\"; "
                                       "while [ $RANK = 1 ] || [ ! -e \"$f\" ]; do sleep 0.05; "
                                       "done; exit 3",
                                       armed);
    const char *const argv[] = {
        "lockstep", "run", "--nproc-per-node=2", "--max-restarts=1", "sh", "-c", script, NULL};
    lks_test_result r = assert_exits(3, lks_test_run(argv, NULL, 60));
    assert_null(strstr(r.err, "restart 1"));
}

/* --- before all have joined --------------------------------------------------------------- */

static void check_nothing_done(const lks_test_result *r, int sig)
{
    if (r->exit_code != 128 + sig)
        fail_msg("exit code %d after %.1f s: %s", r->exit_code, r->seconds, r->err);
    assert_contains(r->err, "during setup: nothing was trained or written");
}

/* A rank with variables of another launcher, whose other rank never starts. */
TEST(test_stop_alone)
{
    static const int signals[2] = {SIGINT, SIGTERM};
    for (int rank = 0; rank < 2; rank++) {
        const char *const env[] = {lks_test_text("RANK=%d", rank),
                                   lks_test_text("LOCAL_RANK=%d", rank),
                                   "WORLD_SIZE=2",
                                   "LOCAL_WORLD_SIZE=2",
                                   lks_test_text("MASTER_PORT=%d", lks_test_free_port()),
                                   NULL};
        const char *out;
        law_args args = law_train("random", &out);
        lks_test_child run = lks_test_start(args.argv, env);
        wait_for_main(run.pid, signals[rank]);
        pause_ms(50.0 * rank);
        assert_int_equal(kill(run.pid, signals[rank]), 0);
        lks_test_result r = lks_test_wait(&run, 10);
        check_nothing_done(&r, signals[rank]);
    }
}

/* A rank that ends before it has joined: the other one doesn't wait for it, with a signal or
 * without one. */
TEST(test_end_before_joining)
{
    const char *out, *mark = marked_variable(), *env[] = {mark, NULL};
    law_args args = law_train("random", &out);
    for (int sig = SIGTERM; sig >= 0; sig -= SIGTERM) {
        const char *script =
            lks_test_text("[ $RANK = 0 ] && exec %s; trap 'exit 0' TERM; echo armed; "
                          "while [ %d != 0 ]; do sleep 0.05; done",
                          law_words(&args), sig);
        const char *const argv[] = {"lockstep", "run", "--nproc-per-node=2", "sh", "-c",
                                    script,     NULL};
        lks_test_child run = lks_test_start(argv, env);
        lks_test_wait_for_text(run.out_path, "armed");
        if (sig != 0) { /* rank 0 must get it before it sees that rank 1 is gone */
            pid_t rank;
            lks_test_until((rank = marked_rank(mark, 0)) > 0);
            wait_for_main(rank, sig);
            assert_int_equal(kill(run.pid, sig), 0);
        }
        lks_test_result r = lks_test_wait(&run, 10);
        if (sig != 0) {
            check_nothing_done(&r, sig);
            continue;
        }
        assert_exits(1, r,
                     ") exited with code 0 while other ranks still waited for it, so rank 0 "
                     "failed: rank 1 (pid ",
                     ") ended without joining the group. All ranks must");
    }
}

/* A rank gets the signal while it waits for the other one, which gets none: it joins later, and
 * stops for the same reason. */
TEST(test_stop_of_one)
{
    const char *out, *go = lks_test_text("%s/go", lks_test_folder());
    const char *mark = marked_variable(), *env[] = {mark, NULL};
    law_args args = law_train("random", &out);
    const char *script = lks_test_text("while [ $RANK = 0 ] && [ ! -e '%s' ]; do sleep 0.05; done; "
                                       "exec %s",
                                       go, law_words(&args));
    const char *const argv[] = {"lockstep", "run", "--nproc-per-node=2", "sh", "-c", script, NULL};
    lks_test_child run = lks_test_start(argv, env);
    pid_t rank;
    lks_test_until((rank = marked_rank(mark, 1)) > 0);
    wait_for_main(rank, SIGTERM);
    assert_int_equal(lks_test_kill(rank, SIGTERM), 0);
    lks_test_until(marked_rank(mark, 1) <= 0);
    lks_test_write(go, "", 0);
    lks_test_result r = lks_test_wait(&run, 10);
    check_nothing_done(&r, SIGTERM);
}

static bool has_segment(pid_t pid)
{
    return strstr(lks_test_proc("/proc/%d/maps", (int)pid), "/memfd:lockstep") != NULL;
}

/* The same under another launcher, whose third rank never starts. */
TEST(test_stop_of_first)
{
    const char *out, *port = lks_test_text("MASTER_PORT=%d", lks_test_free_port());
    law_args args = law_train("random", &out);
    law_add(&args, "--allow_uneven");
    lks_test_child runs[2];
    for (int rank = 0; rank < 2; rank++) {
        const char *const env[] = {lks_test_text("RANK=%d", rank),
                                   lks_test_text("LOCAL_RANK=%d", rank),
                                   "WORLD_SIZE=3",
                                   "LOCAL_WORLD_SIZE=3",
                                   port,
                                   NULL};
        runs[rank] = lks_test_start(args.argv, env);
    }
    lks_test_until(has_segment(runs[1].pid));
    assert_int_equal(kill(runs[0].pid, SIGTERM), 0);
    for (int rank = 0; rank < 2; rank++)
        assert_int_equal(lks_test_wait(&runs[rank], 10).exit_code, 128 + SIGTERM);
}

/* The first process of a container ignores signals without a handler, also those that end a command
 * anywhere else. This one prints far more than the pipe holds, and we read little: the thread
 * sanitizer's _exit() first writes what stdio holds. */
static void check_first_process(int sig)
{
    int status = 0, text[2];
    char piece[256];
    assert_int_equal(pipe2(text, O_CLOEXEC), 0);
    assert_true(fcntl(text[1], F_SETPIPE_SZ, 4096) > 0);
    assert_int_equal(fcntl(text[0], F_SETFL, O_NONBLOCK), 0);
    const pid_t launcher = fork();
    if (launcher == 0) {
        lks_test_default_signals();
        if (unshare(CLONE_NEWPID) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0)
            _exit(2);
        const pid_t first = fork();
        if (first == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            dup2(text[1], STDOUT_FILENO);
            execl(lks_test_program(), "lockstep", "help", "--table", NULL);
            _exit(126);
        }
        pid_t ended = 0;
        for (int i = 0; first > 0 && ended == 0 && i < lks_test_tries(1000); i++) {
            kill(first, sig);
            pause_ms(10);
            ended = waitpid(first, &status, WNOHANG);
            (void)!read(text[0], piece, sizeof piece);
        }
        _exit(ended > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
    assert_int_equal(waitpid(launcher, &status, 0), launcher);
    close(text[0]);
    close(text[1]);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 2)
        lks_test_lacks("namespaces", "no namespace with processes of its own");
    assert_int_equal(WEXITSTATUS(status), 128 + sig);
}

TEST(test_first_process)
{
    check_first_process(SIGTERM);
    check_first_process(SIGQUIT);
}
