#include "parity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/table/freeze.h"

static int integer(const json_t *config, const char *key)
{
    return (int)lks_test_number(config, key);
}

static lks__kernels kernels;
lks__exec parity_ex = {.k = &kernels};
lks__device parity_device;

void parity_threads(int n)
{
    lks__pool_close(parity_ex.pool);
    assert_ok(
        lks__pool_open(n, LKS__EXEC_SCRATCH_BYTES, lks__kernels_thread_init, &parity_ex.pool));
}

int parity_open_exec(void **state)
{
    lks__cpu_level level;
    assert_ok(lks__cpu_level_get(&level));
    assert_ok(lks__kernels_open(level, &kernels));
    parity_threads(2);
    parity_device = lks__device_cpu(&parity_ex);
    print_message("kernels: %s\n", lks__cpu_level_name(level));
    return 0;
}

void parity_update(const lks__optimizer *optimizer, const lks__table *table,
                   const lks__rates *rates, float *params, float *moments, const float *grads)
{
    const size_t range[1][2] = {{0, table->n_blocks}};
    const lks__optim_share share = {1, 0, 1, range};
    const lks__optim_arenas arenas = {
        .params = params, .state = {moments, moments + table->count}, .grads = grads};
    lks__optim optim;
    assert_ok(lks__optim_open(optimizer, &parity_device, table, &share, NULL, 0, &optim));
    lks__optim_update(&optim, rates, &arenas);
    lks__optim_close(&optim);
}

int parity_close_exec(void **state)
{
    parity_print_worst(state);
    lks__pool_close(parity_ex.pool);
    return 0;
}

float *parity_floats(size_t n)
{
    return lks_test_calloc(n, sizeof(float));
}

double parity_loss(lks__model *model, const float *params, const lks__micro_batch *mb,
                   const lks__backward *bw)
{
    float loss;
    if (bw == NULL)
        lks__model_loss(model, params, mb, &loss);
    else
        lks__model_train(model, params, mb, bw, &loss);
    return (double)loss;
}

void parity_ignore_group(void *ctx, int group)
{
}

/* A figure of nanoGPT's script, then of parameter-golf's. */
static void nanogpt(const json_t *c, parity_model *m)
{
    m->config = (lks__model_config){
        .ops = &lks__model_gpt2,
        .n_layer = integer(c, "n_layer"),
        .n_head = integer(c, "n_head"),
        .n_embd = integer(c, "n_embd"),
        .block_size = integer(c, "block_size"),
        .vocab_size = integer(c, "vocab_size"),
        .bias = json_is_true(lks_test_member(c, "bias")),
        .dropout = (float)lks_test_number(c, "dropout"),
    };
    m->seed = (uint64_t)lks_test_number(c, "seed");
    m->V = json_object_get(c, "world_size") != NULL ? integer(c, "world_size") : 1;
    m->A = integer(c, "gradient_accumulation_steps") / m->V;
    m->B = integer(c, "batch_size");
}

static void golf(const json_t *c, parity_model *m)
{
    m->config = (lks__model_config){
        .ops = &lks__model_golf,
        .n_layer = integer(c, "NUM_LAYERS"),
        .n_head = integer(c, "NUM_HEADS"),
        .n_kv_head = integer(c, "NUM_KV_HEADS"),
        .n_embd = integer(c, "MODEL_DIM"),
        .mlp_mult = integer(c, "MLP_MULT"),
        .block_size = integer(c, "TRAIN_SEQ_LEN"),
        .vocab_size = integer(c, "VOCAB_SIZE"),
        .tie_embeddings = json_is_true(lks_test_member(c, "TIE_EMBEDDINGS")),
        .tied_embed_init_std = (float)lks_test_number(c, "TIED_EMBED_INIT_STD"),
        .logit_softcap = (float)lks_test_number(c, "LOGIT_SOFTCAP"),
        .rope_base = (float)lks_test_number(c, "ROPE_BASE"),
        .qk_gain_init = (float)lks_test_number(c, "QK_GAIN_INIT"),
        .scalar_parts = json_string_value(json_object_get(c, "CONTROL_TENSOR_NAME_PATTERNS")),
    };
    m->seed = (uint64_t)lks_test_number(c, "SEED");
    m->V = 1;
    m->A = 8;
    m->B = integer(c, "TRAIN_BATCH_TOKENS") / m->A / m->config.block_size;
}

