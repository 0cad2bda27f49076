/* The suite with ranks as processes, and what only processes can do: die, stop, inherit. */
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "comm/backend.h"
#include "comm/liveness.h"
#include "comm/ranks.h"
#include "comm/shm/host.h"
#include "comm/shm/segment/segment_layout.h"
#include "comm/shm/segment/status.h"
#include "comm/suite.h"
#include "lockstep/reduce.h"

/* --- bodies ------------------------------------------------------------------------------- */

RANK(suite)
{
    int fds = lks_test_count_files("/proc/self/fd");
    lks_comm *comm = ranks_open(60);
    EXPECT(comm != NULL);
    EXPECT(strcmp(lks_comm_backend(comm), "shm") == 0);
    EXPECT(suite_collectives(comm, false) && suite_reductions(comm));
    lks_comm_close(comm);
    EXPECT(lks_test_count_files("/proc/self/fd") == fds - 1); /* the inherited one is closed, too */
    return 0;
}

RANK_IN_GROUP(killed_in_barrier)
{
    int rank = lks_comm_rank(comm);
    lks_comm_note(comm, 5, "forward");
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    if (rank == 1)
        kill(getpid(), SIGKILL);
    double start = lks__sys_now();
    EXPECT(lks_comm_barrier(comm) == LKS_ERR_PEER);
    EXPECT(lks__sys_now() - start < 1 * lks_test_patience());
    EXPECT(strstr(lks_last_error(), "rank 1 (pid ") != NULL);
    EXPECT(strstr(lks_last_error(), "step 5, phase forward") != NULL);
    EXPECT(lks_comm_barrier(comm) == LKS_ERR_PEER); /* and so do all later calls */
    return 0;
}

/* All collectives, repeated until one fails, as it must. */
RANK(until_failure)
{
    lks_comm *comm = ranks_open(60);
    if (comm == NULL) { /* rank 1 was killed before it could join */
        EXPECT(strstr(lks_last_error(), "rank 1") != NULL);
        return 0;
    }
    int W = lks_comm_world_size(comm);
    float *buf = calloc(200000, sizeof *buf), *all = calloc(1000 * (size_t)W, sizeof *all);
    void *own, *common;
    EXPECT(buf != NULL && all != NULL);
    lks_status st = lks_comm_alloc(comm, LKS_MEM_OWN, 400000, &own);
    LKS__THEN(st, lks_comm_alloc(comm, LKS_MEM_COMMON, 500000, &common));
    size_t start[] = {0, 40000, 100000};
    lks_part part = {{0, lks_comm_rank(comm)}, st == LKS_OK ? own : NULL};
    for (uint64_t step = 0; st == LKS_OK; step++) {
        lks_work *a, *b;
        lks_reduction r = {.n_leaves = W,
                           .parts = &part,
                           .n_parts = 1,
                           .scale = 1,
                           .count = 100000,
                           .block_start = start,
                           .n_blocks = 2,
                           .block_sumsq = (double *)common + 60000,
                           .dst = common};
        lks_comm_note(comm, step, "reduce");
        st = lks_comm_reduce_start(comm, &r, &a);
        if (st == LKS_OK) {
            st = lks_comm_reduce_start(comm, &r, &b);
            lks_status sa = lks_work_wait(a), sb = st == LKS_OK ? lks_work_wait(b) : st;
            st = sa != LKS_OK ? sa : sb;
        }
        LKS__THEN(st, lks_comm_all_reduce(comm, buf, 200000, LKS_FLOAT32, LKS_SUM));
        LKS__THEN(st, lks_comm_all_gather(comm, buf, all, 4000, LKS_UINT8));
    }
    EXPECT(st == LKS_ERR_PEER);
    EXPECT(strstr(lks_last_error(), "rank 1") != NULL);
    lks_comm_close(comm);
    lks_test_free(buf, all);
    return 0;
}

/* Rank 1 dies while all wait for devices: the others needn't wait for the deadline. */
RANK_IN_GROUP(killed_among_devices)
{
    lks_status st = LKS_OK;
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    EXPECT(lks__comm_among_devices(comm, true) == LKS_OK);
    if (lks_comm_rank(comm) == 1)
        kill(getpid(), SIGKILL);
    for (int i = 0; i < lks_test_tries(10000) && st == LKS_OK; i++, usleep(1000))
        st = lks__comm_among_devices(comm, true);
    EXPECT(st == LKS_ERR_PEER);
    EXPECT(strstr(lks_last_error(), "rank 1 (pid ") != NULL);
    EXPECT(strstr(lks_last_error(), "ended before an exchange between GPUs was complete") != NULL);
    return 0;
}

/* The parent runs this rank instruction by instruction. */
static void be_traced(void)
{
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
        _exit(0); /* not allowed here */
    raise(SIGSTOP);
}

RANK_IN_GROUP(traced)
{
    float values[1000] = {0};
    lks_status st = LKS_OK;
    if (lks_comm_rank(comm) == 1)
        be_traced();
    while (st == LKS_OK)
        st = lks_comm_all_reduce(comm, values, 1000, LKS_FLOAT32, LKS_SUM);
    EXPECT(st == LKS_ERR_PEER);
    EXPECT(strstr(lks_last_error(), "rank 1 (pid ") != NULL);
    return 0;
}

