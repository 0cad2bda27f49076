/* Optimizers over a table: Muon, Adam and SGD against PyTorch, division over ranks, zeros. */
#include "optim/level.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compute/cpu/device.h"
#include "model/optim/optimizer.h"
#include "model/optim/schedule.h"

static lks__kernels kernels;

/* A run's tensor table and arenas. */
struct run {
    lks__table table;
    float *params, *exp_avg, *exp_avg_sq, *grads;
};

static void run_open(struct run *r)
{
    assert_ok(lks__table_lay_out(&r->table));
    size_t bytes = r->table.count * sizeof(float);
    float **arenas[4] = {&r->params, &r->exp_avg, &r->exp_avg_sq, &r->grads};
    for (int i = 0; i < 4; i++)
        *arenas[i] = level_memory(bytes, 0);
}

static void run_close(struct run *r)
{
    lks__table_free(&r->table);
    lks_test_free(r->params, r->exp_avg, r->exp_avg_sq, r->grads);
}

static void add_tensor(lks__table *table, const char *name, size_t d0, size_t d1,
                       lks__param_kind kind)
{
    lks__table_tensor *t = &table->tensors[table->n_tensors++];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->n_dims = d1 == 0 ? 1 : 2;
    t->shape[0] = d0;
    t->shape[1] = d1;
    t->count = d1 == 0 ? d0 : d0 * d1;
    t->kind = kind;
}

static void table_open(lks__table *table, size_t most)
{
    memset(table, 0, sizeof *table);
    table->tensors = lks_test_calloc(most, sizeof *table->tensors);
    table->n_groups = 1;
}

/* The matrices of golf's default layers, and a few tensors that Muon doesn't update. */
static void table_layers(lks__table *table, int n_layers, size_t width)
{
    table_open(table, (size_t)n_layers * 8 + 2);
    add_tensor(table, "embed", 2 * width, width, LKS__PARAM_EMBED);
    for (int l = 0; l < n_layers; l++) {
        add_tensor(table, "q", width, width, LKS__PARAM_MATRIX);
        add_tensor(table, "k", width / 2, width, LKS__PARAM_MATRIX);
        add_tensor(table, "v", width / 2, width, LKS__PARAM_MATRIX);
        add_tensor(table, "proj", width, width, LKS__PARAM_MATRIX);
        add_tensor(table, "fc", 2 * width, width, LKS__PARAM_MATRIX);
        add_tensor(table, "mlp", width, 2 * width, LKS__PARAM_MATRIX);
        add_tensor(table, "scale", width, 0, LKS__PARAM_SCALAR);
        add_tensor(table, "mix", 2, width, LKS__PARAM_SCALAR);
    }
    add_tensor(table, "head", 2 * width, width, LKS__PARAM_HEAD);
}

static const lks__rates some_rates = {
    .lr = {[LKS__PARAM_EMBED] = 0.025,
           [LKS__PARAM_HEAD] = 0.004,
           [LKS__PARAM_SCALAR] = 0.015,
           [LKS__PARAM_MATRIX] = 0.03},
    .orthogonal_lr = 0.02,
    .beta1 = 0.9,
    .beta2 = 0.95,
    .eps = 1e-8,
    .momentum = 0.9,
    .ns_steps = 5,
    .t = 3,
    .clip = 0.25,
};

/* What `rank` of W has, with `lent` bytes of work memory unless that is 0. */
static lks__optim optim_open(const lks__optimizer *optimizer, lks__device *device,
                             const lks__table *table, int W, int rank, void *memory, size_t lent)
{
    const size_t n = table->n_blocks, w = (size_t)W, r = (size_t)rank;
    const size_t range[1][2] = {{n * r / w, n * (r + 1) / w}};
    const lks__optim_share share = {W, rank, 1, range};
    lks__optim optim;
    assert_ok(lks__optim_open(optimizer, device, table, &share, memory, lent, &optim));
    return optim;
}

