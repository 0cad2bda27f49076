/* Losses that are not finite: all ranks find them, name them and follow --on_nan, with the same
 * bytes on any number of ranks. poison.h describes their cause. */
#include "poison.h"

#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "compute/cpu/device.h"
#include "data/tokens.h"
#include "model/model.h"
#include "train/checkpoint.h"
#include "train/procedure/procedure.h"
#include "train/setup/trainer.h"
#include "train/step.h"

enum { FIRST = 2, STEPS = 10 };

/* FIRST steps, whose checkpoint has the bad embedding. */
static void begin(const char *out, const char *dataset)
{
    law_args first = poison_train(out, 1);
    law_add(&first, "--iterations=%d", FIRST);
    law_add(&first, "--dataset=%s", dataset);
    law_run(&first);
    poison_embedding(out);
}

/* A copy of such a run, resumed on W ranks. Its artifact at the end can't be written; everything
 * else is. */
static lks_test_result go_on(int W, const char *dataset, const char *const more[],
                             const char **out_p)
{
    static const char *begun;
    *out_p = lks_test_folder();
    law_args args = poison_train(*out_p, W);
    law_add(&args, "--dataset=%s", dataset);
    if (begun == NULL)
        begin(begun = lks_test_folder(), poison_data());
    if (dataset == poison_data()) {
        lks_test_do("cp", "-a", lks_test_text("%s/.", begun), *out_p);
    } else {
        begin(*out_p, dataset);
    }
    law_add_line(&args, "--init_from=resume --iterations=%d", STEPS);
    law_add_words(&args, more);
    return lks_test_run(args.argv, NULL, 60);
}
#define GO_ON(W, out_p, ...)                                                                       \
    go_on((W), poison_data(), (const char *const[]){__VA_ARGS__, NULL}, (out_p))

static void check_line(const char *out, const char *kind, size_t i, int iter, int v, int m)
{
    const json_t *line = json_array_get(lks_test_record(out, kind), i);
    assert_int_equal(lks_test_number(line, "iter"), iter);
    assert_int_equal(lks_test_number(line, "virtual_rank"), v);
    assert_int_equal(lks_test_number(line, "micro_batch"), m);
    assert_string_equal(lks_test_string(line, "place"), "tok_emb");
    assert_string_equal(lks_test_string(line, "what"), "loss");
}

static size_t count(const char *out, const char *kind)
{
    return json_array_size(lks_test_record(out, kind));
}

static void assert_ran_to_end(const lks_test_result *r)
{
    if (r->exit_code != 1 || strstr(r->err, "tensor tok_emb.weight can't be exported") == NULL)
        fail_msg("exit code %d: %s", r->exit_code, r->err);
}

TEST(test_stop)
{
    for (int W = 1; W <= 4; W += 3) {
        const char *out;
        lks_test_result r =
            assert_exits(1, GO_ON(W, &out, "--on_nan=stop"),
                         lks_test_text("iteration 5: the loss of micro-batch 1 of virtual "
                                       "rank 2 (rank %d) is",
                                       W == 1 ? 0 : 2),
                         "is the output of tok_emb;");
        assert_null(strstr(r.err, "-nan")); /* the sign of a NaN means nothing */
        assert_contains(r.err, ") is nan; the first that ",
                        lks_test_text("\nlockstep train: the newest checkpoint in %s is "
                                      "ckpt-00000004; to continue from iteration 4: "
                                      "lockstep resume %s\n",
                                      out, out));
        assert_true(lks_test_exists(lks_test_text("%s/ckpt-00000004", out)));
        assert_int_equal(law_count_checkpoints(out), 2);
    }
}

/* Counts that no run writes: one would overflow with the next step, one is negative, and one says
 * that the time was measured from a later step on. */
TEST(test_false_counts)
{
    static const struct {
        const char *name;
        int value;
    } rows[] = {{"nonfinite", INT_MAX}, {"data_shift", -1}, {"elapsed_from", 1000}};
    const char *out = lks_test_folder();
    law_args args = poison_train(out, 1);
    law_add(&args, "--iterations=2");
    law_run(&args);
    law_add_all(&args, "--init_from=resume", "--iterations=4");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        poison_state(out, rows[i].name, json_integer(rows[i].value));
        assert_exits(1, lks_test_run(args.argv, NULL, 60),
                     "data_shift, nonfinite or elapsed_from is no count");
        poison_state(out, rows[i].name, json_integer(0));
    }
}

