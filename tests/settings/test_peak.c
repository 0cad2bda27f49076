/* No run uses more than the machine has: a peak that a step exceeds was measured wrongly. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/system/sys.h"
#include "train/loop/report/report.h"
#include "train/step.h"

/* Result of the measurement, and number of calls. */
struct meter {
    double own;
    lks_status st;
    int n;
};

static lks_status measure(void *ctx, double *own_p)
{
    struct meter *m = ctx;
    m->n++;
    *own_p = m->own;
    return m->st;
}

TEST(test_share)
{
    static const struct {
        double all, own, flops;  /* the peak before, and a step's rate */
        struct meter meter;      /* n: expected number of calls */
        double share, all_after; /* expected */
    } cases[] = {
        {100, 100, 50, {999, LKS_OK, 0}, 0.5, 100},       /* unchanged */
        {100, 100, 100, {999, LKS_OK, 0}, 1, 100},        /* just reached */
        {100, 100, 142, {200, LKS_OK, 1}, 0.71, 200},     /* measured again */
        {100, 25, 142, {50, LKS_OK, 1}, 0.71, 200},       /* four ranks, all slowed */
        {100, 100, 142, {120, LKS_OK, 1}, 1, 142},        /* slowed again */
        {100, 100, 142, {90, LKS_OK, 1}, 1, 142},         /* slower than before */
        {100, 100, 142, {900, LKS_ERR_NOMEM, 1}, 1, 142}, /* the measurement fails */
        {100, 100, 142, {NAN, LKS_OK, 1}, 1, 142},        /* its result is no number */
        {0, 0, 142, {284, LKS_OK, 1}, 0.5, 284},          /* nothing was measured before */
        {0, 0, 142, {0, LKS_OK, 1}, 1, 142},              /* nor now */
        {0, 0, 0, {7, LKS_OK, 0}, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct meter m = {cases[i].meter.own, cases[i].meter.st, 0};
        lks__peak p = {cases[i].all, cases[i].own, measure, &m};
        double share = lks__peak_share(&p, cases[i].flops);
        assert_near(share, cases[i].share, 1e-12);
        assert_near(p.flops, cases[i].all_after, 1e-9);
        assert_int_equal(m.n, cases[i].meter.n);
        assert_near(lks__peak_share(&p, cases[i].flops), cases[i].share, 1e-12);
        assert_int_equal(m.n, cases[i].meter.n); /* a step that isn't faster doesn't measure */
    }
}

/* Announcements of slow work at iteration 50 of 100, if a token takes a second at least. */
static void announce(lks__report *r, lks__trainer *t)
{
    const double peak = r->peak.flops;
    lks__report_work(r, t, "iter"); /* a short one is not announced */
    r->peak.flops = r->flops_per_token;
    lks__report_work(r, t, "evaluation");
    lks__report_work(r, t, "iter");
    r->log.status_at = 0;
    r->work_began = lks__sys_now() - 60;
    t->ses.on_progress(r, 1, 4);
    lks__report_slow_run(r, &t->run, &t->state);
    r->peak.flops /= 1000;
    lks__report_slow_run(r, &t->run, &t->state);
    t->run.s.eval_only = true;
    lks__report_slow_run(r, &t->run, &t->state);
    t->run.s.eval_only = false;
    r->peak.flops = peak;
}

/* A run whose peak was measured far too low reports at most 100 %, and the right peak at the end.
 * A long one says so once, by its third step: here one of a minute, after evaluations of 30 s. */
TEST(test_run)
{
    char said[2048];
    FILE *err = tmpfile();
    assert_non_null(err);
    const char *dir = lks_test_folder();
    lks_test_generated_tokens(dir);
    lks__settings s;
    lks__trainer t;
    lks__report r;
    lks_test_settings(&s, lks_test_text("--dataset=%s", dir),
                      lks_test_text("--out_dir=%s/out", dir), "--vocab_size=65", "--n_layer=1",
                      "--n_head=1", "--n_embd=16", "--block_size=16", "--batch_size=2",
                      "--gradient_accumulation_steps=1", "--threads=1", "--max_iters=99",
                      "--eval_interval=10");
    assert_ok(lks__trainer_open(&s, &t, &(int){0}));
    t.state.iter = 9; /* a rollback can go to a step before the process's first one */
    assert_ok(lks__report_open(&r, &t, false));
    t.state.iter = 0;
    const double before = r.peak.flops;
    assert_true(before > 0);
    r.peak.flops = r.peak.own = 1000;
    r.log.err = err;
    r.eval_s = 30;
    for (int i = 0; i < 4; i++) {
        lks__step_result step;
        if (i == 2)
            t.state.iter = 49;
        assert_ok(lks__train_step(&t, &step));
        if (i >= 2)
            step.seconds = 60;
        assert_ok(lks__report_train(&r, &t, &step));
        if (i == 2)
            announce(&r, &t);
    }
    rewind(err);
    said[fread(said, 1, sizeof said - 1, err)] = '\0';
    r.log.err = stderr;
    fclose(err);
    assert_string_equal(
        said, "lockstep train: a step takes 60 s, so the 50 steps to come take about 53 min with "
              "evaluations of 30 s; Ctrl-C stops the run with a checkpoint\n"
              "lockstep train: evaluation 50 begins: 400 batches take over 71 min; a smaller "
              "--eval_iters takes less\n"
              "lockstep train: iter 50 begins: each micro-batch takes over 32 s\n"
              "lockstep train: iter 50: 1 of 4 micro-batches, 3 min left\n"
              "lockstep train: the run takes over 19 days, even at the peak speed of these "
              "ranks\n");
    assert_true(r.peak.flops > before / 20); /* the machine's, however busy it is */
    assert_ok(lks__report_close(&r, &t));
    lks__trainer_close(&t);
    const char *metrics = lks_test_text("%s/out/metrics.jsonl", dir);
    const json_t *lines = lks_test_metrics(metrics, "train");
    assert_int_equal(json_array_size(lines), 4);
    for (int i = 0; i < 4; i++) {
        double mfu = lks_test_number(lines, lks_test_text("%d.mfu", i));
        assert_true(mfu > 0 && mfu <= 1);
    }
    assert_true(lks_test_number(lks_test_metrics(metrics, "host"), "1.peak_gflops") > 1e-5);
    /* The log's mean begins after the first iterations. */
    const char *log = lks_test_read(lks_test_text("%s/out/train.log", dir), NULL);
    assert_contains(log, "iter 0: loss ");
    assert_null(strstr(log, "mfu"));
}
