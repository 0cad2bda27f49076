/* The suite over an engine between hosts, `test_comm_engine mpi|mpich|gloo`. This machine acts as
 * several hosts: each is a group of processes, according to LOCAL_WORLD_SIZE. */
#include "support.h"

#include <dlfcn.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "comm/backend.h"
#include "comm/hier/hier.h"
#include "comm/hosts.h"
#include "comm/ranks.h"
#include "comm/shm/host.h"
#include "comm/suite.h"
#include "lockstep/reduce.h"

static const char *engine; /* "mpi", "mpich", "gloo" */

/* Descriptors that engines keep until the process ends: MPI is finalized only then. */
enum { KEPT = 64 };

/* --- bodies ------------------------------------------------------------------------------- */

/* Record that this rank has passed its checks, and wait until all have: mpirun kills everybody as
 * soon as one rank ends without MPI_Finalize. */
static int seen_by(int rank, int W)
{
    char path[4096];
    double end = lks__sys_now() + 10 * lks_test_patience();
    snprintf(path, sizeof path, "%s/%d", getenv("MARKS"), rank);
    EXPECT(mkdir(path, 0700) == 0);
    for (int r = 0; r < W;) {
        snprintf(path, sizeof path, "%s/%d", getenv("MARKS"), r);
        if (access(path, F_OK) == 0)
            r++;
        else if (lks__sys_now() > end)
            return 1;
        else
            usleep(10000);
    }
    return 0;
}

static int seen_by_all(lks_comm *comm)
{
    return seen_by(lks_comm_rank(comm), lks_comm_world_size(comm));
}

RANK(suite)
{
    int fds = lks_test_count_files("/proc/self/fd");
    lks_comm *comm = ranks_open(60);
    EXPECT(comm != NULL);
    EXPECT(strcmp(lks_comm_backend(comm), getenv("ENGINE")) == 0);
    EXPECT(suite_collectives(comm, lks_comm_world_size(comm) <= 3) && suite_types(comm) &&
           suite_scatter(comm) && suite_reductions(comm));
    int code = seen_by_all(comm);
    lks_comm_close(comm);
    EXPECT(lks_test_count_files("/proc/self/fd") <= fds + KEPT);
    return code;
}

RANK_IN_GROUP(mismatch)
{
    float values[100] = {0};
    int rank = lks_comm_rank(comm);
    EXPECT(lks_comm_all_reduce(comm, values, rank >= 2 ? 99 : 100, LKS_FLOAT32, LKS_SUM) ==
           LKS_ERR_ARG);
    EXPECT(strstr(lks_last_error(), "rank 0 called lks_comm_all_reduce of 100 float32 elements") !=
           NULL);
    EXPECT(strstr(lks_last_error(), "rank 2 called lks_comm_all_reduce of 99 float32 elements") !=
           NULL);
    return seen_by_all(comm);
}

/* The second host is one operation behind; its operation in that place has another type, too. */
RANK_IN_GROUP(order)
{
    float values[100] = {0}, all[400];
    lks_status st = lks_comm_rank(comm) >= 2
                        ? lks_comm_all_reduce(comm, values, 100, LKS_FLOAT32, LKS_SUM)
                        : lks_comm_all_gather(comm, values, all, sizeof values, LKS_UINT8);
    EXPECT(st == LKS_ERR_ARG);
    EXPECT(strstr(lks_last_error(), "rank 0 called lks_comm_all_gather of 400 bytes") != NULL);
    EXPECT(strstr(lks_last_error(), "rank 2 called lks_comm_all_reduce of 100 float32 elements") !=
           NULL);
    EXPECT(lks_comm_barrier(comm) == LKS_ERR_ARG); /* the group has failed */
    return seen_by_all(comm);
}

/* Reductions are in flight when the mismatch is found. */
RANK_IN_GROUP(scale)
{
    struct suite_sum s;
    lks_work *work;
    EXPECT(suite_sum(comm, 100, &s));
    s.r.scale = lks_comm_rank(comm) < 2 ? 1 : 2;
    EXPECT(lks_comm_reduce_start(comm, &s.r, &work) == LKS_OK);
    EXPECT(lks_work_wait(work) == LKS_ERR_ARG);
    EXPECT(strstr(lks_last_error(),
                  "rank 0 called lks_comm_reduce_start of 100 elements with scale 1,") != NULL);
    EXPECT(strstr(lks_last_error(),
                  "rank 2 called lks_comm_reduce_start of 100 elements with scale 2;") != NULL);
    return seen_by_all(comm);
}

