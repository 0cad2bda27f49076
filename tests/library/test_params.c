/* lockstep/ddp.h in a program's own loop: the canonical sum of weighted micro-batches, bit for bit,
 * and errors that LOCKSTEP_CHECK=1 finds. Ranks are threads; gradients are made up. (test_misuse.c
 * has calls with wrong arguments.) */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/rng.h"
#include "comm/ranks.h"
#include "comm/shm/host.h"
#include "comm/shm/segment/segment_layout.h"
#include "comm/shm/segment/status.h"
#include "ddp/library/params.h"

enum { MAX_RANKS = 8, STEPS = 2, N_PARAMS = 5, FROZEN = 2, RARE = 1, RARE_V = 2 };

static const size_t counts[N_PARAMS] = {7, 5000, 60, 4096, 1};
static const char *const names[N_PARAMS] = {"in.bias", "in.weight", "scale", "out.weight", "out"};

/* How backward marks its parameters. */
enum marks { NONE, BACKWARDS, FORWARDS, HALF, N_MARKS, EARLY };

struct model {
    float value[N_PARAMS][5000], grad[N_PARAMS][5000];
    lks_param params[N_PARAMS];
};

static struct model *new_model(void)
{
    struct model *m = lks_test_calloc(1, sizeof *m);
    for (int p = 0; p < N_PARAMS; p++)
        m->params[p] =
            (lks_param){names[p], m->value[p], p == FROZEN ? NULL : m->grad[p], counts[p]};
    return m;
}

/* ---- what is expected -------------------------------------------------------------------- */

static double same_weight; /* of all micro-batches; 0: they differ */

static double weight_of(int v, int m)
{
    return same_weight > 0 ? same_weight : (v * 3 + m) % 5; /* some are 0 */
}

static double loss_of(int step, int v, int m)
{
    return 1.0 / (1 + step + 3 * v + 7 * m);
}

/* One virtual rank uses it, in the first step and not in the second. */
static bool has_rare(int step, int v)
{
    return v == RARE_V && step % 2 == 0;
}

/* Of all magnitudes, so that each order of addition rounds differently; zero for a micro-batch
 * without samples, or for a parameter that it doesn't use. */
static float made_up(int step, int v, int m, int param, size_t i)
{
    const uint32_t counter[4] = {(uint32_t)step, (uint32_t)(v << 8 | m), (uint32_t)param,
                                 (uint32_t)i};
    uint32_t words[4];
    if (weight_of(v, m) == 0 || (param == RARE && !has_rare(step, v)))
        return 0;
    lks__philox4x32(lks__philox_key_of(1), counter, words);
    return ldexpf((float)(int32_t)words[0], -31 - (int)(words[1] % 12));
}

/* The definition: neighbours level by level, one multiplication. */
static float mean_of(int V, int A, int step, int param, size_t i, double weight)
{
    float node[64];
    for (int v = 0; v < V; v++) {
        node[v] = 0;
        for (int m = 0; m < A; m++)
            node[v] += made_up(step, v, m, param, i);
    }
    for (int n = V; n > 1; n = (n + 1) / 2)
        for (int k = 0; k < (n + 1) / 2; k++)
            node[k] = 2 * k + 1 < n ? node[2 * k] + node[2 * k + 1] : node[2 * k];
    return node[0] * (float)(1.0 / weight);
}

struct expected {
    double weight, loss, norm[STEPS];
    float mean[STEPS][N_PARAMS][5000];
    double losses[STEPS];
};

