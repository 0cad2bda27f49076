/* Resumes with another batch: each begins a segment, whose bytes don't depend on ranks, threads or
 * interruptions either. */
#include "laws.h"

#include <signal.h>
#include <string.h>

static const char *const samplers[] = {"random", "nanogpt", "epoch"};
enum { SAMPLERS = 3, CHANGE = 8 };

/* The batch from iteration CHANGE on: fewer samples in more micro-batches, or also other virtual
 * ranks. */
static const char *const kept[] = {"--batch_size=3", "--gradient_accumulation_steps=24", NULL};
static const char *const split[] = {"--batch_size=5", "--gradient_accumulation_steps=12",
                                    "--virtual_ranks=4", NULL};

/* Runs up to iteration CHANGE + 1, with checkpoint CHANGE. */
static const char *begun[SAMPLERS];

static int begin_all(void **state)
{
    for (int i = 0; i < SAMPLERS; i++)
        begun[i] = law_output(samplers[i], LAW_REFERENCE, lks_test_text("--max_iters=%d", CHANGE));
    return 0;
}

/* Resume with the run's own settings and `more`. */
static law_args resume_args(const char *from, const char *const batch[], int W)
{
    law_args args = law_begin(law_data(), from);
    law_add_line(&args,
                 "--init_from=resume --max_iters=%d --bucket_mb=0.02 --timeout=20 "
                 "--nproc_per_node=%d --allow_uneven",
                 LAW_LAST_ITER, W);
    law_add_words(&args, batch);
    return args;
}

/* The run with sampler i, continued from checkpoint CHANGE. */
static const char *changed(int i, const char *const batch[], int W, const char *more)
{
    const char *out = lks_test_copy_of(begun[i]);
    law_args args = resume_args(lks_test_text("%s/ckpt-%08d", out, CHANGE), batch, W);
    if (more != NULL)
        law_add(&args, "%s", more);
    law_run(&args);
    return out;
}

static const char *reference(int i, const char *const batch[])
{
    static const char *made[SAMPLERS][2];
    const char **at = &made[i][batch == split];
    if (*at == NULL)
        *at = changed(i, batch, 1, "--threads=1");
    return *at;
}

TEST(test_ranks)
{
    for (int i = 0; i < SAMPLERS; i++) {
        for (int W = 1; W <= LAW_V; W++)
            law_assert_same(changed(i, kept, W, W == 1 ? "--threads=3" : NULL), reference(i, kept));
        for (int W = 2; W <= 4; W++)
            law_assert_same(changed(i, split, W, W == 2 ? "--threads=2" : NULL),
                            reference(i, split));
    }
}

static double loss_at(const char *out, int iter)
{
    return lks_test_number(json_array_get(lks_test_record(out, "train"), (size_t)iter), "loss");
}

/* An epoch continues after the last sample of the batch before: without updates, two steps of half
 * the batch have a whole one's mean loss. */
TEST(test_continues)
{
    static const char *const half[] = {"--gradient_accumulation_steps=8", "--learning_rate=0",
                                       "--min_lr=0", NULL};
    const char *out = law_output("epoch", "--dropout=0", lks_test_text("--max_iters=%d", CHANGE));
    const double whole = loss_at(out, CHANGE);
    law_args args = resume_args(lks_test_text("%s/ckpt-%08d", out, CHANGE), half, 1);
    law_run(&args);
    assert_float_equal((loss_at(out, CHANGE) + loss_at(out, CHANGE + 1)) / 2, whole, 1e-5);
}

/* A rank dies at its N-th read, of which some 130 are the set-up's: before the segment's first
 * checkpoint, so that the batch is given again, or after it, when the run knows its batch. */
static void check_killed(int i, const char *const batch[], int reads, bool again)
{
    const char *out = lks_test_copy_of(begun[i]);
    law_args args = resume_args(lks_test_text("%s/ckpt-%08d", out, CHANGE), batch, 2);
    const char *const env[] = {lks_test_text("LOCKSTEP_FAULT=read:%d:die", reads),
                               "LOCKSTEP_FAULT_RANK=1", NULL};
    assert_exits(128 + SIGKILL, lks_test_run(args.argv, env, 60));
    assert_true(law_has_line(out, "checkpoint", 9) != again);
    args = again ? resume_args(lks_test_text("%s/ckpt-%08d", out, CHANGE), batch, 4)
                 : resume_args(out, NULL, 1);
    law_run(&args);
    law_assert_same(out, reference(i, batch));
}

TEST(test_killed)
{
    for (int i = 0; i < SAMPLERS; i++) {
        check_killed(i, kept, 150, true);
        check_killed(i, kept, 260, false);
        check_killed(i, split, 260, false);
    }
}

/* Tokens are counted with each segment's batch, and the evaluation at a change is made once. A
 * second change begins a third segment. */