/* Rank 1's host has no memory for it: no host keeps it, and later allocations have the same offsets
 * on all hosts. */
RANK_IN_GROUP(alloc_fails)
{
    void *mem = NULL;
    EXPECT(lks_comm_alloc(comm, LKS_MEM_COMMON, 3000000, &mem) == LKS_ERR_NOMEM);
    EXPECT(mem == NULL && strstr(lks_last_error(), "can't map") != NULL);
    EXPECT(lks_comm_alloc(comm, LKS_MEM_COMMON, 1000, &mem) == LKS_OK);
    /* the last host, which has one rank, sends other bytes than the first */
    memset(mem, lks_comm_rank(comm) == lks_comm_world_size(comm) - 1, 1000);
    EXPECT(lks_comm_replicate(comm, mem, 1000) == LKS_OK);
    EXPECT(((char *)mem)[999] == 0);
    return seen_by_all(comm);
}

RANK_IN_GROUP(gives_up)
{
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    double start = lks__sys_now();
    if (lks_comm_rank(comm) == 3) {
        lks_comm_note(comm, 3, "data");
        lks_comm_abort(comm, "the shard is torn");
    }
    EXPECT(lks_comm_barrier(comm) == LKS_ERR_PEER);
    EXPECT(lks__sys_now() - start < 2 * lks_test_patience());
    EXPECT(strstr(lks_last_error(), "rank 3 failed at step 3, phase data: the shard is torn"));
    return seen_by_all(comm);
}

/* Rank 2, the first of its host, ends without closing the group. */
RANK_IN_GROUP(gives_up_and_ends)
{
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    if (lks_comm_rank(comm) == 2) {
        EXPECT(seen_by(2, 0) == 0);
        lks_comm_abort(comm, "the shard is torn");
        _exit(0);
    }
    EXPECT(lks_comm_barrier(comm) == LKS_ERR_PEER);
    EXPECT(strstr(lks_last_error(), "rank 2 failed: the shard is torn"));
    return seen_by_all(comm);
}

/* Rank 3 stands still although its leader's thread runs; rank 2's whole process is stopped. */
RANK(stands_still)
{
    /* Also the time in which a busy machine must get all ranks started. */
    const double timeout_s = 5 * lks_test_patience();
    lks_comm *comm = ranks_open(timeout_s);
    EXPECT(comm != NULL);
    lks_comm_note(comm, 7, "backward");
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    if (lks_comm_rank(comm) == 2)
        usleep((useconds_t)((timeout_s + 5) * 1e6));
    EXPECT(lks_comm_barrier(comm) == LKS_ERR_TIMEOUT);
    EXPECT(strstr(lks_last_error(), "rank 2 ") != NULL);
    EXPECT(strstr(lks_last_error(), "step 7, phase backward") != NULL);
    int code = seen_by_all(comm);
    lks_comm_close(comm);
    return code;
}

/* All ranks compute for longer than the deadline, and none is late. */
RANK(compute)
{
    const double timeout_s = 5 * lks_test_patience();
    lks_comm *comm = ranks_open(timeout_s);
    EXPECT(comm != NULL);
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    usleep((useconds_t)((timeout_s + 2) * 1e6));
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    const int code = seen_by_all(comm);
    lks_comm_close(comm);
    return code;
}

RANK_IN_GROUP(killed)
{
    int rank = lks_comm_rank(comm);
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    usleep(300 * 1000); /* every host has received messages of all others */
    if (rank == 2)
        kill(getpid(), SIGKILL);
    double start = lks__sys_now();
    EXPECT(lks_comm_barrier(comm) == LKS_ERR_PEER);
    EXPECT(lks__sys_now() - start < 5 * lks_test_patience());
    EXPECT(strstr(lks_last_error(), rank == 3 ? "rank 2 " : " (ranks 2 to 3)") != NULL ||
           strstr(lks_last_error(), "rank 2 ") != NULL);
    return 0;
}

/* The last rank ends while the others of its host compute. Rank 0, which needs them all, doesn't
 * wait for those. With "22" even rank 0's own host isn't complete. */
