/* The fault table: what happens to a training run when something is killed, stopped, full or cut in
 * each of its phases. For every fault: the time until everything has ended, the exit code, whether
 * the cause was named, and whether the run, restarted or resumed, has the bytes of an undisturbed
 * one. Left-over processes and files fail it at once.
 *
 *     launch_faults [--runs=N] [--seed=S] [--only=RUN]
 *
 * The phase is read from the ranks' shared memory, so a fault hits the phase that the table
 * names. */
#include "laws/laws.h"
#include "laws/marked.h"
#include "strike.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/system/sys.h"

enum { MAX_TRIES = 40, MAX_RUNS = 4096, MAX_FAULTS = 16 };

/* What the victim is doing; "reduction" is a wait for the others within forward and backward. */
static const struct phase {
    const char *name, *note;
    bool waiting, rank_0;
} phases[] = {{"start", "set-up", false, false},
              {"forward", "forward and backward", false, false},
              {"reduction", "forward and backward", true, false},
              {"evaluation", "evaluation", false, false},
              {"checkpoint", "checkpoint", false, true}};

enum { N_PHASES = sizeof phases / sizeof phases[0] };

/* The result of one run. */
struct outcome {
    double seconds; /* from the fault to the end of all processes */
    int exit_code;  /* of the launch; -SIGKILL if it was killed itself */
    bool named, again;
};

static struct row {
    int runs[N_PHASES], missed, named, n;
    double seconds[MAX_RUNS];
    char codes[64];
} table[MAX_FAULTS];

static int n_runs, only = -1;
static unsigned seed = 1;
static const char *whole; /* output of an undisturbed run */

/* --- one run ------------------------------------------------------------------------------ */

static int dice(unsigned *state, int n)
{
    return (int)((unsigned)rand_r(state) % (unsigned)n);
}

/* Start the job on its nodes; `port` is the first node's. */
static void start(strike_run *r, const law_args *train, int port)
{
    const char *env[] = {r->mark, lks_test_preload(LKS_TEST_STRUCK),
                         "LOCKSTEP_TOKEN=0123456789abcdef0123456789abcdef",
                         lks_test_text("TMPDIR=%s", lks_test_folder()), NULL};
    if (r->n_nodes == 1 && r->fault->kind != STRIKE_PORT) {
        r->nodes[0] = lks_test_start(train->argv, env);
        return;
    }
    for (int node = 0; node < r->n_nodes; node++) {
        law_args all = {.n = 0};
        law_add_words(&all, r->n_nodes > 1 ? strike_host(node) : NULL);
        law_add(&all, "%s", LKS_TEST_TOOL);
        law_add_line(&all, "run --nnodes=2 --node-rank=%d", node);
        law_add(&all, "--master-addr=%s", r->n_nodes > 1 ? "10.77.0.1" : "127.0.0.1");
        law_add_line(&all, "--master-port=%d --nproc-per-node=2", port);
        law_add(&all, "%s", LKS_TEST_TOOL);
        law_add_words(&all, train->argv + 1);
        r->nodes[node] = lks_test_start(all.argv, env);
    }
}

/* Wait until the victim is in that phase, then make the fault; false if the run ended before. */
static bool wait_and_strike(const strike_run *r, const struct phase *p, int victim,
                            uint64_t from_step, double *at_p)
{
    const struct strike_rank *rank = &r->ranks[victim];
    lks__segment *s = strike_look_inside(rank, r->W / r->n_nodes);
    bool struck = false, ended = s == NULL;
    for (double until = lks__sys_now() + 30 * lks_test_patience();
         !struck && !ended && lks__sys_now() < until;) {
        lks__rank_status now;
        lks__segment_status(s, rank->local, &now);
        if (now.state == LKS__RANK_LEFT || strike_is_gone(rank->pid)) {
            ended = true;
        } else if (strcmp(now.phase, p->note) == 0 && now.waiting == p->waiting &&
                   now.step >= from_step) {
            *at_p = lks__sys_now();
            struck = strike(r, victim);
            ended = !struck;
        }
    }
    lks__segment_close(s);
    return struck;
}

static void wait_until_gone(const strike_run *r)
{
    double start = lks__sys_now();
    for (int i = 0; i < r->W; i++)
        while (!strike_is_gone(r->ranks[i].pid) &&
               lks__sys_now() - start < 60 * lks_test_patience())
            usleep(2000);
}

