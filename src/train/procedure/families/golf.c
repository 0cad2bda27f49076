/* train/procedure/families/golf.c - parameter-golf's model, trained as its train_gpt.py does. */
#include <inttypes.h>
#include <string.h>

#include "model/model.h"
#include "train/procedure/families/families.h"
#include "train/procedure/procedure.h"

/* Names of the script that differ here, and names of common settings. All other golf settings have
 * the script's names. */
static const lks__setting_alias names[] = {
    {"data_path", "dataset"},
    {"num_layers", "n_layer"},
    {"num_heads", "n_head"},
    {"model_dim", "n_embd"},
    {"train_max_seq_len", "block_size"}, /* the MLX script's; train_seq_len wins */
    {"train_seq_len", "block_size"},
    {"grad_accum_steps", "gradient_accumulation_steps"}, /* the MLX script's */
    {"val_loss_every", "eval_interval"},
    {"train_log_every", "log_interval"},
    {"grad_clip_norm", "grad_clip"},
    {"vocab_size", "vocab_size"},
    {"seed", "seed"},
    {"beta1", "beta1"},
    {"beta2", "beta2"},
    {"min_lr", "min_lr"}, /* of records, as is the next one */
    {"muon_wd", "muon_weight_decay"},
    {"out_dir", "out_dir"}, /* the MLX script's */
    {NULL, NULL},
};

static const lks__setting_alias unused[] = {
    {"max_iters", "iterations"},
    {"learning_rate", "matrix_lr, --scalar_lr and --tied_embed_lr"},
    {"lr_decay_iters", "warmdown_iters"},
    {"batch_size", "train_batch_tokens"},
    {"warmup_iters", ""},
    {"decay_lr", ""},
    {"eval_iters", ""},
    {"dropout", ""},
    {"bias", ""},
    {"gelu", ""},
    {NULL, NULL},
};

static const char *const files[] = {"data_path", "tokenizer_path", NULL};

/* The script's defaults where the table has other ones; and the level of recomputation that is
 * fastest on a CPU. */
static const lks__setting_preset presets[] = {
    {"dataset", "./data/datasets/fineweb10B_sp1024"},
    {"sampler", "stream"},
    {"gradient_accumulation_steps", "8"}, /* 8 // world_size on each rank */
    {"n_layer", "9"},
    {"n_head", "8"},
    {"n_embd", "512"},
    {"block_size", "1024"},
    {"eval_interval", "1000"},
    {"log_interval", "200"},
    {"grad_clip", "0"},
    {"min_lr", "0"},
    {"recompute", "rows"},
    {NULL, NULL},
};

static void config(const lks__settings *s, lks__model_config *c)
{
    c->n_kv_head = (int)s->num_kv_heads;
    c->mlp_mult = (int)s->mlp_mult;
    c->tie_embeddings = s->tie_embeddings;
    c->tied_embed_init_std = (float)s->tied_embed_init_std;
    c->logit_softcap = (float)s->logit_softcap;
    c->rope_base = (float)s->rope_base;
    c->qk_gain_init = (float)s->qk_gain_init;
    c->scalar_parts = s->control_tensor_name_patterns;
    c->float_parts = strcmp(s->int8_keep_float_fp32_name_patterns, LKS__GOLF_AS_CONTROL) == 0
                         ? s->control_tensor_name_patterns
                         : s->int8_keep_float_fp32_name_patterns;
}

/* batch_size follows from train_batch_tokens. */
static lks_status complete(lks__settings *s)
{
    int64_t N = s->gradient_accumulation_steps, T = s->block_size;
    int64_t local = s->train_batch_tokens / N; /* truncated, as in the script */
    if (local < T || local % T != 0)
        return lks__fail(LKS_ERR_CONFIG,
                         "train_batch_tokens=%" PRId64 " over %" PRId64 " micro-batches is %" PRId64
                         " tokens each, no multiple of train_seq_len=%" PRId64
                         ": make it a multiple of %" PRId64,
                         s->train_batch_tokens, N, local, T, N * T);
    if (local / T > 65536)
        return lks__fail(LKS_ERR_CONFIG,
                         "train_batch_tokens=%" PRId64 " makes micro-batches of %" PRId64
                         " sequences; 65536 are the most",
                         s->train_batch_tokens, local / T);
    s->batch_size = local / T;
    if (s->val_batch_size / s->virtual_ranks < T)
        return lks__fail(LKS_ERR_CONFIG,
                         "val_batch_size=%" PRId64 " over %" PRId64
                         " virtual ranks is less than one sequence of train_seq_len=%" PRId64,
                         s->val_batch_size, s->virtual_ranks, T);
    if (s->min_lr > 1.0)
        return lks__fail(LKS_ERR_CONFIG,
                         "min_lr=%g: in a golf run it is a share of the rates, at most 1",
                         s->min_lr);
    if (s->eval_stride > T)
        return lks__fail(LKS_ERR_CONFIG,
                         "eval_stride=%" PRId64 " is more than a window of train_seq_len=%" PRId64
                         " tokens: tokens between windows would not count",
                         s->eval_stride, T);
    if (s->sampler != LKS__sampler_stream)
        return lks__fail(
            LKS_ERR_CONFIG,
            "the golf family reads its shards with sampler=stream: give --sampler=stream, or "
            "take config/golf_baseline.conf, which has it");
    return lks__family_check_heads(s);
}

static void prepare_bench(lks__settings *s)
{
    s->sampler = LKS__sampler_stream;
    s->train_batch_tokens = s->gradient_accumulation_steps * s->batch_size * s->block_size;
    s->from[LKS__SETTING_batch_size] = LKS__FROM_DEFAULT; /* it follows from train_batch_tokens */
    s->max_wallclock_seconds = 0.0;
}

const lks__family lks__family_golf = {
    .name = "golf",
    .about = "parameter-golf's model",
    .model = &lks__model_golf,
    .procedure = &lks__procedure_golf,
    .optimizer = &lks__optimizer_muon,
    .config = config,
    .settings = LKS__SETTING_GOLF,
    .names = names,
    .files = files,
    .unused = unused,
    .presets = presets,
    .complete = complete,
    .prepare_bench = prepare_bench,
    .prep = "sentencepiece",
};
