/* One rank's session: threads, their peak, which failures go on record, when work stops; names of
 * devices; a trace that is longer than its memory, or can't be written. */
#include "session/session.h"
#include "support.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/number/cpu.h"
#include "base/system/early.h"
#include "base/system/sys.h"
#include "comm/backend.h"
#include "comm/liveness.h"
#include "comm/ranks.h"
#include "comm/shm/host.h"
#include "comm/shm/segment/segment_layout.h"
#include "session/signals.h"
#include "session/trace_file.h"
#include "train/checks/agree.h"

static lks_status open_session(int threads, lks__session *s)
{
    return lks__session_open("auto", 60, threads, LKS__BIND_NONE, s);
}

/* A run of one step of a tiny model. */
static lks_test_result train(int ranks, const char *threads)
{
    const char *dir = lks_test_folder();
    lks_test_generated_tokens(dir);
    return lks_test_tool(
        "train", lks_test_text("--dataset=%s", dir), lks_test_text("--out_dir=%s/out", dir),
        lks_test_text("--nproc_per_node=%d", ranks), threads, "--vocab_size=65", "--n_layer=1",
        "--n_head=1", "--n_embd=8", "--block_size=8", "--batch_size=1",
        "--gradient_accumulation_steps=2", "--max_iters=0", "--eval_iters=1");
}

/* A rank's own failure is recorded, but not another rank's, and not a stop that was asked for. This
 * test is the first, because others fail, and the record lasts. */
TEST(test_on_record)
{
    lks__session s;
    assert_ok(open_session(1, &s));
    assert_int_equal(lks__session_fail(&s, LKS_OK), LKS_OK);
    assert_int_equal(lks__session_fail(&s, LKS_ERR_PEER), LKS_ERR_PEER);
    assert_int_equal(lks__session_fail(&s, LKS_ERR_STOPPED), LKS_ERR_STOPPED);
    assert_false(lks__session_on_record());
    assert_int_equal(lks__session_fail(&s, LKS_ERR_IO), LKS_ERR_IO);
    assert_true(lks__session_on_record());
    lks__session_close(&s);
}

/* 32 threads for each core are the most, for all ranks of a host together. */
TEST(test_threads)
{
    lks__session s;
    const int cores = lks__cpu_count(), most = 32 * cores;
    assert_ok(open_session(most, &s));
    assert_int_equal(s.threads, most);
    lks__session_close(&s);
    assert_ok(open_session(0, &s));
    assert_int_equal(s.threads, cores);
    lks__session_close(&s);
    assert_fails(LKS_ERR_CONFIG, open_session(most + 1, &s), "for each of 1 ranks here is more");

    assert_exits(2, train(2, lks_test_text("--threads=%d", most / 2 + 1)),
                 lks_test_text("threads=%d for each of 2 ranks here", most / 2 + 1));
}

/* A rank has one thread at least, also if there are fewer cores than ranks. */
TEST(test_few_cores)
{
    cpu_set_t all, one;
    int cpu = 0;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    while (!CPU_ISSET(cpu, &all))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    lks_test_result r = train(2, "--threads=0");
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(r.exit_code, 0);
}

static _Thread_local int n_calls;

/* 0.2 ms or a little longer; later, when something disturbs the machine, ten times as long. */
static void take_time(void)
{
    usleep(n_calls++ < 50 ? 200 : 2000);
}

static double sleep_fp32(void)
{
    take_time();
    return 1e6;
}

static double sleep_bf16(void)
{
    take_time();
    return 1e8;
}

/* The peak is the sum over the threads, of the products that the run makes, each at its best. One
 * thread reaches 5e9 at most. */
TEST(test_peak)
{
    lks__kernels k = {.peak = sleep_fp32, .peak_bf16 = sleep_bf16};
    lks__session s = {.ex = {.k = &k}};
    double flops;
    for (int half = 0; half < 2; half++) {
        n_calls = 0; /* the other threads are new */
        assert_ok(lks__pool_open(3, LKS__EXEC_SCRATCH_BYTES, lks__kernels_thread_init, &s.pool));
        s.ex.pool = s.pool;
        s.ex.bf16 = half;
        assert_ok(lks__session_peak(&s, 3, 30, &flops));
        flops /= half ? 100 : 1;
        assert_true(flops > 5e9 && flops <= 3 * 5e9);
        lks__pool_close(s.pool);
    }
}

