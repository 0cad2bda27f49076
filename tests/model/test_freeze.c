/* Frozen tensors: the others' gradients keep their bits, the work for the frozen ones is left out,
 * and --freeze's expression is matched and refused as its page says. */
#include "models.h"

#include <stdlib.h>
#include <string.h>

#include "compute/device.h"
#include "model/table/freeze.h"

/* --- counting products ------------------------------------------------------------------------ */

static lks__layers counting;
static int n_bwd_w, n_bwd_x, n_attention;

static void count_bwd_w(const lks__exec *ex, float *dw, float *db, const lks__act *dy, size_t lddy,
                        const lks__act *x, size_t rows, size_t out, size_t in, bool fresh)
{
    assert_true(dw != NULL || db != NULL);
    n_bwd_w++;
    lks__layers_cpu.linear_bwd_w(ex, dw, db, dy, lddy, x, rows, out, in, fresh);
}

static void count_bwd_x(const lks__exec *ex, lks__act *dx, const lks__act *dy, size_t lddy,
                        const float *w, size_t rows, size_t out, size_t in,
                        const lks__epilogue *epilogue)
{
    n_bwd_x++;
    lks__layers_cpu.linear_bwd_x(ex, dx, dy, lddy, w, rows, out, in, epilogue);
}

static void count_attention(const lks__exec *ex, const lks__attention_shape *shape,
                            const lks__attention_grads *grads, const lks__act *dout,
                            const lks__attention_in *in, const lks__act *out, const float *lse,
                            const lks__dropout *drop)
{
    n_attention++;
    lks__layers_cpu.attention_bwd(ex, shape, grads, dout, in, out, lse, drop);
}

static void count(lks__device *device)
{
    counting = lks__layers_cpu;
    counting.linear_bwd_w = count_bwd_w;
    counting.linear_bwd_x = count_bwd_x;
    counting.attention_bwd = count_attention;
    device->layers = &counting;
    n_bwd_w = n_bwd_x = n_attention = 0;
}

/* --- a pass with some tensors frozen ---------------------------------------------------------- */

enum { MOST_TENSORS = 64, CANARY = 64 };
static const float untouched = 12345.0f;

/* A copy of a small run whose table has frozen tensors. */
struct frozen_run {
    const small_run *base;
    lks__device device;
    lks__table table;
    lks__model *model;
    float *params, *grads, loss;
    const float *want; /* the base's gradients; NULL: this is the base */
    int next;          /* group to be announced */
};

static void open_run(const small_run *base, const bool *frozen, struct frozen_run *run)
{
    *run = (struct frozen_run){.base = base, .device = *base->model->device};
    count(&run->device);
    assert_ok(lks__model_table(&base->config, &run->table));
    assert_true(run->table.n_tensors <= MOST_TENSORS);
    for (size_t i = 0; i < run->table.n_tensors; i++)
        run->table.tensors[i].frozen = frozen[i];
    assert_ok(lks__table_lay_out(&run->table));
    assert_ok(lks__model_open(&base->config, &run->table, SMALL_B, &run->device, &run->model));
    run->params = aligned_alloc(64, (run->table.count + 16) * sizeof(float) / 64 * 64);
    run->grads = aligned_alloc(64, (run->table.trained_count + CANARY) * sizeof(float));
    assert_true(run->params != NULL && run->grads != NULL);
    for (size_t i = 0; i < run->table.n_tensors; i++)
        memcpy(run->params + run->table.tensors[i].offset,
               base->params + base->table.tensors[i].offset,
               run->table.tensors[i].count * sizeof(float));
    for (size_t i = 0; i < run->table.trained_count + CANARY; i++)
        run->grads[i] = i < run->table.trained_count ? 0.0f : untouched;
}

static void close_run(struct frozen_run *run)
{
    for (size_t i = 0; i < CANARY; i++)
        assert_true(run->grads[run->table.trained_count + i] == untouched);
    lks_test_free(run->params, run->grads);
    lks__model_close(run->model);
    lks__table_free(&run->table);
}

static bool has_trained(const lks__table *table, int group)
{
    for (size_t i = 0; i < table->n_tensors; i++)
        if (table->tensors[i].group == group && !table->tensors[i].frozen)
            return true;
    return false;
}

/* Groups come in order, those without trained tensors are left out, and a group's gradient is
 * complete when it is announced. */