static struct expected *expect(int V, int A)
{
    struct expected *e = lks_test_calloc(1, sizeof *e);
    for (int v = 0; v < V; v++) {
        double leaf = 0;
        for (int m = 0; m < A; m++)
            leaf += weight_of(v, m);
        e->weight += leaf;
    }
    for (int s = 0; s < STEPS; s++) {
        double squares = 0;
        for (int v = 0; v < V; v++) {
            double leaf = 0;
            for (int m = 0; m < A; m++)
                leaf += loss_of(s, v, m);
            e->losses[s] += leaf;
        }
        e->losses[s] /= e->weight;
        for (int p = 0; p < N_PARAMS; p++)
            for (size_t i = 0; p != FROZEN && i < counts[p]; i++) {
                e->mean[s][p][i] = mean_of(V, A, s, p, i, e->weight);
                squares += (double)e->mean[s][p][i] * e->mean[s][p][i];
            }
        e->norm[s] = sqrt(squares);
    }
    return e;
}

/* ---- ranks ------------------------------------------------------------------------------- */

struct rank {
    lks_comm *comm;
    lks_status (*run)(struct rank *r);
    lks_ddp_options options;
    enum marks marks;
    struct model *model;
    float *grads[N_PARAMS]; /* the model's, or with own_gradients the library's */
    const struct expected *expected;
    int odd; /* this rank is given something else */
    bool nan;
    lks_status status;
    char said[1024];
};

/* Each parameter's gradient is there when it is marked, and not before. */
static lks_status backward(struct rank *r, lks_ddp *ddp, int step, int v, int m)
{
    const bool stores = r->options.overwrites && m == 0;
    if (stores && weight_of(v, m) == 0) /* without data it stores nothing */
        return LKS_OK;
    for (int i = 0; i < N_PARAMS; i++) {
        int p = r->marks == FORWARDS ? i : N_PARAMS - 1 - i;
        if (r->marks == EARLY && p == r->odd)
            LKS__TRY(lks_ddp_mark_ready(ddp, (size_t)p));
        if (p == FROZEN && stores)
            memset(r->grads[p], 0, counts[p] * sizeof(float));
        for (size_t k = 0; p != FROZEN && k < counts[p]; k++)
            r->grads[p][k] = (stores ? 0 : r->grads[p][k]) + made_up(step, v, m, p, k);
        if (r->marks == NONE || r->marks == EARLY || (r->marks == HALF && p % 2 == 0) ||
            (p == RARE && !has_rare(step, v)))
            continue;
        LKS__TRY(lks_ddp_mark_ready(ddp, (size_t)p));
    }
    return LKS_OK;
}

static lks_status one_step(struct rank *r, lks_ddp *ddp, int step, lks_ddp_result *result)
{
    int A = r->options.micro_steps;
    for (int v = lks_ddp_first(ddp); v < lks_ddp_end(ddp); v++) {
        LKS__TRY(lks_ddp_begin(ddp, v));
        for (int m = 0; m < A; m++) {
            LKS__TRY(lks_ddp_add_loss(ddp, loss_of(step, v, m)));
            LKS__TRY(backward(r, ddp, step, v, m));
            LKS__TRY(lks_ddp_accumulate(ddp, weight_of(v, m)));
        }
    }
    return lks_ddp_step(ddp, result);
}

static lks_status check_step(const struct rank *r, const lks_ddp *ddp, int step,
                             const lks_ddp_result *got)
{
    const struct expected *e = r->expected;
    for (int p = 0; p < N_PARAMS; p++)
        if (memcmp(r->grads[p], e->mean[step][p], counts[p] * sizeof(float)) != 0)
            return lks__fail(LKS_ERR_DIVERGED, "step %d: the mean gradient of %s is another", step,
                             names[p]);
    if (got->weight != e->weight || got->loss != e->losses[step] ||
        fabs(got->norm - e->norm[step]) > 1e-6 * e->norm[step])
        return lks__fail(LKS_ERR_DIVERGED, "step %d: weight %g, loss %.17g, norm %.17g", step,
                         got->weight, got->loss, got->norm);
    bool rare = r->marks == NONE || (r->options.virtual_ranks > RARE_V && has_rare(step, RARE_V));
    if (r->marks != HALF && lks_ddp_used(ddp, RARE) != rare)
        return lks__fail(LKS_ERR_DIVERGED, "step %d: was %s used?", step, names[RARE]);
    return LKS_OK;
}

