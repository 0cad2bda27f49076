/* lockstep/optimizer.h: the bits of the optimizers that `lockstep train` uses, whole and divided
 * over ranks; their state in checkpoints; and wrong calls. Ranks are threads. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/rng.h"
#include "comm/ranks.h"
#include "compute/cpu/device.h"
#include "lockstep/lockstep.h"
#include "model/optim/optimizer.h"

enum { N = 5, STEPS = 4, MOST = 96 * 700, MAX_RANKS = 4 };

static const struct shape {
    const char *name;
    lks_param_kind kind;
    lks__param_kind inner;
    size_t rows, cols;
} shapes[N] = {
    {"embed", LKS_PARAM_EMBED, LKS__PARAM_EMBED, 700, 96},
    {"w", LKS_PARAM_MATRIX, LKS__PARAM_MATRIX, 96, 130},
    {"bias", LKS_PARAM_VECTOR, LKS__PARAM_SCALAR, 97, 1},
    {"narrow", LKS_PARAM_MATRIX, LKS__PARAM_MATRIX, 7, 33},
    {"one", LKS_PARAM_VECTOR, LKS__PARAM_SCALAR, 1, 1},
};

static const lks_rates rates = {.learning_rate = 0.01,
                                .weight_decay = 0.1,
                                .beta1 = 0.9,
                                .beta2 = 0.95,
                                .epsilon = 1e-8,
                                .matrix_rate = 0.02,
                                .matrix_momentum = 0.9,
                                .matrix_decay = 0.05,
                                .matrix_steps = 5};

static float made_up(int step, int tensor, size_t i)
{
    const uint32_t counter[4] = {(uint32_t)step, (uint32_t)tensor, (uint32_t)i, 7};
    uint32_t words[4];
    lks__philox4x32(lks__philox_key_of(3), counter, words);
    return ldexpf((float)(int32_t)words[0], -31 - (int)(words[1] % 8));
}

struct model {
    float value[N][MOST], grad[N][MOST];
    lks_optimizer_param params[N];
};

static void set_values(struct model *m)
{
    for (int t = 0; t < N; t++) {
        m->params[t] = (lks_optimizer_param){shapes[t].name, m->value[t],    m->grad[t],
                                             shapes[t].kind, shapes[t].rows, shapes[t].cols};
        for (size_t i = 0; i < MOST; i++)
            m->value[t][i] = i < shapes[t].rows * shapes[t].cols ? made_up(-1, t, i) : 42;
    }
}

static void set_grads(struct model *m, int step)
{
    for (int t = 0; t < N; t++)
        for (size_t i = 0; i < MOST; i++)
            m->grad[t][i] = i < shapes[t].rows * shapes[t].cols ? made_up(step, t, i) : 7;
}

/* --- what is expected: arenas of a table, as in training -------------------------------------- */

static void copy(const lks__table *table, float *arena, float (*tensors)[MOST], bool out)
{
    for (int t = 0; t < N; t++) {
        float *at = arena + table->tensors[t].offset;
        const size_t bytes = table->tensors[t].count * sizeof(float);
        memcpy(out ? tensors[t] : at, out ? at : tensors[t], bytes);
    }
}

