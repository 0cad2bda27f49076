/* Shares of a machine's cores, on machines that hwloc makes up, and on this one. */
#include "support.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "session/bind.h"

static lks__bind_share look(int rank, int ranks)
{
    lks__bind_share share;
    char why[300] = "";
    const char *library = lks__bind_find(rank, ranks, &share, why, sizeof why);
    if (library == NULL)
        print_error("%s\n", why);
    assert_non_null(library);
    assert_contains(library, "hwloc ");
    return share;
}

static void assert_cores(const lks__bind_share *share, int first, int n)
{
    assert_int_equal(CPU_COUNT(&share->set), n);
    for (int i = first; i < first + n; i++)
        assert_true(CPU_ISSET(i, &share->set));
}

/* Two memory nodes of four cores: a rank's cores are those of one node. */
TEST(test_shares)
{
    setenv("HWLOC_SYNTHETIC", "node:2 core:4 pu:1", 1);
    for (int ranks = 1; ranks <= 8; ranks *= 2)
        for (int r = 0; r < ranks; r++) {
            lks__bind_share share = look(r, ranks);
            assert_int_equal(share.cores, 8);
            assert_int_equal(share.nodes, 2);
            assert_cores(&share, r * (8 / ranks), 8 / ranks);
        }
    setenv("HWLOC_SYNTHETIC", "node:2 core:2 pu:2", 1); /* two threads on each core */
    assert_int_equal(look(0, 2).cores, 8);
    setenv("HWLOC_SYNTHETIC", "node:2 core:4 pu:1", 1);
    lks__bind_share third = look(2, 3);
    assert_true(CPU_COUNT(&third.set) >= 2);
    unsetenv("HWLOC_SYNTHETIC");
}

/* The number of processors of a child that called lks__bind(). */
static int bound(enum lks__bind mode, int rank, int ranks)
{
    pid_t pid = fork();
    if (pid == 0) {
        cpu_set_t set;
        lks__bind(mode, rank, ranks);
        _exit(sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

TEST(test_modes)
{
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    const int all = CPU_COUNT(&set);
    if (all < 2 || all > 200)
        lks_test_lacks("two-cores", "a share of one core is that core");
    assert_int_equal(bound(LKS__BIND_CORES, 0, 2) + bound(LKS__BIND_CORES, 1, 2), all);
    assert_int_equal(bound(LKS__BIND_NONE, 0, 2), all);
    assert_int_equal(bound(LKS__BIND_CORES, 0, 1), all);
    assert_int_equal(bound(LKS__BIND_CORES, 0, all + 1), all);
    /* The machine has one memory node or several: auto knows. */
    const int nodes = look(0, 1).nodes;
    assert_int_equal(bound(LKS__BIND_AUTO, 0, 2), nodes > 1 ? bound(LKS__BIND_CORES, 0, 2) : all);
}
