/* lockstep export --format=hf and safetensors: what is written, that it comes back bit for bit,
 * that equal models give equal files, and what is refused. */
#include "../weights/forge.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/text/meta.h"
#include "files/safetensors/safetensors.h"
#include "settings/settings_table.h"
#include "weights/export/form.h"
#include "weights/forms/saved.h"
#include "weights/weights.h"

static const char *data; /* a folder of characters */

#define X(of, format) #format,
static const char *const formats[] = {LKS__WORDS_format(X, )};
#undef X

/* A folder with a text of these 16 characters. */
static const char *make_data_of(const char *characters)
{
    const char *folder = lks_test_folder(), *text = lks_test_text("%s/text", folder);
    const char *out = lks_test_text("%s/data", folder);
    char all[4000];
    for (size_t i = 0; i < sizeof all; i++)
        all[i] = characters[(i * i + i / 7) % 16];
    lks_test_write(text, all, sizeof all);
    assert_exits(0, lks_test_tool("prep", "char", lks_test_text("--input=%s", text),
                                  lks_test_text("--out=%s", out)));
    return out;
}

/* The characters don't ascend, like those of a script that doesn't sort them. */
static int make_data(void **state)
{
    static const char meta[] =
        "{\"kind\":\"char\",\"vocab_size\":16,\"chars\":\"cba\\n\\\"\\\\ lkjihgfed\"}";
    data = make_data_of("abc\n\"\\ defghijkl");
    lks_test_write(lks_test_text("%s/meta.json", data), meta, sizeof meta - 1);
    return 0;
}

/* A run of two steps, so that no tensor has its initial values. */
static const char *trained(const char *more, const char *and_more)
{
    const char *out = lks_test_folder();
    assert_exits(0, lks_test_tool("train", lks_test_text("--dataset=%s", data),
                                  lks_test_text("--out_dir=%s", out), "--n_layer=2", "--n_head=2",
                                  "--n_embd=16", "--block_size=12", "--batch_size=2",
                                  "--gradient_accumulation_steps=1", "--max_iters=1",
                                  "--eval_interval=0", "--learning_rate=0.05", "--warmup_iters=0",
                                  "--threads=1", more, and_more));
    return out;
}

static lks_test_result export_as(const char *format, const char *run, const char *out)
{
    return lks_test_tool("export", lks_test_text("--format=%s", format),
                         lks_test_text("--out_dir=%s", run), lks_test_text("--out=%s", out));
}

static const char *exported(const char *format, const char *run)
{
    const char *out = lks_test_text("%s/%s", lks_test_folder(), "model.safetensors");
    if (strcmp(format, "hf") == 0)
        out = lks_test_folder();
    assert_exits(0, export_as(format, run, out), "ckpt-00000002 (latest)",
                 lks_test_text("lockstep export: wrote %s%s (", out,
                               strcmp(format, "hf") == 0 ? "/model.safetensors" : ""));
    return out;
}

/* --- values ----------------------------------------------------------------------------------- */

struct model {
    lks__table table;
    float *params;
    lks__settings s;
};

/* What lockstep reads from a run, a folder or a file. */
static struct model opened(const char *path)
{
    const lks__weights_want want = {.n_head = 2};
    struct model m;
    lks__weights *w;
    lks__settings_defaults(&m.s);
    assert_ok(lks__weights_open(path, &want, &w));
    assert_ok(lks__settings_begin(&m.s, &w->model, w->shown));
    const lks__model_config config = lks__state_model_config(&m.s, (uint32_t)m.s.vocab_size);
    assert_ok(lks__model_table(&config, &m.table));
    m.params = lks_test_calloc(m.table.count, sizeof *m.params);
    assert_ok(lks__weights_read(w, &config, &m.table, 1, m.params));
    lks__weights_close(w);
    return m;
}

static void close_model(struct model *m)
{
    free(m->params);
    lks__table_free(&m->table);
}

/* `written` has the same bits; or zeros, for biases that `run` doesn't have. gelu: and the same
 * form of GELU. */
