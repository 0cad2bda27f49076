/* Runs that were stopped in an orderly way, and runs that are extended, go on as if they had never
 * ended. */
#include "laws.h"
#include "marked.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/system/sys.h"
#include "session/signals.h"

static const char *whole[2]; /* outputs of uninterrupted runs */
static const char *const samplers[2] = {"random", "nanogpt"};

static int train_whole(void **state)
{
    for (int i = 0; i < 2; i++)
        whole[i] = law_output(samplers[i], LAW_REFERENCE);
    return 0;
}

/* `text` without its line of this kind and iteration, if it has one. */
static const char *without(const char *text, const char *kind, int iter)
{
    const char *line = strstr(text, lks_test_text("{\"kind\":\"%s\",\"iter\":%d,", kind, iter));
    if (line == NULL)
        return text;
    return lks_test_text("%.*s%s", (int)(line - text), text, strchr(line, '\n') + 1);
}

/* law_lines() without the line of checkpoint `iter`, and without the config line. */
static const char *lines_but(const char *out, int iter)
{
    return without(strchr(law_lines(out), '\n') + 1, "checkpoint", iter);
}

static int latest_iter(const char *out)
{
    return (int)lks_test_number(lks_test_record(out, "checkpoint"), "-1.iter");
}

/* SIGTERM: all ranks stop after the same step, with a checkpoint, one more than a run that isn't
 * stopped has. */
static void check_stopped(int which, int W, int signo, int resumed_W, const char *more)
{
    const char *out = law_signalled(samplers[which], W, signo, 128 + signo, more);
    int iter = latest_iter(out);
    assert_in_range(iter, 3, LAW_LAST_ITER);
    assert_null(strstr(law_lines(out), "\"kind\":\"final\"")); /* it hasn't reached its end */
    assert_contains(lks_test_read(lks_test_text("%s/train.log", out), NULL),
                    lks_test_text(" resume %s\n", out));
    law_resume(samplers[which], out, lks_test_text("--nproc_per_node=%d", resumed_W));
    law_assert_same_checkpoints(out, whole[which]);
    bool due = law_on_schedule(iter);
    const char *want = lines_but(whole[which], due ? -1 : iter);
    assert_string_equal(lines_but(out, due ? -1 : iter), want);
}

TEST(test_stopped)
{
    check_stopped(0, 4, SIGTERM, 1, NULL);
    check_stopped(1, 2, SIGINT, 8, NULL);
    check_stopped(1, 1, SIGTERM, 2, NULL);
    if (lks_test_on_device())
        return;
    check_stopped(0, 2, SIGUSR1, 4, "--stop_signal=USR1");
    check_stopped(1, 1, SIGUSR2, 2, "--stop_signal=USR2");
}

/* SIGUSR1: one checkpoint more, and everything else unchanged; a resume from that checkpoint, too,
 * gives the same bytes. */
static void check_saved(int which, int W, int resumed_W)
{
    int iter;
    const char *out = law_saved(samplers[which], W, &iter);
    law_assert_same_checkpoints(out, whole[which]);
    assert_string_equal(lines_but(out, iter), lines_but(whole[which], -1));
    const char *extra = lks_test_text("%s/ckpt-%08d", out, iter);
    law_resume(samplers[which], extra, lks_test_text("--nproc_per_node=%d", resumed_W));
    law_assert_same_checkpoints(out, whole[which]);
    assert_string_equal(lines_but(out, iter), lines_but(whole[which], -1));
}

TEST(test_saved)
{
    check_saved(0, 4, 2);
    check_saved(1, 1, 8);
}

static void wait_for_checkpoints(const lks_test_child *run, const char *out, int n)
{
    for (int i = 0; i < lks_test_tries(10000) && law_count_checkpoints(out) < n; i++)
        usleep(2000);
    if (law_count_checkpoints(out) != n)
        fail_msg("%d checkpoints instead of %d: %s", law_count_checkpoints(out), n,
                 lks_test_read(run->err_path, NULL));
}

/* A launcher's signal reaches ranks one after the other, but gives one checkpoint. A second signal
 * gives another. */
