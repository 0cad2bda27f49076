/* The fault campaign: small runs are killed, stopped or starved at random moments, and resumed on
 * another number of ranks until they end. They must leave the bytes of an undisturbed run, and
 * nothing else.
 *
 *     faults_campaign [--runs=N] [--seed=S] [--only=I]
 *
 * Run I of a seed uses the same ranks, disturbance and delays each time; where in the program a
 * delay ends depends on the machine. The folder of a run that failed is named, and kept. */
#include "faults.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/scratch.h"
#include "faults/chance.h"
#include "laws/laws.h"
#include "laws/marked.h"

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

/* ---- what is run --------------------------------------------------------------------------- */

static const char gpt2_random[] =
    "--vocab_size=65 --sampler=random --bias --n_layer=2 --n_head=2 --n_embd=32 --block_size=16 "
    "--keep=0 --batch_size=4 --dropout=0.1 --max_iters=40 --eval_interval=10 --eval_iters=2";
static const char gpt2_nanogpt[] =
    "--vocab_size=65 --sampler=nanogpt --n_layer=1 --n_head=2 --n_embd=16 --block_size=8 "
    "--batch_size=2 --max_iters=60 --grad_clip=.1 --keep=2 --replicas=private --eval_interval=16 "
    "--eval_iters=2";
static const char golf_stream[] =
    "--family=golf --sampler=stream --vocab_size=1024 --num_layers=2 --model_dim=32 "
    "--num_heads=2 --num_kv_heads=1 --train_seq_len=16 --train_batch_tokens=512 "
    "--val_batch_size=4096 --iterations=40 --warmdown_iters=10 --max_wallclock_seconds=0 "
    "--val_loss_every=20 --keep=1";

static struct setup {
    const char *name, *settings;
    void (*tokens)(const char *folder);
    const char *data, *whole; /* folders: tokens; an undisturbed run */
} setups[] = {
    {"gpt2, random", gpt2_random, lks_test_generated_tokens, NULL, NULL},
    {"gpt2, nanogpt", gpt2_nanogpt, lks_test_generated_tokens, NULL, NULL},
    {"golf, stream", golf_stream, lks_test_short_golf, NULL, NULL},
};

static law_args training(const struct setup *r, const char *out, int W)
{
    law_args args = law_begin(r->data, out);
    law_add_line(&args, "%s", r->settings);
    law_add_line(&args,
                 "--gradient_accumulation_steps=8 --virtual_ranks=8 --checkpoint_interval=3 "
                 "--threads=1 --nproc_per_node=%d --allow_uneven",
                 W);
    return args;
}

/* ---- one disturbed run ----------------------------------------------------------------------- */

enum disturbance { KILL, KILL_IN_SAVE, STOP, HANG, STARVE, N_DISTURBANCES };
static const char *const disturbance_names[] = {"killed", "killed in a save", "stopped for a while",
                                                "hung", "starved"};

typedef struct run {
    const struct setup *setup;
    const char *out, *temp; /* `temp`: its TMPDIR, which stays empty */
    const char *mark;
    int W, victim; /* the rank that is hit; -1: the launcher, or the only process */
    lks_test_child child;
    pid_t pid; /* the victim */
} run;

static struct {
    const char *what, *setup, *out;
    int W[4], n_W; /* ranks at first, and for each resume */
} at;              /* for the report of a failure */

static struct {
    int hits[N_DISTURBANCES], launcher, again, missed;
    int resumed_min, resumed_max;
} tally = {.resumed_min = INT32_MAX};

static void start(run *r, const char *const more[])
{
    law_args args = training(r->setup, r->out, r->W);
    law_add_words(&args, more);
    r->mark = marked_variable();
    const char *env[] = {r->mark, lks_test_text("TMPDIR=%s", r->temp), NULL};
    r->child = lks_test_start(args.argv, env);
    at.W[at.n_W++] = r->W;
}

/* Wait until there is a checkpoint and the victim's process is known; false if the run ended
 * first. */
static bool under_way(run *r)
{
    const char *latest = lks_test_text("%s/latest", r->out);
    while (!lks_test_exists(latest)) {
        if (!lks_test_is_running(&r->child))
            return false;
        sleep_us(200);
    }
    r->pid = r->victim < 0 ? r->child.pid : marked_rank(r->mark, r->victim);
    return r->pid > 0 && lks_test_is_running(&r->child);
}

