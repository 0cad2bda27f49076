/* One step from inside: the mean of its losses, the keys of its random numbers, whether a changed
 * parameter is found in any tensor, and the effect of an infinite loss. */
#include "laws.h"

#include <math.h>
#include <string.h>

#include "train/checks/divergence.h"
#include "train/checks/nonfinite.h"
#include "train/micro.h"
#include "train/setup/trainer.h"
#include "train/step.h"

enum { N = 48, V = 4 };

/* A run of one rank before its first step, with one more setting. */
static void open_trainer(lks__trainer *t, const char *more)
{
    lks__settings s;
    lks_test_settings(&s, "--vocab_size=65", "--n_layer=2", "--n_head=2", "--n_embd=16",
                      "--block_size=8", "--batch_size=1", "--bias", "--threads=1",
                      "--warmup_iters=0", lks_test_text("--gradient_accumulation_steps=%d", N),
                      lks_test_text("--virtual_ranks=%d", V),
                      lks_test_text("--dataset=%s", law_data()),
                      lks_test_text("--out_dir=%s", lks_test_folder()), more);
    assert_ok(lks__trainer_open(&s, t, &(int){0}));
}

static void steps(lks__trainer *t, uint64_t until)
{
    lks__step_result r;
    while (t->state.iter < until)
        assert_ok(lks__train_step(t, &r));
}

/* The mean is computed in double, exact to the last bit. */
TEST(test_loss)
{
    lks__trainer t;
    lks__step_result r;
    open_trainer(&t, "--dropout=0.1");
    for (int k = 0; k < 3; k++) {
        double sum = 0.0;
        assert_ok(lks__train_step(&t, &r));
        const float *losses = t.work.losses.host;
        for (int i = 0; i < N; i++) {
            assert_true(losses[i] > 0.0f);
            sum += (double)losses[i];
        }
        assert_true(r.loss == sum / N);
    }
    lks__trainer_close(&t);
}

/* The same micro-batch has other random numbers in another step; all micro-batches of a step have
 * different ones. */
TEST(test_keys)
{
    lks__trainer t;
    open_trainer(&t, "--seed=77");
    for (uint64_t iter = 0; iter < 3; iter++) {
        steps(&t, iter);
        for (int v = 0; v < V; v++)
            for (int m = 0; m < N / V; m++) {
                lks__backward bw = lks__train_pass(&t, v, m, NULL);
                assert_int_equal(bw.seed, 77);
                assert_int_equal(bw.step, iter);
                assert_int_equal(bw.vm, v << 16 | m);
            }
    }
    lks__trainer_close(&t);
}

/* Flip the lowest bit of a parameter. */
static void flip(lks__trainer *t, size_t at)
{
    float *params = t->state.memory->params.host;
    uint32_t bits;
    memcpy(&bits, &params[at], sizeof bits);
    bits ^= 1;
    memcpy(&params[at], &bits, sizeof bits);
}

TEST(test_flips)
{
    size_t n_tensors = 1;
    for (size_t i = 0; i < n_tensors; i++)
        for (int last = 0; last < 2; last++) {
            lks__trainer t;
            lks__step_result r;
            open_trainer(&t, "--check_interval=1");
            n_tensors = t.run.table.n_tensors;
            steps(&t, 1);
            const lks__table_tensor *tensor = &t.run.table.tensors[i];
            flip(&t, tensor->offset + (last ? tensor->count - 1 : 0));
            assert_fails(LKS_ERR_DIVERGED, lks__train_step(&t, &r),
                         lks_test_text("first in tensor %s,", tensor->name));
            lks__trainer_close(&t);
        }
    assert_true(n_tensors > 20);
    lks__trainer t; /* several: the first in the table is named */
    lks__step_result r;
    open_trainer(&t, "--check_interval=1");
    steps(&t, 1);
    flip(&t, t.run.table.tensors[n_tensors - 1].offset);
    flip(&t, t.run.table.tensors[3].offset);
    assert_fails(LKS_ERR_DIVERGED, lks__train_step(&t, &r),
                 lks_test_text("first in tensor %s,", t.run.table.tensors[3].name));
    lks__trainer_close(&t);
}