/* One update of all parameters by one rank. */
static void update_all(const struct run *r, const lks__optim *optim, const lks__rates *rates)
{
    const lks__optim_arenas arenas = {
        .params = r->params, .state = {r->exp_avg, r->exp_avg_sq}, .grads = r->grads};
    lks__optim_update(optim, rates, &arenas);
}

/* --- against PyTorch ------------------------------------------------------------------------- */

static lks__param_kind kind_of(const char *name)
{
    if (strcmp(name, "EMBED") == 0)
        return LKS__PARAM_EMBED;
    if (strcmp(name, "HEAD") == 0)
        return LKS__PARAM_HEAD;
    return strcmp(name, "MATRIX") == 0 ? LKS__PARAM_MATRIX : LKS__PARAM_SCALAR;
}

static void open_figure(struct run *r, const json_t *figure)
{
    const json_t *tensors = lks_test_member(figure, "tensors"), *tensor;
    size_t i;
    table_open(&r->table, json_array_size(tensors));
    json_array_foreach(tensors, i, tensor)
    {
        const json_t *shape = lks_test_member(tensor, "shape");
        add_tensor(
            &r->table, lks_test_string(tensor, "name"),
            (size_t)json_integer_value(json_array_get(shape, 0)),
            json_array_size(shape) == 2 ? (size_t)json_integer_value(json_array_get(shape, 1)) : 0,
            kind_of(lks_test_string(tensor, "kind")));
    }
    run_open(r);
    for (i = 0; i < r->table.n_tensors; i++)
        level_fill(r->params + r->table.tensors[i].offset, r->table.tensors[i].count, i);
}

/* The quadratic's gradient, and its norm. */
static double gradients(struct run *r)
{
    double sum = 0;
    for (size_t i = 0; i < r->table.n_tensors; i++) {
        const lks__table_tensor *t = &r->table.tensors[i];
        float target[128], curvature[128];
        assert_true(t->count <= 128);
        level_fill(target, t->count, i + 50);
        level_fill(curvature, t->count, i + 90);
        for (size_t e = 0; e < t->count; e++) {
            float g = (r->params[t->offset + e] - target[e]) * (curvature[e] + 1.0f);
            r->grads[t->offset + e] = g;
            sum += (double)g * g;
        }
    }
    return sqrt(sum);
}

static void compare(const struct run *r, const json_t *params, int iter)
{
    assert_int_equal(json_array_size(params), r->table.n_tensors);
    for (size_t i = 0; i < r->table.n_tensors; i++) {
        const lks__table_tensor *t = &r->table.tensors[i];
        const json_t *want = json_array_get(params, i);
        assert_int_equal(json_array_size(want), t->count);
        for (size_t e = 0; e < t->count; e++) {
            double w = json_number_value(json_array_get(want, e)), g = r->params[t->offset + e];
            if (!(fabs(g - w) <= 1e-6)) /* PyTorch is within 1.4e-7 of its own float64 run */
                fail_msg("after iteration %d, %s[%zu] is %.9g, should be %.9g", iter, t->name, e, g,
                         w);
        }
    }
}

typedef lks__rates rates_fn(const json_t *cfg, int iter);

/* The numbers of iteration `iter`, but for what follow() adds. */
static lks__rates golf_rates(const json_t *cfg, int iter)
{
    const double scale = lks__golf_lr_scale((int64_t)lks_test_number(cfg, "steps"),
                                            (int64_t)lks_test_number(cfg, "warmdown_iters"), iter);
    return (lks__rates){
        .lr = {[LKS__PARAM_EMBED] = lks_test_number(cfg, "embed_lr") * scale,
               [LKS__PARAM_HEAD] = lks_test_number(cfg, "head_lr") * scale,
               [LKS__PARAM_SCALAR] = lks_test_number(cfg, "scalar_lr") * scale},
        .orthogonal_lr = lks_test_number(cfg, "matrix_lr") * scale,
        .beta1 = lks_test_number(cfg, "beta1"),
        .beta2 = lks_test_number(cfg, "beta2"),
        .eps = lks_test_number(cfg, "eps"),
        .momentum = lks__muon_momentum(
            lks_test_number(cfg, "momentum_start"), lks_test_number(cfg, "momentum"),
            (int64_t)lks_test_number(cfg, "momentum_warmup_steps"), iter),
        .ns_steps = (int)lks_test_number(cfg, "ns_steps"),
    };
}