/* Wait until the folder of a save or deletion has appeared in `out` n times from now. */
static bool wait_for_save(const run *r, int watch, int n)
{
    _Alignas(struct inotify_event) char events[4096];
    while (lks_test_is_running(&r->child)) {
        ssize_t bytes = read(watch, events, sizeof events);
        for (ssize_t i = 0; i < bytes;) {
            const struct inotify_event *e = (const void *)(events + i);
            const char *dot = e->len > 0 ? strrchr(e->name, '.') : NULL;
            if (dot != NULL && strcmp(dot, ".tmp") == 0 && n-- == 0)
                return true;
            i += (ssize_t)(sizeof *e + e->len);
        }
        if (bytes <= 0)
            sleep_us(50);
    }
    return false;
}

/* Does a dead run's folder show that it died in a save? Then something half-written or half-deleted
 * is in it. */
static bool died_in_save(const run *r)
{
    return any_name_ends(r->out, ".tmp") || any_name_ends(r->out, ".old");
}

/* The run has ended and left only its folder. Time limits are for hangs, because a run on a busy
 * machine is slow. */
static lks_test_result ended(const run *r, double timeout_s)
{
    lks_test_result result = lks_test_wait(&r->child, timeout_s);
    marked_assert_gone(r->mark, 2);
    assert_int_equal(lks_test_count_files(r->temp), 0);
    return result;
}

static void expect_success(const run *r)
{
    assert_exits(0, ended(r, 300));
}

/* False if it ended just before the signal. */
static bool died_of_kill(const run *r)
{
    lks_test_result result = ended(r, 300);
    if (result.exit_code == 0)
        return false;
    if (r->victim < 0 ? result.signal != SIGKILL : result.exit_code != 128 + SIGKILL)
        fail_msg("exit code %d, signal %d: %s", result.exit_code, result.signal, result.err);
    if (r->victim >= 0)
        assert_contains(result.err, lks_test_text("rank %d", r->victim));
    return true;
}

/* ---- disturbances: false if the run ended before, so that nothing was tested ---------------- */

static bool disturb_kill(run *r)
{
    if (under_way(r)) {
        sleep_us(draw(80000));
        kill(r->pid, SIGKILL);
    }
    return died_of_kill(r);
}

static bool disturb_save(run *r)
{
    int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    assert_true(watch >= 0);
    if (under_way(r)) {
        assert_true(inotify_add_watch(watch, r->out, IN_CREATE | IN_MOVED_TO) >= 0);
        if (wait_for_save(r, watch, draw(6))) {
            sleep_us(draw(1500));
            kill(r->pid, SIGKILL);
        }
    }
    close(watch);
    return died_of_kill(r) && died_in_save(r);
}

/* It is stopped for moments, and still ends well. */
static bool disturb_stop(run *r)
{
    bool hit = under_way(r);
    for (int i = 0; hit && i < 3; i++) {
        sleep_us(draw(20000));
        kill(r->pid, SIGSTOP);
        sleep_us(draw(100000));
        kill(r->pid, SIGCONT);
    }
    expect_success(r);
    return hit;
}

/* It is stopped for good: the others give it up and name it. */
static bool disturb_hang(run *r)
{
    bool hit = under_way(r) && (sleep_us(draw(40000)), lks_test_is_running(&r->child)) &&
               kill(r->pid, SIGSTOP) == 0;
    lks_test_result result = ended(r, 60);
    if (result.exit_code == 0)
        return false;
    if (!hit || result.signal != 0)
        fail_msg("exit code %d, signal %d: %s", result.exit_code, result.signal, result.err);
    assert_contains(result.err, lks_test_text("rank %d", r->victim));
    return true;
}

/* It gets a millisecond in twenty, on a CPU that all others share. */
static bool disturb_starve(run *r)
{
    bool hit = under_way(r);
    cpu_set_t one, all;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &one);
    pid_t pids[64];
    int n = hit ? marked_processes(r->mark, pids, 64) : 0;
    for (int i = 0; i < n && i < 64; i++)
        sched_setaffinity(pids[i], sizeof one, &one);
    for (int i = 0; hit && i < 20; i++) {
        kill(r->pid, SIGSTOP);
        sleep_us(19000);
        kill(r->pid, SIGCONT);
        sleep_us(1000);
    }
    expect_success(r);
    return hit;
}

/* ---- the campaign ---------------------------------------------------------------------------- */

/* Resume it on other ranks until the end; a third of the killed runs are killed once more on the
 * way. */