RANK_IN_GROUP(ended)
{
    struct suite_sum s;
    lks_work *work;
    EXPECT(suite_sum(comm, 100, &s));
    const int rank = lks_comm_rank(comm), last = lks_comm_world_size(comm) - 1;
    const lks__segment *segment = lks__shm_segment(comm->host);
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    if (rank == last)
        kill(getpid(), SIGKILL);
    for (int i = 0; i < lks_test_tries(3000) && rank > 0 && !lks__segment_aborted(segment);
         i++, usleep(10000))
        lks_comm_beat(comm);
    EXPECT(rank == 0 || lks__segment_aborted(segment));
    lks_status st = rank == 0 ? lks_comm_reduce_start(comm, &s.r, &work) : lks_comm_barrier(comm);
    if (rank == 0 && st == LKS_OK)
        st = lks_work_wait(work);
    char text[64];
    snprintf(text, sizeof text, "rank %d on host ", last);
    EXPECT(st == LKS_ERR_PEER && strstr(lks_last_error(), text) != NULL);
    EXPECT(strstr(lks_last_error(), " ended before it left the group") != NULL);
    return 0;
}

/* Open the group that the environment describes, which may fail. */
static lks_status open_group(lks_world *world, double timeout_s, lks_comm **comm_p)
{
    const lks_comm_options options = {getenv("ENGINE"), timeout_s};
    *comm_p = NULL;
    LKS__TRY(lks_world_from_env(world));
    return lks_comm_open(world, &options, comm_p);
}

/* MPI counts other ranks than the environment does: no rank joins. */
static int joins_wrongly(const char *name, const char *value, const char *says, int n)
{
    lks_world world;
    lks_comm *comm;
    setenv(name, value, 1);
    EXPECT(open_group(&world, 10, &comm) == LKS_ERR_PEER && comm == NULL);
    EXPECT(strstr(lks_last_error(), says) != NULL);
    return seen_by(world.rank, n);
}

RANK(wrong_world)
{
    return joins_wrongly("WORLD_SIZE", "3",
                         "MPI has 2 processes, WORLD_SIZE is 3: start all by one mpirun", 2);
}

RANK(wrong_host)
{
    return joins_wrongly("LOCAL_WORLD_SIZE", "2",
                         "MPI finds local rank 0 of 1 on this machine, but the environment has 0 "
                         "of 2",
                         3);
}

/* Only rank 1 has a wrong number: all learn its reason, and nobody waits for it. */
RANK(one_wrong)
{
    lks_world world;
    lks_comm *comm;
    const bool wrong = strcmp(getenv("RANK"), "1") == 0;
    if (wrong)
        setenv("LOCAL_WORLD_SIZE", "2", 1);
    EXPECT(open_group(&world, 60, &comm) == LKS_ERR_PEER && comm == NULL);
    EXPECT(strstr(lks_last_error(), wrong ? ": MPI finds local rank 0 of 1"
                                          : ": rank 1: MPI finds local rank 0 of 1") != NULL);
    return seen_by(world.rank, 3);
}

/* A function of the MPI library that the engine's module links, as a program calls it. */
static void *mpi_function(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/lockstep_%s.so", getenv("LOCKSTEP_MODULES"), getenv("MODULE"));
    void *module = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    return module == NULL ? NULL : dlsym(module, name);
}

/* The program has initialized MPI for level THREADS, and uses it, too. */
RANK(programs_mpi)
{
    int (*init)(int *, char ***, int, int *), (*finalize)(void), level = atoi(getenv("THREADS"));
    const bool multiple = level == 3; /* MPI_THREAD_MULTIPLE of Open MPI and MPICH */
    lks_world world;
    lks_comm *comm;
    *(void **)&init = mpi_function("MPI_Init_thread");
    *(void **)&finalize = mpi_function("MPI_Finalize");
    EXPECT(init != NULL && finalize != NULL);
    EXPECT(init(NULL, NULL, level, &level) == 0);
    EXPECT(open_group(&world, 60, &comm) == (multiple ? LKS_OK : LKS_ERR_SUPPORT));
    EXPECT(multiple || strstr(lks_last_error(), "call MPI_Init_thread() with MPI_THREAD_MULTIPLE "
                                                "instead of MPI_Init()") != NULL);
    EXPECT(!multiple || lks_comm_barrier(comm) == LKS_OK);
    const int code = seen_by(world.rank, world.world_size);
    lks_comm_close(comm);
    EXPECT(finalize() == 0);
    EXPECT(open_group(&world, 60, &comm) == LKS_ERR_SUPPORT);
    EXPECT(strstr(lks_last_error(), "this process has called MPI_Finalize()") != NULL);
    return code;
}