static void expect(lks_optimizer_rule rule, struct model *m)
{
    static const lks__optimizer *const optimizers[] = {NULL, &lks__optimizer_adamw,
                                                       &lks__optimizer_sgd, &lks__optimizer_muon};
    lks__table table;
    lks__kernels kernels;
    lks__pool *pool;
    lks__optim optim;
    set_values(m);
    assert_ok(lks__table_open(&table, N, 1));
    for (int t = 0; t < N; t++)
        table.tensors[table.n_tensors++] =
            (lks__table_tensor){.n_dims = shapes[t].cols == 1 ? 1 : 2,
                                .shape = {shapes[t].rows, shapes[t].cols},
                                .count = shapes[t].rows * shapes[t].cols,
                                .kind = shapes[t].inner};
    assert_ok(lks__table_lay_out(&table));
    lks__kernels_open_own(LKS__CPU_PLAIN, &kernels);
    assert_ok(lks__pool_open(1, LKS__EXEC_SCRATCH_BYTES, NULL, &pool));
    lks__exec ex = {.k = &kernels, .pool = pool};
    lks__device device = lks__device_cpu(&ex);
    const size_t range[1][2] = {{0, table.n_blocks}};
    const lks__optim_share share = {1, 0, 1, range};
    assert_ok(lks__optim_open(optimizers[rule], &device, &table, &share, NULL, 0, &optim));
    float *params = calloc(table.count, sizeof(float)), *grads = calloc(table.count, sizeof(float));
    float *state[2] = {calloc(table.count, sizeof(float)), calloc(table.count, sizeof(float))};
    const lks__optim_arenas arenas = {
        .params = params, .state = {state[0], state[1]}, .grads = grads};
    copy(&table, params, m->value, false);
    for (int step = 0; step < STEPS; step++) {
        lks__rates r = {.orthogonal_lr = rates.matrix_rate,
                        .weight_decay = rates.weight_decay,
                        .beta1 = rates.beta1,
                        .beta2 = rates.beta2,
                        .eps = rates.epsilon,
                        .momentum = rates.matrix_momentum,
                        .orthogonal_decay = rates.matrix_decay,
                        .ns_steps = rates.matrix_steps,
                        .t = (uint64_t)step + 1,
                        .clip = 1};
        for (int k = 0; k < LKS__N_PARAM_KINDS; k++)
            r.lr[k] = rates.learning_rate;
        set_grads(m, step);
        copy(&table, grads, m->grad, false);
        lks__optim_update(&optim, &r, &arenas);
    }
    copy(&table, params, m->value, true);
    lks__optim_close(&optim);
    lks__table_free(&table);
    lks__pool_close(pool);
    lks_test_free(params, grads, state[0], state[1]);
}

/* --- ranks ------------------------------------------------------------------------------------ */

enum { KIND = 1, RATE, VALUE, GRADIENT };

struct rank {
    lks_comm *comm;
    lks_optimizer_rule rule;
    const char *dir; /* NULL: no checkpoint in the middle */
    int odd;         /* the difference on rank 1: KIND to GRADIENT; 0: none */
    struct model m;
    lks_status st;
    char said[512];
};

static lks_status reopened(struct rank *r, lks_optimizer **o_p)
{
    const lks_tensor *state;
    size_t n;
    bool found;
    LKS__TRY(lks_optimizer_state(*o_p, &state, &n));
    LKS__TRY(lks_checkpoint_save(r->comm, r->dir, STEPS / 2, state, n, 0));
    lks_optimizer_close(*o_p);
    *o_p = NULL;
    LKS__TRY(lks_optimizer_open(r->comm, r->rule, r->m.params, N, o_p));
    LKS__TRY(lks_optimizer_state(*o_p, &state, &n));
    LKS__TRY(lks_checkpoint_load(r->comm, r->dir, state, n, NULL, &found));
    return found ? LKS_OK : LKS_ERR_IO;
}

static lks_status train(struct rank *r)
{
    lks_optimizer *o = NULL;
    set_values(&r->m);
    const int odd = r->odd != 0 && lks_comm_rank(r->comm) == 1 ? r->odd : 0;
    lks_rates chosen = rates;
    chosen.weight_decay = r->rule == LKS_MUON ? 0 : rates.weight_decay;
    if (odd == KIND)
        r->m.params[1].kind = LKS_PARAM_EMBED;
    if (odd == RATE)
        chosen.learning_rate *= 2;
    if (odd == VALUE)
        r->m.value[4][0] += 1;
    lks_status st = lks_optimizer_open(r->comm, r->rule, r->m.params, N, &o);
    for (int step = 0; step < STEPS && st == LKS_OK; step++) {
        if (step == STEPS / 2 && r->dir != NULL)
            st = reopened(r, &o);
        set_grads(&r->m, step);
        if (odd == GRADIENT)
            r->m.grad[2][96] += 1;
        LKS__THEN(st, lks_optimizer_step(o, &chosen));
    }
    lks_optimizer_close(o);
    return st;
}

static void rank_main(lks_comm *comm, void *arg)
{
    struct rank *r = arg;
    r->comm = comm;
    r->st = train(r);
    snprintf(r->said, sizeof r->said, "%s", r->st != LKS_OK ? lks_last_error() : "");
}