TEST(test_saved_once)
{
    const char *out, *mark = marked_variable(), *env[] = {mark, NULL};
    law_args args = law_train("random", &out);
    law_add_line(&args, "--nproc_per_node=2 --max_iters=1000000 --checkpoint_interval=1000000");
    law_add(&args, "--eval_interval=0"); /* otherwise improvements would be saved, too */
    lks_test_child run = lks_test_start(args.argv, env);
    const char *metrics = lks_test_text("%s/metrics.jsonl", out);
    lks_test_wait_for_text(metrics, "\"train\"");
    pid_t ranks[2] = {marked_rank(mark, 0), marked_rank(mark, 1)};
    assert_int_equal(lks_test_kill(ranks[0], SIGUSR1), 0);
    wait_for_checkpoints(&run, out, 1);
    assert_int_equal(lks_test_kill(ranks[1], SIGUSR1), 0);
    const int voted = law_count_lines(out) + 10;
    lks_test_until(law_count_lines(out) >= voted);
    wait_for_checkpoints(&run, out, 1);
    for (int n = 2; n <= 3; n++) {
        assert_int_equal(lks_test_kill(ranks[1], SIGUSR1), 0);
        wait_for_checkpoints(&run, out, n);
    }
    assert_int_equal(kill(run.pid, SIGTERM), 0);
    assert_exits(128 + SIGTERM, lks_test_wait(&run, 60));
    marked_assert_gone(mark, 2);
}

/* A run to iteration `last`, then resumed to the whole run's end. max_iters changes, which shows
 * only in the config line and in earlier checkpoints. The first end's evaluation stays, unless the
 * whole run has one there, too. */
static void check_extended(int which, int last)
{
    const char *out = law_output(samplers[which], lks_test_text("--max_iters=%d", last));
    assert_int_equal(latest_iter(out), last + 1);
    law_resume(samplers[which], out, "--nproc_per_node=2");
    bool due = law_on_schedule(last + 1);
    bool again = (last + 1) % 4 == 0; /* written again, once its evaluation was made */
    const char *lines = lines_but(out, due ? -1 : last + 1);
    const char *rest = without(lines, "final", last + 1);
    assert_int_equal(rest == lines, again);
    assert_string_equal(rest, lines_but(whole[which], -1));
    for (int i = again ? last + 1 : last + 2; i <= LAW_STEPS; i++) {
        const char *name = lks_test_text("ckpt-%08d", i);
        if (lks_test_exists(lks_test_text("%s/%s", whole[which], name)))
            law_assert_same_checkpoint(out, whole[which], name);
    }
}

/* A resume makes evaluations that were left out at the end of a run: iteration 8 has one, 9 a
 * checkpoint, 12 both, 10 neither. */
TEST(test_extended)
{
    check_extended(0, 11);
    check_extended(1, 7);
    if (lks_test_on_device())
        return;
    check_extended(1, 8);
    check_extended(1, 9);
    check_extended(1, 11);
}

/* It dies when that evaluation is recorded, but not in a checkpoint yet: the next resume makes and
 * records it again. */
TEST(test_extended_and_killed)
{
    const char *out = law_output("nanogpt", "--max_iters=7");
    law_args args;
    /* The first fsync is that of `best`, which the final evaluation moved. */
    const char *unused, *env[] = {"LOCKSTEP_FAULT=fsync:2:die", NULL};
    args = law_train("nanogpt", &unused);
    law_add(&args, "--out_dir=%s", out);
    law_add(&args, "--init_from=resume");
    assert_int_equal(lks_test_run(args.argv, env, 60).signal, SIGKILL);
    assert_contains(law_lines(out), "{\"kind\":\"eval\",\"iter\":8,");
    law_resume("nanogpt", out, "--nproc_per_node=2");
    assert_string_equal(lines_but(out, -1), lines_but(whole[1], -1));
}

/* A checkpoint after each step, because rank 0's clock asks for it. The scheduled ones and their
 * lines are those of a run without, and no other one is left at the end. */
static void check_clock(const char *out, const char *want)
{
    law_assert_same_lines(law_undisturbed_lines(out), law_undisturbed_lines(want));
    law_assert_same_checkpoints(out, want);
    assert_int_equal(law_count_checkpoints(out), law_count_checkpoints(want));
}