static lks__rates sgd_rates(const json_t *cfg, int iter)
{
    return (lks__rates){
        .lr = {[LKS__PARAM_EMBED] = lks_test_number(cfg, "embed_lr"),
               [LKS__PARAM_HEAD] = lks_test_number(cfg, "head_lr"),
               [LKS__PARAM_SCALAR] = lks_test_number(cfg, "scalar_lr"),
               [LKS__PARAM_MATRIX] = lks_test_number(cfg, "matrix_lr")},
        .beta1 = lks_test_number(cfg, "momentum"),
        .weight_decay = lks_test_number(cfg, "weight_decay"),
    };
}

static void follow(const json_t *figure, const json_t *run, const lks__optimizer *optimizer,
                   rates_fn *rates_of)
{
    const json_t *cfg = lks_test_member(figure, "config"), *after = lks_test_member(run, "after");
    lks__exec ex = level_exec(&kernels, 2);
    lks__device device = lks__device_cpu(&ex);
    struct run r;
    open_figure(&r, figure);
    lks__optim optim = optim_open(optimizer, &device, &r.table, 1, 0, NULL, 0);
    size_t seen = 0;
    for (int iter = 0; iter < (int)lks_test_number(cfg, "steps"); iter++) {
        double norm = gradients(&r);
        assert_near(norm, lks_test_number(run, lks_test_text("grad_norm.%d", iter)), 2e-6);
        lks__rates rates = rates_of(cfg, iter);
        rates.t = (uint64_t)iter + 1;
        rates.clip = lks__clip_factor(norm, lks_test_number(run, "grad_clip_norm"));
        update_all(&r, &optim, &rates);
        const json_t *now = json_array_get(after, seen);
        if ((int)lks_test_number(now, "step") == iter) {
            compare(&r, lks_test_member(now, "params"), iter);
            seen++;
        }
    }
    assert_int_equal(seen, json_array_size(after));
    lks__optim_close(&optim);
    run_close(&r);
    level_close(&ex);
}

static void follow_all(const char *name, const lks__optimizer *optimizer, rates_fn *rates_of)
{
    const json_t *figure = lks_test_figure(name), *run;
    size_t index;
    json_array_foreach(lks_test_member(figure, "runs"), index, run)
        follow(figure, run, optimizer, rates_of);
    assert_int_equal(index, 2);
}

TEST(test_pytorch)
{
    follow_all("golf_optim.json", &lks__optimizer_muon, golf_rates);
}

/* torch.optim.SGD on a quadratic of the same form. */
TEST(test_pytorch_sgd)
{
    follow_all("sgd_optim.json", &lks__optimizer_sgd, sgd_rates);
}

static void count_beat(void *ctx)
{
    atomic_fetch_add((atomic_int *)ctx, 1);
}

/* Muon's matrices decay by 1 - lr * decay before the update, and nothing else decays. Each of the 4
 * iterations of each of the 12 matrices is a heartbeat. */