/* Rank 0 is the leader of its host, and completes a reduction as its thread does. */
RANK_IN_GROUP(leader_traced)
{
    struct suite_sum s;
    struct lks__shm_between task;
    struct lks__shm_descriptor desc;
    lks_work *work;
    EXPECT(suite_sum(comm, 64, &s));
    EXPECT(lks__shm_between_start(comm, &s.r, &work, &task, &desc) == LKS_OK);
    while (lks__shm_owes_shares(comm))
        EXPECT(lks_comm_progress(comm) == LKS_OK);
    if (lks_comm_rank(comm) == 0) {
        be_traced();
        lks__shm_between_done(comm, task.seq);
    }
    lks_status st = comm->ops->wait(comm, work);
    while (st == LKS_OK)
        st = lks_comm_barrier(comm);
    EXPECT(st == LKS_ERR_PEER);
    EXPECT(strstr(lks_last_error(), "rank 0 (pid ") != NULL);
    return 0;
}

RANK(stopped)
{
    lks_comm *comm = ranks_open(0.5 * lks_test_patience());
    EXPECT(comm != NULL);
    lks_comm_note(comm, 9, "update");
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    if (lks_comm_rank(comm) == 2) {
        kill(getpid(), SIGSTOP);
        return 0;
    }
    EXPECT(lks_comm_barrier(comm) == LKS_ERR_TIMEOUT);
    EXPECT(strstr(lks_last_error(), "rank 2 (pid ") != NULL);
    EXPECT(strstr(lks_last_error(), "step 9, phase update") != NULL);
    lks_comm_close(comm);
    return 0;
}

RANK(never_joins)
{
    if (strcmp(getenv("RANK"), "1") == 0) {
        usleep((unsigned)(1.5e6 * lks_test_patience()));
        return 0;
    }
    lks_world world;
    lks_comm_options options = {"shm", 0.3 * lks_test_patience()};
    lks_comm *comm = NULL;
    EXPECT(lks_world_from_env(&world) == LKS_OK);
    EXPECT(lks_comm_open(&world, &options, &comm) == LKS_ERR_TIMEOUT);
    EXPECT(comm == NULL && strstr(lks_last_error(), "rank 1 (never joined)") != NULL);
    return 0;
}

RANK(joins_twice)
{
    char env[64];
    const char *given = getenv("LOCKSTEP_SEGMENT");
    snprintf(env, sizeof env, "%d%s", dup(atoi(given)), strchr(given, ':'));
    lks_comm *comm = ranks_open(60), *again = NULL;
    lks_world world;
    lks_comm_options options = {"shm", 60};
    EXPECT(comm != NULL && lks_world_from_env(&world) == LKS_OK);
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    /* The launcher's segment is in use, so a second group makes its own. */
    EXPECT(lks_comm_open(&world, &options, &again) == LKS_OK);
    EXPECT(lks_comm_barrier(again) == LKS_OK);
    lks_comm_close(again);
    again = NULL;
    /* Through another descriptor, as in a second process of the same rank: */
    setenv("LOCKSTEP_SEGMENT", env, 1);
    EXPECT(lks_comm_open(&world, &options, &again) == LKS_ERR_ARG && again == NULL);
    EXPECT(strstr(lks_last_error(), "has joined this job already") != NULL);
    void *mem;
    /* The first group still works. */
    EXPECT(lks_comm_alloc(comm, LKS_MEM_OWN, 1000, &mem) == LKS_OK);
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    lks_comm_close(comm);
    return 0;
}

static bool interrupts;

/* Interrupted once, though the answer has come: as by a signal just before. */
int poll(struct pollfd *p, nfds_t n, int ms)
{
    const struct timespec most = {ms / 1000, ms % 1000 * 1000000L};
    const int found = ppoll(p, n, ms < 0 ? NULL : &most, NULL);
    if (!interrupts || found != 1 || p->events != POLLIN)
        return found;
    interrupts = false;
    errno = EINTR;
    return -1;
}

/* Without lockstep's launcher: a signal in the wait for the first rank's answer doesn't end it. */
RANK(interrupted)
{
    unsetenv(LKS__SEGMENT_ENV);
    interrupts = strcmp(getenv("RANK"), "1") == 0;
    lks_comm *comm = ranks_open(20 * lks_test_patience());
    EXPECT(comm != NULL && !interrupts);
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    lks_comm_close(comm);
    return 0;
}

/* With LOCKSTEP_FAULT set for one rank: all get the error, and the group stays usable. */
RANK_IN_GROUP(alloc_fails)
{
    void *mem = NULL;
    EXPECT(lks_comm_alloc(comm, LKS_MEM_OWN, 3000000, &mem) == LKS_ERR_NOMEM);
    EXPECT(mem == NULL);
    EXPECT(strstr(lks_last_error(), "rank 1: ") != NULL && strstr(lks_last_error(), "MB") != NULL);
    EXPECT(lks_comm_alloc(comm, LKS_MEM_OWN, 1000, &mem) == LKS_OK);
    memset(mem, 1, 1000);
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    return 0;
}