/* More threads than cores, of one rank or of several of a host, don't raise the peak of the host.
 */
TEST(test_peak_of_cores)
{
    const lks__kernels k = {.peak = sleep_fp32};
    const int cores = lks__cpu_count(), most = cores * 4;
    for (int ranks = 1; ranks <= 4; ranks += 3) {
        lks__session s;
        double flops;
        assert_ok(open_session(most / ranks, &s));
        s.ex.k = &k;
        s.world.local_world_size = ranks;
        assert_ok(lks__session_peak(&s, most / ranks, 30, &flops));
        assert_in_range(flops * ranks, 1, cores * 5e9);
        s.world.local_world_size = 1;
        s.ex.k = &s.kernels;
        lks__session_close(&s);
    }
}

/* A signal that has asked any rank to stop ends long work on files while that is allowed. */
TEST(test_stoppable)
{
    lks__session s;
    assert_ok(open_session(1, &s));
    lks__session_stoppable(&s, true);
    assert_ok(lks__sys_stop_check());
    lks__comm_ask_stop(s.comm, SIGTERM);
    assert_int_equal(lks__session_asked_stop(&s), SIGTERM);
    assert_int_equal(lks__sys_stop_check(), LKS_ERR_STOPPED);
    lks__session_stoppable(&s, false);
    assert_ok(lks__sys_stop_check());
    lks__session_close(&s);
}

/* Write a file and raise SIGTERM, and expect both, or neither, to reach the group's host. */
static void write_and_stop(lks_comm *comm, const char *path, bool expected)
{
    lks_comm *seen, *const host = comm->host; /* a closed group has none */
    assert_ok(lks_comm_init(&seen));
    lks__segment *segment = lks__shm_segment(seen);
    atomic_ullong *beat_us = &lks__segment_line(segment, 0)->beat_us;
    atomic_store(beat_us, 0);
    comm->host = seen;
    assert_ok(lks__sys_write_file(path, "x", 1));
    assert_int_equal(raise(SIGTERM), 0);
    lks__signals_rearm();
    comm->host = host;
    assert_int_equal(atomic_load(beat_us) > 0, expected);
    assert_int_equal(lks__segment_asked_stop(segment), expected ? SIGTERM : 0);
    lks_comm_close(seen);
}

/* While a session is open, progress with a file is a heartbeat of its group, and a signal is passed
 * on to it; once it is closed, neither. */
TEST(test_group)
{
    lks__session s;
    const char *path = lks_test_text("%s/file", lks_test_folder());
    lks__signals_install("");
    assert_ok(open_session(1, &s));
    lks_comm *comm = s.comm;
    lks__comm_hold(comm); /* so that the handle outlives the session */
    write_and_stop(comm, path, true);
    lks__session_close(&s);
    write_and_stop(comm, path, false);
    lks__comm_release(comm);
}

static void on_alarm(int sig)
{
    raise(SIGTERM);
}

/* Rank 1 is asked to stop; rank 0 joins only after rank 1 has given up, and is asked later. */
RANK(stop)
{
    lks__session s;
    const bool later = strcmp(getenv("RANK"), "0") == 0;
    lks__signals_install("");
    if (later) {
        signal(SIGALRM, on_alarm);
        raise(SIGSTOP);
        ualarm(200 * 1000, 0);
    } else {
        raise(SIGTERM);
    }
    EXPECT(lks__session_open("shm", 20 * lks_test_patience(), 1, LKS__BIND_NONE, &s) ==
           LKS_ERR_STOPPED);
    EXPECT(lks__stop_requested == SIGTERM);
    return 0;
}

/* Let rank 0 continue, which stops itself, and check that both ranks end with 0. */
static void continue_first(struct ranks *r)
{
    assert_int_equal(waitpid(r->pids[0], &r->status[0], WUNTRACED), r->pids[0]);
    assert_true(WIFSTOPPED(r->status[0]));
    r->status[0] = -1;
    assert_int_equal(kill(r->pids[0], SIGCONT), 0);
    ranks_wait(r, 30);
    assert_int_equal(r->status[0], 0);
    assert_int_equal(r->status[1], 0);
}

/* A launcher's signal reaches ranks one after the other. A rank that it reaches late isn't failed
 * by the others' leaving. */
