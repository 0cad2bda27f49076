/* The campaign of stops: runs on 1 to 8 ranks of one or two hosts are asked to stop at random
 * moments, and go on with other ranks. Each stop must leave the last complete state, and in the end
 * the run has the bytes of one that never stopped.
 *
 *     faults_stops [--runs=N] [--seed=S] [--only=I]
 *
 * Stop I of a seed uses the same ranks, signal and moment each time; where in the program the
 * moment falls depends on the machine. The folder of a run that failed is named, and kept. */
#include "faults/chance.h"
#include "laws/laws.h"
#include "laws/marked.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "ckpt/scratch.h"
#include "comm/hosts.h"

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

/* ---- what is run --------------------------------------------------------------------------- */

/* Long steps with few updates; long evaluations; golf's run with its artifact at the end. */
static const char long_steps[] =
    "--sampler=random --n_layer=2 --n_head=2 --n_embd=32 --block_size=16 --dropout=0.1 "
    "--batch_size=4 --gradient_accumulation_steps=512 --max_iters=7 --eval_iters=40 "
    "--eval_interval=3 --checkpoint_interval=2";
static const char long_evaluations[] =
    "--sampler=nanogpt --n_layer=1 --n_head=2 --n_embd=16 --block_size=16 --batch_size=4 "
    "--gradient_accumulation_steps=16 --max_iters=13 --eval_iters=600 --eval_interval=4 "
    "--checkpoint_interval=3 --replicas=private";
static const char golf[] =
    "--family=golf --sampler=stream --vocab_size=1024 --num_layers=2 --model_dim=32 "
    "--num_heads=2 --num_kv_heads=1 --train_seq_len=16 --train_batch_tokens=4096 "
    "--gradient_accumulation_steps=64 --val_batch_size=1024 --iterations=10 --warmdown_iters=3 "
    "--max_wallclock_seconds=0 --val_loss_every=4 --checkpoint_interval=3";

static struct setup {
    const char *name, *settings;
    void (*tokens)(const char *folder);
    const char *data, *whole; /* folders: tokens; a run that never stopped */
    int n_lines;              /* in the metrics of the latter */
} setups[] = {
    {"long steps", long_steps, lks_test_generated_tokens, NULL, NULL, 0},
    {"long evaluations", long_evaluations, lks_test_generated_tokens, NULL, NULL, 0},
    {"golf", golf, lks_test_short_golf, NULL, NULL, 0},
};

static void add_training(law_args *args, const struct setup *r, const char *out)
{
    law_add_all(args, "lockstep", "train");
    law_add(args, "--dataset=%s", r->data);
    law_add(args, "--out_dir=%s", out);
    law_add(args, "--vocab_size=65");
    law_add_line(args, "%s", r->settings);
    law_add_all(args, "--virtual_ranks=8", "--keep=0", "--threads=1", "--allow_uneven");
}

/* ---- one process or more --------------------------------------------------------------------- */

typedef struct run {
    const struct setup *setup;
    const char *out, *mark;
    int W, first_host; /* ranks; how many are on the first of two hosts, or W */
    lks_test_child child[2];
    int n_children;
} run;

static struct {
    const char *setup, *out;
    char ranks[200];
} at; /* for the report of a failure */

enum phase { SET_UP, STEP, COMPLETED, EVALUATION, FINISH, KILLED_EARLY, N_PHASES };
static const struct {
    const char *name, *said;
} phases[N_PHASES] = {
    {"in the set-up", "during setup: nothing was trained"},
    {"in a step, discarded", "the unfinished step is discarded"},
    {"in a step, completed", "the current step was completed"},
    {"in an evaluation", "the unfinished evaluation is discarded"},
    {"behind the final checkpoint", "the final checkpoint is saved"},
    {"before the program was ready for signals", ""},
};

static struct {
    int phases[N_PHASES], in_save, two_hosts, resumed, ranks, direct, missed, n;
    double seconds[4096]; /* from the signal to the end of all processes */
} tally;

static void place(run *r)
{
    size_t n = strlen(at.ranks);
    r->W = 1 + draw(8);
    r->first_host = r->W;
    if (r->W > 1 && draw(3) == 0)
        r->first_host = 1 + draw(r->W - 1);
    snprintf(at.ranks + n, sizeof at.ranks - n, "%s%d+%d", n > 0 ? ", then " : "", r->first_host,
             r->W - r->first_host);
}