RANK_IN_GROUP(too_much_memory)
{
    void *mem = NULL;
    EXPECT(lks_comm_alloc(comm, LKS_MEM_COMMON, (size_t)1 << 45, &mem) == LKS_ERR_NOMEM);
    EXPECT(mem == NULL && strstr(lks_last_error(), "available") != NULL);
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    return 0;
}

static int open_here(lks_world world, lks_status *st)
{
    lks_comm_options options = {"shm", 1};
    lks_comm *comm = NULL;
    *st = lks_comm_open(&world, &options, &comm);
    if (comm == NULL)
        return 0;
    *st = lks_comm_barrier(comm);
    lks_comm_close(comm);
    return 1;
}

/* Without lockstep's launcher: RANK and the others are set, but the segment isn't (then the ranks
 * make one), or is something else. */
RANK(bad_segment)
{
    lks_world world;
    lks_status st;
    char env[64];
    EXPECT(lks_world_from_env(&world) == LKS_OK);
    const char *good = getenv("LOCKSTEP_SEGMENT");
    char token[32];
    snprintf(token, sizeof token, "%s", strchr(good, ':') + 1);
    int fd = atoi(good), fds = lks_test_count_files("/proc/self/fd");

    unsetenv("LOCKSTEP_SEGMENT");
    EXPECT(open_here(world, &st) && st == LKS_OK);
    EXPECT(getenv("LOCKSTEP_SEGMENT") == NULL);
    static const char *const shapes[] = {"x",
                                         "3",
                                         "-1:0123456789abcdef",
                                         "3:0123",
                                         "3:0123456789abcdeg",
                                         "99999999999999999999:0123456789abcdef"};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        setenv("LOCKSTEP_SEGMENT", shapes[i], 1);
        EXPECT(!open_here(world, &st) && st == LKS_ERR_FORMAT);
    }
    snprintf(env, sizeof env, "%d:%s", 900, token); /* not open */
    setenv("LOCKSTEP_SEGMENT", env, 1);
    EXPECT(!open_here(world, &st) && st == LKS_ERR_FORMAT);
    snprintf(env, sizeof env, "%d:%s", 2, token); /* not a memfd */
    setenv("LOCKSTEP_SEGMENT", env, 1);
    EXPECT(!open_here(world, &st) && st == LKS_ERR_FORMAT);
    snprintf(env, sizeof env, "%d:%s", fd, "0123456789abcdef"); /* of another job */
    setenv("LOCKSTEP_SEGMENT", env, 1);
    EXPECT(!open_here(world, &st) && st == LKS_ERR_FORMAT);
    EXPECT(strstr(lks_last_error(), "another job") != NULL);
    snprintf(env, sizeof env, "%d:%s", fd, token);
    setenv("LOCKSTEP_SEGMENT", env, 1);
    lks_world more = {world.rank, 3, world.rank, 3};
    EXPECT(!open_here(more, &st) && st == LKS_ERR_CONFIG);
    EXPECT(lks_test_count_files("/proc/self/fd") ==
           fds); /* a descriptor that isn't ours stays open */
    lks_world far = {world.rank, 4, world.rank, 2};
    EXPECT(!open_here(far, &st) && st == LKS_ERR_SUPPORT);
    EXPECT(strstr(lks_last_error(), "one host only") != NULL);
    /* A single process needs none of it. */
    lks_world alone = {0, 1, 0, 1};
    EXPECT(open_here(alone, &st) && st == LKS_OK);
    return 0;
}

/* The launcher's variables, which differ between jobs on one host. */
static const char *const job_names[] = {
    "MASTER_ADDR",    "MASTER_PORT",  "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
    "PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID"};
enum { JOB_NAMES = sizeof job_names / sizeof job_names[0] };

/* Another launcher has started this rank: all ranks of the group are of its job. Rank 1 comes late,
 * so that the first ranks of several jobs wait at the same time. */
RANK(of_job)
{
    char mine[200] = "", all[2][200];
    for (int i = 0; i < JOB_NAMES; i++) {
        const char *value = getenv(job_names[i]);
        snprintf(mine + strlen(mine), sizeof mine - strlen(mine), "%s,",
                 value != NULL ? value : "-");
    }
    snprintf(mine + strlen(mine), sizeof mine - strlen(mine), "%d", (int)getppid());
    unsetenv("LOCKSTEP_SEGMENT");
    int fds = lks_test_count_files("/proc/self/fd");
    if (strcmp(getenv("RANK"), "1") == 0)
        usleep(200 * 1000);
    lks_comm *comm = ranks_open(20 * lks_test_patience());
    EXPECT(comm != NULL);
    EXPECT(lks_comm_all_gather(comm, mine, all, sizeof mine, LKS_UINT8) == LKS_OK);
    EXPECT(strcmp(all[0], all[1]) == 0);
    lks_comm_close(comm);
    EXPECT(lks_test_count_files("/proc/self/fd") == fds);
    return 0;
}

