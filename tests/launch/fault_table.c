/* The fault table: what happens to a training run when something is killed or stopped in each of
 * its phases. For every fault: how long until the last rank is gone, whether the culprit was named,
 * what was left behind, and whether the run, started anew or resumed, has the bytes of one that
 * nobody disturbed.
 *
 *     launch_faults [--runs=N] [--seed=S]
 *
 * The phase is seen in the ranks' shared memory, so a fault strikes where the table says. */
#include "laws/laws.h"
#include "laws/marked.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/sys.h"
#include "comm/shm/segment.h"

enum { MAX_RANKS = 4, MAX_TRIES = 40 };

static const struct fault {
    const char *name;
    int signal;
    bool launcher; /* it strikes the launcher */
} faults[] = {{"SIGKILL", SIGKILL, false},
              {"SIGSEGV", SIGSEGV, false},
              {"SIGSTOP", SIGSTOP, false},
              {"launcher SIGKILL", SIGKILL, true}};

/* What the victim is doing; "reduction" is a wait for the others within forward and backward. */
static const struct phase {
    const char *name, *note;
    bool waiting, rank_0;
} phases[] = {{"start", "set-up", false, false},
              {"forward, backward", "forward and backward", false, false},
              {"reduction", "forward and backward", true, false},
              {"evaluation", "evaluation", false, false},
              {"checkpoint", "checkpoint", false, true}};

enum { N_FAULTS = sizeof faults / sizeof faults[0], N_PHASES = sizeof phases / sizeof phases[0] };

static struct {
    int runs, named, missed;
    double longest_s;
} table[N_FAULTS][N_PHASES];

static int n_runs = N_FAULTS; /* one of each */
static unsigned seed = 1;
static const char *whole; /* output of a run that nobody disturbed */

/* --- looking into a run ------------------------------------------------------------------- */

/* The ranks of a launch, by their environment; their number. */
static int find_ranks(const char *mark, pid_t ranks[MAX_RANKS], char segment[64])
{
    pid_t pids[64];
    int found = 0, n = marked_processes(mark, pids, 64);
    for (int i = 0; i < n && i < 64; i++) {
        char *entry = NULL, env[64] = "";
        size_t cap = 0;
        int rank = -1;
        FILE *f = fopen(lks_test_text("/proc/%d/environ", (int)pids[i]), "re");
        while (f != NULL && getdelim(&entry, &cap, 0, f) > 0) {
            if (strncmp(entry, "RANK=", 5) == 0)
                rank = atoi(entry + 5);
            if (strncmp(entry, LKS__SEGMENT_ENV "=", sizeof LKS__SEGMENT_ENV) == 0)
                snprintf(env, sizeof env, "%s", entry + sizeof LKS__SEGMENT_ENV);
        }
        free(entry);
        if (f != NULL)
            fclose(f);
        if (rank >= 0 && rank < MAX_RANKS && env[0] != '\0') {
            ranks[rank] = pids[i];
            snprintf(segment, 64, "%s", env);
            found++;
        }
    }
    return found;
}

