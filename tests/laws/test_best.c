/* A model that overfits: after any saving, pruning, killing and resuming, `best` names the
 * checkpoint with the lowest validation loss in metrics.jsonl, and evaluating it gives that
 * loss. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "laws.h"

#include "files/safetensors/safetensors.h"
#include "train/loop/loop.h"
#include "train/setup/trainer.h"

enum { EVERY = 5, ROUND = 12 }; /* iterations between evaluations; iterations of each resume */

/* Every second token follows from the one before, which is learned soon. The others are noise;
 * learning them doesn't help on the validation split. */
static const char *noise(void)
{
    static const char *dir;
    uint16_t ids[600];
    uint32_t x = 1;
    if (dir != NULL)
        return dir;
    dir = lks_test_folder();
    for (size_t i = 0; i < 600; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = (uint16_t)(i % 2 == 0 ? (x >> 16) % 16 : (ids[i - 1] * 5u + 3) % 16);
    }
    lks_test_write(lks_test_text("%s/train.bin", dir), ids, 300 * sizeof *ids);
    lks_test_write(lks_test_text("%s/val.bin", dir), ids + 300, 300 * sizeof *ids);
    return dir;
}

static law_args train(const char *out, int last_iter)
{
    law_args args = law_begin(noise(), out);
    law_add_line(&args,
                 "--vocab_size=16 --n_layer=1 --n_head=2 --n_embd=32 --block_size=8 "
                 "--batch_size=8 --eval_iters=8 --gradient_accumulation_steps=4 --keep=3 "
                 "--checkpoint_interval=2 --threads=1 --learning_rate=8e-3 --warmup_iters=2 "
                 "--lr_decay_iters=1000 --sampler=nanogpt --virtual_ranks=4 "
                 "--eval_interval=%d --max_iters=%d",
                 EVERY, last_iter);
    return args;
}

/* Run or resume to iteration `last_iter`. */
static void go_on(const char *out, int last_iter, const char *more)
{
    law_args args = train(out, last_iter);
    if (lks_test_exists(lks_test_text("%s/latest", out)))
        law_add(&args, "--init_from=resume");
    if (more != NULL)
        law_add(&args, "%s", more);
    law_run(&args);
}

static const json_t *lines(const char *out, const char *kind)
{
    return lks_test_record(out, kind);
}

/* The iteration with the lowest loss of all evaluations except the first, or of those up to `last`,
 * or `with_checkpoint`. */
static int lowest_of(const char *out, int last, bool with_checkpoint)
{
    const json_t *evals = lines(out, "eval");
    double lowest = 1e9;
    int at = -1;
    for (size_t i = 0; i < json_array_size(evals); i++) {
        const json_t *e = json_array_get(evals, i);
        int iter = (int)lks_test_number(e, "iter");
        if (iter == 0 || iter > last || lks_test_number(e, "val_loss") >= lowest)
            continue;
        if (with_checkpoint && !lks_test_exists(lks_test_text("%s/ckpt-%08d", out, iter)))
            continue;
        lowest = lks_test_number(e, "val_loss");
        at = iter;
    }
    return at;
}

static int lowest_up_to(const char *out, int last)
{
    return lowest_of(out, last, false);
}

static int lowest(const char *out)
{
    return lowest_of(out, 1 << 30, false);
}

/* The loss that `lockstep eval` prints for the checkpoint that it uses, which must be `took`. */
static const char *loss_of(const char *out, const char *which, const char *took)
{
    lks_test_result r =
        lks_test_do("lockstep", "eval", lks_test_text("--dataset=%s", noise()),
                    lks_test_text("--out_dir=%s", out), lks_test_text("--which=%s", which));
    assert_contains(r.out, lks_test_text(", %s\n", took));
    return lks_test_text("%.*s", (int)(strrchr(r.out, ',') - r.out), r.out);
}

/* Number of checkpoints without `asked`: at most --keep, and the best one. */
static int improvements_kept(const char *out)
{
    int n = 0;
    for (int i = 1; i <= 6 * ROUND; i++) {
        const char *state = lks_test_text("%s/ckpt-%08d/state.json", out, i);
        n += lks_test_exists(state) && strstr(lks_test_read(state, NULL), "\"asked\"") == NULL;
    }
    assert_in_range(n, 1, 4);
    return n;
}

