/* A stop in the middle of a step, an evaluation, a save or the set-up: the work in progress is
 * discarded, the state before it is saved, and a resumed run has the bytes of one that never
 * stopped.
 *
 * LOCKSTEP_FAULT sends SIGTERM at the n-th call of a kind. A micro-batch, or a batch of an
 * evaluation, reads BATCH samples, each by one call: so "the rank dies BATCH reads after the
 * signal" shows that it begins no other batch. */
#include "laws.h"
#include "marked.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/read/sampler.h"

enum { BATCH = 6, STEP = 1024 }; /* samples of a micro-batch; micro-batches of a long step */

static const char *const samplers[2] = {"random", "nanogpt"};

/* "lockstep train" on W ranks; `fault` hits rank `rank`. */
static lks_test_result train(law_args args, int W, const char *fault, int rank)
{
    law_add(&args, "--nproc_per_node=%d", W);
    const char *env[] = {lks_test_text("LOCKSTEP_FAULT=%s", fault),
                         W > 1 ? lks_test_text("LOCKSTEP_FAULT_RANK=%d", rank) : NULL, NULL};
    return lks_test_run(args.argv, env, 120);
}

static void expect_stop(const lks_test_result *r, const char *said)
{
    if (r->exit_code != 128 + SIGTERM)
        fail_msg("exit code %d, signal %d: %s", r->exit_code, r->signal, r->err);
    assert_contains(r->err, said);
}

/* `latest` must be the state after the last update in the metrics, with its evaluation. Returns its
 * iteration. */
static int check_saved(const char *out)
{
    int iter = (int)json_array_size(lks_test_record(out, "train")); /* of a run from scratch */
    const char *name = lks_test_text("%s/latest/state.json", out);
    const json_t *state = lks_test_json(lks_test_read(name, NULL));
    assert_int_equal(lks_test_number(state, "iter"), iter);
    /* Checkpoint 0 is the very first state. */
    bool evaluated = iter > 0 && law_has_line(out, "eval", iter);
    assert_true(json_is_true(lks_test_member(state, "eval_done")) == evaluated);
    assert_true(iter > 0 || lks_test_number(state, "best_val_loss") == 1e9);
    assert_true(law_has_line(out, "checkpoint", iter));
    return iter;
}

static void go_on(law_args args, int W)
{
    law_add_line(&args, "--init_from=resume --nproc_per_node=%d", W);
    law_run(&args);
}

/* ---- long steps and evaluations ------------------------------------------------------------ */

/* Steps of STEP micro-batches, or evaluations of so many batches; no evaluation but the first. */
static law_args long_run(const char *sampler, const char *out, bool evaluates)
{
    const char *fresh;
    law_args args = law_train(sampler, &fresh);
    law_add(&args, "--out_dir=%s", out != NULL ? out : fresh);
    law_add_line(&args,
                 "--n_layer=1 --n_head=1 --n_embd=8 --block_size=8 --max_iters=1 "
                 "--threads=1 --eval_interval=%d --eval_iters=%d "
                 "--gradient_accumulation_steps=%d",
                 evaluates ? 1000 : 0, STEP / 2, evaluates ? LAW_V : STEP);
    return args;
}

/* The last rank gets the signal. It ends the current batch and begins no other. The other ranks
 * learn of it. Unless the machine delayed the last rank until they were done, none of them makes
 * all of its micro-batches. Returns whether all of them were done. */
static bool check_long(int which, int W, bool evaluates, const char *whole)
{
    bool early = true;
    const char *out = lks_test_folder();
    law_args args = long_run(samplers[which], out, evaluates);
    const int n = 156; /* the set-up reads less, the rank's part of a step more */
    const char *fault = lks_test_text("read:%d:term,read:%d:die", n, n + BATCH);
    lks_test_result r = train(args, W, fault, W - 1);
    expect_stop(&r,
                evaluates ? "unfinished evaluation is discarded" : "unfinished step is discarded");
    assert_int_equal(check_saved(out), 0);
    const json_t *hosts = lks_test_record(out, "host");
    for (int rank = 0; rank < W; rank++) {
        const char *done = lks_test_text("micro_batches.%d", rank);
        int n_done = (int)lks_test_number(json_array_get(hosts, 1), done);
        assert_in_range(n_done, 0, evaluates ? 0 : rank == W - 1 ? n / BATCH : STEP / W);
        early = early && n_done < STEP / W;
    }
    go_on(args, W == 8 ? 1 : W * 2);
    law_assert_same_checkpoints(out, whole);
    return early;
}

TEST(test_long)
{
    for (int which = 0; which < 2; which++)
        for (int evaluates = 0; evaluates < 2; evaluates++) {
            const char *whole = lks_test_folder();
            law_args args = long_run(samplers[which], whole, evaluates);
            law_run(&args);
            for (int W = which + 1; W <= 8; W *= 4)
                for (int tries = 0; !check_long(which, W, evaluates, whole);)
                    assert_in_range(++tries, 1, 9);
        }
}

