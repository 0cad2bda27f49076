/* lockstep eval beside a sum over one target after the other, straight from the definition: windows
 * that overlap, other lengths, files and patterns, bits per byte, any number of ranks. */
#include "../weights/forge.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/models.h"
#include "spm_model.h"
#include "weights/use/replica.h"

enum { GPT2_T = 16, GOLF_T = 8, MOST = 400, N_VAL = 171 };

static lks__session session;
static const char *gpt2, *golf; /* folders with data/ and out/ */
static int32_t text[MOST];      /* of gpt2's val.bin */
static int32_t ids[N_VAL];      /* of golf's validation shards */
static size_t n_text;

static void train_gpt2(void)
{
    const char *dir = gpt2 = lks_test_folder(), *data = lks_test_text("%s/data", dir);
    const char *input = lks_test_text("%s/text", dir), *written = "";
    for (int i = 0; i < 50; i++)
        written = lks_test_text("%s%c\xc3\xa9t\xc3\xa9 %d,", written, 'a' + i * 7 % 26, i * i);
    lks_test_write_text(input, written);
    lks_test_do("lockstep", "prep", "char", lks_test_text("--input=%s", input),
                lks_test_text("--out=%s", data), "--val_fraction=0.3");
    lks_test_do("lockstep", "train", lks_test_text("--dataset=%s", data),
                lks_test_text("--out_dir=%s/out", dir), "--n_layer=2", "--n_head=2", "--n_embd=16",
                "--block_size=16", "--batch_size=4", "--gradient_accumulation_steps=1",
                "--max_iters=20", "--learning_rate=0.01", "--eval_iters=1", "--threads=1");
    size_t bytes;
    const char *val = lks_test_read(lks_test_text("%s/val.bin", data), &bytes);
    n_text = bytes / 2;
    assert_in_range(n_text, 100, MOST);
    for (size_t i = 0; i < n_text; i++) {
        uint16_t id;
        memcpy(&id, val + 2 * i, 2);
        text[i] = id;
    }
}

static void train_golf(void)
{
    enum { N_TRAIN = 3000, FIRST = 100, V = 50 };
    uint16_t tokens[N_TRAIN];
    const char *dir = golf = lks_test_folder();
    for (size_t i = 0; i < N_TRAIN; i++)
        tokens[i] = (uint16_t)(i * i % 47 + i % 3);
    lks_test_write_shard(lks_test_text("%s/fineweb_train_000000.bin", dir), tokens, N_TRAIN);
    lks_test_write_shard(lks_test_text("%s/fineweb_val_000000.bin", dir), tokens + 5, FIRST);
    lks_test_write_shard(lks_test_text("%s/fineweb_val_000001.bin", dir), tokens + 900,
                         N_VAL - FIRST);
    for (size_t i = 0; i < N_VAL; i++)
        ids[i] = tokens[i < FIRST ? 5 + i : 900 + i - FIRST];
    lks_test_do("lockstep", "train", "--family=golf", "--sampler=stream",
                lks_test_text("--dataset=%s", dir), lks_test_text("--out_dir=%s/out", dir),
                lks_test_text("--vocab_size=%d", V), "--n_layer=3", "--n_head=2",
                "--num_kv_heads=1", "--n_embd=16", "--block_size=8", "--train_batch_tokens=128",
                "--gradient_accumulation_steps=4", "--virtual_ranks=2", "--val_batch_size=64",
                "--iterations=12", "--max_wallclock_seconds=0", "--threads=1");
}

static int open_all(void **state)
{
    train_gpt2();
    train_golf();
    assert_ok(lks__session_open("auto", 60.0, 1, LKS__BIND_NONE, &session));
    return 0;
}

static int close_all(void **state)
{
    lks__session_close(&session);
    return 0;
}

/* ---- the definition -------------------------------------------------------------------------- */

static double loss_of(const float *logits, size_t V, int32_t target)
{
    double sum = 0.0;
    for (size_t i = 0; i < V; i++)
        sum += exp((double)logits[i] - (double)logits[target]);
    return log(sum);
}