/* With own_gradients they are in the reducer's memory, so no other copy of them exists. */
static lks_status find_gradients(struct rank *r, const lks_ddp *ddp)
{
    const lks__memory *m = lks__reducer_memory(ddp->inner);
    const float *arena = m->arena[m->config.n_arenas - 1];
    for (int p = 0; p < N_PARAMS; p++) {
        float *gradient = lks_ddp_gradient(ddp, (size_t)p);
        if (!r->options.own_gradients && gradient != r->model->params[p].grad)
            return lks__fail(LKS_ERR_DIVERGED, "the gradient of %s is not the caller's", names[p]);
        r->grads[p] = gradient != NULL ? gradient : r->model->grad[p]; /* a frozen one is 0 */
    }
    for (int p = 0; p < N_PARAMS && r->options.own_gradients; p++)
        if (r->grads[p] != arena + ddp->table.tensors[ddp->params[p].tensor].offset)
            return lks__fail(LKS_ERR_DIVERGED, "%s has another gradient", names[p]);
    return LKS_OK;
}

static lks_status run_steps(struct rank *r)
{
    lks_ddp *ddp;
    for (int p = 0; p < N_PARAMS && r->options.own_gradients; p++)
        r->model->params[p].grad = NULL;
    LKS__TRY(lks_ddp_open(r->comm, r->model->params, N_PARAMS, &r->options, &ddp));
    lks_status st = find_gradients(r, ddp);
    for (int step = 0; step < STEPS && st == LKS_OK; step++) {
        lks_ddp_result result;
        st = one_step(r, ddp, step, &result);
        LKS__THEN(st, check_step(r, ddp, step, &result));
    }
    lks_ddp_close(ddp);
    return st;
}

static void rank_main(lks_comm *comm, void *arg)
{
    struct rank *r = arg;
    r->comm = comm;
    r->model = new_model();
    r->status = r->run(r);
    if (r->status != LKS_OK) {
        snprintf(r->said, sizeof r->said, "%s", lks_last_error());
        lks_comm_abort(r->comm, r->said);
    }
    free(r->model);
}

static void run_ranks(struct rank *ranks, int W)
{
    ranks_as_threads(W, 30, rank_main, ranks, sizeof *ranks);
}

/* ---- tests ------------------------------------------------------------------------------- */

static void check_means(lks_ddp_options options)
{
    static const struct {
        int V, A;
    } shapes[] = {{2, 1}, {3, 2}, {4, 1}, {8, 3}, {5, 1}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        int V = shapes[s].V, A = shapes[s].A;
        same_weight = options.weight;
        struct expected *e = expect(V, A);
        for (int W = 1; W <= V; W++)
            for (int marks = 0; marks < N_MARKS; marks++) {
                struct rank ranks[MAX_RANKS];
                options.virtual_ranks = V;
                options.micro_steps = A;
                options.bucket_mb = marks == HALF ? 25 : 0.001;
                for (int i = 0; i < W; i++)
                    ranks[i] = (struct rank){.run = run_steps,
                                             .options = options,
                                             .marks = (enum marks)marks,
                                             .expected = e};
                run_ranks(ranks, W);
                for (int i = 0; i < W; i++)
                    if (ranks[i].status != LKS_OK)
                        fail_msg("V = %d, A = %d, W = %d, marks %d, rank %d: %s", V, A, W, marks, i,
                                 ranks[i].said);
            }
        free(e);
    }
    same_weight = 0;
}

TEST(test_mean)
{
    check_means((lks_ddp_options){0});
}

TEST(test_own_gradients)
{
    check_means((lks_ddp_options){.own_gradients = true});
}

TEST(test_same_weight)
{
    check_means((lks_ddp_options){.weight = 3});
    check_means((lks_ddp_options){.weight = 3, .own_gradients = true});
}

TEST(test_overwrites)
{
    check_means((lks_ddp_options){.overwrites = true});
    check_means((lks_ddp_options){.overwrites = true, .weight = 0.1, .own_gradients = true});
}