/* The second host was given another world: both say so before Gloo connects them. */
RANK(other_world)
{
    lks_world world;
    lks_comm *comm;
    if (strcmp(getenv("RANK"), "1") == 0)
        setenv("WORLD_SIZE", "3", 1);
    EXPECT(open_group(&world, 10 * lks_test_patience(), &comm) == LKS_ERR_CONFIG && comm == NULL);
    EXPECT(strstr(lks_last_error(),
                  world.rank == 0
                      ? "host 0 has a world of 2 ranks on 2 hosts, and host 1 one of 3 "
                      : "host 1 has a world of 3 ranks on 2 hosts, and host 0 one of 2 ") != NULL);
    return seen_by(world.rank, 2);
}

/* The second rank of the first host was given another world: all ranks learn which. */
RANK(odd_world)
{
    lks_world world;
    lks_comm *comm;
    const bool odd = strcmp(getenv("RANK"), "1") == 0;
    if (odd)
        setenv("WORLD_SIZE", "4", 1);
    lks_status st = open_group(&world, 10 * lks_test_patience(), &comm);
    LKS__THEN(st, lks_comm_barrier(comm));
    EXPECT(st == (odd ? LKS_ERR_CONFIG : LKS_ERR_PEER));
    EXPECT(odd || strstr(lks_last_error(), "rank 1 failed: ") != NULL);
    EXPECT(strstr(lks_last_error(), "WORLD_SIZE is 4 here, and 3 on this host's first rank"));
    const int code = seen_by(world.rank, 3);
    lks_comm_close(comm);
    return code;
}

/* A rank can't join, because of its variable WITH: all others name it, and the reason. */
RANK(one_fails)
{
    const int failing = atoi(getenv("FAILING"));
    const char *named = getenv("NAMED"); /* "": any of them may notice it */
    lks_world world;
    lks_comm_options options = {getenv("ENGINE"), 10 * lks_test_patience()};
    lks_comm *comm = NULL;
    EXPECT(lks_world_from_env(&world) == LKS_OK);
    if (world.rank == failing)
        putenv(getenv("WITH"));
    const lks_status st = lks_comm_open(&world, &options, &comm);
    EXPECT(st != LKS_OK);
    EXPECT(st == LKS_ERR_PEER || world.rank == failing || named[0] == '\0');
    EXPECT(strstr(lks_last_error(), getenv("SAYS")) != NULL);
    EXPECT(world.rank == failing || strstr(lks_last_error(), named) != NULL);
    return seen_by(world.rank, world.world_size);
}

/* Rank 0 ends, and the store with it, once rank 1 has joined. */
RANK(first_ends)
{
    lks_world world;
    lks_comm_options options = {getenv("ENGINE"), 10 * lks_test_patience()};
    lks_comm *comm = NULL;
    char token[512];
    lks__store_server *server;
    lks__store *store;
    void *number;
    size_t bytes;
    EXPECT(lks_world_from_env(&world) == LKS_OK);
    if (world.rank == 0) {
        const char *host = getenv("MASTER_ADDR");
        const int port = atoi(getenv("MASTER_PORT"));
        snprintf(token, sizeof token, "%s:%d ", host, port);
        EXPECT(lks__store_serve(host, port, token, &server) == LKS_OK);
        EXPECT(lks__store_open(host, port, token, options.timeout_s, &store) == LKS_OK);
        EXPECT(lks__store_get(store, "engine/0/0/host/1", options.timeout_s, &number, &bytes) ==
               LKS_OK);
        free(number);
        lks__store_close(store);
        lks__store_stop(server);
    } else {
        EXPECT(lks_comm_open(&world, &options, &comm) == LKS_ERR_PEER);
        EXPECT(strstr(lks_last_error(), "rank 0 failed before all hosts had joined") != NULL);
    }
    return seen_by(world.rank, 2);
}