/* Does the last output of the launchers name the victim? */
static bool is_named(const strike_run *r, const lks_test_result *results, int victim)
{
    const char *rank = lks_test_text("rank %d (pid %d", victim, (int)r->ranks[victim].pid);
    const char *first = results[0].err, *second = r->n_nodes > 1 ? results[1].err : "";
    bool first_lost = strstr(second, "the coordinator's node is gone") != NULL;
    bool other_lost = strstr(first, "node 1 (host ") != NULL && strstr(first, "is gone") != NULL;
    bool first_cut = strstr(first, "lost its connection to all other nodes: its network") != NULL;
    bool other_cut = strstr(second, "lost its connection to the coordinator's node: its") != NULL;
    switch (r->fault->kind) {
    case STRIKE_CLOCK:
    case STRIKE_LAUNCHER:
        return true; /* no rank is to be named, or no launcher is left */
    case STRIKE_DISK:
        return strstr(first, rank) != NULL && strstr(first, "No space left on device") != NULL;
    case STRIKE_MEMORY:
        return strstr(first, rank) != NULL && strstr(first, "lack of memory") != NULL;
    case STRIKE_NODE:
        return r->fault->arg == 0 ? first_lost : other_lost;
    case STRIKE_CABLE:
        return r->fault->arg > 0 || (first_lost && first_cut) || (other_cut && other_lost);
    default:
        return strstr(first, rank) != NULL;
    }
}

/* The node whose launcher remains after the fault: the first or the other. */
static int survivor(const strike_run *r)
{
    return r->fault->kind == STRIKE_NODE && r->fault->arg == 0;
}

/* Resume the run to its end, unless it has ended; its bytes must be those of `whole`. */
static void go_on(const strike_run *r, bool finished, const char *ranks)
{
    if (!finished &&
        law_count_checkpoints(r->out) == 0) { /* from the start; its files stay in the folder */
        law_resume("random", r->out, "--init_from=scratch", ranks, "--allow_uneven");
        law_assert_same_checkpoints(r->out, whole);
        return;
    }
    if (!finished)
        law_resume("random", r->out, ranks, "--allow_uneven");
    law_assert_same(r->out, whole);
}

/* One try at a cell of the table; false if the run was too fast for it. */
static bool try_cell(strike_run *r, const struct phase *p, unsigned *dice_state,
                     struct outcome *outcome)
{
    const strike_fault *f = r->fault;
    bool hosts = f->kind == STRIKE_NODE || f->kind == STRIKE_CABLE;
    bool killed = f->kind == STRIKE_LAUNCHER;
    r->n_nodes = hosts ? 2 : 1;
    r->W = hosts ? 4 : 2 + dice(dice_state, 3);
    r->mark = marked_variable();
    int victim = p->rank_0 || f->kind == STRIKE_DISK ? 0 : dice(dice_state, r->W);
    int other_W = 1 + dice(dice_state, 4);
    uint64_t from = p->note[0] == 's' ? 0 : (uint64_t)dice(dice_state, 8);
    /* If there is a checkpoint to go on from, and a restart doesn't hide that it was needed. */
    bool can_restart = !hosts && !killed && f->exit_code != 0 && f->kind != STRIKE_DISK;
    bool again = dice(dice_state, 2) == 1 && can_restart;
    double at = 0;
    law_args args = law_train("random", &r->out);
    if (!hosts)
        law_add(&args, "--nproc_per_node=%d", r->W);
    law_add_all(&args, "--allow_uneven", "--threads=1");
    law_add(&args, "--timeout=%g", (hosts ? 10 : 2) * lks_test_patience());
    if (again)
        law_add(&args, "--max_restarts=1");
    strike_before(r);
    start(r, &args, 29500);
    while (strike_find_ranks(r) < r->W && !strike_is_gone(r->nodes[r->n_nodes - 1].pid))
        usleep(2000);
    bool struck = wait_and_strike(r, p, victim, from, &at);
    if (struck && f->exit_code != 0)
        wait_until_gone(r);
    double gone = lks__sys_now();
    lks_test_result results[STRIKE_NODES];
    for (int node = 0; node < r->n_nodes; node++)
        results[node] = lks_test_wait(&r->nodes[node], 120);
    marked_assert_gone(r->mark, 2);
    strike_heal(r);
    const lks_test_result *last = &results[survivor(r)];
    /* it came too late to have an effect */
    if (!struck || (f->exit_code != 0 && last->exit_code == 0 && !again)) {
        strike_after(r);
        return false;
    }
    *outcome = (struct outcome){.seconds = (again ? gone : lks__sys_now()) - at,
                                .exit_code = killed ? -last->signal : last->exit_code,
                                .named = is_named(r, results, victim),
                                .again = again};
    int want = again ? 0 : killed ? -SIGKILL : f->exit_code;
    if (!outcome->named || (want == -1 ? outcome->exit_code <= 0 : outcome->exit_code != want))
        print_message("exit code %d, rank %d (pid %d) of %d:\n%s\n%s\n", outcome->exit_code, victim,
                      (int)r->ranks[victim].pid, r->W, results[0].err,
                      r->n_nodes > 1 ? results[1].err : "");
    if (want == -1)
        assert_true(outcome->exit_code > 0);
    else
        assert_int_equal(outcome->exit_code, want);
    go_on(r, again || f->exit_code == 0, lks_test_text("--nproc_per_node=%d", other_W));
    strike_after(r);
    return true;
}

