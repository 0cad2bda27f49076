/* --recompute: losses and gradients keep their bits in every way of it, whatever is frozen and
 * wherever gradients go; the memory is what the page says; and what is computed again is counted.
 */
#include "models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compute/cpu/exec.h"

static const lks__recompute ways[] = {LKS__RECOMPUTE_NONE, LKS__RECOMPUTE_ROWS,
                                      LKS__RECOMPUTE_BLOCK};
enum { N_WAYS = sizeof ways / sizeof ways[0], PASSES = 2 };

/* --- the same bits ---------------------------------------------------------------------------- */

struct results {
    float losses[PASSES + 1]; /* the last without gradients */
    float *grads[PASSES];
};

/* Passes in memory full of NaN: what backward reads must have been made in this pass. */
static struct results compute(const small_model *m, const bool *frozen)
{
    struct results r;
    small_run run;
    size_t bytes;
    small_open(m, &run);
    lks__model *model;
    for (size_t i = 0; i < run.table.n_tensors; i++)
        run.table.tensors[i].frozen = frozen[i];
    assert_ok(lks__table_lay_out(&run.table));
    assert_ok(lks__model_open(&run.config, &run.table, SMALL_B, run.model->device, &model));
    for (int i = 0; i < PASSES; i++) {
        r.grads[i] = lks_test_calloc(run.table.trained_count + 1, sizeof(float));
        const lks__backward bw = {.grads = r.grads[i],
                                  .seed = 3,
                                  .step = 2,
                                  .vm = (uint32_t)i,
                                  .done = models_ignore_group};
        float *scratch = lks__model_scratch(model, &bytes);
        for (size_t j = 0; j < bytes / sizeof(float); j++)
            scratch[j] = NAN;
        run.tokens[i] = (run.tokens[i] + 1) % SMALL_VOCAB;
        lks__model_train(model, run.params, &run.mb, &bw, &r.losses[i]);
    }
    lks__model_loss(model, run.params, &run.mb, &r.losses[PASSES]);
    lks__model_close(model);
    small_close(&run);
    return r;
}

static void free_results(struct results *r)
{
    for (int i = 0; i < PASSES; i++)
        free(r->grads[i]);
}

static size_t n_tensors(const small_model *m, size_t *n_trained, const bool *frozen)
{
    lks__table t;
    assert_ok(lks__model_table(&m->config, &t));
    for (size_t i = 0; i < t.n_tensors; i++)
        t.tensors[i].frozen = frozen[i];
    assert_ok(lks__table_lay_out(&t));
    const size_t n = t.n_tensors;
    *n_trained = t.trained_count;
    lks__table_free(&t);
    return n;
}

enum { MOST_TENSORS = 96, DRAWS = 24 };

/* Nothing frozen; then only one tensor trained, or some. */
static void check_bits(const small_model *base)
{
    static const bool none[MOST_TENSORS];
    size_t n_trained;
    const size_t n = n_tensors(base, &n_trained, none);
    assert_true(n <= MOST_TENSORS);
    lks__mt g;
    lks__mt_seed(&g, 7);
    for (size_t draw = 0; draw < 1 + n + DRAWS; draw++) {
        bool frozen[MOST_TENSORS];
        for (size_t i = 0; i < n; i++)
            frozen[i] = draw == 0 ? false : draw <= n ? i != draw - 1 : lks__mt_randint(&g, 3) > 0;
        frozen[lks__mt_randint(&g, (uint32_t)n)] &= draw <= n; /* one is trained */
        n_tensors(base, &n_trained, frozen);
        struct results want = {{0}, {NULL}};
        for (int w = 0; w < N_WAYS; w++) {
            small_model m = *base;
            m.config.recompute = ways[w];
            struct results got = compute(&m, frozen);
            for (int i = 0; i < PASSES && w > 0; i++)
                if (memcmp(got.grads[i], want.grads[i], n_trained * sizeof(float)) != 0)
                    fail_msg("%s, recompute %d, draw %zu, pass %d: other gradients", m.name, w,
                             draw, i);
            for (int i = 0; i <= PASSES; i++)
                assert_true(isfinite(got.losses[i]));
            if (w > 0)
                assert_memory_equal(got.losses, want.losses, sizeof want.losses);
            if (w == 0)
                want = got;
            else
                free_results(&got);
        }
        free_results(&want);
    }
}