enum { LARGE = (32 << 20) / sizeof(float) + 1, LAST = (1 << 20) / sizeof(float) };

static lks_status check_large(const float *grad, float factor, float scale)
{
    for (size_t i = 0; i < LARGE; i++)
        if (grad[i] != factor * (float)(i % 1000) * scale)
            return lks__fail(LKS_ERR_DIVERGED, "gradient %zu is %g", i, (double)grad[i]);
    return LKS_OK;
}

static lks_status large_step(const struct rank *r, lks_ddp *ddp)
{
    const lks_ddp_options *o = &r->options;
    float *grad = lks_ddp_gradient(ddp, 0);
    for (int v = lks_ddp_first(ddp); v < lks_ddp_end(ddp); v++) {
        LKS__TRY(lks_ddp_begin(ddp, v));
        LKS__TRY(o->overwrites ? LKS_OK : check_large(grad, 0, 1));
        if (o->overwrites)
            memset(lks_ddp_gradient(ddp, 1), 0, LAST * sizeof(float));
        for (size_t i = 0; i < LARGE; i++)
            grad[i] = (o->overwrites ? 0 : grad[i]) + (float)((v + 1) * (int)(i % 1000));
        LKS__TRY(lks_ddp_mark_ready(ddp, 0));
        LKS__TRY(lks_ddp_accumulate(ddp, o->weight > 0 ? o->weight : v + 2));
    }
    LKS__TRY(lks_ddp_step(ddp, NULL));
    return check_large(grad, 3, o->weight > 0 ? (float)(1 / (2 * o->weight)) : 1.0f / 5);
}

/* Its gradient isn't aligned, and must keep its neighbours. */
static lks_status run_large(struct rank *r)
{
    lks_ddp *ddp = NULL;
    float *value = lks_test_calloc(LARGE + LAST, sizeof *value);
    float *grad = lks_test_malloc((LARGE + 2 + LAST) * sizeof *grad);
    for (size_t i = 0; i < LARGE + 2; i++)
        grad[i] = 7;
    lks_param params[] = {{"large", value, grad + 1, LARGE},
                          {"last", value + LARGE, grad + LARGE + 2, LAST}};
    if (r->options.own_gradients)
        params[0].grad = params[1].grad = NULL;
    lks_status st = lks_ddp_open(r->comm, params, 2, &r->options, &ddp);
    if (st == LKS_OK && lks__reducer_memory(ddp->inner)->config.buckets->list[0].count != LAST)
        st = lks__fail(LKS_ERR_DIVERGED, "the first bucket isn't small");
    for (int step = 0; step < STEPS && st == LKS_OK; step++)
        st = large_step(r, ddp);
    if (st == LKS_OK && (grad[0] != 7 || grad[LARGE + 1] != 7))
        st = lks__fail(LKS_ERR_DIVERGED, "another array was written to");
    lks_ddp_close(ddp);
    lks_test_free(value, grad);
    return st;
}

/* Gradients that bypass the caches, and a small first bucket. */
TEST(test_large)
{
    for (int W = 1; W <= 2; W++)
        for (int k = 0; k < 4; k++) {
            struct rank ranks[2];
            for (int i = 0; i < W; i++)
                ranks[i] = (struct rank){.run = run_large,
                                         .options = {.virtual_ranks = 2,
                                                     .own_gradients = k % 2 != 0,
                                                     .weight = k < 2 ? 0 : 3,
                                                     .overwrites = k >= 2}};
            run_ranks(ranks, W);
            for (int i = 0; i < W; i++)
                if (ranks[i].status != LKS_OK)
                    fail_msg("W = %d, options %d, rank %d: %s", W, k, i, ranks[i].said);
        }
}

/* Values that differ before the broadcast, and not after it; one changed bit on one rank is
 * found. */