TEST(test_skip)
{
    const char *reference = NULL, *out;
    const int step = getenv("LKS_TEST_PROGRAM") == NULL ? 1 : 3; /* those take long */
    for (int W = 1; W <= 4; W += step) {
        lks_test_result r = GO_ON(W, &out, "--on_nan=skip");
        assert_ran_to_end(&r);
        assert_int_equal(count(out, "skip"), 2);
        assert_int_equal(count(out, "train"), STEPS - 2);
        check_line(out, "skip", 0, 5, 2, 1);
        check_line(out, "skip", 1, 6, 0, 0);
        reference = reference == NULL ? out : reference;
        law_assert_same(out, reference);
    }
    /* Two in a row are more than one. */
    assert_exits(1, GO_ON(2, &out, "--on_nan=skip", "--on_nan_limit=1"),
                 "iteration 6: ", "on_nan_limit");
    static const char model[] = "ckpt-00000006/model.safetensors";
    assert_same_file(lks_test_text("%s/%s", out, model), lks_test_text("%s/%s", reference, model));
}

/* The checkpoint records how many were skipped in a row before it: skip 5, restart, skip 6. */
TEST(test_skip_over_a_restart)
{
    const char *out;
    lks_test_result r = GO_ON(2, &out, "--on_nan=skip", "--iterations=6");
    assert_ran_to_end(&r);
    assert_int_equal(count(out, "skip"), 1);
    law_args args = poison_train(out, 2);
    law_add_line(&args, "--init_from=resume --iterations=%d --on_nan_limit=1", STEPS);
    assert_exits(1, lks_test_run(args.argv, NULL, 60),
                 "iteration 6: ", "once more than on_nan_limit allows");
}

/* Data with a third bad step, in micro-batch 1 of virtual rank 3. */
static const char *with_third(int step)
{
    const int at = ((step * POISON_A + 1) * POISON_V + 3) * (POISON_T + 1) + 2;
    const char *dir = lks_test_folder();
    const uint16_t poison = POISON_VOCAB - 1;
    poison_write_data(dir);
    lks_test_overwrite(lks_test_text("%s/fineweb_train_000000.bin", dir),
                       LKS__SHARD_HEADER + at * (long)sizeof poison, &poison, sizeof poison);
    return dir;
}

/* A good step in between ends the row: 5, 6 and 8 are not three in a row. */
TEST(test_skip_not_in_a_row)
{
    const char *out;
    const char *const more[] = {"--on_nan=skip", "--on_nan_limit=2", NULL};
    lks_test_result r = go_on(2, with_third(8), more, &out);
    assert_ran_to_end(&r);
    assert_int_equal(count(out, "skip"), 3);
    check_line(out, "skip", 1, 6, 0, 0);
    check_line(out, "skip", 2, 8, 3, 1);
}

/* Each goes back to the newest checkpoint, which isn't written again, and the data go on behind the
 * bad step. */
static void check_ways_back(const char *out)
{
    const json_t *lines = lks_test_record(out, NULL), *line;
    int newest = -1, shift = 0;
    size_t i;
    json_array_foreach(lines, i, line)
    {
        const char *kind = json_string_value(json_object_get(line, "kind"));
        const int iter = (int)json_integer_value(json_object_get(line, "iter"));
        if (strcmp(kind, "checkpoint") == 0) {
            assert_true(iter > newest);
            newest = iter;
        }
        if (strcmp(kind, "rollback") == 0) {
            shift += iter + 1 - newest;
            assert_int_equal(lks_test_number(line, "to"), newest);
            assert_int_equal(lks_test_number(line, "data_shift"), shift);
        }
    }
    assert_true(shift > 0);
}