parity_model parity_open(const char *figure_name)
{
    parity_model m = {.name = figure_name, .figure = lks_test_figure(figure_name)};
    const json_t *c = lks_test_member(m.figure, "config");
    (json_object_get(c, "NUM_LAYERS") != NULL ? golf : nanogpt)(c, &m);
    m.T = m.config.block_size;
    assert_ok(lks__model_table(&m.config, &m.table));
    if (json_object_get(c, "freeze") != NULL)
        assert_ok(lks__table_freeze(&m.table, lks_test_string(c, "freeze")));
    m.params = parity_floats(m.table.count);
    lks__mt g;
    lks__mt_seed(&g, m.seed);
    m.init_draws = lks__model_init(&m.config, &m.table, &g, m.params);
    return m;
}

void parity_close(parity_model *m)
{
    free(m->params);
    lks__table_free(&m->table);
}

const json_t *parity_tensor(const json_t *figure, const char *section, const char *name)
{
    static const char prefix[] = "transformer.";
    if (strncmp(name, prefix, sizeof prefix - 1) == 0)
        name += sizeof prefix - 1;
    /* not lks_test_member(), because these names contain dots */
    const json_t *t = json_object_get(lks_test_member(figure, section), name);
    if (t == NULL)
        fail_msg("the figure has no %s of %s", section, name);
    return t;
}

/* +1 or -1, depending on element i. */
static double sign(uint32_t h)
{
    h *= 2654435761u;
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    return h & 1 ? -1.0 : 1.0;
}

parity_sums parity_sum(const float *x, size_t n)
{
    parity_sums s = {0};
    for (size_t i = 0; i < n; i++) {
        double v = (double)x[i];
        s.sum += v;
        s.sumsq += v * v;
        s.dots[0] += v * sign((uint32_t)i);
        s.dots[1] += v * sign((uint32_t)i + 0x9e3779b9u);
    }
    return s;
}

/* ---- tolerances -------------------------------------------------------------------------- */

typedef struct tolerance {
    const char *figure, *quantity;
    double limit, seen, spread;
    const char *why;
} tolerance;

static const tolerance tolerances[] = {
#include "figures/tolerances.h"
};
enum { N_TOLERANCES = sizeof tolerances / sizeof tolerances[0] };
static double worst[N_TOLERANCES];

/* True if rows of `of` apply to the figure. */
static bool applies(const char *of, const char *figure)
{
    const char *slash = strrchr(figure, '/'), *name = slash != NULL ? slash + 1 : figure;
    return strcmp(of, "*") == 0 || strcmp(of, figure) == 0 ||
           (figure[0] != '/' && strncmp(of, name, strlen(of)) == 0);
}

static size_t row_of(const char *figure, const char *quantity)
{
    for (size_t i = 0; i < N_TOLERANCES; i++)
        if (strcmp(tolerances[i].quantity, quantity) == 0 && applies(tolerances[i].figure, figure))
            return i;
    fail_msg("tests/figures/tolerances.h has no \"%s\" of %s", quantity, figure);
    return 0;
}

/* A figure without rows in the table records how far its fp32 run is from its float64 run: ours may
 * be as far again. */
static double limit_of(size_t row, const parity_place *at)
{
    if (at->figure[0] != '/')
        return tolerances[row].limit;
    const json_t *spread = json_object_get(lks_test_figure(at->figure), "spread");
    double own = json_number_value(json_object_get(spread, at->quantity));
    return fmax(tolerances[row].limit, 2.0 * own);
}

void parity_hold(const parity_place *at, const char *what, double got, double want, double scale)
{
    size_t row = row_of(at->figure, at->quantity);
    double off = fabs(got - want), allowed = limit_of(row, at) * scale;
    if (scale > 0.0)
        worst[row] = fmax(worst[row], off / scale);
    if (!(isfinite(got) && off <= allowed))
        fail_msg("%s, %s of %s: %s is %.9g, not %.9g (off by %.3g, allowed %.3g)", at->figure,
                 at->section, at->of, what, got, want, off, allowed);
}

