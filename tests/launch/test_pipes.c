/* Output of ranks whose readers don't read, come back, or are missing: the launcher watches, stops
 * and ends as usual, needs little memory, and loses nothing if a reader comes. */
#include "laws/laws.h"
#include "laws/marked.h"
#include "support.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/system/sys.h"

struct run {
    pid_t pid;
    int out; /* the reading end of its stdout */
    const char *mark, *err_path;
    double start_s, took_s;
};

static void pause_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

/* argv[0] is "lockstep"; stderr goes to a file, or into the pipe, too. */
static struct run start_any(const char *const argv[], bool err_too)
{
    struct run r = {.mark = marked_variable(),
                    .err_path = lks_test_text("%s/err", lks_test_folder())};
    int fds[2];
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    r.start_s = lks__sys_now();
    r.pid = fork();
    assert_true(r.pid >= 0);
    if (r.pid == 0) {
        int err = open(r.err_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        setpgid(0, 0);
        lks_test_default_signals();
        dup2(fds[1], 1);
        dup2(err_too ? fds[1] : err, 2);
        putenv((char *)(uintptr_t)r.mark);
        execv(LKS_TEST_TOOL, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    close(fds[1]);
    r.out = fds[0];
    return r;
}

/* `lockstep run OPTIONS sh -c SCRIPT` */
static struct run start(const char *options[], const char *script, bool err_too)
{
    const char *argv[32] = {"lockstep", "run"};
    int n = 2;
    for (; *options != NULL; options++)
        argv[n++] = *options;
    argv[n++] = "sh";
    argv[n++] = "-c";
    argv[n] = script;
    return start_any(argv, err_too);
}
#define START(script, ...) start((const char *[]){__VA_ARGS__, NULL}, script, false)

/* Returns the exit code; checks the time, and that nothing is left. */
static int finish(struct run *r, double most_s)
{
    int status = 0;
    while (waitpid(r->pid, &status, WNOHANG) == 0) {
        if (lks__sys_now() - r->start_s > most_s * lks_test_patience()) {
            kill(r->pid, SIGKILL);
            waitpid(r->pid, NULL, 0);
            fail_msg("it hasn't ended after %g s: %s", most_s, lks_test_read(r->err_path, NULL));
        }
        pause_ms(5);
    }
    r->took_s = lks__sys_now() - r->start_s;
    close(r->out);
    marked_assert_gone(r->mark, 2);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Wait until the pipe is full, so that the launcher waits for its reader, and give the other
 * buffers on the way time to fill. */
static void wait_until_full(const struct run *r)
{
    struct pollfd p = {.events = POLLOUT};
    p.fd = open(lks_test_text("/proc/self/fd/%d", r->out), O_WRONLY | O_CLOEXEC);
    assert_true(p.fd >= 0);
    lks_test_until(poll(&p, 1, 0) == 0);
    close(p.fd);
    pause_ms(300);
}

/* A rank whose write blocks is asked to stop: it can save its state, and records that in its
 * file. */
static void check_stop(bool err_too)
{
    const char *dir = lks_test_folder(), *saved = lks_test_text("%s/saved-", dir);
    const char *log_dir = lks_test_text("--log-dir=%s", dir);
    const char *script = lks_test_text("trap 'echo last words; touch \"%s\"$RANK; exit 7' TERM; "
                                       "while :; do echo hello; echo hello >&2; done",
                                       saved);
    struct run r =
        start((const char *[]){"--nproc-per-node=2", "--shutdown-timeout=6", log_dir, NULL}, script,
              err_too);
    wait_until_full(&r);
    kill(r.pid, SIGTERM);
    assert_int_equal(finish(&r, 20), 7);
    for (int rank = 0; rank < 2; rank++)
        assert_true(lks_test_exists(lks_test_text("%s%d", saved, rank)));
    const char *find = lks_test_text("grep -rlx 'last words' '%s' | wc -l", dir);
    lks_test_result found = lks_test_run((const char *const[]){"sh", "-c", find, NULL}, NULL, 20);
    assert_int_equal(atoi(found.out), 2);
    if (!err_too) {
        assert_contains(lks_test_read(r.err_path, NULL), "lines) for the standard output were "
                                                         "dropped: their reader was too slow");
    }
}

TEST(test_stop)
{
    check_stop(false);
    check_stop(true);
}

TEST(test_death)
{
    struct run r = START("if [ $RANK = 1 ]; then sleep 0.5; exit 7; fi; "
                         "while :; do echo hello hello hello; done",
                         "--nproc-per-node=2", "--shutdown-timeout=1");
    assert_int_equal(finish(&r, 10), 7);
    assert_contains(lks_test_read(r.err_path, NULL), "exited with code 7");
}

/* Everything has ended except the output, which waits for its reader: `lines` of each rank. */
static struct run start_and_end(int lines)
{
    const char *done = lks_test_text("%s/done-", lks_test_folder());
    struct run r =
        START(lks_test_text("seq 1 %d; touch \"%s\"$RANK", lines, done), "--nproc-per-node=2");
    for (int rank = 0; rank < 2; rank++)
        lks_test_until(lks_test_exists(lks_test_text("%s%d", done, rank)));
    pause_ms(500);
    assert_int_equal(waitpid(r.pid, NULL, WNOHANG), 0);
    return r;
}

/* A signal to stop ends that. One that asks for a checkpoint doesn't, and the job has succeeded. */
TEST(test_end)
{
    struct run r = start_and_end(9000);
    kill(r.pid, SIGTERM);
    finish(&r, 20);
    assert_contains(lks_test_read(r.err_path, NULL), "were dropped");

    char text[4096];
    r = start_and_end(5000); /* the launcher's queue has what the pipe hasn't: 120 KB in all */
    kill(r.pid, SIGUSR1);
    pause_ms(100);
    while (read(r.out, text, sizeof text) > 0)
        ;
    assert_int_equal(finish(&r, 20), 0);
}

/* A second signal ends it without waiting. */
TEST(test_insist)
{
    struct run r = START("trap '' TERM; while :; do echo hello; done", "--nproc-per-node=2");
    wait_until_full(&r);
    kill(r.pid, SIGTERM);
    lks_test_wait_for_text(r.err_path, "second");
    pause_ms(600);
    double second_s = lks__sys_now();
    kill(r.pid, SIGTERM);
    assert_int_equal(finish(&r, 20), 128 + SIGKILL);
    assert_true(lks__sys_now() - second_s < 4 * lks_test_patience());
}

/* --- nothing is lost ---------------------------------------------------------------------- */

enum { RANKS = 4, LINES = 20000 };

/* Each line once, complete, in the order of its rank. */
static void read_lines(int fd)
{
    int next[RANKS] = {0}, rank, number, end;
    char line[256];
    FILE *f = fdopen(fd, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        const char *text = strchr(line, ']');
        assert_non_null(text);
        assert_int_equal(sscanf(text, "] line %d %d of%n", &rank, &number, &end), 2);
        assert_string_equal(text + end, " many\n");
        assert_in_range(rank, 0, RANKS - 1);
        assert_int_equal(number, ++next[rank]);
    }
    for (rank = 0; rank < RANKS; rank++)
        assert_int_equal(next[rank], LINES);
}

/* The reader comes late, and meanwhile the launcher was stopped and continued. */
TEST(test_late_reader)
{
    struct run r = START("seq 1 20000 | sed \"s/.*/line $RANK & of many/\"", "--nproc-per-node=4");
    wait_until_full(&r);
    kill(r.pid, SIGSTOP);
    pause_ms(200);
    kill(r.pid, SIGCONT);
    pause_ms(1000);
    read_lines(dup(r.out));
    assert_int_equal(finish(&r, 60), 0);
    assert_string_equal(lks_test_read(r.err_path, NULL), "");
}

/* A stop while nobody reads; then a reader comes, and gets the number of dropped lines. */
TEST(test_reader_returns)
{
    static char text[1 << 20];
    const char *free = lks_test_text("%s/free-", lks_test_folder());
    struct run r = START(lks_test_text("trap 'n=1' TERM; n=0; while [ $n = 0 ]; do echo hello; "
                                       "done; seq 1 20000; touch \"%s\"$RANK; sleep 1; echo after; "
                                       "exit 7",
                                       free),
                         "--nproc-per-node=2", "--shutdown-timeout=9");
    wait_until_full(&r);
    kill(r.pid, SIGTERM);
    for (int rank = 0; rank < 2; rank++)
        lks_test_until(lks_test_exists(lks_test_text("%s%d", free, rank)));
    size_t n = 0;
    for (ssize_t got; (got = read(r.out, text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)got;
    assert_int_equal(finish(&r, 20), 7);
    assert_contains(text, "] after\n");
    static const char dropped[] = "for the standard output were dropped";
    const char *said = lks_test_find(lks_test_read(r.err_path, NULL), dropped);
    assert_null(strstr(said + 1, dropped)); /* what was dropped is counted once */
}

/* --- a run of ours ------------------------------------------------------------------------ */

/* Rank 0 has the pipe itself. While it waits for the reader, the others don't give it up; a stop
 * reaches its checkpoint. */
static void check_train(int W)
{
    const char *out;
    law_args args = law_train("random", &out);
    law_add_line(&args,
                 "--nproc_per_node=%d --max_iters=1000000 --checkpoint_interval=1000000 "
                 "--log_interval=1 --timeout=%g",
                 W, 2 * lks_test_patience());
    struct run r = start_any(args.argv, false);
    assert_true(fcntl(r.out, F_SETPIPE_SZ, 4096) >= 4096);
    wait_until_full(&r);
    pause_ms(W > 1 ? 6000 * lks_test_patience() : 500);
    assert_int_equal(waitpid(r.pid, NULL, WNOHANG), 0);
    kill(r.pid, SIGTERM);
    assert_int_equal(finish(&r, 25), 128 + SIGTERM);
    assert_int_equal(law_count_checkpoints(out), 1);
    assert_contains(lks_test_read(r.err_path, NULL),
                    "were dropped, because their reader was too slow");
}

TEST(test_train)
{
    check_train(2);
    check_train(1);
}

/* --- memory ------------------------------------------------------------------------------- */

/* Lines of two bytes, each of which becomes twenty, from ranks that print as fast as they are read,
 * also when the launcher has a message of its own. */
TEST(test_memory)
{
    struct run r = START("trap '' TERM; exec yes", "--nproc-per-node=4");
    pid_t pids[16];
    uint64_t peak = 0;
    wait_until_full(&r);
    kill(r.pid, SIGTERM);
    pause_ms(700);
    int n = marked_processes(r.mark, pids, 16);
    assert_in_range(n, 6, 16);
    for (int i = 0; i < n; i++) {
        const uint64_t bytes =
            lks__sys_proc_bytes(lks_test_text("/proc/%d/status", (int)pids[i]), "VmHWM");
        peak = bytes > peak ? bytes : peak;
    }
    assert_true(peak > 0);
    if (LKS_TEST_PATIENCE == 1) /* sanitizers need more memory themselves */
        assert_true(peak < 16 << 20);
    kill(r.pid, SIGTERM);
    assert_int_equal(finish(&r, 20), 128 + SIGKILL);
}

/* --- no reader at all --------------------------------------------------------------------- */

TEST(test_no_output)
{
    static const struct {
        const char *to, *why;
    } cases[] = {{">&-", "Bad file descriptor"}, {">/dev/full", "No space left on device"}};
    for (size_t i = 0; i < 2; i++) {
        const char *command =
            lks_test_text("exec '%s' run --nproc-per-node=2 sh -c 'echo hi; sleep 0.2; echo hi; "
                          "exit 0' %s",
                          LKS_TEST_TOOL, cases[i].to);
        lks_test_result r =
            assert_exits(0, lks_test_run((const char *const[]){"sh", "-c", command, NULL}, NULL,
                                         20)); /* ranks don't die of it */
        assert_contains(
            r.err, "lockstep: the standard output can't be written: ",
            lks_test_text("(4 lines) for the standard output were dropped: %s", cases[i].why));
    }
}