/* Rank 1 stores a failure that isn't safe to print, and too long. */
RANK(hostile)
{
    lks_world world;
    lks_comm_options options = {getenv("ENGINE"), 10 * lks_test_patience()};
    lks_comm *comm = NULL;
    char token[512], text[5000];
    lks__store *store;
    int64_t n_told;
    EXPECT(lks_world_from_env(&world) == LKS_OK);
    if (world.rank == 0) {
        EXPECT(lks_comm_open(&world, &options, &comm) == LKS_ERR_PEER);
        EXPECT(strncmp(lks_last_error(), "?[2J?xxx", 8) == 0);
        EXPECT(strlen(lks_last_error()) < 1024);
    } else {
        memset(text, 'x', sizeof text);
        memcpy(text, "\x1b[2J\n", 5);
        snprintf(token, sizeof token, "%s:%s ", getenv("MASTER_ADDR"), getenv("MASTER_PORT"));
        EXPECT(lks__store_open(getenv("MASTER_ADDR"), atoi(getenv("MASTER_PORT")), token,
                               options.timeout_s, &store) == LKS_OK);
        EXPECT(lks__store_set(store, "engine/0/0/failed", text, sizeof text) == LKS_OK);
        EXPECT(lks__store_add(store, "engine/0/0/told", 1, &n_told) == LKS_OK);
        lks__store_close(store);
    }
    return seen_by(world.rank, 2);
}

/* The launcher of the second host runs inside a step of srun, whose variables its ranks have. */
RANK(inside_srun)
{
    lks_world world;
    lks_comm_options options = {"auto", 60};
    lks_comm *comm = NULL;
    if (strcmp(getenv("GROUP_RANK"), "1") == 0)
        setenv("PMIX_RANK", "1", 1);
    EXPECT(lks_world_from_env(&world) == LKS_OK);
    EXPECT(lks_comm_open(&world, &options, &comm) == LKS_OK);
    EXPECT(strcmp(lks_comm_backend(comm), "gloo") == 0);
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    const int code = seen_by_all(comm);
    lks_comm_close(comm);
    return code;
}

/* A rank that doesn't lead its host never comes: nobody waits for it longer than the deadline. */
RANK(absent)
{
    lks_world world;
    lks_comm_options options = {getenv("ENGINE"), 3 * lks_test_patience()};
    lks_comm *comm = NULL;
    EXPECT(lks_world_from_env(&world) == LKS_OK);
    if (world.rank < 3) {
        EXPECT(lks_comm_open(&world, &options, &comm) == LKS_ERR_TIMEOUT && comm == NULL);
        EXPECT(strstr(lks_last_error(), " s: are all ranks started, with the same backend, and"));
        /* A second call doesn't wait for the first one, which can't be interrupted. */
        EXPECT(lks_comm_open(&world, &options, &comm) == LKS_ERR_SUPPORT && comm == NULL);
        EXPECT(strstr(lks_last_error(), "waits for other ranks inside MPI: open groups one after"));
    }
    return seen_by(world.rank, 4);
}

/* Both hosts are stopped, for longer than the deadline, when rank 0 has waited for longer than that
 * and rank 1 has computed. Then rank 1 still computes. */
RANK_IN_GROUP(suspended)
{
    const double timeout_s = 2 * lks_test_patience();
    int32_t mine = getpid(), pids[2];
    comm->timeout_s = timeout_s;
    EXPECT(lks_comm_all_gather(comm, &mine, pids, 1, LKS_INT32) == LKS_OK);
    if (lks_comm_rank(comm) == 1) {
        for (double end = lks__sys_now() + 1.2 * timeout_s; lks__sys_now() < end; usleep(10000))
            lks_comm_beat(comm);
        const pid_t waker = fork();
        EXPECT(waker >= 0);
        if (waker == 0) {
            kill(pids[0], SIGSTOP);
            kill(pids[1], SIGSTOP);
            usleep((useconds_t)(1.2e6 * timeout_s));
            kill(pids[0], SIGCONT);
            usleep(100 * 1000);
            kill(pids[1], SIGCONT);
            _exit(0);
        }
        EXPECT(waitpid(waker, NULL, 0) == waker);
        usleep(500 * 1000);
    }
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    return seen_by_all(comm);
}

/* The machine of rank 0 stalls again and again. That hides rank 1's silence no longer than the
 * deadline, not counting the stalls. */
RANK_IN_GROUP(stalls)
{
    int32_t mine = getpid(), pids[2];
    comm->timeout_s = 0.5 * lks_test_patience();
    const lks__segment *segment = lks__shm_segment(comm->host);
    EXPECT(lks_comm_all_gather(comm, &mine, pids, 1, LKS_INT32) == LKS_OK);
    for (int i = 0; lks_comm_rank(comm) == 1 && i < lks_test_tries(15); i++) {
        if (lks__segment_aborted(segment))
            break;
        kill(pids[0], SIGSTOP);
        usleep(1100 * 1000);
        kill(pids[0], SIGCONT);
        usleep(250 * 1000);
    }
    EXPECT(lks_comm_rank(comm) == 0 || lks__segment_aborted(segment));
    EXPECT(lks_comm_barrier(comm) == LKS_ERR_TIMEOUT);
    EXPECT(strstr(lks_last_error(), "rank 1 ") != NULL);
    return seen_by_all(comm);
}