/* Several resumes, on other numbers of ranks, far beyond the lowest loss. */
static void check_overfitting(bool always)
{
    const char *out = lks_test_folder(), *then[200] = {NULL};
    for (int round = 1; round <= 6; round++) {
        const int first = law_named(out, "latest");
        law_args args = train(out, round * ROUND - 1);
        if (first >= 0)
            law_add(&args, "--init_from=resume");
        law_add(&args, "--always_save_checkpoint=%s", always ? "true" : "false");
        law_add(&args, "--checkpoint_interval=%s", always ? "2" : "auto");
        law_add(&args, "--nproc_per_node=%d", 1 << round % 3);
        law_run(&args);
        const int best = lowest(out), last = round * ROUND;
        assert_int_equal(law_named(out, "latest"), last);
        assert_int_equal(law_named(out, "best"), best);
        if (then[best] == NULL) /* found in this round */
            then[best] = loss_of(out, lks_test_text("%d", best), lks_test_text("ckpt-%08d", best));
        const char *name = lks_test_text("ckpt-%08d (best)", best);
        assert_string_equal(loss_of(out, "best", name), then[best]);
        if (!always)
            assert_string_equal(loss_of(out, "", name), then[best]);
        else
            loss_of(out, "", lks_test_text("ckpt-%08d (latest)", last));
    }
    const int best = lowest(out);
    assert_in_range(best, EVERY, 3 * ROUND); /* otherwise it hasn't overfitted */
    /* 3 are kept, and also the best one, which is not among them. With always=false they are ends
     * of the run, which displace no improvement. */
    assert_int_equal(law_count_checkpoints(out), always ? 4 : 3 + improvements_kept(out));
    assert_true(lks_test_exists(lks_test_text("%s/ckpt-%08d", out, best)));
    const json_t *evals = lks_test_metrics(lks_test_text("%s/evals.jsonl", out), "eval");
    assert_in_range(json_array_size(evals), 12, 18);
    assert_int_equal(lks_test_number(evals, "0.iter"), lowest_up_to(out, ROUND));
}

TEST(test_overfitting)
{
    check_overfitting(false);
    check_overfitting(true);
}

/* Check that the saves of `out` after 40 steps are the improvements, the multiples of `interval`
 * (0: none) and the end. */
static void check_saves(const char *out, int interval)
{
    const json_t *evals = lines(out, "eval"), *saved = lines(out, "checkpoint");
    double lowest_loss = 1e9;
    size_t n = 0, improved = 0, e = 0;
    for (int i = 1; i <= 40; i++) {
        bool due = interval > 0 && i % interval == 0;
        for (; e < json_array_size(evals); e++) {
            const json_t *line = json_array_get(evals, e);
            if (lks_test_number(line, "iter") > i)
                break;
            if (lks_test_number(line, "val_loss") >= lowest_loss)
                continue;
            lowest_loss = lks_test_number(line, "val_loss");
            if (lks_test_number(line, "iter") == i) {
                due = true;
                improved++;
            }
        }
        assert_int_equal(lks_test_exists(lks_test_text("%s/ckpt-%08d", out, i)), due);
        if (due)
            assert_int_equal(lks_test_number(json_array_get(saved, n++), "iter"), i);
    }
    assert_in_range(improved, 1, 7);
    assert_int_equal(lks_test_number(json_array_get(saved, n), "iter"), 41);
    assert_int_equal(json_array_size(saved), n + 1);
}

/* With always_save_checkpoint=false: saves when the loss has fallen, and at the end. No worse state
 * in between, unless a checkpoint_interval asks for it. With true: also with each evaluation. */