static void check_model(const char *run, const char *written, bool gelu)
{
    struct model a = opened(run), b = opened(written);
    size_t biases = 0;
    for (size_t i = 0; i < b.table.n_tensors; i++) {
        const lks__table_tensor *t = &b.table.tensors[i], *own = lks__table_find(&a.table, t->name);
        if (own != NULL)
            assert_memory_equal(b.params + t->offset, a.params + own->offset,
                                t->count * sizeof(float));
        for (size_t e = 0; own == NULL && e < t->count; e++)
            assert_true(b.params[t->offset + e] == 0.0f);
        biases += own == NULL;
    }
    assert_int_equal(biases, b.table.n_tensors - a.table.n_tensors);
    if (gelu)
        assert_int_equal(a.s.gelu, b.s.gelu);
    close_model(&a);
    close_model(&b);
}

static void check_values(const char *run, const char *written)
{
    check_model(run, written, strstr(written, ".safetensors") == NULL); /* no place for it */
}

/* Export, import and export again: the same bytes. */
static void check_round(const char *more, const char *and_more, bool biases)
{
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json",
                                        "tokenizer_config.json"};
    const char *run = trained(more, and_more), *first = exported("hf", run);
    check_values(run, first);
    check_values(run, exported("safetensors", run));
    assert_int_equal(lks_test_count_files(first), 4);
    const char *again = exported("hf", run);
    for (size_t i = 0; i < 4; i++)
        assert_same_file(lks_test_text("%s/%s", again, files[i]),
                         lks_test_text("%s/%s", first, files[i]));
    const char *next = lks_test_folder();
    assert_exits(
        0, lks_test_tool("train", lks_test_text("--init_from=%s", first),
                         lks_test_text("--dataset=%s", data), lks_test_text("--out_dir=%s", next),
                         "--max_iters=1", "--batch_size=2", "--gradient_accumulation_steps=1",
                         "--eval_interval=0", "--learning_rate=0", "--min_lr=0", "--threads=1"));
    again = exported("hf", next);
    for (size_t i = 0; i < 4; i++)
        assert_same_file(lks_test_text("%s/%s", again, files[i]),
                         lks_test_text("%s/%s", first, files[i]));
    lks_test_result said = export_as("hf", run, first); /* over what is there */
    assert_int_equal(said.exit_code, 0);
    assert_true((strstr(said.err, "no biases") != NULL) == !biases);
}

TEST(test_rounds)
{
    check_round("--bias=true", "--gelu=tanh", true);
    check_round("--bias=false", "--gelu=exact", false);
}

/* A run of the same shape whose data have no vocabulary, only token files. */
static const char *trained_bare(const char *more)
{
    static const char *const names[] = {"train.bin", "val.bin"};
    const char *characters = data, *bare = lks_test_folder();
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(
            symlink(lks_test_text("%s/%s", data, names[i]), lks_test_text("%s/%s", bare, names[i])),
            0);
    data = bare;
    const char *run = trained("--vocab_size=20", more);
    data = characters;
    return run;
}

static const char *sum_of(const char *folder)
{
    return lks_test_shell("cd \"$0\" && cat *.json *.safetensors | sha256sum", folder).out;
}

/* A full disk leaves the older export whole. After a kill the folder is the old or the new model,
 * or none that a program can read, and the next export removes all other files. */
TEST(test_replaced)
{
    static const char *const faults[] = {"write:%d:ENOSPC", "fsync:%d:ENOSPC", "rename:%d:ENOSPC",
                                         "write:%d:die",    "fsync:%d:die",    "rename:%d:die"};
    const lks__weights_want want = {.n_head = 2};
    const char *old = exported("hf", trained("--bias=true", "--gelu=tanh"));
    const char *run = trained_bare("--bias=false");
    const char *sums[] = {sum_of(old), sum_of(exported("hf", run))};
    run = lks_test_text("--out_dir=%s", run);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        for (int n = 1;; n++) {
            lks__weights *w;
            const char *folder = lks_test_copy_of(old), *to = lks_test_text("--out=%s", folder);
            const char *fault = lks_test_text("LOCKSTEP_FAULT=%s", lks_test_text(faults[i], n));
            const char *argv[] = {"lockstep", "export", run, "--format=hf", to, NULL};
            lks_test_result r = lks_test_run(argv, (const char *[]){fault, NULL}, 30);
            if (r.exit_code == 0) {
                assert_int_equal(lks_test_count_files(folder), 2);
                assert_true(n > 4);
                break;
            }
            if (i < 3) {
                assert_contains(r.err, "No space left on device");
                lks_test_do("diff", "-r", old, folder);
                continue;
            }
            assert_int_equal(r.signal, SIGKILL);
            if (lks__weights_open(folder, &want, &w) == LKS_OK) {
                lks__weights_close(w);
                const char *sum = sum_of(folder);
                assert_true(strcmp(sum, sums[0]) == 0 || strcmp(sum, sums[1]) == 0);
            }
            assert_exits(0, lks_test_tool("export", run, "--format=hf", to));
            assert_int_equal(lks_test_count_files(folder), 2);
        }
}

