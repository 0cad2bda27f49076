/* The suite over an engine between hosts, `test_comm_engine mpi|gloo`: this machine plays several
 * hosts, each a group of processes that says so (LOCAL_WORLD_SIZE). */
#include <malloc.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/sys.h"
#include "comm/hosts.h"
#include "comm/ranks.h"
#include "comm/suite.h"

static const char *engine; /* "mpi", "gloo" */

/* Descriptors that engines keep for themselves to the end of the process. */
enum { KEPT = 8 };

/* --- bodies ------------------------------------------------------------------------------- */

/* Say that this rank has seen what it should, and stay until all have: mpirun ends everybody as
 * soon as one ends without MPI_Finalize. */
static int seen_by_all(lks_comm *comm)
{
    char path[4096];
    int W = lks_comm_world_size(comm);
    double end = lks__sys_now() + 10;
    snprintf(path, sizeof path, "%s/%d", getenv("MARKS"), lks_comm_rank(comm));
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

static lks_comm *open_group(double timeout_s)
{
    lks_world world;
    lks_comm_options options = {getenv("ENGINE"), timeout_s};
    lks_comm *comm = NULL;
    if (lks_world_from_env(&world) != LKS_OK || lks_comm_open(&world, &options, &comm) != LKS_OK)
        fprintf(stderr, "rank %s can't open the group: %s\n", getenv("RANK"), lks_last_error());
    return comm;
}

static int body_suite(void)
{
    int fds = ranks_count_fds();
    lks_comm *comm = open_group(60);
    EXPECT(comm != NULL);
    EXPECT(strcmp(lks_comm_backend(comm), getenv("ENGINE")) == 0);
    EXPECT(suite_collectives(comm, lks_comm_world_size(comm) <= 3) && suite_reductions(comm));
    int code = seen_by_all(comm);
    lks_comm_close(comm);
    EXPECT(ranks_count_fds() <= fds + KEPT);
    return code;
}

static int body_mismatch(void)
{
    lks_comm *comm = open_group(60);
    float values[100] = {0};
    EXPECT(comm != NULL);
    int rank = lks_comm_rank(comm);
    EXPECT(lks_comm_all_reduce(comm, values, rank >= 2 ? 99 : 100) == LKS_ERR_ARG);
    EXPECT(strstr(lks_last_error(), "rank 0 called all_reduce of 100 elements") != NULL);
    EXPECT(strstr(lks_last_error(), "rank 2 called all_reduce of 99 elements") != NULL);
    int code = seen_by_all(comm);
    lks_comm_close(comm);
    return code;
}

static int body_gives_up(void)
{
    lks_comm *comm = open_group(60);
    EXPECT(comm != NULL);
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    double start = lks__sys_now();
    if (lks_comm_rank(comm) == 3) {
        lks_comm_note(comm, 3, "data");
        lks_comm_abort(comm, "the shard is torn");
    }
    EXPECT(lks_comm_barrier(comm) == LKS_ERR_PEER);
    EXPECT(lks__sys_now() - start < 2);
    EXPECT(strstr(lks_last_error(), "rank 3 failed at step 3, phase data: the shard is torn"));
    int code = seen_by_all(comm);
    lks_comm_close(comm);
    return code;
}

/* Rank 3 stands still although its leader's thread lives; rank 2 is stopped whole. */
static int body_stands_still(void)
{
    lks_comm *comm = open_group(2);
    EXPECT(comm != NULL);
    lks_comm_note(comm, 7, "backward");
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    if (lks_comm_rank(comm) == 2)
        usleep(6 * 1000 * 1000);
    EXPECT(lks_comm_barrier(comm) == LKS_ERR_TIMEOUT);
    EXPECT(strstr(lks_last_error(), "rank 2 ") != NULL);
    EXPECT(strstr(lks_last_error(), "step 7, phase backward") != NULL);
    int code = seen_by_all(comm);
    lks_comm_close(comm);
    return code;
}

static int body_killed(void)
{
    lks_comm *comm = open_group(60);
    EXPECT(comm != NULL);
    int rank = lks_comm_rank(comm);
    EXPECT(lks_comm_barrier(comm) == LKS_OK);
    usleep(300 * 1000); /* every host has heard of every other */
    if (rank == 2)
        kill(getpid(), SIGKILL);
    double start = lks__sys_now();
    EXPECT(lks_comm_barrier(comm) == LKS_ERR_PEER);
    EXPECT(lks__sys_now() - start < 2);
    EXPECT(strstr(lks_last_error(), rank == 3 ? "rank 2 " : "host 1 (ranks 2 to 3)") != NULL ||
           strstr(lks_last_error(), "rank 2 ") != NULL);
    lks_comm_close(comm);
    return 0;
}

/* Nothing is left behind by many operations. */
static int body_many(void)
{
    lks_comm *comm = open_group(60);
    EXPECT(comm != NULL);
    int W = lks_comm_world_size(comm), rank = lks_comm_rank(comm), fds = 0;
    size_t used = 0;
    uint64_t all[8];
    for (uint64_t i = 0; i < 10000; i++) {
        uint64_t mine = i * 8 + (uint64_t)rank;
        if (i == 2000) {
            fds = ranks_count_fds();
            used = mallinfo2().uordblks;
        }
        EXPECT(lks_comm_all_gather(comm, &mine, all, sizeof mine) == LKS_OK);
        EXPECT(all[W - 1] == i * 8 + (uint64_t)(W - 1));
    }
    EXPECT(ranks_count_fds() <= fds + W); /* a look at a peer's process, once for each */
    EXPECT(mallinfo2().uordblks < used + (256 << 10));
    int code = seen_by_all(comm);
    lks_comm_close(comm);
    return code;
}

/* --- tests -------------------------------------------------------------------------------- */

static char marks[64];

static void clear_marks(void)
{
    char path[128];
    for (int r = 0; r < RANKS_MAX; r++) {
        snprintf(path, sizeof path, "%s/%d", marks, r);
        rmdir(path);
    }
}

static int count_marks(void)
{
    char path[128];
    int n = 0;
    for (int r = 0; r < RANKS_MAX; r++) {
        snprintf(path, sizeof path, "%s/%d", marks, r);
        n += access(path, F_OK) == 0;
    }
    return n;
}

static int run_body(const char *hosts, const char *body)
{
    clear_marks();
    return hosts_run(engine, hosts, (const char *const[]){"/proc/self/exe", "--rank", body, NULL});
}

/* The exit code: where a group has failed, mpirun's is not 0. */
static int expect_all(const char *hosts, const char *body)
{
    int code = run_body(hosts, body);
    if (count_marks() != hosts_world(hosts))
        fail_msg("%s over %s: %d of %d ranks saw what they should (exit code %d)", body, hosts,
                 count_marks(), hosts_world(hosts), code);
    return code;
}

static void test_suite(void **state)
{
    static const char *const divisions[] = {"1", "11", "21", "22", "212", "2222"};
    for (size_t i = 0; i < sizeof divisions / sizeof divisions[0]; i++) {
        assert_int_equal(expect_all(divisions[i], "suite"), 0);
    }
}

static void test_failures(void **state)
{
    expect_all("22", "mismatch");
    expect_all("22", "gives_up");
    expect_all("22", "stands_still");
}

static void test_killed(void **state)
{
    double start = lks__sys_now();
    assert_int_equal(run_body("22", "killed"), 128 + SIGKILL);
    assert_true(lks__sys_now() - start < 20);
}

static void test_many(void **state)
{
    expect_all("22", "many");
}

static int make_marks(void **state)
{
    snprintf(marks, sizeof marks, "/tmp/lockstep-engine-XXXXXX");
    if (mkdtemp(marks) == NULL)
        return 1;
    return setenv("MARKS", marks, 1);
}

static int remove_marks(void **state)
{
    clear_marks();
    return rmdir(marks);
}

int main(int argc, char **argv)
{
    static const struct rank_body bodies[] = {
        {"suite", body_suite},
        {"mismatch", body_mismatch},
        {"gives_up", body_gives_up},
        {"stands_still", body_stands_still},
        {"killed", body_killed},
        {"many", body_many},
        {NULL, NULL},
    };
    hosts_main(argc, argv);
    ranks_main(argc, argv, bodies);
    engine = argc == 2 ? argv[1] : "";
    if (!hosts_can_run(engine))
        return 77;
    setenv("ENGINE", engine, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_suite),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, make_marks, remove_marks);
}