/* MPI can't count these bytes: the message has the size on the side that sends them, too. */
RANK_IN_GROUP(too_large)
{
    static const size_t at[2] = {0, 1}, few[2] = {1, 0}, many[2] = {1, 2200000000};
    const struct lks__hier *h = comm->state;
    for (int sends = 0; sends < 2; sends++) {
        char why[256] = "";
        const lks__engine_op op = {.kind = LKS__ENGINE_ALL_TO_ALL,
                                   .send_at = at,
                                   .send_bytes = sends ? many : few,
                                   .recv_at = at,
                                   .recv_bytes = sends ? few : many};
        EXPECT(h->ops->start(h->engine, 0, &op, why, sizeof why) < 0);
        EXPECT(strcmp(why, "2200000001 bytes at once are more than MPI can count") == 0);
    }
    return seen_by_all(comm);
}

/* The first host never comes. The other rank of the second host learns which address doesn't
 * answer, and doesn't name its leader as late. */
RANK(no_master)
{
    lks_world world;
    lks_comm_options options = {getenv("ENGINE"), 3 * lks_test_patience()};
    lks_comm *comm = NULL;
    EXPECT(lks_world_from_env(&world) == LKS_OK);
    if (world.rank < 2)
        return seen_by(world.rank, 4);
    EXPECT(lks_comm_open(&world, &options, &comm) ==
           (world.rank == 2 ? LKS_ERR_TIMEOUT : LKS_ERR_PEER));
    EXPECT(strstr(lks_last_error(), "can't connect to 127.0.0.1:") != NULL);
    EXPECT(world.rank == 2 || strstr(lks_last_error(), "rank 2 failed: ") != NULL);
    return seen_by(world.rank, 4);
}

/* One collective of each kind; small, sometimes larger. */
static bool mixed(lks_comm *comm, int i)
{
    float values[300];
    int rank = lks_comm_rank(comm), W = lks_comm_world_size(comm);
    size_t n = i % 97 == 0 ? 300 : 1 + (size_t)(i % 5);
    uint64_t mine = (uint64_t)i * 8 + (uint64_t)rank, all[8];
    for (size_t k = 0; k < n; k++)
        values[k] = (float)(rank + 1);
    switch (i % 16) {
    case 1:
        CHECK(lks_comm_all_reduce(comm, values, n, LKS_FLOAT32, LKS_SUM) == LKS_OK);
        CHECK(values[n - 1] == (float)(W * (W + 1) / 2));
        break;
    case 2:
        CHECK(lks_comm_broadcast(comm, values, n * sizeof *values, LKS_UINT8, i % W) == LKS_OK);
        CHECK(values[0] == (float)(i % W + 1));
        break;
    case 3:
        CHECK(lks_comm_barrier(comm) == LKS_OK);
        break;
    default:
        CHECK(lks_comm_all_gather(comm, &mine, all, sizeof mine, LKS_UINT8) == LKS_OK);
        CHECK(all[W - 1] == (uint64_t)i * 8 + (uint64_t)(W - 1));
    }
    return true;
}

RANK_IN_GROUP(mixed)
{
    for (int i = 0; i < 200; i++)
        EXPECT(mixed(comm, i));
    return seen_by_all(comm);
}

/* Many operations leave nothing behind: descriptors, memory, shared segments. */
RANK_IN_GROUP(many)
{
    int fds = 0;
    size_t used = 0;
    uint64_t resident = 0, shared = 0;
    int n = atoi(getenv("OPERATIONS"));
    for (int i = 0; i < n; i++) {
        if (i == n / 5) {
            fds = lks_test_count_files("/proc/self/fd");
            used = mallinfo2().uordblks;
            resident = lks__sys_proc_bytes("/proc/self/status", "RssAnon");
            shared = lks__sys_proc_bytes("/proc/self/status", "RssShmem");
            EXPECT(resident > 0);
        }
        EXPECT(mixed(comm, i));
    }
    EXPECT(lks_test_count_files("/proc/self/fd") <= fds + 1); /* a look at a peer's process */
    EXPECT(mallinfo2().uordblks < used + (256 << 10));
#if !defined(__SANITIZE_ADDRESS__) &&                                                              \
    !defined(__SANITIZE_THREAD__) /* sanitizers keep records and freed blocks */
    EXPECT(lks__sys_proc_bytes("/proc/self/status", "RssAnon") < resident + (1 << 20));
#endif
    EXPECT(lks__sys_proc_bytes("/proc/self/status", "RssShmem") < shared + (1 << 20));
    return seen_by_all(comm);
}