/* The launch's shared memory, or NULL where it is over already. */
static lks__segment *look_inside(pid_t rank, int W, const char *env)
{
    lks__segment *s = NULL;
    int fd = open(lks_test_text("/proc/%d/fd/%d", (int)rank, atoi(env)), O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    setenv(LKS__SEGMENT_ENV, lks_test_text("%d%s", fd, strchr(env, ':')), 1);
    if (lks__segment_inherit(W, &s) != LKS_OK)
        close(fd);
    unsetenv(LKS__SEGMENT_ENV);
    return s;
}

static bool is_gone(pid_t pid)
{
    char state = lks__sys_process_state(pid);
    return state == 0 || state == 'Z' || state == 'X'; /* a zombie holds nothing any more */
}

/* Wait until the victim is in that phase, and strike; false: the run has ended before. */
static bool strike(lks__segment *s, const struct fault *f, const struct phase *p, pid_t target,
                   int victim, uint64_t from_step)
{
    for (double until = lks__sys_now() + 30; lks__sys_now() < until;) {
        lks__rank_status now;
        lks__segment_status(s, victim, &now);
        if (now.state == LKS__RANK_LEFT || is_gone(target))
            return false;
        if (strcmp(now.phase, p->note) == 0 && now.waiting == p->waiting && now.step >= from_step)
            return kill(target, f->signal) == 0;
    }
    return false;
}

/* --- one run ------------------------------------------------------------------------------ */

/* Seconds until none of them is there any more. */
static double until_gone(const pid_t *pids, int n)
{
    double start = lks__sys_now();
    for (int i = 0; i < n; i++)
        while (!is_gone(pids[i]) && lks__sys_now() - start < 60)
            usleep(2000);
    return lks__sys_now() - start;
}

/* One try at a cell of the table; false where the run was too fast for it. */
static bool try_cell(int f, int p, int run)
{
    const struct fault *fault = &faults[f];
    const char *out, *mark = marked_variable();
    int W = 2 + rand_r(&seed) % 3, victim = phases[p].rank_0 ? 0 : rand_r(&seed) % W;
    int other_W = 1 + rand_r(&seed) % 4;
    uint64_t from = phases[p].note[0] == 's' ? 0 : (uint64_t)(rand_r(&seed) % 8);
    bool again = run % 2 == 1 && !fault->launcher;
    pid_t ranks[MAX_RANKS] = {0};
    char env[64] = "";
    law_args args = law_train("random", &out);
    law_add(&args, "--nproc_per_node=%d", W);
    law_add(&args, "--allow_uneven");
    law_add(&args, "--threads=1");
    law_add(&args, "--timeout=2");
    law_add(&args, "--max_restarts=%d", again);
    lks_test_child child = lks_test_start(args.argv, (const char *const[]){mark, NULL});
    while (find_ranks(mark, ranks, env) < W && !is_gone(child.pid))
        usleep(500);
    lks__segment *s = look_inside(ranks[0], W, env);
    bool struck = s != NULL && strike(s, fault, &phases[p],
                                      fault->launcher ? child.pid : ranks[victim], victim, from);
    lks__segment_close(s);
    double seconds = struck ? until_gone(ranks, W) : 0;
    lks_test_result r = lks_test_wait(&child, 120);
    assert_false(r.timed_out);
    marked_assert_gone(mark, 2);
    if (!struck || (r.exit_code == 0 && !again)) /* it came too late to do anything */
        return false;
    table[f][p].runs++;
    bool named = fault->launcher || strstr(r.err, lks_test_text("rank %d (pid %d", victim,
                                                                (int)ranks[victim])) != NULL;
    table[f][p].named += named;
    if (!named)
        print_message("not named: %s in %s, rank %d (pid %d) of %d: %s\n", fault->name,
                      phases[p].name, victim, (int)ranks[victim], W, r.err);
    if (seconds > table[f][p].longest_s)
        table[f][p].longest_s = seconds;
    if (fault->launcher)
        assert_int_equal(r.signal, SIGKILL);
    else if (again)
        assert_int_equal(r.exit_code, 0);
    else if (fault->signal != SIGSTOP)
        assert_int_equal(r.exit_code, 128 + fault->signal);
    else
        assert_true(r.exit_code > 0);
    if (!again && law_count_checkpoints(out) > 0)
        law_resume("random", out, lks_test_text("--nproc_per_node=%d", other_W), "--allow_uneven");
    else if (!again)
        return true; /* nothing to resume from */
    law_assert_same(out, whole);
    return true;
}

/* --- all ---------------------------------------------------------------------------------- */

static void test_table(void **state)
{
    unsigned first = seed;
    int named = 0, runs = 0;
    whole = law_output("random", "--threads=1");
    for (int run = 0; run < n_runs; run++) {
        /* Cells in turn, from one that the seed chooses. */
        int cell = (int)((first * 7 + (unsigned)run) % (N_FAULTS * N_PHASES));
        int f = cell % N_FAULTS, p = cell / N_FAULTS, tries = 0;
        while (tries < MAX_TRIES && !try_cell(f, p, run / (N_FAULTS * N_PHASES) + run))
            tries++;
        table[f][p].missed += tries == MAX_TRIES;
    }
    printf("seed %u\n%-18s%-19s%6s%7s%7s  %s\n", first, "fault", "in", "runs", "named", "missed",
           "longest until all ranks were gone");
    for (int f = 0; f < N_FAULTS; f++)
        for (int p = 0; p < N_PHASES; p++) {
            if (table[f][p].runs + table[f][p].missed == 0)
                continue;
            printf("%-18s%-19s%6d%7d%7d  %.2f s\n", faults[f].name, phases[p].name,
                   table[f][p].runs, table[f][p].named, table[f][p].missed, table[f][p].longest_s);
            named += table[f][p].named;
            runs += table[f][p].runs;
        }
    printf("%d of %d named; nothing was left behind, and all runs ended with the right bytes\n",
           named, runs);
    assert_true(runs > 0);
    assert_true(named * 100 >= runs * 99);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table)};
    for (int i = 1; i < argc; i++)
        if (sscanf(argv[i], "--runs=%d", &n_runs) != 1 &&
            sscanf(argv[i], "--seed=%u", &seed) != 1) {
            fprintf(stderr, "usage: %s [--runs=N] [--seed=S]\n", argv[0]);
            return 2;
        }
    return lks_test_exit(cmocka_run_group_tests(tests, NULL, NULL));
}