TEST(test_muon_decay)
{
    lks__exec ex = level_exec(&kernels, 2);
    lks__device device = lks__device_cpu(&ex);
    lks__rates rates = some_rates;
    struct run runs[2];
    atomic_int beats = 0;
    rates.ns_steps = 4;
    for (int i = 0; i < 2; i++) {
        struct run *r = &runs[i];
        table_layers(&r->table, 2, 40);
        run_open(r);
        level_fill(r->params, r->table.count, 1);
        level_fill(r->grads, r->table.count, 2);
        rates.orthogonal_decay = i == 0 ? 0.5 : 0.0;
        for (size_t t = 0; t < r->table.n_tensors && i == 1; t++)
            for (size_t e = 0; e < r->table.tensors[t].count; e++)
                if (r->table.tensors[t].kind == LKS__PARAM_MATRIX)
                    r->params[r->table.tensors[t].offset + e] *= (float)(1.0 - 0.02 * 0.5);
        lks__optim optim = optim_open(&lks__optimizer_muon, &device, &r->table, 1, 0, NULL, 0);
        optim.beat = (lks__beat){count_beat, &beats};
        update_all(r, &optim, &rates);
        lks__optim_close(&optim);
        assert_int_equal(atomic_load(&beats), (i + 1) * 12 * 4);
    }
    assert_memory_equal(runs[0].params, runs[1].params, runs[0].table.count * sizeof(float));
    run_close(&runs[0]);
    run_close(&runs[1]);
    level_close(&ex);
}

/* --- Adam by kinds --------------------------------------------------------------------------- */

TEST(test_adam)
{
    lks__exec ex = level_exec(&kernels, 2);
    lks__device device = lks__device_cpu(&ex);
    struct run r;
    table_layers(&r.table, 2, 40);
    run_open(&r);
    size_t n = r.table.count;
    level_fill(r.params, n, 1);
    level_fill(r.grads, n, 2);
    level_fill(r.exp_avg, n, 3);
    level_fill(r.exp_avg_sq, n, 4);
    for (size_t i = 0; i < n; i++)
        r.exp_avg_sq[i] += 0.5f;
    float *before = level_memory(n * 4, 0), *m = level_memory(n * 4, 0),
          *v = level_memory(n * 4, 0);
    memcpy(before, r.params, n * 4);
    memcpy(m, r.exp_avg, n * 4);
    memcpy(v, r.exp_avg_sq, n * 4);
    lks__rates rates = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-3, .t = 2, .clip = 0.5};
    for (int k = 0; k < LKS__N_PARAM_KINDS; k++)
        rates.lr[k] = 0.01 * (k + 1);
    lks__optim optim = optim_open(&lks__optimizer_muon, &device, &r.table, 1, 0, NULL, 0);
    const lks__optim_arenas arenas = {
        .params = r.params, .state = {r.exp_avg, r.exp_avg_sq}, .grads = r.grads};
    for (int k = 0; k < LKS__N_PARAM_KINDS; k++)
        if (k != LKS__PARAM_MATRIX)
            lks__adamw_update(&optim, &rates, &arenas, (lks__param_kind)k, 0.0);
    lks__optim_close(&optim);
    for (size_t i = 0; i < r.table.n_tensors; i++) {
        const lks__table_tensor *t = &r.table.tensors[i];
        for (size_t e = t->offset; e < t->offset + t->count; e++) {
            if (t->kind == LKS__PARAM_MATRIX) {
                assert_true(r.params[e] == before[e] && r.exp_avg[e] == m[e] &&
                            r.exp_avg_sq[e] == v[e]);
                continue;
            }
            double g = 0.5 * r.grads[e], m1 = 0.9 * m[e] + 0.1 * g, v1 = 0.95 * v[e] + 0.05 * g * g;
            double lr = 0.01 * (t->kind + 1);
            double want =
                before[e] - lr * (m1 / (1 - 0.81)) / (sqrt(v1 / (1 - 0.95 * 0.95)) + 1e-3);
            assert_near(r.exp_avg[e], m1, 2e-7);
            assert_near(r.exp_avg_sq[e], v1, 2e-7);
            assert_near(r.params[e], want, 1e-6);
        }
    }
    lks_test_free(before, m, v);
    run_close(&r);
    level_close(&ex);
}

/* --- division -------------------------------------------------------------------------------- */