static lks_status run_values(struct rank *r)
{
    lks_ddp *ddp;
    int rank = lks_comm_rank(r->comm);
    LKS__TRY(lks_ddp_open(r->comm, r->model->params, N_PARAMS, NULL, &ddp));
    for (int p = 0; p < N_PARAMS; p++)
        for (size_t i = 0; i < counts[p]; i++)
            r->model->value[p][i] = (float)(rank + p) + (float)i / 3;
    lks_status st = lks_ddp_broadcast(ddp);
    LKS__THEN(st, lks_ddp_verify(ddp));
    if (st == LKS_OK && r->model->value[3][3] != 4.0f)
        st = lks__fail(LKS_ERR_DIVERGED, "value %g", (double)r->model->value[3][3]);
    if (rank == r->odd)
        r->model->value[FROZEN][59] = -1;
    if (r->nan) {
        const uint32_t bits = 0x7fc00000 + (rank == r->odd);
        memcpy(&r->model->value[FROZEN][59], &bits, sizeof bits);
    }
    LKS__THEN(st, lks_ddp_verify(ddp));
    lks_ddp_close(ddp);
    return st;
}

TEST(test_values)
{
    struct rank ranks[3];
    for (int nan = 0; nan < 2; nan++) {
        for (int i = 0; i < 3; i++)
            ranks[i] = (struct rank){.run = run_values, .odd = 2, .nan = nan};
        run_ranks(ranks, 3);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(ranks[i].status, LKS_ERR_DIVERGED);
            assert_contains(ranks[i].said,
                            nan ? "rank 2 has nan with bits 7fc00001 in tensor scale at index 59, "
                                  "but rank 0 has nan with bits 7fc00000"
                                : "rank 2 has -1 in tensor scale at index 59, but rank 0 has ");
        }
    }
}

static lks_status run_other_params(struct rank *r)
{
    lks_ddp *ddp;
    lks_param params[N_PARAMS];
    size_t n = N_PARAMS;
    memcpy(params, r->model->params, sizeof params);
    if (lks_comm_rank(r->comm) == 1 && r->odd == 0)
        params[3].count = 4000;
    if (lks_comm_rank(r->comm) == 1 && r->odd == 1)
        params[0].grad = NULL;
    if (lks_comm_rank(r->comm) == 1 && r->odd == 2)
        n = 4;
    if (lks_comm_rank(r->comm) == 1 && r->odd == 3)
        params[4].name = "wrong\033name";
    if (lks_comm_rank(r->comm) == 0 && r->odd == 4)
        n = 4;
    lks_ddp_options o = {.virtual_ranks = 4,
                         .micro_steps = lks_comm_rank(r->comm) == 2 && r->odd == 5 ? 2 : 1};
    LKS__TRY(lks_ddp_open(r->comm, params, n, &o, &ddp));
    lks_ddp_close(ddp);
    return LKS_OK;
}

TEST(test_other_params)
{
    static const char *const texts[] = {
        "number 3 is out.weight with 4000 elements on rank 1, and out.weight with 4096 elements on "
        "rank 0",
        "number 0 is in.bias with 7 elements, frozen on rank 1, and in.bias with 7 elements on "
        "rank 0",
        "number 4 is none on rank 1, and out with 1 elements on rank 0",
        "number 4 is wrong\\x1bname with 1 elements on rank 1",
        "number 4 is out with 1 elements on rank 1, and none on rank 0",
        "micro_steps: 2 on rank 2, and 1 on rank 0"};
    for (int odd = 0; odd < 6; odd++) {
        struct rank ranks[3];
        for (int i = 0; i < 3; i++)
            ranks[i] = (struct rank){.run = run_other_params, .odd = odd};
        run_ranks(ranks, 3);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(ranks[i].status, LKS_ERR_DIVERGED);
            assert_contains(ranks[i].said, texts[odd]);
        }
    }
}

/* With LOCKSTEP_CHECK=1, a mark before the gradient is complete is an error on every rank, and
 * marks in time are none. */
