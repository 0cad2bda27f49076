/* nanoGPT's ckpt.pt and parameter-golf's files: read, continued, written, and refused. The figure
 * is made by nanogpt_record.py. */
#include "forge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "files/pickle/torch/torchfile.h"
#include "files/pickle/torch/torchsave.h"
#include "laws.h"
#include "model/table/freeze.h"
#include "train/setup/continue.h"
#include "weights/forms/nanogpt.h"
#include "weights/forms/saved.h"

/* ---- a run that goes on elsewhere -------------------------------------------------------- */

static lks_test_result train(const char *dataset, const char *out, const char *const *more)
{
    const char *argv[32] = {"lockstep",
                            "train",
                            lks_test_text("--dataset=%s", dataset),
                            lks_test_text("--out_dir=%s", out),
                            "--batch_size=4",
                            "--gradient_accumulation_steps=2",
                            "--learning_rate=1e-2",
                            "--min_lr=1e-3",
                            "--warmup_iters=3",
                            "--lr_decay_iters=20",
                            "--log_interval=1",
                            "--threads=1"};
    size_t n = 12;
    while (*more)
        argv[n++] = *more++;
    return lks_test_run(argv, NULL, 120);
}

#define TRAIN(dataset, out, ...) train(dataset, out, (const char *const[]){__VA_ARGS__, NULL})

static void assert_trained(lks_test_result r)
{
    assert_exits(0, r);
}

static const char *generated_data(void)
{
    const char *folder = lks_test_folder();
    lks_test_generated_tokens(folder);
    static const char meta[] = "{\"kind\":\"ids\",\"vocab_size\":65}";
    lks_test_write(lks_test_text("%s/meta.json", folder), meta, sizeof meta - 1);
    return folder;
}

static const char *nanogpts_folder(void)
{
    const char *out = lks_test_text("%s/named.pt", lks_test_folder()); /* as a file */
    assert_int_equal(mkdir(out, 0777), 0);
    lks_test_do("cp", lks_test_text("%s/tests/figures/nanogpt_ckpt.pt", LKS_TEST_SOURCE_DIR),
                lks_test_text("%s/ckpt.pt", out));
    return out;
}

/* As sample.py does, the characters are those of data/DATASET here, whose name the file has. */
TEST(test_characters)
{
    const char *out = nanogpts_folder(), *here = lks_test_folder();
    const char *command = lks_test_text("cd '%s' && exec '%s' sample --init_from='%s' --start=AB "
                                        "--num_samples=1 --max_new_tokens=20",
                                        here, lks_test_program(), out);
    const char *const argv[] = {"sh", "-c", command, NULL};
    char meta[200] = "{\"kind\":\"char\",\"vocab_size\":65,\"chars\":\"";
    assert_exits(1, lks_test_run(argv, NULL, 60), "the model comes without a tokenizer");
    for (int c = '0'; c < '0' + 65; c++)
        sprintf(meta + strlen(meta), c == '\\' ? "\\%c" : "%c", c);
    strcat(meta, "\"}");
    assert_int_equal(mkdir(lks_test_text("%s/data", here), 0755), 0);
    assert_int_equal(mkdir(lks_test_text("%s/data/generated", here), 0755), 0);
    lks_test_write(lks_test_text("%s/data/generated/meta.json", here), meta, strlen(meta));
    lks_test_result r = assert_exits(0, lks_test_run(argv, NULL, 60),
                                     "nanoGPT's ckpt.pt, with the tokens of data/generated\n");
    assert_memory_equal(r.out, "AB", 2);
    /* a folder of that name with other tokens is another data set */
    static const char other[] = "{\"kind\":\"char\",\"vocab_size\":2,\"chars\":\"AB\"}";
    lks_test_write(lks_test_text("%s/data/generated/meta.json", here), other, sizeof other - 1);
    assert_exits(1, lks_test_run(argv, NULL, 60), "the model comes without a tokenizer");
}