TEST(test_when_saved)
{
    static const struct {
        const char *always, *interval;
        int saves;
    } cases[] = {
        {"false", "auto", 0}, {"false", "7", 7}, {"true", "auto", EVERY}, {"true", "2", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *out = lks_test_folder();
        law_args args = train(out, 40);
        law_add(&args, "--always_save_checkpoint=%s", cases[i].always);
        law_add(&args, "--checkpoint_interval=%s", cases[i].interval);
        law_add(&args, "--keep=0");
        law_run(&args);
        check_saves(out, cases[i].saves);
    }
}

/* Going back to an earlier checkpoint cuts later evaluations. Of the remaining ones, the lowest
 * whose checkpoint exists counts. */
TEST(test_decided_anew)
{
    const char *out = lks_test_folder();
    go_on(out, 40, "--keep=0");
    const int best = lowest(out), from = best - best % 2 - 2;
    assert_true(best > EVERY);
    assert_int_equal(law_named(out, "best"), best);
    law_args args = train(lks_test_text("%s/ckpt-%08d", out, from), from);
    law_add_all(&args, "--init_from=resume", "--keep=0");
    law_run(&args); /* one iteration */
    assert_true(lks_test_exists(lks_test_text("%s/earlier-1/ckpt-%08d", out, best)));
    assert_int_equal(law_named(lks_test_text("%s/earlier-1", out), "best"), best);
    assert_int_equal(lowest(lks_test_text("%s/earlier-1", out)), best);
    assert_int_equal(law_named(out, "best"), lowest_up_to(out, from));
    assert_true(law_named(out, "best") < best);

    /* Without metrics.jsonl the name stays until an evaluation is lower. */
    const int kept = law_named(out, "best");
    assert_int_equal(unlink(lks_test_text("%s/metrics.jsonl", out)), 0);
    go_on(out, 41, "--keep=1");
    assert_int_equal(law_named(out, "best"), best); /* lower than `kept`, and made again */
    assert_true(kept < best && lks_test_exists(lks_test_text("%s/ckpt-%08d", out, best)));
    assert_int_equal(unlink(lks_test_text("%s/metrics.jsonl", out)), 0);
    go_on(out, 46, "--keep=1");
    assert_int_equal(law_named(out, "best"), best);

    /* Its checkpoint is gone: the next lowest counts. */
    out = lks_test_folder();
    go_on(out, 40, "--keep=0");
    const int first = lowest(out);
    const char *folder = lks_test_text("%s/ckpt-%08d", out, first);
    assert_int_equal(rename(folder, lks_test_text("%s/elsewhere", out)), 0);
    assert_exits(2,
                 lks_test_tool("eval", lks_test_text("--dataset=%s", noise()),
                               lks_test_text("--out_dir=%s", out), "--which=best"),
                 "has no best checkpoint");
    go_on(out, 42, "--keep=0");
    const int second = law_named(out, "best");
    assert_int_not_equal(second, first);
    assert_int_equal(second, lowest_of(out, 1 << 30, true));
    /* Another run's checkpoint with its name is not the one that was evaluated. */
    const char *impostor = lks_test_text("%s/ckpt-%08d", out, first);
    lks_test_do("cp", "-a", lks_test_text("%s/elsewhere", out), impostor);
    go_on(out, 44, "--keep=0");
    assert_int_equal(law_named(out, "best"), first); /* the very same: found again */
    const char *strange = lks_test_folder();
    go_on(strange, first - 1, "--seed=7");
    lks_test_do("sh", "-c", "rm -r \"$1\" && cp -a \"$0\" \"$1\"",
                lks_test_text("%s/ckpt-%08d", strange, first), impostor);
    go_on(out, 46, "--keep=0");
    assert_int_equal(law_named(out, "best"), second);
}

/* The number that state.json has. */
static double number_in(const char *out, int iter, const char *key)
{
    return lks_test_number(lks_test_figure(lks_test_text("%s/ckpt-%08d/state.json", out, iter)),
                           key);
}

/* After a power loss the last lines of metrics.jsonl may be missing, but `best` and the checkpoints
 * still agree. (shared/studies/resume-and-rollback/c2.) */
TEST(test_power_loss)
{
    const char *out = lks_test_folder(), *whole = lks_test_folder();
    go_on(whole, 60, NULL);
    const int best = law_named(whole, "best");
    go_on(out, best, NULL);
    const char *lose = lks_test_text("cd '%s' && rm -rf ckpt-%08d && ln -sfn ckpt-%08d latest && "
                                     "sed -i '/\"train\",\"iter\":%d,/,$d' metrics.jsonl",
                                     out, best + 1, best, best - 3);
    const char *const argv[] = {"sh", "-c", lose, NULL};
    assert_exits(0, lks_test_run(argv, NULL, 10));
    assert_null(strstr(law_lines(out), lks_test_text("\"eval\",\"iter\":%d,", best)));
    go_on(out, 60, NULL);
    assert_int_equal(law_named(out, "best"), best);
    assert_true(lks_test_exists(lks_test_text("%s/ckpt-%08d", out, best)));
    assert_true(number_in(out, best, "val_loss") == number_in(out, 61, "best_val_loss"));
    law_assert_same_checkpoint(out, whole, "ckpt-00000061");

    /* The lines are durable (metrics.jsonl is synced second) before the checkpoint is there. */
    out = lks_test_folder();
    law_args args = train(out, 8);
    law_add(&args, "--checkpoint_interval=5");
    for (int fails = 0; fails < 2; fails++) {
        const char *env[] = {
            fails ? "LOCKSTEP_FAULT=fdatasync:2:EIO" : "LOCKSTEP_FAULT=fdatasync:2:die", NULL};
        lks_test_result r = assert_exits(fails ? 1 : -1, lks_test_run(args.argv, env, 60));
        assert_non_null(strstr(law_lines(out), "\"eval\",\"iter\":5,"));
        assert_int_equal(law_count_checkpoints(out), 0);
        if (fails)
            assert_contains(r.err, "metrics.jsonl: Input/output error");
    }
    /* So is the final line, before `best` names the final checkpoint. */
    const char *env[] = {"LOCKSTEP_FAULT=fdatasync:5:die", NULL};
    assert_exits(-1, lks_test_run(args.argv, env, 60));
    assert_non_null(strstr(law_lines(out), "\"kind\":\"final\",\"iter\":9,"));
    assert_int_equal(law_named(out, "best"), 5);
}

/* A resume from a checkpoint before all evaluations: the name of a later checkpoint is removed. */
TEST(test_none_left)
{
    const char *out = lks_test_folder();
    go_on(out, 8, "--keep=0");
    assert_int_equal(law_named(out, "best"), 9);
    law_args args = train(lks_test_text("%s/ckpt-00000002", out), 2);
    law_add_all(&args, "--init_from=resume", "--keep=0", "--eval_interval=0");
    law_run(&args);
    assert_true(lks_test_exists(lks_test_text("%s/earlier-1/ckpt-00000005", out)));
    assert_int_equal(law_named(out, "best"), -1);
}

/* At the end of a run its final checkpoint is evaluated, with a copy of the generators. */
TEST(test_final)
{
    const char *out = lks_test_folder(), *whole = lks_test_folder();
    /* Before the second evaluation: lower than the first. */
    go_on(out, 3, "--exec_on=best:echo best is $LOCKSTEP_ITER");
    const json_t *final = lines(out, "final");
    assert_int_equal(json_array_size(final), 1);
    final = json_array_get(final, 0);
    assert_int_equal(lks_test_number(final, "iter"), 4);
    assert_true(lks_test_number(final, "val_loss") <
                lks_test_number(lines(out, "eval"), "0.val_loss"));
    const json_t *own = lks_test_figure(lks_test_text("%s/ckpt-00000004/state.json", out));
    assert_true(json_is_false(json_object_get(own, "eval_done")));
    assert_int_equal(law_named(out, "best"), 4); /* a name only: the checkpoint exists already */
    assert_int_equal(json_array_size(lines(out, "checkpoint")), 2);
    assert_contains(lks_test_read(lks_test_text("%s/commands.log", out), NULL), "best is 4\n");
    const char *text = law_lines(out);
    assert_true(strstr(text, "\"checkpoint\",\"iter\":4") < strstr(text, "\"kind\":\"final\""));

    /* The same evaluation again, with the checkpoint's generators. metrics.jsonl stays
     * unchanged. */
    law_args args = train(out, 3);
    law_add_all(&args, "--init_from=resume", "--eval_only", "--nproc_per_node=2");
    law_run(&args);
    assert_string_equal(law_lines(out), text);
    const json_t *only = lks_test_metrics(lks_test_text("%s/evals.jsonl", out), "eval_only");
    assert_int_equal(json_array_size(only), 1);
    only = json_array_get(only, 0);
    assert_int_equal(lks_test_number(only, "iter"), 4);
    assert_true(lks_test_number(only, "val_loss") == lks_test_number(final, "val_loss"));
    assert_true(lks_test_number(only, "train_loss") == lks_test_number(final, "train_loss"));

    /* Resuming keeps the line, and otherwise the run is like one that never ended there. */
    go_on(out, 12, "--nproc_per_node=4");
    go_on(whole, 12, NULL);
    assert_int_equal(json_array_size(lines(out, "final")), 2);
    law_assert_same_checkpoint(out, whole, "ckpt-00000013");
    assert_string_equal(strstr(law_lines(out), "\"kind\":\"final\",\"iter\":13,"),
                        strstr(law_lines(whole), "\"kind\":\"final\",\"iter\":13,"));
    assert_int_equal(law_named(out, "best"), law_named(whole, "best"));
    /* At the end already: the line stays, with and without another evaluation. */
    text = law_lines(out);
    go_on(out, 12, "--eval_interval=0");
    assert_string_equal(law_lines(out), text);
    go_on(out, 12, "--nproc_per_node=2");
    assert_string_equal(law_lines(out), text);
    /* Without evaluations there is no final one. */
    const char *none = lks_test_folder();
    go_on(none, 3, "--eval_interval=0");
    assert_null(strstr(law_lines(none), "\"val_loss\""));
}

/* The final evaluation counts for `best`, which sample and eval use. A run that is extended
 * decides again without it, and still has the checkpoint that was the best one before, whatever
 * --keep. */
TEST(test_final_is_best)
{
    const char *out = lks_test_folder(), *whole = lks_test_folder();
    static const char keep[] = "--keep=1";
    go_on(out, 7, keep);
    const json_t *final = json_array_get(lines(out, "final"), 0);
    const double loss = lks_test_number(final, "val_loss");
    assert_int_equal(lowest(out), 5);
    assert_true(loss < lks_test_number(lines(out, "eval"), "1.val_loss"));
    assert_int_equal(law_named(out, "best"), 8);
    loss_of(out, "best", "ckpt-00000008 (best)");
    const char *log = lks_test_read(lks_test_text("%s/train.log", out), NULL);
    assert_contains(log, lks_test_text("last validation loss %.4f, best validation loss %.4f at "
                                       "iteration 8\n",
                                       loss, loss));
    go_on(out, 8, "--eval_interval=0");
    assert_int_equal(law_named(out, "best"), 5);
    loss_of(out, "best", "ckpt-00000005 (best)");
    go_on(out, 12, keep);
    go_on(whole, 12, keep);
    assert_int_equal(law_named(out, "best"), law_named(whole, "best"));
    law_assert_same_checkpoints(out, whole);
    assert_int_equal(law_count_checkpoints(out), law_count_checkpoints(whole));
}

/* The evaluation of the final checkpoint uses a copy of the generators, which afterwards are as in
 * the checkpoint. */
TEST(test_generators)
{
    static lks__settings s;
    lks__trainer t;
    lks__st_file *file;
    int stopped;
    const char *out = lks_test_folder();
    law_args command = train(out, 3);
    lks_test_parse(&s, command.argv + 2);
    assert_ok(lks__trainer_open(&s, &t, &(int){0}));
    assert_ok(lks__train_loop(&t, &stopped));
    assert_int_equal(json_array_size(lines(out, "final")), 1);
    size_t bytes = lks__batch_sampler_state_bytes(t.state.sampler);
    char *now = malloc(bytes), *saved = malloc(bytes);
    lks__batch_sampler_state_save(t.state.sampler, now);
    assert_ok(lks__st_open(lks_test_text("%s/latest/optimizer.safetensors", out), &file));
    const lks__st_tensor *tensor = lks__st_find(file, "sampler.state");
    assert_non_null(tensor);
    assert_int_equal(tensor->bytes, bytes);
    assert_ok(lks__st_read(file, tensor, saved));
    assert_memory_equal(now, saved, bytes);
    lks_test_free(now, saved);
    lks__st_close(file);
    lks__trainer_close(&t);
}

static int count_in(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)) != NULL; text++)
        n++;
    return n;
}