static struct rank ranks[MAX_RANKS];

static void on_ranks(int W, lks_optimizer_rule rule, const char *dir, int odd)
{
    for (int r = 0; r < W; r++) {
        ranks[r].rule = rule;
        ranks[r].dir = dir;
        ranks[r].odd = odd;
    }
    ranks_as_threads(W, 30, rank_main, ranks, sizeof *ranks);
}

static struct model expected;

TEST(test_bits)
{
    for (int rule = LKS_ADAMW; rule <= LKS_MUON; rule++) {
        struct rank *alone = &ranks[0];
        expect((lks_optimizer_rule)rule, &expected);
        *alone = (struct rank){.rule = (lks_optimizer_rule)rule};
        assert_ok(train(alone)); /* without a group */
        assert_memory_equal(alone->m.value, expected.value, sizeof expected.value);
        for (int W = 1; W <= MAX_RANKS; W++)
            for (int stored = 0; stored < 2; stored++) {
                on_ranks(W, (lks_optimizer_rule)rule, stored ? lks_test_folder() : NULL, 0);
                for (int r = 0; r < W; r++) {
                    assert_string_equal(ranks[r].said, "");
                    assert_memory_equal(ranks[r].m.value, expected.value, sizeof expected.value);
                }
            }
    }
}

TEST(test_names)
{
    static const char *const names[] = {"optimizer.steps", "embed.exp_avg", "embed.exp_avg_sq",
                                        "w.momentum",      "bias.exp_avg",  "bias.exp_avg_sq",
                                        "narrow.momentum", "one.exp_avg",   "one.exp_avg_sq"};
    lks_optimizer *o;
    const lks_tensor *list;
    size_t n;
    set_values(&expected);
    assert_ok(lks_optimizer_open(NULL, LKS_MUON, expected.params, N, &o));
    assert_ok(lks_optimizer_state(o, &list, &n));
    assert_int_equal(n, sizeof names / sizeof names[0]);
    for (size_t i = 0; i < n; i++)
        assert_string_equal(list[i].name, names[i]);
    assert_true(list[3].n_dims == 2 && list[3].shape[0] == 96 && list[3].shape[1] == 130);
    assert_true(list[4].n_dims == 1 && list[4].shape[0] == 97);
    lks_optimizer_close(o);
}