/* Every target once, from the first window [k * stride, k * stride + T) that predicts it. */
static double naive(const char *run, const int32_t *tokens, size_t n, size_t T, size_t stride)
{
    lks__settings s;
    lks__replica r;
    double sum = 0.0;
    lks__settings_defaults(&s);
    assert_ok(lks__replica_open(lks_test_text("%s/out", run), &s, &session, &r));
    r.config.block_size = (int)T;
    assert_ok(lks__model_open(&r.config, &r.table, 1, session.device, &r.model));
    const size_t V = (size_t)r.config.vocab_size;
    float *logits = lks_test_calloc(V, sizeof *logits);
    for (size_t t = 1; t < n; t++) {
        const size_t k = t <= T ? 0 : (t - T + stride - 1) / stride;
        models_logits(r.model, r.params.dev, tokens + k * stride, (int)(t - k * stride), logits);
        sum += loss_of(logits, V, tokens[t]);
    }
    free(logits);
    lks__replica_close(&r);
    return sum / (double)(n - 1);
}

/* ---- the command ----------------------------------------------------------------------------- */

#define EVAL(run, ...)                                                                             \
    lks_test_tool("eval", lks_test_text("--out_dir=%s/out", run), "--threads=1", __VA_ARGS__)

static double number_after(const char *line, const char *words)
{
    return strtod(lks_test_find(line, words) + strlen(words), NULL);
}

TEST(test_stride)
{
    const char *data = lks_test_text("--dataset=%s/data", gpt2);
    static const size_t strides[] = {1, 5, 8, 15, 16};
    for (size_t i = 0; i < sizeof strides / sizeof *strides; i++) {
        const size_t stride = strides[i];
        const char *first = NULL;
        const double want = naive(gpt2, text, n_text, GPT2_T, stride);
        for (int W = 1; W <= 3; W++) {
            const lks_test_result r =
                assert_exits(0, EVAL(gpt2, data, lks_test_text("--stride=%zu", stride),
                                     lks_test_text("--nproc_per_node=%d", W),
                                     lks_test_text("--batch_size=%d", W)));
            assert_near(number_after(r.out, "val loss "), want, 2e-6);
            first = first == NULL ? r.out : first;
            assert_string_equal(r.out, first);
        }
        assert_contains(first,
                        lks_test_text("over %zu windows of 16 tokens, stride %zu",
                                      1 + (n_text - 1 - GPT2_T + stride - 1) / stride, stride));
    }
    /* What is recorded is what was printed; of equal lines the last one's stride is 16. */
    const json_t *kept = lks_test_metrics(lks_test_text("%s/out/evals.jsonl", gpt2), "eval");
    const json_t *last = json_array_get(kept, json_array_size(kept) - 1);
    assert_near(lks_test_number(last, "loss"), naive(gpt2, text, n_text, GPT2_T, GPT2_T), 2e-6);
    assert_int_equal(lks_test_number(last, "stride"), GPT2_T);
    assert_int_equal(lks_test_number(last, "block_size"), GPT2_T);
    assert_int_equal(lks_test_number(last, "windows"), 1 + (n_text - 2) / GPT2_T);
    assert_string_equal(lks_test_string(last, "split"), "val");
    /* Fewer tokens than a window. */
    const char *few = lks_test_text("%s/few.bin", gpt2);
    const uint16_t three[] = {(uint16_t)text[0], (uint16_t)text[1], (uint16_t)text[2]};
    lks_test_write(few, three, sizeof three);
    const lks_test_result r =
        assert_exits(0, EVAL(gpt2, lks_test_text("--dataset=%s", few), "--stride=4"));
    assert_near(number_after(r.out, "few.bin loss "), naive(gpt2, text, 3, GPT2_T, 4), 2e-6);
    assert_contains(r.out, "over 1 window of ");
    /* Of 32 tokens the last one has no target: one window of 16. */
    uint16_t two[2 * GPT2_T];
    for (size_t i = 0; i < 2 * GPT2_T; i++)
        two[i] = (uint16_t)text[i];
    lks_test_write(few, two, sizeof two);
    const lks_test_result one = assert_exits(0, EVAL(gpt2, lks_test_text("--dataset=%s", few)));
    assert_near(number_after(one.out, "few.bin loss "), naive(gpt2, text, 17, GPT2_T, GPT2_T),
                2e-6);
    assert_contains(one.out, "over 1 window of ");
    lks_test_write(few, three, 2);
    assert_contains(EVAL(gpt2, lks_test_text("--dataset=%s", few), "--stride=4").err,
                    "too few tokens");
    assert_contains(EVAL(gpt2, data, "--stride=17").err, "is more than a window");
    /* a run's form of GELU is known, so another one would be another model */
    assert_contains(EVAL(gpt2, data, "--gelu=tanh").err,
                    "gelu=tanh was given, but the run has gelu=exact: leave the setting out");
    assert_exits(0, EVAL(gpt2, data, "--gelu=exact"));
    assert_contains(lks_test_tool("eval", "--artifact=x.ptz", "--checkpoint=best").err,
                    "--artifact and --checkpoint each name a model: leave one of them out");
}

