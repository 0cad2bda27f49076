/* run/dryrun.c - prints what a run would need. */
#include <inttypes.h>
#include <stdio.h>

#include "data/meta.h"
#include "train/optimizer.h"
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
    double bytes = LKS__OPTIM_STATES * bytes_of(table->count);
    lks__settings chosen = *s;
    lks__train_choose_optimizer(&chosen);
    for (size_t i = 0; i < LKS__OPTIM_STATES * table->n_tensors; i++) {
        const lks__tensor *t = &table->tensors[i % table->n_tensors];
        const int state = (int)(i / table->n_tensors);
        if (lks__optimizer_state(lks__train_optimizer(&chosen), t, state) == NULL)
            bytes -= bytes_of(t->count);
    }
    return bytes;
}

lks_status lks__train_dry_run(const lks__settings *s, int W)
{
    char dir[LKS__SETTING_STR + 8];
    lks__meta meta = {0};
    bool found = false;
    LKS__TRY(lks__settings_data_dir(s, dir));
    LKS__TRY(lks__meta_load(dir, &found, &meta));
    uint32_t vocab = found ? meta.vocab_size : s->vocab_size != 0 ? (uint32_t)s->vocab_size : 50304;
    lks__meta_free(&meta);
    lks__model_config config = lks__state_model_config(s, vocab);
    lks__table table;
    size_t activations;
    LKS__TRY(lks__model_table(&config, &table));
    lks_status st =
        lks__model_activation_bytes(&config, (int)s->batch_size, &lks__layers_cpu, &activations);
    if (st == LKS_OK) {
        const lks__ddp_config ddp = lks__train_ddp_config(s);
        double arena = bytes_of(table.count), moments = moment_bytes(s, &table);
        int n = lks__ddp_arenas(ddp.V, W, ddp.A == 1);
        double staging = bytes_of(lks__ddp_staging_floats(&ddp, &table, W));
        int replicas = s->replicas == LKS__replicas_shared ? 1 : W;
        double total = (arena + moments) * replicas;
        total += (arena * n + staging + (double)activations) * W;
        printf("parameters:        %zu in %zu tensors, vocabulary %" PRIu32 "\n", table.n_params,
               table.n_tensors, vocab);
        printf("step:              %" PRId64 " micro-batch%s of %" PRId64 " x %" PRId64
               " tokens on %d virtual rank%s\n",
               s->gradient_accumulation_steps, s->gradient_accumulation_steps == 1 ? "" : "es",
               s->batch_size, s->block_size, ddp.V, ddp.V == 1 ? "" : "s");
        printf("parameters:        %.1f MB, and %.1f MB of moments; %s\n", mb(arena), mb(moments),
               replicas == 1 ? "once for all ranks" : "for each rank");
        printf("gradients:         %.1f MB in %d arena%s, for each rank\n", mb(arena * n), n,
               n == 1 ? "" : "s");
        if (staging > 0.0)
            printf("staging buffer:    %.1f MB, for each rank\n", mb(staging));
        printf("activations:       %.1f MB, for each rank\n", mb((double)activations));
        printf("total on %d rank%s: %.1f MB\n", W, W == 1 ? "" : "s", mb(total));
    }
    lks__table_free(&table);
    return st;
}