/* ---- anywhere ------------------------------------------------------------------------------ */

static void assert_whole(const char *out, const char *whole)
{
    law_assert_same_checkpoints(out, whole);
    law_assert_same_lines(law_common_lines(out, whole), law_common_lines(whole, whole));
}

/* A run of the golf family, with evaluations, one of them at its end, and an artifact. */
static law_args golf_train(const char **out_p)
{
    *out_p = lks_test_folder();
    law_args args = law_begin(law_golf_data(2500), *out_p);
    law_add_all(&args, "--family=golf", "--sampler=stream", "--vocab_size=1024", "--num_layers=2",
                "--model_dim=32", "--num_heads=2", "--num_kv_heads=1", "--iterations=7",
                "--train_seq_len=16", "--val_loss_every=4", "--warmdown_iters=3", "--keep=0",
                "--checkpoint_interval=3", "--virtual_ranks=8", "--threads=1",
                "--max_wallclock_seconds=0", "--train_batch_tokens=2048", "--val_batch_size=1024",
                "--gradient_accumulation_steps=16");
    return args;
}

static law_args run_of(int which, const char **out_p)
{
    law_args args = which < 2 ? law_train(samplers[which], out_p) : golf_train(out_p);
    law_add(&args, "--threads=1");
    return args;
}

/* Stop a run of a hundred and more reads after every `stride` reads, and resume it each time. */
static void check_anywhere(int which, int stride, const char *whole)
{
    static const char artifact[] = "final_model.int8.ptz";
    bool ended = false;
    int n_stops = 0;
    for (int n = 30; !ended; n += stride) {
        const char *out;
        law_args args = run_of(which, &out);
        lks_test_result r = train(args, 1, lks_test_text("read:%d:term", n), 0);
        ended = r.exit_code == 0;
        if (!ended) {
            expect_stop(&r, "stopped by signal 15 (SIGTERM)");
            check_saved(out);
            go_on(args, 2);
            n_stops++;
        }
        assert_whole(out, whole);
        if (which == 2)
            assert_same_file(lks_test_text("%s/%s", out, artifact),
                             lks_test_text("%s/%s", whole, artifact));
    }
    assert_in_range(n_stops, 5, 25);
}

TEST(test_anywhere)
{
    static const int strides[] = {229, 229, 41};
    for (int which = 0; which < 3; which++) {
        const char *whole;
        law_args args = run_of(which, &whole);
        law_run(&args);
        check_anywhere(which, strides[which], whole);
    }
}

/* long_run() with an evaluation before its first step. */
static law_args long_steps(const char *sampler, const char *out)
{
    law_args args = long_run(sampler, out, false);
    law_add_all(&args, "--eval_interval=4", "--eval_iters=3");
    return args;
}

/* Evaluation 0 is done, step 0 is not: a resume from checkpoint 0 repeats both. */
TEST(test_behind_first_evaluation)
{
    for (int which = 0; which < 2; which++) {
        const char *out, *whole = lks_test_folder();
        law_args args = long_steps(samplers[which], whole);
        law_run(&args);
        for (int W = 1; W <= 2; W++) {
            out = lks_test_folder();
            args = long_steps(samplers[which], out);
            lks_test_result r = train(args, W, "read:1000:term", W - 1);
            expect_stop(&r, "unfinished step is discarded");
            assert_contains(lks_test_read(lks_test_text("%s/train.log", out), NULL), "step 0: ");
            assert_int_equal(check_saved(out), 0);
            go_on(args, 3 - W);
            assert_whole(out, whole);
        }
    }
}

/* ---- saves --------------------------------------------------------------------------------- */

/* One signal, or two, don't interrupt a save; a third does. The calls are slowed down, because
 * signals within 0.3 s count as one. */
TEST(test_save)
{
    const char *out;
    law_args args = law_train("nanogpt", &out);
    law_add(&args, "--threads=1");
    lks_test_result r = train(args, 1, "fsync:1:term,fsync:2:slow,fsync:3:term", 0);
    expect_stop(&r, "unfinished step is discarded");
    assert_int_equal(check_saved(out), 3);
    go_on(args, 4);
    assert_whole(out, law_output("nanogpt", "--threads=1"));

    args = law_train("nanogpt", &out);
    law_add(&args, "--threads=1");
    r = train(args, 1,
              "fsync:1:term,fsync:2:slow,write:8:slow,fsync:3:term,fsync:4:slow,rename:1:term", 0);
    assert_int_equal(r.signal, SIGTERM);
}

