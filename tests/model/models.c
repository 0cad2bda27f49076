#include "models.h"

#include <stdlib.h>

#include "compute/cpu/device.h"

static lks__kernels kernels;
static lks__exec ex = {.k = &kernels};
static lks__device device;

#define GOLF                                                                                       \
    .ops = &lks__model_golf, .n_layer = 3, .n_head = 4, .n_kv_head = 2, .n_embd = 24,              \
    .block_size = SMALL_T, .vocab_size = SMALL_VOCAB, .mlp_mult = 3, .tied_embed_init_std = 0.5f,  \
    .logit_softcap = 30.0f, .rope_base = 10000.0f, .qk_gain_init = 1.5f
#define GPT2                                                                                       \
    .ops = &lks__model_gpt2, .n_layer = 3, .n_head = 3, .n_embd = 24, .block_size = SMALL_T,       \
    .vocab_size = SMALL_VOCAB

const small_model small_models[N_SMALL_MODELS] = {
    {"gpt2", {GPT2}},
    {"gpt2 with biases and dropout", {GPT2, .bias = true, .dropout = 0.3f}},
    {"golf", {GOLF, .tie_embeddings = true}},
    {"golf, untied", {GOLF}},
};

int small_open_exec(void **state)
{
    (void)state;
    lks__cpu_level level;
    assert_ok(lks__cpu_level_get(&level));
    assert_ok(lks__kernels_open(level, &kernels));
    assert_ok(lks__pool_open(2, LKS__EXEC_SCRATCH_BYTES, lks__kernels_thread_init, &ex.pool));
    device = lks__device_cpu(&ex);
    return 0;
}

int small_close_exec(void **state)
{
    (void)state;
    lks__pool_close(ex.pool);
    return 0;
}

void small_open(const small_model *m, small_run *run)
{
    lks__mt g;
    lks__mt_seed(&g, 41);
    *run = (small_run){.config = m->config};
    assert_ok(lks__model_table(&run->config, &run->table));
    assert_ok(lks__model_open(&run->config, &run->table, SMALL_B, &device, &run->model));
    run->params = aligned_alloc(64, (run->table.count * sizeof(float) + 63) / 64 * 64);
    assert_non_null(run->params);
    for (size_t i = 0; i < run->table.count; i++)
        run->params[i] = 0.0f;
    for (size_t i = 0; i < run->table.n_tensors; i++) {
        const lks__table_tensor *t = &run->table.tensors[i];
        lks__mt_uniform(&g, run->params + t->offset, t->count, 0.1f, 0.4f);
        for (size_t e = 0; e < t->count; e++)
            run->params[t->offset + e] *= e % 3 == 1 ? -1.0f : 1.0f;
    }
    for (int i = 0; i < SMALL_B * SMALL_T; i++) {
        run->tokens[i] = (int32_t)lks__mt_randint(&g, SMALL_LAST);
        run->targets[i] = (int32_t)lks__mt_randint(&g, SMALL_VOCAB);
    }
    run->tokens[SMALL_B * SMALL_T - 1] = SMALL_LAST;
    run->mb = (lks__micro_batch){run->tokens, run->targets, SMALL_B, SMALL_T};
}

void small_close(small_run *run)
{
    free(run->params);
    lks__model_close(run->model);
    lks__table_free(&run->table);
}

void models_ignore_group(void *ctx, int group)
{
}

void models_logits(lks__model *m, const float *params, const int32_t *tokens, int T, float *logits)
{
    const lks__micro_batch mb = {tokens, NULL, 1, T};
    const lks__pass p = lks__pass_of(m, params, &mb, NULL);
    lks__model_forward(&p, NULL);
    lks__head_logits(m->layers, m->ex, &m->head, m->layers->linear_fwd, logits,
                     lks__act_at(m->y, (p.rows - 1) * m->C, m->act_bytes), params + m->head_w, 1,
                     m->V, m->C);
}