/* Without lockstep's launcher, by mistake rank 2 has the rank that SAME names, and comes last. */
RANK(same_rank)
{
    const char *same = getenv("SAME");
    lks_world world;
    lks_comm_options options = {"shm", 2 * lks_test_patience()};
    lks_comm *comm;
    const bool second = strcmp(getenv("RANK"), "2") == 0;
    unsetenv("LOCKSTEP_SEGMENT");
    if (second) {
        setenv("RANK", same, 1);
        setenv("LOCAL_RANK", same, 1);
        usleep((useconds_t)(0.5e6 * lks_test_patience()));
    }
    EXPECT(lks_world_from_env(&world) == LKS_OK);
    const lks_status st = lks_comm_open(&world, &options, &comm);
    EXPECT(st != LKS_OK && comm == NULL);
    if (second && *same == '0')
        EXPECT(strstr(lks_last_error(), "a second process has LOCAL_RANK 0") != NULL);
    else if (second)
        EXPECT(strstr(lks_last_error(), "another process has joined as local rank 1") != NULL);
    else
        EXPECT(st == LKS_ERR_TIMEOUT);
    return 0;
}

RANK(no_memfd)
{
    lks_world alone = {0, 1, 0, 1};
    lks_status st;
    unsetenv("RANK");
    EXPECT(!open_here(alone, &st) && st == LKS_ERR_NOMEM);
    return 0;
}

RANK_IN_GROUP(file_limit)
{
    /* With ulimit -f, fallocate raises SIGXFSZ beyond the limit, which must be an error and not
     * kill the process. */
    void *mem = NULL;
    EXPECT(lks_comm_alloc(comm, LKS_MEM_OWN, 64 << 20, &mem) == LKS_ERR_NOMEM);
    EXPECT(strstr(lks_last_error(), "ulimit -f") != NULL);
    return 0;
}

/* --- tests -------------------------------------------------------------------------------- */

TEST(test_suite)
{
    static const int worlds[] = {1, 2, 3, 4, 5, 8};
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++)
        ranks_run(worlds[i], "suite", NULL, 60);
}

/* Rank 1 is killed: the others must end by themselves, with their checks passed. */
static void expect_others_end(struct ranks *r, double killed_s)
{
    ranks_wait(r, 30);
    for (int i = 0; i < r->n; i++) {
        if (i == 1) {
            assert_true(WIFSIGNALED(r->status[i]));
            continue;
        }
        assert_int_equal(r->status[i], 0);
        assert_true(r->ended_s[i] - killed_s < 2 * lks_test_patience());
    }
}

TEST(test_killed_in_a_wait)
{
    static const char *const waits[] = {"killed_in_barrier", "killed_among_devices"};
    for (int i = 0; i < 2; i++) {
        struct ranks r;
        ranks_start(&r, 3, waits[i], NULL);
        ranks_wait(&r, 30);
        assert_true(WIFSIGNALED(r.status[1]));
        assert_int_equal(r.status[0], 0);
        assert_int_equal(r.status[2], 0);
    }
}

#if defined(__x86_64__) /* elsewhere an atomic operation may not survive single steps */
/* Kill a rank with the instruction that increments that field of its line. */
static void kill_when_done(const char *body, int rank, size_t field)
{
    enum { RANKS = 5, MOST_STEPS = 10000000 }; /* so many ranks that each sums a share */
    struct ranks r;
    siginfo_t info;
    int status, steps = 0;
    ranks_start(&r, RANKS, body, NULL);
    const pid_t pid = r.pids[rank];
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WSTOPPED | WNOWAIT), 0);
    if (info.si_code != CLD_EXITED) {
        const char *line = (const char *)lks__segment_line(r.segment, rank);
        const atomic_uint *done = (const atomic_uint *)(const void *)(line + field);
        const unsigned before = atomic_load(done);
        for (; atomic_load(done) == before && steps < MOST_STEPS; steps++) {
            assert_int_equal(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
            assert_int_equal(waitpid(pid, &status, 0), pid);
            assert_true(WIFSTOPPED(status));
        }
        kill(pid, SIGKILL);
    }
    ranks_wait(&r, 30);
    if (info.si_code == CLD_EXITED)
        lks_test_lacks("process-memory", "ptrace is forbidden");
    assert_true(steps < MOST_STEPS);
    for (int i = 0; i < RANKS; i++)
        assert_true(i == rank || r.status[i] == 0);
}

/* No rank waits forever for one that has published an operation and ended before it was counted. */
TEST(test_killed_when_done)
{
    kill_when_done("traced", 1, offsetof(struct lks__rank_line, posted));
    kill_when_done("traced", 1, offsetof(struct lks__rank_line, finished));
    kill_when_done("leader_traced", 0, offsetof(struct lks__rank_line, between));
}
#endif

TEST(test_killed_anywhere)
{
    for (int i = 0; i < 6; i++) {
        struct ranks r;
        ranks_start(&r, 4, "until_failure", NULL);
        usleep(30000 + 17301 * (unsigned)i);
        double killed = lks__sys_now() - r.start_s;
        kill(r.pids[1], SIGKILL);
        /* The launcher reports a rank that died before it joined; here the test does. */
        usleep(200000);
        lks__segment_abort(r.segment, LKS_ERR_PEER, 1, "rank 1 was killed");
        expect_others_end(&r, killed);
    }
}