static void check_early_marks(const struct expected *e, bool own, bool overwrites)
{
    for (int W = 1; W <= 4; W++)
        for (int marks = NONE; marks <= EARLY; marks++) {
            struct rank ranks[MAX_RANKS];
            if (marks == N_MARKS)
                continue;
            for (int i = 0; i < W; i++)
                ranks[i] = (struct rank){.run = run_steps,
                                         .options = {.virtual_ranks = 4,
                                                     .micro_steps = 2,
                                                     .bucket_mb = marks == HALF ? 25 : 0.001,
                                                     .own_gradients = own,
                                                     .overwrites = overwrites},
                                         .marks = (enum marks)marks,
                                         .expected = e,
                                         .odd = 3};
            run_ranks(ranks, W);
            for (int i = 0; i < W; i++) {
                if (marks != EARLY) {
                    assert_int_equal(ranks[i].status, LKS_OK);
                    continue;
                }
                assert_true(ranks[i].status == LKS_ERR_ARG || ranks[i].status == LKS_ERR_PEER);
                assert_contains(ranks[i].said, "the gradient of out.weight changed after "
                                               "lks_ddp_mark_ready() in micro-step ");
                if (W == 1) /* its first micro-batch is empty */
                    assert_contains(ranks[i].said, " in micro-step 1 of virtual rank 0 (both ");
            }
        }
}

TEST(test_early_mark)
{
    struct expected *e = expect(4, 2);
    setenv("LOCKSTEP_CHECK", "1", 1);
    check_early_marks(e, false, false);
    check_early_marks(e, true, true);
    setenv("LOCKSTEP_CHECK", "yes", 1);
    struct rank one = {
        .run = run_steps, .options = {.virtual_ranks = 4, .micro_steps = 2}, .expected = e};
    run_ranks(&one, 1);
    assert_int_equal(one.status, LKS_ERR_CONFIG);
    assert_contains(one.said, "LOCKSTEP_CHECK=yes: use 0 or 1");
    for (int off = 0; off < 2; off++) {
        setenv("LOCKSTEP_CHECK", off == 0 ? "" : "0", 1);
        run_ranks(&one, 1);
        assert_int_equal(one.status, LKS_OK);
    }
    unsetenv("LOCKSTEP_CHECK");
    free(e);
}

/* With LOCKSTEP_CHECK=1, a gradient that changes after the step's last micro-step is found; the
 * change would be lost. */
TEST(test_late_change)
{
    struct model *m = new_model();
    setenv("LOCKSTEP_CHECK", "1", 1);
    for (int late = 0; late < 2; late++) {
        lks_comm *comm;
        lks_ddp *d;
        lks_ddp_result result;
        assert_ok(lks_comm_init(&comm));
        assert_ok(lks_ddp_open(comm, m->params, 2, NULL, &d));
        assert_ok(lks_ddp_begin(d, 0));
        m->grad[1][0] += 1;
        assert_ok(lks_ddp_accumulate(d, 3));
        m->grad[1][0] += (float)late;
        if (late)
            assert_fails(LKS_ERR_ARG, lks_ddp_step(d, NULL),
                         lks_test_text("the gradient of %s changed after the last "
                                       "lks_ddp_accumulate()",
                                       m->params[1].name));
        else
            assert_ok(lks_ddp_step(d, &result));
        if (!late) /* a third, rounded once */
            assert_true(result.norm == m->grad[1][0] && m->grad[1][0] == 1.0f / 3);
        lks_ddp_close(d);
        lks_comm_close(comm);
    }
    unsetenv("LOCKSTEP_CHECK");
    free(m);
}

/* What differs on rank 1. */
enum { NOTHING, FROZEN_VALUE, NOTES, VALUE, UPDATE, STEP, N_DIFFERENCES };

