/* Defaults as literal values: those of the scripts from which lockstep takes its settings, and its
 * own. They are repeated here so that a slip in the settings table is noticed. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "settings/family.h"
#include "settings/settings.h"
#include "settings/settings_table.h"

struct figure {
    const char *name, *value;
};

/* train.py of nanoGPT (karpathy/nanoGPT at 3adf61e), and sample.py for sampling. Its device, dtype
 * and backend are for GPUs. */
static const struct figure nanogpt[] = {
    {"out_dir", "out"},
    {"eval_interval", "2000"},
    {"log_interval", "1"},
    {"eval_iters", "200"},
    {"eval_only", "false"},
    {"always_save_checkpoint", "true"},
    {"init_from", "scratch"},
    {"dataset", "openwebtext"},
    {"gradient_accumulation_steps", "40"},
    {"batch_size", "12"},
    {"block_size", "1024"},
    {"n_layer", "12"},
    {"n_head", "12"},
    {"n_embd", "768"},
    {"dropout", "0.0"},
    {"bias", "false"},
    {"learning_rate", "6e-4"},
    {"max_iters", "600000"},
    {"weight_decay", "1e-1"},
    {"beta1", "0.9"},
    {"beta2", "0.95"},
    {"grad_clip", "1.0"},
    {"decay_lr", "true"},
    {"warmup_iters", "2000"},
    {"lr_decay_iters", "600000"},
    {"min_lr", "6e-5"},
    {"seed", "1337"},
    {"start", "\n"},
    {"num_samples", "10"},
    {"max_new_tokens", "500"},
    {"temperature", "0.8"},
    {"top_k", "200"},
};

/* train_gpt.py of parameter-golf (openai/parameter-golf at 4908dc4), class Hyperparameters, by its
 * names. Settings that only golf has are also the defaults without a recipe. */
static const struct figure golf[] = {
    {"data_path", "./data/datasets/fineweb10B_sp1024"},
    {"tokenizer_path", "./data/tokenizers/fineweb_1024_bpe.model"},
    {"seed", "1337"},
    {"val_batch_size", "524288"},
    {"val_loss_every", "1000"},
    {"train_log_every", "200"},
    {"iterations", "20000"},
    {"warmdown_iters", "1200"},
    {"warmup_steps", "20"},
    {"train_batch_tokens", "524288"},
    {"train_seq_len", "1024"},
    {"max_wallclock_seconds", "600.0"},
    {"qk_gain_init", "1.5"},
    {"vocab_size", "1024"},
    {"num_layers", "9"},
    {"num_kv_heads", "4"},
    {"model_dim", "512"},
    {"num_heads", "8"},
    {"mlp_mult", "2"},
    {"tie_embeddings", "true"},
    {"rope_base", "10000.0"},
    {"logit_softcap", "30.0"},
    {"embed_lr", "0.6"},
    {"head_lr", "0.008"},
    {"tied_embed_lr", "0.05"},
    {"tied_embed_init_std", "0.005"},
    {"matrix_lr", "0.04"},
    {"scalar_lr", "0.04"},
    {"muon_momentum", "0.95"},
    {"muon_backend_steps", "5"},
    {"muon_momentum_warmup_start", "0.85"},
    {"muon_momentum_warmup_steps", "500"},
    {"beta1", "0.9"},
    {"beta2", "0.95"},
    {"adam_eps", "1e-8"},
    {"grad_clip_norm", "0.0"},
};

/* lockstep's own. */
static const struct figure ours[] = {
    {"input", ""},
    {"out", ""},
    {"checkpoint", ""},
    {"format", "golf"},
    {"code", ""},
    {"run_id", ""},
    /* the script's, outside its Hyperparameters */
    {"control_tensor_name_patterns",
     "attn_scale,attn_scales,mlp_scale,mlp_scales,resid_mix,resid_mixes,q_gain,skip_weight,"
     "skip_weights"},
    {"int8_keep_float_fp32_name_patterns", "control_tensor_name_patterns"}, /* those of it */
    {"val_fraction", "0.1"},
    {"special", "false"},
    {"muon_weight_decay", "0"},
    {"eval_stride", "0"},
    {"shards", "0"},
    {"mirror", ""},
    {"num_val_docs", "0"},
    {"tokenizer_train_docs", "0"},
    {"field", "text"},
    {"tokenizer", ""},
    {"serve", ""},
    {"artifact", ""},
    {"machine", ""},
    {"split", "val"},
    {"stride", "0"},
    {"family", "gpt2"},
    {"vocab_size", "0"},
    {"gelu", "auto"},
    {"virtual_ranks", "0"},
    {"sampler", "random"},
    {"optimizer", "auto"},
    {"freeze", ""},
    {"drop_last", "false"},
    {"on_nan", "stop"},
    {"on_nan_limit", "10"},
    {"checkpoint_interval", "0"},
    {"checkpoint_minutes", "10"},
    {"keep", "3"},
    {"keep_every", "0"},
    {"lock", "on"},
    {"stop_signal", "none"},
    {"iters", "10"},
    {"trace", ""},
    {"tensorboard", "true"},
    {"sample_tokens", "0"},
    {"json", "false"},
    {"markdown", "false"},
    {"csv", "false"},
    {"metric", "val_loss"},
    {"margin", "0"},
    {"alpha", "0.05"},
    {"axis", "steps"},
    {"log_scale", "false"},
    {"port", "6007"},
    {"address", "127.0.0.1"},
    {"tty", "false"},
    {"prometheus", ""},
    {"exec_on", ""},
    {"exec_timeout", "60"},
    {"html", ""},
    {"dry_run", "false"},
    {"skip_fit_check", "false"},
    {"step", "0"},
    {"leaf", "0"},
    {"from_step", "0"},
    {"to_step", "0"},
    {"sample", "0"},
    {"draw", ""},
    {"seal", ""},
    {"trail", ""},
    {"execute", "100"},
    {"top_p", "1"},
    {"stop", ""},
    {"interactive", "false"},
    {"tokenizer_path", ""}, /* that of the data folder */
    {"nproc_per_node", "1"},
    {"nnodes", "1"},
    {"mtbf_hours", "0"},
    {"max_restarts", "0"},
    {"shutdown_timeout", "30"},
    {"threads", "0"},
    {"bind", "auto"},
    {"allow_uneven", "false"},
    {"backend", "auto"},
    {"zero", "0"},
    {"wire", "float32"},
    {"timeout", "60"},
    {"check_interval", "100"},
    {"recheck", "0"},
    {"replicas", "shared"},
    {"bucket_mb", "4"},
    {"recompute", "none"},
    {"memory", ""},
    {"device", "auto"},
    {"share_gpu", "false"},
    {"exchange", "auto"},
    {"dtype", "auto"},
};