/* The process that has offered its segment ends before another one takes it. */
TEST(test_offer_of_the_dead)
{
    char offer[LKS__SEGMENT_OFFER_BYTES], said[64];
    lks__segment *segment;
    int status;
    const pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    snprintf(offer, sizeof offer, "%d:3:0123456789abcdef", (int)pid);
    snprintf(said, sizeof said, "process %d, has ended", (int)pid);
    assert_fails(LKS_ERR_PEER, lks__segment_take(offer, 2, &segment), said);
}

TEST(test_stopped)
{
    struct ranks r;
    int status;
    siginfo_t ended = {.si_pid = 0};
    ranks_start(&r, 3, "stopped", NULL);
    assert_int_equal(waitpid(r.pids[2], &status, WUNTRACED), r.pids[2]);
    assert_true(WIFSTOPPED(status));
    for (int i = 0; i < lks_test_tries(10000) && ended.si_pid == 0; i++, usleep(1000))
        waitid(P_PID, (id_t)r.pids[0], &ended, WEXITED | WNOHANG | WNOWAIT);
    kill(r.pids[2], SIGKILL);
    ranks_wait(&r, 30);
    assert_int_equal(r.status[0], 0);
    assert_int_equal(r.status[1], 0);
}

TEST(test_joining)
{
    ranks_run(2, "never_joins", NULL, 30);
    ranks_run(2, "joins_twice", NULL, 30);
    ranks_run(2, "bad_segment", NULL, 30);
    ranks_run(3, "same_rank", "SAME=0", 30);
    ranks_run(3, "same_rank", "SAME=1", 30);
}

/* Jobs of other launchers at the same time: one variable differs, or, without any of them, only the
 * parent. */
TEST(test_jobs_at_once)
{
    static const char *const variables[] = {"MASTER_ADDR",    "MASTER_PORT",
                                            "MASTER_PORT",    "SLURM_STEP_ID",
                                            "SLURM_JOB_ID",   "TORCHELASTIC_RESTART_COUNT",
                                            "PMIX_NAMESPACE", "TORCHELASTIC_RUN_ID"};
    enum { JOBS = sizeof variables / sizeof variables[0], PARENTS = 2 };
    const char *envs[JOBS];
    for (int i = 0; i < JOBS; i++) /* not those of this test in another build */
        envs[i] = lks_test_text("%s=%d", variables[i], 10000 + (int)getpid() % 40000 + i);
    struct ranks jobs[JOBS];
    pid_t parents[PARENTS];
    for (int i = 0; i < JOB_NAMES; i++)
        unsetenv(job_names[i]);
    fflush(NULL);
    for (int i = 0; i < PARENTS; i++) {
        parents[i] = fork();
        assert_true(parents[i] >= 0);
        if (parents[i] > 0)
            continue;
        struct ranks r;
        int status, bad = 0;
        ranks_start(&r, 2, "of_job", NULL);
        for (int k = 0; k < 2; k++)
            bad |= waitpid(r.pids[k], &status, 0) != r.pids[k] || status != 0;
        _exit(bad);
    }
    for (int i = 0; i < JOBS; i++)
        ranks_start(&jobs[i], 2, "of_job", envs[i]);
    for (int i = 0; i < JOBS; i++) {
        ranks_wait(&jobs[i], 60);
        if (jobs[i].status[0] != 0 || jobs[i].status[1] != 0)
            fail_msg("job with %s: wait statuses %#x, %#x", envs[i], jobs[i].status[0],
                     jobs[i].status[1]);
    }
    for (int i = 0; i < PARENTS; i++) {
        int status;
        assert_int_equal(waitpid(parents[i], &status, 0), parents[i]);
        assert_int_equal(status, 0);
    }
}

/* Both ranks are stopped, as if the machine were, for longer than the deadline, and the one that
 * waits continues first. That isn't the other one's silence. Before that, the other one may have
 * computed for BEATS deadlines. */
RANK(paused)
{
    const double timeout_s = 0.8 * lks_test_patience();
    lks_comm *comm = ranks_open(timeout_s);
    EXPECT(comm != NULL);
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    const double end = lks__sys_now() + atof(getenv("BEATS")) * timeout_s;
    for (; lks_comm_rank(comm) == 1 && lks__sys_now() < end; usleep(10000))
        lks_comm_beat(comm);
    if (lks_comm_rank(comm) == 1)
        kill(getpid(), SIGSTOP);
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    lks_comm_close(comm);
    return 0;
}

static void pause_ranks(const char *beats)
{
    struct ranks r;
    int status;
    ranks_start(&r, 2, "paused", beats);
    assert_int_equal(waitpid(r.pids[1], &status, WUNTRACED), r.pids[1]);
    assert_true(WIFSTOPPED(status));
    for (int i = 0; i < lks_test_tries(5000); i++, usleep(1000))
        if (atomic_load(&lks__segment_line(r.segment, 0)->waiting) != LKS__WAIT_NONE)
            break;
    kill(r.pids[0], SIGSTOP);
    usleep((unsigned)(1e6 * fmax(1.1, 0.9 * lks_test_patience())));
    kill(r.pids[0], SIGCONT);
    usleep(100 * 1000);
    kill(r.pids[1], SIGCONT);
    ranks_wait(&r, 30);
    assert_int_equal(r.status[0], 0);
    assert_int_equal(r.status[1], 0);
}

