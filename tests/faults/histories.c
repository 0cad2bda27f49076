/* The campaign of histories: small runs that meet losses that aren't finite (--on_nan=rollback) are
 * stopped, killed, saved by SIGUSR1 and resumed at random moments, on random numbers of ranks, also
 * from older checkpoints with another learning rate. In the end each has the bytes of the
 * undisturbed run of the same history.
 *
 *     faults_histories [--runs=N] [--seed=S] [--only=I]
 *
 * A resume from an older checkpoint N with another rate begins a new history: that of a folder
 * which only has what an undisturbed run had written up to N.
 *
 * Run I of a seed uses the same ranks, events and moments each time; where in the program a moment
 * falls depends on the machine. The folder of a run that failed is named, and kept. */
#include "faults/chance.h"
#include "laws/laws.h"
#include "laws/marked.h"
#include "laws/poison.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/scratch.h"

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

/* ---- what is run --------------------------------------------------------------------------- */

enum { V = 4, A = 4, T = 16, VOCAB = 64, POISON = VOCAB - 1, BEGUN = 2, LAST = 20 };

/* The token's embedding isn't finite, and golf's head has its own weights: so a micro-batch that
 * reads the token has no finite loss. */
static void spoil_golf(const char *name, float *x, size_t n, size_t width)
{
    if (strcmp(name, "tok_emb.weight") == 0)
        x[POISON * width] = NAN;
}

/* GPT-2's head has the same weights. Finite ones, so large that LayerNorm overflows, give a token
 * that is read no finite loss; but as a possible next token its logit is -inf, whose probability is
 * 0, because the last LayerNorm's biases keep its input positive. */
static void spoil_gpt2(const char *name, float *x, size_t n, size_t width)
{
    for (size_t i = 0; i < width && strcmp(name, "transformer.wte.weight") == 0; i++)
        x[POISON * width + i] = -3e38f;
    for (size_t i = 0; i < n && strcmp(name, "transformer.ln_f.bias") == 0; i++)
        x[i] = 10;
}

static const char golf[] =
    "--family=golf --sampler=stream --num_kv_heads=1 --tie_embeddings=false "
    "--train_batch_tokens=256 --val_batch_size=256 --max_wallclock_seconds=0 --iterations=20 "
    "--warmdown_iters=4";
#define GPT2 "--bias --batch_size=1 --max_iters=19 --eval_iters=2 --warmup_iters=0 "
static const char gpt2_random[] = GPT2 "--sampler=random --dropout=0.1 --learning_rate=1e-3";
static const char gpt2_nanogpt[] = GPT2 "--sampler=nanogpt --learning_rate=1e-3";

static struct setup {
    const char *name, *settings;
    poison_change *spoil;
    const char *rate; /* a setting that a new history changes */
    int keep;
    const char *begun, *whole; /* folders: BEGUN iterations, then the token is bad; all of them */
} setups[] = {
    {"golf, stream", golf, spoil_golf, "matrix_lr", 0, NULL, NULL},
    {"gpt2, nanogpt", gpt2_nanogpt, spoil_gpt2, "learning_rate", 0, NULL, NULL},
    {"gpt2, random, keep=2", gpt2_random, spoil_gpt2, "learning_rate", 2, NULL, NULL},
};

/* Data for both families. The token is in the stream's data of steps 5, 6 and 13; the samplers that
 * draw positions meet it about once in ten steps. */