static lks_status run_checked(struct rank *r)
{
    lks_ddp *ddp;
    const bool odd = lks_comm_rank(r->comm) == 1;
    const bool notes = r->odd == NOTES ? odd : r->odd != STEP || lks_comm_rank(r->comm) > 0;
    LKS__TRY(lks_ddp_open(r->comm, r->model->params, N_PARAMS, &r->options, &ddp));
    lks_status st = find_gradients(r, ddp);
    if (odd && r->odd == FROZEN_VALUE)
        r->model->value[FROZEN][3] = 1;
    for (int step = 0; step < STEPS && st == LKS_OK; step++) {
        if (odd && (r->odd == VALUE || (r->odd == UPDATE && step == 1)))
            r->model->value[3][4095] = 1;
        if (notes)
            lks_comm_note(r->comm, (uint64_t)(7 + step + (odd && r->odd == STEP && step == 1)),
                          "training");
        st = one_step(r, ddp, step, NULL);
    }
    lks_ddp_close(ddp);
    return st;
}

/* With LOCKSTEP_CHECK=1, a step finds other values on a rank, as without a broadcast or after an
 * update that differs, and a rank that has skipped a step. Frozen parameters may differ, and
 * perhaps only some ranks note steps. */
TEST(test_checked_step)
{
    static const char *const said[N_DIFFERENCES] = {
        [VALUE] = "lks_ddp_step: ranks have different parameters; lks_ddp_broadcast() gives all of "
                  "them rank 0's, before the first step: out.weight with hash ",
        [UPDATE] = "lks_ddp_step: ranks have different parameters; they were equal at the step "
                   "before, so the ranks' updates since then differ: out.weight with hash ",
        [STEP] = "lks_ddp_step: ranks are in different steps: rank 2 has noted step 8 by "
                 "lks_comm_note(), and rank 1 step 9: ",
    };
    setenv("LOCKSTEP_CHECK", "1", 1);
    for (int what = NOTHING; what < N_DIFFERENCES; what++) {
        struct rank ranks[3];
        for (int i = 0; i < 3; i++)
            ranks[i] = (struct rank){
                .run = run_checked, .options = {.virtual_ranks = 4, .micro_steps = 2}, .odd = what};
        run_ranks(ranks, 3);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(ranks[i].status, said[what] != NULL ? LKS_ERR_DIVERGED : LKS_OK);
            assert_contains(ranks[i].said, said[what] != NULL ? said[what] : "");
        }
    }
    unsetenv("LOCKSTEP_CHECK");
}

/* With LOCKSTEP_CHECK=1, a gradient is found that backward doesn't store, or adds to. */
TEST(test_unstored)
{
    static const struct {
        size_t first; /* that is stored */
        bool adds;
        const char *text;
    } rows[] = {
        {0, true, "element 0 of the gradient of in.bias wasn't stored in micro-step 0 of "},
        {1, false, "element 0 of the gradient of in.bias wasn't stored in micro-step 0 of "},
        {0, false, ""}};
    struct model *m = new_model();
    setenv("LOCKSTEP_CHECK", "1", 1);
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        lks_comm *comm;
        lks_ddp *d;
        assert_ok(lks_comm_init(&comm));
        assert_ok(lks_ddp_open(comm, m->params, 1, &(lks_ddp_options){.overwrites = true}, &d));
        assert_ok(lks_ddp_begin(d, 0));
        for (size_t i = rows[k].first; i < counts[0]; i++)
            m->grad[0][i] = (rows[k].adds ? m->grad[0][i] : 0) + 1;
        if (rows[k].text[0] != '\0')
            assert_fails(LKS_ERR_ARG, lks_ddp_accumulate(d, 1), rows[k].text);
        else
            assert_ok(lks_ddp_accumulate(d, 1));
        lks_ddp_close(d);
        lks_comm_close(comm);
    }
    unsetenv("LOCKSTEP_CHECK");
    free(m);
}

static void assert_beats(lks_comm *comm, lks_status st)
{
    atomic_ullong *beat = &lks__segment_line(lks__shm_segment(comm), 0)->beat_us;
    assert_ok(st);
    assert_true(*beat != 0);
    *beat = 0;
}