/* nanoGPT's model.py over the same windows: tests/parity/stride_figure.py. */
TEST(test_stride_of_python)
{
    const json_t *figure = lks_test_figure("generated/nanogpt_stride.json");
    const json_t *c = lks_test_member(figure, "config");
    const lks__model_config config = {.n_layer = (int)lks_test_number(c, "n_layer"),
                                      .n_head = (int)lks_test_number(c, "n_head"),
                                      .n_embd = (int)lks_test_number(c, "n_embd"),
                                      .block_size = (int)lks_test_number(c, "block_size"),
                                      .vocab_size = (int)lks_test_number(c, "vocab_size"),
                                      .bias = true};
    forge_model m = forge_open_as(&config);
    const forge_hf how = {0};
    const char *init = lks_test_text("--init_from=%s", forge_hf_folder(&m, &how));
    const char *data = lks_test_folder();
    forge_close(&m);
    lks_test_generated_tokens(data);
    const json_t *losses = lks_test_member(figure, "losses"), *row;
    size_t i;
    json_array_foreach(losses, i, row)
    {
        const int stride = (int)lks_test_number(row, "stride");
        const int block = (int)lks_test_number(row, "block");
        const lks_test_result r = lks_test_do(
            "lockstep", "eval", init, "--gelu=exact", lks_test_text("--dataset=%s", data),
            lks_test_text("--stride=%d", stride), lks_test_text("--block_size=%d", block));
        assert_near(number_after(r.out, "val loss "), lks_test_number(row, "loss"), 1e-5);
        assert_contains(r.out, lks_test_text("over %d windows of %d tokens, stride %d",
                                             (int)lks_test_number(row, "windows"), block, stride));
    }
    assert_true(i >= 4);
}

/* Bits per byte of characters: UTF-8's bytes of the targets. */
TEST(test_bytes)
{
    const lks_test_result r =
        assert_exits(0, EVAL(gpt2, lks_test_text("--dataset=%s/data", gpt2), "--stride=16"));
    size_t bytes;
    const char *all = lks_test_read(lks_test_text("%s/text", gpt2), &bytes);
    size_t tail = bytes;
    for (size_t n = n_text - 1; n > 0; n--) /* back over the targets' characters */
        do
            tail--;
        while (((unsigned char)all[tail] & 0xc0) == 0x80);
    assert_true(bytes - tail > n_text + 10);
    assert_near(number_after(r.out, "perplexity "), exp(number_after(r.out, "val loss ")), 1e-3);
    const char *bpb = lks_test_find(r.out, " bits per byte");
    while (bpb[-1] != ' ')
        bpb--;
    assert_near(strtod(bpb, NULL),
                number_after(r.out, "val loss ") / log(2.0) * (double)(n_text - 1) /
                    (double)(bytes - tail),
                1e-6);
}

/* The same tokens from a folder, a file, a shard and a pattern of shards. */
/* A run on data without validation tokens. */
TEST(test_split)
{
    const char *dir = lks_test_folder(), *data = lks_test_text("--dataset=%s/data", dir);
    const char *run = lks_test_text("--out_dir=%s/out", gpt2);
    lks_test_do("lockstep", "prep", "char", lks_test_text("--input=%s/text", gpt2),
                lks_test_text("--out=%s/data", dir), "--val_fraction=0");
    assert_exits(2, lks_test_tool("eval", run, data),
                 "data has no validation tokens: use --split=train for");
    assert_contains(lks_test_do("lockstep", "eval", run, data, "--split=train").out, "train loss ");
}

