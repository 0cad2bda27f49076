/* train/dryrun.c - what a run would need. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "data/meta.h"
#include "train/state.h"

static double mb(double bytes)
{
    return bytes / 1e6;
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
    lks_status st = lks__model_activation_bytes(&config, (int)s->batch_size, &activations);
    if (st == LKS_OK) {
        double arena = (double)table.count * sizeof(float);
        int V = (int)s->virtual_ranks;
        int n = lks__ddp_arenas(V, W, s->gradient_accumulation_steps == V);
        int replicas = strcmp(s->replicas, "shared") == 0 ? 1 : W;
        double total = arena * 3 * replicas + (arena * n + (double)activations) * W;
        printf("parameters:        %zu in %zu tensors, vocabulary %" PRIu32 "\n", table.n_params,
               table.n_tensors, vocab);
        printf("step:              %" PRId64 " micro-batches of %" PRId64 " x %" PRId64
               " tokens on %d virtual ranks\n",
               s->gradient_accumulation_steps, s->batch_size, s->block_size, V);
        printf("parameters:        %.1f MB, and %.1f MB of moments; %s\n", mb(arena), mb(2 * arena),
               replicas == 1 ? "once for all ranks" : "for each rank");
        printf("gradients:         %.1f MB in %d arenas, for each rank\n", mb(arena * n), n);
        printf("activations:       %.1f MB, for each rank\n", mb((double)activations));
        printf("total on %d rank%s: %.1f MB\n", W, W == 1 ? "" : "s", mb(total));
    }
    lks__table_free(&table);
    return st;
}
