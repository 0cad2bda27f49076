/* Runs a forward and backward of each family with each --recompute, to count its instructions
 * (recompute.sh). Each is a call in a function of its own, whose name identifies the count.
 *
 *     count_recompute LAYERS WIDTH HEADS TOKENS     on our own AVX2 kernels, one thread */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/checked.h"
#include "compute/cpu/device.h"
#include "model/model.h"

struct call {
    lks__model *model;
    const float *params;
    lks__micro_batch mb;
    lks__backward bw;
};

static void train(const struct call *c)
{
    float loss;
    lks__model_train(c->model, c->params, &c->mb, &c->bw, &loss);
}

#define COUNTED(name)                                                                              \
    __attribute__((noinline)) static void count_##name(const struct call *c)                       \
    {                                                                                              \
        train(c);                                                                                  \
        __asm__ volatile("");                                                                      \
    }
COUNTED(gpt2_none)
COUNTED(gpt2_rows)
COUNTED(gpt2_block)
COUNTED(golf_none)
COUNTED(golf_rows)
COUNTED(golf_block)

static void (*const counted[2][3])(const struct call *) = {
    {count_gpt2_none, count_gpt2_rows, count_gpt2_block},
    {count_golf_none, count_golf_rows, count_golf_block}};

static void ignore_group(void *ctx, int group)
{
}

static lks_status run(const lks__model_config *c, lks__device *device,
                      void (*count)(const struct call *))
{
    lks__table table;
    lks__mt g;
    struct call call = {.bw = {.seed = 1, .done = ignore_group}};
    LKS__TRY(lks__model_table(c, &table));
    LKS__TRY(lks__model_open(c, &table, 1, device, &call.model));
    const size_t bytes = lks__round_up(table.count * sizeof(float), 64), T = (size_t)c->block_size;
    float *params = aligned_alloc(64, bytes);
    int32_t *tokens = calloc(T, sizeof *tokens);
    call.bw.grads = aligned_alloc(64, bytes);
    if (params == NULL || call.bw.grads == NULL || tokens == NULL)
        return lks__fail(LKS_ERR_NOMEM, "no memory for a model");
    lks__mt_seed(&g, 1);
    lks__mt_uniform(&g, params, table.count, -0.05f, 0.05f);
    memset(call.bw.grads, 0, bytes);
    call.params = params;
    call.mb = (lks__micro_batch){tokens, tokens, 1, c->block_size};
    count(&call);
    lks__model_close(call.model);
    free(params);
    free(call.bw.grads);
    free(tokens);
    lks__table_free(&table);
    return LKS_OK;
}

int main(int argc, char **argv)
{
    static lks__kernels kernels;
    lks__exec ex = {.k = &kernels};
    if (argc != 5)
        return EXIT_FAILURE;
    lks__model_config c = {.n_layer = atoi(argv[1]),
                           .n_embd = atoi(argv[2]),
                           .n_head = atoi(argv[3]),
                           .n_kv_head = atoi(argv[3]) / 2,
                           .block_size = atoi(argv[4]),
                           .mlp_mult = 2,
                           .dropout = 0.2f,
                           .tie_embeddings = true,
                           .tied_embed_init_std = 0.005f,
                           .logit_softcap = 30.0f,
                           .rope_base = 10000.0f,
                           .qk_gain_init = 1.5f};
    lks__kernels_open_own(LKS__CPU_AVX2, &kernels);
    lks_status st = lks__pool_open(1, LKS__EXEC_SCRATCH_BYTES, lks__kernels_thread_init, &ex.pool);
    lks__device device = lks__device_cpu(&ex);
    for (int i = 0; st == LKS_OK && i < 6; i++) {
        c.ops = i / 3 == 0 ? &lks__model_gpt2 : &lks__model_golf;
        c.vocab_size = i / 3 == 0 ? 65 : 1024;
        c.recompute = (lks__recompute)(i % 3);
        st = run(&c, &device, counted[i / 3][i % 3]);
    }
    if (st != LKS_OK)
        fprintf(stderr, "%s\n", lks_last_error());
    return st == LKS_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