TEST(test_config)
{
    const char *folder = exported("hf", trained("--bias=true", "--gelu=exact"));
    const json_t *c = lks_test_figure(lks_test_text("%s/config.json", folder));
    assert_string_equal(lks_test_string(c, "model_type"), "gpt2");
    assert_string_equal(lks_test_string(c, "activation_function"), "gelu");
    assert_int_equal(lks_test_number(c, "n_positions"), 12);
    assert_int_equal(lks_test_number(c, "n_head"), 2);
    assert_true(json_is_null(json_object_get(c, "eos_token_id")));
    lks__st_file *file;
    assert_ok(lks__st_open(lks_test_text("%s/model.safetensors", folder), &file));
    assert_string_equal(lks__st_metadata(file, "format"), "pt");
    const lks__st_tensor *t = lks__st_find(file, "transformer.h.1.mlp.c_fc.weight");
    assert_non_null(t);
    assert_true(t->n_dims == 2 && t->shape[0] == 16 && t->shape[1] == 64);
    assert_null(lks__st_find(file, "lm_head.weight"));
    lks__st_close(file);
    c = lks_test_figure(lks_test_text("%s/tokenizer_config.json", folder));
    assert_int_equal(lks_test_number(c, "model_max_length"), 12);
    c = lks_test_figure(lks_test_text("%s/tokenizer.json", folder)); /* CR LF is one line feed */
    assert_string_equal(lks_test_string(c, "normalizer.normalizers.0.pattern.String"), "\r\n");
    assert_string_equal(lks_test_string(c, "normalizer.normalizers.1.pattern.String"), "\r");
}

static lks_test_result sampled(const char *from, const char *more)
{
    return lks_test_tool("sample", from, more, "--start=ab", "--num_samples=1",
                         "--max_new_tokens=9", "--threads=1");
}

/* The characters of an exported folder are read from there, but not somebody else's words. */
TEST(test_exported_characters)
{
    static const char *const wrong[] = {
        "{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0,\"word\":1}}}",
        "{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0,\"b\":2}}}",
        "{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":1,\"b\":1}}}",
        "{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0,\"b\":\"1\"}}}",
        "{\"model\":{\"type\":\"WordLevel\",\"vocab\":{}}}"};
    const char *run = trained("--bias=true", "--gelu=exact"), *folder = exported("hf", run);
    const char *from = lks_test_text("--init_from=%s", folder);
    lks_test_result own = assert_exits(0, sampled(lks_test_text("--out_dir=%s", run), "--seed=3"));
    assert_memory_equal(own.out, "ab", 2);
    lks_test_result r = sampled(from, "--seed=3");
    assert_string_equal(r.out, own.out);
    const char *other = exported("hf", run);
    assert_int_equal(unlink(lks_test_text("%s/tokenizer.json", other)), 0);
    r = lks_test_tool("sample", lks_test_text("--init_from=%s", other), "--seed=3", "--start=ab",
                      "--num_samples=1", "--max_new_tokens=9", "--threads=1",
                      lks_test_text("--tokenizer=%s", folder));
    assert_string_equal(r.out, own.out);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        lks_test_write(lks_test_text("%s/tokenizer.json", folder), wrong[i], strlen(wrong[i]));
        assert_exits(1, sampled(from, "--seed=3"),
                     "tokenizer.json contains words (WordLevel), and lockstep reads such "
                     "a file only if",
                     "--tokenizer=data/my");
    }
}