/* The last lines show results and what to do next. */
TEST(test_last_lines)
{
    const char *out = lks_test_folder();
    go_on(out, 60, "--always_save_checkpoint=false");
    const char *log = lks_test_read(lks_test_text("%s/train.log", out), NULL);
    const json_t *final = json_array_get(lines(out, "final"), 0);
    const int best = lowest(out);
    assert_contains(log, "\ndone: 61 steps in ",
                    lks_test_text("last validation loss %.4f, best validation loss ",
                                  lks_test_number(final, "val_loss")),
                    lks_test_text("latest is ckpt-00000061, best is ckpt-%08d\n", best));
    assert_int_equal(count_in(log, lks_test_text(" at iteration %d; sample and eval use ", best)),
                     1);
    assert_contains(log, lks_test_text("\nnext: lockstep eval %s\n", out));
}

/* A file system without symbolic links: reported at the start, and everything works with small
 * files. */
TEST(test_without_links)
{
    const char *out = lks_test_folder();
    const char *const env[] = {"LOCKSTEP_FAULT=symlink:*:EPERM", NULL};
    law_args args = train(out, 11);
    law_add_all(&args, "--always_save_checkpoint=false", "--checkpoint_interval=auto");
    assert_exits(0, lks_test_run(args.argv, env, 60), "no symbolic links can be made in");
    assert_int_equal(law_named(out, "latest"), -1);
    assert_string_equal(lks_test_read(lks_test_text("%s/latest", out), NULL), "ckpt-00000012\n");
    const int best = lowest(out);
    assert_string_equal(lks_test_read(lks_test_text("%s/best", out), NULL),
                        lks_test_text("ckpt-%08d\n", best));
    loss_of(out, "", lks_test_text("ckpt-%08d (best)", best));
    law_add_all(&args, "--init_from=resume", "--max_iters=17");
    assert_exits(0, lks_test_run(args.argv, env, 60));
    assert_string_equal(lks_test_read(lks_test_text("%s/latest", out), NULL), "ckpt-00000018\n");
    /* Neither links nor files work: reported before the first step. */
    out = lks_test_folder();
    args = train(out, 11);
    const char *const full[] = {"LOCKSTEP_FAULT=symlink:1:ENOSPC", NULL};
    lks_test_result r = assert_exits(1, lks_test_run(args.argv, full, 60),
                                     "the folder can't hold names of checkpoints");
    assert_null(strstr(r.out, "iter 0"));
}