/* From iteration 5 back to checkpoint 4, twice: after the data of iteration 5 come those of 6. */
TEST(test_rollback)
{
    const char *reference = NULL, *out;
    for (int W = 1; W <= 4; W++) {
        lks_test_result r = GO_ON(W, &out, "--on_nan=rollback",
                                  W % 2 == 0 ? "--replicas=private" : "--replicas=shared");
        assert_ran_to_end(&r);
        assert_int_equal(count(out, "rollback"), 2);
        check_line(out, "rollback", 0, 5, 2, 1);
        check_line(out, "rollback", 1, 4, 0, 0);
        check_ways_back(out);
        reference = reference == NULL ? out : reference;
        law_assert_same(out, reference);
    }
    /* Killed after it went back, before the next checkpoint: it goes back again. Killed later: the
     * next checkpoint has where in the data the run is. */
    law_args again = {.n = 0};
    lks_test_result r;
    for (int last = 4; last <= 6; last += 2) {
        lks_test_do("sh", "-c",
                    lks_test_text("cd \"$0\" && rm -r %s ckpt-00000008 "
                                  "ckpt-00000010 latest && ln -s ckpt-%08d latest",
                                  last == 4 ? "ckpt-00000006" : "", last),
                    out);
        again = poison_train(out, 2);
        law_add(&again, "--init_from=resume");
        r = lks_test_run(again.argv, NULL, 60);
        assert_ran_to_end(&r);
        law_assert_same(out, reference);
    }
    /* Too often. */
    assert_exits(1, GO_ON(2, &out, "--on_nan=rollback", "--on_nan_limit=1"),
                 "iteration 4: ", "on_nan_limit");
}

static void resume_with_two_virtual_ranks(const char *out, int W)
{
    law_args again = poison_train(out, W);
    law_add_all(&again, "--init_from=resume", "--virtual_ranks=2", "--on_nan=rollback");
    law_add(&again, "--iterations=%d", STEPS);
    lks_test_result r = lks_test_run(again.argv, NULL, 60);
    assert_ran_to_end(&r);
    assert_int_equal(count(out, "rollback"), 2);
    check_ways_back(out);
}

/* A run that has just changed its virtual ranks goes back to a checkpoint of the segment before:
 * its batch and its place in the data stay. It is killed later, and goes on from checkpoint 6. */
TEST(test_rollback_segment)
{
    const char *outs[2];
    for (int i = 0; i < 2; i++) {
        lks_test_result r = GO_ON(2, &outs[i], "--iterations=4");
        assert_ran_to_end(&r);
        resume_with_two_virtual_ranks(outs[i], i + 1);
    }
    law_assert_same(outs[1], outs[0]);
    lks_test_do("sh", "-c",
                "cd \"$0\" && rm -r ckpt-00000008 ckpt-00000010 latest && ln -s "
                "ckpt-00000006 latest",
                outs[1]);
    resume_with_two_virtual_ranks(outs[1], 1);
    law_assert_same(outs[1], outs[0]);
    const json_t *saved = lks_test_figure(lks_test_text("%s/latest/state.json", outs[0]));
    assert_int_equal(lks_test_number(saved, "segment.iter"), 4);
    assert_int_equal(lks_test_number(saved, "segment.tokens"), 4 * POISON_V * POISON_A * POISON_T);
    assert_int_equal(lks_test_number(saved, "segment.step"), 4);
}

/* Resume a copy of the begun run on 2 ranks; rank 0 sends itself the signal at its n-th read. */
static lks_test_result signalled(int n, const char *signal, const char **out_p)
{
    setenv("LOCKSTEP_FAULT", lks_test_text("read:%d:%s", n, signal), 1);
    setenv("LOCKSTEP_FAULT_RANK", "0", 1);
    lks_test_result r = GO_ON(2, out_p, "--on_nan=rollback");
    unsetenv("LOCKSTEP_FAULT");
    unsetenv("LOCKSTEP_FAULT_RANK");
    return r;
}

static bool has_fifth(const char *out)
{
    return strstr(law_lines(out), "\"checkpoint\",\"iter\":5,") != NULL;
}

/* Continue one that was stopped at checkpoint 5, after which comes the bad iteration; *n_p: its
 * number of reads until then, which is searched for. */