/* Characters next to weights are theirs in all commands; they are compared with the data's. */
TEST(test_beside)
{
    const char *folder = exported("hf", trained("--bias=true", "--gelu=exact"));
    const char *from = lks_test_text("--init_from=%s", folder), *bare = lks_test_folder();
    const char *tokens = lks_test_text("%s/train.bin", bare);
    const char *tokenizer = lks_test_text("--tokenizer=%s", data);
    assert_int_equal(symlink(lks_test_text("%s/train.bin", data), tokens), 0);
    /* data without a tokenizer: the run knows the weights' characters */
    const char *run = lks_test_text("--out_dir=%s", lks_test_folder());
#define TRAIN(dataset, out)                                                                        \
    lks_test_tool("train", from, lks_test_text("--dataset=%s", dataset), out, "--max_iters=1",     \
                  "--batch_size=2", "--gradient_accumulation_steps=1", "--eval_interval=0",        \
                  "--threads=1")
    assert_int_equal(TRAIN(bare, run).exit_code, 0);
    assert_memory_equal(sampled(run, "--seed=3").out, "ab", 2);
    assert_memory_equal(sampled(run, tokenizer).out, "ab", 2);
    assert_int_equal(lks_test_count_files(exported("hf", run + strlen("--out_dir="))),
                     4); /* the tokenizer, too */
    /* a folder without one knows its tokens by a path that is given */
    const char *other = lks_test_folder();
    for (int i = 0; i < 2; i++) {
        const char *name = i == 0 ? "config.json" : "model.safetensors";
        assert_int_equal(
            symlink(lks_test_text("%s/%s", folder, name), lks_test_text("%s/%s", other, name)), 0);
    }
    const char *init = lks_test_text("--init_from=%s", other);
    const char *dataset = lks_test_text("--dataset=%s", tokens);
    assert_null(strstr(lks_test_tool("eval", init, dataset).out, "bits per byte"));
    assert_contains(
        lks_test_tool("eval", init, dataset, lks_test_text("--tokenizer_path=%s", data)).out,
        " bits per byte), ");
    /* other characters */
    const char *meta = "{\"kind\": \"char\", \"vocab_size\": 3, \"chars\": \"xyz\"}";
    lks_test_write(lks_test_text("%s/meta.json", bare), meta, strlen(meta));
    assert_int_equal(unlink(tokens), 0);
    lks_test_write(tokens, "\0\0\1\0\2\0\0\0\1\0\2\0\0\0\1\0\2\0\0\0\1\0\2\0\0\0", 26);
    assert_exits(2, TRAIN(bare, lks_test_text("--out_dir=%s", lks_test_folder())),
                 "the same ids stand for other text");
    assert_exits(2,
                 lks_test_tool("eval", from, lks_test_text("--dataset=%s", bare), "--split=train"),
                 "the same ids stand for other text");
    assert_exits(2, sampled(run, lks_test_text("--tokenizer=%s", bare)),
                 "the model's tokens are its own characters");
#undef TRAIN
}

/* What a form can't say is said once. */
TEST(test_notes)
{
    static const char *const gelu[] = {"--gelu=exact", "--gelu=tanh"};
    const char *characters = data, *out = lks_test_text("%s/file", lks_test_folder());
    for (int i = 0; i < 2; i++) {
        lks_test_result r =
            assert_exits(0, export_as("safetensors", trained("--bias=true", gelu[i]), out));
        assert_true((strstr(r.err, "gelu=tanh, which this file can't record") != NULL) == (i == 1));
    }
    /* a character that no text in JSON may have */
    const char *folder = lks_test_folder(), *text = lks_test_text("%s/text", folder);
    char all[1000];
    for (size_t i = 0; i < sizeof all; i++)
        all[i] = "ab\0c"[i * 7 / 3 % 4];
    lks_test_write(text, all, sizeof all);
    data = lks_test_text("%s/data", folder);
    assert_int_equal(lks_test_tool("prep", "char", lks_test_text("--input=%s", text),
                                   lks_test_text("--out=%s", data))
                         .exit_code,
                     0);
    const char *meta = "{\"kind\":\"char\",\"vocab_size\":4,\"chars\":\"ba\\u0000c\"}";
    lks_test_write(lks_test_text("%s/meta.json", data), meta, strlen(meta));
    const char *run = trained("--bias=true", NULL), *said = "U+0000 is one of its characters";
    data = characters;
    assert_contains(export_as("hf", run, lks_test_folder()).err, said);
    assert_contains(export_as("nanogpt", run, lks_test_text("%s/c.pt", folder)).err, said);
    assert_int_equal(export_as("golf", run, out).exit_code, 0);
    assert_exits(0,
                 lks_test_tool("export", "--format=hf", lks_test_text("--init_from=%s", out),
                               lks_test_text("--out=%s", lks_test_folder())),
                 said);
    const char *out_dir = lks_test_text("--out_dir=%s", run);
    assert_exits(
        0, lks_test_tool("train", out_dir, "--init_from=resume", "--max_iters=2", "--threads=1"));
}