TEST(test_wrong)
{
    lks_optimizer *o;
    lks_rates bad = rates;
    struct model *m = &expected;
    set_values(m);
    assert_fails(LKS_ERR_ARG, lks_optimizer_open(NULL, LKS_ADAMW, NULL, N, &o), "is NULL");
    assert_fails(LKS_ERR_ARG, lks_optimizer_open(NULL, LKS_ADAMW, m->params, N, NULL), "is NULL");
    assert_fails(LKS_ERR_ARG, lks_optimizer_open(NULL, LKS_ADAMW, m->params, 0, &o),
                 "0 parameters");
    assert_fails(LKS_ERR_ARG, lks_optimizer_open(NULL, (lks_optimizer_rule)4, m->params, N, &o),
                 "no rule 4");
    m->params[2].rows = 0;
    assert_fails(LKS_ERR_ARG, lks_optimizer_open(NULL, LKS_SGD, m->params, N, &o),
                 "parameter 2 (bias): ");
    m->params[2].rows = SIZE_MAX / 2;
    assert_fails(LKS_ERR_ARG, lks_optimizer_open(NULL, LKS_SGD, m->params, N, &o),
                 "parameter 2 (bias): ");
    set_values(m);
    m->params[0].kind = (lks_param_kind)0;
    assert_fails(LKS_ERR_ARG, lks_optimizer_open(NULL, LKS_SGD, m->params, N, &o),
                 "embed): its kind is none of ");
    set_values(m);
    m->params[1].grad = NULL;
    assert_fails(LKS_ERR_ARG, lks_optimizer_open(NULL, LKS_SGD, m->params, N, &o),
                 "its grad is NULL");
    set_values(m);
    m->params[1].grad = m->params[2].value;
    assert_fails(LKS_ERR_ARG, lks_optimizer_open(NULL, LKS_SGD, m->params, N, &o),
                 "and apart from its gradient");
    set_values(m);
    m->params[2].value = m->params[1].value + 1; /* tied, and listed twice */
    assert_fails(
        LKS_ERR_ARG, lks_optimizer_open(NULL, LKS_ADAMW, m->params, N, &o),
        "memory of parameter 2 overlaps memory of parameter 1: give a tied parameter once");
    set_values(m);
    m->params[2].value = (float *)((char *)m->params[2].value + 1);
    assert_fails(LKS_ERR_ARG, lks_optimizer_open(NULL, LKS_ADAMW, m->params, N, &o),
                 "parameter 2 (bias): its values or its gradient aren't aligned");
    set_values(m);
    m->params[2].name = "w";
    assert_fails(LKS_ERR_ARG, lks_optimizer_open(NULL, LKS_ADAMW, m->params, N, &o),
                 "lks_optimizer_open: the name w is in the list twice");
    set_values(m);
    assert_ok(lks_optimizer_open(NULL, LKS_ADAMW, m->params, N, &o));
    assert_fails(LKS_ERR_ARG, lks_optimizer_step(o, NULL), "rates is NULL");
    bad.learning_rate = 1e60; /* more than a float */
    assert_fails(LKS_ERR_ARG, lks_optimizer_step(o, &bad), "learning_rate is 1e+60");
    bad = rates;
    bad.beta2 = 1;
    assert_fails(LKS_ERR_ARG, lks_optimizer_step(o, &bad), "beta2 is 1");
    bad.beta2 = NAN;
    assert_fails(LKS_ERR_ARG, lks_optimizer_step(o, &bad), "beta2 is");
    bad = rates;
    bad.weight_decay = -INFINITY;
    assert_fails(LKS_ERR_ARG, lks_optimizer_step(o, &bad),
                 "it must be a finite number of at least 0");
    bad = rates;
    bad.matrix_steps = 100;
    assert_ok(lks_optimizer_step(o, &bad));
    bad.matrix_steps = -1;
    assert_fails(LKS_ERR_ARG, lks_optimizer_step(o, &bad), "matrix_steps is -1");
    assert_fails(LKS_ERR_ARG, lks_optimizer_step(NULL, &rates), "the optimizer is NULL");
    assert_fails(LKS_ERR_ARG, lks_optimizer_state(o, NULL, NULL), "is NULL");
    lks_optimizer_close(o);
    lks_optimizer_close(NULL);
    on_ranks(2, LKS_ADAMW, NULL, KIND);
    for (int r = 0; r < 2; r++)
        assert_contains(
            ranks[r].said,
            "number 1 is w, embedding of 96 x 130, for adamw on rank 1, and w, matrix of ");
}

/* With LOCKSTEP_CHECK=1, a step compares its inputs over ranks. */
TEST(test_inputs)
{
    static const char *const said[] = {
        [RATE] = "inputs: rates 0.02 0 0.9 0.95 1e-08 0.02 0.9 0.05 5, in lks_rates' order, on "
                 "rank 1, and rates 0.01 ",
        [VALUE] = "values of one with hash ",
        [GRADIENT] = "gradient of bias with hash ",
    };
    setenv("LOCKSTEP_CHECK", "1", 1);
    for (int odd = RATE; odd <= GRADIENT; odd++) {
        on_ranks(2, LKS_MUON, NULL, odd);
        for (int r = 0; r < 2; r++) {
            assert_int_equal(ranks[r].st, LKS_ERR_DIVERGED);
            assert_contains(ranks[r].said, said[odd]);
        }
    }
    on_ranks(2, LKS_MUON, NULL, 0);
    assert_string_equal(ranks[1].said, "");
    unsetenv("LOCKSTEP_CHECK");
}

static void assert_step(lks_optimizer_rule rule, size_t from, size_t n, const lks_rates *chosen,
                        const char *said)
{
    lks_optimizer *o;
    struct model *m = &expected;
    set_values(m);
    set_grads(m, 0);
    assert_ok(lks_optimizer_open(NULL, rule, m->params + from, n, &o));
    if (said == NULL)
        assert_ok(lks_optimizer_step(o, chosen));
    else
        assert_fails(LKS_ERR_ARG, lks_optimizer_step(o, chosen), said);
    lks_optimizer_close(o);
}