static void group_done(void *ctx, int group)
{
    struct frozen_run *run = ctx;
    for (; run->next < group; run->next++)
        assert_false(has_trained(&run->table, run->next));
    assert_int_equal(run->next++, group);
    assert_true(has_trained(&run->table, group));
    for (size_t i = 0; i < run->table.n_tensors && run->want != NULL; i++) {
        const lks__table_tensor *t = &run->table.tensors[i];
        if (t->group == group && !t->frozen &&
            memcmp(run->grads + t->offset, run->want + run->base->table.tensors[i].offset,
                   t->count * sizeof(float)) != 0)
            fail_msg("the gradient of %s has other bits", t->name);
    }
}

static void count_beat(void *ctx)
{
    ++*(int *)ctx;
}

static void pass(struct frozen_run *run)
{
    int beats = 0;
    lks__backward bw = {.grads = run->grads,
                        .seed = 3,
                        .step = 2,
                        .done = group_done,
                        .done_ctx = run,
                        .beat = {count_beat, &beats}};
    lks__model_train(run->model, run->params, &run->base->mb, &bw, &run->loss);
    /* after each layer forward, and after each group */
    assert_int_equal(beats, run->base->config.n_layer + run->table.n_groups);
    for (; run->next < run->table.n_groups; run->next++)
        assert_false(has_trained(&run->table, run->next));
}

/* The pass of the base run, and those with some tensors frozen. */
struct fixture {
    small_run base;
    struct frozen_run full;
};

static void open_fixture(const small_model *m, struct fixture *f)
{
    const bool none[MOST_TENSORS] = {false};
    small_open(m, &f->base);
    open_run(&f->base, none, &f->full);
    assert_int_equal(f->full.table.trained_count, f->full.table.count);
    pass(&f->full);
}

static void close_fixture(struct fixture *f)
{
    close_run(&f->full);
    small_close(&f->base);
}

static void check(const struct fixture *f, const bool *frozen)
{
    struct frozen_run run;
    open_run(&f->base, frozen, &run);
    run.want = f->full.grads;
    pass(&run);
    assert_memory_equal(&run.loss, &f->full.loss, sizeof run.loss);
    close_run(&run);
}

/* Each tensor frozen alone, each trained alone, and many subsets. */
TEST(test_gradients)
{
    enum { SUBSETS = 150 };
    for (int i = 0; i < N_SMALL_MODELS; i++) {
        struct fixture f;
        bool frozen[MOST_TENSORS];
        lks__mt g;
        open_fixture(&small_models[i], &f);
        const size_t n = f.base.table.n_tensors;
        for (size_t t = 0; t < 2 * n; t++) {
            for (size_t j = 0; j < n; j++)
                frozen[j] = (j == t % n) == (t < n);
            check(&f, frozen);
        }
        lks__mt_seed(&g, 5);
        for (int subset = 0; subset < SUBSETS; subset++) {
            const uint32_t likely = 1 + (uint32_t)subset % 15;     /* of 16 */
            const size_t below = lks__mt_randint(&g, (uint32_t)n); /* all before it, too */
            for (size_t j = 0; j < n; j++)
                frozen[j] = lks__mt_randint(&g, 16) < likely || j < below;
            frozen[lks__mt_randint(&g, (uint32_t)n)] = false;
            check(&f, frozen);
        }
        close_fixture(&f);
    }
}

/* --- work that is left out -------------------------------------------------------------------- */

static void train_only(const struct fixture *f, const char *const names[], double *flops)
{
    bool frozen[MOST_TENSORS];
    struct frozen_run run;
    for (size_t i = 0; i < f->base.table.n_tensors; i++) {
        frozen[i] = true;
        for (int j = 0; names[j] != NULL; j++)
            if (strstr(f->base.table.tensors[i].name, names[j]) != NULL)
                frozen[i] = false;
    }
    open_run(&f->base, frozen, &run);
    n_bwd_w = n_bwd_x = n_attention = 0;
    pass(&run);
    *flops = lks__model_flops_per_token(&f->base.config, &run.table);
    close_run(&run);
}

#define check_work(f, bwd_w, bwd_x, attention, ...)                                                \
    do {                                                                                           \
        train_only(&(f), (const char *const[]){__VA_ARGS__, NULL}, &flops);                        \
        assert_int_equal(n_bwd_w, bwd_w);                                                          \
        assert_int_equal(n_bwd_x, bwd_x);                                                          \
        assert_int_equal(n_attention, attention);                                                  \
    } while (0)

/* Three layers of four matrices, and the head, which is the embedding. Backward makes the product
 * for each matrix that is trained, and ends where nothing before is trained. */