TEST(test_paused)
{
    pause_ranks("BEATS=0");
    pause_ranks("BEATS=1.2");
}

/* The machine of rank 0 stalls again and again. That hides rank 1's silence no longer than the
 * deadline, not counting the stalls. */
RANK_IN_GROUP(stalls)
{
    const lks__segment *segment = lks__shm_segment(comm);
    const pid_t first = (pid_t)atomic_load(&lks__segment_line(segment, 0)->pid);
    comm->timeout_s = 0.3 * lks_test_patience();
    for (int i = 0; lks_comm_rank(comm) == 1 && i < lks_test_tries(15); i++) {
        if (lks__segment_aborted(segment))
            break;
        kill(first, SIGSTOP);
        usleep(1100 * 1000);
        kill(first, SIGCONT);
        usleep(150 * 1000);
    }
    EXPECT(lks_comm_rank(comm) == 0 || lks__segment_aborted(segment));
    EXPECT(lks_comm_barrier(comm) == LKS_ERR_TIMEOUT);
    EXPECT(strstr(lks_last_error(), " from rank 1 (pid ") != NULL);
    return 0;
}

TEST(test_stalls)
{
    ranks_run(2, "stalls", NULL, 60);
}

/* Rank 0 has looked at rank 1 in a wait, and then closes all descriptors that it doesn't know. Its
 * own files, which get their numbers, are no news about rank 1, and stay open. */
RANK(closes_all)
{
    enum { FILES = 8 };
    int files[FILES];
    lks_comm *comm = ranks_open(60);
    EXPECT(comm != NULL);
    const int rank = lks_comm_rank(comm);
    for (int i = 0; i < 2; i++) {
        if (rank == 1)
            usleep(300 * 1000);
        EXPECT(lks_comm_barrier(comm) == LKS_OK);
        if (rank == 0 && i == 0)
            EXPECT(close_range(STDERR_FILENO + 1, ~0u, 0) == 0);
        for (int k = 0; rank == 0 && i == 0 && k < FILES; k++)
            EXPECT((files[k] = open("/proc/self/exe", O_RDONLY | O_CLOEXEC)) >= 0);
    }
    lks_comm_close(comm);
    for (int k = 0; rank == 0 && k < FILES; k++)
        EXPECT(close(files[k]) == 0);
    return 0;
}

TEST(test_closes_all)
{
    ranks_run(2, "closes_all", NULL, 30);
}

/* Without lockstep's launcher: rank 2 never comes, and rank 0 is killed meanwhile. */
RANK(killed_joining)
{
    lks_world world;
    lks_comm_options options = {"shm", 60};
    lks_comm *comm;
    unsetenv("LOCKSTEP_SEGMENT");
    setenv("WORLD_SIZE", "3", 1);
    setenv("LOCAL_WORLD_SIZE", "3", 1);
    EXPECT(lks_world_from_env(&world) == LKS_OK);
    EXPECT(lks_comm_open(&world, &options, &comm) == LKS_ERR_PEER);
    EXPECT(strstr(lks_last_error(), "rank 0 (pid ") != NULL);
    EXPECT(strstr(lks_last_error(), "ended without joining the group") != NULL);
    return 0;
}

/* True if the process has mapped another segment than `ours`, which it has before exec(). */
static bool has_other_segment(pid_t pid, const lks__segment *ours)
{
    struct stat st;
    assert_int_equal(fstat(lks__segment_fd(ours), &st), 0);
    const char *line = lks_test_proc("/proc/%d/maps", (int)pid);
    for (; *line != '\0'; line += strcspn(line, "\n") + 1) {
        unsigned long inode;
        char name[16] = "";
        if (sscanf(line, "%*s %*s %*s %*s %lu %15s", &inode, name) == 2 &&
            strcmp(name, "/memfd:lockstep") == 0 && inode != st.st_ino)
            return true;
    }
    return false;
}

TEST(test_killed_joining)
{
    struct ranks r;
    bool joins = false;
    ranks_start(&r, 2, "killed_joining", NULL);
    for (int i = 0; i < lks_test_tries(20000) && !joins; i++, usleep(1000))
        joins = has_other_segment(r.pids[1], r.segment);
    kill(r.pids[0], SIGKILL);
    ranks_wait(&r, 30);
    assert_true(joins);
    assert_int_equal(r.status[1], 0);
}

/* A thread beats, and reports failures, while its group is being closed. */
TEST(test_closed_in_beats)
{
    ranks_close_in_beats(2000, true);
}

TEST(test_memory_faults)
{
    setenv("LOCKSTEP_FAULT_RANK", "1", 1);
    ranks_run(3, "alloc_fails", "LOCKSTEP_FAULT=fallocate:1:ENOSPC", 30);
    /* The first one is for the base. */
    ranks_run(3, "alloc_fails", "LOCKSTEP_FAULT=mmap:2:ENOMEM", 30);
    unsetenv("LOCKSTEP_FAULT_RANK");
    ranks_run(1, "no_memfd", "LOCKSTEP_FAULT=memfd:1:EMFILE", 30);
    ranks_run(1, "no_memfd", "LOCKSTEP_FAULT=fallocate:1:ENOSPC", 30);
    ranks_run(1, "no_memfd", "LOCKSTEP_FAULT=mmap:1:ENOMEM", 30);
    ranks_run(2, "too_much_memory", NULL, 30);
}