static lks_test_result stopped_at_fifth(int *n_p, const char **out_p)
{
    lks_test_result r;
    for (int low = 0, high = 256; high - low > 1;) {
        *n_p = (low + high) / 2;
        r = signalled(*n_p, "term", out_p);
        const char *lines = law_lines(*out_p); /* of the begun run, if it stops in its set-up */
        const bool late = strstr(lines, "\"rollback\"") != NULL;
        if (!late && has_fifth(*out_p)) {
            assert_int_equal(r.exit_code, 128 + SIGTERM);
            law_args again = poison_train(*out_p, 1);
            law_add_line(&again, "--init_from=resume --iterations=%d", STEPS);
            return lks_test_run(again.argv, NULL, 60);
        }
        *(late ? &high : &low) = *n_p;
    }
    fail_msg("no stop leads to checkpoint 5");
    return r;
}

static lks_test_result saved_at_fifth(int n, const char **out_p)
{
    lks_test_result r;
    for (int i = 1; i < 16; i += 2) {
        r = signalled(n - i, "usr1", out_p);
        if (has_fifth(*out_p))
            return r;
    }
    fail_msg("no save leads to checkpoint 5");
    return r;
}

/* A run that is stopped, or saves by a signal, at checkpoint 5 goes back to checkpoint 4 all the
 * same: its bytes are those of the undisturbed run. (shared/studies/resume-and-rollback/c1.) */
TEST(test_rollback_disturbed)
{
    const char *reference, *out;
    int n = 0;
    lks_test_result r = GO_ON(1, &reference, "--on_nan=rollback");
    for (int saves = 0; saves < 2; saves++) {
        r = saves ? saved_at_fifth(n, &out) : stopped_at_fifth(&n, &out);
        assert_ran_to_end(&r);
        law_assert_same_lines(law_undisturbed_lines(out), law_undisturbed_lines(reference));
        law_assert_same_checkpoints(out, reference);
    }
}

/* A rollback after a resume from an older checkpoint doesn't go to the history that was left.
 * (shared/studies/resume-and-rollback/c3b.) */
TEST(test_rollback_other_history)
{
    const char *outs[2];
    GO_ON(1, &outs[0], "--iterations=4", "--matrix_lr=0.2"); /* checkpoint 4 of that history */
    GO_ON(1, &outs[1], "--iterations=2");
    for (int i = 0; i < 2; i++) {
        law_args again = poison_train(lks_test_text("%s/ckpt-00000002", outs[i]), 2);
        law_add_all(&again, "--init_from=resume", "--on_nan=rollback", "--checkpoint_interval=10");
        law_add(&again, "--iterations=%d", STEPS);
        lks_test_result r = lks_test_run(again.argv, NULL, 60);
        assert_ran_to_end(&r);
        assert_int_equal(lks_test_number(lks_test_record(outs[i], "rollback"), "0.to"), 2);
    }
    law_assert_same_lines(law_lines(outs[0]), law_lines(outs[1]));
    law_assert_same_checkpoints(outs[0], outs[1]);
    assert_true(lks_test_exists(lks_test_text("%s/earlier-1/ckpt-00000004", outs[0])));
    assert_false(lks_test_exists(lks_test_text("%s/earlier-1", outs[1])));
}

/* A checkpoint after each step, because rank 0's clock asks for it, is never the target: the run
 * goes back to the same ones as without a clock, and is the same run. */
TEST(test_rollback_with_clock)
{
    const char *reference, *out;
    lks_test_result r = GO_ON(1, &reference, "--on_nan=rollback", "--checkpoint_minutes=off");
    assert_ran_to_end(&r);
    r = GO_ON(2, &out, "--on_nan=rollback", "--checkpoint_minutes=1e-9");
    assert_ran_to_end(&r);
    assert_contains(law_lines(out), "\"iter\":5,\"path\":\"ckpt-00000005\",");
    law_assert_same_lines(law_undisturbed_lines(out), law_undisturbed_lines(reference));
    law_assert_same_checkpoints(out, reference);
    law_assert_same_leaves(out, reference);
    assert_int_equal(law_count_checkpoints(out), law_count_checkpoints(reference));
    /* Nor does it end a row of failures: 5, then twice from checkpoint 2. */
    const char *const more[] = {"--on_nan=rollback", "--on_nan_limit=2",
                                "--checkpoint_minutes=1e-9", "--checkpoint_interval=10", NULL};
    assert_exits(1, go_on(2, with_third(8), more, &out), "iteration 3: ", "on_nan_limit");
}

/* Once a checkpoint lies behind the last one to which the run went back, it counts anew. Iterations
 * 4 to 7 read the data of steps 7 to 10 then. */