/* Each call of a step is a heartbeat, so that a slow backward can mark its parameters only. */
TEST(test_heartbeats)
{
    lks_comm *comm;
    lks_ddp *d;
    struct model *m = new_model();
    assert_ok(lks__comm_open_threads(1, 30, &comm));
    assert_ok(lks_ddp_open(comm, m->params, N_PARAMS, &(lks_ddp_options){.virtual_ranks = 2}, &d));
    for (int v = 0; v < 2; v++) {
        assert_beats(comm, lks_ddp_begin(d, v));
        assert_beats(comm, lks_ddp_mark_ready(d, 0));
        assert_beats(comm, lks_ddp_add_loss(d, 1));
        assert_beats(comm, lks_ddp_accumulate(d, 1));
    }
    assert_beats(comm, lks_ddp_step(d, NULL));
    lks_ddp_close(d);
    lks_comm_close(comm);
    free(m);
}

/* No rank has data: zero gradients, and no division by zero. */
TEST(test_no_data)
{
    lks_comm *comm;
    lks_ddp *d;
    lks_ddp_result r;
    struct model *m = new_model();
    assert_ok(lks_comm_init(&comm));
    assert_ok(lks_ddp_open(comm, m->params, N_PARAMS, NULL, &d));
    assert_ok(lks_ddp_begin(d, 0));
    assert_ok(lks_ddp_accumulate(d, 0));
    assert_ok(lks_ddp_step(d, &r));
    assert_true(r.weight == 0 && r.loss == 0 && r.norm == 0);
    for (size_t i = 0; i < counts[1]; i++)
        assert_true(m->grad[1][i] == 0);
    lks_ddp_close(d);
    lks_comm_close(comm);
    free(m);
}

static void clip_step(lks_ddp *d, struct model *m, float gradient)
{
    assert_ok(lks_ddp_begin(d, 0));
    m->grad[0][0] = gradient; /* the others stay 0 */
    assert_ok(lks_ddp_accumulate(d, 1));
    assert_ok(lks_ddp_step(d, NULL));
}

/* Gradients 5 and 0: clipped to 2 as torch.nn.utils.clip_grad_norm_() does, not clipped to 10. */
TEST(test_clip)
{
    lks_comm *comm;
    lks_ddp *d;
    double factor = -1;
    struct model *m = new_model();
    assert_ok(lks_comm_init(&comm));
    assert_ok(lks_ddp_open(comm, m->params, N_PARAMS, NULL, &d));
    assert_fails(LKS_ERR_ARG, lks_ddp_clip(d, 1, &factor), "call it once after lks_ddp_step()");
    clip_step(d, m, 5);
    assert_fails(LKS_ERR_ARG, lks_ddp_clip(d, 0, &factor), "max_norm is 0");
    assert_fails(LKS_ERR_ARG, lks_ddp_clip(d, NAN, &factor), "max_norm is");
    assert_fails(LKS_ERR_ARG, lks_ddp_clip(NULL, 1, &factor), "ddp is NULL");
    assert_ok(lks_ddp_clip(d, 2, &factor));
    assert_true(factor == 2 / (5 + 1e-6) && m->grad[0][0] == 5 * (float)factor);
    assert_fails(LKS_ERR_ARG, lks_ddp_clip(d, 2, &factor), "call it once after lks_ddp_step()");
    clip_step(d, m, 5);
    assert_ok(lks_ddp_clip(d, 10, NULL));
    assert_true(m->grad[0][0] == 5);
    clip_step(d, m, INFINITY);
    assert_fails(LKS_ERR_NAN, lks_ddp_clip(d, 10, &factor), "the norm of the gradient is inf");
    assert_true(m->grad[0][0] == INFINITY && m->grad[1][0] == 0);
    assert_ok(lks_ddp_begin(d, 0));
    assert_fails(LKS_ERR_ARG, lks_ddp_clip(d, 10, &factor), "call it once after lks_ddp_step()");
    lks_ddp_close(d);
    lks_comm_close(comm);
    free(m);
}