/* The command with its n-th open() failing, for the n with this message. It leaves `evals`. */
static lks_test_result unwritable(const char *const argv[], const char *error, const char *evals,
                                  const char *message)
{
    lks_test_result r = {0};
    size_t before = 0, after;
    bool found = false;
    for (int n = 1; n < 80 && !found; n++) {
        const char *env[] = {lks_test_text("LOCKSTEP_FAULT=open:%d:%s", n, error), NULL};
        lks_test_read(evals, &before);
        r = lks_test_run(argv, env, 60);
        found = strstr(r.err, message) != NULL;
    }
    assert_true(found);
    lks_test_read(evals, &after);
    assert_int_equal(after, before);
    return r;
}

/* A folder that is not writable: the result is printed, with a note that it isn't recorded. A
 * resume needs a copy. */
TEST(test_not_recorded)
{
    static const char unrecorded[] = "is not recorded in evals.jsonl: Read-only file system";
    const char *out = lks_test_folder();
    go_on(out, 6, NULL);
    const char *const argv[] = {"lockstep", "eval", lks_test_text("--dataset=%s", noise()),
                                lks_test_text("--out_dir=%s", out), NULL};
    lks_test_result r = lks_test_run(argv, NULL, 60);
    const char *line = r.out, *path = lks_test_text("%s/evals.jsonl", out);
    size_t bytes;
    r = assert_exits(0, unwritable(argv, "EROFS", path, unrecorded));
    assert_string_equal(r.out, line);
    law_args only = train(out, 6);
    law_add_all(&only, "--init_from=resume", "--eval_only");
    assert_exits(0, unwritable(only.argv, "EROFS", path, unrecorded));
    const char *const resume[] = {"lockstep", "resume", out, NULL};
    assert_exits(1, unwritable(resume, "EROFS", path,
                               "can't be written: Read-only file system; give another"
                               " folder, or copy this one (cp -r)"));
    assert_exits(1,
                 unwritable(resume, "EACCES", path, "can't be written: Permission denied; give"));
    law_args over = train(out, 6); /* the earlier run is part of a container's image */
    const char *const image[] = {"LOCKSTEP_FAULT=rename:1:EXDEV", NULL};
    assert_exits(1, lks_test_run(over.argv, image, 60), "copy the run's folder (cp -r)");
    const char *text = lks_test_read(path, &bytes);
    const size_t line_bytes = strcspn(text, "\n") + 1;
    /* An incomplete line stays separate. */
    lks_test_write(path, text, bytes - 5);
    assert_exits(0, lks_test_run(argv, NULL, 60));
    const char *now = lks_test_read(path, NULL);
    assert_int_equal(count_in(now, "\n"), count_in(text, "\n") + 1);
    now = lks_test_text("%.*s", (int)strlen(now) - 1, now);
    assert_string_equal(strrchr(now, '\n') + 1, lks_test_text("%.*s", (int)line_bytes - 1, text));
    /* A pipe would take the line and lose it. */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_exits(1, lks_test_run(argv, NULL, 60), "evals.jsonl is not a regular file");
    /* The same for a link that leads elsewhere. */
    const char *victim = lks_test_text("%s/victim", out);
    lks_test_write_text(victim, "x");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(victim, path), 0);
    assert_exits(1, lks_test_run(argv, NULL, 60));
    assert_string_equal(lks_test_read(victim, NULL), "x");
}

