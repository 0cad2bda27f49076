/* Gradients of step 0, and of step 3 if a figure has them, equal PyTorch's; with dropout, they are
 * those of the loss itself. */
#include "parity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/read/shards.h"
#include "model/batch.h"
#include "model/optim/optimizer.h"

/* Everything that some steps of a figure's run need. */
struct steps {
    parity_model m;
    lks__shards *data[2];
    lks__batch_sampler *sampler;
    lks__model *model;
    float *grads, *seen, *moments;
    int32_t *tokens, *targets;
};

/* Into `s`, which the model then points to. */
static void steps_open(const char *figure, const char *data_dir, struct steps *s)
{
    *s = (struct steps){.m = parity_open(figure)};
    const size_t rows = (size_t)s->m.B * (size_t)s->m.T;
    for (int i = 0; i < 2; i++)
        assert_ok(
            lks__shards_open_any(lks_test_text("%s/%s.bin", data_dir, i == 0 ? "train" : "val"),
                                 (uint32_t)s->m.config.vocab_size, &s->data[i]));
    s->sampler =
        parity_sampler(&s->m, lks__shards_count(s->data[0]), lks__shards_count(s->data[1]));
    assert_ok(lks__model_open(&s->m.config, &s->m.table, s->m.B, &parity_device, &s->model));
    s->grads = parity_floats(s->m.table.count);
    s->seen = parity_floats(s->m.table.count);
    s->moments = parity_floats(2 * s->m.table.count);
    s->tokens = lks_test_calloc(rows + 1, sizeof *s->tokens);
    s->targets = lks_test_calloc(rows, sizeof *s->targets);
}

static void steps_close(struct steps *s)
{
    lks_test_free(s->grads, s->seen, s->moments, s->tokens, s->targets);
    lks__model_close(s->model);
    lks__batch_sampler_close(s->sampler);
    lks__shards_close(s->data[0]);
    lks__shards_close(s->data[1]);
    parity_close(&s->m);
}

/* All micro-batches of a step into one arena; then 1/N. */
static void run_step(struct steps *s, int step)
{
    const parity_model *m = &s->m;
    const size_t B = (size_t)m->B, T = (size_t)m->T;
    const uint64_t *offsets = lks__batch_sampler_step(s->sampler, (uint64_t)step);
    const char *at = lks_test_text("step %d", step);
    double loss = 0.0;
    memset(s->grads, 0, m->table.count * sizeof *s->grads);
    for (int i = 0; i < m->V * m->A; i++) {
        const int v = i / m->A, micro = i % m->A;
        parity_groups groups = {&m->table, s->grads, s->seen, 0};
        lks__micro_batch mb = {s->tokens, s->targets, m->B, m->T};
        lks__backward bw = {.grads = s->grads,
                            .seed = m->seed,
                            .step = (uint32_t)step,
                            .vm = (uint32_t)v << 16 | (uint32_t)micro,
                            .done = parity_group_done,
                            .done_ctx = &groups};
        assert_ok(
            lks__shards_samples(s->data[0], offsets + (size_t)i * B, B, T, s->tokens, s->targets));
        double got = parity_loss(s->model, m->params, &mb, &bw);
        if (json_object_get(m->figure, "micro_losses") != NULL) {
            const char *which = m->V == 1 ? lks_test_text("micro_losses.%d.%d", step, micro)
                                          : lks_test_text("micro_losses.%d.%d.%d", v, step, micro);
            parity_hold(&(parity_place){m->name, "first_losses", at, which}, "loss", got,
                        lks_test_number(m->figure, which), 1.0);
        }
        loss += got;
        parity_all_done(&groups);
    }
    assert_memory_equal(s->seen, s->grads, m->table.count * sizeof(float));
    float scale = (float)(1.0 / (double)(m->V * m->A));
    for (size_t i = 0; i < m->table.count; i++)
        s->grads[i] *= scale;
    const char *list = json_object_get(m->figure, "loss_mean") != NULL ? "loss_mean" : "loss";
    parity_hold(&(parity_place){m->name, "first_losses", at, "the model"}, "loss",
                loss / (m->V * m->A),
                lks_test_number(m->figure, lks_test_text("%s.%d", list, step)), 1.0);
}

static void update(struct steps *s, int step)
{
    const parity_model *m = &s->m;
    const json_t *c = lks_test_member(m->figure, "config");
    double norm = sqrt(parity_sum(s->grads, m->table.count).sumsq);
    lks__rates rates = {
        .beta1 = lks_test_number(c, "beta1"),
        .beta2 = lks_test_number(c, "beta2"),
        .eps = 1e-8,
        .weight_decay = lks_test_number(c, "weight_decay"),
        .t = (uint64_t)step + 1,
        .clip = lks__clip_factor(norm, lks_test_number(c, "grad_clip")),
    };
    for (int kind = 0; kind < LKS__N_PARAM_KINDS; kind++)
        rates.lr[kind] = lks_test_number(m->figure, lks_test_text("lr.%d", step));
    parity_update(&lks__optimizer_adamw, &m->table, &rates, s->m.params, s->moments, s->grads);
}