/* Token files of a folder without a vocabulary; the folder has one from before. */
TEST(test_no_tokenizer)
{
    const char *folder = exported("hf", trained("--bias=true", "--gelu=exact"));
    assert_int_equal(lks_test_count_files(folder), 4);
    /* parts of an older tokenizer's other forms */
    static const char *const parts[] = {"vocab.json", "merges.txt", "special_tokens_map.json",
                                        "added_tokens.json"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        lks_test_write(lks_test_text("%s/%s", folder, parts[i]), "{}", 2);
    const char *run = trained_bare("--bias=true");
    assert_exits(0, export_as("hf", run, folder),
                 "no tokenizer is written: the run's data had none");
    assert_int_equal(lks_test_count_files(folder), 2);
    assert_int_equal(mkdir(lks_test_text("%s/vocab.json", folder), 0700), 0);
    assert_exits(1, export_as("hf", run, folder), "cannot remove", "/vocab.json: ");
    /* an artifact gets the one that is given; its name needs no --format */
    const char *artifact = lks_test_text("%s/m.ptz", lks_test_folder());
    assert_exits(0, lks_test_tool("export", run, lks_test_text("--out=%s", artifact), "--gelu=tanh",
                                  lks_test_text("--tokenizer=%s", data)));
    assert_memory_equal(sampled(lks_test_text("--init_from=%s", artifact), "--seed=3").out, "ab",
                        2);
    struct model m = opened(artifact);
    assert_int_equal(m.s.gelu, LKS__gelu_tanh);
    close_model(&m);
}

/* The folder of a model of characters is no byte-level BPE: its model can be used all the same. */
TEST(test_use)
{
    const char *init =
        lks_test_text("--init_from=%s", exported("hf", trained("--bias=true", "--gelu=exact")));
    const char *dataset = lks_test_text("--dataset=%s", data);
    lks_test_result r = assert_exits(0, lks_test_tool("eval", init, dataset));
    assert_contains(r.out, " windows of 12 tokens",
                    " bits per byte), "); /* the data's characters are known */
    assert_exits(0, lks_test_tool("sample", init, lks_test_text("--tokenizer=%s", data),
                                  "--num_samples=1", "--max_new_tokens=2"));
}

static void assert_refused(const char *format, const char *run, const char *out, const char *says)
{
    lks_test_result r = export_as(format, run, out);
    assert_int_not_equal(r.exit_code, 0);
    assert_contains(r.err, says);
}

TEST(test_refused)
{
    const char *run = trained("--bias=true", "--gelu=exact"), *golf = lks_test_folder();
    const char *folder = lks_test_folder();
    lks_test_generated_golf(folder);
    lks_test_result r = assert_exits(
        0, lks_test_tool(
               "train", lks_test_text("%s/config/golf_baseline.conf", LKS_TEST_SOURCE_DIR),
               lks_test_text("--out_dir=%s", golf), lks_test_text("--dataset=%s", folder),
               "--tokenizer_path=", "--num_layers=2", "--model_dim=72", "--num_heads=2",
               "--num_kv_heads=1", "--train_seq_len=32", "--train_batch_tokens=512",
               "--val_batch_size=32768", "--iterations=2", "--val_loss_every=0", "--threads=1"));
    assert_refused("hf", golf, lks_test_folder(), "--format=hf writes only gpt2");
    assert_refused("gguf", golf, lks_test_text("%s/m.gguf", folder),
                   "--format=gguf writes only gpt2");
    const char *file = exported("safetensors", golf);
    lks__st_file *st;
    assert_ok(lks__st_open(file, &st));
    assert_non_null(lks__st_find(st, "blocks.1.attn.q_gain"));
    lks__st_close(st);
    assert_refused("hf", run, run, "that folder belongs to lockstep");
    assert_refused("hf", run, data, "that folder belongs to lockstep");
    r = lks_test_tool("export", "--format=hf", lks_test_text("--out_dir=%s", run));
    assert_int_not_equal(r.exit_code, 0);
    assert_contains(r.err, "--out=FOLDER");
    const char *out = lks_test_text("%s/artifact", folder);
    assert_exits(2, lks_test_tool("export", run, lks_test_text("--out=%s", out)),
                 "/artifact needs a format: without one, the file would be "
                 "parameter-golf's int8 artifact; give --format=golf, "
                 "nanogpt, hf, safetensors or gguf\n");
    assert_false(lks_test_exists(out));
    r = lks_test_tool("export", "--format=onnx", "--out=x");
    assert_contains(r.err, "format must be golf");
}

/* What isn't a file stays what it is, even if root could remove it; a link's file is written. */
TEST(test_targets)
{
    const char *run = trained("--bias=true", "--gelu=exact");
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (i == LKS__format_hf)
            continue;
        const char *folder = lks_test_folder(), *pipe = lks_test_text("%s/pipe", folder);
        const char *link = lks_test_text("%s/link", folder);
        struct stat info;
        assert_int_equal(mkfifo(pipe, 0600), 0);
        assert_refused(formats[i], run, pipe, "which a file would replace");
        assert_int_equal(lstat(pipe, &info), 0);
        assert_true(S_ISFIFO(info.st_mode));
        assert_int_equal(lks_test_count_files(folder), 1);
        lks_test_write(lks_test_text("%s/file", folder), "old", 3);
        assert_int_equal(symlink("file", link), 0);
        assert_int_equal(export_as(formats[i], run, link).exit_code, 0);
        assert_int_equal(lstat(link, &info), 0);
        assert_true(S_ISLNK(info.st_mode));
        assert_same_file(lks_test_text("%s/file", folder), exported(formats[i], run));
    }
}