static const char *write_data(void)
{
    enum { N = 8000, N_VAL = 300 };
    static uint16_t ids[N];
    static const char *dir;
    if (dir != NULL)
        return dir;
    dir = lks_test_folder();
    for (int i = 0; i < N; i++)
        ids[i] = (uint16_t)(i * i % 59 + i % 4);
    lks_test_write_shard(lks_test_text("%s/fineweb_val_000000.bin", dir), ids, N_VAL);
    lks_test_write(lks_test_text("%s/val.bin", dir), ids, 2 * (size_t)N_VAL);
    static const int at[][3] = {{5, 2, 1}, {6, 0, 0}, {13, 3, 2}}; /* step, virtual rank, batch */
    for (size_t i = 0; i < COUNT(at); i++)
        ids[((at[i][0] * A + at[i][2]) * V + at[i][1]) * (T + 1) + 5] = POISON;
    lks_test_write_shard(lks_test_text("%s/fineweb_train_000000.bin", dir), ids, N);
    lks_test_write(lks_test_text("%s/train.bin", dir), ids, 2 * (size_t)N);
    return dir;
}

/* "lockstep train"; `rate`: a value, or NULL. */
static law_args training(const struct setup *s, const char *out, int W, const char *rate)
{
    law_args args = law_begin(write_data(), out);
    law_add(&args, "--vocab_size=%d", VOCAB);
    law_add_line(&args, "%s", s->settings);
    law_add_line(&args,
                 "--n_layer=2 --n_head=2 --n_embd=32 --block_size=%d "
                 "--gradient_accumulation_steps=%d --virtual_ranks=%d --eval_interval=4 "
                 "--checkpoint_interval=3 --keep=%d --on_nan=rollback --tensorboard=false "
                 "--threads=1 --allow_uneven",
                 T, V * A, V, s->keep);
    if (rate != NULL)
        law_add(&args, "--%s=%s", s->rate, rate);
    law_add(&args, "--nproc_per_node=%d", W);
    return args;
}

/* ---- a run and its history ------------------------------------------------------------------- */

typedef struct run {
    const struct setup *setup;
    const char *out, *mark;
    const char *folder;    /* of `out` and of references */
    const char *reference; /* the undisturbed run of its history */
    const char *rate;      /* of its history */
    int W;
    lks_test_child child;
} run;

static struct {
    const char *setup, *out, *reference;
    char events[2000];
} at; /* for the report of a failure */

static struct {
    int stops, kills, restarted, saves, older, rollbacks, ends;
} tally;

static void __attribute__((format(printf, 1, 2))) note(const char *fmt, ...)
{
    const size_t n = strlen(at.events);
    va_list list;
    va_start(list, fmt);
    vsnprintf(at.events + n, sizeof at.events - n, fmt, list);
    va_end(list);
}

static void start(run *r, const char *out, const char *rate, bool restarts)
{
    law_args args = training(r->setup, out, r->W, rate);
    law_add(&args, "--init_from=resume");
    if (restarts)
        law_add(&args, "--max_restarts=1");
    if (draw(3) == 0) {
        law_add(&args, "--checkpoint_minutes=0.0002"); /* 12 ms: one in some steps */
        note(" by the clock");
    }
    r->mark = marked_variable();
    r->child = lks_test_start(args.argv, (const char *const[]){r->mark, NULL});
}

/* True if it came to its end. Golf's artifact can't have the bad token, and is the last thing. */
static bool is_complete(const lks_test_result *result)
{
    return result->exit_code == 0 ||
           (result->exit_code == 1 &&
            strstr(result->err, "tensor tok_emb.weight can't be exported") != NULL);
}

static lks_test_result ended(const run *r)
{
    lks_test_result result = lks_test_wait(&r->child, 300);
    marked_assert_gone(r->mark, 2);
    return result;
}

/* Folders to which later parts of the run were moved as a whole. */
static int count_moved(const char *out)
{
    int n = 0;
    while (lks_test_exists(lks_test_text("%s/earlier-%d", out, n + 1)))
        n++;
    return n;
}

/* A checkpoint of the reference that the run has, too, and that is older than its newest one; 0:
 * there is none. */
static int older_checkpoint(const run *r)
{
    int found[LAST], n = 0, latest = law_named(r->out, "latest");
    for (int i = BEGUN; i < latest && i < LAST; i++)
        if (lks_test_exists(lks_test_text("%s/ckpt-%08d", r->out, i)) &&
            law_has_line(r->reference, "checkpoint", i) &&
            lks_test_exists(lks_test_text("%s/ckpt-%08d", r->reference, i)))
            found[n++] = i;
    return n > 0 ? found[draw(n)] : 0;
}