/* Losses as those of nanoGPT's run that stayed at home, on the same batches. */
TEST(test_continued)
{
    const json_t *figure = lks_test_figure("nanogpt_ckpt.json");
    const char *out = nanogpts_folder();
    lks_test_result r =
        TRAIN(generated_data(), out, "--init_from=resume", "--sampler=nanogpt", "--max_iters=13",
              "--virtual_ranks=1", "--eval_interval=6", "--eval_iters=2");
    assert_trained(r);
    assert_contains(r.out, "ckpt.pt of nanoGPT at iteration 6");
    assert_null(strstr(r.err, "metrics.jsonl")); /* no record of it is missed */
    const json_t *losses = json_object_get(figure, "losses");
    const json_t *lines = lks_test_record(out, "train");
    assert_int_equal(json_array_size(lines), json_array_size(losses));
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *line = json_array_get(lines, i);
        assert_int_equal(json_integer_value(json_object_get(line, "iter")), 6 + i);
        assert_near(json_number_value(json_object_get(line, "loss")),
                    json_number_value(json_array_get(losses, i)), 1e-5);
    }
    const json_t *evals = lks_test_record(out, "eval");
    assert_int_equal(json_array_size(evals), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *theirs =
            json_object_get(json_object_get(figure, "evals"), i == 0 ? "6" : "12");
        assert_near(json_number_value(json_object_get(json_array_get(evals, i), "val_loss")),
                    json_number_value(json_object_get(theirs, "val")), 1e-5);
    }
    /* what the optimizer's state brings along */
    const json_t *config = json_array_get(lks_test_record(out, "config"), 0);
    assert_near(lks_test_number(config, "beta1"), 0.8, 0);
    assert_near(lks_test_number(config, "weight_decay"), 0.2, 0);
    assert_int_equal(lks_test_number(config, "n_embd"), 16);
    /* and its best loss, until an evaluation is lower */
    out = nanogpts_folder();
    assert_trained(TRAIN(generated_data(), out, "--init_from=resume", "--max_iters=6",
                         "--virtual_ranks=1", "--eval_interval=0"));
    lks__weights *w;
    lks__nanogpt_run theirs;
    assert_ok(lks__weights_open(lks_test_text("%s/ckpt.pt", out), NULL, &w));
    assert_ok(lks__nanogpt_run_of(w, &theirs));
    lks__weights_close(w);
    const json_t *saved = lks_test_figure(lks_test_text("%s/latest/state.json", out));
    assert_near(lks_test_number(saved, "best_val_loss"), theirs.best_val_loss, 0);
}