TEST(test_work_gpt2)
{
    struct fixture f;
    double flops;
    open_fixture(&small_models[1], &f);
    const double C = 24, T = SMALL_T, L = 3, matrices = 12 * C * C; /* of a layer */
    check_work(f, 13, 13, 3, "transformer");
    const double full = flops;
    check_work(f, 4, 5, 1, "h.2.");
    assert_true(flops == full - 2 * 4 * matrices - 2 * 8 * C * T);
    check_work(f, 2, 2, 0, "h.2.mlp.c_fc", "h.2.mlp.c_proj.bias");
    check_work(f, 1, 1, 0, "h.2.mlp.c_proj.weight");
    check_work(f, 0, 3, 0, "h.2.ln_2.bias");
    check_work(f, 1, 3, 0, "h.2.attn.c_proj.weight");
    check_work(f, 1, 4, 1, "h.2.attn.c_attn.bias");
    check_work(f, 0, 5, 1, "h.2.ln_1.weight");
    check_work(f, 1, 5, 1, "h.1.mlp.c_proj.weight");
    check_work(f, 0, 1, 0, "ln_f");
    assert_true(flops == full - L * 4 * matrices - L * 8 * C * T);
    check_work(f, 1, 13, 3, "wte");
    check_work(f, 0, 13, 3, "wpe");
    close_fixture(&f);
}

/* golf, untied: 7 products of matrices in a layer, and the head. */
TEST(test_work_golf)
{
    struct fixture f;
    double flops;
    open_fixture(&small_models[3], &f);
    check_work(f, 1, 0, 0, "lm_head");
    const double C = 24, T = SMALL_T, L = 3, matrices = 9 * C * C; /* mlp_mult 3, half the keys */
    assert_true(flops == 6 * ((double)f.base.table.n_params - SMALL_VOCAB * C) + 12 * L * C * T -
                             L * 4 * matrices - L * 8 * C * T);
    check_work(f, 1, 2, 0, "blocks.2.mlp.fc.weight");
    check_work(f, 1, 1, 0, "blocks.2.mlp_scale");
    check_work(f, 1, 3, 0, "blocks.2.attn_scale");
    check_work(f, 1, 4, 1, "blocks.2.attn.c_k");
    check_work(f, 0, 5, 1, "blocks.2.resid_mix");
    check_work(f, 0, 9, 2, "skip_weights"); /* the second half has layers 1 and 2 */
    check_work(f, 0, 13, 3, "tok_emb");
    close_fixture(&f);
}

/* --- the expression --------------------------------------------------------------------------- */

static void open_table(lks__table *table)
{
    lks__model_config config = small_models[1].config;
    config.n_layer = 12;
    assert_ok(lks__model_table(&config, table));
}

TEST(test_matches)
{
    static const struct {
        const char *pattern;
        size_t frozen;
        const char *shown[3]; /* the first lines */
    } rows[] = {
        {"", 0, {NULL}},
        {"transformer.wte.weight", 1, {"transformer.wte.weight", NULL}},
        {"wte|wpe", 2, {"transformer.wte.weight", "transformer.wpe.weight", NULL}},
        {"^h", 0, {NULL}}, /* refused below: the names begin with "transformer." */
        {"h\\.(0|1|2|5|11)\\.ln_1\\.weight$", 5, {"transformer.h.0-2,5,11.ln_1.weight", NULL}},
        {"h.[0-9].attn", 40, {"transformer.h.0-9.attn.c_attn.weight"}},
        {"h\\.1{2}\\.mlp\\.c_fc", 2, {"transformer.h.11.mlp.c_fc.weight"}},
        {"h.([02468]|10).ln_1.bias", 6, {"transformer.h.0,2,4,6,8,10.ln_1.bias", NULL}},
        {"ln_f.bias", 1, {"transformer.ln_f.bias", NULL}},
        {"wte|h.0.ln_1.weight", 2, {"transformer.wte.weight", "transformer.h.0.ln_1.weight", NULL}},
    };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        lks__table table;
        char text[LKS__FROZEN_TEXT];
        size_t n = 0, values = 0, next = 0;
        open_table(&table);
        if (rows[r].frozen > 0 || rows[r].pattern[0] == '\0')
            assert_ok(lks__table_freeze(&table, rows[r].pattern));
        for (size_t i = 0; i < table.n_tensors; i++) {
            n += table.tensors[i].frozen;
            values += table.tensors[i].frozen ? table.tensors[i].count : 0;
            assert_true(table.tensors[i].frozen ==
                        (table.tensors[i].offset >= table.trained_count));
        }
        assert_int_equal(n, rows[r].frozen);
        assert_int_equal(table.trained_params, table.n_params - values);
        for (int i = 0; i < 3 && rows[r].shown[i] != NULL; i++) {
            assert_true(lks__frozen_next(&table, &next, text));
            assert_string_equal(text, rows[r].shown[i]);
        }
        lks__table_free(&table);
    }
}