TEST(test_interrupted)
{
    ranks_run(2, "interrupted", lks_test_text("MASTER_PORT=%d", lks_test_free_port()), 30);
}

TEST(test_file_limit)
{
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 16 << 20;
    setrlimit(RLIMIT_FSIZE, &small);
    ranks_run(2, "file_limit", NULL, 30);
    setrlimit(RLIMIT_FSIZE, &old);
}

TEST(test_world_from_env)
{
    static const char *const names[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
    static const struct {
        const char *values[4];
        lks_status st;
        lks_world world;
    } cases[] = {
        {{NULL, NULL, NULL, NULL}, LKS_OK, {0, 1, 0, 1}},
        {{"", "", "", ""}, LKS_OK, {0, 1, 0, 1}},
        {{NULL, "1", "0", "1"}, LKS_OK, {0, 1, 0, 1}},
        {{NULL, "1", "5", "7"}, LKS_ERR_CONFIG, {0}},
        {{"1", "2", NULL, NULL}, LKS_OK, {1, 2, 1, 2}},
        {{"5", "8", "1", "4"}, LKS_OK, {5, 8, 1, 4}},
        {{NULL, "2", NULL, NULL}, LKS_ERR_CONFIG, {0}},
        {{"2", "2", NULL, NULL}, LKS_ERR_CONFIG, {0}},
        {{"-1", "2", NULL, NULL}, LKS_ERR_CONFIG, {0}},
        {{"0x1", "2", NULL, NULL}, LKS_ERR_CONFIG, {0}},
        {{"0", "99999999999", NULL, NULL}, LKS_ERR_CONFIG, {0}},
        {{"0", "0", NULL, NULL}, LKS_ERR_CONFIG, {0}},
        {{"0", "2", "2", "2"}, LKS_ERR_CONFIG, {0}},
        {{"0", "2", "1", "2"}, LKS_ERR_CONFIG, {0}},
        {{"1", "2", "0", "2"}, LKS_ERR_CONFIG, {0}},
        {{"1", "4", "0", "2"}, LKS_OK, {1, 4, 0, 2}}, /* hosts in turn */
        {{"2", "4", "1", "2"}, LKS_OK, {2, 4, 1, 2}},
        {{"0", "2", "0", "3"}, LKS_ERR_CONFIG, {0}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        lks_world w = {-1, -1, -1, -1};
        for (int i = 0; i < 4; i++)
            if (cases[c].values[i] == NULL)
                unsetenv(names[i]);
            else
                setenv(names[i], cases[c].values[i], 1);
        assert_int_equal(lks_world_from_env(&w), cases[c].st);
        if (cases[c].st == LKS_OK)
            assert_memory_equal(&w, &cases[c].world, sizeof w);
        else
            assert_int_equal(w.rank, -1);
    }
    for (int i = 0; i < 4; i++)
        unsetenv(names[i]);
}

TEST(test_unknown_backend)
{
    lks_world alone = {0, 1, 0, 1};
    lks_comm_options options = {"smh\x1b", 1};
    lks_comm *comm = NULL;
    assert_fails(LKS_ERR_SUPPORT, lks_comm_open(&alone, &options, &comm), "smh\\x1b");
    assert_null(comm);
}

/* --- the status table --------------------------------------------------------------------- */

static void set_line(const lks__segment *s, int rank, unsigned posted, unsigned waiting)
{
    struct lks__rank_line *line = lks__segment_line(s, rank);
    line->state = LKS__RANK_JOINED;
    line->pid = getpid();
    line->posted = posted;
    line->waiting = waiting;
    line->wait_seq = posted - 1;
}

/* Rank 11 waits in operation 7, at which the others haven't arrived; rank 10 was last at 5. */
TEST(test_table)
{
    lks__segment *s;
    char text[2000];
    assert_int_equal(lks__segment_create(3, &s), LKS_OK);
    set_line(s, 0, 6, LKS__WAIT_NONE);
    set_line(s, 1, 8, LKS__WAIT_ARRIVE);
    lks__segment_descriptor(s, 0, 5)->kind = LKS__OP_BARRIER;
    lks__segment_descriptor(s, 1, 7)->kind = LKS__OP_BROADCAST;
    lks__segment_table(s, 3, 10, text, sizeof text);
    const char *rows[4] = {text};
    for (int i = 1; i < 4; i++) {
        rows[i] = strchr(rows[i - 1], '\n') + 1;
        assert_int_equal(atoi(rows[i]), 9 + i);
    }
    const char *at = strstr(rows[1], " running ");
    assert_true(at != NULL && at < rows[2]);
    at = strstr(rows[1], " after 5 barrier ");
    assert_true(at != NULL && at < rows[2]);
    assert_int_equal(strncmp(rows[2] - 3, " -\n", 3), 0); /* it waits for nobody */
    at = strstr(rows[2], " waiting ");
    assert_true(at != NULL && at < rows[3]);
    at = strstr(rows[2], " 7 broadcast ");
    assert_true(at != NULL && at < rows[3]);
    assert_int_equal(strncmp(rows[3] - 8, " 10, 12\n", 8), 0);
    assert_non_null(strstr(rows[3], " absent "));
    lks__segment_close(s);
}

static pid_t start_child(bool stays)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (stays)
            pause();
        _exit(0);
    }
    return pid;
}