TEST(test_rollback_counts)
{
    const char *out;
    const char *const more[] = {"--on_nan=rollback", "--on_nan_limit=2", NULL};
    lks_test_result r = go_on(2, with_third(10), more, &out);
    assert_ran_to_end(&r);
    assert_int_equal(count(out, "rollback"), 3);
    check_line(out, "rollback", 2, 7, 3, 1);
}

static double elapsed(const char *out)
{
    const char *text = lks_test_read(lks_test_text("%s/latest/state.json", out), NULL);
    return lks_test_number(lks_test_json(text), "elapsed_s");
}

/* max_wallclock_seconds counts the time of steps that were rolled back. The limit isn't reached, so
 * the result doesn't depend on the machine's speed. */
TEST(test_rollback_time)
{
    const char *out;
    double ms = 0.0;
    lks_test_result r = GO_ON(2, &out, "--on_nan=rollback", "--max_wallclock_seconds=1e6");
    assert_ran_to_end(&r);
    assert_int_equal(count(out, "rollback"), 2);
    const json_t *lines = lks_test_record(out, "train"), *line;
    size_t i;
    json_array_foreach(lines, i, line)
    {
        if (i >= FIRST) /* before those, the run had no time limit */
            ms += lks_test_number(line, "ms");
    }
    assert_true(elapsed(out) * 1e3 > ms);
    const char *text = lks_test_text("%s/latest/state.json", out);
    assert_contains(lks_test_read(text, NULL), lks_test_text("\"elapsed_from\": %d,", FIRST));
}

/* The time runs out in a step that is rolled back. The checkpoint to which the run goes back is
 * then its last one, and is written again, with the time: a resume knows that the run is complete.
 */
TEST(test_rollback_out_of_time)
{
    const char *out;
    const char *const more[] = {"--on_nan=rollback", "--max_wallclock_seconds=1e-6", NULL};
    const char *data = with_third(FIRST);
    lks_test_result r = go_on(2, data, more, &out);
    assert_ran_to_end(&r);
    assert_int_equal(count(out, "rollback"), 1);
    assert_int_equal(count(out, "train"), FIRST);
    assert_true(elapsed(out) >= 1e-6);
    const char *saved = lks_test_read(lks_test_text("%s/latest/state.json", out), NULL);
    assert_contains(saved, "\"nonfinite\": 1"); /* as before */
    law_args args = poison_train(out, 1);
    law_add(&args, "--dataset=%s", data);
    law_add_all(&args, "--init_from=resume", "--max_wallclock_seconds=1e-6");
    r = lks_test_run(args.argv, NULL, 60);
    assert_ran_to_end(&r);
    assert_contains(r.err, "the run is complete; with a larger max_wallclock_seconds");
}

/* Forward stays small (c_fc is zero), but backward goes through c_proj. */
static void spoil_gradient(const char *name, float *x, size_t n, size_t width)
{
    bool fc = strcmp(name, "transformer.h.1.mlp.c_fc.weight") == 0;
    bool fc2 = strcmp(name, "transformer.h.1.mlp.c_proj.weight") == 0;
    for (size_t i = 0; i < n; i++) {
        if (fc)
            x[i] = 0.0f;
        if (fc2 && i < width)
            x[i] = 3e38f;
        if (strcmp(name, "transformer.ln_f.weight") == 0)
            x[i] *= 1e4f;
    }
}

TEST(test_gradient)
{
    const char *dir = lks_test_folder();
    lks_test_generated_tokens(dir);
    for (int W = 1; W <= 2; W++) {
        const char *out = lks_test_folder();
        for (int resumed = 0; resumed < 2; resumed++) {
            lks_test_result r = assert_exits(
                resumed,
                lks_test_tool("train", lks_test_text("--dataset=%s", dir),
                              lks_test_text("--out_dir=%s", out), "--vocab_size=65", "--n_layer=2",
                              "--n_head=2", "--n_embd=16", "--block_size=16", "--batch_size=2",
                              "--gradient_accumulation_steps=4", "--warmup_iters=0",
                              "--eval_interval=0", lks_test_text("--max_iters=%d", resumed * 4),
                              lks_test_text("--nproc_per_node=%d", W),
                              W == 1 ? "--freeze=ln_f" : "--dropout=0", /* it has no gradient */
                              resumed ? "--init_from=resume" : "--init_from=scratch"));
            if (resumed)
                assert_contains(
                    r.err, "iteration 1: the gradient of micro-batch 0 of virtual rank 0 (rank "
                           "0) isn't finite, though its loss is; backward makes it first in "
                           "transformer.h.1.mlp.c_fc.weight;");
            else
                poison_alter(out, POISON_MODEL, spoil_gradient);
        }
    }
}