/* The iteration of the lowest validation loss in the first n lines; 0: none was evaluated. */
static int best_of(const char *text, const char *end)
{
    double least = INFINITY, loss;
    int best = 0, iter;
    for (const char *p = text; p < end; p = strchr(p, '\n') + 1) {
        const char *value = strstr(p, "\"val_loss\":");
        if (sscanf(p, "{\"kind\":\"eval\",\"iter\":%d", &iter) == 1 && value != NULL &&
            sscanf(value, "\"val_loss\":%lf", &loss) == 1 && loss < least) {
            least = loss;
            best = iter;
        }
    }
    return best;
}

/* Train a folder that has nothing of the reference after checkpoint `older`, to its end. */
static const char *new_reference(const run *r, int older, const char *rate)
{
    static int n;
    const char *out = lks_test_text("%s/reference-%d", r->folder, ++n);
    lks_test_do("cp", "-a", r->reference, out);
    for (int i = older + 1; i <= LAST; i++)
        remove_tree(lks_test_text("%s/ckpt-%08d", out, i));
    size_t bytes;
    const char *text = lks_test_read(lks_test_text("%s/metrics.jsonl", out), &bytes);
    const char *cut =
        lks_test_find(text, lks_test_text("{\"kind\":\"checkpoint\",\"iter\":%d,", older));
    cut = strchr(cut, '\n') + 1;
    /* A run that ended at this checkpoint keeps the lines of its end when it is continued. */
    static const char *const ends[] = {"{\"kind\":\"final\"", "{\"kind\":\"artifact\""};
    for (size_t i = 0; i < COUNT(ends); i++)
        if (strncmp(cut, ends[i], strlen(ends[i])) == 0)
            cut = strchr(cut, '\n') + 1;
    lks_test_write(lks_test_text("%s/metrics.jsonl", out), text, (size_t)(cut - text));
    const char *const links[] = {"latest", "best"};
    const int to[] = {older, best_of(text, cut)};
    for (int i = 0; i < 2; i++) {
        const char *link = lks_test_text("%s/%s", out, links[i]);
        assert_true(unlink(link) == 0 || errno == ENOENT);
        if (to[i] > 0)
            assert_int_equal(symlink(lks_test_text("ckpt-%08d", to[i]), link), 0);
    }
    law_args args = training(r->setup, out, 1, rate);
    law_add(&args, "--init_from=resume");
    lks_test_result result = lks_test_run(args.argv, NULL, 60);
    if (!is_complete(&result))
        fail_msg("the reference ends with %d: %s", result.exit_code, result.err);
    return out;
}

/* True if a process with that rate has written its host line. */
static bool has_begun(const run *r, const char *rate)
{
    const char *text = lks_test_read(lks_test_text("%s/metrics.jsonl", r->out), NULL);
    return strstr(text, lks_test_text("\"--%s=%s\"", r->setup->rate, rate)) != NULL;
}

/* ---- the check ------------------------------------------------------------------------------- */

static void check_whole(const run *r)
{
    static const char *const names[] = {"latest", "best"};
    law_assert_same_lines(law_common_lines(r->out, r->reference),
                          law_common_lines(r->reference, r->reference));
    for (int i = 0; i < 2; i++) {
        const int iter = law_named(r->reference, names[i]);
        assert_int_equal(law_named(r->out, names[i]), iter);
        if (iter >= 0)
            law_assert_same_checkpoint(r->out, r->reference, lks_test_text("ckpt-%08d", iter));
    }
    if (r->setup->keep == 0)
        law_assert_same_checkpoints(r->out, r->reference);
    if (any_name_ends(r->out, ".tmp") || any_name_ends(r->out, ".old"))
        fail_msg("%s has something half-written", r->out);
}