/* The same through the launcher, whose signals arrive while rank 0's save takes seconds. */
static lks_test_result signalled(int n, const char *out, law_args args, const char *fault)
{
    const char *mark = marked_variable();
    const char *env[] = {lks_test_text("LOCKSTEP_FAULT=%s", fault), "LOCKSTEP_FAULT_RANK=0", mark,
                         NULL};
    law_add(&args, "--nproc_per_node=2");
    lks_test_child run = lks_test_start(args.argv, env);
    for (int i = 0; i < lks_test_tries(30000); i++) {
        if (lks_test_exists(lks_test_text("%s/ckpt-00000003.tmp", out)))
            break;
        usleep(1000);
    }
    for (int i = 0; i < n; i++) {
        kill(run.pid, SIGTERM);
        usleep(600000);
    }
    lks_test_result r = lks_test_wait(&run, 60);
    marked_assert_gone(mark, 2);
    return r;
}

TEST(test_launcher)
{
    static const char slow[] = "fsync:1:slow,fsync:2:slow,fsync:3:slow,fsync:4:slow,fsync:5:slow";
    const char *out;
    law_args args = law_train("random", &out);
    lks_test_result r = signalled(2, out, args, slow);
    expect_stop(&r, "a checkpoint is being saved");
    assert_int_equal(check_saved(out), 3);

    args = law_train("random", &out);
    assert_exits(128 + SIGKILL, signalled(3, out, args, slow), "the ranks were killed");

    /* Its time limit counts from the last heartbeat: each of these waits is shorter. */
    args = law_train("random", &out);
    law_add(&args, "--shutdown_timeout=%g", 1.4 * lks_test_patience());
    r = signalled(1, out, args, slow);
    expect_stop(&r, "stopped by signal 15");
    assert_int_equal(check_saved(out), 3);

    args = law_train("random", &out);
    law_add(&args, "--shutdown_timeout=%g", 1.4 * lks_test_patience());
    assert_exits(128 + SIGKILL, signalled(1, out, args, "fsync:2:hang"),
                 "lockstep train: rank 0 (pid ", " of its last heartbeat at step ");
}

/* Two signals at once count as one; a later second one ends the process, unless it saves. */
TEST(test_second)
{
    const char *out;
    law_args args = law_train("random", &out);
    law_add(&args, "--threads=1");
    lks_test_result r = train(args, 1, "read:200:term,read:201:term", 0);
    expect_stop(&r, "unfinished step is discarded");
    check_saved(out);
    args = law_train("random", &out);
    law_add(&args, "--threads=1");
    r = train(args, 1, "read:200:term,read:201:slow,read:202:term", 0);
    assert_int_equal(r.signal, SIGTERM);
}

/* ---- before the first step ------------------------------------------------------------------ */

/* Lines of the metrics except the final evaluation, which a resume makes again; and `latest`. */
static const char *state_of(const char *out)
{
    const char *text = "";
    for (const char *p = law_lines(out), *end; *p != '\0'; p = end) {
        end = strchr(p, '\n') + 1;
        if (strncmp(p, "{\"kind\":\"final\"", 15) != 0)
            text = lks_test_text("%s%.*s", text, (int)(end - p), p);
    }
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "state.json"};
    for (int i = 0; i < 3; i++)
        text = lks_test_text("%s%s\n", text,
                             lks_test_sha256(lks_test_text("%s/latest/%s", out, files[i])));
    return text;
}

/* During set-up nothing is written, from scratch or on a resume; in the first step of a resumed run
 * the loaded checkpoint stays as it is. Iteration 3 has only a checkpoint; 4 would have an
 * evaluation; 12 has both, and a resume writes the checkpoint again. */
TEST(test_nothing_new)
{
    const char *out;
    law_args args = law_train("nanogpt", &out);
    for (int W = 1; W <= 4; W *= 2) {
        lks_test_result r = train(args, W, "read:2:term", W - 1);
        expect_stop(&r, "during setup: nothing was trained");
        assert_int_equal(lks_test_count_files(out), 0);
    }
    static const int lasts[] = {2, 3, 11};
    for (int i = 0; i < 3; i++) {
        args = law_train("nanogpt", &out);
        law_add(&args, "--max_iters=%d", lasts[i]);
        law_run(&args);
        const char *before = state_of(out);
        law_add_line(&args, "--init_from=resume --max_iters=%d", LAW_LAST_ITER);
        lks_test_result r = train(args, 2, "read:9:term", 1);
        expect_stop(&r, "during setup");
        assert_string_equal(state_of(out), before);
        r = train(args, 2, "lock:1:term", 0); /* when the run locks its folder */
        expect_stop(&r, "is discarded");
        assert_string_equal(state_of(out), before);
    }
}

/* The signal is answered at once, even if the current micro-batch never ends. */
TEST(test_answered_at_once)
{
    const char *out, *env[] = {"LOCKSTEP_FAULT=read:150:term,read:151:hang", NULL};
    law_args args = law_train("random", &out);
    lks_test_child child = lks_test_start(args.argv, env);
    lks_test_wait_for_text(child.err_path,
                           "lockstep train: stopping once the batch under way is done; a second "
                           "signal ends the run at once, and a third while it saves\n");
    assert_int_equal(kill(child.pid, SIGKILL), 0);
    assert_int_equal(lks_test_wait(&child, 60).signal, SIGKILL);
}