/* What the notes of four ranks come to. A rank without a hash supports nobody. */
TEST(test_verdicts)
{
    enum { W = 4 };
    static const struct {
        lks__divergence_vote notes[W]; /* iter, hash, changed, compares, host */
        const char *says;              /* NULL: all is well */
        int rank;                      /* that reports it */
    } cases[] = {
        {{{5, 7, -1, 1, "a"}, {5, 7, -1, 1, "b"}, {5, 7, -1, 1, "c"}, {5, 7, -1, 1, "d"}}, NULL, 0},
        {{{5, 7, -1, 1, "a"}, {5, 0, -1, 0, "a"}, {5, 7, -1, 1, "c"}, {5, 0, -1, 0, "c"}}, NULL, 0},
        {{{5, 0, -1, 1, "a"}, {5, 0, -1, 1, "b"}, {5, 0, -1, 1, "c"}, {5, 0, -1, 1, "d"}}, NULL, 0},
        {{{5, 7, -1, 1, "a"}, {5, 0, -1, 0, "a"}, {5, 0, -1, 0, "a"}, {5, 9, -1, 1, "d"}},
         "rank 3 (host d) has other values than rank 0 (host a): memory",
         3},
        {{{5, 9, -1, 1, "a"}, {5, 7, -1, 1, "b"}, {5, 0, -1, 0, "b"}, {5, 7, -1, 1, "d"}},
         "rank 0 (host a) has other values than rank 1 (host b), which agrees with most ranks",
         0},
        {{{5, 7, -1, 1, "a"}, {5, 9, -1, 1, "b"}, {5, 7, -1, 1, "c"}, {5, 7, -1, 1, "d"}},
         "rank 1 (host b) has other values than rank 0 (host a), which agrees with most ranks",
         1},
        {{{5, 7, -1, 1, "a"}, {5, 7, -1, 1, "b"}, {5, 0, -1, 1, "c"}, {5, 7, -1, 1, "d"}},
         "after update 5 rank 0 (host a) has hashed its replica, but rank 2 (host c) has not",
         2},
        {{{5, 0, -1, 1, "a"}, {5, 0, -1, 1, "a"}, {5, 7, -1, 1, "c"}, {5, 0, -1, 0, "d"}},
         "rank 2 (host c) has hashed its replica, but rank 0 (host a) has not",
         0},
        {{{5, 0, -1, 0, "a"}, {5, 0, -1, 0, "b"}, {5, 7, -1, 1, "c"}, {5, 0, -1, 0, "d"}},
         "rank 2 (host c) has hashed its replica, and no other rank has",
         2},
        {{{5, 7, -1, 1, "a"}, {5, 7, -1, 1, "b"}, {5, 7, -1, 1, "c"}, {4, 7, -1, 1, "d"}},
         "rank 3 (host d) has made 4 iterations, but rank 0 (host a) 5",
         3},
        {{{5, 0, -1, 0, "a"}, {5, 0, -1, 0, "b"}, {5, 0, 2, 0, "c"}, {5, 0, 1, 0, "d"}},
         "on host c (seen by rank 2)",
         2},
    };
    lks__trainer t;
    open_trainer(&t, "--check_interval=1");
    t.ses.world.world_size = W;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int rank;
        lks_status st =
            lks__divergence_check(&t, cases[i].notes, sizeof(lks__divergence_vote), &rank);
        assert_int_equal(st, cases[i].says != NULL ? LKS_ERR_DIVERGED : LKS_OK);
        if (cases[i].says == NULL)
            continue;
        assert_contains(lks_last_error(), cases[i].says);
        assert_int_equal(rank, cases[i].rank);
    }
    t.ses.world.world_size = 1;
    lks__trainer_close(&t);
}

/* With an interval of 3: between update 3 and the next, and no other; with 0 never. */
TEST(test_check_interval)
{
    static const struct {
        const char *interval;
        uint64_t at;
        bool found;
    } cases[] = {{"3", 2, false}, {"3", 3, true}, {"3", 4, false}, {"1", 2, true}, {"0", 3, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lks__trainer t;
        lks__step_result r;
        open_trainer(&t, lks_test_text("--check_interval=%s", cases[i].interval));
        steps(&t, cases[i].at);
        flip(&t, t.run.table.tensors[0].offset);
        assert_int_equal(lks__train_step(&t, &r), cases[i].found ? LKS_ERR_DIVERGED : LKS_OK);
        lks__trainer_close(&t);
    }
}

/* A loss that isn't finite is found even if the gradient's norm is finite. */
TEST(test_infinite_loss)
{
    static const float values[] = {INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        lks__trainer t;
        lks__step_result r;
        open_trainer(&t, "--on_nan=skip");
        assert_ok(lks__train_step(&t, &r));
        assert_true(isfinite(r.grad_norm));
        float *losses = t.work.losses.host;
        losses[N - 1] = values[i];
        assert_ok(lks__nonfinite_check(&t, &r));
        assert_int_equal(r.outcome, LKS__STEP_SKIPPED);
        assert_int_equal(r.bad.index, N - 1);
        assert_true(r.bad.in_loss);
        assert_int_equal(t.state.nonfinite, 1);
        losses[N - 1] = 1.0f; /* a good one ends the row */
        assert_ok(lks__nonfinite_check(&t, &r));
        assert_int_equal(r.outcome, LKS__STEP_DONE);
        assert_int_equal(t.state.nonfinite, 0);
        lks__trainer_close(&t);
    }
}