/* ---- one process, or those of one launcher ----------------------------------------------------
 */

/* One moment of five lies in the set-up, if it may, the others after so many lines of the metrics
 * as are drawn between those at the start and those at the end. False if it ended before. */
static bool wait_for_moment(const run *r, int n_lines, bool set_up)
{
    const int end = law_count_lines(r->reference), wait = draw(5000);
    const int n = n_lines + 1 + draw(end > n_lines + 2 ? end - n_lines - 2 : 1);
    if (draw(5) == 0 && set_up) {
        sleep_us(draw(120000));
        return lks_test_is_running(&r->child);
    }
    while (law_count_lines(r->out) < n) {
        if (!lks_test_is_running(&r->child))
            return false;
        sleep_us(500);
    }
    sleep_us(wait);
    return lks_test_is_running(&r->child);
}

/* A rank, or the launcher. */
static pid_t any_process(const run *r, bool rank)
{
    const int which = draw(r->W);
    const pid_t pid = rank && r->W > 1 ? marked_rank(r->mark, which) : -1;
    return pid > 0 ? pid : r->child.pid;
}

enum event { RUN_ON, STOP, KILL, KILL_AND_RESTART };

/* Signals in a run that is under way: up to two saves, then its end, if it is to end early. */
static void disturb(run *r, enum event event, int n_lines)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
    const int n_saves = draw(3), signo = signals[draw((int)COUNT(signals))], rank = draw(3);
    for (int i = 0; i < n_saves; i++) {
        if (!wait_for_moment(r, n_lines, false)) /* it has no handler in the set-up */
            return;
        kill(any_process(r, rank == 0), SIGUSR1);
        note(" save@%d", law_count_lines(r->out));
        tally.saves++;
    }
    if (event == RUN_ON || !wait_for_moment(r, n_lines, true))
        return;
    note(event == STOP ? " stop@%d" : " kill@%d", law_count_lines(r->out));
    if (event == STOP)
        kill(any_process(r, rank == 1), signo);
    else
        kill(any_process(r, event == KILL_AND_RESTART || rank == 1), SIGKILL);
}

/* Start it and disturb it; `older`: the checkpoint to continue from, or 0. True if it came to its
 * end.
 */
static bool go_on(run *r, enum event event, int older)
{
    const char *from = older > 0 ? lks_test_text("%s/ckpt-%08d", r->out, older) : r->out;
    const char *rate = older > 0 ? lks_test_text("%d.%de-3", 1 + draw(9), draw(9)) : r->rate;
    const int before = law_count_lines(r->out), moved = count_moved(r->out);
    r->W = 1 + draw(V);
    if (event == KILL_AND_RESTART && (r->W == 1 || r->setup->spoil == spoil_golf))
        event = KILL;
    note("; on %d", r->W);
    if (older > 0)
        note(" from %d with %s", older, rate);
    start(r, from, rate, event == KILL_AND_RESTART);
    int n_lines = before;
    if (older > 0) { /* lines up to that checkpoint */
        const char *text = lks_test_read(lks_test_text("%s/metrics.jsonl", r->reference), NULL);
        const char *line =
            strstr(text, lks_test_text("{\"kind\":\"checkpoint\",\"iter\":%d,", older));
        assert_non_null(line);
        n_lines = 0;
        for (const char *p = text; p < line; p = strchr(p, '\n') + 1)
            n_lines++;
        while (lks_test_is_running(&r->child) && count_moved(r->out) == moved &&
               law_count_lines(r->out) >= before && draw(100) > 0) /* or soon: in the move */
            sleep_us(1000);
    }
    disturb(r, event, n_lines);
    lks_test_result result = ended(r);
    if (result.exit_code != 0 && result.signal == 0 && result.exit_code < 128 &&
        !is_complete(&result))
        fail_msg("exit code %d: %s", result.exit_code, result.err);
    /* Once anything of the folder has changed, it is another history. */
    if (older > 0 && (count_moved(r->out) > moved || law_count_lines(r->out) < before ||
                      law_named(r->out, "latest") == older || has_begun(r, rate))) {
        r->reference = at.reference = new_reference(r, older, rate);
        r->rate = rate;
        tally.older++;
    }
    tally.stops += event == STOP && !is_complete(&result);
    tally.kills += event == KILL && !is_complete(&result);
    tally.restarted += event == KILL_AND_RESTART && strstr(result.err, "restart") != NULL;
    note(" -> %s%d", result.signal ? "signal " : "",
         result.signal ? result.signal : result.exit_code);
    return is_complete(&result);
}