TEST(test_files)
{
    const char *whole = assert_exits(0, EVAL(gpt2, lks_test_text("--dataset=%s/data", gpt2))).out;
    const char *file =
        assert_exits(0, EVAL(gpt2, lks_test_text("--dataset=%s/data/val.bin", gpt2))).out;
    assert_string_equal(strchr(file, ' '), strchr(whole, ' '));
    assert_memory_equal(file, "val.bin ", 8);
    uint16_t shard[MOST];
    for (size_t i = 0; i < n_text; i++)
        shard[i] = (uint16_t)text[i];
    lks_test_write_shard(lks_test_text("%s/shard.bin", gpt2), shard, n_text);
    file = assert_exits(0, EVAL(gpt2, lks_test_text("--dataset=%s/shard.bin", gpt2))).out;
    assert_string_equal(strchr(file, ' '), strchr(whole, ' '));

    whole = assert_exits(0, EVAL(golf, lks_test_text("--dataset=%s", golf))).out;
    file = assert_exits(0, EVAL(golf, lks_test_text("--dataset=%s/fineweb_val_*.bin", golf))).out;
    assert_string_equal(strchr(file, ' '), strchr(whole, ' '));
    const lks_test_result r = assert_exits(
        0, EVAL(golf, lks_test_text("--dataset=%s/fineweb_val_000000.bin", golf), "--stride=3"));
    assert_near(number_after(r.out, "000000.bin loss "), naive(golf, ids, 100, GOLF_T, 3), 2e-6);
    assert_contains(EVAL(gpt2, lks_test_text("--dataset=%s/no*.bin", gpt2)).err, "no*.bin");
    assert_contains(EVAL(gpt2, lks_test_text("--dataset=%s/text", gpt2)).err, "text");
    char csv[200];
    memset(csv, 'a', sizeof csv);
    lks_test_write(lks_test_text("%s/my.csv", gpt2), csv, sizeof csv);
    assert_contains(EVAL(gpt2, lks_test_text("--dataset=%s/my.csv", gpt2)).err,
                    "my.csv is a text, and not a file of tokens: prepare it");
}

/* golf's positions go on beyond the length of training; gpt2's don't. Both have shorter ones. */
TEST(test_length)
{
    static const size_t lengths[] = {3, 8, 20, 64, 200};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const lks_test_result r =
            assert_exits(0, EVAL(golf, lks_test_text("--dataset=%s", golf), "--stride=3",
                                 "--batch_size=2", lks_test_text("--block_size=%zu", lengths[i])));
        assert_near(number_after(r.out, "val loss "), naive(golf, ids, N_VAL, lengths[i], 3), 5e-6);
    }
    const char *data = lks_test_text("--dataset=%s/data", gpt2);
    const lks_test_result r = assert_exits(0, EVAL(gpt2, data, "--stride=2", "--block_size=7"));
    assert_near(number_after(r.out, "val loss "), naive(gpt2, text, n_text, 7, 2), 2e-6);
    assert_exits(2, EVAL(gpt2, data, "--block_size=17"), "the model has positions for 16 tokens");
}

/* Output that can't be written: the cause and exit code 1. An evaluation is recorded all the same.
 */
TEST(test_full_output)
{
    const char *const commands[] = {"eval --dataset=data --out_dir=out",
                                    "eval --dataset=data --out_dir=out --nproc_per_node=2",
                                    "sample --out_dir=out --start=a",
                                    "report out",
                                    "plot out",
                                    "prep char --input=out/train.log --out=log",
                                    lks_test_text("export %s/out --format=golf --out=g.ptz", golf)};
    const char *evals = lks_test_text("%s/out/evals.jsonl", gpt2);
    assert_exits(0, EVAL(gpt2, lks_test_text("--dataset=%s/data", gpt2)));
    for (int i = 0; i < 7; i++) {
        const size_t before = json_array_size(lks_test_metrics(evals, "eval"));
        const char *command =
            lks_test_text("cd %s && exec '%s' %s >/dev/full", gpt2, LKS_TEST_TOOL, commands[i]);
        assert_exits(1, lks_test_shell(command), "standard output", "No space left on device");
        assert_int_equal(json_array_size(lks_test_metrics(evals, "eval")), before + (i < 2));
    }
}

static void refused(lks_test_result r, const char *says)
{
    assert_exits(2, r, says);
}

/* Characters of another text are refused: their folder, and its files. */
TEST(test_other_characters)
{
    static const char other[] = "ZYX WVU ZYX WVU ZYX WVU ZYX WVU ZYX WVU ZYX WVU ZYX WVU ZYX WVU";
    const char *dir = lks_test_folder(), *input = lks_test_text("%s/text", dir);
    lks_test_write_text(input, other);
    lks_test_do("lockstep", "prep", "char", lks_test_text("--input=%s", input),
                lks_test_text("--out=%s/data", dir), "--val_fraction=0.5");
    static const char *const paths[] = {"data", "data/val.bin", "data/train.bin"};
    for (int i = 0; i < 3; i++)
        refused(EVAL(gpt2, lks_test_text("--dataset=%s/%s", dir, paths[i])),
                lks_test_text("%s are not those of the weights", paths[i]));
    assert_int_equal(unlink(lks_test_text("%s/data/meta.json", dir)), 0);
    assert_exits(0, EVAL(gpt2, lks_test_text("--dataset=%s/data/val.bin", dir)));
}

