/* Ranks that another launcher has started: torchrun, mpirun, srun. The bytes are those of one rank
 * alone with any of them. */
#include "support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "laws/laws.h"
#include "laws/marked.h"
#include "lockstep/comm.h"

static const char *alone;

/* Ranks find each other by the variables that name their job. This one keeps them apart from the
 * ranks of the same test in another build. */
static char run_id[64];

static int train_alone(void **state)
{
    /* Remove the variables of a launcher that runs this test. */
    static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
    snprintf(run_id, sizeof run_id, "TORCHELASTIC_RUN_ID=%d", (int)getpid());
    alone = law_output("random", "--threads=1");
    return 0;
}

/* --- their variables ---------------------------------------------------------------------- */

enum { MAX_VARS = 8 };

struct environment {
    const char *vars[MAX_VARS]; /* %d stands for the rank */
};

static const struct environment environments[] = {
    {{"RANK=%d", "WORLD_SIZE=2", "LOCAL_RANK=%d", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
      run_id}},
    {{"OMPI_COMM_WORLD_RANK=%d", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=%d",
      "OMPI_COMM_WORLD_LOCAL_SIZE=2"}},
    {{"PMI_RANK=%d", "PMI_SIZE=2", "MPI_LOCALRANKID=%d", "MPI_LOCALNRANKS=2"}},
    {{"SLURM_PROCID=%d", "SLURM_STEP_NUM_TASKS=2", "SLURM_LOCALID=%d", "SLURM_NODEID=0",
      "SLURM_STEP_TASKS_PER_NODE=2", "SLURM_JOB_ID=17", run_id}},
};
enum { N_ENVIRONMENTS = sizeof environments / sizeof environments[0] };

static lks_test_child start(const law_args *args, const struct environment *e, int rank)
{
    const char *env[MAX_VARS + 1];
    int n = 0;
    for (; n < MAX_VARS && e->vars[n] != NULL; n++) {
        const char *at = strstr(e->vars[n], "%d");
        env[n] = at == NULL ? e->vars[n]
                            : lks_test_text("%.*s%d", (int)(at - e->vars[n]), e->vars[n], rank);
    }
    env[n] = NULL;
    return lks_test_start(args->argv, env);
}

TEST(test_variables)
{
    for (int i = 0; i < N_ENVIRONMENTS; i++) {
        const char *out;
        law_args args = law_train("random", &out);
        law_add(&args, "--threads=1");
        lks_test_child ranks[2];
        for (int r = 1; r >= 0; r--) /* the rank that serves comes last */
            ranks[r] = start(&args, &environments[i], r);
        for (int r = 0; r < 2; r++) {
            assert_exits(0, lks_test_wait(&ranks[r], 60));
        }
        law_assert_same(out, alone);
    }
}

/* Two jobs of MPICH in one job of SLURM, at the same time: their variables are the same, and only
 * their launchers' proxies differ. Ranks are started by a shell in between, as by a script. Rank 1
 * comes late, so that both jobs' first ranks wait at the same time. */
TEST(test_two_jobs)
{
    enum { JOBS = 2 };
    const char *dir = lks_test_folder(), *out[JOBS],
               *proxy = lks_test_text("%s/hydra_pmi_proxy", dir);
    lks_test_child jobs[JOBS];
    assert_int_equal(symlink("/bin/sh", proxy), 0); /* its name is that of the file */
    for (int j = 0; j < JOBS; j++) {
        law_args args = law_train("random", &out[j]);
        const char *line = law_words(&args), *ranks = "";
        for (int r = 1; r >= 0; r--)
            ranks = lks_test_text("%sPMI_RANK=%d MPI_LOCALRANKID=%d sh -c \"%s%s --threads=1; exit "
                                  "\\$?\" & p%d=$!; ",
                                  ranks, r, r, r == 1 ? "sleep 1; " : "", line, r);
        const char *command = lks_test_text("%swait $p1 && wait $p0", ranks);
        const char *const argv[] = {proxy, "-c", command, NULL};
        jobs[j] = lks_test_start(argv, (const char *const[]){"PMI_SIZE=2", "MPI_LOCALNRANKS=2",
                                                             "SLURM_JOB_ID=17", run_id, NULL});
    }
    for (int j = 0; j < JOBS; j++) {
        assert_exits(0, lks_test_wait(&jobs[j], 60));
        law_assert_same(out[j], alone);
    }
}