/* A line of the table without its first column, "" if there is none. */
static const char *row_of(const char *text, int rank)
{
    for (text = strchr(text, '\n'); text != NULL && text[1] != '\0'; text = strchr(text + 1, '\n'))
        if (atoi(text + 1) == rank)
            return lks_test_text("%.*s", (int)strcspn(text + 1, "\n"), text + 1);
    return "";
}

/* Each state of a rank, and for whom it waits: those that haven't arrived or done their share, or
 * that don't wait for devices as well. */
TEST(test_table_words)
{
    static const struct {
        unsigned waiting;
        const char *word, *has, *end;
    } rows[] = {
        {LKS__WAIT_NONE, " running ", " 7  data ", " -"},
        {LKS__WAIT_NONE, " stopped ", " after 4 barrier ", " -"},
        {LKS__WAIT_NONE, " dead ", " after 4 barrier ", " -"},
        {LKS__WAIT_NONE, " left ", " -  - ", " -"},
        {LKS__WAIT_BETWEEN, " waiting ", " 4 barrier ", " other hosts"},
        {LKS__WAIT_DEVICES, " waiting ", " exchange between GPUs ", " 0, 1, 2, 3, 8"},
        {LKS__WAIT_ARRIVE, " waiting ", " 19 barrier ", " 0, 1, 2, 3, 4, 5, ..."},
        {LKS__WAIT_FINISH, " waiting ", " 4 barrier ", " 2"},
        {LKS__WAIT_NONE, " absent ", " -                     -  ", " -"},
    };
    enum { RANKS = sizeof rows / sizeof rows[0] };
    const pid_t stopped = start_child(true), dead = start_child(false);
    siginfo_t info;
    int status;
    lks__segment *s;
    char text[4000];
    assert_int_equal(kill(stopped, SIGSTOP), 0);
    assert_int_equal(waitpid(stopped, &status, WUNTRACED), stopped);
    assert_int_equal(waitid(P_PID, (id_t)dead, &info, WEXITED | WNOWAIT), 0);
    assert_ok(lks__segment_create(RANKS, &s));
    for (int r = 0; r < RANKS; r++) {
        const unsigned posted = rows[r].waiting == LKS__WAIT_ARRIVE ? 20 : 5;
        set_line(s, r, r == 8 ? 0 : posted, rows[r].waiting);
        lks__segment_descriptor(s, r, posted - 1)->kind = LKS__OP_BARRIER;
        lks__segment_line(s, r)->finished = r == 2 || r == 7 ? 4 : 5;
    }
    lks__segment_line(s, 0)->step = 7;
    lks__segment_line(s, 0)->phase[0] = 0x61746164; /* "data" */
    lks__segment_line(s, 1)->pid = stopped;
    lks__segment_line(s, 2)->pid = dead;
    lks__segment_line(s, 3)->state = LKS__RANK_LEFT;
    lks__segment_line(s, 8)->state = LKS__RANK_ABSENT;
    lks__segment_table(s, RANKS, 0, text, sizeof text);
    for (int r = 0; r < RANKS; r++) {
        const char *row = row_of(text, r);
        assert_contains(row, rows[r].word, rows[r].has);
        assert_string_equal(row + strlen(row) - strlen(rows[r].end), rows[r].end);
    }
    for (int r = 0; r < RANKS; r++)
        lks__segment_line(s, r)->waiting = LKS__WAIT_DEVICES;
    lks__segment_table(s, RANKS, 0, text, sizeof text);
    assert_contains(row_of(text, 4), " other GPUs");
    lks__segment_close(s);
    kill(stopped, SIGKILL);
    waitpid(stopped, &status, 0);
    waitpid(dead, &status, 0);
}

/* If there isn't room for all ranks, the rest are counted, and those that wait come last. */
TEST(test_short_table)
{
    enum { RANKS = 40 };
    lks__segment *s;
    char text[2000];
    int rows = -1, more = 0;
    assert_int_equal(lks__segment_create(RANKS, &s), LKS_OK);
    for (int r = 0; r < RANKS; r++)
        set_line(s, r, 1, r < RANKS - 1 ? LKS__WAIT_ARRIVE : LKS__WAIT_NONE);
    lks__segment_table(s, RANKS, 0, text, sizeof text);
    const char *first = strchr(text, '\n') + 1, *end = strstr(text, "  ... and ");
    assert_int_equal(atoi(first), RANKS - 1);
    assert_non_null(end);
    for (const char *p = text; p < end; p = strchr(p, '\n') + 1)
        rows++;
    assert_int_equal(sscanf(end, "  ... and %d more\n", &more), 1);
    assert_true(rows > 1);
    assert_int_equal(rows + more, RANKS);
    lks__segment_close(s);
}

int main(int argc, char **argv)
{
    ranks_main(argc, argv);
    return lks_test_run_all(NULL, NULL);
}