static law_args golf(const char *out, int iterations)
{
    static const char *data;
    if (data == NULL) {
        uint16_t ids[1100];
        data = lks_test_folder();
        lks_test_generated_golf(data);
        for (size_t i = 0; i < 1100; i++)
            ids[i] = (uint16_t)(i * i % 1024);
        lks_test_write_shard(lks_test_text("%s/fineweb_val_000000.bin", data), ids, 1100);
    }
    law_args args = law_begin(data, out);
    law_add_line(&args,
                 "--iterations=%d --family=golf --sampler=stream --vocab_size=1024 "
                 "--num_layers=1 --model_dim=8 --num_heads=2 --num_kv_heads=1 "
                 "--train_seq_len=8 --train_batch_tokens=64 --val_batch_size=512 "
                 "--threads=1 --max_wallclock_seconds=0 --val_loss_every=2 --keep=1 "
                 "--gradient_accumulation_steps=1",
                 iterations);
    return args;
}

/* Golf: the evaluation of an end that isn't on the schedule is only the `final` line. */
TEST(test_golf)
{
    const char *out = lks_test_folder();
    law_args args = golf(out, 7);
    law_run(&args);
    const json_t *evals = lines(out, "eval"), *final = lines(out, "final");
    assert_int_equal(json_array_size(final), 1);
    final = json_array_get(final, 0);
    const json_t *last = json_array_get(evals, json_array_size(evals) - 1);
    assert_int_equal(lks_test_number(final, "iter"), 7);
    assert_int_equal(lks_test_number(last, "iter"), 6);
    assert_null(json_object_get(final, "train_loss"));
    assert_int_equal(law_named(out, "best"), lowest(out));
    assert_int_equal(law_named(out, "latest"), 7);
    const char *text = law_lines(out);
    args = golf(out, 7);
    law_add(&args, "--init_from=resume");
    law_run(&args); /* at its end: evaluated again, with the same loss */
    assert_string_equal(law_lines(out), text);
    law_add(&args, "--eval_only");
    law_run(&args);
    assert_string_equal(law_lines(out), text);
    const json_t *only = lks_test_metrics(lks_test_text("%s/evals.jsonl", out), "eval_only");
    assert_true(lks_test_number(only, "0.val_loss") == lks_test_number(final, "val_loss"));
}

/* If no rate moves the weights, all losses are equal: the earliest is best, also after a resume. */
TEST(test_equal_losses)
{
    const char *out = lks_test_folder();
    for (int again = 0; again < 2; again++) {
        law_args args = golf(out, 7);
        law_add_all(&args, "--keep=0", "--checkpoint_interval=2", "--matrix_lr=0", "--scalar_lr=0",
                    "--tied_embed_lr=0");
        if (again) {
            law_add(&args, "--init_from=resume");
            assert_int_equal(unlink(lks_test_text("%s/best", out)), 0);
        }
        law_run(&args);
        const json_t *evals = lines(out, "eval");
        assert_true(json_array_size(evals) > 3);
        for (size_t i = 1; i < json_array_size(evals); i++)
            assert_true(lks_test_number(json_array_get(evals, i), "val_loss") ==
                        lks_test_number(evals, "0.val_loss"));
        assert_int_equal(law_named(out, "best"), 2);
    }
}