/* The figure's first steps with the script's draws, and the gradients of the steps for which it has
 * them. The script evaluates first, which draws between its first and second micro-batch. */
static void check_steps(const char *figure, const char *data_dir)
{
    struct steps s;
    steps_open(figure, data_dir, &s);
    int eval_iters = (int)lks_test_number(s.m.figure, "config.eval_iters");
    int last = json_object_get(s.m.figure, "grad3") != NULL ? 3 : 0;
    assert_non_null(lks__batch_sampler_eval(s.sampler, 0, eval_iters));
    for (int step = 0; step <= last; step++) {
        const char *section = lks_test_text("grad%d", step);
        if (step > 0)
            update(&s, step - 1);
        run_step(&s, step);
        if (step == 0 || json_object_get(s.m.figure, section) != NULL)
            parity_hold_gradients(&s.m, section, s.grads);
    }
    steps_close(&s);
}

TEST(test_generated)
{
    const char *dir = lks_test_folder();
    lks_test_generated_tokens(dir);
    check_steps("generated/nanogpt.json", dir);
    check_steps("generated/nanogpt_bias_accum.json", dir);
    check_steps("generated/nanogpt_odd.json", dir);
    check_steps("generated/nanogpt_ddp2.json", dir);
    check_steps("generated/nanogpt_dropout.json", dir);
    check_steps("generated/nanogpt_frozen.json", dir);
}

/* Realistic shapes: width 384 with 3,072 rows, and a vocabulary of 50,304. At level ref they would
 * take long; kernels_matmul and model_head test their products and chunks there. */
TEST(test_shapes)
{
    if (parity_ex.k->level == LKS__CPU_PLAIN)
        return;
    const char *dir = lks_test_folder();
    lks_test_generated_vocabulary(dir, 50304);
    check_steps("generated/nanogpt_vocab.json", dir);
    dir = lks_test_folder();
    lks_test_generated_tokens(dir);
    check_steps("generated/nanogpt_wide.json", dir);
}

TEST(test_shakespeare)
{
    const char *text = lks_test_shared("data/tinyshakespeare/input.txt");
    const char *dir = lks_test_folder();
    lks_test_do("lockstep", "prep", "char", lks_test_text("--input=%s", text),
                lks_test_text("--out=%s", dir));
    check_steps("nanogpt_char.json", dir);
    check_steps("nanogpt_char_ddp2.json", dir);
}

/* ---- finite differences ------------------------------------------------------------------ */

/* Small and uneven: several row tasks, a last block of each kind, biases, dropout. */
static const lks__model_config small = {.ops = &lks__model_gpt2,
                                        .n_layer = 2,
                                        .n_head = 3,
                                        .n_embd = 24,
                                        .block_size = 17,
                                        .vocab_size = 29,
                                        .bias = true,
                                        .dropout = 0.2f};
enum { SMALL_B = 3, SMALL_ROWS = SMALL_B * 17 };

struct small_model {
    lks__table table;
    lks__model *model;
    float *params, *grads;
    int32_t tokens[SMALL_ROWS], targets[SMALL_ROWS];
};

static double small_loss(struct small_model *s, float *grads)
{
    lks__micro_batch mb = {s->tokens, s->targets, SMALL_B, small.block_size};
    lks__backward bw = {.grads = grads, .seed = 7, .step = 3, .vm = 5, .done = parity_ignore_group};
    return parity_loss(s->model, s->params, &mb, &bw);
}

static double moved_loss(void *model)
{
    struct small_model *s = model;
    float *grads = parity_floats(s->table.count);
    double loss = small_loss(s, grads);
    free(grads);
    return loss;
}

/* Masks are keyed, so every point has the same ones. */
TEST(test_slopes)
{
    struct small_model s = {0};
    lks__mt g;
    lks__mt_seed(&g, 99);
    assert_ok(lks__model_table(&small, &s.table));
    assert_ok(lks__model_open(&small, &s.table, SMALL_B, &parity_device, &s.model));
    s.params = parity_floats(s.table.count);
    s.grads = parity_floats(s.table.count);
    for (size_t i = 0; i < s.table.n_tensors; i++) { /* large enough for slopes everywhere */
        const lks__table_tensor *t = &s.table.tensors[i];
        lks__mt_normal(&g, s.params + t->offset, t->count, t->init == LKS__INIT_ONE ? 1.0f : 0.0f,
                       0.2f);
    }
    for (int i = 0; i < SMALL_ROWS; i++) {
        s.tokens[i] = (int32_t)lks__mt_randint(&g, (uint64_t)small.vocab_size);
        s.targets[i] = (int32_t)lks__mt_randint(&g, (uint64_t)small.vocab_size);
    }
    small_loss(&s, s.grads);
    parity_hold_slopes("gpt2", &s.table, s.params, s.grads, 0.02, 0.2, moved_loss, &s);
    lks_test_free(s.params, s.grads);
    lks__model_close(s.model);
    lks__table_free(&s.table);
}

int main(int argc, char **argv)
{
    lks_test_choose(argc, argv, "test_shakespeare*");
    lks_test_need_level(NULL);
    return lks_test_run_all(parity_open_exec, parity_close_exec);
}