TEST(test_bits)
{
    for (int i = 0; i < N_SMALL_MODELS; i++)
        check_bits(&small_models[i]);
}

/* GPT-2's form of GELU; and depths at which golf's two halves differ, or there is but one layer. */
TEST(test_bits_of_others)
{
    static const bool none[MOST_TENSORS];
    for (int n_layer = 1; n_layer <= 5; n_layer++)
        for (int i = 0; i < N_SMALL_MODELS; i++) {
            struct results want = {{0}, {NULL}};
            size_t n_trained;
            for (int w = 0; w < N_WAYS; w++) {
                small_model m = small_models[i];
                m.config.n_layer = n_layer;
                m.config.gelu_tanh = n_layer % 2 == 0;
                m.config.recompute = ways[w];
                n_tensors(&m, &n_trained, none);
                struct results got = compute(&m, none);
                if (w == 0) {
                    want = got;
                    continue;
                }
                for (int j = 0; j < PASSES; j++)
                    assert_memory_equal(got.grads[j], want.grads[j], n_trained * sizeof(float));
                assert_memory_equal(got.losses, want.losses, sizeof want.losses);
                free_results(&got);
            }
            free_results(&want);
        }
}

/* --- memory ----------------------------------------------------------------------------------- */

static size_t bytes_of(lks__model_config c, lks__recompute way, int batch)
{
    size_t bytes;
    c.recompute = way;
    assert_ok(lks__model_activation_bytes(&c, batch, &lks__layers_cpu, &bytes));
    return bytes;
}

/* Floats for a token that one more layer takes. */
static double a_layer(lks__model_config c, lks__recompute way)
{
    enum { BATCH = 16 };
    const size_t n = bytes_of(c, way, BATCH);
    c.n_layer++;
    return (double)(bytes_of(c, way, BATCH) - n) / sizeof(float) / BATCH / c.block_size;
}

/* gpt2: 16 vectors per token and layer, of which `rows` keeps 10 and `block` one; golf: 15.5, 8 and
 * one with this MLP. In addition mean and deviation of the norms, and attention's sums. */
TEST(test_memory)
{
    lks__model_config c = small_models[0].config;
    c.n_embd = 96;
    c.block_size = 64;
    const double C = 96, small = 4 + 3;
    assert_true(a_layer(c, LKS__RECOMPUTE_NONE) == 16 * C + small);
    assert_true(a_layer(c, LKS__RECOMPUTE_ROWS) == 10 * C + small);
    assert_true(a_layer(c, LKS__RECOMPUTE_BLOCK) == C);
    c = small_models[2].config; /* 4 heads, 2 of keys; MLP of 3 */
    c.n_embd = 96;
    c.block_size = 64;
    assert_true(a_layer(c, LKS__RECOMPUTE_NONE) == (8 + 3 * 0.5 + 2 * 3) * C + 2 + 2 * 4 + 2);
    assert_true(a_layer(c, LKS__RECOMPUTE_ROWS) == (4 + 2 * 0.5 + 3) * C + 2 + 2 * 4 + 2);
    assert_true(a_layer(c, LKS__RECOMPUTE_BLOCK) == C);
}

/* A model takes the memory that the function gives. */
TEST(test_arena)
{
    for (int i = 0; i < N_SMALL_MODELS; i += 2)
        for (int w = 0; w < N_WAYS; w++) {
            small_model m = small_models[i];
            small_run run;
            size_t bytes;
            m.config.recompute = ways[w];
            small_open(&m, &run);
            lks__model_scratch(run.model, &bytes);
            const size_t tables = i < 2 ? 0 : SMALL_T * 6 * sizeof(float); /* rotary angles */
            assert_int_equal(bytes + tables, bytes_of(m.config, ways[w], SMALL_B));
            small_close(&run);
        }
}

/* --- work ------------------------------------------------------------------------------------- */

static lks__layers counting;
static int n_fwd, n_attention, n_activations, n_norms;

static void count_fwd(const lks__exec *ex, lks__act *y, size_t ldy, const lks__act *x,
                      const float *w, size_t rows, size_t out, size_t in,
                      const lks__epilogue *epilogue)
{
    n_fwd++;
    lks__layers_cpu.linear_fwd(ex, y, ldy, x, w, rows, out, in, epilogue);
}