#define FIGURES(table) (table), sizeof(table) / sizeof(table)[0]

static const struct figure *find(const struct figure *figures, size_t n, int setting)
{
    for (size_t i = 0; i < n; i++)
        if (lks__setting_find(figures[i].name) == setting)
            return &figures[i];
    return NULL;
}

/* Setting `i` of `s` has the literal value; numbers are compared as numbers. */
static void check(const lks__settings *s, int i, const struct figure *figure)
{
    char text[LKS__SETTING_STR], *end;
    lks__settings_text(s, i, text);
    double want = strtod(figure->value, &end);
    bool number = end != figure->value && *end == '\0';
    if (number ? strtod(text, NULL) != want : strcmp(text, figure->value) != 0)
        fail_msg("%s is %s, not %s", figure->name, text, figure->value);
}

TEST(test_every_default)
{
    lks__settings s;
    memset(&s, 0xa5, sizeof s);
    lks__settings_defaults(&s);
    for (int i = 0; i < LKS__N_SETTINGS; i++) {
        const struct figure *figure = find(FIGURES(ours), i);
        const bool is_golf = lks__setting_table[i].flags & LKS__SETTING_GOLF;
        if (figure == NULL && is_golf)
            figure = find(FIGURES(golf), i);
        if (figure == NULL && !is_golf)
            figure = find(FIGURES(nanogpt), i);
        if (figure == NULL)
            fail_msg("no figure for the default of %s: add one to %s", lks__setting_name(i),
                     is_golf ? "golf, or to ours" : "ours");
        check(&s, i, figure);
        assert_int_equal(s.from[i], LKS__FROM_DEFAULT);
    }
    for (size_t i = 0; i < sizeof nanogpt / sizeof nanogpt[0]; i++)
        assert_true(lks__setting_find(nanogpt[i].name) >= 0);
}

static void parse(lks__settings *s, const char *arg)
{
    lks__args args;
    lks__settings_defaults(s);
    assert_ok(lks__settings_parse(s, LKS__CMD_TRAIN, 1, (char *const[]){(char *)(uintptr_t)arg}, 0,
                                  &args));
    assert_int_equal(args.n_notes, 0);
}

TEST(test_recipes)
{
    lks__settings s;
    parse(&s, LKS_TEST_SOURCE_DIR "/config/golf_baseline.conf");
    assert_string_equal(lks__family_of(&s)->name, "golf");
    assert_int_equal(s.sampler, LKS__sampler_stream);
    assert_int_equal(s.gradient_accumulation_steps, 8); /* 8 // world_size on one rank */
    for (size_t i = 0; i < sizeof golf / sizeof golf[0]; i++) {
        int setting = lks__setting_find(golf[i].name);
        assert_true(setting >= 0);
        check(&s, setting, &golf[i]);
        assert_int_equal(s.from[setting], LKS__FROM_FILE);
    }
    assert_ok(lks__settings_complete(&s, 1));
    assert_int_equal(s.batch_size, 524288 / 8 / 1024);
    assert_int_equal(s.virtual_ranks, 8);
    s.sampler = LKS__sampler_nanogpt;
    assert_fails(LKS_ERR_CONFIG, lks__settings_complete(&s, 1), "--sampler=stream",
                 "golf_baseline");

    /* The family alone, without the recipe: the vocabulary and the tokenizer are the data's. */
    parse(&s, "--family=golf");
    assert_int_equal(s.sampler, LKS__sampler_stream);
    assert_int_equal(s.gradient_accumulation_steps, 8);
    assert_int_equal(s.recompute, LKS__recompute_rows);
    for (size_t i = 0; i < sizeof golf / sizeof golf[0]; i++)
        if (strcmp(golf[i].name, "vocab_size") != 0 && strcmp(golf[i].name, "tokenizer_path") != 0)
            check(&s, lks__setting_find(golf[i].name), &golf[i]);

    /* The recipe with nanoGPT's name: train.py's own, except how often it reports. */
    parse(&s, LKS_TEST_SOURCE_DIR "/config/train_gpt2.conf");
    for (size_t i = 0; i < sizeof nanogpt / sizeof nanogpt[0]; i++)
        if (strcmp(nanogpt[i].name, "eval_interval") != 0 &&
            strcmp(nanogpt[i].name, "log_interval") != 0)
            check(&s, lks__setting_find(nanogpt[i].name), &nanogpt[i]);
    assert_int_equal(s.eval_interval, 1000);
    assert_int_equal(s.log_interval, 10);
    assert_ok(lks__settings_complete(&s, 1));
    assert_int_equal(s.gelu, LKS__gelu_exact); /* a run records its form, not "auto" */
}