static void resume(run *r, bool again)
{
    static const char *const resumed[] = {"--init_from=resume", NULL};
    int iter = law_named(r->out, "latest"), before = r->W;
    assert_true(iter > 0);
    tally.resumed_min = iter < tally.resumed_min ? iter : tally.resumed_min;
    tally.resumed_max = iter > tally.resumed_max ? iter : tally.resumed_max;
    while (r->W == before)
        r->W = 1 + draw(8);
    start(r, resumed);
    if (!again) {
        expect_success(r);
        return;
    }
    r->victim = r->W == 1 ? -1 : draw(r->W + 1) - 1;
    sleep_us(draw(150000)); /* may be before it has read anything */
    r->pid = r->victim < 0 ? r->child.pid : marked_rank(r->mark, r->victim);
    if (r->pid > 0 && lks_test_is_running(&r->child))
        kill(r->pid, SIGKILL);
    if (died_of_kill(r)) {
        tally.again++;
        resume(r, false);
    }
}

/* Of ten runs five are killed at any moment, three in a save, one is stopped, and one hangs or
 * starves. */
static enum disturbance disturbance_of(int index)
{
    static const enum disturbance order[10] = {KILL, KILL_IN_SAVE, STOP, KILL, KILL_IN_SAVE,
                                               KILL, KILL_IN_SAVE, KILL, KILL, HANG};
    enum disturbance d = order[index % 10];
    return d == HANG && index / 10 % 2 != 0 ? STARVE : d;
}

static bool attempt(enum disturbance what, int setup)
{
    static bool (*const disturb[N_DISTURBANCES])(run *) = {disturb_kill, disturb_save, disturb_stop,
                                                           disturb_hang, disturb_starve};
    static const char *const soon[] = {"--timeout=5", NULL};
    const char *folder = chance_folder();
    run r = {.setup = &setups[setup], .W = 1 + draw(8)};
    r.out = at.out = lks_test_text("%s/out", folder);
    r.temp = lks_test_text("%s/temp", folder);
    assert_int_equal(mkdir(r.temp, 0700), 0);
    r.victim = draw(r.W + 1) - 1;
    if (r.W == 1)
        r.victim = -1; /* there is no launcher */
    if (what == HANG) {
        r.W = r.W < 2 ? 2 : r.W;
        r.victim = draw(r.W);
    }
    at.what = disturbance_names[what];
    at.setup = r.setup->name;
    at.n_W = 0;
    start(&r, what == HANG ? soon : NULL);
    bool hit = disturb[what](&r), launcher = r.victim < 0;
    if (hit && (what == KILL || what == KILL_IN_SAVE || what == HANG))
        resume(&r, draw(3) == 0);
    else if (what == KILL_IN_SAVE && lks_test_exists(lks_test_text("%s/latest", r.out)))
        resume(&r, false); /* not in a save, or not killed at all: nothing to check, or to resume */
    law_assert_same(r.out, r.setup->whole);
    remove_tree(folder);
    if (hit) {
        tally.hits[what]++;
        tally.launcher += launcher && (what == KILL || what == KILL_IN_SAVE);
    } else {
        tally.missed++;
    }
    return hit;
}

static int train_whole(void **state)
{
    for (size_t i = 0; i < COUNT(setups); i++) {
        struct setup *r = &setups[i];
        r->data = lks_test_folder();
        r->whole = lks_test_folder();
        r->tokens(r->data);
        law_args args = training(r, r->whole, 1);
        law_run(&args);
    }
    return 0;
}

TEST(test_campaign)
{
    while (chance_next()) {
        int tries = 0;
        while (!attempt(disturbance_of(chance.run), chance.run % (int)COUNT(setups)))
            if (++tries == 40)
                fail_msg("forty runs came to their end before they could be %s", at.what);
    }
}

static void report_failure(void)
{
    printf("seed %d, run %d: %s, %s, on", chance.seed, chance.run, at.setup, at.what);
    for (int i = 0; i < at.n_W; i++)
        printf("%s %d", i > 0 ? ", then" : "", at.W[i]);
    printf(" ranks, in %s\n", at.out);
}

int main(int argc, char **argv)
{
    if (!chance_options(argc, argv, 5))
        return 2;
    const int code = lks_test_run_all(train_whole, NULL);
    if (code == 1)
        report_failure();
    const int *hits = tally.hits;
    printf("killed %d (%d of them in a save, %d the launcher) and %d once more while they resumed, "
           "stopped %d, hung %d, starved %d; resumed at iterations %d to %d; %d runs were "
           "not hit as meant, and tried again\n",
           hits[KILL] + hits[KILL_IN_SAVE], hits[KILL_IN_SAVE], tally.launcher, tally.again,
           hits[STOP], hits[HANG], hits[STARVE], tally.resumed_min, tally.resumed_max,
           tally.missed);
    return code;
}