/* Checkpoints that the clock asked for. */
static int n_asked(const char *out)
{
    int n = 0;
    for (const char *p = law_lines(out); (p = strstr(p, ",\"asked\":\"clock\"}")) != NULL; p++)
        n++;
    return n;
}

TEST(test_clock)
{
    static const char each[] = "--checkpoint_minutes=1e-9", off[] = "--checkpoint_minutes=off";
    const char *out = law_output("nanogpt", "--nproc_per_node=2", each);
    assert_int_equal(n_asked(out), LAW_STEPS - 1 - 6); /* iterations 1, 2, 5, 7, 10, 11, 13 */
    check_clock(out, whole[1]);
    /* None displaces a scheduled one. */
    out = law_output("random", "--keep=2", each);
    check_clock(out, law_output("random", "--keep=2", off));
    assert_int_equal(n_asked(law_output("random", each, off)), 0);
    assert_int_equal(n_asked(law_output("random", "--checkpoint_minutes=10")), 0);
    /* Minutes since the last one: 180 ms. */
    const double began = lks__sys_now();
    out = law_output("random", "--checkpoint_minutes=0.003", "--checkpoint_interval=1000",
                     "--eval_interval=1000", "--max_iters=100");
    assert_true(n_asked(out) * 0.18 <= lks__sys_now() - began);
}

/* It dies in iteration 5, whose beginning only the clock has saved. A resume on other ranks begins
 * there, and has the bytes of a run that never died. */
TEST(test_clock_and_killed)
{
    for (int which = 0; which < 2; which++) {
        const char *out, *env[] = {"LOCKSTEP_FAULT=read:298:die", "LOCKSTEP_FAULT_RANK=1", NULL};
        law_args args = law_train(samplers[which], &out);
        law_add_all(&args, "--nproc_per_node=2", "--checkpoint_minutes=1e-9");
        assert_int_not_equal(lks_test_run(args.argv, env, 60).exit_code, 0);
        assert_int_equal(latest_iter(out), 5);
        const char *state_path = lks_test_text("%s/latest/state.json", out);
        assert_contains(lks_test_read(state_path, NULL), "\"asked\": \"clock\"");
        law_resume(samplers[which], out, lks_test_text("--nproc_per_node=%d", which == 0 ? 1 : 8),
                   "--checkpoint_minutes=off");
        check_clock(out, whole[which]);
    }
}

/* Resuming a run that has ended changes nothing. */
TEST(test_ended)
{
    const char *out = law_output("nanogpt", "--nproc_per_node=2");
    law_resume("nanogpt", out, "--nproc_per_node=4");
    law_assert_same(out, whole[1]);
    out = law_output("nanogpt", "--max_iters=11");
    const char *again = law_output("nanogpt", "--max_iters=11");
    law_resume("nanogpt", again, "--max_iters=11");
    law_assert_same(again, out);
}

/* SIGTERM in the last micro-batch of the last iteration: the run ends as one that isn't stopped.
 * The data of three iterations are 288 reads of 6 per micro-batch, after 11 other reads. */
TEST(test_stopped_at_the_end)
{
    static const char last[] = "--max_iters=2", once[] = "--checkpoint_interval=100",
                      unevaluated[] = "--eval_interval=0";
    const char *env[] = {"LOCKSTEP_FAULT=read:296:term", NULL};
    for (int which = 0; which < 2; which++) {
        const char *out;
        law_args args = law_train(samplers[which], &out);
        law_add(&args, last);
        law_add(&args, once);
        law_add(&args, unevaluated);
        assert_exits(128 + SIGTERM, lks_test_run(args.argv, env, 60));
        assert_int_equal(latest_iter(out), 3);
        law_resume(samplers[which], out, last, once, unevaluated);
        const char *want = law_output(samplers[which], last, once, unevaluated);
        law_assert_same_lines(law_lines(out), law_lines(want));
        law_assert_same_checkpoints(out, want);
    }
}

/* The newest checkpoint is damaged: it is refused, and from the one that is offered the run goes on
 * in its own folder, to the bytes of an undamaged run. */