/* A rank that dies is named by the others, which end by themselves. */
TEST(test_death)
{
    const char *out;
    law_args args = law_train("random", &out);
    law_add_all(&args, "--max_iters=1000000", "--keep=2");
    lks_test_child ranks[2];
    for (int r = 0; r < 2; r++)
        ranks[r] = start(&args, &environments[1], r);
    lks_test_until(lks_test_exists(lks_test_text("%s/latest", out)));
    assert_int_equal(kill(ranks[1].pid, SIGKILL), 0);
    lks_test_wait(&ranks[1], 5);
    lks_test_result r = assert_exits(1, lks_test_wait(&ranks[0], 10), "lockstep train: rank 0: ",
                                     lks_test_text("rank 1 (pid %d", (int)ranks[1].pid));
    if (r.seconds > 2 * lks_test_patience())
        fail_msg("it took %.1f s", r.seconds);
}

/* Ranks whose launcher is killed save and stop. */
TEST(test_orphans)
{
    static const char *const starts[] = {
        "for r in 0 1; do OMPI_COMM_WORLD_RANK=$r OMPI_COMM_WORLD_LOCAL_RANK=$r "
        "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 %s & done; wait",
        "for r in 0 1; do RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 "
        "TORCHELASTIC_USE_AGENT_STORE=True %s & done; wait"};
    for (int i = 0; i < 2; i++) {
        const char *out, *mark = marked_variable();
        law_args args = law_train("random", &out), all = {.n = 0};
        law_add_all(&args, "--max_iters=1000000", "--keep=2");
        law_add_all(&all, "sh", "-c");
        law_add(&all, starts[i], law_words(&args));
        lks_test_child launcher =
            lks_test_start(all.argv, (const char *const[]){run_id, mark, NULL});
        lks_test_until(lks_test_exists(lks_test_text("%s/latest", out)));
        assert_int_equal(kill(launcher.pid, SIGKILL), 0);
        lks_test_wait(&launcher, 10);
        marked_assert_gone(mark, 20);
        assert_contains(lks_test_read(lks_test_text("%s/train.log", out), NULL),
                        "stopped by signal 1 (SIGHUP)", "to continue: ");
    }
}

/* A rank fails before it can meet the others: another one names it and its reason. In jobs of three
 * ranks the third one is late. */
TEST(test_fails_early)
{
    static const char config[] = "there is no config file /nowhere/x.conf";
    static const struct {
        const char *setting, *says;
        int code;
        bool hosts; /* of one rank each */
        int n;
    } rows[] = {
        {"/nowhere/x.conf", config, 2, false, 2},
        {"--nonsense=1", "--nonsense=1: there is no setting", 2, false, 2},
        {"--backend=shm", "it reaches the ranks of one host only", 1, true, 2},
        {"/nowhere/x.conf", config, 2, false, 3},
        {"/nowhere/x.conf", config, 2, true, 3},
    };
    for (size_t i = 0; i < 2 * sizeof rows / sizeof rows[0]; i++) {
        const int failing = (int)i % 2, n = rows[i / 2].n;
        const bool hosts = rows[i / 2].hosts;
        const struct environment e = {
            {"RANK=%d", lks_test_text("WORLD_SIZE=%d", n), hosts ? "LOCAL_RANK=0" : "LOCAL_RANK=%d",
             lks_test_text("LOCAL_WORLD_SIZE=%d", hosts ? 1 : n), "MASTER_ADDR=127.0.0.1",
             lks_test_text("MASTER_PORT=%d", lks_test_free_port())}};
        lks_test_child ranks[2];
        if (hosts)
            lks_test_need_gloo();
        for (int k = 1; k >= 0; k--) { /* the failing one comes last */
            const int r = k == 1 ? 1 - failing : failing;
            const char *out;
            law_args args = law_train("random", &out);
            if (r == failing)
                law_add(&args, "%s", rows[i / 2].setting);
            ranks[r] = start(&args, &e, r);
        }
        assert_exits(rows[i / 2].code, lks_test_wait(&ranks[failing], 30),
                     lks_test_text("lockstep train: rank %d: ", failing), rows[i / 2].says);
        assert_exits(1, lks_test_wait(&ranks[1 - failing], 30), hosts ? ": on host " : "",
                     lks_test_text("rank %d failed: ", failing), rows[i / 2].says);
    }
}

/* A rank that waits for one that never starts says so while it waits, and in its last message. The
 * two belong to different jobs. */