/* Every form must write or refuse each setting that defines the model; golf writes all of them. */
TEST(test_settings)
{
    char names[256] = "";
    for (int i = 0; i < LKS__N_SETTINGS; i++) {
        const lks__setting *d = &lks__setting_table[i];
        if (d->flags & LKS__SETTING_SHAPE && !(d->flags & LKS__SETTING_GOLF))
            snprintf(names + strlen(names), sizeof names - strlen(names), " %s", d->name);
    }
    if (strcmp(names, " family n_layer n_head n_embd block_size vocab_size bias gelu") != 0)
        fail_msg("the settings of a model are now%s: let each form in src/weights/export write or "
                 "refuse the new one, then list it here",
                 names);
}

/* --- from any form ---------------------------------------------------------------------------- */

/* A GPT-2 with its vocabulary, as Hugging Face's loaders have one. */
static const char *given_folder(void)
{
    const char *folder = lks_test_folder();
    const lks__model_config config = {
        .n_layer = 2, .n_head = 2, .n_embd = 16, .block_size = 12, .vocab_size = 640, .bias = true};
    const forge_hf how = {.dtype = "BF16", .no_prefix = true};
    forge_model m = forge_open_as(&config);
    forge_write_hf(&m, folder, &how);
    forge_close(&m);
    char *text = json_dumps(json_object_get(lks_test_figure("bpe_small.json"), "tokenizer"), 0);
    lks_test_write(lks_test_text("%s/tokenizer.json", folder), text, strlen(text));
    free(text);
    return folder;
}

static lks_test_result export_from(const char *format, const char *source, const char *out,
                                   const char *more, const char *and_more)
{
    return lks_test_tool("export", lks_test_text("--format=%s", format),
                         lks_test_text("--init_from=%s", source), lks_test_text("--out=%s", out),
                         more, and_more);
}

/* Written anew from `source`; for hf a folder. */
static const char *passed_on(const char *format, const char *source, const char *more,
                             const char *and_more)
{
    const char *folder = lks_test_folder(), *out = folder;
    if (strcmp(format, "nanogpt") == 0)
        out = lks_test_text("%s/ckpt.pt", folder);
    else if (strcmp(format, "hf") != 0)
        out = lks_test_text("%s/model.%s", folder, format);
    assert_exits(0, export_from(format, source, out, more, and_more));
    return out;
}