static void start(run *r, bool resumes)
{
    int port = r->first_host < r->W ? lks_test_free_port() : 0;
    r->mark = marked_variable();
    r->n_children = r->first_host < r->W ? 2 : 1;
    for (int host = 0; host < r->n_children; host++) {
        law_args args = {.n = 0};
        int n = host == 0 ? r->first_host : r->W - r->first_host;
        if (port != 0) {
            law_add_line(&args,
                         "lockstep run --nnodes=2 --node-rank=%d --master-addr=127.0.0.1 "
                         "--master-port=%d --nproc-per-node=%d",
                         host, port, n);
        }
        add_training(&args, r->setup, r->out);
        if (port != 0) {
            args.argv[7] = LKS_TEST_TOOL;
            law_add(&args, "--backend=gloo");
        } else {
            law_add(&args, "--nproc_per_node=%d", n);
        }
        if (resumes)
            law_add(&args, "--init_from=resume");
        const char *env[] = {r->mark, "LOCKSTEP_TOKEN=0123456789abcdef", NULL};
        r->child[host] = lks_test_start(args.argv, env);
    }
}

/* The processes have ended; returns the first one's result. */
static lks_test_result ended(const run *r)
{
    lks_test_result first = lks_test_wait(&r->child[0], 300);
    for (int i = 1; i < r->n_children; i++) {
        assert_exits(first.exit_code, lks_test_wait(&r->child[i], 300));
    }
    marked_assert_gone(r->mark, 2);
    return first;
}

/* ---- what a stop leaves ---------------------------------------------------------------------- */

static const json_t *lines_of(const char *out, const char *kind)
{
    return lks_test_record(out, kind);
}

/* Hashes of the files of `latest`, and its name; "" if there is none. */
static const char *latest_state(const char *out)
{
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "state.json"};
    const char *text = "";
    for (size_t i = 0; i < COUNT(files); i++) {
        const char *path = lks_test_text("%s/latest/%s", out, files[i]);
        if (lks_test_exists(path))
            text = lks_test_text("%s %s", text, lks_test_sha256(path));
    }
    return text;
}

/* `before`: latest_state() before this process began. */
static void check_left(const char *out, const char *before, enum phase phase)
{
    if (phase == SET_UP || phase == KILLED_EARLY) {
        assert_string_equal(latest_state(out), before);
        return;
    }
    size_t n_steps = json_array_size(lines_of(out, "train"));
    const char *text = lks_test_read(lks_test_text("%s/latest/state.json", out), NULL);
    const json_t *state = lks_test_json(text);
    int iter = (int)lks_test_number(state, "iter");
    bool eval_done = json_is_true(lks_test_member(state, "eval_done"));
    assert_int_equal(iter, n_steps); /* the last complete state */
    assert_true(law_has_line(out, "checkpoint", iter));
    if (strcmp(latest_state(out), before) != 0) /* ... unless it is the one that was loaded */
        /* 0: the very first state. */
        assert_true(eval_done == (iter > 0 && law_has_line(out, "eval", iter)));
}

static void check_whole(const run *r)
{
    const char *whole = r->setup->whole, *artifact = "final_model.int8.ptz";
    law_assert_same_checkpoints(r->out, whole);
    assert_string_equal(law_common_lines(r->out, whole), law_common_lines(whole, whole));
    if (lks_test_exists(lks_test_text("%s/%s", whole, artifact)))
        assert_same_file(lks_test_text("%s/%s", r->out, artifact),
                         lks_test_text("%s/%s", whole, artifact));
}

/* ---- one stop -------------------------------------------------------------------------------- */

/* Of ten moments one lies in the set-up, two in a save, the others at any time after the n-th line
 * of the metrics. False if it ended before. */
static bool wait_for_moment(const run *r, int n_lines, bool *in_save_p)
{
    int left = r->setup->n_lines - n_lines, after = draw(80000);
    int kind = draw(10), n = n_lines + 1 + draw(left > 1 ? left - 1 : 1);
    *in_save_p = kind == 1 || kind == 2;
    /* Two launchers must have met, or one of them would wait for the other. */
    while (r->n_children == 2 && marked_rank(r->mark, r->W - 1) < 0 &&
           lks_test_is_running(&r->child[0]))
        sleep_us(1000);
    if (kind == 0) {
        sleep_us(draw(400000));
        return lks_test_is_running(&r->child[0]);
    }
    while (*in_save_p ? !any_name_ends(r->out, ".tmp") : law_count_lines(r->out) < n) {
        if (!lks_test_is_running(&r->child[0]))
            return false;
        sleep_us(*in_save_p ? 100 : 1000);
    }
    sleep_us(*in_save_p ? draw(2000) : after);
    return lks_test_is_running(&r->child[0]);
}

/* Send it to a launcher, or to a single rank. */
static void send_signal(const run *r, int signo)
{
    pid_t rank = -1;
    if (draw(4) == 0 && r->W > 1)
        rank = marked_rank(r->mark, draw(r->W));
    tally.direct += rank > 0;
    kill(rank > 0 ? rank : r->child[draw(r->n_children)].pid, signo);
}