TEST(test_stop_before_joining)
{
    struct ranks r;
    ranks_start(&r, 2, "stop", NULL);
    for (int i = 0; i < lks_test_tries(20000) && !lks__segment_aborted(r.segment); i++)
        usleep(1000);
    continue_first(&r);
}

/* Rank 1 has more threads than are possible; rank 0 joins after a signal, as srun sends it when a
 * rank has failed. */
RANK(fail)
{
    lks__session s;
    const bool first = strcmp(getenv("RANK"), "0") == 0;
    lks__signals_install("");
    if (first) {
        raise(SIGSTOP);
        raise(SIGTERM);
    }
    EXPECT(lks__session_open("shm", 20 * lks_test_patience(), first ? 1 : 1 << 20, LKS__BIND_NONE,
                             &s) == (first ? LKS_ERR_PEER : LKS_ERR_CONFIG));
    EXPECT(strstr(lks_last_error(), "threads=1048576 for each of 2 ranks here") != NULL);
    return 0;
}

/* A failure is reported as one, although a signal has come, too: Slurm's scripts requeue jobs that
 * a signal has stopped. */
TEST(test_stop_after_failure)
{
    struct ranks r;
    ranks_start(&r, 2, "fail", NULL);
    for (int i = 0;
         i < lks_test_tries(20000) && atomic_load(&lks__segment_line(r.segment, 1)->posted) == 0;
         i++)
        usleep(1000);
    continue_first(&r);
}

/* Rank 1 aborts the group before rank 0 joins, which has had a signal. */
RANK(abort)
{
    lks__session s;
    lks__segment *segment;
    lks__signals_install("");
    if (strcmp(getenv("RANK"), "0") == 0) {
        raise(SIGSTOP);
        raise(SIGTERM);
        EXPECT(lks__session_open("shm", 20 * lks_test_patience(), 1, LKS__BIND_NONE, &s) ==
               LKS_ERR_PEER);
        EXPECT(strcmp(lks_last_error(), "rank 1 failed: it has no data") == 0);
        return 0;
    }
    EXPECT(lks__segment_inherit(2, &segment) == LKS_OK);
    EXPECT(lks__segment_abort(segment, LKS_ERR_PEER, 1, "rank 1 failed: it has no data"));
    lks__segment_close(segment);
    return 0;
}

/* The same if ranks learn of the failure otherwise than by agreement. */
TEST(test_stop_after_abort)
{
    struct ranks r;
    ranks_start(&r, 2, "abort", NULL);
    for (int i = 0; i < lks_test_tries(20000) && !lks__segment_aborted(r.segment); i++)
        usleep(1000);
    continue_first(&r);
}

static size_t most = SIZE_MAX; /* larger allocations fail */

__typeof__(calloc) __real_calloc, __wrap_calloc;
void *__wrap_calloc(size_t n, size_t bytes)
{
    return n * bytes > most ? NULL : __real_calloc(n, bytes);
}

/* Rank 1 has no memory to agree. */
RANK(agree)
{
    lks__session s;
    const bool first = strcmp(getenv("RANK"), "0") == 0;
    EXPECT(lks__session_open("shm", 20 * lks_test_patience(), 1, LKS__BIND_NONE, &s) == LKS_OK);
    most = first ? SIZE_MAX : 0;
    EXPECT(lks__session_agree(&s, LKS_OK) == (first ? LKS_ERR_PEER : LKS_ERR_NOMEM));
    most = SIZE_MAX;
    EXPECT(strstr(lks_last_error(), "no memory for 2 ranks") != NULL);
    lks__session_close(&s);
    return 0;
}

/* Rank 1 has other settings, and only memory for a few bytes. */
RANK(differ)
{
    static lks__run_lines lines;
    lks__session s;
    const bool first = strcmp(getenv("RANK"), "0") == 0;
    EXPECT(lks__session_open("shm", 20 * lks_test_patience(), 1, LKS__BIND_NONE, &s) == LKS_OK);
    snprintf(lines.text, sizeof lines.text, "seed=%d\n", first ? 1 : 2);
    most = first ? SIZE_MAX : 4096;
    EXPECT(lks__agree_run(&s, LKS_OK, &lines, &lines) == (first ? LKS_ERR_DIVERGED : LKS_ERR_PEER));
    most = SIZE_MAX;
    EXPECT(strstr(lks_last_error(), "seed differs between ranks: rank 0 (host ") != NULL);
    lks__session_close(&s);
    return 0;
}

