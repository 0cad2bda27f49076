/* A bit of the parameters flips in memory during a run: the run ends, and names the tensor, the
 * host and, if there are several replicas, the rank. */
#include "faults.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "laws/marked.h"

/* Does the process hold a float near 1 there? True if its memory can't be opened: flip() says so.
 */
static bool holds_one(pid_t pid, unsigned long long at)
{
    float x = 0.0f;
    int fd = open(lks_test_text("/proc/%d/mem", (int)pid), O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return true;
    bool read = pread(fd, &x, sizeof x, (off_t)at) == sizeof x;
    close(fd);
    return read && x > 0.5f && x < 1.5f;
}

/* Address of the parameters in `pid`: the part of the job's shared memory that begins with the
 * weights of a normalization, which stay near 1; 0: not yet. */
static unsigned long long parameters_of(pid_t pid)
{
    const char *line = lks_test_proc("/proc/%d/maps", (int)pid);
    for (; *line != '\0'; line += strcspn(line, "\n") + 1) {
        unsigned long long start, offset;
        char name[16] = "";
        if (sscanf(line, "%llx-%*s %*s %llx %*s %*s %15s", &start, &offset, name) == 3 &&
            strcmp(name, "/memfd:lockstep") == 0 && offset > 0 && holds_one(pid, start))
            return start;
    }
    return 0;
}

/* Flip the lowest bit of the float at `at` in the memory of `pid`; false if that's impossible. */
static bool flip(pid_t pid, unsigned long long at)
{
    unsigned char byte = 0;
    int fd = open(lks_test_text("/proc/%d/mem", (int)pid), O_RDWR | O_CLOEXEC);
    bool ok = fd >= 0 && pread(fd, &byte, 1, (off_t)at) == 1;
    byte ^= 1;
    ok = ok && pwrite(fd, &byte, 1, (off_t)at) == 1;
    if (fd >= 0)
        close(fd);
    return ok;
}

static bool ended(pid_t pid)
{
    siginfo_t info = {.si_pid = 0};
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

/* Runs on W ranks, and flips bits of the first tensor (in the arena) in rank `rank`, until the run
 * ends. One flip isn't enough: during an update it becomes part of the update. */
static const char *flipped(int W, int rank, const char *replicas, int interval)
{
    fault_run run = fault_train(W);
    law_add_all(&run.args, "--max_iters=10000000", "--eval_interval=0", "--log_interval=1000",
                "--allow_uneven");
    fault_add(&run, "--check_interval=%d", interval);
    fault_add(&run, "--replicas=%s", replicas);
    const char *mark = marked_variable(), *env[] = {mark, NULL};
    const char *log = lks_test_text("%s/train.log", run.out);
    lks_test_child child = lks_test_start(run.args.argv, env);
    bool writable = true;
    for (int i = 0; i < lks_test_tries(500) && !ended(child.pid) && writable; i++) {
        usleep(10000);
        pid_t pid = W == 1 ? child.pid : marked_rank(mark, rank);
        unsigned long long at = pid > 0 && lks_test_exists(log) ? parameters_of(pid) : 0;
        if (at == 0)
            continue;
        if (strcmp(replicas, "private") == 0) /* slices of 64 KiB, more than this model needs */
            at += (unsigned long long)rank << 16;
        writable = flip(pid, at + 4 * (unsigned)(i % 16)) || ended(child.pid) || i > 5;
    }
    if (!writable)
        kill(child.pid, SIGKILL);
    lks_test_result r = lks_test_wait(&child, 10);
    if (!writable)
        lks_test_lacks("process-memory", "what other processes hold can't be written");
    assert_exits(1, r);
    marked_assert_gone(mark, 0.5);
    assert_contains(r.err, "first in tensor transformer.ln_f.weight");
    return r.err;
}

/* --- between hosts ------------------------------------------------------------------------ */

/* One host's launcher, with its own hostname if possible. */
static lks_test_child start_host(const fault_run *train, int node, int port, const char *mark)
{
    const char *argv[80] = {"unshare", "--uts", "sh", "-c", "hostname \"$0\" && exec \"$@\""};
    const char *env[] = {mark, "LOCKSTEP_TOKEN=0123456789abcdef0123456789abcdef", NULL};
    int n = 5;
    argv[n++] = node == 0 ? "host-a" : "host-b";
    argv[n++] = LKS_TEST_TOOL;
    argv[n++] = "run";
    argv[n++] = "--nnodes=2";
    argv[n++] = lks_test_text("--node-rank=%d", node);
    argv[n++] = lks_test_text("--master-port=%d", port);
    argv[n++] = "--nproc-per-node=1";
    argv[n++] = LKS_TEST_TOOL;
    for (int i = 1; i < train->args.n; i++)
        argv[n++] = train->args.argv[i];
    return lks_test_start(argv, env);
}

/* Flip a few bits in the second host's replica; returns what both print in the end. A flip during
 * an update is found by the check of that replica alone, and doesn't count here. */
static bool flip_on_second_host(const char *says[2])
{
    fault_run run = fault_train(1);
    law_add_all(&run.args, "--max_iters=10000000", "--eval_interval=0", "--log_interval=1000",
                "--check_interval=100");
    const char *mark = marked_variable(), *log = lks_test_text("%s/train.log", run.out);
    int port = lks_test_free_port();
    lks_test_child hosts[2];
    for (int node = 0; node < 2; node++)
        hosts[node] = start_host(&run, node, port, mark);
    bool flipped = false;
    for (int i = 0; i < lks_test_tries(1000) && !ended(hosts[1].pid) && !flipped; i++) {
        usleep(10000);
        pid_t pid = marked_rank(mark, 1);
        unsigned long long at = pid > 0 && lks_test_exists(log) ? parameters_of(pid) : 0;
        for (unsigned k = 0; k < 8 && at != 0; k++)
            flipped |= flip(pid, at + 4 * k);
    }
    if (!flipped)
        kill(hosts[1].pid, SIGKILL);
    for (int node = 0; node < 2; node++) {
        lks_test_result r =
            assert_exits(flipped || node == 0 ? 1 : -1, lks_test_wait(&hosts[node], 30));
        says[node] = r.err;
    }
    if (!flipped)
        lks_test_lacks("process-memory", "what other processes hold can't be written");
    marked_assert_gone(mark, 1);
    return strstr(says[0], "the replicas have diverged") != NULL;
}

TEST(test_hosts)
{
    const char *says[2] = {"", ""};
    lks_test_need_gloo();
    if (system("unshare --uts true >/dev/null 2>&1") != 0)
        lks_test_lacks("namespaces", "no namespace with a host's name of its own");
    for (int tries = 0; tries < 5 && !flip_on_second_host(says); tries++)
        continue;
    for (int node = 0; node < 2; node++)
        assert_contains(says[node],
                        "the replicas have diverged, first in tensor "
                        "transformer.ln_f.weight: rank 1 (host host-b) has other values "
                        "than rank 0 (host host-a)");
}

/* --- on one host -------------------------------------------------------------------------- */

static const char *host(void)
{
    char name[65] = "";
    gethostname(name, sizeof name - 1);
    return lks_test_text("host %s", name);
}

TEST(test_shared)
{
    for (int W = 1; W <= 4; W *= 2) {
        const char *err = flipped(W, W - 1, "shared", 1);
        assert_contains(err, "the parameters have changed between update ", host());
    }
}

TEST(test_private)
{
    const char *err = flipped(3, 1, "private", 7);
    assert_contains(
        err,
        lks_test_text("rank 1 (%s) has other values than rank 0 (%s), which agrees with "
                      "most ranks",
                      host(), host()),
        "rank 1 (pid "); /* and no other rank says so */
    assert_null(strstr(err, "rank 0 (pid "));
    err = flipped(2, 0, "private", 7);
    assert_contains(err, "the replicas have diverged");
}

/* Without checks nothing is found; with them, nothing if nothing is wrong. */
TEST(test_quiet)
{
    for (int interval = 0; interval <= 3; interval++) {
        fault_run run = fault_train(interval == 2 ? 1 : 2);
        fault_add(&run, "--check_interval=%d", interval);
        fault_add(&run, "--replicas=%s", interval == 3 ? "private" : "shared");
        fault_succeeds(&run);
    }
}