static enum phase phase_of(const lks_test_result *r, bool wrote)
{
    for (int p = 0; p < KILLED_EARLY; p++)
        if (strstr(r->err, phases[p].said) != NULL)
            return (enum phase)p;
    if (strstr(r->err, "stopped by signal") != NULL || wrote)
        fail_msg("it doesn't say what it leaves: %s", r->err);
    return KILLED_EARLY;
}

/* The signal reached a launcher, or the process, when the run was already complete. */
static bool is_complete(const run *r, const lks_test_result *result)
{
    return strstr(result->err, "stopped by signal") == NULL && law_count_lines(r->out) > 0 &&
           strcmp(law_common_lines(r->out, r->setup->whole),
                  law_common_lines(r->setup->whole, r->setup->whole)) == 0;
}

/* Start or resume the run, and stop it. False if it ended before. */
static bool stop(run *r, bool resumes)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
    int signo = signals[draw((int)COUNT(signals))];
    const char *before = latest_state(r->out);
    int n_before = law_count_lines(r->out);
    bool in_save;
    place(r);
    start(r, resumes);
    double sent = 0;
    if (wait_for_moment(r, n_before, &in_save)) {
        sent = lks__sys_now();
        send_signal(r, signo);
    }
    lks_test_result result = ended(r);
    double seconds = lks__sys_now() - sent;
    if (result.exit_code == 0 || is_complete(r, &result))
        return false;
    if (result.signal != signo && result.exit_code != 128 + signo)
        fail_msg("exit code %d, signal %d, instead of signal %d: %s", result.exit_code,
                 result.signal, signo, result.err);
    enum phase phase = phase_of(&result, law_count_lines(r->out) != n_before);
    check_left(r->out, before, phase);
    tally.phases[phase]++;
    tally.in_save += in_save;
    tally.resumed += resumes;
    tally.two_hosts += r->n_children == 2;
    tally.ranks += r->W;
    if (tally.n < (int)COUNT(tally.seconds))
        tally.seconds[tally.n++] = seconds;
    return true;
}

/* Stop it, stop one in three once more after a resume, then run to the end. False if it ended
 * before it could be stopped, which tests nothing. */
static bool attempt(int index)
{
    const char *folder = chance_folder();
    run r = {.setup = &setups[index % (int)COUNT(setups)]};
    r.out = at.out = lks_test_text("%s/out", folder);
    at.setup = r.setup->name;
    at.ranks[0] = '\0';
    bool hit = stop(&r, false);
    bool begun = lks_test_exists(lks_test_text("%s/latest", r.out));
    if (hit && begun && draw(3) == 0)
        hit = stop(&r, true) || hit;
    if (hit) {
        place(&r);
        start(&r, begun);
        assert_exits(0, ended(&r));
    } else {
        tally.missed++;
    }
    check_whole(&r);
    remove_tree(folder);
    return hit;
}

/* ---- the campaign ---------------------------------------------------------------------------- */

static int train_whole(void **state)
{
    for (size_t i = 0; i < COUNT(setups); i++) {
        struct setup *r = &setups[i];
        law_args args = {.n = 0};
        r->data = lks_test_folder();
        r->whole = lks_test_folder();
        r->tokens(r->data);
        add_training(&args, r, r->whole);
        law_run(&args);
        r->n_lines = law_count_lines(r->whole);
    }
    return 0;
}

TEST(test_stops)
{
    while (chance_next()) {
        for (int tries = 0; !attempt(chance.run);)
            if (++tries == 40)
                fail_msg("forty runs came to their end before they could be stopped");
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void report(void)
{
    printf("%d stops:", tally.n);
    for (int p = 0; p < N_PHASES; p++)
        printf("%s %d %s", p > 0 ? "," : "", tally.phases[p], phases[p].name);
    printf(
        "; %d aimed at a save, %d on two hosts, %d after a resume, %d sent to one rank alone, %.1f "
        "ranks on average; %d runs were not stopped in time, and tried again\n",
        tally.in_save, tally.two_hosts, tally.resumed, tally.direct,
        tally.n > 0 ? (double)tally.ranks / tally.n : 0.0, tally.missed);
    qsort(tally.seconds, (size_t)tally.n, sizeof *tally.seconds, by_size);
    if (tally.n > 0)
        printf("from the signal to the end of all processes: median %.2f s, longest %.2f s\n",
               tally.seconds[tally.n / 2], tally.seconds[tally.n - 1]);
}

int main(int argc, char **argv)
{
    if (!chance_options(argc, argv, 3))
        return 2;
    lks_test_modules();
    hosts_need("gloo");
    const int code = lks_test_run_all(train_whole, NULL);
    if (code == 1)
        printf("seed %d, run %d: %s, on %s ranks, in %s\n", chance.seed, chance.run, at.setup,
               at.ranks, at.out);
    report();
    return code;
}
