#include "poison.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "files/checkpoint/ckpt.h"

enum { POISON = 63, N_TOKENS = 6000 };

/* Start of the span of micro-batch m of virtual rank v in a step (data/read/stream.h). */
static int start_of(int step, int v, int m)
{
    return ((step * POISON_A + m) * POISON_V + v) * (POISON_T + 1);
}

void poison_write_data(const char *dir)
{
    static uint16_t ids[N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++)
        ids[i] = (uint16_t)(i * i % 59 + i % 4);
    lks_test_write_shard(lks_test_text("%s/fineweb_val_000000.bin", dir), ids, 200);
    ids[start_of(5, 2, 1) + 3] = POISON;
    ids[start_of(6, 0, 0) + 8] = POISON;
    ids[start_of(6, 3, 1) + 8] = POISON;
    lks_test_write_shard(lks_test_text("%s/fineweb_train_000000.bin", dir), ids, N_TOKENS);
}

const char *poison_data(void)
{
    static const char *dir;
    if (dir == NULL) {
        dir = lks_test_folder();
        poison_write_data(dir);
    }
    return dir;
}

law_args poison_train(const char *out, int W)
{
    law_args args = law_begin(poison_data(), out);
    law_add_line(&args,
                 "--family=golf --sampler=stream --vocab_size=%d --n_layer=2 --n_head=2 "
                 "--num_kv_heads=1 --n_embd=16 --block_size=%d --tie_embeddings=false "
                 "--train_batch_tokens=%d --gradient_accumulation_steps=%d "
                 "--virtual_ranks=%d --val_batch_size=256 --max_wallclock_seconds=0 "
                 "--eval_interval=0 --checkpoint_interval=2 --keep=0 --threads=1 "
                 "--allow_uneven",
                 POISON_VOCAB, POISON_T, POISON_V * POISON_A * POISON_T, POISON_V * POISON_A,
                 POISON_V);
    if (W > 0)
        law_add(&args, "--nproc_per_node=%d", W);
    return args;
}

/* --- altered checkpoints ---------------------------------------------------------------------- */

/* Load every tensor of a file. */
static lks__st_tensor *load(lks__st_file *file, size_t *n_p)
{
    size_t n = lks__st_count(file);
    lks__st_tensor *tensors = lks_test_calloc(n, sizeof *tensors);
    for (size_t i = 0; i < n; i++) {
        const lks__st_tensor *t = lks__st_get(file, i);
        void *bytes = lks_test_malloc(t->bytes + 1);
        assert_ok(lks__st_read(file, t, bytes));
        tensors[i] = *t;
        tensors[i].data = bytes;
    }
    *n_p = n;
    return tensors;
}

static void release(lks__st_tensor *tensors, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free((void *)(uintptr_t)tensors[i].data);
    free(tensors);
}

enum { NEWEST = -1 };

/* Open a checkpoint, apply `change`, if any, and set a member of state.json, unless that is NULL;
 * then write it again with new hashes. */
static void alter(const char *out, int64_t iter, enum poison_part part, poison_change *change,
                  const char *member, json_t *value, const char *fingerprint)
{
    lks__ckpt ckpt;
    if (iter == NEWEST)
        assert_ok(lks__ckpt_open(out, LKS__CKPT_ALL, &ckpt));
    else
        assert_ok(lks__ckpt_open_iter(out, (uint64_t)iter, LKS__CKPT_ALL, &ckpt));
    lks__ckpt_content content = {
        .iter = ckpt.iter, .fingerprint = fingerprint, .state = ckpt.state};
    if (fingerprint == NULL)
        content.fingerprint = lks__st_metadata(ckpt.model, "kernels");
    lks__st_tensor *model = load(ckpt.model, &content.n_model);
    lks__st_tensor *optimizer = load(ckpt.optimizer, &content.n_optimizer);
    content.model = model;
    content.optimizer = optimizer;
    lks__st_tensor *of = part == POISON_MODEL ? model : optimizer;
    size_t n = part == POISON_MODEL ? content.n_model : content.n_optimizer;
    for (size_t i = 0; i < n && change != NULL; i++)
        change(of[i].name, (float *)(uintptr_t)of[i].data, of[i].bytes / sizeof(float),
               of[i].n_dims == 2 ? of[i].shape[1] : 1);
    if (member != NULL)
        assert_int_equal(json_object_set_new(ckpt.state, member, value), 0);
    char name[32], hash[17];
    assert_ok(lks__ckpt_save(out, &content, 0, name, hash));
    release(model, content.n_model);
    release(optimizer, content.n_optimizer);
    lks__ckpt_close(&ckpt);
}

void poison_alter(const char *out, enum poison_part part, poison_change *change)
{
    alter(out, NEWEST, part, change, NULL, NULL, NULL);
}

void poison_alter_at(const char *out, uint64_t iter, enum poison_part part, poison_change *change)
{
    alter(out, (int64_t)iter, part, change, NULL, NULL, NULL);
}

static void spoil_embedding(const char *name, float *x, size_t n, size_t width)
{
    if (strcmp(name, "tok_emb.weight") == 0)
        x[POISON * width] = NAN;
}

void poison_embedding(const char *out)
{
    poison_alter(out, POISON_MODEL, spoil_embedding);
}

static void change_last(const char *name, float *x, size_t n, size_t width)
{
    if (strncmp(name, "blocks.1.mlp.proj.weight", 24) == 0)
        x[n - 1] += 0.5f;
}

void poison_weight(const char *out)
{
    poison_alter(out, POISON_MODEL, change_last);
}

void poison_moment(const char *out)
{
    poison_alter(out, POISON_OPTIMIZER, change_last);
}

void poison_state(const char *out, const char *member, json_t *value)
{
    alter(out, NEWEST, POISON_MODEL, NULL, member, value, NULL);
}

void poison_value(const char *out)
{
    poison_state(out, "best_val_loss", json_real(0.125));
}

void poison_fingerprint(const char *out)
{
    alter(out, NEWEST, POISON_MODEL, NULL, NULL, NULL, "0123456789abcdef");
}