/* Rates have no defaults: those that an update can't do without must be set. */
TEST(test_left_out)
{
    const lks_rates only = {.learning_rate = 0.1};
    const lks_rates no_betas = {.learning_rate = 0.1, .beta1 = 0.9, .epsilon = 1e-8};
    const lks_rates no_epsilon = {.learning_rate = 0.1, .beta1 = 0.9, .beta2 = 0.95};
    const lks_rates no_momentum = {.learning_rate = 0.1, .beta2 = 0.99, .epsilon = 1e-8};
    const lks_rates matrix = {.matrix_rate = 0.02, .matrix_steps = 5};
    const lks_rates tiny = {.learning_rate = 0.1, .beta2 = 0.95, .epsilon = 1e-46};
    assert_step(LKS_ADAMW, 0, N, &only, "epsilon is 0 as a float: ");
    assert_step(LKS_ADAMW, 0, N, &no_epsilon, "epsilon is 0 as a float: ");
    assert_step(LKS_ADAMW, 0, N, &tiny, "epsilon is 0 as a float: ");
    assert_step(LKS_ADAMW, 0, N, &no_betas, "beta2 is 0: ");
    assert_step(LKS_ADAMW, 0, 1, &no_betas, "beta2 is 0: "); /* also of a single parameter */
    assert_step(LKS_ADAMW, 0, N, &no_momentum, NULL);
    assert_step(LKS_SGD, 0, N, &only, NULL);
    assert_step(LKS_MUON, 0, N, &no_momentum, "matrix_steps is 0: ");
    assert_step(LKS_MUON, 0, N, &matrix, "epsilon is 0 as a float: ");
    assert_step(LKS_MUON, 0, N, &rates, "weight_decay is 0.1, but Muon doesn't apply it: ");
    assert_step(LKS_MUON, 1, 1, &matrix, NULL); /* no parameter for Adam */
    assert_step(LKS_MUON, 2, 1, &no_momentum, NULL);
}

/* --- when the list is current ----------------------------------------------------------------- */

static lks_status step_with(struct rank *r, lks_optimizer *o, int step)
{
    set_grads(&r->m, step);
    return lks_optimizer_step(o, &rates);
}

static bool says(lks_status st, const char *words)
{
    return st == LKS_ERR_ARG && strstr(lks_last_error(), words) != NULL;
}

/* A checkpoint of a list that is older than the last step isn't saved, under any name. One that an
 * earlier version has saved can't be used, nor one with as many steps as a number can have. */
static lks_status save_stale(struct rank *r, lks_optimizer *o, const lks_tensor *list, size_t n)
{
    static const char before[] = "call lks_optimizer_state() before each save";
    lks_tensor other[1 + 2 * N];
    const lks_tensor *again;
    int64_t steps = -2;
    char older[1024];
    memcpy(other, list, n * sizeof *list);
    other[0].name = "second.steps";
    if (!says(lks_checkpoint_save(r->comm, r->dir, 9, list, n, 0), before) ||
        !says(lks_checkpoint_save(r->comm, r->dir, 9, other, n, 0), before))
        return LKS_ERR_FORMAT;
    other[0].data = &steps;
    LKS__TRY(lks_checkpoint_save(r->comm, r->dir, 9, other, n, 0));
    steps = INT64_MAX;
    LKS__TRY(lks_checkpoint_save(r->comm, r->dir, 10, other, n, 0));
    other[0].data = list[0].data;
    LKS__TRY(step_with(r, o, 1));
    LKS__TRY(lks_checkpoint_load(r->comm, r->dir, other, n, NULL, NULL));
    const bool most = says(step_with(r, o, 2), "optimizer.steps is 9223372036854775807: ");
    snprintf(older, sizeof older, "%s/ckpt-00000009", r->dir);
    LKS__TRY(lks_checkpoint_load(r->comm, older, other, n, NULL, NULL));
    const bool refused = most && says(step_with(r, o, 2), "optimizer.steps is -2: ") &&
                         says(lks_optimizer_state(o, &again, &n), before);
    lks_optimizer_close(o);
    return refused ? LKS_OK : LKS_ERR_FORMAT;
}