enum { N_STEPS = 8, N_OFFSETS = 4 * 2 };

static void open_trainer(lks__trainer *t, const char *sampler)
{
    lks__settings s;
    lks_test_settings(&s, "--vocab_size=65", "--n_layer=1", "--n_head=1", "--n_embd=16",
                      "--block_size=8", "--batch_size=2", "--gradient_accumulation_steps=4",
                      "--virtual_ranks=4", "--on_nan=rollback", "--eval_iters=4",
                      lks_test_text("--sampler=%s", sampler),
                      lks_test_text("--dataset=%s", law_data()),
                      lks_test_text("--out_dir=%s", lks_test_folder()));
    assert_ok(lks__trainer_open(&s, t, &(int){0}));
}

/* Make one step; returns the offsets of its samples. */
static void step(lks__trainer *t, uint64_t offsets[N_OFFSETS])
{
    lks__step_result r;
    assert_ok(lks__train_step(t, &r));
    memcpy(offsets, t->work.offsets, N_OFFSETS * sizeof *offsets);
}

/* Make the steps of iterations first .. end - 1, with an evaluation before iteration `evaluated`.
 */
static void steps(lks__trainer *t, int first, int end, int evaluated, uint64_t offsets[][N_OFFSETS])
{
    lks__eval_result eval;
    for (int i = first; i < end; i++) {
        if (i == evaluated)
            assert_ok(t->run.procedure->evaluate(t, &eval));
        step(t, offsets[i]);
    }
}

/* Back from iteration 4 to checkpoint 2: iteration 2 gets the data of 5, and so on, even if the
 * sampler's generators have drawn for an evaluation in between (-1: for none). */
static void check_data_behind(const char *sampler, int evaluated)
{
    lks__trainer t;
    uint64_t plain[N_STEPS][N_OFFSETS], seen[N_STEPS][N_OFFSETS];
    char name[32], hash[17];
    open_trainer(&t, sampler);
    steps(&t, 0, N_STEPS, evaluated, plain);
    lks__trainer_close(&t);
    open_trainer(&t, sampler);
    steps(&t, 0, 2, evaluated, seen);
    assert_ok(lks__state_save(&t, &(lks__save_about){.val_loss = NAN}, name, hash));
    steps(&t, 2, 5, evaluated, seen);
    assert_ok(lks__trainer_go_back(&t));
    assert_int_equal(t.state.iter, 2);
    assert_int_equal(t.state.data_shift, 3);
    steps(&t, 5, N_STEPS, -1, seen);
    assert_memory_equal(seen, plain, sizeof seen);
    lks__trainer_close(&t);
}

TEST(test_data_behind)
{
    for (int evaluated = -1; evaluated <= 4; evaluated += 5) {
        check_data_behind("random", evaluated);
        check_data_behind("nanogpt", evaluated);
    }
}

/* The time of a run by the clock continues over a rollback: its limit may have been reached in the
 * bad step, or been given by a resume after the target. Good steps don't reset the number of
 * rollbacks, which would then never end. */
TEST(test_kept_behind)
{
    lks__trainer t;
    lks__settings s;
    char name[32], hash[17];
    law_args args = poison_train(lks_test_folder(), 0);
    law_add_all(&args, "--on_nan=rollback", "--max_wallclock_seconds=1000");
    lks_test_parse(&s, args.argv + 2);
    assert_ok(lks__trainer_open(&s, &t, &(int){0}));
    t.state.nonfinite = 1;
    for (int i = 0; i < 3; i++) {
        if (i == 2)
            assert_ok(lks__state_save(&t, &(lks__save_about){.val_loss = NAN}, name, hash));
        assert_ok(lks__train_step(&t, &(lks__step_result){0}));
    }
    assert_int_equal(t.state.nonfinite, 1);
    t.state.nonfinite = 2;
    t.state.elapsed_from = 1;
    t.state.elapsed_s = 1001.0;
    t.checks.out_of_time = true;
    assert_ok(lks__trainer_go_back(&t));
    assert_int_equal(t.state.iter, 2);
    assert_int_equal(t.state.nonfinite, 2);
    assert_int_equal(t.state.elapsed_from, 1);
    assert_true(t.state.elapsed_s == 1001.0);
    assert_true(t.checks.out_of_time);
    lks__trainer_close(&t);
}