static void assert_same_folder(const char *a, const char *b)
{
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json",
                                        "tokenizer_config.json"};
    for (size_t i = 0; i < 4; i++)
        assert_same_file(lks_test_text("%s/%s", a, files[i]), lks_test_text("%s/%s", b, files[i]));
}

/* Out and back: the same bytes. Forms that have no place for a fact get it on the command line. */
TEST(test_any_form)
{
    const char *given = given_folder(), *gelu = "--gelu=tanh";
    const char *tokenizer = lks_test_text("--tokenizer=%s", given);
    const char *first = passed_on("hf", given, gelu, "--n_head=2");
    check_values(given, first);
    assert_int_equal(lks_test_count_files(first), 4);
    assert_same_folder(passed_on("hf", first, NULL, NULL), first);

    const char *pt = passed_on("nanogpt", first, "--gelu=exact", NULL);
    check_model(given, pt, false);
    assert_same_folder(passed_on("hf", pt, gelu, tokenizer), first);
    assert_same_file(passed_on("nanogpt", pt, NULL, NULL), pt);

    const char *file = passed_on("safetensors", pt, NULL, NULL);
    assert_same_file(passed_on("safetensors", first, NULL, NULL), file);
    assert_same_file(passed_on("nanogpt", file, "--gelu=exact", "--n_head=2"), pt);

    const char *artifact = passed_on("golf", first, NULL, NULL);
    assert_same_file(passed_on("golf", pt, gelu, tokenizer), artifact);
    assert_same_folder(passed_on("hf", artifact, tokenizer, NULL),
                       passed_on("hf", artifact, tokenizer, gelu));
}

/* A run by its folder and by --init_from is the same. */
TEST(test_own_run)
{
    const char *run = trained("--bias=true", "--gelu=exact");
    assert_same_folder(passed_on("hf", run, NULL, NULL), exported("hf", run));
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (i == LKS__format_hf)
            continue;
        const char *out = lks_test_text("%s/file", lks_test_folder());
        assert_int_equal(export_as(formats[i], run, out).exit_code, 0);
        assert_same_file(passed_on(formats[i], run, NULL, NULL), out);
    }
    assert_same_file(passed_on("nanogpt", lks_test_text("%s/ckpt-00000002", run), NULL, NULL),
                     passed_on("nanogpt", run, NULL, NULL));
}

/* A frozen run has no moments of what is frozen: the file has no optimizer. */
TEST(test_frozen)
{
    const char *run = trained("--gelu=exact", "--freeze=h.0.");
    const char *pt = lks_test_text("%s/ckpt.pt", lks_test_folder());
    assert_exits(0, export_as("nanogpt", run, pt),
                 "(some are frozen), so the file has no optimizer");
    check_values(run, pt);
}

/* nanoGPT's ckpt.pt gets the characters next to it, once; samples use them. A folder with other
 * characters is refused. */
TEST(test_characters)
{
    const char *folder = lks_test_folder(), *pt = lks_test_text("%s/ckpt.pt", folder);
    const char *run = trained("--bias=true", "--gelu=exact");
    lks__meta ours, theirs;
    bool found = false;
    assert_int_equal(export_as("nanogpt", run, pt).exit_code, 0);
    assert_ok(lks__meta_load(folder, &found, &theirs));
    assert_true(found);
    assert_ok(lks__meta_load(data, &found, &ours));
    assert_non_null(theirs.chars);
    assert_int_equal(theirs.vocab_size, ours.vocab_size);
    assert_memory_equal(theirs.chars, ours.chars, ours.vocab_size * sizeof *ours.chars);
    lks__meta_free(&ours);
    lks__meta_free(&theirs);
    lks_test_result r = sampled(lks_test_text("--init_from=%s", pt), "--seed=3");
    assert_contains(r.err, "nanoGPT's ckpt.pt, with the tokens of its folder\n");
    assert_string_equal(r.out, sampled(lks_test_text("--out_dir=%s", run), "--seed=3").out);
    r = assert_exits(0, export_as("nanogpt", run, pt));
    assert_null(strstr(r.err, "meta.pkl"));
    const char *other = lks_test_text("%s/other.pt", folder);
    lks_test_write(lks_test_text("%s/meta.pkl", folder), "mine", 4);
    assert_exits(0, export_as("nanogpt", run, other), "doesn't have the model's characters");
    assert_string_equal(lks_test_read(lks_test_text("%s/meta.pkl", folder), NULL), "mine");
    /* As many other characters would be used for the model. */
    const char *apart = make_data_of("mno\n\"\\ defghijkl");
    other = lks_test_text("%s/other.pt", apart);
    assert_exits(2, export_as("nanogpt", run, other), "has other characters than the model");
    assert_false(lks_test_exists(other));
}