#define TRAIN_PIECES(...)                                                                          \
    lks_test_tool("train", "--family=golf", "--vocab_size=7", "--n_layer=2", "--n_head=2",         \
                  "--num_kv_heads=1", "--n_embd=16", "--block_size=8", "--train_batch_tokens=64",  \
                  "--val_batch_size=64", "--iterations=2", "--threads=1", __VA_ARGS__)

/* Shards whose meta.json names another SentencePiece model than the one of the run, `model`. */
static void check_other_model(const char *dir, const char *run, const char *model)
{
    static const char meta[] = "{\"kind\":\"sentencepiece\",\"vocab_size\":7,\"file\":"
                               "\"sp.model\",\"hash\":\"0000000000000001\"}";
    const char *data = lks_test_text("--dataset=%s", dir);
    const char *shards = lks_test_text("%s/fineweb_val_*.bin", data);
    const char *plain = lks_test_text("--out_dir=%s/plain", dir);
    assert_exits(0, TRAIN_PIECES(data, plain)); /* without the tokenizer of its ids */
    lks_test_write_text(lks_test_text("%s/meta.json", dir), meta);
    refused(lks_test_tool("eval", run, data), "are not those of the weights");
    refused(lks_test_tool("eval", run, shards), "are not those of the weights");
    refused(lks_test_tool("eval", plain, shards, model), "were not made with the tokenizer");
    refused(TRAIN_PIECES(data, plain, model), "were not made with the tokenizer");
    assert_int_equal(unlink(lks_test_text("%s/meta.json", dir)), 0);
    assert_contains(lks_test_do("lockstep", "eval", plain, shards, model).out, " bits per byte)");
}

/* A run whose tokenizer was given as --tokenizer_path: eval and sample use it without being told.
 */
TEST(test_knows_the_tokenizer)
{
    enum { N = 600 };
    static spm_bytes model;
    uint16_t tokens[N];
    const char *dir = lks_test_folder(), *path = lks_test_text("%s/some.model", dir);
    const char *run = lks_test_text("--out_dir=%s/out", dir);
    for (size_t i = 0; i < N; i++)
        tokens[i] = (uint16_t)(1 + i * i % 4);
    lks_test_write_shard(lks_test_text("%s/fineweb_train_000000.bin", dir), tokens, N);
    lks_test_write_shard(lks_test_text("%s/fineweb_val_000000.bin", dir), tokens, N / 2);
    spm_put_small_model(&model, SPM_BPE);
    lks_test_write(path, model.data, model.n);
    const char *given = lks_test_text("--tokenizer_path=%s", path);
    const lks_test_result trained = TRAIN_PIECES(lks_test_text("--dataset=%s", dir), run, given);
    if (strstr(trained.err, "install ") != NULL)
        lks_test_lacks("sentencepiece", "SentencePiece");
    assert_exits(0, trained);
    assert_contains(lks_test_do("lockstep", "eval", run).out, " bits per byte), ckpt-00000002");
    lks_test_do("lockstep", "sample", run, "--start=x", "--num_samples=1", "--max_new_tokens=3");
    check_other_model(dir, run, given);
    /* A run that was given none has the model next to its data. */
    const char *input = lks_test_text("%s/text", dir), *data = lks_test_text("%s/data", dir);
    const char *pieces = lks_test_text("--out_dir=%s/pieces", dir), *words = "";
    for (int i = 0; i < 200; i++)
        words = lks_test_text("%sword %d and more\n\n", words, i * i % 17);
    lks_test_write_text(input, words);
    lks_test_do("lockstep", "prep", "sentencepiece", lks_test_text("--input=%s", input),
                lks_test_text("--out=%s", data), "--vocab_size=300");
    lks_test_do("lockstep", "train", lks_test_text("--dataset=%s", data), pieces, "--n_layer=1",
                "--n_head=1", "--n_embd=4", "--block_size=8", "--batch_size=1",
                "--gradient_accumulation_steps=1", "--max_iters=1", "--eval_interval=0");
    lks_test_do("lockstep", "sample", pieces, "--start=x", "--num_samples=1", "--max_new_tokens=3");
    /* The file is gone: the loss is still right, and a note says why there is only that. */
    assert_int_equal(unlink(path), 0);
    const lks_test_result less = lks_test_do("lockstep", "eval", run);
    assert_null(strstr(less.out, "bits per byte"));
    assert_contains(less.err, lks_test_text("the run's tokenizer %s no longer exists", path));
}

int main(void)
{
    return lks_test_run_all(open_all, close_all);
}