/* Go back to a checkpoint with the list from before it: `asks` for the list again, or not. */
static lks_status go_back(struct rank *r, lks_optimizer *o, const lks_tensor *list, size_t n,
                          bool asks)
{
    static _Thread_local float before[N][MOST], after[N][MOST];
    LKS__TRY(lks_checkpoint_save(r->comm, r->dir, 1, list, n, 0));
    memcpy(before, r->m.value, sizeof before);
    LKS__TRY(step_with(r, o, 1));
    memcpy(after, r->m.value, sizeof after);
    LKS__TRY(step_with(r, o, 2));
    memcpy(r->m.value, before, sizeof before);
    LKS__TRY(lks_checkpoint_load(r->comm, r->dir, list, n, NULL, NULL));
    if (asks)
        LKS__TRY(lks_optimizer_state(o, &list, &n));
    LKS__TRY(step_with(r, o, 1));
    return memcmp(r->m.value, after, sizeof after) == 0 ? LKS_OK : LKS_ERR_DIVERGED;
}

/* Moments of `embed` in the other of two ranks' part, which has whole pages. */
static bool has_others(const lks_comm *comm, const lks_tensor *list)
{
    const float *embed = list[1].data;
    return embed[lks_comm_rank(comm) == 0 ? 60000 : 10000] != 0;
}

/* After a list or a load, the next step frees the other rank's moments. */
static lks_status check_memory(struct rank *r, lks_optimizer *o, const lks_tensor *list, size_t n)
{
    bool as_expected = has_others(r->comm, list);
    LKS__TRY(step_with(r, o, 3));
    as_expected &= !has_others(r->comm, list);
    LKS__TRY(lks_checkpoint_load(r->comm, r->dir, list, n, NULL, NULL));
    as_expected &= has_others(r->comm, list);
    LKS__TRY(step_with(r, o, 3));
    as_expected &= !has_others(r->comm, list);
    LKS__TRY(lks_optimizer_state(o, &list, &n));
    return as_expected && has_others(r->comm, list) ? LKS_OK : LKS_ERR_NOMEM;
}

static lks_status use_list(struct rank *r, lks_comm *comm, bool asks)
{
    lks_optimizer *o;
    const lks_tensor *list;
    size_t n;
    set_values(&r->m);
    LKS__TRY(lks_optimizer_open(comm, LKS_ADAMW, r->m.params, N, &o));
    LKS__TRY(lks_optimizer_state(o, &list, &n));
    LKS__TRY(step_with(r, o, 0));
    if (comm != NULL && !asks)
        return save_stale(r, o, list, n);
    if (comm != NULL)
        LKS__TRY(lks_optimizer_state(o, &list, &n));
    LKS__TRY(go_back(r, o, list, n, false));
    if (comm != NULL)
        LKS__TRY(lks_optimizer_state(o, &list, &n));
    LKS__TRY(go_back(r, o, list, n, true));
    if (comm != NULL)
        LKS__TRY(lks_optimizer_state(o, &list, &n));
    if (comm != NULL && lks_comm_world_size(comm) == 2)
        LKS__TRY(check_memory(r, o, list, n));
    lks_optimizer_close(o);
    return LKS_OK;
}

static void list_main(lks_comm *comm, void *arg)
{
    struct rank *r = arg;
    r->comm = comm;
    r->st = use_list(r, r->odd == 1 ? NULL : comm, r->odd == 2);
    snprintf(r->said, sizeof r->said, "%s", r->st != LKS_OK ? lks_last_error() : "");
}

TEST(test_list)
{
    for (int W = 1; W <= 2; W++)
        for (int how = 0; how < 3; how++) { /* never again; without a group; before each save */
            for (int r = 0; r < W; r++)
                ranks[r] = (struct rank){.dir = lks_test_folder(), .odd = how};
            ranks_as_threads(W, 30, list_main, ranks, sizeof *ranks);
            for (int r = 0; r < W; r++)
                if (ranks[r].st != LKS_OK)
                    fail_msg("%d ranks, %d: %d %s", W, how, ranks[r].st, ranks[r].said);
        }
}