/* The others learn the reason, or what differs. */
TEST(test_no_memory)
{
    ranks_run(2, "agree", NULL, 30);
    ranks_run(2, "differ", NULL, 30);
}

/* Writing to a pipe that nobody reads is an error, and doesn't end the process. */
TEST(test_closed_pipe)
{
    int ends[2], status;
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGPIPE, SIG_DFL);
        lks__signals_install("");
        if (pipe(ends) != 0) /* only here, so that the parent holds no end of it */
            _exit(2);
        close(ends[0]);
        _exit(write(ends[1], "x", 1) < 0 && errno == EPIPE ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* A device's name, with a number or without; behind it nothing else may stand. */
TEST(test_device_names)
{
    static const struct {
        const char *text;
        bool found;
        int number;
    } rows[] = {{"cuda", true, -1},    {"cuda:0", true, 0},
                {"cuda:12", true, 12}, {"cudax", false, 0},
                {"cuda0", false, 0},   {"cuda:4294967296", true, INT_MAX},
                {"cud", false, 0},     {"cuda:2147483647", true, INT_MAX}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int number;
        const lks__device_row *row = lks__device_find(rows[i].text, &number);
        assert_int_equal(row != NULL, rows[i].found);
        if (row == NULL)
            continue;
        assert_string_equal(row->name, "cuda");
        assert_int_equal(number, rows[i].number);
    }
}

/* The trace's memory has room for 65,536 events: the newest are kept, and the others counted. */
TEST(test_long_trace)
{
    enum { ROOM = 65536, MORE = 1000 };
    const char *path = lks_test_text("%s/trace.json", lks_test_folder());
    lks__session s;
    lks__trace_file f;
    uint64_t dropped;
    assert_ok(open_session(1, &s));
    assert_ok(lks__trace_file_start(&f, path));
    assert_ok(lks__trace_file_open(&f, &s));
    for (int i = 0; i < ROOM + MORE; i++) {
        lks__trace_begin(LKS__SPAN_STEP, i);
        lks__trace_end();
    }
    assert_ok(lks__trace_file_write(&f, &s, &dropped));
    assert_int_equal(dropped, MORE);
    lks__trace_file_close(&f);
    lks__session_close(&s);
    const char *text = lks_test_read(path, NULL);
    assert_contains(text, "\"65536 events, 1000 older ones dropped\"");
    assert_null(strstr(text, "\"step 999\""));
    assert_contains(text, "\"step 1000\"", "\"step 66535\"");
}

TEST(test_full_disk)
{
    lks__session s;
    lks__trace_file f;
    uint64_t dropped;
    assert_ok(open_session(1, &s));
    /* By a link, for a faulty program that removes what was there: root can remove /dev/full. */
    const char *full = lks_test_text("%s/full", lks_test_folder());
    assert_int_equal(symlink("/dev/full", full), 0);
    assert_ok(lks__trace_file_start(&f, full));
    assert_ok(lks__trace_file_open(&f, &s));
    lks__trace_begin(LKS__SPAN_STEP, 0);
    lks__trace_end();
    assert_fails(LKS_ERR_IO, lks__trace_file_write(&f, &s, &dropped), "can't write the trace",
                 "/full");
    lks__trace_file_close(&f);
    lks__session_close(&s);
}

/* The first process of a container ignores signals without a handler, also from itself. A second
 * signal ends it nevertheless. */
TEST(test_first_process)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        if (unshare(CLONE_NEWPID) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0)
            _exit(2);
        pid = fork();
        if (pid == 0) {
            lks__signals_install("");
            raise(SIGTERM);
            usleep((useconds_t)(1.5e6 * LKS__SAME_CAUSE_S));
            raise(SIGTERM);
            _exit(0);
        }
        _exit(waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 2)
        lks_test_lacks("namespaces", "no namespace with processes of its own");
    assert_int_equal(WEXITSTATUS(status), 128 + SIGTERM);
}

int main(int argc, char **argv)
{
    ranks_main(argc, argv);
    return lks_test_run_all(NULL, NULL);
}