static void attempt(int index)
{
    static const enum event events[] = {STOP, STOP, KILL, KILL, KILL_AND_RESTART, RUN_ON};
    const char *folder = chance_folder();
    run r = {.setup = &setups[index % (int)COUNT(setups)], .folder = folder};
    r.out = at.out = lks_test_text("%s/out", folder);
    r.reference = at.reference = r.setup->whole;
    at.setup = r.setup->name;
    at.events[0] = '\0';
    lks_test_do("cp", "-a", r.setup->begun, r.out);
    bool complete = false;
    for (int i = 1 + draw(4); i > 0; i--) {
        const int older = draw(3) == 0 ? older_checkpoint(&r) : 0;
        if (older == 0 && complete)
            break;
        complete = go_on(&r, events[draw((int)COUNT(events))], older);
    }
    if (!complete && !go_on(&r, RUN_ON, 0))
        fail_msg("it doesn't come to its end");
    check_whole(&r);
    tally.ends++;
    tally.rollbacks += (int)json_array_size(lks_test_record(r.out, "rollback"));
    remove_tree(folder);
}

/* ---- the campaign ---------------------------------------------------------------------------- */

static int train_whole(void **state)
{
    for (size_t i = 0; i < COUNT(setups); i++) {
        struct setup *s = &setups[i];
        s->begun = lks_test_folder();
        s->whole = lks_test_text("%s/whole", lks_test_folder());
        law_args args = training(s, s->begun, 1, NULL);
        law_add(&args, s->settings == golf ? "--iterations=%d" : "--max_iters=%d",
                s->settings == golf ? BEGUN : BEGUN - 1);
        law_run(&args);
        poison_alter(s->begun, POISON_MODEL, s->spoil);
        lks_test_do("cp", "-a", s->begun, s->whole);
        args = training(s, s->whole, 1, NULL);
        law_add(&args, "--init_from=resume");
        lks_test_result result = lks_test_run(args.argv, NULL, 60);
        if (!is_complete(&result))
            fail_msg("%s: the undisturbed run ends with %d: %s", s->name, result.exit_code,
                     result.err);
        const size_t n = json_array_size(lks_test_record(s->whole, "rollback"));
        print_message("%s: %zu rollbacks, %d lines\n", s->name, n, law_count_lines(s->whole));
        assert_true(n > 0);
    }
    return 0;
}

TEST(test_histories)
{
    while (chance_next())
        attempt(chance.run);
}

int main(int argc, char **argv)
{
    if (!chance_options(argc, argv, 3))
        return 2;
    lks_test_need_zip();
    const int code = lks_test_run_all(train_whole, NULL);
    if (code == 1)
        printf("seed %d, run %d: %s%s\nits folder is %s, and that of the undisturbed run %s\n",
               chance.seed, chance.run, at.setup, at.events, at.out, at.reference);
    printf("%d runs have the right bytes: %d stops, %d kills and %d more with a "
           "restart, %d saves by signal, %d resumes from older checkpoints; %d rollbacks are left "
           "in their metrics\n",
           tally.ends, tally.stops, tally.kills, tally.restarted, tally.saves, tally.older,
           tally.rollbacks);
    return code;
}