void parity_check_table(void)
{
    static const char *const narrow[] = {"val_loss", "val_loss_200", "roundtrip", "grad_norm",
                                         "final_norm"};
    for (size_t i = 0; i < N_TOLERANCES; i++) {
        const tolerance *t = &tolerances[i];
        if (!(t->limit > 0.0 && t->seen <= t->limit && strlen(t->why) > 0))
            fail_msg("tests/figures/tolerances.h: the limit of \"%s\" of %s is no limit or has no "
                     "reason",
                     t->quantity, t->figure);
        for (size_t q = 0; q < sizeof narrow / sizeof narrow[0]; q++)
            if (strstr(t->figure, "golf") != NULL && strcmp(t->quantity, narrow[q]) == 0 &&
                t->limit > 1.001 * fmax(3.0 * t->seen, t->spread))
                fail_msg("tests/figures/tolerances.h: \"%s\" of %s may be %.2g, which is more than "
                         "three times the worst seen and than the figure's own spread",
                         t->quantity, t->figure, t->limit);
    }
}

int parity_print_worst(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_TOLERANCES; i++)
        if (worst[i] > 0.0)
            print_message("seen: %s | %s | %.2g | limit %.2g\n", tolerances[i].figure,
                          tolerances[i].quantity, worst[i], tolerances[i].limit);
    return 0;
}

/* Groups without trained tensors are not announced. */
static void skip_empty(parity_groups *g)
{
    while (g->next < g->table->n_groups && lks__table_is_empty(g->table, g->next))
        g->next++;
}

void parity_all_done(parity_groups *g)
{
    skip_empty(g);
    assert_int_equal(g->next, g->table->n_groups);
}

void parity_group_done(void *groups, int group)
{
    parity_groups *g = groups;
    skip_empty(g);
    assert_int_equal(group, g->next++);
    size_t at = g->table->block_start[g->table->group_block[group]];
    size_t end = g->table->block_start[g->table->group_block[group + 1]];
    memcpy(g->seen + at, g->grads + at, (end - at) * sizeof(float));
}

void parity_hold_values(const parity_place *at, const float *x, size_t n, double scale,
                        const json_t *want)
{
    static const char *const lists[2] = {"first8", "last8"};
    for (int end = 0; end < 2; end++) {
        const json_t *list = json_object_get(want, lists[end]);
        size_t count = json_array_size(list);
        assert_true(count <= n);
        for (size_t i = 0; i < count; i++)
            parity_hold(at, lks_test_text("%s[%zu]", lists[end], i),
                        (double)x[end == 0 ? i : n - count + i],
                        json_number_value(json_array_get(list, i)), scale);
    }
}

void parity_given_figures(const char *variable, const char *list[PARITY_MOST_GIVEN + 1])
{
    const char *given = getenv(variable);
    int n = 0;
    for (size_t length; given != NULL && *given != '\0'; given += length + (given[length] == ':')) {
        length = strcspn(given, ":");
        if (n == PARITY_MOST_GIVEN || given[0] != '/')
            fail_msg("%s: up to %d absolute paths, with colons between", variable,
                     PARITY_MOST_GIVEN);
        list[n++] = lks_test_text("%.*s", (int)length, given);
    }
    list[n] = NULL;
}

const char *const *parity_golf_figures(void)
{
    enum { KEPT = 7 };
    static const char *list[KEPT + PARITY_MOST_GIVEN + 1] = {
        "generated/golf.json",       "generated/golf_quantized.json", "generated/golf_untied.json",
        "generated/golf_odd.json",   "generated/golf_one_layer.json", "generated/golf_width.json",
        "generated/golf_parts.json",
    };
    parity_given_figures("LKS_TEST_GOLF_FIGURES", list + KEPT);
    return list;
}

lks__batch_sampler *parity_sampler(const parity_model *m, uint64_t n_train, uint64_t n_val)
{
    lks__batch_sampler *sampler;
    lks__batch_sampler_config config = {
        .kind = LKS__SAMPLER_NANOGPT,
        .seed = m->seed,
        .V = m->V,
        .A = m->A,
        .B = m->B,
        .T = m->T,
        .n_tokens = {n_train, n_val},
        .init_draws = m->init_draws,
    };
    assert_ok(lks__batch_sampler_open(&config, &sampler));
    return sampler;
}

