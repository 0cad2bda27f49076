#include "comm/hosts.h"

#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/backend.h"
#include "comm/ranks.h"
#include "comm/store/store.h"

/* In a child: discard what ranks print on stdout. */
static void be_quiet(void)
{
    int null = open("/dev/null", O_WRONLY);
    if (null >= 0)
        dup2(null, STDOUT_FILENO);
}

/* Set the environment of rank `rank`. */
static void become(const char *hosts, int rank)
{
    int host = 0, first = 0;
    while (first + hosts[host] - '0' <= rank)
        first += hosts[host++] - '0';
    ranks_set("RANK", rank);
    ranks_set("WORLD_SIZE", hosts_world(hosts));
    ranks_set("LOCAL_RANK", rank - first);
    ranks_set("LOCAL_WORLD_SIZE", hosts[host] - '0');
    ranks_set("GROUP_RANK", host);
    ranks_set("GROUP_WORLD_SIZE", (int)strlen(hosts));
}

void hosts_main(int argc, char **argv)
{
    if (argc < 4 || strcmp(argv[1], "--become") != 0)
        return;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (rank == NULL)
        rank = getenv("PMI_RANK"); /* MPICH's */
    if (rank == NULL)
        exit(97);
    become(argv[2], atoi(rank));
    execvp(argv[3], argv + 3);
    exit(98);
}

int hosts_world(const char *hosts)
{
    int W = 0;
    for (; *hosts != '\0'; hosts++)
        W += *hosts - '0';
    return W;
}

const char *hosts_backend(const char *engine)
{
    return strcmp(engine, "mpich") == 0 ? "mpi" : engine;
}

void hosts_need(const char *engine)
{
    const struct lks_comm_ops *ops = NULL;
    lks_world world = {0, 1, 0, 1};
    char why[512] = "no such backend";
    bool mpich = strcmp(engine, "mpich") == 0;
    /* The variables that probes look for, besides their modules. */
    setenv(mpich ? "PMI_RANK" : "OMPI_COMM_WORLD_SIZE", mpich ? "0" : "1", 1);
    setenv(LKS__STORE_ENV, "127.0.0.1:1", 1);
    for (int i = 0; lks__backend_at(i) != NULL; i++)
        if (strcmp(lks__backend_at(i)->name, hosts_backend(engine)) == 0)
            ops = lks__backend_at(i);
    bool can = ops != NULL && ops->probe(ops, &world, why, sizeof why);
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("PMI_RANK");
    unsetenv(LKS__STORE_ENV);
    if (can && strcmp(engine, "mpi") == 0 &&
        system("mpirun --version 2>/dev/null | grep -q 'Open MPI'") != 0) {
        snprintf(why, sizeof why, "there is no mpirun of Open MPI");
        can = false;
    }
    if (can && mpich &&
        system("command -v mpirun.mpich && test -e \"$LOCKSTEP_MODULES/lockstep_mpich.so\"") != 0) {
        snprintf(why, sizeof why, "there is no module for MPICH, or no mpirun.mpich");
        can = false;
    }
    if (!can)
        lks_test_exit_lacks(engine, why);
}

/* Returns 0, an exit code, or 128 + signal. */
static int code_of(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static int run_mpi(const char *engine, const char *hosts, const char *const argv[])
{
    char self[2048], ranks[16], limit[32];
    const char *open_mpi[64] = {"timeout", limit,      "mpirun", "--oversubscribe", "-n", ranks,
                                self,      "--become", hosts};
    const char *mpich[64] = {"timeout", limit, "mpirun.mpich", "-n",
                             ranks,     self,  "--become",     hosts};
    const char **all = strcmp(engine, "mpich") == 0 ? mpich : open_mpi;
    int n = 0;
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(bytes > 0);
    self[bytes] = '\0';
    snprintf(ranks, sizeof ranks, "%d", hosts_world(hosts));
    snprintf(limit, sizeof limit, "%.0f", 120 * lks_test_patience());
    while (all[n] != NULL)
        n++;
    for (; *argv != NULL && n < 63; argv++)
        all[n++] = *argv;
    /* In /tmp, two runs of mpirun that begin at once may fail to make the same folder. */
    char folder[] = "/tmp/lockstep-test-mpi-XXXXXX";
    assert_non_null(mkdtemp(folder));
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) {
        const int code = code_of(pid);
        rmdir(folder);
        return code;
    }
    be_quiet();
    setenv("OMPI_MCA_orte_tmpdir_base", folder, 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    execvp(all[0], (char **)all);
    _exit(98);
}

static char failure[1024];

const char *hosts_failure(void)
{
    return failure;
}

/* Start the ranks of all hosts, as a launcher on each host would. */
static int run_ranks(const char *hosts, const char *const argv[])
{
    lks__segment *segments[HOSTS_MAX_RANKS];
    pid_t pids[HOSTS_MAX_RANKS];
    int W = hosts_world(hosts), rank = 0, code = 0;
    assert_true(W <= HOSTS_MAX_RANKS);
    failure[0] = '\0';
    for (int h = 0; hosts[h] != '\0'; h++) {
        assert_int_equal(lks__segment_create(hosts[h] - '0', &segments[h]), LKS_OK);
        for (int i = 0; i < hosts[h] - '0'; i++, rank++) {
            pids[rank] = fork();
            assert_true(pids[rank] >= 0);
            if (pids[rank] > 0)
                continue;
            be_quiet();
            ranks_inherit(segments[h]);
            become(hosts, rank);
            execvp(argv[0], (char **)argv);
            _exit(98);
        }
    }
    for (int r = 0; r < W; r++) {
        int one = code_of(pids[r]);
        if (one != 0 && (code == 0 || code > 128)) /* a killed rank hides no failure of others */
            code = one;
    }
    for (int h = 0; hosts[h] != '\0'; h++) {
        lks_status st;
        int blamed;
        if (h == 0)
            lks__segment_failure(segments[h], &st, &blamed, failure, sizeof failure);
        lks__segment_close(segments[h]);
    }
    return code;
}

static int run_with_store(const char *hosts, const char *const argv[])
{
    char token[LKS__TOKEN_BYTES], place[64];
    lks__store_server *store;
    assert_int_equal(lks__token_new(token), LKS_OK);
    assert_int_equal(lks__store_serve("127.0.0.1", 0, token, &store), LKS_OK);
    snprintf(place, sizeof place, "127.0.0.1:%d", lks__store_port(store));
    setenv(LKS__STORE_ENV, place, 1);
    setenv(LKS__TOKEN_ENV, token, 1);
    int code = run_ranks(hosts, argv);
    unsetenv(LKS__STORE_ENV);
    unsetenv(LKS__TOKEN_ENV);
    lks__store_stop(store);
    return code;
}

int hosts_run_at_master(const char *hosts, const char *const argv[])
{
    ranks_set("MASTER_PORT", lks_test_two_free_ports()); /* an agent may have the first */
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    int code = run_ranks(hosts, argv);
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
    return code;
}

int hosts_run(const char *engine, const char *hosts, const char *const argv[])
{
    bool mpi = strcmp(engine, "mpi") == 0 || strcmp(engine, "mpich") == 0;
    return mpi ? run_mpi(engine, hosts, argv) : run_with_store(hosts, argv);
}