TEST(test_earlier_checkpoint)
{
    const char *out = law_output("nanogpt", "--nproc_per_node=2");
    const char *path = lks_test_text("%s/ckpt-%08d/model.safetensors", out, LAW_STEPS);
    size_t bytes;
    char *model = (char *)lks_test_read(path, &bytes);
    model[bytes - 1] ^= 1;
    lks_test_write(path, model, bytes);
    lks_test_result r =
        lks_test_tool("train", lks_test_text("--out_dir=%s", out),
                      lks_test_text("--dataset=%s", law_data()), "--init_from=resume");
    assert_int_not_equal(r.exit_code, 0);
    const char *offer = lks_test_find(r.err, "give its folder, ");
    offer += strlen("give its folder, ");
    const char *name = strstr(offer, "/ckpt-"); /* the text before it may contain blanks */
    assert_non_null(name);
    law_resume("nanogpt",
               lks_test_text("%.*s//", (int)(name - offer) + (int)strcspn(name, " \n;,"), offer),
               "--nproc_per_node=4");
    law_assert_same(out, whole[1]);
    assert_true(lks_test_exists(lks_test_text("%s/earlier-1/ckpt-%08d", out, LAW_STEPS)));
}

/* oneDNN's products use the stack pointer as a register that points into their work space: a
 * handler's frame there would overwrite the heap. */
TEST(test_handlers_have_a_stack_of_their_own)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
    stack_t stack;
    lks_test_default_signals();
    lks__signals_install("none");
    assert_int_equal(sigaltstack(NULL, &stack), 0);
    assert_int_equal(stack.ss_flags & SS_DISABLE, 0);
    assert_true(stack.ss_size >= (size_t)SIGSTKSZ);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        struct sigaction action;
        assert_int_equal(sigaction(signals[i], NULL, &action), 0);
        assert_int_equal(action.sa_flags & SA_ONSTACK, SA_ONSTACK);
    }
}

/* Two ranks whose first save is that of a stop, at iteration 2 or later. */
static lks_test_child start_endless(const char *const env[], const char **out_p)
{
    law_args args = law_train("random", out_p);
    law_add_all(&args, "--nproc_per_node=2", "--max_iters=1000000", "--checkpoint_interval=1000000",
                "--eval_interval=0", "--log_interval=1");
    lks_test_child child = lks_test_start(args.argv, env);
    lks_test_wait_for_text(lks_test_text("%s/train.log", *out_p), "iter 2:");
    return child;
}

/* The save after a signal fails: the launcher gives the reason. */
TEST(test_save_fails)
{
    const char *out;
    const char *env[] = {"LOCKSTEP_FAULT=fsync:3:ENOSPC", "LOCKSTEP_FAULT_RANK=0", NULL};
    lks_test_child child = start_endless(env, &out);
    assert_int_equal(kill(child.pid, SIGTERM), 0);
    lks_test_result r =
        assert_exits(1, lks_test_wait(&child, 60), " is not saved: ", "No space left on device");
    assert_null(strstr(r.err, "put that right")); /* advice after a failure without a stop */
}

/* Another rank dies while rank 0 saves the value: the stop has succeeded all the same. */
TEST(test_saved_alone)
{
    const char *out, *mark = marked_variable();
    const char *env[] = {"LOCKSTEP_FAULT=fsync:3:slow", "LOCKSTEP_FAULT_RANK=0", mark, NULL};
    lks_test_child child = start_endless(env, &out);
    const pid_t other = marked_rank(mark, 1);
    assert_true(other > 0);
    assert_int_equal(kill(child.pid, SIGTERM), 0);
    lks_test_wait_for_text(lks_test_text("%s/train.log", out), "stopped by signal 15");
    assert_int_equal(lks_test_kill(other, SIGKILL), 0);
    lks_test_result r = lks_test_wait(&child, 60);
    assert_contains(r.err, "rank 1 (pid ");
    assert_contains(r.out, "saving checkpoint to ");
    assert_int_equal(r.exit_code, 128 + SIGTERM);
}

int main(void)
{
    return lks_test_run_all(train_whole, NULL);
}