static void hold_tensor(const char *figure, const lks__table_tensor *t, const float *x,
                        const json_t *want)
{
    const json_t *shape = lks_test_member(want, "shape");
    assert_int_equal(json_array_size(shape), t->n_dims);
    for (int d = 0; d < t->n_dims; d++)
        assert_int_equal(json_integer_value(json_array_get(shape, (size_t)d)), t->shape[d]);
    double far = sqrt((double)t->count); /* |x - y|, if every element were off by 1 */
    parity_place at = {figure, "init", "init", t->name};
    double sumsq = lks_test_number(want, "sumsq");
    parity_sums got = parity_sum(x, t->count);
    parity_hold_values(&at, x, t->count, 1.0, want);
    parity_hold(&at, "sum", got.sum, lks_test_number(want, "sum"), far);
    parity_hold(&at, "sumsq", got.sumsq, sumsq, far * 2.0 * sqrt(sumsq));
}

void parity_hold_init(const char *figure)
{
    parity_model m = parity_open(figure);
    assert_int_equal(json_object_size(lks_test_member(m.figure, "init")), m.table.n_tensors);
    if (m.config.ops == &lks__model_golf)
        assert_int_equal(m.table.n_params, lks_test_number(m.figure, "config.model_params"));
    for (size_t i = 0; i < m.table.n_tensors; i++) {
        const lks__table_tensor *t = &m.table.tensors[i];
        hold_tensor(figure, t, m.params + t->offset, parity_tensor(m.figure, "init", t->name));
    }
    parity_close(&m);
}

void parity_hold_gradients(const parity_model *m, const char *section, const float *grads)
{
    const bool is_golf = m->config.ops == &lks__model_golf;
    for (size_t i = 0; i < m->table.n_tensors; i++) {
        const lks__table_tensor *t = &m->table.tensors[i];
        if (t->frozen)
            continue;
        const float *x = grads + t->offset;
        const json_t *want = parity_tensor(m->figure, section, t->name);
        parity_sums got = parity_sum(x, t->count);
        parity_place at = {m->name, section, section, t->name};
        double norm = sqrt(lks_test_number(want, "sumsq")), sum = lks_test_number(want, "sum");
        assert_true(norm > 0.0 || is_golf); /* behind a projection that is zero at first */
        for (size_t e = 0; norm == 0.0 && e < t->count; e++)
            assert_true(x[e] == 0.0f);
        parity_hold(&at, "norm", sqrt(got.sumsq), norm, norm);
        parity_hold(&at, "dots[0]", got.dots[0], lks_test_number(want, "dots.0"), norm);
        parity_hold(&at, "dots[1]", got.dots[1], lks_test_number(want, "dots.1"), norm);
        /* if most of golf's values have one sign, so may their errors */
        parity_hold(&at, "sum", got.sum, sum, is_golf ? fmax(norm, fabs(sum)) : norm);
        parity_hold_values(&at, x, t->count, norm, want);
    }
}

/* The loss at distance `h` along the gradient. */
static double moved_loss(float *x, const float *grad, size_t n, double h,
                         double (*loss_of)(void *model), void *model)
{
    float *kept = parity_floats(n);
    memcpy(kept, x, n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((double)kept[i] + h * (double)grad[i]);
    double loss = loss_of(model);
    memcpy(x, kept, n * sizeof *x);
    free(kept);
    return loss;
}

void parity_hold_slopes(const char *family, const lks__table *table, float *params,
                        const float *grads, double h, double least, double (*loss_of)(void *model),
                        void *model)
{
    for (size_t i = 0; i < table->n_tensors; i++) {
        const lks__table_tensor *t = &table->tensors[i];
        if (t->count == 0) /* the skip weights of one layer */
            continue;
        const float *grad = grads + t->offset;
        double loss[5], norm = sqrt(parity_sum(grad, t->count).sumsq);
        assert_true(norm > 1e-4);
        for (int at = -2; at <= 2; at++)
            loss[at + 2] =
                moved_loss(params + t->offset, grad, t->count, at * h / norm, loss_of, model);
        double slope = (8.0 * (loss[3] - loss[1]) - (loss[4] - loss[0])) / (12.0 * h);
        parity_hold(&(parity_place){"finite differences", family, "gradient", t->name},
                    "slope of the loss along it", slope, norm, least + norm);
    }
}

double parity_of_list(const json_t *list, size_t i)
{
    return json_number_value(json_array_get(list, i));
}

void parity_hold_run(const char *figure, const char *quantity, const char *section, double got,
                     double want, double scale)
{
    parity_hold(&(parity_place){figure, quantity, section, "the run"}, quantity, got, want, scale);
}