static void count_attention(const lks__exec *ex, const lks__attention_shape *shape, lks__act *out,
                            float *lse, const lks__attention_in *in, const lks__dropout *drop)
{
    n_attention++;
    lks__layers_cpu.attention_fwd(ex, shape, out, lse, in, drop);
}

static void count_activation(const lks__exec *ex, lks__epilogue_kind kind, lks__act *y,
                             const lks__act *x, size_t rows, size_t width)
{
    n_activations++;
    lks__layers_cpu.activation_fwd(ex, kind, y, x, rows, width);
}

static void count_norm(const lks__exec *ex, lks__act *y, float *mean, float *rstd,
                       const lks__act *x, const float *gain, const float *bias, size_t rows,
                       size_t C)
{
    n_norms++;
    lks__layers_cpu.layernorm_rows_fwd(ex, y, mean, rstd, x, gain, bias, rows, C);
}

static void count_golf_norm(const lks__exec *ex, lks__act *y, float *rms, const lks__act *x,
                            size_t rows, size_t C)
{
    n_norms++;
    lks__layers_cpu.golf_norm_fwd(ex, y, rms, x, rows, C);
}

static void count_golf_entry(const lks__exec *ex, const lks__golf_entry *e, size_t rows, size_t C)
{
    n_norms++;
    lks__layers_cpu.golf_entry_fwd(ex, e, rows, C);
}

static void count_golf_heads(const lks__exec *ex, const lks__golf_heads *h)
{
    n_norms++;
    lks__layers_cpu.golf_heads_fwd(ex, h);
}

/* Operations of a training pass; the head is one product. */
static void count(int model, lks__recompute way, int fwd, int attention, int activations, int norms)
{
    small_model m = small_models[model];
    small_run run;
    lks__model *counted;
    float loss;
    m.config.recompute = way;
    small_open(&m, &run);
    lks__device device = *run.model->device;
    counting = lks__layers_cpu;
    counting.linear_fwd = count_fwd;
    counting.attention_fwd = count_attention;
    counting.activation_fwd = count_activation;
    counting.layernorm_rows_fwd = count_norm;
    counting.golf_norm_fwd = count_golf_norm;
    counting.golf_entry_fwd = count_golf_entry;
    counting.golf_heads_fwd = count_golf_heads;
    device.layers = &counting;
    assert_ok(lks__model_open(&run.config, &run.table, SMALL_B, &device, &counted));
    float *grads = lks_test_calloc(run.table.count, sizeof *grads);
    const lks__backward bw = {.grads = grads, .seed = 3, .done = models_ignore_group};
    n_fwd = n_attention = n_activations = n_norms = 0;
    lks__model_train(counted, run.params, &run.mb, &bw, &loss);
    assert_int_equal(n_fwd, fwd);
    assert_int_equal(n_attention, attention);
    assert_int_equal(n_activations, activations);
    assert_int_equal(n_norms, norms);
    free(grads);
    lks__model_close(counted);
    small_close(&run);
}

/* `rows` makes no product; `block` makes all but the last of each layer, and none of the last
 * layer, which forward has left. */
TEST(test_work)
{
    const int L = 3;
    count(1, LKS__RECOMPUTE_NONE, 4 * L + 1, L, 0, 2 * L + 1);
    count(1, LKS__RECOMPUTE_ROWS, 4 * L + 1, L, L, 4 * L + 1);
    count(1, LKS__RECOMPUTE_BLOCK, 4 * L + 1 + 3 * (L - 1), 2 * L - 1, L, 4 * L + 1 + 2 * (L - 1));
    count(2, LKS__RECOMPUTE_NONE, 6 * L + 1, L, 0, 3 * L + 1);
    count(2, LKS__RECOMPUTE_ROWS, 6 * L + 1, L, L, 6 * L + 1);
    count(2, LKS__RECOMPUTE_BLOCK, 6 * L + 1 + 5 * (L - 1), 2 * L - 1, L, 6 * L + 1 + 3 * (L - 1));
}

int main(void)
{
    lks_test_need_level(NULL);
    return lks_test_run_all(small_open_exec, small_close_exec);
}