/* --- tests -------------------------------------------------------------------------------- */

static const char *marks;

static void clear_marks(void)
{
    char path[1024];
    for (int r = 0; r < RANKS_MAX; r++) {
        snprintf(path, sizeof path, "%s/%d", marks, r);
        rmdir(path);
    }
}

static int count_marks(void)
{
    char path[1024];
    int n = 0;
    for (int r = 0; r < RANKS_MAX; r++) {
        snprintf(path, sizeof path, "%s/%d", marks, r);
        n += access(path, F_OK) == 0;
    }
    return n;
}

static bool at_master; /* hosts meet at torchrun's master address */

static int run_body(const char *hosts, const char *body)
{
    const char *const argv[] = {"/proc/self/exe", "--rank", body, NULL};
    clear_marks();
    return at_master ? hosts_run_at_master(hosts, argv) : hosts_run(engine, hosts, argv);
}

/* Checks the exit code: if a group has failed, mpirun's is not 0. */
static int expect_all(const char *hosts, const char *body)
{
    int code = run_body(hosts, body);
    if (count_marks() != hosts_world(hosts))
        fail_msg("%s over %s: %d of %d ranks saw what they should (exit code %d)", body, hosts,
                 count_marks(), hosts_world(hosts), code);
    return code;
}

TEST(test_suite)
{
    static const char *const divisions[] = {"1", "11", "21", "212", "2222"};
    /* MPICH is a library for the same module, and takes long with many ranks. */
    const size_t n = sizeof divisions / sizeof divisions[0] - (strcmp(engine, "mpich") == 0);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(expect_all(divisions[i], "suite"), 0);
}

TEST(test_failures)
{
    expect_all("22", "mismatch");
    expect_all("22", "order");
    expect_all("22", "scale");
    expect_all("22", "gives_up");
    expect_all("22", "stands_still");
    assert_int_equal(expect_all("21", "compute"), 0);
}

static int fail_mmap(void **state)
{
    setenv("LOCKSTEP_FAULT", "mmap:2:ENOMEM", 1); /* the first one is for the group itself */
    return setenv("LOCKSTEP_FAULT_RANK", "1", 1);
}

static int fail_nothing(void **state)
{
    unsetenv("LOCKSTEP_FAULT");
    return unsetenv("LOCKSTEP_FAULT_RANK");
}

TEST_WITH(test_alloc_fails, fail_mmap, fail_nothing)
{
    expect_all("11", "alloc_fails");
    expect_all("21", "alloc_fails");
}

TEST(mpi_wrong_numbers)
{
    expect_all("11", "wrong_world");
    expect_all("111", "wrong_host");
    expect_all("111", "one_wrong");
}

TEST(mpi_programs_mpi)
{
    for (int level = 0; level <= 3; level++) {
        char text[16];
        snprintf(text, sizeof text, "%d", level);
        setenv("THREADS", text, 1);
        assert_int_equal(expect_all("11", "programs_mpi"), 0);
    }
    unsetenv("THREADS");
}

TEST(gloo_other_world)
{
    assert_int_equal(expect_all("11", "other_world"), 0);
    assert_int_equal(expect_all("21", "odd_world"), 0);
}

TEST(gloo_inside_srun)
{
    setenv("TORCHELASTIC_RUN_ID", "17", 1);
    assert_int_equal(expect_all("22", "inside_srun"), 0);
    unsetenv("TORCHELASTIC_RUN_ID");
}

/* In ranks of lockstep run or torchrun, inherited variables of mpirun only count if the user has
 * chosen MPI. */
TEST(mpi_other_launcher)
{
    const char *sign = strcmp(engine, "mpich") == 0 ? "PMI_RANK" : "OMPI_COMM_WORLD_SIZE";
    const struct lks_comm_ops *mpi = lks__backend_at(1);
    const lks_world world = {0, 2, 0, 1};
    char why[512];
    assert_string_equal(mpi->name, "mpi");
    setenv(sign, "0", 1);
    assert_true(lks__backend_probe(mpi, &world, false, why, sizeof why));
    setenv("TORCHELASTIC_RUN_ID", "17", 1);
    assert_false(lks__backend_probe(mpi, &world, false, why, sizeof why));
    assert_string_equal(why, "mpirun must start its ranks, and lockstep run or torchrun has "
                             "started this one");
    assert_true(lks__backend_probe(mpi, &world, true, why, sizeof why));
    unsetenv("TORCHELASTIC_RUN_ID");
    unsetenv(sign);
}