TEST(test_any_refused)
{
    const char *given = given_folder(), *run = trained("--bias=true", "--gelu=exact");
    const char *out = lks_test_text("%s/ckpt.pt", lks_test_folder());
    const char *weights = lks_test_text("%s/model.safetensors", given);
    const char *words = lks_test_folder(), *file = lks_test_text("%s/tokenizer.json", words);
    size_t bytes;
    const char *text = lks_test_read(lks_test_text("%s/tokenizer.json", given), &bytes);
    lks_test_write(file, text, bytes);
    const struct {
        const char *format, *source, *out, *more, *says;
    } rows[] = {
        {"nanogpt", given, out, NULL, "--gelu=exact writes it anyway"},
        {"nanogpt", given, out, lks_test_text("--out_dir=%s", run), "leave one of them out"},
        {"nanogpt", given, out, "--which=2", "leave one of them out"},
        {"hf", given, words, "--n_head=4", "n_head=4 was given, but the model has n_head=2"},
        {"hf", given, given, NULL, "the weights are in the folder of --out"},
        {"hf", weights, given, NULL, "the weights are in the folder of --out"},
        {"hf", given, words, lks_test_text("--tokenizer=%s", words),
         "the vocabulary is in the folder of --out"},
        {"hf", given, words, lks_test_text("--tokenizer=%s", file),
         "the vocabulary is in the folder of --out"},
        {"hf", given, lks_test_folder(), lks_test_text("--tokenizer=%s", lks_test_folder()),
         "there is no vocabulary in"},
        {"hf", run, lks_test_folder(), lks_test_text("--tokenizer=%s", given),
         "but the model only"},
        {"hf", lks_test_folder(), lks_test_folder(), NULL, "is no folder with weights"},
        {"gguf", given, weights, NULL, "contains the weights; give another --out"},
        {"safetensors", weights, weights, NULL, "contains the weights; give another --out"},
        {"safetensors", run, lks_test_text("%s/latest/model.safetensors", run), NULL,
         "contains the weights; give another --out"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        lks_test_result r =
            export_from(rows[i].format, rows[i].source, rows[i].out, rows[i].more, NULL);
        assert_int_not_equal(r.exit_code, 0);
        assert_contains(r.err, rows[i].says);
    }
    assert_true(access(out, F_OK) != 0);
    assert_true(access(file, F_OK) == 0);
    /* characters that mean other text than the run's */
    const char *other = lks_test_folder();
    const char *meta = "{\"kind\": \"char\", \"vocab_size\": 3, \"chars\": \"xyz\"}";
    lks_test_write(lks_test_text("%s/meta.json", other), meta, strlen(meta));
    lks_test_result r =
        export_from("hf", run, lks_test_folder(), lks_test_text("--tokenizer=%s", other), NULL);
    assert_int_not_equal(r.exit_code, 0);
    assert_contains(r.err, "the same ids stand for other text");
}

/* A checkpoint may come from a stranger. */
TEST(test_large_tokenizer)
{
    lks__weights w = {.shown = "out/their"};
    const lks__export_model e = {.w = &w, .meta.vocab_size = 5, .config.vocab_size = 4};
    lks__export_vocabulary v;
    assert_int_equal(lks__export_tokenizer(&e, &v), LKS_ERR_FORMAT);
    assert_string_equal(lks_last_error(),
                        "out/their: its tokenizer has 5 tokens, but its model only 4");
}

int main(void)
{
    lks_test_need_zip();
    return lks_test_run_all(make_data, NULL);
}
