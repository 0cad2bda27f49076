/* run/dryrun.c - prints what a run would need. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "data/meta.h"
#include "data/sampler.h"
#include "model/freeze.h"
#include "session/session.h"
#include "train/optimizer.h"
#include "train/procedure.h"
#include "train/state.h"

static double mb(double bytes)
{
    return bytes / 1e6;
}

static double bytes_of(size_t floats)
{
    return (double)floats * sizeof(float);
}

/* What the optimizer keeps. */
static double moment_bytes(const lks__settings *s, const lks__table *table)
{
    double bytes = LKS__OPTIM_STATES * bytes_of(table->trained_count);
    lks__settings chosen = *s;
    lks__train_choose_optimizer(&chosen);
    for (size_t i = 0; i < LKS__OPTIM_STATES * table->n_tensors; i++) {
        const lks__tensor *t = &table->tensors[i % table->n_tensors];
        const int state = (int)(i / table->n_tensors);
        if (!t->frozen && lks__optimizer_state(lks__train_optimizer(&chosen), t, state) == NULL)
            bytes -= bytes_of(t->count);
    }
    return bytes;
}

/* Open both splits, as the run would. */
static lks_status read_data(const lks__settings *s, const char *dir, uint32_t vocab,
                            uint64_t n_tokens[2])
{
    const uint64_t least = (uint64_t)s->block_size + 1;
    char shown[LKS__SETTING_STR];
    for (int split = 0; split < 2; split++) {
        lks__shards *data;
        LKS__TRY(lks__procedure_open_split(s, dir, split, vocab, &data));
        n_tokens[split] = data != NULL ? lks__shards_count(data) : 0;
        lks__shards_close(data);
        if (data != NULL && n_tokens[split] < least)
            return lks__fail(LKS_ERR_CONFIG,
                             "%s: the tokens for %s are %" PRIu64
                             ": too few for one window of block_size + 1 = %" PRIu64,
                             lks__escape(shown, sizeof shown, dir, strlen(dir)),
                             split == LKS__SPLIT_TRAIN ? "training" : "validation", n_tokens[split],
                             least);
    }
    return LKS_OK;
}

/* What a run takes; bytes of a rank, unless it says of all. */
struct needs {
    size_t n_params, n_tensors;
    int n_arenas, replicas; /* arenas of gradients; replicas of parameters and moments */
    double params, moments, gradients, staging, activations;
    double total; /* of all ranks */
};

static lks_status find_needs(const lks__settings *s, uint32_t vocab, int W, struct needs *needs)
{
    const lks__model_config config = lks__state_model_config(s, vocab);
    lks__table table;
    size_t activations;
    const lks__layers *layers;
    LKS__TRY(lks__session_layers(s->device, &layers));
    LKS__TRY(lks__model_table(&config, &table));
    lks_status st = lks__table_freeze(&table, s->freeze);
    if (st == LKS_OK)
        st = lks__model_activation_bytes(&config, (int)s->batch_size, layers, &activations);
    if (st == LKS_OK) {
        const lks__ddp_config ddp = lks__train_ddp_config(s);
        const int n = lks__ddp_arenas(ddp.V, W, ddp.A == 1);
        *needs = (struct needs){
            .n_params = table.n_params,
            .n_tensors = table.n_tensors,
            .n_arenas = n,
            .replicas = s->replicas == LKS__replicas_shared ? 1 : W,
            .params = bytes_of(table.count),
            .moments = moment_bytes(s, &table),
            .gradients = bytes_of(table.trained_count) * n,
            .staging = bytes_of(lks__ddp_staging_floats(&ddp, &table, W)),
            .activations = (double)activations,
        };
        needs->total = (needs->params + needs->moments) * needs->replicas;
        needs->total += (needs->gradients + needs->staging + needs->activations) * W;
    }
    lks__table_free(&table);
    return st;
}

lks_status lks__train_bytes(const lks__settings *s, int W, double *bytes_p)
{
    struct needs needs;
    const uint32_t vocab =
        s->vocab_size != 0 ? (uint32_t)s->vocab_size : lks__procedure_of(s)->vocab_size;
    LKS__TRY(find_needs(s, vocab, W, &needs));
    *bytes_p = needs.total;
    return LKS_OK;
}

static lks_status print_frozen(const lks__settings *s, uint32_t vocab)
{
    const lks__model_config config = lks__state_model_config(s, vocab);
    lks__table table;
    char text[LKS__FROZEN_TEXT];
    LKS__TRY(lks__model_table(&config, &table));
    lks_status st = lks__table_freeze(&table, s->freeze);
    if (st == LKS_OK && table.trained_params < table.n_params)
        printf("trained:           %zu parameters\n", table.trained_params);
    for (size_t next = 0; st == LKS_OK && lks__frozen_next(&table, &next, text);)
        printf("frozen:            %s\n", text);
    lks__table_free(&table);
    return st;
}

lks_status lks__train_dry_run(const lks__settings *s, int W)
{
    char dir[LKS__SETTING_STR + 8], shown[LKS__SETTING_STR];
    uint64_t n_tokens[2];
    lks__meta meta = {0};
    bool found;
    struct needs needs;
    LKS__TRY(lks__settings_data_dir(s, dir));
    const bool began = lks__settings_init(s) == LKS__INIT_WEIGHTS;
    LKS__TRY(lks__procedure_meta(s, dir, began, &found, &meta));
    const uint32_t vocab = began ? (uint32_t)s->vocab_size : meta.vocab_size;
    lks__meta_free(&meta);
    LKS__TRY(read_data(s, dir, vocab, n_tokens));
    LKS__TRY(find_needs(s, vocab, W, &needs));
    const int64_t N = s->gradient_accumulation_steps;
    const int V = lks__train_ddp_config(s).V;
    printf("data:              %s: %" PRIu64 " tokens for training, %" PRIu64 " for validation\n",
           lks__escape(shown, sizeof shown, dir, strlen(dir)), n_tokens[0], n_tokens[1]);
    printf("parameters:        %zu in %zu tensors, vocabulary %" PRIu32 "\n", needs.n_params,
           needs.n_tensors, vocab);
    LKS__TRY(print_frozen(s, vocab));
    printf("step:              %" PRId64 " micro-batch%s of %" PRId64 " x %" PRId64
           " tokens on %d virtual rank%s\n",
           N, N == 1 ? "" : "es", s->batch_size, s->block_size, V, V == 1 ? "" : "s");
    printf("parameters:        %.1f MB, and %.1f MB of moments; %s\n", mb(needs.params),
           mb(needs.moments), needs.replicas == 1 ? "once for all ranks" : "for each rank");
    printf("gradients:         %.1f MB in %d arena%s, for each rank\n", mb(needs.gradients),
           needs.n_arenas, needs.n_arenas == 1 ? "" : "s");
    if (needs.staging > 0.0)
        printf("staging buffer:    %.1f MB, for each rank\n", mb(needs.staging));
    printf("activations:       %.1f MB, for each rank\n", mb(needs.activations));
    printf("total on %d rank%s: %.1f MB\n", W, W == 1 ? "" : "s", mb(needs.total));
    return LKS_OK;
}