TEST(mpi_absent)
{
    expect_all("22", "absent");
}

TEST(gloo_suspended)
{
    assert_int_equal(expect_all("11", "suspended"), 0);
    assert_int_equal(expect_all("11", "stalls"), 0);
}

TEST(mpi_too_large)
{
    assert_int_equal(expect_all("11", "too_large"), 0);
}

static int leave_master(void **state)
{
    at_master = false;
    return unsetenv("TORCHELASTIC_USE_AGENT_STORE");
}

/* Without lockstep's launcher, rank 0 serves the store. */
TEST_WITH(gloo_at_master, NULL, leave_master)
{
    at_master = true;
    assert_int_equal(expect_all("212", "mixed"), 0);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1); /* an agent already listens on MASTER_PORT */
    assert_int_equal(expect_all("11", "mixed"), 0);
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    assert_int_equal(expect_all("22", "no_master"), 0);
    assert_int_equal(expect_all("11", "other_world"), 0);
    assert_int_equal(expect_all("11", "first_ends"), 0);
    assert_int_equal(expect_all("11", "hostile"), 0);
}

TEST_WITH(gloo_one_fails, NULL, leave_master)
{
    static const struct {
        const char *hosts, *rank, *with, *says;
        const char
            *named; /* NULL: that rank; "": of two with the same number either may notice it */
    } rows[] = {
        {"11", "0", "GLOO_SOCKET_IFNAME=nosuch0", "nosuch0", NULL},
        {"111", "1", "GLOO_SOCKET_IFNAME=nosuch0", "nosuch0", NULL},
        {"22", "2", "GLOO_SOCKET_IFNAME=nosuch0", "nosuch0", NULL},
        {"111", "0", "GROUP_RANK=9", "this host is number 9 of 3", NULL},
        {"12", "1", "GROUP_RANK=9", "this host is number 9 of 2", NULL},
        {"11", "1", "GROUP_RANK=0", "on hosts with the same number, 0", ""},
        {"11", "0", "GROUP_RANK=1", "on hosts with the same number, 1", ""},
    };
    at_master = true;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        setenv("FAILING", rows[i].rank, 1);
        setenv("WITH", rows[i].with, 1);
        setenv("SAYS", rows[i].says, 1);
        setenv("NAMED",
               rows[i].named != NULL ? rows[i].named : lks_test_text("rank %s ", rows[i].rank), 1);
        assert_int_equal(expect_all(rows[i].hosts, "one_fails"), 0);
    }
}

TEST(test_killed)
{
    double start = lks__sys_now();
    int told = strcmp(engine, "mpich") == 0 ? 0 : 128; /* its mpirun ends with the bare number */
    assert_int_equal(run_body("22", "killed"), told + SIGKILL);
    assert_true(lks__sys_now() - start < 20 * lks_test_patience());
}

TEST(gloo_gives_up_and_ends)
{
    assert_int_equal(expect_all("22", "gives_up_and_ends"), 0);
}

TEST(gloo_ended)
{
    assert_int_equal(run_body("12", "ended"), 128 + SIGKILL);
    assert_int_equal(run_body("22", "ended"), 128 + SIGKILL);
}

TEST(test_many)
{
    expect_all("22", "many");
}

static int make_marks(void **state)
{
    marks = lks_test_folder();
    return setenv("MARKS", marks, 1);
}

int main(int argc, char **argv)
{
    hosts_main(argc, argv);
    ranks_main(argc, argv);
    engine = argc == 2 ? argv[1] : "";
    hosts_need(engine);
    setenv("ENGINE", hosts_backend(engine), 1);
    setenv("MODULE", engine, 1);
    /* MPICH's waits never sleep: with more ranks than cores each wait takes a time slice. */
    setenv("OPERATIONS", strcmp(engine, "mpich") == 0 ? "1000" : "2000", 1);
    lks_test_part(false, strcmp(engine, "gloo") == 0 ? "mpi_*" : "gloo_*");
    return lks_test_run_all(make_marks, NULL);
}