TEST(test_refused)
{
    static const char *const rows[][2] = {
        {"^h", "matches no tensor; the nearest names are transformer."},
        {"transformr.wte", "nearest names are transformer.wte.weight, transformer.wpe.weight, "},
        {"h\\.[0-3]\\.atn\\.", "nearest names are transformer.h.0.attn."},
        {"h\\.0\\.atn\\.c_proj\\.w", "nearest names are transformer.h.0.attn.c_proj.weight, "},
        {"xyzzy", "freeze=\"xyzzy\" matches no tensor; the nearest names are "},
        {".", "matches all 148 tensors: nothing would be trained"},
        {"transformer", "matches all 148"},
        {"h\\.(0", "is not a POSIX extended regular expression: Unmatched ("},
        {"*(", "is not a POSIX extended regular expression: "},
        {"h.[9-0]", "is not a POSIX extended regular expression: "},
        {"h\\.\\d+", "\\d at byte 4 has no meaning"},
        {"h\\.\\D", "\\D at byte 4 has no meaning"},
        {"(wte)\\1", "\\1 at byte 6 has no meaning"},
        {"wte\\", "is not a POSIX extended regular expression: "},
        {"((a{100}){100}){100}", "repetitions {m,n} together are more than 1000"},
        {"a{99999999999999999999}", "repetitions {m,n} together are more than 1000"},
        {"wte\xff", "freeze=\"wte\\xff\": byte 3 is not UTF-8"},
    };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        lks__table table;
        open_table(&table);
        assert_int_equal(lks__table_freeze(&table, rows[r][0]), LKS_ERR_CONFIG);
        assert_contains(lks_last_error(), rows[r][1]);
        lks__table_free(&table);
    }
}

/* The tensors that are still trained have no parameters. */
TEST(test_refused_empty)
{
    lks__model_config config = small_models[3].config;
    lks__table table;
    config.n_layer = 1;
    assert_ok(lks__model_table(&config, &table));
    assert_fails(LKS_ERR_CONFIG, lks__table_freeze(&table, "emb|head|blocks"),
                 "nothing would be trained");
    lks__table_free(&table);
}

/* 1,000 repetitions together are allowed, and a list of layers that is too long for its line ends
 * with dots. */
TEST(test_limits)
{
    lks__model_config config = small_models[1].config;
    lks__table table;
    char text[LKS__FROZEN_TEXT];
    size_t next = 0;
    open_table(&table);
    assert_ok(lks__table_freeze(&table, "wte|x{999}"));
    lks__table_free(&table);
    open_table(&table);
    assert_fails(LKS_ERR_CONFIG, lks__table_freeze(&table, "wte|x{1000}"), "more than 1000");
    lks__table_free(&table);
    config.n_layer = 60;
    assert_ok(lks__model_table(&config, &table));
    assert_ok(lks__table_freeze(&table, "h\\.[0-9]*[13579]\\.ln_1\\.weight"));
    assert_true(lks__frozen_next(&table, &next, text));
    assert_string_equal(text, "transformer.h.1,3,5,7,9,11,13,15,17,19,21,23,25,....ln_1.weight");
    assert_false(lks__frozen_next(&table, &next, text));
    lks__table_free(&table);
}

/* An expression of any length, and one of many brackets. */
TEST(test_long)
{
    enum { LONG = 1000 };
    for (int kind = 0; kind < 3; kind++) {
        char pattern[LONG + 1] = "";
        lks__table table;
        open_table(&table);
        memset(pattern, kind == 0 ? 'a' : kind == 1 ? '(' : '|', LONG);
        if (kind == 1) {
            memset(pattern + LONG / 2, ')', LONG / 2);
            pattern[LONG / 2 - 1] = 'q';
            pattern[LONG - 1] = '\0';
        }
        const lks_status st = lks__table_freeze(&table, pattern);
        assert_true(st == LKS_ERR_CONFIG);
        lks__table_free(&table);
    }
}

int main(void)
{
    lks_test_need_level(NULL);
    return lks_test_run_all(small_open_exec, small_close_exec);
}