TEST(test_record)
{
    const int T = law_model().block_size;
    const char *out = lks_test_copy_of(reference(1, kept));
    law_args args = resume_args(lks_test_text("%s/ckpt-00000012", out), split, 2);
    law_add_all(&args, "--checkpoint_interval=5", "--eval_interval=6", "--eval_iters=8");
    lks_test_result r = assert_exits(0, lks_test_run(args.argv, NULL, 60));
    /* The schedule of the segment before wrote it, so nothing has asked for it. */
    const char *saved = lks_test_read(lks_test_text("%s/ckpt-00000012/state.json", out), NULL);
    assert_null(strstr(saved, "\"asked\""));
    assert_contains(r.out, "A new segment of the run begins: batch_size 3 -> 5, "
                           "gradient_accumulation_steps 24 -> 12, virtual_ranks 8 -> 4\n");
    const json_t *lines = lks_test_record(out, "train");
    static const int ends[] = {CHANGE, 12, LAW_STEPS}, steps[] = {16 * 6, 24 * 3, 12 * 5};
    uint64_t tokens = 0;
    assert_int_equal(json_array_size(lines), LAW_STEPS);
    for (int i = 0, k = 0; i < LAW_STEPS; i++) {
        k += i == ends[k];
        tokens += (uint64_t)(steps[k] * T);
        assert_int_equal(lks_test_number(json_array_get(lines, (size_t)i), "tokens"), tokens);
    }
    const json_t *state_json = lks_test_figure(lks_test_text("%s/latest/state.json", out));
    assert_int_equal(lks_test_number(state_json, "segment.iter"), 12);
    int evals = 0;
    size_t i;
    const json_t *line;
    json_array_foreach(lks_test_record(out, "eval"), i, line)
    {
        evals += lks_test_number(line, "iter") == CHANGE;
    }
    assert_int_equal(evals, 1); /* with the batch after the change */
    r = lks_test_tool("report", out);
    assert_contains(r.out, " from iteration 8: batch_size 3, gradient_accumulation_steps 24\n",
                    " from iteration 12: batch_size 5, gradient_accumulation_steps 12, "
                    "virtual_ranks 4\n");
    r = lks_test_tool("plot", out);
    assert_contains(r.out, "  from iteration 12: batch_size 5, ");
    const char *picture = lks_test_text("%s/a.svg", out);
    lks_test_do("lockstep", "plot", out, lks_test_text("--out=%s", picture));
    assert_contains(lks_test_read(picture, NULL), ">batch_size 3, gradient_accumulation_steps 24<");
    r = lks_test_tool("diff", out, reference(1, kept));
    assert_contains(r.out, "changed where A was resumed (iteration 12)");
}

/* The same batch given again is no change; a config file changes nothing; a batch that doesn't fit
 * the virtual ranks is refused before anything is written. */
TEST(test_refused)
{
    static const char *const same[] = {"--batch_size=6", "--gradient_accumulation_steps=16", NULL};
    static const char *const uneven[] = {"--gradient_accumulation_steps=12", NULL};
    const char *out = changed(0, same, 2, NULL), *config = lks_test_text("%s/a.conf", out);
    law_assert_same(out, changed(0, NULL, 1, "--threads=1"));
    assert_null(strstr(lks_test_read(lks_test_text("%s/latest/state.json", out), NULL), "segment"));
    const char *before = lks_test_read(lks_test_text("%s/metrics.jsonl", out), NULL);
    law_args args = resume_args(out, uneven, 1);
    assert_exits(2, lks_test_run(args.argv, NULL, 60),
                 "virtual_ranks=8 does not divide gradient_accumulation_steps=12",
                 "or give another --virtual_ranks");
    lks_test_write(config, "batch_size = 3\n", 15);
    args = resume_args(out, (const char *const[]){config, NULL}, 1);
    assert_exits(2, lks_test_run(args.argv, NULL, 60),
                 "give --batch_size=6 on the command line, which wins, or "
                 "--batch_size=3 there to continue with another batch");
    assert_string_equal(lks_test_read(lks_test_text("%s/metrics.jsonl", out), NULL), before);
}

/* Golf's batch is train_batch_tokens. */
TEST(test_golf)
{
    const char *run = law_family_run(true, NULL, NULL), *first = NULL;
    for (int W = 1; W <= 4; W++) {
        const char *out = lks_test_copy_of(run);
        law_family_run(true, lks_test_text("%s/ckpt-00000003", out), "--init_from=resume",
                       lks_test_text("--nproc_per_node=%d", W), "--allow_uneven",
                       "--train_batch_tokens=768", "--virtual_ranks=4");
        first = first == NULL ? out : first;
        law_assert_same(out, first);
    }
    const json_t *saved = lks_test_figure(lks_test_text("%s/latest/state.json", first));
    assert_int_equal(lks_test_number(saved, "segment.iter"), 3);
    assert_int_equal(lks_test_number(saved, "segment.tokens"), 3 * 512);
}

int main(void)
{
    return lks_test_run_all(begin_all, NULL);
}