/* Another program listens on the job's port: found before any rank is started. */
static void try_port(strike_run *r, struct outcome *outcome)
{
    int port;
    const int fd = lks_test_bind(&port);
    assert_int_equal(listen(fd, 1), 0);
    r->mark = marked_variable();
    r->n_nodes = 1;
    law_args args = law_train("random", &r->out);
    double at = lks__sys_now();
    start(r, &args, port);
    lks_test_result result = lks_test_wait(&r->nodes[0], 20);
    lks__sys_close(fd);
    marked_assert_gone(r->mark, 2);
    *outcome = (struct outcome){lks__sys_now() - at, result.exit_code, false, false};
    outcome->named =
        strstr(result.err,
               lks_test_text("can't listen on 127.0.0.1:%d: Address already in use", port)) != NULL;
    assert_int_equal(result.exit_code, 1);
    assert_int_equal(lks_test_count_files(r->out), 0);
}

/* --- all ---------------------------------------------------------------------------------- */

static void add_code(char codes[64], int code, bool again)
{
    const char *text = again ? "0 (restart)" : code == -9 ? "SIGKILL" : lks_test_text("%d", code);
    if (strstr(codes, text) != NULL)
        return;
    size_t n = strlen(codes);
    snprintf(codes + n, 64 - n, "%s%s", n > 0 ? ", " : "", text);
}

static void note(int fault, int phase, const struct outcome *o)
{
    struct row *row = &table[fault];
    row->runs[phase]++;
    row->named += o->named;
    row->seconds[row->n++] = o->seconds;
    add_code(row->codes, o->exit_code, o->again);
}

static void run_one(int run)
{
    /* Cells in turn, starting at one that the seed chooses; random choices depend only on seed and
     * run. */
    int n_faults = strike_n_faults, cell = (int)(seed * 7 % (unsigned)N_PHASES);
    int f = run % n_faults, p = (run / n_faults + run + cell) % N_PHASES, tries = 0;
    unsigned state = seed * 1000003u + (unsigned)run;
    strike_run r = {.fault = &strike_faults[f]};
    struct outcome o = {0};
    if (strike_missing(r.fault) != NULL)
        return;
    if (r.fault->kind == STRIKE_PORT)
        try_port(&r, &o);
    else
        while (tries < MAX_TRIES && !try_cell(&r, &phases[p], &state, &o))
            tries++;
    if (r.fault->kind == STRIKE_PORT)
        p = 0;
    table[f].missed += tries == MAX_TRIES;
    if (tries == MAX_TRIES)
        return;
    note(f, p, &o);
    printf("run %d: %s, %s: %.2f s, exit code %d%s\n", run, r.fault->name, phases[p].name,
           o.seconds, o.exit_code, o.named ? "" : ", not named");
    fflush(stdout);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_row(const char *name, struct row *row)
{
    char runs[64] = "";
    for (int p = 0; p < N_PHASES; p++)
        snprintf(runs + strlen(runs), sizeof runs - strlen(runs), "%s%d", p > 0 ? " " : "",
                 row->runs[p]);
    qsort(row->seconds, (size_t)row->n, sizeof *row->seconds, by_size);
    printf("%-20s  %-14s  %6.2f  %6.2f  %-20s  %3d/%-3d  %6d\n", name, runs,
           row->n > 0 ? row->seconds[row->n / 2] : 0, row->n > 0 ? row->seconds[row->n - 1] : 0,
           row->codes, row->named, row->n, row->missed);
}

static int close_all(void **state)
{
    strike_close();
    return 0;
}

TEST_WITH(test_table, NULL, close_all)
{
    int named = 0, runs = 0;
    strike_open();
    printf("seed %u\n", seed);
    whole = law_output("random", "--threads=1");
    for (int run = only < 0 ? 0 : only; run < n_runs && (only < 0 || run == only); run++)
        run_one(run);
    printf("\nruns: at start, in forward and backward, reduction, evaluation, checkpoint; seconds: "
           "from the fault to the end of all\n%-20s  %-14s  %6s  %6s  %-20s  %-7s  %s\n",
           "fault", "runs", "median", "most", "exit code", "named", "missed");
    for (int f = 0; f < strike_n_faults; f++) {
        const char *missing = strike_missing(&strike_faults[f]);
        if (missing != NULL)
            printf("%-20s  skipped: %s\n", strike_faults[f].name, missing);
        else
            print_row(strike_faults[f].name, &table[f]);
        named += table[f].named;
        runs += table[f].n;
    }
    printf("%d of %d named; nothing was left behind, and what went on or was resumed has the right "
           "bytes\n",
           named, runs);
    assert_true(runs > 0);
    assert_true(named * 100 >= runs * 99);
}

int main(int argc, char **argv)
{
    n_runs = strike_n_faults; /* one of each */
    for (int i = 1; i < argc; i++)
        if (sscanf(argv[i], "--runs=%d", &n_runs) != 1 &&
            sscanf(argv[i], "--seed=%u", &seed) != 1 && sscanf(argv[i], "--only=%d", &only) != 1) {
            fprintf(stderr, "usage: %s [--runs=N] [--seed=S] [--only=RUN]\n", argv[0]);
            return 2;
        }
    n_runs = n_runs < MAX_RUNS ? n_runs : MAX_RUNS;
    return lks_test_run_all(NULL, NULL);
}