TEST(test_assign)
{
    lks__table table;
    table_layers(&table, 9, 512);
    int *owner = level_memory(table.n_tensors * sizeof *owner, 0);
    int *again = level_memory(table.n_tensors * sizeof *again, 0);
    for (int W = 1; W <= 8; W++) {
        double load[8] = {0}, all = 0, largest = 0;
        assert_ok(lks__optim_assign(&lks__optimizer_muon, &table, W, owner));
        assert_ok(lks__optim_assign(&lks__optimizer_muon, &table, W, again));
        assert_memory_equal(owner, again, table.n_tensors * sizeof *owner);
        for (size_t i = 0; i < table.n_tensors; i++) {
            const lks__table_tensor *t = &table.tensors[i];
            if (t->kind != LKS__PARAM_MATRIX) {
                assert_int_equal(owner[i], -1);
                continue;
            }
            assert_true(owner[i] >= 0 && owner[i] < W);
            double flops = lks__muon_flops(t->shape[0], t->shape[1], 5);
            load[owner[i]] += flops;
            all += flops;
            largest = fmax(largest, flops);
        }
        /* Graham, 1969: greedy assignment ends within one item of the best. */
        for (int rank = 0; rank < W; rank++)
            assert_true(load[rank] > 0 && load[rank] <= all / W + largest);
    }
    lks_test_free(owner, again);
    lks__table_free(&table);
}

/* Of what is lent, a thread needs 1 MiB or less. */
enum { MUCH = 16 << 20, LITTLE = 64 };

/* All ranks' parts of one update, each with its share of the blocks and its matrices; with `lent`
 * bytes of work memory, unless that is 0. */
static void update_by(const lks__optimizer *optimizer, struct run *r, int n_layers, size_t width,
                      int W, int n_threads, size_t lent)
{
    float *memory = level_memory(MUCH, 0);
    table_layers(&r->table, n_layers, width);
    run_open(r);
    level_fill(r->params, r->table.count, 1);
    level_fill(r->grads, r->table.count, 2);
    level_fill(r->exp_avg, r->table.count, 3);
    lks__exec ex = level_exec(&kernels, n_threads);
    lks__device device = lks__device_cpu(&ex);
    for (int rank = 0; rank < W; rank++) {
        lks__optim optim = optim_open(optimizer, &device, &r->table, W, rank, memory, lent);
        update_all(r, &optim, &some_rates);
        lks__optim_close(&optim);
    }
    for (size_t i = lent / sizeof *memory; i < MUCH / sizeof *memory; i++)
        assert_true(memory[i] == 0.0f); /* not lent */
    level_close(&ex);
    free(memory);
}

static void update(struct run *r, int n_layers, size_t width, int W, int n_threads, size_t lent)
{
    update_by(&lks__optimizer_muon, r, n_layers, width, W, n_threads, lent);
}

TEST(test_ranks_and_threads)
{
    struct run want, got;
    update(&want, 3, 136, 1, 1, 0);
    size_t bytes = want.table.count * sizeof(float);
    for (int i = 0; i < 16; i++) {
        int W = 1 + i % 8;
        update(&got, 3, 136, W, 1 + W % 3, i < 8 ? 0 : i < 15 ? MUCH : LITTLE);
        assert_memory_equal(got.params, want.params, bytes);
        assert_memory_equal(got.exp_avg, want.exp_avg, bytes);
        assert_memory_equal(got.exp_avg_sq, want.exp_avg_sq, bytes);
        run_close(&got);
    }
    for (size_t i = 0; i < want.table.n_tensors;
         i++) { /* each tensor changed; only Adam's have a v */
        const lks__table_tensor *t = &want.table.tensors[i];
        float *start = level_memory(bytes, 0);
        level_fill(start, want.table.count, 1);
        assert_true(memcmp(start + t->offset, want.params + t->offset, t->count * 4) != 0);
        assert_true((t->kind == LKS__PARAM_MATRIX) == (want.exp_avg_sq[t->offset + 1] == 0.0f));
        free(start);
    }
    run_close(&want);
}