/* The module that is named as the source, for a bad number in each of a model's tensors. */
static void check_places(const struct lks__model_ops *ops, const char *const places[][2],
                         size_t n_places)
{
    lks__model_config config = {.ops = ops,
                                .n_layer = 2,
                                .n_head = 2,
                                .n_embd = 16,
                                .block_size = POISON_T,
                                .vocab_size = POISON_VOCAB,
                                .n_kv_head = 1,
                                .mlp_mult = 2,
                                .tied_embed_init_std = 0.02f,
                                .logit_softcap = 30,
                                .rope_base = 10000,
                                .qk_gain_init = 1};
    static int32_t ids[POISON_T];
    lks__micro_batch mb = {ids, ids, 1, POISON_T};
    lks__backward bw = {.grads = NULL};
    lks__table table;
    lks__model *model;
    lks__kernels kernels;
    lks__mt g;
    assert_ok(lks__kernels_open(LKS__CPU_PLAIN, &kernels));
    lks__exec ex = {.k = &kernels};
    assert_ok(lks__pool_open(1, LKS__EXEC_SCRATCH_BYTES, lks__kernels_thread_init, &ex.pool));
    assert_ok(lks__model_table(&config, &table));
    lks__device device = lks__device_cpu(&ex);
    assert_ok(lks__model_open(&config, &table, 1, &device, &model));
    float *params = lks_test_calloc(table.count, sizeof *params);
    lks__mt_seed(&g, 1);
    lks__model_init(&config, &table, &g, params);
    for (size_t i = 0; i < n_places; i++) {
        char place[LKS__PLACE];
        const lks__table_tensor *t = lks__table_find(&table, places[i][0]);
        assert_non_null(t);
        float kept = params[t->offset];
        params[t->offset] = NAN;
        assert_ok(lks__model_find_bad(model, params, &mb, &bw, place));
        assert_string_equal(place, places[i][1]);
        params[t->offset] = kept;
    }
    free(params);
    lks__model_close(model);
    lks__pool_close(ex.pool);
    lks__table_free(&table);
}

TEST(test_places)
{
    static const char *const gpt2[][2] = {
        {"transformer.wpe.weight", "transformer.wte"},
        {"transformer.h.0.ln_1.weight", "transformer.h.0.ln_1"},
        {"transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn"},
        {"transformer.h.1.attn.c_proj.weight", "transformer.h.1.attn.c_proj"},
        {"transformer.h.1.mlp.c_fc.weight", "transformer.h.1.mlp.c_fc"},
        {"transformer.h.1.mlp.c_proj.weight", "transformer.h.1.mlp.c_proj"},
        {"transformer.ln_f.weight", "transformer.ln_f"},
    };
    static const char *const golf[][2] = {
        {"tok_emb.weight", "tok_emb"},
        {"blocks.0.resid_mix", "blocks.0.attn.c_q"},
        {"blocks.0.attn.c_k.weight", "blocks.0.attn.c_k"},
        {"blocks.1.attn.proj.weight", "blocks.1.attn.proj"},
        {"blocks.1.mlp.fc.weight", "blocks.1.mlp.fc"},
        {"blocks.1.mlp_scale", "blocks.1.mlp.proj"},
        {"lm_head.weight", "lm_head"},
    };
    check_places(&lks__model_gpt2, gpt2, sizeof gpt2 / sizeof gpt2[0]);
    check_places(&lks__model_golf, golf, sizeof golf / sizeof golf[0]);
}

/* argv[1]: the only test to run. */
int main(int argc, char **argv)
{
    if (argc > 1)
        lks_test_only(argv[1]);
    return lks_test_run_all(NULL, NULL);
}