/* `lockstep resume` keeps the settings of nanoGPT's run, except those that are given. */
TEST(test_settings_kept)
{
    const char *out = nanogpts_folder();
    const char *file = lks_test_text("%s/mine.conf", lks_test_folder());
    assert_contains(lks_test_tool("info", out).err,
                    "only a ckpt.pt as nanoGPT writes it: `lockstep resume` continues its run");
    lks_test_write_text(file, "dropout = 0.1\n");
    /* A resume that died in its first save has left this. */
    assert_int_equal(mkdir(lks_test_text("%s/ckpt-00000008.tmp", out), 0777), 0);
    lks__weights *w;
    assert_ok(lks__weights_open(out, NULL, &w));
    lks__weights_close(w);
    const char *const argv[] = {
        "lockstep",      "resume", out,           lks_test_text("--dataset=%s", generated_data()),
        "--max_iters=7", file,     "--threads=1", NULL};
    assert_trained(lks_test_run(argv, NULL, 120));
    const json_t *config = json_array_get(lks_test_record(out, "config"), 0);
    static const struct {
        const char *name;
        double value;
    } want[] = {{"batch_size", 4},       {"gradient_accumulation_steps", 2},
                {"learning_rate", 1e-2}, {"min_lr", 1e-3},
                {"warmup_iters", 3},     {"lr_decay_iters", 20},
                {"grad_clip", 1},        {"eval_interval", 6},
                {"eval_iters", 2},       {"log_interval", 1},
                {"max_iters", 7},        {"dropout", 0.1}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        assert_near(lks_test_number(config, want[i].name), want[i].value, 0);
}

/* nanoGPT has trained on in a folder with a checkpoint of lockstep: its steps aren't ignored
 * without a word. */
TEST(test_later_file)
{
    const char *data = generated_data(), *out = nanogpts_folder();
    assert_trained(TRAIN(data, out, "--init_from=scratch", "--n_layer=1", "--n_head=1",
                         "--n_embd=8", "--block_size=8", "--max_iters=4", "--eval_interval=0"));
    assert_false(lks__continue_can(out));
    lks_test_result r = TRAIN(data, out, "--init_from=resume", "--max_iters=5");
    assert_trained(r);
    assert_contains(r.out, "at iteration 5");
    assert_contains(r.err, "ckpt.pt of nanoGPT is at iteration 6 and isn't read");
    r = TRAIN(data, out, "--init_from=resume", "--max_iters=6"); /* no longer later */
    assert_trained(r);
    assert_null(strstr(r.err, "ckpt.pt"));
}

/* ---- there and back ---------------------------------------------------------------------- */

static const char *exported(const char *run, const char *name, const char *format, const char *more)
{
    const char *file = lks_test_text("%s/%s", lks_test_folder(), name);
    assert_exits(0, lks_test_tool("export", lks_test_text("--format=%s", format),
                                  lks_test_text("--out_dir=%s", run),
                                  lks_test_text("--out=%s", file), more ? more : "--which=latest"));
    return file;
}

static double number_in(const lks__pickle_value *dict, const char *key)
{
    const lks__pickle_value *v = lks__pickle_find(dict, key);
    assert_non_null(v);
    return lks__pickle_kind_of(v) == LKS__PICKLE_INT ? (double)lks__pickle_int(v)
                                                     : lks__pickle_float(v);
}

/* What nanoGPT's scripts look up in the file of `run`, which train() has made. */
static void check_content(const char *run)
{
    const json_t *saved = lks_test_figure(lks_test_text("%s/latest/state.json", run));
    lks__torchfile *f;
    assert_ok(lks__torchfile_open(exported(run, "ckpt.pt", "nanogpt", "--dataset=words"), &f));
    const lks__pickle_value *root = lks__torchfile_root(f);
    const lks__pickle_value *config = lks__pickle_find(root, "config");
    assert_true(number_in(root, "iter_num") == 6.0);
    assert_true(number_in(root, "best_val_loss") == lks_test_number(saved, "best_val_loss"));
    assert_true(number_in(config, "batch_size") == 4.0);
    assert_true(number_in(config, "gradient_accumulation_steps") == 2.0);
    assert_true(number_in(config, "learning_rate") == 1e-2);
    assert_true(number_in(config, "min_lr") == 1e-3);
    assert_true(number_in(config, "warmup_iters") == 3.0);
    assert_true(number_in(config, "lr_decay_iters") == 20.0);
    assert_true(number_in(config, "max_iters") == 5.0);
    assert_true(number_in(config, "eval_interval") == 4.0);
    assert_true(number_in(config, "eval_iters") == 1.0);
    assert_true(number_in(config, "block_size") == 16.0);
    assert_true(lks__pickle_is(lks__pickle_find(config, "dataset"), "words"));
    lks__torchfile_close(f);
}

/* What an exported run does there is what it does here: the same bytes, on any number of ranks. */
TEST(test_there_and_back)
{
    static const char *const shape[] = {
        "--n_layer=2",   "--n_head=2",        "--n_embd=16",        "--block_size=16",
        "--bias=true",   "--virtual_ranks=2", "--eval_interval=4",  "--eval_iters=1",
        "--max_iters=5", "--beta1=0.85",      "--weight_decay=0.3", "--grad_clip=0.1",
        "--dropout=0.1"};
    const char *data = generated_data(), *home = lks_test_folder(), *away = lks_test_folder();
    const char *more[16];
    size_t n = sizeof shape / sizeof *shape;
    memcpy(more, shape, sizeof shape);
    more[n] = NULL;
    assert_trained(train(data, home, more));
    const char *file = exported(home, "ckpt.pt", "nanogpt", NULL);
    assert_same_file(file, exported(home, "ckpt.pt", "nanogpt", NULL));
    check_content(home);
    lks_test_do("cp", file, lks_test_text("%s/ckpt.pt", away));
    assert_trained(TRAIN(data, home, "--init_from=resume", "--max_iters=11", "--nproc_per_node=1"));
    assert_trained(TRAIN(data, away, "--init_from=resume", "--max_iters=11", "--nproc_per_node=2",
                         "--virtual_ranks=2"));
    static const char *const files[] = {"model", "optimizer"};
    for (int i = 0; i < 2; i++)
        assert_same_file(lks_test_text("%s/ckpt-00000012/%s.safetensors", home, files[i]),
                         lks_test_text("%s/ckpt-00000012/%s.safetensors", away, files[i]));
    /* once it has a checkpoint of its own, that is what goes on */
    lks_test_write(lks_test_text("%s/ckpt.pt", away), "x", 1);
    lks_test_result r = TRAIN(data, away, "--init_from=resume", "--max_iters=12");
    assert_trained(r);
    assert_contains(r.out, "at iteration 12");
}

/* A run that begins with the weights of `file` has this hash of them. */
static void assert_begins(const char *file, const char *hash)
{
    const char *out = lks_test_folder();
    assert_trained(TRAIN(generated_data(), out, lks_test_text("--init_from=%s", file),
                         "--max_iters=0", "--eval_interval=0", "--virtual_ranks=1"));
    const json_t *config = json_array_get(lks_test_record(out, "config"), 0);
    assert_string_equal(lks_test_string(config, "init_hash"), hash);
    assert_string_equal(lks_test_string(config, "gelu"), "exact");
}

TEST(test_beginning)
{
    const char *run = law_output("random", "--max_iters=2");
    const char *hash = json_string_value(json_object_get(
        lks_test_figure(lks_test_text("%s/latest/state.json", run)), "params_hash"));
    const char *file = exported(run, "ckpt.pt", "nanogpt", NULL);
    assert_begins(file, hash);
    *strrchr((char *)(uintptr_t)file, '/') = '\0';
    assert_begins(file, hash); /* the folder */
}

/* ---- parameter-golf's files --------------------------------------------------------------- */

static const char *golf_run(const char *folder)
{
    const char *out = lks_test_text("%s/run", folder);
    lks_test_generated_golf(folder);
    assert_exits(0,
                 lks_test_run(
                     (const char *const[]){
                         "lockstep", "train",
                         lks_test_text("%s/config/golf_baseline.conf", LKS_TEST_SOURCE_DIR),
                         lks_test_text("--out_dir=%s", out), lks_test_text("--dataset=%s", folder),
                         "--tokenizer_path=", "--num_layers=3", "--model_dim=72", "--num_heads=2",
                         "--num_kv_heads=1", "--train_seq_len=32", "--train_batch_tokens=512",
                         "--val_batch_size=32768", "--iterations=2", "--val_loss_every=0",
                         "--threads=1", NULL},
                     NULL, 120));
    return out;
}

/* All weights of a source, of the shape that it gives, and their number in *n_p. */
static float *weights_of(const char *source, size_t *n_p, lks__settings *s)
{
    lks__weights *w;
    lks__table table;
    assert_ok(lks__weights_open(source, NULL, &w));
    *s = w->model;
    const lks__model_config config = lks__state_model_config(s, (uint32_t)s->vocab_size);
    assert_ok(lks__model_table(&config, &table));
    float *x = lks_test_calloc(table.count, sizeof *x);
    assert_ok(lks__weights_read(w, &config, &table, 1, x));
    *n_p = table.count;
    lks__table_free(&table);
    lks__weights_close(w);
    return x;
}

TEST(test_golf)
{
    const char *run = golf_run(lks_test_folder());
    lks__settings s, own;
    size_t n, m;
    float *want = weights_of(run, &n, &own);
    float *got = weights_of(exported(run, "final_model.pt", "golf", NULL), &m, &s);
    assert_int_equal(n, m);
    assert_memory_equal(got, want, n * sizeof *got);
    assert_int_equal(s.n_layer, 3);
    assert_int_equal(s.n_embd, 72);
    assert_int_equal(s.n_head, 2);
    assert_int_equal(s.num_kv_heads, 1);
    assert_int_equal(s.mlp_mult, own.mlp_mult);
    assert_int_equal(s.vocab_size, 1024);
    assert_true(s.tie_embeddings);
    free(got);
    /* the sizes that count, with those of the code */
    const char *code = lks_test_text("%s/code.py", run);
    char lines[123] = {0};
    lks_test_write(code, lines, sizeof lines);
    const char *raw = lks_test_text("%s/raw.pt", run);
    lks_test_result r =
        lks_test_tool("export", "--format=golf", lks_test_text("--out_dir=%s", run),
                      lks_test_text("--out=%s", raw), lks_test_text("--code=%s", code));
    lks_test_read(raw, &m);
    assert_string_equal(r.out,
                        lks_test_text("Serialized model: %zu bytes\nCode size: 123 bytes\nTotal "
                                      "submission size: %zu bytes\n",
                                      m, m + 123));
    got = weights_of(lks_test_text("%s/final_model.int8.ptz", run), &m, &s);
    assert_int_equal(n, m);
    assert_int_equal(s.block_size, 32); /* from its settings */
    size_t differ = 0;
    for (size_t i = 0; i < n; i++) {
        assert_near(got[i], want[i], 0.0041);
        differ += got[i] != want[i];
    }
    assert_true(differ > 0);
    lks_test_free(got, want);
}

/* ---- lies --------------------------------------------------------------------------------- */

typedef struct lie {
    const char *without, *left_out, *longer, *bad_type, *more_args;
    const char *frozen; /* tensors that the run doesn't train */
    const char *narrow; /* type of the shared table, BF16 or F16, which counts up then */
    int64_t n_embd, iter, eval_iters; /* eval_iters: with a config, and this dataset */
    const char *dataset;
    double step, eps, decay;
    bool compiled, mask, other_head, nan_moment, one_less;
    bool amsgrad, other_betas, turned_moment, half_moment, bare;
} lie;

enum { C = 8, V = 5, T = 4, TENSORS = 9 };

static const struct {
    const char *name;
    uint64_t shape[2];
} tensors[TENSORS] = {{"transformer.wte.weight", {V, C}},
                      {"transformer.wpe.weight", {T, C}},
                      {"transformer.h.0.ln_1.weight", {C, 0}},
                      {"transformer.h.0.attn.c_attn.weight", {3 * C, C}},
                      {"transformer.h.0.attn.c_proj.weight", {C, C}},
                      {"transformer.h.0.ln_2.weight", {C, 0}},
                      {"transformer.h.0.mlp.c_fc.weight", {4 * C, C}},
                      {"transformer.h.0.mlp.c_proj.weight", {C, 4 * C}},
                      {"transformer.ln_f.weight", {C, 0}}};

typedef struct written {
    lks__emit e;
    uint64_t bytes[64];
    size_t n;
    const lie *l;
    size_t head, moment; /* storages of lm_head and of a moment */
} written;

static lks_status read_zeros(void *ctx, size_t storage, uint64_t first, void *out, size_t bytes)
{
    const written *w = ctx;
    memset(out, 0, bytes);
    for (size_t i = 0; w->l->narrow && (storage == 0 || storage == w->head) && i < bytes / 2; i++)
        ((uint16_t *)out)[i] = (uint16_t)(0x3c00 + first / 2 + i);
    if (first == 0 &&
        ((w->l->other_head && storage == w->head) || (w->l->nan_moment && storage == w->moment)))
        memcpy(out, w->l->nan_moment ? "\0\0\xc0\x7f" : "\0\0\x80\x3f", 4);
    return LKS_OK;
}

static bool is(const char *mine, const char *name)
{
    return mine && strcmp(mine, name) == 0;
}

static size_t put_tensor(written *w, const char *dtype, int n_dims, uint64_t d0, uint64_t d1)
{
    const uint64_t shape[4] = {d0, d1, 1, 1};
    w->bytes[w->n] = d0 * (n_dims > 1 ? d1 : 1) * (strstr(dtype, "F16") != NULL ? 2 : 4);
    lks__emit_tensor(&w->e, dtype, n_dims, shape, (unsigned)w->n);
    return w->n++;
}

static void put_model(written *w)
{
    const lie *l = w->l;
    const char *prefix = l->compiled ? "_orig_mod." : "";
    lks__emit_dict(&w->e);
    for (int i = 0; i < TENSORS; i++) {
        if (is(l->left_out, tensors[i].name))
            continue;
        lks__emit_text(&w->e, lks_test_text("%s%s", prefix, tensors[i].name));
        const char *type = i == 0 && l->narrow ? l->narrow : "F32";
        put_tensor(w, is(l->bad_type, tensors[i].name) ? "I32" : type, tensors[i].shape[1] ? 2 : 1,
                   tensors[i].shape[0] + is(l->longer, tensors[i].name), tensors[i].shape[1]);
    }
    if (l->mask) { /* a buffer of old versions of PyTorch */
        lks__emit_text(&w->e, lks_test_text("%stransformer.h.0.attn.bias", prefix));
        put_tensor(w, "F32", 4, T, T);
    }
    lks__emit_text(&w->e, lks_test_text("%slm_head.weight", prefix));
    w->head = put_tensor(w, l->narrow ? l->narrow : "F32", 2, V, C);
    lks__emit_dict_end(&w->e);
}

static void put_states(written *w)
{
    int64_t id = 0;
    lks__emit_text(&w->e, "state");
    lks__emit_dict(&w->e);
    for (int group = 0; group < 2; group++)
        for (int i = 0; i < TENSORS; i++) {
            if ((tensors[i].shape[1] > 0) != (group == 0))
                continue;
            lks__emit_int(&w->e, id++);
            lks__emit_dict(&w->e);
            lks__emit_text(&w->e, "step");
            lks__emit_float(&w->e, w->l->step != 0 ? w->l->step : 3.0);
            for (int m = 0; m < 2; m++) {
                lks__emit_text(&w->e, m ? "exp_avg_sq" : "exp_avg");
                const bool turn = w->l->turned_moment && i == 0;
                w->moment =
                    put_tensor(w, w->l->half_moment && m && i == 0 ? "F16" : "F32",
                               group == 0 ? 2 : 1, tensors[i].shape[turn], tensors[i].shape[!turn]);
            }
            lks__emit_dict_end(&w->e);
        }
    lks__emit_dict_end(&w->e);
}

static void put_group(written *w, int group, int64_t *id)
{
    lks__emit_dict(&w->e);
    lks__emit_text(&w->e, "weight_decay");
    lks__emit_float(&w->e, group == 0 ? 0.1 : w->l->decay);
    lks__emit_text(&w->e, "betas");
    lks__emit_tuple(&w->e);
    lks__emit_float(&w->e, 0.9);
    lks__emit_float(&w->e, w->l->other_betas && group == 1 ? 0.99 : 0.95);
    lks__emit_tuple_end(&w->e);
    lks__emit_text(&w->e, "amsgrad");
    lks__emit_bool(&w->e, w->l->amsgrad);
    lks__emit_text(&w->e, "eps");
    lks__emit_float(&w->e, w->l->eps != 0 ? w->l->eps : 1e-8);
    lks__emit_text(&w->e, "params");
    lks__emit_list(&w->e);
    for (int i = w->l->one_less && group == 1; i < TENSORS; i++)
        if ((tensors[i].shape[1] > 0) == (group == 0) && !(w->l->one_less && i == TENSORS - 1))
            lks__emit_int(&w->e, (*id)++);
    lks__emit_list_end(&w->e);
    lks__emit_dict_end(&w->e);
}

static void put_optimizer(written *w)
{
    int64_t id = 0;
    lks__emit_dict(&w->e);
    put_states(w);
    lks__emit_text(&w->e, "param_groups");
    lks__emit_list(&w->e);
    put_group(w, 0, &id);
    put_group(w, 1, &id);
    lks__emit_list_end(&w->e);
    lks__emit_dict_end(&w->e);
}

static void put_args(written *w)
{
    static const struct {
        const char *name;
        int64_t value;
    } args[] = {{"n_layer", 1}, {"n_head", 2}, {"n_embd", C}, {"block_size", T}, {"vocab_size", V}};
    lks__emit_dict(&w->e);
    for (size_t i = 0; i < sizeof args / sizeof *args; i++) {
        if (is(w->l->without, args[i].name))
            continue;
        lks__emit_text(&w->e, args[i].name);
        lks__emit_int(&w->e, i == 2 && w->l->n_embd ? w->l->n_embd : args[i].value);
    }
    if (!is(w->l->without, "bias")) {
        lks__emit_text(&w->e, "bias");
        lks__emit_bool(&w->e, false);
    }
    if (w->l->more_args) {
        lks__emit_text(&w->e, w->l->more_args);
        lks__emit_bool(&w->e, true);
    }
    lks__emit_dict_end(&w->e);
}

static const char *file_with(const lie *l)
{
    const char *path = lks_test_text("%s/ckpt.pt", lks_test_folder());
    written w = {.l = l};
    lks__emit_start(&w.e);
    lks__emit_dict(&w.e);
    if (l->bare) {
        lks__emit_text(&w.e, "wte.weight");
        put_tensor(&w, "F32", 2, V, C);
    }
    if (!is(l->without, "model")) {
        lks__emit_text(&w.e, "model");
        put_model(&w);
    }
    if (!is(l->without, "optimizer")) {
        lks__emit_text(&w.e, "optimizer");
        put_optimizer(&w);
    }
    lks__emit_text(&w.e, "model_args");
    put_args(&w);
    if (l->eval_iters) {
        lks__emit_text(&w.e, "config");
        lks__emit_dict(&w.e);
        lks__emit_text(&w.e, "eval_iters");
        lks__emit_int(&w.e, l->eval_iters);
        lks__emit_text(&w.e, "dataset");
        lks__emit_text(&w.e, l->dataset);
        lks__emit_dict_end(&w.e);
    }
    lks__emit_text(&w.e, "iter_num");
    lks__emit_int(&w.e, l->iter ? l->iter : 3);
    if (!is(l->without, "best_val_loss")) {
        lks__emit_text(&w.e, "best_val_loss");
        lks__emit_float(&w.e, 2.5);
    }
    lks__emit_dict_end(&w.e);
    lks__emit_stop(&w.e);
    const lks__torchsave_what what = {&w.e, w.bytes, w.n, read_zeros, &w};
    assert_ok(lks__torchsave_file(path, &what));
    free(w.e.at);
    return path;
}

/* Open, read the weights, and, if `run`, what a continued run takes. */
static lks_status use_with(const lie *l, bool run, uint32_t vocab_size)
{
    lks__weights *w = NULL;
    lks__table table = {0};
    lks__nanogpt_run taken;
    float x[3][4096] = {{0}};
    lks_status st = lks__weights_open(file_with(l), NULL, &w);
    if (st != LKS_OK)
        return st;
    const lks__model_config config = lks__state_model_config(&w->model, vocab_size);
    assert_ok(lks__model_table(&config, &table));
    assert_true(table.count <= 4096);
    assert_ok(lks__table_freeze(&table, l->frozen ? l->frozen : ""));
    if (run)
        st = lks__nanogpt_run_of(w, &taken);
    LKS__THEN(st, lks__weights_read(w, &config, &table, 1, x[0]));
    const float *shared = x[0] + lks__table_find(&table, "transformer.wte.weight")->offset;
    for (uint32_t i = 0; st == LKS_OK && l->narrow && i < V * C; i++) {
        const uint32_t bits = (0x3c00 + i) << 16;
        const float half = 1.0f + (float)i / 1024.0f;
        assert_memory_equal(&shared[i], is(l->narrow, "F16") ? (const void *)&half : &bits, 4);
    }
    if (st == LKS_OK && run)
        st = lks__nanogpt_moments(w, &table, x[1], x[2]);
    if (st == LKS_OK && run)
        assert_true((int64_t)taken.iter == (l->iter ? l->iter : 3) && taken.best_val_loss == 2.5 &&
                    taken.beta2 == 0.95);
    lks__table_free(&table);
    lks__weights_close(w);
    return st;
}

static lks_status use(const lie *l, bool run)
{
    return use_with(l, run, V);
}

#define REFUSED(run, why, ...)                                                                     \
    assert_fails(LKS_ERR_FORMAT, use(&(lie){__VA_ARGS__}, run), "ckpt.pt", why)

TEST(test_lies)
{
    assert_ok(use(&(lie){0}, true));
    assert_ok(use(&(lie){.compiled = true, .mask = true}, true));
    assert_ok(use(&(lie){.without = "optimizer"}, false));
    assert_ok(use(&(lie){.narrow = "BF16"}, true));
    assert_ok(use(&(lie){.narrow = "F16"}, true));
    REFUSED(false, "it has no \"model\"", .without = "model");
    REFUSED(false, "save the model with save_pretrained()", .without = "model", .bare = true);
    REFUSED(false, "no n_head of at least 1", .without = "n_head");
    REFUSED(false, "no bias of", .without = "bias");
    REFUSED(false, "has rope, which nanoGPT's model lacks", .more_args = "rope");
    REFUSED(false, "transformer.wte.weight", .n_embd = 16);
    REFUSED(false, "no n_embd of at least 1", .n_embd = -8);
    REFUSED(false, "transformer.h.0.ln_2.weight, which", .left_out = "transformer.h.0.ln_2.weight");
    REFUSED(false, "transformer.wpe.weight is [5, 8]", .longer = "transformer.wpe.weight");
    REFUSED(false, "is of type I32", .bad_type = "transformer.wpe.weight");
    REFUSED(false, "lm_head.weight differs", .other_head = true);
    assert_fails(LKS_ERR_SUPPORT, use(&(lie){.without = "optimizer"}, true), "ckpt.pt",
                 "has no state of the optimizer", "--init_from=PATH");
    REFUSED(true, "best_val_loss is not a number", .without = "best_val_loss");
    REFUSED(true, "not a count of at least 1", .iter = -1);
    REFUSED(true, "another eps", .eps = 1e-6);
    REFUSED(true, "betas and decay", .decay = 0.1);
    REFUSED(true, "betas and decay", .other_betas = true);
    REFUSED(true, "or amsgrad", .amsgrad = true);
    REFUSED(true, "no moments (F32) in the shape of tensor transformer.wte.weight",
            .turned_moment = true);
    REFUSED(true, "no moments (F32) in the shape of tensor transformer.wte.weight",
            .half_moment = true);
    REFUSED(true, "no moments", .one_less = true);
    assert_fails(LKS_ERR_SUPPORT, use(&(lie){.step = 2}, true), "2 times in 3 iterations");
    assert_fails(LKS_ERR_SUPPORT, use(&(lie){.step = (1 << 24) - 1, .iter = 1 << 24}, true),
                 "times");
    /* float32 doesn't count any further */
    assert_ok(use(&(lie){.step = 1 << 24, .iter = (1 << 24) + 7}, true));
    assert_fails(LKS_ERR_CONFIG, use_with(&(lie){0}, true, V + 1), "continued in its own shape");
    assert_fails(LKS_ERR_NAN, use(&(lie){.nan_moment = true}, true), "ln_f.weight is not finite");
    assert_ok(use(&(lie){.nan_moment = true, .frozen = "ln_f"}, true)); /* not read */
}

/* A state_dict of the script: what its first tensors give, and no others. */
static lks_status open_golf(uint64_t width, uint64_t heads, uint64_t keys, bool gain)
{
    static const char *const names[] = {"tok_emb.weight", "blocks.0.attn.c_k.weight",
                                        "blocks.0.mlp.fc.weight", "blocks.0.attn.q_gain"};
    const uint64_t rows[] = {11, keys, 2 * width, heads};
    const char *path = lks_test_text("%s/final_model.pt", lks_test_folder());
    written w = {.l = &(lie){0}, .head = SIZE_MAX, .moment = SIZE_MAX};
    lks__weights *opened = NULL;
    lks__emit_start(&w.e);
    lks__emit_dict(&w.e);
    for (int i = 0; i < 3 + gain; i++) {
        lks__emit_text(&w.e, names[i]);
        put_tensor(&w, "F32", i < 3 ? 2 : 1, rows[i], width);
    }
    lks__emit_dict_end(&w.e);
    lks__emit_stop(&w.e);
    const lks__torchsave_what what = {&w.e, w.bytes, w.n, read_zeros, &w};
    assert_ok(lks__torchsave_file(path, &what));
    free(w.e.at);
    lks_status st = lks__weights_open(path, NULL, &opened);
    lks__weights_close(opened);
    return st;
}

/* A whole state_dict of zeros, with a classifier of its own or without. */
static void check_golf_head(bool tied)
{
    static const char *const how[][2] = {{"family", "golf"},    {"n_layer", "2"},
                                         {"n_embd", "16"},      {"n_head", "4"},
                                         {"num_kv_heads", "2"}, {"vocab_size", "11"}};
    const char *path = lks_test_text("%s/final_model.pt", lks_test_folder());
    written w = {.l = &(lie){0}, .head = SIZE_MAX, .moment = SIZE_MAX};
    lks__settings s;
    lks__table table;
    lks__weights *opened;
    lks__settings_defaults(&s);
    for (size_t i = 0; i < sizeof how / sizeof *how; i++)
        assert_ok(lks__settings_set(&s, LKS__CMD_TRAIN, how[i][0], how[i][1], LKS__FROM_ARG, ""));
    assert_ok(lks__settings_set(&s, LKS__CMD_TRAIN, "tie_embeddings", tied ? "true" : "false",
                                LKS__FROM_ARG, ""));
    const lks__model_config config = lks__state_model_config(&s, 11);
    assert_ok(lks__model_tensors(&config, &table));
    assert_true((lks__table_find(&table, "lm_head.weight") == NULL) == tied);
    lks__emit_start(&w.e);
    lks__emit_dict(&w.e);
    for (size_t i = 0; i < table.n_tensors; i++) {
        const lks__table_tensor *t = &table.tensors[i];
        lks__emit_text(&w.e, t->name);
        put_tensor(&w, "F32", t->n_dims, t->shape[0], t->shape[1]);
    }
    lks__emit_dict_end(&w.e);
    lks__emit_stop(&w.e);
    const lks__torchsave_what what = {&w.e, w.bytes, w.n, read_zeros, &w};
    assert_ok(lks__torchsave_file(path, &what));
    free(w.e.at);
    lks__table_free(&table);
    assert_ok(lks__weights_open(path, NULL, &opened));
    assert_int_equal(opened->model.tie_embeddings, tied);
    assert_int_equal(opened->model.num_kv_heads, 2);
    lks__weights_close(opened);
}

TEST(test_golf_shapes)
{
    check_golf_head(true);
    check_golf_head(false);
    assert_fails(LKS_ERR_FORMAT, open_golf(16, 4, 8, true), "tensor skip_weights, which a model");
    assert_fails(LKS_ERR_FORMAT, open_golf(16, 4, 7, true), "don't match a model of");
    assert_fails(LKS_ERR_FORMAT, open_golf(16, 3, 8, true), "don't match a model of");
    assert_fails(LKS_ERR_FORMAT, open_golf(16, 4, 8, false), "don't match a model of");
}

TEST(test_export_refused)
{
    const char *run = law_output("random", "--max_iters=1", "--gelu=tanh");
    const char *file = lks_test_text("%s/ckpt.pt", lks_test_folder());
    const char *out_dir = lks_test_text("--out_dir=%s", run),
               *out = lks_test_text("--out=%s", file);
    assert_exits(2, lks_test_tool("export", "--format=nanogpt", out_dir, out),
                 "--gelu=exact writes it");
    assert_false(lks_test_exists(file));
    assert_exits(0, lks_test_tool("export", "--format=nanogpt", out_dir, out, "--gelu=exact"));
    assert_true(lks_test_exists(file));
    assert_exits(2,
                 lks_test_tool("export", "--format=nanogpt",
                               lks_test_text("--out_dir=%s", golf_run(lks_test_folder())), out),
                 "is a model of family golf");
    assert_exits(2, TRAIN(generated_data(), lks_test_folder(), "--init_from=resume"),
                 "there is no checkpoint");
    /* without --dataset, the data that the file names */
    lks_test_result r = lks_test_tool("train", "--init_from=resume",
                                      lks_test_text("--out_dir=%s", nanogpts_folder()));
    assert_contains(r.err, "dataset \"generated\": there is no such folder");
    r = lks_test_tool("eval", lks_test_text("--init_from=%s", nanogpts_folder()));
    assert_contains(r.err, "dataset \"generated\" (as no --dataset=DIR was given): there is no");
    assert_exits(
        2, TRAIN(generated_data(), nanogpts_folder(), "--init_from=resume", "--optimizer=sgd"),
        "has the state of AdamW");
    const char *other = lks_test_folder();
    const lie lies = {.eval_iters = -1, .dataset = "../data"};
    lks_test_do("cp", file_with(&lies), lks_test_text("%s/ckpt.pt", other));
    assert_exits(2, TRAIN(generated_data(), other, "--init_from=resume"),
                 "eval_iters must be a whole number from 1 to 1,000,000, not \"-1\"; "
                 "--eval_iters=VALUE replaces it\n");
    r = TRAIN(generated_data(), other, "--init_from=resume", "--eval_iters=2");
    assert_contains(r.err, "has vocab_size = 65, but the weights are for 5 tokens");
    /* a path in place of a dataset's name isn't used */
    static const char none[] =
        "dataset \"openwebtext\" (as no --dataset=DIR was given): there is no";
    r = lks_test_tool("train", "--init_from=resume", "--eval_iters=2",
                      lks_test_text("--out_dir=%s", other));
    assert_contains(r.err, none);
    r = lks_test_tool("eval", lks_test_text("--init_from=%s", other));
    assert_contains(r.err, none);
    forge_model m = forge_open(true);
    const char *out_of_llmc = lks_test_folder();
    lks_test_do("cp", forge_llmc(&m, 3, NULL), lks_test_text("%s/ckpt.pt", out_of_llmc));
    forge_close(&m);
    assert_exits(1, TRAIN(generated_data(), out_of_llmc, "--init_from=resume"),
                 "nanoGPT's ckpt.pt: it is a model file of llm.c");
}

int main(void)
{
    lks_test_need_zip();
    return lks_test_run_all(NULL, NULL);
}