/* More tensors of one kind than an update's list holds: the same as by 8 ranks, of which each has
 * fewer. */
static void check_many(const lks__optimizer *optimizer)
{
    struct run r, divided;
    update_by(optimizer, &r, 12, 24, 1, 2, 0);
    update_by(optimizer, &divided, 12, 24, 8, 2, 0);
    const size_t bytes = r.table.count * sizeof(float);
    assert_memory_equal(r.params, divided.params, bytes);
    assert_memory_equal(r.exp_avg, divided.exp_avg, bytes);
    assert_memory_equal(r.exp_avg_sq, divided.exp_avg_sq, bytes);
    run_close(&divided);
    float *start = level_memory(r.table.count * sizeof(float), 0);
    level_fill(start, r.table.count, 1);
    assert_true(12 * 6 > LKS__UPDATE_PIECES);
    for (size_t i = 0; i < r.table.n_tensors; i++) {
        const lks__table_tensor *t = &r.table.tensors[i];
        size_t moved = 0;
        for (size_t e = t->offset; e < t->offset + t->count; e++)
            moved += r.params[e] != start[e];
        assert_true(moved > t->count / 2);
    }
    free(start);
    run_close(&r);
}

TEST(test_many)
{
    for (int i = 0; lks__optimizers[i] != NULL; i++)
        check_many(lks__optimizers[i]);
}

TEST(test_zero_gradient)
{
    lks__exec ex = level_exec(&kernels, 2);
    lks__device device = lks__device_cpu(&ex);
    struct run r;
    table_layers(&r.table, 1, 64);
    run_open(&r);
    size_t n = r.table.count;
    float *before = level_memory(n * 4, 0);
    level_fill(r.params, n, 1);
    memcpy(before, r.params, n * 4);
    lks__optim optim = optim_open(&lks__optimizer_muon, &device, &r.table, 1, 0, NULL, 0);
    update_all(&r, &optim, &some_rates);
    assert_memory_equal(r.params, before, n * 4);
    for (size_t i = 0; i < n; i++)
        assert_true(r.exp_avg[i] == 0.0f && r.exp_avg_sq[i] == 0.0f);
    lks__optim_close(&optim);
    lks__optim_close(&optim);
    free(before);
    run_close(&r);
    level_close(&ex);
}

/* Work memory of an optimizer is given back. */
TEST(test_closed)
{
    enum { TIMES = 20 };
    lks__exec ex = level_exec(&kernels, 2);
    lks__device device = lks__device_cpu(&ex);
    lks__table table;
    table_layers(&table, 1, 512);
    assert_ok(lks__table_lay_out(&table));
    const long before = lks_test_pages();
    for (int i = 0; i < TIMES; i++) {
        lks__optim optim = optim_open(&lks__optimizer_muon, &device, &table, 1, 0, NULL, 0);
        assert_true(optim.work_bytes > 512 * 1024 * sizeof(float));
        lks__optim_close(&optim);
    }
    assert_true(lks_test_pages() - before < TIMES / 2 * 512 * 1024 * (long)sizeof(float) / 4096);
    lks__table_free(&table);
    level_close(&ex);
}

/* A table without matrices (gpt2's) needs no memory and no work. */
TEST(test_no_matrices)
{
    lks__exec ex = level_exec(&kernels, 1);
    lks__device device = lks__device_cpu(&ex);
    struct run r;
    table_open(&r.table, 1);
    add_tensor(&r.table, "head", 5, 4, LKS__PARAM_HEAD);
    run_open(&r);
    level_fill(r.grads, r.table.count, 2);
    lks__optim optim = optim_open(&lks__optimizer_muon, &device, &r.table, 1, 0, NULL, 0);
    update_all(&r, &optim, &some_rates);
    assert_true(r.params[1] != 0.0f);
    lks__optim_close(&optim);
    run_close(&r);
    level_close(&ex);
}

int main(void)
{
    lks_test_need_level(&kernels);
    return lks_test_run_all(NULL, NULL);
}