TEST(test_absent)
{
    static const struct environment left = {{"RANK=%d", "WORLD_SIZE=2", "LOCAL_RANK=%d",
                                             "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                                             "MASTER_PORT=2000%d", run_id}};
    lks_test_child ranks[2];
    for (int r = 0; r < 2; r++) {
        const char *out;
        law_args args = law_train("random", &out);
        law_add(&args, "--timeout=6");
        ranks[r] = start(&args, &left, r);
    }
    for (int r = 0; r < 2; r++) {
        assert_exits(1, lks_test_wait(&ranks[r], 20),
                     r == 0 ? "local rank 1 of 2 on this host has not attached"
                            : "local rank 0 of this host has offered no",
                     lks_test_text("local rank %d of 2 waits up to 6 s for local "
                                   "rank %d to start",
                                   r, 1 - r),
                     "(RANK and WORLD_SIZE in the environment ask for it; `lockstep "
                     "run` starts all ranks)",
                     "start all ranks with `lockstep run`, or by hand with one "
                     "MASTER_PORT for all; for a single process unset RANK");
    }
}

/* The first rank can't serve another one: it says why, at once. A signal ends the other one's wait.
 */
TEST(test_no_room)
{
    const struct environment of = {
        {"RANK=%d", "WORLD_SIZE=2", "LOCAL_RANK=%d", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
         lks_test_text("MASTER_PORT=%d", lks_test_free_port()), "LOCKSTEP_FAULT=accept:1:ENOMEM"}};
    const char *out;
    law_args args = law_train("random", &out);
    lks_test_child ranks[2];
    for (int r = 1; r >= 0; r--)
        ranks[r] = start(&args, &of, r);
    assert_exits(1, lks_test_wait(&ranks[0], 30),
                 "can't share memory with this host's other ranks: Cannot allocate memory");
    assert_int_equal(kill(ranks[1].pid, SIGTERM), 0);
    assert_exits(128 + SIGTERM, lks_test_wait(&ranks[1], 30), "stopped by signal");
}

/* A rank that is started twice doesn't stand for another. The one that waits with rank 0 doesn't
 * blame rank 0. */
TEST(test_twice)
{
    const struct environment of = {{"RANK=%d", "WORLD_SIZE=3", "LOCAL_RANK=%d",
                                    "LOCAL_WORLD_SIZE=3", "MASTER_ADDR=127.0.0.1",
                                    lks_test_text("MASTER_PORT=%d", lks_test_free_port())}};
    const char *out;
    law_args args = law_train("random", &out);
    law_add_line(&args, "--allow_uneven --timeout=%g", 1.5 * lks_test_patience());
    lks_test_child ranks[3];
    for (int i = 0; i < 3; i++)
        ranks[i] = start(&args, &of, i > 0);
    lks_test_result results[3];
    for (int i = 0; i < 3; i++)
        results[i] = lks_test_wait(&ranks[i], 30);
    assert_exits(1, results[0], "local rank 2 of 3 on this host has not attached");
    assert_true(results[1].exit_code != 0 && results[2].exit_code != 0);
    const int waited = strstr(results[1].err, "another process has joined") == NULL ? 1 : 2;
    assert_contains(results[waited].err, "local rank 2 of 3 on this host has not attached");
    assert_contains(results[3 - waited].err, "another process has joined as local rank 1");
}

/* A rank that counts another number of ranks on this host isn't taken for one of ours. */
TEST(test_another_number)
{
    static const struct environment of[2] = {
        {{"RANK=%d", "WORLD_SIZE=2", "LOCAL_RANK=%d", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
          run_id}},
        {{"RANK=%d", "WORLD_SIZE=3", "LOCAL_RANK=%d", "LOCAL_WORLD_SIZE=3", "MASTER_ADDR=127.0.0.1",
          run_id}}};
    const char *out;
    law_args args = law_train("random", &out);
    law_add_line(&args, "--allow_uneven --timeout=%g", 2 * lks_test_patience());
    lks_test_child ranks[2];
    for (int r = 1; r >= 0; r--)
        ranks[r] = start(&args, &of[r], r);
    lks_test_result results[2];
    for (int r = 0; r < 2; r++)
        results[r] = lks_test_wait(&ranks[r], 20);
    assert_exits(1, results[0], "local rank 1 of 2 on this host has not attached",
                 lks_test_text("lockstep: process %d counts 3 ranks on this "
                               "host, and local rank 0 counts 2: WORLD_SIZE and",
                               (int)ranks[1].pid));
    assert_int_not_equal(results[1].exit_code, 0);
    assert_false(lks_test_exists(lks_test_text("%s/metrics.jsonl", out)));
}

/* The second rank of a host counts more ranks elsewhere, and chooses another backend for them. */
TEST(test_other_world)
{
    static const char *const sizes[] = {"WORLD_SIZE=2", "WORLD_SIZE=3"};
    const char *port = lks_test_text("MASTER_PORT=%d", lks_test_free_port()), *out;
    lks_test_child ranks[2];
    lks_test_need_gloo();
    for (int r = 0; r < 2; r++) {
        const struct environment e = {{"RANK=%d", sizes[r], "LOCAL_RANK=%d", "LOCAL_WORLD_SIZE=2",
                                       "MASTER_ADDR=127.0.0.1", port}};
        const law_args args = law_train("random", &out);
        ranks[r] = start(&args, &e, r);
    }
    for (int r = 0; r < 2; r++) {
        assert_exits(1, lks_test_wait(&ranks[r], 30),
                     "WORLD_SIZE differs between ranks: rank 0 (host ",
                     ") has 3: it must be the same everywhere");
    }
}

/* A rank with another token can't end the job, but is named at once. */
TEST(test_other_token)
{
    static const char *const tokens[] = {"LOCKSTEP_TOKEN=ours", "LOCKSTEP_TOKEN=theirs"};
    const char *port = lks_test_text("MASTER_PORT=%d", lks_test_free_port()), *out;
    lks_test_child ranks[2];
    lks_test_need_gloo();
    for (int r = 1; r >= 0; r--) { /* rank 1 waits for rank 0, which serves the store */
        const struct environment e = {{"RANK=%d", "WORLD_SIZE=2", "LOCAL_RANK=0",
                                       "LOCAL_WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", port,
                                       tokens[r]}};
        law_args args = law_train("random", &out);
        if (r == 0)
            law_add(&args, "--timeout=%g", 5 * lks_test_patience());
        ranks[r] = start(&args, &e, r);
    }
    assert_exits(2, lks_test_wait(&ranks[1], 30), "has another token than this process");
    assert_exits(1, lks_test_wait(&ranks[0], 30),
                 "lockstep: rank 0 refused a process from 127.0.0.1: it has another "
                 "LOCKSTEP_TOKEN",
                 "host 1 of 2 has not joined within");
}

/* --- reading them ------------------------------------------------------------------------- */

struct reading {
    const char *vars[MAX_VARS];
    lks_world world; /* world_size 0: refused */
    const char *says;
};

TEST(test_reading)
{
    static const struct reading cases[] = {
        {{NULL}, {0, 1, 0, 1}, NULL},
        {{"OMPI_COMM_WORLD_RANK=5", "OMPI_COMM_WORLD_SIZE=6", "OMPI_COMM_WORLD_LOCAL_RANK=2",
          "OMPI_COMM_WORLD_LOCAL_SIZE=3"},
         {5, 6, 2, 3},
         NULL},
        {{"RANK=1", "WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=5", "OMPI_COMM_WORLD_SIZE=6",
          "OMPI_COMM_WORLD_LOCAL_RANK=2", "OMPI_COMM_WORLD_LOCAL_SIZE=3"},
         {1, 2, 1, 2},
         NULL},
        {{"SLURM_PROCID=6", "SLURM_STEP_NUM_TASKS=8", "SLURM_LOCALID=0", "SLURM_NODEID=3",
          "SLURM_STEP_TASKS_PER_NODE=2(x3),1(x2)"},
         {6, 8, 0, 1},
         NULL},
        {{"SLURM_PROCID=6", "SLURM_STEP_NUM_TASKS=8", "SLURM_LOCALID=0", "SLURM_NODEID=9",
          "SLURM_STEP_TASKS_PER_NODE=2(x3),1(x2)"},
         {0, 0, 0, 0},
         "node 9"},
        {{"SLURM_PROCID=6", "SLURM_STEP_NUM_TASKS=8", "SLURM_LOCALID=0", "SLURM_NODEID=0",
          "SLURM_STEP_TASKS_PER_NODE=2(x99999999999999999999"},
         {0, 0, 0, 0},
         "SLURM_STEP_TASKS_PER_NODE"},
        /* a batch script is no step */
        {{"SLURM_PROCID=0", "SLURM_NTASKS=8", "SLURM_LOCALID=0"}, {0, 1, 0, 1}, NULL},
        /* a single rank needs nothing about hosts */
        {{"PMI_RANK=0", "PMI_SIZE=1"}, {0, 1, 0, 1}, NULL},
        {{"PMI_RANK=1", "PMI_SIZE=2"}, {0, 0, 0, 0}, "MPI_LOCALRANKID is not"},
        {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=1"},
         {0, 0, 0, 0},
         "OMPI_COMM_WORLD_LOCAL_SIZE is not"},
        {{"SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=8"}, {0, 0, 0, 0}, "SLURM_LOCALID is not"},
        /* srun --mpi=pmi2 */
        {{"PMI_RANK=1", "PMI_SIZE=2", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_LOCALID=1",
          "SLURM_STEP_TASKS_PER_NODE=2"},
         {1, 2, 1, 2},
         NULL},
        {{"OMPI_COMM_WORLD_RANK=1"}, {0, 0, 0, 0}, "WORLD_RANK is set, but OMPI_COMM_WORLD_SIZE "},
        {{"PMI_SIZE=2"}, {0, 0, 0, 0}, "PMI_SIZE is set, but PMI_RANK is not"},
        {{"SLURM_STEP_NUM_TASKS=2"}, {0, 0, 0, 0}, "NUM_TASKS is set, but SLURM_PROCID is not"},
        {{"LOCAL_RANK=1"}, {0, 0, 0, 0}, "LOCAL_RANK is 1, but RANK is not set"},
        {{"LOCAL_WORLD_SIZE=2"}, {0, 0, 0, 0}, "LOCAL_WORLD_SIZE is 2, but RANK is not set"},
        {{"WORLD_SIZE=1", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1"}, {0, 1, 0, 1}, NULL},
        {{"RANK=0"}, {0, 0, 0, 0}, "; without one, unset RANK"},
        {{"RANK=0", "WORLD_SIZE=1", "MASTER_PORT=abc"}, {0, 0, 0, 0}, "MASTER_PORT=abc"},
        {{"PMI_RANK=x", "PMI_SIZE=2", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=2"},
         {0, 0, 0, 0},
         "PMI_RANK=x"},
        {{"PMI_RANK=2", "PMI_SIZE=2", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=2"},
         {0, 0, 0, 0},
         "count from 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lks_world w = {-1, -1, -1, -1};
        for (int v = 0; v < MAX_VARS && cases[i].vars[v] != NULL; v++)
            putenv((char *)(uintptr_t)cases[i].vars[v]);
        lks_status st = lks_world_from_env(&w);
        for (int v = 0; v < MAX_VARS && cases[i].vars[v] != NULL; v++) {
            const char *var = cases[i].vars[v];
            unsetenv(lks_test_text("%.*s", (int)strcspn(var, "="), var));
        }
        if (cases[i].says != NULL) {
            assert_fails(LKS_ERR_CONFIG, st, cases[i].says);
            continue;
        }
        assert_int_equal(st, LKS_OK);
        assert_memory_equal(&w, &cases[i].world, sizeof w);
    }
}

/* --- the launchers themselves ------------------------------------------------------------- */

/* `launcher` (shell words) must exist; it starts three ranks. */
static void check_launcher(const char *lacks, const char *needs, const char *launcher)
{
    if (system(lks_test_text("command -v %s >/dev/null 2>&1", needs)) != 0)
        lks_test_lacks(lacks, lks_test_text("there is no %s", needs));
    const char *out;
    law_args args = law_train("random", &out), all = {.n = 0};
    law_add_all(&args, "--allow_uneven", "--threads=1");
    law_add_shell(&all, &args, "exec %s \"$0\" \"$@\"", launcher);
    static const char *const env[] = {"OMPI_ALLOW_RUN_AS_ROOT=1",
                                      "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", NULL};
    assert_exits(0, lks_test_run(all.argv, env, 100));
    law_assert_same(out, alone);
    const json_t *lines = lks_test_record(out, "host");
    assert_int_equal(lks_test_number(lines, "0.world_size"), 3);
    assert_string_equal(lks_test_string(lines, "0.backend"), "shm");
}

TEST(test_in_mpirun)
{
    check_launcher("mpi", "mpirun", "mpirun -n 3 --oversubscribe");
}

TEST(test_in_mpich)
{
    check_launcher("mpich", "mpiexec.hydra", "mpiexec.hydra -n 3");
}

TEST(test_in_torchrun)
{
    check_launcher("pytorch", "torchrun", "torchrun --standalone --no-python --nproc-per-node=3");
}

TEST(test_in_srun)
{
    check_launcher("slurm", "srun", "srun -n 3 --overcommit");
}

int main(int argc, char **argv)
{
    /* Those that need a launcher which may be missing are CTest programs of their own, which
     * skip. */
    if (argc == 2)
        lks_test_only(lks_test_text("test_in_%s", argv[1]));
    else
        lks_test_part(false, "test_in_*");
    return lks_test_run_all(train_alone, NULL);
}
